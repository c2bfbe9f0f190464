-- The token travels in a column of the row, so that a client needs no further
-- call: it may grow or stay, and never go back.
\set SHOW_CONTEXT never
\set VERBOSITY terse
create extension lease_lock;
set client_min_messages = warning;
\getenv srcdir PG_ABS_SRCDIR
\set refusals :srcdir '/common/refusals.sql'
\set ECHO none
\i :refusals
\set ECHO all
create table doc (id int primary key, body text, token bigint);
select lease_lock.guard_column('doc', 'token');
select tgname, pg_get_triggerdef(oid) from pg_trigger where tgrelid = 'doc'::regclass order by tgname;

-- 1. INSERT needs a token.
select pg_temp.outcome('insert into doc values (1, ''a'', 5)');
select * from pg_temp.refusal('insert into doc values (2, ''a'', null)');
select * from pg_temp.refusal('insert into doc values (2, ''a'')');
select * from pg_temp.refusal('insert into doc values (2, ''a'', 0)');
select pg_temp.outcome('insert into doc values (2, ''a'', -1)');
select pg_temp.outcome('insert into doc values (2, ''a'', 9), (3, ''a'', null)');
-- 2. UPDATE: higher, equal, lower, none.
select pg_temp.outcome('update doc set body = ''b'', token = 7 where id = 1');
select pg_temp.outcome('update doc set body = ''c'', token = 7 where id = 1');
select * from pg_temp.refusal('update doc set body = ''d'', token = 6 where id = 1');
select * from pg_temp.refusal('update doc set body = ''d'', token = null where id = 1');
select pg_temp.outcome('update doc set body = ''d'', token = 0 where id = 1');
select pg_temp.outcome('update doc set body = ''d'', token = -7 where id = 1');
-- One that does not mention the column carries what is stored: equal.
select pg_temp.outcome('update doc set body = ''e'' where id = 1');
select pg_temp.outcome('insert into doc values (1, ''f'', 6) on conflict (id) do update set body = excluded.body, token = excluded.token');
select pg_temp.outcome('insert into doc values (1, ''g'', 8) on conflict (id) do update set body = excluded.body, token = excluded.token');
select pg_temp.outcome('merge into doc d using (values (1, 7)) v(id, token) on d.id = v.id when matched then update set body = ''h'', token = v.token');
select pg_temp.outcome('merge into doc d using (values (1, 9)) v(id, token) on d.id = v.id when matched then update set body = ''i'', token = v.token');
-- Refused for one row, the statement is undone for all.
insert into doc values (2, 'a', 20);
select pg_temp.outcome('update doc set token = 15');
select * from doc order by id;
copy doc from stdin;
3	a	5
4	a	\N
\.
select count(*) from doc;
-- 3. DELETE carries nothing, so the transaction must present a token; any name will do.
select * from pg_temp.refusal('delete from doc where id = 1');
begin;
select lease_lock.present('whatever', 8);
select * from pg_temp.refusal('delete from doc where id = 1');
select lease_lock.present('another', 9);
select pg_temp.outcome('delete from doc where id = 2');
select pg_temp.outcome('delete from doc where id = 1');
rollback;
begin;
select lease_lock.present('whatever', 100);
select pg_temp.outcome('delete from doc where id = 2');
select pg_temp.outcome('merge into doc d using (values (1)) v(id) on d.id = v.id when matched then delete');
rollback;
-- What a lease acquired here presents counts as well.
begin;
select lease_lock.acquire('doc', 'A') as a \gset
select pg_temp.outcome('delete from doc where id = 1');
rollback;
-- 4. TRUNCATE can carry no token for its rows.
begin;
select lease_lock.present('whatever', 100);
select * from pg_temp.refusal('truncate doc');
rollback;
-- 5. A row that was there before the guard, without a token.
select lease_lock.unguard('doc');
insert into doc values (3, 'old', null), (4, 'older', -3);
select lease_lock.guard_column('doc', 'token');
select pg_temp.outcome('update doc set body = ''x'' where id = 3');
select pg_temp.outcome('update doc set body = ''x'', token = 1 where id = 3');
select pg_temp.outcome('update doc set body = ''x'', token = 1 where id = 4');
select pg_temp.outcome('delete from doc where id = 4');
select * from doc order by id;
drop table doc;

-- 6. With a template the carried token must be the resource's current grant.
create table task (id int primary key, shard int not null, done bool default false, token bigint);
select lease_lock.guard_column('task', 'token', resource => 'shard/{shard}');
select pg_get_triggerdef(oid) from pg_trigger where tgrelid = 'task'::regclass order by tgname;
select lease_lock.acquire('shard/1', 'A', '1 hour') as one \gset
select lease_lock.acquire('shard/2', 'A', '1 hour') as two \gset
select pg_temp.outcome(format('insert into task values (1, 1, false, %s)', :one));
select pg_temp.outcome(format('insert into task values (2, 2, false, %s)', :two));
-- In autocommit, with no call but the write.
update task set done = true, token = :one where id = 1;
select * from task order by id;
select pg_temp.outcome('insert into task values (3, 1, false, 1000)');
select pg_temp.outcome('insert into task values (3, 3, false, 1)');
select pg_temp.outcome(format('insert into task values (3, 1, false, %s)', :two));
select pg_temp.outcome(format('insert into task values (3, 2, false, %s)', :one));
select pg_temp.outcome('insert into task values (3, 1, false, null)');
-- The token of the lease before is refused, though it is not below the row's.
select lease_lock.acquire('shard/1', 'A', '1 hour') as newer \gset
select * from pg_temp.refusal(format('update task set done = false, token = %s where id = 1', :one));
select * from pg_temp.refusal('update task set done = false where id = 1');
select pg_temp.outcome(format('update task set done = false, token = %s where id = 1', :newer));
-- Present what you like: the row's token counts.
begin;
select lease_lock.present('shard/1', :newer);
select pg_temp.outcome(format('insert into task values (3, 1, false, %s)', :one));
rollback;
-- A row that leaves a name needs that name's token presented besides.
select pg_temp.outcome(format('update task set shard = 1, token = %s where id = 2', :newer));
begin;
select lease_lock.present('shard/2', :two);
select pg_temp.outcome(format('update task set shard = 1, token = %s where id = 2', :newer));
rollback;
-- DELETE: under the presented token of the row's own name.
select pg_temp.outcome('delete from task where id = 1');
begin;
select lease_lock.present('shard/2', :two);
select pg_temp.outcome('delete from task where id = 1');
select lease_lock.present('shard/1', :one);
select pg_temp.outcome('delete from task where id = 1');
select lease_lock.present('shard/1', :newer);
select pg_temp.outcome('delete from task where id = 1');
rollback;
-- After release, and after expiry.
select lease_lock.release('shard/1', :newer);
select * from pg_temp.refusal(format('update task set done = true, token = %s where id = 1', :newer));
select lease_lock.acquire('shard/1', 'B', '20 ms') as short \gset
select pg_sleep(0.05);
select pg_temp.outcome(format('update task set done = true, token = %s where id = 1', :short));
-- A grant of this transaction.
begin;
select lease_lock.acquire('shard/1', 'B') as own \gset
select pg_temp.outcome(format('update task set done = true, token = %s where id = 1', :own));
rollback;
select * from task order by id;
-- No fence row: the column and the lease are all there is.
select count(*) from lease_lock.fence;

-- 7. Only warned.
select lease_lock.guard_column('task', 'token', 'warn', 'shard/{shard}');
update task set done = null, token = 2 where id = 1;
update task set done = null, token = null;
delete from task where id = 1;
truncate task;
select count(*) from task;

-- 8. A DELETE is compared with the stored token however many leases the transaction has acquired.
create table stored (id int, token bigint);
insert into stored values (1, 1000000);
select lease_lock.guard_column('stored', 'token', resource => 'stored/{id}');
begin;
select count(lease_lock.acquire('other/' || i, 'W')) from generate_series(1, 20) i;
select lease_lock.acquire('stored/1', 'W') < 1000000 as older;
select pg_temp.outcome('delete from stored');
rollback;
drop table stored;

drop table task;
drop extension lease_lock;
