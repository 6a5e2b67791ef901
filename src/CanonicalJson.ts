/**
 * The body of a message: JSON exactly as V8 writes it, but with no digit of a number lost (design, promise 3).
 */
import * as Data from "effect/Data"
import * as Either from "effect/Either"
import { isExact, mayBeInexact, replaceNumbers } from "./internal/exactNumbers.js"

/** The text is not JSON, or nested too deeply to be written again. */
export class NotJson extends Data.TaggedError("NotJson")<{ readonly reason: string }> {
  override get message(): string {
    return this.reason
  }
}

/**
 * What `JSON.stringify(JSON.parse(text))` gives, except that a number whose decimal value a double can't reproduce keeps
 * its digits as written: `1.0` becomes `1`, and `9007199254740993` and `1e400` stay.
 *
 * Key order and escapes are V8's, so a consumer that parses and stringifies the body gets the same bytes.
 */
export const canonical = (text: string): Either.Either<string, NotJson> => {
  try {
    const plain = JSON.stringify(JSON.parse(text))
    return Either.right(mayBeInexact(text) ? keepDigits(text, plain) : plain)
  } catch (cause) {
    return Either.left(new NotJson({ reason: whyNotJson(text, cause) }))
  }
}

/**
 * Inexact numbers travel through V8 as marked strings, and get their digits back in the text that V8 wrote.
 *
 * `text` is known to be JSON (a marker must not turn bad JSON into good), and `plain` is its text by V8.
 */
const keepDigits = (text: string, plain: string): string => {
  const kept: Array<string> = []
  const mark = unusedMark(plain)
  const marked = replaceNumbers(text, (token) => (isExact(token) ? undefined : `"${mark}${kept.push(token) - 1}"`))
  if (kept.length === 0) return plain
  return JSON.stringify(JSON.parse(marked)).replace(
    new RegExp(`"${mark}(\\d+)"`, "g"),
    (_, index) => kept[Number(index)] ?? ""
  )
}

/** A mark `@n@` that is nowhere behind a quote, found in one pass so that no text can make the search long. */
const unusedMark = (plain: string): string => {
  const used = new Set<string>()
  for (const match of plain.matchAll(/"@(\d{1,9})@/g)) used.add(match[1] ?? "")
  let number = 0
  while (used.has(String(number))) number++
  return `@${number}@`
}

const whyNotJson = (text: string, cause: unknown): string => {
  if (text === "") return "the payload is empty, which is not JSON"
  if (cause instanceof RangeError) return "the payload is nested too deeply to be written as JSON"
  // V8 quotes a piece of the text; PostgreSQL could not store a NUL among it as the row's last error.
  const detail = cause instanceof Error ? cause.message.replace(/\p{Cc}/gu, "?") : String(cause)
  return `the payload is not JSON: ${detail}`
}
