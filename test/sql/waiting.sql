-- Waiting in line, evictions and leases of scope 'session', as far as one
-- session shows them: settings, messages, views, and what ends such a lease.
-- Where a second party is needed it is a prepared transaction.
\set SHOW_CONTEXT never
\set VERBOSITY terse
create extension lease_lock;
\getenv srcdir PG_ABS_SRCDIR
\set refusals :srcdir '/common/refusals.sql'
\set ECHO none
\i :refusals
\set ECHO all

-- 1. The settings of the administrator.
select name, setting, unit, context, min_val, max_val from pg_settings where name in ('lease_lock.max_waiters', 'lease_lock.evict_after', 'lease_lock.max_wait') order by name;
set lease_lock.evict_after = '90 s';
show lease_lock.evict_after;
set lease_lock.evict_after = 1500;
show lease_lock.evict_after;
set lease_lock.evict_after = -1;
show lease_lock.evict_after;
select split_part(pg_temp.outcome('set lease_lock.evict_after = -2'), '(', 1) as says;
set lease_lock.evict_after = '30 days';
set lease_lock.evict_after = 'never';
set lease_lock.max_waiters = 0;
show lease_lock.max_waiters;
set lease_lock.max_waiters = -2;
set lease_lock.max_waiters = '1 s';
reset lease_lock.max_waiters;
reset lease_lock.evict_after;
set client_min_messages = warning;
create role regress_app;
reset client_min_messages;
grant usage on schema lease_lock to regress_app;
set role regress_app;
set lease_lock.max_waiters = 1;
set lease_lock.evict_after = 0;
set lease_lock.max_wait = 0;
select pg_temp.outcome('set local lease_lock.evict_after = -1'), pg_temp.outcome('set local lease_lock.max_waiters = -1');
select * from lease_lock.waiters;
select pg_temp.outcome('delete from lease_lock.waiters');
reset role;
select attname, col_description(attrelid, attnum) is not null as comment
  from pg_attribute where attrelid = 'lease_lock.waiters'::regclass and attnum > 0 order by attnum;

-- 2. Nobody waits: the view is empty, before and after.
select * from lease_lock.waiters;
select lease_lock.acquire('job', 'A', '1 hour') as t \gset
select * from pg_temp.refusal($$select lease_lock.acquire('job', 'B', wait => '0')$$);
select * from pg_temp.refusal($$select lease_lock.acquire('job', 'B', wait => '100 ms')$$);
set lock_timeout = '100 ms';
select * from pg_temp.refusal($$select lease_lock.acquire('job', 'B', wait => '30 s')$$);
-- The sooner end of the two counts.
select pg_temp.outcome($$select lease_lock.acquire('job', 'B', wait => '20 ms')$$);
reset lock_timeout;
select lease_lock.try_acquire('job', 'B');
select * from lease_lock.waiters;
select resource, waiters from lease_lock.holders;
select count(*) from pg_locks where locktype = 'advisory';

-- 3. max_waiters: who would have to wait fails at once, and nobody else does.
set lease_lock.max_waiters = 0;
select clock_timestamp() as t0 \gset
select * from pg_temp.refusal($$select lease_lock.acquire('job', 'B', wait => '30 s')$$);
select clock_timestamp() - :'t0' < '10 s' as at_once;
select pg_temp.outcome($$select lease_lock.acquire('job', 'B', wait => '0')$$);
select lease_lock.try_acquire('job', 'B');
select lease_lock.acquire('job', 'A', '1 hour') > :t as its_owner, lease_lock.acquire('free', 'B') > :t as free;
-- It is no error that a lease is waited for by as many as may.
set lease_lock.max_waiters = 1;
select pg_temp.outcome($$select lease_lock.acquire('job', 'B', wait => '30 ms')$$);
select pg_temp.outcome($$select lease_lock.acquire('job', 'B', wait => '30 ms')$$);
reset lease_lock.max_waiters;
select * from lease_lock.waiters;

-- 4. evict_after: a prepared transaction has nobody to be signalled, and is named.
begin;
select lease_lock.acquire('granted', 'P', '20 ms') is not null as acquired;
prepare transaction 'a grant';
select lease_lock.acquire('written', 'P', '3 s') as t \gset
begin;
select lease_lock.assert_held('written', :t) is not null as held;
prepare transaction 'a write';
do $$ begin
  while exists (select from lease_lock.holders where resource in ('granted', 'written') and remaining > '0') loop
    perform pg_sleep(0.01);
  end loop;
end $$;
set lease_lock.evict_after = 0;
select * from pg_temp.refusal($$select lease_lock.acquire('granted', 'B', wait => '30 s')$$);
select * from pg_temp.refusal($$select lease_lock.acquire('written', 'B', wait => '30 s')$$);
-- wait => '0' does not wait, and try_acquire does not raise.
select pg_temp.outcome($$select lease_lock.acquire('granted', 'B', wait => '0')$$), pg_temp.outcome($$select lease_lock.acquire('written', 'B', wait => '0')$$);
select lease_lock.try_acquire('granted', 'B') as granted, lease_lock.try_acquire('written', 'B') as written;
-- Before the time, and where it is off, they are waited for.
set lease_lock.evict_after = '1 h';
select pg_temp.outcome($$select lease_lock.acquire('granted', 'B', wait => '50 ms')$$), pg_temp.outcome($$select lease_lock.acquire('written', 'B', wait => '50 ms')$$);
set lease_lock.evict_after = -1;
select pg_temp.outcome($$select lease_lock.acquire('granted', 'B', wait => '50 ms')$$), pg_temp.outcome($$select lease_lock.acquire('written', 'B', wait => '50 ms')$$);
reset lease_lock.evict_after;
select count(*) as evictions from lease_lock.audit;
select * from lease_lock.waiters;
commit prepared 'a grant';
rollback prepared 'a write';
select lease_lock.acquire('granted', 'B', wait => '0') is not null as granted, lease_lock.acquire('written', 'B', wait => '0') > :t as written;

-- 5. Scope 'session': an ordinary lease while the session lives.
select * from pg_temp.refusal($$select lease_lock.acquire('s', 'A', scope => 'Session')$$);
select lease_lock.acquire('s1', 'A', '1 hour', scope => 'session') as t1 \gset
select lease_lock.try_acquire('s2', 'A', '1 hour', scope => 'session') as t2 \gset
select lease_lock.acquire('l', 'A', '1 hour') as t3 \gset
select resource, scope, state, pid = pg_backend_pid() as pid, grant_pid = pg_backend_pid() as grant_pid, token - :t1 as token
  from lease_lock.holders where resource in ('s1', 's2', 'l') order by resource;
select state, ttl, holder, newest - :t1 as newest from lease_lock.token_status('s1', :t1);
select lease_lock.try_acquire('s1', 'B');
select pg_temp.outcome($$select lease_lock.acquire('s1', 'B', wait => '30 ms')$$);
select lease_lock.renew('s1', :t1, '2 hours') > clock_timestamp() + '1 hour' as renewed, lease_lock.assert_held('s1', :t1) > '1 hour' as held;
select lease_lock.release('s1', :t1), lease_lock.release('s1', :t1);
select resource, state from lease_lock.holders where resource in ('s1', 's2', 'l') order by resource;
-- A session has one lock for all of them, and it stays.
select count(*) from pg_locks where locktype = 'advisory' and objsubid = 23 and pid = pg_backend_pid();

-- 6. The same owner again, with another scope: what the last grant says holds.
select lease_lock.acquire('s2', 'A', '1 hour', scope => 'lease') as t4 \gset
select lease_lock.acquire('l', 'A', '1 hour', scope => 'session') as t5 \gset
select :t4 > :t2 as t4, :t5 > :t3 as t5;
select resource, scope, state, pid = pg_backend_pid() as pid from lease_lock.holders where resource in ('s2', 'l') order by resource;
-- In one transaction as well, under the same token.
begin;
select lease_lock.acquire('both', 'A', '1 hour') as t6 \gset
select lease_lock.acquire('both', 'A', '1 hour', scope => 'session') = :t6 as same;
commit;
select scope from lease_lock.holders where resource = 'both';

-- 7. It expires while the session lives, and is not renewed then.
select lease_lock.acquire('short', 'A', '1 ms', scope => 'session') as t7 \gset
select pg_sleep(0.01);
select state, pid = pg_backend_pid() as pid from lease_lock.holders where resource = 'short';
select lease_lock.renew('short', :t7);
select pg_temp.outcome(format('select lease_lock.assert_held(''short'', %s)', :t7));
select lease_lock.acquire('short', 'B', '1 hour', wait => '0') > :t7 as taken;

-- 8. Rolled back it never was; a lease that was released or rolled back does not
-- come back with the session's lock.
begin;
select lease_lock.acquire('undone', 'A', '1 hour', scope => 'session') as t \gset
rollback;
select state from lease_lock.token_status('undone', :t);
select count(*) from lease_lock.holders where resource = 'undone';
begin;
savepoint s;
select lease_lock.acquire('undone', 'A', '1 hour', scope => 'session') as t \gset
rollback to s;
select count(*) from lease_lock.holders where resource = 'undone';
commit;
select lease_lock.acquire('undone', 'B', wait => '0') > :t as taken;

-- 9. PREPARE TRANSACTION is refused to a transaction that acquired one.
begin;
select lease_lock.acquire('prepared', 'A', '1 hour', scope => 'session') as t \gset
\set VERBOSITY default
prepare transaction 'refused';
\set VERBOSITY terse
\echo :SQLSTATE
select state from lease_lock.token_status('prepared', :t);
select count(*) from pg_prepared_xacts;
-- One that renews, releases or writes under one can be prepared.
select lease_lock.acquire('prepared', 'A', '1 hour', scope => 'session') as t \gset
begin;
select lease_lock.renew('prepared', :t, '2 hours') is not null as renewed;
prepare transaction 'renewed';
commit prepared 'renewed';
select remaining > '1 hour' as renewed, state from lease_lock.token_status('prepared', :t);
begin;
select lease_lock.acquire('another', 'A', '1 hour', scope => 'transaction') is not null as acquired;
prepare transaction 'transaction';
commit prepared 'transaction';

-- 10. pg_advisory_unlock_all() and DISCARD ALL end the session's leases as its end
-- does, at once, and leave the others.
create table guarded (v int);
select lease_lock.guard('guarded', 'l');
select resource, scope, state from lease_lock.holders where resource in ('both', 'l', 'prepared', 's2') order by resource;
select pg_advisory_unlock_all();
select resource, scope, state, pid from lease_lock.holders where resource in ('both', 'l', 'prepared', 's2') order by resource;
select state, remaining, holder, newest - :t5 as newest from lease_lock.token_status('l', :t5);
select lease_lock.renew('l', :t5);
select * from pg_temp.refusal(format('select lease_lock.assert_held(''l'', %s)', :t5));
begin;
select lease_lock.present('l', :t5) = :t5 as presented;
select pg_temp.outcome('insert into guarded values (1)');
commit;
select lease_lock.release('l', :t5);
select lease_lock.acquire('l', 'B', '1 hour', wait => '0') > :t5 as taken_at_once;
select state from lease_lock.token_status('l', :t5);
begin;
select lease_lock.present('l', :t5) = :t5 as presented;
select pg_temp.outcome('insert into guarded values (1)');
commit;
-- The session goes on, and gets new ones; the old ones do not come back.
select lease_lock.acquire('s1', 'A', '1 hour', scope => 'session') as t8 \gset
select resource, state from lease_lock.holders where resource in ('both', 'prepared', 's1') and state = 'held' order by resource;
discard all;
select resource, state from lease_lock.holders where resource in ('both', 'prepared', 's1', 's2') and state = 'held' order by resource;
select count(*) from pg_locks where locktype = 'advisory';
select state from lease_lock.token_status('s1', :t8);
-- While its transaction runs, too.
begin;
select lease_lock.acquire('open', 'A', '1 hour', scope => 'session') as t9 \gset
select pg_advisory_unlock_all();
select lease_lock.renew('open', :t9);
commit;
select lease_lock.acquire('open', 'B', wait => '0') > :t9 as taken_at_once;

drop table guarded;
drop extension lease_lock;
drop role regress_app;
