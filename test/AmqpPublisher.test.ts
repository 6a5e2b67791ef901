import { assert, describe, it } from "@effect/vitest"
import * as Clock from "effect/Clock"
import * as Context from "effect/Context"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Either from "effect/Either"
import * as Fiber from "effect/Fiber"
import * as Layer from "effect/Layer"
import * as Logger from "effect/Logger"
import * as Queue from "effect/Queue"
import * as Redacted from "effect/Redacted"
import * as TestClock from "effect/TestClock"
import { AmqpPublisher } from "../src/AmqpPublisher.js"
import { AmqpError } from "../src/Errors.js"
import { Fatal } from "../src/Fatal.js"
import { AmqpSessions, closeBounded, type Inspection } from "../src/internal/amqpSession.js"
import { Outcome, type Publishable, Refusal } from "../src/Message.js"
import { Settings, type SettingsShape } from "../src/Settings.js"
import { closedBy, event, type ScriptedSession, scriptedSession, settle } from "./support/scriptedAmqp.js"

const url = "amqp://relay:s3cret@broker.example:5673/shop"

/** The publisher on a broker played by the test: up or down, and one scripted session per connect. */
const makeBench = (
  options: {
    readonly up?: boolean
    readonly declareQueues?: boolean
    readonly odd?: Readonly<Record<string, Inspection>>
  } = {}
) =>
  Effect.gen(function* () {
    const broker = { up: options.up ?? true, reason: "connect ECONNREFUSED 127.0.0.1:5673" }
    const triedAtSeconds: Array<number> = []
    const odd = new Map(Object.entries(options.odd ?? {}))
    const opened = yield* Queue.unbounded<ScriptedSession>()
    const closed = { count: 0 }
    const lines: Array<string> = []
    const sessions = AmqpSessions.of({
      open: (given, onNews) =>
        Effect.gen(function* () {
          assert.strictEqual(given, url)
          triedAtSeconds.push((yield* Clock.currentTimeMillis) / 1000)
          if (!broker.up) return yield* new AmqpError({ operation: "connect", reason: broker.reason })
          const scripted = yield* scriptedSession(onNews, odd)
          yield* Effect.addFinalizer(() =>
            Effect.sync(() => {
              closed.count++
            })
          )
          opened.unsafeOffer(scripted)
          return scripted.session
        })
    })
    const settings = {
      amqpUrl: Effect.succeed(Redacted.make(url)),
      routes: {
        resolve: () => Either.left(new Refusal({ reason: "not used", permanent: false })),
        sourceOf: () => undefined,
        channels: [],
        queues: ["campaign_click_trigger", "other_queue"],
        exchanges: ["x", "y"],
        all: []
      },
      declareQueues: options.declareQueues ?? true,
      queueType: "classic",
      confirmTimeout: Duration.seconds(10)
    } as const satisfies Partial<SettingsShape>
    const context = yield* Layer.build(
      AmqpPublisher.layerOnSessions.pipe(
        Layer.provide(Layer.succeed(AmqpSessions, sessions)),
        // Only what the publisher reads.
        Layer.provide(Layer.succeed(Settings, settings as unknown as SettingsShape)),
        Layer.provide(Fatal.layer),
        Layer.provide(
          Logger.replace(
            Logger.defaultLogger,
            Logger.make(({ logLevel, message }) => {
              lines.push(`${logLevel.label} ${Array.isArray(message) ? message.join(" ") : String(message)}`)
            })
          )
        )
      )
    )
    const publisher = Context.get(context, AmqpPublisher)
    return {
      publisher,
      broker,
      triedAtSeconds,
      odd,
      closed,
      lines,
      nextSession: Queue.take(opened),
      publish: (batch: ReadonlyArray<Publishable>) => publisher.publish(batch).pipe(Effect.uninterruptible, Effect.fork)
    }
  })

/** A bench that is connected, with its session and the shared channel. */
const makeConnected = (options: Parameters<typeof makeBench>[0] = {}) =>
  Effect.gen(function* () {
    const bench = yield* makeBench(options)
    const session = yield* bench.nextSession
    yield* bench.publisher.awaitReady
    return { ...bench, session, shared: yield* session.nextChannel }
  })

const tags = (outcomes: ReadonlyArray<Outcome>) => outcomes.map(({ _tag }) => _tag)
const down = { connected: false, blocked: false, blockedReason: undefined }
const up = { connected: true, blocked: false, blockedReason: undefined }

describe("AmqpPublisher", () => {
  it.scoped("a broker that is down is tried after 1, 2, 4, 8, 16 and then every 30 seconds, for ever", () =>
    Effect.gen(function* () {
      const bench = yield* makeBench({ up: false })
      yield* TestClock.adjust("1 hour")
      assert.deepStrictEqual(bench.triedAtSeconds.slice(0, 8), [0, 1, 3, 7, 15, 31, 61, 91])
      assert.isAbove(bench.triedAtSeconds.length, 110)
      assert.deepStrictEqual(yield* bench.publisher.status, down)
    })
  )

  it.scoped("the delays start over after a success", () =>
    Effect.gen(function* () {
      const bench = yield* makeBench({ up: false })
      yield* TestClock.adjust("10 seconds")
      bench.broker.up = true
      yield* TestClock.adjust("5 seconds")
      const session = yield* bench.nextSession
      yield* bench.publisher.awaitReady
      bench.broker.up = false
      yield* session.news({ kind: "lost", reason: "gone" })
      yield* TestClock.adjust("7 seconds")
      assert.deepStrictEqual(bench.triedAtSeconds, [0, 1, 3, 7, 15, 16, 18, 22])
    })
  )

  it.scoped("a lost session is closed before the next is opened", () =>
    Effect.gen(function* () {
      const bench = yield* makeConnected()
      yield* bench.session.news({ kind: "lost", reason: "gone" })
      yield* settle
      assert.strictEqual(bench.closed.count, 1)
      assert.deepStrictEqual(yield* bench.publisher.status, down)
      assert.strictEqual(bench.triedAtSeconds.length, 1)
      const waiting = yield* Effect.fork(bench.publisher.awaitReady)
      yield* settle
      assert.strictEqual(waiting.unsafePoll(), null)
      yield* TestClock.adjust("1 second")
      yield* bench.nextSession
      yield* Fiber.join(waiting)
      assert.deepStrictEqual(yield* bench.publisher.status, up)
    })
  )

  it.scoped("one log line per change, none for each vain try, none with the password", () =>
    Effect.gen(function* () {
      const bench = yield* makeBench({ up: false })
      yield* TestClock.adjust("20 seconds")
      bench.broker.reason = "403 ACCESS_REFUSED"
      yield* TestClock.adjust("1 minute")
      bench.broker.up = true
      yield* TestClock.adjust("30 seconds")
      const session = yield* bench.nextSession
      yield* bench.publisher.awaitReady
      yield* session.news({ kind: "blocked", reason: "low on memory" })
      yield* session.news({ kind: "unblocked" })
      yield* session.news({ kind: "lost", reason: "320 CONNECTION_FORCED" })
      yield* settle
      assert.deepStrictEqual(
        bench.lines.filter((line) => !line.startsWith("DEBUG")),
        [
          "WARN not connected to RabbitMQ, trying until it works: AMQP connect: connect ECONNREFUSED 127.0.0.1:5673",
          "WARN not connected to RabbitMQ, trying until it works: AMQP connect: 403 ACCESS_REFUSED",
          "INFO connected to RabbitMQ at amqp://broker.example:5673/shop",
          "WARN RabbitMQ takes no messages now: low on memory",
          "INFO RabbitMQ takes messages again",
          "WARN lost the connection to RabbitMQ: 320 CONNECTION_FORCED"
        ]
      )
      assert.isFalse(bench.lines.join().includes("s3cret"))
    })
  )

  it.scoped("not connected: every message of the batch is unknown at once", () =>
    Effect.gen(function* () {
      const bench = yield* makeBench({ up: false })
      const outcomes = yield* bench.publisher.publish([event("a"), event("b")])
      assert.deepStrictEqual(outcomes, [
        Outcome.Unknown({ reason: "not connected" }),
        Outcome.Unknown({ reason: "not connected" })
      ])
    })
  )

  it.scoped("blocked: the status says why, and awaitReady waits until the broker takes messages again", () =>
    Effect.gen(function* () {
      const bench = yield* makeConnected()
      yield* bench.session.news({ kind: "blocked", reason: "low on memory" })
      yield* settle
      assert.deepStrictEqual(yield* bench.publisher.status, {
        connected: true,
        blocked: true,
        blockedReason: "low on memory"
      })
      const waiting = yield* Effect.fork(bench.publisher.awaitReady)
      yield* settle
      assert.strictEqual(waiting.unsafePoll(), null)
      yield* bench.session.news({ kind: "unblocked" })
      yield* Fiber.join(waiting)
      assert.deepStrictEqual(yield* bench.publisher.status, up)
    })
  )

  it.scoped("blocked, then closed: what was in flight is unknown, and awaitReady waits for the next session", () =>
    Effect.gen(function* () {
      const bench = yield* makeConnected()
      const fiber = yield* bench.publish([event("k1", "k"), event("k2", "k")])
      yield* bench.shared.next
      yield* bench.session.news({ kind: "blocked", reason: "low on disk" })
      yield* bench.session.news({ kind: "lost", reason: "gone" })
      assert.deepStrictEqual(tags(yield* Fiber.join(fiber)), ["Unknown", "Held"])
      yield* settle
      const waiting = yield* Effect.fork(bench.publisher.awaitReady)
      yield* settle
      assert.strictEqual(waiting.unsafePoll(), null)
      yield* TestClock.adjust("1 second")
      yield* Fiber.join(waiting)
      assert.deepStrictEqual(yield* bench.publisher.status, up)
    })
  )

  it.scoped("no confirm in time from a broker that is not blocked: the session is given up for a fresh one", () =>
    Effect.gen(function* () {
      const bench = yield* makeConnected()
      const fiber = yield* bench.publish([event("a")])
      const late = yield* bench.shared.next
      yield* TestClock.adjust("10 seconds")
      assert.deepStrictEqual(tags(yield* Fiber.join(fiber)), ["Unknown"])
      assert.deepStrictEqual(bench.session.dropped, ["no confirm within 10000 ms"])
      yield* TestClock.adjust("1 second")
      const session = yield* bench.nextSession
      const shared = yield* session.nextChannel
      const again = yield* bench.publish([event("a")])
      const retried = yield* shared.next
      yield* late.ack
      yield* settle
      assert.strictEqual(again.unsafePoll(), null)
      yield* retried.ack
      assert.deepStrictEqual(tags(yield* Fiber.join(again)), ["Confirmed"])
    })
  )

  it.scoped("no confirm in time from a blocked broker: unknown, but the session stays", () =>
    Effect.gen(function* () {
      const bench = yield* makeConnected()
      const fiber = yield* bench.publish([event("a")])
      yield* bench.session.news({ kind: "blocked", reason: "low on memory" })
      yield* TestClock.adjust("10 seconds")
      assert.deepStrictEqual(tags(yield* Fiber.join(fiber)), ["Unknown"])
      assert.deepStrictEqual(bench.session.dropped, [])
      assert.strictEqual(bench.closed.count, 0)
    })
  )

  it.scoped("a channel closed by one batch is opened again at once, and the next batch waits for it", () =>
    Effect.gen(function* () {
      const bench = yield* makeConnected()
      const guilty = yield* bench.publish([event("bad", undefined, { exchange: "x" })])
      yield* bench.shared.next
      yield* bench.shared.end(closedBy(404, "NOT_FOUND - no exchange 'x'"))
      const next = yield* bench.publish([event("a")])
      const opened = [yield* bench.session.nextChannel, yield* bench.session.nextChannel]
      for (const channel of opened) {
        const written = yield* channel.next
        yield* written.id === "bad" ? channel.end(closedBy(404, "NOT_FOUND - no exchange 'x'")) : written.ack
      }
      assert.deepStrictEqual(tags(yield* Fiber.join(next)), ["Confirmed"])
      assert.deepStrictEqual(tags(yield* Fiber.join(guilty)), ["Refused"])
      assert.deepStrictEqual(bench.triedAtSeconds, [0])
      assert.deepStrictEqual(yield* bench.publisher.status, up)
    })
  )

  it.scoped("a missing queue is declared, and one that is there is left as it is", () =>
    Effect.gen(function* () {
      const bench = yield* makeConnected({ odd: { campaign_click_trigger: { kind: "missing" } } })
      assert.deepStrictEqual(bench.session.declared, ["campaign_click_trigger"])
      assert.deepStrictEqual(bench.session.inspected, ["campaign_click_trigger", "other_queue", "x", "y"])
    })
  )

  it.scoped("a missing queue is only warned about when it is not ours to declare", () =>
    Effect.gen(function* () {
      const bench = yield* makeConnected({
        declareQueues: false,
        odd: { campaign_click_trigger: { kind: "missing" }, other_queue: { kind: "missing" } }
      })
      assert.deepStrictEqual(bench.session.declared, [])
      const warnings = bench.lines.filter((line) => line.startsWith("WARN"))
      assert.strictEqual(warnings.length, 1)
      assert.include(warnings[0], "campaign_click_trigger, other_queue")
    })
  )

  it.scoped("no permission to look is a warning, and no obstacle", () =>
    Effect.gen(function* () {
      const bench = yield* makeConnected({
        odd: { other_queue: { kind: "refused", reason: "403 ACCESS_REFUSED" }, x: { kind: "refused", reason: "403" } }
      })
      const warnings = bench.lines.filter((line) => line.startsWith("WARN"))
      assert.strictEqual(warnings.length, 1)
      assert.include(warnings[0], "queue other_queue: 403 ACCESS_REFUSED; exchange x: 403")
    })
  )

  it.scoped("an exchange found missing at the start is a suspect: it does not close the shared channel", () =>
    Effect.gen(function* () {
      const bench = yield* makeConnected({ odd: { x: { kind: "missing" }, y: { kind: "missing" } } })
      const warnings = bench.lines.filter((line) => line.startsWith("WARN"))
      assert.strictEqual(warnings.length, 1)
      assert.include(warnings[0], "x, y")
      const fiber = yield* bench.publish([event("bad", undefined, { exchange: "x" }), event("a")])
      const a = yield* bench.shared.next
      assert.strictEqual(a.id, "a")
      yield* a.ack
      const alone = yield* bench.session.nextChannel
      yield* alone.next
      yield* alone.end(closedBy(404, "NOT_FOUND - no exchange 'x'"))
      assert.deepStrictEqual(tags(yield* Fiber.join(fiber)), ["Refused", "Confirmed"])
      assert.strictEqual(bench.shared.channel.ended(), undefined)
    })
  )

  it.scoped("a vanished queue is declared again before the next publish, looked for at most once a second", () =>
    Effect.gen(function* () {
      const bench = yield* makeConnected()
      const looks = () => bench.session.inspected.filter((name) => name === "campaign_click_trigger").length
      const unroutable = Effect.gen(function* () {
        const fiber = yield* bench.publish([event("a")])
        const a = yield* bench.shared.next
        yield* a.giveBack
        yield* a.ack
        assert.deepStrictEqual(tags(yield* Fiber.join(fiber)), ["Refused"])
      })
      bench.session.odd.set("campaign_click_trigger", { kind: "missing" })
      yield* unroutable
      assert.deepStrictEqual([looks(), bench.session.declared.length], [1, 0])
      yield* unroutable
      assert.deepStrictEqual([looks(), bench.session.declared.length], [2, 1])
      bench.session.odd.set("campaign_click_trigger", { kind: "missing" })
      yield* unroutable
      assert.deepStrictEqual([looks(), bench.session.declared.length], [2, 1])
      yield* TestClock.adjust("1 second")
      yield* unroutable
      assert.deepStrictEqual([looks(), bench.session.declared.length], [3, 2])
    })
  )
})

describe("closeBounded", () => {
  it.effect("a peer that never answers the goodbye is hung up on after 2 seconds", () =>
    Effect.gen(function* () {
      let destroyed = false
      const closing = yield* closeBounded({
        close: () => Effect.runPromise(Effect.never),
        destroy: () => {
          destroyed = true
        }
      }).pipe(Effect.uninterruptible, Effect.fork)
      yield* TestClock.adjust("1999 millis")
      assert.isFalse(destroyed)
      yield* TestClock.adjust("1 millis")
      yield* Fiber.join(closing)
      assert.isTrue(destroyed)
    })
  )

  it.effect("a goodbye that fails is no failure", () =>
    Effect.gen(function* () {
      let destroyed = false
      yield* closeBounded({
        close: () => Promise.reject(new Error("already closed")),
        destroy: () => {
          destroyed = true
        }
      })
      assert.isTrue(destroyed)
    })
  )
})
