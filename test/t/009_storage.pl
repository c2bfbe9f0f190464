# The lease table stays small: who is refused writes nothing, a renewal is a
# HOT update, and a transaction can acquire any number of leases under default
# settings.  Removing rows, in whatever way, never takes a token back.

use strict;
use warnings;

use FindBin;
use lib $FindBin::Bin;

use LeaseTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

# The defaults of PostgreSQL where they bound something here.
my $node = lease_server('main', q(
max_connections = 100
max_locks_per_transaction = 64
max_prepared_transactions = 0
));
my $s1 = LeaseTest::Session->new($node);
my $s2 = LeaseTest::Session->new($node);

$s1->query_ok(q(
CREATE VIEW lease_stat AS SELECT pg_stat_get_tuples_inserted(c.oid) AS ins, pg_stat_get_tuples_updated(c.oid) AS upd,
	pg_stat_get_tuples_hot_updated(c.oid) AS hot, pg_stat_get_dead_tuples(c.oid) AS dead, pg_relation_size(c.oid) AS size
	FROM pg_class c WHERE c.oid = 'lease_lock.lease'::regclass;
CREATE PROCEDURE renew_often(name text, token bigint, times int) LANGUAGE plpgsql
AS $$ BEGIN
	FOR i IN 1..times LOOP
		IF lease_lock.renew(name, token) IS NULL THEN
			RAISE 'not renewed';
		END IF;
		COMMIT;
	END LOOP;
END $$;
));

# The statistics of a session count once it has ended.
sub stats
{
	my ($columns) = @_;
	my $out;

	foreach my $session ($s1, $s2)
	{
		$session->quit;
		my $pid = $session->pid;
		$node->poll_query_until('postgres', "SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = $pid") or die "backend $pid stays";
	}
	$out = $node->safe_psql('postgres', "SELECT $columns FROM lease_stat");
	$s1 = LeaseTest::Session->new($node);
	$s2 = LeaseTest::Session->new($node);
	return $out;
}

#
# 10,000 refusals.
#
$s1->query_ok(q(SELECT lease_lock.acquire('busy', 'A', ttl => '1 h')));
my $before = stats('ins, upd, dead, size');
my $next_xid = $s2->query_ok('SELECT pg_snapshot_xmax(pg_current_snapshot())');
$s1->query_ok('BEGIN');
is($s1->query_ok(q(SELECT count(lease_lock.try_acquire('busy', 'B')) FROM generate_series(1, 10000))), '0', '10,000 failed try_acquire');
is($s1->query_ok('SELECT pg_current_xact_id_if_assigned() IS NULL'), 't', 'take no transaction id');
$s1->query_ok('COMMIT');
is($s2->query_ok(q(SELECT count(*) FROM pg_locks WHERE locktype = 'advisory')), '0', 'and leave no lock');
is($s2->query_ok('SELECT pg_snapshot_xmax(pg_current_snapshot())'), $next_xid, 'none was taken by anything in them');
is(stats('ins, upd, dead, size'), $before, 'they write nothing');

#
# Renewals, with and without an old snapshot in the way.
#
$s1->query_ok(q(CHECKPOINT; SELECT count(lease_lock.acquire('renewed/' || i, 'A', ttl => '1 h')) FROM generate_series(1, 20) AS i));
my ($updated, $hot, $size) = split /\|/, stats('upd, hot, size');
my $token = $s1->query_ok(q(SELECT token FROM lease_lock.holders WHERE resource = 'renewed/7'));
$s1->query_ok("CALL renew_often('renewed/7', $token, 10000)");
my ($updated_2, $hot_2, $size_2) = split /\|/, stats('upd, hot, size');
is($updated_2 - $updated, 10000, '10,000 renewals');
cmp_ok(($hot_2 - $hot) / ($updated_2 - $updated), '>', 0.99, 'are HOT');
cmp_ok($size_2, '<=', 2 * $size, 'and the table stays at most twice its size');
my $row = $s1->query_ok('SELECT pg_relation_size(\'lease_lock.lease_pkey\')');
cmp_ok($row, '<=', 65536, 'and the index small');

# Many leases, on pages that their rows fill as far as they ever do.
$s1->query_ok(q(SELECT count(lease_lock.acquire('full/' || i, 'A', ttl => '1 h')) FROM generate_series(1, 2000) AS i));
($updated, $hot, $size) = split /\|/, stats('upd, hot, size');
$s1->query_ok(q(DO $$
DECLARE
	names text[] := (SELECT array_agg(resource ORDER BY token) FROM lease_lock.holders WHERE resource LIKE 'full/%');
	tokens bigint[] := (SELECT array_agg(token ORDER BY token) FROM lease_lock.holders WHERE resource LIKE 'full/%');
BEGIN
	FOR i IN 1..6000 LOOP
		PERFORM lease_lock.renew(names[1 + i % 2000], tokens[1 + i % 2000]);
		COMMIT;
	END LOOP;
END $$));
($updated_2, $hot_2, $size_2) = split /\|/, stats('upd, hot, size');
is($updated_2 - $updated, 6000, '6,000 renewals of 2,000 leases');
cmp_ok(($hot_2 - $hot) / ($updated_2 - $updated), '>', 0.99, 'are HOT as well');
cmp_ok($size_2, '<=', 2 * $size, 'and the table stays at most twice its size');

# With acquire, release and takeover the same.
($updated, $hot, $size) = split /\|/, stats('upd, hot, size');
$s1->query_ok(q(DO $$ BEGIN
	FOR i IN 1..3000 LOOP
		PERFORM lease_lock.release('renewed/8', lease_lock.acquire('renewed/8', 'A', ttl => '1 h'));
		COMMIT;
	END LOOP;
END $$));
($updated_2, $hot_2, $size_2) = split /\|/, stats('upd, hot, size');
is($updated_2 - $updated, 6000, '3,000 grants and releases');
cmp_ok(($hot_2 - $hot) / ($updated_2 - $updated), '>', 0.98, 'are HOT');
cmp_ok($size_2, '<=', 2 * $size + 8192, 'and the table stays small');

#
# 100,000 grants in one transaction.
#
$s1->query_ok('BEGIN');
is($s1->query_ok(q(SELECT count(lease_lock.acquire('many/' || i, 'A', ttl => '1 h')) FROM generate_series(1, 100000) AS i)), '100000',
	'100,000 grants in one transaction');
cmp_ok($s2->query_ok('SELECT count(*) FROM pg_locks WHERE pid = ' . $s1->pid), '<', 100, 'take few locks');
is($s2->query_ok(q(SELECT lease_lock.try_acquire('many/99999', 'B'))), '', 'and exclude others');
is($s1->query_ok(q(SELECT count(lease_lock.release('many/' || i, token)) FROM (SELECT split_part(resource, '/', 2)::int AS i, token FROM lease_lock.holders
	WHERE resource LIKE 'many/%0000') AS h)), '10', 'some are released again');
$s1->query_ok('COMMIT');
is($s2->query_ok(q(SELECT count(*) FROM lease_lock.holders WHERE resource LIKE 'many/%' AND state = 'held')), '99990', 'all the others are held when it commits');
$s1->query_ok('BEGIN');
$s1->query_ok(q(SELECT count(lease_lock.try_acquire('many more/' || i, 'A', ttl => '1 h')) FROM generate_series(1, 100000) AS i));
$s1->query_ok('ROLLBACK');
is($s2->query_ok(q(SELECT count(*) FROM lease_lock.holders WHERE resource LIKE 'many more/%')), '0', 'and none is when it rolls back');
is($s1->query_ok(q(SELECT count(lease_lock.acquire('many more/' || i, 'B', ttl => '1 h')) FROM generate_series(1, 3) AS i)), '3', 'the names are free');

#
# prune, and a DELETE by hand: tokens go on upwards.
#
my $used = $s1->query_ok(q(SELECT lease_lock.acquire('pruned', 'A', ttl => '1 h')));
is($s1->query_ok("SELECT lease_lock.release('pruned', $used)"), 't', 'released');
my $again = $s1->query_ok(q(SELECT lease_lock.acquire('pruned', 'A', ttl => '1 h')));
cmp_ok($again, '>', $used, 'a released name goes on upwards');
$s1->query_ok("SELECT lease_lock.release('pruned', $again)");
$s1->query_ok(q(SELECT lease_lock.acquire('expired', 'A', ttl => '1 ms')));
ok(wait_true($s1, q(SELECT state = 'expired' FROM lease_lock.holders WHERE resource = 'expired')), 'another expires');
is($s1->query_ok(q(SELECT lease_lock.prune())), '0', 'nothing is idle for a day');
cmp_ok($s1->query_ok(q(SELECT lease_lock.prune('0'))), '>=', 12, 'prune removes what is idle');
is($s1->query_ok(q(SELECT count(*) FROM lease_lock.lease WHERE resource IN ('pruned', 'expired'))), '0', 'it removes released and expired ones');
is($s1->query_ok(q(SELECT count(*) FROM lease_lock.holders WHERE state = 'held')), $s1->query_ok('SELECT count(*) FROM lease_lock.lease'), 'and no live one');
cmp_ok(my $pruned = $s1->query_ok(q(SELECT lease_lock.acquire('pruned', 'B', ttl => '1 h'))), '>', $again, 'a pruned name goes on upwards');
$s1->query_ok(q(DELETE FROM lease_lock.lease WHERE resource = 'pruned'));
cmp_ok($s1->query_ok(q(SELECT lease_lock.acquire('pruned', 'C', ttl => '1 h'))), '>', $pruned, 'so does one that was deleted by hand');
$s1->query_ok(q(TRUNCATE lease_lock.lease));
cmp_ok($s1->query_ok(q(SELECT lease_lock.acquire('pruned', 'D', ttl => '1 h'))), '>', $pruned + 1, 'and after a TRUNCATE');

# A write in flight, a grant in flight and a cooldown are not idle.
$s1->query_ok(q(CREATE TABLE account (id int); SELECT lease_lock.guard('account', 'in flight')));
my $flight = $s1->query_ok(q(SELECT lease_lock.acquire('in flight', 'A', ttl => '400 ms')));
$s1->query_ok("BEGIN; SELECT lease_lock.present('in flight', $flight); INSERT INTO account VALUES (1)");
$s2->query_ok(q(SELECT lease_lock.release('cooling', lease_lock.acquire('cooling', 'A'), cooldown => '1 h')));
$s2->query_ok(q(SELECT lease_lock.release('granted', lease_lock.acquire('granted', 'A'))));
my $s3 = LeaseTest::Session->new($node);
my $granted = $s3->query_ok(q(BEGIN; SELECT lease_lock.acquire('granted', 'B', ttl => '1 h')));
ok(wait_true($s2, q(SELECT state = 'expired' FROM lease_lock.holders WHERE resource = 'in flight')), 'a lease expires under a write');
$s2->query_ok(q(SELECT lease_lock.prune('0')));
cmp_ok($s2->elapsed, '<', 30, 'prune does not wait for transactions in flight');
is($s2->query_ok(q(SELECT string_agg(resource, ' ' ORDER BY resource) FROM lease_lock.lease WHERE resource IN ('cooling', 'granted'))), 'cooling granted',
	'prune leaves a cooldown and an uncommitted grant alone');
$s3->query_ok('COMMIT');
is($s2->query_ok(q(SELECT token FROM lease_lock.holders WHERE resource = 'granted' AND state = 'held')), $granted, 'the grant is held when it commits');
is($s2->query_ok(q(SELECT lease_lock.try_acquire('in flight', 'B'))), '', 'a write in flight keeps others out, pruned or not');
$s1->query_ok('COMMIT');
cmp_ok($s2->query_ok(q(SELECT lease_lock.acquire('in flight', 'B', ttl => '1 h'))), '>', $flight, 'and then the next gets a larger token');
$s1->query_ok("BEGIN; SELECT lease_lock.present('in flight', $flight)");
refused_with($s1, 'INSERT INTO account VALUES (2)', 'LL001', 'and the old one is stale');
$s1->query('COMMIT');

# A fence keeps what it has seen, whatever becomes of the lease.
$s1->query_ok(q(CREATE TABLE log (id int); SELECT lease_lock.guard('log', 'fenced', mode => 'newest')));
$s1->query_ok(q(BEGIN; SELECT lease_lock.present('fenced', 900000000); INSERT INTO log VALUES (1); COMMIT));
cmp_ok($s1->query_ok(q(SELECT lease_lock.acquire('fenced', 'A', ttl => '1 h'))), '>', 900000000, 'a grant goes above what its fence has accepted');
$s1->query_ok(q(DELETE FROM lease_lock.lease));
cmp_ok($s1->query_ok(q(SELECT lease_lock.acquire('fenced', 'B', ttl => '1 h'))), '>', 900000001, 'also when its row is gone');

# At the end of all tokens there is an error, and no way back.
my $last = '9223372036854775807';
$s1->query_ok("SELECT setval('lease_lock.token_seq', $last - 1)");
is($s1->query_ok(q(SELECT lease_lock.acquire('last', 'A', ttl => '1 h'))), $last, 'the largest bigint is the last token');
refused_with($s1, q(SELECT lease_lock.acquire('beyond', 'A', ttl => '1 h')), '2200H', 'after it tokens are used up');
is($s1->query_ok('SELECT min(version) > 0 FROM lease_lock.lease'), 't', 'no token is negative');
is($s1->query_ok("SELECT lease_lock.release('last', $last)"), 't', 'what is held can be released');

$_->quit foreach ($s1, $s2, $s3);
$node->stop;
done_testing();
