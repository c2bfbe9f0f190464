# What is counted is what was done.  Known loads by several sessions at once are
# counted here as well, and timed: every counter, and every quantile of waits and
# holds, is held against that.  Then what several sessions are needed for: sessions
# that die, evictions, deadlocks, what advice and holders say of a backend; the
# lines of the server log; the bound on names; clean restarts, which keep all, and
# crashes, which begin anew; a file of statistics that is damaged.
#
# Naive versions fail: counters that a rollback undoes, that are updated without a
# lock, or that the busiest lose to the latest; quantiles of the wrong end; a file
# that is half read, or that a crash leaves behind.

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

my $tmp = $PostgreSQL::Test::Utils::tmp_check;

my $node = lease_server('main', q(
lease_lock.track_resources = 2000
restart_after_crash = on
deadlock_timeout = 200ms
listen_addresses = '127.0.0.1'
log_line_prefix = '%m [%p] <%e> '
lease_lock.history = on
lease_lock.evict_after = '300 ms'
), allows_streaming => 1);
my $dba = LeaseTest::Session->new($node);

# Runs a pgbench script: so many clients, so many transactions each.
sub script
{
	my ($name, $text) = @_;
	my $file = "$tmp/$name.sql";

	append_to_file($file, $text);
	return $file;
}

sub pgbench
{
	my ($server, $clients, $times, $file) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my ($out, $err) = ('', '');
	my $ok = IPC::Run::run(
		[
			'pgbench', '-n', '-c', $clients, '-j', 2, '-t', $times, '-f', $file,
			'-h', $server->host, '-p', $server->port, 'postgres'
		],
		'>', \$out, '2>', \$err);
	ok($ok, "$clients clients, $times times each") or diag($err);
	return;
}

# Counters of the database, or of a resource, in one line.
sub counts
{
	my ($session, $resource, @names) = @_;

	return $session->query_ok(
		'SELECT ' . join(" || ' ' || ", map { "'$_ ' || $_" } @names) . ' FROM lease_lock.' .
		  (defined $resource ? "resource_stats WHERE resource = '$resource'" : 'stats'));
}

# All that is counted, for comparing.
sub everything
{
	my ($session) = @_;

	return $session->query_ok(q(
SELECT (SELECT to_jsonb(s) - '{holders,waiters}'::text[] FROM lease_lock.stats s),
       (SELECT jsonb_agg(to_jsonb(r) ORDER BY r.resource) FROM lease_lock.resource_stats r),
       (SELECT jsonb_agg(to_jsonb(h) ORDER BY h.kind, h.upto) FROM lease_lock.histograms h)));
}

# Reads all that shows statistics; the first error, or ''.
sub all_views
{
	my ($session) = @_;

	foreach my $view (qw(stats resource_stats histograms hot advice holders waiters rejections rejection_counts))
	{
		$session->query("SELECT * FROM lease_lock.$view");
		return "$view: " . $session->errors if $session->state ne '';
	}
	return '';
}

# Whether all sessions have gone, without looking from one that counts.
sub wait_gone { return $node->poll_query_until('template1', q(SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type = 'client backend')); }

# The lines of the log since an offset that match.
sub log_lines
{
	my ($from, $regex) = @_;

	return grep { /$regex/ } split /\n/, slurp_file($node->logfile, $from);
}

sub log_end { return -s $node->logfile; }

# ---------------------------------------------------------------------------
# A load whose every call is known.  Two names that all want, one that somebody
# holds throughout; each client measures its waits and holds beside the call.
# ---------------------------------------------------------------------------
$dba->query_ok(q(
CREATE TABLE account (name text, by int);
SELECT lease_lock.guard('account', '{name}');
CREATE TABLE measured (name text, wait float8, least_hold float8, most_hold float8, gave_up float8);
CREATE FUNCTION timed_acquire(name text, owner text, OUT token bigint, OUT wait float8, OUT granted float8) LANGUAGE plpgsql AS $$
DECLARE start float8 := extract(epoch FROM clock_timestamp());
BEGIN
  token := lease_lock.acquire(name, owner, '1 h', wait => '10 min');
  granted := extract(epoch FROM clock_timestamp());
  wait := granted - start;
END $$;
CREATE FUNCTION gives_up(name text, OUT gave_up float8) LANGUAGE plpgsql AS $$
DECLARE start timestamptz := clock_timestamp();
BEGIN
  PERFORM lease_lock.acquire(name, 'late ' || pg_backend_pid(), wait => '5 ms');
EXCEPTION WHEN lock_not_available THEN
  gave_up := extract(epoch FROM clock_timestamp() - start);
END $$;
CREATE FUNCTION writes_without_token() RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO account VALUES ('none');
  RETURN false;
EXCEPTION WHEN SQLSTATE 'LL002' THEN
  RETURN true;
END $$;
SELECT lease_lock.acquire('kept', 'keeper', '1 h');
));
my $load = script('load', q(
\set r random(1, 2)
\set ms random(5, 40)
SELECT * FROM timed_acquire('load/' || :r, 'client ' || :client_id) \gset
BEGIN;
SELECT lease_lock.present('load/' || :r, :token);
INSERT INTO account VALUES ('load/' || :r, :client_id);
COMMIT;
SELECT lease_lock.renew('load/' || :r, :token);
SELECT lease_lock.renew('load/' || :r, :token - 1);
SELECT pg_sleep(:ms / 1000.0);
BEGIN;
SELECT extract(epoch FROM clock_timestamp()) AS before \gset
SELECT lease_lock.release('load/' || :r, :token);
SELECT extract(epoch FROM clock_timestamp()) AS after \gset
COMMIT;
SELECT lease_lock.release('load/' || :r, :token);
SELECT lease_lock.try_acquire('kept', 'client ' || :client_id);
SELECT gave_up FROM gives_up('kept') \gset
SELECT 1 / writes_without_token()::int;
BEGIN;
SELECT lease_lock.acquire('undone/' || :client_id, 'client ' || :client_id);
ROLLBACK;
INSERT INTO measured VALUES ('load/' || :r, :wait, :before - :granted, :after - :granted, :gave_up);
));
$dba->query_ok('SELECT lease_lock.stats_reset()');
my ($clients, $times) = (8, 25);
my $all = $clients * $times;
pgbench($node, $clients, $times, $load);
is($dba->query_ok('SELECT count(*), count(gave_up) FROM measured'), "$all|$all", 'each client did all of it');

my @counters = qw(grants takeovers reacquired timeouts busy renewals renewals_late renewals_failed releases releases_failed
  expired forced sessions_died guarded_writes refused_stale refused_no_token refused_not_held refused_unknown refused_no_name
  warned evictions deadlocks waits holds);
my %expect = map { $_ => 0 } @counters;
$expect{$_} = $all foreach qw(timeouts busy renewals renewals_failed releases releases_failed guarded_writes refused_no_token holds);
$expect{grants} = 2 * $all;
$expect{waits} = 3 * $all;
is(counts($dba, undef, @counters), join(' ', map { "$_ $expect{$_}" } @counters), 'every counter is what was done');
is($dba->query_ok('SELECT acquire_success FROM lease_lock.stats'), '0.5', 'and so is the rate of success');
foreach my $r (1, 2)
{
	my $n = $dba->query_ok("SELECT count(*) FROM measured WHERE name = 'load/$r'");

	is(counts($dba, "load/$r", qw(grants waits renewals renewals_failed releases releases_failed guarded_writes holds timeouts)),
		"grants $n waits $n renewals $n renewals_failed $n releases $n releases_failed $n guarded_writes $n holds $n timeouts 0",
		"name $r: likewise");
}
is(counts($dba, 'kept', qw(grants timeouts busy waits)), "grants 0 timeouts $all busy $all waits $all", 'the name that was held: likewise');
is($dba->query_ok(q(SELECT sum(grants), count(*) FROM lease_lock.resource_stats WHERE resource LIKE 'undone/%')), "$all|$clients", 'and what was rolled back');
is($dba->query_ok(q(SELECT r.resource, r.grants FROM lease_lock.resource_stats r WHERE r.resource = 'none')), 'none|0', 'and what was refused');

# Quantiles.  A wait is at most what was measured around the call, and not much
# less; a hold is between what was measured within and around.  They are kept to an
# eighth.
sub quantile_between
{
	my ($resource, $column, $q, $least, $most) = @_;
	my ($p) = $q == 1 ? 'max' : 'p' . 100 * $q;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	# The element that percentile_disc names is the one of that rank.
	my $ok = $dba->query_ok(qq(
SELECT extract(epoch FROM s.${column}_$p) BETWEEN m.least * 7 / 8 - 0.000001 AND m.most * 9 / 8 + 0.000001, s.${column}_$p, m.*
FROM lease_lock.resource_stats s,
     LATERAL (SELECT percentile_disc($q) WITHIN GROUP (ORDER BY $least) AS least, percentile_disc($q) WITHIN GROUP (ORDER BY $most) AS most
      FROM measured WHERE name = s.resource) m WHERE s.resource = '$resource'));
	like($ok, qr/^t/, "$resource: ${column}_$p is that of what was measured");
	return;
}
foreach my $resource ('load/1', 'load/2')
{
	# After the grant the call does little: for most 50 ms, which is less than they waited.
	foreach my $q (0.5, 0.95)
	{
		quantile_between($resource, 'wait', $q, 'wait - 0.05', 'wait');
		quantile_between($resource, 'hold', $q, 'least_hold', 'most_hold + 0.05');
	}
	# For all, the grant is within the call.
	foreach my $q (0.99, 1)
	{
		quantile_between($resource, 'wait', $q, '0', 'wait');
		quantile_between($resource, 'hold', $q, 'least_hold', 'most_hold + wait');
	}
	is($dba->query_ok(qq(
SELECT extract(epoch FROM s.hold_total) BETWEEN m.least AND m.most + m.wait, extract(epoch FROM s.wait_total) BETWEEN m.wait / 2 AND m.wait
FROM lease_lock.resource_stats s, LATERAL (SELECT sum(least_hold) AS least, sum(most_hold) AS most, sum(wait) AS wait FROM measured WHERE name = s.resource) m
WHERE s.resource = '$resource')), 't|t', "$resource: and their sums");
	# History has the exact times of the holds.
	is($dba->query_ok(qq(
SELECT s.hold_max = h.most, s.hold_total = h.total, s.hold_p50 BETWEEN h.p50 * 7 / 8 AND h.p50 * 9 / 8, s.hold_p95 BETWEEN h.p95 * 7 / 8 AND h.p95 * 9 / 8,
       s.hold_p99 BETWEEN h.p99 * 7 / 8 AND h.p99 * 9 / 8
FROM lease_lock.resource_stats s,
     (SELECT max(d) AS most, sum(d) AS total, percentile_disc(0.5) WITHIN GROUP (ORDER BY d) AS p50, percentile_disc(0.95) WITHIN GROUP (ORDER BY d) AS p95,
             percentile_disc(0.99) WITHIN GROUP (ORDER BY d) AS p99
      FROM (SELECT ended_at - granted_at AS d FROM lease_lock.history WHERE resource = '$resource') d) h WHERE s.resource = '$resource')),
		't|t|t|t|t', "$resource: its holds are those of history");
}
is($dba->query_ok(q(
SELECT extract(epoch FROM s.wait_p50) BETWEEN 0.005 AND (m.p50 * 9 / 8), extract(epoch FROM s.wait_max) <= m.most
FROM lease_lock.resource_stats s, (SELECT percentile_disc(0.5) WITHIN GROUP (ORDER BY gave_up) AS p50, max(gave_up) AS most FROM measured) m WHERE s.resource = 'kept')),
	't|t', 'the waits of those who gave up are measured too');
# The histogram counts them up to each bound.
is($dba->query_ok(q(
SELECT count(*) > 20, bool_and(h.count = (SELECT count(*) FROM lease_lock.history y WHERE y.resource LIKE 'load/%' AND y.ended_at - y.granted_at <= h.upto))
FROM lease_lock.histograms h WHERE h.kind = 'hold')), 't|t', 'the histogram of holds is that of history');
is($dba->query_ok(q(
SELECT bool_and(h.count >= (SELECT count(*) FROM measured m WHERE m.wait <= extract(epoch FROM h.upto))) FROM lease_lock.histograms h WHERE h.kind = 'wait')),
	't', 'no wait is counted as longer than it was measured');
is($dba->query_ok(qq(SELECT max(count) FROM lease_lock.histograms WHERE kind = 'wait')), 3 * $all, 'and all are');
is($dba->query_ok(q(
SELECT bool_and(extract(epoch FROM lease_lock.suggest_ttl(m.name, 0.9, 3)) BETWEEN 3 * m.least * 7 / 8 AND 3 * (m.most + 0.05) * 9 / 8)
FROM (SELECT name, percentile_disc(0.9) WITHIN GROUP (ORDER BY least_hold) AS least, percentile_disc(0.9) WITHIN GROUP (ORDER BY most_hold) AS most FROM measured GROUP BY name) m)),
	't', 'suggest_ttl follows from the holds');
is($dba->query_ok(q(SELECT string_agg(resource, ' ' ORDER BY resource) FROM (SELECT resource FROM lease_lock.hot LIMIT 3) h)), 'kept load/1 load/2', 'the hottest names are those that were waited for');
is($dba->query_ok(q(SELECT bool_and(heat >= next) FROM (SELECT heat, lead(heat, 1, 0::float8) OVER () AS next FROM lease_lock.hot) h)), 't', 'the hottest first');

# ---------------------------------------------------------------------------
# Many names at once, all the time: no count is lost.
# ---------------------------------------------------------------------------
$dba->query_ok('SELECT lease_lock.stats_reset()');
pgbench($node, 8, 150, script('own', q(
SELECT lease_lock.try_acquire('own/' || :client_id, 'client ' || :client_id) AS token \gset
SELECT lease_lock.release('own/' || :client_id, :token);
SELECT lease_lock.try_acquire('kept', 'client');
)));
is($dba->query_ok(q(SELECT string_agg(DISTINCT grants || ' ' || releases || ' ' || holds, ', '), count(*) FROM lease_lock.resource_stats WHERE resource LIKE 'own/%')),
	'150 150 150|8', 'each name has its counts');
is(counts($dba, undef, qw(grants releases busy)), 'grants 1200 releases 1200 busy 1200', 'and the database all of them');
pgbench($node, 8, 150, script('many', q(
\set n random(1, 300)
SELECT lease_lock.try_acquire('many/' || :n, 'client');
)));
is($dba->query_ok(q(SELECT sum(grants + busy) FROM lease_lock.resource_stats WHERE resource LIKE 'many/%')), '1200', 'new names made at once lose none either');

# ---------------------------------------------------------------------------
# What it takes other sessions for, and the lines of the log: one for each.
# ---------------------------------------------------------------------------
$dba->query_ok('SELECT lease_lock.stats_reset()');
sub session { return LeaseTest::Session->new($node, @_); }
sub gone { return wait_true($dba, "SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = $_[0]"); }

# A takeover of a lease that expired.
my $from = log_end();
my $a = session();
my $b = session();
my $t1 = $a->query_ok(q(SELECT lease_lock.acquire('x', 'A', '50 ms')));
my $t2 = $b->query_ok(q(SELECT lease_lock.acquire('x', 'B', '1 h', wait => '1 min')));
is(counts($dba, 'x', qw(grants takeovers expired sessions_died)), 'grants 2 takeovers 1 expired 1 sessions_died 0', 'a takeover');
is(scalar(log_lines($from, qr/<00000> LOG:  lease on resource "x" taken over by "B" from "A", which let it expire/)), 1, 'is logged in one line');

# A session that died.
$from = log_end();
my $dies = session();
$dies->query_ok(q(SELECT lease_lock.acquire('s', 'A', '1 h', scope => 'session')));
$b->send(q(SELECT lease_lock.acquire('s', 'B', '1 h', wait => '1 min', scope => 'session')));
ok(wait_true($dba, q(SELECT waiters = 1 FROM lease_lock.stats)), 'stats counts who waits');
is($dba->query_ok(q(SELECT waiters, health FROM lease_lock.holders WHERE resource = 's')), '1|ok', 'holders too');
ok(wait_true($dba, q(SELECT waiters = 1 FROM lease_lock.hot WHERE resource = 's')), 'and hot');
$dba->query_ok('SELECT pg_terminate_backend(' . $dies->pid . ')');
$b->result;
is($b->state, '', 'a session died, and another has its lease');
is(counts($dba, 's', qw(grants takeovers expired sessions_died)), 'grants 2 takeovers 1 expired 0 sessions_died 1', 'counted as that');
is(scalar(log_lines($from, qr/<00000> LOG:  lease on resource "s" taken over by "B" from "A", whose session has ended/)), 1, 'and logged in one line');
my $bpid = $b->pid;
$b->quit;
ok(gone($bpid), 'that one goes too');
is($dba->query_ok(q(SELECT state, health, overdue FROM lease_lock.holders WHERE resource = 's')), 'expired|session gone|', 'its health says so');
$dba->query_ok(q(SELECT lease_lock.force_release('s', 'tidy')));
is(counts($dba, 's', qw(expired forced sessions_died)), 'expired 0 forced 1 sessions_died 2', 'released by force it is one more session that died');

# A forced release.
$from = log_end();
$dba->query_ok(q(SELECT lease_lock.force_release('x', 'the reason')));
is(counts($dba, 'x', qw(forced expired)), 'forced 1 expired 1', 'a forced release');
my @lines = log_lines($from, qr/<00000> LOG:  lease on resource "x" forcibly released/);
is(scalar(@lines), 1, 'is logged in one line');
is(scalar(log_lines($from, qr/DETAIL:  token $t2 of "B" .*the reason/)), 1, 'with what it ended and why');

# An eviction.
$from = log_end();
my $victim = session();
my $token = $victim->query_ok(q(SELECT lease_lock.acquire('ev', 'victim', '200 ms')));
$victim->query_ok("BEGIN; SELECT lease_lock.assert_held('ev', $token)");
$a->query_ok(q(SELECT lease_lock.acquire('ev', 'A', '1 h', wait => '1 min')));
is(counts($dba, 'ev', qw(grants takeovers expired evictions)), 'grants 2 takeovers 1 expired 1 evictions 1', 'an eviction');
is(scalar(log_lines($from, qr/LOG:  evicted the transaction that kept the expired lease on resource "ev"/)), 1, 'is logged in one line');

# Deadlocks through leases.
my @pair = (session(), session());
$pair[0]->query_ok(q(SELECT lease_lock.acquire('d1', 'one', '1 h')));
$pair[1]->query_ok(q(SELECT lease_lock.acquire('d2', 'two', '1 h')));
$pair[0]->send(q(SELECT lease_lock.acquire('d2', 'one', wait => '1 min')));
$pair[1]->send(q(SELECT lease_lock.acquire('d1', 'two', wait => '1 min')));
sleep 0.02 until $pair[0]->ready || $pair[1]->ready;
my ($lost, $won) = $pair[0]->ready ? (0, 1) : (1, 0);
$pair[$lost]->result;
is($pair[$lost]->state, '40P01', 'a deadlock');
is($dba->query_ok("SELECT lease_lock.force_release('d@{[$lost + 1]}', 'tidy') IS NOT NULL"), 't', 'whose loser lets go');
$pair[$won]->result;
is($pair[$won]->state, '', 'the other goes on');
is(counts($dba, undef, qw(deadlocks evictions forced timeouts)), 'deadlocks 1 evictions 1 forced 3 timeouts 0', 'it is counted, and nobody gave up');

# What a lock on a relation of ours keeps out is a call that failed, too.
$a->query_ok('BEGIN; LOCK TABLE lease_lock.lease');
is($pair[0]->query_ok(q(SELECT lease_lock.try_acquire('locked', 'A'))), '', 'try_acquire while the table is locked');
refused_with($pair[0], q(SELECT lease_lock.acquire('locked', 'A', wait => '10 ms')), '55P03', 'and acquire');
$a->query_ok('ROLLBACK');
is($dba->query_ok(q(SELECT coalesce(sum(busy), 0), coalesce(sum(timeouts), 0) FROM lease_lock.resource_stats WHERE resource = 'locked')), '1|1', 'are counted');

# A refused write, with its SQLSTATE; one that is let pass; and assert_held.
$dba->query_ok(q(CREATE TABLE lenient (id int); SELECT lease_lock.guard('lenient', 'lenient', action => 'warn')));
$from = log_end();
foreach my $case (['LL001', $t1], ['LL004', 999999999])
{
	my ($state, $carried) = @$case;

	$t2 = $a->query_ok(q(SELECT lease_lock.acquire('x', 'A', '1 h')));
	$a->query_ok('BEGIN');
	$a->query_ok("SELECT lease_lock.present('x', $carried)");
	refused_with($a, q(INSERT INTO account VALUES ('x', 1)), $state, "a write refused with $state");
	$a->query('ROLLBACK');
	is(scalar(log_lines($from, qr/<$state> LOG:  INSERT of table "account" refused with $state/)), 1, 'is logged in one line');
}
$a->query_ok("SELECT lease_lock.release('x', $t2)");
$a->query_ok('BEGIN');
$a->query_ok("SELECT lease_lock.present('x', $t2)");
$a->query_ok('SAVEPOINT s');
refused_with($a, q(DELETE FROM account WHERE name = 'load/1'), 'LL002', 'a write refused with LL002');
$a->query_ok('ROLLBACK TO s');
refused_with($a, q(INSERT INTO account SELECT 'x', i FROM generate_series(1, 9) i), 'LL003', 'a write refused with LL003');
$a->query('ROLLBACK');
is(scalar(log_lines($from, qr/<LL002> LOG:  DELETE of table "account" refused with LL002/)), 1, 'one line');
is(scalar(log_lines($from, qr/<LL003> LOG:  INSERT of table "account" refused with LL003/)), 1, 'one line');
$a->query(q(DO $$ BEGIN INSERT INTO account VALUES ('x', 1); EXCEPTION WHEN OTHERS THEN NULL; END $$));
is(scalar(log_lines($from, qr/<LL002> LOG:  INSERT of table "account" refused with LL002/)), 1, 'one line where the error is caught');
$a->query(q(INSERT INTO lenient SELECT i FROM generate_series(1, 20) i));
is(scalar(log_lines($from, qr/<LL002> LOG:  INSERT of table "lenient" would be refused with LL002/)), 1, 'one line for a statement that is let pass');
is(counts($dba, undef, qw(refused_stale refused_no_token refused_not_held refused_unknown)),
	'refused_stale 1 refused_no_token 2 refused_not_held 1 refused_unknown 1', 'and each is counted');
is(counts($dba, 'lenient', 'warned'), 'warned 1', 'as is the one that was let pass');

# A jump of the tokens, and tokens raised.
$from = log_end();
$dba->query_ok('SELECT lease_lock.raise_token((SELECT last_token + 100 FROM lease_lock.token_state))');
is(scalar(log_lines($from, qr/LOG:  fencing tokens raised by/)), 1, 'tokens raised are logged in one line');
$node->safe_psql('postgres', 'CREATE DATABASE moved TEMPLATE template0');
$node->safe_psql('moved', 'CREATE EXTENSION lease_lock');
$node->safe_psql('moved', q(SELECT setval('lease_lock.place_seq', 1)));
$from = log_end();
$node->safe_psql('moved', q(SELECT lease_lock.acquire('a', 'A'), lease_lock.acquire('b', 'A')));
is(scalar(log_lines($from, qr/LOG:  fencing tokens of database "moved" jump to \d+/)), 1, 'a jump of the tokens is logged in one line');
is(scalar(log_lines($from, qr/DETAIL:  The last token was minted at another place \(.+\); the highest known here is \d+/)), 1, 'with the reason');
is($dba->query_ok(q(SELECT count(*) FROM lease_lock.resource_stats WHERE resource IN ('a', 'b'))), '0', 'what another database does is not counted here');
is($node->safe_psql('moved', 'SELECT grants FROM lease_lock.stats'), '2', 'but there');

# Off, none of it is logged; it is counted all the same.
$dba->query_ok(q(ALTER SYSTEM SET lease_lock.log_events = off; SELECT pg_reload_conf()));
my $c = session();
ok(wait_true($c, q(SELECT current_setting('lease_lock.log_events') = 'off')), 'the lines are turned off');
ok(wait_true($a, q(SELECT current_setting('lease_lock.log_events') = 'off')), 'for all');
my $before = $dba->query_ok('SELECT takeovers + forced + refused_no_token + reacquired + evictions FROM lease_lock.stats');
$from = log_end();
$a->query_ok(q(SELECT lease_lock.acquire('off', 'A', '20 ms')));
$c->query_ok(q(SELECT lease_lock.acquire('off', 'C', '1 h', wait => '1 min')));
$c->query_ok(q(SELECT lease_lock.acquire('off', 'C', '1 h')));
$c->query_ok(q(SELECT lease_lock.force_release('off', 'test')));
$token = $c->query_ok(q(SELECT lease_lock.acquire('off', 'C', '100 ms')));
$c->query_ok("BEGIN; SELECT lease_lock.assert_held('off', $token)");
$a->query_ok(q(SELECT lease_lock.acquire('off', 'A', '1 h', wait => '1 min')));
$a->query(q(INSERT INTO account VALUES ('off', 1)));
is($dba->query_ok("SELECT takeovers + forced + refused_no_token + reacquired + evictions - $before FROM lease_lock.stats"), '6', 'what happens is counted');
is(join("\n", log_lines($from, qr/LOG:  .*(lease|refused|fencing)/)), '', 'and not logged');
is(scalar(log_lines($from, qr/<LL002> ERROR:  /)), 1, 'but for the error that the client gets');
$dba->query_ok(q(ALTER SYSTEM RESET lease_lock.log_events; SELECT pg_reload_conf()));

# ---------------------------------------------------------------------------
# Health and advice that say something of a backend.
# ---------------------------------------------------------------------------
$dba->query_ok('SELECT lease_lock.stats_reset()');
my $idler = session();
$token = $idler->query_ok(q(SELECT lease_lock.acquire('idle', 'idler', '1 h')));
is($dba->query_ok(q(SELECT health, xact_age IS NULL FROM lease_lock.holders WHERE resource = 'idle')), 'ok|t', 'a holder that is not in a transaction');
$idler->query_ok("BEGIN; SELECT lease_lock.assert_held('idle', $token)");
ok(wait_true($dba, q(SELECT health = 'idle in transaction' AND wait_event = 'ClientRead' AND xact_age > '0' FROM lease_lock.holders WHERE resource = 'idle')), 'one that idles in one');
ok(wait_true($dba, q(SELECT count(*) = 1 FROM lease_lock.advice WHERE resource = 'idle' AND owner = 'idler' AND advice = 'idle in transaction')), 'which advice names');
like($dba->query_ok(q(SELECT evidence FROM lease_lock.advice WHERE resource = 'idle')), qr/backend @{[$idler->pid]} has been idle in transaction for /, 'with the backend');
$idler->query('SELECT 1/0');
is($dba->query_ok(q(SELECT health FROM lease_lock.holders WHERE resource = 'idle')), 'idle in transaction', 'aborted, too');
$idler->query_ok('ROLLBACK');
is($dba->query_ok(q(SELECT count(*) FROM lease_lock.advice)), '0', 'and no longer once it has ended it');
$idler->send('SELECT pg_sleep(600)');
ok(wait_true($dba, q(SELECT wait_event = 'PgSleep' AND health = 'ok' FROM lease_lock.holders WHERE resource = 'idle')), 'what a holder waits for is shown');
# A backend that has its pid by chance is not taken for it.
$dba->query_ok(q(UPDATE lease_lock.lease SET backend_start = backend_start - interval '1 s' WHERE resource = 'idle'));
is($dba->query_ok(q(SELECT wait_event, xact_age, health FROM lease_lock.holders WHERE resource = 'idle')), '||ok', 'not of a backend that has the same pid by chance');
$dba->query_ok('SELECT pg_cancel_backend(' . $idler->pid . ')');
$idler->result;

# A name that people wait for now is hotter than one that somebody waited for once.
$dba->query_ok('SELECT lease_lock.stats_reset()');
$a->query_ok(q(SELECT lease_lock.acquire('once', 'A', '1 h'), lease_lock.acquire('now', 'A', '1 h')));
$pair[0]->query(q(SELECT lease_lock.acquire('once', 'C', wait => '10 ms')));
$pair[0]->send(q(SELECT lease_lock.acquire('now', 'C', wait => '10 min')));
ok(wait_true($dba, q(SELECT clock_timestamp() - waiting_since > 2 * wait_max FROM lease_lock.waiters w, lease_lock.resource_stats r WHERE w.resource = 'now' AND r.resource = 'once')),
	'somebody waits for longer than another has');
is($dba->query_ok(q(SELECT resource, waiters FROM lease_lock.hot LIMIT 1)), 'now|1', 'which is hotter');
$a->query_ok(q(SELECT lease_lock.force_release('now', 'tidy')));
$pair[0]->result;
is($pair[0]->state, '', 'until it is granted');
$dba->query_ok(q(SELECT lease_lock.stats_reset()));

# An owner in two places: a local socket, and an address.
$idler->query_ok(q(SELECT lease_lock.acquire('two/1', 'worker', '1 h')));
$idler->query_ok(q(SELECT lease_lock.acquire('two/2', 'worker', '1 h')));
is($dba->query_ok(q(SELECT count(*) FROM lease_lock.advice)), '0', 'an owner of two leases in one place is fine');
my $port = $node->port;
append_to_file($node->data_dir . '/pg_hba.conf', "host all all 127.0.0.1/32 trust\n");
$node->reload;
my $user = $dba->query_ok('SELECT current_user');
ok(wait_true($dba, q(SELECT count(*) > 0 FROM pg_hba_file_rules WHERE address = '127.0.0.1')), 'connections by TCP are let in');
command_ok(['psql', '-X', '-q', '-d', "host=127.0.0.1 port=$port dbname=postgres user=$user", '-c', q(SELECT lease_lock.acquire('two/3', 'worker', '1 h'))], 'the same owner from an address');
is($dba->query_ok(q(SELECT resource, owner, advice, evidence FROM lease_lock.advice)),
	'|worker|owner in two places|acquired from 127.0.0.1, a local socket: an owner names one process, or each fences off the other', 'is named');

# ---------------------------------------------------------------------------
# F26, the view part: the holder's session died, and nothing says that it lives.
# ---------------------------------------------------------------------------
my $f26 = session();
$f26->query_ok(q(SELECT lease_lock.advisory_lock('f26')));
$token = $f26->query_ok(q(SELECT lease_lock.acquire('f26', 'A', '1 h')));
is($dba->query_ok(q(SELECT l.pid = a.pid AND l.backend_start = a.backend_start FROM lease_lock.advisory_locks l JOIN pg_stat_activity a USING (pid) WHERE l.name = 'f26')),
	't', 'F26: the view shows when the backend started, beside its pid');
my $pid = $f26->pid;
$dba->query_ok("SELECT pg_terminate_backend($pid)");
ok(gone($pid), 'F26: the session has gone');
is($dba->query_ok(q(SELECT count(*) FROM lease_lock.advisory_locks WHERE name = 'f26')), '0', 'F26: its named lock with it');
is($dba->query_ok(q(SELECT state, health, pid IS NULL, grant_pid, wait_event, xact_age FROM lease_lock.holders WHERE resource = 'f26')), "held|ok|t|$pid||",
	'F26: a lease outlives its session, and names no backend whose end would end it');
$b = session();
is($b->query_ok(q(SELECT lease_lock.try_advisory_lock('f26'))), 't', 'F26: another session has the lock');
$f26 = session();
is($f26->query_ok(q(SELECT count(*) FROM lease_lock.advisory_locks WHERE name = 'f26' AND pid = pg_backend_pid())), '0', 'F26: a new connection sees that it does not hold it');
is($f26->query_ok(q(SELECT lease_lock.advisory_unlock('f26'))), 'f', 'F26: nor can it be given up there');
is($dba->query_ok(q(SELECT pid FROM lease_lock.advisory_locks WHERE name = 'f26')), $b->pid, 'F26: the view names the one that does');
isnt($f26->query_ok("SELECT lease_lock.renew('f26', $token)"), '', 'F26: the lease is renewed from the new connection');
is($dba->query_ok(q(SELECT renewals, grant_pid FROM lease_lock.holders WHERE resource = 'f26')), "1|$pid", 'F26: which the view shows');

# History is part of a dump.
{
	my $dump = "$tmp/031.dump";

	$node->safe_psql('postgres', 'CREATE DATABASE copy TEMPLATE template0');
	command_ok(['pg_dump', '-Fc', '-f', $dump, $node->connstr('postgres')], 'a dump');
	command_ok(['pg_restore', '--exit-on-error', '-d', $node->connstr('copy'), $dump], 'is restored');
	my $rows = q(SELECT count(*), md5(string_agg(h::text, E'\n' ORDER BY h.token)) FROM lease_lock.history h);
	is($node->safe_psql('copy', $rows), $node->safe_psql('postgres', $rows), 'with all of the history');
	is($node->safe_psql('copy', 'SELECT count(*) FROM lease_lock.overlaps()'), '0', 'in which nothing overlaps');
	is($node->safe_psql('copy', 'SELECT grants FROM lease_lock.stats'), '0', 'and without the counts');
}

# ---------------------------------------------------------------------------
# Grants of a name never overlap: after takeovers, owners that come again, and a
# crash in the middle.
# ---------------------------------------------------------------------------
my $chaos = script('chaos', q(
\set r random(1, 3)
\set o random(1, 3)
\set ttl random(3, 30)
\set what random(1, 4)
SELECT lease_lock.acquire('o/' || :r, 'owner ' || :o, :ttl * interval '1 ms', '10 min') AS token \gset
\if :what = 1
SELECT lease_lock.release('o/' || :r, :token);
\elif :what = 2
SELECT lease_lock.renew('o/' || :r, :token, '40 ms');
\elif :what = 3
BEGIN;
SELECT lease_lock.release('o/' || :r, :token);
ROLLBACK;
\endif
));
my ($out, $err) = ('', '');
my $run = IPC::Run::start(['pgbench', '-n', '-c', 6, '-j', 2, '-T', 600, '-f', $chaos, '-h', $node->host, '-p', $port, 'postgres'], '>', \$out, '2>', \$err);
ok(wait_true($dba, q(SELECT count(DISTINCT ended_by) >= 3 AND count(*) > 150 FROM lease_lock.history WHERE resource LIKE 'o/%')), 'leases are taken over, released and acquired again');
is($dba->query_ok('SELECT count(*) FROM lease_lock.overlaps()'), '0', 'and do not overlap');
$node->stop('immediate');
eval { $run->finish; };
$node->start;
$dba = LeaseTest::Session->new($node);
cmp_ok($dba->query_ok('SELECT count(*) FROM lease_lock.history'), '>', 150, 'a crash loses no history');
pgbench($node, 6, 40, $chaos);
is($dba->query_ok('SELECT * FROM lease_lock.overlaps()'), '', 'nor do they overlap across a crash');
is($dba->query_ok('SELECT count(*) FROM (SELECT token FROM lease_lock.history GROUP BY token HAVING count(*) > 1) d'), '0', 'each grant has one row');
is($dba->query_ok(q(SELECT count(*) FROM lease_lock.history h, LATERAL (SELECT count(*) AS n FROM lease_lock.holder_at(h.resource, h.granted_at)) a WHERE resource LIKE 'o/%' AND h.ended_at > h.granted_at AND a.n <> 1)),
	'0', 'at each grant there was one holder');

# ---------------------------------------------------------------------------
# After a crash counting begins anew; after a clean stop it goes on.
# ---------------------------------------------------------------------------
my $file = $node->data_dir . '/pg_stat/lease_lock.stat';

is($dba->query_ok(q(SELECT grants, (SELECT count(*) FROM lease_lock.resource_stats WHERE resource = 'f26') FROM lease_lock.stats)), '240|0', 'after a crash counting has begun anew');
is(all_views($dba), '', 'and everything can be read');

# ---------------------------------------------------------------------------
# History's own locks, and what it says of a grant in flight.
# ---------------------------------------------------------------------------
my $ddl = LeaseTest::Session->new($node);
$ddl->query_ok('BEGIN; ALTER INDEX lease_lock.history_resource SET TABLESPACE pg_default');
is($dba->query_ok(q(SELECT lease_lock.try_acquire('locked', 'A') IS NULL)), 't', 'try_acquire does not wait for a lock on the index of history');
refused_with($dba, q(SELECT lease_lock.acquire('locked', 'A', wait => '200 ms')), '55P03', 'and acquire no longer than it is told to');
$ddl->query_ok('ROLLBACK');
$dba->query_ok(q(SELECT lease_lock.acquire('flight', 'A', '1 h')));
$ddl->query_ok(q(BEGIN; SELECT lease_lock.acquire('flight', 'A', '1 h')));
is($dba->query_ok(q(SELECT owner FROM lease_lock.holder_at('flight', clock_timestamp()))), 'A', 'who held a name is known while another grant of it is in flight');
$ddl->query_ok('ROLLBACK');
$ddl->quit;
# Neither history nor its pruning takes part in a serializable transaction.
$ddl = LeaseTest::Session->new($node);
$dba->query_ok('CREATE TABLE x (i int); INSERT INTO x VALUES (1)');
$dba->query_ok(q(SELECT lease_lock.acquire('ser', 'A', '1 ms'); SELECT pg_sleep(0.01)));
my $reader = LeaseTest::Session->new($node);
$reader->query_ok('BEGIN ISOLATION LEVEL SERIALIZABLE; SELECT count(*) FROM x');
$reader->query_ok(q(SELECT lease_lock.acquire('ser', 'B', '1 h')));
$ddl->query_ok('BEGIN ISOLATION LEVEL SERIALIZABLE; UPDATE x SET i = 2; COMMIT');
$ddl->query_ok(q(BEGIN ISOLATION LEVEL SERIALIZABLE; SELECT lease_lock.prune_history('0 s'); COMMIT));
$reader->query('COMMIT');
is($reader->state, '', 'nobody sees 40001 because of history');
$_->quit foreach $reader, $ddl;

# Something in every column.
$dba->query_ok(q(SELECT lease_lock.stats_reset()));
pgbench($node, $clients, 3, $load);
foreach my $preload (0, 1)
{
	my $how = $preload ? 'preloaded' : 'not preloaded';

	if ($preload)
	{
		$node->append_conf('postgresql.conf', "shared_preload_libraries = 'lease_lock'");
		$dba->quit;
		$node->restart;
		$dba = LeaseTest::Session->new($node);
	}
	my $counted = everything($dba);

	# Nobody is there.
	ok(!-e $file, "$how: no file while somebody is there");
	$dba->quit;
	$node->stop('fast');
	ok(-e $file, "$how: a file when nobody is");
	$node->start;
	ok(-e $file, "$how: which stays until somebody comes");
	$dba = LeaseTest::Session->new($node);
	is(everything($dba), $counted, "$how: a clean restart keeps all, nobody being there");
	ok(!-e $file, "$how: and it is gone");

	# Sessions that are at it: idle, in a transaction, waiting; and another database.
	$node->safe_psql('moved', q(SELECT lease_lock.try_acquire('again', 'A')));
	my $other = $node->safe_psql('moved', 'SELECT to_jsonb(s) FROM lease_lock.stats s');
	my @there = map { session() } 1 .. 3;
	$there[0]->query_ok(q(SELECT lease_lock.try_acquire('there', 'A', '1 h')));
	$there[1]->query_ok(q(BEGIN; SELECT lease_lock.try_acquire('in transaction', 'A', '1 h')));
	$there[2]->send(q(SELECT lease_lock.acquire('there', 'B', wait => '10 min')));
	ok(wait_true($dba, q(SELECT count(*) = 1 FROM lease_lock.waiters WHERE resource = 'there')), "$how: somebody waits");
	$counted = everything($dba);
	$node->stop('fast');
	$node->start;
	$dba = LeaseTest::Session->new($node);
	is(everything($dba), $counted, "$how: a clean restart keeps all, sessions being there");
	is($node->safe_psql('moved', 'SELECT to_jsonb(s) FROM lease_lock.stats s'), $other, "$how: of each database");

	# A backend that is killed: the server starts again by itself, and counts anew.
	my $killed = session();
	my $since = $dba->query_ok('SELECT since FROM lease_lock.stats');
	signal_backend('KILL', $killed->pid);
	ok($node->poll_query_until('postgres', 'SELECT true'), "$how: a backend is killed");
	eval { $dba->quit; };
	$dba = LeaseTest::Session->new($node);
	is($dba->query_ok("SELECT grants = 0 AND since > '$since' FROM lease_lock.stats"), 't', "$how: counting begins anew");
	is(all_views($dba), '', "$how: and everything can be read");

	# An immediate stop.
	$dba->query_ok(q(SELECT lease_lock.try_acquire('last', 'A', '1 ms')));
	$node->stop('immediate');
	ok(!-e $file, "$how: an immediate stop leaves no file");
	$node->start;
	$dba = LeaseTest::Session->new($node);
	is(counts($dba, undef, 'grants'), 'grants 0', "$how: and counting begins anew");

	$dba->query_ok(q(SELECT lease_lock.try_acquire('some', 'A', '1 ms')));
	pgbench($node, $clients, 2, $load) if !$preload;
}

# ---------------------------------------------------------------------------
# A file that is damaged, or something else, is ignored with a line in the log, all
# of it, and nothing breaks.
# ---------------------------------------------------------------------------
$dba->query_ok('SELECT lease_lock.stats_reset()');
pgbench($node, $clients, 2, script('few', q(
SELECT lease_lock.try_acquire('few/' || :client_id, 'client', '1 h');
)));
my $database = $dba->query_ok('SELECT oid FROM pg_database WHERE datname = current_database()');
$dba->quit;
$node->stop('fast');
my $good = slurp_file($file);
my $size = length $good;
my $noise = join '', map { chr(($_ * 7919 + 13) % 256) } 1 .. $size;
# The time since when this database is counted: the first of its counters, behind
# its OID, the number of its names, and that of its counters.
my $damaged_since = $good;
substr($damaged_since, index($good, pack('LL', $database, $clients)) + 24, 8, pack('Q', (1 << 63) | 0x100));
my %damage = (
	'empty' => '',
	'cut in its head' => substr($good, 0, 7),
	'cut after its head' => substr($good, 0, 16 + 5),
	'cut in the middle' => substr($good, 0, int($size / 2)),
	'cut by a byte' => substr($good, 0, $size - 1),
	'with more at its end' => $good . 'more',
	'of another kind' => "PGDMP and more\n" x 100,
	'of another layout' => substr($good, 0, 8) . pack('L', 77) . substr($good, 12),
	'of noise' => $noise,
	'of noise behind its head' => substr($good, 0, 16) . substr($noise, 16),
	'with noise in its middle' => substr($good, 0, int($size / 2)) . substr($noise, 0, 200) . substr($good, int($size / 2) + 200),
	'with a time that cannot be' => $damaged_since,
	'with a bit flipped' => substr($good, 0, 40) . chr(ord(substr($good, 40, 1)) ^ 64) . substr($good, 41),
);
foreach my $kind (sort keys %damage)
{
	open my $fh, '>:raw', $file or die "could not write $file: $!";
	print $fh $damage{$kind};
	close $fh;
	$node->start;
	$from = log_end();
	my $s = session();
	is(all_views($s), '', "a file $kind: everything can be read");
	is(counts($s, undef, qw(grants busy)), 'grants 0 busy 0', "a file $kind: nothing of it is taken");
	is($s->query_ok('SELECT count(*) FROM lease_lock.resource_stats'), '0', "a file $kind: of no name either");
	is(scalar(log_lines($from, qr/LOG:  ignoring invalid data in file "pg_stat\/lease_lock.stat"/)), 1, "a file $kind: the log says so once");
	$s->query_ok(q(SELECT lease_lock.try_acquire('after', 'A', '1 ms')));
	$s->quit;
	$node->stop('fast');
}
# The same file, whole, is taken.
{
	open my $fh, '>:raw', $file or die "could not write $file: $!";
	print $fh $good;
	close $fh;
	$node->start;
	$dba = LeaseTest::Session->new($node);
	is($dba->query_ok('SELECT sum(grants + busy) FROM lease_lock.resource_stats'), 2 * $clients, 'the whole file is taken');
}
# A standby and a restored backup are other servers: what this one did is not theirs,
# and there everything can be read, too.
$dba->quit;
ok(wait_gone(), 'nobody is there');
ok(-e $file, 'and the file is');
$node->backup('copy');
{
	my $standby = PostgreSQL::Test::Cluster->new('standby');

	$standby->init_from_backup($node, 'copy', has_streaming => 1);
	$standby->start;
	my $s = LeaseTest::Session->new($standby);
	is(all_views($s), '', 'on a standby everything can be read');
	is(counts($s, undef, 'grants'), 'grants 0', 'and it has done nothing yet');
	is($s->query('SELECT count(*) FROM lease_lock.overlaps()'), '0', 'overlaps can be asked there');
	$s->query_ok('SELECT lease_lock.stats_reset()');
	$s->query(q(SELECT lease_lock.try_acquire('on standby', 'A')));
	is($s->state, '25006', 'try_acquire is refused there');
	is(counts($s, undef, qw(grants busy)), 'grants 0 busy 0', 'and not counted');
	$s->quit;
	$standby->stop('fast');
}
$dba = LeaseTest::Session->new($node);

# Something that can be neither read nor written: only the log says so.
$dba->quit;
$node->stop('fast');
unlink $file;
mkdir $file;
mkdir "$file/in";
$node->start;
$from = log_end();
$dba = LeaseTest::Session->new($node);
is(all_views($dba), '', 'a directory in its place: everything can be read');
$dba->query_ok(q(SELECT lease_lock.try_acquire('after', 'A', '1 ms')));
$dba->quit;
$node->stop('fast');
cmp_ok(scalar(log_lines($from, qr/LOG:  could not (read|write) file "pg_stat\/lease_lock.stat"|LOG:  ignoring invalid data/)), '>=', 1, 'a directory in its place: the log says so');
rmdir "$file/in";
rmdir $file;

# ---------------------------------------------------------------------------
# As many names as track_resources says: the busiest stay.
# ---------------------------------------------------------------------------
$node->append_conf('postgresql.conf', 'lease_lock.track_resources = 10');
$node->start;
$dba = LeaseTest::Session->new($node);
# Five are used often, and ninety-five once in a while; all are held, so that
# each use counts as busy.
$dba->query_ok(q(
SELECT count(lease_lock.try_acquire(name || i, 'A', '1 h')) FROM (VALUES ('busy/', 4), ('rare/', 94), ('now/', 2)) AS v (name, n), generate_series(0, n) i;
SELECT lease_lock.stats_reset();
SELECT count(lease_lock.try_acquire('busy/' || i % 5, 'B')) FROM generate_series(1, 500) i;
SELECT count(lease_lock.try_acquire('rare/' || i % 95, 'B')) FROM generate_series(1, 190) i;
SELECT count(lease_lock.try_acquire('busy/' || i % 5, 'B')) FROM generate_series(1, 500) i;
SELECT count(lease_lock.try_acquire('rare/' || i % 95, 'B')) FROM generate_series(1, 190) i;
));
is($dba->query_ok('SELECT count(*) FROM lease_lock.resource_stats'), '10', 'of a hundred names ten are tracked');
is($dba->query_ok(q(SELECT string_agg(resource, ' ' ORDER BY resource) FROM lease_lock.resource_stats WHERE resource LIKE 'busy/%')), 'busy/0 busy/1 busy/2 busy/3 busy/4', 'the busiest among them');
is($dba->query_ok(q(SELECT sum(busy) FROM lease_lock.resource_stats WHERE resource LIKE 'busy/%')), '1000', 'with all that they did');
is(counts($dba, undef, 'busy'), 'busy 1380', 'the database counts all');
# Somebody who becomes busy gets in past those that no longer are.
$dba->query_ok(q(SELECT count(lease_lock.try_acquire('risen', 'C' || i, '1 h')) FROM generate_series(1, 50) i;
SELECT count(lease_lock.try_acquire('rare/' || i % 95, 'C', '1 h')) FROM generate_series(1, 190) i;));
is($dba->query_ok(q(SELECT count(*) FROM lease_lock.resource_stats WHERE resource = 'risen')), '1', 'and one that has become busy');
# Several that become busy together do not keep each other out.
$dba->query_ok(q(SELECT count(lease_lock.try_acquire('now/' || i % 3, 'D')) FROM generate_series(1, 900) i));
is($dba->query_ok(q(SELECT count(*) FROM lease_lock.resource_stats WHERE resource LIKE 'now/%')), '3', 'and three that become so in turns');
# Many that are used alike do not drive each other out.
my $before = $dba->query_ok(q(SELECT string_agg(resource, ' ' ORDER BY resource) FROM lease_lock.resource_stats));
$dba->query_ok(q(SELECT count(lease_lock.try_acquire('rare/' || i, 'D')) FROM generate_series(0, 7) i));
cmp_ok($dba->query_ok(qq(SELECT count(*) FROM lease_lock.resource_stats WHERE resource <> ALL (string_to_array('$before', ' ')))), '<=', 1, 'one use in eight lets somebody in');
$dba->query_ok(q(SELECT count(lease_lock.release(resource, token)) FROM lease_lock.holders WHERE resource LIKE 'now/%'));
$dba->query_ok(q(SELECT count(lease_lock.try_acquire('busy/' || i % 5, 'E', '1 h')) FROM generate_series(1, 5000) i));
# A restart with fewer, and with none.
my $kept = $dba->query_ok('SELECT count(*) FROM lease_lock.resource_stats');
$dba->quit;
$node->append_conf('postgresql.conf', 'lease_lock.track_resources = 3');
$node->restart;
$dba = LeaseTest::Session->new($node);
is($dba->query_ok('SELECT count(*) FROM lease_lock.resource_stats'), '3', 'after a restart with fewer there are as many');
like($dba->query_ok(q(SELECT string_agg(resource, ' ' ORDER BY resource) FROM lease_lock.resource_stats)), qr/^busy\/\d busy\/\d busy\/\d$/, 'the busiest again');
is(counts($dba, undef, 'busy'), 'busy ' . (1380 + 49 + 190 + 900 + 8 + 5000), 'the database keeps all');
$dba->quit;
$node->append_conf('postgresql.conf', 'lease_lock.track_resources = 0');
$node->restart;
$dba = LeaseTest::Session->new($node);
$dba->query_ok(q(SELECT lease_lock.try_acquire('none', 'A')));
is($dba->query_ok('SELECT count(*) FROM lease_lock.resource_stats'), '0', 'with none there are none');
is($dba->query_ok(q(SELECT lease_lock.suggest_ttl('none'))), '', 'nor a suggestion');
is(counts($dba, undef, 'busy'), 'busy ' . (1380 + 49 + 190 + 900 + 8 + 5000), 'the database keeps all');
is(all_views($dba), '', 'and everything can be read');

done_testing();
