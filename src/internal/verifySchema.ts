/**
 * Looks whether the tables are there, in a version this program can work with, and whether it may use them.
 */
import type { SqlClient } from "@effect/sql/SqlClient"
import type { SqlError } from "@effect/sql/SqlError"
import * as Effect from "effect/Effect"
import { SchemaError } from "../Errors.js"
import * as Sql from "../OutboxSql.js"
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
}

const runMigrate = "Run: node dist/main.js migrate"
const runGrants = "Grant it what sql/roles/grants.sql lists for the relay"

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

export const verifySchema = (
  sql: SqlClient,
  schema: string,
  names: OutboxNames
): Effect.Effect<void, SchemaError | SqlError> =>
  Effect.gen(function* () {
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
  })
