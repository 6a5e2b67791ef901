/**
 * The built service (`dist/main.js`) as a child process, the way users run it.
 */
import { type ChildProcess, spawn } from "node:child_process"
import { createServer } from "node:net"
import { fileURLToPath } from "node:url"
import * as Data from "effect/Data"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import type * as Scope from "effect/Scope"
import { eventually } from "./eventually.js"

const MAIN = fileURLToPath(new URL("../../dist/main.js", import.meta.url))

export class ServiceError extends Data.TaggedError("ServiceError")<{
  readonly reason: string
  readonly output: string
}> {
  override get message(): string {
    return `${this.reason}\n--- output ---\n${this.output}`
  }
}

export interface Exited {
  readonly code: number | null
  readonly signal: NodeJS.Signals | null
}

export interface LogLine {
  readonly level: string
  readonly message: string
  readonly [key: string]: unknown
}

export interface Service {
  readonly pid: number
  /** `http://127.0.0.1:port` of the probes. */
  readonly url: string
  readonly get: (path: string) => Effect.Effect<{ readonly status: number; readonly json: unknown }>
  /** Waits for `/readyz` to answer 200, at most this long (default 20 s). */
  readonly awaitReady: (within?: Duration.DurationInput) => Effect.Effect<void, ServiceError>
  /** Waits for `/readyz` to answer 503. */
  readonly awaitNotReady: (within?: Duration.DurationInput) => Effect.Effect<void, ServiceError>
  readonly kill: (signal: NodeJS.Signals) => Effect.Effect<void>
  /** Waits for the end of the process. */
  readonly exited: (within?: Duration.DurationInput) => Effect.Effect<Exited, ServiceError>
  readonly output: () => string
  /** Waits until a log line matches. */
  readonly awaitLog: (
    matches: (line: LogLine) => boolean,
    within?: Duration.DurationInput
  ) => Effect.Effect<LogLine, ServiceError>
}

/** A port that was free a moment ago, on loopback. */
export const freePort: Effect.Effect<number> = Effect.async<number>((resume) => {
  const server = createServer()
  server.listen(0, "127.0.0.1", () => {
    const address = server.address()
    const port = typeof address === "object" && address !== null ? address.port : 0
    server.close(() => resume(Effect.succeed(port)))
  })
})

const get = (url: string, path: string) =>
  Effect.tryPromise(async () => {
    const response = await fetch(`${url}${path}`, { signal: AbortSignal.timeout(2_000) })
    const text = await response.text()
    const json: unknown = text.startsWith("{") ? JSON.parse(text) : text
    return { status: response.status, json }
  }).pipe(Effect.catchAll(() => Effect.succeed({ status: 0, json: undefined })))

const parseLines = (output: string): Array<LogLine> =>
  output.split("\n").flatMap((line) => {
    if (!line.startsWith("{")) return []
    const parsed: unknown = JSON.parse(line.slice(0, line.lastIndexOf("}") + 1))
    return [parsed as LogLine]
  })

/** Starts the service; when the scope closes it is killed if it still runs. */
export const startService = (
  env: Readonly<Record<string, string>>,
  args: ReadonlyArray<string> = []
): Effect.Effect<Service, never, Scope.Scope> =>
  Effect.gen(function* () {
    const port = yield* freePort
    let output = ""
    let exit: Exited | undefined
    const child: ChildProcess = yield* Effect.acquireRelease(
      Effect.sync(() => {
        const started = spawn(process.execPath, [MAIN, ...args], {
          env: {
            PG_LISTENER_HEALTH_PORT: String(port),
            PG_LISTENER_HEALTH_HOST: "127.0.0.1",
            ...env
          },
          stdio: ["ignore", "pipe", "pipe"]
        })
        started.stdout.on("data", (data: Buffer) => {
          output += data.toString()
        })
        started.stderr.on("data", (data: Buffer) => {
          output += data.toString()
        })
        started.on("exit", (code, signal) => {
          exit = { code, signal }
        })
        return started
      }),
      (started) =>
        Effect.sync(() => {
          if (exit === undefined) started.kill("SIGKILL")
        })
    )
    const url = `http://127.0.0.1:${port}`

    const until = <A>(what: string, within: Duration.DurationInput, look: Effect.Effect<A | undefined>) =>
      eventually(what, look, (value) => value !== undefined, within).pipe(
        Effect.map((value) => value as A),
        Effect.catchTag("NeverHappened", ({ what }) =>
          Effect.fail(new ServiceError({ reason: `${what} did not happen in ${Duration.format(within)}`, output }))
        )
      )

    const readiness = (wanted: number) =>
      Effect.map(get(url, "/readyz"), ({ status }) => (status === wanted ? true : undefined))

    return {
      pid: child.pid ?? -1,
      url,
      get: (path) => get(url, path),
      awaitReady: (within = "20 seconds") => Effect.asVoid(until("ready", within, readiness(200))),
      awaitNotReady: (within = "20 seconds") => Effect.asVoid(until("not ready", within, readiness(503))),
      kill: (signal) => Effect.sync(() => void child.kill(signal)),
      exited: (within = "30 seconds") =>
        until(
          "the end of the process",
          within,
          Effect.sync(() => exit)
        ),
      output: () => output,
      awaitLog: (matches, within = "20 seconds") =>
        until(
          "the log line",
          within,
          Effect.sync(() => parseLines(output.slice(0, output.lastIndexOf("\n") + 1)).find(matches))
        )
    }
  })

/** Runs a command of the service to its end. */
export const runCommand = (env: Readonly<Record<string, string>>, args: ReadonlyArray<string>) =>
  Effect.scoped(
    Effect.gen(function* () {
      const service = yield* startService(env, args)
      const exited = yield* service.exited()
      return { ...exited, output: service.output() }
    })
  )
