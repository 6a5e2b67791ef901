/**
 * `SqlClient` of `@effect/sql` over our own pool: its statements and transactions, our bounds.
 */
import * as Reactivity from "@effect/experimental/Reactivity"
import * as SqlClient from "@effect/sql/SqlClient"
import type { Connection } from "@effect/sql/SqlConnection"
import { SqlError } from "@effect/sql/SqlError"
import * as PgClient from "@effect/sql-pg/PgClient"
import * as Effect from "effect/Effect"
import * as Stream from "effect/Stream"
import type { ClientPool, PooledClient } from "./clientPool.js"

const toSqlError = (cause: Error): SqlError => new SqlError({ cause, message: "Failed to execute statement" })

/** PostgreSQL answers the COMMIT of a failed transaction with a ROLLBACK, and does not call it an error. */
const notCommitted = new Error("the transaction was rolled back, since a statement in it had failed")

const connectionOf = (client: PooledClient): Connection => {
  const run = (text: string, values: ReadonlyArray<unknown>) =>
    Effect.mapError(client.query({ text, values }), toSqlError)
  const execute: Connection["execute"] = (text, values, transformRows) =>
    Effect.map(run(text, values), ({ rows }) => (transformRows === undefined ? rows : transformRows(rows)))
  return {
    execute,
    executeRaw: run,
    executeValues: (text, values) =>
      Effect.map(Effect.mapError(client.query({ text, values, rowMode: "array" }), toSqlError), ({ rows }) => rows),
    executeUnprepared: (text, values, transformRows) => {
      // The server rolls back whatever its session's end leaves open, and a failure here would hide the first one.
      if (text === "ROLLBACK" && !client.alive()) return Effect.succeed([])
      if (text !== "COMMIT") return execute(text, values, transformRows)
      return Effect.flatMap(run(text, values), ({ command, rows }) =>
        command === "ROLLBACK" ? Effect.fail(toSqlError(notCommitted)) : Effect.succeed(rows)
      )
    },
    // Our results are small and bounded by their statements, so a cursor would only be another thing to close.
    executeStream: (text, values, transformRows) => Stream.fromIterableEffect(execute(text, values, transformRows))
  }
}

export const makeSqlClient = (pool: ClientPool): Effect.Effect<SqlClient.SqlClient> => {
  const acquirer = Effect.mapBoth(pool.lend, { onFailure: toSqlError, onSuccess: connectionOf })
  return SqlClient.make({
    acquirer,
    compiler: PgClient.makeCompiler(),
    spanAttributes: [["db.system.name", "postgresql"]]
  }).pipe(Effect.provide(Reactivity.layer))
}
