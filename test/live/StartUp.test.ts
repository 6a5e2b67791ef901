/** What the service says when it can't start, or starts with settings that will hurt later. */
import { createServer } from "node:net"
import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import { runCommand } from "../support/Service.js"

/** Nobody listens here, which is no reason not to start. */
const unreachable = { DATABASE_URL: "postgres://u@127.0.0.1:1/none", AMQP_URL: "amqp://127.0.0.1:1" }

/** A port that somebody else listens at. */
const takenPort = Effect.acquireRelease(
  Effect.async<{ readonly port: number; readonly close: () => void }>((resume) => {
    const server = createServer()
    server.listen(0, "127.0.0.1", () => {
      const address = server.address()
      const port = typeof address === "object" && address !== null ? address.port : 0
      resume(Effect.succeed({ port, close: () => server.close() }))
    })
  }),
  ({ close }) => Effect.sync(close)
)

const lines = (output: string) =>
  output
    .trim()
    .split("\n")
    .map((line) => JSON.parse(line) as { readonly level: string; readonly message: string; readonly error?: string })

describe("the start", () => {
  it.scopedLive("on a health port that is taken ends with exit code 1 and one line that names setting and mend", () =>
    Effect.gen(function* () {
      const { port } = yield* takenPort
      const { code, output } = yield* runCommand(
        {
          ...unreachable,
          PG_LISTENER_HEALTH_PORT: String(port),
          PG_LISTENER_CONFIRM_TIMEOUT: "11 seconds",
          PG_LISTENER_SHUTDOWN_TIMEOUT: "21 seconds"
        },
        []
      )
      assert.strictEqual(code, 1, output)
      assert.deepInclude(
        lines(output).map(({ message }) => message),
        "PG_LISTENER_SHUTDOWN_TIMEOUT (21s) is less than twice PG_LISTENER_CONFIRM_TIMEOUT (11s): a stop could cut off a batch in hand"
      )
      const fatal = lines(output).filter(({ level }) => level === "fatal")
      assert.deepStrictEqual(
        fatal.map(({ error, message }) => ({ error, message })),
        [
          {
            error: undefined,
            message: `PG_LISTENER_HEALTH_PORT: port ${port} on 127.0.0.1 is already in use (EADDRINUSE). Give another port, or stop what uses it`
          }
        ]
      )
    })
  )

  it.scopedLive("on an address of another machine names the host's setting", () =>
    Effect.gen(function* () {
      const { code, output } = yield* runCommand({ ...unreachable, PG_LISTENER_HEALTH_HOST: "192.0.2.1" }, [])
      assert.strictEqual(code, 1, output)
      assert.match(
        lines(output).find(({ level }) => level === "fatal")?.message ?? "",
        /^PG_LISTENER_HEALTH_HOST: 192\.0\.2\.1 is no address of this machine \(EADDRNOTAVAIL\)\. Give/
      )
      assert.notInclude(output, "PG_LISTENER_SHUTDOWN_TIMEOUT")
    })
  )

  it.scopedLive("without its settings writes one JSON line, or a text when LOG_FORMAT is pretty", () =>
    Effect.gen(function* () {
      const forMachines = yield* runCommand({}, [])
      assert.strictEqual(forMachines.code, 1)
      assert.deepStrictEqual(
        lines(forMachines.output).map(({ level }) => level),
        ["fatal"]
      )
      const forPeople = yield* runCommand({ LOG_FORMAT: "pretty" }, [])
      assert.strictEqual(forPeople.code, 1)
      assert.match(forPeople.output, /^pg-listener can't start; .*:\nDATABASE_URL: is not set\. .*\nAMQP_URL: /)
    })
  )
})
