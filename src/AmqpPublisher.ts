/**
 * The broker side: publish a batch, get one outcome per message.
 *
 * One supervised loop owns the connection: connect, look at queues and exchanges, be ready, and when the session is lost
 * connect again, for ever. Starting while the broker is down is normal.
 */
import * as Context from "effect/Context"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Either from "effect/Either"
import * as Layer from "effect/Layer"
import * as Redacted from "effect/Redacted"
import * as Stream from "effect/Stream"
import { AmqpError } from "./Errors.js"
import { type Fatal, supervised } from "./Fatal.js"
import { AmqpSessions } from "./internal/amqpSession.js"
import { addressOf } from "./internal/amqpWire.js"
import { linkWriters } from "./internal/otlpLinks.js"
import { MESSAGE_COUNT, rabbitSpan, spanNames } from "./internal/otlpNames.js"
import { publishBatch } from "./internal/publishBatch.js"
import { checkTopology, makeVanishedQueues } from "./internal/queues.js"
import { makeSharedSession, type SharedNews, type SharedSession } from "./internal/sharedSession.js"
import { Outcome, type Publishable } from "./Message.js"
import { reconnectForever } from "./Reconnect.js"
import { Settings } from "./Settings.js"

/** `blockedReason` is the broker's own word for why it takes no messages now (memory or disk alarm). */
export interface AmqpStatus {
  readonly connected: boolean
  readonly blocked: boolean
  readonly blockedReason: string | undefined
}

export class AmqpPublisher extends Context.Tag("pg-listener/AmqpPublisher")<
  AmqpPublisher,
  {
    /**
     * Publishes a batch and waits for the broker's word on each message; outcomes are in the order of the batch.
     *
     * Messages of one `orderKey` go out one after the other, each after the confirm of the one before it; all others
     * are pipelined. Never fails and always ends: after `PG_LISTENER_CONFIRM_TIMEOUT` without an answer a message is
     * `Unknown`. Must not be interrupted in the middle (the caller runs it undisturbed).
     */
    readonly publish: (batch: ReadonlyArray<Publishable>) => Effect.Effect<ReadonlyArray<Outcome>>
    /** Returns as soon as the session is connected and not blocked. */
    readonly awaitReady: Effect.Effect<void>
    readonly status: Effect.Effect<AmqpStatus>
  }
>() {
  /** On sessions opened elsewhere: a test scripts them. */
  static readonly layerOnSessions: Layer.Layer<AmqpPublisher, never, Settings | Fatal | AmqpSessions> = Layer.scoped(
    this,
    Effect.suspend(() => make)
  )
  static readonly layer: Layer.Layer<AmqpPublisher, never, Settings | Fatal> = Layer.provide(
    this.layerOnSessions,
    AmqpSessions.layer
  )
}

const make = Effect.gen(function* () {
  const settings = yield* Settings
  const sessions = yield* AmqpSessions
  const confirmTimeoutMillis = Duration.toMillis(settings.confirmTimeout)
  const ready = yield* Effect.makeLatch(false)
  const suspects = new Set<string>()
  const vanished = makeVanishedQueues(settings)
  let current: SharedSession | undefined
  let lastFailure: string | undefined

  const connect = Effect.gen(function* () {
    const url = yield* settings.amqpUrl.pipe(
      Effect.map(Redacted.value),
      Effect.mapError((error) => new AmqpError({ operation: "connect", reason: error.message }))
    )
    const shared = yield* makeSharedSession((onNews) => sessions.open(url, onNews))
    const missing = yield* checkTopology(shared.session, settings)
    yield* shared.openChannel
    yield* Effect.addFinalizer(() =>
      Effect.suspend(() => {
        current = undefined
        return ready.close
      })
    )
    suspects.clear()
    for (const exchange of missing) suspects.add(exchange)
    current = shared
    lastFailure = undefined
    yield* Effect.logInfo(`connected to RabbitMQ at ${addressOf(url)}`)
    if (shared.session.blockedReason() === undefined) yield* ready.open
    return shared
  })

  const heed = (shared: SharedSession, news: SharedNews): Effect.Effect<void, AmqpError> => {
    switch (news.kind) {
      case "blocked":
        return Effect.zipRight(ready.close, Effect.logWarning(`RabbitMQ takes no messages now: ${news.reason}`))
      case "unblocked":
        return Effect.zipRight(ready.open, Effect.logInfo("RabbitMQ takes messages again"))
      case "channel closed":
        return Effect.zipRight(
          Effect.logWarning(`RabbitMQ closed the channel, opening another: ${news.reason}`),
          shared.openChannel
        )
      case "lost":
        return Effect.fail(new AmqpError({ operation: "session", reason: news.reason }))
    }
  }
  /** Ends only with an error: the session's. */
  const watch = (shared: SharedSession) => Effect.forever(Effect.flatMap(shared.nextNews, (news) => heed(shared, news)))

  /** While the broker is down each attempt fails in the same way: said once, and again only when the reason changes. */
  const report = (error: AmqpError) => {
    if (error.operation === "session") return Effect.logWarning(`lost the connection to RabbitMQ: ${error.reason}`)
    const again = error.message === lastFailure
    lastFailure = error.message
    return again
      ? Effect.logDebug(`still not connected to RabbitMQ: ${error.message}`)
      : Effect.logWarning(`not connected to RabbitMQ, trying until it works: ${error.message}`)
  }

  // The first element says "connected", which starts the delays over.
  const life = Stream.unwrapScoped(
    Effect.map(connect, (shared) => Stream.concat(Stream.make("connected"), Stream.fromEffect(watch(shared))))
  )
  yield* supervised("amqp", life.pipe(Stream.tapError(report), Stream.retry(reconnectForever), Stream.runDrain))

  const publish = Effect.fn(
    spanNames.publish,
    rabbitSpan
  )(function* (batch: ReadonlyArray<Publishable>) {
    yield* Effect.annotateCurrentSpan(MESSAGE_COUNT, batch.length)
    yield* linkWriters(batch)
    const shared = current
    if (shared === undefined) return allUnknown(batch, "not connected")
    if (vanished.any()) yield* vanished.repair(shared.session)
    const channel = yield* Effect.either(shared.channel(settings.confirmTimeout))
    if (Either.isLeft(channel)) return allUnknown(batch, channel.left.message)
    return yield* publishBatch(batch, {
      channel: channel.right,
      openChannel: shared.session.openChannel,
      confirmTimeoutMillis,
      suspects,
      onUnroutable: vanished.note,
      // A blocked broker answers late by design; a silent one that is not blocked may be gone without a word.
      onStalled: () => {
        if (shared.session.blockedReason() === undefined) {
          shared.session.drop(`no confirm within ${confirmTimeoutMillis} ms`)
        }
      }
    })
  })

  return AmqpPublisher.of({
    publish,
    awaitReady: ready.await,
    status: Effect.sync(() => {
      const blockedReason = current?.session.blockedReason()
      return { connected: current !== undefined, blocked: blockedReason !== undefined, blockedReason }
    })
  })
})

const allUnknown = (batch: ReadonlyArray<Publishable>, reason: string): ReadonlyArray<Outcome> =>
  batch.map(() => Outcome.Unknown({ reason }))
