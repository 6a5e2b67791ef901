/**
 * The Effect language service's diagnostics as a check. The tool ends well when it found no file to look at, so the
 * number of files is checked as well.
 */
import { spawnSync } from "node:child_process"
import { join } from "node:path"
import { root } from "./prepare.mjs"

const tool = join(root, "node_modules", ".bin", "effect-language-service")
const { status, stdout, stderr } = spawnSync(
  tool,
  ["diagnostics", "--project", "tsconfig.json", "--strict", "--format", "text"],
  { cwd: root, encoding: "utf8", timeout: 120_000 }
)
process.stdout.write(`${stdout}${stderr}`)
const checked = Number(/Checked (\d+) files/.exec(stdout)?.[1] ?? 0)
const found = Number(/^(\d+) errors, (?:0) warnings/m.exec(stdout)?.[1] ?? 1)
if (checked === 0) process.stdout.write("The Effect diagnostics looked at no file at all.\n")
process.exit(status === 0 && checked > 0 && found === 0 ? 0 : 1)
