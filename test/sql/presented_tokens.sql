-- What a transaction presents: for itself alone, following savepoints, to its end.
\set SHOW_CONTEXT never
\set VERBOSITY terse
create extension lease_lock;
\getenv srcdir PG_ABS_SRCDIR
\set refusals :srcdir '/common/refusals.sql'
\set ECHO none
\i :refusals
\set ECHO all
-- In mode 'newest' the fence tells which token a write carried.
create table t (id int generated always as identity, v int);
select lease_lock.guard('t', 'job', 'newest');
create function pg_temp.carried() returns bigint language plpgsql as $$
declare h bigint;
begin
  insert into t values (default, 0);
  select highest into h from lease_lock.fences where name = 'job';
  return h;
end $$;

-- 1. A second call replaces the first, upwards and downwards.
begin;
select lease_lock.present('job', 5);
select lease_lock.present('job', 7);
select pg_temp.carried();
rollback;
begin;
select lease_lock.present('job', 7);
select lease_lock.present('job', 5);
select pg_temp.carried();
rollback;

-- 2. Savepoints.
begin;
select lease_lock.present('job', 5);
savepoint s;
select lease_lock.present('job', 7);
rollback to s;
select pg_temp.carried();
rollback;
begin;
savepoint s;
select lease_lock.present('job', 7);
rollback to s;
select pg_temp.outcome('insert into t values (default, 0)');
rollback;
begin;
select lease_lock.present('job', 5);
savepoint a;
select lease_lock.present('job', 6);
savepoint b;
select lease_lock.present('job', 7);
release b;
savepoint c;
select lease_lock.present('job', 8);
savepoint d;
select lease_lock.present('job', 9);
select lease_lock.present('job', 10);
rollback to d;
savepoint x;
select pg_temp.carried();
rollback to x;
rollback to c;
select pg_temp.carried();
rollback to a;
select pg_temp.carried();
rollback;
-- A released savepoint's token stays, and goes with the savepoint around it.
begin;
savepoint a;
savepoint b;
select lease_lock.present('job', 7);
release b;
savepoint c;
select lease_lock.present('job', 8);
rollback to c;
release c;
savepoint x;
select pg_temp.carried();
rollback to x;
rollback to a;
select pg_temp.outcome('insert into t values (default, 0)');
rollback;
begin;
savepoint a;
select lease_lock.present('job', 7);
release a;
select pg_temp.carried();
rollback;

-- 3. PL/pgSQL's exception blocks are savepoints.
begin;
select lease_lock.present('job', 5);
do $$
begin
  perform lease_lock.present('job', 7);
  raise exception 'stop';
exception when others then
  null;
end $$;
select pg_temp.carried();
rollback;
begin;
select lease_lock.present('job', 9);
insert into t values (default, 0);
commit;
begin;
select lease_lock.present('job', 9);
do $$
begin
  perform lease_lock.present('job', 7);
  -- raised by the guard itself
  insert into t values (default, 0);
  raise info 'not refused';
exception when sqlstate 'LL001' then
  raise info '%', sqlerrm;
end $$;
select pg_temp.carried();
do $$
begin
  perform lease_lock.present('job', 10);
exception when others then
  null;
end $$;
select pg_temp.carried();
rollback;

-- 4. Forgotten at the end, whichever way it ends; DISCARD and RESET find nothing.
begin;
select lease_lock.present('job', 11);
commit;
select pg_temp.outcome('insert into t values (default, 0)');
begin;
select lease_lock.present('job', 11);
rollback;
select pg_temp.outcome('insert into t values (default, 0)');
begin;
select lease_lock.present('job', 11);
select 1 / 0;
commit;
select pg_temp.outcome('insert into t values (default, 0)');
begin;
select lease_lock.present('job', 11);
commit and chain;
insert into t values (default, 0);
rollback;
begin;
select lease_lock.present('job', 11);
prepare transaction 'regress_presented';
insert into t values (default, 0);
commit prepared 'regress_presented';
insert into t values (default, 0);
begin;
select lease_lock.present('job', 11);
reset all;
set local session authorization default;
select pg_temp.carried();
rollback;

-- 5. In autocommit it can do nothing, and says so.
\set VERBOSITY default
select lease_lock.present('job', 12);
\set VERBOSITY sqlstate
select lease_lock.present('job', 12);
\set VERBOSITY terse
select lease_lock.present('job', 12), lease_lock.present('other', 13);
do $$ begin perform lease_lock.present('job', 12); end $$;
-- Used by the same statement it did something.
do $$ begin perform lease_lock.present('job', 12); insert into t values (default, 0); end $$;
select highest from lease_lock.fences where name = 'job';
-- Several statements sent at once are one transaction.
select lease_lock.present('job', 13)\; insert into t values (default, 0);
select highest from lease_lock.fences where name = 'job';
select lease_lock.present('job', 14)\; select 1;
begin;
select lease_lock.present('job', 13);
commit;

-- 6. What is presented is told when it is not enough.
create table held (id int);
select lease_lock.guard('held', 'work');
\set VERBOSITY default
begin;
select lease_lock.present('job', 13);
insert into held values (1);
rollback;
insert into held values (1);
\set VERBOSITY terse
-- Cut off where it gets long.
create function pg_temp.listed(n int) returns text language plpgsql as $$
declare d text;
begin
  perform lease_lock.present('name ' || i, i) from generate_series(1, n) i;
  insert into held values (1);
  return 'not refused';
exception when sqlstate 'LL002' then
  get stacked diagnostics d = pg_exception_detail;
  return (select case when count(*) = n then 'all' else 'some' end from regexp_matches(d, 'token \d', 'g')) || case when length(d) < 1500 then ', short' else ', long' end;
end $$;
select n, pg_temp.listed(n) from unnest('{0,1,2,8,1000}'::int[]) n;

-- 7. A check is remembered, and forgotten with its savepoint, its lease, or another token.
select lease_lock.acquire('work', 'A', '1 hour') as t1 \gset
create function pg_temp.locks() returns bigint language sql as $$ select count(*) from pg_locks where locktype = 'advisory' and pid = pg_backend_pid() $$;
begin;
select lease_lock.present('work', :t1);
select pg_temp.locks();
insert into held values (1);
select pg_temp.locks();
insert into held values (2);
select pg_temp.locks();
-- Renewed by itself, it is still held.
select lease_lock.renew('work', :t1) is not null as renewed;
insert into held values (3);
-- Released by itself, it is not.
savepoint s;
select lease_lock.release('work', :t1);
select pg_temp.outcome('insert into held values (4)');
rollback to s;
insert into held values (4);
-- Another token is another check.
select lease_lock.present('work', :t1 + 1000);
select pg_temp.outcome('insert into held values (5)');
select lease_lock.present('work', :t1);
insert into held values (5);
commit;
select pg_temp.locks();
select array_agg(id order by id) from held;
-- With the savepoint that made it goes its lock, so the next write checks again.
select lease_lock.acquire('work', 'A', '700 ms') as t2 \gset
begin;
select lease_lock.present('work', :t2);
savepoint s;
insert into held values (6);
select pg_temp.locks();
rollback to s;
select pg_temp.locks();
select pg_sleep(0.8);
select pg_temp.outcome('insert into held values (7)');
rollback;
-- Made before the savepoint, it stays.
select lease_lock.acquire('work', 'A', '700 ms') as t3 \gset
begin;
select lease_lock.present('work', :t3);
insert into held values (6);
savepoint s;
insert into held values (7);
rollback to s;
select pg_sleep(0.8);
select pg_temp.outcome('insert into held values (8)');
commit;
-- A grant presents by itself, also over another token and inside a savepoint.
begin;
select lease_lock.present('work', :t3);
savepoint s;
select lease_lock.acquire('work', 'B') as t4 \gset
insert into held values (9);
rollback to s;
select pg_temp.outcome('insert into held values (10)');
rollback;
select array_agg(id order by id) from held;

-- 8. Ten thousand names in one transaction.
begin;
select count(*) from (select lease_lock.present('name ' || i, i) from generate_series(1, 10000) i) p;
savepoint s;
select count(*) from (select lease_lock.present('name ' || i, 20000) from generate_series(1, 10000) i) p;
rollback to s;
create table many (id int);
select lease_lock.guard('many', 'name {id}', 'newest');
insert into many select generate_series(1, 50);
select count(*), bool_and(highest = split_part(name, ' ', 2)::bigint) as as_presented from lease_lock.fences where name ~ '^name';
rollback;

drop table t, held;
drop extension lease_lock;
