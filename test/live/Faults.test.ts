/** The built service while its servers, or it, fail: one basic fault each. */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import { allProcessed, bridge } from "../support/bridge.js"
import { consume } from "../support/Consumer.js"
import { eventually } from "../support/eventually.js"
import { freshDatabase, freshVhost, migratedDatabase, privatePostgres, privateRabbitMq } from "../support/Servers.js"
import { runCommand, startService } from "../support/Service.js"
import { sqlClient } from "../support/Sql.js"

const CLICK = "campaign_click"
const QUEUE = "campaign_click_trigger"

const insertRange = `insert into event_outbox (channel, aggregate_type, aggregate_id, payload)
  select 'campaign_click', 'user', (n % 20)::text, to_jsonb(n) from generate_series($1::int, $2::int) n`

/** Fails when, within an aggregate (n % 20), a first delivery came before that of a smaller n. */
const assertOrdered = (bodies: ReadonlyArray<string>) => {
  const last = new Map<number, number>()
  const seen = new Set<number>()
  for (const body of bodies) {
    const n = Number(body)
    if (seen.has(n)) continue
    seen.add(n)
    const before = last.get(n % 20) ?? -1
    assert.isAbove(n, before, `event ${n} was delivered after ${before}`)
    last.set(n % 20, n)
  }
  return seen
}

describe("faults", () => {
  it.scopedLive("a lost LISTEN session: not ready at once, ready after the reconnect, and rows in between arrive", () =>
    Effect.gen(function* () {
      const { service, sql, vhost } = yield* bridge()
      const consumer = yield* consume(vhost.url, QUEUE)
      yield* sql.query(
        "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'pg-listener listen' and datname = current_database()"
      )
      yield* service.awaitNotReady("2 seconds")
      const health = yield* service.get("/health")
      assert.strictEqual(health.status, 503)
      assert.isString((health.json as { pg: { disconnectedAt: unknown } }).pg.disconnectedAt)
      yield* sql.query("insert into event_outbox (channel, payload) values ($1, '1')", [CLICK])
      yield* service.awaitReady("10 seconds")
      const [message] = yield* consumer.take(1, "10 seconds")
      assert.strictEqual(message?.body, "1")
      const line = yield* service.awaitLog((l) => l.message.startsWith("catching up"))
      assert.isString(line["disconnected_at"])
    })
  )

  it.scopedLive(
    "a dead broker under load: no row gains an attempt, and every row arrives in order after it is back",
    () =>
      Effect.gen(function* () {
        const database = yield* migratedDatabase
        const broker = yield* privateRabbitMq()
        const service = yield* startService({ DATABASE_URL: database.url, AMQP_URL: broker.url })
        yield* service.awaitReady()
        const sql = yield* sqlClient(database.url)
        yield* sql.query(insertRange, [0, 999])
        yield* eventually(
          "the first rows",
          sql.query("select count(*)::int as n from event_outbox where processed_at is not null"),
          (rows) => Number(rows[0]?.["n"]) > 0
        )
        yield* broker.kill9
        yield* sql.query(insertRange, [1000, 1999])
        yield* service.awaitNotReady()
        yield* broker.start
        yield* service.awaitReady("60 seconds")
        yield* allProcessed(sql)
        const consumer = yield* consume(broker.url, QUEUE)
        const seen = yield* eventually(
          "every event",
          Effect.sync(() => assertOrdered(consumer.received.map((m) => m.body))),
          (all) => all.size === 2000
        )
        assert.strictEqual(seen.size, 2000)
        assert.deepStrictEqual(yield* sql.query("select 1 from event_outbox where attempts > 0"), [])
      })
  )

  it.scopedLive("a killed and restarted database: every committed row arrives, without a restart of the service", () =>
    Effect.gen(function* () {
      const server = yield* privatePostgres()
      const vhost = yield* freshVhost
      const env = { DATABASE_URL: server.url, AMQP_URL: vhost.url }
      assert.strictEqual((yield* runCommand(env, ["migrate"])).code, 0)
      const service = yield* startService(env)
      yield* service.awaitReady()
      yield* Effect.scoped(Effect.flatMap(sqlClient(server.url), (sql) => sql.query(insertRange, [0, 499])))
      yield* server.kill9
      yield* service.awaitNotReady()
      yield* server.start
      yield* service.awaitReady("60 seconds")
      const sql = yield* sqlClient(server.url)
      yield* sql.query(insertRange, [500, 999])
      yield* allProcessed(sql)
      const consumer = yield* consume(vhost.url, QUEUE)
      yield* eventually(
        "every event",
        Effect.sync(() => assertOrdered(consumer.received.map((m) => m.body))),
        (all) => all.size === 1000
      )
    })
  )

  it.scopedLive("SIGTERM in mid-batch: the batch is finished, nothing is lost, exit code 0", () =>
    Effect.gen(function* () {
      const { database, service, sql, vhost } = yield* bridge()
      yield* sql.query(insertRange, [0, 9999])
      yield* eventually(
        "the first batch",
        sql.query("select count(*)::int as n from event_outbox where processed_at is not null"),
        (rows) => Number(rows[0]?.["n"]) > 0
      )
      yield* service.kill("SIGTERM")
      assert.deepStrictEqual(yield* service.exited(), { code: 0, signal: null })
      const [left] = yield* sql.query("select count(*)::int as n from event_outbox where processed_at is null")
      assert.isAbove(Number(left?.["n"]), 0, "the stop came after the end of the work: nothing was shown")
      // A clean stop leaves no doubt about any message: what is processed was published once, the rest not at all.
      const consumer = yield* consume(vhost.url, QUEUE)
      const processed = 10_000 - Number(left?.["n"])
      yield* eventually(
        `the ${processed} processed ones`,
        Effect.sync(() => consumer.received.length),
        (n) => n === processed
      )
      const second = yield* startService({ DATABASE_URL: database.url, AMQP_URL: vhost.url })
      yield* second.awaitReady()
      yield* allProcessed(sql)
      yield* eventually(
        "all",
        Effect.sync(() => consumer.received.length),
        (n) => n >= 10_000
      )
      assert.strictEqual(consumer.received.length, 10_000)
      assert.strictEqual(assertOrdered(consumer.received.map((m) => m.body)).size, 10_000)
    })
  )

  it.scopedLive(
    "two replicas, one killed in mid-work: every event arrives, first deliveries in order per aggregate",
    () =>
      Effect.gen(function* () {
        const { database, service, sql, vhost } = yield* bridge()
        const other = yield* startService({ DATABASE_URL: database.url, AMQP_URL: vhost.url })
        yield* other.awaitReady()
        const consumer = yield* consume(vhost.url, QUEUE)
        for (let at = 0; at < 10_000; at += 500) {
          yield* sql.query(insertRange, [at, at + 499])
          if (at === 3_000) yield* service.kill("SIGKILL")
        }
        yield* allProcessed(sql)
        yield* eventually(
          "every event",
          Effect.sync(() => new Set(consumer.received.map((m) => m.body)).size),
          (n) => n === 10_000
        )
        assertOrdered(consumer.received.map((m) => m.body))
      })
  )

  it.scopedLive("a rolling restart of two replicas neither loses nor repeats a bare notification", () =>
    Effect.gen(function* () {
      const { database, service, vhost } = yield* bridge()
      const consumer = yield* consume(vhost.url, QUEUE)
      const writer = yield* sqlClient(database.url)
      let sent = 0
      yield* Effect.suspend(() => writer.query("select pg_notify('campaign_click', $1)", [String(sent)])).pipe(
        Effect.tap(() => Effect.sync(() => sent++)),
        Effect.delay("3 millis"),
        Effect.forever,
        Effect.forkScoped
      )
      let oldest = service
      for (let restart = 0; restart < 3; restart++) {
        const next = yield* startService({ DATABASE_URL: database.url, AMQP_URL: vhost.url })
        yield* next.awaitReady()
        yield* oldest.kill("SIGTERM")
        assert.deepStrictEqual(yield* oldest.exited(), { code: 0, signal: null })
        oldest = next
      }
      const all = Array.from({ length: sent }, (_, n) => String(n))
      yield* eventually(
        "every notification",
        Effect.sync(() => {
          const bodies = new Set(consumer.received.map((m) => m.body))
          return all.filter((n) => !bodies.has(n))
        }),
        (missing) => missing.length === 0
      )
      yield* Effect.sleep("1500 millis") // what is published twice comes by the second look at the lock
      const upTo = consumer.received.filter((m) => Number(m.body) < all.length)
      assert.strictEqual(upTo.length, all.length, "a notification was published twice")
    })
  )

  it.scopedLive("starts with both servers down, alive and not ready, and works when they come", () =>
    Effect.gen(function* () {
      const server = yield* privatePostgres()
      const broker = yield* privateRabbitMq()
      const env = { DATABASE_URL: server.url, AMQP_URL: broker.url }
      assert.strictEqual((yield* runCommand(env, ["migrate"])).code, 0)
      yield* Effect.all([server.stop, broker.stop], { concurrency: 2 })
      const service = yield* startService(env)
      yield* service.awaitNotReady()
      assert.strictEqual((yield* service.get("/livez")).status, 200)
      yield* Effect.all([server.start, broker.start], { concurrency: 2 })
      yield* service.awaitReady("60 seconds")
      const sql = yield* sqlClient(server.url)
      const consumer = yield* consume(broker.url, QUEUE)
      yield* sql.query(insertRange, [1, 1])
      assert.strictEqual((yield* consumer.take(1, "10 seconds"))[0]?.body, "1")
    })
  )

  it.scopedLive(
    "SIGTERM with both servers frozen and no batch in hand: exit code 0, though a claim and a heartbeat hang",
    () =>
      Effect.gen(function* () {
        const server = yield* privatePostgres()
        const broker = yield* privateRabbitMq()
        const env = { DATABASE_URL: server.url, AMQP_URL: broker.url, PG_LISTENER_POLL_INTERVAL: "500 millis" }
        assert.strictEqual((yield* runCommand(env, ["migrate"])).code, 0)
        const service = yield* startService(env)
        yield* service.awaitReady()
        yield* Effect.all([server.pause, broker.pause], { concurrency: 2 })
        yield* Effect.sleep("3 seconds") // several polls, and the low-water mark's look, find the server frozen
        yield* service.kill("SIGTERM")
        assert.deepStrictEqual(yield* service.exited("15 seconds"), { code: 0, signal: null })
        yield* Effect.all([server.resume, broker.resume], { concurrency: 2 })
      })
  )

  it.scopedLive("a missing schema: alive, not ready, says what to run, and goes on by itself after migrate", () =>
    Effect.gen(function* () {
      const database = yield* freshDatabase
      const vhost = yield* freshVhost
      const env = { DATABASE_URL: database.url, AMQP_URL: vhost.url }
      const service = yield* startService(env)
      const line = yield* service.awaitLog((l) => l.level === "error")
      assert.include(line.message, "migrate")
      assert.strictEqual((yield* service.get("/livez")).status, 200)
      assert.strictEqual((yield* service.get("/readyz")).status, 503)
      assert.strictEqual((yield* runCommand(env, ["migrate"])).code, 0)
      yield* service.awaitReady()
      const sql = yield* sqlClient(database.url)
      yield* sql.query(insertRange, [1, 1])
      yield* allProcessed(sql)
    })
  )

  it.scopedLive("a broken environment: exit code 1, every problem named, no secret shown", () =>
    Effect.gen(function* () {
      const run = yield* runCommand(
        { DATABASE_URL: "mysql://me:hunter2@db/x", PG_LISTENER_BATCH_SIZE: "lots", PG_LISTENER_WORKRES: "3" },
        []
      )
      assert.strictEqual(run.code, 1)
      for (const name of ["DATABASE_URL", "AMQP_URL", "PG_LISTENER_BATCH_SIZE", "PG_LISTENER_WORKRES"]) {
        assert.include(run.output, name)
      }
      assert.notInclude(run.output, "hunter2")
    })
  )

  it.scopedLive("an unknown command: exit code 2 and the usage", () =>
    Effect.gen(function* () {
      const run = yield* runCommand({}, ["lissten"])
      assert.strictEqual(run.code, 2)
      assert.include(run.output, "Usage:")
    })
  )
})
