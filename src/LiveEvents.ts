/**
 * Notifications that are events of their own (design, promise 2).
 *
 * A notification with a row of the same channel and content in `event_outbox` is left to the relay. Any other is
 * published from its own payload; what can't be published now, or at all, is kept in `event_outbox`.
 */
import * as Chunk from "effect/Chunk"
import * as Clock from "effect/Clock"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Either from "effect/Either"
import * as Queue from "effect/Queue"
import * as Schedule from "effect/Schedule"
import type * as Scope from "effect/Scope"
import { AmqpPublisher } from "./AmqpPublisher.js"
import type { DatabaseError } from "./Errors.js"
import { undisturbed } from "./internal/undisturbed.js"
import type { Outcome, Publishable } from "./Message.js"
import * as Metrics from "./Metrics.js"
import { type LiveRow, Outbox } from "./Outbox.js"

/** A notification on a routed channel, as received. The id becomes the message id, whichever way it travels. */
export interface LiveNotification {
  readonly id: string
  readonly channel: string
  readonly payload: string
  readonly receivedAtSeconds: number
}

/** The notification as a message; or why its payload can be none (not JSON). */
export type EncodeLive = (notification: LiveNotification) => Either.Either<Publishable, { readonly reason: string }>

/** How many notifications wait for the broker in memory before the rest goes straight to the table. */
const BUFFER_SIZE = 1_000
const BATCH_SIZE = 200
const RETRY_INTERVAL = Duration.seconds(1)

export interface LiveEvents {
  /** Takes notifications over. Past the buffer's size it waits until the surplus is in the table. */
  readonly offer: (notifications: ReadonlyArray<LiveNotification>) => Effect.Effect<void>
  /** Publishes what was offered, for ever. When interrupted it puts what is left into the table. */
  readonly run: Effect.Effect<never>
  /** From now on a database that can't be reached is not waited for: the process is on its way down. */
  readonly stop: Effect.Effect<void>
}

export const make = (encode: EncodeLive): Effect.Effect<LiveEvents, never, Outbox | AmqpPublisher | Scope.Scope> =>
  Effect.gen(function* () {
    const outbox = yield* Outbox
    const publisher = yield* AmqpPublisher
    const buffer = yield* Queue.dropping<LiveNotification>(BUFFER_SIZE)

    let stopping = false

    // The database may be away for a moment; a live event has no other home, so it is tried until it is in. Only a
    // process that is going down gives up, and says what that cost.
    const persist = <A>(what: string, events: number, fallback: A, effect: Effect.Effect<A, DatabaseError>) =>
      effect.pipe(
        Effect.tapError((error) => Effect.logWarning(`${what} failed: ${error.message}`)),
        Effect.retry(Schedule.spaced(RETRY_INTERVAL).pipe(Schedule.whileInput(() => !stopping))),
        Effect.catchAll((error) =>
          Effect.as(
            Effect.logError(`live events are lost: stopped while the database was away (${error.message})`).pipe(
              Effect.annotateLogs({ events })
            ),
            fallback
          )
        )
      )

    const keep = (rows: ReadonlyArray<LiveRow>) =>
      rows.length === 0
        ? Effect.void
        : persist("keeping live events in event_outbox", rows.length, undefined, outbox.insertLive(rows))

    /** Leaves out those that a row delivers. */
    const withoutRows = Effect.fn("LiveEvents.withoutRows")(function* (all: ReadonlyArray<LiveNotification>) {
      const unmatched: ReadonlyArray<boolean> = []
      const matched = yield* persist("the look-up of live events", all.length, unmatched, outbox.matchRows(all))
      const rest = all.filter((_, index) => matched[index] !== true)
      yield* Metrics.countLiveEvents("row", all.length - rest.length)
      return rest
    })

    const split = (notifications: ReadonlyArray<LiveNotification>) => {
      const messages: Array<{ readonly notification: LiveNotification; readonly publishable: Publishable }> = []
      const dead: Array<LiveRow> = []
      for (const notification of notifications) {
        const encoded = encode(notification)
        if (Either.isRight(encoded)) messages.push({ notification, publishable: encoded.right })
        else dead.push({ kind: "dead", ...identity(notification), reason: encoded.left.reason })
      }
      return { messages, dead }
    }

    const store = Effect.fn("LiveEvents.store")(function* (kept: ReadonlyArray<LiveRow>, dead: ReadonlyArray<LiveRow>) {
      yield* keep([...kept, ...dead])
      yield* Metrics.countLiveEvents("kept", kept.length)
      yield* Metrics.countLiveEvents("dead", dead.length)
      for (const row of dead) {
        if (row.kind !== "dead") continue
        yield* Effect.logError(`live event became a dead letter: ${row.reason}`).pipe(annotated(row))
      }
    })

    /** Straight to the table, as pending rows: for what the broker can't take now. */
    const toTable = Effect.fn("LiveEvents.toTable")(function* (all: ReadonlyArray<LiveNotification>) {
      const { dead, messages } = split(yield* withoutRows(all))
      yield* store(
        messages.map(({ notification }) => pending(notification, undefined)),
        dead
      )
    })

    const publishBatch = Effect.fn("LiveEvents.publish")(function* (all: ReadonlyArray<LiveNotification>) {
      const { dead, messages } = split(yield* withoutRows(all))
      const outcomes = yield* publisher.publish(messages.map(({ publishable }) => publishable))
      const kept: Array<LiveRow> = []
      messages.forEach(({ notification }, index) => {
        const outcome = outcomes[index]
        if (outcome?._tag !== "Confirmed") kept.push(pending(notification, refusalOf(outcome)))
      })
      yield* Metrics.countLiveEvents("published", messages.length - kept.length)
      yield* store(kept, dead)
      for (const row of kept) {
        if (row.kind !== "pending" || row.refused === undefined) continue
        yield* Effect.logWarning(`live event refused, kept in event_outbox: ${row.refused}`).pipe(annotated(row))
      }
    })

    const handle = (all: ReadonlyArray<LiveNotification>) =>
      Effect.flatMap(publisher.status, (status) =>
        status.connected && !status.blocked ? publishBatch(all) : toTable(all)
      )

    const run = Queue.takeBetween(buffer, 1, BATCH_SIZE).pipe(
      Effect.interruptible,
      Effect.flatMap((chunk) => undisturbed(handle(Chunk.toReadonlyArray(chunk)))),
      // A chunk that was taken is handled: no interrupt fits between the two.
      Effect.uninterruptible,
      Effect.forever,
      Effect.onInterrupt(() =>
        Effect.flatMap(Queue.takeAll(buffer), (rest) =>
          Chunk.isEmpty(rest) ? Effect.void : toTable(Chunk.toReadonlyArray(rest))
        )
      )
    )

    const offer = Effect.fn("LiveEvents.offer")(function* (notifications: ReadonlyArray<LiveNotification>) {
      const surplus: Array<LiveNotification> = []
      for (const notification of notifications) {
        if (!Queue.unsafeOffer(buffer, notification)) surplus.push(notification)
      }
      if (surplus.length > 0) yield* toTable(surplus)
    })

    const stop = Effect.sync(() => {
      stopping = true
    })

    return { offer, run, stop }
  })

const identity = ({ channel, id, payload }: LiveNotification) => ({ channel, id, payload })

const pending = (notification: LiveNotification, refused: string | undefined): LiveRow => ({
  kind: "pending",
  ...identity(notification),
  refused
})

/**
 * Why the row has had an attempt already. A refusal for good is left to the relay, which makes a dead letter of the row
 * at once: so there is one place for that, and the payload stays the JSON that it is.
 */
const refusalOf = (outcome: Outcome | undefined): string | undefined =>
  outcome?._tag === "Refused" && !outcome.permanent ? outcome.reason : undefined

/** The keys that every line about an event has; a notification has no type, no aggregate, and one try. */
const annotated = ({ channel, id }: LiveRow) =>
  Effect.annotateLogs({ event_id: id, event_type: null, channel, aggregate_id: null, attempt: 1 })

/** Seconds since 1970 now, for a notification that has no `created_at`. */
export const nowSeconds: Effect.Effect<number> = Effect.map(Clock.currentTimeMillis, (millis) =>
  Math.floor(millis / 1000)
)
