/*
 * admin.c
 *		What only administrators may do: force_release(), prune() and
 *		forget_fence().
 *
 * EXECUTE on these functions is the permission; nothing else is asked.  Every
 * forced release is recorded in lease_lock.audit and in the server log.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/subtrans.h"
#include "access/tableam.h"
#include "access/transam.h"
#include "access/xact.h"
#include "fmgr.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "storage/procarray.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"
#include "utils/xid8.h"

#include "compat.h"
#include "lease_lock.h"

PG_FUNCTION_INFO_V1(ll_force_release);
PG_FUNCTION_INFO_V1(ll_prune);
PG_FUNCTION_INFO_V1(ll_forget_fence);

/* Ends a backend as pg_terminate_backend does, with that function's checks. */
static void
terminate(int pid, StringInfo ended)
{
	if (pid == 0 || pid == MyProcPid)
		return;
	if (DatumGetBool(OidFunctionCall2(F_PG_TERMINATE_BACKEND, Int32GetDatum(pid), Int64GetDatum(0))))
		appendStringInfo(ended, "%s%d", ended->len ? ", " : "", pid);
}

/* Raises 55P03; why is a sentence. */
static void
not_released(const Waiting *w, const LeaseName *resource, const char *why, bool terminate_them)
{
	ereport(ERROR,
			(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
			 w->lock_timeout ?
			 errmsg("canceling statement due to lock timeout while forcing the release of the lease on resource \"%s\"",
					name_cstring(resource)) :
			 errmsg("could not force the release of the lease on resource \"%s\" within %s",
					name_cstring(resource), usecs_text(w->deadline - w->start)),
			 errdetail_internal("%s", why),
			 terminate_them ?
			 errhint("End it yourself; a prepared transaction ends by COMMIT PREPARED or ROLLBACK PREPARED.") :
			 errhint("Call force_release with terminate => true to end it.")));
}

/*
 * Waits for the writes in flight under a burnt token, ending their backends
 * when told to.  The uncommitted row keeps new ones out.
 */
static void
drain_or_terminate(Waiting *w, const LeaseName *resource, bool terminate_them, StringInfo ended)
{
	VirtualTransactionId *holders;
	int			n;

	while (name_in_use(resource))
	{
		n = guard_holders(resource, &holders);
		if (waiting_over(w))
			not_released(w, resource,
						 psprintf("A transaction that wrote under it is still open (%s).",
								  n > 0 ? blockers_text(n, holders) : "at work"), terminate_them);
		for (int i = 0; terminate_them && i < n; i++)
			terminate(vxid_pid(holders[i]), ended);
		if (n > 0)
			wait_for_guard(w, holders[0]);
		else
			wait_nap(w);
		pfree(holders);
	}
}

/* Writes the end of a lease under a new token, which makes the old one stale. */
static WriteResult
write_forced_end(KeyedTable *lease, const LeaseRow *row, int64 token)
{
	Datum		values[LEASE_NATTS] = {0};
	bool		nulls[LEASE_NATTS] = {0};
	bool		replace[LEASE_NATTS] = {0};

	values[LEASE_VERSION - 1] = Int64GetDatum(token);
	values[LEASE_ENDED_AT - 1] = TimestampTzGetDatum(GetCurrentTimestamp());
	values[LEASE_ENDED_BY - 1] = CStringGetTextDatum("forced");
	nulls[LEASE_FREE_AT - 1] = true;
	values[LEASE_GRANT_XID - 1] = FullTransactionIdGetDatum(GetTopFullTransactionId());
	replace[LEASE_VERSION - 1] = true;
	replace[LEASE_ENDED_AT - 1] = true;
	replace[LEASE_ENDED_BY - 1] = true;
	replace[LEASE_FREE_AT - 1] = true;
	replace[LEASE_GRANT_XID - 1] = true;
	return row_change(lease, row->tuple, values, nulls, replace);
}

static void
count_forced(History *history, KeyedTable *lease, const LeaseName *resource, const LeaseRead *read)
{
	TimestampTz now = GetCurrentTimestamp();
	StatsEvent	event = {.counts = 1 << STAT_FORCED};

	if (lease_live(&read->row, read->own, now))
		history_write(history, &read->row, RelationGetDescr(lease->heap), now, "forced");
	else
	{
		event.counts |= 1 << (read->row.expire_at > now ? STAT_SESSIONS_DIED : STAT_EXPIRED);
		history_write_end(history, &read->row, RelationGetDescr(lease->heap), now);
	}
	stats_record(resource, &event);
}

/* Ends the cooldown of a released lease, under the token that it has. */
static WriteResult
write_cooldown_end(KeyedTable *lease, const LeaseRow *row)
{
	Datum		values[LEASE_NATTS] = {0};
	bool		nulls[LEASE_NATTS] = {0};
	bool		replace[LEASE_NATTS] = {0};

	nulls[LEASE_FREE_AT - 1] = true;
	replace[LEASE_FREE_AT - 1] = true;
	return row_change(lease, row->tuple, values, nulls, replace);
}

/*
 * Burns a token for a lease that has not ended, be it expired or not.  Returns
 * the token that it ended, 0 when there is none; *owner names its holder, of a
 * lease that was in a cooldown too, which is over then.
 */
static int64
burn_token(KeyedTable *lease, TokenSource *tokens, History *history,
		   const LeaseName *resource, Waiting *w, bool terminate_them,
		   StringInfo ended, int64 *burnt, char **owner)
{
	for (;;)
	{
		LeaseRead	read;
		TransactionId blocker;
		int64		token = 0;
		bool		done = false;
		bool		moved = false;

		if (waiting_over(w))
			not_released(w, resource,
						 "Another transaction has changed the lease and is still open.",
						 terminate_them);
		(void) lock_name(LOCK_LEASE, resource, RENEW_MODE, false);
		lease_read(lease, resource, &read);
		blocker = read.pending;
		if (TransactionIdIsValid(blocker))
			;
		else if (read.found && read.row.ended_by == ENDED_RELEASED &&
				 read.row.free_at > GetCurrentTimestamp())
		{
			if (write_cooldown_end(lease, &read.row) == WRITE_BLOCKED)
				blocker = row_locker(read.row.tuple);
			else
			{
				*owner = pnstrdup(read.row.owner, read.row.owner_len);
				done = true;
				line_wake_at_commit(resource);
			}
		}
		else if (!read.found || read.row.ended_by == ENDED_RELEASED ||
				 read.row.ended_by == ENDED_FORCED ||
				 (read.row.ended_by == ENDED_TRANSACTION && !read.own))
			done = true;
		else
		{
			/* No grant: the fence need not hear of it, and must not stop it. */
			*burnt = token_mint(tokens, read.row.version, 0, resource);
			moved = *burnt == 0;
			if (!moved)
			{
				if (write_forced_end(lease, &read.row, *burnt) == WRITE_BLOCKED)
					blocker = row_locker(read.row.tuple);
				else
				{
					token = read.row.version;
					*owner = pnstrdup(read.row.owner, read.row.owner_len);
					count_forced(history, lease, resource, &read);
					done = true;
					line_wake_at_commit(resource);
				}
			}
		}
		lease_read_free(&read);
		unlock_name(LOCK_LEASE, resource, RENEW_MODE);
		if (done)
			return token;
		if (moved)
			(void) token_settle_place(tokens, lease, false);
		if (TransactionIdIsValid(blocker))
		{
			if (terminate_them)
				terminate(BackendXidGetPid(SubTransGetTopmostTransaction(blocker)), ended);
			wait_for_xact(w, blocker);
		}
	}
}

/* force_release(resource, reason, terminate) */
Datum
ll_force_release(PG_FUNCTION_ARGS)
{
	LeaseName	resource;
	char	   *reason;
	bool		terminate_them;
	KeyedTable	lease;
	KeyedTable	fence;
	TokenSource tokens;
	History		history;
	Waiting		w;
	StringInfoData ended;
	int64		token;
	int64		burnt = 0;
	char	   *owner = NULL;
	char	   *detail;

	if (PG_ARGISNULL(0))
		argument_is_null("resource");
	resource = name_arg(PG_GETARG_TEXT_PP(0), "resource");
	reason = reason_arg(PG_ARGISNULL(1) ? NULL : PG_GETARG_TEXT_PP(1));
	terminate_them = !PG_ARGISNULL(2) && PG_GETARG_BOOL(2);
	PreventCommandIfReadOnly("force_release()");
	PreventCommandIfParallelMode("force_release()");
	(void) require_right(PRIVILEGE_FORCE, PG_GETARG_TEXT_PP(0), false);

	waiting_begin(&w, wait_arg(NULL));
	initStringInfo(&ended);
	(void) keyed_open(&lease, TABLE_LEASE, RowExclusiveLock, false);
	(void) keyed_open(&fence, TABLE_FENCE, RowExclusiveLock, false);
	(void) token_open(&tokens, RowExclusiveLock, false);
	(void) history_open(&history, false);
	token = burn_token(&lease, &tokens, &history, &resource, &w, terminate_them, &ended, &burnt, &owner);
	if (token != 0 || terminate_them)
		drain_or_terminate(&w, &resource, terminate_them, &ended);
	history_close(&history);
	token_close(&tokens);
	keyed_close(&fence);
	keyed_close(&lease);

	if (token != 0)
		detail = psprintf("token " INT64_FORMAT " of \"%s\" replaced by " INT64_FORMAT, token, owner, burnt);
	else if (owner)
		detail = psprintf("ended the cooldown that \"%s\" had asked for", owner);
	else
		detail = pstrdup("no lease in force");
	if (ended.len)
		detail = psprintf("%s; ended backends: %s", detail, ended.data);
	audit_write("force_release", name_cstring(&resource), reason, detail, 0);
	ereport(event_level,
			(errmsg("lease on resource \"%s\" forcibly released by \"%s\"",
					name_cstring(&resource), GetUserNameFromId(GetUserId(), false)),
			 errdetail_internal("%s; reason: %s", detail, reason)));
	require_sync_commit();
	presented_forget_checks(&resource);
	if (token == 0)
		PG_RETURN_NULL();
	PG_RETURN_INT64(token);
}

/*
 * Whether a row has been of no use to anybody since a moment.  own: it is this
 * transaction's version.
 */
static bool
idle_since(const LeaseRow *row, bool own, TimestampTz limit)
{
	TimestampTz end = row->expire_at;

	if (row->ended_at != 0)
		end = row->ended_at;
	else if (row->ended_by == ENDED_TRANSACTION && !own)
		end = row->acquired_at;
	return Max(end, row->free_at) <= limit;
}

/*
 * Deletes one idle row unless anybody is at it.  A row that still knows a
 * newer token than its fence stays: without it an older token would pass in
 * mode 'newest'.  Where nothing was ever accepted in that mode there is no
 * fence to tell (doc/reference.md says so).
 */
static bool
prune_one(KeyedTable *lease, KeyedTable *fence, History *history, const LeaseName *resource,
		  TimestampTz limit)
{
	LeaseRead	read;
	FenceRead	seen;
	bool		pruned = false;

	if (!lock_name(LOCK_LEASE, resource, RENEW_MODE, true))
		return false;
	lease_read(lease, resource, &read);
	if (read.found && !TransactionIdIsValid(read.pending) && idle_since(&read.row, read.own, limit))
	{
		fence_read(fence, resource, &seen);
		if (!TransactionIdIsValid(seen.pending) &&
			(!seen.found || seen.highest >= read.row.version))
			pruned = row_delete(lease, read.row.tuple) == WRITE_DONE;
		fence_read_free(&seen);
		if (pruned && read.row.ended_by == NOT_ENDED)
			stats_count(STAT_EXPIRED, resource);
		if (pruned)
			history_write_end(history, &read.row, RelationGetDescr(lease->heap), GetCurrentTimestamp());
	}
	lease_read_free(&read);
	unlock_name(LOCK_LEASE, resource, RENEW_MODE);
	return pruned;
}

/* prune(idle): how many idle rows it removed */
Datum
ll_prune(PG_FUNCTION_ARGS)
{
	int64		idle = age_arg(PG_ARGISNULL(0) ? NULL : PG_GETARG_INTERVAL_P(0), "idle");
	TimestampTz limit = GetCurrentTimestamp() - idle;
	KeyedTable	lease;
	KeyedTable	fence;
	History		history;
	SnapshotData dirty;
	TableScanDesc scan;
	TupleTableSlot *slot;
	MemoryContext per_row;
	MemoryContext old;
	int64		pruned = 0;

	PreventCommandIfReadOnly("prune()");
	PreventCommandIfParallelMode("prune()");
	(void) keyed_open(&lease, TABLE_LEASE, RowExclusiveLock, false);
	(void) keyed_open(&fence, TABLE_FENCE, RowExclusiveLock, false);
	(void) history_open(&history, false);
	if (lease.heap->trigdesc && lease.heap->trigdesc->trig_delete_after_row)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("cannot prune while foreign keys refer to lease_lock.lease"),
				 errdetail("Rows are removed without firing triggers, so references would dangle."),
				 errhint("Drop the foreign keys.")));

	per_row = AllocSetContextCreate(CurrentMemoryContext, "lease_lock prune",
									ALLOCSET_DEFAULT_SIZES);
	InitDirtySnapshot(dirty);
	slot = table_slot_create(lease.heap, NULL);
	scan = table_beginscan(lease.heap, &dirty, 0, NULL);
	old = MemoryContextSwitchTo(per_row);
	while (table_scan_getnextslot(scan, ForwardScanDirection, slot))
	{
		HeapTuple	tuple = ExecFetchSlotHeapTuple(slot, false, NULL);
		LeaseRow	row;
		text	   *key;
		bool		isnull;
		LeaseName	resource;

		CHECK_FOR_INTERRUPTS();
		if (TransactionIdIsValid(dirty.xmin) || TransactionIdIsValid(dirty.xmax))
			continue;
		lease_row_decode(tuple, RelationGetDescr(lease.heap), &row);
		if (idle_since(&row, false, limit))
		{
			key = DatumGetTextPP(heap_getattr(tuple, LEASE_RESOURCE,
											  RelationGetDescr(lease.heap), &isnull));
			resource = make_name(VARDATA_ANY(key), VARSIZE_ANY_EXHDR(key));
			if (prune_one(&lease, &fence, &history, &resource, limit))
				pruned++;
		}
		MemoryContextReset(per_row);
	}
	MemoryContextSwitchTo(old);
	table_endscan(scan);
	ExecDropSingleTupleTableSlot(slot);
	MemoryContextDelete(per_row);
	history_close(&history);
	keyed_close(&fence);
	keyed_close(&lease);
	if (pruned > 0)
		audit_write("prune", "lease_lock.lease", NULL,
					psprintf(INT64_FORMAT " rows idle for %s", pruned, usecs_text(idle)), 0);
	PG_RETURN_INT64(pruned);
}

/* Raises 55P03. */
static void
not_forgotten(const Waiting *w, const LeaseName *name)
{
	ereport(ERROR,
			(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
			 w->lock_timeout ?
			 errmsg("canceling statement due to lock timeout while forgetting the fence of \"%s\"",
					name_cstring(name)) :
			 errmsg("could not forget the fence of \"%s\" within %s",
					name_cstring(name), usecs_text(w->deadline - w->start)),
			 errdetail("A transaction that wrote under that name is still open."),
			 errhint("Retry, or set lease_lock.default_wait higher.")));
}

/*
 * forget_fence(name): the highest token that was accepted under a name in mode
 * 'newest', or NULL.  Excludes the writes in flight, and waits for them as long
 * as lease_lock.default_wait says; afterwards any token is accepted that the
 * lease of that name, if there is one, lets pass.
 */
Datum
ll_forget_fence(PG_FUNCTION_ARGS)
{
	LeaseName	name;
	KeyedTable	fence;
	FenceRead	seen;
	Waiting		w;
	int64		highest = 0;

	if (PG_ARGISNULL(0))
		argument_is_null("name");
	name = name_arg(PG_GETARG_TEXT_PP(0), "name");
	PreventCommandIfReadOnly("forget_fence()");
	PreventCommandIfParallelMode("forget_fence()");
	waiting_begin(&w, wait_arg(NULL));
	(void) keyed_open(&fence, TABLE_FENCE, RowExclusiveLock, false);
	(void) keyed_heap(&fence);
	for (;;)
	{
		TransactionId blocker;

		if (!lock_name_bounded(&w, LOCK_FENCE, &name, GRANT_MODE))
			not_forgotten(&w, &name);
		fence_read(&fence, &name, &seen);
		blocker = seen.pending;
		if (!TransactionIdIsValid(blocker))
		{
			if (seen.found && row_delete(&fence, seen.tuple) == WRITE_BLOCKED)
				blocker = row_locker(seen.tuple);
			else
			{
				highest = seen.highest;
				fence_read_free(&seen);
				break;
			}
		}
		fence_read_free(&seen);
		unlock_name(LOCK_FENCE, &name, GRANT_MODE);
		if (waiting_over(&w))
			not_forgotten(&w, &name);
		if (TransactionIdIsValid(blocker))
			wait_for_xact(&w, blocker);
	}
	keyed_close(&fence);
	presented_forget_checks(&name);
	if (highest == 0)
		PG_RETURN_NULL();
	audit_write("forget_fence", name_cstring(&name), NULL,
				psprintf("highest token " INT64_FORMAT, highest), 0);
	ereport(event_level,
			(errmsg("fence of \"%s\" forgotten by \"%s\"",
					name_cstring(&name), GetUserNameFromId(GetUserId(), false)),
			 errdetail("The highest token was " INT64_FORMAT ".", highest)));
	PG_RETURN_INT64(highest);
}
