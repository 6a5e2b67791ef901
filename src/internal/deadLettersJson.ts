/**
 * Dead letters as JSON text, for HTTP and for scripts. Headers and payload are put in as PostgreSQL wrote them: parsed, a
 * number could lose digits.
 */
import type { DeadLetter, DeadLetterInFull, DeadLetterPage } from "../DeadLetters.js"
import type { BadInput, BulkUnfinished, DatabaseError, NotDeadAnyMore, UnknownDeadLetter } from "../Errors.js"

const summary = (letter: DeadLetter) => ({
  seq: letter.seq,
  id: letter.id,
  channel: letter.channel,
  eventType: letter.eventType,
  aggregateType: letter.aggregateType,
  aggregateId: letter.aggregateId,
  attempts: letter.attempts,
  lastError: letter.lastError,
  createdAt: letter.createdAt,
  deadAt: letter.deadAt,
  target: letter.target
})

export const pageJson = ({ deadLetters, next }: DeadLetterPage): string =>
  JSON.stringify({ deadLetters: deadLetters.map(summary), next })

export const letterJson = (letter: DeadLetterInFull): string => {
  const start = JSON.stringify(summary(letter)).slice(0, -1)
  const end =
    letter.payload === undefined
      ? `"payloadOmitted":${JSON.stringify(letter.payloadOmitted ?? "")}`
      : `"payload":${letter.payload}`
  return `${start},"headers":${letter.headers},${end}}`
}

export type DeadLettersFailure = BadInput | UnknownDeadLetter | NotDeadAnyMore | DatabaseError | BulkUnfinished

/** A failure for whoever asked: HTTP's status, a word for programs, a sentence for people, and what else there is to tell. */
export interface FailureTold {
  readonly status: number
  readonly error: string
  readonly message: string
  readonly more?: { readonly [name: string]: string | number }
}

export const deadLettersFailure = (failure: DeadLettersFailure): FailureTold => {
  const { message } = failure
  switch (failure._tag) {
    case "BadInput":
      return { status: 400, error: "bad_request", message, more: { parameter: failure.parameter } }
    case "UnknownDeadLetter":
      return { status: 404, error: "not_found", message }
    case "NotDeadAnyMore":
      return { status: 409, error: "not_dead", message, more: { state: failure.state } }
    case "DatabaseError":
      return { status: 503, error: "unavailable", message }
    case "BulkUnfinished": {
      const done = failure.action === "retry" ? "retried" : "discarded"
      return { status: 503, error: "unavailable", message, more: { [done]: failure.done } }
    }
  }
}
