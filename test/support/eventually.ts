/** Waiting for something to become true, with a bound and a clear failure. */
import * as Data from "effect/Data"
import type * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Schedule from "effect/Schedule"

export class NeverHappened extends Data.TaggedError("NeverHappened")<{
  readonly what: string
  readonly last: unknown
}> {
  override get message(): string {
    return `${this.what} did not happen; last seen: ${JSON.stringify(this.last)}`
  }
}

/** Looks every 20 ms until the value satisfies the condition. */
export const eventually = <A, E, R>(
  what: string,
  look: Effect.Effect<A, E, R>,
  holds: (value: A) => boolean,
  within: Duration.DurationInput = "20 seconds"
): Effect.Effect<A, E | NeverHappened, R> =>
  Effect.suspend(() => {
    let last: unknown
    return look.pipe(
      Effect.tap((value) => {
        last = value
      }),
      Effect.repeat({ until: holds, schedule: Schedule.spaced("20 millis") }),
      Effect.as(undefined),
      Effect.map(() => last as A),
      Effect.timeoutFail({ duration: within, onTimeout: () => new NeverHappened({ what, last }) })
    )
  })
