/**
 * The broker in a container, for machines that have a Docker engine and no other way to a RabbitMQ.
 */
import * as Path from "node:path"
import * as Config from "effect/Config"
import * as Console from "effect/Console"
import * as Effect from "effect/Effect"
import type * as Scope from "effect/Scope"
import type { Broker } from "./PrivateRabbitMq.js"
import { run } from "./RunProgram.js"
import { ServerError } from "./ServerProcess.js"

const image = "rabbitmq:4-management"

/** Starts a container with both ports on loopback; it is removed with the scope. Its data goes with it. */
export const make = (at: {
  readonly folder: string
  readonly port: number
  readonly managementPort: number
  readonly serves: Effect.Effect<boolean>
}): Effect.Effect<Broker, ServerError, Scope.Scope> =>
  Effect.gen(function* () {
    const [PATH, HOME] = yield* Effect.orDie(Config.all([Config.string("PATH"), Config.string("HOME")]))
    const docker = (...args: ReadonlyArray<string>) =>
      run("RabbitMQ in Docker", { command: "docker", args }, { PATH, HOME }, 300_000)
    const fail = (operation: string, reason: string) =>
      new ServerError({ server: "RabbitMQ in Docker", operation, reason, log: "" })
    const container = `pg-listener-${Path.basename(at.folder)}-${at.port}`
    const awaitServes = Effect.sleep("200 millis").pipe(
      Effect.zipRight(at.serves),
      Effect.repeat({ until: (serves) => serves }),
      Effect.timeoutFail({ duration: "90 seconds", onTimeout: () => fail("start", "it does not serve after 90 s") })
    )
    const start = Effect.zipRight(docker("start", container), Effect.asVoid(awaitServes))
    const stop = Effect.asVoid(docker("stop", "-t", "9", container))

    yield* Console.log(`Starting RabbitMQ in a container (docker run ${image})...`)
    yield* Effect.addFinalizer(() => Effect.ignore(docker("rm", "--force", "--volumes", container)))
    const ports = [`127.0.0.1:${at.port}:5672`, `127.0.0.1:${at.managementPort}:15672`]
    yield* docker("create", "--name", container, ...ports.flatMap((port) => ["--publish", port]), image)
    yield* start

    return {
      process: {
        pid: Effect.map(docker("inspect", "--format", "{{.State.Pid}}", container), Number),
        start,
        stop,
        restart: Effect.zipRight(stop, start),
        kill9: Effect.asVoid(docker("kill", container)),
        pause: Effect.asVoid(docker("pause", container)),
        resume: Effect.asVoid(docker("unpause", container))
      },
      ctl: (args) => docker("exec", container, "rabbitmqctl", ...args)
    }
  })
