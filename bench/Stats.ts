/**
 * The few figures that a series of runs comes down to.
 */

/** A median and the span it was taken from. */
export interface Spread {
  readonly median: number
  readonly min: number
  readonly max: number
}

export const median = (values: ReadonlyArray<number>): number => {
  const sorted = [...values].sort((a, b) => a - b)
  const middle = sorted.length >> 1
  const upper = sorted[middle] ?? Number.NaN
  return sorted.length % 2 === 1 ? upper : ((sorted[middle - 1] ?? Number.NaN) + upper) / 2
}

export const spread = (values: ReadonlyArray<number>): Spread => ({
  median: median(values),
  min: Math.min(...values),
  max: Math.max(...values)
})

const text = (value: number, digits: number) =>
  value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits })

/** `1,234 [1,200..1,300]`; a dash when there was no run. */
export const show = ({ max, median, min }: Spread, digits = 0): string =>
  Number.isNaN(median) ? "-" : `${text(median, digits)} [${text(min, digits)}..${text(max, digits)}]`

export const number = (value: number, digits = 0): string => (Number.isFinite(value) ? text(value, digits) : "-")
