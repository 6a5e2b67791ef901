/**
 * Applications that write events: one INSERT per transaction over some connections, as fast as they can or at a given rate.
 */
import Pg from "pg"
import type { Written } from "./answers.js"
import { argumentsOf, serve } from "./serve.js"

interface Arguments {
  readonly databaseUrl: string
  readonly connections: number
  /** One statement; `$1` is the phase, a text that the consumer counts by. */
  readonly insert: string
}

interface Load {
  readonly phase: string
  readonly seconds: number
  /** Inserts per second, at random moments (Poisson) whatever the server does; 0 for as fast as the connections can. */
  readonly rate: number
}

const { connections, databaseUrl, insert } = argumentsOf<Arguments>()
const clients = await Promise.all(
  Array.from({ length: connections }, async () => {
    const client = new Pg.Client(databaseUrl)
    await client.connect()
    return client
  })
)

/** Seconds between two events of a Poisson process. */
const pause = (rate: number) => -Math.log(1 - Math.random()) / rate

const write = async ({ phase, rate, seconds }: Load): Promise<Written> => {
  const started = performance.now()
  const elapsed = () => (performance.now() - started) / 1000
  let inserted = 0
  /** Arrivals that nobody has taken yet, and connections that wait for one. */
  let arrived = 0
  const idle: Array<() => void> = []
  let over = false

  let next = rate > 0 ? pause(rate) : Number.POSITIVE_INFINITY
  const clock = setInterval(() => {
    const now = elapsed()
    while (next <= Math.min(now, seconds)) {
      arrived++
      next += pause(rate)
    }
    if (now >= seconds) over = true
    for (let wake = over ? idle.length : Math.min(arrived, idle.length); wake > 0; wake--) idle.pop()?.()
  }, 1)

  const work = async (client: Pg.Client) => {
    while (true) {
      if (rate > 0) {
        while (arrived === 0 && !over) await new Promise<void>((resolve) => idle.push(resolve))
        if (over) return
        arrived--
      } else if (elapsed() >= seconds) {
        return
      }
      await client.query({ name: "insert", text: insert, values: [phase] })
      inserted++
    }
  }
  await Promise.all(clients.map(work))
  clearInterval(clock)
  return { inserted, seconds: elapsed() }
}

serve({ write })
