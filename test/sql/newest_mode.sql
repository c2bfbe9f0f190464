-- Mode 'newest': a token is accepted unless it is older than the highest one
-- accepted under that name, or than the newest grant of a lease of that name.
\set SHOW_CONTEXT never
\set VERBOSITY terse
create extension lease_lock;
set client_min_messages = warning;
\getenv srcdir PG_ABS_SRCDIR
\set refusals :srcdir '/common/refusals.sql'
\set ECHO none
\i :refusals
\set ECHO all
create table t (id int primary key, v int);
insert into t values (1, 0), (2, 0);
select lease_lock.guard('t', 'epoch', 'newest');
select pg_get_triggerdef(oid) from pg_trigger where tgrelid = 't'::regclass order by tgname;
create function pg_temp.write(token bigint, sql text default 'update t set v = v + 1 where id = 1') returns text language plpgsql as $$
begin
  perform lease_lock.present('epoch', token);
  return pg_temp.outcome(sql);
end $$;
create function pg_temp.highest() returns bigint language plpgsql as $$
begin
  return (select highest from lease_lock.fences where name = 'epoch' and mode = 'newest');
end $$;

-- 1. The plain rule.  The tokens are somebody else's: no lease is needed.
select * from lease_lock.fences;
select pg_temp.write(7);
select name, highest, mode, accepted_at <= clock_timestamp() as at, accepted_by = current_user as by from lease_lock.fences;
select pg_temp.write(6);
select pg_temp.write(7);
select v from t where id = 1;
begin;
select lease_lock.present('epoch', 6);
select * from pg_temp.refusal('update t set v = 0');
rollback;
select pg_temp.outcome('update t set v = 0');
select * from pg_temp.refusal('update t set v = 0');
-- An equal token writes nothing: the row is the same version.
select xmin, ctid, accepted_at from lease_lock.fence \gset old_
select pg_temp.write(7), pg_temp.write(7, 'insert into t values (3, 0)'), pg_temp.write(7, 'delete from t where id = 3'), pg_temp.write(7, 'truncate t'), pg_temp.write(7, 'insert into t values (1, 0), (2, 0)');
select xmin = :'old_xmin' and ctid = :'old_ctid' and accepted_at = :'old_accepted_at' as untouched, highest from lease_lock.fence;
-- A higher one raises it, and the lower one is out.
select pg_temp.write(9);
select highest from lease_lock.fences;
select pg_temp.write(8), pg_temp.write(7);
select highest from lease_lock.fences;

-- 2. What does not move it.
begin;
select pg_temp.write(20);
select pg_temp.write(10), pg_temp.write(20);
rollback;
select highest from lease_lock.fences;
select pg_temp.write(10);
select highest from lease_lock.fences;
begin;
savepoint s;
select pg_temp.write(20);
rollback to s;
select pg_temp.write(11);
commit;
select highest from lease_lock.fences;
-- A statement that fails for another reason.
select pg_temp.write(20, 'insert into t values (1, 0)');
select pg_temp.write(20, 'update t set v = 1 / (id - id)');
select highest from lease_lock.fences;
-- A refused statement, also where another name of it was accepted before.
create table two (a int, b int);
select lease_lock.guard('two', '{a}', 'newest');
begin;
select lease_lock.present('1', 50), lease_lock.present('2', 51);
select pg_temp.outcome('insert into two values (1, 0), (2, 0), (3, 0)');
commit;
select name, highest from lease_lock.fences order by name collate "C";
select count(*) from two;
-- Presenting alone, and tokens that are none.
begin;
select lease_lock.present('epoch', 99);
commit;
select pg_temp.write(0);
select lease_lock.present('epoch', -1);
select highest from lease_lock.fences where name = 'epoch';

-- 3. A statement that writes no row counts at statement level ...
select pg_temp.write(12, 'update t set v = 0 where id = 77');
select highest from lease_lock.fences where name = 'epoch';
select pg_temp.write(13, 'insert into t values (1, 0) on conflict do nothing');
select highest from lease_lock.fences where name = 'epoch';
select pg_temp.write(14, 'truncate t');
select highest from lease_lock.fences where name = 'epoch';
-- ... and not at row level, unless a row was met.
begin;
select lease_lock.present('1', 60);
insert into two select 1, 0 where false;
update two set b = 1 where a = 1;
delete from two where a = 1;
commit;
select count(*) from lease_lock.fences where name = '1';
create unique index on two (a);
begin;
select lease_lock.present('1', 60);
insert into two values (1, 0);
commit;
select highest from lease_lock.fences where name = '1';
begin;
select lease_lock.present('1', 61);
merge into two using (values (1)) v(a) on two.a = v.a when matched then do nothing;
commit;
select highest from lease_lock.fences where name = '1';
-- A row that ON CONFLICT skips was shown to the guard, and counts.
begin;
select lease_lock.present('1', 62);
insert into two values (1, 0) on conflict do nothing;
commit;
select highest from lease_lock.fences where name = '1';
drop table two;

-- 4. Each way of writing moves it once, and is refused below it.
select pg_temp.write(14, 'insert into t values (1, 0), (2, 0), (3, 0)');
create temp table writes (n int generated always as identity, sql text);
insert into writes (sql) values
  ('insert into t values (7, 0)'), ('update t set v = 1 where id = 1'), ('delete from t where id = 2'),
  ('insert into t values (1, 0) on conflict (id) do update set v = 2'),
  ('merge into t using (values (1), (8)) v(id) on t.id = v.id when matched then update set v = 3 when not matched then insert values (v.id, 0)'),
  ('with w as (delete from t where id = 3) select 1'), ('truncate t');
select n, pg_temp.write(100 + n, sql), pg_temp.highest(), pg_temp.write(99 + n, sql) as older from writes order by n;
begin;
select lease_lock.present('epoch', 200);
copy t from stdin;
1	0
2	0
\.
commit;
select highest from lease_lock.fences where name = 'epoch';
begin;
select lease_lock.present('epoch', 199);
copy t from stdin;
3	0
\.
rollback;
select * from t order by id;

-- 5. A lease of the same name: its newest grant counts too, held or not.
select lease_lock.acquire('epoch', 'A', '1 hour') as a \gset
-- Its token is above what the fence has seen.
select :a;
select pg_temp.write(200);
select pg_temp.write(:a), pg_temp.write(:a - 1);
select name, highest, mode from lease_lock.fences where name = 'epoch' order by mode;
-- Released or expired it still writes until somebody newer is seen.
select lease_lock.release('epoch', :a);
select pg_temp.write(:a);
select lease_lock.acquire('epoch', 'B', '20 ms') as b \gset
select pg_temp.write(:a);
select pg_sleep(0.05);
select pg_temp.write(:b);
-- Of its own transaction.
begin;
select lease_lock.acquire('epoch', 'C') as c \gset
select pg_temp.outcome('update t set v = 42 where id = 1');
select pg_temp.write(:b);
rollback;
select pg_temp.write(:b);
-- A token from elsewhere can be newer than the lease's; the next grant goes above it.
select pg_temp.write(5000);
select pg_temp.write(:b);
select lease_lock.acquire('epoch', 'D', '1 hour') as d \gset
select :d > 5000 as above, lease_lock.acquire('something else', 'D') > 5000 as others_too;
select pg_temp.write(5000), pg_temp.write(:d);
-- The largest number is a token like any other here; after it no grant can be newer.
select lease_lock.guard('t', 'top', 'newest');
begin;
select lease_lock.present('top', 9223372036854775807);
update t set v = 0;
savepoint s;
select lease_lock.acquire('top', 'A');
rollback to s;
select lease_lock.try_acquire('top', 'A');
rollback;
-- That name alone is affected, and only while its fence says so.
select lease_lock.acquire('something else again', 'A') > :d as granted;
select lease_lock.acquire('top', 'A') > :d as granted;
select lease_lock.guard('t', 'epoch', 'newest');

-- 6. Modes side by side: one name, a table guarded each way.
create table h (id int);
select lease_lock.guard('h', 'epoch', 'held');
begin;
select lease_lock.present('epoch', 6000);
select pg_temp.outcome('update t set v = 1 where id = 1');
select pg_temp.outcome('insert into h values (1)');
select lease_lock.present('epoch', :d);
select pg_temp.outcome('insert into h values (1)');
select pg_temp.outcome('update t set v = 1 where id = 1');
rollback;
-- Under both modes at once in one transaction.
begin;
select lease_lock.present('epoch', :d);
insert into h values (1);
update t set v = 7 where id = 1;
insert into h values (2);
update t set v = 8 where id = 1;
commit;
select v from t where id = 1;
select count(*) from h;
-- Whether the check was remembered shows in a second table of that name.
create table t2 (id int);
select lease_lock.guard('t2', 'epoch', 'newest');
begin;
select lease_lock.present('epoch', 7000);
update t set v = 9 where id = 1;
insert into t2 values (1);
select lease_lock.present('epoch', :d);
select pg_temp.outcome('insert into t2 values (1)');
commit;
select highest from lease_lock.fences where name = 'epoch' and mode = 'newest';

drop table t, t2, h;
drop extension lease_lock;
