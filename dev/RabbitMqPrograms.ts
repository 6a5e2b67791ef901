/**
 * Where RabbitMQ's programs are; and how to get them when they are not there.
 */
import * as Fs from "node:fs"
import * as Path from "node:path"
import * as Config from "effect/Config"
import * as Console from "effect/Console"
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import { run } from "./RunProgram.js"
import { ServerError } from "./ServerProcess.js"

/** The server's script, its command-line tool, Erlang's name server, and a PATH on which the scripts find `erl`. */
export interface RabbitMqPrograms {
  readonly server: string
  readonly ctl: string
  readonly epmd: string
  readonly path: string
}

const failure = (operation: string, reason: string) =>
  new ServerError({ server: "RabbitMQ", operation, reason, log: "" })

/** Folders that hold the programs without being on everybody's PATH: Debian's system folders, and Homebrew's. */
const moreFolders = [
  "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
  "/opt/homebrew/sbin:/opt/homebrew/bin:/opt/homebrew/opt/rabbitmq/sbin:/usr/local/opt/rabbitmq/sbin"
]
const searchPath = Effect.map(
  Effect.orElseSucceed(Config.string("PATH"), () => ""),
  (path) => [path, ...moreFolders].filter((part) => part !== "").join(":")
)

/** The programs, when they are on this machine. */
export const find: Effect.Effect<Option.Option<RabbitMqPrograms>> = Effect.map(searchPath, (path) => {
  // Debian's script of this name on the PATH changes the user first and can't be used for a broker of one's own.
  const folders = ["/usr/lib/rabbitmq/bin", ...path.split(":")]
  const locate = (name: string, among: ReadonlyArray<string>) =>
    among
      .map((folder) => Path.join(folder, name))
      .find((file) => Fs.existsSync(file) && Path.basename(Fs.realpathSync(file)) !== "rabbitmq-script-wrapper")
  const server = locate("rabbitmq-server", folders)
  const erl = locate("erl", path.split(":"))
  if (server === undefined || erl === undefined) return Option.none()
  const ctl = locate("rabbitmqctl", [Path.dirname(server), ...folders])
  const epmd = locate("epmd", [...path.split(":"), Path.dirname(Fs.realpathSync(erl))])
  if (ctl === undefined || epmd === undefined) return Option.none()
  return Option.some({ server, ctl, epmd, path })
})

const succeeds = (command: string, args: ReadonlyArray<string>) =>
  Effect.flatMap(searchPath, (PATH) => Effect.isSuccess(run("RabbitMQ", { command, args }, { PATH }, 15_000)))

/**
 * The package would start a broker of its own at once, on RabbitMQ's usual port. That is not what we want here, and
 * Debian's way to say so is this file, present during the installation.
 */
const aptScript = `set -e
policy=/usr/sbin/policy-rc.d
if [ ! -e $policy ]; then
  trap 'rm -f $policy' EXIT
  printf '#!/bin/sh\\nexit 101\\n' > $policy
  chmod 755 $policy
fi
export DEBIAN_FRONTEND=noninteractive
apt-get update
apt-get install -y --no-install-recommends -o DPkg::Lock::Timeout=120 rabbitmq-server`

const installWithApt = Effect.gen(function* () {
  const isRoot = process.getuid?.() === 0
  if (!(yield* succeeds("apt-get", ["--version"]))) return false
  if (!isRoot && !(yield* succeeds("sudo", ["-n", "true"]))) return false
  const by = isRoot ? "apt-get install rabbitmq-server" : "sudo apt-get install rabbitmq-server"
  yield* Console.log(`RabbitMQ is not on this machine. Installing it (${by}); this takes a minute or two...`)
  const [command = "sh", ...args] = [...(isRoot ? [] : ["sudo", "-n"]), "sh", "-c", aptScript]
  const PATH = yield* searchPath
  const installed = yield* Effect.either(run("RabbitMQ", { command, args }, { PATH }, 400_000))
  if (installed._tag === "Left") {
    yield* Console.log(`That did not work. ${installed.left.message}`)
    return false
  }
  yield* Console.log("RabbitMQ is installed.")
  return true
})

/** The programs, installed if need be; `docker` when only a Docker engine can run a broker here. */
export const findOrInstall: Effect.Effect<RabbitMqPrograms | "docker", ServerError> = Effect.gen(function* () {
  const there = yield* find
  if (Option.isSome(there)) return there.value
  if (yield* installWithApt) {
    const now = yield* find
    if (Option.isSome(now)) return now.value
  }
  if (yield* succeeds("docker", ["info"])) return "docker" as const
  return yield* failure(
    "find",
    "there is no RabbitMQ on this machine, and neither apt-get (as root or with sudo) nor a Docker engine to get one. " +
      "Install it (Debian, Ubuntu: apt-get install rabbitmq-server; macOS: brew install rabbitmq), " +
      "or set AMQP_URL to a broker of yours"
  )
})
