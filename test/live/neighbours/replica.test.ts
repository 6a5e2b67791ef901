/** A standby instead of the primary. */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import { consume } from "../../../dev/Consumer.js"
import { eventually } from "../../support/eventually.js"
import { putFile } from "../../support/postgresFiles.js"
import { freshVhost, migrate, privatePostgres } from "../../support/Servers.js"
import { startService } from "../../support/Service.js"
import { sqlClient } from "../../support/Sql.js"

describe("a read replica", () => {
  it.scopedLive("is named and tried again; once it is promoted, the service works and carries what waited", () =>
    Effect.gen(function* () {
      const server = yield* privatePostgres()
      yield* migrate(server.url)
      const before = yield* sqlClient(server.url)
      yield* before.query("select emit_event('campaign_click', '1')")
      yield* putFile(before, "standby.signal", "")
      // A clean shutdown, or the standby would have no state to begin its service with.
      yield* before.query("checkpoint")
      yield* server.stop
      // It counts as started when it takes writes, and so after the promotion alone.
      yield* Effect.forkScoped(server.start)
      const standby = yield* Effect.retry(sqlClient(server.url), {
        while: () => Effect.as(Effect.sleep("50 millis"), true)
      })
      const [row] = yield* standby.query("select pg_is_in_recovery() as replica")
      assert.isTrue(row?.["replica"])

      const vhost = yield* freshVhost
      const service = yield* startService({ DATABASE_URL: server.url, AMQP_URL: vhost.url })
      const isReplica = ({ message }: { readonly message: string }) => message.startsWith("LISTEN replica")
      const { message } = yield* service.awaitLog(isReplica)
      assert.match(message, /is a replica.*Connect to the primary/)
      assert.strictEqual((yield* service.get("/readyz")).status, 503)
      assert.strictEqual((yield* service.get("/livez")).status, 200)

      const consumer = yield* consume(vhost.url, "campaign_click_trigger")
      yield* standby.query("select pg_promote()")
      yield* service.awaitReady()
      assert.strictEqual((yield* consumer.take(1, "10 seconds"))[0]?.body, "1")
      yield* eventually(
        "a writable server",
        standby.query("select emit_event('campaign_click', '2')"),
        (rows) => rows.length === 1
      )
      assert.strictEqual((yield* consumer.take(1, "10 seconds"))[0]?.body, "2")
      assert.isBelow(service.output().split("relay worker lost").length, 10)
    })
  )
})
