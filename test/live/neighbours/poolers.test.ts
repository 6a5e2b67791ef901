/** PgBouncer between the service and PostgreSQL. */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Logger from "effect/Logger"
import * as LogLevel from "effect/LogLevel"
import { consume } from "../../../dev/Consumer.js"
import { migrate } from "../../../src/Migrate.js"
import { PgConnector } from "../../../src/PgConnector.js"
import { openOutbox, settingsLayer } from "../../support/outboxLab.js"
import { findOrInstallPgBouncer, pgBouncer } from "../../support/pgBouncer.js"
import { freshDatabase, freshVhost, migratedDatabase } from "../../support/Servers.js"
import { startService } from "../../support/Service.js"
import { sqlClient } from "../../support/Sql.js"

const found = await Effect.runPromise(findOrInstallPgBouncer)
const program = "program" in found ? found.program : ""
const reason = "missing" in found ? ` (skipped: ${found.missing})` : ""

const behind = (mode: "session" | "transaction" | "statement") =>
  Effect.gen(function* () {
    const database = yield* migratedDatabase
    const vhost = yield* freshVhost
    const sql = yield* sqlClient(database.url)
    const { url } = yield* pgBouncer(program, database.url, mode)
    const service = yield* startService({
      DATABASE_URL: url,
      AMQP_URL: vhost.url,
      PG_LISTENER_HEARTBEAT_TIMEOUT: "1 second",
      LOG_LEVEL: "debug"
    })
    const consumer = yield* consume(vhost.url, "campaign_click_trigger")
    return { consumer, service, sql, vhost }
  })

describe(`PgBouncer${reason}`, () => {
  for (const mode of ["transaction", "statement"] as const) {
    it.scopedLive.skipIf(program === "")(
      `in ${mode} mode is named, with what to do; the service stays alive and not ready, and tries again at ease`,
      () =>
        Effect.gen(function* () {
          const { service, sql } = yield* behind(mode)
          const listenPooler = ({ message }: { readonly message: string }) => message.startsWith("LISTEN pooler")
          const { message } = yield* service.awaitLog(listenPooler, "30 seconds")
          assert.match(message, /PgBouncer.*session mode/)
          // A row gives the workers something to claim, and so to fail at.
          yield* sql.query("select emit_event('campaign_click', '1')")
          yield* service.awaitLog((line) => listenPooler(line) && line["retry"] === 3, "40 seconds")
          assert.strictEqual((yield* service.get("/readyz")).status, 503)
          assert.strictEqual((yield* service.get("/livez")).status, 200)
          const lines = service.output().split("\n")
          const failures = lines.filter((line) => line.includes('"message":"relay worker'))
          assert.isBelow(failures.length, 60)
          for (const line of failures.filter((one) => one.includes("SQLSTATE"))) {
            assert.match(line, /PgBouncer that keeps no session .*session mode/)
          }
        })
    )
  }

  it.scopedLive.skipIf(program === "")(
    "in transaction mode, two services of different schemas on one session of the server: none runs the other's statements",
    () =>
      Effect.gen(function* () {
        const database = yield* freshDatabase
        const sql = yield* sqlClient(database.url)
        const { url } = yield* pgBouncer(program, database.url, "transaction", 1)
        const workerOf = (schema: string) =>
          Effect.gen(function* () {
            const env = { PG_LISTENER_SCHEMA: schema }
            yield* migrate.pipe(
              Effect.provide(PgConnector.layer),
              Effect.provide(settingsLayer(database.url, env)),
              Logger.withMinimumLogLevel(LogLevel.None)
            )
            yield* sql.query(`select ${schema}.emit_event('here', to_jsonb('${schema}'::text))`)
            const outbox = yield* openOutbox(url, env)
            return yield* outbox.openWorker
          })
        const workers = [yield* workerOf("first"), yield* workerOf("second")]
        const claimed: Array<string | undefined> = []
        for (const worker of workers) {
          const { rows } = yield* worker.claim({ limit: 10, full: true })
          claimed.push(...rows.map(({ payload }) => payload))
          yield* worker.settle({ processed: rows.map(({ seq }) => seq), failed: [] })
        }
        assert.deepStrictEqual(claimed, [`"first"`, `"second"`])
      })
  )

  it.scopedLive.skipIf(program === "")("in session mode carries events, from rows and from notifications", () =>
    Effect.gen(function* () {
      const { consumer, service, sql } = yield* behind("session")
      yield* service.awaitReady()
      yield* sql.query("select emit_event('campaign_click', '1')")
      assert.strictEqual((yield* consumer.take(1, "10 seconds"))[0]?.body, "1")
      yield* sql.query("notify campaign_click, '2'")
      assert.strictEqual((yield* consumer.take(1, "10 seconds"))[0]?.body, "2")
    })
  )
})
