import { spawn } from "node:child_process"
import * as Fs from "node:fs"
import * as Net from "node:net"
import * as Os from "node:os"
import * as Path from "node:path"
import { assert, describe, it } from "@effect/vitest"
import * as Amqp from "amqplib"
import * as Effect from "effect/Effect"
import * as Scope from "effect/Scope"
import * as ProcessTable from "../../dev/ProcessTable.js"
import * as ServerProcess from "../../dev/ServerProcess.js"
import { consume } from "../support/Consumer.js"
import { freshDatabase, freshVhost, migratedDatabase, privatePostgres, privateRabbitMq } from "../support/Servers.js"
import { sqlClient } from "../support/Sql.js"

/** Whether anything accepts connections where the URL points. */
const accepts = (url: string) =>
  Effect.async<boolean>((resume) => {
    const socket = Net.connect(Number(new URL(url).port), "127.0.0.1")
    socket.once("connect", () => resume(Effect.succeed(true)))
    socket.once("error", () => resume(Effect.succeed(false)))
    return Effect.sync(() => socket.destroy())
  })

const answers = (url: string) =>
  sqlClient(url, 500).pipe(
    Effect.flatMap(({ query }) => query("SELECT 1")),
    Effect.scoped,
    Effect.isSuccess
  )

describe("the shared servers", () => {
  it.scopedLive("give each test a database of its own", () =>
    Effect.gen(function* () {
      const [one, two] = yield* Effect.all([freshDatabase, freshDatabase], { concurrency: 2 })
      const inOne = yield* sqlClient(one.url)
      const inTwo = yield* sqlClient(two.url)
      yield* inOne.query("CREATE TABLE here_only (n int)")
      const found = yield* inTwo.query("SELECT 1 FROM pg_tables WHERE tablename = 'here_only'")
      assert.notStrictEqual(one.name, two.name)
      assert.deepStrictEqual(found, [])
    })
  )

  it.scopedLive("drop a test's database with its scope, even while somebody is connected", () =>
    Effect.gen(function* () {
      const other = yield* sqlClient((yield* freshDatabase).url)
      const inTest = yield* Effect.scope
      const name = yield* Effect.scoped(
        Effect.gen(function* () {
          const database = yield* freshDatabase
          yield* Scope.extend(sqlClient(database.url), inTest)
          return database.name
        })
      )
      assert.deepStrictEqual(yield* other.query("SELECT 1 FROM pg_database WHERE datname = $1", [name]), [])
    })
  )

  it.scopedLive("give a migrated database whose event_outbox takes an event", () =>
    Effect.gen(function* () {
      const { query } = yield* sqlClient((yield* migratedDatabase).url)
      const [row] = yield* query<{ id: string }>(
        `INSERT INTO event_outbox (channel, payload) VALUES ('campaign_click', '{"a":1}') RETURNING id`
      )
      assert.match(row?.id ?? "", /^[0-9a-f-]{36}$/)
    })
  )

  it.scopedLive("give each test a vhost of its own, in which a consumer gets what is published, in order", () =>
    Effect.gen(function* () {
      const [vhost, other] = yield* Effect.all([freshVhost, freshVhost])
      const consumer = yield* consume(vhost.url, "orders")
      assert.isTrue(yield* vhost.api.publish("", "orders", "first"))
      assert.isTrue(yield* vhost.api.publish("", "orders", "second"))
      const messages = yield* consumer.take(2, "5 seconds")
      assert.deepStrictEqual(
        messages.map(({ body, routingKey }) => ({ body, routingKey })),
        [
          { body: "first", routingKey: "orders" },
          { body: "second", routingKey: "orders" }
        ]
      )
      assert.deepStrictEqual(yield* other.api.queues, [])
    })
  )

  it.scopedLive("say what came when a consumer waits for more than there is", () =>
    Effect.gen(function* () {
      const vhost = yield* freshVhost
      const consumer = yield* consume(vhost.url, "orders")
      yield* vhost.api.publish("", "orders", "the only one")
      const error = yield* Effect.flip(consumer.take(2, "1 second"))
      assert.strictEqual(error.message, "queue orders: 1 of 2 messages came in time: [the only one]")
    })
  )
})

describe("a private PostgreSQL", () => {
  it.scopedLive("keeps committed rows through kill -9 and a start on the same port", () =>
    Effect.gen(function* () {
      const postgres = yield* privatePostgres()
      const before = yield* postgres.pid
      yield* Effect.scoped(
        Effect.flatMap(sqlClient(postgres.url), ({ query }) =>
          query("CREATE TABLE kept (n int); INSERT INTO kept VALUES (7)")
        )
      )
      yield* postgres.kill9
      assert.isFalse(yield* accepts(postgres.url))
      yield* postgres.start
      const { query } = yield* sqlClient(postgres.url)
      assert.deepStrictEqual(yield* query("SELECT n FROM kept"), [{ n: 7 }])
      assert.notStrictEqual(yield* postgres.pid, before)
    })
  )

  it.scopedLive("answers nobody while paused, keeps its sockets open, and goes on when resumed", () =>
    Effect.gen(function* () {
      const postgres = yield* privatePostgres()
      const { query } = yield* sqlClient(postgres.url)
      yield* postgres.pause
      const asked = yield* Effect.fork(query("SELECT 1 AS one"))
      assert.isFalse(yield* answers(postgres.url))
      assert.isTrue(yield* accepts(postgres.url))
      yield* postgres.resume
      assert.deepStrictEqual(yield* asked, [{ one: 1 }])
    })
  )

  it.live("is gone with its scope, even when the test left it paused", () =>
    Effect.gen(function* () {
      const url = yield* Effect.scoped(
        Effect.tap(privatePostgres(), ({ pause }) => pause).pipe(Effect.map(({ url }) => url))
      )
      assert.isFalse(yield* accepts(url))
    })
  )

  it.scopedLive("says what is wrong and shows the end of its log when it can't start", () =>
    Effect.gen(function* () {
      const cause = yield* Effect.flip(Effect.sandbox(privatePostgres({ shared_buffers: "nonsense" })))
      const text = `${cause}`
      assert.match(text, /PostgreSQL: start: it ended at once \(exit code 1\)/)
      assert.match(text, /invalid value for parameter "shared_buffers": "nonsense"/)
    })
  )
})

describe("a private RabbitMQ", () => {
  it.scopedLive("keeps durable queues through kill -9 and a start on the same port", () =>
    Effect.gen(function* () {
      const rabbitMq = yield* privateRabbitMq()
      yield* rabbitMq.api.declareQueue("kept")
      yield* rabbitMq.kill9
      assert.isFalse(yield* accepts(rabbitMq.url))
      yield* rabbitMq.start
      assert.strictEqual((yield* rabbitMq.api.queue("kept")).name, "kept")
    })
  )

  it.scopedLive("blocks those who publish while it has a memory alarm", () =>
    Effect.gen(function* () {
      const rabbitMq = yield* privateRabbitMq()
      const consumer = yield* consume(rabbitMq.url, "q")
      const connection = yield* Effect.acquireRelease(
        Effect.promise(() => Amqp.connect(rabbitMq.url)),
        (open) => Effect.promise(() => open.close())
      )
      connection.on("error", () => {})
      const blocked = Effect.async<void>((resume) => {
        connection.once("blocked", () => resume(Effect.void))
      }).pipe(Effect.timeout("10 seconds"))
      const channel = yield* Effect.promise(() => connection.createChannel())
      yield* rabbitMq.setMemoryAlarm
      channel.sendToQueue("q", Buffer.from("late"))
      yield* blocked
      yield* Effect.flip(consumer.take(1, "1 second"))
      yield* rabbitMq.clearMemoryAlarm
      assert.strictEqual((yield* consumer.take(1, "10 seconds"))[0]?.body, "late")
    })
  )

  it.live("is gone with its scope, and Erlang's name server with it", () =>
    Effect.gen(function* () {
      const erlang = Effect.map(ProcessTable.treeOf(process.pid), (tree) =>
        tree.map(({ name }) => name).filter((name) => name === "epmd" || name === "beam.smp")
      )
      const during = yield* Effect.scoped(Effect.zipRight(privateRabbitMq(), erlang))
      assert.deepStrictEqual(during.toSorted(), ["beam.smp", "epmd"])
      assert.deepStrictEqual(yield* erlang, [])
    })
  )
})

describe("what an earlier run left in the folder", () => {
  /** Any program will do as a server here, and one that is left over can be any as well. */
  const sleeper = { command: "sleep", args: ["600"] }
  const leftover = Effect.acquireRelease(
    Effect.sync(() => spawn(sleeper.command, sleeper.args, { stdio: "ignore" })),
    (child) => Effect.sync(() => child.kill("SIGKILL"))
  )
  const entryOf = (pid: number | undefined) => Effect.map(ProcessTable.treeOf(pid ?? 0), ([entry]) => entry)
  const startAfter = (record: object) =>
    Effect.gen(function* () {
      const folder = yield* Effect.acquireRelease(
        Effect.sync(() => Fs.mkdtempSync(Path.join(Os.tmpdir(), "pg-listener-test-"))),
        (made) => Effect.sync(() => Fs.rmSync(made, { recursive: true, force: true }))
      )
      Fs.writeFileSync(Path.join(folder, "server.json"), JSON.stringify(record))
      return yield* ServerProcess.make({
        name: "a server",
        folder,
        file: "server",
        launch: sleeper,
        env: { PATH: "/usr/bin:/bin" },
        output: "log",
        beforeStart: Effect.void,
        isReady: () => Effect.succeed(true),
        readyWithinMillis: 5000,
        stopSignal: "SIGTERM",
        stopWithinMillis: 1000,
        killsChildren: true
      })
    })

  it.scopedLive("is ended by the next start when its owner is gone", () =>
    Effect.gen(function* () {
      const left = yield* entryOf((yield* leftover).pid)
      const gone = { pid: 1, parent: 0, name: "node", started: "never" }
      yield* startAfter({ owner: gone, processes: [left] })
      assert.strictEqual(yield* entryOf(left?.pid), undefined)
    })
  )

  it.scopedLive("stays, and the start is refused, while its owner lives", () =>
    Effect.gen(function* () {
      const left = yield* entryOf((yield* leftover).pid)
      const owner = yield* entryOf(process.ppid)
      const error = yield* Effect.flip(startAfter({ owner, processes: [left] }))
      assert.include(error.message, `started by process ${process.ppid}, which still runs`)
      assert.deepStrictEqual(yield* entryOf(left?.pid), left)
    })
  )

  it.scopedLive("is not touched when its pid has become somebody else's", () =>
    Effect.gen(function* () {
      const stranger = yield* entryOf((yield* leftover).pid)
      const gone = { pid: 1, parent: 0, name: "node", started: "never" }
      yield* startAfter({ owner: gone, processes: [{ ...stranger, started: "earlier" }] })
      assert.deepStrictEqual(yield* entryOf(stranger?.pid), stranger)
    })
  )
})
