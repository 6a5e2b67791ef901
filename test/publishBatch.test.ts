import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Queue from "effect/Queue"
import * as TestClock from "effect/TestClock"
import { AmqpError } from "../src/Errors.js"
import { publishBatch } from "../src/internal/publishBatch.js"
import { Outcome, type Publishable } from "../src/Message.js"
import {
  closedBy,
  event,
  lost,
  refused,
  type ScriptedChannel,
  scriptedChannel,
  settle,
  type Written
} from "./support/scriptedAmqp.js"
import { withWallClock } from "./support/wallClock.js"

const confirmTimeoutMillis = 10_000

/** A shared channel, and a broker that opens channels for a batch alone. */
const makeBench = Effect.gen(function* () {
  const shared = yield* scriptedChannel
  const opened = yield* Queue.unbounded<ScriptedChannel>()
  const suspects = new Set<string>()
  const stalls = { count: 0 }
  const unroutable: Array<string> = []
  const bench = {
    shared,
    suspects,
    stalls,
    unroutable,
    nextAlone: Queue.take(opened),
    openChannel: Effect.map(scriptedChannel, (alone) => {
      opened.unsafeOffer(alone)
      return alone.channel
    }) as Effect.Effect<ScriptedChannel["channel"], AmqpError>,
    // As the relay calls it: uninterruptible, which must not keep any time-out from working.
    publish: (batch: ReadonlyArray<Publishable>, channel: ScriptedChannel = shared) =>
      publishBatch(batch, {
        channel: channel.channel,
        openChannel: Effect.suspend(() => bench.openChannel),
        confirmTimeoutMillis,
        suspects,
        onStalled: () => {
          stalls.count++
        },
        onUnroutable: ({ id }) => {
          unroutable.push(id)
        }
      }).pipe(Effect.uninterruptible, Effect.fork)
  }
  return bench
})

const tags = (outcomes: ReadonlyArray<Outcome>) => outcomes.map(({ _tag }) => _tag)
const reasonOf = (outcome: Outcome | undefined) =>
  outcome !== undefined && "reason" in outcome ? outcome.reason : undefined
const ids = (written: ReadonlyArray<Written>) => written.map(({ id }) => id)
const noExchange = closedBy(404, "NOT_FOUND - no exchange 'x' in vhost '/'")

describe("publishBatch", () => {
  it.effect("an empty batch ends at once", () =>
    Effect.gen(function* () {
      const bench = yield* makeBench
      assert.deepStrictEqual(yield* Fiber.join(yield* bench.publish([])), [])
    })
  )

  it.effect("each message gets its own answer, in the order of the batch, whatever the order of the answers", () =>
    Effect.gen(function* () {
      const bench = yield* makeBench
      const fiber = yield* bench.publish([event("a"), event("b"), event("c")])
      const [a, b, c] = yield* bench.shared.nextOf(3)
      yield* c?.ack ?? Effect.void
      yield* a?.nack ?? Effect.void
      yield* b?.ack ?? Effect.void
      const outcomes = yield* Fiber.join(fiber)
      assert.deepStrictEqual(tags(outcomes), ["Refused", "Confirmed", "Confirmed"])
      assert.strictEqual(reasonOf(outcomes[0]), "nacked by the broker (queue full?)")
      assert.strictEqual(bench.shared.state.listeners(), 0)
    })
  )

  it.effect("a returned message is refused although its ack follows, and its neighbour is not", () =>
    Effect.gen(function* () {
      const bench = yield* makeBench
      const fiber = yield* bench.publish([event("a"), event("b")])
      const [a, b] = yield* bench.shared.nextOf(2)
      if (a === undefined || b === undefined) return assert.fail("not written")
      yield* a.giveBack
      yield* b.ack
      yield* a.ack
      const outcomes = yield* Fiber.join(fiber)
      assert.deepStrictEqual(tags(outcomes), ["Refused", "Confirmed"])
      assert.strictEqual(
        reasonOf(outcomes[0]),
        "unroutable: no queue is bound for exchange '' and routing key 'campaign_click_trigger' (312 NO_ROUTE)"
      )
      assert.deepStrictEqual(bench.unroutable, ["a"])
    })
  )

  it.effect("two messages of one key are never in flight together; those without a key don't wait", () =>
    Effect.gen(function* () {
      const bench = yield* makeBench
      const fiber = yield* bench.publish([
        event("k1", "k"),
        event("k2", "k"),
        event("a"),
        event("k3", "k"),
        event("l1", "l")
      ])
      const first = yield* bench.shared.nextOf(3)
      assert.deepStrictEqual(ids(first), ["k1", "a", "l1"])
      assert.strictEqual(yield* bench.shared.unread, 0)
      for (const { ack } of first) yield* ack
      const second = yield* bench.shared.next
      assert.strictEqual(second.id, "k2")
      assert.strictEqual(yield* bench.shared.unread, 0)
      yield* second.ack
      yield* Effect.flatMap(bench.shared.next, ({ ack }) => ack)
      assert.deepStrictEqual(
        tags(yield* Fiber.join(fiber)),
        Array.from({ length: 5 }, () => "Confirmed")
      )
    })
  )

  it.effect("after a failed message the rest of its key is held, and only that", () =>
    Effect.gen(function* () {
      const bench = yield* makeBench
      const fiber = yield* bench.publish([
        event("k1", "k"),
        event("k2", "k"),
        event("l1", "l"),
        event("k3", "k"),
        event("l2", "l")
      ])
      const [k1, l1] = yield* bench.shared.nextOf(2)
      yield* k1?.nack ?? Effect.void
      yield* l1?.ack ?? Effect.void
      const l2 = yield* bench.shared.next
      assert.strictEqual(l2.id, "l2")
      yield* l2.ack
      assert.deepStrictEqual(tags(yield* Fiber.join(fiber)), ["Refused", "Held", "Confirmed", "Held", "Confirmed"])
      assert.strictEqual(yield* bench.shared.unread, 0)
    })
  )

  it.effect("what can't be a message is refused when its turn comes, and not before", () =>
    Effect.gen(function* () {
      const bench = yield* makeBench
      const fiber = yield* bench.publish([
        event("k1", "k"),
        refused("no route", "k"),
        event("k3", "k"),
        event("l1", "l"),
        refused("no route", "l"),
        refused("too large", undefined, true)
      ])
      const [k1, l1] = yield* bench.shared.nextOf(2)
      yield* k1?.ack ?? Effect.void
      yield* l1?.nack ?? Effect.void
      const outcomes = yield* Fiber.join(fiber)
      assert.deepStrictEqual(tags(outcomes), ["Confirmed", "Refused", "Held", "Refused", "Held", "Refused"])
      assert.strictEqual(reasonOf(outcomes[1]), "no route")
      assert.deepStrictEqual(
        outcomes[3],
        Outcome.Refused({ reason: "nacked by the broker (queue full?)", permanent: false })
      )
      assert.deepStrictEqual(outcomes[5], Outcome.Refused({ reason: "too large", permanent: true }))
    })
  )

  it.effect("a message that can't be encoded is refused with the reason, and the others go on", () =>
    Effect.gen(function* () {
      const bench = yield* makeBench
      bench.shared.script.take = ({ id }) => {
        if (id === "bad") throw new RangeError("the table is too large")
        return "written"
      }
      const fiber = yield* bench.publish([event("a"), event("bad"), event("b")])
      for (const { ack } of yield* bench.shared.nextOf(2)) yield* ack
      const outcomes = yield* Fiber.join(fiber)
      assert.deepStrictEqual(tags(outcomes), ["Confirmed", "Refused", "Confirmed"])
      assert.strictEqual(reasonOf(outcomes[1]), "can't be encoded for AMQP: the table is too large")
    })
  )

  it.effect("a full channel gets nothing more until it drains", () =>
    Effect.gen(function* () {
      const bench = yield* makeBench
      bench.shared.script.take = ({ id }) => (id === "b" ? "full" : "written")
      const fiber = yield* bench.publish([event("a"), event("b"), event("c")])
      const both = yield* bench.shared.nextOf(2)
      for (const { ack } of both) yield* ack
      assert.strictEqual(yield* bench.shared.unread, 0)
      yield* bench.shared.drain
      yield* Effect.flatMap(bench.shared.next, ({ ack }) => ack)
      assert.deepStrictEqual(tags(yield* Fiber.join(fiber)), ["Confirmed", "Confirmed", "Confirmed"])
    })
  )

  it.effect("a full channel that never drains ends with the time-out, or with the connection", () =>
    Effect.gen(function* () {
      for (const how of ["time-out", "lost"]) {
        const bench = yield* makeBench
        bench.shared.script.take = () => "full"
        const fiber = yield* bench.publish([event("a"), event("b")])
        yield* Effect.flatMap(bench.shared.next, ({ ack }) => ack)
        yield* how === "lost" ? bench.shared.end(lost) : TestClock.adjust("10 seconds")
        assert.deepStrictEqual(tags(yield* Fiber.join(fiber)), ["Confirmed", "Held"])
      }
    })
  )

  it.effect("connection lost: what was in flight is unknown, what was not begun is held", () =>
    Effect.gen(function* () {
      const bench = yield* makeBench
      const fiber = yield* bench.publish([event("a"), event("k1", "k"), event("k2", "k"), event("b")])
      const [a] = yield* bench.shared.nextOf(3)
      yield* a?.ack ?? Effect.void
      yield* bench.shared.end(lost)
      const outcomes = yield* Fiber.join(fiber)
      assert.deepStrictEqual(tags(outcomes), ["Confirmed", "Unknown", "Held", "Unknown"])
      assert.strictEqual(reasonOf(outcomes[1]), "connection lost: gone")
    })
  )

  it.effect("a channel that is lost already takes nothing: all are held", () =>
    Effect.gen(function* () {
      const bench = yield* makeBench
      yield* bench.shared.end(lost)
      const fiber = yield* bench.publish([event("a"), event("b")])
      assert.deepStrictEqual(tags(yield* Fiber.join(fiber)), ["Held", "Held"])
    })
  )

  it.effect("no answer for the confirm time-out: unknown, the rest of its key held, and the session is told", () =>
    Effect.gen(function* () {
      const bench = yield* makeBench
      const fiber = yield* bench.publish([event("k1", "k"), event("k2", "k"), event("a")])
      const [, a] = yield* bench.shared.nextOf(2)
      yield* a?.ack ?? Effect.void
      yield* TestClock.adjust("9999 millis")
      assert.strictEqual(fiber.unsafePoll(), null)
      yield* TestClock.adjust("1 millis")
      const outcomes = yield* Fiber.join(fiber)
      assert.deepStrictEqual(tags(outcomes), ["Unknown", "Held", "Confirmed"])
      assert.strictEqual(reasonOf(outcomes[0]), "no answer from the broker within 10000 ms")
      assert.strictEqual(bench.stalls.count, 1)
    })
  )

  it.effect("the time-out is the same when the machine's clock is put back or forward meanwhile", () =>
    withWallClock((wall) =>
      Effect.gen(function* () {
        for (const offMillis of [-600_000, 600_000]) {
          const bench = yield* makeBench
          const fiber = yield* bench.publish([event("a")])
          yield* bench.shared.next
          yield* TestClock.adjust("5 seconds")
          wall.setOff(offMillis)
          yield* TestClock.adjust("4999 millis")
          assert.strictEqual(fiber.unsafePoll(), null)
          yield* TestClock.adjust("1 millis")
          assert.deepStrictEqual(tags(yield* Fiber.join(fiber)), ["Unknown"])
        }
      })
    )
  )

  it.effect("each message has the whole time-out, none is begun after it, and all ends within twice of it", () =>
    Effect.gen(function* () {
      const bench = yield* makeBench
      const fiber = yield* bench.publish([
        event("k1", "k"),
        event("k2", "k"),
        event("k3", "k"),
        event("l1", "l"),
        event("l2", "l")
      ])
      const [k1, l1] = yield* bench.shared.nextOf(2)
      yield* TestClock.adjust("9 seconds")
      yield* k1?.ack ?? Effect.void
      yield* l1?.ack ?? Effect.void
      const [k2] = yield* bench.shared.nextOf(2)
      yield* TestClock.adjust("5 seconds")
      yield* k2?.ack ?? Effect.void
      yield* TestClock.adjust("4999 millis")
      assert.strictEqual(fiber.unsafePoll(), null)
      yield* TestClock.adjust("1 millis")
      assert.deepStrictEqual(tags(yield* Fiber.join(fiber)), ["Confirmed", "Confirmed", "Held", "Confirmed", "Unknown"])
      assert.strictEqual(yield* bench.shared.unread, 0)
    })
  )

  it.effect("a confirm that comes too late does not touch the next batch", () =>
    Effect.gen(function* () {
      const bench = yield* makeBench
      const first = yield* bench.publish([event("a")])
      const late = yield* bench.shared.next
      yield* TestClock.adjust("10 seconds")
      assert.deepStrictEqual(tags(yield* Fiber.join(first)), ["Unknown"])
      const second = yield* bench.publish([event("a")])
      const retried = yield* bench.shared.next
      yield* late.ack
      yield* settle
      assert.strictEqual(second.unsafePoll(), null)
      yield* retried.nack
      assert.deepStrictEqual(tags(yield* Fiber.join(second)), ["Refused"])
    })
  )

  it.effect("a confirm that comes too late does not touch the rest of its own batch either", () =>
    Effect.gen(function* () {
      const bench = yield* makeBench
      const fiber = yield* bench.publish([event("a"), event("k1", "k"), event("k2", "k")])
      const [a, k1] = yield* bench.shared.nextOf(2)
      yield* TestClock.adjust("9 seconds")
      yield* k1?.ack ?? Effect.void
      const k2 = yield* bench.shared.next
      yield* TestClock.adjust("1 second")
      yield* a?.ack ?? Effect.void
      yield* settle
      assert.strictEqual(fiber.unsafePoll(), null)
      yield* k2.ack
      assert.deepStrictEqual(tags(yield* Fiber.join(fiber)), ["Unknown", "Confirmed", "Confirmed"])
    })
  )

  it.effect("one id in flight twice: a return never leaves either of them confirmed", () =>
    Effect.gen(function* () {
      const bench = yield* makeBench
      const first = yield* bench.publish([event("a")])
      const second = yield* bench.publish([event("a"), event("a", undefined, { routingKey: "elsewhere" })])
      const [one, two, elsewhere] = yield* bench.shared.nextOf(3)
      yield* two?.giveBack ?? Effect.void
      for (const written of [one, two, elsewhere]) yield* written?.ack ?? Effect.void
      assert.deepStrictEqual(tags(yield* Fiber.join(first)), ["Refused"])
      assert.deepStrictEqual(tags(yield* Fiber.join(second)), ["Refused", "Confirmed"])
    })
  )
})

describe("publishBatch, when the broker closes the channel", () => {
  it.effect("only the culprit is refused, with the broker's words; the others go out one by one", () =>
    Effect.gen(function* () {
      const bench = yield* makeBench
      const fiber = yield* bench.publish([event("a"), event("b"), event("bad"), event("k1", "k"), event("k2", "k")])
      const [a] = yield* bench.shared.nextOf(4)
      yield* a?.ack ?? Effect.void
      yield* bench.shared.end(closedBy(406, "PRECONDITION_FAILED - message size too large"))

      const alone = yield* bench.nextAlone
      const b = yield* alone.next
      assert.strictEqual(b.id, "b")
      assert.strictEqual(yield* alone.unread, 0)
      yield* b.ack
      assert.strictEqual((yield* alone.next).id, "bad")
      yield* alone.end(closedBy(406, "PRECONDITION_FAILED - message size too large"))

      const fresh = yield* bench.nextAlone
      for (const id of ["k1", "k2"]) {
        const written = yield* fresh.next
        assert.strictEqual(written.id, id)
        yield* written.ack
      }
      const outcomes = yield* Fiber.join(fiber)
      assert.deepStrictEqual(tags(outcomes), ["Confirmed", "Confirmed", "Refused", "Confirmed", "Confirmed"])
      assert.strictEqual(reasonOf(outcomes[2]), "406 PRECONDITION_FAILED - message size too large")
      assert.isTrue(fresh.state.closedByUs)
      assert.deepStrictEqual([...bench.suspects], [])
    })
  )

  it.effect("a neighbour's culprit costs this batch nothing", () =>
    Effect.gen(function* () {
      const bench = yield* makeBench
      const innocent = yield* bench.publish([event("a"), event("b")])
      const guilty = yield* bench.publish([event("bad", undefined, { exchange: "x" })])
      yield* bench.shared.nextOf(3)
      yield* bench.shared.end(noExchange)
      for (const alone of [yield* bench.nextAlone, yield* bench.nextAlone]) {
        const first = yield* alone.next
        if (first.id === "bad") {
          yield* alone.end(noExchange)
        } else {
          yield* first.ack
          yield* Effect.flatMap(alone.next, ({ ack }) => ack)
        }
      }
      assert.deepStrictEqual(tags(yield* Fiber.join(innocent)), ["Confirmed", "Confirmed"])
      const outcomes = yield* Fiber.join(guilty)
      assert.strictEqual(reasonOf(outcomes[0]), "404 NOT_FOUND - no exchange 'x' in vhost '/'")
    })
  )

  it.effect("an exchange that is missing is tried once per batch, and the rest of an aggregate is held", () =>
    Effect.gen(function* () {
      const bench = yield* makeBench
      const x = { exchange: "x" }
      const fiber = yield* bench.publish([event("k1", "k", x), event("k2", "k"), event("b", undefined, x), event("c")])
      yield* bench.shared.nextOf(3)
      yield* bench.shared.end(noExchange)
      const alone = yield* bench.nextAlone
      yield* alone.next
      yield* alone.end(noExchange)
      const fresh = yield* bench.nextAlone
      const c = yield* fresh.next
      assert.strictEqual(c.id, "c")
      yield* c.ack
      const outcomes = yield* Fiber.join(fiber)
      assert.deepStrictEqual(tags(outcomes), ["Refused", "Held", "Refused", "Confirmed"])
      assert.strictEqual(reasonOf(outcomes[2]), reasonOf(outcomes[0]))
      assert.deepStrictEqual([...bench.suspects], ["x"])
    })
  )

  it.effect("a topic permission is about one routing key: other keys of the exchange get their try", () =>
    Effect.gen(function* () {
      const bench = yield* makeBench
      bench.suspects.add("x")
      const fiber = yield* bench.publish([
        event("a", undefined, { exchange: "x", routingKey: "secret" }),
        event("b", undefined, { exchange: "x", routingKey: "open" })
      ])
      const alone = yield* bench.nextAlone
      yield* alone.next
      yield* alone.end(closedBy(403, "ACCESS_REFUSED - access to topic 'secret' in exchange 'x' in vhost '/' refused"))
      const fresh = yield* bench.nextAlone
      yield* Effect.flatMap(fresh.next, ({ ack }) => ack)
      assert.deepStrictEqual(tags(yield* Fiber.join(fiber)), ["Refused", "Confirmed"])
    })
  )

  it.effect("messages to a suspect exchange go out alone, after the others, in the order of their key", () =>
    Effect.gen(function* () {
      const bench = yield* makeBench
      bench.suspects.add("x")
      const fiber = yield* bench.publish([
        event("k1", "k"),
        event("k2", "k", { exchange: "x" }),
        event("k3", "k"),
        event("b")
      ])
      const others = yield* bench.shared.nextOf(2)
      assert.deepStrictEqual(ids(others), ["k1", "b"])
      for (const { ack } of others) yield* ack
      const alone = yield* bench.nextAlone
      assert.strictEqual(yield* bench.shared.unread, 0)
      const k2 = yield* alone.next
      assert.strictEqual(k2.id, "k2")
      yield* k2.ack
      yield* Effect.flatMap(alone.next, ({ ack }) => ack)
      assert.deepStrictEqual(tags(yield* Fiber.join(fiber)), ["Confirmed", "Confirmed", "Confirmed", "Confirmed"])
    })
  )

  it.effect("one success clears the suspicion", () =>
    Effect.gen(function* () {
      const bench = yield* makeBench
      bench.suspects.add("x")
      const fiber = yield* bench.publish([event("a", undefined, { exchange: "x" })])
      const alone = yield* bench.nextAlone
      yield* Effect.flatMap(alone.next, ({ ack }) => ack)
      yield* Fiber.join(fiber)
      assert.deepStrictEqual([...bench.suspects], [])
    })
  )

  it.effect("no channel to look for the culprit: what was written is unknown, the rest held", () =>
    Effect.gen(function* () {
      const bench = yield* makeBench
      bench.openChannel = Effect.fail(new AmqpError({ operation: "open channel", reason: "gone" }))
      const fiber = yield* bench.publish([event("a"), event("k1", "k"), event("k2", "k")])
      yield* bench.shared.nextOf(2)
      yield* bench.shared.end(noExchange)
      const outcomes = yield* Fiber.join(fiber)
      assert.deepStrictEqual(tags(outcomes), ["Unknown", "Unknown", "Held"])
      assert.strictEqual(reasonOf(outcomes[0]), "AMQP open channel: gone")
    })
  )

  it.effect("the connection is lost while the culprit is looked for: nobody is blamed", () =>
    Effect.gen(function* () {
      const bench = yield* makeBench
      const fiber = yield* bench.publish([event("a"), event("b")])
      yield* bench.shared.nextOf(2)
      yield* bench.shared.end(noExchange)
      const alone = yield* bench.nextAlone
      yield* alone.next
      yield* alone.end(lost)
      assert.deepStrictEqual(tags(yield* Fiber.join(fiber)), ["Unknown", "Unknown"])
    })
  )

  it.effect("the search for culprits is bounded: no message is begun after another confirm time-out", () =>
    Effect.gen(function* () {
      const bench = yield* makeBench
      const fiber = yield* bench.publish([event("a"), event("b"), event("k1", "k"), event("k2", "k")])
      yield* bench.shared.nextOf(3)
      yield* TestClock.adjust("9 seconds")
      yield* bench.shared.end(noExchange)
      const alone = yield* bench.nextAlone
      yield* TestClock.adjust("9 seconds")
      yield* Effect.flatMap(alone.next, ({ ack }) => ack)
      yield* alone.next
      yield* TestClock.adjust("9999 millis")
      assert.strictEqual(fiber.unsafePoll(), null)
      yield* TestClock.adjust("1 millis")
      assert.deepStrictEqual(tags(yield* Fiber.join(fiber)), ["Confirmed", "Unknown", "Unknown", "Held"])
      assert.strictEqual(yield* alone.unread, 0)
    })
  )
})
