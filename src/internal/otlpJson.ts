/**
 * Spans as OTLP/HTTP takes them in JSON: https://opentelemetry.io/docs/specs/otlp/#json-protobuf-encoding
 *
 * Ids are hexadecimal there, 64-bit integers are texts, and enumerations are numbers.
 */
import * as Cause from "effect/Cause"
import type * as Tracer from "effect/Tracer"
import { failureOf, type RecordedSpan } from "./otlpSpans.js"
import { redact } from "./redact.js"

type AnyValue =
  | { readonly stringValue: string }
  | { readonly boolValue: boolean }
  | { readonly intValue: string }
  | { readonly doubleValue: number }

interface KeyValue {
  readonly key: string
  readonly value: AnyValue
}

/** What the spans come from: the attributes of the service. */
export type Resource = Readonly<Record<string, string>>

const kinds: Readonly<Record<Tracer.SpanKind, number>> = { internal: 1, server: 2, client: 3, producer: 4, consumer: 5 }

const STATUS_ERROR = 2

const toValue = (value: unknown): AnyValue => {
  switch (typeof value) {
    case "boolean":
      return { boolValue: value }
    case "bigint":
      return { intValue: String(value) }
    case "number":
      if (!Number.isFinite(value)) return { stringValue: String(value) }
      return Number.isSafeInteger(value) ? { intValue: String(value) } : { doubleValue: value }
    default:
      return { stringValue: redact(String(value)) }
  }
}

const toAttributes = (entries: Iterable<readonly [string, unknown]>): ReadonlyArray<KeyValue> =>
  Array.from(entries, ([key, value]) => ({ key, value: toValue(value) }))

/** The first line says what failed; the rest is a stack, which is in the log. */
const statusOf = (span: RecordedSpan) => {
  const failure = failureOf(span)
  return failure === undefined
    ? {}
    : { code: STATUS_ERROR, message: redact(Cause.pretty(failure).split("\n", 1)[0] ?? "") }
}

const toSpan = (span: RecordedSpan, shiftNanos: bigint) => {
  const { status } = span
  return {
    traceId: span.traceId,
    spanId: span.spanId,
    ...(span.above === undefined ? undefined : { parentSpanId: span.above.spanId }),
    name: span.name,
    kind: kinds[span.kind],
    startTimeUnixNano: String(status.startTime + shiftNanos),
    endTimeUnixNano: String((status._tag === "Ended" ? status.endTime : status.startTime) + shiftNanos),
    attributes: toAttributes(span.attributes),
    links: span.links.map(({ span: { spanId, traceId } }) => ({ traceId, spanId })),
    droppedLinksCount: span.droppedLinks,
    status: statusOf(span)
  }
}

/**
 * The body of one request. `shiftNanos` takes the spans' clock, which nobody sets, to the time of day: the machine's clock
 * may have been put right since the process started.
 */
export const exportRequest = (spans: ReadonlyArray<RecordedSpan>, resource: Resource, shiftNanos: bigint): string =>
  JSON.stringify({
    resourceSpans: [
      {
        resource: { attributes: toAttributes(Object.entries(resource)) },
        scopeSpans: [
          {
            scope: { name: resource["service.name"], version: resource["service.version"] },
            spans: spans.map((span) => toSpan(span, shiftNanos))
          }
        ]
      }
    ]
  })
