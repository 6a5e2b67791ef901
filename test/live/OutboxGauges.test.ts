/** The table's figures: what they count, and that nothing but the partial indexes is read for them. */
import { assert, describe, it } from "@effect/vitest"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import { Database } from "../../src/Database.js"
import { LIMITS, readFigures } from "../../src/internal/gaugesSql.js"
import { outboxNames } from "../../src/internal/outboxNames.js"
import { read } from "../../src/OutboxGauges.js"
import { settingsLayer } from "../support/outboxLab.js"
import { migratedDatabase } from "../support/Servers.js"
import { type SqlClient, sqlClient } from "../support/Sql.js"

const lab = Effect.gen(function* () {
  const { url } = yield* migratedDatabase
  const sql = yield* sqlClient(url)
  const settings = settingsLayer(url)
  const figures = read.pipe(Effect.provide(Layer.provideMerge(Database.layer, settings)))
  return { sql, figures }
})

/** The statement with limits of the test's own, as one that `explain` can take. */
const withLimits = (countedAtMost: number, lookedAtForAge: number) =>
  readFigures(outboxNames("public"))
    .replaceAll("$1::integer", String(countedAtMost))
    .replaceAll("$2::integer", String(lookedAtForAge))

const insert = (sql: SqlClient, rows: number, columns: string, values: string) =>
  sql.query(
    `insert into event_outbox (channel, payload, ${columns})
     select 'c', jsonb_build_object('n', n, 'note', repeat('x', 100)), ${values} from generate_series(1, ${rows}) n`
  )

// Side by side, since one of them is mostly a wait.
describe.concurrent("the table's figures", () => {
  it.scopedLive("are 0 on an empty table, and count rows that are ready, wait, or are dead", () =>
    Effect.gen(function* () {
      const { figures, sql } = yield* lab
      assert.deepStrictEqual(yield* figures, { pending: 0, dead: 0, oldestPendingSeconds: 0 })
      yield* insert(sql, 3, "created_at", "now() - interval '1 minute'")
      yield* insert(sql, 2, "created_at, attempts, retry_after", "now() - interval '1 hour', 1, now()")
      yield* insert(sql, 4, "created_at, dead_at", "now() - interval '1 day', now()")
      yield* insert(sql, 5, "created_at, processed_at", "now() - interval '1 day', now()")
      const { oldestPendingSeconds, ...counts } = yield* figures
      assert.deepStrictEqual(counts, { pending: 5, dead: 4 })
      assert.isAtLeast(oldestPendingSeconds, 3_600)
      assert.isBelow(oldestPendingSeconds, 3_660)
    })
  )

  it.scopedLive("beyond the limit are estimated from the span of seq, and go up while rows come", () =>
    Effect.gen(function* () {
      const { sql } = yield* lab
      const counts = (limit: number) =>
        Effect.map(sql.query<{ readonly pending: number; readonly dead: number }>(withLimits(limit, 10)), ([row]) => [
          row?.pending,
          row?.dead
        ])
      yield* insert(sql, 1_000, "processed_at, dead_at", "now(), null")
      yield* insert(sql, 500, "processed_at, dead_at", "null, null")
      assert.deepStrictEqual(yield* counts(501), [500, 0])
      assert.deepStrictEqual(yield* counts(100), [500, 0], "a backlog without gaps is counted right")
      // Every other row is dead from here on: half of the span is estimated to be.
      yield* insert(sql, 500, "processed_at, dead_at", "null, case when n % 2 = 1 then now() end")
      assert.deepStrictEqual(yield* counts(1_000), [750, 250])
      const [pending, dead] = yield* counts(100)
      assert.strictEqual(pending, 1_000, "as full as the counted part")
      assert.isAtLeast(dead ?? 0, 249)
      assert.isAtMost(dead ?? 0, 251)
    })
  )

  it.scopedLive(
    "are read from the partial indexes alone, with 200,000 processed rows, whatever the statistics say",
    () =>
      Effect.gen(function* () {
        const { sql } = yield* lab
        yield* sql.query("alter table event_outbox set (autovacuum_enabled = false)")
        // Statistics of an empty table make the whole of it look cheap.
        yield* sql.query("vacuum analyze event_outbox")
        yield* insert(sql, 200_000, "processed_at", "now()")
        yield* insert(sql, 100, "attempts", "0")
        for (const analyzed of [false, true]) {
          if (analyzed) yield* sql.query("analyze event_outbox")
          yield* sql.query("begin")
          yield* sql.query(LIMITS)
          const [row] = yield* sql.query<{ "QUERY PLAN": ReadonlyArray<{ readonly Plan: Record<string, unknown> }> }>(
            `explain (analyze, buffers, format json) ${withLimits(100_000, 1_000)}`
          )
          yield* sql.query("rollback")
          const plan = row?.["QUERY PLAN"][0]?.Plan
          const text = JSON.stringify(plan)
          const indexes = new Set([...text.matchAll(/"Index Name":"([^"]+)"/g)].map(([, name]) => name))
          assert.deepStrictEqual([...indexes].sort(), ["event_outbox_dead", "event_outbox_due", "event_outbox_ready"])
          assert.notInclude(text, "Seq Scan")
          assert.isBelow(Number(plan?.["Shared Hit Blocks"]) + Number(plan?.["Shared Read Blocks"]), 500)
        }
      })
  )

  it.scopedLive("give up after five seconds, rather than keep the database busy", () =>
    Effect.gen(function* () {
      const { figures, sql } = yield* lab
      yield* sql.query("begin; lock table event_outbox")
      const [took, error] = yield* Effect.timed(Effect.flip(figures))
      assert.strictEqual(error.sqlState, "57014")
      assert.isBelow(Duration.toSeconds(took), 8)
    })
  )
})
