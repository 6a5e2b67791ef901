/** A table that belongs to somebody else, and roles that hold what sql/roles/grants.sql gives and nothing more. */
import * as Fs from "node:fs"
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import { consume } from "../../../dev/Consumer.js"
import { allProcessed } from "../../support/bridge.js"
import { eventually } from "../../support/eventually.js"
import { freshDatabase, freshVhost } from "../../support/Servers.js"
import { runCommand, startService } from "../../support/Service.js"
import { type SqlClient, sqlClient } from "../../support/Sql.js"

const grantsFile = new URL("../../../sql/roles/grants.sql", import.meta.url)

/** The file as psql would send it. */
const grants = (names: Readonly<Record<string, string>>): string =>
  Object.entries(names).reduce(
    (text, [name, value]) => text.replaceAll(`:"${name}"`, `"${value}"`),
    Fs.readFileSync(grantsFile, "utf8")
  )

/** A database whose tables belong to `owner`, migrated by the owner; the grants are in force. */
const threeRoles = Effect.gen(function* () {
  const { name, url } = yield* freshDatabase
  const roles = { owner: `${name}_owner`, relay: `${name}_relay`, writer: `${name}_writer` }
  const admin = yield* sqlClient(url)
  for (const role of Object.values(roles)) {
    yield* Effect.acquireRelease(admin.query(`create role ${role} login`), () =>
      Effect.orDie(admin.query(`reassign owned by ${role} to postgres; drop owned by ${role}; drop role ${role}`))
    )
  }
  yield* admin.query(`alter database ${name} owner to ${roles.owner}; alter schema public owner to ${roles.owner}`)
  // As a strict DBA has it: nobody may run a function unless somebody says so.
  yield* admin.query(`alter default privileges for role ${roles.owner} revoke execute on functions from public`)
  const urlOf = (role: keyof typeof roles) => Object.assign(new URL(url), { username: roles[role] }).href
  const migrated = yield* runCommand({ DATABASE_URL: urlOf("owner") }, ["migrate"])
  assert.strictEqual(migrated.code, 0, migrated.output)
  yield* admin.query(grants({ schema: "public", relay: roles.relay, writer: roles.writer }))
  return { admin, roles, urlOf }
})

const denied = (sql: SqlClient, statement: string) =>
  Effect.map(Effect.flip(sql.query(statement)), (error) =>
    assert.strictEqual(error.sqlState, "42501", `${statement}: ${error.reason}`)
  )

describe("roles with the grants of sql/roles/grants.sql", () => {
  it.scopedLive("the writer's events reach the queue through the relay: settled, retried, dead, and cleaned up", () =>
    Effect.gen(function* () {
      const { admin, roles, urlOf } = yield* threeRoles
      const vhost = yield* freshVhost
      const service = yield* startService({
        DATABASE_URL: urlOf("relay"),
        AMQP_URL: vhost.url,
        PG_LISTENER_ROUTES: "good=good,order.*=good,bad=nowhere/key,live=good",
        PG_LISTENER_MAX_ATTEMPTS: "2",
        PG_LISTENER_CLEANUP_INTERVAL: "500 millis",
        PG_LISTENER_RETENTION: "1 millis"
      })
      yield* service.awaitReady()
      const consumer = yield* consume(vhost.url, "good")
      const writer = yield* sqlClient(urlOf("writer"))
      const [emitted] = yield* writer.query("select emit_event('good', '1', 'thing', '7') as id")
      assert.match(String(emitted?.["id"]), /^[0-9a-f-]{36}$/)
      yield* writer.query(
        `insert into event_outbox (id, event_type, payload, headers)
         values ('00000000-0000-7000-8000-000000000001', 'order.paid', '2', '{"a": "b"}')
         on conflict (id) do nothing returning id`
      )
      yield* writer.query("insert into outbox_events (event_type, payload) values ('order.made', '3') returning id")
      yield* writer.query("notify live, '4'")
      yield* writer.query("notify live, 'not JSON'")
      yield* writer.query("select emit_event('bad', '5')")
      const arrived = yield* consumer.take(4, "10 seconds")
      assert.deepStrictEqual(arrived.map(({ body }) => body).sort(), ["1", "2", "3", "4"])
      yield* allProcessed(admin)
      const dead = yield* admin.query("select payload::text from outbox_dead_letters order by seq")
      assert.deepStrictEqual(dead.map(({ payload }) => payload).sort(), [`"not JSON"`, "5"])
      yield* eventually(
        "the clean-up",
        admin.query("select from event_outbox where processed_at is not null"),
        (rows) => rows.length === 0
      )
      assert.notInclude(service.output(), "42501")
      assert.notInclude(service.output(), roles.owner)
    })
  )

  it.scopedLive("neither can do more than its work", () =>
    Effect.gen(function* () {
      const { urlOf } = yield* threeRoles
      const writer = yield* sqlClient(urlOf("writer"))
      for (const statement of [
        "select payload from event_outbox",
        "select * from outbox_dead_letters",
        "update event_outbox set payload = '0'",
        "update outbox_events set payload = '0'",
        "delete from event_outbox",
        "insert into event_outbox (channel, payload, processed_at) values ('a', '1', now())",
        "insert into event_outbox (channel, payload, live) values ('a', '1', true)",
        "truncate event_outbox",
        "drop table event_outbox",
        "insert into event_outbox_migrations values (99, 'x')"
      ]) {
        yield* denied(writer, statement)
      }
      const relay = yield* sqlClient(urlOf("relay"))
      for (const statement of [
        "update event_outbox set payload = '0'",
        "update event_outbox set channel = 'a'",
        "update event_outbox set seq = default",
        "truncate event_outbox",
        "drop table event_outbox",
        "drop trigger event_outbox_doorbell on event_outbox",
        "alter table event_outbox add column more int",
        "select setval('event_outbox_seq_seq', 1)",
        "insert into event_outbox_migrations values (99, 'x')"
      ]) {
        yield* denied(relay, statement)
      }
    })
  )

  it.scopedLive("a grant that is missing is named by the service, which goes on by itself once it is given", () =>
    Effect.gen(function* () {
      const { admin, roles, urlOf } = yield* threeRoles
      const vhost = yield* freshVhost
      // In the order in which the service looks: each hides those after it, or is told together with them.
      const missing: ReadonlyArray<readonly [grant: string, named: RegExp]> = [
        ["usage on schema public", /may not use schema "public"/],
        ["select on event_outbox_migrations", /may not read event_outbox_migrations/],
        ["select on event_outbox", /may not select, insert, delete, update \(processed_at\) in event_outbox/],
        ["insert on event_outbox", /may not insert, delete, update \(processed_at\) in event_outbox/],
        ["delete on event_outbox", /may not delete, update \(processed_at\) in event_outbox/],
        ["update (processed_at) on event_outbox", /may not update \(processed_at\) in event_outbox in schema "public"/],
        ["select on sequence event_outbox_seq_seq", /may not read the sequence of event_outbox\.seq/]
      ]
      yield* admin.query("revoke usage on schema public from public")
      for (const [grant] of missing) yield* admin.query(`revoke ${grant} from ${roles.relay}`)
      const service = yield* startService({ DATABASE_URL: urlOf("relay"), AMQP_URL: vhost.url })
      for (const [grant, named] of missing) {
        const { message } = yield* service.awaitLog(({ message }) => named.test(message))
        assert.include(message, roles.relay)
        assert.include(message, "sql/roles/grants.sql")
        yield* admin.query(`grant ${grant} to ${roles.relay}`)
      }
      yield* service.awaitReady()
    })
  )
})
