/**
 * The outbox on a database of its own, and a plain session beside it.
 */
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Schedule from "effect/Schedule"
import type * as Scope from "effect/Scope"
import { Database } from "../../src/Database.js"
import { Outbox, type OutboxWorker } from "../../src/Outbox.js"
import { PgConnector } from "../../src/PgConnector.js"
import { Settings } from "../../src/Settings.js"
import { freshDatabase, migratedDatabase } from "./Servers.js"
import { type SqlClient, type SqlFailed, sqlClient } from "./Sql.js"

export type Environment = Readonly<Record<string, string>>

/** Settings for a database; nothing connects to the broker here. */
export const settingsLayer = (url: string, environment: Environment = {}) =>
  Layer.orDie(Settings.layerFrom({ DATABASE_URL: url, AMQP_URL: "amqp://127.0.0.1:1", ...environment }))

export const outboxLayer = (url: string, environment: Environment = {}) =>
  Outbox.layer.pipe(
    Layer.provide(Database.layer),
    Layer.provide(PgConnector.layer),
    Layer.provide(settingsLayer(url, environment))
  )

/** An outbox as one process has it: with a low-water mark of its own. */
export const openOutbox = (
  url: string,
  environment: Environment = {}
): Effect.Effect<Outbox["Type"], never, Scope.Scope> =>
  Effect.map(Layer.build(outboxLayer(url, environment)), Context.get(Outbox))

export interface Lab {
  readonly url: string
  readonly outbox: Outbox["Type"]
  readonly sql: SqlClient
}

export const labOn = (url: string, environment: Environment = {}): Effect.Effect<Lab, SqlFailed, Scope.Scope> =>
  Effect.all({ url: Effect.succeed(url), sql: sqlClient(url), outbox: openOutbox(url, environment) })

export const lab = (environment: Environment = {}): Effect.Effect<Lab, SqlFailed, Scope.Scope> =>
  Effect.flatMap(migratedDatabase, ({ url }) => labOn(url, environment))

/** Without tables. */
export const emptyLab = (environment: Environment = {}): Effect.Effect<Lab, SqlFailed, Scope.Scope> =>
  Effect.flatMap(freshDatabase, ({ url }) => labOn(url, environment))

/** Inserts one row per aggregate id (null for none), in order; the first one of a new table has `seq` 1. */
export const insertEvents = (sql: SqlClient, aggregateIds: ReadonlyArray<string | null>) =>
  sql.query(
    `insert into event_outbox (event_type, aggregate_type, aggregate_id, payload)
     select 'thing.changed', 'thing', a.id, jsonb_build_object('n', a.place)
     from unnest($1::text[]) with ordinality a (id, place) order by a.place`,
    [aggregateIds]
  )

/** The `seq`s of one claim. */
export const claimSeqs = (worker: OutboxWorker, options: { readonly limit?: number; readonly full?: boolean } = {}) =>
  Effect.map(worker.claim({ limit: options.limit ?? 100, full: options.full ?? false }), ({ rows }) =>
    rows.map(({ seq }) => seq)
  )

export const settleAll = (worker: OutboxWorker, seqs: ReadonlyArray<string>) =>
  worker.settle({ processed: seqs, failed: [] })

export const failAll = (worker: OutboxWorker, seqs: ReadonlyArray<string>, reason = "refused") =>
  worker.settle({ processed: [], failed: seqs.map((seq) => ({ seq, reason, dead: false })) })

/** Looks again every few milliseconds until the statement's one boolean is true; gives up after ten seconds. */
export const until = (sql: SqlClient, condition: string, values: ReadonlyArray<unknown> = []) =>
  sql
    .query<{ readonly done: boolean }>(`select (${condition}) as done`, values)
    .pipe(
      Effect.repeat({ schedule: Schedule.spaced("5 millis"), until: ([row]) => row?.done === true }),
      Effect.timeout("10 seconds"),
      Effect.asVoid
    )
