/**
 * Looks whether the tables are there, in a version this program can work with, and whether it may use them; and whether
 * the doorbell rings where this program listens.
 */
import type { SqlClient } from "@effect/sql/SqlClient"
import type { SqlError } from "@effect/sql/SqlError"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import { SchemaError } from "../Errors.js"
import type { SchemaNote } from "../Outbox.js"
import * as Sql from "../OutboxSql.js"
import type { SettingsShape } from "../Settings.js"
import type { OutboxNames } from "./outboxNames.js"

/**
 * The migrations this program can't work without. The doorbell (2) is not among them: without it, rows wait for the poll.
 * Migrations that a newer program brought change nothing an older one needs, so that both can run during a roll-out.
 */
const requiredVersions: ReadonlyArray<number> = [1]

interface Inspection {
  readonly me: string
  readonly found: boolean
  readonly versions_readable: boolean
  readonly schema_usable: boolean
  /** Privileges on event_outbox that this role lacks. */
  readonly outbox_missing: ReadonlyArray<string>
  readonly sequence_readable: boolean
  readonly sequence_in_step: boolean
  /** JSON: a list of {@link Doorbell}. */
  readonly doorbells: string
}

/** A trigger that rings on a channel. */
interface Doorbell {
  readonly channel: string
  readonly enabled: boolean
}

type VerifySettings = Pick<SettingsShape, "schema" | "wakeChannel" | "pollInterval">

export const runMigrate = "Run: node dist/main.js migrate"
export const runGrants = "Grant it what sql/roles/grants.sql lists for the relay"

const problemIn = (schema: string, seen: Inspection | undefined): SchemaError | undefined => {
  const place = `schema "${schema}"`
  if (seen === undefined || !seen.found) {
    return new SchemaError({ reason: `event_outbox is not in ${place}`, mend: runMigrate })
  }
  const mayNot = (what: string) => new SchemaError({ reason: `the role "${seen.me}" may not ${what}`, mend: runGrants })
  if (!seen.schema_usable) return mayNot(`use ${place}`)
  if (!seen.versions_readable) return mayNot(`read event_outbox_migrations in ${place}`)
  if (seen.outbox_missing.length > 0) return mayNot(`${seen.outbox_missing.join(", ")} in event_outbox in ${place}`)
  if (!seen.sequence_readable) return mayNot(`read the sequence of event_outbox.seq in ${place}`)
  if (!seen.sequence_in_step) {
    return new SchemaError({
      reason: "the sequence of event_outbox.seq does not count one by one, and publish order hangs on that",
      mend: `Run: alter sequence "${schema}".event_outbox_seq_seq increment by 1 cache 1`
    })
  }
  return undefined
}

/** What makes rows wait for the poll, which is allowed and may be meant so. */
const noteOn = (
  doorbells: ReadonlyArray<Doorbell>,
  { pollInterval, wakeChannel }: VerifySettings,
  { outbox }: OutboxNames
): SchemaNote | undefined => {
  const atThePoll = `rows are found at the poll, every ${Duration.format(pollInterval)}`
  const ringing = doorbells.filter(({ enabled }) => enabled).map(({ channel }) => channel)
  if (ringing.includes(wakeChannel)) return undefined
  if (ringing.length > 0) {
    const heard = ringing.map((channel) => `"${channel}"`).join(", ")
    return {
      level: "warning",
      message:
        `the doorbell rings on the channel ${heard}, and PG_LISTENER_WAKE_CHANNEL is "${wakeChannel}": ${atThePoll}. ` +
        "Run migrate with the same PG_LISTENER_WAKE_CHANNEL"
    }
  }
  return doorbells.length > 0
    ? {
        level: "warning",
        message:
          `the doorbell is disabled: ${atThePoll}. ` +
          `Enable it: alter table ${outbox} enable trigger event_outbox_doorbell; or drop it, if that is meant`
      }
    : { level: "info", message: `no doorbell: ${atThePoll}` }
}

/** Fails when the tables can't be used; else tells what a person may want to know about them. */
export const verifySchema = (
  sql: SqlClient,
  settings: VerifySettings,
  names: OutboxNames
): Effect.Effect<ReadonlyArray<SchemaNote>, SchemaError | SqlError> =>
  Effect.gen(function* () {
    const { schema } = settings
    const [seen] = yield* sql.unsafe<Inspection>(Sql.INSPECT_SCHEMA, [schema])
    const problem = problemIn(schema, seen)
    if (problem !== undefined) return yield* problem
    const applied = yield* sql.unsafe<{ readonly version: number }>(Sql.versionsApplied(names))
    const missing = requiredVersions.filter((version) => !applied.some((row) => row.version === version))
    if (missing.length > 0) {
      return yield* new SchemaError({
        reason: `schema "${schema}" lacks migration ${missing.join(", ")}`,
        mend: runMigrate
      })
    }
    const note = noteOn(JSON.parse(seen?.doorbells ?? "[]") as ReadonlyArray<Doorbell>, settings, names)
    return note === undefined ? [] : [note]
  })
