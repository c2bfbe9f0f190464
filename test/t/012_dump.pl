# A dump carries everything: restored into another database, tokens go on
# upwards, guards guard, and leases, fences and the audit are there.

use strict;
use warnings;

use FindBin;
use lib $FindBin::Bin;

use LeaseTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = lease_server('main');
my $dba = LeaseTest::Session->new($node);
my $dir = $PostgreSQL::Test::Utils::tmp_check;

$dba->query_ok(q(
CREATE ROLE app;
CREATE TABLE account (id int PRIMARY KEY, note text);
CREATE TABLE log (id int, note text);
CREATE TABLE doc (id int, token bigint);
CREATE TABLE part (id int, day int) PARTITION BY LIST (day);
CREATE TABLE part_1 PARTITION OF part FOR VALUES IN (1);
SELECT lease_lock.guard('account', 'job');
SELECT lease_lock.guard('log', 'log', mode => 'newest');
SELECT lease_lock.guard('part', 'part/{day}');
SELECT lease_lock.guard_column('doc', 'token', resource => 'doc/{id}');
));
$dba->query_ok(q(SELECT count(lease_lock.acquire('name/' || i, 'A', ttl => '1 h')) FROM generate_series(1, 40) AS i));
my $job = $dba->query_ok(q(SELECT lease_lock.acquire('job', 'A', ttl => '1 d', payload => '{"a": 1}')));
my $doc = $dba->query_ok(q(SELECT lease_lock.acquire('doc/1', 'A', ttl => '1 d')));
my $gone = $dba->query_ok(q(SELECT lease_lock.acquire('gone', 'A', ttl => '1 d')));
$dba->query_ok("SELECT lease_lock.release('gone', $gone, cooldown => '1 d')");
$dba->query_ok(q(SELECT lease_lock.force_release('name/40', 'a test')));
$dba->query_ok(qq(BEGIN; SELECT lease_lock.present('job', $job), lease_lock.present('log', 77);
INSERT INTO account VALUES (1, 'A'); INSERT INTO log VALUES (1, 'A'); INSERT INTO doc VALUES (1, $doc); COMMIT));
my $newest = $dba->query_ok(q(SELECT max(version) FROM lease_lock.lease));
is($newest, 44, 'tokens were used');

my $state = q(SELECT resource, owner, version, expire_at, ended_by, free_at, scope, payload, role FROM lease_lock.lease ORDER BY resource);
my $fence = q(SELECT name, highest, accepted_by FROM lease_lock.fence ORDER BY name);
my $guards = q(SELECT t.tgrelid::regclass::text, t.tgname, t.tgenabled, pg_get_triggerdef(t.oid) FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid
	WHERE p.pronamespace = 'lease_lock'::regnamespace ORDER BY 1, 2);

# Tells the restored database from the first, and tries what a user would.
sub check
{
	my ($db, $what) = @_;
	my $s = LeaseTest::Session->new($node, dbname => $db);

	is($s->query_ok($state), $dba->query_ok($state), "$what: every lease is there");
	is($s->query_ok($fence), $dba->query_ok($fence), "$what: and every fence");
	is($s->query_ok($guards), $dba->query_ok($guards), "$what: and every guard");
	is($s->query_ok(q(SELECT action, object, reason FROM lease_lock.audit ORDER BY at)),
		$dba->query_ok(q(SELECT action, object, reason FROM lease_lock.audit ORDER BY at)), "$what: and the audit");
	is($s->query_ok(q(SELECT note FROM account) . ' UNION ALL SELECT note FROM log'), "A\nA", "$what: and the guarded rows");

	is($s->query_ok('SELECT moved FROM lease_lock.token_state'), 't', "$what: and it is known that tokens come from elsewhere");

	is($s->query_ok("SELECT state FROM lease_lock.token_status('job', $job)"), 'held', "$what: a live lease is live");
	refused_with($s, q(INSERT INTO account VALUES (2, 'B')), 'LL002', "$what: no token, no write");
	$s->query_ok("BEGIN; SELECT lease_lock.present('job', $job - 1)");
	refused_with($s, q(INSERT INTO account VALUES (2, 'B')), 'LL001', "$what: a stale token is stale");
	$s->query('ROLLBACK');
	$s->query_ok(q(BEGIN; SELECT lease_lock.present('log', 76)));
	refused_with($s, q(INSERT INTO log VALUES (2, 'B')), 'LL001', "$what: also below the fence");
	$s->query('ROLLBACK');
	refused_with($s, q(INSERT INTO part VALUES (1, 1)), 'LL002', "$what: the partition is guarded");
	refused_with($s, q(TRUNCATE part_1), 'LL002', "$what: its TRUNCATE too");
	refused_with($s, q(UPDATE doc SET token = 1), 'LL001', "$what: and the token column");
	$s->query_ok("BEGIN; SELECT lease_lock.present('job', $job); INSERT INTO account VALUES (2, 'A'); ROLLBACK");
	is($s->query_ok(q(SELECT lease_lock.try_acquire('job', 'B'))), '', "$what: others are kept out");
	is($s->query_ok(q(SELECT lease_lock.try_acquire('gone', 'B'))), '', "$what: a cooldown still counts");
	isnt($s->query_ok("SELECT lease_lock.renew('job', $job)"), '', "$what: the holder can renew");

	my $first = $s->query_ok(q(SELECT lease_lock.acquire('new', 'B', ttl => '1 h')));
	cmp_ok($first, '>', $newest + 1000000, "$what: tokens go on upwards, far from those of the first database");
	cmp_ok($first, '<', 2**53, "$what: and stay exact integers to JavaScript");
	is($s->query_ok(q(SELECT lease_lock.acquire('new 2', 'B', ttl => '1 h'))), $first + 1, "$what: after one jump");
	my $taken = $s->query_ok(q(SELECT lease_lock.acquire('job', 'A', ttl => '1 h')));
	cmp_ok($taken, '>', $job, "$what: a takeover gets a larger token");
	$s->quit;
	return $first;
}

#
# Whole dumps.
#
my @highest;
foreach my $format (qw(custom plain))
{
	my $file = "$dir/dump.$format";
	my $db = "restored_$format";

	$node->safe_psql('postgres', "CREATE DATABASE $db");
	$node->command_ok([ 'pg_dump', "--format=$format", "--file=$file", '-d', $node->connstr('postgres') ], "pg_dump, $format");
	if ($format eq 'custom')
	{
		$node->command_ok([ 'pg_restore', '--exit-on-error', '-d', $node->connstr($db), $file ], 'pg_restore');
	}
	else
	{
		$node->command_ok([ 'psql', '-X', '-q', '-v', 'ON_ERROR_STOP=1', '-d', $node->connstr($db), '-f', $file ], 'psql');
	}
	push @highest, check($db, "$format dump");
}

# The first database goes on as if nothing had happened.
my $next = $dba->query_ok(q(SELECT lease_lock.acquire('new', 'B', ttl => '1 h')));
is($next, $newest + 1, 'the first database has no reason to jump');

#
# A database that is copied as a template, and a dump of the restored one.
#
$dba->quit;
ok($node->poll_query_until('template1', q(SELECT count(*) = 0 FROM pg_stat_activity WHERE datname = 'postgres')), 'nobody is connected');
$node->safe_psql('template1', 'CREATE DATABASE copied TEMPLATE postgres');
my $copied = $node->safe_psql('copied', q(SELECT lease_lock.acquire('new 2', 'B', ttl => '1 h')));
cmp_ok($copied, '>', $next + 1000000, 'a copy of a database jumps');

#
# The data alone, into a database whose extension is new.
#
$node->safe_psql('postgres', 'CREATE DATABASE data_only');
$node->safe_psql('data_only', q(CREATE EXTENSION lease_lock; TRUNCATE lease_lock.audit));
$node->command_ok([ 'pg_dump', '--format=custom', '--data-only', '--schema=lease_lock', '--extension=lease_lock', "--file=$dir/data.custom", '-d', $node->connstr('postgres') ],
	'pg_dump of the data alone');
$node->command_ok([ 'pg_restore', '--exit-on-error', '--data-only', '-d', $node->connstr('data_only'), "$dir/data.custom" ], 'pg_restore of the data alone');
is($node->safe_psql('data_only', $state), $node->safe_psql('postgres', $state), 'data alone: every lease is there');
is($node->safe_psql('data_only', $fence), $node->safe_psql('postgres', $fence), 'data alone: and every fence');
cmp_ok($node->safe_psql('data_only', q(SELECT lease_lock.acquire('other', 'B'))), '>', $next, 'data alone: tokens go on upwards');

#
# Without the sequences, as logical replication carries none: what the rows know
# is enough.
#
$node->safe_psql('postgres', 'CREATE DATABASE no_sequence');
$node->safe_psql('no_sequence', 'CREATE EXTENSION lease_lock');
foreach my $table (qw(lease fence))
{
	my $rows = $node->safe_psql('postgres', "COPY lease_lock.$table TO STDOUT");

	$node->safe_psql('no_sequence', "COPY lease_lock.$table FROM STDIN;\n$rows\n\\.\n");
}
foreach my $name ('name/1', 'name/40')
{
	my $own = $node->safe_psql('postgres', "SELECT version FROM lease_lock.lease WHERE resource = '$name'");

	cmp_ok($node->safe_psql('no_sequence', "SELECT lease_lock.acquire('$name', 'A')"), '>', $own, "no sequence: $name goes above its own row");
}
cmp_ok($node->safe_psql('no_sequence', q(SELECT lease_lock.acquire('log', 'A'))), '>', 77, 'no sequence: and a name above its fence');

$node->stop;
done_testing();
