/**
 * Live notifications that another replica is to publish, kept until it is certain that one does.
 *
 * Only the holder of the live lock publishes. A replica that does not hold it asks for it at most once a second, so
 * the holder may have died since the last answer. What arrives in between waits here: when the next try finds the lock
 * held elsewhere, its holder was alive after the notification and has received it too; when the try gets the lock, the
 * notifications are ours. A hand-over may so publish one of the last second twice, and loses none.
 */
import * as Clock from "effect/Clock"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Schedule from "effect/Schedule"
import type { LiveNotification } from "./LiveEvents.js"
import type { PgListen } from "./PgListen.js"

/** Longer than the pause between two tries for the lock, so that each look makes one. */
const LOOK_INTERVAL = Duration.millis(1_100)

/** The oldest give way: a flood that fills this in a second has a living publisher, or none for long. */
const CAPACITY = 10_000

export interface LiveStandby {
  readonly add: (notifications: ReadonlyArray<LiveNotification>) => Effect.Effect<void>
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

  const takeAll = Effect.sync(() => {
    const all = waiting.map(({ notification }) => notification)
    waiting = []
    return all
  })

  const look = Effect.gen(function* () {
    if (waiting.length === 0) return
    const askedAtMillis = yield* Clock.currentTimeMillis
    if (yield* listen.isLiveOwner) return yield* Effect.flatMap(takeAll, publish)
    // Without a session nobody was asked, and nothing is known.
    const { connected } = yield* listen.status
    if (connected) waiting = waiting.filter(({ atMillis }) => atMillis >= askedAtMillis)
  })

  return {
    add: (notifications) =>
      Effect.map(Clock.currentTimeMillis, (atMillis) => {
        for (const notification of notifications) waiting.push({ notification, atMillis })
        if (waiting.length > CAPACITY) waiting = waiting.slice(-CAPACITY)
      }),
    takeAll,
    run: look.pipe(Effect.repeat(Schedule.spaced(LOOK_INTERVAL)), Effect.asVoid)
  }
}
