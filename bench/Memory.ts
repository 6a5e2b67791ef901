/**
 * `memory`: what the service needs while it drains a backlog, by the size of that backlog.
 */
import * as Effect from "effect/Effect"
import type { BenchError } from "./BenchError.js"
import { memoryOf } from "./Cpu.js"
import { drainOn, fill } from "./Draining.js"
import type { Measurement, Options } from "./Measurement.js"
import { pgListener } from "./PgListener.js"
import { number, spread } from "./Stats.js"
import { lines } from "./Svg.js"
import { inTurns, type Outcome } from "./Turns.js"
import type { World } from "./World.js"

const megabyte = 2 ** 20

export interface MemoryRun {
  /** Megabytes resident: at the end of the drain or after the window, and the most there ever was. */
  readonly resident: number
  readonly most: number
}

export interface MemoryRow extends Outcome<MemoryRun> {
  readonly pending: number
  readonly withAggregates: boolean
}

const once = (
  world: World,
  pending: number,
  withAggregates: boolean,
  windowSeconds: number
): Effect.Effect<MemoryRun, BenchError> =>
  Effect.scoped(
    Effect.gen(function* () {
      const contender = pgListener(withAggregates)
      const site = yield* world.freshSite
      yield* contender.setUp(world, site)
      yield* fill(contender, site, pending, 1)
      let seen: MemoryRun = { resident: Number.NaN, most: Number.NaN }
      yield* drainOn(
        world,
        contender,
        site,
        { events: pending, queues: 1, queueType: "classic", windowSeconds },
        ([service]) =>
          Effect.sync(() => {
            if (service === undefined) return
            const { most, now } = memoryOf(service.pid)
            seen = { resident: now / megabyte, most: most / megabyte }
          })
      )
      return seen
    })
  )

const measure = (world: World, options: Options): Effect.Effect<ReadonlyArray<MemoryRow>> =>
  Effect.gen(function* () {
    const sizes = options.quick ? [1000, 10_000, 100_000] : [1000, 10_000, 100_000, 1_000_000]
    const pairs = [true, false].flatMap((withAggregates) => sizes.map((pending) => ({ pending, withAggregates })))
    const outcomes = yield* inTurns(
      world,
      pairs.map(({ pending, withAggregates }) => ({
        name: `${pending} pending, ${withAggregates ? "with" : "without"} aggregates`,
        within: "5 minutes",
        tell: ({ most, resident }: MemoryRun) => `${number(resident)} MB resident, ${number(most)} MB at most`,
        run: once(world, pending, withAggregates, 40)
      })),
      1
    )
    return outcomes.flatMap((outcome, index) => {
      const pair = pairs[index]
      return pair === undefined ? [] : [{ ...outcome, ...pair }]
    })
  })

export const most = (row: MemoryRow): number => spread(row.runs.map((run) => run.most)).max

export const measurement: Measurement<ReadonlyArray<MemoryRow>> = {
  name: "memory",
  title: "Resident memory by the size of the backlog: megabytes",
  measure,
  table: (rows) =>
    [
      "| events pending | aggregates | resident after the drain or 40 s of it | most ever |",
      "| ---: | --- | ---: | ---: |",
      ...rows.map(
        (row) =>
          `| ${number(row.pending)} | ${row.withAggregates ? "10,000" : "none"} | ${number(spread(row.runs.map(({ resident }) => resident)).median)} | ${number(most(row))} |`
      )
    ].join("\n"),
  plot: (rows) =>
    lines({
      title: "Resident memory, the most there ever was",
      unitX: "events pending",
      unitY: "MB",
      logX: true,
      lines: [true, false].map((withAggregates) => ({
        label: withAggregates ? "10,000 aggregates" : "no aggregates",
        points: rows
          .filter((row) => row.withAggregates === withAggregates && row.runs.length > 0)
          .map((row) => ({ x: row.pending, y: most(row) }))
      }))
    })
}
