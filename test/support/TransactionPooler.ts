/**
 * What a transaction pooler does to a LISTEN session, in a few lines: it passes on everything but notifications that
 * come in while no statement is in hand, and it can run statements of its own on the session, such as DISCARD ALL.
 *
 * Speaks PostgreSQL's protocol without TLS: connect with `sslmode=disable`.
 */
import * as Net from "node:net"
import * as Effect from "effect/Effect"
import type * as Scope from "effect/Scope"

export interface TransactionPooler {
  readonly url: string
  /** Runs a simple query on every session that is idle now; its answer stays here. */
  readonly inject: (statement: string) => Effect.Effect<void>
}

interface Session {
  readonly server: Net.Socket
  busy: boolean
  /** An answer of ours is on its way, up to ReadyForQuery. */
  injected: boolean
}

const typeOf = (message: Buffer): string => String.fromCharCode(message[0] ?? 0)

/** Cuts what the server sends into messages: one byte of type, four of length. */
const messages = (onMessage: (message: Buffer) => void): ((data: Buffer) => void) => {
  let rest: Buffer = Buffer.alloc(0)
  return (data) => {
    rest = Buffer.concat([rest, data])
    while (rest.length >= 5) {
      const length = rest.readUInt32BE(1) + 1
      if (rest.length < length) return
      onMessage(rest.subarray(0, length))
      rest = rest.subarray(length)
    }
  }
}

/** `dropsNotifications: false` makes it a pooler in session mode. */
export const transactionPooler = (
  upstreamUrl: string,
  options: { readonly dropsNotifications: boolean }
): Effect.Effect<TransactionPooler, never, Scope.Scope> =>
  Effect.gen(function* () {
    const upstream = new URL(upstreamUrl)
    const sessions = new Set<Session>()
    const sockets = new Set<Net.Socket>()
    const watch = (socket: Net.Socket, other: Net.Socket): void => {
      sockets.add(socket)
      socket.on("error", () => other.destroy()).on("close", () => other.destroy())
    }
    const accept = (client: Net.Socket): void => {
      const server = Net.connect(Number(upstream.port), upstream.hostname)
      const session: Session = { server, busy: true, injected: false }
      sessions.add(session)
      watch(client, server)
      watch(server, client)
      client.on("data", (data) => {
        session.busy = true
        server.write(data)
      })
      server.on(
        "data",
        messages((message) => {
          const type = typeOf(message)
          const swallowed = session.injected || (type === "A" && !session.busy && options.dropsNotifications)
          // The server answers in order: an answer of ours comes first, whatever the client has sent meanwhile.
          if (type === "Z" && session.injected) session.injected = false
          else if (type === "Z") session.busy = false
          if (!swallowed) client.write(message)
        })
      )
    }
    const listener = yield* Effect.acquireRelease(
      Effect.async<Net.Server>((resume) => {
        const made = Net.createServer(accept)
        made.listen(0, "127.0.0.1", () => resume(Effect.succeed(made)))
      }),
      (made) =>
        Effect.sync(() => {
          for (const socket of sockets) socket.destroy()
          made.close()
        })
    )
    const address = listener.address()
    const url = new URL(upstreamUrl)
    url.port = typeof address === "object" && address !== null ? `${address.port}` : ""
    url.searchParams.set("sslmode", "disable")
    return {
      url: url.href,
      inject: (statement) =>
        Effect.sync(() => {
          for (const session of sessions) {
            if (session.busy || session.injected || session.server.destroyed) continue
            session.injected = true
            const text = Buffer.from(`${statement}\0`)
            const head = Buffer.alloc(5)
            head.write("Q")
            head.writeUInt32BE(text.length + 4, 1)
            session.server.write(Buffer.concat([head, text]))
          }
        })
    }
  })
