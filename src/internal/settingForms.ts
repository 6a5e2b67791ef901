/**
 * The forms that a setting's text may have: each says in words what it accepts, and why a text is not accepted.
 */
import * as Duration from "effect/Duration"
import * as Either from "effect/Either"
import type { SettingsProblem } from "../Errors.js"
import { parseAmqpUrl } from "./amqpTarget.js"
import { parseDatabaseUrl } from "./pgTarget.js"
import { exceedsBytes, shown } from "./shown.js"

/** What is wrong with a text, and what to do; both without the setting's name. */
export interface Fault {
  readonly problem: string
  readonly mend: string
}

export interface Form<A> {
  /** A phrase that follows "is not" and "give". */
  readonly accepted: string
  readonly parse: (text: string) => Either.Either<A, ReadonlyArray<Fault>>
}

export const fault = (problem: string, mend: string): Either.Either<never, ReadonlyArray<Fault>> =>
  Either.left([{ problem, mend }])

const make = <A>(accepted: string, parse: (text: string) => A | undefined): Form<A> => ({
  accepted,
  parse: (text) => {
    const value = parse(text)
    return value === undefined ? fault(`${shown(text)} is not ${accepted}`, `Give ${accepted}`) : Either.right(value)
  }
})

/** A whole number within bounds, both included. */
export const integer = (min: number, max: number): Form<number> =>
  make(`a whole number from ${min} to ${max}`, (text) => {
    const value = /^\d{1,15}$/.test(text) ? Number(text) : Number.NaN
    return value >= min && value <= max ? value : undefined
  })

/** One of some words, whatever their case. */
export const oneOf = <A>(choices: { readonly [word: string]: A }): Form<A> => {
  const words = Object.keys(choices)
  return make(`one of ${words.join(", ")}`, (text) =>
    Object.hasOwn(choices, text.toLowerCase()) ? choices[text.toLowerCase()] : undefined
  )
}

export const boolean: Form<boolean> = oneOf({ true: true, false: false, yes: true, no: false, "1": true, "0": false })

/** A name of a PostgreSQL object or channel, which is taken exactly as written. */
export const identifier: Form<string> = make("a name of at most 63 bytes", (text) =>
  exceedsBytes(text, 63) || text.includes("\0") ? undefined : text
)

/** A host name or address to listen at. */
export const host: Form<string> = make("a host name or an IP address (IPv6 without brackets)", (text) =>
  /^[\w.:%-]+$/.test(text) ? text : undefined
)

const unitMillis: { readonly [unit: string]: number } = {
  ms: 1,
  milli: 1,
  millis: 1,
  s: 1_000,
  second: 1_000,
  seconds: 1_000,
  m: 60_000,
  minute: 60_000,
  minutes: 60_000,
  h: 3_600_000,
  hour: 3_600_000,
  hours: 3_600_000,
  d: 86_400_000,
  day: 86_400_000,
  days: 86_400_000,
  week: 604_800_000,
  weeks: 604_800_000
}

const millisOf = (text: string): number | undefined => {
  const match = /^(\d{1,15}(?:\.\d{1,15})?) ?([a-z]+)$/.exec(text.toLowerCase())
  const factor = Object.hasOwn(unitMillis, match?.[2] ?? "") ? unitMillis[match?.[2] ?? ""] : undefined
  return factor === undefined ? undefined : Number(match?.[1]) * factor
}

/** A time span of 1 millisecond or more, up to `max`, which is written in the same form. */
export const duration = (max: string): Form<Duration.Duration> => {
  const maxMillis = millisOf(max) ?? 0
  const accepted = `a duration from 1 millis to ${max}`
  const mend = `Give ${accepted}, as in "500 millis", "10 seconds", "5 minutes", "1 hour", or short: 500ms, 10s, 5m, 1h`
  return {
    accepted,
    parse: (text) => {
      if (/^\d+(\.\d+)?$/.test(text)) {
        return fault(`${shown(text)} has no unit`, `Write ${shown(`${text} seconds`)} or ${shown(`${text} millis`)}`)
      }
      const millis = millisOf(text)
      return millis === undefined || millis < 1 || millis > maxMillis
        ? fault(`${shown(text)} is not ${accepted}`, mend)
        : Either.right(Duration.millis(millis))
    }
  }
}

const isDecodable = (text: string): boolean => {
  try {
    decodeURIComponent(text)
    return true
  } catch {
    return false
  }
}

/** A URL with one of some schemes. Its text is never part of a problem: it may hold a password. */
export const url = (example: string, schemes: ReadonlyArray<string>): Form<string> => {
  const accepted = `a URL that begins with ${schemes.map((scheme) => `${scheme}//`).join(" or ")}`
  const mend = `Give ${accepted}, as in ${example}`
  return {
    accepted,
    parse: (text) => {
      if (!URL.canParse(text) || text.includes("\0")) {
        return fault(
          "can't be read as a URL",
          `${mend}; percent-encode special characters in the user and the password`
        )
      }
      const parsed = new URL(text)
      if (!schemes.includes(parsed.protocol)) return fault(`is not ${accepted}`, mend)
      if (parsed.hostname === "" && !parsed.searchParams.has("host")) return fault("names no host", mend)
      if (![parsed.username, parsed.password, parsed.pathname].every(isDecodable)) {
        return fault("has a % that begins no percent-encoding", "Write %25 for a percent sign itself")
      }
      return Either.right(text)
    }
  }
}

/** A {@link url} that must also make sense to the one who connects with it. */
const urlFor =
  (schemes: ReadonlyArray<string>, read: (text: string) => Either.Either<unknown, SettingsProblem>) =>
  (example: string): Form<string> => {
    const base = url(example, schemes)
    return {
      accepted: base.accepted,
      parse: (text) =>
        Either.flatMap(base.parse(text), () =>
          Either.mapBoth(read(text), { onLeft: ({ mend, problem }) => [{ problem, mend }], onRight: () => text })
        )
    }
  }

/** A database's URL: {@link parseDatabaseUrl}. */
export const databaseUrl = urlFor(["postgres:", "postgresql:"], parseDatabaseUrl)

/** A broker's URL: {@link parseAmqpUrl}. */
export const amqpUrl = urlFor(["amqp:", "amqps:"], parseAmqpUrl)

/** A secret that travels in an HTTP header. */
export const token: Form<string> = {
  accepted: "printable ASCII characters without white space",
  parse: (text) =>
    /^[\x21-\x7e]+$/.test(text)
      ? Either.right(text)
      : fault("can't be sent in an HTTP header", "Give printable ASCII characters without white space")
}
