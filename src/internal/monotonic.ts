/**
 * A clock that nobody sets: for every wait and every duration inside the process.
 *
 * The system's clock is put right by the machine, by minutes at times. Put back by ten, it would make a deadline
 * that was noted before it ten minutes longer; put forward, it would end every wait at once.
 */
import type * as Clock from "effect/Clock"
import * as Effect from "effect/Effect"

/** Milliseconds since no moment in particular: only a difference of two means something. */
export const monotonicMillisOf = (clock: Clock.Clock): number => Number(clock.unsafeCurrentTimeNanos() / 1_000_000n)

/** {@link monotonicMillisOf} the fiber's own clock. */
export const monotonicMillis: Effect.Effect<number> = Effect.clockWith((clock) =>
  Effect.sync(() => monotonicMillisOf(clock))
)
