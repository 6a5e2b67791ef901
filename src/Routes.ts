/**
 * Where events go (design, section 8): parsed once from `PG_LISTENER_ROUTES`, pure look-ups after that.
 */
import * as Either from "effect/Either"
import { type Chars, endsWith, indexOf, lex, plain, spelled, split, trim } from "./internal/routeText.js"
import { exceedsBytes, shown } from "./internal/shown.js"
import { Refusal } from "./Message.js"

/** What a route looks at. */
export interface RouteKey {
  readonly channel: string | undefined
  readonly eventType: string | undefined
  readonly aggregateType: string | undefined
  readonly aggregateId: string | undefined
}

/** A queue (`exchange` is empty, `routingKey` the queue's name) or an exchange and the finished routing key. */
export interface Destination {
  readonly exchange: string
  readonly routingKey: string
}

export interface Routes {
  /** By channel first, then by event type; exact before pattern, the longest pattern first. */
  readonly resolve: (key: RouteKey) => Either.Either<Destination, Refusal>
  /** The source, as configured, of the route that a channel or an event type of this name has; `undefined` without one. */
  readonly sourceOf: (name: string | undefined) => string | undefined
  /** The channels to LISTEN on: every exact source. */
  readonly channels: ReadonlyArray<string>
  /** The queues that routes name directly, each once. */
  readonly queues: ReadonlyArray<string>
  /** The exchanges that routes name, each once. */
  readonly exchanges: ReadonlyArray<string>
  /** Every route as configured, in order: for the start-up log, the commands and the page. */
  readonly all: ReadonlyArray<{ readonly source: string; readonly target: string }>
}

/** The five routes of a service that was told none. */
export const defaultRoutes = [
  "attribute_changed=attribute_change",
  "friend_track_event_inserted=friend_track_event_trigger",
  "form_submitted=form_submitted_trigger",
  "campaign_click=campaign_click_trigger",
  "booking_event=booking_event_trigger"
].join(",")

/** AMQP's limit for names, keys and types. */
const shortStringBytes = 255
/** PostgreSQL's limit for a channel name. */
const channelBytes = 63

const placeholders = {
  channel: "channel",
  event_type: "eventType",
  aggregate_type: "aggregateType",
  aggregate_id: "aggregateId"
} as const

type Placeholder = keyof typeof placeholders

const isPlaceholder = (name: string): name is Placeholder => Object.hasOwn(placeholders, name)

interface Source {
  /** The whole name, or what a name must begin with. */
  readonly name: string
  readonly isPattern: boolean
}

interface Target {
  readonly exchange: string
  readonly key: ReadonlyArray<string | { readonly placeholder: Placeholder }>
}

interface Route {
  readonly source: Source
  /** The source as it was written. */
  readonly spelling: string
  readonly target: Target
}

/**
 * Reads `source=target,…`. All problems are told, each a sentence that says which route it is about.
 *
 * White space around a name and a comma at the end don't matter. A backslash takes the meaning from `,` `=` `/` `*` `{`
 * `}` `\` and from a space at the edge of a name.
 */
export const parseRoutes = (text: string): Either.Either<Routes, ReadonlyArray<string>> => {
  const problems: Array<string> = []
  const sources = new Map<string, Source>()
  const routes: Array<Route> = []
  const all: Array<{ readonly source: string; readonly target: string }> = []
  const entries = split(lex(text, problems), ",").map(trim)
  if (entries.at(-1)?.length === 0) entries.pop()
  if (entries.length === 0) problems.push("there is no route; write source=target")

  for (const entry of entries) {
    const tell = (problem: string) => problems.push(`route ${shown(spelled(entry))}: ${problem}`)
    const equals = indexOf(entry, "=")
    if (equals < 0) {
      tell(entry.length === 0 ? "is empty; is there a comma too many?" : "has no target; write source=target")
      continue
    }
    const [left, right] = [trim(entry.slice(0, equals)), trim(entry.slice(equals + 1))]
    const source = parseSource(left, tell)
    const target = parseTarget(right, tell)
    if (source === undefined || target === undefined) continue
    const spelling = spelled(left)
    const identity = `${source.isPattern ? "pattern" : "exact"} ${source.name}`
    if (sources.has(identity)) {
      tell(`the source ${shown(spelling)} has a route already; for several queues name an exchange they are bound to`)
      continue
    }
    sources.set(identity, source)
    routes.push({ source, spelling, target })
    all.push({ source: spelling, target: spelled(right) })
  }
  return problems.length > 0 ? Either.left(problems) : Either.right(compile(routes, all))
}

type Tell = (problem: string) => void

const parseSource = (chars: Chars, tell: Tell): Source | undefined => {
  const isPattern = endsWith(chars, "*")
  const rest = isPattern ? chars.slice(0, -1) : chars
  const name = plain(rest)
  if (name === "" && !isPattern) return void tell("the source is empty; name a channel or an event type")
  if (indexOf(rest, "*") >= 0) {
    return void tell("a * can only be the last character of a source; write \\* for a star itself")
  }
  if (indexOf(rest, "{") >= 0 || indexOf(rest, "}") >= 0) {
    return void tell("a placeholder belongs in the routing key; write \\{ and \\} for braces in a source")
  }
  if (exceedsBytes(name, shortStringBytes)) return void tell(`the source is ${tooLong}`)
  return { name, isPattern }
}

const tooLong = `longer than ${shortStringBytes} bytes, the most that AMQP can carry`

const parseTarget = (chars: Chars, tell: Tell): Target | undefined => {
  if (chars.length === 0) return void tell("the target is empty; name a queue, or exchange/routing-key")
  if (indexOf(chars, "=") >= 0) {
    return void tell("there is a second =; is a comma missing? Write \\= for an equals sign itself")
  }
  if (indexOf(chars, "*") >= 0) {
    return void tell("a * has no meaning in a target; put {channel} or {event_type} into the routing key, or write \\*")
  }
  const slash = indexOf(chars, "/")
  const exchangeOrQueue = slash < 0 ? chars : trim(chars.slice(0, slash))
  const name = plain(exchangeOrQueue)
  const what = slash < 0 ? "queue" : "exchange"
  if (indexOf(exchangeOrQueue, "{") >= 0 || indexOf(exchangeOrQueue, "}") >= 0) {
    return void tell(
      `the name of ${what === "queue" ? "a queue" : "an exchange"} can't have a placeholder; write exchange/{channel}, or \\{ for a brace`
    )
  }
  if (exceedsBytes(name, shortStringBytes)) return void tell(`the ${what}'s name is ${tooLong}`)
  // RabbitMQ takes them out of a name that is declared, and leaves them in one that is published to.
  if (/[\r\n]/.test(name)) return void tell(`the ${what}'s name has a line break, which RabbitMQ does not allow`)
  if (slash < 0) return { exchange: "", key: [name] }
  if (name === "" || name === "amq.default") {
    return void tell("the default exchange needs no name; write only the queue's name, without the slash")
  }
  const key = parseKey(trim(chars.slice(slash + 1)), tell)
  return key === undefined ? undefined : { exchange: name, key }
}

const parseKey = (chars: Chars, tell: Tell): Target["key"] | undefined => {
  const parts: Array<Target["key"][number]> = []
  const literals: Array<string> = []
  let rest = chars
  while (rest.length > 0) {
    const open = indexOf(rest, "{")
    const literal = open < 0 ? rest : rest.slice(0, open)
    if (indexOf(literal, "}") >= 0) return void tell("a } has no { before it; write \\} for a brace itself")
    if (literal.length > 0) literals.push(plain(literal))
    if (literal.length > 0) parts.push(plain(literal))
    if (open < 0) break
    const close = indexOf(rest, "}")
    if (close < 0) return void tell("a { is never closed; write \\{ for a brace itself")
    const name = plain(rest.slice(open + 1, close))
    if (!isPlaceholder(name)) {
      const known = Object.keys(placeholders).map((each) => `{${each}}`)
      return void tell(`{${name}} is no placeholder; there are ${known.join(", ")}`)
    }
    parts.push({ placeholder: name })
    rest = rest.slice(close + 1)
  }
  if (exceedsBytes(literals.join(""), shortStringBytes)) return void tell(`the routing key is ${tooLong}`)
  return parts
}

type Resolve = Routes["resolve"]

interface Found {
  readonly source: string
  readonly resolve: Resolve
}

const compile = (routes: ReadonlyArray<Route>, all: Routes["all"]): Routes => {
  const exact = new Map<string, Found>()
  const patterns: Array<{ readonly prefix: string; readonly found: Found }> = []
  for (const { source, spelling, target } of routes) {
    const found = { source: spelling, resolve: toResolve(target) }
    if (source.isPattern) patterns.push({ prefix: source.name, found })
    else exact.set(source.name, found)
  }
  patterns.sort((a, b) => b.prefix.length - a.prefix.length)
  const find = (name: string | undefined): Found | undefined =>
    name === undefined
      ? undefined
      : (exact.get(name) ?? patterns.find((pattern) => name.startsWith(pattern.prefix))?.found)
  const targets = routes.map((route) => route.target)
  return {
    resolve: (key) => (find(key.channel) ?? find(key.eventType) ?? noRoute).resolve(key),
    sourceOf: (name) => find(name)?.source,
    // A longer source can't be a channel, but it can well be an event type.
    channels: [...exact.keys()].filter((name) => !exceedsBytes(name, channelBytes)),
    queues: [...new Set(targets.filter((target) => target.exchange === "").map((target) => target.key.join("")))],
    exchanges: [...new Set(targets.map((target) => target.exchange).filter((exchange) => exchange !== ""))],
    all
  }
}

/** Never for good: the next configuration may have the route. */
const refusal = (reason: string): Refusal => new Refusal({ reason, permanent: false })

const noRoute: { readonly resolve: Resolve } = {
  resolve: ({ channel, eventType }) => {
    const names = [
      ...(channel === undefined ? [] : [`channel ${shown(channel)}`]),
      ...(eventType === undefined ? [] : [`event type ${shown(eventType)}`])
    ]
    return Either.left(refusal(`no route for ${names.join(", ") || "an event without channel and type"}`))
  }
}

const toResolve = ({ exchange, key }: Target): Resolve => {
  if (key.every((part) => typeof part === "string")) {
    const fixed = Either.right({ exchange, routingKey: key.join("") })
    return () => fixed
  }
  return (event) => {
    let routingKey = ""
    for (const part of key) {
      const value = typeof part === "string" ? part : event[placeholders[part.placeholder]]
      if (value === undefined) {
        const missing = typeof part === "string" ? part : part.placeholder
        return Either.left(refusal(`routing key needs {${missing}} but the event has none`))
      }
      routingKey += value
    }
    return exceedsBytes(routingKey, shortStringBytes)
      ? Either.left(refusal(`the routing key ${shown(routingKey)} is ${tooLong}`))
      : Either.right({ exchange, routingKey })
  }
}
