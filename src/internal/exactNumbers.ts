/**
 * Numbers of a JSON text that a double can't hold: found, compared and replaced in the text itself.
 */

const QUOTE = 34
const BACKSLASH = 92
const MINUS = 45
const ZERO = 48
const NINE = 57

/**
 * The digits of a number without sign, point, exponent, and the zeros at both ends; empty for zero.
 *
 * Loops instead of regular expressions: a number may have millions of digits, and `0+$` is quadratic on zeros.
 */
const significantDigits = (token: string): string => {
  const e = token.search(/[eE]/)
  const mantissa = token.slice(token.charCodeAt(0) === MINUS ? 1 : 0, e < 0 ? token.length : e)
  const point = mantissa.indexOf(".")
  const digits = point < 0 ? mantissa : mantissa.slice(0, point) + mantissa.slice(point + 1)
  let first = 0
  let end = digits.length
  while (first < end && digits.charCodeAt(first) === ZERO) first++
  while (end > first && digits.charCodeAt(end - 1) === ZERO) end--
  return digits.slice(first, end)
}

/** Whether a double, written as V8 writes it, has exactly the decimal value of this JSON number. */
export const isExact = (token: string): boolean => {
  const double = Number(token)
  if (!Number.isFinite(double)) return false
  const written = String(double)
  // Sign and size need no look: the nearest double has them right, or is zero and has no significant digit.
  return written === token || significantDigits(token) === significantDigits(written)
}

// A number without an exponent and with at most 15 digits always survives a double. This test may take a piece of a
// string for a number, which costs time only; it never overlooks a number.
const suspicious = /(?:^|[\s,:[-])[\d.]{16}|\d[eE][+-]?\d+(?:[\s,\]}]|$)/

/** False only when every number of this JSON text is exact. A quick look, linear in the text. */
export const mayBeInexact = (text: string): boolean => suspicious.test(text)

const endOfString = (text: string, start: number): number => {
  let at = start + 1
  while (at < text.length) {
    const char = text.charCodeAt(at)
    if (char === QUOTE) return at + 1
    at += char === BACKSLASH ? 2 : 1
  }
  return at
}

const isNumberStart = (char: number): boolean => char === MINUS || (char >= ZERO && char <= NINE)

const isNumberPart = (char: number): boolean =>
  (char >= ZERO && char <= NINE) || char === 46 || char === 101 || char === 69 || char === 43 || char === MINUS

/** The JSON text with some of its numbers replaced: `replace` gets each number as written, `undefined` leaves it. */
export const replaceNumbers = (text: string, replace: (token: string) => string | undefined): string => {
  let result = ""
  let copied = 0
  let at = 0
  while (at < text.length) {
    const char = text.charCodeAt(at)
    if (char === QUOTE) {
      at = endOfString(text, at)
    } else if (isNumberStart(char)) {
      const start = at
      at++
      while (at < text.length && isNumberPart(text.charCodeAt(at))) at++
      const replacement = replace(text.slice(start, at))
      if (replacement !== undefined) {
        result += text.slice(copied, start) + replacement
        copied = at
      }
    } else {
      at++
    }
  }
  return copied === 0 ? text : result + text.slice(copied)
}
