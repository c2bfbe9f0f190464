# A subscriber whose tables are guarded applies without any token, since guards
# do not fire for replicated rows; ENABLE ALWAYS makes apply stop with an error
# that says why, and it goes on once the guard is back.  After a switch-over to
# the subscriber tokens go on upwards, above what its leases and fences know,
# though no sequence is replicated.
#
# A sequence alone begins at 1 on the subscriber, below all that is known there.

use strict;
use warnings;

use FindBin;
use lib $FindBin::Bin;

use LeaseTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $conf = q(
wal_retrieve_retry_interval = 100ms
max_logical_replication_workers = 20
max_worker_processes = 30
max_replication_slots = 20
max_wal_senders = 20
);
my $publisher = lease_server('publisher', $conf, allows_streaming => 'logical');
my $subscriber = PostgreSQL::Test::Cluster->new('subscriber');
$subscriber->init(allows_streaming => 'logical');
$subscriber->append_conf('postgresql.conf', common_conf() . $conf);
$subscriber->start;
my $p = LeaseTest::Session->new($publisher);

my $tables = q(
CREATE TABLE account (id int PRIMARY KEY, note text);
CREATE TABLE log (id int PRIMARY KEY, note text);
CREATE TABLE item (id int PRIMARY KEY, note text);
CREATE TABLE doc (id int PRIMARY KEY, token bigint);
SELECT lease_lock.guard('account', 'job'), lease_lock.guard('log', 'log', mode => 'newest'),
	lease_lock.guard('item', 'row/{id}', mode => 'newest'), lease_lock.guard_column('doc', 'token', resource => 'job');
);
my $counts = 'SELECT (SELECT count(*) FROM account), (SELECT count(*) FROM log), (SELECT count(*) FROM item), (SELECT count(*) FROM doc)';

$p->query_ok($tables);
$p->query_ok(q(SELECT count(lease_lock.acquire('early/' || i, 'A', ttl => '1 h')) FROM generate_series(1, 300) AS i));
my %token = map { $_ => $p->query_ok("SELECT lease_lock.acquire('$_', 'A', ttl => '1 h')") } ('job', 'log', map { "row/$_" } 1 .. 5);

# Writes row number I to each table, under their tokens.
sub write_all
{
	my ($i) = @_;

	$p->query_ok('BEGIN');
	$p->query_ok("SELECT lease_lock.present('$_', $token{$_})") foreach 'job', 'log', "row/$i";
	$p->query_ok("INSERT INTO $_ VALUES ($i, 'x')") foreach qw(account log item);
	$p->query_ok("INSERT INTO doc VALUES ($i, $token{job})");
	$p->query_ok('COMMIT');
	return;
}

write_all(1);
$publisher->safe_psql('postgres', q(CREATE PUBLICATION rows FOR TABLE account, log, item, doc;
CREATE PUBLICATION state FOR TABLE lease_lock.lease, lease_lock.fence));

# A database of the subscriber with the same guarded tables, subscribed.
my $connstr = $publisher->connstr . ' dbname=postgres';
sub subscribe
{
	my ($db, $publications) = @_;

	$subscriber->safe_psql('postgres', "CREATE DATABASE $db");
	$subscriber->safe_psql($db, "CREATE EXTENSION lease_lock; $tables");
	$subscriber->safe_psql($db, "CREATE SUBSCRIPTION $db CONNECTION '$connstr' PUBLICATION $publications");
	$subscriber->wait_for_subscription_sync($publisher, $db, $db);
	return;
}

my %with = (rows_only => 'rows', with_state => 'rows, state');
foreach my $db (sort keys %with)
{
	subscribe($db, $with{$db});
	is($subscriber->safe_psql($db, $counts), '1|1|1|1', "$db: the first rows are copied under the guards");
}

#
# Apply, of all that is published, by guards as guard() makes them.
#
write_all($_) foreach 2 .. 3;
$p->query_ok(qq(BEGIN; SELECT lease_lock.present('log', $token{log}), lease_lock.present('job', $token{job}), lease_lock.present('row/2', $token{'row/2'});
UPDATE log SET note = 'y' WHERE id = 2; UPDATE item SET note = 'y' WHERE id = 2; DELETE FROM account WHERE id = 2; UPDATE doc SET token = token WHERE id = 2; COMMIT));
$p->query_ok("SELECT lease_lock.renew('job', $token{job}, '2 h')");
$publisher->wait_for_catchup($_) foreach sort keys %with;
foreach my $db (sort keys %with)
{
	is($subscriber->safe_psql($db, $counts), '2|3|3|3', "$db: apply goes on without a token");
	is($subscriber->safe_psql($db, q(SELECT note FROM item WHERE id = 2)), 'y', "$db: updates are applied");
	is($subscriber->safe_psql($db, "SELECT apply_error_count + sync_error_count FROM pg_stat_subscription_stats WHERE subname = '$db'"), '0', "$db: without an error");
	foreach my $table (qw(account log item doc))
	{
		$subscriber->psql($db, "\\set VERBOSITY verbose\nINSERT INTO $table VALUES (9, NULL)", stderr => \my $err);
		like($err, qr/ERROR:  LL002/, "$db: while $table refuses a write without a token");
	}
}
my $state = q(SELECT resource, owner, version, expire_at FROM lease_lock.lease ORDER BY 1);
my $fence = q(SELECT name, highest FROM lease_lock.fence ORDER BY 1);
is($subscriber->safe_psql('rows_only', $state), '', 'rows only: no lease is known');
is($subscriber->safe_psql('rows_only', $fence), '', 'rows only: and the fences have seen nothing');
is($subscriber->safe_psql('with_state', $state), $publisher->safe_psql('postgres', $state), 'with state: the leases are those of the publisher');
is($subscriber->safe_psql('with_state', $fence), $publisher->safe_psql('postgres', $fence), 'with state: and so are the fences');

#
# ENABLE ALWAYS: apply has no token, stops, and says so each time it tries.
#
$subscriber->safe_psql('rows_only', 'ALTER TABLE item ENABLE ALWAYS TRIGGER zz_lease_lock_guard');
my $offset = -s $subscriber->logfile;
write_all(4);
ok($subscriber->poll_query_until('rows_only', q(SELECT apply_error_count >= 2 FROM pg_stat_subscription_stats WHERE subname = 'rows_only')), 'ENABLE ALWAYS: apply fails, is counted, and tries again');
like(slurp_file($subscriber->logfile, $offset), qr/ERROR:  no token presented for resource "row\/4"/, 'ENABLE ALWAYS: the log says why');
is($subscriber->safe_psql('rows_only', q(SELECT count(*) FROM item WHERE id = 4)), '0', 'ENABLE ALWAYS: the row is not let in');
is($subscriber->safe_psql('rows_only', q(SELECT count(*) FROM account WHERE id = 4)), '0', 'ENABLE ALWAYS: nor is anything else of its transaction');
$publisher->wait_for_catchup('with_state');
is($subscriber->safe_psql('with_state', q(SELECT count(*) FROM item WHERE id = 4)), '1', 'ENABLE ALWAYS: another subscription does not mind');
$subscriber->safe_psql('rows_only', 'ALTER TABLE item ENABLE TRIGGER zz_lease_lock_guard');
$publisher->wait_for_catchup('rows_only');
is($subscriber->safe_psql('rows_only', q(SELECT count(*) FROM item WHERE id = 4)), '1', 'ENABLE TRIGGER: apply goes on, and nothing is lost');

# A subscription can also be told to stop by itself.
$subscriber->safe_psql('rows_only', 'ALTER SUBSCRIPTION rows_only SET (disable_on_error = true); ALTER TABLE item ENABLE ALWAYS TRIGGER zz_lease_lock_guard');
write_all(5);
ok($subscriber->poll_query_until('rows_only', q(SELECT NOT subenabled FROM pg_subscription WHERE subname = 'rows_only')), 'disable_on_error: the subscription stops');
$subscriber->safe_psql('rows_only', 'ALTER TABLE item ENABLE TRIGGER zz_lease_lock_guard; ALTER SUBSCRIPTION rows_only ENABLE');
$publisher->wait_for_catchup('rows_only');
is($subscriber->safe_psql('rows_only', $counts), '4|5|5|5', 'disable_on_error: and goes on when it is enabled');

#
# The switch-over.  The publisher goes on for a while that nobody sees.
#
$publisher->wait_for_catchup($_) foreach sort keys %with;
$subscriber->safe_psql($_, "ALTER SUBSCRIPTION $_ DISABLE; ALTER SUBSCRIPTION $_ SET (slot_name = NONE); DROP SUBSCRIPTION $_") foreach sort keys %with;
my $unseen = $p->query_ok(q(SELECT max(lease_lock.acquire('unseen/' || i, 'A')) FROM generate_series(1, 100) AS i));
my $last = $p->query_ok('SELECT last_token FROM lease_lock.token_state');
is($last, $unseen, 'the publisher goes on');
$p->quit;
$publisher->stop;

# With the leases: they hold, and tokens go on upwards by themselves.
my $s = LeaseTest::Session->new($subscriber, dbname => 'with_state');
is($s->query_ok('SELECT moved FROM lease_lock.token_state'), 't', 'with state: token_state tells that tokens will jump');
cmp_ok(my $first = $s->query_ok(q(SELECT lease_lock.acquire('brand new', 'B', ttl => '1 h'))), '>', $unseen,
	'with state: the first token is above all of the publisher, for a name that it never knew');
like($s->query_ok('SELECT jump_reason FROM lease_lock.token_state'), qr/^restored/, 'with state: token_state tells why');
is($s->query_ok("SELECT state FROM lease_lock.token_status('job', $token{job})"), 'held', 'with state: leases are in force');
isnt($s->query_ok("SELECT lease_lock.renew('job', $token{job})"), '', 'with state: and can be renewed');
is($s->query_ok(q(SELECT lease_lock.try_acquire('job', 'B'))), '', 'with state: others are kept out');
$s->query_ok("BEGIN; SELECT lease_lock.present('job', $token{job}); INSERT INTO account VALUES (10, 'x'); COMMIT");
cmp_ok($s->query_ok("SELECT lease_lock.acquire('job', 'A', ttl => '1 h')"), '>', $first, 'with state: a takeover gets a larger token');
$s->query_ok("BEGIN; SELECT lease_lock.present('job', $token{job})");
refused_with($s, q(INSERT INTO account VALUES (11, 'x')), 'LL001', 'with state: the old one is stale then');
$s->query('ROLLBACK');
$s->query_ok("BEGIN; SELECT lease_lock.present('log', $token{log} - 1)");
refused_with($s, q(INSERT INTO log VALUES (11, 'x')), 'LL001', 'with state: and the fences refuse what they refused there');
$s->query('ROLLBACK');
$s->quit;

# Without them nothing in the database knows of the publisher: the operator says.
$s = LeaseTest::Session->new($subscriber, dbname => 'rows_only');
is($s->query_ok('SELECT last_token, moved FROM lease_lock.token_state'), '0|f', 'rows only: nothing is known of the publisher');
$s->query_ok("BEGIN; SELECT lease_lock.present('job', $token{job})");
refused_with($s, q(INSERT INTO account VALUES (12, 'x')), 'LL004', 'rows only: a token of the publisher is unknown in mode held');
$s->query('ROLLBACK');
$s->query_ok("SELECT lease_lock.raise_token($last)");
$first = $s->query_ok(q(SELECT lease_lock.acquire('log', 'B', ttl => '1 h')));
is($first, $last + 1, 'rows only: after raise_token tokens go on from there');
$s->query_ok("BEGIN; SELECT lease_lock.present('log', $token{log})");
refused_with($s, q(INSERT INTO log VALUES (12, 'x')), 'LL001', 'rows only: a token of the publisher is stale');
$s->query('ROLLBACK');
$s->query_ok("BEGIN; SELECT lease_lock.present('log', $first); INSERT INTO log VALUES (12, 'x'); COMMIT");
is($s->query_ok($fence), "log|$first", 'rows only: and the fence goes on from the new one');
# The publisher is lost and nobody knows how far it came: the clock does.
cmp_ok($s->query_ok(q(SELECT lease_lock.raise_token(((extract(epoch FROM now()) - 1767225600)::bigint << 24)))), '>', $unseen + 1000000, 'rows only: or from the clock');
refused_with($s, q(INSERT INTO item VALUES (12, 'x')), 'LL002', 'rows only: guards guard');
$s->quit;

#
# Sequences that were set back, or never came.
#
$s = LeaseTest::Session->new($subscriber, dbname => 'with_state');
my $highest = $s->query_ok('SELECT max(version) FROM lease_lock.lease');
$s->query_ok(q(SELECT setval('lease_lock.token_seq', 1)));
cmp_ok($s->query_ok(q(SELECT lease_lock.acquire('brand new', 'B', ttl => '1 h'))), '>', $highest, 'a sequence that is set back: a known name finds out');
cmp_ok($s->query_ok(q(SELECT lease_lock.acquire('another', 'B', ttl => '1 h'))), '>', $highest + 1, 'and after it all names go on above all that is known');
$s->quit;

$subscriber->stop;
done_testing();
