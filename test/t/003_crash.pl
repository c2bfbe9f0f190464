# A grant or a renewal whose commit has returned survives a crash and is on the
# synchronous standby, whatever synchronous_commit says; its token is never
# granted again.  A session that dies leaves nothing behind.

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
wal_writer_delay = 10s
checkpoint_timeout = 1h
bgwriter_lru_maxpages = 0
shared_buffers = 32MB
), allows_streaming => 1);
my $dba = LeaseTest::Session->new($node);

$dba->query_ok(q(
CREATE TABLE account (id int PRIMARY KEY, balance int);
INSERT INTO account VALUES (1, 0);
SELECT lease_lock.guard('account', 'guarded');
CREATE TABLE plain (line text);
CREATE ROLE hasty SUPERUSER LOGIN;
ALTER ROLE hasty SET synchronous_commit = off;
CREATE FUNCTION hasty_acquire(name text) RETURNS bigint LANGUAGE plpgsql SET synchronous_commit = off
AS $$ BEGIN RETURN lease_lock.acquire(name, 'hasty', ttl => '1 h'); END $$;
CREATE FUNCTION hasty_renew(name text, token bigint) RETURNS timestamptz LANGUAGE plpgsql SET synchronous_commit = off
AS $$ BEGIN RETURN lease_lock.renew(name, token, '2 h'); END $$;
CREATE FUNCTION caught_acquire(name text) RETURNS bigint LANGUAGE plpgsql
AS $$ BEGIN RETURN lease_lock.acquire(name, 'caught', ttl => '1 h'); EXCEPTION WHEN division_by_zero THEN RETURN 0; END $$;
));

#
# With the WAL writer stopped, and room for all buffers, a commit is on disk only
# if it flushed itself: the flush position has passed what the insert position
# was just before it.
#
my $walwriter = $dba->query_ok(q(SELECT pid FROM pg_stat_activity WHERE backend_type = 'walwriter'));
my $off = LeaseTest::Session->new($node, options => '-c synchronous_commit=off');
my $local = LeaseTest::Session->new($node, options => '-c synchronous_commit=local');
my $role = LeaseTest::Session->new($node, user => 'hasty');
my $on = LeaseTest::Session->new($node);

is($role->query_ok('SHOW synchronous_commit'), 'off', 'a role with a setting of its own');
my $seven = $on->query_ok(q(SELECT lease_lock.acquire('seven', 'on', ttl => '1 h')));
my $eight = $on->query_ok(q(SELECT lease_lock.acquire('eight', 'on', ttl => '1 h')));
my $nine = $on->query_ok(q(SELECT lease_lock.acquire('nine', 'on', ttl => '1 h')));
signal_backend('STOP', $walwriter);

# The last line that SQL prints ends in the insert position before its commit.
sub flushed
{
	my ($session, $sql) = @_;
	my $out = $session->query_ok($sql);
	my ($lsn) = $out =~ m{([0-9A-F]+/[0-9A-F]+)\s*\z} or die "no position in: $out";

	return $dba->query_ok("SELECT pg_current_wal_flush_lsn() > '$lsn'");
}

my $lsn = 'pg_current_wal_insert_lsn()';
my @commits = (
	[ 'grant, off in the session', $off, "SELECT lease_lock.acquire('one', 'o', ttl => '1 h'), $lsn" ],
	[ 'grant, local in the session', $local, "SELECT lease_lock.acquire('two', 'o', ttl => '1 h'), $lsn" ],
	[ 'grant, off by the role', $role, "SELECT lease_lock.acquire('three', 'o', ttl => '1 h'), $lsn" ],
	[ 'try_acquire, off in the session', $off, "SELECT lease_lock.try_acquire('four', 'o', ttl => '1 h'), $lsn" ],
	[ 'grant, SET LOCAL before it', $on, "BEGIN; SET LOCAL synchronous_commit = off; SELECT lease_lock.acquire('five', 'o'); SELECT $lsn; COMMIT" ],
	[ 'grant, SET LOCAL after it', $on, "BEGIN; SELECT lease_lock.acquire('six', 'o'); SET LOCAL synchronous_commit = off; SELECT $lsn; COMMIT" ],
	[ 'grant, SET LOCAL in a savepoint after it', $on, "BEGIN; SELECT lease_lock.acquire('six b', 'o'); SAVEPOINT s; SET LOCAL synchronous_commit = off; RELEASE s; SELECT $lsn; COMMIT" ],
	[ 'grant in a function that sets off', $on, "SELECT hasty_acquire('ten'), $lsn" ],
	[ 'grant in an exception block', $off, "SELECT caught_acquire('eleven'), $lsn" ],
	[ 'grant in a savepoint', $off, "BEGIN; SAVEPOINT s; SELECT lease_lock.acquire('twelve', 'o'); RELEASE s; SELECT $lsn; COMMIT" ],
	[ 'grant of scope transaction', $off, "BEGIN; SELECT lease_lock.acquire('thirteen', 'o', scope => 'transaction'); SELECT $lsn; COMMIT" ],
	[ 'renewal, off in the session', $off, "SELECT lease_lock.renew('seven', $seven, '2 h'), $lsn" ],
	[ 'renewal, local in the session', $local, "SELECT lease_lock.renew('seven', $seven, '2 h'), $lsn" ],
	[ 'renewal in a function that sets off', $on, "SELECT hasty_renew('seven', $seven), $lsn" ],
	[ 'release, off in the session', $off, "SELECT lease_lock.release('seven', $seven), $lsn" ],
	[ 'forced release, off in the session', $off, "SELECT lease_lock.force_release('eight', 'a test'), $lsn" ],
);
foreach my $commit (@commits)
{
	my ($name, $session, $sql) = @$commit;

	# Something unflushed lies before each.
	is(flushed($off, "BEGIN; INSERT INTO plain VALUES ('before'); SELECT $lsn; COMMIT"), 'f', "a plain commit before: $name: is not flushed")
		if $name =~ /^grant, off|^renewal, off|^release/;
	is(flushed($session, $sql), 't', "$name: is flushed");
}
is($off->query_ok('SHOW synchronous_commit'), 'off', 'the setting of the session is as it was');
is($role->query_ok('SHOW synchronous_commit'), 'off', 'and that of the role');
is(flushed($off, "BEGIN; SET LOCAL lease_lock.async_release = on; SELECT lease_lock.release('nine', $nine); SELECT $lsn; COMMIT"),
	'f', 'lease_lock.async_release lets a release off');
is(flushed($off, "BEGIN; SET LOCAL lease_lock.async_release = on; SELECT lease_lock.release('six', (lease_lock.token_status('six', 1)).newest); SELECT lease_lock.acquire('nine', 'o'); SELECT $lsn; COMMIT"),
	't', 'but not a grant beside it');

#
# A crash: what was flushed is there, and a plain commit after it is not.
#
is($off->query_ok(q(SELECT lease_lock.acquire('last', 'o', ttl => '1 h') > 0)), 't', 'a last grant');
my $last = $dba->query_ok(q(SELECT max(token) FROM lease_lock.holders));
$off->query_ok(q(INSERT INTO plain VALUES ('lost')));

# And those who die in the middle of something.
my $writer = LeaseTest::Session->new($node);
my $granter = LeaseTest::Session->new($node);
my $guarded = $writer->query_ok(q(SELECT lease_lock.acquire('guarded', 'writer', ttl => '1 h')));
$off->query_ok(q(INSERT INTO plain VALUES ('lost too')));
$writer->query_ok("BEGIN; SELECT lease_lock.present('guarded', $guarded); UPDATE account SET balance = 1");
my $uncommitted = $granter->query_ok(q(BEGIN; SELECT lease_lock.acquire('uncommitted', 'granter', ttl => '1 h')));
signal_backend('KILL', $writer->pid);
signal_backend('KILL', $walwriter);
ok($node->poll_query_until('postgres', "SELECT pg_postmaster_start_time() IS NOT NULL AND NOT EXISTS (SELECT FROM pg_stat_activity WHERE pid IN ($walwriter, " . $writer->pid . '))'),
	'the server comes back after a crash');
$_->quit foreach ($dba, $off, $local, $role, $on, $writer, $granter);

$dba = LeaseTest::Session->new($node);
is($dba->query_ok(q(SELECT count(*) FROM plain WHERE line LIKE 'lost too')), '0', 'a plain asynchronous commit is lost in the crash');
is($dba->query_ok(q(SELECT string_agg(resource, ', ' ORDER BY resource) FROM lease_lock.holders)),
	'eleven, five, four, guarded, last, nine, one, six b, ten, three, twelve, two', 'no grant is lost');
is($dba->query_ok("SELECT state FROM lease_lock.token_status('seven', $seven)"), 'released', 'no release is lost');
is($dba->query_ok("SELECT state FROM lease_lock.token_status('eight', $eight)"), 'superseded', 'no forced release is lost');
is($dba->query_ok("SELECT state FROM lease_lock.token_status('guarded', $guarded)"), 'held', 'a lease outlives the backend of its holder');
is($dba->query_ok('SELECT balance FROM account'), '0', 'the killed backend\'s write is not there');
is($dba->query_ok(q(SELECT count(*) FROM pg_locks WHERE locktype = 'advisory')), '0', 'no lock is left');
cmp_ok($dba->query_ok(q(SELECT lease_lock.acquire('uncommitted', 'other', wait => '0'))), '>', $guarded,
	'an uncommitted grant went with its session, and no returned token is granted again');
isnt($dba->query_ok("SELECT lease_lock.renew('guarded', $guarded)"), '', 'the holder goes on from another session');

# A session that is terminated leaves nothing either.
$writer = LeaseTest::Session->new($node);
$granter = LeaseTest::Session->new($node);
$writer->query_ok("BEGIN; SELECT lease_lock.present('guarded', $guarded); UPDATE account SET balance = 1");
$granter->query_ok(q(BEGIN; SELECT lease_lock.acquire('again', 'granter', ttl => '1 h')));
$dba->query_ok('SELECT pg_terminate_backend(' . $_->pid . ')') foreach ($writer, $granter);
ok(wait_true($dba, 'SELECT count(*) = 0 FROM pg_stat_activity WHERE pid IN (' . $writer->pid . ', ' . $granter->pid . ')'), 'two sessions are terminated');
is($dba->query_ok(q(SELECT count(*) FROM pg_locks WHERE locktype = 'advisory')), '0', 'they leave no lock');
is($dba->query_ok(q(SELECT count(*) FROM lease_lock.holders WHERE resource = 'again')), '0', 'and no grant');
$_->quit foreach ($writer, $granter, $dba);

#
# A crash in mid-load.  Each client prints what COMMIT has returned for; all of
# that must be there afterwards.
#
my %ways = (
	off => [ {}, q(SELECT '%1$s', lease_lock.acquire('%1$s', 'o', ttl => '1 h')), '-c synchronous_commit=off' ],
	local => [ {}, q(SELECT '%1$s', lease_lock.acquire('%1$s', 'o', ttl => '1 h')), '-c synchronous_commit=local' ],
	function => [ {}, q(SELECT '%1$s', hasty_acquire('%1$s')), '' ],
	block => [ { block => 1 }, q(BEGIN; SET LOCAL synchronous_commit = off; SELECT lease_lock.acquire('%1$s', 'o', ttl => '1 h') AS token \gset
COMMIT;
\echo %1$s|:token), '' ],
	again => [ {}, q(SELECT '%2$s', lease_lock.acquire('%2$s', 'o', ttl => '1 h')), '-c synchronous_commit=off' ],
	rolled => [ { block => 1 }, q(BEGIN; SELECT lease_lock.acquire('%1$s', 'o', ttl => '1 h'); ROLLBACK;
SELECT '%1$s', lease_lock.try_acquire('%1$s', 'o', ttl => '1 h')), '-c synchronous_commit=off' ],
);
my $highest = 0;
foreach my $round (1 .. 3)
{
	my @clients;

	foreach my $way (sort keys %ways)
	{
		my ($opt, $sql, $options) = @{ $ways{$way} };
		my $client = { way => $way, out => '', err => '' };
		my $script = '';

		foreach my $i (1 .. 6000)
		{
			my $line = sprintf($sql, "$way/$round/$i", "$way/$round/" . $i % 7);
			$line =~ s/^SELECT lease_lock.acquire/SELECT FROM lease_lock.acquire/ if $way eq 'rolled';
			$script .= "$line" . ($line =~ /\\/ ? "\n" : ";\n");
		}
		$client->{in} = $script;
		local $ENV{PGOPTIONS} = $options if $options;
		$client->{run} = IPC::Run::start([ 'psql', '-XAtq', '-d', $node->connstr('postgres') ],
			'<', \$client->{in}, '>', \$client->{out}, '2>', \$client->{err});
		push @clients, $client;
	}
	my $end = time + 0.7;
	while (time < $end)
	{
		$_->{run}->pump_nb foreach @clients;
		sleep 0.005;
	}
	$node->stop('immediate');
	foreach my $client (@clients) { eval { $client->{run}->finish; }; }
	$node->start;

	# The newest token of each resource that was printed; a token is printed
	# once.
	my %newest;
	my %seen;
	my ($printed, $twice) = (0, 0);
	foreach my $client (@clients)
	{
		foreach my $line (split /\n/, $client->{out})
		{
			my ($name, $token) = $line =~ m{^(\w+/\d+/\d+)\|(\d+)$} or next;
			$printed++;
			$twice++ if $seen{$token}++;
			$newest{$name} = $token if $token > ($newest{$name} // 0);
		}
	}
	cmp_ok($printed, '>', 100, "crash $round: the load had granted something");
	is($twice, 0, "crash $round: no token was granted twice");
	cmp_ok((sort { $a <=> $b } keys %seen)[0], '>', $highest, "crash $round: no token of before the last crash was granted again");
	my %there = map { split /\|/ } split /\n/, $node->safe_psql('postgres', 'SELECT resource, token FROM lease_lock.holders');
	my @lost = grep { ($there{$_} // 0) < $newest{$_} } keys %newest;
	is(scalar @lost, 0, "crash $round: no grant whose commit had returned is lost") or diag("@lost[0..($#lost > 5 ? 5 : $#lost)]");
	$highest = (sort { $b <=> $a } (keys %seen, values %there))[0];
}
cmp_ok($node->safe_psql('postgres', q(SELECT lease_lock.acquire('after', 'o'))), '>', $highest,
	'the next token is larger than all before the crash');

#
# With a synchronous standby, a grant waits for it.
#
$node->backup('backup');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($node, 'backup', has_streaming => 1);
$standby->start;
$node->append_conf('postgresql.conf', q(synchronous_standby_names = 'standby'));
$node->reload;
$dba = LeaseTest::Session->new($node);
ok(wait_true($dba, q(SELECT count(*) = 1 FROM pg_stat_replication WHERE sync_state = 'sync')), 'a synchronous standby');

my %session = map { $_ => LeaseTest::Session->new($node, options => '-c synchronous_commit=' . ($_ =~ /local/ ? 'local' : 'off')) }
	qw(acquire acquire_local try_acquire renew release set_local);
$session{$_}->query_ok("SET search_path = public") foreach keys %session;
my $renew = $session{renew}->query_ok(q(SELECT lease_lock.acquire('sync renew', 'o', ttl => '1 h')));
my $release = $session{release}->query_ok(q(SELECT lease_lock.acquire('sync release', 'o', ttl => '1 h')));
$standby->stop('fast');
ok(wait_true($dba, 'SELECT count(*) = 0 FROM pg_stat_replication'), 'the standby has gone');

foreach my $name (sort keys %session)
{
	$session{$name}->query_ok("INSERT INTO plain VALUES ('$name')");
	cmp_ok($session{$name}->elapsed, '<', 30, "$name: a plain commit does not wait for the standby");
}
$session{acquire}->send(q(SELECT lease_lock.acquire('sync 1', 'o', ttl => '1 h')));
$session{acquire_local}->send(q(SELECT lease_lock.acquire('sync 2', 'o', ttl => '1 h')));
$session{try_acquire}->send(q(SELECT lease_lock.try_acquire('sync 3', 'o', ttl => '1 h')));
$session{renew}->send("SELECT lease_lock.renew('sync renew', $renew)");
$session{release}->send("SELECT lease_lock.release('sync release', $release)");
$session{set_local}->send(q(BEGIN; SELECT lease_lock.acquire('sync 4', 'o', ttl => '1 h'); SET LOCAL synchronous_commit = local; COMMIT));
foreach my $name (sort keys %session)
{
	ok(wait_true($dba, q(SELECT wait_event = 'SyncRep' FROM pg_stat_activity WHERE pid = ) . $session{$name}->pid), "$name waits for the standby");
}
is($dba->query_ok(q(SELECT count(*) FROM lease_lock.holders WHERE resource IN ('sync 1', 'sync 2', 'sync 3', 'sync 4') AND state <> 'uncommitted')),
	'0', 'nobody sees such a grant as held before');
$standby->start;
foreach my $name (sort keys %session)
{
	isnt($session{$name}->result, '', "$name returns when the standby is back");
	is($session{$name}->state, '', "$name has no error");
}
my $there = LeaseTest::Session->new($standby);
ok(wait_true($there, q(SELECT count(*) = 4 FROM lease_lock.holders WHERE resource LIKE 'sync _')), 'the standby has what was granted');
$standby->stop('fast');
ok(wait_true($dba, 'SELECT count(*) = 0 FROM pg_stat_replication'), 'the standby has gone again');
$session{acquire}->query_ok(q(INSERT INTO plain VALUES ('after')));
cmp_ok($session{acquire}->elapsed, '<', 30, 'a plain commit after a grant in the same session does not wait');

$_->quit foreach ($dba, $there, values %session);
$node->stop('immediate');

# Under wal_level minimal nothing is logged in the transaction that created the
# sequence; what is granted after it must be.
my $minimal = PostgreSQL::Test::Cluster->new('minimal');
$minimal->init;
$minimal->append_conf('postgresql.conf', common_conf() . "wal_level = minimal\nmax_wal_senders = 0\n");
$minimal->start;
my $first = LeaseTest::Session->new($minimal);
$first->query_ok(q(BEGIN; CREATE EXTENSION lease_lock; SELECT lease_lock.acquire('a', 'A', ttl => '1 h'); COMMIT));
my $granted = $first->query_ok(q(SELECT lease_lock.acquire('b', 'A', ttl => '1 h')));
$granted = $first->query_ok("SELECT lease_lock.acquire('b$_', 'A', ttl => '1 h')") foreach 1 .. 9;
$minimal->stop('immediate');
$first->quit;
$minimal->start;
$first = LeaseTest::Session->new($minimal);
cmp_ok($first->query_ok(q(SELECT lease_lock.acquire('c', 'A'))), '>', $granted, 'wal_level minimal: tokens go on after a crash');
$first->quit;
$minimal->stop;
done_testing();
