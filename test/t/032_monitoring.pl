# What doc/monitoring.md promises to those who watch with Prometheus: the real
# exporter shows every metric of lease_lock_queries.yml, as a role with no more
# than pg_monitor and USAGE, with the numbers of a load that is known here; a
# real Prometheus scrapes it, evaluates every query of the dashboard and every
# alert rule, and raises one.  A query that fails, a name in the dashboard that
# no query makes, two series alike, a label that is not UTF-8, or a number of
# series that grows with the data would fail here.

use strict;
use warnings;

use FindBin;
use lib $FindBin::Bin;

use HTTP::Tiny;
use IPC::Run ();
use JSON::PP ();
use LeaseTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep time);

my $folder = "$FindBin::Bin/../../monitoring";
my ($exporter) = program('prometheus-postgres-exporter');
my ($prometheus) = program('prometheus');
my ($promtool) = program('promtool');

# What is started here ends with the test, however that ends.
my @started;
END
{
	my $status = $?;
	$_->kill_kill foreach @started;
	$? = $status;
}

sub program
{
	my ($name) = @_;

	return grep { -x } map { "$_/$name" } split(/:/, $ENV{PATH} // ''), '/usr/bin';
}

#
# The rules, by promtool.
#
SKIP:
{
	skip 'there is no promtool', 2 unless $promtool;

	foreach my $call ([ 'check', 'lease_lock_alerts.yml' ], [ 'test', 'lease_lock_alerts_test.yml' ])
	{
		my $out = '';
		ok(IPC::Run::run([ $promtool, $call->[0], 'rules', "$folder/prometheus/$call->[1]" ], '<', \undef, '>', \$out, '2>&1'),
			"promtool $call->[0] rules $call->[1]") or diag($out);
	}
}

# Each alert leads to a section of the runbook, and is tested to fire.
my $rules = slurp_file("$folder/prometheus/lease_lock_alerts.yml");
my $rule_tests = slurp_file("$folder/prometheus/lease_lock_alerts_test.yml");
my @alerts = split(/^      - alert: /m, $rules);
shift @alerts;
cmp_ok(scalar @alerts, '>=', 10, 'there are alerts');
my %section;
foreach my $alert (@alerts)
{
	my ($name) = $alert =~ /^(\w+)/;
	my ($to) = $alert =~ /doc\/runbook\.md,\s+"([^"]+)"/;

	ok(defined $to, "$name leads to a section of the runbook") and $section{$to} = 1;
	like($rule_tests, qr/alertname="$name",alertstate="firing",/, "$name is made to fire");
}
my $runbook = "$FindBin::Bin/../../doc/runbook.md";
SKIP:
{
	skip 'there is no runbook', 1 unless -f $runbook;

	my $text = slurp_file($runbook);
	is(join('; ', grep { $text !~ /^#+ \Q$_\E\s*$/mi } sort keys %section), '', 'the runbook has the sections that alerts lead to');
}

# The metrics that the queries make: name => usage.
my %metric;
my ($namespace, $column);
foreach my $line (split /\n/, slurp_file("$folder/prometheus/lease_lock_queries.yml"))
{
	$namespace = $1 if $line =~ /^(\w+):$/;
	$column = $1 if $line =~ /^    - (\w+):$/;
	$metric{"${namespace}_$column"} = $1 if $line =~ /^        usage: "(\w+)"$/ && $1 ne 'LABEL';
}
cmp_ok(scalar keys %metric, '>=', 50, 'there are metrics');

# The queries of the dashboard, with the panel that each is of.
my $dashboard = JSON::PP->new->decode(slurp_file("$folder/grafana/lease_lock.json"));
my @query;
foreach my $panel (@{ $dashboard->{panels} }, @{ $dashboard->{annotations}{list} })
{
	push @query, [ $panel->{title} // $panel->{name}, $_->{expr} ] foreach @{ $panel->{targets} // [$panel] };
}
@query = grep { defined $_->[1] } @query;
cmp_ok(scalar @query, '>=', 30, 'the dashboard has queries');
my %made = map { $_ => 1 } map { ($_, $metric{$_} eq 'HISTOGRAM' ? map { my $m = $_; map { "${m}_$_" } qw(bucket sum count) } $_ : ()) } keys %metric;
my $variables = join(' ', map { ref $_->{query} ? $_->{query}{query} : () } @{ $dashboard->{templating}{list} });
is(join(' ', grep { !$made{$_} } join(' ', $variables, $rules =~ /expr: .*?\n(?=        (?:for|labels))/gs, map { $_->[1] } @query) =~ /\b(lease_lock_\w+)/g),
	'', 'dashboard and alerts know no other metrics than the queries make');

unless ($exporter)
{
	SKIP: { skip 'there is no prometheus-postgres-exporter', 1; }
	done_testing();
	exit;
}

#
# A load, and what is to be counted of it.
#
my $node = lease_server('main', q(
deadlock_timeout = 100ms
lease_lock.evict_after = '200 ms'
));
my $dba = LeaseTest::Session->new($node);
my %want;

sub counted { my ($what, $n) = @_; $want{"lease_lock_$what"} += $n // 1; return; }

sub acquire
{
	my ($session, $resource, $owner, @more) = @_;

	counted('grants_total');
	return $session->query_ok("SELECT lease_lock.acquire(" . join(', ', "'$resource'", "'$owner'", @more) . ')');
}

sub release
{
	my ($session, $resource, $token) = @_;

	counted('releases_total');
	is($session->query_ok("SELECT lease_lock.release('$resource', $token)"), 't', "$resource is released");
	return;
}

# As doc/monitoring.md has it.
$dba->query_ok(q(
CREATE ROLE lease_lock_exporter LOGIN;
GRANT pg_monitor TO lease_lock_exporter;
GRANT USAGE ON SCHEMA lease_lock TO lease_lock_exporter;
));
$dba->query_ok(q(
CREATE TABLE ledger (name text);
CREATE TABLE loose (name text);
CREATE SCHEMA "odd schema";
CREATE TABLE "odd schema"."broken ""one""" (name text);
SELECT lease_lock.guard('ledger', 'ledger/{name}');
SELECT lease_lock.guard('loose', 'loose', action => 'warn');
SELECT lease_lock.guard('"odd schema"."broken ""one"""', 'broken');
ALTER TABLE "odd schema"."broken ""one""" DISABLE TRIGGER zz_lease_lock_guard;
SELECT lease_lock.stats_reset();
));

my ($first, $second, $third) = map { LeaseTest::Session->new($node) } 1 .. 3;

# Twelve of one name; their holds are of the test's own time.
foreach (1 .. 12)
{
	release($first, 'busy/1', acquire($first, 'busy/1', 'A'));
}

# A takeover, and the same owner again.
acquire($first, 'short', 'A', q(ttl => '20 ms'));
ok(wait_true($dba, q(SELECT state = 'expired' FROM lease_lock.holders WHERE resource = 'short')), 'a lease expires');
acquire($second, 'short', 'B', q(ttl => '1 h'));
counted($_) foreach qw(takeovers_total expired_total);
acquire($second, 'short', 'B', q(ttl => '1 h'));
counted('reacquired_total');

# Calls that fail.
acquire($first, 'held', 'A', q(ttl => '1 h'));
foreach (1 .. 2)
{
	refused_with($second, q(SELECT lease_lock.acquire('held', 'B', wait => '20 ms')), '55P03', 'acquire gives up');
	counted('acquire_timeouts_total');
}
foreach (1 .. 3)
{
	is($second->query_ok(q(SELECT lease_lock.try_acquire('held', 'B'))), '', 'try_acquire returns NULL');
	counted('acquire_busy_total');
}

# Renewals: two early, and a late one with less than a fifth of the TTL left; on
# a busy machine it may need more than one try.
my $token = acquire($first, 'renewed', 'A', q(ttl => '1 h'));
$first->query_ok("SELECT lease_lock.renew('renewed', $token, '10 min')") foreach 1 .. 2;
counted('renewals_total', 2);
foreach my $try (1 .. 20)
{
	my $t = acquire($first, "late/$try", 'A', q(ttl => '2 s'));
	wait_true($first, "SELECT remaining < '0.4 s' FROM lease_lock.holders WHERE resource = 'late/$try'");
	my $renewed = $first->query_ok("SELECT lease_lock.renew('late/$try', $t, '1 h')") ne '';
	counted($renewed ? 'renewals_total' : 'renewals_failed_total');
	next unless $renewed;
	counted('renewals_late_total');
	last;
}
$first->query_ok("SELECT lease_lock.renew('renewed', $token + 1000)") foreach 1 .. 4;
counted('renewals_failed_total', 4);
$first->query_ok("SELECT lease_lock.release('renewed', $token + 1000)") foreach 1 .. 5;
counted('releases_failed_total', 5);

# Ended by an administrator, and with its session.
acquire($first, 'forced', 'A');
$dba->query_ok(q(SELECT lease_lock.force_release('forced', 'test')));
counted('forced_total');
acquire($third, 'of session', 'C', q(ttl => '1 h'), q(scope => 'session'));
$third->quit;
ok(wait_true($dba, q(SELECT health = 'session gone' FROM lease_lock.holders WHERE resource = 'of session')), 'a session is gone');
acquire($first, 'of session', 'A', q(ttl => '1 h'));
counted($_) foreach qw(takeovers_total sessions_died_total);

# A deadlock through leases.
my %d = map { $_->[0] => acquire($_->[1], $_->[0], $_->[2], q(ttl => '1 h')) } [ 'd1', $first, 'A' ], [ 'd2', $second, 'B' ];
$first->send(q(SELECT lease_lock.acquire('d2', 'A', wait => '10 min')));
ok(wait_true($dba, q(SELECT count(*) = 1 FROM lease_lock.waiters WHERE resource = 'd2')), 'A waits for B, and B will for A');
$second->send(q(SELECT lease_lock.acquire('d1', 'B', wait => '10 min')));
my $end = time + $PostgreSQL::Test::Utils::timeout_default;
sleep 0.02 until $first->ready || $second->ready || time > $end;
my ($victim, $other, $own) = $first->ready ? ($first, $second, 'd1') : ($second, $first, 'd2');
$victim->result;
is($victim->state, '40P01', 'one of them gets a deadlock');
counted('deadlocks_total');
release($victim, $own, $d{$own});
cmp_ok($other->result, '>', 0, 'the other is granted');
counted('grants_total');

# Guarded writes: refused, let through with a warning or by bypass, and passed.
my $old = acquire($first, 'ledger/a', 'A', q(ttl => '1 h'));
my $new = acquire($first, 'ledger/a', 'A', q(ttl => '1 h'));
counted('reacquired_total');
my $write = sub
{
	my ($t, $state, $reason) = @_;

	$second->query_ok('BEGIN');
	$second->query_ok("SELECT lease_lock.present('ledger/a', $t)") if defined $t;
	refused_with($second, q(INSERT INTO ledger VALUES ('a')), $state, $reason // 'a guarded write passes');
	$second->query_ok($state eq '' ? 'COMMIT' : 'ROLLBACK');
	counted('guarded_writes_total') if $state eq '';
	counted("refused_total $reason") if $state ne '';
	return;
};
$write->($old, 'LL001', 'stale');
$write->(undef, 'LL002', 'no token') foreach 1 .. 2;
$write->($new, '');
$write->(4e12, 'LL004', 'unknown token') foreach 1 .. 4;
release($first, 'ledger/a', $new);
$write->($new, 'LL003', 'not held') foreach 1 .. 3;
refused_with($second, q(INSERT INTO ledger VALUES (NULL)), '22004', 'no name') or 1;
counted('refused_total no name');
refused_with($second, "SELECT lease_lock.assert_held('ledger/a', $old)", 'LL001', 'assert_held is refused');
counted('refused_total stale');
foreach (1 .. 5)
{
	$second->query_ok(q(INSERT INTO loose VALUES ('a')));
	counted('warned_total');
}
$dba->query_ok(q(BEGIN; SELECT lease_lock.bypass('ledger', 'test'); INSERT INTO ledger VALUES ('a'); COMMIT));

# An eviction: a write in flight outlives its lease, and somebody waits for it.
$token = acquire($second, 'ledger/b', 'B', q(ttl => '100 ms'));
$second->query(qq(BEGIN; SELECT lease_lock.present('ledger/b', $token); INSERT INTO ledger VALUES ('b')));
is($second->state, '', 'a write in time, in an open transaction');
counted('guarded_writes_total');
acquire($first, 'ledger/b', 'A', q(ttl => '1 h'), q(wait => '10 min'));
counted($_) foreach qw(takeovers_total expired_total evictions_total);
$second->query('SELECT 1');
$second = LeaseTest::Session->new($node);

# Left for the scrape: a waiter, an idle holder, one overdue, one whose session is gone, named locks.
my ($waiter, $idle, $gone) = map { LeaseTest::Session->new($node) } 1 .. 3;
$waiter->send(q(SELECT lease_lock.acquire('held', 'W', wait => '1 h')));
acquire($idle, 'idle', 'I', q(ttl => '1 h'));
$idle->query_ok('BEGIN; SELECT lease_lock.advisory_xact_lock($$in xact$$)');
acquire($gone, 'gone', 'G', q(ttl => '1 h'), q(scope => 'session'));
$gone->quit;
acquire($first, 'overdue', 'A', q(ttl => '1 ms'));
$first->query_ok(q(SELECT lease_lock.advisory_lock('named', shared => true)));
ok(wait_true($dba, q(SELECT count(*) = 1 FROM lease_lock.waiters)), 'a waiter is in line');
ok(wait_true($dba, q(SELECT count(*) >= 2 FROM lease_lock.holders WHERE health IN ('session gone', 'overdue'))), 'leases are left behind');

# More names than are shown, each used ten times; long ones that differ at their
# end; and what labels must escape.
$dba->query_ok(q(
DO $$
DECLARE
  name text;
  token bigint;
BEGIN
  FOREACH name IN ARRAY array_append(array(SELECT repeat('n', 500) || i FROM generate_series(1, 30) AS i),
                                     E'two\nlines "quoted" \\\\ back')
  LOOP
    FOR i IN 1 .. 10 + (name LIKE 'two%')::int LOOP
      token := lease_lock.acquire(name, 'A');
      COMMIT;
      PERFORM lease_lock.release(name, token);
      COMMIT;
    END LOOP;
  END LOOP;
END $$));
counted($_, 311) foreach qw(grants_total releases_total);

# Another database, whose names are no UTF-8.
$node->safe_psql('postgres', q(CREATE DATABASE bytes TEMPLATE template0 ENCODING 'SQL_ASCII' LC_COLLATE 'C' LC_CTYPE 'C'));
$node->safe_psql('bytes', 'CREATE EXTENSION lease_lock; GRANT USAGE ON SCHEMA lease_lock TO lease_lock_exporter');
$node->safe_psql('bytes', "DO \$\$ BEGIN FOR i IN 1 .. 10 LOOP PERFORM lease_lock.acquire(E'caf\\xe9\\\\', 'A'); COMMIT; END LOOP; END \$\$");

#
# The exporter.
#
my $port = PostgreSQL::Test::Cluster::get_free_port();
my $log = '';
my $exporting;
{
	local $ENV{DATA_SOURCE_NAME} = 'host=' . $node->host . ' port=' . $node->port . ' user=lease_lock_exporter dbname=postgres sslmode=disable';
	$exporting = IPC::Run::start(
		[
			$exporter, "--extend.query-path=$folder/prometheus/lease_lock_queries.yml", "--web.listen-address=127.0.0.1:$port",
			'--auto-discover-databases', '--include-databases=bytes', '--disable-default-metrics', '--disable-settings-metrics'
		],
		'<', \undef, '>', \$log, '2>&1');
}
push @started, $exporting;
my $http = HTTP::Tiny->new(timeout => 60);

# Polls a URL until it answers as it should; the last answer.
sub fetch
{
	my ($process, $url, $good) = @_;
	my $end = time + $PostgreSQL::Test::Utils::timeout_default;
	my $answer;

	do
	{
		sleep 0.1 if $answer;
		eval { $process->pump_nb if $process->pumpable };
		$answer = $http->get($url);
	} until ($answer->{success} && (!$good || $good->($answer->{content}))) || time > $end;
	return $answer->{content};
}

my (%value, %type);
my $scraped = fetch($exporting, "http://127.0.0.1:$port/metrics", sub { $_[0] =~ /^lease_lock_grants_total/m });
diag(substr($scraped, 0, 2000), $log) unless $scraped =~ /^lease_lock_grants_total/m;
foreach my $line (split /\n/, $scraped)
{
	$type{$1} = $2 if $line =~ /^# TYPE (\S+) (\S+)/;
	next unless $line =~ /^(lease_lock_\w+)\{(.*)\} (\S+)$/;
	my ($name, $labels, $value) = ($1, $2, $3);

	# What stays of the labels tells the series of a database apart.
	$labels =~ s/,?server="[^"]*"//;
	my $db = $labels =~ s/datname="(\w+)",?// ? $1 : 'none';
	$labels =~ s/^,|,$//;
	$value{$db}{$name}{$labels} = $value;
}
my %scraped = %{ $value{postgres} // {} };
$scraped{$_} = $scraped{"${_}_count"} foreach grep { $metric{$_} eq 'HISTOGRAM' } keys %metric;

like($scraped, qr/^pg_exporter_last_scrape_error 0$/m, 'the scrape had no error');
unlike($log, qr/level=(?:error|warn)|Unexpected|Unparseable|Error running query/, 'and the exporter logged none') or diag($log);
is(join(' ', sort keys %value), 'bytes postgres', 'of both databases');
is(join(' ', grep { !$scraped{$_} } sort keys %metric), '', 'every metric is there');
is(join(' ', grep { !$made{$_} } sort keys %scraped), '', 'and no other');
is(join(' ', grep { my $t = $type{$_} // 'none'; $t ne lc $metric{$_} } sort keys %metric), '', 'each with its type');
is(join(' ', grep { ($metric{$_} eq 'COUNTER') != /_total$/ } sort keys %metric), '', 'counters, and no others, are called total');

# Counted here.
foreach my $name (sort keys %want)
{
	my ($of, $reason) = $name =~ /^(\S+)(?: (.*))?$/;
	is($scraped{$of}{ defined $reason ? qq(reason="$reason") : '' }, $want{$name}, $name);
}

# The rest, by what has been done above.
my %seen = (
	'lease_lock_waiters' => 1,
	'lease_lock_waited_names' => 1,
	'lease_lock_guards' => 3,
	'lease_lock_guards_with_problem' => 2,
	'lease_lock_renewal_margin_least_ratio' => qr/^0(?:\.[01]|$)/,
	'lease_lock_renewal_margin_ratio' => qr/^0\.[67]/,
	'lease_lock_hold_seconds_count' => $want{lease_lock_releases_total},
	'lease_lock_hold_seconds_bucket le="137438.953471"' => $want{lease_lock_releases_total},
	'lease_lock_holders_by_health health="overdue"' => qr/^[1-9]/,
	'lease_lock_holders_by_health health="session gone"' => 1,
	'lease_lock_holders_by_health health="idle in transaction"' => 1,
	'lease_lock_holders_with_waiters health="ok"' => 1,
	'lease_lock_holders_with_waiters health="overdue"' => 0,
	'lease_lock_rejections_total action="enforce",reason="no token",relation="public.ledger"' => 2,
	'lease_lock_rejections_total action="enforce",reason="stale",relation="public.ledger"' => 1,
	'lease_lock_rejections_total action="enforce",reason="stale",relation="-"' => 1,
	'lease_lock_rejections_total action="warn",reason="no token",relation="public.loose"' => 5,
	'lease_lock_rejections_total action="bypass",reason="bypass",relation="public.ledger"' => 1,
	'lease_lock_guard_problem relation="\"odd schema\".\"broken \"\"one\"\"\"",triggers="zz_lease_lock_guard",what="zz_lease_lock_guard is disabled; not guarded: insert, update, delete"' => 1,
	'lease_lock_guard_problem relation="public.loose",triggers="zz_lease_lock_guard",what="it only warns"' => 1,
	'lease_lock_tokens_moved' => 0,
	'lease_lock_tokens_jumped_timestamp_seconds' => 0,
	'lease_lock_advisory_locks granted="true",mode="exclusive",scope="transaction"' => 1,
	'lease_lock_advisory_locks granted="true",mode="shared",scope="session"' => 1,
	'lease_lock_resource_grants_total resource="busy/1"' => 12,
	'lease_lock_resource_grants_total resource="two\nlines \"quoted\" \\\\ back"' => 11,
	'lease_lock_hot_waiters resource="held"' => 1,
);
foreach my $key (sort keys %seen)
{
	my ($name, $labels) = $key =~ /^(\S+) ?(.*)$/s;
	my $got = $scraped{$name}{$labels};
	my $want = $seen{$key};

	(ref $want ? like($got, $want, $key) : is($got, $want, $key))
	  or diag(join("\n", map { "$name {$_} = $scraped{$name}{$_}" } sort keys %{ $scraped{$name} }));
}

# By the views, which change no more but for the time.
my @columns = split /\|/, $dba->query_ok(q(
SELECT waits + 0, extract(epoch FROM wait_total)::float8, extract(epoch FROM hold_total)::float8, extract(epoch FROM hold_max)::float8,
       extract(epoch FROM wait_p95)::float8, extract(epoch FROM hold_p50)::float8,
       extract(epoch FROM last_renewal)::float8, extract(epoch FROM last_write)::float8, extract(epoch FROM since)::float8,
       (SELECT last_token FROM lease_lock.token_state), (SELECT tokens_left FROM lease_lock.token_state),
       pg_total_relation_size('lease_lock.lease'), (SELECT count(*) FROM lease_lock.holders WHERE health = 'expires soon')
FROM lease_lock.stats));
my @names = (
	'wait_seconds_count', 'wait_seconds_sum', 'hold_seconds_sum', 'hold_seconds_max',
	'quantile_seconds kind="wait",quantile="0.95"', 'quantile_seconds kind="hold",quantile="0.5"',
	'last_renewal_timestamp_seconds', 'last_guarded_write_timestamp_seconds', 'stats_since_timestamp_seconds',
	'tokens_last', 'tokens_left', 'table_size_bytes relname="lease"',
	'holders_by_health health="expires soon"');
foreach my $i (0 .. $#names)
{
	my ($name, $labels) = $names[$i] =~ /^(\S+) ?(.*)$/;
	my $got = $scraped{"lease_lock_$name"}{$labels};

	ok(abs($got - $columns[$i]) <= 1e-9 * abs($columns[$i]), "lease_lock_$names[$i]") or diag("scraped $got, in the database $columns[$i]");
}
foreach my $name ('longest_wait_seconds', 'holders_longest_held_seconds health="ok"', 'holders_longest_overdue_seconds health="overdue"',
	'holders_longest_transaction_seconds health="idle in transaction"', 'advisory_longest_seconds granted="true",mode="shared",scope="session"')
{
	my ($of, $labels) = $name =~ /^(\S+) ?(.*)$/;
	my $got = $scraped{"lease_lock_$of"}{$labels};

	ok(defined $got && $got > 0 && $got < 3600, "lease_lock_$name") or diag($got);
}

# A histogram that climbs, to its count.
foreach my $name (qw(lease_lock_wait_seconds lease_lock_hold_seconds))
{
	my @upto = sort { $a->[0] <=> $b->[0] }
	  map { [ /le="([^"]+)"/ ? ($1 eq '+Inf' ? 9e99 : $1) : -1, $scraped{"${name}_bucket"}{$_} ] } keys %{ $scraped{"${name}_bucket"} };

	is(scalar(grep { $upto[$_][1] < $upto[ $_ - 1 ][1] } 1 .. $#upto), 0, "$name climbs");
	is($upto[-1][1], $scraped{"${name}_count"}{''}, "$name ends at its count");
}

# Bounded, whatever the data; names of bytes are shown escaped.
is(scalar keys %{ $scraped{lease_lock_resource_grants_total} }, 20, '20 names are shown of more');
cmp_ok(scalar keys %{ $scraped{lease_lock_hot_waiters} }, '<=', 10, 'and no more than 10 hot ones');
is((keys %{ $value{bytes}{lease_lock_resource_grants_total} // {} })[0], 'resource="caf\\\\351\\\\\\\\"', 'bytes are escaped in a name that is no UTF-8');

#
# Prometheus.
#
SKIP:
{
	skip 'there is no prometheus', 1 unless $prometheus;

	my $home = PostgreSQL::Test::Utils::tempdir();
	my $at = PostgreSQL::Test::Cluster::get_free_port();
	append_to_file("$home/prometheus.yml", join("\n",
		'global: {scrape_interval: 1s, evaluation_interval: 1s}',
		"rule_files: ['$folder/prometheus/lease_lock_alerts.yml']",
		"scrape_configs: [{job_name: lease_lock, static_configs: [{targets: ['127.0.0.1:$port']}]}]", ''));
	my $noise = '';
	my $server = IPC::Run::start(
		[ $prometheus, "--config.file=$home/prometheus.yml", "--storage.tsdb.path=$home/data", "--web.listen-address=127.0.0.1:$at" ],
		'<', \undef, '>', \$noise, '2>&1');
	push @started, $server;
	my $api = "http://127.0.0.1:$at/api/v1";

	# The rows of an instant query; undef, with a message, when it fails.
	my $evaluate = sub
	{
		my ($expr) = @_;
		my $answer = $http->post_form("$api/query", { query => $expr });
		my $result = eval { JSON::PP->new->decode($answer->{content}) } // {};

		return $result->{data}{result} if ($result->{status} // '') eq 'success';
		diag("$expr: $answer->{content}");
		return undef;
	};
	fetch($server, "$api/query?query=count_over_time(lease_lock_grants_total%7Bdatname%3D%22postgres%22%7D%5B1h%5D)%20%3E%3D%202",
		sub { $_[0] =~ /"metric":\{/ }) =~ /"metric":\{/ or diag($noise);

	# Empty is right where there is nothing of the kind.
	my %empty = map { $_ => 1 } 'Last jump of the tokens', 'Jumps of the tokens';
	foreach my $q (@query)
	{
		my ($title, $expr) = @$q;
		$expr =~ s/\$__rate_interval/1h/g;
		$expr =~ s/\$instance|\$datname/.*/g;

		my $rows = $evaluate->($expr);
		ok($rows && (@$rows > 0 || $empty{$title}), "dashboard: $title: $expr");
	}

	# A refused write raises the alert, with its words.
	$write->($new, 'LL003', 'not held');
	my $alerts = fetch($server, "$api/alerts", sub { $_[0] =~ /"alertname":"LeaseLockWritesRefused"/ });
	my ($raised) = grep { $_->{labels}{alertname} eq 'LeaseLockWritesRefused' } @{ JSON::PP->new->decode($alerts)->{data}{alerts} };
	is($raised->{state}, 'firing', 'a refused write raises the alert');
	is($raised->{annotations}{summary}, 'Guarded writes are refused in postgres: not held', 'which says what is refused');
	unlike($alerts, qr/error expanding/, 'no alert has words that cannot be made');
	my $bad = join(' ', map { "$_->{name}: $_->{lastError}" } grep { $_->{health} ne 'ok' }
		map { @{ $_->{rules} } } @{ JSON::PP->new->decode($http->get("$api/rules")->{content})->{data}{groups} });
	is($bad, '', 'every rule can be evaluated');
}
$_->quit foreach $first, $second, $dba;
$node->stop('immediate');
done_testing();
