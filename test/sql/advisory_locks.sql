-- Named advisory locks: names, waits, modes, counting, what ends them, what
-- the view says of them, and who may use them.  A lock table keyed by a 32-bit
-- hash, or shared with pg_advisory_lock, or a view that guesses from a list of
-- its own, would fail here.
\set SHOW_CONTEXT never
\set VERBOSITY terse
create extension lease_lock;
\getenv srcdir PG_ABS_SRCDIR
\set refusals :srcdir '/common/refusals.sql'
\set ECHO none
\i :refusals
\set ECHO all
-- Fails when it is executed, and not already when the statement is planned.
create function pg_temp.fail() returns int language plpgsql volatile as $$ begin raise division_by_zero; end $$;
-- What this session has, or waits for.
create temp view mine as
  select name, mode, scope, granted from lease_lock.advisory_locks
   where pid = pg_backend_pid() order by name collate "C", mode, scope;

-- 1. Names: every function takes the same ones.
create temp table calls (n int, call text);
insert into calls values
  (1, 'advisory_key(%s)'), (2, 'advisory_lock(%s)'), (3, 'advisory_xact_lock(%s)'), (4, 'try_advisory_lock(%s)'),
  (5, 'try_advisory_xact_lock(%s)'), (6, 'advisory_unlock(%s)');
select n, (pg_temp.refusal(format('select lease_lock.' || call, 'null'))).* from calls order by n;
select n, (pg_temp.refusal(format('select lease_lock.' || call, ''''''))).* from calls order by n;
select n, (pg_temp.refusal(format('select lease_lock.' || call, 'repeat(''x'', 513)'))).* from calls order by n;
-- The limit counts bytes.
select n, chars, bytes, pg_temp.outcome(format('select lease_lock.' || call, quote_literal(name))) as outcome
  from calls,
       (select repeat(c, m) as name, m as chars, octet_length(repeat(c, m)) as bytes
          from (values ('x', 512), (E'\u00e9', 256), (E'\u20ac', 170), (E'\U0001F512', 128), (E'\u00e9', 257), (E'\u20ac', 171), (E'\U0001F512', 129)) v(c, m)) names
 order by n, bytes, chars;
-- Nothing that was refused is held; what session-level forms took is.
select length(name) as chars, octet_length(name) as bytes, mode, scope, granted from mine order by chars, mode, scope;
select pg_advisory_unlock_all();
select * from mine;

-- 2. Distinct names are distinct locks, the same ones as for leases.  The first
-- names are held by somebody else: a prepared transaction.
create temp table pairs (what text, a text, b text);
insert into pairs values
  ('case', 'Job', 'job'),
  ('trailing blank', 'job', 'job '),
  ('leading blank', 'job', ' job'),
  ('blanks alone', ' ', '   '),
  ('tab and blank', E'a\tb', 'a b'),
  ('NFC and NFD', E'caf\u00e9', E'cafe\u0301'),
  ('zero width space', 'a', E'a\u200b'),
  ('no-break space', 'a b', E'a\u00a0b'),
  ('sharp s', E'stra\u00dfe', 'strasse'),
  ('Greek and Latin', 'A', E'\u0391'),
  ('leading zero', '1', '01'),
  ('equal 32-bit hashes', 'job:11352', 'job:189279'),
  ('equal again', 'job:6955', 'job:43347'),
  ('and again', 'job:116298', 'job:144960'),
  ('quotes', 'it''s', 'it"s'),
  ('doubled quotes', 'it''s', 'it''''s'),
  ('percent', '100%', '100%%'),
  ('newline', E'new\nline', 'new line'),
  ('newline at the end', 'x', E'x\n'),
  ('backslash', 'back\slash', 'back\\slash'),
  ('last of 512 bytes', repeat('x', 511) || 'a', repeat('x', 511) || 'b');
select count(*) as hashes_differ from pairs where what ~ 'equal|again' and hashtext(a) <> hashtext(b);
create table names (name text primary key);
insert into names select distinct a from pairs;
begin;
select count(lease_lock.advisory_xact_lock(name)) from names;
select count(lease_lock.acquire(name, 'first', '1 hour')) from names;
prepare transaction 'first';
select what,
       lease_lock.try_advisory_lock(a) as a_lock, lease_lock.try_acquire(a, 'B') is not null as a_lease,
       lease_lock.try_advisory_lock(b) as b_lock, lease_lock.try_acquire(b, 'B', '1 hour') is not null as b_lease
  from pairs where b not in (select name from names) order by pairs.ctid;
-- And the names are shown as they are, of both.
select count(*), count(distinct name) from lease_lock.advisory_locks;
select v.name = n.name as shown, count(*) from names n left join lease_lock.advisory_locks v using (name) group by 1;
select what, v.name = b as shown from pairs left join lease_lock.advisory_locks v on v.name = b and v.pid = pg_backend_pid()
 where b not in (select name from names) order by pairs.ctid;
select distinct mode, scope, granted, pid, backend_start, role, application_name, backend_state, gid, since < clock_timestamp() as since
  from lease_lock.advisory_locks where pid is null;
-- A message with such a name.
select name, (pg_temp.refusal(format('select lease_lock.advisory_lock(%L, wait => ''0'')', name))).*
  from (values ('100%'), ('it''s'), (E'new\nline')) v(name);
rollback prepared 'first';
select pg_advisory_unlock_all();
select count(*) from lease_lock.advisory_locks;

-- 3. Keys: the same everywhere and always, and as many as there are names.
select name, lease_lock.advisory_key(name) = hashtextextended(name collate "C", 0) as key from names where name <> lower(name) or name ~ E'\n' order by name collate "C";
select lease_lock.advisory_key('job') as key \gset
select count(distinct lease_lock.advisory_key('job:' || i)) from generate_series(1, 200000) i;
select provolatile, proparallel from pg_proc where oid = 'lease_lock.advisory_key'::regproc;
\c -
\set SHOW_CONTEXT never
\set VERBOSITY terse
select lease_lock.advisory_key('job') = :key as same_in_another_session;
set client_encoding = latin1;
select lease_lock.advisory_key('job') = :key as same_in_another_encoding;
reset client_encoding;
\set ECHO none
\i :refusals
\set ECHO all
create function pg_temp.fail() returns int language plpgsql volatile as $$ begin raise division_by_zero; end $$;
create temp view mine as
  select name, mode, scope, granted from lease_lock.advisory_locks
   where pid = pg_backend_pid() order by name collate "C", mode, scope;

-- 4. A tag space of their own: pg_advisory_lock with the same key, in either
-- form, does not meet them.
begin;
select lease_lock.advisory_xact_lock('job');
prepare transaction 'named';
select pg_try_advisory_lock(:key) as bigint_form,
       pg_try_advisory_lock((:key >> 32)::int, (((:key & 4294967295) << 32) >> 32)::int) as two_int_form;
select lease_lock.try_advisory_lock('job') as named;
rollback prepared 'named';
select pg_advisory_unlock_all();
begin;
select pg_advisory_xact_lock(:key), pg_advisory_xact_lock((:key >> 32)::int, (((:key & 4294967295) << 32) >> 32)::int);
prepare transaction 'numbered';
select lease_lock.try_advisory_lock('job') as named;
rollback prepared 'numbered';
select * from mine;
select pg_advisory_unlock_all();
-- pg_locks shows a key in two unsigned halves; the view maps them to the name,
-- with the top bits of each half set, and not.
create temp table top as
  select distinct on (lease_lock.advisory_key(n) < 0, lease_lock.advisory_key(n) & 2147483648 <> 0) n as name
    from (select 'top ' || i as n from generate_series(1, 100) i) s
   order by lease_lock.advisory_key(n) < 0, lease_lock.advisory_key(n) & 2147483648 <> 0, n;
select count(*), count(lease_lock.advisory_lock(name)) from top;
select v.key < 0 as negative, v.key & 2147483648 <> 0 as low_half, v.name = t.name as name, v.key = lease_lock.advisory_key(t.name) as key,
       l.granted and l.mode = 'ExclusiveLock' and l.pid = v.pid as in_pg_locks
  from top t join lease_lock.advisory_locks v using (name)
  join pg_locks l on l.locktype = 'advisory' and l.objsubid = 24 and (l.classid::bigint << 32 | l.objid::bigint) = v.key
 order by 1, 2;
select pg_advisory_unlock_all();

-- 5. shared: NULL is refused, shared ones go together, and each mode is a lock
-- of its own.
select (pg_temp.refusal('select lease_lock.' || call)).* from (values
  ('advisory_lock(''s'', null)'), ('advisory_xact_lock(''s'', null)'), ('try_advisory_lock(''s'', null)'), ('try_advisory_xact_lock(''s'', null)'), ('advisory_unlock(''s'', null)')) v(call);
select * from mine;
begin;
select lease_lock.advisory_xact_lock('s', true);
prepare transaction 'shared';
select lease_lock.try_advisory_lock('s', true) as shared, lease_lock.try_advisory_lock('s') as exclusive, lease_lock.try_advisory_xact_lock('s', shared => false) as exclusive_too;
select name, mode, scope, granted, gid from lease_lock.advisory_locks order by gid;
rollback prepared 'shared';
select lease_lock.try_advisory_lock('s', false) as both_by_one_session;
select * from mine;
select lease_lock.advisory_unlock('s');
select * from mine;
select lease_lock.advisory_unlock('s');
select lease_lock.advisory_unlock('s', true);
select * from mine;

-- 6. wait: bounded by max_wait, and NULL waits as long as lock_timeout lets it.
begin;
select lease_lock.advisory_xact_lock('w');
prepare transaction 'in the way';
select wait, pg_temp.outcome(format('select lease_lock.advisory_lock(%s, wait => %L)', name, wait))
  from (values ('''free'''), ('''w''')) n(name), (values ('0'), ('-1 s'), ('-1 us'), ('1 month'), ('-1 month 31 days'), ('1 h 1 ms'), ('300000 years'), ('2500000000 hours')) v(wait)
 order by name, wait;
select pg_temp.outcome('select lease_lock.advisory_xact_lock(''w'', wait => ''1 month'')'), pg_temp.outcome('select lease_lock.advisory_xact_lock(''w'', wait => ''0'')');
select * from pg_temp.refusal('select lease_lock.advisory_lock(''w'', wait => ''61 min'')');
select * from pg_temp.refusal('select lease_lock.advisory_lock(''w'', wait => ''0'')');
select * from pg_temp.refusal('select lease_lock.advisory_lock(''w'', true, wait => ''50 ms'')');
select clock_timestamp() as t0 \gset
select lease_lock.advisory_xact_lock('w', wait => '300 ms');
\echo :SQLSTATE
select clock_timestamp() - :'t0' between '300 ms' and '10 s' as waited_that_long;
set lock_timeout = '300 ms';
select clock_timestamp() as t0 \gset
select * from pg_temp.refusal('select lease_lock.advisory_lock(''w'')');
select clock_timestamp() - :'t0' between '300 ms' and '10 s' as waited_that_long;
select * from pg_temp.refusal('select lease_lock.advisory_xact_lock(''w'', wait => ''1 h'')');
-- The shorter of the two counts.
select pg_temp.outcome('select lease_lock.advisory_lock(''w'', wait => ''40 ms'')');
show lock_timeout;
reset lock_timeout;
set statement_timeout = '300 ms';
select lease_lock.advisory_lock('w');
\echo :SQLSTATE
reset statement_timeout;
-- default_wait is for leases.
set lock_timeout = '100 ms';
set lease_lock.default_wait = 0;
select pg_temp.outcome('select lease_lock.advisory_lock(''w'')');
reset lease_lock.default_wait;
reset lock_timeout;
select lease_lock.try_advisory_lock('w'), lease_lock.try_advisory_xact_lock('w'), lease_lock.try_advisory_lock('w', true);
-- Only "free" is left of all that.
select * from mine;
select count(*) from pg_locks where locktype = 'advisory' and pid = pg_backend_pid();
rollback prepared 'in the way';
select pg_temp.outcome('select lease_lock.advisory_lock(''w'', wait => ''0'')');
select * from mine;
select pg_advisory_unlock_all();

-- 7. Counting: as often as it was locked.
select lease_lock.advisory_lock('c');
select lease_lock.try_advisory_lock('c');
select count(lease_lock.advisory_lock('c')) from generate_series(1, 3);
select * from mine;
select lease_lock.advisory_unlock('c') from generate_series(1, 4);
select * from mine;
select lease_lock.advisory_unlock('c');
select * from mine;
-- Not held: false, and a warning.
\set VERBOSITY default
select lease_lock.advisory_unlock('c');
select lease_lock.advisory_unlock('c', shared => true);
select lease_lock.advisory_unlock(E'100%\nit''s');
\set VERBOSITY terse
-- The transaction form is not unlocked by hand.
begin;
select lease_lock.advisory_xact_lock('c');
select lease_lock.advisory_unlock('c');
select * from mine;
select lease_lock.advisory_lock('c');
select * from mine;
select lease_lock.advisory_unlock('c');
select lease_lock.advisory_unlock('c');
select * from mine;
commit;
select * from mine;

-- 8. ROLLBACK ends the transaction form alone.
begin;
select lease_lock.advisory_lock('session'), lease_lock.advisory_xact_lock('transaction'), lease_lock.try_advisory_xact_lock('shared', true);
select * from mine;
rollback;
select * from mine;
begin;
select lease_lock.advisory_xact_lock('transaction');
commit;
select lease_lock.advisory_xact_lock('alone');
select * from mine;
-- The statement that takes a session lock and fails does not keep it, ...
select lease_lock.advisory_lock('failing'), pg_temp.fail();
select lease_lock.advisory_lock('failing ' || i), case i when 3 then pg_temp.fail() end from generate_series(1, 3) i;
select lease_lock.try_advisory_lock('session'), lease_lock.advisory_lock('session', true), pg_temp.fail();
select * from mine;
begin;
select lease_lock.advisory_lock('before');
select lease_lock.advisory_lock('failing'), lease_lock.advisory_lock('before'), pg_temp.fail();
-- ... and in an aborted transaction nothing can be called, and nothing changes.
select lease_lock.advisory_unlock('before');
\echo :SQLSTATE
select lease_lock.advisory_lock('aborted');
\echo :SQLSTATE
select lease_lock.try_advisory_lock('aborted');
\echo :SQLSTATE
select lease_lock.advisory_key('aborted');
\echo :SQLSTATE
commit;
select * from mine;
-- Not even once too often.
select lease_lock.advisory_unlock('before');
select lease_lock.advisory_unlock('session');
select * from mine;
-- A COMMIT that fails leaves what earlier statements took.
create temp table late (id int primary key deferrable initially deferred);
begin;
insert into late values (1), (1);
select lease_lock.advisory_lock('late');
commit;
select * from mine;
select lease_lock.advisory_unlock('late');
-- An unlock is not undone by a failure, as that of pg_advisory_unlock is not.
select lease_lock.advisory_lock('undone');
select lease_lock.advisory_unlock('undone'), pg_temp.fail();
select * from mine;
select lease_lock.advisory_lock('both'), lease_lock.advisory_unlock('both'), pg_temp.fail();
select * from mine;

-- 9. Savepoints.
begin;
savepoint s;
select lease_lock.advisory_lock('session'), lease_lock.advisory_xact_lock('transaction');
savepoint t;
select lease_lock.advisory_xact_lock('inner');
release t;
select * from mine;
rollback to s;
select * from mine;
select lease_lock.advisory_xact_lock('transaction');
savepoint u;
select lease_lock.advisory_xact_lock('transaction');
rollback to u;
select * from mine;
savepoint v;
select lease_lock.advisory_lock('failing'), lease_lock.advisory_xact_lock('failing'), pg_temp.fail();
select lease_lock.advisory_lock('aborted');
\echo :SQLSTATE
rollback to v;
select * from mine;
release s;
select * from mine;
commit;
select * from mine;
select lease_lock.advisory_unlock('session');
-- The same with no ROLLBACK TO.
begin;
savepoint s;
savepoint t;
select lease_lock.advisory_lock('failing'), pg_temp.fail();
rollback;
select * from mine;
-- Blocks that catch: what a statement in them was given it has; a failing
-- statement takes all of its blocks along.
do $$
begin
  begin
    perform lease_lock.advisory_lock('in a block'), lease_lock.advisory_xact_lock('in a block');
    raise division_by_zero;
  exception when division_by_zero then null;
  end;
  raise info '%', (select string_agg(name || ', ' || scope, '; ') from mine);
end $$;
select * from mine;
select lease_lock.advisory_unlock('in a block');
do $$
begin
  begin
    perform lease_lock.advisory_lock('in a block');
  exception when division_by_zero then null;
  end;
  perform pg_temp.fail();
end $$;
select * from mine;

-- 10. DISCARD ALL and pg_advisory_unlock_all() end the session form; the list
-- agrees, and so does the next count.
select lease_lock.advisory_lock('d'), lease_lock.advisory_lock('d'), lease_lock.advisory_lock('d', true), pg_advisory_lock(1);
select * from mine;
select pg_advisory_unlock_all();
select * from mine;
select lease_lock.advisory_unlock('d');
select lease_lock.advisory_lock('d');
select lease_lock.advisory_unlock('d');
select lease_lock.advisory_unlock('d');
-- The transaction form stays.  (Until it ends, the lock table does not tell that
-- the session form of the same name has gone.)
begin;
select lease_lock.advisory_lock('d'), lease_lock.advisory_xact_lock('d'), lease_lock.advisory_xact_lock('e');
select pg_advisory_unlock_all();
select * from mine where scope = 'transaction';
select lease_lock.advisory_unlock('d');
select * from mine;
select lease_lock.advisory_lock('d');
select * from mine;
commit;
select * from mine;
select lease_lock.advisory_unlock('d');
select lease_lock.advisory_unlock('d');
select lease_lock.advisory_lock('d');
discard all;
select name, mode, scope, granted from lease_lock.advisory_locks;
select count(*) from pg_locks where locktype = 'advisory';
\set ECHO none
\i :refusals
\set ECHO all

-- 11. A prepared transaction takes the transaction form along.
select lease_lock.advisory_lock('session');
begin;
select lease_lock.advisory_xact_lock('prepared'), lease_lock.advisory_xact_lock('prepared too', true);
prepare transaction 'one';
select name, mode, scope, granted, pid = pg_backend_pid() as mine, gid from lease_lock.advisory_locks order by name collate "C";
select lease_lock.try_advisory_lock('prepared'), lease_lock.try_advisory_lock('prepared too', true);
select lease_lock.advisory_unlock('prepared');
commit prepared 'one';
select name, mode, scope, granted, pid = pg_backend_pid() as mine, gid from lease_lock.advisory_locks order by name collate "C";
-- Both forms on one name cannot be prepared, which is PostgreSQL's own rule.
begin;
select lease_lock.advisory_xact_lock('session');
prepare transaction 'two';
select name, mode, scope, granted, pid = pg_backend_pid() as mine, gid from lease_lock.advisory_locks order by name collate "C";
select pg_advisory_unlock_all();
select count(*) from lease_lock.advisory_locks;

-- 12. Read-only transactions may lock, as with pg_advisory_lock.
begin read only;
select lease_lock.advisory_xact_lock('ro'), lease_lock.try_advisory_xact_lock('ro', true), lease_lock.advisory_lock('ro');
select name, mode, scope from lease_lock.advisory_locks order by mode, scope;
select lease_lock.advisory_unlock('ro');
commit;

-- 13. Rights: USAGE on the schema is all that it takes, and gives nothing else.
set client_min_messages = warning;
create role regress_locker;
create role regress_stats in role pg_read_all_stats;
create role regress_nobody;
grant usage on schema lease_lock to regress_locker, regress_stats;
select p.proname, has_function_privilege('public', p.oid, 'execute') as public, obj_description(p.oid, 'pg_proc') is not null as comment
  from pg_proc p where pronamespace = 'lease_lock'::regnamespace and proname ~ 'advisory' order by 1;
select has_schema_privilege('public', 'lease_lock', 'usage') as schema;
select string_agg(privilege_type, ', ') as view_public from information_schema.table_privileges
 where table_schema = 'lease_lock' and table_name = 'advisory_locks' and grantee = 'PUBLIC';
select attname, col_description(attrelid, attnum) is not null as comment
  from pg_attribute where attrelid = 'lease_lock.advisory_locks'::regclass and attnum > 0 order by attnum;
set role regress_nobody;
select pg_temp.outcome('select lease_lock.advisory_lock(''r'')'), pg_temp.outcome('select * from lease_lock.advisory_locks');
set role regress_locker;
select lease_lock.advisory_lock('r'), lease_lock.try_advisory_lock('r2', true), lease_lock.advisory_unlock('r2', true);
select pg_temp.outcome('delete from lease_lock.advisory_locks'), pg_temp.outcome('select * from lease_lock.lease'), pg_temp.outcome('select lease_lock.prune()');
-- The session is another role's: what it does and what it calls itself is not shown.
select name, role = session_user as role, mode, scope, granted, since is not null as since, pid = pg_backend_pid() as pid, backend_start is not null as backend_start, application_name, backend_state
  from lease_lock.advisory_locks;
set role regress_stats;
select name, role = session_user as role, application_name = current_setting('application_name') as application_name, backend_state from lease_lock.advisory_locks;
reset role;
select backend_start = (select backend_start from pg_stat_activity where pid = pg_backend_pid()) as backend_start, since between backend_start and clock_timestamp() as since
  from lease_lock.advisory_locks;
select lease_lock.advisory_unlock('r');

drop extension lease_lock;
drop table names;
drop role regress_locker, regress_stats, regress_nobody;
