/**
 * What `GET /metrics` answers (design, section 10): our metrics of the process's registry, the connections' states, and the
 * process's own figures, in Prometheus' text format.
 */
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Metric from "effect/Metric"
import type * as MetricPair from "effect/MetricPair"
import * as MetricState from "effect/MetricState"
import * as Option from "effect/Option"
import { Health, type HealthReport } from "./Health.js"
import { packageVersion } from "./internal/packageVersion.js"
import { watchProcess } from "./internal/processFigures.js"
import { type Family, type Labels, type Sample, showFamilies, showNumber, single } from "./internal/prometheusText.js"
import * as Metrics from "./Metrics.js"
import { Settings } from "./Settings.js"

/** Reads everything at the moment of the scrape. Asks no server. */
export class MetricsText extends Context.Tag("pg-listener/MetricsText")<
  MetricsText,
  { readonly read: Effect.Effect<string> }
>() {
  static readonly layer: Layer.Layer<MetricsText, never, Settings | Health> = Layer.scoped(
    this,
    Effect.gen(function* () {
      const settings = yield* Settings
      const health = yield* Health
      const readProcess = yield* watchProcess
      const build = buildInfo(packageVersion())
      yield* Metrics.registerAll(settings)
      return {
        read: Effect.gen(function* () {
          const counted = familiesOf(yield* Metric.snapshot, Metrics.isOurs)
          const connections = connectionFamilies(yield* health.report)
          return showFamilies([...counted, ...connections, build, ...readProcess()])
        })
      }
    })
  )
}

/**
 * The metrics of a registry as families, by name and within a name by labels; `isOurs` says which names to take. The
 * registry has them in the order of their first use, in which the series of one name need not be neighbours.
 */
export const familiesOf = (
  snapshot: ReadonlyArray<MetricPair.MetricPair.Untyped>,
  isOurs: (name: string) => boolean
): ReadonlyArray<Family> => {
  const families = new Map<string, { readonly head: Omit<Family, "samples">; readonly samples: Array<Sample> }>()
  const series = snapshot
    .filter(({ metricKey }) => isOurs(metricKey.name))
    .map(({ metricKey, metricState }) => ({
      name: metricKey.name,
      help: Option.getOrElse(metricKey.description, () => ""),
      labels: metricKey.tags.map(({ key, value }) => [key, value] as const),
      state: metricState
    }))
    .sort((a, b) => compare(a.name, b.name) || compare(String(a.labels), String(b.labels)))
  for (const { help, labels, name, state } of series) {
    const shown = samplesOf(state, labels)
    if (shown === undefined) continue
    const family = families.get(name) ?? { head: { name, help, type: shown.type }, samples: [] }
    family.samples.push(...shown.samples)
    families.set(name, family)
  }
  return Array.from(families.values(), ({ head, samples }) => ({ ...head, samples }))
}

const compare = (a: string, b: string): number => (a < b ? -1 : a > b ? 1 : 0)

/** The samples of one series; `undefined` for a kind that we have none of. */
const samplesOf = (
  state: MetricPair.MetricPair.Untyped["metricState"],
  labels: Labels
): { readonly type: Family["type"]; readonly samples: ReadonlyArray<Sample> } | undefined => {
  const plain = (value: number | bigint): ReadonlyArray<Sample> => [{ suffix: "", labels, value }]
  if (MetricState.isCounterState(state)) return { type: "counter", samples: plain(state.count) }
  if (MetricState.isGaugeState(state)) return { type: "gauge", samples: plain(state.value) }
  if (!MetricState.isHistogramState(state)) return undefined
  const bucket = (le: number, value: number): Sample => ({
    suffix: "_bucket",
    labels: [...labels, ["le", showNumber(le)]],
    value
  })
  // The buckets are cumulative as they are; the last one, which takes everything, is written by the count, as it must be.
  const finite = state.buckets.filter(([le]) => le !== Number.POSITIVE_INFINITY)
  return {
    type: "histogram",
    samples: [
      ...finite.map(([le, value]) => bucket(le, value)),
      bucket(Number.POSITIVE_INFINITY, state.count),
      { suffix: "_sum", labels, value: state.sum },
      { suffix: "_count", labels, value: state.count }
    ]
  }
}

const flag = (name: string, help: string, holds: boolean): Family => single(name, "gauge", help, holds ? 1 : 0)

const connectionFamilies = ({ amqp, pg }: HealthReport): ReadonlyArray<Family> => [
  flag("pg_listener_connected", "1 while the LISTEN session is connected.", pg.connected),
  flag("amqp_connected", "1 while the session with RabbitMQ is connected.", amqp.connected),
  flag("amqp_blocked", "1 while RabbitMQ takes no messages (memory or disk alarm).", amqp.blocked)
]

const buildInfo = (version: string): Family =>
  single("pg_listener_build_info", "gauge", "The version that runs.", 1, [["version", version]])
