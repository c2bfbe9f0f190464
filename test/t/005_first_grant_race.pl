# The first grant of a new name: however many sessions ask at once, exactly one
# is granted, nobody sees 23505 or 40001, and the others' transactions go on.

use strict;
use warnings;

use FindBin;
use lib $FindBin::Bin;

use LeaseTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = lease_server('main');
my $clients = 16;
my $rounds = 60;

$node->safe_psql('postgres', q(
CREATE TABLE result (what text, round int, client int, token bigint);
CREATE TABLE usable (what text, round int, client int);
CREATE FUNCTION acquire_or_null(resource text, owner text, wait interval) RETURNS bigint LANGUAGE plpgsql
AS $$ BEGIN
	RETURN lease_lock.acquire(resource, owner, ttl => '1 h', wait => wait);
EXCEPTION WHEN lock_not_available THEN
	RETURN NULL;
END $$;

-- Lets each round begin when all clients stand at its gate.
CREATE FUNCTION open_gates(clients int, rounds int) RETURNS void LANGUAGE plpgsql
AS $$ BEGIN
	FOR r IN 1..rounds LOOP
		WHILE (SELECT count(*) FROM pg_locks
			   WHERE locktype = 'advisory' AND objsubid = 1 AND objid = r AND NOT granted) < clients LOOP
			PERFORM pg_sleep(0.0005);
		END LOOP;
		PERFORM pg_advisory_unlock(r);
	END LOOP;
END $$;
));

my $gatekeeper = LeaseTest::Session->new($node);
my @ways = (
	[ 'try, read committed', 'READ COMMITTED', q(lease_lock.try_acquire('%s/' || :r, 'client ' || :client_id, ttl => '1 h')) ],
	[ 'try, repeatable read', 'REPEATABLE READ', q(lease_lock.try_acquire('%s/' || :r, 'client ' || :client_id, ttl => '1 h')) ],
	[ 'try, serializable', 'SERIALIZABLE', q(lease_lock.try_acquire('%s/' || :r, 'client ' || :client_id, ttl => '1 h')) ],
	[ 'acquire without wait, read committed', 'READ COMMITTED', q(acquire_or_null('%s/' || :r, 'client ' || :client_id, '0')) ],
	[ 'acquire without wait, serializable', 'SERIALIZABLE', q(acquire_or_null('%s/' || :r, 'client ' || :client_id, '0')) ],
	[ 'acquire, repeatable read', 'REPEATABLE READ', q(acquire_or_null('%s/' || :r, 'client ' || :client_id, '5 ms')) ],
);
foreach my $way (@ways)
{
	my ($what, $level, $call) = @$way;
	my $script = "$PostgreSQL::Test::Utils::tmp_check/" . ($what =~ s/\W+/_/gr) . '.sql';

	$call = sprintf($call, $what);
	append_to_file($script, qq(\\set r :r + 1
SELECT pg_advisory_lock_shared(:r);
BEGIN ISOLATION LEVEL $level;
INSERT INTO result VALUES ('$what', :r, :client_id, $call);
INSERT INTO usable VALUES ('$what', :r, :client_id);
COMMIT;
));
	$gatekeeper->query_ok("SELECT count(pg_advisory_lock(r)) FROM generate_series(1, $rounds) AS r");
	$gatekeeper->send("SELECT open_gates($clients, $rounds)");
	my ($out, $err) = ('', '');
	my $ok = IPC::Run::run(
		[
			'pgbench', '-n', '-c', $clients, '-j', 2, '-t', $rounds, '-D', 'r=0', '-f', $script,
			'-h', $node->host, '-p', $node->port, '-U', 'postgres', 'postgres'
		],
		'>', \$out, '2>', \$err, IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default));
	ok($ok, "$what: no client is stopped by an error") or diag($err);
	unlike($out, qr/number of failed transactions: [1-9]/, "$what: no transaction fails");
	$gatekeeper->result;
	is($gatekeeper->state, '', "$what: all rounds were played");
	is($node->safe_psql('postgres', "SELECT count(*), count(DISTINCT round) FROM result WHERE what = '$what'"),
		$clients * $rounds . "|$rounds", "$what: everybody had an answer");
	is($node->safe_psql('postgres', "SELECT count(*) FROM usable WHERE what = '$what'"),
		$clients * $rounds, "$what: and a transaction that went on");
	is($node->safe_psql('postgres', "SELECT string_agg(n || ' in ' || rounds, ', ') FROM
		(SELECT n, count(*) AS rounds FROM (SELECT round, count(token) AS n FROM result WHERE what = '$what' GROUP BY round) AS w GROUP BY n) AS s"),
		"1 in $rounds", "$what: exactly one was granted in each round");
	is($node->safe_psql('postgres', "SELECT count(*) FROM result r JOIN lease_lock.holders h ON h.resource = '$what/' || r.round
		WHERE r.what = '$what' AND r.token = h.token AND h.owner = 'client ' || r.client AND h.state = 'held'"),
		$rounds, "$what: and holds the lease");
}
is($node->safe_psql('postgres', 'SELECT count(token) - count(DISTINCT token) FROM result'), '0', 'no token was granted twice');
is($node->safe_psql('postgres', 'SELECT count(*) - count(DISTINCT resource) FROM lease_lock.lease'), '0', 'no resource has two rows');

#
# The first who asks rolls back: the next in line gets it.
#
my $first = LeaseTest::Session->new($node);
my $second = LeaseTest::Session->new($node);
foreach my $level ('READ COMMITTED', 'REPEATABLE READ', 'SERIALIZABLE')
{
	foreach my $end ('ROLLBACK', 'ROLLBACK TO s')
	{
		my $name = "$level, $end";

		$first->query_ok('BEGIN; SAVEPOINT s');
		my $token = $first->query_ok("SELECT lease_lock.acquire('$name', 'first')");
		is($second->query_ok("SELECT lease_lock.try_acquire('$name', 'second')"), '', "$name: an uncommitted first grant is nobody else's");
		$second->query_ok("BEGIN ISOLATION LEVEL $level");
		$second->send("SELECT lease_lock.acquire('$name', 'second', wait => '60 s')");
		ok(wait_true($gatekeeper, q(SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = ) . $second->pid), "$name: the second waits");
		$first->query_ok($end);
		cmp_ok($second->result, '>', $token, "$name: the second is granted, with a larger token");
		$second->query_ok('COMMIT');
		$first->query_ok('COMMIT');
		is($gatekeeper->query_ok("SELECT owner FROM lease_lock.holders WHERE resource = '$name'"), 'second', "$name: and holds the lease");
	}
}
$_->quit foreach ($first, $second, $gatekeeper);
$node->stop;
done_testing();
