# What ends a lease other than a call of its holder's: the end of the session
# that acquired it (scope 'session'), and the eviction of a transaction that
# keeps an expired one from being granted.  Real processes: clients are stopped
# and killed, backends terminated and killed.  A lease tied to a pid, a waiter
# that only time wakes, a holder that can hang for ever, or an eviction that hits
# a transaction beside it, would fail here.

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
restart_after_crash = on
lease_lock.evict_after = '1 s'
));
my $dba = LeaseTest::Session->new($node);

# How much later than its time something may happen on a busy machine.
my $late = 10;

$dba->query_ok(q(
CREATE ROLE app LOGIN;
CREATE ROLE other LOGIN;
CREATE ROLE quiet LOGIN;
ALTER ROLE quiet SET track_activities = off;
GRANT USAGE ON SCHEMA lease_lock TO app, other, quiet;
CREATE TABLE account (name text PRIMARY KEY, balance int DEFAULT 0);
INSERT INTO account SELECT 'n' || i FROM generate_series(1, 99) i;
CREATE TABLE copied (line text);
CREATE TABLE plain (line text);
GRANT ALL ON account, copied, plain TO app, other, quiet;
SELECT lease_lock.guard('account', '{name}'), lease_lock.guard('copied', 'copy');
));

sub session { return LeaseTest::Session->new($node, user => $_[0]); }

# Has a session wait for a lease, and returns once it stands in line.
sub wait_in_line
{
	my ($session, $resource, $wait) = @_;
	my $pid = $session->pid;

	$session->send("SELECT lease_lock.acquire('$resource', 'waiter $pid', ttl => '1 h', wait => '$wait')");
	return wait_true($dba, "SELECT count(*) = 1 FROM lease_lock.waiters WHERE resource = '$resource' AND pid = $pid");
}

sub gone { return wait_true($dba, "SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = $_[0]"); }

sub status
{
	my ($resource, $token) = @_;

	return $dba->query_ok("SELECT state FROM lease_lock.token_status('$resource', $token)");
}

#
# Scope 'session'.  However the session ends, its leases are over at once: the
# waiter is woken, and has not just polled.
#
my %ends = (
	'is disconnected' => sub { $_[0]->quit; },
	'is terminated' => sub { $dba->query_ok('SELECT pg_terminate_backend(' . $_[0]->pid . ')'); },
	'loses its client' => sub { signal_backend('KILL', $_[0]->client); });
foreach my $end (sort keys %ends)
{
	my $holder = session('app');
	my $waiter = session('other');
	my $pid = $holder->pid;
	my $token = $holder->query_ok(q(SELECT lease_lock.acquire('n1', 'holder', ttl => '1 h', scope => 'session')));
	my $second = $holder->query_ok(q(SELECT lease_lock.try_acquire('n2', 'holder', ttl => '1 h', scope => 'session')));
	my $lease = $holder->query_ok(q(SELECT lease_lock.acquire('n3', 'holder', ttl => '1 h')));

	is($dba->query_ok("SELECT string_agg(resource || ' ' || scope || ' ' || state || ' ' || coalesce(pid = $pid, false), ', ' ORDER BY resource) FROM lease_lock.holders WHERE grant_pid = $pid"),
		'n1 session held true, n2 session held true, n3 lease held false', "a session that $end: holders shows whose end would end them");
	is($waiter->query_ok(q(SELECT lease_lock.try_acquire('n1', 'waiter'))), '', "a session that $end: somebody else is refused before");
	# In the midst of something else.
	$holder->query_ok("BEGIN; SELECT lease_lock.present('n1', $token); UPDATE account SET balance = 1 WHERE name = 'n1'; SELECT lease_lock.acquire('n4', 'holder', scope => 'session')");
	ok(wait_in_line($waiter, 'n1', '10 min'), "a session that $end: somebody waits");
	is($dba->query_ok(q(SELECT holder, blocked_by FROM lease_lock.waiters WHERE resource = 'n1')), "holder|{$pid}", "a session that $end: for the holder, whom the view names");
	my $start = time;
	$ends{$end}->($holder);
	my $next = $waiter->result;
	cmp_ok(time - $start, '<', 2, "a session that $end: the waiter has the lease at once");
	cmp_ok($next, '>', $token, "a session that $end: with a larger token");
	ok(gone($pid), "a session that $end: its backend has gone");
	is(status('n1', $token), 'superseded', "a session that $end: the old token is stale");
	is(status('n2', $second), 'expired', "a session that $end: its other lease is over as well");
	is(status('n3', $lease), 'held', "a session that $end: one of scope lease is not");
	is($dba->query_ok(q(SELECT count(*) FROM lease_lock.holders WHERE resource = 'n4')), '0', "a session that $end: what was not committed never was");
	is($dba->query_ok(q(SELECT balance FROM account WHERE name = 'n1')), '0', "a session that $end: nor the write");

	# The program connects again, and believes that it still leads.
	$holder->quit if $end ne 'is disconnected';
	$holder = session('app');
	is($holder->query_ok("SELECT lease_lock.renew('n1', $token)"), '', "a session that $end: the old token renews nothing");
	is($holder->query_ok("SELECT lease_lock.renew('n2', $second)"), '', "a session that $end: nor where nobody else came");
	is($holder->query_ok("SELECT lease_lock.release('n1', $token)"), 'f', "a session that $end: and releases nothing");
	$holder->query_ok("BEGIN; SELECT lease_lock.present('n1', $token), lease_lock.present('n2', $second)");
	refused_with($holder, q(UPDATE account SET balance = 1 WHERE name = 'n1'), 'LL001', "a session that $end: its late write is refused");
	$holder->query_ok("ROLLBACK; BEGIN; SELECT lease_lock.present('n1', $token), lease_lock.present('n2', $second)");
	refused_with($holder, q(UPDATE account SET balance = 1 WHERE name = 'n2'), 'LL003', "a session that $end: also where nobody else came");
	$holder->query_ok('ROLLBACK');
	isnt($holder->query_ok("SELECT lease_lock.renew('n3', $lease, '2 h')"), '', "a session that $end: the lease of scope lease is renewed from a new connection");
	$holder->query_ok("BEGIN; SELECT lease_lock.present('n3', $lease); UPDATE account SET balance = balance + 1 WHERE name = 'n3'; COMMIT");
	is($holder->query_ok("SELECT lease_lock.release('n3', $lease)"), 't', "a session that $end: and written under, and released");
	is($holder->query_ok(q(SELECT lease_lock.try_acquire('n2', 'stranger') IS NOT NULL)), 't', "a session that $end: the other one can be had at once");
	$waiter->query_ok("SELECT lease_lock.release('n1', $next)");
	$dba->query_ok(q(SELECT lease_lock.force_release('n2', 'a test')));
	$_->quit foreach ($holder, $waiter);
}
is($dba->query_ok(q(SELECT balance FROM account WHERE name = 'n3')), '3', 'three times work went on from another connection');

# A waiter of such a lease polls once a second, for locks that are given up
# without a word.  An end of the session just after the waiter came does not wait
# for that.
my @times;
foreach my $round (1 .. 9)
{
	my $holder = session('app');
	my $waiter = session('other');

	$holder->query_ok(q(SELECT lease_lock.acquire('n5', 'holder', ttl => '1 h', scope => 'session')));
	wait_in_line($waiter, 'n5', '10 min') or last;
	my $start = time;
	$dba->query_ok('SELECT pg_terminate_backend(' . $holder->pid . ')');
	my $token = $waiter->result;
	push @times, time - $start;
	$waiter->query_ok("SELECT lease_lock.release('n5', $token)");
	$_->quit foreach ($holder, $waiter);
}
@times = sort { $a <=> $b } @times;
is(scalar @times, 9, 'nine sessions end');
cmp_ok($times[4], '<', 0.5, 'and wake their waiters') or diag("@times");

# Given up without ending.
foreach my $call ('SELECT pg_advisory_unlock_all()', 'DISCARD ALL')
{
	my $holder = session('app');
	my $waiter = session('other');
	my $token = $holder->query_ok(q(SELECT lease_lock.acquire('n6', 'holder', ttl => '1 h', scope => 'session')));

	ok(wait_in_line($waiter, 'n6', '10 min'), "$call: somebody waits");
	my $start = time;
	$holder->query_ok($call);
	my $next = $waiter->result;
	cmp_ok(time - $start, '<', 1 + $late, "$call: has the lease soon");
	cmp_ok($next, '>', $token, "$call: with a larger token");
	is($holder->query_ok("SELECT lease_lock.renew('n6', $token)"), '', "$call: the session that gave it up has not");
	$waiter->query_ok("SELECT lease_lock.release('n6', $next)");
	$_->quit foreach ($holder, $waiter);
}

# The same by one who waited in line itself, and whose successor came when many
# were ahead: it looks around seldom, and is told that it must now.  The
# function's lease of scope 'transaction' is over when the call is.
$dba->query_ok(q(
CREATE FUNCTION work_alone(resource text) RETURNS void LANGUAGE plpgsql AS $$ BEGIN
	PERFORM lease_lock.acquire(resource, 'alone', ttl => '1 h', wait => '10 min', scope => 'transaction');
	PERFORM pg_sleep(0.2);
END $$;
));
foreach my $scope ('session', 'transaction')
{
	my ($holder, $middle, @leave) = map { session('app') } 1 .. 17;
	my $token = $holder->query_ok(q(SELECT lease_lock.acquire('n10', 'holder', ttl => '1 h')));

	$middle->send($scope eq 'transaction' ? q(SELECT work_alone('n10')) :
			q(SELECT lease_lock.acquire('n10', 'middle', ttl => '1 h', wait => '10 min', scope => 'session')));
	ok(wait_true($dba, q(SELECT count(*) = 1 FROM lease_lock.waiters)), "scope $scope: one waits");
	$_->send(q(SELECT lease_lock.acquire('n10', 'leaves', wait => '10 min'))) foreach @leave;
	ok(wait_true($dba, q(SELECT count(*) = 16 FROM lease_lock.waiters)), "scope $scope: many come after it");

	# Half a minute until the last one looks around.  Nothing else is to wake it:
	# it looks for rings while the many are there, and as a session that was never
	# idle it has no timer running.
	local $ENV{PGOPTIONS} = '-c deadlock_timeout=1ms';
	my $next = '';
	my $last = IPC::Run::start(['psql', '-XAtq', '-d', $node->connstr('postgres'), '-c',
			q(SELECT lease_lock.acquire('n10', 'last', wait => '10 min'))], '>', \$next);
	ok(wait_true($dba, q(SELECT count(*) = 17 FROM lease_lock.waiters)), "scope $scope: and one more");
	sleep 0.2;
	$dba->query_ok('SELECT ' . join(', ', map { 'pg_cancel_backend(' . $_->pid . ')' } @leave));
	ok(wait_true($dba, q(SELECT count(*) = 2 FROM lease_lock.waiters)), "scope $scope: the many leave");
	my $start = time;
	$holder->query_ok("SELECT lease_lock.release('n10', $token)");
	$middle->result;
	$middle->query_ok('DISCARD ALL') if $scope eq 'session';
	$last->finish;
	cmp_ok(time - $start, '<', 1 + $late, "scope $scope: the last has the lease soon");
	cmp_ok($next, '>', $token, "scope $scope: with a larger token");
	$dba->query_ok("SELECT lease_lock.release('n10', $next)");
	$_->quit foreach ($holder, $middle, @leave);
}

# A pid that is another backend's by now does not stand for the holder.
{
	my $holder = session('app');
	my $waiter = session('other');
	my $me = $dba->pid;

	$holder->query_ok(q(SELECT lease_lock.acquire('n7', 'holder', ttl => '1 h'), lease_lock.acquire('n8', 'holder', ttl => '1 h', scope => 'session')));
	my $pid = $holder->pid;
	$holder->quit;
	ok(gone($pid), 'a holder goes');
	$dba->query_ok(q(UPDATE lease_lock.lease SET pid = pg_backend_pid() WHERE resource IN ('n7', 'n8')));
	is($dba->query_ok(q(SELECT string_agg(concat_ws(' ', resource, state, pid, grant_pid = pg_backend_pid()), ', ' ORDER BY resource) FROM lease_lock.holders WHERE resource IN ('n7', 'n8'))),
		'n7 held t, n8 expired t', 'another backend with its pid is not shown as one to end');
	ok(wait_in_line($waiter, 'n7', '10 min'), 'one waits for the lease that is left');
	is($dba->query_ok(q(SELECT holder, blocked_by FROM lease_lock.waiters WHERE resource = 'n7')), 'holder|{}', 'nor as the one that blocks');
	$dba->query_ok(q(SELECT lease_lock.force_release('n7', 'a test')));
	cmp_ok($waiter->result, '>', 0, 'it gets the lease');
	cmp_ok($waiter->query_ok(q(SELECT lease_lock.acquire('n8', 'other', wait => '0'))), '>', 0, 'and the one of the session that has gone');
	$waiter->quit;
}

# idle_in_transaction_session_timeout ends the session, and not a lease of scope
# 'lease'.
{
	my $holder = session('app');
	my $token = $holder->query_ok(q(SELECT lease_lock.acquire('n9', 'holder', ttl => '1 h')));
	my $pid = $holder->pid;

	$holder->query_ok("SET idle_in_transaction_session_timeout = '100 ms'; BEGIN; SELECT lease_lock.assert_held('n9', $token)");
	ok(gone($pid), 'idle_in_transaction_session_timeout ends a session');
	is(status('n9', $token), 'held', 'its lease stays');
	$holder->quit;
	$holder = session('app');
	isnt($holder->query_ok("SELECT lease_lock.renew('n9', $token)"), '', 'and the holder goes on from another');
	is($holder->query_ok("SELECT lease_lock.release('n9', $token)"), 't', 'to its end');
	$holder->quit;
}

#
# Eviction.  In all of these a lease of half a second expires under an open
# transaction, and the time to eviction is a second.
#
my $ttl = 0.5;
my $evict_after = 1;

# Opens a transaction that writes under a lease which then expires.  Returns the
# token.
sub write_and_stay
{
	my ($session, $resource, $more) = @_;
	my $token = $session->query_ok("SELECT lease_lock.acquire('$resource', 'victim', ttl => '$ttl s', wait => '60 s')");

	$session->query_ok('BEGIN');
	$session->query_ok("SELECT lease_lock.present('$resource', $token)");
	$session->query_ok("UPDATE account SET balance = balance + 1 WHERE name = '$resource'");
	$session->query_ok($more) if $more;
	return $token;
}

# The first column is what happens to the victim: T terminated, C cancelled,
# CT first cancelled and then terminated, W terminated because its query waits
# for its client, where no cancel is served.
my %victims = (
	n11 => [ 'T', 'idle in transaction', 'app', sub { write_and_stay($_[0], 'n11'); } ],
	n12 => [ 'T', 'idle in transaction, its client stopped', 'app', sub { my $t = write_and_stay($_[0], 'n12'); signal_backend('STOP', $_[0]->client); $t; } ],
	n13 => [ 'C', 'running a query', 'app', sub { my $t = write_and_stay($_[0], 'n13'); $_[0]->send('SELECT pg_sleep(600)'); $t; } ],
	n14 => [ 'T', 'idle in transaction (aborted)', 'app', sub { my $t = write_and_stay($_[0], 'n14', 'SAVEPOINT s'); $_[0]->query('SELECT 1 / 0'); $t; } ],
	n15 => [ 'CT', 'running a query in a savepoint', 'app', sub { my $t = write_and_stay($_[0], 'n15', 'SAVEPOINT s'); $_[0]->send('SELECT pg_sleep(600)'); $t; } ],
	n16 => [ 'T', 'with an uncommitted grant', 'app', sub { $_[0]->query_ok('BEGIN'); $_[0]->query_ok("SELECT lease_lock.acquire('n16', 'victim', ttl => '$ttl s')"); } ],
	n17 => [ 'T', 'with an uncommitted renewal', 'app', sub { my $t = $_[0]->query_ok("SELECT lease_lock.acquire('n17', 'victim', ttl => '$ttl s')"); $_[0]->query_ok("BEGIN; SELECT lease_lock.renew('n17', $t)"); $t; } ],
	n18 => [ 'T', 'with an uncommitted release', 'app', sub { my $t = $_[0]->query_ok("SELECT lease_lock.acquire('n18', 'victim', ttl => '$ttl s')"); $_[0]->query_ok("BEGIN; SELECT lease_lock.release('n18', $t)"); $t; } ],
	n19 => [ 'T', 'that asserted its lease', 'app', sub { my $t = $_[0]->query_ok("SELECT lease_lock.acquire('n19', 'victim', ttl => '$ttl s')"); $_[0]->query_ok("BEGIN; SELECT lease_lock.assert_held('n19', $t)"); $t; } ],
	n20 => [ 'T', 'with track_activities off', 'quiet', sub { write_and_stay($_[0], 'n20'); } ],
	n21 => [ 'C', 'running a query with track_activities off', 'quiet', sub { my $t = write_and_stay($_[0], 'n21'); $_[0]->send('SELECT pg_sleep(600)'); $t; } ],
	n22 => [ 'W', 'whose client is stopped while it gets a result', 'app', sub {
		my ($s) = @_;
		my $t = write_and_stay($s, 'n22');
		my $pid = $s->pid;
		$s->send(q(SELECT repeat('x', 8000), pg_sleep(0.001) FROM generate_series(1, 1000000)));
		wait_true($dba, "SELECT state = 'active' AND query ~ 'generate_series' FROM pg_stat_activity WHERE pid = $pid");
		signal_backend('STOP', $s->client);
		ok(wait_true($dba, "SELECT wait_event = 'ClientWrite' FROM pg_stat_activity WHERE pid = $pid"), 'a backend waits for its client to read');
		$t; } ],
	copy => [ 'W', 'whose client is stopped in the midst of COPY', 'app', sub {
		my ($s) = @_;
		my $t = $s->query_ok("SELECT lease_lock.acquire('copy', 'victim', ttl => '$ttl s')");
		my $pid = $s->pid;
		$s->query_ok('BEGIN');
		$s->query_ok("SELECT lease_lock.present('copy', $t)");
		$s->{in} .= "COPY copied FROM STDIN;\n";
		$s->{run}->pump_nb;
		ok(wait_true($dba, "SELECT wait_event = 'ClientRead' AND state = 'active' FROM pg_stat_activity WHERE pid = $pid"), 'a backend waits for its client to write');
		signal_backend('STOP', $s->client);
		$t; } ],
);

# Transactions that have nothing to do with it, and must not be touched: they
# hold other things, or nothing under these names any more.
my %bystander;
$bystander{"an idle transaction that wrote under another expired lease"} = my $by1 = session('app');
write_and_stay($by1, 'n31');
$bystander{'one that took its write back'} = my $by2 = session('app');
{
	my $token = $by2->query_ok("SELECT lease_lock.acquire('n11', 'bystander', ttl => '1 h')");
	$by2->query_ok(q(BEGIN; SAVEPOINT s));
	$by2->query_ok("SELECT lease_lock.present('n11', $token); UPDATE account SET balance = balance + 1 WHERE name = 'n11'; ROLLBACK TO s; SELECT lease_lock.present('n11', $token)");
	is($dba->query_ok("SELECT lease_lock.force_release('n11', 'a test')"), $token, 'a write is taken back before another one comes');
}
$bystander{'one that only read'} = my $by3 = session('app');
$by3->query_ok('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM account; SELECT count(*) FROM lease_lock.holders');
$bystander{'one with locks of other kinds'} = my $by4 = session('app');
$by4->query_ok(q(BEGIN; INSERT INTO plain VALUES ('bystander'); SELECT pg_advisory_xact_lock(1), lease_lock.advisory_xact_lock('n12'), lease_lock.advisory_lock('n13')));
$bystander{'one of the same table'} = my $by5 = session('app');
$by5->query_ok(q(SELECT lease_lock.acquire('n32', 'bystander', ttl => '1 h'); BEGIN; SELECT lease_lock.present('n32', (lease_lock.token_status('n32', 1)).newest); UPDATE account SET balance = balance + 1 WHERE name = 'n32'));

# A lease that is renewed, by a watchdog beside the business transaction.
my $renewed = session('app');
my $watchdog = session('app');
my $not_yet = session('other');
my $renewed_token = $renewed->query_ok(q(SELECT lease_lock.acquire('n33', 'holder', ttl => '6 s')));
my $renewed_expiry = $dba->query_ok(q(SELECT expire_at FROM lease_lock.holders WHERE resource = 'n33'));
$renewed->query_ok("BEGIN; SELECT lease_lock.present('n33', $renewed_token); UPDATE account SET balance = balance + 1 WHERE name = 'n33'");
ok(wait_in_line($not_yet, 'n33', '10 min'), 'somebody waits for a lease that is renewed');
isnt($watchdog->query_ok("SELECT lease_lock.renew('n33', $renewed_token, '1 h')"), '', 'as it now is');

my (%victim, %waiter, %token, %end);
foreach my $name (sort keys %victims)
{
	my ($fate, $what, $role, $begin) = @{ $victims{$name} };

	$victim{$name} = session($role);
	$waiter{$name} = session('other');
	$token{$name} = $begin->($victim{$name});
	# Not before the second is over.
	$end{$name} = $dba->query_ok("SELECT extract(epoch FROM expire_at) + $evict_after FROM lease_lock.holders WHERE resource = '$name'") // 0;
	$waiter{$name}->send("SELECT lease_lock.acquire('$name', 'waiter', ttl => '1 h', wait => '2 min'), extract(epoch FROM clock_timestamp())");
}
my $log = '';
foreach my $name (sort keys %victims)
{
	my ($fate, $what, $role) = @{ $victims{$name} };
	my ($waiter, $victim) = ($waiter{$name}, $victim{$name});
	my ($token, $pid) = ($token{$name}, $victim->pid);
	my $out = $waiter->result;

	is($waiter->state, '', "$what: the next in line is granted") or diag($waiter->errors);
	my ($next, $at) = split /\|/, $out;
	cmp_ok($next // 0, '>', $token, "$what: a larger token");
	cmp_ok($at // 0, '<', $end{$name} + 2.5 + $late, "$what: soon after the time to eviction") if $end{$name};
	cmp_ok($at // 0, '>=', $end{$name}, "$what: and not before") if $end{$name};

	my %how = (T => 'terminated the backend, idle in transaction,', C => 'cancelled the query of the backend',
		W => 'terminated the backend, waiting for its client,');
	is($dba->query_ok("SELECT string_agg(DISTINCT concat_ws('; ', role, session_role, reason, regexp_replace(detail, 'expired at [^:]*:[^:]*:[^:]*:', 'expired:')), ' / ') FROM lease_lock.audit WHERE action = 'evict' AND object = '$name'"),
		join(' / ', map { "other; other; the lease had expired, and its transaction kept out a grant; token $token of \"victim\", expired: $how{$_} with pid $pid" } split(//, $fate)),
		"$what: it is audited, once for each thing done");
	$log = slurp_file($node->logfile);
	ok($log =~ /LOG:  evicted the transaction that kept the expired lease on resource "$name"\n.*DETAIL:  token $token of "victim", expired at .*: $how{$_} with pid $pid\n/, "$what: the server log says so ($_)")
	  foreach split(//, $fate);

	signal_backend('CONT', $victim->client);
	if ($fate eq 'C')
	{
		$victim->result;
		is($victim->state, '57014', "$what: its query is cancelled");
		is($victim->query_ok('ROLLBACK; SELECT pg_backend_pid()'), $pid, "$what: and its session goes on");
		is($victim->query_ok("SELECT lease_lock.renew('$name', $token)"), '', "$what: without the lease");
	}
	else
	{
		ok(gone($pid), "$what: its backend is terminated");
	}
	is($dba->query_ok("SELECT balance FROM account WHERE name = '$name'") || '0', '0', "$what: its write is not there");
	is(status($name, $token), 'superseded', "$what: its token is stale");
	$_->quit foreach ($victim, $waiter);
}

# The business transaction of the renewed lease, and everybody else, is still there.
foreach my $what (sort keys %bystander)
{
	is($bystander{$what}->query_ok('SELECT 1; COMMIT'), '1', "$what is not touched");
}
ok(wait_true($dba, "SELECT clock_timestamp() > '$renewed_expiry'::timestamptz + '$evict_after s' + '1 s'"), 'what was the time to eviction of a renewed lease is over');
ok(!$not_yet->ready, 'who waits for it still waits');
is($renewed->query_ok('SELECT 1; COMMIT'), '1', 'its holder is not evicted');
is($renewed->query_ok("SELECT lease_lock.release('n33', $renewed_token)"), 't', 'and releases it');
cmp_ok($not_yet->result, '>', $renewed_token, 'then the next one has it');
is($dba->query_ok(q(SELECT string_agg(DISTINCT object, ', ' ORDER BY object) FROM lease_lock.audit WHERE action = 'evict')),
	join(', ', sort keys %victims), 'nobody else was evicted');
$_->quit foreach (values %bystander, $renewed, $watchdog, $not_yet);

#
# Never a superuser's backend, unless by a superuser; and never where it is off.
#
{
	my $root = session('app');
	my $off = session('app');
	my $waiter = session('other');
	my $no_evictor = LeaseTest::Session->new($node, options => '-c lease_lock.evict_after=-1');
	my $super = LeaseTest::Session->new($node);
	my $victim = LeaseTest::Session->new($node);
	my $token = write_and_stay($victim, 'n41');
	my $off_token = write_and_stay($off, 'n42');

	ok(wait_true($dba, "SELECT count(*) = 2 FROM lease_lock.holders WHERE resource IN ('n41', 'n42') AND expire_at + '$evict_after s' < clock_timestamp()"), 'two leases are expired for long enough');
	$waiter->send(q(SELECT lease_lock.acquire('n41', 'waiter', wait => '3 s')));
	$no_evictor->send(q(SELECT lease_lock.acquire('n42', 'waiter', wait => '3 s')));
	$waiter->result;
	is($waiter->state, '55P03', 'a superuser is not evicted by others, whose time runs out');
	like($waiter->detail, qr/"victim" under token $token, .*still open \(pid @{[$victim->pid]}\)/, 'which names the one that blocks');
	is($waiter->query_ok(q(SELECT lease_lock.try_acquire('n41', 'waiter'))), '', 'try_acquire does not do it either');
	$no_evictor->result;
	is($no_evictor->state, '55P03', 'with evict_after = -1 nobody is evicted');
	is($no_evictor->query_ok(q(SELECT lease_lock.try_acquire('n42', 'waiter'))), '', 'by try_acquire neither');
	is($_->query_ok('SELECT 1'), '1', 'the transaction is still there') foreach ($victim, $off);
	is($dba->query_ok(q(SELECT count(*) FROM lease_lock.audit WHERE object IN ('n41', 'n42') AND action = 'evict')), '0', 'and nothing was said of an eviction');
	cmp_ok($super->query_ok(q(SELECT lease_lock.acquire('n41', 'waiter', ttl => '1 h', wait => '1 min'))), '>', $token, 'a superuser evicts another one');
	ok(gone($victim->pid), 'who is terminated');
	is($off->query_ok('SELECT 1; COMMIT'), '1', 'where nobody evicted, the transaction commits');
	is($dba->query_ok(q(SELECT balance FROM account WHERE name = 'n42')), '1', 'with its write');
	$_->quit foreach ($root, $off, $waiter, $no_evictor, $super, $victim);
}

#
# Who only polls by try_acquire is not locked out for ever either.
#
{
	my $victim = session('app');
	my $poller = session('other');
	my $token = write_and_stay($victim, 'n43');
	my $uncommitted = session('app');
	my ($nulls, $got, $slowest) = (0, 0, 0);

	$uncommitted->query_ok("BEGIN; SELECT lease_lock.acquire('n44', 'victim', ttl => '$ttl s')");
	signal_backend('STOP', $_->client) foreach ($victim, $uncommitted);
	my %left = (n43 => 1, n44 => 1);
	my $until = time + $ttl + $evict_after + $late + 20;
	while (%left && time < $until)
	{
		foreach my $name (sort keys %left)
		{
			my $out = $poller->query_ok("SELECT lease_lock.try_acquire('$name', 'poller', ttl => '1 h')");
			$slowest = $poller->elapsed if $poller->elapsed > $slowest;
			$out eq '' ? $nulls++ : delete $left{$name};
		}
		sleep 0.1;
	}
	is(join(' ', keys %left), '', 'pollers get the leases of a hung writer and of a hung grant');
	cmp_ok($nulls, '>', 2, 'after some refusals');
	cmp_ok($slowest, '<', $late, 'none of which waited');
	ok(gone($_->pid), 'the hung backend is terminated') foreach ($victim, $uncommitted);
	is($dba->query_ok(q(SELECT count(DISTINCT object) FROM lease_lock.audit WHERE object IN ('n43', 'n44') AND role = 'other' AND action = 'evict')), '2', 'which is audited');
	signal_backend('CONT', $_->client) foreach ($victim, $uncommitted);
	$_->quit foreach ($victim, $uncommitted, $poller);
}

#
# The next in line gets it, and the one after that the next time.
#
{
	my $victim = session('app');
	my ($first, $second) = map { session('other') } 1 .. 2;
	my $token = write_and_stay($victim, 'n45');

	ok(wait_in_line($first, 'n45', '10 min') && wait_in_line($second, 'n45', '10 min'), 'two wait for a hung holder');
	is($dba->query_ok(q(SELECT string_agg(pid::text, ' ' ORDER BY place) FROM lease_lock.waiters WHERE resource = 'n45')), $first->pid . ' ' . $second->pid, 'in their order');
	my $next = $first->result;
	cmp_ok($next, '>', $token, 'the first in line gets it');
	ok(!$second->ready, 'the second does not');
	$first->query_ok("SELECT lease_lock.release('n45', $next)");
	cmp_ok($second->result, '>', $next, 'before the first releases it');
	$_->quit foreach ($victim, $first, $second);
}

#
# A prepared transaction cannot be evicted: the wait ends with its name, before
# and after a restart.
#
{
	my $s = session('app');
	my $token = write_and_stay($s, 'n46');

	$s->query_ok(q(PREPARE TRANSACTION 'the write'));
	$s->query_ok("BEGIN; SELECT lease_lock.acquire('n47', 'victim', ttl => '$ttl s')");
	$s->query_ok(q(PREPARE TRANSACTION 'the grant'));
	my $prepared = $dba->query_ok(q(SELECT token FROM lease_lock.holders WHERE resource = 'n47'));
	foreach my $when ('', ' after a restart')
	{
		if ($when)
		{
			$_->quit foreach ($dba, $s);
			$node->restart;
			$dba = LeaseTest::Session->new($node);
			$s = session('app');
		}
		foreach my $case ([ 'n46', 'the write', $token ], [ 'n47', 'the grant', $prepared ])
		{
			my ($name, $gid, $old) = @$case;

			$s->query("SELECT lease_lock.acquire('$name', 'waiter', wait => '2 min')");
			is($s->state, '55P03', "$gid$when: SQLSTATE behind a prepared transaction");
			like($s->errors, qr/could not acquire the lease on resource "$name": prepared transaction "$gid" keeps it/, "$gid$when: the message names it");
			like($s->detail, qr/^Token $old of "victim" expired at .* A prepared transaction cannot be evicted\.$/, "$gid$when: the detail says why");
			cmp_ok($s->elapsed, '<', $ttl + $evict_after + 5 + $late, "$gid$when: before the caller's time is up");
			is($s->query_ok("SELECT lease_lock.try_acquire('$name', 'waiter')"), '', "$gid$when: try_acquire gives NULL");
		}
	}
	is($dba->query_ok('SELECT count(*) FROM pg_prepared_xacts'), '2', 'both are still there');
	$dba->query_ok(q(COMMIT PREPARED 'the write'));
	$dba->query_ok(q(ROLLBACK PREPARED 'the grant'));
	cmp_ok($s->query_ok("SELECT lease_lock.acquire('$_', 'waiter', wait => '10 s')"), '>', 0, "$_ can be had when they are ended") foreach qw(n46 n47);
	is($dba->query_ok(q(SELECT balance FROM account WHERE name = 'n46')), '1', 'the prepared write is there');
	$s->quit;
}

#
# A backend is killed and the server starts anew: leases of its sessions are over,
# others are not, and nobody stands in line.
#
{
	my ($holder, $waiter) = (session('app'), session('other'));
	my $token = $holder->query_ok(q(SELECT lease_lock.acquire('n51', 'holder', ttl => '1 h', scope => 'session')));
	my $lease = $holder->query_ok(q(SELECT lease_lock.acquire('n52', 'holder', ttl => '1 h')));
	my $pid = $holder->pid;

	ok(wait_in_line($waiter, 'n51', '10 min'), 'one waits');
	signal_backend('KILL', $pid);
	$waiter->result;
	isnt($waiter->state, '', 'a crash ends the wait with an error');
	ok($node->poll_query_until('postgres', "SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $pid)"), 'the server comes back after a crash');
	$_->quit foreach ($holder, $waiter, $dba);
	$dba = LeaseTest::Session->new($node);
	($holder, $waiter) = (session('app'), session('other'));
	is($dba->query_ok('SELECT count(*) FROM lease_lock.waiters'), '0', 'nobody waits after a crash');
	is(status('n51', $token), 'expired', 'a session that was killed: its lease is over');
	is(status('n52', $lease), 'held', 'a session that was killed: one of scope lease is not');
	is($holder->query_ok("SELECT lease_lock.renew('n51', $token)"), '', 'the program that comes back does not have it');
	cmp_ok($waiter->query_ok(q(SELECT lease_lock.acquire('n51', 'waiter', wait => '0'))), '>', $token, 'and somebody else gets it at once');
	isnt($holder->query_ok("SELECT lease_lock.renew('n52', $lease)"), '', 'the other one can be renewed');
	# The area was made anew, and works.
	ok(wait_in_line($waiter, 'n52', '10 min'), 'one waits for that');
	is($holder->query_ok("SELECT lease_lock.release('n52', $lease)"), 't', 'until it is released');
	cmp_ok($waiter->result, '>', $lease, 'and has it');
	$_->quit foreach ($holder, $waiter);
}
is($dba->query_ok('SELECT count(*) FROM lease_lock.waiters'), '0', 'in the end nobody waits');
is($dba->query_ok(q(SELECT count(*) FROM pg_locks WHERE locktype = 'advisory')), '0', 'and no lock of ours is held');
$dba->quit;
$node->stop;
done_testing();
