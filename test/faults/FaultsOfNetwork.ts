/**
 * What can happen to the network between the replicas and each of the servers.
 */
import * as Effect from "effect/Effect"
import type { FaultKind } from "./Faults.js"
import * as TcpProxy from "./TcpProxy.js"
import type { World } from "./World.js"

const nothing = Effect.void

interface Side {
  readonly server: "PostgreSQL" | "RabbitMQ"
  readonly proxy: (world: World) => TcpProxy.TcpProxy
}

const sides: ReadonlyArray<Side> = [
  { server: "PostgreSQL", proxy: ({ postgresProxy }) => postgresProxy },
  { server: "RabbitMQ", proxy: ({ brokerProxy }) => brokerProxy }
]

const faultsOf = ({ proxy, server }: Side): ReadonlyArray<FaultKind> => {
  const kind = (name: string, plan: FaultKind["plan"]): FaultKind => ({
    name: `${name} (${server})`,
    at: "network",
    group: `network to ${server}`,
    live: server === "PostgreSQL" ? "gap" : "kept",
    plan
  })
  return [
    kind("reset", (prng) => {
      const times = prng.int(1, 3)
      return {
        detail: `${times} times`,
        holdMillis: 0,
        inject: (world) =>
          Effect.as(
            Effect.forEach(Array.from({ length: times }), () =>
              Effect.zipRight(proxy(world).reset, Effect.sleep("300 millis"))
            ),
            nothing
          )
      }
    }),
    kind("half-open", (prng) => {
      const clients = prng.chance(0.25) ? "silent" : "reset"
      return {
        detail: clients === "reset" ? "swallowed both ways, then reset" : "swallowed both ways, for ever",
        holdMillis: prng.int(3000, 8000),
        inject: (world) => Effect.as(proxy(world).swallow(TcpProxy.directions), proxy(world).heal(clients))
      }
    }),
    kind("one direction dead", (prng) => {
      const direction = prng.pick(TcpProxy.directions)
      return {
        detail: direction,
        holdMillis: prng.int(2000, 6000),
        inject: (world) => Effect.as(proxy(world).swallow([direction]), proxy(world).heal("reset"))
      }
    }),
    kind("delayed", (prng) => {
      const millis = prng.int(50, 300)
      return {
        detail: `${millis} ms each way`,
        holdMillis: prng.int(2000, 5000),
        inject: (world) => Effect.as(proxy(world).delay(millis), proxy(world).heal("reset"))
      }
    }),
    kind("refused", (prng) => ({
      detail: "nobody listens",
      holdMillis: prng.int(500, 4000),
      inject: (world) => Effect.as(proxy(world).refuse, proxy(world).heal("reset"))
    })),
    kind("cut in a frame", (prng) => {
      const direction = prng.pick(TcpProxy.directions)
      const times = prng.int(1, 3)
      return {
        detail: `${direction}, ${times} times`,
        holdMillis: 0,
        inject: (world) =>
          Effect.as(
            Effect.forEach(Array.from({ length: times }), () =>
              Effect.zipRight(proxy(world).cut(direction), Effect.sleep("500 millis"))
            ),
            nothing
          )
      }
    })
  ]
}

export const networkFaults: ReadonlyArray<FaultKind> = sides.flatMap(faultsOf)
