/**
 * From the messages of a batch to the traces of those who wrote the events.
 *
 * A writer that is traced puts the `traceparent` of its own span into the row's headers, which are the message's; so the
 * consumer goes on with the writer's trace, and not with ours. Ours names them: a batch has many writers, and a span has
 * one parent only.
 */
import * as Effect from "effect/Effect"
import * as Either from "effect/Either"
import * as Option from "effect/Option"
import * as Tracer from "effect/Tracer"
import type { Publishable } from "../Message.js"
import { RecordedSpan } from "./otlpSpans.js"

/** As https://www.w3.org/TR/trace-context/ has it: only versions after 00 may have more at the end. */
const form = /^(?!ff|00.{54})[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?$/

/** The span that a `traceparent` names; none when it is not in its form. */
export const parseTraceparent = (text: string): Option.Option<Tracer.ExternalSpan> => {
  const [, traceId, spanId, flags] = form.exec(text) ?? []
  return traceId === undefined || spanId === undefined || flags === undefined
    ? Option.none()
    : Option.some(Tracer.externalSpan({ traceId, spanId, sampled: (Number.parseInt(flags, 16) & 1) === 1 }))
}

/** One link for each trace that a message of the batch belongs to: to the first span of it that is met. */
export const writerLinks = (batch: ReadonlyArray<Publishable>): ReadonlyArray<Tracer.SpanLink> => {
  const links = new Map<string, Tracer.SpanLink>()
  for (const { message } of batch) {
    const traceparent = Either.isRight(message) ? message.right.headers["traceparent"] : undefined
    if (typeof traceparent !== "string") continue
    const span = Option.getOrUndefined(parseTraceparent(traceparent))
    if (span === undefined || links.has(span.traceId)) continue
    links.set(span.traceId, { _tag: "SpanLink", span, attributes: {} })
  }
  return Array.from(links.values())
}

/** Links the current span to the writers' traces. Without tracing it does not even look at the batch. */
export const linkWriters = (batch: ReadonlyArray<Publishable>): Effect.Effect<void> =>
  Effect.map(Effect.option(Effect.currentSpan), (current) => {
    const span = Option.getOrUndefined(current)
    if (span instanceof RecordedSpan) span.addLinks(writerLinks(batch))
  })
