/**
 * Hostile and unlucky bodies: every corner of JSON as a row and as a notification, sizes up to the limit and beyond,
 * and databases in other encodings. The right outcome is the event's own bytes, or a dead letter that says why.
 */
import * as Fs from "node:fs"
import * as Os from "node:os"
import * as Path from "node:path"
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import { allProcessed, bridge } from "../../support/bridge.js"
import { type Consumer, consume } from "../../support/Consumer.js"
import { encodedDatabase } from "../../support/encodedDatabase.js"
import { eventually } from "../../support/eventually.js"
import { fateOfNotification, fatesOfRows, insertRow, peakMemoryMiB, shownFate } from "../../support/fates.js"
import { freshVhost, migratedDatabase, type TestDatabase, type TestVhost } from "../../support/Servers.js"
import { startService } from "../../support/Service.js"
import { type SqlClient, type SqlFailed, sqlClient } from "../../support/Sql.js"

/** What a body comes to: these bytes, or a dead letter whose reason matches. */
type Expected = string | RegExp

interface Corner {
  readonly what: string
  readonly payload: string
  /** What the notification comes to. */
  readonly live: Expected
  /** What the row comes to; or the SQLSTATE with which PostgreSQL itself refuses it as jsonb. */
  readonly row: string | { readonly sqlState: string }
}

/** For bodies that look the same on both ways. */
const same = (what: string, payload: string, body: string = payload): Corner => ({
  what,
  payload,
  live: body,
  row: body
})

/** For texts that are not JSON. */
const notJson = (what: string, payload: string): Corner => ({
  what,
  payload,
  live: /not JSON/,
  row: { sqlState: "22P02" }
})

const nested = (levels: number) => "[".repeat(levels) + "]".repeat(levels)

const corners: ReadonlyArray<Corner> = [
  same("one byte", "1"),
  same("null", "null"),
  same("true", "true"),
  same("a text", '"x"'),
  same("an empty list", "[]"),
  same("a key that comes twice: the last value counts", '{"a": 1, "a": 2}', '{"a":2}'),
  {
    what: "keys like integers: in V8's order",
    payload: '{"b": 1, "10": 2, "9": 3, "a": 4}',
    live: '{"9":3,"10":2,"b":1,"a":4}',
    row: '{"9":3,"10":2,"a":4,"b":1}'
  },
  {
    what: "__proto__ as a key like any other",
    payload: '{"__proto__": {"x": 1}, "a": 1}',
    live: '{"__proto__":{"x":1},"a":1}',
    row: '{"a":1,"__proto__":{"x":1}}'
  },
  same("constructor and its kin", '{"toString":null,"constructor":1,"hasOwnProperty":2}'),
  {
    what: "half a surrogate pair",
    payload: '{"\\udc00x":"a\\ud83d"}',
    live: '{"\\udc00x":"a\\ud83d"}',
    row: { sqlState: "22P02" }
  },
  { what: "an escaped NUL", payload: '"a\\u0000b"', live: '"a\\u0000b"', row: { sqlState: "22P05" } },
  same("1,000 levels", nested(1_000)),
  same("as many levels as a notification can hold", nested(3_999)),
  same("400 digits", `[${"7".repeat(400)}]`),
  same("400 digits behind the point", `0.${"7".repeat(400)}`),
  { what: "1e400", payload: "[1e400]", live: "[1e400]", row: `[1${"0".repeat(400)}]` },
  { what: "1e-400", payload: "[1e-400]", live: "[1e-400]", row: `[0.${"0".repeat(399)}1]` },
  {
    what: "an exponent that jsonb can't hold",
    payload: "1e99999999",
    live: "1e99999999",
    row: { sqlState: "22003" }
  },
  same("negative zero, which is zero", "[-0,-0.0]", "[0,0]"),
  same("a zero fraction", "[1.0,10.50]", "[1,10.5]"),
  same("our own mark for exact numbers", '["@0@0","@1@0",9007199254740993]'),
  same("line separators of Unicode", '"\u2028\u2029"'),
  same("characters beyond 16 bits, escaped or not", '"😀\\ud83d\\ude00"', '"😀😀"'),
  same("escapes that JSON does not need", '"\\u0041\\/\\u007f"', '"A/\u007f"'),
  same("escapes that JSON needs", '"\\b\\f\\n\\r\\t\\"\\\\\\u001f"'),
  same("white space around", ' \n\t{ "a" : [ ] } \r\n', '{"a":[]}'),
  same("the largest notification, 7,999 bytes", `"${"x".repeat(7_997)}"`),
  notJson("nothing", ""),
  notJson("only white space", " \n\t "),
  notJson("a byte order mark in front", "\ufeff1"),
  notJson("a no-break space", "\u00a01"),
  notJson("words", "click!"),
  notJson("NaN", "NaN"),
  notJson("a comma too many", "[1,]"),
  notJson("single quotes", "'x'"),
  notJson("a raw control character", '"\u0001"'),
  notJson("half an object", '{"a":')
]

const check = (fate: string, expected: Expected, what: string) => {
  if (typeof expected === "string") assert.strictEqual(fate, expected, what)
  else assert.match(fate, expected, what)
}

describe("a body with a corner of JSON", () => {
  it.scopedLive("is delivered as it is, or becomes a dead letter that says why: as a row and as a notification", () =>
    Effect.gen(function* () {
      const { service, sql, vhost } = yield* bridge({
        PG_LISTENER_ROUTES: "live=bodies,row=bodies",
        PG_LISTENER_MAX_ATTEMPTS: "1"
      })
      const consumer = yield* consume(vhost.url, "bodies")
      for (const { live, payload, row, what } of corners) {
        check(shownFate(yield* fateOfNotification(sql, consumer, "live", payload)), live, `${what}, live`)
        const inserted = yield* Effect.either(insertRow(sql, { channel: "row", payload }))
        if (typeof row === "string") {
          assert(inserted._tag === "Right", `${what}, as a row, was refused`)
          const [fate] = yield* fatesOfRows(sql, consumer, [inserted.right])
          check(shownFate(fate), row, `${what}, as a row`)
        } else {
          assert(inserted._tag === "Left", `${what}, as a row, was to be refused`)
          assert.strictEqual(inserted.left.sqlState, row.sqlState, `${what}, as a row`)
        }
      }
      const kept = yield* sql.query("select payload from outbox_dead_letters where channel = 'live' order by seq")
      assert.deepStrictEqual(
        kept.map((letter) => letter["payload"]),
        corners.filter(({ live }) => typeof live !== "string").map(({ payload }) => payload)
      )
      assert.notInclude(service.output(), "lost its database session")
    })
  )

  it.scopedLive("that is nested too deeply for V8 is a dead letter, and for PostgreSQL no row at all", () =>
    Effect.gen(function* () {
      const { sql, vhost } = yield* bridge({ PG_LISTENER_ROUTES: "row=bodies", PG_LISTENER_MAX_ATTEMPTS: "1" })
      const consumer = yield* consume(vhost.url, "bodies")
      const deep = yield* insertRow(sql, { channel: "row", payload: nested(6_000) })
      const fine = yield* insertRow(sql, { channel: "row", payload: "7" })
      const [first, second] = yield* fatesOfRows(sql, consumer, [deep, fine])
      assert.match(shownFate(first), /^dead letter: the payload is nested too deeply/)
      assert.strictEqual(shownFate(second), "7")
      const refused = yield* Effect.flip(insertRow(sql, { channel: "row", payload: nested(100_000) }))
      assert.strictEqual(refused.sqlState, "54001")
    })
  )
})

/** A service whose broker can't be reached until `brokerComes`. */
const bridgeWithoutBroker = (env: Readonly<Record<string, string>>) =>
  Effect.gen(function* () {
    const database = yield* migratedDatabase
    const vhost = yield* freshVhost
    const folder = yield* Effect.acquireRelease(
      Effect.sync(() => Fs.mkdtempSync(Path.join(Os.tmpdir(), "pg-listener-url-"))),
      (made) => Effect.sync(() => Fs.rmSync(made, { recursive: true, force: true }))
    )
    const file = Path.join(folder, "amqp")
    Fs.writeFileSync(file, "amqp://127.0.0.1:1")
    const service = yield* startService({ DATABASE_URL: database.url, AMQP_URL_FILE: file, ...env })
    yield* service.awaitLog(({ message }) => message === "listening")
    const sql = yield* sqlClient(database.url)
    return { service, sql, vhost, brokerComes: Effect.sync(() => Fs.writeFileSync(file, vhost.url)) }
  })

describe("a notification that comes while the broker is away", () => {
  it.scopedLive("waits as a row; one that jsonb can't hold becomes a dead letter with the reason; none is lost", () =>
    Effect.gen(function* () {
      const { brokerComes, service, sql, vhost } = yield* bridgeWithoutBroker({ PG_LISTENER_ROUTES: "live=bodies" })
      for (const { payload } of corners) yield* sql.query("select pg_notify('live', $1)", [payload])
      const rows = yield* eventually(
        "every notification is in the table",
        sql.query<{ payload: unknown; dead: boolean; last_error: string | null }>(
          "select payload, dead_at is not null as dead, last_error from event_outbox order by seq"
        ),
        (all) => all.length === corners.length
      )
      const isStorable = ({ row }: Corner) => typeof row === "string"
      const dead = rows.filter((row) => row.dead)
      assert.deepStrictEqual(
        dead.map(({ payload }) => payload).sort(),
        corners
          .filter((corner) => !isStorable(corner))
          .map(({ payload }) => payload)
          .sort()
      )
      for (const { last_error, payload } of dead)
        assert.match(`${last_error}`, /not JSON|stored as jsonb/, `${payload}`)
      const consumer = yield* consume(vhost.url, "bodies")
      yield* brokerComes
      yield* service.awaitReady()
      yield* allProcessed(sql)
      const came = yield* consumer.take(rows.length - dead.length, "10 seconds")
      assert.deepStrictEqual(
        came.map(({ body }) => body).sort(),
        corners.flatMap(({ row }) => (typeof row === "string" ? [row] : [])).sort()
      )
    })
  )
})

const MIB = 1024 * 1024

const insertText = (sql: SqlClient, megabytes: number) =>
  Effect.map(
    sql.query<{ id: string }>(
      `insert into event_outbox (channel, payload)
       values ('row', to_jsonb(repeat(md5('x') || md5('y'), ($1::float8 * 1024 * 1024 / 64)::int))) returning id`,
      [megabytes]
    ),
    ([row]) => row?.id ?? ""
  )

describe("a large body", () => {
  it.scopedLive("of 8,000 bytes is too much for NOTIFY and nothing for a row", () =>
    Effect.gen(function* () {
      const { sql, vhost } = yield* bridge({ PG_LISTENER_ROUTES: "row=bodies" })
      const consumer = yield* consume(vhost.url, "bodies")
      const payload = `"${"x".repeat(7_998)}"`
      const refused = yield* Effect.flip(sql.query("select pg_notify('row', $1)", [payload]))
      assert.strictEqual(refused.sqlState, "22023")
      const [fate] = yield* fatesOfRows(sql, consumer, [yield* insertRow(sql, { channel: "row", payload })])
      assert.strictEqual(shownFate(fate), payload)
    })
  )

  it.scopedLive("goes through up to the limit; above it the row becomes a dead letter, and memory stays bounded", () =>
    Effect.gen(function* () {
      const { service, sql, vhost } = yield* bridge({ PG_LISTENER_ROUTES: "row=bodies", PG_LISTENER_MAX_ATTEMPTS: "1" })
      const consumer = yield* consume(vhost.url, "bodies")
      const ids: Array<string> = []
      for (const megabytes of [15, 20, 40, 0.001]) ids.push(yield* insertText(sql, megabytes))
      const [large, tooLarge, farTooLarge, small] = yield* fatesOfRows(sql, consumer, ids)
      assert.strictEqual(shownFate(large).length, 15 * MIB + 2)
      assert.strictEqual(shownFate(small).length, 1_026)
      for (const [fate, megabytes] of [
        [tooLarge, 20],
        [farTooLarge, 40]
      ] as const) {
        const bytes = megabytes * MIB + 2
        assert.include(
          shownFate(fate),
          `the body has ${bytes} bytes, more than PG_LISTENER_MAX_MESSAGE_BYTES (16777216)`
        )
      }
      const peak = peakMemoryMiB(service.pid)
      yield* Effect.logInfo(`peak memory with bodies of 15, 20 and 40 MiB: ${peak?.toFixed(0)} MiB`)
      assert.isBelow(peak ?? 0, 400)
    })
  )

  it.scopedLive(
    "does not come with all the others at once: 200 rows of 10 MiB fit into bounded memory",
    () =>
      Effect.gen(function* () {
        const database = yield* migratedDatabase
        const vhost = yield* freshVhost
        // The broker keeps the last one only: the memory to watch is ours, not its.
        yield* vhost.api.declareQueue("bodies", { "x-max-length": 1 })
        const sql = yield* sqlClient(database.url, 60_000)
        yield* sql.query(
          "insert into event_outbox (event_type, payload) values ('row', to_jsonb(repeat(md5('x') || md5(''), 163840)))"
        )
        yield* sql.query(
          "insert into event_outbox (event_type, payload) select 'row', payload from event_outbox, generate_series(2, 200)"
        )
        const service = yield* startService({
          DATABASE_URL: database.url,
          AMQP_URL: vhost.url,
          PG_LISTENER_ROUTES: "row=bodies"
        })
        // Ten times what a batch may have.
        yield* eventually(
          "30 rows processed",
          sql.query("select count(*)::int as done from event_outbox where processed_at is not null"),
          ([row]) => Number(row?.["done"]) >= 30,
          "60 seconds"
        )
        const peak = peakMemoryMiB(service.pid)
        yield* Effect.logInfo(`peak memory with 200 rows of 10 MiB pending: ${peak?.toFixed(0)} MiB`)
        assert.isBelow(peak ?? 0, 700)
      }),
    90_000
  )
})

describe("a database that is not in UTF-8", () => {
  const bridgeIn = (database: TestDatabase, env: Readonly<Record<string, string>> = {}) =>
    Effect.gen(function* () {
      const vhost: TestVhost = yield* freshVhost
      const service = yield* startService({
        DATABASE_URL: database.url,
        AMQP_URL: vhost.url,
        PG_LISTENER_ROUTES: "live=bodies,row=bodies,lost=nowhere-ü-😀/key",
        PG_LISTENER_MAX_ATTEMPTS: "1",
        ...env
      })
      yield* service.awaitReady()
      const sql = yield* sqlClient(database.url)
      const consumer: Consumer = yield* consume(vhost.url, "bodies")
      return { consumer, service, sql }
    })

  it.scopedLive(
    "but holds any bytes: those that are not UTF-8 are replaced, nobody crashes, and the next goes on",
    () =>
      Effect.gen(function* () {
        const { consumer, service, sql } = yield* bridgeIn(yield* encodedDatabase("SQL_ASCII"))
        const bytes = `convert_from('\\x22e4ff61c3a422', 'SQL_ASCII')`
        const go = (statement: string): Effect.Effect<unknown, SqlFailed> => sql.query(statement)
        yield* go(`select pg_notify('live', ${bytes})`)
        yield* go(`insert into event_outbox (channel, payload) values ('row', ${bytes}::jsonb)`)
        yield* go(`select pg_notify('live', convert_from('\\xff', 'SQL_ASCII'))`)
        yield* go("notify live, '7'")
        const came = yield* consumer.take(3, "10 seconds")
        assert.deepStrictEqual(came.map(({ body }) => body).sort(), ['"��aä"', '"��aä"', "7"])
        const dead = yield* eventually(
          "the dead letter",
          sql.query("select payload, last_error from outbox_dead_letters"),
          (rows) => rows.length === 1
        )
        assert.strictEqual(dead[0]?.["payload"], "�")
        assert.notInclude(service.output(), "lost its database session")
      })
  )

  it.scopedLive("such as LATIN1: its bodies arrive in UTF-8, and reasons that it can't hold are still recorded", () =>
    Effect.gen(function* () {
      const { consumer, service, sql } = yield* bridgeIn(yield* encodedDatabase("LATIN1"))
      const ids = [yield* insertRow(sql, { channel: "row", payload: '"ä"' })]
      ids.push(yield* insertRow(sql, { channel: "lost" }))
      const [fine, lost] = yield* fatesOfRows(sql, consumer, ids)
      assert.strictEqual(shownFate(fine), '"ä"')
      assert.match(shownFate(lost), /^dead letter: .*nowhere/)
      assert.notInclude(service.output(), "lost its database session")
    })
  )

  it.scopedLive("with a payload that can't be read in UTF-8 loses that row alone to a dead letter", () =>
    Effect.gen(function* () {
      const { consumer, service, sql } = yield* bridgeIn(yield* encodedDatabase("EUC_CN"))
      // Well formed, and without a character in Unicode.
      yield* sql.query(
        `insert into event_outbox (channel, payload) values
         ('row', '1'), ('row', convert_from('\\x22aaa122', 'EUC_CN')::jsonb), ('row', '3')`
      )
      const came = yield* consumer.take(2, "10 seconds")
      assert.deepStrictEqual(came.map(({ body }) => body).sort(), ["1", "3"])
      const dead = yield* eventually(
        "the dead letter",
        sql.query("select last_error from outbox_dead_letters"),
        (rows) => rows.length === 1
      )
      assert.match(`${dead[0]?.["last_error"]}`, /^the payload can't be read as text: .*has no equivalent/)
      assert.notInclude(service.output(), "lost its database session")
    })
  )
})
