/** `npm run check`: every check, also after one that failed, and a last line that says how it went. */
import { spawnSync } from "node:child_process"
import { join } from "node:path"
import { root } from "./prepare.mjs"

const bin = (name) => join(root, "node_modules", ".bin", name)
const checks = [
  { name: "format and lint", command: bin("biome"), args: ["check", "--error-on-warnings", "."] },
  { name: "types", command: bin("tsc"), args: ["-p", "tsconfig.json"] },
  { name: "Effect diagnostics", command: process.execPath, args: ["dev/effect-diagnostics.mjs"] }
]

const failed = checks.filter(({ name, command, args }) => {
  process.stdout.write(`\n== ${name}\n`)
  return spawnSync(command, args, { cwd: root, stdio: "inherit", timeout: 240_000 }).status !== 0
})
const names = (some) => some.map(({ name }) => name).join(", ")
process.stdout.write(failed.length === 0 ? `\ncheck passed: ${names(checks)}\n` : `\ncheck FAILED: ${names(failed)}\n`)
process.exit(failed.length === 0 ? 0 : 1)
