/** The hand-over of the live lock by a replica that stops, on a scripted session. */
import { assert, describe, it } from "@effect/vitest"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Stream from "effect/Stream"
import * as TestClock from "effect/TestClock"
import type { ListenHandlers } from "../src/internal/listenSession.js"
import { makePgListen } from "../src/PgListen.js"

/** A session whose announcement comes back in the stream, after what a writer sent meanwhile. */
const start = (options: { readonly holdsLock: boolean; readonly answers?: boolean }) =>
  Effect.gen(function* () {
    const steps: Array<string> = []
    const consumed: Array<string> = []
    let handlers: ListenHandlers | undefined
    const answered = options.answers ?? true
    const listen = makePgListen({
      open: (given) =>
        Effect.sync(() => {
          handlers = given
          return {
            backendPid: 1,
            registeredChannels: Effect.succeed(["orders"]),
            tryLock: Effect.succeed(options.holdsLock),
            announceHandOver: answered
              ? Effect.sync(() => {
                  steps.push("announced")
                  given.onNotification("orders", "before")
                  given.onHandOver({ ourselves: true })
                  given.onNotification("orders", "after")
                })
              : Effect.never,
            releaseLock: answered ? Effect.sync(() => void steps.push("released")) : Effect.never,
            resumeReading: () => {}
          }
        }),
      channels: ["orders"],
      heartbeatInterval: Duration.seconds(10),
      heartbeatTimeout: Duration.seconds(5)
    })
    const running = yield* listen.events.pipe(
      Stream.runForEach((event) =>
        Effect.sync(() => {
          if (event._tag === "Notification") consumed.push(event.payload)
          else if (event._tag === "HandedOver") consumed.push("hand-over")
        })
      ),
      Effect.forkScoped
    )
    yield* TestClock.adjust(0)
    yield* listen.isLiveOwner
    return { listen, running, steps, consumed, notify: (text: string) => handlers?.onNotification("orders", text) }
  })

describe("a replica that stops", () => {
  it.scoped("publishes what came before its announcement, leaves the rest, and then releases the lock", () =>
    Effect.gen(function* () {
      const { consumed, listen, notify, running, steps } = yield* start({ holdsLock: true })
      notify("earlier")
      yield* listen.stop
      yield* Fiber.join(running)
      assert.deepStrictEqual(consumed, ["earlier", "before", "hand-over"])
      assert.deepStrictEqual(steps, ["announced", "released"])
    })
  )

  it.scoped("announces nothing when it does not hold the lock", () =>
    Effect.gen(function* () {
      const { consumed, listen, notify, running, steps } = yield* start({ holdsLock: false })
      notify("earlier")
      yield* listen.stop
      yield* Fiber.join(running)
      assert.deepStrictEqual(consumed, ["earlier"])
      assert.deepStrictEqual(steps, [])
    })
  )

  it.scoped("does not wait for ever for a server that no longer answers", () =>
    Effect.gen(function* () {
      const { listen, running } = yield* start({ holdsLock: true, answers: false })
      const stopped = yield* Effect.fork(listen.stop)
      yield* TestClock.adjust("4 seconds")
      yield* Fiber.join(stopped)
      yield* Fiber.join(running)
    })
  )
})
