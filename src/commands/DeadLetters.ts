/**
 * `dead-letters list|show|retry|discard`: the same as over HTTP (AdminRoutes.ts), without the service. Exit code 0 when done, 1
 * when not.
 */
import * as Console from "effect/Console"
import * as Effect from "effect/Effect"
import * as Either from "effect/Either"
import * as Layer from "effect/Layer"
import { Database } from "../Database.js"
import { type BulkOptions, type DeadLetter, type DeadLetterInFull, DeadLetters } from "../DeadLetters.js"
import type { BadInput } from "../Errors.js"
import { type OptionSpec, optionLines, type Parsed, UsageError, unknownWord } from "../internal/commandLine.js"
import { parseBulkLimit, parseFilter, parseId, parseListOptions } from "../internal/deadLettersInput.js"
import { type DeadLettersFailure, deadLettersFailure, letterJson, pageJson } from "../internal/deadLettersJson.js"
import { Settings } from "../Settings.js"
import { command, JSON_OPTION, logToStderr, printable, table } from "./Command.js"

const filterOptions: ReadonlyArray<OptionSpec> = [
  { name: "--event-type", value: "<type>", meaning: "events of this type" },
  { name: "--channel", value: "<channel>", meaning: "events of this channel" },
  { name: "--queue", value: "<queue>", meaning: "events that the routes would send to this queue now" },
  { name: "--aggregate-type", value: "<type>", meaning: "events of aggregates of this type" },
  { name: "--aggregate-id", value: "<id>", meaning: "events of the aggregate with this id" },
  { name: "--error", value: "<text>", meaning: "events whose last error holds this text" },
  {
    name: "--older-than",
    value: "<time>",
    meaning: "given up so long ago (2h), or before a time (2026-01-31T08:00:00Z)"
  },
  { name: "--newer-than", value: "<time>", meaning: "given up since then" }
]
const limitOption: OptionSpec = {
  name: "--limit",
  value: "<n>",
  meaning: "at most so many, the first ones inserted first"
}
const allOption: OptionSpec = { name: "--all", meaning: "all dead letters" }
const yesOption: OptionSpec = {
  name: "--yes",
  meaning: "yes, delete them; without it, nothing is done to more than one"
}

const listOptions: ReadonlyArray<OptionSpec> = [
  ...filterOptions,
  { name: "--limit", value: "<n>", meaning: "length of a page, 1 to 500 (100)" },
  { name: "--after", value: "<seq>", meaning: "the page after this one; each page says how to get the next" },
  { name: "--order", value: "<order>", meaning: "oldest or newest inserted first (oldest)" },
  JSON_OPTION
]
export const retryOptions = [...filterOptions, allOption, limitOption, JSON_OPTION]
export const discardOptions = [...filterOptions, allOption, limitOption, yesOption, JSON_OPTION]

const usageOf = (line: string, text: string, options: ReadonlyArray<OptionSpec>) =>
  `Usage: node dist/main.js dead-letters ${line}\n\n${text}\n\nOptions:\n${optionLines(options)}`

const usages = {
  list: usageOf("list [options]", "Lists dead letters, without their payloads.", listOptions),
  show: usageOf("show <id> [options]", "Shows one dead letter with its headers and its payload.", [JSON_OPTION]),
  retry: usageOf(
    "retry <id> | --all | <filter> [options]",
    "Makes dead letters pending again, with all their attempts before them, and wakes the relay.",
    retryOptions
  ),
  discard: usageOf(
    "discard <id> | --all --yes | <filter> --yes [options]",
    "Deletes dead letters for good.",
    discardOptions
  )
}

export const usage = `Usage: node dist/main.js dead-letters <command> [options]

Dead letters are the events that the relay has given up on. It needs DATABASE_URL, and no running service.

Commands:
  list     list them, without their payloads
  show     show one in full
  retry    send one, some or all of them again
  discard  delete one, some or all of them
  --help   show this text; behind a command, its options`

const inputName = (option: string): string =>
  option.slice(2).replace(/-(\w)/g, (_, letter: string) => letter.toUpperCase())
const spelled = (parameter: string): string =>
  `--${parameter.replace(/[A-Z]/g, (letter) => `-${letter.toLowerCase()}`)}`

const inputOf = ({ values }: Parsed) => Object.fromEntries([...values].map(([name, value]) => [inputName(name), value]))

/** Words that can't be understood, whether here or by the parsers that HTTP has, too. */
const orUsage = <A>(usage: string, parsed: Either.Either<A, BadInput | string>): Either.Either<A, UsageError> =>
  Either.mapLeft(
    parsed,
    (fault) => new UsageError({ reason: typeof fault === "string" ? fault : fault.message, usage })
  )

const selects = ({ values }: Parsed) => filterOptions.some(({ name }) => values.has(name))

/** What an action is to act on: the one with this id, or all that are selected. */
type Target = { readonly kind: "one"; readonly id: string } | { readonly kind: "many"; readonly options: BulkOptions }

/** Everything is meant only when it is said; and many are deleted only with `--yes`, where that is an option. */
export const targetOf = (
  parsed: Parsed,
  options: ReadonlyArray<OptionSpec>,
  queues: ReadonlyArray<string>
): Either.Either<Target, BadInput | string> =>
  Either.gen(function* () {
    const [given] = parsed.operands
    const all = parsed.flags.has(allOption.name)
    const ways = [given !== undefined, all, selects(parsed)].filter((way) => way).length
    if (ways === 0) return yield* Either.left("name an id, a filter, or --all")
    if (ways > 1) return yield* Either.left("an id, a filter and --all exclude one another")
    const rules = { queues, spelled }
    const limit = yield* parseBulkLimit(inputOf(parsed), rules)
    if (given !== undefined) {
      return limit === undefined
        ? { kind: "one", id: yield* parseId(given) }
        : yield* Either.left("--limit has no meaning with an id")
    }
    const filter = yield* parseFilter(inputOf(parsed), rules)
    if (options.includes(yesOption) && !parsed.flags.has(yesOption.name)) {
      return yield* Either.left("this deletes events for good: say --yes")
    }
    return { kind: "many", options: limit === undefined ? { filter } : { filter, limit } }
  })

const cut = (text: string, length: number): string => (text.length > length ? `${text.slice(0, length - 1)}…` : text)

const aggregateOf = ({ aggregateId, aggregateType }: DeadLetter): string =>
  aggregateId === null ? "" : aggregateType === null ? aggregateId : `${aggregateType}/${aggregateId}`

const forPeople = (letters: ReadonlyArray<DeadLetter>, next: string | null): string => {
  if (letters.length === 0) return "no dead letters"
  const rows = letters.map((letter) =>
    [
      letter.id,
      letter.deadAt.slice(0, 19),
      cut(letter.eventType ?? letter.channel ?? "", 30),
      cut(aggregateOf(letter), 30),
      cut(letter.target ?? "nowhere", 30),
      String(letter.attempts),
      cut(letter.lastError ?? "", 80)
    ].map(printable)
  )
  const lines = table([["id", "dead since (UTC)", "event", "aggregate", "goes to", "attempts", "last error"], ...rows])
  return next === null ? lines : `${lines}\nmore: --after ${next}`
}

const inFull = (letter: DeadLetterInFull): string =>
  table(
    [
      ["id", letter.id],
      ["seq", letter.seq],
      ["channel", letter.channel ?? ""],
      ["event type", letter.eventType ?? ""],
      ["aggregate", aggregateOf(letter)],
      ["goes to", letter.target ?? "nowhere: no route"],
      ["attempts", String(letter.attempts)],
      ["last error", letter.lastError ?? ""],
      ["created at", letter.createdAt],
      ["dead since", letter.deadAt],
      ["headers", letter.headers],
      ["payload", letter.payload ?? `not shown: ${letter.payloadOmitted ?? ""}`]
    ].map((row) => row.map(printable))
  )

const failed = (failure: DeadLettersFailure, asJson: boolean) => {
  const { error, message, more } = deadLettersFailure(failure)
  return Effect.as(asJson ? Console.log(JSON.stringify({ error, message, ...more })) : Console.error(message), 1)
}

/** Prints what the action gives; a failure as well, with exit code 1. */
const answering = <R>(
  parsed: Parsed,
  answer: Effect.Effect<{ readonly json: string; readonly text: string }, DeadLettersFailure, R>
) => {
  const asJson = parsed.flags.has(JSON_OPTION.name)
  return answer.pipe(
    Effect.flatMap(({ json, text }) => Effect.as(Console.log(asJson ? json : text), 0)),
    Effect.catchAll((failure) => failed(failure, asJson))
  )
}

const list = (words: ReadonlyArray<string>) =>
  command({ usage: usages.list, options: listOptions, mostOperands: 0 }, words, (parsed) =>
    Effect.gen(function* () {
      const { routes } = yield* Settings
      const deadLetters = yield* DeadLetters
      const options = yield* orUsage(usages.list, parseListOptions(inputOf(parsed), { queues: routes.queues, spelled }))
      return yield* answering(
        parsed,
        Effect.map(deadLetters.list(options), (page) => ({
          json: pageJson(page),
          text: forPeople(page.deadLetters, page.next)
        }))
      )
    }).pipe(Effect.provide(live))
  )

const show = (words: ReadonlyArray<string>) =>
  command({ usage: usages.show, options: [JSON_OPTION], mostOperands: 1 }, words, (parsed) =>
    Effect.gen(function* () {
      const [given] = parsed.operands
      const id = yield* orUsage(usages.show, given === undefined ? Either.left("name an id") : parseId(given))
      const deadLetters = yield* DeadLetters
      return yield* answering(
        parsed,
        Effect.map(deadLetters.show(id), (letter) => ({ json: letterJson(letter), text: inFull(letter) }))
      )
    }).pipe(Effect.provide(live))
  )

const act = (
  usage: string,
  options: ReadonlyArray<OptionSpec>,
  done: "retried" | "discarded",
  parsed: Parsed,
  one: (it: DeadLetters["Type"]) => DeadLetters["Type"]["retryOne"],
  many: (it: DeadLetters["Type"]) => DeadLetters["Type"]["retryAll"]
) =>
  Effect.gen(function* () {
    const { routes } = yield* Settings
    const deadLetters = yield* DeadLetters
    const target = yield* orUsage(usage, targetOf(parsed, options, routes.queues))
    return yield* answering(
      parsed,
      target.kind === "one"
        ? Effect.map(one(deadLetters)(target.id), ({ id }) => ({
            json: JSON.stringify({ [done]: 1, id }),
            text: `${done} ${id}`
          }))
        : Effect.map(many(deadLetters)(target.options), (rows) => ({
            json: JSON.stringify({ [done]: rows }),
            text: `${done} ${rows} ${rows === 1 ? "dead letter" : "dead letters"}`
          }))
    )
  }).pipe(Effect.provide(live))

const retry = (words: ReadonlyArray<string>) =>
  command({ usage: usages.retry, options: retryOptions, mostOperands: 1 }, words, (parsed) =>
    act(
      usages.retry,
      retryOptions,
      "retried",
      parsed,
      ({ retryOne }) => retryOne,
      ({ retryAll }) => retryAll
    )
  )

const discard = (words: ReadonlyArray<string>) =>
  command({ usage: usages.discard, options: discardOptions, mostOperands: 1 }, words, (parsed) =>
    act(
      usages.discard,
      discardOptions,
      "discarded",
      parsed,
      ({ discard }) => discard,
      ({ discardAll }) => discardAll
    )
  )

const live = Layer.mergeAll(
  DeadLetters.layer.pipe(Layer.provide(Database.layer), Layer.provideMerge(Settings.layerDatabaseOnly)),
  logToStderr
)

const known = ["list", "show", "retry", "discard"]

export const run = (words: ReadonlyArray<string>) => {
  const [name, ...rest] = words
  switch (name) {
    case "list":
      return list(rest)
    case "show":
      return show(rest)
    case "retry":
      return retry(rest)
    case "discard":
      return discard(rest)
    default:
      if (name !== undefined && !name.startsWith("-"))
        return new UsageError({ reason: unknownWord("command", name, known), usage })
      return command({ usage, options: [], mostOperands: 0 }, words, () =>
        Effect.fail(new UsageError({ reason: "say what to do with dead letters", usage }))
      )
  }
}
