/**
 * `AMQP_URL` as RabbitMQ's URI specification has it, turned into what amqplib needs to connect.
 *
 * Own code rather than amqplib's, which reads an escaped `ü` as two letters, and knows nothing of certificates.
 */
import { readFileSync } from "node:fs"
import type { ConnectionOptions } from "node:tls"
import type * as Amqp from "amqplib"
import * as Either from "effect/Either"
import * as Redacted from "effect/Redacted"
import type { SettingsProblem } from "../Errors.js"
import { type TlsFault, tlsFault } from "./tlsFault.js"

/** What the URL says. No file has been read. */
export interface AmqpUrl {
  readonly tls: boolean
  /** A name, or an address without brackets. */
  readonly host: string
  readonly port: number
  /** Neither: RabbitMQ's own `guest`, which it lets in from its own machine alone. */
  readonly user: string | undefined
  readonly password: Redacted.Redacted<string> | undefined
  readonly vhost: string
  /** 0 switches heartbeats off. */
  readonly heartbeatSeconds: number
  readonly caCertFile: string | undefined
  readonly certFile: string | undefined
  readonly keyFile: string | undefined
  /** Of the key's file. */
  readonly keyPassword: Redacted.Redacted<string> | undefined
  readonly verifyPeer: boolean
  /** Sent to the broker and looked for in its certificate, instead of the host. */
  readonly serverName: string | undefined
}

export interface AmqpTarget {
  readonly connect: Amqp.Options.Connect
  readonly tls: ConnectionOptions
}

const heartbeatSeconds = 10

const tlsParameters = ["cacertfile", "certfile", "keyfile", "password", "verify", "server_name_indication"]
const parameters = ["heartbeat", ...tlsParameters]

const bad = (problem: string, mend: string): Either.Either<never, SettingsProblem> =>
  Either.left({ setting: "AMQP_URL", problem, mend })

const decode = (text: string): string | undefined => {
  try {
    return decodeURIComponent(text)
  } catch {
    return undefined
  }
}

const readParameters = (query: string): Either.Either<ReadonlyMap<string, string>, SettingsProblem> => {
  const read = new Map<string, string>()
  for (const pair of query.split("&").filter((each) => each !== "")) {
    const equals = pair.indexOf("=")
    const name = decode(equals === -1 ? pair : pair.slice(0, equals))
    const value = decode(equals === -1 ? "" : pair.slice(equals + 1))
    if (name === undefined || value === undefined) {
      return bad("has a % in its parameters that begins no percent-encoding", "Write %25 for a percent sign itself")
    }
    // A name that nobody reads must not silently mean less safety.
    if (!parameters.includes(name)) {
      return bad("has a parameter that is not known", `There are ${parameters.join(", ")}`)
    }
    if (value !== "") read.set(name, value)
  }
  return Either.right(read)
}

/** Parses an `AMQP_URL`. Pure; a problem never shows a part of the URL. */
export const parseAmqpUrl = (url: string): Either.Either<AmqpUrl, SettingsProblem> =>
  Either.gen(function* () {
    const form = "Write it as amqp://user:password@host:5672/vhost, with special characters percent-encoded"
    if (!URL.canParse(url)) return yield* bad("can't be read as a URL", form)
    const parts = new URL(url)
    const tls = parts.protocol === "amqps:"
    if (!tls && parts.protocol !== "amqp:") return yield* bad("is not an AMQP URL", form)
    if (parts.hash !== "") return yield* bad("holds a raw #", "Write %23 for it")
    const [user, password, host, path] = [parts.username, parts.password, parts.hostname, parts.pathname].map(decode)
    if (user === undefined || password === undefined || host === undefined || path === undefined) {
      return yield* bad("has a % that begins no percent-encoding", "Write %25 for a percent sign itself")
    }
    const read = yield* readParameters(parts.search.slice(1))
    const useless = tls ? undefined : tlsParameters.find((name) => read.has(name))
    if (useless !== undefined)
      return yield* bad(`has ${useless} without TLS`, "Write amqps:// for TLS, or leave it out")
    const verify = read.get("verify") ?? "verify_peer"
    if (verify !== "verify_peer" && verify !== "verify_none") {
      return yield* bad("has an unknown verify", "Use verify_peer or verify_none")
    }
    const heartbeat = read.get("heartbeat") ?? `${heartbeatSeconds}`
    if (!/^\d{1,5}$/.test(heartbeat)) return yield* bad("has a heartbeat that is no whole number", "Give it in seconds")
    const serverName = read.get("server_name_indication")
    if (serverName === "disable") {
      return yield* bad(
        "has server_name_indication=disable, which is not supported",
        "Name the name that the broker's certificate holds"
      )
    }
    const keyPassword = read.get("password")
    const isAnonymous = user === "" && password === ""
    return {
      tls,
      host: host.replace(/^\[|\]$/g, ""),
      port: parts.port === "" ? (tls ? 5671 : 5672) : Number(parts.port),
      user: isAnonymous ? undefined : user,
      password: isAnonymous ? undefined : Redacted.make(password),
      // A bare slash is what people leave behind when they mean the default vhost.
      vhost: path === "" || path === "/" ? "/" : path.slice(1),
      heartbeatSeconds: Number(heartbeat),
      caCertFile: read.get("cacertfile"),
      certFile: read.get("certfile"),
      keyFile: read.get("keyfile"),
      keyPassword: keyPassword === undefined ? undefined : Redacted.make(keyPassword),
      verifyPeer: verify === "verify_peer",
      serverName
    }
  })

const readPem = (parameter: string, file: string): Either.Either<string, SettingsProblem> =>
  Either.try({
    try: () => readFileSync(file, "utf8"),
    catch: (cause) => ({
      setting: "AMQP_URL",
      problem: `names a file in ${parameter} that can't be read (${cause instanceof Error && "code" in cause ? cause.code : "unknown"})`,
      mend: "Check the path, and that this process may read it"
    })
  })

const tlsOptions = (parsed: AmqpUrl): Either.Either<ConnectionOptions, SettingsProblem> =>
  Either.gen(function* () {
    const options: ConnectionOptions = { rejectUnauthorized: parsed.verifyPeer }
    if (parsed.caCertFile !== undefined) options.ca = yield* readPem("cacertfile", parsed.caCertFile)
    if (parsed.certFile !== undefined) options.cert = yield* readPem("certfile", parsed.certFile)
    // One file may hold both.
    if (parsed.keyFile !== undefined) options.key = yield* readPem("keyfile", parsed.keyFile)
    else if (options.cert !== undefined) options.key = options.cert
    if (parsed.keyPassword !== undefined) options.passphrase = Redacted.value(parsed.keyPassword)
    if (parsed.serverName !== undefined) options.servername = parsed.serverName
    return options
  })

/** How to connect now. Reads the certificate files, so that they can be renewed without a restart. */
export const amqpTarget = (url: string): Either.Either<AmqpTarget, SettingsProblem> =>
  Either.gen(function* () {
    const parsed = yield* parseAmqpUrl(url)
    return {
      connect: {
        protocol: parsed.tls ? "amqps" : "amqp",
        hostname: parsed.host,
        port: parsed.port,
        ...(parsed.user === undefined ? {} : { username: parsed.user }),
        ...(parsed.password === undefined ? {} : { password: Redacted.value(parsed.password) }),
        // amqplib decodes this one part even when it did not come from a URL.
        vhost: encodeURIComponent(parsed.vhost),
        heartbeat: parsed.heartbeatSeconds
      },
      tls: parsed.tls ? yield* tlsOptions(parsed) : {}
    }
  })

const tlsAdvice: { readonly [fault in TlsFault]: string } = {
  authority:
    "Name the file of the authority that signed the broker's certificate in AMQP_URL's cacertfile, or in NODE_EXTRA_CA_CERTS",
  name: "Connect by a name that the broker's certificate holds, or give that name in AMQP_URL's server_name_indication",
  time: "Renew the broker's certificate, and check the clocks",
  plain: "Use the broker's port for TLS (5671 as a rule), or amqp:// if you trust the network",
  "client certificate": "Give a certificate that the broker takes, and its key, in AMQP_URL's certfile and keyfile"
}

const checkPassword = "Check user and password in AMQP_URL, or in the file that AMQP_URL_FILE names"
const speakTls = "If the broker speaks TLS at this port, write amqps://"

/** What a person can do about a connect that failed; `undefined` when the error says enough. */
export const amqpAdvice = (cause: unknown, { protocol }: AmqpTarget["connect"]): string | undefined => {
  const fault = tlsFault(cause)
  if (fault !== undefined) return tlsAdvice[fault]
  const words = cause instanceof Error ? cause.message : ""
  if (/ACCESS.REFUSED/.test(words)) return checkPassword
  // All that a broker says to plain bytes at its port for TLS: it hangs up, or resets what it did not read.
  const hangsUp = /^Socket closed abruptly|\b(ECONNRESET|EPIPE)\b/.test(words)
  return protocol === "amqp" && hangsUp ? speakTls : undefined
}

/** The advice that a reason ends with, if it does. */
export const amqpAdviceIn = (reason: string): string | undefined =>
  [...Object.values(tlsAdvice), checkPassword, speakTls].find((advice) => reason.endsWith(advice))
