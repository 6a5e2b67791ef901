/**
 * What the servers themselves say after a round: rows, markers, and who is still connected.
 */
import * as Effect from "effect/Effect"
import type { StoredRow } from "./Model.js"
import { lanes } from "./Model.js"
import { RELAY_ROLE, WORKERS, type World } from "./World.js"

const queueOf = (source: string): string =>
  lanes.find((lane) => lane.source.replace("*", "changed") === source)?.queue ?? `no queue for ${source}`

/** The rows after `seq`, in their order. */
export const rowsAfter = (world: World, seq: number) =>
  Effect.map(
    world.withSql((sql) =>
      sql.query<{
        key: string
        id: string
        seq: string
        source: string
        attempts: number
        last_error: string | null
        dead: boolean
        processed_at: number | null
        live: boolean
      }>(
        `select payload->>'key' as key, id::text, seq::text, coalesce(event_type, channel) as source, attempts, last_error,
          dead_at is not null as dead, (extract(epoch from processed_at) * 1000)::float8 as processed_at, live
        from event_outbox where seq > $1 order by seq`,
        [seq]
      )
    ),
    (rows) =>
      rows.map(
        (row): StoredRow => ({
          key: row.key,
          id: row.id,
          seq: Number(row.seq),
          queue: queueOf(row.source),
          attempts: row.attempts,
          lastError: row.last_error ?? undefined,
          dead: row.dead,
          processedAt: row.processed_at === null ? undefined : Math.round(row.processed_at),
          live: row.live
        })
      )
  )

export const lastSeq = (world: World) =>
  Effect.map(
    world.withSql((sql) => sql.query<{ seq: string | null }>("select max(seq)::text as seq from event_outbox")),
    ([row]) => Number(row?.seq ?? 0)
  )

export const pendingRows = (world: World) =>
  Effect.map(
    world.withSql((sql) =>
      sql.query<{ n: number }>(
        "select count(*)::int as n from event_outbox where processed_at is null and dead_at is null"
      )
    ),
    ([row]) => row?.n ?? 0
  )

/** The transactions of a round whose marker is there. */
export const committedTransactions = (world: World, seed: number, round: number) =>
  Effect.map(
    world.withSql((sql) =>
      sql.query<{ tx: string }>("select tx from faults_transactions where tx like $1", [`s${seed}.r${round}.w%`])
    ),
    (rows) => new Set(rows.map(({ tx }) => tx))
  )

/** Most connections that a replica may have at rest, by the role in their `application_name`; and the fewest. */
const expected: Readonly<Record<string, { readonly fewest: number; readonly most: number }>> = {
  listen: { fewest: 1, most: 1 },
  relay: { fewest: WORKERS, most: WORKERS },
  jobs: { fewest: 0, most: 4 },
  doorbell: { fewest: 0, most: 1 }
}

/** Connections that should not be there, or are missing, in words; empty when all is as expected. */
export const leaks = (world: World) =>
  Effect.gen(function* () {
    const found: Array<string> = []
    const backends = yield* world.withSql((sql) =>
      sql.query<{ name: string; n: number }>(
        "select application_name as name, count(*)::int as n from pg_stat_activity where usename = $1 group by 1",
        [RELAY_ROLE]
      )
    )
    const counts = new Map(backends.map(({ n, name }) => [name, n]))
    world.replicas.slice(0, world.replicasWanted).forEach(({ name }) => {
      for (const [role, { fewest, most }] of Object.entries(expected)) {
        const n = counts.get(`${name} ${role}`) ?? 0
        counts.delete(`${name} ${role}`)
        if (n < fewest || n > most) found.push(`PostgreSQL has ${n} backends of "${name} ${role}"`)
      }
    })
    for (const [name, n] of counts) found.push(`PostgreSQL has ${n} backends of "${name}", which nobody expects`)
    const backendsInAll = backends.reduce((sum, { n }) => sum + n, 0)
    const throughProxy = world.postgresProxy.connections()
    if (throughProxy !== backendsInAll) {
      found.push(`replicas hold ${throughProxy} connections to PostgreSQL, which has ${backendsInAll} backends of them`)
    }
    // One of the consumers.
    const atBroker = (yield* world.broker.api.connections).length - 1
    if (atBroker !== world.replicasWanted) found.push(`RabbitMQ has ${atBroker} connections of replicas`)
    const throughBrokerProxy = world.brokerProxy.connections()
    if (throughBrokerProxy !== world.replicasWanted) {
      found.push(`replicas hold ${throughBrokerProxy} connections to RabbitMQ`)
    }
    return found
  })
