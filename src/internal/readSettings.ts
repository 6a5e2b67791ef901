/**
 * From an environment to the settings, or to everything that is wrong with it at once.
 */
import * as Effect from "effect/Effect"
import * as Either from "effect/Either"
import * as Option from "effect/Option"
import { SettingsError, type SettingsProblem } from "../Errors.js"
import type { Environment, Needs, Secret, SettingsShape } from "../Settings.js"
import { fromFile, fromText } from "./secrets.js"
import { isServiceLink, isUnknown, nearest } from "./settingNames.js"
import { type OptionalSetting, type PlainSetting, type SecretSetting, settings } from "./settingsList.js"

/** Every name that means something, the `_FILE` names among them. */
export const knownNames: ReadonlySet<string> = new Set(
  Object.values(settings).flatMap(({ kind, name }) => (kind === "secret" ? [name, `${name}_FILE`] : [name]))
)

/** An empty text counts as not set: a template without a value must mean the default. */
const textOf = (environment: Environment, name: string): string | undefined => {
  const text = environment[name]?.trim() ?? ""
  return text === "" || isServiceLink(name, text) ? undefined : text
}

const readSecret = Effect.fnUntraced(function* (
  environment: Environment,
  { example, form, name, required }: SecretSetting,
  problems: Array<SettingsProblem>
) {
  const fileName = `${name}_FILE`
  const text = textOf(environment, name)
  const path = textOf(environment, fileName)
  if (text === undefined && path === undefined) {
    const mend = `Set it, as in ${example}, or name a file that holds it in ${fileName}`
    const missing = new SettingsError({ problems: [{ setting: name, problem: "is not set", mend }] })
    if (required) problems.push(...missing.problems)
    const value: Secret = Effect.fail(missing)
    return { isSet: false, value }
  }
  if (text !== undefined && path !== undefined) {
    problems.push({ setting: name, problem: `${fileName} is set too`, mend: "Keep only one of the two" })
  }
  const value = path === undefined ? fromText(name, text ?? "", form) : fromFile(fileName, path, form)
  const first = yield* Effect.either(value)
  if (Either.isLeft(first)) problems.push(...first.left.problems)
  return { isSet: true, value }
})

const crossChecks = (shape: SettingsShape): ReadonlyArray<SettingsProblem> => {
  const problems: Array<SettingsProblem> = []
  if (shape.routes.channels.includes(shape.wakeChannel)) {
    problems.push({
      setting: settings.routes.name,
      problem: `the wake channel "${shape.wakeChannel}" is a source, but the wake channel is never published`,
      mend: `Take the route out, or give ${settings.wakeChannel.name} another name`
    })
  }
  return problems
}

/** A name that nobody reads must not silently mean the default. */
const unknownNames = (environment: Environment): ReadonlyArray<SettingsProblem> =>
  Object.entries(environment)
    .filter(([name, text]) => text !== undefined && text.trim() !== "" && isUnknown(name, text, knownNames))
    .map(([name]) => {
      const meant = nearest(name, knownNames)
      return {
        setting: name,
        problem: `is not a setting of pg-listener${meant === undefined ? "" : `; did you mean ${meant}?`}`,
        mend: meant === undefined ? "Take it away; --help lists the settings" : "Correct the name, or take it away"
      }
    })

export const readSettings = Effect.fn("Settings.read")(function* (environment: Environment, needs: Needs) {
  const problems: Array<SettingsProblem> = []

  const parse = <A>({ form, name }: PlainSetting<A> | OptionalSetting<A>): Option.Option<A> => {
    const text = textOf(environment, name)
    if (text === undefined) return Option.none()
    const parsed = form.parse(text)
    if (Either.isLeft(parsed)) problems.push(...parsed.left.map((fault) => ({ setting: name, ...fault })))
    return Either.getRight(parsed)
  }
  // The default also stands in for a bad value, so that the checks that follow have something to look at.
  const plain = <A>(setting: PlainSetting<A>): A => Option.getOrElse(parse(setting), () => setting.value)

  // Read in the order of the documentation: the problems are told in the order in which they are found.
  const databaseUrl = yield* readSecret(environment, settings.databaseUrl, problems)
  const amqp = { ...settings.amqpUrl, required: needs !== "database" }
  const amqpUrl = yield* readSecret(environment, amqp, problems)
  const routes = plain(settings.routes)
  const schema = plain(settings.schema)
  const wakeChannel = plain(settings.wakeChannel)
  const health = { port: plain(settings.healthPort), host: plain(settings.healthHost) }
  const adminToken = yield* readSecret(environment, settings.adminToken, problems)
  const shape: SettingsShape = {
    databaseUrl: databaseUrl.value,
    amqpUrl: amqpUrl.value,
    routes,
    schema,
    wakeChannel,
    health,
    adminToken: adminToken.isSet ? Option.some(adminToken.value) : Option.none(),
    batchSize: plain(settings.batchSize),
    workers: plain(settings.workers),
    maxAttempts: plain(settings.maxAttempts),
    maxMessageBytes: plain(settings.maxMessageBytes),
    confirmTimeout: plain(settings.confirmTimeout),
    pollInterval: plain(settings.pollInterval),
    busyThresholdPerSecond: plain(settings.busyThreshold),
    busyGap: plain(settings.busyGap),
    sweepInterval: plain(settings.sweepInterval),
    sweepAfter: plain(settings.sweepAfter),
    cleanupInterval: plain(settings.cleanupInterval),
    retention: plain(settings.retention),
    gaugesInterval: plain(settings.gaugesInterval),
    heartbeatInterval: plain(settings.heartbeatInterval),
    heartbeatTimeout: plain(settings.heartbeatTimeout),
    shutdownTimeout: plain(settings.shutdownTimeout),
    declareQueues: plain(settings.declareQueues),
    queueType: plain(settings.queueType),
    logLevel: plain(settings.logLevel),
    logFormat: plain(settings.logFormat),
    otlpEndpoint: parse(settings.otlpEndpoint)
  }
  problems.push(...crossChecks(shape), ...unknownNames(environment))
  return problems.length === 0 ? shape : yield* new SettingsError({ problems })
})
