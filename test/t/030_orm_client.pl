# A token in a column, checked as that of the row's lease, is the form for a
# client that never calls anything in the transaction that writes: an ORM in
# autocommit behind a transaction pooler, where each statement may reach another
# server connection.  SQLAlchemy behind pgbouncer: who holds the lease works; who
# was stopped and succeeded is refused with LL001, whatever he writes, and nothing
# of it is in the tables; a DELETE carries no row, and needs a presented token.
#
# A guard that kept the token in the session would refuse the holder here, and
# let through who comes after him on the same connection.

use strict;
use warnings;

use FindBin;
use lib $FindBin::Bin;

use IPC::Run ();
use JSON::PP;
use LeaseTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep time);

my ($python) = grep { -x && IPC::Run::run([ $_, '-c', 'import sqlalchemy, psycopg2' ], '>', \my $out, '2>', \my $err) }
	map { "$_/python3" } split(/:/, $ENV{PATH} // ''), '/usr/bin';

plan skip_all => 'there is no pgbouncer' unless LeaseTest::Pool->program;
plan skip_all => 'there is no SQLAlchemy with psycopg2' unless $python;

my $node = lease_server('main');
my $dba = LeaseTest::Session->new($node);

$dba->query_ok(q(
CREATE ROLE app LOGIN;
GRANT USAGE ON SCHEMA lease_lock TO app;
CREATE TABLE document (id int PRIMARY KEY, token bigint, body text);
CREATE TABLE line (id int PRIMARY KEY, document_id int NOT NULL REFERENCES document, token bigint, body text);
GRANT SELECT, INSERT, UPDATE, DELETE ON document, line TO app;
SELECT lease_lock.guard_column('document', 'token', resource => 'document/{id}'),
	lease_lock.guard_column('line', 'token', resource => 'document/{document_id}');
));
my $contents = q(SELECT 'document', id, token, body FROM document UNION ALL SELECT 'line', id, token, body FROM line ORDER BY 1, 2);

#
# The pooler, with two server connections, and two sessions that can keep one of
# them busy.
#
my $pool = LeaseTest::Pool->start($node, 'app');
my %worker;

# Whatever happens, nothing that was started here is left.
END
{
	my $status = $?;

	foreach my $process (grep { defined } $pool->{run}, map { $_->{run} } values %worker)
	{
		eval { $process->signal('CONT'); };
		eval { $process->kill_kill(grace => 2); };
	}
	$? = $status;
}

my @pin = map { LeaseTest::Session->new($pool) } 1 .. 2;
my @server = map { $_->query_ok('BEGIN; SELECT pg_backend_pid()') } @pin;
$_->query_ok('COMMIT') foreach @pin;
isnt($server[0], $server[1], 'a pooler with two server connections');

foreach my $name (qw(A B))
{
	my $w = $worker{$name} = { in => '', out => '', err => '' };

	$w->{run} = IPC::Run::start([ $python, "$FindBin::Bin/orm_client.py", $pool->connstr . " application_name=worker_$name" ],
		'<', \$w->{in}, '>', \$w->{out}, '2>', \$w->{err});
}

sub ask
{
	my ($name, @request) = @_;
	my $w = $worker{$name};

	$w->{in} .= JSON::PP->new->encode(\@request) . "\n";
	eval { $w->{run}->pump_nb; };
	return;
}

sub answer
{
	my ($name) = @_;
	my $w = $worker{$name};
	my $end = time + $PostgreSQL::Test::Utils::timeout_default;

	until ($w->{out} =~ /\n/)
	{
		die "no answer of worker $name: $w->{err}" if time > $end || !$w->{run}->pumpable;
		eval { $w->{run}->pump_nb; };
		sleep 0.002;
	}
	my ($line, $rest) = split(/\n/, $w->{out}, 2);
	$w->{out} = $rest;
	return JSON::PP->new->allow_nonref->decode($line);
}

# Has a worker do something on the server connection that is not the one it used
# last, by keeping that one busy meanwhile.
my %last;
my %used;
sub does
{
	my ($name, @request) = @_;
	my $n = 1 - ($last{$name} // 1);
	my $busy = $pin[0];

	if ($busy->query_ok('BEGIN; SELECT pg_backend_pid()') == $server[$n])
	{
		$busy = $pin[1];
		$busy->query_ok('BEGIN; SELECT 1');
		$pin[0]->query_ok('COMMIT');
	}
	ask($name, @request);
	my $answer = answer($name);
	ask($name, 'pid');
	my $pid = answer($name);
	$busy->query_ok('COMMIT');
	die "ran on $pid, not $server[$n]" if $pid != $server[$n];
	$last{$name} = $n;
	$used{$n}++;
	return $answer;
}

#
# The holder works, on one connection and on the other.
#
my $ta = does('A', 'acquire', 1, 'A', '1 h');
cmp_ok($ta, '>', 0, 'worker A acquires');
is(does('A', 'add', 1, 'new', [ map { [ $_, "line $_" ] } 1 .. 3 ]), 'ok', 'A adds a document and its lines');
is(does('A', 'change', 1, 'changed'), 'ok', 'A changes it');
is(does('A', 'change_all', 1, 'all'), 'ok', 'A changes all in one flush');
is(does('A', 'update_where', 1, 'where'), 'ok', 'A updates lines by a condition');
is(does('A', 'upsert', 1, 'upsert'), 'ok', 'A inserts or updates');
is(does('A', 'renew', 1, '1 h'), JSON::PP::true, 'A renews');
is(does('A', 'change_in_transaction', 1, 'transaction'), 'ok', 'A changes it in a transaction');
is($dba->query_ok($contents), join("\n", "document|1|$ta|transaction", (map { "line|$_|$ta|where" } 1 .. 3), "line|1000|$ta|transaction"), 'all of it is there, under its token');
is($dba->query_ok('SELECT count(*) FROM lease_lock.rejections'), '0', 'nothing was refused');
is_deeply(does('A', 'load', 1), [ $ta, 'transaction', [ (map { [ $_, 'where' ] } 1 .. 3), [ 1000, 'transaction' ] ] ], 'A reads it');
cmp_ok($used{$_}, '>=', 4, "on server connection $_ too") foreach 0, 1;

# Somebody else's document, and no token at all.
is(does('A', 'add', 2, 'not mine'), 'LL002', 'a document without a token is refused');
my $other = does('B', 'acquire', 3, 'B', '1 h');
is(does('A', 'acquire', 4, 'A', '1 h'), $other + 1, 'A has a token of its own for another one');
is(does('A', 'add', 4, 'mine'), 'ok', 'which it may write');
is($dba->query_ok("SELECT count(*) FROM document WHERE id = 4 AND token = $ta"), '0', 'not under the token of the first');
is(does('B', 'add', 3, 'of B'), 'ok', 'B writes its own');

#
# A is stopped.  Its lease runs out, and B takes over and writes.
#
my $before = $dba->query_ok($contents);
is(does('A', 'renew', 1, '200 ms'), JSON::PP::true, 'A renews for a short time');
$worker{A}{run}->signal('STOP');
my $tb = does('B', 'acquire', 1, 'B', '1 h');
cmp_ok($tb, '>', $ta, 'A is stopped, and B acquires');
is(does('B', 'load', 1)->[1], 'transaction', 'B reads what A wrote');
is(does('B', 'change', 1, 'B'), 'ok', 'B changes the document');
my $now = $dba->query_ok($contents);
isnt($now, $before, 'which is seen');

# A goes on, not knowing.  Of the objects that it loaded, and of new ones.
$worker{A}{run}->signal('CONT');
my @late = (
	[ 'change', 1, 'late' ],
	[ 'change_all', 1, 'late' ],
	[ 'change', 1, 'late again' ],
	[ 'add_lines', 1, [ map { [ $_, 'late' ] } 11 .. 15 ] ],
	[ 'update_where', 1, 'late' ],
	[ 'upsert', 1, 'late' ],
	[ 'change_in_transaction', 1, 'late' ]);
foreach my $late (@late)
{
	is(does('A', @$late), 'LL001', "stale: $late->[0] of A is refused");
	is($dba->query_ok($contents), $now, "stale: $late->[0] has changed nothing");
}
is($dba->query_ok("SELECT DISTINCT coalesce(resource, 'document/1'), token, newest, reason, application_name, role FROM lease_lock.rejections WHERE token = $ta"), "document/1|$ta|$tb|stale|worker_A|app", 'stale: rejections tells whose they were');
is($dba->query_ok("SELECT string_agg(DISTINCT relation || ' ' || statement, ', ') FROM lease_lock.rejections WHERE token = $ta"), 'document insert, document update, line insert, line update', 'stale: and what');

# Lines that B has not written yet are B's as well.
is($dba->query_ok(q(SELECT count(*) FROM line WHERE document_id = 1 AND token = ) . $ta), '4', 'the lines carry the token of A');
is(does('B', 'change_all', 1, 'B again'), 'ok', 'B goes on');
is(does('B', 'update_where', 1, 'B where'), 'ok', 'B updates lines by a condition');
is(does('B', 'upsert', 1, 'B upsert'), 'ok', 'B inserts or updates');
is($dba->query_ok("SELECT count(*) FILTER (WHERE token = $tb), count(*) FROM line WHERE document_id = 1"), '4|4', 'all of it under the token of B');

#
# A DELETE carries no row.
#
$now = $dba->query_ok($contents);
is(does('B', 'load', 3)->[1], 'of B', 'B reads another document of its own');
is(does('B', 'delete', 3), 'LL002', 'DELETE: in autocommit it is refused');
is(does('B', 'delete_in_transaction', 1, JSON::PP::false), 'LL002', 'DELETE: so is it in a transaction that presents nothing');
is(does('A', 'delete_in_transaction', 1, JSON::PP::true), 'LL001', 'DELETE: and one that presents an older token');
is($dba->query_ok($contents), $now, 'DELETE: nothing is gone');
is(does('B', 'delete_in_transaction', 1, JSON::PP::true), 'ok', 'DELETE: B presents its token');
is($dba->query_ok('SELECT (SELECT count(*) FROM document WHERE id = 1), (SELECT count(*) FROM line)'), '0|0', 'DELETE: and all is gone');
is(does('B', 'delete', 3), 'LL002', 'DELETE: what was presented is gone too, on either connection');
is(does('A', 'delete', 4), 'LL002', 'DELETE: for others as well');

#
# A lease that has ended, and its next one.
#
is(does('B', 'renew', 3, '1 ms'), JSON::PP::true, 'B lets a lease end');
ok(wait_true($dba, "SELECT state = 'expired' FROM lease_lock.token_status('document/3', $other)"), 'it ends');
is(does('B', 'change', 3, 'too late'), 'LL003', 'a write under it is refused');
cmp_ok(does('B', 'acquire', 3, 'B', '1 h'), '>', $tb, 'B acquires again');
is(does('B', 'change', 3, 'in time'), 'ok', 'and can write');
is($dba->query_ok('SELECT body FROM document WHERE id = 3'), 'in time', 'which is seen');

#
# An ORM leaves out of an UPDATE what it thinks has not changed.  A stopped worker
# that sets the token which its object had anyway sends none; that must not
# pass as the token of whoever wrote last.
#
is(does('A', 'set_flag', JSON::PP::false), 'ok', 'A does not flag its token as modified');
is(does('A', 'load', 4)->[1], 'mine', 'A reads its other document');
is(does('A', 'renew', 4, '200 ms'), JSON::PP::true, 'A renews for a short time');
$worker{A}{run}->signal('STOP');
cmp_ok(does('B', 'acquire', 4, 'B', '1 h'), '>', $other + 1, 'A is stopped, and B acquires');
is(does('B', 'load', 4)->[1], 'mine', 'B reads it');
is(does('B', 'change', 4, 'B'), 'ok', 'B changes it');
$worker{A}{run}->signal('CONT');
like(does('A', 'change', 4, 'late'), qr/^LL00[12]$/, 'not flagged: a late write of A is refused');
is($dba->query_ok('SELECT body FROM document WHERE id = 4'), 'B', 'not flagged: and has changed nothing');
like(does('A', 'update_without_token', 4, 'late'), qr/^LL00[12]$/, 'not flagged: so is an UPDATE that does not name the column');

# Nothing is left on the server connections.
is($dba->query_ok("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid IN ($server[0], $server[1])"), '0', 'no lock is left');
is($dba->query_ok("SELECT count(*) FROM pg_stat_activity WHERE usename = 'app' AND state <> 'idle'"), '0', 'and no transaction');
is($dba->query_ok("SELECT count(DISTINCT pid) FROM pg_stat_activity WHERE usename = 'app'"), '2', 'two server connections were enough');

foreach my $name (qw(A B))
{
	eval { $worker{$name}{run}->kill_kill(grace => 5); };
	delete $worker{$name};
}
$_->quit foreach @pin;
$pool->stop;
$dba->quit;
$node->stop;
done_testing();
