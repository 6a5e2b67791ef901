/**
 * What can happen to RabbitMQ, and what its operator can do to it.
 */
import * as Clock from "effect/Clock"
import * as Effect from "effect/Effect"
import type { FaultKind } from "./Faults.js"
import { aggregateLanes, EXCHANGE, queues } from "./Model.js"
import { declareExchange, type World } from "./World.js"

const nothing = Effect.void

const everything = { configure: ".*", write: ".*", read: ".*" }

/** All that the broker knows of, the consumers' among them. One that is gone by now is no failure. */
const closeConnections = ({ broker: { api } }: World) =>
  Effect.flatMap(api.connections, (all) =>
    Effect.forEach(all, ({ name }) => Effect.ignore(api.closeConnection(name)), { concurrency: 4, discard: true })
  )

export const rabbitMqFaults: ReadonlyArray<FaultKind> = [
  {
    name: "broker killed",
    at: "RabbitMQ",
    group: "broker process",
    live: "kept",
    plan: (prng) => ({
      detail: "kill -9",
      holdMillis: prng.int(100, 1500),
      inject: ({ broker, notes }) =>
        Effect.gen(function* () {
          yield* broker.kill9
          notes.brokerKilledAt.push(yield* Clock.currentTimeMillis)
          return broker.start
        })
    })
  },
  {
    name: "broker restarted",
    at: "RabbitMQ",
    group: "broker process",
    live: "kept",
    plan: (prng) => ({
      detail: "SIGTERM, and a start",
      holdMillis: prng.int(100, 1500),
      inject: ({ broker }) => Effect.as(broker.stop, broker.start)
    })
  },
  {
    name: "broker frozen",
    at: "RabbitMQ",
    group: "broker process",
    live: "kept",
    plan: (prng) => ({
      detail: "SIGSTOP",
      holdMillis: prng.int(3000, 8000),
      inject: ({ broker }) => Effect.as(broker.pause, broker.resume)
    })
  },
  {
    name: "memory alarm",
    at: "RabbitMQ",
    group: "broker's acts",
    live: "kept",
    plan: (prng) => ({
      detail: "publishers are blocked",
      holdMillis: prng.int(1500, 4000),
      inject: ({ broker }) => Effect.as(broker.setMemoryAlarm, broker.clearMemoryAlarm)
    })
  },
  {
    name: "connections closed",
    at: "RabbitMQ",
    group: "broker's acts",
    live: "kept",
    plan: (prng) => {
      const times = prng.int(1, 3)
      return {
        detail: `by the operator, ${times} times`,
        holdMillis: 0,
        inject: (world) =>
          Effect.as(
            Effect.forEach(Array.from({ length: times }), () =>
              Effect.zipRight(closeConnections(world), Effect.sleep("700 millis"))
            ),
            nothing
          )
      }
    }
  },
  {
    name: "queue deleted",
    at: "RabbitMQ",
    group: "topology",
    live: "kept",
    plan: () => {
      const { queue } = aggregateLanes.deletable
      return {
        detail: queue,
        holdMillis: 0,
        refusedQueues: [queue],
        inject: ({ consumers, notes }) =>
          Effect.gen(function* () {
            const from = yield* Clock.currentTimeMillis
            yield* consumers.deleteWhenEmpty(queue)
            notes.deletions.push({ queue, from, to: yield* Clock.currentTimeMillis })
            // The service declares it again.
            return nothing
          })
      }
    }
  },
  {
    name: "queue full",
    at: "RabbitMQ",
    group: "topology",
    live: "kept",
    plan: (prng) => {
      const { queue } = aggregateLanes.small
      const length = prng.int(0, 20)
      return {
        detail: `${queue} takes ${length} messages and rejects the rest`,
        holdMillis: prng.int(2000, 5000),
        refusedQueues: [queue],
        inject: ({ broker: { api }, consumers }) =>
          Effect.gen(function* () {
            yield* consumers.pause(queue)
            yield* api.setPolicy("faults_full", `^${queue}$`, { "max-length": length, overflow: "reject-publish" })
            return Effect.zipRight(api.deletePolicy("faults_full"), consumers.resume(queue))
          })
      }
    }
  },
  {
    name: "exchange missing",
    at: "RabbitMQ",
    group: "topology",
    live: "kept",
    plan: (prng) => ({
      detail: EXCHANGE,
      holdMillis: prng.int(1000, 5000),
      refusedQueues: [aggregateLanes.exchange.queue],
      inject: (world) => Effect.as(world.broker.api.deleteExchange(EXCHANGE), declareExchange(world))
    })
  },
  {
    name: "permissions taken away",
    at: "RabbitMQ",
    group: "topology",
    live: "kept",
    plan: (prng) => {
      const all = prng.chance(0.5)
      return {
        detail: all ? "may write nowhere" : `may not write to ${EXCHANGE}`,
        holdMillis: prng.int(1000, 4000),
        refusedQueues: all ? queues : [aggregateLanes.exchange.queue],
        inject: (world) => {
          const { api } = world.broker
          return api.setPermissions({ ...everything, write: all ? "^$" : "^amq\\.default$" }).pipe(
            // An open channel remembers what it may do.
            Effect.zipRight(closeConnections(world)),
            Effect.as(api.setPermissions(everything))
          )
        }
      }
    }
  }
]
