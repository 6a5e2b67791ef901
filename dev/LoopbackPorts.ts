/**
 * Free ports on 127.0.0.1, below the range from which systems take the ports of outgoing connections. A server that is
 * down for a while then finds its port still free: no client that tries to reconnect can be given it (or even connect
 * to itself on it, as TCP allows).
 */
import * as Net from "node:net"
import * as Effect from "effect/Effect"
import * as Random from "effect/Random"
import { ServerError } from "./ServerProcess.js"

/** Whether nobody listens on the port. */
export const isFree = (port: number, host = "127.0.0.1"): Effect.Effect<boolean> =>
  Effect.async((resume) => {
    const server = Net.createServer()
    server.once("error", () => resume(Effect.succeed(false)))
    server.listen(port, host, () => server.close(() => resume(Effect.succeed(true))))
  })

/** Whether somebody accepts connections on the port. */
export const answers = (port: number): Effect.Effect<boolean> =>
  Effect.async<boolean>((resume) => {
    const socket = Net.connect({ port, host: "127.0.0.1", timeout: 1000 })
    const done = (yes: boolean) => {
      socket.destroy()
      resume(Effect.succeed(yes))
    }
    socket.once("connect", () => done(true))
    socket.once("error", () => done(false))
    socket.once("timeout", () => done(false))
  })

/** A free port, chosen at random so that test workers side by side do not choose the same. */
export const freePort: Effect.Effect<number, ServerError> = Random.nextIntBetween(20_000, 32_000).pipe(
  Effect.flatMap((port) =>
    Effect.flatMap(isFree(port), (free) =>
      free
        ? Effect.succeed(port)
        : Effect.fail(new ServerError({ server: "ports", operation: "find", reason: "no free loopback port", log: "" }))
    )
  ),
  Effect.retry({ times: 100 })
)
