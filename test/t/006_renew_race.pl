# A renewal and an acquire that meet at the moment of expiry: exactly one of
# them wins, and nothing is revived.  The same owner again gets a new token,
# which alone is in force.

use strict;
use warnings;

use FindBin;
use lib $FindBin::Bin;

use LeaseTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = lease_server('main');
my $rounds = 600;

# The holder acquires for a few milliseconds, says until when, and renews a
# little before or after that; its rival tries from shortly before that on
# until it is granted or hears that the holder has renewed.
$node->safe_psql('postgres', q(
CREATE TABLE round (n int PRIMARY KEY, token bigint, expire_at timestamptz);
CREATE TABLE renewal (n int PRIMARY KEY, asked_at timestamptz, expire_at timestamptz);
CREATE TABLE takeover (n int PRIMARY KEY, asked_at timestamptz, token bigint);

CREATE PROCEDURE holder(rounds int) LANGUAGE plpgsql
AS $$
DECLARE
	my_token bigint;
	until timestamptz;
	moment timestamptz;
	renewed timestamptz;
BEGIN
	FOR i IN 1..rounds LOOP
		my_token := lease_lock.acquire('race/' || i, 'holder', ttl => '8 ms');
		COMMIT;
		until := (lease_lock.token_status('race/' || i, my_token)).expire_at;
		INSERT INTO round VALUES (i, my_token, until);
		COMMIT;
		until := until - (random() * 3 - 1) * interval '1 ms';
		LOOP
			EXIT WHEN clock_timestamp() >= until;
		END LOOP;
		moment := clock_timestamp();
		renewed := lease_lock.renew('race/' || i, my_token, '1 h');
		COMMIT;
		INSERT INTO renewal VALUES (i, moment, renewed);
		COMMIT;
		WHILE NOT EXISTS (SELECT FROM takeover WHERE n = i) LOOP
			PERFORM pg_sleep(0.0002);
			COMMIT;
		END LOOP;
	END LOOP;
END $$;

CREATE PROCEDURE rival(rounds int) LANGUAGE plpgsql
AS $$
DECLARE
	known round;
	moment timestamptz;
	my_token bigint;
	told boolean;
BEGIN
	FOR i IN 1..rounds LOOP
		LOOP
			SELECT * INTO known FROM round WHERE n = i;
			EXIT WHEN FOUND;
			PERFORM pg_sleep(0.0002);
			COMMIT;
		END LOOP;
		LOOP
			EXIT WHEN clock_timestamp() >= known.expire_at - interval '2 ms';
		END LOOP;
		LOOP
			told := EXISTS (SELECT FROM renewal WHERE n = i);
			COMMIT;
			moment := clock_timestamp();
			my_token := lease_lock.try_acquire('race/' || i, 'rival', ttl => '1 h');
			COMMIT;
			EXIT WHEN told OR my_token IS NOT NULL;
		END LOOP;
		INSERT INTO takeover VALUES (i, moment, my_token);
		COMMIT;
	END LOOP;
END $$;
));
my $holder = LeaseTest::Session->new($node);
my $rival = LeaseTest::Session->new($node);
$holder->send("CALL holder($rounds)");
$rival->send("CALL rival($rounds)");
foreach my $session ($holder, $rival)
{
	$session->result;
	is($session->state, '', 'no error in a race') or diag($session->errors);
}

my $wins = q(FROM round JOIN renewal r USING (n) JOIN takeover t USING (n));
is($holder->query_ok("SELECT count(*) $wins"), $rounds, 'all rounds were played');
is($holder->query_ok("SELECT count(*) $wins WHERE (r.expire_at IS NULL) = (t.token IS NULL)"), '0', 'exactly one wins each round');
is($holder->query_ok("SELECT count(*) $wins WHERE r.expire_at IS NOT NULL AND r.asked_at >= round.expire_at"), '0',
	'nothing is renewed after its expiry');
is($holder->query_ok("SELECT count(*) $wins JOIN lease_lock.lease l ON l.resource = 'race/' || n WHERE t.token IS NOT NULL AND l.acquired_at < round.expire_at"), '0',
	'nothing is granted before the other\'s expiry');
is($holder->query_ok("SELECT count(*) $wins JOIN lease_lock.holders h ON h.resource = 'race/' || n
	WHERE h.state = 'held' AND ((h.owner = 'holder' AND h.token = round.token AND h.expire_at = r.expire_at) OR (h.owner = 'rival' AND h.token = t.token AND t.token > round.token))"),
	$rounds, 'and the winner holds the lease');
my $renewals = $holder->query_ok("SELECT count(*) $wins WHERE r.expire_at IS NOT NULL");
note("the holder won $renewals of $rounds rounds");
cmp_ok($renewals, '>', 5, 'the holder won some rounds');
cmp_ok($renewals, '<', $rounds - 5, 'the rival won some rounds');

#
# The loser's renewal is late for good.
#
my $late = $holder->query_ok(q(SELECT lease_lock.acquire('late', 'holder', ttl => '1 ms')));
ok(wait_true($rival, q(SELECT state = 'expired' FROM lease_lock.holders WHERE resource = 'late')), 'a lease expires');
is($holder->query_ok("SELECT lease_lock.renew('late', $late)"), '', 'renew after the expiry, nobody else there: NULL');
my $taken = $rival->query_ok(q(SELECT lease_lock.acquire('late', 'rival', ttl => '1 h')));
is($holder->query_ok("SELECT lease_lock.renew('late', $late)"), '', 'renew after a takeover: NULL');
is($rival->query_ok("SELECT lease_lock.renew('late', $late + 1000)"), '', 'renew with a token that was never granted: NULL');
is($rival->query_ok("SELECT lease_lock.release('late', $taken)"), 't', 'the rival releases');
is($holder->query_ok("SELECT lease_lock.renew('late', $late)"), '', 'renew after a takeover and its release: NULL');
is($rival->query_ok("SELECT lease_lock.renew('late', $taken)"), '', 'renew after one\'s own release: NULL');
is($rival->query_ok(q(SELECT count(*) FROM lease_lock.holders WHERE resource = 'late')), '0', 'and there is no lease');

#
# Eight retries of one owner at the same time, over and over.
#
my $script = "$PostgreSQL::Test::Utils::tmp_check/retry.sql";
$node->safe_psql('postgres', 'CREATE TABLE retry (name text, token bigint)');
append_to_file($script, q(\set r :r + 1
INSERT INTO retry SELECT 'retry/' || :r, lease_lock.acquire('retry/' || :r, 'one owner', ttl => '1 h', wait => '60 s');
));
my ($out, $err) = ('', '');
ok(IPC::Run::run(
		[
			'pgbench', '-n', '-c', 8, '-j', 2, '-t', 50, '-D', 'r=0', '-f', $script,
			'-h', $node->host, '-p', $node->port, '-U', 'postgres', 'postgres'
		],
		'>', \$out, '2>', \$err, IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default)),
	'retries never block on themselves') or diag($err);
is($holder->query_ok('SELECT count(DISTINCT token) FROM retry'), '400', 'each retry gets a token of its own');
is($holder->query_ok(q(SELECT count(*) FROM (SELECT name, max(token) AS token FROM retry GROUP BY name) AS r
	JOIN lease_lock.holders h ON h.resource = r.name AND h.token = r.token AND h.state = 'held')), '50', 'the highest is the one in force');
is($holder->query_ok(q(SELECT count(*) FROM retry r WHERE (lease_lock.token_status(r.name, r.token)).state = 'held')), '50', 'and no other is');
my $retry = $holder->query_ok(q(SELECT string_agg(token::text, ' ' ORDER BY token DESC) FROM retry WHERE name = 'retry/1'));
my ($newest, @older) = split / /, $retry;
foreach my $old (@older)
{
	is($holder->query_ok("SELECT lease_lock.release('retry/1', $old)"), 'f', 'an older token of the same owner releases nothing');
	is($holder->query_ok("SELECT lease_lock.renew('retry/1', $old)"), '', 'and renews nothing');
}
is($holder->query_ok("SELECT lease_lock.release('retry/1', $newest)"), 't', 'the newest releases');
is($holder->query_ok("SELECT lease_lock.release('retry/1', $newest)"), 'f', 'once');

# An owner that comes again after its expiry: the old token is as stale as any.
my $old = $holder->query_ok(q(SELECT lease_lock.acquire('own', 'A', ttl => '1 ms')));
ok(wait_true($rival, q(SELECT state = 'expired' FROM lease_lock.holders WHERE resource = 'own')), 'a lease expires');
my $new = $holder->query_ok(q(SELECT lease_lock.acquire('own', 'A', ttl => '1 h')));
cmp_ok($new, '>', $old, 'its owner gets a larger token');
is($holder->query_ok("SELECT lease_lock.renew('own', $old)"), '', 'the old one renews nothing');
is($holder->query_ok("SELECT lease_lock.release('own', $old)"), 'f', 'and releases nothing');
is($holder->query_ok("SELECT state FROM lease_lock.token_status('own', $new)"), 'held', 'the new lease is untouched');

$_->quit foreach ($holder, $rival);
$node->stop;
done_testing();
