/**
 * Real servers for live tests: a database or a vhost of one's own on the run's shared servers, or whole servers of one's
 * own for the tests that kill and freeze them.
 *
 * They work in real time: use `it.live` or `it.scopedLive`. Tests run side by side, so a test touches nothing that the
 * shared servers have only once: roles (name them after the database), alarms, server settings.
 */
import * as Fs from "node:fs"
import * as Path from "node:path"
import { fileURLToPath } from "node:url"
import * as Effect from "effect/Effect"
import * as Random from "effect/Random"
import type * as Scope from "effect/Scope"
import { inject } from "vitest"
import * as ManagementApi from "../../dev/ManagementApi.js"
import * as PrivatePostgres from "../../dev/PrivatePostgres.js"
import * as PrivateRabbitMq from "../../dev/PrivateRabbitMq.js"
import { sqlClient } from "./Sql.js"

const sqlFolder = fileURLToPath(new URL("../../sql/", import.meta.url))

const uniqueName = (prefix: string) =>
  Effect.map(Random.nextIntBetween(0, 2 ** 40), (n) => `${prefix}_${process.pid}_${n.toString(36)}`)

export interface TestDatabase {
  readonly url: string
  readonly name: string
}

/** A new, empty database on the shared server; dropped with the scope, whoever is still connected. */
export const freshDatabase: Effect.Effect<TestDatabase, never, Scope.Scope> = Effect.gen(function* () {
  const serverUrl = inject("postgresUrl")
  const name = yield* uniqueName("test")
  const asAdmin = (statement: string) =>
    Effect.scoped(Effect.flatMap(sqlClient(serverUrl), ({ query }) => query(statement))).pipe(Effect.orDie)
  yield* Effect.acquireRelease(asAdmin(`CREATE DATABASE ${name}`), () =>
    asAdmin(`DROP DATABASE IF EXISTS ${name} WITH (FORCE)`)
  )
  return { name, url: Object.assign(new URL(serverUrl), { pathname: `/${name}` }).href }
})

/** Runs the files of `sql/` in order, each as one simple query with `search_path` public. */
export const migrate = (url: string): Effect.Effect<void> =>
  Effect.gen(function* () {
    const { query } = yield* sqlClient(url)
    const files = Fs.readdirSync(sqlFolder).filter((file) => file.endsWith(".sql"))
    for (const file of files.sort()) {
      yield* query("SET search_path = public")
      yield* query(Fs.readFileSync(Path.join(sqlFolder, file), "utf8"))
    }
  }).pipe(Effect.scoped, Effect.orDie)

/** {@link freshDatabase} with the tables of `sql/` in schema `public`. */
export const migratedDatabase: Effect.Effect<TestDatabase, never, Scope.Scope> = Effect.tap(freshDatabase, ({ url }) =>
  migrate(url)
)

export interface TestVhost {
  /** `amqp://guest:guest@127.0.0.1:port/vhost` */
  readonly url: string
  readonly name: string
  /** Bound to this vhost. */
  readonly api: ManagementApi.ManagementApi
}

/** A new vhost on the shared broker; deleted with the scope, which closes every connection to it. */
export const freshVhost: Effect.Effect<TestVhost, never, Scope.Scope> = Effect.gen(function* () {
  const name = yield* uniqueName("test")
  const api = ManagementApi.make(inject("managementUrl"), name)
  yield* Effect.acquireRelease(Effect.orDie(api.createVhost), () => Effect.ignoreLogged(api.deleteVhost))
  return { name, api, url: `${inject("amqpUrl")}/${name}` }
})

const ownFolder = (prefix: string) =>
  Effect.acquireRelease(
    Effect.map(uniqueName(prefix), (name) => Path.join(inject("serversFolder"), name)),
    (folder) => Effect.sync(() => Fs.rmSync(folder, { recursive: true, force: true, maxRetries: 3 }))
  )

/** A PostgreSQL for this test alone (about a second to start). Its database `postgres` is empty; see {@link migrate}. */
export const privatePostgres = (
  settings: Readonly<Record<string, string>> = {}
): Effect.Effect<PrivatePostgres.PrivatePostgres, never, Scope.Scope> =>
  ownFolder("postgres").pipe(
    Effect.flatMap((folder) =>
      PrivatePostgres.make({ folder, throwAway: true, settings, binDir: inject("postgresBinDir") || undefined })
    ),
    Effect.orDie
  )

/** A RabbitMQ for this test alone (some five seconds to start, and again after each kill). */
export const privateRabbitMq = (
  settings: Readonly<Record<string, string>> = {}
): Effect.Effect<PrivateRabbitMq.PrivateRabbitMq, never, Scope.Scope> =>
  ownFolder("rabbitmq").pipe(
    Effect.flatMap((folder) => PrivateRabbitMq.make({ folder, throwAway: true, settings })),
    Effect.orDie
  )
