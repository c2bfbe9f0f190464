# Once a grant of a newer token has committed, no write guarded under that
# resource with an older token commits.  Workers with leases that expire all
# the time write under load, and the order of the commits is read from the
# data afterwards.

use strict;
use warnings;

use FindBin;
use lib $FindBin::Bin;

use IPC::Run ();
use LeaseTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep time);

my $node = lease_server('main', q(
track_commit_timestamp = on
deadlock_timeout = 100ms
));
my $dba = LeaseTest::Session->new($node);

# The resource of a row is held in it; what is written says under which token.
$dba->query_ok(q(
CREATE TABLE held (resource text, token bigint, worker int);
CREATE TABLE held_by_row (resource text, token bigint, worker int);
CREATE TABLE newest (resource text, token bigint, worker int);
CREATE TABLE carried (resource text, token bigint, worker int);
CREATE TABLE asserted (resource text, token bigint, worker int);
CREATE TABLE outside (resource text, token bigint, worker int);
CREATE TABLE grants (resource text, token bigint, worker int);
CREATE SEQUENCE outside_tokens;
SELECT lease_lock.guard('held', 'r0');
SELECT lease_lock.guard('held_by_row', '{resource}');
SELECT lease_lock.guard('newest', '{resource}', mode => 'newest');
SELECT lease_lock.guard_column('carried', 'token', resource => '{resource}');
SELECT lease_lock.guard('outside', 'etcd', mode => 'newest');
INSERT INTO grants SELECT 'r0', lease_lock.acquire('r0', 'first', ttl => '1 ms'), 0;
INSERT INTO grants SELECT 'r1', lease_lock.acquire('r1', 'first', ttl => '1 ms'), 0;
));

my $workers = 8;
my $turns = 200;
my @levels = ('READ COMMITTED', 'REPEATABLE READ', 'SERIALIZABLE');

# Each worker's script.  A failed acquire leaves the last token in place, so
# stale tokens are tried all the time.
sub script
{
	my ($worker) = @_;
	my $sql = '';

	srand(20260101 + $worker);
	foreach my $turn (1 .. $turns)
	{
		my $resource = rand() < 0.85 ? 'r0' : 'r1';
		my $ttl = 2 + int(rand 30);
		# Sometimes two workers are the same owner, and take over from each other.
		my $owner = rand() < 0.4 ? 'shared' : "worker $worker";
		my $level = $levels[ int(rand 3) ];
		my $pause = sprintf('%.4f', rand(0.008));

		if (rand() < 0.6)
		{
			# The grant has the data of its own transaction beside it.
			$sql .= "BEGIN ISOLATION LEVEL $level;\n"
			  . "SELECT lease_lock.acquire('$resource', '$owner', ttl => '$ttl ms', wait => '8 ms') AS t_$resource \\gset\n"
			  . "INSERT INTO grants VALUES ('$resource', :t_$resource, $worker);\n";
			$sql .= "SELECT pg_sleep($pause);\n" if rand() < 0.3;
			$sql .= "COMMIT;\n";
		}
		# Under a token of one's own, and now and then under somebody else's newest.
		$sql .= "SELECT max(token) AS t_$resource FROM grants WHERE resource = '$resource' \\gset\n" if rand() < 0.1;
		foreach my $write (1 .. 1 + int(rand 3))
		{
			my $table = qw(held_by_row newest carried asserted held)[ int(rand($resource eq 'r0' ? 5 : 4)) ];

			$sql .= "BEGIN ISOLATION LEVEL $level;\n";
			$sql .= "SELECT lease_lock." . ($table eq 'asserted' ? 'assert_held' : 'present') . "('$resource', :t_$resource);\n";
			# A check that is rolled back counts for nothing.
			$sql .= "SAVEPOINT s; INSERT INTO held_by_row VALUES ('$resource', :t_$resource, $worker); ROLLBACK TO s;\n" if rand() < 0.3 && $table ne 'asserted';
			$sql .= "SELECT pg_sleep($pause / 2);\n" if rand() < 0.5;
			$sql .= "INSERT INTO $table VALUES ('$resource', :t_$resource, $worker);\n";
			$sql .= "SELECT pg_sleep($pause);\n";
			$sql .= "COMMIT;\n";
		}
		# Tokens from elsewhere, that reach the fence in any order.
		if (rand() < 0.35)
		{
			# The first such write raises the fence, the second finds it there.
			$sql .= "SELECT nextval('outside_tokens') AS other \\gset\nSELECT pg_sleep($pause / 2);\n";
			$sql .= "BEGIN ISOLATION LEVEL $level; SELECT lease_lock.present('etcd', :other); INSERT INTO outside VALUES ('etcd', :other, $worker);\n"
			  . "SELECT pg_sleep($pause / 2); COMMIT;\n"
			  foreach 1 .. 2;
		}
		$sql .= "SELECT lease_lock.release('$resource', :t_$resource);\n" if rand() < 0.1;
		$sql .= "SELECT lease_lock.renew('$resource', :t_$resource, '$ttl ms');\n" if rand() < 0.2;
	}
	return $sql;
}

my @clients;
my $start = time;
foreach my $worker (1 .. $workers)
{
	my $file = "$PostgreSQL::Test::Utils::tmp_check/worker_$worker";

	# Files on both ends, so that nobody waits for being read.
	append_to_file("$file.sql", "\\set t_r0 1\n\\set t_r1 2\n" . script($worker));
	my $client = { file => "$file.err" };
	$client->{run} = IPC::Run::start([ 'psql', '-XAtq', '-v', 'VERBOSITY=verbose', '-d', $node->connstr('postgres') ],
		'<', "$file.sql", '>', "$file.out", '2>', "$file.err",
		IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default));
	push @clients, $client;
}
# Meanwhile backends are stopped for longer than most leases live, wherever they
# happen to be.
my $stops = 0;
while (grep { $_->{run}->pumpable } @clients)
{
	my @pids = split /\n/, $dba->query_ok(q(SELECT pid FROM pg_stat_activity WHERE state <> 'idle' AND pid <> pg_backend_pid() ORDER BY random() LIMIT 1));

	foreach my $pid (@pids)
	{
		next unless kill('STOP', $pid);
		sleep 0.03;
		kill('CONT', $pid);
		$stops++;
	}
	sleep 0.01;
	foreach my $client (@clients) { eval { $client->{run}->pump_nb; } if $client->{run}->pumpable; }
}
$_->{run}->finish foreach @clients;
note("$stops stops");
note(sprintf('the load took %.1f s', time - $start));

# What was refused, and for what reasons.
my %refused;
foreach my $client (@clients)
{
	$client->{err} = slurp_file($client->{file});
	$refused{$1}++ while $client->{err} =~ /^(?:ERROR|FATAL|PANIC):\s+([0-9A-Z]{5}):/mg;
}
delete $refused{'25P02'};    # the statements after an error
note(join(', ', map { "$_: $refused{$_}" } sort keys %refused));
cmp_ok($refused{LL001} // 0, '>', 20, 'stale writes were tried');
cmp_ok($refused{LL003} // 0, '>', 0, 'and writes after the expiry');
cmp_ok($refused{'55P03'} // 0, '>', 0, 'and leases that others held');
my @others = grep { !/^(?:LL001|LL003|55P03)$/ } sort keys %refused;
is("@others", '', 'nothing else was raised, no 40001, 23505 or 40P01 either')
  or diag(join '', map { $_->{err} =~ /^(?:ERROR|FATAL):\s+(?:@{[join '|', @others]}):.*\n/mg } @clients);

foreach my $table (qw(held held_by_row newest carried asserted outside))
{
	my $rows = $dba->query_ok("SELECT count(*) FROM $table");

	cmp_ok($rows, '>', 10, "writes were accepted in $table");
	note("$table: $rows rows");
}
cmp_ok($dba->query_ok('SELECT count(DISTINCT token) FROM grants'), '>', 50, 'leases changed hands');

# A commit that lies after another in truth has not the smaller timestamp; two
# that are equal prove nothing.
my $order = q(
CREATE TEMP VIEW late AS
SELECT * FROM (
	SELECT *, max(newer) OVER (PARTITION BY resource ORDER BY at
		RANGE BETWEEN UNBOUNDED PRECEDING AND '1 microsecond' PRECEDING) AS seen
	FROM (
		SELECT resource, token, token AS newer, 'grant' AS what, pg_xact_commit_timestamp(xmin) AS at FROM grants
		UNION ALL SELECT resource, token, NULL, 'held', pg_xact_commit_timestamp(xmin) FROM held
		UNION ALL SELECT resource, token, NULL, 'held_by_row', pg_xact_commit_timestamp(xmin) FROM held_by_row
		UNION ALL SELECT resource, token, NULL, 'newest', pg_xact_commit_timestamp(xmin) FROM newest
		UNION ALL SELECT resource, token, NULL, 'carried', pg_xact_commit_timestamp(xmin) FROM carried
		UNION ALL SELECT resource, token, NULL, 'asserted', pg_xact_commit_timestamp(xmin) FROM asserted
		UNION ALL SELECT resource, token, token, 'outside', pg_xact_commit_timestamp(xmin) FROM outside
	) AS commits
) AS ordered WHERE token < seen;
);
$dba->query_ok($order);
is($dba->query_ok('SELECT count(*) FROM pg_temp.late WHERE what = \'grant\''), '0', 'grants commit in the order of their tokens');
foreach my $table (qw(held held_by_row newest carried asserted outside))
{
	is($dba->query_ok("SELECT count(*) FROM pg_temp.late WHERE what = '$table'"), '0', "no write with an older token commits late in $table")
	  or diag($dba->query_ok("SELECT resource, token, seen, at FROM pg_temp.late WHERE what = '$table' ORDER BY at LIMIT 5"));
}
is($dba->query_ok('SELECT count(*) FROM (SELECT token FROM grants GROUP BY token HAVING count(DISTINCT (resource, worker)) > 1) AS twice'), '0',
	'no token was granted twice');
is($dba->query_ok(q(SELECT count(*) FROM pg_locks WHERE locktype = 'advisory')), '0', 'no lock is left');
is($dba->query_ok(q(SELECT highest FROM lease_lock.fences WHERE name = 'etcd')), $dba->query_ok('SELECT max(token) FROM outside'),
	'the fence has the highest token that was accepted');

$dba->quit;
$node->stop;
done_testing();
