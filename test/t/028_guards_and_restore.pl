# Guarded tables and dumps.  Rows that are restored under their guards are
# refused for their tokens alone, since a dump's empty search_path hides nothing
# that a guard needs; --disable-triggers lets a superuser load them, and bypass()
# the owner of the tables, with the guards on for everybody else.  A whole
# dump brings every kind of guard back as it was, with all that the view guards
# says, and the rights by name.
#
# A guard that looked up a name by search_path, a bypass that raised a fence, or
# a registry that named tables by OID would fail here.

use strict;
use warnings;

use FindBin;
use lib $FindBin::Bin;

use LeaseTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = lease_server('main', "log_error_verbosity = verbose\n");
my $dba = LeaseTest::Session->new($node);
my $dir = $PostgreSQL::Test::Utils::tmp_check;
my @triggers = qw(zz_lease_lock_guard zz_lease_lock_guard_recheck zz_lease_lock_guard_truncate);

# The owner of the tables is no superuser.
$dba->query_ok(q(
CREATE ROLE owner LOGIN;
CREATE ROLE app LOGIN;
CREATE ROLE stranger LOGIN;
GRANT USAGE ON SCHEMA lease_lock TO owner, app, stranger;
GRANT CREATE ON SCHEMA public TO owner;
GRANT EXECUTE ON FUNCTION lease_lock.guard, lease_lock.guard_column, lease_lock.fence, lease_lock.fence_column, lease_lock.bypass TO owner;
SET ROLE owner;
CREATE TYPE colour AS ENUM ('red', 'green');
CREATE TABLE constant (id int PRIMARY KEY, note text);
CREATE TABLE latest (id int PRIMARY KEY, note text);
CREATE TABLE named (id int PRIMARY KEY, c colour, u uuid, d date, b bytea, t varchar);
CREATE TABLE carried (id int PRIMARY KEY, token bigint);
CREATE TABLE leased (id int PRIMARY KEY, token bigint);
CREATE TABLE some_events (id int PRIMARY KEY, note text);
CREATE TABLE part (id int, day int) PARTITION BY LIST (day);
CREATE TABLE part_1 PARTITION OF part FOR VALUES IN (1);
CREATE TABLE part_2 (id int, day int);
CREATE TABLE animal (id int, name text);
CREATE TABLE cat (lives int) INHERITS (animal);
CREATE TABLE warned (id int PRIMARY KEY);
CREATE TABLE "Odd name's" ("An id" int PRIMARY KEY);
SELECT lease_lock.guard('constant', 'job'), lease_lock.guard('latest', 'latest', mode => 'newest'),
	lease_lock.guard('named', 'named/{c}/{u}/{d}/{b}/{t}'), lease_lock.guard_column('carried', 'token'),
	lease_lock.guard_column('leased', 'token', resource => 'leased/{id}'),
	lease_lock.guard('some_events', 'some/{id}', events => 'update,delete'), lease_lock.guard('part', 'day/{day}'),
	lease_lock.guard('animal', 'animal/{id}', mode => 'newest'), lease_lock.guard('"Odd name''s"', 'it''s {{a}} \ name/{An id}');
ALTER TABLE part ATTACH PARTITION part_2 FOR VALUES IN (2);
SELECT lease_lock.guard('part', 'day/{day}');
RESET ROLE;
SELECT lease_lock.allow('owned/%', 'app', 'acquire'), lease_lock.allow('gone/%', 'app', 'force');
));
my $guarded = q(SELECT * FROM lease_lock.guards ORDER BY relation::text);
is($dba->query_ok('SELECT count(*) FROM lease_lock.guards WHERE problem IS NOT NULL'), '0', 'guards of every kind, with no problem');
is($dba->query_ok('SELECT count(*) FROM lease_lock.guards'), '12', 'on each table and partition');

# Rows in all of them.
my @all = ('constant', 'latest', 'named', 'carried', 'leased', 'some_events', 'part', 'animal', 'cat', q("Odd name's"));
my $rows = join(' UNION ALL ', map { my $t = $_; $t =~ s/'/''/g; "SELECT '$t', count(*) FROM ONLY " . ($_ eq 'part' ? 'part_1' : $_) } @all) . ' ORDER BY 1';
$dba->query_ok(q(SELECT lease_lock.acquire('early', 'A')));
my $job = $dba->query_ok(q(SELECT lease_lock.acquire('job', 'A', ttl => '1 h')));
my $leased = $dba->query_ok(q(SELECT lease_lock.acquire('leased/1', 'A', ttl => '1 h')));
$dba->query_ok('BEGIN');
$dba->query_ok("SELECT lease_lock.bypass('$_', 'rows for a test')") foreach grep { !/Odd/ } @all;
$dba->query_ok(q(SELECT lease_lock.bypass('"Odd name''s"', 'rows for a test')));
$dba->query_ok(qq(
INSERT INTO constant VALUES (1, 'x'), (2, 'x'); INSERT INTO latest VALUES (1, 'x'), (2, 'x');
INSERT INTO named VALUES (1, 'red', '00000000-0000-0000-0000-000000000001', '2026-01-02', '\\xff', 'x');
INSERT INTO carried VALUES (1, 5), (2, NULL); INSERT INTO leased VALUES (1, $leased), (2, $leased);
INSERT INTO some_events VALUES (1, 'x'); INSERT INTO part VALUES (1, 1), (1, 2); INSERT INTO animal VALUES (1, 'x'); INSERT INTO cat VALUES (2, 'x', 9);
INSERT INTO warned VALUES (1); INSERT INTO "Odd name's" VALUES (1); COMMIT));
# What a fence has accepted.
$dba->query_ok(q(BEGIN; SELECT lease_lock.present('latest', 77); UPDATE latest SET note = 'y' WHERE id = 1; COMMIT));
my $fences = 'SELECT name, highest, accepted_at, accepted_by FROM lease_lock.fence ORDER BY name';
like($dba->query_ok($fences), qr/^latest\|77\|/, 'and a fence that has accepted a token');
my $contents = $dba->query_ok($rows);

sub dump_to
{
	my ($file, @options) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	$node->command_ok([ 'pg_dump', "--file=$dir/$file", '-d', $node->connstr('postgres'), @options ], "pg_dump @options");
	return;
}

# Runs a program against a database; returns its exit code and what it said.
sub run_on
{
	my ($db, $user, $program, @options) = @_;
	my ($out, $err);
	my $ok = IPC::Run::run([ $program, @options, '-d', $node->connstr($db) . ($user ? " user=$user" : '') ], '>', \$out, '2>', \$err);

	return ($ok, $err);
}

dump_to('whole.custom', '--format=custom');
dump_to('whole.plain', '--format=plain');
dump_to('schema', '--format=custom', '--schema-only');
dump_to('rows.custom', '--format=custom', '--data-only', '--schema=public');
dump_to('rows.plain', '--format=plain', '--data-only', '--schema=public');
dump_to('rows.inserts', '--format=plain', '--data-only', '--schema=public', '--inserts');
like(slurp_file("$dir/rows.plain"), qr/set_config\('search_path', '', false\)/, 'a dump sets search_path to nothing');

#
# Data alone, into databases that have the guards.
#
foreach my $db (qw(plain plain_sql plain_inserts no_triggers owner_no_triggers past past_sql past_partly))
{
	$node->safe_psql('template1', "CREATE DATABASE $db");
	my ($ok, $err) = run_on($db, undef, 'pg_restore', '--exit-on-error', "$dir/schema");
	ok($ok, "$db: the schema") or diag($err);
	# The extension is empty, but for a fence, which must stay as it is.
	$node->safe_psql($db, q(CREATE TABLE anything (id int); SELECT lease_lock.guard('anything', 'latest', mode => 'newest');
BEGIN; SELECT lease_lock.present('latest', 70); INSERT INTO anything VALUES (1); COMMIT; DROP TABLE anything));
}

# Plain: each guarded table refuses, for want of a token or of a lease that is
# known here, and of nothing else.
my %refused = (
	constant => qr/^LL002: no token presented for resource "job"$/,
	latest => qr/^LL002: no token presented for resource "latest"$/,
	named => qr{^LL002: no token presented for resource "named/red/00000000-0000-0000-0000-000000000001/2026-01-02/\\xff/x"$},
	carried => qr/^LL002: no token in column "token" of a row of table "carried"$/,
	leased => qr/^LL004: unknown token $leased for resource "leased\/[12]"$/,
	part => qr{^LL002: no token presented for resource "day/[12]"$},
	animal => qr{^LL002: no token presented for resource "animal/[12]"$},
	odd => qr{^LL002: no token presented for resource "it's \{a\} \\ name/1"$},
);
foreach my $how ([ 'plain', 'pg_restore', '--data-only', "$dir/rows.custom" ],
	[ 'plain_sql', 'psql', '-X', '-q', '-f', "$dir/rows.plain" ],
	[ 'plain_inserts', 'psql', '-X', '-q', '-f', "$dir/rows.inserts" ])
{
	my ($db, @command) = @$how;
	my $offset = -s $node->logfile;
	my ($ok, $err) = run_on($db, undef, @command);
	my @log = slurp_file($node->logfile, $offset) =~ /ERROR:  (.*)$/mg;
	my $known = join('|', values %refused);

	unlike($err, qr/does not exist/, "$db: nothing that a guard needs is missing");
	is(join("\n", grep { !/$known/ } @log), '', "$db: no error but of tokens");
	foreach my $table (sort keys %refused)
	{
		cmp_ok(scalar(grep { /$refused{$table}/ } @log), '>', 0, "$db: $table refuses, and says why");
	}
	# Inserts that pass a guard one by one: carried tokens, and events that were left out.
	my $in = $db eq 'plain_inserts' ? 1 : 0;
	is($node->safe_psql($db, 'SELECT (SELECT count(*) FROM constant), (SELECT count(*) FROM latest), (SELECT count(*) FROM named), (SELECT count(*) FROM carried),
		(SELECT count(*) FROM leased), (SELECT count(*) FROM part), (SELECT count(*) FROM animal), (SELECT count(*) FROM some_events)'),
		"0|0|0|$in|0|0|0|1", "$db: no row went in that its guard refuses");
	like($node->safe_psql($db, $fences), qr/^latest\|70\|[^\n]*$/, "$db: the fences are as they were");
}

# --disable-triggers, by a superuser.
my ($ok, $err) = run_on('no_triggers', undef, 'pg_restore', '--exit-on-error', '--data-only', '--disable-triggers', "$dir/rows.custom");
ok($ok, '--disable-triggers: pg_restore') or diag($err);
is($node->safe_psql('no_triggers', $rows), $contents, '--disable-triggers: all rows are there');
like($node->safe_psql('no_triggers', $fences), qr/^latest\|70\|[^\n]*$/, '--disable-triggers: the fence is as it was');
is($node->safe_psql('no_triggers', $guarded), $dba->query_ok($guarded), '--disable-triggers: the guards are on again');
is($node->safe_psql('no_triggers', 'SELECT count(*) FROM lease_lock.rejection_counts WHERE relation IS NOT NULL'), '0', '--disable-triggers: nothing was judged');
# As DISABLE TRIGGER, the table's owner can do it where there is no foreign key.
($ok, $err) = run_on('owner_no_triggers', 'owner', 'pg_restore', '--exit-on-error', '--data-only', '--disable-triggers', '--table=latest', "$dir/rows.custom");
ok($ok, '--disable-triggers: by the owner of a table') or diag($err);
is($node->safe_psql('owner_no_triggers', 'SELECT count(*) FROM latest'), '2', '--disable-triggers: its rows are there');
($ok, $err) = run_on('owner_no_triggers', 'app', 'pg_restore', '--data-only', '--disable-triggers', '--table=constant', "$dir/rows.custom");
like($err, qr/must be owner of table constant/, '--disable-triggers: by nobody else');
is($node->safe_psql('owner_no_triggers', 'SELECT count(*) FROM constant'), '0', '--disable-triggers: whose rows are not there');

# Past the guards, by their owner.
my $bypass = join("\n", map { my $t = $_; $t =~ s/'/''/g; "SELECT lease_lock.bypass('public.$t', 'a restore');" } grep { $_ ne 'cat' } @all);
foreach my $how ([ past => 'rows.plain' ], [ past_sql => 'rows.inserts' ])
{
	my ($db, $file) = @$how;
	my $owner = LeaseTest::Session->new($node, dbname => $db, user => 'owner');
	my $other = LeaseTest::Session->new($node, dbname => $db);
	my $s = LeaseTest::Session->new($node, dbname => $db);
	my $offset = -s $node->logfile;

	$owner->query_ok('BEGIN');
	$owner->query_ok($bypass);
	$owner->query_ok("\\i $dir/$file");
	is($owner->query_ok('SHOW search_path'), '', "$db: the dump has set search_path to nothing");
	is($owner->query_ok(q(SELECT count(*) FROM public.carried)), '2', "$db: rows are loaded in the transaction that asked for it");
	refused_with($other, q(INSERT INTO latest VALUES (9, 'x')), 'LL002', "$db: meanwhile the guards are on for others");
	# Nobody is granted a lease in the middle.
	is($other->query_ok(q(SELECT lease_lock.try_acquire('job', 'B'))), '', "$db: meanwhile nobody is granted what they guard");
	$owner->query_ok('COMMIT');
	is($s->query_ok($rows), $contents, "$db: all rows are there");
	like($s->query_ok($fences), qr/^latest\|70\|[^\n]*$/, "$db: the fence is as it was");
	is($s->query_ok($guarded), $dba->query_ok($guarded), "$db: and so are the guards");
	cmp_ok($other->query_ok(q(SELECT lease_lock.acquire('job', 'B'))), '>', 0, "$db: then he is granted");
	refused_with($owner, q(INSERT INTO public.latest VALUES (9, 'x')), 'LL002', "$db: the next transaction is guarded again");
	is($s->query_ok(q(SELECT count(*), count(DISTINCT object), bool_and(role = 'owner' AND reason = 'a restore') FROM lease_lock.audit WHERE action = 'bypass')), '9|9|t', "$db: the audit tells of each table");
	my @log = slurp_file($node->logfile, $offset) =~ /LOG:.*guard of table .* bypassed by "owner" for one transaction/g;
	is(scalar @log, 9, "$db: and so does the log");
	is($s->query_ok(q(SELECT sum(count) FROM lease_lock.rejection_counts WHERE reason = 'bypass' AND relation IN ('named'::regclass, 'carried'::regclass, 'leased'::regclass))), '5', "$db: rows written past a guard are counted");
	is($s->query_ok(q(SELECT count(*) FROM lease_lock.rejections WHERE reason <> 'no token')), '0', "$db: which are no refusals");
	$_->quit foreach ($owner, $other, $s);
}

# Of one table, the others stay guarded; and rolled back, nothing was loaded.
{
	my $owner = LeaseTest::Session->new($node, dbname => 'past_partly', user => 'owner');

	$owner->query_ok(q(BEGIN; SELECT lease_lock.bypass('latest', 'a restore')));
	$owner->query("\\i $dir/rows.plain");
	like($owner->errors, qr/ERROR:  LL002: no token presented for resource/, 'bypass of one table: the dump is refused by the others');
	$owner->query_ok('ROLLBACK');
	is($node->safe_psql('past_partly', 'SELECT count(*) FROM latest'), '0', 'bypass of one table: rolled back, nothing is there');
	is($node->safe_psql('past_partly', q(SELECT count(*) FROM lease_lock.audit WHERE action = 'bypass')), '0', 'bypass of one table: neither in the audit');
	$owner->quit;
	$owner = LeaseTest::Session->new($node, dbname => 'past_partly', user => 'app');
	refused_with($owner, q(SELECT lease_lock.bypass('latest', 'a restore')), '42501', 'bypass: not for everybody');
	$owner->quit;
	$node->safe_psql('past_partly', 'GRANT EXECUTE ON FUNCTION lease_lock.bypass TO app; GRANT ALL ON latest TO app');
	$owner = LeaseTest::Session->new($node, dbname => 'past_partly', user => 'app');
	refused_with($owner, q(SELECT lease_lock.bypass('latest', 'a restore')), '42501', 'bypass: nor for somebody who may only write the table');
	$owner->quit;
}

#
# The extension's data into a database that is in use: rights count at once.
#
dump_to('state', '--format=custom', '--data-only', '--schema=lease_lock', '--extension=lease_lock');
$node->safe_psql('template1', 'CREATE DATABASE in_use');
$node->safe_psql('in_use', 'CREATE EXTENSION lease_lock; GRANT USAGE ON SCHEMA lease_lock TO stranger; TRUNCATE lease_lock.audit');
{
	my $before = LeaseTest::Session->new($node, dbname => 'in_use', user => 'stranger');

	cmp_ok($before->query_ok(q(SELECT lease_lock.acquire('owned/1', 'A', ttl => '1 ms'))), '>', 0, 'rights: none are there yet');
	$node->safe_psql('in_use', 'TRUNCATE lease_lock.lease');
	($ok, $err) = run_on('in_use', undef, 'pg_restore', '--exit-on-error', '--data-only', "$dir/state");
	ok($ok, 'rights: restored into a database in use') or diag($err);
	my $after = LeaseTest::Session->new($node, dbname => 'in_use', user => 'stranger');
	refused_with($after, q(SELECT lease_lock.acquire('owned/2', 'A')), '42501', 'rights: they count for new sessions');
	refused_with($before, q(SELECT lease_lock.acquire('owned/3', 'A')), '42501', 'rights: and for those that were there');
	$_->quit foreach ($before, $after);
}

#
# Whole dumps, with guards that have a problem as well.
#
$dba->query_ok(q(
SELECT lease_lock.guard('warned', 'warned/{id}', action => 'warn');
CREATE TABLE off (id int PRIMARY KEY); SELECT lease_lock.guard('off', 'off'); ALTER TABLE off DISABLE TRIGGER zz_lease_lock_guard;
CREATE TABLE replica (id int PRIMARY KEY); SELECT lease_lock.guard('replica', 'replica'); ALTER TABLE replica ENABLE REPLICA TRIGGER zz_lease_lock_guard_truncate;
CREATE TABLE always (id int PRIMARY KEY, token bigint); SELECT lease_lock.guard_column('always', 'token');
CREATE TABLE by_hand (id int PRIMARY KEY, note text);
CREATE TRIGGER mine BEFORE UPDATE OF note ON by_hand FOR EACH ROW WHEN (old.note = 'x') EXECUTE FUNCTION lease_lock.fence('mine/{id}', 'newest');
CREATE TABLE bare_child () INHERITS (animal);
CREATE TABLE part_half (id int, day int) PARTITION BY LIST (day); CREATE TABLE part_half_1 PARTITION OF part_half FOR VALUES IN (1);
SELECT lease_lock.guard('part_half', 'half/{day}'); ALTER TABLE part_half_1 DISABLE TRIGGER zz_lease_lock_guard;
CREATE TABLE part_half_2 PARTITION OF part_half FOR VALUES IN (2);
));
$dba->query_ok("ALTER TABLE always ENABLE ALWAYS TRIGGER $_") foreach @triggers;
is($dba->query_ok('SELECT count(DISTINCT relation) FROM lease_lock.guards WHERE problem IS NOT NULL'), '7', 'guards with problems');
dump_to('whole.custom', '--format=custom');
dump_to('whole.plain', '--format=plain');
dump_to('whole.directory', '--format=directory', '--jobs=2');
my $enabled = q(SELECT tgrelid::regclass::text, tgname, tgenabled, tgisinternal, tgparentid <> 0, pg_get_triggerdef(oid) FROM pg_trigger WHERE tgfoid::regproc::text LIKE 'lease_lock.fence%' ORDER BY 1, 2);
my $rights = 'SELECT * FROM lease_lock.rights ORDER BY 1, 2, 3';

foreach my $how ([ 'restored_custom', 'pg_restore', '--exit-on-error', "$dir/whole.custom" ],
	[ 'restored_plain', 'psql', '-X', '-q', '-v', 'ON_ERROR_STOP=1', '-f', "$dir/whole.plain" ],
	[ 'restored_jobs', 'pg_restore', '--exit-on-error', '--jobs=2', "$dir/whole.directory" ],
	[ 'restored_one', 'pg_restore', '--single-transaction', "$dir/whole.custom" ])
{
	my ($db, @command) = @$how;

	$node->safe_psql('template1', "CREATE DATABASE $db");
	($ok, $err) = run_on($db, undef, @command);
	ok($ok, "$db: @command[0, 1]") or diag($err);
	my $s = LeaseTest::Session->new($node, dbname => $db);

	is($s->query_ok($guarded), $dba->query_ok($guarded), "$db: the view guards is the same");
	is($s->query_ok($enabled), $dba->query_ok($enabled), "$db: and so are the triggers");
	is($s->query_ok(q(SELECT count(*) FROM lease_lock.guards WHERE problem IS NULL)), '14', "$db: those that had no problem have none");
	is($s->query_ok($rows), $contents, "$db: all rows are there");
	is($s->query_ok($fences), $dba->query_ok($fences), "$db: the fences are those of the dump");
	is($s->query_ok($rights), $dba->query_ok($rights), "$db: and so are the rights by name");
	is($s->query_ok('SELECT count(*) FROM lease_lock.rights WHERE role_exists'), '2', "$db: of roles that are there");
	is($s->query_ok(q(SELECT count(*) FROM lease_lock.rejection_counts)), '0', "$db: nothing was refused on the way");
	foreach my $table ('constant', 'latest', 'named', 'carried', 'leased', 'part', 'animal', 'always')
	{
		is($s->query_ok("SELECT lease_lock.assert_guarded('$table')"), 't', "$db: $table is guarded") if $table ne 'animal';
		refused_with($s, "UPDATE $table SET " . ($table =~ /^(constant|latest)$/ ? "note = 'z'" : $table =~ /carried|leased|always/ ? 'token = NULL' : 'id = id'),
			$table eq 'always' ? '' : 'LL002', "$db: $table refuses, as before");
		refused_with($s, "TRUNCATE $table", 'LL002', "$db: and TRUNCATE of $table");
	}
	refused_with($s, q(SELECT lease_lock.assert_guarded('animal')), '55000', "$db: a child without a guard is without one");
	refused_with($s, q(UPDATE some_events SET note = 'z'), 'LL002', "$db: some events are refused");
	$s->query_ok(q(INSERT INTO some_events VALUES (5, 'z')));
	refused_with($s, qq(BEGIN; SELECT lease_lock.present('job', $job - 1); UPDATE constant SET note = 'z'), 'LL001', "$db: a stale token is refused");
	$s->query('ROLLBACK');
	$s->query_ok("BEGIN; SELECT lease_lock.present('job', $job); UPDATE constant SET note = 'z'; COMMIT");
	refused_with($s, q(BEGIN; SELECT lease_lock.present('latest', 76); UPDATE latest SET note = 'z'), 'LL001', "$db: so is one below the fence");
	$s->query('ROLLBACK');
	$s->query_ok(q(BEGIN; SELECT lease_lock.present('latest', 78); UPDATE latest SET note = 'z'; COMMIT));
	refused_with($s, q(UPDATE carried SET token = 4 WHERE id = 1), 'LL001', "$db: so is an older one in a column");
	$s->query_ok(q(UPDATE carried SET token = 6 WHERE id = 1));
	$s->query_ok("UPDATE leased SET token = $leased WHERE id = 1");
	$s->query_ok(q(UPDATE warned SET id = 2));
	like($s->errors, qr/^WARNING:  LL002: no token presented for resource "warned\/1"/m, "$db: a guard that warns, warns");
	$s->quit;

	my $stranger = LeaseTest::Session->new($node, dbname => $db, user => 'stranger');
	refused_with($stranger, q(SELECT lease_lock.acquire('owned/1', 'A')), '42501', "$db: a name that a right covers is not for everybody");
	cmp_ok($stranger->query_ok(q(SELECT lease_lock.acquire('free/1', 'A'))), '>', 0, "$db: others are");
	$stranger->quit;
	my $app = LeaseTest::Session->new($node, dbname => $db, user => 'app');
	cmp_ok($app->query_ok(q(SELECT lease_lock.acquire('owned/1', 'A'))), '>', 0, "$db: it is for whom the right allows");
	$app->quit;
}

#
# Tables that are swapped and renamed: the view and assert_guarded tell.
#
my $shown = q(SELECT relation, template, problem FROM lease_lock.guards WHERE relation::text ~ 'latest' ORDER BY 1);
is($dba->query_ok($shown), 'latest|latest|', 'swap: guarded');
$dba->query_ok(q(BEGIN; CREATE TABLE latest_new (LIKE latest INCLUDING ALL); INSERT INTO latest_new SELECT * FROM latest;
ALTER TABLE latest RENAME TO latest_old; ALTER TABLE latest_new RENAME TO latest; COMMIT));
is($dba->query_ok($shown), 'latest_old|latest|', 'swap: the view shows the old table under its new name');
refused_with($dba, q(SELECT lease_lock.assert_guarded('latest')), '55000', 'swap: assert_guarded tells of the new one');
like($dba->detail, qr/It has no guard\./, 'swap: that it has none');
is($dba->query_ok(q(SELECT lease_lock.assert_guarded('latest_old'))), 't', 'swap: and the old one has its');
$dba->query_ok(q(DROP TABLE latest_old; SELECT lease_lock.guard('latest', 'latest', mode => 'newest')));
is($dba->query_ok($shown), 'latest|latest|', 'swap: the old one dropped, the new one guarded');
refused_with($dba, q(BEGIN; SELECT lease_lock.present('latest', 76); UPDATE latest SET note = 'z'), 'LL001', 'swap: its fence is that of the old one');
$dba->query('ROLLBACK');
$dba->query_ok(q(CREATE SCHEMA elsewhere; ALTER TABLE latest SET SCHEMA elsewhere; ALTER TABLE elsewhere.latest RENAME TO "New latest"));
is($dba->query_ok($shown), 'elsewhere."New latest"|latest|', 'a new name and schema: the view has them');
is($dba->query_ok(q(SELECT lease_lock.assert_guarded('elsewhere."New latest"'))), 't', 'a new name and schema: and the guard goes along');
refused_with($dba, q(INSERT INTO elsewhere."New latest" VALUES (9)), 'LL002', 'a new name and schema: and refuses');
$dba->query_ok('DROP SCHEMA elsewhere CASCADE');
is($dba->query_ok($shown), '', 'dropped: nothing is left in the view');

$dba->quit;
$node->stop;
done_testing();
