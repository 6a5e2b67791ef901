/**
 * Live notifications that another replica is to publish, kept until it is certain that one does.
 *
 * Only the holder of the live lock publishes. A replica that does not hold it asks for it at most once a second, so
 * the holder may have died since the last answer. What arrives in between waits here: when the next try finds the lock
 * held elsewhere, its holder was alive after the notification and has received it too; when the try gets the lock, the
 * notifications are ours.
 *
 * A holder that stops in order says so in the stream of notifications itself, where every replica sees it at the same
 * place: what waits from before is the old holder's, what comes after is the new one's, each exactly once. Only after a
 * crash are notifications of the last second published twice, and under other message ids, since they have no row.
 */
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Schedule from "effect/Schedule"
import { monotonicMillis } from "./internal/monotonic.js"
import type { LiveNotification } from "./LiveEvents.js"
import type { PgListen } from "./PgListen.js"

/** Longer than the pause between two tries for the lock, so that each look makes one. */
const LOOK_INTERVAL = Duration.millis(1_100)

/** So long after a hand-over, a lock still held says nothing: it may be the old holder's, who publishes no more. */
const HAND_OVER_MILLIS = 5_000

/** The oldest give way: a flood that fills this in a second has a living publisher, or none for long. */
const CAPACITY = 10_000

export interface LiveStandby {
  readonly add: (notifications: ReadonlyArray<LiveNotification>) => Effect.Effect<void>
  /** A holder hands the lock on from here. */
  readonly handedOver: Effect.Effect<void>
  /** Everything that waits, oldest first; empties the standby. */
  readonly takeAll: Effect.Effect<ReadonlyArray<LiveNotification>>
  /** Decides about what waits, again and again. */
  readonly run: Effect.Effect<void>
}

export const make = (
  listen: Pick<PgListen["Type"], "isLiveOwner" | "status">,
  publish: (notifications: ReadonlyArray<LiveNotification>) => Effect.Effect<void>
): LiveStandby => {
  let waiting: Array<{ readonly notification: LiveNotification; readonly atMillis: number }> = []

  let handedOverAtMillis = Number.NEGATIVE_INFINITY

  const takeAll = Effect.sync(() => {
    const all = waiting.map(({ notification }) => notification)
    waiting = []
    return all
  })

  const look = Effect.gen(function* () {
    if (waiting.length === 0) return
    const askedAtMillis = yield* monotonicMillis
    if (yield* listen.isLiveOwner) return yield* Effect.flatMap(takeAll, publish)
    // Without a session nobody was asked, and nothing is known.
    const { connected } = yield* listen.status
    if (connected && askedAtMillis - handedOverAtMillis > HAND_OVER_MILLIS)
      waiting = waiting.filter(({ atMillis }) => atMillis >= askedAtMillis)
  })

  return {
    add: (notifications) =>
      Effect.map(monotonicMillis, (atMillis) => {
        for (const notification of notifications) waiting.push({ notification, atMillis })
        if (waiting.length > CAPACITY) waiting = waiting.slice(-CAPACITY)
      }),
    handedOver: Effect.map(monotonicMillis, (atMillis) => {
      handedOverAtMillis = atMillis
      waiting = []
    }),
    takeAll,
    run: look.pipe(Effect.repeat(Schedule.spaced(LOOK_INTERVAL)), Effect.asVoid)
  }
}
