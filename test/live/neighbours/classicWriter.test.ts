/** A writer made for the classic outbox table, with no more than sql/roles/grants.sql gives it. */
import * as Fs from "node:fs"
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import { migratedDatabase } from "../../support/Servers.js"
import { sqlClient } from "../../support/Sql.js"

const grantsFile = new URL("../../../sql/roles/grants.sql", import.meta.url)

describe("a writer of the classic table", () => {
  it.scopedLive("may name every column of the view, as ORMs do, and may not by that touch the table itself", () =>
    Effect.gen(function* () {
      const { name, url } = yield* migratedDatabase
      const [relay, role] = [`${name}_classic_relay`, `${name}_classic`]
      const admin = yield* sqlClient(url)
      yield* Effect.acquireRelease(admin.query(`create role ${relay}; create role ${role} login`), () =>
        Effect.orDie(admin.query(`drop owned by ${relay}, ${role}; drop role ${relay}, ${role}`))
      )
      // As psql would send it.
      const grants = Fs.readFileSync(grantsFile, "utf8")
        .replaceAll(':"relay"', relay)
        .replaceAll(':"writer"', role)
        .replaceAll(':"schema"', "public")
      yield* admin.query(grants)
      const writer = yield* sqlClient(Object.assign(new URL(url), { username: role }).href)
      const [row] = yield* writer.query(
        `insert into outbox_events
           (id, aggregate_type, aggregate_id, event_type, payload, attempts, created_at, processed_at)
         values ('00000000-0000-7000-8000-000000000001', 'order', '7', 'order.made', '{}', 0, now(), null)
         returning id`
      )
      assert.strictEqual(row?.["id"], "00000000-0000-7000-8000-000000000001")
      const refused = yield* Effect.flip(
        writer.query("insert into event_outbox (channel, payload, attempts) values ('a', '1', 0)")
      )
      assert.strictEqual(refused.sqlState, "42501")
    })
  )
})
