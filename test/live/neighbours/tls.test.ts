/** TLS to both servers: what each way to ask for it gives, and what the error tells a person to do. */
import * as Fs from "node:fs"
import * as Path from "node:path"
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import { consume } from "../../../dev/Consumer.js"
import { freePort } from "../../../dev/LoopbackPorts.js"
import { type Certificate, makeAuthority, readableFolder } from "../../support/certificates.js"
import { amqpOutcome, postgresEncryption } from "../../support/connecting.js"
import { admit, putFile, reload } from "../../support/postgresFiles.js"
import {
  freshDatabase,
  freshVhost,
  migrate,
  migratedDatabase,
  privatePostgres,
  privateRabbitMq
} from "../../support/Servers.js"
import { startService } from "../../support/Service.js"
import { type SqlClient, sqlClient } from "../../support/Sql.js"

const authorities = Effect.map(readableFolder, (folder) => ({
  folder,
  good: makeAuthority(folder, "good"),
  stranger: makeAuthority(folder, "stranger")
}))

const switchTlsOn = (sql: SqlClient, certificate: Certificate, clientsFrom: string) =>
  Effect.gen(function* () {
    yield* putFile(sql, "server.crt", Fs.readFileSync(certificate.certFile, "utf8"))
    yield* putFile(sql, "server.key", Fs.readFileSync(certificate.keyFile, "utf8"))
    yield* putFile(sql, "clients.crt", Fs.readFileSync(clientsFrom, "utf8"))
    yield* sql.query("alter system set ssl_ca_file = 'clients.crt'")
    yield* sql.query("alter system set ssl = on")
    yield* reload(sql)
  })

/** PostgreSQL with a certificate of the good authority, for the name `localhost` alone. */
const postgresWithTls = Effect.gen(function* () {
  const { folder, good, stranger } = yield* authorities
  const server = yield* privatePostgres()
  const sql = yield* sqlClient(server.url)
  yield* switchTlsOn(sql, good.issue("server", ["DNS:localhost"]), good.certFile)
  const url = (host: string, parameters: string, user = "postgres") =>
    `postgres://${user}@${host}:${server.port}/postgres?${parameters}`
  return { folder, good, stranger, server, sql, url }
})

const noAuthority = /^refused: .*sslrootcert/
const noName = /^refused: .*altnames.*verify-ca/
const noTls = /^refused: .*does not support SSL.*ssl = on/
const incomplete = /^refused: .*sslmode=verify-ca without sslrootcert\. Name the authority's file/

/** What each `sslmode` gives, as in libpq. A file of an authority is looked at whenever one is named. */
const postgresTable: ReadonlyArray<
  readonly [
    sslmode: string,
    cells: {
      readonly noCa: RegExp
      readonly goodCa: RegExp
      readonly wrongCa: RegExp
      readonly goodCaWrongName: RegExp
      readonly serverWithoutTls: RegExp
    }
  ]
> = (() => {
  const tls = /^tls$/
  const plain = /^plain$/
  return [
    ["disable", { noCa: plain, goodCa: plain, wrongCa: plain, goodCaWrongName: plain, serverWithoutTls: plain }],
    ["allow", { noCa: plain, goodCa: plain, wrongCa: plain, goodCaWrongName: plain, serverWithoutTls: plain }],
    ["prefer", { noCa: tls, goodCa: tls, wrongCa: plain, goodCaWrongName: tls, serverWithoutTls: plain }],
    ["require", { noCa: tls, goodCa: tls, wrongCa: noAuthority, goodCaWrongName: tls, serverWithoutTls: noTls }],
    [
      "verify-ca",
      { noCa: incomplete, goodCa: tls, wrongCa: noAuthority, goodCaWrongName: tls, serverWithoutTls: noTls }
    ],
    [
      "verify-full",
      { noCa: noAuthority, goodCa: tls, wrongCa: noAuthority, goodCaWrongName: noName, serverWithoutTls: noTls }
    ]
  ]
})()

describe("TLS to PostgreSQL", () => {
  it.scopedLive("each sslmode encrypts and verifies as far as libpq does, and else says what to do", () =>
    Effect.gen(function* () {
      const { good, stranger, url } = yield* postgresWithTls
      const { url: withoutTls } = yield* freshDatabase
      for (const [mode, cells] of postgresTable) {
        const goodCa = `sslmode=${mode}&sslrootcert=${good.certFile}`
        const outcomes: ReadonlyArray<readonly [keyof typeof cells, string]> = [
          ["noCa", url("localhost", `sslmode=${mode}`)],
          ["goodCa", url("localhost", goodCa)],
          ["wrongCa", url("localhost", `sslmode=${mode}&sslrootcert=${stranger.certFile}`)],
          ["goodCaWrongName", url("127.0.0.1", goodCa)],
          ["serverWithoutTls", `${withoutTls}?${goodCa}`]
        ]
        for (const [cell, at] of outcomes) {
          assert.match(yield* postgresEncryption(at), cells[cell], `${mode}, ${cell}`)
        }
      }
      assert.match(yield* postgresEncryption(url("localhost", "sslrootcert=system")), noAuthority)
    })
  )

  it.scopedLive(
    "a server that takes us neither with TLS nor without gives both reasons, and the advice for the first",
    () =>
      Effect.gen(function* () {
        const { sql, stranger, url } = yield* postgresWithTls
        yield* sql.query("create role app login")
        yield* admit(sql, ["hostssl all app 127.0.0.1/32 trust"])
        const plainOnly = yield* postgresEncryption(url("127.0.0.1", "sslmode=disable", "app"))
        assert.match(
          plainOnly,
          /no pg_hba.conf entry .*no encryption\. Write sslmode=require or stricter.*SQLSTATE 28000/
        )
        const neither = yield* postgresEncryption(
          url("127.0.0.1", `sslmode=prefer&sslrootcert=${stranger.certFile}`, "app")
        )
        assert.match(
          neither,
          /^refused: .*certificate.*; no pg_hba.conf entry .*no encryption\. Name the file of the auth/
        )
        yield* sql.query("create role nobody_admits login")
        assert.match(
          yield* postgresEncryption(url("127.0.0.1", "", "nobody_admits")),
          /SSL encryption; no pg_hba.conf entry .*no encryption\. Add a line for this connection to pg_hba.conf/
        )
      })
  )

  it.scopedLive("a server that asks for a client's certificate gets sslcert and sslkey, and the error names them", () =>
    Effect.gen(function* () {
      const { good, sql, stranger, url } = yield* postgresWithTls
      yield* sql.query("create role app login")
      yield* admit(sql, ["hostssl all app 127.0.0.1/32 trust clientcert=verify-full"])
      const by = ({ certFile, keyFile }: Certificate) =>
        postgresEncryption(url("127.0.0.1", `sslmode=require&sslcert=${certFile}&sslkey=${keyFile}`, "app"))
      assert.strictEqual(yield* by(good.issue("app")), "tls")
      const asked = /^refused: .*Give a certificate that the server takes, and its key, in sslcert and sslkey/
      assert.match(yield* postgresEncryption(url("127.0.0.1", "sslmode=require", "app")), asked)
      assert.match(yield* by(stranger.issue("app")), asked)
      // For another role: PostgreSQL tells the client no more than this.
      assert.match(yield* by(good.issue("other")), /^refused: .*authentication failed for user "app"/)
      const { keyFile } = good.issue("app")
      assert.match(yield* by({ ...good.issue("app"), keyFile }), /^refused: .*key values mismatch/)
      assert.match(yield* by({ certFile: good.certFile, keyFile: "/nowhere" }), /sslkey that can't be read \(ENOENT\)/)
    })
  )

  it.scopedLive(
    "a wrong authority's file is told and tried again, and its replacement is taken without a restart",
    () =>
      Effect.gen(function* () {
        const { folder, good, server, sql, stranger, url } = yield* postgresWithTls
        const rootCert = Path.join(folder, "root.crt")
        Fs.copyFileSync(stranger.certFile, rootCert)
        yield* migrate(server.url)
        const vhost = yield* freshVhost
        const service = yield* startService({
          DATABASE_URL: url("localhost", `sslmode=verify-full&sslrootcert=${rootCert}`),
          AMQP_URL: vhost.url
        })
        const { message } = yield* service.awaitLog(({ message }) => message.startsWith("LISTEN refused"))
        assert.include(message, "sslrootcert")
        Fs.copyFileSync(good.certFile, rootCert)
        yield* service.awaitReady()
        const [row] = yield* sql.query(
          `select count(*)::int as sessions, bool_and(ssl) as tls from pg_stat_activity join pg_stat_ssl using (pid)
         where application_name like 'pg-listener %'`
        )
        assert.isAtLeast(Number(row?.["sessions"]), 2)
        assert.isTrue(row?.["tls"])
      })
  )
})

describe("TLS to RabbitMQ", () => {
  /** A broker with a certificate of the good authority for `localhost` alone, that wants one of the client as well. */
  const brokerWithTls = Effect.gen(function* () {
    const { folder, good, stranger } = yield* authorities
    const tlsPort = yield* freePort
    const { certFile, keyFile } = good.issue("broker", ["DNS:localhost"])
    const broker = yield* privateRabbitMq({
      "listeners.ssl.1": `127.0.0.1:${tlsPort}`,
      "ssl_options.cacertfile": good.certFile,
      "ssl_options.certfile": certFile,
      "ssl_options.keyfile": keyFile,
      "ssl_options.verify": "verify_peer",
      "ssl_options.fail_if_no_peer_cert": "true"
    })
    const client = good.issue("client")
    const own = `certfile=${client.certFile}&keyfile=${client.keyFile}`
    const url = (host: string, parameters: string) => `amqps://guest:guest@${host}:${tlsPort}?${parameters}`
    return { folder, good, stranger, client, own, broker, tlsPort, url }
  })

  it.scopedLive("the broker is verified unless verify_none says not to; and each refusal says what to do", () =>
    Effect.gen(function* () {
      const { broker, client, folder, good, own, stranger, tlsPort, url } = yield* brokerWithTls
      const both = Path.join(folder, "both.pem")
      Fs.writeFileSync(both, `${Fs.readFileSync(client.certFile, "utf8")}${Fs.readFileSync(client.keyFile, "utf8")}`)
      const stray = stranger.issue("client")
      const connected = /^connected$/
      const noAuthority = /Name the file of the authority .* in AMQP_URL's cacertfile, or in NODE_EXTRA_CA_CERTS/
      const noName = /altnames.*server_name_indication/
      const noClient = /Give a certificate that the broker takes, and its key, in AMQP_URL's certfile and keyfile/
      const ca = `cacertfile=${good.certFile}`
      const table: ReadonlyArray<readonly [what: string, url: string, outcome: RegExp]> = [
        ["good CA", url("localhost", `${ca}&${own}`), connected],
        ["good CA, verify_peer said", url("localhost", `${ca}&${own}&verify=verify_peer`), connected],
        ["no CA", url("localhost", own), noAuthority],
        ["wrong CA", url("localhost", `cacertfile=${stranger.certFile}&${own}`), noAuthority],
        [
          "wrong CA, verify_none",
          url("localhost", `cacertfile=${stranger.certFile}&${own}&verify=verify_none`),
          connected
        ],
        ["wrong name", url("127.0.0.1", `${ca}&${own}`), noName],
        ["wrong name, verify_none", url("127.0.0.1", `${own}&verify=verify_none`), connected],
        ["the right name beside it", url("127.0.0.1", `${ca}&${own}&server_name_indication=localhost`), connected],
        ["a wrong name beside it", url("localhost", `${ca}&${own}&server_name_indication=other`), noName],
        ["certificate and key in one file", url("localhost", `${ca}&certfile=${both}`), connected],
        ["no client certificate", url("localhost", ca), noClient],
        ["a stranger's", url("localhost", `${ca}&certfile=${stray.certFile}&keyfile=${stray.keyFile}`), noClient],
        [
          "another key",
          url("localhost", `${ca}&certfile=${client.certFile}&keyfile=${stray.keyFile}`),
          /key values mismatch/
        ],
        ["no such file", url("localhost", "cacertfile=/nowhere"), /cacertfile that can't be read \(ENOENT\)/],
        ["TLS at the plain port", broker.url.replace("amqp:", "amqps:"), /5671/],
        [
          "plain at the port for TLS",
          `amqp://guest:guest@127.0.0.1:${tlsPort}`,
          /speaks TLS at this port, write amqps:/
        ]
      ]
      for (const [what, at, outcome] of table) assert.match(yield* amqpOutcome(at), outcome, what)
    })
  )

  it.scopedLive(
    "a wrong authority's file is told and tried again; its replacement, or NODE_EXTRA_CA_CERTS, carries events",
    () =>
      Effect.gen(function* () {
        const { broker, folder, good, own, stranger, url } = yield* brokerWithTls
        const database = yield* migratedDatabase
        const sql = yield* sqlClient(database.url)
        const caFile = Path.join(folder, "root.crt")
        Fs.copyFileSync(stranger.certFile, caFile)
        const consumer = yield* consume(broker.url, "campaign_click_trigger")
        yield* Effect.scoped(
          Effect.gen(function* () {
            const service = yield* startService({
              DATABASE_URL: database.url,
              AMQP_URL: url("localhost", `cacertfile=${caFile}&${own}`)
            })
            const line = yield* service.awaitLog(({ message }) => message.includes("cacertfile"))
            assert.strictEqual(line.level, "warn")
            yield* sql.query("select emit_event('campaign_click', '1')")
            Fs.copyFileSync(good.certFile, caFile)
            assert.deepStrictEqual(
              (yield* consumer.take(1, "20 seconds")).map(({ body }) => body),
              ["1"]
            )
            // Killed, it might publish the event once more.
            yield* service.kill("SIGTERM")
            yield* service.exited()
          })
        )
        yield* startService({
          DATABASE_URL: database.url,
          AMQP_URL: url("localhost", own),
          NODE_EXTRA_CA_CERTS: good.certFile
        })
        yield* sql.query("select emit_event('campaign_click', '2')")
        assert.deepStrictEqual(
          (yield* consumer.take(1, "20 seconds")).map(({ body }) => body),
          ["2"]
        )
      })
  )
})
