/**
 * A worker's session: raw `pg`, one connection, one transaction at a time. Each step costs one round trip.
 */
import { createHash } from "node:crypto"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import type * as Scope from "effect/Scope"
import type * as pg from "pg"
import { DatabaseError } from "../Errors.js"
import type { ClaimFloor } from "../LowWater.js"
import type { OutboxRow, OutboxWorker } from "../Outbox.js"
import * as Sql from "../OutboxSql.js"
import type { PgConnector } from "../PgConnector.js"
import type { SettingsShape } from "../Settings.js"
import { type ClaimAnswer, claimFull, claimReady } from "./claimSql.js"
import { isAboutData, type Payload, readPayload, readPayloads } from "./heavyBatch.js"
import { postgresSpan, spanNames } from "./otlpNames.js"
import type { OutboxNames } from "./outboxNames.js"
import { toDatabaseError } from "./pgErrors.js"
import { inAscii, safeText } from "./safeText.js"

const statementTimeoutMillis = 30_000

/** What the payloads of one batch may come to, as text. A single longer one comes alone. */
const batchBytes = 32 * 1024 * 1024

/** The window is this many times the limit, so that a worker finds rows beyond those in the hands of a few others. */
const firstWindow = 4
const widestWindow = 64

/** How often one claim looks at most, when what it sees is in other hands. */
const mostLooks = 8

/** A full claim begins at the bottom and leaves nobody out. */
const wholeTable: ClaimFloor = { above: 0n, leftOut: [] }

interface Statement {
  readonly text: string
  /** Prepared on first use, and kept by the session. */
  readonly name?: string
  readonly values?: ReadonlyArray<unknown>
}

/**
 * Sends the statements together and waits for all answers; fails with the first failure. The waits are bounded by the
 * connection: the server cancels a long statement, and the client hangs up when no answer comes.
 */
const send = <R extends pg.QueryResultRow>(
  client: pg.Client,
  operation: string,
  statements: ReadonlyArray<Statement>
): Effect.Effect<ReadonlyArray<pg.QueryResult<R>>, DatabaseError> =>
  Effect.async((resume) => {
    const results: Array<pg.QueryResult<R>> = []
    let failure: Error | undefined
    let open = statements.length
    for (const [index, { name, text, values }] of statements.entries()) {
      client.query<R>(
        {
          text,
          ...(name === undefined ? undefined : { name }),
          ...(values === undefined ? undefined : { values: Array.from(values) })
        },
        (error: Error | null, result: pg.QueryResult<R>) => {
          if (error !== null) failure ??= error
          results[index] = result
          open--
          if (open > 0) return
          resume(failure === undefined ? Effect.succeed(results) : Effect.fail(toDatabaseError(operation, failure)))
        }
      )
    }
  })

const toRow = (answer: ClaimAnswer, seq: string): OutboxRow => ({
  seq,
  id: answer.id,
  channel: answer.channel ?? undefined,
  eventType: answer.event_type ?? undefined,
  aggregateType: answer.aggregate_type ?? undefined,
  aggregateId: answer.aggregate_id ?? undefined,
  payload: answer.payload ?? undefined,
  payloadBytes: answer.payload_bytes ?? 0,
  headers: answer.headers ?? undefined,
  attempts: answer.attempts,
  waited: answer.waited,
  createdAtSeconds: answer.created_at_seconds,
  ageSeconds: answer.age_seconds
})

const toRows = (answers: ReadonlyArray<ClaimAnswer>): ReadonlyArray<OutboxRow> => {
  const rows: Array<OutboxRow> = []
  for (const answer of answers) if (answer.seq !== null) rows.push(toRow(answer, answer.seq))
  return rows
}

const refused = (operation: string, reason: string) =>
  new DatabaseError({ operation, kind: "refused", reason, sqlState: undefined })

/**
 * The name tells the text. Behind a pooler in transaction mode the server's session may hold statements of a service of
 * another schema or version, and the same name would run theirs: rows of one, marked by the other.
 */
const named = (kind: string, text: string) => ({
  name: `${kind}_${createHash("sha256").update(text).digest("hex").slice(0, 16)}`,
  text
})

/** Opens the session. The floor is asked for at each bounded claim. */
export const openWorker = Effect.fnUntraced(function* (options: {
  readonly connector: PgConnector["Type"]
  readonly settings: SettingsShape
  readonly names: OutboxNames
  readonly floor: () => ClaimFloor
}): Effect.fn.Return<OutboxWorker, DatabaseError, Scope.Scope> {
  const { connector, floor, names, settings } = options
  const client = yield* connector.connect({
    role: "relay",
    statementTimeoutMillis,
    // While the broker confirms, the transaction stands still.
    idleInTransactionTimeoutMillis: 2 * Duration.toMillis(settings.confirmTimeout) + 60_000
  })
  const [, shown] = yield* send<{ readonly server_encoding: string }>(client, "set up a worker's session", [
    { text: Sql.WORKER_SESSION },
    { text: "show server_encoding" }
  ])
  // A reason may quote a name of the broker's, which a database in LATIN1 could not store.
  const holdsAll = ["UTF8", "SQL_ASCII"].includes(shown?.rows[0]?.server_encoding ?? "")
  const forLastError = (reason: string) => (holdsAll ? safeText(reason) : inAscii(safeText(reason)))
  // The driver looks at it before each query, so it may be set now: statements are sent without waiting for the answers
  // of those before them.
  Reflect.set(client, "pipeline", true)

  const prepared = {
    ready: named("claim_ready", claimReady(names)),
    full: named("claim_full", claimFull(names)),
    processed: named("mark_processed", Sql.markProcessed(names)),
    failed: named("record_failed", Sql.recordFailed(names)),
    payload: named("read_payload", readPayload(names))
  }
  const longestPayload = 2 * settings.maxMessageBytes
  let window = firstWindow

  const savepoint = "savepoint payload"
  const payloads = {
    read: (seq: string) =>
      Effect.flatMap(
        send<Payload & pg.QueryResultRow>(client, "read a payload", [
          { text: savepoint },
          { ...prepared.payload, values: [seq, longestPayload] },
          { text: `release ${savepoint}` }
        ]),
        (results) =>
          Effect.mapError(Effect.fromNullable(results[1]?.rows[0]), () => refused("read a payload", "the row is gone"))
      ),
    recover: Effect.asVoid(send(client, "skip a payload", [{ text: `rollback to ${savepoint}` }]))
  }

  const claim: OutboxWorker["claim"] = Effect.fn(
    spanNames.claim,
    postgresSpan
  )(function* ({ full, limit }) {
    const { above, leftOut } = full ? wholeTable : floor()
    const blocked = { ids: leftOut.map(({ id }) => id), types: leftOut.map(({ type }) => type) }
    let heavy = false
    for (let look = 1; ; look++) {
      // A look that found nothing may have locked rows that it can't give.
      const before = look === 1 ? [] : [{ text: Sql.ROLLBACK }]
      const answered = yield* Effect.either(
        send<ClaimAnswer & pg.QueryResultRow>(client, "claim", [
          ...before,
          { text: Sql.BEGIN },
          {
            ...(full ? prepared.full : prepared.ready),
            values: [
              String(above),
              window * limit,
              limit,
              batchBytes,
              longestPayload,
              blocked.ids,
              blocked.types,
              heavy
            ]
          }
        ])
      )
      if (answered._tag === "Left") {
        if (heavy || !isAboutData(answered.left)) return yield* answered.left
        // One of the payloads, maybe. The next look reads none of them.
        heavy = true
        continue
      }
      const answers = answered.right.at(-1)?.rows ?? []
      const rows = toRows(answers)
      const [first] = answers
      const seen = first?.seen ?? 0
      const narrow = first?.cut === true && rows.length < limit
      const canWiden = narrow && window < widestWindow
      window = narrow ? Math.min(window * 2, widestWindow) : Math.max(Math.ceil(window / 2), firstWindow)
      blocked.ids.push(...(first?.blocked_ids ?? []))
      blocked.types.push(...(first?.blocked_types ?? []))
      const contended = rows.length < limit && (seen > rows.length || blocked.ids.length > leftOut.length)
      if (first?.seq != null && first.payload_bytes === null) {
        return { rows: yield* readPayloads(rows, batchBytes, payloads), contended }
      }
      if (rows.length > 0) return { rows, contended }
      // All that is free in the window is of blocked aggregates, or nothing is; beyond it there may be more.
      const more = canWiden || (first?.blocked_ids ?? null) !== null
      if (!more || look === mostLooks) {
        yield* send(client, "end an empty claim", [{ text: Sql.ROLLBACK }])
        return { rows, contended }
      }
    }
  })

  const settle: OutboxWorker["settle"] = Effect.fn(
    spanNames.settle,
    postgresSpan
  )(function* ({ failed, processed }) {
    const operation = "settle"
    const statements: Array<Statement> = []
    const expected: Array<number> = []
    if (processed.length > 0) {
      statements.push({ ...prepared.processed, values: [processed] })
      expected.push(processed.length)
    }
    if (failed.length > 0) {
      statements.push({
        ...prepared.failed,
        values: [
          failed.map(({ seq }) => seq),
          failed.map(({ reason }) => forLastError(reason)),
          failed.map(({ dead }) => dead),
          settings.maxAttempts
        ]
      })
      expected.push(failed.length)
    }
    const results = yield* send(client, operation, [...statements, { text: Sql.COMMIT }])
    if (results.at(-1)?.command !== "COMMIT") {
      return yield* refused(operation, "the transaction had failed before, and was rolled back")
    }
    const short = expected.findIndex((count, index) => results[index]?.rowCount !== count)
    if (short >= 0) {
      return yield* refused(
        operation,
        `${results[short]?.rowCount ?? 0} rows were written instead of ${expected[short]}: something in the database (a trigger, a policy) keeps the relay from marking rows, and they will be published again`
      )
    }
  })

  const rollback: OutboxWorker["rollback"] = Effect.asVoid(send(client, "roll back", [{ text: Sql.ROLLBACK }]))

  return { claim, settle, rollback }
})
