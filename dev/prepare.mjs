/**
 * What must be there before anything of ours can run: the npm dependencies and the built service. Plain JavaScript
 * without dependencies, since this is the first thing that runs on a fresh machine.
 */
import { spawnSync } from "node:child_process"
import { existsSync, readdirSync, renameSync, rmSync, statSync, utimesSync } from "node:fs"
import { join } from "node:path"
import { fileURLToPath } from "node:url"

export const root = fileURLToPath(new URL("..", import.meta.url))

const say = (line) => process.stdout.write(`${line}\n`)

/** Runs one step to its end; when it fails, we end with its exit code. */
export const step = (command, args, minutes) => {
  const { error, signal, status } = spawnSync(command, args, {
    cwd: root,
    stdio: "inherit",
    timeout: minutes * 60_000,
    killSignal: "SIGKILL"
  })
  if (status === 0) return
  if (signal === "SIGINT" || signal === "SIGTERM") process.exit(130)
  say(`That failed: ${command} ${args.join(" ")}: ${error?.message ?? `exit code ${status}`}`)
  process.exit(status ?? 1)
}

/** When the file, or the newest file in the folder, was changed; 0 when it is not there. */
const changedAt = (path) => {
  if (!existsSync(path)) return 0
  const stat = statSync(path)
  if (!stat.isDirectory()) return stat.mtimeMs
  return Math.max(stat.mtimeMs, ...readdirSync(path).map((name) => changedAt(join(path, name))))
}

const ensureDependencies = () => {
  // npm's own note of what is installed.
  const installed = join(root, "node_modules", ".package-lock.json")
  if (changedAt(installed) >= changedAt(join(root, "package-lock.json"))) return
  say("Installing the npm dependencies (npm ci)...")
  // Run by npm, npm tells where it is; else it is on the PATH.
  const { npm_execpath } = process.env
  const [command, ...first] = npm_execpath?.endsWith(".js") ? [process.execPath, npm_execpath] : ["npm"]
  step(command, [...first, "ci", "--include=dev", "--include=optional", "--no-audit", "--no-fund"], 8)
  utimesSync(installed, new Date(), new Date())
}

const ensureBuild = () => {
  const sources = ["src", "tsconfig.json", "tsconfig.build.json", "package-lock.json"]
  const built = join(root, "dist", "main.js")
  if (changedAt(built) > Math.max(...sources.map((name) => changedAt(join(root, name))))) return
  say("Building the service (tsc)...")
  // Built beside and moved: what runs from dist meanwhile never sees half a build, and no file of an old one stays.
  const fresh = join(root, `dist.${process.pid}`)
  const old = `${fresh}.old`
  process.once("exit", () => {
    for (const folder of [fresh, old]) rmSync(folder, { recursive: true, force: true })
  })
  const tsc = join(root, "node_modules", "typescript", "bin", "tsc")
  step(process.execPath, [tsc, "-p", "tsconfig.build.json", "--outDir", fresh], 5)
  if (existsSync(join(root, "dist"))) renameSync(join(root, "dist"), old)
  renameSync(fresh, join(root, "dist"))
  rmSync(old, { recursive: true, force: true })
}

export const prepare = () => {
  const [major = 0, minor = 0] = process.versions.node.split(".").map(Number)
  if (major < 20 || (major === 20 && minor < 18)) {
    say(`This needs Node 20.18.1 or later; here is ${process.version}.`)
    process.exit(1)
  }
  ensureDependencies()
  ensureBuild()
}
