-- Expiry of checkout sessions: one function, which the runtime calls with a key and everybody else without.

-- One row a keyed batch: what it expired, so that a caller who lost the answer can ask for it again.
-- Written by expire_inventory_checkout_sessions only.
create table public.inventory_checkout_batches (
  key text primary key constraint batch_key_short check (length(key) between 1 and 200),
  p_now timestamptz not null,
  rows jsonb not null default '[]' constraint batch_rows_are_a_list check (jsonb_typeof(rows) = 'array'),
  created_at timestamptz not null
);

create index inventory_checkout_batches_age on public.inventory_checkout_batches (created_at);
alter table public.inventory_checkout_batches enable row level security;

-- A second function of this name would make calls by name ambiguous, and PostgREST would answer none of them.
do $$
begin
  if exists (
    select from pg_catalog.pg_proc p
    where p.proname = 'expire_inventory_checkout_sessions'
      and p.pronamespace = 'public'::pg_catalog.regnamespace
      and p.oid is distinct from pg_catalog.to_regprocedure(
        'public.expire_inventory_checkout_sessions(timestamptz, integer, text)')
  ) then
    raise exception 'public.expire_inventory_checkout_sessions exists with other parameters'
      using hint = 'Drop or rename it in the same transaction: calls without p_key keep working.';
  end if;
end
$$;

-- Expires up to p_limit sessions (1 to 5000) that are still reserved and due at p_now, the longest due first, with what
-- they hold, and answers which.
--
-- Two callers at once take no session twice, and wait for nobody: a locked row is passed over. So fewer rows than asked
-- means drained only to a caller who is alone; any other finds the rest at the next call.
--
-- With p_key the batch happens once. A second call with the key waits for the first and answers the same rows, whatever
-- else it asks for, for 30 days. The key's own row is the lock: an insert waits for another of the same key.
create or replace function public.expire_inventory_checkout_sessions(
  p_now timestamptz,
  p_limit integer default 500,
  p_key text default null
)
returns table (checkout_id uuid, ws_id uuid)
language plpgsql
volatile
security definer
set search_path = ''
as $$
declare
  v_ids uuid[];
  v_rows jsonb;
begin
  if p_now is null then
    raise exception 'p_now is required' using errcode = 'null_value_not_allowed';
  end if;

  if p_key is not null then
    insert into public.inventory_checkout_batches (key, p_now, created_at) values (p_key, p_now, now())
    on conflict (key) do nothing;
    if not found then
      select b.rows into v_rows from public.inventory_checkout_batches b where b.key = p_key;
      if not found then
        raise exception 'the batch was forgotten while it was asked for' using errcode = 'serialization_failure';
      end if;
    end if;
  end if;

  if v_rows is null then
    -- Locked from here to the end: a session that is paid meanwhile was either seen as paid, or passed over.
    v_ids := array(
      select s.id from public.inventory_checkout_sessions s
      where s.status = 'reserved' and s.expires_at <= p_now
      order by s.expires_at, s.id
      limit least(greatest(coalesce(p_limit, 500), 1), 5000)
      for update skip locked
    );

    update public.inventory_checkout_reservations r
    set status = 'expired', released_at = coalesce(r.released_at, p_now)
    where r.checkout_id = any (v_ids) and r.status = 'reserved';

    with expired as (
      update public.inventory_checkout_sessions s
      set status = 'expired'
      where s.id = any (v_ids) and s.status = 'reserved'
      returning s.id, s.ws_id, s.expires_at
    )
    select coalesce(
      jsonb_agg(jsonb_build_object('checkout_id', e.id, 'ws_id', e.ws_id) order by e.expires_at, e.id), '[]')
    into v_rows
    from expired e;

    if p_key is not null then
      update public.inventory_checkout_batches b set rows = v_rows where b.key = p_key;
      -- Each new batch leaves one row and takes up to a hundred old ones, by the database's clock: p_now is the caller's.
      delete from public.inventory_checkout_batches b
      where b.key = any (array(
        select o.key from public.inventory_checkout_batches o
        where o.created_at < now() - interval '30 days'
        order by o.created_at
        limit 100
        for update skip locked
      ));
    end if;
  end if;

  return query
    select r.checkout_id, r.ws_id
    from rows from (jsonb_to_recordset(v_rows) as (checkout_id uuid, ws_id uuid))
      with ordinality as r (checkout_id, ws_id, place)
    order by r.place;
end
$$;

-- The runtime's role, which PostgREST takes on for the service key.
do $$
begin
  if not exists (select from pg_catalog.pg_roles where rolname = 'service_role') then
    create role service_role nologin noinherit;
  end if;
end
$$;

-- Nobody but that role. Where the schema's default privileges have handed the function to others by name, as a hosted
-- project's do, taking it from public alone would leave it with them.
revoke all on function public.expire_inventory_checkout_sessions(timestamptz, integer, text) from public;
do $$
declare
  v_name text;
begin
  for v_name in
    select distinct pg_catalog.pg_get_userbyid(a.grantee)
    from pg_catalog.pg_proc p, pg_catalog.aclexplode(p.proacl) a
    where p.oid = 'public.expire_inventory_checkout_sessions(timestamptz, integer, text)'::pg_catalog.regprocedure
      and a.grantee not in (0, p.proowner)
  loop
    execute pg_catalog.format(
      'revoke all on function public.expire_inventory_checkout_sessions(timestamptz, integer, text) from %I', v_name);
  end loop;
end
$$;
grant execute on function public.expire_inventory_checkout_sessions(timestamptz, integer, text) to service_role;
