/**
 * What is measured: something that takes events from a table and publishes them with confirms.
 */
import * as Fs from "node:fs"
import * as Path from "node:path"
import { fileURLToPath } from "node:url"
import * as Effect from "effect/Effect"
import type * as Scope from "effect/Scope"
import type { BenchError } from "./BenchError.js"
import * as Program from "./Program.js"
import { runOn, type Site, type World } from "./World.js"

export interface Contender {
  readonly name: string
  /** How it is set, for the reader of the table. */
  readonly how: string
  /** Queues it can publish to. A run uses the first, or all. */
  readonly queues: ReadonlyArray<string>
  /** Creates its tables. */
  readonly setUp: (world: World, site: Site) => Effect.Effect<void, BenchError>
  /** A statement that writes pending events in equal parts for the first `queues` queues. */
  readonly fill: (events: number, queues: number) => string
  /** A statement that writes one event for the first queue, as an application does; `$1` is the phase, a text. */
  readonly insert: string
  /** The tables that hold the events, for VACUUM and for their sizes. */
  readonly table: string
  /** A condition on rows of `table` that are not delivered yet. */
  readonly pending: string
  /** Starts a process; it runs until the scope ends. The answer comes once it is ready. */
  readonly start: (world: World, site: Site, options?: StartOptions) => Effect.Effect<Started, BenchError, Scope.Scope>
}

export interface StartOptions {
  /** Settings of the service; other contenders have none. */
  readonly env?: Readonly<Record<string, string>>
  /** Writes a CPU profile into the site's folder. */
  readonly profile?: boolean
}

export interface Started {
  readonly pid: number
}

/**
 * The body of an event, about 300 bytes as text. `at` is the clock at the INSERT; the consumer tells the event's age by it.
 */
export const payload = (phase: string): string =>
  `jsonb_build_object('at', extract(epoch from clock_timestamp()), 'phase', ${phase}, 'customer', gen_random_uuid(), 'note', repeat('x', 190))`

/** Node's options for a CPU profile. */
export const profiling = (site: Site, name: string): ReadonlyArray<string> => [
  "--cpu-prof",
  `--cpu-prof-dir=${Path.join(site.folder, "profiles", name)}`
]

const queue = "bench.queue"

/** A contender that is one of `programs/`. */
const program = (
  options: Omit<Contender, "setUp" | "start" | "queues"> & {
    readonly program: string
    readonly arguments: object
    readonly queues?: ReadonlyArray<string>
    readonly setUp?: Contender["setUp"]
  }
): Contender => {
  const { program, arguments: extra, queues = [queue], ...rest } = options
  const start = (site: Site, setUp: boolean, profile = false) =>
    Program.start({
      program,
      arguments: { databaseUrl: site.databaseUrl, amqpUrl: site.amqpUrl, queue, setUp, ...extra },
      logFile: Path.join(site.folder, `${program}.log`),
      nodeOptions: profile ? profiling(site, program) : []
    })
  return {
    setUp: (_, site) => Effect.scoped(Effect.asVoid(start(site, true))),
    ...rest,
    queues,
    start: (_, site, { profile = false } = {}) => start(site, false, profile)
  }
}

const referenceTable = Fs.readFileSync(fileURLToPath(new URL("programs/reference.sql", import.meta.url)), "utf8")

const referenceQueues = [1, 2, 3, 4, 5].map((n) => `bench.queue.${n}`)

export const reference: Contender = program({
  name: "reference",
  how: "plain pg and amqplib, no order; batch 200, 2 loops",
  program: "reference",
  arguments: {},
  queues: referenceQueues,
  setUp: (_, site) => runOn(site, [referenceTable]),
  table: "reference_outbox",
  pending: "delivered_at is null",
  fill: (events, queues) => `
    insert into reference_outbox (queue, payload)
    select 'bench.queue.' || (1 + i % ${queues}), ${payload("'fill'")} from generate_series(1, ${events}) i`,
  insert: `insert into reference_outbox (queue, payload) values ('bench.queue.1', ${payload("$1::text")})`
})

const graphileWorker = {
  program: "graphileWorker",
  table: "graphile_worker._private_jobs",
  pending: "true",
  fill: (events: number) => `
    select count(*) from graphile_worker.add_jobs(array(
      select row('publish', ${payload("'fill'")}::json, null, null, null, null, null, null)::graphile_worker.job_spec
      from generate_series(1, ${events})
    ))`,
  insert: `select graphile_worker.add_job('publish', ${payload("$1::text")}::json)`
}

const pgTransactionalOutbox = {
  program: "pgTransactionalOutbox",
  table: "pgto.outbox",
  pending: "processed_at is null",
  fill: (events: number) => `
    insert into pgto.outbox (id, aggregate_type, aggregate_id, message_type, concurrency, payload)
    select gen_random_uuid(), 'order', 'a', 'event', 'parallel', ${payload("'fill'")}
    from generate_series(1, ${events})`,
  insert: `
    insert into pgto.outbox (id, aggregate_type, aggregate_id, message_type, concurrency, payload)
    values (gen_random_uuid(), 'order', 'a', 'event', 'parallel', ${payload("$1::text")})`
}

export const peers: ReadonlyArray<Contender> = [
  program({
    ...graphileWorker,
    name: "graphile-worker tuned",
    how: "0.17.3; 200 jobs at a time, local queue of 500, completion in batches",
    arguments: { tuned: true }
  }),
  program({
    ...graphileWorker,
    name: "graphile-worker",
    how: "0.17.3; 50 jobs at a time",
    arguments: { tuned: false }
  }),
  program({
    name: "pg-boss",
    how: "10.4.2; batch 2000, 2 workers, polls every 0.5 s",
    program: "pgBoss",
    arguments: {},
    table: "pgboss.job",
    pending: "name = 'relay' and state < 'completed'",
    fill: (events) => `
      insert into pgboss.job (name, data, policy)
      select 'relay', ${payload("'fill'")}, 'standard' from generate_series(1, ${events})`,
    insert: `insert into pgboss.job (name, data, policy) values ('relay', ${payload("$1::text")}, 'standard')`
  }),
  program({
    ...pgTransactionalOutbox,
    name: "pg-transactional-outbox, polling",
    how: "0.5.7; batch 200, polls every 50 ms",
    arguments: { replication: false }
  }),
  program({
    ...pgTransactionalOutbox,
    name: "pg-transactional-outbox, replication",
    how: "0.5.7; 50 messages at a time",
    arguments: { replication: true }
  })
]
