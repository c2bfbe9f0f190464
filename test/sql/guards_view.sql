-- The view guards says of every guard what is wrong with it, from the catalogs
-- alone, and assert_guarded says so of one table: true, or 55000.
\set SHOW_CONTEXT never
\set VERBOSITY terse
create extension lease_lock;
set client_min_messages = warning;
\getenv srcdir PG_ABS_SRCDIR
\set refusals :srcdir '/common/refusals.sql'
\set ECHO none
\i :refusals
\set ECHO all
create function pg_temp.guards(text default '') returns table (relation regclass, trigger text, mode text, action text, events text, problem text) language sql as $$
  select relation, trigger, mode, action, events, problem from lease_lock.guards where relation::text like $1 || '%' order by relation::text collate "C", trigger collate "C"
$$;
-- The extension's own triggers are no guards.
select count(*) from lease_lock.guards;

-- 1. Guards that are whole have no problem.
create table whole (id int primary key, v int);
create table by_row (id int primary key, v int);
create table newest (id int primary key, v int);
create table carried (id int primary key, token bigint);
create table carried_name (id int primary key, token bigint);
create table part (id int, v int) partition by list (id);
create table part_1 partition of part for values in (1);
create table part_2 partition of part for values in (2) partition by list (v);
create table part_2_1 partition of part_2 for values in (1);
create table parent (id int, v int);
create table child () inherits (parent);
create table braces (id int, v int);
select lease_lock.guard('whole', 'job'), lease_lock.guard('by_row', 'job/{id}'), lease_lock.guard('newest', 'job', 'newest');
select lease_lock.guard_column('carried', 'token'), lease_lock.guard_column('carried_name', 'token', resource => 'job/{id}');
select lease_lock.guard('part', 'part/{id}'), lease_lock.guard('parent', 'parent'), lease_lock.guard('braces', 'a{{b}}');
select relation, trigger, kind, token_column, template, mode, action, events, problem from lease_lock.guards order by relation::text collate "C";
select c.relname, lease_lock.assert_guarded(c.oid) from pg_class c
  where c.oid in (select relation from lease_lock.guards) order by c.relname collate "C";
-- The same for a role that may use the extension and nothing else.
create role regress_app;
grant usage on schema lease_lock to regress_app;
set role regress_app;
select count(*), count(problem) from lease_lock.guards;
select lease_lock.assert_guarded('whole');
reset role;

-- 2. Fewer events, when they were asked for, are no problem.
create table fewer (id int generated always as identity, v int);
select lease_lock.guard('fewer', 'job/{id}', events => 'update,delete');
select * from pg_temp.guards('fewer');
select lease_lock.assert_guarded('fewer');
select lease_lock.guard('fewer', 'job', events => 'truncate');
select * from pg_temp.guards('fewer');
select lease_lock.guard('fewer', 'job', events => 'insert,truncate');
select * from pg_temp.guards('fewer');
-- But all of those that were asked for must be there.
drop trigger zz_lease_lock_guard_truncate on fewer;
select * from pg_temp.guards('fewer');
drop table fewer;

-- 3. Switched off, or on for replicated rows only.
alter table whole disable trigger zz_lease_lock_guard;
alter table by_row disable trigger zz_lease_lock_guard_truncate;
alter table carried enable replica trigger zz_lease_lock_guard;
alter table newest disable trigger all;
select * from pg_temp.guards() where problem is not null;
select * from pg_temp.refusal('select lease_lock.assert_guarded(''whole'')');
select * from pg_temp.refusal('select lease_lock.assert_guarded(''newest'')');
-- A guard that fires for both is all right.
alter table carried enable always trigger zz_lease_lock_guard;
alter table whole enable trigger zz_lease_lock_guard;
select * from pg_temp.guards('carried'), lease_lock.assert_guarded('carried') where relation = 'carried'::regclass;
select * from pg_temp.guards('whole');
-- guard() makes them again, switched on.
select lease_lock.guard('newest', 'job', 'newest'), lease_lock.guard('by_row', 'job/{id}');
-- Of a partition's own copy.
alter table part_1 disable trigger zz_lease_lock_guard;
select * from pg_temp.guards('part') where problem is not null;
select * from pg_temp.refusal('select lease_lock.assert_guarded(''part'')');
select lease_lock.assert_guarded('part_2');
alter table part_1 enable trigger zz_lease_lock_guard;
select lease_lock.assert_guarded('part');

-- 4. Parts that are gone.
drop trigger zz_lease_lock_guard_truncate on whole;
drop trigger zz_lease_lock_guard on by_row;
select * from pg_temp.guards() where problem is not null;
select * from pg_temp.refusal('select lease_lock.assert_guarded(''by_row'')');
select lease_lock.guard('whole', 'job'), lease_lock.guard('by_row', 'job/{id}');
select * from pg_temp.guards() where problem is not null;

-- 5. Made by hand.
create table hand (id int, v int, w int);
create trigger g before insert or update or delete or truncate on hand for each statement execute function lease_lock.fence('hand');
select relation, trigger, kind, template, mode, action, events, problem from lease_lock.guards where relation = 'hand'::regclass;
select lease_lock.assert_guarded('hand');
drop trigger g on hand;
-- Events left out.
create trigger g before update on hand for each row execute function lease_lock.fence('hand/{id}', 'newest');
select * from pg_temp.guards('hand');
-- A column list covers no event whole.
create or replace trigger g before update of v on hand for each row execute function lease_lock.fence('hand/{id}');
select * from pg_temp.guards('hand');
-- Nor does a condition.
create or replace trigger g before insert or update on hand for each row when (new.v > 0) execute function lease_lock.fence('hand/{id}');
select * from pg_temp.guards('hand');
select * from pg_temp.refusal('select lease_lock.assert_guarded(''hand'')');
-- Too late.
drop trigger g on hand;
create trigger g after insert or update or delete on hand for each row execute function lease_lock.fence('hand/{id}');
select * from pg_temp.guards('hand');
drop trigger g on hand;
-- Statement-level, where rows have names or tokens of their own.
create trigger g before insert or update or delete or truncate on hand for each statement execute function lease_lock.fence('hand/{id}');
select * from pg_temp.guards('hand');
create or replace trigger g before insert or update or delete or truncate on hand for each statement execute function lease_lock.fence_column('v');
select * from pg_temp.guards('hand');
drop trigger g on hand;
-- Several that together are one guard, and one of them with a hole.
create trigger a before insert or update on hand for each row execute function lease_lock.fence('hand');
create trigger b before delete on hand for each row execute function lease_lock.fence('hand');
create trigger c before truncate on hand for each statement execute function lease_lock.fence('hand');
select * from pg_temp.guards('hand');
alter table hand disable trigger b;
select * from pg_temp.guards('hand');
-- Two guards under different names are two rows; each says what it covers.
create or replace trigger b before delete on hand for each row execute function lease_lock.fence('other');
alter table hand enable trigger b;
select * from pg_temp.guards('hand');
select * from pg_temp.refusal('select lease_lock.assert_guarded(''hand'')');
drop table hand;

-- 6. Triggers that run after the check and can change the row.
create function change() returns trigger language plpgsql as 'begin return new; end';
create trigger a_before before insert or update on by_row for each row execute function change();
create trigger zz_lease_lock before insert or update on by_row for each row execute function change();
create trigger zzz_after after insert or update on by_row for each row execute function change();
create trigger zzz_statement before insert or update on by_row for each statement execute function change();
create trigger zzz_delete before delete on by_row for each row execute function change();
select * from pg_temp.guards('by_row');
create trigger zzz_row before insert on by_row for each row execute function change();
create trigger zzz_other before update on by_row for each row execute function change();
create trigger zzz_row before update on carried for each row execute function change();
create trigger zzz_row before update on carried_name for each row execute function change();
-- What a row says matters to none of these.
create trigger zzz_row before update on whole for each row execute function change();
create trigger zzz_row before insert or update on part_1 for each row execute function change();
create trigger zzz_row before insert or update on child for each row execute function change();
create trigger zzz_row before insert or update on braces for each row execute function change();
select * from pg_temp.guards() where problem is not null;
alter table by_row disable trigger zzz_other;
drop trigger zzz_row on by_row;
select * from pg_temp.guards('by_row');
-- Nor does a trigger for inserts alone to a guard that leaves them out.
create table no_inserts (id int, v int);
select lease_lock.guard('no_inserts', 'job/{id}', events => 'update,delete');
create trigger zzz_row before insert on no_inserts for each row execute function change();
select * from pg_temp.guards('no_inserts');
create or replace trigger zzz_row before insert or update on no_inserts for each row execute function change();
select * from pg_temp.guards('no_inserts');
drop table no_inserts;
drop function change() cascade;
select * from pg_temp.guards() where problem is not null;

-- 7. Partitions and children that came later.
create table part_3 partition of part for values in (3);
create table part_4 (id int, v int);
alter table part attach partition part_4 for values in (4);
create table part_2_2 partition of part_2 for values in (2);
create table child_2 () inherits (parent);
create table grandchild () inherits (child_2);
select relation, trigger, kind, template, mode, action, events, problem from lease_lock.guards where problem is not null order by relation::text collate "C";
select * from pg_temp.refusal('select lease_lock.assert_guarded(''part'')');
select * from pg_temp.refusal('select lease_lock.assert_guarded(''part_2'')');
select lease_lock.assert_guarded('part_1');
select * from pg_temp.refusal('select lease_lock.assert_guarded(''parent'')');
select * from pg_temp.refusal('select lease_lock.assert_guarded(''child_2'')');
select lease_lock.assert_guarded('child');
-- guard() again covers them.
select lease_lock.guard('part', 'part/{id}'), lease_lock.guard('parent', 'parent');
select * from pg_temp.guards() where problem is not null;
select lease_lock.assert_guarded('part'), lease_lock.assert_guarded('parent');
-- A partition without TRUNCATE that was not asked for is whole.
create table part_few (id int) partition by list (id);
select lease_lock.guard('part_few', 'part/{id}', events => 'insert,update,delete');
create table part_few_1 partition of part_few for values in (1);
select * from pg_temp.guards('part_few');
select lease_lock.assert_guarded('part_few');
drop table part_few;
-- One that leaves keeps TRUNCATE alone.
alter table part detach partition part_1;
select * from pg_temp.guards('part_1');
select * from pg_temp.refusal('select lease_lock.assert_guarded(''part_1'')');
alter table child no inherit parent;
select lease_lock.assert_guarded('child');
drop table part_1, child;
-- A table with a statement-level guard that gained a parent.
create table above (id int, v int);
alter table whole inherit above;
select * from pg_temp.guards('whole');
select * from pg_temp.refusal('select lease_lock.assert_guarded(''whole'')');
select * from pg_temp.refusal('select lease_lock.assert_guarded(''above'')');
select lease_lock.guard('whole', 'job');
select lease_lock.assert_guarded('whole');
alter table whole no inherit above;
select lease_lock.guard('whole', 'job');
create table above_part (id int, v int) partition by list (id);
alter table above_part attach partition whole for values in (1);
select * from pg_temp.guards('whole');
alter table above_part detach partition whole;
select lease_lock.assert_guarded('whole');
drop table above, above_part;

-- 8. Warning only.
select lease_lock.guard('whole', 'job', action => 'warn'), lease_lock.guard_column('carried', 'token', 'warn');
select * from pg_temp.guards() where problem is not null;
select * from pg_temp.refusal('select lease_lock.assert_guarded(''whole'')');
select lease_lock.guard('whole', 'job'), lease_lock.guard_column('carried', 'token');
select lease_lock.assert_guarded('whole'), lease_lock.assert_guarded('carried');

-- 9. Roles that could switch it off: members of the owner, and whoever may set session_replication_role.
create role regress_owner;
create role "regress Member" in role regress_owner;
create role regress_member_of_member in role "regress Member";
create role regress_super superuser in role regress_owner;
create role regress_replica;
alter table whole owner to regress_owner;
select * from pg_temp.guards() where problem is not null;
select * from pg_temp.refusal('select lease_lock.assert_guarded(''whole'')');
grant set on parameter session_replication_role to regress_replica;
select count(*) as all_of_them, count(*) filter (where problem ~ 'can be switched off by .*regress_replica') as named from lease_lock.guards;
select problem from lease_lock.guards where relation in ('whole'::regclass, 'by_row'::regclass) order by relation::text collate "C";
-- A right to write, or to make triggers, is none to switch one off.
grant all on whole, by_row to regress_app;
revoke set on parameter session_replication_role from regress_replica;
select * from pg_temp.guards() where problem is not null;
revoke regress_owner from "regress Member";
select * from pg_temp.guards() where problem is not null;
-- Several problems are all named.
grant regress_owner to regress_replica;
select lease_lock.guard('whole', 'job', action => 'warn');
drop trigger zz_lease_lock_guard_truncate on whole;
alter table whole disable trigger zz_lease_lock_guard;
select * from pg_temp.guards() where problem is not null;
select * from pg_temp.refusal('select lease_lock.assert_guarded(''whole'')');
alter table whole owner to current_user;
select lease_lock.guard('whole', 'job');
alter table whole enable trigger zz_lease_lock_guard;
select * from pg_temp.guards() where problem is not null;

-- 10. Renamed and moved.
create schema regress_moved;
alter table by_row rename to "by Row";
alter table "by Row" set schema regress_moved;
alter schema regress_moved rename to "regress Moved";
alter table "regress Moved"."by Row" rename id to "the Id";
select relation, template, events, problem from lease_lock.guards where relation::text ~ 'Row';
-- The template names the column as it was, and says so when it is written.
select pg_temp.outcome('insert into "regress Moved"."by Row" values (1, 1)');
alter table "regress Moved"."by Row" rename "the Id" to id;
select lease_lock.assert_guarded('"regress Moved"."by Row"');
alter table "regress Moved"."by Row" disable trigger user;
select * from pg_temp.refusal('select lease_lock.assert_guarded(''"regress Moved"."by Row"'')');
set search_path = '';
select relation, problem from lease_lock.guards where relation::pg_catalog.text ~ 'whole';
select lease_lock.assert_guarded('public.whole');
reset search_path;
drop schema "regress Moved" cascade;
select count(*) from lease_lock.guards where relation::text ~ 'Row';

-- 11. A table swap: the copy has no guard.
create table whole_new (like whole including all);
select lease_lock.assert_guarded('whole');
begin;
alter table whole rename to whole_old;
alter table whole_new rename to whole;
select * from pg_temp.guards('whole');
select * from pg_temp.refusal('select lease_lock.assert_guarded(''whole'')');
select lease_lock.assert_guarded('whole_old');
commit;
select * from pg_temp.guards('whole');
drop table whole_old;
select * from pg_temp.guards('whole');
select lease_lock.guard('whole', 'job');
select lease_lock.assert_guarded('whole');

-- 12. Never guarded, no longer guarded, and what cannot be.
create table bare (id int);
create view seen as select * from whole;
select * from pg_temp.refusal('select lease_lock.assert_guarded(''bare'')');
select lease_lock.unguard('whole');
select pg_temp.outcome(format('select lease_lock.assert_guarded(%L)', r)) from unnest('{whole,seen,newest_pkey,pg_class,lease_lock.lease,lease_lock.token_seq}'::text[]) r;
select lease_lock.assert_guarded(null);
select lease_lock.assert_guarded(4294967295::oid::regclass);
-- Rolled back, it is as it was.
begin;
select lease_lock.unguard('newest');
select pg_temp.outcome('select lease_lock.assert_guarded(''newest'')');
rollback;
select lease_lock.assert_guarded('newest');

drop view seen;
drop table whole, newest, carried, carried_name, part, parent, child_2, grandchild, braces, bare;
select count(*) from lease_lock.guards;
drop extension lease_lock;
drop role regress_app, regress_owner, "regress Member", regress_member_of_member, regress_super, regress_replica;
