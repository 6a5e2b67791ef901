import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Either from "effect/Either"
import * as Layer from "effect/Layer"
import * as Option from "effect/Option"
import { AmqpError } from "../src/Errors.js"
import { exportRequest } from "../src/internal/otlpJson.js"
import { linkWriters, parseTraceparent } from "../src/internal/otlpLinks.js"
import { failureOf, makeTracer, type RecordedSpan } from "../src/internal/otlpSpans.js"
import type { Publishable } from "../src/Message.js"
import { Settings } from "../src/Settings.js"
import * as Tracing from "../src/Tracing.js"

const TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
const SPAN = "00f067aa0ba902b7"

/** Runs an effect under a tracer that records `outer` and `inner`, and gives the spans it told. */
const traced = <A, E>(effect: Effect.Effect<A, E>, isWorthTelling: (root: RecordedSpan) => boolean = () => true) =>
  Effect.gen(function* () {
    const told: Array<RecordedSpan> = []
    const tracer = makeTracer({
      recorded: new Set(["outer", "inner"]),
      isWorthTelling,
      take: (spans) => told.push(...spans)
    })
    yield* Effect.exit(Effect.withTracer(effect, tracer))
    return told
  })

const publishable = (headers: { readonly [key: string]: string }): Publishable => ({
  message: Either.right({
    id: "id",
    exchange: "",
    routingKey: "q",
    type: "t",
    timestampSeconds: 0,
    headers,
    body: Buffer.from("1")
  }),
  orderKey: undefined
})

const traceparent = (trace: string, span = SPAN) => publishable({ traceparent: `00-${trace}-${span}-01` })

describe("a trace", () => {
  it.effect("has the spans whose names are recorded; one in between passes its parent on", () =>
    Effect.gen(function* () {
      const [inner, outer] = yield* traced(
        Effect.void.pipe(Effect.withSpan("inner"), Effect.withSpan("in between"), Effect.withSpan("outer"))
      )
      assert.strictEqual(inner?.name, "inner")
      assert.strictEqual(inner?.above, outer)
      assert.strictEqual(inner?.traceId, outer?.traceId)
      assert.match(outer?.traceId ?? "", /^[0-9a-f]{32}$/)
      assert.match(outer?.spanId ?? "", /^[0-9a-f]{16}$/)
      assert.isUndefined(outer?.above)
    })
  )

  it.effect("is told as a whole or not at all, by what its root turned out to be", () =>
    Effect.gen(function* () {
      const cycle = (claimed: number) =>
        Effect.annotateCurrentSpan("claimed", claimed).pipe(
          Effect.zipRight(Effect.withSpan(Effect.void, "inner")),
          Effect.withSpan("outer")
        )
      const told = yield* traced(Effect.zipRight(cycle(0), cycle(3)), (root) => root.attributes.get("claimed") !== 0)
      assert.deepStrictEqual(
        told.map(({ name }) => name),
        ["inner", "outer"]
      )
    })
  )

  it.effect("knows what failed, and takes a stop for no failure", () =>
    Effect.gen(function* () {
      const [failed] = yield* traced(Effect.withSpan(Effect.fail("no"), "outer"))
      const [stopped] = yield* traced(Effect.withSpan(Effect.interrupt, "outer"))
      assert.isDefined(failed === undefined ? undefined : failureOf(failed))
      assert.isDefined(stopped)
      assert.isUndefined(stopped === undefined ? undefined : failureOf(stopped))
    })
  )
})

describe("the links of a batch", () => {
  it.effect("lead to each writer's trace once, and pass over what is no traceparent", () =>
    Effect.gen(function* () {
      const other = "a".repeat(32)
      const batch = [
        traceparent(TRACE),
        traceparent(TRACE, "b".repeat(16)),
        publishable({ traceparent: "00-a-b-01" }),
        publishable({}),
        traceparent(other)
      ]
      const [span] = yield* traced(Effect.withSpan(linkWriters(batch), "outer"))
      assert.deepStrictEqual(
        span?.links.map((link) => [link.span.traceId, link.span.spanId]),
        [
          [TRACE, SPAN],
          [other, SPAN]
        ]
      )
    })
  )

  it.effect("are 128 at most; the rest is counted", () =>
    Effect.gen(function* () {
      const batch = Array.from({ length: 200 }, (_, n) => traceparent((n + 1).toString(16).padStart(32, "0")))
      const [span] = yield* traced(Effect.withSpan(linkWriters(batch), "outer"))
      assert.strictEqual(span?.links.length, 128)
      assert.strictEqual(span?.droppedLinks, 72)
    })
  )

  it("know a traceparent by its form", () => {
    const good = [`00-${TRACE}-${SPAN}-01`, `00-${TRACE}-${SPAN}-00`, `42-${TRACE}-${SPAN}-01-of.a.later.version`]
    const bad = [
      `00-${TRACE}-${SPAN}-01-more`,
      `ff-${TRACE}-${SPAN}-01`,
      `00-${"0".repeat(32)}-${SPAN}-01`,
      `00-${TRACE}-${"0".repeat(16)}-01`,
      `00-${TRACE.toUpperCase()}-${SPAN}-01`,
      `00-${TRACE}-${SPAN}`,
      ""
    ]
    assert.deepStrictEqual(good.map(parseTraceparent).map(Option.isSome), [true, true, true])
    assert.deepStrictEqual(
      bad.filter((text) => Option.isSome(parseTraceparent(text))),
      []
    )
  })
})

describe("the request to the collector", () => {
  it.effect("has ids, kinds, times and values in the forms of OTLP's JSON, and no password", () =>
    Effect.gen(function* () {
      const told = yield* traced(
        Effect.fail(new AmqpError({ operation: "session", reason: "amqp://u:s3cret@host is away" })).pipe(
          Effect.withSpan("inner", {
            kind: "producer",
            attributes: { rows: 3, share: 0.5, full: true, note: "amqp://u:s3cret@host" }
          }),
          Effect.withSpan("outer")
        )
      )
      const [inner, outer] = told
      const { resourceSpans } = JSON.parse(exportRequest(told, { "service.name": "pg-listener" }, 5_000n))
      assert.deepStrictEqual(resourceSpans[0].resource.attributes, [
        { key: "service.name", value: { stringValue: "pg-listener" } }
      ])
      const [span, root] = resourceSpans[0].scopeSpans[0].spans
      assert.deepStrictEqual(span, {
        traceId: inner?.traceId,
        spanId: inner?.spanId,
        parentSpanId: outer?.spanId,
        name: "inner",
        kind: 4,
        startTimeUnixNano: "5000",
        endTimeUnixNano: "5000",
        attributes: [
          { key: "rows", value: { intValue: "3" } },
          { key: "share", value: { doubleValue: 0.5 } },
          { key: "full", value: { boolValue: true } },
          { key: "note", value: { stringValue: "amqp://u:<redacted>@host" } },
          ...span.attributes.slice(4)
        ],
        links: [],
        droppedLinksCount: 0,
        status: { code: 2, message: "AmqpError: AMQP session: amqp://u:<redacted>@host is away" }
      })
      assert.notProperty(root, "parentSpanId")
      assert.notInclude(JSON.stringify(resourceSpans), "s3cret")
    })
  )
})

describe("without OTEL_EXPORTER_OTLP_ENDPOINT", () => {
  it.effect("no span is made, and no batch is looked at", () =>
    Effect.gen(function* () {
      const settings = Layer.orDie(
        Settings.layerFrom({ DATABASE_URL: "postgres://127.0.0.1/none", AMQP_URL: "amqp://127.0.0.1" })
      )
      let looks = 0
      const batch = new Proxy([traceparent(TRACE)], {
        get: (target, key) => {
          looks++
          return Reflect.get(target, key)
        }
      })
      const span = yield* Effect.zipRight(linkWriters(batch), Effect.currentSpan).pipe(
        Effect.withSpan("amqp.publish"),
        Effect.provide(Layer.provide(Tracing.layer, settings))
      )
      assert.isFalse(span.sampled)
      assert.strictEqual(span.spanId, "noop")
      assert.strictEqual(looks, 0)
    })
  )
})
