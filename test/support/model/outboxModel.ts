/**
 * `event_outbox` in memory, with the semantics of the real statements: a claim sees a snapshot and locks a moment later,
 * skips what others hold, and looks again at what it locks; a session that is lost takes its transaction with it, at
 * once or after a while; a commit may have happened although its answer never came.
 *
 * It watches what is done to it, and says so when a promise is broken.
 */
import * as Effect from "effect/Effect"
import { DatabaseError } from "../../../src/Errors.js"
import type { ClaimedBatch, FailedRow, Outbox, OutboxRow, OutboxWorker } from "../../../src/Outbox.js"
import { row as plainRow } from "../scripted.js"
import type { BrokerModel } from "./brokerModel.js"
import { numbers, type Simulation, words } from "./simulation.js"

export type Aggregate = "a" | "b" | undefined
/**
 * `poison`: the broker refuses it each time. `unroutable`: it can't become a message yet. `too large`: it never can, and
 * is a dead letter at once.
 */
export type Kind = "good" | "poison" | "unroutable" | "too large"

export interface ModelRow {
  readonly seq: number
  readonly id: string
  readonly aggregate: Aggregate
  readonly kind: Kind
  attempts: number
  retryAfterMillis: number | undefined
  state: "pending" | "processed" | "dead"
  lockedBy: Transaction | undefined
  /**
   * A worker lost its session while it published the row, and goes on without knowing. The broker's word may have been for
   * that one, or for the next worker that has the row.
   */
  inTwoHands: boolean
}

interface Transaction {
  readonly rows: Array<ModelRow>
  readonly claimed: Array<ModelRow>
  readonly lockedAtMillis: number
}

/** `killed`: its process is gone, and nobody waits for its answers any more. */
export interface Process {
  killed: boolean
}

export const claimWords = ["ok", "slow", "session lost"] as const
export const settleWords = [
  "ok",
  "session lost before the commit",
  "session lost before the commit, locks linger",
  "committed, answer lost",
  "committed later, answer lost"
] as const
export const openWords = ["ok", "refused"] as const

export interface DatabaseScript {
  readonly claims: ReadonlyArray<(typeof claimWords)[number]>
  readonly settles: ReadonlyArray<(typeof settleWords)[number]>
  readonly opens: ReadonlyArray<(typeof openWords)[number]>
}

export interface OutboxModel {
  readonly portFor: (process: Process) => Outbox["Type"]
  readonly rows: ReadonlyArray<ModelRow>
  readonly insert: (aggregate: Aggregate, kind: Kind) => ModelRow
  readonly goAway: () => void
  readonly comeBack: () => void
  /** The server notices that a process is gone. */
  readonly forget: (process: Process) => void
  readonly openTransactions: () => number
  readonly openSessions: () => number
}

/** Unlike `Effect.never`, it keeps no process alive. */
export const unanswered: Effect.Effect<never> = Effect.async(() => {})

const gone = (operation: string) =>
  new DatabaseError({ operation, kind: "connection", reason: "gone", sqlState: undefined })

const same = (x: ModelRow, y: ModelRow) => x.aggregate !== undefined && x.aggregate === y.aggregate

export const makeOutboxModel = (
  simulation: Simulation,
  broker: BrokerModel,
  options: { readonly script: DatabaseScript; readonly maxAttempts: number; readonly seed: number },
  complain: (what: string) => void
): OutboxModel => {
  const { nowMillis } = simulation
  const rows: Array<ModelRow> = []
  const transactions = new Set<Transaction>()
  const sessions = new Set<{ alive: boolean; transaction: Transaction | undefined; readonly process: Process }>()
  const random = numbers(options.seed)
  const nextClaim = words(options.script.claims, "ok")
  const nextSettle = words(options.script.settles, "ok")
  const nextOpen = words(options.script.opens, "ok")
  let away = false

  const release = (transaction: Transaction | undefined) => {
    if (transaction === undefined) return
    for (const row of transaction.rows) if (row.lockedBy === transaction) row.lockedBy = undefined
    transactions.delete(transaction)
  }

  const isPending = (row: ModelRow) => row.state === "pending"
  const isHeld = (row: ModelRow) =>
    rows.some((e) => same(e, row) && e.seq < row.seq && isPending(e) && e.retryAfterMillis !== undefined)
  const isDue = (row: ModelRow, full: boolean, atMillis: number) =>
    row.retryAfterMillis === undefined || (full && row.retryAfterMillis <= atMillis)

  /** Promises 1, 5 and 6 at the moment they can be broken. */
  const inspectCommit = (transaction: Transaction, processed: ReadonlyArray<string>, failed: ReadonlyArray<string>) => {
    for (const row of transaction.claimed) {
      const told = broker.wordsSince(row.id, transaction.lockedAtMillis)
      const isMessage = row.kind === "good" || row.kind === "poison"
      const marked = processed.includes(String(row.seq))
      const counted = failed.includes(String(row.seq))
      const words = [...told].join(" and ") || "unanswered"
      if (marked && !told.has("confirmed")) complain(`promise 1: ${row.seq} was marked processed, but was ${words}`)
      if (counted && isMessage && !told.has("refused") && !told.has("suspected")) {
        complain(`promise 6: ${row.seq} paid an attempt, but was ${words}`)
      }
      if (row.inTwoHands) continue
      if (!marked && told.has("confirmed")) complain(`${row.seq} was confirmed, but not marked: a needless duplicate`)
      if (!counted && told.has("refused")) complain(`promise 5: ${row.seq} was refused, but paid no attempt`)
    }
  }

  const write = (transaction: Transaction, processed: ReadonlyArray<string>, failed: ReadonlyArray<FailedRow>) => {
    for (const row of transaction.claimed) {
      const failure = failed.find(({ seq }) => seq === String(row.seq))
      if (processed.includes(String(row.seq))) {
        row.state = "processed"
        row.retryAfterMillis = undefined
      } else if (failure !== undefined) {
        row.attempts++
        const waitSeconds = Math.min(2 ** row.attempts, 300) * (0.8 + 0.2 * random())
        row.state = failure.dead || row.attempts >= options.maxAttempts ? "dead" : "pending"
        row.retryAfterMillis = row.state === "dead" ? undefined : nowMillis() + waitSeconds * 1000
      }
    }
    release(transaction)
  }

  const openWorker = (process: Process): Outbox["Type"]["openWorker"] =>
    Effect.gen(function* () {
      yield* Effect.sleep(1)
      if (process.killed) return yield* unanswered
      if (away || nextOpen() === "refused") return yield* gone("connect")
      const session = { alive: true, transaction: undefined as Transaction | undefined, process }
      sessions.add(session)
      const lose = (operation: string, lingerMillis = 0) => {
        const { transaction } = session
        session.alive = false
        if (lingerMillis === 0) release(transaction)
        else simulation.after(lingerMillis, () => release(transaction))
        return gone(operation)
      }
      yield* Effect.addFinalizer(() =>
        Effect.sync(() => {
          if (process.killed) return
          const { transaction } = session
          if (
            session.alive &&
            transaction?.claimed.some(({ id }) => broker.wasWrittenSince(id, transaction.lockedAtMillis))
          ) {
            complain("a session was closed in the middle of a batch")
          }
          if (session.alive) release(session.transaction)
          sessions.delete(session)
        })
      )

      /** A round trip. Afterwards the session may be gone, or the process. */
      const trip = (operation: string, millis: number) =>
        Effect.zipRight(
          Effect.sleep(millis),
          Effect.suspend(() => (process.killed ? unanswered : session.alive ? Effect.void : gone(operation)))
        )

      const claim: OutboxWorker["claim"] = ({ full, limit }) =>
        Effect.gen(function* () {
          if (session.transaction !== undefined) complain("a claim came while a transaction was open")
          yield* trip("claim", 0)
          const beganMillis = nowMillis()
          const word = nextClaim()
          const candidates = rows.filter((row) => isPending(row) && isDue(row, full, beganMillis) && !isHeld(row))
          yield* trip("claim", word === "slow" ? 50 : 1)
          if (word === "session lost") return yield* lose("claim")
          const transaction: Transaction = { rows: [], claimed: [], lockedAtMillis: nowMillis() }
          for (const row of candidates) {
            if (transaction.rows.length === limit) break
            if (row.lockedBy !== undefined || !isPending(row) || !isDue(row, full, beganMillis)) continue
            row.lockedBy = transaction
            transaction.rows.push(row)
          }
          const isDropped = (row: ModelRow) =>
            candidates.some((e) => same(e, row) && e.seq < row.seq && !transaction.rows.includes(e))
          transaction.claimed.push(...transaction.rows.filter((row) => !isDropped(row)))
          const contended = transaction.claimed.length < limit && candidates.length > transaction.claimed.length
          if (transaction.claimed.length === 0) {
            release(transaction)
            return { rows: [], contended } satisfies ClaimedBatch
          }
          session.transaction = transaction
          transactions.add(transaction)
          return { rows: transaction.claimed.map(toOutboxRow), contended } satisfies ClaimedBatch
        })

      const settle: OutboxWorker["settle"] = ({ failed, processed }) =>
        Effect.gen(function* () {
          const { transaction } = session
          if (transaction === undefined) return complain("a settle came without a transaction")
          yield* trip("settle", 1)
          const failedSeqs = failed.map(({ seq }) => seq)
          inspectCommit(transaction, processed, failedSeqs)
          switch (nextSettle()) {
            case "ok":
              write(transaction, processed, failed)
              session.transaction = undefined
              return
            case "session lost before the commit":
              return yield* lose("settle")
            case "session lost before the commit, locks linger":
              return yield* lose("settle", 3000)
            case "committed, answer lost":
              write(transaction, processed, failed)
              return yield* lose("settle")
            case "committed later, answer lost":
              session.alive = false
              simulation.after(700, () => write(transaction, processed, failed))
              return yield* gone("settle")
          }
        })

      const rollback = Effect.gen(function* () {
        const { transaction } = session
        if (transaction === undefined) return complain("a rollback came without a transaction")
        yield* trip("roll back", 1)
        inspectCommit(transaction, [], [])
        release(transaction)
        session.transaction = undefined
      })

      return { claim, settle, rollback }
    })

  return {
    rows,
    insert: (aggregate, kind) => {
      const seq = rows.length + 1
      const row: ModelRow = {
        seq,
        id: plainRow(seq).id,
        aggregate,
        kind,
        attempts: 0,
        retryAfterMillis: undefined,
        state: "pending",
        lockedBy: undefined,
        inTwoHands: false
      }
      rows.push(row)
      return row
    },
    goAway: () => {
      away = true
      for (const session of sessions) {
        for (const row of session.transaction?.claimed ?? []) row.inTwoHands = true
        if (session.alive) release(session.transaction)
        session.alive = false
      }
    },
    comeBack: () => {
      away = false
    },
    forget: (process) => {
      for (const session of sessions) {
        if (session.process !== process) continue
        if (session.alive) release(session.transaction)
        sessions.delete(session)
      }
    },
    openTransactions: () => transactions.size,
    openSessions: () => sessions.size,
    portFor: (process) => ({
      openWorker: openWorker(process),
      verifySchema: Effect.succeed([]),
      matchRows: (notifications) => Effect.succeed(notifications.map(() => false)),
      insertLive: () => Effect.void,
      advanceLowWater: Effect.succeed(false),
      countPendingSince: () => Effect.succeed(0),
      countOverdue: Effect.succeed(0),
      cleanUp: Effect.succeed(0)
    })
  }
}

const toOutboxRow = (row: ModelRow): OutboxRow =>
  plainRow(row.seq, {
    channel: row.kind === "unroutable" ? "nobody_routes_this" : "campaign_click",
    aggregateType: row.aggregate === undefined ? undefined : "thing",
    aggregateId: row.aggregate,
    ...(row.kind === "too large" ? { payload: undefined, payloadBytes: 100_000_000 } : undefined),
    attempts: row.attempts
  })
