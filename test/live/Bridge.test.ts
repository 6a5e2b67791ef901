/** The built service against real servers: each promise in its basic form, seen from outside. */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import { allProcessed, bridge } from "../support/bridge.js"
import { consume } from "../support/Consumer.js"
import { eventually } from "../support/eventually.js"

const DEFAULT_ROUTES = [
  ["attribute_changed", "attribute_change"],
  ["friend_track_event_inserted", "friend_track_event_trigger"],
  ["form_submitted", "form_submitted_trigger"],
  ["campaign_click", "campaign_click_trigger"],
  ["booking_event", "booking_event_trigger"]
] as const

const insert = "insert into event_outbox (channel, payload) values ($1, $2) returning id, seq"
const HEX = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/

describe("the bridge", () => {
  it.scopedLive("carries a row of each default channel to its queue, under the row's id, and marks it processed", () =>
    Effect.gen(function* () {
      const { sql, vhost } = yield* bridge()
      for (const [channel, queue] of DEFAULT_ROUTES) {
        const consumer = yield* consume(vhost.url, queue)
        const [inserted] = yield* sql.query(insert, [channel, `{"b": 1, "a": 2}`])
        const [message] = yield* consumer.take(1, "10 seconds")
        assert.strictEqual(message?.body, `{"a":2,"b":1}`, channel)
        assert.strictEqual(message?.messageId, inserted?.["id"], channel)
      }
      yield* allProcessed(sql)
    })
  )

  it.scopedLive("sends the body alone, and everything else as message properties and headers", () =>
    Effect.gen(function* () {
      const { sql, vhost } = yield* bridge({ PG_LISTENER_ROUTES: "order.*=orders" })
      const consumer = yield* consume(vhost.url, "orders")
      const [inserted] = yield* sql.query(
        `insert into event_outbox (event_type, aggregate_type, aggregate_id, payload, headers)
         values ('order.created', 'order', '42', '{"total": 19.90}', '{"traceparent": "00-a-b-01"}')
         returning floor(extract(epoch from created_at))::int as created`
      )
      const [message] = yield* consumer.take(1, "10 seconds")
      assert.strictEqual(message?.body, `{"total":19.9}`)
      const { appId, contentType, deliveryMode, headers, timestamp, type } = message?.properties ?? {}
      assert.deepStrictEqual(
        { appId, contentType, deliveryMode, timestamp, type },
        {
          appId: "pg-listener",
          contentType: "application/json",
          deliveryMode: 2,
          timestamp: inserted?.["created"],
          type: "order.created"
        }
      )
      assert.deepStrictEqual({ ...headers }, { traceparent: "00-a-b-01", aggregate_type: "order", aggregate_id: "42" })
    })
  )

  it.scopedLive("publishes a bare notification from its own payload, under a fresh id, and keeps no row", () =>
    Effect.gen(function* () {
      const { sql, vhost } = yield* bridge()
      const consumer = yield* consume(vhost.url, "campaign_click_trigger")
      yield* sql.query(`notify campaign_click, '{"z": 1.0}'`)
      const [message] = yield* consumer.take(1, "10 seconds")
      assert.strictEqual(message?.body, `{"z":1}`)
      assert.match(message?.messageId ?? "", HEX)
      assert.deepStrictEqual(yield* sql.query("select 1 from event_outbox"), [])
    })
  )

  it.scopedLive("delivers an event whose trigger both notifies and inserts once, from the row", () =>
    Effect.gen(function* () {
      const { sql, vhost } = yield* bridge()
      yield* sql.query(`
        create table tracking_log (id int primary key, campaign text);
        create function tracking_log_click() returns trigger language plpgsql as $$
          declare body jsonb := jsonb_build_object('id', new.id, 'campaign', new.campaign);
          begin
            perform pg_notify('campaign_click', body::text);
            insert into event_outbox (channel, payload) values ('campaign_click', body);
            return new;
          end $$;
        create trigger click after insert on tracking_log for each row execute function tracking_log_click();
      `)
      const consumer = yield* consume(vhost.url, "campaign_click_trigger")
      for (let id = 1; id <= 20; id++) yield* sql.query("insert into tracking_log values ($1, 'spring')", [id])
      yield* sql.query(`notify campaign_click, '"the last"'`)
      yield* eventually(
        "the last",
        Effect.sync(() => consumer.received.map((m) => m.body)),
        (all) => all.includes(`"the last"`)
      )
      yield* allProcessed(sql)
      const rows = yield* sql.query("select id from event_outbox order by seq")
      const fromRows = consumer.received.filter((m) => m.body !== `"the last"`)
      assert.deepStrictEqual(fromRows.map((m) => m.messageId).sort(), rows.map((r) => String(r["id"])).sort())
    })
  )

  it.scopedLive("keeps a notification that is not JSON, even an empty one, as a dead letter with the reason", () =>
    Effect.gen(function* () {
      const { sql } = yield* bridge()
      yield* sql.query("notify campaign_click")
      yield* sql.query("notify campaign_click, 'click!'")
      const dead = yield* eventually(
        "two dead letters",
        sql.query("select payload::text, last_error from outbox_dead_letters order by seq"),
        (rows) => rows.length === 2
      )
      assert.deepStrictEqual(
        dead.map((r) => r["payload"]),
        [`""`, `"click!"`]
      )
      for (const letter of dead) assert.match(String(letter["last_error"]), /not JSON/i)
    })
  )

  it.scopedLive("keeps exact numbers that a double can't hold", () =>
    Effect.gen(function* () {
      const { sql, vhost } = yield* bridge()
      const consumer = yield* consume(vhost.url, "campaign_click_trigger")
      yield* sql.query(insert, ["campaign_click", `{"n": [9007199254740993, 0.123456789012345678901, 1.50]}`])
      yield* sql.query(`notify campaign_click, '{"n": [1e400, 9007199254740993]}'`)
      const messages = yield* consumer.take(2, "10 seconds")
      assert.deepStrictEqual(
        messages.map((m) => m.body).sort(),
        [`{"n":[1e400,9007199254740993]}`, `{"n":[9007199254740993,0.123456789012345678901,1.5]}`].sort()
      )
    })
  )

  it.scopedLive("takes events from writers of the classic outbox view", () =>
    Effect.gen(function* () {
      const { sql, vhost } = yield* bridge({ PG_LISTENER_ROUTES: "order.created=orders" })
      const consumer = yield* consume(vhost.url, "orders")
      yield* sql.query(
        `insert into outbox_events (aggregate_type, aggregate_id, event_type, payload)
         values ('order', '42', 'order.created', '{"order_id": "42"}')`
      )
      const [message] = yield* consumer.take(1, "10 seconds")
      assert.strictEqual(message?.body, `{"order_id":"42"}`)
    })
  )

  it.scopedLive("a row for a missing exchange among 100 good ones: 100 arrive, and the one alone pays an attempt", () =>
    Effect.gen(function* () {
      const { sql, vhost } = yield* bridge({ PG_LISTENER_ROUTES: "good=good,bad=nowhere/key" })
      const consumer = yield* consume(vhost.url, "good")
      yield* sql.query(
        `insert into event_outbox (channel, payload)
         select case when n = 50 then 'bad' else 'good' end, to_jsonb(n) from generate_series(0, 100) n`
      )
      const bodies = new Set((yield* consumer.take(100, "20 seconds")).map((m) => m.body))
      assert.strictEqual(bodies.size, 100)
      const failed = yield* eventually(
        "the attempt",
        sql.query(
          "select channel, attempts, last_error, retry_after > now() as waits from event_outbox where attempts > 0"
        ),
        (rows) => rows.length > 0
      )
      assert.strictEqual(failed.length, 1)
      assert.strictEqual(failed[0]?.["channel"], "bad")
      assert.strictEqual(failed[0]?.["attempts"], 1)
      assert.isTrue(failed[0]?.["waits"])
      assert.include(String(failed[0]?.["last_error"]), "nowhere")
    })
  )

  it.scopedLive("holds an aggregate behind its failed event, and no other", () =>
    Effect.gen(function* () {
      const { sql, vhost } = yield* bridge({
        PG_LISTENER_ROUTES: "good=good,bad=nowhere/key",
        PG_LISTENER_MAX_ATTEMPTS: "2"
      })
      const consumer = yield* consume(vhost.url, "good")
      yield* sql.query(
        `insert into event_outbox (channel, aggregate_type, aggregate_id, payload) values
         ('bad', 'a', '1', '1'), ('good', 'a', '1', '2'), ('good', 'a', '2', '3'), ('good', null, null, '4')`
      )
      const first = yield* consumer.take(2, "10 seconds")
      assert.deepStrictEqual(first.map((m) => m.body).sort(), ["3", "4"])
      // Attempt 1, a wait of two seconds, attempt 2, dead: then the follower goes.
      const [follower] = yield* consumer.take(1, "20 seconds")
      assert.strictEqual(follower?.body, "2")
      const [dead] = yield* sql.query("select payload::text, attempts from outbox_dead_letters")
      assert.deepStrictEqual(dead, { payload: "1", attempts: 2 })
    })
  )

  it.scopedLive("delivers a row of thousands of bytes, and dead-letters one over the limit without loading it", () =>
    Effect.gen(function* () {
      const { sql, vhost } = yield* bridge({ PG_LISTENER_MAX_MESSAGE_BYTES: "100000", PG_LISTENER_MAX_ATTEMPTS: "1" })
      const consumer = yield* consume(vhost.url, "form_submitted_trigger")
      yield* sql.query("select emit_event('form_submitted', to_jsonb(repeat('x', 90000)))")
      yield* sql.query("select emit_event('form_submitted', to_jsonb(repeat('x', 300000)))")
      const [message] = yield* consumer.take(1, "10 seconds")
      assert.strictEqual(message?.body.length, 90_002)
      const dead = yield* eventually(
        "the dead letter",
        sql.query("select last_error from outbox_dead_letters"),
        (rows) => rows.length === 1
      )
      assert.match(String(dead[0]?.["last_error"]), /PG_LISTENER_MAX_MESSAGE_BYTES/)
    })
  )
})
