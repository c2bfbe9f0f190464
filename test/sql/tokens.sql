-- raise_token only ever raises, at the end of the tokens nothing wraps, and the
-- view token_state says where tokens are minted.  A raise by setval would lower
-- and would end with its transaction in nobody's records; a counter that wraps
-- would grant tokens that are older than all others.
\set SHOW_CONTEXT never
\set VERBOSITY terse
create extension lease_lock;
set client_min_messages = warning;
\getenv srcdir PG_ABS_SRCDIR
\set refusals :srcdir '/common/refusals.sql'
\set ECHO none
\i :refusals
\set ECHO all
truncate lease_lock.audit;

-- 1. token_state where nothing was granted and nothing has moved.
select last_token, tokens_left, moved, minted_since <= clock_timestamp() as since, database = current_database() as database,
       system_identifier = (select s.system_identifier::text from pg_control_system() s) as system,
       timeline = (select timeline_id from pg_control_checkpoint()) as timeline,
       jumped_at, jumped_from, jumped_to, jump_reason from lease_lock.token_state;
select highest, started, sequence = 'lease_lock.token_seq'::regclass as sequence, reason from lease_lock.place;
select lease_lock.acquire('job', 'A', '1 hour') as t \gset
select :t as first;
select last_token, tokens_left, last_token + tokens_left as all_of_them, moved from lease_lock.token_state;

-- 2. What raise_token refuses: it is told before anything is written.
create temp table floors (n int generated always as identity, floor text, force text);
insert into floors (floor, force) values ('null', 'false'), ('null', 'true'), ('0', 'false'), ('0', 'true'), ('-1', 'false'), ('-1', 'true'), ('-9223372036854775808', 'true'),
  ('9007199254740992', 'false'), ('9007199254740992', 'null'), ('9223372036854775806', 'false'), ('9223372036854775807', 'false'), ('9223372036854775807', 'true');
select floor, force, pg_temp.outcome(format('select lease_lock.raise_token(%s, %s)', floor, force)) from floors order by n;
select * from pg_temp.refusal('select lease_lock.raise_token(null)');
select * from pg_temp.refusal('select lease_lock.raise_token(0)');
select * from pg_temp.refusal('select lease_lock.raise_token(9007199254740992)');
select * from pg_temp.refusal('select lease_lock.raise_token(9223372036854775807, true)');
select last_token from lease_lock.token_state;
select count(*) from lease_lock.audit;

-- 3. It raises; lower and equal change nothing and leave no trace.
select lease_lock.raise_token(1);
select last_token from lease_lock.token_state;
select lease_lock.raise_token(1000);
select last_token, moved, jumped_at from lease_lock.token_state;
select lease_lock.raise_token(1000), lease_lock.raise_token(999), lease_lock.raise_token(1, true);
select last_token from lease_lock.token_state;
select lease_lock.acquire('job', 'A', '1 hour');
select lease_lock.raise_token(1001), lease_lock.raise_token(1000);
select lease_lock.acquire('job', 'A', '1 hour');
select lease_lock.raise_token(floor => 2000, force => null);
-- A lease that was granted before is held as before.
select state, newest from lease_lock.token_status('job', 1002);
select lease_lock.renew('job', 1002) is not null as renewed;
-- So is a name's order: its next token is larger than floor.
select lease_lock.try_acquire('job', 'A', '1 hour');
select role = current_user as role, session_role = session_user as session_role, at <= clock_timestamp() as at, action, object, reason, detail
  from lease_lock.audit order by lease_lock.audit.at;
-- A raise is no jump: it leaves the place as it was.
select count(*) from lease_lock.place;

-- 4. Rolled back, the raise stays, and so does its audit row.
begin;
select lease_lock.raise_token(3000);
rollback;
select last_token from lease_lock.token_state;
select lease_lock.acquire('other', 'A', '1 hour');
begin;
savepoint s;
select lease_lock.raise_token(4000);
rollback to s;
select lease_lock.acquire('other', 'A', '1 hour');
rollback;
select lease_lock.acquire('other', 'A', '1 hour');
select detail from lease_lock.audit order by at;
-- In a transaction that has granted already, the next grant is above it as well.
begin;
select lease_lock.acquire('one', 'A');
select lease_lock.raise_token(5000);
select lease_lock.acquire('two', 'A');
-- The first is the same grant still.
select lease_lock.acquire('one', 'A');
commit;
-- lastval and currval are the caller's own.
create temp sequence mine;
select nextval('mine');
select lease_lock.raise_token(6000), lease_lock.acquire('three', 'A');
select lastval();

-- 5. Refused in a transaction that may only read, and to everybody but the owner.
begin read only;
select pg_temp.outcome('select lease_lock.raise_token(7000)'), pg_temp.outcome('select lease_lock.raise_token(1)'), pg_temp.outcome('select lease_lock.raise_token(0)');
select last_token, moved from lease_lock.token_state;
commit;
create role regress_admin;
create role regress_app;
grant usage on schema lease_lock to regress_admin, regress_app;
set role regress_app;
select pg_temp.outcome('select lease_lock.raise_token(7000)');
select pg_temp.outcome('select setval(''lease_lock.token_seq'', 7000)'), pg_temp.outcome('select nextval(''lease_lock.token_seq'')'), pg_temp.outcome('select * from lease_lock.place');
-- What tokens have come to is no secret.
select last_token, moved from lease_lock.token_state;
reset role;
grant execute on function lease_lock.raise_token to regress_admin;
set role regress_admin;
select lease_lock.raise_token(7000);
reset role;
select role, session_role = session_user as session_role, action, detail from lease_lock.audit where role <> current_user;
select last_token from lease_lock.token_state;

-- 6. Above what a double keeps exactly, with force.
select lease_lock.raise_token(9007199254740991);
select lease_lock.raise_token(9007199254740992, true);
select lease_lock.acquire('four', 'A');
-- There is no way back.
select lease_lock.raise_token(8000), lease_lock.raise_token(8000, true);
select last_token, tokens_left from lease_lock.token_state;
-- A sequence that an administrator set back by hand still grants above its row.
select setval('lease_lock.token_seq', 1);
select lease_lock.acquire('four', 'A') > 9007199254740993 as above;
select lease_lock.raise_token(9007199254740994, true) >= 9007199254740994 as above;

-- 7. The end: the last token is granted, and then nothing wraps.
select lease_lock.acquire('kept', 'A', '1 hour') as kept \gset
select lease_lock.acquire('freed', 'A', '1 hour') as freed \gset
create table h (id int);
create table n (id int);
select lease_lock.guard('h', 'kept'), lease_lock.guard('n', 'kept', 'newest');
select lease_lock.raise_token(9223372036854775805, true);
select lease_lock.raise_token(9223372036854775806, true);
select last_token, tokens_left from lease_lock.token_state;
select lease_lock.acquire('last', 'A', '1 hour') as last \gset
select :last as last;
select last_token, tokens_left, moved from lease_lock.token_state;
select * from pg_temp.refusal('select lease_lock.acquire(''beyond'', ''A'')');
create temp table calls (n int generated always as identity, call text);
insert into calls (call) values ('acquire(''beyond'', ''A'')'), ('try_acquire(''beyond'', ''A'')'), ('acquire(''last'', ''A'')'), ('acquire(''kept'', ''A'')'), ('try_acquire(''kept'', ''A'')'),
  ('acquire(''beyond'', ''A'', scope => ''session'')'), ('acquire(''beyond'', ''A'', scope => ''transaction'')'), ('force_release(''kept'', ''a test'')'),
  ('raise_token(9223372036854775806, true)'), ('try_acquire(''kept'', ''B'')');
select call, pg_temp.outcome('select lease_lock.' || call) from calls order by n;
-- Nothing came of these.
select last_token, tokens_left, (select last_value from lease_lock.token_seq) from lease_lock.token_state;
select resource, token > 9007199254740994 as above, state from lease_lock.holders where resource in ('kept', 'freed', 'last', 'beyond') order by resource collate "C";
select min(version) > 0 as none_is_negative from lease_lock.lease;
-- Who holds a lease goes on.
begin;
select lease_lock.present('kept', :kept) = :kept as presented;
insert into h values (1);
insert into n values (1);
select lease_lock.assert_held('kept', :kept) > '59 min' as held;
commit;
select lease_lock.renew('kept', :kept) is not null as renewed, lease_lock.renew('last', :last) is not null as last_renewed;
select lease_lock.release('freed', :freed), lease_lock.release('last', :last), lease_lock.release('kept', :kept);
select lease_lock.release('kept', :kept);
select lease_lock.prune('0') > 0 as pruned;
select pg_temp.outcome('select lease_lock.acquire(''last'', ''B'')');

-- 8. What the view says of itself.
select obj_description('lease_lock.token_state'::regclass);
select a.attname, format_type(a.atttypid, a.atttypmod) as type, col_description(a.attrelid, a.attnum) as comment
  from pg_attribute a where a.attrelid = 'lease_lock.token_state'::regclass and a.attnum > 0 order by a.attnum;

-- 9. An extension that is created anew counts from 1.
drop table h, n;
drop extension lease_lock;
create extension lease_lock;
select lease_lock.acquire('job', 'A'), lease_lock.acquire('job 2', 'A');
select last_token, moved, jumped_at from lease_lock.token_state;
drop extension lease_lock;
drop role regress_admin, regress_app;
