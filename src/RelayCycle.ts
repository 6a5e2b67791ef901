/**
 * One relay cycle (design, section 5): claim, publish, settle, in one transaction of one worker.
 *
 * The cycle costs a fixed number of statements and of Effect steps per batch; what happens per event is plain code.
 */
import * as Effect from "effect/Effect"
import * as Metric from "effect/Metric"
import type { AmqpPublisher } from "./AmqpPublisher.js"
import { monotonicMillis } from "./internal/monotonic.js"
import { cycleAttributes, spanNames } from "./internal/otlpNames.js"
import { undisturbed } from "./internal/undisturbed.js"
import type { Outcome, Publishable } from "./Message.js"
import * as Metrics from "./Metrics.js"
import type { FailedRow, OutboxRow, OutboxWorker } from "./Outbox.js"

/** What a worker must know to decide what to do next. */
export interface CycleResult {
  readonly claimed: number
  /** Rows whose outcome the broker left open: they stay pending, nothing is counted. */
  readonly unknown: number
  /** Rows are pending that this claim could not have: others hold them or an earlier one of their aggregate. */
  readonly contended: boolean
  /** An aggregate may have become free: a retry was confirmed or a row given up. */
  readonly released: boolean
}

export interface CycleOptions {
  readonly worker: OutboxWorker
  readonly publisher: AmqpPublisher["Type"]
  readonly encode: (row: OutboxRow) => Publishable
  readonly limit: number
  readonly full: boolean
  readonly maxAttempts: number
  /** {@link Metrics.eventTypeLabel} with the routes. */
  readonly eventTypeLabel: (row: OutboxRow) => string
}

interface Failure {
  readonly row: OutboxRow
  readonly reason: string
  /** It becomes a dead letter: no retry can help, or this was the last one. */
  readonly dead: boolean
}

interface Verdicts {
  readonly processed: Array<string>
  readonly failed: Array<FailedRow>
  readonly failures: Array<Failure>
  readonly unknownReason: string | undefined
  readonly unknown: number
}

/** Sorts a batch by outcome. Rows that are `Unknown` or `Held` appear in no list: the commit leaves them as they were. */
const judge = (rows: ReadonlyArray<OutboxRow>, outcomes: ReadonlyArray<Outcome>, maxAttempts: number): Verdicts => {
  const processed: Array<string> = []
  const failed: Array<FailedRow> = []
  const failures: Array<Failure> = []
  let unknownReason: string | undefined
  let unknown = 0
  rows.forEach((row, index) => {
    const outcome = outcomes[index]
    switch (outcome?._tag) {
      case "Confirmed":
        processed.push(row.seq)
        break
      case "Refused":
        failed.push({ seq: row.seq, reason: outcome.reason, dead: outcome.permanent })
        failures.push({ row, reason: outcome.reason, dead: outcome.permanent || row.attempts + 1 >= maxAttempts })
        break
      case "Unknown":
        unknown++
        unknownReason ??= outcome.reason
        break
    }
  })
  return { processed, failed, failures, unknown, unknownReason }
}

const logFailure = ({ dead, reason, row }: Failure) =>
  (dead
    ? Effect.logError(`event became a dead letter: ${reason}`)
    : Effect.logWarning(`event refused, will be retried: ${reason}`)
  ).pipe(
    Effect.annotateLogs({
      event_id: row.id,
      event_type: row.eventType ?? null,
      channel: row.channel ?? null,
      aggregate_id: row.aggregateId ?? null,
      attempt: row.attempts + 1
    })
  )

const idle: CycleResult = { claimed: 0, unknown: 0, contended: false, released: false }

/** From the claimed rows to the commit. */
const deliver = Effect.fnUntraced(function* (
  options: CycleOptions,
  rows: ReadonlyArray<OutboxRow>,
  startedMillis: number
) {
  const { worker, publisher, encode, maxAttempts } = options
  const claimedMillis = yield* monotonicMillis
  const outcomes = yield* publisher.publish(rows.map(encode))
  const confirmedMillis = yield* monotonicMillis
  const verdicts = judge(rows, outcomes, maxAttempts)
  yield* Effect.annotateCurrentSpan({
    [cycleAttributes.claimed]: rows.length,
    [cycleAttributes.processed]: verdicts.processed.length,
    [cycleAttributes.failed]: verdicts.failed.length,
    [cycleAttributes.unknown]: verdicts.unknown
  })

  if (verdicts.processed.length === 0 && verdicts.failed.length === 0) yield* worker.rollback
  else yield* worker.settle({ processed: verdicts.processed, failed: verdicts.failed })

  const settledMillis = yield* monotonicMillis
  const sinceClaimSeconds = (confirmedMillis - claimedMillis) / 1000
  let released = false
  rows.forEach((row, index) => {
    if (outcomes[index]?._tag !== "Confirmed") return
    Metrics.publishLatencySeconds.unsafeUpdate(row.ageSeconds + sinceClaimSeconds, [])
    if (row.waited) released = true
  })
  yield* Metric.incrementBy(Metrics.eventsPublished, verdicts.processed.length)
  yield* Metric.update(Metrics.batchDurationSeconds, (settledMillis - startedMillis) / 1000)
  for (const failure of verdicts.failures) {
    const { dead, row } = failure
    if (dead) released = true
    yield* Metrics.countFailure(options.eventTypeLabel(row))
    yield* logFailure(failure)
  }
  if (verdicts.unknown > 0) {
    yield* Effect.logWarning("the broker left messages unanswered; their rows stay pending").pipe(
      Effect.annotateLogs({ rows: verdicts.unknown, reason: verdicts.unknownReason })
    )
  }
  return { unknown: verdicts.unknown, released }
})

/**
 * Runs one cycle. A stop may cut the claim short, which claims nothing; once rows are claimed the cycle goes on to its end,
 * undisturbed, and every wait in it has a bound. After a `DatabaseError`, or a stop, the worker's session is to be thrown
 * away: its transaction is gone or its outcome unknown, in which case the rows come again with the same message ids.
 */
export const runCycle = Effect.fn(spanNames.cycle)(function* (options: CycleOptions) {
  const startedMillis = yield* monotonicMillis
  const { contended, rows } = yield* options.worker.claim({ limit: options.limit, full: options.full })
  if (rows.length === 0) return { ...idle, contended } satisfies CycleResult
  const { released, unknown } = yield* undisturbed(deliver(options, rows, startedMillis))
  return { claimed: rows.length, unknown, contended, released } satisfies CycleResult
})
