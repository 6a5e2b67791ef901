import { assert, describe, it } from "@effect/vitest"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Either from "effect/Either"
import * as Fiber from "effect/Fiber"
import * as TestClock from "effect/TestClock"
import { DatabaseError } from "../src/Errors.js"
import { Outcome } from "../src/Message.js"
import type { OutboxRow } from "../src/Outbox.js"
import { runWorker } from "../src/RelayWorker.js"
import * as Wake from "../src/Wake.js"
import { row, scriptedOutbox, scriptedPublisher } from "./support/scripted.js"

const LIMIT = 2

const encode = (r: OutboxRow) => ({
  orderKey: r.aggregateId,
  message: Either.right({
    id: r.id,
    exchange: "",
    routingKey: "q",
    type: "t",
    timestampSeconds: 0,
    headers: {},
    body: Buffer.from(r.payload ?? "")
  })
})

const start = Effect.gen(function* () {
  const outbox = scriptedOutbox()
  const publisher = scriptedPublisher()
  const wake = yield* Wake.make
  const activity = { draining: false, claimedAtMillis: 0 }
  const worker = runWorker({
    outbox: outbox.port,
    publisher: publisher.port,
    wake,
    activity,
    onClaimed: () => {},
    encode,
    limit: LIMIT,
    maxAttempts: 3,
    eventTypeLabel: () => "other"
  })
  const run = Effect.forkScoped(worker)
  return { activity, outbox, publisher, wake, run }
})

const batch = (...rows: ReadonlyArray<OutboxRow>) => Effect.succeed({ rows, contended: false })
const nothing = Effect.succeed({ rows: [], contended: false })
const contended = Effect.succeed({ rows: [], contended: true })
const gone = new DatabaseError({ operation: "claim", kind: "connection", reason: "gone", sqlState: undefined })
/** Lets every fiber go as far as it can without time passing. */
const settleFibers = TestClock.adjust(0)

describe("a relay worker", () => {
  it.scoped("pauses longer each time while every session opens and every first claim on it fails", () =>
    Effect.gen(function* () {
      const { outbox, run } = yield* start
      outbox.claims.push(...Array.from({ length: 20 }, () => Effect.fail(gone)))
      yield* run
      yield* TestClock.adjust("1 second")
      // At 0, 100, 300 and 700 ms.
      assert.strictEqual(outbox.claimsMade.length, 4)
    })
  )

  it.scoped("notes when a cycle last got rows, so that the sweep can tell a backlog from missed wake-ups", () =>
    Effect.gen(function* () {
      const { activity, outbox, run, wake } = yield* start
      outbox.claims.push(nothing)
      yield* TestClock.adjust("1 minute")
      yield* run
      yield* settleFibers
      assert.strictEqual(activity.claimedAtMillis, 0)
      outbox.claims.push(batch(row(1)), nothing)
      yield* wake.ring
      yield* settleFibers
      assert.strictEqual(activity.claimedAtMillis, 60_000)
      yield* TestClock.adjust("1 minute")
      yield* wake.ring
      yield* settleFibers
      assert.strictEqual(activity.claimedAtMillis, 60_000)
    })
  )

  it.scoped("goes again at once after a full batch, and waits for a ring after one that was not", () =>
    Effect.gen(function* () {
      const { outbox, run, wake } = yield* start
      outbox.claims.push(batch(row(1), row(2)), batch(row(3)))
      yield* run
      yield* settleFibers
      assert.strictEqual(outbox.settles.length, 2)
      outbox.claims.push(batch(row(4)))
      yield* TestClock.adjust("1 minute")
      assert.strictEqual(outbox.settles.length, 2)
      yield* wake.ring
      yield* settleFibers
      assert.strictEqual(outbox.settles.length, 3)
    })
  )

  it.scoped("makes one more claim for any number of rings during a cycle", () =>
    Effect.gen(function* () {
      const { outbox, publisher, run, wake } = yield* start
      const confirm = yield* Deferred.make<void>()
      publisher.state.pause = Deferred.await(confirm)
      outbox.claims.push(batch(row(1)))
      yield* run
      yield* settleFibers
      yield* Effect.repeatN(wake.ring, 9)
      yield* Deferred.succeed(confirm, undefined)
      yield* settleFibers
      assert.strictEqual(outbox.claimsMade.length, 2)
    })
  )

  it.scoped("claims nothing while the broker is away, so that no transaction stays open", () =>
    Effect.gen(function* () {
      const { outbox, publisher, run, wake } = yield* start
      const ready = yield* Deferred.make<void>()
      publisher.state.ready = Deferred.await(ready)
      yield* run
      yield* wake.ring
      yield* TestClock.adjust("10 minutes")
      assert.strictEqual(outbox.claimsMade.length, 0)
      yield* Deferred.succeed(ready, undefined)
      yield* settleFibers
      assert.isAbove(outbox.claimsMade.length, 0)
    })
  )

  it.scoped("looks again within milliseconds when rows are in other hands, since their release rings nobody", () =>
    Effect.gen(function* () {
      const { outbox, run } = yield* start
      outbox.claims.push(contended, contended, batch(row(1)))
      yield* run
      yield* TestClock.adjust("10 millis")
      assert.deepStrictEqual(outbox.settles, [{ processed: ["1"], failed: [] }])
    })
  )

  it.scoped("goes again at once when a retry was confirmed, since its followers ring nobody", () =>
    Effect.gen(function* () {
      const { outbox, run } = yield* start
      outbox.claims.push(batch(row(1, { attempts: 1, aggregateId: "a" })), batch(row(2, { aggregateId: "a" })))
      yield* run
      yield* settleFibers
      assert.deepStrictEqual(
        outbox.settles.map((settled) => settled.processed),
        [["1"], ["2"]]
      )
    })
  )

  it.scoped(
    "pauses longer and longer while the broker leaves messages unanswered, and starts over after an answer",
    () =>
      Effect.gen(function* () {
        const { outbox, publisher, run } = yield* start
        publisher.state.outcome = () => Outcome.Unknown({ reason: "time-out" })
        for (let i = 0; i < 3; i++) outbox.claims.push(batch(row(1)))
        yield* run
        yield* TestClock.adjust("99 millis")
        assert.strictEqual(outbox.claimsMade.length, 1)
        yield* TestClock.adjust("1 millis")
        assert.strictEqual(outbox.claimsMade.length, 2)
        yield* TestClock.adjust("199 millis")
        assert.strictEqual(outbox.claimsMade.length, 2)
        yield* TestClock.adjust("1 millis")
        assert.strictEqual(outbox.claimsMade.length, 3)
        assert.strictEqual(outbox.rollbacks.count, 3)
      })
  )

  it.scoped("opens another session after a database failure, with the failed one closed, and looks at everything", () =>
    Effect.gen(function* () {
      const { outbox, run } = yield* start
      outbox.claims.push(Effect.fail(gone), batch(row(1)))
      yield* run
      yield* TestClock.adjust("100 millis")
      assert.deepStrictEqual(outbox.sessions, { opened: 2, closed: 1 })
      assert.isTrue(outbox.claimsMade[1]?.full)
      assert.deepStrictEqual(outbox.settles, [{ processed: ["1"], failed: [] }])
    })
  )

  it.scoped("keeps trying while the database is down, and needs no restart when it comes", () =>
    Effect.gen(function* () {
      const { outbox, run } = yield* start
      outbox.answers.open = Effect.fail(gone)
      yield* run
      yield* TestClock.adjust("1 minute")
      assert.strictEqual(outbox.sessions.opened, 0)
      outbox.answers.open = Effect.void
      outbox.claims.push(batch(row(1)))
      yield* TestClock.adjust("5 seconds")
      assert.deepStrictEqual(outbox.settles, [{ processed: ["1"], failed: [] }])
    })
  )

  it.scoped("finishes the batch in hand when it is stopped: claimed rows are settled, then the session closes", () =>
    Effect.gen(function* () {
      const { outbox, publisher, run } = yield* start
      const confirm = yield* Deferred.make<void>()
      // With a time-out inside, as real waits have one: its halves are children, to which an interrupt is passed on.
      publisher.state.pause = Effect.ignore(Effect.timeout(Effect.interruptible(Deferred.await(confirm)), "1 minute"))
      outbox.claims.push(batch(row(1)))
      const fiber = yield* run
      yield* settleFibers
      const stopped = yield* Effect.fork(Fiber.interrupt(fiber))
      yield* settleFibers
      assert.deepStrictEqual(outbox.settles, [])
      yield* Deferred.succeed(confirm, undefined)
      yield* Fiber.join(stopped)
      assert.deepStrictEqual(outbox.settles, [{ processed: ["1"], failed: [] }])
      assert.deepStrictEqual(outbox.sessions, { opened: 1, closed: 1 })
    })
  )

  it.scoped("stays idle without a ring", () =>
    Effect.gen(function* () {
      const { outbox, run } = yield* start
      outbox.claims.push(nothing)
      yield* run
      yield* TestClock.adjust("1 minute")
      assert.strictEqual(outbox.claimsMade.length, 1)
    })
  )
})
