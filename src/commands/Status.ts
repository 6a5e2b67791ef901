/**
 * `status`: how the outbox is doing, from the database alone. Exit code 0 when all is well, 3 when somebody should look, 1 when
 * it can't be told.
 */
import { SqlClient } from "@effect/sql/SqlClient"
import * as Console from "effect/Console"
import * as Effect from "effect/Effect"
import * as Either from "effect/Either"
import * as Layer from "effect/Layer"
import * as Redacted from "effect/Redacted"
import { Database } from "../Database.js"
import { optionLines } from "../internal/commandLine.js"
import { outboxNames } from "../internal/outboxNames.js"
import { parseDatabaseUrl } from "../internal/pgTarget.js"
import * as StatusSql from "../internal/statusSql.js"
import { verifySchema } from "../internal/verifySchema.js"
import * as OutboxGauges from "../OutboxGauges.js"
import * as OutboxSql from "../OutboxSql.js"
import { Settings } from "../Settings.js"
import { command, JSON_OPTION, logToStderr, table } from "./Command.js"

/** A healthy relay takes milliseconds. */
const oldestPendingSecondsAtMost = 60

/** In a table of so many rows, processed ones are counted one by one. */
const keptCountedAtMost = 100_000

const options = [JSON_OPTION]

export const usage = `Usage: node dist/main.js status [options]

Shows how the outbox is doing, from the database alone: it needs DATABASE_URL, and no running service.

Exit code 0: all is well. 3: somebody should look, since there are dead letters, or an event has been pending for more
than ${oldestPendingSecondsAtMost} s, or no relay listens. 1: it can't be told.

Options:
${optionLines(options)}`

export interface LiveOwner {
  readonly pid: number
  readonly applicationName: string | null
  readonly clientAddress: string | null
  readonly since: string | null
}

/** What `--json` prints, with `status` and `attention` beside it. Counts beyond 100,000 are estimates. */
export interface Status {
  readonly schema: ReadonlyArray<{ readonly version: number; readonly name: string }>
  readonly pending: number
  readonly dead: number
  readonly oldestPendingSeconds: number
  /** Null: unknown, since the table was never analyzed. */
  readonly processedKept: number | null
  readonly processedKeptIsEstimate: boolean
  readonly tableBytes: number
  /** How far the sequence has come. */
  readonly lastSeq: string
  /** Nothing ready is at or below it, nor can turn up there; null while a transaction that may have inserted is open. */
  readonly lowWaterMark: string | null
  readonly openWriters: number
  readonly doorbell: { readonly mode: "quiet" | "busy" | "off"; readonly note: string | null }
  readonly relay: { readonly sessions: number; readonly liveOwner: LiveOwner | null }
}

export const attentionTo = ({ dead, oldestPendingSeconds, relay }: Status): ReadonlyArray<string> => [
  ...(dead > 0 ? [`there are ${dead} dead letters: see node dist/main.js dead-letters list`] : []),
  ...(oldestPendingSeconds > oldestPendingSecondsAtMost
    ? [`an event has been pending for ${Math.round(oldestPendingSeconds)} s`]
    : []),
  ...(relay.sessions === 0 ? ["no relay listens"] : [])
]

const min = (a: bigint, b: bigint): bigint => (a < b ? a : b)

const readStatus = Effect.gen(function* () {
  const settings = yield* Settings
  const database = yield* Database
  const sql = yield* SqlClient
  const names = outboxNames(settings.schema)
  const ask = <R extends object>(operation: string, text: string, values: ReadonlyArray<unknown> = []) =>
    database.query(operation, sql.unsafe<R>(text, values))

  const notes = yield* database.query("inspect the schema", verifySchema(sql, settings, names))
  const schema = yield* ask<Status["schema"][number]>("read the migrations", StatusSql.namedVersions(names))
  const { dead, oldestPendingSeconds, pending } = yield* OutboxGauges.read
  const [kept] = yield* ask<{
    readonly estimated: boolean
    readonly bytes: number
    readonly rows: number | null
  }>("look at the table's size", StatusSql.keptRows(names), [names.outbox, keptCountedAtMost])

  // In this order, as the low-water mark itself has it (LowWater.ts).
  const [last] = yield* ask<{ readonly seq: string }>("read the sequence", OutboxSql.LAST_SEQ, [names.outbox])
  const writers = yield* ask("read the open writers", OutboxSql.OPEN_WRITERS, [names.outbox])
  const [first] = yield* ask<{ readonly seq: string }>(
    "find the first ready row",
    OutboxSql.firstReadyAbove(names),
    [0]
  )
  const lastSeq = last?.seq ?? "0"
  const mark = first === undefined ? BigInt(lastSeq) : min(BigInt(first.seq) - 1n, BigInt(lastSeq))

  const [doorbell] = yield* ask<{ readonly busy: boolean }>("look at the doorbell", StatusSql.DOORBELL_IS_BUSY, [
    settings.schema
  ])
  const application = Either.match(parseDatabaseUrl(Redacted.value(yield* settings.databaseUrl)), {
    onLeft: () => "pg-listener",
    onRight: ({ applicationName }) => applicationName
  })
  const [listeners] = yield* ask<{ readonly sessions: number }>("look for relays", StatusSql.LISTENERS, [
    `${application} listen`
  ])
  const [liveOwner] = yield* ask<LiveOwner>("look for the live owner", StatusSql.LIVE_OWNER, [settings.schema])
  return {
    schema,
    pending,
    dead,
    oldestPendingSeconds,
    processedKept: kept?.rows == null ? null : Math.max(kept.rows - (kept.estimated ? pending + dead : 0), 0),
    processedKeptIsEstimate: kept?.estimated === true,
    tableBytes: kept?.bytes ?? 0,
    lastSeq,
    lowWaterMark: writers.length === 0 ? String(mark) : null,
    openWriters: writers.length,
    doorbell: {
      mode: notes.length > 0 ? "off" : doorbell?.busy === true ? "busy" : "quiet",
      note: notes[0]?.message ?? null
    },
    relay: { sessions: listeners?.sessions ?? 0, liveOwner: liveOwner ?? null }
  } satisfies Status
})

const size = (bytes: number): string => {
  const unit = ["bytes", "KiB", "MiB", "GiB", "TiB"]
  const power = bytes < 1024 ? 0 : Math.min(Math.floor(Math.log2(bytes) / 10), 4)
  return `${(bytes / 1024 ** power).toFixed(power === 0 ? 0 : 1)} ${unit[power]}`
}

const forPeople = (status: Status): string => {
  const { doorbell, relay } = status
  const owner = relay.liveOwner
  return table([
    ["schema", status.schema.map(({ name, version }) => `${version} (${name})`).join(", ")],
    ["pending", String(status.pending)],
    ["oldest pending", `${status.oldestPendingSeconds.toFixed(1)} s`],
    ["dead letters", String(status.dead)],
    ["processed kept", `${status.processedKept ?? "unknown"}${status.processedKeptIsEstimate ? " (estimate)" : ""}`],
    ["table size", size(status.tableBytes)],
    ["last seq", status.lastSeq],
    [
      "low-water mark",
      status.lowWaterMark ?? `unknown while ${status.openWriters} transactions that may have inserted are open`
    ],
    ["doorbell", doorbell.note === null ? doorbell.mode : `off: ${doorbell.note}`],
    ["relays listening", String(relay.sessions)],
    [
      "live owner",
      owner === null
        ? "none"
        : `${owner.applicationName ?? "?"}, pid ${owner.pid}, from ${owner.clientAddress ?? "a socket"}, since ${owner.since ?? "?"}`
    ]
  ])
}

export const run = (words: ReadonlyArray<string>) =>
  command({ usage, options, mostOperands: 0 }, words, ({ flags }) => {
    const asJson = flags.has(JSON_OPTION.name)
    return readStatus.pipe(
      Effect.flatMap((status) => {
        const attention = attentionTo(status)
        const text = asJson
          ? JSON.stringify({ status: attention.length === 0 ? "ok" : "attention", attention, ...status })
          : [forPeople(status), ...attention.map((reason) => `attention: ${reason}`)].join("\n")
        return Effect.as(Console.log(text), attention.length === 0 ? 0 : 3)
      }),
      Effect.catchTags({
        DatabaseError: (error) => cannotTell(error.message, asJson),
        SchemaError: (error) => cannotTell(error.message, asJson)
      }),
      Effect.provide(Layer.provideMerge(Database.layer, Settings.layerDatabaseOnly)),
      Effect.provide(logToStderr)
    )
  })

const cannotTell = (reason: string, asJson: boolean) =>
  Effect.as(
    asJson ? Console.log(JSON.stringify({ status: "unknown", reason })) : Console.error(`status unknown: ${reason}`),
    1
  )
