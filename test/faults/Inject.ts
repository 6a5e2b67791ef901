/**
 * Carries out a schedule: each fault at its time, and its healing.
 */
import * as Clock from "effect/Clock"
import * as Effect from "effect/Effect"
import type { FaultSpan } from "./Model.js"
import type { Schedule, ScheduledFault } from "./Schedule.js"
import type { World, WorldError } from "./World.js"

export interface CarriedOut extends FaultSpan {
  readonly fault: ScheduledFault
  /** Set when it could not be done: another fault was in the way. */
  readonly failure: string | undefined
}

/** A fault may find its server down by another one; it waits a little for it. */
const again = <A>(effect: Effect.Effect<A, WorldError>, forMillis: number): Effect.Effect<A, WorldError> =>
  Effect.gen(function* () {
    const giveUpAt = (yield* Clock.currentTimeMillis) + forMillis
    const later = Effect.zipRight(
      Effect.sleep("250 millis"),
      Effect.map(Clock.currentTimeMillis, (now) => now < giveUpAt)
    )
    return yield* Effect.retry(effect, { while: () => later })
  })

const carryOut = (world: World, fault: ScheduledFault): Effect.Effect<CarriedOut> =>
  Effect.gen(function* () {
    yield* Effect.sleep(fault.atMillis)
    const beganAt = yield* Clock.currentTimeMillis
    const failure = yield* again(fault.plan.inject(world), 3000).pipe(
      Effect.flatMap((heal) =>
        Effect.zipRight(
          Effect.sleep(fault.plan.holdMillis),
          // What does not heal here is healed after the load.
          again(heal, 10_000)
        )
      ),
      Effect.match({ onFailure: (error) => error.message, onSuccess: () => undefined })
    )
    const endedAt = yield* Clock.currentTimeMillis
    return { fault, failure, beganAt, endedAt, name: fault.kind.name, detail: fault.plan.detail }
  })

/** Ends when the last fault is healed. */
export const run = (world: World, schedule: Schedule): Effect.Effect<ReadonlyArray<CarriedOut>> =>
  Effect.forEach(schedule.faults, (fault) => carryOut(world, fault), { concurrency: "unbounded" })
