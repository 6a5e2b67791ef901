import { assert, describe, it } from "@effect/vitest"
import * as Arr from "effect/Array"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Either from "effect/Either"
import * as Fiber from "effect/Fiber"
import * as Layer from "effect/Layer"
import * as Logger from "effect/Logger"
import * as TestClock from "effect/TestClock"
import { AmqpPublisher } from "../src/AmqpPublisher.js"
import { DatabaseError } from "../src/Errors.js"
import * as LiveEvents from "../src/LiveEvents.js"
import { Outcome } from "../src/Message.js"
import { Outbox } from "../src/Outbox.js"
import { scriptedOutbox, scriptedPublisher } from "./support/scripted.js"

const notification = (n: number, payload = `{"n":${n}}`): LiveEvents.LiveNotification => ({
  id: `live-${n}`,
  channel: "campaign_click",
  payload,
  receivedAtSeconds: 0
})

const encode: LiveEvents.EncodeLive = ({ id, payload }) =>
  payload.startsWith("{")
    ? Either.right({
        orderKey: undefined,
        message: Either.right({
          id,
          exchange: "",
          routingKey: "q",
          type: "campaign_click",
          timestampSeconds: 0,
          headers: {},
          body: Buffer.from(payload)
        })
      })
    : Either.left({ reason: "not JSON" })

const start = Effect.gen(function* () {
  const outbox = scriptedOutbox()
  const publisher = scriptedPublisher()
  const live = yield* LiveEvents.make(encode).pipe(
    Effect.provide(Layer.merge(Layer.succeed(Outbox, outbox.port), Layer.succeed(AmqpPublisher, publisher.port)))
  )
  const lines: Array<{ readonly text: string; readonly annotations: Record<string, unknown> }> = []
  const logger = Logger.make(({ annotations, logLevel, message }) => {
    lines.push({
      text: `${logLevel.label} ${Arr.ensure(message).join(" ")}`,
      annotations: Object.fromEntries(annotations)
    })
  })
  const fiber = yield* Effect.forkScoped(Effect.provide(live.run, Logger.replace(Logger.defaultLogger, logger)))
  const publishedIds = () =>
    publisher.published.flatMap((batch) => batch.map((p) => (Either.isRight(p.message) ? p.message.right.id : "?")))
  return { outbox, publisher, live, fiber, publishedIds, lines }
})

const gone = new DatabaseError({ operation: "insert", kind: "connection", reason: "gone", sqlState: undefined })

describe("live events", () => {
  it.scoped("a notification without a row is published from its own payload", () =>
    Effect.gen(function* () {
      const { live, outbox, publishedIds } = yield* start
      yield* live.offer([notification(1)])
      yield* TestClock.adjust(0)
      assert.deepStrictEqual(publishedIds(), ["live-1"])
      assert.deepStrictEqual(outbox.liveRows, [])
    })
  )

  it.scoped("a notification whose event has a row is never published a second time", () =>
    Effect.gen(function* () {
      const { live, outbox, publishedIds } = yield* start
      outbox.answers.match = ({ payload }) => payload === `{"n":1}`
      yield* live.offer([notification(1), notification(2)])
      yield* TestClock.adjust(0)
      assert.deepStrictEqual(publishedIds(), ["live-2"])
    })
  )

  it.scoped("what is not JSON becomes a dead letter with the reason", () =>
    Effect.gen(function* () {
      const { live, outbox, publishedIds } = yield* start
      yield* live.offer([notification(1, ""), notification(2)])
      yield* TestClock.adjust(0)
      assert.deepStrictEqual(publishedIds(), ["live-2"])
      assert.deepStrictEqual(outbox.liveRows, [
        { kind: "dead", id: "live-1", channel: "campaign_click", payload: "", reason: "not JSON" }
      ])
    })
  )

  it.scoped("while the broker is away, an event goes to the table as a pending row without an attempt", () =>
    Effect.gen(function* () {
      const { live, outbox, publisher, publishedIds } = yield* start
      publisher.state.status = { connected: false, blocked: false, blockedReason: undefined }
      yield* live.offer([notification(1)])
      yield* TestClock.adjust(0)
      assert.deepStrictEqual(publishedIds(), [])
      assert.deepStrictEqual(outbox.liveRows, [
        { kind: "pending", id: "live-1", channel: "campaign_click", payload: `{"n":1}`, refused: undefined }
      ])
    })
  )

  it.scoped("an unanswered event goes to the table under the same message id; a refused one with its reason", () =>
    Effect.gen(function* () {
      const { live, outbox, publisher } = yield* start
      publisher.state.outcome = (_, index) =>
        index === 0
          ? Outcome.Unknown({ reason: "time-out" })
          : Outcome.Refused({ reason: "no queue", permanent: false })
      yield* live.offer([notification(1), notification(2)])
      yield* TestClock.adjust(0)
      assert.deepStrictEqual(
        outbox.liveRows.map((r) => [r.id, r.kind === "pending" ? r.refused : "dead"]),
        [
          ["live-1", undefined],
          ["live-2", "no queue"]
        ]
      )
    })
  )

  it.scoped(
    "one that is refused for good goes to the table untried, where the relay makes a dead letter of its JSON",
    () =>
      Effect.gen(function* () {
        const { lines, live, outbox, publisher } = yield* start
        publisher.state.outcome = () => Outcome.Refused({ reason: "too large", permanent: true })
        yield* live.offer([notification(1)])
        yield* TestClock.adjust(0)
        assert.deepStrictEqual(outbox.liveRows, [
          { kind: "pending", id: "live-1", channel: "campaign_click", payload: `{"n":1}`, refused: undefined }
        ])
        assert.deepStrictEqual(lines, [])
      })
  )

  it.scoped("that were refused, or are no JSON, have a line each with the keys of every event's line", () =>
    Effect.gen(function* () {
      const { lines, live, publisher } = yield* start
      publisher.state.outcome = (_, index) =>
        index === 0 ? Outcome.Refused({ reason: "no queue", permanent: false }) : Outcome.Confirmed()
      yield* live.offer([notification(1), notification(2), notification(3, "")])
      yield* TestClock.adjust(0)
      const keys = { event_type: null, channel: "campaign_click", aggregate_id: null, attempt: 1 }
      assert.deepStrictEqual(lines, [
        { text: "ERROR live event became a dead letter: not JSON", annotations: { event_id: "live-3", ...keys } },
        {
          text: "WARN live event refused, kept in event_outbox: no queue",
          annotations: { event_id: "live-1", ...keys }
        }
      ])
    })
  )

  it.scoped("past the buffer the surplus goes to the table: memory stays bounded", () =>
    Effect.gen(function* () {
      const { live, outbox, publisher } = yield* start
      const confirm = yield* Deferred.make<void>()
      publisher.state.pause = Deferred.await(confirm)
      yield* live.offer([notification(0)])
      yield* TestClock.adjust(0)
      yield* live.offer(Array.from({ length: 5_000 }, (_, i) => notification(i + 1)))
      assert.strictEqual(outbox.liveRows.length, 4_000)
      yield* Deferred.succeed(confirm, undefined)
    })
  )

  it.scoped("a database that is away for a moment is waited for", () =>
    Effect.gen(function* () {
      const { live, outbox, publishedIds } = yield* start
      outbox.answers.matchFails = Effect.fail(gone)
      yield* live.offer([notification(1)])
      yield* TestClock.adjust("1 minute")
      assert.deepStrictEqual(publishedIds(), [])
      outbox.answers.matchFails = Effect.void
      yield* TestClock.adjust("1 second")
      assert.deepStrictEqual(publishedIds(), ["live-1"])
    })
  )

  it.scoped("stopped in mid-batch, it finishes the batch and puts the rest into the table", () =>
    Effect.gen(function* () {
      const { fiber, live, outbox, publisher, publishedIds } = yield* start
      const confirm = yield* Deferred.make<void>()
      publisher.state.pause = Deferred.await(confirm)
      yield* live.offer([notification(1)])
      yield* TestClock.adjust(0)
      yield* live.offer([notification(2), notification(3)])
      yield* live.stop
      const stopped = yield* Effect.fork(Fiber.interrupt(fiber))
      yield* TestClock.adjust(0)
      yield* Deferred.succeed(confirm, undefined)
      yield* Fiber.join(stopped)
      assert.deepStrictEqual(publishedIds(), ["live-1"])
      assert.deepStrictEqual(
        outbox.liveRows.map((r) => r.id),
        ["live-2", "live-3"]
      )
    })
  )
})
