/**
 * The writers: some connections that write events as applications do, and note in memory what became of each transaction.
 *
 * They connect directly, so that a fault of the proxy is the service's alone; faults of the server hit them too.
 */
import * as Clock from "effect/Clock"
import * as Effect from "effect/Effect"
import { type SqlClient, type SqlFailed, sqlClient } from "../support/Sql.js"
import { AGGREGATES, type Fate, LIVE, laneOf, PAIR, type WrittenEvent, type WrittenTransaction } from "./Model.js"
import * as Prng from "./Prng.js"

const WRITERS = 8

/** For a statement; longer than any fault lasts. */
const statementMillis = 30_000

export const tables = `
  create table faults_aggregates (id integer primary key, counter bigint not null default 0);
  insert into faults_aggregates select generate_series(0, ${AGGREGATES - 1});
  create table faults_transactions (tx text primary key);
`

export interface WritersOptions {
  readonly url: string
  readonly seed: number
  readonly round: number
  /** Epoch milliseconds; no transaction begins after it. */
  readonly until: number
  readonly onEnd: (transaction: WrittenTransaction) => void
}

type Shape = "aggregate" | "rolled back" | "savepoint" | "long" | "bulk" | "no aggregate" | "pair" | "live"

const shapes: ReadonlyArray<Shape> = [
  ...Array<Shape>(48).fill("aggregate"),
  ...Array<Shape>(8).fill("rolled back"),
  ...Array<Shape>(6).fill("savepoint"),
  ...Array<Shape>(2).fill("long"),
  "bulk",
  ...Array<Shape>(10).fill("no aggregate"),
  ...Array<Shape>(10).fill("pair"),
  ...Array<Shape>(15).fill("live")
]

/** Writes until the time is up. Never fails: a lost connection is the writers' daily bread. */
export const run = (options: WritersOptions): Effect.Effect<void> =>
  Effect.forEach(Array.from({ length: WRITERS }), (_, writer) => runWriter(options, writer), {
    concurrency: "unbounded",
    discard: true
  })

const runWriter = (options: WritersOptions, writer: number) =>
  Effect.gen(function* () {
    const prng = Prng.make(options.seed, options.round, "writer", writer)
    let count = 0
    while ((yield* Clock.currentTimeMillis) < options.until) {
      const session = Effect.gen(function* () {
        const sql = yield* sqlClient(options.url, statementMillis)
        while ((yield* Clock.currentTimeMillis) < options.until) {
          const tx = `s${options.seed}.r${options.round}.w${writer}.${count++}`
          yield* transaction(sql, tx, prng, options)
          yield* Effect.sleep(prng.int(0, 120))
        }
      })
      yield* Effect.scoped(session).pipe(Effect.catchAll(() => Effect.sleep("200 millis")))
    }
  })

/** Runs one transaction and notes its fate; fails when the connection is of no more use. */
const transaction = (
  sql: SqlClient,
  tx: string,
  prng: Prng.Prng,
  { onEnd }: WritersOptions
): Effect.Effect<void, SqlFailed> =>
  Effect.gen(function* () {
    const shape = prng.pick(shapes)
    const events: Array<WrittenEvent> = []
    const note = (fate: Fate) => Effect.map(Clock.currentTimeMillis, (endedAt) => onEnd({ tx, fate, events, endedAt }))

    yield* write(sql, tx, shape, prng, events).pipe(
      Effect.tapError(() => note("rolled back")),
      Effect.catchIf(
        (error) => error.sqlState !== undefined,
        () => Effect.as(sql.query("rollback"), "failed" as const)
      ),
      Effect.flatMap((end) => {
        if (end === "failed") return Effect.void
        if (shape === "rolled back") return Effect.zipRight(note("rolled back"), sql.query("rollback"))
        return sql.query("commit").pipe(
          Effect.tapError(() => note("unknown")),
          Effect.zipRight(note("committed"))
        )
      })
    )
  })

const write = (sql: SqlClient, tx: string, shape: Shape, prng: Prng.Prng, events: Array<WrittenEvent>) =>
  Effect.gen(function* () {
    const keyOf = () => `${tx}.${events.length}`
    yield* sql.query("begin")
    yield* sql.query("insert into faults_transactions values ($1)", [tx])
    if (shape === "live" || shape === "pair") {
      const lane = shape === "live" ? LIVE : PAIR
      for (let left = prng.int(1, 2); left > 0; left--) {
        const key = keyOf()
        events.push({ key, kind: shape, queue: lane.queue, aggregate: undefined, takenBack: false })
        const values = [lane.source, JSON.stringify({ key })]
        yield* shape === "live"
          ? sql.query("select pg_notify($1, $2)", values)
          : sql.query(
              "with row as (insert into event_outbox (channel, payload) values ($1, $2::jsonb)) select pg_notify($1, $2)",
              values
            )
      }
      return
    }

    const hasNone = shape === "no aggregate" || (shape === "bulk" && prng.chance(0.5))
    const aggregate = hasNone ? undefined : prng.int(0, AGGREGATES - 1)
    const insert = (count: number, takenBack: boolean) => {
      const lane = laneOf(aggregate ?? 0)
      const payloads: Array<string> = []
      for (let left = count; left > 0; left--) {
        const key = keyOf()
        const name = aggregate === undefined ? undefined : `thing ${aggregate}`
        events.push({ key, kind: "row", queue: lane.queue, aggregate: name, takenBack })
        payloads.push(JSON.stringify({ key, pad: "x".repeat(prng.int(0, 200)) }))
      }
      return sql.query(
        `insert into event_outbox (event_type, aggregate_type, aggregate_id, payload)
        select $1, case when $2::text is not null then 'thing' end, $2::text, p::jsonb
        from unnest($3::text[]) with ordinality as u (p, place) order by place`,
        [lane.source.replace("*", "changed"), aggregate === undefined ? null : `${aggregate}`, payloads]
      )
    }
    if (aggregate !== undefined) {
      yield* sql.query("select counter from faults_aggregates where id = $1 for update", [aggregate])
    }
    // Of one aggregate, each event waits for the broker's word on the one before it: hundreds take seconds.
    const bulk = () => (hasNone ? prng.int(1000, 2500) : prng.int(200, 500))
    yield* insert(shape === "bulk" ? bulk() : prng.int(1, 4), false)
    if (shape === "savepoint") {
      yield* sql.query("savepoint before_regret")
      yield* insert(prng.int(1, 3), true)
      yield* sql.query("rollback to before_regret")
      yield* insert(prng.int(1, 2), false)
    }
    if (shape === "long") yield* Effect.sleep(prng.int(500, 3000))
    if (aggregate !== undefined) {
      yield* sql.query("update faults_aggregates set counter = counter + $2 where id = $1", [aggregate, events.length])
    }
  })
