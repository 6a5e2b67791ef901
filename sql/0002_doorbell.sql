-- 0002: the doorbell, a trigger that wakes the relay when events are inserted. Optional: without it the relay finds the
-- rows at its next poll.
--
-- Does:   creates a function and a trigger on event_outbox. The trigger's argument is the wake channel; when yours is not
--         event_outbox (PG_LISTENER_WAKE_CHANNEL), write yours. `migrate` does that by itself.
-- Locks:  event_outbox against writers, for an instant (SHARE ROW EXCLUSIVE). Waits for open transactions that wrote to it.
-- By hand: psql --single-transaction --set ON_ERROR_STOP=1 --command 'set search_path to <schema>' --file <this file>
-- Not for: writers that use two-phase commit. PostgreSQL can't PREPARE a transaction that has notified.
-- Undo:   drop trigger event_outbox_doorbell on event_outbox; drop function event_outbox_doorbell();

-- A transaction that has notified takes a lock at its commit that the whole instance has only once, and under load all
-- such commits queue behind it. So a relay that is busy anyway asks for the advisory lock below exclusively: from then
-- on the try fails and writers ring no more. Nobody waits here: the try only looks.
create function event_outbox_doorbell() returns trigger
  language plpgsql as $$
begin
  if pg_catalog.pg_try_advisory_xact_lock_shared(
    pg_catalog.hashtextextended(pg_catalog.concat(tg_table_schema, '.', tg_table_name), 0)
  ) then
    perform pg_catalog.pg_notify(tg_argv[0], '');
  end if;
  return null;
end
$$;

-- Once a statement, however many rows it inserts.
create trigger event_outbox_doorbell
  after insert on event_outbox
  for each statement execute function event_outbox_doorbell('event_outbox');

insert into event_outbox_migrations (version, name) values (2, 'doorbell');
