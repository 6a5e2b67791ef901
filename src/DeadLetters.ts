/**
 * Dead letters: the rows that the relay has given up on. Listed, shown, sent again, or thrown away by a person.
 *
 * Each action is a compare-and-set on "is dead": two people, or one who asks twice, act on a row once, and the one who came
 * second is told. A row that is sent again is pending like any other: as a retry that is due, it goes before later rows of its
 * aggregate, but rows of it that went out while it was dead are out.
 */
import { SqlClient } from "@effect/sql/SqlClient"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Either from "effect/Either"
import * as Layer from "effect/Layer"
import { Database } from "./Database.js"
import { BulkUnfinished, type DatabaseError, NotDeadAnyMore, UnknownDeadLetter } from "./Errors.js"
import * as Sql from "./internal/deadLettersSql.js"
import { isAboutData, type Payload, readPayload } from "./internal/heavyBatch.js"
import { outboxNames } from "./internal/outboxNames.js"
import { undisturbed } from "./internal/undisturbed.js"
import { Settings } from "./Settings.js"
import * as Wake from "./Wake.js"

/** A time, or so long ago by the database's clock. */
export type Moment = { readonly kind: "at"; readonly iso: string } | { readonly kind: "age"; readonly millis: number }

/** Which dead letters are meant: those for which everything given holds; all of them when nothing is given. */
export interface DeadLetterFilter {
  readonly channel?: string
  readonly eventType?: string
  readonly aggregateType?: string
  readonly aggregateId?: string
  /** A queue that a route names: the dead letters that the routes would send there now. */
  readonly queue?: string
  /** A piece of the last error, whatever its case. */
  readonly error?: string
  /** Given up at this time or before. */
  readonly olderThan?: Moment
  /** Given up at this time or later. */
  readonly newerThan?: Moment
}

/** What tells a dead letter from others. */
export interface DeadLetterRef {
  /** A bigint as text. */
  readonly seq: string
  readonly id: string
  readonly channel: string | null
  readonly eventType: string | null
  readonly aggregateType: string | null
  readonly aggregateId: string | null
}

export interface DeadLetter extends DeadLetterRef {
  readonly attempts: number
  readonly lastError: string | null
  /** ISO 8601 in UTC, with microseconds. */
  readonly createdAt: string
  readonly deadAt: string
  /** Where the routes send it now: a queue, or `exchange/routing-key`; null when they send it nowhere. */
  readonly target: string | null
}

/** One dead letter with all that the row holds. */
export interface DeadLetterInFull extends DeadLetter {
  /** A JSON object, as text. */
  readonly headers: string
  /** JSON as text; `undefined` when it was not loaded, for the reason that `payloadOmitted` gives. */
  readonly payload: string | undefined
  readonly payloadOmitted: string | undefined
}

export interface DeadLetterPage {
  readonly deadLetters: ReadonlyArray<DeadLetter>
  /** To be given as `after` for the next page; null on the last one. */
  readonly next: string | null
}

export interface ListOptions {
  readonly filter: DeadLetterFilter
  /** From 1 to {@link longestPage}. */
  readonly limit: number
  /** `next` of the page before. */
  readonly after: string | undefined
  /** By `seq`, the order of the inserts; not by the time of death. */
  readonly order: "oldest" | "newest"
}

export interface BulkOptions {
  readonly filter: DeadLetterFilter
  /** At most so many, the ones inserted first. */
  readonly limit?: number
}

export const longestPage = 500

/** Rows that one transaction of an action on many changes: some ten milliseconds. */
const stepRows = 500

export class DeadLetters extends Context.Tag("pg-listener/DeadLetters")<
  DeadLetters,
  {
    readonly list: (options: ListOptions) => Effect.Effect<DeadLetterPage, DatabaseError>
    readonly show: (id: string) => Effect.Effect<DeadLetterInFull, UnknownDeadLetter | NotDeadAnyMore | DatabaseError>
    /** Makes it pending again, with all its attempts before it, and wakes the relays. */
    readonly retryOne: (id: string) => Effect.Effect<DeadLetterRef, UnknownDeadLetter | NotDeadAnyMore | DatabaseError>
    /** {@link retryOne} for all that match and are dead by now, a few hundred per transaction. Returns how many there were. */
    readonly retryAll: (options: BulkOptions) => Effect.Effect<number, BulkUnfinished>
    /** Deletes the row. */
    readonly discard: (id: string) => Effect.Effect<DeadLetterRef, UnknownDeadLetter | NotDeadAnyMore | DatabaseError>
    readonly discardAll: (options: BulkOptions) => Effect.Effect<number, BulkUnfinished>
  }
>() {
  static readonly layer: Layer.Layer<DeadLetters, never, Settings | Database | SqlClient> = Layer.effect(
    this,
    Effect.suspend(() => make)
  )
}

type SummaryRow = Omit<DeadLetter, "target">

interface FoundRow extends SummaryRow {
  readonly headers: string
  readonly state: "dead" | "pending" | "processed"
}

const make = Effect.gen(function* () {
  const { maxMessageBytes, routes, schema, wakeChannel } = yield* Settings
  const database = yield* Database
  const sql = yield* SqlClient
  const names = outboxNames(schema)
  /** Beyond it, no relay loads a payload either. */
  const longestPayload = 2 * maxMessageBytes

  const query = <R extends object>(operation: string, text: string, values: ReadonlyArray<unknown> = []) =>
    database.query(operation, sql.unsafe<R>(text, values))

  const change = <A, E>(operation: string, body: Effect.Effect<A, E>) =>
    database.transaction(operation, Effect.zipRight(query(operation, Sql.READ_COMMITTED), body))

  /** Takes hold at the commit. */
  const wakeRelays = query("wake the relays", Sql.NOTIFY, [wakeChannel, Wake.FULL])

  const withTarget = <R extends SummaryRow>(row: R): R & DeadLetter => {
    const destination = routes.resolve({
      channel: row.channel ?? undefined,
      eventType: row.eventType ?? undefined,
      aggregateType: row.aggregateType ?? undefined,
      aggregateId: row.aggregateId ?? undefined
    })
    const target = Either.match(destination, {
      onLeft: () => null,
      onRight: ({ exchange, routingKey }) => (exchange === "" ? routingKey : `${exchange}/${routingKey}`)
    })
    return { ...row, target }
  }

  const leadsTo = (queue: string, { channel, type }: Sql.RouteKeyText): boolean => {
    const key = { channel: channel || undefined, eventType: type || undefined }
    const destination = routes.resolve({ ...key, aggregateType: undefined, aggregateId: undefined })
    return Either.isRight(destination) && destination.right.exchange === "" && destination.right.routingKey === queue
  }

  /** The row knows no queue: a filter by queue is one by the channels and event types that lead there. */
  const valuesOf = (filter: DeadLetterFilter) => {
    const { queue } = filter
    if (queue === undefined) return Effect.succeed(Sql.filterValues(filter, undefined))
    return Effect.map(query<Sql.RouteKeyText>("look where dead letters go", Sql.routeKeys(names)), (keys) =>
      Sql.filterValues(
        filter,
        keys.filter((key) => leadsTo(queue, key))
      )
    )
  }

  const list = Effect.fn("DeadLetters.list")(function* ({ after, filter, limit, order }: ListOptions) {
    const text = order === "oldest" ? Sql.listOldestFirst(names) : Sql.listNewestFirst(names)
    const values = [...(yield* valuesOf(filter)), after ?? null, limit + 1]
    const rows = yield* query<SummaryRow>("list dead letters", text, values)
    const page = rows.slice(0, limit)
    return {
      deadLetters: page.map(withTarget),
      next: rows.length > limit ? (page.at(-1)?.seq ?? null) : null
    } satisfies DeadLetterPage
  })

  const find = Effect.fnUntraced(function* (id: string) {
    const [row] = yield* query<FoundRow>("look for a dead letter", Sql.findRow(names), [id])
    return row ?? (yield* new UnknownDeadLetter({ id }))
  })

  const payloadOf = (seq: string) =>
    query<Payload>("read a payload", readPayload(names), [seq, longestPayload]).pipe(
      Effect.map(([read]) =>
        read?.payload == null
          ? { payload: undefined, payloadOmitted: `it has ${read?.bytes ?? "no"} bytes, too many to be loaded` }
          : { payload: read.payload, payloadOmitted: undefined }
      ),
      Effect.catchIf(isAboutData, (error) => Effect.succeed({ payload: undefined, payloadOmitted: error.reason }))
    )

  const show = Effect.fn("DeadLetters.show")(function* (id: string) {
    const { state, ...row } = yield* find(id)
    if (state !== "dead") return yield* new NotDeadAnyMore({ id, state })
    return { ...withTarget(row), ...(yield* payloadOf(row.seq)) } satisfies DeadLetterInFull
  })

  /** The row that a statement by id changed, or why it changed none. */
  const changed = Effect.fnUntraced(function* (id: string, operation: string, text: string) {
    const [ref] = yield* query<DeadLetterRef>(operation, text, [id])
    if (ref !== undefined) return ref
    const { state } = yield* find(id)
    // Dead by now means: pending a moment ago, and it failed in between.
    return yield* new NotDeadAnyMore({ id, state: state === "processed" ? "processed" : "pending" })
  })

  const retryOne = Effect.fn("DeadLetters.retryOne")(function* (id: string) {
    const operation = "retry a dead letter"
    return yield* change(operation, Effect.tap(changed(id, operation, Sql.retryOne(names)), wakeRelays))
  })

  const discard = Effect.fn("DeadLetters.discard")(function* (id: string) {
    const operation = "discard a dead letter"
    return yield* change(operation, changed(id, operation, Sql.discardOne(names)))
  })

  /** A step is not cut in two, so that the count is right whenever it ends. */
  const inSteps = (
    action: BulkUnfinished["action"],
    text: string,
    afterStep: Effect.Effect<unknown, DatabaseError>,
    { filter, limit = Number.POSITIVE_INFINITY }: BulkOptions
  ) =>
    Effect.suspend(() => {
      const operation = `${action} dead letters`
      let done = 0
      const step = (values: ReadonlyArray<unknown>, after: string, rows: number, until: string | undefined) =>
        query<{ readonly done: number; readonly last: string | null }>(operation, text, [
          ...values,
          after,
          rows,
          until
        ]).pipe(
          Effect.tap(([tally]) => (tally === undefined || tally.done === 0 ? Effect.void : afterStep)),
          (body) => undisturbed(change(operation, body)),
          Effect.tap(([tally]) =>
            Effect.sync(() => {
              done += tally?.done ?? 0
            })
          )
        )
      return Effect.gen(function* () {
        const [clock] = yield* query<{ readonly now: string }>("read the clock", Sql.NOW)
        const values = yield* valuesOf(filter)
        let after = "0"
        while (done < limit) {
          const rows = Math.min(stepRows, limit - done)
          const [tally] = yield* step(values, after, rows, clock?.now)
          if (tally === undefined || tally.last === null || tally.done < rows) break
          after = tally.last
        }
        return done
      }).pipe(
        Effect.mapError((cause) => new BulkUnfinished({ action, done, cause })),
        Effect.onInterrupt(() =>
          Effect.logWarning(`the ${action} of dead letters was stopped`).pipe(Effect.annotateLogs({ done }))
        )
      )
    })

  return {
    list,
    show,
    retryOne,
    retryAll: Effect.fn("DeadLetters.retryAll")((options: BulkOptions) =>
      inSteps("retry", Sql.retryStep(names), wakeRelays, options)
    ),
    discard,
    discardAll: Effect.fn("DeadLetters.discardAll")((options: BulkOptions) =>
      inSteps("discard", Sql.discardStep(names), Effect.void, options)
    )
  } satisfies DeadLetters["Type"]
})
