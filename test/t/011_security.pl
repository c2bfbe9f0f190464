# What an unprivileged role can and cannot do: it needs USAGE, touches no table,
# gets none of the administrators' functions, acts for nobody else, and fools
# nothing by objects of its own making.

use strict;
use warnings;

use FindBin;
use lib $FindBin::Bin;

use LeaseTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = PostgreSQL::Test::Cluster->new('main');
$node->init;
$node->append_conf('postgresql.conf', common_conf());
$node->start;
my $dba = LeaseTest::Session->new($node);
$dba->query_ok(q(
CREATE ROLE app LOGIN; CREATE ROLE member LOGIN IN ROLE app; CREATE ROLE other LOGIN; CREATE ROLE outsider LOGIN;
CREATE ROLE monitor LOGIN IN ROLE pg_read_all_stats;
GRANT CREATE ON DATABASE postgres TO other;
GRANT CREATE ON SCHEMA public TO app, other;
));

#
# Nothing that somebody made before is adopted.
#
my $other = LeaseTest::Session->new($node, user => 'other');
$other->query_ok('CREATE SCHEMA lease_lock');
refused_with($dba, 'CREATE EXTENSION lease_lock', '42P06', 'CREATE EXTENSION fails where its schema exists');
$other->query_ok('CREATE TABLE lease_lock.lease (resource text); CREATE FUNCTION lease_lock.present(text, bigint) RETURNS bigint LANGUAGE sql AS $$ SELECT 1::bigint $$');
refused_with($dba, 'CREATE EXTENSION lease_lock', '42P06', 'with objects of its names in it too');
refused_with($dba, 'CREATE EXTENSION lease_lock SCHEMA public', '0A000', 'and it goes into no other schema');
is($dba->query_ok(q(SELECT count(*) FROM pg_extension WHERE extname = 'lease_lock')), '0', 'nothing is installed');
$other->query_ok('DROP SCHEMA lease_lock CASCADE');
refused_with($other, 'CREATE EXTENSION lease_lock', '42501', 'an ordinary role cannot create the extension');
$dba->query_ok('CREATE EXTENSION lease_lock');
is($dba->query_ok(q(SELECT count(*) FROM pg_depend d JOIN pg_proc p ON p.oid = d.objid AND d.classid = 'pg_proc'::regclass
	WHERE p.pronamespace = 'lease_lock'::regnamespace AND d.deptype = 'e')),
	$dba->query_ok(q(SELECT count(*) FROM pg_proc WHERE pronamespace = 'lease_lock'::regnamespace)), 'all its functions are the extension\'s own');
is($dba->query_ok(q(SELECT count(*) FROM pg_proc WHERE pronamespace = 'lease_lock'::regnamespace AND prosecdef
	AND NOT coalesce(array_to_string(proconfig, ' '), '') ~ 'search_path=.*pg_temp$')), '0', 'none is SECURITY DEFINER without a safe path');
is($dba->query_ok(q(SELECT count(*) FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid WHERE c.relnamespace = 'lease_lock'::regnamespace
	AND c.relkind IN ('r', 'm', 'i') AND a.attnum > 0 AND a.atttypid::regtype::text LIKE 'reg%')), '0', 'no column of a table has a type that stops pg_upgrade');

#
# USAGE on the schema is the permission.
#
my $app = LeaseTest::Session->new($node, user => 'app');
refused_with($app, q(SELECT lease_lock.acquire('x', 'app')), '42501', 'without USAGE nothing can be called');
refused_with($app, 'SELECT * FROM lease_lock.holders', '42501', 'or read');
$dba->query_ok('GRANT USAGE ON SCHEMA lease_lock TO app, other, monitor');
my $member = LeaseTest::Session->new($node, user => 'member');
$member->query_ok('SET application_name = the_member');
my $monitor = LeaseTest::Session->new($node, user => 'monitor');
my $outsider = LeaseTest::Session->new($node, user => 'outsider');

my $token = $app->query_ok(q(SELECT lease_lock.acquire('job', 'worker', ttl => '1 h', payload => '{"secret": 1}')));
cmp_ok($token, '>', 0, 'with it a role works');
is($app->query_ok("SELECT lease_lock.renew('job', $token) IS NOT NULL, lease_lock.assert_held('job', $token) > '0', (lease_lock.token_status('job', $token)).state, lease_lock.present('job', $token)"),
	"t|t|held|$token", 'with all the calls of a worker');
is($app->query_ok(q(SELECT lease_lock.release('done', lease_lock.try_acquire('done', 'worker')))), 't', 'try_acquire and release among them');

#
# The tables are nobody's.
#
foreach my $relation (qw(lease fence audit token_seq place_seq))
{
	refused_with($app, "SELECT * FROM lease_lock.$relation", '42501', "$relation: cannot be read");
	next if $relation =~ /seq/;
	refused_with($app, "DELETE FROM lease_lock.$relation", '42501', "$relation: cannot be deleted from");
	refused_with($app, "TRUNCATE lease_lock.$relation", '42501', "$relation: cannot be truncated");
	refused_with($app, "INSERT INTO lease_lock.$relation DEFAULT VALUES", '42501', "$relation: cannot be inserted into");
	refused_with($app, "BEGIN; LOCK TABLE lease_lock.$relation IN ACCESS SHARE MODE", '42501', "$relation: cannot be locked");
	$app->query('ROLLBACK');
}
refused_with($app, q(UPDATE lease_lock.lease SET version = 1), '42501', 'no row can be forged');
refused_with($app, q(UPDATE lease_lock.fence SET highest = 0), '42501', 'no fence can be lowered');
refused_with($app, q(SELECT setval('lease_lock.token_seq', 1)), '42501', 'tokens cannot be set back');
refused_with($app, q(SELECT nextval('lease_lock.token_seq')), '42501', 'or used up');
refused_with($app, q(CREATE TABLE lease_lock.mine (id int)), '42501', 'and nothing can be put into the schema');

# Administrators' functions.
$app->query_ok('CREATE TABLE mine (id int, resource text, token bigint)');
my %admin = (
	force_release => q(SELECT lease_lock.force_release('job', 'because')),
	prune => q(SELECT lease_lock.prune()),
	guard => q(SELECT lease_lock.guard('mine', 'job')),
	guard_column => q(SELECT lease_lock.guard_column('mine', 'token')),
	unguard => q(SELECT lease_lock.unguard('mine')),
	'fence as a trigger' => q(CREATE TRIGGER t BEFORE INSERT ON mine FOR EACH ROW EXECUTE FUNCTION lease_lock.fence('job')),
	'fence_column as a trigger' => q(CREATE TRIGGER t BEFORE INSERT ON mine FOR EACH ROW EXECUTE FUNCTION lease_lock.fence_column('token')),
);
foreach my $call (sort keys %admin)
{
	refused_with($app, $admin{$call}, '42501', "$call is not for everybody");
}
$dba->query_ok(q(GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA lease_lock TO other));
refused_with($other, q(SELECT lease_lock.guard('mine', 'job')), '42501', 'nor does EXECUTE alone let a role guard another\'s table');
refused_with($other, q(SELECT lease_lock.unguard('mine')), '42501', 'or take its guard off');
$other->query_ok('CREATE TABLE others_own (id int)');
$other->query_ok(q(SELECT lease_lock.guard('others_own', 'own')));
is($other->query_ok(q(SELECT lease_lock.unguard('others_own'))), 't', 'but it can guard its own');
$dba->query_ok(q(REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA lease_lock FROM other));

#
# Nobody acts for another role.
#
refused_with($other, "SELECT lease_lock.renew('job', $token)", '42501', 'another role cannot renew');
refused_with($other, "SELECT lease_lock.release('job', $token)", '42501', 'or release');
refused_with($other, "SELECT lease_lock.assert_held('job', $token)", '42501', 'or assert');
is($dba->query_ok("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = " . $other->pid), '0', 'and keeps no lock');
is($other->query_ok(q(SELECT lease_lock.try_acquire('job', 'worker'))), '', 'the same owner from another role is a stranger');
refused_with($other, q(SELECT lease_lock.acquire('job', 'worker', wait => '50 ms')), '55P03', 'who waits like any other');
is($app->query_ok("SELECT state FROM lease_lock.token_status('job', $token)"), 'held', 'the lease is as it was');

my $theirs = $member->query_ok(q(SELECT lease_lock.acquire('job', 'worker', ttl => '1 h', wait => '0', payload => '{"secret": 2}')));
cmp_ok($theirs, '>', $token, 'from a member of the role the same owner takes over');
isnt($member->query_ok("SELECT lease_lock.renew('job', $theirs)"), '', 'and renews');
refused_with($app, "SELECT lease_lock.renew('job', $theirs)", '42501', 'the role is not a member of its member');
my $apps = $app->query_ok(q(SELECT lease_lock.acquire('shared', 'app', ttl => '1 h')));
isnt($member->query_ok("SELECT lease_lock.renew('shared', $apps)"), '', 'a member renews what the role acquired');
is($member->query_ok("SELECT lease_lock.assert_held('shared', $apps) > '0', lease_lock.release('shared', $apps)"), 't|t', 'asserts and releases it');

# SET ROLE counts, and so does the owner of a SECURITY DEFINER function.
$member->query_ok('SET ROLE app');
my $as_app = $member->query_ok(q(SELECT lease_lock.acquire('set role', 'w', ttl => '1 h')));
is($app->query_ok("SELECT role FROM lease_lock.holders WHERE resource = 'set role'"), 'app', 'the recorded role is current_user');
is($app->query_ok("SELECT lease_lock.release('set role', $as_app)"), 't', 'whose lease it is');
$member->query_ok('RESET ROLE');

#
# What others see of a lease.
#
my $held = $member->query_ok(q(SELECT lease_lock.acquire('seen', 'who', ttl => '1 h', payload => '{"secret": 3}')));
my $columns = q(SELECT owner, token, role, payload, application_name, client_addr, state FROM lease_lock.holders WHERE resource = 'seen');
is($member->query_ok($columns), "who|$held|member|{\"secret\": 3}|the_member||held", 'the holder sees all of it');
is($other->query_ok($columns), "who|$held|member||||held", 'another role sees neither payload nor application_name');
is($app->query_ok($columns), "who|$held|member||||held", 'nor does the role that the holder is a member of');
is($monitor->query_ok($columns), "who|$held|member|{\"secret\": 3}|the_member||held", 'pg_read_all_stats does');
is($dba->query_ok($columns), "who|$held|member|{\"secret\": 3}|the_member||held", 'and so does a superuser');
is($monitor->query_ok('SELECT count(*) > 0 FROM lease_lock.audit'), 't', 'pg_read_all_stats reads the audit');
refused_with($outsider, $columns, '42501', 'without USAGE nothing is seen');

#
# Objects of a role's own: in pg_temp, and in a schema on its path.
#
$dba->query_ok(q(
CREATE TABLE account (id text, note text);
GRANT ALL ON account TO app, other;
SELECT lease_lock.guard('account', '{id}');
CREATE TABLE log (id int); GRANT ALL ON log TO app, other;
SELECT lease_lock.guard('log', 'log', mode => 'newest');
));
my $newer = $dba->query_ok(q(SELECT lease_lock.acquire('row', 'dba', ttl => '1 h')));
$dba->query_ok(q(BEGIN; SELECT lease_lock.present('log', 500); INSERT INTO log VALUES (1); COMMIT));
$other->query_ok(q(
CREATE SCHEMA evil;
CREATE FUNCTION evil.fake_eq(text, text) RETURNS boolean LANGUAGE sql AS $$ SELECT true $$;
CREATE OPERATOR evil.= (LEFTARG = text, RIGHTARG = text, FUNCTION = evil.fake_eq);
CREATE FUNCTION evil.now() RETURNS timestamptz LANGUAGE sql AS $$ SELECT '2000-01-01'::timestamptz $$;
CREATE FUNCTION evil.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS $$ SELECT '2000-01-01'::timestamptz $$;
CREATE FUNCTION evil.current_setting(text) RETURNS text LANGUAGE sql AS $$ SELECT '1' $$;
CREATE FUNCTION evil.pg_terminate_backend(int, bigint) RETURNS boolean LANGUAGE sql AS $$ SELECT true $$;
CREATE DOMAIN evil.bigint AS pg_catalog.int8;
CREATE TEMP TABLE lease (LIKE log); CREATE TEMP TABLE fence (name text, highest bigint, accepted_at timestamptz, accepted_by text);
CREATE TEMP TABLE audit (at timestamptz);
CREATE TEMP SEQUENCE token_seq; CREATE TEMP SEQUENCE place_seq;
INSERT INTO pg_temp.fence VALUES ('log', 0, now(), 'other');
DROP TABLE pg_temp.lease;
CREATE TEMP TABLE lease (resource text PRIMARY KEY, owner text, version bigint, expire_at timestamptz);
INSERT INTO pg_temp.lease VALUES ('row', 'other', 1000000, 'infinity'), ('job', 'other', 1000000, 'infinity');
CREATE TEMP VIEW holders AS SELECT 'row'::text AS resource;
CREATE SCHEMA lease_lock_fake;
SET search_path = evil, pg_temp, public, pg_catalog;
));
is($other->query_ok(q(SELECT lease_lock.try_acquire('row', 'other'))), '', 'a fake lease gives no token');
is($other->query_ok(q(SELECT state FROM lease_lock.token_status('row', 1000000))), 'unknown', 'and no status');
is($other->query_ok("SELECT state, holder FROM lease_lock.token_status('row', $newer)"), 'held|dba', 'which is that of the real table');
is($other->query_ok(q(SELECT token FROM lease_lock.holders WHERE resource OPERATOR(pg_catalog.=) 'row')), $newer, 'the view shows the real lease');
$other->query_ok(q(BEGIN; SELECT lease_lock.present('row', 1000000)));
refused_with($other, q(INSERT INTO public.account VALUES ('row')), 'LL004', 'a fake token opens no guarded table');
$other->query('ROLLBACK');
$other->query_ok(q(BEGIN; SELECT lease_lock.present('log', 499)));
refused_with($other, q(INSERT INTO public.log VALUES (2)), 'LL001', 'a fake fence lets no stale token in');
$other->query('ROLLBACK');
$other->query_ok(q(BEGIN; SELECT lease_lock.present('log', 501); INSERT INTO public.log VALUES (3); COMMIT));
is($dba->query_ok(q(SELECT highest, accepted_by FROM lease_lock.fences WHERE name = 'log')), '501|other', 'the real fence rises');
my $own = $other->query_ok(q(SELECT lease_lock.acquire('own', 'other', ttl => '1 h')));
cmp_ok($own, '>', $newer, 'tokens come from the real sequence');
isnt($other->query_ok("SELECT lease_lock.renew('own', $own)"), '', 'renew works on the real table');
is($other->query_ok("SELECT lease_lock.release('own', $own)"), 't', 'and release');
is($other->query_ok('SELECT count(*) FROM pg_temp.lease'), '2', 'its own tables are untouched');
$other->query_ok(q(CREATE TEMP TABLE shadow (id text)));
$dba->query_ok(q(GRANT EXECUTE ON FUNCTION lease_lock.guard(regclass, text, text, text, text), lease_lock.unguard(regclass), lease_lock.fence() TO other));
$other->query_ok(q(CREATE TABLE public.shadow (id text)));
$other->query_ok(q(SELECT lease_lock.guard('public.shadow', 'shadow')));
is($dba->query_ok(q(SELECT DISTINCT tgrelid::regclass FROM pg_trigger WHERE tgname LIKE '%lease_lock%' AND tgrelid::regclass::text LIKE '%shadow')), 'shadow',
	'guard puts its triggers on the table that was meant, not on one of its name in pg_temp');
is($dba->query_ok(q(SELECT count(*) FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid
	WHERE t.tgname LIKE '%lease_lock%' AND p.pronamespace <> 'lease_lock'::regnamespace)), '0', 'and they call the real function');

# A role cannot weaken what protects others, nor make settings of the prefix up.
refused_with($app, q(SET lease_lock.max_ttl = '100 d'), '42501', 'lease_lock.max_ttl is for superusers');
refused_with($app, q(SET lease_lock.max_wait = '10 h'), '42501', 'and so is lease_lock.max_wait');

# force_release ends no superuser's backend for who is none, and is audited.
$dba->query_ok(q(GRANT EXECUTE ON FUNCTION lease_lock.force_release(text, text, boolean) TO app));
$app->query_ok(q(SET lease_lock.default_wait = '200 ms'));
$dba->query_ok("BEGIN; SELECT lease_lock.assert_held('row', $newer)");
$app->query(q(SELECT lease_lock.force_release('row', 'no reason', terminate => true)));
is($app->state, '42501', 'a superuser\'s transaction is not ended by another role') or diag($app->errors);
is($dba->query_ok('SELECT 1'), '1', 'it goes on');
$dba->query_ok('COMMIT');
is($app->query_ok(q(SELECT lease_lock.force_release('row', 'a good reason'))), $newer, 'whoever has EXECUTE can release by force');
is($dba->query_ok(q(SELECT role, session_role, object, reason FROM lease_lock.audit WHERE action = 'force_release')), 'app|app|row|a good reason', 'which is audited');

# A holder's role that was dropped or renamed.
my $orphan = $other->query_ok(q(SELECT lease_lock.acquire('orphan', 'other', ttl => '1 h')));
$other->quit;
$dba->query_ok('DROP OWNED BY other; DROP ROLE other');
is($dba->query_ok(q(SELECT role, owner FROM lease_lock.holders WHERE resource = 'orphan')), 'other|other', 'a dropped role\'s lease stays');
refused_with($app, "SELECT lease_lock.renew('orphan', $orphan)", '42501', 'and is nobody\'s');
isnt($dba->query_ok("SELECT lease_lock.renew('orphan', $orphan)"), '', 'but a superuser\'s');

# Default privileges of the role that installs give nothing away.
$dba->query_ok(q(CREATE DATABASE defaults));
my $generous = LeaseTest::Session->new($node, dbname => 'defaults');
$generous->query_ok(q(CREATE ROLE favourite;
ALTER DEFAULT PRIVILEGES GRANT ALL ON TABLES TO favourite; ALTER DEFAULT PRIVILEGES GRANT ALL ON SEQUENCES TO favourite;
ALTER DEFAULT PRIVILEGES GRANT ALL ON FUNCTIONS TO favourite; ALTER DEFAULT PRIVILEGES GRANT ALL ON SCHEMAS TO favourite;
ALTER DEFAULT PRIVILEGES GRANT ALL ON TABLES TO PUBLIC; CREATE EXTENSION lease_lock));
is($generous->query_ok(q(SELECT count(*) FROM pg_class WHERE relnamespace = 'lease_lock'::regnamespace AND relacl::text LIKE '%favourite%')), '0',
	'default privileges on tables and sequences are taken back');
is($generous->query_ok(q(SELECT count(*) FROM pg_proc WHERE pronamespace = 'lease_lock'::regnamespace AND proacl::text LIKE '%favourite%')), '0', 'and on functions');
is($generous->query_ok(q(SELECT has_schema_privilege('favourite', 'lease_lock', 'CREATE') OR has_schema_privilege('favourite', 'lease_lock', 'USAGE'))), 'f', 'and on the schema');
is($generous->query_ok(q(SELECT has_table_privilege('favourite', 'lease_lock.lease', 'SELECT'))), 'f', 'PUBLIC has nothing on the tables either');
is($generous->query_ok(q(SELECT has_table_privilege('pg_read_all_stats', 'lease_lock.audit', 'SELECT') AND has_table_privilege('favourite', 'lease_lock.holders', 'SELECT'))), 't',
	'what is granted on purpose stays');
$generous->quit;

$_->quit foreach ($dba, $app, $member, $monitor, $outsider);
$node->stop;
done_testing();
