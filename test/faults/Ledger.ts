/**
 * The ledger: what was written, what is stored, and what arrived, held against each other after a round. Pure.
 */
import type {
  Complaint,
  ComplaintKind,
  Delivery,
  KeyState,
  RoundRecord,
  StoredRow,
  Totals,
  WrittenEvent
} from "./Model.js"

export interface Verdict {
  readonly totals: Totals
  readonly complaints: ReadonlyArray<Complaint>
  /** What later rounds must know of this one's keys. */
  readonly keys: ReadonlyMap<string, KeyState>
}

/** Around a fault: its effects reach a little past it, and the clocks of two processes are read. */
const slackMillis = 3000

/** How long after a queue's deletion its last confirm can be recorded. */
const settleMillis = 2000

/** Committed events by key; those of aborted transactions and savepoints in the second map. */
const sortByFate = (record: RoundRecord) => {
  const committed = new Map<string, WrittenEvent & { readonly endedAt: number }>()
  const takenBack = new Map<string, WrittenEvent>()
  for (const { endedAt, events, tx } of record.transactions) {
    const isCommitted = record.committed.has(tx)
    for (const event of events) {
      if (isCommitted && !event.takenBack) committed.set(event.key, { ...event, endedAt })
      else takenBack.set(event.key, event)
    }
  }
  return { committed, takenBack }
}

/** Settles a round. */
export const settle = (record: RoundRecord): Verdict => {
  const { excuses } = record
  const found = new Map<ComplaintKind, { count: number; examples: Array<string> }>()
  const complain = (kind: ComplaintKind, example: string) => {
    const entry = found.get(kind) ?? { count: 0, examples: [] }
    found.set(kind, entry)
    entry.count++
    if (entry.examples.length < 5) entry.examples.push(example)
  }

  for (const { fate, tx } of record.transactions) {
    if (fate === "committed" && !record.committed.has(tx)) complain("database", `${tx} was committed, and is not there`)
    if (fate === "rolled back" && record.committed.has(tx)) complain("database", `${tx} was rolled back, and is there`)
  }
  const { committed, takenBack } = sortByFate(record)
  // When a replica takes over from another, a bare notification may be published by both.
  const isHandOver = (key: string) => committed.get(key)?.kind === "live" && excuses.liveLostFrom !== undefined
  const rows = new Map<string, StoredRow>()
  for (const row of record.rows) {
    const other = rows.get(row.key)
    if (other === undefined) rows.set(row.key, row)
    else if (!isHandOver(row.key)) {
      complain("second message id", `${row.key} has two rows: ${other.seq} and ${row.seq}`)
    }
  }
  const arrivals = new Map<string, Array<Delivery>>()
  let phantom = 0
  let duplicates = 0
  let redelivered = 0
  let handedOver = 0

  const brokerKilledBetween = (one: Delivery, other: Delivery) =>
    one.session !== other.session && excuses.brokerKilledAt.some((at) => at >= one.at - slackMillis && at <= other.at)
  const faultBetween = (from: number, to: number) =>
    excuses.faults.some(({ beganAt, endedAt }) => beganAt <= to + slackMillis && endedAt >= from - slackMillis)

  const late = new Set<string>()
  for (const delivery of record.deliveries) {
    const { key, queue } = delivery
    const before = record.earlier.get(key)
    if (before !== undefined) {
      // A row of an earlier round was settled then. Only a broker that was killed gives out what it gave out before.
      if (delivery.redelivered) redelivered++
      else if (before === "handed over") handedOver++
      else if (before === "lost" && !late.has(key)) late.add(key)
      else if (excuses.brokerKilledAt.some((at) => at <= delivery.at)) redelivered++
      else complain("duplicated", `${key} of an earlier round came again in ${queue}`)
      continue
    }
    const event = committed.get(key)
    if (event === undefined) {
      phantom++
      complain("phantom", `${key} in ${queue}: ${takenBack.has(key) ? "it was rolled back" : "nobody wrote it"}`)
      continue
    }
    if (event.queue !== queue) complain("phantom", `${key} of ${event.queue} came to ${queue}`)
    const all = arrivals.get(key)
    if (all === undefined) arrivals.set(key, [delivery])
    else all.push(delivery)
  }

  /**
   * The batch was claimed after the event was written, and settled or lost before the row was marked. A worker that lost
   * its session in between may publish for a while what another has claimed anew.
   */
  const metFault = (key: string, first: Delivery, row: StoredRow | undefined) =>
    faultBetween(committed.get(key)?.endedAt ?? first.at, row?.processedAt ?? first.at)
  for (const [key, all] of arrivals) {
    const [first, ...again] = all
    if (first === undefined) continue
    const row = rows.get(key)
    const ids = new Set(all.map(({ messageId }) => messageId))
    if (row !== undefined) ids.add(row.id)
    if (ids.size > 1 && !isHandOver(key)) {
      const seen = all.map(({ at, messageId }) => `${messageId} at ${at}`)
      complain("second message id", `${key}: ${seen.join(", ")}, row: ${row === undefined ? "none" : row.id}`)
    }
    for (const delivery of again) {
      if (delivery.redelivered || brokerKilledBetween(first, delivery)) redelivered++
      else if (delivery.messageId !== first.messageId && isHandOver(key)) handedOver++
      else {
        duplicates++
        if (!metFault(key, first, row)) {
          const settled = row?.processedAt === undefined ? "never" : `${row.processedAt - first.at} ms later`
          const gap = delivery.at - first.at
          complain("duplicated", `${key} in ${delivery.queue} again after ${gap} ms, settled ${settled}, and no fault`)
        }
      }
    }
  }

  const missing = findMissing(record, committed, rows, arrivals)
  for (const example of missing.lost) complain("lost", example)
  const inverted = findInversions(record, committed, rows, arrivals)
  for (const example of inverted) complain("inverted", example)

  let refused = 0
  for (const row of record.rows) {
    const { attempts, dead, key, lastError, processedAt, queue } = row
    const event = committed.get(key)
    if (event === undefined) {
      complain("phantom", `${key} is a row, and ${takenBack.has(key) ? "was rolled back" : "nobody wrote it"}`)
    }
    if (attempts > 0) refused++
    if (attempts > 0 && !excuses.refusedQueues.has(queue)) {
      complain("attempts", `${key} of ${queue} has ${attempts}: ${lastError ?? "no reason"}`)
    }
    if (dead) complain("dead letter", `${key} of ${queue} after ${attempts}: ${lastError ?? "no reason"}`)
    else if (processedAt === undefined) complain("stuck", `${key} of ${queue} is still pending (attempts: ${attempts})`)
  }

  const keys = new Map<string, KeyState>()
  for (const key of committed.keys()) {
    keys.set(key, arrivals.has(key) ? (isHandOver(key) ? "handed over" : "delivered") : "lost")
  }
  return {
    keys,
    complaints: [...found].map(([kind, entry]) => ({ kind, ...entry })),
    totals: {
      events: committed.size,
      deliveries: record.deliveries.length,
      lost: missing.lost.length,
      inverted: inverted.length,
      phantom,
      duplicates,
      redelivered,
      handedOver,
      liveLost: missing.liveLost,
      goneWithQueue: missing.goneWithQueue,
      refused
    }
  }
}

type Committed = ReadonlyMap<string, WrittenEvent & { readonly endedAt: number }>
type Arrivals = ReadonlyMap<string, ReadonlyArray<Delivery>>

/** Committed events that did not arrive, and for which the schedule has no excuse; and those for which it has one. */
const findMissing = (
  record: RoundRecord,
  committed: Committed,
  rows: ReadonlyMap<string, StoredRow>,
  arrivals: Arrivals
) => {
  const { deletions, liveLostFrom } = record.excuses
  const lost: Array<string> = []
  let liveLost = 0
  let goneWithQueue = 0
  for (const [key, event] of committed) {
    const row = rows.get(key)
    if (row === undefined && event.kind !== "live") lost.push(`${key} of ${event.queue}: its row is gone`)
    if (arrivals.has(key)) continue
    if (row === undefined && event.kind === "live") {
      if (liveLostFrom !== undefined && event.endedAt >= liveLostFrom) liveLost++
      else lost.push(`${key}: a notification, sent while LISTEN was up`)
      continue
    }
    const at = row?.processedAt
    if (row === undefined || row.dead || at === undefined) continue
    const gone = deletions.some(({ from, queue, to }) => queue === row.queue && at >= from && at <= to + settleMillis)
    if (gone) goneWithQueue++
    else lost.push(`${key} of ${row.queue}: row ${row.seq} was marked processed, and no message came`)
  }
  return { lost, liveLost, goneWithQueue }
}

/** First deliveries of an aggregate against the order of its rows. */
const findInversions = (
  record: RoundRecord,
  committed: Committed,
  rows: ReadonlyMap<string, StoredRow>,
  arrivals: Arrivals
): ReadonlyArray<string> => {
  const last = new Map<string, { readonly seq: number; readonly key: string }>()
  const inverted: Array<string> = []
  for (const delivery of record.deliveries) {
    const { key } = delivery
    const aggregate = committed.get(key)?.aggregate
    const row = rows.get(key)
    if (aggregate === undefined || row === undefined || arrivals.get(key)?.[0] !== delivery) continue
    const before = last.get(aggregate)
    if (before !== undefined && before.seq > row.seq) {
      inverted.push(`${aggregate}: ${key} (row ${row.seq}) came after ${before.key} (row ${before.seq})`)
    } else last.set(aggregate, { seq: row.seq, key })
  }
  return inverted
}
