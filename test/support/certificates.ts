/**
 * Authorities and certificates of our own, made by `openssl` when a test wants them.
 */
import { execFileSync } from "node:child_process"
import * as Fs from "node:fs"
import * as Os from "node:os"
import * as Path from "node:path"
import * as Effect from "effect/Effect"
import type * as Scope from "effect/Scope"

export interface Certificate {
  readonly certFile: string
  readonly keyFile: string
}

export interface Authority extends Certificate {
  /** A certificate for a server, by its names (`DNS:localhost`), or for a client, by its common name alone. */
  readonly issue: (commonName: string, names?: ReadonlyArray<string>) => Certificate
}

/** A folder that a server under another user may read; deleted with the scope. */
export const readableFolder: Effect.Effect<string, never, Scope.Scope> = Effect.acquireRelease(
  Effect.sync(() => {
    const made = Fs.mkdtempSync(Path.join(Os.tmpdir(), "pg-listener-tls-"))
    Fs.chmodSync(made, 0o755)
    return made
  }),
  (made) => Effect.sync(() => Fs.rmSync(made, { recursive: true }))
)

const openssl = (...args: ReadonlyArray<string>) => execFileSync("openssl", args, { stdio: "ignore" })
const newKey = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]

export const makeAuthority = (folder: string, name: string): Authority => {
  const at = (file: string) => Path.join(folder, `${name}-${file}`)
  const own = { certFile: at("ca.crt"), keyFile: at("ca.key") }
  openssl("req", "-x509", ...newKey, "-days", "2", "-subj", `/CN=${name}`, "-keyout", own.keyFile, "-out", own.certFile)
  let issued = 0
  return {
    ...own,
    issue: (commonName, names = []) => {
      issued += 1
      const certFile = at(`${issued}.crt`)
      const keyFile = at(`${issued}.key`)
      const request = at(`${issued}.csr`)
      const extensions = at(`${issued}.ext`)
      openssl("req", ...newKey, "-subj", `/CN=${commonName}`, "-keyout", keyFile, "-out", request)
      Fs.writeFileSync(extensions, names.length === 0 ? "" : `subjectAltName=${names.join(",")}\n`)
      const signing = ["-CA", own.certFile, "-CAkey", own.keyFile, "-CAcreateserial", "-extfile", extensions]
      openssl("x509", "-req", "-in", request, ...signing, "-days", "2", "-out", certFile)
      return { certFile, keyFile }
    }
  }
}
