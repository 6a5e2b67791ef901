import { assert, describe, it } from "@effect/vitest"
import * as Arr from "effect/Array"
import * as Effect from "effect/Effect"
import * as Logger from "effect/Logger"
import * as Metric from "effect/Metric"
import * as TestClock from "effect/TestClock"
import { makeOtlpExporter, TraceExportError } from "../src/internal/otlpExporter.js"
import { otlpSender, otlpTarget } from "../src/internal/otlpHttp.js"
import { makeTracer, type RecordedSpan } from "../src/internal/otlpSpans.js"
import * as Metrics from "../src/Metrics.js"
import { collector } from "./support/collector.js"
import { freePort } from "./support/Service.js"

const away = new TraceExportError({ reason: "connect ECONNREFUSED", again: true })
const refused = new TraceExportError({ reason: "answered with status 400", again: false })

const dropped = Effect.map(Metric.value(Metrics.spansDropped), ({ count }) => count)

/** So many spans that have ended. */
const spans = (count: number) =>
  Effect.gen(function* () {
    const ended: Array<RecordedSpan> = []
    const tracer = makeTracer({
      recorded: new Set(["s"]),
      isWorthTelling: () => true,
      take: (some) => ended.push(...some)
    })
    yield* Effect.withTracer(
      Effect.forEach(Arr.range(1, count), () => Effect.withSpan(Effect.void, "s")),
      tracer
    )
    return ended
  })

/** An exporter that runs, with answers for its requests, one after the other; after them each request is taken. */
const start = (...answers: Array<Effect.Effect<void, TraceExportError>>) =>
  Effect.gen(function* () {
    const requests: Array<number> = []
    const lines: Array<string> = []
    const exporter = yield* makeOtlpExporter({
      resource: { "service.name": "test" },
      send: (body) =>
        Effect.suspend(() => {
          requests.push(JSON.parse(body).resourceSpans[0].scopeSpans[0].spans.length)
          return answers.shift() ?? Effect.void
        })
    })
    const logger = Logger.make(({ logLevel, message }) => {
      if (logLevel.label !== "DEBUG") lines.push(`${logLevel.label} ${Arr.ensure(message).join(" ")}`)
    })
    yield* Effect.forkScoped(Effect.provide(exporter.run, Logger.replace(Logger.defaultLogger, logger)))
    yield* TestClock.adjust(0)
    return { exporter, requests, lines }
  })

describe("spans for the collector", () => {
  it.scoped("go out together every five seconds, or as soon as they fill a request", () =>
    Effect.gen(function* () {
      const { exporter, requests } = yield* start()
      exporter.take(yield* spans(3))
      yield* TestClock.adjust("4 seconds")
      assert.deepStrictEqual(requests, [])
      yield* TestClock.adjust("1 seconds")
      assert.deepStrictEqual(requests, [3])
      exporter.take(yield* spans(513))
      yield* TestClock.adjust(0)
      assert.deepStrictEqual(requests, [3, 512, 1])
      yield* TestClock.adjust("1 minute")
      assert.deepStrictEqual(requests, [3, 512, 1], "nothing to send, no request")
    })
  )

  it.scoped("wait for a collector that is away, longer each time; that is told once, and its return as well", () =>
    Effect.gen(function* () {
      const { exporter, lines, requests } = yield* start(...Arr.replicate(Effect.fail(away), 4))
      exporter.take(yield* spans(2))
      yield* TestClock.adjust("5 seconds")
      assert.deepStrictEqual(requests, [2])
      yield* TestClock.adjust("35 seconds")
      assert.strictEqual(requests.length, 4, "after 5, 10 and 20 seconds")
      assert.deepStrictEqual(lines, [`WARN traces can't be exported, events go on without them: ${away.reason}`])
      yield* TestClock.adjust("30 seconds")
      assert.deepStrictEqual(requests, [2, 2, 2, 2, 2])
      assert.strictEqual(lines[1], "INFO traces are exported again")
    })
  )

  it.scoped("that are refused for good are lost and counted, and hold nothing up", () =>
    Effect.gen(function* () {
      const before = yield* dropped
      const { exporter, requests } = yield* start(Effect.fail(refused))
      exporter.take(yield* spans(2))
      yield* TestClock.adjust("5 seconds")
      exporter.take(yield* spans(1))
      yield* TestClock.adjust("5 seconds")
      assert.deepStrictEqual(requests, [2, 1])
      assert.strictEqual((yield* dropped) - before, 2)
    })
  )

  it.scoped("are 2048 in memory at most, however long the collector is away; the rest is lost and counted", () =>
    Effect.gen(function* () {
      const before = yield* dropped
      const { exporter, requests } = yield* start(Effect.fail(away))
      const some = yield* spans(1_000)
      for (let n = 0; n < 3; n++) exporter.take(some)
      assert.strictEqual((yield* dropped) - before, 952)
      yield* TestClock.adjust("5 seconds")
      assert.deepStrictEqual(requests, [512, 512, 512, 512, 512])
    })
  )

  it.scoped("that are left at the end are sent, unless the collector does not answer within two seconds", () =>
    Effect.gen(function* () {
      const sent: Array<string> = []
      const send = (body: string) => Effect.sync(() => sent.push(body))
      const willing = yield* makeOtlpExporter({ resource: {}, send })
      willing.take(yield* spans(1))
      yield* willing.flush
      assert.strictEqual(sent.length, 1)
      const silent = yield* makeOtlpExporter({ resource: {}, send: () => Effect.never })
      silent.take(yield* spans(1))
      const flushing = yield* Effect.fork(Effect.uninterruptible(silent.flush))
      yield* TestClock.adjust("2 seconds")
      assert.isTrue((yield* flushing.await)._tag === "Success")
    })
  )
})

describe("the collector's address", () => {
  it("is the endpoint and /v1/traces, with user and password apart", () => {
    const nobody = { user: "", password: "" }
    assert.deepStrictEqual(otlpTarget("http://localhost:4318"), { url: "http://localhost:4318/v1/traces", ...nobody })
    assert.deepStrictEqual(otlpTarget("https://host/otlp/"), { url: "https://host/otlp/v1/traces", ...nobody })
    assert.deepStrictEqual(otlpTarget("https://me:p%40ss@host"), {
      url: "https://host/v1/traces",
      user: "me",
      password: "p@ss"
    })
  })
})

describe("a request to the collector", () => {
  const body = JSON.stringify({ resourceSpans: [] })

  it.scopedLive("bears the user and the password of the endpoint", () =>
    Effect.gen(function* () {
      const { requests, url } = yield* collector
      yield* otlpSender(otlpTarget(url.replace("//", "//me:p%40ss@")))(body)
      yield* otlpSender(otlpTarget(url))(body)
      assert.deepStrictEqual(
        requests.map(({ headers }) => headers.authorization),
        [`Basic ${Buffer.from("me:p@ss").toString("base64")}`, undefined]
      )
    })
  )

  it.scopedLive("is tried again when the collector is busy or away, and not when it refuses", () =>
    Effect.gen(function* () {
      const { answers, url } = yield* collector
      const send = otlpSender(otlpTarget(url))(body)
      const again = (status: number) =>
        Effect.suspend(() => {
          answers.status = status
          return Effect.map(Effect.flip(send), (error) => error.again)
        })
      assert.deepStrictEqual(yield* Effect.forEach([429, 503, 400, 401, 500], again), [true, true, false, false, false])
      const port = yield* freePort
      const nobody = yield* Effect.flip(otlpSender(otlpTarget(`http://127.0.0.1:${port}`))(body))
      assert.deepStrictEqual([nobody.again, nobody.reason], [true, `connect ECONNREFUSED 127.0.0.1:${port}`])
    })
  )

  it.scoped("is given up when no answer comes within ten seconds", () =>
    Effect.gen(function* () {
      const { answers, url } = yield* collector
      answers.status = "silence"
      const sending = yield* Effect.fork(Effect.flip(otlpSender(otlpTarget(url))(body)))
      yield* TestClock.adjust("10 seconds")
      const error = yield* sending
      assert.deepStrictEqual([error.again, error.reason], [true, `${url}/v1/traces did not answer within 10s`])
    })
  )
})
