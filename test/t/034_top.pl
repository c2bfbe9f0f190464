# make top, the picture in a terminal: it shows what there is, again and again,
# on 120 columns whatever names hold, to a role without rights as well; and
# nothing in a name reaches the terminal as a command.

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

my $root = "$FindBin::Bin/../..";
my $node = lease_server('main', '');
my $dba = LeaseTest::Session->new($node);

# make top ends with the test, however that ends.
my $live_run;
END
{
	my $status = $?;
	$live_run->kill_kill if $live_run;
	$? = $status;
}

# Runs make top, or the script once; the process.
sub top
{
	my ($out, $user, @command) = @_;

	local $ENV{PGHOST} = $node->host;
	local $ENV{PGPORT} = $node->port;
	local $ENV{PGDATABASE} = 'postgres';
	local $ENV{PGUSER} = $user if $user;
	return IPC::Run::start(\@command, '<', \undef, '>', $out, '2>&1');
}

sub once
{
	my ($user) = @_;
	my $out = '';
	my $run = top(\$out, $user, 'psql', '-X', '-q', '-v', 'once=1', '-f', "$root/monitoring/top.sql");

	ok($run->finish, 'it runs once') or diag($out);
	return $out;
}

# Nothing there yet.
my $empty = once();
like($empty, qr/^HOLDERS 0$/m, 'no holders');
like($empty, qr/^WAITERS 0$/m, 'no waiters');

# Names of the greatest length, wide and narrow, with what a terminal would obey.
$dba->query_ok(q(
CREATE ROLE onlooker LOGIN;
GRANT USAGE ON SCHEMA lease_lock TO onlooker;
CREATE ROLE "a role of a very long name, as long as roles can be called here" SUPERUSER LOGIN;
CREATE TABLE "a table of a very long name, as long as tables can be called he" (name text);
SELECT lease_lock.guard('"a table of a very long name, as long as tables can be called he"', '{name}');
SELECT lease_lock.acquire(repeat('long ', 102), repeat('owner', 102), ttl => '1 h');
SELECT lease_lock.acquire(E'two\nlines\t\x1b[2J\x1b]0;title\x07\u009b2J', E'own\ner', ttl => '1 h');
SELECT lease_lock.acquire(repeat(U&'\00e9', 256), 'accents', ttl => '1 d');
SELECT lease_lock.acquire('expired', 'gone', ttl => '1 ms');
));
$dba->query_ok(q(SELECT lease_lock.raise_token(9007199254000000)));
$dba->query_ok("SELECT lease_lock.acquire('many ' || i, 'A', ttl => '2 h') FROM generate_series(1, 100) AS i");
my @waiter = map { LeaseTest::Session->new($node, user => q('a role of a very long name, as long as roles can be called here')) } 1 .. 3;
$waiter[0]->send(q(SELECT lease_lock.acquire(repeat('long ', 102), repeat('wants', 102), wait => '1 h')));
ok(wait_true($dba, q(SELECT count(*) = 1 FROM lease_lock.waiters)), 'one waits in line');
$waiter[1]->send(q(SELECT lease_lock.acquire(repeat('long ', 102), 'short', wait => '1 h')));
my $long = q(INSERT INTO "a table of a very long name, as long as tables can be called he" VALUES);
refused_with($waiter[2], "BEGIN; SELECT lease_lock.present(repeat('long ', 102), 1); $long (repeat('long ', 102))", '', 'a guarded write passes');
$waiter[2]->query_ok('ROLLBACK');
refused_with($waiter[2], "$long (E'two\\nlines\\t\\x1b[2J')", 'LL002', 'and another is refused');
refused_with($waiter[2], "BEGIN; SELECT lease_lock.present('expired', 4); $long ('expired')", 'LL003', 'and another');
$waiter[2]->query_ok('ROLLBACK');
ok(wait_true($dba, q(SELECT count(*) = 2 FROM lease_lock.waiters)), 'two wait in line');
ok(wait_true($dba, q(SELECT count(*) = 1 FROM lease_lock.holders WHERE health = 'overdue')), 'and a lease is overdue');

sub readable
{
	my ($out, $name) = @_;

	$out =~ s/[^\n]*\z//;
	utf8::decode($out);
	is(join("\n", grep { length > 120 } split /\n/, $out), '', "$name: no line is longer than 120 characters");
	unlike($out, qr/[\x00-\x09\x0b-\x1f\x7f-\x9f]/, "$name: nothing but text");
	unlike($out, qr/ERROR|WARNING/, "$name: no error");
	return;
}

my $picture = once();
note($picture);
readable($picture, 'once');
like($picture, qr/^HOLDERS 104\n.*health\nlong long .* 2  ok\n/m, 'who is waited for is the first of the holders');
like($picture, qr/^expired  .* overdue$/m, 'then who needs a look');
like($picture, qr/^two\?lines\?\?\[2J\?\]0;title\?\?2J .* ok$/m, 'a name of several lines is on one');
like($picture, qr/^WAITERS 2\n.*blocked by\nlong .* 1  wants.*\nlong .* 2  short /m, 'waiters are in order');
like($picture, qr/^REFUSALS.*\n.*role\n\d\d:\d\d:\d\d        1  .*  expired  .*  not held /m, 'the last refusal is the first');
like($picture, qr/ two\?lines\?\?\[2J .*  no token .*  enforce  .*  a role of a v$/m, 'refusals name the role, as far as there is room');
like($picture, qr/^HOT NAMES\n.*longest\nlong .*   2  /m, 'the name that is waited for is the hottest');
like($picture, qr/^refused: stale 0  no token 1  not held 1  /m, 'refusals are counted');
like($picture, qr/^grants 104  /m, 'and so are grants');
cmp_ok(scalar(split /\n/, $picture), '<=', 50, 'it fits in a screen');

my $seen = once('onlooker');
readable($seen, 'without rights');
like($seen, qr/^HOLDERS 104$/m, 'a role with no more than USAGE sees holders');
unlike($seen, qr/^REFUSALS/m, 'and no refusals');

# Live: what changes is in the next picture.
SKIP:
{
	my ($make) = grep { -x } map { "$_/make" } split(/:/, $ENV{PATH});
	skip 'there is no make', 1 unless $make;

	my $live = '';
	my $run = $live_run = top(\$live, undef, $make, '-s', '-C', $root, 'top', 'INTERVAL=0.2');
	my $pump = sub
	{
		my ($pattern) = @_;
		my $end = time + $PostgreSQL::Test::Utils::timeout_default;

		until ($live =~ $pattern || time > $end)
		{
			$run->pump_nb if $run->pumpable;
			sleep 0.02;
		}
		return like($live, $pattern, "it shows $pattern");
	};
	$pump->(qr/(^HOLDERS 104\n.*){2}/ms);
	$dba->query_ok(q(SELECT lease_lock.acquire('newcomer', 'A', ttl => '1 h')));
	$pump->(qr/^HOLDERS 105\n/m);
	readable($live, 'live');
}
$_->quit foreach $dba;
$node->stop('immediate');
done_testing();
