/**
 * The order of publishing (design, promise 4), against a real server: what a claim may give, whatever other workers do
 * before, during and after it.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import { claimFull, claimReady } from "../../src/internal/claimSql.js"
import { outboxNames } from "../../src/internal/outboxNames.js"
import type { OutboxRow } from "../../src/Outbox.js"
import { claimSeqs, failAll, insertEvents, type Lab, lab, openOutbox, settleAll, until } from "../support/outboxLab.js"
import { sqlClient } from "../support/Sql.js"

/** Two workers of different processes. */
const twoWorkers = ({ outbox }: Lab) => Effect.all([outbox.openWorker, outbox.openWorker])

/** Makes a retry due at once. */
const makeDue = ({ sql }: Lab, seq: number) =>
  sql.query("update event_outbox set retry_after = now() - interval '1 second' where seq = $1", [seq])

describe("a claim", () => {
  it.scopedLive("gives rows in seq order, with all that a message is made of", () =>
    Effect.gen(function* () {
      const { outbox, sql } = yield* lab()
      yield* sql.query(
        `insert into event_outbox (id, channel, event_type, aggregate_type, aggregate_id, payload, headers, created_at) values
         ('01890000-0000-7000-8000-000000000001', 'orders', 'order.created', 'order', '7',
          '{"big": 9007199254740993, "b": 1}', '{"traceparent": "00-1"}', '2026-01-02T03:04:05.678Z'),
         ('01890000-0000-7000-8000-000000000002', null, 'x', null, null, '"é"', default, now() - interval '90 seconds')`
      )
      const worker = yield* outbox.openWorker
      const { contended, rows } = yield* worker.claim({ limit: 10, full: false })
      const [first, second] = rows
      assert.isFalse(contended)
      assert.deepStrictEqual(
        { ...first, ageSeconds: 0 },
        {
          seq: "1",
          id: "01890000-0000-7000-8000-000000000001",
          channel: "orders",
          eventType: "order.created",
          aggregateType: "order",
          aggregateId: "7",
          payload: '{"b": 1, "big": 9007199254740993}',
          payloadBytes: 33,
          headers: '{"traceparent": "00-1"}',
          attempts: 0,
          waited: false,
          createdAtSeconds: Date.UTC(2026, 0, 2, 3, 4, 5) / 1000,
          ageSeconds: 0
        }
      )
      assert.deepStrictEqual(
        { channel: second?.channel, headers: second?.headers, bytes: second?.payloadBytes },
        { channel: undefined, headers: undefined, bytes: 4 }
      )
      assert.approximately(second?.ageSeconds ?? 0, 90, 10)
    })
  )

  it.scopedLive("of nothing is empty and leaves no transaction open", () =>
    Effect.gen(function* () {
      const { outbox, sql } = yield* lab()
      const worker = yield* outbox.openWorker
      const batch = yield* worker.claim({ limit: 10, full: true })
      assert.deepStrictEqual(batch, { rows: [], contended: false })
      const open = yield* sql.query(
        "select from pg_stat_activity where datname = current_database() and state like 'idle in%'"
      )
      assert.lengthOf(open, 0)
    })
  )

  it.scopedLive(
    "leaves out a row while an earlier one of its aggregate is in other hands, and says that it was contended",
    () =>
      Effect.gen(function* () {
        const here = yield* lab()
        const [a, b] = yield* twoWorkers(here)
        yield* insertEvents(here.sql, ["x", "x", "y"])
        assert.deepStrictEqual(yield* claimSeqs(a, { limit: 1 }), ["1"])
        const batch = yield* b.claim({ limit: 10, full: false })
        assert.deepStrictEqual(
          batch.rows.map(({ seq }) => seq),
          ["3"]
        )
        assert.isTrue(batch.contended)
        yield* settleAll(a, ["1"])
        yield* settleAll(b, ["3"])
        assert.deepStrictEqual(yield* claimSeqs(b), ["2"])
      })
  )

  it.scopedLive("gives a row whose later neighbour of the aggregate is in other hands", () =>
    Effect.gen(function* () {
      const here = yield* lab()
      yield* insertEvents(here.sql, ["x", "x", "x"])
      const holder = yield* sqlClient(here.url)
      yield* holder.query("begin; select from event_outbox where seq = 2 for update")
      const worker = yield* here.outbox.openWorker
      assert.deepStrictEqual(yield* claimSeqs(worker), ["1"])
    })
  )

  it.scopedLive("never holds rows without an aggregate", () =>
    Effect.gen(function* () {
      const here = yield* lab()
      const [a, b] = yield* twoWorkers(here)
      yield* insertEvents(here.sql, [null, null, null])
      assert.deepStrictEqual(yield* claimSeqs(a, { limit: 1 }), ["1"])
      assert.deepStrictEqual(yield* claimSeqs(b), ["2", "3"])
      yield* failAll(a, ["1"])
      yield* b.rollback
      assert.deepStrictEqual(yield* claimSeqs(b), ["2", "3"])
    })
  )

  it.scopedLive("takes aggregates of different types for different, and no type for an empty one", () =>
    Effect.gen(function* () {
      const here = yield* lab()
      const [a, b] = yield* twoWorkers(here)
      yield* here.sql.query(
        `insert into event_outbox (event_type, aggregate_type, aggregate_id, payload)
         values ('e', 'order', '1', '1'), ('e', 'user', '1', '2'), ('e', null, '1', '3'), ('e', '', '1', '4')`
      )
      assert.deepStrictEqual(yield* claimSeqs(a, { limit: 1 }), ["1"])
      assert.deepStrictEqual(yield* claimSeqs(b, { limit: 2 }), ["2", "3"])
      const third = yield* here.outbox.openWorker
      assert.deepStrictEqual(yield* claimSeqs(third), [])
      yield* failAll(b, ["2", "3"])
      assert.deepStrictEqual(yield* claimSeqs(third), [])
      yield* settleAll(a, ["1"])
    })
  )

  it.scopedLive("leaves out the followers of a row that waits for its retry, and only those of its aggregate", () =>
    Effect.gen(function* () {
      const here = yield* lab()
      const worker = yield* here.outbox.openWorker
      yield* insertEvents(here.sql, ["x", "x", "y"])
      assert.deepStrictEqual(yield* claimSeqs(worker, { limit: 1 }), ["1"])
      yield* failAll(worker, ["1"])
      assert.deepStrictEqual(yield* claimSeqs(worker, { full: true }), ["3"])
      yield* worker.rollback
      assert.deepStrictEqual(yield* claimSeqs(worker), ["3"])
    })
  )

  it.scopedLive("gives a retry that fell due alone, its followers after it", () =>
    Effect.gen(function* () {
      const here = yield* lab()
      const worker = yield* here.outbox.openWorker
      yield* insertEvents(here.sql, ["x", "x", "x"])
      yield* claimSeqs(worker, { limit: 1 })
      yield* failAll(worker, ["1"])
      yield* makeDue(here, 1)
      assert.deepStrictEqual(yield* claimSeqs(worker), [], "a bounded claim does not look at retries, and they hold")
      assert.deepStrictEqual(yield* claimSeqs(worker, { full: true }), ["1"])
      yield* settleAll(worker, ["1"])
      assert.deepStrictEqual(yield* claimSeqs(worker), ["2", "3"])
    })
  )

  it.scopedLive("holds the followers of a retry that is in other hands", () =>
    Effect.gen(function* () {
      const here = yield* lab()
      const [a, b] = yield* twoWorkers(here)
      yield* insertEvents(here.sql, ["x", "x"])
      yield* claimSeqs(a, { limit: 1 })
      yield* failAll(a, ["1"])
      yield* makeDue(here, 1)
      assert.deepStrictEqual(yield* claimSeqs(a, { full: true }), ["1"])
      assert.deepStrictEqual(yield* claimSeqs(b, { full: true }), [])
      assert.deepStrictEqual(yield* claimSeqs(b), [])
    })
  )

  it.scopedLive("gives one retry of an aggregate at a time, the earliest", () =>
    Effect.gen(function* () {
      const here = yield* lab()
      const worker = yield* here.outbox.openWorker
      yield* insertEvents(here.sql, ["x", "x", "y"])
      // A late committer can make two rows of one aggregate wait; the second one has been due for longer.
      yield* here.sql.query("update event_outbox set attempts = 1, retry_after = now() - seq * interval '1 minute'")
      assert.deepStrictEqual(yield* claimSeqs(worker, { full: true }), ["1", "3"])
    })
  )

  it.scopedLive("gives an earlier row of the aggregate before a retry, though it became visible later", () =>
    Effect.gen(function* () {
      const here = yield* lab()
      const [a, b] = yield* twoWorkers(here)
      const late = yield* sqlClient(here.url)
      yield* late.query("begin")
      yield* insertEvents(late, ["x"])
      yield* insertEvents(here.sql, ["x"])
      assert.deepStrictEqual(yield* claimSeqs(a), ["2"])
      yield* failAll(a, ["2"])
      yield* late.query("commit")
      yield* makeDue(here, 2)
      const holder = yield* sqlClient(here.url)
      yield* holder.query("begin; select from event_outbox where seq = 1 for update")
      assert.deepStrictEqual(yield* claimSeqs(b, { full: true }), [], "1 is in other hands, so 2 must wait")
      yield* holder.query("rollback")
      assert.deepStrictEqual(yield* claimSeqs(b, { full: true }), ["1", "2"])
    })
  )

  it.scopedLive("gives no retry from beyond a full window before an earlier row that lies beyond it, too", () =>
    Effect.gen(function* () {
      const here = yield* lab()
      yield* insertEvents(here.sql, [...Array.from({ length: 8 }, () => null), "x", "x"])
      yield* here.sql.query("update event_outbox set attempts = 1, retry_after = now() where seq = 10")
      const holder = yield* sqlClient(here.url)
      yield* holder.query("begin; select from event_outbox where seq <= 8 for update")
      const worker = yield* here.outbox.openWorker
      // The window is four times the limit: rows 1 to 8, all in other hands.
      assert.deepStrictEqual(yield* claimSeqs(worker, { limit: 2, full: true }), ["9", "10"])
    })
  )

  it.scopedLive("gives the followers of a dead letter", () =>
    Effect.gen(function* () {
      const here = yield* lab()
      const worker = yield* here.outbox.openWorker
      yield* insertEvents(here.sql, ["x", "x"])
      yield* claimSeqs(worker, { limit: 1 })
      yield* worker.settle({ processed: [], failed: [{ seq: "1", reason: "never", dead: true }] })
      assert.deepStrictEqual(yield* claimSeqs(worker), ["2"])
    })
  )

  it.scopedLive("finds rows beyond more than a batch of an aggregate whose first row is in other hands", () =>
    Effect.gen(function* () {
      const here = yield* lab()
      const holder = yield* sqlClient(here.url)
      yield* insertEvents(here.sql, [...Array.from({ length: 100 }, () => "x"), "y"])
      yield* holder.query("begin; select from event_outbox where seq = 1 for update")
      const worker = yield* here.outbox.openWorker
      const batch = yield* worker.claim({ limit: 2, full: false })
      assert.deepStrictEqual(
        batch.rows.map(({ seq }) => seq),
        ["101"]
      )
      assert.isTrue(batch.contended)
      const others = yield* here.sql.query("select seq from event_outbox for update skip locked")
      assert.lengthOf(others, 99, "what it looked at and could not give is free again")
    })
  )

  it.scopedLive("finds rows beyond a window that is wholly in other hands", () =>
    Effect.gen(function* () {
      const here = yield* lab()
      const holder = yield* sqlClient(here.url)
      yield* insertEvents(here.sql, [...Array.from({ length: 30 }, () => null), "y"])
      yield* holder.query("begin; select from event_outbox where seq <= 30 for update")
      const worker = yield* here.outbox.openWorker
      // The window is 8, 16, and then 32 rows.
      assert.deepStrictEqual(yield* claimSeqs(worker, { limit: 2 }), ["31"])
    })
  )

  it.scopedLive("ends empty and contended when the widest window is wholly in other hands", () =>
    Effect.gen(function* () {
      const here = yield* lab()
      const holder = yield* sqlClient(here.url)
      yield* insertEvents(here.sql, [...Array.from({ length: 70 }, () => null), "y"])
      yield* holder.query("begin; select from event_outbox where seq <= 70 for update")
      const worker = yield* here.outbox.openWorker
      assert.deepStrictEqual(yield* worker.claim({ limit: 1, full: false }), { rows: [], contended: true })
      const open = yield* here.sql.query(
        "select from pg_stat_activity where datname = current_database() and application_name like '%relay' and state <> 'idle'"
      )
      assert.lengthOf(open, 0)
    })
  )

  it.scopedLive("is free to others again, unchanged, after a rollback", () =>
    Effect.gen(function* () {
      const here = yield* lab()
      const [a, b] = yield* twoWorkers(here)
      yield* insertEvents(here.sql, ["x"])
      yield* claimSeqs(a)
      yield* a.rollback
      const { rows } = yield* b.claim({ limit: 1, full: false })
      assert.deepStrictEqual(
        rows.map(({ attempts, seq }) => ({ attempts, seq })),
        [{ attempts: 0, seq: "1" }]
      )
    })
  )

  it.scopedLive("is free to others again when the worker's session is cut", () =>
    Effect.gen(function* () {
      const here = yield* lab()
      const [a, b] = yield* twoWorkers(here)
      yield* insertEvents(here.sql, ["x"])
      yield* claimSeqs(a)
      yield* here.sql.query(
        "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and state like 'idle in%'"
      )
      const error = yield* Effect.flip(settleAll(a, ["1"]))
      assert.strictEqual(error.kind, "connection")
      yield* until(
        here.sql,
        "not exists (select from pg_locks where locktype = 'relation' and mode = 'RowShareLock' and database = (select oid from pg_database where datname = current_database()))"
      )
      assert.deepStrictEqual(yield* claimSeqs(b), ["1"])
    })
  )
})

describe("any number of claims", () => {
  /** The same numbers for the same seed, so that a failure can be run again. */
  const randomFrom = (seed: number) => {
    let state = seed
    return (below: number) => {
      state = (state * 1_103_515_245 + 12_345) % 2_147_483_648
      return Math.floor((state / 2_147_483_648) * below)
    }
  }

  for (const seed of [1, 2, 3]) {
    it.scopedLive(
      `of three workers keep the order of every aggregate, whatever they do with the rows (seed ${seed})`,
      () =>
        Effect.gen(function* () {
          const random = randomFrom(seed)
          const { outbox, sql, url } = yield* lab({ PG_LISTENER_MAX_ATTEMPTS: "3" })
          const other = yield* openOutbox(url, { PG_LISTENER_MAX_ATTEMPTS: "3" })
          const workers = yield* Effect.all([outbox.openWorker, outbox.openWorker, other.openWorker])
          const inHands = workers.map((): ReadonlyArray<OutboxRow> => [])
          const open = new Map<string, string | undefined>()
          let next = 1

          for (let step = 0; step < 400; step++) {
            const at = random(workers.length)
            const worker = workers[at]
            const batch = inHands[at] ?? []
            if (worker === undefined) continue
            const action = random(10)
            if (action < 2) {
              const aggregates = Array.from({ length: 1 + random(5) }, () => [null, "a", "b", "c"][random(4)] ?? null)
              yield* insertEvents(sql, aggregates)
              for (const aggregate of aggregates) open.set(String(next++), aggregate ?? undefined)
            } else if (action === 2) {
              yield* outbox.advanceLowWater
              yield* other.advanceLowWater
            } else if (action === 3) {
              yield* sql.query(
                "with due as (select seq from event_outbox where retry_after > now() for update skip locked) update event_outbox o set retry_after = now() from due where o.seq = due.seq"
              )
            } else if (batch.length === 0) {
              const { rows } = yield* worker.claim({ limit: 1 + random(6), full: random(2) === 0 })
              inHands[at] = rows
              const elsewhere = inHands.flatMap((held, owner) => (owner === at ? [] : held))
              for (const row of rows) {
                if (row.aggregateId === undefined) continue
                const inBatch = rows.slice(0, rows.indexOf(row)).map(({ seq }) => seq)
                for (const [seq, aggregate] of open) {
                  const earlier = aggregate === row.aggregateId && BigInt(seq) < BigInt(row.seq)
                  if (earlier) assert.include(inBatch, seq, `step ${step}: ${row.seq} before ${seq}`)
                }
                assert.notInclude(
                  elsewhere.map(({ aggregateId }) => aggregateId),
                  row.aggregateId,
                  `step ${step}`
                )
              }
            } else {
              inHands[at] = []
              if (random(6) === 0) {
                yield* worker.rollback
                continue
              }
              // As the publisher does it: after a failed row the rest of its aggregate is left as it is.
              const failedAggregates = new Set<string>()
              const processed: Array<string> = []
              const failed: Array<{ seq: string; reason: string; dead: boolean }> = []
              for (const { aggregateId, attempts, seq } of batch) {
                if (aggregateId !== undefined && failedAggregates.has(aggregateId)) continue
                if (random(3) > 0) processed.push(seq)
                else {
                  failed.push({ seq, reason: "refused", dead: random(8) === 0 })
                  if (aggregateId !== undefined) failedAggregates.add(aggregateId)
                  if (failed.at(-1)?.dead !== true && attempts + 1 < 3) continue
                }
                open.delete(seq)
              }
              yield* worker.settle({ processed, failed })
            }
          }

          for (const worker of workers) yield* worker.rollback
          yield* sql.query("update event_outbox set retry_after = now() where retry_after is not null")
          const [worker] = workers
          for (
            let rows = yield* claimSeqs(worker, { full: true });
            rows.length > 0;
            rows = yield* claimSeqs(worker, { full: true })
          ) {
            yield* settleAll(worker, rows)
          }
          assert.lengthOf(
            yield* sql.query("select from event_outbox where processed_at is null and dead_at is null"),
            0,
            "nothing is left behind"
          )
          assert.isAbove(next, 100)
        })
    )
  }
})

/**
 * Between the moment a claim takes its snapshot and the moment it locks a row, anything can happen. These tests stop the
 * claim there: a gate in the statement waits for an advisory lock that the test holds.
 */
describe("a claim that is overtaken", () => {
  const names = outboxNames("public")

  const gateAfter = (text: string, place: string, gated: string) => {
    assert.strictEqual(text.split(place).length, 2, `the statement has no single place "${place}"`)
    return text.replace(place, gated)
  }
  /** Waits once the snapshot is taken, before the first lock. */
  const beforeTheLocks = (text: string) =>
    gateAfter(
      text,
      "candidates as materialized (select * from ready",
      "candidates as materialized (select r.* from ready r where test_gate(0)"
    )
  /** Waits before the lock on one row. */
  const beforeTheLockOn = (seq: number, text: string) =>
    gateAfter(text, "where o.seq = any(", `where (o.seq <> ${seq} or test_gate(0)) and o.seq = any(`)

  /** Runs the gated statement up to the gate, then `meanwhile`, then to its end; the seqs it gives. */
  const overtaken = (here: Lab, text: string, meanwhile: Effect.Effect<unknown, unknown>) =>
    Effect.gen(function* () {
      yield* here.sql.query(
        `create function test_gate(key int) returns boolean language plpgsql volatile as
         $$ begin perform pg_advisory_xact_lock_shared(4711, key); return true; end $$`
      )
      const keeper = yield* sqlClient(here.url)
      yield* keeper.query("select pg_advisory_lock(4711, 0)")
      const claimer = yield* sqlClient(here.url)
      yield* claimer.query("set enable_seqscan = off; set enable_bitmapscan = off; begin")
      const claim = yield* Effect.fork(
        claimer.query<{ readonly seq: string | null }>(text, ["0", 100, 100, 1_000_000, 1_000_000, [], [], false])
      )
      yield* until(
        here.sql,
        `exists (select from pg_locks where locktype = 'advisory' and classid = 4711 and not granted
         and database = (select oid from pg_database where datname = current_database()))`
      )
      yield* meanwhile
      yield* keeper.query("select pg_advisory_unlock(4711, 0)")
      const rows = yield* Fiber.join(claim)
      return rows.flatMap(({ seq }) => (seq === null ? [] : [seq]))
    })

  for (const [kind, statement] of [
    ["bounded", claimReady],
    ["full", claimFull]
  ] as const) {
    const text = statement(names)

    it.scopedLive(`(${kind}) gives no row whose predecessor was processed since its snapshot`, () =>
      Effect.gen(function* () {
        const here = yield* lab()
        yield* insertEvents(here.sql, ["x", "x", "y"])
        const got = yield* overtaken(
          here,
          beforeTheLocks(text),
          here.sql.query("update event_outbox set processed_at = now() where seq = 1")
        )
        assert.deepStrictEqual(got, ["3"])
      })
    )

    it.scopedLive(`(${kind}) gives no row whose predecessor failed since its snapshot`, () =>
      Effect.gen(function* () {
        const here = yield* lab()
        yield* insertEvents(here.sql, ["x", "x", "y"])
        const got = yield* overtaken(
          here,
          beforeTheLocks(text),
          here.sql.query(
            "update event_outbox set attempts = 1, retry_after = now() + interval '2 seconds' where seq = 1"
          )
        )
        assert.deepStrictEqual(got, ["3"])
      })
    )

    it.scopedLive(`(${kind}) gives no row twice that another worker took and settled since its snapshot`, () =>
      Effect.gen(function* () {
        const here = yield* lab()
        yield* insertEvents(here.sql, [null, null])
        const worker = yield* here.outbox.openWorker
        const got = yield* overtaken(
          here,
          beforeTheLocks(text),
          Effect.flatMap(claimSeqs(worker, { limit: 1 }), (seqs) => settleAll(worker, seqs))
        )
        assert.deepStrictEqual(got, ["2"])
      })
    )

    it.scopedLive(
      `(${kind}) gives no row whose predecessor was locked when tried, though the other worker rolled back since`,
      () =>
        Effect.gen(function* () {
          const here = yield* lab()
          yield* insertEvents(here.sql, ["x", "x", "y"])
          const holder = yield* sqlClient(here.url)
          yield* holder.query("begin; select from event_outbox where seq = 1 for update")
          const got = yield* overtaken(here, beforeTheLockOn(2, text), holder.query("rollback"))
          assert.deepStrictEqual(got, ["3"])
        })
    )

    it.scopedLive(
      `(${kind}) gives no row that was held in its snapshot, though the retry before it succeeded since`,
      () =>
        Effect.gen(function* () {
          const here = yield* lab()
          yield* insertEvents(here.sql, ["x", "x", "y"])
          yield* here.sql.query("update event_outbox set attempts = 1, retry_after = now() where seq = 1")
          const got = yield* overtaken(
            here,
            beforeTheLocks(text),
            here.sql.query("update event_outbox set processed_at = now(), retry_after = null where seq = 1")
          )
          assert.deepStrictEqual(got, ["3"])
        })
    )
  }

  it.scopedLive("(full) gives no retry that failed again since its snapshot", () =>
    Effect.gen(function* () {
      const here = yield* lab()
      yield* insertEvents(here.sql, ["x", "y"])
      yield* here.sql.query("update event_outbox set attempts = 1, retry_after = now() where seq = 1")
      const got = yield* overtaken(
        here,
        beforeTheLocks(claimFull(names)),
        here.sql.query("update event_outbox set attempts = 2, retry_after = now() + interval '4 seconds' where seq = 1")
      )
      assert.deepStrictEqual(got, ["2"])
    })
  )
})
