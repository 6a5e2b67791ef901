/**
 * Bytes that travel for a while. They wait in timers of sockets' callbacks, where no fiber runs.
 */

export interface DelayLine {
  /** Passes the data on after so long, and never before what came earlier. */
  readonly send: (data: Buffer, delayMillis: number) => void
  /** Passes on at once what still travels. */
  readonly flush: () => void
}

export const makeDelayLine = (now: () => number, deliver: (data: Buffer) => void): DelayLine => {
  const waiting: Array<{ readonly data: Buffer; readonly at: number }> = []
  let timer: NodeJS.Timeout | undefined

  const deliverUntil = (time: number) => {
    while (waiting[0] !== undefined && waiting[0].at <= time) {
      const next = waiting.shift()
      if (next !== undefined) deliver(next.data)
    }
  }
  const look = () => {
    deliverUntil(now())
    const [first] = waiting
    timer = first === undefined ? undefined : setTimeout(look, first.at - now())
  }
  return {
    send: (data, delayMillis) => {
      if (delayMillis === 0 && waiting.length === 0) return deliver(data)
      waiting.push({ data, at: Math.max(now() + delayMillis, waiting.at(-1)?.at ?? 0) })
      timer ??= setTimeout(look, delayMillis)
    },
    flush: () => {
      clearTimeout(timer)
      timer = undefined
      deliverUntil(Number.POSITIVE_INFINITY)
    }
  }
}
