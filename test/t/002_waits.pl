# Waits end on time: acquire honours its wait, lock_timeout, statement_timeout,
# cancel and terminate, whatever it waits for, and leaves nothing behind.

use strict;
use warnings;

use FindBin;
use lib $FindBin::Bin;

use LeaseTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep);

# A wait for a transaction comes in slices, which deadlock_timeout bounds from
# below; they must end with the caller's time all the same.
# Nobody is evicted, so that the waits last.
my $node = lease_server('main', qq(deadlock_timeout = 2min\nlease_lock.evict_after = -1));
my $dba = LeaseTest::Session->new($node);

$dba->query_ok(q(
CREATE TABLE account (id int PRIMARY KEY, balance int);
INSERT INTO account VALUES (1, 0);
SELECT lease_lock.guard('account', 'guarded');
CREATE TABLE note (line text);
));

# How much later than its time a wait may end on a busy machine.
my $late = 5;

# Locks of lease_lock's that a backend holds or asks for, of all its classes.
my $ours = q(locktype = 'advisory' AND objsubid BETWEEN 19 AND 25);

sub nothing_left
{
	my ($pid, $what) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is($dba->query_ok("SELECT count(*) FROM pg_locks WHERE pid = $pid AND $ours"), '0', "$what: no lock is left");
	is($dba->query_ok('SELECT count(*) FROM lease_lock.waiters'), '0', "$what: nobody stands in line");
	return;
}

sub wait_until_waiting
{
	my ($resource, $n) = @_;

	return wait_true($dba, "SELECT sum(waiters) = $n FROM lease_lock.holders WHERE resource = '$resource'");
}

#
# Four things to wait for.
#
my $holder = LeaseTest::Session->new($node);
my $granter = LeaseTest::Session->new($node);
my $writer = LeaseTest::Session->new($node);

my %token;
$token{live} = $holder->query_ok(q(SELECT lease_lock.acquire('live', 'holder of live', ttl => '1 h')));

# With a committed grant before it, so that there is a holder to be named.
$token{granted} = $holder->query_ok(q(SELECT lease_lock.acquire('granted', 'holder of granted', ttl => '1 ms')));
$granter->query_ok(q(BEGIN; SELECT lease_lock.acquire('granted', 'granter', ttl => '1 h')));

$token{guarded} = $writer->query_ok(q(SELECT lease_lock.acquire('guarded', 'holder of guarded', ttl => '500 ms')));
$writer->query_ok("BEGIN; SELECT lease_lock.present('guarded', $token{guarded}); UPDATE account SET balance = 1");
ok(wait_true($dba, q(SELECT state = 'expired' FROM lease_lock.holders WHERE resource = 'guarded')),
	'a lease expires under a guarded write');

$token{cooldown} = $holder->query_ok(q(SELECT lease_lock.acquire('cooldown', 'holder of cooldown', ttl => '1 h')));
$holder->query_ok("SELECT lease_lock.release('cooldown', $token{cooldown}, cooldown => '1 h')");

my %kind = (
	live => 'a live lease',
	granted => 'an uncommitted grant',
	guarded => 'a guarded write in flight',
	cooldown => 'a cooldown');

foreach my $resource (sort keys %kind)
{
	my $what = $kind{$resource};
	my %waiter = map { $_ => LeaseTest::Session->new($node) } qw(wait lock statement cancel terminate long);
	my $acquire = "SELECT lease_lock.acquire('$resource', 'waiter', wait => '%s')";

	# The long one is asked for its time at once, and waits among the others.
	$waiter{lock}->query_ok(q(SET lock_timeout = '400 ms'));
	$waiter{statement}->query_ok(q(SET statement_timeout = '400 ms'));
	$waiter{long}->query_ok(q(SET lock_timeout = '1 h'));
	$waiter{wait}->send(sprintf($acquire, '400 ms'));
	$waiter{lock}->send(sprintf($acquire, '1 h'));
	$waiter{statement}->send(sprintf($acquire, '1 h'));
	$waiter{cancel}->send(sprintf($acquire, '1 h'));
	$waiter{terminate}->send(sprintf($acquire, '1 h'));
	$waiter{long}->send(sprintf($acquire, '900 ms'));

	foreach my $limit (qw(wait lock statement long))
	{
		my $seconds = $limit eq 'long' ? 0.9 : 0.4;

		$waiter{$limit}->result;
		is($waiter{$limit}->state, $limit eq 'statement' ? '57014' : '55P03', "$what: SQLSTATE when $limit ends the wait")
			or diag($waiter{$limit}->errors);
		cmp_ok($waiter{$limit}->elapsed, '>=', $seconds - 0.01, "$what: $limit does not end it too soon");
		cmp_ok($waiter{$limit}->elapsed, '<', $seconds + $late, "$what: $limit ends it on time");
	}
	like($waiter{wait}->errors, qr/could not acquire the lease on resource "$resource" within 400 ms/, "$what: the message says what and how long");
	like($waiter{wait}->detail, qr/"holder of $resource".*token $token{$resource}\b.*20\d\d-/,
		"$what: the detail names holder, token and expiry");
	like($waiter{wait}->errors, qr/^HINT: /m, "$what: there is a hint");

	ok(!$waiter{cancel}->ready, "$what: who was not timed out still waits");
	ok(!$waiter{terminate}->ready, "$what: and so does another");
	my ($cancel, $terminate) = map { $waiter{$_}->pid } qw(cancel terminate);
	$dba->query_ok("SELECT pg_cancel_backend($cancel), pg_terminate_backend($terminate)");
	$waiter{cancel}->result;
	is($waiter{cancel}->state, '57014', "$what: SQLSTATE of a cancelled wait");
	$waiter{terminate}->result;
	is($waiter{terminate}->state, '57P01', "$what: SQLSTATE of a terminated wait");
	ok(wait_true($dba, "SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = $terminate"), "$what: the terminated backend has gone");
	nothing_left($_->pid, $what) foreach map { $waiter{$_} } qw(wait lock statement cancel terminate);

	# No wait: as try_acquire, with an error.
	my $none = $waiter{wait};
	$none->query(sprintf($acquire, '0'));
	is($none->state, '55P03', "$what: wait => 0 raises at once");
	like($none->detail, qr/"holder of $resource".*token $token{$resource}\b/, "$what: and names the holder");
	cmp_ok($none->elapsed, '<', $late, "$what: and does not wait");
	is($none->query_ok("SELECT lease_lock.try_acquire('$resource', 'waiter')"), '', "$what: try_acquire gives NULL");
	cmp_ok($none->elapsed, '<', $late, "$what: and does not wait either");

	# A savepoint takes it all back.
	$none->query_ok("BEGIN; INSERT INTO note VALUES ('$resource'); SAVEPOINT s");
	refused_with($none, sprintf($acquire, '50 ms'), '55P03', "$what: an error in a savepoint");
	$none->query_ok('ROLLBACK TO s; RELEASE s');
	nothing_left($none->pid, "$what, rolled back to a savepoint");
	$none->query_ok('COMMIT');
	is($none->query_ok("SELECT count(*) FROM note WHERE line = '$resource'"), '1', "$what: the transaction goes on after ROLLBACK TO");

	# So does an exception block, at any depth, and one that is told to catch
	# a cancel.
	$none->query_ok("BEGIN; SET LOCAL lock_timeout = '5 min'");
	$none->query_ok(qq(DO \$\$
DECLARE
	caught int := 0;
BEGIN
	FOR i IN 1..3 LOOP
		BEGIN
			INSERT INTO note VALUES ('outer');
			BEGIN
				INSERT INTO note VALUES ('inner');
				PERFORM lease_lock.acquire('$resource', 'waiter', wait => '60 ms');
			EXCEPTION WHEN lock_not_available THEN
				caught := caught + 1;
			END;
			RAISE division_by_zero;
		EXCEPTION WHEN division_by_zero THEN
			INSERT INTO note VALUES ('caught $resource ' || caught || ' ' || current_setting('lock_timeout'));
		END;
	END LOOP;
END \$\$));
	nothing_left($none->pid, "$what, caught");
	$none->query_ok('COMMIT');
	is($none->query_ok("SELECT string_agg(line, ', ' ORDER BY line) FROM note WHERE line LIKE 'caught $resource%'"),
		"caught $resource 1 5min, caught $resource 2 5min, caught $resource 3 5min",
		"$what: exception blocks nest, and lock_timeout is as it was");
	is($none->query_ok(q(SELECT count(*) FROM note WHERE line IN ('outer', 'inner'))), '0', "$what: nothing of the blocks stays");

	$none->send(qq(DO \$\$
BEGIN
	PERFORM lease_lock.acquire('$resource', 'waiter', wait => '1 h');
EXCEPTION WHEN query_canceled THEN
	INSERT INTO note VALUES ('cancelled $resource');
END \$\$));
	ok(wait_true($dba, 'SELECT count(*) = 1 FROM lease_lock.waiters WHERE pid = ' . $none->pid), "$what: a block waits");
	$dba->query_ok('SELECT pg_cancel_backend(' . $none->pid . ')');
	$none->result;
	is($none->state, '', "$what: a caught cancel leaves the transaction usable");
	is($none->query_ok("SELECT count(*) FROM note WHERE line = 'cancelled $resource'"), '1', "$what: and it commits");
	$_->quit foreach values %waiter;
}

#
# A hundred cancels.
#
my $waiter = LeaseTest::Session->new($node);
my $pid = $waiter->pid;
my %states;
my @resources = sort keys %kind;
foreach my $i (0 .. 99)
{
	my $resource = $resources[ $i % @resources ];

	$waiter->query_ok('BEGIN') if $i % 3 == 0;
	$waiter->send("SELECT lease_lock.acquire('$resource', 'waiter', wait => '1 h')");
	wait_true($dba, "SELECT count(*) = 1 FROM lease_lock.waiters WHERE pid = $pid") or last;
	$dba->query_ok("SELECT pg_cancel_backend($pid)");
	$waiter->result;
	$states{ $waiter->state }++;
	$waiter->query('ROLLBACK') if $i % 3 == 0;
}
is_deeply(\%states, { '57014' => 100 }, 'a hundred cancelled waits end with the right SQLSTATE');
nothing_left($pid, 'a hundred cancels');
is($dba->query_ok(q(SELECT count(*) FROM lease_lock.holders WHERE owner = 'waiter')), '0', 'none of them was granted');

# A grant that has been written and waits for a write in flight of its own
# owner's earlier self, cancelled: the earlier grant is in force again.
my $again = $holder->query_ok(q(SELECT lease_lock.acquire('again', 'restarted', ttl => '1 h')));
$holder->query_ok("BEGIN; SELECT lease_lock.assert_held('again', $again)");
$waiter->send(q(SELECT lease_lock.acquire('again', 'restarted', ttl => '1 h', wait => '1 h')));
ok(wait_true($dba, "SELECT count(*) = 1 FROM pg_locks WHERE NOT granted AND pid = $pid"), 'a restarted worker waits for its earlier self');
$dba->query_ok("SELECT pg_cancel_backend($pid)");
$waiter->result;
is($waiter->state, '57014', 'cancelled');
nothing_left($pid, 'cancelled takeover');
refused_with($waiter, q(SELECT lease_lock.acquire('again', 'restarted', wait => '300 ms')), '55P03', 'its time is up');
$holder->query_ok('COMMIT');
is($holder->query_ok("SELECT state FROM lease_lock.token_status('again', $again)"), 'held', 'the earlier grant is in force');
cmp_ok($waiter->query_ok(q(SELECT lease_lock.acquire('again', 'restarted', wait => '1 h'))), '>', $again, 'and then it is granted');

#
# Twenty sessions, half of them under lock_timeout and half under statement_timeout.
#
my @crowd = map { LeaseTest::Session->new($node) } 1 .. 20;
foreach my $i (0 .. $#crowd)
{
	$crowd[$i]->query_ok($i % 2 ? q(SET lock_timeout = '500 ms') : q(SET statement_timeout = '1 s'));
}
$_->send(q(SELECT lease_lock.acquire('live', 'one of twenty', wait => '30 s'))) foreach @crowd;
%states = ();
my $slowest = 0;
foreach my $i (0 .. $#crowd)
{
	$crowd[$i]->result;
	$states{ ($i % 2 ? 'lock ' : 'statement ') . $crowd[$i]->state }++;
	$slowest = $crowd[$i]->elapsed if $crowd[$i]->elapsed > $slowest;
}
is_deeply(\%states, { 'lock 55P03' => 10, 'statement 57014' => 10 }, 'twenty waits end with the right SQLSTATE');
cmp_ok($slowest, '<', 1 + $late, 'and on time');
is($dba->query_ok('SELECT count(*) FROM lease_lock.waiters'), '0', 'and leave nothing behind');
$_->quit foreach @crowd;

#
# Waits that end well.
#
$dba->query_ok(q(SELECT lease_lock.acquire('soon', 'holder', ttl => '700 ms')));
$waiter->query_ok(q(SELECT lease_lock.acquire('soon', 'waiter', wait => '30 s')));
cmp_ok($waiter->elapsed, '<', 0.7 + $late, 'a lease that expires is granted to a waiter soon after');
is($dba->query_ok(q(SELECT owner FROM lease_lock.holders WHERE resource = 'soon')), 'waiter', 'it holds the lease');

my $released = $dba->query_ok(q(SELECT lease_lock.acquire('later', 'holder', ttl => '1 h')));
$waiter->send(q(SELECT lease_lock.acquire('later', 'waiter', wait => '30 s')));
ok(wait_until_waiting('later', 1), 'a waiter is counted in holders');
$dba->query_ok("SELECT lease_lock.release('later', $released)");
$waiter->result;
is($waiter->state, '', 'a release lets a waiter in');
cmp_ok($waiter->elapsed, '<', $late, 'soon');

$granter->query_ok('ROLLBACK');
cmp_ok($dba->query_ok(q(SELECT lease_lock.acquire('granted', 'waiter', wait => '0'))), '>', $token{granted},
	'a grant that was rolled back is nobody\'s, and wait => 0 grants what is free');
$writer->query_ok('COMMIT');
cmp_ok($dba->query_ok(q(SELECT lease_lock.acquire('guarded', 'waiter', wait => '0'))), '>', $token{guarded},
	'so it does when the write in flight has ended');

# The wait has a default, which is finite.
$waiter->query_ok(q(SET lease_lock.default_wait = '200 ms'));
refused_with($waiter, q(SELECT lease_lock.acquire('live', 'waiter')), '55P03', 'lease_lock.default_wait bounds a wait');
like($waiter->errors, qr/within 200 ms/, 'and is named');

#
# A lease outlives the session of its holder.
#
my $idler = LeaseTest::Session->new($node);
$idler->query_ok(q(SET idle_in_transaction_session_timeout = '300 ms'));
my $kept = $idler->query_ok(q(SELECT lease_lock.acquire('kept', 'idler', ttl => '1 h')));
$idler->query_ok('BEGIN');
ok(wait_true($dba, 'SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = ' . $idler->pid), 'the holder\'s session is ended while it idles');
is($dba->query_ok("SELECT state FROM lease_lock.token_status('kept', $kept)"), 'held', 'its lease is still held');
isnt($dba->query_ok("SELECT lease_lock.renew('kept', $kept)"), '', 'and can be renewed from another session');
$idler->quit;

#
# The other calls that can wait: renew and release for an open transaction that
# itself renewed, and a guarded write for an uncommitted grant.
#
my $renewed = $holder->query_ok(q(SELECT lease_lock.acquire('renewed', 'holder', ttl => '1 h')));
$holder->query_ok("BEGIN; SELECT lease_lock.renew('renewed', $renewed)");
$granter->query_ok(q(BEGIN; SELECT lease_lock.acquire('guarded 2', 'granter', ttl => '1 h')));
$dba->query_ok(q(SELECT lease_lock.unguard('account'); SELECT lease_lock.guard('account', 'guarded 2')));
my %calls = (
	renew => "SELECT lease_lock.renew('renewed', $renewed)",
	release => "SELECT lease_lock.release('renewed', $renewed)",
	'a guarded write' => "BEGIN; SELECT lease_lock.present('guarded 2', 1000000); UPDATE account SET balance = 2");
foreach my $call (sort keys %calls)
{
	$waiter->query_ok(q(SET lock_timeout = '300 ms'; SET statement_timeout = 0));
	refused_with($waiter, $calls{$call}, '55P03', "$call: lock_timeout ends a wait");
	cmp_ok($waiter->elapsed, '<', 0.3 + $late, "$call: on time");
	nothing_left($pid, $call);
	$waiter->query('ROLLBACK');
	$waiter->query_ok(q(SET lock_timeout = 0; SET statement_timeout = '300 ms'));
	refused_with($waiter, $calls{$call}, '57014', "$call: statement_timeout ends a wait");
	$waiter->query('ROLLBACK');
	$waiter->query_ok(q(SET statement_timeout = 0));
	$waiter->send($calls{$call});
	ok(wait_true($dba, "SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = $pid"), "$call: it waits");
	$dba->query_ok("SELECT pg_cancel_backend($pid)");
	$waiter->result;
	is($waiter->state, '57014', "$call: a cancel ends a wait");
	$waiter->query('ROLLBACK');
}
$_->query_ok('ROLLBACK') foreach ($holder, $granter);
is($holder->query_ok("SELECT lease_lock.release('renewed', $renewed)"), 't', 'the lease is as it was');

$_->quit foreach ($dba, $holder, $granter, $writer, $waiter);
$node->stop;
done_testing();
