/**
 * The files in a private server's data folder: who may come in, and its certificates.
 */
import * as Fs from "node:fs"
import * as Path from "node:path"
import * as Effect from "effect/Effect"
import type { SqlClient, SqlFailed } from "./Sql.js"

/** Puts a file into the data folder, as the server's own and readable by nobody else. */
export const putFile = (sql: SqlClient, name: string, text: string): Effect.Effect<void, SqlFailed> =>
  Effect.map(sql.query<{ data_directory: string }>("show data_directory"), ([row]) => {
    const folder = row?.data_directory ?? ""
    const { gid, uid } = Fs.statSync(folder)
    const file = Path.join(folder, name)
    Fs.writeFileSync(file, text, { mode: 0o600 })
    if (process.getuid?.() === 0) Fs.chownSync(file, uid, gid)
  })

/** New lines for `pg_hba.conf`, above one that lets the superuser in from IPv4; in force for whoever connects next. */
export const admit = (sql: SqlClient, lines: ReadonlyArray<string>): Effect.Effect<void, SqlFailed> =>
  Effect.gen(function* () {
    yield* putFile(sql, "pg_hba.conf", ["host all postgres 127.0.0.1/32 trust", ...lines, ""].join("\n"))
    yield* reload(sql)
  })

/** Makes the server read its files again, and returns once it has. */
export const reload = (sql: SqlClient): Effect.Effect<void, SqlFailed> =>
  Effect.gen(function* () {
    const loadedAt = sql.query<{ at: string }>("select pg_conf_load_time()::text as at")
    const [before] = yield* loadedAt
    yield* sql.query("select pg_reload_conf()")
    // The postmaster reads them before it tells its children, and this session is one of these.
    yield* Effect.repeat(loadedAt, { until: ([now]) => now?.at !== before?.at })
  })
