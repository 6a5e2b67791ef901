/**
 * The small language of `PG_LISTENER_ROUTES`: characters, some of them escaped with a backslash, cut at separators.
 */

/** One character; an escaped one is never a separator, a star, a brace, or white space to trim. */
export interface Char {
  readonly char: string
  readonly escaped: boolean
}

export type Chars = ReadonlyArray<Char>

const escapable = new Set([",", "=", "/", "*", "{", "}", "\\", " "])

/** The characters of a text. A backslash before anything but a special character is told and kept as itself. */
export const lex = (text: string, problems: Array<string>): Chars => {
  const chars: Array<Char> = []
  let pending = false
  for (const char of text) {
    if (pending) {
      if (!escapable.has(char))
        problems.push(`a backslash before ${JSON.stringify(char)} has no meaning; ${escapeHelp}`)
      chars.push({ char, escaped: true })
      pending = false
    } else if (char === "\\") {
      pending = true
    } else {
      chars.push({ char, escaped: false })
    }
  }
  if (pending) problems.push(`a backslash at the end has no meaning; ${escapeHelp}`)
  return chars
}

const escapeHelp = "write \\\\ for a backslash itself"

const isPlain = (char: Char | undefined, wanted: string): boolean =>
  char !== undefined && !char.escaped && char.char === wanted

const isSpace = (char: Char | undefined): boolean => char !== undefined && !char.escaped && char.char.trim() === ""

/** Where an unescaped character is first, or -1. */
export const indexOf = (chars: Chars, wanted: string): number => chars.findIndex((char) => isPlain(char, wanted))

/** Whether the last character is this one, unescaped. */
export const endsWith = (chars: Chars, wanted: string): boolean => isPlain(chars[chars.length - 1], wanted)

/** The pieces between unescaped separators. */
export const split = (chars: Chars, separator: string): ReadonlyArray<Chars> => {
  const pieces: Array<Array<Char>> = [[]]
  for (const char of chars) {
    if (isPlain(char, separator)) pieces.push([])
    else pieces[pieces.length - 1]?.push(char)
  }
  return pieces
}

/** Without the unescaped white space around. */
export const trim = (chars: Chars): Chars => {
  let start = 0
  let end = chars.length
  while (start < end && isSpace(chars[start])) start++
  while (end > start && isSpace(chars[end - 1])) end--
  return chars.slice(start, end)
}

/** The meaning: escapes taken away. */
export const plain = (chars: Chars): string => chars.map((char) => char.char).join("")

/** The spelling: escapes as they were written. */
export const spelled = (chars: Chars): string =>
  chars.map((char) => (char.escaped ? `\\${char.char}` : char.char)).join("")
