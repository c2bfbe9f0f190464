/*
 * history.c
 *		One row of lease_lock.history for every grant that ended, while the
 *		setting lease_lock.history is on; and prune_history().
 *
 * Whoever ends a grant, or finds that it has ended, writes its row, in the same
 * transaction: rolled back, it has not ended.  The table and its indexes are
 * opened before R, as all relations are.
 */
#include "postgres.h"

#include "access/heapam.h"
#include "access/htup_details.h"
#include "access/relation.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "catalog/indexing.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "lease_lock.h"

PG_FUNCTION_INFO_V1(ll_prune_history);

/* False only with nowait, when somebody's lock on the table is in the way. */
bool
history_open(History *history, bool nowait)
{
	List	   *indexes = NIL;
	ListCell   *cell;
	int			n_locked = 0;

	history->rel = NULL;
	if (!keep_history)
		return true;
	history->rel = own_open(REL_HISTORY, RowExclusiveLock, nowait);
	if (history->rel == NULL)
		return false;
	if (nowait)
		indexes = RelationGetIndexList(history->rel);
	foreach(cell, indexes)
		if (ConditionalLockRelationOid(lfirst_oid(cell), RowExclusiveLock))
			n_locked++;
		else
			break;
	if (n_locked == list_length(indexes))
		history->indexes = CatalogOpenIndexes(history->rel);
	else
	{
		relation_close(history->rel, NoLock);
		history->rel = NULL;
	}
	/* Open, they have locks of their own. */
	foreach(cell, indexes)
		if (n_locked-- > 0)
			UnlockRelationOid(lfirst_oid(cell), RowExclusiveLock);
	list_free(indexes);
	return history->rel != NULL;
}

void
history_close(History *history)
{
	if (history->rel == NULL)
		return;
	CatalogCloseIndexes(history->indexes);
	relation_close(history->rel, NoLock);
}

/* Writes the row of a grant that ended; desc is that of lease_lock.lease. */
void
history_write(History *history, const LeaseRow *row, TupleDesc desc,
			  TimestampTz ended_at, const char *ended_by)
{
	static const AttrNumber copied[][2] = {
		{HISTORY_TOKEN, LEASE_VERSION},
		{HISTORY_RESOURCE, LEASE_RESOURCE},
		{HISTORY_OWNER, LEASE_OWNER},
		{HISTORY_ROLE, LEASE_ROLE},
		{HISTORY_APPLICATION_NAME, LEASE_APPLICATION_NAME},
		{HISTORY_CLIENT_ADDR, LEASE_CLIENT_ADDR},
		{HISTORY_SCOPE, LEASE_SCOPE},
		{HISTORY_PAYLOAD, LEASE_PAYLOAD},
		{HISTORY_GRANTED_AT, LEASE_ACQUIRED_AT},
		{HISTORY_RENEWALS, LEASE_RENEWALS},
	};
	Datum		values[HISTORY_NATTS] = {0};
	bool		nulls[HISTORY_NATTS] = {0};
	HeapTuple	tuple;

	if (history->rel == NULL)
		return;
	for (int i = 0; i < lengthof(copied); i++)
		values[copied[i][0] - 1] = heap_getattr(row->tuple, copied[i][1], desc,
												&nulls[copied[i][0] - 1]);
	/* A clock that was set back must not make it end before it began. */
	values[HISTORY_ENDED_AT - 1] = TimestampTzGetDatum(Max(ended_at, row->acquired_at));
	values[HISTORY_ENDED_BY - 1] = CStringGetTextDatum(ended_by);
	nulls[HISTORY_LONGEST_GAP - 1] = row->renewals == 0;
	values[HISTORY_LONGEST_GAP - 1] = IntervalPGetDatum(usecs_interval(row->longest_gap));
	tuple = heap_form_tuple(RelationGetDescr(history->rel), values, nulls);
	CatalogTupleInsertWithInfo(history->rel, tuple, history->indexes);
	heap_freetuple(tuple);
	CommandCounterIncrement();
}

/*
 * Writes the row of a grant that is found to have ended by itself.  One that a
 * call ended has its row already.
 */
void
history_write_end(History *history, const LeaseRow *row, TupleDesc desc, TimestampTz now)
{
	if (row->ended_by == ENDED_TRANSACTION)
		history_write(history, row, desc, row->acquired_at, "transaction");
	else if (row->ended_by == NOT_ENDED && row->expire_at > now)
		history_write(history, row, desc, now, "session gone");
	else if (row->ended_by == NOT_ENDED)
		history_write(history, row, desc, row->expire_at, "expired");
}

/*
 * prune_history(keep): how many rows it removed.  Like prune(), it reads the
 * heap without a snapshot of the transaction, so that it neither conflicts with
 * anybody under SERIALIZABLE nor with another one of its kind.
 */
Datum
ll_prune_history(PG_FUNCTION_ARGS)
{
	int64		keep = age_arg(PG_ARGISNULL(0) ? NULL : PG_GETARG_INTERVAL_P(0), "keep");
	TimestampTz limit = GetCurrentTimestamp() - keep;
	Relation	history;
	TableScanDesc scan;
	HeapTuple	tuple;
	int64		pruned = 0;

	PreventCommandIfReadOnly("prune_history()");
	PreventCommandIfParallelMode("prune_history()");
	history = own_open(REL_HISTORY, RowExclusiveLock, false);
	scan = table_beginscan(history, SnapshotSelf, 0, NULL);
	while ((tuple = heap_getnext(scan, ForwardScanDirection)) != NULL)
	{
		TM_FailureData tmfd;
		bool		isnull;

		CHECK_FOR_INTERRUPTS();
		if (DatumGetTimestampTz(heap_getattr(tuple, HISTORY_ENDED_AT,
											 RelationGetDescr(history), &isnull)) >= limit)
			continue;
		/* Somebody else may be removing it, or have. */
		if (heap_delete(history, &tuple->t_self, GetCurrentCommandId(true), InvalidSnapshot,
						false, &tmfd, false) == TM_Ok)
			pruned++;
	}
	table_endscan(scan);
	relation_close(history, NoLock);
	CommandCounterIncrement();
	if (pruned > 0)
		audit_write("prune_history", "lease_lock.history", NULL,
					psprintf(INT64_FORMAT " rows older than %s", pruned, usecs_text(keep)), 0);
	PG_RETURN_INT64(pruned);
}
