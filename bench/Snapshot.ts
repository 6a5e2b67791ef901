/**
 * A part of `growth`: a transaction that somebody forgot. Its snapshot keeps vacuum from removing what died since, and a
 * claim that walks over all of it gets slower by the second.
 */
import * as Effect from "effect/Effect"
import * as Scope from "effect/Scope"
import type { BenchError } from "./BenchError.js"
import { type DrainedWithClaims, drainWithClaims } from "./Claims.js"
import * as Ends from "./Ends.js"
import type { Options } from "./Measurement.js"
import { pgListener } from "./PgListener.js"
import { number, show, spread } from "./Stats.js"
import { inTurns, type Outcome } from "./Turns.js"
import { failedSql, type Site, sqlOn, type World } from "./World.js"

/** Events per second. */
const rate = 2500

export interface SnapshotRun {
  readonly reached: number
  /** Milliseconds from the INSERT to the consumer, in the last third of the load. */
  readonly p50: number
  readonly p99: number
  /** A backlog drained afterwards, with the snapshot still held. */
  readonly drain: DrainedWithClaims
}

export interface SnapshotRow extends Outcome<SnapshotRun> {
  readonly held: boolean
}

/** A transaction that has looked once, and then stays open until the scope ends. */
const forget = (site: Site) =>
  Effect.gen(function* () {
    const { query } = yield* sqlOn(site.databaseUrl)
    yield* query("begin isolation level repeatable read")
    yield* query("select count(*) from pg_class")
  }).pipe(Effect.mapError((error) => (error._tag === "SqlFailed" ? failedSql(error) : error)))

const load = (world: World, site: Site, held: Effect.Effect<void, BenchError>, seconds: number) =>
  Effect.scoped(
    Effect.gen(function* () {
      const ends = yield* Ends.open(pgListener(), site, 8)
      yield* pgListener().start(world, site)
      yield* ends.write("warm-up", rate, 3)
      yield* held
      const written = yield* ends.write("measured", rate, seconds)
      yield* ends.awaitReceived("measured", written.inserted, 10)
      const { p50, p99 } = yield* ends.report("measured", (seconds * 2) / 3)
      return { p50, p99, reached: written.inserted / written.seconds }
    })
  )

const once = (world: World, held: boolean, seconds: number, events: number): Effect.Effect<SnapshotRun, BenchError> =>
  Effect.scoped(
    Effect.gen(function* () {
      const site = yield* world.freshSite
      yield* pgListener().setUp(world, site)
      const scope = yield* Effect.scope
      const hold = held ? Effect.provideService(forget(site), Scope.Scope, scope) : Effect.void
      const underLoad = yield* load(world, site, hold, seconds)
      const drain = yield* drainWithClaims(world, site, { events, queues: 1, queueType: "classic", windowSeconds: 60 })
      return { ...underLoad, drain }
    })
  )

export const measure = (world: World, options: Options): Effect.Effect<ReadonlyArray<SnapshotRow>> =>
  Effect.gen(function* () {
    const cases = [false, true]
    const outcomes = yield* inTurns(
      world,
      cases.map((held) => ({
        name: held ? "an old snapshot held" : "no old snapshot",
        within: "4 minutes" as const,
        tell: ({ drain, p50, p99, reached }: SnapshotRun) =>
          `p50 ${number(p50, 1)} p99 ${number(p99, 1)} ms at ${number(reached)}/s; then ${number(drain.eventsPerSecond)} events/s drained, claim ${number(drain.claims.mean, 2)} ms`,
        run: once(world, held, options.quick ? 15 : 60, options.quick ? 20_000 : 50_000)
      })),
      Math.min(options.runs, 3)
    )
    return outcomes.flatMap((outcome, index) => {
      const held = cases[index]
      return held === undefined ? [] : [{ ...outcome, held }]
    })
  })

export const of = (row: SnapshotRow, figure: (run: SnapshotRun) => number) => spread(row.runs.map(figure))

export const table = (rows: ReadonlyArray<SnapshotRow>): string =>
  [
    `| at ${number(rate)} events/s asked | reached | p50 at the end, ms | p99, ms | drain then, events/s | one claim then, ms |`,
    "| --- | ---: | ---: | ---: | ---: | ---: |",
    ...rows.map((row) => {
      const cells = [
        number(of(row, ({ reached }) => reached).median),
        number(of(row, ({ p50 }) => p50).median, 1),
        show(
          of(row, ({ p99 }) => p99),
          1
        ),
        show(of(row, ({ drain }) => drain.eventsPerSecond)),
        show(
          of(row, ({ drain }) => drain.claims.mean),
          2
        )
      ]
      return `| ${row.name} | ${cells.join(" | ")} |`
    })
  ].join("\n")
