# A failover never grants a token that is not larger than all before it.
#
# Asynchronous: the primary's last commits never reach the standby, and every
# token after the promotion is larger all the same; twice in a row as well, when
# the second standby has not heard of the first one's promotion.  A sequence
# alone goes on where the standby's copy of it stood, and grants the lost tokens
# a second time.  One that is made to jump by an ordinary table jumps again at
# every rollback.
#
# Synchronous: nothing that was confirmed is lost, whatever the session's
# synchronous_commit, and leases stay in force on the new primary.

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

my $max = '9223372036854775807';
my $dir = $PostgreSQL::Test::Utils::tmp_check;

# standby(NAME, PRIMARY): a running standby of PRIMARY, which has a backup.
sub standby
{
	my ($name, $primary) = @_;
	my $node = PostgreSQL::Test::Cluster->new($name);

	$node->init_from_backup($primary, 'backup', has_streaming => 1);
	$node->start;
	return $node;
}

# Nothing of the primary's reaches a standby from here on.
sub cut
{
	my ($node) = @_;

	$node->append_conf('postgresql.conf', q(primary_conninfo = ''));
	$node->reload;
	$node->poll_query_until('postgres', 'SELECT count(*) = 0 FROM pg_stat_wal_receiver') or die 'the standby still receives';
	return;
}

# written(SESSION, TABLE, NAME, TOKEN): how a guarded write ends: '' or SQLSTATE.
sub written
{
	my ($session, $table, $name, $token) = @_;

	$session->query("BEGIN; SELECT lease_lock.present('$name', $token); INSERT INTO $table VALUES ('$name')");
	my $state = $session->state;
	$session->query('COMMIT');
	return $state;
}

# The highest of N tokens, each under a name of its own.
sub highest_of
{
	my ($session, $prefix, $n) = @_;

	return $session->query_ok("SELECT max(lease_lock.acquire('$prefix/' || i, 'many', ttl => '1 h')) FROM generate_series(1, $n) AS i");
}

sub jumps_in_log
{
	my ($node) = @_;

	return scalar(() = slurp_file($node->logfile) =~ /fencing tokens of database "postgres" jump to/g);
}

my $state = q(SELECT coalesce(moved::text, 'unknown'), timeline, coalesce(jump_reason, 'never'),
	system_identifier = (SELECT s.system_identifier::text FROM pg_control_system() s), database FROM lease_lock.token_state);

#
# Asynchronous: one is the primary, two and three are its standbys.
#
my $one = lease_server('one', "fsync = off\n", allows_streaming => 1);
my $p = LeaseTest::Session->new($one);
$p->query_ok(q(
CREATE TABLE account (name text);
CREATE TABLE log (name text);
SELECT lease_lock.guard('account', '{name}'), lease_lock.guard('log', '{name}', mode => 'newest');
CREATE PROCEDURE roll_back(INOUT n int, until timestamptz) LANGUAGE plpgsql AS $$
BEGIN
	FOR i IN 1..n LOOP
		n := i;
		PERFORM lease_lock.acquire('rolled back', 'A', ttl => '1 h');
		ROLLBACK;
		EXIT WHEN i >= 1000 AND clock_timestamp() > until;
	END LOOP;
END $$;
));
$one->safe_psql('postgres', 'CREATE DATABASE origin');
$one->safe_psql('origin', q(CREATE EXTENSION lease_lock; SELECT lease_lock.acquire('x', 'A')));
$one->backup('backup');
my $two = standby('two', $one);
my $three = standby('three', $one);

my $known = $p->query_ok(q(SELECT lease_lock.acquire('known', 'worker', ttl => '1 h')));
my $kept = $p->query_ok(q(SELECT lease_lock.acquire('kept', 'worker', ttl => '1 h')));
is(written($p, 'account', 'known', $known), '', 'the holder writes');
is(written($p, 'log', 'known', $known), '', 'into both tables');
is($p->query_ok($state), 'false|1|never|t|postgres', 'the primary\'s tokens are minted where it was installed');
$one->wait_for_catchup($_) foreach qw(two three);
my $s = LeaseTest::Session->new($two);
my $u = LeaseTest::Session->new($three);
is($_->query_ok($state), 'unknown|1|never|t|postgres', 'a standby does not know whether it will move') foreach ($s, $u);
is($_->query_ok('SELECT last_token + tokens_left FROM lease_lock.token_state'), $max, 'but how many tokens are left') foreach ($s, $u);
cut($_) foreach ($two, $three);

# The primary goes on alone: tokens that no standby will ever see.
my $lost = $p->query_ok(q(SELECT lease_lock.acquire('known', 'worker', ttl => '1 h')));
my $lost_new = $p->query_ok(q(SELECT lease_lock.acquire('unknown', 'worker', ttl => '1 h')));
my $lost_max = highest_of($p, 'lost', 3000);
cmp_ok($lost, '>', $known, 'the primary grants more');
is($s->query_ok(q(SELECT newest FROM lease_lock.token_status('known', 1))), $known, 'and a standby has not heard of it');
cmp_ok($s->query_ok('SELECT last_token FROM lease_lock.token_state'), '<', $lost_max, 'nor of how far tokens have come');

#
# The first promotion.
#
$two->promote;
is($s->query_ok($state), 'true|1|never|t|postgres', 'the next grant is going to jump');
is($s->query_ok('SELECT pg_is_in_recovery(), count(*) FROM lease_lock.place'), 'f|1', 'looking at it does nothing');

# Before the first grant there, what the holder of a lost token meets.
is(written($s, 'account', 'known', $lost), 'LL004', 'held: a lost token of a lease that is known is unknown');
is(written($s, 'account', 'unknown', $lost_new), 'LL004', 'held: so is one of a lease that is not');
refused_with($s, "SELECT lease_lock.assert_held('known', $lost)", 'LL004', 'assert_held says the same');
is($s->query_ok("SELECT lease_lock.renew('known', $lost) IS NULL, lease_lock.release('known', $lost), state FROM lease_lock.token_status('known', $lost)"), 't|f|unknown',
	'it neither renews nor releases');
is(written($s, 'account', 'known', $known), '', 'the token before it is the current one here');

# The first grant is rolled back: its jump is not.
$s->query_ok(q(BEGIN; SELECT lease_lock.acquire('rolled back', 'A'); ROLLBACK));
my $moved = 'false|2|another timeline: promoted, or recovered to a point in time|t|postgres';
is($s->query_ok($state), $moved, 'after a rolled back grant the jump and its reason are on record');
my ($from, $to, $last) = split /\|/, $s->query_ok('SELECT jumped_from, jumped_to, last_token FROM lease_lock.token_state');
cmp_ok($from, '>=', $kept, 'from what was known');
cmp_ok($from, '<', $lost_max, 'and no more was');
cmp_ok($to, '>', $lost_max, 'to above all that was lost');
cmp_ok($to, '<', 2**53, 'and an exact integer to JavaScript');
is($s->query_ok('SELECT jumped_at = minted_since, jumped_at BETWEEN clock_timestamp() - interval \'10 min\' AND clock_timestamp(), last_token + tokens_left FROM lease_lock.token_state'),
	"t|t|$max", 'when, and how many tokens are left');
is($s->query_ok('SELECT count(*), max(started), bool_and(xmin::text <> \'0\') FROM lease_lock.place'), "2|$to|t", 'the place is kept in a row');
is($s->query_ok('SELECT timeline FROM lease_lock.place ORDER BY at'), "1\n2", 'beside the old one');

# The session was connected before the promotion.
refused_with($s, q(SELECT lease_lock.acquire('known', 'other', wait => '0')), '55P03', 'a lease that had arrived is in force');
my $first = $s->query_ok(q(SELECT lease_lock.acquire('known', 'worker', ttl => '1 h')));
cmp_ok($first, '>', $lost_max, 'the first token is larger than all of the old primary');
cmp_ok($first, '<', $last + 100, 'and the jump was made once');
my $second = LeaseTest::Session->new($two)->query_ok(q(SELECT lease_lock.try_acquire('unknown', 'other', ttl => '1 h')));
is($second, $first + 1, 'another session goes on from there');
is($s->query_ok($state), $moved, 'nothing moved since');
is(jumps_in_log($two), 1, 'the log tells of one jump');

# Now the lost tokens are stale, in either mode.
foreach my $case ([ 'known', $lost, $first ], [ 'unknown', $lost_new, $second ])
{
	my ($name, $old, $new) = @$case;

	is(written($s, $_, $name, $old), 'LL001', "$_: the lost token of \"$name\" is stale") foreach qw(account log);
	is(written($s, $_, $name, $new), '', "$_: the new one is not") foreach qw(account log);
	is(written($s, $_, $name, $old), 'LL001', "$_: and the lost one still is") foreach qw(account log);
}
is(written($s, 'account', 'known', $known), 'LL001', 'so is the token before it');
is(written($s, 'account', 'kept', $kept), '', 'a lease that nobody took goes on');

# The old primary is alive and has not heard of anything.
my $alive = highest_of($p, 'alive', 500);
my $alive_known = $p->query_ok(q(SELECT lease_lock.acquire('known', 'worker', ttl => '1 h')));
cmp_ok($alive_known, '>', $lost_max, 'the old primary goes on');
cmp_ok($alive_known, '<', $to, 'with smaller tokens only');
is($p->query_ok($state), 'false|1|never|t|postgres', 'it has not moved');
is(written($s, 'log', 'known', $alive_known), 'LL001', 'newest: the new primary refuses them');
is(written($s, 'log', 'no lease', $first), '', 'newest: a name without a lease takes a new token');
is(written($s, 'log', 'no lease', $alive_known), 'LL001', 'and then none of the old primary\'s');
is(written($p, 'log', 'no lease', $first), '', 'newest: so does the old primary, where it sees a new one');
is(written($p, 'log', 'no lease', $alive_known), 'LL001', 'and then refuses its own');
cmp_ok(highest_of($p, 'alive still', 10), '<', $to, 'a fence that has seen a new one moves nobody else');

#
# The second promotion: of a standby that has seen nothing of the first, after
# that new primary was lost.
#
my $highest = highest_of($s, 'two', 3000);
my $two_known = $s->query_ok(q(SELECT lease_lock.acquire('known', 'worker', ttl => '1 h')));
$s->quit;
$two->stop('immediate');
is($u->query_ok($state), 'unknown|1|never|t|postgres', 'the second standby is where it was');
$three->promote;
is($u->query_ok($state), 'true|1|never|t|postgres', 'it is going to jump as well');
is(written($u, 'account', 'known', $two_known), 'LL004', 'a token of the first new primary is unknown to it');

# Rolled back grants, as many as there is time for.
my $n = $u->query_ok(q(CALL roll_back(1000000, clock_timestamp() + '10 s')));
cmp_ok($n, '>=', 1000, "$n grants are rolled back");
is($u->query_ok($state), $moved, 'and leave one jump on record');
is($u->query_ok('SELECT count(*) FROM lease_lock.place'), '2', 'only one');
is(jumps_in_log($three), 1, 'also in the log');
my ($to_3, $last_3) = split /\|/, $u->query_ok('SELECT jumped_to, last_token FROM lease_lock.token_state');
cmp_ok($to_3, '>', $two_known, 'above all of the first new primary');
cmp_ok($last_3, '<=', $to_3 + $n + 100, 'and each took one token');
$u->query_ok(q(DO $$ BEGIN
	FOR i IN 1..200 LOOP
		BEGIN
			PERFORM lease_lock.acquire('rolled back', 'A');
			RAISE division_by_zero;
		EXCEPTION WHEN division_by_zero THEN NULL;
		END;
	END LOOP;
END $$));
my $first_3 = $u->query_ok(q(SELECT lease_lock.acquire('known', 'worker', ttl => '1 h')));
cmp_ok($first_3, '>', $two_known, 'the first token after it is larger than all of the first new primary');
cmp_ok($first_3, '>', $alive_known, 'and of the old one');
cmp_ok($first_3, '<=', $last_3 + 300, 'without another jump');
is(written($u, $_, 'known', $two_known), 'LL001', "$_: tokens of the first new primary are stale") foreach qw(account log);
is(written($u, $_, 'known', $alive_known), 'LL001', "$_: and those of the old one") foreach qw(account log);
is(written($u, $_, 'known', $first_3), '', "$_: the new one writes") foreach qw(account log);

# The first new primary comes back, on a timeline of the same number: it goes
# on where it was.
$two->start;
$s = LeaseTest::Session->new($two);
my $back = highest_of($s, 'back', 100);
cmp_ok($back, '>', $two_known, 'the first new primary comes back and goes on upwards');
cmp_ok($back, '<', $to_3, 'below the second one\'s');
is(jumps_in_log($two), 1, 'and did not jump');
is(written($u, 'log', 'no lease', $first_3), '', 'newest: the second has seen its own');
is(written($u, 'log', 'no lease', $back), 'LL001', 'and refuses the first\'s');
$s->quit;
$two->stop;

#
# Places that know nothing of each other differ, even where their first grants
# follow each other at once.
#
my @copies = map { "copy_$_" } 1 .. 5;
$three->safe_psql('postgres', "CREATE DATABASE $_ TEMPLATE origin") foreach @copies;
my @sessions = map { LeaseTest::Session->new($three, dbname => $_) } @copies;
my @firsts = map { $_->query_ok(q(SELECT lease_lock.acquire('x', 'A'))) } @sessions;
ok($firsts[$_] > $firsts[ $_ - 1 ], "the first token of copy $_ is larger than that of the copy before") or diag("@firsts") foreach 1 .. 4;
$_->quit foreach @sessions;

# Also where an administrator comes before the first grant.
$three->safe_psql('postgres', 'CREATE DATABASE raised TEMPLATE origin');
cmp_ok($three->safe_psql('raised', 'SELECT lease_lock.raise_token(100)'), '>', $firsts[-1], 'raise_token at a new place jumps first');
my ($raised_from, $raised_to) = split /\|/, $three->safe_psql('raised', 'SELECT jumped_from, jumped_to FROM lease_lock.token_state WHERE NOT moved');
cmp_ok($raised_from, '<', 100, 'from the few that were known');
is($three->safe_psql('raised', q(SELECT lease_lock.acquire('x', 'A'))), $raised_to + 1, 'and the first grant goes on from there');
$_->quit foreach ($p, $u);
$_->stop foreach ($one, $three);

#
# Synchronous: four is the primary, and five must have every grant.
#
my $four = lease_server('four', "fsync = off\nwal_writer_delay = 10s\n", allows_streaming => 1);
$p = LeaseTest::Session->new($four);
$p->query_ok(q(CREATE TABLE account (name text); SELECT lease_lock.guard('account', '{name}')));
$four->backup('backup');
my $five = standby('five', $four);
$four->append_conf('postgresql.conf', q(synchronous_standby_names = 'five'));
$four->reload;
ok(wait_true($p, q(SELECT count(*) = 1 FROM pg_stat_replication WHERE sync_state = 'sync')), 'a synchronous standby');

my $off = LeaseTest::Session->new($four, options => '-c synchronous_commit=off');
my $local = LeaseTest::Session->new($four, options => '-c synchronous_commit=local');
my $long = $off->query_ok(q(SELECT lease_lock.acquire('long', 'worker', ttl => '1 h')));
my $session = $local->query_ok(q(SELECT lease_lock.acquire('session', 'worker', ttl => '1 h', scope => 'session')));
my %renewed = map { $_ => $p->query_ok("SELECT lease_lock.acquire('renewed/$_', 'worker', ttl => '10 min')") } qw(off local);
$s = LeaseTest::Session->new($five);

# Clients that write down what COMMIT has returned for.
my %client;
foreach my $setting (qw(off local))
{
	my $grant = '';
	my $renew = '';

	foreach my $i (1 .. 20000)
	{
		$grant .= "SELECT lease_lock.acquire('$setting/$i', 'o', ttl => '1 h') AS token \\gset\n\\warn $setting/$i :token\n";
		$renew .= "SELECT extract(epoch FROM lease_lock.renew('renewed/$setting', $renewed{$setting}, '1 h')) AS until \\gset\n\\warn renewed/$setting :until\n";
	}
	append_to_file("$dir/grant_$setting.sql", $grant);
	append_to_file("$dir/renew_$setting.sql", $renew);
	local $ENV{PGOPTIONS} = "-c synchronous_commit=$setting";
	foreach my $what (qw(grant renew))
	{
		$client{"${what}_$setting"} = IPC::Run::start([ 'psql', '-XAtq', '-d', $four->connstr('postgres'), '-f', "$dir/${what}_$setting.sql" ],
			'>', '/dev/null', '2>', "$dir/${what}_$setting.out");
	}
}
my $end = time + $PostgreSQL::Test::Utils::timeout_default;
foreach my $name (sort keys %client) { sleep 0.01 until -s "$dir/$name.out" || time > $end; }
my ($short, $expire_at) = split /\|/, $off->query_ok(q(SELECT token, extract(epoch FROM expire_at) FROM (SELECT lease_lock.acquire('short', 'worker', ttl => '5 s') AS token) AS a, LATERAL lease_lock.token_status('short', token) WHERE token > 0));

# The standby stops to receive, whoever must wait for it waits, and the primary
# is lost.
$five->stop('fast');
$end = time + 3;
sleep 0.05 until $p->query_ok(q(SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep')) == 4 || time > $end;
$four->stop('immediate');
foreach my $name (sort keys %client) { eval { $client{$name}->finish; }; }
$_->quit foreach ($p, $off, $local, $s);
$five->start;
$s = LeaseTest::Session->new($five);
is($s->query_ok(q(SELECT state FROM lease_lock.holders WHERE resource = 'session')), 'held', 'a standby cannot tell whether a session of the primary lives');
$five->promote;

my %version = map { split /\|/ } split /\n/, $s->query_ok(q(SELECT resource, version FROM lease_lock.lease));
my %until = map { split /\|/ } split /\n/, $s->query_ok(q(SELECT resource, extract(epoch FROM expire_at) FROM lease_lock.lease WHERE resource LIKE 'renewed/%'));
$highest = 0;
foreach my $name (sort keys %client)
{
	my @lines = slurp_file("$dir/$name.out") =~ m{^(\w+/\w+ [\d.]+)\n}mg;
	my @missing;

	foreach my $line (@lines)
	{
		my ($resource, $value) = split / /, $line;
		my $there = ($name =~ /^grant/ ? $version{$resource} : $until{$resource}) // 0;

		push @missing, $line if $there < $value;
		$highest = $value if $name =~ /^grant/ && $value > $highest;
	}
	cmp_ok(scalar @lines, '>', 10, "synchronous, $name: " . @lines . ' were confirmed');
	is(scalar @missing, 0, 'and none is lost') or diag("$missing[0] ... $missing[-1]");
}
is($version{long}, $long, 'so is a grant of a session with synchronous_commit off');
is($version{short}, $short, 'and another');

# Leases across the promotion.
is($s->query_ok(q(SELECT lease_lock.try_acquire('long', 'other'))), '', 'a lease stays in force across the promotion');
my $early = $s->query_ok(qq(SELECT lease_lock.acquire('short', 'other', ttl => '1 h', wait => '60 s') > $highest AND extract(epoch FROM clock_timestamp()) >= $expire_at));
is($early, 't', 'until it expires, and not a moment less; the next token is larger');
is($s->query_ok("SELECT state FROM lease_lock.token_status('short', $short)"), 'superseded', 'then its token is stale');
my $new = LeaseTest::Session->new($five);
is($new->query_ok("SELECT lease_lock.renew('long', $long, '2 h') > clock_timestamp() + interval '1 h'"), 't', 'the holder renews from a new connection');
is(written($new, 'account', 'long', $long), '', 'and writes');
is($new->query_ok("SELECT lease_lock.renew('renewed/off', $renewed{off}) IS NOT NULL"), 't', 'a renewed lease can be renewed again');
is($new->query_ok("SELECT lease_lock.release('long', $long)"), 't', 'and a held one released');

# The old primary's sessions are gone, and their leases with them.
is($new->query_ok(qq(SELECT count(*) FROM lease_lock.holders WHERE resource = 'session' AND state = 'held')), '0', 'a lease of an old session is over on the new primary');
is($new->query_ok("SELECT state, lease_lock.renew('session', $session) IS NULL FROM lease_lock.token_status('session', $session)"), 'expired|t', 'and cannot be renewed');
is(written($new, 'account', 'session', $session), 'LL003', 'nor written under');
cmp_ok($new->query_ok(q(SELECT lease_lock.acquire('session', 'other', wait => '0'))), '>', $highest, 'anybody else gets it at once');

$_->quit foreach ($s, $new);
$five->stop;
done_testing();
