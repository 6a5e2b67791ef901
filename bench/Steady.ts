/**
 * `steady`: minutes of a steady load with a short retention. The table, its indexes and the memory must come to a size and
 * keep it.
 */
import * as Console from "effect/Console"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import type { BenchError } from "./BenchError.js"
import { memoryOf } from "./Cpu.js"
import * as Ends from "./Ends.js"
import type { Measurement, Options } from "./Measurement.js"
import { pgListener } from "./PgListener.js"
import { number } from "./Stats.js"
import { lines } from "./Svg.js"
import { failedSql, sqlOn, type World } from "./World.js"

/** Events per second. */
const rate = 1000

/** So that rows are deleted as fast as they come from the second minute on. */
const env = { PG_LISTENER_RETENTION: "1 minute", PG_LISTENER_CLEANUP_INTERVAL: "10 seconds" }

const sampleSeconds = 10
const megabyte = 2 ** 20

export interface SteadySample {
  readonly seconds: number
  readonly tableMegabytes: number
  readonly indexMegabytes: number
  readonly residentMegabytes: number
  /** Milliseconds from the INSERT to the consumer, since the sample before. */
  readonly p50: number
  readonly p99: number
  readonly pending: number
}

export interface SteadyRows {
  readonly samples: ReadonlyArray<SteadySample>
  readonly inserted: number
  readonly received: number
  readonly duplicates: number
}

const sizes = `
  select pg_table_size('event_outbox')::float8 as in_table, pg_indexes_size('event_outbox')::float8 as in_indexes,
    (select count(*) from event_outbox where processed_at is null and dead_at is null and retry_after is null)::float8
      as pending`

const measure = (world: World, options: Options): Effect.Effect<SteadyRows, BenchError> =>
  Effect.scoped(
    Effect.gen(function* () {
      const contender = pgListener()
      const site = yield* world.freshSite
      yield* contender.setUp(world, site)
      const ends = yield* Ends.open(contender, site, 8)
      const service = yield* contender.start(world, site, { env })
      const { query } = yield* sqlOn(site.databaseUrl)
      const samples: Array<SteadySample> = []

      const sample = Effect.gen(function* () {
        const seconds = (samples.length + 1) * sampleSeconds
        const [row] = yield* Effect.mapError(
          query<{ in_table: number; in_indexes: number; pending: number }>(sizes),
          failedSql
        )
        const { p50, p99 } = yield* ends.report("steady", seconds - sampleSeconds, seconds)
        const one: SteadySample = {
          seconds,
          tableMegabytes: (row?.in_table ?? Number.NaN) / megabyte,
          indexMegabytes: (row?.in_indexes ?? Number.NaN) / megabyte,
          residentMegabytes: memoryOf(service.pid).now / megabyte,
          p50,
          p99,
          pending: row?.pending ?? Number.NaN
        }
        samples.push(one)
        if (samples.length % 6 !== 0) return
        yield* Console.log(
          `  minute ${seconds / 60} of ${options.minutes}: table ${number(one.tableMegabytes)} MB, indexes ${number(one.indexMegabytes)} MB, memory ${number(one.residentMegabytes)} MB, p99 ${number(p99, 1)} ms`
        )
      })

      const writing = yield* Effect.fork(ends.write("steady", rate, options.minutes * 60))
      yield* Effect.delay(sample, `${sampleSeconds} seconds`).pipe(
        Effect.repeat({ times: options.minutes * (60 / sampleSeconds) - 1 })
      )
      const { inserted } = yield* Fiber.join(writing)
      yield* ends.awaitReceived("steady", inserted, 10)
      const { duplicates, received } = yield* ends.report("steady")
      return { samples, inserted, received, duplicates }
    })
  )

const total = ({ indexMegabytes, tableMegabytes }: SteadySample) => indexMegabytes + tableMegabytes

/** The largest size in the last third of the time over the largest in the third before it. */
export const diskGrowth = ({ samples }: SteadyRows): number => {
  const third = Math.floor(samples.length / 3)
  const most = (some: ReadonlyArray<SteadySample>) => Math.max(...some.map(total))
  return most(samples.slice(2 * third)) / most(samples.slice(third, 2 * third))
}

export const measurement: Measurement<SteadyRows> = {
  name: "steady",
  title: `A steady ${number(rate)} events/s with one minute of retention`,
  measure,
  table: ({ duplicates, inserted, received, samples }) => {
    const every = Math.max(1, Math.floor(samples.length / 15))
    return [
      "| after, s | table, MB | indexes, MB | resident memory, MB | p50, ms | p99, ms | pending |",
      "| ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
      ...samples
        .filter((_, index) => (index + 1) % every === 0)
        .map(
          (one) =>
            `| ${one.seconds} | ${number(one.tableMegabytes)} | ${number(one.indexMegabytes)} | ${number(one.residentMegabytes)} | ${number(one.p50, 1)} | ${number(one.p99, 1)} | ${number(one.pending)} |`
        ),
      "",
      `${number(inserted)} events written, ${number(received)} received, ${number(duplicates)} twice.`
    ].join("\n")
  },
  plot: ({ samples }) =>
    lines({
      title: `A steady ${number(rate)} events/s with one minute of retention`,
      unitX: "seconds",
      unitY: "MB",
      lines: [
        { label: "table", points: samples.map((one) => ({ x: one.seconds, y: one.tableMegabytes })) },
        { label: "indexes", points: samples.map((one) => ({ x: one.seconds, y: one.indexMegabytes })) },
        { label: "the service's memory", points: samples.map((one) => ({ x: one.seconds, y: one.residentMegabytes })) }
      ]
    })
}
