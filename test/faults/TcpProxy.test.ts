import * as Net from "node:net"
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import { freePort } from "../../dev/LoopbackPorts.js"
import { eventually } from "../support/eventually.js"
import * as TcpProxy from "./TcpProxy.js"

/** A server that notes what it gets and sends it back in capitals, and how its connections ended. */
const shouter = Effect.gen(function* () {
  const port = yield* freePort
  const got: Array<string> = []
  const ends: Array<string> = []
  yield* Effect.acquireRelease(
    Effect.async<Net.Server>((resume) => {
      const server = Net.createServer((socket) => {
        let how = "closed"
        socket.on("data", (data) => {
          got.push(data.toString())
          socket.write(data.toString().toUpperCase())
        })
        socket.on("error", () => {
          how = "reset"
        })
        socket.on("close", () => ends.push(how))
      })
      server.listen(port, "127.0.0.1", () => resume(Effect.succeed(server)))
    }),
    (server) => Effect.sync(() => server.close())
  )
  return { port, got, ends }
})

const client = (port: number) =>
  Effect.gen(function* () {
    const state = { got: "", end: undefined as string | undefined, connected: false }
    const socket = yield* Effect.acquireRelease(
      Effect.sync(() => Net.connect({ port, host: "127.0.0.1", noDelay: true })),
      (open) => Effect.sync(() => open.destroy())
    )
    socket.on("connect", () => {
      state.connected = true
    })
    socket.on("data", (data) => {
      state.got += data.toString()
    })
    socket.on("error", (error) => {
      state.end = "code" in error ? `${error.code}` : error.message
    })
    socket.on("close", () => {
      state.end ??= "closed"
    })
    const hears = (text: string) =>
      eventually(
        `hearing ${text}`,
        Effect.sync(() => state.got),
        (got) => got === text,
        "5 seconds"
      )
    const ends = (how: string) =>
      eventually(
        `the end: ${how}`,
        Effect.sync(() => state.end),
        (end) => end === how,
        "5 seconds"
      )
    return { state, hears, ends, say: (text: string) => Effect.sync(() => socket.write(text)), socket }
  })

const setting = Effect.gen(function* () {
  const server = yield* shouter
  const proxy = yield* TcpProxy.make({ port: yield* freePort, upstreamPort: server.port })
  const serverHears = (all: ReadonlyArray<string>) =>
    eventually(
      "the server hears",
      Effect.sync(() => server.got),
      (got) => got.join() === all.join(),
      "5 seconds"
    )
  return { server, proxy, serverHears, connect: client(proxy.port) }
})

const started = (one: Effect.Effect.Success<ReturnType<typeof client>>) =>
  Effect.zipRight(one.say("hello"), one.hears("HELLO"))

describe("the campaign's proxy", () => {
  it.scopedLive("passes bytes both ways, and the end of a connection", () =>
    Effect.gen(function* () {
      const { connect, proxy, server } = yield* setting
      const one = yield* connect
      yield* started(one)
      assert.strictEqual(proxy.connections(), 1)
      one.socket.end()
      yield* one.ends("closed")
      yield* eventually(
        "the server's end",
        Effect.sync(() => server.ends),
        (ends) => ends.join() === "closed"
      )
      assert.strictEqual(proxy.connections(), 0)
    })
  )

  it.scopedLive("resets both ends", () =>
    Effect.gen(function* () {
      const { connect, proxy, server } = yield* setting
      const one = yield* connect
      yield* started(one)
      yield* proxy.reset
      yield* one.ends("ECONNRESET")
      yield* eventually(
        "the server's end",
        Effect.sync(() => server.ends),
        (ends) => ends.join() === "reset"
      )
    })
  )

  it.scopedLive("refuses, and takes connections again once it is well", () =>
    Effect.gen(function* () {
      const { connect, proxy } = yield* setting
      const one = yield* connect
      yield* started(one)
      yield* proxy.refuse
      yield* one.ends("ECONNRESET")
      const two = yield* connect
      yield* two.ends("ECONNREFUSED")
      yield* proxy.heal("reset")
      yield* started(yield* connect)
    })
  )

  it.scopedLive("with one direction dead, the server hears and its answer is lost; then the connection is reset", () =>
    Effect.gen(function* () {
      const { connect, proxy, serverHears } = yield* setting
      const one = yield* connect
      yield* started(one)
      yield* proxy.swallow(["to the client"])
      yield* one.say("again")
      yield* serverHears(["hello", "again"])
      assert.strictEqual(one.state.got, "HELLO")
      yield* proxy.heal("reset")
      yield* one.ends("ECONNRESET")
    })
  )

  it.scopedLive("half-open: a new connection is taken and never answered, and an end is not passed on", () =>
    Effect.gen(function* () {
      const { connect, proxy, server } = yield* setting
      const old = yield* connect
      yield* started(old)
      yield* proxy.swallow(TcpProxy.directions)
      const fresh = yield* connect
      yield* fresh.say("anybody?")
      yield* eventually(
        "the connect",
        Effect.sync(() => fresh.state.connected),
        (yes) => yes
      )
      old.socket.destroy()
      yield* old.ends("closed")
      assert.deepStrictEqual(server.ends, [])
      yield* proxy.heal("reset")
      yield* fresh.ends("ECONNRESET")
      yield* eventually(
        "the server's end",
        Effect.sync(() => server.ends),
        (ends) => ends.join() === "reset"
      )
      assert.deepStrictEqual(server.got, ["hello"])
      yield* started(yield* connect)
    })
  )

  it.scopedLive("silent: a client that lost bytes is never told, the server is", () =>
    Effect.gen(function* () {
      const { connect, proxy, server } = yield* setting
      const one = yield* connect
      yield* started(one)
      yield* proxy.swallow(TcpProxy.directions)
      yield* one.say("lost")
      const other = yield* connect
      yield* eventually(
        "both connections",
        Effect.sync(() => proxy.connections()),
        (n) => n === 2
      )
      // In the order of the connects: what the second one said has been lost by now, and so has the first one's.
      yield* other.say("lost, too")
      yield* Effect.sleep("50 millis")
      yield* proxy.heal("silent")
      yield* eventually(
        "the server's end",
        Effect.sync(() => server.ends),
        (ends) => ends.join() === "reset"
      )
      yield* started(yield* connect)
      assert.isUndefined(one.state.end)
      assert.isUndefined(other.state.end)
    })
  )

  it.scopedLive("delays every byte, in order, and is quick again once it is well", () =>
    Effect.gen(function* () {
      const { connect, proxy } = yield* setting
      const clock = yield* Effect.clock
      const one = yield* connect
      yield* started(one)
      yield* proxy.delay(100)
      const before = clock.unsafeCurrentTimeMillis()
      yield* one.say("a")
      yield* one.say("b")
      yield* one.hears("HELLOAB")
      assert.isAtLeast(clock.unsafeCurrentTimeMillis() - before, 199)
      yield* proxy.heal("reset")
      yield* one.say("c")
      yield* one.hears("HELLOABC")
      assert.isUndefined(one.state.end)
    })
  )

  it.scopedLive("cuts the next bytes in half, and the connection with them", () =>
    Effect.gen(function* () {
      const { connect, proxy, server } = yield* setting
      const one = yield* connect
      yield* started(one)
      yield* proxy.cut("to the client")
      yield* one.say("abcdef")
      yield* eventually(
        "the end",
        Effect.sync(() => one.state.end),
        (end) => end !== undefined
      )
      assert.strictEqual(one.state.got, "HELLOABC")
      assert.deepStrictEqual(server.got, ["hello", "abcdef"])
      yield* started(yield* connect)
    })
  )
})
