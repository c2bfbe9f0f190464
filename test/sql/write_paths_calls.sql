-- Writes that take more than one statement of SQL are guarded like the others:
-- COPY, cursors, prepared statements with generic plans, procedures that
-- commit, constraints and cursors that act at COMMIT, and parallel plans.
-- Field cases: F06 (nothing leaks to the next transaction), F17 (COPY).
\set SHOW_CONTEXT never
\set VERBOSITY terse
create extension lease_lock;
set client_min_messages = warning;
\getenv srcdir PG_ABS_SRCDIR
\getenv builddir PG_ABS_BUILDDIR
\set refusals :srcdir '/common/refusals.sql'
\set binary_rows :builddir '/results/write_paths_rows.bin'
\set ECHO none
\i :refusals
\set ECHO all
-- One table a kind of guard.  Tokens of the last two come from elsewhere: 15 is accepted.
create table con (id int primary key, v int default 0);
create table tem (id int primary key, v int default 0);
create table con_new (id int primary key, v int default 0);
create table tem_new (id int, v int default 0, unique (id) deferrable initially deferred) partition by range (id);
create table tem_new_low partition of tem_new for values from (0) to (5);
create table tem_new_high partition of tem_new for values from (5) to (10);
-- Prepared, and planned for good, before there is a guard.
set plan_cache_mode = force_generic_plan;
prepare ins_con as insert into con values ($1, $2);
prepare ins_tem as insert into tem values ($1, $2);
prepare ins_new as insert into con_new values ($1, $2);
prepare ins_part as insert into tem_new values ($1, $2);
prepare upd_tem as update tem set v = $2 where id = $1;
prepare upd_part as update tem_new set v = $2 where id = $1;
prepare merge_new as merge into con_new c using (values ($1::int)) s(id) on c.id = s.id when matched then update set v = 9 when not matched then insert values (s.id);
execute ins_con(1, 0); execute ins_tem(1, 0); execute ins_tem(2, 0); execute ins_new(1, 0); execute ins_part(1, 0); execute ins_part(2, 0);
execute upd_tem(1, 0); execute upd_part(1, 0); execute merge_new(1);
create function by_sql(int) returns void language sql as 'update con set v = $1';
create function by_plpgsql(int) returns int language plpgsql as $$
declare n int;
begin
  update con set v = $1;
  get diagnostics n = row_count;
  return n;
end $$;
select by_sql(0), by_plpgsql(0);

select lease_lock.guard('con', 'con'), lease_lock.guard('tem', 'x/{id}'), lease_lock.guard('con_new', 'con_new', 'newest'), lease_lock.guard('tem_new', 'n/{id}', 'newest');
select lease_lock.acquire('con', 'A', '1 hour') as con_old \gset
select lease_lock.acquire('con', 'A', '1 hour') as con_token \gset
create temp table tokens as select i, lease_lock.acquire('x/' || i, 'A', '1 hour') as old from generate_series(1, 9) i;
alter table tokens add token bigint;
update tokens set token = lease_lock.acquire('x/' || i, 'A', '1 hour');
create function pg_temp.present_old() returns void language sql as $$
  select lease_lock.present('x/' || i, old), lease_lock.present('n/' || i, 14) from tokens;
  select lease_lock.present('con', min), lease_lock.present('con_new', 14) from (select min(old) - 1 as min from tokens) t;
$$;
create function pg_temp.present_newest(bigint) returns void language sql as $$
  select lease_lock.present('x/' || i, token), lease_lock.present('n/' || i, $1) from tokens;
  select lease_lock.present('con', h.token), lease_lock.present('con_new', $1) from lease_lock.holders h where resource = 'con';
$$;
begin;
select pg_temp.present_newest(15);
insert into tem_new values (3, 0);
delete from tem_new where id = 3;
update tem_new set v = 0;
update con_new set v = 0;
commit;
create view pg_temp.contents as
  select 'con' as t, id, v from con union all select 'tem', id, v from tem union all
  select 'con_new', id, v from con_new union all select tableoid::regclass::text, id, v from tem_new;
create view pg_temp.fence as select string_agg(name || '=' || highest, ' ' order by name) as fence from lease_lock.fence;
select * from pg_temp.contents order by 1, 2;
select * from pg_temp.fence;

-- 1. COPY, text and binary, with a WHERE and under FREEZE.
copy (select 7, 7 union all select 8, 8) to :'binary_rows' (format binary);
\set ECHO errors
\set ON_ERROR_ROLLBACK on
select 'none' as copied \gset
begin;
\echo no token
copy con from stdin;
7	7
8	8
\.
\echo :SQLSTATE
copy tem from stdin (format csv);
7,7
8,8
\.
\echo :SQLSTATE
copy con_new from stdin where id < 8;
7	7
8	8
\.
\echo :SQLSTATE
copy tem_new from stdin;
7	7
8	8
\.
\echo :SQLSTATE
copy tem_new_high (v, id) from stdin;
7	7
\.
\echo :SQLSTATE
copy con from :'binary_rows' (format binary);
\echo :SQLSTATE
copy tem from :'binary_rows' (format binary);
\echo :SQLSTATE
copy con_new from :'binary_rows' (format binary);
\echo :SQLSTATE
copy tem_new from :'binary_rows' (format binary);
\echo :SQLSTATE
\echo a stale token
select pg_temp.present_old() \g /dev/null
copy con from stdin;
7	7
8	8
\.
\echo :SQLSTATE
copy tem from stdin;
7	7
8	8
\.
\echo :SQLSTATE
copy con_new from stdin;
7	7
8	8
\.
\echo :SQLSTATE
copy tem_new from stdin;
7	7
8	8
\.
\echo :SQLSTATE
copy con from :'binary_rows' (format binary);
\echo :SQLSTATE
copy tem from :'binary_rows' (format binary);
\echo :SQLSTATE
copy con_new from :'binary_rows' (format binary);
\echo :SQLSTATE
copy tem_new from :'binary_rows' (format binary);
\echo :SQLSTATE
commit;
\set ECHO all
select * from pg_temp.contents where id > 2;
select * from pg_temp.fence;
-- Under the newest token each copies all its rows, and the fence rises.
begin;
select pg_temp.present_newest(16);
copy con from stdin;
7	7
8	8
\.
copy tem from :'binary_rows' (format binary);
copy con_new from stdin where id < 8;
7	7
8	8
\.
copy tem_new from :'binary_rows' (format binary);
copy tem_new_low (v, id) from stdin;
4	4
\.
select * from pg_temp.contents where id > 2 order by 1, 2;
select * from pg_temp.fence;
rollback;
-- One row under a stale name undoes the rows before it.
begin;
select pg_temp.present_newest(16);
select lease_lock.present('x/8', 1), lease_lock.present('n/8', 14);
copy tem from :'binary_rows' (format binary);
copy tem_new from :'binary_rows' (format binary);
commit;
-- Into a table made, and guarded, by the same transaction.
begin;
create table made (id int, v int);
select lease_lock.guard('made', 'made', 'newest');
copy made from :'binary_rows' (format binary, freeze);
select lease_lock.present('made', 1);
copy made from :'binary_rows' (format binary, freeze);
select count(*) from made;
rollback;
\set ON_ERROR_ROLLBACK off
select * from pg_temp.contents where id > 2;
select * from pg_temp.fence;

-- 2. Cursors: fetched for update without a token, written with one.
create function pg_temp.through_cursors(present text) returns table (write text, outcome text) language plpgsql as $$
begin
  execute present;
  for write in values ('update con set v = 1 where current of c'), ('delete from con where current of c'), ('update tem set v = 1 where current of c'),
      ('update tem set id = 9 where current of c'), ('update con_new set v = 1 where current of c'), ('delete from con_new where current of c'),
      ('update tem_new set v = 1 where current of c'), ('update tem_new set id = 7 where current of c'), ('delete from tem_new where current of c') loop
    execute 'declare c cursor for select * from ' || substring(write from '(con_new|tem_new|con|tem)') || ' where id = 1 for update';
    execute 'move c';
    outcome := pg_temp.outcome(write);
    close c;
    return next;
  end loop;
end $$;
