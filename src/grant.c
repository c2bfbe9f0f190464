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
 * - A free lease is not granted over the heads of those who wait in line for it
 *	 (line.c).  A live one goes to its own owner past any line.
 *
 * A call that waits closes the tables and lets go of its locks on them meanwhile,
 * if it can (relations.c).
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
#include "grant.h"

#define TRY_TIMES 8				/* while a function is at work: a few milliseconds */

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

static const char *const scope_names[] = {
	[SCOPE_LEASE] = "lease",
	[SCOPE_SESSION] = "session",
	[SCOPE_TRANSACTION] = "transaction",
};

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
	values[LEASE_RENEWALS - 1] = Int32GetDatum(0);
	values[LEASE_TTL - 1] = IntervalPGetDatum(usecs_interval(req->ttl));
	values[LEASE_LONGEST_GAP - 1] = Int64GetDatum(0);
	values[LEASE_RESOURCE - 1] = req->resource_text;
	values[LEASE_OWNER - 1] = req->owner_text;
	values[LEASE_ROLE - 1] = CStringGetTextDatum(req->role);
	values[LEASE_SCOPE - 1] = CStringGetTextDatum(scope_names[req->scope]);
	nulls[LEASE_SESSION - 1] = req->scope != SCOPE_SESSION;
	if (req->scope == SCOPE_SESSION)
		values[LEASE_SESSION - 1] = Int64GetDatum(session_key(&req->resource));
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
	ereport(event_level,
			(errmsg("lease on resource \"%s\" re-acquired by its owner \"%s\"",
					name_cstring(&req->resource), name_cstring(&req->owner)),
			 errdetail("Token " INT64_FORMAT " replaces token " INT64_FORMAT ". " INT64_FORMAT " others were re-acquired by this backend since its last such message.",
					   token, old_token, unlogged)));
	last = now;
	unlogged = 0;
}

/* One line for the server log: a holder has not come back in time. */
static void
log_takeover(const GrantRequest *req, int64 token, const LeaseRow *old, TimestampTz now)
{
	ereport(event_level,
			(errmsg("lease on resource \"%s\" taken over by \"%s\" from \"%.*s\", %s",
					name_cstring(&req->resource), name_cstring(&req->owner),
					old->owner_len, old->owner,
					old->expire_at > now ? "whose session has ended" : "which let it expire"),
			 errdetail("Token " INT64_FORMAT " replaces token " INT64_FORMAT ", expiry %s.",
					   token, old->version, timestamptz_to_str(old->expire_at))));
}

/* What a grant works with, opened before any lock of ours. */
typedef struct GrantTables
{
	KeyedTable	lease;
	KeyedTable	fence;
	TokenSource tokens;
	History		history;
} GrantTables;

/* False only with nowait, when somebody's lock on a relation is in the way. */
static bool
open_tables(GrantTables *t, bool nowait)
{
	if (!keyed_open(&t->lease, TABLE_LEASE, RowExclusiveLock, nowait))
		return false;
	if (keyed_open(&t->fence, TABLE_FENCE, RowExclusiveLock, nowait))
	{
		if (token_open(&t->tokens, RowExclusiveLock, nowait))
		{
			if (history_open(&t->history, nowait))
				return true;
			token_close(&t->tokens);
		}
		keyed_close(&t->fence);
	}
	keyed_close(&t->lease);
	return false;
}

static void
close_tables(GrantTables *t)
{
	history_close(&t->history);
	token_close(&t->tokens);
	keyed_close(&t->fence);
	keyed_close(&t->lease);
}

/* Whether a lease is the caller's already, so that no line is jumped. */
static bool
takes_its_own(Verdict verdict)
{
	return verdict == VERDICT_MINE || verdict == VERDICT_MINE_HERE;
}

/*
 * How many waiters go first.  None before the owner of a live lease, or of one
 * that is just being granted, and none that wait for this very transaction,
 * because it has changed the lease or written under it.
 */
static int
waiters_ahead(const GrantRequest *req, const LeaseRead *read, Verdict verdict)
{
	int			ahead;

	if (takes_its_own(verdict) || read->own)
		return 0;
	/* Its own lease, with a renewal or another grant of it in flight. */
	if (verdict == VERDICT_IN_FLIGHT &&
		((read->pending_grant && read->pending_row.tuple && same_owner(&read->pending_row, req)) ||
		 (!read->pending_grant && read->found && same_owner(&read->row, req) &&
		  lease_live(&read->row, read->own, GetCurrentTimestamp()))))
		return 0;
	ahead = line_ahead(&req->resource);
	return ahead > 0 && name_held_by_me(LOCK_LEASE, &req->resource, GUARD_MODE) ? 0 : ahead;
}

/* What came of an attempt to write a grant. */
typedef struct Attempt
{
	int64		token;			/* 0: start over */
	bool		drain;			/* guarded writes may be in flight still */
	bool		moved;			/* settle the place of the tokens first */
	TransactionId locker;		/* its row lock was in the way */
	TimestampTz now;			/* when the grant was written */
	uint32		counts;			/* of StatsEvent; 0: no new grant */
} Attempt;

/* Says what became of the grant that a new one replaces. */
static void
count_predecessor(GrantTables *t, const GrantRequest *req, Verdict verdict,
				  const LeaseRow *row, Attempt *attempt)
{
	if (verdict == VERDICT_MINE)
	{
		attempt->counts |= 1 << STAT_REACQUIRED;
		history_write(&t->history, row, RelationGetDescr(t->lease.heap), attempt->now, "reacquired");
		return;
	}
	if (row->ended_by == NOT_ENDED)
	{
		attempt->counts |= 1 << STAT_TAKEOVERS;
		attempt->counts |= 1 << (row->expire_at > attempt->now ? STAT_SESSIONS_DIED : STAT_EXPIRED);
		log_takeover(req, attempt->token, row, attempt->now);
	}
	history_write_end(&t->history, row, RelationGetDescr(t->lease.heap), attempt->now);
}

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

	attempt.now = now;
	lease_read_again(&t->lease, &req->resource, read);
	verdict = judge(read, req, now);
	if (verdict == VERDICT_MINE_HERE)
		attempt.token = read->row.version;
	else if (verdict == VERDICT_MINE || (verdict == VERDICT_FREE && mode == GRANT_MODE))
	{
		attempt.token = token_mint(&t->tokens, read->found ? read->row.version : 0,
								   fence_floor(&t->fence, &req->resource), &req->resource);
		attempt.moved = attempt.token == 0;
	}
	if (attempt.token != 0)
	{
		if (write_grant(&t->lease, req, read, attempt.token, now) == WRITE_BLOCKED)
		{
			attempt.locker = row_locker(read->row.tuple);
			attempt.token = 0;
		}
		else if (takes_its_own(verdict) &&
				 (req->scope != SCOPE_LEASE || now + req->ttl < read->row.expire_at))
			line_wake_at_commit(&req->resource);	/* it may end sooner */
		if (attempt.token != 0 && verdict == VERDICT_MINE)
		{
			log_reacquired(req, attempt.token, read->row.version, now);
			attempt.drain = mode == RENEW_MODE;
		}
	}
	unlock_name(LOCK_LEASE, &req->resource, mode);
	if (attempt.token != 0 && verdict != VERDICT_MINE_HERE)
	{
		attempt.counts = 1 << STAT_GRANTS;
		if (read->found)
			count_predecessor(t, req, verdict, &read->row, &attempt);
	}
	return attempt;
}

/* The steps that follow a written grant, whichever way it was written. */
static int64
granted(const GrantRequest *req, int64 token, StatsEvent *event)
{
	present_grant(&req->resource, token);
	require_sync_commit();
	if (event->counts != 0)
		stats_record(&req->resource, event);
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

/* Opens the tables, waiting for others' locks on them. */
static void
open_tables_bounded(GrantTables *t, const GrantRequest *req, Waiting *w, bool lets_go)
{
	while (!open_tables(t, true))
	{
		if (lets_go)
			own_relations_let_go();
		if (waiting_over(w))
		{
			count_given_up(req, w);
			ereport(ERROR,
					(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
					 w->lock_timeout ?
					 errmsg("canceling statement due to lock timeout while waiting for the lease on resource \"%s\"",
							name_cstring(&req->resource)) :
					 errmsg("could not acquire the lease on resource \"%s\" within %s",
							name_cstring(&req->resource), usecs_text(w->deadline - w->start)),
					 errdetail("A relation of lease_lock is locked by another session."),
					 errhint("View pg_locks shows who has locked it.")));
		}
		wait_for_relations(w);
		wait_nap(w);			/* it may be an index of theirs */
	}
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
	bool		lets_go = !own_relations_locked();
	MemoryContext context = CurrentMemoryContext;
	MemoryContext looks = NULL;
	bool		joined = false;
	bool		in_line = false;
	int			tries = 0;
	int64		token = 0;
	TimestampTz lasts_until = DT_NOBEGIN;
	StatsEvent	event = {0};

	PreventCommandIfReadOnly("acquire()");
	PreventCommandIfParallelMode("acquire()");
	waiting_begin(&w, wait_usecs);
	open_tables_bounded(&t, req, &w, lets_go);
	while (token == 0)
	{
		Attempt		attempt = {0};
		WaitPlan	plan = {.what = WAIT_NOT};
		LeaseRead	read;
		Verdict		verdict;
		LOCKMODE	mode = NoLock;
		int			ahead;

		CHECK_FOR_INTERRUPTS();
		lease_read(&t.lease, &req->resource, &read);
		verdict = judge(&read, req, GetCurrentTimestamp());
		if (verdict == VERDICT_REFUSED)
			not_available(req, &read, verdict, 0, &w);

		ahead = waiters_ahead(req, &read, verdict);
		if (takes_its_own(verdict) || (verdict == VERDICT_FREE && ahead == 0))
			mode = lock_for(&w, req, verdict);
		if (mode != NoLock)
			attempt = grant_under_lock(&t, req, mode, &read);
		token = attempt.token;
		event.counts = attempt.counts;
		event.wait = Max(attempt.now - w.start, 0);
		/* The end of a transaction, or of a session's lock, wakes nobody. */
		if (req->scope == SCOPE_LEASE)
			lasts_until = attempt.now + req->ttl;
		if (attempt.drain && !drain_guards(&w, &req->resource))
			not_available(req, &read, VERDICT_FREE, 0, &w);

		if (token != 0)
			;
		else if (attempt.moved && token_settle_place(&t.tokens, &t.lease, true))
			;
		else if (mode != NoLock && !attempt.moved &&
				 !TransactionIdIsValid(attempt.locker))
			;					/* it changed between the two looks */
		else if (ahead == 0 && (verdict == VERDICT_FREE || verdict == VERDICT_MINE) &&
				 ++tries <= TRY_TIMES && !guards_in_flight(&req->resource))
			wait_nap(&w);
		else
		{
			if (waiting_over(&w))
			{
				if (ahead == 0)
					try_evict(req, &t.lease, &read, verdict);
				not_available(req, &read, verdict, ahead, &w);
			}
			tries = 0;
			if (!joined)
			{
				/* In line first, and then the last look: no wake-up is lost. */
				in_line = line_join(&req->resource, &req->owner, w.start, waiting_end(&w));
				joined = true;
			}
			else if (TransactionIdIsValid(attempt.locker))
			{
				plan.what = WAIT_XACT;
				plan.xid = attempt.locker;
			}
			else if (attempt.moved)
				plan.what = WAIT_NAP;	/* somebody else is at the jump */
			else
				plan = plan_wait(&w, req, &t.lease, &read, verdict, ahead, in_line);
		}
		lease_read_free(&read);
		if (plan.what != WAIT_NOT)
		{
			close_tables(&t);
			if (lets_go)
				own_relations_let_go();
			if (looks == NULL)
				looks = AllocSetContextCreate(context, "lease_lock looks", ALLOCSET_SMALL_SIZES);
			MemoryContextReset(looks);
			wait_as_planned(&w, &plan, in_line);
			MemoryContextSwitchTo(looks);
			open_tables_bounded(&t, req, &w, lets_go);
		}
	}
	line_leave_granted(lasts_until);
	close_tables(&t);
	MemoryContextSwitchTo(context);

	if (w.waited && IsolationUsesXactSnapshot())
		ereport(WARNING,
				(errmsg("acquire waited, and this transaction's snapshot is older than the grant"),
				 errdetail("Reads in this transaction may not show what the last holder committed."),
				 errhint("At this isolation level call lease_lock.acquire in a transaction of its own.")));
	event.timed = STATS_WAIT;
	return granted(req, token, &event);
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
	StatsEvent	event = {0};
	bool		again = true;

	PreventCommandIfReadOnly("try_acquire()");
	PreventCommandIfParallelMode("try_acquire()");
	waiting_begin(&w, 0);
	if (!open_tables(&t, true))
	{
		stats_count(STAT_BUSY, &req->resource);
		return 0;
	}
	for (int tries = 0; attempt.token == 0 && again && tries < TRY_TIMES; tries++)
	{
		LeaseRead	read;
		Verdict		verdict;
		LOCKMODE	mode;

		if (tries > 0 && !attempt.moved)
			wait_nap(&w);
		lease_read(&t.lease, &req->resource, &read);
		verdict = judge(&read, req, GetCurrentTimestamp());
		if (verdict == VERDICT_IN_FLIGHT)
			try_evict(req, &t.lease, &read, verdict);
		if (!takes_its_own(verdict) &&
			(verdict != VERDICT_FREE || waiters_ahead(req, &read, verdict) > 0))
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
		else if (mode == GRANT_MODE && guards_in_flight(&req->resource))
		{
			try_evict(req, &t.lease, &read, verdict);
			again = false;
		}
		lease_read_free(&read);
	}
	close_tables(&t);
	event.counts = attempt.counts;
	if (attempt.token != 0)
		return granted(req, attempt.token, &event);
	stats_count(STAT_BUSY, &req->resource);
	return 0;
}
