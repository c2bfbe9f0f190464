-- Rolling a guard out: warn first, then enforce; switched in place, and off again.
\set SHOW_CONTEXT never
\set VERBOSITY terse
create extension lease_lock;
\getenv srcdir PG_ABS_SRCDIR
\set refusals :srcdir '/common/refusals.sql'
\set ECHO none
\i :refusals
\set ECHO all
create function pg_temp.triggers(rel regclass) returns table (name name, enabled "char", definition text) language sql as $$
  select tgname, tgenabled, regexp_replace(pg_get_triggerdef(oid), '^CREATE TRIGGER \S+ ', '') from pg_trigger where tgrelid = rel and not tgisinternal order by tgname
$$;
create table t (id int primary key, v int);
create table t_row (id int primary key, v int);
select lease_lock.guard('t', 'job', action => 'warn');
select lease_lock.guard('t_row', 'job/{v}', action => 'warn');
select lease_lock.acquire('job', 'A', '1 hour') as old \gset
select lease_lock.acquire('job', 'A', '1 hour') as new \gset
select lease_lock.acquire('job/1', 'A', '1 hour') as old1 \gset
select lease_lock.acquire('job/1', 'A', '1 hour') as new1 \gset

-- 1. Warned, the write passes: one WARNING a statement and reason.
insert into t select i, 0 from generate_series(1, 3) i;
insert into t_row select i, 1 from generate_series(1, 3) i;
insert into t_row select 3 + i, 1 + i % 2 from generate_series(1, 4) i;
begin;
select lease_lock.present('job', :old);
update t set v = 1;
update t set v = 2 where false;
-- Two reasons in one statement are two warnings.
select lease_lock.present('job/1', :old1);
update t_row set v = 1;
update t_row set v = v;
select lease_lock.present('job/1', 1000000);
update t_row set v = v;
rollback;
begin;
select lease_lock.present('job', :new);
update t set v = 3;
rollback;
select lease_lock.release('job', :new);
begin;
select lease_lock.present('job', :new);
\set VERBOSITY default
truncate t;
\set VERBOSITY terse
rollback;
truncate t;
select count(*) from t;
truncate t_row;
-- Its SQLSTATE is that of the refusal.
\set VERBOSITY sqlstate
insert into t values (1, 0);
\set VERBOSITY terse
-- What cannot be named passes as well.
insert into t_row values (1, null);

-- 2. Switched in place: the same trigger, with other arguments.
select oid as trigger_oid from pg_trigger where tgrelid = 't'::regclass and tgname = 'zz_lease_lock_guard' \gset
select * from pg_temp.triggers('t');
select lease_lock.guard('t', 'job');
select * from pg_temp.triggers('t');
select count(*) as same_trigger from pg_trigger where oid = :trigger_oid;
insert into t values (2, 0);
select lease_lock.guard('t', 'job', action => 'warn');
insert into t values (2, 0);
-- Another template, and another mode.
select lease_lock.guard('t', 'job/{id}', 'newest');
select * from pg_temp.triggers('t');
select pg_temp.outcome('insert into t values (3, 0)');
-- A failed call leaves the guard as it was.
select lease_lock.guard('t', 'job/{nope}');
select lease_lock.guard('t', 'job', 'latest');
select lease_lock.guard('t', 'job', events => 'nothing');
select * from pg_temp.triggers('t');
-- Rolled back as well.
begin;
select lease_lock.unguard('t');
insert into t values (3, 0);
rollback;
select pg_temp.outcome('insert into t values (3, 0)');

-- 3. A list of events.
select lease_lock.guard('t', 'job', events => 'update,delete');
select * from pg_temp.triggers('t');
select pg_temp.outcome(sql) from (values ('insert into t values (3, 0)'), ('update t set v = 9'), ('delete from t'),
  ('insert into t values (3, 0) on conflict (id) do update set v = 0'), ('truncate t')) v(sql);
insert into t values (1, 0), (2, 0);
select lease_lock.guard('t', 'job', events => 'truncate');
select * from pg_temp.triggers('t');
select pg_temp.outcome(sql) from (values ('insert into t values (3, 0)'), ('update t set v = 9'), ('delete from t where id = 3'), ('truncate t')) v(sql);
select lease_lock.guard('t', 'job', events => 'INSERT , Insert');
select * from pg_temp.triggers('t');
select pg_temp.outcome(sql) from (values ('insert into t values (3, 0)'), ('update t set v = 9'), ('truncate t')) v(sql);
select lease_lock.guard('t', 'job', events => 'insert,update,delete,truncate');
select * from pg_temp.triggers('t');

-- 4. From one kind of guard to the other.
alter table t add token bigint;
select lease_lock.guard_column('t', 'token');
select * from pg_temp.triggers('t');
select pg_temp.outcome('insert into t values (4, 0)'), pg_temp.outcome('insert into t values (4, 0, 1)');
select lease_lock.guard('t', 'job');
select * from pg_temp.triggers('t');
-- A disabled guard that is made again.
alter table t disable trigger zz_lease_lock_guard;
insert into t values (5, 0);
select lease_lock.guard('t', 'job');
select pg_temp.outcome('insert into t values (6, 0)');

-- 5. Off: true once.  Triggers that somebody made by hand stay.
create trigger mine before update on t for each row execute function lease_lock.fence('mine');
select lease_lock.unguard('t'), lease_lock.unguard('t_row');
select lease_lock.unguard('t'), lease_lock.unguard('t_row');
select * from pg_temp.triggers('t');
insert into t values (7, 0);
update t set v = 1 where id = 7;
drop trigger mine on t;

-- 6. Renamed, moved, and under a search_path of somebody else's.
select lease_lock.guard('t', 'job');
create schema other;
alter table t rename to "t'2";
alter table "t'2" set schema other;
set search_path = '';
select pg_temp.outcome('insert into other."t''2" values (8, 0)');
select lease_lock.guard('other."t''2"', 'job', action => 'warn');
insert into other."t'2" values (8, 0);
reset search_path;

-- A guard that fires for replicated rows too goes on doing so when it is changed.
select lease_lock.guard('t_row', 'job');
alter table t_row enable always trigger zz_lease_lock_guard;
select lease_lock.guard('t_row', 'job', action => 'warn');
select tgname, tgenabled from pg_trigger where tgrelid = 't_row'::regclass and not tgisinternal order by 1;

-- 7. Each change is on record.
select role = current_user as role, session_role = session_user as session_role, at <= clock_timestamp() as at, action, object, reason, detail
  from lease_lock.audit order by lease_lock.audit.at;

-- 8. The guards keep the extension from going away unnoticed.
drop extension lease_lock;
drop table other."t'2", t_row;
drop schema other;
drop extension lease_lock;
