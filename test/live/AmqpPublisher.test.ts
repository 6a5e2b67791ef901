import { assert, describe, it } from "@effect/vitest"
import * as Context from "effect/Context"
import * as Deferred from "effect/Deferred"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Either from "effect/Either"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Layer from "effect/Layer"
import * as Redacted from "effect/Redacted"
import * as Scope from "effect/Scope"
import { AmqpPublisher } from "../../src/AmqpPublisher.js"
import { Fatal } from "../../src/Fatal.js"
import { AmqpSessions } from "../../src/internal/amqpSession.js"
import { type Outcome, type Publishable, Refusal } from "../../src/Message.js"
import { Settings, type SettingsShape } from "../../src/Settings.js"
import { eventually } from "../support/eventually.js"
import { freshVhost, privateRabbitMq } from "../support/Servers.js"
import { event } from "../support/scriptedAmqp.js"

const queue = "campaign_click_trigger"

interface PublisherOptions {
  readonly queues?: ReadonlyArray<string>
  readonly exchanges?: ReadonlyArray<string>
  readonly declareQueues?: boolean
  readonly queueType?: "classic" | "quorum"
  readonly confirmTimeout?: Duration.DurationInput
}

const publisherOn = (url: string, options: PublisherOptions = {}) => {
  const settings = {
    amqpUrl: Effect.succeed(Redacted.make(url)),
    routes: {
      resolve: () => Either.left(new Refusal({ reason: "not used", permanent: false })),
      sourceOf: () => undefined,
      channels: [],
      queues: options.queues ?? [queue],
      exchanges: options.exchanges ?? [],
      all: []
    },
    declareQueues: options.declareQueues ?? true,
    queueType: options.queueType ?? "classic",
    confirmTimeout: Duration.decode(options.confirmTimeout ?? "10 seconds")
  } as const satisfies Partial<SettingsShape>
  return Layer.build(
    AmqpPublisher.layer.pipe(
      // Only what the publisher reads.
      Layer.provide(Layer.succeed(Settings, settings as unknown as SettingsShape)),
      Layer.provide(Fatal.layer)
    )
  ).pipe(Effect.map(Context.get(AmqpPublisher)))
}

/** A publisher that is ready, on a vhost of its own. */
const readyPublisher = (options: PublisherOptions = {}) =>
  Effect.gen(function* () {
    const { api, url } = yield* freshVhost
    const publisher = yield* publisherOn(url, options)
    yield* ready(publisher)
    return { api, publisher }
  })

const ready = (publisher: AmqpPublisher["Type"], within: Duration.DurationInput = "10 seconds") =>
  Effect.timeout(publisher.awaitReady, within)

const events = (count: number, prefix = "e"): ReadonlyArray<Publishable> =>
  Array.from({ length: count }, (_, n) => event(`${prefix}-${n}`))

const tally = (outcomes: ReadonlyArray<Outcome>) => {
  const counts = { Confirmed: 0, Refused: 0, Unknown: 0, Held: 0 }
  for (const { _tag } of outcomes) counts[_tag]++
  return counts
}
const none = { Confirmed: 0, Refused: 0, Unknown: 0, Held: 0 }
const reasons = (outcomes: ReadonlyArray<Outcome>) =>
  outcomes.flatMap((outcome) => (outcome._tag === "Refused" ? [outcome.reason] : []))

describe("AmqpPublisher on a real broker", () => {
  it.scopedLive("a confirmed message is in the queue, with every property of the contract", () =>
    Effect.gen(function* () {
      const { api, publisher } = yield* readyPublisher()
      const outcomes = yield* publisher.publish([
        event("0190b3c8-7d0f-7000-8000-000000000001", "campaign/7", {
          type: "click.created",
          timestampSeconds: 1_764_500_000,
          headers: {
            aggregate_type: "campaign",
            aggregate_id: "7",
            channel: "campaign_click",
            deep: { list: [1, "two"] }
          },
          body: Buffer.from(`{"id":9007199254740993,"name":"Zoë"}`)
        })
      ])
      assert.deepStrictEqual(tally(outcomes), { ...none, Confirmed: 1 })
      const [got] = yield* api.get(queue, 1)
      assert.strictEqual(got?.payload, `{"id":9007199254740993,"name":"Zoë"}`)
      assert.deepStrictEqual(got?.properties, {
        message_id: "0190b3c8-7d0f-7000-8000-000000000001",
        type: "click.created",
        timestamp: 1_764_500_000,
        content_type: "application/json",
        app_id: "pg-listener",
        delivery_mode: 2,
        headers: {
          aggregate_type: "campaign",
          aggregate_id: "7",
          channel: "campaign_click",
          deep: { list: [1, "two"] }
        }
      })
    })
  )

  it.scopedLive("a batch larger than the channel's buffer is fed as it drains, and one key keeps its order", () =>
    Effect.gen(function* () {
      const { api, publisher } = yield* readyPublisher()
      const keyed = Array.from({ length: 50 }, (_, n) => event(`k-${n}`, "k", { body: Buffer.from(`${n}`) }))
      const outcomes = yield* publisher.publish([...keyed, ...events(6000)])
      assert.deepStrictEqual(tally(outcomes), { ...none, Confirmed: 6050 })
      const bodies = (yield* api.get(queue, 6050)).map(({ payload }) => payload).filter((body) => body !== "{}")
      assert.deepStrictEqual(
        bodies,
        Array.from({ length: 50 }, (_, n) => `${n}`)
      )
    })
  )

  it.scopedLive("an unroutable message is refused and says where it wanted to go; its neighbours arrive", () =>
    Effect.gen(function* () {
      const { api, publisher } = yield* readyPublisher({ exchanges: ["unbound"] })
      yield* api.declareExchange("unbound", "topic")
      const outcomes = yield* publisher.publish([
        event("a"),
        event("b", undefined, { routingKey: "no_such_queue" }),
        event("c", undefined, { exchange: "unbound", routingKey: "click.created" }),
        event("d")
      ])
      assert.deepStrictEqual(tally(outcomes), { ...none, Confirmed: 2, Refused: 2 })
      assert.deepStrictEqual(reasons(outcomes), [
        "unroutable: no queue is bound for exchange '' and routing key 'no_such_queue' (312 NO_ROUTE)",
        "unroutable: no queue is bound for exchange 'unbound' and routing key 'click.created' (312 NO_ROUTE)"
      ])
    })
  )

  it.scopedLive("what a full queue rejects is refused", () =>
    Effect.gen(function* () {
      const { api, publisher } = yield* readyPublisher()
      yield* api.declareQueue("tiny", { "x-max-length": 1, "x-overflow": "reject-publish" })
      const toTiny = (id: string) => event(id, undefined, { routingKey: "tiny" })
      assert.deepStrictEqual(tally(yield* publisher.publish([toTiny("a")])), { ...none, Confirmed: 1 })
      const outcomes = yield* publisher.publish([toTiny("b"), event("c")])
      assert.deepStrictEqual(tally(outcomes), { ...none, Confirmed: 1, Refused: 1 })
      assert.deepStrictEqual(reasons(outcomes), ["nacked by the broker (queue full?)"])
    })
  )

  it.scopedLive("what AMQP can't carry is refused; its neighbours arrive", () =>
    Effect.gen(function* () {
      const { publisher } = yield* readyPublisher()
      const outcomes = yield* publisher.publish([
        event("a"),
        event("b", undefined, { headers: { big: "x".repeat(70_000) } }),
        event("c", undefined, { routingKey: "k".repeat(256) }),
        event("d", undefined, { headers: { ["k".repeat(256)]: 1 } }),
        event("e")
      ])
      assert.deepStrictEqual(tally(outcomes), { ...none, Confirmed: 2, Refused: 3 })
      for (const reason of reasons(outcomes)) assert.match(reason, /^can't be encoded for AMQP: /)
      assert.deepStrictEqual(tally(yield* publisher.publish(events(10))), { ...none, Confirmed: 10 })
    })
  )

  it.scopedLive("a missing exchange among 100 good messages costs only the one, and the reason names it", () =>
    Effect.gen(function* () {
      const { publisher } = yield* readyPublisher()
      const good = events(100)
      const bad = event("bad", undefined, { exchange: "no_such_exchange" })
      const outcomes = yield* publisher.publish([...good.slice(0, 50), bad, ...good.slice(50)])
      assert.deepStrictEqual(tally(outcomes), { ...none, Confirmed: 100, Refused: 1 })
      assert.match(reasons(outcomes)[0] ?? "", /^404 NOT_FOUND - no exchange 'no_such_exchange' in vhost 'test_/)
    })
  )

  it.scopedLive("the culprits of one batch cost a batch beside it nothing", () =>
    Effect.gen(function* () {
      const { publisher } = yield* readyPublisher()
      const culprits = Array.from({ length: 5 }, (_, n) => event(`bad-${n}`, undefined, { exchange: `missing_${n}` }))
      const [innocent, guilty] = yield* Effect.all(
        [
          publisher.publish(events(200, "a")),
          publisher.publish([...events(100, "b"), ...culprits, ...events(95, "c")])
        ],
        { concurrency: 2 }
      )
      assert.deepStrictEqual(tally(innocent), { ...none, Confirmed: 200 })
      assert.deepStrictEqual(tally(guilty), { ...none, Confirmed: 195, Refused: 5 })
      assert.isTrue((yield* publisher.status).connected)
    })
  )

  it.scopedLive("an exchange that was missing works from the moment it is there", () =>
    Effect.gen(function* () {
      const { api, publisher } = yield* readyPublisher({ exchanges: ["late"] })
      const batch = [event("a", undefined, { exchange: "late", routingKey: "x" }), event("b")]
      assert.deepStrictEqual(tally(yield* publisher.publish(batch)), { ...none, Confirmed: 1, Refused: 1 })
      yield* api.declareExchange("late", "fanout")
      yield* api.bind("late", queue, "")
      assert.deepStrictEqual(tally(yield* publisher.publish(batch)), { ...none, Confirmed: 2 })
    })
  )

  it.scopedLive("missing queues are declared durable in the wanted type; existing ones are left as they are", () =>
    Effect.gen(function* () {
      const { api, url } = yield* freshVhost
      yield* api.declareQueue("theirs", { "x-max-length": 5 })
      yield* ready(yield* publisherOn(url, { queues: ["theirs", "ours"], queueType: "quorum" }))
      const ours = yield* api.queue("ours")
      assert.deepStrictEqual([ours.durable, ours.type], [true, "quorum"])
      assert.strictEqual((yield* api.queue("theirs")).type, "classic")
    })
  )

  it.scopedLive("a queue that was deleted costs one refusal, and is there again for the next batch", () =>
    Effect.gen(function* () {
      const { api, publisher } = yield* readyPublisher()
      yield* api.deleteQueue(queue)
      assert.deepStrictEqual(tally(yield* publisher.publish([event("a")])), { ...none, Refused: 1 })
      assert.deepStrictEqual(tally(yield* publisher.publish([event("a")])), { ...none, Confirmed: 1 })
      assert.isTrue((yield* api.queue(queue)).durable)
    })
  )

  it.scopedLive("no permission to write is refused in the broker's words, and the connection lives on", () =>
    Effect.gen(function* () {
      const { api, publisher } = yield* readyPublisher({ exchanges: ["theirs"] })
      yield* api.declareExchange("theirs", "fanout")
      yield* api.bind("theirs", queue, "")
      yield* api.setPermissions({ configure: ".*", write: "^amq\\.default$", read: ".*" })
      const outcomes = yield* publisher.publish([event("a"), event("b", undefined, { exchange: "theirs" }), event("c")])
      assert.deepStrictEqual(tally(outcomes), { ...none, Confirmed: 2, Refused: 1 })
      assert.match(reasons(outcomes)[0] ?? "", /^403 ACCESS_REFUSED - access to exchange 'theirs'/)
      assert.isTrue((yield* publisher.status).connected)
    })
  )

  it.scopedLive("a vhost that does not exist: the reason says so, without the password", () =>
    Effect.gen(function* () {
      const { url } = yield* freshVhost
      const { open } = yield* AmqpSessions
      const error = yield* Effect.flip(Effect.scoped(open(`${url}_not`, () => {})))
      assert.strictEqual(
        error.message,
        "AMQP connect: the broker refuses the vhost: it does not exist, or this user may not use it"
      )
    }).pipe(Effect.provide(AmqpSessions.layer))
  )

  it.scopedLive("an operator closes the connection: ready again within seconds", () =>
    Effect.gen(function* () {
      const { api, publisher } = yield* readyPublisher()
      const [connection] = yield* eventually("the connection shows up", api.connections, (all) => all.length > 0)
      const lost = yield* eventually("the connection is lost", publisher.status, (now) => !now.connected).pipe(
        Effect.fork
      )
      yield* api.closeConnection(connection?.name ?? "")
      yield* Fiber.join(lost)
      yield* ready(publisher)
      assert.deepStrictEqual(tally(yield* publisher.publish(events(10))), { ...none, Confirmed: 10 })
    })
  )
})

describe("AmqpPublisher on a broker that breaks", () => {
  it.scopedLive(
    "killed in the middle of a batch: nobody is refused, nothing confirmed is lost, and the rest goes out later",
    () =>
      Effect.gen(function* () {
        const broker = yield* privateRabbitMq()
        const publisher = yield* publisherOn(broker.url)
        yield* ready(publisher)
        yield* publisher.publish(events(100, "before"))
        const batch = events(50_000)
        const publishing = yield* publisher.publish(batch).pipe(Effect.uninterruptible, Effect.fork)
        yield* broker.kill9
        const outcomes = yield* Fiber.join(publishing)
        const counts = tally(outcomes)
        assert.strictEqual(counts.Refused, 0)
        assert.isAbove(counts.Unknown, 0)
        assert.isAbove(counts.Held, 0)
        yield* broker.start
        yield* ready(publisher, "40 seconds")
        const rest = batch.filter((_, n) => outcomes[n]?._tag !== "Confirmed").slice(0, 1000)
        assert.deepStrictEqual(tally(yield* publisher.publish(rest)), { ...none, Confirmed: rest.length })
        const { messages } = yield* eventually(
          "the messages are counted",
          broker.api.queue(queue),
          (now) => now.messages >= 100 + counts.Confirmed + rest.length
        )
        assert.isAtLeast(messages, 100 + counts.Confirmed + rest.length)
      })
  )

  it.scopedLive("down at the start: not connected, and ready once it is up", () =>
    Effect.gen(function* () {
      const broker = yield* privateRabbitMq()
      yield* broker.kill9
      const publisher = yield* publisherOn(broker.url)
      assert.deepStrictEqual(tally(yield* publisher.publish(events(2))), { ...none, Unknown: 2 })
      yield* broker.start
      yield* ready(publisher, "40 seconds")
      assert.deepStrictEqual(tally(yield* publisher.publish(events(2))), { ...none, Confirmed: 2 })
    })
  )

  it.scopedLive("out of memory: blocked with its reason, and the same session goes on when the alarm is over", () =>
    Effect.gen(function* () {
      const broker = yield* privateRabbitMq()
      const publisher = yield* publisherOn(broker.url, { confirmTimeout: "60 seconds" })
      yield* ready(publisher)
      yield* broker.setMemoryAlarm
      const waiting = yield* publisher.publish(events(1)).pipe(Effect.fork)
      const status = yield* eventually("the publisher is blocked", publisher.status, (now) => now.blocked)
      assert.match(status.blockedReason ?? "", /memory/)
      assert.isTrue(status.connected)
      yield* broker.clearMemoryAlarm
      assert.deepStrictEqual(tally(yield* Fiber.join(waiting)), { ...none, Confirmed: 1 })
      yield* ready(publisher)
      assert.isFalse((yield* publisher.status).blocked)
    })
  )

  it.scopedLive(
    "out of memory for longer than the confirm time-out: unknown, the session stays, and later batches arrive",
    () =>
      Effect.gen(function* () {
        const broker = yield* privateRabbitMq()
        const publisher = yield* publisherOn(broker.url, { confirmTimeout: "1 second" })
        yield* ready(publisher)
        yield* broker.setMemoryAlarm
        const blocked = yield* eventually("the publisher is blocked", publisher.status, (now) => now.blocked).pipe(
          Effect.fork
        )
        assert.deepStrictEqual(tally(yield* publisher.publish(events(3))), { ...none, Unknown: 3 })
        yield* Fiber.join(blocked)
        const isReady = yield* Deferred.make<void>()
        yield* publisher.awaitReady.pipe(Effect.zipRight(Deferred.succeed(isReady, undefined)), Effect.fork)
        assert.isTrue((yield* publisher.status).connected)
        assert.isFalse(yield* Deferred.isDone(isReady))
        yield* broker.clearMemoryAlarm
        yield* Deferred.await(isReady)
        assert.deepStrictEqual(tally(yield* publisher.publish(events(3))), { ...none, Confirmed: 3 })
      })
  )

  it.scopedLive("closed by an operator with messages in flight: they are unknown, not refused", () =>
    Effect.gen(function* () {
      const broker = yield* privateRabbitMq()
      const publisher = yield* publisherOn(broker.url)
      yield* ready(publisher)
      const [connection] = yield* eventually("the connection shows up", broker.api.connections, (all) => all.length > 0)
      // An alarm keeps the messages in flight for as long as it takes.
      yield* broker.setMemoryAlarm
      const publishing = yield* publisher.publish(events(3)).pipe(Effect.fork)
      yield* eventually("the publisher is blocked", publisher.status, (now) => now.blocked)
      yield* broker.api.closeConnection(connection?.name ?? "")
      const outcomes = yield* Fiber.join(publishing)
      assert.deepStrictEqual(tally(outcomes), { ...none, Unknown: 3 })
      const [first] = outcomes
      assert.match(first?._tag === "Unknown" ? first.reason : "", /^connection lost: 320 CONNECTION_FORCED/)
    })
  )

  it.scopedLive("frozen: unknown within the confirm time-out, ready again once it thaws", () =>
    Effect.gen(function* () {
      const broker = yield* privateRabbitMq()
      const publisher = yield* publisherOn(broker.url, { confirmTimeout: "1 second" })
      yield* ready(publisher)
      yield* broker.pause
      const [took, outcomes] = yield* publisher.publish(events(500)).pipe(Effect.uninterruptible, Effect.timed)
      assert.deepStrictEqual(tally(outcomes), { ...none, Unknown: 500 })
      assert.isBelow(Duration.toMillis(took), 2500)
      yield* broker.resume
      yield* ready(publisher, "30 seconds")
      assert.deepStrictEqual(tally(yield* publisher.publish(events(500))), { ...none, Confirmed: 500 })
    })
  )

  it.scopedLive("frozen when the service stops: the goodbye is not waited for", () =>
    Effect.gen(function* () {
      const broker = yield* privateRabbitMq()
      const scope = yield* Scope.make()
      yield* publisherOn(broker.url).pipe(
        Effect.flatMap((publisher) => ready(publisher)),
        Scope.extend(scope)
      )
      yield* broker.pause
      const [took] = yield* Effect.timed(Scope.close(scope, Exit.void))
      assert.isBelow(Duration.toMillis(took), 3000)
      yield* broker.resume
    })
  )
})
