import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Metric from "effect/Metric"
import * as MetricBoundaries from "effect/MetricBoundaries"
import { Health } from "../src/Health.js"
import { showFamilies, showNumber } from "../src/internal/prometheusText.js"
import * as Metrics from "../src/Metrics.js"
import { familiesOf, MetricsText } from "../src/MetricsText.js"
import { parseRoutes } from "../src/Routes.js"
import { Settings } from "../src/Settings.js"

/** The text of one metric of the process's registry: each test has names of its own. */
const textOf = (name: string) =>
  Effect.map(Metric.snapshot, (snapshot) => showFamilies(familiesOf(snapshot, (each) => each === name)))

const settings = Layer.orDie(
  Settings.layerFrom({
    DATABASE_URL: "postgres://127.0.0.1/none",
    AMQP_URL: "amqp://127.0.0.1",
    PG_LISTENER_ROUTES: "clicks=q,order.*=o"
  })
)

/** What a scrape shows, while `attached` says how the connections are. */
const scrape = (attached?: Parameters<Health["Type"]["attach"]>[0]) =>
  Effect.gen(function* () {
    if (attached !== undefined) yield* (yield* Health).attach(attached)
    return (yield* (yield* MetricsText).read).split("\n")
  }).pipe(Effect.provide(MetricsText.layer.pipe(Layer.provideMerge(Health.layer), Layer.provide(settings))))

describe("the text of a metric", () => {
  it.effect("has its help, its type and one line for each series, by labels", () =>
    Effect.gen(function* () {
      const counter = Metric.counter("test_lines_total", { description: "Lines.", incremental: true })
      yield* Metric.incrementBy(Metric.tagged(counter, "kind", "b"), 2)
      yield* Metric.increment(Metric.tagged(counter, "kind", "a"))
      assert.strictEqual(
        yield* textOf("test_lines_total"),
        `# HELP test_lines_total Lines.
# TYPE test_lines_total counter
test_lines_total{kind="a"} 1
test_lines_total{kind="b"} 2
`
      )
    })
  )

  it.effect("escapes what would end a label or a line, and keeps a quotation mark in the help", () =>
    Effect.gen(function* () {
      const gauge = Metric.gauge("test_escapes", { description: 'A "path" as C:\\new\nand more.' })
      yield* Metric.set(Metric.tagged(gauge, "path", 'C:\\new\n"x"'), 1)
      assert.strictEqual(
        yield* textOf("test_escapes"),
        `# HELP test_escapes A "path" as C:\\\\new\\nand more.
# TYPE test_escapes gauge
test_escapes{path="C:\\\\new\\n\\"x\\""} 1
`
      )
    })
  )

  it.effect("of a histogram has cumulative buckets, each with its upper bound, and the last one takes all", () =>
    Effect.gen(function* () {
      const histogram = Metric.histogram("test_wait_seconds", MetricBoundaries.fromIterable([0.5, 1, 10]), "Waits.")
      for (const seconds of [0.5, 0.7, 2, 3, 100]) yield* Metric.update(histogram, seconds)
      assert.strictEqual(
        yield* textOf("test_wait_seconds"),
        `# HELP test_wait_seconds Waits.
# TYPE test_wait_seconds histogram
test_wait_seconds_bucket{le="0.5"} 1
test_wait_seconds_bucket{le="1"} 2
test_wait_seconds_bucket{le="10"} 4
test_wait_seconds_bucket{le="+Inf"} 5
test_wait_seconds_sum 106.2
test_wait_seconds_count 5
`
      )
    })
  )

  it("writes numbers as Prometheus reads them", () => {
    assert.deepStrictEqual(
      [0, -1.5, 1e21, 12n, Number.NaN, Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY].map(showNumber),
      ["0", "-1.5", "1e+21", "12", "NaN", "+Inf", "-Inf"]
    )
  })
})

describe("a scrape", () => {
  it.scoped(
    "shows every series that the configuration names before anything has happened, and none of Effect's own",
    () =>
      Effect.gen(function* () {
        const lines = yield* scrape()
        const series = new Set(lines.filter((line) => !line.startsWith("#")).map((line) => line.split(" ")[0]))
        for (const expected of [
          "outbox_events_published_total",
          'outbox_events_failed_total{event_type="clicks"}',
          'outbox_events_failed_total{event_type="order.*"}',
          'outbox_events_failed_total{event_type="other"}',
          'pg_listener_notifications_total{channel="clicks"}',
          'pg_listener_notifications_total{channel="event_outbox"}',
          ...["published", "row", "kept", "dead"].map(
            (outcome) => `pg_listener_live_events_total{outcome="${outcome}"}`
          ),
          ...["notification", "poll", "busy"].map((kind) => `pg_listener_wakeups_total{kind="${kind}"}`),
          'outbox_batch_duration_seconds_bucket{le="+Inf"}',
          "outbox_publish_latency_seconds_count",
          "outbox_gauges_updated_timestamp_seconds"
        ]) {
          assert.isTrue(series.has(expected), expected)
        }
        assert.isFalse(series.has("outbox_events_failed_total"), "a series without its label")
        assert.isEmpty(lines.filter((line) => line.includes("effect_")))
      })
  )

  it.scoped("has the connections' states of this moment, and 0 before there are any", () =>
    Effect.gen(function* () {
      const states = (lines: ReadonlyArray<string>) =>
        lines.filter((line) => /^(pg_listener_connected|amqp_connected|amqp_blocked) /.test(line)).join(", ")
      assert.strictEqual(states(yield* scrape()), "pg_listener_connected 0, amqp_connected 0, amqp_blocked 0")
      const pg = Effect.succeed({ connected: true, disconnectedAt: undefined })
      const amqp = Effect.succeed({ connected: true, blocked: true, blockedReason: "low on disk" })
      const attached = { pg, amqp, schemaInOrder: Effect.succeed(true) }
      assert.strictEqual(states(yield* scrape(attached)), "pg_listener_connected 1, amqp_connected 1, amqp_blocked 1")
    })
  )
})

describe("the label of an event", () => {
  const routes = (text: string) => {
    const parsed = parseRoutes(text)
    return parsed._tag === "Right" ? parsed.right : assert.fail("not routes")
  }
  const label = Metrics.eventTypeLabel(routes("clicks=q,order.*=o,order.paid=p,a\\,b=q2"))

  it("is the source of its type's route, or else of its channel's; a pattern is one label", () => {
    assert.strictEqual(label({ eventType: "order.created", channel: undefined }), "order.*")
    assert.strictEqual(label({ eventType: "order.paid", channel: "clicks" }), "order.paid")
    assert.strictEqual(label({ eventType: undefined, channel: "clicks" }), "clicks")
    assert.strictEqual(label({ eventType: "unheard.of", channel: "clicks" }), "clicks")
    assert.strictEqual(label({ eventType: "a,b", channel: undefined }), "a\\,b")
  })

  it("is 'other' for whatever no route names, so a writer can't make series", () => {
    assert.strictEqual(label({ eventType: "unheard.of", channel: undefined }), "other")
    assert.strictEqual(label({ eventType: undefined, channel: undefined }), "other")
  })

  it("with a route for everything is that one only for what has no better, a channel's own among them", () => {
    const wide = Metrics.eventTypeLabel(routes("clicks=q,*=rest"))
    assert.strictEqual(wide({ eventType: undefined, channel: "clicks" }), "clicks")
    assert.strictEqual(wide({ eventType: "unheard.of", channel: undefined }), "*")
  })
})
