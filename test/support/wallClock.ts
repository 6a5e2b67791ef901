/** The machine's clock as an operator, or NTP, sets it: the time of day jumps, and nothing else does. */
import type * as Clock from "effect/Clock"
import * as Effect from "effect/Effect"

export interface WallClock {
  /** Puts the time of day forward by so much from here on, or back. */
  readonly setOff: (millis: number) => void
}

/** Runs a test with a time of day that it can set; waits go by the `TestClock` as before. */
export const withWallClock = <A, E, R>(test: (wall: WallClock) => Effect.Effect<A, E, R>): Effect.Effect<A, E, R> =>
  Effect.clockWith((real) => {
    let offMillis = 0
    const unsafeCurrentTimeMillis = () => real.unsafeCurrentTimeMillis() + offMillis
    const clock: Clock.Clock = Object.assign(Object.create(real), {
      unsafeCurrentTimeMillis,
      currentTimeMillis: Effect.sync(unsafeCurrentTimeMillis),
      // The test clock makes its own from the time of day.
      unsafeCurrentTimeNanos: () => real.unsafeCurrentTimeNanos()
    })
    const setOff = (millis: number) => {
      offMillis += millis
    }
    return Effect.withClock(test({ setOff }), clock)
  })
