/**
 * Promises 1, 4, 5 and 6 on histories made at random: the real relay and the real publisher between a database and a
 * broker in memory, which answer, fail, and go away as the history says. See support/model/.
 *
 * The same hundred histories each time; `MODEL_RUNS=5000 npx vitest run test/RelayModel.test.ts` makes new ones.
 */
import { describe, it } from "@effect/vitest"
import * as Config from "effect/Config"
import * as Effect from "effect/Effect"
import * as FastCheck from "effect/FastCheck"
import * as Option from "effect/Option"
import { broken, histories } from "./support/model/relayModel.js"

const runs = Effect.runSync(Config.option(Config.integer("MODEL_RUNS")))

/** Fails with the promises in words. The report shows the shortest such history, and the seed that repeats it. */
const keepsItsPromises = FastCheck.property(histories, (history) => {
  const promises = broken(history)
  if (promises.length > 0) throw new Error(promises.join("\n"))
})

describe("the relay, whatever happens to it", () => {
  it("loses nothing, keeps the order, and lets nobody pay for others", { timeout: 3_600_000 }, () => {
    FastCheck.assert(
      keepsItsPromises,
      Option.match(runs, {
        onNone: () => ({ numRuns: 100, seed: 1 }),
        onSome: (numRuns) => ({ numRuns })
      })
    )
  })
})
