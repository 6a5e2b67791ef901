/**
 * `node --import tsx scripts/carry-event.ts [--while-ready <shell command>] <command> [arguments]`: whether a build of
 * the service does its work, however it is packed. The command is what stands for `node dist/main.js`: a wrapper, a
 * container.
 *
 * Against a private PostgreSQL and RabbitMQ: the version is that of package.json, `migrate` ends with 0, the service
 * becomes ready, an event arrives with its own body, and a SIGTERM to the command ends it with 0.
 */
import { spawn } from "node:child_process"
import * as Fs from "node:fs"
import * as Os from "node:os"
import * as Path from "node:path"
import * as NodeRuntime from "@effect/platform-node/NodeRuntime"
import * as Config from "effect/Config"
import * as Console from "effect/Console"
import * as Data from "effect/Data"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Schedule from "effect/Schedule"
import { consume } from "../dev/Consumer.js"
import { freePort } from "../dev/LoopbackPorts.js"
import * as PrivatePostgres from "../dev/PrivatePostgres.js"
import * as PrivateRabbitMq from "../dev/PrivateRabbitMq.js"
import { sqlClient } from "../test/support/Sql.js"

/** What the build under trial did not do. */
class TrialError extends Data.TaggedError("TrialError")<{ readonly what: string; readonly output: string }> {
  override get message(): string {
    return this.output === "" ? this.what : `${this.what}\n--- its output ---\n${this.output}`
  }
}

const [first, second, ...others] = process.argv.slice(2)
const whileReady = first === "--while-ready" ? second : undefined
const [command, ...commandArgs] =
  whileReady === undefined ? [first, second, ...others].filter((word) => word !== undefined) : others

type Environment = Readonly<Record<string, string>>

/** Starts a program; killed with the scope if it still runs. */
const start = (program: string, args: ReadonlyArray<string>, env: Environment) =>
  Effect.gen(function* () {
    const ended = yield* Deferred.make<string>()
    let output = ""
    const child = yield* Effect.acquireRelease(
      Effect.sync(() => spawn(program, args, { env: { ...process.env, ...env }, stdio: ["ignore", "pipe", "pipe"] })),
      (running) => Effect.sync(() => running.kill("SIGKILL"))
    )
    for (const stream of [child.stdout, child.stderr]) stream.on("data", (data: Buffer) => (output += data.toString()))
    const end = (how: string) => Deferred.unsafeDone(ended, Effect.succeed(how))
    child.once("error", (error) => end(error.message))
    child.once("close", (code, signal) => end(signal === null ? `exit code ${code}` : `signal ${signal}`))
    const fail = (what: string) => new TrialError({ what, output: output.trimEnd().split("\n").slice(-40).join("\n") })
    return {
      output: () => output,
      fail,
      ended: Deferred.isDone(ended),
      terminate: Effect.sync(() => child.kill("SIGTERM")),
      /** Waits for the end, which must be exit code 0. */
      succeeds: (what: string) =>
        Deferred.await(ended).pipe(
          Effect.timeoutFail({ duration: "40 seconds", onTimeout: () => fail(`${what}: no end after 40 s`) }),
          Effect.filterOrFail(
            (how) => how === "exit code 0",
            (how) => fail(`${what}: ${how}`)
          )
        )
    }
  })

const serviceCommand = (args: ReadonlyArray<string>, env: Environment) =>
  command === undefined
    ? new TrialError({
        what: "Usage: carry-event.ts [--while-ready <shell command>] <command> [arguments]",
        output: ""
      })
    : start(command, [...commandArgs, ...args], env)

const said = (text: string) => Console.log(`ok  ${text}`)

const trial = Effect.gen(function* () {
  const version: unknown = JSON.parse(Fs.readFileSync(new URL("../package.json", import.meta.url), "utf8")).version
  const asked = yield* serviceCommand(["--version"], {})
  yield* asked.succeeds("--version")
  if (asked.output().trim() !== version) return yield* asked.fail(`--version is not ${version}`)
  yield* said(`--version is ${version}`)

  const folder = yield* Effect.acquireRelease(
    Effect.sync(() => Fs.mkdtempSync(Path.join(Os.tmpdir(), "pg-listener-trial-"))),
    (made) => Effect.sync(() => Fs.rmSync(made, { recursive: true, force: true, maxRetries: 3 }))
  )
  // PostgreSQL runs as another user when we are root.
  Fs.chmodSync(folder, 0o755)
  const binDir = yield* Config.string("PG_LISTENER_TEST_PG_BIN").pipe(Config.withDefault(""))
  const [postgres, rabbitMq] = yield* Effect.all(
    [
      PrivatePostgres.make({
        folder: Path.join(folder, "postgres"),
        throwAway: true,
        binDir: binDir === "" ? undefined : binDir
      }),
      PrivateRabbitMq.make({ folder: Path.join(folder, "rabbitmq"), throwAway: true })
    ],
    { concurrency: 2 }
  )
  const port = yield* freePort
  const env = {
    DATABASE_URL: postgres.url,
    AMQP_URL: rabbitMq.url,
    PG_LISTENER_HEALTH_HOST: "127.0.0.1",
    PG_LISTENER_HEALTH_PORT: `${port}`
  }

  yield* Effect.flatMap(serviceCommand(["migrate"], env), (migrate) => migrate.succeeds("migrate"))
  yield* said("migrate ends with 0")

  const service = yield* serviceCommand([], env)
  yield* Effect.tryPromise((signal) => fetch(`http://127.0.0.1:${port}/readyz`, { signal })).pipe(
    Effect.timeout("2 seconds"),
    Effect.filterOrFail(({ ok }) => ok),
    Effect.retry({ schedule: Schedule.spaced("100 millis"), times: 300, while: () => Effect.negate(service.ended) }),
    Effect.mapError(() => service.fail("the service did not become ready"))
  )
  yield* said("the service is ready")

  if (whileReady !== undefined) {
    const check = yield* start("sh", ["-c", whileReady], env)
    yield* check.succeeds(whileReady)
    yield* Console.log(check.output().trimEnd())
  }

  const consumer = yield* consume(rabbitMq.url, "campaign_click_trigger")
  const { query } = yield* sqlClient(postgres.url)
  yield* query(
    `INSERT INTO event_outbox (channel, payload) VALUES ('campaign_click', '{"b": 1, "a": 9007199254740993}')`
  )
  const [message] = yield* consumer.take(1, "10 seconds")
  if (message?.body !== '{"a":9007199254740993,"b":1}') return yield* service.fail(`the body is ${message?.body}`)
  yield* said("an event arrives, with its own body")

  yield* service.terminate
  yield* service.succeeds("SIGTERM")
  yield* said("SIGTERM ends it with 0")
})

trial.pipe(
  Effect.scoped,
  Effect.tapErrorCause((cause) => Console.error(`FAILED  ${cause._tag === "Fail" ? cause.error.message : cause}`)),
  NodeRuntime.runMain({ disableErrorReporting: true })
)
