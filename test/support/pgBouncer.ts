/**
 * PgBouncer in front of a server, for the tests that want the real thing. Debian's package, installed when we may.
 */
import { execFileSync } from "node:child_process"
import * as Fs from "node:fs"
import * as Path from "node:path"
import * as Effect from "effect/Effect"
import type * as Scope from "effect/Scope"
import { withDeathSignal } from "../../dev/DeathSignal.js"
import { answers, freePort } from "../../dev/LoopbackPorts.js"
import { run } from "../../dev/RunProgram.js"
import * as ServerProcess from "../../dev/ServerProcess.js"
import { readableFolder } from "./certificates.js"

const env = { PATH: "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", LANG: "C" }

const find = (): string | undefined =>
  [...env.PATH.split(":"), "/opt/homebrew/bin"].map((folder) => Path.join(folder, "pgbouncer")).find(Fs.existsSync)

/** The package would start a pooler of its own at once; this file, present meanwhile, is Debian's way to say no. */
const install = `set -e
policy=/usr/sbin/policy-rc.d
if [ ! -e $policy ]; then
  trap 'rm -f $policy' EXIT
  printf '#!/bin/sh\\nexit 101\\n' > $policy
  chmod 755 $policy
fi
export DEBIAN_FRONTEND=noninteractive
apt-get update
apt-get install -y --no-install-recommends -o DPkg::Lock::Timeout=60 pgbouncer`

/** Where the program is, or why this machine has none. */
export const findOrInstallPgBouncer: Effect.Effect<{ readonly program: string } | { readonly missing: string }> =
  Effect.gen(function* () {
    const there = find()
    if (there !== undefined) return { program: there }
    const sudo = process.getuid?.() === 0 ? [] : ["sudo", "-n"]
    const [command = "sh", ...args] = [...sudo, "sh", "-c", install]
    const installed = yield* Effect.either(run("PgBouncer", { command, args }, env, 100_000))
    const now = find()
    if (now !== undefined) return { program: now }
    const why = installed._tag === "Left" ? installed.left.reason : "it is not where it belongs"
    return { missing: `no PgBouncer here, and apt-get can't install it (${why})` }
  })

/** Refuses to run as root, and needs nothing of anybody's. */
const asNobody = (launch: ServerProcess.Launch): ServerProcess.Launch => {
  if (process.getuid?.() !== 0) return launch
  const id = (flag: string) => execFileSync("id", [flag, "nobody"], { encoding: "utf8" }).trim()
  const ids = [`--reuid=${id("-u")}`, `--regid=${id("-g")}`, "--clear-groups"]
  return launch.command === "setpriv"
    ? { ...launch, args: [...ids, ...launch.args] }
    : { ...launch, uid: Number(id("-u")), gid: Number(id("-g")) }
}

/** Runs with the scope; its URL leads to the same database of the server behind it. */
export const pgBouncer = (
  program: string,
  upstreamUrl: string,
  mode: "session" | "transaction" | "statement",
  /** How many sessions of the server it uses. */
  poolSize = 20
): Effect.Effect<{ readonly url: string }, ServerProcess.ServerError, Scope.Scope> =>
  Effect.gen(function* () {
    const folder = yield* readableFolder
    const port = yield* freePort
    const upstream = new URL(upstreamUrl)
    const config = Path.join(folder, "pgbouncer.ini")
    Fs.writeFileSync(
      config,
      `[databases]
* = host=${upstream.hostname} port=${upstream.port} user=${upstream.username}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = ${port}
unix_socket_dir =
auth_type = any
pool_mode = ${mode}
default_pool_size = ${poolSize}
`
    )
    yield* ServerProcess.make({
      name: "PgBouncer",
      folder,
      file: "pgbouncer",
      launch: asNobody(yield* withDeathSignal("KILL", { command: program, args: [config] })),
      env,
      output: "log",
      beforeStart: Effect.void,
      isReady: () => answers(port),
      readyWithinMillis: 10_000,
      stopSignal: "SIGKILL",
      stopWithinMillis: 1000,
      killsChildren: true
    })
    const url = new URL(upstreamUrl)
    url.port = `${port}`
    return { url: url.href }
  })
