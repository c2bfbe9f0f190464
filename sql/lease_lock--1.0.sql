/* sql/lease_lock--1.0.sql */

-- complain if script is sourced in psql, rather than via CREATE EXTENSION
\echo Use "CREATE EXTENSION lease_lock" to load this file. \quit

-- Fails when the schema exists: nothing that somebody made before is adopted.
CREATE SCHEMA lease_lock;
COMMENT ON SCHEMA lease_lock IS
  'Leases with fencing tokens. GRANT USAGE on this schema lets a role use them.';

------------------------------------------------------------------------------
-- Storage.  Read and written by the C code alone (src/rows.c has the columns'
-- numbers); no role but the owner has any right on it.
------------------------------------------------------------------------------

-- No index on anything that a renewal changes and room on each page, so that
-- every update is HOT; pages are never given back, since truncation needs a
-- lock that a grant would wait for.  What grants and renewals change stands
-- first and together: WAL leaves out the equal rest of a row.
CREATE TABLE lease_lock.lease (
  version bigint NOT NULL,
  expire_at timestamptz NOT NULL,
  renewed_at timestamptz NOT NULL,
  acquired_at timestamptz NOT NULL,
  grant_xid xid8 NOT NULL,
  backend_start timestamptz NOT NULL,
  pid integer NOT NULL,
  ttl interval NOT NULL,
  resource text COLLATE pg_catalog."C" NOT NULL CONSTRAINT lease_pkey PRIMARY KEY,
  owner text COLLATE pg_catalog."C" NOT NULL,
  role text NOT NULL,
  scope text NOT NULL,
  ended_by text,
  ended_at timestamptz,
  free_at timestamptz,
  session bigint,
  application_name text,
  client_addr inet,
  payload jsonb
) USING heap WITH (fillfactor = 46, vacuum_truncate = off, toast.vacuum_truncate = off,
  autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 200,
  autovacuum_vacuum_cost_delay = 0);
-- Every look is by equality, for which a hash index is the shortest way.
CREATE INDEX lease_resource ON lease_lock.lease USING hash (resource);
COMMENT ON INDEX lease_lock.lease_resource IS 'By which leases are looked up; lease_pkey keeps names unique.';
-- Read in place from the page, never compressed; where a row is too long, its
-- payload alone is long enough to be moved out.  PLAIN would have a long header.
ALTER TABLE lease_lock.lease ALTER COLUMN resource SET STORAGE EXTERNAL, ALTER COLUMN owner SET STORAGE EXTERNAL;
COMMENT ON TABLE lease_lock.lease IS 'One row a resource: its newest grant. Written by the functions of lease_lock alone.';
COMMENT ON COLUMN lease_lock.lease.resource IS 'The name that leases are granted on, 1 to 512 bytes, compared byte for byte.';
COMMENT ON COLUMN lease_lock.lease.owner IS 'Which incarnation of which process acquired it, as the caller named it.';
COMMENT ON COLUMN lease_lock.lease.version IS 'The fencing token of the newest grant.';
COMMENT ON COLUMN lease_lock.lease.expire_at IS 'When the lease ends unless it is renewed, by the server''s clock.';
COMMENT ON COLUMN lease_lock.lease.acquired_at IS 'When the newest grant was made.';
COMMENT ON COLUMN lease_lock.lease.renewed_at IS 'When it was last renewed; at first when it was acquired.';
COMMENT ON COLUMN lease_lock.lease.ended_at IS 'When it was released; NULL while it was not.';
COMMENT ON COLUMN lease_lock.lease.ended_by IS 'released, forced, or transaction (scope transaction: ends with its own); NULL while it was not ended by a call.';
COMMENT ON COLUMN lease_lock.lease.free_at IS 'Until when nobody is granted after a release with a cooldown.';
COMMENT ON COLUMN lease_lock.lease.ttl IS 'The time to live that the grant asked for; a renewal without one uses it.';
COMMENT ON COLUMN lease_lock.lease.scope IS 'lease, session or transaction: what else ends it.';
COMMENT ON COLUMN lease_lock.lease.session IS 'Scope session: the key of the lock that the session holds while it lives; NULL otherwise.';
COMMENT ON COLUMN lease_lock.lease.payload IS 'What the caller of acquire wanted others to know.';
COMMENT ON COLUMN lease_lock.lease.role IS 'The role that acquired it (current_user).';
COMMENT ON COLUMN lease_lock.lease.application_name IS 'The application_name of the session that acquired it.';
COMMENT ON COLUMN lease_lock.lease.client_addr IS 'The address of the client that acquired it; NULL over a Unix socket.';
COMMENT ON COLUMN lease_lock.lease.pid IS 'The backend that acquired it.';
COMMENT ON COLUMN lease_lock.lease.backend_start IS 'When that backend started: a pid can be used again.';
COMMENT ON COLUMN lease_lock.lease.grant_xid IS 'The transaction that granted it.';
REVOKE ALL ON TABLE lease_lock.lease FROM PUBLIC;
SELECT pg_catalog.pg_extension_config_dump('lease_lock.lease', '');

CREATE TABLE lease_lock.fence (
  name text COLLATE pg_catalog."C" NOT NULL CONSTRAINT fence_pkey PRIMARY KEY,
  highest bigint NOT NULL,
  accepted_at timestamptz NOT NULL,
  accepted_by text NOT NULL
) USING heap WITH (fillfactor = 50, vacuum_truncate = off,
  autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 200,
  autovacuum_vacuum_cost_delay = 0);
ALTER TABLE lease_lock.fence ALTER COLUMN name SET STORAGE PLAIN;
COMMENT ON TABLE lease_lock.fence IS 'The highest token accepted under each name that is guarded in mode newest. Written by the guards alone.';
COMMENT ON COLUMN lease_lock.fence.name IS 'The guarded name.';
COMMENT ON COLUMN lease_lock.fence.highest IS 'The highest token that a write was accepted with; an older one is refused.';
COMMENT ON COLUMN lease_lock.fence.accepted_at IS 'When that token was first accepted.';
COMMENT ON COLUMN lease_lock.fence.accepted_by IS 'By which role (current_user of the write).';
REVOKE ALL ON TABLE lease_lock.fence FROM PUBLIC;
SELECT pg_catalog.pg_extension_config_dump('lease_lock.fence', '');

CREATE TABLE lease_lock.audit (
  at timestamptz NOT NULL,
  role text NOT NULL,
  session_role text NOT NULL,
  action text NOT NULL,
  object text NOT NULL,
  reason text,
  detail text
) USING heap;
COMMENT ON TABLE lease_lock.audit IS 'Every administrator''s act, and every eviction.';
COMMENT ON COLUMN lease_lock.audit.at IS 'When.';
COMMENT ON COLUMN lease_lock.audit.role IS 'As which role (current_user).';
COMMENT ON COLUMN lease_lock.audit.session_role IS 'Logged in as which role (session_user).';
COMMENT ON COLUMN lease_lock.audit.action IS 'force_release, evict, prune, raise_token, guard or unguard.';
COMMENT ON COLUMN lease_lock.audit.object IS 'The resource or the table that it was about.';
COMMENT ON COLUMN lease_lock.audit.reason IS 'Why, in the administrator''s words; NULL where none is asked for.';
COMMENT ON COLUMN lease_lock.audit.detail IS 'What was done.';
REVOKE ALL ON TABLE lease_lock.audit FROM PUBLIC;
GRANT SELECT ON TABLE lease_lock.audit TO pg_read_all_stats;
SELECT pg_catalog.pg_extension_config_dump('lease_lock.audit', '');

CREATE SEQUENCE lease_lock.token_seq AS bigint NO CYCLE;
COMMENT ON SEQUENCE lease_lock.token_seq IS 'The newest fencing token.';
REVOKE ALL ON SEQUENCE lease_lock.token_seq FROM PUBLIC;
-- Not part of a dump: restored into the database that it was taken from, it
-- would set tokens back.  Elsewhere place_seq makes the first grant jump.

CREATE SEQUENCE lease_lock.place_seq AS bigint NO CYCLE;
COMMENT ON SEQUENCE lease_lock.place_seq IS 'A fingerprint of where the newest token was minted: system, timeline, database and sequence.';
REVOKE ALL ON SEQUENCE lease_lock.place_seq FROM PUBLIC;
SELECT pg_catalog.pg_extension_config_dump('lease_lock.place_seq', '');

CREATE TABLE lease_lock.place (
  at timestamptz NOT NULL,
  highest bigint NOT NULL,
  started bigint NOT NULL,
  system_identifier text NOT NULL,
  timeline integer NOT NULL,
  database oid NOT NULL,
  sequence oid NOT NULL,
  reason text NOT NULL
) USING heap;
COMMENT ON TABLE lease_lock.place IS 'One row for each place where tokens began to be minted. Kept even where the transaction that came first was rolled back.';
COMMENT ON COLUMN lease_lock.place.at IS 'When.';
COMMENT ON COLUMN lease_lock.place.highest IS 'The highest token that was known then.';
COMMENT ON COLUMN lease_lock.place.started IS 'The value that tokens go on from.';
COMMENT ON COLUMN lease_lock.place.system_identifier IS 'The server''s, as pg_control_system() shows it.';
COMMENT ON COLUMN lease_lock.place.timeline IS 'The timeline; a promotion begins a new one.';
COMMENT ON COLUMN lease_lock.place.database IS 'The database''s OID.';
COMMENT ON COLUMN lease_lock.place.sequence IS 'The OID of token_seq.';
COMMENT ON COLUMN lease_lock.place.reason IS 'installed, or what had changed since the place before.';
REVOKE ALL ON TABLE lease_lock.place FROM PUBLIC;
SELECT pg_catalog.pg_extension_config_dump('lease_lock.place', '');

-- Rows that do not come from the C code, which fires no trigger: restored ones
-- and replicated ones.  Their tokens may have been minted elsewhere.
CREATE FUNCTION lease_lock.token_arrives() RETURNS trigger LANGUAGE C VOLATILE PARALLEL UNSAFE
  AS 'MODULE_PATHNAME', 'll_token_arrives';
COMMENT ON FUNCTION lease_lock.token_arrives() IS
  'Trigger of lease and fence: after a row with a token that was not minted here the next grant jumps.';
REVOKE ALL ON FUNCTION lease_lock.token_arrives() FROM PUBLIC;
CREATE TRIGGER token_arrives AFTER INSERT OR UPDATE ON lease_lock.lease
  FOR EACH ROW EXECUTE FUNCTION lease_lock.token_arrives();
ALTER TABLE lease_lock.lease ENABLE ALWAYS TRIGGER token_arrives;
CREATE TRIGGER token_arrives AFTER INSERT OR UPDATE ON lease_lock.fence
  FOR EACH ROW EXECUTE FUNCTION lease_lock.token_arrives();
ALTER TABLE lease_lock.fence ENABLE ALWAYS TRIGGER token_arrives;

-- A token minted here and lost on the way to a standby must not be minted
-- again there, not even the very first: remember where counting began.
CREATE FUNCTION lease_lock.settle_place() RETURNS void
  LANGUAGE C VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'll_settle_place';
SELECT lease_lock.settle_place();
DROP FUNCTION lease_lock.settle_place();

------------------------------------------------------------------------------
-- Leases.  PUBLIC may call these; USAGE on the schema is the permission.
------------------------------------------------------------------------------

CREATE FUNCTION lease_lock.acquire(resource text, owner text, ttl interval DEFAULT NULL,
    wait interval DEFAULT NULL, scope text DEFAULT 'lease', payload jsonb DEFAULT NULL)
  RETURNS bigint LANGUAGE C VOLATILE PARALLEL UNSAFE COST 10
  AS 'MODULE_PATHNAME', 'll_acquire';
COMMENT ON FUNCTION lease_lock.acquire(text, text, interval, interval, text, jsonb) IS
  'Grants a lease and returns its fencing token; waits for it at most wait, then raises 55P03.';

CREATE FUNCTION lease_lock.try_acquire(resource text, owner text, ttl interval DEFAULT NULL,
    scope text DEFAULT 'lease', payload jsonb DEFAULT NULL)
  RETURNS bigint LANGUAGE C VOLATILE PARALLEL UNSAFE COST 10
  AS 'MODULE_PATHNAME', 'll_try_acquire';
COMMENT ON FUNCTION lease_lock.try_acquire(text, text, interval, text, jsonb) IS
  'Grants a lease and returns its fencing token, or NULL at once when it is not to be had.';

CREATE FUNCTION lease_lock.renew(resource text, token bigint, ttl interval DEFAULT NULL)
  RETURNS timestamptz LANGUAGE C VOLATILE PARALLEL UNSAFE COST 10
  AS 'MODULE_PATHNAME', 'll_renew';
COMMENT ON FUNCTION lease_lock.renew(text, bigint, interval) IS
  'Lets a lease live for ttl from now; returns its new expire_at, or NULL when it is not this token''s any more.';

CREATE FUNCTION lease_lock.release(resource text, token bigint, cooldown interval DEFAULT NULL)
  RETURNS boolean LANGUAGE C VOLATILE PARALLEL UNSAFE COST 10
  AS 'MODULE_PATHNAME', 'll_release';
COMMENT ON FUNCTION lease_lock.release(text, bigint, interval) IS
  'Ends a lease; true if this call ended it. With cooldown nobody is granted before that is over.';

CREATE FUNCTION lease_lock.assert_held(resource text, token bigint)
  RETURNS interval LANGUAGE C VOLATILE PARALLEL UNSAFE COST 10
  AS 'MODULE_PATHNAME', 'll_assert_held';
COMMENT ON FUNCTION lease_lock.assert_held(text, bigint) IS
  'Presents a token and keeps everybody else from being granted until the transaction ends; returns the time left, or raises LL001, LL003 or LL004.';

CREATE FUNCTION lease_lock.token_status(resource text, token bigint, OUT state text,
    OUT expire_at timestamptz, OUT remaining interval, OUT ttl interval, OUT newest bigint, OUT holder text)
  RETURNS record LANGUAGE C VOLATILE PARALLEL UNSAFE COST 10
  AS 'MODULE_PATHNAME', 'll_token_status';
COMMENT ON FUNCTION lease_lock.token_status(text, bigint) IS
  'What became of a lease: held, expired, released, superseded or unknown, by its latest state.';

CREATE FUNCTION lease_lock.present(resource text, token bigint)
  RETURNS bigint LANGUAGE C VOLATILE PARALLEL UNSAFE
  AS 'MODULE_PATHNAME', 'll_present';
COMMENT ON FUNCTION lease_lock.present(text, bigint) IS
  'From now to the end of the transaction its writes carry token for resource; returns the token.';

------------------------------------------------------------------------------
-- Named advisory locks.
------------------------------------------------------------------------------

CREATE FUNCTION lease_lock.advisory_key(name text)
  RETURNS bigint LANGUAGE C IMMUTABLE PARALLEL SAFE
  AS 'MODULE_PATHNAME', 'll_advisory_key';
COMMENT ON FUNCTION lease_lock.advisory_key(text) IS
  'The key of a named advisory lock; pg_locks shows its halves as classid and objid, with objsubid 24.';

CREATE FUNCTION lease_lock.advisory_lock(name text, shared boolean DEFAULT false, wait interval DEFAULT NULL)
  RETURNS void LANGUAGE C VOLATILE PARALLEL UNSAFE
  AS 'MODULE_PATHNAME', 'll_advisory_lock';
COMMENT ON FUNCTION lease_lock.advisory_lock(text, boolean, interval) IS
  'Takes a named lock until it is unlocked or the session ends; waits at most wait (NULL: as long as lock_timeout lets it), then raises 55P03.';

CREATE FUNCTION lease_lock.advisory_xact_lock(name text, shared boolean DEFAULT false, wait interval DEFAULT NULL)
  RETURNS void LANGUAGE C VOLATILE PARALLEL UNSAFE
  AS 'MODULE_PATHNAME', 'll_advisory_xact_lock';
COMMENT ON FUNCTION lease_lock.advisory_xact_lock(text, boolean, interval) IS
  'Takes a named lock until the transaction ends; waits as advisory_lock does.';

CREATE FUNCTION lease_lock.try_advisory_lock(name text, shared boolean DEFAULT false)
  RETURNS boolean LANGUAGE C VOLATILE PARALLEL UNSAFE
  AS 'MODULE_PATHNAME', 'll_try_advisory_lock';
COMMENT ON FUNCTION lease_lock.try_advisory_lock(text, boolean) IS
  'Takes a named lock until it is unlocked or the session ends, if it can be had at once; whether it was.';

CREATE FUNCTION lease_lock.try_advisory_xact_lock(name text, shared boolean DEFAULT false)
  RETURNS boolean LANGUAGE C VOLATILE PARALLEL UNSAFE
  AS 'MODULE_PATHNAME', 'll_try_advisory_xact_lock';
COMMENT ON FUNCTION lease_lock.try_advisory_xact_lock(text, boolean) IS
  'Takes a named lock until the transaction ends, if it can be had at once; whether it was.';

CREATE FUNCTION lease_lock.advisory_unlock(name text, shared boolean DEFAULT false)
  RETURNS boolean LANGUAGE C VOLATILE PARALLEL UNSAFE
  AS 'MODULE_PATHNAME', 'll_advisory_unlock';
COMMENT ON FUNCTION lease_lock.advisory_unlock(text, boolean) IS
  'Gives up a named lock that this session took by advisory_lock or try_advisory_lock; false, with a warning that names the holder, when it did not.';

------------------------------------------------------------------------------
-- For administrators, until they grant them.
------------------------------------------------------------------------------

CREATE FUNCTION lease_lock.force_release(resource text, reason text, terminate boolean DEFAULT false)
  RETURNS bigint LANGUAGE C VOLATILE PARALLEL UNSAFE COST 10
  AS 'MODULE_PATHNAME', 'll_force_release';
COMMENT ON FUNCTION lease_lock.force_release(text, text, boolean) IS
  'Ends a lease and makes its token stale everywhere; returns the token, or NULL. With terminate, ends the transactions that wrote under it. Audited.';
REVOKE ALL ON FUNCTION lease_lock.force_release(text, text, boolean) FROM PUBLIC;

CREATE FUNCTION lease_lock.prune(idle interval DEFAULT '1 day')
  RETURNS bigint LANGUAGE C VOLATILE PARALLEL UNSAFE COST 1000
  AS 'MODULE_PATHNAME', 'll_prune';
COMMENT ON FUNCTION lease_lock.prune(interval) IS
  'Removes the rows of leases that ended longer ago than idle; returns how many.';
REVOKE ALL ON FUNCTION lease_lock.prune(interval) FROM PUBLIC;

CREATE FUNCTION lease_lock.raise_token(floor bigint, force boolean DEFAULT false)
  RETURNS bigint LANGUAGE C VOLATILE PARALLEL UNSAFE COST 10
  AS 'MODULE_PATHNAME', 'll_raise_token';
COMMENT ON FUNCTION lease_lock.raise_token(bigint, boolean) IS
  'Makes every token granted from now on larger than floor; never lowers. Returns what tokens go on from. force allows what would waste the token space.';
REVOKE ALL ON FUNCTION lease_lock.raise_token(bigint, boolean) FROM PUBLIC;

------------------------------------------------------------------------------
-- Guards.
------------------------------------------------------------------------------

CREATE FUNCTION lease_lock.fence() RETURNS trigger LANGUAGE C VOLATILE PARALLEL UNSAFE
  AS 'MODULE_PATHNAME', 'll_fence';
COMMENT ON FUNCTION lease_lock.fence() IS
  'Trigger: the fencing check. Arguments: resource template, mode (held or newest), action (enforce or warn).';
REVOKE ALL ON FUNCTION lease_lock.fence() FROM PUBLIC;

CREATE FUNCTION lease_lock.fence_column() RETURNS trigger LANGUAGE C VOLATILE PARALLEL UNSAFE
  AS 'MODULE_PATHNAME', 'll_fence_column';
COMMENT ON FUNCTION lease_lock.fence_column() IS
  'Trigger: the fencing check of a token that travels in a column. Arguments: column, action (enforce or warn), resource template.';
REVOKE ALL ON FUNCTION lease_lock.fence_column() FROM PUBLIC;

CREATE FUNCTION lease_lock.guard(target regclass, resource text, mode text DEFAULT 'held',
    action text DEFAULT 'enforce', events text DEFAULT 'insert,update,delete,truncate')
  RETURNS void LANGUAGE C VOLATILE PARALLEL UNSAFE COST 1000
  AS 'MODULE_PATHNAME', 'll_guard';
COMMENT ON FUNCTION lease_lock.guard(regclass, text, text, text, text) IS
  'Puts the fencing triggers on a table, or changes them in place.';
REVOKE ALL ON FUNCTION lease_lock.guard(regclass, text, text, text, text) FROM PUBLIC;

CREATE FUNCTION lease_lock.guard_column(target regclass, token_column name,
    action text DEFAULT 'enforce', resource text DEFAULT NULL)
  RETURNS void LANGUAGE C VOLATILE PARALLEL UNSAFE COST 1000
  AS 'MODULE_PATHNAME', 'll_guard_column';
COMMENT ON FUNCTION lease_lock.guard_column(regclass, name, text, text) IS
  'Puts fencing triggers on a table whose rows carry their token in a column, or changes them in place.';
REVOKE ALL ON FUNCTION lease_lock.guard_column(regclass, name, text, text) FROM PUBLIC;

CREATE FUNCTION lease_lock.unguard(target regclass)
  RETURNS boolean LANGUAGE C VOLATILE PARALLEL UNSAFE COST 1000
  AS 'MODULE_PATHNAME', 'll_unguard';
COMMENT ON FUNCTION lease_lock.unguard(regclass) IS
  'Takes the triggers of guard and guard_column off a table; true if there were any.';
REVOKE ALL ON FUNCTION lease_lock.unguard(regclass) FROM PUBLIC;

------------------------------------------------------------------------------
-- Views.
------------------------------------------------------------------------------

CREATE FUNCTION lease_lock.holders_data(OUT resource text, OUT owner text, OUT token bigint,
    OUT expire_at timestamptz, OUT remaining interval, OUT held_for interval, OUT scope text,
    OUT state text, OUT waiters integer, OUT payload jsonb, OUT role text,
    OUT application_name text, OUT client_addr inet, OUT pid integer, OUT grant_pid integer)
  RETURNS SETOF record LANGUAGE C VOLATILE PARALLEL UNSAFE COST 100 ROWS 100
  AS 'MODULE_PATHNAME', 'll_holders';
COMMENT ON FUNCTION lease_lock.holders_data() IS 'Behind the view lease_lock.holders.';

CREATE VIEW lease_lock.holders AS
  SELECT h.resource, h.owner, h.token, h.expire_at, h.remaining, h.held_for, h.scope, h.state,
         h.waiters, h.payload, h.role, h.application_name, h.client_addr, h.pid, h.grant_pid
  FROM lease_lock.holders_data() AS h;
COMMENT ON VIEW lease_lock.holders IS 'Who holds what: leases that were not released, at their latest state.';
COMMENT ON COLUMN lease_lock.holders.resource IS 'The name that the lease is on.';
COMMENT ON COLUMN lease_lock.holders.owner IS 'Who acquired it, in its own words.';
COMMENT ON COLUMN lease_lock.holders.token IS 'The fencing token of the grant.';
COMMENT ON COLUMN lease_lock.holders.expire_at IS 'When it ends unless it is renewed.';
COMMENT ON COLUMN lease_lock.holders.remaining IS 'Time until then; zero when it has expired.';
COMMENT ON COLUMN lease_lock.holders.held_for IS 'Time since it was acquired.';
COMMENT ON COLUMN lease_lock.holders.scope IS 'What else ends it: nothing (lease), the end of its session or of its transaction.';
COMMENT ON COLUMN lease_lock.holders.state IS 'held; expired (and taken by nobody yet); uncommitted or prepared (granted by a transaction that is still open).';
COMMENT ON COLUMN lease_lock.holders.waiters IS 'How many backends wait in acquire for this name.';
COMMENT ON COLUMN lease_lock.holders.payload IS 'What the holder wanted others to know; NULL for other roles'' without pg_read_all_stats.';
COMMENT ON COLUMN lease_lock.holders.role IS 'The role that acquired it.';
COMMENT ON COLUMN lease_lock.holders.application_name IS 'Of the session that acquired it; NULL for other roles'' without pg_read_all_stats.';
COMMENT ON COLUMN lease_lock.holders.client_addr IS 'Of the session that acquired it; NULL for other roles'' without pg_read_all_stats.';
COMMENT ON COLUMN lease_lock.holders.pid IS 'The backend whose end would end the lease; NULL where there is none.';
COMMENT ON COLUMN lease_lock.holders.grant_pid IS 'The backend that acquired it; it may have gone, and its pid may be another''s by now.';
REVOKE ALL ON TABLE lease_lock.holders FROM PUBLIC;
GRANT SELECT ON TABLE lease_lock.holders TO PUBLIC;

CREATE FUNCTION lease_lock.fences_data(OUT name text, OUT highest bigint, OUT mode text,
    OUT accepted_at timestamptz, OUT accepted_by text)
  RETURNS SETOF record LANGUAGE C VOLATILE PARALLEL UNSAFE COST 100 ROWS 100
  AS 'MODULE_PATHNAME', 'll_fences';
COMMENT ON FUNCTION lease_lock.fences_data() IS 'Behind the view lease_lock.fences.';

CREATE VIEW lease_lock.fences AS
  SELECT f.name, f.highest, f.mode, f.accepted_at, f.accepted_by
  FROM lease_lock.fences_data() AS f;
COMMENT ON VIEW lease_lock.fences IS 'The token below which each name refuses writes.';
COMMENT ON COLUMN lease_lock.fences.name IS 'The guarded name.';
COMMENT ON COLUMN lease_lock.fences.highest IS 'The newest token: an older one is refused.';
COMMENT ON COLUMN lease_lock.fences.mode IS 'held: the newest grant of the lease; newest: the highest token that a write was accepted with.';
COMMENT ON COLUMN lease_lock.fences.accepted_at IS 'When it was granted (held) or first accepted (newest).';
COMMENT ON COLUMN lease_lock.fences.accepted_by IS 'The role that acquired it (held) or wrote with it (newest).';
REVOKE ALL ON TABLE lease_lock.fences FROM PUBLIC;
GRANT SELECT ON TABLE lease_lock.fences TO PUBLIC;

CREATE FUNCTION lease_lock.waiters_data(OUT resource text, OUT owner text, OUT place integer,
    OUT waiting_since timestamptz, OUT deadline timestamptz, OUT holder text, OUT blocked_by integer[],
    OUT role text, OUT pid integer)
  RETURNS SETOF record LANGUAGE C VOLATILE PARALLEL UNSAFE COST 100 ROWS 100
  AS 'MODULE_PATHNAME', 'll_waiters';
COMMENT ON FUNCTION lease_lock.waiters_data() IS 'Behind the view lease_lock.waiters.';

CREATE VIEW lease_lock.waiters AS
  SELECT w.resource, w.owner, w.place, w.waiting_since, w.deadline, w.holder, w.blocked_by, w.role, w.pid
  FROM lease_lock.waiters_data() AS w;
COMMENT ON VIEW lease_lock.waiters IS 'Who waits in acquire, in the order in which they will be granted.';
COMMENT ON COLUMN lease_lock.waiters.resource IS 'The name that is waited for.';
COMMENT ON COLUMN lease_lock.waiters.owner IS 'Who wants to acquire it, in its own words.';
COMMENT ON COLUMN lease_lock.waiters.place IS 'Place in line for that name, from 1.';
COMMENT ON COLUMN lease_lock.waiters.waiting_since IS 'When acquire was called.';
COMMENT ON COLUMN lease_lock.waiters.deadline IS 'When it gives up: the end of its wait, or of lock_timeout.';
COMMENT ON COLUMN lease_lock.waiters.holder IS 'The owner that holds the lease, or is just being granted it; NULL when nobody does.';
COMMENT ON COLUMN lease_lock.waiters.blocked_by IS 'Backends that keep it out: those whose transactions it waits for (0: a prepared one), or the session that acquired the lease, if that is still there.';
COMMENT ON COLUMN lease_lock.waiters.role IS 'The role that waits.';
COMMENT ON COLUMN lease_lock.waiters.pid IS 'The backend that waits.';
REVOKE ALL ON TABLE lease_lock.waiters FROM PUBLIC;
GRANT SELECT ON TABLE lease_lock.waiters TO PUBLIC;

CREATE FUNCTION lease_lock.advisory_locks_data(OUT key bigint, OUT name text, OUT mode text,
    OUT scope text, OUT granted boolean, OUT since timestamptz, OUT pid integer,
    OUT backend_start timestamptz, OUT prepared_xid xid)
  RETURNS SETOF record LANGUAGE C VOLATILE PARALLEL UNSAFE COST 100 ROWS 100
  AS 'MODULE_PATHNAME', 'll_advisory_locks';
COMMENT ON FUNCTION lease_lock.advisory_locks_data() IS 'Behind the view lease_lock.advisory_locks.';

CREATE VIEW lease_lock.advisory_locks AS
  SELECT l.name, l.mode, l.scope, l.granted, l.since, l.pid, l.backend_start,
         a.usename::text AS role,
         CASE WHEN a.state IS NOT NULL THEN a.application_name END AS application_name,
         a.state AS backend_state, p.gid, l.key
  FROM lease_lock.advisory_locks_data() AS l
  LEFT JOIN pg_catalog.pg_stat_activity AS a ON a.pid OPERATOR(pg_catalog.=) l.pid
  LEFT JOIN pg_catalog.pg_prepared_xacts AS p ON p.transaction OPERATOR(pg_catalog.=) l.prepared_xid;
COMMENT ON VIEW lease_lock.advisory_locks IS 'Named advisory locks of this database that are held or waited for.';
COMMENT ON COLUMN lease_lock.advisory_locks.name IS 'The name; NULL only for a prepared transaction that is older than the server''s start.';
COMMENT ON COLUMN lease_lock.advisory_locks.mode IS 'exclusive or shared.';
COMMENT ON COLUMN lease_lock.advisory_locks.scope IS 'What it lasts to the end of, unless it is unlocked: session or transaction.';
COMMENT ON COLUMN lease_lock.advisory_locks.granted IS 'False while it is waited for.';
COMMENT ON COLUMN lease_lock.advisory_locks.since IS 'Since when it is held, or waited for.';
COMMENT ON COLUMN lease_lock.advisory_locks.pid IS 'The backend; NULL for a prepared transaction.';
COMMENT ON COLUMN lease_lock.advisory_locks.backend_start IS 'When that backend started: a pid can be used again.';
COMMENT ON COLUMN lease_lock.advisory_locks.role IS 'The role that is logged in there.';
COMMENT ON COLUMN lease_lock.advisory_locks.application_name IS 'What the session calls itself; behind a pool, whoever uses it now; NULL for other roles'' without pg_read_all_stats.';
COMMENT ON COLUMN lease_lock.advisory_locks.backend_state IS 'What it does (pg_stat_activity.state): a session-level lock of an idle backend was left there by somebody, perhaps through a pool; NULL for other roles'' without pg_read_all_stats.';
COMMENT ON COLUMN lease_lock.advisory_locks.gid IS 'The prepared transaction that holds it.';
COMMENT ON COLUMN lease_lock.advisory_locks.key IS 'advisory_key(name).';
REVOKE ALL ON TABLE lease_lock.advisory_locks FROM PUBLIC;
GRANT SELECT ON TABLE lease_lock.advisory_locks TO PUBLIC;

CREATE FUNCTION lease_lock.token_state_data(OUT last_token bigint, OUT tokens_left bigint, OUT moved boolean,
    OUT minted_since timestamptz, OUT system_identifier text, OUT timeline integer, OUT database oid,
    OUT jumped_at timestamptz, OUT jumped_from bigint, OUT jumped_to bigint, OUT jump_reason text)
  RETURNS record LANGUAGE C VOLATILE PARALLEL UNSAFE COST 100
  AS 'MODULE_PATHNAME', 'll_token_state';
COMMENT ON FUNCTION lease_lock.token_state_data() IS 'Behind the view lease_lock.token_state.';

CREATE VIEW lease_lock.token_state AS
  SELECT s.last_token, s.tokens_left, s.moved, s.minted_since, s.system_identifier, s.timeline,
         d.datname::text AS database, s.jumped_at, s.jumped_from, s.jumped_to, s.jump_reason
  FROM lease_lock.token_state_data() AS s
  LEFT JOIN pg_catalog.pg_database AS d ON d.oid OPERATOR(pg_catalog.=) s.database;
COMMENT ON VIEW lease_lock.token_state IS 'Where tokens are minted, and how far they have come.';
COMMENT ON COLUMN lease_lock.token_state.last_token IS 'The last token; after a crash and on a standby up to 32 more.';
COMMENT ON COLUMN lease_lock.token_state.tokens_left IS 'How many more there are.';
COMMENT ON COLUMN lease_lock.token_state.moved IS 'Whether the next grant finds itself at another place and jumps first; NULL on a standby.';
COMMENT ON COLUMN lease_lock.token_state.minted_since IS 'Since when tokens are minted at the place that follows.';
COMMENT ON COLUMN lease_lock.token_state.system_identifier IS 'The server''s, as pg_control_system() shows it.';
COMMENT ON COLUMN lease_lock.token_state.timeline IS 'The timeline of that server.';
COMMENT ON COLUMN lease_lock.token_state.database IS 'The database there; NULL when it is not of this server.';
COMMENT ON COLUMN lease_lock.token_state.jumped_at IS 'When tokens jumped last; NULL when they never did.';
COMMENT ON COLUMN lease_lock.token_state.jumped_from IS 'The highest token that was known then.';
COMMENT ON COLUMN lease_lock.token_state.jumped_to IS 'The value that they went on from.';
COMMENT ON COLUMN lease_lock.token_state.jump_reason IS 'What had changed.';
REVOKE ALL ON TABLE lease_lock.token_state FROM PUBLIC;
GRANT SELECT ON TABLE lease_lock.token_state TO PUBLIC;

CREATE FUNCTION lease_lock.stats_data(OUT evictions bigint, OUT deadlocks bigint)
  RETURNS record LANGUAGE C VOLATILE PARALLEL UNSAFE COST 100
  AS 'MODULE_PATHNAME', 'll_stats';
COMMENT ON FUNCTION lease_lock.stats_data() IS 'Behind the view lease_lock.stats.';

CREATE VIEW lease_lock.stats AS
  SELECT s.evictions, s.deadlocks FROM lease_lock.stats_data() AS s;
COMMENT ON VIEW lease_lock.stats IS 'Counters of this database since the server''s start; rollbacks do not undo them.';
COMMENT ON COLUMN lease_lock.stats.evictions IS 'Transactions that were ended, or told to end, because they kept an expired lease from being granted.';
COMMENT ON COLUMN lease_lock.stats.deadlocks IS 'Deadlocks through leases that were broken by 40P01.';
REVOKE ALL ON TABLE lease_lock.stats FROM PUBLIC;
GRANT SELECT ON TABLE lease_lock.stats TO PUBLIC;

------------------------------------------------------------------------------
-- Whatever default privileges gave to anybody is taken back: what is granted
-- here is granted above.
------------------------------------------------------------------------------

DO $$
DECLARE
  acl record;
BEGIN
  FOR acl IN
    SELECT o.kind, o.object, a.grantee::pg_catalog.regrole AS grantee
    FROM (
      SELECT 'TABLE' AS kind, c.oid::pg_catalog.regclass::text AS object, c.relowner AS owner, c.relacl AS acl
      FROM pg_catalog.pg_class AS c
      WHERE c.relnamespace OPERATOR(pg_catalog.=) 'lease_lock'::pg_catalog.regnamespace
        AND c.relkind IN ('r', 'v', 'S')
      UNION ALL
      SELECT 'ROUTINE', p.oid::pg_catalog.regprocedure::text, p.proowner, p.proacl
      FROM pg_catalog.pg_proc AS p
      WHERE p.pronamespace OPERATOR(pg_catalog.=) 'lease_lock'::pg_catalog.regnamespace
      UNION ALL
      SELECT 'SCHEMA', 'lease_lock', n.nspowner, n.nspacl
      FROM pg_catalog.pg_namespace AS n
      WHERE n.oid OPERATOR(pg_catalog.=) 'lease_lock'::pg_catalog.regnamespace
    ) AS o, LATERAL pg_catalog.aclexplode(o.acl) AS a
    WHERE a.grantee OPERATOR(pg_catalog.<>) o.owner
      AND a.grantee OPERATOR(pg_catalog.<>) 0
      AND NOT (o.object OPERATOR(pg_catalog.=) 'lease_lock.audit'
               AND a.grantee OPERATOR(pg_catalog.=) 'pg_read_all_stats'::pg_catalog.regrole
               AND a.privilege_type OPERATOR(pg_catalog.=) 'SELECT')
    GROUP BY 1, 2, 3
  LOOP
    EXECUTE pg_catalog.format('REVOKE ALL ON %s %s FROM %s CASCADE', acl.kind, acl.object, acl.grantee);
  END LOOP;
  GRANT SELECT ON TABLE lease_lock.audit TO pg_read_all_stats;
END $$;
