/** The LISTEN loop that is stopped, and sessions that take their time to close, on a scripted session. */
import { assert, describe, it } from "@effect/vitest"
import * as Clock from "effect/Clock"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Stream from "effect/Stream"
import * as TestClock from "effect/TestClock"
import { ListenError } from "../src/Errors.js"
import type { ListenHandlers, ListenSession } from "../src/internal/listenSession.js"
import { makePgListen } from "../src/PgListen.js"

const refused = new ListenError({ why: "connect", reason: "ECONNREFUSED" })
const dropped = new ListenError({ why: "dropped", reason: "terminating connection" })

/** The longest that a real session may take to close. */
const slowClose = "500 millis"

interface Sessions {
  readonly openedAtMillis: Array<number>
  readonly handlers: Array<ListenHandlers>
  closed: number
}

const start = (
  open: Effect.Effect<void, ListenError> = Effect.void,
  registeredChannels: ListenSession["registeredChannels"] = Effect.succeed(["orders"])
) =>
  Effect.gen(function* () {
    const sessions: Sessions = { openedAtMillis: [], handlers: [], closed: 0 }
    const listen = makePgListen({
      open: (handlers) =>
        Effect.gen(function* () {
          sessions.openedAtMillis.push(yield* Clock.currentTimeMillis)
          yield* open
          sessions.handlers.push(handlers)
          yield* Effect.addFinalizer(() =>
            Effect.zipRight(
              Effect.sleep(slowClose),
              Effect.sync(() => {
                sessions.closed++
              })
            )
          )
          return {
            backendPid: 1,
            registeredChannels,
            tryLock: Effect.never,
            announceHandOver: Effect.never,
            releaseLock: Effect.never,
            resumeReading: () => {}
          }
        }),
      channels: ["orders"],
      heartbeatInterval: Duration.seconds(10),
      heartbeatTimeout: Duration.seconds(5)
    })
    const running = yield* Effect.forkScoped(Stream.runDrain(listen.events))
    yield* TestClock.adjust(0)
    return { listen, running, sessions }
  })

describe("a session that hangs in close", () => {
  it.scoped("is not connected from the moment it was lost, and is gone before the next one opens", () =>
    Effect.gen(function* () {
      const { listen, running, sessions } = yield* start()
      sessions.handlers[0]?.onLost(dropped)
      assert.deepStrictEqual(yield* listen.status, { connected: false, disconnectedAt: 0 })
      yield* TestClock.adjust("500 millis")
      assert.strictEqual(sessions.closed, 1)
      yield* TestClock.adjust("999 millis")
      assert.deepStrictEqual(sessions.openedAtMillis, [0])
      yield* TestClock.adjust("1 millis")
      assert.deepStrictEqual(sessions.openedAtMillis, [0, 1500])
      assert.isTrue((yield* listen.status).connected)
      const stopped = yield* Effect.fork(Fiber.interrupt(running))
      yield* TestClock.adjust(slowClose)
      yield* Fiber.join(stopped)
    })
  )

  it.scoped("holds a stop up for as long as closing takes, with a lock and a heartbeat unanswered", () =>
    Effect.gen(function* () {
      const { listen, running, sessions } = yield* start(Effect.void, Effect.never)
      yield* TestClock.adjust("12 seconds")
      const stopped = yield* Effect.fork(Fiber.interrupt(running))
      yield* TestClock.adjust(slowClose)
      yield* Fiber.join(stopped)
      assert.strictEqual(sessions.closed, 1)
      assert.isFalse((yield* listen.status).connected)
    })
  )
})

describe("a stop of the LISTEN loop", () => {
  it.scoped("while a session is being opened, ends at once", () =>
    Effect.gen(function* () {
      const { running, sessions } = yield* start(Effect.never)
      yield* Fiber.interrupt(running)
      yield* TestClock.adjust("1 minute")
      assert.deepStrictEqual(sessions.openedAtMillis, [0])
    })
  )

  it.scoped("in the pause before the next try, ends at once", () =>
    Effect.gen(function* () {
      const { running, sessions } = yield* start(Effect.fail(refused))
      yield* TestClock.adjust("1 second")
      yield* Fiber.interrupt(running)
      yield* TestClock.adjust("1 minute")
      assert.deepStrictEqual(sessions.openedAtMillis, [0, 1000])
    })
  )
})
