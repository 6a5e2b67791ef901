/**
 * The edges of the settings that shape a batch: one row at a time, and ten thousand.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import { allProcessed, bridge } from "../../support/bridge.js"
import { consume } from "../../support/Consumer.js"

describe("a batch size", () => {
  const rows = 2_000

  it.scopedLive.each([
    { batchSize: 1, workers: 1 },
    { batchSize: 1, workers: 4 },
    { batchSize: 10_000, workers: 1 },
    { batchSize: 10_000, workers: 2 }
  ])("of $batchSize with $workers workers delivers everything once and in order", ({ batchSize, workers }) =>
    Effect.gen(function* () {
      const count = batchSize === 1 ? rows / 10 : rows * 10
      const { sql, vhost } = yield* bridge({
        PG_LISTENER_ROUTES: "good=good",
        PG_LISTENER_BATCH_SIZE: `${batchSize}`,
        PG_LISTENER_WORKERS: `${workers}`
      })
      const consumer = yield* consume(vhost.url, "good")
      yield* sql.query(
        `insert into event_outbox (channel, aggregate_id, payload)
         select 'good', (n % 50)::text, to_jsonb(n) from generate_series(1, $1::int) n`,
        [count]
      )
      const came = (yield* consumer.take(count, "40 seconds")).map(({ body }) => Number(body))
      yield* allProcessed(sql)
      assert.strictEqual(consumer.received.length, count)
      for (let aggregate = 0; aggregate < 50; aggregate++) {
        const own = came.filter((n) => n % 50 === aggregate)
        assert.deepStrictEqual(
          own,
          [...own].sort((a, b) => a - b)
        )
      }
    })
  )
})
