/*
 * grant.c
 *		Grants leases: acquire and try_acquire.
 *
 * Every attempt starts by reading the row, and every wait is followed by a new
 * attempt.  Locks, and why (the rules are those of locks.c and DESIGN):
 *
 * - A free lease is granted under R in GRANT mode, asked for without waiting,
 *	 so that no guarded write is in flight and none can start.
 * - A live lease is taken over by its own owner under R in RENEW mode: the new
 *	 token is written first, and then the guarded writes in flight are waited
 *	 for.  Writes that come later meet the uncommitted grant and wait for it.
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

#define TRY_NAPS 8				/* of try_acquire, a few milliseconds in all */

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
	Oid			role = get_role_oid(row->role, true);

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
				 errdetail("Role \"%s\" acquired it, and role \"%s\" does not have that role's privileges.",
						   row->role, GetUserNameFromId(GetUserId(), false)),
				 errhint("A token is not a password: act as a member of the role that acquired the lease.")));
}

static bool
same_owner(const LeaseRow *row, const GrantRequest *req)
{
	return row->owner_len == req->owner.len &&
		memcmp(row->owner, req->owner.data, req->owner.len) == 0 &&
		may_act_for(row);
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
WriteResult
write_grant(KeyedTable *lease, const GrantRequest *req, const LeaseRead *read,
			int64 token)
{
	Datum		values[LEASE_NATTS] = {0};
	bool		nulls[LEASE_NATTS] = {0};
	bool		replace[LEASE_NATTS];
	TimestampTz now = GetCurrentTimestamp();

	values[LEASE_RESOURCE - 1] = PointerGetDatum(cstring_to_text_with_len(req->resource.data, req->resource.len));
	values[LEASE_OWNER - 1] = PointerGetDatum(cstring_to_text_with_len(req->owner.data, req->owner.len));
	values[LEASE_VERSION - 1] = Int64GetDatum(token);
	values[LEASE_EXPIRE_AT - 1] = TimestampTzGetDatum(now + req->ttl);
	values[LEASE_ACQUIRED_AT - 1] = TimestampTzGetDatum(now);
	nulls[LEASE_RENEWED_AT - 1] = true;
	nulls[LEASE_ENDED_AT - 1] = true;
	nulls[LEASE_ENDED_BY - 1] = req->scope != SCOPE_TRANSACTION;
	if (req->scope == SCOPE_TRANSACTION)
		values[LEASE_ENDED_BY - 1] = CStringGetTextDatum("transaction");
	nulls[LEASE_FREE_AT - 1] = true;
	values[LEASE_TTL - 1] = IntervalPGetDatum(usecs_interval(req->ttl));
	values[LEASE_SCOPE - 1] = CStringGetTextDatum(req->scope == SCOPE_TRANSACTION ? "transaction" : "lease");
	values[LEASE_PAYLOAD - 1] = req->payload;
	nulls[LEASE_PAYLOAD - 1] = !req->has_payload;
	values[LEASE_ROLE - 1] = CStringGetTextDatum(GetUserNameFromId(GetUserId(), false));
	values[LEASE_APPLICATION_NAME - 1] = CStringGetTextDatum(application_name ? application_name : "");
	nulls[LEASE_CLIENT_ADDR - 1] = !client_address(&values[LEASE_CLIENT_ADDR - 1]);
	values[LEASE_PID - 1] = Int32GetDatum(MyProcPid);
	values[LEASE_BACKEND_START - 1] = TimestampTzGetDatum(MyStartTimestamp);
	values[LEASE_GRANT_XID - 1] = FullTransactionIdGetDatum(GetTopFullTransactionId());

	if (!read->found)
	{
		row_insert(lease, values, nulls);
		return WRITE_DONE;
	}
	memset(replace, true, sizeof(replace));
	replace[LEASE_RESOURCE - 1] = false;
	if (read->granted_here && token == read->row.version)
	{
		/* The same grant, extended: it keeps its beginning and its payload. */
		replace[LEASE_ACQUIRED_AT - 1] = false;
		values[LEASE_RENEWED_AT - 1] = TimestampTzGetDatum(now);
		nulls[LEASE_RENEWED_AT - 1] = false;
		replace[LEASE_PAYLOAD - 1] = req->has_payload;
	}
	return row_update(lease, read->row.tuple, values, nulls, replace);
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
			  int64 wait_usecs)
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
			 errmsg("could not acquire the lease on resource \"%s\" within %s",
					resource, usecs_text(wait_usecs)),
			 errdetail_internal("%s", detail),
			 errhint("Try again, or wait longer; view lease_lock.holders shows who holds what.")));
}

/*
 * Waits until no other transaction holds R in GUARD mode.  Needs this
 * transaction's uncommitted grant in the row, so that guards that come later
 * wait for us.  Returns early when the caller's time is up.
 */
void
drain_guards(Waiting *w, const LeaseName *resource)
{
	VirtualTransactionId *holders;

	while (guard_holders(resource, &holders) > 0)
	{
		if (waiting_over(w))
			return;
		wait_for_vxid(w, holders[0]);
		pfree(holders);
	}
}

/*
 * One attempt to write the grant under R in the given mode, which is dropped
 * before returning.  Returns the token, or 0 when the caller must start over;
 * *locker is then a transaction to wait for, if any.
 */
static int64
grant_under_lock(KeyedTable *lease, KeyedTable *fence, const GrantRequest *req,
				 LOCKMODE mode, Verdict expected, TransactionId *locker)
{
	LeaseRead	read;
	FenceRead	seen;
	Verdict		verdict;
	int64		token = 0;

	lease_read(lease, &req->resource, &read);
	verdict = judge(&read, req, GetCurrentTimestamp());
	/* In GRANT mode a live lease of this owner may be taken as well. */
	if (verdict == expected ||
		(mode == GRANT_MODE && (verdict == VERDICT_MINE || verdict == VERDICT_FREE)))
	{
		if (verdict == VERDICT_MINE_HERE)
			token = read.row.version;
		else
		{
			fence_read(fence, &req->resource, &seen);
			token = token_mint(Max(read.found ? read.row.version : 0,
								   Max(seen.highest, seen.pending_highest)));
			fence_read_free(&seen);
		}
		if (token != 0 && write_grant(lease, req, &read, token) == WRITE_BLOCKED)
		{
			*locker = row_locker(read.row.tuple);
			token = 0;
		}
		if (token != 0 && verdict == VERDICT_MINE)
			ereport(LOG,
					(errmsg("lease on resource \"%s\" re-acquired by its owner \"%s\"",
							name_cstring(&req->resource), name_cstring(&req->owner)),
					 errdetail("Token " INT64_FORMAT " replaces token " INT64_FORMAT ".",
							   token, read.row.version)));
	}
	lease_read_free(&read);
	unlock_name(LOCK_LEASE, &req->resource, mode);
	return token;
}

/* The steps that follow a written grant, whichever way it was written. */
static int64
granted(const GrantRequest *req, int64 token)
{
	presented_forget_checks(&req->resource);
	present_token(&req->resource, token, false);
	require_sync_commit();
	return token;
}

/*
 * Grants the lease, waiting at most wait_usecs.  Returns the token.  Raises
 * 55P03 when the time is up, and whatever ends a wait.
 */
int64
lease_grant(const GrantRequest *req, int64 wait_usecs)
{
	KeyedTable	lease;
	KeyedTable	fence;
	Waiting		w;
	bool		counted = false;
	int64		token = 0;

	PreventCommandIfReadOnly("acquire()");
	PreventCommandIfParallelMode("acquire()");
	waiting_begin(&w, wait_usecs);
	(void) keyed_open(&lease, TABLE_LEASE, RowExclusiveLock, false);
	(void) keyed_open(&fence, TABLE_FENCE, RowExclusiveLock, false);

	while (token == 0)
	{
		LeaseRead	read;
		Verdict		verdict;
		VirtualTransactionId *holders;
		TransactionId locker = InvalidTransactionId;
		bool		drain = false;
		bool		nap = false;

		CHECK_FOR_INTERRUPTS();
		lease_read(&lease, &req->resource, &read);
		verdict = judge(&read, req, GetCurrentTimestamp());
		if (verdict == VERDICT_REFUSED)
			not_available(req, &read, verdict, wait_usecs);

		if (verdict == VERDICT_FREE || verdict == VERDICT_MINE ||
			verdict == VERDICT_MINE_HERE)
		{
			LOCKMODE	mode = verdict == VERDICT_FREE ? GRANT_MODE : RENEW_MODE;

			(void) token_settle_place(&lease, false);
			if (mode == GRANT_MODE ?
				lock_name(LOCK_LEASE, &req->resource, mode, true) :
				lock_name_bounded(&w, LOCK_LEASE, &req->resource, mode))
			{
				token = grant_under_lock(&lease, &fence, req, mode, verdict, &locker);
				drain = verdict == VERDICT_MINE;
				nap = true;
			}
		}
		if (token != 0)
		{
			if (drain)
			{
				VirtualTransactionId *left;

				drain_guards(&w, &req->resource);
				if (guard_holders(&req->resource, &left) > 0)
					not_available(req, &read, VERDICT_FREE, wait_usecs);
			}
			lease_read_free(&read);
			break;
		}

		if (waiting_over(&w))
			not_available(req, &read, verdict, wait_usecs);
		if (!counted)
			counted = lock_name(LOCK_WAITING, &req->resource, AccessShareLock, false);

		if (TransactionIdIsValid(locker))
			wait_for_xact(&w, locker);
		else if (nap)
			wait_nap(&w);
		else
			switch (verdict)
			{
				case VERDICT_HELD:
					wait_until(&w, read.row.expire_at);
					break;
				case VERDICT_COOLDOWN:
					wait_until(&w, read.row.free_at);
					break;
				case VERDICT_IN_FLIGHT:
					wait_for_xact(&w, read.pending);
					break;
				default:
					if (guard_holders(&req->resource, &holders) > 0)
					{
						wait_for_vxid(&w, holders[0]);
						pfree(holders);
					}
					else
						wait_nap(&w);
					break;
			}
		lease_read_free(&read);
	}
	if (counted)
		unlock_name(LOCK_WAITING, &req->resource, AccessShareLock);
	keyed_close(&fence);
	keyed_close(&lease);

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
	KeyedTable	lease;
	KeyedTable	fence;
	Waiting		w;
	int64		token = 0;
	bool		again = true;

	PreventCommandIfReadOnly("try_acquire()");
	PreventCommandIfParallelMode("try_acquire()");
	waiting_begin(&w, 0);
	if (!keyed_open(&lease, TABLE_LEASE, RowExclusiveLock, true))
		return 0;
	if (!keyed_open(&fence, TABLE_FENCE, RowExclusiveLock, true))
	{
		keyed_close(&lease);
		return 0;
	}
	for (int naps = 0; token == 0 && again && naps < TRY_NAPS; naps++)
	{
		LeaseRead	read;
		Verdict		verdict;
		LOCKMODE	mode;
		TransactionId locker = InvalidTransactionId;
		VirtualTransactionId *holders;

		if (naps > 0)
			wait_nap(&w);
		lease_read(&lease, &req->resource, &read);
		verdict = judge(&read, req, GetCurrentTimestamp());
		lease_read_free(&read);
		if (verdict != VERDICT_FREE && verdict != VERDICT_MINE &&
			verdict != VERDICT_MINE_HERE)
			break;
		if (!token_settle_place(&lease, true))
			break;
		mode = verdict == VERDICT_MINE_HERE ? RENEW_MODE : GRANT_MODE;
		if (lock_name(LOCK_LEASE, &req->resource, mode, true))
			token = grant_under_lock(&lease, &fence, req, mode, verdict, &locker);
		else if (guard_holders(&req->resource, &holders) > 0 && mode == GRANT_MODE)
			again = false;
		if (TransactionIdIsValid(locker))
			again = false;
	}
	keyed_close(&fence);
	keyed_close(&lease);
	return token == 0 ? 0 : granted(req, token);
}
