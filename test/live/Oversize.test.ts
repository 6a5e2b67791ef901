/** Bodies over PG_LISTENER_MAX_MESSAGE_BYTES, of rows and of live events. */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import { bridge } from "../support/bridge.js"
import { consume } from "../support/Consumer.js"
import { eventually } from "../support/eventually.js"

describe("a body that is too large", () => {
  it.scopedLive("is a dead letter at its first try, with its JSON kept, and its aggregate goes on at once", () =>
    Effect.gen(function* () {
      const { service, sql, vhost } = yield* bridge({
        PG_LISTENER_MAX_MESSAGE_BYTES: "100",
        // Nothing but what has just happened can set the followers off.
        PG_LISTENER_POLL_INTERVAL: "1 hour"
      })
      const consumer = yield* consume(vhost.url, "booking_event_trigger")
      yield* sql.query(
        `insert into event_outbox (channel, aggregate_type, aggregate_id, payload)
         select 'booking_event', 'booking', '7', p::jsonb
         from unnest(array['1', '{"row":"' || repeat('x', 100) || '"}', '2', '{"row":"' || repeat('x', 300) || '"}', '3']) p`
      )
      const arrived = yield* consumer.take(3, "10 seconds")
      assert.deepStrictEqual(
        arrived.map(({ body }) => body),
        ["1", "2", "3"]
      )
      yield* sql.query(`select pg_notify('booking_event', '{"live":"' || repeat('x', 100) || '"}')`)
      const dead = yield* eventually(
        "three dead letters",
        sql.query<{ readonly key: string; readonly attempts: number; readonly last_error: string }>(
          "select jsonb_object_keys(payload) as key, attempts, last_error from outbox_dead_letters order by seq"
        ),
        (rows) => rows.length === 3,
        "10 seconds"
      )
      assert.deepStrictEqual(
        dead.map(({ attempts, key }) => [key, attempts]),
        [
          ["row", 1],
          ["row", 1],
          ["live", 1]
        ]
      )
      for (const { last_error } of dead) assert.match(last_error, /^the body has \d+ bytes, more than PG_LISTENER_MAX/)
      const line = yield* service.awaitLog(({ message }) => message.startsWith("event became a dead letter"))
      assert.strictEqual(line["aggregate_id"], "7")
    })
  )
})
