/**
 * The far end: takes messages off a queue and notes how old each is, from the `clock_timestamp()` that its INSERT put into
 * the payload to its arrival here; the writer's own commit is part of it. Server and consumer share the machine's clock.
 */
import * as Amqp from "amqplib"
import type { Report } from "./answers.js"
import { argumentsOf, serve } from "./serve.js"

interface Payload {
  /** Seconds since 1970. */
  readonly at: number
  readonly phase: string
}

interface Arrivals {
  /** Milliseconds each. */
  readonly ages: Array<number>
  /** When each came, in seconds since the phase's first. */
  readonly times: Array<number>
  readonly firstAt: number
  readonly ids: Set<string>
  duplicates: number
}

const { amqpUrl, queue } = argumentsOf<{ readonly amqpUrl: string; readonly queue: string }>()
const phases = new Map<string, Arrivals>()

// The wall clock has only milliseconds, and the finer clock drifts away from it: their difference is read where the wall
// clock ticks, once a second.
let offset = 0
const readOffset = () => {
  const before = Date.now()
  while (Date.now() === before) {}
  offset = Date.now() - performance.now()
}
readOffset()
setInterval(readOffset, 1000)

const channel = await (await Amqp.connect(amqpUrl, { noDelay: true })).createChannel()
await channel.consume(
  queue,
  (message) => {
    if (message === null) return
    const now = performance.now() + offset
    const { at, phase }: Payload = JSON.parse(message.content.toString("utf8"))
    const of = phases.get(phase) ?? { ages: [], times: [], firstAt: now, ids: new Set(), duplicates: 0 }
    phases.set(phase, of)
    const id = String(message.properties.messageId)
    if (of.ids.has(id)) of.duplicates++
    of.ids.add(id)
    of.ages.push(now - at * 1000)
    of.times.push((now - of.firstAt) / 1000)
  },
  { noAck: true }
)

/** Of the messages of a phase, or of those that came in the given seconds of it. */
const report = ({ from = 0, phase, to }: { phase: string; from?: number; to?: number }): Report => {
  const of = phases.get(phase)
  const ages = of?.ages.filter((_, index) => {
    const time = of.times[index] ?? 0
    return time >= from && time < (to ?? Number.POSITIVE_INFINITY)
  })
  const sorted = Float64Array.from(ages ?? []).sort()
  const at = (share: number) => sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))] ?? Number.NaN
  const duplicates = of?.duplicates ?? 0
  return { received: sorted.length, duplicates, p50: at(0.5), p95: at(0.95), p99: at(0.99), max: at(1) }
}

serve({ report })
