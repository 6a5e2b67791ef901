-- The reference's table: a key, one partial index for what is pending, and a notification per statement. "seq" has no other
-- index: the planner would take a full one for the claim, and walk over all that was delivered.
create table reference_outbox (
  id           uuid        primary key default gen_random_uuid(),
  seq          bigint      generated always as identity,
  queue        text        not null,
  payload      jsonb       not null,
  created_at   timestamptz not null default now(),
  delivered_at timestamptz
);

create index reference_outbox_pending on reference_outbox (seq) where delivered_at is null;

create function reference_outbox_wake() returns trigger
  language plpgsql as $$
begin
  perform pg_notify('reference_outbox', '');
  return null;
end
$$;

create trigger reference_outbox_wake
  after insert on reference_outbox
  for each statement execute function reference_outbox_wake();
