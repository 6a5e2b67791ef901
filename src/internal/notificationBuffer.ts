/**
 * Where received notifications wait for their consumer: bounded, and nothing is ever dropped. A full buffer asks its
 * source to stop reading, so that TCP makes the server wait, and lets it go on once half of it has been taken.
 */
import * as Chunk from "effect/Chunk"
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import type { ListenError } from "../Errors.js"
import { ListenEvent } from "../PgListen.js"

/** Full at so many notifications, or at so many characters of payload: 10,000 large ones would be 80 MB. */
export const bufferLimits = { notifications: 10_000, characters: 16 * 1024 * 1024 } as const

/** The most that one take hands out, so that a consumer's own batch stays small and a full buffer drains in steps. */
export const takeAtMost = 1000

export interface NotificationBuffer {
  /** False when the buffer is full, and the source is to stop reading. What comes after that is still kept. */
  readonly offer: (channel: string, payload: string) => boolean
  /** The source is gone: takes fail with this error once all that was received has been taken. The first error counts. */
  readonly fail: (error: ListenError) => void
  /** A hand-over takes its place among the notifications. */
  readonly handOver: (from: { readonly ourselves: boolean }) => void
  /** Nothing that comes after this is kept; takes end once all that was received has been taken. */
  readonly end: () => void
  /** The next events in order, at least one; waits for it. Fails with nothing at the end. One taker at a time. */
  readonly take: Effect.Effect<Chunk.Chunk<ListenEvent>, Option.Option<ListenError>>
  /** Returns once the end was reached: everything before it has been taken, and the taker came back for more. */
  readonly drained: Effect.Effect<void>
  /** True from a full buffer until half of it is taken. */
  readonly stopped: () => boolean
  /** Goes up with every notification received, and every time that reading goes on. */
  readonly activity: () => number
}

export const makeNotificationBuffer = (resumeReading: () => void): NotificationBuffer => {
  const waiting: Array<ListenEvent> = []
  let characters = 0
  let activity = 0
  let stopped = false
  let ended = false
  const reachedEnd = Effect.unsafeMakeLatch(false)
  let failure: ListenError | undefined
  let wakeTaker: (() => void) | undefined

  const above = (share: number): boolean =>
    waiting.length >= bufferLimits.notifications * share || characters >= bufferLimits.characters * share

  const wake = (): void => {
    const taker = wakeTaker
    wakeTaker = undefined
    taker?.()
  }

  const handOut = (): Chunk.Chunk<ListenEvent> => {
    const taken = waiting.splice(0, takeAtMost)
    for (const event of taken) if (event._tag === "Notification") characters -= event.payload.length
    if (stopped && !above(0.5)) {
      stopped = false
      activity += 1
      resumeReading()
    }
    return Chunk.unsafeFromArray(taken)
  }

  const take: NotificationBuffer["take"] = Effect.suspend(() => {
    if (waiting.length > 0) return Effect.succeed(handOut())
    if (ended) return Effect.zipRight(reachedEnd.open, Effect.fail(Option.none()))
    if (failure !== undefined) return Effect.fail(Option.some(failure))
    return Effect.async<void>((resume) => {
      wakeTaker = () => resume(Effect.void)
    }).pipe(Effect.zipRight(Effect.suspend(() => take)))
  })

  return {
    offer: (channel, payload) => {
      if (ended) return true
      waiting.push(ListenEvent.Notification({ channel, payload }))
      characters += payload.length
      activity += 1
      stopped ||= above(1)
      wake()
      return !stopped
    },
    handOver: ({ ourselves }) => {
      if (ended) return
      waiting.push(ListenEvent.HandedOver({ ourselves }))
      activity += 1
      wake()
    },
    end: () => {
      ended = true
      wake()
    },
    fail: (error) => {
      failure ??= error
      wake()
    },
    take,
    drained: reachedEnd.await,
    stopped: () => stopped,
    activity: () => activity
  }
}
