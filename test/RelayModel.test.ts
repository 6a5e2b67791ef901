/**
 * Promises 1, 4, 5 and 6 on histories made at random: the real relay and the real publisher between a database and a
 * broker in memory, which answer, fail, and go away as the history says. See support/model/.
 */
import { describe, it } from "@effect/vitest"
import * as FastCheck from "effect/FastCheck"
import { broken, histories } from "./support/model/relayModel.js"

/** Fails with the promises in words. The report shows the shortest such history, and the seed that repeats it. */
const keepsItsPromises = FastCheck.property(histories, (history) => {
  const promises = broken(history)
  if (promises.length > 0) throw new Error(promises.join("\n"))
})

describe("the relay, whatever happens to it", () => {
  it("loses nothing, keeps the order, and lets nobody pay for others", () => {
    FastCheck.assert(keepsItsPromises, { numRuns: 500 })
  })
})
