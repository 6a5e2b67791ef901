/**
 * The fault campaign in short: a dozen fixed seeds, one round each, that together use every fault. `npm run faults` runs
 * it on any seed, and for as long as one likes.
 */
import * as Fs from "node:fs"
import { fileURLToPath } from "node:url"
import { afterAll, assert, beforeAll, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Scope from "effect/Scope"
import * as Report from "./Report.js"
import * as Round from "./Round.js"
import * as Schedule from "./Schedule.js"
import * as World from "./World.js"

/** Short loads: the faults and their aftermath take their time. */
const loadSeconds = [3, 4] as const
const schedules = [6276, 10537, 14943, 20750, 35623, 28605, 2221, 4822, 671, 1953, 2908, 1045].map((seed) =>
  Schedule.make(seed, 0, loadSeconds)
)

const folder = fileURLToPath(new URL(`../../.data/faults/campaign-${process.pid}`, import.meta.url))

describe("under faults, nothing committed is lost, inverted or made up, and every duplicate has its reason", () => {
  const scope = Effect.runSync(Scope.make())
  const memory = Round.noMemory()
  let world: World.World | undefined
  const results: Array<Round.RoundResult> = []

  beforeAll(async () => {
    world = await Effect.runPromise(Scope.extend(World.make(folder), scope))
  })
  afterAll(async () => {
    await Effect.runPromise(Scope.close(scope, Exit.void))
    const isGood = results.length === schedules.length && results.every(({ complaints }) => complaints.length === 0)
    if (isGood) Fs.rmSync(folder, { recursive: true, force: true, maxRetries: 3 })
  })

  for (const schedule of schedules) {
    const names = schedule.faults.map(({ kind }) => kind.name).join(" + ")
    it.live(
      `seed ${schedule.seed}: ${names}`,
      () =>
        Effect.gen(function* () {
          if (world === undefined) return assert.fail("no world")
          const result = yield* Round.run(world, schedule, memory)
          results.push(result)
          assert.isEmpty(result.complaints, Report.details(result, folder))
        }),
      150_000
    )
  }

  it("the rounds together had every fault", () => {
    const never = [...Report.faultCounts(results)].filter(([, times]) => times === 0).map(([name]) => name)
    const failures = results.flatMap(({ carriedOut }) =>
      carriedOut.flatMap(({ failure, name }) => (failure === undefined ? [] : [`${name}: ${failure.split("\n")[0]}`]))
    )
    assert.deepStrictEqual(never, [], failures.join("\n"))
  })
})
