/**
 * A RabbitMQ broker of our own on free loopback ports, with its data in a given folder. User `guest`, password `guest`.
 */
import * as Fs from "node:fs"
import * as Path from "node:path"
import * as Effect from "effect/Effect"
import * as Random from "effect/Random"
import type * as Scope from "effect/Scope"
import { withDeathSignal } from "./DeathSignal.js"
import * as DockerRabbitMq from "./DockerRabbitMq.js"
import { answers, freePort } from "./LoopbackPorts.js"
import * as ManagementApi from "./ManagementApi.js"
import * as RabbitMqPrograms from "./RabbitMqPrograms.js"
import { run } from "./RunProgram.js"
import * as ServerProcess from "./ServerProcess.js"

export interface PrivateRabbitMq extends ServerProcess.ServerProcess {
  readonly port: number
  /** Of the vhost `/`. */
  readonly url: string
  readonly urlOf: (vhost: string) => string
  /** For people: the management pages. */
  readonly managementUrl: string
  readonly api: ManagementApi.ManagementApi
  /** The broker blocks every connection that publishes, as if it had no memory left. Takes a second or two. */
  readonly setMemoryAlarm: Effect.Effect<void, ServerProcess.ServerError>
  readonly clearMemoryAlarm: Effect.Effect<void, ServerProcess.ServerError>
}

export interface PrivateRabbitMqOptions {
  /** An absolute path; made when missing, and used again when it holds the data of an earlier run. */
  readonly folder: string
  /** The data is thrown away: the stop is a kill. */
  readonly throwAway?: boolean
  /** More lines for `rabbitmq.conf`, e.g. `{ heartbeat: "5" }`. */
  readonly settings?: Readonly<Record<string, string>>
}

/** A node's data is only good for the same node name, so the name stays with the folder. */
const nodeNameIn = (folder: string) =>
  Effect.gen(function* () {
    const file = Path.join(folder, "node-name")
    if (Fs.existsSync(file)) return Fs.readFileSync(file, "utf8").trim()
    const name = `pg-listener-${(yield* Random.nextIntBetween(0, 2 ** 31)).toString(36)}@localhost`
    Fs.writeFileSync(file, name)
    return name
  })

/** Finds or installs RabbitMQ and starts it; it stops with the scope. */
export const make = (
  options: PrivateRabbitMqOptions
): Effect.Effect<PrivateRabbitMq, ServerProcess.ServerError, Scope.Scope> =>
  Effect.gen(function* () {
    const programs = yield* RabbitMqPrograms.findOrInstall
    const port = yield* freePort
    const managementPort = yield* freePort
    const managementUrl = `http://127.0.0.1:${managementPort}`
    const api = ManagementApi.make(managementUrl)
    // The listener for clients comes last in the broker's start, so the port alone would do, were it not for the API.
    const serves = Effect.flatMap(answers(port), (yes) => (yes ? Effect.isSuccess(api.queues) : Effect.succeed(false)))
    const urlOf = (vhost: string) =>
      `amqp://guest:guest@127.0.0.1:${port}${vhost === "/" ? "" : `/${encodeURIComponent(vhost)}`}`

    const { folder } = options
    for (const part of ["home", "mnesia", "log"]) Fs.mkdirSync(Path.join(folder, part), { recursive: true })
    const broker =
      programs === "docker"
        ? yield* DockerRabbitMq.make({ folder, port, managementPort, serves })
        : yield* local(options, programs, { port, managementPort, serves })

    const alarm = (call: string) => Effect.asVoid(broker.ctl(["eval", `rabbit_alarm:${call}.`]))
    return {
      ...broker.process,
      port,
      urlOf,
      url: urlOf("/"),
      managementUrl,
      api,
      setMemoryAlarm: alarm("set_alarm({{resource_limit, memory, node()}, []})"),
      clearMemoryAlarm: alarm("clear_alarm({resource_limit, memory, node()})")
    }
  })

/** A broker and its command-line tool. */
export interface Broker {
  readonly process: ServerProcess.ServerProcess
  readonly ctl: (args: ReadonlyArray<string>) => Effect.Effect<string, ServerProcess.ServerError>
}

const local = (
  { folder, settings = {}, throwAway = false }: PrivateRabbitMqOptions,
  programs: RabbitMqPrograms.RabbitMqPrograms,
  at: { readonly port: number; readonly managementPort: number; readonly serves: Effect.Effect<boolean> }
): Effect.Effect<Broker, ServerProcess.ServerError, Scope.Scope> =>
  Effect.gen(function* () {
    const epmdPort = yield* freePort
    const distributionPort = yield* freePort
    const conf = {
      "listeners.tcp.1": `127.0.0.1:${at.port}`,
      "management.tcp.ip": "127.0.0.1",
      "management.tcp.port": `${at.managementPort}`,
      "loopback_users.guest": "true",
      "log.file.level": "warning",
      "vm_memory_high_watermark.absolute": "1GB",
      "disk_free_limit.absolute": "50MB",
      collect_statistics_interval: "1000",
      ...settings
    }
    Fs.writeFileSync(
      Path.join(folder, "rabbitmq.conf"),
      Object.entries(conf)
        .map(([name, value]) => `${name} = ${value}\n`)
        .join("")
    )
    Fs.writeFileSync(Path.join(folder, "enabled_plugins"), "[rabbitmq_management].\n")
    const env = {
      PATH: programs.path,
      LANG: "C.UTF-8",
      // Holds the cookie by which the command-line tool proves that it may talk to the broker.
      HOME: Path.join(folder, "home"),
      ERL_EPMD_PORT: `${epmdPort}`,
      ERL_EPMD_ADDRESS: "127.0.0.1",
      RABBITMQ_NODENAME: yield* nodeNameIn(folder),
      RABBITMQ_NODE_PORT: `${at.port}`,
      RABBITMQ_DIST_PORT: `${distributionPort}`,
      RABBITMQ_MNESIA_BASE: Path.join(folder, "mnesia"),
      RABBITMQ_LOG_BASE: Path.join(folder, "log"),
      RABBITMQ_CONFIG_FILE: Path.join(folder, "rabbitmq.conf"),
      RABBITMQ_ENABLED_PLUGINS_FILE: Path.join(folder, "enabled_plugins"),
      // No busy waiting: an idle broker must leave the processor to the others.
      RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS:
        "-kernel inet_dist_use_interface {127,0,0,1} +sbwt none +sbwtdcpu none +sbwtdio none",
      // Makes the script become the broker instead of waiting for it, so that the pid we know is the broker's.
      detached: "true"
    }

    // Erlang's name server. The broker would start one that outlives it; finding ours, it doesn't.
    yield* ServerProcess.make({
      name: "Erlang's epmd",
      folder,
      file: "epmd",
      launch: yield* withDeathSignal("KILL", {
        command: programs.epmd,
        args: ["-port", `${epmdPort}`, "-address", "127.0.0.1"]
      }),
      env,
      output: "log",
      beforeStart: Effect.void,
      isReady: () => answers(epmdPort),
      readyWithinMillis: 10_000,
      stopSignal: "SIGTERM",
      stopWithinMillis: 1000,
      killsChildren: true
    })
    const process = yield* ServerProcess.make({
      name: "RabbitMQ",
      folder,
      file: "rabbitmq",
      // The broker is made for sudden deaths.
      launch: yield* withDeathSignal("KILL", { command: programs.server, args: [] }),
      env,
      output: "log",
      beforeStart: Effect.void,
      isReady: () => at.serves,
      readyWithinMillis: 90_000,
      stopSignal: throwAway ? "SIGKILL" : "SIGTERM",
      stopWithinMillis: 9000,
      killsChildren: true
    })
    return {
      process,
      ctl: (args) => run("RabbitMQ", { command: programs.ctl, args }, env, 30_000)
    }
  })
