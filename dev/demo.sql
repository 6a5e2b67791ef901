-- The demo's tables and the five ways' triggers: what an application's own migrations would hold.
-- Runs with search_path set to event_demo and the schema of event_outbox; the functions keep that path.

-- A link in a campaign was tapped. Notifies and inserts, as older systems do: the queue gets it once.
create table if not exists tracking_log (
  id          uuid        primary key default gen_random_uuid(),
  campaign_id bigint      not null,
  url         text        not null,
  clicked_at  timestamptz not null default now()
);

create or replace function tracking_log_campaign_click_notify() returns trigger
  language plpgsql set search_path from current as
$$
declare
  event jsonb := jsonb_build_object('id', new.id, 'campaign_id', new.campaign_id, 'url', new.url);
begin
  perform pg_notify('campaign_click', event::text);
  insert into event_outbox (channel, payload) values ('campaign_click', event);
  return null;
end;
$$;

create or replace trigger tracking_log_campaign_click_notify after insert on tracking_log
  for each row execute function tracking_log_campaign_click_notify();

-- Something we know about a user changed. emit_event() in a trigger; the user is the aggregate, so that changes of one
-- user arrive in order.
create table if not exists user_attribute (
  id      uuid primary key default gen_random_uuid(),
  user_id bigint not null,
  name    text   not null,
  value   jsonb  not null
);

create or replace function user_attribute_changed() returns trigger
  language plpgsql set search_path from current as
$$
begin
  perform emit_event('attribute_changed', to_jsonb(new), 'user', new.user_id::text);
  return null;
end;
$$;

create or replace trigger user_attribute_changed after insert or update on user_attribute
  for each row execute function user_attribute_changed();

-- A friend was added or blocked. A bare notification: nothing is kept, and it is lost while nobody listens.
create table if not exists friend_track_event (
  id        uuid   primary key default gen_random_uuid(),
  friend_id bigint not null,
  action    text   not null
);

create or replace function friend_track_event_inserted() returns trigger
  language plpgsql set search_path from current as
$$
begin
  perform pg_notify('friend_track_event_inserted', to_jsonb(new)::text);
  return null;
end;
$$;

create or replace trigger friend_track_event_inserted after insert on friend_track_event
  for each row execute function friend_track_event_inserted();

-- A form was sent in.
create table if not exists form_submission (
  id      uuid  primary key default gen_random_uuid(),
  form    text  not null,
  answers jsonb not null
);

create or replace function form_submitted() returns trigger
  language plpgsql set search_path from current as
$$
begin
  perform emit_event('form_submitted', to_jsonb(new));
  return null;
end;
$$;

create or replace trigger form_submitted after insert on form_submission
  for each row execute function form_submitted();

-- A booking was made, changed, or cancelled: one aggregate, whose events must not overtake each other.
create table if not exists booking (
  id     uuid primary key default gen_random_uuid(),
  room   text not null,
  status text not null
);

create or replace function booking_event() returns trigger
  language plpgsql set search_path from current as
$$
begin
  perform emit_event('booking_event', to_jsonb(new), 'booking', new.id::text, 'booking.' || new.status);
  return null;
end;
$$;

create or replace trigger booking_event after insert or update on booking
  for each row execute function booking_event();

-- Orders have no trigger: the application writes the event itself, in the transaction that writes the order.
create table if not exists orders (
  id    uuid    primary key default gen_random_uuid(),
  total numeric not null
);
