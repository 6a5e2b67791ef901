/**
 * `npm run faults -- --seed N --rounds M [--round R] [--keep]`: a fault campaign against the built service.
 *
 * The seed decides the schedule of every round; `--round R` begins with round R, and `--keep` keeps the logs of a campaign that went well.
 * Exit code 1 when the ledger complained about any round.
 */
import * as Fs from "node:fs"
import * as Path from "node:path"
import { fileURLToPath } from "node:url"
import { parseArgs } from "node:util"
import * as Clock from "effect/Clock"
import * as Console from "effect/Console"
import * as Data from "effect/Data"
import * as Effect from "effect/Effect"
import { runAsProcess } from "../../dev/DemoInterrupts.js"
import * as Report from "./Report.js"
import * as Round from "./Round.js"
import * as Schedule from "./Schedule.js"
import * as World from "./World.js"

class CampaignFailed extends Data.TaggedError("CampaignFailed")<{ readonly message: string }> {}

const loadSeconds = [6, 10] as const

const wholeNumber = (name: string, text: string) =>
  /^\d+$/.test(text)
    ? Effect.succeed(Number(text))
    : new CampaignFailed({ message: `--${name} takes a whole number, and not ${text}` })

const campaign = Effect.gen(function* () {
  const { values } = yield* Effect.try({
    try: () =>
      parseArgs({
        options: {
          seed: { type: "string" },
          rounds: { type: "string", default: "20" },
          round: { type: "string", default: "0" },
          keep: { type: "boolean", default: false }
        }
      }),
    catch: (error) => new CampaignFailed({ message: `${error}` })
  })
  const now = yield* Clock.currentTimeMillis
  const seed = yield* wholeNumber("seed", values.seed ?? `${now % 1_000_000}`)
  const rounds = yield* wholeNumber("rounds", values.rounds)
  const firstRound = yield* wholeNumber("round", values.round)
  const folder = fileURLToPath(new URL(`../../.data/faults/${seed}-${process.pid}`, import.meta.url))

  let isGood = false
  // Before the servers, so that it runs after they stopped.
  yield* Effect.addFinalizer(() =>
    Effect.sync(() => {
      const rest =
        isGood && !values.keep ? [folder] : ["postgres/data", "rabbitmq/mnesia"].map((data) => `${folder}/${data}`)
      for (const path of rest) Fs.rmSync(path, { recursive: true, force: true, maxRetries: 3 })
    })
  )
  yield* Console.log(`Seed ${seed}, ${rounds} round(s). Starting PostgreSQL and RabbitMQ...`)
  const world = yield* World.make(folder)
  const memory = Round.noMemory()
  const results: Array<Round.RoundResult> = []
  for (let round = firstRound; round < firstRound + rounds; round++) {
    const result = yield* Round.run(world, Schedule.make(seed, round, loadSeconds), memory)
    results.push(result)
    Fs.appendFileSync(Path.join(folder, "rounds.jsonl"), `${JSON.stringify(Report.record(result))}\n`)
    yield* Console.log(Report.line(result))
    if (result.complaints.length > 0) yield* Console.log(Report.details(result, folder))
  }
  yield* Console.log(`\n${Report.table(results)}\n`)
  const bad = results.filter(({ complaints }) => complaints.length > 0)
  if (bad.length > 0) {
    return yield* new CampaignFailed({
      message: `${bad.length} of ${results.length} rounds went wrong:\n${bad.map(({ schedule }) => `  ${Report.commandFor(schedule)}`).join("\n")}`
    })
  }
  isGood = true
  yield* Console.log(`All ${results.length} rounds went well.`)
})

campaign.pipe(Effect.scoped, (program) => runAsProcess(program, { mustFinish: true }))
