/**
 * The way from the HTTP server to the dead letters. The server is up first and down last; the dead letters come and go with
 * the database above it, so they are attached when they are there.
 */
import * as Context from "effect/Context"
import * as Data from "effect/Data"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import type * as Scope from "effect/Scope"
import { DeadLetters } from "./DeadLetters.js"

/** The process starts or stops: nobody is there who could answer. */
export class AdminClosed extends Data.TaggedError("AdminClosed") {
  override get message(): string {
    return "pg-listener is starting or shutting down"
  }
}

export class Admin extends Context.Tag("pg-listener/Admin")<
  Admin,
  {
    /** Until the scope closes. */
    readonly attach: (deadLetters: DeadLetters["Type"]) => Effect.Effect<void, never, Scope.Scope>
    readonly deadLetters: Effect.Effect<DeadLetters["Type"], AdminClosed>
  }
>() {
  static readonly layer: Layer.Layer<Admin> = Layer.sync(this, () => {
    let attached: DeadLetters["Type"] | undefined
    return {
      attach: (deadLetters) =>
        Effect.acquireRelease(
          Effect.sync(() => {
            attached = deadLetters
          }),
          () =>
            Effect.sync(() => {
              attached = undefined
            })
        ),
      deadLetters: Effect.suspend(() => (attached === undefined ? new AdminClosed() : Effect.succeed(attached)))
    }
  })

  /** Opens the way for as long as the dead letters are there. */
  static readonly open: Layer.Layer<never, never, Admin | DeadLetters> = Layer.scopedDiscard(
    Effect.gen(function* () {
      const admin = yield* Admin
      yield* admin.attach(yield* DeadLetters)
    })
  )
}
