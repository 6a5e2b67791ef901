/**
 * What a settled batch leaves in the table, and how large a batch may get.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import { claimSeqs, failAll, insertEvents, lab, settleAll } from "../support/outboxLab.js"

interface State {
  readonly seq: string
  readonly attempts: number
  readonly last_error: string | null
  readonly dead: boolean
  readonly processed: boolean
  readonly waits: boolean
}
const states = `select seq::text, attempts, last_error, dead_at is not null as dead, processed_at is not null as processed,
  retry_after is not null as waits from event_outbox order by seq`

describe("settle", () => {
  it.scopedLive("marks the processed, records the failed, and leaves the rest as it was", () =>
    Effect.gen(function* () {
      const { outbox, sql } = yield* lab()
      yield* insertEvents(sql, [null, null, null, null])
      const worker = yield* outbox.openWorker
      yield* claimSeqs(worker)
      yield* worker.settle({
        processed: ["1"],
        failed: [
          { seq: "2", reason: "no such queue", dead: false },
          { seq: "3", reason: "never", dead: true }
        ]
      })
      assert.deepStrictEqual(yield* sql.query<State>(states), [
        { seq: "1", attempts: 0, last_error: null, dead: false, processed: true, waits: false },
        { seq: "2", attempts: 1, last_error: "no such queue", dead: false, processed: false, waits: true },
        { seq: "3", attempts: 1, last_error: "never", dead: true, processed: false, waits: false },
        { seq: "4", attempts: 0, last_error: null, dead: false, processed: false, waits: false }
      ])
      assert.deepStrictEqual(yield* claimSeqs(worker), ["4"])
    })
  )

  it.scopedLive("lets a retry wait 2^attempts seconds, less up to a fifth, and never more than five minutes", () =>
    Effect.gen(function* () {
      const { outbox, sql } = yield* lab({ PG_LISTENER_MAX_ATTEMPTS: "100" })
      yield* insertEvents(
        sql,
        Array.from({ length: 60 }, () => null)
      )
      yield* sql.query("update event_outbox set attempts = seq - 1")
      const worker = yield* outbox.openWorker
      const seqs = yield* claimSeqs(worker)
      yield* failAll(worker, seqs)
      const waits = yield* sql.query<{ readonly attempts: number; readonly seconds: number }>(
        "select attempts, extract(epoch from retry_after - clock_timestamp())::float8 as seconds from event_outbox order by seq"
      )
      assert.lengthOf(waits, 60)
      for (const { attempts, seconds } of waits) {
        const full = Math.min(2 ** attempts, 300)
        assert.isAtMost(seconds, full)
        // The statement above ran a moment later.
        assert.isAtLeast(seconds, full * 0.8 - 1.5)
      }
      const capped = waits.filter(({ attempts }) => attempts >= 9).map(({ seconds }) => seconds)
      assert.isAbove(Math.max(...capped) - Math.min(...capped), 10, "rows that fail together come apart")
    })
  )

  it.scopedLive("makes a row a dead letter at its last attempt", () =>
    Effect.gen(function* () {
      const { outbox, sql } = yield* lab({ PG_LISTENER_MAX_ATTEMPTS: "3" })
      yield* insertEvents(sql, [null, null])
      yield* sql.query("update event_outbox set attempts = seq")
      const worker = yield* outbox.openWorker
      yield* failAll(worker, yield* claimSeqs(worker))
      const rows = yield* sql.query<State>(states)
      assert.deepStrictEqual(
        rows.map(({ attempts, dead, waits }) => ({ attempts, dead, waits })),
        [
          { attempts: 2, dead: false, waits: true },
          { attempts: 3, dead: true, waits: false }
        ]
      )
      assert.lengthOf(yield* sql.query("select from outbox_dead_letters"), 1)
    })
  )

  it.scopedLive("stops a processed row from waiting, and keeps its history", () =>
    Effect.gen(function* () {
      const { outbox, sql } = yield* lab()
      yield* insertEvents(sql, [null])
      yield* sql.query("update event_outbox set attempts = 2, last_error = 'before', retry_after = now()")
      const worker = yield* outbox.openWorker
      yield* settleAll(worker, yield* claimSeqs(worker, { full: true }))
      assert.deepStrictEqual(yield* sql.query<State>(states), [
        { seq: "1", attempts: 2, last_error: "before", dead: false, processed: true, waits: false }
      ])
    })
  )

  it.scopedLive("stores a reason that text can't hold, and not more of it than helps", () =>
    Effect.gen(function* () {
      const { outbox, sql } = yield* lab()
      yield* insertEvents(sql, [null])
      const worker = yield* outbox.openWorker
      yield* failAll(worker, yield* claimSeqs(worker), `a\u0000b\ud800${"x".repeat(100_000)}`)
      const [row] = yield* sql.query<State>(states)
      assert.isTrue(row?.last_error?.startsWith("a\uFFFDb\uFFFDxxx"))
      assert.isBelow(row?.last_error?.length ?? Infinity, 2100)
    })
  )

  it.scopedLive("fails when the transaction can't commit, and nothing is marked", () =>
    Effect.gen(function* () {
      const { outbox, sql } = yield* lab()
      yield* insertEvents(sql, [null, null])
      yield* sql.query(
        `create function test_refuse() returns trigger language plpgsql as $$ begin raise exception 'not today'; end $$;
         create constraint trigger test_refuse after update on event_outbox deferrable initially deferred
           for each row when (new.seq = 2) execute function test_refuse()`
      )
      const worker = yield* outbox.openWorker
      const error = yield* Effect.flip(settleAll(worker, yield* claimSeqs(worker)))
      assert.include(error.message, "not today")
      assert.lengthOf(yield* sql.query("select from event_outbox where processed_at is null"), 2)
    })
  )

  it.scopedLive("tells the first error when a statement before the COMMIT fails", () =>
    Effect.gen(function* () {
      const { outbox, sql } = yield* lab()
      yield* insertEvents(sql, [null, null])
      yield* sql.query("alter table event_outbox add constraint test_refuse check (processed_at is null or seq <> 2)")
      const worker = yield* outbox.openWorker
      yield* claimSeqs(worker)
      const error = yield* Effect.flip(worker.settle({ processed: ["1", "2"], failed: [] }))
      assert.deepStrictEqual({ kind: error.kind, sqlState: error.sqlState }, { kind: "refused", sqlState: "23514" })
    })
  )

  it.scopedLive("fails when its transaction was aborted before: the server answers such a COMMIT with a ROLLBACK", () =>
    Effect.gen(function* () {
      const { outbox, sql } = yield* lab()
      yield* insertEvents(sql, [null])
      const worker = yield* outbox.openWorker
      yield* sql.query("alter table event_outbox rename attempts to renamed")
      yield* Effect.flip(claimSeqs(worker))
      yield* sql.query("alter table event_outbox rename renamed to attempts")
      const error = yield* Effect.flip(settleAll(worker, []))
      assert.include(error.message, "rolled back")
    })
  )

  it.scopedLive("fails when something keeps rows from being marked", () =>
    Effect.gen(function* () {
      const { outbox, sql } = yield* lab()
      yield* insertEvents(sql, [null, null])
      yield* sql.query(
        `create function test_skip() returns trigger language plpgsql as $$ begin return null; end $$;
         create trigger test_skip before update on event_outbox for each row when (new.seq = 2) execute function test_skip()`
      )
      const worker = yield* outbox.openWorker
      const error = yield* Effect.flip(settleAll(worker, yield* claimSeqs(worker)))
      assert.include(error.message, "1 rows were written instead of 2")
    })
  )
})

describe("a batch", () => {
  const insertSized = (count: number, kilobytes: number) =>
    `insert into event_outbox (event_type, payload)
     select 'big', to_jsonb((select string_agg(md5(i::text || g::text), '') from generate_series(1, ${kilobytes * 32}) g))
     from generate_series(1, ${count}) i`

  it.scopedLive("comes to 32 MiB of payloads at most", () =>
    Effect.gen(function* () {
      const { outbox, sql } = yield* lab()
      yield* sql.query(insertSized(9, 4_096))
      const worker = yield* outbox.openWorker
      const batch = yield* worker.claim({ limit: 100, full: false })
      assert.deepStrictEqual(
        batch.rows.map(({ seq }) => seq),
        ["1", "2", "3", "4", "5", "6", "7"]
      )
      assert.isTrue(batch.contended, "there is more to have")
      yield* settleAll(
        worker,
        batch.rows.map(({ seq }) => seq)
      )
      assert.deepStrictEqual(yield* claimSeqs(worker), ["8", "9"])
    })
  )

  it.scopedLive("is bounded as well when payloads are stored compressed", () =>
    Effect.gen(function* () {
      const { outbox, sql } = yield* lab()
      yield* sql.query(
        "insert into event_outbox (event_type, payload) select 'zip', to_jsonb(repeat('x', 4 * 1024 * 1024)) from generate_series(1, 20)"
      )
      const worker = yield* outbox.openWorker
      assert.deepStrictEqual(yield* claimSeqs(worker), ["1", "2", "3", "4", "5", "6", "7"])
    })
  )

  it.scopedLive("holds one row at least, however long", () =>
    Effect.gen(function* () {
      const { outbox, sql } = yield* lab({ PG_LISTENER_MAX_MESSAGE_BYTES: "67108864" })
      yield* sql.query(insertSized(2, 40_960))
      const worker = yield* outbox.openWorker
      const { rows } = yield* worker.claim({ limit: 100, full: false })
      assert.deepStrictEqual(
        rows.map(({ payload, payloadBytes, seq }) => ({ seq, payloadBytes, loaded: payload?.length })),
        [{ seq: "1", payloadBytes: 40_960 * 1024 + 2, loaded: 40_960 * 1024 + 2 }]
      )
    })
  )

  it.scopedLive("tells of an over-size payload without loading it; its neighbours come with theirs", () =>
    Effect.gen(function* () {
      const { outbox, sql } = yield* lab({ PG_LISTENER_MAX_MESSAGE_BYTES: "10000" })
      yield* insertEvents(sql, [null])
      yield* sql.query(
        "insert into event_outbox (event_type, payload) select 'e', to_jsonb(repeat('x', n - 2)) from unnest(array[20000, 20001]) n"
      )
      yield* insertEvents(sql, [null])
      const worker = yield* outbox.openWorker
      const { rows } = yield* worker.claim({ limit: 100, full: false })
      assert.deepStrictEqual(
        rows.map(({ payload, payloadBytes }) => ({ payloadBytes, loaded: payload?.length })),
        [
          { payloadBytes: 8, loaded: 8 },
          { payloadBytes: 20_000, loaded: 20_000 },
          { payloadBytes: 20_001, loaded: undefined },
          { payloadBytes: 8, loaded: 8 }
        ]
      )
    })
  )
})
