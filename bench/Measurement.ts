/**
 * What every measurement is to the command line: something to run, and three ways to show what came of it.
 */
import type * as Effect from "effect/Effect"
import type { BenchError } from "./BenchError.js"
import type { World } from "./World.js"

export interface Options {
  /** Small numbers, for a look: the figures are rougher, and the goals not meant for them. */
  readonly quick: boolean
  readonly runs: number
  /** Minutes of the steady load. */
  readonly minutes: number
  readonly peers: boolean
  readonly profile: boolean
}

export interface Measurement<Rows> {
  readonly name: string
  readonly title: string
  readonly measure: (world: World, options: Options) => Effect.Effect<Rows, BenchError>
  /** Markdown. */
  readonly table: (rows: Rows) => string
  /** SVG. */
  readonly plot: (rows: Rows) => string
}
