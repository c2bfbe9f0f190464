-- A guarded table takes writes under the newest token alone, whichever way
-- they come: here with a constant name, that is at statement level.
\set SHOW_CONTEXT never
\set VERBOSITY terse
set client_min_messages = warning;
create extension lease_lock;

-- A statement's SQLSTATE, message, DETAIL, HINT and table; times are masked.
create function pg_temp.refusal(sql text) returns table (part text, says text) language plpgsql as $$
declare s text; m text; d text; h text; t text;
begin
  execute sql;
  return query select 'no error', null::text;
exception when others then
  get stacked diagnostics s = returned_sqlstate, m = message_text, d = pg_exception_detail, h = pg_exception_hint, t = table_name;
  d := regexp_replace(d, '\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d+)?([-+]\d+(:\d+)?| [A-Z]+)', '(time)', 'g');
  return query values (s, m), ('detail', d), ('hint', h), ('table', t);
end $$;

-- Unguarded parents, a guarded table with foreign keys to them, and other ways in.
create table parent (id int primary key);
create table lookup (id int primary key);
create table defaults (id int primary key);
insert into parent values (1), (2), (3);
insert into lookup values (1), (2), (3);
insert into defaults values (0), (1), (2);
create table account (
  id int primary key,
  balance int not null,
  parent int references parent on delete cascade on update cascade,
  looked int references lookup on delete set null on update set null,
  defaulted int default 0 references defaults on delete set default on update set default);
insert into account select i, 100, i, i, 1 from generate_series(1, 3) i;
create view accounts as select * from account;
create view accounts_by_rule as select id, balance from account;
create rule pay as on update to accounts_by_rule do instead update account set balance = new.balance where id = old.id;
create table trigger_writes (id int);
create function write_account() returns trigger language plpgsql as $$ begin update account set balance = new.id; return new; end $$;
create trigger writes before insert on trigger_writes for each row execute function write_account();
create function pay(int) returns void language sql as 'update account set balance = $1';
create function pay_anyway(int) returns text language plpgsql as $$
begin
  update account set balance = $1;
  return 'paid';
exception when others then
  return 'caught ' || sqlstate;
end $$;
create function pay_again(int) returns text language plpgsql as $$
begin
  begin
    update account set balance = $1;
  exception when others then
    null;
  end;
  update account set balance = $1;
  return 'paid';
end $$;

create temp table writes (n int generated always as identity, sql text);
insert into writes (sql) values
  ('insert into account values (7, 7)'),
  ('insert into account select 7, 7 where false'),
  ('update account set balance = 0 where id = 1'),
  ('update account set balance = 0'),
  ('update account set balance = 0 where id = 77'),
  ('update only account set balance = 0 where id = 2'),
  ('delete from account where id = 1'),
  ('delete from account where id = 77'),
  ('insert into account values (1, 7) on conflict (id) do update set balance = excluded.balance'),
  ('insert into account values (7, 7) on conflict (id) do update set balance = excluded.balance'),
  ('insert into account values (1, 7) on conflict do nothing'),
  ('insert into account values (7, 7) on conflict do nothing'),
  ('merge into account a using (values (1)) v(id) on a.id = v.id when matched then update set balance = 7'),
  ('merge into account a using (values (7)) v(id) on a.id = v.id when not matched then insert values (v.id, 7)'),
  ('merge into account a using (values (1)) v(id) on a.id = v.id when matched then delete'),
  ('merge into account a using (values (1), (7)) v(id) on a.id = v.id when matched then update set balance = 7 when not matched then insert values (v.id, 7)'),
  ('with w as (update account set balance = 7 where id = 1 returning id) select * from w'),
  ('with w as (insert into account values (7, 7)) select 1'),
  ('with w as (delete from account where id = 2) select 1'),
  ('update account set balance = p.id from parent p where p.id = account.parent'),
  ('delete from account using parent p where p.id = account.parent and p.id = 3'),
  ('update accounts set balance = 7 where id = 1'),
  ('delete from accounts where id = 1'),
  ('insert into accounts values (7, 7)'),
  ('update accounts_by_rule set balance = 7 where id = 1'),
  ('insert into trigger_writes values (7)'),
  ('select pay(7)'),
  ('do $x$ begin update account set balance = 7; end $x$'),
  ('select pay_again(7)'),
  ('explain (analyze, costs off, timing off, summary off, buffers off) update account set balance = 7'),
  ('truncate account'),
  ('truncate parent cascade'),
  ('delete from parent where id = 1'),
  ('update parent set id = 9 where id = 1'),
  ('delete from lookup where id = 1'),
  ('update lookup set id = 9 where id = 1'),
  ('delete from defaults where id = 1'),
  ('update defaults set id = 9 where id = 1');
-- What a statement comes to; whatever it did is undone.
create function pg_temp.undone(sql text) returns text language plpgsql as $$
declare n bigint; r text;
begin
  begin
    execute sql;
    get diagnostics n = row_count;
    raise sqlstate 'ZZ000';
  exception when sqlstate 'ZZ000' then
    return 'ok, ' || n || ' rows';
  when others then
    return sqlstate || ': ' || sqlerrm;
  end;
end $$;
create temp table before as select * from account;
create function pg_temp.intact() returns boolean language sql as $$
  select not exists ((table account except table before) union all (table before except table account))
     and (select count(*) from account) = 3
     and (select array_agg(id order by id) from parent) = '{1,2,3}'
     and (select array_agg(id order by id) from lookup) = '{1,2,3}'
     and (select array_agg(id order by id) from defaults) = '{0,1,2}'
     and not exists (select from trigger_writes)
$$;

select lease_lock.guard('account', 'ledger');
select tgname, pg_get_triggerdef(oid) from pg_trigger where tgrelid = 'account'::regclass and not tgisinternal order by tgname;

-- 1. No token presented.
select pg_temp.undone(sql) as outcome, count(*) from writes group by 1 order by 2 desc, 1;
select pg_temp.intact();
select * from pg_temp.refusal('insert into account values (7, 7)');
-- A token of another resource is none; the DETAIL lists what is presented.
begin;
select lease_lock.acquire('something else', 'A') as other \gset
select lease_lock.present('third', 12);
select part, regexp_replace(says, '("[a-z ]+" \(token \d+\)), ("[a-z ]+" \(token \d+\))', 'two tokens') as says from pg_temp.refusal('update account set balance = 0');
select pg_temp.undone(sql) as outcome, count(*) from writes group by 1 order by 2 desc, 1;
rollback;

-- 2. The paused holder: A's lease expires, B takes it and writes, A comes back.
select lease_lock.acquire('ledger', 'A', '700 ms') as a \gset
begin;
select lease_lock.present('ledger', :a) = :a as presented;
update account set balance = 101 where id = 1;
rollback;
select pg_sleep(0.8);
select lease_lock.acquire('ledger', 'B', '1 hour') as b \gset
select :b > :a as higher;
begin;
select lease_lock.present('ledger', :b) = :b as presented;
update account set balance = 200 where id = 1;
commit;
update before set balance = 200 where id = 1;
begin;
select lease_lock.present('ledger', :a) = :a as presented;
select pg_temp.undone(sql) as outcome, count(*) from writes group by 1;
select pg_temp.intact();
select * from pg_temp.refusal('delete from account');
commit;
select pg_temp.intact();
-- The same in statements of their own, with the transaction lost.
begin;
select lease_lock.present('ledger', :a) = :a as presented;
update account set balance = 0 where id = 1;
\echo :SQLSTATE
select 1;
commit;
begin;
select lease_lock.present('ledger', :a) = :a as presented;
copy account (id, balance) from stdin;
8	8
9	9
\.
rollback;
begin;
select lease_lock.present('ledger', :a) = :a as presented;
copy account (id, balance) from stdin;
\.
rollback;
begin;
select lease_lock.present('ledger', :a) = :a as presented;
savepoint s;
truncate account;
\echo :SQLSTATE
rollback to s;
prepare pay as update account set balance = $1;
execute pay(0);
\echo :SQLSTATE
rollback;
deallocate pay;
begin;
select lease_lock.present('ledger', :a) = :a as presented;
declare c cursor for select * from account where id = 2 for update;
fetch c;
update account set balance = 0 where current of c;
\echo :SQLSTATE
rollback;
select pg_temp.intact();
-- A handler that swallows the refusal swallows no write.
begin;
select lease_lock.present('ledger', :a) = :a as presented;
select pay_anyway(0);
do $$ begin update account set balance = 0; exception when others then raise info 'caught %', sqlstate; end $$;
commit;
select pg_temp.intact();
-- Reading is free.
begin;
select count(*) from (select * from account for update) a;
rollback;

-- 3. The newest token: each write works once, and counts what it wrote.
begin;
select lease_lock.present('ledger', :b) = :b as presented;
select sql, pg_temp.undone(sql) from writes order by n;
copy account (id, balance) from stdin;
8	8
9	9
\.
select count(*) from account;
update account set balance = balance + 1;
delete from account where id > 3;
rollback;
select pg_temp.intact();
-- The token that the guards look at is the lease's own: accepting wrote nothing.
select highest = :b as newest, mode from lease_lock.fences where name = 'ledger';
select count(*) from lease_lock.fence;

-- 4. A token that was never granted, and one that is no token.
begin;
select lease_lock.present('ledger', 1000000) = 1000000 as presented;
select pg_temp.undone(sql) as outcome, count(*) from writes group by 1;
commit;
select highest = :b as newest from lease_lock.fences where name = 'ledger';
select pg_temp.intact();

-- 5. Released, and expired with nobody after it.
select lease_lock.release('ledger', :b);
begin;
select lease_lock.present('ledger', :b) = :b as presented;
select pg_temp.undone(sql) as outcome, count(*) from writes group by 1;
select * from pg_temp.refusal('update account set balance = 0');
commit;
select lease_lock.acquire('ledger', 'C', '50 ms') as c \gset
select pg_sleep(0.1);
begin;
select lease_lock.present('ledger', :c) = :c as presented;
select pg_temp.undone(sql) as outcome, count(*) from writes group by 1;
select * from pg_temp.refusal('update account set balance = 0');
commit;
select pg_temp.intact();

-- 6. A lease that is acquired in the transaction is presented by itself.
begin;
select lease_lock.acquire('ledger', 'D', '1 hour') as d \gset
update account set balance = 300 where id = 1;
select lease_lock.release('ledger', :d);
commit;
select balance from account where id = 1;
select state from lease_lock.token_status('ledger', :d);
-- ... but not after its release in the same transaction.
begin;
select lease_lock.acquire('ledger', 'D', '1 hour') as d \gset
update account set balance = 400 where id = 1;
select lease_lock.release('ledger', :d);
savepoint s;
update account set balance = 401 where id = 1;
\echo :SQLSTATE
rollback to s;
-- Acquired again, the new token is presented.
select lease_lock.acquire('ledger', 'D', '1 hour') > :d as higher;
update account set balance = 402 where id = 1;
commit;
select balance from account where id = 1;
-- With scope transaction the grant guards its own transaction, and no later one.
select lease_lock.release('ledger', token) from lease_lock.holders where resource = 'ledger';
begin;
select lease_lock.acquire('ledger', 'E', scope => 'transaction') as e \gset
update account set balance = 500 where id = 1;
commit;
begin;
select lease_lock.present('ledger', :e) = :e as presented;
update account set balance = 501 where id = 1;
\echo :SQLSTATE
rollback;
-- Rolled back, the grant is unknown, and so is its token.
begin;
select lease_lock.acquire('ledger', 'F') as f \gset
update account set balance = 600 where id = 1;
rollback;
begin;
select lease_lock.present('ledger', :f) = :f as presented;
update account set balance = 601 where id = 1;
\echo :SQLSTATE
rollback;
select balance from account where id = 1;

-- 7. A check holds to the end of the transaction, past the expiry too.
select lease_lock.acquire('ledger', 'G', '700 ms') as g \gset
begin;
select lease_lock.present('ledger', :g) = :g as presented;
update account set balance = 700 where id = 1;
select pg_sleep(0.8);
select state from lease_lock.token_status('ledger', :g);
update account set balance = 701 where id = 1;
commit;
select balance from account where id = 1;
begin;
select lease_lock.present('ledger', :g) = :g as presented;
update account set balance = 702 where id = 1;
\echo :SQLSTATE
rollback;
-- assert_held presents and checks in one call.
select lease_lock.acquire('ledger', 'H', '700 ms') as h \gset
begin;
select lease_lock.assert_held('ledger', :h) > '0' as held;
select pg_sleep(0.8);
update account set balance = 800 where id = 1;
commit;
select balance from account where id = 1;

-- 8. A procedure's COMMIT ends the transaction, and with it what was presented.
select lease_lock.acquire('ledger', 'I', '1 hour') as i \gset
create procedure pay_twice(token bigint, again boolean) language plpgsql as $$
begin
  perform lease_lock.present('ledger', token);
  update account set balance = 900 where id = 1;
  commit;
  if again then
    perform lease_lock.present('ledger', token);
  end if;
  update account set balance = 901 where id = 1;
end $$;
call pay_twice(:i, false);
\echo :SQLSTATE
select balance from account where id = 1;
call pay_twice(:i, true);
select balance from account where id = 1;

-- 9. Ordinary triggers do not fire for a session that plays a replica.
set session_replication_role = replica;
update account set balance = 1000 where id = 1;
reset session_replication_role;
update account set balance = 1001 where id = 1;
select balance from account where id = 1;

-- 10. Off again.
select lease_lock.unguard('account');
update account set balance = 1002 where id = 1;
select lease_lock.unguard('account');

drop function pay, pay_anyway, pay_again;
drop procedure pay_twice;
drop table trigger_writes, account, parent, lookup, defaults cascade;
drop function write_account;
drop extension lease_lock;
