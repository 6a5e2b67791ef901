/**
 * Spans on their way to the collector: a bounded queue, and the loop that empties it.
 *
 * Traces are for looking at, and nothing waits for them: what the collector can't take is kept while there is room, and
 * lost after that. Its outage is told once, and not once per try.
 */
import * as Data from "effect/Data"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Metric from "effect/Metric"
import * as Metrics from "../Metrics.js"
import { exportRequest, type Resource } from "./otlpJson.js"
import type { RecordedSpan } from "./otlpSpans.js"

/** The collector did not take a request. `again`: it may take it later. */
export class TraceExportError extends Data.TaggedError("TraceExportError")<{
  readonly reason: string
  readonly again: boolean
}> {
  override get message(): string {
    return this.reason
  }
}

export interface OtlpExporterOptions {
  /** Sends the body of one request; its waits have a bound. */
  readonly send: (body: string) => Effect.Effect<void, TraceExportError>
  readonly resource: Resource
}

export interface OtlpExporter {
  /** Takes spans that have ended. Plain code. */
  readonly take: (spans: ReadonlyArray<RecordedSpan>) => void
  readonly run: Effect.Effect<never>
  /** One more try for what is left, within two seconds. Not while `run` runs. */
  readonly flush: Effect.Effect<void>
}

// The usual figures of the OpenTelemetry SDKs.
const QUEUE_SIZE = 2_048
const REQUEST_SIZE = 512
const INTERVAL = Duration.seconds(5)

const LONGEST_PAUSE = Duration.seconds(30)
const FLUSH_TIMEOUT = Duration.seconds(2)

const NANOS_PER_MILLI = 1_000_000n

export const makeOtlpExporter = ({ resource, send }: OtlpExporterOptions): Effect.Effect<OtlpExporter> =>
  Effect.gen(function* () {
    const enough = yield* Effect.makeLatch(false)
    const clock = yield* Effect.clock
    const queue: Array<RecordedSpan> = []
    let failures = 0
    let told = ""

    const take = (spans: ReadonlyArray<RecordedSpan>) => {
      const room = QUEUE_SIZE - queue.length
      queue.push(...spans.slice(0, room))
      if (spans.length > room) Metrics.spansDropped.unsafeUpdate(spans.length - room, [])
      if (queue.length >= REQUEST_SIZE) enough.unsafeOpen()
    }

    const say = (reason: string) => {
      const again = reason === told
      told = reason
      return again
        ? Effect.logDebug(`traces still can't be exported: ${reason}`)
        : Effect.logWarning(`traces can't be exported, events go on without them: ${reason}`)
    }

    const taken = (spans: number) =>
      Effect.gen(function* () {
        queue.splice(0, spans)
        yield* Metric.incrementBy(Metrics.spansExported, spans)
        const before = failures
        failures = 0
        told = ""
        if (before > 0) yield* Effect.logInfo("traces are exported again")
      })

    const refused = (spans: number, { again, reason }: TraceExportError) =>
      Effect.gen(function* () {
        failures++
        if (!again) {
          queue.splice(0, spans)
          yield* Metric.incrementBy(Metrics.spansDropped, spans)
        }
        yield* say(reason)
      })

    /** One request with the oldest spans; whether it was taken. */
    const exportSome = Effect.suspend(() => {
      const spans = queue.slice(0, REQUEST_SIZE)
      const shiftNanos = BigInt(clock.unsafeCurrentTimeMillis()) * NANOS_PER_MILLI - clock.unsafeCurrentTimeNanos()
      return send(exportRequest(spans, resource, shiftNanos)).pipe(
        Effect.matchEffect({
          onSuccess: () => Effect.as(taken(spans.length), true),
          onFailure: (error) => Effect.as(refused(spans.length, error), false)
        })
      )
    })

    const exportAll = Effect.gen(function* () {
      while (queue.length > 0) if (!(yield* exportSome)) return
    })

    const pause = Effect.suspend(() => {
      if (failures === 0) return Effect.raceFirst(enough.await, Effect.sleep(INTERVAL))
      return Effect.sleep(Duration.min(Duration.times(INTERVAL, 2 ** Math.min(failures - 1, 10)), LONGEST_PAUSE))
    })

    return {
      take,
      run: pause.pipe(Effect.zipRight(enough.close), Effect.zipRight(exportAll), Effect.forever),
      flush: exportAll.pipe(Effect.interruptible, Effect.timeoutOption(FLUSH_TIMEOUT), Effect.asVoid)
    }
  })
