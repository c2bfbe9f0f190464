# Whoever waits for a lease has it soon after it can be had, whatever became of
# those ahead, of the table and of the holder's transaction: the same owner in
# line twice, a stopped head whose followers leave, rows and locks that a DBA
# changes or takes by hand, transactions that are prepared in the middle of a
# pipeline, names with one hash.  And waiters keep nobody from the table.
#
# Naive versions fail: who is far back when it joins, and moves up without being
# told, sleeps on for two seconds for each one who was ahead then; who sleeps
# until an expiry, and who keeps the table's lock meanwhile, does so for hours.
# Those sleep 20 seconds and more here.

use strict;
use warnings;

use FindBin;
use lib $FindBin::Bin;

use IO::Select;
use IO::Socket::UNIX;
use IPC::Run ();
use LeaseTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time sleep);

my $node = lease_server('main', 'max_connections = 150');
my $dba = LeaseTest::Session->new($node);

# How late, in seconds, a thing may be on a busy machine that takes two or three
# on an idle one, and when a test stops waiting for it.
my $late = 10;
my $give_up = 45;

# So many waiters that the one behind them looks around after half a minute.
my $crowd = 14;

#
# Waiters whose sleep is measured.  Nothing but what is tested is to wake them:
# each looks for rings once, at once, and as a session that was never idle has
# no timer running, but for that of authentication_timeout.
#

# waiter(RESOURCE, OWNER, option => value...): a psql that acquires and ends.
# Options: dbname, options (more of PGOPTIONS), args (of acquire), before and
# after (SQL commands).
sub waiter
{
	my ($resource, $owner, %opt) = @_;
	my $self = { out => '', err => '' };
	my $args = $opt{args} // q(ttl => '1 h', wait => '10 min');

	local $ENV{PGOPTIONS} = '-c deadlock_timeout=1ms ' . ($opt{options} // '');
	$self->{run} = IPC::Run::start(
		[
			'psql', '-XAtq', '-v', 'VERBOSITY=verbose', '-d', $node->connstr($opt{dbname} // 'postgres') . ' application_name=waiter',
			map { ('-c', $_) } @{ $opt{before} // [] },
			"SELECT lease_lock.acquire('$resource', '$owner', $args)", @{ $opt{after} // [] }
		],
		'<', \undef, '>', \$self->{out}, '2>', \$self->{err});
	return $self;
}

# Whether a waiter has ended; does not wait.
sub ended
{
	my ($w) = @_;

	return 1 if $w->{ended};
	eval { $w->{run}->pump_nb if $w->{run}->pumpable; };
	return 0 if $w->{run}->pumpable;
	$w->{ended} = time;
	eval { $w->{run}->finish; };
	chomp $w->{out};
	return 1;
}

# Waits, not for ever, until something is so.
sub in_time
{
	my ($is_so) = @_;
	my $end = time + $give_up;

	until ($is_so->())
	{
		return 0 if time > $end;
		sleep 0.02;
	}
	return 1;
}

# has_it_soon(WAITER, SINCE, NAME): it ends with a token, soon after a moment.
# Returns the token.
sub has_it_soon
{
	my ($w, $since, $name) = @_;
	my $ended = in_time(sub { ended($w) });
	my $took = ($w->{ended} // time) - $since;
	my $token = $w->{out} =~ /^(\d+)$/m ? $1 : 0;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	ok($ended && $token && $took < $late, sprintf('%s (%.1f s)', $name, $took))
	  or diag($ended ? $w->{err} : 'it still waits');
	return $token;
}

# Something else, that is sent already, comes to its end without an error, soon
# after a moment.  Returns its output, or undef when it has not ended.
sub done_soon
{
	my ($session, $since, $name) = @_;
	my $ready = in_time(sub { $session->ready });
	my $took = time - $since;
	my $out = $ready ? $session->result : undef;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	ok($ready && $session->state eq '' && $took < $late, sprintf('%s (%.1f s)', $name, $took))
	  or diag($ready ? $session->errors : 'it still waits');
	return $out;
}

sub in_line
{
	my ($resource, $n, $session) = @_;

	return wait_true($session // $dba, "SELECT count(*) = $n FROM lease_lock.waiters WHERE resource = '$resource'");
}

# The backend of one who waits in line.
sub pid_of
{
	my ($resource, $owner) = @_;

	return $dba->query_ok("SELECT pid FROM lease_lock.waiters WHERE resource = '$resource' AND owner = '$owner'");
}

# A crowd that joins a line in which so many stand.
sub join_crowd
{
	my ($resource, $n) = @_;
	my @crowd = map { waiter($resource, "one of many $_") } 1 .. $crowd;

	in_line($resource, $n + $crowd);
	return @crowd;
}

sub cancel_crowd
{
	my ($resource, $left) = @_;

	$dba->query_ok("SELECT count(pg_cancel_backend(pid)) FROM lease_lock.waiters WHERE resource = '$resource' AND owner LIKE 'one of many%'");
	return in_line($resource, $left);
}

# Ends those who wait still.
sub end_waiters
{
	my ($dbname, @waiters) = @_;

	return if !grep { !ended($_) } @waiters;
	my $session = LeaseTest::Session->new($node, dbname => $dbname);
	$session->query_ok(q(SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'waiter'));
	in_time(sub { !grep { !ended($_) } @waiters });
	$session->quit;
	return;
}

# A database of its own, for what locks the table of leases.
sub database
{
	my ($name) = @_;

	$dba->query_ok("CREATE DATABASE $name");
	my $session = LeaseTest::Session->new($node, dbname => $name);
	$session->query_ok('CREATE EXTENSION lease_lock');
	return $session;
}

#
# An owner that retries while its first call waits still: the second call is not
# a stranger's.  When the first is granted, the lease is the second's, too, past
# the crowd between them.
#
sub same_owner_twice
{
	my $holder = LeaseTest::Session->new($node);
	my $token = $holder->query_ok(q(SELECT lease_lock.acquire('twice', 'holder', ttl => '1 h')));
	my $first = waiter('twice', 'same');

	ok(in_line('twice', 1), 'same owner twice: its first call waits');
	my @crowd = join_crowd('twice', 1);
	my $second = waiter('twice', 'same');
	ok(in_line('twice', $crowd + 2), 'same owner twice: a crowd, and its second call');
	sleep 0.2;
	my $start = time;
	$holder->query_ok("SELECT lease_lock.release('twice', $token)");
	my $first_token = has_it_soon($first, $start, 'same owner twice: the first call is granted at the release');
	my $second_token = has_it_soon($second, $start, 'same owner twice: the second soon after');
	cmp_ok($first_token, '>', $token, 'same owner twice: a larger token');
	cmp_ok($second_token, '>', $first_token, 'same owner twice: and a larger one again');
	is((grep { ended($_) } @crowd), 0, 'same owner twice: the crowd waits on');
	end_waiters('postgres', $first, $second, @crowd);
	$holder->quit;
	return;
}

#
# The head is stopped, those behind it leave, and the last one in line, who was
# far back, has the lease soon, after a release and after an expiry.
#
sub stopped_head
{
	my $holder = LeaseTest::Session->new($node);
	my (%token, %head, %last, %pid, %since, @all);

	foreach my $end ('release', 'expiry')
	{
		$token{$end} = $holder->query_ok("SELECT lease_lock.acquire('stopped $end', 'holder', ttl => '1 h')");
		$head{$end} = waiter("stopped $end", 'head');
		ok(in_line("stopped $end", 1), "stopped head, $end: it waits");
		push @all, join_crowd("stopped $end", 1);
		$last{$end} = waiter("stopped $end", 'last');
		ok(in_line("stopped $end", $crowd + 2), "stopped head, $end: and a crowd, and a last one");
		push @all, $head{$end}, $last{$end};
		$pid{$end} = pid_of("stopped $end", 'head');
	}
	# It learns of that expiry, and sleeps again until then.
	$holder->query_ok("SELECT lease_lock.renew('stopped expiry', $token{expiry}, '4 s')");
	$since{expiry} = time + 4;
	sleep 0.3;
	signal_backend('STOP', $_) foreach values %pid;
	ok(cancel_crowd("stopped $_", 2), "stopped head, $_: the crowd leaves") foreach sort keys %pid;
	$holder->query_ok("SELECT lease_lock.release('stopped release', $token{release})");
	$since{release} = time;
	foreach my $end ('release', 'expiry')
	{
		cmp_ok(has_it_soon($last{$end}, $since{$end}, "stopped head, $end: the last one has the lease soon"),
			'>', $token{$end}, "stopped head, $end: with a larger token");
		ok(!ended($head{$end}), "stopped head, $end: the head has not");
	}
	signal_backend('CONT', $_) foreach values %pid;
	ok(in_line("stopped $_", 1), "stopped head, $_: it waits again") foreach sort keys %pid;
	$dba->query_ok("SELECT pg_cancel_backend($_)") foreach values %pid;
	foreach my $end ('release', 'expiry')
	{
		ok(in_time(sub { ended($head{$end}) }), "stopped head, $end: until it is cancelled");
		like($head{$end}{err}, qr/^ERROR:  57014:/m, "stopped head, $end: SQLSTATE");
	}
	end_waiters('postgres', @all);
	$holder->quit;
	return;
}

#
# A lease that ends by no call of ours: nobody wakes the head, which was to sleep
# for an hour.
#
sub changed_by_hand
{
	my %change = (
		deleted => q(DELETE FROM lease_lock.lease WHERE resource = 'by hand, deleted'),
		released => q(UPDATE lease_lock.lease SET ended_at = clock_timestamp(), ended_by = 'released' WHERE resource = 'by hand, released'),
		expired => q(UPDATE lease_lock.lease SET expire_at = clock_timestamp() WHERE resource = 'by hand, expired'));
	my (%head, %token, %since);

	foreach my $how (sort keys %change)
	{
		$token{$how} = $dba->query_ok("SELECT lease_lock.acquire('by hand, $how', 'holder', ttl => '1 h')");
		$head{$how} = waiter("by hand, $how", 'head');
		ok(in_line("by hand, $how", 1), "by hand, $how: one waits");
	}
	sleep 0.2;
	foreach my $how (sort keys %change)
	{
		$dba->query_ok($change{$how});
		$since{$how} = time;
	}
	foreach my $how (sort keys %change)
	{
		cmp_ok(has_it_soon($head{$how}, $since{$how}, "by hand, $how: it has the lease soon"),
			'>', $token{$how}, "by hand, $how: with a larger token");
	}
	end_waiters('postgres', values %head);
	return;
}

#
# A grant that looked like one of a transaction about to end, and is prepared
# instead: a pipeline hands over acquire, BEGIN and PREPARE TRANSACTION at once.
#

# pipeline(OWNER, SQL...): a connection that was sent so many statements with one
# Sync behind them.
sub pipeline
{
	my @statements = @_;
	my $socket = IO::Socket::UNIX->new(Peer => $node->host . '/.s.PGSQL.' . $node->port)
	  or die 'could not connect: ' . $!;
	my $user = $dba->query_ok('SELECT current_user');
	my $parameters = join("\0", user => $user, database => 'postgres', options => '-c deadlock_timeout=1ms', '', '');
	my $messages = pack('N N a*', 8 + length $parameters, 3 << 16, $parameters);
	my $add = sub { $messages .= $_[0] . pack('N a*', 4 + length $_[1], $_[1]); };

	foreach my $sql (@statements)
	{
		$add->('P', "\0$sql\0" . pack('n', 0));
		$add->('B', "\0\0" . pack('n n n', 0, 0, 0));
		$add->('E', "\0" . pack('N', 0));
	}
	$add->('S', '');
	$socket->syswrite($messages) == length $messages or die 'could not send a pipeline';
	return $socket;
}

# What a pipeline's statements ended with: command tags and SQLSTATEs.
sub pipeline_tags
{
	my ($socket) = @_;
	my $select = IO::Select->new($socket);
	my $ready = 0;    # the first is that of the connection itself
	my @tags;
	my $take = sub
	{
		my $bytes = '';

		while (length $bytes < $_[0])
		{
			$select->can_read($PostgreSQL::Test::Utils::timeout_default) or die 'timed out waiting for a pipeline';
			$socket->sysread($bytes, $_[0] - length $bytes, length $bytes) or die 'connection lost';
		}
		return $bytes;
	};

	while ($ready < 2)
	{
		my ($type, $length) = unpack('a N', $take->(5));
		my $body = $length > 4 ? $take->($length - 4) : '';

		push @tags, $body =~ s/\0.*//r if $type eq 'C';
		push @tags, $body =~ /\0C(.....)\0/ ? $1 : 'error' if $type eq 'E';
		$ready++ if $type eq 'Z';
	}
	return join(', ', @tags);
}

sub prepared_in_a_pipeline
{
  SKIP:
	{
		skip 'no Unix socket here', 5 unless $node->host =~ m{^/};

		my $token = $dba->query_ok(q(SELECT lease_lock.acquire('pipeline', 'holder', ttl => '1 h')));
		my $pipeline = pipeline(q(SELECT lease_lock.acquire('pipeline', 'middle', ttl => '1 h', wait => '10 min')),
			'BEGIN', q(PREPARE TRANSACTION 'pipeline'));
		ok(in_line('pipeline', 1), 'pipeline: its acquire waits');
		my @crowd = join_crowd('pipeline', 1);
		my $last = waiter('pipeline', 'last');
		in_line('pipeline', $crowd + 2);
		sleep 0.2;
		ok(cancel_crowd('pipeline', 2), 'pipeline: one waits behind it, who was far back');
		$dba->query_ok("SELECT lease_lock.release('pipeline', $token)");
		is(pipeline_tags($pipeline), 'SELECT 1, BEGIN, PREPARE TRANSACTION', 'pipeline: it is granted and prepared');
		my $start = time;
		$dba->query_ok(q(ROLLBACK PREPARED 'pipeline'));
		cmp_ok(has_it_soon($last, $start, 'pipeline: when that is rolled back the last one has the lease soon'),
			'>', $token, 'pipeline: with a larger token');
		$pipeline->close;
		end_waiters('postgres', $last, @crowd);
	}
	return;
}

#
# Two names with one 64-bit hash, as anybody can make them, have nothing to do
# with each other.
#
sub names_with_one_hash
{
	my $mine = 'payroll/2026/november/01';
	my $theirs = 'a/9fR697I49G#@;?xV>ysi8v';

  SKIP:
	{
		# The hash depends on the order of bytes.
		skip 'these names have one hash on little-endian machines alone', 12 if pack('L', 1) ne pack('V', 1);

		is($dba->query_ok("SELECT lease_lock.advisory_key('$mine') = lease_lock.advisory_key('$theirs')"), 't', 'one hash: two names have it');
		my $token = $dba->query_ok("SELECT lease_lock.acquire('$theirs', 'stranger', ttl => '1 h')");
		my $stranger = waiter($theirs, 'stranger in line');
		ok(in_line($theirs, 1), 'one hash: one of them is held and waited for');

		my $try = $dba->query_ok("SELECT lease_lock.try_acquire('$mine', 'holder', ttl => '1 h')");
		isnt($try, '', 'one hash: try_acquire of the other gives a token');
		$dba->query_ok("SELECT lease_lock.release('$mine', $try)") if $try ne '';
		my $start = time;
		my $acquired = has_it_soon(waiter($mine, 'holder', args => q(ttl => '1 h', wait => '20 s')), $start, 'one hash: acquire of the other does, too');
		my $waiter = waiter($mine, 'in line');
	  SKIP:
		{
			skip 'it was not granted', 7 unless $acquired;

			ok(in_line($mine, 1), 'one hash: now the other is waited for, too');
			is($dba->query_ok(q(SELECT string_agg(concat_ws(' ', owner, place, holder), ', ' ORDER BY owner DESC) FROM lease_lock.waiters)),
				'stranger in line 1 stranger, in line 1 holder', 'one hash: each is the first in its line, and waits for its own holder');
			sleep 0.2;
			$start = time;
			$dba->query_ok("SELECT lease_lock.release('$mine', $acquired)");
			$acquired = has_it_soon($waiter, $start, 'one hash: its release wakes who waits for it');
			ok(!ended($stranger), 'one hash: and not who waits for the first');

			# The same with the other one at the head.
			$waiter = waiter($mine, 'in line again');
			ok(in_line($mine, 1), 'one hash: again one waits for it');
			$start = time;
			$dba->query_ok("SELECT lease_lock.release('$theirs', $token)");
			has_it_soon($stranger, $start, 'one hash: the release of the first wakes who waits for that');
			ok(!ended($waiter), 'one hash: and not the other');
			$dba->query_ok("SELECT lease_lock.release('$mine', $acquired)");
		}
		$dba->query_ok("SELECT lease_lock.force_release('$theirs', 'the end')");
		has_it_soon($waiter, time, 'one hash: in the end everybody had it');
		end_waiters('postgres', $stranger, $waiter);
	}
	return;
}

#
# An eviction is audited; a lock on the table of that stops neither it nor the
# grant that it is for.
#
sub locked_audit
{
	my $here = database('audited');
	my $locker = LeaseTest::Session->new($node, dbname => 'audited');

	$here->query_ok('CREATE ROLE victim LOGIN; GRANT USAGE ON SCHEMA lease_lock TO victim');
	my $victim = LeaseTest::Session->new($node, dbname => 'audited', user => 'victim');
	my $token = $victim->query_ok(q(BEGIN; SELECT lease_lock.acquire('evicted', 'victim', ttl => '1 s')));
	$locker->query_ok('BEGIN; LOCK TABLE lease_lock.audit IN ACCESS EXCLUSIVE MODE');
	my $start = time;
	my $waiter = waiter('evicted', 'waiter', dbname => 'audited', args => q(ttl => '1 h', wait => '20 s'), options => '-c lease_lock.evict_after=1s');
	cmp_ok(has_it_soon($waiter, $start, 'locked audit: who waits for a hung grant has the lease soon'),
		'>', $token, 'locked audit: with a larger token');
	is($here->query_ok('SELECT count(*) FROM pg_stat_activity WHERE pid = ' . $victim->pid), '0', 'locked audit: the hung backend is gone');
	like(slurp_file($node->logfile), qr/evicted the transaction that kept the expired lease on resource "evicted"/, 'locked audit: the server log says so');
	is($locker->query_ok('SELECT 1; ROLLBACK'), '1', 'locked audit: it was locked all the time');
	end_waiters('audited', $waiter);
	$_->quit foreach ($victim, $locker, $here);
	return;
}

#
# A REINDEX that queues behind a writer, and an acquire that arrives meanwhile,
# do not deadlock.
#
sub reindex_behind_a_writer
{
	my $writer = database('reindexed');
	my $reindex = LeaseTest::Session->new($node, dbname => 'reindexed', options => '-c deadlock_timeout=100ms');

	$writer->query_ok(q(BEGIN; SELECT lease_lock.acquire('written', 'writer', ttl => '1 h')));
	$reindex->send('REINDEX TABLE lease_lock.lease');
	ok(wait_true($dba, 'SELECT count(*) = 1 FROM pg_locks WHERE NOT granted AND pid = ' . $reindex->pid), 'reindex: it waits for a writer');
	my $waiter = waiter('behind', 'waiter', dbname => 'reindexed');
	ok(wait_true($dba, q(SELECT count(*) = 1 FROM pg_stat_activity WHERE datname = 'reindexed' AND application_name = 'waiter' AND state = 'active')), 'reindex: an acquire arrives');
	# It tries and waits, however it does that.
	sleep 1;
	ok(!ended($waiter), 'reindex: and waits, too');
	my $start = time;
	$writer->query_ok('COMMIT');
	done_soon($reindex, $start, 'reindex: when the writer has committed it goes on, without a deadlock');
	has_it_soon($waiter, $start, 'reindex: and so does the acquire');
	is($writer->query_ok(q(SELECT count(*) FROM lease_lock.holders)), '2', 'reindex: both leases are held');
	end_waiters('reindexed', $waiter);
	$_->quit foreach ($reindex, $writer);
	return;
}

#
# A wake-up that meets the head in a lock wait, where it cannot heed it, does not
# make the head count as stopped: who comes later stands behind it.
#
sub order_of_arrival
{
	my $gone = LeaseTest::Session->new($node);
	my $open = LeaseTest::Session->new($node);
	my $long = '-c deadlock_timeout=30s';

	# A session whose end wakes the line, and a grant that is open longer.
	$gone->query_ok(q(SELECT lease_lock.release('order', lease_lock.acquire('order', 'gone', scope => 'session'))));
	my $token = $open->query_ok(q(BEGIN; SELECT lease_lock.acquire('order', 'open', ttl => '1 h')));
	my $head = waiter('order', 'head', options => $long);
	ok(in_line('order', 1), 'order: one waits');
	my $pid = pid_of('order', 'head');
	ok(wait_true($dba, "SELECT pg_blocking_pids($pid) = ARRAY[" . $open->pid . ']'), 'order: for an open transaction');
	my $pid_of_gone = $gone->pid;
	$gone->quit;
	ok(wait_true($dba, "SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = $pid_of_gone"), 'order: it is woken');
	# Longer than a head may take that was woken.
	sleep 1.5;
	my $second = waiter('order', 'second', options => $long);
	ok(in_line('order', 2), 'order: a second one comes');
	sleep 0.5;
	is($dba->query_ok(q(SELECT string_agg(owner || ': ' || (cardinality(pg_blocking_pids(pid)) > 0), ', ' ORDER BY place) FROM lease_lock.waiters WHERE resource = 'order')),
		'head: true, second: false', 'order: the first alone waits for the transaction');
	my $start = time;
	$open->query_ok('ROLLBACK');
	my $next = has_it_soon($head, $start, 'order: when it ends the first has the lease');
	ok(!ended($second), 'order: and the second has not');
	$start = time;
	$dba->query_ok("SELECT lease_lock.release('order', $next)");
	has_it_soon($second, $start, 'order: before it is released');
	end_waiters('postgres', $head, $second);
	$open->quit;
	return;
}

#
# Waiters keep no lock on the table of leases while they sleep: a DBA who needs
# it to himself has it soon, whoever queues behind him goes on, and so does the
# line.
#
sub table_to_himself
{
	my $dbname = 'shut';
	my $holder = database($dbname);
	my $alone = LeaseTest::Session->new($node, dbname => $dbname);
	my $token = $holder->query_ok(q(SELECT lease_lock.acquire('shut', 'holder', ttl => '1 h')));
	my @waiters;

	# So many that the last one looks around after twenty seconds.
	foreach my $i (1 .. 11)
	{
		push @waiters, waiter('shut', "waiter $i", dbname => $dbname);
		in_line('shut', $i, $holder);
	}
	sleep 0.2;
	foreach my $statement ('REINDEX TABLE lease_lock.lease', 'BEGIN; LOCK TABLE lease_lock.lease IN ACCESS EXCLUSIVE MODE')
	{
		my ($what) = $statement =~ /(REINDEX|LOCK)/;
		my $other = LeaseTest::Session->new($node, dbname => $dbname);

		my $start = time;
		$alone->send($statement);
		sleep 0.2;
		$holder->send("SELECT lease_lock.renew('shut', $token, '2 h') IS NOT NULL");
		$other->send("SELECT lease_lock.acquire('other', 'other', wait => '1 min') > 0");
		my $done = done_soon($alone, $start, "$what: the table is free for it soon");
		is((grep { ended($_) } @waiters), 0, "$what: while all wait on");
		if (!defined $done)
		{
			end_waiters($dbname, @waiters);
			$alone->result;
		}
		if ($what eq 'LOCK')
		{
			# Meanwhile they look and find it locked.
			sleep 3;
			$alone->query_ok('ROLLBACK');
		}
		$start = time;
		is(done_soon($holder, $start, "$what: then the holder goes on"), 't', "$what: and renews");
		is(done_soon($other, $start, "$what: and so does another one"), 't', "$what: and acquires");
		$other->quit;
	}
	is((grep { ended($_) } @waiters), 0, 'all wait on still');
	ok(in_line('shut', 11, $holder), 'in line');
	is($holder->query_ok(q(SELECT string_agg(owner, ', ' ORDER BY place) FROM lease_lock.waiters)), join(', ', map { "waiter $_" } 1 .. 11), 'and in their order');
	my $start = time;
	$holder->query_ok("SELECT lease_lock.release('shut', $token)");
	cmp_ok(has_it_soon($waiters[0], $start, 'until the release, when the first has the lease soon'), '>', $token, 'with a larger token');
	end_waiters($dbname, @waiters);
	$_->quit foreach ($alone, $holder);
	return;
}

#
# Who holds the guard itself keeps the head from being granted, and is granted
# before it: a release must wake that one.  Its own look around is far off, since
# that for rings is.
#
sub guard_holder_in_line
{
	my $token = $dba->query_ok(q(SELECT lease_lock.acquire('guarded', 'holder', ttl => '1 h')));
	my $head = waiter('guarded', 'head');

	ok(in_line('guarded', 1), 'guard: one waits');
	my $writer = waiter('guarded', 'writer', options => '-c deadlock_timeout=1min',
		before => [ 'BEGIN', "SELECT 'checked' FROM lease_lock.assert_held('guarded', $token)" ], after => [ 'COMMIT' ]);
	ok(in_line('guarded', 2), 'guard: and one who has written under the lease');
	sleep 0.2;
	my $start = time;
	$dba->query_ok("SELECT lease_lock.release('guarded', $token)");
	cmp_ok(has_it_soon($writer, $start, 'guard: at the release that one has the lease soon'), '>', $token, 'guard: with a larger token');
	ok(!ended($head), 'guard: the other one has not');
	end_waiters('postgres', $head, $writer);
	return;
}

#
# Those ahead leave one after the other, from the front: whoever is left has
# moved up as well, though not to the first place.
#
sub front_leaves
{
	my ($holder, $name) = @_;
	my $token = $holder->query_ok("SELECT lease_lock.acquire('$name', 'holder', ttl => '1 h')");
	my @crowd = join_crowd($name, 0);
	my $last = waiter($name, 'last');

	ok(in_line($name, $crowd + 1), "$name: a crowd, and a last one");
	sleep 0.2;
	my @pids = split /\n/, $dba->query_ok("SELECT pid FROM lease_lock.waiters WHERE resource = '$name' ORDER BY place LIMIT $crowd - 1");
	foreach my $i (0 .. $#pids)
	{
		$dba->query_ok("SELECT pg_cancel_backend($pids[$i])");
		in_line($name, $crowd - $i);
	}
	ok(in_line($name, 2), "$name: they leave but for one");
	my ($left) = split /\n/, $dba->query_ok("SELECT pid FROM lease_lock.waiters WHERE resource = '$name' ORDER BY place");
	return ($token, $left, $last, @crowd);
}

sub front_leaves_to_a_stopped_one
{
	my $holder = LeaseTest::Session->new($node);
	my ($token, $left, $last, @crowd) = front_leaves($holder, 'front');

	signal_backend('STOP', $left);
	my $start = time;
	$holder->query_ok("SELECT lease_lock.release('front', $token)");
	has_it_soon($last, $start, 'front: that one is stopped, and the last one has the lease soon');
	signal_backend('CONT', $left);
	end_waiters('postgres', $last, @crowd);
	$holder->quit;
	return;
}

sub front_leaves_and_the_rest_is_told
{
	my $holder = LeaseTest::Session->new($node);
	my ($token, $left, $last, @crowd) = front_leaves($holder, 'granted front');

	$holder->query_ok("SELECT lease_lock.release('granted front', $token)");
	ok(in_line('granted front', 1), 'granted front: that one is granted');
	my $start = time;
	$dba->query_ok(q(UPDATE lease_lock.lease SET expire_at = clock_timestamp() WHERE resource = 'granted front'));
	has_it_soon($last, $start, 'granted front: its lease is ended by hand, and the last one has it soon');
	end_waiters('postgres', $last, @crowd);
	$holder->quit;
	return;
}

#
# Who has read our tables in the same transaction keeps a lock on them.  Then it
# keeps them all while it waits: one that came back for the rest would deadlock.
#
sub reader_beside_reindex
{
	my $holder = database('being_read');
	my $other = LeaseTest::Session->new($node, dbname => 'being_read');
	my %command = (
		holders => 'REINDEX TABLE lease_lock.lease',
		history => 'BEGIN; LOCK TABLE lease_lock.lease; LOCK TABLE lease_lock.history; COMMIT');

	$holder->query_ok(q(SELECT lease_lock.acquire('read', 'holder', ttl => '1 h')));
	foreach my $read (sort keys %command)
	{
		my $waiter = waiter('read', 'reader', dbname => 'being_read', args => q(wait => '4 s'),
			before => [ 'BEGIN', "SELECT count(*) FROM lease_lock.$read" ], after => ['COMMIT']);
		ok(in_line('read', 1, $holder), "reader of $read: it waits");
		my $start = time;
		$other->send($command{$read});
		done_soon($other, $start, "reader of $read: who needs the tables goes on when it has given up, without a deadlock");
		ok(in_time(sub { ended($waiter) }), "reader of $read: which it has");
		like($waiter->{err}, qr/^ERROR:  55P03:/m, "reader of $read: because its time was up");
		end_waiters('being_read', $waiter);
	}
	$_->quit foreach ($other, $holder);
	return;
}

#
# Otherwise it keeps none: neither those of the history nor that of the rights,
# which the first call of a session reads.
#
sub nothing_is_locked
{
	my $holder = database('free');
	my $alone = LeaseTest::Session->new($node, dbname => 'free');
	my $token = $holder->query_ok(q(SELECT lease_lock.acquire('free', 'holder', ttl => '1 h')));
	my $waiter = waiter('free', 'waiter', dbname => 'free', options => '-c lease_lock.history=on');

	ok(in_line('free', 1, $holder), 'free: one waits');
	ok(in_time(sub { $alone->query_ok(q(SELECT count(*) FROM pg_locks l JOIN lease_lock.waiters w USING (pid)
			JOIN pg_class c ON c.oid = l.relation WHERE c.relnamespace = 'lease_lock'::regnamespace)) eq '0' }), 'free: and keeps nothing locked');
	foreach my $table ('history', 'permission', 'lease')
	{
		my $start = time;
		$alone->send("VACUUM FULL lease_lock.$table");
		done_soon($alone, $start, "free: $table can be rewritten");
	}
	ok(!ended($waiter), 'free: it waits on');
	my $start = time;
	$holder->query_ok("SELECT lease_lock.release('free', $token)");
	cmp_ok(has_it_soon($waiter, $start, 'free: until the release'), '>', $token, 'free: with a larger token');

	# Who finds a table locked waits within its own limits.
	$alone->query_ok('BEGIN; LOCK TABLE lease_lock.lease');
	my %limit = ('wait' => [ q(wait => '0.3 s'), '', qr/could not acquire the lease on resource "free" within 300 ms/ ],
		'lock_timeout' => [ q(wait => '1 h'), '-c lock_timeout=300ms', qr/canceling statement due to lock timeout while waiting for the lease on resource "free"/ ]);
	foreach my $limit (sort keys %limit)
	{
		my ($args, $options, $message) = @{ $limit{$limit} };

		$waiter = waiter('free', 'limited', dbname => 'free', args => $args, options => $options);
		ok(in_time(sub { ended($waiter) }), "free: a locked table, $limit: it is kept");
		like($waiter->{err}, qr/^ERROR:  55P03: $message/m, "free: a locked table, $limit: and said");
		end_waiters('free', $waiter);
	}
	$alone->query_ok('ROLLBACK');

	# The extension goes while somebody waits.
	$waiter = waiter('free', 'another', dbname => 'free');
	ok(in_line('free', 1, $holder), 'free: another one waits');
	$start = time;
	$alone->send('DROP EXTENSION lease_lock');
	done_soon($alone, $start, 'free: the extension can be dropped');
	ok(in_time(sub { ended($waiter) }), 'free: which ends the wait');
	like($waiter->{err}, qr/^ERROR:  55000:/m, 'free: with an error that tells');
	end_waiters('free', $waiter);
	$_->quit foreach ($alone, $holder);
	return;
}

same_owner_twice();
stopped_head();
changed_by_hand();
prepared_in_a_pipeline();
names_with_one_hash();
locked_audit();
reindex_behind_a_writer();
order_of_arrival();
table_to_himself();
guard_holder_in_line();
front_leaves_to_a_stopped_one();
front_leaves_and_the_rest_is_told();
reader_beside_reindex();
nothing_is_locked();

$dba->quit;
$node->stop;
done_testing();
