/**
 * Traces of what the relay does: one for each cycle that claimed something, with its claim, its publishing and its settling,
 * and one for each batch of live events that is published. They go to the collector that `OTEL_EXPORTER_OTLP_ENDPOINT`
 * names; without it no span is made.
 *
 * Cycles that claim nothing are left out, since a busy relay has hundreds in a second. So are the spans of the probes and
 * of the jobs' statements.
 */
import { randomUUID } from "node:crypto"
import { hostname } from "node:os"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Option from "effect/Option"
import { makeOtlpExporter } from "./internal/otlpExporter.js"
import { otlpSender, otlpTarget } from "./internal/otlpHttp.js"
import type { Resource } from "./internal/otlpJson.js"
import { cycleAttributes, spanNames } from "./internal/otlpNames.js"
import { failureOf, makeTracer, type RecordedSpan } from "./internal/otlpSpans.js"
import { packageVersion } from "./internal/packageVersion.js"
import { Settings } from "./Settings.js"

const recorded: ReadonlySet<string> = new Set(Object.values(spanNames))

const isWorthTelling = (root: RecordedSpan): boolean =>
  root.name !== spanNames.cycle || root.attributes.has(cycleAttributes.claimed) || failureOf(root) !== undefined

const resource = (): Resource => ({
  "service.name": "pg-listener",
  "service.version": packageVersion(),
  "service.instance.id": randomUUID(),
  "host.name": hostname()
})

const exportTo = (endpoint: string): Layer.Layer<never> =>
  Layer.unwrapScoped(
    Effect.gen(function* () {
      const target = otlpTarget(endpoint)
      const exporter = yield* makeOtlpExporter({ send: otlpSender(target), resource: resource() })
      // The exporter's own requests are no matter for a trace.
      const untraced = Effect.withTracerEnabled(false)
      yield* Effect.addFinalizer(() => untraced(exporter.flush))
      // Not supervised: should it ever end, the relay goes on without traces.
      yield* Effect.forkScoped(untraced(exporter.run))
      yield* Effect.logInfo(`traces go to ${target.url}`)
      return Layer.setTracer(makeTracer({ recorded, isWorthTelling, take: exporter.take }))
    })
  )

/** The tracer of everything above; what is left of the spans is sent at its end, within two seconds. */
export const layer: Layer.Layer<never, never, Settings> = Layer.unwrapEffect(
  Effect.map(Settings, ({ otlpEndpoint }) =>
    Option.match(otlpEndpoint, { onNone: () => Layer.setTracerEnabled(false), onSome: exportTo })
  )
)
