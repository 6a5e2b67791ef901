/**
 * Where Prometheus' own `promtool` is; and how to get it when it is not there. It checks the text of `/metrics`.
 */
import * as Fs from "node:fs"
import * as Path from "node:path"
import { fileURLToPath } from "node:url"
import * as Config from "effect/Config"
import * as Console from "effect/Console"
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import { run } from "./RunProgram.js"
import { ServerError } from "./ServerProcess.js"

/** What we downloaded is kept beside what else a run leaves behind, and not in the system. */
const ownFolder = fileURLToPath(new URL("../.data/promtool/", import.meta.url))

const searchPath = Effect.map(
  Effect.orElseSucceed(Config.string("PATH"), () => ""),
  (path) => `${path}:/usr/local/bin:/usr/bin:/bin:/opt/homebrew/bin`
)

/** The program, when it is on this machine. */
export const find: Effect.Effect<Option.Option<string>> = Effect.map(searchPath, (path) =>
  Option.fromNullable(
    [...path.split(":"), ownFolder]
      .filter((folder) => folder !== "")
      .map((folder) => Path.join(folder, "promtool"))
      .find((file) => Fs.existsSync(file))
  )
)

/**
 * Debian's package has it, but would start a Prometheus of its own and bring the packages of its web page. So the package
 * is only downloaded, and the one program taken out of it. $1: the folder, $2: what may run apt-get update here.
 */
const aptScript = `set -e
mkdir -p "$1"
cd "$1"
apt-get download prometheus || { $2 apt-get update; apt-get download prometheus; }
dpkg-deb --fsys-tarfile prometheus_*.deb >package.tar
tar --extract --to-stdout --file package.tar ./usr/bin/promtool >promtool.new
chmod 755 promtool.new
mv promtool.new promtool
rm -f package.tar prometheus_*.deb`

const download = Effect.gen(function* () {
  const PATH = yield* searchPath
  yield* Console.log(
    "promtool is not on this machine. Taking it from Debian's package prometheus (apt-get download)..."
  )
  const launch = {
    command: "sh",
    args: ["-c", aptScript, "promtool", ownFolder, process.getuid?.() === 0 ? "" : "sudo -n"]
  }
  yield* run("promtool", launch, { PATH, DEBIAN_FRONTEND: "noninteractive" }, 180_000)
})

/** The program, downloaded if need be. */
export const findOrInstall: Effect.Effect<string, ServerError> = Effect.gen(function* () {
  const there = yield* find
  if (Option.isSome(there)) return there.value
  const downloaded = yield* Effect.either(download)
  const now = yield* find
  if (Option.isSome(now)) return now.value
  return yield* new ServerError({
    server: "promtool",
    operation: "find",
    reason:
      "there is no promtool on this machine, and apt-get could not get it; the test of /metrics will fail. " +
      "Install it (Debian, Ubuntu: apt-get install prometheus; macOS: brew install prometheus)",
    log: downloaded._tag === "Left" ? downloaded.left.message : ""
  })
})
