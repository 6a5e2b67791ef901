/**
 * One drain: a table full of pending events, a contender that starts, and the time until all of them are in the queues.
 */
import * as Effect from "effect/Effect"
import { BenchError } from "./BenchError.js"
import type { Contender, Started, StartOptions } from "./Contender.js"
import * as Cpu from "./Cpu.js"
import * as Queues from "./Queues.js"
import { number } from "./Stats.js"
import { failedSql, runOn, type Site, sqlOn, type World } from "./World.js"

export interface DrainOptions extends StartOptions {
  readonly events: number
  /** To how many queues, and of which type. */
  readonly queues: number
  readonly queueType: Queues.QueueType
  /** Seconds after which the rate is taken from what was delivered until then. */
  readonly windowSeconds: number
  /** Processes of the contender; 1 unless given. */
  readonly replicas?: number
  /** Rows that stay pending, since they can't go yet; 0 unless given. */
  readonly held?: number
}

/** Everything is counted from the first message in a queue on, so that no start-up is in it. */
export interface Drained {
  readonly events: number
  readonly seconds: number
  readonly eventsPerSecond: number
  /** Microseconds of processor time per event. */
  readonly microseconds: { readonly node: number; readonly postgres: number; readonly rabbitMq: number }
  readonly otherCores: number
  /** All events were delivered within the window. */
  readonly complete: boolean
  /** At the end, with the contender stopped. */
  readonly queued: number
  readonly pending: number
  readonly lost: number
  readonly duplicates: number
}

const pendingOf = (contender: Contender, site: Site) =>
  Effect.scoped(
    Effect.flatMap(sqlOn(site.databaseUrl), ({ query }) =>
      query<{ n: number }>(`select count(*)::integer as n from ${contender.table} where ${contender.pending}`)
    )
  ).pipe(
    Effect.mapError((error) => (error._tag === "SqlFailed" ? failedSql(error) : error)),
    Effect.map(([row]) => row?.n ?? Number.NaN)
  )

/** Pending events for a drain, in a table that is as tidy as vacuum makes it. */
export const fill = (contender: Contender, site: Site, events: number, queues: number) =>
  runOn(site, [contender.fill(events, queues), `vacuum analyze ${contender.table}`, "checkpoint"])

export const processorTime = (used: Cpu.Used, events: number): Drained["microseconds"] => {
  const of = (prefix: string) =>
    Object.entries(used.by).reduce((sum, [name, seconds]) => (name.startsWith(prefix) ? sum + seconds : sum), 0)
  const each = (seconds: number) => (seconds * 1_000_000) / events
  return { node: each(of("node")), postgres: each(of("postgres")), rabbitMq: each(of("rabbitMq")) }
}

/** Looks again until so many messages are there; fails after the time. */
const awaitDepth = (queues: Queues.Queues, wanted: number, withinSeconds: number) =>
  queues.depth.pipe(
    Effect.delay("25 millis"),
    Effect.repeat({ until: (depth) => depth >= wanted }),
    Effect.timeoutOption(`${withinSeconds} seconds`)
  )

/** Starts the contender, and measures until the queues hold all events or the window is over. Then stops it. */
export const drainOn = (
  world: World,
  contender: Contender,
  site: Site,
  options: DrainOptions,
  whileRunning?: (started: ReadonlyArray<Started>) => Effect.Effect<void, BenchError>
): Effect.Effect<Drained, BenchError> =>
  Effect.scoped(
    Effect.gen(function* () {
      const { events, held = 0, windowSeconds } = options
      const queues = yield* Queues.open({
        api: site.api,
        amqpUrl: site.amqpUrl,
        names: contender.queues.slice(0, options.queues),
        type: options.queueType
      })
      const before = yield* queues.depth
      const measured = yield* Effect.scoped(
        Effect.gen(function* () {
          const started = yield* Effect.all(
            Array.from({ length: options.replicas ?? 1 }, () => contender.start(world, site, options)),
            { concurrency: "unbounded" }
          )
          const accounts = world.accounts(started.map(({ pid }) => pid))
          yield* awaitDepth(queues, before + 1, 60)
          const from = Cpu.mark(accounts)
          const first = yield* queues.depth
          yield* awaitDepth(queues, before + events, windowSeconds)
          const last = yield* queues.depth
          const used = Cpu.between(from, Cpu.mark(accounts))
          const complete = last >= before + events
          // The last batches are in the queue and yet to be marked.
          if (complete) {
            yield* pendingOf(contender, site).pipe(
              Effect.repeat({ until: (pending) => pending === held }),
              Effect.timeoutOption("10 seconds")
            )
          }
          if (whileRunning !== undefined) yield* whileRunning(started)
          return { used, complete, delivered: last - first }
        })
      )
      const { complete, delivered, used } = measured
      if (delivered <= 0) return yield* new BenchError({ what: contender.name, reason: "delivered nothing" })
      yield* Effect.sleep("100 millis")
      const queued = (yield* queues.depth) - before
      const pending = (yield* pendingOf(contender, site)) - held
      const surplus = queued + pending - events
      return {
        events: delivered,
        seconds: used.seconds,
        eventsPerSecond: delivered / used.seconds,
        microseconds: processorTime(used, delivered),
        otherCores: used.otherCores,
        complete,
        queued,
        pending,
        lost: Math.max(0, -surplus),
        duplicates: Math.max(0, surplus)
      }
    })
  )

/** A drain on a site of its own. */
export const drain = (world: World, contender: Contender, options: DrainOptions): Effect.Effect<Drained, BenchError> =>
  Effect.scoped(
    Effect.gen(function* () {
      const site = yield* world.freshSite
      yield* contender.setUp(world, site)
      yield* fill(contender, site, options.events, options.queues)
      return yield* drainOn(world, contender, site, options)
    })
  )

export const tell = (drained: Drained): string => {
  const { complete, duplicates, eventsPerSecond, lost, microseconds, otherCores } = drained
  const { node, postgres, rabbitMq } = microseconds
  return [
    `${number(eventsPerSecond)} events/s`,
    `CPU ${number(node)} / ${number(postgres)} / ${number(rabbitMq)} µs (node / pg / rabbit)`,
    ...(complete ? [] : ["not finished in its window"]),
    ...(lost > 0 ? [`LOST ${lost}`] : []),
    ...(duplicates > 0 ? [`${duplicates} duplicates`] : []),
    ...(otherCores > 0.3 ? [`disturbed: ${number(otherCores, 1)} cores busy elsewhere`] : [])
  ].join(", ")
}
