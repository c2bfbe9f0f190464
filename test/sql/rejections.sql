-- What guards refused, or only warned of, is kept: with who, what and why,
-- folded and counted exactly, whatever becomes of the transaction.
\set SHOW_CONTEXT never
\set VERBOSITY terse
create extension lease_lock;
set client_min_messages = error;
\getenv srcdir PG_ABS_SRCDIR
\set refusals :srcdir '/common/refusals.sql'
\set ECHO none
\i :refusals
\set ECHO all
set application_name = 'rejections';
-- Times and pids are only compared.
create function pg_temp.rejected(prefix text default '') returns table (relation regclass, statement text, resource text, token bigint, newest bigint, reason text, action text, count bigint, times boolean, mine boolean) language sql as $$
  select relation, statement, resource, token, newest, reason, action, count,
         case when count = 1 then first_at = at else first_at <= at end and at between now() - interval '1 hour' and clock_timestamp(),
         role = current_user and pid = pg_backend_pid() and application_name = 'rejections'
  from lease_lock.rejections where coalesce(relation::text, 'assert_held') like $1 || '%' and pid = pg_backend_pid()
  order by relation::text collate "C", statement collate "C", reason collate "C", resource collate "C", token
$$;
-- Other tests' tables are gone.
create function pg_temp.counted(prefix text default '') returns table (relation regclass, reason text, action text, count bigint, times boolean) language sql as $$
  select relation, reason, action, count, case when count = 1 then first_at = last_at else first_at <= last_at end
  from lease_lock.rejection_counts where relation::text like $1 || '%' and relation::oid in (select oid from pg_class) order by relation::text collate "C", reason collate "C", action collate "C"
$$;
create table held (id int primary key, v int);
create table named (id int primary key, v int);
create table newest (id int primary key, v int);
create table carried (id int primary key, v int, token bigint);
create table carried_name (id int primary key, v int, token bigint);
insert into held values (1, 0);
insert into named values (1, 0);
insert into carried values (1, 0, 5);
insert into carried_name values (1, 0, 1);
select lease_lock.guard('held', 'job'), lease_lock.guard('named', 'job/{v}'), lease_lock.guard('newest', 'new', 'newest');
select lease_lock.guard_column('carried', 'token'), lease_lock.guard_column('carried_name', 'token', resource => 'job');
select lease_lock.acquire('job', 'A', '1 hour') as old, lease_lock.acquire('other', 'A', '1 hour') as other \gset
select lease_lock.acquire('job', 'A', '1 hour') as job \gset
select lease_lock.acquire('job/0', 'A', '1 hour') as zero \gset
select * from pg_temp.rejected();
select * from pg_temp.counted();

-- 1. Every statement, without a token.
select pg_temp.outcome(sql) from unnest(array['insert into held values (2, 0)', 'update held set v = 1', 'delete from held', 'truncate held',
  'insert into named values (2, 0)', 'update named set v = 1', 'delete from named', 'truncate named',
  'insert into newest values (1, 0)',
  'insert into carried values (2, 0)', 'update carried set token = null', 'delete from carried', 'truncate carried',
  'insert into carried_name values (2, 0)', 'update carried_name set token = null', 'delete from carried_name', 'truncate carried_name']) sql;
select * from pg_temp.rejected();
select * from pg_temp.counted();

-- 2. Every other reason.
begin;
select lease_lock.present('job', :old), lease_lock.present('job/0', 1000000);
select left(pg_temp.outcome(sql), 5) from unnest(array['update held set v = 1', 'update named set v = v', 'insert into named values (2, null)',
  'update carried set token = 4', 'update carried set token = -4', 'delete from carried_name']) sql;
select lease_lock.present('new', 10);
select left(pg_temp.outcome('insert into newest values (1, 0)'), 5);
select lease_lock.present('new', 9);
select left(pg_temp.outcome('insert into newest values (2, 0)'), 5);
commit;
select left(pg_temp.outcome('update carried_name set token = 1'), 5);
select lease_lock.release('job', :job);
begin;
select lease_lock.present('job', :job);
select left(pg_temp.outcome('update held set v = 1'), 5);
rollback;
select * from pg_temp.rejected() where reason <> 'no token';
select * from pg_temp.counted() where reason <> 'no token';

-- 3. Other ways to write.  A statement that is refused twice is two of them.
select left(pg_temp.outcome(sql), 5) from unnest(array['merge into held h using (values (1)) m (id) on h.id = m.id when matched then delete',
  'merge into held h using (values (7)) m (id) on h.id = m.id when not matched then insert values (7, 7)',
  'insert into held values (1, 1) on conflict (id) do update set v = 1', 'with w as (update held set v = 1 returning v) select * from w']) sql;
copy held from stdin;
9	9
\.
create table parent (id int primary key);
create table newest_child (id int references parent on delete cascade);
insert into parent values (1);
insert into newest_child values (1);
select lease_lock.guard('newest_child', 'child');
select left(pg_temp.outcome('delete from parent'), 5), left(pg_temp.outcome('truncate parent cascade'), 5);
select * from pg_temp.rejected('held') where reason = 'no token';
select * from pg_temp.rejected('newest_child');
-- Rolled back by a savepoint, by ROLLBACK, and by an error in between.
begin;
savepoint s;
delete from newest_child;
rollback to s;
delete from newest_child;
rollback;
select * from pg_temp.rejected('newest_child');
select * from pg_temp.counted('newest_child');

-- 4. Repeats are folded; another token, role or process is another entry.
do $$
begin
  for i in 1..100 loop
    begin
      update held set v = 2;
    exception when sqlstate 'LL002' then null;
    end;
  end loop;
end $$;
select relation, statement, count from pg_temp.rejected('held') where statement = 'update' and reason = 'no token';
create role regress_writer;
grant update on held to regress_writer;
set role regress_writer;
update held set v = 3;
reset role;
set application_name = 'renamed';
update held set v = 3;
select statement, nullif(role, current_user) as other_role, application_name, count from lease_lock.rejections
  where relation = 'held'::regclass and statement = 'update' and reason = 'no token' order by role <> current_user;
set application_name = 'rejections';
select pg_backend_pid() as old_pid \gset
\c
set client_min_messages = error;
update held set v = 3;
select count(distinct pid), count(*) filter (where pid = :old_pid) as before from lease_lock.rejections where relation = 'held'::regclass and statement = 'update' and reason = 'no token' and role = current_user;
select count from lease_lock.rejection_counts where relation = 'held'::regclass and reason = 'no token';
-- The newest first.
select relation, statement from lease_lock.rejections limit 1;

-- 5. Under warn each row counts, where the guard looks at rows.
set application_name = 'rejections';
\set ECHO none
\i :refusals
\set ECHO all
create table warned (id int, v int, token bigint);
create table warned_once (id int);
select lease_lock.guard('warned', 'job/{v}', action => 'warn'), lease_lock.guard('warned_once', 'job', action => 'warn');
insert into warned select i, 1 + i % 2 from generate_series(1, 10) i;
update warned set id = id where v = 1;
insert into warned values (0, null);
delete from warned where id <= 4;
truncate warned;
insert into warned_once select generate_series(1, 10);
select statement, resource, token, newest, reason, action, count from lease_lock.rejections where relation = 'warned'::regclass order by statement, reason, resource;
select statement, resource, token, newest, reason, action, count from lease_lock.rejections where relation = 'warned_once'::regclass;
select relation, reason, action, count from lease_lock.rejection_counts where relation in ('warned'::regclass, 'warned_once'::regclass) order by 1, 2;
-- What passes is not counted, and one row that is refused for two reasons is refused once.
drop table warned;
create table warned (id int, v int, token bigint);
insert into warned values (1, 0, 1000000), (2, 0, 1);
select lease_lock.guard_column('warned', 'token', 'warn', 'job/{v}');
begin;
select lease_lock.present('job/0', :zero);
delete from warned where id = 2;
select * from lease_lock.rejection_counts where relation = 'warned'::regclass;
select lease_lock.present('job/0', 1);
delete from warned where id = 1;
rollback;
select statement, resource, token, reason, action, count from lease_lock.rejections where relation = 'warned'::regclass;
select reason, action, count from lease_lock.rejection_counts where relation = 'warned'::regclass;
-- Warned and then refused are counted apart.
select lease_lock.guard_column('warned', 'token', 'enforce', 'job/{v}');
select left(pg_temp.outcome('insert into warned values (3, 0, null)'), 5);
select reason, action, count from lease_lock.rejection_counts where relation = 'warned'::regclass and reason = 'no token';
drop table warned_once;

-- 6. assert_held has no table.
select coalesce(sum(count), 0) as before from lease_lock.rejection_counts where relation is null \gset
select left(pg_temp.outcome(format('select lease_lock.assert_held(%L, %s)', name, token)), 5) from (values ('other', :other + 1000), ('job', :job), ('job', :old), ('nobody', 1), ('nobody', 0), ('job', :job)) v (name, token);
select lease_lock.assert_held('other', :other) > '0' as held;
-- Another role's lease is no matter of fencing.
grant usage on schema lease_lock to regress_writer;
set role regress_writer;
select left(pg_temp.outcome(format('select lease_lock.assert_held(''other'', %s)', :other)), 5);
reset role;
select relation, statement, resource, token = :job as is_job, token, newest, reason, action, count from lease_lock.rejections
  where statement = 'assert_held' and pid = pg_backend_pid() order by resource collate "C", token;
select sum(count) - :before as counted from lease_lock.rejection_counts where relation is null;
-- Nor is a token that present refuses.
select lease_lock.present('job', -1);
select sum(count) - :before as counted from lease_lock.rejection_counts where relation is null;

-- 7. Names as they are.
create table odd (name text);
select lease_lock.guard('odd', '{name}');
select left(pg_temp.outcome(format('insert into odd values (%L)', name)), 5) from unnest(array['a''b"\%', 'Zürich', repeat('x', 512), E'a\nb', repeat('y', 513), '']) name;
select reason, left(resource, 10) as resource, octet_length(resource) as bytes from lease_lock.rejections where relation = 'odd'::regclass order by reason, left(resource, 10) collate "C";

-- 8. The last 256 are kept; the counts go on.
create table many (id int);
select lease_lock.guard('many', 'many/{id}', action => 'warn');
insert into many select generate_series(1, 300);
select count(*), min(substr(resource, 6)::int), max(substr(resource, 6)::int) from lease_lock.rejections where relation = 'many'::regclass;
select count(*) from lease_lock.rejections;
-- What is repeated is kept as if it were new.
insert into many values (45);
insert into many select generate_series(301, 400);
select count(*), sum(count), min(substr(resource, 6)::int), count(*) filter (where substr(resource, 6)::int between 46 and 144) as old from lease_lock.rejections where relation = 'many'::regclass;
select count from lease_lock.rejection_counts where relation = 'many'::regclass;

-- 9. Tables that are renamed or gone, roles that are gone.
set role regress_writer;
update held set v = 3;
reset role;
alter table held rename to holding;
select relation, statement, role from lease_lock.rejections limit 1;
select relation, count from lease_lock.rejection_counts where relation = 'holding'::regclass and reason = 'no token';
drop table holding;
revoke usage on schema lease_lock from regress_writer;
drop role regress_writer;
select relation::text ~ '^\d+$' as number, statement, role from lease_lock.rejections limit 1;

-- 10. They are for those who may read statistics.
create role regress_reader;
create role regress_app;
grant usage on schema lease_lock to regress_reader, regress_app;
grant pg_read_all_stats to regress_reader;
set role regress_reader;
select count(*) > 0 as rejections from lease_lock.rejections;
select count(*) > 0 as counts from lease_lock.rejection_counts;
set role regress_app;
select count(*) from lease_lock.rejections;
select count(*) from lease_lock.rejection_counts;
select count(*) from lease_lock.rejections_data();
select count(*) from lease_lock.rejection_counts_data();
reset role;
revoke usage on schema lease_lock from regress_reader, regress_app;
drop role regress_reader, regress_app;

-- 11. Each database has its own, though the tables' OIDs may be the same.
select current_database() as this, count(*) as this_many, (select sum(count) from lease_lock.rejection_counts) as this_sum from lease_lock.rejections \gset
create database regress_lease_lock_other;
\c regress_lease_lock_other
create extension lease_lock;
set client_min_messages = error;
select count(*) from lease_lock.rejections;
select count(*) from lease_lock.rejection_counts;
create table elsewhere (id int);
select lease_lock.guard('elsewhere', 'job');
insert into elsewhere values (1);
insert into elsewhere values (1);
select lease_lock.assert_held('job', 1);
select relation, statement, resource, count from lease_lock.rejections;
select relation, reason, count from lease_lock.rejection_counts order by relation;
\c :this
select count(*) = :this_many as same, (select sum(count) from lease_lock.rejection_counts) = :this_sum as same_sum from lease_lock.rejections;
drop database regress_lease_lock_other;

set client_min_messages = warning;
drop table named, newest, carried, carried_name, newest_child, parent, warned, odd, many;
drop extension lease_lock;
