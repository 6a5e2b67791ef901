/**
 * Aggregate ids of every shape: each is an aggregate of its own, in order, and none is so long that its failure could
 * not be recorded.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import { bridge } from "../../support/bridge.js"
import { consume } from "../../support/Consumer.js"
import { eventually } from "../../support/eventually.js"
import { fatesOfRows, insertRow, shownFate } from "../../support/fates.js"

interface Aggregate {
  readonly aggregate_type: string | null
  readonly aggregate_id: string | null
}

const ofType = (aggregate_type: string | null) => (aggregate_id: string | null) => ({ aggregate_id, aggregate_type })

/** All different, however alike they look. */
const aggregates: ReadonlyArray<Aggregate> = [
  ...[
    "",
    " ",
    "a",
    "A",
    "a ",
    " a",
    "a\n",
    "é",
    "e\u0301",
    "ﬁ",
    "fi",
    "0",
    "00",
    "1e0",
    "null",
    "😀",
    "\u0001\u001f\u007f",
    '","',
    "\\",
    "{}",
    "__proto__",
    "constructor",
    "x".repeat(1_024)
  ].map(ofType("t")),
  ofType(null)("a"),
  ofType("T")("a"),
  ofType("t ")("a"),
  ofType("__proto__")("a"),
  ofType("t".repeat(255))("a")
]

describe("aggregates", () => {
  it.scopedLive("that only look alike do not hold each other back, and each stays behind its own failed event", () =>
    Effect.gen(function* () {
      const { sql, vhost } = yield* bridge({
        PG_LISTENER_ROUTES: "good=good,bad=nowhere/key",
        PG_LISTENER_MAX_ATTEMPTS: "2"
      })
      const consumer = yield* consume(vhost.url, "good")
      // Every second one begins with an event that fails.
      for (const [index, aggregate] of aggregates.entries()) {
        const payload = JSON.stringify(index)
        if (index % 2 === 0) yield* insertRow(sql, { channel: "bad", ...aggregate, payload })
        yield* insertRow(sql, { channel: "good", ...aggregate, payload })
        yield* insertRow(sql, { channel: "good", ...aggregate, payload: `[${payload}]` })
      }
      const held = aggregates.map((_, index) => index).filter((index) => index % 2 === 0)
      const free = aggregates.map((_, index) => index).filter((index) => index % 2 === 1)
      const bodies = (indexes: ReadonlyArray<number>) => indexes.flatMap((index) => [`${index}`, `[${index}]`]).sort()

      const first = yield* consumer.take(free.length * 2, "10 seconds")
      assert.deepStrictEqual(first.map(({ body }) => body).sort(), bodies(free))
      const second = yield* consumer.take(held.length * 2, "20 seconds")
      assert.deepStrictEqual(second.map(({ body }) => body).sort(), bodies(held))

      const inOrder = consumer.received.map(({ body }) => body)
      for (const index of aggregates.keys()) {
        assert.isBelow(inOrder.indexOf(`${index}`), inOrder.indexOf(`[${index}]`), JSON.stringify(aggregates[index]))
      }
      const dead = yield* sql.query("select attempts from outbox_dead_letters")
      assert.deepStrictEqual(
        dead,
        held.map(() => ({ attempts: 2 }))
      )
    })
  )

  it.scopedLive("without an id have no order; without a type they are those of the empty type", () =>
    Effect.gen(function* () {
      const { sql, vhost } = yield* bridge({ PG_LISTENER_ROUTES: "good=good,bad=nowhere/key" })
      const consumer = yield* consume(vhost.url, "good")
      yield* insertRow(sql, { channel: "bad", aggregate_type: "t", aggregate_id: null })
      yield* insertRow(sql, { channel: "bad", aggregate_type: null, aggregate_id: "1" })
      yield* insertRow(sql, { channel: "good", aggregate_type: "", aggregate_id: "1", payload: '"held"' })
      yield* insertRow(sql, { channel: "good", aggregate_type: "t", aggregate_id: null, payload: '"free"' })
      const [message] = yield* consumer.take(1, "10 seconds")
      assert.strictEqual(message?.body, '"free"')
      assert.deepStrictEqual({ ...message?.headers }, { channel: "good", aggregate_type: "t" })
      const [held] = yield* sql.query("select attempts, processed_at from event_outbox where payload = '\"held\"'")
      assert.deepStrictEqual(held, { attempts: 0, processed_at: null })
    })
  )

  it.scopedLive(
    "with names too long for the index of retries are refused to their writer; the longest can fail and wait",
    () =>
      Effect.gen(function* () {
        const { service, sql, vhost } = yield* bridge({ PG_LISTENER_ROUTES: "good=good,bad=nowhere/key" })
        const consumer = yield* consume(vhost.url, "good")
        // Random digits, which the server can't compress.
        const random = yield* sql.query<{ text: string }>(
          "select string_agg(gen_random_uuid()::text, '') as text from generate_series(1, 30000)"
        )
        const text = random[0]?.text ?? ""
        for (const length of [1_025, 1_000_000]) {
          const refused = yield* Effect.flip(insertRow(sql, { channel: "bad", aggregate_id: text.slice(0, length) }))
          assert.strictEqual(refused.sqlState, "23514", `${length}`)
        }
        const refused = yield* Effect.flip(
          insertRow(sql, { channel: "bad", aggregate_id: "a", aggregate_type: text.slice(0, 256) })
        )
        assert.strictEqual(refused.sqlState, "23514")

        yield* insertRow(sql, {
          channel: "bad",
          aggregate_id: text.slice(0, 1_024),
          aggregate_type: text.slice(0, 255)
        })
        const [waiting] = yield* eventually(
          "the failure is recorded",
          sql.query<{ attempts: number; waits: boolean }>(
            "select attempts, retry_after is not null as waits from event_outbox"
          ),
          ([row]) => row !== undefined && row.attempts > 0
        )
        assert.deepStrictEqual(waiting, { attempts: 1, waits: true })
        const [fate] = yield* fatesOfRows(sql, consumer, [yield* insertRow(sql, { channel: "good" })])
        assert.strictEqual(shownFate(fate), "1")
        assert.notInclude(service.output(), "lost its database session")
      })
  )
})
