/**
 * A PostgreSQL server of our own on a free loopback port, with its data in a given folder.
 *
 * It trusts everybody who reaches 127.0.0.1 and has no socket file. Superuser: `postgres`.
 */
import * as Fs from "node:fs"
import * as Path from "node:path"
import * as Effect from "effect/Effect"
import type * as Scope from "effect/Scope"
import { freePort } from "./LoopbackPorts.js"
import * as PostgresBinaries from "./PostgresBinaries.js"
import * as ProcessTable from "./ProcessTable.js"
import { run } from "./RunProgram.js"
import * as ServerProcess from "./ServerProcess.js"

export interface PrivatePostgres extends ServerProcess.ServerProcess {
  readonly port: number
  /** Of the database `postgres`. */
  readonly url: string
  readonly urlOf: (database: string) => string
}

export interface PrivatePostgresOptions {
  /** An absolute path; made when missing, and used again when it holds the data of an earlier run. */
  readonly folder: string
  /** The data is thrown away: no fsync, and the stop is a kill. */
  readonly throwAway?: boolean
  /** Server settings, e.g. `{ max_connections: "200" }`. */
  readonly settings?: Readonly<Record<string, string>>
  /** Another PostgreSQL than the one from npm, e.g. `/usr/lib/postgresql/15/bin`. */
  readonly binDir?: string | undefined
}

/** Time zone and messages do not depend on who starts it; and nothing of the environment (PGDATA...) reaches it. */
const env = { PATH: "/usr/local/bin:/usr/bin:/bin", LANG: "C", TZ: "UTC" }

/** Starts it (the first time: makes its data folder as well); it stops with the scope. */
export const make = (
  options: PrivatePostgresOptions
): Effect.Effect<PrivatePostgres, ServerProcess.ServerError, Scope.Scope> =>
  Effect.gen(function* () {
    const throwAway = options.throwAway ?? false
    const home = yield* PostgresBinaries.prepare({ folder: options.folder, binDir: options.binDir })
    const data = Path.join(home.folder, "data")
    const port = yield* freePort

    if (!Fs.existsSync(Path.join(data, "PG_VERSION"))) {
      const choices = ["--auth=trust", "--username=postgres", "--encoding=UTF8", "--locale=C"]
      if (throwAway) choices.push("--no-sync")
      // Half a data folder would stop every later start, so it is made beside and renamed.
      const half = `${data}.half`
      Fs.rmSync(half, { recursive: true, force: true })
      yield* run("PostgreSQL", home.launch("initdb", ["-D", half, ...choices], "KILL"), env, 60_000)
      Fs.renameSync(half, data)
    }

    const settings: Readonly<Record<string, string>> = {
      listen_addresses: "127.0.0.1",
      port: `${port}`,
      unix_socket_directories: "",
      ...(throwAway ? { fsync: "off", full_page_writes: "off", synchronous_commit: "on" } : {}),
      ...options.settings
    }
    const lockFile = Path.join(data, "postmaster.pid")
    const server = yield* ServerProcess.make({
      name: "PostgreSQL",
      folder: options.folder,
      file: "postgres",
      launch: home.launch(
        "postgres",
        ["-D", data, ...Object.entries(settings).flatMap(([name, value]) => ["-c", `${name}=${value}`])],
        throwAway ? "KILL" : "INT"
      ),
      env,
      output: "log",
      // PostgreSQL refuses to start while the pid in its lock file is taken, be it by a dead process that nobody reaps
      // (a container without an init) or by a stranger (a container started anew).
      beforeStart: Effect.map(ProcessTable.list, (all) => {
        if (!Fs.existsSync(lockFile)) return
        const pid = Number(Fs.readFileSync(lockFile, "utf8").split("\n")[0])
        if (!all.some((entry) => entry.pid === pid && entry.name === "postgres")) Fs.rmSync(lockFile)
      }),
      // The server writes its state into the last line of this file; the first is its pid, since a file may be old.
      isReady: (pid) =>
        Effect.sync(() => {
          try {
            const lines = Fs.readFileSync(lockFile, "utf8").split("\n")
            return lines[0] === `${pid}` && lines[7]?.trim() === "ready"
          } catch {
            return false
          }
        }),
      readyWithinMillis: 60_000,
      stopSignal: throwAway ? "SIGKILL" : "SIGINT",
      stopWithinMillis: 8000,
      killsChildren: false
    })
    const urlOf = (database: string) => `postgres://postgres@127.0.0.1:${port}/${encodeURIComponent(database)}`
    return { ...server, port, urlOf, url: urlOf("postgres") }
  })
