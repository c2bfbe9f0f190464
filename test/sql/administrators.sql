-- For administrators: force_release and prune.
\set SHOW_CONTEXT never
\set VERBOSITY terse
create extension lease_lock;
set client_min_messages = warning;
\getenv srcdir PG_ABS_SRCDIR
\set refusals :srcdir '/common/refusals.sql'
\set ECHO none
\i :refusals
\set ECHO all
create table h (id int);
create table n (id int);
select lease_lock.guard('h', 'job'), lease_lock.guard('n', 'job', 'newest');
truncate lease_lock.audit;

-- 1. A forced release ends the lease and burns a token: the old one is stale everywhere at once.
select lease_lock.acquire('job', 'A', '1 hour', payload => '"x"') as t \gset
begin;
select lease_lock.present('job', :t) = :t as presented;
insert into h values (1);
insert into n values (1);
commit;
select lease_lock.force_release('job', 'the host burnt down') = :t as ended;
begin;
select lease_lock.present('job', :t) = :t as presented;
select * from pg_temp.refusal('insert into h values (2)');
select * from pg_temp.refusal('insert into n values (2)');
select pg_temp.outcome(format('select lease_lock.assert_held(''job'', %s)', :t));
commit;
select state, newest - :t as burnt, holder from lease_lock.token_status('job', :t);
select lease_lock.renew('job', :t), lease_lock.release('job', :t);
select count(*) from lease_lock.holders;
-- The burnt token is nobody's.
begin;
select lease_lock.present('job', :t + 1) = :t + 1 as presented;
select * from pg_temp.refusal('insert into h values (2)');
commit;
select * from pg_temp.refusal(format('select lease_lock.assert_held(''job'', %s)', :t + 1));
-- Again there is nothing to end; the lease is free at once, for a higher token.
select lease_lock.force_release('job', 'again');
select lease_lock.acquire('job', 'B', '1 hour', wait => '0') as b \gset
select :b > :t + 1 as higher;
select lease_lock.release('job', :b);
select lease_lock.force_release('job', 'released already');
select lease_lock.force_release('never', 'there is none');
-- An expired lease is ended too, since under 'newest' it still writes.
select lease_lock.acquire('job', 'C', '20 ms') as c \gset
select pg_sleep(0.05);
select lease_lock.force_release('job', 'expired') = :c as ended;
begin;
select lease_lock.present('job', :c) = :c as presented;
select pg_temp.outcome('insert into n values (3)'), pg_temp.outcome('insert into h values (3)');
commit;
-- A cooldown after a release is no lease.
select lease_lock.acquire('job', 'D', '1 hour') as d \gset
select lease_lock.release('job', :d, '1 hour');
select lease_lock.force_release('job', 'too cool');
select lease_lock.try_acquire('job', 'E');
-- In a transaction of its own making.
begin;
select lease_lock.acquire('own', 'A', '1 hour') as o \gset
select lease_lock.force_release('own', 'changed my mind') = :o as ended;
select state from lease_lock.token_status('own', :o);
select lease_lock.acquire('own', 'B', '1 hour') > :o + 1 as higher;
commit;
select owner, state from lease_lock.holders;
-- Rolled back, it did not happen; its token is gone all the same.
begin;
select lease_lock.force_release('own', 'not really') is not null as ended;
rollback;
select owner, state from lease_lock.holders;
-- With terminate there is nobody to end but ourselves, and we go on.
select lease_lock.force_release('own', 'for good', true) is not null as ended;
select 'still here' as session;
select pg_temp.outcome('select lease_lock.force_release(''own'', null)'), pg_temp.outcome('select lease_lock.force_release(''own'', '''')');
select lease_lock.force_release('own', 'flag missing', null);
select role = current_user as role, session_role = session_user as session_role, at <= clock_timestamp() as at, action, object, reason, detail
  from lease_lock.audit order by lease_lock.audit.at;

-- 2. It takes the right to call it, and no other.
create role regress_admin;
create role regress_app;
grant usage on schema lease_lock to regress_admin, regress_app;
set role regress_app;
select lease_lock.acquire('app', 'A', '1 hour') as a \gset
select lease_lock.force_release('app', 'mine');
select lease_lock.prune();
select * from lease_lock.audit;
reset role;
grant execute on function lease_lock.force_release, lease_lock.prune to regress_admin;
set role regress_admin;
select lease_lock.force_release('app', 'not mine') = :a as ended;
select lease_lock.prune('0') > 0 as pruned;
reset role;
select role, session_role = session_user as session_role, action, object, reason from lease_lock.audit where role <> current_user order by at;

-- 3. Prune removes what has been idle for long enough, and nothing else.
select lease_lock.prune('0');
select name, mode from lease_lock.fences order by name collate "C";
truncate lease_lock.audit;
select lease_lock.release('released', lease_lock.acquire('released', 'A', '1 hour'));
select lease_lock.release('cooling', lease_lock.acquire('cooling', 'A', '1 hour'), '1 hour');
select lease_lock.acquire('live', 'A', '1 hour') is not null as granted;
select lease_lock.acquire('expired', 'A', '20 ms') is not null as granted;
select lease_lock.acquire('once', 'A', '20 ms', scope => 'transaction') is not null as granted;
select lease_lock.acquire('forced', 'A', '1 hour') is not null as granted;
select lease_lock.force_release('forced', 'test') is not null as ended;
select max(version) as newest from lease_lock.lease \gset
select pg_sleep(0.05);
-- Not idle for a day yet, nor for an hour.
select lease_lock.prune(), lease_lock.prune('1 hour');
select name from lease_lock.fences where mode = 'held' order by name collate "C";
select count(*) from lease_lock.audit where action = 'prune';
select lease_lock.prune('0');
select name from lease_lock.fences where mode = 'held' order by name collate "C";
select lease_lock.prune('0');
select action, object, reason, detail from lease_lock.audit where action = 'prune';
-- Tokens go on upwards, also for the names that are gone.
select name, lease_lock.acquire(name, 'B', '1 hour') > :newest as higher from unnest('{released,expired,once,forced,never}'::text[]) name;
select state from lease_lock.token_status('released', 1);
-- Rolled back, every row is there again.
select lease_lock.release(resource, token) from lease_lock.holders where resource in ('released', 'once') order by resource;
begin;
select lease_lock.prune('0');
select name from lease_lock.fences where mode = 'held' order by name collate "C";
-- A pruned name can be granted again in the same transaction, above what it had.
select lease_lock.acquire('released', 'C') > :newest as higher;
rollback;
select name from lease_lock.fences where mode = 'held' order by name collate "C";
-- One that this transaction released just now.
begin;
select lease_lock.release('once', lease_lock.acquire('once', 'C'));
select lease_lock.prune('0') > 0 as pruned;
rollback;

-- 4. A row that knows a newer token than its fence stays: without it an older token would pass.
select lease_lock.prune('0');
select lease_lock.acquire('job2', 'A', '1 hour') as j \gset
select lease_lock.guard('n', 'job2', 'newest');
begin;
select lease_lock.present('job2', :j) = :j as presented;
insert into n values (1);
commit;
select lease_lock.acquire('job2', 'A', '1 hour') as k \gset
select lease_lock.release('job2', :k);
select lease_lock.prune('0');
begin;
select lease_lock.present('job2', :j) = :j as presented;
select pg_temp.outcome('insert into n values (2)');
commit;
-- Once the fence has seen that token the row can go, and the answer is the same.
begin;
select lease_lock.present('job2', :k) = :k as presented;
insert into n values (3);
commit;
select lease_lock.prune('0');
begin;
select lease_lock.present('job2', :j) = :j as presented;
select pg_temp.outcome('insert into n values (4)');
commit;
select highest = :k as kept, mode from lease_lock.fences where name = 'job2';
-- The next grant is above the fence.
begin;
select lease_lock.present('job2', :k + 1000) = :k + 1000 as presented;
insert into n values (5);
commit;
select lease_lock.acquire('job2', 'C') > :k + 1000 as above_the_fence;

-- 5. While a foreign key refers to the leases, removing rows would leave it dangling.
create table refers (resource text collate "C" references lease_lock.lease (resource));
select * from pg_temp.refusal('select lease_lock.prune(''0'')');
-- Other calls do not mind.
insert into refers values ('job2');
select lease_lock.renew('job2', token) is not null as renewed from lease_lock.holders where resource = 'job2';
drop table refers;
select lease_lock.prune('0') >= 0 as works_again;

-- 6. The owner's own DELETE loses no token either.
select max(highest) as newest from lease_lock.fences \gset
delete from lease_lock.lease;
select lease_lock.acquire('job2', 'D') > :newest as higher;

-- 7. A lease of scope transaction is idle as soon as its transaction has ended, whatever its ttl.
select lease_lock.acquire('short', 'E', '1 hour', scope => 'transaction') > 0 as granted;
select lease_lock.prune('0') as pruned;
begin;
select lease_lock.acquire('short', 'E', '1 hour', scope => 'transaction') > 0 as granted;
select lease_lock.prune('0') as pruned;
commit;

-- 8. Tables of another shape, and indexes that are not ours, are refused before anything is written.
begin;
alter table lease_lock.lease add column extra text default 'x';
select * from pg_temp.refusal('select lease_lock.acquire(''shape'', ''F'')');
rollback;
begin;
alter table lease_lock.audit add column extra text default 'x';
select * from pg_temp.refusal('select lease_lock.force_release(''job2'', ''audit has another shape'')');
rollback;
begin;
create index other_kind on lease_lock.lease using brin (resource);
select * from pg_temp.refusal('select lease_lock.acquire(''shape'', ''F'')');
rollback;
begin;
create index part on lease_lock.lease (resource) where version > 0;
select * from pg_temp.refusal('select lease_lock.acquire(''shape'', ''F'')');
rollback;
select lease_lock.acquire('shape', 'F') > 0 as granted;

drop table h, n;
drop extension lease_lock;
drop role regress_admin, regress_app;
