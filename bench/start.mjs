/** `npm run bench`: the dependencies, the built service, the servers' programs, the peers; then the benchmark in this process. */
import { existsSync, statSync, utimesSync } from "node:fs"
import { join } from "node:path"
import { prepare, root, step } from "../dev/prepare.mjs"

prepare()
step(process.execPath, ["--import", "tsx", "dev/install-servers.ts"], 8)
const installed = join(root, "bench", "node_modules", ".package-lock.json")
if (
  !existsSync(installed) ||
  statSync(installed).mtimeMs < statSync(join(root, "bench", "package-lock.json")).mtimeMs
) {
  step("npm", ["--prefix", "bench", "ci", "--no-audit", "--no-fund"], 8)
  utimesSync(installed, new Date(), new Date())
}
const { register } = await import("tsx/esm/api")
register()
await import("./main.ts")
