import { assert, describe, it } from "@effect/vitest"
import * as Arr from "effect/Array"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Logger from "effect/Logger"
import * as Metric from "effect/Metric"
import * as TestClock from "effect/TestClock"
import { DatabaseError } from "../src/Errors.js"
import * as Jobs from "../src/Jobs.js"
import * as Metrics from "../src/Metrics.js"
import * as Wake from "../src/Wake.js"
import { scriptedOutbox, scriptedPublisher } from "./support/scripted.js"

const gone = new DatabaseError({ operation: "count", kind: "connection", reason: "gone", sqlState: undefined })
const locked = new DatabaseError({ operation: "count", kind: "conflict", reason: "locked", sqlState: "55P03" })
const fiveMinutes = Duration.minutes(5)

const capture = (lines: Array<string>) =>
  Logger.replace(
    Logger.defaultLogger,
    Logger.make(({ logLevel, message }) => {
      if (logLevel.label !== "DEBUG") lines.push(`${logLevel.label} ${Arr.ensure(message).join(" ")}`)
    })
  )

/** By how much a counter has gone up since it was asked for: metrics are the whole process's. */
const countingFrom = (counter: Metric.Metric.Counter<number>) =>
  Effect.map(Metric.value(counter), (before) =>
    Effect.map(Metric.value(counter), (after) => after.count - before.count)
  )

/** The sweep over rows that the test says are overdue. */
const sweeping = Effect.gen(function* () {
  const outbox = scriptedOutbox()
  const publisher = scriptedPublisher()
  const wake = yield* Wake.make
  const state = { counted: 0 }
  const activity = { draining: false, claimedAtMillis: 0 }
  const port = {
    ...outbox.port,
    countOverdue: Effect.suspend(() => {
      state.counted++
      return outbox.port.countOverdue
    })
  }
  const swept = yield* countingFrom(Metrics.eventsSwept)
  yield* Effect.forkScoped(Jobs.sweep(port, publisher.port, wake, activity, fiveMinutes))
  return { activity, outbox, publisher, wake, state, swept }
})

describe("a job", () => {
  it.scoped("that failed is logged and comes again; the same reason is not news", () =>
    Effect.gen(function* () {
      const lines: Array<string> = []
      const answers = [gone, gone, locked]
      let runs = 0
      const job = Effect.suspend(() => {
        runs++
        const failure = answers.shift()
        return failure === undefined ? Effect.void : Effect.fail(failure)
      })
      yield* Effect.forkScoped(Jobs.spaced("tidying", Duration.seconds(1), job).pipe(Effect.provide(capture(lines))))
      yield* TestClock.adjust("4 seconds")
      assert.strictEqual(runs, 4)
      assert.deepStrictEqual(lines, [`WARN tidying failed: ${gone.message}`, `WARN tidying failed: ${locked.message}`])
    })
  )

  it.scoped("that fails again after a success is news again", () =>
    Effect.gen(function* () {
      const lines: Array<string> = []
      let runs = 0
      const job = Effect.suspend(() => (++runs === 2 ? Effect.void : Effect.fail(gone)))
      yield* Effect.forkScoped(Jobs.spaced("tidying", Duration.seconds(1), job).pipe(Effect.provide(capture(lines))))
      yield* TestClock.adjust("3 seconds")
      assert.strictEqual(lines.length, 2)
    })
  )

  it.scoped("waits its whole interval after its last end, however long it took: runs never overlap", () =>
    Effect.gen(function* () {
      const startedAtSeconds: Array<number> = []
      const job = Effect.clockWith((clock) =>
        Effect.suspend(() => {
          startedAtSeconds.push(clock.unsafeCurrentTimeMillis() / 1000)
          return Effect.sleep("3 seconds")
        })
      )
      yield* Effect.forkScoped(Jobs.spaced("tidying", Duration.seconds(5), job))
      yield* TestClock.adjust("25 seconds")
      assert.deepStrictEqual(startedAtSeconds, [5, 13, 21])
    })
  )
})

describe("the sweep", () => {
  it.scoped("counts overdue rows as swept and has them claimed", () =>
    Effect.gen(function* () {
      const { outbox, swept, wake } = yield* sweeping
      outbox.answers.overdue = 7
      yield* TestClock.adjust(fiveMinutes)
      assert.strictEqual(yield* swept, 7)
      assert.isTrue(yield* wake.takeFull)
    })
  )

  it.scoped("rings nobody when nothing is overdue", () =>
    Effect.gen(function* () {
      const { state, swept, wake } = yield* sweeping
      yield* TestClock.adjust(fiveMinutes)
      assert.strictEqual(state.counted, 1)
      assert.strictEqual(yield* swept, 0)
      assert.isFalse(yield* wake.takeFull)
    })
  )

  for (const [what, status] of [
    ["away", { connected: false, blocked: false, blockedReason: undefined }],
    ["blocked", { connected: true, blocked: true, blockedReason: "memory" }]
  ] as const) {
    it.scoped(`counts nothing while the broker is ${what}: the rows are old for a better reason`, () =>
      Effect.gen(function* () {
        const { outbox, publisher, state, swept } = yield* sweeping
        outbox.answers.overdue = 7
        publisher.state.status = status
        yield* TestClock.adjust(fiveMinutes)
        assert.strictEqual(state.counted, 0)
        assert.strictEqual(yield* swept, 0)
      })
    )
  }

  it.scoped("counts nothing while a backlog is drained, and does again after it", () =>
    Effect.gen(function* () {
      const { activity, outbox, swept } = yield* sweeping
      outbox.answers.overdue = 7
      activity.draining = true
      yield* TestClock.adjust(fiveMinutes)
      assert.strictEqual(yield* swept, 0)
      activity.draining = false
      yield* TestClock.adjust(fiveMinutes)
      assert.strictEqual(yield* swept, 7)
    })
  )
})

describe("the sweep and a backlog in small batches", () => {
  it.scoped("counts nothing when rows were claimed in the last second, and does when they were before", () =>
    Effect.gen(function* () {
      const { activity, outbox, swept } = yield* sweeping
      outbox.answers.overdue = 7
      activity.claimedAtMillis = Duration.toMillis(fiveMinutes) - 999
      yield* TestClock.adjust(fiveMinutes)
      assert.strictEqual(yield* swept, 0)
      activity.claimedAtMillis = 2 * Duration.toMillis(fiveMinutes) - 1_000
      yield* TestClock.adjust(fiveMinutes)
      assert.strictEqual(yield* swept, 7)
    })
  )
})

describe("the other jobs", () => {
  it.scoped("the poll makes the next claim a full one, each interval", () =>
    Effect.gen(function* () {
      const wake = yield* Wake.make
      yield* Effect.forkScoped(Jobs.poll(wake, Duration.seconds(5)))
      yield* TestClock.adjust("4999 millis")
      assert.isFalse(yield* wake.takeFull)
      for (let i = 0; i < 2; i++) {
        yield* TestClock.adjust("5 seconds")
        assert.isTrue(yield* wake.takeFull)
      }
    })
  )

  it.scoped("the clean-up counts what it deleted", () =>
    Effect.gen(function* () {
      const cleaned = yield* countingFrom(Metrics.eventsCleaned)
      const outbox = { ...scriptedOutbox().port, cleanUp: Effect.succeed(11) }
      yield* Effect.forkScoped(Jobs.cleanUp(outbox, Duration.hours(1)))
      yield* TestClock.adjust("59 minutes")
      assert.strictEqual(yield* cleaned, 0)
      yield* TestClock.adjust("1 minute")
      assert.strictEqual(yield* cleaned, 11)
    })
  )

  it.scoped("the low-water mark rings for a full claim only when it set rows free", () =>
    Effect.gen(function* () {
      const wake = yield* Wake.make
      const answers = [false, true]
      const outbox = {
        ...scriptedOutbox().port,
        advanceLowWater: Effect.sync(() => answers.shift() ?? false)
      }
      yield* Effect.forkScoped(Jobs.lowWater(outbox, wake))
      yield* TestClock.adjust("2 seconds")
      assert.isFalse(yield* wake.takeFull)
      yield* TestClock.adjust("2 seconds")
      assert.isTrue(yield* wake.takeFull)
    })
  )
})
