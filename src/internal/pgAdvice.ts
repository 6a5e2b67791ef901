/**
 * What a person can do about a connect that PostgreSQL, or TLS on the way to it, refused.
 */
import { type TlsFault, tlsFault } from "./tlsFault.js"

const tlsAdvice: { readonly [fault in TlsFault]: string } = {
  authority:
    "Name the file of the authority that signed the server's certificate in sslrootcert, or in NODE_EXTRA_CA_CERTS",
  name: "Connect by a name that the server's certificate holds, or write sslmode=verify-ca, which looks at no names",
  time: "Renew the server's certificate, and check the clocks",
  plain: "Switch TLS on at the server (ssl = on), or write sslmode=disable if you trust the network",
  "client certificate": "Give a certificate that the server takes, and its key, in sslcert and sslkey"
}

const byState: { readonly [sqlState: string]: string } = {
  "28P01": "Check the password in DATABASE_URL, or in the file that DATABASE_URL_FILE names",
  "3D000": "Check the database's name in DATABASE_URL"
}

const addLine = "Add a line for this connection to pg_hba.conf on the server"

/** A sentence without its full stop; `undefined` when the error says enough. */
export const pgAdvice = (cause: unknown): string | undefined => {
  if (cause instanceof AggregateError) {
    // Refused with TLS and without: more of TLS is no advice, unless TLS itself is what failed.
    const fault = cause.errors.map(tlsFault).find((one) => one !== undefined)
    if (fault !== undefined) return tlsAdvice[fault]
    return cause.message === bothFormsRefused ? addLine : undefined
  }
  if (!(cause instanceof Error)) return undefined
  const fault = tlsFault(cause)
  if (fault !== undefined) return tlsAdvice[fault]
  if (cause.message.includes("pg_hba.conf")) {
    return cause.message.includes("no encryption") ? encrypt : addLine
  }
  return "code" in cause && typeof cause.code === "string" ? byState[cause.code] : undefined
}

const encrypt = `Write sslmode=require or stricter. Or: ${addLine}`

/** The advice that a reason ends with, if it does. */
export const pgAdviceIn = (reason: string): string | undefined =>
  [...Object.values(tlsAdvice), ...Object.values(byState), encrypt, addLine].find((advice) => reason.endsWith(advice))

const bothFormsRefused = "refused with TLS and without"

/** The two reasons of a server that took us neither with TLS nor without. */
export const refusedInBothForms = (first: Error, second: Error): Error =>
  // Without TLS on the server, its word on the plain form is all there is to say.
  tlsFault(first) === "plain" ? second : new AggregateError([first, second], bothFormsRefused)
