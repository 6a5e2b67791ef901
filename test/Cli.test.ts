/** What a person, or a machine, is told at the edge when a command can't run at all. */
import { assert, describe, it } from "@effect/vitest"
import * as Console from "effect/Console"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as FiberId from "effect/FiberId"
import { endsByStop, exitCode, reportAtEdge } from "../src/Cli.js"
import { SchemaError, SettingsError } from "../src/Errors.js"
import { logsForPeople, Settings } from "../src/Settings.js"

const environment = { AMQP_URL: "amqp://u:s3cret@h", PG_LISTENER_BATCHSIZE: "1" }

/** What stderr gets while the settings of an environment are read. */
const report = (forPeople: boolean) =>
  Effect.gen(function* () {
    const written: Array<string> = []
    const console = { ...(yield* Console.consoleWith(Effect.succeed)) }
    const recording = { ...console, error: (text: string) => Effect.sync(() => void written.push(text)) }
    const reading = Effect.provide(Settings, Settings.layerFrom(environment))
    const exit = yield* Effect.exit(reportAtEdge(reading, forPeople)).pipe(Effect.withConsole(recording))
    return { written, exit }
  })

describe("an environment that can't be used", () => {
  it.effect("is one JSON line for machines, with every problem taken apart, and exit code 1", () =>
    Effect.gen(function* () {
      const { exit, written } = yield* report(false)
      assert.strictEqual(written.length, 1)
      assert.notInclude(written[0], "\n")
      const { problems, ...line } = JSON.parse(written[0] ?? "") as { readonly problems: ReadonlyArray<object> }
      assert.deepStrictEqual(line, {
        timestamp: "1970-01-01T00:00:00.000Z",
        level: "fatal",
        message: "pg-listener can't start; the environment has 2 problem(s)"
      } as object)
      assert.deepStrictEqual(
        problems.map((problem) => Object.keys(problem)),
        [
          ["setting", "problem", "mend"],
          ["setting", "problem", "mend"]
        ]
      )
      assert.deepStrictEqual(problems[1], {
        setting: "PG_LISTENER_BATCHSIZE",
        problem: "is not a setting of pg-listener; did you mean PG_LISTENER_BATCH_SIZE?",
        mend: "Correct the name, or take it away"
      })
      assert.strictEqual(exitCode(exit, true), 1)
    })
  )

  it.effect("is a text for people: a line for each problem", () =>
    Effect.gen(function* () {
      const { written } = yield* report(true)
      const [first, ...lines] = (written[0] ?? "").split("\n")
      assert.strictEqual(first, "pg-listener can't start; the environment has 2 problem(s):")
      assert.strictEqual(lines.length, 2)
      assert.match(lines[0] ?? "", /^DATABASE_URL: is not set\. Set it/)
    })
  )

  it("was meant for people when LOG_FORMAT says so, however it is spelled, and else is not", () => {
    assert.isTrue(logsForPeople({ LOG_FORMAT: " Pretty " }))
    assert.isFalse(logsForPeople({ LOG_FORMAT: "json" }))
    assert.isFalse(logsForPeople({ LOG_FORMAT: "xml" }))
    assert.isFalse(logsForPeople({}))
  })
})

describe("a problem and its mend", () => {
  it("are two sentences with one mark between them, whoever set it", () => {
    const messageOf = (problem: string) =>
      new SettingsError({ problems: [{ setting: "X", problem, mend: "Do" }] }).message
    assert.strictEqual(messageOf("is bad"), "X: is bad. Do")
    assert.strictEqual(messageOf("did you mean Y?"), "X: did you mean Y? Do")
    assert.strictEqual(messageOf("see the broker logfile."), "X: see the broker logfile. Do")
    assert.strictEqual(new SchemaError({ reason: "who are you?", mend: "Say" }).message, "who are you? Say")
  })
})

describe("the exit code", () => {
  it("is 0 after a success, or what the command gave, and 1 after a failure", () => {
    assert.strictEqual(exitCode(Exit.void, true), 0)
    assert.strictEqual(exitCode(Exit.succeed(3), false), 3)
    assert.strictEqual(exitCode(Exit.fail("gone"), true), 1)
  })

  it("is 0 when a signal stops the service, and 1 when it cuts a command short, whose work was not done", () => {
    const codeOf = (...args: ReadonlyArray<string>) => exitCode(Exit.interrupt(FiberId.none), endsByStop(args))
    assert.strictEqual(codeOf(), 0)
    assert.strictEqual(codeOf("run"), 0)
    assert.strictEqual(codeOf("migrate"), 1)
    assert.strictEqual(codeOf("dead-letters", "retry", "--all"), 1)
  })
})
