/**
 * The environment, read and checked once, before anything connects (design, section 7).
 */
import * as Context from "effect/Context"
import type * as Duration from "effect/Duration"
import type * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import type * as LogLevel from "effect/LogLevel"
import type * as Option from "effect/Option"
import type * as Redacted from "effect/Redacted"
import type { SettingsError } from "./Errors.js"
import { readSettings } from "./internal/readSettings.js"
import { settings } from "./internal/settingsList.js"
import type { Routes } from "./Routes.js"

/** A secret, or the file it is in; the file is read again at every use, so that a rotated secret needs no restart. */
export type Secret = Effect.Effect<Redacted.Redacted<string>, SettingsError>

export interface SettingsShape {
  readonly databaseUrl: Secret
  readonly amqpUrl: Secret
  readonly routes: Routes
  readonly schema: string
  readonly wakeChannel: string
  readonly health: { readonly port: number; readonly host: string }
  readonly adminToken: Option.Option<Secret>
  readonly batchSize: number
  readonly workers: number
  readonly maxAttempts: number
  readonly maxMessageBytes: number
  readonly confirmTimeout: Duration.Duration
  readonly pollInterval: Duration.Duration
  readonly busyThresholdPerSecond: number
  readonly busyGap: Duration.Duration
  readonly sweepInterval: Duration.Duration
  readonly sweepAfter: Duration.Duration
  readonly cleanupInterval: Duration.Duration
  readonly retention: Duration.Duration
  readonly gaugesInterval: Duration.Duration
  readonly heartbeatInterval: Duration.Duration
  readonly heartbeatTimeout: Duration.Duration
  readonly shutdownTimeout: Duration.Duration
  readonly declareQueues: boolean
  readonly queueType: "classic" | "quorum"
  readonly logLevel: LogLevel.LogLevel
  readonly logFormat: "json" | "pretty"
  readonly otlpEndpoint: Option.Option<string>
}

/** An environment: the process's own, or a test's. */
export type Environment = { readonly [name: string]: string | undefined }

/** Which settings a command can't do without: `migrate` needs no broker. */
export type Needs = "database and broker" | "database"

export class Settings extends Context.Tag("pg-listener/Settings")<Settings, SettingsShape>() {
  /** The process's environment, for the service. */
  static readonly layer: Layer.Layer<Settings, SettingsError> = Layer.suspend(() =>
    this.layerFrom(processEnvironment())
  )

  /** The process's environment, for a command that only talks to the database: `AMQP_URL` may be missing. */
  static readonly layerDatabaseOnly: Layer.Layer<Settings, SettingsError> = Layer.suspend(() =>
    this.layerFrom(processEnvironment(), "database")
  )

  static readonly layerFrom = (
    environment: Environment,
    needs: Needs = "database and broker"
  ): Layer.Layer<Settings, SettingsError> => Layer.effect(this, readSettings(environment, needs))
}

/** The process's own. */
export const processEnvironment = (): Environment => process.env

/** Whether the process was told to log for people; to be known even when the rest of the environment is no good. */
export const logsForPeople = (environment: Environment = processEnvironment()): boolean =>
  environment[settings.logFormat.name]?.trim().toLowerCase() === "pretty"

/** One line of the list of settings, for `--help` and the README. */
export interface SettingDescription {
  readonly name: string
  readonly meaning: string
  /** A phrase: what is accepted. */
  readonly accepted: string
  /** As it would be written in the environment, or `undefined` when there is none. */
  readonly default: string | undefined
  /** The same for a person: "required", "none", or the default. */
  readonly defaultText: string
  /** Whether `NAME_FILE` may name a file that holds it. */
  readonly isSecret: boolean
}

/** Every setting, in the order of the documentation. */
export const settingsTable: ReadonlyArray<SettingDescription> = Object.values(settings).map((setting) => {
  const fallback = setting.kind === "plain" ? setting.fallback : undefined
  const isRequired = setting.kind === "secret" && setting.required
  return {
    name: setting.name,
    meaning: setting.meaning,
    accepted: setting.form.accepted,
    default: fallback,
    defaultText: fallback ?? (isRequired ? "required" : "none"),
    isSecret: setting.kind === "secret"
  }
})
