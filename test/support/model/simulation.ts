/**
 * Virtual time and a scheduler of its own, for tests that run thousands of histories.
 *
 * `TestClock` gives the fibers a few real milliseconds at each step of time; here time goes on as soon as no fiber can
 * run, and a seed decides in which order the fibers that can run do. The same seed gives the same history.
 */
import * as Clock from "effect/Clock"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import type * as Scheduler from "effect/Scheduler"

export interface Simulation {
  readonly clock: Clock.Clock
  readonly scheduler: Scheduler.Scheduler
  readonly nowMillis: () => number
  /** Runs a plain function so many milliseconds from now. */
  readonly after: (millis: number, task: () => void) => () => boolean
  /**
   * Goes on until `done`, or until nothing is left to happen before this time; tells whether it is done. Gives up after
   * {@link stepsAtMost}: work that turns in circles is a failure, and not to be waited for.
   */
  readonly runUntil: (done: () => boolean, horizonMillis: number) => boolean
}

/** The longest of the usual histories take two thousand. */
const stepsAtMost = 20_000

interface Alarm {
  readonly atMillis: number
  readonly task: () => void
}

/** A small generator of numbers from 0 to 1: the same ones for the same seed. */
export const numbers = (seed: number): (() => number) => {
  let state = seed | 0
  return () => {
    state = (state + 0x6d2b79f5) | 0
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state)
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 4_294_967_296
  }
}

/** With seed 0 the fibers run in the order in which they became able to. */
export const makeSimulation = (seed: number): Simulation => {
  const random = numbers(seed)
  const ready: Array<() => void> = []
  /** In the order of their time; those of one time in the order in which they were set. */
  const alarms: Array<Alarm> = []
  let nowMillis = 0

  const after = (millis: number, task: () => void) => {
    const alarm = { atMillis: nowMillis + millis, task }
    let place = alarms.length
    while (place > 0 && (alarms[place - 1]?.atMillis ?? 0) > alarm.atMillis) place--
    alarms.splice(place, 0, alarm)
    return () => {
      const index = alarms.indexOf(alarm)
      if (index >= 0) alarms.splice(index, 1)
      return index >= 0
    }
  }

  const runReady = () => {
    while (ready.length > 0) {
      const [task] = ready.splice(seed === 0 ? 0 : Math.floor(random() * ready.length), 1)
      task?.()
    }
  }

  const unsafeCurrentTimeNanos = () => BigInt(Math.round(nowMillis * 1e6))
  return {
    clock: {
      [Clock.ClockTypeId]: Clock.ClockTypeId,
      unsafeCurrentTimeMillis: () => nowMillis,
      unsafeCurrentTimeNanos,
      currentTimeMillis: Effect.sync(() => nowMillis),
      currentTimeNanos: Effect.sync(unsafeCurrentTimeNanos),
      sleep: (duration) =>
        Effect.async<void>((resume) => {
          const cancel = after(Duration.toMillis(duration), () => resume(Effect.void))
          return Effect.sync(cancel)
        })
    },
    scheduler: {
      shouldYield: () => false,
      scheduleTask: (task) => {
        ready.push(task)
      }
    },
    nowMillis: () => nowMillis,
    after,
    runUntil: (done, horizonMillis) => {
      for (let step = 0; step < stepsAtMost; step++) {
        runReady()
        if (done()) return true
        const next = alarms[0]
        if (next === undefined || next.atMillis > horizonMillis) return false
        alarms.shift()
        nowMillis = Math.max(nowMillis, next.atMillis)
        next.task()
      }
      return false
    }
  }
}

/** Hands out a script's words one by one, and the usual word when it has come to its end. */
export const words = <A>(script: ReadonlyArray<A>, usual: A): (() => A) => {
  let index = 0
  return () => script[index++] ?? usual
}
