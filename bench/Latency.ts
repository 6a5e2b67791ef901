/**
 * `latency`: how old an event is when it reaches its consumer, at a steady rate of writes.
 */
import * as Effect from "effect/Effect"
import type { BenchError } from "./BenchError.js"
import { type Contender, peers, reference } from "./Contender.js"
import * as Cpu from "./Cpu.js"
import { processorTime } from "./Draining.js"
import * as Ends from "./Ends.js"
import type { Measurement, Options } from "./Measurement.js"
import { pgListener } from "./PgListener.js"
import type { Report } from "./programs/answers.js"
import { number, show, spread } from "./Stats.js"
import { bars } from "./Svg.js"
import { inTurns, type Outcome } from "./Turns.js"
import type { World } from "./World.js"

export const rates = [100, 1000, 3000] as const

/** Connections that write. */
const writers = 4

export interface LatencyRun extends Report {
  readonly inserted: number
  /** What the writers reached, in events per second. */
  readonly reached: number
  /** Microseconds per event. */
  readonly microseconds: ReturnType<typeof processorTime>
  readonly otherCores: number
}

export interface LatencyRow extends Outcome<LatencyRun> {
  readonly contender: string
  readonly rate: number
}

const once = (
  world: World,
  contender: Contender,
  rate: number,
  seconds: number
): Effect.Effect<LatencyRun, BenchError> =>
  Effect.scoped(
    Effect.gen(function* () {
      const site = yield* world.freshSite
      yield* contender.setUp(world, site)
      const ends = yield* Ends.open(contender, site, writers)
      const { pid } = yield* contender.start(world, site)
      const warm = yield* ends.write("warm-up", rate, 2)
      yield* ends.awaitReceived("warm-up", warm.inserted, 5)
      const accounts = {
        ...world.accounts([pid]),
        ...Object.fromEntries(ends.pids.map((end) => [`end${end}`, { pid: end, tree: false }]))
      }
      const from = Cpu.mark(accounts)
      const written = yield* ends.write("measured", rate, seconds)
      const used = Cpu.between(from, Cpu.mark(accounts))
      yield* ends.awaitReceived("measured", written.inserted, 10)
      return {
        ...(yield* ends.report("measured")),
        inserted: written.inserted,
        reached: written.inserted / written.seconds,
        microseconds: processorTime(used, written.inserted),
        otherCores: used.otherCores
      }
    })
  )

const tell = (run: LatencyRun): string =>
  [
    `p50 ${number(run.p50, 1)} p95 ${number(run.p95, 1)} p99 ${number(run.p99, 1)} ms`,
    `${number(run.reached)} events/s written`,
    `CPU ${number(run.microseconds.node)} µs of Node per event`,
    ...(run.received < run.inserted ? [`${run.inserted - run.received} NOT RECEIVED`] : []),
    ...(run.duplicates > 0 ? [`${run.duplicates} duplicates`] : []),
    ...(run.otherCores > 0.3 ? [`disturbed: ${number(run.otherCores, 1)} cores busy elsewhere`] : [])
  ].join(", ")

const measure = (world: World, options: Options): Effect.Effect<ReadonlyArray<LatencyRow>> =>
  Effect.gen(function* () {
    const contenders = [pgListener(), reference, ...(options.peers ? peers : [])]
    const pairs = rates.flatMap((rate) => contenders.map((contender) => ({ contender, rate })))
    const seconds = options.quick ? 5 : 10
    const outcomes = yield* inTurns(
      world,
      pairs.map(({ contender, rate }) => ({
        name: `${contender.name}, ${rate}/s`,
        within: "90 seconds",
        tell,
        run: once(world, contender, rate, seconds)
      })),
      options.runs
    )
    return outcomes.flatMap((outcome, index) => {
      const pair = pairs[index]
      return pair === undefined ? [] : [{ ...outcome, contender: pair.contender.name, rate: pair.rate }]
    })
  })

export const of = (row: LatencyRow, figure: (run: LatencyRun) => number) => spread(row.runs.map(figure))

export const measurement: Measurement<ReadonlyArray<LatencyRow>> = {
  name: "latency",
  title: "From the INSERT to the consumer, the commit included: milliseconds",
  measure,
  table: (rows) =>
    [
      "| contender | events/s asked | reached | p50 | p95 | p99 | not received | twice |",
      "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
      ...rows.map((row) => {
        const sum = (figure: (run: LatencyRun) => number) => row.runs.reduce((total, run) => total + figure(run), 0)
        const cells = [
          number(of(row, ({ reached }) => reached).median),
          ...(["p50", "p95", "p99"] as const).map((name) =>
            show(
              of(row, (run) => run[name]),
              1
            )
          ),
          number(sum(({ inserted, received }) => inserted - received)),
          number(sum(({ duplicates }) => duplicates))
        ]
        return `| ${row.contender} | ${number(row.rate)} | ${cells.join(" | ")} |`
      })
    ].join("\n"),
  plot: (rows) =>
    bars({
      title: "From the INSERT to the consumer: p99",
      unit: "ms",
      digits: 1,
      groups: rates.map((rate) => ({
        label: `${number(rate)}/s`,
        bars: rows
          .filter((row) => row.rate === rate && row.runs.length > 0)
          // Beyond half a second nobody would see the others.
          .filter((row) => of(row, ({ p99 }) => p99).median < 500)
          .map((row) => ({ label: row.contender, value: of(row, ({ p99 }) => p99) }))
      }))
    })
}
