/**
 * `node scripts/nar-hash.mjs <folder>`: the hash by which Nix knows a folder, for those who have no Nix. It is the
 * SHA-256 of the folder in Nix's archive form: every name, text and link target in a fixed order, and one bit of each
 * file's mode.
 */
import { createHash } from "node:crypto"
import { lstatSync, readdirSync, readFileSync, readlinkSync } from "node:fs"

const hash = createHash("sha256")

/** A string of the archive: its length as 64 bits, its bytes, and zeros up to a multiple of eight. */
const put = (text) => {
  const bytes = Buffer.from(text)
  const length = Buffer.alloc(8)
  length.writeBigUInt64LE(BigInt(bytes.length))
  hash
    .update(length)
    .update(bytes)
    .update(Buffer.alloc((8 - (bytes.length % 8)) % 8))
}

const node = (path) => {
  const stat = lstatSync(path)
  put("(")
  put("type")
  if (stat.isSymbolicLink()) {
    for (const text of ["symlink", "target", readlinkSync(path)]) put(text)
  } else if (stat.isDirectory()) {
    put("directory")
    // By bytes, not by letters of any language.
    for (const name of readdirSync(path, "buffer").sort(Buffer.compare)) {
      for (const text of ["entry", "(", "name", name, "node"]) put(text)
      node(Buffer.concat([Buffer.from(path), Buffer.from("/"), name]))
      put(")")
    }
  } else {
    put("regular")
    if ((stat.mode & 0o100) !== 0) for (const text of ["executable", ""]) put(text)
    put("contents")
    put(readFileSync(path))
  }
  put(")")
}

put("nix-archive-1")
node(process.argv[2] ?? ".")
process.stdout.write(`sha256-${hash.digest("base64")}\n`)
