/** The set-up most end-to-end tests share: a migrated database, a vhost, and the built service between them. */
import * as Effect from "effect/Effect"
import { eventually } from "./eventually.js"
import { freshVhost, migratedDatabase } from "./Servers.js"
import { startService } from "./Service.js"
import { type SqlClient, sqlClient } from "./Sql.js"

export const bridge = (env: Readonly<Record<string, string>> = {}) =>
  Effect.gen(function* () {
    const database = yield* migratedDatabase
    const vhost = yield* freshVhost
    const service = yield* startService({ DATABASE_URL: database.url, AMQP_URL: vhost.url, ...env })
    yield* service.awaitReady()
    const sql = yield* sqlClient(database.url)
    return { database, vhost, service, sql }
  })

/** Waits until no row is pending. */
export const allProcessed = (sql: SqlClient) =>
  eventually(
    "every row processed",
    sql.query("select count(*)::int as pending from event_outbox where processed_at is null and dead_at is null"),
    (rows) => rows[0]?.["pending"] === 0
  )
