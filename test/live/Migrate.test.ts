/**
 * `migrate`: what it does to a database, whoever else is at it.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Layer from "effect/Layer"
import * as Logger from "effect/Logger"
import { migrate } from "../../src/Migrate.js"
import { PgConnector } from "../../src/PgConnector.js"
import { type Environment, emptyLab, lab, openOutbox, settingsLayer, until } from "../support/outboxLab.js"
import { sqlClient } from "../support/Sql.js"

const run = (url: string, environment: Environment = {}) =>
  migrate.pipe(
    Effect.provide(Layer.provideMerge(PgConnector.layer, settingsLayer(url, environment))),
    Effect.provide(Logger.remove(Logger.defaultLogger))
  )

const all = [
  { version: 1, name: "event_outbox" },
  { version: 2, name: "doorbell" }
]

const wakeChannel = "select encode(tgargs, 'escape') as argument from pg_trigger where tgname = 'event_outbox_doorbell'"

describe("migrate", () => {
  it.scopedLive("creates everything in an empty database, and finds nothing to do the second time", () =>
    Effect.gen(function* () {
      const { outbox, sql, url } = yield* emptyLab()
      assert.deepStrictEqual(yield* run(url), all)
      yield* outbox.verifySchema
      assert.deepStrictEqual(yield* run(url), [])
      assert.deepStrictEqual(yield* sql.query("select version, name from event_outbox_migrations order by 1"), all)
    })
  )

  it.scopedLive("finds nothing to do where a DBA ran the files with psql", () =>
    Effect.gen(function* () {
      const { url } = yield* lab()
      assert.deepStrictEqual(yield* run(url), [])
    })
  )

  it.scopedLive("puts everything into the schema of the settings, which it creates, and nothing elsewhere", () =>
    Effect.gen(function* () {
      const { sql, url } = yield* emptyLab()
      const environment = { PG_LISTENER_SCHEMA: 'My "events"' }
      assert.deepStrictEqual(yield* run(url, environment), all)
      assert.deepStrictEqual(
        yield* sql.query(
          `select distinct n.nspname from pg_class c join pg_namespace n on n.oid = c.relnamespace
           where n.nspname not like 'pg_%' and n.nspname <> 'information_schema'`
        ),
        [{ nspname: 'My "events"' }]
      )
      const outbox = yield* openOutbox(url, environment)
      yield* outbox.verifySchema
      yield* sql.query(`select "My ""events""".emit_event('c', '1')`)
      const worker = yield* outbox.openWorker
      const { rows } = yield* worker.claim({ limit: 1, full: false })
      yield* worker.settle({ processed: rows.map(({ seq }) => seq), failed: [] })
      assert.lengthOf(rows, 1)
      yield* outbox.advanceLowWater
      yield* outbox.insertLive([
        { kind: "pending", id: "00000000-0000-7000-8000-000000000001", channel: "c", payload: "1", refused: undefined }
      ])
      assert.deepStrictEqual(yield* outbox.matchRows([{ channel: "c", payload: "1" }]), [true])
    })
  )

  it.scopedLive("may run any number of times at once: one works, the others find nothing to do", () =>
    Effect.gen(function* () {
      const { url } = yield* emptyLab()
      const applied = yield* Effect.all([run(url), run(url), run(url)], { concurrency: 3 })
      assert.deepStrictEqual(
        applied.filter((migrations) => migrations.length > 0),
        [all]
      )
    })
  )

  it.scopedLive("needs no right to create schemas when the schema is there", () =>
    Effect.gen(function* () {
      const { sql, url } = yield* emptyLab()
      const role = `owner_${new URL(url).pathname.slice(1)}`
      yield* Effect.acquireRelease(
        sql.query(`create role ${role} login; create schema app authorization ${role}`),
        () => Effect.orDie(sql.query(`drop owned by ${role} cascade; drop role ${role}`))
      )
      const asOwner = Object.assign(new URL(url), { username: role }).href
      assert.deepStrictEqual(yield* run(asOwner, { PG_LISTENER_SCHEMA: "app" }), all)
      const error = yield* Effect.flip(run(asOwner, { PG_LISTENER_SCHEMA: "other" }))
      assert.deepInclude(error, { _tag: "DatabaseError", kind: "refused", sqlState: "42501" })
    })
  )

  it.scopedLive("does all of a file or nothing", () =>
    Effect.gen(function* () {
      const { sql, url } = yield* emptyLab()
      // The last object of the first file is in the way.
      yield* sql.query("create table outbox_dead_letters ()")
      yield* Effect.flip(run(url))
      assert.deepStrictEqual(yield* sql.query("select to_regclass('event_outbox') as found"), [{ found: null }])
      yield* sql.query("drop table outbox_dead_letters")
      assert.deepStrictEqual(yield* run(url), all)
    })
  )

  it.scopedLive("lets go of the queue after five seconds when a lock is held, and goes on when it is free", () =>
    Effect.gen(function* () {
      const { sql, url } = yield* lab()
      yield* sql.query(
        "drop trigger event_outbox_doorbell on event_outbox; drop function event_outbox_doorbell(); delete from event_outbox_migrations where version = 2"
      )
      const writer = yield* sqlClient(url)
      yield* writer.query("begin; insert into event_outbox (event_type, payload) values ('e', '1')")
      const migrating = yield* Effect.fork(run(url))
      const waits =
        "exists (select from pg_locks where mode = 'ShareRowExclusiveLock' and not granted and database = (select oid from pg_database where datname = current_database()))"
      yield* until(sql, waits)
      yield* until(sql, `not ${waits}`)
      yield* writer.query("commit")
      assert.deepStrictEqual(yield* Fiber.join(migrating), [{ version: 2, name: "doorbell" }])
    })
  )

  it.scopedLive("sets the doorbell's channel to the wake channel, also later, whatever its name", () =>
    Effect.gen(function* () {
      const { sql, url } = yield* emptyLab()
      yield* run(url, { PG_LISTENER_WAKE_CHANNEL: "it's \\ mine" })
      assert.deepStrictEqual(yield* sql.query(wakeChannel), [{ argument: "it's \\\\ mine\\000" }])
      yield* run(url, { PG_LISTENER_WAKE_CHANNEL: "it's \\ mine" })
      yield* run(url)
      assert.deepStrictEqual(yield* sql.query(wakeChannel), [{ argument: "event_outbox\\000" }])
    })
  )

  it.scopedLive("leaves a doorbell that was dropped on purpose dropped", () =>
    Effect.gen(function* () {
      const { sql, url } = yield* lab()
      yield* sql.query("drop trigger event_outbox_doorbell on event_outbox")
      assert.deepStrictEqual(yield* run(url), [])
      assert.deepStrictEqual(yield* sql.query(wakeChannel), [])
    })
  )

  it.scopedLive("undoes with the lines that the files' heads give", () =>
    Effect.gen(function* () {
      const { sql, url } = yield* lab()
      yield* sql.query("drop trigger event_outbox_doorbell on event_outbox; drop function event_outbox_doorbell()")
      yield* sql.query(
        `drop view outbox_dead_letters, outbox_events;
         drop function emit_event(text, jsonb, text, text, text, jsonb);
         drop table event_outbox, event_outbox_migrations;
         drop function event_outbox_uuid_v7()`
      )
      assert.deepStrictEqual(yield* run(url), all)
    })
  )
})
