import { assert, describe, it } from "@effect/vitest"
import * as Cause from "effect/Cause"
import * as Context from "effect/Context"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Layer from "effect/Layer"
import * as Scope from "effect/Scope"
import * as TestClock from "effect/TestClock"
import { Fatal, LoopEnded, supervised } from "../src/Fatal.js"

/** Starts a loop under supervision; `cause` is what the process ends with, or undefined while it goes on. */
const watch = <A, E>(loop: Effect.Effect<A, E>) =>
  Effect.gen(function* () {
    const scope = yield* Scope.make()
    const fatal = Context.get(yield* Layer.build(Fatal.layer), Fatal)
    yield* supervised("pump", loop).pipe(Effect.provideService(Fatal, fatal), Scope.extend(scope))
    const cause = Effect.gen(function* () {
      yield* TestClock.adjust(0)
      if (!(yield* Deferred.isDone(fatal))) return undefined
      const exit = yield* Effect.exit(Deferred.await(fatal))
      return Exit.isFailure(exit) ? exit.cause : undefined
    })
    return { cause, close: Scope.close(scope, Exit.void) }
  })

const reason = (cause: Cause.Cause<unknown> | undefined) => (cause === undefined ? undefined : Cause.squash(cause))

describe("a supervised loop", () => {
  it.scoped("that goes on disturbs nobody, and may be stopped with its scope", () =>
    Effect.gen(function* () {
      let stopped = false
      const { cause, close } = yield* watch(
        Effect.onInterrupt(Effect.never, () =>
          Effect.sync(() => {
            stopped = true
          })
        )
      )
      assert.isUndefined(yield* cause)
      yield* close
      assert.isTrue(stopped)
      assert.isUndefined(yield* cause)
    })
  )

  it.scoped("that returns ends the process, by its name", () =>
    Effect.gen(function* () {
      const { cause } = yield* watch(Effect.void)
      assert.deepStrictEqual(reason(yield* cause), new LoopEnded({ loop: "pump" }))
    })
  )

  it.scoped("that fails ends the process with its failure", () =>
    Effect.gen(function* () {
      const { cause } = yield* watch(Effect.fail("no more"))
      assert.strictEqual(reason(yield* cause), "no more")
    })
  )

  it.scoped("that dies ends the process with the defect, and it stays one", () =>
    Effect.gen(function* () {
      const { cause } = yield* watch(Effect.die("a bug"))
      const died = yield* cause
      assert.isTrue(died !== undefined && Cause.isDie(died))
      assert.strictEqual(reason(died), "a bug")
    })
  )

  // A queue that was shut down, or a fiber that somebody interrupted, ends a loop in this way.
  it.scoped("that ends by an interrupt from within is no less gone, and ends the process as a failure", () =>
    Effect.gen(function* () {
      const { cause } = yield* watch(Effect.interrupt)
      assert.deepStrictEqual(reason(yield* cause), new LoopEnded({ loop: "pump" }))
    })
  )

  it.scoped("is not the only one: the first that ends says why", () =>
    Effect.gen(function* () {
      const fatal = Context.get(yield* Layer.build(Fatal.layer), Fatal)
      const start = (name: string, loop: Effect.Effect<void>) =>
        Effect.provideService(supervised(name, loop), Fatal, fatal)
      yield* start("late", Effect.sleep("2 seconds"))
      yield* start("early", Effect.sleep("1 second"))
      yield* TestClock.adjust("3 seconds")
      assert.deepStrictEqual(yield* Effect.flip(Deferred.await(fatal)), new LoopEnded({ loop: "early" }))
    })
  )
})
