/**
 * Two kinds of plot as SVG, readable on light and on dark pages: bars with their spread, and lines.
 */
import { number, type Spread } from "./Stats.js"

/** Told apart by those who see no red or green as well, and on both backgrounds. */
const colours = ["#3b82c4", "#e08e0b", "#2a9d74", "#c85a9b", "#8172c8", "#7f8a93", "#b5533c"]

const style = `<style>
text { font: 12px system-ui, sans-serif; fill: #333 }
.title { font-size: 15px; font-weight: 600 }
.axis { stroke: #8a8a8a; stroke-opacity: .45 }
.whisker { stroke: #333 }
@media (prefers-color-scheme: dark) { text { fill: #ddd } .whisker { stroke: #ddd } }
</style>`

const escaped = (text: string) => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;")

const text = (x: number, y: number, content: string, more = "") =>
  `<text x="${x.toFixed(1)}" y="${y.toFixed(1)}" ${more}>${escaped(content)}</text>`

const line = (x1: number, y1: number, x2: number, y2: number, className: string) =>
  `<line x1="${x1.toFixed(1)}" y1="${y1.toFixed(1)}" x2="${x2.toFixed(1)}" y2="${y2.toFixed(1)}" class="${className}"/>`

const picture = (width: number, height: number, title: string, parts: ReadonlyArray<string>) =>
  [
    `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${width} ${height}" width="${width}" height="${height}" role="img">`,
    `<title>${escaped(title)}</title>`,
    style,
    text(16, 24, title, 'class="title"'),
    ...parts,
    "</svg>\n"
  ].join("\n")

/** The next round number: 1, 2 or 5 with zeros. */
const roundUp = (value: number): number => {
  const power = 10 ** Math.floor(Math.log10(Math.max(value, 1e-9)))
  return ([1, 2, 5, 10].find((step) => step * power >= value) ?? 10) * power
}

export interface Bar {
  readonly label: string
  readonly value: Spread
}

export interface BarGroup {
  readonly label: string
  readonly bars: ReadonlyArray<Bar>
}

const barHeight = 18
const labelWidth = 250
const plotWidth = 420

/** Horizontal bars in groups, with the figure behind each and a line from the least to the most. */
export const bars = (options: {
  readonly title: string
  readonly unit: string
  readonly groups: ReadonlyArray<BarGroup>
  readonly digits?: number
}): string => {
  const groups = options.groups.filter(({ bars }) => bars.length > 0)
  const labels = [...new Set(groups.flatMap(({ bars }) => bars.map(({ label }) => label)))]
  const most = Math.max(...groups.flatMap(({ bars }) => bars.map(({ value }) => value.max)), 0)
  const x = (value: number) => labelWidth + (value / roundUp(most)) * plotWidth
  const parts: Array<string> = []
  let y = 44
  for (const group of groups) {
    parts.push(text(16, y + 12, group.label, 'font-weight="600"'))
    y += 20
    for (const { label, value } of group.bars) {
      const middle = y + barHeight / 2
      const colour = colours[labels.indexOf(label) % colours.length]
      parts.push(
        text(labelWidth - 8, middle + 4, label, 'text-anchor="end"'),
        `<rect x="${labelWidth}" y="${y + 2}" width="${(x(value.median) - labelWidth).toFixed(1)}" height="${barHeight - 4}" rx="2" fill="${colour}"/>`,
        line(x(value.min), middle, x(value.max), middle, "whisker"),
        text(x(value.max) + 6, middle + 4, number(value.median, options.digits))
      )
      y += barHeight
    }
    y += 12
  }
  parts.push(line(labelWidth, 40, labelWidth, y - 8, "axis"))
  parts.push(text(labelWidth, y + 8, `${options.unit}; bar: median, line: least to most`))
  return picture(labelWidth + plotWidth + 90, y + 24, options.title, parts)
}

export interface Line {
  readonly label: string
  readonly points: ReadonlyArray<{ readonly x: number; readonly y: number }>
}

const plotHeight = 240
const left = 70

/** Lines over a common axis; `logX` for one that goes over several powers of ten. */
export const lines = (options: {
  readonly title: string
  readonly unitX: string
  readonly unitY: string
  readonly lines: ReadonlyArray<Line>
  readonly logX?: boolean
}): string => {
  const all = options.lines.flatMap(({ points }) => points)
  const scale = (value: number) => (options.logX === true ? Math.log10(Math.max(value, 1)) : value)
  const [from, to] = [Math.min(...all.map(({ x }) => scale(x))), Math.max(...all.map(({ x }) => scale(x)))]
  const top = roundUp(Math.max(...all.map(({ y }) => y)))
  const width = labelWidth + plotWidth
  const px = (value: number) => left + ((scale(value) - from) / (to - from || 1)) * (width - left)
  const py = (value: number) => 50 + plotHeight - (value / top) * plotHeight
  const parts: Array<string> = []
  for (const share of [0, 0.25, 0.5, 0.75, 1]) {
    parts.push(line(left, py(share * top), width, py(share * top), "axis"))
    parts.push(text(left - 6, py(share * top) + 4, number(share * top, top < 10 ? 1 : 0), 'text-anchor="end"'))
  }
  const marks = [...new Set(all.map(({ x }) => x))].sort((a, b) => a - b)
  const every = Math.max(1, Math.ceil(marks.length / 8))
  for (const [index, mark] of marks.entries()) {
    if (index % every === 0) parts.push(text(px(mark), 50 + plotHeight + 18, number(mark), 'text-anchor="middle"'))
  }
  options.lines.forEach(({ label, points }, index) => {
    const colour = colours[index % colours.length]
    const path = points.map(({ x, y }) => `${px(x).toFixed(1)},${py(y).toFixed(1)}`).join(" ")
    parts.push(`<polyline points="${path}" fill="none" stroke="${colour}" stroke-width="2"/>`)
    const at = 50 + plotHeight + 56 + index * 18
    parts.push(`<rect x="${left}" y="${at - 9}" width="18" height="4" fill="${colour}"/>`, text(left + 26, at, label))
  })
  parts.push(text(left, 50 + plotHeight + 36, options.unitX), text(16, 42, options.unitY))
  return picture(width + 40, 50 + plotHeight + 64 + options.lines.length * 18, options.title, parts)
}
