/**
 * The command line: which command is meant, and what its end means as an exit code. 0 when done, 1 when it failed, 2 when the
 * command line can't be understood; a command may have more (3 of `status`).
 */
import * as Cause from "effect/Cause"
import * as Console from "effect/Console"
import * as DateTime from "effect/DateTime"
import * as Deferred from "effect/Deferred"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Option from "effect/Option"
import { App } from "./App.js"
import * as Check from "./commands/Check.js"
import { command } from "./commands/Command.js"
import * as DeadLetters from "./commands/DeadLetters.js"
import * as Status from "./commands/Status.js"
import { SettingsError } from "./Errors.js"
import { Fatal } from "./Fatal.js"
import { UsageError, unknownWord } from "./internal/commandLine.js"
import { packageVersion } from "./internal/packageVersion.js"
import * as Logging from "./Logging.js"
import { migrate } from "./Migrate.js"
import { PgConnector } from "./PgConnector.js"
import { logsForPeople, Settings, type SettingsShape, settingsTable } from "./Settings.js"

const usage = `pg-listener carries events from PostgreSQL to RabbitMQ and loses none of them.

Usage: node dist/main.js [command] [options]

Commands:
  run           carry events until SIGTERM (the default)
  migrate       create or upgrade the tables, then end
  status        show how the outbox is doing
  check         check every precondition, and say how to mend what fails
  dead-letters  list, show, retry or discard the events that were given up
  --help        show this text and the environment variables; behind a command, its own
  --version     show the version`

const runUsage = `Usage: node dist/main.js run

Carries events until SIGTERM or SIGINT; then it finishes the batch in hand and ends with exit code 0.`

const migrateUsage = `Usage: node dist/main.js migrate

Creates the tables in PG_LISTENER_SCHEMA, or brings them up to date. Needs DATABASE_URL, and a role that may create objects.`

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
    Effect.annotateLogs({
      version: packageVersion(),
      routes: routes.all.map(({ source, target }) => `${source}=${target}`)
    })
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

const known = ["run", "migrate", "status", "check", "dead-letters", "help", "--help", "--version"]

/** A command that takes no words but `--help`. */
const plain = <E, R>(usage: string, words: ReadonlyArray<string>, effect: Effect.Effect<void, E, R>) =>
  command({ usage, options: [], mostOperands: 0 }, words, () => Effect.as(effect, 0))

/** The program for a command line (without `node` and the script); it gives the exit code. */
export const program = (args: ReadonlyArray<string>) => {
  const [name = "run", ...words] = args
  switch (name) {
    case "run":
      return plain(runUsage, words, Effect.provide(run, Settings.layer))
    case "migrate":
      return plain(migrateUsage, words, Effect.provide(runMigrate, Settings.layerDatabaseOnly))
    case "status":
      return Status.run(words)
    case "check":
      return Check.run(words)
    case "dead-letters":
      return DeadLetters.run(words)
    case "--help":
    case "-h":
    case "help":
      return plain(
        usage,
        words,
        Effect.suspend(() => Console.log(help()))
      )
    case "--version":
    case "-v":
      return plain(
        usage,
        words,
        Effect.suspend(() => Console.log(packageVersion()))
      )
    default:
      return new UsageError({ reason: unknownWord("command", name, known), usage })
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

/** Whether a stop by a signal is the proper end of a command line: of the service alone; what else is stopped was not done. */
export const endsByStop = ([name = "run"]: ReadonlyArray<string>): boolean => name === "run"

/** What a command gave, 2 when the command line can't be understood, else 1; a stop is 0 where it is a success. */
export const exitCode = (exit: Exit.Exit<unknown, unknown>, stopIsSuccess: boolean): number => {
  if (Exit.isSuccess(exit)) return typeof exit.value === "number" ? exit.value : 0
  if (Cause.isInterruptedOnly(exit.cause)) return stopIsSuccess ? 0 : 1
  const failure = Cause.failureOption(exit.cause)
  return Option.isSome(failure) && failure.value instanceof UsageError ? 2 : 1
}
