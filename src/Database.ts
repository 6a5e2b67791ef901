/**
 * PostgreSQL for everything but LISTEN and the relay's workers: a small pool under `SqlClient`.
 *
 * Nothing here waits for ever. Taking a connection, making one, each statement and the closing have their bounds, and a
 * connection that did not answer in time is closed and not used again. The layer starts with the database down.
 */
import * as SqlClient from "@effect/sql/SqlClient"
import { SqlError } from "@effect/sql/SqlError"
import * as Context from "effect/Context"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Option from "effect/Option"
import type { DatabaseError } from "./Errors.js"
import { makeClientPool } from "./internal/clientPool.js"
import { toDatabaseError } from "./internal/pgErrors.js"
import { makeSqlClient } from "./internal/sqlClient.js"
import { PgConnector } from "./PgConnector.js"
import type { Settings } from "./Settings.js"

export interface DatabaseOptions {
  readonly maxConnections: number
  /** How long to wait for a free connection. */
  readonly lendTimeout: Duration.Duration
  /** The server cancels a longer statement; without its word, the connection is given up 5 s later. */
  readonly statementTimeout: Duration.Duration
  /** How long a transaction may stand still between two statements. */
  readonly idleInTransactionTimeout: Duration.Duration
}

const defaults: DatabaseOptions = {
  maxConnections: 4,
  lendTimeout: Duration.seconds(10),
  statementTimeout: Duration.seconds(30),
  idleInTransactionTimeout: Duration.seconds(60)
}

export class Database extends Context.Tag("pg-listener/Database")<
  Database,
  {
    /** Runs a statement of `SqlClient`; `operation` says in the error what it was for. */
    readonly query: <A, E, R>(
      operation: string,
      statement: Effect.Effect<A, E, R>
    ) => Effect.Effect<A, Exclude<E, SqlError> | DatabaseError, R>
    /**
     * Runs the body's statements in one transaction: all or nothing. A failure of BEGIN or COMMIT is a typed error as
     * well; after a `connection` error of the COMMIT nobody knows whether it took place.
     */
    readonly transaction: <A, E, R>(
      operation: string,
      body: Effect.Effect<A, E, R>
    ) => Effect.Effect<A, Exclude<E, SqlError> | DatabaseError, R>
  }
>() {
  /** With other bounds than the usual ones. */
  static readonly layerWith = (
    options: Partial<DatabaseOptions>
  ): Layer.Layer<Database | SqlClient.SqlClient, never, Settings> =>
    Layer.scopedContext(Effect.suspend(() => make({ ...defaults, ...options }))).pipe(Layer.provide(PgConnector.layer))

  static readonly layer: Layer.Layer<Database | SqlClient.SqlClient, never, Settings> = Database.layerWith({})
}

const query = <A, E, R>(operation: string, statement: Effect.Effect<A, E, R>) =>
  Effect.mapError(statement, (error) =>
    error instanceof SqlError ? toDatabaseError(operation, error) : (error as Exclude<E, SqlError>)
  )

/** `withTransaction` dies of a COMMIT or ROLLBACK that fails; to its caller that is an error like any other. */
const committed = <A, E, R>(sql: SqlClient.SqlClient, body: Effect.Effect<A, E, R>) =>
  Effect.catchSomeDefect(sql.withTransaction(body), (defect) =>
    defect instanceof SqlError ? Option.some(Effect.fail(defect)) : Option.none()
  )

const make = Effect.fnUntraced(function* (options: DatabaseOptions) {
  const connector = yield* PgConnector
  const pool = yield* makeClientPool({
    connect: connector.connect({
      role: "jobs",
      statementTimeoutMillis: Duration.toMillis(options.statementTimeout),
      idleInTransactionTimeoutMillis: Duration.toMillis(options.idleInTransactionTimeout)
    }),
    max: options.maxConnections,
    lendTimeout: options.lendTimeout
  })
  const sql = yield* makeSqlClient(pool)
  return Context.make(SqlClient.SqlClient, sql).pipe(
    Context.add(Database, {
      query,
      transaction: <A, E, R>(operation: string, body: Effect.Effect<A, E, R>) => query(operation, committed(sql, body))
    })
  )
})
