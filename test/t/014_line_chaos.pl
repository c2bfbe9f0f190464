# Waiting in line under chaos: for a minute two dozen sessions acquire, hold,
# renew, release and abandon a handful of names, while sessions are terminated,
# cancelled, stopped and continued at random.  One holder a name, tokens that
# rise, the order of arrival kept, nobody asleep beside a free lease, an empty
# registry at the end, and no ring seen where there is none.
#
# Naive versions fail: one that wakes all and lets them race keeps no order;
# one that loses a wake-up, or gives it to somebody who is leaving, lets
# waiters sleep beside a free lease; one that forgets the dead keeps a line
# from moving, or shows waiters that are none.
#
# LINE_CHAOS_SEED sets the seed of all choices, LINE_CHAOS_SECONDS the length.

use strict;
use warnings;

use FindBin;
use lib $FindBin::Bin;

use LeaseTest;
use List::Util qw(max sum0);
use POSIX ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time sleep);

my $seed = $ENV{LINE_CHAOS_SEED} // (time * 1000 ^ $$) % 1_000_000_000;
my $seconds = $ENV{LINE_CHAOS_SECONDS} // 60;
my @names = map { "name $_" } 1 .. 4;
my @quiet = ('quiet name 1', 'quiet name 2');    # where all are patient, so that nothing but wake-ups moves the line
my $n_steppers = 14;    # sessions that are told each step
my $n_hammers = 10;     # sessions that run loops in the server

# How long a lease may be seen free beside sleeping waiters, in seconds of the
# test's own attention; more for every stopped process in the line.
my $free_limit = 3;
my $free_limit_per_stopped = 4;

srand($seed);
my $node = lease_server('main');
my $dba = LeaseTest::Session->new($node);

$dba->query_ok(q(
CREATE TABLE guarded (resource text PRIMARY KEY, token bigint NOT NULL);
CREATE TABLE grants (id bigserial, resource text, owner text, pid int, scope text, token bigint,
	began timestamptz, granted_at timestamptz, expire_at timestamptz);
CREATE TABLE renewals (token bigint, expire_at timestamptz);
CREATE TABLE ends (token bigint, ended_at timestamptz, how text);
CREATE TABLE writes (id bigserial, resource text, token bigint);
CREATE TABLE seen (at timestamptz, resource text, owners text[]);
CREATE TABLE stopped (pid int, during tstzrange);
CREATE TABLE terminated (pid int, at timestamptz);
CREATE TABLE finish (now boolean);

-- A grant is recorded by its own transaction, so that ids are in the order of
-- the grants' commits.
CREATE FUNCTION take(resource text, owner text, ttl interval, wait interval, scope text) RETURNS bigint LANGUAGE plpgsql
AS $$ DECLARE
	began timestamptz := clock_timestamp();
	token bigint;
BEGIN
	IF wait IS NULL THEN
		token := lease_lock.try_acquire(resource, owner, ttl, scope);
	ELSE
		token := lease_lock.acquire(resource, owner, ttl, wait, scope);
	END IF;
	IF token IS NOT NULL THEN
		INSERT INTO grants (resource, owner, pid, scope, token, began, granted_at, expire_at)
			VALUES (resource, owner, pg_backend_pid(), scope, token, began, clock_timestamp(),
				(lease_lock.token_status(resource, token)).expire_at);
	END IF;
	RETURN token;
END $$;
CREATE FUNCTION extend(resource text, held bigint) RETURNS void LANGUAGE sql
AS $$ INSERT INTO renewals SELECT held, r FROM lease_lock.renew(resource, held) AS r WHERE r IS NOT NULL $$;
CREATE FUNCTION work(name text, held bigint) RETURNS void LANGUAGE plpgsql
AS $$ BEGIN
	PERFORM lease_lock.present(name, held);
	UPDATE guarded SET token = held WHERE resource = name;
	INSERT INTO writes (resource, token) VALUES (name, held);
END $$;

-- An end is no earlier than what is recorded for it.
CREATE FUNCTION ends(held bigint, how text) RETURNS void LANGUAGE sql
AS $$ INSERT INTO ends VALUES (held, clock_timestamp(), how) $$;
CREATE FUNCTION drop(resource text, held bigint) RETURNS void LANGUAGE plpgsql
AS $$ BEGIN
	IF lease_lock.release(resource, held) THEN
		PERFORM ends(held, 'release');
	END IF;
END $$;

-- A tenure that is over when the call is.
CREATE FUNCTION take_alone(resource text, owner text, ttl interval, wait interval, scope text) RETURNS bigint LANGUAGE plpgsql
AS $$ DECLARE
	token bigint := take(resource, owner, ttl, wait, scope);
BEGIN
	IF token IS NOT NULL THEN
		PERFORM pg_sleep(random() * 0.1);
		PERFORM ends(token, 'transaction');
	END IF;
	RETURN token;
END $$;

-- Ends what this session holds still, because of a cancel at a bad moment.
CREATE FUNCTION give_up() RETURNS void LANGUAGE plpgsql
AS $$ BEGIN
	PERFORM drop(h.resource, h.token) FROM lease_lock.holders h WHERE h.grant_pid = pg_backend_pid() AND h.state = 'held';
	PERFORM ends(g.token, 'given up') FROM grants g WHERE g.scope = 'session' AND g.pid = pg_backend_pid();
	PERFORM pg_advisory_unlock_all();
END $$;

-- Ends leases whose sessions have gone.
CREATE PROCEDURE put_away() LANGUAGE plpgsql
AS $$ DECLARE
	name text;
BEGIN
	FOR name IN SELECT h.resource FROM lease_lock.holders h
		WHERE h.state = 'held' AND NOT EXISTS (SELECT FROM pg_stat_activity a WHERE a.pid = h.grant_pid)
	LOOP
		BEGIN
			PERFORM ends(lease_lock.force_release(name, 'its session has gone'), 'forced');
		EXCEPTION WHEN lock_not_available THEN
		END;
		COMMIT;
	END LOOP;
END $$;

-- Many short tenures without a word from outside.
CREATE PROCEDURE hammer(names text[], who text, times int) LANGUAGE plpgsql
AS $$ DECLARE
	name text;
	held bigint;
BEGIN
	FOR i IN 1 .. times LOOP
		name := names[1 + floor(random() * cardinality(names))];
		held := NULL;
		BEGIN
			held := take(name, who || '/' || i, random() * 400 * interval '1 ms' + interval '30 ms',
				CASE WHEN random() < 0.8 THEN random() * random() * 2000 * interval '1 ms' END,
				CASE WHEN random() < 0.1 THEN 'session' ELSE 'lease' END);
		EXCEPTION WHEN lock_not_available OR query_canceled THEN
		END;
		IF random() < 0.1 THEN
			PERFORM pg_sleep(random() * 0.02);
			ROLLBACK;
			CONTINUE;
		END IF;
		COMMIT;
		CONTINUE WHEN held IS NULL;
		IF random() < 0.5 THEN
			PERFORM pg_sleep(random() * 0.03);
		END IF;
		IF random() < 0.5 THEN
			BEGIN
				PERFORM work(name, held);
			EXCEPTION WHEN SQLSTATE 'LL001' OR SQLSTATE 'LL003' THEN
			END;
			IF random() < 0.1 THEN
				PERFORM pg_sleep(random() * 0.02);
			END IF;
			COMMIT;
		END IF;
		IF random() < 0.9 THEN
			PERFORM drop(name, held);
			IF random() < 0.1 THEN
				PERFORM pg_sleep(random() * 0.02);
				ROLLBACK;
				PERFORM drop(name, held);
			END IF;
			COMMIT;
		END IF;
	END LOOP;
END $$;

-- Looks at the lines all the time.
CREATE PROCEDURE watch() LANGUAGE plpgsql
AS $$ BEGIN
	LOOP
		INSERT INTO seen SELECT clock_timestamp(), w.resource, w.owners FROM
			(SELECT resource, array_agg(owner ORDER BY place) AS owners FROM lease_lock.waiters GROUP BY resource OFFSET 0) AS w;
		EXIT WHEN EXISTS (SELECT FROM finish);
		COMMIT;
		PERFORM pg_sleep(0.004);
	END LOOP;
END $$;
));
$dba->query_ok(qq(INSERT INTO guarded VALUES ('$_', 0))) foreach (@names, @quiet);
$dba->query_ok(q(SELECT lease_lock.guard('guarded', '{resource}')));

#
# What the sessions do.
#
my %session;      # by number: { session, kind, busy until }
my $episodes = 0;

sub ms { return sprintf("%d ms", 1 + rand($_[0])); }
sub seconds { return sprintf('%.3f', rand($_[0])); }

# One tenure, as a script for psql.  It begins with a backslash, so that it is
# passed on as it is.
sub episode
{
	my ($who) = @_;
	my $is_quiet = rand() < 0.5;
	my $name = $is_quiet ? $quiet[ rand @quiet ] : $names[ rand @names ];
	my $owner = "$who/" . ++$episodes;
	my $in_transaction = rand() < 0.35;
	my $scope = rand() < 0.25 ? 'session' : rand() < ($in_transaction ? 0.3 : 0.1) ? 'transaction' : 'lease';
	my $take = $scope eq 'transaction' && !$in_transaction ? 'take_alone' : 'take';
	my $ttl = rand() < 0.3 ? ms(300) : rand() < 0.9 ? '60 s' : ms(3000);
	my $wait = rand() < 0.2 ? 'NULL' : q(') . ($is_quiet ? '40 s' : rand() < 0.3 ? ms(300) : ms(8000)) . q(');
	my $sql = "\\unset token\nSELECT give_up();\n";

	$sql .= "SET statement_timeout = '" . ms(4000) . "';\n" if rand() < 0.1 && !$is_quiet;
	$sql .= "SET lock_timeout = '" . ms(4000) . "';\n" if rand() < 0.1 && !$is_quiet;
	$sql .= "BEGIN;\n" if $in_transaction;
	$sql .= "SELECT $take('$name', '$owner', '$ttl', $wait, '$scope') AS token \\gset\n";
	$sql .= "SET statement_timeout = 0; SET lock_timeout = 0;\n";
	$sql .= "\\if :{?token}\n";
	$sql .= 'SELECT pg_sleep(' . seconds(0.15) . ");\n" if rand() < 0.7;
	$sql .= '\\! sleep ' . seconds(0.15) . "\n" if rand() < 0.1;
	$sql .= "SELECT extend('$name', :token);\n" if rand() < 0.2;
	$sql .= "SELECT work('$name', :token);\n" if rand() < 0.6;
	$sql .= 'SELECT pg_sleep(' . seconds(0.1) . ");\n" if rand() < 0.3;
	$sql .= "SELECT ends(:token, 'transaction');\n" if $scope eq 'transaction' && $in_transaction;
	$sql .= (rand() < 0.3 ? 'ROLLBACK' : 'COMMIT') . ";\n" if $in_transaction;
	my $end = rand;
	if ($scope eq 'session' && $end < 0.3)
	{
		# Not if a cancel kept the end from being recorded.
		$sql .= "\\unset done\nSELECT ends(:token, 'quit'), true AS done \\gset\n" .
			"\\if :{?done}\n" . (rand() < 0.5 ? "\\q\n" : "DISCARD ALL;\n") . "\\endif\n";
	}
	elsif ($end < 0.5)
	{
		$sql .= "SELECT drop('$name', :token);\n";
	}
	elsif ($end < 0.85)
	{
		$sql .= "BEGIN; SELECT drop('$name', :token); SELECT pg_sleep(" . seconds(0.1) . '); ' .
			(rand() < 0.3 ? "ROLLBACK; SELECT drop('$name', :token);" : 'COMMIT;') . "\n";
	}
	# Else it is left to expire, or to be put away when the session has gone.
	elsif ($ttl eq '60 s' && $scope eq 'lease')
	{
		$sql .= "\\q\n";
	}
	$sql .= "\\endif\n";
	$sql .= "ROLLBACK;\n" if $in_transaction;
	return $sql;
}

sub start_session
{
	my ($i) = @_;

	$session{$i} = {
		session => LeaseTest::Session->new($node),
		kind => $i < $n_steppers ? 'step' : 'hammer',
		idle_until => 0
	};
	return;
}

# SQLSTATEs that the chaos explains: timeouts, cancels, terminations, leases
# that ended under their holder, and what follows in a transaction that failed.
my %expected = map { $_ => 1 } qw(55P03 57014 57P01 LL001 LL003 25P02 lost);
my %states;
my $unexpected = '';

sub collect
{
	my ($session) = @_;
	my %seen;

	$session->result;
	foreach my $state ($session->errors =~ /(?:ERROR|FATAL):\s+([0-9A-Z]{5}):/g)
	{
		$states{$state}++;
		$seen{$state} = 1;
	}
	$states{lost}++ if $session->state eq 'lost';
	$unexpected .= $session->errors if grep { !$expected{$_} } keys %seen;
	return;
}

# Gives every session that is free something to do, or the end of what it did.
sub drive
{
	my ($more) = @_;

	foreach my $i (sort { $a <=> $b } keys %session)
	{
		my $s = $session{$i};

		if ($s->{busy})
		{
			my $alive = $s->{session}{run}->pumpable;

			next unless $s->{session}->ready || !$alive;
			collect($s->{session});
			$s->{busy} = 0;
			$s->{idle_until} = time + ($s->{kind} eq 'step' && rand() < 0.3 ? rand(0.3) : 0);
			if ($s->{session}{lost} || $s->{session}->state eq '57P01')
			{
				$s->{session}->quit;
				delete $session{$i};
			}
		}
		next unless $more && (!$session{$i} || time >= $session{$i}{idle_until});
		start_session($i) unless $session{$i};
		$s = $session{$i};
		if ($s->{kind} eq 'step')
		{
			$s->{session}->send(episode("s$i"));
		}
		else
		{
			my $names = "'{" . join(',', map { qq("$_") } @names[ 0 .. 1 + rand(@names - 1) ]) . "}'";
			$s->{session}->send("SELECT give_up(); SELECT setseed(" . rand() . "); CALL hammer($names, 'h$i/" . ++$episodes . "', 150)");
		}
		$s->{busy} = 1;
	}
	return;
}

#
# What is done to them.
#
my %stopped;    # pid of a helper => { pid, since }
my %count = map { $_ => 0 } qw(terminated cancelled stopped heads_stopped);

# Stops a backend for a while.  A process of its own continues it, whatever
# this one waits for.
sub stop_for
{
	my ($pid, $time) = @_;
	my $helper = fork() // die "fork: $!";

	if ($helper == 0)
	{
		kill('STOP', $pid);
		select(undef, undef, undef, $time);
		kill('CONT', $pid);
		POSIX::_exit(0);
	}
	$stopped{$helper} = { pid => $pid, since => time };
	return;
}

sub reap_stopped
{
	foreach my $helper (keys %stopped)
	{
		my $s = $stopped{$helper};

		next if waitpid($helper, POSIX::WNOHANG()) == 0;
		# It may not have run again at once.
		$dba->query_ok(sprintf(q(INSERT INTO stopped VALUES (%d, tstzrange(to_timestamp(%.6f), to_timestamp(%.6f)))),
				$s->{pid}, $s->{since}, time + 1));
		delete $stopped{$helper};
	}
	return;
}

# The lines as they are; each row: resource, pid, place, blocked, state, token, now.
my @line;

sub do_harm
{
	my @alive = map { $session{$_}{session} } sort { $a <=> $b } keys %session;
	my $victim = $alive[ rand @alive ];
	my $what = rand;

	if ($what < 0.35)
	{
		my $pid = $victim->pid;

		$dba->query_ok("INSERT INTO terminated VALUES ($pid, clock_timestamp()); SELECT pg_terminate_backend($pid)");
		$count{terminated}++;
	}
	elsif ($what < 0.6)
	{
		$dba->query_ok('SELECT pg_cancel_backend(' . $victim->pid . ')');
		$count{cancelled}++;
	}
	elsif (keys %stopped < 2)
	{
		my @heads = grep { $_->{place} == 1 } @line;
		my $among = rand() < 0.6 && @heads ? \@heads : \@line;
		my $pid = rand() < 0.9 && @$among ? $among->[ rand @$among ]{pid} : $victim->pid;

		return if grep { $_->{pid} == $pid } values %stopped;
		$count{heads_stopped}++ if grep { $_->{pid} == $pid } @heads;
		stop_for($pid, rand() < 0.6 ? rand(1) : rand(4));
		$count{stopped}++;
	}
	return;
}

#
# Nobody asleep beside a free lease.
#
my %free;    # by resource: what was seen free, for how long, beside how many stopped
my @asleep;
my $longest_free = 0;
my $watched = 0;
my $last_look = time;

sub look
{
	my $now = time;
	# Only what the test has watched counts, so that a machine at a standstill
	# is nobody's fault.
	my $step = $now - $last_look < 0.1 ? $now - $last_look : 0.1;
	my %pid_stopped = map { $_->{pid} => 1 } values %stopped;
	my %still_free;

	$last_look = $now;
	@line = map { my %r; @r{qw(resource pid place owner blocked state token)} = split /\|/, $_, -1; \%r }
		split /\n/, $dba->query_ok(q(SELECT w.resource, w.pid, w.place, w.owner, coalesce(w.blocked_by <> '{}', false),
			coalesce(h.state, 'free'), h.token
			FROM lease_lock.waiters w LEFT JOIN lease_lock.holders h ON h.resource = w.resource ORDER BY w.place));

	# A process that was stopped elsewhere may hold anything.
	my %waits = map { $_->{pid} => 1 } @line;
	my $elsewhere = grep { !$waits{$_} } keys %pid_stopped;
	$watched += $step unless $elsewhere;

	foreach my $head (grep { $_->{place} == 1 } @line)
	{
		my $name = $head->{resource};
		my $what = "$head->{pid} $head->{owner} $head->{token}";
		my $n_stopped = grep { $_->{resource} eq $name && $pid_stopped{ $_->{pid} } } @line;
		my $was = $free{$name};

		next if $head->{blocked} eq 't' || $head->{state} =~ /^(held|uncommitted|prepared)$/;
		$was = { what => $what, clean => 0, all => 0, n_stopped => 0 } unless $was && $was->{what} eq $what;
		if (!$elsewhere)
		{
			$was->{all} += $step;
			$was->{clean} += $step if $n_stopped == 0;
			$was->{n_stopped} = max($was->{n_stopped}, $n_stopped);
		}
		$longest_free = max($longest_free, $was->{clean});
		if (($was->{clean} > $free_limit || $was->{all} > $free_limit + $was->{n_stopped} * $free_limit_per_stopped) &&
			!$was->{told}++)
		{
			push @asleep, sprintf('%s: pid %d (%s) slept for %.1f s, %.1f of them with nobody stopped in line, beside %s (newest token %s); %d stopped',
				$name, $head->{pid}, $head->{owner}, $was->{all}, $was->{clean}, $head->{state}, $head->{token} || 'none', $was->{n_stopped});
		}
		$still_free{$name} = $was;
	}
	%free = %still_free;
	return;
}

#
# The minute.
#
note("LINE_CHAOS_SEED=$seed");
start_session($_) foreach 0 .. $n_steppers + $n_hammers - 1;
my $watcher = LeaseTest::Session->new($node);
my $janitor = LeaseTest::Session->new($node);

$watcher->send('CALL watch()');
$janitor->send('CALL put_away()');
my $next_harm = time + 1;
my $end = time + $seconds;
my $put_away = 0;

while (time < $end)
{
	drive(1);
	look();
	reap_stopped();
	if (time > $next_harm)
	{
		do_harm();
		$next_harm = time + rand(0.25);
	}
	if ($janitor->ready && time > $put_away)
	{
		$janitor->result;
		$put_away = time + 0.3;
		$janitor->send('CALL put_away()');
	}
	sleep 0.005;
}

# Let them come to their ends; each wait has one.
my $patience = time + $PostgreSQL::Test::Utils::timeout_default;
while ((grep { $_->{busy} } values %session or keys %stopped) && time < $patience)
{
	drive(0);
	look();
	reap_stopped();
	if ($janitor->ready)
	{
		$janitor->result;
		$janitor->send('CALL put_away()');
	}
	sleep 0.02;
}
is(scalar(grep { $_->{busy} } values %session), 0, "seed $seed: every session comes to its end");
$_->{session}->quit foreach values %session;
$dba->query_ok('INSERT INTO finish VALUES (true)');
$watcher->result;
is($watcher->state, '', 'the lines could be looked at all the time') or diag($watcher->errors);
$janitor->result;
is($janitor->state, '', 'and leases of the dead be put away') or diag($janitor->errors);
ok(wait_true($dba, q(SELECT count(*) <= 3 FROM pg_stat_activity WHERE backend_type = 'client backend')), 'the sessions have gone');

#
# The registry is empty, and every name is free.
#
is($dba->query_ok('SELECT count(*) FROM lease_lock.waiters'), '0', 'nobody is in line at the end');
is($dba->query_ok(q(SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objsubid BETWEEN 19 AND 25)), '0', 'and no lock of ours is left');
$dba->query_ok('CALL put_away()');
foreach my $name (@names, @quiet)
{
	my $token = $dba->query_ok("SELECT lease_lock.acquire('$name', 'last', wait => '0')");

	cmp_ok($token, '>', $dba->query_ok("SELECT max(token) FROM grants WHERE resource = '$name'"), "$name can be acquired at once");
}

#
# What happened, on the record.
#
my $grants = $dba->query_ok('SELECT count(*) FROM grants');
note("$grants grants; " . join(', ', map { "$_: $count{$_}" } sort keys %count));
note('errors: ' . join(', ', map { "$_: $states{$_}" } sort keys %states));
note(sprintf('longest seen free beside waiters: %.2f s of %.0f s', $longest_free, $watched));
note('looks at a line of two or more: ' . $dba->query_ok('SELECT count(*) FROM seen WHERE cardinality(owners) > 1'));
is($unexpected, '', 'nobody saw an error that the chaos does not explain');
is(scalar(@asleep), 0, 'nobody slept beside a free lease') or diag(join("\n", @asleep));

# The newest expiry of each grant, and when it ended, at the earliest.
$dba->query_ok(q(
CREATE TABLE tenure AS SELECT g.*, least(
	greatest(g.expire_at, (SELECT max(r.expire_at) FROM renewals r WHERE r.token = g.token)),
	(SELECT min(e.ended_at) FROM ends e WHERE e.token = g.token),
	(SELECT min(t.at) FROM terminated t WHERE g.scope = 'session' AND t.pid = g.pid AND t.at > g.began)) AS ended_at,
	EXISTS (SELECT FROM stopped s WHERE s.pid = g.pid AND s.during && tstzrange(g.began, g.granted_at, '[]')) AS was_stopped
FROM grants g;
CREATE TABLE in_line AS SELECT s.at, s.resource, o.place, t.token, t.owner
	FROM seen s, unnest(s.owners) WITH ORDINALITY AS o (owner, place), tenure t
	WHERE t.owner = o.owner AND NOT t.was_stopped;
));
sub none
{
	my ($sql, $name) = @_;
	my $rows = $dba->query_ok($sql);

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is($rows, '', $name);
	return;
}
none(q(SELECT resource, owner, token, before FROM (SELECT *, max(token) OVER (PARTITION BY resource ORDER BY id ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before FROM grants) AS g
	WHERE token <= before LIMIT 5), 'tokens of a name rise in the order of the grants\' commits');
none(q(SELECT resource, token, before FROM (SELECT *, max(token) OVER (PARTITION BY resource ORDER BY id ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before FROM writes) AS w
	WHERE token < before LIMIT 5), 'no guarded write with an older token follows one with a newer');
none(q(SELECT resource, owner, token, scope, granted_at, ended_at, next_owner, next_token, next_at FROM
	(SELECT *, lead(granted_at) OVER w AS next_at, lead(token) OVER w AS next_token, lead(owner) OVER w AS next_owner FROM tenure WINDOW w AS (PARTITION BY resource ORDER BY token)) AS t
	WHERE next_at < ended_at LIMIT 5), 'no name ever had two holders');
none(q(SELECT at, resource, owner, place, token, ahead FROM
	(SELECT *, max(token) OVER (PARTITION BY at, resource ORDER BY place ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS ahead FROM in_line) AS l
	WHERE token < ahead LIMIT 5), 'of those in line at one time, none was granted before one ahead of it');
none(q(SELECT resource, owner, token, began, granted_at, waited_since FROM
	(SELECT t.*, min(f.at) OVER (PARTITION BY t.resource ORDER BY t.token DESC ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS waited_since
	FROM tenure t LEFT JOIN (SELECT token, min(at) AS at FROM in_line GROUP BY token) AS f USING (token)) AS t
	WHERE waited_since < began LIMIT 5), 'and nobody who came later, by acquire or try_acquire, was granted before them');

# The checks had something to look at.
cmp_ok($grants, '>', 5 * $seconds, 'there were many grants');
cmp_ok($dba->query_ok('SELECT count(*) FROM (SELECT DISTINCT token FROM in_line) AS t'), '>', $seconds, 'many of them after a wait in a line that was looked at');
cmp_ok($dba->query_ok('SELECT count(*) FROM tenure WHERE was_stopped'), '>', 0, 'some to waiters that had been stopped');
cmp_ok($watched, '>', $seconds / 4, 'free leases were watched for');
foreach my $what (sort keys %count)
{
	cmp_ok($count{$what}, '>', $seconds / 20, "$what: enough of them");
}

# No crash.
$_->quit foreach ($watcher, $janitor, $dba);
$node->stop;
my $log = slurp_file($node->logfile);
unlike($log, qr/PANIC|TRAP:|was terminated by signal|server process .* exited with exit code|XX000/, 'no process crashed');
done_testing();
