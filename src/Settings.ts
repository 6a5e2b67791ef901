/**
 * The environment, read and checked once, before anything connects (design, section 7).
 */
import * as Context from "effect/Context"
import type * as Duration from "effect/Duration"
import type * as Effect from "effect/Effect"
import type * as LogLevel from "effect/LogLevel"
import type * as Option from "effect/Option"
import type * as Redacted from "effect/Redacted"
import type { SettingsError } from "./Errors.js"
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
  readonly heartbeatInterval: Duration.Duration
  readonly heartbeatTimeout: Duration.Duration
  readonly shutdownTimeout: Duration.Duration
  readonly declareQueues: boolean
  readonly queueType: "classic" | "quorum"
  readonly logLevel: LogLevel.LogLevel
  readonly logFormat: "json" | "pretty"
  readonly otlpEndpoint: Option.Option<string>
}

export class Settings extends Context.Tag("pg-listener/Settings")<Settings, SettingsShape>() {}
