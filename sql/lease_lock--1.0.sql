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
  renewals integer NOT NULL,
  ttl interval NOT NULL,
  longest_gap bigint NOT NULL,
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
COMMENT ON COLUMN lease_lock.lease.renewals IS 'How often the newest grant was renewed.';
COMMENT ON COLUMN lease_lock.lease.longest_gap IS 'The longest time from the grant or a renewal to the next renewal, in microseconds.';
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
COMMENT ON COLUMN lease_lock.audit.action IS 'force_release, evict, prune, prune_history, raise_token, forget_fence, guard, unguard, bypass, allow or disallow.';
COMMENT ON COLUMN lease_lock.audit.object IS 'The resource or the table that it was about.';
COMMENT ON COLUMN lease_lock.audit.reason IS 'Why, in the administrator''s words; NULL where none is asked for.';
COMMENT ON COLUMN lease_lock.audit.detail IS 'What was done.';
REVOKE ALL ON TABLE lease_lock.audit FROM PUBLIC;
SELECT pg_catalog.pg_extension_config_dump('lease_lock.audit', '');

CREATE TABLE lease_lock.permission (
  pattern text COLLATE pg_catalog."C" NOT NULL,
  role text NOT NULL,
  privilege text NOT NULL,
  allowed_by text NOT NULL,
  allowed_at timestamptz NOT NULL
) USING heap;
COMMENT ON TABLE lease_lock.permission IS 'Rights by name. Written by allow and disallow alone.';
COMMENT ON COLUMN lease_lock.permission.pattern IS 'Which names it covers, as LIKE matches them.';
COMMENT ON COLUMN lease_lock.permission.role IS 'Who is allowed, by name, with the members of that role.';
COMMENT ON COLUMN lease_lock.permission.privilege IS 'acquire or force.';
COMMENT ON COLUMN lease_lock.permission.allowed_by IS 'The role that called allow.';
COMMENT ON COLUMN lease_lock.permission.allowed_at IS 'When.';
REVOKE ALL ON TABLE lease_lock.permission FROM PUBLIC;
SELECT pg_catalog.pg_extension_config_dump('lease_lock.permission', '');

CREATE TABLE lease_lock.history (
  token bigint NOT NULL,
  resource text COLLATE pg_catalog."C" NOT NULL,
  owner text COLLATE pg_catalog."C" NOT NULL,
  role text NOT NULL,
  application_name text,
  client_addr inet,
  scope text NOT NULL,
  payload jsonb,
  granted_at timestamptz NOT NULL,
  ended_at timestamptz NOT NULL,
  ended_by text NOT NULL,
  renewals integer NOT NULL,
  longest_gap interval
) USING heap;
CREATE INDEX history_resource ON lease_lock.history USING btree (resource, granted_at);
COMMENT ON INDEX lease_lock.history_resource IS 'For holder_at and overlaps.';
COMMENT ON TABLE lease_lock.history IS 'One row for every grant that has ended while lease_lock.history was on.';
COMMENT ON COLUMN lease_lock.history.token IS 'The fencing token of the grant.';
COMMENT ON COLUMN lease_lock.history.resource IS 'The name that it was on.';
COMMENT ON COLUMN lease_lock.history.owner IS 'Who had acquired it, in its own words.';
COMMENT ON COLUMN lease_lock.history.role IS 'The role that acquired it.';
COMMENT ON COLUMN lease_lock.history.application_name IS 'The application_name of the session that acquired it.';
COMMENT ON COLUMN lease_lock.history.client_addr IS 'The address of the client that acquired it; NULL over a Unix socket.';
COMMENT ON COLUMN lease_lock.history.scope IS 'lease, session or transaction.';
COMMENT ON COLUMN lease_lock.history.payload IS 'What the caller of acquire wanted others to know.';
COMMENT ON COLUMN lease_lock.history.granted_at IS 'When it was granted.';
COMMENT ON COLUMN lease_lock.history.ended_at IS 'When it ended: the release, the expiry, or where neither came before, the moment when it was found to have ended. For scope transaction the grant: when the transaction ended is not known.';
COMMENT ON COLUMN lease_lock.history.ended_by IS 'released; expired (never released, and taken over or pruned later); reacquired by its owner; forced; session gone; or transaction.';
COMMENT ON COLUMN lease_lock.history.renewals IS 'How often it was renewed.';
COMMENT ON COLUMN lease_lock.history.longest_gap IS 'The longest time from the grant or a renewal to the next renewal; NULL without one.';
REVOKE ALL ON TABLE lease_lock.history FROM PUBLIC;
SELECT pg_catalog.pg_extension_config_dump('lease_lock.history', '');

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

-- Sessions keep the rights that they have read until they hear of a change.
CREATE FUNCTION lease_lock.rights_change() RETURNS trigger LANGUAGE C VOLATILE PARALLEL UNSAFE
  AS 'MODULE_PATHNAME', 'll_rights_change';
COMMENT ON FUNCTION lease_lock.rights_change() IS
  'Trigger of permission: sessions read the rights again after rows that allow and disallow have not written.';
REVOKE ALL ON FUNCTION lease_lock.rights_change() FROM PUBLIC;
CREATE TRIGGER rights_change AFTER INSERT OR UPDATE OR DELETE ON lease_lock.permission
  FOR EACH ROW EXECUTE FUNCTION lease_lock.rights_change();
ALTER TABLE lease_lock.permission ENABLE ALWAYS TRIGGER rights_change;

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

CREATE FUNCTION lease_lock.forget_fence(name text)
  RETURNS bigint LANGUAGE C VOLATILE PARALLEL UNSAFE COST 10
  AS 'MODULE_PATHNAME', 'll_forget_fence';
COMMENT ON FUNCTION lease_lock.forget_fence(text) IS
  'Forgets the highest token accepted under a name in mode newest, so that tokens may begin anew; returns it, or NULL. Audited.';
REVOKE ALL ON FUNCTION lease_lock.forget_fence(text) FROM PUBLIC;

CREATE FUNCTION lease_lock.allow(pattern text, role name, privilege text)
  RETURNS boolean LANGUAGE C VOLATILE PARALLEL UNSAFE COST 10
  AS 'MODULE_PATHNAME', 'll_allow';
COMMENT ON FUNCTION lease_lock.allow(text, name, text) IS
  'Lets a role acquire (or force the release of) the names that a LIKE pattern covers, and from then on nobody else that no such right allows; true if it is new. Audited.';
REVOKE ALL ON FUNCTION lease_lock.allow(text, name, text) FROM PUBLIC;

CREATE FUNCTION lease_lock.disallow(pattern text, role name, privilege text)
  RETURNS boolean LANGUAGE C VOLATILE PARALLEL UNSAFE COST 10
  AS 'MODULE_PATHNAME', 'll_disallow';
COMMENT ON FUNCTION lease_lock.disallow(text, name, text) IS
  'Takes back what allow gave; true if there was such a right. A name that no pattern covers any more is anybody''s. Audited.';
REVOKE ALL ON FUNCTION lease_lock.disallow(text, name, text) FROM PUBLIC;

------------------------------------------------------------------------------
-- Guards.
------------------------------------------------------------------------------

CREATE FUNCTION lease_lock.fence() RETURNS trigger LANGUAGE C VOLATILE PARALLEL UNSAFE
  AS 'MODULE_PATHNAME', 'll_fence';
COMMENT ON FUNCTION lease_lock.fence() IS
  'Trigger: the fencing check. Arguments: resource template, mode (held or newest), action (enforce or warn), the events that the guard as a whole is meant to cover.';
REVOKE ALL ON FUNCTION lease_lock.fence() FROM PUBLIC;

CREATE FUNCTION lease_lock.fence_column() RETURNS trigger LANGUAGE C VOLATILE PARALLEL UNSAFE
  AS 'MODULE_PATHNAME', 'll_fence_column';
COMMENT ON FUNCTION lease_lock.fence_column() IS
  'Trigger: the fencing check of a token that travels in a column. Arguments: column, action (enforce or warn), resource template.';
REVOKE ALL ON FUNCTION lease_lock.fence_column() FROM PUBLIC;

CREATE FUNCTION lease_lock.recheck_due()
  RETURNS boolean LANGUAGE C VOLATILE PARALLEL UNSAFE
  AS 'MODULE_PATHNAME', 'll_recheck_due';
COMMENT ON FUNCTION lease_lock.recheck_due() IS
  'Condition of the guards'' AFTER triggers: whether a row may have been changed after its check.';

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

CREATE FUNCTION lease_lock.bypass(target regclass, reason text)
  RETURNS void LANGUAGE C VOLATILE PARALLEL UNSAFE COST 100
  AS 'MODULE_PATHNAME', 'll_bypass';
COMMENT ON FUNCTION lease_lock.bypass(regclass, text) IS
  'Lets this transaction write past the guards of a table of one''s own, excluding grants meanwhile. Counted and audited.';
REVOKE ALL ON FUNCTION lease_lock.bypass(regclass, text) FROM PUBLIC;

------------------------------------------------------------------------------
-- Views.
------------------------------------------------------------------------------

CREATE FUNCTION lease_lock.trigger_args(args bytea)
  RETURNS text[] LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE
  AS 'MODULE_PATHNAME', 'll_trigger_args';
COMMENT ON FUNCTION lease_lock.trigger_args(bytea) IS 'Behind the view lease_lock.guards: the arguments of a trigger.';

-- Reads the catalogs alone.  tgtype: 1 row, 2 before, 4 insert, 8 delete,
-- 16 update, 32 truncate.
CREATE VIEW lease_lock.guard_state AS
WITH RECURSIVE call AS (
  SELECT t.tgrelid AS relid, t.tgname, t.tgenabled, t.tgtype::integer AS type, t.tgqual IS NOT NULL AS conditional,
         t.tgattr::text <> '' AS some_columns, p.proname::text AS kind, lease_lock.trigger_args(t.tgargs) AS args,
         -- Called in order before each row that is inserted or updated.
         t.tgtype & 3 = 3 AND t.tgtype & 20 <> 0 AS before_rows
  FROM pg_trigger AS t
  JOIN pg_proc AS p ON p.oid = t.tgfoid
  JOIN pg_namespace AS n ON n.oid = p.pronamespace
  WHERE n.nspname = 'lease_lock' AND p.proname IN ('fence', 'fence_column')
), argued AS (
  SELECT c.*,
         CASE c.kind WHEN 'fence_column' THEN c.args[1] END AS token_column,
         CASE c.kind WHEN 'fence' THEN c.args[1] ELSE c.args[3] END AS template,
         CASE WHEN c.kind = 'fence' THEN coalesce(c.args[2], 'held')
              WHEN c.args[3] IS NULL THEN 'newest' ELSE 'held' END AS mode,
         coalesce(CASE c.kind WHEN 'fence' THEN c.args[3] ELSE c.args[2] END, 'enforce') AS action,
         CASE c.kind WHEN 'fence' THEN c.args[4] END AS meant
  FROM call AS c
), guard AS (
  SELECT a.relid, a.kind, a.token_column, a.template, a.mode, a.action, a.meant,
         -- Of those that guard() makes, the first stands for the others.
         coalesce(string_agg(a.tgname::text, ', ' ORDER BY a.tgname) FILTER (WHERE a.tgname::text NOT LIKE 'zz\_lease\_lock\_guard\_%'),
                  min(a.tgname)::text) AS trigger,
         coalesce(bit_or(a.type) FILTER (WHERE a.type & 2 <> 0 AND a.tgenabled IN ('O', 'A')
                                         AND NOT a.conditional AND NOT a.some_columns), 0) AS covered,
         min(a.tgname) FILTER (WHERE a.before_rows) AS first_check,
         -- What is in a row does not matter to a constant name.
         a.kind = 'fence_column' OR replace(replace(a.template, '{{', ''), '}}', '') ~ '[{]' AS by_row,
         bool_or(a.type & 2 <> 0) AS before,
         string_agg(a.tgname::text || ' is disabled', '; ' ORDER BY a.tgname) FILTER (WHERE a.tgenabled = 'D') AS disabled,
         string_agg(a.tgname::text || ' fires for replicated rows only', '; ' ORDER BY a.tgname)
           FILTER (WHERE a.tgenabled = 'R') AS replica_only,
         string_agg(a.tgname::text || ' has a WHEN condition', '; ' ORDER BY a.tgname)
           FILTER (WHERE a.conditional AND a.type & 2 <> 0) AS conditional,
         string_agg(a.tgname::text || ' fires for some columns only', '; ' ORDER BY a.tgname)
           FILTER (WHERE a.some_columns) AS some_columns,
         string_agg(a.tgname::text, ', ' ORDER BY a.tgname) FILTER (WHERE a.type & 1 = 0 AND a.type & 28 <> 0) AS by_statement,
         bool_or(a.tgenabled = 'A' AND (a.kind = 'fence' OR a.template IS NOT NULL)) AS applies
  FROM argued AS a
  GROUP BY 1, 2, 3, 4, 5, 6, 7
), below AS (
  -- What inherits from a guarded table, and by which guard.
  SELECT i.inhrelid AS relid, g.relid AS root, g.kind, g.token_column, g.template, g.mode, g.action
  FROM guard AS g JOIN pg_inherits AS i ON i.inhparent = g.relid
  UNION
  SELECT i.inhrelid, b.root, b.kind, b.token_column, b.template, b.mode, b.action
  FROM below AS b JOIN pg_inherits AS i ON i.inhparent = b.relid
), powers AS (
  SELECT c.oid AS relid, string_agg(quote_ident(r.rolname::text), ', ' ORDER BY r.rolname) AS roles
  FROM (SELECT DISTINCT relid FROM guard) AS g
  JOIN pg_class AS c ON c.oid = g.relid
  JOIN pg_roles AS r ON r.oid <> c.relowner AND NOT r.rolsuper
  WHERE pg_has_role(r.oid, c.relowner, 'MEMBER')
     OR has_table_privilege(r.oid, c.oid, 'TRIGGER')
     -- Before 16 it could make itself a member of any role but a superuser's.
     OR (r.rolcreaterole AND current_setting('server_version_num')::integer < 160000
         AND NOT (SELECT o.rolsuper FROM pg_roles AS o WHERE o.oid = c.relowner))
     OR has_parameter_privilege(r.oid, 'session_replication_role', 'SET, ALTER SYSTEM')
  GROUP BY 1
)
SELECT g.relid::regclass AS relation, g.trigger, g.kind, g.token_column, g.template, g.mode, g.action,
       concat_ws(',', CASE WHEN g.covered & 4 <> 0 THEN 'insert' END, CASE WHEN g.covered & 16 <> 0 THEN 'update' END,
                 CASE WHEN g.covered & 8 <> 0 THEN 'delete' END, CASE WHEN g.covered & 32 <> 0 THEN 'truncate' END) AS events,
       nullif(concat_ws('; ',
         g.disabled, g.replica_only, g.conditional, g.some_columns,
         CASE WHEN NOT g.before THEN g.trigger || ' is not BEFORE' END,
         (SELECT 'not guarded: ' || string_agg(e.event, ', ' ORDER BY e.place)
          FROM (VALUES (1, 'insert', 4), (2, 'update', 16), (3, 'delete', 8), (4, 'truncate', 32)) AS e (place, event, bit)
          WHERE g.covered & e.bit = 0 AND (g.meant IS NULL OR e.event = ANY (string_to_array(regexp_replace(lower(g.meant), '\s', '', 'g'), ',')))),
         CASE WHEN g.mode NOT IN ('held', 'newest') OR g.action NOT IN ('enforce', 'warn')
                   OR (g.kind = 'fence' AND g.template IS NULL) OR (g.kind = 'fence_column' AND g.token_column IS NULL)
                   OR g.template !~ '^([^{}]|[{][{]|[}][}]|[{][^{}]+[}])+$' OR g.meant ~ '^\s*$'
              THEN 'its arguments are wrong' END,
         CASE WHEN g.by_statement IS NOT NULL AND g.by_row THEN g.by_statement || ' sees no rows' END,
         CASE WHEN g.by_statement IS NOT NULL AND NOT g.by_row
                   AND (c.relkind = 'p' OR EXISTS (SELECT FROM pg_inherits AS i WHERE i.inhrelid = g.relid))
              THEN g.by_statement || ' is not called for rows that are written through a parent' END,
         (SELECT string_agg(format('%s runs after the check and can change the row', t.tgname), '; ' ORDER BY t.tgname)
          FROM pg_trigger AS t
          WHERE g.by_row AND t.tgrelid = g.relid AND t.tgtype & 3 = 3 AND t.tgtype & g.covered & 20 <> 0 AND t.tgenabled IN ('O', 'A')
            AND t.tgname > g.first_check
            AND NOT EXISTS (SELECT FROM call AS o WHERE o.relid = t.tgrelid AND o.tgname = t.tgname)),
         CASE WHEN g.action = 'warn' THEN 'it only warns' END,
         CASE WHEN g.applies AND EXISTS (SELECT FROM pg_subscription_rel AS s WHERE s.srrelid = g.relid)
              THEN CASE WHEN g.by_statement IS NULL THEN 'it refuses the rows of a subscription, which present no token'
                        ELSE 'rows of a subscription are not seen by ' || g.by_statement END END,
         (SELECT string_agg(format('column %s %s', n.name, CASE WHEN b.attname IS NULL THEN 'does not exist'
                                   WHEN b.attgenerated <> '' THEN 'is generated' ELSE 'has a type that cannot be used' END),
                            '; ' ORDER BY n.name)
          FROM (SELECT g.token_column AS name, true AS is_token WHERE g.token_column IS NOT NULL
                UNION SELECT m[1], false FROM regexp_matches(replace(replace(g.template, '{{', ''), '}}', ''), '[{]([^}]*)[}]', 'g') AS m) AS n
          LEFT JOIN pg_attribute AS b ON b.attrelid = g.relid AND b.attname = n.name AND b.attnum > 0 AND NOT b.attisdropped
          LEFT JOIN pg_type AS y ON y.oid = b.atttypid
          WHERE b.attname IS NULL OR b.attgenerated <> ''
             OR (n.is_token AND b.atttypid <> 'bigint'::regtype)
             OR (NOT n.is_token AND y.typtype <> 'e' AND y.typtype <> 'd'
                 AND y.oid NOT IN ('smallint'::regtype, 'integer'::regtype, 'bigint'::regtype, 'uuid'::regtype, 'text'::regtype,
                                   'varchar'::regtype, 'boolean'::regtype, 'bytea'::regtype, 'date'::regtype)))), '') AS problem,
       p.roles
FROM guard AS g
JOIN pg_class AS c ON c.oid = g.relid
LEFT JOIN powers AS p ON p.relid = g.relid
UNION ALL
SELECT b.relid::regclass, NULL, b.kind, b.token_column, b.template, b.mode, b.action, '',
       format('it does not have the guard of %s, from which it inherits', b.root::regclass), NULL
FROM below AS b
WHERE NOT EXISTS (SELECT FROM guard AS g
                  WHERE g.relid = b.relid AND g.kind = b.kind AND g.mode = b.mode
                    AND g.token_column IS NOT DISTINCT FROM b.token_column AND g.template IS NOT DISTINCT FROM b.template);
COMMENT ON VIEW lease_lock.guard_state IS 'Behind the view lease_lock.guards: the roles that could switch a guard off apart from what is wrong with it.';
COMMENT ON COLUMN lease_lock.guard_state.relation IS 'As in guards, like the columns that follow.';
COMMENT ON COLUMN lease_lock.guard_state.trigger IS 'As in guards.';
COMMENT ON COLUMN lease_lock.guard_state.kind IS 'As in guards.';
COMMENT ON COLUMN lease_lock.guard_state.token_column IS 'As in guards.';
COMMENT ON COLUMN lease_lock.guard_state.template IS 'As in guards.';
COMMENT ON COLUMN lease_lock.guard_state.mode IS 'As in guards.';
COMMENT ON COLUMN lease_lock.guard_state.action IS 'As in guards.';
COMMENT ON COLUMN lease_lock.guard_state.events IS 'As in guards.';
COMMENT ON COLUMN lease_lock.guard_state.problem IS 'What is wrong, without the roles that could switch it off.';
COMMENT ON COLUMN lease_lock.guard_state.roles IS 'The roles that could switch it off, beside the owner and superusers.';
REVOKE ALL ON TABLE lease_lock.guard_state FROM PUBLIC;
GRANT SELECT ON TABLE lease_lock.guard_state TO PUBLIC;

CREATE VIEW lease_lock.guards AS
  SELECT g.relation, g.trigger, g.kind, g.token_column, g.template, g.mode, g.action, g.events,
         nullif(concat_ws('; ', g.problem, 'can be switched off by ' || g.roles), '') AS problem
  FROM lease_lock.guard_state AS g;
COMMENT ON VIEW lease_lock.guards IS 'Which tables are guarded, and what is wrong with their guards, by the catalogs. A guard that is gone leaves no row: see assert_guarded.';
COMMENT ON COLUMN lease_lock.guards.relation IS 'The table.';
COMMENT ON COLUMN lease_lock.guards.trigger IS 'The triggers that make the guard, without those that guard() makes beside the first; NULL where there should be some.';
COMMENT ON COLUMN lease_lock.guards.kind IS 'fence: the transaction presents the token; fence_column: the row carries it.';
COMMENT ON COLUMN lease_lock.guards.token_column IS 'Of fence_column: the column that carries the token.';
COMMENT ON COLUMN lease_lock.guards.template IS 'The name that the rows are guarded under, with columns in braces.';
COMMENT ON COLUMN lease_lock.guards.mode IS 'held: the token must be of a lease in force; newest: it must not be older than the highest accepted, of the name, or of the row where kind is fence_column.';
COMMENT ON COLUMN lease_lock.guards.action IS 'enforce: refuses; warn: warns and counts.';
COMMENT ON COLUMN lease_lock.guards.events IS 'The writes that are checked, whole.';
COMMENT ON COLUMN lease_lock.guards.problem IS 'What is wrong; NULL where all is well.';
REVOKE ALL ON TABLE lease_lock.guards FROM PUBLIC;
GRANT SELECT ON TABLE lease_lock.guards TO PUBLIC;

CREATE FUNCTION lease_lock.assert_guarded(target regclass)
  RETURNS boolean LANGUAGE C VOLATILE PARALLEL UNSAFE COST 1000
  AS 'MODULE_PATHNAME', 'll_assert_guarded';
COMMENT ON FUNCTION lease_lock.assert_guarded(regclass) IS
  'True when a table, and all that inherits from it, has a guard with no problem but who could switch it off; otherwise 55000 says what is missing.';

CREATE FUNCTION lease_lock.rejections_data(OUT at timestamptz, OUT first_at timestamptz, OUT count bigint,
    OUT relation oid, OUT statement text, OUT resource text, OUT token bigint, OUT newest bigint, OUT reason text,
    OUT action text, OUT role text, OUT application_name text, OUT pid integer)
  RETURNS SETOF record LANGUAGE C VOLATILE PARALLEL UNSAFE COST 100 ROWS 100
  AS 'MODULE_PATHNAME', 'll_rejections';
COMMENT ON FUNCTION lease_lock.rejections_data() IS 'Behind the view lease_lock.rejections.';
REVOKE ALL ON FUNCTION lease_lock.rejections_data() FROM PUBLIC;

CREATE VIEW lease_lock.rejections AS
  SELECT r.at, r.first_at, r.count, r.relation::regclass AS relation, r.statement, r.resource, r.token, r.newest,
         r.reason, r.action, r.role, r.application_name, r.pid
  FROM lease_lock.rejections_data() AS r
  ORDER BY r.at DESC;
COMMENT ON VIEW lease_lock.rejections IS 'The last refusals of this database, newest first; kept where the refused transaction was rolled back, until the server restarts.';
COMMENT ON COLUMN lease_lock.rejections.at IS 'When; of repeats, the last time.';
COMMENT ON COLUMN lease_lock.rejections.first_at IS 'Of repeats, the first time.';
COMMENT ON COLUMN lease_lock.rejections.count IS 'How often: the same role, table, statement, name, token and reason are folded.';
COMMENT ON COLUMN lease_lock.rejections.relation IS 'The guarded table; NULL for assert_held.';
COMMENT ON COLUMN lease_lock.rejections.statement IS 'insert, update, delete or truncate, as the table saw it; or assert_held.';
COMMENT ON COLUMN lease_lock.rejections.resource IS 'The name that was to be written under; NULL where none is known.';
COMMENT ON COLUMN lease_lock.rejections.token IS 'The token carried; NULL when there was none.';
COMMENT ON COLUMN lease_lock.rejections.newest IS 'The newest token then known under that name, or in the row.';
COMMENT ON COLUMN lease_lock.rejections.reason IS 'stale (LL001), no token (LL002), not held (LL003), unknown token (LL004), or no name: the row gives the template none.';
COMMENT ON COLUMN lease_lock.rejections.action IS 'enforce: it was refused; warn: it passed.';
COMMENT ON COLUMN lease_lock.rejections.role IS 'current_user of the write.';
COMMENT ON COLUMN lease_lock.rejections.application_name IS 'Of the session; of repeats, the last.';
COMMENT ON COLUMN lease_lock.rejections.pid IS 'The backend; of repeats, the last; its pid may be another''s by now.';
REVOKE ALL ON TABLE lease_lock.rejections FROM PUBLIC;

CREATE FUNCTION lease_lock.rejection_counts_data(OUT relation oid, OUT reason text, OUT action text,
    OUT count bigint, OUT first_at timestamptz, OUT last_at timestamptz)
  RETURNS SETOF record LANGUAGE C VOLATILE PARALLEL UNSAFE COST 100 ROWS 100
  AS 'MODULE_PATHNAME', 'll_rejection_counts';
COMMENT ON FUNCTION lease_lock.rejection_counts_data() IS 'Behind the view lease_lock.rejection_counts.';
REVOKE ALL ON FUNCTION lease_lock.rejection_counts_data() FROM PUBLIC;

CREATE VIEW lease_lock.rejection_counts AS
  SELECT c.relation::regclass AS relation, c.reason, c.action, c.count, c.first_at, c.last_at
  FROM lease_lock.rejection_counts_data() AS c;
COMMENT ON VIEW lease_lock.rejection_counts IS 'How often each guarded table refused (or only warned), and was written past its guard, since the server''s start.';
COMMENT ON COLUMN lease_lock.rejection_counts.relation IS 'The guarded table; NULL for assert_held, and for all tables together once there are very many.';
COMMENT ON COLUMN lease_lock.rejection_counts.reason IS 'As in rejections; bypass: written past the guard.';
COMMENT ON COLUMN lease_lock.rejection_counts.action IS 'enforce, warn or bypass.';
COMMENT ON COLUMN lease_lock.rejection_counts.count IS 'Rows, or statements where the guard is one of statements; a row that changes its name or its partition can count for both.';
COMMENT ON COLUMN lease_lock.rejection_counts.first_at IS 'When it was first so.';
COMMENT ON COLUMN lease_lock.rejection_counts.last_at IS 'When it was last so.';
REVOKE ALL ON TABLE lease_lock.rejection_counts FROM PUBLIC;

CREATE VIEW lease_lock.rights AS
  SELECT p.pattern, p.role, p.privilege, p.allowed_by, p.allowed_at,
         EXISTS (SELECT FROM pg_roles AS r WHERE r.rolname::text = p.role) AS role_exists
  FROM lease_lock.permission AS p;
COMMENT ON VIEW lease_lock.rights IS 'Rights by name: a name that a pattern covers is for the roles that such a pattern allows, and for superusers.';
COMMENT ON COLUMN lease_lock.rights.pattern IS 'Which names it covers, as LIKE matches them.';
COMMENT ON COLUMN lease_lock.rights.role IS 'Who is allowed, with the members of that role.';
COMMENT ON COLUMN lease_lock.rights.privilege IS 'acquire: acquire and try_acquire; force: force_release, beside EXECUTE on it.';
COMMENT ON COLUMN lease_lock.rights.allowed_by IS 'The role that called allow.';
COMMENT ON COLUMN lease_lock.rights.allowed_at IS 'When.';
COMMENT ON COLUMN lease_lock.rights.role_exists IS 'False where the role has gone: the right allows nobody then, and still covers.';
REVOKE ALL ON TABLE lease_lock.rights FROM PUBLIC;
GRANT SELECT ON TABLE lease_lock.rights TO PUBLIC;

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
  RETURNS SETOF record LANGUAGE C STABLE PARALLEL UNSAFE COST 100 ROWS 100
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

CREATE FUNCTION lease_lock.holders_data(ended boolean, committed boolean, OUT resource text, OUT owner text, OUT token bigint,
    OUT expire_at timestamptz, OUT remaining interval, OUT held_for interval, OUT scope text,
    OUT state text, OUT waiters integer, OUT payload jsonb, OUT role text,
    OUT application_name text, OUT client_addr inet, OUT pid integer, OUT grant_pid integer,
    OUT backend_start timestamptz, OUT acquired_at timestamptz, OUT renewed_at timestamptz,
    OUT renewals integer, OUT ttl interval, OUT session_gone boolean)
  RETURNS SETOF record LANGUAGE C STABLE STRICT PARALLEL UNSAFE COST 100 ROWS 100
  AS 'MODULE_PATHNAME', 'll_holders';
COMMENT ON FUNCTION lease_lock.holders_data(boolean, boolean) IS 'Behind the view lease_lock.holders; with ended, leases that a call has ended as well; with committed, nothing in flight, but what it replaces.';

CREATE FUNCTION lease_lock.stats_data(OUT since timestamptz,
    OUT grants bigint, OUT takeovers bigint, OUT reacquired bigint, OUT timeouts bigint, OUT busy bigint,
    OUT renewals bigint, OUT renewals_late bigint, OUT renewals_failed bigint,
    OUT releases bigint, OUT releases_failed bigint, OUT expired bigint, OUT forced bigint, OUT sessions_died bigint,
    OUT guarded_writes bigint, OUT refused_stale bigint, OUT refused_no_token bigint, OUT refused_not_held bigint,
    OUT refused_unknown bigint, OUT refused_no_name bigint, OUT warned bigint, OUT evictions bigint, OUT deadlocks bigint,
    OUT renewal_margin double precision, OUT renewal_margin_least double precision,
    OUT last_renewal timestamptz, OUT last_write timestamptz,
    OUT waits bigint, OUT wait_total interval, OUT wait_p50 interval, OUT wait_p95 interval, OUT wait_p99 interval, OUT wait_max interval,
    OUT holds bigint, OUT hold_total interval, OUT hold_p50 interval, OUT hold_p95 interval, OUT hold_p99 interval, OUT hold_max interval)
  RETURNS record LANGUAGE C VOLATILE PARALLEL UNSAFE COST 100
  AS 'MODULE_PATHNAME', 'll_stats';
COMMENT ON FUNCTION lease_lock.stats_data() IS 'Behind the view lease_lock.stats.';

CREATE VIEW lease_lock.stats AS
  SELECT s.since, s.grants, s.takeovers, s.reacquired, s.timeouts, s.busy, s.renewals, s.renewals_late,
         s.renewals_failed, s.releases, s.releases_failed, s.expired, s.forced, s.sessions_died, s.guarded_writes,
         s.refused_stale, s.refused_no_token, s.refused_not_held, s.refused_unknown, s.refused_no_name, s.warned,
         s.evictions, s.deadlocks, s.renewal_margin, s.renewal_margin_least, s.last_renewal, s.last_write, s.waits,
         s.wait_total, s.wait_p50, s.wait_p95, s.wait_p99, s.wait_max, s.holds, s.hold_total, s.hold_p50, s.hold_p95,
         s.hold_p99, s.hold_max,
         s.grants::double precision / nullif(s.grants + s.timeouts + s.busy, 0) AS acquire_success,
         (SELECT count(*) FROM lease_lock.holders_data(false, false) AS h WHERE h.state = 'held') AS holders,
         (SELECT count(*) FROM lease_lock.waiters_data() AS w) AS waiters
  FROM lease_lock.stats_data() AS s;
COMMENT ON VIEW lease_lock.stats IS 'What was done with leases in this database; rollbacks do not undo it, and a clean restart keeps it. All NULL where the server had no shared memory left.';
COMMENT ON COLUMN lease_lock.stats.since IS 'Since when it is counted.';
COMMENT ON COLUMN lease_lock.stats.grants IS 'Leases granted, with takeovers and those re-acquired, whatever became of the transaction.';
COMMENT ON COLUMN lease_lock.stats.takeovers IS '... of a lease that had expired, or lost its session, and was never released.';
COMMENT ON COLUMN lease_lock.stats.reacquired IS '... by the owner that still held it.';
COMMENT ON COLUMN lease_lock.stats.timeouts IS 'Calls of acquire that gave up, with 55P03 or 53400.';
COMMENT ON COLUMN lease_lock.stats.busy IS 'Calls of try_acquire that returned NULL.';
COMMENT ON COLUMN lease_lock.stats.renewals IS 'Leases renewed.';
COMMENT ON COLUMN lease_lock.stats.renewals_late IS '... with less than a fifth of the TTL left.';
COMMENT ON COLUMN lease_lock.stats.renewals_failed IS 'Calls of renew that returned NULL.';
COMMENT ON COLUMN lease_lock.stats.releases IS 'Leases released.';
COMMENT ON COLUMN lease_lock.stats.releases_failed IS 'Calls of release that returned false.';
COMMENT ON COLUMN lease_lock.stats.expired IS 'Leases found to have expired without a release, by whoever took over, forced or pruned.';
COMMENT ON COLUMN lease_lock.stats.forced IS 'Leases ended by force_release.';
COMMENT ON COLUMN lease_lock.stats.sessions_died IS 'Leases of scope session found to have ended with their session.';
COMMENT ON COLUMN lease_lock.stats.guarded_writes IS 'Guards passed, once a transaction and name.';
COMMENT ON COLUMN lease_lock.stats.refused_stale IS 'Writes (and assert_held) refused with LL001.';
COMMENT ON COLUMN lease_lock.stats.refused_no_token IS '... with LL002.';
COMMENT ON COLUMN lease_lock.stats.refused_not_held IS '... with LL003.';
COMMENT ON COLUMN lease_lock.stats.refused_unknown IS '... with LL004.';
COMMENT ON COLUMN lease_lock.stats.refused_no_name IS '... because the row gives its template no name.';
COMMENT ON COLUMN lease_lock.stats.warned IS 'Writes that passed with a warning, of guards that only warn.';
COMMENT ON COLUMN lease_lock.stats.evictions IS 'Transactions that were ended, or told to end, because they kept an expired lease from being granted.';
COMMENT ON COLUMN lease_lock.stats.deadlocks IS 'Deadlocks through leases that were broken by 40P01.';
COMMENT ON COLUMN lease_lock.stats.renewal_margin IS 'How much of the TTL was left at a renewal, on average, from 0 to 1.';
COMMENT ON COLUMN lease_lock.stats.renewal_margin_least IS '... at the least.';
COMMENT ON COLUMN lease_lock.stats.last_renewal IS 'When a lease was last renewed.';
COMMENT ON COLUMN lease_lock.stats.last_write IS 'When a guarded write last passed.';
COMMENT ON COLUMN lease_lock.stats.waits IS 'Calls of acquire that were granted or gave up: those whose wait is measured, however short.';
COMMENT ON COLUMN lease_lock.stats.wait_total IS 'Time waited by all of them.';
COMMENT ON COLUMN lease_lock.stats.wait_p50 IS 'The wait that half of them did not exceed; off by an eighth at most, like the next ones.';
COMMENT ON COLUMN lease_lock.stats.wait_p95 IS '... that 95 of 100 did not exceed.';
COMMENT ON COLUMN lease_lock.stats.wait_p99 IS '... that 99 of 100 did not exceed.';
COMMENT ON COLUMN lease_lock.stats.wait_max IS 'The longest wait.';
COMMENT ON COLUMN lease_lock.stats.holds IS 'Leases whose hold, from grant to release, is measured.';
COMMENT ON COLUMN lease_lock.stats.hold_total IS 'Time held by all of them.';
COMMENT ON COLUMN lease_lock.stats.hold_p50 IS 'The hold that half of them did not exceed.';
COMMENT ON COLUMN lease_lock.stats.hold_p95 IS '... that 95 of 100 did not exceed.';
COMMENT ON COLUMN lease_lock.stats.hold_p99 IS '... that 99 of 100 did not exceed.';
COMMENT ON COLUMN lease_lock.stats.hold_max IS 'The longest hold.';
COMMENT ON COLUMN lease_lock.stats.acquire_success IS 'Grants as a part of grants, timeouts and busy, from 0 to 1. A call that is cancelled, or ends in a deadlock, is in none of them.';
COMMENT ON COLUMN lease_lock.stats.holders IS 'Leases in force now.';
COMMENT ON COLUMN lease_lock.stats.waiters IS 'Backends that wait in acquire now.';
REVOKE ALL ON TABLE lease_lock.stats FROM PUBLIC;
GRANT SELECT ON TABLE lease_lock.stats TO PUBLIC;

CREATE FUNCTION lease_lock.resource_stats_data(OUT resource text, OUT since timestamptz,
    OUT grants bigint, OUT takeovers bigint, OUT reacquired bigint, OUT timeouts bigint, OUT busy bigint,
    OUT renewals bigint, OUT renewals_late bigint, OUT renewals_failed bigint,
    OUT releases bigint, OUT releases_failed bigint, OUT expired bigint, OUT forced bigint, OUT sessions_died bigint,
    OUT guarded_writes bigint, OUT refused_stale bigint, OUT refused_no_token bigint, OUT refused_not_held bigint,
    OUT refused_unknown bigint, OUT refused_no_name bigint, OUT warned bigint, OUT evictions bigint, OUT deadlocks bigint,
    OUT renewal_margin double precision, OUT renewal_margin_least double precision,
    OUT last_renewal timestamptz, OUT last_write timestamptz,
    OUT waits bigint, OUT wait_total interval, OUT wait_p50 interval, OUT wait_p95 interval, OUT wait_p99 interval, OUT wait_max interval,
    OUT holds bigint, OUT hold_total interval, OUT hold_p50 interval, OUT hold_p95 interval, OUT hold_p99 interval, OUT hold_max interval)
  RETURNS SETOF record LANGUAGE C VOLATILE PARALLEL UNSAFE COST 100 ROWS 100
  AS 'MODULE_PATHNAME', 'll_resource_stats';
COMMENT ON FUNCTION lease_lock.resource_stats_data() IS 'Behind the view lease_lock.resource_stats.';

CREATE VIEW lease_lock.resource_stats AS
  SELECT s.resource, s.since, s.grants, s.takeovers, s.reacquired, s.timeouts, s.busy, s.renewals, s.renewals_late,
         s.renewals_failed, s.releases, s.releases_failed, s.expired, s.forced, s.sessions_died, s.guarded_writes,
         s.refused_stale, s.refused_no_token, s.refused_not_held, s.refused_unknown, s.refused_no_name, s.warned,
         s.evictions, s.deadlocks, s.renewal_margin, s.renewal_margin_least, s.last_renewal, s.last_write, s.waits,
         s.wait_total, s.wait_p50, s.wait_p95, s.wait_p99, s.wait_max, s.holds, s.hold_total, s.hold_p50, s.hold_p95,
         s.hold_p99, s.hold_max,
         s.grants::double precision / nullif(s.grants + s.timeouts + s.busy, 0) AS acquire_success
  FROM lease_lock.resource_stats_data() AS s;
COMMENT ON VIEW lease_lock.resource_stats IS 'The same for each of the busiest resources, at most as many as lease_lock.track_resources says.';
COMMENT ON COLUMN lease_lock.resource_stats.resource IS 'The name.';
COMMENT ON COLUMN lease_lock.resource_stats.since IS 'Since when it is counted.';
COMMENT ON COLUMN lease_lock.resource_stats.grants IS 'Leases granted, with takeovers and those re-acquired, whatever became of the transaction.';
COMMENT ON COLUMN lease_lock.resource_stats.takeovers IS '... of a lease that had expired, or lost its session, and was never released.';
COMMENT ON COLUMN lease_lock.resource_stats.reacquired IS '... by the owner that still held it.';
COMMENT ON COLUMN lease_lock.resource_stats.timeouts IS 'Calls of acquire that gave up, with 55P03 or 53400.';
COMMENT ON COLUMN lease_lock.resource_stats.busy IS 'Calls of try_acquire that returned NULL.';
COMMENT ON COLUMN lease_lock.resource_stats.renewals IS 'Leases renewed.';
COMMENT ON COLUMN lease_lock.resource_stats.renewals_late IS '... with less than a fifth of the TTL left.';
COMMENT ON COLUMN lease_lock.resource_stats.renewals_failed IS 'Calls of renew that returned NULL.';
COMMENT ON COLUMN lease_lock.resource_stats.releases IS 'Leases released.';
COMMENT ON COLUMN lease_lock.resource_stats.releases_failed IS 'Calls of release that returned false.';
COMMENT ON COLUMN lease_lock.resource_stats.expired IS 'Leases found to have expired without a release, by whoever took over, forced or pruned.';
COMMENT ON COLUMN lease_lock.resource_stats.forced IS 'Leases ended by force_release.';
COMMENT ON COLUMN lease_lock.resource_stats.sessions_died IS 'Leases of scope session found to have ended with their session.';
COMMENT ON COLUMN lease_lock.resource_stats.guarded_writes IS 'Guards passed, once a transaction and name.';
COMMENT ON COLUMN lease_lock.resource_stats.refused_stale IS 'Writes (and assert_held) refused with LL001.';
COMMENT ON COLUMN lease_lock.resource_stats.refused_no_token IS '... with LL002.';
COMMENT ON COLUMN lease_lock.resource_stats.refused_not_held IS '... with LL003.';
COMMENT ON COLUMN lease_lock.resource_stats.refused_unknown IS '... with LL004.';
COMMENT ON COLUMN lease_lock.resource_stats.refused_no_name IS '... because the row gives its template no name.';
COMMENT ON COLUMN lease_lock.resource_stats.warned IS 'Writes that passed with a warning, of guards that only warn.';
COMMENT ON COLUMN lease_lock.resource_stats.evictions IS 'Transactions that were ended, or told to end, because they kept an expired lease from being granted.';
COMMENT ON COLUMN lease_lock.resource_stats.deadlocks IS 'Deadlocks through leases that were broken by 40P01.';
COMMENT ON COLUMN lease_lock.resource_stats.renewal_margin IS 'How much of the TTL was left at a renewal, on average, from 0 to 1.';
COMMENT ON COLUMN lease_lock.resource_stats.renewal_margin_least IS '... at the least.';
COMMENT ON COLUMN lease_lock.resource_stats.last_renewal IS 'When a lease was last renewed.';
COMMENT ON COLUMN lease_lock.resource_stats.last_write IS 'When a guarded write last passed.';
COMMENT ON COLUMN lease_lock.resource_stats.waits IS 'Calls of acquire that were granted or gave up: those whose wait is measured, however short.';
COMMENT ON COLUMN lease_lock.resource_stats.wait_total IS 'Time waited by all of them.';
COMMENT ON COLUMN lease_lock.resource_stats.wait_p50 IS 'The wait that half of them did not exceed; off by an eighth at most, like the next ones.';
COMMENT ON COLUMN lease_lock.resource_stats.wait_p95 IS '... that 95 of 100 did not exceed.';
COMMENT ON COLUMN lease_lock.resource_stats.wait_p99 IS '... that 99 of 100 did not exceed.';
COMMENT ON COLUMN lease_lock.resource_stats.wait_max IS 'The longest wait.';
COMMENT ON COLUMN lease_lock.resource_stats.holds IS 'Leases whose hold, from grant to release, is measured.';
COMMENT ON COLUMN lease_lock.resource_stats.hold_total IS 'Time held by all of them.';
COMMENT ON COLUMN lease_lock.resource_stats.hold_p50 IS 'The hold that half of them did not exceed.';
COMMENT ON COLUMN lease_lock.resource_stats.hold_p95 IS '... that 95 of 100 did not exceed.';
COMMENT ON COLUMN lease_lock.resource_stats.hold_p99 IS '... that 99 of 100 did not exceed.';
COMMENT ON COLUMN lease_lock.resource_stats.hold_max IS 'The longest hold.';
COMMENT ON COLUMN lease_lock.resource_stats.acquire_success IS 'Grants as a part of grants, timeouts and busy, from 0 to 1. A call that is cancelled, or ends in a deadlock, is in none of them.';
REVOKE ALL ON TABLE lease_lock.resource_stats FROM PUBLIC;
GRANT SELECT ON TABLE lease_lock.resource_stats TO PUBLIC;

CREATE FUNCTION lease_lock.histograms_data(OUT kind text, OUT upto interval, OUT count bigint)
  RETURNS SETOF record LANGUAGE C VOLATILE PARALLEL UNSAFE COST 100 ROWS 60
  AS 'MODULE_PATHNAME', 'll_histograms';
COMMENT ON FUNCTION lease_lock.histograms_data() IS 'Behind the view lease_lock.histograms.';

CREATE VIEW lease_lock.histograms AS
  SELECT h.kind, h.upto, h.count FROM lease_lock.histograms_data() AS h;
COMMENT ON VIEW lease_lock.histograms IS 'How the waits and holds of stats are spread.';
COMMENT ON COLUMN lease_lock.histograms.kind IS 'wait or hold.';
COMMENT ON COLUMN lease_lock.histograms.upto IS 'How long at most: about a millisecond, then twice as long each time, up to a day and a half.';
COMMENT ON COLUMN lease_lock.histograms.count IS 'How many were not longer.';
REVOKE ALL ON TABLE lease_lock.histograms FROM PUBLIC;
GRANT SELECT ON TABLE lease_lock.histograms TO PUBLIC;

CREATE FUNCTION lease_lock.stats_reset()
  RETURNS void LANGUAGE C VOLATILE PARALLEL UNSAFE
  AS 'MODULE_PATHNAME', 'll_stats_reset';
COMMENT ON FUNCTION lease_lock.stats_reset() IS
  'Begins to count anew: empties stats, resource_stats, rejections and rejection_counts of this database.';
REVOKE ALL ON FUNCTION lease_lock.stats_reset() FROM PUBLIC;
-- What an extension of this name counted here before is not this one's.
SELECT lease_lock.stats_reset();

CREATE FUNCTION lease_lock.suggest_ttl(resource text, quantile double precision DEFAULT 0.999, factor double precision DEFAULT 2)
  RETURNS interval LANGUAGE C VOLATILE PARALLEL UNSAFE
  AS 'MODULE_PATHNAME', 'll_suggest_ttl';
COMMENT ON FUNCTION lease_lock.suggest_ttl(text, double precision, double precision) IS
  'A TTL that covers the work: the quantile of the holds measured for that resource, times factor; NULL when fewer than 30 were measured.';

CREATE VIEW lease_lock.holders AS
  SELECT h.resource, h.owner, h.token, h.expire_at, h.remaining, h.held_for, h.scope, h.state,
         h.waiters, h.payload, h.role, h.application_name, h.client_addr, h.pid, h.grant_pid,
         CASE WHEN h.session_gone THEN 'session gone'
              WHEN h.state = 'expired' THEN 'overdue'
              WHEN a.state LIKE 'idle in transaction%' THEN 'idle in transaction'
              WHEN h.remaining < (h.expire_at - h.renewed_at) / 5 THEN 'expires soon'
              ELSE 'ok' END AS health,
         CASE WHEN h.state = 'expired' AND NOT h.session_gone
              THEN greatest(clock_timestamp() - h.expire_at, interval '0') END AS overdue,
         h.acquired_at, h.renewed_at, h.renewals, h.ttl, r.last_write,
         a.wait_event, clock_timestamp() - a.xact_start AS xact_age
  FROM lease_lock.holders_data(false, false) AS h
  LEFT JOIN pg_stat_activity AS a ON a.pid = h.grant_pid AND a.backend_start = h.backend_start
  LEFT JOIN lease_lock.resource_stats_data() AS r ON r.resource = h.resource COLLATE "C";
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
COMMENT ON COLUMN lease_lock.holders.health IS 'session gone; overdue (expired and taken by nobody yet); idle in transaction (the backend that acquired it); expires soon (less than a fifth is left of what the grant or the last renewal gave); or ok.';
COMMENT ON COLUMN lease_lock.holders.overdue IS 'Time since it expired; NULL before.';
COMMENT ON COLUMN lease_lock.holders.acquired_at IS 'When it was acquired.';
COMMENT ON COLUMN lease_lock.holders.renewed_at IS 'When it was last renewed; at first when it was acquired.';
COMMENT ON COLUMN lease_lock.holders.renewals IS 'How often it was renewed.';
COMMENT ON COLUMN lease_lock.holders.ttl IS 'The time to live that it was acquired with.';
COMMENT ON COLUMN lease_lock.holders.last_write IS 'When a guarded write under that name last passed; NULL when none did, or the name has no statistics of its own.';
COMMENT ON COLUMN lease_lock.holders.wait_event IS 'What the backend that acquired it waits for, if it is still there; NULL for other roles'' without pg_read_all_stats.';
COMMENT ON COLUMN lease_lock.holders.xact_age IS 'How old the open transaction of that backend is; NULL likewise.';
REVOKE ALL ON TABLE lease_lock.holders FROM PUBLIC;
GRANT SELECT ON TABLE lease_lock.holders TO PUBLIC;

CREATE VIEW lease_lock.hot AS
  SELECT coalesce(r.resource, w.resource) AS resource, coalesce(w.waiters, 0) AS waiters,
         coalesce(r.waits, 0) AS waits, coalesce(r.timeouts, 0) AS timeouts,
         coalesce(r.wait_total, interval '0') + coalesce(w.waited, interval '0') AS wait_total,
         r.wait_p95, greatest(r.wait_max, w.longest) AS wait_max,
         extract(epoch FROM coalesce(r.wait_total, interval '0') + coalesce(w.waited, interval '0'))::double precision AS heat
  FROM lease_lock.resource_stats_data() AS r
  FULL JOIN (SELECT d.resource, count(*) AS waiters, sum(clock_timestamp() - d.waiting_since) AS waited,
                    max(clock_timestamp() - d.waiting_since) AS longest
             FROM lease_lock.waiters_data() AS d GROUP BY d.resource) AS w
    ON w.resource = r.resource COLLATE "C"
  WHERE r.wait_max >= interval '1 millisecond' OR w.waiters > 0
  ORDER BY 8 DESC, 1;
COMMENT ON VIEW lease_lock.hot IS 'The names that cost most waiting, first: the locks to split. Without those that nobody waited for a millisecond.';
COMMENT ON COLUMN lease_lock.hot.resource IS 'The name.';
COMMENT ON COLUMN lease_lock.hot.waiters IS 'Backends that wait for it now.';
COMMENT ON COLUMN lease_lock.hot.waits IS 'Calls of acquire whose wait is measured.';
COMMENT ON COLUMN lease_lock.hot.timeouts IS '... that gave up.';
COMMENT ON COLUMN lease_lock.hot.wait_total IS 'Time waited by all of them, and by those that wait now.';
COMMENT ON COLUMN lease_lock.hot.wait_p95 IS 'The wait that 95 of 100 did not exceed.';
COMMENT ON COLUMN lease_lock.hot.wait_max IS 'The longest wait.';
COMMENT ON COLUMN lease_lock.hot.heat IS 'Waiters times mean wait, in seconds.';
REVOKE ALL ON TABLE lease_lock.hot FROM PUBLIC;
GRANT SELECT ON TABLE lease_lock.hot TO PUBLIC;

CREATE VIEW lease_lock.advice AS
WITH lease AS (
  SELECT h.*, a.state AS backend_state, clock_timestamp() - a.state_change AS idle_for
  FROM lease_lock.holders_data(true, false) AS h
  LEFT JOIN pg_stat_activity AS a ON a.pid = h.grant_pid AND a.backend_start = h.backend_start
), res AS (
  SELECT r.*, l.ttl, l.state FROM lease_lock.resource_stats_data() AS r LEFT JOIN lease AS l ON l.resource = r.resource COLLATE "C"
)
SELECT r.resource, NULL::text AS owner, 'ttl too short' AS advice,
       format('%s of %s renewals came late, %s leases expired unreleased, %s late writes were refused', r.renewals_late,
              r.renewals, r.expired, r.refused_not_held + r.refused_stale)
         || coalesce('; the TTL is ' || r.ttl, '') || coalesce('; suggest_ttl says ' || lease_lock.suggest_ttl(r.resource), '') AS evidence
FROM res AS r
WHERE (r.renewals_late > 1 AND r.renewals_late * 20 > r.renewals)
   OR (r.refused_not_held > 0 AND (r.expired > 0 OR r.state = 'expired'))
   OR (r.takeovers > 0 AND r.refused_stale > 0)
UNION ALL
SELECT r.resource, NULL, 'ttl too long',
       format('99 of 100 holds ended within %s, and the TTL is %s: after a crash the rest of it is waited for', r.hold_p99, r.ttl)
FROM res AS r
WHERE r.holds >= 30 AND r.hold_p99 < r.ttl / 100
UNION ALL
SELECT l.resource, l.owner, 'renewed without work',
       format('renewed %s times, last at %s, and no guarded write has passed since %s', l.renewals, l.renewed_at, r.last_write)
FROM lease AS l JOIN lease_lock.resource_stats_data() AS r ON r.resource = l.resource COLLATE "C"
WHERE l.state = 'held' AND l.renewals > 0 AND r.last_write IS NOT NULL
  AND l.renewed_at - greatest(r.last_write, l.acquired_at) > 10 * l.ttl
UNION ALL
SELECT l.resource, l.owner, 'idle in transaction',
       format('its backend %s has been %s for %s: it holds locks and a snapshot while something else is waited for', l.grant_pid,
              l.backend_state, l.idle_for)
FROM lease AS l
WHERE l.state IN ('held', 'uncommitted') AND l.backend_state LIKE 'idle in transaction%' AND l.idle_for > interval '1 second'
UNION ALL
SELECT NULL, l.owner, 'owner in two places',
       format('acquired from %s: an owner names one process, or each fences off the other',
              string_agg(DISTINCT coalesce(host(l.client_addr), 'a local socket'), ', '))
FROM lease AS l
WHERE l.state IN ('held', 'uncommitted', 'prepared') OR l.acquired_at > clock_timestamp() - interval '1 hour'
GROUP BY l.owner
HAVING count(DISTINCT coalesce(host(l.client_addr), 'a local socket')) > 1;
COMMENT ON VIEW lease_lock.advice IS 'What looks wrong in how leases are used, with the evidence.';
COMMENT ON COLUMN lease_lock.advice.resource IS 'The name; NULL where it is about an owner.';
COMMENT ON COLUMN lease_lock.advice.owner IS 'The owner; NULL where it is about all of them.';
COMMENT ON COLUMN lease_lock.advice.advice IS 'ttl too short, ttl too long, renewed without work, idle in transaction, or owner in two places.';
COMMENT ON COLUMN lease_lock.advice.evidence IS 'What was measured.';
REVOKE ALL ON TABLE lease_lock.advice FROM PUBLIC;

------------------------------------------------------------------------------
-- History.
------------------------------------------------------------------------------

CREATE FUNCTION lease_lock.holder_at(resource text, at timestamptz, OUT owner text, OUT token bigint, OUT role text,
    OUT granted_at timestamptz, OUT ended_at timestamptz, OUT ended_by text)
  RETURNS SETOF record LANGUAGE sql VOLATILE PARALLEL UNSAFE COST 1000 ROWS 1
  SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
  SELECT h.owner, h.token, h.role, h.granted_at, h.ended_at, h.ended_by
  FROM lease_lock.history AS h
  WHERE h.resource = holder_at.resource AND h.granted_at <= holder_at.at AND h.ended_at > holder_at.at
  UNION ALL
  SELECT l.owner, l.token, l.role, l.acquired_at, NULL, NULL
  FROM lease_lock.holders_data(false, true) AS l
  WHERE l.resource = holder_at.resource AND l.state IN ('held', 'expired') AND l.acquired_at <= holder_at.at
    AND l.expire_at > holder_at.at AND (holder_at.at < now() OR NOT l.session_gone);
END;
COMMENT ON FUNCTION lease_lock.holder_at(text, timestamptz) IS
  'Who held a name at a moment: by history as far back as that was on, and by the lease as it is now, whose ended_at is NULL. No row where nobody did.';
REVOKE ALL ON FUNCTION lease_lock.holder_at(text, timestamptz) FROM PUBLIC;

CREATE FUNCTION lease_lock.overlaps(within interval DEFAULT NULL, OUT resource text, OUT token bigint, OUT owner text,
    OUT ended_at timestamptz, OUT next_token bigint, OUT next_owner text, OUT next_granted_at timestamptz)
  RETURNS SETOF record LANGUAGE sql VOLATILE PARALLEL UNSAFE COST 10000 ROWS 1
  SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
  SELECT o.resource, o.token, o.owner, o.ended_at, o.next_token, o.next_owner, o.next_granted_at
  FROM (
    SELECT h.resource, h.token, h.owner, h.ended_at, lead(h.token) OVER w AS next_token,
           lead(h.owner) OVER w AS next_owner, lead(h.granted_at) OVER w AS next_granted_at
    FROM (
      SELECT h.resource, h.token, h.owner, h.granted_at, h.ended_at
      FROM lease_lock.history AS h
      WHERE within IS NULL OR h.ended_at >= clock_timestamp() - within
      UNION ALL
      SELECT l.resource, l.token, l.owner, l.acquired_at, l.expire_at
      FROM lease_lock.holders_data(false, true) AS l
      WHERE l.state = 'held'
    ) AS h
    WINDOW w AS (PARTITION BY h.resource ORDER BY h.token)
  ) AS o
  WHERE o.next_granted_at < o.ended_at;
END;
COMMENT ON FUNCTION lease_lock.overlaps(interval) IS
  'Grants of one name of which a later one began before the earlier one had ended, of those that ended within so long: always none, unless the server''s clock was set back.';
REVOKE ALL ON FUNCTION lease_lock.overlaps(interval) FROM PUBLIC;

CREATE FUNCTION lease_lock.prune_history(keep interval DEFAULT '30 days')
  RETURNS bigint LANGUAGE C VOLATILE PARALLEL UNSAFE COST 1000
  AS 'MODULE_PATHNAME', 'll_prune_history';
COMMENT ON FUNCTION lease_lock.prune_history(interval) IS
  'Removes the rows of history whose grants ended longer ago than keep; returns how many. Audited.';
REVOKE ALL ON FUNCTION lease_lock.prune_history(interval) FROM PUBLIC;

------------------------------------------------------------------------------
-- Whatever default privileges gave to anybody is taken back: what is granted
-- here is granted above to PUBLIC, and below.
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
    GROUP BY 1, 2, 3
  LOOP
    EXECUTE pg_catalog.format('REVOKE ALL ON %s %s FROM %s CASCADE', acl.kind, acl.object, acl.grantee);
  END LOOP;
END $$;

-- What is not for everybody's eyes.
GRANT SELECT ON TABLE lease_lock.audit, lease_lock.place, lease_lock.history, lease_lock.rejections, lease_lock.rejection_counts,
  lease_lock.advice TO pg_read_all_stats;
GRANT EXECUTE ON FUNCTION lease_lock.rejections_data(), lease_lock.rejection_counts_data(),
  lease_lock.holder_at(text, timestamptz), lease_lock.overlaps(interval) TO pg_read_all_stats;
