/**
 * The claim: one statement that picks a batch, locks it, and keeps each aggregate's order.
 *
 * Words. A *pending* row is neither processed nor dead. It is *ready* while `retry_after` is null, and *waits* once it
 * failed, due or not. An aggregate's row is *held* while an earlier row of its aggregate waits.
 *
 * Why order holds. Let r be a row that the statement returns, and e an earlier pending row of its aggregate that the
 * statement's snapshot S shows (writers who lock the aggregate's row make sure that S shows every earlier one). At the
 * time r is published, e must be settled, or be in the same batch before r.
 *
 * 1. e waits in S: r is held, hence no candidate. When e itself is due, it comes without r, and r comes after it.
 * 2. e is ready in S: the candidates are the first ready rows of S that are not held, without gaps. r is one of them; e is
 *    earlier and, were it held, r would be too. So e is a candidate, and it was tried before r. Either it was locked, and
 *    is in the batch, or it was not, and r is dropped. It is not locked when
 *    - another worker has it (SKIP LOCKED), even if that one rolls back a moment later;
 *    - another worker settled it between S and our lock: the conditions, repeated beside the lock, are checked again
 *      against the row's newest version, and a row that is processed, dead or waiting by now falls out.
 *    So r is dropped although e may be out already. That costs a look later and never the order.
 * 3. e is not visible in S: its transaction is still open, or committed after S. Then it is not earlier in the sense of
 *    the promise, which asks writers of one aggregate to take turns.
 *
 * The same with r a retry that fell due (`full`): an earlier waiting row makes it no candidate, and an earlier ready one
 * is a candidate unless the list of ready rows was cut before it; so a retry beyond the cut is no candidate either.
 *
 * Leaving out whole aggregates ($6, $7) changes nothing in this: a look that came back empty-handed, since the free rows
 * were those of blocked aggregates, is repeated without these.
 *
 * The low-water mark leaves out ready rows at or below it. It is raised only when there are none and can be none
 * (LowWater.ts), so "the first ready rows" stays true. A row that a person makes pending again by hand is to be given
 * `retry_after = now()`: then it waits, is due, and cases 1 and `full` cover it.
 *
 * Why it is fast, whatever the statistics say. A worker plans the statement once and keeps the plan, since planning takes
 * as long as a small claim; so no estimate may decide. Each list has one index that fits: `offset 0` keeps "not exists"
 * a look-up per row, "attempts >= 0" opens `event_outbox_due` to the list of retries alone, `coalesce(retry_after, ...)`
 * closes every index but the key's to the lock, and "not in" over a list is a hash table and never a loop in a loop. The
 * cost grows with the window and with held rows at its start, not with the table.
 */

import { longestHeadersText } from "./amqpHeaders.js"
import type { OutboxNames } from "./outboxNames.js"

const pending = (alias: string) => `${alias}.processed_at is null and ${alias}.dead_at is null`

/** True for rows without an aggregate and for rows that no earlier row of their aggregate holds. */
export const notHeld = ({ outbox }: OutboxNames, alias: string): string => `(
      ${alias}.aggregate_id is null
      or not exists (
        select from ${outbox} e
        where ${pending("e")} and e.retry_after is not null
          and e.aggregate_id = ${alias}.aggregate_id
          and coalesce(e.aggregate_type, '') = coalesce(${alias}.aggregate_type, '')
          and e.seq < ${alias}.seq
        offset 0
      )
    )`

/** $6, $7: aggregates to leave out, as ids and types. */
const notLeftOut = (alias: string) => `(
      ${alias}.aggregate_id is null
      or (${alias}.aggregate_id, coalesce(${alias}.aggregate_type, '')) not in (
        select * from unnest($6::text[], $7::text[])
      )
    )`

/** $1: low-water mark, $2: window. */
const readyRows = (names: OutboxNames) => `
  select o.seq, o.aggregate_id, coalesce(o.aggregate_type, '') as aggregate_type
  from ${names.outbox} o
  where ${pending("o")} and o.retry_after is null and o.seq > $1::bigint
    and ${notLeftOut("o")}
    and ${notHeld(names, "o")}
  order by o.seq
  limit $2::integer`

/** The longest overdue first. Among those the window leaves out, none can be earlier in an aggregate: that one is held. */
const dueRetries = (names: OutboxNames) => `
  select o.seq, o.aggregate_id, coalesce(o.aggregate_type, '') as aggregate_type
  from ${names.outbox} o
  where ${pending("o")} and o.retry_after <= now() and o.attempts >= 0
    and ${notLeftOut("o")}
    and ${notHeld(names, "o")}
    and (
      o.aggregate_id is null
      or (select count(*) from ready) < $2::integer
      or o.seq < (select max(r.seq) from ready r)
    )
  order by o.retry_after
  limit $2::integer`

/** A batch whose payloads may come to more than this as text is heavy: they are read one by one (heavyBatch.ts). */
const heavyBytes = 8 * 1024 * 1024

/** Nobody can send one of more than 255 bytes; what there is shows in the refusal. */
const longestEventType = 1000

/** $3: limit, $4: bytes a batch may have, $5: longest payload that is loaded, $8: whether the batch is to be a heavy one. */
const lockAndRead = ({ outbox }: OutboxNames, due: string) => `
locked as materialized (
  select o.seq, o.id, o.channel, o.event_type, o.aggregate_type, o.aggregate_id, o.payload, o.headers, o.attempts,
    o.retry_after is not null as waited, o.created_at
  from ${outbox} o
  where o.seq = any(array(select c.seq from candidates c))
    and ${pending("o")} and ${due}
  order by o.seq
  limit $3::integer
  for update of o skip locked
),
dropped as materialized (
  select t.seq, t.aggregate_id, t.aggregate_type
  from (
    select c.seq, c.aggregate_id, c.aggregate_type,
      min(case when c.seq not in (select l.seq from locked l) then c.seq end)
        over (partition by c.aggregate_id, c.aggregate_type) as missing
    from candidates c
    where c.aggregate_id is not null and c.seq <= (select max(l.seq) from locked l)
  ) t
  where t.seq > t.missing
),
-- "stored" is a first, cheap estimate of what the texts come to.
kept as materialized (
  select l.*, row_number() over (order by l.seq) as place,
    sum(
      pg_column_size(l.payload)::bigint * case when pg_column_compression(l.payload) is null then 1 else 8 end
      + pg_column_size(l.headers)::bigint * case when pg_column_compression(l.headers) is null then 1 else 8 end
    ) over (order by l.seq) as stored
  from locked l
  where l.seq not in (select d.seq from dropped d)
),
heavy as materialized (
  select $8::boolean or coalesce(max(k.stored), 0) > ${heavyBytes} as is_heavy from kept k
),
-- Each payload becomes text once ("offset 0" keeps the expression from being repeated).
texts as (
  select k.*, t.body, t.headers_text, s.bytes,
    sum(coalesce(octet_length(t.headers_text), 0) + case when s.bytes <= $5::bigint then s.bytes else 0 end)
      over (order by k.seq) as loaded
  from (select * from kept where place = 1 or stored <= $4::bigint) k
  cross join lateral (
    select case when not (select is_heavy from heavy) then k.payload::text end as body,
      left(nullif(k.headers, '{}')::text, ${longestHeadersText + 1}) as headers_text
    offset 0
  ) t
  cross join lateral (select octet_length(t.body) as bytes offset 0) s
),
batch as (
  select t.seq::text as seq, t.id::text as id, t.channel, left(t.event_type, ${longestEventType}) as event_type,
    t.aggregate_type, t.aggregate_id,
    case when t.bytes <= $5::bigint then t.body end as payload, t.bytes as payload_bytes,
    t.headers_text as headers, t.attempts, t.waited,
    floor(extract(epoch from t.created_at))::float8 as created_at_seconds,
    extract(epoch from clock_timestamp() - t.created_at)::float8 as age_seconds
  from texts t
  where t.place = 1 or t.loaded <= $4::bigint
  order by t.seq
)
-- One row at least: an empty batch has to say, too, whether there was more to see.
select w.*, b.*
from (
  select (select count(*) from candidates)::integer as seen, (select count(*) from ready) >= $2::integer as cut, d.*
  from (
    select array_agg(d.aggregate_id) as blocked_ids, array_agg(d.aggregate_type) as blocked_types
    from (select distinct aggregate_id, aggregate_type from dropped where not exists (select from kept)) d
  ) d
) w
left join batch b on true`

/** Ready rows above the low-water mark. */
export const claimReady = (names: OutboxNames): string => `
with ready as materialized (${readyRows(names)}
),
candidates as materialized (select * from ready),${lockAndRead(names, "o.retry_after is null")}`

/** Ready rows and retries that fell due. */
export const claimFull = (names: OutboxNames): string => `
with ready as materialized (${readyRows(names)}
),
due as materialized (${dueRetries(names)}
),
candidates as materialized (select * from ready union all select * from due),${lockAndRead(
  names,
  "coalesce(o.retry_after, '-infinity') <= now()"
)}`

/** A row of the answer. From `seq` on, all are null when the batch is empty. */
export interface ClaimAnswer {
  /** How many candidates there were. */
  readonly seen: number
  /** Whether the window cut the list of ready rows. */
  readonly cut: boolean
  /** When the batch is empty: the aggregates whose rows were free, but not an earlier one of theirs. */
  readonly blocked_ids: ReadonlyArray<string> | null
  readonly blocked_types: ReadonlyArray<string> | null
  readonly seq: string | null
  readonly id: string
  readonly channel: string | null
  readonly event_type: string | null
  readonly aggregate_type: string | null
  readonly aggregate_id: string | null
  readonly payload: string | null
  /** Null in every row of a heavy batch, whose payloads are still to be read. */
  readonly payload_bytes: number | null
  readonly headers: string | null
  readonly attempts: number
  readonly waited: boolean
  readonly created_at_seconds: number
  readonly age_seconds: number
}
