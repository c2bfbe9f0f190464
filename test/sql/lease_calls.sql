-- The life of a lease: every call, in the order in which a worker makes them,
-- and what each of them says when the lease is no longer the worker's.
\set SHOW_CONTEXT never
\set VERBOSITY terse
create extension lease_lock;

-- A statement's SQLSTATE, message, DETAIL and HINT; times are masked.
\getenv srcdir PG_ABS_SRCDIR
\set refusals :srcdir '/common/refusals.sql'
\set ECHO none
\i :refusals
\set ECHO all

-- 1. Acquire, renew, release.
select lease_lock.acquire('job', 'A', '1 hour') as t1 \gset
select :t1 as token;
select state, ttl, newest, holder, expire_at > clock_timestamp() as runs,
       remaining between '59 min' and '1 hour' as about_an_hour
  from lease_lock.token_status('job', :t1);
-- renew sets the expiry to now plus ttl, longer or shorter, and never adds up.
select lease_lock.renew('job', :t1, '2 hours') - clock_timestamp() between '119 min' and '120 min' as longer;
select lease_lock.renew('job', :t1, '1 min') - clock_timestamp() between '30 s' and '60 s' as shorter;
select lease_lock.renew('job', :t1, '10 min') - clock_timestamp() between '9 min' and '10 min' as first,
       lease_lock.renew('job', :t1, '10 min') - clock_timestamp() between '9 min' and '10 min' as second,
       lease_lock.renew('job', :t1, '10 min') - clock_timestamp() between '9 min' and '10 min' as third;
-- Without a ttl it is that of the grant, whatever renewals asked for.
select lease_lock.renew('job', :t1) - clock_timestamp() between '59 min' and '1 hour' as that_of_the_grant;
select lease_lock.assert_held('job', :t1) between '59 min' and '1 hour' as held;
-- The token is the same after all that.
select token, state from lease_lock.holders;

-- 2. Somebody else is refused: at once by try_acquire, after wait by acquire.
select lease_lock.try_acquire('job', 'B');
select * from pg_temp.refusal($$select lease_lock.acquire('job', 'B', wait => '0')$$);
select * from pg_temp.refusal($$select lease_lock.acquire('job', 'B', wait => '50 ms')$$);
select clock_timestamp() as t0 \gset
select lease_lock.acquire('job', 'B', wait => '300 ms');
\echo :SQLSTATE
select clock_timestamp() - :'t0' between '300 ms' and '5 s' as waited_that_long;
-- Refusals changed nothing and used up no token.
select owner, token from lease_lock.holders;
select lease_lock.acquire('other job', 'B') = :t1 + 1 as next_token;

-- 3. Release is idempotent, and ends the lease for good.
select lease_lock.release('job', :t1);
select lease_lock.release('job', :t1);
select state, expire_at is not null as has_expiry, remaining, ttl, newest, holder
  from lease_lock.token_status('job', :t1);
select lease_lock.renew('job', :t1);
select lease_lock.renew('job', :t1, '1 hour');
select * from pg_temp.refusal(format($$select lease_lock.assert_held('job', %s)$$, :t1));
select count(*) from lease_lock.holders where resource = 'job';
select lease_lock.try_acquire('job', 'B') as t3 \gset
select :t3 > :t1 + 1 as higher;

-- 4. Expired: its token can do nothing any more, though nobody else came.
select lease_lock.acquire('nap', 'A', '20 ms') as t1 \gset
select pg_sleep(0.05);
select state, remaining, ttl, newest - :t1 as newest, holder from lease_lock.token_status('nap', :t1);
select state, remaining from lease_lock.holders where resource = 'nap';
select lease_lock.renew('nap', :t1, '1 hour');
select lease_lock.release('nap', :t1);
select * from pg_temp.refusal(format($$select lease_lock.assert_held('nap', %s)$$, :t1));
-- Taken over: the late renewal and the late release do no harm.
select lease_lock.acquire('nap', 'B', '1 hour') as t2 \gset
select :t2 > :t1 as higher;
select lease_lock.renew('nap', :t1, '1 hour');
select lease_lock.release('nap', :t1);
select * from pg_temp.refusal(format($$select lease_lock.assert_held('nap', %s)$$, :t1));
select state, remaining, newest - :t2 as newest, holder from lease_lock.token_status('nap', :t1);
select state, holder from lease_lock.token_status('nap', :t2);
-- Released by B: A's renewal still gives no lease.
select lease_lock.release('nap', :t2);
select lease_lock.renew('nap', :t1, '1 hour');
select count(*) from lease_lock.holders where resource = 'nap';

-- 5. The same owner again gets a new, higher token at once, and the old one is stale.
select lease_lock.acquire('retry', 'A', '1 hour') as t1 \gset
select lease_lock.acquire('retry', 'A', '1 hour', wait => '0') as t2 \gset
select :t2 > :t1 as higher;
select lease_lock.try_acquire('retry', 'A', '1 hour') as t3 \gset
select :t3 > :t2 as higher;
select lease_lock.renew('retry', :t1), lease_lock.renew('retry', :t2);
select lease_lock.release('retry', :t1), lease_lock.release('retry', :t2);
select lease_lock.assert_held('retry', :t2);
\echo :SQLSTATE
select state, holder from lease_lock.token_status('retry', :t2);
select state, holder from lease_lock.token_status('retry', :t3);
-- Also after its own expiry.
select lease_lock.acquire('retry', 'A', '20 ms') as t4 \gset
select pg_sleep(0.05);
select lease_lock.acquire('retry', 'A', '1 hour') as t5 \gset
select :t5 > :t4 as higher, lease_lock.renew('retry', :t4) as renewed, lease_lock.release('retry', :t4) as released;
select state, remaining > '59 min' as untouched from lease_lock.token_status('retry', :t5);

-- 6. Twice in one transaction: the same token, extended.
begin;
select lease_lock.acquire('twice', 'A', '1 min', payload => '"first"') as t1 \gset
select lease_lock.acquire('twice', 'A', '1 hour') = :t1 as same;
select lease_lock.try_acquire('twice', 'A', '2 hours') = :t1 as same;
select remaining > '119 min' as extended, payload from lease_lock.holders where resource = 'twice';
-- Another owner is a stranger, and refused at once however long it would wait.
select clock_timestamp() as t0 \gset
select lease_lock.try_acquire('twice', 'B');
select * from pg_temp.refusal($$select lease_lock.acquire('twice', 'B', wait => '10 min')$$);
select clock_timestamp() - :'t0' < '10 s' as at_once;
commit;
select owner, token - :t1 as token, state from lease_lock.holders where resource = 'twice';
-- Released and acquired again in one transaction: a new token.
begin;
select lease_lock.acquire('again', 'A') as t1 \gset
select lease_lock.release('again', :t1);
select lease_lock.acquire('again', 'B') > :t1 as higher;
commit;
select owner, state from lease_lock.holders where resource = 'again';

-- 7. Acquire is transactional.
begin;
select lease_lock.acquire('undone', 'A') as t1 \gset
rollback;
select count(*) from lease_lock.holders where resource = 'undone';
select state, newest from lease_lock.token_status('undone', :t1);
select lease_lock.release('undone', :t1), lease_lock.renew('undone', :t1);
select lease_lock.acquire('undone', 'B') > :t1 as not_granted_again;
begin;
savepoint s;
select lease_lock.acquire('half', 'A') as t1 \gset
rollback to s;
select count(*) from lease_lock.holders where resource = 'half';
select lease_lock.release('half', :t1);
select lease_lock.acquire('half', 'B') as t2 \gset
select :t2 > :t1 as not_granted_again;
commit;
select owner, token - :t2 as token from lease_lock.holders where resource = 'half';
-- A release that is rolled back did not happen either.
begin;
select lease_lock.release('half', :t2);
select state from lease_lock.token_status('half', :t2);
rollback;
select state from lease_lock.token_status('half', :t2);
-- A refusal neither commits nor spoils the caller's work.
create table work (n int);
begin;
insert into work values (1);
select lease_lock.try_acquire('half', 'C');
rollback;
select count(*) from work;
begin;
select lease_lock.try_acquire('half', 'C');
insert into work values (2);
commit;
select n from work;
drop table work;

-- 8. Scope transaction: ends with its own.
begin;
select lease_lock.acquire('mine', 'A', '1 hour', scope => 'transaction') as t1 \gset
select scope, state from lease_lock.holders where resource = 'mine';
select state, holder from lease_lock.token_status('mine', :t1);
select lease_lock.assert_held('mine', :t1) > '59 min' as held;
select lease_lock.try_acquire('mine', 'B', scope => 'transaction');
commit;
select count(*) from lease_lock.holders where resource = 'mine';
select state, holder from lease_lock.token_status('mine', :t1);
select lease_lock.renew('mine', :t1), lease_lock.release('mine', :t1);
select * from pg_temp.refusal(format($$select lease_lock.assert_held('mine', %s)$$, :t1));
select lease_lock.try_acquire('mine', 'B', scope => 'transaction') > :t1 as free_at_once;
select count(*) from lease_lock.holders where resource = 'mine';
begin;
select lease_lock.acquire('mine', 'A', scope => 'transaction') as t1 \gset
select lease_lock.release('mine', :t1);
commit;
begin;
select lease_lock.acquire('mine', 'A', scope => 'transaction') as t2 \gset
rollback;
select lease_lock.acquire('mine', 'A', scope => 'transaction') > :t2 as higher;

-- 9. Cooldown: after such a release nobody is granted for a while.
select lease_lock.acquire('nightly', 'A', '1 hour') as t1 \gset
select lease_lock.release('nightly', :t1, '1 hour');
select lease_lock.release('nightly', :t1, '1 hour');
select state, holder from lease_lock.token_status('nightly', :t1);
select count(*) from lease_lock.holders where resource = 'nightly';
select lease_lock.try_acquire('nightly', 'B'), lease_lock.try_acquire('nightly', 'A');
select * from pg_temp.refusal($$select lease_lock.acquire('nightly', 'A', wait => '0')$$);
select lease_lock.acquire('short', 'A') as t1 \gset
select lease_lock.release('short', :t1, '500 ms');
select lease_lock.try_acquire('short', 'B');
select lease_lock.acquire('short', 'B', wait => '10 s') > :t1 as waited_for_it;
-- A cooldown can outlast the lease that it ends.
select lease_lock.acquire('outlast', 'A', '500 ms') as t1 \gset
select lease_lock.release('outlast', :t1, '1 hour');
select pg_sleep(0.6);
select lease_lock.try_acquire('outlast', 'B');

-- 10. The payload is the newest grant's.
select lease_lock.acquire('load', 'A', payload => '{"host": "db-7", "n": [1, 2]}') is not null as granted;
select payload from lease_lock.holders where resource = 'load';
select lease_lock.acquire('load', 'A') is not null as granted;
select payload from lease_lock.holders where resource = 'load';

-- 11. The clock is the server's, at the time of the call and in every zone.
begin;
select pg_sleep(0.1);
select clock_timestamp() as t0 \gset
select expire_at >= timestamptz :'t0' + '1 min' as counted_from_the_call
  from lease_lock.token_status('clock', lease_lock.acquire('clock', 'A', '1 min'));
commit;
select lease_lock.acquire('old', 'A', '500 ms') as t1 \gset
begin isolation level repeatable read;
select lease_lock.try_acquire('old', 'B');
select pg_sleep(0.7);
select lease_lock.try_acquire('old', 'B') > :t1 as granted_after_expiry;
commit;
set timezone = 'Pacific/Kiritimati';
select lease_lock.try_acquire('clock', 'B'), state, remaining > '30 s' as runs from lease_lock.holders where resource = 'clock';
set timezone = 'America/New_York';
select lease_lock.try_acquire('clock', 'B'), state, remaining > '30 s' as runs from lease_lock.holders where resource = 'clock';
-- A day is 24 hours.
select ttl from lease_lock.token_status('day', lease_lock.acquire('day', 'A', '1 day'));
reset timezone;
-- Fractions of a second count.
select lease_lock.acquire('brief', 'A', '250 ms') as t1 \gset
select ttl, remaining is null or remaining <= '250 ms' as not_rounded_up from lease_lock.token_status('brief', :t1);

-- 12. What never was.
select state, expire_at, remaining, ttl, newest, holder from lease_lock.token_status('never', 1);
select state, holder from lease_lock.token_status('clock', 9223372036854775807);
select state from lease_lock.token_status('clock', 0) union all select state from lease_lock.token_status('clock', -1);
select lease_lock.renew('never', 1), lease_lock.release('never', 1);
select lease_lock.renew('clock', 9223372036854775807), lease_lock.release('clock', 9223372036854775807);
select * from pg_temp.refusal($$select lease_lock.assert_held('never', 1)$$);
select * from pg_temp.refusal($$select lease_lock.assert_held('day', 1000000)$$);
select * from pg_temp.refusal($$select lease_lock.assert_held('day', 0)$$);

drop extension lease_lock;
