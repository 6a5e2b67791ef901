import { assert, describe, it } from "@effect/vitest"
import * as Chunk from "effect/Chunk"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Ref from "effect/Ref"
import * as Schedule from "effect/Schedule"
import * as Stream from "effect/Stream"
import * as TestClock from "effect/TestClock"
import { reconnectForever, reconnectLimit, reconnectLimited } from "../src/Reconnect.js"

const delaysSeconds = <Out>(schedule: Schedule.Schedule<Out>, failures: number) =>
  Schedule.run(Schedule.delays(schedule), 0, Array.from({ length: failures })).pipe(
    Effect.map((delays) => Chunk.toReadonlyArray(delays).map(Duration.toSeconds))
  )

describe("Reconnect", () => {
  it.effect("waits 1 s, doubles it after each failure, and never waits more than 30 s", () =>
    Effect.gen(function* () {
      assert.deepStrictEqual(yield* delaysSeconds(reconnectForever, 8), [1, 2, 4, 8, 16, 30, 30, 30])
      assert.deepStrictEqual(yield* delaysSeconds(reconnectLimited, 8), [1, 2, 4, 8, 16, 30, 30, 30])
    })
  )

  it.effect("reconnectForever does not give up", () =>
    Effect.gen(function* () {
      assert.strictEqual((yield* delaysSeconds(reconnectForever, 3 * reconnectLimit)).length, 3 * reconnectLimit)
    })
  )

  it.effect("reconnectLimited gives up after 100 retries in a row", () =>
    Effect.gen(function* () {
      const attempts = yield* Ref.make(0)
      const attempt = Ref.update(attempts, (n) => n + 1).pipe(Effect.zipRight(Effect.fail("down")))
      const fiber = yield* Stream.fromEffect(attempt).pipe(
        Stream.retry(reconnectLimited),
        Stream.runDrain,
        Effect.flip,
        Effect.fork
      )
      yield* TestClock.adjust("1 hour")
      assert.strictEqual(yield* Fiber.join(fiber), "down")
      assert.strictEqual(yield* Ref.get(attempts), 101)
    })
  )

  it.effect("a success in between starts the delays over", () =>
    Effect.gen(function* () {
      const attempts = yield* Ref.make<ReadonlyArray<number>>([])
      const session = Stream.unwrap(
        Effect.gen(function* () {
          const at = yield* Effect.clockWith((clock) => clock.currentTimeMillis)
          const before = yield* Ref.getAndUpdate(attempts, (list) => [...list, at / 1000])
          const lost = Stream.fail("lost")
          return before.length === 3 ? Stream.concat(Stream.make("connected"), lost) : lost
        })
      )
      yield* session.pipe(Stream.retry(reconnectForever), Stream.runDrain, Effect.fork)
      yield* TestClock.adjust("15 seconds")
      assert.deepStrictEqual(yield* Ref.get(attempts), [0, 1, 3, 7, 8, 10, 14])
    })
  )
})
