/**
 * A plain connection for a test's own statements.
 */
import * as Data from "effect/Data"
import * as Effect from "effect/Effect"
import type * as Scope from "effect/Scope"
import Pg from "pg"

/** A test's statement failed. `sqlState` when the server said so. */
export class SqlFailed extends Data.TaggedError("SqlFailed")<{
  readonly statement: string
  readonly reason: string
  readonly sqlState: string | undefined
}> {
  override get message(): string {
    return `${this.statement.slice(0, 200)}: ${this.reason}`
  }
}

/** Column values as `pg` gives them: bigint as text, timestamps as Date, json parsed. */
export type Row = Readonly<Record<string, unknown>>

export interface SqlClient {
  /** Without values it is one simple query and may hold several statements (the rows are then those of the last). */
  readonly query: <R = Row>(text: string, values?: ReadonlyArray<unknown>) => Effect.Effect<Array<R>, SqlFailed>
  readonly backendPid: Effect.Effect<number, SqlFailed>
}

const failed = (statement: string) => (error: unknown) =>
  new SqlFailed({
    statement,
    reason: error instanceof Error ? error.message : `${error}`,
    sqlState: error instanceof Pg.DatabaseError ? error.code : undefined
  })

/** A connection of its own, closed with the scope. A statement, or the connecting, takes `withinMillis` at most. */
export const sqlClient = (url: string, withinMillis = 20_000): Effect.Effect<SqlClient, SqlFailed, Scope.Scope> =>
  Effect.gen(function* () {
    const client = new Pg.Client({
      connectionString: url,
      connectionTimeoutMillis: Math.min(withinMillis, 10_000),
      query_timeout: withinMillis,
      application_name: "test"
    })
    // A server that is killed under us ends the statement in hand, and that is where a test looks.
    client.on("error", () => {})
    yield* Effect.acquireRelease(
      Effect.tryPromise({ try: () => client.connect(), catch: failed("connect") }),
      // A frozen server answers no goodbye.
      () =>
        Effect.timeoutOption(Effect.promise(() => client.end().catch(() => {})).pipe(Effect.interruptible), "1 second")
    )
    const query: SqlClient["query"] = (text, values) =>
      Effect.tryPromise({
        try: () => (values === undefined ? client.query(text) : client.query(text, Array.from(values))),
        catch: failed(text)
      }).pipe(Effect.map((result) => (Array.isArray(result) ? (result.at(-1)?.rows ?? []) : result.rows)))
    return {
      query,
      backendPid: Effect.flatMap(query<{ pid: number }>("SELECT pg_backend_pid() AS pid"), ([row]) =>
        row === undefined ? Effect.fail(failed("pg_backend_pid")("no row")) : Effect.succeed(row.pid)
      )
    }
  })
