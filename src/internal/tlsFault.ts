/**
 * Why TLS could not be agreed on, told apart by what a person must do about it.
 */

/**
 * - `authority`: the peer's certificate is signed by nobody we trust.
 * - `name`: it is for other names than the one we connected to.
 * - `time`: it has expired, or is not valid yet.
 * - `plain`: the peer does not speak TLS at this port.
 * - `client certificate`: the peer wants a certificate of ours, or does not take the one it got.
 */
export type TlsFault = "authority" | "name" | "time" | "plain" | "client certificate"

const byCode: ReadonlyArray<readonly [RegExp, TlsFault]> = [
  [/^(SELF_SIGNED|DEPTH_ZERO_SELF|UNABLE_TO_(GET_ISSUER|VERIFY_LEAF)|CERT_(SIGNATURE_FAILURE|UNTRUSTED))/, "authority"],
  [/^ERR_TLS_CERT_ALTNAME/, "name"],
  [/^CERT_(HAS_EXPIRED|NOT_YET_VALID)/, "time"],
  [/_(WRONG_VERSION_NUMBER|PACKET_LENGTH_TOO_LONG)$/, "plain"],
  [/_ALERT_(CERTIFICATE|BAD_CERTIFICATE|UNSUPPORTED_CERTIFICATE|UNKNOWN_CA|HANDSHAKE_FAILURE)/, "client certificate"]
]

const byWords: ReadonlyArray<readonly [RegExp, TlsFault]> = [
  [/does not support SSL|wrong version number/, "plain"],
  [/requires a valid client certificate|alert (bad |unsupported )?certificate|alert unknown ca/, "client certificate"]
]

const firstMatch = (text: string, among: ReadonlyArray<readonly [RegExp, TlsFault]>): TlsFault | undefined =>
  among.find(([pattern]) => pattern.test(text))?.[1]

/** The fault behind an error of Node's TLS, of `pg`, or of PostgreSQL; `undefined` when it is about something else. */
export const tlsFault = (cause: unknown): TlsFault | undefined => {
  if (!(cause instanceof Error)) return undefined
  const code = "code" in cause && typeof cause.code === "string" ? cause.code : ""
  return firstMatch(code, byCode) ?? firstMatch(cause.message, byWords)
}

/** OpenSSL writes where in its source it gave up, over two lines; its reason is in the middle. */
export const withoutOpenSslNoise = (message: string): string =>
  /\berror:[0-9A-F]+:[^:\n]*:[^:\n]*:([^:\n]+)/.exec(message)?.[1] ?? message
