/**
 * Holds the relay back until the tables are there in the version it needs.
 *
 * The service never changes the schema itself. While it is missing or too old, the process stays alive and not ready,
 * says what to run, and goes on by itself once `migrate` has run.
 */
import * as Context from "effect/Context"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Schedule from "effect/Schedule"
import * as Stream from "effect/Stream"
import * as SubscriptionRef from "effect/SubscriptionRef"
import { type Fatal, supervised } from "./Fatal.js"
import { Outbox, type SchemaNote } from "./Outbox.js"

const LOOK_AGAIN = Duration.seconds(2)

const tell = ({ level, message }: SchemaNote) =>
  level === "info" ? Effect.logInfo(message) : Effect.logWarning(message)

export class SchemaGate extends Context.Tag("pg-listener/SchemaGate")<
  SchemaGate,
  {
    /** Whether the schema was found in order. */
    readonly isOpen: Effect.Effect<boolean>
    /** Returns once the schema is in order. */
    readonly awaitOpen: Effect.Effect<void>
  }
>() {
  static readonly layer: Layer.Layer<SchemaGate, never, Outbox | Fatal> = Layer.scoped(
    this,
    Effect.gen(function* () {
      const outbox = yield* Outbox
      const open = yield* SubscriptionRef.make(false)
      let told = ""

      // One line per new problem, not one per look.
      const look = outbox.verifySchema.pipe(
        Effect.tapError((error) => {
          if (error.message === told) return Effect.void
          told = error.message
          return error._tag === "SchemaError"
            ? Effect.logError(`the schema is not usable: ${error.message}`)
            : Effect.logWarning(`the schema can't be checked yet: ${error.message}`)
        })
      )
      yield* supervised(
        "schema",
        look.pipe(
          Effect.retry(Schedule.spaced(LOOK_AGAIN)),
          Effect.tap(SubscriptionRef.set(open, true)),
          Effect.tap(Effect.logInfo("the schema is in order")),
          Effect.flatMap((notes) => Effect.forEach(notes, tell, { discard: true })),
          Effect.zipRight(Effect.never)
        )
      )
      return {
        isOpen: SubscriptionRef.get(open),
        awaitOpen: open.changes.pipe(
          Stream.filter((isOpen) => isOpen),
          Stream.take(1),
          Stream.runDrain
        )
      }
    })
  )
}
