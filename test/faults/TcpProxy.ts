/**
 * A TCP proxy on a loopback port that can be as bad as a network: it resets, swallows, delays, refuses, and cuts in the
 * middle of a frame.
 *
 * A network that loses bytes in one place never says so. While it swallows, neither data nor the end of a connection
 * gets through; a connection that lost something is broken for good, and what its ends learn of it when the network is
 * back is the caller's choice.
 */
import * as Net from "node:net"
import * as Effect from "effect/Effect"
import type * as Scope from "effect/Scope"
import { makeDelayLine } from "./DelayLine.js"

export type Direction = "to the server" | "to the client"
export const directions: ReadonlyArray<Direction> = ["to the server", "to the client"]

export interface TcpProxy {
  readonly port: number
  /** Connections that both sides have open now. */
  readonly connections: () => number
  /** RST to both ends of every connection. */
  readonly reset: Effect.Effect<void>
  /** The next bytes that way are cut in half on every connection, which then is reset. */
  readonly cut: (direction: Direction) => Effect.Effect<void>
  /** Loses every byte that way until {@link heal}. */
  readonly swallow: (lost: ReadonlyArray<Direction>) => Effect.Effect<void>
  /** Holds every byte back for so long, both ways. */
  readonly delay: (millis: number) => Effect.Effect<void>
  /** Resets every connection, and refuses new ones until {@link heal}. */
  readonly refuse: Effect.Effect<void>
  /**
   * The network is well again. Connections that lost bytes are reset at the server; a client of one hears of it
   * (`reset`), or is left with a connection on which nothing ever comes again (`silent`).
   */
  readonly heal: (clients: "reset" | "silent") => Effect.Effect<void>
}

interface Connection {
  readonly client: Net.Socket
  readonly server: Net.Socket | undefined
  broken: boolean
}

/** Starts it on the given port; it ends with the scope. */
export const make = (options: {
  readonly port: number
  readonly upstreamPort: number
}): Effect.Effect<TcpProxy, never, Scope.Scope> =>
  Effect.gen(function* () {
    const clock = yield* Effect.clock
    const connections = new Set<Connection>()
    let lost: ReadonlyArray<Direction> = []
    let delayMillis = 0
    let toCut: Map<Connection, Direction> = new Map()
    let listener: Net.Server | undefined

    const hangUp = (connection: Connection) => {
      connections.delete(connection)
      connection.client.resetAndDestroy()
      connection.server?.resetAndDestroy()
    }

    const forward = (connection: Connection, from: Net.Socket, to: Net.Socket | undefined, direction: Direction) => {
      const write = (data: Buffer) => {
        if (to === undefined || to.destroyed || to.writableEnded || to.write(data)) return
        from.pause()
        to.once("drain", () => from.resume())
      }
      const line = makeDelayLine(() => clock.unsafeCurrentTimeMillis(), write)
      from.on("data", (data: Buffer) => {
        if (connection.broken || lost.includes(direction)) {
          connection.broken = true
          return
        }
        if (toCut.get(connection) !== direction) return line.send(data, delayMillis)
        toCut.delete(connection)
        write(data.subarray(0, Math.ceil(data.length / 2)))
        hangUp(connection)
      })
      from.on("error", () => {})
      from.on("close", () => {
        if (!connection.broken && lost.length === 0) {
          connections.delete(connection)
          line.flush()
          to?.end()
          return
        }
        // The other end does not hear of it while the network is down.
        connection.broken = true
        if (connection.client.destroyed && (connection.server?.destroyed ?? true)) connections.delete(connection)
      })
    }

    const accept = (client: Net.Socket) => {
      // Nothing that is sent reaches the server, not even the wish to connect.
      const isDeaf = lost.includes("to the server")
      const server = isDeaf
        ? undefined
        : Net.connect({ port: options.upstreamPort, host: "127.0.0.1", noDelay: true, allowHalfOpen: false })
      const connection: Connection = { client, server, broken: isDeaf }
      connections.add(connection)
      client.setNoDelay(true)
      forward(connection, client, server, "to the server")
      if (server === undefined) return
      forward(connection, server, client, "to the client")
      server.on("error", () => {
        if (!connection.broken && lost.length === 0) client.resetAndDestroy()
      })
    }

    const listen = Effect.async<void>((resume) => {
      if (listener !== undefined) return resume(Effect.void)
      const fresh = Net.createServer(accept)
      listener = fresh
      fresh.on("error", (error) => resume(Effect.die(error)))
      fresh.listen(options.port, "127.0.0.1", () => resume(Effect.void))
    })
    const hangUpAll = () => {
      for (const connection of [...connections]) hangUp(connection)
    }
    const stopListening = () => {
      listener?.close()
      listener = undefined
    }

    yield* Effect.addFinalizer(() =>
      Effect.sync(() => {
        stopListening()
        hangUpAll()
      })
    )
    yield* listen

    return {
      port: options.port,
      connections: () => connections.size,
      reset: Effect.sync(hangUpAll),
      cut: (direction) =>
        Effect.sync(() => {
          toCut = new Map([...connections].map((connection) => [connection, direction]))
        }),
      swallow: (lostNow) =>
        Effect.sync(() => {
          lost = lostNow
        }),
      delay: (millis) =>
        Effect.sync(() => {
          delayMillis = millis
        }),
      refuse: Effect.sync(() => {
        stopListening()
        hangUpAll()
      }),
      heal: (clients) =>
        Effect.zipRight(
          Effect.sync(() => {
            lost = []
            delayMillis = 0
            toCut.clear()
            for (const connection of [...connections]) {
              if (!connection.broken) continue
              if (clients === "reset" || connection.client.destroyed) hangUp(connection)
              else connection.server?.resetAndDestroy()
            }
          }),
          listen
        )
    }
  })
