/**
 * Supervision: how a background fiber that must never end brings the process down when it does.
 *
 * A fiber forked in a layer is invisible to the program that built the layer. Each loop is therefore forked with
 * {@link supervised}: when it fails, dies, or simply returns, `Fatal` fails, and `main.ts`, which waits on `Fatal`,
 * ends the process with exit code 1.
 */
import * as Cause from "effect/Cause"
import * as Context from "effect/Context"
import * as Data from "effect/Data"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import type * as Scope from "effect/Scope"

/** A loop that must run for as long as the process returned without an error. */
export class LoopEnded extends Data.TaggedError("LoopEnded")<{ readonly loop: string }> {
  override get message(): string {
    return `the loop "${this.loop}" ended, which it never should`
  }
}

/** Never succeeds; fails or dies with the cause that must end the process. */
export class Fatal extends Context.Tag("pg-listener/Fatal")<Fatal, Deferred.Deferred<never, unknown>>() {
  static readonly layer: Layer.Layer<Fatal> = Layer.effect(this, Deferred.make<never, unknown>())
}

/**
 * Forks a loop into the current scope. Any end but the scope's own fails {@link Fatal}. An interrupt from within counts as
 * an end like any other, and as a failure: as a mere interrupt it would look like a stop that somebody asked for.
 */
export const supervised = <A, E, R>(
  name: string,
  loop: Effect.Effect<A, E, R>
): Effect.Effect<void, never, R | Fatal | Scope.Scope> =>
  Effect.flatMap(Fatal, (fatal) =>
    loop.pipe(
      Effect.zipRight(Effect.fail(new LoopEnded({ loop: name }))),
      Effect.catchAllCause((cause) =>
        Deferred.failCause(fatal, Cause.isInterruptedOnly(cause) ? Cause.fail(new LoopEnded({ loop: name })) : cause)
      ),
      Effect.annotateLogs({ loop: name }),
      Effect.forkScoped,
      Effect.asVoid
    )
  )
