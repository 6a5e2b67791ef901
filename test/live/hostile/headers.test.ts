/**
 * Hostile and unlucky headers: what AMQP can carry arrives, what it can't is refused by name, and what the broker would
 * take for an order never reaches it.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import { bridge } from "../../support/bridge.js"
import { consume } from "../../support/Consumer.js"
import { eventually } from "../../support/eventually.js"
import { fatesOfRows, insertRow, peakMemoryMiB, shownFate } from "../../support/fates.js"

const long = (character: string, length: number) => character.repeat(length)

interface Case {
  readonly what: string
  readonly headers: string
  /** What the consumer sees beside `channel`, or why the row is refused. */
  readonly expected: Readonly<Record<string, unknown>> | RegExp
}

const cases: ReadonlyArray<Case> = [
  {
    what: "nested, null, lists, truth values",
    headers: '{"a": [1, "x", [null, false]], "b": null, "c": true, "d": {"e": {"f": []}}}',
    expected: { a: [1, "x", [null, false]], b: null, c: true, d: { e: { f: [] } } }
  },
  {
    what: "numbers: whole and small as numbers, others with their digits as text",
    headers: '{"a": -0, "b": 0.5, "c": 9007199254740992, "d": 12345678901234567890, "e": 0.123456789012345678901}',
    expected: { a: 0, b: 0.5, c: 9_007_199_254_740_992, d: "12345678901234567890", e: "0.123456789012345678901" }
  },
  { what: "a number of 400 digits", headers: `{"a": ${long("7", 400)}}`, expected: { a: long("7", 400) } },
  { what: "an empty key", headers: '{"": "x"}', expected: { "": "x" } },
  { what: "an emoji for a key", headers: '{"😀": "ü"}', expected: { "😀": "ü" } },
  { what: "a key of 255 bytes", headers: `{"${long("k", 255)}": 1}`, expected: { [long("k", 255)]: 1 } },
  { what: "a key of 300 bytes", headers: `{"${long("k", 300)}": 1}`, expected: /^the header key "k+\.\.\." is longer/ },
  { what: "nearly 64 KiB", headers: `{"a": "${long("v", 65_000)}"}`, expected: { a: long("v", 65_000) } },
  { what: "more than 64 KiB", headers: `{"a": "${long("v", 70_000)}"}`, expected: /^the headers have 70025 bytes/ },
  { what: "5 MiB", headers: `{"a": "${long("v", 5_242_880)}"}`, expected: /^the headers are far larger than/ },
  { what: "more than 64 levels", headers: `{"a": ${long("[", 65)}${long("]", 65)}}`, expected: /nested more than 64/ },
  {
    what: "names that are ours: the row's own column wins, where it has a value",
    headers: '{"channel": "mine", "aggregate_type": "mine", "aggregate_id": 5}',
    expected: { aggregate_type: "mine", aggregate_id: 5 }
  },
  {
    what: "names of properties: they stay headers",
    headers: '{"expiration": "1", "user-id": "x", "priority": 9, "mandatory": false}',
    expected: { expiration: "1", "user-id": "x", priority: 9, mandatory: false }
  },
  {
    what: "names that mean something to the broker's plug-ins, well formed or not",
    headers: '{"x-delay": "soon", "x-match": 1, "x-death": 1, "x-message-ttl": 1, "x-received-from": 7}',
    expected: { "x-delay": "soon", "x-match": 1, "x-death": 1, "x-message-ttl": 1, "x-received-from": 7 }
  },
  { what: "cc in small letters, which is no order", headers: '{"cc": "other"}', expected: { cc: "other" } },
  { what: "CC with a queue", headers: '{"CC": ["other"]}', expected: /^the header "CC" would make the broker send/ },
  { what: "BCC with a queue", headers: '{"BCC": ["other"]}', expected: /^the header "BCC" would make/ },
  { what: "CC that is no list", headers: '{"CC": "other"}', expected: /^the header "CC" would make/ },
  { what: "BCC that is null", headers: '{"BCC": null}', expected: /^the header "BCC" would make/ }
]

describe("a row's headers", () => {
  it.scopedLive("arrive as they are or are refused by name, and hurt no other row", () =>
    Effect.gen(function* () {
      const { service, sql, vhost } = yield* bridge({ PG_LISTENER_ROUTES: "c=target", PG_LISTENER_MAX_ATTEMPTS: "1" })
      const consumer = yield* consume(vhost.url, "target")
      const other = yield* consume(vhost.url, "other")
      const ids = yield* Effect.forEach(cases, ({ headers }) => insertRow(sql, { channel: "c", headers }))
      const fates = yield* fatesOfRows(sql, consumer, ids)
      for (const [index, { expected, what }] of cases.entries()) {
        const fate = fates[index]
        if (expected instanceof RegExp) {
          assert(fate?.kind === "dead", `${what} was to be refused`)
          assert.match(fate.reason, expected, what)
        } else {
          assert(fate?.kind === "delivered", `${what}: ${shownFate(fate)}`)
          assert.deepStrictEqual({ ...fate.message.headers }, { ...expected, channel: "c" }, what)
        }
      }
      assert.deepStrictEqual(other.received, [], "no copy went past the routes")
      assert.notInclude(service.output(), "closed the channel")
    })
  )

  it.scopedLive("are not loaded when they are far too large: 60 rows of 5 MiB fit into bounded memory", () =>
    Effect.gen(function* () {
      const { service, sql } = yield* bridge({ PG_LISTENER_ROUTES: "c=target", PG_LISTENER_MAX_ATTEMPTS: "1" })
      yield* sql.query(
        `insert into event_outbox (channel, payload, headers)
         select 'c', '1', jsonb_build_object('a', repeat(md5(n::text), 5 * 1024 * 1024 / 32)) from generate_series(1, 60) n`
      )
      yield* eventually(
        "60 dead letters",
        sql.query("select count(*)::int as dead from outbox_dead_letters where last_error like 'the headers are far%'"),
        ([row]) => row?.["dead"] === 60,
        "30 seconds"
      )
      const peak = peakMemoryMiB(service.pid)
      yield* Effect.logInfo(`peak memory with 60 rows of 5 MiB of headers: ${peak?.toFixed(0)} MiB`)
      assert.isBelow(peak ?? 0, 280)
    })
  )

  it.scopedLive("may have the key __proto__, which arrives as a header like any other", () =>
    Effect.gen(function* () {
      const { sql, vhost } = yield* bridge({ PG_LISTENER_ROUTES: "c=target" })
      yield* insertRow(sql, { channel: "c", headers: '{"__proto__": {"polluted": true}, "x": 1}' })
      // By the broker's own eyes: amqplib would make it the prototype of the table that it reads.
      const [got] = yield* vhost.api.get("target", 1).pipe(Effect.repeat({ until: (all) => all.length > 0 }))
      assert.strictEqual(
        JSON.stringify(got?.properties["headers"]),
        '{"__proto__":{"polluted":true},"channel":"c","x":1}'
      )
    })
  )
})
