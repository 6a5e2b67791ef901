/**
 * Live notifications and the table: is there a row for one, and keeping those that the broker can't take.
 */
import * as Effect from "effect/Effect"
import type { DatabaseError } from "../Errors.js"
import type { LiveRow, Outbox } from "../Outbox.js"
import * as Sql from "../OutboxSql.js"
import type { OutboxNames } from "./outboxNames.js"
import { safePayload, safeText } from "./safeText.js"

/**
 * Whether `jsonb` refused a value: not JSON, a NUL escape, half a surrogate pair, a number out of range (class 22), or
 * nested too deep (class 54). The server does not say which of the batch it was.
 */
const isDataError = (error: DatabaseError): boolean => /^(22|54)/.test(error.sqlState ?? "")

const isJson = (text: string): boolean => {
  try {
    JSON.parse(text)
    return true
  } catch {
    return false
  }
}

/**
 * Runs a statement for many values at once. When one of them is bad, halves find it, so that it does not spoil the
 * others; `alone` says what a bad one comes to.
 */
const forAll = <A, B>(
  values: ReadonlyArray<A>,
  together: (values: ReadonlyArray<A>) => Effect.Effect<ReadonlyArray<B>, DatabaseError>,
  alone: (value: A, error: DatabaseError) => Effect.Effect<ReadonlyArray<B>, DatabaseError>
): Effect.Effect<ReadonlyArray<B>, DatabaseError> =>
  Effect.catchIf(together(values), isDataError, (error) => {
    const [only] = values
    if (only !== undefined && values.length === 1) return alone(only, error)
    const middle = Math.ceil(values.length / 2)
    return Effect.zipWith(
      forAll(values.slice(0, middle), together, alone),
      forAll(values.slice(middle), together, alone),
      (first, second) => [...first, ...second]
    )
  })

interface RowsOfContent {
  readonly place: number
  readonly seen: number
  readonly recent: ReadonlyArray<string>
}

/** With so many rows of one content, which row belongs to which notification can't be told, and all are taken to match. */
const rowsLookedAt = 100

/** Ten times as many notifications as any buffer holds. */
const rowsRemembered = 100_000

/**
 * Remembers which rows have answered for a notification. A row answers once: an equal notification that comes later, and
 * has no row of its own, is an event of its own. The memory ends with the process, hence the hour in the statement.
 */
const makeAnswered = () => {
  const rows = new Set<string>()
  return {
    /** Takes one of the rows, if there is one that has not answered yet. */
    take: (seqs: ReadonlyArray<string>): boolean => {
      const free = seqs.find((seq) => !rows.has(seq))
      if (free === undefined) return false
      rows.add(free)
      const [oldest] = rows
      if (rows.size > rowsRemembered && oldest !== undefined) rows.delete(oldest)
      return true
    }
  }
}

export const makeLiveRows = (options: {
  readonly query: <R extends object>(
    operation: string,
    text: string,
    values: ReadonlyArray<unknown>
  ) => Effect.Effect<ReadonlyArray<R>, DatabaseError>
  readonly names: OutboxNames
  readonly maxAttempts: number
}): Pick<Outbox["Type"], "matchRows" | "insertLive"> => {
  const { maxAttempts, names, query } = options

  const answered = makeAnswered()

  const matchRows: Outbox["Type"]["matchRows"] = Effect.fn("Outbox.matchRows")(function* (notifications) {
    // What is not JSON has no row, and need not spoil the statement for the others.
    const json = notifications.map(({ payload }) => isJson(payload))
    const asked = notifications.filter((_, index) => json[index])
    if (asked.length === 0) return notifications.map(() => false)
    const found = yield* forAll(
      asked,
      (some) =>
        Effect.map(
          query<RowsOfContent>("look rows up", Sql.matchRows(names), [
            some.map(({ channel }) => channel),
            some.map(({ payload }) => payload),
            rowsLookedAt
          ]),
          (rows) => {
            const answers = some.map(() => false)
            for (const row of rows) answers[row.place - 1] = answered.take(row.recent) || row.seen >= rowsLookedAt
            return answers
          }
        ),
      () => Effect.succeed([false])
    )
    const answers = found.values()
    return json.map((isAsked) => isAsked && answers.next().value === true)
  })

  const insert = (rows: ReadonlyArray<LiveRow>) =>
    Effect.as(
      query("keep live notifications", Sql.insertLive(names), [
        rows.map(({ id }) => id),
        rows.map(({ channel }) => channel),
        rows.map(({ payload }) => safePayload(payload)),
        rows.map((row) => {
          const reason = row.kind === "dead" ? row.reason : row.refused
          return reason === undefined ? null : safeText(reason)
        }),
        rows.map(({ kind }) => kind === "dead"),
        maxAttempts
      ]),
      []
    )

  const insertLive: Outbox["Type"]["insertLive"] = Effect.fn("Outbox.insertLive")(function* (rows) {
    if (rows.length === 0) return
    yield* forAll(rows, insert, (row, error) =>
      row.kind === "dead"
        ? Effect.fail(error)
        : insert([
            {
              kind: "dead",
              id: row.id,
              channel: row.channel,
              payload: row.payload,
              reason: `the payload can't be stored as jsonb: ${error.reason}`
            }
          ])
    )
  })

  return { matchRows, insertLive }
}
