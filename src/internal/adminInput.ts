/**
 * What a request to `/admin` asks for: from its query, or from its body.
 */
import * as Either from "effect/Either"
import type { BulkOptions, ListOptions } from "../DeadLetters.js"
import { BadInput } from "../Errors.js"
import {
  filterParameters,
  type Input,
  type InputRules,
  listParameters,
  parseBulkLimit,
  parseFilter,
  parseListOptions,
  unknownParameter
} from "./deadLettersInput.js"

const rulesFor = (queues: ReadonlyArray<string>): InputRules => ({ queues, spelled: (parameter) => parameter })

/** The options of a list, from a request's URL. */
export const parseQuery = (url: string, queues: ReadonlyArray<string>): Either.Either<ListOptions, BadInput> => {
  const question = url.indexOf("?")
  const input: Record<string, string> = {}
  for (const [name, value] of new URLSearchParams(question < 0 ? "" : url.slice(question + 1))) {
    if (!listParameters.some((known) => known === name)) return Either.left(unknownParameter(name, listParameters))
    if (Object.hasOwn(input, name)) {
      return Either.left(new BadInput({ parameter: name, problem: "is given more than once", mend: "Give it once" }))
    }
    input[name] = value
  }
  return parseListOptions(input, rulesFor(queues))
}

/** An action on many, and the selection as it was asked for: a filter, or "all". */
export interface BulkRequest extends BulkOptions {
  readonly selection: Input | "all"
}

const bad = (parameter: string, problem: string, mend: string) =>
  Either.left(new BadInput({ parameter, problem, mend }))

const form = 'Send {"filter": {"eventType": "…"}} with one condition or more, or {"all": true}'

const isObject = (value: unknown): value is { readonly [key: string]: unknown } =>
  typeof value === "object" && value !== null && !Array.isArray(value)

const parseJson = (text: string): unknown => {
  try {
    return JSON.parse(text)
  } catch {
    return undefined
  }
}

const bulkParameters = ["filter", "all", "limit"]

/** Everything is meant only when it is said. */
export const parseBulkBody = (text: string, queues: ReadonlyArray<string>): Either.Either<BulkRequest, BadInput> =>
  Either.gen(function* () {
    const body = parseJson(text)
    if (!isObject(body)) return yield* bad("body", "is not a JSON object", form)
    const strange = Object.keys(body).find((key) => !bulkParameters.includes(key))
    if (strange !== undefined) return yield* Either.left(unknownParameter(strange, bulkParameters))
    const { all, filter, limit } = body
    const rules = rulesFor(queues)
    if (limit !== undefined && typeof limit !== "number") return yield* bad("limit", "is not a number", "Give a number")
    const atMost = yield* parseBulkLimit({ limit: limit === undefined ? undefined : String(limit) }, rules)
    const options = atMost === undefined ? {} : { limit: atMost }

    if (all !== undefined && all !== true) return yield* bad("all", "is not true", form)
    if (filter === undefined) {
      return all === true
        ? { filter: {}, selection: "all", ...options }
        : yield* bad("body", "has neither a filter nor all", form)
    }
    if (all === true) return yield* bad("all", "contradicts the filter", "Give one of the two")
    if (!isObject(filter) || Object.keys(filter).length === 0) {
      return yield* bad("filter", "is not an object with one condition or more", form)
    }
    const input: Record<string, string> = {}
    for (const [name, value] of Object.entries(filter)) {
      if (!filterParameters.some((known) => known === name)) {
        return yield* Either.left(unknownParameter(name, filterParameters))
      }
      if (typeof value !== "string") return yield* bad(name, "is not a text", "Put it in quotes")
      input[name] = value
    }
    return { filter: yield* parseFilter(input, rules), selection: input, ...options }
  })
