# Whatever is restored, and into what, the next grant is larger than every token
# that the server which the copy came from has granted and than every token that
# a fence in it has accepted; what was guarded is guarded; and token_state says
# why tokens jumped.  Dumps into new and old databases, a base backup recovered
# to three kinds of targets, templates, older copies of single tables, guarded
# rows restored under their guards, and tables that are swapped and renamed.
#
# A sequence alone fails all of it but the single tables: every copy goes on
# from where the copy was made.  A counter in the row fails those as well.

use strict;
use warnings;

use FindBin;
use lib $FindBin::Bin;

use LeaseTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = lease_server('main', "wal_keep_size = 1GB\n", allows_streaming => 1, has_archiving => 1);
my $dba = LeaseTest::Session->new($node);
my $dir = $PostgreSQL::Test::Utils::tmp_check;

# A token from elsewhere that a fence accepts.
my $outside = 1_000_000_000;

# The highest token that the first database granted, kept outside of it.
my $granted = 0;

sub grant
{
	my ($session, $resource) = @_;
	my $token = $session->query_ok("SELECT lease_lock.acquire('$resource', 'A', ttl => '1 h')");

	$granted = $token if $session == $dba;
	return $token;
}

sub write_guarded
{
	my ($session, $table, $resource, $token) = @_;
	my $state;

	$session->query("BEGIN; SELECT lease_lock.present('$resource', $token); INSERT INTO $table VALUES (1, 'x')");
	$state = $session->state;
	$session->query('COMMIT');
	return $state;
}

$dba->query_ok(q(
CREATE TABLE account (id int, note text);
CREATE TABLE log (id int, note text);
CREATE TABLE doc (id int, token bigint);
SELECT lease_lock.guard('account', 'job'), lease_lock.guard('log', 'log', mode => 'newest'), lease_lock.guard_column('doc', 'token');
CREATE TABLE extern (id int, note text);
SELECT lease_lock.guard('extern', 'extern', mode => 'newest');
));
my $job = grant($dba, 'job');
my $log = grant($dba, 'log');
$dba->query_ok("BEGIN; SELECT lease_lock.present('job', $job), lease_lock.present('log', $log), lease_lock.present('extern', $outside);
INSERT INTO account VALUES (1, 'x'); INSERT INTO log VALUES (1, 'x'); INSERT INTO extern VALUES (1, 'x'); INSERT INTO doc VALUES (1, 5); COMMIT");

# What must hold in a copy that went another way than the first.  The first goes
# on first: its newest tokens are those that no copy knows.
sub first_goes_on
{
	my ($before) = $granted;

	$dba->query_ok(q(SELECT count(lease_lock.acquire('more/' || i, 'A', ttl => '1 h')) FROM generate_series(1, 200) AS i));
	grant($dba, 'log');
	write_guarded($dba, 'log', 'log', $granted);
	grant($dba, 'job');
	cmp_ok($granted, '>', $before + 200, 'the first database goes on');
	return;
}

sub guarded
{
	my ($s, $what) = @_;

	refused_with($s, "INSERT INTO $_ VALUES (9, NULL)", 'LL002', "$what: $_ is guarded") foreach qw(account log doc extern);
	refused_with($s, "TRUNCATE $_", 'LL002', "$what: $_ against TRUNCATE too") foreach qw(account log extern);
	return;
}

sub guarded_in
{
	my ($db) = @_;
	my $s = LeaseTest::Session->new($node, dbname => $db);

	guarded($s, $db);
	$s->quit;
	return;
}

sub goes_on
{
	my ($s, $what, $reason, $before) = @_;

	$before //= $granted;
	my $fence = $s->query_ok('SELECT max(highest) FROM lease_lock.fence');

	is($s->query_ok('SELECT moved FROM lease_lock.token_state'), 't', "$what: token_state tells that tokens will jump");
	my $first = grant($s, 'after');
	cmp_ok($first, '>', $before, "$what: the next token is above all of the first database");
	cmp_ok($first, '>=', $fence, "$what: and above what any fence accepted");
	cmp_ok($first, '>', $outside, "$what: those from elsewhere included");
	cmp_ok($first, '<', 2**53, "$what: and an exact integer to JavaScript");
	is(grant($s, 'after 2'), $first + 1, "$what: after one jump");
	like($s->query_ok('SELECT moved, jump_reason FROM lease_lock.token_state'), qr/^f\|$reason/, "$what: token_state tells why");
	is($s->query_ok('SELECT jumped_to, last_token - 1 FROM lease_lock.token_state'),
		($first - 1) . "|$first", "$what: and to where");
	# Tokens of later days of the first database, in this one.
	$s->query_ok("BEGIN; SELECT lease_lock.present('job', $before)");
	$s->query('INSERT INTO account VALUES (2, NULL)');
	like($s->state, qr/^LL00[14]$/, "$what: a token that this database never granted is refused");
	$s->query('ROLLBACK');
	my $again = grant($s, 'log');
	cmp_ok($again, '>', $first, "$what: the log's name goes on upwards");
	is(write_guarded($s, 'log', 'log', $again), '', "$what: its holder can write");
	is(write_guarded($s, 'log', 'log', $before), 'LL001', "$what: a token of the first database is stale then");
	guarded($s, $what);
	return $again;
}

guarded($dba, 'first');

#
# pg_dump and pg_restore into a new database.
#
sub pg_dump
{
	my ($file, @options) = @_;

	$node->command_ok([ 'pg_dump', '--format=custom', "--file=$dir/$file", @options, '-d', $node->connstr('postgres') ], "pg_dump: $file");
	return;
}

# With what pg_restore wrote to stderr, and whether it failed.
sub pg_restore
{
	my ($db, @args) = @_;
	my ($out, $err);
	my $ok = IPC::Run::run([ 'pg_restore', '-d', $node->connstr($db), @args ], '>', \$out, '2>', \$err);

	return ($ok, $err);
}

sub pg_restore_ok
{
	my ($what, $db, @args) = @_;
	my ($ok, $err) = pg_restore($db, @args);

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	ok($ok, $what) or diag($err);
	is($err, '', "$what: in silence");
	return;
}

pg_dump('whole');
pg_dump('schema', '--schema-only');
pg_dump('data', '--data-only');
pg_dump('rows', '--data-only', '--schema=public');
pg_dump('state', '--data-only', '--schema=lease_lock', '--extension=lease_lock');
my $old_lease = $dba->query_ok('COPY lease_lock.lease TO STDOUT');
my $old_fence = $dba->query_ok('COPY lease_lock.fence TO STDOUT');
my $rows = 'SELECT (SELECT count(*) FROM account), (SELECT count(*) FROM log), (SELECT count(*) FROM doc), (SELECT count(*) FROM extern)';
my $in_dump = $dba->query_ok($rows);
my $fences = 'SELECT name, highest, accepted_at FROM lease_lock.fence ORDER BY 1';
my $seen = $dba->query_ok($fences);

# A base backup, before anything else is granted, and targets behind it.
$node->backup('base');
grant($dba, 'in WAL only');
$node->safe_psql('postgres', q(SELECT pg_create_restore_point('a name')));
my $xid = $dba->query_ok('BEGIN; CREATE TABLE marker (); SELECT pg_current_xact_id()');
$dba->query_ok('COMMIT');
my $lsn = $dba->query_ok('SELECT pg_current_wal_insert_lsn()');
first_goes_on();

$node->safe_psql('postgres', 'CREATE DATABASE new_db');
pg_restore_ok('pg_restore into a new database', 'new_db', '--exit-on-error', "$dir/whole");
my $s = LeaseTest::Session->new($node, dbname => 'new_db');
is($s->query_ok($fences), $seen, 'new database: its fences have seen what those in the dump had');
goes_on($s, 'new database', 'restored from a dump');

#
# Into the same database, after DROP EXTENSION: all of the dump, and only what
# went with the extension.
#
$s->query_ok(q(SELECT count(lease_lock.acquire('more/' || i, 'A')) FROM generate_series(1, 50) AS i));
my $newest = grant($s, 'newest of new_db');
$s->query_ok('SET client_min_messages = warning; DROP EXTENSION lease_lock CASCADE');
$s->query_ok(q(INSERT INTO account VALUES (2, 'without a guard')));
my ($listed, $list);
IPC::Run::run([ 'pg_restore', '--list', "$dir/whole" ], '>', \$listed);
$list = join "\n", grep { /EXTENSION - lease_lock|EXTENSION lease_lock| lease_lock |TRIGGER/ } split /\n/, $listed;
append_to_file("$dir/list", "$list\n");
pg_restore_ok('pg_restore of the extension alone into the same database', 'new_db', '--exit-on-error', "--use-list=$dir/list", "$dir/whole");
is($s->query_ok(q(SELECT count(*) FROM account WHERE note = 'without a guard')), '1', 'same database: its rows are still there');
$newest = goes_on($s, 'same database, the extension alone', 'restored from a dump', $newest);

$s->query_ok('DROP EXTENSION lease_lock CASCADE');
pg_restore_ok('pg_restore --clean into the same database', 'new_db', '--clean', '--if-exists', '--exit-on-error', "$dir/whole");
is($s->query_ok($rows), $in_dump, 'same database: the rows of the dump');
goes_on($s, 'same database, all of it', 'restored from a dump', $newest);
$s->quit;

#
# The data alone, into a database whose extension is new and whose guards stand.
#
$node->safe_psql('postgres', "CREATE DATABASE $_") foreach qw(plain no_triggers replica);
foreach my $db (qw(plain no_triggers replica))
{
	pg_restore_ok("its restore into $db", $db, '--exit-on-error', "$dir/schema");
	is($node->safe_psql($db, 'SELECT last_token, moved FROM lease_lock.token_state'), '0|f', "$db: a new extension");
	$node->safe_psql($db, 'TRUNCATE lease_lock.audit');
	pg_restore_ok("the extension's data into $db", $db, '--exit-on-error', '--data-only', "$dir/state");
}

# The guards judge the rows as writes without a token, and by nothing else.
my ($ok, $err) = pg_restore('plain', '--data-only', "$dir/rows");
ok(!$ok, 'plain: rows do not pass the guards');
my @reasons = $err =~ /ERROR:  (.*)$/mg;
is(join("\n", sort @reasons), join("\n", map { qq(no token presented for resource "$_") } qw(extern job log)),
	'plain: for want of a token alone, on each guarded table') or diag($err);
unlike($err, qr/does not exist/, 'plain: nothing is missing');
is($node->safe_psql('plain', 'SELECT (SELECT count(*) FROM account), (SELECT count(*) FROM log), (SELECT count(*) FROM extern)'), '0|0|0', 'plain: no row of theirs went in');
is($node->safe_psql('plain', $fences), $seen, 'plain: the fences are as they were');

$node->safe_psql('no_triggers', 'ALTER TABLE account ENABLE ALWAYS TRIGGER zz_lease_lock_guard');
pg_restore_ok('--disable-triggers', 'no_triggers', '--exit-on-error', '--data-only', '--disable-triggers', "$dir/rows");
is($node->safe_psql('no_triggers', $rows), $in_dump, '--disable-triggers: all rows are there');
is($node->safe_psql('no_triggers', q(SELECT tgenabled FROM pg_trigger WHERE tgrelid = 'account'::regclass AND tgname = 'zz_lease_lock_guard')), 'O',
	'--disable-triggers: ENABLE ALWAYS is an ordinary ENABLE afterwards');
is($node->safe_psql('no_triggers', $fences), $seen, '--disable-triggers: the fences are as they were');

{
	local $ENV{PGOPTIONS} = '-c session_replication_role=replica';
	pg_restore_ok('as a replica', 'replica', '--exit-on-error', '--data-only', "$dir/rows");
}
is($node->safe_psql('replica', $rows), $in_dump, 'as a replica: all rows are there');
is($node->safe_psql('replica', $fences), $seen, 'as a replica: the fences are as they were');

first_goes_on();
$s = LeaseTest::Session->new($node, dbname => 'plain');
goes_on($s, 'data alone', 'restored from a dump');
$s->quit;
guarded_in($_) foreach qw(no_triggers replica);

# All the data in one go.
$node->safe_psql('postgres', 'CREATE DATABASE all_data');
pg_restore_ok('the schema', 'all_data', '--exit-on-error', "$dir/schema");
pg_restore_ok('all the data, --disable-triggers', 'all_data', '--exit-on-error', '--data-only', '--disable-triggers', "$dir/data");
is($node->safe_psql('all_data', $rows), $in_dump, 'all the data: the rows are there');
is($node->safe_psql('all_data', $fences), $seen, 'all the data: the fences as in the first database');
$s = LeaseTest::Session->new($node, dbname => 'all_data');
goes_on($s, 'all the data', 'restored from a dump');
$s->quit;

#
# Templates, copied in both ways; a new name is no new place.
#
$dba->quit;
foreach my $strategy (qw(wal_log file_copy))
{
	$node->poll_query_until('template1', q(SELECT count(*) = 0 FROM pg_stat_activity WHERE datname = 'postgres')) or die 'somebody stays connected';
	$node->safe_psql('template1', "CREATE DATABASE copy_$strategy TEMPLATE postgres STRATEGY $strategy");
}
$dba = LeaseTest::Session->new($node);
first_goes_on();
foreach my $strategy (qw(wal_log file_copy))
{
	$s = LeaseTest::Session->new($node, dbname => "copy_$strategy");
	goes_on($s, "template, $strategy", 'another database: copied from a template');
	$s->quit;
}

# What a fence accepted counts also where the clock would not reach it.
$node->safe_psql('copy_file_copy', q(SELECT lease_lock.raise_token(8000000000000000);
BEGIN; SELECT lease_lock.present('extern', 8000000000000000); INSERT INTO extern VALUES (2, 'x'); COMMIT));
$node->safe_psql('template1', 'CREATE DATABASE above_the_clock TEMPLATE copy_file_copy');
cmp_ok($node->safe_psql('above_the_clock', q(SELECT lease_lock.acquire('any', 'A'))), '>', 8000000000000000, 'a jump goes above all fences');

# A write can bring any token to a fence: an absurd one costs its own name alone.
$node->safe_psql('postgres', 'CREATE DATABASE poisoned TEMPLATE above_the_clock');
$node->safe_psql('poisoned', q(BEGIN; SELECT lease_lock.present('extern', 9223372036854775807); INSERT INTO extern VALUES (2, 'x'); COMMIT));
$node->safe_psql('postgres', 'CREATE DATABASE copy_of_poisoned TEMPLATE poisoned');
cmp_ok($node->safe_psql('copy_of_poisoned', q(SELECT lease_lock.acquire('any', 'A'))), '<', 2**62, 'the largest bigint in one fence leaves tokens for the others');

# Above the clock, what the first one goes on to grant is cleared as well.
$node->safe_psql('template1', 'CREATE DATABASE copy_of_raised TEMPLATE above_the_clock');
my $lost = $node->safe_psql('above_the_clock', q(SELECT max(lease_lock.acquire('lost/' || i, 'A')) FROM generate_series(1, 500) AS i));
cmp_ok($node->safe_psql('copy_of_raised', q(SELECT lease_lock.acquire('any', 'A'))), '>', $lost, 'a jump above the clock clears the tokens that it cannot know');

my $last = $node->safe_psql('copy_wal_log', q(SELECT lease_lock.acquire('before', 'A')));
$node->safe_psql('postgres', 'ALTER DATABASE copy_wal_log RENAME TO renamed');
is($node->safe_psql('renamed', q(SELECT lease_lock.acquire('after the rename', 'A'))), $last + 1, 'a database that is renamed does not jump');

#
# Recovery to a moment before the newest tokens.
#
my $n = 0;
$node->safe_psql('postgres', 'SELECT pg_switch_wal()');
foreach my $target (
	[ 'recovery_target_lsn', $lsn, 'archive' ],
	[ 'recovery_target_xid', $xid, 'archive' ],
	[ 'recovery_target_name', 'a name', 'streaming' ])
{
	my ($setting, $value, $from) = @$target;
	my $copy = PostgreSQL::Test::Cluster->new('recovered_' . ++$n);

	$copy->init_from_backup($node, 'base',
		$from eq 'archive' ? (has_restoring => 1, standby => 0) : (has_streaming => 1));
	$copy->append_conf('postgresql.conf', qq(
$setting = '$value'
recovery_target_action = promote
archive_mode = off
));
	$copy->start;
	$copy->poll_query_until('postgres', 'SELECT NOT pg_is_in_recovery()') or die 'recovery does not end';
	$s = LeaseTest::Session->new($copy);
	is($s->query_ok(q(SELECT count(*) FROM lease_lock.lease WHERE resource LIKE 'more/%')), '0', "$setting: its newest tokens are unknown");
	is($s->query_ok(q(SELECT count(*) FROM lease_lock.lease WHERE resource LIKE 'in WAL%')), '1', "$setting: older ones are known");
	goes_on($s, $setting, 'another timeline');
	$s->quit;
	$copy->stop;
}

# Started as if it were the first server, a copy cannot be told from it: the
# operator says how far that came.
{
	my $copy = PostgreSQL::Test::Cluster->new('same_identity');

	$copy->init_from_backup($node, 'base');
	$copy->append_conf('postgresql.conf', 'archive_mode = off');
	$copy->start;
	$s = LeaseTest::Session->new($copy);
	is($s->query_ok('SELECT moved FROM lease_lock.token_state'), 'f', 'same identity: nothing tells');
	$s->query_ok("SELECT lease_lock.raise_token($granted)");
	cmp_ok(my $next = $s->query_ok(q(SELECT lease_lock.acquire('after', 'A'))), '>', $granted, 'same identity: raise_token does it');
	cmp_ok($s->query_ok(q(SELECT lease_lock.raise_token(greatest((SELECT last_token FROM lease_lock.token_state) + 1000000000,
		(extract(epoch FROM now()) - 1767225600)::bigint << 24)))), '>', $next + 1000000, 'same identity: or the clock');
	guarded($s, 'same identity');
	$s->quit;
	$copy->stop;
}

#
# An older copy of one table alone.  Nothing moved, and nothing jumps but for a
# token in a fence that was not minted here.
#
sub put_back
{
	my ($table, $old) = @_;

	$dba->query_ok("TRUNCATE lease_lock.$table");
	$dba->query_ok("COPY lease_lock.$table FROM STDIN;\n$old\n\\.");
	return;
}

foreach my $table ('lease', 'fence', 'both')
{
	my $before;
	my $accepted;

	first_goes_on();
	$before = $dba->query_ok('SELECT last_token FROM lease_lock.token_state');
	$accepted = $dba->query_ok(q(SELECT highest FROM lease_lock.fence WHERE name = 'log'));
	put_back('lease', $old_lease) if $table ne 'fence';
	put_back('fence', $old_fence) if $table ne 'lease';
	is($dba->query_ok('SELECT moved FROM lease_lock.token_state'), $table eq 'fence' ? 't' : 'f', "older $table: token_state tells whether tokens will jump");
	my $next = $dba->query_ok(q(SELECT lease_lock.acquire('log', 'A', ttl => '1 h')));
	cmp_ok($next, '>', $before, "older $table: the next token is above all before");
	cmp_ok($next, '>', $accepted, "older $table: and above what the fence had accepted");
	is(write_guarded($dba, 'log', 'log', $accepted), 'LL001', "older $table: that one is stale now");
	is($dba->query_ok(q(SELECT lease_lock.acquire('brand new', 'A', ttl => '1 h'))), $next + 1, "older $table: so it is for any other name");
	cmp_ok($next, '>', $outside, "older $table: a token from elsewhere counts") if $table ne 'lease';
	guarded($dba, "older $table");
}

# An older copy makes its leases hold again: what the operator does.
put_back('lease', $old_lease);
$dba->query_ok("BEGIN; SELECT lease_lock.present('job', $job); INSERT INTO account VALUES (3, 'revived'); COMMIT");
$dba->query_ok(q(SELECT lease_lock.force_release(resource, 'restored') FROM lease_lock.holders));
is(write_guarded($dba, 'account', 'job', $job), 'LL001', 'force_release ends the leases that came back with an older copy');

#
# The owner deletes rows by hand: of leases, of fences, of both.
#
foreach my $what ('lease', 'fence', 'lease fence')
{
	my $before = $dba->query_ok(q(SELECT lease_lock.acquire('deleted', 'A', ttl => '1 h')));

	$dba->query_ok("DELETE FROM lease_lock.$_") foreach split / /, $what;
	cmp_ok($dba->query_ok(q(SELECT lease_lock.acquire('deleted', 'A', ttl => '1 h'))), '>', $before, "tokens go on upwards after DELETE FROM $what");
	refused_with($dba, q(INSERT INTO account VALUES (9, NULL)), 'LL002', "and account is guarded after DELETE FROM $what");
}

#
# Tables that are swapped and renamed: a guard goes with its table.
#
sub guards
{
	return $dba->query_ok(q(SELECT t.tgrelid::regclass, count(*) FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid
		WHERE p.pronamespace = 'lease_lock'::regnamespace AND t.tgrelid::regclass::text LIKE 'swap%' GROUP BY 1 ORDER BY 1));
}

$dba->query_ok(q(CREATE TABLE swap (id int, note text); SELECT lease_lock.guard('swap', 'swap', mode => 'newest')));
my $swap = $dba->query_ok(q(SELECT lease_lock.acquire('swap', 'A', ttl => '1 h')));
write_guarded($dba, 'swap', 'swap', $swap);
$dba->query_ok(q(CREATE TABLE swap_new (LIKE swap INCLUDING ALL);
BEGIN; ALTER TABLE swap RENAME TO swap_old; ALTER TABLE swap_new RENAME TO swap; COMMIT));
is(guards(), 'swap_old|2', 'swap: the guard stays with the old table');
$dba->query_ok(q(INSERT INTO swap VALUES (1, 'bare')));
refused_with($dba, q(INSERT INTO swap_old VALUES (1, 'x')), 'LL002', 'swap: which is guarded under its new name');
$dba->query_ok(q(SELECT lease_lock.guard('swap', 'swap', mode => 'newest')));
is(guards(), "swap_old|2\nswap|2", 'swap: the new table has to be guarded');
refused_with($dba, q(INSERT INTO swap VALUES (1, 'x')), 'LL002', 'swap: and then is');
$dba->query_ok("BEGIN; SELECT lease_lock.present('swap', $swap - 1)");
refused_with($dba, q(INSERT INTO swap VALUES (1, 'x')), 'LL001', 'swap: its fence knows what was accepted for the old one');
$dba->query('ROLLBACK');
$dba->query_ok('DROP TABLE swap_old');
is(guards(), 'swap|2', 'swap: nothing of the old one is left');
$dba->query_ok(q(CREATE SCHEMA elsewhere; ALTER TABLE swap RENAME TO moved; ALTER TABLE moved SET SCHEMA elsewhere; ALTER SCHEMA elsewhere RENAME TO "Else where"));
refused_with($dba, q(INSERT INTO "Else where".moved VALUES (1, 'x')), 'LL002', 'a table that was renamed and moved is guarded');
is($dba->query_ok(q(SELECT highest FROM lease_lock.fence WHERE name = 'swap')), $swap, 'and its fence keeps what it has seen');
is(write_guarded($dba, '"Else where".moved', 'swap', $swap), '', 'its holder can write');

# No column of a type that pg_upgrade refuses.
is($dba->query_ok(q(SELECT count(*) FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
	WHERE c.relnamespace = 'lease_lock'::regnamespace AND c.relkind = 'r' AND a.atttypid::regtype::text LIKE 'reg%')), '0', 'no table of ours has a column of a reg* type');

# Data restored into the database that it was taken from: the same place, so
# nothing jumps, and a dump that had the sequence would set tokens back.
$node->safe_psql('template1', 'CREATE DATABASE in_place');
$s = LeaseTest::Session->new($node, dbname => 'in_place');
$s->query_ok('CREATE EXTENSION lease_lock');
$s->query_ok(q(SELECT lease_lock.acquire('early/' || i, 'A') FROM generate_series(1, 5) AS i));
$node->command_ok([ 'pg_dump', '--format=custom', "--file=$dir/in_place", '-d', $node->connstr('in_place') ], 'a dump, and work goes on');
my $late = $s->query_ok(q(SELECT max(lease_lock.acquire('late/' || i, 'A')) FROM generate_series(1, 50) AS i));
(undef, $err) = pg_restore('in_place', '--data-only', "$dir/in_place");
unlike($err, qr/does not exist/, 'its data comes again over what is there');
cmp_ok($s->query_ok(q(SELECT lease_lock.acquire('after', 'B'))), '>', $late, 'and sets no token back');
$s->query_ok('TRUNCATE lease_lock.lease, lease_lock.fence, lease_lock.audit, lease_lock.place');
pg_restore_ok('its data over empty tables', 'in_place', '--exit-on-error', '--data-only', "$dir/in_place");
cmp_ok($s->query_ok(q(SELECT lease_lock.acquire('after', 'B'))), '>', $late + 1, 'neither then');
$s->quit;

$dba->quit;
$node->stop;
done_testing();
