/**
 * The two ends of a run under load: an application that writes and a service that consumes, each a process of its own.
 */
import * as Path from "node:path"
import * as Effect from "effect/Effect"
import type * as Scope from "effect/Scope"
import type { BenchError } from "./BenchError.js"
import type { Contender } from "./Contender.js"
import * as Program from "./Program.js"
import type { Report, Written } from "./programs/answers.js"
import * as Queues from "./Queues.js"
import type { Site } from "./World.js"

export interface Ends {
  readonly pids: ReadonlyArray<number>
  /** Writes for so long; at rate 0 as fast as the connections can. */
  readonly write: (phase: string, rate: number, seconds: number) => Effect.Effect<Written, BenchError>
  /** Of a phase, or of the part of it that came between these seconds of it. */
  readonly report: (phase: string, from?: number, to?: number) => Effect.Effect<Report, BenchError>
  /** Looks until so many events of the phase have come, for a while at most. */
  readonly awaitReceived: (phase: string, events: number, withinSeconds: number) => Effect.Effect<void, BenchError>
}

/** A consumer on the contender's first queue, and a writer with so many connections. They end with the scope. */
export const open = (
  contender: Contender,
  site: Site,
  connections: number
): Effect.Effect<Ends, BenchError, Scope.Scope> =>
  Effect.gen(function* () {
    const queue = contender.queues[0] ?? ""
    const { amqpUrl, databaseUrl } = site
    yield* Queues.open({ api: site.api, amqpUrl, names: [queue], type: "classic" })
    const consumer = yield* Program.start({
      program: "consumer",
      arguments: { amqpUrl, queue },
      logFile: Path.join(site.folder, "consumer.log")
    })
    const writer = yield* Program.start({
      program: "writer",
      arguments: { databaseUrl, connections, insert: contender.insert },
      logFile: Path.join(site.folder, "writer.log")
    })
    const report: Ends["report"] = (phase, from, to) => consumer.ask("report", { phase, from, to }, "30 seconds")
    return {
      pids: [consumer.pid, writer.pid],
      report,
      write: (phase, rate, seconds) => writer.ask("write", { phase, rate, seconds }, `${seconds + 30} seconds`),
      awaitReceived: (phase, events, withinSeconds) =>
        report(phase).pipe(
          Effect.delay("100 millis"),
          Effect.repeat({ until: ({ received }) => received >= events }),
          Effect.timeoutOption(`${withinSeconds} seconds`),
          Effect.asVoid
        )
    }
  })
