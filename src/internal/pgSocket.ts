/**
 * The socket under a `pg.Client`: the driver has no public way to stop reading, nor to hang up on a silent server.
 */
import type { Socket } from "node:net"
import * as Effect from "effect/Effect"
import type * as pg from "pg"

/** How long a polite goodbye may take before the socket is cut. */
const goodbye = "500 millis"

// The typings leave `connection` out. It is there from the constructor on; TLS replaces its stream while connecting.
const socketOf = (client: pg.Client): Socket =>
  (client as pg.Client & { readonly connection: { readonly stream: Socket } }).connection.stream

/** Stops reading, so that TCP makes the server wait. */
export const pauseReading = (client: pg.Client): void => {
  socketOf(client).pause()
}

export const resumeReading = (client: pg.Client): void => {
  socketOf(client).resume()
}

/** Hangs up at once; statements in flight fail, and the server rolls back. */
export const destroySocket = (client: pg.Client): void => {
  socketOf(client).destroy()
}

/** Says goodbye to the server, and hangs up when that takes too long. Never fails. */
export const closeClient = (client: pg.Client): Effect.Effect<void> =>
  Effect.async<void>((resume) => {
    client.end(() => resume(Effect.void))
  }).pipe(
    Effect.interruptible,
    Effect.timeoutOption(goodbye),
    Effect.ensuring(Effect.sync(() => destroySocket(client))),
    Effect.asVoid
  )
