/**
 * Hostile and unlucky names: channels, queues, event types and routing keys, whatever characters they are made of and
 * however long they are. The right outcome is the right queue, or a refusal that names the culprit.
 */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import { bridge } from "../../support/bridge.js"
import { consume, type Received } from "../../support/Consumer.js"
import { fatesOfRows, insertRow, shownFate } from "../../support/fates.js"
import { runCommand } from "../../support/Service.js"

/** As it is written in PG_LISTENER_ROUTES. */
const escaped = (name: string) => name.replace(/[,=/*{}\\ ]/g, (char) => `\\${char}`)

const names = [
  "Upper Case",
  "upper case",
  "a.b.c",
  'double "quotes"',
  "o'clock ''",
  "ümläut",
  "u\u0308mla\u0308ut",
  "😀 emoji",
  "com,ma",
  "eq=ual",
  "sl/ash",
  "st*ar*",
  "{channel}",
  "back\\slash",
  " space at both ends ",
  "tab\tinside",
  "$1 %s -- ;drop",
  "__proto__",
  "constructor",
  "x".repeat(63),
  `${"ü".repeat(31)}y`
]

describe("a channel and a queue", () => {
  it.scopedLive("may have any name that PostgreSQL and RabbitMQ allow: rows and notifications find their queue", () =>
    Effect.gen(function* () {
      const routes = names.map((name) => `${escaped(name)}=${escaped(`queue ${name}`)}`)
      const { service, sql, vhost } = yield* bridge({
        PG_LISTENER_ROUTES: routes.join(","),
        PG_LISTENER_MAX_ATTEMPTS: "1"
      })
      const consumers = yield* Effect.forEach(names, (name) => consume(vhost.url, `queue ${name}`), { concurrency: 8 })
      for (const name of names) yield* sql.query("select pg_notify($1, '\"live\"')", [name])
      for (const name of names) yield* insertRow(sql, { channel: name })
      for (const [index, name] of names.entries()) {
        const came = (yield* consumers[index]?.take(2, "10 seconds") ?? Effect.succeed([])) satisfies Array<Received>
        assert.deepStrictEqual(came.map(({ body }) => body).sort(), ['"live"', "1"], name)
        for (const { headers, properties } of came) {
          assert.deepStrictEqual([headers["channel"], properties.type], [name, name])
        }
      }
      assert.notInclude(service.output(), "LISTEN dropped")
    })
  )

  it.scopedLive("have their lengths: 64 bytes are no channel but an event type, 255 bytes are a queue", () =>
    Effect.gen(function* () {
      const eventType = "e".repeat(64)
      const queue = "q".repeat(255)
      const { sql, vhost } = yield* bridge({
        PG_LISTENER_ROUTES: `${eventType}=${queue},t*=${queue}`,
        PG_LISTENER_MAX_ATTEMPTS: "1"
      })
      const consumer = yield* consume(vhost.url, queue)
      const refused = yield* Effect.flip(insertRow(sql, { channel: eventType }))
      assert.strictEqual(refused.sqlState, "23514")
      const ids = [
        yield* insertRow(sql, { event_type: eventType }),
        yield* insertRow(sql, { event_type: "t".repeat(255) }),
        yield* insertRow(sql, { event_type: "t".repeat(300) }),
        yield* insertRow(sql, { event_type: "ü".repeat(300_000) })
      ]
      const [fits, longest, tooLong, farTooLong] = yield* fatesOfRows(sql, consumer, ids)
      assert.strictEqual(shownFate(fits), "1")
      assert.strictEqual(shownFate(longest), "1")
      assert.match(shownFate(tooLong), /^dead letter: the event type "t+\.\.\." is longer than 255 bytes/)
      assert.match(shownFate(farTooLong), /^dead letter: no route for event type "ü+\.\.\."$/)
    })
  )
})

describe("a routing key", () => {
  it.scopedLive(
    "is made of whatever the aggregate's id holds, up to 255 bytes; a longer one is the row's own trouble",
    () =>
      Effect.gen(function* () {
        const { sql, vhost } = yield* bridge({
          PG_LISTENER_ROUTES: "odd=events/{aggregate_id}",
          PG_LISTENER_MAX_ATTEMPTS: "1"
        })
        yield* vhost.api.declareExchange("events", "topic")
        const consumer = yield* consume(vhost.url, "everything")
        yield* vhost.api.bind("events", "everything", "#")
        const keys = [
          ...names,
          "",
          "#",
          "*.#",
          "..",
          "new\nline",
          "\u0001\u001f\u007f",
          "k".repeat(255),
          `${"ü".repeat(127)}k`
        ]
        const ids = yield* Effect.forEach(keys, (key) => insertRow(sql, { channel: "odd", aggregate_id: key }))
        const fates = yield* fatesOfRows(sql, consumer, ids)
        assert.deepStrictEqual(
          fates.map((fate) => (fate.kind === "delivered" ? fate.message.routingKey : fate.reason)),
          keys
        )
        const tooLong = yield* Effect.forEach(["k".repeat(256), "ü".repeat(128), "k".repeat(1_024)], (key) =>
          insertRow(sql, { channel: "odd", aggregate_id: key })
        )
        for (const fate of yield* fatesOfRows(sql, consumer, tooLong)) {
          assert.match(shownFate(fate), /^dead letter: the routing key "[kü]+\.\.\." is longer than 255 bytes/)
        }
      })
  )
})

describe("a route that can't work", () => {
  it.live.each([
    { what: "a queue of 256 bytes", routes: `a=${"q".repeat(256)}`, expected: "the queue's name is longer than 255" },
    { what: "a line break in a queue's name", routes: "a=q\nr", expected: "the queue's name has a line break" },
    {
      what: "a line break in an exchange's name",
      routes: "a=x\ry/k",
      expected: "the exchange's name has a line break"
    },
    { what: "an unescaped comma", routes: "a=one,two", expected: "has no target" }
  ])("is told at the start, and ends it: $what", ({ expected, routes }) =>
    Effect.gen(function* () {
      const { code, output } = yield* runCommand(
        { DATABASE_URL: "postgres://127.0.0.1:1/x", AMQP_URL: "amqp://127.0.0.1:1", PG_LISTENER_ROUTES: routes },
        []
      )
      assert.strictEqual(code, 1, output)
      assert.include(output, expected)
    })
  )
})
