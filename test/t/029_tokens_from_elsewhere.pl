# Tokens that were not granted here: by lease_lock in another server, by etcd
# (the revision at which a lock's key was written) and by Redis (INCR), each a
# real server.  A worker that gets a token, stalls, and is succeeded by another
# one cannot write after that one has, neither to a table that is guarded in mode
# newest nor to one whose rows carry their token.  When the issuer is wiped and
# begins anew, its tokens are refused until an administrator says so.
#
# A guard that compared with leases of its own, or that let a forgotten fence
# linger, would fail here.

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

my $node = lease_server('main');
my $dba = LeaseTest::Session->new($node);
my %server;

# Whatever happens, no server that was started here is left.
END
{
	my $status = $?;

	eval { $_->kill_kill(grace => 2); } foreach grep { defined } values %server;
	$? = $status;
}

sub program
{
	my ($name) = @_;
	my ($path) = grep { -x } map { "$_/$name" } split(/:/, $ENV{PATH} // ''), '/usr/bin', '/usr/sbin';

	return $path;
}

# Calls a function until it returns something true, and returns that.
sub wait_for
{
	my ($what, $function) = @_;
	my $end = time + $PostgreSQL::Test::Utils::timeout_default;

	while (time < $end)
	{
		my $result = $function->();

		return $result if $result;
		sleep 0.05;
	}
	die "timed out waiting for $what";
}

# What a command prints; '' when it fails.
sub output_of
{
	my (@command) = @_;
	my ($out, $err) = ('', '');

	IPC::Run::run(\@command, '<', \undef, '>', \$out, '2>', \$err) or return '';
	chomp $out;
	return $out;
}

# Starts a server of an issuer; its output goes to a file.
sub start_server
{
	my ($name, @command) = @_;
	my $log = "$PostgreSQL::Test::Utils::log_path/$name.log";

	$server{$name} = IPC::Run::start(\@command, '<', \undef, '>>', $log, '2>&1');
	return;
}

sub stop_server
{
	my ($name) = @_;

	$server{$name}->kill_kill(grace => 10);
	delete $server{$name};
	return;
}

#
# What is asked of an issuer: grant(WORKER) returns a token once the lock is the
# worker's; stall(WORKER) makes the worker lose it without being told;
# wipe() begins anew, with nothing known of before.
#
sub fenced
{
	my ($name, %issuer) = @_;
	my ($a, $b) = map { LeaseTest::Session->new($node) } 1 .. 2;
	my $present = "SELECT lease_lock.present('$name/job', %s)";
	my $fence = "SELECT highest FROM lease_lock.fences WHERE name = '$name/job'";

	$dba->query_ok(qq(
CREATE TABLE ${name}_job (id int PRIMARY KEY, note text);
CREATE TABLE ${name}_doc (id int PRIMARY KEY, token bigint, note text);
INSERT INTO ${name}_job VALUES (1, 'new');
SELECT lease_lock.guard('${name}_job', '$name/job', mode => 'newest'), lease_lock.guard_column('${name}_doc', 'token')));
	my $job = "UPDATE ${name}_job SET note = '%s' WHERE id = 1";
	my $doc = "UPDATE ${name}_doc SET note = '%s', token = %s WHERE id = 1";
	my $note = "SELECT (SELECT note FROM ${name}_job WHERE id = 1), (SELECT note FROM ${name}_doc WHERE id = 1)";
	# Writes a session to both tables under a token; the SQLSTATE of each.
	my $write = sub
	{
		my ($session, $who, $token) = @_;
		my @states;

		$session->query('BEGIN; ' . sprintf("$present; $job; COMMIT", $token, $who));
		push @states, $session->state;
		$session->query('ROLLBACK') if $states[0] ne '';
		$session->query(sprintf($doc, $who, $token));
		push @states, $session->state;
		return join(' ', map { $_ eq '' ? 'ok' : $_ } @states);
	};

	my $ta = $issuer{grant}->('A');
	cmp_ok($ta, '>', 0, "$name: worker A gets a token, $ta");
	$a->query_ok("INSERT INTO ${name}_doc VALUES (1, $ta, 'new')");
	is($write->($a, 'A', $ta), 'ok ok', "$name: and writes");
	is($dba->query_ok($fence), $ta, "$name: the fence knows it");

	# A stalls in a transaction that has written, and B comes.
	$a->query_ok('BEGIN; ' . sprintf("$present; $job", $ta, 'A in time'));
	$issuer{stall}->('A');
	my $tb = $issuer{grant}->('B');
	cmp_ok($tb, '>', $ta, "$name: A stalls, and worker B gets a newer one, $tb");
	$b->query_ok(sprintf("BEGIN; $present", $tb));
	$b->send(sprintf($job, 'B'));
	ok(wait_true($dba, 'SELECT count(*) > 0 FROM pg_locks WHERE NOT granted AND pid = ' . $b->pid), "$name: what A has written and not committed makes B wait");
	$a->query_ok('COMMIT');
	$b->result;
	is($b->state, '', "$name: then B writes");
	$b->query_ok('COMMIT');
	$b->query_ok(sprintf($doc, 'B', $tb));

	# A wakes up.
	is($write->($a, 'A late', $ta), 'LL001 LL001', "$name: a late write of A is refused");
	is($dba->query_ok($note), 'B|B', "$name: and has changed nothing");
	is($dba->query_ok("SELECT resource, token, newest, reason FROM lease_lock.rejections WHERE relation = '${name}_job'::regclass"), "$name/job|$ta|$tb|stale", "$name: rejections shows it");
	is($dba->query_ok("SELECT token, newest, reason FROM lease_lock.rejections WHERE relation = '${name}_doc'::regclass"), "$ta|$tb|stale", "$name: also of the token in the row");
	$a->query_ok(sprintf("BEGIN; $present", $ta));
	refused_with($a, "DELETE FROM ${name}_doc", 'LL001', "$name: a late DELETE too");
	$a->query('ROLLBACK');
	is($write->($b, 'B again', $tb), 'ok ok', "$name: B goes on");
	is($dba->query_ok("$fence AND mode = 'newest'"), $tb, "$name: the fence knows its token");

	# The issuer begins anew, below all that was.
	$issuer{wipe}->();
	my $tc = $issuer{grant}->('C');
	cmp_ok($tc, '<', $tb, "$name: wiped, it begins anew: $tc");
	is($write->($a, 'C', $tc), 'LL001 LL001', "$name: which is refused as stale");
	is($dba->query_ok("SELECT lease_lock.forget_fence('$name/job')"), $tb, "$name: forget_fence returns what it forgot");
	is($dba->query_ok($fence), '', "$name: and it is gone");
	$a->query_ok('BEGIN; ' . sprintf("$present; $job; COMMIT", $tc, 'C'));
	is($dba->query_ok($fence), $tc, "$name: tokens begin anew under that name");
	# Of a row it is the row that remembers.
	refused_with($a, sprintf($doc, 'C', $tc), 'LL001', "$name: a row keeps its token");
	$dba->query_ok("BEGIN; SELECT lease_lock.bypass('${name}_doc', 'the issuer was wiped'); UPDATE ${name}_doc SET token = NULL; COMMIT");
	$a->query_ok(sprintf($doc, 'C', $tc));
	is($dba->query_ok($note), 'C|C', "$name: until its owner takes it away");
	is($dba->query_ok("SELECT forgotten.detail IS NOT NULL FROM lease_lock.audit AS forgotten WHERE action = 'forget_fence' AND object = '$name/job'"), 't', "$name: the audit tells");
	is($dba->query_ok("SELECT lease_lock.forget_fence('$name/none')"), '', "$name: there is nothing to forget of another name");

	my $td = $issuer{grant}->('C');
	cmp_ok($td, '>=', $tc, "$name: and so on upwards");
	is($write->($b, 'D', $td + 1), 'ok ok', "$name: a newer one is accepted");
	is($write->($a, 'C', $tc), 'LL001 LL001', "$name: and the older one stale");
	$_->quit foreach ($a, $b);
	return;
}

#
# Another server with lease_lock.
#
my $other = lease_server('other');
my $issuer = LeaseTest::Session->new($other);
my $pg_lease = sub { return $issuer->query_ok("SELECT lease_lock.acquire('job', '$_[0]', ttl => '300 ms', wait => '1 min')"); };
$issuer->query_ok(q(SELECT count(lease_lock.acquire('early/' || i, 'A')) FROM generate_series(1, 20) AS i));
fenced('postgres',
	grant => $pg_lease,
	# Its time runs out.
	stall => sub { },
	wipe => sub { $issuer->query_ok('DROP EXTENSION lease_lock CASCADE; CREATE EXTENSION lease_lock'); });
$issuer->quit;
$other->stop;

#
# etcd: its own lock, whose key has the revision at which it was written.
#
SKIP:
{
	my ($etcd, $etcdctl) = map { program($_) } qw(etcd etcdctl);

	skip 'there is no etcd', 1 unless $etcd && $etcdctl;

	local $ENV{ETCDCTL_API} = '3';
	my ($port, $peer) = map { PostgreSQL::Test::Cluster::get_free_port() } 1 .. 2;
	my ($client_url, $peer_url) = map { "http://127.0.0.1:$_" } $port, $peer;
	my @ctl = ($etcdctl, "--endpoints=$client_url");
	my $n = 0;
	my $start = sub
	{
		my $folder = PostgreSQL::Test::Utils::tempdir();

		start_server('etcd', $etcd, '--data-dir', "$folder/data",
			'--listen-client-urls', $client_url, '--advertise-client-urls', $client_url,
			'--listen-peer-urls', $peer_url, '--initial-advertise-peer-urls', $peer_url,
			'--initial-cluster', "default=$peer_url");
		wait_for('etcd', sub { output_of(@ctl, 'endpoint', 'health', '-w', 'json') ne '' });
		return;
	};
	my %out;
	$start->();
	output_of(@ctl, 'put', 'something', $_) foreach 1 .. 5;
	fenced('etcd',
		grant => sub
		{
			my ($worker) = @_;
			my $log = "$PostgreSQL::Test::Utils::log_path/etcd_lock_" . ++$n . '.log';

			stop_server("lock $worker") if $server{"lock $worker"};
			$out{$worker} = '';
			$server{"lock $worker"} = IPC::Run::start([ @ctl, 'lock', '--ttl=2', 'job' ], '<', \undef, '>', \$out{$worker}, '2>', $log);
			# It prints its key when the lock is its own.
			my $key = wait_for('the lock of etcd', sub { eval { $server{"lock $worker"}->pump_nb; }; return $out{$worker} =~ /^(job\/\w+)\n/ ? $1 : undef; });
			my ($revision) = output_of(@ctl, 'get', $key, '-w', 'json') =~ /"mod_revision":(\d+)/;
			return $revision;
		},
		# A process that does not run renews nothing.
		stall => sub { $server{'lock A'}->signal('STOP'); },
		wipe => sub
		{
			foreach my $name (grep { /^lock / } sort keys %server)
			{
				$server{$name}->signal('CONT');
				stop_server($name);
			}
			stop_server('etcd');
			$start->();
		});
	stop_server($_) foreach (grep { /^lock / } sort keys %server), 'etcd';
}

#
# Redis: a key that expires is the lock, and a counter beside it the token.
#
SKIP:
{
	my ($redis, $cli) = map { program($_) } qw(redis-server redis-cli);

	skip 'there is no Redis', 1 unless $redis && $cli;

	my $port = PostgreSQL::Test::Cluster::get_free_port();
	my $folder = PostgreSQL::Test::Utils::tempdir();
	my @ctl = ($cli, '-h', '127.0.0.1', '-p', $port);

	start_server('redis', $redis, '--port', $port, '--bind', '127.0.0.1', '--dir', $folder, '--save', '', '--daemonize', 'no');
	wait_for('Redis', sub { output_of(@ctl, 'PING') eq 'PONG' });
	output_of(@ctl, 'INCR', 'job:token') foreach 1 .. 5;
	fenced('redis',
		grant => sub
		{
			my ($worker) = @_;

			wait_for('the lock of Redis', sub { output_of(@ctl, 'SET', 'job', $worker, 'NX', 'PX', 300) eq 'OK' });
			return output_of(@ctl, 'INCR', 'job:token');
		},
		stall => sub { },
		wipe => sub { output_of(@ctl, 'FLUSHALL'); });
	stop_server('redis');
}

# What forget_fence may not do to a writer in flight, and who may call it.
{
	my ($a, $b) = map { LeaseTest::Session->new($node) } 1 .. 2;

	$dba->query_ok(q(CREATE TABLE flying (id int); SELECT lease_lock.guard('flying', 'flying', mode => 'newest')));
	$a->query_ok(q(BEGIN; SELECT lease_lock.present('flying', 100); INSERT INTO flying VALUES (1)));
	$b->send(q(SELECT lease_lock.forget_fence('flying')));
	ok(wait_true($dba, 'SELECT count(*) > 0 FROM pg_locks WHERE NOT granted AND pid = ' . $b->pid), 'forget_fence waits for a write in flight');
	$a->query_ok('COMMIT');
	is($b->result, '100', 'and forgets what it has accepted');
	$b->query_ok(q(BEGIN; SELECT lease_lock.present('flying', 5); INSERT INTO flying VALUES (1); ROLLBACK));
	$b->query_ok(q(BEGIN; SELECT lease_lock.present('flying', 3); INSERT INTO flying VALUES (1); COMMIT));
	$b->query_ok(q(BEGIN; SELECT lease_lock.forget_fence('flying'); ROLLBACK));
	is($dba->query_ok(q(SELECT highest FROM lease_lock.fence WHERE name = 'flying')), '3', 'rolled back, it has forgotten nothing');
	$dba->query_ok('CREATE ROLE app; GRANT USAGE ON SCHEMA lease_lock TO app; SET ROLE app');
	refused_with($dba, q(SELECT lease_lock.forget_fence('flying')), '42501', 'only administrators may call it');
	$dba->query_ok('RESET ROLE');
	$_->quit foreach ($a, $b);
}

$dba->quit;
$node->stop;
done_testing();
