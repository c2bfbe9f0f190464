-- Roles: who may use the extension, whose lease it is, and what nobody can forge.
\set SHOW_CONTEXT never
\set VERBOSITY terse
create extension lease_lock;
set client_min_messages = warning;
\getenv srcdir PG_ABS_SRCDIR
\set refusals :srcdir '/common/refusals.sql'
\set ECHO none
\i :refusals
\set ECHO all
create role regress_none;
create role regress_app;
create role regress_other;
create role regress_child in role regress_app;
create role regress_gone;
grant usage on schema lease_lock to regress_app, regress_other, regress_child, regress_gone;

-- 1. USAGE on the schema is the permission.
set role regress_none;
select pg_temp.outcome('select lease_lock.acquire(''job'', ''A'')'), pg_temp.outcome('select * from lease_lock.holders');
set role regress_app;
select lease_lock.acquire('job', 'A', '1 hour') as t \gset
select call, pg_temp.outcome(call) from (values
  ('select lease_lock.try_acquire(''x'', ''A'')'), ('select lease_lock.renew(''x'', 1)'), ('select lease_lock.release(''x'', 1)'),
  ('select * from lease_lock.token_status(''job'', 1)'), ('select lease_lock.assert_held(''job'', 1)'),
  ('select * from lease_lock.holders'), ('select * from lease_lock.fences')) v(call);
-- What it does not give.
select call, pg_temp.outcome(call) from (values
  ('select lease_lock.force_release(''job'', ''why'')'), ('select lease_lock.prune()'), ('select lease_lock.guard(''pg_class'', ''x'')'),
  ('select lease_lock.guard_column(''pg_class'', ''x'')'), ('select lease_lock.unguard(''pg_class'')'),
  ('select * from lease_lock.lease'), ('select * from lease_lock.fence'), ('select * from lease_lock.audit'),
  ('update lease_lock.lease set version = 0'), ('delete from lease_lock.lease'), ('insert into lease_lock.fence values (''job'', 1000, now(), ''x'')'), ('truncate lease_lock.lease'),
  ('select * from lease_lock.lease for update'), ('lock lease_lock.lease in access share mode'), ('lock lease_lock.lease in row exclusive mode'),
  ('select nextval(''lease_lock.token_seq'')'), ('select setval(''lease_lock.token_seq'', 1)'), ('select last_value from lease_lock.token_seq'), ('select setval(''lease_lock.place_seq'', 1)'),
  ('create table lease_lock.mine (id int)'), ('create function lease_lock.acquire(text, text) returns int language sql as ''select 1'''),
  ('drop table lease_lock.lease'), ('alter table lease_lock.lease disable trigger all'), ('create trigger g before update on lease_lock.lease for each row execute function suppress_redundant_updates_trigger()')) v(call);
reset role;

-- 2. Only a role with the privileges of the one that acquired may renew, release or assert.
set role regress_other;
select * from pg_temp.refusal(format('select lease_lock.renew(''job'', %s)', :t));
select pg_temp.outcome(format('select lease_lock.release(''job'', %s)', :t)), pg_temp.outcome(format('select lease_lock.assert_held(''job'', %s)', :t));
-- What became of it anybody may ask.
select state, holder from lease_lock.token_status('job', :t);
-- The same owner string in another role is a stranger's.
select lease_lock.try_acquire('job', 'A');
select * from pg_temp.refusal('select lease_lock.acquire(''job'', ''A'', wait => ''0'')') where part <> 'detail';
set role regress_child;
select lease_lock.renew('job', :t, '2 hours') is not null as renewed, lease_lock.assert_held('job', :t) > '1 hour' as held;
select lease_lock.acquire('job', 'A', '1 hour') as t2 \gset
select :t2 > :t as higher;
select role from lease_lock.holders where resource = 'job';
-- Now it is the child's, whose privileges the parent has not got.
set role regress_app;
select pg_temp.outcome(format('select lease_lock.renew(''job'', %s)', :t2));
select lease_lock.try_acquire('job', 'A');
reset role;
-- A superuser has everybody's.
select lease_lock.renew('job', :t2, '1 hour') is not null as renewed;
select lease_lock.acquire('job', 'A', '1 hour') as t3 \gset
set role regress_child;
select lease_lock.try_acquire('job', 'A');
reset role;
select lease_lock.release('job', :t3);

-- 3. It is current_user that counts, also inside a SECURITY DEFINER function.
create function acquire_for_app(text) returns bigint language sql security definer as 'select lease_lock.acquire($1, ''A'', ''1 hour'')';
alter function acquire_for_app owner to regress_app;
set role regress_other;
select acquire_for_app('definer') as d \gset
select pg_temp.outcome(format('select lease_lock.renew(''definer'', %s)', :d));
reset role;
select role from lease_lock.holders where resource = 'definer';
drop function acquire_for_app;

-- 4. In one transaction the same owner in another role is a stranger too.
begin;
set local role regress_app;
select lease_lock.acquire('both', 'A', '1 hour') as b \gset
set local role regress_other;
select lease_lock.try_acquire('both', 'A');
select pg_temp.outcome('select lease_lock.acquire(''both'', ''A'')');
rollback;

-- 5. A role that is dropped leaves its lease to expire; a superuser may still end it.
set role regress_gone;
select lease_lock.acquire('orphan', 'A', '1 hour') as g \gset
reset role;
revoke usage on schema lease_lock from regress_gone;
drop role regress_gone;
set role regress_app;
select pg_temp.outcome(format('select lease_lock.renew(''orphan'', %s)', :g));
select lease_lock.try_acquire('orphan', 'A');
reset role;
select role, state from lease_lock.holders where resource = 'orphan';
select lease_lock.renew('orphan', :g) is not null as renewed, lease_lock.release('orphan', :g) as released;

-- 6. A guard checks the token, not who carries it; the writer needs no right on the extension's tables.
create table t (id int);
grant insert, select on t to regress_app, regress_none;
select lease_lock.guard('t', 'shared');
set role regress_app;
select lease_lock.acquire('shared', 'A', '1 hour') as s \gset
begin;
select lease_lock.present('shared', :s) = :s as presented;
set local role regress_none;
insert into t values (1);
commit;
set role regress_none;
select pg_temp.outcome('insert into t values (2)');
reset role;
begin;
select lease_lock.present('shared', :s) = :s as presented;
insert into t values (3);
commit;
-- Mode 'newest' writes the fence for a writer who may not.
create table n (id int);
grant insert on n to regress_app;
select lease_lock.guard('n', 'shared', 'newest');
set role regress_app;
begin;
select lease_lock.present('shared', 1000) = 1000 as presented;
insert into n values (1);
commit;
reset role;
select highest, accepted_by from lease_lock.fences where mode = 'newest';

-- 7. Guards are for a table's owner with the right to call guard.
grant execute on function lease_lock.guard, lease_lock.unguard, lease_lock.fence to regress_other;
grant create on schema public to regress_other;
set role regress_other;
create table own_table (id int);
select lease_lock.guard('own_table', 'mine');
select pg_temp.outcome('insert into own_table values (1)');
select pg_temp.outcome('select lease_lock.guard(''t'', ''mine'')'), pg_temp.outcome('select lease_lock.unguard(''t'')');
select pg_temp.outcome('select lease_lock.guard_column(''own_table'', ''id'')');
select lease_lock.unguard('own_table');
reset role;
select role, action, object from lease_lock.audit where role = 'regress_other' order by at;
drop table own_table;
revoke create on schema public from regress_other;

-- 8. Look-alikes on the caller's path deceive nobody.
grant create, temp on database :DBNAME to regress_app;
set role regress_app;
create schema regress_evil;
create table regress_evil.lease (resource text, owner text, version bigint, expire_at timestamptz);
insert into regress_evil.lease values ('shared', 'evil', 999999, 'infinity'), ('fake', 'evil', 1, 'infinity');
create table regress_evil.fence (name text, highest bigint);
insert into regress_evil.fence values ('shared', 0);
create sequence regress_evil.token_seq;
create function regress_evil.fence() returns trigger language plpgsql as 'begin return coalesce(new, old); end';
create function regress_evil.acquire(text, text, interval default null, interval default null, text default null, jsonb default null) returns bigint language sql as 'select 0::bigint';
create function regress_evil.text_eq(text, text) returns boolean language sql as 'select true';
create operator regress_evil.= (leftarg = text, rightarg = text, function = regress_evil.text_eq);
create temp table lease (resource text, owner text, version bigint, expire_at timestamptz);
insert into lease values ('shared', 'evil', 999999, 'infinity');
create temp table fence (name text, highest bigint);
create temp table holders (resource text);
create temp sequence token_seq;
set search_path = pg_temp, regress_evil, lease_lock, public, pg_catalog;
select lease_lock.acquire('fake', 'me', '1 hour') > 1 as granted;
select state, newest, holder from lease_lock.token_status('shared', 999999);
select count(*) from lease_lock.holders where resource operator(pg_catalog.=) 'shared';
begin;
select lease_lock.present('shared', 999) operator(pg_catalog.=) 999 as presented;
insert into public.n values (2);
rollback;
begin;
select lease_lock.present('shared', 999999) operator(pg_catalog.=) 999999 as presented;
insert into public.t values (2);
rollback;
select lease_lock.renew('shared', :s) is not null as renewed, lease_lock.release('shared', :s) as released;
reset search_path;
reset role;
set search_path = regress_evil, lease_lock, public;
create table g (id int);
select lease_lock.guard('g', 'shared');
select tgfoid::regprocedure from pg_trigger where tgrelid = 'g'::regclass order by tgname;
insert into g values (1);
drop table g;
reset search_path;
drop schema regress_evil cascade;

drop table t, n;
drop extension lease_lock;
drop owned by regress_none, regress_app, regress_other, regress_child;
drop role regress_none, regress_app, regress_other, regress_child;
