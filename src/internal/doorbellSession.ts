/**
 * The doorbell's statements and its session: raw `pg`, since a request for a lock waits for as long as it takes.
 */
import { SqlClient } from "@effect/sql/SqlClient"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import { Database } from "../Database.js"
import type { DoorbellDatabase } from "../Doorbell.js"
import { PgConnector } from "../PgConnector.js"
import { Settings } from "../Settings.js"
import { destroySocket } from "./pgSocket.js"

/** The key that the trigger tries, from the same expression (sql/0002_doorbell.sql). $1: schema. */
export const DOORBELL_KEY = "hashtextextended(concat($1::text, '.event_outbox'), 0)"

/** Waits until every writer that has rung has ended; from its start on, the tries of writers fail. */
const ASK_FOR_SILENCE = `select pg_advisory_lock(${DOORBELL_KEY})`

/** Ends the wait of the session, if it still waits: a backend that waits for a lock does not hear us hang up. */
const WITHDRAW = "select pg_terminate_backend($1::integer)"

const NEXT_TRANSACTION = "select pg_snapshot_xmax(pg_current_snapshot())::text as id"
const OLDEST_TRANSACTION = "select pg_snapshot_xmin(pg_current_snapshot())::text as id"

export const doorbellDatabase: Effect.Effect<
  DoorbellDatabase["Type"],
  never,
  Settings | PgConnector | Database | SqlClient
> = Effect.gen(function* () {
  const { schema } = yield* Settings
  const connector = yield* PgConnector
  const database = yield* Database
  const sql = yield* SqlClient

  const transactionId = (operation: string, text: string) =>
    Effect.map(database.query(operation, sql.unsafe<{ readonly id: string }>(text)), ([row]) => BigInt(row?.id ?? "0"))

  const silence = Effect.gen(function* () {
    const client = yield* connector.connect({
      role: "doorbell",
      statementTimeoutMillis: 0,
      idleInTransactionTimeoutMillis: 0
    })
    const lost = yield* Deferred.make<void>()
    const end = () => Deferred.unsafeDone(lost, Effect.void)
    client.on("error", end)
    client.on("end", end)
    let waits = true
    const pid = Reflect.get(client, "processID")
    client.query({ text: ASK_FOR_SILENCE, values: [schema] }, (error: Error | null) => {
      waits = false
      if (error !== null) end()
    })
    yield* Effect.addFinalizer(() =>
      Effect.suspend(() =>
        waits
          ? database
              .query("withdraw the doorbell's lock", sql.unsafe(WITHDRAW, [pid]))
              .pipe(Effect.ignore, Effect.zipRight(Effect.sync(() => destroySocket(client))))
          : Effect.void
      )
    )
    return { lost: Deferred.await(lost) }
  })

  return {
    silence,
    nextTransaction: transactionId("read the next transaction id", NEXT_TRANSACTION),
    oldestTransaction: transactionId("read the oldest transaction", OLDEST_TRANSACTION)
  }
})
