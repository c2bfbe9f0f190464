-- The views holders and fences, at their latest state and for everybody's eyes.
\set SHOW_CONTEXT never
\set VERBOSITY terse
create extension lease_lock;
set client_min_messages = warning;
create role regress_app;
create role regress_other;
create role regress_member in role regress_app;
create role regress_stats in role pg_read_all_stats;
grant usage on schema lease_lock to regress_app, regress_other, regress_member, regress_stats;

-- 1. A held lease.
select * from lease_lock.holders;
select * from lease_lock.fences;
set application_name = 'worker 7';
set role regress_app;
select lease_lock.acquire('job', 'A', '1 hour', payload => '{"host": "db-7"}') as t \gset
reset role;
set application_name = 'dba';
select resource, owner, token, scope, state, waiters, payload, role, application_name from lease_lock.holders;
select expire_at - clock_timestamp() between '59 min' and '1 hour' as expire_at, remaining between '59 min' and '1 hour' as remaining,
       held_for between '0' and '1 min' as held_for, client_addr is not distinct from inet_client_addr() as client_addr, pid, grant_pid = pg_backend_pid() as grant_pid
  from lease_lock.holders;
select name, highest, mode, accepted_at <= clock_timestamp() as accepted_at, accepted_by from lease_lock.fences;
-- held_for counts from the grant, not from a renewal.
select lease_lock.renew('job', :t, '30 min') is not null as renewed;
select remaining < '31 min' as renewed, held_for > '0' as held_for from lease_lock.holders;

-- 2. Others see who holds what, and not the payload, application_name and client_addr.
set role regress_other;
select resource, owner, token, state, payload, role, application_name, client_addr is null as no_address, grant_pid is null as no_pid from lease_lock.holders;
select name, highest, mode, accepted_by from lease_lock.fences;
select count(*) from lease_lock.lease;
set role regress_stats;
select payload, application_name from lease_lock.holders;
set role regress_member;
select payload, application_name from lease_lock.holders;
set role regress_app;
select payload, application_name from lease_lock.holders;
reset role;

-- 3. Expired: still shown, until somebody takes it.
select lease_lock.acquire('nap', 'A', '20 ms') as nap \gset
select pg_sleep(0.05);
select resource, owner, token, remaining, state, pid from lease_lock.holders where resource = 'nap';
select highest, mode from lease_lock.fences where name = 'nap';
-- Released: not shown, but its token still counts.
select lease_lock.acquire('nap', 'B', '1 hour') as nap \gset
select lease_lock.release('nap', :nap);
select count(*) from lease_lock.holders where resource = 'nap';
select highest, mode from lease_lock.fences where name = 'nap';
-- Ended by an administrator.
select lease_lock.acquire('nap', 'C', '1 hour') as nap \gset
select lease_lock.force_release('nap', 'test');
select count(*) from lease_lock.holders where resource = 'nap';
select highest > :nap as above, mode from lease_lock.fences where name = 'nap';

-- 4. Uncommitted: the pid is the backend whose end would end it.
begin;
select lease_lock.acquire('new', 'A', '1 hour') as new \gset
select resource, owner, token = :new as token, state, pid = pg_backend_pid() as pid from lease_lock.holders where resource = 'new';
-- A takeover is shown instead of what it replaces.
select lease_lock.acquire('job', 'A', '1 hour') as t2 \gset
select count(*), max(token) = :t2 as newer, max(state) as state from lease_lock.holders where resource = 'job';
-- A renewal is no grant.
commit;
begin;
select lease_lock.renew('new', :new) is not null as renewed;
select state, pid from lease_lock.holders where resource = 'new';
select lease_lock.release('new', :new);
select state, pid from lease_lock.holders where resource = 'new';
rollback;
select state, pid from lease_lock.holders where resource = 'new';
begin;
select lease_lock.acquire('mine', 'A', scope => 'transaction') is not null as granted;
select scope, state, pid = pg_backend_pid() as pid from lease_lock.holders where resource = 'mine';
commit;
select count(*) from lease_lock.holders where resource = 'mine';

-- 5. Prepared: no backend's end would end it.
begin;
select lease_lock.acquire('two-phase', 'A', '1 hour') as p \gset
prepare transaction 'regress_two_phase';
select owner, token = :p as token, state, pid, grant_pid = pg_backend_pid() as grant_pid from lease_lock.holders where resource = 'two-phase';
select lease_lock.try_acquire('two-phase', 'B');
select lease_lock.acquire('two-phase', 'B', wait => '100 ms');
select state from lease_lock.token_status('two-phase', :p);
commit prepared 'regress_two_phase';
select owner, token = :p as token, state, pid from lease_lock.holders where resource = 'two-phase';
begin;
select lease_lock.acquire('two-phase', 'A', '1 hour') as p2 \gset
prepare transaction 'regress_two_phase';
select owner, token = :p2 as token, state from lease_lock.holders where resource = 'two-phase';
rollback prepared 'regress_two_phase';
select owner, token = :p as token, state from lease_lock.holders where resource = 'two-phase';
-- A prepared guarded write keeps others out until it ends.
create table t (id int);
select lease_lock.guard('t', 'two-phase');
begin;
select lease_lock.present('two-phase', :p) = :p as presented;
insert into t values (1);
prepare transaction 'regress_two_phase';
select lease_lock.release('two-phase', :p);
select lease_lock.try_acquire('two-phase', 'B');
select lease_lock.acquire('two-phase', 'B', wait => '100 ms');
commit prepared 'regress_two_phase';
select lease_lock.try_acquire('two-phase', 'B') > :p as granted;
select count(*) from t;

-- 6. Both modes of one name, and no token that is not committed.
create table n (id int);
select lease_lock.guard('n', 'job', 'newest');
set role regress_app;
select name, highest, mode from lease_lock.fences where name = 'job';
reset role;
begin;
select lease_lock.present('job', 1000);
insert into n values (1);
select name, highest, mode from lease_lock.fences where name = 'job' order by mode;
commit;
select name, highest, mode, accepted_by = current_user as by from lease_lock.fences where name = 'job' order by mode;

-- 7. At any isolation level, and in a transaction that may only read.
begin isolation level serializable read only;
select count(*) > 0 as readable from lease_lock.holders;
select count(*) > 0 as readable from lease_lock.fences;
select state from lease_lock.token_status('job', 1);
rollback;
select resource, state from lease_lock.holders order by resource collate "C";

drop table t, n;
drop extension lease_lock;
drop role regress_app, regress_other, regress_member, regress_stats;
