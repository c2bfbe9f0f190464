# Guards and rows that come by logical replication.  By default a guard does not
# judge them: apply goes on, and the view guards tells which guards are off or
# fire for such rows alone.  A token that travels in the row can be judged on
# the subscriber too (ENABLE ALWAYS): what is newer arrives, what is older stops
# apply with LL001, is seen in rejections, and does not stop it for ever.  A guard
# that asks for a presented token cannot be used so, and says that.
#
# A guard that fired for applied rows would stop apply here; one that let an
# older token through by that way would too be found.

use strict;
use warnings;

use FindBin;
use lib $FindBin::Bin;

use LeaseTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep time);

my $conf = q(
wal_retrieve_retry_interval = 100ms
max_logical_replication_workers = 20
max_worker_processes = 30
max_replication_slots = 20
max_wal_senders = 20
log_error_verbosity = verbose
);
my $publisher = lease_server('publisher', $conf, allows_streaming => 'logical');
my $subscriber = lease_server('subscriber', $conf, allows_streaming => 'logical');
my $p = LeaseTest::Session->new($publisher);
my $s = LeaseTest::Session->new($subscriber);

my @triggers = qw(zz_lease_lock_guard zz_lease_lock_guard_recheck zz_lease_lock_guard_truncate);

# Tables that are guarded in each way, on both sides.
my $tables = q(
CREATE TABLE account (id int PRIMARY KEY, note text);
CREATE TABLE log (id int PRIMARY KEY, note text);
CREATE TABLE item (id int PRIMARY KEY, note text);
CREATE TABLE doc (id int PRIMARY KEY, token bigint, note text);
CREATE TABLE part (id int, day int, note text, PRIMARY KEY (id, day)) PARTITION BY LIST (day);
CREATE TABLE part_1 PARTITION OF part FOR VALUES IN (1);
CREATE TABLE part_2 PARTITION OF part FOR VALUES IN (2);
SELECT lease_lock.guard('account', 'job'), lease_lock.guard('log', 'log', mode => 'newest'),
	lease_lock.guard('item', 'row/{id}'), lease_lock.guard_column('doc', 'token', resource => 'doc/{id}'),
	lease_lock.guard('part', 'day/{day}');
);
my @all = qw(account log item doc part);
my $contents = join(' UNION ALL ', map { "SELECT '$_' AS t, id, note FROM $_" } @all) . ' ORDER BY 1, 2';

$_->query_ok($tables) foreach ($p, $s);

# Runs SQL on the publisher past the guards of its tables.
sub publish
{
	my ($tables, $sql) = @_;

	$p->query_ok('BEGIN');
	$p->query_ok("SELECT lease_lock.bypass('$_', 'a test')") foreach split / /, $tables;
	$p->query_ok($sql);
	$p->query_ok('COMMIT');
	return;
}

# How often apply or copy of a subscription failed.
sub errors
{
	my ($subscription) = @_;

	return $s->query_ok("SELECT apply_error_count + sync_error_count FROM pg_stat_subscription_stats WHERE subname = '$subscription'");
}

sub apply_pid
{
	my ($subscription) = @_;

	return $s->query_ok("SELECT pid FROM pg_stat_subscription WHERE subname = '$subscription' AND relid IS NULL AND pid IS NOT NULL");
}

sub subscribe
{
	my ($name, $tables, $with) = @_;

	$p->query_ok("CREATE PUBLICATION $name FOR TABLE $tables");
	$s->query_ok("CREATE SUBSCRIPTION $name CONNECTION '" . $publisher->connstr . " dbname=postgres' PUBLICATION $name" . ($with ? " WITH ($with)" : ''));
	return;
}

sub problem_of
{
	my ($table) = @_;

	return $s->query_ok("SELECT coalesce(problem, 'none') FROM lease_lock.guards WHERE relation = '$table'::regclass");
}

sub enable_always
{
	my ($table) = @_;

	$s->query_ok("ALTER TABLE $table ENABLE ALWAYS TRIGGER $_") foreach @triggers;
	return;
}

# Polls the log of the subscriber from an offset for a pattern.
sub logged
{
	my ($offset, $pattern, $name) = @_;
	my $end = time + $PostgreSQL::Test::Utils::timeout_default;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	until (slurp_file($subscriber->logfile, $offset) =~ $pattern || time > $end)
	{
		sleep 0.05;
	}
	return like(slurp_file($subscriber->logfile, $offset), $pattern, $name);
}

#
# Guards as guard() makes them: copied and applied rows are not judged.
#
publish('account log item doc part', q(
INSERT INTO account VALUES (1, 'x'); INSERT INTO log VALUES (1, 'x'); INSERT INTO item VALUES (1, 'x');
INSERT INTO doc VALUES (1, 5, 'x'); INSERT INTO part VALUES (1, 1, 'x')));
subscribe('ordinary', join(', ', @all));
$subscriber->wait_for_subscription_sync($publisher, 'ordinary');
is($s->query_ok($contents), $p->query_ok($contents), 'default: the first copy arrives under the guards');
my $worker = apply_pid('ordinary');
publish('account log item doc part', q(
INSERT INTO account VALUES (2, 'x'), (3, 'x'); INSERT INTO log VALUES (2, 'x'); INSERT INTO item VALUES (2, 'x'), (3, 'x');
INSERT INTO doc VALUES (2, 5, 'x'), (3, NULL, 'x'); INSERT INTO part VALUES (2, 2, 'x'), (3, 1, 'x');
UPDATE account SET note = 'y' WHERE id = 1; UPDATE log SET note = 'y'; UPDATE item SET note = 'y' WHERE id = 1;
UPDATE doc SET note = 'y', token = 1 WHERE id = 1; UPDATE part SET day = 2 WHERE id = 1;
DELETE FROM account WHERE id = 2; DELETE FROM item WHERE id = 2; DELETE FROM doc WHERE id = 2; DELETE FROM part WHERE id = 2));
$publisher->wait_for_catchup('ordinary');
is($s->query_ok($contents), $p->query_ok($contents), 'default: inserts, updates and deletes are applied, older tokens too');
like($s->query_ok($contents), qr/doc\|1\|y/, 'default: there was something to apply');
publish('log doc part', 'TRUNCATE log, doc, part');
$publisher->wait_for_catchup('ordinary');
is($s->query_ok('SELECT (SELECT count(*) FROM log) + (SELECT count(*) FROM doc) + (SELECT count(*) FROM part)'), '0', 'default: TRUNCATE is applied');
is(apply_pid('ordinary'), $worker, 'default: by one worker, which never stopped');
is(errors('ordinary'), '0', 'default: and never failed');
is($s->query_ok('SELECT count(*) FROM lease_lock.rejections'), '0', 'default: nothing was refused');
is($s->query_ok('SELECT count(*) FROM lease_lock.fence'), '0', 'default: and no fence has seen anything');
is($s->query_ok('SELECT count(*) FROM lease_lock.guards WHERE problem IS NOT NULL'), '0', 'default: which is not a problem of the guards');
foreach my $table (@all)
{
	my $row = $table eq 'part' ? '9, 1' : $table eq 'doc' ? '9, NULL' : '9';

	refused_with($s, "INSERT INTO $table VALUES ($row)", 'LL002', "default: a local write to $table is judged");
}
is($s->query_ok(q(SELECT relation, statement, reason, action, role = current_user, pid = pg_backend_pid() FROM lease_lock.rejections WHERE relation = 'doc'::regclass)),
	'doc|insert|no token|enforce|t|t', 'default: and recorded');

#
# session_replication_role = replica is such a writer too, as long as it is set.
#
my $replica = LeaseTest::Session->new($subscriber);
$replica->query_ok(q(BEGIN; SET LOCAL session_replication_role = replica;
INSERT INTO account VALUES (10, 'r'); INSERT INTO log VALUES (10, 'r'); INSERT INTO item VALUES (10, 'r');
INSERT INTO doc VALUES (10, NULL, 'r'); INSERT INTO part VALUES (10, 1, 'r');
UPDATE account SET note = 's' WHERE id = 10; DELETE FROM item WHERE id = 10; TRUNCATE part_2; COMMIT));
is($s->query_ok(q(SELECT count(*) FROM account WHERE note = 's')), '1', 'replica role: default guards do not fire');
refused_with($replica, q(UPDATE account SET note = 't' WHERE id = 10), 'LL002', 'replica role: after the transaction they do');
is($s->query_ok('SELECT count(*) FROM lease_lock.guards WHERE problem IS NOT NULL'), '0', 'replica role: the catalogs are as they were');
$s->query_ok('CREATE ROLE app; GRANT USAGE ON SCHEMA lease_lock TO app; GRANT SELECT, INSERT, UPDATE, DELETE, TRUNCATE ON ALL TABLES IN SCHEMA public TO app');
$s->query_ok('SET ROLE app');
refused_with($s, 'SET session_replication_role = replica', '42501', 'replica role: is not for everybody');
refused_with($s, 'ALTER TABLE account DISABLE TRIGGER zz_lease_lock_guard', '42501', 'nor is DISABLE TRIGGER');
$s->query_ok('RESET ROLE');
$s->query_ok('GRANT SET ON PARAMETER session_replication_role TO app');
is(problem_of('account'), 'can be switched off by app', 'replica role: guards tells who may set it');
$s->query_ok('REVOKE SET ON PARAMETER session_replication_role FROM app');
is(problem_of('account'), 'none', 'replica role: until he may no more');

#
# What a session leaves behind for the next client of its connection: nothing.
#
my $token = $replica->query_ok(q(SELECT lease_lock.acquire('job', 'A', ttl => '1 h')));
my $write = q(UPDATE account SET note = 'u' WHERE id = 10);
foreach my $how (
	[ 'present and COMMIT', "BEGIN; SELECT lease_lock.present('job', $token); $write; COMMIT" ],
	[ 'present and RESET ALL', "BEGIN; SELECT lease_lock.present('job', $token); RESET ALL; $write; COMMIT" ],
	[ 'bypass and COMMIT', "BEGIN; SELECT lease_lock.bypass('account', 'a test'); $write; COMMIT" ],
	[ 'bypass and ROLLBACK', "BEGIN; SELECT lease_lock.bypass('account', 'a test'); $write; ROLLBACK" ],
	[ 'bypass in a savepoint', "BEGIN; SAVEPOINT s; SELECT lease_lock.bypass('account', 'a test'); $write; RELEASE s; COMMIT" ],
	[ 'bypass and PREPARE', "BEGIN; SELECT lease_lock.bypass('account', 'a test'); $write; PREPARE TRANSACTION 'x'; COMMIT PREPARED 'x'" ],
	[ 'a replica for a transaction', "BEGIN; SET LOCAL session_replication_role = replica; $write; COMMIT" ],
	[ 'a replica and DISCARD ALL', "SET session_replication_role = replica; $write; DISCARD ALL" ],
	[ 'a setting of his own', "BEGIN; SELECT set_config('app.token', '$token', true); COMMIT" ])
{
	my ($what, $sql) = @$how;

	$replica->query_ok($sql);
	refused_with($replica, $write, 'LL002', "the next client: after $what he is refused");
}
$replica->query("SELECT set_config('lease_lock.token', '$token', false)");
refused_with($replica, $write, 'LL002', 'the next client: no setting presents a token');
$replica->quit;

#
# Guards that are off, or for replicated rows alone.
#
my %flag = ('DISABLE' => 'is disabled', 'ENABLE REPLICA' => 'fires for replicated rows only');
foreach my $how (sort keys %flag)
{
	$s->query_ok("ALTER TABLE account $how TRIGGER zz_lease_lock_guard");
	is(problem_of('account'), "zz_lease_lock_guard $flag{$how}; not guarded: insert, update, delete", "$how: guards says so");
	is($s->query_ok('SELECT relation FROM lease_lock.guards WHERE problem IS NOT NULL'), 'account', "$how: in the query that asks for all problems");
	refused_with($s, q(SELECT lease_lock.assert_guarded('account')), '55000', "$how: so does assert_guarded");
	$s->query_ok(q(BEGIN; UPDATE account SET note = 'v'; ROLLBACK));
	$s->query_ok("ALTER TABLE account $how TRIGGER zz_lease_lock_guard_truncate; ALTER TABLE account ENABLE TRIGGER zz_lease_lock_guard");
	is(problem_of('account'), "zz_lease_lock_guard_truncate $flag{$how}; not guarded: truncate", "$how: TRUNCATE alone");
	$s->query_ok("ALTER TABLE part_1 $how TRIGGER zz_lease_lock_guard");
	like(problem_of('part_1'), qr/^zz_lease_lock_guard $flag{$how}; not guarded: insert, update, delete/, "$how: a partition alone");
	$s->query_ok(q(SELECT lease_lock.guard('account', 'job'), lease_lock.guard('part', 'day/{day}')));
	is($s->query_ok('SELECT count(*) FROM lease_lock.guards WHERE problem IS NOT NULL'), '0', "$how: guard() again mends it");
}
# A guard for replicated rows alone does judge those.
$s->query_ok('ALTER TABLE item ENABLE REPLICA TRIGGER zz_lease_lock_guard');
my $offset = -s $subscriber->logfile;
publish('item', q(UPDATE item SET note = 'z' WHERE id = 1));
logged($offset, qr/ERROR:  LL002: no token presented for resource "row\/1"/, 'ENABLE REPLICA: applied rows are judged, and have no token');
$s->query_ok('ALTER TABLE item ENABLE TRIGGER zz_lease_lock_guard');
$publisher->wait_for_catchup('ordinary');
is($s->query_ok('SELECT note FROM item WHERE id = 1'), 'z', 'ENABLE TRIGGER: and apply goes on');
$s->query_ok('DROP SUBSCRIPTION ordinary');

#
# ENABLE ALWAYS on a token in a column, without a resource: each row is judged
# against the stored one, on the subscriber as well.
#
$_->query_ok(q(
CREATE TABLE carried (id int PRIMARY KEY, token bigint, note text);
CREATE TABLE pcarried (id int, day int, token bigint, note text, PRIMARY KEY (id, day)) PARTITION BY LIST (day);
CREATE TABLE pcarried_1 PARTITION OF pcarried FOR VALUES IN (1);
CREATE TABLE pcarried_2 PARTITION OF pcarried FOR VALUES IN (2);
SELECT lease_lock.guard_column('carried', 'token'), lease_lock.guard_column('pcarried', 'token'))) foreach ($p, $s);
enable_always('carried');
enable_always('pcarried');
$s->query_ok("ALTER TABLE pcarried_$_ ENABLE ALWAYS TRIGGER zz_lease_lock_guard_truncate") foreach 1, 2;
my $not_always = q(SELECT count(*) FROM pg_trigger WHERE tgname LIKE 'zz\_lease\_lock\_guard%' AND tgrelid::regclass::text ~ '^p?carried' AND tgenabled <> 'A');
is($s->query_ok($not_always), '0', 'ENABLE ALWAYS: all triggers of two guards and their partitions');

my $both = q(SELECT id, token, note FROM carried UNION ALL SELECT 100 * day + id, token, note FROM pcarried ORDER BY 1);
$p->query_ok(q(INSERT INTO carried VALUES (1, 10, 'a'), (2, 10, 'a'), (3, 10, 'a'); INSERT INTO pcarried VALUES (1, 1, 10, 'a'), (2, 2, 10, 'a'), (3, 1, 10, 'a')));
subscribe('carried', 'carried, pcarried');
$subscriber->wait_for_subscription_sync($publisher, 'carried');
is($s->query_ok($both), $p->query_ok($both), 'ENABLE ALWAYS: the first copy arrives');
foreach my $table (qw(carried pcarried pcarried_1))
{
	is(problem_of($table), 'none', "ENABLE ALWAYS: guards finds nothing wrong with $table");
}
is($s->query_ok(q(SELECT lease_lock.assert_guarded('carried') AND lease_lock.assert_guarded('pcarried'))), 't', 'ENABLE ALWAYS: nor does assert_guarded');
$worker = apply_pid('carried');
$p->query_ok(q(BEGIN; SELECT lease_lock.present('any', 11);
INSERT INTO carried VALUES (4, 11, 'b'); UPDATE carried SET token = 11, note = 'b' WHERE id = 1; UPDATE carried SET token = 11, note = 'c' WHERE id = 1;
INSERT INTO pcarried VALUES (4, 2, 11, 'b'); UPDATE pcarried SET token = 11, note = 'b' WHERE id = 1; UPDATE pcarried SET token = 11, day = 2 WHERE id = 3;
DELETE FROM carried WHERE id = 2; DELETE FROM pcarried WHERE id = 2; COMMIT));
$publisher->wait_for_catchup('carried');
is($s->query_ok($both), $p->query_ok($both), 'ENABLE ALWAYS: inserts, updates, deletes and moves to another partition arrive');
is($s->query_ok($both), "1|11|c\n3|10|a\n4|11|b\n101|11|b\n203|11|a\n204|11|b", 'ENABLE ALWAYS: as they were written');
publish('carried pcarried', 'TRUNCATE carried, pcarried');
$p->query_ok(q(INSERT INTO carried VALUES (1, 20, 'd'), (2, 20, 'd'); INSERT INTO pcarried VALUES (1, 1, 20, 'd')));
$publisher->wait_for_catchup('carried');
is($s->query_ok($both), "1|20|d\n2|20|d\n101|20|d", 'ENABLE ALWAYS: and so does TRUNCATE');
is(apply_pid('carried'), $worker, 'ENABLE ALWAYS: by one worker, which never stopped');
is(errors('carried'), '0', 'ENABLE ALWAYS: and never failed');

# Local writes are judged as ever.
refused_with($s, q(UPDATE carried SET token = 19), 'LL001', 'ENABLE ALWAYS: a local write with an older token is refused');
refused_with($s, q(DELETE FROM carried), 'LL002', 'ENABLE ALWAYS: so is a local DELETE without a token');
refused_with($s, q(TRUNCATE carried), 'LL002', 'ENABLE ALWAYS: and a local TRUNCATE');
refused_with($s, q(SET session_replication_role = replica; UPDATE carried SET token = 19), 'LL001', 'ENABLE ALWAYS: by a replica role too');
refused_with($s, q(DELETE FROM carried), 'LL002', 'ENABLE ALWAYS: also its DELETE');
$s->query_ok('RESET session_replication_role');

# A row that is older than the one it meets: apply stops, and says why.
my $refusals = q(SELECT relation, statement, token, newest, reason, action, count(*) > 0, sum(count) > 0, bool_and(pid <> pg_backend_pid())
FROM lease_lock.rejections WHERE pid NOT IN (SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend') AND relation = '%s'::regclass GROUP BY 1, 2, 3, 4, 5, 6);
my $row_1 = q(SELECT token, note FROM carried WHERE id = 1);
foreach my $table ('carried', 'pcarried')
{
	my $leaf = $table eq 'carried' ? 'carried' : 'pcarried_1';
	my $failed = errors('carried');
	my $row = "SELECT token, note FROM $table WHERE id = 1";

	$s->query_ok("UPDATE $table SET token = 1000, note = 'local' WHERE id = 1");
	$offset = -s $subscriber->logfile;
	$p->query_ok("BEGIN; UPDATE $table SET token = 21, note = 'late' WHERE id = 1; INSERT INTO carried VALUES (50, 21, '$table'); COMMIT");
	logged($offset, qr/ERROR:  LL001: stale token 21 in column "token" of a row of table "$leaf", the newest is 1000/, "an older row of $table: LL001 in the log of the subscriber");
	ok($subscriber->poll_query_until('postgres', "SELECT apply_error_count >= $failed + 2 FROM pg_stat_subscription_stats WHERE subname = 'carried'"), "an older row of $table: apply stops, and tries again");
	is($s->query_ok($row), '1000|local', "an older row of $table: does not get in");
	is($s->query_ok('SELECT count(*) FROM carried WHERE id = 50'), '0', "an older row of $table: nor does the rest of its transaction");
	is($s->query_ok(sprintf $refusals, $leaf), "$leaf|update|21|1000|stale|enforce|t|t|t", "an older row of $table: rejections shows it, as the worker's");
	is($s->query_ok("SELECT count >= 2 FROM lease_lock.rejection_counts WHERE relation = '$leaf'::regclass AND reason = 'stale' AND action = 'enforce'"), 't', "an older row of $table: and rejection_counts");

	if ($table eq 'carried')
	{
		# Skip that transaction, which the log names.
		my ($lsn) = slurp_file($subscriber->logfile, $offset) =~ /LL001: stale token 21.*?finished at ([0-9A-F]+\/[0-9A-F]+)/s;
		$s->query_ok("ALTER SUBSCRIPTION carried SKIP (lsn = '$lsn')");
		$publisher->wait_for_catchup('carried');
		is($s->query_ok($row), '1000|local', 'SKIP: the newer row stays');
		is($s->query_ok('SELECT count(*) FROM carried WHERE id = 50'), '0', 'SKIP: its transaction is skipped as a whole');
		publish('carried', 'DELETE FROM carried WHERE id = 50');
		$p->query_ok(q(UPDATE carried SET token = 1001, note = 'newer' WHERE id = 1));
		$publisher->wait_for_catchup('carried');
		is($s->query_ok($row), '1001|newer', 'SKIP: and apply goes on with what is newer');
	}
	else
	{
		# Or take away what it met.
		$s->query_ok("BEGIN; SELECT lease_lock.bypass('pcarried', 'the publisher is right'); UPDATE pcarried SET token = 20 WHERE id = 1; COMMIT");
		$publisher->wait_for_catchup('carried');
		is($s->query_ok($row), '21|late', 'the cause removed with bypass: apply goes on');
		is($s->query_ok('SELECT count(*) FROM carried WHERE id = 50'), '1', 'the cause removed with bypass: and nothing is lost');
	}
}

# A row without a token.
publish('carried', q(INSERT INTO carried VALUES (60, NULL, 'no token')));
ok($subscriber->poll_query_until('postgres', q(SELECT count(*) > 0 FROM lease_lock.rejections WHERE relation = 'carried'::regclass AND statement = 'insert' AND reason = 'no token')), 'a row without a token is refused');
is($s->query_ok('SELECT count(*) FROM carried WHERE id = 60'), '0', 'and does not get in');
like(slurp_file($subscriber->logfile, $offset), qr/ERROR:  LL002: no token in column "token" of a row of table "carried"/, 'as the log says');
$s->query_ok('ALTER TABLE carried ENABLE TRIGGER zz_lease_lock_guard');
$publisher->wait_for_catchup('carried');
is($s->query_ok('SELECT note FROM carried WHERE id = 60'), 'no token', 'with ENABLE TRIGGER it does');
enable_always('carried');

# A trigger of the subscriber that makes a row older after the check is caught.
$s->query_ok(q(
CREATE FUNCTION lower() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF new.note = 'lower' THEN new.token := 2; END IF; RETURN new; END $$;
CREATE TRIGGER zzz_lower BEFORE INSERT OR UPDATE ON carried FOR EACH ROW EXECUTE FUNCTION lower();
ALTER TABLE carried ENABLE ALWAYS TRIGGER zzz_lower));
is(problem_of('carried'), 'zzz_lower runs after the check and can change the row', 'a trigger behind the check: guards names it');
$offset = -s $subscriber->logfile;
$p->query_ok(q(UPDATE carried SET token = 1002, note = 'lower' WHERE id = 1));
logged($offset, qr/ERROR:  LL001: stale token 2 in column "token"/, 'a trigger behind the check: what it makes of an applied row is checked again');
is($s->query_ok($row_1), '1001|newer', 'a trigger behind the check: and does not get in');
$s->query_ok('DROP TRIGGER zzz_lower ON carried');
$publisher->wait_for_catchup('carried');
is($s->query_ok($row_1), '1002|lower', 'a trigger behind the check: without it apply goes on');

# Under 'warn' all is applied, and counted.
$s->query_ok(q(SELECT lease_lock.guard_column('carried', 'token', action => 'warn'), lease_lock.guard_column('pcarried', 'token', action => 'warn')));
is($s->query_ok($not_always), '0', 'warn: guard_column again leaves ENABLE ALWAYS as it is, on partitions too');
enable_always('pcarried');
$s->query_ok("ALTER TABLE pcarried_$_ ENABLE ALWAYS TRIGGER zz_lease_lock_guard_truncate") foreach 1, 2;
my $failed = errors('carried');
$p->query_ok("BEGIN; SELECT lease_lock.bypass('carried', 'a test'), lease_lock.bypass('pcarried', 'a test'); UPDATE carried SET token = 3 WHERE id = 1; UPDATE pcarried SET token = 3 WHERE id = 1; COMMIT");
$publisher->wait_for_catchup('carried');
is($s->query_ok(q(SELECT (SELECT token FROM carried WHERE id = 1), (SELECT token FROM pcarried WHERE id = 1))), '3|3', 'warn: older rows are applied');
is(errors('carried'), $failed, 'warn: without an error');
is($s->query_ok(q(SELECT relation, count FROM lease_lock.rejection_counts WHERE action = 'warn' AND reason = 'stale' ORDER BY relation::text)), "carried|1\npcarried_1|1", 'warn: and counted');
$s->query_ok('DROP SUBSCRIPTION carried');

# The first copy is judged as well.
$p->query_ok(q(CREATE TABLE copied (id int PRIMARY KEY, token bigint); INSERT INTO copied VALUES (1, 5), (2, NULL)));
$s->query_ok(q(CREATE TABLE copied (id int PRIMARY KEY, token bigint); SELECT lease_lock.guard_column('copied', 'token')));
enable_always('copied');
$offset = -s $subscriber->logfile;
subscribe('copied', 'copied');
logged($offset, qr/ERROR:  LL002: no token in column "token" of a row of table "copied"/, 'first copy: a row without a token is refused');
is($s->query_ok('SELECT count(*) FROM copied'), '0', 'first copy: nothing is copied');
$p->query_ok('UPDATE copied SET token = 6 WHERE id = 2');
$subscriber->wait_for_subscription_sync($publisher, 'copied');
is($s->query_ok('SELECT id, token FROM copied ORDER BY id'), "1|5\n2|6", 'first copy: with a token it is copied, by and by');
$s->query_ok('DROP SUBSCRIPTION copied');

#
# ENABLE ALWAYS on a guard that asks for a presented token: apply has none.  The
# log says what to do instead, and guards knows before it happens.
#
my $hint = qr/HINT:  Rows applied by logical replication present no token\. Let the guard fire for local writes alone \(ALTER TABLE \.\.\. ENABLE TRIGGER\), or use lease_lock\.guard_column without a resource\./;
my $trouble = qr/^it refuses the rows of a subscription, which present no token$/;
my %mode = (by_held => 'held', by_newest => 'newest');
foreach my $table (sort keys %mode)
{
	$p->query_ok("CREATE TABLE $table (id int PRIMARY KEY, note text)");
	$s->query_ok("CREATE TABLE $table (id int PRIMARY KEY, note text); SELECT lease_lock.guard('$table', 'row/{id}', mode => '$mode{$table}')");
	enable_always($table);
	is(problem_of($table), 'none', "$table: without a subscription ENABLE ALWAYS is no problem");
	subscribe($table, $table);
	$subscriber->wait_for_subscription_sync($publisher, $table);
	like(problem_of($table), $trouble, "$table: with one guards names it");
	refused_with($s, "SELECT lease_lock.assert_guarded('$table')", '55000', "$table: so does assert_guarded");
	$offset = -s $subscriber->logfile;
	$p->query_ok("INSERT INTO $table VALUES (1, 'x')");
	logged($offset, qr/ERROR:  LL002: no token presented for resource "row\/1".*?$hint/s, "$table: an applied row is refused, and the hint says what to do");
	is($s->query_ok("SELECT count(*) FROM $table"), '0', "$table: and does not get in");
	is($s->query_ok("SELECT statement, resource, reason, count(*) > 0 FROM lease_lock.rejections WHERE relation = '$table'::regclass GROUP BY 1, 2, 3"), 'insert|row/1|no token|t', "$table: as rejections shows");
	$s->query_ok("ALTER TABLE $table ENABLE TRIGGER zz_lease_lock_guard");
	$publisher->wait_for_catchup($table);
	is($s->query_ok("SELECT count(*) FROM $table"), '1', "$table: with ENABLE TRIGGER it does");
	$s->query_ok("ALTER TABLE $table ENABLE TRIGGER $_") foreach @triggers;
	is(problem_of($table), 'none', "$table: and all is well");
	$s->query_ok("DROP SUBSCRIPTION $table");
}

# A constant name is guarded once a statement, and apply runs none for its rows;
# it does for TRUNCATE and for the first copy.
$_->query_ok('CREATE TABLE constant (id int PRIMARY KEY)') foreach ($p, $s);
$p->query_ok('INSERT INTO constant VALUES (1)');
$s->query_ok(q(SELECT lease_lock.guard('constant', 'job')));
$s->query_ok("ALTER TABLE constant ENABLE ALWAYS TRIGGER $_") foreach @triggers[ 0, 2 ];
$offset = -s $subscriber->logfile;
subscribe('constant', 'constant');
logged($offset, qr/ERROR:  LL002: no token presented for resource "job".*?$hint/s, 'a constant name: the first copy is refused, with the same hint');
is($s->query_ok('SELECT count(*) FROM constant'), '0', 'a constant name: nothing is copied');
isnt(problem_of('constant'), 'none', 'a constant name: guards names it');
$s->query_ok('ALTER TABLE constant ENABLE TRIGGER zz_lease_lock_guard');
$subscriber->wait_for_subscription_sync($publisher, 'constant');
$s->query_ok('ALTER TABLE constant ENABLE ALWAYS TRIGGER zz_lease_lock_guard');
isnt(problem_of('constant'), 'none', 'a constant name: guards names it after the copy too');
$p->query_ok('INSERT INTO constant VALUES (2)');
$publisher->wait_for_catchup('constant');
is($s->query_ok('SELECT count(*) FROM constant'), '2', 'a constant name: applied rows are not judged');
$offset = -s $subscriber->logfile;
$p->query_ok('TRUNCATE constant');
logged($offset, qr/ERROR:  LL002: no token presented for resource "job".*?$hint/s, 'a constant name: TRUNCATE is');
$s->query_ok("ALTER TABLE constant ENABLE TRIGGER $_") foreach @triggers[ 0, 2 ];
$publisher->wait_for_catchup('constant');
is($s->query_ok('SELECT count(*) FROM constant'), '0', 'a constant name: with ENABLE TRIGGER it is applied');
$s->query_ok('DROP SUBSCRIPTION constant');

# With a resource a row's token must be of a lease that is held here.
$p->query_ok('CREATE TABLE leased (id int PRIMARY KEY, token bigint)');
$s->query_ok(q(CREATE TABLE leased (id int PRIMARY KEY, token bigint); SELECT lease_lock.guard_column('leased', 'token', resource => 'leased/{id}')));
enable_always('leased');
subscribe('leased', 'leased');
$subscriber->wait_for_subscription_sync($publisher, 'leased');
is(problem_of('leased'), 'it refuses the rows of a subscription, which present no token', 'a column with a resource: guards names it');
$offset = -s $subscriber->logfile;
my $held = $p->query_ok(q(SELECT lease_lock.acquire('leased/1', 'A')));
$p->query_ok("INSERT INTO leased VALUES (1, $held)");
logged($offset, qr/ERROR:  LL004: unknown token $held for resource "leased\/1"/, 'a column with a resource: a lease of the publisher is not known here');
$s->query_ok("ALTER TABLE leased ENABLE TRIGGER $_") foreach @triggers;
$publisher->wait_for_catchup('leased');
is($s->query_ok('SELECT token FROM leased'), $held, 'a column with a resource: with ENABLE TRIGGER the row arrives');
$s->query_ok('DROP SUBSCRIPTION leased');

$_->quit foreach ($p, $s);
$_->stop foreach ($subscriber, $publisher);
done_testing();
