import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import * as LowWater from "../src/LowWater.js"

/** A database as the mark sees it: what is committed and ready, which transactions are open, how far the sequence is. */
const scripted = () => {
  const server = {
    lastSeq: 0n,
    writers: [] as Array<LowWater.OpenWriter>,
    ready: [] as Array<bigint>,
    beforeFirstReady: () => {}
  }
  const mark = LowWater.make<never>({
    lastSeq: Effect.sync(() => server.lastSeq),
    openWriters: Effect.sync(() => Array.from(server.writers)),
    firstReadyAbove: (above) =>
      Effect.sync(() => {
        server.beforeFirstReady()
        return Option.fromNullable(server.ready.filter((seq) => seq > above).sort((a, b) => (a < b ? -1 : 1))[0])
      })
  })
  return { server, mark }
}

const session = (transaction: string): LowWater.OpenWriter => ({ transaction, prepared: false })
const prepared = (transaction: string): LowWater.OpenWriter => ({ transaction, prepared: true })

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
      server.writers = [session("3/17")]
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
      server.writers = [session("3/17")]
      yield* mark.advance
      server.lastSeq = 200n
      server.writers = [session("4/1")]
      yield* mark.advance
      assert.strictEqual(mark.mark(), 100n)
      server.lastSeq = 300n
      server.writers = [session("5/1")]
      yield* mark.advance
      assert.strictEqual(mark.mark(), 200n)
    })
  )

  it.effect("waits for a transaction that was prepared meanwhile, under its new name", () =>
    Effect.gen(function* () {
      const { mark, server } = scripted()
      server.lastSeq = 100n
      server.writers = [session("3/17")]
      yield* mark.advance
      server.writers = [prepared("-1/777")]
      yield* mark.advance
      server.writers = [prepared("-1/777"), prepared("-1/888")]
      yield* mark.advance
      assert.strictEqual(mark.mark(), 0n)
      // 888 came after the last session of the round had ended, so it is none of the round's.
      server.writers = [prepared("-1/888")]
      yield* mark.advance
      assert.strictEqual(mark.mark(), 100n)
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
      server.writers = [session("3/1")]
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
      server.writers = [session("3/17")]
      yield* mark.advance
      mark.reset()
      server.lastSeq = 40n
      server.writers = [session("3/99")]
      yield* mark.advance
      assert.strictEqual(mark.mark(), 0n)
    })
  )
})
