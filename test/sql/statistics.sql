-- Statistics: every counter moves by one for the call that should move it, and by no other, whatever becomes of the
-- transaction; quantiles are those of the holds and waits that there were; suggest_ttl follows from them.
-- Sessions that die, evictions and deadlocks are in test/t/031_statistics.pl.
\set SHOW_CONTEXT never
\set VERBOSITY terse
set timezone = 'UTC';
set intervalstyle = postgres;
create extension lease_lock;
set client_min_messages = warning;
\getenv srcdir PG_ABS_SRCDIR
\set refusals :srcdir '/common/refusals.sql'
\set ECHO none
\i :refusals
\set ECHO all
create role regress_app;
create role regress_other;
create role regress_stats in role pg_read_all_stats;
grant usage on schema lease_lock to regress_app, regress_other, regress_stats;

-- 1. What the views have.
select c.relname, a.attname, format_type(a.atttypid, a.atttypmod) as type, col_description(a.attrelid, a.attnum) is not null as comment
  from pg_attribute a join pg_class c on c.oid = a.attrelid
  where c.relnamespace = 'lease_lock'::regnamespace and c.relname in ('stats', 'resource_stats', 'histograms', 'hot', 'advice', 'history')
    and a.attnum > 0 and not a.attisdropped
  order by c.relname, a.attnum;
select name, setting, context, vartype, min_val, max_val, enumvals from pg_settings
  where name in ('lease_lock.history', 'lease_lock.track_resources', 'lease_lock.log_events') order by name;

-- What the counters of the database and of the resources have gained since the last look.
create function pg_temp.counters() returns table (resource text, place bigint, counter text, n bigint) language sql as $$
  select v.resource, e.place, e.key, e.value::text::bigint
  from (select '' as resource, to_json(s) as row from lease_lock.stats as s
        union all select s.resource, to_json(s) from lease_lock.resource_stats as s) as v,
       json_each(v.row) with ordinality as e (key, value, place)
  where e.key !~ '^(resource|since|last_.*|renewal_margin.*|(wait|hold)_.*|acquire_success|holders|waiters)$'
$$;
create temp table mark as select * from pg_temp.counters() with no data;
create function pg_temp.gained(out resource text, out gained text) returns setof record language plpgsql as $$
begin
  return query
    select case c.resource when '' then '(database)' else c.resource end,
           string_agg(format('%s +%s', c.counter, c.n - coalesce(m.n, 0)), ', ' order by c.place)
    from pg_temp.counters() c left join mark m using (resource, counter)
    where c.n <> coalesce(m.n, 0) group by c.resource order by c.resource;
  truncate mark;
  insert into mark select * from pg_temp.counters();
end $$;
-- Lets time pass for a lease: as if all that it has seen had been so much earlier.
create function pg_temp.age(name text, by interval) returns void language sql as $$
  update lease_lock.lease set acquired_at = acquired_at - by, renewed_at = renewed_at - by, expire_at = expire_at - by where resource = name
$$;
select lease_lock.stats_reset();
select count(*) as counters, sum(n) from pg_temp.counters();

-- 2. Grants.
select lease_lock.acquire('a', 'A', '1 hour') as a \gset
select * from pg_temp.gained();
select lease_lock.try_acquire('b', 'A', '1 hour') as b \gset
select * from pg_temp.gained();
select lease_lock.try_acquire('a', 'B');
select * from pg_temp.gained();
select pg_temp.outcome('select lease_lock.acquire(''a'', ''B'', wait => ''0'')');
select * from pg_temp.gained();
select lease_lock.acquire('a', 'A', '1 hour') > :a as again \gset
select * from pg_temp.gained();
select lease_lock.try_acquire('a', 'A', '1 hour') as a \gset
select * from pg_temp.gained();
-- In one transaction: a second call extends the grant, a stranger's gives up.
begin;
select lease_lock.acquire('c', 'A') = lease_lock.acquire('c', 'A') as same;
select lease_lock.try_acquire('c', 'A') is not null as same;
select pg_temp.outcome('select lease_lock.acquire(''c'', ''B'')');
select lease_lock.try_acquire('c', 'B');
commit;
select * from pg_temp.gained();
-- Calls that are wrong, and those that nobody may make, count for nothing.
select pg_temp.outcome('select lease_lock.acquire(''a'', ''B'', ''0'')'), pg_temp.outcome('select lease_lock.acquire(null, ''B'')');
set role regress_other;
select pg_temp.outcome(format('select lease_lock.renew(''a'', %s)', :a)), pg_temp.outcome(format('select lease_lock.release(''a'', %s)', :a));
reset role;
select lease_lock.allow('kept/%', 'regress_app', 'acquire');
set role regress_other;
select pg_temp.outcome('select lease_lock.acquire(''kept/1'', ''B'')'), pg_temp.outcome('select lease_lock.try_acquire(''kept/1'', ''B'')');
reset role;
select lease_lock.disallow('kept/%', 'regress_app', 'acquire');
select * from pg_temp.gained();
-- Nor does looking.
select state from lease_lock.token_status('a', :a);
select count(*) > 0 as seen from lease_lock.holders, lease_lock.stats, lease_lock.fences;
select count(*) >= 0 as seen from lease_lock.waiters, lease_lock.hot, lease_lock.advice, lease_lock.guards;
begin;
select lease_lock.present('a', :a) = :a as presented;
commit;
select lease_lock.advisory_xact_lock('a');
select * from pg_temp.gained();

-- 3. Renewals and releases.
select lease_lock.renew('a', :a) is not null as renewed;
select * from pg_temp.gained();
select lease_lock.renew('a', :a - 1) is null as failed, lease_lock.renew('nobody', 1) is null as failed;
select * from pg_temp.gained();
-- Late with less than a fifth of the TTL left, by what the lease was last given.
select pg_temp.age('a', '47 min');
select lease_lock.renew('a', :a, '10 min') is not null as renewed;
select * from pg_temp.gained();
select pg_temp.age('a', '9 min');
select lease_lock.renew('a', :a, '1 hour') is not null as renewed;
select * from pg_temp.gained();
select renewals, round(renewal_margin::numeric, 1) as margin, round(renewal_margin_least::numeric, 1) as least,
       last_renewal between clock_timestamp() - interval '1 min' and clock_timestamp() as last_renewal from lease_lock.resource_stats where resource = 'a';
select round(s.renewal_margin::numeric, 1) as margin, round(s.renewal_margin_least::numeric, 1) as least, s.last_renewal = r.last_renewal as same
  from lease_lock.stats s, lease_lock.resource_stats r where r.resource = 'a';
select lease_lock.release('a', :a);
select * from pg_temp.gained();
select lease_lock.release('a', :a), lease_lock.renew('a', :a);
select * from pg_temp.gained();
-- During a cooldown.
select lease_lock.release('b', :b, '1 hour');
select lease_lock.try_acquire('b', 'B');
select * from pg_temp.gained();

-- 4. Leases that nobody released.
select lease_lock.acquire('a', 'A', '1 hour') as a \gset
select pg_temp.age('a', '2 hours');
select * from pg_temp.gained();
select lease_lock.renew('a', :a), lease_lock.release('a', :a);
select * from pg_temp.gained();
select lease_lock.acquire('a', 'B', '1 hour') as a \gset
select * from pg_temp.gained();
-- By the same owner too: it came too late.
select pg_temp.age('a', '2 hours');
select lease_lock.try_acquire('a', 'B', '1 hour') as a \gset
select * from pg_temp.gained();
-- Whose session gave it up.
select lease_lock.acquire('s', 'A', '1 hour', scope => 'session') as s \gset
select pg_advisory_unlock_all();
select * from pg_temp.gained();
select lease_lock.acquire('s', 'B', '1 hour', scope => 'session') as s \gset
select * from pg_temp.gained();
select pg_advisory_unlock_all();
select lease_lock.force_release('s', 'gone') = :s as ended;
select * from pg_temp.gained();
-- A transaction's lease ends as it should.
select lease_lock.acquire('t', 'A', '1 hour', scope => 'transaction') is not null as granted;
select lease_lock.acquire('t', 'B', '1 hour', scope => 'transaction') is not null as granted;
select * from pg_temp.gained();
-- By force.
select lease_lock.force_release('a', 'test') = :a as ended;
select * from pg_temp.gained();
select lease_lock.force_release('a', 'test') as none, lease_lock.force_release('nobody', 'test') as none;
select * from pg_temp.gained();
select lease_lock.acquire('a', 'C', '1 hour') as a \gset
select pg_temp.age('a', '2 hours');
select lease_lock.force_release('a', 'test') = :a as ended;
select * from pg_temp.gained();
select lease_lock.acquire('a', 'D') is not null as granted;
select * from pg_temp.gained();
-- By prune: one that expired, and one that was released.
select lease_lock.acquire('p1', 'A'), lease_lock.acquire('p2', 'A') as p2 \gset
select lease_lock.release('p2', :p2);
select * from pg_temp.gained();
select pg_temp.age('p1', '2 days');
update lease_lock.lease set ended_at = ended_at - interval '2 days' where resource = 'p2';
select lease_lock.prune();
select * from pg_temp.gained();

-- 5. Guarded writes.
create table g (id int, name text);
create table n (id int);
create table w (id int);
create table k (id int, token bigint);
select lease_lock.guard('g', '{name}'), lease_lock.guard('n', 'n', 'newest'), lease_lock.guard('w', 'w', action => 'warn'), lease_lock.guard_column('k', 'token');
select lease_lock.acquire('g1', 'A', '1 hour') as g1, lease_lock.acquire('g2', 'A', '1 hour') as g2 \gset
select * from pg_temp.gained();
-- Once a transaction and name.
begin;
select lease_lock.present('g1', :g1) = :g1, lease_lock.present('g2', :g2) = :g2;
insert into g select i, 'g1' from generate_series(1, 10) i;
update g set id = id + 1;
insert into g select i, 'g2' from generate_series(1, 10) i;
select lease_lock.assert_held('g1', :g1) > '0' as held;
commit;
select * from pg_temp.gained();
select last_write between clock_timestamp() - interval '1 min' and clock_timestamp() as last_write from lease_lock.resource_stats where resource = 'g1';
select s.last_write = r.last_write as same from lease_lock.stats s, lease_lock.resource_stats r where r.resource = 'g1';
select lease_lock.assert_held('g1', :g1) > '0' as held;
select * from pg_temp.gained();
begin;
select lease_lock.present('n', 5);
insert into n values (1), (2);
commit;
select * from pg_temp.gained();
-- A row's own token is no name's.
insert into k values (1, 5);
select * from pg_temp.gained();
-- Refused, for each reason.
create function pg_temp.write(name text, token bigint, sql text) returns text language plpgsql as $$
begin
  perform lease_lock.present(name, token);
  return left(pg_temp.outcome(sql), 5);
end $$;
select lease_lock.acquire('g1', 'A', '1 hour') as new \gset
select * from pg_temp.gained();
select pg_temp.write('g1', :g1, 'insert into g values (1, ''g1'')');
select * from pg_temp.gained();
select left(pg_temp.outcome('insert into g values (1, ''g1'')'), 5);
select * from pg_temp.gained();
select lease_lock.release('g1', :new);
select * from pg_temp.gained();
select pg_temp.write('g1', :new, 'insert into g values (1, ''g1'')');
select * from pg_temp.gained();
select pg_temp.write('g1', :new + 1000, 'insert into g values (1, ''g1'')');
select * from pg_temp.gained();
select left(pg_temp.outcome('insert into g values (1, '''')'), 5);
select * from pg_temp.gained();
select pg_temp.write('n', 4, 'insert into n values (1)');
select * from pg_temp.gained();
select left(pg_temp.outcome('update k set token = 4'), 5), left(pg_temp.outcome('insert into k values (2, null)'), 5);
select * from pg_temp.gained();
select left(pg_temp.outcome(format('select lease_lock.assert_held(''g1'', %s)', :g1)), 5), left(pg_temp.outcome(format('select lease_lock.assert_held(''g1'', %s)', :new)), 5),
       left(pg_temp.outcome('select lease_lock.assert_held(''g1'', 0)'), 5);
select * from pg_temp.gained();
-- Passed with a warning, and past the guard.
set client_min_messages = error;
insert into w values (1);
set client_min_messages = warning;
select * from pg_temp.gained();
begin;
select lease_lock.bypass('g', 'test');
insert into g values (1, 'g1');
commit;
select * from pg_temp.gained();

-- 6. A rollback undoes no count.
begin;
select lease_lock.acquire('r', 'A', '1 hour') as r \gset
select lease_lock.renew('r', :r) is not null as renewed, lease_lock.assert_held('r', :r) > '0' as held, lease_lock.release('r', :r) as released;
savepoint s;
select lease_lock.try_acquire('r', 'B', '1 hour') as r \gset
rollback to s;
select lease_lock.try_acquire('r', 'C', '1 hour') is not null as granted;
insert into g values (1, 'r2');
rollback;
select * from pg_temp.gained();
select count(*) from lease_lock.holders where resource = 'r';
-- The sums of the resources are those of the database, but for what has no name; the rate of success.
select d.counter, d.n as database, sum(r.n) as resources
  from pg_temp.counters() d left join pg_temp.counters() r on r.counter = d.counter and r.resource <> '' where d.resource = ''
  group by d.place, d.counter, d.n having d.n <> sum(r.n) order by d.place;
select acquire_success = grants::float8 / (grants + timeouts + busy) as database from lease_lock.stats;
select lease_lock.stats_reset();
select acquire_success is null as nothing from lease_lock.stats;
select lease_lock.acquire('rate', 'A'), lease_lock.try_acquire('rate', 'A'), lease_lock.try_acquire('rate', 'A') is not null \g /dev/null
select lease_lock.try_acquire('rate', 'B');
select acquire_success from lease_lock.resource_stats;
select holders, waiters from lease_lock.stats;
select count(*) from lease_lock.holders where state = 'held';

-- 7. Holds: of 1 to 100 s, not in order.
select lease_lock.stats_reset();
create function pg_temp.hold(name text, for_long interval) returns void language plpgsql as $$
declare t bigint := lease_lock.acquire(name, 'A', '1 day');
begin
  perform pg_temp.age(name, for_long);
  perform lease_lock.release(name, t);
end $$;
select lease_lock.suggest_ttl('q');
select count(pg_temp.hold('q', (i * 37 % 101) * interval '1 s')) from generate_series(1, 29) i;
select lease_lock.suggest_ttl('q');
select count(pg_temp.hold('q', (i * 37 % 101) * interval '1 s')) from generate_series(30, 30) i;
select lease_lock.suggest_ttl('q') is not null as enough;
select count(pg_temp.hold('q', (i * 37 % 101) * interval '1 s')) from generate_series(31, 100) i;
select count(pg_temp.hold('short', interval '1 ms')) from generate_series(1, 30) i;
create function pg_temp.about(x interval, seconds float8) returns boolean language sql as
  $$ select extract(epoch from x) between seconds * 7 / 8 and seconds * 9 / 8 $$;
select holds, pg_temp.about(hold_p50, 50) as p50, pg_temp.about(hold_p95, 95) as p95, pg_temp.about(hold_p99, 99) as p99,
       hold_max between '100 s' and '110 s' as max, hold_total between '5050 s' and '5100 s' as total,
       hold_p50 <= hold_p95 and hold_p95 <= hold_p99 and hold_p99 <= hold_max as in_order
  from lease_lock.resource_stats where resource = 'q';
select holds, pg_temp.about(hold_p50, 35) as p50, pg_temp.about(hold_p95, 94) as p95, hold_max between '100 s' and '110 s' as max from lease_lock.stats;
select grants, waits, wait_p50 < '10 s' as p50, wait_total < '1 min' as total, wait_max < '10 s' and wait_max >= wait_p99 as max from lease_lock.resource_stats where resource = 'q';
-- How they are spread: how many were at most so long, for powers of two.
select kind, count(*) = count(distinct upto) as each_once, bool_and(count >= before) as rises, max(count) as all,
       bool_and(ratio between 1.99 and 2.01) as doubles, min(upto) between '1 ms' and '1.1 ms' as from_a_ms, max(upto) > '1 day' as to_a_day
  from (select *, lag(count, 1, 0::bigint) over w as before, extract(epoch from upto) / extract(epoch from lag(upto) over w) as ratio
          from lease_lock.histograms window w as (partition by kind order by upto)) h group by kind order by kind;
-- (The short ones are below all of these; a hold may have taken up to a second more.)
select count(*), bool_and(h.count - 30 between least(100, floor(extract(epoch from upto) - 1)) and least(100, floor(extract(epoch from upto)))) as spread
  from lease_lock.histograms h where kind = 'hold' and upto between '2 s' and '1000 s';

-- 8. suggest_ttl: the quantile of the holds, times factor, and not less than a TTL can be.
select pg_temp.about(lease_lock.suggest_ttl('q'), 200) as usual, pg_temp.about(lease_lock.suggest_ttl('q', 0.5), 100) as median,
       pg_temp.about(lease_lock.suggest_ttl('q', 0.5, 1), 50) as once, pg_temp.about(lease_lock.suggest_ttl('q', 1, 1000), 100000) as most,
       pg_temp.about(lease_lock.suggest_ttl('q', factor => 3), 300) as thrice, pg_temp.about(lease_lock.suggest_ttl('q', 0.01, 1), 1) as least;
select lease_lock.suggest_ttl('short') between '2 ms' and '1 min' as short;
select lease_lock.suggest_ttl('unknown');
select pg_temp.outcome(c) from (values
  ('select lease_lock.suggest_ttl(null)'), ('select lease_lock.suggest_ttl('''')'), ('select lease_lock.suggest_ttl(repeat(''x'', 513))'),
  ('select lease_lock.suggest_ttl(''q'', null)'), ('select lease_lock.suggest_ttl(''q'', 0.5, null)'),
  ('select lease_lock.suggest_ttl(''q'', 0)'), ('select lease_lock.suggest_ttl(''q'', -1)'), ('select lease_lock.suggest_ttl(''q'', 1.001)'),
  ('select lease_lock.suggest_ttl(''q'', ''nan'')'), ('select lease_lock.suggest_ttl(''q'', ''inf'')'),
  ('select lease_lock.suggest_ttl(''q'', 0.5, 0.9)'), ('select lease_lock.suggest_ttl(''q'', 0.5, 1001)'),
  ('select lease_lock.suggest_ttl(''q'', 0.5, ''nan'')'), ('select lease_lock.suggest_ttl(''q'', 0.5, ''inf'')')) v (c);
-- What it suggests is a TTL that acquire takes.
select lease_lock.acquire('q', 'A', lease_lock.suggest_ttl('q')) is not null as taken;
-- Anybody may ask.
set role regress_app;
select pg_temp.about(lease_lock.suggest_ttl('q'), 200) as usual;
reset role;

-- To an eighth wherever in its bucket a hold lies: all but one just above a power of two (2^33 microseconds).
select count(pg_temp.hold('edge', case i when 1 then interval '20000 s' else interval '8590 s' end)) from generate_series(1, 100) i;
select pg_temp.about(hold_p50, 8590) as p50, pg_temp.about(hold_p95, 8590) as p95, pg_temp.about(hold_p99, 8590) as p99, pg_temp.about(hold_max, 20000) as max
  from lease_lock.resource_stats where resource = 'edge';
-- 9. hot: by time waited.
select lease_lock.stats_reset();
select lease_lock.acquire('h1', 'A', '1 hour'), lease_lock.acquire('h2', 'A', '1 hour'), lease_lock.acquire('cool', 'A', '1 hour') \g /dev/null
select left(pg_temp.outcome('select lease_lock.acquire(''h2'', ''B'', wait => ''30 ms'')'), 5), left(pg_temp.outcome('select lease_lock.acquire(''h2'', ''C'', wait => ''30 ms'')'), 5),
       left(pg_temp.outcome('select lease_lock.acquire(''h1'', ''B'', wait => ''20 ms'')'), 5);
select resource, waiters, waits, timeouts, wait_total >= '20 ms' as total, wait_max >= '20 ms' as max, wait_p95 <= wait_max as p95,
       heat = extract(epoch from wait_total)::float8 as heat
  from lease_lock.hot where wait_total > '15 ms';
select timeouts, waits, wait_max >= '30 ms' as max, wait_total >= '80 ms' as total from lease_lock.stats;

-- 10. stats_reset empties the statistics, and nothing else.
select left(pg_temp.outcome('insert into g values (1, ''g1'')'), 5);
select count(*) > 0 as rejections from lease_lock.rejections;
select count(*) > 0 as rejections from lease_lock.rejection_counts;
select since as before from lease_lock.stats \gset
select lease_lock.stats_reset();
select since > :'before' as since from lease_lock.stats;
select sum(n), count(*) = count(distinct counter) as of_the_database from pg_temp.counters();
select jsonb_strip_nulls(to_jsonb(s)) - '{since,holders,waiters}'::text[] - (select array_agg(distinct counter) from pg_temp.counters()) as rest from lease_lock.stats s;
select count(*) from lease_lock.resource_stats;
select max(count) from lease_lock.histograms;
select count(*) from lease_lock.hot;
select count(*) from lease_lock.rejections;
select count(*) from lease_lock.rejection_counts;
select count(*) > 0 as holders from lease_lock.holders;
-- It is not undone by a rollback either.
select lease_lock.acquire('new', 'A') is not null as granted;
select grants from lease_lock.stats;
begin;
select lease_lock.stats_reset();
rollback;
select grants from lease_lock.stats;

-- 11. Who may see and do what.
select v.role, o.name, has_table_privilege(v.role, o.name, 'select') as may_select, has_table_privilege(v.role, o.name, 'insert, update, delete, truncate') as may_write
  from (values ('regress_app'), ('regress_stats')) v (role),
       (values ('lease_lock.stats'), ('lease_lock.resource_stats'), ('lease_lock.histograms'), ('lease_lock.hot'), ('lease_lock.holders'),
               ('lease_lock.advice'), ('lease_lock.history'), ('lease_lock.rejections'), ('lease_lock.rejection_counts'), ('lease_lock.audit')) o (name) order by 1, 2;
select v.role, o.name, has_function_privilege(v.role, o.name, 'execute') as may_execute
  from (values ('regress_app'), ('regress_stats')) v (role),
       (values ('lease_lock.suggest_ttl(text, float8, float8)'), ('lease_lock.stats_reset()'), ('lease_lock.holder_at(text, timestamptz)'),
               ('lease_lock.overlaps(interval)'), ('lease_lock.prune_history(interval)')) o (name) order by 1, 2;
set role regress_app;
select count(*) from lease_lock.stats;
select count(*) >= 0 as seen from lease_lock.resource_stats, lease_lock.histograms, lease_lock.hot, lease_lock.holders;
select pg_temp.outcome('select * from lease_lock.advice'), pg_temp.outcome('select * from lease_lock.history');
select pg_temp.outcome('select lease_lock.stats_reset()'), pg_temp.outcome('select lease_lock.prune_history()');
select pg_temp.outcome('select lease_lock.holder_at(''a'', now())'), pg_temp.outcome('select lease_lock.overlaps()');
select pg_temp.outcome('set lease_lock.history = on'), pg_temp.outcome('set lease_lock.log_events = off');
set role regress_stats;
select count(*) >= 0 as seen from lease_lock.advice, lease_lock.history, lease_lock.rejections;
select count(*) from lease_lock.overlaps();
select count(*) from lease_lock.holder_at('a', now() - interval '1 hour');
select pg_temp.outcome('select lease_lock.stats_reset()'), pg_temp.outcome('select lease_lock.prune_history()');
reset role;
grant execute on function lease_lock.stats_reset() to regress_app;
set role regress_app;
select lease_lock.stats_reset();
select grants from lease_lock.stats;
reset role;
select pg_temp.outcome('set lease_lock.track_resources = 10');

drop table g, n, w, k;
drop extension lease_lock;
drop role regress_app, regress_other, regress_stats;
