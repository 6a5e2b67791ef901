/**
 * `npm run bench -- [--only drain,latency,…] [--quick] [--check] [--runs N] [--minutes N] [--no-peers] [--profile] [--main FILE]`
 *
 * See README.md. Exit code 1 when a measurement failed, or with `--check` when a goal is missed.
 */
import * as Fs from "node:fs"
import * as Path from "node:path"
import { fileURLToPath } from "node:url"
import { parseArgs } from "node:util"
import * as Console from "effect/Console"
import * as Effect from "effect/Effect"
import { runAsProcess } from "../dev/DemoInterrupts.js"
import { BenchError } from "./BenchError.js"
import * as Drain from "./Drain.js"
import * as Growth from "./Growth.js"
import { type Figures, judge } from "./goals.js"
import * as Latency from "./Latency.js"
import type { Measurement, Options } from "./Measurement.js"
import * as Memory from "./Memory.js"
import * as Profile from "./Profile.js"
import * as Results from "./Results.js"
import * as StartUp from "./StartUp.js"
import * as Steady from "./Steady.js"
import * as World from "./World.js"
import * as Writers from "./Writers.js"

const root = fileURLToPath(new URL("..", import.meta.url))

const usage = (reason: string) => new BenchError({ what: "the command line", reason })

const wholeNumber = (name: string, text: string) =>
  /^[1-9]\d*$/.test(text) ? Effect.succeed(Number(text)) : usage(`--${name} takes a whole number, and not ${text}`)

const readCommandLine = Effect.gen(function* () {
  const { values } = yield* Effect.try({
    try: () =>
      parseArgs({
        options: {
          only: { type: "string", default: names.join(",") },
          quick: { type: "boolean", default: false },
          check: { type: "boolean", default: false },
          runs: { type: "string" },
          minutes: { type: "string" },
          "no-peers": { type: "boolean", default: false },
          profile: { type: "boolean", default: false },
          main: { type: "string", default: Path.join(root, "dist", "main.js") }
        }
      }),
    catch: (error) => usage(`${error}`)
  })
  const only = values.only.split(",")
  for (const name of only) {
    if (!names.includes(name)) return yield* usage(`there is no measurement "${name}"; there are ${names.join(", ")}`)
  }
  const { quick } = values
  const options: Options = {
    quick,
    runs: yield* wholeNumber("runs", values.runs ?? (quick ? "3" : "5")),
    minutes: yield* wholeNumber("minutes", values.minutes ?? (quick ? "2" : "30")),
    peers: !values["no-peers"],
    profile: values.profile
  }
  return { options, only, check: values.check, serviceMain: Path.resolve(values.main) }
})

/** Runs one, and puts its figures where the goals find them. Answers whether it went well. */
const run = <Name extends keyof Figures & string>(
  world: World.World,
  options: Options,
  measurement: Measurement<NonNullable<Figures[Name]>> & { readonly name: string },
  keep: (rows: NonNullable<Figures[Name]>) => void
) =>
  Effect.gen(function* () {
    yield* Console.log(`\n== ${measurement.title}`)
    const rows = yield* measurement.measure(world, options)
    keep(rows)
    yield* Console.log(`\n${yield* Results.write(world, options, measurement, rows)}`)
    return true
  }).pipe(
    Effect.catchAll((error) => Effect.as(Console.error(`${measurement.name} FAILED: ${error.message}`), false)),
    Effect.catchAllDefect((defect) => Effect.as(Console.error(`${measurement.name} FAILED: ${defect}`), false))
  )

const figures: { -readonly [Name in keyof Figures]: Figures[Name] } = {}

/** In the order in which they run: the quick ones first. */
const all = {
  start: (world: World.World, options: Options) =>
    run<"start">(world, options, StartUp.measurement, (rows) => {
      figures.start = rows
    }),
  drain: (world: World.World, options: Options) =>
    run<"drain">(world, options, Drain.measurement, (rows) => {
      figures.drain = rows
    }),
  latency: (world: World.World, options: Options) =>
    run<"latency">(world, options, Latency.measurement, (rows) => {
      figures.latency = rows
    }),
  memory: (world: World.World, options: Options) =>
    run<"memory">(world, options, Memory.measurement, (rows) => {
      figures.memory = rows
    }),
  writers: (world: World.World, options: Options) =>
    run<"writers">(world, options, Writers.measurement, (rows) => {
      figures.writers = rows
    }),
  growth: (world: World.World, options: Options) =>
    run<"growth">(world, options, Growth.measurement, (rows) => {
      figures.growth = rows
    }),
  steady: (world: World.World, options: Options) =>
    run<"steady">(world, options, Steady.measurement, (rows) => {
      figures.steady = rows
    })
}

const names: ReadonlyArray<string> = Object.keys(all)

const bench = Effect.gen(function* () {
  const { check, only, options, serviceMain } = yield* readCommandLine
  const folder = Path.join(root, ".data", `bench-${process.pid}`)
  // Before the servers, so that it runs after they stopped. Logs and profiles stay.
  yield* Effect.addFinalizer(() =>
    Effect.sync(() => {
      for (const part of ["postgres/data", "rabbitmq/mnesia"]) {
        Fs.rmSync(Path.join(folder, part), { recursive: true, force: true, maxRetries: 3 })
      }
    })
  )
  yield* Console.log(`Starting PostgreSQL and RabbitMQ in ${folder}...`)
  const world = yield* World.make({ folder, serviceMain })
  yield* Console.log(
    Object.entries(world.machine)
      .map(([name, value]) => `${name} ${value}`)
      .join(", ")
  )

  const wentWell = yield* Effect.forEach(
    Object.entries(all).filter(([name]) => only.includes(name)),
    ([, measure]) => measure(world, options)
  )
  if (options.profile) yield* Console.log(`\n${Profile.describeAll(Path.join(folder, "runs"))}`)
  const { missed, table } = judge(figures)
  if (table !== "") yield* Console.log(`\n== Goals\n\n${table}`)
  if (wentWell.includes(false)) return yield* new BenchError({ what: "bench", reason: "a measurement failed" })
  if (check && missed.length > 0) {
    return yield* new BenchError({ what: "bench", reason: `missed goals: ${missed.join("; ")}` })
  }
})

bench.pipe(Effect.scoped, (program) => runAsProcess(program, { mustFinish: true }))
