/**
 * The environment, and the settings that the other checks can go on with when a part of it is no good.
 */
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import * as Redacted from "effect/Redacted"
import type { SettingsProblem } from "../Errors.js"
import { readSettings } from "../internal/readSettings.js"
import type { Environment, SettingsShape } from "../Settings.js"
import { type Check, Finding, type Findings } from "./Finding.js"

/** Settings to check with; each half of the servers only when its URL can be used. */
export interface UsableSettings {
  readonly findings: Findings
  readonly settings: SettingsShape | undefined
  readonly hasDatabase: boolean
  readonly hasBroker: boolean
}

/** Stand in for a URL that can't be used, so that the rest can be read. Nobody connects to them. */
const standIns = { DATABASE_URL: "postgres://nobody@127.0.0.1:1/nothing", AMQP_URL: "amqp://127.0.0.1:1" }

const baseOf = (name: string): string => name.replace(/_FILE$/, "")

const without = (environment: Environment, names: ReadonlySet<string>): Environment =>
  Object.fromEntries(Object.entries(environment).filter(([name]) => !names.has(baseOf(name))))

const failsOf = ({ mend, problem, setting }: SettingsProblem): Finding =>
  Finding.Fails({ what: `setting ${setting}`, detail: problem, mend })

export const usableSettings = Effect.fn("Check.settings")(function* (environment: Environment) {
  const first = yield* Effect.either(readSettings(environment, "database and broker"))
  if (first._tag === "Right") {
    const findings = [Finding.Holds({ what: "settings", detail: "every variable is known and has its form" })]
    return { findings, settings: first.right, hasDatabase: true, hasBroker: true } satisfies UsableSettings
  }
  const { problems } = first.left
  const bad = new Set(problems.map(({ setting }) => baseOf(setting)))
  const rest = without(environment, bad)
  const hasDatabase = !bad.has("DATABASE_URL")
  const hasBroker = !bad.has("AMQP_URL")
  const second = yield* Effect.option(
    readSettings(
      {
        ...rest,
        ...(hasDatabase ? undefined : { DATABASE_URL: standIns.DATABASE_URL }),
        ...(hasBroker ? undefined : { AMQP_URL: standIns.AMQP_URL })
      },
      "database and broker"
    )
  )
  const findings = problems.map(failsOf)
  const settings = Option.getOrUndefined(second)
  return { findings, settings, hasDatabase, hasBroker } satisfies UsableSettings
})

const shortestToken = 16
const fewestCharacters = 8

/** Whoever can guess the token can delete events. */
export const checkToken = ({ adminToken }: SettingsShape): Check =>
  Effect.gen(function* () {
    const what = "admin token"
    if (Option.isNone(adminToken)) return [Finding.Holds({ what, detail: "none is set, /admin is off" })]
    const read = yield* Effect.either(adminToken.value)
    if (read._tag === "Left") return read.left.problems.map(failsOf)
    const token = Redacted.value(read.right)
    const mend = "Give 32 random characters, as from: openssl rand -hex 16"
    if (token.length < shortestToken) {
      return [Finding.Fails({ what, detail: `it has ${token.length} characters, fewer than ${shortestToken}`, mend })]
    }
    const different = new Set(token).size
    return different < fewestCharacters
      ? [Finding.Fails({ what, detail: `it has only ${different} different characters`, mend })]
      : [Finding.Holds({ what, detail: `${token.length} characters` })]
  })
