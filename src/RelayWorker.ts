/**
 * One worker: its own connection, and the loop that decides when to run the next cycle.
 */
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import type { AmqpPublisher } from "./AmqpPublisher.js"
import type { DatabaseError } from "./Errors.js"
import { monotonicMillis } from "./internal/monotonic.js"
import type { Outbox } from "./Outbox.js"
import { type CycleOptions, type CycleResult, runCycle } from "./RelayCycle.js"
import type { Wake } from "./Wake.js"

/** min(first × 2^n, cap): the pause after the n-th failure in a row. */
export const backOff = (firstMillis: number, capMillis: number, failures: number): Duration.Duration =>
  Duration.millis(Math.min(firstMillis * 2 ** Math.min(failures, 30), capMillis))

export interface WorkerOptions extends Omit<CycleOptions, "worker" | "publisher" | "full"> {
  readonly outbox: Outbox["Type"]
  readonly publisher: AmqpPublisher["Type"]
  readonly wake: Wake
  /** Shared by the workers of a process. */
  readonly activity: Activity
  /** Told how many rows each cycle claimed. */
  readonly onClaimed: (rows: number) => void
}

/** What the workers are at; each writes here after its cycle. */
export interface Activity {
  /** The last batch was full: a backlog is being drained, however long the next batch takes. */
  draining: boolean
  /** When a cycle last got rows, in epoch milliseconds. */
  claimedAtMillis: number
}

/**
 * What the worker does after a cycle.
 *
 * - A full batch means more rows: again at once, and one more worker is woken to help.
 * - A released aggregate has followers that no notification will announce, and that only a full claim is sure to see:
 *   again at once.
 * - Contended rows become free when another worker commits, which rings nobody: again soon.
 * - Unanswered messages: again after a pause, so that a sick broker is not hammered.
 * - Otherwise wait for a ring; the poll rings at the latest.
 */
const afterCycle = (
  options: WorkerOptions,
  result: CycleResult,
  full: boolean,
  pauses: { contended: number; unknown: number }
) =>
  Effect.gen(function* () {
    const { limit, wake } = options
    if (result.unknown > 0) {
      return yield* Effect.sleep(backOff(100, 5_000, pauses.unknown++))
    }
    pauses.unknown = 0
    if (result.claimed >= limit) {
      pauses.contended = 0
      return yield* full ? wake.ringFull : wake.ring
    }
    if (result.released) return yield* wake.ringFull
    if (result.contended) {
      return yield* Effect.raceFirst(wake.awaitRing, Effect.sleep(backOff(2, 250, pauses.contended++)))
    }
    pauses.contended = 0
    return yield* wake.awaitRing
  })

/** Cycles on one session until the database fails it. */
const session = (options: WorkerOptions, onCycle: Effect.Effect<void>) =>
  Effect.gen(function* () {
    const { outbox, publisher, wake } = options
    const worker = yield* outbox.openWorker
    const pauses = { contended: 0, unknown: 0 }
    while (true) {
      // Waiting for the broker comes before the claim: no transaction is open while nothing can be published.
      yield* publisher.awaitReady
      const full = yield* wake.takeFull
      const result = yield* runCycle({ ...options, worker, full })
      yield* onCycle
      options.onClaimed(result.claimed)
      options.activity.draining = result.claimed >= options.limit
      if (result.claimed > 0) options.activity.claimedAtMillis = yield* monotonicMillis
      yield* afterCycle(options, result, full, pauses)
    }
  })

/** The worker's whole life: a session, and after each database failure another one. Ends only by interruption. */
export const runWorker = (options: WorkerOptions): Effect.Effect<never> =>
  Effect.suspend(() => {
    let failures = 0
    let told = ""
    // A session that opens proves little: a replica, a pooler or a missing grant refuses the first claim on each.
    const worked = Effect.suspend(() => {
      const before = failures
      failures = 0
      told = ""
      return before > 0 ? Effect.logInfo("relay worker reached the database again") : Effect.void
    })
    /** One line per reason, not one per try. */
    const say = (error: DatabaseError) => {
      if (error.message === told) return Effect.logDebug(`relay worker failed again: ${error.message}`)
      told = error.message
      return Effect.logWarning(`relay worker lost its database session: ${error.message}`)
    }
    return Effect.scoped(session(options, worked)).pipe(
      Effect.catchTag("DatabaseError", (error) =>
        Effect.zipRight(
          say(error),
          Effect.suspend(() => Effect.sleep(backOff(100, 5_000, failures++)))
        )
      ),
      // What the lost transaction had claimed is free again and rings nobody.
      Effect.zipRight(options.wake.ringFull),
      Effect.forever
    )
  })
