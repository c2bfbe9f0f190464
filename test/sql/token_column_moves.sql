-- A row that moves to another partition is an UPDATE for whoever writes it: the
-- token it carries is checked, and needs nothing presented besides.
\set SHOW_CONTEXT never
\set VERBOSITY terse
create extension lease_lock;
\getenv srcdir PG_ABS_SRCDIR
\set refusals :srcdir '/common/refusals.sql'
\set ECHO none
\i :refusals
\set ECHO all
create table item (id int, token bigint) partition by range (id);
create table item_low partition of item for values from (0) to (5);
create table item_high partition of item for values from (5) to (10);
insert into item values (1, 5), (2, 5);
select lease_lock.guard_column('item', 'token');
-- Refused as any other UPDATE.
select pg_temp.outcome('update item set id = 7, token = 4 where id = 1');
select pg_temp.outcome('update item set id = 7, token = null where id = 1');
select tableoid::regclass, * from item order by id;
-- Accepted as any other UPDATE, in autocommit with no call but the write.
select pg_temp.outcome('update item set id = 7, token = 6 where id = 1');
select pg_temp.outcome('update item set id = 8, token = 5 where id = 2');
select pg_temp.outcome('merge into item i using (values (7), (8)) v(id) on i.id = v.id when matched then update set id = i.id - 5, token = 9');
select tableoid::regclass, * from item order by id;
-- Nor does an older token that is presented count.
begin;
select lease_lock.present('whatever', 1);
select pg_temp.outcome('update item set id = 9 - id, token = 10 where id < 5');
rollback;
-- A DELETE is one still, and so is the half of no UPDATE.
select pg_temp.outcome('delete from item');
select pg_temp.outcome('with w as (update item set id = 9 - id where id = 2 returning id) delete from item where id = 3');
-- With a resource the carried token is the one that is looked at.
select lease_lock.guard_column('item', 'token', resource => 'col');
select lease_lock.acquire('col', 'A', '1 hour') as old \gset
select lease_lock.raise_token(1000);
select lease_lock.acquire('col', 'A', '1 hour') as newest \gset
select pg_temp.outcome(format('update item set id = 9 - id, token = %s', :old));
select pg_temp.outcome(format('update item set id = 9 - id, token = %s', :newest));
select pg_temp.outcome('delete from item');
select tableoid::regclass, id from item order by id;
drop table item;
drop extension lease_lock;
