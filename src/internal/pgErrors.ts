/**
 * What a failure of `pg`, of the socket, or of TLS means for the caller: wait, try again, or call a person.
 */
import { SqlError } from "@effect/sql/SqlError"
import { DatabaseError } from "../Errors.js"
import { withoutOpenSslNoise } from "./tlsFault.js"

interface Failure {
  readonly message: string
  /** Five letters from PostgreSQL, or Node's own word such as `ECONNREFUSED`. */
  readonly code: string | undefined
  readonly fromServer: boolean
}

/** SQLSTATEs that end the session, or are cured by another session. Class 08 belongs to them as well. */
const connectionStates = new Set([
  "57P01", // terminated by an administrator
  "57P02", // crash of another backend
  "57P03", // starting up or shutting down
  "57P05", // idle session time-out
  "25P03", // idle in a transaction for too long
  "25P04", // a transaction that took too long
  "53300", // too many connections
  "25006" // read-only: the server has become a replica, and the name may lead elsewhere next time
])

const conflictStates = new Set([
  "40001", // serialization failure
  "40P01", // deadlock
  "55P03", // lock not available in time
  "57014" // cancelled, or the statement time-out
])

const networkCodes =
  /^(ECONN|EPIPE$|ETIMEDOUT$|EHOST|ENET|EADDRNOTAVAIL$|ENOTFOUND$|EAI_|ENOENT$|ERR_STREAM|ERR_SOCKET|EPROTO$)/
const lostInWords = /connection terminated|not queryable|timeout|timed out|connection error|socket|closed|ended/i

const word = (holder: object, key: string): string | undefined => {
  const value: unknown = Reflect.get(holder, key)
  return typeof value === "string" && value !== "" ? value : undefined
}

/** `SqlError` says only that a statement failed; why is in its cause. */
const withoutSqlError = (cause: unknown): unknown => (cause instanceof SqlError ? withoutSqlError(cause.cause) : cause)

/** Looks through the many addresses of one name (`AggregateError`) at what happened in the end. */
const failureOf = (cause: unknown): Failure => {
  if (typeof cause !== "object" || cause === null) return { message: String(cause), code: undefined, fromServer: false }
  if (cause instanceof AggregateError && cause.errors.length > 0) {
    const failures = cause.errors.map(failureOf)
    return {
      message: failures.map((failure) => failure.message).join("; "),
      code: failures[0]?.code,
      fromServer: false
    }
  }
  const code = word(cause, "code")
  return {
    message: withoutOpenSslNoise(word(cause, "message") ?? code ?? "no reason given"),
    code,
    fromServer: word(cause, "severity") !== undefined && code?.length === 5
  }
}

const kindOf = (failure: Failure): DatabaseError["kind"] => {
  if (failure.fromServer && failure.code !== undefined) {
    if (failure.code.startsWith("08") || connectionStates.has(failure.code)) return "connection"
    return conflictStates.has(failure.code) ? "conflict" : "refused"
  }
  if (failure.code !== undefined) return networkCodes.test(failure.code) ? "connection" : "refused"
  return lostInWords.test(failure.message) ? "connection" : "refused"
}

/** What only a pooler that changes the server's session under us can bring about. */
const isPooled = (failure: Failure): boolean =>
  failure.code === "26000" || failure.code === "42P05" || failure.message.includes("pooling mode")

const pooled =
  "; a pooler such as PgBouncer that keeps no session is in between. Connect to PostgreSQL directly or in session mode"

/** A URL has no business in a reason, whoever wrote it there. */
const withoutUrls = (text: string): string => text.replace(/postgres(?:ql)?:\/\/\S*/gi, "<url>")

/**
 * Turns whatever `pg`, `@effect/sql` or Node threw into a {@link DatabaseError}. Never shows a URL or a password.
 * A failure to connect keeps its own operation.
 */
export const toDatabaseError = (operation: string, thrown: unknown): DatabaseError => {
  const cause = withoutSqlError(thrown)
  if (cause instanceof DatabaseError) return cause
  const failure = failureOf(cause)
  return new DatabaseError({
    operation,
    kind: kindOf(failure),
    reason: withoutUrls(failure.message) + (failure.fromServer && isPooled(failure) ? pooled : ""),
    sqlState: failure.fromServer ? failure.code : undefined
  })
}
