/**
 * Every failure the service names, in one place: which thing failed, and why, in words for a person.
 */
import * as Data from "effect/Data"
import { sentences } from "./internal/sentences.js"

/** One thing wrong with the environment: the variable, the form it must have, and what to do. Never its value. */
export interface SettingsProblem {
  readonly setting: string
  readonly problem: string
  readonly mend: string
}

/** The environment can't be used. All problems are told at once, and none shows a secret. */
export class SettingsError extends Data.TaggedError("SettingsError")<{
  readonly problems: ReadonlyArray<SettingsProblem>
}> {
  override get message(): string {
    return this.problems.map((p) => `${p.setting}: ${sentences(p.problem, p.mend)}`).join("\n")
  }
}

/**
 * A statement or a connection to PostgreSQL failed.
 *
 * - `connection`: the server can't be reached or dropped us; waiting helps.
 * - `conflict`: deadlock, serialization failure, lock time-out, cancelled statement; trying again helps.
 * - `refused`: the server answered and refuses (missing object or privilege, bad password, bad input); a person must act.
 *
 * `sqlState` is PostgreSQL's five-letter code when the server sent one.
 */
export class DatabaseError extends Data.TaggedError("DatabaseError")<{
  readonly operation: string
  readonly kind: "connection" | "conflict" | "refused"
  readonly reason: string
  readonly sqlState: string | undefined
}> {
  override get message(): string {
    return `${this.operation}: ${this.reason}${this.sqlState === undefined ? "" : ` (SQLSTATE ${this.sqlState})`}`
  }
}

/** The tables are missing or of another version; says which command to run. */
export class SchemaError extends Data.TaggedError("SchemaError")<{ readonly reason: string; readonly mend: string }> {
  override get message(): string {
    return sentences(this.reason, this.mend)
  }
}

/** The health server can't listen where the settings say. The message names the setting and what to do. */
export class HealthServerError extends Data.TaggedError("HealthServerError")<SettingsProblem> {
  override get message(): string {
    return `${this.setting}: ${sentences(this.problem, this.mend)}`
  }
}

/** A LISTEN session could not be opened or ended. The reason is for a person; `mend` when there is something to do. */
export class ListenError extends Data.TaggedError("ListenError")<{
  readonly why: "connect" | "replica" | "pooler" | "dropped" | "unresponsive" | "channels-lost" | "refused"
  readonly reason: string
}> {
  override get message(): string {
    return `LISTEN ${this.why}: ${this.reason}`
  }
}

/** LISTEN gave up after the last retry: the process must end with exit code 1 (design, promise 8). */
export class ListenExhausted extends Data.TaggedError("ListenExhausted")<{
  readonly retries: number
  readonly last: ListenError
}> {
  override get message(): string {
    return `LISTEN gave up after ${this.retries} retries; the last failure: ${this.last.message}`
  }
}

/** The AMQP session could not be opened or ended. */
export class AmqpError extends Data.TaggedError("AmqpError")<{ readonly operation: string; readonly reason: string }> {
  override get message(): string {
    return `AMQP ${this.operation}: ${this.reason}`
  }
}

/** Something that a person or a script asked for can't be understood: which part of it, why, and what to do. */
export class BadInput extends Data.TaggedError("BadInput")<{
  readonly parameter: string
  readonly problem: string
  readonly mend: string
}> {
  override get message(): string {
    return `${this.parameter}: ${sentences(this.problem, this.mend)}`
  }
}

/** No row has this id: it never was there, or it was discarded, or deleted after its retention time. */
export class UnknownDeadLetter extends Data.TaggedError("UnknownDeadLetter")<{ readonly id: string }> {
  override get message(): string {
    return `no event has the id ${this.id}`
  }
}

/** The event is there, and is no dead letter: somebody was faster, or it never was one. `pending` means that it will go out. */
export class NotDeadAnyMore extends Data.TaggedError("NotDeadAnyMore")<{
  readonly id: string
  readonly state: "pending" | "processed"
}> {
  override get message(): string {
    return `the event ${this.id} is not dead any more: it is ${this.state}`
  }
}

/** An action on many dead letters ended early. What was `done` before stays done, and asking again does the rest. */
export class BulkUnfinished extends Data.TaggedError("BulkUnfinished")<{
  readonly action: "retry" | "discard"
  readonly done: number
  readonly cause: DatabaseError
}> {
  override get message(): string {
    return `the ${this.action} ended early, after ${this.done} dead letters: ${this.cause.message}`
  }
}
