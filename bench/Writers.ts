/**
 * `writers`: what the wake-up costs those who write, and how old the events get meanwhile. pg-listener runs in every case.
 */
import * as Effect from "effect/Effect"
import type * as Scope from "effect/Scope"
import type { BenchError } from "./BenchError.js"
import * as Ends from "./Ends.js"
import type { Measurement, Options } from "./Measurement.js"
import * as PgListener from "./PgListener.js"
import { number, show, spread } from "./Stats.js"
import { bars } from "./Svg.js"
import { inTurns, type Outcome } from "./Turns.js"
import { runOn, type World } from "./World.js"

/**
 * How the relay hears of new events. Without a trigger it polls, and often: one that slept would leave the writers a machine
 * to themselves, and nothing could be compared.
 */
export const bells = ["no trigger, polled", "plain NOTIFY", "doorbell, never busy", "doorbell"] as const
export type Bell = (typeof bells)[number]

/** The machine's own disk, or a commit of 2 ms as on a cloud volume: the first to commit waits for others that long. */
export const disks = ["this disk", "2 ms commit"] as const
export type Disk = (typeof disks)[number]

export interface WritersRun {
  readonly inserted: number
  readonly perSecond: number
  readonly received: number
  /** Milliseconds from the INSERT to the consumer. */
  readonly p50: number
  readonly p99: number
}

export interface WritersRow extends Outcome<WritersRun> {
  readonly bell: Bell
  readonly disk: Disk
  readonly writers: number
  /** Inserts per second asked for; 0 for as fast as they can. */
  readonly rate: number
}

/** Asked for in the paced cases. */
export const pacedRate = 3000

const withoutBell = "drop trigger event_outbox_doorbell on event_outbox"

const statements: Readonly<Record<Bell, ReadonlyArray<string>>> = {
  "no trigger, polled": [withoutBell],
  "plain NOTIFY": [
    withoutBell,
    `create function bench_notify() returns trigger language plpgsql as $$
      begin perform pg_notify('event_outbox', ''); return null; end $$`,
    "create trigger bench_notify after insert on event_outbox for each statement execute function bench_notify()"
  ],
  "doorbell, never busy": [],
  doorbell: []
}

const environments: Readonly<Record<Bell, Readonly<Record<string, string>>>> = {
  "no trigger, polled": { PG_LISTENER_POLL_INTERVAL: "5 millis" },
  "plain NOTIFY": {},
  // A threshold of 0 is never reached.
  "doorbell, never busy": { PG_LISTENER_BUSY_THRESHOLD: "0" },
  doorbell: {}
}

const settings = ["commit_delay", "commit_siblings"]

const alter = (world: World, change: (name: string, index: number) => string) =>
  Effect.zipRight(
    Effect.forEach(settings, (name, index) => world.query(`alter system ${change(name, index)}`)),
    world.query("select pg_reload_conf()")
  )

/** Until the scope ends. */
const slowDisk = (world: World): Effect.Effect<void, BenchError, Scope.Scope> =>
  Effect.acquireRelease(Effect.asVoid(alter(world, (name, index) => `set ${name} = ${["2000", "0"][index]}`)), () =>
    Effect.ignoreLogged(alter(world, (name) => `reset ${name}`))
  )

const once = (
  world: World,
  { bell, disk, rate, writers }: Pick<WritersRow, "bell" | "disk" | "rate" | "writers">,
  seconds: number
): Effect.Effect<WritersRun, BenchError> =>
  Effect.scoped(
    Effect.gen(function* () {
      const contender = PgListener.pgListener()
      const site = yield* world.freshSite
      yield* contender.setUp(world, site)
      yield* runOn(site, statements[bell])
      if (disk === "2 ms commit") yield* slowDisk(world)
      const ends = yield* Ends.open(contender, site, writers)
      yield* contender.start(world, site, { env: environments[bell] })
      yield* ends.write("warm-up", rate, 2)
      const written = yield* ends.write("measured", rate, seconds)
      // A backlog takes its time.
      yield* ends.awaitReceived("measured", written.inserted, 15)
      const { p50, p99, received } = yield* ends.report("measured")
      return { inserted: written.inserted, perSecond: written.inserted / written.seconds, received, p50, p99 }
    })
  )

const measure = (world: World, options: Options): Effect.Effect<ReadonlyArray<WritersRow>> =>
  Effect.gen(function* () {
    const loads = [...[1, 8, 32].map((writers) => ({ writers, rate: 0 })), { writers: 32, rate: pacedRate }]
    const cases = disks.flatMap((disk) => loads.flatMap((load) => bells.map((bell) => ({ bell, disk, ...load }))))
    const seconds = options.quick ? 3 : 6
    const outcomes = yield* inTurns(
      world,
      cases.map((one) => ({
        name: `${one.disk}, ${one.writers} writer(s), ${one.rate === 0 ? "at full speed" : `${one.rate}/s asked`}, ${one.bell}`,
        within: "90 seconds" as const,
        tell: (run: WritersRun) =>
          `${number(run.perSecond)} inserts/s, p50 ${number(run.p50, 1)} p99 ${number(run.p99, 1)} ms, ${run.received} of ${run.inserted} received`,
        run: once(world, one, seconds)
      })),
      Math.min(options.runs, 3)
    )
    return outcomes.flatMap((outcome, index) => {
      const one = cases[index]
      return one === undefined ? [] : [{ ...outcome, ...one }]
    })
  })

export const of = (row: WritersRow, figure: (run: WritersRun) => number) => spread(row.runs.map(figure))

const loadOf = ({ rate, writers }: WritersRow) =>
  `${writers} ${writers === 1 ? "writer" : "writers"}${rate === 0 ? "" : `, ${number(rate)}/s asked`}`

export const measurement: Measurement<ReadonlyArray<WritersRow>> = {
  name: "writers",
  title: "Inserts per second, by the kind of wake-up, with pg-listener at work",
  measure,
  table: (rows) =>
    [
      "| disk | writers | wake-up | inserts/s | events' p50, ms | p99, ms |",
      "| --- | --- | --- | ---: | ---: | ---: |",
      ...rows.map(
        (row) =>
          `| ${row.disk} | ${loadOf(row)} | ${row.bell} | ${show(of(row, ({ perSecond }) => perSecond))} | ${number(of(row, ({ p50 }) => p50).median, 1)} | ${number(of(row, ({ p99 }) => p99).median, 1)} |`
      )
    ].join("\n"),
  plot: (rows) =>
    bars({
      title: "Inserts per second",
      unit: "inserts/s",
      groups: disks.flatMap((disk) =>
        [...new Set(rows.filter((row) => row.disk === disk && row.rate === 0).map(loadOf))].map((load) => ({
          label: `${disk}, ${load}`,
          bars: rows
            .filter((row) => row.disk === disk && row.rate === 0 && loadOf(row) === load && row.runs.length > 0)
            .map((row) => ({ label: row.bell, value: of(row, ({ perSecond }) => perSecond) }))
        }))
      )
    })
}
