/**
 * What the figures have to be. Ratios are taken between contenders of the same run, so they hold on any machine.
 */
import { type DrainRow, rateOf, type Target } from "./Drain.js"
import * as Growth from "./Growth.js"
import type { LatencyRow, LatencyRun } from "./Latency.js"
import * as Latency from "./Latency.js"
import { type MemoryRow, most } from "./Memory.js"
import * as Snapshot from "./Snapshot.js"
import { median, number } from "./Stats.js"
import { diskGrowth, type SteadyRows } from "./Steady.js"
import type { Outcome } from "./Turns.js"
import * as Writers from "./Writers.js"

/** What was measured; a measurement that did not run is not there, and its goals are not judged. */
export interface Figures {
  readonly start?: ReadonlyArray<Outcome<number>>
  readonly drain?: ReadonlyArray<DrainRow>
  readonly latency?: ReadonlyArray<LatencyRow>
  readonly memory?: ReadonlyArray<MemoryRow>
  readonly writers?: ReadonlyArray<Writers.WritersRow>
  readonly growth?: Growth.GrowthRows
  readonly steady?: SteadyRows
}

interface Goal {
  readonly what: string
  /** Undefined when it was not measured, NaN when a contender it needs has failed. */
  readonly measured: (figures: Figures) => number | undefined
  readonly atLeast?: number
  readonly atMost?: number
}

const drainOf = (rows: ReadonlyArray<DrainRow>, contender: string, target: Target) =>
  rows.find((row) => row.contender === contender && row.target === target)

const rate = (rows: ReadonlyArray<DrainRow>, contender: string, target: Target) => {
  const row = drainOf(rows, contender, target)
  return row === undefined ? Number.NaN : rateOf(row).median
}

const drainRatio = (target: Target, other: string) => ({
  measured: ({ drain }: Figures) => drain && rate(drain, "pg-listener", target) / rate(drain, other, target)
})

/** Of those peers, the faster one; undefined when no peer ran. */
const overPeers = (others: ReadonlyArray<string>) => ({
  measured: ({ drain }: Figures) => {
    if (drain === undefined) return undefined
    const rates = others.map((other) => rate(drain, other, "one classic queue")).filter((one) => !Number.isNaN(one))
    if (!others.some((other) => drainOf(drain, other, "one classic queue"))) return undefined
    return rate(drain, "pg-listener", "one classic queue") / Math.max(...rates)
  }
})

const nodeTime = (rows: ReadonlyArray<DrainRow>, contender: string) =>
  median(drainOf(rows, contender, "one classic queue")?.runs.map(({ microseconds }) => microseconds.node) ?? [])

const latencyAt = (rows: ReadonlyArray<LatencyRow>, contender: string, figure: (run: LatencyRun) => number) => {
  const row = rows.find((row) => row.contender === contender && row.rate === 1000)
  return row === undefined ? Number.NaN : Latency.of(row, figure).median
}

const latencyRatio = (figure: (run: LatencyRun) => number) => ({
  measured: ({ latency }: Figures) =>
    latency && latencyAt(latency, "pg-listener", figure) / latencyAt(latency, "reference", figure)
})

/** The largest backlog against the one of 10,000, with the same aggregates; the worse of the two. */
const memoryGrowth = (rows: ReadonlyArray<MemoryRow>): number =>
  Math.max(
    ...[true, false].map((withAggregates) => {
      const some = rows.filter((row) => row.withAggregates === withAggregates && row.pending >= 10_000)
      return Math.max(...some.map(most)) / Math.min(...some.map(most))
    })
  )

/** With 32 writers on a disk of 2 ms a commit. */
const writersAt = (
  rows: ReadonlyArray<Writers.WritersRow>,
  bell: Writers.Bell,
  rate: number,
  figure: (run: Writers.WritersRun) => number
) => {
  const row = rows.find(
    (row) => row.disk === "2 ms commit" && row.writers === 32 && row.rate === rate && row.bell === bell
  )
  return row === undefined ? Number.NaN : Writers.of(row, figure).median
}

const insertsRatio = (rate: number) => ({
  measured: ({ writers }: Figures) => {
    const inserts = (bell: Writers.Bell) => writersAt(writers ?? [], bell, rate, ({ perSecond }) => perSecond)
    return writers && inserts("doorbell") / inserts("no trigger, polled")
  }
})

const snapshotRatio = (figure: (run: Snapshot.SnapshotRun) => number) => ({
  measured: ({ growth }: Figures) => {
    const at = (held: boolean) => {
      const row = growth?.snapshots.find((row) => row.held === held)
      return row === undefined ? Number.NaN : Snapshot.of(row, figure).median
    }
    return growth && at(true) / at(false)
  }
})

/** The slowest claim over the one on an empty table; NaN when a case has failed. */
const claimGrowth = ({ claims, snapshots }: Growth.GrowthRows): number => {
  const held = snapshots.filter(({ held }) => held).map((row) => Snapshot.of(row, ({ drain }) => drain.claims.mean))
  const all = [...claims.map(Growth.claimOf), ...held].map(({ median }) => median)
  const empty = claims.find(({ name }) => name === Growth.emptyTable)
  return Math.max(...all) / (empty === undefined ? Number.NaN : Growth.claimOf(empty).median)
}

const goals: ReadonlyArray<Goal> = [
  {
    what: "drain, one classic queue: rate / reference",
    atLeast: 0.95,
    ...drainRatio("one classic queue", "reference")
  },
  {
    what: "drain, five classic queues: rate / reference",
    atLeast: 0.9,
    ...drainRatio("five classic queues", "reference")
  },
  { what: "drain, one quorum queue: rate / reference", atLeast: 0.9, ...drainRatio("one quorum queue", "reference") },
  {
    what: "drain: Node's processor time per event / reference",
    atMost: 1.5,
    measured: ({ drain }) => drain && nodeTime(drain, "pg-listener") / nodeTime(drain, "reference")
  },
  { what: "drain: rate / graphile-worker tuned", atLeast: 1.2, ...overPeers(["graphile-worker tuned"]) },
  { what: "drain: rate / pg-boss", atLeast: 1.4, ...overPeers(["pg-boss"]) },
  {
    what: "drain: rate / pg-transactional-outbox, the faster way",
    atLeast: 12,
    ...overPeers(["pg-transactional-outbox, polling", "pg-transactional-outbox, replication"])
  },
  { what: "latency at 1,000/s: p50 / reference", atMost: 1.5, ...latencyRatio(({ p50 }) => p50) },
  { what: "latency at 1,000/s: p99 / reference", atMost: 2, ...latencyRatio(({ p99 }) => p99) },
  { what: "32 writers, 2 ms commit, at full speed: inserts / no trigger, polled", atLeast: 0.9, ...insertsRatio(0) },
  {
    what: "32 writers, 2 ms commit, 3,000/s asked: inserts / no trigger, polled",
    atLeast: 0.9,
    ...insertsRatio(Writers.pacedRate)
  },
  {
    what: "32 writers, 2 ms commit, 3,000/s asked: events' p99, ms",
    atMost: 50,
    measured: ({ writers }) => writers && writersAt(writers, "doorbell", Writers.pacedRate, ({ p99 }) => p99)
  },
  {
    what: "an old snapshot held: drain / without",
    atLeast: 0.8,
    ...snapshotRatio(({ drain }) => drain.eventsPerSecond)
  },
  { what: "an old snapshot held: p99 / without", atMost: 1.2, ...snapshotRatio(({ p99 }) => p99) },
  {
    what: "growth: slowest claim / on an empty table",
    atMost: 2,
    measured: ({ growth }) => growth && claimGrowth(growth)
  },
  {
    what: "steady: disk in the last third / in the third before",
    atMost: 1.1,
    measured: ({ steady }) => steady && diskGrowth(steady)
  },
  {
    what: "memory: most resident, MB",
    atMost: 150,
    measured: ({ memory }) => memory && Math.max(...memory.map(most))
  },
  {
    what: "memory: largest / smallest from 10,000 pending on",
    atMost: 1.25,
    measured: ({ memory }) => memory && memoryGrowth(memory)
  },
  {
    what: "start: ready after, ms",
    atMost: 1500,
    measured: ({ start }) => start && median(start.flatMap(({ runs }) => runs))
  }
]

export interface Judgement {
  /** Markdown; empty when nothing was measured that a goal is about. */
  readonly table: string
  /** A goal that could not be measured although its measurement ran is missed. */
  readonly missed: ReadonlyArray<string>
}

const digits = (limit: number) => (limit >= 20 ? 0 : 2)

export const judge = (figures: Figures): Judgement => {
  const missed: Array<string> = []
  const lines = goals.flatMap(({ atLeast, atMost, measured, what }) => {
    const value = measured(figures)
    if (value === undefined) return []
    const limit = atLeast ?? atMost ?? Number.NaN
    const isMet = atLeast === undefined ? value <= limit : value >= limit
    if (!isMet) missed.push(what)
    const bound = `${atLeast === undefined ? "≤" : "≥"} ${number(limit, digits(limit))}`
    return [`| ${what} | ${number(value, digits(limit))} | ${bound} | ${isMet ? "met" : "**missed**"} |`]
  })
  const table = ["| goal | measured | asked | |", "| --- | ---: | ---: | --- |", ...lines].join("\n")
  return { table: lines.length === 0 ? "" : table, missed }
}
