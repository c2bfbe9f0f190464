-- forget_fence lets the tokens of a name in mode newest begin anew, for when
-- whoever issues them had to start over; nothing else forgets.
\set SHOW_CONTEXT never
\set VERBOSITY terse
create extension lease_lock;
set client_min_messages = warning;
\getenv srcdir PG_ABS_SRCDIR
\set refusals :srcdir '/common/refusals.sql'
\set ECHO none
\i :refusals
\set ECHO all
create table t (id int);
create table r (id int, v int);
select lease_lock.guard('t', 'etcd', 'newest'), lease_lock.guard('r', 'row/{id}', 'newest');
-- A write with a token, in a transaction of its own.
create procedure pg_temp.write(target regclass, name text, token bigint, id int default 0) language plpgsql as $$
begin
  perform lease_lock.present(name, token);
  execute format('insert into %s (id) values (%s)', target, id);
exception when sqlstate 'LL001' then
  raise warning 'refused';
end $$;
create function pg_temp.highest() returns table (name text, highest bigint) language sql as
  $$ select name, highest from lease_lock.fences where mode = 'newest' order by name collate "C" $$;

-- 1. Forgotten, an older token is accepted, and is the highest then.
call pg_temp.write('t', 'etcd', 100);
call pg_temp.write('t', 'etcd', 5);
select lease_lock.forget_fence('etcd');
select * from pg_temp.highest();
call pg_temp.write('t', 'etcd', 5);
call pg_temp.write('t', 'etcd', 4);
call pg_temp.write('t', 'etcd', 5);
select * from pg_temp.highest();
-- Only that name.
call pg_temp.write('r', 'row/1', 7, 1);
call pg_temp.write('r', 'row/2', 8, 2);
select lease_lock.forget_fence('row/1');
call pg_temp.write('r', 'row/1', 1, 1);
call pg_temp.write('r', 'row/2', 1, 2);
select * from pg_temp.highest();
-- Where there is nothing, it says so, and leaves no record.
select lease_lock.forget_fence('row/3'), lease_lock.forget_fence('row/{id}'), lease_lock.forget_fence('ETCD');
select lease_lock.forget_fence('etcd');
select lease_lock.forget_fence('etcd');
select role = current_user as role, session_role = session_user as session_role, action, object, reason, detail from lease_lock.audit where action = 'forget_fence' order by at;

-- 2. A lease of that name goes on to count.
select lease_lock.acquire('etcd', 'A', '1 hour') as old \gset
select lease_lock.acquire('etcd', 'A', '1 hour') as new \gset
call pg_temp.write('t', 'etcd', 1000000);
select lease_lock.forget_fence('etcd');
call pg_temp.write('t', 'etcd', :old);
call pg_temp.write('t', 'etcd', :new);
select highest = :new as new from pg_temp.highest() where name = 'etcd';
select state from lease_lock.token_status('etcd', :new);
select lease_lock.renew('etcd', :new) is not null as renewed;
-- A name that has a lease alone has no fence to forget.
select lease_lock.acquire('held', 'A', '1 hour') as held \gset
select lease_lock.forget_fence('held');
select name, mode from lease_lock.fences where name = 'held';
-- Grants go on above what the fence knew, and need not once that is forgotten.
call pg_temp.write('t', 'etcd', 1000000);
select lease_lock.acquire('etcd', 'A', '1 hour') > 1000000 as above;
call pg_temp.write('r', 'row/4', 5000000, 4);
select lease_lock.forget_fence('row/4');
select lease_lock.acquire('row/4', 'A', '1 hour') as four \gset
select :four < 5000000 as not_above;
call pg_temp.write('r', 'row/4', :four, 4);

-- 3. Transactional.
call pg_temp.write('r', 'row/5', 50, 5);
begin;
select lease_lock.forget_fence('row/5');
call pg_temp.write('r', 'row/5', 3, 5);
select * from pg_temp.highest() where name = 'row/5';
rollback;
select * from pg_temp.highest() where name = 'row/5';
call pg_temp.write('r', 'row/5', 3, 5);
begin;
savepoint a;
select lease_lock.forget_fence('row/5');
rollback to a;
call pg_temp.write('r', 'row/5', 3, 5);
select lease_lock.forget_fence('row/5');
call pg_temp.write('r', 'row/5', 3, 5);
select lease_lock.forget_fence('row/5');
call pg_temp.write('r', 'row/5', 2, 5);
commit;
select * from pg_temp.highest() where name = 'row/5';
select object, detail from lease_lock.audit where action = 'forget_fence' and object = 'row/5' order by at;
-- What this transaction has written itself is forgotten too, and checked anew.
begin;
select lease_lock.present('row/5', 60);
insert into r values (5);
select lease_lock.forget_fence('row/5');
select * from pg_temp.highest() where name = 'row/5';
insert into r values (5);
select * from pg_temp.highest() where name = 'row/5';
select lease_lock.forget_fence('row/5');
select lease_lock.present('row/5', 59);
insert into r values (5);
commit;
select * from pg_temp.highest() where name = 'row/5';
begin isolation level serializable;
select count(*) from r where id = 5;
select lease_lock.forget_fence('row/5');
call pg_temp.write('r', 'row/5', 1, 5);
commit;
select * from pg_temp.highest() where name = 'row/5';

-- 4. It waits as long as lease_lock.default_wait says; with nobody in the way 0 is enough.
set lease_lock.default_wait = 0;
select lease_lock.forget_fence('row/5');
select lease_lock.forget_fence('row/5');
reset lease_lock.default_wait;

-- 5. For administrators.
create role regress_admin;
create role regress_app;
grant usage on schema lease_lock to regress_admin, regress_app;
call pg_temp.write('r', 'row/6', 6, 6);
set role regress_app;
select pg_temp.outcome('select lease_lock.forget_fence(''row/6'')');
select pg_temp.outcome('delete from lease_lock.fence');
reset role;
grant execute on function lease_lock.forget_fence to regress_admin;
set role regress_admin;
select lease_lock.forget_fence('row/6');
reset role;
select role, action, object, detail from lease_lock.audit where role = 'regress_admin';

-- 6. What it does not take.
select pg_temp.outcome('select lease_lock.forget_fence(null)'), pg_temp.outcome('select lease_lock.forget_fence('''')'), pg_temp.outcome('select lease_lock.forget_fence(repeat(''x'', 513))');
begin read only;
select lease_lock.forget_fence('etcd');
rollback;

drop table t, r;
drop extension lease_lock;
drop role regress_admin, regress_app;
