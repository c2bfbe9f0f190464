-- A trigger that could not do its work fails with a clear error; it never passes.
\set SHOW_CONTEXT never
\set VERBOSITY terse
create extension lease_lock;
set client_min_messages = warning;
\getenv srcdir PG_ABS_SRCDIR
\set refusals :srcdir '/common/refusals.sql'
\set ECHO none
\i :refusals
\set ECHO all
-- Statement-level triggers that somebody made by hand.
create table plain (id int, v int);
create table part (id int, v int) partition by list (id);
create table part_1 partition of part for values in (1);
create trigger g before insert or update or delete on plain for each statement execute function lease_lock.fence('plain/{id}');
select * from pg_temp.refusal('insert into plain values (1)');
select pg_temp.outcome('update plain set v = 1'), pg_temp.outcome('delete from plain');
drop trigger g on plain;
create trigger g before insert or update or delete on part_1 for each statement execute function lease_lock.fence('part');
begin;
select lease_lock.acquire('part', 'A') as t \gset
select * from pg_temp.refusal('insert into part_1 values (1)');
rollback;
drop trigger g on part_1;
create trigger g before insert or update or delete on part for each statement execute function lease_lock.fence('part');
begin;
select lease_lock.acquire('part', 'A') as t \gset
select pg_temp.outcome('insert into part values (1)'), pg_temp.outcome('update part set v = 1'), pg_temp.outcome('delete from part');
rollback;
drop trigger g on part;
-- After the write is too late.
create trigger g after insert or update or delete on plain for each row execute function lease_lock.fence('plain');
select * from pg_temp.refusal('insert into plain values (1)');
drop trigger g on plain;
create trigger g after insert or truncate on plain for each statement execute function lease_lock.fence('plain');
select pg_temp.outcome('insert into plain values (1)'), pg_temp.outcome('truncate plain');
drop trigger g on plain;
create view v as select * from plain;
create trigger g instead of insert on v for each row execute function lease_lock.fence('plain');
select pg_temp.outcome('insert into v values (1)');
drop view v;
-- Arguments that say nothing.
create trigger g before insert on plain for each row execute function lease_lock.fence();
select * from pg_temp.refusal('insert into plain values (1)');
create or replace trigger g before insert on plain for each row execute function lease_lock.fence('a', 'held', 'enforce', 'more');
select pg_temp.outcome('insert into plain values (1)');
create or replace trigger g before insert on plain for each row execute function lease_lock.fence('a{');
select pg_temp.outcome('insert into plain values (1)');
create or replace trigger g before insert on plain for each row execute function lease_lock.fence('{nope}');
select pg_temp.outcome('insert into plain values (1)');
create or replace trigger g before insert on plain for each row execute function lease_lock.fence('a', 'holding');
select pg_temp.outcome('insert into plain values (1)');
create or replace trigger g before insert on plain for each row execute function lease_lock.fence('a', 'held', 'tell');
select pg_temp.outcome('insert into plain values (1)');
create or replace trigger g before insert on plain for each row execute function lease_lock.fence_column('nope');
select pg_temp.outcome('insert into plain values (1)');
create or replace trigger g before insert on plain for each row execute function lease_lock.fence_column('id');
select pg_temp.outcome('insert into plain values (1)');
create or replace trigger g before insert on plain for each row execute function lease_lock.fence_column();
select pg_temp.outcome('insert into plain values (1)');
create or replace trigger g before insert on plain for each statement execute function lease_lock.fence_column('v');
select pg_temp.outcome('insert into plain values (1)');
drop trigger g on plain;
alter table plain alter v type bigint;
create trigger g before insert on plain for each statement execute function lease_lock.fence_column('v');
select * from pg_temp.refusal('insert into plain values (1)');
drop trigger g on plain;
select count(*) from plain;
-- Called as if they were functions.
select lease_lock.fence();
select lease_lock.fence_column();
create function not_a_trigger() returns void language c as '$libdir/lease_lock', 'll_fence';
create function not_a_trigger_2() returns void language c as '$libdir/lease_lock', 'll_fence_column';
select * from pg_temp.refusal('select not_a_trigger()');
select * from pg_temp.refusal('select not_a_trigger_2()');
drop function not_a_trigger, not_a_trigger_2;
-- An event trigger cannot be made of them.
create event trigger regress_e on ddl_command_start execute function lease_lock.fence();

drop table plain, part;
drop extension lease_lock;
