/**
 * The LISTEN side: one dedicated session on every channel, reconnected for as long as it makes sense.
 */
import * as Context from "effect/Context"
import * as Data from "effect/Data"
import * as DateTime from "effect/DateTime"
import * as Deferred from "effect/Deferred"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Layer from "effect/Layer"
import * as Option from "effect/Option"
import type * as Scope from "effect/Scope"
import * as Stream from "effect/Stream"
import { ListenError, ListenExhausted } from "./Errors.js"
import { type ListenSession, type OpenListenSession, openListenSession } from "./internal/listenSession.js"
import { monotonicMillis } from "./internal/monotonic.js"
import { makeNotificationBuffer, type NotificationBuffer } from "./internal/notificationBuffer.js"
import { PgConnector } from "./PgConnector.js"
import { reconnectLimit, reconnectLimited } from "./Reconnect.js"
import { Settings } from "./Settings.js"

/**
 * What the session tells.
 *
 * - `Listening`: connected, proven to receive, and registered on every channel. The first element after each connect.
 *   `disconnectedAt` (epoch milliseconds) is set when an earlier session was lost: notifications since then are gone.
 * - `Notification`: one NOTIFY. The payload may be empty.
 * - `HandedOver`: a replica that publishes live notifications stops. What came before this it publishes itself; what comes
 *   after is its successor's. PostgreSQL gives all sessions the same order, so all replicas see it at the same place.
 */
export type ListenEvent = Data.TaggedEnum<{
  Listening: { readonly backendPid: number; readonly disconnectedAt: number | undefined }
  Notification: { readonly channel: string; readonly payload: string }
  HandedOver: { readonly ourselves: boolean }
}>
export const ListenEvent = Data.taggedEnum<ListenEvent>()

/**
 * `disconnectedAt` in epoch milliseconds: when the session was lost (for one that stopped answering: its last answer);
 * `undefined` while connected or never connected.
 */
export interface ListenStatus {
  readonly connected: boolean
  readonly disconnectedAt: number | undefined
}

export class PgListen extends Context.Tag("pg-listener/PgListen")<
  PgListen,
  {
    /** Runs the session while it is consumed; fails only when the reconnect schedule is exhausted. To be run once. */
    readonly events: Stream.Stream<ListenEvent, ListenExhausted>
    readonly status: Effect.Effect<ListenStatus>
    /**
     * Whether this process is the one that publishes live notifications: holds, or just got, the session advisory lock
     * on the LISTEN connection. False while disconnected. Cheap when held; a try for a lock held elsewhere is made at
     * most once a second.
     */
    readonly isLiveOwner: Effect.Effect<boolean>
    /**
     * Ends the intake: hands the live lock on when it is held, and ends `events` once everything up to there has been
     * consumed. Bounded; at once while disconnected.
     */
    readonly stop: Effect.Effect<void>
  }
>() {
  static readonly layer: Layer.Layer<PgListen, never, Settings | PgConnector> = Layer.effect(
    this,
    Effect.gen(function* () {
      const settings = yield* Settings
      const connector = yield* PgConnector
      const channels = [...new Set([...settings.routes.channels, settings.wakeChannel])]
      const { heartbeatInterval, heartbeatTimeout, schema } = settings
      const open = openListenSession({ connector, channels, schema, answerTimeout: heartbeatTimeout })
      return makePgListen({ open, channels, heartbeatInterval, heartbeatTimeout })
    })
  )
}

export interface PgListenOptions {
  readonly open: OpenListenSession
  readonly channels: ReadonlyArray<string>
  readonly heartbeatInterval: Duration.Duration
  readonly heartbeatTimeout: Duration.Duration
}

/** A session in use, and what is known of the live owner's lock on it. */
interface Current {
  readonly session: ListenSession
  readonly scope: Scope.Scope
  readonly buffer: NotificationBuffer
  readonly handedOver: Deferred.Deferred<void>
  held: boolean
  trying: Fiber.RuntimeFiber<void> | undefined
  nextTryAtMillis: number
}

/** A lock held by another process is asked for at most once in this time. */
const lockTryMillis = 1000

/** For each of the steps of a stop: the server's answers, and the consumer's end. */
const stopStepTimeout = Duration.seconds(2)

const iso = (epochMillis: number): string => DateTime.formatIso(DateTime.unsafeMake(epochMillis))

/** The service over any way to open a session; {@link PgListen.layer} opens real ones. */
export const makePgListen = (options: PgListenOptions): PgListen["Type"] => {
  const { channels, heartbeatInterval, heartbeatTimeout } = options
  let current: Current | undefined
  let disconnectedAt: number | undefined
  let failuresInARow = 0
  let stopping = false
  let lastWhy: ListenError["why"] | undefined

  /**
   * Waits for an answer as long as the heartbeat's time-out allows. An answer comes after the notifications that were
   * sent before it: while those still come in, or wait because we stopped reading, its lateness says nothing about
   * the server.
   */
  const answered = <A>(buffer: NotificationBuffer, ask: Effect.Effect<A, ListenError>): Effect.Effect<A, ListenError> =>
    Effect.gen(function* () {
      const asking = yield* Effect.fork(ask)
      while (true) {
        const before = buffer.activity()
        const answer = yield* Effect.timeoutOption(Fiber.join(asking), heartbeatTimeout)
        if (Option.isSome(answer)) return answer.value
        if (buffer.activity() === before && !buffer.stopped()) {
          return yield* new ListenError({
            why: "unresponsive",
            reason: `the heartbeat was not answered within ${Duration.format(heartbeatTimeout)}`
          })
        }
      }
    })

  const beat = (session: ListenSession, buffer: NotificationBuffer): Effect.Effect<void, ListenError> =>
    Effect.gen(function* () {
      const registered = new Set(yield* answered(buffer, session.registeredChannels))
      const missing = channels.filter((channel) => !registered.has(channel))
      if (missing.length > 0) {
        return yield* new ListenError({
          why: "channels-lost",
          reason: `the session is no longer registered on ${missing.join(", ")}; a pooler or a DISCARD ALL took it off`
        })
      }
    })

  const tryLock = (own: Current): Effect.Effect<void> =>
    Effect.gen(function* () {
      own.nextTryAtMillis = (yield* monotonicMillis) + lockTryMillis
      own.trying = yield* own.session.tryLock.pipe(
        Effect.catchAll(() => Effect.succeed(false)),
        Effect.flatMap((held) =>
          Effect.sync(() => {
            own.held = held
          })
        ),
        Effect.ensuring(
          Effect.sync(() => {
            own.trying = undefined
          })
        ),
        Effect.forkIn(own.scope)
      )
    })

  const sayListening = (own: Current, since: number | undefined, now: number): Effect.Effect<void> =>
    Effect.logInfo("listening").pipe(
      Effect.annotateLogs({ backendPid: own.session.backendPid, channels: channels.join(",") }),
      Effect.zipRight(
        since === undefined
          ? Effect.void
          : Effect.logWarning(
              "notifications may have been lost: PostgreSQL keeps none for a session that is gone"
            ).pipe(Effect.annotateLogs({ gapStart: iso(since), gapEnd: iso(now), gapMillis: now - since }))
      )
    )

  const sayFailed = (error: ListenError): Effect.Effect<void> =>
    Effect.suspend(() => {
      failuresInARow += 1
      if (failuresInARow > reconnectLimit) return Effect.void
      const isNews = failuresInARow === 1 || failuresInARow % 10 === 0 || error.why !== lastWhy
      lastWhy = error.why
      const say = isNews ? Effect.logWarning : Effect.logDebug
      return say(error.message).pipe(Effect.annotateLogs({ why: error.why, retry: failuresInARow }))
    })

  const session: Stream.Stream<ListenEvent, ListenError> = Stream.unwrapScoped(
    Effect.gen(function* () {
      const scope = yield* Effect.scope
      const clock = yield* Effect.clock
      let own: Current | undefined
      let lost: ListenError | undefined
      let lastAnswerAt = clock.unsafeCurrentTimeMillis()
      const buffer = makeNotificationBuffer(() => own?.session.resumeReading())
      const handedOver = yield* Deferred.make<void>()

      const lose = (error: ListenError, atMillis: number): void => {
        buffer.fail(error)
        lost ??= error
        if (own === undefined || current !== own) return
        current = undefined
        disconnectedAt = atMillis
      }
      const opened = yield* options.open({
        onNotification: buffer.offer,
        onHandOver: ({ ourselves }) => {
          buffer.handOver({ ourselves })
          if (!ourselves) return
          if (stopping) buffer.end()
          Deferred.unsafeDone(handedOver, Effect.void)
        },
        onLost: (error) => lose(error, clock.unsafeCurrentTimeMillis())
      })
      if (lost !== undefined) return yield* Effect.fail(lost)
      own = { session: opened, scope, buffer, handedOver, held: false, trying: undefined, nextTryAtMillis: 0 }
      const now = clock.unsafeCurrentTimeMillis()
      const since = disconnectedAt
      current = own
      disconnectedAt = undefined
      failuresInARow = 0
      yield* Effect.addFinalizer(() =>
        Effect.sync(() =>
          lose(new ListenError({ why: "dropped", reason: "closed by us" }), clock.unsafeCurrentTimeMillis())
        )
      )

      // A session that stopped answering was of no use since its last answer, and that is where the gap begins.
      yield* beat(opened, buffer).pipe(
        Effect.zipRight(
          Effect.sync(() => {
            lastAnswerAt = clock.unsafeCurrentTimeMillis()
          })
        ),
        Effect.delay(heartbeatInterval),
        Effect.forever,
        Effect.catchAll((error) => Effect.sync(() => lose(error, lastAnswerAt))),
        Effect.forkScoped
      )
      // At once and not at the first notification: in a flood the answer would have to wait behind it.
      yield* tryLock(own)
      yield* sayListening(own, since, now)
      return Stream.concat(
        Stream.succeed(ListenEvent.Listening({ backendPid: opened.backendPid, disconnectedAt: since })),
        Stream.repeatEffectChunkOption(buffer.take)
      )
    })
  )

  return {
    events: session.pipe(
      Stream.tapError(sayFailed),
      Stream.retry(reconnectLimited),
      Stream.mapError((last) => new ListenExhausted({ retries: failuresInARow - 1, last }))
    ),
    status: Effect.sync(() => ({ connected: current !== undefined, disconnectedAt })),
    isLiveOwner: Effect.gen(function* () {
      const own = current
      if (own === undefined) return false
      if (own.held) return true
      if (own.trying === undefined && (yield* monotonicMillis) >= own.nextTryAtMillis) yield* tryLock(own)
      if (own.trying !== undefined) yield* Effect.timeoutOption(Fiber.await(own.trying), heartbeatTimeout)
      return current === own && own.held
    }),
    stop: Effect.gen(function* () {
      stopping = true
      const own = current
      if (own === undefined) return
      const bounded = <A, E>(step: Effect.Effect<A, E>) =>
        step.pipe(Effect.interruptible, Effect.timeoutOption(stopStepTimeout), Effect.ignore)
      if (own.held) {
        yield* bounded(Effect.zipRight(own.session.announceHandOver, Deferred.await(own.handedOver)))
      }
      own.buffer.end()
      if (own.held) yield* bounded(own.session.releaseLock)
      yield* bounded(own.buffer.drained)
    })
  }
}
