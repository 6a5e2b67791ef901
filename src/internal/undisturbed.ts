/**
 * Work that a stop must not cut in two.
 */
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"

/**
 * Runs an effect to its own end, whatever happens to the fiber that asked for it; an interrupt takes hold afterwards.
 *
 * `Effect.uninterruptible` alone is not enough: an interrupt is passed on at once to the children of the fiber, and the
 * racing halves of every time-out are such children. The work would lose its bounds, or end in the middle. In a fiber of
 * its own, which nobody interrupts, races and time-outs work as they are written.
 */
export const undisturbed = <A, E, R>(effect: Effect.Effect<A, E, R>): Effect.Effect<A, E, R> =>
  Effect.uninterruptible(Effect.flatMap(Effect.forkDaemon(Effect.interruptible(effect)), Fiber.join))
