/**
 * The words behind a command, read strictly: what nobody asked for is told, and never passed over.
 */
import * as Data from "effect/Data"
import * as Either from "effect/Either"
import { likely } from "./deadLettersInput.js"
import { shown } from "./shown.js"

/** The command line can't be understood. */
export class UsageError extends Data.TaggedError("UsageError")<{ readonly reason: string; readonly usage: string }> {
  override get message(): string {
    return `${this.reason}\n\n${this.usage}`
  }
}

export interface OptionSpec {
  /** With its two dashes. */
  readonly name: string
  /** What its value is called in the usage; without one it is a flag. */
  readonly value?: string
  readonly meaning: string
}

/** What was given. Values by the option's name. */
export interface Parsed {
  readonly operands: ReadonlyArray<string>
  readonly flags: ReadonlySet<string>
  readonly values: ReadonlyMap<string, string>
}

export const HELP = "--help"

/**
 * `--name value`, `--name=value`, `--flag`, and operands in any order; everything behind `--` is an operand. A value that begins
 * with a dash is written behind `=`. `--help` and `-h` are flags of every command.
 */
export const parseWords = (
  words: ReadonlyArray<string>,
  options: ReadonlyArray<OptionSpec>,
  mostOperands: number
): Either.Either<Parsed, string> => {
  const names = [...options.map(({ name }) => name), HELP]
  const operands: Array<string> = []
  const flags = new Set<string>()
  const values = new Map<string, string>()
  const rest = [...words]
  for (let word = rest.shift(); word !== undefined; word = rest.shift()) {
    if (word === "--") {
      operands.push(...rest)
      break
    }
    if (!word.startsWith("-") || word === "-") {
      operands.push(word)
      continue
    }
    const equals = word.indexOf("=")
    const name = word === "-h" ? HELP : equals < 0 ? word : word.slice(0, equals)
    if (!names.includes(name)) return Either.left(unknownWord("option", name, names))
    if (flags.has(name) || values.has(name)) return Either.left(`${name} is given twice`)
    const value = options.find((option) => option.name === name)?.value
    if (value === undefined) {
      if (equals >= 0) return Either.left(`${name} takes no value`)
      flags.add(name)
      continue
    }
    const given = equals >= 0 ? word.slice(equals + 1) : rest[0]
    if (given === undefined || (equals < 0 && given.startsWith("-"))) {
      return Either.left(`${name} needs a value: ${name} ${value}`)
    }
    if (equals < 0) rest.shift()
    values.set(name, given)
  }
  const surplus = operands[mostOperands]
  return surplus === undefined
    ? Either.right({ operands, flags, values })
    : Either.left(`unexpected argument: ${shown(surplus)}`)
}

/** What is said about a word that nobody knows. */
export const unknownWord = (kind: "option" | "command", name: string, names: ReadonlyArray<string>): string => {
  const meant = likely(name, names)
  return `unknown ${kind}: ${name}${meant === undefined ? "" : `; did you mean ${meant}?`}`
}

/** The options as lines of a usage text. */
export const optionLines = (options: ReadonlyArray<OptionSpec>): string => {
  const lines = [...options, { name: HELP, meaning: "show this text" }].map(({ meaning, name, ...more }) => {
    const value = "value" in more ? more.value : undefined
    return { left: value === undefined ? name : `${name} ${value}`, meaning }
  })
  const width = Math.max(...lines.map(({ left }) => left.length))
  return lines.map(({ left, meaning }) => `  ${left.padEnd(width)}  ${meaning}`).join("\n")
}
