/**
 * Text for a column: PostgreSQL's text holds any character but NUL.
 */

/** More of a reason helps nobody, and the broker's may be long. */
const longest = 2000

const withoutNul = (text: string): string => text.replaceAll("\u0000", "\uFFFD")

/** A reason for `last_error`. */
export const safeText = (reason: string): string =>
  withoutNul(reason.length > longest ? `${reason.slice(0, longest)}…` : reason)

/** A notification's payload, kept whole. */
export const safePayload = (payload: string): string => withoutNul(payload)

/** A text for a database whose encoding may not hold every character of it. */
export const inAscii = (text: string): string =>
  text.replace(/[^\0-\x7f]/gu, (char) => `\\u{${(char.codePointAt(0) ?? 0).toString(16)}}`)
