/**
 * A short program, run to its end.
 */
import { execFile } from "node:child_process"
import * as Path from "node:path"
import * as Effect from "effect/Effect"
import { type Launch, ServerError } from "./ServerProcess.js"

/** Its standard output. Fails with all that it wrote when it can't be started, ends badly, or takes too long. */
export const run = (
  server: string,
  launch: Launch,
  env: Readonly<Record<string, string>>,
  timeoutMillis: number
): Effect.Effect<string, ServerError> =>
  Effect.async((resume, signal) => {
    const { command, args, uid, gid } = launch
    const ids = uid === undefined || gid === undefined ? {} : { uid, gid }
    const options = { cwd: "/", env, timeout: timeoutMillis, killSignal: "SIGKILL" as const, signal, ...ids }
    execFile(command, args, options, (error, stdout, stderr) => {
      if (error === null) return resume(Effect.succeed(stdout))
      const reason = error.killed === true ? `no end after ${timeoutMillis / 1000} s` : `${error.code ?? error.message}`
      const log = `${stdout}${stderr}`.trimEnd().split("\n").slice(-25).join("\n")
      resume(Effect.fail(new ServerError({ server, operation: Path.basename(command), reason, log })))
    })
  })
