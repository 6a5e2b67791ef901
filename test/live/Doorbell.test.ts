/** The doorbell (design, section 5a) with real writers: who rings when, and that nobody waits for the poll. */
import { assert, describe, it } from "@effect/vitest"
import * as Clock from "effect/Clock"
import * as Effect from "effect/Effect"
import * as Schedule from "effect/Schedule"
import { allProcessed, bridge } from "../support/bridge.js"
import { consume } from "../support/Consumer.js"
import { eventually } from "../support/eventually.js"
import { privateRabbitMq } from "../support/Servers.js"
import { startService } from "../support/Service.js"
import { type SqlClient, sqlClient } from "../support/Sql.js"

/** The poll never helps here; few rings make it busy. */
const patient = { PG_LISTENER_POLL_INTERVAL: "1 hour", PG_LISTENER_BUSY_THRESHOLD: "20" }
const QUEUE = "campaign_click_trigger"

const insert = (sql: SqlClient, n: number) =>
  sql.query("insert into event_outbox (channel, payload) values ('campaign_click', to_jsonb($1::int))", [n])

/** Whether a writer would ring now: what the trigger asks. */
const rings = (sql: SqlClient) =>
  Effect.map(
    sql.query<{ readonly rings: boolean }>(
      "select pg_try_advisory_xact_lock_shared(hashtextextended('public.event_outbox', 0)) as rings"
    ),
    ([row]) => row?.rings
  )

/** Inserts as fast as one connection can, until writers are asked to be silent. */
const makeBusy = (sql: SqlClient) =>
  eventually(
    "the silence",
    Effect.zipRight(
      Effect.forEach([1, 2, 3, 4, 5], (n) => insert(sql, n), { discard: true }),
      rings(sql)
    ),
    (ringing) => ringing === false
  )

/** Inserts steadily, so that the relay stays busy, until interrupted. */
const keepBusy = (url: string) =>
  Effect.flatMap(sqlClient(url), (writer) => Effect.repeat(insert(writer, 0), Schedule.spaced("5 millis"))).pipe(
    Effect.scoped,
    Effect.forkScoped
  )

describe("the doorbell", () => {
  it.scopedLive("is quiet with few events: each rings, and arrives without the poll", () =>
    Effect.gen(function* () {
      const { sql, vhost } = yield* bridge(patient)
      const consumer = yield* consume(vhost.url, QUEUE)
      for (let n = 0; n < 5; n++) {
        yield* insert(sql, n)
        yield* consumer.take(1, "2 seconds")
      }
      assert.isTrue(yield* rings(sql))
    })
  )

  it.scopedLive("silences writers under load, who are heard all the same, and lets them ring again afterwards", () =>
    Effect.gen(function* () {
      const { database, sql, vhost } = yield* bridge(patient)
      const consumer = yield* consume(vhost.url, QUEUE)
      yield* makeBusy(sql)
      const load = yield* keepBusy(database.url)
      const silent = yield* sqlClient(database.url)
      for (let n = 1_000; n < 1_020; n++) {
        yield* insert(silent, n)
        assert.isFalse(yield* rings(silent))
      }
      yield* eventually(
        "twenty silent events",
        Effect.sync(() => consumer.received.filter(({ body }) => Number(body) >= 1_000).length),
        (n) => n === 20,
        "2 seconds"
      )
      yield* load.interruptAsFork(load.id())
      yield* eventually("writers ring again", rings(sql), (ringing) => ringing === true, "5 seconds")
      yield* insert(sql, 7)
      yield* allProcessed(sql)
    })
  )

  it.scopedLive("a writer that looked while it was silent and commits during the hand-over waits milliseconds", () =>
    Effect.gen(function* () {
      const { database, sql, vhost } = yield* bridge(patient)
      const consumer = yield* consume(vhost.url, QUEUE)
      yield* makeBusy(sql)
      const late = yield* sqlClient(database.url)
      yield* late.query("begin")
      yield* insert(late, 4_711)
      yield* eventually("writers ring again", rings(sql), (ringing) => ringing === true, "5 seconds")
      const committedAt = yield* Clock.currentTimeMillis
      yield* late.query("commit")
      const arrived = yield* eventually(
        "the late event",
        Effect.sync(() => consumer.received.find(({ body }) => body === "4711")),
        (message) => message !== undefined,
        "5 seconds"
      )
      assert.isBelow((arrived?.receivedAt ?? 0) - committedAt, 1_000)
    })
  )

  it.scopedLive("a relay killed while it is busy leaves no silence behind", () =>
    Effect.gen(function* () {
      const { database, service, sql, vhost } = yield* bridge(patient)
      yield* makeBusy(sql)
      yield* service.kill("SIGKILL")
      yield* eventually("writers ring again", rings(sql), (ringing) => ringing === true, "2 seconds")
      const next = yield* startService({ DATABASE_URL: database.url, AMQP_URL: vhost.url, ...patient })
      yield* next.awaitReady()
      yield* insert(sql, 1)
      yield* allProcessed(sql)
    })
  )

  it.scopedLive("a relay that can't publish is quiet, however many rings come", () =>
    Effect.gen(function* () {
      const broker = yield* privateRabbitMq()
      const { database, service, sql } = yield* bridge({ ...patient, AMQP_URL: broker.url })
      yield* makeBusy(sql)
      yield* broker.kill9
      yield* service.awaitNotReady()
      yield* keepBusy(database.url)
      yield* eventually("writers ring again", rings(sql), (ringing) => ringing === true, "10 seconds")
      yield* Effect.sleep("1 second") // a second of rings at many times the threshold
      assert.isTrue(yield* rings(sql))
    })
  )

  it.scopedLive("with two replicas, the busy one hears for both: no event waits for the poll", () =>
    Effect.gen(function* () {
      const { database, sql, vhost } = yield* bridge(patient)
      const other = yield* startService({
        DATABASE_URL: database.url,
        AMQP_URL: vhost.url,
        ...patient,
        PG_LISTENER_BUSY_THRESHOLD: "0"
      })
      yield* other.awaitReady()
      yield* makeBusy(sql)
      const silent = yield* sqlClient(database.url)
      for (let n = 0; n < 50; n++) yield* insert(silent, n)
      yield* allProcessed(sql)
    })
  )
})
