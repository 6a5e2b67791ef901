/** A worker that is interrupted: at every step of its life it stops at once, or finishes the batch that it publishes. */
import { assert, describe, it } from "@effect/vitest"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Either from "effect/Either"
import * as Fiber from "effect/Fiber"
import * as TestClock from "effect/TestClock"
import { DatabaseError } from "../src/Errors.js"
import { Outcome } from "../src/Message.js"
import type { OutboxRow, OutboxWorker } from "../src/Outbox.js"
import { runWorker } from "../src/RelayWorker.js"
import * as Wake from "../src/Wake.js"
import { row, scriptedOutbox, scriptedPublisher } from "./support/scripted.js"

const encode = (r: OutboxRow) => ({
  orderKey: r.aggregateId,
  message: Either.right({
    id: r.id,
    exchange: "",
    routingKey: "q",
    type: "t",
    timestampSeconds: 0,
    headers: {},
    body: Buffer.from("{}")
  })
})

type Step = keyof OutboxWorker | "publish" | "open"

/** A worker that comes to a step and waits there for `goOn`, with one row to deliver. */
const makeBench = Effect.gen(function* () {
  const outbox = scriptedOutbox()
  const publisher = scriptedPublisher()
  const wake = yield* Wake.make
  const goOn = yield* Deferred.make<void>()
  const pauseAt: { step: Step | undefined } = { step: undefined }
  const log: Array<Step> = []
  /** With a time-out inside, as real waits have one: an interrupt is passed on to its racing halves. */
  const wait = Effect.timeoutOption(Effect.interruptible(Deferred.await(goOn)), "1 hour")
  const at = (step: Step) =>
    Effect.suspend(() => {
      log.push(step)
      return pauseAt.step === step ? wait : Effect.void
    })
  publisher.state.pause = at("publish")
  const openWorker = Effect.zipRight(
    at("open"),
    Effect.map(
      outbox.port.openWorker,
      (worker): OutboxWorker => ({
        claim: (options) => Effect.zipLeft(worker.claim(options), at("claim")),
        settle: (batch) => Effect.zipRight(at("settle"), worker.settle(batch)),
        rollback: Effect.suspend(() => Effect.zipRight(at("rollback"), worker.rollback))
      })
    )
  )
  outbox.claims.push(Effect.succeed({ rows: [row(1)], contended: false }))
  const run = Effect.forkScoped(
    runWorker({
      outbox: { ...outbox.port, openWorker },
      publisher: publisher.port,
      wake,
      activity: { draining: false, claimedAtMillis: 0 },
      onClaimed: () => {},
      encode,
      limit: 10,
      maxAttempts: 3,
      eventTypeLabel: () => "other"
    })
  )
  return { outbox, publisher, wake, goOn, pauseAt, log, run }
})

const settleFibers = TestClock.adjust(0)
const gone = new DatabaseError({ operation: "claim", kind: "connection", reason: "gone", sqlState: undefined })

describe("a worker interrupted in the middle of a cycle", () => {
  for (const step of ["publish", "settle"] as const) {
    it.scoped(`at the ${step}: publishes and settles the batch, closes its session, and claims no more`, () =>
      Effect.gen(function* () {
        const { goOn, log, outbox, pauseAt, run } = yield* makeBench
        pauseAt.step = step
        const fiber = yield* run
        yield* settleFibers
        assert.strictEqual(log.at(-1), step)
        const stopped = yield* Effect.fork(Fiber.interrupt(fiber))
        yield* TestClock.adjust("10 seconds")
        assert.strictEqual(log.at(-1), step)
        yield* Deferred.succeed(goOn, undefined)
        yield* Fiber.join(stopped)
        assert.deepStrictEqual(log, ["open", "claim", "publish", "settle"])
        assert.deepStrictEqual(outbox.settles, [{ processed: ["1"], failed: [] }])
        assert.deepStrictEqual(outbox.sessions, { opened: 1, closed: 1 })
      })
    )
  }

  it.scoped(
    "at the claim: stops at once, publishes nothing, and closes its session, which frees what it may have claimed",
    () =>
      Effect.gen(function* () {
        const { log, outbox, pauseAt, run } = yield* makeBench
        pauseAt.step = "claim"
        const fiber = yield* run
        yield* settleFibers
        assert.strictEqual(log.at(-1), "claim")
        yield* Fiber.interrupt(fiber)
        assert.deepStrictEqual(log, ["open", "claim"])
        assert.deepStrictEqual(outbox.sessions, { opened: 1, closed: 1 })
      })
  )

  it.scoped("at the rollback: the rows are free before its session closes", () =>
    Effect.gen(function* () {
      const { goOn, outbox, pauseAt, publisher, run } = yield* makeBench
      pauseAt.step = "rollback"
      publisher.state.outcome = () => Outcome.Unknown({ reason: "time-out" })
      const fiber = yield* run
      yield* settleFibers
      const stopped = yield* Effect.fork(Fiber.interrupt(fiber))
      yield* settleFibers
      assert.strictEqual(outbox.rollbacks.count, 0)
      yield* Deferred.succeed(goOn, undefined)
      yield* Fiber.join(stopped)
      assert.strictEqual(outbox.rollbacks.count, 1)
      assert.deepStrictEqual(outbox.sessions, { opened: 1, closed: 1 })
    })
  )

  it.scoped("and then failed by the database: it opens no other session", () =>
    Effect.gen(function* () {
      const { goOn, outbox, pauseAt, run } = yield* makeBench
      pauseAt.step = "settle"
      outbox.answers.settle = Effect.fail(gone)
      const fiber = yield* run
      yield* settleFibers
      const stopped = yield* Effect.fork(Fiber.interrupt(fiber))
      yield* Deferred.succeed(goOn, undefined)
      yield* Fiber.join(stopped)
      assert.deepStrictEqual(outbox.sessions, { opened: 1, closed: 1 })
    })
  )
})

describe("a worker interrupted while it waits stops at once", () => {
  /** No time may pass, and nothing may be left open. */
  const stopsAtOnce = (
    what: string,
    arrange: (bench: Effect.Effect.Success<typeof makeBench>) => Effect.Effect<void>
  ) =>
    it.scoped(what, () =>
      Effect.gen(function* () {
        const bench = yield* makeBench
        yield* arrange(bench)
        const fiber = yield* bench.run
        yield* settleFibers
        const claims = bench.outbox.claimsMade.length
        yield* Fiber.interrupt(fiber)
        assert.strictEqual(bench.outbox.sessions.opened, bench.outbox.sessions.closed)
        yield* bench.wake.ring
        yield* TestClock.adjust("1 minute")
        assert.strictEqual(bench.outbox.claimsMade.length, claims)
      })
    )

  stopsAtOnce("for a ring", ({ outbox }) =>
    Effect.sync(() => {
      outbox.claims.length = 0
    })
  )
  stopsAtOnce("for the broker", ({ publisher }) =>
    Effect.sync(() => {
      publisher.state.ready = Effect.never
    })
  )
  stopsAtOnce("for its session to open", ({ pauseAt }) =>
    Effect.sync(() => {
      pauseAt.step = "open"
    })
  )
  stopsAtOnce("in the pause after a database failure", ({ outbox }) =>
    Effect.sync(() => {
      outbox.answers.open = Effect.fail(gone)
    })
  )
  stopsAtOnce("in the pause after unanswered messages", ({ publisher }) =>
    Effect.sync(() => {
      publisher.state.outcome = () => Outcome.Unknown({ reason: "time-out" })
    })
  )
  stopsAtOnce("in the pause while rows are in other hands", ({ outbox }) =>
    Effect.sync(() => {
      outbox.claims[0] = Effect.succeed({ rows: [], contended: true })
    })
  )
})

describe("a commit whose outcome is unknown", () => {
  it.scoped("is never repeated on a guess: the session is closed, and a full claim shows what is still to do", () =>
    Effect.gen(function* () {
      const { outbox, publisher, run } = yield* makeBench
      outbox.answers.settle = Effect.fail(gone)
      yield* run
      yield* settleFibers
      outbox.answers.settle = Effect.void
      yield* TestClock.adjust("100 millis")
      assert.strictEqual(outbox.settles.length, 1)
      assert.deepStrictEqual(outbox.sessions, { opened: 2, closed: 1 })
      assert.isTrue(outbox.claimsMade[1]?.full)
      assert.strictEqual(publisher.published.length, 1)
    })
  )

  it.scoped("that was lost: the row comes again under the same message id", () =>
    Effect.gen(function* () {
      const { outbox, publisher, run } = yield* makeBench
      outbox.answers.settle = Effect.fail(gone)
      outbox.claims.push(Effect.succeed({ rows: [row(1)], contended: false }))
      yield* run
      yield* settleFibers
      outbox.answers.settle = Effect.void
      yield* TestClock.adjust("100 millis")
      const ids = publisher.published.flat().map(({ message }) => Either.isRight(message) && message.right.id)
      assert.deepStrictEqual(ids, [row(1).id, row(1).id])
      assert.deepStrictEqual(outbox.settles.at(-1), { processed: ["1"], failed: [] })
    })
  )
})
