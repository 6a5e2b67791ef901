/**
 * The one place that opens a connection to PostgreSQL: for LISTEN, for the relay's workers, and for the jobs' pool.
 *
 * Each connect reads the URL, its secret file and the certificates anew, so that a rotated password or a moved server
 * needs no restart.
 */
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Either from "effect/Either"
import * as Layer from "effect/Layer"
import * as Redacted from "effect/Redacted"
import type * as Scope from "effect/Scope"
import * as pg from "pg"
import { DatabaseError } from "./Errors.js"
import { pgAdvice, refusedInBothForms } from "./internal/pgAdvice.js"
import { toDatabaseError } from "./internal/pgErrors.js"
import { closeClient, destroySocket } from "./internal/pgSocket.js"
import { type ConnectTarget, connectTarget } from "./internal/pgTarget.js"
import { sentences } from "./internal/sentences.js"
import { Settings } from "./Settings.js"

export interface ConnectOptions {
  /** Shown to the DBA as the end of `application_name`. */
  readonly role: "listen" | "relay" | "jobs" | "doorbell"
  /** The server cancels a longer statement; 0 for no limit. 5 s later we stop waiting for the server's word on it. */
  readonly statementTimeoutMillis: number
  /** The server ends a session that idles in a transaction for longer; 0 for no limit. */
  readonly idleInTransactionTimeoutMillis: number
}

/** How long past its own limit a statement may stay unanswered before its query fails with "Query read timeout". */
const answerGraceMillis = 5000

const operation = "connect to PostgreSQL"

const keepAliveIdleMillis = 10_000

/**
 * Makes the server notice within seconds that this process is gone, even without a FIN, and so free its locks. Sent by
 * SET and not at start-up, since poolers refuse start-up parameters they do not know.
 */
const sessionSettings = (options: ConnectOptions): string =>
  [
    `SET statement_timeout = ${options.statementTimeoutMillis}`,
    // Below the statement's limit: an error that names the lock tells more.
    `SET lock_timeout = ${Math.floor(options.statementTimeoutMillis / 2)}`,
    `SET idle_in_transaction_session_timeout = ${options.idleInTransactionTimeoutMillis}`,
    "SET tcp_keepalives_idle = 10",
    "SET tcp_keepalives_interval = 5",
    "SET tcp_keepalives_count = 3",
    "SET tcp_user_timeout = 25000",
    // Such a database holds bytes that need not be UTF-8. Asked for UTF-8, the server ends the session, or fails the claim,
    // at the first that is not; unasked, it sends them, and the driver puts U+FFFD in their place.
    "SELECT set_config('client_encoding', 'SQL_ASCII', false) WHERE current_setting('server_encoding') = 'SQL_ASCII'"
  ].join("; ")

/** A backend that waits for a lock reads no socket; this makes it look. Apart, since servers on Windows refuse it. */
const lookForDeadClients = "SET client_connection_check_interval = 5000"

const clientConfig = (
  target: ConnectTarget,
  encryption: ConnectTarget["encryption"][number],
  options: ConnectOptions
): pg.ClientConfig => ({
  host: target.host,
  port: target.port,
  user: target.user,
  password: target.password === undefined ? undefined : Redacted.value(target.password),
  database: target.database,
  ssl: encryption,
  enableChannelBinding: target.channelBinding,
  application_name: `${target.applicationName} ${options.role}`,
  options: target.serverOptions,
  connectionTimeoutMillis: target.connectTimeoutMillis,
  keepAlive: true,
  keepAliveInitialDelayMillis: keepAliveIdleMillis,
  ...(options.statementTimeoutMillis > 0
    ? { query_timeout: options.statementTimeoutMillis + answerGraceMillis }
    : undefined)
})

/**
 * Whether the other form of encryption may do better: the server has no TLS, the handshake failed, or `pg_hba.conf`
 * has no line for this form (28000). A wrong password is wrong in both, and trying it twice could lock the account.
 */
const refusesForm = (cause: Error): boolean => {
  const code = "code" in cause && typeof cause.code === "string" ? cause.code : ""
  return (
    code === "28000" ||
    /^(ERR_SSL|ERR_TLS|CERT_|SELF_SIGNED|DEPTH_ZERO|UNABLE_TO|EPROTO)/.test(code) ||
    /does not support SSL|establishing an SSL/.test(cause.message)
  )
}

/** One try. A failed one leaves no socket behind. */
const open = (config: pg.ClientConfig): Effect.Effect<pg.Client, Error, Scope.Scope> =>
  Effect.gen(function* () {
    const client = yield* Effect.acquireRelease(
      Effect.sync(() => {
        const fresh = new pg.Client(config)
        // Without a listener, a lost connection would end the process. Who needs to know has a listener of their own.
        fresh.on("error", () => {})
        return fresh
      }),
      closeClient
    )
    yield* Effect.async<void, Error>((resume) => {
      client.connect((error: Error | null) => resume(error === null ? Effect.void : Effect.fail(error)))
    }).pipe(Effect.onError(() => Effect.sync(() => destroySocket(client))))
    return client
  })

/** Opens the target in the first form of encryption that the server takes. */
const openTarget = (target: ConnectTarget, options: ConnectOptions): Effect.Effect<pg.Client, Error, Scope.Scope> => {
  const [first, second] = target.encryption.map((encryption) => open(clientConfig(target, encryption, options)))
  if (first === undefined) return Effect.dieMessage("a target without a form of encryption")
  return second === undefined
    ? first
    : Effect.catchAll(first, (error) =>
        refusesForm(error)
          ? Effect.mapError(second, (another) => (refusesForm(another) ? refusedInBothForms(error, another) : another))
          : Effect.fail(error)
      )
}

const refusal = (cause: Error): DatabaseError => {
  const error = toDatabaseError(operation, cause)
  const advice = pgAdvice(cause)
  return advice === undefined
    ? error
    : new DatabaseError({
        operation,
        kind: error.kind,
        reason: sentences(error.reason, advice),
        sqlState: error.sqlState
      })
}

const run = (client: pg.Client, text: string): Effect.Effect<void, Error> =>
  Effect.async<void, Error>((resume) => {
    client.query(text, (error: Error | null) => resume(error === null ? Effect.void : Effect.fail(error)))
    // A caller may be uninterruptible, and a time-out would then wait for the answer.
  }).pipe(Effect.interruptible)

export class PgConnector extends Context.Tag("pg-listener/PgConnector")<
  PgConnector,
  {
    /**
     * Opens a connection that lasts as long as the scope, whose end closes it within half a second.
     *
     * The client has an `error` listener and reads from a keep-alive socket. Take it as lost once it emits `end`, or
     * once a query failed with "Query read timeout": the answer may still come, and would meet the next query.
     */
    readonly connect: (options: ConnectOptions) => Effect.Effect<pg.Client, DatabaseError, Scope.Scope>
  }
>() {
  static readonly layer: Layer.Layer<PgConnector, never, Settings> = Layer.effect(
    this,
    Effect.map(Settings, (settings) => {
      const target = Effect.gen(function* () {
        const url = yield* settings.databaseUrl
        const read = connectTarget(url)
        if (Either.isRight(read)) return read.right
        const { mend, problem, setting } = read.left
        return yield* new DatabaseError({
          operation,
          kind: "refused",
          reason: `${setting} ${sentences(problem, mend)}`,
          sqlState: undefined
        })
      }).pipe(
        Effect.catchTag(
          "SettingsError",
          (error) => new DatabaseError({ operation, kind: "refused", reason: error.message, sqlState: undefined })
        )
      )
      return {
        connect: Effect.fn("PgConnector.connect")(function* (options) {
          const to = yield* target
          const client = yield* Effect.mapError(openTarget(to, options), refusal)
          yield* run(client, sessionSettings(options)).pipe(
            Effect.zipRight(Effect.ignore(run(client, lookForDeadClients))),
            Effect.mapError((error) => toDatabaseError("set up the session", error)),
            Effect.timeoutFail({
              duration: to.connectTimeoutMillis,
              onTimeout: () => toDatabaseError("set up the session", new Error("timed out"))
            })
          )
          return client
        })
      }
    })
  )
}
