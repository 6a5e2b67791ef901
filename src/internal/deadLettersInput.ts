/**
 * Filters and list options as people write them: in a query, in a JSON body, on a command line. The same names, forms and
 * complaints everywhere.
 */
import * as DateTime from "effect/DateTime"
import * as Duration from "effect/Duration"
import * as Either from "effect/Either"
import * as Option from "effect/Option"
import { type DeadLetterFilter, type ListOptions, longestPage, type Moment } from "../DeadLetters.js"
import { BadInput } from "../Errors.js"
import { duration, type Form, integer, oneOf } from "./settingForms.js"
import { editDistance } from "./settingNames.js"
import { exceedsBytes, shown } from "./shown.js"

/** Texts by parameter; `undefined` for one that was not given. */
export type Input = { readonly [parameter: string]: string | undefined }

export interface InputRules {
  /** The queues that routes name. */
  readonly queues: ReadonlyArray<string>
  /** How the asker spells a parameter: `eventType`, or `--event-type`. */
  readonly spelled: (parameter: string) => string
}

export const filterParameters = [
  "channel",
  "eventType",
  "aggregateType",
  "aggregateId",
  "queue",
  "error",
  "olderThan",
  "newerThan"
] as const
export const listParameters = [...filterParameters, "limit", "after", "order"] as const

/** The name that was likely meant; nothing when none is near. */
export const likely = (name: string, known: ReadonlyArray<string>): string | undefined => {
  const [nearest] = known
    .map((candidate) => ({ candidate, distance: editDistance(name.toLowerCase(), candidate.toLowerCase()) }))
    .filter(({ candidate, distance }) => distance <= Math.max(2, Math.floor(candidate.length / 3)))
    .sort((a, b) => a.distance - b.distance)
  return nearest?.candidate
}

/** A name that nobody reads must not silently mean "all of them". */
export const unknownParameter = (name: string, known: ReadonlyArray<string>): BadInput => {
  const meant = likely(name, known)
  return new BadInput({
    parameter: shown(name).slice(1, -1),
    problem: `is not known${meant === undefined ? "" : `; did you mean ${meant}?`}`,
    mend: `There are ${known.join(", ")}`
  })
}

const longestText = 1024

const text: Form<string> = {
  accepted: `a text of 1 to ${longestText} bytes`,
  parse: (given) =>
    given === "" || exceedsBytes(given, longestText) || given.includes("\0")
      ? Either.left([
          { problem: `${shown(given)} is not a text of 1 to ${longestText} bytes`, mend: "Give one, or leave it out" }
        ])
      : Either.right(given)
}

const anyDuration = duration("36500 days")

/** A time span, or a time with its zone: without one, nobody could tell when it is. */
const moment: Form<Moment> = {
  accepted: "a time span or a time with its zone",
  parse: (given) => {
    if (/^\d{4}-\d\d-\d\d/.test(given)) {
      const time = /T.+(Z|[+-]\d\d:?\d\d)$/i.test(given) ? DateTime.make(given) : Option.none()
      return Option.isSome(time)
        ? Either.right({ kind: "at", iso: DateTime.formatIso(time.value) })
        : Either.left([
            { problem: `${shown(given)} is not a time with its zone`, mend: "Write it as in 2026-01-31T08:00:00Z" }
          ])
    }
    return Either.mapBoth(anyDuration.parse(given), {
      onLeft: (faults) =>
        faults.map(({ mend, problem }) => ({ problem, mend: `${mend}; or a time, as in 2026-01-31T08:00:00Z` })),
      onRight: (span): Moment => ({ kind: "age", millis: Duration.toMillis(span) })
    })
  }
}

const cursor: Form<string> = {
  accepted: "the `next` of the page before",
  parse: (given) =>
    /^\d{1,18}$/.test(given)
      ? Either.right(given)
      : Either.left([{ problem: `${shown(given)} is no cursor`, mend: "Give the `next` of the page before" }])
}

const queueOf = (queues: ReadonlyArray<string>): Form<string> => ({
  accepted: "a queue that a route names",
  parse: (given) =>
    queues.includes(given)
      ? Either.right(given)
      : Either.left([
          {
            problem: `no route names the queue ${shown(given)}`,
            mend: queues.length === 0 ? "Filter by eventType or channel" : `There are ${queues.join(", ")}`
          }
        ])
})

const read = <A>(input: Input, parameter: string, form: Form<A>, { spelled }: InputRules) => {
  const given = input[parameter]
  return given === undefined
    ? Either.right(undefined)
    : Either.mapLeft(
        form.parse(given),
        ([fault]) =>
          new BadInput({
            parameter: spelled(parameter),
            problem: fault?.problem ?? "can't be read",
            mend: fault?.mend ?? `Give ${form.accepted}`
          })
      )
}

export const parseFilter = (input: Input, rules: InputRules): Either.Either<DeadLetterFilter, BadInput> =>
  Either.gen(function* () {
    const channel = yield* read(input, "channel", text, rules)
    const eventType = yield* read(input, "eventType", text, rules)
    const aggregateType = yield* read(input, "aggregateType", text, rules)
    const aggregateId = yield* read(input, "aggregateId", text, rules)
    const queue = yield* read(input, "queue", queueOf(rules.queues), rules)
    const error = yield* read(input, "error", text, rules)
    const olderThan = yield* read(input, "olderThan", moment, rules)
    const newerThan = yield* read(input, "newerThan", moment, rules)
    return {
      ...(channel === undefined ? undefined : { channel }),
      ...(eventType === undefined ? undefined : { eventType }),
      ...(aggregateType === undefined ? undefined : { aggregateType }),
      ...(aggregateId === undefined ? undefined : { aggregateId }),
      ...(queue === undefined ? undefined : { queue }),
      ...(error === undefined ? undefined : { error }),
      ...(olderThan === undefined ? undefined : { olderThan }),
      ...(newerThan === undefined ? undefined : { newerThan })
    }
  })

const defaultPage = 100

export const parseListOptions = (input: Input, rules: InputRules): Either.Either<ListOptions, BadInput> =>
  Either.gen(function* () {
    const filter = yield* parseFilter(input, rules)
    const limit = yield* read(input, "limit", integer(1, longestPage), rules)
    const after = yield* read(input, "after", cursor, rules)
    const order = yield* read(input, "order", oneOf({ oldest: "oldest" as const, newest: "newest" as const }), rules)
    return { filter, limit: limit ?? defaultPage, after, order: order ?? "oldest" }
  })

/** How many an action on many may take. */
export const parseBulkLimit = (input: Input, rules: InputRules): Either.Either<number | undefined, BadInput> =>
  read(input, "limit", integer(1, 1_000_000_000), rules)

const uuid = /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/i

export const parseId = (given: string): Either.Either<string, BadInput> =>
  uuid.test(given)
    ? Either.right(given.toLowerCase())
    : Either.left(
        new BadInput({
          parameter: "id",
          problem: `${shown(given)} is not a uuid`,
          mend: "Give the id of a dead letter, as the list shows it"
        })
      )
