/**
 * One round: load with faults, healing, quiet, and the ledger.
 */
import * as Clock from "effect/Clock"
import * as Effect from "effect/Effect"
import type { CarriedOut } from "./Inject.js"
import * as Inject from "./Inject.js"
import * as Ledger from "./Ledger.js"
import {
  aggregateLanes,
  type Complaint,
  type Excuses,
  type KeyState,
  type Totals,
  type WrittenTransaction
} from "./Model.js"
import type { Schedule } from "./Schedule.js"
import * as Truth from "./Truth.js"
import * as World from "./World.js"
import * as Writers from "./Writers.js"

export interface RoundResult {
  readonly schedule: Schedule
  readonly carriedOut: ReadonlyArray<CarriedOut>
  readonly beganAt: number
  readonly totals: Totals
  readonly complaints: ReadonlyArray<Complaint>
  /** From the end of the healing until every event had arrived. */
  readonly quietAfterMillis: number
  /** Of each replica, at the end. */
  readonly memoryBytes: ReadonlyArray<number>
  /** What was the last to come right. */
  readonly lastOpen: string
}

/** What one round leaves for the next. */
export interface Memory {
  readonly keys: Map<string, KeyState>
  /** Resident bytes of each process after its first round, by pid. */
  readonly baseline: Map<number, number>
}

export const noMemory = (): Memory => ({ keys: new Map(), baseline: new Map() })

const quietWithinMillis = 75_000
const leaksWithinMillis = 20_000
const memoryWithinMillis = 5_000
const mostGrowthBytes = 40 * 1024 * 1024
const mostMemoryBytes = 250 * 1024 * 1024

const complaint = (kind: Complaint["kind"], examples: ReadonlyArray<string>): ReadonlyArray<Complaint> =>
  examples.length === 0 ? [] : [{ kind, count: examples.length, examples }]

/** Looks every so often until there is nothing to object to, or the time is up; returns the last objections. */
const untilNone = <A, E>(
  withinMillis: number,
  look: Effect.Effect<ReadonlyArray<A>, E>
): Effect.Effect<ReadonlyArray<A>, E> =>
  Effect.gen(function* () {
    const giveUpAt = (yield* Clock.currentTimeMillis) + withinMillis
    while (true) {
      const objections = yield* look
      if (objections.length === 0 || (yield* Clock.currentTimeMillis) > giveUpAt) return objections
      yield* Effect.sleep("200 millis")
    }
  })

const notReady = (world: World.World) =>
  Effect.map(
    Effect.filter(world.replicas.slice(0, world.replicasWanted), (replica) => Effect.negate(replica.isReady), {
      concurrency: "unbounded"
    }),
    (replicas) => replicas.map(({ name }) => `${name} is not ready`)
  )

/** When notifications may have been lost from. What a process holds may be as old as the faults that kept it there. */
const liveLostFrom = (carriedOut: ReadonlyArray<CarriedOut>, beganAt: number): number | undefined => {
  const starts = carriedOut.flatMap(({ beganAt: at, fault }) => {
    if (fault.kind.live === "kept") return []
    return [fault.kind.live === "in hand" && carriedOut.length > 1 ? beganAt : at - 1000]
  })
  return starts.length === 0 ? undefined : Math.min(...starts)
}

const unexpectedExits = (world: World.World, carriedOut: ReadonlyArray<CarriedOut>): ReadonlyArray<string> =>
  world.notes.exits.flatMap(({ asked, code, replica, signal }) => {
    if (asked === undefined) return [`${replica} ended by itself with ${signal ?? `exit code ${code}`}`]
    // With a server that does not answer, a stop is cut off at its bound, with exit code 1.
    const mayBeCutOff = carriedOut.length > 1
    if (asked === "SIGTERM" && code !== 0 && !(mayBeCutOff && code === 1)) {
      return [`${replica} was asked to stop, and ended with ${signal ?? `exit code ${code}`}`]
    }
    return []
  })

const memoryComplaints = (world: World.World, { baseline }: Memory): ReadonlyArray<string> =>
  world.replicas.slice(0, world.replicasWanted).flatMap((replica) => {
    const pid = replica.pid()
    const bytes = replica.memoryBytes()
    if (pid === undefined || bytes === undefined) return []
    const before = baseline.get(pid) ?? bytes
    const megabytes = (n: number) => `${Math.round(n / 1024 / 1024)} MB`
    return bytes > mostMemoryBytes || bytes - before > mostGrowthBytes
      ? [`${replica.name} has ${megabytes(bytes)}, and had ${megabytes(before)} after its first round`]
      : []
  })

/** Garbage that V8 has not bothered to collect is no leak: it is collected first. */
const memoryIsBack = (world: World.World, memory: Memory) =>
  Effect.gen(function* () {
    const running = world.replicas.slice(0, world.replicasWanted)
    const objections = yield* untilNone(
      memoryWithinMillis,
      Effect.gen(function* () {
        yield* Effect.forEach(running, (replica) => Effect.ignore(replica.order({ collect: true })))
        yield* Effect.sleep("100 millis")
        return memoryComplaints(world, memory)
      })
    )
    for (const replica of running) {
      const pid = replica.pid()
      const bytes = replica.memoryBytes()
      if (pid !== undefined && bytes !== undefined && !memory.baseline.has(pid)) memory.baseline.set(pid, bytes)
    }
    return objections
  })

/** Runs a round on a world that is well, and leaves it well. Fails only when the harness itself can't go on. */
export const run = (
  world: World.World,
  schedule: Schedule,
  memory: Memory
): Effect.Effect<RoundResult, World.WorldError> =>
  Effect.gen(function* () {
    yield* World.scale(world, schedule.replicas)
    const unready = yield* untilNone(30_000, notReady(world))
    world.notes = World.noNotes()
    const firstSeq = yield* Truth.lastSeq(world)
    const beganAt = yield* Clock.currentTimeMillis

    const transactions: Array<WrittenTransaction> = []
    const { round, seed } = schedule
    const writers = Writers.run({
      url: world.postgres.url,
      seed,
      round,
      until: beganAt + schedule.loadMillis,
      onEnd: (transaction) => transactions.push(transaction)
    })
    const [, carriedOut] = yield* Effect.all([writers, Inject.run(world, schedule)], { concurrency: 2 })
    yield* World.healAll(world)
    const healedAt = yield* Clock.currentTimeMillis

    // Until the round is quiet, every fault counts as there: a batch that is out may have met it.
    const faults = carriedOut.map((span) => ({ ...span, endedAt: healedAt }))
    const excuses: Excuses = {
      faults,
      refusedQueues: new Set(carriedOut.flatMap(({ fault }) => fault.plan.refusedQueues ?? [])),
      liveLostFrom: liveLostFrom(carriedOut, beganAt),
      deletions: world.notes.deletions,
      brokerKilledAt: world.notes.brokerKilledAt
    }
    const audit = Effect.gen(function* () {
      return Ledger.settle({
        transactions,
        committed: yield* Truth.committedTransactions(world, seed, round),
        rows: yield* Truth.rowsAfter(world, firstSeq),
        deliveries: world.notes.deliveries,
        earlier: memory.keys,
        excuses
      })
    })
    let lastOpen = ""
    const stillOpen = Effect.gen(function* () {
      const open = [...(yield* notReady(world))]
      const pending = yield* Truth.pendingRows(world)
      if (pending > 0) open.push(`${pending} rows are pending`)
      if (open.length === 0) {
        const { totals } = yield* audit
        if (totals.lost > 0) open.push(`${totals.lost} events have not arrived`)
      }
      if (open.length > 0) lastOpen = open.join(", ")
      return open
    })
    const open = yield* untilNone(quietWithinMillis, stillOpen)
    const quietAt = yield* Clock.currentTimeMillis
    const leaks = yield* untilNone(leaksWithinMillis, Truth.leaks(world))
    const memoryObjections = yield* memoryIsBack(world, memory)
    const verdict = yield* audit
    for (const [key, state] of verdict.keys) memory.keys.set(key, state)
    // No event came for it since it was deleted; the next round must find it.
    const { queue } = aggregateLanes.deletable
    yield* Effect.ignore(world.broker.api.declareQueue(queue, { "x-queue-type": "classic" }))

    return {
      schedule,
      carriedOut,
      beganAt,
      totals: verdict.totals,
      quietAfterMillis: quietAt - healedAt,
      memoryBytes: world.replicas.flatMap((replica) => replica.memoryBytes() ?? []),
      lastOpen,
      complaints: [
        ...verdict.complaints,
        ...complaint("not ready", [...unready.map((words) => `${words} at the beginning`), ...open]),
        ...complaint("exited", unexpectedExits(world, carriedOut)),
        ...complaint("leak", leaks),
        ...complaint("memory", memoryObjections)
      ]
    }
  })
