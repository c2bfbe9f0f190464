-- A BEFORE trigger that runs after the check cannot change what was checked:
-- the row is looked at again as it was written.
\set SHOW_CONTEXT never
\set VERBOSITY terse
create extension lease_lock;
set client_min_messages = warning;
\getenv srcdir PG_ABS_SRCDIR
\set refusals :srcdir '/common/refusals.sql'
\set ECHO none
\i :refusals
\set ECHO all
-- The later triggers: each sets one column to what this setting says.
create function set_token() returns trigger language plpgsql as $$
begin new.token := nullif(current_setting('test.token'), 'null')::bigint; return new; end $$;
create function set_id() returns trigger language plpgsql as $$
begin new.id := nullif(current_setting('test.id'), 'null')::int; return new; end $$;
create function set_v() returns trigger language plpgsql as $$
begin new.v := new.v + 100; return new; end $$;
create function pg_temp.counted(rel regclass) returns table (statement text, resource text, token bigint, newest bigint, reason text, action text, count bigint) language sql as $$
  select statement, resource, token, newest, reason, action, count from lease_lock.rejections where relation = rel order by statement, resource, token, reason
$$;
set test.token = '1';
set test.id = '2';

-- 1. guard_column without a template: the carried token.
create table c (id int primary key, v int, token bigint);
select lease_lock.guard_column('c', 'token');
insert into c values (1, 0, 5);
create trigger zzz before insert or update on c for each row execute function set_token();
select * from pg_temp.refusal('update c set v = 1, token = 6 where id = 1');
select pg_temp.outcome('update c set v = 1 where id = 1');
select pg_temp.outcome('insert into c values (1, 9, 7) on conflict (id) do update set v = 9, token = 7');
select pg_temp.outcome('merge into c using (values (1)) m (id) on c.id = m.id when matched then update set v = 9, token = 7');
set test.token = 'null';
select pg_temp.outcome('update c set v = 1, token = 6 where id = 1'), pg_temp.outcome('insert into c values (2, 0, 5)');
set test.token = '0';
select pg_temp.outcome('update c set v = 1, token = 6 where id = 1'), pg_temp.outcome('insert into c values (2, 0, 5)');
select * from c;
-- What it changes may be as good as what was there.
set test.token = '5';
select pg_temp.outcome('update c set v = 1, token = 6 where id = 1'), pg_temp.outcome('insert into c values (2, 0, 7)');
set test.token = '8';
select pg_temp.outcome('insert into c values (1, 9, 7) on conflict (id) do update set v = 9, token = 7');
select pg_temp.outcome('insert into c values (1, 9, 7) on conflict (id) do nothing');
select * from c order by id;
-- What the check itself refuses is not mended by a later trigger.
select pg_temp.outcome('update c set v = 1, token = 4 where id = 1');
-- A trigger before the check may set the token: it is checked after it.
drop trigger zzz on c;
set test.token = '4';
create trigger aaa before insert or update on c for each row execute function set_token();
select pg_temp.outcome('update c set v = 1, token = 9 where id = 1');
set test.token = '9';
select pg_temp.outcome('update c set v = 1, token = 1 where id = 1');
drop trigger aaa on c;
-- One that changes something else.
create trigger zzz before insert or update on c for each row execute function set_v();
select pg_temp.outcome('update c set v = 1, token = 9 where id = 1'), pg_temp.outcome('insert into c values (3, 0, 5)'),
  pg_temp.outcome('insert into c values (1, 9, 10) on conflict (id) do update set v = 9, token = 10');
select pg_temp.outcome('update c set v = 1, token = 8 where id = 1');
select * from c order by id;
drop table c;

-- 2. guard_column with a template: the carried token, and the name.
create table ct (id int, v int, token bigint);
select lease_lock.guard_column('ct', 'token', resource => 'ct/{id}');
select lease_lock.acquire('ct/1', 'A', '1 hour') as stale \gset
select lease_lock.acquire('ct/1', 'A', '1 hour') as one \gset
select lease_lock.acquire('ct/2', 'A', '1 hour') as two \gset
select :one as one, :two as two;
insert into ct values (1, 0, :one);
create trigger zzz before insert or update on ct for each row execute function set_token();
select set_config('test.token', :'stale', false);
select * from pg_temp.refusal(format('insert into ct values (1, 1, %s)', :one));
select pg_temp.outcome(format('update ct set v = 1, token = %s', :one));
drop trigger zzz on ct;
create trigger zzz before insert or update on ct for each row execute function set_id();
-- Moved to another name: the token is not that one's.
select * from pg_temp.refusal(format('insert into ct values (1, 1, %s)', :one));
select pg_temp.outcome(format('update ct set v = 1, token = %s', :one));
set test.id = 'null';
select pg_temp.outcome(format('insert into ct values (1, 1, %s)', :one));
set test.id = '1';
select pg_temp.outcome(format('insert into ct values (2, 1, %s)', :two));
-- Both triggers together: the row as it is written counts.
set test.id = '2';
select set_config('test.token', :'two', false);
create trigger zzzz before insert or update on ct for each row execute function set_token();
select pg_temp.outcome(format('insert into ct values (1, 1, %s)', :one));
select * from ct order by id, v;
drop trigger zzz on ct;
drop trigger zzzz on ct;
create trigger zzz before insert or update on ct for each row execute function set_v();
select pg_temp.outcome(format('insert into ct values (1, 1, %s)', :one)), pg_temp.outcome(format('update ct set v = v, token = %s where id = 1', :one));
select * from ct order by id, v;
drop table ct;

-- 3. guard with a template: the name, in both modes.
create table g (id int primary key, v int);
select lease_lock.guard('g', 'ct/{id}');
begin;
select lease_lock.present('ct/1', :one);
insert into g values (1, 0);
commit;
create trigger zzz before insert or update on g for each row execute function set_id();
begin;
select lease_lock.present('ct/1', :one);
select * from pg_temp.refusal('insert into g values (1, 1)');
select pg_temp.outcome('update g set v = 1');
select pg_temp.outcome('insert into g values (1, 1) on conflict (id) do update set v = 7');
-- With the token of both names it may move.
select lease_lock.present('ct/2', :two);
select pg_temp.outcome('update g set v = 1');
select * from g;
rollback;
-- An old token of the second name.
begin;
select lease_lock.present('ct/1', :one), lease_lock.present('ct/2', :one);
select pg_temp.outcome('update g set v = 1');
rollback;
drop trigger zzz on g;
create trigger zzz before insert or update on g for each row execute function set_v();
begin;
select lease_lock.present('ct/1', :one);
select pg_temp.outcome('update g set v = 1'), pg_temp.outcome('insert into g values (1, 5) on conflict (id) do update set v = 7');
select * from g;
rollback;
drop trigger zzz on g;
select lease_lock.guard('g', 'n/{id}', 'newest');
begin;
select lease_lock.present('n/2', 20), lease_lock.present('n/1', 10);
insert into g values (2, 0);
delete from g where id = 2;
update g set v = 0 where id = 1;
commit;
create trigger zzz before insert or update on g for each row execute function set_id();
begin;
select lease_lock.present('n/1', 11), lease_lock.present('n/2', 19);
select pg_temp.outcome('update g set v = 1'), pg_temp.outcome('insert into g values (1, 5) on conflict (id) do update set v = 7');
select lease_lock.present('n/2', 20);
select pg_temp.outcome('update g set v = 1');
rollback;
select name, highest from lease_lock.fences where mode = 'newest' order by name;
drop table g;

-- 4. Partitioned tables: rows that come through the parent, directly, and that move.
create table p (id int, v int, token bigint) partition by list (v);
create table p_1 partition of p for values in (1);
create table p_2 partition of p for values in (2);
select lease_lock.guard_column('p', 'token');
insert into p values (1, 1, 5);
set test.token = '1';
create trigger zzz before update on p_1 for each row execute function set_token();
select pg_temp.outcome('update p set id = 2, token = 6'), pg_temp.outcome('update p_1 set id = 2, token = 6');
-- A row that moves is deleted and inserted, so the transaction presents a token as well.
begin;
select lease_lock.present('any', 10);
select left(pg_temp.outcome('update p set v = 2, token = 6'), 5);
select * from p;
rollback;
drop trigger zzz on p_1;
create trigger zzz before insert on p_2 for each row execute function set_token();
begin;
select lease_lock.present('any', 10);
select left(pg_temp.outcome('update p set v = 2, token = 6'), 5);
select * from p;
rollback;
set test.token = 'null';
begin;
select lease_lock.present('any', 10);
select pg_temp.outcome('update p set v = 2, token = 6');
rollback;
select pg_temp.outcome('insert into p values (3, 2, 6)'), pg_temp.outcome('insert into p_2 values (3, 2, 6)');
drop table p;
create table p (id int, v int) partition by list (v);
create table p_1 partition of p for values in (1);
create table p_2 partition of p for values in (2);
select lease_lock.guard('p', 'ct/{id}');
begin;
select lease_lock.present('ct/1', :one);
insert into p values (1, 1);
commit;
set test.id = '2';
create trigger zzz before insert or update on p for each row execute function set_id();
begin;
select lease_lock.present('ct/1', :one);
select pg_temp.outcome(sql) from unnest('{"insert into p values (1, 1)", "insert into p_2 values (1, 2)", "update p set id = 1", "update p set v = 2", "update p_1 set id = 1"}'::text[]) sql;
rollback;
select * from p;
drop table p;

-- 5. Only warned: counted once, as the row was written.
create table w (id int primary key, v int, token bigint);
select lease_lock.guard_column('w', 'token', 'warn');
insert into w values (1, 0, 5);
set test.token = '1';
create trigger zzz before insert or update on w for each row execute function set_token();
update w set token = 6;
select * from pg_temp.counted('w');
-- Where a trigger makes a bad token good, what enforce refuses is counted, and nothing else.
set test.token = '9';
set client_min_messages = error;
insert into w values (2, 0, null);
update w set token = null where id = 2;
set client_min_messages = warning;
select coalesce(sum(count), 0) - 1 as counted from lease_lock.rejection_counts where relation = 'w'::regclass and action = 'warn' \gset
select lease_lock.guard_column('w', 'token');
select (pg_temp.outcome('insert into w values (3, 0, null)') ~ '^LL')::int + (pg_temp.outcome('update w set token = null where id = 2') ~ '^LL')::int as refused \gset
select :refused = :counted as agree;
drop table w;
-- ON CONFLICT.
create table w (id int primary key, v int, token bigint);
select lease_lock.guard_column('w', 'token', 'warn');
insert into w values (1, 0, 5);
create trigger zzz before insert or update on w for each row execute function set_token();
set test.token = 'null';
insert into w values (1, 0, 9) on conflict (id) do update set v = 10, token = 10;
select * from pg_temp.counted('w');
-- One that changes something else.
drop trigger zzz on w;
create trigger zzz before insert or update on w for each row execute function set_v();
insert into w values (4, 0, 5), (5, 0, 0), (6, 0, 0);
update w set token = 4 where id = 4;
delete from w where id = 6;
select * from pg_temp.counted('w');
select relation, reason, count from lease_lock.rejection_counts where relation = 'w'::regclass order by reason;
select * from w order by id;
drop table w;
create table wg (id int, v int);
select lease_lock.guard('wg', 'ct/{id}', action => 'warn');
set test.id = '2';
create trigger zzz before insert or update on wg for each row execute function set_id();
begin;
select lease_lock.present('ct/1', :one);
insert into wg values (1, 1), (1, 2);
select lease_lock.present('ct/2', :two);
insert into wg values (1, 3);
update wg set v = v + 1;
commit;
select * from pg_temp.counted('wg');
select relation, reason, count from lease_lock.rejection_counts where relation = 'wg'::regclass order by reason;
drop table wg;
-- A row that moves to another partition, beside a trigger that changes nothing.
create table p (id int, v int, token bigint) partition by list (v);
create table p_1 partition of p for values in (1);
create table p_2 partition of p for values in (2);
insert into p values (1, 1, 5);
select lease_lock.guard_column('p', 'token', 'warn');
create function keep() returns trigger language plpgsql as 'begin return new; end';
create trigger zzz before insert or update on p for each row execute function keep();
set client_min_messages = error;
begin;
select lease_lock.present('any', 10);
update p set v = 2, token = 1;
commit;
set client_min_messages = warning;
select reason, action, sum(count) as count from lease_lock.rejection_counts where relation in ('p_1'::regclass, 'p_2'::regclass) group by 1, 2;
drop table p;
-- A second guard, made by hand, has no AFTER trigger of its own.
create table two (id int, v int);
select lease_lock.guard('two', 'a/{id}', action => 'warn');
create trigger by_hand before insert or update on two for each row execute function lease_lock.fence('b/{v}', 'held', 'warn');
create trigger zzz before insert or update on two for each row execute function keep();
set client_min_messages = error;
insert into two values (1, 1);
set client_min_messages = warning;
select statement, resource, reason, count from lease_lock.rejections where relation = 'two'::regclass order by resource;
drop table two;
drop function keep();

-- 6. A savepoint that is rolled back takes nothing away from the checks that follow.
create table s (id int primary key, v int, token bigint);
select lease_lock.guard_column('s', 'token');
insert into s values (1, 0, 5);
set test.token = '1';
create trigger zzz before update on s for each row execute function set_token();
begin;
savepoint a;
select pg_temp.outcome('update s set v = 1, token = 6');
rollback to a;
select pg_temp.outcome('update s set v = 1, token = 6');
commit;
select * from s;
drop table s;

drop extension lease_lock;
drop function set_token(), set_id(), set_v();
