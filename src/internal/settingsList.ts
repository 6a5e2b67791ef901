/**
 * Every setting: its name, the form of its text, its default and its meaning. The one place to add or change one.
 */
import * as Either from "effect/Either"
import * as LogLevel from "effect/LogLevel"
import { defaultRoutes, parseRoutes, type Routes } from "../Routes.js"
import {
  amqpUrl,
  boolean,
  databaseUrl,
  duration,
  type Form,
  host,
  identifier,
  integer,
  oneOf,
  token,
  url
} from "./settingForms.js"

/** A setting with a default; `value` is the default as the form reads it. */
export interface PlainSetting<A> {
  readonly kind: "plain"
  readonly name: string
  readonly form: Form<A>
  readonly fallback: string
  readonly value: A
  readonly meaning: string
}

/** A setting that may be missing. */
export interface OptionalSetting<A> {
  readonly kind: "optional"
  readonly name: string
  readonly form: Form<A>
  readonly meaning: string
}

/** A secret, which may also be in a file that `NAME_FILE` names. */
export interface SecretSetting {
  readonly kind: "secret"
  readonly name: string
  readonly form: Form<string>
  readonly required: boolean
  readonly example: string
  readonly meaning: string
}

const plain = <A>(name: string, form: Form<A>, fallback: string, meaning: string): PlainSetting<A> => ({
  kind: "plain",
  name,
  form,
  fallback,
  value: Either.getOrThrowWith(form.parse(fallback), () => new Error(`the default of ${name} is not in its own form`)),
  meaning
})

const optional = <A>(name: string, form: Form<A>, meaning: string): OptionalSetting<A> => ({
  kind: "optional",
  name,
  form,
  meaning
})

const secret = (options: Omit<SecretSetting, "kind">): SecretSetting => ({ kind: "secret", ...options })

const routes: Form<Routes> = {
  accepted: "source=target,… where target is a queue or exchange/routing-key",
  parse: (text) =>
    Either.mapLeft(parseRoutes(text), (problems) =>
      problems.map((problem) => ({ problem, mend: "Give source=target,… as in order.created=orders" }))
    )
}

const logLevels = {
  trace: LogLevel.Trace,
  debug: LogLevel.Debug,
  info: LogLevel.Info,
  warn: LogLevel.Warning,
  warning: LogLevel.Warning,
  error: LogLevel.Error,
  fatal: LogLevel.Fatal,
  none: LogLevel.None
}

// Node's timers hold 2^31 - 1 ms, and fire at once beyond it.
const longestTimer = "24 days"

const databaseExample = "postgres://user:password@host:5432/database"
const amqpExample = "amqp://user:password@host:5672/vhost"

export const settings = {
  databaseUrl: secret({
    name: "DATABASE_URL",
    form: databaseUrl(databaseExample),
    required: true,
    example: databaseExample,
    meaning: "the PostgreSQL database; sslmode and sslrootcert as libpq documents them"
  }),
  amqpUrl: secret({
    name: "AMQP_URL",
    form: amqpUrl(amqpExample),
    required: true,
    example: amqpExample,
    meaning: "the RabbitMQ broker; amqps:// takes cacertfile, certfile, keyfile, verify and server_name_indication"
  }),
  routes: plain("PG_LISTENER_ROUTES", routes, defaultRoutes, "where events go: channel or event type = queue"),
  schema: plain("PG_LISTENER_SCHEMA", identifier, "public", "the schema that holds event_outbox"),
  wakeChannel: plain("PG_LISTENER_WAKE_CHANNEL", identifier, "event_outbox", "the channel that only wakes the relay"),
  healthPort: plain(
    "PG_LISTENER_HEALTH_PORT",
    integer(0, 65_535),
    "6010",
    "port of the health server; 0 for any free one"
  ),
  healthHost: plain("PG_LISTENER_HEALTH_HOST", host, "0.0.0.0", "address of the health server"),
  adminToken: secret({
    name: "PG_LISTENER_ADMIN_TOKEN",
    form: token,
    required: false,
    example: "a long random text",
    meaning: "bearer token of /admin; without it /admin is off"
  }),
  batchSize: plain("PG_LISTENER_BATCH_SIZE", integer(1, 10_000), "200", "rows that one relay cycle publishes at most"),
  workers: plain("PG_LISTENER_WORKERS", integer(1, 64), "2", "relay cycles side by side, each with its own connection"),
  maxAttempts: plain("PG_LISTENER_MAX_ATTEMPTS", integer(1, 100), "10", "failures after which a row is a dead letter"),
  maxMessageBytes: plain(
    "PG_LISTENER_MAX_MESSAGE_BYTES",
    integer(1, 536_870_912),
    "16777216",
    "the largest body; the default is RabbitMQ 4's own"
  ),
  confirmTimeout: plain(
    "PG_LISTENER_CONFIRM_TIMEOUT",
    duration("1 hour"),
    "10 seconds",
    "how long the broker has to confirm a message"
  ),
  pollInterval: plain(
    "PG_LISTENER_POLL_INTERVAL",
    duration("1 hour"),
    "5 seconds",
    "the longest wait for rows that rang no bell"
  ),
  busyThreshold: plain(
    "PG_LISTENER_BUSY_THRESHOLD",
    integer(0, 1_000_000),
    "200",
    "wake-ups per second from which writers need not ring any more; 0 for never"
  ),
  busyGap: plain(
    "PG_LISTENER_BUSY_GAP",
    duration("1 second"),
    "3 millis",
    "pause between two claims while writers don't ring"
  ),
  sweepInterval: plain(
    "PG_LISTENER_SWEEP_INTERVAL",
    duration(longestTimer),
    "5 minutes",
    "how often to look for overlooked rows"
  ),
  sweepAfter: plain(
    "PG_LISTENER_SWEEP_AFTER",
    duration(longestTimer),
    "30 seconds",
    "age from which a row counts as overlooked"
  ),
  cleanupInterval: plain(
    "PG_LISTENER_CLEANUP_INTERVAL",
    duration(longestTimer),
    "1 hour",
    "how often processed rows are deleted"
  ),
  retention: plain("PG_LISTENER_RETENTION", duration("36500 days"), "24 hours", "how long a processed row is kept"),
  gaugesInterval: plain(
    "PG_LISTENER_GAUGES_INTERVAL",
    duration("1 hour"),
    "15 seconds",
    "how often the table's figures for /metrics are read"
  ),
  heartbeatInterval: plain(
    "PG_LISTENER_HEARTBEAT_INTERVAL",
    duration("1 hour"),
    "10 seconds",
    "how often the LISTEN connection is checked"
  ),
  heartbeatTimeout: plain(
    "PG_LISTENER_HEARTBEAT_TIMEOUT",
    duration("1 hour"),
    "5 seconds",
    "how long the server has to answer such a check"
  ),
  shutdownTimeout: plain(
    "PG_LISTENER_SHUTDOWN_TIMEOUT",
    duration("1 hour"),
    "20 seconds",
    "how long a stop may take before the process is cut off"
  ),
  declareQueues: plain("PG_LISTENER_DECLARE_QUEUES", boolean, "true", "declare a route's queue when it is missing"),
  queueType: plain(
    "PG_LISTENER_QUEUE_TYPE",
    oneOf({ classic: "classic" as const, quorum: "quorum" as const }),
    "classic",
    "type of a queue that is declared; quorum for a replicated one"
  ),
  logLevel: plain("LOG_LEVEL", oneOf(logLevels), "info", "the least important lines that are logged"),
  logFormat: plain(
    "LOG_FORMAT",
    oneOf({ json: "json" as const, pretty: "pretty" as const }),
    "json",
    "json for machines, pretty for people"
  ),
  otlpEndpoint: optional(
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    url("http://localhost:4318", ["http:", "https:"]),
    "where traces go; without it tracing is off"
  )
}
