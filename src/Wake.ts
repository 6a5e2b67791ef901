/**
 * The bell between those who know that there is work (notifications, the poll, the jobs) and the workers who do it.
 *
 * Rings coalesce: any number of them while the workers are busy lead to one more claim, and one ring wakes one idle
 * worker, which wakes the next one only when its batch was full.
 */
import * as Effect from "effect/Effect"
import * as Queue from "effect/Queue"

/**
 * The payload of a notification on the wake channel that stands for {@link Wake.ringFull}: for whoever makes old rows pending
 * again. Without a payload it stands for {@link Wake.ring}, which is what the doorbell sends.
 */
export const FULL = "full"

export interface Wake {
  /** There may be new rows. */
  readonly ring: Effect.Effect<void>
  /** Look at everything: retries that fell due, and rows below the low-water mark. */
  readonly ringFull: Effect.Effect<void>
  /** Waits for a ring. */
  readonly awaitRing: Effect.Effect<void>
  /** Whether the next claim is to be a full one; asking takes the wish away. */
  readonly takeFull: Effect.Effect<boolean>
}

export const make: Effect.Effect<Wake> = Effect.gen(function* () {
  const rings = yield* Queue.sliding<void>(1)
  let full = false
  const ring = Effect.asVoid(Queue.offer(rings, undefined))
  return {
    ring,
    ringFull: Effect.zipRight(
      Effect.sync(() => {
        full = true
      }),
      ring
    ),
    awaitRing: Queue.take(rings),
    takeFull: Effect.sync(() => {
      const wanted = full
      full = false
      return wanted
    })
  }
})
