-- Rights by name: once a pattern covers a name, only the roles that it allows,
-- their members and superusers may acquire it, or force its release.
\set SHOW_CONTEXT never
\set VERBOSITY terse
create extension lease_lock;
set client_min_messages = warning;
\getenv srcdir PG_ABS_SRCDIR
\set refusals :srcdir '/common/refusals.sql'
\set ECHO none
\i :refusals
\set ECHO all
-- Whether each role may acquire each name.
create function pg_temp.may(names text[], roles name[] default '{regress_batch,regress_night,regress_web,regress_admin}') returns table (name text, allowed text) language plpgsql as $$
declare n text; r name;
begin
  foreach n in array names loop
    allowed := '';
    foreach r in array roles loop
      begin
        perform set_config('role', r, true);
        perform lease_lock.acquire(n, 'x', scope => 'transaction');
        raise division_by_zero;
      exception
        when division_by_zero then allowed := concat_ws(' ', nullif(allowed, ''), r);
        when insufficient_privilege then null;
      end;
      perform set_config('role', 'none', true);
    end loop;
    name := n;
    return next;
  end loop;
end $$;
create role regress_batch;
create role regress_night in role regress_batch;
create role regress_web;
create role regress_admin;
create role regress_super superuser;
grant usage on schema lease_lock to regress_batch, regress_night, regress_web, regress_admin;

-- 1. Without a pattern a name is anybody's.
select * from pg_temp.may('{job,job/1,other}');
select * from lease_lock.rights;

-- 2. Covered, it is for those who are allowed, and for members of that role.
select lease_lock.allow('job/%', 'regress_batch', 'acquire');
select * from pg_temp.may('{job,job/,job/1,"job/a/b c",JOB/1,xjob/1}');
set role regress_web;
select * from pg_temp.refusal('select lease_lock.acquire(''job/1'', ''W'')');
select * from pg_temp.refusal('select lease_lock.try_acquire(''job/1'', ''W'')');
select lease_lock.acquire('web', 'W', '1 hour') is not null as granted;
-- A name that is not one is that, before it is anything else.
select pg_temp.outcome('select lease_lock.acquire(null, ''W'')'), pg_temp.outcome('select lease_lock.acquire('''', ''W'')');
reset role;
-- A superuser always may.
select * from pg_temp.may('{job/1}', '{regress_super,regress_web}');
-- current_user counts, not who is logged in.
set session authorization regress_web;
select pg_temp.outcome('select lease_lock.acquire(''job/1'', ''W'')');
reset session authorization;

-- 3. Several patterns that cover a name: any of them allows.
select lease_lock.allow('job/%', 'regress_web', 'acquire'), lease_lock.allow('job/1', 'regress_admin', 'acquire');
select * from pg_temp.may('{job/1,job/2}');
-- Again is nothing new, and nothing else.
select lease_lock.allow('job/1', 'regress_admin', 'acquire');
select pattern, role, privilege, allowed_by = current_user as by_me, allowed_at <= clock_timestamp() as at, role_exists from lease_lock.rights order by pattern, role;
select lease_lock.disallow('job/%', 'regress_web', 'acquire');
select * from pg_temp.may('{job/1,job/2}');
-- Covered by nobody else, it is anybody's again.
select lease_lock.disallow('job/%', 'regress_batch', 'acquire');
select * from pg_temp.may('{job/1,job/2}');
select lease_lock.disallow('job/1', 'regress_admin', 'acquire');
select * from pg_temp.may('{job/1,job/2}');
select lease_lock.disallow('job/1', 'regress_admin', 'acquire'), lease_lock.disallow('never', 'nobody at all', 'acquire');
select count(*) from lease_lock.rights;

-- 4. Patterns are those of LIKE, byte for byte.
select lease_lock.allow(p, 'regress_admin', 'acquire') from unnest(array['a_c', '50\%', 'back\\slash', 'Zürich%', 'exact', '%''quote"%']) p;
select * from pg_temp.may(array['abc', 'a_c', 'ac', 'abbc', 'aéc', '50%', '500', 'back\slash', 'back\\slash', 'Zürich/1', 'zürich/1', 'exact', 'exact ', 'Exact', 'exactly', 'it''quote"s']);
select lease_lock.disallow(pattern, role::name, privilege) from lease_lock.rights order by pattern collate "C";
-- Everything.
select lease_lock.allow('%', 'regress_admin', 'acquire');
select * from pg_temp.may('{a,job/1}');
select lease_lock.disallow('%', 'regress_admin', 'acquire');

-- 5. What is held stays held: renewing, releasing, writing and presenting ask for no such right.
create table t (id int);
grant insert on t to regress_web;
select lease_lock.guard('t', 'job/1');
set role regress_web;
select lease_lock.acquire('job/1', 'W', '1 hour') as w \gset
reset role;
select lease_lock.allow('job/%', 'regress_batch', 'acquire');
set role regress_web;
begin;
select lease_lock.present('job/1', :w) = :w as presented;
insert into t values (1);
select lease_lock.assert_held('job/1', :w) > '0' as held;
commit;
select lease_lock.renew('job/1', :w, '1 hour') is not null as renewed;
select state from lease_lock.token_status('job/1', :w);
-- The same owner again is a grant.
select pg_temp.outcome('select lease_lock.acquire(''job/1'', ''W'')');
select lease_lock.release('job/1', :w);
select pg_temp.outcome('select lease_lock.acquire(''job/1'', ''W'')');
-- Advisory locks are no leases.
select lease_lock.try_advisory_xact_lock('job/1');
reset role;
select lease_lock.disallow('job/%', 'regress_batch', 'acquire');

-- 6. Roles by name: dropped, made again, renamed; membership that comes and goes.
create role regress_gone;
select lease_lock.allow('gone', 'regress_gone', 'acquire');
grant regress_gone to regress_web;
select * from pg_temp.may('{gone}');
revoke regress_gone from regress_web;
select * from pg_temp.may('{gone}');
grant regress_gone to regress_web;
alter role regress_gone rename to regress_gone2;
select role, role_exists from lease_lock.rights;
select * from pg_temp.may('{gone}');
drop role regress_gone2;
-- Nobody is allowed, and the name stays covered.
select * from pg_temp.may('{gone}');
set role regress_web;
select * from pg_temp.refusal('select lease_lock.acquire(''gone'', ''W'')');
reset role;
select * from pg_temp.may('{gone}', '{regress_super}');
create role regress_gone;
grant regress_gone to regress_admin;
select role_exists from lease_lock.rights;
select * from pg_temp.may('{gone}');
drop role regress_gone;
select lease_lock.disallow('gone', 'regress_gone', 'acquire');
select * from pg_temp.may('{gone}');
-- Membership without inheritance is a right only after SET ROLE.
create role regress_strict noinherit;
grant regress_batch to regress_strict;
grant usage on schema lease_lock to regress_strict;
select lease_lock.allow('job', 'regress_batch', 'acquire');
select * from pg_temp.may('{job}', '{regress_strict,regress_night}');
set session authorization regress_strict;
set role regress_batch;
select lease_lock.acquire('job', 'S', scope => 'transaction') > 0 as granted;
reset session authorization;
select lease_lock.disallow('job', 'regress_batch', 'acquire');

-- 7. The privilege force, beside EXECUTE on force_release.
grant execute on function lease_lock.force_release to regress_admin, regress_batch;
select lease_lock.acquire('job/1', 'A', '1 hour') as a, lease_lock.acquire('free', 'A', '1 hour') as f \gset
select lease_lock.allow('job/%', 'regress_batch', 'force');
-- The one privilege is not the other.
select * from pg_temp.may('{job/2}', '{regress_web}');
set role regress_admin;
select * from pg_temp.refusal('select lease_lock.force_release(''job/1'', ''not mine'')');
select lease_lock.force_release('free', 'not covered') = :f as ended;
set role regress_web;
select pg_temp.outcome('select lease_lock.force_release(''job/1'', ''no EXECUTE'')');
set role regress_night;
select lease_lock.force_release('job/1', 'a member') = :a as ended;
reset role;
select lease_lock.acquire('job/1', 'A', '1 hour') as a \gset
select lease_lock.force_release('job/1', 'superuser') = :a as ended;
-- And the reverse: who may acquire may not force.
select lease_lock.acquire('job/1', 'A', '1 hour') as a \gset
select lease_lock.allow('job/%', 'regress_admin', 'acquire');
set role regress_admin;
select pg_temp.outcome('select lease_lock.force_release(''job/1'', ''still not mine'')');
reset role;
select lease_lock.disallow('job/%', 'regress_batch', 'force');
set role regress_admin;
select lease_lock.force_release('job/1', 'anybody''s again') = :a as ended;
reset role;
select lease_lock.disallow('job/%', 'regress_admin', 'acquire');

-- 8. Transactional.
begin;
select lease_lock.allow('job/%', 'regress_batch', 'acquire');
select * from pg_temp.may('{job/1}');
rollback;
select * from pg_temp.may('{job/1}');
select count(*) from lease_lock.rights;
begin;
savepoint a;
select lease_lock.allow('job/%', 'regress_batch', 'acquire');
savepoint b;
select lease_lock.allow('job/%', 'regress_web', 'acquire');
select * from pg_temp.may('{job/1}');
rollback to b;
select * from pg_temp.may('{job/1}');
rollback to a;
select * from pg_temp.may('{job/1}');
select lease_lock.allow('job/%', 'regress_web', 'acquire');
commit;
select * from pg_temp.may('{job/1}');
begin;
select lease_lock.disallow('job/%', 'regress_web', 'acquire');
select * from pg_temp.may('{job/1}');
rollback;
select * from pg_temp.may('{job/1}');
-- Under a snapshot that is older, the rights of now count.
begin isolation level serializable;
select count(*) from lease_lock.rights;
select lease_lock.disallow('job/%', 'regress_web', 'acquire');
select * from pg_temp.may('{job/1}');
commit;
-- Each change that was committed is on record.
select role = current_user as role, action, object, reason, detail from lease_lock.audit where action in ('allow', 'disallow') order by at desc limit 3;
select action, count(*) from lease_lock.audit where action in ('allow', 'disallow') group by 1 order by 1;

-- 9. Who may change them.
set role regress_admin;
select pg_temp.outcome('select lease_lock.allow(''%'', ''regress_admin'', ''acquire'')'), pg_temp.outcome('select lease_lock.disallow(''%'', ''regress_admin'', ''acquire'')');
select pg_temp.outcome('insert into lease_lock.permission values (''%'', ''regress_admin'', ''acquire'', ''x'', now())'), pg_temp.outcome('select * from lease_lock.permission');
reset role;
grant execute on function lease_lock.allow, lease_lock.disallow to regress_admin;
set role regress_admin;
select lease_lock.allow('mine', 'regress_admin', 'acquire');
reset role;
-- Everybody may look.
set role regress_web;
select pattern, role, privilege, allowed_by from lease_lock.rights;
reset role;
select lease_lock.disallow('mine', 'regress_admin', 'acquire');

-- 10. What they do not take.
select pg_temp.outcome(format('select lease_lock.%s(%s)', f, args)) from unnest('{allow,disallow}'::text[]) f,
  unnest(array['null, ''regress_web'', ''acquire''', '''x'', null, ''acquire''', '''x'', ''regress_web'', null', ''''', ''regress_web'', ''acquire''',
               '''x'', ''regress_web'', ''release''', '''x'', ''regress_web'', ''ACQUIRE''', '''x'', ''regress_web'', ''''', '''x\'', ''regress_web'', ''acquire''', 'repeat(''x'', 513), ''regress_web'', ''acquire''']) args;
select pg_temp.outcome('select lease_lock.allow(''x'', ''regress_nobody'', ''acquire'')'), pg_temp.outcome('select lease_lock.allow(''x'', ''public'', ''acquire'')');
select * from pg_temp.refusal('select lease_lock.allow(''x\'', ''regress_web'', ''acquire'')');
select * from pg_temp.refusal('select lease_lock.allow(''x'', ''regress_web'', ''renew'')');
select lease_lock.allow(repeat('x', 512), 'regress_web', 'acquire');
select allowed from pg_temp.may(array[repeat('x', 512)]);
select lease_lock.disallow(repeat('x', 512), 'regress_web', 'acquire');
begin read only;
select lease_lock.allow('x', 'regress_web', 'acquire');
rollback;
begin read only;
select lease_lock.disallow('x', 'regress_web', 'acquire');
rollback;

-- 11. They are part of a dump.
select c.relname from pg_extension e, unnest(e.extconfig) o join pg_class c on c.oid = o where e.extname = 'lease_lock' and c.relname = 'permission';
select e.extcondition[array_position(e.extconfig, 'lease_lock.permission'::regclass)] from pg_extension e where extname = 'lease_lock';
-- Restored by COPY, they count at once.
copy lease_lock.permission from stdin;
copied	regress_web	acquire	restore	2026-01-01 00:00:00+00
\.
select * from pg_temp.may('{copied}');

drop table t;
drop extension lease_lock;
drop role regress_batch, regress_night, regress_web, regress_admin, regress_super, regress_strict;
