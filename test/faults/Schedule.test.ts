import { assert, describe, it } from "@effect/vitest"
import { faultKinds } from "./Faults.js"
import * as Prng from "./Prng.js"
import * as Schedule from "./Schedule.js"

const words = (seed: number, round: number) => Schedule.describe(Schedule.make(seed, round, [6, 10]))
const many = Array.from({ length: 500 }, (_, round) => Schedule.make(1, round, [6, 10]))

describe("a round's schedule", () => {
  it("is the same for the same seed and round, whatever was scheduled before", () => {
    const before = words(42, 7)
    words(1, 1)
    assert.deepStrictEqual(words(42, 7), before)
    assert.notDeepEqual(words(42, 8), before)
    assert.notDeepEqual(words(43, 7), before)
  })

  it("has one to four faults within the load, of one group one at most", () => {
    for (const { faults, loadMillis, replicas } of many) {
      assert.isTrue(faults.length >= 1 && faults.length <= 4)
      assert.strictEqual(new Set(faults.map(({ kind }) => kind.group)).size, faults.length)
      assert.isTrue(faults.every(({ atMillis }) => atMillis >= 300 && atMillis < loadMillis))
      assert.isTrue(replicas >= 1 && replicas <= 3)
    }
  })

  it("leaves no fault out in the long run", () => {
    const used = new Set(many.flatMap(({ faults }) => faults.map(({ kind }) => kind.name)))
    assert.strictEqual(used.size, faultKinds.length)
  })
})

describe("the campaign's random numbers", () => {
  it("are spread evenly, and unrelated between neighbouring seeds", () => {
    const of = (seed: number) => {
      const prng = Prng.make(seed, "test")
      return Array.from({ length: 10_000 }, () => prng.int(0, 9))
    }
    const [one, other] = [of(1), of(2)]
    for (let digit = 0; digit < 10; digit++) {
      assert.approximately(one.filter((n) => n === digit).length, 1000, 150)
    }
    assert.approximately(one.filter((n, place) => n === other[place]).length, 1000, 150)
  })
})
