/**
 * The figures of the table that need SQL, for `/metrics`: how many rows are pending and dead, and how old the oldest
 * pending one is. A job beside the relay's, so that a scrape asks no server and no number of scrapers costs the database
 * anything.
 */
import { SqlClient } from "@effect/sql/SqlClient"
import * as Clock from "effect/Clock"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Metric from "effect/Metric"
import { Database } from "./Database.js"
import type { DatabaseError } from "./Errors.js"
import { type Fatal, supervised } from "./Fatal.js"
import { countedAtMost, LIMITS, lookedAtForAge, readFigures } from "./internal/gaugesSql.js"
import { monotonicMillis } from "./internal/monotonic.js"
import { outboxNames } from "./internal/outboxNames.js"
import * as Jobs from "./Jobs.js"
import * as Metrics from "./Metrics.js"
import { SchemaGate } from "./SchemaGate.js"
import { Settings } from "./Settings.js"

export interface OutboxFigures {
  readonly pending: number
  readonly dead: number
  readonly oldestPendingSeconds: number
}

/** A reading may take this part of the time at most: the next one waits until the last was worth it. */
const SHARE = 1 / 20

/**
 * Reads at once and then every so often, for ever. After a failed reading the figures stay as they were, and
 * `outbox_gauges_failed_total` and the age of `outbox_gauges_updated_timestamp_seconds` say so.
 */
export const keepUpdated = (
  read: Effect.Effect<OutboxFigures, DatabaseError>,
  every: Duration.Duration
): Effect.Effect<void> =>
  Effect.suspend(() => {
    let restMillis = 0

    const show = ({ dead, oldestPendingSeconds, pending }: OutboxFigures) =>
      Effect.gen(function* () {
        yield* Metric.set(Metrics.eventsPending, pending)
        yield* Metric.set(Metrics.eventsDead, dead)
        yield* Metric.set(Metrics.oldestPendingSeconds, oldestPendingSeconds)
        yield* Metric.set(Metrics.gaugesUpdated, (yield* Clock.currentTimeMillis) / 1000)
      })

    const update = Effect.gen(function* () {
      yield* Effect.sleep(restMillis)
      const startedMillis = yield* monotonicMillis
      const figures = yield* Effect.either(read)
      const tookMillis = (yield* monotonicMillis) - startedMillis
      restMillis = Math.max(tookMillis / SHARE - Duration.toMillis(every), 0)
      if (figures._tag === "Right") return yield* show(figures.right)
      yield* Metric.increment(Metrics.gaugesFailed)
      return yield* figures.left
    })

    // A first reading that fails is told by the next, if it fails as well.
    return Effect.zipRight(Effect.ignore(update), Jobs.spaced("reading the table's figures", every, update))
  })

interface FiguresRow {
  readonly pending: number
  readonly dead: number
  readonly oldest_seconds: number
}

/** One reading; the figures' meaning and their bounds are told in internal/gaugesSql.ts. */
export const read = Effect.gen(function* () {
  const { schema } = yield* Settings
  const database = yield* Database
  const sql = yield* SqlClient
  const figures = sql.unsafe<FiguresRow>(readFigures(outboxNames(schema)), [countedAtMost, lookedAtForAge])
  const [row] = yield* database.transaction("read the table's figures", Effect.zipRight(sql.unsafe(LIMITS), figures))
  return { pending: row?.pending ?? 0, dead: row?.dead ?? 0, oldestPendingSeconds: row?.oldest_seconds ?? 0 }
})

/** The job, from the moment on that the tables are there. */
export const layer: Layer.Layer<never, never, Settings | Database | SqlClient | SchemaGate | Fatal> =
  Layer.scopedDiscard(
    Effect.gen(function* () {
      const { gaugesInterval } = yield* Settings
      const gate = yield* SchemaGate
      const context = yield* Effect.context<Settings | Database | SqlClient>()
      yield* supervised(
        "gauges",
        Effect.zipRight(gate.awaitOpen, keepUpdated(Effect.provide(read, context), gaugesInterval))
      )
    })
  )
