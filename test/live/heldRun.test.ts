/** One aggregate with very many rows behind a failing one: the others must not pay, and its order must hold. */
import { assert, describe, it } from "@effect/vitest"
import * as Clock from "effect/Clock"
import * as Effect from "effect/Effect"
import { claimSeqs, failAll, insertEvents, lab, settleAll } from "../support/outboxLab.js"

/** Wall-clock milliseconds of the quickest of a few bounded claims, each rolled back. */
const claimMillis = (claim: Effect.Effect<unknown, unknown>) =>
  Effect.gen(function* () {
    const times: Array<number> = []
    for (let i = 0; i < 5; i++) {
      const before = yield* Clock.currentTimeNanos
      yield* claim
      times.push(Number((yield* Clock.currentTimeNanos) - before) / 1e6)
    }
    return Math.min(...times)
  })

describe("rows behind a failing one of their aggregate", () => {
  it.scopedLive("cost the claims of others nothing, a hundred thousand of them", () =>
    Effect.gen(function* () {
      const { outbox, sql } = yield* lab()
      const worker = yield* outbox.openWorker
      const claim = Effect.zipRight(worker.claim({ limit: 200, full: false }), worker.rollback)
      yield* insertEvents(sql, ["x"])
      yield* claimSeqs(worker)
      yield* failAll(worker, ["1"])
      const empty = yield* claimMillis(claim)
      yield* sql.query(
        `insert into event_outbox (channel, aggregate_type, aggregate_id, payload)
         select 'c', 'thing', 'x', to_jsonb(n) from generate_series(1, 100000) n`
      )
      yield* sql.query("analyze event_outbox")
      const walking = yield* claimMillis(claim)
      yield* outbox.advanceLowWater
      yield* outbox.advanceLowWater
      const behind = yield* claimMillis(claim)
      assert.isBelow(behind, walking / 5, `empty ${empty} ms, walking ${walking} ms, behind ${behind} ms`)
      yield* insertEvents(sql, ["y"])
      assert.deepStrictEqual(yield* claimSeqs(worker), ["100002"])
    })
  )

  it.scopedLive(
    "come in order once they are free: a full claim finds them, a bounded one never a later one first",
    () =>
      Effect.gen(function* () {
        const { outbox, sql } = yield* lab()
        const worker = yield* outbox.openWorker
        yield* insertEvents(sql, ["x", "x", "x", "y"])
        assert.deepStrictEqual(yield* claimSeqs(worker, { limit: 1 }), ["1"])
        yield* failAll(worker, ["1"])
        yield* outbox.advanceLowWater
        yield* outbox.advanceLowWater
        // Another process delivers the retry; this one still begins above rows 2 and 3, and a later event of x comes.
        yield* sql.query("update event_outbox set processed_at = now(), retry_after = null where seq = 1")
        yield* insertEvents(sql, ["x"])
        assert.deepStrictEqual(yield* claimSeqs(worker), ["4"])
        yield* settleAll(worker, ["4"])
        assert.deepStrictEqual(yield* claimSeqs(worker), [])
        assert.isTrue(yield* outbox.advanceLowWater)
        assert.deepStrictEqual(yield* claimSeqs(worker), ["2", "3", "5"])
      })
  )
})
