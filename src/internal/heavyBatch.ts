/**
 * Payloads of a heavy batch, read one by one after the claim.
 *
 * A claim that read megabytes of payloads by itself would turn far more of them into text than fit into the batch. And one
 * payload that can't become text at all (PostgreSQL's limit is a gigabyte, and `1e131071` alone is 131,072 digits) would
 * fail the whole claim, again and again. Read alone, behind a savepoint, such a row is the only one to pay.
 */
import * as Effect from "effect/Effect"
import type { DatabaseError } from "../Errors.js"
import type { OutboxRow } from "../Outbox.js"
import { monotonicMillis } from "./monotonic.js"
import type { OutboxNames } from "./outboxNames.js"

/** A row's payload as text; null when it has more than $2 bytes. $1: seq. */
export const readPayload = ({ outbox }: OutboxNames): string => `
select octet_length(t.body) as bytes, case when octet_length(t.body) <= $2::bigint then t.body end as payload
from (select o.payload::text as body from ${outbox} o where o.seq = $1::bigint offset 0) t`

export interface Payload {
  readonly bytes: number
  readonly payload: string | null
}

/** No more payloads are begun after this time: the transaction holds its rows, and the rest comes with the next claim. */
const longestMillis = 10_000

/** Data that can't be read (22), a limit of the program (54), no memory for it (53200), or no time (57014). */
export const isAboutData = ({ sqlState }: DatabaseError): boolean => /^(22...|54...|53200|57014)$/.test(sqlState ?? "")

/** Reads payloads in the rows' order, up to `batchBytes` in all, and at least one. Gives the rows that it came to. */
export const readPayloads = Effect.fnUntraced(function* (
  rows: ReadonlyArray<OutboxRow>,
  batchBytes: number,
  session: {
    readonly read: (seq: string) => Effect.Effect<Payload, DatabaseError>
    /** Undoes a failed read, and nothing else. */
    readonly recover: Effect.Effect<void, DatabaseError>
  }
) {
  const startedMillis = yield* monotonicMillis
  const complete: Array<OutboxRow> = []
  let loaded = 0
  for (const row of rows) {
    if (complete.length > 0 && (yield* monotonicMillis) - startedMillis >= longestMillis) break
    const answer = yield* Effect.either(session.read(row.seq))
    if (answer._tag === "Left") {
      if (!isAboutData(answer.left)) return yield* answer.left
      yield* session.recover
      complete.push({ ...row, unreadable: answer.left.reason })
      continue
    }
    const { bytes, payload } = answer.right
    loaded += payload === null ? 0 : bytes
    if (complete.length > 0 && loaded > batchBytes) break
    complete.push({ ...row, payload: payload ?? undefined, payloadBytes: bytes })
  }
  return complete
})
