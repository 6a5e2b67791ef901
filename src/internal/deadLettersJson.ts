/**
 * Dead letters as JSON text, for HTTP and for scripts. Headers and payload are put in as PostgreSQL wrote them: parsed, a
 * number could lose digits.
 */
import type { DeadLetter, DeadLetterInFull, DeadLetterPage } from "../DeadLetters.js"

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
