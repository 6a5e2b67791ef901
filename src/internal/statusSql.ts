/**
 * What `status` and `check` ask the database, beside the statements that the service itself has.
 */
import { DOORBELL_KEY } from "./doorbellSession.js"
import { liveOwnerLock } from "./listenSession.js"
import type { OutboxNames } from "./outboxNames.js"

export const namedVersions = ({ migrations }: OutboxNames): string =>
  `select version, name from ${migrations} order by version`

/**
 * $1: `schema.event_outbox` quoted, $2: rows to look at one by one. Processed rows have no index of their own: in a small
 * table they are counted, in a large one the planner's estimate of all rows has to do, and null when there is none.
 */
export const keptRows = ({ outbox }: OutboxNames): string => `
select c.rows > $2::integer as estimated, pg_total_relation_size($1::regclass)::float8 as bytes,
  case when c.rows <= $2::integer then c.processed::float8
  else (select nullif(t.reltuples, -1)::float8 from pg_class t where t.oid = $1::regclass) end as rows
from (
  select count(*) as rows, count(i.processed_at) as processed
  from (select o.processed_at from ${outbox} o order by o.seq limit $2::integer + 1) i
) c`

const IN_THIS_DATABASE = "l.database = (select d.oid from pg_database d where d.datname = current_database())"

/** $1: schema. Whether a relay asks writers not to ring, or already has their silence. */
export const DOORBELL_IS_BUSY = `
select exists (
  select from pg_locks l
  where l.locktype = 'advisory' and l.mode = 'ExclusiveLock' and l.objsubid = 1 and ${IN_THIS_DATABASE}
    and (l.classid::bigint << 32 | l.objid::bigint) = ${DOORBELL_KEY}
) as busy`

/** $1: schema. The session that publishes live notifications: each tries to become it when it connects. */
export const LIVE_OWNER = `
select l.pid, a.application_name as "applicationName", host(a.client_addr) as "clientAddress",
  to_char(a.backend_start at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"') as since
from pg_locks l
left join pg_stat_activity a on a.pid = l.pid
where l.locktype = 'advisory' and l.granted and l.objsubid = 2 and ${IN_THIS_DATABASE}
  and row(l.classid::integer, l.objid::integer) = row(${liveOwnerLock})`

/** $1: the sessions' `application_name`, which the server cuts at 63 bytes. */
export const LISTENERS = `
select count(*)::integer as sessions
from pg_stat_activity a
where a.datname = current_database() and a.application_name = $1::name::text`

/** What the server says of itself and of us. */
export const SERVER = `
select current_setting('server_version') as version, current_setting('server_version_num')::integer as number,
  current_database()::text as database, current_user::text as role, pg_is_in_recovery() as replica,
  (select s.version from pg_stat_ssl s where s.pid = pg_backend_pid() and s.ssl) as tls`

/** $1: schema. The objects of sql/0001 beside the tables that are not there, or can't be used. */
export const MISSING_OBJECTS = `
select o.kind || ' ' || o.name as object
from (
  values
    (1, 'index', 'event_outbox_ready'), (2, 'index', 'event_outbox_retry'), (3, 'index', 'event_outbox_due'),
    (4, 'index', 'event_outbox_content'), (5, 'index', 'event_outbox_dead'), (6, 'index', 'event_outbox_id_key'),
    (7, 'view', 'outbox_events'), (8, 'view', 'outbox_dead_letters'),
    (9, 'function', 'emit_event'), (10, 'function', 'event_outbox_uuid_v7')
) o (place, kind, name)
left join pg_namespace n on n.nspname = $1
where case o.kind
  when 'index' then not exists (
    select from pg_class c join pg_index i on i.indexrelid = c.oid
    where c.relnamespace = n.oid and c.relname = o.name and i.indisvalid
  )
  when 'view' then not exists (
    select from pg_class c where c.relnamespace = n.oid and c.relname = o.name and c.relkind = 'v'
  )
  else not exists (select from pg_proc p where p.pronamespace = n.oid and p.proname = o.name)
end
order by o.place`
