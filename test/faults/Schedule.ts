/**
 * What happens in a round: decided by the seed and the round's number alone.
 */
import { type FaultKind, faultKinds, type Plan } from "./Faults.js"
import * as Prng from "./Prng.js"
import { MAX_REPLICAS } from "./World.js"

export interface ScheduledFault {
  readonly kind: FaultKind
  readonly plan: Plan
  /** From the beginning of the load. */
  readonly atMillis: number
}

export interface Schedule {
  readonly seed: number
  readonly round: number
  readonly replicas: number
  readonly loadMillis: number
  /** By time. */
  readonly faults: ReadonlyArray<ScheduledFault>
}

const mostFaults = 4

/** `loadSeconds`: the shortest and the longest load. */
export const make = (seed: number, round: number, loadSeconds: readonly [number, number]): Schedule => {
  const prng = Prng.make(seed, round, "schedule")
  const replicas = prng.int(1, MAX_REPLICAS)
  const count = prng.int(1, mostFaults)
  const chosen: Array<FaultKind> = []
  for (const kind of prng.shuffle(faultKinds)) {
    if (chosen.length < count && !chosen.some(({ group }) => group === kind.group)) chosen.push(kind)
  }
  // Where in the load, and not when: so that a shorter load has the same schedule.
  const faults = chosen.map((kind) => ({ kind, place: prng.next(), plan: kind.plan(prng, replicas) }))
  const loadMillis = 1000 * (loadSeconds[0] + prng.next() * (loadSeconds[1] - loadSeconds[0]))
  return {
    seed,
    round,
    replicas,
    loadMillis: Math.round(loadMillis),
    faults: faults
      .map(({ kind, place, plan }) => ({ kind, plan, atMillis: Math.round(300 + place * (loadMillis - 1300)) }))
      .sort((one, other) => one.atMillis - other.atMillis)
  }
}

/** One line for each fault, for a person. */
export const describe = ({ faults, loadMillis, replicas }: Schedule): ReadonlyArray<string> => [
  `${replicas} replica(s), ${loadMillis} ms of load`,
  ...faults.map(
    ({ atMillis, kind, plan }) =>
      `at ${`${atMillis}`.padStart(5)} ms: ${kind.name}: ${plan.detail}${plan.holdMillis > 0 ? `, for ${plan.holdMillis} ms` : ""}`
  )
]
