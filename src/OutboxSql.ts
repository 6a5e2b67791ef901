/**
 * The statements on `event_outbox`, except the claim, which has a file of its own (internal/claimSql.ts). Each is a
 * function of the quoted names, and says why it looks as it does.
 *
 * A row is *pending* while it is neither processed nor dead; a pending row is *ready* while `retry_after` is null, and
 * *waits* for its retry otherwise.
 */
import { notHeld } from "./internal/claimSql.js"
import type { OutboxNames } from "./internal/outboxNames.js"

/** READ COMMITTED whatever the server's default is: the claim needs locked rows checked again in their newest version. */
export const BEGIN = "begin isolation level read committed read write"
export const COMMIT = "commit"
export const ROLLBACK = "rollback"

/**
 * For a worker's session. Its statements run from plans made once, maybe on an empty table, and no plan of theirs may
 * read the whole table; JIT takes longer to compile them than they take to run.
 */
export const WORKER_SESSION =
  "set plan_cache_mode = force_generic_plan; set enable_seqscan = off; set enable_bitmapscan = off; set jit = off"

/**
 * When a row that failed for the n-th time is tried again: 2^n seconds, 5 minutes at most, less up to a fifth so that rows
 * that failed together come apart. By the clock and not by the transaction's start, which may be long ago.
 */
const retryAfter = (attempts: string): string =>
  `clock_timestamp() + make_interval(secs => least(power(2, least(${attempts}, 20)), 300) * (0.8 + 0.2 * random()))`

/**
 * $1: seqs. A list that comes from a sub-select is taken for a short one, so that even for a thousand rows the key's index
 * looks cheaper than the whole table. `retry_after` goes: nothing waits any more; the attempts stay, as history.
 */
export const markProcessed = ({ outbox }: OutboxNames): string => `
update ${outbox} set processed_at = clock_timestamp(), retry_after = null
where seq = any(array(select unnest($1::bigint[])))`

/** $1: seqs, $2: reasons, $3: whether no retry can help, $4: attempts after which the relay gives up. */
export const recordFailed = ({ outbox }: OutboxNames): string => `
update ${outbox} o
set attempts = o.attempts + 1, last_error = f.reason,
  dead_at = case when f.dead or o.attempts + 1 >= $4::integer then clock_timestamp() end,
  retry_after = case when f.dead or o.attempts + 1 >= $4::integer then null else ${retryAfter("o.attempts + 1")} end
from unnest($1::bigint[], $2::text[], $3::boolean[]) f (seq, reason, dead)
where o.seq = f.seq and o.seq = any(array(select unnest($1::bigint[])))`

/**
 * $1: channels, $2: payloads, $3: how many rows to look at. For each, the rows of that channel and content: how many, and
 * which of them are of the last hour. Per notification a look-up by the content's hash, with a bound; as a plain join, the
 * planner could hash the whole table.
 */
export const matchRows = ({ outbox }: OutboxNames): string => `
select n.place::integer as place, m.seen, m.recent
from (
  select u.place, u.channel, u.payload::jsonb as content
  from unnest($1::text[], $2::text[]) with ordinality u (channel, payload, place)
  offset 0
) n
cross join lateral (
  select count(*)::integer as seen, coalesce(array_agg(r.seq::text) filter (where r.recent), '{}') as recent
  from (
    select o.seq, o.created_at > now() - interval '1 hour' as recent
    from ${outbox} o
    where o.channel is not null and not o.live
      and jsonb_hash_extended(o.payload, hashtextextended(o.channel, 0)) =
        jsonb_hash_extended(n.content, hashtextextended(n.channel, 0))
      and o.channel = n.channel and o.payload = n.content
    limit $3::integer
  ) r
) m`

/**
 * $1: ids, $2: channels, $3: payloads, $4: reasons, $5: whether the payload is not JSON, $6: attempts after which the relay
 * gives up. The rows are marked `live`: they are notifications without a row, and must not be found as rows of others.
 */
export const insertLive = ({ outbox }: OutboxNames): string => `
insert into ${outbox} (id, channel, payload, live, attempts, last_error, dead_at, retry_after)
select n.id, n.channel, case when n.dead then to_jsonb(n.payload) else n.payload::jsonb end, true,
  case when n.reason is null then 0 else 1 end, n.reason,
  case when n.dead or (n.reason is not null and $6::integer <= 1) then clock_timestamp() end,
  case when n.reason is not null and not n.dead and $6::integer > 1 then ${retryAfter("1")} end
from unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::boolean[]) with ordinality
  n (id, channel, payload, reason, dead, place)
order by n.place
on conflict (id) do nothing`

/** $1: epoch milliseconds, $2: how many to count at most. Looks at the newest pending rows only, so the work has a bound. */
export const countPendingSince = ({ outbox }: OutboxNames): string => `
select least(count(*), $2::integer)::integer as count
from (
  (
    select o.created_at from ${outbox} o
    where o.processed_at is null and o.dead_at is null and o.retry_after is null
    order by o.seq desc limit $2::integer
  )
  union all
  (
    select o.created_at from ${outbox} o
    where o.processed_at is null and o.dead_at is null and o.retry_after is not null and o.attempts >= 0
    order by o.retry_after desc limit $2::integer
  )
) p
where p.created_at >= to_timestamp($1::float8 / 1000)`

/**
 * $1: age in milliseconds, $2: how many to count at most. Held rows are not overdue, they wait for the row before them. The
 * weakest lock, for the length of this statement: rows in a worker's hands are skipped, and a worker that comes by
 * meanwhile leaves a row for its next look.
 */
export const countOverdue = (names: OutboxNames): string => `
select count(*)::integer as count
from (
  select from ${names.outbox} o
  where o.processed_at is null and o.dead_at is null and o.retry_after is null and o.attempts = 0
    and o.created_at < now() - $1::float8 * interval '1 millisecond'
    and ${notHeld(names, "o")}
  order by o.seq
  limit $2::integer
  for key share of o skip locked
) overdue`

/**
 * One step of the clean-up. $1: the last seq of the step before, $2: retention in milliseconds, $3: rows to look at.
 *
 * Walks the key from the bottom: no index on `processed_at` is needed, which every mark would have to write. `done` once
 * all rows of a step are younger than the retention: rows further up are younger still, give or take a transaction.
 */
export const cleanUpStep = ({ outbox }: OutboxNames): string => `
with step as materialized (
  select o.seq, o.processed_at < now() - $2::float8 * interval '1 millisecond' as old,
    o.created_at >= now() - $2::float8 * interval '1 millisecond' as young
  from ${outbox} o
  where o.seq > $1::bigint
  order by o.seq
  limit $3::integer
),
deleted as (
  delete from ${outbox} o
  where o.seq = any(array(select s.seq from step s where s.old))
    and o.processed_at < now() - $2::float8 * interval '1 millisecond'
  returning 1
)
select (select max(s.seq) from step s)::text as last, (select count(*) from deleted)::integer as deleted,
  coalesce((select bool_and(s.young) from step s), true) as done`

/** $1: `schema.event_outbox` quoted. How far the sequence has come; needs SELECT on it. */
export const LAST_SEQ = `
select coalesce(pg_sequence_last_value(pg_get_serial_sequence($1, 'seq')::regclass), 0)::text as seq`

/**
 * $1: `schema.event_outbox` quoted. The transactions that may have inserted a row and are still open: an INSERT takes
 * this lock before it takes a `seq`, and keeps it to its end, also while it is prepared.
 */
export const OPEN_WRITERS = `
select distinct l.virtualtransaction as name
from pg_locks l
where l.locktype = 'relation' and l.mode = 'RowExclusiveLock' and l.granted
  and l.relation = $1::regclass
  and l.database = (select d.oid from pg_database d where d.datname = current_database())`

/** $1: low-water mark. The first ready row above it, in whosever hands. */
export const firstReadyAbove = ({ outbox }: OutboxNames): string => `
select o.seq::text as seq from ${outbox} o
where o.processed_at is null and o.dead_at is null and o.retry_after is null and o.seq > $1::bigint
order by o.seq
limit 1`

/**
 * $1: low-water mark, $2: how far to look, $3: how many aggregates to list at most. The held rows directly above the mark:
 * where they end, and whose they are (nobody's when the first ready row is not held). `ids` and `types` match by place.
 */
export const heldRunAbove = (names: OutboxNames): string => `
with ends as materialized (
  select coalesce((
    select o.seq - 1 from ${names.outbox} o
    where o.processed_at is null and o.dead_at is null and o.retry_after is null
      and o.seq > $1::bigint and o.seq <= $2::bigint
      and ${notHeld(names, "o")}
    order by o.seq
    limit 1
  ), $2::bigint) as above
),
aggregates as materialized (
  select distinct o.aggregate_id as id, coalesce(o.aggregate_type, '') as type
  from ${names.outbox} o
  where o.processed_at is null and o.dead_at is null and o.retry_after is null
    and o.seq > $1::bigint and o.seq <= (select e.above from ends e)
  limit $3::integer
)
select (select e.above from ends e)::text as above,
  coalesce(array_agg(a.id), '{}') as ids, coalesce(array_agg(a.type), '{}') as types
from aggregates a`

/** $1: schema. What is there, and what we may do with it; one row, whatever is missing. */
export const INSPECT_SCHEMA = `
select current_user::text as me, coalesce(m.found and o.found, false) as found,
  coalesce(has_table_privilege(m.oid, 'select'), false) as versions_readable,
  coalesce(has_schema_privilege(n.oid, 'usage'), false) as schema_usable,
  coalesce((
    select array_agg(p.privilege order by p.place)
    from (values
      (1, 'select', has_table_privilege(o.oid, 'select')),
      (2, 'insert', has_table_privilege(o.oid, 'insert')),
      (3, 'delete', has_table_privilege(o.oid, 'delete')),
      (4, 'update (attempts)', has_column_privilege(o.oid, 'attempts', 'update')),
      (5, 'update (retry_after)', has_column_privilege(o.oid, 'retry_after', 'update')),
      (6, 'update (last_error)', has_column_privilege(o.oid, 'last_error', 'update')),
      (7, 'update (dead_at)', has_column_privilege(o.oid, 'dead_at', 'update')),
      (8, 'update (processed_at)', has_column_privilege(o.oid, 'processed_at', 'update'))
    ) p (place, privilege, granted)
    where not p.granted
  ), '{}') as outbox_missing,
  coalesce(has_sequence_privilege(s.objid, 'select') or has_sequence_privilege(s.objid, 'usage'), false) as sequence_readable,
  coalesce(q.seqcache = 1 and q.seqincrement = 1, false) as sequence_in_step,
  coalesce((
    select json_agg(
      json_build_object(
        'channel', convert_from(substring(t.tgargs for octet_length(t.tgargs) - 1), getdatabaseencoding()),
        'enabled', t.tgenabled in ('O', 'A')
      )
    )
    from pg_trigger t join pg_proc f on f.oid = t.tgfoid
    where t.tgrelid = o.oid and not t.tgisinternal and t.tgnargs = 1 and f.proname = 'event_outbox_doorbell'
  ), '[]')::text as doorbells
from (select 1) one
left join pg_namespace n on n.nspname = $1
left join lateral (
  select c.oid, true as found from pg_class c where c.relnamespace = n.oid and c.relname = 'event_outbox_migrations'
) m on true
left join lateral (
  select c.oid, true as found from pg_class c where c.relnamespace = n.oid and c.relname = 'event_outbox'
) o on true
left join pg_depend s on s.refobjid = o.oid and s.refclassid = 'pg_class'::regclass and s.deptype = 'i'
  and s.classid = 'pg_class'::regclass
  and s.refobjsubid = (select a.attnum from pg_attribute a where a.attrelid = o.oid and a.attname = 'seq')
left join pg_sequence q on q.seqrelid = s.objid`

export const versionsApplied = ({ migrations }: OutboxNames): string =>
  `select version from ${migrations} order by version`
