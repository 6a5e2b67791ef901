/**
 * A server of our own as a scoped resource: started, watched, stopped, and broken on purpose in the tests.
 *
 * Nothing it starts is meant to outlive us. The scope stops it; an exit without the scope kills it; where the system can
 * (Linux), our death by SIGKILL takes it along; and the next start in the same folder ends what was left all the same.
 */
import { spawn } from "node:child_process"
import * as Fs from "node:fs"
import * as Path from "node:path"
import * as Data from "effect/Data"
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import * as Schema from "effect/Schema"
import type * as Scope from "effect/Scope"
import * as ProcessTable from "./ProcessTable.js"

/** A private server could not be installed, started, stopped or asked. `log` is the tail of what it wrote. */
export class ServerError extends Data.TaggedError("ServerError")<{
  readonly server: string
  readonly operation: string
  readonly reason: string
  readonly log: string
}> {
  override get message(): string {
    const log = this.log === "" ? "" : `\n--- the end of its log ---\n${this.log}`
    return `${this.server}: ${this.operation}: ${this.reason}${log}`
  }
}

/** How a process is started. `uid` and `gid` only when we are root and the program must not be. */
export interface Launch {
  readonly command: string
  readonly args: ReadonlyArray<string>
  readonly uid?: number
  readonly gid?: number
}

export interface ServerSpec {
  /** Its name in messages. */
  readonly name: string
  /** Holds `<file>.log` and `<file>.json`, the record of what was started; must be there. */
  readonly folder: string
  readonly file: string
  readonly launch: Launch
  readonly env: Readonly<Record<string, string | undefined>>
  /** Where its output goes: into the log file, or to our own output, for people. */
  readonly output: "log" | "ours"
  /** Runs before each start, once nothing of an earlier run is left. */
  readonly beforeStart: Effect.Effect<void>
  readonly isReady: (pid: number) => Effect.Effect<boolean>
  readonly readyWithinMillis: number
  readonly stopSignal: NodeJS.Signals
  readonly stopWithinMillis: number
  /** Children that would outlive a killed parent are killed with it. */
  readonly killsChildren: boolean
}

export interface ServerProcess {
  /** The server's process id now; it changes with every start. */
  readonly pid: Effect.Effect<number, ServerError>
  /** Starts it and waits until it serves; does nothing when it runs. */
  readonly start: Effect.Effect<void, ServerError>
  /** An orderly stop, with SIGKILL for what is left after the bound; does nothing when it is down. */
  readonly stop: Effect.Effect<void, ServerError>
  readonly restart: Effect.Effect<void, ServerError>
  /** SIGKILL to the server; returns when it and all its children are gone. */
  readonly kill9: Effect.Effect<void, ServerError>
  /** SIGSTOP to the server and all its children: sockets stay open and nobody answers. */
  readonly pause: Effect.Effect<void, ServerError>
  readonly resume: Effect.Effect<void, ServerError>
}

const Record = Schema.parseJson(
  Schema.Struct({ owner: ProcessTable.ProcessEntry, processes: Schema.Array(ProcessTable.ProcessEntry) })
)

/** For an exit that closes no scope, such as an uncaught error in a test worker. */
const alive = new Set<number>()
process.on("exit", () => {
  for (const pid of alive) {
    try {
      process.kill(pid, "SIGKILL")
    } catch {
      // It is gone already.
    }
  }
})

const tail = (file: string): string => {
  try {
    return Fs.readFileSync(file, "utf8").trimEnd().split("\n").slice(-25).join("\n")
  } catch {
    return ""
  }
}

/** Ends processes that are known to be ours: the signal, then SIGKILL after the bound. False when some survived it. */
const end = (entries: ReadonlyArray<ProcessTable.ProcessEntry>, signal: NodeJS.Signals, withinMillis: number) =>
  Effect.gen(function* () {
    yield* ProcessTable.signal(entries.slice(0, 1), signal)
    yield* ProcessTable.signal(entries, "SIGCONT")
    if (yield* ProcessTable.awaitGone(entries, withinMillis)) return true
    yield* ProcessTable.signal(entries, "SIGKILL")
    return yield* ProcessTable.awaitGone(entries, 3000)
  })

/** A server that runs for as long as the scope is open. Starts it, and fails with the tail of its log when it can't. */
export const make = (spec: ServerSpec): Effect.Effect<ServerProcess, ServerError, Scope.Scope> =>
  Effect.gen(function* () {
    const logFile = Path.join(spec.folder, `${spec.file}.log`)
    const recordFile = Path.join(spec.folder, `${spec.file}.json`)
    const oneAtATime = yield* Effect.makeSemaphore(1)
    let running: { readonly pid: number; exit: string | undefined } | undefined

    const fail = (operation: string, reason: string) =>
      Effect.fail(new ServerError({ server: spec.name, operation, reason, log: tail(logFile) }))

    const record = (processes: ReadonlyArray<ProcessTable.ProcessEntry>) =>
      Effect.gen(function* () {
        const owner = (yield* ProcessTable.treeOf(process.pid))[0]
        if (owner === undefined) return
        const text = yield* Effect.orDie(Schema.encode(Record)({ owner, processes }))
        Fs.writeFileSync(recordFile, text)
      })

    /** What an earlier run of ours left in this folder, if it was killed before it could clean up. */
    const endLeftover = Effect.gen(function* () {
      if (!Fs.existsSync(recordFile)) return
      const found = yield* Effect.option(Schema.decode(Record)(Fs.readFileSync(recordFile, "utf8")))
      if (Option.isNone(found)) return
      const { owner, processes } = found.value
      const left = yield* ProcessTable.stillRunning(processes)
      if (left.length === 0) return
      if (owner.pid !== process.pid && (yield* ProcessTable.stillRunning([owner])).length > 0) {
        return yield* fail(
          "start",
          `it runs already in ${spec.folder}, started by process ${owner.pid}, which still runs`
        )
      }
      if (!(yield* end(left, "SIGKILL", 3000))) {
        return yield* fail("start", `process ${left[0]?.pid} of an earlier run does not end`)
      }
    })

    const launch = Effect.async<number, ServerError>((resume) => {
      const { command, args, uid, gid } = spec.launch
      const log = spec.output === "log" ? Fs.openSync(logFile, "a") : undefined
      const child = spawn(command, args, {
        cwd: "/",
        env: spec.env,
        detached: true,
        stdio: ["ignore", log ?? "inherit", log ?? "inherit"],
        ...(uid === undefined ? {} : { uid }),
        ...(gid === undefined ? {} : { gid })
      })
      if (log !== undefined) Fs.closeSync(log)
      child.unref()
      child.once("error", (error) => resume(fail("start", error.message)))
      const pid = child.pid
      if (pid === undefined) return
      const state: NonNullable<typeof running> = { pid, exit: undefined }
      running = state
      alive.add(pid)
      child.once("exit", (code, signal) => {
        state.exit = signal === null ? `exit code ${code}` : `signal ${signal}`
        alive.delete(pid)
      })
      resume(Effect.succeed(pid))
    })

    const tree = Effect.suspend(() =>
      running === undefined || running.exit !== undefined ? Effect.succeed([]) : ProcessTable.treeOf(running.pid)
    )

    const stopNow = Effect.gen(function* () {
      const entries = yield* tree
      const state = running
      running = undefined
      const ended = yield* end(entries, spec.stopSignal, spec.stopWithinMillis)
      if (!ended) return yield* fail("stop", "it did not end, not even by SIGKILL")
      // A record that another process wrote is that one's, and the reason why we did not start.
      if (state !== undefined) Fs.rmSync(recordFile, { force: true })
    })

    const startNow = Effect.gen(function* () {
      if (running !== undefined && running.exit === undefined) return
      yield* endLeftover
      yield* spec.beforeStart
      const pid = yield* launch
      yield* record(yield* tree)
      const serves = Effect.gen(function* () {
        while (!(yield* spec.isReady(pid))) {
          if (running?.exit !== undefined) return yield* fail("start", `it ended at once (${running.exit})`)
          yield* Effect.sleep("25 millis")
        }
      })
      yield* serves.pipe(
        Effect.timeoutOption(spec.readyWithinMillis),
        Effect.flatMap(
          Option.match({
            onSome: () => Effect.void,
            onNone: () => fail("start", `it does not serve after ${spec.readyWithinMillis / 1000} s`)
          })
        ),
        Effect.onError(() => Effect.ignore(stopNow))
      )
      yield* record(yield* tree)
    })

    const kill9Now = Effect.gen(function* () {
      const entries = yield* tree
      running = undefined
      yield* ProcessTable.signal(spec.killsChildren ? entries : entries.slice(0, 1), "SIGKILL")
      // Children end by themselves when they notice; a stopped one can't notice, hence SIGCONT.
      yield* ProcessTable.signal(entries, "SIGCONT")
      if (!(yield* end(entries, "SIGKILL", 3000))) return yield* fail("kill9", "some of its processes are left")
    })

    const needed = Effect.flatMap(tree, (entries) =>
      entries.length > 0 ? Effect.succeed(entries) : fail("signal", "it does not run")
    )

    // The finalizer comes first, so that an interrupt in the middle of a start leaves nothing behind.
    yield* Effect.addFinalizer(() => oneAtATime.withPermits(1)(Effect.ignoreLogged(stopNow)))
    yield* oneAtATime.withPermits(1)(startNow)

    return {
      pid: Effect.flatMap(needed, (entries) => Effect.succeed(entries[0]?.pid ?? 0)),
      start: oneAtATime.withPermits(1)(startNow),
      stop: oneAtATime.withPermits(1)(stopNow),
      restart: oneAtATime.withPermits(1)(Effect.zipRight(stopNow, startNow)),
      kill9: oneAtATime.withPermits(1)(kill9Now),
      // The parent first: it must not start another child behind our back.
      pause: Effect.gen(function* () {
        yield* ProcessTable.signal((yield* needed).slice(0, 1), "SIGSTOP")
        yield* ProcessTable.signal(yield* needed, "SIGSTOP")
      }),
      resume: Effect.flatMap(needed, (entries) => ProcessTable.signal([...entries].reverse(), "SIGCONT"))
    }
  })
