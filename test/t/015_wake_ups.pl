# Waiters are woken when it is their turn, and only then: a long line idles, one
# release wakes one, an expiry wakes the head, a stopped or leaving waiter does
# not keep the wake-up to itself, and there is no NOTIFY.  Timeouts that end at
# about the moment of a release leave nothing behind, thousands of times.
#
# Naive versions fail: waiters that poll, or that are all woken by a release,
# run all the time; a wake-up given to who is just timing out is lost; a wait
# that is interrupted after the lock was granted keeps it.

use strict;
use warnings;

use FindBin;
use lib $FindBin::Bin;

use IPC::Run ();
use LeaseTest;
use List::Util qw(max min sum0);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time sleep);

# Soon after deadlock_timeout each waiter has looked for rings, and then sleeps.
my $node = lease_server('main', q(
max_connections = 250
deadlock_timeout = 300ms
));
my $dba = LeaseTest::Session->new($node);
my $holder = LeaseTest::Session->new($node);
my $tmp = $PostgreSQL::Test::Utils::tmp_check;
my $timeout = $PostgreSQL::Test::Utils::timeout_default;

# How late, in seconds, a thing may happen that happens at once on an idle machine.
my $late = 3;

# Locks of ours.
my $ours = q(locktype = 'advisory' AND objsubid BETWEEN 19 AND 25);

sub nothing_left
{
	my ($what) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	ok(wait_true($dba, 'SELECT count(*) = 0 FROM lease_lock.waiters'), "$what: nobody is left in line");
	is($dba->query_ok("SELECT count(*) FROM pg_locks WHERE $ours"), '0', "$what: no lock is left");
	return;
}

sub in_line
{
	my ($resource, $n) = @_;

	return wait_true($dba, "SELECT count(*) = $n FROM lease_lock.waiters WHERE resource = '$resource'");
}

sub held_by
{
	my ($resource, $owner) = @_;

	return wait_true($dba, "SELECT count(*) = 1 FROM lease_lock.holders WHERE resource = '$resource' AND owner = '$owner' AND state = 'held'");
}

sub newest
{
	my ($resource) = @_;

	return $dba->query_ok("SELECT token FROM lease_lock.holders WHERE resource = '$resource'");
}

# Starts pgbench with a script, one connection a client.
sub pgbench
{
	my ($name, $script, @options) = @_;
	my $file = "$tmp/$name.sql";
	my $output = '';

	append_to_file($file, $script);
	return IPC::Run::start(
		[
			'pgbench', '-n', '-f', $file, @options, '-h', $node->host, '-p', $node->port,
			'-U', 'postgres', 'postgres'
		],
		'>', \$output, '2>&1');
}

#
# A long line.
#
my $crowd = 200;
my $token = $holder->query_ok(q(SELECT lease_lock.acquire('crowd', 'holder', ttl => '1 h')));
my $bench = pgbench('crowd', q(SELECT lease_lock.acquire('crowd', 'waiter ' || :client_id, ttl => '1 h', wait => '1 h');),
	'-c', $crowd, '-j', 2, '-t', 1);

ok(in_line('crowd', $crowd), "$crowd wait in line");
is($dba->query_ok(q(SELECT count(DISTINCT place) || ' to ' || max(place) || ', ' || count(DISTINCT pid) || ' ' || min(holder) FROM lease_lock.waiters)),
	"$crowd to $crowd, $crowd holder", 'and the view numbers them');

# Voluntary context switches by pid: each sleep is one.
sub switches
{
	my %n;

	foreach my $pid (@_)
	{
		my $status = slurp_file("/proc/$pid/status");
		$n{$pid} = $1 if $status =~ /^voluntary_ctxt_switches:\s+(\d+)/m;
	}
	return %n;
}
my $can_count = $^O eq 'linux' && -r '/proc/self/status' && slurp_file('/proc/self/status') =~ /^voluntary_ctxt_switches/m;

SKIP:
{
	skip 'no count of context switches here', 4 unless $can_count;

	my @pids = split /\n/, $dba->query_ok(q(SELECT pid FROM lease_lock.waiters ORDER BY place));
	my $window = 8;

	# The search for rings, once, is behind them.
	sleep 3;
	my $start = time;
	my %before = switches(@pids);
	sleep $window;
	my %after = switches(@pids);
	my $took = time - $start;
	my ($total, $too_many, $most) = (0, 0, 0);

	# The head looks at the expiry; one with n ahead looks around every 2n seconds.
	foreach my $i (0 .. $#pids)
	{
		my $ran = $after{ $pids[$i] } - $before{ $pids[$i] };
		my $looks = 1 + ($i == 0 ? 0 : $took / (2 * $i));

		$total += $ran;
		$most = max($most, $ran);
		$too_many++ if $ran > 5 + 3 * $looks;
	}
	note(sprintf('%d switches of %d waiters in %.1f s, at most %d of one', $total, $crowd, $took, $most));
	is($too_many, 0, 'nobody in line looks around more often than its place asks for');
	cmp_ok($total, '<', $crowd, 'together they run less often than once each');

	# One release, and those who go on waiting.
	my @waiting = @pids[ 2 .. $#pids ];
	%before = switches(@waiting);
	$holder->query_ok("SELECT lease_lock.release('crowd', $token)");
	wait_true($dba, "SELECT count(*) = 1 FROM lease_lock.holders WHERE resource = 'crowd' AND token > $token AND state = 'held'");
	%after = switches(@waiting);
	my $ran = grep { $after{$_} != $before{$_} } @waiting;
	note("$ran of those further back ran at a release");
	cmp_ok($ran, '<', 10, 'one release wakes the head, and not those behind it');

	# Fifty more, one after the other.
	my @last = @pids[ $#pids - 99 .. $#pids ];
	$dba->query_ok(q(
CREATE TABLE pass (took interval);
CREATE PROCEDURE pass_on(name text, times int) LANGUAGE plpgsql
AS $$ DECLARE
	began timestamptz;
	old bigint;
BEGIN
	FOR i IN 1 .. times LOOP
		SELECT token INTO STRICT old FROM lease_lock.holders WHERE resource = name AND state = 'held';
		began := clock_timestamp();
		PERFORM lease_lock.release(name, old);
		COMMIT;
		WHILE NOT EXISTS (SELECT FROM lease_lock.holders WHERE resource = name AND token > old AND state = 'held') LOOP
			PERFORM pg_sleep(0.001);
		END LOOP;
		INSERT INTO pass VALUES (clock_timestamp() - began);
		COMMIT;
	END LOOP;
END $$;
));
	%before = switches(@last);
	$dba->query_ok(q(CALL pass_on('crowd', 50)));
	%after = switches(@last);
	$ran = sum0(map { $after{$_} - $before{$_} } @last);
	note("$ran switches of the last hundred while fifty were granted");
	cmp_ok($ran, '<', 100, 'fifty releases leave those at the end of the line asleep');
}
if ($can_count)
{
	my $slow = $dba->query_ok(q(SELECT max(took) FROM pass));
	note("slowest of fifty hand-overs: $slow");
	is($dba->query_ok("SELECT count(*) FROM pass WHERE took > '$late s'"), '0', 'each is followed by the next grant at once');
	is($dba->query_ok(q(SELECT count(*) FROM lease_lock.waiters)), $crowd - 51, 'each grants one');
}
$dba->query_ok(q(SELECT count(pg_terminate_backend(pid)) FROM lease_lock.waiters));
eval { $bench->finish; };
nothing_left('a terminated crowd');
$dba->query_ok("SELECT lease_lock.force_release('crowd', 'the next test')");

#
# A wake-up that its receiver cannot use is passed on.
#
# Ten wait.  The first nine are stopped, the release wakes the first, and all
# nine are cancelled before they run again.  By itself the tenth would not look
# around before 18 seconds have passed.
#
my @ten = map { LeaseTest::Session->new($node) } 1 .. 10;
$token = $holder->query_ok(q(SELECT lease_lock.acquire('passed on', 'holder', ttl => '1 h')));
foreach my $i (0 .. 9)
{
	$ten[$i]->send("SELECT lease_lock.acquire('passed on', 'waiter $i', ttl => '1 h', wait => '1 h')");
	in_line('passed on', $i + 1) or last;
}
sleep 2.5;
signal_backend('STOP', $ten[$_]->pid) foreach 0 .. 8;
$holder->query_ok("SELECT lease_lock.release('passed on', $token)");
$dba->query_ok('SELECT pg_cancel_backend(' . $ten[$_]->pid . ')') foreach 0 .. 8;
my $cont = time;
signal_backend('CONT', $ten[$_]->pid) foreach reverse 0 .. 8;
$ten[9]->result;
my $took = time - $cont;
is($ten[9]->state, '', 'the tenth is granted when nine before it were cancelled');
cmp_ok($took, '<', 4, sprintf('at once (%.1f s)', $took));
is(join(' ', map { $ten[$_]->result; $ten[$_]->state } 0 .. 8), join(' ', ('57014') x 9), 'and the nine were cancelled');
$dba->query_ok("SELECT lease_lock.force_release('passed on', 'the next test')");
nothing_left('cancelled with a wake-up');

# The same when the one that was woken is terminated, and when it times out.
foreach my $how ('terminate', 'timeout')
{
	my ($first, @others) = map { LeaseTest::Session->new($node) } 1 .. 10;
	my $name = "passed on by $how";

	$token = $holder->query_ok("SELECT lease_lock.acquire('$name', 'holder', ttl => '1 h')");
	$first->query_ok(q(SET statement_timeout = '2500 ms')) if $how eq 'timeout';
	foreach my $session ($first, @others)
	{
		$session->send("SELECT lease_lock.acquire('$name', 'waiter ' || pg_backend_pid(), ttl => '1 h', wait => '1 h')");
		wait_true($dba, 'SELECT count(*) = 1 FROM lease_lock.waiters WHERE pid = ' . $session->pid) or last;
	}
	# All but the last leave, the first with the wake-up, so that the last would
	# look around much later.
	sleep 1;
	my $last = pop @others;
	signal_backend('STOP', $_->pid) foreach ($first, @others);
	$holder->query_ok("SELECT lease_lock.release('$name', $token)");
	if ($how eq 'terminate')
	{
		$dba->query_ok('SELECT pg_terminate_backend(' . $_->pid . ')') foreach ($first, @others);
	}
	else
	{
		$dba->query_ok('SELECT pg_cancel_backend(' . $_->pid . ')') foreach (@others);
		sleep 3;
	}
	$cont = time;
	signal_backend('CONT', $_->pid) foreach reverse ($first, @others);
	$last->result;
	$took = time - $cont;
	is($last->state, '', "$how: the last in line is granted");
	cmp_ok($took, '<', 4, sprintf('%s: at once (%.1f s)', $how, $took));
	$first->result;
	is($first->state, $how eq 'timeout' ? '57014' : '57P01', "$how: who was woken was not");
	$dba->query_ok("SELECT lease_lock.force_release('$name', 'the next test')");
	$_->quit foreach ($first, $last, @others);
	nothing_left("$how with a wake-up");
}

#
# An expiry without a release wakes the head when it can take over.
#
$dba->query_ok(q(
CREATE FUNCTION timed(name text, who text) RETURNS numeric LANGUAGE plpgsql
AS $$ DECLARE
	held bigint := lease_lock.acquire(name, who, ttl => '1 h', wait => '1 min');
	at timestamptz := clock_timestamp();
BEGIN
	PERFORM lease_lock.release(name, held);
	RETURN extract(epoch FROM at);
END $$;
));
my @lateness;
foreach my $i (1 .. 5)
{
	my $ttl = 500 + 200 * $i;
	my $held = $holder->query_ok("SELECT lease_lock.acquire('expiring', 'holder $i', ttl => '$ttl ms')");
	my $expiry = $holder->query_ok("SELECT extract(epoch FROM expire_at) FROM lease_lock.token_status('expiring', $held)");

	foreach my $j (0 .. 2)
	{
		$ten[$j]->send("SELECT timed('expiring', 'waiter $i $j')");
		in_line('expiring', $j + 1) or last;
	}
	my @at = map { $_->result } @ten[ 0 .. 2 ];
	push @lateness, $at[0] - $expiry;
	ok($at[0] < $at[1] && $at[1] < $at[2], "expiry $i: they were granted in the order of their arrival");
}
@lateness = sort { $a <=> $b } @lateness;
note('granted after the expiry: ' . join(' ', map { sprintf('%.1f ms', 1000 * $_) } @lateness));
cmp_ok($lateness[0], '>=', 0, 'an expiry: nobody was granted before it');
cmp_ok($lateness[2], '<', 1, 'and the head as soon as it can be');
cmp_ok($lateness[-1], '<', $late, 'each time');

#
# A stopped head is passed over, and served in its turn when it runs again.
#
$token = $holder->query_ok(q(SELECT lease_lock.acquire('stopped', 'holder', ttl => '1 h')));
foreach my $i (0 .. 3)
{
	$ten[$i]->send("SELECT lease_lock.acquire('stopped', 'waiter $i', ttl => '1 h', wait => '5 min')");
	in_line('stopped', $i + 1) or last;
}
signal_backend('STOP', $ten[0]->pid);
my $start = time;
$holder->query_ok("SELECT lease_lock.release('stopped', $token)");
$ten[1]->result;
$took = time - $start;
is($ten[1]->state, '', 'the second in line is granted while the first is stopped');
cmp_ok($took, '>', 0.5, sprintf('the first is given some time (%.1f s)', $took));
cmp_ok($took, '<', 3 + 3 * $late, 'but not much');
ok(!$ten[2]->ready && !$ten[3]->ready, 'nobody else is granted');
signal_backend('CONT', $ten[0]->pid);
sleep 0.5;
ok(!$ten[0]->ready, 'the stopped one runs again and finds itself waiting');
is($dba->query_ok(q(SELECT string_agg(owner, ', ' ORDER BY place) FROM lease_lock.waiters)), 'waiter 0, waiter 2, waiter 3', 'in its old place');
$dba->query_ok("SELECT lease_lock.release('stopped', " . newest('stopped') . ')');
ok(held_by('stopped', 'waiter 0'), 'the next release is its turn');
ok(!$ten[2]->ready && !$ten[3]->ready, 'and nobody else\'s');
$ten[0]->result;

# Two stopped at the head: the third takes its turn, and if nobody is stopped
# any more, then at once.
signal_backend('STOP', $ten[2]->pid);
$dba->query_ok("SELECT lease_lock.release('stopped', " . newest('stopped') . ')');
ok(held_by('stopped', 'waiter 3'), 'a line of which only the last can run goes on');
signal_backend('CONT', $ten[2]->pid);
$dba->query_ok("SELECT lease_lock.release('stopped', " . newest('stopped') . ')');
ok(held_by('stopped', 'waiter 2'), 'and so does one that has run again just before');
$_->result foreach @ten[ 2, 3 ];
$dba->query_ok("SELECT lease_lock.force_release('stopped', 'the next test')");
nothing_left('stopped waiters');

#
# Twenty sessions of a pool wait, each under some limit, and all are shown.
#
my @pool = (@ten, map { LeaseTest::Session->new($node) } 1 .. 10);
$token = $holder->query_ok(q(SELECT lease_lock.acquire('pool', 'holder of the pool', ttl => '1 h')));
foreach my $i (0 .. $#pool)
{
	$pool[$i]->query_ok($i % 2 ? q(SET lock_timeout = '3 s') : q(SET statement_timeout = '4 s'));
}
$_->send(q(SELECT lease_lock.acquire('pool', 'worker ' || pg_backend_pid(), wait => '30 s'))) foreach @pool;
ok(in_line('pool', 20), 'twenty wait');
is($dba->query_ok(q(SELECT count(*) FILTER (WHERE owner = 'worker ' || pid AND holder = 'holder of the pool' AND role = current_user
	AND waiting_since BETWEEN now() - interval '5 min' AND now() AND deadline > now()) FROM lease_lock.waiters WHERE blocked_by = ARRAY[) . $holder->pid . ']'),
	'20', 'and are shown with owner, holder, who blocks them, since when and until when');
my %ended;
foreach my $i (0 .. $#pool)
{
	my $limit = $i % 2 ? 3 : 4;

	$pool[$i]->result;
	$ended{ ($i % 2 ? 'lock ' : 'statement ') . $pool[$i]->state }++;
	$ended{late}++ if $pool[$i]->elapsed > $limit + $late;
	$ended{early}++ if $pool[$i]->elapsed < $limit - 0.01;
}
is_deeply(\%ended, { 'lock 55P03' => 10, 'statement 57014' => 10 }, 'all end on time and with the right SQLSTATE');
nothing_left('a pool that timed out');
is(newest('pool'), $token, 'nothing has changed for the holder');
$dba->query_ok("SELECT lease_lock.release('pool', $token)");
$_->quit foreach @pool;

# A holder whose session idles in transaction for too long loses that session,
# and goes on from another one; those who wait stay where they are.
my $idler = LeaseTest::Session->new($node);
my $next = LeaseTest::Session->new($node);
$idler->query_ok(q(SET idle_in_transaction_session_timeout = '300 ms'));
$token = $idler->query_ok(q(SELECT lease_lock.acquire('idle', 'idler', ttl => '1 h')));
$next->send(q(SELECT lease_lock.acquire('idle', 'next', wait => '5 min')));
in_line('idle', 1);
$idler->query_ok('BEGIN; SELECT 1');
ok(wait_true($dba, 'SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = ' . $idler->pid), 'a holder that idles in transaction is thrown out');
$idler->quit;
ok(!$next->ready, 'its lease goes to nobody else');
is($dba->query_ok(q(SELECT blocked_by FROM lease_lock.waiters)), '{}', 'the session that has gone is not shown as what blocks');
$idler = LeaseTest::Session->new($node);
isnt($idler->query_ok("SELECT lease_lock.renew('idle', $token)"), '', 'from another connection it renews');
isnt($idler->query_ok("SELECT lease_lock.assert_held('idle', $token)"), '', 'asserts');
is($idler->query_ok("SELECT lease_lock.release('idle', $token)"), 't', 'and releases');
$next->result;
is($next->state, '', 'and then the next is granted');
$_->quit foreach ($idler, $next);

#
# No NOTIFY: with a listener that cannot go on, its queue would fill.  The name
# is as long as a name can be.
#
my $listener = LeaseTest::Session->new($node);
$listener->query_ok('LISTEN anything');
$listener->query_ok('BEGIN; SELECT 1');
$dba->query_ok(q(
CREATE TABLE account (id int PRIMARY KEY, balance int);
INSERT INTO account VALUES (1, 0);
SELECT lease_lock.guard('account', repeat('é', 256));
CREATE PROCEDURE tenures(times int, who text) LANGUAGE plpgsql
AS $$ DECLARE
	name text := repeat('é', 256);
	held bigint;
BEGIN
	FOR i IN 1 .. times LOOP
		held := lease_lock.acquire(name, who, wait => '1 min');
		COMMIT;
		PERFORM lease_lock.renew(name, held);
		COMMIT;
		PERFORM lease_lock.present(name, held);
		UPDATE account SET balance = balance + 1;
		COMMIT;
		IF NOT lease_lock.release(name, held) THEN
			RAISE 'not released';
		END IF;
		COMMIT;
	END LOOP;
END $$;
));
my @hands = map { LeaseTest::Session->new($node) } 1 .. 3;
$hands[$_]->send("CALL tenures(150, 'hand $_')") foreach 0 .. $#hands;
foreach my $i (0 .. $#hands)
{
	$hands[$i]->result;
	is($hands[$i]->state, '', "hand $i: 150 tenures of a name of 512 bytes, in line with others") or diag($hands[$i]->errors);
	$hands[$i]->quit;
}
is($dba->query_ok('SELECT balance FROM account'), '450', 'all wrote');
is($dba->query_ok('SELECT pg_notification_queue_usage()'), '0', 'nothing is in the queue of notifications');
$listener->query_ok('ROLLBACK');
unlike($listener->query_ok('SELECT 1') . $listener->errors, qr/notif/i, 'and nobody was notified');
$listener->quit;

#
# Timeouts against releases.  Each round a worker's wait ends, by its own limit,
# statement_timeout or lock_timeout, at about the moment when the holder
# releases.  Then it is settled: who was granted holds, who was told an error
# has nothing.
#
$dba->query_ok(q(
CREATE TABLE outcome (what text, state text);
CREATE TABLE leak (what text, detail text);
CREATE FUNCTION settle(what text, name text, who text, state text) RETURNS void LANGUAGE plpgsql
AS $$ DECLARE
	held bigint;
	n int;
BEGIN
	INSERT INTO outcome VALUES (what, state);
	SELECT h.token INTO held FROM lease_lock.holders h WHERE h.resource = name AND h.owner = who;
	SELECT count(*) INTO n FROM pg_locks l
		WHERE l.pid = pg_backend_pid() AND l.locktype = 'advisory' AND l.objsubid BETWEEN 19 AND 25;
	IF n > 0 THEN
		INSERT INTO leak VALUES (what, format('%s: %s locks after %s', who, n, state));
	END IF;
	IF EXISTS (SELECT FROM lease_lock.waiters w WHERE w.pid = pg_backend_pid()) THEN
		INSERT INTO leak VALUES (what, format('%s: in line after %s', who, state));
	END IF;
	IF state = '00000' THEN
		PERFORM pg_sleep(random() * 0.004);
		IF held IS NULL OR NOT lease_lock.release(name, held) THEN
			INSERT INTO leak VALUES (what, format('%s: granted and not held', who));
		END IF;
	ELSIF held IS NOT NULL THEN
		INSERT INTO leak VALUES (what, format('%s: held after %s', who, state));
		PERFORM lease_lock.release(name, held);
	ELSIF state NOT IN ('55P03', '57014') THEN
		INSERT INTO leak VALUES (what, format('%s: SQLSTATE %s', who, state));
	END IF;
END $$;

-- The same, caught in a block.  The limit can also end what follows the call in
-- it, which does not undo a call for a lock of the session.
CREATE FUNCTION caught(sql text) RETURNS text LANGUAGE plpgsql
AS $$ DECLARE
	returned text;
BEGIN
	EXECUTE sql INTO returned;
	RETURN '00000';
EXCEPTION WHEN lock_not_available OR query_canceled THEN
	IF returned IS NOT NULL AND sql LIKE '%lease_lock.advisory_lock%' THEN
		RETURN '00000';
	END IF;
	INSERT INTO leak SELECT sql, 'a lock after a caught error' FROM pg_locks l
		WHERE l.pid = pg_backend_pid() AND l.locktype = 'advisory' AND l.objsubid BETWEEN 19 AND 25;
	INSERT INTO leak SELECT sql, 'in line after a caught error' FROM lease_lock.waiters w WHERE w.pid = pg_backend_pid();
	RETURN SQLSTATE;
END $$;

-- Named locks: what the lock table and the view know of this session.
CREATE FUNCTION named_here() RETURNS text LANGUAGE sql
AS $$ SELECT format('in pg_locks: %s; listed: %s',
	(SELECT string_agg(CASE l.mode WHEN 'ShareLock' THEN 'shared' ELSE 'exclusive' END, ' ') FROM pg_locks l
		WHERE l.pid = pg_backend_pid() AND l.locktype = 'advisory' AND l.objsubid BETWEEN 19 AND 25),
	(SELECT string_agg(CASE WHEN a.granted THEN a.mode ELSE 'not granted' END, ' ')
		FROM lease_lock.advisory_locks a WHERE a.pid = pg_backend_pid())) $$;
CREATE FUNCTION check_held(what text, wanted text) RETURNS void LANGUAGE plpgsql
AS $$ BEGIN
	INSERT INTO leak SELECT what, here || ' when taken ' || wanted FROM named_here() AS here
		WHERE here <> format('in pg_locks: %s; listed: %s', wanted, wanted);
	INSERT INTO leak SELECT what, format('%s, and %s by another', wanted, l.mode) FROM pg_locks l
		WHERE l.pid <> pg_backend_pid() AND l.granted AND l.locktype = 'advisory' AND l.objsubid = 24
		AND (wanted = 'exclusive' OR l.mode = 'ExclusiveLock');
	PERFORM pg_sleep(random() * 0.004);
END $$;
CREATE FUNCTION settle_named(what text, key text, mode text, state text, in_session boolean) RETURNS void LANGUAGE plpgsql
AS $$ BEGIN
	INSERT INTO outcome VALUES (what, state);
	IF state = '00000' AND in_session THEN
		PERFORM check_held(what, mode);
		IF NOT lease_lock.advisory_unlock(key, mode = 'shared') THEN
			INSERT INTO leak VALUES (what, 'taken and not held');
		END IF;
	ELSIF state NOT IN ('00000', '55P03', '57014') THEN
		INSERT INTO leak VALUES (what, format('SQLSTATE %s', state));
	END IF;
	IF named_here() <> 'in pg_locks: ; listed: ' THEN
		INSERT INTO leak VALUES (what, format('%s after %s', named_here(), state));
		PERFORM pg_advisory_unlock_all();
	END IF;
END $$;
));

# A script for psql of so many rounds.  ROUND gives for each what to call, what
# to do while it is held in a transaction, how to settle it, and whether what
# was taken outlives a rollback.
sub race_script
{
	my ($worker, $rounds, $round) = @_;
	my $script = "SET client_min_messages = error;\n";

	foreach my $i (1 .. $rounds)
	{
		my $ms = 1 + int(rand(15));
		my $limit = qw(wait statement lock)[ rand 3 ];
		my $form = qw(plain caught block savepoint)[ rand 4 ];
		my ($call, $hold, $settle, $survives) = $round->("$worker/$i", $limit eq 'wait' ? "$ms ms" : '1 h', "$limit, $form");
		my $set = $limit eq 'wait' ? '' : "SET ${limit}_timeout";
		my $set_local = $limit eq 'wait' ? '' : "SET LOCAL ${limit}_timeout";

		if ($form =~ /^(block|savepoint)$/)
		{
			$script .= "BEGIN;\n";
			$script .= "$set_local = $ms;\n" if $set;
			$script .= "SAVEPOINT s;\n" if $form eq 'savepoint';
			$script .= "$call;\n\\set state :SQLSTATE\n\\set failed :ERROR\n";
			$script .= "\\if :failed\nROLLBACK TO s;\n\\endif\n" if $form eq 'savepoint';
			# The limit can also end what comes next, and the transaction with it.
			my $aborted = $survives ? '' : "\\if :ERROR\n\\set state :SQLSTATE\n\\set failed true\n\\endif\n";
			$script .= "\\if :failed\n$set_local = 0;\n\\else\n$set_local = 0;\n$aborted\\endif\n" if $set;
			$script .= "\\if :failed\n\\else\n$hold;\n\\endif\n" if $hold;
			$script .= "COMMIT;\n$aborted";
		}
		else
		{
			$script .= "$set = $ms;\n" if $set;
			$script .= $form eq 'plain' ? "$call;\n\\set state :SQLSTATE\n" :
				"\\unset state\nSELECT caught(\$sql\$$call\$sql\$) AS state \\gset\n\\if :{?state}\n\\else\n\\set state :SQLSTATE\n\\endif\n";
			# More than once: the old limit holds for this one.
			$script .= "$set = 0;\n$set = 0;\n$set = 0;\n" if $set;
		}
		$script .= "$settle;\n";
	}
	return $script;
}

# Runs scripts side by side; reports what came of them.
sub race
{
	my ($what, $workers, $rounds, $round) = @_;
	my @runs;

	foreach my $worker (1 .. $workers)
	{
		my $file = "$tmp/race_" . ($what =~ s/\W+/_/gr) . "_$worker.sql";
		my $run = { errors => '' };

		append_to_file($file, race_script("worker $worker", $rounds, $round));
		$run->{run} = IPC::Run::start([ 'psql', '-X', '-q', '-v', 'VERBOSITY=sqlstate', '-o', '/dev/null', '-d', $node->connstr('postgres'), '-f', $file ],
			'>', '/dev/null', '2>', \$run->{errors}, IPC::Run::timeout($timeout));
		push @runs, $run;
	}
	$_->{run}->finish foreach @runs;

	# A limit that was meant for the call can end something else, too.
	my @strange = grep { !/(ERROR|FATAL):\s+(55P03|57014|25P02)/ } map { split /\n/, $_->{errors} } @runs;
	is(join("\n", @strange), '', "$what: no other errors");
	note("$what: " . $dba->query_ok(q(SELECT string_agg(state || ': ' || n, ', ' ORDER BY state) FROM (SELECT state, count(*) AS n FROM outcome GROUP BY state) AS s)));
	cmp_ok($dba->query_ok('SELECT count(*) FROM outcome'), '>', 0.98 * $workers * $rounds, "$what: " . $workers * $rounds . ' rounds were settled');
	is($dba->query_ok(q(SELECT count(*) FILTER (WHERE state = '00000') >= 40 AND count(*) FILTER (WHERE state <> '00000') >= 40 FROM outcome)),
		't', "$what: limits were kept in some rounds and passed in others");
	is($dba->query_ok('SELECT count(*) FROM leak'), '0', "$what: no leak") or diag($dba->query_ok('SELECT * FROM leak LIMIT 20'));
	nothing_left($what);
	is($dba->query_ok('SELECT count(*) FROM lease_lock.advisory_locks'), '0', "$what: no named lock is listed");
	$dba->query_ok('TRUNCATE outcome, leak');
	return;
}

race('leases', 4, 800, sub {
	my ($who, $wait, $what) = @_;

	return ("SELECT lease_lock.acquire('race', '$who', ttl => '1 h', wait => '$wait')", '',
		"SELECT settle('$what', 'race', '$who', :'state')");
});
cmp_ok($dba->query_ok(q(SELECT lease_lock.acquire('race', 'last', wait => '0'))), '>', 0, 'the next acquire succeeds at once');

race('named locks', 4, 600, sub {
	my ($who, $wait, $what) = @_;
	my $mode = rand() < 0.3 ? 'shared' : 'exclusive';
	my $shared = $mode eq 'shared' ? 'true' : 'false';

	# The statement may fail after it took the lock, too.
	my $rest = $what !~ /caught/ && rand() < 0.5 ? ', pg_sleep(0.003)' : '';

	return ("SELECT lease_lock.advisory_lock('race', $shared, '$wait')$rest", '',
		"SELECT settle_named('$what', 'race', '$mode', :'state', true)", 1);
});
race('named locks of transactions', 3, 500, sub {
	my ($who, $wait, $what) = @_;
	my $mode = rand() < 0.3 ? 'shared' : 'exclusive';
	my $shared = $mode eq 'shared' ? 'true' : 'false';

	return ("SELECT lease_lock.advisory_xact_lock('race', $shared, '$wait')", "SELECT check_held('$what', '$mode')",
		"SELECT settle_named('$what', 'race', '$mode', :'state', false)");
});

#
# Eight workers on one key are served alike.
#
$dba->query_ok('CREATE TABLE served (id bigserial, worker int)');
$bench = pgbench('fair', q(SELECT lease_lock.acquire('fair', 'worker ' || :client_id, wait => '1 min') AS held \gset
INSERT INTO served (worker) VALUES (:client_id);
SELECT lease_lock.release('fair', :held);
), '-c', 8, '-j', 2, '-T', 6);
ok($bench->finish, 'eight workers on one key') or diag('pgbench failed');
note('grants: ' . $dba->query_ok(q(SELECT string_agg(n::text, ' ') FROM (SELECT count(*) AS n FROM served GROUP BY worker) AS s)));
is($dba->query_ok('SELECT count(DISTINCT worker) FROM served'), '8', 'all are served');
is($dba->query_ok('SELECT min(n) >= 0.9 * max(n) FROM (SELECT count(*) AS n FROM served GROUP BY worker) AS s'), 't',
	'the one that was served least has at least 0.9 of the most');
note('others between two grants of a worker: ' . $dba->query_ok(q(SELECT string_agg(others || ' in ' || n, ', ' ORDER BY others) FROM
	(SELECT others, count(*) AS n FROM (SELECT rank - lag(rank) OVER (PARTITION BY worker ORDER BY rank) - 1 AS others FROM
	(SELECT worker, row_number() OVER (ORDER BY id) AS rank FROM served) AS r) AS o GROUP BY others) AS g)));
nothing_left('fairness');

$_->quit foreach ($holder, $dba);
$node->stop;
done_testing();
