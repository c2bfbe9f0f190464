-- History: while lease_lock.history is on, one row for every grant that ended, which says when and how; and what follows
-- from it: holder_at, overlaps, prune_history. Off, which it is by default, nothing is written.
\set SHOW_CONTEXT never
\set VERBOSITY terse
set intervalstyle = postgres;
create extension lease_lock;
set client_min_messages = warning;
\getenv srcdir PG_ABS_SRCDIR
\set refusals :srcdir '/common/refusals.sql'
\set ECHO none
\i :refusals
\set ECHO all
create role regress_app;
create role regress_clerk;
create role regress_stats in role pg_read_all_stats;
grant usage on schema lease_lock to regress_app, regress_clerk, regress_stats;
-- Lets time pass for a lease: as if all that it has seen had been so much earlier.
create function pg_temp.age(name text, by interval) returns void language sql as $$
  update lease_lock.lease set acquired_at = acquired_at - by, renewed_at = renewed_at - by, expire_at = expire_at - by where resource = name
$$;
-- The rows that came since the last look.
create temp table seen as select 0::bigint as token;
create function pg_temp.news(out resource text, out owner text, out token bigint, out ended_by text, out renewals int, out held text, out longest_gap text)
returns setof record language plpgsql as $$
begin
  -- To the second, which the calls here do not take.
  return query select h.resource::text, h.owner::text, h.token, h.ended_by, h.renewals, date_trunc('second', h.ended_at - h.granted_at)::text, date_trunc('second', h.longest_gap)::text
    from lease_lock.history h where h.token > 0 and not exists (select from seen s where s.token = h.token) order by h.token;
  insert into seen select h.token from lease_lock.history h where not exists (select from seen s where s.token = h.token);
end $$;

-- 1. It is off by default.
show lease_lock.history;
select lease_lock.acquire('job', 'A', '1 hour') as t \gset
select lease_lock.release('job', :t);
select lease_lock.acquire('job', 'B', '1 hour') as t \gset
select lease_lock.force_release('job', 'test') is not null as ended;
select count(*) from lease_lock.history;
set lease_lock.history = on;

-- 2. Each way for a grant to end, and one row for each.
select lease_lock.acquire('job', 'A', '1 hour') as t \gset
select * from pg_temp.news();
select lease_lock.release('job', :t);
select * from pg_temp.news();
-- Again, and by others' tokens: no more rows.
select lease_lock.release('job', :t), lease_lock.release('job', :t + 1), lease_lock.release('job', :t - 1);
select * from pg_temp.news();
-- It expires: known when somebody takes over. It had ended at its expiry.
select lease_lock.acquire('job', 'A', '1 hour') as t \gset
select pg_temp.age('job', '3 hours');
select lease_lock.renew('job', :t), lease_lock.release('job', :t);
select lease_lock.try_acquire('job', 'B', '1 hour') as t \gset
select * from pg_temp.news();
-- Its owner comes again; and too late.
select pg_temp.age('job', '10 min');
select lease_lock.acquire('job', 'B', '1 hour') as t \gset
select * from pg_temp.news();
select pg_temp.age('job', '3 hours');
select lease_lock.acquire('job', 'B', '1 hour') as t \gset
select * from pg_temp.news();
-- By force: in force, expired, released.
select pg_temp.age('job', '10 min');
select lease_lock.force_release('job', 'test') = :t as ended;
select * from pg_temp.news();
select lease_lock.acquire('job', 'C', '1 hour') as t \gset
select pg_temp.age('job', '3 hours');
select lease_lock.force_release('job', 'test') = :t as ended;
select lease_lock.force_release('job', 'test') is null as nothing;
select * from pg_temp.news();
-- The session that acquired gives it up.
select lease_lock.acquire('job', 'D', '1 hour', scope => 'session') as t \gset
select pg_advisory_unlock_all();
select lease_lock.acquire('job', 'E', '1 hour', scope => 'session') as t \gset
select * from pg_temp.news();
select pg_advisory_unlock_all();
select lease_lock.force_release('job', 'test') = :t as ended;
select * from pg_temp.news();
-- With the transaction: known later, and not when.
begin;
select lease_lock.acquire('job', 'F', '1 hour', scope => 'transaction') as t \gset
select * from pg_temp.news();
commit;
select * from pg_temp.news();
begin;
select lease_lock.acquire('job', 'G', '1 hour', scope => 'transaction') as t \gset
select lease_lock.release('job', :t);
commit;
select * from pg_temp.news();
-- Pruned without a release.
select lease_lock.acquire('p1', 'A', '1 hour'), lease_lock.acquire('p2', 'A', '1 hour') as p2, lease_lock.acquire('p3', 'A', '1 hour', scope => 'transaction') \g /dev/null
select lease_lock.release('p2', (select token from lease_lock.holders where resource = 'p2'));
select pg_temp.age(n, '2 days') from unnest('{p1,p2,p3}'::text[]) n;
update lease_lock.lease set ended_at = ended_at - interval '2 days' where resource = 'p2';
select resource, ended_by from pg_temp.news();
select lease_lock.prune() as pruned;
select resource, owner, ended_by, held from pg_temp.news();
-- In one transaction: a grant that is extended has not ended.
begin;
select lease_lock.acquire('one', 'A', '1 hour') as t \gset
select lease_lock.acquire('one', 'A', '2 hours') = :t as same;
select lease_lock.release('one', :t);
select lease_lock.acquire('one', 'B', '1 hour') as t \gset
select lease_lock.release('one', :t);
commit;
select * from pg_temp.news();
-- Every grant that has ended has one row, and no other.
select token, count(*) from lease_lock.history group by token having count(*) > 1;
select count(*) from lease_lock.history h join lease_lock.holders l using (token);

-- 3. Rolled back, it has not ended.
select lease_lock.acquire('back', 'A', '1 hour') as t \gset
begin;
select lease_lock.release('back', :t);
rollback;
begin;
savepoint s;
select lease_lock.release('back', :t);
rollback to s;
select lease_lock.acquire('back', 'A', '1 hour') > :t as again;
rollback;
begin;
select lease_lock.force_release('back', 'test') = :t as ended;
rollback;
select * from pg_temp.news();
select lease_lock.release('back', :t);
select owner, ended_by, held from pg_temp.news();

-- 4. Renewals, and the longest time between two of them.
select lease_lock.acquire('gap', 'A', '1 hour') as t \gset
select pg_temp.age('gap', '5 min');
select lease_lock.renew('gap', :t) is not null as renewed;
select pg_temp.age('gap', '20 min');
select lease_lock.renew('gap', :t) is not null as renewed;
select pg_temp.age('gap', '10 min');
select lease_lock.renew('gap', :t, '2 hours') is not null as renewed;
-- Not to the end.
select pg_temp.age('gap', '50 min');
select lease_lock.renew('gap', :t - 1) is null as failed;
select lease_lock.release('gap', :t);
select resource, owner, ended_by, renewals, held, longest_gap from pg_temp.news();
-- A new grant begins anew.
select lease_lock.acquire('gap', 'A', '1 hour') as t \gset
select lease_lock.release('gap', :t);
select renewals, held, longest_gap from pg_temp.news();

-- 5. What else a row tells: of the grant, not of who ends it.
grant execute on function lease_lock.force_release(text, text, boolean) to regress_clerk;
set application_name = 'worker 7';
set role regress_app;
select lease_lock.acquire('more', 'A', '1 hour', scope => 'session', payload => '{"host": "db-7"}') as t \gset
reset role;
set application_name = 'other';
set role regress_clerk;
select lease_lock.force_release('more', 'test') = :t as ended;
reset role;
select token = :t as token, resource, owner, role, application_name, client_addr is not distinct from inet_client_addr() as client_addr, scope, payload,
       granted_at <= ended_at and ended_at <= clock_timestamp() as times, ended_by
  from lease_lock.history where resource = 'more';
-- A name is bytes.
select lease_lock.acquire(E'it''s a\n"name" %', E'\u00e9', '1 hour') as t \gset
select lease_lock.release(E'it''s a\n"name" %', :t);
select resource = E'it''s a\n"name" %' as resource, owner = E'\u00e9' as owner from lease_lock.history where token = :t;

-- 6. Who held a name at a moment: by history, by the lease as it is, in a gap, before all.
truncate lease_lock.history;
select lease_lock.acquire('h', 'A', '1 day') as a \gset
select pg_temp.age('h', '5 hours');
select lease_lock.release('h', :a);
-- A from 5 to 4 hours ago, B from 3 to 2 (it expired), C since 1 hour.
update lease_lock.history set ended_at = ended_at - interval '4 hours' where token = :a;
select lease_lock.acquire('h', 'B', '1 hour') as b \gset
select pg_temp.age('h', '3 hours');
select lease_lock.acquire('h', 'C', '3 hours') as c \gset
select pg_temp.age('h', '1 hour');
select ago, h.owner, h.token - :a as token, h.role = current_user as role, date_trunc('minute', clock_timestamp() - h.granted_at) as since,
       date_trunc('minute', clock_timestamp() - h.ended_at) as until, h.ended_by
  from unnest('{-10 hours,-90 min,0,10 min,90 min,150 min,200 min,270 min,10 hours}'::interval[]) ago
  left join lateral lease_lock.holder_at('h', clock_timestamp() - ago) h on true order by ago;
select count(*) from lease_lock.holder_at('none', now());
select pg_temp.outcome('select lease_lock.holder_at(null, now())'), pg_temp.outcome('select lease_lock.holder_at(''h'', null)');
-- The moment of the grant is in, that of the end is out; in between there is one.
select h.owner, a.owner as at_its_beginning, (select owner from lease_lock.holder_at('h', h.ended_at)) as at_its_end
  from lease_lock.history h, lease_lock.holder_at('h', h.granted_at) a order by h.token;
select count(*), count(distinct a.token) from generate_series(now() - interval '6 hours', now(), '1 min') t, lease_lock.holder_at('h', t) a;
-- Nobody does once it is released, and by what history does not know nobody did.
select lease_lock.release('h', :c);
select count(*) from lease_lock.holder_at('h', clock_timestamp());
select owner, ended_by from lease_lock.holder_at('h', clock_timestamp() - interval '30 min');
set lease_lock.history = off;
select lease_lock.acquire('off', 'D', '1 hour') as d \gset
select pg_temp.age('off', '30 min');
select owner, ended_at from lease_lock.holder_at('off', clock_timestamp() - interval '10 min');
select lease_lock.release('off', :d);
select owner from lease_lock.holder_at('off', clock_timestamp() - interval '10 min');
set lease_lock.history = on;
-- A session's lease: while the session lived, and no longer; when it went is known once somebody has found it gone.
select lease_lock.acquire('hs', 'A', '1 day', scope => 'session') as s \gset
select pg_temp.age('hs', '1 hour');
select owner from lease_lock.holder_at('hs', clock_timestamp() - interval '30 min');
select owner from lease_lock.holder_at('hs', clock_timestamp());
select pg_advisory_unlock_all();
select owner from lease_lock.holder_at('hs', clock_timestamp());
select owner from lease_lock.holder_at('hs', clock_timestamp() - interval '30 min');
select lease_lock.try_acquire('hs', 'B') is not null as granted;
select owner, ended_by from lease_lock.holder_at('hs', clock_timestamp() - interval '30 min');
-- Uncommitted, nobody holds it yet.
begin;
select lease_lock.acquire('open', 'A', '1 hour') as o \gset
select count(*) from lease_lock.holder_at('open', clock_timestamp());
commit;
select owner from lease_lock.holder_at('open', clock_timestamp());
-- It reads by the index.
set enable_seqscan = off;
explain (costs off) select * from lease_lock.history where resource = 'h' and granted_at <= now() and ended_at > now();
reset enable_seqscan;

-- 7. Overlaps: none, but it would see one.
select * from lease_lock.overlaps();
select * from lease_lock.overlaps('100 years');
update lease_lock.history set ended_at = granted_at + interval '150 min' where token = :a;
select resource, token - :a as token, owner, next_token - :a as next_token, next_owner, ended_at > next_granted_at as times from lease_lock.overlaps();
select count(*) from lease_lock.overlaps('3 hours');
select count(*) from lease_lock.overlaps('2 hours');
-- With the lease that is held now.
truncate lease_lock.history;
select lease_lock.acquire('o', 'A', '1 hour') as a \gset
select lease_lock.release('o', :a);
select lease_lock.acquire('o', 'B', '1 hour') as b \gset
select * from lease_lock.overlaps();
update lease_lock.history set ended_at = ended_at + interval '1 hour' where token = :a;
select owner, next_owner, next_token = :b as next_token from lease_lock.overlaps();
truncate lease_lock.history;

-- 8. prune_history: rows of grants that ended longer ago, with EXECUTE and nothing more.
select lease_lock.acquire('p', 'A', '1 hour') as t \gset
select lease_lock.release('p', :t);
insert into lease_lock.history select 1000000000 + i, 'p', 'A', 'r', null, null, 'lease', null, now() - (i + 1) * interval '1 day', now() - i * interval '1 day', 'released', 0, null
  from generate_series(1, 40) i;
truncate lease_lock.audit;
grant execute on function lease_lock.prune_history(interval) to regress_clerk;
set role regress_clerk;
select pg_temp.outcome('select count(*) from lease_lock.history'), pg_temp.outcome('delete from lease_lock.history');
select lease_lock.prune_history();
select lease_lock.prune_history();
select lease_lock.prune_history('9 days 12 hours');
select current_user = 'regress_clerk' as still;
select pg_temp.outcome('delete from lease_lock.history');
reset role;
select count(*), min(now() - ended_at) < '1 hour' as newest, date_trunc('minute', max(now() - ended_at)) as oldest from lease_lock.history;
select role, session_role = session_user as session_role, action, object, reason, detail from lease_lock.audit order by at;
begin;
select lease_lock.prune_history('1 day') as pruned;
rollback;
select count(*) from lease_lock.history;
select lease_lock.prune_history('0') as pruned;
select count(*) from lease_lock.history;
select pg_temp.outcome(c) from (values ('select lease_lock.prune_history(null)'), ('select lease_lock.prune_history(''-1 day'')'), ('select lease_lock.prune_history(''1 month'')')) v (c);
begin read only;
select lease_lock.prune_history();
rollback;
-- Objects of the caller's are not looked at.
create schema regress_s;
create table regress_s.history (like lease_lock.history);
create function regress_s.lt(timestamptz, timestamptz) returns boolean language plpgsql as 'begin raise ''looked at''; end';
create operator regress_s.< (leftarg = timestamptz, rightarg = timestamptz, function = regress_s.lt);
set search_path = regress_s, pg_catalog;
select lease_lock.prune_history() as pruned;
reset search_path;
drop schema regress_s cascade;

-- 9. Part of a dump; and its indexes.
select c.relname, extcondition[array_position(extconfig, c.oid)] as condition from pg_extension, pg_class c where extname = 'lease_lock' and c.oid = any (extconfig) and c.relname = 'history';
select relname, amname from pg_index i join pg_class c on c.oid = i.indexrelid join pg_am a on a.oid = c.relam where indrelid = 'lease_lock.history'::regclass order by 1;
-- Off again.
reset lease_lock.history;
select lease_lock.acquire('last', 'A') as t \gset
select lease_lock.release('last', :t);
select count(*) from lease_lock.history;

drop extension lease_lock;
drop role regress_app, regress_clerk, regress_stats;
