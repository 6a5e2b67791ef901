import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as TestClock from "effect/TestClock"
import type { LiveNotification } from "../src/LiveEvents.js"
import * as LiveStandby from "../src/LiveStandby.js"
import { withWallClock } from "./support/wallClock.js"

const notification = (n: number): LiveNotification => ({
  id: `live-${n}`,
  channel: "campaign_click",
  payload: String(n),
  receivedAtSeconds: 0
})

const start = Effect.gen(function* () {
  const state = { owner: false, connected: true }
  const published: Array<string> = []
  const standby = LiveStandby.make(
    {
      isLiveOwner: Effect.sync(() => state.owner),
      status: Effect.sync(() => ({ connected: state.connected, disconnectedAt: undefined }))
    },
    (all) => Effect.sync(() => void published.push(...all.map((one) => one.payload)))
  )
  yield* Effect.forkScoped(standby.run)
  yield* TestClock.adjust(0)
  return { standby, state, published }
})

describe("a replica that does not hold the live lock", () => {
  it.scoped("leaves a notification to the holder once a later look finds the holder alive", () =>
    Effect.gen(function* () {
      const { published, standby, state } = yield* start
      yield* standby.add([notification(1)])
      yield* TestClock.adjust("2 seconds")
      state.owner = true
      yield* TestClock.adjust("2 seconds")
      assert.deepStrictEqual(published, [])
      assert.deepStrictEqual(yield* standby.takeAll, [])
    })
  )

  it.scoped("publishes what came since the last look when the holder has died", () =>
    Effect.gen(function* () {
      const { published, standby, state } = yield* start
      yield* standby.add([notification(1), notification(2)])
      state.owner = true
      yield* TestClock.adjust("2 seconds")
      assert.deepStrictEqual(published, ["1", "2"])
    })
  )

  it.scoped("decides nothing while its own session is down: nobody was asked", () =>
    Effect.gen(function* () {
      const { published, standby, state } = yield* start
      state.connected = false
      yield* standby.add([notification(1)])
      yield* TestClock.adjust("1 minute")
      state.connected = true
      state.owner = true
      yield* TestClock.adjust("2 seconds")
      assert.deepStrictEqual(published, ["1"])
    })
  )

  it.scoped("keeps ten thousand at most, the newest", () =>
    Effect.gen(function* () {
      const { standby } = yield* start
      yield* standby.add(Array.from({ length: 12_000 }, (_, n) => notification(n)))
      const kept = yield* standby.takeAll
      assert.strictEqual(kept.length, 10_000)
      assert.strictEqual(kept[0]?.payload, "2000")
    })
  )

  it.scoped(
    "after a hand-over takes nothing from before it, and everything after it, however late the lock comes",
    () =>
      Effect.gen(function* () {
        const { published, standby, state } = yield* start
        yield* standby.add([notification(1)])
        yield* standby.handedOver
        yield* standby.add([notification(2)])
        // The old holder still has the lock for a moment, but publishes no more.
        yield* TestClock.adjust("2 seconds")
        state.owner = true
        yield* TestClock.adjust("2 seconds")
        assert.deepStrictEqual(published, ["2"])
      })
  )

  it.scoped("leaves them to another replica that took the lock over", () =>
    Effect.gen(function* () {
      const { published, standby, state } = yield* start
      yield* standby.handedOver
      yield* standby.add([notification(1)])
      yield* TestClock.adjust("10 seconds")
      state.owner = true
      yield* TestClock.adjust("2 seconds")
      assert.deepStrictEqual(published, [])
    })
  )

  it.scoped("after a hand-over waits no longer when the machine's clock is put back", () =>
    withWallClock((wall) =>
      Effect.gen(function* () {
        const { published, standby, state } = yield* start
        yield* standby.handedOver
        yield* standby.add([notification(1)])
        wall.setOff(-600_000)
        yield* TestClock.adjust("10 seconds")
        state.owner = true
        yield* TestClock.adjust("2 seconds")
        assert.deepStrictEqual(published, [])
      })
    )
  )
})
