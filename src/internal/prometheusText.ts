/**
 * Prometheus' text format, version 0.0.4, as its documentation describes it:
 * https://prometheus.io/docs/instrumenting/exposition_formats/
 */

export type Labels = ReadonlyArray<readonly [name: string, value: string]>

export interface Sample {
  /** What follows the family's name: nothing, or `_bucket`, `_sum`, `_count` of a histogram. */
  readonly suffix: "" | "_bucket" | "_sum" | "_count"
  readonly labels: Labels
  readonly value: number | bigint
}

/** All series of one name. */
export interface Family {
  readonly name: string
  readonly type: "counter" | "gauge" | "histogram"
  readonly help: string
  readonly samples: ReadonlyArray<Sample>
}

/** A family of one series. */
export const single = (
  name: string,
  type: "counter" | "gauge",
  help: string,
  value: number,
  labels: Labels = []
): Family => ({ name, type, help, samples: [{ suffix: "", labels, value }] })

export const CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

const escapeHelp = (text: string): string => text.replaceAll("\\", "\\\\").replaceAll("\n", "\\n")

const escapeLabel = (text: string): string => escapeHelp(text).replaceAll('"', '\\"')

/** A number as Go reads it, which has other words for the infinities. */
export const showNumber = (value: number | bigint): string =>
  value === Number.POSITIVE_INFINITY ? "+Inf" : value === Number.NEGATIVE_INFINITY ? "-Inf" : String(value)

const showLabels = (labels: Labels): string =>
  labels.length === 0 ? "" : `{${labels.map(([name, value]) => `${name}="${escapeLabel(value)}"`).join(",")}}`

const showFamily = ({ help, name, samples, type }: Family): string => {
  const lines = samples.map(({ labels, suffix, value }) => `${name}${suffix}${showLabels(labels)} ${showNumber(value)}`)
  return [`# HELP ${name} ${escapeHelp(help)}`, `# TYPE ${name} ${type}`, ...lines, ""].join("\n")
}

export const showFamilies = (families: ReadonlyArray<Family>): string => families.map(showFamily).join("")
