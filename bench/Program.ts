/**
 * A child process that runs one of `programs/` and answers requests.
 */
import { spawn } from "node:child_process"
import * as Fs from "node:fs"
import { fileURLToPath } from "node:url"
import type * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import type * as Scope from "effect/Scope"
import { BenchError } from "./BenchError.js"

export interface Program {
  readonly pid: number
  readonly ask: <A>(name: string, argument: object, within: Duration.DurationInput) => Effect.Effect<A, BenchError>
}

interface Answer {
  readonly id?: number
  readonly value?: unknown
  readonly failure?: string
}

/** Starts it and waits until it is ready. It is killed with the scope, and ends by itself when we are gone. */
export const start = (options: {
  readonly program: string
  readonly arguments: object
  readonly logFile: string
  readonly nodeOptions?: ReadonlyArray<string>
}): Effect.Effect<Program, BenchError, Scope.Scope> =>
  Effect.gen(function* () {
    const { program } = options
    const waiting = new Map<number, (answer: Answer) => void>()
    let end: string | undefined
    let count = 0
    const fail = (reason: string) => new BenchError({ what: program, reason })
    const onEnd = (reason: string) => {
      end ??= reason
      for (const answer of waiting.values()) answer({ failure: reason })
    }

    const child = yield* Effect.acquireRelease(
      Effect.sync(() => {
        const log = Fs.openSync(options.logFile, "a")
        const started = spawn(
          process.execPath,
          [
            ...(options.nodeOptions ?? []),
            "--import",
            "tsx",
            fileURLToPath(new URL(`programs/${program}.ts`, import.meta.url)),
            JSON.stringify(options.arguments)
          ],
          { stdio: ["ignore", log, log, "ipc"], cwd: fileURLToPath(new URL("..", import.meta.url)) }
        )
        Fs.closeSync(log)
        started.on("error", (error) => onEnd(error.message))
        started.on("exit", (code, signal) => onEnd(`it ended with ${signal ?? `exit code ${code}`}, see its log`))
        started.on("message", (answer: Answer) => waiting.get(answer.id ?? 0)?.(answer))
        return started
      }),
      (started) =>
        Effect.async<void>((resume) => {
          if (end !== undefined) return resume(Effect.void)
          started.once("exit", () => resume(Effect.void))
          // It ends in good order by itself when the channel closes: that writes its profile, when there is one.
          started.disconnect()
        }).pipe(
          Effect.timeout("3 seconds"),
          Effect.catchAll(() => Effect.sync(() => started.kill("SIGKILL")))
        )
    )

    /** The answer with this number. Number 0 is the program's word that it is ready. */
    const answerTo = (id: number, send: () => void, within: Duration.DurationInput) =>
      Effect.async<Answer>((resume) => {
        if (end !== undefined) return resume(Effect.succeed({ failure: end }))
        waiting.set(id, (answer) => resume(Effect.succeed(answer)))
        send()
        return Effect.sync(() => waiting.delete(id))
      }).pipe(
        Effect.ensuring(Effect.sync(() => waiting.delete(id))),
        Effect.timeoutFail({ duration: within, onTimeout: () => fail("no answer in time") }),
        Effect.flatMap(({ failure, value }) =>
          failure === undefined ? Effect.succeed(value) : Effect.fail(fail(failure))
        )
      )

    yield* answerTo(0, () => {}, "60 seconds")
    return {
      pid: child.pid ?? -1,
      ask: <A>(name: string, argument: object, within: Duration.DurationInput) => {
        const id = ++count
        return Effect.map(
          answerTo(id, () => child.send({ id, name, argument }), within),
          (value) => value as A
        )
      }
    }
  })
