/**
 * One relay cycle (design, section 5): claim, publish, settle, in one transaction of one worker.
 *
 * The cycle costs a fixed number of statements and of Effect steps per batch; what happens per event is plain code.
 */
import * as Clock from "effect/Clock"
import * as Effect from "effect/Effect"
import * as Metric from "effect/Metric"
import type { AmqpPublisher } from "./AmqpPublisher.js"
import type { DatabaseError } from "./Errors.js"
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
  readonly eventTypeLabel: (eventType: string | undefined) => string
}

interface Verdicts {
  readonly processed: Array<string>
  readonly failed: Array<FailedRow>
  readonly failures: Array<{ readonly row: OutboxRow; readonly reason: string }>
  readonly unknownReason: string | undefined
  readonly unknown: number
}

/** Sorts a batch by outcome. Rows that are `Unknown` or `Held` appear in no list: the commit leaves them as they were. */
const judge = (rows: ReadonlyArray<OutboxRow>, outcomes: ReadonlyArray<Outcome>): Verdicts => {
  const processed: Array<string> = []
  const failed: Array<FailedRow> = []
  const failures: Array<{ row: OutboxRow; reason: string }> = []
  let unknownReason: string | undefined
  let unknown = 0
  rows.forEach((row, index) => {
    const outcome = outcomes[index]
    switch (outcome?._tag) {
      case "Confirmed":
        processed.push(row.seq)
        break
      case "Refused":
        failed.push({ seq: row.seq, reason: outcome.reason, dead: false })
        failures.push({ row, reason: outcome.reason })
        break
      case "Unknown":
        unknown++
        unknownReason ??= outcome.reason
        break
    }
  })
  return { processed, failed, failures, unknown, unknownReason }
}

const logFailure = (row: OutboxRow, reason: string, maxAttempts: number) => {
  const attempt = row.attempts + 1
  return (
    attempt >= maxAttempts
      ? Effect.logError(`event became a dead letter: ${reason}`)
      : Effect.logWarning(`event refused, will be retried: ${reason}`)
  ).pipe(
    Effect.annotateLogs({
      event_id: row.id,
      event_type: row.eventType ?? null,
      channel: row.channel ?? null,
      aggregate_id: row.aggregateId ?? null,
      attempt
    })
  )
}

const idle: CycleResult = { claimed: 0, unknown: 0, contended: false, released: false }

/**
 * Runs one cycle. Must not be interrupted once it has claimed, so the caller runs it undisturbed; every wait
 * inside has a bound. After a `DatabaseError` the worker's session is to be thrown away: its transaction is gone or its
 * outcome unknown, in which case the rows come again with the same message ids.
 */
export const runCycle = Effect.fn("Relay.cycle")(function* (options: CycleOptions) {
  const { worker, publisher, encode, limit, full, maxAttempts } = options
  const startedMillis = yield* Clock.currentTimeMillis
  const { contended, rows } = yield* worker.claim({ limit, full })
  if (rows.length === 0) return { ...idle, contended } satisfies CycleResult

  const claimedMillis = yield* Clock.currentTimeMillis
  const outcomes = yield* publisher.publish(rows.map(encode))
  const confirmedMillis = yield* Clock.currentTimeMillis
  const verdicts = judge(rows, outcomes)

  if (verdicts.processed.length === 0 && verdicts.failed.length === 0) yield* worker.rollback
  else yield* worker.settle({ processed: verdicts.processed, failed: verdicts.failed })

  const settledMillis = yield* Clock.currentTimeMillis
  const sinceClaimSeconds = (confirmedMillis - claimedMillis) / 1000
  let released = false
  rows.forEach((row, index) => {
    if (outcomes[index]?._tag !== "Confirmed") return
    Metrics.publishLatencySeconds.unsafeUpdate(row.ageSeconds + sinceClaimSeconds, [])
    if (row.attempts > 0) released = true
  })
  yield* Metric.incrementBy(Metrics.eventsPublished, verdicts.processed.length)
  yield* Metric.update(Metrics.batchDurationSeconds, (settledMillis - startedMillis) / 1000)
  for (const { reason, row } of verdicts.failures) {
    if (row.attempts + 1 >= maxAttempts) released = true
    yield* Metric.increment(Metric.tagged(Metrics.eventsFailed, "event_type", options.eventTypeLabel(row.eventType)))
    yield* logFailure(row, reason, maxAttempts)
  }
  if (verdicts.unknown > 0) {
    yield* Effect.logWarning("the broker left messages unanswered; their rows stay pending").pipe(
      Effect.annotateLogs({ rows: verdicts.unknown, reason: verdicts.unknownReason })
    )
  }
  return { claimed: rows.length, unknown: verdicts.unknown, contended, released } satisfies CycleResult
})

export type Cycle = (options: CycleOptions) => Effect.Effect<CycleResult, DatabaseError>
