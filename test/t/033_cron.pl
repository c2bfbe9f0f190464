# Old rows are removed by the real pg_cron, with the schedules and the rights of
# doc/monitoring.md: history that is too old and idle leases go, everything else
# stays, and a role without the right is refused.  A function that cannot run in
# a background worker, that needs more rights than it is given, or that removes
# too much would fail here.
#
# This pg_cron knows no schedules of seconds.  A job whose schedule is @reboot
# runs when its server starts, by the same way as any other.

use strict;
use warnings;

use FindBin;
use lib $FindBin::Bin;

use LeaseTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

chomp(my $lib = `$ENV{PG_CONFIG} --pkglibdir`) if $ENV{PG_CONFIG};
chomp($lib = `pg_config --pkglibdir`) unless $lib;
plan skip_all => 'there is no pg_cron for this server' unless -f "$lib/pg_cron.so";

my $node = lease_server('main', q(
shared_preload_libraries = 'pg_cron'
cron.use_background_workers = on
cron.database_name = 'postgres'
lease_lock.history = on
));
my $doc = slurp_file("$FindBin::Bin/../../doc/monitoring.md");
my ($pruning) = $doc =~ /^## Pruning by pg_cron\n(.*)/ms;
my ($rights, $jobs) = $pruning =~ /^```sql\n(.*?)^```/msg;

$node->safe_psql('postgres', 'CREATE EXTENSION pg_cron');
$node->safe_psql('postgres', $rights);
$node->safe_psql('postgres', q(
CREATE ROLE stranger LOGIN;
GRANT USAGE ON SCHEMA lease_lock, cron TO stranger;
));

# Ten grants that ended long ago, ten that did just now, on names of their own
# and on one that is held; leases that are idle for long, idle for a while, held.
my $dba = LeaseTest::Session->new($node);
$dba->query_ok(q(
DO $$
DECLARE
  name text;
BEGIN
  FOREACH name IN ARRAY array(SELECT 'old ' || i FROM generate_series(1, 9) AS i) || 'kept'::text
    || array(SELECT 'new ' || i FROM generate_series(1, 9) AS i) || 'kept'::text LOOP
    PERFORM lease_lock.release(name, lease_lock.acquire(name, 'A'));
    COMMIT;
    IF name = 'old 9' THEN
      PERFORM lease_lock.release('kept', lease_lock.acquire('kept', 'A'));
      COMMIT;
    END IF;
  END LOOP;
END $$;
SELECT lease_lock.acquire('kept', 'A', ttl => '1 h');
UPDATE lease_lock.history SET granted_at = granted_at - interval '31 days', ended_at = ended_at - interval '31 days'
WHERE resource LIKE 'old %' OR token = (SELECT min(token) FROM lease_lock.history WHERE resource = 'kept');
UPDATE lease_lock.lease
SET expire_at = expire_at - interval '2 days', ended_at = ended_at - interval '2 days', acquired_at = acquired_at - interval '2 days',
    renewed_at = renewed_at - interval '2 days'
WHERE resource LIKE 'old %';
));
my $old = $dba->query_ok(q(SELECT count(*) FROM lease_lock.history WHERE ended_at < now() - interval '30 days'));
my $new = $dba->query_ok(q(SELECT count(*) FROM lease_lock.history WHERE ended_at >= now() - interval '30 days'));
is($old, '10', 'ten rows of history are too old');
cmp_ok($new, '>=', 10, 'others are not');
is($dba->query_ok(q(SELECT count(*) FROM lease_lock.lease)), '19', 'there are leases, idle ones as well');
my $last = $dba->query_ok('SELECT last_token FROM lease_lock.token_state');

# The jobs, and one that may not do its work.
my $janitor = LeaseTest::Session->new($node, user => 'lease_lock_janitor');
$janitor->query_ok($jobs);
is($janitor->query_ok(q(SELECT count(*) FROM cron.job WHERE schedule ~ '^[0-9]+ 3 \* \* \*$' AND active)), '2', 'two jobs are scheduled, nightly');
my $stranger = LeaseTest::Session->new($node, user => 'stranger');
$stranger->query_ok(q(SELECT cron.schedule('not allowed', '0 3 * * *', 'SELECT lease_lock.prune_history()')));
$_->quit foreach $janitor, $stranger, $dba;

$node->safe_psql('postgres', q(UPDATE cron.job SET schedule = '@reboot'));
$node->restart;
$dba = LeaseTest::Session->new($node);
ok(wait_true($dba, q(SELECT count(*) = 3 FROM cron.job_run_details WHERE status IN ('succeeded', 'failed'))), 'they run');
is($dba->query_ok(q(SELECT j.jobname, d.username, d.status, CASE d.status WHEN 'failed' THEN d.return_message END
                    FROM cron.job_run_details AS d JOIN cron.job AS j USING (jobid) ORDER BY j.jobname)),
	join("\n", 'lease_lock history|lease_lock_janitor|succeeded|', 'lease_lock leases|lease_lock_janitor|succeeded|',
		'not allowed|stranger|failed|ERROR: permission denied for function prune_history'),
	'two succeed, and the one without the right fails')
  or diag($dba->query_ok('SELECT * FROM cron.job_run_details'));

is($dba->query_ok(q(SELECT count(*) FROM lease_lock.history WHERE ended_at < now() - interval '30 days')), '0', 'old history is gone');
is($dba->query_ok(q(SELECT count(*) FROM lease_lock.history WHERE ended_at >= now() - interval '30 days' AND resource NOT LIKE 'old %')),
	$new, 'history that is not too old is all there');
is($dba->query_ok(q(SELECT count(*), count(*) FILTER (WHERE resource LIKE 'old %') FROM lease_lock.lease)), '10|0', 'so are leases, less the idle ones');
is($dba->query_ok(q(SELECT count(*) FROM lease_lock.holders WHERE resource = 'kept' AND state = 'held')), '1', 'who holds one still does');
is($dba->query_ok(q(SELECT action, role FROM lease_lock.audit ORDER BY action)), "prune|lease_lock_janitor\nprune_history|lease_lock_janitor",
	'the audit says who removed what');
cmp_ok($dba->query_ok(q(SELECT lease_lock.acquire('old 1', 'B'))), '>', $last, 'a name that was removed gets a larger token');

$dba->quit;
$node->stop;
done_testing();
