/**
 * How long the service's claims take, by PostgreSQL's own clock (`pg_stat_statements`).
 */
import * as Effect from "effect/Effect"
import type { BenchError } from "./BenchError.js"
import { type Drained, type DrainOptions, drainOn, fill } from "./Draining.js"
import { pgListener } from "./PgListener.js"
import type { Site, World } from "./World.js"

/** The claims of one drain. */
export interface Claims {
  readonly calls: number
  /** Milliseconds each, on average. */
  readonly mean: number
  /** Those among them that began at the bottom of the table (full claims), and their own average. */
  readonly fullCalls: number
  readonly fullMean: number
}

export interface DrainedWithClaims extends Drained {
  readonly claims: Claims
}

interface Totals {
  readonly calls: number
  readonly millis: number
  readonly full_calls: number
  readonly full_millis: number
}

/** Of a database, since it was created. */
const totalsOf = (world: World, { database }: Site) =>
  Effect.map(
    world.query<Totals>(
      `select coalesce(sum(calls), 0)::float8 as calls, coalesce(sum(total_exec_time), 0)::float8 as millis,
         coalesce(sum(calls) filter (where query like '%due as materialized%'), 0)::float8 as full_calls,
         coalesce(sum(total_exec_time) filter (where query like '%due as materialized%'), 0)::float8 as full_millis
       from pg_stat_statements
       where dbid = (select oid from pg_database where datname = '${database}')
         and query like '%with ready as materialized%'`
    ),
    ([row]) => row ?? { calls: 0, millis: 0, full_calls: 0, full_millis: 0 }
  )

/** Fills, drains, and says what the claims took. */
export const drainWithClaims = (
  world: World,
  site: Site,
  options: DrainOptions
): Effect.Effect<DrainedWithClaims, BenchError> =>
  Effect.gen(function* () {
    const contender = pgListener()
    yield* fill(contender, site, options.events, options.queues)
    const before = yield* totalsOf(world, site)
    const drained = yield* drainOn(world, contender, site, options)
    const after = yield* totalsOf(world, site)
    const calls = after.calls - before.calls
    const fullCalls = after.full_calls - before.full_calls
    return {
      ...drained,
      claims: {
        calls,
        mean: (after.millis - before.millis) / calls,
        fullCalls,
        fullMean: (after.full_millis - before.full_millis) / fullCalls
      }
    }
  })
