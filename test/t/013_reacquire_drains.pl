# An owner that comes again waits for its earlier self's writes in flight, also
# when the writer is in the middle of a call of ours at that very moment.  Six
# sessions are one owner: each takes the lease over from another, writes, and
# renews in the writing transaction.  The order of commits is read afterwards.

use strict;
use warnings;

use FindBin;
use lib $FindBin::Bin;

use IPC::Run ();
use LeaseTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = lease_server('main', "track_commit_timestamp = on\nfsync = off\ndeadlock_timeout = 20ms\n");

$node->safe_psql('postgres', q(
CREATE TABLE written (token bigint);
CREATE TABLE granted (token bigint);
SELECT lease_lock.guard('written', 'job');
CREATE PROCEDURE work(until timestamptz) LANGUAGE plpgsql AS $$
DECLARE t bigint;
BEGIN
  WHILE clock_timestamp() < until LOOP
    BEGIN
      t := lease_lock.acquire('job', 'one owner', '1 min', '10 s');
      INSERT INTO granted VALUES (t);
    EXCEPTION WHEN deadlock_detected OR lock_not_available THEN t := NULL;
    END;
    COMMIT;
    CONTINUE WHEN t IS NULL;
    BEGIN
      PERFORM lease_lock.present('job', t);
      INSERT INTO written VALUES (t);
      PERFORM lease_lock.renew('job', t), lease_lock.renew('job', t), lease_lock.renew('job', t);
    EXCEPTION WHEN SQLSTATE 'LL001' OR deadlock_detected THEN NULL;
    END;
    COMMIT;
  END LOOP;
END $$;
));

my @clients;
foreach my $worker (1 .. 6)
{
	my $file = "$PostgreSQL::Test::Utils::tmp_check/owner_$worker";

	push @clients, IPC::Run::start(
		[ 'psql', '-XAtq', '-d', $node->connstr('postgres'), '-c', "CALL work(clock_timestamp() + '10 s')" ],
		'>', "$file.out", '2>', "$file.err",
		IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default));
}
ok($_->finish, 'a worker goes on to the end') foreach @clients;

cmp_ok($node->safe_psql('postgres', 'SELECT count(*) FROM written'), '>', 20, 'writes were accepted');
cmp_ok($node->safe_psql('postgres', 'SELECT count(*) FROM granted'), '>', 20, 'the lease was taken over');
is($node->safe_psql('postgres', q(
SELECT count(*) FROM written w
WHERE pg_xact_commit_timestamp(w.xmin) >
  (SELECT min(pg_xact_commit_timestamp(g.xmin)) FROM granted g WHERE g.token > w.token))),
	'0', 'no write committed after a newer grant');

$node->stop;
done_testing();
