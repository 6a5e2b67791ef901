/**
 * The statements of the jobs: live notifications, the low-water mark, the sweep's count, the clean-up, the schema check.
 */
import * as Fs from "node:fs"
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import type { LiveRow } from "../../src/Outbox.js"
import { claimSeqs, emptyLab, failAll, insertEvents, lab, labOn, openOutbox, settleAll } from "../support/outboxLab.js"
import { migrate, privatePostgres } from "../support/Servers.js"
import { type SqlClient, sqlClient } from "../support/Sql.js"

const id = (n: number) => `00000000-0000-7000-8000-${String(n).padStart(12, "0")}`

describe("the low-water mark", () => {
  it.scopedLive("lets no later event overtake one whose transaction committed late", () =>
    Effect.gen(function* () {
      const { outbox, sql, url } = yield* lab()
      const worker = yield* outbox.openWorker
      const late = yield* sqlClient(url)
      yield* late.query("begin")
      yield* insertEvents(late, ["x"])
      yield* insertEvents(
        sql,
        Array.from({ length: 20 }, () => null)
      )
      yield* settleAll(worker, yield* claimSeqs(worker))
      yield* outbox.advanceLowWater
      yield* outbox.advanceLowWater
      yield* late.query("commit")
      yield* outbox.advanceLowWater
      yield* insertEvents(sql, ["x"])
      assert.deepStrictEqual(yield* claimSeqs(worker), ["1", "22"])
    })
  )

  it.scopedLive("is held back by a transaction that inserted and was prepared", () =>
    Effect.gen(function* () {
      const { url } = yield* privatePostgres({ max_prepared_transactions: "2" })
      yield* migrate(url)
      const { outbox, sql } = yield* labOn(url)
      const worker = yield* outbox.openWorker
      const late = yield* sqlClient(url)
      // A transaction that notified can't be prepared: with two-phase commit there is no doorbell.
      yield* sql.query("drop trigger event_outbox_doorbell on event_outbox")
      yield* late.query("begin")
      yield* insertEvents(late, ["x"])
      yield* outbox.advanceLowWater
      yield* late.query("prepare transaction 'test'")
      yield* insertEvents(sql, ["y"])
      yield* settleAll(worker, yield* claimSeqs(worker))
      yield* outbox.advanceLowWater
      yield* outbox.advanceLowWater
      yield* late.query("commit prepared 'test'")
      assert.deepStrictEqual(yield* claimSeqs(worker), ["1"])
    })
  )

  it.scopedLive("goes up while an old snapshot is held, so that a claim walks no dead entries", () =>
    Effect.gen(function* () {
      const { outbox, sql, url } = yield* lab()
      const worker = yield* outbox.openWorker
      const old = yield* sqlClient(url)
      yield* old.query("begin isolation level repeatable read; select count(*) from event_outbox")
      yield* insertEvents(
        sql,
        Array.from({ length: 100 }, () => null)
      )
      yield* settleAll(worker, yield* claimSeqs(worker))
      yield* outbox.advanceLowWater
      // Made pending by hand, below the mark: only a full claim may see it.
      yield* sql.query("update event_outbox set processed_at = null where seq = 7")
      assert.deepStrictEqual(yield* claimSeqs(worker), [])
      assert.deepStrictEqual(yield* claimSeqs(worker, { full: true }), ["7"])
    })
  )

  it.scopedLive("stays below a row that another worker has claimed and may give back", () =>
    Effect.gen(function* () {
      const { outbox, sql } = yield* lab()
      const a = yield* outbox.openWorker
      const b = yield* outbox.openWorker
      yield* insertEvents(sql, [null, null])
      assert.deepStrictEqual(yield* claimSeqs(a, { limit: 1 }), ["1"])
      yield* settleAll(b, yield* claimSeqs(b))
      yield* outbox.advanceLowWater
      yield* a.rollback
      assert.deepStrictEqual(yield* claimSeqs(b), ["1"])
    })
  )

  it.scopedLive("is forgotten with a new session, which may be on another server", () =>
    Effect.gen(function* () {
      const { outbox, sql } = yield* lab()
      const worker = yield* outbox.openWorker
      yield* insertEvents(sql, [null])
      yield* settleAll(worker, yield* claimSeqs(worker))
      yield* outbox.advanceLowWater
      yield* sql.query("update event_outbox set processed_at = null")
      assert.deepStrictEqual(yield* claimSeqs(worker), [])
      assert.deepStrictEqual(yield* claimSeqs(yield* outbox.openWorker), ["1"])
    })
  )
})

describe("matchRows", () => {
  const insert = (sql: SqlClient, channel: string | null, payload: string, live = false) =>
    sql.query("insert into event_outbox (channel, event_type, payload, live) values ($1, 'e', $2::jsonb, $3)", [
      channel,
      payload,
      live
    ])

  it.scopedLive("finds a row of the same channel and content, however it is written, and whatever became of it", () =>
    Effect.gen(function* () {
      const { outbox, sql } = yield* lab()
      yield* insert(sql, "orders", '{"b": 1.0, "a": [true, null, "é"]}')
      yield* insert(sql, "orders", "7")
      yield* sql.query("update event_outbox set processed_at = now() where seq = 2")
      yield* insert(sql, null, '"no channel"')
      assert.deepStrictEqual(
        yield* outbox.matchRows([
          { channel: "orders", payload: '{"a":[true,null,"\\u00e9"],"b":1}' },
          { channel: "orders", payload: " 7 " },
          { channel: "users", payload: "7" },
          { channel: "orders", payload: "8" },
          { channel: "orders", payload: '"no channel"' }
        ]),
        [true, true, false, false, false]
      )
    })
  )

  it.scopedLive("does not take a kept notification for a row: the second of two equal ones is an event, too", () =>
    Effect.gen(function* () {
      const { outbox } = yield* lab()
      const payload = '{"n":1}'
      yield* outbox.insertLive([{ kind: "pending", id: id(1), channel: "clicks", payload, refused: undefined }])
      assert.deepStrictEqual(yield* outbox.matchRows([{ channel: "clicks", payload }]), [false])
    })
  )

  it.scopedLive("answers for the good ones when others can't be jsonb", () =>
    Effect.gen(function* () {
      const { outbox, sql } = yield* lab()
      for (let n = 0; n < 3; n++) yield* insert(sql, "c", "1")
      const bad = ["", "nonsense", '"\\u0000"', '"\\ud800"', "1e999999", `${"[".repeat(60_000)}${"]".repeat(60_000)}`]
      const asked = ["1", ...bad.slice(0, 3), "1", ...bad.slice(3), "2", "1"]
      assert.deepStrictEqual(
        yield* outbox.matchRows(asked.map((payload) => ({ channel: "c", payload }))),
        asked.map((payload) => payload === "1")
      )
    })
  )

  it.scopedLive("lets a row answer for one notification: an equal one without a row of its own is an event, too", () =>
    Effect.gen(function* () {
      const { outbox, sql } = yield* lab()
      const notification = { channel: "clicks", payload: '{"user": 7}' }
      yield* insert(sql, "clicks", '{"user": 7}')
      assert.deepStrictEqual(yield* outbox.matchRows([notification, notification]), [true, false])
      yield* insert(sql, "clicks", '{"user": 7}')
      assert.deepStrictEqual(yield* outbox.matchRows([notification]), [true])
      assert.deepStrictEqual(yield* outbox.matchRows([notification]), [false])
    })
  )

  it.scopedLive("does not let a row of more than an hour ago answer", () =>
    Effect.gen(function* () {
      const { outbox, sql } = yield* lab()
      yield* insert(sql, "clicks", "7")
      yield* sql.query("update event_outbox set created_at = now() - interval '61 minutes'")
      assert.deepStrictEqual(yield* outbox.matchRows([{ channel: "clicks", payload: "7" }]), [false])
    })
  )

  it.scopedLive("takes every notification for one with a row when there are a hundred rows of its content", () =>
    Effect.gen(function* () {
      const { outbox, sql } = yield* lab()
      yield* sql.query("insert into event_outbox (channel, payload) select 'c', '7' from generate_series(1, 100)")
      const asked = Array.from({ length: 150 }, () => ({ channel: "c", payload: "7" }))
      assert.notInclude(yield* outbox.matchRows(asked), false)
    })
  )

  it.scopedLive("of nothing is nothing", () =>
    Effect.gen(function* () {
      const { outbox } = yield* lab()
      assert.deepStrictEqual(yield* outbox.matchRows([]), [])
    })
  )
})

describe("insertLive", () => {
  const pending = (n: number, payload: string, refused?: string): LiveRow => ({
    kind: "pending",
    id: id(n),
    channel: "clicks",
    payload,
    refused
  })

  it.scopedLive("keeps notifications in their order, marked as live", () =>
    Effect.gen(function* () {
      const { outbox, sql } = yield* lab()
      yield* outbox.insertLive([pending(3, '{"n": 1}'), pending(1, "2"), pending(2, "3")])
      const worker = yield* outbox.openWorker
      const { rows } = yield* worker.claim({ limit: 10, full: false })
      assert.deepStrictEqual(
        rows.map((row) => ({ id: row.id, channel: row.channel, payload: row.payload, attempts: row.attempts })),
        [
          { id: id(3), channel: "clicks", payload: '{"n": 1}', attempts: 0 },
          { id: id(1), channel: "clicks", payload: "2", attempts: 0 },
          { id: id(2), channel: "clicks", payload: "3", attempts: 0 }
        ]
      )
      assert.lengthOf(yield* sql.query("select from event_outbox where live"), 3)
    })
  )

  it.scopedLive("leaves a row alone whose id is there already", () =>
    Effect.gen(function* () {
      const { outbox, sql } = yield* lab()
      yield* outbox.insertLive([pending(1, "1")])
      yield* outbox.insertLive([pending(1, "2"), pending(2, "2")])
      assert.deepStrictEqual(yield* sql.query("select id, payload from event_outbox order by id"), [
        { id: id(1), payload: 1 },
        { id: id(2), payload: 2 }
      ])
    })
  )

  it.scopedLive("counts a refusal as the first attempt", () =>
    Effect.gen(function* () {
      const { outbox, sql } = yield* lab()
      yield* outbox.insertLive([pending(1, "1", "nacked")])
      const [row] = yield* sql.query(
        `select attempts, last_error, dead_at, extract(epoch from retry_after - now())::float8 as seconds from event_outbox`
      )
      assert.deepInclude(row, { attempts: 1, last_error: "nacked", dead_at: null })
      assert.isAtMost(Number(row?.["seconds"]), 2)
      assert.isAtLeast(Number(row?.["seconds"]), 0.5)
    })
  )

  it.scopedLive("makes a refused one a dead letter when there is one attempt only", () =>
    Effect.gen(function* () {
      const { outbox, sql } = yield* lab({ PG_LISTENER_MAX_ATTEMPTS: "1" })
      yield* outbox.insertLive([pending(1, '{"n": 1}', "nacked"), pending(2, "2")])
      assert.deepStrictEqual(yield* sql.query("select id, payload from outbox_dead_letters"), [
        { id: id(1), payload: { n: 1 } }
      ])
    })
  )

  it.scopedLive("keeps what is not JSON as a dead letter, its text as a JSON string", () =>
    Effect.gen(function* () {
      const { outbox, sql } = yield* lab()
      yield* outbox.insertLive([
        { kind: "dead", id: id(1), channel: "clicks", payload: "{nonsense", reason: "not JSON" }
      ])
      assert.deepStrictEqual(yield* sql.query("select payload, last_error, attempts from outbox_dead_letters"), [
        { payload: "{nonsense", last_error: "not JSON", attempts: 1 }
      ])
    })
  )

  it.scopedLive("keeps JSON that jsonb can't hold as a dead letter, and its neighbours as they are", () =>
    Effect.gen(function* () {
      const { outbox, sql } = yield* lab()
      yield* outbox.insertLive([
        pending(1, "1"),
        pending(2, '"\\u0000"'),
        pending(3, "3"),
        pending(4, "1e999999"),
        pending(5, "5")
      ])
      assert.deepStrictEqual(yield* sql.query("select payload from outbox_dead_letters order by seq"), [
        { payload: '"\\u0000"' },
        { payload: "1e999999" }
      ])
      const [dead] = yield* sql.query("select last_error from outbox_dead_letters order by seq")
      assert.match(String(dead?.["last_error"]), /can't be stored as jsonb/)
      const worker = yield* outbox.openWorker
      assert.lengthOf(yield* claimSeqs(worker), 3)
    })
  )
})

describe("the counts", () => {
  it.scopedLive("of pending rows since a time: ready and waiting ones, not settled ones, not older ones", () =>
    Effect.gen(function* () {
      const { outbox, sql } = yield* lab()
      yield* insertEvents(sql, [null, null, null, null, null])
      yield* sql.query(
        `update event_outbox set processed_at = now() where seq = 1;
         update event_outbox set dead_at = now() where seq = 2;
         update event_outbox set attempts = 1, retry_after = now() where seq = 3;
         update event_outbox set created_at = now() - interval '1 hour' where seq = 4`
      )
      const [{ millis } = { millis: 0 }] = yield* sql.query<{ millis: number }>(
        "select (extract(epoch from now()) * 1000)::float8 - 60000 as millis"
      )
      assert.strictEqual(yield* outbox.countPendingSince(millis), 2)
    })
  )

  it.scopedLive("of overdue rows: due, never tried, old, not held, and in nobody's hands", () =>
    Effect.gen(function* () {
      const { outbox, sql } = yield* lab({ PG_LISTENER_SWEEP_AFTER: "30 seconds" })
      const worker = yield* outbox.openWorker
      yield* insertEvents(sql, ["a", "b", "c", "d", "e", "e", "f"])
      yield* sql.query(
        `update event_outbox set created_at = now() - interval '31 seconds';
         update event_outbox set processed_at = now() where seq = 2;
         update event_outbox set created_at = now() where seq = 3;
         update event_outbox set attempts = 1, retry_after = now() where seq = 5`
      )
      assert.strictEqual(yield* outbox.countOverdue, 3)
      assert.deepStrictEqual(yield* claimSeqs(worker, { limit: 1 }), ["1"])
      assert.strictEqual(yield* outbox.countOverdue, 2)
    })
  )
})

describe("cleanUp", () => {
  it.scopedLive(
    "deletes what was processed longer ago than the retention, in any number of steps, and nothing else",
    () =>
      Effect.gen(function* () {
        const { outbox, sql } = yield* lab({ PG_LISTENER_RETENTION: "1 hour" })
        yield* sql.query(
          `insert into event_outbox (event_type, payload, created_at, processed_at)
         select 'e', '1', now() - interval '3 hours', now() - interval '2 hours' from generate_series(1, 12000);
         insert into event_outbox (event_type, payload, created_at) select 'pending', '1', now() - interval '9 hours' from generate_series(1, 10);
         insert into event_outbox (event_type, payload, created_at, dead_at) values ('dead', '1', now() - interval '9 hours', now() - interval '8 hours');
         insert into event_outbox (event_type, payload, created_at, processed_at) values ('late', '1', now() - interval '9 hours', now() - interval '59 minutes');
         insert into event_outbox (event_type, payload, created_at, processed_at) values ('e', '1', now() - interval '3 hours', now() - interval '61 minutes')`
        )
        assert.strictEqual(yield* outbox.cleanUp, 12_001)
        assert.strictEqual(yield* outbox.cleanUp, 0)
        assert.deepStrictEqual(
          yield* sql.query("select event_type, count(*)::int as n from event_outbox group by 1 order by 1"),
          [
            { event_type: "dead", n: 1 },
            { event_type: "late", n: 1 },
            { event_type: "pending", n: 10 }
          ]
        )
      })
  )

  it.scopedLive("gets past a bottom of old rows that must stay", () =>
    Effect.gen(function* () {
      const { outbox, sql } = yield* lab({ PG_LISTENER_RETENTION: "1 hour" })
      yield* sql.query(
        `insert into event_outbox (event_type, payload, created_at, dead_at)
         select 'dead', '1', now() - interval '9 hours', now() from generate_series(1, 6000);
         insert into event_outbox (event_type, payload, created_at, processed_at) values ('e', '1', now() - interval '3 hours', now() - interval '2 hours')`
      )
      assert.strictEqual(yield* outbox.cleanUp, 1)
    })
  )

  it.scopedLive("stops where all rows are young, and so does not walk the whole table every hour", () =>
    Effect.gen(function* () {
      const { outbox, sql } = yield* lab({ PG_LISTENER_RETENTION: "1 hour" })
      yield* sql.query(
        `insert into event_outbox (event_type, payload, processed_at) select 'e', '1', now() from generate_series(1, 5000);
         insert into event_outbox (event_type, payload, created_at, processed_at) values ('beyond', '1', now() - interval '3 hours', now() - interval '2 hours')`
      )
      assert.strictEqual(yield* outbox.cleanUp, 0)
    })
  )
})

/** Two roles of the test's own: roles belong to the whole server. */
const twoRoles = (sql: SqlClient, url: string) =>
  Effect.gen(function* () {
    const suffix = new URL(url).pathname.slice(1)
    const roles = [`relay_${suffix}`, `writer_${suffix}`] as const
    for (const role of roles) {
      yield* Effect.acquireRelease(sql.query(`create role ${role} login`), () =>
        Effect.orDie(sql.query(`drop owned by ${role}; drop role ${role}`))
      )
    }
    return roles
  })

const as = (role: string, url: string) => Object.assign(new URL(url), { username: role }).href

/** The template for DBAs, with the names that psql would put in. */
const grants = (variables: Readonly<Record<string, string>>) =>
  Fs.readFileSync(new URL("../../sql/roles/grants.sql", import.meta.url), "utf8").replace(
    /:"(\w+)"/g,
    (_, name: string) => `"${variables[name]}"`
  )

describe("verifySchema", () => {
  it.scopedLive("is content with a migrated database, with or without the doorbell, and with a newer version", () =>
    Effect.gen(function* () {
      const { outbox, sql } = yield* lab()
      yield* outbox.verifySchema
      yield* sql.query("delete from event_outbox_migrations where version = 2")
      yield* outbox.verifySchema
      yield* sql.query("insert into event_outbox_migrations (version, name) values (99, 'from the future')")
      yield* outbox.verifySchema
    })
  )

  it.scopedLive("notes a doorbell that is missing, disabled, or rings where nobody listens, with the mend", () =>
    Effect.gen(function* () {
      const { outbox, sql, url } = yield* lab()
      assert.deepStrictEqual(yield* outbox.verifySchema, [])
      const odd = yield* openOutbox(url, { PG_LISTENER_WAKE_CHANNEL: "it's \\ mine", PG_LISTENER_POLL_INTERVAL: "7s" })
      const [other] = yield* odd.verifySchema
      assert.strictEqual(other?.level, "warning")
      assert.match(
        other?.message ?? "",
        /on the channel "event_outbox", and .* is "it's \\ mine": .* every 7s\. Run migrate with the same/
      )
      yield* sql.query("alter table event_outbox disable trigger event_outbox_doorbell")
      const [disabled] = yield* outbox.verifySchema
      assert.strictEqual(disabled?.level, "warning")
      assert.include(disabled?.message, "is disabled")
      const [, enable = ""] = /Enable it: (.*);/.exec(disabled?.message ?? "") ?? []
      yield* sql.query(enable)
      assert.deepStrictEqual(yield* outbox.verifySchema, [])
      yield* sql.query("drop trigger event_outbox_doorbell on event_outbox")
      assert.deepStrictEqual(yield* outbox.verifySchema, [
        { level: "info", message: "no doorbell: rows are found at the poll, every 5s" }
      ])
      yield* sql.query(
        `create trigger event_outbox_doorbell after insert on event_outbox
           for each statement execute function event_outbox_doorbell('it''s \\ mine')`
      )
      assert.deepStrictEqual(yield* odd.verifySchema, [])
    })
  )

  it.scopedLive("says what to run when the tables are missing, in another schema, or too old", () =>
    Effect.gen(function* () {
      const { outbox, sql, url } = yield* emptyLab()
      const missing = yield* Effect.flip(outbox.verifySchema)
      assert.strictEqual(missing.message, 'event_outbox is not in schema "public". Run: node dist/main.js migrate')
      yield* migrate(url)
      const elsewhere = yield* openOutbox(url, { PG_LISTENER_SCHEMA: "Elsewhere" })
      assert.match((yield* Effect.flip(elsewhere.verifySchema)).message, /schema "Elsewhere"/)
      yield* sql.query("delete from event_outbox_migrations")
      assert.match((yield* Effect.flip(outbox.verifySchema)).message, /lacks migration 1.*migrate/)
    })
  )

  it.scopedLive("says what a role may not do, and is content once it has the documented grants", () =>
    Effect.gen(function* () {
      const { sql, url } = yield* lab()
      const [relay, writer] = yield* twoRoles(sql, url)
      const outbox = yield* openOutbox(as(relay, url))
      assert.match((yield* Effect.flip(outbox.verifySchema)).message, new RegExp(`"${relay}" may not .*grants.sql`))
      yield* sql.query(grants({ schema: "public", relay, writer }))
      yield* outbox.verifySchema
      // And they are enough for all it does.
      yield* insertEvents(sql, [null, null])
      const worker = yield* outbox.openWorker
      yield* settleAll(worker, yield* claimSeqs(worker, { limit: 1 }))
      yield* failAll(worker, yield* claimSeqs(worker, { full: true }))
      yield* outbox.advanceLowWater
      yield* outbox.insertLive([{ kind: "pending", id: id(1), channel: "c", payload: "1", refused: undefined }])
      yield* outbox.matchRows([{ channel: "c", payload: "1" }])
      yield* outbox.countOverdue
      yield* outbox.countPendingSince(0)
      yield* outbox.cleanUp
    })
  )

  it.scopedLive("refuses a sequence that hands numbers out in blocks: publish order would not be insert order", () =>
    Effect.gen(function* () {
      const { outbox, sql } = yield* lab()
      yield* sql.query("alter sequence event_outbox_seq_seq cache 50")
      assert.match((yield* Effect.flip(outbox.verifySchema)).message, /cache 1/)
    })
  )

  it.scopedLive("is a connection error, and no verdict on the schema, while the database is away", () =>
    Effect.gen(function* () {
      const outbox = yield* openOutbox("postgres://postgres@127.0.0.1:1/none")
      const error = yield* Effect.flip(outbox.verifySchema)
      assert.deepInclude(error, { _tag: "DatabaseError", kind: "connection" })
    })
  )
})

describe("writers", () => {
  it.scopedLive("that give an id get a conflict the second time, which they may have ignored", () =>
    Effect.gen(function* () {
      const { sql } = yield* lab()
      const insert = `insert into event_outbox (id, event_type, payload) values ('${id(1)}', 'e', '1')`
      yield* sql.query(insert)
      assert.strictEqual((yield* Effect.flip(sql.query(insert))).sqlState, "23505")
      yield* sql.query(`${insert} on conflict (id) do nothing`)
      assert.lengthOf(yield* sql.query("select from event_outbox"), 1)
    })
  )

  it.scopedLive("get time-ordered ids of version 7 that tell when the row was made", () =>
    Effect.gen(function* () {
      const { sql } = yield* lab()
      const before = yield* sql.query<{ millis: number }>(
        "select floor(extract(epoch from clock_timestamp()) * 1000)::float8 as millis"
      )
      for (let n = 0; n < 20; n++) yield* insertEvents(sql, [null])
      const rows = yield* sql.query<{ id: string }>("select id::text as id from event_outbox order by seq")
      const after = yield* sql.query<{ millis: number }>(
        "select ceil(extract(epoch from clock_timestamp()) * 1000)::float8 as millis"
      )
      for (const row of rows) {
        assert.match(row.id, /^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/)
        const millis = Number.parseInt(row.id.replaceAll("-", "").slice(0, 12), 16)
        assert.isAtLeast(millis, before[0]?.millis ?? Number.NaN)
        assert.isAtMost(millis, after[0]?.millis ?? Number.NaN)
      }
      assert.deepStrictEqual(
        rows.map((row) => row.id),
        rows.map((row) => row.id).sort()
      )
    })
  )

  it.scopedLive("of the classic table insert through outbox_events, with its defaults and its look", () =>
    Effect.gen(function* () {
      const { outbox, sql } = yield* lab()
      yield* sql.query(
        "insert into outbox_events (aggregate_type, aggregate_id, event_type, payload) values ('order', '1', 'order.created', '{}')"
      )
      const worker = yield* outbox.openWorker
      yield* settleAll(worker, yield* claimSeqs(worker))
      const [row] = yield* sql.query("select * from outbox_events")
      assert.sameMembers(Object.keys(row ?? {}), [
        "id",
        "aggregate_type",
        "aggregate_id",
        "event_type",
        "payload",
        "attempts",
        "created_at",
        "processed_at"
      ])
      assert.instanceOf(row?.["processed_at"], Date)
      yield* sql.query("update outbox_events set attempts = 3")
      yield* sql.query("delete from outbox_events")
      assert.lengthOf(yield* sql.query("select from event_outbox"), 0)
    })
  )

  it.scopedLive("in triggers use emit_event, whatever their search_path", () =>
    Effect.gen(function* () {
      const { outbox, sql } = yield* lab()
      yield* sql.query("set search_path = pg_catalog")
      const [made] = yield* sql.query<{ id: string }>(
        `select public.emit_event('orders', '{"n": 1}', aggregate_type => 'order', aggregate_id => '7',
           event_type => 'order.created', headers => '{"h": "1"}')::text as id`
      )
      yield* sql.query("select public.emit_event('orders', '2', headers => null)")
      const worker = yield* outbox.openWorker
      const { rows } = yield* worker.claim({ limit: 2, full: false })
      assert.deepInclude(
        { ...rows[0] },
        {
          id: String(made?.id),
          channel: "orders",
          eventType: "order.created",
          aggregateType: "order",
          aggregateId: "7",
          payload: '{"n": 1}',
          headers: '{"h": "1"}'
        }
      )
      assert.deepInclude(
        { ...rows[1] },
        {
          channel: "orders",
          eventType: undefined,
          aggregateId: undefined,
          headers: undefined
        }
      )
    })
  )

  it.scopedLive("with the documented grants insert events, and can't settle or read them", () =>
    Effect.gen(function* () {
      const { sql, url } = yield* lab()
      const [relay, writer] = yield* twoRoles(sql, url)
      yield* sql.query(grants({ schema: "public", relay, writer }))
      const app = yield* sqlClient(as(writer, url))
      yield* app.query(
        `insert into event_outbox (id, event_type, payload) values ('${id(1)}', 'e', '1') on conflict (id) do nothing`
      )
      yield* app.query("insert into outbox_events (event_type, payload) values ('e', '1') returning id")
      yield* app.query("select emit_event('c', '1')")
      const forbidden = [
        "select payload from event_outbox",
        "update event_outbox set processed_at = now()",
        "insert into event_outbox (event_type, payload, processed_at) values ('e', '1', now())",
        "delete from event_outbox"
      ]
      for (const statement of forbidden) {
        assert.strictEqual((yield* Effect.flip(app.query(statement))).sqlState, "42501", statement)
      }
    })
  )

  it.scopedLive("are refused what can't be an event", () =>
    Effect.gen(function* () {
      const { sql } = yield* lab()
      const refused = [
        "insert into event_outbox (payload) values ('1')",
        "insert into event_outbox (channel, payload) values ('', '1')",
        `insert into event_outbox (channel, payload) values ('${"é".repeat(32)}', '1')`,
        "insert into event_outbox (channel, payload, headers) values ('c', '1', '[]')",
        "insert into event_outbox (channel, payload) values ('c', null)",
        "insert into event_outbox (seq, channel, payload) values (1, 'c', '1')"
      ]
      for (const statement of refused) yield* Effect.flip(sql.query(statement))
      yield* sql.query(`insert into event_outbox (channel, payload) values ('${"é".repeat(31)}x', '1')`)
    })
  )
})
