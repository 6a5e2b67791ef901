/**
 * How the statements run on a table full of processed rows: by an index, whatever the planner believed when it made the
 * plan. What counts is pages and not time.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import { claimFull, claimReady } from "../../src/internal/claimSql.js"
import { outboxNames } from "../../src/internal/outboxNames.js"
import * as Sql from "../../src/OutboxSql.js"
import { insertEvents, lab } from "../support/outboxLab.js"
import type { SqlClient } from "../support/Sql.js"

interface PlanNode {
  readonly "Node Type": string
  readonly "Relation Name"?: string
  readonly "Index Name"?: string
  readonly "Shared Hit Blocks": number
  readonly "Shared Read Blocks": number
  readonly Plans?: ReadonlyArray<PlanNode>
}

const nodes = (plan: PlanNode): ReadonlyArray<PlanNode> => [plan, ...(plan.Plans ?? []).flatMap(nodes)]

const names = outboxNames("public")
const claimArguments = (limit: number) => `0, ${4 * limit}, ${limit}, 33554432, 33554432, '{}', '{}', false`
const claimTypes = "bigint, integer, integer, bigint, bigint, text[], text[], boolean"

const thousand = Array.from({ length: 1000 }, (_, n) => n + 1)
const literal = (numbers: ReadonlyArray<number>) => `'{${numbers.join(",")}}'`

const prepare = (sql: SqlClient, name: string, types: string, text: string) =>
  sql.query(`prepare ${name} (${types}) as ${text}`)

/** Runs a prepared statement, rolls back, and gives its plan. */
const explain = (sql: SqlClient, name: string, values: string) =>
  Effect.gen(function* () {
    yield* sql.query("begin")
    const [row] = yield* sql.query<{ "QUERY PLAN": ReadonlyArray<{ Plan: PlanNode }> }>(
      `explain (analyze, buffers, format json) execute ${name} (${values})`
    )
    yield* sql.query("rollback")
    const plan = row?.["QUERY PLAN"][0]?.Plan
    if (plan === undefined) return yield* Effect.dieMessage("no plan")
    return {
      pages: plan["Shared Hit Blocks"] + plan["Shared Read Blocks"],
      wholeTable: nodes(plan).some(
        (node) => node["Node Type"] === "Seq Scan" && node["Relation Name"] === "event_outbox"
      ),
      indexes: nodes(plan).flatMap((node) => node["Index Name"] ?? [])
    }
  })

const fill = (sql: SqlClient, rows: number) =>
  sql.query(
    `insert into event_outbox (channel, aggregate_type, aggregate_id, payload, processed_at)
     select 'c', 't', (i % 1000)::text, jsonb_build_object('n', i, 'note', repeat('x', 100)), now()
     from generate_series(1, ${rows}) i`
  )

describe("with 200,000 processed rows", () => {
  it.scopedLive("a worker's statements use an index, even when they were planned on an empty table", () =>
    Effect.gen(function* () {
      const { sql } = yield* lab()
      // An empty table that was vacuumed is the worst adviser: the planner takes it for one page for ever.
      yield* sql.query("alter table event_outbox set (autovacuum_enabled = false)")
      yield* sql.query("vacuum analyze event_outbox")
      yield* sql.query(Sql.WORKER_SESSION)
      const statements = [
        ["claim_ready", claimTypes, claimReady(names), claimArguments(1000)],
        ["claim_full", claimTypes, claimFull(names), claimArguments(1000)],
        ["processed", "bigint[]", Sql.markProcessed(names), literal(thousand)],
        [
          "failed",
          "bigint[], text[], boolean[], integer",
          Sql.recordFailed(names),
          `${literal(thousand)}, array_fill('r'::text, array[1000]), array_fill(false, array[1000]), 10`
        ]
      ] as const
      for (const [name, types, text, values] of statements) {
        yield* prepare(sql, name, types, text)
        yield* explain(sql, name, values)
      }
      yield* fill(sql, 200_000)
      yield* insertEvents(
        sql,
        Array.from({ length: 3000 }, (_, n) => (n % 3 === 0 ? null : `a${n % 50}`))
      )
      for (const [name, , , values] of statements) {
        const plan = yield* explain(sql, name, values)
        assert.isFalse(plan.wholeTable, name)
        assert.isBelow(plan.pages, 60_000, name)
      }
      const ready = yield* explain(sql, "claim_ready", claimArguments(200))
      assert.includeMembers([...ready.indexes], ["event_outbox_ready", "event_outbox_retry"])
      assert.isBelow(ready.pages, 6_000)
      const full = yield* explain(sql, "claim_full", claimArguments(200))
      assert.includeMembers([...full.indexes], ["event_outbox_ready", "event_outbox_retry", "event_outbox_due"])
      assert.isBelow(full.pages, 6_000)
    })
  )

  it.scopedLive("the jobs' statements use an index", () =>
    Effect.gen(function* () {
      const { sql } = yield* lab()
      yield* fill(sql, 200_000)
      yield* insertEvents(sql, ["a", "b", null])
      yield* sql.query("vacuum analyze event_outbox")
      const statements = [
        [
          "match",
          "text[], text[], integer",
          Sql.matchRows(names),
          `array_fill('c'::text, array[200]), ${literal(thousand.slice(0, 200))}, 100`
        ],
        ["pending_since", "float8, integer", Sql.countPendingSince(names), "0, 100000"],
        ["overdue", "float8, integer", Sql.countOverdue(names), "0, 10000"],
        ["clean_up", "bigint, float8, integer", Sql.cleanUpStep(names), "0, 0, 5000"],
        ["first_ready", "bigint", Sql.firstReadyAbove(names), "0"]
      ] as const
      for (const mode of ["force_custom_plan", "force_generic_plan"]) {
        yield* sql.query(`set plan_cache_mode = ${mode}`)
        for (const [name, types, text, values] of statements) {
          yield* prepare(sql, name, types, text)
          const plan = yield* explain(sql, name, values)
          assert.isFalse(plan.wholeTable, `${name}, ${mode}`)
          yield* sql.query(`deallocate ${name}`)
        }
      }
    })
  )
})

describe("a claim costs no more", () => {
  /** Pages that a claim of 100 rows touches, with `before` in the table ahead of them. */
  const pagesBehind = (before: string, statement: "ready" | "full") =>
    Effect.gen(function* () {
      const { sql } = yield* lab()
      yield* sql.query(`insert into event_outbox (event_type, aggregate_type, aggregate_id, payload)
        select 'old', 't', i::text, '1' from generate_series(1, 10000) i; ${before}`)
      yield* insertEvents(
        sql,
        Array.from({ length: 200 }, (_, n) => `x${n}`)
      )
      yield* sql.query("vacuum analyze event_outbox")
      yield* sql.query(Sql.WORKER_SESSION)
      yield* prepare(sql, "claim", claimTypes, statement === "ready" ? claimReady(names) : claimFull(names))
      return (yield* explain(sql, "claim", claimArguments(100))).pages
    })

  for (const statement of ["ready", "full"] as const) {
    it.scopedLive(`behind 10,000 rows that wait for a retry, and behind 10,000 dead letters (${statement})`, () =>
      Effect.gen(function* () {
        const alone = yield* pagesBehind("delete from event_outbox", statement)
        const waiting = yield* pagesBehind(
          "update event_outbox set attempts = 1, retry_after = now() + interval '1 hour'",
          statement
        )
        const dead = yield* pagesBehind("update event_outbox set attempts = 10, dead_at = now()", statement)
        // Larger indexes are a page or two deeper, for each of the 400 rows of the window. A look at every row that waits or
        // is dead would cost 10,000 pages.
        assert.isBelow(waiting, alone + 1_200)
        assert.isBelow(dead, alone + 1_200)
      })
    )
  }
})
