/**
 * A program of the project's users, as a process: written in TypeScript, run by plain Node against the built package.
 */
import { type ChildProcess, spawn } from "node:child_process"
import * as Fs from "node:fs"
import * as Path from "node:path"
import { fileURLToPath } from "node:url"
import type * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import type * as Scope from "effect/Scope"
import ts from "typescript"
import { eventually, type NeverHappened } from "./eventually.js"

export interface Program {
  readonly output: () => string
  /** Waits until the output holds the text. */
  readonly says: (text: string, within?: Duration.DurationInput) => Effect.Effect<void, NeverHappened>
  /** SIGKILL: no handler runs, no connection says goodbye. */
  readonly kill: Effect.Effect<void, NeverHappened>
  /** The exit code; none after a signal. */
  readonly exited: Effect.Effect<number | null, NeverHappened>
}

const root = fileURLToPath(new URL("../..", import.meta.url))

/** The file as JavaScript, inside the project so that its imports are found. `path` is relative to the project. */
export const compile = (path: string): Effect.Effect<string, never, Scope.Scope> =>
  Effect.acquireRelease(
    Effect.sync(() => {
      const folder = Path.join(root, ".data", "programs")
      Fs.mkdirSync(folder, { recursive: true })
      const file = Path.join(folder, `${Path.basename(path, ".ts")}.${process.pid}.mjs`)
      const { outputText } = ts.transpileModule(Fs.readFileSync(Path.join(root, path), "utf8"), {
        compilerOptions: { module: ts.ModuleKind.ESNext, target: ts.ScriptTarget.ES2022 }
      })
      Fs.writeFileSync(file, outputText)
      return file
    }),
    (file) => Effect.sync(() => Fs.rmSync(file, { force: true }))
  )

/** Starts a compiled program; killed with the scope. */
export const start = (
  file: string,
  args: ReadonlyArray<string>,
  env: Readonly<Record<string, string>> = {}
): Effect.Effect<Program, never, Scope.Scope> =>
  Effect.gen(function* () {
    let output = ""
    let code: number | null | undefined
    const child: ChildProcess = yield* Effect.acquireRelease(
      Effect.sync(() => {
        const started = spawn(process.execPath, [file, ...args], { env, stdio: ["ignore", "pipe", "pipe"] })
        const keep = (data: Buffer) => {
          output += data.toString()
        }
        started.stdout.on("data", keep)
        started.stderr.on("data", keep)
        started.on("close", (exitCode) => {
          code = exitCode
        })
        return started
      }),
      (started) => Effect.sync(() => code === undefined && started.kill("SIGKILL"))
    )
    const exited = eventually(
      "the end of the program",
      Effect.sync(() => ({ code, output })),
      (seen) => seen.code !== undefined
    ).pipe(Effect.map((seen) => seen.code ?? null))
    return {
      output: () => output,
      says: (text, within = "20 seconds") =>
        Effect.asVoid(
          eventually(
            `"${text}"`,
            Effect.sync(() => output),
            (all) => all.includes(text),
            within
          )
        ),
      kill: Effect.suspend(() => {
        child.kill("SIGKILL")
        return Effect.asVoid(exited)
      }),
      exited
    }
  })
