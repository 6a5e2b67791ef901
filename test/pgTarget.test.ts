/** `DATABASE_URL`: what is read, what is refused, and which forms of encryption are tried in which order. */
import { mkdtempSync, rmSync, writeFileSync } from "node:fs"
import { tmpdir } from "node:os"
import { join } from "node:path"
import type { ConnectionOptions } from "node:tls"
import { SqlError } from "@effect/sql/SqlError"
import { afterAll, assert, describe, it } from "@effect/vitest"
import * as Either from "effect/Either"
import * as Redacted from "effect/Redacted"
import { pgAdvice, refusedInBothForms } from "../src/internal/pgAdvice.js"
import { toDatabaseError } from "../src/internal/pgErrors.js"
import { connectTarget, type DatabaseUrl, parseDatabaseUrl } from "../src/internal/pgTarget.js"

const folder = mkdtempSync(join(tmpdir(), "pg-target-"))
afterAll(() => rmSync(folder, { recursive: true }))
const authority = join(folder, "authority.pem")
writeFileSync(authority, "the authority")

const parsed = (url: string): DatabaseUrl => Either.getOrThrowWith(parseDatabaseUrl(url), (p) => new Error(p.problem))
const problem = (url: string): string => {
  const read = parseDatabaseUrl(url)
  return Either.isLeft(read) ? read.left.problem : "none"
}
const password = (url: string): string | undefined => {
  const secret = parsed(url).password
  return secret === undefined ? undefined : Redacted.value(secret)
}

const form = (tls: false | ConnectionOptions): string => {
  if (tls === false) return "plain"
  if (tls.rejectUnauthorized === false) return "unverified"
  return tls.checkServerIdentity === undefined ? "authority and name" : "authority"
}
const forms = (parameters: string, host = "db"): ReadonlyArray<string> =>
  Either.match(connectTarget(Redacted.make(`postgres://${host}/d?${parameters}`)), {
    onLeft: (p) => [p.problem],
    onRight: (target) => target.encryption.map(form)
  })

describe("who and where", () => {
  it("reads every part, in both spellings of the scheme", () => {
    for (const scheme of ["postgres", "postgresql", "POSTGRES"]) {
      const url = parsed(`${scheme}://al%40ice:secret@db.example:6543/my%2Fdata`)
      assert.deepInclude(url, { user: "al@ice", host: "db.example", port: 6543, database: "my/data" })
    }
  })

  it("leaves out what is not there, with libpq's defaults", () => {
    assert.deepInclude(parsed("postgres://"), {
      host: "localhost",
      port: 5432,
      user: undefined,
      password: undefined,
      database: undefined,
      sslMode: "prefer",
      applicationName: "pg-listener",
      connectTimeoutMillis: 5000
    })
    assert.deepInclude(parsed("postgres://db?sslmode=disable"), { host: "db", sslMode: "disable" })
  })

  it("keeps every character of a password: each of ASCII when encoded, and what is raw but @ and /", () => {
    const all = Array.from({ length: 95 }, (_, n) => String.fromCharCode(32 + n)).join("")
    assert.strictEqual(password(`postgres://u:${encodeURIComponent(all)}é€@h/d`), `${all}é€`)
    assert.strictEqual(password("postgres://u:a#b?c&d=e:f+g h@h/d"), "a#b?c&d=e:f+g h")
    assert.strictEqual(password("postgres://u:p@ss@h/d?user=x@y"), "p@ss")
    assert.strictEqual(password("postgres://u:a#b?c@h?sslmode=disable"), "a#b?c")
    assert.strictEqual(password("postgres://u:x%2Fy z@h/d"), "x/y z")
  })

  it("takes IPv6 addresses and Unix sockets, in the host's place or as a parameter", () => {
    assert.deepInclude(parsed("postgres://u@[2001:db8::1]:7000/d"), { host: "2001:db8::1", port: 7000 })
    assert.deepInclude(parsed("postgres://u@[::1]/d"), { host: "::1", port: 5432 })
    assert.deepInclude(parsed("postgres://u@%2Fvar%2Frun/d"), { host: "/var/run", database: "d" })
    assert.deepInclude(parsed("postgres:///d?host=/var/run&port=5433"), { host: "/var/run", port: 5433, database: "d" })
  })

  it("lets parameters win, and a plus is a plus", () => {
    const url = parsed("postgres://a:b@h/d?user=u%2B1&password=p+1&dbname=e&application_name=bill&connect_timeout=3")
    assert.deepInclude(url, { user: "u+1", database: "e", applicationName: "bill", connectTimeoutMillis: 3000 })
    assert.strictEqual(password("postgres://a:b@h/d?password=p+1"), "p+1")
    assert.strictEqual(parsed("postgres://h/d?options=-c%20search_path%3Dx").serverOptions, "-c search_path=x")
    assert.isTrue(parsed("postgres://h/d?channel_binding=require").channelBinding)
    assert.strictEqual(parsed("postgres://h/d?connect_timeout=0").connectTimeoutMillis, 5000)
  })

  it("refuses what it can't read, and never shows a part of it", () => {
    const refused = [
      "mysql://u:hunter2@h/d",
      "u:hunter2@h/d",
      "postgres://u:hun/ter2@h/d",
      "postgres://u:hunter2%@h/d",
      "postgres://u:hunter2@h:port/d",
      "postgres://u:hunter2@h:65536/d",
      "postgres://u:hunter2@h:0/d",
      "postgres://u:hunter2@h1,h2/d",
      "postgres://u:hunter2@h/d?connect_timeout=soon",
      "postgres://u:hunter2@h/d?sslmode=no-verify",
      "postgres://u:hunter2@h/d?sslmode=verify-ca",
      "postgres://u:hunter2@h/d?sslrootcert=system&sslmode=require",
      "postgres://u:hunter2@h/d?sslcrl=/x",
      "postgres://u:hunter2@h/d?x=%"
    ]
    for (const url of refused) {
      const read = parseDatabaseUrl(url)
      assert.isTrue(Either.isLeft(read), url)
      assert.notInclude(JSON.stringify(read), "ter2")
    }
    assert.include(problem("postgres://u:pa/ss@h/d"), "raw slash")
  })
})

describe("sslmode, as libpq documents it", () => {
  it("without an authority", () => {
    assert.deepStrictEqual(forms(""), ["unverified", "plain"])
    assert.deepStrictEqual(forms("sslmode=disable"), ["plain"])
    assert.deepStrictEqual(forms("sslmode=allow"), ["plain", "unverified"])
    assert.deepStrictEqual(forms("sslmode=prefer"), ["unverified", "plain"])
    assert.deepStrictEqual(forms("sslmode=require"), ["unverified"])
    assert.deepStrictEqual(forms("ssl=true"), ["unverified"])
    assert.deepStrictEqual(forms("sslmode=verify-full"), ["authority and name"])
    assert.deepStrictEqual(forms("sslrootcert=system"), ["authority and name"])
  })

  it("with an authority, require checks it like verify-ca", () => {
    assert.deepStrictEqual(forms(`sslmode=require&sslrootcert=${authority}`), ["authority"])
    assert.deepStrictEqual(forms(`sslmode=verify-ca&sslrootcert=${authority}`), ["authority"])
    assert.deepStrictEqual(forms(`sslmode=verify-full&sslrootcert=${authority}`), ["authority and name"])
    const read = connectTarget(Redacted.make(`postgres://h/d?sslmode=require&sslrootcert=${authority}`))
    const [tls] = Either.isRight(read) ? read.right.encryption : []
    assert.isTrue(typeof tls === "object" && tls.ca === "the authority")
  })

  it("a Unix socket is plain whatever the mode", () => {
    assert.deepStrictEqual(forms("sslmode=require&host=/var/run"), ["plain"])
  })

  it("a certificate that can't be read is named", () => {
    assert.deepStrictEqual(forms("sslmode=require&sslrootcert=/nowhere"), [
      "names a file in sslrootcert that can't be read (ENOENT)"
    ])
    assert.include(forms(`sslmode=require&sslcert=${folder}`)[0], "sslcert")
  })
})

describe("what an error says beside the server's own words", () => {
  const failure = (message: string, code?: string) =>
    Object.assign(new Error(message), code === undefined ? undefined : { code, severity: "ERROR" })
  const advice = (...causes: [Error] | [Error, Error]) =>
    pgAdvice(causes.length === 1 ? causes[0] : refusedInBothForms(...causes)) ?? "none"

  it("what to do about TLS, pg_hba.conf, the password and the database", () => {
    const advised: ReadonlyArray<readonly [Error, RegExp]> = [
      [failure("self-signed certificate", "DEPTH_ZERO_SELF_SIGNED_CERT"), /sslrootcert/],
      [failure("unable to get local issuer certificate", "UNABLE_TO_GET_ISSUER_CERT_LOCALLY"), /sslrootcert/],
      [failure("altnames", "ERR_TLS_CERT_ALTNAME_INVALID"), /verify-ca/],
      [failure("certificate has expired", "CERT_HAS_EXPIRED"), /Renew/],
      [failure("The server does not support SSL connections"), /ssl = on/],
      [failure("connection requires a valid client certificate", "28000"), /sslcert and sslkey/],
      [failure('no pg_hba.conf entry for host "::1", no encryption', "28000"), /sslmode=require/],
      [failure('no pg_hba.conf entry for host "::1", SSL encryption', "28000"), /^Add a line/],
      [failure("password authentication failed", "28P01"), /DATABASE_URL_FILE/],
      [failure('database "x" does not exist', "3D000"), /DATABASE_URL/],
      [failure("connect ECONNREFUSED", "ECONNREFUSED"), /^none$/]
    ]
    for (const [cause, expected] of advised) assert.match(advice(cause), expected, cause.message)
  })

  it("of two forms that were refused, what is wrong with TLS counts, unless the server has none", () => {
    const noEncryption = failure("no pg_hba.conf entry, no encryption", "28000")
    const untrusted = failure("self-signed certificate", "DEPTH_ZERO_SELF_SIGNED_CERT")
    assert.match(advice(untrusted, noEncryption), /sslrootcert/)
    assert.match(advice(noEncryption, untrusted), /sslrootcert/)
    assert.match(advice(failure("no pg_hba.conf entry, SSL encryption", "28000"), noEncryption), /^Add a line/)
    assert.match(advice(failure("The server does not support SSL connections"), noEncryption), /pg_hba.conf/)
  })

  it("that a pooler is in between, when the server forgets what the session prepared", () => {
    for (const code of ["26000", "42P05"]) {
      assert.match(toDatabaseError("claim", failure("prepared statement", code)).message, /PgBouncer.*session mode/)
    }
    assert.notInclude(toDatabaseError("claim", failure("permission denied", "42501")).message, "PgBouncer")
  })

  it("and OpenSSL's noise is left out", () => {
    const noise =
      "807C6B5F:error:0A000418:SSL routines:ssl3_read_bytes:tlsv1 alert unknown ca:../rec.c:1605:SSL alert 48\n"
    const { reason } = toDatabaseError(
      "connect",
      Object.assign(new Error(noise), { code: "ERR_SSL_TLSV1_ALERT_UNKNOWN_CA" })
    )
    assert.strictEqual(reason, "tlsv1 alert unknown ca")
  })
})

describe("what an error means", () => {
  const server = (code: string) => Object.assign(new Error("from the server"), { code, severity: "ERROR" })
  const node = (code: string) => Object.assign(new Error("from node"), { code })
  const kind = (cause: unknown) => toDatabaseError("test", cause).kind

  it("a lost or unreachable server: connection", () => {
    for (const code of ["08006", "57P01", "57P02", "57P03", "53300", "25P03", "25P04", "25006"]) {
      assert.strictEqual(kind(server(code)), "connection", code)
    }
    for (const code of ["ECONNREFUSED", "ECONNRESET", "EPIPE", "ETIMEDOUT", "ENOTFOUND", "EAI_AGAIN", "ENOENT"]) {
      assert.strictEqual(kind(node(code)), "connection", code)
    }
    for (const words of [
      "Connection terminated unexpectedly",
      "Client has encountered a connection error and is not queryable",
      "Query read timeout",
      "timeout expired"
    ]) {
      assert.strictEqual(kind(new Error(words)), "connection", words)
    }
    assert.strictEqual(kind(new AggregateError([node("ECONNREFUSED"), node("ECONNREFUSED")])), "connection")
  })

  it("a conflict with others: conflict", () => {
    for (const code of ["40001", "40P01", "55P03", "57014"]) assert.strictEqual(kind(server(code)), "conflict", code)
  })

  it("everything else: refused", () => {
    for (const code of ["42P01", "28P01", "23505", "3D000", "22P02"]) {
      assert.strictEqual(kind(server(code)), "refused", code)
    }
    assert.strictEqual(kind(node("DEPTH_ZERO_SELF_SIGNED_CERT")), "refused")
    assert.strictEqual(kind(new Error("The server does not support SSL connections")), "refused")
    assert.strictEqual(kind("thrown text"), "refused")
  })

  it("looks through SqlError, tells the SQLSTATE, and shows no URL", () => {
    const inner = Object.assign(new Error("no postgres://u:hunter2@h/d here"), { code: "40001", severity: "ERROR" })
    const error = toDatabaseError("claim", new SqlError({ cause: inner, message: "Failed to execute statement" }))
    assert.deepInclude(error, { operation: "claim", kind: "conflict", sqlState: "40001" })
    assert.notInclude(error.message, "hunter2")
  })
})
