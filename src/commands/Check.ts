/**
 * `check`: every precondition of the service, one line each, and beside each that does not hold what to do. It changes nothing.
 * Exit code 0 when all hold, 1 otherwise.
 */
import * as Console from "effect/Console"
import * as Effect from "effect/Effect"
import { AmqpSessions } from "../internal/amqpSession.js"
import { optionLines } from "../internal/commandLine.js"
import { type Environment, processEnvironment } from "../Settings.js"
import { brokerWhats, checkBroker } from "./CheckBroker.js"
import { checkDatabase, databaseWhats } from "./CheckDatabase.js"
import { checkToken, usableSettings } from "./CheckSettings.js"
import { command, JSON_OPTION, logToStderr, printable } from "./Command.js"
import { allHold, type Check, type Findings, findingsJson, findingsText, notChecked } from "./Finding.js"

const options = [JSON_OPTION]

export const usage = `Usage: node dist/main.js check [options]

Checks everything that the service needs: settings, database, tables, rights, LISTEN, broker, queues and exchanges. One
line each, with what to do beside each that fails. It changes nothing and declares no queue.

Exit code 0: all hold ("note" is something that works, and may yet not be meant). 1: something failed.

Options:
${optionLines(options)}`

/** Goes on with what can be checked when a part of it can't. */
const everyFinding = (environment: Environment): Check<AmqpSessions> =>
  Effect.gen(function* () {
    const { findings, hasBroker, hasDatabase, settings } = yield* usableSettings(environment)
    if (settings === undefined) {
      return [...findings, ...notChecked(["database", "broker"], "the settings can't be read")]
    }
    const [database, broker] = yield* Effect.all(
      [
        hasDatabase
          ? checkDatabase(settings)
          : Effect.succeed<Findings>(notChecked(databaseWhats(settings), "DATABASE_URL can't be used")),
        hasBroker
          ? checkBroker(settings)
          : Effect.succeed<Findings>(notChecked(brokerWhats(settings), "AMQP_URL can't be used"))
      ],
      { concurrency: 2 }
    )
    return [...findings, ...database, ...broker, ...(yield* checkToken(settings))]
  })

export const run = (words: ReadonlyArray<string>) =>
  command({ usage, options, mostOperands: 0 }, words, ({ flags }) =>
    everyFinding(processEnvironment()).pipe(
      Effect.flatMap((findings) =>
        Effect.as(
          Console.log(
            flags.has(JSON_OPTION.name)
              ? findingsJson(findings)
              : findingsText(findings).split("\n").map(printable).join("\n")
          ),
          allHold(findings) ? 0 : 1
        )
      ),
      Effect.provide(AmqpSessions.layer),
      Effect.provide(logToStderr)
    )
  )
