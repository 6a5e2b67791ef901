import { assert, describe, it } from "@effect/vitest"
import * as Deferred from "effect/Deferred"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as TestClock from "effect/TestClock"
import * as Doorbell from "../src/Doorbell.js"
import { DatabaseError } from "../src/Errors.js"

const gone = new DatabaseError({ operation: "silence", kind: "connection", reason: "gone", sqlState: undefined })

/** 200 rings a second; a longer gap than the usual 3 ms, since each tick of the clock takes its time. */
const start = (over: { readonly thresholdPerSecond?: number } = {}) =>
  Effect.gen(function* () {
    const lost = yield* Deferred.make<void>()
    const state = { silent: false, rings: 0, next: 100n, oldest: 100n, canPublish: true, refuse: false }
    const bell = yield* Doorbell.make({
      database: {
        silence: Effect.acquireRelease(
          Effect.suspend(() => {
            if (state.refuse) return Effect.fail(gone)
            state.silent = true
            return Effect.succeed({ lost: Deferred.await(lost) })
          }),
          () =>
            Effect.sync(() => {
              state.silent = false
            })
        ),
        nextTransaction: Effect.sync(() => state.next),
        oldestTransaction: Effect.sync(() => state.oldest)
      },
      ring: Effect.sync(() => {
        state.rings++
      }),
      canPublish: Effect.sync(() => state.canPublish),
      thresholdPerSecond: over.thresholdPerSecond ?? 200,
      gap: Duration.millis(50)
    })
    yield* Effect.forkScoped(bell.run)
    yield* TestClock.adjust(0)
    /** A burst of fifty rings within the window of a quarter of a second. */
    const burst = Effect.zipRight(
      Effect.sync(() => bell.noteRings(50)),
      TestClock.adjust(0)
    )
    return { bell, state, burst, lost }
  })

describe("the doorbell", () => {
  it.scoped("is quiet below the threshold: writers ring, and nobody else does", () =>
    Effect.gen(function* () {
      const { bell, state } = yield* start()
      for (let second = 0; second < 10; second++) {
        bell.noteRings(49)
        yield* TestClock.adjust("1 second")
      }
      assert.strictEqual(bell.mode(), "quiet")
      assert.deepStrictEqual({ silent: state.silent, rings: state.rings }, { silent: false, rings: 0 })
    })
  )

  it.scoped(
    "is busy from the threshold on: writers are asked to be silent, and it rings by itself after each gap",
    () =>
      Effect.gen(function* () {
        const { bell, burst, state } = yield* start()
        yield* burst
        assert.strictEqual(bell.mode(), "busy")
        assert.isTrue(state.silent)
        yield* TestClock.adjust("500 millis")
        assert.strictEqual(state.rings, 10)
      })
  )

  it.scoped("stays busy while rows keep coming, and goes back when few came for a second", () =>
    Effect.gen(function* () {
      const { bell, burst, state } = yield* start()
      yield* burst
      for (let second = 0; second < 3; second++) {
        bell.noteClaimed(100)
        yield* TestClock.adjust("1 second")
        assert.isTrue(state.silent)
      }
      bell.noteClaimed(99)
      yield* TestClock.adjust("1 second")
      assert.isFalse(state.silent)
    })
  )

  it.scoped("rings on after the silence until every transaction of that time has ended, and once more", () =>
    Effect.gen(function* () {
      const { bell, burst, state } = yield* start()
      yield* burst
      state.next = 105n
      state.oldest = 104n
      yield* TestClock.adjust("1 second")
      assert.strictEqual(bell.mode(), "handing over")
      assert.isFalse(state.silent)
      const before = state.rings
      yield* TestClock.adjust("2 seconds")
      assert.strictEqual(bell.mode(), "handing over")
      assert.isAbove(state.rings, before + 5)
      state.oldest = 105n
      yield* TestClock.adjust("250 millis")
      assert.strictEqual(bell.mode(), "quiet")
      const after = state.rings
      yield* TestClock.adjust("10 seconds")
      assert.strictEqual(state.rings, after)
    })
  )

  it.scoped("leaves a writer that stays open for longer than a minute to the poll", () =>
    Effect.gen(function* () {
      const { bell, burst, state } = yield* start()
      yield* burst
      state.next = 105n
      state.oldest = 104n
      yield* TestClock.adjust("1 second")
      yield* TestClock.adjust("1 minute")
      assert.strictEqual(bell.mode(), "quiet")
    })
  )

  it.scoped("is never busy while nothing can be published", () =>
    Effect.gen(function* () {
      const { bell, burst, state } = yield* start()
      state.canPublish = false
      yield* burst
      assert.strictEqual(bell.mode(), "quiet")
      state.canPublish = true
      yield* burst
      assert.strictEqual(bell.mode(), "busy")
      state.canPublish = false
      bell.noteClaimed(10_000)
      yield* TestClock.adjust("1 second")
      assert.isFalse(state.silent)
    })
  )

  it.scoped("is quiet again when its session is lost, since writers ring again", () =>
    Effect.gen(function* () {
      const { bell, burst, lost, state } = yield* start()
      yield* burst
      bell.noteClaimed(10_000)
      yield* Deferred.succeed(lost, undefined)
      yield* TestClock.adjust(0)
      assert.strictEqual(bell.mode(), "quiet")
      assert.isFalse(state.silent)
    })
  )

  it.scoped("stays on when the database refuses the request, and tries again with a later burst", () =>
    Effect.gen(function* () {
      const { bell, burst, state } = yield* start()
      state.refuse = true
      yield* burst
      assert.strictEqual(bell.mode(), "quiet")
      state.refuse = false
      yield* TestClock.adjust("5 seconds")
      yield* burst
      assert.strictEqual(bell.mode(), "busy")
    })
  )

  it.scoped("is never busy with a threshold of 0", () =>
    Effect.gen(function* () {
      const { bell, state } = yield* start({ thresholdPerSecond: 0 })
      bell.noteRings(1_000_000)
      yield* TestClock.adjust("1 second")
      assert.isFalse(state.silent)
    })
  )
})
