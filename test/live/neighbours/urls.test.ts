/** Names and passwords of every shape in both URLs, and servers at the other loopback address. */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import { inject } from "vitest"
import { consume } from "../../../dev/Consumer.js"
import { freePort, isFree } from "../../../dev/LoopbackPorts.js"
import * as ManagementApi from "../../../dev/ManagementApi.js"
import { brokerUser } from "../../support/brokerUsers.js"
import { amqpOutcome, askPostgres } from "../../support/connecting.js"
import { admit } from "../../support/postgresFiles.js"
import { migrate, privatePostgres, privateRabbitMq } from "../../support/Servers.js"
import { runCommand, startService } from "../../support/Service.js"
import { sqlClient } from "../../support/Sql.js"

const awkward = `:/?#[]@!$&'()*+,;=% "\\<>^\`{|}~äöüßé`

/** Every byte escaped, as the strictest tools write it; `encodeURIComponent` leaves some alone. */
const escapeAll = (text: string): string =>
  [...Buffer.from(text)].map((byte) => `%${byte.toString(16).toUpperCase().padStart(2, "0")}`).join("")

const quoted = (name: string): string => `"${name.replaceAll('"', '""')}"`
const literal = (text: string): string => `E'${text.replaceAll("\\", "\\\\").replaceAll("'", "\\'")}'`

describe("characters that need escaping", () => {
  it.scopedLive("in user, password and database, in user, password and vhost: connects, and carries an event", () =>
    Effect.gen(function* () {
      const server = yield* privatePostgres()
      const admin = yield* sqlClient(server.url)
      yield* admin.query(`create role ${quoted(awkward)} login superuser password ${literal(`pass${awkward}`)}`)
      yield* admin.query(`create database ${quoted(awkward)}`)
      yield* admit(admin, ["host all all 127.0.0.1/32 scram-sha-256"])

      const vhost = `v${process.pid}${awkward}`
      const api = ManagementApi.make(inject("managementUrl"), vhost)
      yield* Effect.acquireRelease(api.createVhost, () => Effect.ignoreLogged(api.deleteVhost))
      const user = `u${process.pid}${awkward}`
      yield* brokerUser(user, `pass${awkward}`, vhost)
      const amqp = new URL(inject("amqpUrl"))
      const consumer = yield* consume(`${amqp.href}/${encodeURIComponent(vhost)}`, "campaign_click_trigger")

      for (const [n, encode] of [encodeURIComponent, escapeAll].entries()) {
        yield* Effect.scoped(
          Effect.gen(function* () {
            const env = {
              DATABASE_URL: `postgres://${encode(awkward)}:${encode(`pass${awkward}`)}@127.0.0.1:${server.port}/${encode(awkward)}`,
              AMQP_URL: `amqp://${encode(user)}:${encode(`pass${awkward}`)}@${amqp.host}/${encode(vhost)}`
            }
            assert.strictEqual((yield* runCommand(env, ["migrate"])).code, 0)
            const service = yield* startService(env)
            yield* service.awaitReady()
            yield* askPostgres(env.DATABASE_URL, `select emit_event('campaign_click', '${n}')`)
            assert.strictEqual((yield* consumer.take(1, "10 seconds"))[0]?.body, `${n}`)
            yield* service.kill("SIGTERM")
            assert.strictEqual((yield* service.exited()).code, 0)
            assert.notInclude(service.output(), "pass:")
            assert.notInclude(service.output(), encode(`pass${awkward}`))
          })
        )
      }
    })
  )

  it.scopedLive("the vhost is / without a path, with a bare slash, and as %2F", () =>
    Effect.gen(function* () {
      const base = inject("amqpUrl")
      for (const path of ["", "/", "//", "/%2F", "/%2f"]) {
        assert.strictEqual(yield* amqpOutcome(`${base}${path}`), "connected", path)
      }
      const missing = /^AMQP connect: the broker refuses the vhost: it does not exist/
      for (const path of ["/nowhere", "/%252F"]) {
        assert.match(yield* amqpOutcome(`${base}${path}`), missing, path)
      }
    })
  )

  it.scopedLive("a wrong password on either side says where to look for the right one", () =>
    Effect.gen(function* () {
      const amqp = new URL(inject("amqpUrl"))
      assert.match(
        yield* amqpOutcome(`amqp://guest:wrong@${amqp.host}`),
        /ACCESS.REFUSED.*Check user and password in AMQP_URL, or in the file that AMQP_URL_FILE names/
      )
      const server = yield* privatePostgres()
      const admin = yield* sqlClient(server.url)
      yield* admin.query("create role app login password 'right'")
      yield* admit(admin, ["host all all 127.0.0.1/32 scram-sha-256"])
      const service = yield* startService({
        DATABASE_URL: `postgres://app:wr0ng@127.0.0.1:${server.port}/postgres`,
        AMQP_URL: amqp.href
      })
      const { message } = yield* service.awaitLog(({ message }) => message.startsWith("LISTEN refused"))
      assert.match(message, /authentication failed for user "app"\. Check the password in DATABASE_URL/)
      assert.notInclude(service.output(), "wr0ng")
    })
  )
})

/** Known before the tests are collected: a skipped one is reported as skipped. */
const hasIpv6 = await Effect.runPromise(isFree(0, "::1"))

describe("IPv6", () => {
  it.scopedLive.skipIf(!hasIpv6)("both servers at [::1] carry an event (skipped on a machine without IPv6)", () =>
    Effect.gen(function* () {
      const server = yield* privatePostgres({ listen_addresses: "::1,127.0.0.1" })
      yield* migrate(server.url)
      const port = yield* freePort
      const broker = yield* privateRabbitMq({ "listeners.tcp.2": `::1:${port}` })
      const service = yield* startService({
        DATABASE_URL: `postgres://postgres@[::1]:${server.port}/postgres`,
        AMQP_URL: `amqp://guest:guest@[::1]:${port}`
      })
      yield* service.awaitReady()
      const consumer = yield* consume(broker.url, "campaign_click_trigger")
      const sql = yield* sqlClient(server.url)
      yield* sql.query("select emit_event('campaign_click', '6')")
      assert.strictEqual((yield* consumer.take(1, "10 seconds"))[0]?.body, "6")
      const [row] = yield* sql.query(
        "select bool_and(client_addr = '::1') as all from pg_stat_activity where application_name like 'pg-listener %'"
      )
      assert.isTrue(row?.["all"])
    })
  )
})
