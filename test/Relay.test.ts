/** The relay as a whole, on scripted ports: what sets what off, what ends it, and in which order it stops. */
import { assert, describe, it } from "@effect/vitest"
import * as Arr from "effect/Array"
import * as Cause from "effect/Cause"
import * as Context from "effect/Context"
import * as Deferred from "effect/Deferred"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Either from "effect/Either"
import * as Exit from "effect/Exit"
import * as Layer from "effect/Layer"
import * as Logger from "effect/Logger"
import * as Metric from "effect/Metric"
import * as Option from "effect/Option"
import * as Scope from "effect/Scope"
import * as Stream from "effect/Stream"
import * as TestClock from "effect/TestClock"
import { AmqpPublisher } from "../src/AmqpPublisher.js"
import { DoorbellDatabase } from "../src/Doorbell.js"
import { DatabaseError, ListenError, ListenExhausted } from "../src/Errors.js"
import { Fatal, LoopEnded } from "../src/Fatal.js"
import type { Publishable } from "../src/Message.js"
import * as Metrics from "../src/Metrics.js"
import { Outbox } from "../src/Outbox.js"
import { ListenEvent, makePgListen, PgListen } from "../src/PgListen.js"
import { Relay } from "../src/Relay.js"
import { SchemaGate } from "../src/SchemaGate.js"
import { Settings } from "../src/Settings.js"
import { row, scriptedDoorbellDatabase, scriptedListen, scriptedOutbox, scriptedPublisher } from "./support/scripted.js"

const settings = { DATABASE_URL: "postgres://relay@db/app", AMQP_URL: "amqp://relay@broker", PG_LISTENER_WORKERS: "1" }
const gone = new DatabaseError({ operation: "count", kind: "connection", reason: "gone", sqlState: undefined })
const listening = (disconnectedAt?: number) => ListenEvent.Listening({ backendPid: 1, disconnectedAt })
const notify = (channel: string, payload = "") => ListenEvent.Notification({ channel, payload })
/** Lets every fiber go as far as it can without time passing. */
const settle = TestClock.adjust(0)

interface Parts {
  readonly listen?: PgListen["Type"]
  readonly outbox?: Partial<Outbox["Type"]>
  readonly publisher?: AmqpPublisher["Type"]
  readonly gate?: SchemaGate["Type"]
  readonly environment?: { readonly [name: string]: string }
}

const start = (parts: Parts = {}) =>
  Effect.gen(function* () {
    const outbox = scriptedOutbox()
    const publisher = scriptedPublisher()
    const listen = yield* scriptedListen
    const lines: Array<{ readonly text: string; readonly annotations: Record<string, unknown> }> = []
    const scope = yield* Scope.make()
    yield* Effect.addFinalizer(() => Scope.close(scope, Exit.void))
    const context = yield* Relay.layer.pipe(
      Layer.provide(parts.gate === undefined ? SchemaGate.layer : Layer.succeed(SchemaGate, parts.gate)),
      Layer.provide(Layer.succeed(Outbox, { ...outbox.port, ...parts.outbox })),
      Layer.provide(Layer.succeed(AmqpPublisher, parts.publisher ?? publisher.port)),
      Layer.provide(Layer.succeed(PgListen, parts.listen ?? listen.port)),
      Layer.provide(Layer.succeed(DoorbellDatabase, scriptedDoorbellDatabase)),
      Layer.provide(Settings.layerFrom({ ...settings, ...parts.environment })),
      Layer.provideMerge(Fatal.layer),
      Layer.provide(
        Logger.replace(
          Logger.defaultLogger,
          Logger.make(({ annotations, message }) => {
            lines.push({ text: Arr.ensure(message).join(" "), annotations: Object.fromEntries(annotations) })
          })
        )
      ),
      Layer.buildWithScope(scope)
    )
    const fatal = Context.get(context, Fatal)
    /** What ends the process, or undefined while it goes on. */
    const end = Effect.flatMap(Deferred.poll(fatal), (polled) =>
      Option.isNone(polled) ? Effect.succeed(undefined) : Effect.flip(Effect.sandbox(polled.value))
    )
    yield* settle
    return {
      relay: Context.get(context, Relay),
      outbox,
      publisher,
      listen,
      lines,
      end,
      stop: Scope.close(scope, Exit.void),
      publishedBodies: () => publisher.published.flat().map(bodyOf)
    }
  })

const bodyOf = ({ message }: Publishable) =>
  Either.match(message, { onLeft: () => "", onRight: ({ body }) => String(body) })

/** By how much a counter has gone up since it was asked for: metrics are the whole process's. */
const countingFrom = (counter: Metric.Metric.Counter<number>) =>
  Effect.map(Metric.value(counter), (before) =>
    Effect.map(Metric.value(counter), (after) => after.count - before.count)
  )

describe("what the LISTEN session tells", () => {
  it.scoped("Listening starts a full claim", () =>
    Effect.gen(function* () {
      const { listen, outbox } = yield* start()
      outbox.claimsMade.length = 0
      yield* listen.emit(listening())
      yield* settle
      assert.deepStrictEqual(
        outbox.claimsMade.map(({ full }) => full),
        [true]
      )
    })
  )

  it.scoped("a notification on the wake channel starts a claim at once, and is no event of its own", () =>
    Effect.gen(function* () {
      const { listen, outbox, publisher } = yield* start()
      outbox.claimsMade.length = 0
      yield* listen.emit(notify("event_outbox", "{}"))
      yield* settle
      assert.strictEqual(outbox.claimsMade.length, 1)
      assert.deepStrictEqual(publisher.published, [])
      assert.deepStrictEqual(outbox.liveRows, [])
    })
  )

  it.scoped(
    '"full" on the wake channel starts a full claim, and on any other channel is a payload like any other',
    () =>
      Effect.gen(function* () {
        const { listen, outbox, publishedBodies } = yield* start()
        const fullClaims = () => outbox.claimsMade.map(({ full }) => full)
        outbox.claimsMade.length = 0
        yield* listen.emit(notify("event_outbox"), notify("event_outbox", "full"), notify("event_outbox"))
        yield* settle
        assert.strictEqual(fullClaims()[0], true)
        outbox.claimsMade.length = 0
        yield* listen.emit(notify("campaign_click", "full"), notify("event_outbox"))
        yield* settle
        assert.notInclude(fullClaims(), true)
        assert.deepStrictEqual(publishedBodies(), [])
      })
  )

  it.scoped("a notification on a routed channel starts a claim at once, and is published when it has no row", () =>
    Effect.gen(function* () {
      const { listen, outbox, publishedBodies } = yield* start()
      outbox.claimsMade.length = 0
      yield* listen.emit(notify("campaign_click", '{"n":1}'))
      yield* settle
      assert.strictEqual(outbox.claimsMade.length, 1)
      assert.deepStrictEqual(publishedBodies(), ['{"n":1}'])
    })
  )

  it.scoped("a chunk of notifications starts one claim", () =>
    Effect.gen(function* () {
      const { listen, outbox } = yield* start()
      outbox.claimsMade.length = 0
      yield* listen.emit(...Array.from({ length: 100 }, () => notify("event_outbox")))
      yield* settle
      assert.isAtMost(outbox.claimsMade.length, 2)
    })
  )

  it.scoped("a replica that is not the live owner publishes nothing, until the owner is found dead", () =>
    Effect.gen(function* () {
      const { listen, publishedBodies } = yield* start()
      listen.state.owner = false
      yield* listen.emit(notify("campaign_click", "1"))
      yield* settle
      assert.deepStrictEqual(publishedBodies(), [])
      listen.state.owner = true
      yield* TestClock.adjust("2 seconds")
      assert.deepStrictEqual(publishedBodies(), ["1"])
    })
  )

  it.scoped("a new owner publishes what had waited before what comes now", () =>
    Effect.gen(function* () {
      const { listen, publishedBodies } = yield* start()
      listen.state.owner = false
      yield* listen.emit(notify("campaign_click", "1"))
      yield* settle
      listen.state.owner = true
      yield* listen.emit(notify("campaign_click", "2"))
      yield* settle
      assert.deepStrictEqual(publishedBodies(), ["1", "2"])
    })
  )

  it.scoped("after a loss, the reconnect is counted and the log says how many rows were created since", () =>
    Effect.gen(function* () {
      const asked: Array<number> = []
      const reconnects = yield* countingFrom(Metrics.reconnects)
      const { lines, listen, outbox } = yield* start({
        outbox: {
          countPendingSince: (epochMillis) =>
            Effect.sync(() => {
              asked.push(epochMillis)
              return 42
            })
        }
      })
      outbox.claimsMade.length = 0
      yield* listen.emit(listening(7000))
      yield* settle
      assert.deepStrictEqual(asked, [7000])
      assert.strictEqual(yield* reconnects, 1)
      assert.isTrue(outbox.claimsMade[0]?.full)
      const line = lines.find(({ annotations }) => "pending_since_disconnect" in annotations)
      assert.strictEqual(line?.annotations["pending_since_disconnect"], 42)
      assert.strictEqual(line?.annotations["disconnected_at"], "1970-01-01T00:00:07.000Z")
    })
  )

  it.scoped("a catch-up that can't be counted is said, and claims nothing less; notifications go on", () =>
    Effect.gen(function* () {
      const { lines, listen, outbox, publishedBodies } = yield* start({
        outbox: { countPendingSince: () => Effect.fail(gone) }
      })
      outbox.claimsMade.length = 0
      yield* listen.emit(listening(7000), notify("campaign_click", "1"))
      yield* settle
      assert.isTrue(outbox.claimsMade[0]?.full)
      yield* TestClock.adjust("2 seconds")
      assert.isTrue(lines.some(({ text }) => text.startsWith("could not count what the gap left")))
      assert.deepStrictEqual(publishedBodies(), ["1"])
    })
  )
})

describe("the jobs beside it", () => {
  it.scoped("every 5 seconds everything is claimed, although nobody rang", () =>
    Effect.gen(function* () {
      const { outbox } = yield* start()
      outbox.claimsMade.length = 0
      yield* TestClock.adjust("10 seconds")
      assert.deepStrictEqual(
        outbox.claimsMade.map(({ full }) => full),
        [true, true]
      )
    })
  )

  it.scoped("the sweep counts overdue rows, but not while a backlog is drained", () =>
    Effect.gen(function* () {
      const swept = yield* countingFrom(Metrics.eventsSwept)
      const { outbox, relay } = yield* start({
        environment: { PG_LISTENER_SWEEP_INTERVAL: "3 seconds", PG_LISTENER_BATCH_SIZE: "1" }
      })
      const claimed = yield* Deferred.make<void>()
      outbox.answers.overdue = 5
      outbox.claims.push(
        Effect.succeed({ rows: [row(1)], contended: false }),
        Effect.as(Deferred.await(claimed), { rows: [], contended: false })
      )
      yield* relay.wake
      yield* TestClock.adjust("3 seconds")
      assert.strictEqual(yield* swept, 0)
      yield* Deferred.succeed(claimed, undefined)
      yield* TestClock.adjust("3 seconds")
      assert.strictEqual(yield* swept, 5)
    })
  )

  it.scoped("a job that fails is said once, comes again, and ends nothing", () =>
    Effect.gen(function* () {
      let runs = 0
      const { end, lines } = yield* start({
        environment: { PG_LISTENER_CLEANUP_INTERVAL: "1 second" },
        outbox: {
          cleanUp: Effect.suspend(() => {
            runs++
            return Effect.fail(gone)
          })
        }
      })
      yield* TestClock.adjust("3 seconds")
      assert.strictEqual(runs, 3)
      assert.isUndefined(yield* end)
      assert.deepStrictEqual(lines.filter(({ text }) => text.startsWith("clean-up failed: ")).length, 1)
    })
  )

  it.scoped("the low-water mark has the rows claimed that it set free", () =>
    Effect.gen(function* () {
      let freed = false
      const { outbox } = yield* start({
        environment: { PG_LISTENER_POLL_INTERVAL: "1 hour" },
        outbox: { advanceLowWater: Effect.sync(() => freed) }
      })
      outbox.claimsMade.length = 0
      yield* TestClock.adjust("2 seconds")
      assert.strictEqual(outbox.claimsMade.length, 0)
      freed = true
      yield* TestClock.adjust("2 seconds")
      assert.isTrue(outbox.claimsMade[0]?.full)
    })
  )
})

describe("before the schema is in order", () => {
  it.scoped("nothing is claimed and no live event is published; both start by themselves when it is", () =>
    Effect.gen(function* () {
      const open = yield* Deferred.make<void>()
      const { end, listen, outbox, publishedBodies } = yield* start({
        gate: { isOpen: Deferred.isDone(open), awaitOpen: Deferred.await(open) }
      })
      yield* listen.emit(listening(), notify("campaign_click", "1"))
      yield* TestClock.adjust("10 seconds")
      assert.deepStrictEqual(outbox.claimsMade, [])
      assert.deepStrictEqual(publishedBodies(), [])
      yield* Deferred.succeed(open, undefined)
      yield* settle
      assert.isTrue(outbox.claimsMade[0]?.full)
      assert.deepStrictEqual(publishedBodies(), ["1"])
      assert.isUndefined(yield* end)
    })
  )
})

describe("what ends the process", () => {
  it.scoped(
    "LISTEN that gave up, after its whole schedule of 2,881 seconds, as a defect that names the last failure",
    () =>
      Effect.gen(function* () {
        const last = new ListenError({ why: "connect", reason: "ECONNREFUSED" })
        const { end } = yield* start({
          listen: makePgListen({
            open: () => Effect.fail(last),
            channels: ["event_outbox"],
            heartbeatInterval: Duration.seconds(10),
            heartbeatTimeout: Duration.seconds(5)
          }),
          // The loops behind it would only make the clock stop more often.
          gate: { isOpen: Effect.succeed(false), awaitOpen: Effect.never },
          environment: { PG_LISTENER_POLL_INTERVAL: "1 hour" }
        })
        yield* TestClock.adjust("2880 seconds")
        assert.isUndefined(yield* end)
        yield* TestClock.adjust("1 second")
        const cause = yield* end
        assert.isTrue(cause !== undefined && Cause.isDie(cause))
        assert.deepStrictEqual(cause && Cause.squash(cause), new ListenExhausted({ retries: 100, last }))
      })
  )

  it.scoped("a loop that ends, by its name: here the LISTEN stream", () =>
    Effect.gen(function* () {
      const { end } = yield* start({
        listen: {
          events: Stream.empty,
          status: Effect.succeed({ connected: false, disconnectedAt: undefined }),
          isLiveOwner: Effect.succeed(false),
          stop: Effect.void
        }
      })
      const cause = yield* end
      assert.deepStrictEqual(cause && Cause.squash(cause), new LoopEnded({ loop: "listen" }))
    })
  )

  it.scoped("a bug in a cycle", () =>
    Effect.gen(function* () {
      const { end, outbox, relay } = yield* start()
      outbox.claims.push(Effect.die("a bug"))
      yield* relay.wake
      yield* settle
      const cause = yield* end
      assert.strictEqual(cause && Cause.squash(cause), "a bug")
    })
  )
})

describe("a stop", () => {
  it.scoped(
    "ends intake, then the jobs, then the live batch in hand, then the workers' batches, which are settled",
    () =>
      Effect.gen(function* () {
        const log: Array<string> = []
        const say = (what: string) =>
          Effect.sync(() => {
            log.push(what)
          })
        const liveAnswer = yield* Deferred.make<void>()
        const rowAnswer = yield* Deferred.make<void>()
        const scripted = scriptedPublisher()
        const isRow = (batch: ReadonlyArray<Publishable>) => batch.some((one) => bodyOf(one) === '{"seq":1}')
        const publisher = {
          ...scripted.port,
          publish: (batch: ReadonlyArray<Publishable>) =>
            Deferred.await(isRow(batch) ? rowAnswer : liveAnswer).pipe(
              Effect.zipRight(say(isRow(batch) ? "rows published" : "live event published")),
              Effect.zipRight(scripted.port.publish(batch))
            )
        }
        const listen = yield* scriptedListen
        const { outbox, relay, stop } = yield* start({
          publisher,
          listen: { ...listen.port, events: Stream.ensuring(listen.port.events, say("intake ended")) },
          outbox: { advanceLowWater: Effect.onInterrupt(Effect.never, () => say("jobs ended")) }
        })
        outbox.claims.push(Effect.succeed({ rows: [row(1)], contended: false }))
        yield* relay.wake
        yield* listen.emit(notify("form_submitted", '{"live":1}'))
        yield* TestClock.adjust("2 seconds")

        const stopped = yield* Effect.fork(stop)
        yield* settle
        assert.deepStrictEqual(log, ["intake ended", "jobs ended"])
        yield* Deferred.succeed(liveAnswer, undefined)
        yield* settle
        assert.deepStrictEqual(log, ["intake ended", "jobs ended", "live event published"])
        assert.deepStrictEqual(outbox.settles, [])
        yield* Deferred.succeed(rowAnswer, undefined)
        yield* stopped
        assert.deepStrictEqual(log.at(-1), "rows published")
        assert.deepStrictEqual(outbox.settles, [{ processed: ["1"], failed: [] }])
        assert.deepStrictEqual(outbox.sessions, { opened: 1, closed: 1 })
      })
  )

  it.scoped("is no reason to end the process as failed", () =>
    Effect.gen(function* () {
      const { end, stop } = yield* start()
      yield* stop
      assert.isUndefined(yield* end)
    })
  )

  it.scoped("loses no notification that was on its way to the table", () =>
    Effect.gen(function* () {
      const { listen, outbox, publishedBodies, publisher, stop } = yield* start()
      const answer = yield* Deferred.make<void>()
      const table = yield* Deferred.make<void>()
      publisher.state.pause = Deferred.await(answer)
      outbox.answers.insertLive = Deferred.await(table)
      // One is in the publisher's hands, a thousand fill the buffer, and the rest is on its way to the table.
      yield* listen.emit(notify("campaign_click", "0"))
      yield* settle
      yield* listen.emit(...Array.from({ length: 1_500 }, (_, n) => notify("campaign_click", String(n + 1))))
      yield* settle
      const stopped = yield* Effect.fork(stop)
      yield* settle
      yield* Deferred.succeed(table, undefined)
      yield* Deferred.succeed(answer, undefined)
      yield* stopped
      const kept = outbox.liveRows.map(({ payload }) => payload)
      assert.isAtLeast(kept.length, 500)
      assert.strictEqual(new Set([...kept, ...publishedBodies()]).size, 1_501)
    })
  )

  it.scoped("does not wait for a database that is away, with notifications on their way to the table", () =>
    Effect.gen(function* () {
      const { lines, listen, outbox, publisher, stop } = yield* start()
      publisher.state.status = { connected: false, blocked: false, blockedReason: undefined }
      outbox.answers.matchFails = Effect.fail(gone)
      outbox.answers.insertLive = Effect.fail(gone)
      yield* listen.emit(...Array.from({ length: 1_500 }, (_, n) => notify("campaign_click", String(n))))
      yield* TestClock.adjust("10 seconds")
      const stopped = yield* Effect.fork(stop)
      yield* TestClock.adjust("5 seconds")
      yield* stopped
      assert.isTrue(lines.some(({ text }) => text.startsWith("live events are lost")))
    })
  )
})
