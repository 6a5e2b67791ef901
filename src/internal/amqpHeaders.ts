/**
 * A row's headers as an AMQP table: what fits is taken over, what can't is a reason to refuse.
 */
import * as Either from "effect/Either"
import type { HeaderValue } from "../Message.js"
import { isExact, replaceNumbers } from "./exactNumbers.js"
import { exceedsBytes, shown } from "./shown.js"

export type Headers = { [key: string]: HeaderValue }

/** The client encodes a table into one buffer of this size. */
const MAX_TABLE_BYTES = 65_536
const MAX_KEY_BYTES = 255
/** Far more than anybody nests, far less than the stack holds. */
const MAX_DEPTH = 64
/** A table whose JSON has fewer characters than this can't come near {@link MAX_TABLE_BYTES}, so it is not measured. */
const SMALL = 10_000

/** Headers of a longer text can't fit: even all in six-character escapes they have more than {@link MAX_TABLE_BYTES}. */
export const longestHeadersText = 8 * MAX_TABLE_BYTES

const MAX_INTEGER = 2 ** 53
/** From 2^50 on the client writes a number as a 64-bit integer, and fails when it has a fraction. */
const MAX_FRACTION = 2 ** 50 - 1

/** Numbers that AMQP, the client or the consumer's double would change travel as text, with their digits as written. */
const asText = (token: string): string | undefined => (fits(token) ? undefined : `"${token}"`)

const fits = (token: string): boolean => {
  if (!isExact(token)) return false
  const value = Number(token)
  return Number.isInteger(value)
    ? BigInt(value) <= MAX_INTEGER && BigInt(value) >= -MAX_INTEGER
    : Math.abs(value) < MAX_FRACTION
}

/**
 * To RabbitMQ these are no headers but orders: copies to more queues. Where an event goes is the routes' business; and an
 * event that only its copy could be delivered of would be confirmed, and never be returned as unroutable.
 */
const ORDERS = ["CC", "BCC"]

/** Reads a row's `headers::text`. Left: why they can't be sent. */
export const parseHeaders = (text: string): Either.Either<Headers, string> => {
  if (text.length > longestHeadersText) {
    return Either.left(`the headers are far larger than the ${MAX_TABLE_BYTES} bytes that one message can carry`)
  }
  let parsed: HeaderValue
  try {
    JSON.parse(text)
    parsed = JSON.parse(replaceNumbers(text, asText))
  } catch {
    return Either.left("the headers are not JSON")
  }
  if (!isTable(parsed)) return Either.left("the headers are not a JSON object")
  const table = parsed
  const order = ORDERS.find((key) => Object.hasOwn(table, key))
  if (order !== undefined) return Either.left(`the header "${order}" would make the broker send copies past the routes`)
  const problem = findProblem(table, MAX_DEPTH)
  return problem === undefined ? Either.right({ ...table }) : Either.left(problem)
}

/** Why complete headers are too large, or `undefined`. `characters`: the length of the texts they were made of. */
export const headersTooLarge = (headers: Headers, characters: number): string | undefined => {
  if (characters < SMALL) return undefined
  const bytes = sizeOf(headers) - 1
  return bytes > MAX_TABLE_BYTES
    ? `the headers have ${bytes} bytes, more than the ${MAX_TABLE_BYTES} that one message can carry`
    : undefined
}

const isTable = (value: HeaderValue): value is { readonly [key: string]: HeaderValue } =>
  typeof value === "object" && value !== null && !Array.isArray(value)

const findProblem = (value: HeaderValue, depth: number): string | undefined => {
  if (typeof value !== "object" || value === null) return undefined
  if (depth === 0) return `the headers are nested more than ${MAX_DEPTH} levels deep`
  if (isTable(value)) {
    // The client takes an object with this key for its own notation of a typed value.
    if (depth < MAX_DEPTH && Object.hasOwn(value, "!"))
      return 'an object in the headers has the key "!", which has no place in AMQP'
    for (const [key, inner] of Object.entries(value)) {
      if (exceedsBytes(key, MAX_KEY_BYTES)) return `the header key ${shown(key)} is longer than ${MAX_KEY_BYTES} bytes`
      const problem = findProblem(inner, depth - 1)
      if (problem !== undefined) return problem
    }
    return undefined
  }
  for (const inner of value as ReadonlyArray<HeaderValue>) {
    const problem = findProblem(inner, depth - 1)
    if (problem !== undefined) return problem
  }
  return undefined
}

/** Bytes of a value in an AMQP table: its type tag and what follows. */
const sizeOf = (value: HeaderValue): number => {
  if (value === null) return 1
  if (typeof value === "boolean") return 2
  if (typeof value === "number") return sizeOfNumber(value)
  if (typeof value === "string") return 5 + Buffer.byteLength(value, "utf8")
  let bytes = 5
  if (isTable(value)) {
    for (const [key, inner] of Object.entries(value)) bytes += 1 + Buffer.byteLength(key, "utf8") + sizeOf(inner)
  } else {
    for (const inner of value as ReadonlyArray<HeaderValue>) bytes += sizeOf(inner)
  }
  return bytes
}

const sizeOfNumber = (value: number): number => {
  if (!Number.isInteger(value)) return 9
  if (value >= -128 && value < 128) return 2
  if (value >= -32_768 && value < 32_768) return 3
  return value >= -(2 ** 31) && value < 2 ** 31 ? 5 : 9
}
