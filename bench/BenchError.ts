import * as Data from "effect/Data"

/** Something a measurement needs did not happen; the measurement is reported as failed, and the others go on. */
export class BenchError extends Data.TaggedError("BenchError")<{
  readonly what: string
  readonly reason: string
}> {
  override get message(): string {
    return `${this.what}: ${this.reason}`
  }
}
