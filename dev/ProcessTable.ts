/**
 * Which processes are running, told apart by more than a number: a pid can be given to somebody else, a pid together
 * with its start time can't.
 */
import { execFile } from "node:child_process"
import * as Fs from "node:fs"
import * as Path from "node:path"
import * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"

/** A running process. `started` is the system's own word for its start time, only good for comparing. */
export const ProcessEntry = Schema.Struct({
  pid: Schema.Number,
  parent: Schema.Number,
  started: Schema.String,
  /** The program's name without its folder; cut off after 15 characters on Linux. */
  name: Schema.String
})
export type ProcessEntry = typeof ProcessEntry.Type

const readProc = (): ReadonlyArray<ProcessEntry> => {
  const found: Array<ProcessEntry> = []
  for (const name of Fs.readdirSync("/proc")) {
    if (!/^\d+$/.test(name)) continue
    try {
      const stat = Fs.readFileSync(`/proc/${name}/stat`, "latin1")
      // The command's name stands in brackets and may hold anything, so the fields are counted from the last bracket.
      const fields = stat.slice(stat.lastIndexOf(")") + 2).split(" ")
      const [state, parent, started] = [fields[0], fields[1], fields[19]]
      if (state === "Z" || state === "X" || parent === undefined || started === undefined) continue
      found.push({
        pid: Number(name),
        parent: Number(parent),
        started,
        name: stat.slice(stat.indexOf("(") + 1, stat.lastIndexOf(")"))
      })
    } catch {
      // It ended between the listing and the reading.
    }
  }
  return found
}

const readPs = Effect.async<ReadonlyArray<ProcessEntry>>((resume) => {
  execFile("ps", ["-A", "-o", "pid=,ppid=,stat=,lstart=,comm="], { timeout: 5000 }, (_error, output) => {
    const found: Array<ProcessEntry> = []
    for (const line of output.split("\n")) {
      // The start time is five words: Mon Nov 30 19:57:37 2026.
      const match = /^\s*(\d+)\s+(\d+)\s+(\S+)\s+((?:\S+\s+){4}\S+)\s+(.+)$/.exec(line)
      if (match === null || match[3]?.startsWith("Z") === true) continue
      const name = Path.basename(match[5] ?? "")
      found.push({ pid: Number(match[1]), parent: Number(match[2]), started: match[4] ?? "", name })
    }
    resume(Effect.succeed(found))
  })
})

/** Every live process; one that only waits to be reaped is not live. */
export const list: Effect.Effect<ReadonlyArray<ProcessEntry>> = Effect.suspend(() =>
  Fs.existsSync("/proc/self/stat") ? Effect.sync(readProc) : readPs
)

/** The process with this pid and everything it started, it first; empty when it is gone. */
export const treeOf = (pid: number): Effect.Effect<ReadonlyArray<ProcessEntry>> =>
  Effect.map(list, (all) => {
    const tree = all.filter((entry) => entry.pid === pid)
    for (let i = 0; i < tree.length; i++) {
      for (const entry of all) if (entry.parent === tree[i]?.pid && !tree.includes(entry)) tree.push(entry)
    }
    return tree
  })

/** Those that still run, and still are the same processes. */
export const stillRunning = (entries: ReadonlyArray<ProcessEntry>): Effect.Effect<ReadonlyArray<ProcessEntry>> =>
  Effect.map(list, (all) =>
    entries.filter((entry) => all.some((now) => now.pid === entry.pid && now.started === entry.started))
  )

/** Sends a signal to each of them that still runs; one that ended meanwhile is left out without a word. */
export const signal = (entries: ReadonlyArray<ProcessEntry>, name: NodeJS.Signals): Effect.Effect<void> =>
  Effect.map(stillRunning(entries), (running) => {
    for (const { pid } of running) {
      try {
        process.kill(pid, name)
      } catch {
        // It ended between the check and the signal.
      }
    }
  })

/** Waits until all of them are gone; false when some are left after the bound. */
export const awaitGone = (entries: ReadonlyArray<ProcessEntry>, withinMillis: number): Effect.Effect<boolean> =>
  stillRunning(entries).pipe(
    Effect.flatMap((left) => (left.length === 0 ? Effect.void : Effect.fail(left))),
    Effect.retry({ while: () => Effect.as(Effect.sleep("20 millis"), true) }),
    Effect.timeout(withinMillis),
    Effect.isSuccess
  )
