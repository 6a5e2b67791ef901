/**
 * Linux can send a process a signal when the one that started it dies, however it dies. `setpriv` (util-linux) asks for it.
 */
import * as Effect from "effect/Effect"
import { run } from "./RunProgram.js"
import type { Launch } from "./ServerProcess.js"

/** Whether this machine has a `setpriv` that can do it. */
export const hasSetpriv: Effect.Effect<boolean> = Effect.isSuccess(
  run("setpriv", { command: "setpriv", args: ["--pdeathsig", "KILL", "true"] }, { PATH: "/usr/bin:/bin" }, 5000)
)

/** The same launch, ended by this signal when we die; unchanged where the system can't do that. */
export const withDeathSignal = (signal: "TERM" | "KILL", launch: Launch): Effect.Effect<Launch> =>
  Effect.map(hasSetpriv, (possible) =>
    possible ? { ...launch, command: "setpriv", args: ["--pdeathsig", signal, launch.command, ...launch.args] } : launch
  )
