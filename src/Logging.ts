/**
 * The log: JSON lines for machines, one-liners for people; never a password (design, section 10).
 */
import * as Cause from "effect/Cause"
import * as Effect from "effect/Effect"
import * as HashMap from "effect/HashMap"
import * as Inspectable from "effect/Inspectable"
import * as Layer from "effect/Layer"
import * as List from "effect/List"
import * as Logger from "effect/Logger"
import * as Option from "effect/Option"
import { HealthServerError } from "./Errors.js"
import { redact } from "./internal/redact.js"
import { Settings } from "./Settings.js"

type Field = string | number | boolean | null | object

/** Keys with a fixed meaning; an annotation of the same name gets an underscore behind it. */
const reserved = new Set(["timestamp", "level", "message", "error", "spans"])

// An object is taken apart by JSON, so that a secret in it shows as Effect's own "<redacted>", and then put together.
const toField = (value: unknown): Field => {
  if (typeof value === "string") return redact(value)
  if (typeof value === "boolean" || value === null) return value
  if (typeof value === "number") return Number.isFinite(value) ? value : String(value)
  if (typeof value === "bigint") return String(value)
  if (value instanceof Error) return redact(value.message)
  const text = redact(Inspectable.toStringUnknown(value, 0))
  try {
    return JSON.parse(text) as Field
  } catch {
    return text
  }
}

const toText = (value: unknown): string => {
  const field = toField(value)
  return typeof field === "string" ? field : JSON.stringify(field)
}

/** One log entry taken apart; every text in it is free of passwords. */
interface Entry {
  readonly timestamp: string
  readonly level: string
  readonly message: string
  readonly annotations: ReadonlyArray<readonly [string, Field]>
  readonly spans: ReadonlyArray<readonly [string, number]>
  readonly error: string | undefined
}

const toEntry = ({ annotations, cause, date, logLevel, message, spans }: Logger.Logger.Options<unknown>): Entry => {
  const error = Cause.isEmpty(cause) ? undefined : redact(Cause.pretty(cause, { renderErrorCause: true }))
  const text = (Array.isArray(message) ? message : [message]).map(toText).join(" ")
  return {
    timestamp: date.toISOString(),
    level: logLevel.label.toLowerCase(),
    message: text === "" && error !== undefined ? (error.split("\n", 1)[0] ?? "") : text,
    annotations: HashMap.toEntries(annotations)
      .filter(([, value]) => value !== undefined)
      .map(([key, value]) => [reserved.has(key) ? `${key}_` : key, toField(value)] as const)
      .sort(([a], [b]) => (a < b ? -1 : 1)),
    spans: List.toArray(spans).map((span) => [span.label, date.getTime() - span.startTime] as const),
    error
  }
}

/** `{"timestamp","level","message", annotations in alphabetical order, "spans" (ms), "error"}`, each line one entry. */
export const jsonLogger: Logger.Logger<unknown, string> = Logger.map(Logger.make(toEntry), (entry) =>
  JSON.stringify({
    timestamp: entry.timestamp,
    level: entry.level,
    message: entry.message,
    ...Object.fromEntries(entry.annotations),
    ...(entry.spans.length === 0 ? {} : { spans: Object.fromEntries(entry.spans) }),
    ...(entry.error === undefined ? {} : { error: entry.error })
  })
)

/** `time LEVEL message key=value …`, with the error on the lines below. */
export const prettyLogger: Logger.Logger<unknown, string> = Logger.map(Logger.make(toEntry), (entry) => {
  const fields = [
    ...entry.annotations.map(([key, value]) => `${key}=${typeof value === "string" ? value : JSON.stringify(value)}`),
    ...entry.spans.map(([label, millis]) => `${label}=${millis}ms`)
  ]
  const line = [entry.timestamp.slice(11, 23), entry.level.toUpperCase().padEnd(5), entry.message, ...fields].join(" ")
  return entry.error === undefined ? line : `${line}\n  ${entry.error.replaceAll("\n", "\n  ")}`
})

/** Writes to stdout in the form and from the level that the settings name. */
export const layer: Layer.Layer<never, never, Settings> = Layer.unwrapEffect(
  Effect.map(Settings, ({ logFormat, logLevel }) =>
    // One after the other: merged layers leave their logger behind in the fiber when they close.
    Layer.provideMerge(
      Logger.minimumLogLevel(logLevel),
      Logger.replace(Logger.defaultLogger, Logger.withConsoleLog(logFormat === "json" ? jsonLogger : prettyLogger))
    )
  )
)

/**
 * Says at the edge why the process ends. A cause that is only the interruption by a signal is no news; and where a setting
 * is wrong, its own words are all there is to say.
 */
export const logFatal = (cause: Cause.Cause<unknown>): Effect.Effect<void> => {
  if (Cause.isInterruptedOnly(cause)) return Effect.void
  const failure = Option.getOrUndefined(Cause.failureOption(cause))
  return failure instanceof HealthServerError
    ? Effect.logFatal(failure.message)
    : Effect.logFatal("pg-listener ends because of an error", cause)
}
