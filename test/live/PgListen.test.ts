/** LISTEN against real servers that terminate, restart, freeze and forget; and through poolers. */
import { assert, describe, it } from "@effect/vitest"
import * as Clock from "effect/Clock"
import * as Context from "effect/Context"
import * as Deferred from "effect/Deferred"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Layer from "effect/Layer"
import * as Logger from "effect/Logger"
import * as Queue from "effect/Queue"
import * as Redacted from "effect/Redacted"
import * as Stream from "effect/Stream"
import { PgConnector } from "../../src/PgConnector.js"
import { type ListenEvent, PgListen } from "../../src/PgListen.js"
import { Settings, type SettingsShape } from "../../src/Settings.js"
import { eventually } from "../support/eventually.js"
import { freshDatabase, privatePostgres } from "../support/Servers.js"
import { sqlClient } from "../support/Sql.js"
import { transactionPooler } from "../support/TransactionPooler.js"

const heartbeat = { interval: 500, timeout: 1500 }

const service = (url: string, channels: ReadonlyArray<string> = ["orders"]) => {
  const settings: Partial<SettingsShape> = {
    databaseUrl: Effect.succeed(Redacted.make(url)),
    routes: { channels } as SettingsShape["routes"],
    schema: "public",
    wakeChannel: "event_outbox",
    heartbeatInterval: Duration.millis(heartbeat.interval),
    heartbeatTimeout: Duration.millis(heartbeat.timeout)
  }
  return Effect.map(
    Layer.build(
      PgListen.layer.pipe(
        Layer.provide(PgConnector.layer),
        Layer.provide(Layer.succeed(Settings, settings as SettingsShape))
      )
    ),
    (context) => Context.get(context, PgListen)
  )
}

/** A running service, its events, and the reasons that its log gives for failures. */
const listening = (url: string, channels?: ReadonlyArray<string>) =>
  Effect.gen(function* () {
    const listen = yield* service(url, channels)
    const events = yield* Queue.unbounded<ListenEvent>()
    const failures: Array<string> = []
    const logger = Logger.make(({ annotations, message }) => {
      const why = Object.fromEntries(annotations)["why"]
      if (why !== undefined) failures.push(`${String(why)}: ${String(message)}`)
    })
    const running = yield* listen.events.pipe(
      Stream.runForEach((event) => Queue.offer(events, event)),
      Effect.provide(Logger.replace(Logger.defaultLogger, logger)),
      Effect.forkScoped
    )
    const next = Effect.timeout(Queue.take(events), "10 seconds")
    const nextListening = Effect.flatMap(next, (event) =>
      event._tag === "Listening" ? Effect.succeed(event) : Effect.dieMessage(`not Listening but ${event._tag}`)
    )
    const connected = (wanted: boolean, within: Duration.DurationInput = "10 seconds") =>
      eventually(`connected: ${wanted}`, listen.status, (status) => status.connected === wanted, within)
    return { ...listen, running, next, nextListening, connected, failures }
  })

describe("what arrives", () => {
  it.scopedLive("notifications of every channel name that PostgreSQL can hold, with any payload it can carry", () =>
    Effect.gen(function* () {
      const { url } = yield* freshDatabase
      const sql = yield* sqlClient(url)
      const names = ["plain", "MixedCase", "with space", 'quo"te;--', "ключ", "x".repeat(63)]
      const { next, nextListening } = yield* listening(url, names)
      yield* nextListening
      const payloads = ["", "{}", "'\"\\\n", "x".repeat(7999), "ü".repeat(3999)]
      const sent = [...names, "event_outbox"].flatMap((channel) => payloads.map((payload) => ({ channel, payload })))
      for (const { channel, payload } of sent) yield* sql.query("select pg_notify($1, $2)", [channel, payload])
      yield* sql.query('notify "MixedCase"')
      for (const one of [...sent, { channel: "MixedCase", payload: "" }]) {
        assert.deepStrictEqual(yield* next, { _tag: "Notification", ...one } as ListenEvent)
      }
    })
  )

  it.scopedLive("30,000 notifications for a consumer that stands still: all, in order, over a session that stays", () =>
    Effect.gen(function* () {
      const { url } = yield* freshDatabase
      const sql = yield* sqlClient(url)
      const listen = yield* service(url)
      const gate = yield* Deferred.make<void>()
      const seen: Array<number> = []
      const pids: Array<number> = []
      const running = yield* listen.events.pipe(
        Stream.takeUntil((event) => event._tag === "Notification" && event.payload.startsWith("30000 ")),
        Stream.runForEachChunk((chunk) =>
          Effect.gen(function* () {
            for (const event of chunk) {
              if (event._tag === "Listening") {
                pids.push(event.backendPid)
                yield* Deferred.await(gate)
              } else if (event._tag === "Notification") seen.push(Number(event.payload.split(" ")[0]))
            }
          })
        ),
        Effect.forkScoped
      )
      yield* eventually(
        "listening",
        Effect.sync(() => pids),
        (all) => all.length === 1
      )
      yield* sql.query("select pg_notify('orders', n || repeat(' x', 500)) from generate_series(1, 30000) n")
      // The server can't write on, now and later: the proof that we stopped reading, and do not pile everything up.
      const blocked = sql.query("select 1 from pg_stat_activity where pid = $1 and wait_event = 'ClientWrite'", pids)
      yield* eventually("the listener's backend waits for us", blocked, (rows) => rows.length === 1)
      yield* Effect.sleep(heartbeat.interval + 2 * heartbeat.timeout)
      assert.strictEqual((yield* blocked).length, 1)
      assert.isTrue((yield* listen.status).connected)
      yield* Deferred.succeed(gate, undefined)
      yield* Effect.timeout(Fiber.join(running), "20 seconds")
      assert.strictEqual(seen.length, 30_000)
      assert.isTrue(seen.every((n, index) => n === index + 1))
      assert.strictEqual(pids.length, 1)
    })
  )
})

describe("a session that ends", () => {
  it.scopedLive("terminated: the status says so at once, and the next Listening says since when", () =>
    Effect.gen(function* () {
      const { url } = yield* freshDatabase
      const sql = yield* sqlClient(url)
      const { connected, nextListening } = yield* listening(url)
      const first = yield* nextListening
      const before = yield* Clock.currentTimeMillis
      yield* sql.query("select pg_terminate_backend($1)", [first.backendPid])
      const { disconnectedAt } = yield* connected(false, "400 millis")
      assert.isAtLeast(disconnectedAt ?? 0, before)
      const second = yield* nextListening
      assert.strictEqual(second.disconnectedAt, disconnectedAt)
      assert.notStrictEqual(second.backendPid, first.backendPid)
    })
  )

  it.scopedLive("a restart of the server, and a server that is down at the start, are waited for", () =>
    Effect.gen(function* () {
      const server = yield* privatePostgres()
      yield* server.stop
      const { connected, failures, next, nextListening } = yield* listening(server.url)
      yield* eventually(
        "a failure",
        Effect.sync(() => failures),
        (all) => all.length > 0
      )
      assert.match(failures[0] ?? "", /^connect: .*ECONNREFUSED/)
      yield* server.start
      assert.isUndefined((yield* nextListening).disconnectedAt)
      yield* server.kill9
      yield* connected(false, "1 second")
      yield* server.start
      assert.isDefined((yield* nextListening).disconnectedAt)
      const sql = yield* sqlClient(server.url)
      yield* sql.query("notify orders")
      assert.strictEqual((yield* next)._tag, "Notification")
    })
  )

  it.scopedLive("frozen: noticed within heartbeat and time-out, and the closing has an end", () =>
    Effect.gen(function* () {
      const server = yield* privatePostgres()
      let closing = 0
      yield* Effect.gen(function* () {
        const { connected, nextListening } = yield* listening(`${server.url}?connect_timeout=1`)
        yield* nextListening
        yield* server.pause
        yield* connected(false, heartbeat.interval + heartbeat.timeout + 1000)
        yield* server.resume
        assert.isDefined((yield* nextListening).disconnectedAt)
        yield* server.pause
        closing = performance.now()
      }).pipe(Effect.scoped)
      assert.isBelow(performance.now() - closing, 2000)
      yield* server.resume
    })
  )

  it.scopedLive("DISCARD ALL on the session: the loss of its channels is noticed, and it starts anew", () =>
    Effect.gen(function* () {
      const { url } = yield* freshDatabase
      const sql = yield* sqlClient(url)
      const pooler = yield* transactionPooler(url, { dropsNotifications: false })
      const { failures, next, nextListening } = yield* listening(pooler.url)
      yield* nextListening
      // Between two heartbeats; one that is under way would keep the session busy.
      yield* eventually(
        "channels lost",
        Effect.zipRight(
          pooler.inject("DISCARD ALL"),
          Effect.sync(() => failures)
        ),
        (all) => all.length > 0
      )
      assert.match(failures[0] ?? "", /^channels-lost: .*orders, event_outbox/)
      yield* nextListening
      yield* sql.query("notify orders")
      assert.strictEqual((yield* next)._tag, "Notification")
    })
  )
})

describe("where LISTEN is of no use", () => {
  it.scopedLive("behind a transaction pooler nothing counts as listening, and the reason names PgBouncer", () =>
    Effect.gen(function* () {
      const { url } = yield* freshDatabase
      const pooler = yield* transactionPooler(url, { dropsNotifications: true })
      const { failures, status } = yield* listening(pooler.url)
      yield* eventually(
        "a failure",
        Effect.sync(() => failures),
        (all) => all.length > 0
      )
      assert.match(failures[0] ?? "", /^pooler: .*PgBouncer/)
      assert.isFalse((yield* status).connected)
    })
  )

  it.scopedLive("on a replica", () =>
    Effect.gen(function* () {
      const { url } = yield* freshDatabase
      const sql = yield* sqlClient(url)
      yield* sql.query("create schema fake")
      yield* sql.query("create function fake.pg_is_in_recovery() returns boolean language sql return true")
      const { failures } = yield* listening(`${url}?options=-c%20search_path%3Dfake,pg_catalog`)
      yield* eventually(
        "a failure",
        Effect.sync(() => failures),
        (all) => all.length > 0
      )
      assert.match(failures[0] ?? "", /^replica: /)
    })
  )

  it.scopedLive("with a password that is wrong the log says so, and not which", () =>
    Effect.gen(function* () {
      const { url } = yield* freshDatabase
      const { failures } = yield* listening(url.replace("postgres@", "nobody:hunter2@"))
      yield* eventually(
        "a failure",
        Effect.sync(() => failures),
        (all) => all.length > 0
      )
      assert.match(failures[0] ?? "", /^refused: .*role "nobody" does not exist/)
      assert.notInclude(failures.join(), "hunter2")
    })
  )
})

describe("the live owner", () => {
  it.scopedLive("is one of two, and the other takes over when its session ends", () =>
    Effect.gen(function* () {
      const { url } = yield* freshDatabase
      const one = yield* listening(url)
      yield* one.nextListening
      yield* eventually("the lock", one.isLiveOwner, (owner) => owner)
      const two = yield* listening(url)
      yield* two.nextListening
      assert.isFalse(yield* two.isLiveOwner)
      yield* Fiber.interrupt(one.running)
      assert.isFalse(yield* one.isLiveOwner)
      yield* eventually("the hand-over", two.isLiveOwner, (owner) => owner, "2 seconds")
    })
  )
})
