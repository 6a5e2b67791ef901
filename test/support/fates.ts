/**
 * What became of each event: delivered, or a dead letter with a reason.
 */
import * as Fs from "node:fs"
import * as Effect from "effect/Effect"
import type { Consumer, Received } from "./Consumer.js"
import { eventually, type NeverHappened } from "./eventually.js"
import type { SqlClient, SqlFailed } from "./Sql.js"

export type Fate =
  | { readonly kind: "delivered"; readonly message: Received }
  | { readonly kind: "dead"; readonly reason: string }

type Waiting<A> = Effect.Effect<A, SqlFailed | NeverHappened>

/** A row for `event_outbox`; what is left out is the column's default. */
export interface NewRow {
  readonly channel?: string | null
  readonly event_type?: string | null
  readonly aggregate_type?: string | null
  readonly aggregate_id?: string | null
  /** JSON text. */
  readonly payload?: string
  /** JSON text. */
  readonly headers?: string
}

/** Inserts a row; returns its id. */
export const insertRow = (sql: SqlClient, row: NewRow): Effect.Effect<string, SqlFailed> =>
  Effect.map(
    sql.query<{ id: string }>(
      `insert into event_outbox (channel, event_type, aggregate_type, aggregate_id, payload, headers)
       values ($1, $2, $3, $4, $5, $6) returning id`,
      [
        row.channel ?? null,
        row.event_type ?? null,
        row.aggregate_type ?? null,
        row.aggregate_id ?? null,
        row.payload ?? "1",
        row.headers ?? "{}"
      ]
    ),
    ([inserted]) => inserted?.id ?? ""
  )

/** Waits for the end of these rows. For services that give up after the first attempt. */
export const fatesOfRows = (
  sql: SqlClient,
  consumer: Consumer,
  ids: ReadonlyArray<string>
): Waiting<ReadonlyArray<Fate>> =>
  Effect.gen(function* () {
    const fates = new Map<string, Fate>()
    yield* eventually(
      "the end of every row",
      Effect.gen(function* () {
        const rows = yield* sql.query<{ id: string; dead: boolean; last_error: string | null }>(
          `select id, dead_at is not null as dead, last_error from event_outbox
           where id = any($1::uuid[]) and (processed_at is not null or dead_at is not null)`,
          [ids]
        )
        for (const { dead, id, last_error } of rows) if (dead) fates.set(id, { kind: "dead", reason: `${last_error}` })
        const delivered = new Set(rows.filter(({ dead }) => !dead).map(({ id }) => id))
        for (const message of consumer.received) {
          if (delivered.has(message.messageId)) fates.set(message.messageId, { kind: "delivered", message })
        }
        return ids.filter((id) => !fates.has(id))
      }),
      (open) => open.length === 0
    )
    return ids.flatMap((id) => fates.get(id) ?? [])
  })

/** Sends one notification and waits for its end. For one caller at a time, and nothing else may be on its way. */
export const fateOfNotification = (
  sql: SqlClient,
  consumer: Consumer,
  channel: string,
  payload: string
): Waiting<Fate> =>
  Effect.gen(function* () {
    const deadLetters = sql.query<{ last_error: string }>(
      "select last_error from outbox_dead_letters order by seq desc"
    )
    const before = { dead: (yield* deadLetters).length, received: consumer.received.length }
    yield* sql.query("select pg_notify($1, $2)", [channel, payload])
    const fate = yield* eventually(
      `the end of the notification ${payload.slice(0, 60)}`,
      Effect.map(deadLetters, (dead): Fate | undefined => {
        const message = consumer.received[before.received]
        if (message !== undefined) return { kind: "delivered", message }
        return dead.length > before.dead ? { kind: "dead", reason: `${dead[0]?.last_error}` } : undefined
      }),
      (seen) => seen !== undefined
    )
    return fate as Fate
  })

/** The body, or "dead letter: reason". */
export const shownFate = (fate: Fate | undefined): string => {
  if (fate === undefined) return "nothing"
  return fate.kind === "dead" ? `dead letter: ${fate.reason}` : fate.message.body
}

/** The most memory that the process ever had resident, in MiB; `undefined` where the system does not say. */
export const peakMemoryMiB = (pid: number): number | undefined => {
  const file = `/proc/${pid}/status`
  if (!Fs.existsSync(file)) return undefined
  const match = /^VmHWM:\s+(\d+) kB$/m.exec(Fs.readFileSync(file, "utf8"))
  return match === null ? undefined : Number(match[1]) / 1024
}
