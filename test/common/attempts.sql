-- What the tests of ways of writing share, included with \i: a write is tried
-- and undone.  The test defines pg_temp.contents(), a text that says what its
-- tables hold, and uses 20 as the newest token of mode newest.

create function pg_temp.fence() returns text language sql as $$
  select coalesce(string_agg(format('%s=%s', name, highest), ' ' order by name), '') from lease_lock.fence
$$;
-- How often this transaction has written a row of the fence.
create function pg_temp.fence_writes() returns bigint language sql as $$
  select pg_stat_get_xact_tuples_inserted(f) + pg_stat_get_xact_tuples_updated(f) + pg_stat_get_xact_tuples_deleted(f)
  from cast('lease_lock.fence'::regclass as oid) f
$$;
-- ok or the SQLSTATE; the rows affected; the contents after it; and the names
-- raised to 20 without what comes before a slash.  A ! after them says that
-- the fence was not written once for each.
create function pg_temp.attempt(sql text, out code text, out rows bigint, out after text, out raised text) language plpgsql as $$
declare w bigint; n bigint; fence text := pg_temp.fence(); before text := pg_temp.contents();
begin
  begin
    w := pg_temp.fence_writes();
    execute sql;
    get diagnostics rows = row_count;
    set local role none;
    set constraints all immediate;
    w := pg_temp.fence_writes() - w;
    after := pg_temp.contents();
    select string_agg(regexp_replace(name, '.*/', ''), ' ' order by name), count(*) into raised, n from lease_lock.fence where highest = 20;
    if w <> n then
      raised := coalesce(raised, 'none') || '!';
    end if;
    raise sqlstate 'ZZ000';
  exception when sqlstate 'ZZ000' then
    code := 'ok';
  when others then
    code := sqlstate;
  end;
  if pg_temp.fence() <> fence or pg_temp.contents() <> before then
    code := code || ', and something was changed';
  end if;
end $$;
