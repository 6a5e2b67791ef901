/**
 * `start`: how long the service takes from the start of its process to the first 200 of `/readyz`, with both servers up.
 */
import * as Effect from "effect/Effect"
import type { Measurement, Options } from "./Measurement.js"
import * as PgListener from "./PgListener.js"
import { number, show, spread } from "./Stats.js"
import { bars } from "./Svg.js"
import { inTurns, type Outcome } from "./Turns.js"
import type { World } from "./World.js"

const starts = 5

const measure = (world: World, options: Options): Effect.Effect<ReadonlyArray<Outcome<number>>> => {
  const once = (env: Readonly<Record<string, string>>) =>
    Effect.scoped(
      Effect.gen(function* () {
        const site = yield* world.freshSite
        yield* PgListener.pgListener().setUp(world, site)
        // The first one finds no queue yet and declares them; that is part of a start as well.
        return (yield* PgListener.start(world, site, { env })).readyAfterMillis
      })
    )
  const caseOf = (name: string, env: Readonly<Record<string, string>>) => ({
    name,
    within: "1 minute" as const,
    tell: (millis: number) => `ready after ${number(millis)} ms`,
    run: once(env)
  })
  return inTurns(world, [caseOf("default settings", {})], Math.max(starts, options.runs))
}

export const measurement: Measurement<ReadonlyArray<Outcome<number>>> = {
  name: "start",
  title: "From the start of the process to ready",
  measure,
  table: (rows) =>
    [
      "| case | ready after, ms |",
      "| --- | ---: |",
      ...rows.map(({ name, runs }) => `| ${name} | ${show(spread(runs))} |`)
    ].join("\n"),
  plot: (rows) =>
    bars({
      title: "From the start of the process to ready",
      unit: "ms",
      groups: [{ label: "", bars: rows.map(({ name, runs }) => ({ label: name, value: spread(runs) })) }]
    })
}
