-- Bad arguments: each is a clear error before any lock is taken, and nothing
-- has changed afterwards.
\set SHOW_CONTEXT never
\set VERBOSITY terse
-- A wait that should have been refused would be a long one.
set statement_timeout = '2 min';
create extension lease_lock;

-- What a call came to: its SQLSTATE and message, or its result.
create function pg_temp.answer(call text) returns text language plpgsql as $$
declare r text;
begin
  execute 'select lease_lock.' || call into r;
  return 'result: ' || coalesce(r, 'null');
exception when others then
  return sqlstate || ': ' || sqlerrm;
end $$;
\getenv srcdir PG_ABS_SRCDIR
\set refusals :srcdir '/common/refusals.sql'
\set ECHO none
\i :refusals
\set ECHO all
select lease_lock.acquire('live', 'A', '1 hour');
create temp table was as select * from lease_lock.lease;
-- Whether anything is there that a refused call must not leave.
create function pg_temp.left_behind() returns text language sql as $$
  select concat_ws(' ',
    (select 'leases: ' || count(*) from lease_lock.lease having count(*) <> 1),
    (select 'fences: ' || count(*) from lease_lock.fence having count(*) > 0),
    (select 'audit: ' || count(*) from lease_lock.audit having count(*) > 0),
    (select 'token: ' || last_value from lease_lock.token_seq where last_value <> 1),
    (select 'triggers: ' || count(*) from pg_trigger where tgname ~ 'lease_lock' having count(*) > 0),
    (select 'locks: ' || count(*) from pg_locks where locktype = 'advisory' having count(*) > 0),
    (select 'lease changed' from lease_lock.lease l, was
      where (l.version, l.owner, l.expire_at, l.renewed_at, l.ended_at, l.scope) is distinct from (was.version, was.owner, was.expire_at, was.renewed_at, was.ended_at, was.scope)))
$$;

-- 1. NULL where it has no meaning is 22004, the empty string 22023.
select call, pg_temp.answer(call) from (values
  ('acquire(null, ''o'')'), ('acquire('''', ''o'')'), ('acquire(''r'', null)'), ('acquire(''r'', '''')'),
  ('acquire(''r'', ''o'', scope => null)'), ('acquire(''r'', ''o'', scope => '''')'),
  ('try_acquire(null, ''o'')'), ('try_acquire('''', ''o'')'), ('try_acquire(''r'', null)'), ('try_acquire(''r'', '''')'),
  ('try_acquire(''r'', ''o'', scope => null)'), ('try_acquire(''r'', ''o'', scope => '''')'),
  ('renew(null, 1)'), ('renew('''', 1)'), ('renew(''live'', null)'),
  ('release(null, 1)'), ('release('''', 1)'), ('release(''live'', null)'),
  ('assert_held(null, 1)'), ('assert_held('''', 1)'), ('assert_held(''live'', null)'),
  ('token_status(null, 1)'), ('token_status('''', 1)'), ('token_status(''live'', null)'),
  ('present(null, 1)'), ('present('''', 1)'), ('present(''live'', null)'),
  ('force_release(null, ''why'')'), ('force_release('''', ''why'')'), ('force_release(''live'', null)'), ('force_release(''live'', '''')'),
  ('prune(null)')) v(call);
select pg_temp.left_behind();

-- 2. 512 bytes are the limit, in bytes of whatever characters.
create temp view texts as
  select * from (values
    ('1-byte', repeat('x', 512), repeat('x', 513)),
    ('2-byte', repeat(E'\u00e9', 256), repeat(E'\u00e9', 256) || 'x'),
    ('3-byte', repeat(E'\u20ac', 170) || 'xx', repeat(E'\u20ac', 171)),
    ('4-byte', repeat(E'\U0001F512', 128), repeat(E'\U0001F512', 128) || 'x'),
    ('random', (select string_agg(md5(i::text), '') from generate_series(1, 16) i),
               (select string_agg(md5(i::text), '') || '0' from generate_series(1, 16) i)),
    ('huge', null, repeat('x', 100000))) v(kind, fits, too_long);
select kind, octet_length(too_long) as bytes, pg_temp.answer(format(call, quote_literal(too_long)))
  from texts, (values ('acquire(%s, ''o'')'), ('acquire(''r'', %s)'), ('try_acquire(%s, ''o'')'), ('try_acquire(''r'', %s)'),
    ('renew(%s, 1)'), ('release(%s, 1)'), ('assert_held(%s, 1)'), ('token_status(%s, 1)'), ('present(%s, 1)'),
    ('force_release(%s, ''why'')')) c(call)
  where kind in ('1-byte', 'huge') or call like 'acquire%' order by call, kind;
select pg_temp.left_behind();
select * from pg_temp.refusal(format('select lease_lock.acquire(%L, ''o'')', (select too_long from texts where kind = '4-byte')));
select * from pg_temp.refusal('select lease_lock.acquire('''', ''o'')');
select * from pg_temp.refusal('select lease_lock.acquire(null, ''o'')');
select * from pg_temp.refusal('select lease_lock.renew(''live'', null)');
begin;
select kind, octet_length(fits) as bytes, lease_lock.try_acquire(fits, fits) is not null as granted from texts where fits is not null;
select kind from texts t join lease_lock.holders h on h.resource = t.fits and h.owner = t.fits order by kind;
rollback;
select setval('lease_lock.token_seq', 1);

-- 3. A time to live is 1 ms to lease_lock.max_ttl, and has no months.
create temp view durations as
  select ttl from (values ('0'), ('-1 s'), ('-1 mon 31 days'), ('1 mon -29 days'), ('1 us'), ('999 us'), ('1 day 1 us'), ('25 hours'), ('1 mon'), ('1 year'),
    ('-1 day 24:00:00'), ('300000 years'), ('178000000 years'), ('-178000000 years'), ('2147483647 days 2562047788 hours'),
    ('-2147483648 days -2562047788 hours')) v(ttl);
select ttl, pg_temp.answer(format('acquire(''r'', ''o'', %L)', ttl)) as acquire,
       pg_temp.answer(format('try_acquire(''r'', ''o'', %L)', ttl)) as try_acquire from durations;
select ttl, pg_temp.answer(format('renew(''live'', 1, %L)', ttl)) as renew,
       pg_temp.answer(format('release(''live'', 1, %L)', ttl)) as release from durations;
select pg_temp.left_behind();
select * from pg_temp.refusal('select lease_lock.acquire(''r'', ''o'', ''0'')');
select * from pg_temp.refusal('select lease_lock.release(''live'', 1, ''2 days'')');
-- Arguments are checked although the token is stale or the name unknown.
select call, pg_temp.answer(call) from (values ('renew(''never'', 1, ''0'')'), ('release(''never'', 1, ''0'')')) v(call);
-- The limits themselves are fine.
select ttl, pg_temp.answer(format('renew(''live'', 1, %L)', ttl)) <> '' as taken
  from (values ('1 day'), ('24 hours'), ('2 days -24 hours')) v(ttl);
select ttl from lease_lock.token_status('least', lease_lock.acquire('least', 'o', '1 ms'));
select pg_sleep(0.01);
select lease_lock.prune('0');
truncate lease_lock.audit;
truncate was;
insert into was select * from lease_lock.lease;
select setval('lease_lock.token_seq', 1);

-- 4. A wait is 0 to lease_lock.max_wait.
select wait, pg_temp.answer(format('acquire(''live'', ''B'', wait => %L)', wait))
  from (values ('-1 us'), ('-1 s'), ('1 hour 1 us'), ('1 day'), ('1 mon'), ('-1 mon 31 days'), ('178000000 years'), ('0')) v(wait);
select * from pg_temp.refusal('select lease_lock.acquire(''r'', ''o'', wait => ''-1 s'')');
-- An idle time is 0 or more.
select idle, pg_temp.answer(format('prune(%L)', idle))
  from (values ('-1 us'), ('-1 day'), ('1 mon'), ('178000000 years'), ('2147483647 days 2562047788 hours')) v(idle);
select * from pg_temp.refusal('select lease_lock.prune(''-1 s'')');
select pg_temp.left_behind();

-- 5. Scopes.
select scope, pg_temp.answer(format('acquire(''r'', ''o'', scope => %L)', scope)),
       pg_temp.answer(format('try_acquire(''r'', ''o'', scope => %L)', scope))
  from (values ('Lease'), ('lease '), ('forever'), ('transactions')) v(scope);
select * from pg_temp.refusal('select lease_lock.acquire(''r'', ''o'', scope => ''forever'')');

-- 6. Tokens that can never be.
select call, pg_temp.answer(call) from (values
  ('present(''live'', 0)'), ('present(''live'', -1)'), ('present(''live'', -9223372036854775808)'),
  ('assert_held(''live'', 0)'), ('assert_held(''live'', -1)'), ('assert_held(''live'', 9223372036854775807)'), ('assert_held(''never'', 1)'),
  ('renew(''live'', 0)'), ('renew(''live'', -1)'), ('renew(''live'', 9223372036854775807)'), ('renew(''never'', 1)'),
  ('release(''live'', 0)'), ('release(''live'', -1)'), ('release(''live'', 9223372036854775807)'), ('release(''never'', 1)')) v(call);
select * from pg_temp.refusal('select lease_lock.present(''live'', 0)');
select pg_temp.left_behind();
-- The largest number was never granted: presented, it is refused and moves nothing.
create table guarded (id int, n bigint);
begin;
select lease_lock.guard('guarded', 'live');
select lease_lock.present('live', 9223372036854775807);
select * from pg_temp.refusal('insert into guarded values (1, 1)');
rollback;
select highest from lease_lock.fences where name = 'live';
-- With the tokens used up an acquire fails, and does not start again from below.
begin;
select setval('lease_lock.token_seq', 9223372036854775806);
select lease_lock.acquire('last', 'o');
select pg_temp.answer('acquire(''one too many'', ''o'')');
select pg_temp.answer('try_acquire(''one too many'', ''o'')');
select count(*) from lease_lock.holders where resource = 'one too many';
rollback;
select setval('lease_lock.token_seq', 1);

-- 7. What cannot be guarded.
create view a_view as select 1 as id;
create materialized view a_matview as select 1 as id;
create foreign data wrapper regress_wrapper;
create server regress_server foreign data wrapper regress_wrapper;
create foreign table a_foreign_table (id int) server regress_server;
create sequence a_sequence;
create type a_type as (id int);
create table a_table (id int primary key, "odd}name" int, body jsonb, at timestamptz, price numeric, ratio float8, ratio4 float4,
  code char(3), local timestamp, doubled int generated always as (id * 2) stored, arr int[], ip inet, span interval, cash money,
  token bigint, small int, twice bigint generated always as (id * 2) stored, dropped int);
alter table a_table drop column dropped;
create domain rounded as numeric(8, 2);
alter table a_table add round rounded;
select target, pg_temp.answer(format('guard(%L, ''r'')', target)) as guard, pg_temp.answer(format('guard_column(%L, ''id'')', target)) as guard_column,
       pg_temp.answer(format('unguard(%L)', target)) as unguard
  from (values ('a_view'), ('a_matview'), ('a_foreign_table'), ('a_sequence'), ('a_type'), ('a_table_pkey'), ('pg_class'), ('pg_catalog.pg_authid'),
    ('lease_lock.lease'), ('lease_lock.fence'), ('lease_lock.audit'), ('lease_lock.holders'), ('4294967295'), ('0'), ('no_such_table')) v(target);
select * from pg_temp.refusal('select lease_lock.guard(''a_view'', ''r'')');
select * from pg_temp.refusal('select lease_lock.guard(''pg_class'', ''r'')');
create role regress_stranger;
grant usage on schema lease_lock to regress_stranger;
grant execute on all functions in schema lease_lock to regress_stranger;
grant all on a_table to regress_stranger;
set role regress_stranger;
select * from pg_temp.refusal('select lease_lock.guard(''a_table'', ''r'')');
select * from pg_temp.refusal('select lease_lock.guard_column(''a_table'', ''token'')');
select * from pg_temp.refusal('select lease_lock.unguard(''a_table'')');
reset role;
drop owned by regress_stranger;
drop role regress_stranger;

-- 8. Templates.
select template, pg_temp.answer(format('guard(''a_table'', %L)', template)) from (values
  (''), ('{'), ('}'), ('a{id'), ('a}'), ('a{}'), ('{}'), ('{{{'), ('}}}'), ('{id}}'), ('{id}{'), ('{nope}'), ('{ID}'), ('{ id}'), ('{dropped}'), ('{ctid}'), ('{tableoid}'), ('{a_table}'),
  ('{body}'), ('{at}'), ('{local}'), ('{price}'), ('{ratio}'), ('{ratio4}'), ('{code}'), ('{arr}'), ('{ip}'), ('{span}'), ('{cash}'), ('{round}'), ('{doubled}')) v(template);
select octet_length(t), pg_temp.answer(format('guard(''a_table'', %L)', t)) ~ '^22023' from (values (repeat('x', 513)), (repeat('{{', 513))) v(t);
select * from pg_temp.refusal('select lease_lock.guard(''a_table'', ''a{id'')');
select * from pg_temp.refusal('select lease_lock.guard(''a_table'', ''{nope}'')');
select * from pg_temp.refusal('select lease_lock.guard(''a_table'', ''{price}'')');
select * from pg_temp.refusal('select lease_lock.guard(''a_table'', ''{doubled}'')');
-- A collation under which different texts are equal; not every build has such.
create function pg_temp.loose_refused() returns boolean language plpgsql as $$
declare s text; d text;
begin
  begin
    create collation regress_loose (provider = icu, locale = 'und', deterministic = false);
  exception when feature_not_supported then
    return true;
  end;
  create temp table loose (name text collate regress_loose);
  begin
    perform lease_lock.guard('loose', '{name}');
  exception when others then
    get stacked diagnostics s = returned_sqlstate, d = pg_exception_detail;
  end;
  drop table loose;
  drop collation regress_loose;
  return s = '0A000' and d ~ 'collation';
end $$;
select pg_temp.loose_refused();
select template, pg_temp.answer(format('guard_column(''a_table'', ''token'', resource => %L)', template)) from (values
  (''), ('{'), ('a{}'), ('{nope}'), ('{body}'), ('{doubled}')) v(template);

-- 9. Modes, actions, events, columns.
select call, pg_temp.answer(call) from (values
  ('guard(null, ''r'')'), ('guard(''a_table'', null)'), ('guard(''a_table'', ''r'', null)'), ('guard(''a_table'', ''r'', ''held'', null)'), ('guard(''a_table'', ''r'', ''held'', ''enforce'', null)'),
  ('guard(''a_table'', ''r'', '''')'), ('guard(''a_table'', ''r'', ''Held'')'), ('guard(''a_table'', ''r'', ''latest'')'),
  ('guard(''a_table'', ''r'', action => '''')'), ('guard(''a_table'', ''r'', action => ''log'')'),
  ('guard(''a_table'', ''r'', events => '''')'), ('guard(''a_table'', ''r'', events => '' '')'), ('guard(''a_table'', ''r'', events => '','')'),
  ('guard(''a_table'', ''r'', events => ''insert,'')'), ('guard(''a_table'', ''r'', events => ''select'')'), ('guard(''a_table'', ''r'', events => ''insert,merge'')'),
  ('guard(''a_table'', ''r'', events => ''insert update'')'),
  ('guard_column(null, ''token'')'), ('guard_column(''a_table'', null)'), ('guard_column(''a_table'', ''token'', null)'),
  ('guard_column(''a_table'', ''nope'')'), ('guard_column(''a_table'', '''')'), ('guard_column(''a_table'', ''ctid'')'), ('guard_column(''a_table'', ''small'')'), ('guard_column(''a_table'', ''price'')'),
  ('guard_column(''a_table'', ''twice'')'), ('guard_column(''a_table'', ''token'', ''log'')'),
  ('unguard(null)'), ('unguard(''a_table'')')) v(call);
select * from pg_temp.refusal('select lease_lock.guard(''a_table'', ''r'', ''latest'')');
select * from pg_temp.refusal('select lease_lock.guard(''a_table'', ''r'', action => ''log'')');
select * from pg_temp.refusal('select lease_lock.guard(''a_table'', ''r'', events => ''insert,merge'')');
select * from pg_temp.refusal('select lease_lock.guard_column(''a_table'', ''nope'')');
select * from pg_temp.refusal('select lease_lock.guard_column(''a_table'', ''small'')');
select * from pg_temp.refusal('select lease_lock.guard_column(''a_table'', ''twice'')');
select pg_temp.left_behind();

drop table guarded, a_table;
drop domain rounded;
drop type a_type;
drop sequence a_sequence;
drop foreign data wrapper regress_wrapper cascade;
drop materialized view a_matview;
drop view a_view;
drop extension lease_lock;
