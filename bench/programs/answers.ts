/**
 * What the writer and the consumer answer.
 */

/** What a load came to. */
export interface Written {
  readonly inserted: number
  readonly seconds: number
}

/** What came of a phase. */
export interface Report {
  readonly received: number
  readonly duplicates: number
  /** Milliseconds. */
  readonly p50: number
  readonly p95: number
  readonly p99: number
  readonly max: number
}
