/**
 * Who used the processors between two moments: each server with all its processes, the contender, and strangers. From
 * Linux' own accounts in `/proc`; elsewhere every figure is NaN.
 */
import * as Fs from "node:fs"

/** A part of the machine's work: a process, or with `tree` everything that it started as well. */
export interface Account {
  readonly pid: number
  readonly tree: boolean
}

/** Seconds of processor time so far. */
export interface Mark {
  readonly accounts: Readonly<Record<string, number>>
  /** Of the whole machine. */
  readonly busy: number
  /** On the monotonic clock. */
  readonly atMillis: number
}

/** Linux counts in ticks, 100 a second on every common build. */
const ticksPerSecond = 100

interface ProcessTimes {
  readonly pid: number
  readonly parent: number
  readonly own: number
  /** Of children that ended and were waited for. */
  readonly ended: number
}

const readProcess = (pid: number): ProcessTimes | undefined => {
  try {
    const stat = Fs.readFileSync(`/proc/${pid}/stat`, "latin1")
    // The command's name stands in brackets and may hold anything, so the fields are counted from the last bracket.
    const fields = stat.slice(stat.lastIndexOf(")") + 2).split(" ")
    const seconds = (first: number) => (Number(fields[first]) + Number(fields[first + 1])) / ticksPerSecond
    return { pid, parent: Number(fields[1]), own: seconds(11), ended: seconds(13) }
  } catch {
    return undefined
  }
}

const readAll = (): ReadonlyArray<ProcessTimes> =>
  Fs.readdirSync("/proc").flatMap((name) => (/^\d+$/.test(name) ? (readProcess(Number(name)) ?? []) : []))

const timeOfTree = (all: ReadonlyArray<ProcessTimes>, root: number): number => {
  const pids = new Set([root])
  let before = 0
  while (pids.size > before) {
    before = pids.size
    for (const { parent, pid } of all) if (pids.has(parent)) pids.add(pid)
  }
  return all.reduce((sum, { ended, own, pid }) => (pids.has(pid) ? sum + own + ended : sum), 0)
}

/** User, nice, system, irq, softirq and steal. */
const busyColumns = [0, 1, 2, 5, 6, 7]

export const mark = (accounts: Readonly<Record<string, Account>>): Mark => {
  const hasProc = Fs.existsSync("/proc/stat")
  const all = hasProc ? readAll() : []
  const timeOf = ({ pid, tree }: Account) => {
    if (!hasProc) return Number.NaN
    return tree ? timeOfTree(all, pid) : (readProcess(pid)?.own ?? 0)
  }
  const columns = hasProc ? (Fs.readFileSync("/proc/stat", "latin1").split("\n")[0]?.split(/\s+/).slice(1) ?? []) : []
  return {
    accounts: Object.fromEntries(Object.entries(accounts).map(([name, account]) => [name, timeOf(account)])),
    busy: hasProc ? busyColumns.reduce((sum, at) => sum + Number(columns[at]), 0) / ticksPerSecond : Number.NaN,
    atMillis: performance.now()
  }
}

/** What happened between two marks. */
export interface Used {
  readonly seconds: number
  /** Processor seconds by account. */
  readonly by: Readonly<Record<string, number>>
  /** How many processors everything else on this machine kept busy: other people, and the harness. */
  readonly otherCores: number
}

export const between = (from: Mark, to: Mark): Used => {
  const seconds = (to.atMillis - from.atMillis) / 1000
  const by = Object.fromEntries(
    Object.entries(to.accounts).map(([name, value]) => [name, value - (from.accounts[name] ?? 0)])
  )
  const ours = Object.values(by).reduce((sum, value) => sum + value, 0)
  return { seconds, by, otherCores: Math.max(0, (to.busy - from.busy - ours) / seconds) }
}

/** Resident memory of a process in bytes: now, and the most there ever was. */
export const memoryOf = (pid: number): { readonly now: number; readonly most: number } => {
  const status = Fs.readFileSync(`/proc/${pid}/status`, "latin1")
  const bytes = (name: string) => Number(new RegExp(`^${name}:\\s+(\\d+) kB`, "m").exec(status)?.[1]) * 1024
  return { now: bytes("VmRSS"), most: bytes("VmHWM") }
}
