# All time is the server's clock at the moment of the call: not the start of the
# transaction, not the client's, and in no time zone.  A time to live is what
# was asked for, and renewals do not add up.

use strict;
use warnings;

use FindBin;
use lib $FindBin::Bin;

use LeaseTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = lease_server('main');
my $s1 = LeaseTest::Session->new($node);
my $s2 = LeaseTest::Session->new($node);

#
# A renewal that had to wait counts from the moment when it could go on.
#
foreach my $case (
	[ 'another renewal, rolled back', 'renew', 'ROLLBACK' ],
	[ 'another renewal, committed', 'renew', 'COMMIT' ],
	[ 'a row lock', 'lock', 'ROLLBACK' ],
	[ 'a row lock, rolled back to a savepoint', 'lock', 'ROLLBACK TO s' ])
{
	my ($what, $how, $end) = @$case;
	my $token = $s1->query_ok("SELECT lease_lock.acquire('$what', 'A', ttl => '1 h')");

	$s1->query_ok('BEGIN; SAVEPOINT s');
	$s1->query_ok(
		$how eq 'renew' ? "SELECT lease_lock.renew('$what', $token)" : "SELECT FROM lease_lock.lease WHERE resource = '$what' FOR UPDATE");
	$s2->query_ok('BEGIN; SELECT pg_sleep(0)');
	$s2->send("SELECT lease_lock.renew('$what', $token, '20 s')");
	ok(wait_true($s1, q(SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = ) . $s2->pid), "renew waits for $what");
	$s1->query_ok('SELECT pg_sleep(0.3)');
	my $unlocked = $s1->query_ok('SELECT clock_timestamp()');
	$s1->query_ok($end);
	my $expire_at = $s2->result;
	is($s2->query_ok("SELECT '$expire_at'::timestamptz - interval '20 s' >= '$unlocked'::timestamptz"), 't', "$what: counted from when it went on");
	is($s2->query_ok("SELECT state FROM lease_lock.token_status('$what', $token)"), 'held', "$what: it is held");
	$s2->query_ok('COMMIT');
	$s1->query_ok('COMMIT') if $end eq 'ROLLBACK TO s';
}

#
# In an old transaction.
#
foreach my $level ('READ COMMITTED', 'REPEATABLE READ', 'SERIALIZABLE')
{
	my $other = $s2->query_ok("SELECT lease_lock.acquire('$level other', 'B', ttl => '1 s')");

	$s1->query_ok("BEGIN ISOLATION LEVEL $level; SELECT count(*) FROM pg_class");
	is($s1->query_ok("SELECT lease_lock.try_acquire('$level other', 'A')"), '', "$level: another's live lease is not to be had");
	ok(wait_true($s2, "SELECT state = 'expired' FROM lease_lock.holders WHERE resource = '$level other'"), "$level: it expires");
	cmp_ok($s1->query_ok("SELECT lease_lock.try_acquire('$level other', 'A', ttl => '1 h')"), '>', $other,
		"$level: the same old transaction is granted it");
	is($s1->query_ok("SELECT lease_lock.acquire('$level fresh', 'A', ttl => '20 s') > 0"), 't', "$level: and a fresh one");
	is($s1->query_ok("SELECT expire_at - acquired_at = '20 s' AND acquired_at > now() + '0.9 s' AND acquired_at <= clock_timestamp()
		FROM lease_lock.lease WHERE resource = '$level fresh'"), 't', "$level: which lives from the call on, not from BEGIN")
	  if $level eq 'READ COMMITTED';
	is($s1->query_ok("SELECT s.state, s.remaining > '15 s', s.expire_at > now() + '20.9 s' FROM lease_lock.holders h, lease_lock.token_status(h.resource, h.token) s
		WHERE h.resource = '$level fresh'"), 'held|t|t', "$level: by its status too");
	$s1->query_ok('COMMIT');
	is($s2->query_ok("SELECT state FROM lease_lock.holders WHERE resource = '$level fresh'"), 'held', "$level: and by others'");
}

#
# Time zones.
#
$s1->query_ok(q(SET TimeZone = 'UTC'));
my $zoned = $s1->query_ok(q(SELECT lease_lock.acquire('zoned', 'A', ttl => '1 min')));
foreach my $zone ('Pacific/Kiritimati', 'America/New_York', 'Pacific/Pago_Pago', '-13:45')
{
	$s2->query_ok("SET TimeZone = '$zone'");
	is($s2->query_ok(q(SELECT lease_lock.try_acquire('zoned', 'B'))), '', "$zone: a live lease is live");
	is($s2->query_ok(q(SELECT state, remaining BETWEEN '30 s' AND '1 min' FROM lease_lock.holders WHERE resource = 'zoned')),
		'held|t', "$zone: the view says so, with the time left");
	isnt($s2->query_ok("SELECT lease_lock.renew('zoned', $zoned)"), '', "$zone: it can be renewed");
	is($s1->query_ok(q(SELECT remaining BETWEEN '30 s' AND '1 min' FROM lease_lock.holders WHERE resource = 'zoned')), 't', "$zone: for as long");
	is($s2->query_ok("SELECT lease_lock.acquire('$zone', 'B', ttl => '1 s') > 0"), 't', "$zone: a lease of a second");
	ok(wait_true($s1, "SELECT state = 'expired' FROM lease_lock.holders WHERE resource = '$zone'"), "$zone: expires for everybody");
}

# A day is 24 hours, also where the clocks change.
$s2->query_ok(q(SET TimeZone = 'America/New_York'));
is($s2->query_ok(q(SELECT lease_lock.acquire('day', 'B', ttl => '1 day') > 0)), 't', 'a lease of a day');
is($s2->query_ok(q(SELECT extract(epoch FROM expire_at) - extract(epoch FROM acquired_at) FROM lease_lock.lease WHERE resource = 'day')),
	'86400.000000', 'lives 24 hours');
is($s2->query_ok(q(SELECT lease_lock.release('day', newest, cooldown => '1 day') FROM lease_lock.token_status('day', 1))), 't', 'a cooldown of a day');
is($s2->query_ok(q(SELECT extract(epoch FROM free_at) - extract(epoch FROM ended_at) FROM lease_lock.lease WHERE resource = 'day')),
	'86400.000000', 'lasts 24 hours');

# No absolute time goes in, but to ask about the past, and none without a zone comes out or is stored.
is($s1->query_ok(q(SELECT count(*) FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
	WHERE c.relnamespace = 'lease_lock'::regnamespace AND a.atttypid IN ('timestamp'::regtype, 'time'::regtype, 'date'::regtype))), '0',
	'every time column is timestamptz');
is($s1->query_ok(q(SELECT coalesce(string_agg(p.proname, ' '), '') FROM pg_proc p WHERE p.pronamespace = 'lease_lock'::regnamespace
	AND p.proname <> 'holder_at' AND p.proargtypes::oid[] && ARRAY['timestamp'::regtype, 'timestamptz'::regtype, 'time'::regtype, 'date'::regtype]::oid[])), '',
	'no function takes a client\'s time');

#
# Durations.
#
my $thrice = $s1->query_ok(q(SELECT lease_lock.acquire('thrice', 'A', ttl => '10 s')));
$s1->query_ok("SELECT lease_lock.renew('thrice', $thrice, '10 s')") foreach 1 .. 3;
is($s1->query_ok(q(SELECT remaining > '5 s' AND remaining <= '10 s' FROM lease_lock.holders WHERE resource = 'thrice')), 't', 'renewals do not add up');
is($s1->query_ok("SELECT e > clock_timestamp() + '1 min 55 s' FROM lease_lock.renew('thrice', $thrice, '2 min') e"), 't', 'a renewal can lengthen');
is($s1->query_ok("SELECT e <= clock_timestamp() + '5 s' FROM lease_lock.renew('thrice', $thrice, '5 s') e"), 't', 'and shorten');
is($s1->query_ok("SELECT e - clock_timestamp() BETWEEN '8 s' AND '10 s' FROM lease_lock.renew('thrice', $thrice) e"), 't', 'without a ttl it is that of the grant');
is($s1->query_ok(q(SELECT token FROM lease_lock.holders WHERE resource = 'thrice')), $thrice, 'and never changes the token');

my $brief = $s1->query_ok(q(SELECT lease_lock.acquire('brief', 'A', ttl => '250 ms')));
is($s1->query_ok(q(SELECT expire_at - acquired_at FROM lease_lock.lease WHERE resource = 'brief')), '00:00:00.25', 'its length is exact');
my $until = $s1->query_ok("SELECT (lease_lock.token_status('brief', $brief)).expire_at");
$s2->query_ok(q(SELECT lease_lock.acquire('brief', 'B', ttl => '1 h', wait => '30 s')));
is($s2->query_ok("SELECT acquired_at >= '$until' AND acquired_at < '$until'::timestamptz + '5 s' FROM lease_lock.lease WHERE resource = 'brief'"), 't',
	'the next is granted at its expiry, not before');
is($s1->query_ok(q(SELECT lease_lock.acquire('a thousandth', 'A', ttl => '1 ms') > 0)), 't', 'a millisecond is the shortest');
refused_with($s1, q(SELECT lease_lock.acquire('shorter', 'A', ttl => '999 us')), '22023', 'what is shorter is refused');

$_->quit foreach ($s1, $s2);
$node->stop;
done_testing();
