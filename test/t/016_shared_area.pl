# The shared area needs no configuration: whichever backend comes first makes
# it, two databases do not meet in it, and a crash of any backend leaves nothing
# wrong behind.  The same when the library is preloaded.
#
# Naive versions fail: an area that only a preloaded library can make; a race of
# those who make it; names without their database; a registry that survives
# those who stood in it; a session that never saw the area and wakes nobody.

use strict;
use warnings;

use FindBin;
use lib $FindBin::Bin;

use IPC::Run ();
use LeaseTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time sleep);

my $late = 8;
my $tmp = $PostgreSQL::Test::Utils::tmp_check;
my $ours = q(locktype = 'advisory' AND objsubid BETWEEN 19 AND 25);

# Soon after deadlock_timeout a waiter has looked for rings, and then sleeps.
my $node = lease_server('main', q(
restart_after_crash = on
deadlock_timeout = 200ms
));
$node->safe_psql('postgres', 'CREATE DATABASE other');
$node->safe_psql('other', 'CREATE EXTENSION lease_lock');

# A session that asks who waits, and is not counted itself.
my $dba;

sub in_line
{
	my ($resource, $n) = @_;

	return wait_true($dba, "SELECT count(*) = $n FROM lease_lock.waiters WHERE resource = '$resource'");
}

# ... and sleep.
sub asleep_in_line
{
	my ($resource, $n) = @_;
	my $found = in_line($resource, $n);

	sleep 0.7;
	return $found;
}

# A waiter is granted by a release, in sessions that are new.
sub hand_over
{
	my ($what) = @_;
	my ($holder, $waiter) = map { LeaseTest::Session->new($node) } 1 .. 2;
	my $token = $holder->query_ok("SELECT lease_lock.acquire('hand over', 'holder', ttl => '1 h')");

	$waiter->send("SELECT lease_lock.acquire('hand over', 'waiter', ttl => '1 h', wait => '5 min')");
	asleep_in_line('hand over', 1);
	is($dba->query_ok("SELECT owner || ' waits for ' || holder FROM lease_lock.waiters"), 'waiter waits for holder', "$what: the waiter is shown");
	my $start = time;
	is($holder->query_ok("SELECT lease_lock.release('hand over', $token)"), 't', "$what: a lease is released");
	cmp_ok($waiter->result, '>', $token, "$what: and granted to who waits");
	cmp_ok(time - $start, '<', $late, "$what: at once");
	is($dba->query_ok('SELECT count(*) FROM lease_lock.waiters'), '0', "$what: then nobody waits");
	$dba->query_ok("SELECT lease_lock.force_release('hand over', 'the next test')");

	is($holder->query_ok(q(SELECT lease_lock.try_advisory_lock('named'))), 't', "$what: a named lock is taken");
	$waiter->send(q(SELECT lease_lock.advisory_lock('named')));
	ok(wait_true($dba, q(SELECT count(*) = 2 AND count(*) FILTER (WHERE granted) = 1 FROM lease_lock.advisory_locks WHERE name = 'named')), "$what: holder and waiter are listed");
	$holder->quit;
	$waiter->result;
	is($waiter->state, '', "$what: the end of a session frees its named lock");
	$waiter->quit;
	ok(wait_true($dba, "SELECT count(*) = 0 FROM pg_locks WHERE $ours"), "$what: no lock is left");
	is($dba->query_ok('SELECT count(*) FROM lease_lock.advisory_locks'), '0', "$what: and none is listed");
	return;
}

# Everybody's first use at the same moment: a gate opens when all stand at it.
# All go into one line, for a lease of before, some after a named lock or a
# session's lease; if they made areas of their own they would not meet there.
sub first_use
{
	my ($what) = @_;
	my $clients = 24;
	my $gate = LeaseTest::Session->new($node);
	my $file = "$tmp/first_use.sql";
	my $out = '';

	unlink $file;
	append_to_file($file, q(SELECT pg_advisory_lock_shared(1);
\set kind :client_id % 4
\if :kind = 0
SELECT lease_lock.advisory_lock('shared name', true);
\elif :kind = 1
SELECT lease_lock.acquire('own ' || :client_id, 'client', scope => 'session');
\elif :kind = 2
SELECT count(*) FROM lease_lock.waiters, lease_lock.advisory_locks;
\endif
SELECT lease_lock.acquire('of before', 'client ' || :client_id, wait => '1 min') AS token \gset
SELECT lease_lock.release('of before', :token);
));
	$gate->query_ok('SELECT pg_advisory_lock(1)');
	my $bench = IPC::Run::start(
		[
			'pgbench', '-n', '-f', $file, '-c', $clients, '-j', 4, '-t', 1,
			'-h', $node->host, '-p', $node->port, '-U', 'postgres', 'postgres'
		],
		'>', \$out, '2>&1');
	wait_true($gate, "SELECT count(*) = $clients FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1 AND NOT granted");
	$gate->query_ok('SELECT pg_advisory_unlock(1)');
	ok(wait_true($gate, "SELECT count(*) = $clients FROM lease_lock.waiters"), "$what: $clients sessions use it first at one moment, and wait in one line");
	is($gate->query_ok(q(SELECT count(*) FROM lease_lock.advisory_locks WHERE name = 'shared name')), $clients / 4, "$what: their named locks are in one list");
	$gate->query_ok(q(SELECT lease_lock.release('of before', token) FROM lease_lock.holders WHERE resource = 'of before'));
	ok($bench->finish, "$what: and are granted one after the other") or diag($out);
	like($out, qr{actually processed: $clients/$clients}, "$what: none fails") or diag($out);
	$gate->quit;
	return;
}

sub no_crash
{
	my ($what, $from) = @_;
	my $log = slurp_file($node->logfile, $from);

	unlike($log, qr/PANIC|TRAP:|was terminated by signal|XX000/, "$what: nothing crashed by itself");
	return;
}

sub restarted
{
	my ($what) = @_;

	ok($node->poll_query_until('postgres', 'SELECT count(*) = 0 FROM pg_stat_activity WHERE state IS NOT NULL AND pid <> pg_backend_pid()'), "$what: the server comes back");
	$dba = LeaseTest::Session->new($node);
	return;
}

foreach my $preload ('', 'lease_lock')
{
	my $what = $preload ? 'preloaded' : 'not preloaded';

	$node->append_conf('postgresql.conf', "shared_preload_libraries = '$preload'");
	$node->restart;
	my $log_from = -s $node->logfile;
	is($node->safe_psql('postgres', 'SHOW shared_preload_libraries'), $preload, "the library is $what");

	#
	# First use, right after a start, several times.
	#
	foreach my $round (1 .. 4)
	{
		$node->safe_psql('postgres', q(SELECT lease_lock.acquire('of before', 'nobody here', ttl => '1 h')));
		$node->stop($round == 1 ? 'fast' : 'immediate');
		$node->start;
		$log_from = -s $node->logfile;
		first_use("$what, start $round");
		no_crash("$what, start $round", $log_from);
		$log_from = -s $node->logfile;
	}
	$dba = LeaseTest::Session->new($node);
	is($dba->query_ok('SELECT count(*) FROM lease_lock.waiters'), '0', "$what: nobody waits after a start");
	hand_over($what);

	#
	# Who never used it before releases what others wait for: a session that
	# has called nothing yet, and one that only ends.
	#
	my $waiter = LeaseTest::Session->new($node);
	my $token = $dba->query_ok(q(SELECT lease_lock.acquire('fresh', 'holder', ttl => '1 h')));
	$waiter->send(q(SELECT lease_lock.acquire('fresh', 'waiter', ttl => '1 h', wait => '5 min')));
	asleep_in_line('fresh', 1);
	my $fresh = LeaseTest::Session->new($node);
	my $start = time;
	is($fresh->query_ok("SELECT lease_lock.release('fresh', $token)"), 't', "$what: a session's first call is a release");
	$waiter->result;
	is($waiter->state, '', "$what: who waits is granted");
	cmp_ok(time - $start, '<', $late, "$what: at once");
	$fresh->quit;
	$dba->query_ok(q(SELECT lease_lock.force_release('fresh', 'the next test')));

	# The end of a session, by each way to end.
	foreach my $end ('quit', 'terminate', 'DISCARD ALL', 'idle timeout')
	{
		my $holder = LeaseTest::Session->new($node);

		$holder->query_ok("SET idle_session_timeout = '300 ms'") if $end eq 'idle timeout';
		$token = $holder->query_ok("SELECT lease_lock.acquire('session', 'holder', ttl => '1 h', scope => 'session')");
		$waiter->send(q(SELECT lease_lock.acquire('session', 'waiter', ttl => '1 h', wait => '5 min')));
		asleep_in_line('session', 1) if $end ne 'idle timeout';
		$start = time;
		if ($end eq 'quit') { $holder->quit; }
		elsif ($end eq 'terminate') { $dba->query_ok('SELECT pg_terminate_backend(' . $holder->pid . ')'); }
		elsif ($end eq 'DISCARD ALL') { $holder->query_ok($end); }
		cmp_ok($waiter->result, '>', $token, "$what: a session's lease ends with it: $end");
		cmp_ok(time - $start, '<', $late, "$what: at once: $end");
		is($dba->query_ok("SELECT state FROM lease_lock.token_status('session', $token)"), 'superseded', "$what: its token is stale: $end");
		$dba->query_ok(q(SELECT lease_lock.force_release('session', 'the next test')));
		$holder->quit;
	}

	#
	# Two databases.
	#
	my $other = LeaseTest::Session->new($node, dbname => 'other');
	my $other_waiter = LeaseTest::Session->new($node, dbname => 'other');
	my $here = $dba->query_ok(q(SELECT lease_lock.acquire('both', 'holder here', ttl => '1 h')));
	my $there = $other->query_ok(q(SELECT lease_lock.acquire('both', 'holder there', ttl => '1 h', wait => '0')));
	ok($there > 0, "$what: two databases, one name: both are granted");
	$waiter->send(q(SELECT lease_lock.acquire('both', 'waiter here', ttl => '1 h', wait => '5 min')));
	asleep_in_line('both', 1);
	is($other->query_ok('SELECT count(*) FROM lease_lock.waiters'), '0', "$what: waiters of another database are not shown");
	is($other->query_ok(q(SELECT waiters FROM lease_lock.holders WHERE resource = 'both')), '0', "$what: nor counted");
	is($other->query_ok("SELECT lease_lock.release('both', $there)"), 't', "$what: a release in one database");
	ok($other->query_ok(q(SELECT lease_lock.try_acquire('both', 'holder there', ttl => '1 h'))) > 0, "$what: a line in another database is in nobody's way");
	sleep 0.3;
	ok(!$waiter->ready, "$what: and it grants nothing in the other");
	$other_waiter->send(q(SELECT lease_lock.acquire('both', 'waiter there', ttl => '1 h', wait => '5 min')));
	wait_true($other, q(SELECT count(*) = 1 FROM lease_lock.waiters));
	is($dba->query_ok(q(SELECT string_agg(owner || ' ' || place, ', ') FROM lease_lock.waiters)), 'waiter here 1', "$what: each database has a line of its own");
	is($other->query_ok(q(SELECT string_agg(owner || ' ' || place, ', ') FROM lease_lock.waiters)), 'waiter there 1', "$what: with a first of its own");
	$dba->query_ok(q(SET lease_lock.max_waiters = 2));
	my $third = LeaseTest::Session->new($node);
	$third->query_ok(q(SET lease_lock.max_waiters = 1));
	refused_with($third, q(SELECT lease_lock.acquire('both', 'third', wait => '5 min')), '53400', "$what: a full line is refused");
	$third->query_ok(q(SET lease_lock.max_waiters = 2));
	refused_with($third, q(SELECT lease_lock.acquire('both', 'third', wait => '10 ms')), '55P03', "$what: the waiters of the other database do not count");
	is($dba->query_ok("SELECT lease_lock.release('both', $here)"), 't', "$what: a release here");
	$waiter->result;
	is($waiter->state, '', "$what: is for who waits here");
	ok(!$other_waiter->ready, "$what: and not for who waits there");
	is($dba->query_ok(q(SELECT lease_lock.try_advisory_lock('both'))), 't', "$what: a named lock here");
	is($other->query_ok(q(SELECT lease_lock.try_advisory_lock('both'))), 't', "$what: and the same there");
	is($dba->query_ok(q(SELECT count(*) FROM lease_lock.advisory_locks)), '1', "$what: each database lists its own");
	is($other->query_ok(q(SELECT count(*) FROM lease_lock.advisory_locks)), '1', "$what: and only that");
	$dba->query_ok(q(SELECT lease_lock.advisory_unlock('both')));
	is($third->query_ok(q(SELECT lease_lock.try_advisory_lock('both'))), 't', "$what: the one there does not block here");
	$other->query_ok('SELECT pg_terminate_backend(' . $other_waiter->pid . ')');
	$_->quit foreach ($other_waiter, $third);
	ok(wait_true($other, q(SELECT count(*) = 0 FROM lease_lock.waiters)), "$what: who has gone waits no more");

	#
	# A waiting backend is killed: the server starts anew.
	#
	$dba->query_ok(q(SELECT lease_lock.force_release('both', 'the next test')));
	my $session_holder = LeaseTest::Session->new($node);
	my $session_token = $session_holder->query_ok(q(SELECT lease_lock.acquire('of a session', 'holder', ttl => '1 h', scope => 'session')));
	$session_holder->query_ok(q(SELECT lease_lock.advisory_lock('of a session')));
	$token = $dba->query_ok(q(SELECT lease_lock.acquire('ordinary', 'holder', ttl => '1 h')));
	my @waiting = map { LeaseTest::Session->new($node) } 1 .. 4;
	foreach my $i (0 .. 3)
	{
		my $name = $i % 2 ? 'ordinary' : 'of a session';

		$waiting[$i]->send("SELECT lease_lock.acquire('$name', 'waiter $i', wait => '5 min')");
	}
	in_line('ordinary', 2);
	in_line('of a session', 2);
	no_crash("$what, before the kill", $log_from);
	signal_backend('KILL', $waiting[1]->pid);
	$_->result foreach @waiting;
	is(scalar(grep { $_->state eq '' } @waiting), 0, "$what: nobody was granted by the crash");
	restarted("$what, a waiter killed");
	$log_from = -s $node->logfile;
	is($dba->query_ok('SELECT count(*) FROM lease_lock.waiters'), '0', "$what: after a crash nobody waits");
	is($dba->query_ok('SELECT count(*) FROM lease_lock.advisory_locks'), '0', "$what: and no named lock is held");
	is($dba->query_ok("SELECT state FROM lease_lock.token_status('ordinary', $token)"), 'held', "$what: a lease lives on");
	is($dba->query_ok("SELECT state FROM lease_lock.token_status('of a session', $session_token)"), 'expired', "$what: one of a session is over");
	is($dba->query_ok("SELECT lease_lock.renew('of a session', $session_token)"), '', "$what: and cannot be renewed");
	isnt($dba->query_ok("SELECT lease_lock.renew('ordinary', $token)"), '', "$what: an ordinary one can");
	refused_with($dba, q(SELECT lease_lock.acquire('ordinary', 'another', wait => '100 ms')), '55P03', "$what: and keeps others out");
	cmp_ok($dba->query_ok(q(SELECT lease_lock.acquire('of a session', 'another', wait => '0'))), '>', $session_token, "$what: the session's is to be had at once");
	is($dba->query_ok("SELECT lease_lock.release('ordinary', $token)"), 't', "$what: the ordinary one can be released");
	hand_over("$what, after a crash");
	$_->quit foreach ($fresh, $other, $waiter, $session_holder, @waiting);

	# The same after an immediate restart with somebody in line.
	$waiter = LeaseTest::Session->new($node);
	my $gone = LeaseTest::Session->new($node);
	$session_token = $gone->query_ok(q(SELECT lease_lock.acquire('of a session', 'gone', ttl => '1 h', scope => 'session', wait => '1 min')))
		if $dba->query_ok(q(SELECT lease_lock.force_release('of a session', 'the next test')));
	$token = $dba->query_ok(q(SELECT lease_lock.acquire('ordinary', 'holder', ttl => '1 h')));
	$waiter->send(q(SELECT lease_lock.acquire('ordinary', 'waiter', wait => '5 min')));
	in_line('ordinary', 1);
	no_crash("$what, before an immediate stop", $log_from);
	$node->stop('immediate');
	$node->start;
	$_->quit foreach ($waiter, $gone);
	restarted("$what, an immediate restart");
	$log_from = -s $node->logfile;
	is($dba->query_ok('SELECT count(*) FROM lease_lock.waiters'), '0', "$what: after an immediate restart nobody waits");
	is($dba->query_ok("SELECT state FROM lease_lock.token_status('of a session', $session_token)"), 'expired', "$what: a session's lease is over");
	is($dba->query_ok("SELECT lease_lock.release('ordinary', $token)"), 't', "$what: an ordinary one is not");
	hand_over("$what, after an immediate restart");
	no_crash("$what, at the end", $log_from);
	$dba->quit;
}

#
# A holder's session dies, and the holder does not know.
#
$dba = LeaseTest::Session->new($node);
my ($s1, $s2) = map { LeaseTest::Session->new($node) } 1 .. 2;
$s1->query_ok(q(SELECT lease_lock.advisory_lock('x')));
my $token = $s1->query_ok(q(SELECT lease_lock.acquire('x', 'worker', ttl => '1 h')));
is($dba->query_ok(q(SELECT pid = ) . $s1->pid . q( AND backend_start = (SELECT a.backend_start FROM pg_stat_activity a WHERE a.pid = l.pid) FROM lease_lock.advisory_locks l)),
	't', 'a named lock is listed with pid and backend_start');
$s2->send(q(SELECT lease_lock.advisory_lock('x')));
wait_true($dba, q(SELECT count(*) = 2 FROM lease_lock.advisory_locks));
$dba->query_ok('SELECT pg_terminate_backend(' . $s1->pid . ')');
$s2->result;
is($s2->state, '', 'the session that held a named lock is terminated, and the next has it');
$s1->quit;
$s1 = LeaseTest::Session->new($node);
is($s1->query_ok('SELECT count(*) FROM lease_lock.advisory_locks WHERE pid = pg_backend_pid()'), '0', 'from a new connection one can see that one does not hold it');
is($s1->query(q(SELECT lease_lock.advisory_unlock('x'))), 'f', 'and cannot unlock it');
like($s1->errors, qr/WARNING.*\n.*It is held by pid @{[ $s2->pid ]} \(exclusive\)/, 'the warning names who holds it');
is($s1->query_ok(q(SELECT lease_lock.try_advisory_lock('x'))), 'f', 'nor take it');
is($dba->query_ok("SELECT state FROM lease_lock.token_status('x', $token)"), 'held', 'the lease outlives its session');
is($dba->query_ok(q(SELECT pid IS NULL FROM lease_lock.holders WHERE resource = 'x')), 't', 'and no backend\'s end would end it');
isnt($s1->query_ok("SELECT lease_lock.renew('x', $token)"), '', 'the new connection renews it');
refused_with($s2, q(SELECT lease_lock.acquire('x', 'another', wait => '50 ms')), '55P03', 'and keeps others out');
is($s1->query_ok("SELECT lease_lock.release('x', $token)"), 't', 'until it releases it');
is($s2->query_ok(q(SELECT lease_lock.advisory_unlock('x'))), 't', 'the named lock is unlocked by who holds it');

$_->quit foreach ($s1, $s2, $dba);
$node->stop;
done_testing();
