-- The settings: what they say of themselves, who may set them, what they bound.
\set SHOW_CONTEXT never
\set VERBOSITY terse
create extension lease_lock;
\getenv srcdir PG_ABS_SRCDIR
\set refusals :srcdir '/common/refusals.sql'
\set ECHO none
\i :refusals
\set ECHO all
select name, setting, unit, vartype, context, min_val, max_val, boot_val, reset_val, enumvals, pending_restart from pg_settings where name ~ '^lease_lock\.' order by name;
select name, short_desc, extra_desc from pg_settings where name ~ '^lease_lock\.' order by name;
-- Units and ranges.
set lease_lock.default_ttl = '2 s';
show lease_lock.default_ttl;
set lease_lock.default_ttl = 1500;
show lease_lock.default_ttl;
\set VERBOSITY sqlstate
set lease_lock.default_ttl = 0;
set lease_lock.default_ttl = '30 days';
set lease_lock.default_ttl = '24 days';
set lease_lock.default_ttl = 'soon';
set lease_lock.default_wait = -1;
set lease_lock.max_ttl = 0;
set lease_lock.max_wait = -1;
set lease_lock.async_release = 'perhaps';
\set VERBOSITY terse
reset lease_lock.default_ttl;
-- One that does not exist.
set lease_lock.no_such_setting = 1;
\echo :SQLSTATE
select * from pg_temp.refusal('select set_config(''lease_lock.no_such_setting'', ''1'', false)');

-- 1. What could weaken another role's safety is for superusers.
set client_min_messages = warning;
create role regress_app;
grant usage on schema lease_lock to regress_app;
set role regress_app;
select name, pg_temp.outcome(format('set local %s = %L', name, value)) from (values
  ('lease_lock.default_ttl', '1 min'), ('lease_lock.default_wait', '1 s'), ('lease_lock.async_release', 'on'),
  ('lease_lock.max_ttl', '2 days'), ('lease_lock.max_wait', '2 h')) v(name, value);
set lease_lock.max_ttl = '1 year';
set lease_lock.max_wait = '1 year';
show lease_lock.max_ttl;
reset role;

-- 2. default_ttl: of a grant without one.
select ttl from lease_lock.token_status('ttl', lease_lock.acquire('ttl', 'A'));
set lease_lock.default_ttl = '90 s';
select ttl from lease_lock.token_status('ttl', lease_lock.acquire('ttl', 'A'));
select ttl from lease_lock.token_status('ttl', lease_lock.try_acquire('ttl', 'A', null));
select ttl from lease_lock.token_status('ttl', lease_lock.acquire('ttl', 'A', '5 s'));
-- Within max_ttl.
set lease_lock.max_ttl = '1 min';
select ttl from lease_lock.token_status('ttl', lease_lock.acquire('ttl', 'A'));
select * from pg_temp.refusal('select lease_lock.acquire(''ttl'', ''A'', ''61 s'')');
select pg_temp.outcome('select lease_lock.acquire(''ttl'', ''A'', ''60 s'')');
select lease_lock.acquire('ttl', 'A', '10 s') as t \gset
select pg_temp.outcome(format('select lease_lock.renew(''ttl'', %s, ''61 s'')', :t)), pg_temp.outcome(format('select lease_lock.release(''ttl'', %s, ''61 s'')', :t));
set lease_lock.max_ttl = '2 days';
select ttl from lease_lock.token_status('ttl', lease_lock.acquire('ttl', 'A', '2 days'));
reset lease_lock.max_ttl;
reset lease_lock.default_ttl;

-- 3. default_wait and max_wait.
select lease_lock.acquire('busy', 'A', '1 hour') is not null as granted;
create function pg_temp.waited(call text, out outcome text, out ms interval) language plpgsql as $$
declare t timestamptz := clock_timestamp();
begin
  outcome := pg_temp.outcome(call);
  ms := clock_timestamp() - t;
end $$;
set lease_lock.default_wait = '200 ms';
select outcome, ms between '200 ms' and '3 s' as in_time from pg_temp.waited('select lease_lock.acquire(''busy'', ''B'')');
set lease_lock.default_wait = 0;
select outcome, ms < '3 s' as in_time from pg_temp.waited('select lease_lock.acquire(''busy'', ''B'')');
set lease_lock.default_wait = '1 min';
select outcome, ms < '3 s' as in_time from pg_temp.waited('select lease_lock.acquire(''busy'', ''B'', wait => ''0'')');
set lease_lock.max_wait = '300 ms';
select outcome, ms between '300 ms' and '5 s' as in_time from pg_temp.waited('select lease_lock.acquire(''busy'', ''B'')');
select * from pg_temp.refusal('select lease_lock.acquire(''busy'', ''B'', wait => ''301 ms'')');
set lease_lock.max_wait = 0;
select outcome, ms < '3 s' as in_time from pg_temp.waited('select lease_lock.acquire(''busy'', ''B'')');
select pg_temp.outcome('select lease_lock.acquire(''free'', ''B'', wait => ''0'')');
reset lease_lock.max_wait;
reset lease_lock.default_wait;

-- 4. PostgreSQL's own timeouts end a wait on time.
set lock_timeout = '200 ms';
select outcome, ms between '200 ms' and '5 s' as in_time from pg_temp.waited('select lease_lock.acquire(''busy'', ''B'', wait => ''1 min'')');
select * from pg_temp.refusal('select lease_lock.acquire(''busy'', ''B'', wait => ''1 min'')');
-- It is no bound of what need not wait.
select pg_temp.outcome('select lease_lock.acquire(''busy'', ''B'', wait => ''0'')');
reset lock_timeout;
set statement_timeout = '200 ms';
select lease_lock.acquire('busy', 'B', wait => '1 min');
\echo :SQLSTATE
reset statement_timeout;
-- Nothing is left of them.
select waiters from lease_lock.holders where resource = 'busy';
select count(*) from pg_locks where locktype = 'advisory';
show lock_timeout;

-- 5. SET LOCAL and a function's own settings end as usual, a grant's durability does not.
begin;
set local lease_lock.default_ttl = '7 s';
set local synchronous_commit = off;
select ttl from lease_lock.token_status('local', lease_lock.acquire('local', 'A'));
commit;
show lease_lock.default_ttl;
show synchronous_commit;
create function acquire_quick(text) returns bigint language sql set lease_lock.default_ttl = '3 s' as $$ select lease_lock.acquire($1, 'A') $$;
select ttl from lease_lock.token_status('quick', acquire_quick('quick'));
select ttl from lease_lock.token_status('quick', lease_lock.acquire('quick', 'A'));
drop function acquire_quick;

drop extension lease_lock;
drop role regress_app;
