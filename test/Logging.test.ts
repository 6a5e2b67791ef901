import { assert, describe, it } from "@effect/vitest"
import * as Cause from "effect/Cause"
import * as Console from "effect/Console"
import * as Effect from "effect/Effect"
import * as FiberId from "effect/FiberId"
import * as Redacted from "effect/Redacted"
import * as TestClock from "effect/TestClock"
import { AmqpError } from "../src/Errors.js"
import * as Logging from "../src/Logging.js"
import { Settings } from "../src/Settings.js"

/** The lines on stdout that an effect logs, with the given log settings. */
const linesOf = (
  effect: Effect.Effect<unknown>,
  environment: { readonly LOG_LEVEL?: string; readonly LOG_FORMAT?: string } = {}
) =>
  Effect.gen(function* () {
    const lines: Array<string> = []
    const console = yield* Console.consoleWith(Effect.succeed)
    yield* TestClock.setTime(Date.UTC(2026, 10, 30, 12, 0, 0, 7))
    yield* effect.pipe(
      Effect.provide(Logging.layer),
      Effect.provide(Settings.layerFrom({ DATABASE_URL: "postgres://h/d", AMQP_URL: "amqp://h", ...environment })),
      Effect.withConsole({
        ...console,
        unsafe: { ...console.unsafe, log: (line: unknown) => void lines.push(String(line)) }
      }),
      Effect.orDie
    )
    return lines
  })

const entriesOf = (effect: Effect.Effect<unknown>) =>
  Effect.map(linesOf(effect, { LOG_LEVEL: "trace" }), (lines) =>
    lines.map((line) => JSON.parse(line) as { readonly [key: string]: unknown })
  )

const error = new AmqpError({ operation: "connect", reason: "no answer from amqp://user:s3cret@host:5672/v" })

describe("a JSON log line", () => {
  it.effect("has time, level and message, then the annotations flat beside them", () =>
    Effect.gen(function* () {
      const line = Effect.logInfo("published").pipe(
        Effect.annotateLogs({ event_type: "order.paid", event_id: "e1", attempt: 2, aggregate_id: "7", loop: "relay" })
      )
      assert.deepStrictEqual(yield* linesOf(line), [
        '{"timestamp":"2026-11-30T12:00:00.007Z","level":"info","message":"published",' +
          '"aggregate_id":"7","attempt":2,"event_id":"e1","event_type":"order.paid","loop":"relay"}'
      ])
    })
  )

  it.effect("has the level in lower case", () =>
    Effect.gen(function* () {
      const all = [
        Effect.logTrace,
        Effect.logDebug,
        Effect.logInfo,
        Effect.logWarning,
        Effect.logError,
        Effect.logFatal
      ]
      const entries = yield* entriesOf(Effect.forEach(all, (log) => log("x")))
      assert.deepStrictEqual(
        entries.map(({ level }) => level),
        ["trace", "debug", "info", "warn", "error", "fatal"]
      )
    })
  )

  it.effect("has the cause as text under error, with the error's own words", () =>
    Effect.gen(function* () {
      const [entry] = yield* entriesOf(Effect.logWarning("lost", Cause.fail(error)))
      assert.strictEqual(entry?.["message"], "lost")
      assert.match(
        String(entry?.["error"]),
        /AmqpError: AMQP connect: no answer from amqp:\/\/user:<redacted>@host:5672\/v/
      )
    })
  )

  it.effect("has the error's first line as its message when there is none", () =>
    Effect.gen(function* () {
      const [entry] = yield* entriesOf(Effect.logError(Cause.fail(error)))
      assert.match(String(entry?.["message"]), /^AmqpError: AMQP connect/)
    })
  )

  it.effect("keeps its own keys when an annotation has the same name", () =>
    Effect.gen(function* () {
      const [entry] = yield* entriesOf(
        Effect.annotateLogs(Effect.logInfo("m"), { level: "x", message: "y", error: "z" })
      )
      assert.deepStrictEqual(entry, {
        timestamp: "2026-11-30T12:00:00.007Z",
        level: "info",
        message: "m",
        error_: "z",
        level_: "x",
        message_: "y"
      })
    })
  )

  it.effect("has spans in milliseconds", () =>
    Effect.gen(function* () {
      const timed = TestClock.adjust("250 millis").pipe(
        Effect.zipRight(Effect.logInfo("m")),
        Effect.withLogSpan("claim")
      )
      const [entry] = yield* entriesOf(timed)
      assert.deepStrictEqual(entry?.["spans"], { claim: 250 })
    })
  )

  it.effect("keeps structured values, and makes text of what JSON can't hold", () =>
    Effect.gen(function* () {
      const circular: { self?: unknown } = {}
      circular.self = circular
      const annotations = {
        list: ["a", 1],
        object: { a: null },
        nothing: null,
        absent: undefined,
        big: 9_007_199_254_740_993n,
        nan: Number.NaN,
        failure: error,
        secret: Redacted.make("s3cret"),
        inside: { secret: Redacted.make("s3cret") },
        circular
      }
      const [entry] = yield* entriesOf(Effect.annotateLogs(Effect.logInfo("m", { a: 1 }, 7n), annotations))
      assert.deepStrictEqual(entry, {
        timestamp: "2026-11-30T12:00:00.007Z",
        level: "info",
        message: 'm {"a":1} 7',
        list: ["a", 1],
        object: { a: null },
        nothing: null,
        big: "9007199254740993",
        nan: "NaN",
        failure: "AMQP connect: no answer from amqp://user:<redacted>@host:5672/v",
        secret: "<redacted>",
        inside: { secret: "<redacted>" },
        circular: {}
      })
    })
  )

  it.effect("stays one line, whatever is in it", () =>
    Effect.gen(function* () {
      const lines = yield* linesOf(Effect.annotateLogs(Effect.logInfo('a\nb"\u2028'), { x: "1\n2" }))
      assert.strictEqual(lines.length, 1)
      assert.notInclude(lines[0], "\n")
      assert.include(JSON.parse(lines[0] ?? ""), { message: 'a\nb"\u2028', x: "1\n2" })
    })
  )
})

describe("the log", () => {
  it.effect.each([
    ["amqp://u:s3cret@h", "amqp://u:<redacted>@h"],
    ["amqp://:s3cret@h", "amqp://:<redacted>@h"],
    ["postgres://u:s3cret@p/w@h:5432/d x@y", "postgres://u:<redacted>@h:5432/d x@y"],
    ['"amqp://u:s3cret@h","x@y"', '"amqp://u:<redacted>@h","x@y"'],
    ["amqp://a:s3cret@h and amqp://b:s3cret@i", "amqp://a:<redacted>@h and amqp://b:<redacted>@i"],
    ["postgres://h/d?user=u&password=s3cret&x=1", "postgres://h/d?user=u&password=<redacted>&x=1"],
    ["http://localhost:6010/health", "http://localhost:6010/health"],
    ["postgres://u@h:5432/d", "postgres://u@h:5432/d"]
  ] as const)("never shows a URL's password, in a message, annotation, object or error: %s", ([text, expected]) =>
    Effect.gen(function* () {
      const line = Effect.logInfo(text, Cause.die(new Error(text))).pipe(
        Effect.annotateLogs({ text, inside: { text } })
      )
      const [entry] = yield* entriesOf(line)
      assert.strictEqual(entry?.["message"], expected)
      assert.strictEqual(entry?.["text"], expected)
      assert.deepStrictEqual(entry?.["inside"], { text: expected })
      assert.include(String(entry?.["error"]), expected)
      for (const LOG_FORMAT of ["json", "pretty"]) {
        assert.notInclude((yield* linesOf(line, { LOG_FORMAT })).join("\n"), "s3cret")
      }
    })
  )

  it.effect("leaves out what is below the level of the settings", () =>
    Effect.gen(function* () {
      const both = Effect.zipRight(Effect.logInfo("i"), Effect.logWarning("w"))
      assert.strictEqual((yield* linesOf(both, { LOG_LEVEL: "info" })).length, 2)
      assert.strictEqual((yield* linesOf(both, { LOG_LEVEL: "warn" })).length, 1)
      assert.strictEqual((yield* linesOf(both, { LOG_LEVEL: "none" })).length, 0)
    })
  )

  it.effect("leaves no logger behind when its layer closes", () =>
    Effect.gen(function* () {
      const outer = yield* linesOf(Effect.zipRight(linesOf(Effect.logInfo("inner")), Effect.logInfo("outer")))
      assert.strictEqual(outer.length, 1)
      assert.include(outer[0], "outer")
    })
  )

  it.effect("is one line for people when it is pretty, with the error indented below", () =>
    Effect.gen(function* () {
      const line = Effect.logWarning("lost", Cause.fail("no answer\nat all")).pipe(
        Effect.annotateLogs({ loop: "relay", ids: [1, 2] })
      )
      const [text = ""] = yield* linesOf(line, { LOG_FORMAT: "pretty" })
      assert.strictEqual(text, "12:00:00.007 WARN  lost ids=[1,2] loop=relay\n  Error: no answer\n  at all")
    })
  )

  it.effect("says at the edge why the process ends, and nothing of a mere signal", () =>
    Effect.gen(function* () {
      const [entry, ...rest] = yield* entriesOf(Logging.logFatal(Cause.die(error)))
      assert.strictEqual(entry?.["level"], "fatal")
      assert.strictEqual(entry?.["message"], "pg-listener ends because of an error")
      assert.match(String(entry?.["error"]), /AMQP connect: no answer/)
      assert.deepStrictEqual(rest, [])
      assert.deepStrictEqual(yield* entriesOf(Logging.logFatal(Cause.interrupt(FiberId.none))), [])
    })
  )
})
