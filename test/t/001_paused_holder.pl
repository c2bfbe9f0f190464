# A worker that was paused past its lease cannot harm the data: whatever it
# tries under its old token is refused, and what its successor wrote stays.

use strict;
use warnings;

use FindBin;
use lib $FindBin::Bin;

use LeaseTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = lease_server('main');
my $dba = LeaseTest::Session->new($node);

$dba->query_ok(q(
CREATE TABLE account (id int PRIMARY KEY, balance int, written_by text);
CREATE TABLE branch (id int PRIMARY KEY, balance int, written_by text);
CREATE TABLE parent (id int PRIMARY KEY);
CREATE TABLE child (id int PRIMARY KEY, parent int REFERENCES parent ON DELETE CASCADE, written_by text);
CREATE TABLE log (id int PRIMARY KEY, balance int, written_by text);
CREATE TABLE source (id int, balance int);
INSERT INTO source VALUES (1, 150), (2, 150), (5, 150);
INSERT INTO parent VALUES (1);
SELECT lease_lock.guard('account', 'job');
SELECT lease_lock.guard('branch', 'job/{id}');
SELECT lease_lock.guard('child', 'job');
SELECT lease_lock.guard('log', 'job', mode => 'newest');
));

# Whatever a worker may try on a table of id, balance and written_by.
my @writes = (
	[ 'UPDATE of the same row', q(UPDATE %s SET balance = 150, written_by = 'A' WHERE id = 1) ],
	[ 'UPDATE of another row', q(UPDATE %s SET balance = 150, written_by = 'A' WHERE id = 2) ],
	[ 'INSERT', q(INSERT INTO %s VALUES (3, 150, 'A')) ],
	[ 'DELETE', q(DELETE FROM %s) ],
	[ 'ON CONFLICT DO UPDATE', q(INSERT INTO %s VALUES (1, 150, 'A') ON CONFLICT (id) DO UPDATE SET balance = 150) ],
	[ 'ON CONFLICT DO NOTHING', q(INSERT INTO %s VALUES (3, 150, 'A') ON CONFLICT DO NOTHING) ],
	[ 'MERGE that updates', q(MERGE INTO %s t USING source s ON t.id = s.id WHEN MATCHED THEN UPDATE SET balance = s.balance) ],
	[ 'MERGE that inserts', q(MERGE INTO %s t USING source s ON t.id = s.id WHEN NOT MATCHED THEN INSERT VALUES (s.id, s.balance, 'A')) ],
	[ 'MERGE that deletes', q(MERGE INTO %s t USING source s ON t.id = s.id WHEN MATCHED THEN DELETE) ],
	[ 'COPY', "COPY %s FROM STDIN;\n4\t150\tA\n\\." ],
	[ 'TRUNCATE', q(TRUNCATE %s) ],
	[ 'UPDATE ... FROM', q(UPDATE %s t SET balance = s.balance FROM source s WHERE s.id = t.id) ],
	[ 'a data-modifying CTE', q(WITH w AS (UPDATE %s SET balance = 150 RETURNING id) SELECT count(*) FROM w) ],
);

sub content
{
	my ($table) = @_;
	return $dba->query_ok("SELECT string_agg(t::text, ' ' ORDER BY id) FROM $table t");
}

# A, with its old token, tries everything; nothing may change.
sub try_all
{
	my ($worker, $token, $resource, $table, $state, $text, $what) = @_;
	my $before = content($table);

	foreach my $level ('READ COMMITTED', 'REPEATABLE READ', 'SERIALIZABLE')
	{
		foreach my $write (@writes)
		{
			my ($name, $sql) = @$write;
			# TRUNCATE names no row, so a template refuses it for that reason.
			my $expected = $table eq 'branch' && $name eq 'TRUNCATE' ? 'LL002' : $state;

			$worker->query_ok("BEGIN ISOLATION LEVEL $level");
			$worker->query_ok("SELECT lease_lock.present('$resource', $token)");
			$worker->query(sprintf($sql, $table));
			is($worker->state, $expected, "$what: $name is refused ($level)") or diag($worker->errors);
			like($worker->errors, $text, "$what: $name says why ($level)") if $expected eq $state;
			$worker->query('COMMIT');
		}
	}
	is(content($table), $before, "$what: the data is as it was");
	return;
}

#
# An idle client is stopped, and with it everything that it would do.
#
my $paused = LeaseTest::Session->new($node);
my $next = LeaseTest::Session->new($node);

my $token_a = $paused->query_ok(q(SELECT lease_lock.acquire('job', 'worker A', ttl => '1 s')));
$paused->query_ok(qq(BEGIN; SELECT lease_lock.present('job', $token_a);
INSERT INTO account VALUES (1, 100, 'A'), (2, 100, 'A'); INSERT INTO log VALUES (1, 100, 'A'), (2, 100, 'A');
INSERT INTO child VALUES (1, 1, 'A'); COMMIT));
my $branch_a = $paused->query_ok(q(SELECT lease_lock.acquire('job/1', 'worker A', ttl => '1 s')));
$paused->query_ok(qq(BEGIN; SELECT lease_lock.present('job/1', $branch_a); INSERT INTO branch VALUES (1, 100, 'A'); COMMIT));

signal_backend('STOP', $paused->client);
$paused->send(qq(BEGIN; SELECT lease_lock.present('job', $token_a); UPDATE account SET balance = 150, written_by = 'A'; COMMIT));
ok(wait_true($dba, q(SELECT count(*) = 2 FROM lease_lock.holders WHERE state = 'expired')),
	'the lease of the stopped client expires');
ok(!$paused->ready, 'the stopped client does nothing');

my $token_b = $next->query_ok(q(SELECT lease_lock.acquire('job', 'worker B', ttl => '1 h')));
my $branch_b = $next->query_ok(q(SELECT lease_lock.acquire('job/1', 'worker B', ttl => '1 h')));
cmp_ok($token_b, '>', $token_a, 'the next token is larger');
$next->query_ok(qq(BEGIN; SELECT lease_lock.present('job', $token_b), lease_lock.present('job/1', $branch_b);
UPDATE account SET balance = 200, written_by = 'B'; UPDATE log SET balance = 200, written_by = 'B';
UPDATE branch SET balance = 200, written_by = 'B'; UPDATE child SET written_by = 'B'; COMMIT));

signal_backend('CONT', $paused->client);
$paused->result;
is($paused->state, 'LL001', 'what the client had ready when it was stopped is refused');
is(content('account'), '(1,200,B) (2,200,B)', 'what B wrote is there');

my $stale = qr/stale token $token_a for resource "job", the newest is $token_b/;
try_all($paused, $token_a, 'job', 'account', 'LL001', $stale, 'superseded, by statement');
try_all($paused, $token_a, 'job', 'log', 'LL001', $stale, 'superseded, mode newest');

# A row-level guard sees only rows that there are; A's token is for row 1.
$paused->query_ok(qq(BEGIN; SELECT lease_lock.present('job/1', $branch_a)));
refused_with($paused, 'UPDATE branch SET balance = 150', 'LL001', 'superseded, by row: UPDATE is refused');
like($paused->errors, qr/stale token $branch_a for resource "job\/1", the newest is $branch_b/, '... and says why');
like($paused->detail, qr/"worker B" holds it under token $branch_b until /, '... and names the holder');
$paused->query('ROLLBACK');
foreach my $sql (
	q(DELETE FROM branch), q(INSERT INTO branch VALUES (1, 150, 'A')),
	q(INSERT INTO branch VALUES (1, 150, 'A') ON CONFLICT (id) DO UPDATE SET balance = 150),
	q(MERGE INTO branch t USING source s ON t.id = s.id WHEN MATCHED THEN DELETE),
	q(MERGE INTO branch t USING source s ON t.id = s.id WHEN MATCHED THEN UPDATE SET balance = 150),
	"COPY branch FROM STDIN;\n1\t150\tA\n\\.")
{
	$paused->query_ok(qq(BEGIN; SELECT lease_lock.present('job/1', $branch_a)));
	refused_with($paused, $sql, 'LL001', 'superseded, by row: ' . (split(' ', $sql))[0] . ' is refused');
	$paused->query('COMMIT');
}
is(content('branch'), '(1,200,B)', 'the data of B is intact, by row');

# Ways to reach a guarded table through another one.
foreach my $sql ('DELETE FROM parent', 'TRUNCATE parent CASCADE')
{
	$paused->query_ok(qq(BEGIN; SELECT lease_lock.present('job', $token_a)));
	refused_with($paused, $sql, 'LL001', "$sql that reaches a guarded child is refused");
	$paused->query('COMMIT');
}
is(content('child'), '(1,1,B)', 'the child is intact');
is(content('parent'), '(1)', 'so is its parent');

# What else the old token is good for: nothing.
is($paused->query_ok("SELECT lease_lock.renew('job', $token_a)"), '', 'the old token renews nothing');
is($paused->query_ok("SELECT lease_lock.release('job', $token_a)"), 'f', 'the old token releases nothing');
refused_with($paused, "SELECT lease_lock.assert_held('job', $token_a)", 'LL001', 'assert_held refuses the old token');
is($paused->query_ok("SELECT state, newest, holder FROM lease_lock.token_status('job', $token_a)"),
	"superseded|$token_b|worker B", 'token_status tells what became of it');
is($next->query_ok("SELECT lease_lock.assert_held('job', $token_b) > '50 min'"), 't', 'the lease of B is untouched');

#
# Its backend is stopped in mid-transaction, before its first write.
#
foreach my $level ('READ COMMITTED', 'REPEATABLE READ', 'SERIALIZABLE')
{
	my $name = "mid $level";
	my $old = $paused->query_ok("SELECT lease_lock.acquire('$name', 'worker A', ttl => '200 ms')");

	$dba->query_ok("SELECT lease_lock.unguard('account'); SELECT lease_lock.guard('account', '$name')");
	$paused->query_ok("BEGIN ISOLATION LEVEL $level; SELECT lease_lock.present('$name', $old); SELECT count(*) FROM account");
	signal_backend('STOP', $paused->pid);
	$paused->send(q(UPDATE account SET balance = 150, written_by = 'A' WHERE id = 1));
	my $new = $next->query_ok("SELECT lease_lock.acquire('$name', 'worker B', ttl => '1 h', wait => '30 s')");
	$next->query_ok("BEGIN; SELECT lease_lock.present('$name', $new); UPDATE account SET balance = balance + 1, written_by = 'B'; COMMIT");
	my $before = content('account');
	signal_backend('CONT', $paused->pid);
	$paused->result;
	is($paused->state, 'LL001', "stopped in a $level transaction: the write is refused");
	$paused->query('COMMIT');
	is(content('account'), $before, "stopped in a $level transaction: the data of B is intact");
}

#
# Its backend is stopped in mid-transaction, after a write: what it checked
# holds to the end of its transaction, and nobody is granted before that.
#
$dba->query_ok(q(SELECT lease_lock.unguard('account'); SELECT lease_lock.guard('account', 'open')));
my $old = $paused->query_ok(q(SELECT lease_lock.acquire('open', 'worker A', ttl => '300 ms')));
$paused->query_ok("BEGIN; SELECT lease_lock.present('open', $old); UPDATE account SET balance = 1, written_by = 'A' WHERE id = 1");
signal_backend('STOP', $paused->pid);
ok(wait_true($dba, q(SELECT state = 'expired' FROM lease_lock.holders WHERE resource = 'open')),
	'the lease expires under an open transaction');
is($next->query_ok(q(SELECT lease_lock.try_acquire('open', 'worker B'))), '', 'try_acquire gives NULL while a write is in flight');
$next->send(q(SELECT lease_lock.acquire('open', 'worker B', ttl => '1 h', wait => '60 s')));
ok(wait_true($dba, q(SELECT waiters = 1 FROM lease_lock.holders WHERE resource = 'open')), 'acquire waits for it');
signal_backend('CONT', $paused->pid);
$paused->query_ok(q(UPDATE account SET balance = 2, written_by = 'A' WHERE id = 2));
is($paused->state, '', 'a check that was made once holds past the expiry');
ok(!$next->ready, 'acquire still waits');
$paused->query_ok('COMMIT');
my $new = $next->result;
cmp_ok($new, '>', $old, 'acquire is granted when the transaction has ended');
is($next->query_ok('SELECT string_agg(t::text, \' \' ORDER BY id) FROM account t'), '(1,1,A) (2,2,A)',
	'and whoever was granted sees what it wrote');
$paused->query_ok("BEGIN; SELECT lease_lock.present('open', $old)");
refused_with($paused, 'UPDATE account SET balance = 3', 'LL001', 'its next transaction is refused');
$paused->query('COMMIT');

# What a savepoint takes back is in nobody's way, though its transaction goes on.
$old = $paused->query_ok(q(SELECT lease_lock.acquire('open', 'worker B', ttl => '300 ms')));
$paused->query_ok("BEGIN; SAVEPOINT s; SELECT lease_lock.present('open', $old); UPDATE account SET balance = 4");
ok(wait_true($dba, q(SELECT state = 'expired' FROM lease_lock.holders WHERE resource = 'open')),
	'the lease expires under a savepoint');
$next->send(q(SELECT lease_lock.acquire('open', 'worker C', ttl => '1 h', wait => '10 min')));
ok(wait_true($dba, q(SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = ) . $next->pid), 'acquire waits');
$paused->query_ok('ROLLBACK TO s');
cmp_ok($next->result, '>', $old, 'and is granted after ROLLBACK TO, before the transaction ends');
$paused->query_ok('COMMIT');

#
# The gap: expired, and nobody has acquired since.
#
$dba->query_ok(q(SELECT lease_lock.unguard('account'); SELECT lease_lock.guard('account', 'gap');
SELECT lease_lock.unguard('log'); SELECT lease_lock.guard('log', 'gap', mode => 'newest')));
$token_a = $paused->query_ok(q(SELECT lease_lock.acquire('gap', 'worker A', ttl => '100 ms')));
ok(wait_true($dba, q(SELECT state = 'expired' FROM lease_lock.holders WHERE resource = 'gap')), 'the lease expires');
try_all($paused, $token_a, 'gap', 'account', 'LL003',
	qr/lease on resource "gap" is not held any more under token $token_a/, 'expired');
refused_with($paused, "SELECT lease_lock.assert_held('gap', $token_a)", 'LL003', 'expired: assert_held refuses');
is($paused->query_ok("SELECT lease_lock.renew('gap', $token_a)"), '', 'expired: renew revives nothing');
$paused->query_ok("BEGIN; SELECT lease_lock.present('gap', $token_a); UPDATE log SET balance = 300; COMMIT");
is(content('log'), '(1,300,B) (2,300,B)', 'mode newest accepts the token until it has seen a newer one');

# Released: the same, with another word.
$token_b = $next->query_ok(q(SELECT lease_lock.acquire('gap', 'worker B', ttl => '1 h')));
$next->query_ok("SELECT lease_lock.release('gap', $token_b)");
$next->query_ok("BEGIN; SELECT lease_lock.present('gap', $token_b)");
refused_with($next, 'UPDATE account SET balance = 4', 'LL003', 'released: the write is refused');
like($next->detail, qr/was released/, 'released: the detail says so');
$next->query('COMMIT');
$paused->query_ok("BEGIN; SELECT lease_lock.present('gap', $token_a)");
refused_with($paused, 'UPDATE log SET balance = 4', 'LL001', 'mode newest refuses the older token once a newer one was granted');
$paused->query('COMMIT');

#
# No token at all, after a commit in the same backend.
#
refused_with($paused, 'UPDATE account SET balance = 5', 'LL002', 'a token is forgotten at the end of its transaction');

$_->quit foreach ($paused, $next, $dba);
$node->stop;
done_testing();
