-- bypass lets a table's owner write past its guard, in one transaction, in the
-- open: audited, counted, and nobody is granted meanwhile.
\set SHOW_CONTEXT never
\set VERBOSITY terse
create extension lease_lock;
set client_min_messages = warning;
\getenv srcdir PG_ABS_SRCDIR
\set refusals :srcdir '/common/refusals.sql'
\set ECHO none
\i :refusals
\set ECHO all
create function pg_temp.counted() returns table (relation regclass, count bigint) language sql as $$
  select relation, count from lease_lock.rejection_counts where reason = 'bypass' and action = 'bypass' and relation in (select relation from lease_lock.guards) order by relation::text collate "C"
$$;
create function pg_temp.locks() returns table (kind text, mode text, count bigint) language sql as $$
  select case objsubid when 19 then 'lease' when 20 then 'fence' end, mode, count(*) from pg_locks
  where locktype = 'advisory' and objsubid in (19, 20) and pid = pg_backend_pid() group by 1, 2 order by 1 desc, 2
$$;
create table t (id int primary key, v int);
create table other (id int primary key, v int);
select lease_lock.guard('t', 'job'), lease_lock.guard('other', 'job');

-- 1. For this table, and this transaction.
begin;
select lease_lock.bypass('t', 'repair 4711');
insert into t values (1, 0), (2, 0);
update t set v = 1;
delete from t where id = 2;
select pg_temp.outcome('insert into other values (1, 0)');
select lease_lock.bypass('other', 'repair 4711');
insert into other values (1, 0);
commit;
select pg_temp.outcome('update t set v = 2'), pg_temp.outcome('insert into other values (2, 0)');
select * from t;
begin;
select lease_lock.bypass('t', 'rolled back');
update t set v = 2;
rollback;
select pg_temp.outcome('update t set v = 2');
begin;
select lease_lock.bypass('t', 'all of it');
truncate t;
commit;
select pg_temp.outcome('truncate t');
-- It is on record, as far as it was committed; the counts know of all.
select role = current_user as role, action, object, reason, detail from lease_lock.audit where action = 'bypass' order by at;
select * from pg_temp.counted();
-- Past a guard is no refusal.
select count(*) from lease_lock.rejections where reason = 'bypass';
-- A lease stays as it is, and a presented token is not needed, nor in the way.
select lease_lock.acquire('job', 'A', '1 hour') as old \gset
select lease_lock.acquire('job', 'A', '1 hour') as new \gset
begin;
select lease_lock.present('job', :old) = :old as presented;
select pg_temp.outcome('insert into t values (3, 0)');
select lease_lock.bypass('t', 'with a stale token');
insert into t values (3, 0);
-- For the table that is not bypassed the stale token counts as ever.
select pg_temp.outcome('insert into other values (3, 0)');
select lease_lock.present('job', :new) = :new as presented;
insert into other values (3, 0);
commit;
-- The other order: what was bypassed is no check.
begin;
select lease_lock.bypass('t', 'first');
insert into t values (4, 0);
select pg_temp.outcome('insert into other values (4, 0)');
select lease_lock.present('job', :old) = :old as presented;
select pg_temp.outcome('insert into other values (4, 0)');
rollback;
select state, newest = :new as newest from lease_lock.token_status('job', :new);
-- One lock a name, however many rows.
begin;
select lease_lock.bypass('t', 'locks');
insert into t select i, 0 from generate_series(10, 99) i;
select * from pg_temp.locks();
rollback;

-- 2. Savepoints.
begin;
savepoint a;
select lease_lock.bypass('t', 'in a savepoint');
insert into t values (5, 0);
rollback to a;
select * from pg_temp.locks();
select pg_temp.outcome('insert into t values (5, 0)');
select lease_lock.bypass('t', 'again');
insert into t values (5, 0);
select * from pg_temp.locks();
rollback to a;
select lease_lock.bypass('t', 'and again');
savepoint b;
insert into t values (6, 0);
rollback to b;
insert into t values (6, 0);
-- The lock went with the savepoint, and came again.
select * from pg_temp.locks();
savepoint c;
select lease_lock.bypass('other', 'released');
release savepoint c;
insert into other values (5, 0);
commit;
begin;
savepoint a;
savepoint b;
select lease_lock.bypass('t', 'nested');
release savepoint b;
insert into t values (7, 0);
rollback to a;
select pg_temp.outcome('insert into t values (7, 0)');
rollback;
-- Caught in an exception block.
do $$
begin
  begin
    perform lease_lock.bypass('t', 'in a block');
    insert into t values (8, 0);
    raise division_by_zero;
  exception when division_by_zero then null;
  end;
  begin
    insert into t values (8, 0);
  exception when sqlstate 'LL002' then raise warning 'refused';
  end;
end $$;
select id from t order by id;

-- 3. In autocommit it has no effect, and says so; a statement that also writes is its own transaction.
\set VERBOSITY default
select lease_lock.bypass('t', 'autocommit');
\set VERBOSITY terse
select pg_temp.outcome('insert into t values (9, 0)');
do $$ begin perform lease_lock.bypass('t', 'in a DO block'); insert into t values (9, 0); end $$;
select lease_lock.bypass('t', 'two at once')\; insert into t values (10, 0);
select pg_temp.outcome('insert into t values (11, 0)');
create procedure two_transactions() language plpgsql as $$
begin
  perform lease_lock.bypass('t', 'in a procedure');
  insert into t values (11, 0);
  commit;
  insert into t values (12, 0);
end $$;
call two_transactions();
select max(id) from t;
drop procedure two_transactions;
-- One that is not used, in a block: nothing to say.
begin;
select lease_lock.bypass('t', 'not used');
commit;
-- Prepared, it is over in the session, and its lock is kept.
select lease_lock.release('job', :new);
begin;
select lease_lock.bypass('t', 'prepared');
insert into t values (13, 0);
prepare transaction 'bypass';
select pg_temp.outcome('insert into t values (14, 0)');
select lease_lock.try_acquire('job', 'B');
commit prepared 'bypass';
select lease_lock.try_acquire('job', 'B') > :new as granted;
select max(id) from t;

-- 4. Partitions and children; a partition alone.
create table p (id int, v int) partition by list (v);
create table p_1 partition of p for values in (1);
create table p_2 partition of p for values in (2) partition by list (id);
create table p_2_1 partition of p_2 for values in (1);
create table parent (id int);
create table child () inherits (parent);
select lease_lock.guard('p', 'p/{id}'), lease_lock.guard('parent', 'parent');
begin;
select lease_lock.bypass('p', 'all partitions'), lease_lock.bypass('parent', 'children too');
insert into p values (1, 1), (1, 2);
insert into p_1 values (2, 1);
insert into p_2_1 values (1, 2);
insert into parent values (1);
insert into child values (2);
update parent set id = id + 1;
select * from pg_temp.counted();
update p set v = 2 where id = 1;
select tableoid::regclass, * from p order by id, v;
truncate p;
truncate parent;
rollback;
begin;
select lease_lock.bypass('p_1', 'one partition');
insert into p_1 values (1, 1);
insert into p values (1, 1);
select pg_temp.outcome('insert into p values (1, 2)'), pg_temp.outcome('update p set v = 2'), pg_temp.outcome('truncate p');
truncate p_1;
rollback;
begin;
select lease_lock.bypass('child', 'the child alone');
insert into child values (1);
update parent set id = 2;
rollback;
begin;
select lease_lock.bypass('child', 'the child alone');
insert into child values (1);
select pg_temp.outcome('insert into parent values (1)');
rollback;
drop table p, parent, child;

-- 5. Templates: each name in use is kept from being granted.
create table named (id int primary key, v int);
select lease_lock.guard('named', 'n/{id}');
begin;
select lease_lock.bypass('named', 'templates');
insert into named values (1, 0), (2, 0);
update named set id = 3 where id = 1;
select * from pg_temp.locks();
delete from named where id = 2;
truncate named;
commit;
-- A row without a name passes too.
alter table named drop constraint named_pkey, alter id drop not null;
begin;
select lease_lock.bypass('named', 'no name');
insert into named values (null, 0), (9, 0);
update named set id = 8 where id is null;
select * from named order by id;
select * from pg_temp.counted();
rollback;
drop table named;

-- 6. Mode newest: nothing is accepted by it, and nothing forgotten.
create table newest (id int);
select lease_lock.guard('newest', 'new', 'newest');
begin;
select lease_lock.present('new', 10);
insert into newest values (1);
commit;
begin;
select lease_lock.bypass('newest', 'newest');
insert into newest values (2);
select * from pg_temp.locks();
commit;
select name, highest from lease_lock.fences where mode = 'newest';
begin;
select lease_lock.present('new', 9);
select pg_temp.outcome('insert into newest values (3)');
select lease_lock.bypass('newest', 'with a stale token');
insert into newest values (3);
truncate newest;
commit;
-- Under a name that is never used as well.
select lease_lock.guard('newest', 'unused', 'newest');
begin;
select lease_lock.bypass('newest', 'unused');
insert into newest values (4);
commit;
select name, highest from lease_lock.fences where mode = 'newest';
-- A name that is guarded in both modes: both locks, whichever comes first.
select lease_lock.guard('newest', 'job', 'newest');
begin;
select lease_lock.bypass('t', 'held first'), lease_lock.bypass('newest', 'newest next');
insert into t values (50, 0);
insert into newest values (5);
select * from pg_temp.locks();
rollback;
begin;
select lease_lock.bypass('t', 'held next'), lease_lock.bypass('newest', 'newest first');
insert into newest values (5);
insert into t values (50, 0);
select * from pg_temp.locks();
rollback;
drop table newest;

-- 7. fence_column, with and without a resource.
create table carried (id int primary key, token bigint);
select lease_lock.guard_column('carried', 'token');
insert into carried values (1, 5);
begin;
select lease_lock.bypass('carried', 'column');
update carried set token = 1;
update carried set token = null;
insert into carried values (2, null), (3, -1);
delete from carried where id = 2;
select * from carried order by id;
select * from pg_temp.counted();
select * from pg_temp.locks();
truncate carried;
commit;
select pg_temp.outcome('insert into carried values (1, null)');
select lease_lock.guard_column('carried', 'token', resource => 'c/{id}');
begin;
select lease_lock.bypass('carried', 'column and name');
insert into carried values (1, null), (2, 7);
update carried set id = 3 where id = 2;
delete from carried where id = 1;
select * from pg_temp.locks();
truncate carried;
commit;
drop table carried;

-- 8. Each row is counted once, whatever other triggers there are.
create table c (id int, v int);
select lease_lock.guard('c', 'c/{id}');
create function change() returns trigger language plpgsql as 'begin new.v := 7; return new; end';
create trigger zzz before insert or update on c for each row execute function change();
begin;
select lease_lock.bypass('c', 'counted');
insert into c values (1, 1), (2, 2);
update c set v = 3 where id = 1;
delete from c where id = 2;
commit;
select relation, reason, action, count, first_at < last_at as times from lease_lock.rejection_counts where relation = 'c'::regclass;
-- Under warn there is no warning.
select lease_lock.guard('c', 'c', action => 'warn');
begin;
select lease_lock.bypass('c', 'warn');
insert into c values (3, 3);
commit;
insert into c values (4, 4);
select relation, reason, action, count from lease_lock.rejection_counts where relation = 'c'::regclass order by reason;
drop table c;
drop function change();

-- 9. Foreign keys: the child's guard stands, unless it is bypassed too.
create table fk_child (id int references other on delete cascade);
select lease_lock.guard('fk_child', 'fk');
begin;
select lease_lock.bypass('other', 'parent');
select pg_temp.outcome('delete from other where id = 1');
select lease_lock.bypass('fk_child', 'and child');
select pg_temp.outcome('delete from other where id = 1');
rollback;
drop table fk_child;

-- 10. For the owner, and not without EXECUTE.
create role regress_owner;
create role regress_member in role regress_owner;
create role regress_app;
grant usage on schema lease_lock to regress_owner, regress_app;
grant all on t, other to regress_app, regress_owner;
alter table other owner to regress_owner;
set role regress_app;
select pg_temp.outcome('select lease_lock.bypass(''t'', ''mine'')');
reset role;
grant execute on function lease_lock.bypass to regress_app, regress_owner;
set role regress_app;
select * from pg_temp.refusal('select lease_lock.bypass(''t'', ''mine'')');
set role regress_member;
select pg_temp.outcome('select lease_lock.bypass(''t'', ''mine'')');
begin;
select lease_lock.bypass('other', 'ours');
insert into other values (100, 0);
commit;
select pg_temp.outcome('insert into other values (101, 0)');
reset role;
select role, session_role = session_user as session_role, object, reason from lease_lock.audit where action = 'bypass' and role <> current_user;
-- It stays with the transaction when the role changes in it.
begin;
select lease_lock.bypass('other', 'for whoever writes');
set local role regress_app;
insert into other values (102, 0);
commit;

-- 11. What it does not take.
select pg_temp.outcome('select lease_lock.bypass(null, ''x'')'), pg_temp.outcome('select lease_lock.bypass(''t'', null)'), pg_temp.outcome('select lease_lock.bypass(''t'', '''')');
create view seen as select * from t;
select pg_temp.outcome(format('select lease_lock.bypass(%L, ''x'')', r)) from unnest('{seen,t_pkey,pg_class,lease_lock.lease}'::text[]) r;
select pg_temp.outcome('select lease_lock.bypass(4294967295::oid::regclass, ''x'')');
begin read only;
select lease_lock.bypass('t', 'read only');
rollback;
-- Through a view it works like any write of the table.
begin;
select lease_lock.bypass('t', 'through a view');
insert into seen values (200, 0);
rollback;
drop view seen;
-- A table without a guard needs none.
create table bare (id int);
begin;
select lease_lock.bypass('bare', 'nothing there');
insert into bare values (1);
commit;
drop table bare;
-- A table that is dropped and made anew in the transaction is another one.
begin;
create table fresh (id int);
select lease_lock.guard('fresh', 'fresh');
select lease_lock.bypass('fresh', 'made here');
insert into fresh values (1);
drop table fresh;
create table fresh (id int);
select lease_lock.guard('fresh', 'fresh');
select pg_temp.outcome('insert into fresh values (1)');
rollback;

-- 12. One that was rolled back to a savepoint leaves nothing for the transactions that follow.
begin;
savepoint a;
select lease_lock.bypass('t', 'undone');
rollback to a;
commit;
begin;
select lease_lock.bypass('t', 'afterwards');
insert into t values (300, 0);
commit;
select pg_temp.outcome('insert into t values (301, 0)');

drop table t, other;
drop extension lease_lock;
drop role regress_owner, regress_member, regress_app;
