/**
 * Brings the tables to the version of this program: runs those files of sql/ that have not run yet.
 *
 * A file is one transaction, and ends by writing itself into `event_outbox_migrations`; so it makes no difference whether
 * a DBA ran it with psql or this did.
 */
import * as Fs from "node:fs"
import { fileURLToPath } from "node:url"
import * as Effect from "effect/Effect"
import * as Schedule from "effect/Schedule"
import type * as pg from "pg"
import { DatabaseError, SchemaError } from "./Errors.js"
import { outboxNames, quoteName } from "./internal/outboxNames.js"
import { toDatabaseError } from "./internal/pgErrors.js"
import { PgConnector } from "./PgConnector.js"
import { Settings } from "./Settings.js"

export interface Migration {
  readonly version: number
  readonly name: string
}

interface MigrationFile extends Migration {
  readonly text: string
}

/** Next to src/ and to dist/ alike. */
const sqlFolder = new URL("../sql/", import.meta.url)

const readFiles: Effect.Effect<ReadonlyArray<MigrationFile>, SchemaError> = Effect.try({
  try: () =>
    Fs.readdirSync(sqlFolder)
      .sort()
      .flatMap((file) => {
        const [, version, name] = /^(\d{4})_(\w+)\.sql$/.exec(file) ?? []
        return version === undefined || name === undefined
          ? []
          : [{ version: Number(version), name, text: Fs.readFileSync(new URL(file, sqlFolder), "utf8") }]
      }),
  catch: (error) =>
    new SchemaError({
      reason: `the migrations can't be read: ${error instanceof Error ? error.message : String(error)}`,
      mend: `They belong in ${fileURLToPath(sqlFolder)}`
    })
})

/** How long a file waits for locks that others hold. Writers queue up behind it meanwhile, so it is short. */
const lockTimeoutMillis = 5_000

/** Between two tries for a lock: writers that queued up go first. */
const lockRetries = Schedule.intersect(Schedule.spaced("2 seconds"), Schedule.recurs(5))

/** How long a second `migrate` waits for the first one. */
const turnRetries = Schedule.intersect(Schedule.spaced("500 millis"), Schedule.recurs(120))

const lockNotAvailable = "55P03"

type Query = <R extends pg.QueryResultRow>(
  operation: string,
  text: string,
  values?: ReadonlyArray<string | number>
) => Effect.Effect<ReadonlyArray<R>, DatabaseError>

const queryOn =
  (client: pg.Client): Query =>
  <R extends pg.QueryResultRow>(operation: string, text: string, values?: ReadonlyArray<string | number>) =>
    Effect.async<ReadonlyArray<R>, DatabaseError>((resume) => {
      const answer = (error: Error | null, result: pg.QueryResult<R>) =>
        resume(error === null ? Effect.succeed(result.rows) : Effect.fail(toDatabaseError(operation, error)))
      // Without values it is one simple query, which may hold many statements.
      if (values === undefined) client.query<R>(text, answer)
      else client.query<R>(text, Array.from(values), answer)
    })

/** The turn to migrate, until the session ends. Asked for again and again: whoever waits for a lock in the server has no bound of its own. */
const takeTurn = (query: Query, schema: string) =>
  query<{ readonly mine: boolean }>(
    "wait for another migrate",
    "select pg_try_advisory_lock(hashtextextended(concat('pg-listener migrate ', $1::text), 0)) as mine",
    [schema]
  ).pipe(
    Effect.filterOrFail(
      ([row]) => row?.mine === true,
      () =>
        new DatabaseError({
          operation: "wait for another migrate",
          kind: "conflict",
          reason: "another migrate is at work and did not end within a minute",
          sqlState: lockNotAvailable
        })
    ),
    Effect.retry({ schedule: turnRetries, while: (error) => error.sqlState === lockNotAvailable })
  )

/** `create schema if not exists` asks for the right to create one even when it is there. */
const createSchema = Effect.fnUntraced(function* (query: Query, schema: string) {
  const found = yield* query("look for the schema", "select from pg_namespace where nspname = $1", [schema])
  if (found.length === 0) yield* query(`create schema "${schema}"`, `create schema ${quoteName(schema)}`)
})

const appliedVersions = Effect.fnUntraced(function* (query: Query, migrations: string) {
  const [table] = yield* query<{ readonly found: boolean }>(
    "look for event_outbox_migrations",
    "select to_regclass($1) is not null as found",
    [migrations]
  )
  if (table?.found !== true) return new Set<number>()
  const rows = yield* query<{ readonly version: number }>(
    "read event_outbox_migrations",
    `select version from ${migrations}`
  )
  return new Set(rows.map(({ version }) => version))
})

/** One file: all of it or nothing. */
const apply = (query: Query, schema: string, file: MigrationFile) => {
  const operation = `migration ${file.version} (${file.name})`
  const begin = `begin; set local search_path = ${quoteName(schema)}; set local lock_timeout = ${lockTimeoutMillis}`
  return query(operation, begin).pipe(
    Effect.zipRight(query(operation, file.text)),
    Effect.zipRight(query(operation, "commit")),
    Effect.tapError(() => Effect.ignore(query(operation, "rollback"))),
    Effect.tapError((error) =>
      error.sqlState === lockNotAvailable
        ? Effect.logWarning(`${operation} waits for a lock that other transactions hold`)
        : Effect.void
    ),
    Effect.retry({ schedule: lockRetries, while: (error) => error.sqlState === lockNotAvailable }),
    Effect.zipRight(Effect.logInfo(`applied ${operation}`))
  )
}

/** The trigger carries the wake channel. A database that has no trigger is left without one: it was dropped on purpose. */
const tuneDoorbell = Effect.fnUntraced(function* (query: Query, schema: string, wakeChannel: string) {
  const names = outboxNames(schema)
  const [trigger] = yield* query<{ readonly channel: string }>(
    "look for the doorbell",
    `select convert_from(substring(t.tgargs for octet_length(t.tgargs) - 1), getdatabaseencoding()) as channel
     from pg_trigger t where t.tgrelid = to_regclass($1) and t.tgname = 'event_outbox_doorbell' and t.tgnargs = 1`,
    [names.outbox]
  )
  if (trigger === undefined || trigger.channel === wakeChannel) return
  const literal = `'${wakeChannel.replaceAll("'", "''")}'`
  const operation = "set the doorbell's channel"
  yield* query(
    operation,
    `begin; set local standard_conforming_strings = on; set local lock_timeout = ${lockTimeoutMillis};
     drop trigger event_outbox_doorbell on ${names.outbox};
     create trigger event_outbox_doorbell after insert on ${names.outbox}
       for each statement execute function ${names.doorbell}(${literal});
     commit`
  ).pipe(
    Effect.tapError(() => Effect.ignore(query(operation, "rollback"))),
    Effect.retry({ schedule: lockRetries, while: (error) => error.sqlState === lockNotAvailable }),
    Effect.zipRight(Effect.logInfo(`the doorbell rings on the channel "${wakeChannel}" now`))
  )
})

/**
 * Runs what has not run, in order, and returns it. Any number may run at once: the first one works, the others find
 * nothing to do. Creates the schema when it is missing and the role may.
 */
export const migrate: Effect.Effect<
  ReadonlyArray<Migration>,
  DatabaseError | SchemaError,
  Settings | PgConnector
> = Effect.gen(function* () {
  const { schema, wakeChannel } = yield* Settings
  const connector = yield* PgConnector
  const files = yield* readFiles
  const client = yield* connector.connect({
    role: "jobs",
    // An index on a large table takes its time.
    statementTimeoutMillis: 3_600_000,
    idleInTransactionTimeoutMillis: 60_000
  })
  const query = queryOn(client)
  yield* takeTurn(query, schema)
  yield* createSchema(query, schema)
  const done = yield* appliedVersions(query, outboxNames(schema).migrations)
  const open = files.filter(({ version }) => !done.has(version))
  for (const file of open) yield* apply(query, schema, file)
  yield* tuneDoorbell(query, schema, wakeChannel)
  return open.map(({ name, version }) => ({ name, version }))
}).pipe(Effect.scoped, Effect.withSpan("Migrate.migrate"))
