-- For consumers, in THEIR database: which events have been handled. Not run by `migrate`.
--
-- Delivery is at least once. A consumer that inserts the message id here, in the transaction of its own writes, handles
-- each event once:
--
--   begin;
--   insert into processed_events (event_id) values ($1) on conflict (event_id) do nothing;
--   -- no row inserted: handled before; acknowledge the message and stop here
--   ... the consumer's own writes ...
--   commit;
--   -- acknowledge the message after the commit
--
-- Rows older than the longest time a message may still come again (a few days, say) can go:
--
--   delete from processed_events where processed_at < now() - interval '7 days';
--
-- Locks:  nothing that exists.
-- Undo:   drop table processed_events;

create table processed_events (
  event_id     uuid        primary key,
  processed_at timestamptz not null default now()
);

create index processed_events_processed_at on processed_events (processed_at);
