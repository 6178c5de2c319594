-- Checkout sessions that hold inventory, and what they hold. For PostgreSQL 15 or later, in the schema that PostgREST
-- serves. An application that has such tables keeps its own and gives them these columns and this index.
--
-- Every move takes a session's row before its reservations: whoever pays or releases locks the session first, so that
-- no two moves wait for each other in a ring.

create table public.inventory_checkout_sessions (
  id uuid primary key default gen_random_uuid(),
  ws_id uuid not null,
  status text not null default 'reserved'
    constraint session_status_known check (status in ('reserved', 'completed', 'expired', 'released')),
  expires_at timestamptz not null,
  created_at timestamptz not null default now()
);

-- Only sessions that can still expire, in the order in which they do: what is paid or expired costs nothing to pass.
create index inventory_checkout_sessions_reserved
  on public.inventory_checkout_sessions (expires_at, id) include (ws_id)
  where status = 'reserved';

create table public.inventory_checkout_reservations (
  id uuid primary key default gen_random_uuid(),
  checkout_id uuid not null references public.inventory_checkout_sessions (id) on delete cascade,
  ws_id uuid not null,
  quantity integer not null default 1 constraint reservation_holds_something check (quantity > 0),
  status text not null default 'reserved'
    constraint reservation_status_known check (status in ('reserved', 'completed', 'expired', 'released')),
  released_at timestamptz
);

create index inventory_checkout_reservations_checkout
  on public.inventory_checkout_reservations (checkout_id);

-- A schema that PostgREST serves is open to its callers unless it is closed: no policy means no row for them.
alter table public.inventory_checkout_sessions enable row level security;
alter table public.inventory_checkout_reservations enable row level security;
