/** What commands make of their words before anything connects, and of an outbox's state. */
import { assert, describe, it } from "@effect/vitest"
import * as Console from "effect/Console"
import * as Effect from "effect/Effect"
import * as Either from "effect/Either"
import * as Exit from "effect/Exit"
import * as Option from "effect/Option"
import * as Redacted from "effect/Redacted"
import { exitCode, program } from "../src/Cli.js"
import { checkToken, usableSettings } from "../src/commands/CheckSettings.js"
import { table } from "../src/commands/Command.js"
import { discardOptions, retryOptions, targetOf } from "../src/commands/DeadLetters.js"
import { attentionTo, type Status } from "../src/commands/Status.js"
import { type OptionSpec, parseWords, UsageError } from "../src/internal/commandLine.js"

/** What a command line prints, and its exit code. */
const run = (line: string) =>
  Effect.gen(function* () {
    const printed: Array<string> = []
    const console = { ...(yield* Console.consoleWith(Effect.succeed)) }
    const recording = { ...console, log: (text: string) => Effect.sync(() => void printed.push(text)) }
    const exit = yield* Effect.exit(program(line.split(" "))).pipe(Effect.withConsole(recording))
    return { code: exitCode(exit, false), printed: printed.join("\n") }
  })

describe("--help", () => {
  for (const line of [
    "run --help",
    "migrate --help",
    "status --help",
    "check -h",
    "dead-letters --help",
    "dead-letters list --help",
    "dead-letters show --help",
    "dead-letters retry --help",
    "dead-letters discard --help"
  ]) {
    it.effect(`"${line}" shows how it is used, and does nothing`, () =>
      Effect.gen(function* () {
        const { code, printed } = yield* run(line)
        assert.strictEqual(code, 0)
        assert.isTrue(printed.startsWith(`Usage: node dist/main.js ${line.replace(/ -.*/, "")}`), printed)
      })
    )
  }
})

describe("a command line that can't be understood", () => {
  const cases: ReadonlyArray<readonly [line: string, reason: string]> = [
    ["stauts", "unknown command: stauts; did you mean status?"],
    ["status now", 'unexpected argument: "now"'],
    ["run --json", "unknown option: --json"],
    ["migrate --force", "unknown option: --force"],
    ["check --jsn", "unknown option: --jsn; did you mean --json?"],
    ["dead-letters", "say what to do with dead letters"],
    ["dead-letters retyr x", "unknown command: retyr; did you mean retry?"],
    ["dead-letters list --event_type x", "unknown option: --event_type; did you mean --event-type?"]
  ]
  for (const [line, reason] of cases) {
    it.effect(`"${line}" says so, with the usage, and ends with exit code 2`, () =>
      Effect.gen(function* () {
        const error = yield* Effect.flip(program(line.split(" ")))
        if (!(error instanceof UsageError)) return assert.fail(String(error))
        assert.isTrue(error.message.startsWith(`${reason}\n\n`), error.message)
        assert.include(error.message, "Usage: node dist/main.js")
        assert.strictEqual(exitCode(Exit.fail(error), false), 2)
      })
    )
  }
})

describe("an action on dead letters", () => {
  const id = "0193a0f0-0000-7000-8000-000000000001"
  const target = (options: ReadonlyArray<OptionSpec>, line: string) =>
    Either.flatMap(parseWords(line === "" ? [] : line.split(" "), options, 1), (parsed) =>
      Either.mapLeft(targetOf(parsed, options, ["orders"]), (fault) =>
        typeof fault === "string" ? fault : fault.message
      )
    )
  const refusal = (options: ReadonlyArray<OptionSpec>, line: string) =>
    Either.getOrElse(Either.flip(target(options, line)), () => "")

  const understood: ReadonlyArray<readonly [line: string, meant: object]> = [
    [id, { kind: "one", id }],
    ["--all", { kind: "many", options: { filter: {} } }],
    ["--all --limit 7", { kind: "many", options: { filter: {}, limit: 7 } }],
    ["--event-type a --queue orders", { kind: "many", options: { filter: { eventType: "a", queue: "orders" } } }],
    ["--older-than 2h", { kind: "many", options: { filter: { olderThan: { kind: "age", millis: 7_200_000 } } } }]
  ]
  for (const [line, meant] of understood) {
    it(`"${line}" is understood`, () => {
      assert.deepStrictEqual(Either.getOrNull<object, string>(target(retryOptions, line)), meant)
      assert.deepStrictEqual(Either.getOrNull<object, string>(target(discardOptions, `${line} --yes`)), meant)
    })
  }

  const refused: ReadonlyArray<readonly [line: string, reason: RegExp]> = [
    ["", /^name an id, a filter, or --all$/],
    ["--limit 7", /^name an id, a filter, or --all$/],
    [`${id} --all`, /^an id, a filter and --all exclude one another$/],
    ["--all --channel a", /^an id, a filter and --all exclude one another$/],
    [`${id} --limit 1`, /^--limit has no meaning with an id$/],
    ["17", /^id: "17" is not a uuid\. Give/],
    ["--event-type=", /^--event-type: "" is not a text/],
    ["--queue ordres", /^--queue: no route names the queue "ordres"\. There are orders$/],
    ["--newer-than soon", /^--newer-than: "soon" is not a duration/],
    ["--all --limit 0", /^--limit: "0" is not a whole number/]
  ]
  for (const [line, reason] of refused) {
    it(`"${line}" is refused: ${reason}`, () => {
      assert.match(refusal(retryOptions, line), reason)
      assert.match(refusal(discardOptions, `--yes ${line}`.trim()), reason)
    })
  }

  it("deletes many only with --yes", () => {
    for (const line of ["--all", "--channel a"]) {
      assert.strictEqual(refusal(discardOptions, line), "this deletes events for good: say --yes")
    }
    assert.isTrue(Either.isRight(target(discardOptions, id)))
  })
})

describe("an outbox wants attention", () => {
  const well: Status = {
    schema: [],
    pending: 3,
    dead: 0,
    oldestPendingSeconds: 60,
    processedKept: 1,
    processedKeptIsEstimate: false,
    tableBytes: 0,
    lastSeq: "4",
    lowWaterMark: "1",
    openWriters: 0,
    doorbell: { mode: "quiet", note: null },
    relay: { sessions: 1, liveOwner: null }
  }

  it("not while events are fresh, somebody listens, and none was given up", () => {
    assert.deepStrictEqual(attentionTo(well), [])
  })

  it("for dead letters, an old event, and nobody who listens, each in its own words", () => {
    const relay = { sessions: 0, liveOwner: null }
    assert.deepStrictEqual(attentionTo({ ...well, dead: 2, oldestPendingSeconds: 60.5, relay }), [
      "there are 2 dead letters: see node dist/main.js dead-letters list",
      "an event has been pending for 61 s",
      "no relay listens"
    ])
  })
})

describe("check's settings", () => {
  const good = { DATABASE_URL: "postgres://u@db/app", AMQP_URL: "amqp://broker" }
  const whats = (environment: Readonly<Record<string, string>>) =>
    Effect.map(usableSettings(environment), ({ findings, hasBroker, hasDatabase, settings }) => ({
      fails: findings.filter(({ _tag }) => _tag === "Fails").map(({ what }) => what),
      hasBroker,
      hasDatabase,
      schema: settings?.schema
    }))

  it.effect("go on without the part that is no good, and with the rest as it is set", () =>
    Effect.gen(function* () {
      const rest = { PG_LISTENER_SCHEMA: "events" }
      assert.deepStrictEqual(yield* whats({ ...good, ...rest }), {
        fails: [],
        hasBroker: true,
        hasDatabase: true,
        schema: "events"
      })
      assert.deepStrictEqual(yield* whats({ DATABASE_URL: good.DATABASE_URL, ...rest, PG_LISTENER_WORKERS: "x" }), {
        fails: ["setting AMQP_URL", "setting PG_LISTENER_WORKERS"],
        hasBroker: false,
        hasDatabase: true,
        schema: "events"
      })
      assert.deepStrictEqual(yield* whats({ AMQP_URL: good.AMQP_URL, DATABASE_URL_FILE: "/no/such/file" }), {
        fails: ["setting DATABASE_URL_FILE"],
        hasBroker: true,
        hasDatabase: false,
        schema: "public"
      })
    })
  )

  it.effect("have a token that is neither short nor monotonous, or none", () =>
    Effect.gen(function* () {
      const { settings } = yield* usableSettings(good)
      if (settings === undefined) return yield* Effect.dieMessage("no settings")
      const verdict = (token: string | undefined) =>
        Effect.map(
          checkToken({
            ...settings,
            adminToken: token === undefined ? Option.none() : Option.some(Effect.succeed(Redacted.make(token)))
          }),
          ([finding]) => finding?._tag
        )
      assert.strictEqual(yield* verdict(undefined), "Holds")
      assert.strictEqual(yield* verdict("0123456789abcdef"), "Holds")
      assert.strictEqual(yield* verdict("0123456789abcde"), "Fails")
      assert.strictEqual(yield* verdict("abcabcabcabcabcabcabcabc"), "Fails")
    })
  )
})

describe("a table for people", () => {
  it("has columns as wide as their widest cell, and no blanks at the end of a line", () => {
    assert.strictEqual(
      table([
        ["a", "bb", ""],
        ["ccc", "d", "e"],
        ["", "", ""]
      ]),
      "a    bb\nccc  d   e\n"
    )
  })
})
