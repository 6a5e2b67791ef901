/**
 * `DATABASE_URL` as libpq documents it, turned into what `pg` needs to connect.
 *
 * Own code rather than `pg`'s parser, since that one reads `sslmode` its own way, cuts a password at a raw `#`, and
 * decodes an escaped slash twice once the URL holds a space.
 */
import { readFileSync } from "node:fs"
import type { ConnectionOptions } from "node:tls"
import * as Either from "effect/Either"
import * as Redacted from "effect/Redacted"
import type { SettingsProblem } from "../Errors.js"

const sslModes = ["disable", "allow", "prefer", "require", "verify-ca", "verify-full"] as const
export type SslMode = (typeof sslModes)[number]

/** What the URL says. No file has been read and nothing has been asked of the environment. */
export interface DatabaseUrl {
  /** A name, an address without brackets, or the folder of a Unix socket (starts with `/`). */
  readonly host: string
  readonly port: number
  /** `undefined` leaves it to `pg`: `PGUSER` or the operating system's user. */
  readonly user: string | undefined
  readonly password: Redacted.Redacted<string> | undefined
  /** `undefined`: the database is named like the user. */
  readonly database: string | undefined
  readonly sslMode: SslMode
  /** A file, or `system` for the authorities that Node trusts. */
  readonly sslRootCert: string | undefined
  readonly sslCert: string | undefined
  readonly sslKey: string | undefined
  readonly sslPassword: Redacted.Redacted<string> | undefined
  readonly applicationName: string
  readonly connectTimeoutMillis: number
  /** `channel_binding=require`: SCRAM bound to the TLS channel, wherever the server offers it. */
  readonly channelBinding: boolean
  /** `options`: settings for the server's side, e.g. `-c search_path=events`. */
  readonly serverOptions: string | undefined
}

/** How to connect: the same everywhere but for encryption, which some modes try in two ways. */
export interface ConnectTarget
  extends Omit<DatabaseUrl, "sslMode" | "sslRootCert" | "sslCert" | "sslKey" | "sslPassword"> {
  /** To be tried in this order, the next one only when the server refuses the form of the one before. */
  readonly encryption: ReadonlyArray<false | ConnectionOptions>
}

const acceptedForm = "Write it as postgres://user:password@host:5432/database, with special characters percent-encoded"

const bad = (problem: string, mend: string = acceptedForm): Either.Either<never, SettingsProblem> =>
  Either.left({ setting: "DATABASE_URL", problem, mend })

const decode = (text: string): string | undefined => {
  try {
    return decodeURIComponent(text)
  } catch {
    return undefined
  }
}

/** Asking for more safety than we can give must not pass in silence. */
const unsupported = ["sslcrl", "sslcrldir", "require_auth", "service", "passfile", "hostaddr"]

const defaultConnectTimeoutMillis = 5000

interface Pieces {
  readonly user: string | undefined
  readonly password: string | undefined
  readonly host: string
  readonly port: string
  readonly database: string
  readonly parameters: ReadonlyMap<string, string>
}

/**
 * Takes the URL apart before it decodes anything. The user's part ends at the last `@` before the path, so a password
 * may hold a raw `@`, `?` or `#`.
 */
const takeApart = (url: string): Either.Either<Pieces, SettingsProblem> => {
  const scheme = /^postgres(?:ql)?:\/\//i.exec(url)
  if (scheme === null) return bad("is not a PostgreSQL URL")
  const rest = url.slice(scheme[0].length)
  const slash = rest.indexOf("/")
  const question = rest.indexOf("?", slash === -1 ? rest.indexOf("@") + 1 : slash)
  const beforeQuery = question === -1 ? rest : rest.slice(0, question)
  const authority = slash === -1 ? beforeQuery : rest.slice(0, slash)
  const path = slash === -1 ? "" : beforeQuery.slice(slash + 1)
  const at = authority.lastIndexOf("@")
  const credentials = at === -1 ? "" : authority.slice(0, at)
  const colon = credentials.indexOf(":")
  const hostAndPort = /^(\[[^\]]*\]|[^:]*)(?::(.*))?$/s.exec(authority.slice(at + 1))
  if (path.includes("@")) return bad("has an @ after the first slash; does the password hold a raw slash?")
  if (hostAndPort === null) return bad("has a host that can't be read")

  const parameters = new Map<string, string>()
  for (const pair of question === -1 ? [] : rest.slice(question + 1).split("&")) {
    if (pair === "") continue
    const equals = pair.indexOf("=")
    const key = decode(equals === -1 ? pair : pair.slice(0, equals))
    const value = decode(equals === -1 ? "" : pair.slice(equals + 1))
    if (key === undefined || value === undefined) return bad("has a % in its parameters that starts no escape")
    parameters.set(key, value)
  }

  const user = decode(colon === -1 ? credentials : credentials.slice(0, colon))
  const password = decode(colon === -1 ? "" : credentials.slice(colon + 1))
  const host = decode((hostAndPort[1] ?? "").replace(/^\[|\]$/g, ""))
  const database = decode(path)
  if (user === undefined || password === undefined) {
    return bad("has a % in its user or password that starts no escape", "Write a percent sign as %25")
  }
  if (host === undefined || database === undefined) return bad("has a % in its host or database that starts no escape")
  return Either.right({
    user: parameters.get("user") ?? (user === "" ? undefined : user),
    password: parameters.get("password") ?? (password === "" ? undefined : password),
    host: parameters.get("host") ?? host,
    port: parameters.get("port") ?? hostAndPort[2] ?? "",
    database: parameters.get("dbname") ?? database,
    parameters
  })
}

/** Reads `sslmode`, with JDBC's `ssl=true` and the rules for `sslrootcert=system` that libpq has. */
const sslModeOf = (parameters: ReadonlyMap<string, string>): Either.Either<SslMode, SettingsProblem> => {
  const rootCert = parameters.get("sslrootcert")
  const written = parameters.get("sslmode") ?? (parameters.get("ssl") === "true" ? "require" : undefined)
  const mode = written ?? (rootCert === "system" ? "verify-full" : "prefer")
  const known = sslModes.find((one) => one === mode)
  if (known === undefined) return bad("has an unknown sslmode", `Give one of ${sslModes.join(", ")}`)
  if (rootCert === "system" && known !== "verify-full") {
    return bad("has sslrootcert=system with a weaker sslmode", "Use sslmode=verify-full with it")
  }
  if (known === "verify-ca" && rootCert === undefined) {
    return bad("has sslmode=verify-ca without sslrootcert", "Name the authority's file in sslrootcert")
  }
  return Either.right(known)
}

/** Parses a `DATABASE_URL`. Pure; a problem never shows a part of the URL. */
export const parseDatabaseUrl = (url: string): Either.Either<DatabaseUrl, SettingsProblem> =>
  Either.gen(function* () {
    const pieces = yield* takeApart(url.trim())
    const { parameters } = pieces
    const refused = unsupported.find((name) => parameters.has(name))
    if (refused !== undefined) return yield* bad(`has the parameter ${refused}, which is not supported`, "Leave it out")
    if (pieces.host.includes(",")) return yield* bad("names more than one host", "Name one host")
    const port = pieces.port === "" ? 5432 : Number(pieces.port)
    if (!Number.isInteger(port) || port < 1 || port > 65_535) {
      return yield* bad("has a port that is no number from 1 to 65535; does the password hold a raw slash or colon?")
    }
    const timeout = parameters.get("connect_timeout")
    if (timeout !== undefined && !/^\d{1,6}$/.test(timeout)) {
      return yield* bad("has a connect_timeout that is no whole number", "Give it in seconds")
    }
    const sslMode = yield* sslModeOf(parameters)
    const secret = parameters.get("sslpassword")
    return {
      host: pieces.host === "" ? "localhost" : pieces.host,
      port,
      user: pieces.user,
      password: pieces.password === undefined ? undefined : Redacted.make(pieces.password),
      database: pieces.database === "" ? undefined : pieces.database,
      sslMode,
      sslRootCert: parameters.get("sslrootcert"),
      sslCert: parameters.get("sslcert"),
      sslKey: parameters.get("sslkey"),
      sslPassword: secret === undefined ? undefined : Redacted.make(secret),
      applicationName: parameters.get("application_name") ?? "pg-listener",
      // libpq reads 0 as "wait for ever"; every wait of ours has an end.
      connectTimeoutMillis:
        timeout === undefined || Number(timeout) === 0 ? defaultConnectTimeoutMillis : Number(timeout) * 1000,
      channelBinding: parameters.get("channel_binding") === "require",
      serverOptions: parameters.get("options")
    }
  })

const readPem = (parameter: string, file: string): Either.Either<string, SettingsProblem> =>
  Either.try({
    try: () => readFileSync(file, "utf8"),
    catch: (cause) => ({
      setting: "DATABASE_URL",
      problem: `names a file in ${parameter} that can't be read (${cause instanceof Error && "code" in cause ? cause.code : "unknown"})`,
      mend: "Check the path, and that this process may read it"
    })
  })

/** The authority is checked whenever one is named, and the host's name only in `verify-full`; both as libpq does. */
const tlsOptions = (parsed: DatabaseUrl): Either.Either<ConnectionOptions, SettingsProblem> =>
  Either.gen(function* () {
    const options: ConnectionOptions = {}
    if (parsed.sslRootCert !== undefined && parsed.sslRootCert !== "system") {
      options.ca = yield* readPem("sslrootcert", parsed.sslRootCert)
    }
    if (parsed.sslCert !== undefined) options.cert = yield* readPem("sslcert", parsed.sslCert)
    if (parsed.sslKey !== undefined) options.key = yield* readPem("sslkey", parsed.sslKey)
    if (parsed.sslPassword !== undefined) options.passphrase = Redacted.value(parsed.sslPassword)
    if (parsed.sslMode === "verify-full") return options
    if (options.ca === undefined) options.rejectUnauthorized = false
    else options.checkServerIdentity = () => undefined
    return options
  })

/** How to connect now. Reads the certificate files, so that they can be renewed without a restart. */
export const connectTarget = (url: Redacted.Redacted<string>): Either.Either<ConnectTarget, SettingsProblem> =>
  Either.gen(function* () {
    const parsed = yield* parseDatabaseUrl(Redacted.value(url))
    const { sslCert: _1, sslKey: _2, sslMode, sslPassword: _3, sslRootCert: _4, ...rest } = parsed
    // libpq ignores sslmode on a Unix socket: PostgreSQL has no TLS there.
    if (sslMode === "disable" || parsed.host.startsWith("/")) return { ...rest, encryption: [false] }
    const tls = yield* tlsOptions(parsed)
    if (sslMode === "allow") return { ...rest, encryption: [false, tls] }
    if (sslMode === "prefer") return { ...rest, encryption: [tls, false] }
    return { ...rest, encryption: [tls] }
  })
