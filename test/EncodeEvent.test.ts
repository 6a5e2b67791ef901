import { createRequire } from "node:module"
import { dirname, join } from "node:path"
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Either from "effect/Either"
import * as FastCheck from "effect/FastCheck"
import { encodeLive, encodeRow } from "../src/EncodeEvent.js"
import type { Publishable } from "../src/Message.js"
import type { OutboxRow } from "../src/Outbox.js"
import { parseRoutes } from "../src/Routes.js"

const require = createRequire(import.meta.url)

/** The client's own encoder of header tables, which is no export of its package: nothing may get to it that it refuses. */
const { encodeTable } = require(join(dirname(require.resolve("amqplib")), "lib", "codec.js")) as {
  readonly encodeTable: (buffer: Buffer, table: object, offset: number) => number
}

const settings = {
  routes: Either.getOrThrow(parseRoutes("clicks=click_queue,order.*=events/{aggregate_type}.{aggregate_id}")),
  maxMessageBytes: 1_000
}

const row = (over: Partial<OutboxRow> = {}): OutboxRow => ({
  seq: "1",
  id: "0193a0f0-0000-7000-8000-000000000001",
  channel: "clicks",
  eventType: undefined,
  aggregateType: undefined,
  aggregateId: undefined,
  payload: '{"a": 1}',
  payloadBytes: 8,
  headers: undefined,
  attempts: 0,
  waited: false,
  createdAtSeconds: 1_764_532_800,
  ageSeconds: 0,
  ...over
})

const messageOf = ({ message }: Publishable) =>
  Either.getOrThrowWith(message, (refusal) => new Error(`unexpectedly refused: ${refusal.reason}`))

const reasonOf = ({ message }: Publishable): string =>
  Either.match(message, { onLeft: (refusal) => refusal.reason, onRight: () => "unexpectedly a message" })

const isPermanent = ({ message }: Publishable): boolean => Either.isLeft(message) && message.left.permanent

const encoded = (over: Partial<OutboxRow>) => messageOf(encodeRow(row(over), settings))
const refused = (over: Partial<OutboxRow>) => reasonOf(encodeRow(row(over), settings))

describe("a row's message", () => {
  it("has the row's id, route, time, and the canonical body", () => {
    assert.deepStrictEqual(encoded({ payload: '{"b": 9007199254740993, "a": "é"}' }), {
      id: "0193a0f0-0000-7000-8000-000000000001",
      exchange: "",
      routingKey: "click_queue",
      type: "clicks",
      timestampSeconds: 1_764_532_800,
      headers: { channel: "clicks" },
      body: Buffer.from('{"b":9007199254740993,"a":"é"}', "utf8")
    })
  })

  it("has the event type as its type, and the channel when there is none", () => {
    assert.strictEqual(encoded({ eventType: "order.paid" }).type, "order.paid")
    assert.strictEqual(encoded({ eventType: undefined }).type, "clicks")
  })

  it("has headers for the aggregate and the channel, each only when the row has it", () => {
    const order = { channel: undefined, eventType: "order.paid", aggregateType: "order", aggregateId: "7" }
    assert.deepStrictEqual(encoded(order).headers, { aggregate_type: "order", aggregate_id: "7" })
    assert.strictEqual(encoded(order).routingKey, "order.7")
  })

  it("has the row's own columns where a header has the same name, and the header where the column is null", () => {
    const headers = '{"channel": "mine", "aggregate_id": "mine", "traceparent": "00-1-2-01"}'
    assert.deepStrictEqual(encoded({ headers, aggregateType: "order" }).headers, {
      channel: "clicks",
      aggregate_type: "order",
      aggregate_id: "mine",
      traceparent: "00-1-2-01"
    })
  })

  it("may be any JSON: a scalar, a list, null", () => {
    for (const payload of ["null", '"text"', "[1,2]", "7"]) {
      assert.strictEqual(encoded({ payload }).body.toString("utf8"), payload)
    }
  })
})

describe("a row is refused", () => {
  it("when its body was not loaded, with its size", () => {
    assert.strictEqual(
      refused({ payload: undefined, payloadBytes: 2_500 }),
      "the body has 2500 bytes, more than PG_LISTENER_MAX_MESSAGE_BYTES (1000)"
    )
  })

  it("when its canonical body has more bytes than allowed, and not when only its jsonb text has", () => {
    const text = "é".repeat(499)
    assert.strictEqual(encoded({ payload: `   "${text}"   `, payloadBytes: 1_006 }).body.length, 1_000)
    assert.strictEqual(
      refused({ payload: `"${text}a"` }),
      "the body has 1001 bytes, more than PG_LISTENER_MAX_MESSAGE_BYTES (1000)"
    )
  })

  it("for good when it is too large, and only then: everything else a deploy can mend", () => {
    const permanent = (over: Partial<OutboxRow>) => isPermanent(encodeRow(row(over), settings))
    assert.isTrue(permanent({ payload: undefined, payloadBytes: 2_500 }))
    assert.isTrue(permanent({ payload: `"${"a".repeat(999)}"` }))
    assert.isFalse(permanent({ channel: "x" }))
    assert.isFalse(permanent({ channel: undefined, eventType: "order.paid" }))
    assert.isFalse(permanent({ eventType: "t".repeat(256) }))
    assert.isFalse(permanent({ headers: "[1]" }))
    assert.isFalse(permanent({ payload: "[".repeat(100_000) + "]".repeat(100_000) }))
  })

  it("when it has no route, or its routing key lacks a value", () => {
    assert.strictEqual(refused({ channel: "x", eventType: "y" }), 'no route for channel "x", event type "y"')
    assert.strictEqual(
      refused({ channel: undefined, eventType: "order.paid", aggregateType: "order" }),
      "routing key needs {aggregate_id} but the event has none"
    )
  })

  it("when its event type is longer than 255 bytes", () => {
    assert.strictEqual(encoded({ eventType: "t".repeat(255) }).type.length, 255)
    assert.match(refused({ eventType: "é".repeat(128) }), /^the event type "é+\.\.\." is longer than 255 bytes/)
  })

  it("when it is nested too deeply", () => {
    const payload = "[".repeat(100_000) + "]".repeat(100_000)
    assert.match(refused({ payload }), /nested too deeply/)
  })

  it.each([
    [
      "a key of more than 255 bytes",
      JSON.stringify({ ["k".repeat(256)]: 1 }),
      /^the header key "k+\.\.\." is longer than 255 bytes/
    ],
    [
      "such a key further in",
      JSON.stringify({ a: [{ ["k".repeat(256)]: 1 }] }),
      /^the header key "k+\.\.\." is longer/
    ],
    [
      "more than 64 KiB in all",
      JSON.stringify({ a: "v".repeat(65_536) }),
      /^the headers have 65566 bytes, more than the 65536/
    ],
    ["65 levels", `{"a":${"[".repeat(65)}${"]".repeat(65)}}`, /^the headers are nested more than 64 levels deep/],
    [
      "100,000 levels",
      `{"a":${"[".repeat(100_000)}${"]".repeat(100_000)}}`,
      /^the headers are nested more than 64 levels/
    ],
    ["an object that the client takes for its own notation", '{"a":{"!":"int64","value":"x"}}', /has the key "!"/],
    ["no object", "[1]", /^the headers are not a JSON object/],
    ["no JSON", "{", /^the headers are not JSON/]
  ])("when its headers have %s", (_, headers, expected) => {
    assert.match(refused({ headers }), expected)
  })

  it("when its aggregate's id does not fit into the headers", () => {
    assert.match(refused({ aggregateId: "a".repeat(70_000) }), /^the headers have 700\d\d bytes/)
  })
})

describe("a header", () => {
  it("keeps texts, truth values, null, lists and objects", () => {
    const headers = { a: "é", b: true, c: null, d: [1, "x", [false]], e: { f: { g: 0.5 } } }
    assert.deepStrictEqual(encoded({ headers: JSON.stringify(headers) }).headers, { ...headers, channel: "clicks" })
  })

  it.each([
    ["9007199254740992", 9_007_199_254_740_992],
    ["-9007199254740992", -9_007_199_254_740_992],
    ["9007199254740993", "9007199254740993"],
    ["9007199254740994", "9007199254740994"],
    ["100000000000000000000", "100000000000000000000"],
    ["1.0", 1],
    ["0.1", 0.1],
    ["1e400", "1e400"],
    ["0.123456789012345678901", "0.123456789012345678901"],
    ["1125899906842624.5", "1125899906842624.5"],
    ["-1125899906842624.5", "-1125899906842624.5"]
  ])("of the number %s is %s", (token, expected) => {
    const { headers } = encoded({ headers: `{"n": ${token}, "text": "${token}"}` })
    assert.deepStrictEqual(headers, { n: expected, text: token, channel: "clicks" })
  })

  it.effect.prop(
    "that is accepted is one that the client can encode, and a refused one names a reason",
    { headers: FastCheck.dictionary(FastCheck.string(), FastCheck.jsonValue({ depthSize: "medium" }), { maxKeys: 6 }) },
    ({ headers }) =>
      Effect.sync(() => {
        const { message } = encodeRow(row({ headers: JSON.stringify(headers) }), settings)
        if (Either.isLeft(message)) assert.match(message.left.reason, /header/)
        else assert.isAbove(encodeTable(Buffer.alloc(65_536), message.right.headers, 0), 4)
      })
  )

  it("fits or not exactly where the client's own limit is", () => {
    const numbers = Array.from({ length: 8_000 }, (_, index) => index * 7_919 * (index % 3 === 0 ? 100_003 : 1))
    const table = (length: number) => ({ numbers, x: "v".repeat(length), channel: "clicks" })
    const room = 65_536 - encodeTable(Buffer.alloc(65_536), table(0), 0)
    assert.isAbove(room, 0)
    const { channel: _, ...fits } = table(room)
    const { channel: __, ...tooMuch } = table(room + 1)
    assert.strictEqual(encodeTable(Buffer.alloc(65_536), encoded({ headers: JSON.stringify(fits) }).headers, 0), 65_536)
    assert.match(refused({ headers: JSON.stringify(tooMuch) }), /^the headers have 65537 bytes/)
  })
})

describe("the order key", () => {
  const keyOf = (over: Partial<OutboxRow>) => encodeRow(row(over), settings).orderKey

  it("is the same for one aggregate, and differs between types and ids however they are spelled", () => {
    assert.strictEqual(keyOf({ aggregateType: "a", aggregateId: "1" }), keyOf({ aggregateType: "a", aggregateId: "1" }))
    const keys = [
      keyOf({ aggregateType: "a", aggregateId: "1" }),
      keyOf({ aggregateType: "b", aggregateId: "1" }),
      keyOf({ aggregateType: undefined, aggregateId: "1" }),
      keyOf({ aggregateType: 'a","1', aggregateId: "" }),
      keyOf({ aggregateType: "a", aggregateId: '","1' })
    ]
    assert.strictEqual(new Set(keys).size, keys.length)
  })

  it("is there for a refused row too, and missing without an aggregate id", () => {
    assert.strictEqual(keyOf({ aggregateId: "1", channel: "x" }), '["","1"]')
    assert.isUndefined(keyOf({ aggregateType: "a", aggregateId: undefined }))
  })
})

describe("a live event", () => {
  const live = (payload: string, channel = "clicks") =>
    encodeLive({ id: "an-id", channel, payload, receivedAtSeconds: 7 }, settings)

  it("becomes a message of its channel, with its payload as the body and no order key", () => {
    const { orderKey, ...event } = Either.getOrThrow(live(' {"a": 1e400}'))
    assert.isUndefined(orderKey)
    assert.deepStrictEqual(messageOf({ ...event, orderKey }), {
      id: "an-id",
      exchange: "",
      routingKey: "click_queue",
      type: "clicks",
      timestampSeconds: 7,
      headers: { channel: "clicks" },
      body: Buffer.from('{"a":1e400}')
    })
  })

  it("that is no JSON can't be a message at all, and says why", () => {
    for (const payload of ["", "hello", "{"]) {
      assert.match(Either.getOrThrow(Either.flip(live(payload))).reason, /not JSON/)
    }
  })

  it("is refused like a row without a route, or with too large a body", () => {
    assert.strictEqual(reasonOf(Either.getOrThrow(live("1", "x"))), 'no route for channel "x"')
    assert.match(reasonOf(Either.getOrThrow(live(`"${"a".repeat(999)}"`))), /^the body has 1001 bytes/)
  })
})
