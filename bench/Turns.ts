/**
 * Cases run in turns: all of them once, then all of them again, so that a slow minute of the machine hits each alike.
 */
import * as Console from "effect/Console"
import type * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import { BenchError } from "./BenchError.js"
import type { World } from "./World.js"

export interface Case<A> {
  readonly name: string
  readonly run: Effect.Effect<A, BenchError>
  /** How one run is told in a line. */
  readonly tell: (result: A) => string
  /** A run that takes longer has failed. */
  readonly within: Duration.DurationInput
}

export interface Outcome<A> {
  readonly name: string
  readonly runs: ReadonlyArray<A>
  /** Why the other runs have no result. */
  readonly failures: ReadonlyArray<string>
}

/** After so many failures and no result a case is left out: it would only take time. */
const hopeless = 2

export const inTurns = <A>(
  world: World,
  cases: ReadonlyArray<Case<A>>,
  runs: number
): Effect.Effect<ReadonlyArray<Outcome<A>>> =>
  Effect.gen(function* () {
    const outcomes = cases.map((one) => ({ one, name: one.name, runs: [] as A[], failures: [] as string[] }))
    for (let run = 1; run <= runs; run++) {
      // Each round begins with another one, so that nobody always has the same neighbour.
      for (let i = 0; i < outcomes.length; i++) {
        const outcome = outcomes[(i + run - 1) % outcomes.length]
        if (outcome === undefined) continue
        if (outcome.runs.length === 0 && outcome.failures.length >= hopeless) continue
        const { name, one } = outcome
        yield* world.awaitQuiet
        const result = yield* one.run.pipe(
          Effect.timeoutFail({
            duration: one.within,
            onTimeout: () => new BenchError({ what: name, reason: "took too long" })
          }),
          Effect.catchAllDefect((defect) => new BenchError({ what: name, reason: `${defect}` })),
          Effect.either
        )
        if (result._tag === "Right") outcome.runs.push(result.right)
        else outcome.failures.push(result.left.message)
        const told = result._tag === "Right" ? one.tell(result.right) : `FAILED: ${result.left.message}`
        yield* Console.log(`  ${name}, run ${run} of ${runs}: ${told}`)
      }
    }
    return outcomes.map(({ failures, name, runs }) => ({ name, runs, failures }))
  })
