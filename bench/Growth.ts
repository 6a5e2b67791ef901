/**
 * `growth`: whether the service stays as quick when the table is large, when rows are in the way, when a forgotten
 * transaction keeps an old snapshot; and what more workers and more replicas do.
 */
import * as Console from "effect/Console"
import * as Effect from "effect/Effect"
import type { BenchError } from "./BenchError.js"
import { type DrainedWithClaims, drainWithClaims } from "./Claims.js"
import { type Drained, drain, tell } from "./Draining.js"
import type { Measurement, Options } from "./Measurement.js"
import { pgListener } from "./PgListener.js"
import * as Snapshot from "./Snapshot.js"
import { number, show, spread } from "./Stats.js"
import { bars } from "./Svg.js"
import { inTurns, type Outcome } from "./Turns.js"
import { runOn, type World } from "./World.js"

export type ClaimRow = Outcome<DrainedWithClaims>

export type ScalingRow = Outcome<Drained>

export interface GrowthRows {
  readonly claims: ReadonlyArray<ClaimRow>
  readonly snapshots: ReadonlyArray<Snapshot.SnapshotRow>
  readonly scaling: ReadonlyArray<ScalingRow>
}

export const emptyTable = "an empty table"

interface Load {
  readonly name: string
  /** What is in the table before the events that are drained. */
  readonly seed: ReadonlyArray<string>
  readonly held: number
}

const rows = (columns: string, values: string, count: number) =>
  `insert into event_outbox (channel, aggregate_type, aggregate_id, payload, ${columns})
   select 'booking_event', 'order', ${values} from generate_series(1, ${count}) i`

const body = `jsonb_build_object('i', i, 'customer', gen_random_uuid(), 'note', repeat('x', 220))`

/** Rows at a time, so that no statement runs for minutes without a word. */
const chunk = 500_000

const loads = (quick: boolean): ReadonlyArray<Load> => {
  const kept = quick ? 1_000_000 : 10_000_000
  const heldRows = 100_000
  return [
    { name: emptyTable, seed: [], held: 0 },
    {
      name: "10,000 dead letters at the head",
      seed: [rows("attempts, last_error, dead_at", `i::text, ${body}, 10, 'refused', now()`, 10_000)],
      held: 0
    },
    {
      name: `${number(heldRows)} rows behind a failing one of their aggregate`,
      seed: [
        rows("attempts, last_error, retry_after", `'stuck', ${body}, 3, 'refused', now() + interval '1 hour'`, 1),
        `insert into event_outbox (channel, aggregate_type, aggregate_id, payload)
         select 'booking_event', 'order', 'stuck', ${body} from generate_series(1, ${heldRows}) i`
      ],
      held: heldRows
    },
    {
      name: `${number(kept)} processed rows kept`,
      seed: Array<string>(kept / chunk).fill(rows("processed_at", `i::text, ${body}, now()`, chunk)),
      held: 0
    }
  ]
}

const drainOptions = (quick: boolean) =>
  ({ events: quick ? 20_000 : 50_000, queues: 1, queueType: "classic", windowSeconds: 60 }) as const

/** A site per load, and all drains on it: filling ten million rows again would take minutes. */
const measureClaims = (world: World, options: Options): Effect.Effect<ReadonlyArray<ClaimRow>> =>
  Effect.forEach(loads(options.quick), ({ held, name, seed }) =>
    Effect.scoped(
      Effect.gen(function* () {
        const site = yield* world.freshSite
        yield* pgListener().setUp(world, site)
        if (seed.length > 0) yield* Console.log(`  filling: ${name}`)
        yield* runOn(site, [...seed, "vacuum analyze event_outbox"])
        return yield* inTurns(
          world,
          [
            {
              name,
              within: "3 minutes" as const,
              tell: (run: DrainedWithClaims) =>
                `claim ${number(run.claims.mean, 2)} ms (${run.claims.fullCalls} of ${run.claims.calls} full), ${tell(run)}`,
              run: drainWithClaims(world, site, { ...drainOptions(options.quick), held })
            }
          ],
          Math.min(options.runs, 3)
        )
      })
    ).pipe(
      Effect.catchAll((error: BenchError) =>
        Effect.as(Console.log(`  ${name} FAILED: ${error.message}`), [{ name, runs: [], failures: [error.message] }])
      )
    )
  ).pipe(Effect.map((all) => all.flat()))

const measureScaling = (world: World, options: Options): Effect.Effect<ReadonlyArray<ScalingRow>> => {
  const cases: ReadonlyArray<{ readonly name: string; readonly workers: number; readonly replicas: number }> = [
    ...[1, 2, 3, 4].map((workers) => ({ name: `1 replica, ${workers} worker(s)`, workers, replicas: 1 })),
    ...[2, 3].map((replicas) => ({ name: `${replicas} replicas, 2 workers each`, workers: 2, replicas }))
  ]
  return inTurns(
    world,
    cases.map(({ name, replicas, workers }) => ({
      name,
      within: "3 minutes",
      tell,
      run: drain(world, pgListener(), {
        ...drainOptions(options.quick),
        events: options.quick ? 20_000 : 100_000,
        queues: 5,
        replicas,
        env: { PG_LISTENER_WORKERS: `${workers}` }
      })
    })),
    Math.min(options.runs, 3)
  )
}

export const claimOf = (row: ClaimRow) => spread(row.runs.map(({ claims }) => claims.mean))
export const rateOf = (row: Outcome<Drained>) => spread(row.runs.map(({ eventsPerSecond }) => eventsPerSecond))

export const measurement: Measurement<GrowthRows> = {
  name: "growth",
  title: "When the table grows, when rows are in the way, and with more workers",
  measure: (world, options) =>
    Effect.gen(function* () {
      const claims = yield* measureClaims(world, options)
      const snapshots = yield* Snapshot.measure(world, options)
      const scaling = yield* measureScaling(world, options)
      return { claims, snapshots, scaling }
    }),
  table: ({ claims, scaling, snapshots }) =>
    [
      "| in the table beside the backlog | one claim, ms | full claims among them | drain, events/s |",
      "| --- | ---: | ---: | ---: |",
      ...claims.map((row) => {
        const full = spread(row.runs.map(({ claims }) => (100 * claims.fullCalls) / claims.calls)).median
        return `| ${row.name} | ${show(claimOf(row), 2)} | ${number(full)} % | ${show(rateOf(row))} |`
      }),
      "",
      Snapshot.table(snapshots),
      "",
      "| workers | drain to five queues, events/s | Node's CPU per event, µs |",
      "| --- | ---: | ---: |",
      ...scaling.map(
        (row) =>
          `| ${row.name} | ${show(rateOf(row))} | ${number(spread(row.runs.map(({ microseconds }) => microseconds.node)).median)} |`
      )
    ].join("\n"),
  plot: ({ claims }) =>
    bars({
      title: "One claim while a backlog is drained",
      unit: "ms",
      digits: 2,
      groups: claims
        .filter(({ runs }) => runs.length > 0)
        .map((row) => ({ label: row.name, bars: [{ label: "claim", value: claimOf(row) }] }))
    })
}
