/**
 * Bytes that travel for a while.
 */
import * as Effect from "effect/Effect"

export interface DelayLine {
  /** Passes the data on after so long, and never before what came earlier. */
  readonly send: (data: Buffer, delayMillis: number) => void
  /** Passes on at once what still travels. */
  readonly flush: () => void
}

export const makeDelayLine = (now: () => number, deliver: (data: Buffer) => void): DelayLine => {
  const waiting: Array<{ readonly data: Buffer; readonly at: number }> = []
  let isTimed = false

  const deliverUntil = (time: number) => {
    while (waiting[0] !== undefined && waiting[0].at <= time) {
      const next = waiting.shift()
      if (next !== undefined) deliver(next.data)
    }
  }
  const lookAfter = (millis: number): void => {
    isTimed = true
    Effect.runFork(Effect.map(Effect.sleep(millis), look))
  }
  const look = () => {
    deliverUntil(now())
    const [first] = waiting
    isTimed = false
    if (first !== undefined) lookAfter(first.at - now())
  }
  return {
    send: (data, delayMillis) => {
      if (delayMillis === 0 && waiting.length === 0) return deliver(data)
      waiting.push({ data, at: Math.max(now() + delayMillis, waiting.at(-1)?.at ?? 0) })
      if (!isTimed) lookAfter(delayMillis)
    },
    flush: () => deliverUntil(Number.POSITIVE_INFINITY)
  }
}
