/**
 * The jobs beside the cycle (design, section 5): poll, sweep, clean-up, and the low-water mark. Each is a forked fiber
 * under `Schedule.spaced`; a failed run is logged and the next one comes all the same.
 */
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Metric from "effect/Metric"
import * as Schedule from "effect/Schedule"
import type { AmqpPublisher } from "./AmqpPublisher.js"
import type { DatabaseError } from "./Errors.js"
import { monotonicMillis } from "./internal/monotonic.js"
import * as Metrics from "./Metrics.js"
import type { Outbox } from "./Outbox.js"
import type { Activity } from "./RelayWorker.js"
import type { Wake } from "./Wake.js"

/**
 * Runs a job again and again, `every` after its last end. A database failure waits for the next turn; it is reported when
 * its reason is new, since an outage may last for hours.
 */
export const spaced = <R>(
  name: string,
  every: Duration.Duration,
  job: Effect.Effect<void, DatabaseError, R>
): Effect.Effect<void, never, R> =>
  Effect.suspend(() => {
    let told = ""
    const say = (reason: string) => {
      const again = reason === told
      told = reason
      return again ? Effect.logDebug(`${name} failed again: ${reason}`) : Effect.logWarning(`${name} failed: ${reason}`)
    }
    const worked = Effect.sync(() => {
      told = ""
    })
    return job.pipe(
      Effect.zipRight(worked),
      Effect.catchTag("DatabaseError", (error) => say(error.message)),
      Effect.delay(every),
      Effect.repeat(Schedule.spaced(Duration.zero)),
      Effect.asVoid
    )
  })

/** The net below the notifications: retries that fell due, wake-ups that were missed. */
export const poll = (wake: Wake, every: Duration.Duration) =>
  spaced("poll", every, Effect.zipRight(wake.ringFull, Metric.increment(Metrics.wakeUpsByPoll)))

/** While the last claim that got rows is no older than this, the relay is at work, and what is old is its backlog. */
const AT_WORK_MILLIS = 1_000

/**
 * Counts rows that nobody touched for too long, and has them claimed. They mean that wake-ups and polls were missed;
 * while the broker is away, or the relay works through a backlog, rows are old for a better reason, and there is
 * nothing to count.
 */
export const sweep = (
  outbox: Outbox["Type"],
  publisher: AmqpPublisher["Type"],
  wake: Wake,
  activity: Readonly<Activity>,
  every: Duration.Duration
) =>
  spaced(
    "sweep",
    every,
    Effect.gen(function* () {
      const status = yield* publisher.status
      if (!status.connected || status.blocked || activity.draining) return
      if ((yield* monotonicMillis) < activity.claimedAtMillis + AT_WORK_MILLIS) return
      const overdue = yield* outbox.countOverdue
      if (overdue === 0) return
      yield* Metric.incrementBy(Metrics.eventsSwept, overdue)
      yield* Effect.logWarning("sweep found overdue rows; their wake-ups were missed").pipe(
        Effect.annotateLogs({ rows: overdue })
      )
      yield* wake.ringFull
    })
  )

export const cleanUp = (outbox: Outbox["Type"], every: Duration.Duration) =>
  spaced(
    "clean-up",
    every,
    Effect.gen(function* () {
      const deleted = yield* outbox.cleanUp
      if (deleted === 0) return
      yield* Metric.incrementBy(Metrics.eventsCleaned, deleted)
      yield* Effect.logInfo("clean-up deleted processed rows").pipe(Effect.annotateLogs({ rows: deleted }))
    })
  )

/** How often the low-water mark is moved up: it only has to keep the claims short. */
const LOW_WATER_INTERVAL = Duration.seconds(2)

export const lowWater = (outbox: Outbox["Type"], wake: Wake) =>
  spaced(
    "low-water mark",
    LOW_WATER_INTERVAL,
    Effect.flatMap(outbox.advanceLowWater, (freed) => (freed ? wake.ringFull : Effect.void))
  )
