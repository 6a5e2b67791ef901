import { assert, describe, it } from "@effect/vitest"
import * as Either from "effect/Either"
import { defaultRoutes, parseRoutes, type RouteKey } from "../src/Routes.js"

const routes = (text: string) =>
  Either.getOrThrowWith(parseRoutes(text), (problems) => new Error(`not routes: ${problems.join("; ")}`))

const problems = (text: string): ReadonlyArray<string> =>
  Either.match(parseRoutes(text), { onLeft: (all) => all, onRight: () => [] })

const nobody: RouteKey = { channel: undefined, eventType: undefined, aggregateType: undefined, aggregateId: undefined }

/** Where an event goes, as `exchange/key`, or why it goes nowhere. */
const whereTo = (text: string, key: Partial<RouteKey>): string =>
  Either.match(routes(text).resolve({ ...nobody, ...key }), {
    onLeft: (refusal) => refusal.reason,
    onRight: ({ exchange, routingKey }) => `${exchange}/${routingKey}`
  })

const accepts = (text: string, key: Partial<RouteKey>, expected: string) =>
  assert.strictEqual(whereTo(text, key), expected)

const refuses = (text: string, ...expected: ReadonlyArray<RegExp>) => {
  const found = problems(text)
  assert.strictEqual(found.length, expected.length, found.join("\n"))
  expected.forEach((pattern, index) => {
    assert.match(found[index] ?? "", pattern)
  })
}

describe("the text of the routes", () => {
  it("has five routes by default, one queue each", () => {
    const { all, channels, exchanges, queues } = routes(defaultRoutes)
    assert.deepStrictEqual(
      all.map(({ source, target }) => [source, target]),
      [
        ["attribute_changed", "attribute_change"],
        ["friend_track_event_inserted", "friend_track_event_trigger"],
        ["form_submitted", "form_submitted_trigger"],
        ["campaign_click", "campaign_click_trigger"],
        ["booking_event", "booking_event_trigger"]
      ]
    )
    assert.deepStrictEqual(
      channels,
      all.map(({ source }) => source)
    )
    assert.deepStrictEqual(
      queues,
      all.map(({ target }) => target)
    )
    assert.deepStrictEqual(exchanges, [])
  })

  it("may have white space, line breaks and a comma at the end", () => {
    const { all } = routes("  a = q1 ,\n\tb*= events / {channel} ,\n")
    assert.deepStrictEqual(all, [
      { source: "a", target: "q1" },
      { source: "b*", target: "events / {channel}" }
    ])
    accepts("  a = q1 ,\n\tb*= events / {channel} ,\n", { channel: "b1" }, "events/b1")
  })

  it("names each queue and exchange once, and LISTENs on exact sources only", () => {
    const { channels, exchanges, queues } = routes("a=q,b=q,c*=r,d=x/1,e=x/2,f=y/{channel}")
    assert.deepStrictEqual(channels, ["a", "b", "d", "e", "f"])
    assert.deepStrictEqual(queues, ["q", "r"])
    assert.deepStrictEqual(exchanges, ["x", "y"])
  })

  it("may have an exact source too long for a channel, which is an event type then and is not LISTENed on", () => {
    const channel = "c".repeat(63)
    const type = "é".repeat(32)
    assert.deepStrictEqual(routes(`${channel}=a,${type}=b`).channels, [channel])
    accepts(`${channel}=a,${type}=b`, { eventType: type }, "/b")
  })

  it.each([
    ["a\\,b=q", { channel: "a,b" }, "/q"],
    ["a\\=b=q\\=r", { channel: "a=b" }, "/q=r"],
    ["a/b=q\\/r", { channel: "a/b" }, "/q/r"],
    ["a\\*=q\\*", { channel: "a*" }, "/q*"],
    ["a\\{b\\}=x\\{/k\\{channel\\}", { channel: "a{b}" }, "x{/k{channel}"],
    ["a\\\\=q\\\\", { channel: "a\\" }, "/q\\"],
    ["\\ a\\ =\\ q\\ ", { channel: " a " }, "/ q "],
    ["\\**=q", { channel: "*1" }, "/q"]
  ])("takes the meaning from a special character behind a backslash: %s", (text, key, expected) => {
    accepts(text, key, expected)
  })

  it("may have slashes in the routing key, and an empty key for a fanout exchange", () => {
    accepts("a=x/k/l", { channel: "a" }, "x/k/l")
    accepts("a=x/", { channel: "a" }, "x/")
  })

  it.each([
    ["", /^there is no route/],
    [" , ", /is empty; is there a comma too many/],
    ["a=q,,b=r", /is empty; is there a comma too many/],
    ["a", /^route "a": has no target; write source=target/],
    ["=q", /source is empty/],
    ["a=", /target is empty/],
    ["a=b=c", /second =; is a comma missing/],
    ["a*b=q", /\* can only be the last character/],
    ["**=q", /\* can only be the last character/],
    ["a=q*", /\* has no meaning in a target/],
    ["{channel}=q", /placeholder belongs in the routing key/],
    ["a={channel}", /the name of a queue can't have a placeholder; write exchange\/\{channel\}/],
    ["a=x{channel}/k", /the name of an exchange can't have a placeholder/],
    [
      "a=x/{id}",
      /\{id\} is no placeholder; there are \{channel\}, \{event_type\}, \{aggregate_type\}, \{aggregate_id\}/
    ],
    ["a=x/{toString}", /\{toString\} is no placeholder/],
    ["a=x/{channel", /\{ is never closed/],
    ["a=x/channel}", /\} has no \{ before it/],
    ["a=/q", /write only the queue's name, without the slash/],
    ["a=amq.default/q", /write only the queue's name, without the slash/],
    ["a=q,a=r", /the source "a" has a route already/],
    ["a*=q,a*=r", /the source "a\*" has a route already/],
    ["a\\b=q", /backslash before "b" has no meaning; write \\\\ for a backslash/],
    ["a=q\\", /backslash at the end/],
    [`a=${"q".repeat(256)}`, /the queue's name is longer than 255 bytes/],
    [`a=${"é".repeat(128)}/k`, /the exchange's name is longer than 255 bytes/],
    [`a=x/${"k".repeat(128)}{channel}${"k".repeat(128)}`, /the routing key is longer than 255 bytes/],
    [`${"a".repeat(256)}=q`, /the source is longer than 255 bytes/]
  ])("is refused with a mend: %s", (text, expected) => {
    refuses(text, expected)
  })

  it("has all its problems told at once, each with its route", () => {
    refuses("a,b=q,c=/q,b=r,d=x/{y}", /route "a"/, /route "c=\/q"/, /route "b=r"/, /route "d=x/)
  })

  it("tells an exact source and a pattern of the same letters apart", () => {
    accepts("a=q,a*=r,a\\*=s", { channel: "a" }, "/q")
    accepts("a=q,a*=r,a\\*=s", { channel: "ab" }, "/r")
    accepts("a=q,a*=r,a\\*=s", { channel: "a*" }, "/s")
  })

  it("may be as long as 255 bytes in every part", () => {
    const name = "n".repeat(255)
    accepts(`a=${name},b=${name}/${name}`, { channel: "a" }, `/${name}`)
    accepts(`a=${name},b=${name}/${name}`, { channel: "b" }, `${name}/${name}`)
  })
})

describe("a route", () => {
  const text = "order.created=created,order.*=orders,o*=others,chan=by-channel,*=rest"

  it("is found by the exact name before any pattern", () => {
    accepts(text, { eventType: "order.created" }, "/created")
  })

  it("is found by the longest pattern, whatever their order", () => {
    accepts(text, { eventType: "order.paid" }, "/orders")
    accepts(text, { eventType: "other" }, "/others")
    accepts("*=rest,o*=others,order.*=orders", { eventType: "order.paid" }, "/orders")
  })

  it("is found by the channel first, even by its pattern before the event type's exact name", () => {
    accepts("chan=by-channel,order.created=created", { channel: "chan", eventType: "order.created" }, "/by-channel")
    accepts("ch*=by-channel,order.created=created", { channel: "chan", eventType: "order.created" }, "/by-channel")
  })

  it("is found by the event type when the channel has none", () => {
    accepts("chan=by-channel,order.created=created", { channel: "unrouted", eventType: "order.created" }, "/created")
  })

  it("with a bare * takes everything that has a name", () => {
    accepts(text, { channel: "" }, "/rest")
    accepts(text, { eventType: "zebra" }, "/rest")
  })

  it("fills the placeholders of its routing key", () => {
    accepts(
      "*=x/{channel}.{event_type}.{aggregate_type}.{aggregate_id}/end",
      { channel: "c", eventType: "t", aggregateType: "order", aggregateId: "7" },
      "x/c.t.order.7/end"
    )
  })

  it("refuses an event that lacks a value for a placeholder, and takes an empty one", () => {
    accepts("c=x/{aggregate_id}", { channel: "c" }, "routing key needs {aggregate_id} but the event has none")
    accepts("c=x/a{aggregate_id}", { channel: "c", aggregateId: "" }, "x/a")
  })

  it("refuses an event whose finished routing key is longer than 255 bytes", () => {
    accepts("c=x/{aggregate_id}", { channel: "c", aggregateId: "a".repeat(255) }, `x/${"a".repeat(255)}`)
    assert.match(
      whereTo("c=x/{aggregate_id}", { channel: "c", aggregateId: "é".repeat(128) }),
      /^the routing key "é+\.\.\." is longer than 255 bytes/
    )
  })

  it("that is missing is named by channel and event type", () => {
    accepts("a=q", { channel: "x", eventType: "y" }, 'no route for channel "x", event type "y"')
    accepts("a=q", { channel: "x" }, 'no route for channel "x"')
    accepts("a=q", { eventType: "y" }, 'no route for event type "y"')
  })
})
