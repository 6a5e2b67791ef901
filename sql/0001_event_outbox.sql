-- 0001: the table event_outbox, its indexes, emit_event(), and the views.
--
-- Does:   creates new objects only, in the schema that search_path names first. The files name no schema.
-- Locks:  nothing that exists.
-- By hand: psql --single-transaction --set ON_ERROR_STOP=1 --command 'set search_path to <schema>' --file <this file>
-- Undo:   drop view outbox_dead_letters, outbox_events;
--         drop function emit_event(text, jsonb, text, text, text, jsonb);
--         drop table event_outbox, event_outbox_migrations;
--         drop function event_outbox_uuid_v7();

create table event_outbox_migrations (
  version    integer     primary key,
  name       text        not null,
  applied_at timestamptz not null default now()
);
comment on table event_outbox_migrations is 'The files of sql/ that have run here; pg-listener reads it before it starts.';

-- A uuid of version 7: 48 bits of milliseconds, 12 bits of the fraction of the millisecond, 62 random bits. Neighbours
-- in time are neighbours in the index, which keeps inserts cheap when millions of rows are kept. PostgreSQL has such a
-- function of its own from version 18 on. One expression and nothing else, so that the planner inlines it.
create function event_outbox_uuid_v7() returns uuid
  language sql volatile parallel safe
  return (
    overlay(
      lpad(to_hex((extract(epoch from clock_timestamp()) * 4096000)::bigint), 15, '0')
      placing '7' from 13 for 0
    ) || right(gen_random_uuid()::text, 18)
  )::uuid;

create table event_outbox (
  seq            bigint      generated always as identity primary key,
  id             uuid        not null default event_outbox_uuid_v7(),
  -- "C": the relay only ever asks for equality, and an index in byte order survives every change of the system's locales.
  channel        text        collate "C",
  event_type     text        collate "C",
  aggregate_type text        collate "C",
  aggregate_id   text        collate "C",
  payload        jsonb       not null,
  headers        jsonb       not null default '{}',
  attempts       integer     not null default 0,
  retry_after    timestamptz,
  last_error     text,
  dead_at        timestamptz,
  created_at     timestamptz not null default now(),
  processed_at   timestamptz,
  live           boolean     not null default false,
  constraint event_outbox_id_key unique (id),
  constraint event_outbox_channel_is_a_notify_channel check (octet_length(channel) between 1 and 63),
  constraint event_outbox_has_a_route_key check (channel is not null or event_type is not null),
  constraint event_outbox_headers_is_an_object check (jsonb_typeof(headers) = 'object'),
  -- A row that waits for its retry is indexed by its aggregate, and an index entry holds 2,700 bytes. A longer name is
  -- better refused here, where its writer sees it, than when its failure is to be recorded.
  constraint event_outbox_aggregate_fits_the_index
    check (octet_length(aggregate_type) <= 255 and octet_length(aggregate_id) <= 1024)
) with (
  -- fillfactor stays at 100: marking a row can never be a heap-only update, since the conditions of the partial indexes
  -- name the marked columns. Room in the page would be room for nothing.
  --
  -- Dead rows come at a steady rate and the table's size says nothing about it: count them, and do not dawdle.
  autovacuum_vacuum_scale_factor = 0,
  autovacuum_vacuum_threshold = 20000,
  autovacuum_vacuum_insert_scale_factor = 0,
  autovacuum_vacuum_insert_threshold = 100000,
  autovacuum_analyze_scale_factor = 0,
  autovacuum_analyze_threshold = 50000,
  autovacuum_vacuum_cost_delay = 0,
  toast.autovacuum_vacuum_scale_factor = 0,
  toast.autovacuum_vacuum_threshold = 20000,
  toast.autovacuum_vacuum_cost_delay = 0
);

-- The rows that can go out now, in publish order. A row that failed once is not among them any more.
create index event_outbox_ready on event_outbox (seq)
  where processed_at is null and dead_at is null and retry_after is null;

-- "Has this aggregate an earlier row that waits for its retry?"
create index event_outbox_retry on event_outbox (aggregate_id, (coalesce(aggregate_type, '')), seq)
  where retry_after is not null and processed_at is null and dead_at is null and aggregate_id is not null;

-- "Which retries are due?", without a look at those that are not. "attempts >= 0" is always true: only a statement that
-- repeats it may use this index, and the question above, asked for one row after the other, must never be answered by it.
create index event_outbox_due on event_outbox (retry_after)
  where retry_after is not null and processed_at is null and dead_at is null and attempts >= 0;

-- "Is there a row of this channel and content?" Eight bytes a row, nothing for rows without a channel, and no payload. The
-- hash agrees with jsonb's equality: 1.0 and 1 are the same. As a generated column it would be computed once and not
-- again at the marking, but was no faster below some ten kilobytes a row.
create index event_outbox_content on event_outbox (jsonb_hash_extended(payload, hashtextextended(channel, 0)))
  where channel is not null and not live;

-- The list of dead letters and their number.
create index event_outbox_dead on event_outbox (seq)
  where dead_at is not null and processed_at is null;

comment on table event_outbox is 'Events on their way to the broker. Written by the application, settled by pg-listener.';
comment on column event_outbox.seq is 'Publish order. The relay settles by it.';
comment on column event_outbox.id is 'AMQP message id. A writer may give its own, and insert with "on conflict (id) do nothing".';
comment on column event_outbox.channel is 'Route key: a NOTIFY channel''s name.';
comment on column event_outbox.event_type is 'AMQP type, and the second route key.';
comment on column event_outbox.aggregate_type is 'With aggregate_id: what the event is about. Null counts as empty.';
comment on column event_outbox.aggregate_id is 'Events of one aggregate leave in seq order; an event without one waits for nobody.';
comment on column event_outbox.payload is 'The message''s body.';
comment on column event_outbox.headers is 'Copied to the message''s headers.';
comment on column event_outbox.attempts is 'How often the message itself was refused.';
comment on column event_outbox.retry_after is 'The row failed before, and waits until then. To retry by hand, set it to now().';
comment on column event_outbox.last_error is 'The last refusal, for a person.';
comment on column event_outbox.dead_at is 'When the relay gave up.';
comment on column event_outbox.processed_at is 'When the broker''s confirm was recorded.';
comment on column event_outbox.live is 'A notification that had no row, kept here since the broker could not take it.';

-- For triggers and plain SQL: select emit_event('order_created', jsonb_build_object('id', new.id), 'order', new.id::text).
-- The parsed body makes it independent of the caller's search_path.
create function emit_event(
  channel        text,
  payload        jsonb,
  aggregate_type text default null,
  aggregate_id   text default null,
  event_type     text default null,
  headers        jsonb default '{}'
) returns uuid
  language sql volatile
begin atomic
  insert into event_outbox (channel, payload, aggregate_type, aggregate_id, event_type, headers)
  values (
    emit_event.channel, emit_event.payload, emit_event.aggregate_type, emit_event.aggregate_id, emit_event.event_type,
    coalesce(emit_event.headers, '{}')
  )
  returning id;
end;

-- The classic outbox table's name and columns, for writers that know only that. Inserts and updates go through.
create view outbox_events as
  select id, aggregate_type, aggregate_id, event_type, payload, attempts, created_at, processed_at
  from event_outbox;

create view outbox_dead_letters as
  select seq, id, channel, event_type, aggregate_type, aggregate_id, payload, headers, attempts, last_error, created_at,
    dead_at
  from event_outbox
  where dead_at is not null and processed_at is null;

insert into event_outbox_migrations (version, name) values (1, 'event_outbox');
