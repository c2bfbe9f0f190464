-- Partitions and inheritance children: no way in past the guard.
\set SHOW_CONTEXT never
\set VERBOSITY terse
create extension lease_lock;
set client_min_messages = warning;
\getenv srcdir PG_ABS_SRCDIR
\set refusals :srcdir '/common/refusals.sql'
\set ECHO none
\i :refusals
\set ECHO all
create function pg_temp.triggers(tables regclass[]) returns table (rel regclass, trigger name, kind text, clone boolean) language sql as $$
  select tgrelid::regclass, tgname, case when tgtype & 1 <> 0 then 'row' else 'statement' end, tgparentid <> 0
  from pg_trigger where tgrelid = any (tables) and tgname ~ 'lease_lock' order by tgrelid::regclass::text, tgname
$$;

-- 1. A partitioned table with a constant name.
create table event (id int, day date, v int) partition by range (id);
create table event_low partition of event for values from (0) to (10);
create table event_high partition of event for values from (10) to (20) partition by range (id);
create table event_high_1 partition of event_high for values from (10) to (15);
create table event_high_2 (v int, day date, id int);
alter table event_high attach partition event_high_2 for values from (15) to (20);
insert into event values (1, '2026-01-01', 0), (11, '2026-01-01', 0), (16, '2026-01-01', 0);
select lease_lock.guard('event', 'events');
select * from pg_temp.triggers('{event,event_low,event_high,event_high_1,event_high_2}');
create temp table writes (n int generated always as identity, sql text);
insert into writes (sql) values
  ('insert into event values (2)'), ('insert into event_low values (2)'), ('insert into event_high values (12)'), ('insert into event_high_2 (id) values (17)'),
  ('update event set v = 1'), ('update event_low set v = 1'), ('update event_high set v = 1'), ('update event_high_2 set v = 1'),
  ('update event set id = 12 where id = 1'), ('update event set id = 2 where id = 16'), ('update event_high set id = 17 where id = 11'),
  ('delete from event'), ('delete from event_low'), ('delete from event_high_1'),
  ('merge into event e using (values (1), (2)) v(id) on e.id = v.id when matched then delete when not matched then insert values (v.id)'),
  ('truncate event'), ('truncate only event_low'), ('truncate event_high'), ('truncate event_high_2');
select sql, pg_temp.outcome(sql) from writes order by n;
select id, v from event order by id;
select lease_lock.acquire('events', 'A', '1 hour') as t \gset
begin;
select lease_lock.present('events', :t);
copy event_high_2 (id) from stdin;
18
\.
copy event (id) from stdin;
3
13
19
\.
select tableoid::regclass, id from event order by id;
update event set id = id + 10 where id < 10;
update event set v = 7;
select tableoid::regclass, id, v from event order by id;
truncate event_high_2;
delete from event;
rollback;
copy event_high_2 (id) from stdin;
18
\.
select id, v from event order by id;
-- A partition that is attached later is guarded for rows at once.
create table event_top (id int, day date, v int);
insert into event_top values (21);
alter table event attach partition event_top for values from (20) to (30);
create table event_new partition of event for values from (30) to (40);
select pg_temp.outcome('insert into event values (22)'), pg_temp.outcome('insert into event_top values (22)'), pg_temp.outcome('insert into event_new values (33)');
-- Its own TRUNCATE only when guard is called again.
select lease_lock.guard('event', 'events');
select pg_temp.outcome('truncate event_top'), pg_temp.outcome('truncate event_new');
-- Detached it loses the row guard with its parent.
alter table event detach partition event_top;
select * from pg_temp.triggers('{event_top}');
select lease_lock.unguard('event_top');
drop table event_top;
-- guard on a partition by itself.
select lease_lock.unguard('event');
select * from pg_temp.triggers('{event,event_low,event_high,event_high_1,event_high_2,event_new}');
select lease_lock.guard('event_low', 'low');
select * from pg_temp.triggers('{event,event_low,event_high,event_high_1,event_high_2,event_new}');
select pg_temp.outcome('insert into event values (2)'), pg_temp.outcome('insert into event_low values (2)'), pg_temp.outcome('update event set v = 2'),
       pg_temp.outcome('truncate event'), pg_temp.outcome('truncate event_low');
select pg_temp.outcome('insert into event values (12)');
select lease_lock.unguard('event_low');
-- Guarding the parent replaces a guard that a partition had of its own; attaching such a partition fails.
select lease_lock.guard('event_low', 'low');
select pg_temp.outcome('select lease_lock.guard(''event'', ''events'')');
select * from pg_temp.triggers('{event,event_low,event_new}');
create table event_top (id int, day date, v int);
select lease_lock.guard('event_top', 'top');
alter table event attach partition event_top for values from (20) to (30);
select pg_temp.outcome('insert into event_top values (21)');
drop table event_top;
select lease_lock.unguard('event'), lease_lock.unguard('event_low');
-- A template, with columns at other places in the partitions.
select lease_lock.guard('event', 'event/{id}');
select sql, pg_temp.outcome(sql) from writes order by n;
begin;
select lease_lock.acquire('event/16', 'A') as t \gset
select pg_temp.outcome('update event set v = 3 where id = 16'), pg_temp.outcome('update event set id = 17 where id = 16'), pg_temp.outcome('update event set id = 2 where id = 16');
select lease_lock.acquire('event/2', 'A') as t \gset
select pg_temp.outcome('update event set id = 2 where id = 16');
select tableoid::regclass, id, v from event order by id;
rollback;
drop table event;

-- 2. Inheritance: parent and children.
create table base (id int, v int);
create table child (extra int) inherits (base);
create table grandchild () inherits (child);
insert into base values (1); insert into child values (2); insert into grandchild values (3);
select lease_lock.guard('base', 'tree');
select * from pg_temp.triggers('{base,child,grandchild}');
select sql, pg_temp.outcome(sql) from (values ('insert into base values (4)'), ('insert into child values (4)'), ('insert into grandchild values (4)'),
  ('update base set v = 1'), ('update only base set v = 1'), ('update child set v = 1'), ('update grandchild set v = 1'), ('delete from base'), ('delete from child'),
  ('truncate base'), ('truncate child'), ('truncate only grandchild')) v(sql);
begin;
select lease_lock.acquire('tree', 'A') as t \gset
select pg_temp.outcome('update base set v = 1'), pg_temp.outcome('truncate child'), pg_temp.outcome('delete from base');
rollback;
select lease_lock.unguard('base');
select * from pg_temp.triggers('{base,child,grandchild}');
-- A child alone: its parent is a way in, so it is guarded row by row.
select lease_lock.guard('grandchild', 'leaf');
select * from pg_temp.triggers('{base,child,grandchild}');
select pg_temp.outcome('update base set v = 1'), pg_temp.outcome('update only base set v = 1'), pg_temp.outcome('delete from child'), pg_temp.outcome('truncate base');
select id, v from base order by id;
select lease_lock.unguard('grandchild');
-- A table that gains a parent after it was guarded refuses its own writes, loudly.
create table orphan (id int, v int);
select lease_lock.guard('orphan', 'orphan');
select * from pg_temp.triggers('{orphan}');
alter table orphan inherit base;
begin;
select lease_lock.acquire('orphan', 'A') as t \gset
select * from pg_temp.refusal('insert into orphan values (1)');
rollback;
select lease_lock.guard('orphan', 'orphan');
select * from pg_temp.triggers('{orphan}');
select pg_temp.outcome('insert into orphan values (1)');
alter table orphan no inherit base;
-- A table that gains a child: the child is guarded when guard is called again.
create table late () inherits (base);
select lease_lock.guard('base', 'tree');
select pg_temp.outcome('insert into late values (1)'), pg_temp.outcome('truncate late');
drop table base, child, grandchild, late, orphan;

drop extension lease_lock;
