# Named advisory locks among several sessions: behind a transaction pooler,
# through the end of sessions, under every kind of timeout, in prepared
# transactions and on a standby.  A lock that outlives the call that failed to
# take it, an orphan that nobody can see, or a presented token that the next
# client of a pooled connection finds, would fail here.

use strict;
use warnings;

use FindBin;
use lib $FindBin::Bin;

use LeaseTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep time);

my $node = lease_server('main', q(
deadlock_timeout = 500ms
restart_after_crash = on
), allows_streaming => 1);
my $dba = LeaseTest::Session->new($node);

# How much later than its time a wait may end on a busy machine.
my $late = 5;

$dba->query_ok(q(
CREATE TABLE account (id int, balance int);
INSERT INTO account VALUES (1, 0);
SELECT lease_lock.guard('account', 'guarded');
));

# What the view says of a name: mode, scope and whether granted of each pid.
sub locks_on
{
	my ($name) = @_;

	return $dba->query_ok("SELECT string_agg(concat_ws(' ', mode, scope, granted, coalesce(pid::text, gid)), ', ' ORDER BY NOT granted, pid)"
		  . " FROM lease_lock.advisory_locks WHERE name = '$name'");
}

sub nothing_left
{
	my ($session, $name, $what) = @_;
	my $pid = $session->pid;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is($dba->query_ok("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = $pid"), '0', "$what: no lock is left");
	is($dba->query_ok("SELECT count(*) FROM lease_lock.advisory_locks WHERE pid = $pid"), '0', "$what: the view shows none");
	return;
}

sub wait_until_waiting
{
	my ($session) = @_;

	return wait_true($dba, 'SELECT count(*) = 1 FROM lease_lock.advisory_locks WHERE NOT granted AND pid = ' . $session->pid);
}

#
# A transaction pooler with two server connections.
#
SKIP:
{
	skip 'there is no pgbouncer', 1 unless LeaseTest::Pool->program;

	my $pool = LeaseTest::Pool->start($node, $dba->query_ok('SELECT current_user'));
	my @pin = map { LeaseTest::Session->new($pool) } 1 .. 2;
	my @client = map { LeaseTest::Session->new($pool) } 1 .. 2;
	my @server = map { $_->query_ok('BEGIN; SELECT pg_backend_pid()') } @pin;
	$_->query_ok('COMMIT') foreach @pin;
	isnt($server[0], $server[1], 'a pooler with two server connections');
	is($dba->query_ok("SELECT count(*) FROM pg_stat_activity WHERE pid IN ($server[0], $server[1])"), '2', 'both are backends of the server');

	# Has a client run SQL on the server connection of that number, by keeping
	# the other one busy meanwhile.
	my $on = sub
	{
		my ($n, $client, $sql) = @_;
		my $busy = $pin[0];

		if ($busy->query_ok('BEGIN; SELECT pg_backend_pid()') == $server[$n])
		{
			$busy = $pin[1];
			$busy->query_ok('BEGIN; SELECT 1');
			$pin[0]->query_ok('COMMIT');
		}
		my $pid = $client->query('SELECT pg_backend_pid()');
		my $out = $client->query($sql);
		my ($errors, $state) = ($client->errors, $client->state);
		$busy->query_ok('COMMIT');
		die "ran on $pid, not $server[$n]" if $pid != $server[$n];
		return wantarray ? ($out, $state, $errors) : $out;
	};

	# Leases do not care which connection they are used on.
	my $token = $on->(0, $client[0], q(SELECT lease_lock.acquire('pooled', 'A', ttl => '1 h')));
	cmp_ok($token, '>', 0, 'pooled: acquire on one connection');
	isnt($on->(1, $client[0], "SELECT lease_lock.renew('pooled', $token, '2 h')"), '', 'pooled: renew on the other');
	is($on->(1, $client[1], q(SELECT lease_lock.try_acquire('pooled', 'B'))), '', 'pooled: somebody else is refused there');
	is($on->(0, $client[1], q(SELECT lease_lock.try_acquire('pooled', 'B'))), '', 'pooled: and on the connection that acquired');
	is($on->(1, $client[0], "SELECT state, remaining > '1 h' FROM lease_lock.token_status('pooled', $token)"), 'held|t', 'pooled: token_status on the other');
	is($on->(1, $client[0], "SELECT lease_lock.release('pooled', $token)"), 't', 'pooled: release on the other');
	cmp_ok($on->(0, $client[1], q(SELECT lease_lock.acquire('pooled', 'B'))), '>', $token, 'pooled: then somebody else is granted');

	# A session-level lock stays on the connection that took it.
	is($on->(0, $client[0], q(SELECT 'taken', lease_lock.advisory_lock('orphan'))), 'taken|', 'pooled: a session-level lock is taken');
	is(locks_on('orphan'), "exclusive session t $server[0]", 'pooled: the view shows it with its pid');
	is($dba->query_ok(q(SELECT l.backend_state, l.backend_start = a.backend_start, l.since < clock_timestamp()
FROM lease_lock.advisory_locks l JOIN pg_stat_activity a USING (pid) WHERE name = 'orphan')), 'idle|t|t', 'pooled: and that its backend is idle, and since when');
	my ($out, $state, $errors) = $on->(1, $client[0], q(SELECT lease_lock.advisory_unlock('orphan')));
	is("$out $state", 'f ', 'pooled: unlock on another connection is false');
	like($errors, qr/^WARNING:.*this session does not hold advisory lock "orphan" in exclusive mode/m, 'pooled: with a warning');
	like($errors, qr/^DETAIL:\s+It is held by pid $server[0] \(exclusive\); this is pid $server[1]\./m, 'pooled: that names the holder');
	like($errors, qr/^HINT:.*advisory_xact_lock or a lease/m, 'pooled: and says what to use');
	is($on->(1, $client[0], q(SELECT lease_lock.try_advisory_lock('orphan'))), 'f', 'pooled: its taker does not get it there');
	$client[0]->quit;
	is(locks_on('orphan'), "exclusive session t $server[0]", 'pooled: its taker goes, and it stays');
	$client[0] = LeaseTest::Session->new($pool);
	is($on->(0, $client[1], q(SELECT lease_lock.advisory_unlock('orphan'))), 't', 'pooled: unlock on its own connection');
	is(locks_on('orphan'), '', 'pooled: frees it');
	is($on->(0, $client[0], q(SELECT 'taken', lease_lock.advisory_lock('orphan', true))), 'taken|', 'pooled: a shared one');
	like(($on->(1, $client[0], q(SELECT lease_lock.advisory_unlock('orphan', true))))[2], qr/held by pid $server[0] \(shared\)/, 'pooled: is named as such');
	is($on->(0, $client[1], q(SELECT count(*) FROM (SELECT pg_advisory_unlock_all()) u)), '1', 'pooled: pg_advisory_unlock_all()');
	is(locks_on('orphan'), '', 'pooled: frees it too');

	# The transaction form leaves nothing behind.
	is($on->(0, $client[0], q(SELECT 'taken', lease_lock.advisory_xact_lock('transaction'))), 'taken|', 'pooled: a transaction-level lock');
	is(locks_on('transaction'), '', 'pooled: goes with the statement');
	$client[0]->query_ok(q(BEGIN; SELECT lease_lock.advisory_xact_lock('transaction')));
	is($client[1]->query_ok(q(SELECT lease_lock.try_advisory_xact_lock('transaction'))), 'f', 'pooled: in a transaction it excludes the other connection');
	like(locks_on('transaction'), qr/^exclusive transaction t \d+$/, 'pooled: as the view says');
	$client[0]->query_ok('COMMIT');
	is(locks_on('transaction'), '', 'pooled: nothing is held after COMMIT');
	is($on->($_, $client[1], q(SELECT lease_lock.try_advisory_xact_lock('transaction'))), 't', 'pooled: and anybody gets it') foreach (0, 1);

	# What a transaction has presented is gone for the next one, of whichever client.
	my $guarded = $client[0]->query_ok(q(SELECT lease_lock.acquire('guarded', 'A', ttl => '1 h')));
	my $present = "SELECT lease_lock.present('guarded', $guarded)";
	my $write = 'UPDATE account SET balance = balance + 1';
	foreach my $how (
		[ 'committed', "BEGIN; $present; $write; COMMIT" ],
		[ 'rolled back', "BEGIN; $present; $write; ROLLBACK" ],
		[ 'failed', "BEGIN; $present; $write; SELECT 1 / 0; COMMIT" ],
		[ 'prepared', "BEGIN; $present; $write; PREPARE TRANSACTION 'pooled'; COMMIT PREPARED 'pooled'" ],
		[ 'presented in a savepoint', "BEGIN; SAVEPOINT s; $present; $write; RELEASE s; COMMIT" ],
		[ 'asserted', "BEGIN; SELECT lease_lock.assert_held('guarded', $guarded); $write; COMMIT" ],
		[ 'in autocommit', $present ])
	{
		my ($what, $sql) = @$how;

		$on->(0, $client[0], $sql);
		is(($on->(0, $client[1], $write))[1], 'LL002', "pooled: a token $what is not presented for the next client");
		is(($on->(0, $client[0], $write))[1], 'LL002', "pooled: a token $what is not presented for the same client either");
	}
	is($dba->query_ok('SELECT balance FROM account'), '4', 'pooled: writes with a token went through, and no others');
	is($dba->query_ok("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid IN ($server[0], $server[1])"), '0', 'pooled: no lock is left on either connection');

	# Scope 'session' is the server connection's: its end, and not the client's, ends the lease.
	my $session = $on->(0, $client[0], q(SELECT lease_lock.acquire('of the connection', 'A', ttl => '1 h', scope => 'session')));
	is($dba->query_ok(q(SELECT pid FROM lease_lock.holders WHERE resource = 'of the connection')), $server[0], 'pooled: holders shows whose end would end it');
	is(($on->(1, $client[1], "SELECT state FROM lease_lock.token_status('of the connection', $session)"))[0], 'held', 'pooled: it is held as the other connection sees it');
	$dba->query_ok("SELECT pg_terminate_backend($server[0])");
	ok(wait_true($dba, "SELECT state = 'expired' FROM lease_lock.token_status('of the connection', $session)"), 'pooled: the connection ends, and the lease with it');

	$_->quit foreach (@pin, @client);
	$pool->stop;
}

#
# A session ends: its locks go, the next one gets them, and a new connection of
# the same program does not have them.
#
foreach my $end (qw(terminate quit client))
{
	my $s1 = LeaseTest::Session->new($node);
	my $s2 = LeaseTest::Session->new($node);
	my $pid = $s1->pid;

	$s1->query_ok(q(SELECT lease_lock.advisory_lock('x'), lease_lock.advisory_lock('x'), lease_lock.advisory_lock('y', true)));
	is($dba->query_ok("SELECT count(*) FROM lease_lock.advisory_locks l JOIN pg_stat_activity a USING (pid, backend_start) WHERE pid = $pid"), '2', "$end: the view shows when the backend started");
	is($s2->query_ok(q(SELECT lease_lock.try_advisory_lock('x'))), 'f', "$end: somebody else does not get it");
	$s2->send(q(SELECT lease_lock.advisory_lock('x', wait => '10 min')));
	ok(wait_until_waiting($s2), "$end: and waits");
	is($dba->query_ok('SELECT pg_blocking_pids(' . $s2->pid . ')'), "{$pid}", "$end: pg_blocking_pids names the holder");
	like(locks_on('x'), qr/^exclusive session t $pid, exclusive session f \d+$/, "$end: so does the view");

	if ($end eq 'terminate') { $dba->query_ok("SELECT pg_terminate_backend($pid)"); }
	elsif ($end eq 'quit') { $s1->quit; }
	else { signal_backend('KILL', $s1->client); }
	$s2->result;
	is($s2->state, '', "$end: the session ends, and the waiter has it");
	is(locks_on('x'), 'exclusive session t ' . $s2->pid, "$end: as the view says");
	ok(wait_true($dba, "SELECT count(*) = 0 FROM lease_lock.advisory_locks WHERE pid = $pid"), "$end: nothing is left of the old session");
	$s1->quit unless $end eq 'quit';

	my $again = LeaseTest::Session->new($node);
	is($again->query_ok(q(SELECT count(*) FROM lease_lock.advisory_locks WHERE name = 'x' AND pid = pg_backend_pid())), '0', "$end: a new connection does not have it");
	is($again->query_ok(q(SELECT lease_lock.advisory_unlock('x'))), 'f', "$end: and cannot unlock it");
	like($again->errors, qr/^DETAIL:\s+It is held by pid @{[$s2->pid]} /m, "$end: which a warning says");
	$_->quit foreach ($s2, $again);
	ok(wait_true($dba, 'SELECT count(*) = 0 FROM lease_lock.advisory_locks'), "$end: in the end nothing is held");
}

#
# Every way in which a wait can end.
#
my $holder = LeaseTest::Session->new($node);
foreach my $kind (
	[ 'session', 'advisory_lock', 'exclusive', '' ],
	[ 'transaction', 'advisory_xact_lock', 'exclusive', '' ],
	[ 'shared session', 'advisory_lock', 'exclusive', ', true' ],
	[ 'session behind shared', 'advisory_lock', 'shared', '' ])
{
	my ($what, $function, $held, $shared) = @$kind;
	my %waiter = map { $_ => LeaseTest::Session->new($node) } qw(wait lock statement cancel terminate);
	my $call = "SELECT lease_lock.$function('w'$shared%s)";
	my $pid = $holder->pid;

	$holder->query_ok("SELECT lease_lock.advisory_lock('w', " . ($held eq 'shared' ? 'true)' : 'false)'));
	$waiter{lock}->query_ok(q(SET lock_timeout = '400 ms'));
	$waiter{statement}->query_ok(q(SET statement_timeout = '400 ms'));
	$waiter{wait}->send(sprintf($call, q(, wait => '400 ms')));
	$waiter{$_}->send(sprintf($call, '')) foreach qw(lock statement cancel terminate);
	foreach my $limit (qw(wait lock statement))
	{
		$waiter{$limit}->result;
		is($waiter{$limit}->state, $limit eq 'statement' ? '57014' : '55P03', "$what: SQLSTATE when $limit ends the wait")
			or diag($waiter{$limit}->errors);
		cmp_ok($waiter{$limit}->elapsed, '>=', 0.39, "$what: $limit does not end it too soon");
		cmp_ok($waiter{$limit}->elapsed, '<', 0.4 + $late, "$what: $limit ends it on time");
	}
	like($waiter{wait}->errors, qr/could not take advisory lock "w" within 400 ms/, "$what: the message says what and how long");
	like($waiter{lock}->errors, qr/canceling statement due to lock timeout while waiting for advisory lock "w"/, "$what: the message says that it was lock_timeout");
	like($waiter{$_}->detail, qr/^It is held by pid $pid \($held\)\.$/, "$what: the detail names the holder ($_)") foreach qw(wait lock);
	foreach my $limit (qw(cancel terminate))
	{
		ok(!$waiter{$limit}->ready, "$what: who was not timed out still waits ($limit)");
		ok(wait_until_waiting($waiter{$limit}), "$what: as the view says ($limit)");
	}
	my ($cancel, $terminate) = map { $waiter{$_}->pid } qw(cancel terminate);
	is($dba->query_ok("SELECT string_agg(DISTINCT concat_ws(' ', mode, scope, granted), ', ') FROM lease_lock.advisory_locks WHERE pid IN ($cancel, $terminate)"),
		($shared ? 'shared ' : 'exclusive ') . ($function =~ /xact/ ? 'transaction f' : 'session f'), "$what: with mode and scope");
	$dba->query_ok("SELECT pg_cancel_backend($cancel), pg_terminate_backend($terminate)");
	$waiter{$_}->result foreach qw(cancel terminate);
	is($waiter{cancel}->state, '57014', "$what: SQLSTATE of a cancelled wait");
	is($waiter{terminate}->state, '57P01', "$what: SQLSTATE of a terminated wait");
	ok(wait_true($dba, "SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = $terminate"), "$what: the terminated backend has gone");
	nothing_left($waiter{$_}, 'w', "$what, $_") foreach qw(wait lock statement cancel terminate);

	# In a transaction that goes on.
	my $s = $waiter{wait};
	$s->query_ok(q(BEGIN; SELECT lease_lock.advisory_xact_lock('kept'); SAVEPOINT s));
	refused_with($s, sprintf($call, q(, wait => '30 ms')), '55P03', "$what: an error in a savepoint");
	refused_with($s, q(SELECT lease_lock.advisory_unlock('kept')), '25P02', "$what: nothing can be called before ROLLBACK TO");
	$s->query_ok('ROLLBACK TO s');
	is($dba->query_ok('SELECT string_agg(name, \', \') FROM lease_lock.advisory_locks WHERE pid = ' . $s->pid), 'kept', "$what: the transaction goes on with what it had");
	$s->query_ok('COMMIT');
	nothing_left($s, 'w', "$what, after COMMIT");

	# When the holder unlocks, the next one has it.
	$s->send(sprintf($call, q(, wait => '10 min')));
	ok(wait_until_waiting($s), "$what: one more waits");
	is($holder->query_ok("SELECT lease_lock.advisory_unlock('w', " . ($held eq 'shared' ? 'true)' : 'false)')), 't', "$what: the holder unlocks");
	$s->result;
	is($s->state, '', "$what: the waiter has it");
	is(locks_on('w'), $function =~ /xact/ ? '' : ($shared ? 'shared' : 'exclusive') . ' session t ' . $s->pid, "$what: as the view says");
	$_->quit foreach values %waiter;
	ok(wait_true($dba, 'SELECT count(*) = 0 FROM lease_lock.advisory_locks'), "$what: in the end nothing is held");
}

#
# Waits that end just as the lock comes free: whoever was told that it has the
# lock has it, and nobody else does.
#
my $waiter = LeaseTest::Session->new($node);
my ($got, $refused, $wrong) = (0, 0, 0);
my @limits = (
	[ 'RESET lock_timeout; RESET statement_timeout', q(, wait => '%d ms') ],
	[ q(SET lock_timeout = '%d ms'; RESET statement_timeout), '' ],
	[ q(RESET lock_timeout; SET statement_timeout = '%d ms'), '' ],
	[ 'RESET lock_timeout; RESET statement_timeout', 'cancel' ]);
srand(18);
foreach my $round (0 .. 399)
{
	my ($set, $wait) = @{ $limits[ $round % 4 ] };
	my $ms = 2 + int(rand(5));
	my $cancel = $wait eq 'cancel';

	$wait = $cancel ? '' : $wait =~ /%/ ? sprintf($wait, $ms) : '';
	$waiter->query_ok($set =~ /%/ ? sprintf($set, $ms) : $set);
	$holder->query_ok(q(SELECT lease_lock.advisory_lock('race')));
	my $sleep = 0.001 * ($ms - 1.5 + rand(2));
	$holder->send("SELECT pg_sleep($sleep), lease_lock.advisory_unlock('race')");
	$waiter->send("SELECT lease_lock.advisory_lock('race'$wait)");
	if ($cancel)
	{
		sleep $sleep;
		$dba->query_ok('SELECT pg_cancel_backend(' . $waiter->pid . ')');
	}
	$waiter->result;
	$holder->result;
	my $told = $waiter->state eq '';
	my $errors = $waiter->errors;
	$told ? $got++ : $refused++;
	$waiter->query('RESET statement_timeout');
	my $has = $dba->query_ok('SELECT count(*) FROM pg_locks WHERE objsubid = 24 AND pid = ' . $waiter->pid);
	my $listed = $dba->query_ok('SELECT count(*) FROM lease_lock.advisory_locks WHERE pid = ' . $waiter->pid);
	if ($has != ($told ? 1 : 0) || $listed != $has)
	{
		$wrong++;
		diag("round $round: has $has, listed $listed, was told: $errors");
	}
	$waiter->query(q(SELECT lease_lock.advisory_unlock('race'))) if $has;
}
is($wrong, 0, 'four hundred races: who was told of an error has nothing, and who was not has it');
cmp_ok($got, '>', 10, "of them $got got it");
cmp_ok($refused, '>', 10, "and $refused did not");
$waiter->quit;

#
# Deadlocks are found; the loser keeps what it had before.
#
{
	my ($a, $b) = map { LeaseTest::Session->new($node) } 1 .. 2;

	$a->query_ok(q(SELECT lease_lock.advisory_lock('left')));
	$b->query_ok(q(SELECT lease_lock.advisory_lock('right')));
	$a->send(q(SELECT lease_lock.advisory_lock('right')));
	ok(wait_until_waiting($a), 'one session waits for the other');
	$b->send(q(SELECT lease_lock.advisory_lock('left', wait => '10 min')));
	# Whichever is the victim, the other one then waits until it unlocks.
	until ($a->ready || $b->ready) { sleep 0.01; }
	my ($loser, $winner, $kept) = $a->ready ? ($a, $b, 'left') : ($b, $a, 'right');
	$loser->result;
	is($loser->state, '40P01', 'a deadlock is found');
	like(locks_on($kept), qr/^exclusive session t @{[$loser->pid]}, exclusive session f @{[$winner->pid]}$/, 'the loser has what it had, and nothing else');
	is($loser->query_ok("SELECT lease_lock.advisory_unlock('$kept')"), 't', 'it unlocks');
	$winner->result;
	is($winner->state, '', 'and the other one has both');
	is($dba->query_ok('SELECT count(*) FROM lease_lock.advisory_locks WHERE granted AND pid = ' . $winner->pid), '2', 'as the view says');
	$_->quit foreach ($a, $b);
}

#
# A prepared transaction keeps the transaction form, through a restart too; its
# name is not known after that until somebody asks for it.
#
my $key = $dba->query_ok(q(SELECT lease_lock.advisory_key('prepared')));
$holder->query_ok(q(BEGIN; SELECT lease_lock.advisory_xact_lock('prepared'); PREPARE TRANSACTION 'gid of it'));
is($dba->query_ok(q(SELECT name, mode, scope, granted, pid, backend_start, gid, since < clock_timestamp() FROM lease_lock.advisory_locks)),
	'prepared|exclusive|transaction|t|||gid of it|t', 'a prepared transaction is shown with its gid');
is($dba->query_ok(q(SELECT lease_lock.advisory_unlock('prepared'))), 'f', 'nobody can unlock it');
like($dba->errors, qr/^DETAIL:\s+It is held by a prepared transaction \(exclusive\)/m, 'which a warning says');
refused_with($dba, q(SELECT lease_lock.advisory_lock('prepared', wait => '50 ms')), '55P03', 'and nobody gets it');
$_->quit foreach ($holder, $dba);
$node->restart;
$dba = LeaseTest::Session->new($node);
is($dba->query_ok(q(SELECT name, mode, scope, granted, pid, gid, key FROM lease_lock.advisory_locks)),
	"|exclusive|transaction|t||gid of it|$key", 'after a restart it is shown with gid and key');
is($dba->query_ok(q(SELECT lease_lock.try_advisory_lock('prepared'))), 'f', 'and still excludes others');
$waiter = LeaseTest::Session->new($node);
$waiter->send(q(SELECT lease_lock.advisory_lock('prepared')));
ok(wait_until_waiting($waiter), 'one waits for it');
is($dba->query_ok(q(SELECT name, granted, gid FROM lease_lock.advisory_locks ORDER BY granted DESC)), "prepared|t|gid of it\nprepared|f|", 'whose name is that of both');
$dba->query_ok(q(ROLLBACK PREPARED 'gid of it'));
$waiter->result;
is($waiter->state, '', 'and has it when the prepared transaction ends');
is(locks_on('prepared'), 'exclusive session t ' . $waiter->pid, 'as the view says');
$waiter->quit;

#
# A backend is killed, the server starts anew, and the list with it.
#
{
	my $s1 = LeaseTest::Session->new($node);
	my $pid = $s1->pid;

	$s1->query_ok(q(SELECT lease_lock.advisory_lock('x')));
	signal_backend('KILL', $pid);
	ok($node->poll_query_until('postgres', "SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $pid)"), 'the server comes back after a crash');
	$_->quit foreach ($s1, $dba);
	$dba = LeaseTest::Session->new($node);
	is($dba->query_ok('SELECT count(*) FROM lease_lock.advisory_locks'), '0', 'after a crash nothing is held');
	is($dba->query_ok(q(SELECT lease_lock.try_advisory_lock('x'))), 't', 'and the lock can be had');
}

#
# A lock on a standby would exclude nobody.
#
$node->backup('backup');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($node, 'backup', has_streaming => 1);
$standby->start;
my $s = LeaseTest::Session->new($standby);
$dba->query_ok(q(SELECT lease_lock.acquire('on the primary', 'A', ttl => '1 h', scope => 'session')));
$node->wait_for_catchup('standby');
my %call = (
	advisory_lock => q(SELECT lease_lock.advisory_lock('x')),
	'advisory_lock without waiting' => q(SELECT lease_lock.advisory_lock('x', wait => '0')),
	advisory_xact_lock => q(SELECT lease_lock.advisory_xact_lock('x', true)),
	try_advisory_lock => q(SELECT lease_lock.try_advisory_lock('x')),
	try_advisory_xact_lock => q(SELECT lease_lock.try_advisory_xact_lock('x')),
	advisory_unlock => q(SELECT lease_lock.advisory_unlock('x')));
foreach my $function (sort keys %call)
{
	refused_with($s, $call{$function}, '25006', "$function is refused on a standby");
}
is($s->query_ok(q(SELECT lease_lock.advisory_key('prepared'))), $key, 'advisory_key is not, and gives the same key');
is($s->query_ok('SELECT count(*) FROM lease_lock.advisory_locks'), '0', 'advisory_locks is readable there, and empty');
is($s->query_ok('SELECT count(*) FROM lease_lock.waiters'), '0', 'so is waiters');
is($s->query_ok(q(SELECT state FROM lease_lock.holders WHERE resource = 'on the primary')), 'held', 'holders shows a lease of scope session as held');
$dba->quit;
$node->stop('immediate');
$standby->promote;
is($s->query_ok($call{try_advisory_lock}), 't', 'after the promotion locks can be had, in a session from before');
is($s->query_ok(q(SELECT name, pid = pg_backend_pid() FROM lease_lock.advisory_locks)), 'x|t', 'and are shown');
is($s->query_ok($call{advisory_unlock}), 't', 'and given up');
is($s->query_ok(q(SELECT state FROM lease_lock.holders WHERE resource = 'on the primary')), 'expired', 'a lease of a session of the old primary is over');
cmp_ok($s->query_ok(q(SELECT lease_lock.acquire('on the primary', 'B', wait => '0'))), '>', 0, 'and can be had');
$s->quit;
$standby->stop;
done_testing();
