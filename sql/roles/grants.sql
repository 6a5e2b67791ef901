-- The least that the relay and the writers need. A template for a DBA, not run by `migrate`. The roles must exist.
--
-- Does:   grants; creates nothing.
-- Locks:  nothing that anybody waits for.
-- By hand: psql --single-transaction --set ON_ERROR_STOP=1 --set schema=public --set relay=pg_listener \
--            --set writer=my_application --file <this file>
-- Undo:   the same lines with "revoke ... from".

grant usage on schema :"schema" to :"relay", :"writer";

-- The relay: claims (locks) and settles rows, keeps live notifications, deletes what is old or discarded. It changes no
-- event's content.
grant select, insert, delete on :"schema".event_outbox to :"relay";
grant update (attempts, retry_after, last_error, dead_at, processed_at) on :"schema".event_outbox to :"relay";
grant select on :"schema".event_outbox_migrations, :"schema".outbox_dead_letters to :"relay";
-- How far the sequence has come: for the low-water mark.
grant select on sequence :"schema".event_outbox_seq_seq to :"relay";

-- Writers: insert what is theirs to say, and read back the id ("returning id", "on conflict (id) do nothing").
grant insert (id, channel, event_type, aggregate_type, aggregate_id, payload, headers), select (id)
  on :"schema".event_outbox to :"writer";
-- All the view's columns: writers made for the classic table, such as an ORM's entity, name each in every insert.
grant insert (id, aggregate_type, aggregate_id, event_type, payload, attempts, created_at, processed_at), select (id)
  on :"schema".outbox_events to :"writer";

-- Functions are open to everybody unless a DBA closed them. An insert makes its id with the second one.
grant execute on function :"schema".emit_event(text, jsonb, text, text, text, jsonb) to :"writer";
grant execute on function :"schema".event_outbox_uuid_v7() to :"writer";
