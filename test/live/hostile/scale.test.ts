/**
 * Unlucky amounts: very many kinds of events, a backlog of hundreds of thousands, a head full of dead letters,
 * retries or held rows. The right outcome is that others don't notice.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import { allProcessed, bridge } from "../../support/bridge.js"
import { consume } from "../../support/Consumer.js"
import { eventually } from "../../support/eventually.js"
import { peakMemoryMiB } from "../../support/fates.js"
import { freshVhost, migratedDatabase } from "../../support/Servers.js"
import { startService } from "../../support/Service.js"
import { type SqlClient, sqlClient } from "../../support/Sql.js"

/** Rows as they are after that many failures. */
const insertMany = (sql: SqlClient, count: number, columns: Readonly<Record<string, string>>) =>
  sql.query(
    `insert into event_outbox (${["channel", "payload", ...Object.keys(columns)].join(", ")})
     select ${["'good'", "to_jsonb(n)", ...Object.values(columns)].join(", ")} from generate_series(1, ${count}) n`
  )

/** Sends events one by one; how long each took from the insert to its queue, in milliseconds, in order of size. */
const latencies = Effect.fnUntraced(function* (
  sql: SqlClient,
  consumer: Effect.Effect.Success<ReturnType<typeof consume>>,
  count: number
) {
  const millis: Array<number> = []
  for (let n = 0; n < count; n++) {
    const before = performance.now()
    yield* sql.query("insert into event_outbox (channel, payload) values ('good', '\"probe\"')")
    yield* consumer.take(1, "10 seconds")
    millis.push(performance.now() - before)
  }
  return millis.sort((a, b) => a - b)
})

const median = (sorted: ReadonlyArray<number>) => sorted[Math.floor(sorted.length / 2)] ?? Number.NaN

describe("ten thousand event types through one route", () => {
  it.scopedLive("all arrive, and leave nothing behind in memory", () =>
    Effect.gen(function* () {
      const { service, sql, vhost } = yield* bridge({ PG_LISTENER_ROUTES: "*=good" })
      const consumer = yield* consume(vhost.url, "good")
      const send = (series: string, count: number) =>
        sql.query(
          `insert into event_outbox (event_type, aggregate_type, aggregate_id, payload)
           select $1 || n, $1 || n, n, to_jsonb(n) from generate_series(1, $2::int) n`,
          [series, count]
        )
      yield* send("first.", 10_000)
      const types = new Set((yield* consumer.take(10_000, "40 seconds")).map(({ properties }) => properties.type))
      assert.strictEqual(types.size, 10_000)
      yield* allProcessed(sql)
      const before = peakMemoryMiB(service.pid) ?? 0
      yield* send("second.", 5_000)
      yield* consumer.take(5_000, "40 seconds")
      const after = peakMemoryMiB(service.pid) ?? 0
      yield* Effect.logInfo(
        `peak memory after 10,000 event types: ${before.toFixed(0)} MiB, 15,000: ${after.toFixed(0)} MiB`
      )
      assert.isBelow(after, 250)
      assert.isBelow(after - before, 40)
    })
  )
})

/** The same with a million, which takes three times as long to insert: 142 MiB there as well. */
const BACKLOG = 300_000

describe("hundreds of thousands of rows that are pending at the start", () => {
  it.scopedLive(
    "flow within seconds, in seq order, out of flat memory",
    () =>
      Effect.gen(function* () {
        const database = yield* migratedDatabase
        const vhost = yield* freshVhost
        const sql = yield* sqlClient(database.url, 60_000)
        // The content look-up's index is for rows with a channel; without it this takes half the time.
        yield* sql.query(
          `insert into event_outbox (event_type, payload) select 'good', to_jsonb(n) from generate_series(1, ${BACKLOG}) n`
        )
        const consumer = yield* consume(vhost.url, "good")
        const service = yield* startService({
          DATABASE_URL: database.url,
          AMQP_URL: vhost.url,
          PG_LISTENER_ROUTES: "good=good",
          PG_LISTENER_WORKERS: "1"
        })
        yield* service.awaitReady()
        const readyAt = performance.now()
        const [first] = yield* consumer.take(1, "10 seconds")
        const firstMillis = performance.now() - readyAt
        const rest = yield* consumer.take(19_999, "60 seconds")
        const allMillis = performance.now() - readyAt
        yield* service.kill("SIGTERM")
        const peak = peakMemoryMiB(service.pid)
        yield* Effect.logInfo(
          `${BACKLOG} rows pending: first delivery ${firstMillis.toFixed(0)} ms after ready, ` +
            `20,000 in ${allMillis.toFixed(0)} ms, peak memory ${peak?.toFixed(0)} MiB`
        )
        assert.deepStrictEqual(
          [first, ...rest].map((message) => Number(message?.body)),
          Array.from({ length: 20_000 }, (_, index) => index + 1)
        )
        assert.isBelow(firstMillis, 5_000)
        assert.isBelow(peak ?? 0, 250)
      }),
    120_000
  )
})

describe("events behind a head of the queue that does not move", () => {
  it.scopedLive("are as fast as on an empty table: 10,000 dead letters and 10,000 retries that wait", () =>
    Effect.gen(function* () {
      const { sql, vhost } = yield* bridge({ PG_LISTENER_ROUTES: "good=good" })
      const consumer = yield* consume(vhost.url, "good")
      yield* latencies(sql, consumer, 10)
      const alone = median(yield* latencies(sql, consumer, 40))
      yield* insertMany(sql, 10_000, { attempts: "10", dead_at: "now()", last_error: "'x'" })
      yield* insertMany(sql, 10_000, {
        attempts: "3",
        retry_after: "now() + interval '1 hour'",
        aggregate_id: "n::text"
      })
      yield* sql.query("analyze event_outbox")
      yield* latencies(sql, consumer, 10)
      const behind = median(yield* latencies(sql, consumer, 40))
      yield* Effect.logInfo(`median latency: alone ${alone.toFixed(1)} ms, behind 20,000 rows ${behind.toFixed(1)} ms`)
      assert.isBelow(behind, alone * 3 + 10)
    })
  )

  it.scopedLive("are nearly as fast as without it: an aggregate of 100,000 rows behind its failed event", () =>
    Effect.gen(function* () {
      const { sql, vhost } = yield* bridge({ PG_LISTENER_ROUTES: "good=good,bad=nowhere/key" })
      const consumer = yield* consume(vhost.url, "good")
      yield* latencies(sql, consumer, 10)
      const alone = median(yield* latencies(sql, consumer, 40))
      yield* sql.query(
        `insert into event_outbox (channel, payload, aggregate_id, attempts, retry_after)
         values ('bad', '0', 'a', 5, now() + interval '1 hour')`
      )
      yield* sql.query(
        `insert into event_outbox (event_type, aggregate_id, payload)
         select 'good', 'a', to_jsonb(n) from generate_series(1, 100000) n`
      )
      yield* latencies(sql, consumer, 10)
      // Two of the service's looks for held rows, which come every two seconds.
      const began = performance.now()
      while (performance.now() - began < 5_000) yield* latencies(sql, consumer, 5)
      const behind = median(yield* latencies(sql, consumer, 40))
      yield* Effect.logInfo(
        `median latency: alone ${alone.toFixed(1)} ms, behind 100,000 held rows ${behind.toFixed(1)} ms`
      )
      assert.isBelow(behind, alone * 3 + 10)
    })
  )

  it.scopedLive("are nearly as fast while 4,000 retries fall due at once and fail again", () =>
    Effect.gen(function* () {
      const { sql, vhost } = yield* bridge({ PG_LISTENER_ROUTES: "good=good,bad=nowhere/key" })
      const consumer = yield* consume(vhost.url, "good")
      yield* insertMany(sql, 4_000, { attempts: "1", retry_after: "now()", aggregate_id: "n::text" })
      yield* sql.query("update event_outbox set channel = 'bad'")
      yield* sql.query("insert into event_outbox (channel, payload) values ('good', '\"first\"')")
      const [first] = yield* consumer.take(1, "20 seconds")
      assert.strictEqual(first?.body, '"first"')
      yield* eventually(
        "every retry has failed once more",
        sql.query("select count(*)::int as open from event_outbox where attempts = 1"),
        ([row]) => row?.["open"] === 0,
        "40 seconds"
      )
    })
  )
})
