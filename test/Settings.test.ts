import { mkdtempSync, rmSync, writeFileSync } from "node:fs"
import { tmpdir } from "node:os"
import { join } from "node:path"
import { assert, describe, it } from "@effect/vitest"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as LogLevel from "effect/LogLevel"
import * as Option from "effect/Option"
import * as Redacted from "effect/Redacted"
import type { SettingsError } from "../src/Errors.js"
import { defaultRoutes } from "../src/Routes.js"
import { type Environment, Settings, type SettingsShape, settingsTable } from "../src/Settings.js"

const required = { DATABASE_URL: "postgres://u:db-s3cret@h/db", AMQP_URL: "amqp://u:mq-s3cret@h" }

const read = (environment: Environment) => Effect.provide(Settings, Settings.layerFrom({ ...required, ...environment }))

/** Every problem of an environment, as `name: problem. mend`. */
const problems = (environment: Environment): Effect.Effect<ReadonlyArray<string>> =>
  read(environment).pipe(
    Effect.match({ onFailure: (error) => error.message.split("\n"), onSuccess: () => [] as ReadonlyArray<string> })
  )

const expectProblems = (environment: Environment, ...expected: ReadonlyArray<RegExp>) =>
  Effect.map(problems(environment), (found) => {
    assert.strictEqual(found.length, expected.length, found.join("\n"))
    expected.forEach((pattern, index) => {
      assert.match(found[index] ?? "", pattern)
    })
  })

const reveal = (secret: Effect.Effect<Redacted.Redacted<string>, SettingsError>) => Effect.map(secret, Redacted.value)

const scratchFolder = Effect.acquireRelease(
  Effect.sync(() => mkdtempSync(join(tmpdir(), "pg-listener-settings-"))),
  (folder) => Effect.sync(() => rmSync(folder, { recursive: true }))
)

const scratchFile = (content: string) =>
  Effect.map(scratchFolder, (folder) => {
    const path = join(folder, "secret")
    const write = (text: string) => Effect.sync(() => writeFileSync(path, text))
    writeFileSync(path, content)
    return { path, write }
  })

/** The settings as plain data, for comparing. */
const plainData = ({ adminToken: _, amqpUrl: __, databaseUrl: ___, routes, ...rest }: SettingsShape) => ({
  ...rest,
  routes: routes.all
})

describe("the settings", () => {
  it.effect("have their defaults when only the two URLs are given", () =>
    Effect.gen(function* () {
      const settings = yield* read({})
      assert.deepStrictEqual(plainData(settings), {
        routes: defaultRoutes.split(",").map((route) => {
          const [source = "", target = ""] = route.split("=")
          return { source, target }
        }),
        schema: "public",
        wakeChannel: "event_outbox",
        health: { port: 6010, host: "0.0.0.0" },
        batchSize: 200,
        workers: 2,
        maxAttempts: 10,
        maxMessageBytes: 16_777_216,
        confirmTimeout: Duration.millis(10_000),
        pollInterval: Duration.millis(5_000),
        busyThresholdPerSecond: 200,
        busyGap: Duration.millis(3),
        sweepInterval: Duration.millis(300_000),
        sweepAfter: Duration.millis(30_000),
        cleanupInterval: Duration.millis(3_600_000),
        retention: Duration.millis(86_400_000),
        gaugesInterval: Duration.millis(15_000),
        heartbeatInterval: Duration.millis(10_000),
        heartbeatTimeout: Duration.millis(5_000),
        shutdownTimeout: Duration.millis(20_000),
        declareQueues: true,
        queueType: "classic",
        logLevel: LogLevel.Info,
        logFormat: "json",
        otlpEndpoint: Option.none()
      })
      assert.isTrue(Option.isNone(settings.adminToken))
      assert.strictEqual(yield* reveal(settings.databaseUrl), required.DATABASE_URL)
      assert.strictEqual(yield* reveal(settings.amqpUrl), required.AMQP_URL)
    })
  )

  it.effect("take every variable that is given", () =>
    Effect.gen(function* () {
      const settings = yield* read({
        PG_LISTENER_ROUTES: "a=q",
        PG_LISTENER_SCHEMA: 'My "Schema"',
        PG_LISTENER_WAKE_CHANNEL: "wake",
        PG_LISTENER_HEALTH_PORT: "0",
        PG_LISTENER_HEALTH_HOST: "::1",
        PG_LISTENER_ADMIN_TOKEN: "t0ken",
        PG_LISTENER_BATCH_SIZE: "1",
        PG_LISTENER_WORKERS: "64",
        PG_LISTENER_MAX_ATTEMPTS: "100",
        PG_LISTENER_MAX_MESSAGE_BYTES: "536870912",
        PG_LISTENER_CONFIRM_TIMEOUT: "500ms",
        PG_LISTENER_POLL_INTERVAL: "1.5 seconds",
        PG_LISTENER_BUSY_THRESHOLD: "0",
        PG_LISTENER_BUSY_GAP: "1 milli",
        PG_LISTENER_SWEEP_INTERVAL: "10m",
        PG_LISTENER_SWEEP_AFTER: "1 minute",
        PG_LISTENER_CLEANUP_INTERVAL: "2h",
        PG_LISTENER_RETENTION: "1 week",
        PG_LISTENER_GAUGES_INTERVAL: "1 minute",
        PG_LISTENER_HEARTBEAT_INTERVAL: " 3S ",
        PG_LISTENER_HEARTBEAT_TIMEOUT: "1 Second",
        PG_LISTENER_SHUTDOWN_TIMEOUT: "1h",
        PG_LISTENER_DECLARE_QUEUES: "No",
        PG_LISTENER_QUEUE_TYPE: "quorum",
        LOG_LEVEL: "WARN",
        LOG_FORMAT: "pretty",
        OTEL_EXPORTER_OTLP_ENDPOINT: "http://localhost:4318"
      })
      assert.deepStrictEqual(plainData(settings), {
        routes: [{ source: "a", target: "q" }],
        schema: 'My "Schema"',
        wakeChannel: "wake",
        health: { port: 0, host: "::1" },
        batchSize: 1,
        workers: 64,
        maxAttempts: 100,
        maxMessageBytes: 536_870_912,
        confirmTimeout: Duration.millis(500),
        pollInterval: Duration.millis(1_500),
        busyThresholdPerSecond: 0,
        busyGap: Duration.millis(1),
        sweepInterval: Duration.millis(600_000),
        sweepAfter: Duration.millis(60_000),
        cleanupInterval: Duration.millis(7_200_000),
        retention: Duration.millis(604_800_000),
        gaugesInterval: Duration.millis(60_000),
        heartbeatInterval: Duration.millis(3_000),
        heartbeatTimeout: Duration.millis(1_000),
        shutdownTimeout: Duration.millis(3_600_000),
        declareQueues: false,
        queueType: "quorum",
        logLevel: LogLevel.Warning,
        logFormat: "pretty",
        otlpEndpoint: Option.some("http://localhost:4318")
      })
      assert.strictEqual(yield* reveal(Option.getOrThrow(settings.adminToken)), "t0ken")
    })
  )

  it.effect("count an empty or blank text as not set", () =>
    Effect.gen(function* () {
      const blank = Object.fromEntries(settingsTable.map(({ name }) => [name, " "]))
      const settings = yield* read({ ...blank, ...required, PG_LISTENER_TYPO: "", PG_LISTENER_ADMIN_TOKEN_FILE: "" })
      assert.deepStrictEqual(plainData(settings), plainData(yield* read({})))
    })
  )

  it.effect("tell all problems at once, in the order of the documentation, each with its mend", () =>
    expectProblems(
      {
        DATABASE_URL: undefined,
        AMQP_URL: undefined,
        PG_LISTENER_BATCH_SIZE: "0",
        PG_LISTENER_ROUTES: "a,b=/q",
        PG_LISTENER_POLL_INTERVAL: "5",
        LOG_LEVEL: "loud"
      },
      /^DATABASE_URL: is not set\. Set it, as in postgres:\/\/user:password@host:5432\/database, or name a file that holds it in DATABASE_URL_FILE$/,
      /^AMQP_URL: is not set\. Set it, as in amqp:\/\/.*AMQP_URL_FILE$/,
      /^PG_LISTENER_ROUTES: route "a": has no target/,
      /^PG_LISTENER_ROUTES: route "b=\/q": .*without the slash/,
      /^PG_LISTENER_BATCH_SIZE: "0" is not a whole number from 1 to 10000\. Give a whole number from 1 to 10000$/,
      /^PG_LISTENER_POLL_INTERVAL: "5" has no unit\. Write "5 seconds" or "5 millis"$/,
      /^LOG_LEVEL: "loud" is not one of trace, debug, info, warn, warning, error, fatal, none/
    )
  )

  it.effect("don't need the broker's URL for a command that only talks to the database, until it is used", () =>
    Effect.gen(function* () {
      const layer = Settings.layerFrom({ DATABASE_URL: required.DATABASE_URL }, "database")
      const settings = yield* Effect.provide(Settings, layer)
      assert.match((yield* Effect.flip(settings.amqpUrl)).message, /^AMQP_URL: is not set/)
    })
  )

  it.effect("are a defect-free read of the process's own environment", () =>
    Effect.gen(function* () {
      const exit = yield* Effect.either(Effect.provide(Settings, Settings.layer))
      if (exit._tag === "Left") assert.strictEqual(exit.left._tag, "SettingsError")
    })
  )
})

describe("a setting's text", () => {
  it.effect.each([
    ["PG_LISTENER_BATCH_SIZE", "10001"],
    ["PG_LISTENER_BATCH_SIZE", "1e3"],
    ["PG_LISTENER_BATCH_SIZE", "-1"],
    ["PG_LISTENER_WORKERS", "65"],
    ["PG_LISTENER_WORKERS", "1.5"],
    ["PG_LISTENER_MAX_ATTEMPTS", "101"],
    ["PG_LISTENER_HEALTH_PORT", "65536"],
    ["PG_LISTENER_MAX_MESSAGE_BYTES", "16MB"],
    ["PG_LISTENER_MAX_MESSAGE_BYTES", "536870913"],
    ["PG_LISTENER_HEALTH_HOST", "http://x"],
    ["PG_LISTENER_SCHEMA", "s".repeat(64)],
    ["PG_LISTENER_WAKE_CHANNEL", "é".repeat(32)],
    ["PG_LISTENER_WAKE_CHANNEL", "a\0b"],
    ["PG_LISTENER_POLL_INTERVAL", "0 seconds"],
    ["PG_LISTENER_POLL_INTERVAL", "-1 seconds"],
    ["PG_LISTENER_POLL_INTERVAL", "500 micros"],
    ["PG_LISTENER_POLL_INTERVAL", "0.5 millis"],
    ["PG_LISTENER_POLL_INTERVAL", "soon"],
    ["PG_LISTENER_POLL_INTERVAL", "5 constructor"],
    ["PG_LISTENER_SWEEP_INTERVAL", "25 days"],
    ["PG_LISTENER_BUSY_GAP", "2 seconds"],
    ["PG_LISTENER_RETENTION", "0h"],
    ["PG_LISTENER_DECLARE_QUEUES", "maybe"],
    ["PG_LISTENER_DECLARE_QUEUES", "constructor"],
    ["PG_LISTENER_QUEUE_TYPE", "stream"],
    ["LOG_FORMAT", "xml"]
  ] as const)("is a problem that shows it and says what is accepted: %s=%s", ([name, text]) =>
    Effect.map(problems({ [name]: text }), (found) => {
      const accepted = settingsTable.find((setting) => setting.name === name)?.accepted ?? "?"
      assert.strictEqual(found.length, 1, found.join("\n"))
      assert.include(
        found[0],
        `${name}: ${JSON.stringify(text.length > 60 ? `${text.slice(0, 57)}...` : text)} is not ${accepted}. `
      )
      assert.include(found[0], `. Give ${accepted}`)
    })
  )

  it.effect.each([
    ["63 bytes", "s".repeat(63)],
    ["odd characters", 'Ünï "code" $1;--']
  ])("may be an identifier of %s, taken exactly as written", ([, name]) =>
    Effect.map(read({ PG_LISTENER_SCHEMA: name }), ({ schema }) => assert.strictEqual(schema, name))
  )

  it.effect("must not be longer than a timer can wait, and a retention may be", () =>
    Effect.gen(function* () {
      const { cleanupInterval, retention } = yield* read({
        PG_LISTENER_CLEANUP_INTERVAL: "24 days",
        PG_LISTENER_RETENTION: "3650 days"
      })
      assert.isAtMost(Duration.toMillis(cleanupInterval), 2 ** 31 - 1)
      assert.strictEqual(Duration.toDays(retention), 3650)
    })
  )

  it.effect("that routes the wake channel is a problem: the wake channel is never published", () =>
    Effect.gen(function* () {
      yield* expectProblems(
        { PG_LISTENER_ROUTES: "a=q,event_outbox=q" },
        /^PG_LISTENER_ROUTES: the wake channel "event_outbox" is a source, but the wake channel is never published\. .*PG_LISTENER_WAKE_CHANNEL/
      )
      yield* expectProblems({ PG_LISTENER_ROUTES: "event_outbox=q", PG_LISTENER_WAKE_CHANNEL: "wake" })
      yield* expectProblems({ PG_LISTENER_ROUTES: "*=q" })
    })
  )
})

describe("a URL", () => {
  it.effect.each([
    ["DATABASE_URL", "mysql://u:db-s3cret@h/db", /begins with postgres:\/\/ or postgresql:\/\//],
    ["DATABASE_URL", "u:db-s3cret@h/db", /is not a URL that begins|can't be read/],
    ["DATABASE_URL", "db-s3cret", /can't be read as a URL/],
    ["DATABASE_URL", "postgres://u:db-s3cret@h:99999/db", /can't be read as a URL/],
    ["DATABASE_URL", "postgres://u:db-s3cret@/db", /names no host|can't be read/],
    ["DATABASE_URL", "postgres://u:db-s3cret%@h/db", /Write %25 for a percent sign/],
    [
      "DATABASE_URL",
      "postgres://u:db-s3cret@h/db?sslmode=yes",
      /Give one of disable, allow, prefer, require, verify-ca, verify-full/
    ],
    ["AMQP_URL", "http://u:db-s3cret@h", /begins with amqp:\/\/ or amqps:\/\//],
    ["AMQP_URL", "amqp://", /names no host/],
    ["PG_LISTENER_ADMIN_TOKEN", "db-s3cret with space", /can't be sent in an HTTP header/],
    ["OTEL_EXPORTER_OTLP_ENDPOINT", "localhost:4318/db-s3cret", /begins with http:\/\/ or https:\/\//]
  ] as const)("or token that can't be used is a problem without its value: %s=%s", ([name, text, expected]) =>
    Effect.map(problems({ [name]: text }), (found) => {
      assert.strictEqual(found.length, 1, found.join("\n"))
      assert.match(found[0] ?? "", expected)
      assert.isTrue(found[0]?.startsWith(`${name}: `))
      assert.notInclude(found[0], "s3cret")
    })
  )

  it.effect.each([
    ["DATABASE_URL", "postgresql://h/db?sslmode=verify-full&sslrootcert=/ca.pem"],
    ["DATABASE_URL", "postgres://u@[::1]:5432/db"],
    ["DATABASE_URL", "postgres:///db?host=/var/run/postgresql"],
    ["DATABASE_URL", "postgres://u:p%40%2F%25@h/db"],
    ["AMQP_URL", "amqps://u:p@h:5671/%2Fvhost?heartbeat=10"]
  ] as const)("may be %s=%s", ([name, text]) => expectProblems({ [name]: text }))
})

describe("a secret", () => {
  it.scoped("in a file is read without its line end, and read again at every use", () =>
    Effect.gen(function* () {
      const file = yield* scratchFile(`${required.DATABASE_URL}\r\n`)
      const { databaseUrl } = yield* read({ DATABASE_URL: undefined, DATABASE_URL_FILE: file.path })
      assert.strictEqual(yield* reveal(databaseUrl), required.DATABASE_URL)
      yield* file.write("postgres://u:rotated@h/db")
      assert.strictEqual(yield* reveal(databaseUrl), "postgres://u:rotated@h/db")
    })
  )

  it.scoped("in a file that became bad fails at its use, with the file's setting and no value", () =>
    Effect.gen(function* () {
      const file = yield* scratchFile(required.AMQP_URL)
      const { amqpUrl } = yield* read({ AMQP_URL: undefined, AMQP_URL_FILE: file.path })
      yield* file.write("http://u:s3cret@h")
      const { message } = yield* Effect.flip(amqpUrl)
      assert.match(message, /^AMQP_URL_FILE: is not a URL that begins with amqp/)
      assert.notInclude(message, "s3cret")
    })
  )

  it.scoped("of every kind may come in a file", () =>
    Effect.gen(function* () {
      const file = yield* scratchFile("t0ken\n")
      const { adminToken } = yield* read({ PG_LISTENER_ADMIN_TOKEN_FILE: file.path })
      assert.strictEqual(yield* reveal(Option.getOrThrow(adminToken)), "t0ken")
    })
  )

  it.scoped("that is given twice, missing or empty is a problem", () =>
    Effect.gen(function* () {
      const empty = yield* scratchFile("\n")
      yield* expectProblems(
        {
          DATABASE_URL: undefined,
          DATABASE_URL_FILE: join(empty.path, "..", "nothing-here"),
          AMQP_URL: undefined,
          AMQP_URL_FILE: empty.path
        },
        /^DATABASE_URL_FILE: the file ".*nothing-here" can't be read \(ENOENT\)/,
        /^AMQP_URL_FILE: the file ".*" is empty/
      )
      const file = yield* scratchFile(required.DATABASE_URL)
      yield* expectProblems(
        { DATABASE_URL_FILE: file.path },
        /^DATABASE_URL: DATABASE_URL_FILE is set too\. Keep only one/
      )
    })
  )

  it.effect("does not show when the settings are printed", () =>
    Effect.map(read({}), (settings) => {
      assert.notInclude(JSON.stringify(settings), "s3cret")
      assert.notInclude(String(settings.databaseUrl), "s3cret")
    })
  )
})

describe("a name that nobody reads", () => {
  it.effect.each([
    ["PG_LISTENER_BATCHSIZE", "PG_LISTENER_BATCH_SIZE"],
    ["PG_LISTENER_HEALT_PORT", "PG_LISTENER_HEALTH_PORT"],
    ["PG_LISTENER_PORT", "PG_LISTENER_HEALTH_PORT"],
    ["PG_LISTENER_ADMIN_TOKEN_FIEL", "PG_LISTENER_ADMIN_TOKEN_FILE"],
    ["PG_LISTENER_SCHEMA_FILE", "PG_LISTENER_SCHEMA"]
  ] as const)("is a problem that names the nearest: %s", ([name, nearest]) =>
    expectProblems(
      { [name]: "8080" },
      new RegExp(`^${name}: is not a setting of pg-listener; did you mean ${nearest}\\? Correct the name`)
    )
  )

  it.effect("is a problem without a guess when none is near", () =>
    expectProblems(
      { PG_LISTENER_XYZZYPLUGH: "1" },
      /^PG_LISTENER_XYZZYPLUGH: is not a setting of pg-listener\. .*--help/
    )
  )

  it.effect("is no problem when it is none of ours", () =>
    expectProblems({ PATH: "/bin", PG_LISTENERS: "1", pg_listener_batch_size: "x", LOG_LEVELS: "x" })
  )

  it.effect("is no problem when Kubernetes puts it there for a Service named pg-listener or pg-listener-…", () =>
    Effect.gen(function* () {
      const links = (prefix: string) => ({
        [`${prefix}_SERVICE_HOST`]: "10.0.0.7",
        [`${prefix}_SERVICE_PORT`]: "6010",
        [`${prefix}_SERVICE_PORT_HTTP`]: "6010",
        [`${prefix}_PORT`]: "tcp://10.0.0.7:6010",
        [`${prefix}_PORT_6010_TCP`]: "tcp://10.0.0.7:6010",
        [`${prefix}_PORT_6010_TCP_PROTO`]: "tcp",
        [`${prefix}_PORT_6010_TCP_PORT`]: "6010",
        [`${prefix}_PORT_6010_TCP_ADDR`]: "10.0.0.7"
      })
      const settings = yield* read({
        ...links("PG_LISTENER"),
        ...links("PG_LISTENER_METRICS"),
        ...links("PG_LISTENER_HEALTH")
      })
      assert.strictEqual(settings.health.port, 6010)
    })
  )

  it("has no form in common with our own names, but for the port that is told by its value", () => {
    const links = settingsTable.map(({ name }) => name).filter((name) => /_SERVICE_|_PORT(_\d|$)/.test(name))
    assert.deepStrictEqual(links, ["PG_LISTENER_HEALTH_PORT"])
  })
})

describe("the table of settings", () => {
  it("describes each variable once, in words", () => {
    const names =
      "ROUTES SCHEMA WAKE_CHANNEL HEALTH_PORT HEALTH_HOST ADMIN_TOKEN BATCH_SIZE WORKERS MAX_ATTEMPTS \
MAX_MESSAGE_BYTES CONFIRM_TIMEOUT POLL_INTERVAL BUSY_THRESHOLD BUSY_GAP SWEEP_INTERVAL SWEEP_AFTER CLEANUP_INTERVAL RETENTION \
GAUGES_INTERVAL HEARTBEAT_INTERVAL HEARTBEAT_TIMEOUT SHUTDOWN_TIMEOUT DECLARE_QUEUES QUEUE_TYPE"
    const ours = names.split(" ").map((name) => `PG_LISTENER_${name}`)
    assert.deepStrictEqual(
      settingsTable.map(({ name }) => name),
      ["DATABASE_URL", "AMQP_URL", ...ours, "LOG_LEVEL", "LOG_FORMAT", "OTEL_EXPORTER_OTLP_ENDPOINT"]
    )
    for (const { accepted, meaning } of settingsTable) {
      assert.isNotEmpty(accepted)
      assert.isNotEmpty(meaning)
    }
    assert.deepStrictEqual(
      settingsTable.filter(({ isSecret }) => isSecret).map(({ name }) => name),
      ["DATABASE_URL", "AMQP_URL", "PG_LISTENER_ADMIN_TOKEN"]
    )
  })

  it.effect("names the defaults that the parser uses", () =>
    Effect.gen(function* () {
      const written = Object.fromEntries(
        settingsTable.flatMap((setting) => (setting.default === undefined ? [] : [[setting.name, setting.default]]))
      )
      assert.deepStrictEqual(plainData(yield* read(written)), plainData(yield* read({})))
    })
  )

  it("says required, none, or the default for a person", () => {
    const texts = settingsTable.map(({ defaultText, name }) => [name, defaultText])
    assert.deepStrictEqual(texts[0], ["DATABASE_URL", "required"])
    assert.deepStrictEqual(texts[1], ["AMQP_URL", "required"])
    assert.deepInclude(texts, ["PG_LISTENER_ADMIN_TOKEN", "none"])
    assert.deepInclude(texts, ["OTEL_EXPORTER_OTLP_ENDPOINT", "none"])
    assert.deepInclude(texts, ["PG_LISTENER_BUSY_GAP", "3 millis"])
  })
})
