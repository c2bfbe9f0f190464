-- Guards beside row-level security, SET ROLE and SECURITY DEFINER: what is
-- presented belongs to the transaction and not to a role, and a guard changes
-- nothing in which rows a role may write.
\set SHOW_CONTEXT never
\set VERBOSITY terse
\pset format unaligned
create extension lease_lock;
set client_min_messages = warning;
\getenv srcdir PG_ABS_SRCDIR
\set refusals :srcdir '/common/refusals.sql'
\set attempts :srcdir '/common/attempts.sql'
\set ECHO none
\i :refusals
\i :attempts
\set ECHO all
create role regress_worker;
create role regress_clerk;
create role regress_bare;
grant usage on schema lease_lock to regress_worker, regress_clerk;
grant regress_clerk to regress_worker;
-- The same rows guarded in four ways; a worker sees his own, and may not write 100.
create table parent (id int primary key);
insert into parent values (1), (2);
create table con (id int primary key, who name default current_user, v int, p int references parent on delete cascade on update cascade);
create table tem (like con including all, foreign key (p) references parent on delete cascade on update cascade);
create table con_new (like tem including all, foreign key (p) references parent on delete cascade on update cascade);
create table tem_new (like tem including all, foreign key (p) references parent on delete cascade on update cascade);
do $$
declare t text;
begin
  foreach t in array '{con,tem,con_new,tem_new}'::text[] loop
    execute format('insert into %I values (1, ''regress_worker'', 0, 1), (2, ''regress_worker'', 0, 1), (3, ''regress_clerk'', 0, 1), (4, ''regress_clerk'', 0, 2)', t);
    execute format('alter table %I enable row level security', t);
    execute format('create policy own on %I using (who = current_user) with check (v < 100 and who = current_user)', t);
    execute format('grant all on %I to regress_worker, regress_clerk', t);
  end loop;
end $$;
grant all on parent to regress_worker;
select lease_lock.guard('con', 'con'), lease_lock.guard('tem', 'x/{id}'), lease_lock.guard('con_new', 'con_new', 'newest'), lease_lock.guard('tem_new', 'n/{id}', 'newest');
create temp table tokens (name text, old bigint, newest bigint);
insert into tokens (name) select 'con' union all select 'x/' || i from generate_series(1, 9) i;
update tokens set old = lease_lock.acquire(name, 'A', '1 hour');
update tokens set newest = lease_lock.acquire(name, 'A', '1 hour');
insert into tokens select 'con_new', 14, 20 union all select 'n/' || i, 14, 20 from generate_series(1, 9) i;
create function pg_temp.present(old boolean) returns bigint language sql as $$
  select count(lease_lock.present(t.name, case when $1 then t.old else t.newest end)) from tokens t
$$;
begin;
select count(lease_lock.present(name, 15)) from tokens where old = 14;
update con_new set v = 0;
insert into tem_new select i, 'regress_worker', 0 from generate_series(5, 9) i;
delete from tem_new where id > 4;
update tem_new set v = 0;
commit;
create function contents() returns text language sql security definer as $$
  select string_agg(r, ' ' order by r) from (select 'parent' || t::text from parent t union all
    select t || id::text || ',' || who || ',' || v from (select 'con' as t, * from con union all select 'tem', * from tem union all
      select 'con_new', * from con_new union all select 'tem_new', * from tem_new) x) y(r)
$$;
create function pg_temp.contents() returns text language sql as 'select public.contents()';

-- 1. Row-level security.  The role changes within the attempt, so that the rest can see all.
create function pg_temp.as_worker(sql text, out code text, out rows bigint, out after text, out raised text) language plpgsql as $$
begin
  select a.* into code, rows, after, raised from pg_temp.attempt('set local role regress_worker; ' || sql) a;
end $$;
create temp table writes (n int generated always as identity, sql text);
insert into writes (sql) select replace(w, 'TAB', t) from unnest('{con,tem,con_new,tem_new}'::text[]) with ordinality u(t, i), unnest(array[
  'update TAB set v = 1', 'update TAB set v = 1 where id = 3', 'delete from TAB', 'delete from TAB where id = 4',
  'update TAB set v = 100 where id = 1', 'update TAB set who = ''regress_clerk'' where id = 1',
  'insert into TAB (id, v) values (7, 1)', 'insert into TAB (id, v) values (7, 100)', 'insert into TAB values (7, ''regress_clerk'', 1)',
  'insert into TAB (id, v) values (1, 1), (7, 1) on conflict (id) do update set v = 5', 'insert into TAB (id, v) values (3, 1) on conflict (id) do update set v = 5',
  'insert into TAB (id, v) values (3, 1) on conflict do nothing',
  'merge into TAB t using (values (1), (2), (4)) s(id) on t.id = s.id and s.id < 4 when matched then update set v = 7 when not matched then insert (id, v) values (s.id + 4, 7)',
  'set local row_security = off; update TAB set v = 1']) with ordinality v(w, j) order by i, j;
-- Without guards.
begin;
alter table con disable trigger zz_lease_lock_guard;
alter table tem disable trigger zz_lease_lock_guard;
alter table con_new disable trigger zz_lease_lock_guard;
alter table tem_new disable trigger zz_lease_lock_guard;
create temp table plain as select n, (pg_temp.as_worker(sql)).* from writes;
alter table con enable trigger zz_lease_lock_guard;
alter table tem enable trigger zz_lease_lock_guard;
alter table con_new enable trigger zz_lease_lock_guard;
alter table tem_new enable trigger zz_lease_lock_guard;
commit;
begin;
create temp table none as select n, (pg_temp.as_worker(sql)).* from writes;
select pg_temp.present(true);
create temp table old as select n, (pg_temp.as_worker(sql)).* from writes;
select pg_temp.present(false);
create temp table newest as select n, (pg_temp.as_worker(sql)).* from writes;
commit;
-- Under the newest token all is as without guards; a row that is hidden is not shown to the guard either.
select n, sql, plain.code as plain, plain.rows, none.code as none, old.code as old, newest.code as newest, newest.raised,
    case when newest.code = 'ok' and (newest.rows, newest.after) is distinct from (plain.rows, plain.after) then 'differs' end as problem
  from writes join plain using (n) join none using (n) join old using (n) join newest using (n) order by n;
-- A foreign key's actions reach hidden rows, and these are guarded all the same.
begin;
select pg_temp.as_worker('delete from parent where id = 2');
select pg_temp.present(false);
select lease_lock.present('x/4', old) from tokens where name = 'x/4';
select pg_temp.as_worker('delete from parent where id = 2');
select pg_temp.as_worker('update parent set id = 9 where id = 2');
select lease_lock.present('x/4', newest) from tokens where name = 'x/4';
select (pg_temp.as_worker('delete from parent where id = 2')).*;
commit;

-- 2. SET ROLE in mid-transaction: presented by one role, written by another.
select newest as con from tokens where name = 'con' \gset
select newest as x4 from tokens where name = 'x/4' \gset
set role regress_worker;
begin;
select lease_lock.present('con_new', 21), lease_lock.present('n/4', 21), lease_lock.present('con', :con), lease_lock.present('x/4', :x4);
set local role regress_clerk;
update con set v = 1 where id = 4;
update tem set v = 1 where id = 4;
update con_new set v = 1 where id = 4;
update tem_new set v = 1 where id = 4;
reset role;
select name, highest, accepted_by from lease_lock.fence where highest > 20 order by name;
-- What was accepted is accepted for the next role too, and writes nothing more.
set local role regress_worker;
update con_new set v = 2 where id = 1;
update con set v = 2 where id = 1;
reset role;
select name, highest, accepted_by from lease_lock.fence where highest > 20 order by name;
rollback;
begin;
set local role regress_worker;
select lease_lock.present('con', :con - 1), lease_lock.present('con_new', 14);
set local role regress_clerk;
select pg_temp.outcome('update con set v = 1'), pg_temp.outcome('update con_new set v = 1');
set local role none;
select pg_temp.outcome('update con set v = 1'), pg_temp.outcome('update con_new set v = 1');
rollback;
reset role;
begin;
set local session authorization regress_worker;
select lease_lock.present('con_new', 21);
reset session authorization;
update con_new set v = 1;
select highest, accepted_by = current_user as by_owner from lease_lock.fence where name = 'con_new';
rollback;

-- 3. SECURITY DEFINER: the caller presents, the function writes with its owner's rights.
alter table con disable row level security;
alter table tem disable row level security;
alter table con_new disable row level security;
alter table tem_new disable row level security;
create function write_as_owner(value int) returns text language plpgsql security definer set search_path = public, pg_temp as $$
declare n bigint; total bigint := 0;
begin
  update con set v = value; get diagnostics n = row_count; total := total + n;
  update tem set v = value where id = 4; get diagnostics n = row_count; total := total + n;
  insert into con_new (id, who, v) values (8, 'owner', value), (1, 'owner', value) on conflict (id) do update set v = excluded.v; get diagnostics n = row_count; total := total + n;
  delete from tem_new where id = 4; get diagnostics n = row_count; total := total + n;
  return total || ' rows';
end $$;
create function present_as_owner(resource text, token bigint) returns bigint language plpgsql security definer as $$
begin
  return lease_lock.present(resource, token);
end $$;
revoke all on con, tem, con_new, tem_new from regress_worker;
revoke regress_clerk from regress_worker;
-- The caller has no rights on the tables.
set role regress_worker;
select pg_temp.outcome('select write_as_owner(5)');
begin;
select lease_lock.present('con', :con - 1);
select pg_temp.outcome('select write_as_owner(5)');
select lease_lock.present('con', :con), lease_lock.present('x/4', :x4), lease_lock.present('con_new', 14), lease_lock.present('n/4', 22);
select pg_temp.outcome('select write_as_owner(5)');
select lease_lock.present('con_new', 22), lease_lock.present('n/4', 14);
select pg_temp.outcome('select write_as_owner(5)');
reset role;
select * from pg_temp.contents();
select name, highest from lease_lock.fence where highest > 20;
set role regress_worker;
select lease_lock.present('n/4', 22);
select write_as_owner(5);
reset role;
select name, highest, accepted_by = current_user as by_owner from lease_lock.fence where highest > 20 order by name;
select * from pg_temp.contents();
rollback;
reset role;
-- What such a function presents counts after it, in the caller's own writes, to the end of the transaction.
set role regress_clerk;
begin;
select present_as_owner('con_new', 22);
update con_new set v = 6 where id = 1;
select v from con_new where id = 1;
commit;
select pg_temp.outcome('update con_new set v = 7');
reset role;
select highest, accepted_by from lease_lock.fence where name = 'con_new';
-- Who may not use the schema can be presented for, and is refused like others.
grant all on con to regress_bare;
set role regress_bare;
select pg_temp.outcome('select lease_lock.present(''con'', 1)');
select pg_temp.outcome('update con set v = 8');
begin;
select present_as_owner('con', :con - 1);
select pg_temp.outcome('update con set v = 8');
select present_as_owner('con', :con);
select pg_temp.outcome('update con set v = 8');
commit;
reset role;
-- Through views with the rights of their owner and of the caller.
create view owned as select id, v from con;
create view invoked with (security_invoker) as select id, v from con;
grant all on owned, invoked to regress_worker, regress_clerk;
set role regress_clerk;
select pg_temp.outcome('update owned set v = 9'), pg_temp.outcome('update invoked set v = 9');
begin;
select lease_lock.present('con', :con);
select pg_temp.outcome('update owned set v = 9'), pg_temp.outcome('update invoked set v = 10');
set local role regress_worker;
select pg_temp.outcome('update owned set v = 11'), pg_temp.outcome('update invoked set v = 12');
commit;
reset role;
select distinct v from con;

drop function write_as_owner, present_as_owner, contents;
drop table con, tem, con_new, tem_new, parent cascade;
drop extension lease_lock;
drop owned by regress_worker, regress_clerk, regress_bare;
drop role regress_worker, regress_clerk, regress_bare;
