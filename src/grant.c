/*
 * grant.c
 *		Grants leases: acquire and try_acquire.
 *
 * Every attempt starts by reading the row, and every wait is followed by a new
 * attempt.  Locks, and why (the rules are those of locks.c and DESIGN):
 *
 * - A free lease is granted under R in GRANT mode, asked for without waiting,
 *	 so that no guarded write is in flight and none can start.
 * - A live lease is taken over by its own owner in the same way, if R can be had
 *	 at once.  Otherwise under R in RENEW mode: the new token is written first,
 *	 and then the guarded writes in flight are waited for.  Writes that come
 *	 later meet the uncommitted grant and wait for it.
 * - A lease that this transaction granted is extended under R in RENEW mode.
 * - Whoever waits holds LOCK_WAITING, which excludes nobody and can be counted.
 *
 * After the call the uncommitted row is the lock; R is dropped, so that a
 * transaction can hold any number of leases.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/xact.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"
#include "utils/xid8.h"

#include "compat.h"
#include "lease_lock.h"

#define TRY_TIMES 8				/* while a function is at work: a few milliseconds */

/* What a read of the row says to somebody who wants the lease. */
typedef enum Verdict
{
	VERDICT_FREE,				/* grant it */
	VERDICT_MINE_HERE,			/* granted in this transaction: extend it */
	VERDICT_MINE,				/* live, but this owner's: take it over */
	VERDICT_REFUSED,			/* this transaction holds it for another owner */
	VERDICT_HELD,				/* wait for its end */
	VERDICT_COOLDOWN,			/* wait for the cooldown's end */
	VERDICT_IN_FLIGHT			/* wait for another transaction */
} Verdict;

/* Whether the current role has the privileges of the role that acquired. */
bool
may_act_for(const LeaseRow *row)
{
	Oid			role = get_role_oid(pnstrdup(row->role, row->role_len), true);

	return OidIsValid(role) ? has_privs_of_role(GetUserId(), role) : superuser();
}

/* Raises 42501 unless may_act_for(). */
void
require_role(const LeaseRow *row, const LeaseName *resource)
{
	if (!may_act_for(row))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("permission denied for the lease on resource \"%s\"", name_cstring(resource)),
				 errdetail("Role \"%.*s\" acquired it, and role \"%s\" does not have that role's privileges.",
						   row->role_len, row->role, GetUserNameFromId(GetUserId(), false)),
				 errhint("A token is not a password: act as a member of the role that acquired the lease.")));
}

static bool
same_owner(const LeaseRow *row, const GrantRequest *req)
{
	return row->owner_len == req->owner.len &&
		memcmp(row->owner, req->owner.data, req->owner.len) == 0 &&
		((strlen(req->role) == row->role_len &&
		  memcmp(row->role, req->role, row->role_len) == 0) ||
		 may_act_for(row));
}

static Verdict
judge(const LeaseRead *read, const GrantRequest *req, TimestampTz now)
{
	bool		live = read->found && lease_live(&read->row, read->own, now);

	if (TransactionIdIsValid(read->pending))
	{
		/* A renewal in flight cannot end the lease sooner than its expiry. */
		if (live && !read->pending_grant && !same_owner(&read->row, req))
			return VERDICT_HELD;
		return VERDICT_IN_FLIGHT;
	}
	if (live)
	{
		bool		mine = same_owner(&read->row, req);

		if (read->granted_here)
			return mine ? VERDICT_MINE_HERE : VERDICT_REFUSED;
		return mine ? VERDICT_MINE : VERDICT_HELD;
	}
	if (read->found && read->row.free_at > now)
		return VERDICT_COOLDOWN;
	return VERDICT_FREE;
}

/* The client's address as inet, or NULL over a Unix socket; never changes. */
static bool
client_address(Datum *address)
{
	static bool known = false;
	static bool isnull;
	static Datum value;

	if (!known)
	{
		LOCAL_FCINFO(fcinfo, 0);
		FmgrInfo	flinfo;
		MemoryContext context;
		Datum		d;

		fmgr_info(F_INET_CLIENT_ADDR, &flinfo);
		InitFunctionCallInfoData(*fcinfo, &flinfo, 0, InvalidOid, NULL, NULL);
		d = FunctionCallInvoke(fcinfo);
		isnull = fcinfo->isnull;
		if (!isnull)
		{
			context = MemoryContextSwitchTo(TopMemoryContext);
			value = PointerGetDatum(PG_DETOAST_DATUM_COPY(d));
			MemoryContextSwitchTo(context);
		}
		known = true;
	}
	*address = isnull ? (Datum) 0 : value;
	return !isnull;
}

/*
 * Writes the row of a grant, as this transaction's.  Needs R in GRANT mode, or
 * in RENEW mode over a live lease, since before the read; the read must show
 * nothing in flight.
 */
static WriteResult
write_grant(KeyedTable *lease, const GrantRequest *req, const LeaseRead *read,
			int64 token, TimestampTz now)
{
	Datum		values[LEASE_NATTS] = {0};
	bool		nulls[LEASE_NATTS] = {0};
	HeapTuple	tuple;
	WriteResult result;

	values[LEASE_VERSION - 1] = Int64GetDatum(token);
	values[LEASE_EXPIRE_AT - 1] = TimestampTzGetDatum(now + req->ttl);
	values[LEASE_RENEWED_AT - 1] = TimestampTzGetDatum(now);
	values[LEASE_ACQUIRED_AT - 1] = TimestampTzGetDatum(now);
	values[LEASE_GRANT_XID - 1] = FullTransactionIdGetDatum(GetTopFullTransactionId());
	values[LEASE_BACKEND_START - 1] = TimestampTzGetDatum(MyStartTimestamp);
	values[LEASE_PID - 1] = Int32GetDatum(MyProcPid);
	values[LEASE_TTL - 1] = IntervalPGetDatum(usecs_interval(req->ttl));
	values[LEASE_RESOURCE - 1] = req->resource_text;
	values[LEASE_OWNER - 1] = req->owner_text;
	values[LEASE_ROLE - 1] = CStringGetTextDatum(req->role);
	values[LEASE_SCOPE - 1] = CStringGetTextDatum(req->scope == SCOPE_TRANSACTION ? "transaction" : "lease");
	nulls[LEASE_ENDED_BY - 1] = req->scope != SCOPE_TRANSACTION;
	if (req->scope == SCOPE_TRANSACTION)
		values[LEASE_ENDED_BY - 1] = CStringGetTextDatum("transaction");
	nulls[LEASE_ENDED_AT - 1] = true;
	nulls[LEASE_FREE_AT - 1] = true;
	values[LEASE_APPLICATION_NAME - 1] = CStringGetTextDatum(application_name ? application_name : "");
	nulls[LEASE_CLIENT_ADDR - 1] = !client_address(&values[LEASE_CLIENT_ADDR - 1]);
	values[LEASE_PAYLOAD - 1] = req->payload;
	nulls[LEASE_PAYLOAD - 1] = !req->has_payload;

	if (!read->found)
	{
		row_insert(lease, values, nulls);
		return WRITE_DONE;
	}
	if (read->granted_here && token == read->row.version)
	{
		/* The same grant, extended: it keeps its beginning and its payload. */
		bool		replace[LEASE_NATTS];

		memset(replace, true, sizeof(replace));
		replace[LEASE_ACQUIRED_AT - 1] = false;
		replace[LEASE_PAYLOAD - 1] = req->has_payload;
		return row_change(lease, read->row.tuple, values, nulls, replace);
	}
	tuple = heap_form_tuple(RelationGetDescr(lease->heap), values, nulls);
	result = row_update(lease, read->row.tuple, tuple);
	heap_freetuple(tuple);
	return result;
}

/* Pids for a DETAIL: "pids 12, 13", or "a prepared transaction". */
char *
blockers_text(int n, const VirtualTransactionId *vxids)
{
	StringInfoData buf;
	int			shown = 0;

	initStringInfo(&buf);
	for (int i = 0; i < n && shown < 8; i++)
	{
		int			pid = compat_vxid_pid(vxids[i]);

		if (pid != 0)
			appendStringInfo(&buf, "%s%d", shown++ ? ", " : "pid ", pid);
		else if (VirtualTransactionIdIsRecoveredPreparedXact(vxids[i]))
			appendStringInfo(&buf, "%sa prepared transaction", shown++ ? ", " : "");
	}
	return shown ? buf.data : pstrdup("ending");
}

/* Raises 55P03 with what stands in the way by the latest read. */
static void
not_available(const GrantRequest *req, const LeaseRead *read, Verdict verdict,
			  const Waiting *w)
{
	char	   *resource = name_cstring(&req->resource);
	char	   *detail;
	TimestampTz now = GetCurrentTimestamp();
	VirtualTransactionId *holders;
	int			n;

	switch (verdict)
	{
		case VERDICT_HELD:
		case VERDICT_REFUSED:
			detail = psprintf("\"%.*s\" holds it under token " INT64_FORMAT " until %s (%s left)%s.",
							  read->row.owner_len, read->row.owner, read->row.version,
							  timestamptz_to_str(read->row.expire_at),
							  usecs_text(Max(read->row.expire_at - now, 0)),
							  verdict == VERDICT_REFUSED ? ", granted in this transaction" : "");
			break;
		case VERDICT_COOLDOWN:
			detail = psprintf("\"%.*s\" released it under token " INT64_FORMAT " with a cooldown until %s (%s left).",
							  read->row.owner_len, read->row.owner, read->row.version,
							  timestamptz_to_str(read->row.free_at),
							  usecs_text(Max(read->row.free_at - now, 0)));
			break;
		case VERDICT_IN_FLIGHT:
			detail = psprintf("Transaction %u has changed the lease and is still open.",
							  read->pending);
			if (read->pending_grant)
				detail = psprintf("%s In it \"%.*s\" has token " INT64_FORMAT " until %s.", detail,
								  read->pending_row.owner_len, read->pending_row.owner,
								  read->pending_row.version,
								  timestamptz_to_str(read->pending_row.expire_at));
			if (read->found)
				detail = psprintf("%s The last committed holder is \"%.*s\" under token " INT64_FORMAT ", expiry %s.",
								  detail, read->row.owner_len, read->row.owner, read->row.version,
								  timestamptz_to_str(read->row.expire_at));
			break;
		default:
			n = guard_holders(&req->resource, &holders);
			detail = psprintf("Its last holder was %s; transactions that wrote under it are still open (%s).",
							  read->found ?
							  psprintf("\"%.*s\" under token " INT64_FORMAT ", expiry %s",
									   read->row.owner_len, read->row.owner, read->row.version,
									   timestamptz_to_str(read->row.expire_at)) :
							  "unknown",
							  n > 0 ? blockers_text(n, holders) : "ending");
			break;
	}
	if (verdict == VERDICT_REFUSED)
		ereport(ERROR,
				(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
				 errmsg("could not acquire the lease on resource \"%s\"", resource),
				 errdetail_internal("%s", detail),
				 errhint("Release it first, or acquire it with the same owner.")));
	ereport(ERROR,
			(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
			 w->lock_timeout ?
			 errmsg("canceling statement due to lock timeout while waiting for the lease on resource \"%s\"",
					resource) :
			 errmsg("could not acquire the lease on resource \"%s\" within %s",
					resource, usecs_text(w->deadline - w->start)),
			 errdetail_internal("%s", detail),
			 errhint("Try again, or wait longer; view lease_lock.holders shows who holds what.")));
}

/*
 * Waits until no other transaction holds R.  Needs this transaction's
 * uncommitted grant in the row, so that guards that come later wait for us.
 * Returns false when the caller's time is up before.
 */
static bool
drain_guards(Waiting *w, const LeaseName *resource)
{
	VirtualTransactionId *holders;

	while (name_in_use(resource))
	{
		if (waiting_over(w))
			return false;
		if (guard_holders(resource, &holders) > 0)
		{
			wait_for_vxid(w, holders[0]);
			pfree(holders);
		}
		else
			wait_nap(w);
	}
	return true;
}

/*
 * One line for the server log, at most one a second and backend: an owner that
 * comes again and again must not flood it.
 */
static void
log_reacquired(const GrantRequest *req, int64 token, int64 old_token, TimestampTz now)
{
	static TimestampTz last = 0;
	static int64 unlogged = 0;

	if (now < last + USECS_PER_SEC && now >= last)
	{
		unlogged++;
		return;
	}
	ereport(LOG,
			(errmsg("lease on resource \"%s\" re-acquired by its owner \"%s\"",
					name_cstring(&req->resource), name_cstring(&req->owner)),
			 errdetail("Token " INT64_FORMAT " replaces token " INT64_FORMAT ". " INT64_FORMAT " others were re-acquired by this backend since its last such message.",
					   token, old_token, unlogged)));
	last = now;
	unlogged = 0;
}

/* What a grant works with, opened before any lock of ours. */
typedef struct GrantTables
{
	KeyedTable	lease;
	KeyedTable	fence;
	TokenSource tokens;
} GrantTables;

/* False only with nowait, when somebody's lock on a relation is in the way. */
static bool
open_tables(GrantTables *t, bool nowait)
{
	if (!keyed_open(&t->lease, TABLE_LEASE, RowExclusiveLock, nowait))
		return false;
	if (keyed_open(&t->fence, TABLE_FENCE, RowExclusiveLock, nowait))
	{
		if (token_open(&t->tokens, nowait))
			return true;
		keyed_close(&t->fence);
	}
	keyed_close(&t->lease);
	return false;
}

static void
close_tables(GrantTables *t)
{
	token_close(&t->tokens);
	keyed_close(&t->fence);
	keyed_close(&t->lease);
}

/* What came of an attempt to write a grant. */
typedef struct Attempt
{
	int64		token;			/* 0: start over */
	bool		drain;			/* guarded writes may be in flight still */
	bool		moved;			/* settle the place of the tokens first */
	TransactionId locker;		/* its row lock was in the way */
} Attempt;

/*
 * One attempt to write the grant under R in the given mode, which is dropped
 * before returning.  A free lease needs GRANT mode, one that this transaction
 * granted needs RENEW mode, and this owner's live one will do with either.
 * *read is what the look without R saw, and becomes what is true under R.
 */
static Attempt
grant_under_lock(GrantTables *t, const GrantRequest *req, LOCKMODE mode, LeaseRead *read)
{
	Attempt		attempt = {0};
	TimestampTz now = GetCurrentTimestamp();
	Verdict		verdict;

	lease_read_again(&t->lease, &req->resource, read);
	verdict = judge(read, req, now);
	if (verdict == VERDICT_MINE_HERE)
		attempt.token = read->row.version;
	else if (verdict == VERDICT_MINE || (verdict == VERDICT_FREE && mode == GRANT_MODE))
	{
		int64		floor = fence_floor(&t->fence, &req->resource);

		if (read->found)
			floor = Max(floor, read->row.version);
		attempt.token = token_mint(&t->tokens, floor);
		attempt.moved = attempt.token == 0;
	}
	if (attempt.token != 0)
	{
		if (write_grant(&t->lease, req, read, attempt.token, now) == WRITE_BLOCKED)
		{
			attempt.locker = row_locker(read->row.tuple);
			attempt.token = 0;
		}
		else if (verdict == VERDICT_MINE)
		{
			log_reacquired(req, attempt.token, read->row.version, now);
			attempt.drain = mode == RENEW_MODE;
		}
	}
	unlock_name(LOCK_LEASE, &req->resource, mode);
	return attempt;
}

/* The steps that follow a written grant, whichever way it was written. */
static int64
granted(const GrantRequest *req, int64 token)
{
	present_grant(&req->resource, token);
	require_sync_commit();
	return token;
}

/*
 * Takes R in the mode that a verdict calls for, GRANT mode without waiting.
 * Over a live lease RENEW mode is the second choice: it needs no gap between
 * guarded writes, and has them waited for afterwards.  Returns the mode, or
 * NoLock.
 */
static LOCKMODE
lock_for(Waiting *w, const GrantRequest *req, Verdict verdict)
{
	if (verdict != VERDICT_MINE_HERE &&
		lock_name(LOCK_LEASE, &req->resource, GRANT_MODE, true))
		return GRANT_MODE;
	if (verdict != VERDICT_FREE &&
		lock_name_bounded(w, LOCK_LEASE, &req->resource, RENEW_MODE))
		return RENEW_MODE;
	return NoLock;
}

/* Sleeps on what a verdict says is in the way. */
static void
wait_for_verdict(Waiting *w, const GrantRequest *req, const LeaseRead *read,
				 Verdict verdict)
{
	VirtualTransactionId *holders;

	switch (verdict)
	{
		case VERDICT_HELD:
			wait_until(w, read->row.expire_at);
			break;
		case VERDICT_COOLDOWN:
			wait_until(w, read->row.free_at);
			break;
		case VERDICT_IN_FLIGHT:
			wait_for_xact(w, read->pending);
			break;
		default:
			if (guard_holders(&req->resource, &holders) > 0)
			{
				wait_for_vxid(w, holders[0]);
				pfree(holders);
			}
			else
				wait_nap(w);
			break;
	}
}

/* Whether nothing but a function at work, or an ending transaction, has R. */
static bool
only_functions_at_work(const GrantRequest *req, Verdict verdict)
{
	VirtualTransactionId *holders;

	if (verdict != VERDICT_FREE && verdict != VERDICT_MINE)
		return false;
	if (guard_holders(&req->resource, &holders) == 0)
		return true;
	pfree(holders);
	return false;
}

/*
 * Grants the lease, waiting at most wait_usecs.  Returns the token.  Raises
 * 55P03 when the time is up, and whatever ends a wait.
 */
int64
lease_grant(const GrantRequest *req, int64 wait_usecs)
{
	GrantTables t;
	Waiting		w;
	bool		counted = false;
	int			tries = 0;
	int64		token = 0;

	PreventCommandIfReadOnly("acquire()");
	PreventCommandIfParallelMode("acquire()");
	waiting_begin(&w, wait_usecs);
	while (!open_tables(&t, true))
	{
		if (waiting_over(&w))
			ereport(ERROR,
					(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
					 errmsg("could not acquire the lease on resource \"%s\" within %s",
							name_cstring(&req->resource), usecs_text(wait_usecs)),
					 errdetail("A relation of lease_lock is locked by another session."),
					 errhint("View pg_locks shows who has locked it.")));
		wait_for_relations(&w);
	}

	while (token == 0)
	{
		Attempt		attempt = {0};
		LeaseRead	read;
		Verdict		verdict;
		LOCKMODE	mode = NoLock;

		CHECK_FOR_INTERRUPTS();
		lease_read(&t.lease, &req->resource, &read);
		verdict = judge(&read, req, GetCurrentTimestamp());
		if (verdict == VERDICT_REFUSED)
			not_available(req, &read, verdict, &w);

		if (verdict == VERDICT_FREE || verdict == VERDICT_MINE ||
			verdict == VERDICT_MINE_HERE)
			mode = lock_for(&w, req, verdict);
		if (mode != NoLock)
			attempt = grant_under_lock(&t, req, mode, &read);
		token = attempt.token;
		if (attempt.drain && !drain_guards(&w, &req->resource))
			not_available(req, &read, VERDICT_FREE, &w);

		if (token != 0)
			;
		else if (attempt.moved && token_settle_place(&t.tokens, &t.lease, true))
			;
		else if (mode != NoLock && !attempt.moved &&
				 !TransactionIdIsValid(attempt.locker))
			;					/* it changed between the two looks */
		else if (++tries <= TRY_TIMES && only_functions_at_work(req, verdict))
			wait_nap(&w);
		else
		{
			if (waiting_over(&w))
				not_available(req, &read, verdict, &w);
			if (!counted)
				counted = lock_name(LOCK_WAITING, &req->resource, AccessShareLock, false);
			if (TransactionIdIsValid(attempt.locker))
				wait_for_xact(&w, attempt.locker);
			else if (attempt.moved)
				wait_nap(&w);	/* somebody else is at the jump */
			else
				wait_for_verdict(&w, req, &read, verdict);
		}
		lease_read_free(&read);
	}
	if (counted)
		unlock_name(LOCK_WAITING, &req->resource, AccessShareLock);
	close_tables(&t);

	if (w.waited && IsolationUsesXactSnapshot())
		ereport(WARNING,
				(errmsg("acquire waited, and this transaction's snapshot is older than the grant"),
				 errdetail("Reads in this transaction may not show what the last holder committed."),
				 errhint("At this isolation level call lease_lock.acquire in a transaction of its own.")));
	return granted(req, token);
}

/*
 * Grants the lease if that needs no waiting.  Returns the token, or 0.  A lock
 * that a mere function holds is worth a few milliseconds.
 */
int64
lease_try_grant(const GrantRequest *req)
{
	GrantTables t;
	Waiting		w;
	Attempt		attempt = {0};
	bool		again = true;

	PreventCommandIfReadOnly("try_acquire()");
	PreventCommandIfParallelMode("try_acquire()");
	waiting_begin(&w, 0);
	if (!open_tables(&t, true))
		return 0;
	for (int tries = 0; attempt.token == 0 && again && tries < TRY_TIMES; tries++)
	{
		LeaseRead	read;
		Verdict		verdict;
		LOCKMODE	mode;
		VirtualTransactionId *holders;

		if (tries > 0 && !attempt.moved)
			wait_nap(&w);
		lease_read(&t.lease, &req->resource, &read);
		verdict = judge(&read, req, GetCurrentTimestamp());
		if (verdict != VERDICT_FREE && verdict != VERDICT_MINE &&
			verdict != VERDICT_MINE_HERE)
		{
			lease_read_free(&read);
			break;
		}
		mode = verdict == VERDICT_MINE_HERE ? RENEW_MODE : GRANT_MODE;
		if (lock_name(LOCK_LEASE, &req->resource, mode, true))
		{
			attempt = grant_under_lock(&t, req, mode, &read);
			if (attempt.moved)
				again = token_settle_place(&t.tokens, &t.lease, true);
			if (TransactionIdIsValid(attempt.locker))
				again = false;
		}
		else if (mode == GRANT_MODE && guard_holders(&req->resource, &holders) > 0)
			again = false;
		lease_read_free(&read);
	}
	close_tables(&t);
	return attempt.token == 0 ? 0 : granted(req, attempt.token);
}
