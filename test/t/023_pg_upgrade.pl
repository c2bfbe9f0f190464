# pg_upgrade to a newer major version, with leases, fences, guards and the audit
# in the database: --check has nothing against it, leases in force stay in force,
# guards guard, and tokens go on upwards, though the timeline is 1 again and the
# system identifier another one.
#
# The newer server is named by LEASE_LOCK_NEWER_PG_CONFIG, the path of its
# pg_config.  lease_lock must be installed there too, from the same sources:
#	make clean; make PG_CONFIG=that install
#
# A table with a column of a type like regclass stops pg_upgrade; a sequence that
# goes on from where it was repeats the tokens of an old server that is started
# again.

use strict;
use warnings;

use FindBin;
use lib $FindBin::Bin;

use File::Basename qw(dirname);
use LeaseTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $newer = $ENV{LEASE_LOCK_NEWER_PG_CONFIG};
plan skip_all => 'LEASE_LOCK_NEWER_PG_CONFIG does not name the pg_config of a newer server that has lease_lock'
	if ($newer // '') eq '';
chomp(my $bin = `$newer --bindir`);
chomp(my $share = `$newer --sharedir`);
die "LEASE_LOCK_NEWER_PG_CONFIG is \"$newer\", which is no pg_config" if $bin eq '';
plan skip_all => "lease_lock is not installed in the server of $newer: make clean; make PG_CONFIG=$newer install"
	unless -f "$share/extension/lease_lock.control";
chomp(my $old_bin = `pg_config --bindir`);
my $major = sub { my ($v) = `$_[0]/postgres --version` =~ /(\d+)/; return $v; };
my ($old_major, $new_major) = ($major->($old_bin), $major->($bin));
plan skip_all => "the server of $newer is of version $new_major, and the one under test of $old_major" if $new_major <= $old_major;

# Checksums are on by default from 18, and the same must hold for both.
my $old = PostgreSQL::Test::Cluster->new('old');
$old->init(extra => $old_major >= 18 ? ['--no-data-checksums'] : []);
$old->append_conf('postgresql.conf', common_conf());
$old->start;
my $new = PostgreSQL::Test::Cluster->new('new', install_path => dirname($bin));
$new->init(extra => $new_major >= 18 ? ['--no-data-checksums'] : []);
$new->append_conf('postgresql.conf', common_conf());

$old->safe_psql('postgres', 'CREATE DATABASE app');
my $s = LeaseTest::Session->new($old, dbname => 'app');
$s->query_ok(q(
CREATE ROLE app LOGIN;
CREATE EXTENSION lease_lock;
GRANT USAGE ON SCHEMA lease_lock TO app;
GRANT EXECUTE ON FUNCTION lease_lock.force_release(text, text, boolean) TO app;
CREATE TABLE account (id int PRIMARY KEY, note text);
CREATE TABLE log (id int, note text);
CREATE TABLE doc (id int, token bigint);
CREATE TABLE part (id int, day int) PARTITION BY LIST (day);
CREATE TABLE part_1 PARTITION OF part FOR VALUES IN (1);
SELECT lease_lock.guard('account', 'job'), lease_lock.guard('log', 'log', mode => 'newest'),
	lease_lock.guard('part', 'part/{day}'), lease_lock.guard_column('doc', 'token');
ALTER TABLE account ENABLE ALWAYS TRIGGER zz_lease_lock_guard;
));
# A jump is behind it already.
$s->query_ok('SELECT lease_lock.raise_token(1000)');
$s->query_ok(q(SELECT count(lease_lock.acquire('name/' || i, 'A', ttl => '1 d')) FROM generate_series(1, 40) AS i));
my $job = $s->query_ok(q(SELECT lease_lock.acquire('job', 'A', ttl => '1 d', payload => '{"a": 1}')));
$s->query_ok(q(SELECT lease_lock.force_release('name/40', 'a test')));
$s->query_ok(q(SELECT lease_lock.release('name/39', version, cooldown => '1 d') FROM lease_lock.lease WHERE resource = 'name/39'));
$s->query_ok("BEGIN; SELECT lease_lock.present('job', $job), lease_lock.present('log', 777);
INSERT INTO account VALUES (1, 'A'); INSERT INTO log VALUES (1, 'A'); INSERT INTO doc VALUES (1, 7); COMMIT");
my %query = (
	leases => 'SELECT resource, owner, version, expire_at, ended_by, free_at, scope, payload, role, grant_xid FROM lease_lock.lease ORDER BY resource',
	fences => 'SELECT name, highest, accepted_at, accepted_by FROM lease_lock.fence ORDER BY name',
	audit => 'SELECT * FROM lease_lock.audit ORDER BY at',
	places => 'SELECT * FROM lease_lock.place ORDER BY at',
	guards => q(SELECT t.tgrelid::regclass::text, t.tgname, t.tgenabled, pg_get_triggerdef(t.oid) FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid
		WHERE p.pronamespace = 'lease_lock'::regnamespace ORDER BY 1, 2),
	rights => q(SELECT c.relname, r.rolname FROM pg_class c, pg_roles r WHERE c.relnamespace = 'lease_lock'::regnamespace AND c.relkind IN ('r', 'v')
		AND r.rolname IN ('app', 'pg_read_all_stats') AND has_table_privilege(r.oid, c.oid, 'SELECT') ORDER BY 1, 2),
	functions => q(SELECT proname FROM pg_proc WHERE pronamespace = 'lease_lock'::regnamespace AND has_function_privilege('app', oid, 'EXECUTE') ORDER BY 1),
	members => q(SELECT count(*) FROM pg_depend WHERE deptype = 'e' AND classid IN ('pg_class'::regclass, 'pg_proc'::regclass) AND refobjid = (SELECT oid FROM pg_extension WHERE extname = 'lease_lock')),
);
my %before = map { $_ => $s->query_ok($query{$_}) } keys %query;
my $last = $s->query_ok(q(SELECT lease_lock.acquire('last', 'A')));
$before{leases} = $s->query_ok($query{leases});
$s->quit;
$old->stop;

# pg_upgrade writes where it runs.
my $dir = PostgreSQL::Test::Utils::tempdir;
chdir $dir or die "$dir: $!";
my @upgrade = ("$bin/pg_upgrade", '--no-sync', '--old-datadir', $old->data_dir, '--new-datadir', $new->data_dir,
	'--old-bindir', $old_bin, '--new-bindir', $bin, '--socketdir', $new->host, '--old-port', $old->port, '--new-port', $new->port);
command_ok([ @upgrade, '--check' ], "pg_upgrade --check from $old_major to $new_major");
command_ok(\@upgrade, "pg_upgrade from $old_major to $new_major");

# The old server goes on, as it must not: copied files let it.
$old->start;
my $unseen = $old->safe_psql('app', q(SELECT max(lease_lock.acquire('unseen/' || i, 'B')) FROM generate_series(1, 50) AS i));
cmp_ok($unseen, '>', $last, 'the old server goes on');
$old->stop;

$new->start;
$s = LeaseTest::Session->new($new, dbname => 'app');
is($s->query_ok($query{$_}), $before{$_}, "$_ are as they were") foreach sort keys %query;
is($s->query_ok('SELECT timeline_id FROM pg_control_checkpoint()'), '1', 'the timeline is the first again');
is($s->query_ok("SELECT state FROM lease_lock.token_status('job', $job)"), 'held', 'a lease in force is in force');
is($s->query_ok(q(SELECT lease_lock.try_acquire('job', 'B'))), '', 'others are kept out');
is($s->query_ok(q(SELECT lease_lock.try_acquire('name/39', 'B'))), '', 'also by a cooldown');
is($s->query_ok(q(SELECT moved FROM lease_lock.token_state)), 't', 'token_state tells that tokens will jump');
refused_with($s, q(INSERT INTO account VALUES (2, 'B')), 'LL002', 'no token, no write');
refused_with($s, q(TRUNCATE part_1), 'LL002', 'nor a TRUNCATE of a partition');
refused_with($s, q(INSERT INTO part VALUES (1, 1)), 'LL002', 'nor a row of it');
refused_with($s, q(UPDATE doc SET token = 6), 'LL001', 'an older token in a column is stale');
$s->query_ok(q(BEGIN; SELECT lease_lock.present('log', 776)));
refused_with($s, q(INSERT INTO log VALUES (2, 'B')), 'LL001', 'so is one below the fence');
$s->query('ROLLBACK');
isnt($s->query_ok("SELECT lease_lock.renew('job', $job, '2 h')"), '', 'the holder can renew');
$s->query_ok("BEGIN; SELECT lease_lock.present('job', $job); INSERT INTO account VALUES (2, 'A'); COMMIT");
my $first = $s->query_ok(q(SELECT lease_lock.acquire('unseen/1', 'A', ttl => '1 h')));
cmp_ok($first, '>', $unseen, 'tokens go on upwards, above those that the old server granted since');
is($s->query_ok(q(SELECT lease_lock.acquire('brand new', 'A', ttl => '1 h'))), $first + 1, 'after one jump');
like($s->query_ok('SELECT moved, jump_reason FROM lease_lock.token_state'), qr/^f\|another server/, 'token_state tells why');
my $taken = $s->query_ok(q(SELECT lease_lock.acquire('job', 'A', ttl => '1 h')));
cmp_ok($taken, '>', $first, 'a takeover gets a larger token');
$s->query_ok("BEGIN; SELECT lease_lock.present('job', $job)");
refused_with($s, q(INSERT INTO account VALUES (3, 'A')), 'LL001', 'and the old one is stale');
$s->query('ROLLBACK');
$s->quit;
$s = LeaseTest::Session->new($new, dbname => 'app', user => 'app');
cmp_ok($s->query_ok(q(SELECT lease_lock.acquire('by app', 'A'))), '>', $taken, 'another role can acquire as before');
refused_with($s, q(SELECT lease_lock.prune()), '42501', 'and may not do what it might not');
is($s->query_ok(q(SELECT lease_lock.force_release('by app', 'a test')) . ' IS NOT NULL'), 't', 'but what it might');
$s->quit;
$new->stop;
done_testing();
