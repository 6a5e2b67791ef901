/**
 * The service as the demo runs it: the built program as a child process, with its output passed through.
 */
import { spawn } from "node:child_process"
import * as Fs from "node:fs"
import * as Path from "node:path"
import { fileURLToPath } from "node:url"
import * as Effect from "effect/Effect"
import type * as Scope from "effect/Scope"
import { withDeathSignal } from "./DeathSignal.js"
import { dataFolder } from "./DemoAddress.js"
import * as ServerProcess from "./ServerProcess.js"

const main = fileURLToPath(new URL("../dist/main.js", import.meta.url))

type Environment = Readonly<Record<string, string>>

// The service reads the user's own environment, as it would without the demo; ours comes on top.
const withOurs = (ours: Environment) => ({ ...process.env, ...ours })

/** Runs `migrate` to its end. */
export const migrate = (env: Environment): Effect.Effect<void, ServerProcess.ServerError> =>
  Effect.async((resume) => {
    const child = spawn(process.execPath, [main, "migrate"], {
      env: withOurs(env),
      stdio: ["ignore", "inherit", "inherit"],
      timeout: 60_000,
      killSignal: "SIGKILL"
    })
    const fail = (reason: string) =>
      resume(new ServerProcess.ServerError({ server: "pg-listener", operation: "migrate", reason, log: "" }))
    child.once("error", (error) => fail(error.message))
    child.once("exit", (code, signal) => (code === 0 ? resume(Effect.void) : fail(`it ended with ${signal ?? code}`)))
    return Effect.sync(() => child.kill("SIGTERM"))
  })

/** Starts the service and waits until `/readyz` says yes; it stops with the scope, by SIGTERM. */
export const start = (
  env: Environment,
  readyUrl: string
): Effect.Effect<ServerProcess.ServerProcess, ServerProcess.ServerError, Scope.Scope> =>
  Effect.gen(function* () {
    const folder = Path.join(dataFolder, "service")
    Fs.mkdirSync(folder, { recursive: true })
    return yield* ServerProcess.make({
      name: "pg-listener",
      folder,
      file: "service",
      launch: yield* withDeathSignal("TERM", { command: process.execPath, args: [main] }),
      env: withOurs(env),
      output: "ours",
      beforeStart: Effect.void,
      isReady: () =>
        Effect.tryPromise((signal) => fetch(readyUrl, { signal })).pipe(
          Effect.timeout("2 seconds"),
          Effect.map(({ ok }) => ok),
          Effect.orElseSucceed(() => false)
        ),
      readyWithinMillis: 60_000,
      stopSignal: "SIGTERM",
      stopWithinMillis: 5000,
      killsChildren: true
    })
  })
