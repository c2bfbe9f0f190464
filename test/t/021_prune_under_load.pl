# prune(idle => '0') in a loop beside acquirers at full load: no token ever goes
# down, under a name or in the eyes of one client, no lease is lost, nobody gets
# an error.  A counter that lives in the row which prune removes begins again at
# 1; a prune that does not look again under the lock removes a lease that was
# granted a moment ago.
#
# A minute; LEASE_LOCK_PRUNE_SECONDS sets another length.

use strict;
use warnings;

use FindBin;
use lib $FindBin::Bin;

use IPC::Run ();
use LeaseTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $seconds = $ENV{LEASE_LOCK_PRUNE_SECONDS} || 60;
my $dir = $PostgreSQL::Test::Utils::tmp_check;
my $node = lease_server('main', "fsync = off\nautovacuum = on\nautovacuum_naptime = 1s\n");

$node->safe_psql('postgres', q(
-- What the holder of a lease writes under it: the order of the grants of a name.
CREATE TABLE seen (name text PRIMARY KEY, token bigint NOT NULL);
INSERT INTO seen SELECT 'name/' || i, 0 FROM generate_series(1, 50) AS i;
INSERT INTO seen SELECT 'busy/' || i, 0 FROM generate_series(1, 2) AS i;
CREATE TABLE account (name text);
INSERT INTO account SELECT name FROM seen;
SELECT lease_lock.guard('account', '{name}');
CREATE TABLE done (client text, grants int, highest bigint);
CREATE TABLE kept AS SELECT 'kept/' || i AS name, lease_lock.acquire('kept/' || i, 'A', ttl => '1 h') AS token
	FROM generate_series(1, 20) AS i;

-- Notes a token under its lease.  The order of a name's grants is that of
-- their commits, since each is released before the next.
CREATE PROCEDURE note(of_name text, of_token bigint) LANGUAGE plpgsql AS $$
DECLARE before bigint;
BEGIN
	UPDATE seen SET token = of_token FROM (SELECT name, token FROM seen WHERE name = of_name FOR UPDATE) AS s
		WHERE seen.name = s.name RETURNING s.token INTO STRICT before;
	IF before >= of_token THEN
		RAISE 'token % of "%" follows token %', of_token, of_name, before;
	END IF;
END $$;

CREATE PROCEDURE work(client text, until timestamptz, kind text, names int) LANGUAGE plpgsql AS $$
DECLARE
	mine text;
	held bigint;
	own text := 'own/' || client || '/';
	highest bigint := 0;
	grants int := 0;
BEGIN
	WHILE clock_timestamp() < until LOOP
		mine := kind || '/' || 1 + floor(random() * names)::int;
		IF random() < 0.5 THEN
			held := lease_lock.acquire(mine, client, ttl => '5 min', wait => '60 s');
		ELSE
			held := lease_lock.try_acquire(mine, client, ttl => '5 min');
		END IF;
		COMMIT;
		CONTINUE WHEN held IS NULL;
		IF held <= highest THEN
			RAISE 'client %: token % follows token %', client, held, highest;
		END IF;
		highest := held;
		CALL note(mine, held);
		COMMIT;
		IF random() < 0.2 THEN
			PERFORM lease_lock.present(mine, held);
			UPDATE account SET name = name WHERE name = mine;
			COMMIT;
		END IF;
		IF random() < 0.3 AND lease_lock.renew(mine, held, '5 min') IS NULL THEN
			RAISE 'client %: token % of "%" cannot be renewed: %', client, held, mine, (SELECT s FROM lease_lock.token_status(mine, held) AS s);
		END IF;
		COMMIT;
		IF NOT lease_lock.release(mine, held) THEN
			RAISE 'client %: token % of "%" cannot be released: %', client, held, mine, (SELECT s FROM lease_lock.token_status(mine, held) AS s);
		END IF;
		COMMIT;
		-- A name that is new each time, one that is idle as soon as it is
		-- granted, and a grant that never was.
		held := lease_lock.acquire(own || grants, client);
		PERFORM lease_lock.release(own || grants, held);
		COMMIT;
		IF held <= highest THEN
			RAISE 'client %: token % follows token %', client, held, highest;
		END IF;
		highest := held;
		held := lease_lock.acquire(own || 'transaction', client, scope => 'transaction');
		COMMIT;
		IF held <= highest THEN
			RAISE 'client %: token % follows token %', client, held, highest;
		END IF;
		highest := held;
		PERFORM lease_lock.acquire(own || 'rolled back', client);
		ROLLBACK;
		grants := grants + 1;
	END LOOP;
	INSERT INTO done VALUES (client, grants, highest);
END $$;

CREATE PROCEDURE prune_all(until timestamptz) LANGUAGE plpgsql AS $$
DECLARE
	calls int := 0;
	pruned bigint := 0;
BEGIN
	WHILE clock_timestamp() < until LOOP
		pruned := pruned + lease_lock.prune(idle => '0');
		COMMIT;
		calls := calls + 1;
	END LOOP;
	INSERT INTO done VALUES ('prune', calls, pruned);
END $$;

-- Renews what is held all the time, as a watchdog does.
CREATE PROCEDURE watch(until timestamptz) LANGUAGE plpgsql AS $$
DECLARE
	k record;
	calls int := 0;
BEGIN
	WHILE clock_timestamp() < until LOOP
		FOR k IN SELECT name, token FROM kept LOOP
			IF lease_lock.renew(k.name, k.token) IS NULL THEN
				RAISE 'token % of "%" cannot be renewed: %', k.token, k.name, (SELECT s FROM lease_lock.token_status(k.name, k.token) AS s);
			END IF;
			COMMIT;
			calls := calls + 1;
		END LOOP;
		PERFORM pg_sleep(0.05);
	END LOOP;
	INSERT INTO done VALUES ('watch', calls, 0);
END $$;
));

my %calls = (
	prune => 'CALL prune_all(clock_timestamp() + %s)',
	watch => 'CALL watch(clock_timestamp() + %s)',
	map({ ("names $_" => "CALL work('names $_', clock_timestamp() + %s, 'name', 50)") } 1 .. 4),
	map({ ("busy $_" => "CALL work('busy $_', clock_timestamp() + %s, 'busy', 2)") } 1 .. 3),
);
my %client;
foreach my $name (sort keys %calls)
{
	(my $file = "$dir/$name") =~ s/ /_/g;

	$client{$name}{file} = $file;
	$client{$name}{run} = IPC::Run::start(
		[ 'psql', '-XAtq', '-v', 'ON_ERROR_STOP=1', '-d', $node->connstr('postgres'), '-c', sprintf($calls{$name}, "interval '$seconds s'") ],
		'>', "$file.out", '2>', "$file.err",
		IPC::Run::timeout($seconds + $PostgreSQL::Test::Utils::timeout_default));
}
foreach my $name (sort keys %client)
{
	ok($client{$name}{run}->finish, "$name: no error, no token that goes down, no lease that is lost");
	is(slurp_file("$client{$name}{file}.err"), '', "$name: nothing to complain of");
}

my ($grants, $busy) = split /\|/, $node->safe_psql('postgres', q(SELECT sum(grants) FILTER (WHERE client LIKE 'names%'), sum(grants) FILTER (WHERE client LIKE 'busy%') FROM done));
my ($calls, $pruned) = split /\|/, $node->safe_psql('postgres', q(SELECT grants, highest FROM done WHERE client = 'prune'));
note "$grants and $busy rounds, $calls calls of prune, $pruned rows removed";
cmp_ok($grants, '>', 20 * $seconds, 'a full load on many names');
cmp_ok($busy, '>', 5 * $seconds, 'and on two');
cmp_ok($calls, '>', $seconds, 'beside many calls of prune');
cmp_ok($pruned, '>', 20 * $seconds, 'that removed rows');
is($node->safe_psql('postgres', q(SELECT count(*) FROM seen WHERE token = 0)), '0', 'every name was granted');

# What is held is held still, and nothing else is left.
is($node->safe_psql('postgres', q(SELECT count(*) FROM kept AS k, LATERAL lease_lock.token_status(k.name, k.token) AS s WHERE s.state <> 'held')), '0',
	'no lease that was held all the time is lost');
is($node->safe_psql('postgres', q(SELECT count(*) FROM kept WHERE lease_lock.renew(name, token) IS NULL)), '0', 'each of them can be renewed');
$node->safe_psql('postgres', q(SELECT lease_lock.prune('0')));
is($node->safe_psql('postgres', 'SELECT count(*), count(*) FILTER (WHERE resource LIKE \'kept/%\') FROM lease_lock.lease'), '20|20', 'a last prune leaves them alone');
cmp_ok($node->safe_psql('postgres', q(SELECT min(lease_lock.acquire(name, 'B')) FROM seen)), '>', $node->safe_psql('postgres', 'SELECT greatest(max(highest), (SELECT max(token) FROM seen)) FROM done WHERE client NOT IN (\'prune\', \'watch\')'),
	'and every name goes on above all that was granted');
is($node->safe_psql('postgres', q(SELECT count(*) FROM pg_locks WHERE locktype = 'advisory')), '0', 'no lock is left');

$node->stop;
done_testing();
