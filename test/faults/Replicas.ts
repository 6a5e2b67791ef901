/**
 * The replicas of the built service: child processes that are started, killed, frozen and misled.
 */
import { spawn } from "node:child_process"
import * as Fs from "node:fs"
import * as Path from "node:path"
import { fileURLToPath } from "node:url"
import * as Clock from "effect/Clock"
import * as Data from "effect/Data"
import * as Effect from "effect/Effect"
import type * as Scope from "effect/Scope"
import { withDeathSignal } from "../../dev/DeathSignal.js"

const preload = fileURLToPath(new URL("./preload.mjs", import.meta.url))
export const serviceMain = fileURLToPath(new URL("../../dist/main.js", import.meta.url))

/** A replica did not do what it was asked for. */
export class ReplicaFailed extends Data.TaggedError("ReplicaFailed")<{ readonly reason: string }> {
  override get message(): string {
    return this.reason
  }
}

/** An end of a process. `asked` is the signal by which the campaign had asked for it, if it had. */
export interface ReplicaExit {
  readonly replica: string
  readonly code: number | null
  readonly signal: NodeJS.Signals | null
  readonly asked: NodeJS.Signals | undefined
  readonly at: number
}

export interface Replica {
  readonly name: string
  readonly logFile: string
  readonly pid: () => number | undefined
  /** Does nothing when it runs. */
  readonly start: Effect.Effect<void>
  /** Sends SIGTERM or SIGKILL and waits for the end; fails when it takes longer than the bound. */
  readonly end: (signal: "SIGTERM" | "SIGKILL", withinMillis: number) => Effect.Effect<void, ReplicaFailed>
  /** SIGSTOP or SIGCONT. */
  readonly signal: (signal: "SIGSTOP" | "SIGCONT") => Effect.Effect<void>
  /** See preload.mjs. Fails while the process is not far enough to hear it. */
  readonly order: (orders: {
    readonly clockMillis?: number
    readonly blockMillis?: number
    readonly collect?: boolean
  }) => Effect.Effect<void, ReplicaFailed>
  readonly isReady: Effect.Effect<boolean>
  /** Resident memory in bytes; `undefined` when it is down. */
  readonly memoryBytes: () => number | undefined
}

export interface ReplicaOptions {
  readonly name: string
  readonly folder: string
  readonly healthPort: number
  readonly env: Readonly<Record<string, string>>
  /** Ends that nobody asked for among them. */
  readonly onExit: (exit: ReplicaExit) => void
}

interface Running {
  readonly pid: number
  asked: NodeJS.Signals | undefined
  ended: boolean
}

/** A replica that is down at first; what runs of it is killed with the scope. */
export const make = (options: ReplicaOptions): Effect.Effect<Replica, never, Scope.Scope> =>
  Effect.gen(function* () {
    const { folder, healthPort, name, onExit } = options
    const clock = yield* Effect.clock
    const logFile = Path.join(folder, `${name}.log`)
    const ordersFile = Path.join(folder, `${name}.orders.json`)
    const launch = yield* withDeathSignal("KILL", {
      command: process.execPath,
      args: ["--import", preload, serviceMain]
    })
    let running: Running | undefined

    const start = Effect.sync(() => {
      if (running !== undefined && !running.ended) return
      const log = Fs.openSync(logFile, "a")
      const child = spawn(launch.command, launch.args, {
        env: {
          ...options.env,
          FAULTS_ORDERS: ordersFile,
          PG_LISTENER_HEALTH_HOST: "127.0.0.1",
          PG_LISTENER_HEALTH_PORT: `${healthPort}`
        },
        stdio: ["ignore", log, log]
      })
      Fs.closeSync(log)
      const mine: Running = { pid: child.pid ?? -1, asked: undefined, ended: false }
      running = mine
      child.on("error", () => {})
      child.on("exit", (code, signal) => {
        mine.ended = true
        onExit({ replica: name, code, signal, asked: mine.asked, at: clock.unsafeCurrentTimeMillis() })
      })
    })
    const send = (signal: NodeJS.Signals) => {
      if (running !== undefined && !running.ended) process.kill(running.pid, signal)
    }

    yield* Effect.addFinalizer(() =>
      Effect.sync(() => {
        if (running !== undefined) running.asked = "SIGKILL"
        send("SIGKILL")
      })
    )

    return {
      name,
      logFile,
      start,
      pid: () => (running === undefined || running.ended ? undefined : running.pid),
      end: (signal, withinMillis) =>
        Effect.gen(function* () {
          const mine = running
          if (mine === undefined || mine.ended) return
          mine.asked = signal
          send(signal)
          const giveUpAt = (yield* Clock.currentTimeMillis) + withinMillis
          while (!mine.ended) {
            if ((yield* Clock.currentTimeMillis) > giveUpAt) {
              return yield* new ReplicaFailed({ reason: `${name} did not end within ${withinMillis} ms of ${signal}` })
            }
            yield* Effect.sleep("10 millis")
          }
        }),
      signal: (signal) => Effect.sync(() => send(signal)),
      order: (orders) =>
        Effect.suspend(() => {
          const heard = Fs.existsSync(`${ordersFile}.pid`) ? Fs.readFileSync(`${ordersFile}.pid`, "utf8") : ""
          if (running === undefined || running.ended || heard !== `${running.pid}`) {
            return new ReplicaFailed({ reason: `${name} takes no orders yet` })
          }
          Fs.writeFileSync(ordersFile, JSON.stringify(orders))
          send("SIGUSR2")
          return Effect.void
        }),
      isReady: Effect.tryPromise((signal) => fetch(`http://127.0.0.1:${healthPort}/readyz`, { signal })).pipe(
        Effect.tap((response) => Effect.tryPromise(() => response.text())),
        Effect.timeout("1 second"),
        Effect.match({ onFailure: () => false, onSuccess: ({ status }) => status === 200 })
      ),
      memoryBytes: () => {
        if (running === undefined || running.ended) return undefined
        try {
          // The second field counts resident pages of 4 KiB.
          return Number(Fs.readFileSync(`/proc/${running.pid}/statm`, "latin1").split(" ")[1]) * 4096
        } catch {
          return undefined
        }
      }
    }
  })
