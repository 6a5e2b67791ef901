/** A schema of another name than `public`, and sessions that begin with unusual settings. */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import { consume } from "../../../dev/Consumer.js"
import { eventually } from "../../support/eventually.js"
import { freshDatabase, freshVhost, migratedDatabase } from "../../support/Servers.js"
import { runCommand, startService } from "../../support/Service.js"
import { sqlClient } from "../../support/Sql.js"

describe("PG_LISTENER_SCHEMA", () => {
  it.scopedLive("with upper case, a space and a quote: migrated, found, rung, emitted to and viewed", () =>
    Effect.gen(function* () {
      const { url } = yield* freshDatabase
      const vhost = yield* freshVhost
      const env = {
        DATABASE_URL: url,
        AMQP_URL: vhost.url,
        PG_LISTENER_SCHEMA: `Our "Events"`,
        PG_LISTENER_WAKE_CHANNEL: `Wake "Up"`,
        PG_LISTENER_ROUTES: "good=good,order.paid=good,bad=nowhere/key,live=good",
        PG_LISTENER_MAX_ATTEMPTS: "1",
        // Far apart, so that it is the doorbell which wakes the relay.
        PG_LISTENER_POLL_INTERVAL: "1 hour"
      }
      for (const _ of ["the first time", "and again"]) {
        const migrated = yield* runCommand(env, ["migrate"])
        assert.strictEqual(migrated.code, 0, migrated.output)
      }
      const service = yield* startService(env)
      yield* service.awaitReady()
      const consumer = yield* consume(vhost.url, "good")
      const sql = yield* sqlClient(url)
      const schema = `"Our ""Events"""`
      const arrives = (body: string) =>
        Effect.map(consumer.take(1, "10 seconds"), (messages) =>
          assert.deepStrictEqual(
            messages.map((message) => message.body),
            [body]
          )
        )
      yield* sql.query(`select ${schema}.emit_event('good', '1')`)
      yield* arrives("1")
      yield* sql.query(`insert into ${schema}.outbox_events (event_type, payload) values ('order.paid', '2')`)
      yield* arrives("2")
      // A trigger that both notifies and inserts: once, from the row.
      yield* sql.query(`begin; notify live, '3'; select ${schema}.emit_event('live', '3'); commit`)
      yield* arrives("3")
      yield* sql.query("notify live, '4'")
      yield* arrives("4")
      yield* sql.query(`select ${schema}.emit_event('bad', '5')`)
      yield* eventually(
        "the dead letter",
        sql.query(`select payload::text from ${schema}.outbox_dead_letters`),
        (rows) => rows.length === 1 && rows[0]?.["payload"] === "5"
      )
      assert.strictEqual(consumer.received.length, 4)
      const [row] = yield* sql.query("select to_regclass('public.event_outbox') is null as nothing_in_public")
      assert.isTrue(row?.["nothing_in_public"])
    })
  )
})

describe("a session that begins with unusual settings", () => {
  const settings: ReadonlyArray<ReadonlyArray<string>> = [
    ["search_path=nowhere", "DateStyle=German", "TimeZone=Asia/Kathmandu", "extra_float_digits=-15"],
    ["search_path=", "standard_conforming_strings=off", "bytea_output=escape", "client_min_messages=debug1"],
    ["search_path=decoy", "default_transaction_isolation=serializable", "statement_timeout=1", "lock_timeout=1"],
    ["row_security=off", "jit=on", "enable_indexscan=off", "IntervalStyle=sql_standard"]
  ]

  it.scopedLive("by options in DATABASE_URL: migrate and the service work, on our tables and no others", () =>
    Effect.gen(function* () {
      for (const some of settings) {
        const database = yield* freshDatabase
        const vhost = yield* freshVhost
        const sql = yield* sqlClient(database.url)
        yield* sql.query(
          `create schema decoy; create table decoy.event_outbox (id int); create table decoy.event_outbox_migrations (version int)`
        )
        const env = {
          DATABASE_URL: `${database.url}?options=${encodeURIComponent(some.map((one) => `-c ${one}`).join(" "))}`,
          AMQP_URL: vhost.url
        }
        const migrated = yield* runCommand(env, ["migrate"])
        assert.strictEqual(migrated.code, 0, `${some}: ${migrated.output}`)
        yield* Effect.scoped(
          Effect.gen(function* () {
            const service = yield* startService(env)
            yield* service.awaitReady()
            const consumer = yield* consume(vhost.url, "campaign_click_trigger")
            yield* sql.query("select emit_event('campaign_click', '\"it''s \\\\ 1\"')")
            assert.strictEqual((yield* consumer.take(1, "10 seconds"))[0]?.body, `"it's \\\\ 1"`, some.join())
            yield* sql.query("notify campaign_click, '0.1'")
            assert.strictEqual((yield* consumer.take(1, "10 seconds"))[0]?.body, "0.1", some.join())
          })
        )
      }
    })
  )

  it.scopedLive("by the database and the role: the service works all the same", () =>
    Effect.gen(function* () {
      const database = yield* migratedDatabase
      const vhost = yield* freshVhost
      const sql = yield* sqlClient(database.url)
      yield* sql.query(`alter database ${database.name} set search_path = ''`)
      yield* sql.query(`alter database ${database.name} set statement_timeout = '1ms'`)
      yield* sql.query(`alter database ${database.name} set default_transaction_isolation = 'repeatable read'`)
      const service = yield* startService({ DATABASE_URL: database.url, AMQP_URL: vhost.url })
      yield* service.awaitReady()
      const consumer = yield* consume(vhost.url, "campaign_click_trigger")
      yield* sql.query("select emit_event('campaign_click', '1')")
      assert.strictEqual((yield* consumer.take(1, "10 seconds"))[0]?.body, "1")
    })
  )
})
