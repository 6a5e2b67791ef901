/** `AMQP_URL`: what is read, what is refused, and how it is given to amqplib. */
import { mkdtempSync, rmSync, writeFileSync } from "node:fs"
import { tmpdir } from "node:os"
import { join } from "node:path"
import { afterAll, assert, describe, it } from "@effect/vitest"
import * as Either from "effect/Either"
import * as Redacted from "effect/Redacted"
import { type AmqpUrl, amqpAdvice, amqpTarget, parseAmqpUrl } from "../src/internal/amqpTarget.js"

const folder = mkdtempSync(join(tmpdir(), "amqp-target-"))
afterAll(() => rmSync(folder, { recursive: true }))
const pem = join(folder, "some.pem")
writeFileSync(pem, "some pem")

const parsed = (url: string): AmqpUrl => Either.getOrThrowWith(parseAmqpUrl(url), (p) => new Error(p.problem))
const problem = (url: string): string => {
  const read = parseAmqpUrl(url)
  return Either.isLeft(read) ? `${read.left.problem}. ${read.left.mend}` : "none"
}
const target = (url: string) => Either.getOrThrowWith(amqpTarget(url), (p) => new Error(p.problem))

describe("who and where", () => {
  it("reads every part, decoded as UTF-8", () => {
    const url = parsed("amqp://m%C3%BCller:p%40%2F%25%C3%A4@[::1]:6000/shop%2Feu?heartbeat=3")
    assert.deepInclude(url, {
      tls: false,
      user: "müller",
      host: "::1",
      port: 6000,
      vhost: "shop/eu",
      heartbeatSeconds: 3
    })
    assert.strictEqual(url.password === undefined ? "" : Redacted.value(url.password), "p@/%ä")
  })

  it("leaves out what is not there, with RabbitMQ's defaults", () => {
    assert.deepInclude(parsed("amqp://h"), { user: undefined, port: 5672, vhost: "/", heartbeatSeconds: 10 })
    assert.deepInclude(parsed("amqps://h/"), { port: 5671, vhost: "/", verifyPeer: true, serverName: undefined })
    assert.strictEqual(parsed("amqp://h//").vhost, "/")
    assert.deepInclude(target("amqp://h").connect, { protocol: "amqp", hostname: "h", vhost: "%2F" })
    assert.notProperty(target("amqp://h").connect, "username")
    assert.strictEqual(target("amqp://u@h").connect.password, "")
  })

  it("refuses what it can't read or does not know, and never shows a part of it", () => {
    const refused: ReadonlyArray<readonly [url: string, RegExp]> = [
      ["amqp://u:hunter2%@h", /%25/],
      ["http://u:hunter2@h", /not an AMQP URL/],
      ["amqp://u:hunter2@h/a#b", /%23/],
      ["amqp://u:hunter2@h?heartbeat=soon", /Give it in seconds/],
      ["amqp://u:hunter2@h?heartbeat=%", /%25/],
      ["amqps://u:hunter2@h?cacertifle=/x", /not known\. There are heartbeat, cacertfile/],
      ["amqps://u:hunter2@h?verify=verify_maybe", /verify_peer or verify_none/],
      ["amqps://u:hunter2@h?server_name_indication=disable", /not supported/],
      ["amqp://u:hunter2@h?cacertfile=/x", /cacertfile without TLS\. Write amqps/],
      ["amqp://u:hunter2@h?verify=verify_none", /verify without TLS/]
    ]
    for (const [url, expected] of refused) {
      assert.match(problem(url), expected, url)
      assert.notInclude(problem(url), "hunter2")
    }
  })
})

describe("TLS", () => {
  it("is verified unless the URL says otherwise, with the files it names", () => {
    assert.deepStrictEqual(target("amqps://h").tls, { rejectUnauthorized: true })
    assert.deepStrictEqual(target("amqps://h?verify=verify_none").tls, { rejectUnauthorized: false })
    const all = `amqps://h?cacertfile=${pem}&certfile=${pem}&keyfile=${pem}&password=k%26y&server_name_indication=mq`
    assert.deepStrictEqual(target(all).tls, {
      rejectUnauthorized: true,
      ca: "some pem",
      cert: "some pem",
      key: "some pem",
      passphrase: "k&y",
      servername: "mq"
    })
  })

  it("a file that can't be read is named by its parameter", () => {
    const read = amqpTarget("amqps://h?certfile=/nowhere")
    assert.include(Either.isLeft(read) ? read.left.problem : "", "certfile that can't be read (ENOENT)")
  })
})

describe("advice", () => {
  const plain = { protocol: "amqp" }
  const failure = (message: string, code?: string) =>
    Object.assign(new Error(message), code === undefined ? {} : { code })
  it("is given for each fault of TLS, and for a refused login", () => {
    const advised: ReadonlyArray<readonly [Error, RegExp]> = [
      [failure("self-signed certificate in certificate chain", "SELF_SIGNED_CERT_IN_CHAIN"), /cacertfile/],
      [failure("unable to verify the first certificate", "UNABLE_TO_VERIFY_LEAF_SIGNATURE"), /cacertfile/],
      [failure("altnames", "ERR_TLS_CERT_ALTNAME_INVALID"), /server_name_indication/],
      [failure("certificate has expired", "CERT_HAS_EXPIRED"), /Renew/],
      [failure("wrong version number", "EPROTO"), /5671/],
      [failure("alert", "ERR_SSL_TLSV13_ALERT_CERTIFICATE_REQUIRED"), /certfile and keyfile/],
      [failure("403 (ACCESS-REFUSED)"), /AMQP_URL_FILE/],
      [failure("Socket closed abruptly during opening handshake"), /amqps/],
      [failure("read ECONNRESET", "ECONNRESET"), /amqps/]
    ]
    for (const [cause, expected] of advised) assert.match(amqpAdvice(cause, plain) ?? "none", expected, cause.message)
  })

  it("is not given for what says enough", () => {
    assert.isUndefined(amqpAdvice(failure("connect ECONNREFUSED 127.0.0.1:5672", "ECONNREFUSED"), plain))
    assert.isUndefined(amqpAdvice(failure("Socket closed abruptly during opening handshake"), { protocol: "amqps" }))
  })
})
