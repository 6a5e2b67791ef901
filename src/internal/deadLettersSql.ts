/**
 * The statements on dead letters. All but the look-ups by id walk `event_outbox_dead`, which holds dead letters and nothing
 * else, in `seq` order; an id is found by the key on `id`. So none of them looks at the rows that are kept.
 *
 * The parameters $1 to $11 are a filter, the same in each statement ({@link filterValues}); null means any.
 */
import type { DeadLetterFilter, Moment } from "../DeadLetters.js"
import type { OutboxNames } from "./outboxNames.js"

/** For each change: rows that others change meanwhile are to be waited for, and looked at again in their newest version. */
export const READ_COMMITTED = "set transaction isolation level read committed, read write"

const DEAD = "o.dead_at is not null and o.processed_at is null"

/**
 * `least` and `greatest` pass over nulls. $10 and $11 are pairs of channel and event type, as {@link routeKeys} writes them.
 */
const MATCHES = `${DEAD}
    and ($1::text is null or o.channel = $1)
    and ($2::text is null or o.event_type = $2)
    and ($3::text is null or o.aggregate_type = $3)
    and ($4::text is null or o.aggregate_id = $4)
    and ($5::text is null or strpos(lower(o.last_error), lower($5)) > 0)
    and coalesce(o.dead_at <= least($6::timestamptz, now() - $7::interval), true)
    and coalesce(o.dead_at >= greatest($8::timestamptz, now() - $9::interval), true)
    and (
      $10::text[] is null
      or (coalesce(o.channel, ''), coalesce(o.event_type, '')) in (select * from unnest($10, $11::text[]))
    )`

/** A channel and an event type that a dead letter has; empty for none. */
export interface RouteKeyText {
  readonly channel: string
  readonly type: string
}

/** What fills $1 to $11. `keys`: only rows with one of these. */
export const filterValues = (
  filter: DeadLetterFilter,
  keys: ReadonlyArray<RouteKeyText> | undefined
): ReadonlyArray<unknown> => [
  filter.channel ?? null,
  filter.eventType ?? null,
  filter.aggregateType ?? null,
  filter.aggregateId ?? null,
  filter.error ?? null,
  ...momentValues(filter.olderThan),
  ...momentValues(filter.newerThan),
  keys === undefined ? null : keys.map(({ channel }) => channel),
  keys === undefined ? null : keys.map(({ type }) => type)
]

const momentValues = (moment: Moment | undefined): readonly [at: string | null, age: string | null] => [
  moment?.kind === "at" ? moment.iso : null,
  moment?.kind === "age" ? `${moment.millis} milliseconds` : null
]

/** A time as JSON has it, with PostgreSQL's microseconds. */
const iso = (column: string) => `to_char(${column} at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')`

/** Nobody can send an event type of more than 255 bytes; what there is shows in the reason. */
const SUMMARY = `o.seq::text as seq, o.id::text as id, o.channel, left(o.event_type, 1000) as "eventType",
  o.aggregate_type as "aggregateType", o.aggregate_id as "aggregateId", o.attempts, o.last_error as "lastError",
  ${iso("o.created_at")} as "createdAt", ${iso("o.dead_at")} as "deadAt"`

/** $12: rows after this `seq`, in the list's direction, or null; $13: how many. */
export const listOldestFirst = ({ outbox }: OutboxNames): string => `
select ${SUMMARY}
from ${outbox} o
where ${MATCHES}
  and o.seq > coalesce($12::bigint, 0)
order by o.seq
limit $13::integer`

export const listNewestFirst = ({ outbox }: OutboxNames): string => `
select ${SUMMARY}
from ${outbox} o
where ${MATCHES}
  and o.seq < coalesce($12::bigint, 9223372036854775807)
order by o.seq desc
limit $13::integer`

/** $1: id. The row whatever its state, without its payload. */
export const findRow = ({ outbox }: OutboxNames): string => `
select ${SUMMARY}, o.headers::text as headers,
  case when o.processed_at is not null then 'processed' when o.dead_at is null then 'pending' else 'dead' end as state
from ${outbox} o
where o.id = $1::uuid`

/**
 * The channels and event types of dead letters, each pair once. Types that are too long for AMQP are left out: they lead
 * nowhere.
 */
export const routeKeys = ({ outbox }: OutboxNames): string => `
select distinct coalesce(o.channel, '') as channel, coalesce(o.event_type, '') as type
from ${outbox} o
where ${DEAD} and coalesce(octet_length(o.event_type), 0) <= 255`

/** Who acts on many rows acts on those that are dead by now; rows that die again meanwhile are not among them. */
export const NOW = "select clock_timestamp()::text as now"

/**
 * Pending again. Found among the retries, which have no low-water mark; and while it waits there, later rows of its
 * aggregate wait for it. The last error stays, as history.
 */
const REVIVE = "attempts = 0, retry_after = now(), dead_at = null"

const REF = `o.seq::text as seq, o.id::text as id, o.channel, left(o.event_type, 1000) as "eventType",
  o.aggregate_type as "aggregateType", o.aggregate_id as "aggregateId"`

/** By the key of `id` first: offered the id beside the condition, the planner may walk all dead letters to find it. */
const withId = ({ outbox }: OutboxNames): string => `o.seq = (select i.seq from ${outbox} i where i.id = $1::uuid)`

/** $1: id. No row when it is no dead letter (any more). */
export const retryOne = (names: OutboxNames): string => `
update ${names.outbox} o set ${REVIVE}
where ${withId(names)} and ${DEAD}
returning ${REF}`

/** $1: id. No row when it is no dead letter (any more). */
export const discardOne = (names: OutboxNames): string => `
delete from ${names.outbox} o
where ${withId(names)} and ${DEAD}
returning ${REF}`

/**
 * $12: rows after this `seq`, $13: how many, $14: dead until then. In `seq` order and not skipping what another operator has
 * in hand: who comes second waits, and revives nothing that is later in an aggregate than a row still being revived.
 */
const letters = ({ outbox }: OutboxNames): string => `
letters as materialized (
  select o.seq
  from ${outbox} o
  where ${MATCHES}
    and o.seq > $12::bigint and o.dead_at <= $14::timestamptz
  order by o.seq
  limit $13::integer
  for update of o
)`

/** How many rows a step changed, and the last of them. Fewer than asked for means that there are no more. */
const TALLY = "select count(*)::integer as done, max(c.seq)::text as last from changed c"

export const retryStep = (names: OutboxNames): string => `
with ${letters(names)},
changed as (
  update ${names.outbox} o set ${REVIVE}
  where o.seq = any(array(select l.seq from letters l)) and ${DEAD}
  returning o.seq
)
${TALLY}`

export const discardStep = (names: OutboxNames): string => `
with ${letters(names)},
changed as (
  delete from ${names.outbox} o
  where o.seq = any(array(select l.seq from letters l)) and ${DEAD}
  returning o.seq
)
${TALLY}`

/** $1: wake channel, $2: payload. */
export const NOTIFY = "select pg_notify($1, $2)"
