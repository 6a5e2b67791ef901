/** Passwords that change on the server and in the file, while the service runs. */
import * as Fs from "node:fs"
import * as Path from "node:path"
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import { inject } from "vitest"
import { consume } from "../../../dev/Consumer.js"
import { allProcessed } from "../../support/bridge.js"
import { brokerUser, setBrokerPassword } from "../../support/brokerUsers.js"
import { readableFolder } from "../../support/certificates.js"
import { eventually } from "../../support/eventually.js"
import { admit } from "../../support/postgresFiles.js"
import { freshVhost, migrate, privatePostgres } from "../../support/Servers.js"
import { startService } from "../../support/Service.js"
import { sqlClient } from "../../support/Sql.js"

/** The service as the role `relay` and a broker's user of its own, both with the password `first` from files. */
const rotating = Effect.gen(function* () {
  const folder = yield* readableFolder
  const server = yield* privatePostgres()
  yield* migrate(server.url)
  const sql = yield* sqlClient(server.url)
  yield* sql.query("create role relay login superuser password 'first'")
  yield* admit(sql, ["host all all 127.0.0.1/32 scram-sha-256"])
  const vhost = yield* freshVhost
  yield* brokerUser(vhost.name, "first", vhost.name)

  const databaseUrlFile = Path.join(folder, "database-url")
  const amqpUrlFile = Path.join(folder, "amqp-url")
  const writeDatabaseUrl = (password: string) =>
    Effect.sync(() =>
      Fs.writeFileSync(databaseUrlFile, `postgres://relay:${password}@127.0.0.1:${server.port}/postgres\n`)
    )
  const writeAmqpUrl = (password: string) =>
    Effect.sync(() =>
      Fs.writeFileSync(
        amqpUrlFile,
        `amqp://${vhost.name}:${password}@${new URL(inject("amqpUrl")).host}/${vhost.name}\n`
      )
    )
  yield* writeDatabaseUrl("first")
  yield* writeAmqpUrl("first")
  const service = yield* startService({ DATABASE_URL_FILE: databaseUrlFile, AMQP_URL_FILE: amqpUrlFile })
  yield* service.awaitReady()
  const consumer = yield* consume(vhost.url, "campaign_click_trigger")
  const emit = (body: string) => sql.query("select emit_event('campaign_click', $1::jsonb)", [body])
  return { consumer, emit, service, sql, vhost, writeAmqpUrl, writeDatabaseUrl }
})

const bodies = (messages: ReadonlyArray<{ readonly body: string }>) => messages.map(({ body }) => body)

describe("a password that is rotated without a restart", () => {
  it.scopedLive(
    "PostgreSQL's: the old one is refused and told, the new one from the file is taken, no event is lost",
    () =>
      Effect.gen(function* () {
        const { consumer, emit, service, sql, writeDatabaseUrl } = yield* rotating
        yield* sql.query("alter role relay password 'second'")
        // Whoever is connected stays so: nothing happens before a session ends.
        yield* emit("1")
        assert.deepStrictEqual(bodies(yield* consumer.take(1, "10 seconds")), ["1"])
        yield* allProcessed(sql)
        yield* sql.query("select pg_terminate_backend(pid) from pg_stat_activity where usename = 'relay'")
        const { message } = yield* service.awaitLog(({ message }) => message.startsWith("LISTEN refused"))
        assert.match(message, /password authentication failed.*the file that DATABASE_URL_FILE names/)
        yield* emit("2")
        yield* writeDatabaseUrl("second")
        yield* service.awaitReady()
        yield* emit("3")
        const later = new Set(bodies(yield* consumer.take(2, "10 seconds")))
        assert.deepStrictEqual([...later].sort(), ["2", "3"])
        assert.notInclude(service.output(), "first@")
      })
  )

  it.scopedLive("RabbitMQ's: the same", () =>
    Effect.gen(function* () {
      const { consumer, emit, service, sql, vhost, writeAmqpUrl } = yield* rotating
      yield* setBrokerPassword(vhost.name, "second")
      yield* emit("1")
      assert.deepStrictEqual(bodies(yield* consumer.take(1, "10 seconds")), ["1"])
      yield* allProcessed(sql)
      const ours = yield* eventually(
        "the service's connection in the broker's list",
        Effect.map(vhost.api.connections, (all) => all.filter(({ user }) => user === vhost.name)),
        (all) => all.length > 0
      )
      for (const { name } of ours) yield* vhost.api.closeConnection(name)
      const { message } = yield* service.awaitLog(({ message }) => message.includes("ACCESS_REFUSED"))
      assert.include(message, "the file that AMQP_URL_FILE names")
      yield* emit("2")
      yield* writeAmqpUrl("second")
      yield* service.awaitReady()
      yield* emit("3")
      assert.deepStrictEqual(bodies(yield* consumer.take(2, "10 seconds")).sort(), ["2", "3"])
    })
  )
})
