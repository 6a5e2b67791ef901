/**
 * The doorbell's switch: when many writers ring, ask them to stop, and look by ourselves instead (design, section 5a).
 *
 * A transaction that notifies takes, at its commit, a lock that the whole instance has once, so notifying commits go one
 * after another. The trigger therefore rings only while nobody asks for an advisory lock exclusively. Three modes:
 *
 * - **quiet**: the relay holds nothing, writers ring, a ring wakes a worker.
 * - **busy**: a session of ours asks for the lock. From that moment writers say nothing, whether it is granted or still waits
 *   for writers that have rung. Meanwhile we ring for ourselves every few milliseconds.
 * - **handing over**: the request is withdrawn and writers ring again. One that looked at the lock before may commit later
 *   and has rung nobody, so we go on ringing, at a slowing pace, until every transaction of that time has ended.
 *
 * A relay that dies, or loses the session, drops the lock with it: writers ring again, there is nothing to clean up. Several
 * replicas need no agreement: one that is busy silences the bell for all, and claims what the others were not told of.
 */
import type { SqlClient } from "@effect/sql/SqlClient"
import * as Context from "effect/Context"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Metric from "effect/Metric"
import type * as Scope from "effect/Scope"
import type { Database } from "./Database.js"
import type { DatabaseError } from "./Errors.js"
import { doorbellDatabase } from "./internal/doorbellSession.js"
import { monotonicMillisOf } from "./internal/monotonic.js"
import * as Metrics from "./Metrics.js"
import type { PgConnector } from "./PgConnector.js"
import type { Settings } from "./Settings.js"

export type DoorbellMode = "quiet" | "busy" | "handing over"

/** A session that asks writers to stop ringing, from its opening until its scope closes. */
export interface SilenceSession {
  /** Ends when the session is lost: writers ring again. */
  readonly lost: Effect.Effect<void>
}

/** What the switch asks the database. */
export class DoorbellDatabase extends Context.Tag("pg-listener/DoorbellDatabase")<
  DoorbellDatabase,
  {
    readonly silence: Effect.Effect<SilenceSession, DatabaseError, Scope.Scope>
    /** The first transaction id that nobody has yet: every transaction that may have kept silent is below it. */
    readonly nextTransaction: Effect.Effect<bigint, DatabaseError>
    /** The oldest transaction that is still open. */
    readonly oldestTransaction: Effect.Effect<bigint, DatabaseError>
  }
>() {
  static readonly layer: Layer.Layer<DoorbellDatabase, never, Settings | PgConnector | Database | SqlClient> =
    Layer.effect(
      this,
      Effect.suspend(() => doorbellDatabase)
    )
}

export interface DoorbellOptions {
  readonly database: DoorbellDatabase["Type"]
  readonly ring: Effect.Effect<void>
  /** Whether messages can go out now; while not, the relay is always quiet. */
  readonly canPublish: Effect.Effect<boolean>
  /** Rings per second from which writers are asked to stop; 0 for never. */
  readonly thresholdPerSecond: number
  readonly gap: Duration.Duration
}

export interface Doorbell {
  readonly mode: () => DoorbellMode
  /** Counts wake-ups by notification. Plain code, called for each chunk of notifications. */
  readonly noteRings: (rings: number) => void
  /** Counts claimed rows. */
  readonly noteClaimed: (rows: number) => void
  readonly run: Effect.Effect<never>
}

/** The rate is taken over this time: short enough to notice a burst, long enough not to take a few rings for one. */
const RATE_WINDOW_MILLIS = 250
/** Busy ends after this long with few rows. */
const CALM = Duration.seconds(1)
/** The slowest pace of the hand-over. */
const HAND_OVER_CAP_MILLIS = 250
/** A writer that stays open longer is left to the poll. */
const HAND_OVER_LIMIT = Duration.minutes(1)
/** After a failure the switch stays quiet for a while. */
const AFTER_FAILURE = Duration.seconds(5)

export const make = (options: DoorbellOptions): Effect.Effect<Doorbell> =>
  Effect.gen(function* () {
    const { canPublish, database, gap, ring, thresholdPerSecond } = options
    const clock = yield* Effect.clock
    const storm = yield* Effect.makeLatch(false)
    let mode: DoorbellMode = "quiet"
    let windowStartMillis = 0
    let ringsInWindow = 0
    let claimed = 0

    const enter = (next: DoorbellMode) =>
      Effect.suspend(() => {
        mode = next
        return Effect.zipRight(
          Metric.set(Metrics.doorbellBusy, next === "busy" ? 1 : 0),
          Effect.logDebug(`the doorbell is ${next}`)
        )
      })

    const noteRings = (rings: number) => {
      if (thresholdPerSecond === 0 || mode !== "quiet") return
      const now = monotonicMillisOf(clock)
      if (now - windowStartMillis >= RATE_WINDOW_MILLIS) {
        windowStartMillis = now
        ringsInWindow = 0
      }
      ringsInWindow += rings
      if (ringsInWindow >= (thresholdPerSecond * RATE_WINDOW_MILLIS) / 1000) storm.unsafeOpen()
    }

    /** Ends when few rows came for a while, or nothing can be published. */
    const calm = Effect.gen(function* () {
      while (true) {
        claimed = 0
        yield* Effect.sleep(CALM)
        const perSecond = claimed / Duration.toSeconds(CALM)
        if (perSecond < thresholdPerSecond / 2 || !(yield* canPublish)) return
      }
    })

    const busy = Effect.scoped(
      Effect.gen(function* () {
        const session = yield* database.silence
        yield* enter("busy")
        const rings = ring.pipe(
          Effect.zipRight(Metric.increment(Metrics.wakeUpsBusy)),
          Effect.delay(gap),
          Effect.forever
        )
        yield* Effect.raceFirst(rings, Effect.raceFirst(calm, session.lost))
      })
    )

    const handOver = Effect.gen(function* () {
      yield* enter("handing over")
      const silentBefore = yield* database.nextTransaction
      let pauseMillis = Duration.toMillis(gap)
      while (true) {
        yield* ring
        if ((yield* database.oldestTransaction) >= silentBefore) break
        yield* Effect.sleep(pauseMillis)
        pauseMillis = Math.min(pauseMillis * 2, HAND_OVER_CAP_MILLIS)
      }
      yield* ring
    }).pipe(Effect.timeoutOption(HAND_OVER_LIMIT))

    const round = Effect.gen(function* () {
      yield* storm.await
      yield* storm.close
      if (yield* canPublish) {
        yield* busy
        yield* handOver
      }
      ringsInWindow = 0
      yield* enter("quiet")
    })

    const run = round.pipe(
      Effect.catchAll((error) =>
        Effect.zipRight(
          Effect.logWarning(`the doorbell stays on, writers ring for each event: ${error.message}`),
          // The rows of silent writers are found all the same; the poll would only find them later.
          ring.pipe(Effect.zipRight(enter("quiet")), Effect.zipRight(Effect.sleep(AFTER_FAILURE)))
        )
      ),
      Effect.forever
    )

    return {
      mode: () => mode,
      noteRings,
      noteClaimed: (rows) => {
        claimed += rows
      },
      run: thresholdPerSecond === 0 ? Effect.never : run
    }
  })
