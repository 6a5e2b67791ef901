/**
 * What the process says of itself, under the names that Prometheus' own clients use.
 */
import { readdirSync } from "node:fs"
import { type IntervalHistogram, monitorEventLoopDelay } from "node:perf_hooks"
import * as Effect from "effect/Effect"
import type * as Scope from "effect/Scope"
import { type Family, single } from "./prometheusText.js"

/** How often the event loop is looked at. A look is late by what else the loop had to do. */
const LOOK_MILLIS = 20
const NANOS_PER_SECOND = 1e9

/** By how much a look was late, in seconds; the histogram has the whole time between two looks. */
const lateness = (nanos: number): number =>
  Number.isFinite(nanos) ? Math.max(nanos / NANOS_PER_SECOND - LOOK_MILLIS / 1000, 0) : 0

/** The open file descriptors; none where the system has no such folder. */
const openFiles = (): ReadonlyArray<Family> => {
  try {
    // One of them is the folder itself, opened for this look.
    const count = readdirSync("/proc/self/fd").length - 1
    return [single("process_open_fds", "gauge", "Open file descriptors.", count)]
  } catch {
    return []
  }
}

const look = (delays: IntervalHistogram): ReadonlyArray<Family> => {
  const { system, user } = process.cpuUsage()
  const memory = process.memoryUsage()
  const [major = "", minor = "", patch = ""] = process.versions.node.split(".")
  const figures = [
    single("process_cpu_user_seconds_total", "counter", "CPU time spent in user mode.", user / 1e6),
    single("process_cpu_system_seconds_total", "counter", "CPU time spent in system mode.", system / 1e6),
    single("process_cpu_seconds_total", "counter", "CPU time spent.", (user + system) / 1e6),
    single(
      "process_start_time_seconds",
      "gauge",
      "When the process started, in seconds since 1970.",
      Math.round(performance.timeOrigin) / 1000
    ),
    single("process_resident_memory_bytes", "gauge", "Resident memory.", memory.rss),
    ...openFiles(),
    single(
      "nodejs_eventloop_lag_seconds",
      "gauge",
      "How late the event loop was on average since the last scrape.",
      lateness(delays.mean)
    ),
    single(
      "nodejs_eventloop_lag_p99_seconds",
      "gauge",
      "How late the event loop was in the worst hundredth of the time since the last scrape.",
      lateness(delays.percentile(99))
    ),
    single("nodejs_heap_size_total_bytes", "gauge", "Size of V8's heap.", memory.heapTotal),
    single("nodejs_heap_size_used_bytes", "gauge", "Used part of V8's heap.", memory.heapUsed),
    single("nodejs_external_memory_bytes", "gauge", "Memory outside of V8's heap, buffers among it.", memory.external),
    single("nodejs_version_info", "gauge", "The version of Node.", 1, [
      ["version", process.version],
      ["major", major],
      ["minor", minor],
      ["patch", patch]
    ])
  ]
  delays.reset()
  return figures
}

/** Reads the figures. The event loop is watched until the scope closes; each reading begins a new span of time for it. */
export const watchProcess: Effect.Effect<() => ReadonlyArray<Family>, never, Scope.Scope> = Effect.acquireRelease(
  Effect.sync(() => {
    const delays = monitorEventLoopDelay({ resolution: LOOK_MILLIS })
    delays.enable()
    return delays
  }),
  (delays) => Effect.sync(() => delays.disable())
).pipe(Effect.map((delays) => () => look(delays)))
