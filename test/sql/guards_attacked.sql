-- Ways around the guards, and around those who look after them, that must stay closed.
\set SHOW_CONTEXT never
\set VERBOSITY terse
create extension lease_lock;
set client_min_messages = warning;
\getenv srcdir PG_ABS_SRCDIR
\set refusals :srcdir '/common/refusals.sql'
\set ECHO none
\i :refusals
\set ECHO all
-- 1. Warnings of one transaction are forgotten with it: a TRUNCATE comes after.
create table w (id int);
create function same() returns trigger language plpgsql as 'begin return new; end';
create trigger zzz before insert on w for each row execute function same();
select lease_lock.guard('w', 'w/{id}', 'held', 'warn');
insert into w values (1);
truncate w;
insert into w values (1), (1);
truncate w;
select statement, resource, reason, action, count from lease_lock.rejections order by statement, resource;
-- As many as would be refused, where another trigger makes one name of two.
create or replace function same() returns trigger language plpgsql as 'begin new.id := 1; return new; end';
select lease_lock.stats_reset();
begin;
select lease_lock.acquire('w/2', 'A') is not null as granted;
insert into w values (1), (2), (2);
commit;
select sum(count) from lease_lock.rejection_counts;
-- 2. Bytes that are no text do not become one.
select pg_temp.outcome($$select lease_lock.trigger_args('\xff')$$), lease_lock.trigger_args('\x6100620000');
-- 3. assert_guarded runs nothing of the caller's search_path, nor of pg_temp.
create table t (id int primary key, v int);
create function pg_temp.ev() returns boolean language plpgsql as $$ begin raise exception 'ran'; end $$;
create domain pg_temp.text as pg_catalog.text check (pg_temp.ev());
create function pg_temp.guarded() returns boolean language sql set search_path = pg_catalog as 'select lease_lock.assert_guarded(''public.t'')';
select lease_lock.guard('t', 't');
select pg_temp.guarded();
drop domain pg_temp.text;
-- 4. It tells what is, also in the statement that changes it and under an old snapshot.
select lease_lock.unguard('t'), lease_lock.assert_guarded('t');
select lease_lock.unguard('t');
select lease_lock.guard('t', 't'), lease_lock.assert_guarded('t');
select lease_lock.unguard('t');
begin isolation level repeatable read;
select count(*) from t;
select lease_lock.guard('t', 't');
select lease_lock.assert_guarded('t');
commit;
-- 5. What is meant is read as the trigger reads it.
select lease_lock.unguard('t');
create trigger g before insert on t for each statement execute function lease_lock.fence('x', 'held', 'enforce', ' Insert, UPDATE');
select problem from lease_lock.guards where relation = 't'::regclass;
create or replace trigger g before insert or update or delete on t for each row execute function lease_lock.fence('{{id}', 'HELD', 'enforce', ' ');
select problem from lease_lock.guards where relation = 't'::regclass;
drop trigger g on t;
-- 6. A child's guard under another name is not its parent's.
create table p1 (id int); create table c1 () inherits (p1);
select lease_lock.guard('p1', 'p1');
select lease_lock.guard('c1', 'anything', 'newest');
select relation, template, problem from lease_lock.guards where relation in ('p1'::regclass, 'c1'::regclass) order by 1, 2;
select pg_temp.outcome('select lease_lock.assert_guarded(''p1'')');
-- 7. A DELETE after an UPDATE that another trigger skipped is one still.
create table mg (id int, tok bigint);
create function skip() returns trigger language plpgsql as 'begin return null; end';
insert into mg values (1, 10);
select lease_lock.guard_column('mg', 'tok');
create trigger zzz before update on mg for each row execute function skip();
select pg_temp.outcome('merge into mg using (values (1), (2)) s(n) on true when matched and n = 1 then update set tok = 10 when matched then delete');
table mg;
-- 8. An UPDATE that sets no token carries none; nor does a NULL, whatever is presented.
create table doc (id int, tok bigint, body text);
insert into doc values (1, 5, 'a'), (2, null, 'b');
select lease_lock.guard_column('doc', 'tok');
select pg_temp.outcome('update doc set body = ''late'' where id = 1'), pg_temp.outcome('update doc set body = ''late'', tok = 5 where id = 1');
begin;
select lease_lock.present('any', 6);
select pg_temp.outcome('update doc set body = ''now'' where id = 1'), pg_temp.outcome('update doc set body = ''now'' where id = 2');
rollback;
-- 9. A partition's guard is its parent's: neither changed nor taken off by itself.
create table part (id int) partition by range (id);
create table part_1 partition of part for values from (0) to (5);
select lease_lock.guard('part', 'part/{id}');
select pg_temp.outcome('select lease_lock.unguard(''part_1'')'), pg_temp.outcome('select lease_lock.guard(''part_1'', ''x'')');
drop table w, t, p1, c1, mg, doc, part;
drop function same, skip;
drop extension lease_lock;
