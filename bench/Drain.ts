/**
 * `drain`: how fast a backlog goes out, and what it costs, side by side with the reference and the peers.
 */
import * as Effect from "effect/Effect"
import { type Contender, peers, reference } from "./Contender.js"
import { type Drained, drain, tell } from "./Draining.js"
import type { Measurement, Options } from "./Measurement.js"
import { pgListener } from "./PgListener.js"
import type { QueueType } from "./Queues.js"
import { number, show, spread } from "./Stats.js"
import { bars } from "./Svg.js"
import { inTurns, type Outcome } from "./Turns.js"
import type { World } from "./World.js"

export const targets = ["one classic queue", "five classic queues", "one quorum queue"] as const
export type Target = (typeof targets)[number]

const queuesOf: Readonly<Record<Target, { readonly queues: number; readonly queueType: QueueType }>> = {
  "one classic queue": { queues: 1, queueType: "classic" },
  "five classic queues": { queues: 5, queueType: "classic" },
  "one quorum queue": { queues: 1, queueType: "quorum" }
}

export interface DrainRow extends Outcome<Drained> {
  readonly contender: string
  readonly target: Target
}

const caseOf = (world: World, options: Options, contender: Contender, target: Target) => ({
  name: `${contender.name}, ${target}`,
  within: "4 minutes" as const,
  tell,
  run: drain(world, contender, {
    ...queuesOf[target],
    events: options.quick ? 20_000 : 200_000,
    windowSeconds: contender === reference || contender.name === "pg-listener" ? 90 : 20,
    profile: options.profile
  })
})

const measure = (world: World, options: Options): Effect.Effect<ReadonlyArray<DrainRow>> =>
  Effect.gen(function* () {
    const ours = pgListener()
    const pairs = [
      ...targets.flatMap((target) => [ours, reference].map((contender) => ({ contender, target }))),
      ...(options.peers ? peers.map((contender) => ({ contender, target: targets[0] })) : [])
    ]
    const outcomes = yield* inTurns(
      world,
      pairs.map(({ contender, target }) => caseOf(world, options, contender, target)),
      options.runs
    )
    return outcomes.flatMap((outcome, index) => {
      const pair = pairs[index]
      return pair === undefined ? [] : [{ ...outcome, contender: pair.contender.name, target: pair.target }]
    })
  })

export const rateOf = (row: DrainRow) => spread(row.runs.map(({ eventsPerSecond }) => eventsPerSecond))

const correctness = ({ failures, runs }: DrainRow): string => {
  const sum = (of: (run: Drained) => number) => runs.reduce((total, run) => total + of(run), 0)
  const finished = runs.filter(({ complete }) => complete).length
  return [
    `${finished} of ${runs.length} finished`,
    `${sum(({ lost }) => lost)} lost`,
    `${sum(({ duplicates }) => duplicates)} twice`,
    ...(failures.length > 0 ? [`${failures.length} failed`] : [])
  ].join(", ")
}

const table = (rows: ReadonlyArray<DrainRow>): string =>
  [
    "| contender | to | events/s | CPU per event, µs: Node | PostgreSQL | RabbitMQ | runs |",
    "| --- | --- | ---: | ---: | ---: | ---: | --- |",
    ...rows.map((row) => {
      const cpu = (of: (run: Drained) => number) => number(spread(row.runs.map(of)).median)
      return `| ${row.contender} | ${row.target} | ${show(rateOf(row))} | ${cpu(({ microseconds }) => microseconds.node)} | ${cpu(({ microseconds }) => microseconds.postgres)} | ${cpu(({ microseconds }) => microseconds.rabbitMq)} | ${correctness(row)} |`
    })
  ].join("\n")

export const measurement: Measurement<ReadonlyArray<DrainRow>> = {
  name: "drain",
  title: "Draining a backlog: events per second",
  measure,
  table,
  plot: (rows) =>
    bars({
      title: "Draining a backlog",
      unit: "events/s",
      groups: targets.map((target) => ({
        label: target,
        bars: rows
          .filter((row) => row.target === target && row.runs.length > 0)
          .map((row) => ({ label: row.contender, value: rateOf(row) }))
      }))
    })
}
