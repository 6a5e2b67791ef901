/**
 * The commands: `run` (the default), `migrate`, `--help`, `--version`. Exit code 0 when done, 1 when it failed, 2 when the command
 * line can't be understood.
 */
import { readFileSync } from "node:fs"
import * as Cause from "effect/Cause"
import * as Console from "effect/Console"
import * as Data from "effect/Data"
import * as DateTime from "effect/DateTime"
import * as Deferred from "effect/Deferred"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Option from "effect/Option"
import { App } from "./App.js"
import { SettingsError } from "./Errors.js"
import { Fatal } from "./Fatal.js"
import * as Logging from "./Logging.js"
import { migrate } from "./Migrate.js"
import { PgConnector } from "./PgConnector.js"
import { logsForPeople, Settings, type SettingsShape, settingsTable } from "./Settings.js"

/** The command line can't be understood. */
export class UsageError extends Data.TaggedError("UsageError")<{ readonly reason: string }> {
  override get message(): string {
    return `${this.reason}\n\n${usage}`
  }
}

const version = (): string => {
  const { version } = JSON.parse(readFileSync(new URL("../package.json", import.meta.url), "utf8")) as {
    version: string
  }
  return version
}

const usage = `pg-listener carries events from PostgreSQL to RabbitMQ and loses none of them.

Usage: node dist/main.js [command]

Commands:
  run        carry events until SIGTERM (the default)
  migrate    create or upgrade the tables, then end
  --help     show this text and the environment variables
  --version  show the version`

const help = (): string => {
  const width = Math.max(...settingsTable.map(({ name }) => name.length))
  const lines = settingsTable.map(
    ({ defaultText, meaning, name }) => `  ${name.padEnd(width)}  ${meaning} (${defaultText})`
  )
  return `${usage}\n\nEnvironment (default):\n${lines.join("\n")}`
}

/** Ends a process whose shutdown hangs: whatever is cut is only work that the next start does again. */
const armShutdownDeadline = (timeout: Duration.Duration) =>
  Effect.logError("the shutdown took too long and is cut off; what is left is done by the next start").pipe(
    Effect.zipRight(Effect.sync(() => process.exit(1))),
    Effect.delay(timeout),
    Effect.forkDaemon
  )

/** A batch may be in hand for two confirm time-outs: its last message is begun within the first, and answered within the second. */
const warnOfShortShutdown = ({ confirmTimeout, shutdownTimeout }: SettingsShape): Effect.Effect<void> =>
  Duration.greaterThan(Duration.times(confirmTimeout, 2), shutdownTimeout)
    ? Effect.logWarning(
        `PG_LISTENER_SHUTDOWN_TIMEOUT (${Duration.format(shutdownTimeout)}) is less than twice ` +
          `PG_LISTENER_CONFIRM_TIMEOUT (${Duration.format(confirmTimeout)}): a stop could cut off a batch in hand`
      )
    : Effect.void

/** Builds the whole graph and waits: for a signal, or for the loop whose end must end the process. */
const run = Effect.gen(function* () {
  const settings = yield* Settings
  const { routes, shutdownTimeout } = settings
  yield* Effect.logInfo("pg-listener started").pipe(
    Effect.annotateLogs({ version: version(), routes: routes.all.map(({ source, target }) => `${source}=${target}`) })
  )
  yield* warnOfShortShutdown(settings)
  yield* Effect.flatMap(Fatal, Deferred.await).pipe(
    Effect.onExit(() => Effect.zipRight(armShutdownDeadline(shutdownTimeout), Effect.logInfo("pg-listener stops"))),
    Effect.provide(App)
  )
}).pipe(Effect.tapErrorCause(Logging.logFatal), Effect.provide(Logging.layer))

const runMigrate = migrate.pipe(
  Effect.flatMap((applied) =>
    applied.length === 0
      ? Effect.logInfo("nothing to migrate: the schema is up to date")
      : Effect.logInfo("migrated").pipe(Effect.annotateLogs({ applied: applied.map(({ name }) => name) }))
  ),
  Effect.provide(PgConnector.layer),
  Effect.tapErrorCause(Logging.logFatal),
  Effect.provide(Logging.layer)
)

/** The program for a command line (without `node` and the script). */
export const program = (args: ReadonlyArray<string>) => {
  const [command = "run", ...rest] = args
  if (rest.length > 0) return new UsageError({ reason: `unexpected argument: ${rest.join(" ")}` })
  switch (command) {
    case "run":
      return Effect.provide(run, Settings.layer)
    case "migrate":
      return Effect.provide(runMigrate, Settings.layerDatabaseOnly)
    case "--help":
    case "-h":
    case "help":
      return Console.log(help())
    case "--version":
    case "-v":
      return Console.log(version())
    default:
      return new UsageError({ reason: `unknown command: ${command}` })
  }
}

/** In the form of the log, which can't be set up without settings: a line for machines, or a text for people. */
const reportSettings = (error: SettingsError, forPeople: boolean): Effect.Effect<void> => {
  const message = `pg-listener can't start; the environment has ${error.problems.length} problem(s)`
  if (forPeople) return Console.error(`${message}:\n${error.message}`)
  return Effect.flatMap(DateTime.now, (now) =>
    Console.error(
      JSON.stringify({ timestamp: DateTime.formatIso(now), level: "fatal", message, problems: error.problems })
    )
  )
}

/** Tells on stderr what keeps the command from running at all; everything later goes to the log. */
export const reportAtEdge = <A, E, R>(
  effect: Effect.Effect<A, E, R>,
  forPeople: boolean = process.stderr.isTTY === true || logsForPeople()
): Effect.Effect<A, E, R> =>
  Effect.tapError(effect, (error) =>
    error instanceof UsageError
      ? Console.error(error.message)
      : error instanceof SettingsError
        ? reportSettings(error, forPeople)
        : Effect.void
  )

/** 0 after a success or a signal, 2 when the command line can't be understood, else 1. */
export const exitCode = (exit: Exit.Exit<unknown, unknown>): number => {
  if (Exit.isSuccess(exit) || Cause.isInterruptedOnly(exit.cause)) return 0
  const failure = Cause.failureOption(exit.cause)
  return Option.isSome(failure) && failure.value instanceof UsageError ? 2 : 1
}
