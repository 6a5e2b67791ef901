/** The pool and its transactions against real servers that refuse, kill and freeze. */
import { writeFileSync } from "node:fs"
import * as SqlClient from "@effect/sql/SqlClient"
import { assert, describe, it } from "@effect/vitest"
import * as Context from "effect/Context"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Layer from "effect/Layer"
import * as Redacted from "effect/Redacted"
import * as Schedule from "effect/Schedule"
import { Database, type DatabaseOptions } from "../../src/Database.js"
import { DatabaseError } from "../../src/Errors.js"
import { Settings, type SettingsShape } from "../../src/Settings.js"
import { eventually } from "../support/eventually.js"
import { freshDatabase, privatePostgres } from "../support/Servers.js"
import { sqlClient } from "../support/Sql.js"

const settingsOf = (databaseUrl: () => string): Layer.Layer<Settings> =>
  Layer.succeed(Settings, {
    databaseUrl: Effect.sync(() => Redacted.make(databaseUrl()))
  } as Partial<SettingsShape> as SettingsShape)

const openDatabase = (databaseUrl: () => string, options: Partial<DatabaseOptions> = {}) =>
  Effect.map(Layer.build(Layer.provide(Database.layerWith(options), settingsOf(databaseUrl))), (context) => ({
    ...Context.get(context, Database),
    sql: Context.get(context, SqlClient.SqlClient)
  }))

const timed = <A, E, R>(effect: Effect.Effect<A, E, R>) =>
  Effect.map(Effect.timed(Effect.either(effect)), ([duration, result]) => ({
    millis: Duration.toMillis(duration),
    error: result._tag === "Left" ? result.left : undefined
  }))

const assertKind = (error: unknown, kind: DatabaseError["kind"]): DatabaseError => {
  if (!(error instanceof DatabaseError)) return assert.fail(`no DatabaseError but ${String(error)}`)
  assert.strictEqual(error.kind, kind, error.message)
  return error
}

describe("a transaction", () => {
  it.scopedLive("commits all of its body or nothing of it", () =>
    Effect.gen(function* () {
      const { url } = yield* freshDatabase
      const { query, sql, transaction } = yield* openDatabase(() => url)
      yield* sql`create table things (n int)`
      yield* transaction("two", Effect.zip(sql`insert into things values (1)`, sql`insert into things values (2)`))
      const failed = yield* Effect.flip(
        transaction("three and a failure", Effect.zipRight(sql`insert into things values (3)`, Effect.fail("mine")))
      )
      assert.strictEqual(failed, "mine")
      const rows = yield* query("read", sql<{ n: number }>`select n from things order by n`)
      assert.deepStrictEqual(rows, [{ n: 1 }, { n: 2 }])
    })
  )

  it.scopedLive("whose COMMIT fails is a typed error with its SQLSTATE, not a defect", () =>
    Effect.gen(function* () {
      const { url } = yield* freshDatabase
      const { sql, transaction } = yield* openDatabase(() => url)
      yield* sql`create table things (n int unique deferrable initially deferred)`
      const error = yield* Effect.flip(transaction("twice", sql`insert into things values (1), (1)`))
      assert.strictEqual(assertKind(error, "refused").sqlState, "23505")
      assert.strictEqual(error.operation, "twice")
    })
  )

  it.scopedLive("that swallows the failure of a statement does not pass for committed", () =>
    Effect.gen(function* () {
      const { url } = yield* freshDatabase
      const { sql, transaction } = yield* openDatabase(() => url)
      const error = yield* Effect.flip(transaction("swallow", Effect.ignore(sql`select * from nowhere`)))
      assert.include(assertKind(error, "refused").reason, "rolled back")
    })
  )

  it.scopedLive("whose backend is killed fails with kind connection, between statements and within one", () =>
    Effect.gen(function* () {
      const { url } = yield* freshDatabase
      const admin = yield* sqlClient(url)
      const { query, sql, transaction } = yield* openDatabase(() => url)
      const kill = (pid: number) => admin.query("select pg_terminate_backend($1)", [pid])
      const ownPid = Effect.map(sql<{ pid: number }>`select pg_backend_pid() as pid`, ([row]) => row?.pid ?? 0)

      const endOwnBackend = Effect.gen(function* () {
        const pid = yield* ownPid
        yield* kill(pid)
        yield* eventually(
          "the end of the backend",
          admin.query("select 1 from pg_stat_activity where pid = $1", [pid]),
          (rows) => rows.length === 0
        )
      })
      assertKind(
        yield* Effect.flip(transaction("between", Effect.zipRight(endOwnBackend, sql`select 1`))),
        "connection"
      )
      const own = yield* Effect.flip(transaction("own", Effect.zipRight(endOwnBackend, Effect.fail("mine"))))
      assert.strictEqual(own, "mine", "a ROLLBACK that fails hides the body's failure")

      const within = yield* Effect.flip(
        transaction(
          "within",
          Effect.gen(function* () {
            const pid = yield* ownPid
            const killer = eventually(
              "the sleep",
              admin.query("select 1 from pg_stat_activity where pid = $1 and wait_event = 'PgSleep'", [pid]),
              (rows) => rows.length === 1
            ).pipe(Effect.zipRight(kill(pid)))
            yield* Effect.zip(sql`select pg_sleep(20)`, killer, { concurrent: true })
          })
        )
      )
      assertKind(within, "connection")
      assert.deepStrictEqual(yield* query("after", sql`select 1 as n`), [{ n: 1 }])
    })
  )

  it.scopedLive("that is interrupted in a statement returns at once, and its client is not used again", () =>
    Effect.gen(function* () {
      const { url } = yield* freshDatabase
      const admin = yield* sqlClient(url)
      const { query, sql, transaction } = yield* openDatabase(() => url, { maxConnections: 1 })
      yield* sql`create table things (n int)`
      const running = yield* Effect.fork(
        transaction("slow", Effect.zipRight(sql`insert into things values (1)`, sql`select pg_sleep(20)`))
      )
      const sleeping = "select 1 from pg_stat_activity where wait_event = 'PgSleep' and datname = current_database()"
      yield* eventually("the sleep", admin.query(sleeping), (rows) => rows.length === 1)
      const [took] = yield* Effect.timed(Fiber.interrupt(running))
      assert.isBelow(Duration.toMillis(took), 1500)
      assert.deepStrictEqual(yield* query("after", sql`select n from things`), [])
      yield* eventually("the server gives up as well", admin.query(sleeping), (rows) => rows.length === 0)
    })
  )
})

describe("the pool", () => {
  it.scopedLive("starts with the server down, and works once it is up", () =>
    Effect.gen(function* () {
      const server = yield* privatePostgres()
      yield* server.stop
      const { query, sql } = yield* openDatabase(() => server.url)
      assertKind(yield* Effect.flip(query("down", sql`select 1`)), "connection")
      yield* server.start
      assert.deepStrictEqual(yield* query("up", sql`select 1 as n`), [{ n: 1 }])
      // Its idle connection died meanwhile: a statement may find the server's goodbye still unread.
      yield* server.stop
      yield* server.start
      const again = Effect.retry(query("up again", sql`select 1 as n`), {
        schedule: Schedule.spaced("100 millis"),
        times: 10
      })
      assert.deepStrictEqual(yield* again, [{ n: 1 }])
    })
  )

  it.scopedLive(
    "a frozen server hangs nobody: statements, transactions, new connections and the closing end in time",
    () =>
      Effect.gen(function* () {
        const server = yield* privatePostgres()
        yield* Effect.gen(function* () {
          const { query, sql, transaction } = yield* openDatabase(() => `${server.url}?connect_timeout=1`, {
            maxConnections: 2,
            statementTimeout: Duration.seconds(1),
            lendTimeout: Duration.seconds(1)
          })
          const use = query("use", sql`select 1`)
          yield* Effect.zip(use, use, { concurrent: true })
          yield* server.pause
          // The statement's second and five of grace, on the connections that were open.
          const results = yield* Effect.all([timed(use), timed(transaction("tx", sql`select 1`)), timed(use)], {
            concurrency: "unbounded"
          })
          for (const { error, millis } of results) {
            assertKind(error, "connection")
            assert.isBelow(millis, 8000)
          }
          assert.isBelow(results[2].millis, 2500)
          // Those are gone; a new one is not to be had either.
          const fresh = yield* timed(use)
          assertKind(fresh.error, "connection")
          assert.isBelow(fresh.millis, 3000)
          yield* server.resume
          yield* eventually("an answer", Effect.isSuccess(use), (answered) => answered)
          yield* server.pause
        }).pipe(
          Effect.scoped,
          Effect.timed,
          Effect.tap(([took]) => assert.isBelow(Duration.toMillis(took), 25_000))
        )
        yield* server.resume
      })
  )

  it.scopedLive("closes within two seconds while the server is frozen", () =>
    Effect.gen(function* () {
      const server = yield* privatePostgres()
      let closing = 0
      yield* Effect.gen(function* () {
        const { sql } = yield* openDatabase(() => server.url)
        yield* Effect.all([sql`select 1`, sql`select 1`, sql`select 1`], { concurrency: "unbounded" })
        yield* server.pause
        closing = performance.now()
      }).pipe(Effect.scoped)
      assert.isBelow(performance.now() - closing, 2000)
      yield* server.resume
    })
  )

  it.scopedLive("all taken: the next one is told so in time, and gets one as soon as one is free", () =>
    Effect.gen(function* () {
      const { url } = yield* freshDatabase
      const { query, sql, transaction } = yield* openDatabase(() => url, {
        maxConnections: 1,
        lendTimeout: Duration.millis(500)
      })
      const holder = yield* Effect.fork(transaction("hold", sql`select pg_sleep(0.9)`))
      yield* Effect.yieldNow()
      // A transaction waits uninterruptibly, and its wait must end all the same.
      const late = yield* Effect.all([timed(query("late", sql`select 1`)), timed(transaction("late", sql`select 1`))], {
        concurrency: "unbounded"
      })
      for (const { error } of late) assert.include(assertKind(error, "connection").reason, "none of 1 was free")
      assert.deepStrictEqual(yield* query("in time", sql`select 1 as n`), [{ n: 1 }])
      yield* Fiber.join(holder)
    })
  )

  it.scopedLive("a longer statement than allowed is cancelled by the server, and the connection stays", () =>
    Effect.gen(function* () {
      const { url } = yield* freshDatabase
      const { query, sql } = yield* openDatabase(() => url, {
        maxConnections: 1,
        statementTimeout: Duration.millis(300)
      })
      const pid = query("pid", sql<{ pid: number }>`select pg_backend_pid() as pid`)
      const before = yield* pid
      const error = yield* Effect.flip(query("slow", sql`select pg_sleep(10)`))
      assert.strictEqual(assertKind(error, "conflict").sqlState, "57014")
      assert.deepStrictEqual(yield* pid, before)
    })
  )

  it.scopedLive("a rotated password is read at the next connect", () =>
    Effect.gen(function* () {
      const server = yield* privatePostgres({ password_encryption: "scram-sha-256" })
      const admin = yield* sqlClient(server.url)
      const [row] = yield* admin.query<{ hba_file: string }>("show hba_file")
      writeFileSync(row?.hba_file ?? "", "host all app 127.0.0.1/32 scram-sha-256\nhost all all 127.0.0.1/32 trust\n")
      yield* admin.query("select pg_reload_conf()")
      yield* admin.query("create role app login password 'one:#1'")

      let secret = "one:#1"
      const url = () => server.url.replace("postgres@", `app:${encodeURIComponent(secret)}@`)
      const { query, sql } = yield* openDatabase(url, { maxConnections: 1 })
      const who = query("who", sql`select current_user::text as name`)
      yield* eventually("the new rule", Effect.either(who), (answer) => answer._tag === "Right")

      yield* admin.query("alter role app password 'two@/2'")
      yield* admin.query("select pg_terminate_backend(pid) from pg_stat_activity where usename = 'app'")
      const refused = yield* eventually(
        "the end",
        Effect.either(who),
        (answer) => answer._tag === "Left" && answer.left.kind === "refused"
      )
      assert.notInclude(JSON.stringify(refused), "one")
      secret = "two@/2"
      assert.deepStrictEqual(yield* who, [{ name: "app" }])
    })
  )
})
