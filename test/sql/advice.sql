-- Advice and health: what looks wrong in how leases are used is said when it is so, with its evidence, and not otherwise.
-- Time is let pass by making leases older. A backend that idles in a transaction, and an owner in two places, need other
-- sessions: test/t/031_statistics.pl.
\set SHOW_CONTEXT never
\set VERBOSITY terse
set intervalstyle = postgres;
create extension lease_lock;
set client_min_messages = warning;
\getenv srcdir PG_ABS_SRCDIR
\set refusals :srcdir '/common/refusals.sql'
\set ECHO none
\i :refusals
\set ECHO all
create function pg_temp.age(name text, by interval) returns void language sql as $$
  update lease_lock.lease set acquired_at = acquired_at - by, renewed_at = renewed_at - by, expire_at = expire_at - by where resource = name
$$;
create function pg_temp.hold(name text, ttl interval, for_long interval) returns void language plpgsql as $$
declare t bigint := lease_lock.acquire(name, 'A', ttl);
begin
  perform pg_temp.age(name, for_long);
  perform lease_lock.release(name, t);
end $$;
-- Without times.
create function pg_temp.evidence(text) returns text language sql as $$
  select regexp_replace(regexp_replace($1, '\w+ \w+ \d\d [\d:.]+ \d{4} \w+', '(time)', 'g'), '00:00:\d\d\.\d+', '(short)', 'g')
$$;
create table g (id int, name text);
select lease_lock.guard('g', '{name}');

-- 1. Nothing to say: no leases; a lease that is used as it should be.
select * from lease_lock.advice;
select lease_lock.acquire('fine', 'A', '1 min') as t \gset
begin;
select lease_lock.present('fine', :t) = :t as presented;
insert into g values (1, 'fine');
commit;
select pg_temp.age('fine', '20 s');
select lease_lock.renew('fine', :t) is not null as renewed;
select lease_lock.release('fine', :t);
select count(pg_temp.hold('fine', '1 min', '20 s')) from generate_series(1, 50) i;
select * from lease_lock.advice;

-- 2. A TTL that is too short: renewals that come late, more than one of twenty.
select lease_lock.acquire('late', 'A', '1 hour') as t \gset
select count(lease_lock.renew('late', :t)) from generate_series(1, 19) i;
select pg_temp.age('late', '50 min');
select lease_lock.renew('late', :t) is not null as renewed;
select resource, owner, advice from lease_lock.advice;
select pg_temp.age('late', '50 min');
select lease_lock.renew('late', :t) is not null as renewed;
select resource, owner, advice, split_part(evidence, '; ', 1) as evidence, evidence ~ 'says *$' as says_nothing from lease_lock.advice;
-- With enough holds it says which TTL would do.
select lease_lock.release('late', :t);
select count(pg_temp.hold('late', '1 hour', '50 min')) from generate_series(1, 30) i;
select advice, evidence ~ 'the TTL is 01:00:00, suggest_ttl says 03:\d\d:\d\d' as suggests from lease_lock.advice where resource = 'late';
select lease_lock.stats_reset();
select * from lease_lock.advice;
-- A holder that writes on after its lease expired.
select lease_lock.acquire('over', 'A', '1 min') as t \gset
select pg_temp.age('over', '2 min');
select * from lease_lock.advice;
begin;
select lease_lock.present('over', :t) = :t as presented;
select left(pg_temp.outcome('insert into g values (1, ''over'')'), 5);
commit;
select resource, owner, advice, split_part(evidence, '; ', 1) as evidence, evidence ~ 'says *$' as says_nothing from lease_lock.advice;
select lease_lock.stats_reset();
-- Not a holder that writes on after it has released: a longer TTL would not help.
select lease_lock.acquire('done', 'A', '1 min') as t \gset
select lease_lock.release('done', :t);
begin;
select lease_lock.present('done', :t) = :t as presented;
select left(pg_temp.outcome('insert into g values (1, ''done'')'), 5);
commit;
select * from lease_lock.advice;
select lease_lock.stats_reset();
-- Nor one that its owner's next grant has made stale, nor one without a token.
select lease_lock.acquire('again', 'A', '1 min') as t, lease_lock.acquire('taken', 'A', '1 min') as u \gset
select lease_lock.acquire('again', 'A', '1 min') > :t as again;
begin;
select lease_lock.present('again', :t) = :t as presented;
select left(pg_temp.outcome('insert into g values (1, ''again'')'), 5), left(pg_temp.outcome('insert into g values (1, ''nobody'')'), 5);
commit;
select * from lease_lock.advice;
-- But one that a takeover has.
select pg_temp.age('taken', '2 min');
select lease_lock.acquire('taken', 'B', '1 min') > :u as taken;
begin;
select lease_lock.present('taken', :u) = :u as presented;
select left(pg_temp.outcome('insert into g values (1, ''taken'')'), 5);
commit;
select resource, owner, advice, split_part(evidence, '; ', 1) as evidence, evidence ~ 'says *$' as says_nothing from lease_lock.advice;
select lease_lock.stats_reset();

-- 3. A TTL that is too long: 99 of 100 holds end within a hundredth of it; with enough of them.
select count(pg_temp.hold('long', '1 hour', '5 s')) from generate_series(1, 29) i;
select * from lease_lock.advice;
select count(pg_temp.hold('long', '1 hour', '5 s')) from generate_series(1, 1) i;
select resource, owner, advice, regexp_replace(evidence, '00:00:0\d\.\d+', '(5 s)') as evidence from lease_lock.advice;
-- Not when more than one of a hundred takes longer.
select count(pg_temp.hold('long', '1 hour', '50 s')) from generate_series(1, 2) i;
select * from lease_lock.advice;
-- Nor by a TTL that fits.
select lease_lock.stats_reset();
select count(pg_temp.hold('long', '2 min', '5 s')) from generate_series(1, 40) i;
select * from lease_lock.advice;
select lease_lock.stats_reset();

-- 4. A watchdog that renews, though the work has stopped.
select lease_lock.acquire('hung', 'A', '1 min') as t \gset
begin;
select lease_lock.present('hung', :t) = :t as presented;
insert into g values (1, 'hung');
commit;
select lease_lock.renew('hung', :t) is not null as renewed;
select * from lease_lock.advice;
-- The write was eleven TTLs before the last renewal, and the lease is older still: as if it had been acquired, written
-- under, renewed, and renewed again.
create function pg_temp.renewed_later(name text, by interval) returns void language sql as
  $$ update lease_lock.lease set renewed_at = renewed_at + by, expire_at = expire_at + by where resource = name $$;
select pg_temp.renewed_later('hung', '9 min');
select * from lease_lock.advice;
select pg_temp.renewed_later('hung', '2 min');
select resource, owner, advice, pg_temp.evidence(evidence) as evidence from lease_lock.advice;
-- Not where nothing is guarded by that name, so that nobody can know.
select lease_lock.acquire('unguarded', 'A', '1 min') as u \gset
select lease_lock.renew('unguarded', :u) is not null as renewed;
select pg_temp.renewed_later('unguarded', '11 min');
select resource, owner, advice from lease_lock.advice;
-- Nor once it is over.
select lease_lock.release('hung', :t);
select * from lease_lock.advice;
select lease_lock.release('unguarded', :u);

-- 5. health, of the leases that are held.
select lease_lock.acquire('ok', 'A', '1 hour'), lease_lock.acquire('soon', 'A', '1 hour'), lease_lock.acquire('over', 'B', '1 hour'),
       lease_lock.acquire('gone', 'A', '1 hour', scope => 'session'), lease_lock.acquire('gone and over', 'A', '1 hour', scope => 'session') \g /dev/null
select pg_temp.age('ok', '47 min'), pg_temp.age('soon', '49 min'), pg_temp.age('over', '2 hours'), pg_temp.age('gone and over', '2 hours');
select resource, state, health, overdue is not null as overdue, date_trunc('minute', overdue + interval '1 s') as by from lease_lock.holders order by resource;
select pg_advisory_unlock_all();
select resource, state, health, overdue is not null as overdue from lease_lock.holders order by resource;
-- A renewal brings it back in time.
select lease_lock.renew('soon', token) is not null as renewed from lease_lock.holders where resource = 'soon';
select resource, health, renewals, ttl, date_trunc('minute', held_for) as held_for, renewed_at > acquired_at as renewed, remaining > '50 min' as remaining, last_write
  from lease_lock.holders where resource = 'soon';
-- So does one for less than the TTL of the grant.
select lease_lock.renew('ok', token, '11 min') is not null as renewed from lease_lock.holders where resource = 'ok';
select health from lease_lock.holders where resource = 'ok';
-- Beside the last renewal, the last guarded write; of a backend that is at work, what it does.
begin;
select lease_lock.present('soon', token) = token as presented from lease_lock.holders where resource = 'soon';
insert into g values (1, 'soon');
commit;
select last_write >= renewed_at as last_write, xact_age >= '0' as xact_age, xact_age < '1 min' as young, wait_event from lease_lock.holders where resource = 'soon';
-- An uncommitted one.
begin;
select lease_lock.acquire('mine', 'A', '1 hour') is not null as granted;
select state, health, overdue from lease_lock.holders where resource = 'mine';
rollback;

drop table g;
drop extension lease_lock;
