# A library of one version under the SQL of another: an error with a hint, no
# crash, and never a write that no guard has judged; what needs no table of the
# other shape goes on working.  Sessions that run while the extension is updated
# go on where the new version lets them.
#
# The next version is made up and exists in here alone: a copy of the
# PostgreSQL's directories (links, but for what must be real) takes its scripts,
# and a library that is built from the sources with one more column and one more
# function.  A library that trusts the number of columns reads and writes beyond
# a row's end.

use strict;
use warnings;

use FindBin;
use lib $FindBin::Bin;

use Cwd qw(abs_path);
use File::Basename qw(basename dirname);
use File::Copy qw(copy);
use File::Path qw(make_path);
use LeaseTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $source = abs_path("$FindBin::Bin/../..");
plan skip_all => 'the next version is built from the sources, which are not here' unless -f "$source/src/lease_lock.h";

my $pg_config = $ENV{PG_CONFIG} // 'pg_config';
my %dir;
foreach my $which (qw(bindir sharedir pkglibdir))
{
	chomp($dir{$which} = `$pg_config --$which`);
}
my $scratch = PostgreSQL::Test::Utils::tempdir;

#
# A PostgreSQL of our own.  The server finds its directories by where its program
# is, so the programs are copied and the rest can be links.
#
my ($prefix) = "$dir{bindir}\0$dir{sharedir}\0$dir{pkglibdir}" =~ m{^(/.*)/.*\0\1/.*\0\1/};
die 'bindir, sharedir and pkglibdir have nothing in common' unless defined $prefix;
my %own = map { $_ => $scratch . substr($dir{$_}, length $prefix) } keys %dir;

sub link_all
{
	my ($from, $to, %skip) = @_;

	make_path($to);
	opendir(my $dh, $from) or die "$from: $!";
	foreach my $name (grep { !/^\.\.?$/ && !$skip{$_} } readdir $dh)
	{
		next if -e "$to/$name";
		symlink("$from/$name", "$to/$name") or die "$to/$name: $!";
	}
	closedir $dh;
	return;
}

my %program = map { $_ => 1 } qw(postgres initdb pg_ctl pg_config);
make_path($own{bindir});
foreach my $name (keys %program)
{
	copy("$dir{bindir}/$name", "$own{bindir}/$name") or die "$name: $!";
	chmod 0755, "$own{bindir}/$name";
}
link_all($dir{bindir}, $own{bindir}, %program);
link_all("$dir{sharedir}/extension", "$own{sharedir}/extension");
link_all($dir{sharedir}, $own{sharedir}, extension => 1);
link_all($dir{pkglibdir}, $own{pkglibdir}, 'lease_lock.so' => 1);
my $library = "$own{pkglibdir}/lease_lock.so";

# Puts a library where new sessions find it; old ones keep theirs.
sub put_library
{
	my ($from) = @_;

	copy($from, "$library.new") or die "$library.new: $!";
	chmod 0755, "$library.new";
	rename("$library.new", $library) or die "$library: $!";
	return;
}

my $old_library = "$dir{pkglibdir}/lease_lock.so";
put_library($old_library);

#
# The next version: "1.1column" and "1.1function" are halves of "1.1".
#
my $column = q(ALTER TABLE lease_lock.lease ADD COLUMN next bigint;);
my $symbol = q(CREATE FUNCTION lease_lock.answer() RETURNS integer LANGUAGE C AS 'MODULE_PATHNAME', 'll_answer';);
my %script = (
	'1.1column' => $column,
	'1.1function' => q(CREATE FUNCTION lease_lock.also_present(text, bigint) RETURNS bigint LANGUAGE C VOLATILE AS 'MODULE_PATHNAME', 'll_present';),
	'1.1' => "$column\n$symbol",
);
append_to_file("$own{sharedir}/extension/lease_lock--1.0--$_.sql", "$script{$_}\n") foreach keys %script;

sub edit
{
	my ($file, $from, $to) = @_;
	my $text = slurp_file($file);

	$text =~ s/$from/$to/ or die "$file has no $from";
	unlink $file;
	append_to_file($file, $text);
	return;
}

my $build = "$scratch/build";
make_path("$build/src");
copy($_, "$build/src/") foreach glob("$source/src/*.[ch]");
copy("$source/$_", "$build/") foreach qw(Makefile lease_lock.control);
make_path("$build/sql");
copy($_, "$build/sql/") foreach glob("$source/sql/*.sql");
edit("$build/src/lease_lock.h", qr/LEASE_PAYLOAD,\n\tLEASE_NATTS = LEASE_PAYLOAD/, "LEASE_PAYLOAD,\n\tLEASE_NEXT,\n\tLEASE_NATTS = LEASE_NEXT");
append_to_file("$build/src/main.c", "PG_FUNCTION_INFO_V1(ll_answer);\nDatum\nll_answer(PG_FUNCTION_ARGS)\n{\n\tPG_RETURN_INT32(42);\n}\n");
if (system("make -s -C $build PG_CONFIG=$pg_config COPT=-O0 with_llvm=no >$build/log 2>&1") != 0)
{
	diag(slurp_file("$build/log"));
	die 'the next version cannot be built';
}
my $new_library = "$build/lease_lock.so";

my $node = PostgreSQL::Test::Cluster->new('main', install_path => dirname($own{bindir}));
$node->init;
$node->append_conf('postgresql.conf', common_conf());
$node->start;
is(LeaseTest::Session->new($node)->query_ok(q(SELECT setting FROM pg_config() WHERE name = 'SHAREDIR')), $own{sharedir}, 'the server is the one of this test');

sub session
{
	my ($db) = @_;

	return LeaseTest::Session->new($node, dbname => $db);
}

my $tables = q(
CREATE TABLE held (id int);
CREATE TABLE newest (id int);
CREATE TABLE warned (id int);
CREATE TABLE by_row (id int);
CREATE TABLE in_column (id int, token bigint);
SELECT lease_lock.guard('held', 'job'), lease_lock.guard('newest', 'job', mode => 'newest'), lease_lock.guard('warned', 'job', action => 'warn'),
	lease_lock.guard('by_row', 'row/{id}'), lease_lock.guard_column('in_column', 'token', resource => 'job');
);
my $counts = 'SELECT (SELECT count(*) FROM held), (SELECT count(*) FROM newest), (SELECT count(*) FROM warned), (SELECT count(*) FROM by_row), (SELECT count(*) FROM in_column)';

# A database with the extension 1.0, guarded tables, and a lease on "job".
sub make_db
{
	my ($db) = @_;
	my $s;

	$node->safe_psql('postgres', "CREATE DATABASE $db");
	$s = session($db);
	$s->query_ok("CREATE EXTENSION lease_lock VERSION '1.0'; $tables");
	my $token = $s->query_ok(q(SELECT lease_lock.acquire('job', 'A', ttl => '1 h')));
	return ($s, $token);
}

sub mismatch
{
	my ($s, $sql, $name) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	$s->query($sql);
	is($s->state, '55000', "$name is refused") or diag($s->errors);
	like($s->errors, qr/^HINT:.*ALTER EXTENSION lease_lock UPDATE.*new session/m, "$name says what to do");
	return;
}

# Everything, in a session whose library is not of the tables' shape.
sub all_refused
{
	my ($s, $token, $what) = @_;
	my $before = $s->query_ok($counts);
	my %call = (
		acquire => q(SELECT lease_lock.acquire('other', 'A')),
		try_acquire => q(SELECT lease_lock.try_acquire('other', 'A')),
		'acquire of a held lease' => q(SELECT lease_lock.acquire('job', 'A')),
		renew => "SELECT lease_lock.renew('job', $token)",
		release => "SELECT lease_lock.release('job', $token)",
		assert_held => "SELECT lease_lock.assert_held('job', $token)",
		token_status => "SELECT lease_lock.token_status('job', $token)",
		force_release => q(SELECT lease_lock.force_release('job', 'a test')),
		prune => q(SELECT lease_lock.prune('0')),
		raise_token => 'SELECT lease_lock.raise_token(1000)',
		holders => 'SELECT * FROM lease_lock.holders',
		fences => 'SELECT * FROM lease_lock.fences',
	);

	mismatch($s, $call{$_}, "$what: $_") foreach sort keys %call;
	is($s->query_ok('SELECT 1'), '1', "$what: a statement of others works");
	is($s->query_ok('CREATE TEMP TABLE IF NOT EXISTS mine (id int); INSERT INTO mine VALUES (1) RETURNING id'), '1', "$what: so do tables without a guard");
	foreach my $insert ('held VALUES (1)', 'newest VALUES (1)', 'warned VALUES (1)', 'by_row VALUES (1)', "in_column VALUES (1, $token)")
	{
		$s->query_ok("BEGIN; SELECT lease_lock.present('job', $token), lease_lock.present('row/1', $token)");
		mismatch($s, "INSERT INTO $insert", "$what: INSERT INTO $insert");
		$s->query('ROLLBACK');
	}
	refused_with($s, "INSERT INTO $_ VALUES (1)", 'LL002', "$what: and without a token $_ says so") foreach qw(held newest by_row);
	is($s->query_ok($counts), $before, "$what: no write went in");
	$s->query_ok(q(SELECT lease_lock.advisory_lock('x'); SELECT lease_lock.advisory_unlock('x')));
	is($s->query_ok(q(SELECT count(*) FROM lease_lock.token_state, lease_lock.stats)), '1', "$what: what needs no lease works");
	return;
}

# What a session with the right library does.
sub works
{
	my ($s, $token, $what) = @_;

	isnt($s->query_ok("SELECT lease_lock.renew('job', $token)"), '', "$what: renew");
	is($s->query(qq(BEGIN; SELECT lease_lock.present('job', $token); INSERT INTO held VALUES (2); INSERT INTO newest VALUES (2); COMMIT)), $token,
		"$what: a guarded write");
	is($s->state, '', "$what: without an error");
	cmp_ok($s->query_ok(q(SELECT lease_lock.acquire('next', 'A', ttl => '1 h'))), '>', $token, "$what: acquire goes on upwards");
	refused_with($s, 'INSERT INTO held VALUES (3)', 'LL002', "$what: a write without a token is refused");
	return;
}

#
# A new version that only adds a function, while a session is at work.
#
my ($s1, $token) = make_db('adds_function');
my $s2 = session('adds_function');
$s1->query_ok("BEGIN; SELECT lease_lock.present('job', $token); INSERT INTO held VALUES (1)");
$s2->query_ok(q(ALTER EXTENSION lease_lock UPDATE TO '1.1function'));
is($s1->query_ok('INSERT INTO held VALUES (1) RETURNING id'), '1', 'added function: a transaction goes on over the update');
$s1->query_ok('COMMIT');
works($s1, $token, 'added function, a session from before');
works($s2, $token, 'added function, the session that updated');
is($s1->query_ok("BEGIN; SELECT lease_lock.also_present('job', $token); INSERT INTO held VALUES (1); COMMIT"), $token, 'added function: it can be called there');
$_->quit foreach ($s1, $s2);

#
# A new version that adds a column and a function, and the old library: with the
# function it cannot be installed, and with the column alone everything is refused.
#
($s1, $token) = make_db('adds_column');
$s2 = session('adds_column');
refused_with($s2, q(ALTER EXTENSION lease_lock UPDATE TO '1.1'), '42883', 'newer SQL: an update that the library cannot serve fails');
is($s2->query_ok(q(SELECT extversion FROM pg_extension WHERE extname = 'lease_lock')), '1.0', 'newer SQL: as a whole');
works($s1, $token, 'newer SQL, not installed');

# The update waits for the transaction that writes, and that can end its work.
$s1->query_ok("BEGIN; SELECT lease_lock.present('job', $token); INSERT INTO held VALUES (1)");
$s2->send(q(ALTER EXTENSION lease_lock UPDATE TO '1.1column'));
my $watch = session('postgres');
ok(wait_true($watch, 'SELECT count(*) > 0 FROM pg_locks WHERE NOT granted AND pid = ' . $s2->pid), 'newer SQL: the update waits for a guarded write in flight');
is($s1->query_ok('INSERT INTO held VALUES (1) RETURNING id'), '1', 'newer SQL: which writes on');
$s1->query_ok('COMMIT');
$s2->result;
is($s2->state, '', 'newer SQL: then it is done');
all_refused($s1, $token, 'newer SQL, a session from before');
all_refused($s2, $token, 'newer SQL, the session that updated');
$_->quit foreach ($s1, $s2);
$s1 = session('adds_column');
all_refused($s1, $token, 'newer SQL, a new session');
$s1->quit;

#
# The package is upgraded under an installed 1.0, and then the extension.
#
($s1, $token) = make_db('upgraded');
put_library($new_library);
works($s1, $token, 'newer library, a session from before');
$s2 = session('upgraded');
is($s2->query_ok('SELECT 1'), '1', 'newer library: SELECT 1');
all_refused($s2, $token, 'newer library, a new session');
works($s1, $token, 'newer library, the session from before once more');
$s2->query_ok(q(ALTER EXTENSION lease_lock UPDATE TO '1.1'));
works($s2, $token, 'updated, the session that updated');
is($s2->query_ok('SELECT lease_lock.answer()'), '42', 'updated: what is new works');
all_refused($s1, $token, 'updated, a session from before');
refused_with($s1, 'SELECT lease_lock.answer()', '42883', 'updated: there the new function is an error');
$s1->quit;
$s1 = session('upgraded');
works($s1, $token, 'updated, a new session');
$_->quit foreach ($s1, $s2);

# And the package goes back.
put_library($old_library);
$s1 = session('upgraded');
all_refused($s1, $token, 'downgraded library, a new session');
refused_with($s1, 'SELECT lease_lock.answer()', '42883', 'downgraded library: the new function is an error');
$s1->quit;

$watch->quit;
$node->stop;
unlike(slurp_file($node->logfile), qr/terminated by signal|PANIC|TRAP/, 'no server process crashed');
done_testing();
