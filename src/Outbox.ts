/**
 * The table `event_outbox`: claim, settle, and the statements of the jobs.
 */
import { SqlClient } from "@effect/sql/SqlClient"
import * as Context from "effect/Context"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Option from "effect/Option"
import type * as Scope from "effect/Scope"
import { Database } from "./Database.js"
import type { DatabaseError, SchemaError } from "./Errors.js"
import { makeLiveRows } from "./internal/liveRows.js"
import { outboxNames } from "./internal/outboxNames.js"
import { openWorker } from "./internal/outboxWorker.js"
import { verifySchema } from "./internal/verifySchema.js"
import * as LowWater from "./LowWater.js"
import * as Sql from "./OutboxSql.js"
import { PgConnector } from "./PgConnector.js"
import { Settings } from "./Settings.js"

/** A claimed row. It stays locked by the worker's transaction until that settles or rolls back. */
export interface OutboxRow {
  /** A bigint as text: larger than a double holds. */
  readonly seq: string
  readonly id: string
  readonly channel: string | undefined
  readonly eventType: string | undefined
  readonly aggregateType: string | undefined
  readonly aggregateId: string | undefined
  /** `payload::text`; `undefined` when `payloadBytes` is over the limit (it was not loaded). */
  readonly payload: string | undefined
  /** Length of `payload::text` in bytes. */
  readonly payloadBytes: number
  /** Why the server can't turn the payload into text, when it can't. */
  readonly unreadable?: string
  /** `headers::text`; `undefined` for the empty object. */
  readonly headers: string | undefined
  /** Message-level failures so far, before this try. */
  readonly attempts: number
  /** Whether it waited for a retry until now, and so held back the later rows of its aggregate. */
  readonly waited: boolean
  /** `created_at`, in whole seconds since 1970. */
  readonly createdAtSeconds: number
  /** Age of the row at the claim, by the database's clock. */
  readonly ageSeconds: number
}

/** What one claim got. */
export interface ClaimedBatch {
  /** In `seq` order. When empty, the transaction has already ended. */
  readonly rows: ReadonlyArray<OutboxRow>
  /**
   * Due rows were seen in the window that this claim could not have: locked elsewhere, or left out because an earlier
   * row of their aggregate was. Whoever frees them rings nobody, so the worker looks again soon.
   */
  readonly contended: boolean
}

/** A row whose message was refused: attempts + 1, the reason, and a retry time or the dead letter, decided in SQL. */
export interface FailedRow {
  readonly seq: string
  readonly reason: string
  /** No retry can help: a dead letter at once. Only a body over `PG_LISTENER_MAX_MESSAGE_BYTES` is such a case. */
  readonly dead: boolean
}

/** A live notification that goes to the table, since the broker can't take it now or it can't be a message at all. */
export type LiveRow =
  /** Pending: the relay publishes it from here. `attempts` is 1 and `reason` set when the broker refused it once. */
  | {
      readonly kind: "pending"
      readonly id: string
      readonly channel: string
      readonly payload: string
      readonly refused: string | undefined
    }
  /** A dead letter: not JSON. `payload` is kept as a JSON string. */
  | {
      readonly kind: "dead"
      readonly id: string
      readonly channel: string
      readonly payload: string
      readonly reason: string
    }

/** One worker's own connection: one transaction at a time, `claim` → `settle` or `rollback`. */
export interface OutboxWorker {
  /**
   * BEGIN and the claim: up to `limit` due rows in `seq` order, none whose aggregate has an earlier row that waits or is
   * in other hands. An empty answer has already ended the transaction. `full` also looks at retries that fell due and
   * at rows below the low-water mark.
   */
  readonly claim: (options: {
    readonly limit: number
    readonly full: boolean
  }) => Effect.Effect<ClaimedBatch, DatabaseError>
  /** Marks the processed, records the failed, COMMITs. After an error the outcome is unknown, and the session is to be reopened. */
  readonly settle: (batch: {
    readonly processed: ReadonlyArray<string>
    readonly failed: ReadonlyArray<FailedRow>
  }) => Effect.Effect<void, DatabaseError>
  /** ROLLBACK: every claimed row is free again, unchanged. */
  readonly rollback: Effect.Effect<void, DatabaseError>
}

/** Something about the tables that works, and may yet not be meant. */
export interface SchemaNote {
  readonly level: "info" | "warning"
  readonly message: string
}

export class Outbox extends Context.Tag("pg-listener/Outbox")<
  Outbox,
  {
    /** A worker's connection; closes with the scope, bounded in time. */
    readonly openWorker: Effect.Effect<OutboxWorker, DatabaseError, Scope.Scope>
    /** Whether the tables are there in the version this program needs; and what a person may want to know of them. */
    readonly verifySchema: Effect.Effect<ReadonlyArray<SchemaNote>, SchemaError | DatabaseError>
    /**
     * For each notification: is there a row of the same channel and content (promise 2)? A row answers for one
     * notification, and only while it is less than an hour old.
     */
    readonly matchRows: (
      notifications: ReadonlyArray<{ readonly channel: string; readonly payload: string }>
    ) => Effect.Effect<ReadonlyArray<boolean>, DatabaseError>
    /** Inserts live notifications as rows; a row whose id is there already is left alone. */
    readonly insertLive: (rows: ReadonlyArray<LiveRow>) => Effect.Effect<void, DatabaseError>
    /**
     * Moves the low-water mark up, as far as no row below it can still turn up (see LowWater.ts). Tells whether rows that
     * bounded claims had left out are theirs to take again.
     */
    readonly advanceLowWater: Effect.Effect<boolean, DatabaseError>
    /** How many rows created at or after this time (epoch milliseconds) are pending; counts to 100,000 at most. */
    readonly countPendingSince: (epochMillis: number) => Effect.Effect<number, DatabaseError>
    /** How many due, never tried rows are older than `PG_LISTENER_SWEEP_AFTER` and in nobody's hands; counts to 10,000 at most. */
    readonly countOverdue: Effect.Effect<number, DatabaseError>
    /** Deletes rows processed longer ago than `PG_LISTENER_RETENTION`, in small batches; returns how many. */
    readonly cleanUp: Effect.Effect<number, DatabaseError>
  }
>() {
  static readonly layer: Layer.Layer<Outbox, never, Settings | PgConnector | Database | SqlClient> = Layer.effect(
    this,
    Effect.suspend(() => make)
  )
}

const pendingCountedAtMost = 100_000
const overdueCountedAtMost = 10_000

/** Each bounded claim is sent the list, so it is a short one; beyond it, claims walk the held rows. */
const aggregatesLeftOutAtMost = 1_000

/** Rows that one step of the clean-up looks at; each is a short transaction of its own. */
const cleanUpStepRows = 5_000

const make = Effect.gen(function* () {
  const settings = yield* Settings
  const connector = yield* PgConnector
  const database = yield* Database
  const sql = yield* SqlClient
  const names = outboxNames(settings.schema)

  const query = <R extends object>(operation: string, text: string, values: ReadonlyArray<unknown>) =>
    database.query(operation, sql.unsafe<R>(text, values))

  const lowWater = LowWater.make({
    lastSeq: Effect.map(query<{ readonly seq: string }>("read the sequence", Sql.LAST_SEQ, [names.outbox]), ([row]) =>
      BigInt(row?.seq ?? "0")
    ),
    openWriters: Effect.map(
      query<{ readonly name: string }>("read the open writers", Sql.OPEN_WRITERS, [names.outbox]),
      (rows) => rows.map(({ name }) => name)
    ),
    firstReadyAbove: (mark) =>
      Effect.map(
        query<{ readonly seq: string }>("find the first ready row", Sql.firstReadyAbove(names), [String(mark)]),
        ([row]) => Option.map(Option.fromNullable(row), ({ seq }) => BigInt(seq))
      ),
    heldRunAbove: (mark, upTo) =>
      Effect.map(
        query<{ readonly above: string; readonly ids: ReadonlyArray<string>; readonly types: ReadonlyArray<string> }>(
          "look at held rows",
          Sql.heldRunAbove(names),
          [String(mark), String(upTo), aggregatesLeftOutAtMost + 1]
        ),
        ([run]) =>
          run === undefined || run.ids.length === 0 || run.ids.length > aggregatesLeftOutAtMost
            ? Option.none()
            : Option.some({
                above: BigInt(run.above),
                leftOut: run.ids.map((id, i) => ({ id, type: run.types[i] ?? "" }))
              })
      )
  })

  const countBy = (operation: string, text: string, values: ReadonlyArray<unknown>) =>
    Effect.map(query<{ readonly count: number }>(operation, text, values), ([row]) => row?.count ?? 0)

  const cleanUp = Effect.gen(function* () {
    const retentionMillis = Duration.toMillis(settings.retention)
    let after = "0"
    let deleted = 0
    while (true) {
      const [step] = yield* query<{ readonly last: string | null; readonly deleted: number; readonly done: boolean }>(
        "clean up",
        Sql.cleanUpStep(names),
        [after, retentionMillis, cleanUpStepRows]
      )
      deleted += step?.deleted ?? 0
      if (step === undefined || step.last === null || step.done) return deleted
      after = step.last
    }
  })

  return {
    // The new session may be on another server than the one the mark was read from.
    openWorker: Effect.tap(openWorker({ connector, settings, names, floor: lowWater.floor }), () =>
      Effect.sync(lowWater.reset)
    ),
    verifySchema: database.query("inspect the schema", verifySchema(sql, settings, names)),
    ...makeLiveRows({ query, names, maxAttempts: settings.maxAttempts }),
    advanceLowWater: lowWater.advance,
    countPendingSince: (epochMillis) =>
      countBy("count pending rows", Sql.countPendingSince(names), [epochMillis, pendingCountedAtMost]),
    countOverdue: countBy("count overdue rows", Sql.countOverdue(names), [
      Duration.toMillis(settings.sweepAfter),
      overdueCountedAtMost
    ]),
    cleanUp
  } satisfies Outbox["Type"]
})
