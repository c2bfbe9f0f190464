# What the TAP tests of lease_lock share: a server with the extension, and psql
# sessions that can be left waiting while others work.
package LeaseTest;

use strict;
use warnings;

use Exporter 'import';
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time sleep);

our @EXPORT = qw(lease_server common_conf wait_true signal_backend refused_with);

# Settings of every server here.
sub common_conf
{
	return qq(
autovacuum = off
log_statement = none
max_connections = 60
max_prepared_transactions = 10
);
}

# lease_server(NAME, CONF, INIT-OPTION...): a running server whose database
# "postgres" has the extension.
sub lease_server
{
	my ($name, $conf, @init) = @_;
	my $node = PostgreSQL::Test::Cluster->new($name);

	$node->init(@init);
	$node->append_conf('postgresql.conf', common_conf() . ($conf // ''));
	$node->start;
	$node->safe_psql('postgres', 'CREATE EXTENSION lease_lock');
	return $node;
}

# Polls a query in a session until it returns t; false when it never does.
sub wait_true
{
	my ($session, $sql) = @_;
	my $end = time + $PostgreSQL::Test::Utils::timeout_default;

	while (time < $end)
	{
		return 1 if ($session->query($sql) // '') eq 't';
		sleep 0.02;
	}
	diag("never true: $sql");
	return 0;
}

# Stops (STOP) or continues (CONT) a process, or ends it (KILL).
sub signal_backend
{
	my ($signal, $pid) = @_;

	kill($signal, $pid) == 1 or die "could not send SIG$signal to $pid: $!";
	return;
}

# refused_with(SESSION, SQL, SQLSTATE, NAME): the first error of SQL has SQLSTATE.
sub refused_with
{
	my ($session, $sql, $state, $name) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	$session->query($sql);
	is($session->state, $state, $name) or diag($session->errors);
	return;
}

# What a session can be made to connect to beside a server: a transaction pooler
# with two server connections.
package LeaseTest::Pool;

use IPC::Run ();
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time sleep);

# The program; undef where there is none.
sub program
{
	my ($pgbouncer) = grep { -x } map { "$_/pgbouncer" } split(/:/, $ENV{PATH} // ''), '/usr/sbin', '/usr/local/sbin';

	return $pgbouncer;
}

# LeaseTest::Pool->start(NODE, USER): one to a server's database "postgres".
sub start
{
	my ($class, $node, $user) = @_;
	# With a short name, for the socket.
	my $folder = PostgreSQL::Test::Utils::tempdir_short();
	my $port = PostgreSQL::Test::Cluster::get_free_port();
	my $self = bless { connstr => "host=$folder port=$port dbname=postgres user=$user", log => '' }, $class;
	my $end = time + $PostgreSQL::Test::Utils::timeout_default;

	append_to_file("$folder/pgbouncer.ini", join("\n",
		'[databases]',
		'postgres = host=' . $node->host . ' port=' . $node->port . " dbname=postgres user=$user",
		'[pgbouncer]',
		'listen_addr =',
		"listen_port = $port",
		"unix_socket_dir = $folder",
		"logfile = $folder/pgbouncer.log",
		"pidfile = $folder/pgbouncer.pid",
		'auth_type = any',
		'pool_mode = transaction',
		'default_pool_size = 2',
		'server_idle_timeout = 0',
		'server_lifetime = 86400',
		'query_wait_timeout = 60',
		''));
	$self->{run} = IPC::Run::start([ program(), '-q', "$folder/pgbouncer.ini" ], '<', \undef, '>', \$self->{log}, '2>&1');
	until (-S "$folder/.s.PGSQL.$port" || time > $end)
	{
		$self->{run}->pump_nb;
		sleep 0.05;
	}
	return $self;
}

sub connstr { return $_[0]{connstr}; }

sub stop
{
	my ($self) = @_;

	$self->{run}->signal('TERM');
	eval { $self->{run}->finish; };
	diag($self->{log}) if $self->{log} =~ /FATAL/;
	return;
}

package LeaseTest::Session;

use IPC::Run ();
use PostgreSQL::Test::Utils;
use Time::HiRes qw(time sleep);

# LeaseTest::Session->new(NODE, option => value...): a psql process.  Options:
# dbname, user, options (PGOPTIONS).
sub new
{
	my ($class, $node, %opt) = @_;
	my $self = bless { in => '', out => '', err => '', n => 0, errors => '' }, $class;
	my $connstr = $node->connstr($opt{dbname} // 'postgres');

	$connstr .= " user=$opt{user}" if $opt{user};
	local $ENV{PGOPTIONS} = $opt{options} if $opt{options};
	$self->{run} = IPC::Run::start(
		[
			'psql', '-X', '-A', '-t', '-q', '-d', $connstr,
			'-v', 'ON_ERROR_STOP=0', '-v', 'VERBOSITY=verbose',
			'-v', 'SHOW_CONTEXT=never'
		],
		'<', \$self->{in}, '>', \$self->{out}, '2>', \$self->{err});
	$self->{pid} = $self->query('SELECT pg_backend_pid()');
	# The psql process itself: the parent of the shell that it starts.
	$self->{client} = $self->query('\\! echo $PPID');
	return $self;
}

sub pid { return $_[0]{pid}; }
sub client { return $_[0]{client}; }

# Hands SQL over and does not wait; result() does.
sub send
{
	my ($self, $sql) = @_;
	my $n = ++$self->{n};

	$sql .= ';' unless $sql =~ /^\\|[;.]\s*\z/;
	$self->{in} .= "$sql\n\\echo done $n\n\\warn done $n\n";
	$self->{started} = time;
	$self->{run}->pump_nb;
	return;
}

# Whether what was sent has come to its end; does not wait.
sub ready
{
	my ($self) = @_;
	my $n = $self->{n};

	eval { $self->{run}->pump_nb if $self->{run}->pumpable; };
	return $self->{out} =~ /^done $n$/m && $self->{err} =~ /^done $n$/m;
}

# The output of what was sent.  state() and errors() tell of its errors, and
# elapsed() how long it took.  A lost connection is SQLSTATE "lost", unless the
# server said why.
sub result
{
	my ($self) = @_;
	my $n = $self->{n};
	my $end = time + $PostgreSQL::Test::Utils::timeout_default;

	until ($self->ready)
	{
		die 'timed out waiting for: ' . $self->{out} . $self->{err} if time > $end;
		if (!$self->{run}->pumpable)
		{
			$self->{lost} = 1;
			last;
		}
		sleep 0.001;
	}
	$self->{elapsed} = time - $self->{started};
	my ($out, $errors) = ($self->{out}, $self->{err});
	$out =~ s/^done $n\n?//m;
	$errors =~ s/^done $n\n?//m;
	chomp $out;
	$self->{errors} = $errors;
	$self->{out} = $self->{err} = '';
	return $out;
}

sub query
{
	my ($self, $sql) = @_;

	$self->send($sql);
	return $self->result;
}

# Runs SQL that must not fail.
sub query_ok
{
	my ($self, $sql) = @_;
	my $out = $self->query($sql);

	die "unexpected error in \"$sql\": $self->{errors}" if $self->state ne '';
	return $out;
}

sub errors { return $_[0]{errors}; }
sub elapsed { return $_[0]{elapsed}; }

# The SQLSTATE of the first error of the last result; '' when there was none.
sub state
{
	my ($self) = @_;

	return $1 if $self->{errors} =~ /^(?:ERROR|FATAL):\s+([0-9A-Z]{5}):/m;
	return $self->{lost} ? 'lost' : '';
}

# The DETAIL of the last result, without line ends.
sub detail
{
	my ($self) = @_;

	return $self->{errors} =~ /^DETAIL:\s+(.*)$/m ? $1 : '';
}

sub quit
{
	my ($self) = @_;

	$self->{in} .= "\\q\n";
	eval { $self->{run}->finish; };
	return;
}

1;
