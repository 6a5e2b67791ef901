/** Encryption and session settings of a new connection, against a server that has TLS, demands it, or has none. */
import { execFileSync } from "node:child_process"
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs"
import { tmpdir } from "node:os"
import { join } from "node:path"
import { assert, describe, it } from "@effect/vitest"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Redacted from "effect/Redacted"
import type * as Scope from "effect/Scope"
import { toDatabaseError } from "../../src/internal/pgErrors.js"
import { PgConnector } from "../../src/PgConnector.js"
import { Settings, type SettingsShape } from "../../src/Settings.js"
import { eventually } from "../support/eventually.js"
import { freshDatabase, privatePostgres } from "../support/Servers.js"
import { type SqlClient, sqlClient } from "../support/Sql.js"

/** Connects as the relay, runs one statement, and closes. */
const ask = (url: string, statement: string) =>
  Effect.gen(function* () {
    const connector = yield* PgConnector
    const client = yield* connector.connect({
      role: "relay",
      statementTimeoutMillis: 30_000,
      idleInTransactionTimeoutMillis: 60_000
    })
    const { rows } = yield* Effect.tryPromise({
      try: () => client.query<Record<string, string>>(statement),
      catch: (cause) => toDatabaseError("ask", cause)
    })
    return rows
  }).pipe(
    Effect.scoped,
    Effect.provide(
      Layer.provide(
        PgConnector.layer,
        Layer.succeed(Settings, {
          databaseUrl: Effect.succeed(Redacted.make(url))
        } as Partial<SettingsShape> as SettingsShape)
      )
    )
  )

/** `tls`, `plain`, or why there is no connection. */
const encryption = (url: string) =>
  ask(url, "select ssl::text from pg_stat_ssl where pid = pg_backend_pid()").pipe(
    Effect.map(([row]) => (row?.["ssl"] === "true" ? "tls" : "plain")),
    Effect.catchAll((error) => Effect.succeed(`${error.kind}: ${error.reason}`))
  )

/** A self-signed certificate for `localhost`, which is its own authority. */
const certificate = (folder: string, name: string): string => {
  const file = join(folder, `${name}.pem`)
  const subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
  const key = ["-newkey", "rsa:2048", "-nodes", "-keyout", join(folder, `${name}.key`)]
  execFileSync("openssl", ["req", "-x509", "-days", "2", ...key, ...subject, "-out", file], { stdio: "ignore" })
  return file
}

/** Written by the server itself: it takes a key only from its own user, with nobody else reading it. */
const writeOnServer = (sql: SqlClient, file: string, text: string) =>
  sql.query(`copy (select unnest(string_to_array($$${text.trim()}$$, E'\\n'))) to program 'umask 077; cat > ${file}'`)

const serverWithTls: Effect.Effect<
  { readonly port: number; readonly sql: SqlClient; readonly authority: string; readonly stranger: string },
  never,
  Scope.Scope
> = Effect.gen(function* () {
  const folder = yield* Effect.acquireRelease(
    Effect.sync(() => mkdtempSync(join(tmpdir(), "pg-listener-tls-"))),
    (made) => Effect.sync(() => rmSync(made, { recursive: true }))
  )
  const authority = certificate(folder, "server")
  const stranger = certificate(folder, "stranger")
  const { port, url } = yield* privatePostgres()
  const sql = yield* sqlClient(url)
  yield* writeOnServer(sql, "server.crt", readFileSync(authority, "utf8"))
  yield* writeOnServer(sql, "server.key", readFileSync(join(folder, "server.key"), "utf8"))
  yield* sql.query("alter system set ssl = on")
  yield* sql.query("select pg_reload_conf()")
  yield* eventually("TLS", encryption(`${url}?sslmode=require`), (form) => form === "tls")
  return { port, sql, authority, stranger }
}).pipe(Effect.orDie)

describe("encryption", () => {
  it.scopedLive("without TLS on the server: plain where that is allowed, refused where TLS is demanded", () =>
    Effect.gen(function* () {
      const { url } = yield* freshDatabase
      for (const mode of ["disable", "allow", "prefer"]) {
        assert.strictEqual(yield* encryption(`${url}?sslmode=${mode}`), "plain", mode)
      }
      for (const mode of ["require", "verify-full"]) {
        assert.match(yield* encryption(`${url}?sslmode=${mode}`), /^refused: .*SSL/, mode)
      }
    })
  )

  it.scopedLive("with TLS on the server, as libpq does in every mode, and verified as far as the mode says", () =>
    Effect.gen(function* () {
      const { authority, port, sql, stranger } = yield* serverWithTls
      const at = (host: string, parameters: string) =>
        encryption(`postgres://postgres@${host}:${port}/postgres?${parameters}`)
      assert.strictEqual(yield* at("127.0.0.1", ""), "tls")
      assert.strictEqual(yield* at("127.0.0.1", "sslmode=disable"), "plain")
      assert.strictEqual(yield* at("127.0.0.1", "sslmode=allow"), "plain")
      assert.strictEqual(yield* at("127.0.0.1", "sslmode=require"), "tls")
      assert.strictEqual(yield* at("127.0.0.1", `sslmode=verify-ca&sslrootcert=${authority}`), "tls")
      assert.match(yield* at("127.0.0.1", `sslmode=require&sslrootcert=${stranger}`), /^refused: .*self-signed/)
      assert.match(yield* at("127.0.0.1", `sslmode=verify-full&sslrootcert=${authority}`), /^refused: .*altnames/)
      assert.strictEqual(yield* at("localhost", `sslmode=verify-full&sslrootcert=${authority}`), "tls")
      assert.match(yield* at("localhost", "sslmode=verify-full"), /^refused: .*self-signed/)

      const [row] = yield* sql.query<{ hba_file: string }>("show hba_file")
      const only = (kind: string) =>
        Effect.gen(function* () {
          writeFileSync(row?.hba_file ?? "", `${kind} all all 127.0.0.1/32 trust\n`)
          yield* sql.query("select pg_reload_conf()")
        })
      yield* only("hostssl")
      yield* eventually("TLS only", at("127.0.0.1", "sslmode=disable"), (form) => form.startsWith("refused"))
      assert.strictEqual(yield* at("127.0.0.1", "sslmode=allow"), "tls")
      yield* only("hostnossl")
      yield* eventually("plain only", at("127.0.0.1", "sslmode=require"), (form) => form.startsWith("refused"))
      assert.strictEqual(yield* at("127.0.0.1", "sslmode=prefer"), "plain")
    })
  )
})

describe("the session", () => {
  it.scopedLive("tells its role, and the server's bounds for it are set", () =>
    Effect.gen(function* () {
      const { url } = yield* freshDatabase
      const rows = yield* ask(
        `${url}?application_name=billing`,
        "select name, setting from pg_settings where source = 'session' or name = 'application_name'"
      )
      assert.deepStrictEqual(Object.fromEntries(rows.map(({ name, setting }) => [name, setting])), {
        application_name: "billing relay",
        client_connection_check_interval: "5000",
        idle_in_transaction_session_timeout: "60000",
        lock_timeout: "15000",
        statement_timeout: "30000",
        tcp_keepalives_count: "3",
        tcp_keepalives_idle: "10",
        tcp_keepalives_interval: "5",
        tcp_user_timeout: "25000"
      })
    })
  )

  it.scopedLive("a server that accepts and says nothing is given up after connect_timeout", () =>
    Effect.gen(function* () {
      const server = yield* privatePostgres()
      yield* server.pause
      const [took, answer] = yield* Effect.timed(encryption(`${server.url}?connect_timeout=1`))
      yield* server.resume
      assert.match(answer, /^connection: /)
      assert.isBelow(Duration.toMillis(took), 1500)
    })
  )
})
