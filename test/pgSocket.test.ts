import { EventEmitter } from "node:events"
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as TestClock from "effect/TestClock"
import type * as pg from "pg"
import { closeClient } from "../src/internal/pgSocket.js"

/** As much of a client as closing needs: it says goodbye when the test says so. */
const scriptedClient = () => {
  const state = { asked: false, destroyed: false, goodbye: () => {} }
  const client = Object.assign(new EventEmitter(), {
    end: (done: () => void) => {
      state.asked = true
      state.goodbye = done
    },
    connection: {
      stream: {
        destroy: () => {
          state.destroyed = true
        }
      }
    }
  }) as unknown as pg.Client
  return { client, state }
}

describe("closing a connection to PostgreSQL", () => {
  it.effect("a server that never answers the goodbye is hung up on after half a second", () =>
    Effect.gen(function* () {
      const { client, state } = scriptedClient()
      const closing = yield* Effect.fork(Effect.uninterruptible(closeClient(client)))
      yield* TestClock.adjust("499 millis")
      assert.isTrue(state.asked)
      assert.isFalse(state.destroyed)
      yield* TestClock.adjust("1 millis")
      assert.isTrue(state.destroyed)
      yield* Fiber.join(closing)
    })
  )

  it.effect("a server that answers is not waited for any longer", () =>
    Effect.gen(function* () {
      const { client, state } = scriptedClient()
      const closing = yield* Effect.fork(closeClient(client))
      yield* TestClock.adjust("1 millis")
      state.goodbye()
      yield* Fiber.join(closing)
      assert.isTrue(state.destroyed)
    })
  )

  it.effect("the goodbye has its time as well when the one who closes was interrupted", () =>
    Effect.gen(function* () {
      const { client, state } = scriptedClient()
      const user = yield* Effect.fork(
        Effect.scoped(Effect.acquireRelease(Effect.void, () => closeClient(client)).pipe(Effect.zipRight(Effect.never)))
      )
      yield* TestClock.adjust(0)
      const stopped = yield* Effect.fork(Fiber.interrupt(user))
      yield* TestClock.adjust("499 millis")
      assert.isTrue(state.asked)
      assert.isFalse(state.destroyed)
      yield* TestClock.adjust("1 millis")
      yield* Fiber.join(stopped)
      assert.isTrue(state.destroyed)
    })
  )
})
