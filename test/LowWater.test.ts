import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import * as LowWater from "../src/LowWater.js"

/** A database as the mark sees it: what is committed and ready, which transactions are open, how far the sequence is. */
const scripted = () => {
  const server = {
    lastSeq: 0n,
    writers: [] as Array<string>,
    ready: [] as Array<bigint>,
    /** Of the ready rows, those that an earlier row of their aggregate holds. */
    held: new Map<bigint, string>(),
    heldLooks: 0,
    beforeFirstReady: () => {}
  }
  const mark = LowWater.make<never>({
    lastSeq: Effect.sync(() => server.lastSeq),
    openWriters: Effect.sync(() => Array.from(server.writers)),
    firstReadyAbove: (above) =>
      Effect.sync(() => {
        server.beforeFirstReady()
        return Option.fromNullable(server.ready.filter((seq) => seq > above).sort((a, b) => (a < b ? -1 : 1))[0])
      }),
    heldRunAbove: (above, upTo) =>
      Effect.sync(() => {
        server.heldLooks++
        const inReach = server.ready.filter((seq) => seq > above && seq <= upTo).sort((a, b) => (a < b ? -1 : 1))
        const firstFree = inReach.find((seq) => !server.held.has(seq))
        const end = firstFree === undefined ? upTo : firstFree - 1n
        const ids = new Set(inReach.filter((seq) => seq <= end).map((seq) => server.held.get(seq) ?? ""))
        return ids.size === 0
          ? Option.none()
          : Option.some({ above: end, leftOut: Array.from(ids, (id) => ({ id, type: "" })) })
      })
  })
  return { server, mark }
}

describe("the low-water mark", () => {
  it.effect("starts at 0, where it leaves no row out", () =>
    Effect.sync(() => assert.strictEqual(scripted().mark.mark(), 0n))
  )

  it.effect("goes up to just below the first ready row", () =>
    Effect.gen(function* () {
      const { mark, server } = scripted()
      server.lastSeq = 100n
      server.ready = [41n, 60n]
      yield* mark.advance
      assert.strictEqual(mark.mark(), 40n)
    })
  )

  it.effect("goes up to where the sequence was when nothing is ready, and not to where it is by now", () =>
    Effect.gen(function* () {
      const { mark, server } = scripted()
      server.lastSeq = 100n
      server.beforeFirstReady = () => {
        server.lastSeq = 200n
      }
      yield* mark.advance
      assert.strictEqual(mark.mark(), 100n)
    })
  )

  it.effect("stays below a number that a transaction took before and has not committed", () =>
    Effect.gen(function* () {
      const { mark, server } = scripted()
      server.lastSeq = 400n
      server.writers = ["3/17"]
      yield* mark.advance
      yield* mark.advance
      assert.strictEqual(mark.mark(), 0n)
      // It commits its row 5 at last.
      server.writers = []
      server.ready = [5n]
      yield* mark.advance
      assert.strictEqual(mark.mark(), 4n)
    })
  )

  it.effect("does not wait for transactions that began after its round did", () =>
    Effect.gen(function* () {
      const { mark, server } = scripted()
      server.lastSeq = 100n
      server.writers = ["3/17"]
      yield* mark.advance
      server.lastSeq = 200n
      server.writers = ["4/1"]
      yield* mark.advance
      assert.strictEqual(mark.mark(), 100n)
      server.lastSeq = 300n
      server.writers = ["5/1"]
      yield* mark.advance
      assert.strictEqual(mark.mark(), 200n)
    })
  )

  it.effect("never goes down while the server is the same", () =>
    Effect.gen(function* () {
      const { mark, server } = scripted()
      server.lastSeq = 100n
      yield* mark.advance
      server.ready = [50n]
      yield* mark.advance
      assert.strictEqual(mark.mark(), 100n)
    })
  )

  it.effect("goes back to 0 when the sequence is behind it: the server is another one", () =>
    Effect.gen(function* () {
      const { mark, server } = scripted()
      server.lastSeq = 100n
      yield* mark.advance
      server.lastSeq = 60n
      server.ready = [55n]
      server.writers = ["3/1"]
      yield* mark.advance
      assert.strictEqual(mark.mark(), 0n)
    })
  )

  it.effect("does not go up by what was read before it was put back to 0", () =>
    Effect.gen(function* () {
      const { mark, server } = scripted()
      server.lastSeq = 100n
      server.beforeFirstReady = mark.reset
      yield* mark.advance
      assert.strictEqual(mark.mark(), 0n)
    })
  )

  it.effect("forgets a round that it had begun when it is put back to 0", () =>
    Effect.gen(function* () {
      const { mark, server } = scripted()
      server.lastSeq = 100n
      server.writers = ["3/17"]
      yield* mark.advance
      mark.reset()
      server.lastSeq = 40n
      server.writers = ["3/99"]
      yield* mark.advance
      assert.strictEqual(mark.mark(), 0n)
    })
  )

  it.effect("begins bounded claims above a run of held rows, and leaves their aggregates out", () =>
    Effect.gen(function* () {
      const { mark, server } = scripted()
      server.lastSeq = 100n
      server.ready = [11n, 12n, 13n, 60n]
      server.held = new Map([
        [11n, "x"],
        [12n, "y"],
        [13n, "x"]
      ])
      yield* mark.advance
      assert.deepStrictEqual(mark.floor(), { above: 10n, leftOut: [] })
      yield* mark.advance
      assert.strictEqual(mark.mark(), 10n)
      assert.deepStrictEqual(mark.floor(), {
        above: 59n,
        leftOut: [
          { id: "x", type: "" },
          { id: "y", type: "" }
        ]
      })
    })
  )

  it.effect("begins no higher than where late rows can no longer turn up, however far the held rows go", () =>
    Effect.gen(function* () {
      const { mark, server } = scripted()
      server.lastSeq = 100n
      server.ready = [11n]
      server.held = new Map([[11n, "x"]])
      yield* mark.advance
      server.lastSeq = 200n
      server.writers = ["3/17"]
      yield* mark.advance
      assert.deepStrictEqual(mark.floor(), { above: 100n, leftOut: [{ id: "x", type: "" }] })
    })
  )

  it.effect("comes back down to the rows of an aggregate that is held no longer", () =>
    Effect.gen(function* () {
      const { mark, server } = scripted()
      server.lastSeq = 100n
      server.ready = [11n, 60n]
      server.held = new Map([[11n, "x"]])
      yield* mark.advance
      yield* mark.advance
      assert.strictEqual(mark.floor().above, 59n)
      assert.isFalse(yield* mark.advance)
      server.held.clear()
      assert.isTrue(yield* mark.advance)
      assert.deepStrictEqual(mark.floor(), { above: 10n, leftOut: [] })
    })
  )

  it.effect("does not look for held rows while the mark moves, or when nothing is ready", () =>
    Effect.gen(function* () {
      const { mark, server } = scripted()
      server.lastSeq = 100n
      server.ready = [50n]
      yield* mark.advance
      server.ready = []
      yield* mark.advance
      yield* mark.advance
      assert.strictEqual(server.heldLooks, 0)
    })
  )
})
