/** Dead letters and commands beside a running service, over HTTP and as processes of their own. */
import { randomBytes } from "node:crypto"
import * as Fs from "node:fs"
import * as Path from "node:path"
import { assert, describe, layer } from "@effect/vitest"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import { inject } from "vitest"
import type { Status } from "../../src/commands/Status.js"
import { bridge } from "../support/bridge.js"
import { consume } from "../support/Consumer.js"
import { eventually } from "../support/eventually.js"
import { freshDatabase, type TestDatabase, type TestVhost } from "../support/Servers.js"
import { runCommand, type Service, startService } from "../support/Service.js"
import type { SqlClient } from "../support/Sql.js"
import { transactionPooler } from "../support/TransactionPooler.js"

const newToken = () => randomBytes(16).toString("hex")

class Lab extends Context.Tag("test/Lab")<
  Lab,
  {
    readonly service: Service
    readonly sql: SqlClient
    readonly vhost: TestVhost
    readonly database: TestDatabase
    readonly token: { current: string; readonly file: string }
    /** What the service has, for a command beside it. */
    readonly env: Readonly<Record<string, string>>
  }
>() {
  /** A relay that gives up at the first refusal, and whose poll is too far away to help a retry. */
  static readonly layer = Layer.scoped(
    this,
    Effect.gen(function* () {
      const token = { current: newToken(), file: Path.join(inject("serversFolder"), `token_${newToken()}`) }
      Fs.writeFileSync(token.file, token.current)
      yield* Effect.addFinalizer(() => Effect.sync(() => Fs.rmSync(token.file)))
      const settings = {
        PG_LISTENER_ROUTES: "good=good,late=late,other=other",
        PG_LISTENER_DECLARE_QUEUES: "false",
        PG_LISTENER_MAX_ATTEMPTS: "1",
        PG_LISTENER_POLL_INTERVAL: "1 hour",
        PG_LISTENER_ADMIN_TOKEN_FILE: token.file
      }
      const parts = yield* bridge(settings)
      for (const queue of ["good", "other"]) yield* parts.vhost.api.declareQueue(queue)
      const env = { ...settings, DATABASE_URL: parts.database.url, AMQP_URL: parts.vhost.url }
      return { ...parts, token, env }
    })
  ).pipe(Layer.orDie)
}

/** An empty table, and no queue `late`. */
const fresh = Effect.gen(function* () {
  const lab = yield* Lab
  yield* lab.sql.query("truncate event_outbox")
  yield* Effect.ignore(lab.vhost.api.deleteQueue("late"))
  return lab
})

const request = (service: Service, token: string, method: string, path: string, body?: object) =>
  Effect.promise(async () => {
    const response = await fetch(`${service.url}/admin/dead-letters${path}`, {
      method,
      headers: { authorization: `Bearer ${token}` },
      ...(body === undefined ? {} : { body: JSON.stringify(body) })
    })
    const json: unknown = await response.json()
    return { status: response.status, json }
  })

/** Events of one aggregate for a queue that is not there: they become dead letters. Their ids, in the order of the inserts. */
const deadLetters = (sql: SqlClient, rows: number) =>
  Effect.gen(function* () {
    yield* sql.query(
      `insert into event_outbox (channel, aggregate_type, aggregate_id, payload)
       select 'late', 'order', '7', to_jsonb(n) from generate_series(1, ${rows}) n`
    )
    const dead = yield* eventually(
      `${rows} dead letters`,
      sql.query<{ readonly id: string }>("select id from outbox_dead_letters order by seq"),
      (found) => found.length === rows,
      "10 seconds"
    )
    return dead.map(({ id }) => id)
  })

const bodies = (received: ReadonlyArray<{ readonly body: string }>) => received.map(({ body }) => body)

layer(Lab.layer, { excludeTestServices: true, timeout: "60 seconds" })((it) => {
  describe("over HTTP", () => {
    it.scoped("a dead letter that is retried arrives within a second, once, and is no dead letter any more", () =>
      Effect.gen(function* () {
        const { service, sql, token, vhost } = yield* fresh
        const [id] = yield* deadLetters(sql, 1)
        const listed = yield* request(service, token.current, "GET", "?queue=late")
        assert.strictEqual(listed.status, 200)
        assert.match(JSON.stringify(listed.json), new RegExp(`"id":"${id}".*"attempts":1.*"target":"late"`))

        const consumer = yield* consume(vhost.url, "late")
        const retried = yield* request(service, token.current, "POST", `/${id}/retry`)
        assert.deepStrictEqual(retried, { status: 200, json: { retried: 1, id } })
        const [message] = yield* consumer.take(1, "1 second")
        assert.strictEqual(message?.messageId, id)
        yield* eventually(
          "processed",
          request(service, token.current, "POST", `/${id}/retry`),
          ({ json, status }) => status === 409 && JSON.stringify(json).includes('"state":"processed"'),
          "5 seconds"
        )
        const line = yield* service.awaitLog(({ message }) => message === "admin retried")
        assert.deepInclude(line, { event_id: id, channel: "late", aggregate_id: "7" })
        assert.notInclude(service.output(), token.current)
      })
    )

    it.scoped("the dead letters of an aggregate go out in order, each as soon as the one before it is out", () =>
      Effect.gen(function* () {
        const { service, sql, token, vhost } = yield* fresh
        yield* deadLetters(sql, 3)
        const consumer = yield* consume(vhost.url, "late")
        const { json } = yield* request(service, token.current, "POST", "/retry", { filter: { aggregateId: "7" } })
        assert.deepStrictEqual(json, { retried: 3 })
        assert.deepStrictEqual(bodies(yield* consumer.take(3, "1 second")), ["1", "2", "3"])
      })
    )

    it.scoped("a token that changed in its file counts from the next request on", () =>
      Effect.gen(function* () {
        const { service, token } = yield* fresh
        const old = token.current
        token.current = newToken()
        Fs.writeFileSync(token.file, `${token.current}\n`)
        assert.strictEqual((yield* request(service, old, "GET", "")).status, 401)
        assert.strictEqual((yield* request(service, token.current, "GET", "")).status, 200)
      })
    )

    it.scoped("a database that can't be reached is a 503 with the reason", () =>
      Effect.gen(function* () {
        const token = newToken()
        const service = yield* startService({
          DATABASE_URL: "postgres://u@127.0.0.1:1/none",
          AMQP_URL: "amqp://127.0.0.1:1",
          PG_LISTENER_ADMIN_TOKEN: token
        })
        yield* eventually("alive", service.get("/livez"), ({ status }) => status === 200)
        const { json, status } = yield* request(service, token, "GET", "")
        assert.strictEqual(status, 503)
        assert.match(JSON.stringify(json), /"unavailable".*ECONNREFUSED/)
      })
    )
  })

  describe("dead-letters", () => {
    it.scoped("list, show and retry by command do what HTTP does, and the running relay sends at once", () =>
      Effect.gen(function* () {
        const { env, service, sql, token, vhost } = yield* fresh
        const [first = "", second] = yield* deadLetters(sql, 2)
        const [forPeople, forScripts, shown] = yield* Effect.all(
          [
            runCommand(env, ["dead-letters", "list", "--queue", "late", "--limit", "1"]),
            runCommand(env, ["dead-letters", "list", "--json"]),
            runCommand(env, ["dead-letters", "show", first])
          ],
          { concurrency: 3 }
        )
        assert.match(
          forPeople.output,
          new RegExp(`^id .*last error\n${first} .* late .* order/7 .*\nmore: --after \\d+\n$`)
        )
        const overHttp = yield* request(service, token.current, "GET", "")
        assert.deepStrictEqual(JSON.parse(forScripts.output), overHttp.json)
        assert.match(shown.output, /\nattempts +1\n.*\npayload +1\n$/s)
        assert.deepStrictEqual([forPeople.code, forScripts.code, shown.code], [0, 0, 0])

        const consumer = yield* consume(vhost.url, "late")
        const retried = yield* runCommand(env, ["dead-letters", "retry", "--channel", "late", "--json"])
        assert.deepStrictEqual(JSON.parse(retried.output), { retried: 2 })
        assert.deepStrictEqual(
          (yield* consumer.take(2, "1 second")).map(({ messageId }) => messageId),
          [first, second]
        )
        const again = yield* runCommand(env, ["dead-letters", "retry", first])
        assert.strictEqual(again.code, 1)
        assert.match(again.output, /is not dead any more: it is (processed|pending)\n$/)
      })
    )

    it.scoped("discard deletes one by its id, and many by a filter", () =>
      Effect.gen(function* () {
        const { env, sql } = yield* fresh
        const [first = ""] = yield* deadLetters(sql, 3)
        const one = yield* runCommand(env, ["dead-letters", "discard", first])
        assert.deepStrictEqual([one.code, one.output], [0, `discarded ${first}\n`])
        assert.strictEqual((yield* sql.query("select from event_outbox")).length, 2)
        const many = yield* runCommand(env, ["dead-letters", "discard", "--error", "late", "--yes"])
        assert.deepStrictEqual([many.code, many.output], [0, "discarded 2 dead letters\n"])
        assert.deepStrictEqual(yield* sql.query("select from event_outbox"), [])
      })
    )
  })

  describe("status", () => {
    it.scoped("tells how the outbox is doing; exit code 0 when all is well, 3 when somebody should look, else 1", () =>
      Effect.gen(function* () {
        const { env, sql } = yield* fresh
        const [well, unknown] = yield* Effect.all(
          [runCommand(env, ["status"]), runCommand({ ...env, PG_LISTENER_SCHEMA: "nowhere" }, ["status", "--json"])],
          { concurrency: 2 }
        )
        assert.strictEqual(well.code, 0, well.output)
        assert.match(well.output, /^schema +1 \(event_outbox\), 2 \(doorbell\)\npending +0\n/)
        assert.match(well.output, /\nlow-water mark +(\d+)\ndoorbell +quiet\nrelays listening +1\n/)
        assert.strictEqual(unknown.code, 1)
        assert.match(unknown.output, /^\{"status":"unknown","reason":".*not in schema \\"nowhere\\".*migrate"\}\n$/)

        yield* sql.query("insert into event_outbox (channel, payload, processed_at) values ('good', '1', now())")
        yield* deadLetters(sql, 2)
        // As a busy relay does it, and a writer that takes its time.
        yield* sql.query("select pg_advisory_lock(hashtextextended('public.event_outbox', 0))")
        yield* sql.query("begin; insert into event_outbox (channel, payload) values ('good', '2')")
        const { code, output } = yield* runCommand(env, ["status", "--json"])
        yield* sql.query("rollback")
        yield* sql.query("select pg_advisory_unlock_all()")
        assert.strictEqual(code, 3, output)
        const { lastSeq, relay, tableBytes, ...rest } = JSON.parse(output) as Status
        assert.match(lastSeq, /^\d+$/)
        assert.isAbove(tableBytes, 8_192)
        assert.deepStrictEqual(
          { sessions: relay.sessions, owner: relay.liveOwner?.applicationName, from: relay.liveOwner?.clientAddress },
          { sessions: 1, owner: "pg-listener listen", from: "127.0.0.1" }
        )
        assert.deepStrictEqual(rest as object, {
          status: "attention",
          attention: ["there are 2 dead letters: see node dist/main.js dead-letters list"],
          schema: [
            { version: 1, name: "event_outbox" },
            { version: 2, name: "doorbell" }
          ],
          pending: 0,
          dead: 2,
          oldestPendingSeconds: 0,
          processedKept: 1,
          processedKeptIsEstimate: false,
          lowWaterMark: null,
          openWriters: 1,
          doorbell: { mode: "busy", note: null }
        })
      })
    )
  })

  describe("check", () => {
    interface Report {
      readonly ok: boolean
      readonly checks: ReadonlyArray<{
        readonly what: string
        readonly result: string
        readonly detail: string
        readonly mend: string | null
      }>
    }
    const check = (env: Readonly<Record<string, string>>) =>
      Effect.map(runCommand(env, ["check", "--json"]), ({ code, output }) => {
        const { checks, ok } = JSON.parse(output) as Report
        const of = (what: string) => checks.find((one) => one.what === what)
        return { code, ok, checks, of, result: (what: string) => of(what)?.result }
      })

    it.scoped("has one line for each precondition, and all hold beside a running service; nothing is declared", () =>
      Effect.gen(function* () {
        const { env, vhost } = yield* fresh
        const declaring = { ...env, PG_LISTENER_DECLARE_QUEUES: "true" }
        const { code, output } = yield* runCommand(declaring, ["check"])
        assert.strictEqual(code, 0, output)
        assert.deepStrictEqual(
          output
            .trim()
            .split("\n")
            .map((line) => line.slice(0, line.indexOf(":"))),
          [
            "ok           settings",
            "ok           database connection",
            "ok           PostgreSQL version",
            "ok           primary server",
            "ok           schema",
            "ok           indexes, views and functions",
            "ok           grants",
            "ok           doorbell",
            "ok           LISTEN",
            "ok           wake channel event_outbox",
            "ok           channel good",
            "ok           channel late",
            "ok           channel other",
            "ok           broker connection",
            "ok           queue good",
            "note         queue late",
            "ok           queue other",
            "ok           admin token"
          ]
        )
        assert.include(output, "queue late: missing; will be declared as a durable classic queue at the start\n")
        const queues = yield* vhost.api.queues
        assert.notInclude(
          queues.map(({ name }) => name),
          "late"
        )
      })
    )

    it.scoped("goes on behind what fails, with the mend beside each: tables, queue, exchange, password, token", () =>
      Effect.gen(function* () {
        const { env, vhost } = yield* fresh
        const empty = yield* freshDatabase
        const noPassword = Object.assign(new URL(vhost.url), { password: "wrong" }).href
        const [topology, servers] = yield* Effect.all(
          [
            check({ ...env, PG_LISTENER_ROUTES: "good=good,late=late,x.*=nowhere/key" }),
            check({
              ...env,
              DATABASE_URL: empty.url,
              AMQP_URL: noPassword,
              PG_LISTENER_ADMIN_TOKEN_FILE: "",
              PG_LISTENER_ADMIN_TOKEN: "1234"
            })
          ],
          { concurrency: 2 }
        )
        assert.deepStrictEqual([topology.code, topology.ok], [1, false])
        assert.match(topology.of("queue late")?.mend ?? "", /^Declare the queue, .*PG_LISTENER_DECLARE_QUEUES=true$/)
        assert.match(topology.of("exchange nowhere")?.mend ?? "", /^Declare the exchange and bind/)
        assert.deepStrictEqual([topology.result("queue good"), topology.result("LISTEN")], ["ok", "ok"])

        assert.strictEqual(servers.code, 1)
        assert.strictEqual(servers.of("schema")?.mend, "Run: node dist/main.js migrate")
        assert.match(servers.of("broker connection")?.detail ?? "", /ACCESS_REFUSED/)
        assert.match(servers.of("broker connection")?.mend ?? "", /^Check user and password in AMQP_URL/)
        assert.match(servers.of("admin token")?.mend ?? "", /openssl rand -hex 16/)
        assert.deepStrictEqual(["grants", "doorbell", "LISTEN", "queue good"].map(servers.result), [
          "not checked",
          "not checked",
          "ok",
          "not checked"
        ])
        assert.strictEqual(servers.of("queue good")?.detail, "no connection to the broker")
      })
    )

    it.scoped(
      "finds a database that is not there, a variable that means nothing, and a pooler that swallows notifications",
      () =>
        Effect.gen(function* () {
          const { database, env } = yield* fresh
          const pooler = yield* transactionPooler(database.url, { dropsNotifications: true })
          const nowhere = Object.assign(new URL(database.url), { pathname: "/nowhere" }).href
          const [absent, pooled] = yield* Effect.all(
            [
              check({ ...env, DATABASE_URL: nowhere, PG_LISTENER_WORKRES: "2", PG_LISTENER_BATCH_SIZE: "0" }),
              check({ ...env, DATABASE_URL: pooler.url, PG_LISTENER_HEARTBEAT_TIMEOUT: "300 millis" })
            ],
            { concurrency: 2 }
          )
          assert.match(absent.of("setting PG_LISTENER_WORKRES")?.detail ?? "", /did you mean PG_LISTENER_WORKERS\?/)
          assert.strictEqual(absent.result("setting PG_LISTENER_BATCH_SIZE"), "failed")
          assert.match(absent.of("database connection")?.detail ?? "", /^database "nowhere" does not exist$/)
          assert.strictEqual(absent.of("database connection")?.mend, "Check the database's name in DATABASE_URL")
          assert.deepStrictEqual(["schema", "LISTEN", "channel good", "queue good"].map(absent.result), [
            "not checked",
            "not checked",
            "not checked",
            "ok"
          ])
          assert.strictEqual(pooled.code, 1)
          assert.match(pooled.of("LISTEN")?.mend ?? "", /directly, or through a pooler in session mode/)
          assert.deepStrictEqual(["schema", "wake channel event_outbox"].map(pooled.result), ["ok", "not checked"])
        })
    )
  })
})
