# PREPARE TRANSACTION keeps what a transaction has acquired, written under a
# guard and presented, through a restart of the server too.

use strict;
use warnings;

use FindBin;
use lib $FindBin::Bin;

use LeaseTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = lease_server('main');
my ($s1, $s2);

sub connect_both
{
	$_->quit foreach grep { defined } ($s1, $s2);
	$s1 = LeaseTest::Session->new($node);
	$s2 = LeaseTest::Session->new($node);
	return;
}

connect_both();
$s1->query_ok(q(
CREATE TABLE account (id int PRIMARY KEY, token bigint);
CREATE TABLE log (id int PRIMARY KEY, token bigint);
SELECT lease_lock.guard('account', 'job');
SELECT lease_lock.guard('log', 'log', mode => 'newest');
));

foreach my $restart (0, 1)
{
	foreach my $end ('COMMIT', 'ROLLBACK')
	{
		my $what = "$end PREPARED" . ($restart ? ' after a restart' : '');
		my $name = lc "$end $restart";

		#
		# A grant.
		#
		my $token = $s1->query_ok("BEGIN; SELECT lease_lock.acquire('$name', 'A', ttl => '1 h')");
		$s1->query_ok("PREPARE TRANSACTION 'grant'");
		if ($restart)
		{
			$node->restart;
			connect_both();
		}
		is($s2->query_ok("SELECT owner, token, state, pid IS NULL FROM lease_lock.holders WHERE resource = '$name'"),
			"A|$token|prepared|t", "$what: holders shows a prepared grant");
		is($s2->query_ok("SELECT lease_lock.try_acquire('$name', 'B')"), '', "$what: try_acquire gives NULL beside it");
		refused_with($s2, "SELECT lease_lock.acquire('$name', 'B', wait => '200 ms')", '55P03', "$what: acquire waits its time");
		is($s2->query_ok("SELECT state FROM lease_lock.token_status('$name', $token)"), 'unknown', "$what: the token does not count yet");
		$s2->send("SELECT lease_lock.acquire('$name', 'B', ttl => '1 h', wait => '60 s')") if $end eq 'ROLLBACK';
		ok(wait_true($s1, q(SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = ) . $s2->pid), "$what: acquire waits for its end")
		  if $end eq 'ROLLBACK';
		$s1->query_ok("$end PREPARED 'grant'");
		if ($end eq 'COMMIT')
		{
			is($s2->query_ok("SELECT owner, token, state FROM lease_lock.holders WHERE resource = '$name'"), "A|$token|held", "$what: then it is held");
			isnt($s2->query_ok("SELECT lease_lock.renew('$name', $token)"), '', "$what: and can be renewed");
		}
		else
		{
			cmp_ok($s2->result, '>', $token, "$what: then the next is granted, with a larger token");
			is($s2->query_ok("SELECT lease_lock.release('$name', $token)"), 'f', "$what: the prepared token is nobody's");
		}

		#
		# A guarded write.
		#
		my $job = $s1->query_ok(q(SELECT lease_lock.acquire('job', 'A', ttl => '500 ms', wait => '60 s')));
		$s1->query_ok("BEGIN; SELECT lease_lock.present('job', $job); INSERT INTO account VALUES ($job, $job); PREPARE TRANSACTION 'write'");
		$s1->query_ok("BEGIN; SELECT lease_lock.present('log', 1000 + $job); INSERT INTO log VALUES ($job, $job); PREPARE TRANSACTION 'newest'");
		if ($restart)
		{
			$node->restart;
			connect_both();
		}
		ok(wait_true($s2, q(SELECT state = 'expired' FROM lease_lock.holders WHERE resource = 'job')), "$what: the lease expires");
		is($s2->query_ok(q(SELECT lease_lock.try_acquire('job', 'B'))), '', "$what: a prepared write keeps others out");
		refused_with($s2, q(SELECT lease_lock.acquire('job', 'B', wait => '200 ms')), '55P03', "$what: acquire waits its time for it");
		$s2->query_ok("BEGIN; SELECT lease_lock.present('log', 1001 + $job); SET LOCAL lock_timeout = '200 ms'");
		refused_with($s2, 'INSERT INTO log VALUES (0, 0)', '55P03', "$what: a newer token waits for a prepared older one");
		$s2->query('ROLLBACK');
		$s2->send(q(SELECT lease_lock.acquire('job', 'B', ttl => '1 ms', wait => '60 s')));
		ok(wait_true($s1, q(SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = ) . $s2->pid), "$what: acquire waits for it");
		$s1->query_ok("$end PREPARED 'write'");
		cmp_ok($s2->result, '>', $job, "$what: then it is granted");
		is($s1->query_ok("SELECT count(*) FROM account WHERE token = $job"), $end eq 'COMMIT' ? '1' : '0', "$what: the write came first");
		$s1->query_ok("$end PREPARED 'newest'");
		is($s1->query_ok(q(SELECT coalesce(max(highest), 0) FROM lease_lock.fences WHERE name = 'log' AND highest = 1000 + ) . $job),
			$end eq 'COMMIT' ? 1000 + $job : '0', "$what: the fence has risen, or not");

		#
		# A renewal and a release.
		#
		my $kept = $s1->query_ok("SELECT lease_lock.acquire('kept $name', 'A', ttl => '1 h')");
		my $left = $s1->query_ok("SELECT lease_lock.acquire('left $name', 'A', ttl => '1 h')");
		$s1->query_ok("BEGIN; SELECT lease_lock.renew('kept $name', $kept, '2 h'); SELECT lease_lock.release('left $name', $left); PREPARE TRANSACTION 'change'");
		if ($restart)
		{
			$node->restart;
			connect_both();
		}
		is($s2->query_ok("SELECT string_agg(state, ' ') FROM lease_lock.holders WHERE resource IN ('kept $name', 'left $name')"), 'held held',
			"$what: a prepared renewal or release does not count yet");
		is($s2->query_ok("SELECT lease_lock.try_acquire('left $name', 'B')"), '', "$what: nor is the lease free");
		$s1->query_ok("$end PREPARED 'change'");
		is($s2->query_ok("SELECT (lease_lock.token_status('kept $name', $kept)).remaining > '90 min', (lease_lock.token_status('left $name', $left)).state"),
			$end eq 'COMMIT' ? 't|released' : 'f|held', "$what: then it does, or not");
	}
}

#
# A lease of scope 'transaction' lives as long as the prepared transaction.
#
my $scoped = $s1->query_ok(q(BEGIN; SELECT lease_lock.acquire('scoped', 'A', ttl => '1 h', scope => 'transaction')));
$s1->query_ok(q(PREPARE TRANSACTION 'scoped'));
$node->restart;
connect_both();
is($s2->query_ok(q(SELECT token, scope, state FROM lease_lock.holders WHERE resource = 'scoped')), "$scoped|transaction|prepared", 'scope transaction, prepared');
is($s2->query_ok(q(SELECT lease_lock.try_acquire('scoped', 'B'))), '', 'keeps others out');
$s1->query_ok(q(COMMIT PREPARED 'scoped'));
is($s2->query_ok(q(SELECT count(*) FROM lease_lock.holders WHERE resource = 'scoped')), '0', 'and ends with it');
cmp_ok($s2->query_ok(q(SELECT lease_lock.try_acquire('scoped', 'B'))), '>', $scoped, 'the next is granted');

#
# What was presented ends with the transaction, also when it was only prepared.
#
my $presented = $s1->query_ok(q(SELECT lease_lock.acquire('job', 'A', ttl => '1 h', wait => '60 s')));
$s1->query_ok("BEGIN; SELECT lease_lock.present('job', $presented); INSERT INTO account VALUES (-1, 0); PREPARE TRANSACTION 'presented'");
refused_with($s1, 'INSERT INTO account VALUES (-2, 0)', 'LL002', 'after PREPARE the session presents nothing');
isnt($s1->query_ok("SELECT lease_lock.renew('job', $presented)"), '', 'a prepared write is not in the way of a renewal');
$s1->query_ok("BEGIN; SELECT lease_lock.present('job', $presented); INSERT INTO account VALUES (-3, 0); COMMIT");
is($s2->query_ok(q(SELECT count(*) FROM account WHERE id = -3)), '1', 'nor of another write under the same token');
$s1->query_ok(q(COMMIT PREPARED 'presented'));

# A forced release waits for a prepared write no longer than its time, and says
# that it cannot end it.
$s1->query_ok("BEGIN; SELECT lease_lock.assert_held('job', $presented); PREPARE TRANSACTION 'asserted'");
$s2->query_ok(q(SET lease_lock.default_wait = '300 ms'));
refused_with($s2, q(SELECT lease_lock.force_release('job', 'a test', terminate => true)), '55P03', 'force_release waits for a prepared transaction');
like($s2->errors, qr/HINT:.*PREPARED/, 'and the hint says how to end it');
is($s2->query_ok("SELECT state FROM lease_lock.token_status('job', $presented)"), 'held', 'the lease is as it was');
$s1->query_ok(q(ROLLBACK PREPARED 'asserted'));
is($s2->query_ok(q(SELECT lease_lock.force_release('job', 'a test'))), $presented, 'then it is released');

is($s1->query_ok('SELECT count(*) FROM pg_prepared_xacts'), '0', 'no prepared transaction is left');
is($s1->query_ok(q(SELECT count(*) FROM pg_locks WHERE locktype = 'advisory')), '0', 'and no lock');
$_->quit foreach ($s1, $s2);
$node->stop;
done_testing();
