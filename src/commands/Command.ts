/**
 * What the commands have in common: words read strictly, an answer on stdout, everything else on stderr, an exit code.
 */
import * as Console from "effect/Console"
import * as Effect from "effect/Effect"
import * as Either from "effect/Either"
import * as Layer from "effect/Layer"
import * as Logger from "effect/Logger"
import * as LogLevel from "effect/LogLevel"
import { HELP, type OptionSpec, type Parsed, parseWords, UsageError } from "../internal/commandLine.js"
import { prettyLogger } from "../Logging.js"

export interface CommandSpec {
  readonly usage: string
  readonly options: ReadonlyArray<OptionSpec>
  readonly mostOperands: number
}

/** Reads the words and acts on them, or shows the usage when that is wanted. The action gives the exit code. */
export const command = <E, R>(
  { mostOperands, options, usage }: CommandSpec,
  words: ReadonlyArray<string>,
  act: (parsed: Parsed) => Effect.Effect<number, E, R>
): Effect.Effect<number, E | UsageError, R> =>
  Either.match(parseWords(words, options, mostOperands), {
    onLeft: (reason) => new UsageError({ reason, usage }),
    onRight: (parsed) => (parsed.flags.has(HELP) ? Effect.as(Console.log(usage), 0) : act(parsed))
  })

export const JSON_OPTION: OptionSpec = { name: "--json", meaning: "one JSON object, for scripts" }

/** Stdout belongs to the answer. */
export const logToStderr: Layer.Layer<never> = Layer.merge(
  Logger.replace(Logger.defaultLogger, Logger.withConsoleError(prettyLogger)),
  Logger.minimumLogLevel(LogLevel.Warning)
)

/** Text out of the database, which may hold what a terminal would obey. */
export const printable = (text: string): string => text.replace(/\p{Cc}/gu, "\uFFFD")

/** Rows of cells as lines, each column as wide as its widest cell. */
export const table = (rows: ReadonlyArray<ReadonlyArray<string>>): string => {
  const widths = rows.reduce<ReadonlyArray<number>>(
    (widest, row) => row.map((cell, column) => Math.max(cell.length, widest[column] ?? 0)),
    []
  )
  return rows
    .map((row) =>
      row
        .map((cell, column) => cell.padEnd(widths[column] ?? 0))
        .join("  ")
        .trimEnd()
    )
    .join("\n")
}
