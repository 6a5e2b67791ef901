/**
 * Reads lines of `<production|all> <cpu> <hash>` and writes them into `scripts/npm-deps.json`, with the digest of the
 * packages that package-lock.json names: a test tells from it when the hashes are of another lock file.
 */
import { createHash } from "node:crypto"
import { readFileSync, writeFileSync } from "node:fs"

const { packages } = JSON.parse(readFileSync("package-lock.json", "utf8"))
// The project's own entry, whose version changes with every release.
delete packages[""]
const record = { lockedPackages: createHash("sha256").update(JSON.stringify(packages)).digest("hex") }
const systems = { x64: "x86_64-linux", arm64: "aarch64-linux" }
for (const line of readFileSync(0, "utf8").trim().split("\n")) {
  const [which, cpu, hash] = line.split(" ")
  record[which] = { ...record[which], [systems[cpu]]: hash }
}
writeFileSync("scripts/npm-deps.json", `${JSON.stringify(record, null, 2)}\n`)
