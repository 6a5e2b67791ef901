/**
 * Where everything is measured: a PostgreSQL and a RabbitMQ of our own, and for each run a fresh database and a fresh vhost.
 */
import { execFileSync } from "node:child_process"
import * as Fs from "node:fs"
import * as Os from "node:os"
import * as Path from "node:path"
import { fileURLToPath } from "node:url"
import * as Amqp from "amqplib"
import * as Effect from "effect/Effect"
import type * as Scope from "effect/Scope"
import type { ManagementApi } from "../dev/ManagementApi.js"
import * as PrivatePostgres from "../dev/PrivatePostgres.js"
import * as PrivateRabbitMq from "../dev/PrivateRabbitMq.js"
import { type SqlClient, type SqlFailed, sqlClient } from "../test/support/Sql.js"
import { BenchError } from "./BenchError.js"
import * as Cpu from "./Cpu.js"

/** A database and a vhost for one run. */
export interface Site {
  readonly databaseUrl: string
  readonly database: string
  readonly amqpUrl: string
  readonly api: ManagementApi
  /** For logs and profiles. */
  readonly folder: string
}

export interface World {
  readonly folder: string
  readonly machine: Readonly<Record<string, string | number>>
  /** The built service that is measured. */
  readonly serviceMain: string
  /** Of both servers; one more for the contender. */
  readonly accounts: (contenderPids: ReadonlyArray<number>) => Record<string, Cpu.Account>
  readonly freshSite: Effect.Effect<Site, BenchError, Scope.Scope>
  /** A session in the database `postgres`, as superuser. */
  readonly query: <R>(statement: string) => Effect.Effect<ReadonlyArray<R>, BenchError>
  /** Waits until strangers leave the machine alone, 15 s at most. */
  readonly awaitQuiet: Effect.Effect<void>
}

/** Long enough for ten million rows. */
const longestStatementMillis = 900_000

export const failedSql = (error: SqlFailed) => new BenchError({ what: "SQL", reason: error.message })

/** A session of our own, on a run's database. */
export const sqlOn = (url: string): Effect.Effect<SqlClient, BenchError, Scope.Scope> =>
  Effect.mapError(sqlClient(url, longestStatementMillis), failedSql)

/** Runs statements one after the other on a session of their own. */
export const runOn = (site: Site, statements: ReadonlyArray<string>): Effect.Effect<void, BenchError> =>
  Effect.scoped(
    Effect.flatMap(sqlOn(site.databaseUrl), ({ query }) =>
      Effect.forEach(statements, (statement) => Effect.mapError(query(statement), failedSql), { discard: true })
    )
  )

/** Settings as for a small production server; durability is PostgreSQL's default. */
const postgresSettings = {
  max_connections: "200",
  shared_buffers: "512MB",
  max_wal_size: "8GB",
  checkpoint_timeout: "15min",
  // For a contender that reads the log.
  wal_level: "logical",
  shared_preload_libraries: "pg_stat_statements"
}

const rabbitSettings = { "vm_memory_high_watermark.absolute": "4GB" }

/** Milliseconds that a write to this folder takes to be on disk. */
const fsyncMillis = (folder: string): number => {
  const file = Path.join(folder, "fsync")
  const descriptor = Fs.openSync(file, "w")
  const times = Array.from({ length: 200 }, () => {
    const started = performance.now()
    Fs.writeSync(descriptor, Buffer.alloc(8192), 0, 8192, 0)
    Fs.fdatasyncSync(descriptor)
    return performance.now() - started
  }).sort((a, b) => a - b)
  Fs.closeSync(descriptor)
  Fs.rmSync(file)
  return Number((times[100] ?? Number.NaN).toFixed(3))
}

const describeMachine = (folder: string, postgres: string, rabbitMq: string) => ({
  processor: Os.cpus()[0]?.model ?? "unknown",
  cores: Os.cpus().length,
  memoryGigabytes: Math.round(Os.totalmem() / 2 ** 30),
  system: `${Os.type()} ${Os.release()}`,
  node: process.version,
  postgres,
  rabbitMq,
  fsyncMillis: fsyncMillis(folder)
})

const versionOf = (amqpUrl: string) =>
  Effect.tryPromise({
    try: async () => {
      const connection = await Amqp.connect(amqpUrl)
      const { version } = connection.connection.serverProperties
      await connection.close()
      return version
    },
    catch: (error) => new BenchError({ what: "RabbitMQ", reason: `${error}` })
  })

/** The commit that is measured, for the reader of the results. */
const commit = (): string => {
  try {
    const root = fileURLToPath(new URL("..", import.meta.url))
    return execFileSync("git", ["-C", root, "describe", "--always", "--dirty"], { encoding: "utf8" }).trim()
  } catch {
    return "unknown"
  }
}

/** Starts it all in the folder; it ends with the scope. */
export const make = (options: {
  readonly folder: string
  readonly serviceMain: string
}): Effect.Effect<World, BenchError, Scope.Scope> =>
  Effect.gen(function* () {
    const { folder, serviceMain } = options
    Fs.mkdirSync(folder, { recursive: true })
    const [postgres, rabbitMq] = yield* Effect.all(
      [
        PrivatePostgres.make({ folder: Path.join(folder, "postgres"), settings: postgresSettings }),
        PrivateRabbitMq.make({ folder: Path.join(folder, "rabbitmq"), throwAway: true, settings: rabbitSettings })
      ],
      { concurrency: 2 }
    ).pipe(Effect.mapError(({ message, server }) => new BenchError({ what: server, reason: message })))
    const [postgresPid, rabbitMqPid] = yield* Effect.all([postgres.pid, rabbitMq.pid]).pipe(
      Effect.mapError(({ message, server }) => new BenchError({ what: server, reason: message }))
    )
    const sql = yield* sqlOn(postgres.url)
    const query = <R>(statement: string) => Effect.mapError(sql.query<R>(statement), failedSql)
    const [version] = yield* query<{ server_version: string }>("show server_version")
    yield* query("create extension if not exists pg_stat_statements")
    const rabbitMqVersion = yield* versionOf(rabbitMq.url)

    const accounts = (contenderPids: ReadonlyArray<number>) => ({
      postgres: { pid: postgresPid, tree: true },
      rabbitMq: { pid: rabbitMqPid, tree: true },
      ...Object.fromEntries(contenderPids.map((pid, index) => [`node${index}`, { pid, tree: false }]))
    })

    let sites = 0
    const freshSite = Effect.gen(function* () {
      const name = `bench_${++sites}`
      const api = rabbitMq.api.forVhost(name)
      const siteFolder = Path.join(folder, "runs", name)
      Fs.mkdirSync(siteFolder, { recursive: true })
      yield* Effect.acquireRelease(query(`create database ${name}`), () =>
        Effect.ignoreLogged(
          Effect.zipRight(
            query(
              `select pg_drop_replication_slot(slot_name) from pg_replication_slots where database = '${name}' and not active`
            ),
            query(`drop database ${name} with (force)`)
          )
        )
      )
      yield* Effect.acquireRelease(
        Effect.mapError(api.createVhost, ({ message }) => new BenchError({ what: "RabbitMQ", reason: message })),
        () => Effect.ignoreLogged(api.deleteVhost)
      )
      return {
        database: name,
        databaseUrl: postgres.urlOf(name),
        amqpUrl: rabbitMq.urlOf(name),
        api,
        folder: siteFolder
      }
    })

    const awaitQuiet = Effect.gen(function* () {
      const from = Cpu.mark(accounts([]))
      yield* Effect.sleep("500 millis")
      return Cpu.between(from, Cpu.mark(accounts([]))).otherCores
    }).pipe(Effect.repeat({ until: (cores) => !(cores > 0.25) }), Effect.timeoutOption("15 seconds"), Effect.asVoid)

    return {
      folder,
      serviceMain,
      query,
      accounts,
      freshSite,
      awaitQuiet,
      machine: {
        ...describeMachine(folder, version?.server_version ?? "unknown", rabbitMqVersion),
        commit: commit()
      }
    }
  })
