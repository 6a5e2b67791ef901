/** What the running service tells of itself: `/metrics`, and the traces that it sends. */
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as PromTool from "../../dev/PromTool.js"
import { run } from "../../dev/RunProgram.js"
import { allProcessed, bridge } from "../support/bridge.js"
import { consume } from "../support/Consumer.js"
import { type CollectedSpan, collector } from "../support/collector.js"
import { eventually } from "../support/eventually.js"
import { freePort, type Service } from "../support/Service.js"

/** The page as text, and its series with their values. */
const scrape = (service: Service) =>
  Effect.map(
    Effect.promise(() =>
      fetch(`${service.url}/metrics`).then(async (answer) => ({ answer, text: await answer.text() }))
    ),
    ({ answer, text }) => {
      const lines = text.split("\n").filter((line) => line !== "" && !line.startsWith("#"))
      const series = new Map(
        lines.map((line) => [line.slice(0, line.lastIndexOf(" ")), Number(line.split(" ").at(-1))])
      )
      return { contentType: answer.headers.get("content-type"), text, series }
    }
  )

/** Section 10 of the design, and what came with it. */
const PROMISED = [
  "outbox_events_published_total",
  "outbox_events_failed_total",
  "outbox_events_pending",
  "outbox_events_dead",
  "outbox_oldest_pending_seconds",
  "outbox_batch_duration_seconds",
  "outbox_publish_latency_seconds",
  "outbox_events_swept_total",
  "outbox_events_cleaned_total",
  "outbox_gauges_updated_timestamp_seconds",
  "outbox_gauges_failed_total",
  "pg_listener_connected",
  "pg_listener_reconnects_total",
  "pg_listener_notifications_total",
  "pg_listener_live_events_total",
  "pg_listener_doorbell_busy",
  "pg_listener_wakeups_total",
  "pg_listener_build_info",
  "amqp_connected",
  "amqp_blocked",
  "process_cpu_seconds_total",
  "process_resident_memory_bytes",
  "process_start_time_seconds",
  "nodejs_eventloop_lag_seconds",
  "nodejs_heap_size_used_bytes",
  "nodejs_version_info"
]

describe("the page /metrics", () => {
  it.scopedLive("has every promised figure, in a form that Prometheus' own promtool has nothing against", () =>
    Effect.gen(function* () {
      const { service, sql } = yield* bridge({
        PG_LISTENER_ROUTES: "campaign_click=clicks,order.*=orders,lost=nowhere/{channel}",
        PG_LISTENER_GAUGES_INTERVAL: "100 millis"
      })
      yield* sql.query(`
        insert into event_outbox (event_type, payload) values ('order.created', '1'), ('order.paid', '2');
        insert into event_outbox (event_type, payload) values ('un"routed\\', '3');
        insert into event_outbox (channel, payload) values ('lost', '4');
        insert into event_outbox (channel, payload, dead_at) values ('lost', '5', now());
        notify campaign_click, '{"n": 1}'`)
      const { contentType, series, text } = yield* eventually(
        "every event counted",
        scrape(service),
        ({ series }) =>
          series.get("outbox_events_published_total") === 2 &&
          series.get('pg_listener_live_events_total{outcome="published"}') === 1 &&
          series.get("outbox_events_dead") === 1 &&
          series.get("outbox_events_pending") === 2 &&
          series.get('outbox_events_failed_total{event_type="lost"}') === 1
      )
      assert.strictEqual(contentType, "text/plain; version=0.0.4; charset=utf-8")
      const typed = new Set([...text.matchAll(/^# TYPE (\S+) /gm)].map(([, name]) => name))
      assert.deepStrictEqual(
        PROMISED.filter((name) => !typed.has(name)),
        []
      )
      // No route names this type, so its writer does not get a series of its own.
      assert.strictEqual(series.get('outbox_events_failed_total{event_type="other"}'), 1)
      assert.strictEqual(series.get('outbox_events_failed_total{event_type="order.*"}'), 0)
      assert.strictEqual(series.get('pg_listener_notifications_total{channel="campaign_click"}'), 1)
      assert.strictEqual(series.get('outbox_publish_latency_seconds_bucket{le="+Inf"}'), 2)
      assert.isAbove(series.get("outbox_oldest_pending_seconds") ?? 0, 0)
      assert.strictEqual(series.get("pg_listener_connected"), 1)
      assert.strictEqual(series.get("amqp_connected"), 1)
      assert.strictEqual(series.get("amqp_blocked"), 0)

      const promtool = yield* PromTool.findOrInstall
      const command = { command: "sh", args: ["-c", 'printf %s "$2" | "$1" check metrics', "sh", promtool, text] }
      assert.strictEqual(yield* run("promtool", command, {}, 20_000), "")
    })
  )
})

const WRITER = { trace: "4bf92f3577b34da6a3ce929d0e0e4736", span: "00f067aa0ba902b7" }

const attribute = (span: CollectedSpan | undefined, key: string) =>
  span?.attributes.find((each) => each.key === key)?.value

describe("with OTEL_EXPORTER_OTLP_ENDPOINT, the service", () => {
  it.scopedLive("sends one trace for each batch, linked to the writers' traces, which the messages go on with", () =>
    Effect.gen(function* () {
      const traces = yield* collector
      const { service, sql, vhost } = yield* bridge({
        PG_LISTENER_ROUTES: "clicks=clicks",
        OTEL_EXPORTER_OTLP_ENDPOINT: traces.url
      })
      const consumer = yield* consume(vhost.url, "clicks")
      const traceparent = `00-${WRITER.trace}-${WRITER.span}-01`
      yield* sql.query(
        `insert into event_outbox (channel, payload, headers) select 'clicks', to_jsonb(n), jsonb_build_object('traceparent', $1::text)
         from generate_series(1, 3) n`,
        [traceparent]
      )
      const [message] = yield* consumer.take(3, "10 seconds")
      assert.strictEqual(message?.headers["traceparent"], traceparent)
      yield* allProcessed(sql)
      // What the exporter still has is sent at the end.
      yield* service.kill("SIGTERM")
      assert.strictEqual((yield* service.exited()).code, 0, service.output())

      const roots = traces.spans.filter(({ parentSpanId }) => parentSpanId === undefined)
      assert.deepStrictEqual(
        roots.map(({ name }) => name),
        ["relay.cycle"],
        "cycles that claimed nothing, probes and jobs are not told"
      )
      const [cycle] = roots
      const parts = traces.spans.filter(({ parentSpanId }) => parentSpanId === cycle?.spanId)
      assert.deepStrictEqual(
        parts.map(({ kind, name }) => [name, kind]),
        [
          ["outbox.claim", 3],
          ["amqp.publish", 4],
          ["outbox.settle", 3]
        ]
      )
      assert.strictEqual(traces.spans.length, 4)
      assert.deepStrictEqual(attribute(cycle, "outbox.processed"), { intValue: "3" })
      const publish = parts[1]
      assert.deepStrictEqual(attribute(publish, "messaging.batch.message_count"), { intValue: "3" })
      assert.deepStrictEqual(publish?.links, [{ traceId: WRITER.trace, spanId: WRITER.span }])
      for (const { endTimeUnixNano, startTimeUnixNano } of traces.spans) {
        const [start, end] = [BigInt(startTimeUnixNano), BigInt(endTimeUnixNano)]
        assert.isTrue(start < end)
        assert.isBelow(Math.abs(Number(end / 1_000_000n) - (message?.receivedAt ?? 0)), 60_000)
      }
      const [request] = traces.requests
      assert.strictEqual(request?.path, "/v1/traces")
      assert.strictEqual(request?.headers["content-type"], "application/json")
      assert.notProperty(request?.headers, "traceparent")
    })
  )

  it.scopedLive("carries events and stops as usual when no collector is there, and says so once", () =>
    Effect.gen(function* () {
      const port = yield* freePort
      const { service, sql } = yield* bridge({
        OTEL_EXPORTER_OTLP_ENDPOINT: `http://me:s3cret@127.0.0.1:${port}`
      })
      yield* sql.query("insert into event_outbox (channel, payload) values ('campaign_click', '1')")
      yield* allProcessed(sql)
      // The last traces are tried at the end in any case.
      yield* service.kill("SIGTERM")
      assert.strictEqual((yield* service.exited()).code, 0)
      const warnings = service
        .output()
        .split("\n")
        .filter((line) => line.includes("traces can't be exported"))
      assert.strictEqual(warnings.length, 1, service.output())
      assert.include(warnings[0], `connect ECONNREFUSED 127.0.0.1:${port}`)
      assert.notInclude(service.output(), "s3cret")
    })
  )
})
