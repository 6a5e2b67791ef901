/**
 * One connect by the service's own code, and what became of it: for tables of outcomes.
 */
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Redacted from "effect/Redacted"
import { AmqpSessions } from "../../src/internal/amqpSession.js"
import { toDatabaseError } from "../../src/internal/pgErrors.js"
import { PgConnector } from "../../src/PgConnector.js"
import { Settings, type SettingsShape } from "../../src/Settings.js"

const settingsFor = (url: string) =>
  Layer.succeed(Settings, {
    databaseUrl: Effect.succeed(Redacted.make(url))
  } as Partial<SettingsShape> as SettingsShape)

/** Connects as the relay, runs one statement, and closes. */
export const askPostgres = (url: string, statement: string) =>
  Effect.gen(function* () {
    const connector = yield* PgConnector
    const client = yield* connector.connect({
      role: "relay",
      statementTimeoutMillis: 30_000,
      idleInTransactionTimeoutMillis: 60_000
    })
    const { rows } = yield* Effect.tryPromise({
      try: () => client.query<Record<string, string>>(statement),
      catch: (cause) => toDatabaseError("ask", cause)
    })
    return rows
  }).pipe(Effect.scoped, Effect.provide(Layer.provide(PgConnector.layer, settingsFor(url))))

/** `tls`, `plain`, or why there is no connection. */
export const postgresEncryption = (url: string) =>
  askPostgres(url, "select ssl::text from pg_stat_ssl where pid = pg_backend_pid()").pipe(
    Effect.map(([row]) => (row?.["ssl"] === "true" ? "tls" : "plain")),
    Effect.catchAll((error) => Effect.succeed(`${error.kind}: ${error.message}`))
  )

/** `connected`, or why not. */
export const amqpOutcome = (url: string) =>
  Effect.flatMap(Layer.build(AmqpSessions.layer), (context) =>
    Context.get(context, AmqpSessions).open(url, () => {})
  ).pipe(
    Effect.flatMap((session) => session.openChannel),
    Effect.as("connected"),
    Effect.catchAll((error) => Effect.succeed(error.message)),
    Effect.scoped
  )
