/**
 * Everything a campaign runs on: a PostgreSQL, a RabbitMQ, a proxy before each, the replicas behind the proxies, and the
 * consumers beside them.
 */
import * as Fs from "node:fs"
import * as Path from "node:path"
import { fileURLToPath } from "node:url"
import * as Config from "effect/Config"
import * as Effect from "effect/Effect"
import type * as Scope from "effect/Scope"
import { freePort } from "../../dev/LoopbackPorts.js"
import type { ManagementError } from "../../dev/ManagementApi.js"
import * as PrivatePostgres from "../../dev/PrivatePostgres.js"
import * as PrivateRabbitMq from "../../dev/PrivateRabbitMq.js"
import { run } from "../../dev/RunProgram.js"
import type { ServerError } from "../../dev/ServerProcess.js"
import { type SqlClient, type SqlFailed, sqlClient } from "../support/Sql.js"
import * as Consumers from "./Consumers.js"
import { type Delivery, EXCHANGE, routes } from "./Model.js"
import * as Replicas from "./Replicas.js"
import * as TcpProxy from "./TcpProxy.js"
import * as Writers from "./Writers.js"

export const MAX_REPLICAS = 3

/** Relay workers per replica: the service's default. */
export const WORKERS = 2

/** Anything that can fail to be done to a server or a process; each has a message. */
export type WorldError = ServerError | ManagementError | SqlFailed | Consumers.ConsumersFailed | Replicas.ReplicaFailed

export interface World {
  /** Logs of the replicas and of the servers. */
  readonly folder: string
  readonly postgres: PrivatePostgres.PrivatePostgres
  readonly broker: PrivateRabbitMq.PrivateRabbitMq
  readonly postgresProxy: TcpProxy.TcpProxy
  readonly brokerProxy: TcpProxy.TcpProxy
  readonly consumers: Consumers.Consumers
  readonly replicas: ReadonlyArray<Replicas.Replica>
  /** How many of them are to run now, from the first on. */
  replicasWanted: number
  /** Direct, as a superuser. */
  readonly withSql: <A, E>(use: (sql: SqlClient) => Effect.Effect<A, E>) => Effect.Effect<A, E | SqlFailed>
  readonly urlAs: (user: string) => string
  /** What came since the last `begin`, and what faults note for the ledger. */
  notes: Notes
}

export interface Notes {
  readonly deliveries: Array<Delivery>
  readonly exits: Array<Replicas.ReplicaExit>
  readonly deletions: Array<{ readonly queue: string; readonly from: number; readonly to: number }>
  readonly brokerKilledAt: Array<number>
}

export const noNotes = (): Notes => ({ deliveries: [], exits: [], deletions: [], brokerKilledAt: [] })

/** The role that the service connects as; and one that takes connections away from it. */
export const RELAY_ROLE = "relay"
export const HOG_ROLE = "hog"

const grants = () =>
  Fs.readFileSync(fileURLToPath(new URL("../../sql/roles/grants.sql", import.meta.url)), "utf8")
    .replaceAll(':"schema"', "public")
    .replaceAll(':"relay"', RELAY_ROLE)
    .replaceAll(':"writer"', "writer")

/** A third of the commits that mark a row are refused, or take the connection down; see the fault of that name. */
const refuseCommit = `
  create function faults_refuse_commit() returns trigger language plpgsql security definer as $$
  begin
    if pg_current_xact_id()::text::bigint % 3 = 0 then
      if tg_argv[0] = 'terminate' then
        perform pg_terminate_backend(pg_backend_pid());
        perform pg_sleep(1);
      else
        raise exception 'this commit is refused';
      end if;
    end if;
    return null;
  end $$;
`

/** Also right after a restart of the broker, or a fault that took it away. */
export const declareExchange = ({ broker: { api } }: Pick<World, "broker">) =>
  Effect.zipRight(api.declareExchange(EXCHANGE, "topic"), api.bind(EXCHANGE, "via_exchange", "#"))

/** Starts it all; the replicas are down at first. Everything ends with the scope. */
export const make = (folder: string): Effect.Effect<World, WorldError, Scope.Scope> =>
  Effect.gen(function* () {
    Fs.mkdirSync(folder, { recursive: true })
    const binDir = yield* Config.string("PG_LISTENER_TEST_PG_BIN").pipe(Effect.orElseSucceed(() => undefined))
    const [postgres, broker] = yield* Effect.all(
      [
        PrivatePostgres.make({
          folder: Path.join(folder, "postgres"),
          binDir: binDir || undefined,
          settings: {
            fsync: "off",
            full_page_writes: "off",
            max_connections: "60",
            autovacuum_naptime: "5s",
            log_min_messages: "warning"
          }
        }),
        PrivateRabbitMq.make({ folder: Path.join(folder, "rabbitmq") })
      ],
      { concurrency: 2 }
    )
    const urlAs = (user: string) => postgres.url.replace("postgres@", `${user}@`)
    const withSql: World["withSql"] = (use) => Effect.scoped(Effect.flatMap(sqlClient(postgres.url, 10_000), use))
    yield* run(
      "pg-listener",
      { command: process.execPath, args: [Replicas.serviceMain, "migrate"] },
      { DATABASE_URL: postgres.url, AMQP_URL: broker.url },
      30_000
    )
    yield* withSql((sql) =>
      sql.query(
        `create role ${RELAY_ROLE} login; create role ${HOG_ROLE} login; create role writer; ${grants()}${Writers.tables}${refuseCommit}`
      )
    )
    yield* broker.api.declareQueue("via_exchange", { "x-queue-type": "classic" })
    yield* declareExchange({ broker })

    const postgresProxy = yield* TcpProxy.make({ port: yield* freePort, upstreamPort: postgres.port })
    const brokerProxy = yield* TcpProxy.make({ port: yield* freePort, upstreamPort: broker.port })
    const replicas: Array<Replicas.Replica> = []
    const world: Pick<World, "notes"> = { notes: noNotes() }
    for (let number = 1; number <= MAX_REPLICAS; number++) {
      const name = `replica-${number}`
      replicas.push(
        yield* Replicas.make({
          name,
          folder,
          healthPort: yield* freePort,
          env: {
            DATABASE_URL: `postgres://${RELAY_ROLE}@127.0.0.1:${postgresProxy.port}/postgres?application_name=${name}`,
            AMQP_URL: `amqp://guest:guest@127.0.0.1:${brokerProxy.port}`,
            PG_LISTENER_ROUTES: routes,
            PG_LISTENER_WORKERS: `${WORKERS}`,
            // Two of them silence the doorbell again and again at this load, the third one next to never.
            PG_LISTENER_BUSY_THRESHOLD: number < MAX_REPLICAS ? "30" : "200",
            // No fault here lasts long enough to make a dead letter.
            PG_LISTENER_MAX_ATTEMPTS: "100"
          },
          onExit: (exit) => world.notes.exits.push(exit)
        })
      )
    }
    const consumers = yield* Consumers.make(broker.url, (delivery) => world.notes.deliveries.push(delivery))
    return Object.assign(world, {
      folder,
      postgres,
      broker,
      postgresProxy,
      brokerProxy,
      replicas,
      consumers,
      withSql,
      urlAs,
      replicasWanted: 0
    })
  })

/** Whatever faults have left behind is mended; servers and replicas run again. Safe to repeat. */
export const healAll = (world: World): Effect.Effect<void, WorldError> =>
  Effect.gen(function* () {
    const { broker, brokerProxy, consumers, postgres, postgresProxy, replicas, replicasWanted } = world
    yield* Effect.all([Effect.ignore(postgres.resume), Effect.ignore(broker.resume)])
    yield* Effect.all([postgres.start, broker.start], { concurrency: 2 })
    yield* Effect.all([postgresProxy.heal("reset"), brokerProxy.heal("reset")])
    yield* world.withSql((sql) => sql.query("drop trigger if exists faults_refuse_commit on event_outbox"))
    yield* broker.api.setPermissions({ configure: ".*", write: ".*", read: ".*" })
    yield* Effect.ignore(broker.api.deletePolicy("faults_full"))
    yield* declareExchange(world)
    yield* consumers.resume("small")
    for (const replica of replicas.slice(0, replicasWanted)) {
      yield* replica.signal("SIGCONT")
      yield* replica.start
    }
  }).pipe(Effect.retry({ times: 20, while: () => Effect.as(Effect.sleep("500 millis"), true) }))

/** Starts or stops replicas until so many run. */
export const scale = (world: World, wanted: number): Effect.Effect<void, WorldError> =>
  Effect.gen(function* () {
    world.replicasWanted = wanted
    yield* Effect.forEach(
      world.replicas,
      (replica, index) => (index < wanted ? replica.start : replica.end("SIGTERM", 25_000)),
      { concurrency: "unbounded", discard: true }
    )
  })
