import { assert, describe, it } from "@effect/vitest"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Metric from "effect/Metric"
import * as TestClock from "effect/TestClock"
import { DatabaseError } from "../src/Errors.js"
import * as Metrics from "../src/Metrics.js"
import { keepUpdated, type OutboxFigures } from "../src/OutboxGauges.js"

const gone = new DatabaseError({ operation: "read", kind: "connection", reason: "gone", sqlState: undefined })
const figures = (pending: number): OutboxFigures => ({ pending, dead: 2, oldestPendingSeconds: 1.5 })

const value = (metric: Metric.Metric.Gauge<number>) => Effect.map(Metric.value(metric), (state) => state.value)
const failures = Effect.map(Metric.value(Metrics.gaugesFailed), (state) => state.count)

/** The job with answers for its readings, one after the other; each takes so long. */
const start = (answers: Array<Effect.Effect<OutboxFigures, DatabaseError>>, takes: Duration.DurationInput = 0) =>
  Effect.gen(function* () {
    const state = { readings: 0 }
    const read = Effect.suspend(() => {
      state.readings++
      return answers.shift() ?? Effect.succeed(figures(0))
    }).pipe(Effect.delay(takes))
    yield* Effect.forkScoped(keepUpdated(read, Duration.seconds(15)))
    yield* TestClock.adjust(takes)
    return state
  })

describe("the table's figures", () => {
  it.scoped("are read at the start and then every so often", () =>
    Effect.gen(function* () {
      const state = yield* start([Effect.succeed(figures(7)), Effect.succeed(figures(8))])
      assert.deepStrictEqual(
        [
          yield* value(Metrics.eventsPending),
          yield* value(Metrics.eventsDead),
          yield* value(Metrics.oldestPendingSeconds)
        ],
        [7, 2, 1.5]
      )
      yield* TestClock.adjust("14 seconds")
      assert.strictEqual(yield* value(Metrics.eventsPending), 7)
      yield* TestClock.adjust("1 seconds")
      assert.strictEqual(yield* value(Metrics.eventsPending), 8)
      assert.strictEqual(yield* value(Metrics.gaugesUpdated), 15)
      assert.strictEqual(state.readings, 2)
    })
  )

  it.scoped("stay as they were when a reading fails, which is counted and leaves their age to see", () =>
    Effect.gen(function* () {
      const before = yield* failures
      yield* start([Effect.succeed(figures(7)), Effect.fail(gone), Effect.fail(gone), Effect.succeed(figures(9))])
      yield* TestClock.adjust("30 seconds")
      assert.strictEqual((yield* failures) - before, 2)
      assert.strictEqual(yield* value(Metrics.eventsPending), 7)
      assert.strictEqual(yield* value(Metrics.gaugesUpdated), 0)
      yield* TestClock.adjust("15 seconds")
      assert.strictEqual(yield* value(Metrics.eventsPending), 9)
      assert.strictEqual(yield* value(Metrics.gaugesUpdated), 45)
    })
  )

  it.scoped("are read again also when the very first reading fails", () =>
    Effect.gen(function* () {
      yield* start([Effect.fail(gone), Effect.succeed(figures(3))])
      yield* TestClock.adjust("15 seconds")
      assert.strictEqual(yield* value(Metrics.eventsPending), 3)
    })
  )

  it.scoped("are read more seldom when a reading takes long: a twentieth of the time at most", () =>
    Effect.gen(function* () {
      const state = yield* start([], "5 seconds")
      assert.strictEqual(state.readings, 1)
      yield* TestClock.adjust("1000 seconds")
      // One each 105 seconds: 5 for the reading, and twenty times as long until the next.
      assert.strictEqual(state.readings, 10)
    })
  )
})
