# Guards and leases bring no deadlock of their own: many writers under the same
# tokens, whose rows name the resources in any order, and foreign keys to the
# lease table beside renewals.  Field case: F13.
#
# A guard that updates a counter row, or takes an exclusive lock, meets other
# writers in the order of their rows; a renewal that changes a key column, or
# locks FOR UPDATE, makes every insert of a child wait.

use strict;
use warnings;

use FindBin;
use lib $FindBin::Bin;

use IPC::Run ();
use LeaseTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = lease_server('main', q(deadlock_timeout = 100ms));
my $dba = LeaseTest::Session->new($node);

$dba->query_ok(q(
CREATE TABLE held (name text, n int);
SELECT lease_lock.guard('held', 'lease/{name}');
CREATE TABLE newest (name text, n int);
SELECT lease_lock.guard('newest', 'mark/{name}', mode => 'newest');
CREATE TABLE child (id serial, resource text COLLATE "C" REFERENCES lease_lock.lease (resource));
));
my %token = map { $_ => $dba->query_ok("SELECT lease_lock.acquire('lease/$_', 'holder', ttl => '1 h')") } qw(a b c);

# The marks have been accepted before, so that all writers bring an equal token.
$dba->query_ok(join('; ', 'BEGIN', (map { "SELECT lease_lock.present('mark/$_', 9)" } qw(a b c)),
	q(INSERT INTO newest VALUES ('a', 0), ('b', 0), ('c', 0)), 'COMMIT'));

my $script = "$PostgreSQL::Test::Utils::tmp_check/any_order.sql";
append_to_file($script, join("\n", 'BEGIN;',
	(map { "SELECT lease_lock.present('lease/$_', $token{$_}), lease_lock.present('mark/$_', 9);" } qw(a b c)),
	q(INSERT INTO held SELECT chr(97 + (random() * 2)::int), g FROM generate_series(1, 100) g;),
	q(INSERT INTO newest SELECT chr(97 + (random() * 2)::int), g FROM generate_series(1, 100) g;),
	'COMMIT;', ''));
my ($out, $err) = ('', '');
ok(IPC::Run::run(
		[
			'pgbench', '-n', '-c', 8, '-j', 2, '-t', 20, '-f', $script,
			'-h', $node->host, '-p', $node->port, '-U', 'postgres', 'postgres'
		],
		'>', \$out, '2>', \$err, IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default)),
	'eight sessions write 100 rows under three names, in any order') or diag($err);
is($dba->query_ok('SELECT count(*) FROM held'), 8 * 20 * 100, 'all rows of mode held arrived');
is($dba->query_ok('SELECT count(*) FROM newest'), 8 * 20 * 100 + 3, 'all rows of mode newest arrived');

# The same two sessions, two tables, opposite order.
my @s = map { LeaseTest::Session->new($node) } (1, 2);
foreach my $s (@s)
{
	$s->query_ok("BEGIN; SET LOCAL lock_timeout = '10s'; SELECT lease_lock.present('lease/a', $token{a}), lease_lock.present('mark/a', 9)");
}
$s[0]->query_ok(q(INSERT INTO held VALUES ('a', -1)));
$s[1]->query_ok(q(INSERT INTO newest VALUES ('a', -1)));
$s[0]->query_ok(q(INSERT INTO newest VALUES ('a', -2)));
$s[1]->query_ok(q(INSERT INTO held VALUES ('a', -2)));
$_->query_ok('COMMIT') foreach @s;
pass('two sessions write two tables in opposite order and neither waits');

# A renewal that is not committed yet, and an insert that refers to the lease.
$s[0]->query_ok("BEGIN; SELECT lease_lock.renew('lease/a', $token{a})");
$s[1]->query_ok(q(SET lock_timeout = '10s'; INSERT INTO child (resource) VALUES ('lease/a')));
is($s[1]->state, '', 'a child of the lease is inserted beside a renewal');
$s[0]->query_ok('COMMIT');
$s[1]->query_ok(q(BEGIN; INSERT INTO child (resource) VALUES ('lease/a')));
$s[0]->query_ok("SET lock_timeout = '10s'; SELECT lease_lock.renew('lease/a', $token{a})");
is($s[0]->state, '', 'a renewal does not wait for the insert of a child');
$s[1]->query_ok('COMMIT');

ok($node->log_content() !~ /deadlock detected/, 'the server log knows of no deadlock') if $node->can('log_content');
is($dba->query_ok('SELECT deadlocks FROM lease_lock.stats'), '0', 'and no deadlock was counted');
is($dba->query_ok(q(SELECT deadlocks FROM pg_stat_database WHERE datname = 'postgres')), '0', 'neither by PostgreSQL');

$_->quit foreach (@s, $dba);
$node->stop;
done_testing();
