/**
 * The table's figures for `/metrics`, from the partial indexes alone: however many processed rows are kept, none is looked
 * at.
 *
 * The work has a bound. Ready rows and dead letters are counted up to a limit; what is beyond it is estimated from the
 * span of `seq` up to the last one, as full as the counted part is. A broker's outage leaves rows without a gap, so the
 * estimate is then nearly exact; and it only grows while rows only come. Rows that wait for their retry are in no such
 * order: beyond the limit they are not counted.
 *
 * Measured (PostgreSQL 18, 2 cores, 1.5 million processed rows): 0.1 ms with nothing pending, 30 ms with 600,000 pending,
 * 90 ms with more than the limit of each kind; and 0.3 to 0.6 s with 600,000 dead index entries under an old snapshot.
 */
import type { OutboxNames } from "./outboxNames.js"

/** Rows of each kind that are counted one by one. */
export const countedAtMost = 100_000

/** Among so many rows with the lowest `seq` the oldest is looked for: a long transaction may have older ones further up. */
export const lookedAtForAge = 1_000

/**
 * For the transaction around {@link readFigures}. With an index full of entries that an old snapshot keeps from being
 * removed even a bounded count may take long, and a figure is not worth that.
 */
export const LIMITS = `
select set_config('statement_timeout', '5s', true), set_config('enable_seqscan', 'off', true),
  set_config('enable_bitmapscan', 'off', true), set_config('jit', 'off', true),
  set_config('max_parallel_workers_per_gather', '0', true)`

const READY = "o.processed_at is null and o.dead_at is null and o.retry_after is null"
const WAITING = "o.processed_at is null and o.dead_at is null and o.retry_after is not null and o.attempts >= 0"
const DEAD = "o.dead_at is not null and o.processed_at is null"

/** $1: rows to count one by one. One row: how many, exact below the limit. */
const counted = ({ outbox }: OutboxNames, condition: string): string => `
select case when c.rows < $1::integer then c.rows::float8
  else c.rows + round(
    ((select max(o.seq) from ${outbox} o where ${condition}) - c.last)::float8 * c.rows / (c.last - c.first + 1)
  ) end as rows
from (
  select count(*) as rows, min(i.seq) as first, max(i.seq) as last
  from (select o.seq from ${outbox} o where ${condition} order by o.seq limit $1::integer) i
) c`

/** $1: {@link countedAtMost}, $2: {@link lookedAtForAge}. */
export const readFigures = (names: OutboxNames): string => `
select ready.rows + waiting.rows as pending, dead.rows as dead,
  coalesce(greatest(extract(epoch from clock_timestamp() - least(first.oldest, waiting.oldest)), 0), 0)::float8
    as oldest_seconds
from (${counted(names, READY)}) ready,
(${counted(names, DEAD)}) dead,
(
  select count(*)::float8 as rows, min(w.created_at) as oldest
  from (select o.created_at from ${names.outbox} o where ${WAITING} order by o.retry_after limit $1::integer) w
) waiting,
(
  select min(f.created_at) as oldest
  from (select o.created_at from ${names.outbox} o where ${READY} order by o.seq limit $2::integer) f
) first`
