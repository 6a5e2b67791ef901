/**
 * The demo's servers: the user's own where the environment names them, else private ones with their data in `.data`.
 */
import * as Fs from "node:fs"
import * as Path from "node:path"
import * as Config from "effect/Config"
import * as Console from "effect/Console"
import * as Data from "effect/Data"
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import { dataFolder } from "./DemoAddress.js"
import { freePort, isFree } from "./LoopbackPorts.js"
import * as PrivatePostgres from "./PrivatePostgres.js"
import * as PrivateRabbitMq from "./PrivateRabbitMq.js"

/** A secret's file can't be read. */
class SecretFileError extends Data.TaggedError("SecretFileError")<{ readonly message: string }> {}

/** The variable, or the content of the file that its `_FILE` twin names. */
const setting = (name: string) =>
  Effect.gen(function* () {
    const value = yield* Config.option(Config.nonEmptyString(name))
    if (Option.isSome(value)) return value.value
    const file = yield* Config.option(Config.nonEmptyString(`${name}_FILE`))
    if (Option.isNone(file)) return undefined
    return yield* Effect.try({
      try: () => Fs.readFileSync(file.value, "utf8").trim(),
      catch: () => new SecretFileError({ message: `${name}_FILE: ${file.value} can't be read` })
    })
  })

export interface DemoServers {
  readonly databaseUrl: string
  readonly isPrivateDatabase: boolean
  readonly amqpUrl: string
  readonly isPrivateBroker: boolean
  /** Only of a private broker. */
  readonly managementUrl: string | undefined
  readonly healthHost: string
  readonly healthPort: number
  readonly healthUrl: string
}

const startPostgres = Effect.gen(function* () {
  yield* Console.log("Starting a private PostgreSQL...")
  const { url } = yield* PrivatePostgres.make({ folder: Path.join(dataFolder, "postgres") })
  yield* Console.log(`PostgreSQL is up: ${url}`)
  return url
})

const startRabbitMq = Effect.gen(function* () {
  yield* Console.log("Starting a private RabbitMQ...")
  const { url, managementUrl } = yield* PrivateRabbitMq.make({ folder: Path.join(dataFolder, "rabbitmq") })
  yield* Console.log(`RabbitMQ is up: ${url}`)
  return { url, managementUrl }
})

const ownRabbitMq = (url: string) =>
  Effect.as(
    Console.log("Using the RabbitMQ of AMQP_URL. The demo takes the messages off its queues there to show them."),
    { url, managementUrl: undefined }
  )

/** Starts what is needed, side by side; it stops with the scope. */
export const start = Effect.gen(function* () {
  Fs.mkdirSync(dataFolder, { recursive: true })
  const healthHost = yield* Config.string("PG_LISTENER_HEALTH_HOST").pipe(Config.withDefault("127.0.0.1"))
  const wanted = yield* Config.integer("PG_LISTENER_HEALTH_PORT").pipe(Config.withDefault(6010))
  const ownDatabaseUrl = yield* setting("DATABASE_URL")
  const ownAmqpUrl = yield* setting("AMQP_URL")
  const [databaseUrl, broker] = yield* Effect.all(
    [
      ownDatabaseUrl === undefined
        ? startPostgres
        : Effect.as(Console.log("Using the PostgreSQL of DATABASE_URL."), ownDatabaseUrl),
      ownAmqpUrl === undefined ? startRabbitMq : ownRabbitMq(ownAmqpUrl)
    ],
    { concurrency: 2 }
  )

  const isWantedFree = yield* isFree(wanted, healthHost)
  const healthPort = isWantedFree ? wanted : yield* freePort
  if (!isWantedFree) yield* Console.log(`Port ${wanted} is taken; the service's health port is ${healthPort} instead.`)
  const reachable = healthHost === "0.0.0.0" || healthHost === "::" ? "127.0.0.1" : healthHost
  const servers: DemoServers = {
    databaseUrl,
    isPrivateDatabase: ownDatabaseUrl === undefined,
    amqpUrl: broker.url,
    isPrivateBroker: ownAmqpUrl === undefined,
    managementUrl: broker.managementUrl,
    healthHost,
    healthPort,
    healthUrl: `http://${reachable.includes(":") ? `[${reachable}]` : reachable}:${healthPort}`
  }
  return servers
})

/** What to try next. The user's own database is named without its URL, which may hold a password. */
export const instructions = (servers: DemoServers, schema: string): string => {
  const { databaseUrl, healthUrl, isPrivateDatabase, managementUrl } = servers
  const psql = isPrivateDatabase ? `psql ${databaseUrl}` : 'psql "$DATABASE_URL"'
  const table = schema === "public" ? "event_outbox" : `${schema}.event_outbox`
  const lines = [
    "",
    "Everything runs. Send an event of your own from another terminal, and see it arrive here:",
    "",
    `  ${psql} -c "insert into ${table} (channel, payload) values ('campaign_click', '{\\"b\\": 1, \\"a\\": 2}')"`,
    `  ${psql} -c "notify campaign_click, '{\\"z\\": 1.0}'"`,
    "",
    "or without psql:",
    "",
    `  npm run send -- campaign_click '{"a":1}'`,
    `  npm run send -- order.created '{"order_id":1}' order 1`,
    "",
    "and look at:",
    "",
    `  ${healthUrl}/health   what the service says about itself (also /readyz and /livez)`,
    ...(managementUrl === undefined ? [] : [`  ${managementUrl}   RabbitMQ's pages (user guest, password guest)`]),
    "",
    "Ctrl-C stops everything.",
    ""
  ]
  return lines.join("\n")
}
