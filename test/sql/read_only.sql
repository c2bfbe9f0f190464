-- In a transaction that may only read, every call that would change something
-- is refused with 25006, and what only looks works.
\set SHOW_CONTEXT never
\set VERBOSITY terse
create extension lease_lock;
set client_min_messages = warning;
\getenv srcdir PG_ABS_SRCDIR
\set refusals :srcdir '/common/refusals.sql'
\set ECHO none
\i :refusals
\set ECHO all
select lease_lock.acquire('job', 'A', '1 hour') as t \gset
create table t (id int);
create temp table calls (n int generated always as identity, call text);
insert into calls (call) values
  ('select lease_lock.acquire(''new'', ''A'')'), ('select lease_lock.acquire(''job'', ''A'')'), ('select lease_lock.acquire(''job'', ''B'', wait => ''0'')'),
  ('select lease_lock.try_acquire(''new'', ''A'')'), ('select lease_lock.try_acquire(''job'', ''B'')'),
  ('select lease_lock.renew(''job'', 1)'), ('select lease_lock.renew(''never'', 1)'),
  ('select lease_lock.release(''job'', 1)'), ('select lease_lock.release(''never'', 1)'),
  ('select lease_lock.force_release(''job'', ''test'')'), ('select lease_lock.prune()'),
  ('select lease_lock.guard(''t'', ''job'')'), ('select lease_lock.guard_column(''t'', ''id'')'), ('select lease_lock.unguard(''t'')');
begin read only;
select call, pg_temp.outcome(call) from calls order by n;
-- Bad arguments are told first.
select pg_temp.outcome('select lease_lock.acquire('''', ''A'')');
select state, newest, holder from lease_lock.token_status('job', :t);
select resource, owner, state from lease_lock.holders;
select name, highest, mode from lease_lock.fences;
-- A reader can make sure that its lease holds while it reads.
select lease_lock.assert_held('job', :t) > '59 min' as held;
select lease_lock.present('job', :t);
commit;
begin isolation level repeatable read read only;
select pg_temp.outcome('select lease_lock.acquire(''new'', ''A'')');
select state from lease_lock.token_status('job', :t);
commit;
begin isolation level serializable read only deferrable;
select count(*) from lease_lock.holders;
commit;
set default_transaction_read_only = on;
select pg_temp.outcome('select lease_lock.acquire(''new'', ''A'')');
reset default_transaction_read_only;
-- Nothing came of it.
select resource, owner, token = :t as token, state from lease_lock.holders;
select count(*) from pg_trigger where tgrelid = 't'::regclass;
-- A temporary table may be written even then, and its guard still looks.
create temp table scratch (id int);
select lease_lock.guard('scratch', 'job');
begin read only;
select pg_temp.outcome('insert into scratch values (1)');
select lease_lock.present('job', :t) = :t as presented;
insert into scratch values (1);
commit;
select lease_lock.guard('scratch', 'epoch', 'newest');
begin read only;
select lease_lock.present('epoch', 7);
select pg_temp.outcome('insert into scratch values (2)');
commit;
select count(*) from scratch;
select count(*) from lease_lock.fence;

drop table t, scratch;
drop extension lease_lock;
