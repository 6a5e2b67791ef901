/**
 * What can happen to the service's own processes.
 */
import * as Effect from "effect/Effect"
import type { FaultKind } from "./Faults.js"
import type { Replica } from "./Replicas.js"
import type { World } from "./World.js"

const nothing = Effect.void

/** The service's own bound for a stop is 20 s; past that it has to cut itself off. */
const stopMillis = 24_000

const theReplica = ({ replicas }: World, index: number): Replica => {
  const replica = replicas[index]
  if (replica === undefined) throw new Error(`there is no replica ${index}`)
  return replica
}

const untilReady = (replica: Replica, withinMillis: number) =>
  replica.isReady.pipe(
    Effect.repeat({ until: (ready) => ready, while: () => Effect.as(Effect.sleep("50 millis"), true) }),
    Effect.timeoutOption(withinMillis)
  )

export const processFaults: ReadonlyArray<FaultKind> = [
  {
    name: "replica killed",
    at: "us",
    group: "replicas",
    live: "in hand",
    plan: (prng, replicas) => {
      const index = prng.int(0, replicas - 1)
      return {
        detail: `SIGKILL to replica ${index + 1}`,
        holdMillis: prng.int(0, 1500),
        inject: (world) => {
          const replica = theReplica(world, index)
          return Effect.as(replica.end("SIGKILL", 2000), replica.start)
        }
      }
    }
  },
  {
    name: "replica stopped",
    at: "us",
    group: "replicas",
    live: "in hand",
    plan: (prng, replicas) => {
      const index = prng.int(0, replicas - 1)
      return {
        detail: `SIGTERM to replica ${index + 1}`,
        holdMillis: prng.int(0, 1500),
        inject: (world) => {
          const replica = theReplica(world, index)
          return Effect.as(replica.end("SIGTERM", stopMillis), replica.start)
        }
      }
    }
  },
  {
    name: "rolling restart",
    at: "us",
    group: "replicas",
    live: "in hand",
    plan: () => ({
      detail: "SIGTERM to one after the other",
      holdMillis: 0,
      inject: (world) =>
        Effect.forEach(world.replicas.slice(0, world.replicasWanted), (replica) =>
          Effect.zipRight(Effect.zipRight(replica.end("SIGTERM", stopMillis), replica.start), untilReady(replica, 3000))
        ).pipe(Effect.as(nothing))
    })
  },
  {
    name: "event loop blocked",
    at: "us",
    group: "replicas",
    live: "gap",
    plan: (prng, replicas) => {
      const index = prng.int(0, replicas - 1)
      const seconds = prng.pick([5, 10, 20])
      const stops = prng.chance(0.5)
      return {
        detail: `replica ${index + 1} for ${seconds} s, ${stops ? "by SIGSTOP" : "from inside"}`,
        holdMillis: seconds * 1000,
        inject: (world) => {
          const replica = theReplica(world, index)
          return stops
            ? Effect.as(replica.signal("SIGSTOP"), replica.signal("SIGCONT"))
            : Effect.as(replica.order({ blockMillis: seconds * 1000 }), nothing)
        }
      }
    }
  },
  {
    name: "clock off",
    at: "us",
    group: "replicas",
    live: "kept",
    plan: (prng, replicas) => {
      const index = prng.int(0, replicas - 1)
      const minutes = prng.pick([-10, 10])
      return {
        detail: `replica ${index + 1} by ${minutes} minutes, and back`,
        holdMillis: prng.int(2000, 6000),
        inject: (world) => {
          const replica = theReplica(world, index)
          return Effect.as(replica.order({ clockMillis: minutes * 60_000 }), replica.order({ clockMillis: 0 }))
        }
      }
    }
  }
]
