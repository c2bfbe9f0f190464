-- Writes that are more than one statement of SQL are guarded like the others:
-- COPY, cursors, prepared statements with generic plans, constraints and
-- cursors that act at COMMIT, procedures that commit, parallel plans.
-- Field cases: F06 (nothing leaks to the next transaction), F17 (COPY).
\set SHOW_CONTEXT never
\set VERBOSITY terse
\pset format unaligned
create extension lease_lock;
set client_min_messages = warning;
\getenv srcdir PG_ABS_SRCDIR
\getenv builddir PG_ABS_BUILDDIR
\set refusals :srcdir '/common/refusals.sql'
\set attempts :srcdir '/common/attempts.sql'
\set rows :builddir '/results/write_paths_calls'
\set ECHO none
\i :refusals
\i :attempts
\set ECHO all
-- One table a kind of guard.
create table con (id int primary key, v int default 0);
create table tem (id int, v int default 0, unique (id) deferrable initially deferred);
create table con_new (id int, v int default 0, unique (id) deferrable initially deferred);
create table tem_new (id int primary key, v int default 0) partition by range (id);
create table tem_new_low partition of tem_new for values from (0) to (5);
create table tem_new_high partition of tem_new for values from (5) to (10);
insert into con values (1), (2);
insert into tem values (1), (2);
insert into con_new values (1), (2);
insert into tem_new values (1), (2);
create function pg_temp.contents() returns text language sql as $$
  select string_agg(r, ' ' order by r) from (
    select 'con' || t::text from con t union all select 'tem' || t::text from tem t union all
    select 'con_new' || t::text from con_new t union all select tableoid::regclass || t::text from tem_new t) x(r)
$$;
create table at_commit (t text);
create function write_at_commit() returns trigger language plpgsql as $$
begin
  execute format('update %I set v = v + 1', new.t);
  return null;
end $$;
create constraint trigger later after insert on at_commit deferrable initially deferred for each row execute function write_at_commit();
create function by_sql(int) returns void language sql as 'update con set v = $1; insert into tem values ($1); update con_new set v = $1; update tem_new set v = $1';
create function by_plpgsql(int) returns void language plpgsql as $$
begin
  update con set v = $1;
  insert into tem values ($1);
  update con_new set v = $1 where id = 1;
  delete from tem_new where id = 2;
end $$;
-- COPY reads these.
copy (select 7, 7 union all select 8, 8) to :'rows' (format binary);
select :'rows' || '.txt' as text_rows \gset
copy (select 7, 7 union all select 8, 8) to :'text_rows';
create temp table writes (n int generated always as identity, sql text);
insert into writes (sql)
  select replace(replace(w, 'TAB', t), 'ROWS', :'rows') from unnest('{con,tem,con_new,tem_new}'::text[]) with ordinality u(t, i), unnest(array[
    'copy TAB from ''ROWS.txt''',
    'copy TAB from ''ROWS'' (format binary)',
    'copy TAB (id, v) from ''ROWS.txt'' where id < 8',
    'do $x$ declare c cursor for select * from TAB where id + 0 = 1 for update; begin open c; move c; update TAB set v = 5 where current of c; end $x$',
    'do $x$ declare c cursor for select * from TAB where id + 0 = 2; begin open c; move c; delete from TAB where current of c; end $x$',
    'do $x$ declare c cursor for select * from TAB where id + 0 = 2 for update; begin open c; move c; update TAB set id = 7 where current of c; end $x$',
    'execute ins_TAB(7, 7)', 'execute upd_TAB(1, 7)', 'execute del_TAB(2)', 'execute merge_TAB(1)', 'execute merge_TAB(8)',
    'update TAB set id = 10 - id where id < 3',
    'insert into at_commit values (''TAB'')',
    'set constraints all immediate; insert into at_commit values (''TAB'')']) with ordinality v(w, j) order by i, j;
-- Each row unique when all are written.
insert into writes (sql) values ('update tem set id = 3 - id'), ('update con_new set id = 3 - id'), ('insert into tem values (1, 9); delete from tem where id = 1 and v = 0'),
  ('copy tem_new_high (v, id) from ''' || :'rows' || ''' (format binary)'), ('select by_sql(3)'), ('select by_plpgsql(3)');
-- Planned for good before there is a guard.
set plan_cache_mode = force_generic_plan;
select format('prepare ins_%1$s as insert into %1$s values ($1, $2)', t), format('prepare upd_%1$s as update %1$s set v = $2 where id = $1', t),
       format('prepare del_%1$s as delete from %1$s where id = $1', t),
       format('prepare merge_%1$s as merge into %1$s c using (values ($1::int)) s(id) on c.id = s.id when matched then update set v = 9 when not matched then insert values (s.id)', t)
  from unnest('{con,tem,con_new,tem_new}'::text[]) t \gexec

-- 1. Without guards: what each write does.  (EXECUTE tells no count here.)
create temp table plain as select n, sql, (pg_temp.attempt(sql)).* from writes;
select n, replace(sql, :'rows', 'ROWS') as sql, code, rows from plain order by n;

-- 2. Guarded: the same without a token, with an old one, and with the newest.
select lease_lock.guard('con', 'con'), lease_lock.guard('tem', 'x/{id}'), lease_lock.guard('con_new', 'con_new', 'newest'), lease_lock.guard('tem_new', 'n/{id}', 'newest');
create temp table tokens (name text, old bigint, newest bigint);
insert into tokens (name) select 'con' union all select 'x/' || i from generate_series(1, 9) i;
update tokens set old = lease_lock.acquire(name, 'A', '1 hour');
update tokens set newest = lease_lock.acquire(name, 'A', '1 hour');
insert into tokens select 'con_new', 14, 20 union all select 'n/' || i, 14, 20 from generate_series(1, 9) i;
-- Tokens from elsewhere: 15 has been accepted.
begin;
select count(lease_lock.present(name, 15)) from tokens where old = 14;
update con_new set v = 0;
insert into tem_new select generate_series(3, 9);
delete from tem_new where id > 2;
update tem_new set v = 0;
commit;
create function pg_temp.present(old boolean) returns bigint language sql as $$
  select count(lease_lock.present(t.name, case when $1 then t.old else t.newest end)) from tokens t
$$;
begin;
create temp table none as select n, (pg_temp.attempt(sql)).* from writes;
select pg_temp.present(true);
create temp table old as select n, (pg_temp.attempt(sql)).* from writes;
select pg_temp.present(false);
create temp table newest as select n, (pg_temp.attempt(sql)).* from writes;
commit;
select none.code as none, old.code as old, newest.code as newest, count(*), count(*) filter (where newest.rows = plain.rows and newest.after = plain.after) as as_without
  from plain join none using (n) join old using (n) join newest using (n) group by 1, 2, 3 order by 1;
-- The fence rises once, under the names of the rows (con_new has one name).
select n, replace(sql, :'rows', 'ROWS') as sql, raised from writes join newest using (n) where raised is not null order by n;
select * from (select n, raised from none union all select n, raised from old) r where raised is not null;

-- 3. COPY from the client, a row under a stale name among others.
begin;
select pg_temp.present(false);
select lease_lock.present('x/8', old), lease_lock.present('n/8', 14) from tokens where name = 'x/8';
savepoint s;
copy tem from stdin;
7	7
8	8
\.
rollback to s;
copy tem_new from stdin (format csv);
7,7
8,8
\.
rollback to s;
copy tem_new from stdin (format csv);
7,7
\.
commit;
select * from tem_new where id > 2;
select string_agg(name, ' ') from lease_lock.fence where highest = 20;
begin; select pg_temp.present(false); delete from tem_new where id > 2; commit;
-- FREEZE, into a table that is made and guarded by the same transaction.
begin;
create table made (id int, v int);
select lease_lock.guard('made', 'made', 'newest');
copy made from :'rows' (format binary, freeze);
rollback;
begin;
create table made (id int, v int);
select lease_lock.guard('made', 'made', 'newest');
select lease_lock.present('made', 1);
copy made from :'text_rows' (freeze);
select count(*) from made;
rollback;

-- 4. Cursors of SQL: opened without a token, written through with one.
begin;
declare c cursor for select * from con where id = 2 for update;
fetch c;
savepoint s;
update con set v = 4 where current of c;
rollback to s;
select pg_temp.present(true);
update con set v = 4 where current of c;
rollback to s;
select pg_temp.present(false);
update con set v = 4 where current of c;
delete from con where current of c;
select count(*) from con;
rollback;
-- A cursor whose query writes when it is fetched from, here WITH HOLD at COMMIT.
begin;
declare c cursor with hold for select by_sql(8);
commit;
select * from pg_temp.contents();
begin;
declare c cursor with hold for select by_sql(8);
select pg_temp.present(true);
commit;
select * from pg_temp.contents();
begin;
declare c cursor with hold for select by_sql(8);
select pg_temp.present(false);
commit;
fetch c;
close c;
select * from pg_temp.contents();
select string_agg(name, ' ' order by name) from lease_lock.fence where highest = 20;

-- 5. Constraint triggers at COMMIT write as the transaction that ends.
begin;
insert into at_commit values ('con');
commit;
insert into at_commit values ('tem_new');
begin;
insert into at_commit values ('con_new');
select pg_temp.present(true);
commit;
select count(*) from at_commit;
begin;
insert into at_commit values ('con'), ('tem'), ('con_new'), ('tem_new');
select pg_temp.present(false);
commit;
select count(*) from at_commit;
select * from pg_temp.contents();
-- What is presented in the statement is used at its end: no warning.
insert into at_commit select 'con' from tokens where name = 'con' and lease_lock.present(name, newest) = newest;
-- At PREPARE TRANSACTION too, and its check holds to COMMIT PREPARED.
begin;
insert into at_commit values ('con');
prepare transaction 'regress_write_paths';
select newest as con from tokens where name = 'con' \gset
begin;
insert into at_commit values ('con');
select lease_lock.present('con', :con) = :con as presented;
prepare transaction 'regress_write_paths';
select lease_lock.release('con', :con);
select lease_lock.try_acquire('con', 'B') as while_prepared;
commit prepared 'regress_write_paths';
select v from con where id = 1;
begin;
select pg_temp.present(false);
insert into at_commit values ('con');
commit;
select v from con where id = 1;
select lease_lock.acquire('con', 'A', '1 hour') as con \gset
update tokens set old = newest, newest = :con where name = 'con';
-- A violation found at COMMIT takes the fence back.
begin;
select lease_lock.present('con_new', 30);
insert into con_new values (1, 1);
commit;
select highest from lease_lock.fence where name = 'con_new';

-- 6. Procedures: what is presented does not survive COMMIT, nor ROLLBACK.
create procedure write_twice(present_again boolean, ending text) language plpgsql as $$
begin
  perform pg_temp.present(false);
  update con set v = 20; update tem set v = 20; update con_new set v = 20; update tem_new set v = 20;
  if ending = 'commit' then commit; else rollback; end if;
  if present_again then perform pg_temp.present(false); end if;
  raise info 'con %, tem %, con_new %, tem_new %', pg_temp.outcome('update con set v = 21'), pg_temp.outcome('update tem set v = 21'),
    pg_temp.outcome('update con_new set v = 21'), pg_temp.outcome('update tem_new set v = 21');
end $$;
delete from tokens where name !~ 'con|x/[128]$|n/[12]$';
call write_twice(false, 'commit');
select * from pg_temp.contents();
call write_twice(false, 'rollback');
call write_twice(true, 'rollback');
select * from pg_temp.contents();
-- A loop over a guarded table that commits in every turn.
do $$
declare r record;
begin
  for r in select * from tem order by id loop
    perform lease_lock.present(name, newest) from tokens where name = 'x/' || r.id;
    update tem set v = 22 where id = r.id;
    commit;
  end loop;
  update tem set v = 23 where id = 1;
end $$;
select * from tem order by id;
-- Nor does anything else of the session carry it (F06).
begin; select pg_temp.present(false); update con set v = 24; commit;
reset all;
set client_min_messages = warning;
select t, pg_temp.outcome('update ' || t || ' set v = 25') from unnest('{con,tem,con_new,tem_new}'::text[]) t;

-- 7. Parallel plans read guarded tables, before and after the writes of the same transaction.
create table big (id int, v int);
insert into big select i, i % 7 from generate_series(1, 20000) i;
analyze big;
select lease_lock.guard('big', 'con');
set parallel_setup_cost = 0; set parallel_tuple_cost = 0; set min_parallel_table_scan_size = 0; set max_parallel_workers_per_gather = 2;
create function pg_temp.workers(sql text) returns text language plpgsql as $$
declare line text;
begin
  for line in execute 'explain ' || sql loop
    if line ~ 'Workers Planned' then return trim(line); end if;
  end loop;
  return 'not parallel';
end $$;
select pg_temp.workers('create table made as select v, count(*) from big group by v'), pg_temp.workers('select count(*) from big');
create table made as select v, count(*) from big group by v;
insert into con_new select v, count from made;
create function count_big() returns trigger language plpgsql as $$ begin select count(*) into new.v from big; return new; end $$;
create trigger a_count before insert on tem_new for each row execute function count_big();
begin;
select pg_temp.present(false);
select lease_lock.present('con_new', 31);
update big set v = 8 where id <= 100;
create table made_too as select v, count(*) from big group by v;
insert into con_new select v + 10, count from made_too where v = 8;
insert into con_new select 30, count(*) from big;
select lease_lock.present('n/9', 20);
insert into tem_new values (9);
create materialized view counted as select count(*) from big where v = 8;
refresh materialized view counted;
update con set v = (select count(*) from big where v = 8);
commit;
select * from counted;
select * from con_new where id > 2 order by id;
select * from tem_new where id > 2;
select distinct v from con;

-- 8. DISCARD ALL finds nothing to forget, and leaves nothing (F06).
begin; select pg_temp.present(false); update con set v = 24; update tem_new set v = 24; commit;
discard all;
update con set v = 26;
update tem_new set v = 26;

set client_min_messages = warning;
drop materialized view counted;
drop table con, tem, con_new, tem_new, at_commit, big, made, made_too;
drop function write_at_commit, by_sql, by_plpgsql, count_big;
drop procedure write_twice;
drop extension lease_lock;
