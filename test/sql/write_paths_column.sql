-- The ways of writing, where the token travels in a column of the row: without
-- a template the stored token may not go back, with one the carried token must
-- be that of the resource's current grant.
-- Field cases: F16, F17, F19.
\set SHOW_CONTEXT never
\set VERBOSITY terse
\pset format unaligned
set client_min_messages = warning;
create extension lease_lock;
\getenv srcdir PG_ABS_SRCDIR
\getenv builddir PG_ABS_BUILDDIR
\set attempts :srcdir '/common/attempts.sql'
\set rows :builddir '/results/write_paths_column'
\set ECHO none
\i :attempts
\set ECHO all
create table parent (id int primary key);
create table doc (id int primary key, v int, token bigint, cas int references parent on delete cascade on update cascade);
create table item (id int, token bigint, cas int references parent on delete set null on update set null) partition by range (id);
create table item_low partition of item for values from (0) to (5);
create table item_high (cas int, token bigint, id int);
alter table item attach partition item_high for values from (5) to (10);
create table base (id int, token bigint);
create table kid () inherits (base);
insert into parent values (1), (2), (3);
insert into doc values (1, 0, 5, 1), (2, 0, 5, 2);
insert into item values (1, 5, 1), (6, 5, 2);
insert into base values (1, 5);
insert into kid values (2, 5);
create view docs as select id, v, token from doc;
create view docs_checked with (security_barrier) as select id, v, token from doc where token < 1000 with check option;
create view docs_ruled as select id, v, token from doc;
create rule ruled as on update to docs_ruled do instead update doc set v = new.v, token = new.token where id = old.id;
create function pg_temp.contents() returns text language sql as $$
  select string_agg(r, ' ' order by r) from (select 'parent' || t::text from parent t union all select 'doc' || t::text from doc t union all
    select tableoid::regclass || t::text from item t union all select tableoid::regclass || t::text from base t) x(r)
$$;
-- TOK stands for the token that the statement carries.
create temp table writes (n int generated always as identity, sql text);
insert into writes (sql) values
  ('insert into doc values (7, 1, TOK)'),
  ('insert into doc values (7, 1, TOK), (8, 1, TOK)'),
  ('update doc set v = 1, token = TOK where id = 1'),
  ('update doc set v = 1, token = TOK'),
  ('update doc set v = 1, token = TOK where id = 77'),
  ('update doc d set v = p.id, token = TOK from parent p where p.id = d.cas'),
  ('insert into doc values (1, 1, TOK) on conflict (id) do update set v = excluded.v, token = excluded.token'),
  ('insert into doc values (7, 1, TOK) on conflict (id) do update set v = excluded.v, token = excluded.token'),
  ('insert into doc values (7, 1, TOK) on conflict do nothing'),
  ('merge into doc d using (values (1), (7)) s(id) on d.id = s.id when matched then update set v = 1, token = TOK when not matched then insert values (s.id, 1, TOK)'),
  ('with w as (update doc set v = 1, token = TOK where id = 1 returning *) insert into doc select id + 6, 1, token from w'),
  ('update docs set v = 1, token = TOK where id = 2'),
  ('insert into docs values (7, 1, TOK)'),
  ('update docs_checked set v = 1, token = TOK'),
  ('update docs_ruled set v = 1, token = TOK where id = 2'),
  ('do $x$ declare c cursor for select * from doc for update; begin open c; move c; update doc set v = 1, token = TOK where current of c; end $x$'),
  ('insert into item values (2, TOK), (7, TOK)'),
  ('insert into item_high (id, token) values (7, TOK)'),
  ('update item set token = TOK'),
  ('update base set token = TOK'),
  ('insert into kid values (3, TOK)'),
  -- These carry none of their own.
  ('delete from doc where id = 1'),
  ('delete from doc using parent p where p.id = doc.cas'),
  ('delete from item where id = 6'),
  ('delete from item_low'),
  ('delete from base'),
  ('merge into doc d using (values (1)) s(id) on d.id = s.id when matched then delete'),
  ('with w as (delete from doc returning *) select * from w'),
  ('delete from parent where id = 1'),
  ('delete from parent where id = 3'),
  ('update parent set id = 9 where id = 2'),
  ('update doc set v = 1 where id = 1'),
  ('truncate doc'), ('truncate parent cascade'), ('truncate item_high'), ('truncate base'),
  ('select * from doc for update');
insert into writes (sql) select format('copy doc (id, v, token) from %L%s', :'rows' || '.TOK' || b, case when b <> '' then ' (format binary)' end) from (values (''), ('.bin')) f(b);
create function pg_temp.try_all(carried text, presented bigint) returns table (n int, code text, rows bigint, after text) language plpgsql as $$
begin
  if presented is not null then
    perform lease_lock.present('col', presented);
  end if;
  return query select w.n, a.code, a.rows, a.after from writes w, pg_temp.attempt(replace(w.sql, 'TOK', carried)) a order by w.n;
end $$;
\set ECHO errors
select format('copy (select 7, 1, cast(%s as bigint)) to %L%s', t, :'rows' || '.' || t || b, case when b <> '' then ' (format binary)' end)
  from unnest('{4,5,6,"null"}'::text[]) t, (values (''), ('.bin')) f(b) \gexec
\set ECHO all
begin;
create temp table plain_5 as select * from pg_temp.try_all('5', null);
create temp table plain_6 as select * from pg_temp.try_all('6', null);
commit;
select count(*) from plain_5 where code <> 'ok';

-- 1. Without a template; the rows were written under 5.  A name of no row is
-- presented: any will do.  Nothing presented, nothing is missed but by DELETE.
select lease_lock.guard_column(t, 'token') from unnest('{doc,item,base}'::regclass[]) t;
begin;
create temp table none as select * from pg_temp.try_all('null', null);
create temp table alone as select * from pg_temp.try_all('6', null);
create temp table t4 as select * from pg_temp.try_all('4', 4);
create temp table t5 as select * from pg_temp.try_all('5', 5);
create temp table t6 as select * from pg_temp.try_all('6', 6);
commit;
create view pg_temp.results as
  select n, replace(sql, :'rows', 'ROWS') as sql, none.code as none, t4.code as "4", t5.code as "5", t6.code as "6", alone.code as "6 alone",
      nullif(concat_ws(', ', case when t5.code = 'ok' and (t5.rows, t5.after) is distinct from (p5.rows, p5.after) then '5 differs' end,
        case when t6.code = 'ok' and (t6.rows, t6.after) is distinct from (p6.rows, p6.after) then '6 differs' end,
        case when alone.code = 'ok' and (alone.rows, alone.after) is distinct from (p6.rows, p6.after) then '6 alone differs' end), '') as problem
    from writes join none using (n) join t4 using (n) join t5 using (n) join t6 using (n) join alone using (n) join plain_5 p5 using (n) join plain_6 p6 using (n);
select * from pg_temp.results order by n;

-- 2. With a resource: 5 is the token of a lease before, 6 that of the newest grant.
\set ECHO errors
select 'select lease_lock.acquire(''col'', ''A'', ''1 hour'')' from generate_series(1, 6) \gexec
\set ECHO all
select lease_lock.guard_column(t, 'token', resource => 'col') from unnest('{doc,item,base}'::regclass[]) t;
drop table none, alone, t4, t5, t6 cascade;
begin;
create temp table none as select * from pg_temp.try_all('null', null);
create temp table alone as select * from pg_temp.try_all('6', null);
create temp table old as select * from pg_temp.try_all('5', 5);
create temp table carried_old as select * from pg_temp.try_all('5', 6);
create temp table newest as select * from pg_temp.try_all('6', 6);
commit;
-- A foreign key's UPDATE, like any that does not mention the column, carries
-- what is stored, and that is 5.
select n, replace(sql, :'rows', 'ROWS') as sql, none.code as none, old.code as "5", carried_old.code as "5, presents 6", newest.code as "6", alone.code as "6 alone",
    case when newest.code = 'ok' and (newest.rows, newest.after) is distinct from (p6.rows, p6.after) then '6 differs' end as problem
  from writes join none using (n) join old using (n) join carried_old using (n) join newest using (n) join alone using (n) join plain_6 p6 using (n) order by n;
-- Written under the newest, the rows follow their parent.
update doc set token = 6;
update item set token = 6;
begin;
select * from pg_temp.attempt('update parent set id = id + 10');
rollback;
-- Nothing was kept, and nothing was written to the fence.
select pg_temp.contents(), pg_temp.fence();

drop table parent, doc, item, base, kid cascade;
drop extension lease_lock;
