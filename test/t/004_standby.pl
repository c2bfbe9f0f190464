# A hot standby can be asked who holds what and changes nothing, and neither
# does a read-only transaction.  After a promotion the first token is larger
# than every token of the old primary, those included that never arrived.

use strict;
use warnings;

use FindBin;
use lib $FindBin::Bin;

use LeaseTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $primary = lease_server('primary', '', allows_streaming => 1);
$primary->backup('backup');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($primary, 'backup', has_streaming => 1);
$standby->start;

my $p = LeaseTest::Session->new($primary);
my $held = $p->query_ok(q(SELECT lease_lock.acquire('held', 'A', ttl => '1 h', payload => '{"at": "work"}')));
my $ended = $p->query_ok(q(SELECT lease_lock.acquire('ended', 'A', ttl => '1 h')));
$p->query_ok("SELECT lease_lock.release('ended', $ended)");
$p->query_ok(q(CREATE TABLE account (id int); SELECT lease_lock.guard('account', 'fenced', mode => 'newest');
BEGIN; SELECT lease_lock.present('fenced', 77); INSERT INTO account VALUES (1); COMMIT));
$primary->wait_for_catchup('standby');

#
# On the standby.
#
my $s = LeaseTest::Session->new($standby);
is($s->query_ok('SELECT pg_is_in_recovery()'), 't', 'a hot standby');
is($s->query_ok('SELECT resource, owner, token, state, scope, payload FROM lease_lock.holders'), "held|A|$held|held|lease|{\"at\": \"work\"}",
	'holders is readable on a standby');
is($s->query_ok(q(SELECT highest, mode FROM lease_lock.fences WHERE name = 'fenced')), '77|newest', 'so is fences');
is($s->query_ok("SELECT state, newest, holder, remaining > '30 min' FROM lease_lock.token_status('held', $held)"), "held|$held|A|t", 'token_status of a held lease');
is($s->query_ok("SELECT state FROM lease_lock.token_status('ended', $ended)"), 'released', 'token_status of a released one');
is($s->query_ok(q(SELECT state FROM lease_lock.token_status('never', 1))), 'unknown', 'token_status of an unknown one');

my %mutating = (
	acquire => q(SELECT lease_lock.acquire('held', 'B', wait => '0')),
	'acquire of a new name' => q(SELECT lease_lock.acquire('new', 'B')),
	try_acquire => q(SELECT lease_lock.try_acquire('held', 'B')),
	'try_acquire of a new name' => q(SELECT lease_lock.try_acquire('new', 'B')),
	renew => "SELECT lease_lock.renew('held', $held)",
	'renew of a released lease' => "SELECT lease_lock.renew('ended', $ended)",
	release => "SELECT lease_lock.release('held', $held)",
	'release of a released lease' => "SELECT lease_lock.release('ended', $ended)",
	force_release => q(SELECT lease_lock.force_release('held', 'a test')),
	prune => q(SELECT lease_lock.prune('0')),
	guard => q(SELECT lease_lock.guard('account', 'x')),
	guard_column => q(SELECT lease_lock.guard_column('account', 'id')),
	unguard => q(SELECT lease_lock.unguard('account')),
);
foreach my $call (sort keys %mutating)
{
	refused_with($s, $mutating{$call}, '25006', "$call is refused on a standby");
}
refused_with($s, "SELECT lease_lock.assert_held('held', $held)", '25006', 'assert_held is refused on a standby');

#
# In a read-only transaction on the primary.
#
foreach my $call (sort keys %mutating)
{
	$p->query_ok('BEGIN READ ONLY');
	refused_with($p, $mutating{$call}, '25006', "$call is refused in a read-only transaction");
	$p->query('ROLLBACK');
}
$p->query_ok('BEGIN READ ONLY');
is($p->query_ok('SELECT resource FROM lease_lock.holders'), 'held', 'holders is readable in a read-only transaction');
is($p->query_ok(q(SELECT highest FROM lease_lock.fences WHERE name = 'fenced')), '77', 'so is fences');
is($p->query_ok("SELECT state FROM lease_lock.token_status('held', $held)"), 'held', 'so is token_status');
$p->query_ok('COMMIT');
is($p->query_ok("SELECT state FROM lease_lock.token_status('held', $held)"), 'held', 'nothing was changed');

#
# A failover: tokens that the standby never saw, in a database that has granted
# before and in one that had not.
#
$primary->safe_psql('postgres', 'CREATE DATABASE fresh');
$primary->safe_psql('fresh', 'CREATE EXTENSION lease_lock');
$primary->wait_for_catchup('standby');
$standby->stop('fast');

my $lost = $p->query_ok(q(SELECT lease_lock.acquire('lost', 'A', ttl => '1 h')));
$lost = $p->query_ok(q(SELECT max(lease_lock.acquire('lost/' || i, 'A', ttl => '1 h')) FROM generate_series(1, 5000) AS i));
my $taken = $p->query_ok(q(SELECT lease_lock.force_release('held', 'a test')));
my $newest = $p->query_ok(q(SELECT lease_lock.acquire('held', 'B', ttl => '1 h')));
my $lost_fresh = $primary->safe_psql('fresh', q(SELECT max(lease_lock.acquire('first/' || i, 'A')) FROM generate_series(1, 50) AS i));
$p->quit;
$primary->stop('immediate');
cmp_ok($newest, '>', $lost, 'the old primary went on');

$s->quit;
$standby->start;
$s = LeaseTest::Session->new($standby);
my $other = LeaseTest::Session->new($standby, dbname => 'fresh');
is($s->query_ok(q(SELECT token FROM lease_lock.holders WHERE resource = 'held')), $held, 'the standby has not heard of it');
refused_with($_, q(SELECT lease_lock.acquire('early', 'C')), '25006', 'a session from before the promotion is refused') foreach ($s, $other);
$standby->promote;

# Both sessions connected before it.
my $first = $s->query_ok(q(SELECT lease_lock.acquire('first', 'C', ttl => '1 h')));
cmp_ok($first, '>', $newest, 'the first token is larger than all of the old primary');
cmp_ok($first, '<', 2**53, 'and an exact integer to JavaScript');
my $second = $s->query_ok(q(SELECT lease_lock.acquire('second', 'C', ttl => '1 h')));
is($second, $first + 1, 'the jump is made once');
my $first_fresh = $other->query_ok(q(SELECT lease_lock.acquire('first/1', 'C', ttl => '1 h')));
cmp_ok($first_fresh, '>', $lost_fresh, 'so it is in a database that had granted nothing before');
is($other->query_ok(q(SELECT lease_lock.try_acquire('first/2', 'C', ttl => '1 h'))), $first_fresh + 1, 'once as well');
is($s->query_ok("SELECT state FROM lease_lock.token_status('held', $held)"), 'held', 'a lease that had arrived is still held');
isnt($s->query_ok("SELECT lease_lock.renew('held', $held)"), '', 'and can be renewed');

# A rollback neither takes a jump back nor makes another.
$s->query_ok(q(BEGIN; SELECT lease_lock.acquire('rolled back', 'C'); ROLLBACK));
my $third = $s->query_ok(q(SELECT lease_lock.acquire('third', 'C')));
cmp_ok($third, '>', $second, 'tokens go on upwards');
cmp_ok($third, '<', $second + 100, 'without another jump');
$_->quit foreach ($s, $other);

# A restart is no move.
$standby->restart;
my $after = $standby->safe_psql('postgres', q(SELECT lease_lock.acquire('after', 'C')));
cmp_ok($after, '>', $third, 'upwards after a restart');
cmp_ok($after, '<', $third + 100, 'without a jump');

# Once more: the first grant after this promotion is rolled back, and made by
# many sessions at the same time.
$standby->backup('backup 2');
my $third_node = PostgreSQL::Test::Cluster->new('third');
$third_node->init_from_backup($standby, 'backup 2', has_streaming => 1);
$third_node->start;
$standby->wait_for_catchup('third');
$third_node->stop('fast');
my $unseen = $standby->safe_psql('postgres', q(SELECT max(lease_lock.acquire('unseen/' || i, 'C')) FROM generate_series(1, 100) AS i));
$standby->stop('immediate');
$third_node->start;
my @sessions = map { LeaseTest::Session->new($third_node) } 1 .. 6;
$third_node->promote;
$sessions[0]->query_ok(q(BEGIN; SELECT lease_lock.acquire('rolled back', 'D'); ROLLBACK));
my $n = 0;
$_->send(q(SELECT lease_lock.acquire('at once/) . $n++ . q(', 'D', wait => '60 s'))) foreach @sessions;
my @tokens = sort { $a <=> $b } map { $_->result } @sessions;
cmp_ok($tokens[0], '>', $unseen, 'all tokens are larger than those of the old primary');
cmp_ok($tokens[-1] - $tokens[0], '<', 100, 'after one jump');
my %distinct = map { $_ => 1 } @tokens;
is(scalar keys %distinct, 6, 'and distinct');
is($_->state, '', 'no error') foreach @sessions;

$_->quit foreach @sessions;
$third_node->stop;
done_testing();
