/** Commands where no service runs: what `check` and `status` say of a set-up that is broken, and what a stop means. */
import { assert, describe, layer } from "@effect/vitest"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import { armed, sayWhenArmed } from "../support/armed.js"
import { eventually } from "../support/eventually.js"
import { admit } from "../support/postgresFiles.js"
import { freshVhost, migrate, privatePostgres } from "../support/Servers.js"
import { runCommand, startService } from "../support/Service.js"
import { type SqlClient, sqlClient } from "../support/Sql.js"

class Lab extends Context.Tag("test/Lab")<
  Lab,
  {
    readonly sql: SqlClient
    /** The role `relay`, which needs the password `right` and may do nothing yet; `postgres` needs none. */
    readonly urlOf: (user: string) => string
    readonly env: Readonly<Record<string, string>>
  }
>() {
  static readonly layer = Layer.scoped(
    this,
    Effect.gen(function* () {
      const server = yield* privatePostgres()
      yield* migrate(server.url)
      const sql = yield* sqlClient(server.url)
      yield* sql.query("create role relay login password 'right'")
      yield* admit(sql, ["host all relay 127.0.0.1/32 scram-sha-256"])
      const vhost = yield* freshVhost
      const urlOf = (user: string) => `postgres://${user}@127.0.0.1:${server.port}/postgres`
      const env = { DATABASE_URL: urlOf("postgres"), AMQP_URL: vhost.url, PG_LISTENER_ROUTES: "order.paid=orders" }
      return { sql, urlOf, env }
    })
  ).pipe(Layer.orDie)
}

interface Report {
  readonly checks: ReadonlyArray<{
    readonly what: string
    readonly result: string
    readonly detail: string
    readonly mend: string | null
  }>
}

const check = (env: Readonly<Record<string, string>>) =>
  Effect.map(runCommand(env, ["check", "--json"]), ({ code, output }) => {
    const { checks } = JSON.parse(output) as Report
    const of = (what: string) => checks.find((one) => one.what === what)
    const failed = checks.filter(({ result }) => result === "failed").map(({ what }) => what)
    return { code, failed, of }
  })

/** Runs a statement, and another one that undoes it when the scope closes. */
const during = (sql: SqlClient, statement: string, undo: string) =>
  Effect.acquireRelease(sql.query(statement), () => Effect.orDie(sql.query(undo)))

layer(Lab.layer, { excludeTestServices: true, timeout: "60 seconds" })((it) => {
  describe("check", () => {
    it.scoped("names the mend for a wrong password, and for a role without its grants", () =>
      Effect.gen(function* () {
        const { env, urlOf } = yield* Lab
        const [wrong, ungranted] = yield* Effect.all(
          [
            check({ ...env, DATABASE_URL: urlOf("relay:wrong") }),
            check({ ...env, DATABASE_URL: urlOf("relay:right") })
          ],
          { concurrency: 2 }
        )
        assert.deepStrictEqual([wrong.code, wrong.failed], [1, ["database connection"]])
        assert.match(wrong.of("database connection")?.detail ?? "", /^password authentication failed .*"relay"$/)
        assert.match(wrong.of("database connection")?.mend ?? "", /^Check the password in DATABASE_URL/)
        assert.deepInclude(wrong.of("grants"), { result: "not checked", detail: "no database connection" })
        assert.strictEqual(wrong.of("broker connection")?.result, "ok")

        assert.deepStrictEqual([ungranted.code, ungranted.failed], [1, ["grants"]])
        assert.strictEqual(ungranted.of("grants")?.mend, "Grant it what sql/roles/grants.sql lists for the relay")
        assert.strictEqual(ungranted.of("LISTEN")?.result, "ok")
      })
    )

    it.scoped("names an index and a function that somebody dropped, and a doorbell that rings for nobody", () =>
      Effect.gen(function* () {
        const { env, sql } = yield* Lab
        yield* during(
          sql,
          "alter index event_outbox_due rename to gone; alter function event_outbox_uuid_v7() rename to gone",
          "alter index gone rename to event_outbox_due; alter function gone() rename to event_outbox_uuid_v7"
        )
        yield* during(
          sql,
          "alter table event_outbox disable trigger event_outbox_doorbell",
          "alter table event_outbox enable trigger event_outbox_doorbell"
        )
        const { code, failed, of } = yield* check(env)
        assert.deepStrictEqual([code, failed], [1, ["indexes, views and functions", "doorbell"]])
        assert.deepInclude(of("indexes, views and functions"), {
          detail: "not there, or not valid: index event_outbox_due, function event_outbox_uuid_v7",
          mend: "Create them as in sql/0001_event_outbox.sql"
        })
        assert.match(of("doorbell")?.detail ?? "", /^the doorbell is disabled: .* enable trigger/)
        assert.match(of("doorbell")?.mend ?? "", /ring on event_outbox, or drop it/)
      })
    )

    it.scoped(
      "of a good set-up finds nothing to mend, also without a doorbell, as it is for polls alone: a note says so",
      () =>
        Effect.gen(function* () {
          const { env, sql } = yield* Lab
          yield* during(
            sql,
            "drop trigger event_outbox_doorbell on event_outbox",
            `create trigger event_outbox_doorbell after insert on event_outbox
           for each statement execute function event_outbox_doorbell('event_outbox')`
          )
          const { code, failed, of } = yield* check(env)
          assert.deepStrictEqual([code, failed], [0, []])
          assert.deepInclude(of("doorbell"), {
            result: "note",
            detail: "no doorbell: rows are found at the poll, every 5s"
          })
        })
    )
  })

  describe("status", () => {
    it.scoped("ends with exit code 3 when no relay listens or an event is old, and with 1 when it can't tell", () =>
      Effect.gen(function* () {
        const { env, sql, urlOf } = yield* Lab
        yield* during(
          sql,
          "insert into event_outbox (event_type, payload, created_at) values ('order.paid', '1', now() - interval '2 min')",
          "truncate event_outbox"
        )
        const [attention, unknown] = yield* Effect.all(
          [runCommand(env, ["status"]), runCommand({ ...env, DATABASE_URL: urlOf("relay:wrong") }, ["status"])],
          { concurrency: 2 }
        )
        assert.strictEqual(attention.code, 3, attention.output)
        assert.match(
          attention.output,
          /\nattention: an event has been pending for 12\d s\nattention: no relay listens\n$/
        )
        assert.strictEqual(unknown.code, 1)
        assert.match(unknown.output, /^status unknown: .*Check the password in DATABASE_URL/)
      })
    )
  })

  describe("a stop", () => {
    for (const [when, until] of [
      ["at work", "connected"],
      ["still loading", "armed"]
    ] as const) {
      it.scoped(`of migrate while it is ${when} ends with exit code 1: its work was not done`, () =>
        Effect.gen(function* () {
          const { env, sql } = yield* Lab
          // Another migrate has its turn, and ours waits for it.
          yield* during(
            sql,
            "select pg_advisory_lock(hashtextextended('pg-listener migrate public', 0))",
            "select pg_advisory_unlock_all()"
          )
          const migrating = yield* startService({ ...env, NODE_OPTIONS: sayWhenArmed }, ["migrate"])
          const sessions = sql.query("select from pg_stat_activity where application_name like 'pg-listener%'")
          yield* until === "armed"
            ? eventually("the first handler", Effect.sync(migrating.output), (output) => output.includes(armed))
            : eventually("a session", sessions, (found) => found.length > 0)
          yield* migrating.kill("SIGTERM")
          assert.deepStrictEqual(yield* migrating.exited("10 seconds"), { code: 1, signal: null }, migrating.output())
        })
      )
    }
  })
})
