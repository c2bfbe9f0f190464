-- A template such as 'account/{id}' gives each row its name: rendered the same
-- in every session, one check a row, both names where a row moves.
\set SHOW_CONTEXT never
\set VERBOSITY terse
create extension lease_lock;
set client_min_messages = warning;

\getenv srcdir PG_ABS_SRCDIR
\set refusals :srcdir '/common/refusals.sql'
\set ECHO none
\i :refusals
\set ECHO all

-- 1. Every type of the contract, rendered the same whatever the session's settings.
create type mood as enum ('glad', 'it''s {odd}');
create domain small as smallint check (value < 1000);
create table kinds (k int primary key, i2 smallint, i4 int, i8 bigint, u uuid, t text, v varchar(40), b boolean, e mood, by bytea, d date, dom small);
insert into kinds values
  (1, -32768, -2147483648, -9223372036854775808, 'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11', 'it''s {x} %s', 'trailing  ', true, 'it''s {odd}', '\x00ff5c27', '2026-02-03', 7),
  (2, 0, 0, 0, '00000000-0000-0000-0000-000000000000', E'\u00e9', '', false, 'glad', '', '0044-03-15 BC', -1),
  (3, 32767, 2147483647, 9223372036854775807, 'ffffffff-ffff-ffff-ffff-ffffffffffff', 'x', 'y', true, 'glad', '\xab', 'infinity', 0),
  (4, 1, 2, 3, '00000000-0000-0000-0000-000000000001', 'x', 'y', false, 'glad', '\x01', '-infinity', 0),
  (5, 1, 2, 3, '00000000-0000-0000-0000-000000000001', 'x', 'y', false, 'glad', '\x01', '5874897-12-31', 0);
-- The name that the guard asks for is in its message.
create function pg_temp.names(template text) returns table (k int, name text) language plpgsql as $$
declare m text;
begin
  perform lease_lock.guard('kinds', template);
  for k in select kinds.k from kinds order by 1 loop
    begin
      update kinds set k = kinds.k where kinds.k = names.k;
      m := 'not refused';
    exception when sqlstate 'LL002' then
      get stacked diagnostics m = message_text;
    end;
    name := substring(m from '^no token presented for resource "(.*)"$');
    return next;
  end loop;
end $$;
create temp table plain as
  select c, n.* from unnest('{i2,i4,i8,u,t,v,b,e,by,d,dom}'::text[]) c, pg_temp.names('x/{' || c || '}') n;
select * from plain order by c, k;
set datestyle = 'German, DMY';
set timezone = 'Asia/Kathmandu';
set bytea_output = 'escape';
set extra_float_digits = 0;
set intervalstyle = 'sql_standard';
set standard_conforming_strings = off;
set escape_string_warning = off;
create temp table odd as
  select c, n.* from unnest('{i2,i4,i8,u,t,v,b,e,by,d,dom}'::text[]) c, pg_temp.names('x/{' || c || '}') n;
reset datestyle; reset timezone; reset bytea_output; reset extra_float_digits; reset intervalstyle; reset standard_conforming_strings; reset escape_string_warning;
select count(*), count(*) filter (where p.name is distinct from o.name) as different from plain p full join odd o using (c, k);
-- Several columns, and braces.
select * from pg_temp.names('{{{t}}}/{k}{b}/{{}}') where k <= 2;
select * from pg_temp.names('{{k}}') where k = 1;
select lease_lock.unguard('kinds');
drop table kinds;
drop domain small;
drop type mood;

-- 2. One token a name.
create table account (id int primary key, balance int, owner text default 'o');
insert into account select i, 100, 'o' from generate_series(1, 4) i;
select lease_lock.guard('account', 'account/{id}');
select lease_lock.acquire('account/1', 'A', '1 hour') as one \gset
select lease_lock.acquire('account/2', 'A', '1 hour') as two \gset
select lease_lock.acquire('account/3', 'A', '1 hour') as three \gset
begin;
select lease_lock.present('account/1', :one);
select pg_temp.outcome('update account set balance = 1 where id = 1');
select pg_temp.outcome('update account set balance = 1 where id = 2');
select pg_temp.outcome('update account set balance = 1 where id in (1, 2)');
select pg_temp.outcome('update account set balance = 1');
select pg_temp.outcome('delete from account where id = 2');
select pg_temp.outcome('insert into account values (2, 1) on conflict (id) do update set balance = 1');
select pg_temp.outcome('insert into account values (1, 1) on conflict (id) do update set balance = 2');
select pg_temp.outcome('merge into account a using (values (1), (2)) v(id) on a.id = v.id when matched then update set balance = 3');
select pg_temp.outcome('merge into account a using (values (1)) v(id) on a.id = v.id when matched then update set balance = 3');
-- No row, no name, no check.
select pg_temp.outcome('update account set balance = 1 where false');
rollback;
-- Each of several rows is checked under its own name.
begin;
select lease_lock.present('account/1', :one), lease_lock.present('account/2', :two), lease_lock.present('account/3', :one);
select pg_temp.outcome('update account set balance = 5 where id <= 2');
select pg_temp.outcome('update account set balance = 5 where id <= 3');
select pg_temp.outcome('insert into account values (4, 0) on conflict do nothing');
rollback;
select * from account order by id;

-- 3. A row that moves to another name needs both tokens.
begin;
select lease_lock.present('account/1', :one);
select lease_lock.acquire('account/9', 'A') as nine \gset
savepoint s;
select pg_temp.outcome('update account set id = 9 where id = 1');
rollback to s;
select pg_temp.outcome('update account set id = 9 where id = 2');
select pg_temp.outcome('update account set id = 8 where id = 1');
rollback;
-- Also when a trigger moves it.
create function move() returns trigger language plpgsql as $$ begin new.id := new.id + 1; return new; end $$;
create trigger move before insert or update on account for each row execute function move();
begin;
select lease_lock.present('account/1', :one);
select pg_temp.outcome('update account set balance = 1 where id = 1');
select pg_temp.outcome('insert into account values (0, 1)');
select lease_lock.acquire('account/5', 'A') as five \gset
select pg_temp.outcome('insert into account values (4, 1)');
rollback;
drop trigger move on account;
drop function move;

-- 4. A NULL column names nothing.
alter table account add code text;
select lease_lock.guard('account', 'code/{code}');
select * from pg_temp.refusal('update account set balance = 0 where id = 1');
select * from pg_temp.refusal('insert into account values (7, 0, ''o'', null)');
begin;
select lease_lock.acquire('code/x', 'A') as x \gset
select pg_temp.outcome('insert into account values (7, 0, ''o'', ''x'')');
select pg_temp.outcome('update account set code = null where id = 7');
rollback;
-- Nor does one that makes the name too long, or leaves none.
select lease_lock.guard('account', '{owner}');
begin;
select * from pg_temp.refusal('insert into account values (7, 0, '''')');
select * from pg_temp.refusal('insert into account values (7, 0, repeat(''x'', 513))');
select lease_lock.acquire(repeat('x', 512), 'A') as x \gset
select pg_temp.outcome('insert into account values (7, 0, repeat(''x'', 512))');
rollback;

-- 5. TRUNCATE names no row.
select lease_lock.guard('account', 'account/{id}');
begin;
select lease_lock.present('account/1', :one);
select * from pg_temp.refusal('truncate account');
rollback;
select count(*) from account;

-- 6. Foreign key actions are checked row by row too.
create table client (id int primary key);
insert into client values (1), (2), (3);
create table cascaded (id int primary key, client int references client on delete cascade on update cascade);
create table nulled (id int primary key, client int references client on delete set null on update set null);
create table defaulted (id int primary key, client int default 3 references client on delete set default on update set default);
insert into cascaded values (1, 1), (2, 2);
insert into nulled values (1, 1), (2, 2);
insert into defaulted values (1, 1), (2, 2);
select lease_lock.guard(t, 'account/{id}') from unnest('{cascaded,nulled,defaulted}'::regclass[]) t;
begin;
select lease_lock.acquire('account/1', 'B', wait => '0');
rollback;
select lease_lock.acquire('account/1', 'A', '1 hour') as newer \gset
begin;
select lease_lock.present('account/1', :one);
select pg_temp.outcome('delete from client where id = 1');
select pg_temp.outcome('update client set id = 9 where id = 1');
select pg_temp.outcome('delete from client where id = 2');
-- A client without rows is nobody's.
select pg_temp.outcome('update client set id = 4 where id = 3');
rollback;
select array_agg(id order by id) from client;
select (select array_agg(c order by id) from cascaded c), (select array_agg(c order by id) from nulled c), (select array_agg(c order by id) from defaulted c);
begin;
select lease_lock.present('account/1', :newer);
savepoint s;
select pg_temp.outcome('delete from client where id = 1');
select (select array_agg(c order by id) from cascaded c), (select array_agg(c order by id) from nulled c), (select array_agg(c order by id) from defaulted c);
rollback to s;
select pg_temp.outcome('update client set id = 9 where id = 1');
select (select array_agg(c order by id) from cascaded c), (select array_agg(c order by id) from nulled c), (select array_agg(c order by id) from defaulted c);
rollback;
drop table cascaded, nulled, defaulted, client;

-- 7. Columns are found where they are: renamed, dropped before, of another type.
create table moved (a int, b int, id int, c int);
alter table moved drop column a;
select lease_lock.guard('moved', 'm/{id}');
select pg_temp.outcome('insert into moved (b, id) values (1, 42)');
alter table moved drop column b;
select pg_temp.outcome('insert into moved (id) values (43)');
alter table moved alter id type text;
select pg_temp.outcome('insert into moved (id) values (''044'')');
alter table moved rename id to key;
select * from pg_temp.refusal('insert into moved (key) values (''045'')');
alter table moved rename c to id;
select pg_temp.outcome('insert into moved (id) values (46)');
alter table moved alter id type numeric;
select * from pg_temp.refusal('insert into moved (id) values (47)');
alter table moved drop column id, add id int generated always as (1) stored;
select * from pg_temp.refusal('insert into moved default values');
select count(*) from moved;
drop table moved;

drop table account;
drop extension lease_lock;
