/*
 * views.c
 *		The functions behind the views holders and fences.
 *
 * They read the tables by hand: an MVCC scan would take predicate locks under
 * SERIALIZABLE and bring 40001 to users, and could not show uncommitted
 * grants.  A fresh snapshot decides what is committed, so that a row is seen
 * exactly once; versions in flight come from SnapshotDirty.  They take no lock
 * of ours and work on a standby.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/subtrans.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/transam.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/pg_authid.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "storage/procarray.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "lease_lock.h"

PG_FUNCTION_INFO_V1(ll_holders);
PG_FUNCTION_INFO_V1(ll_fences);

/* Columns of the view holders. */
enum
{
	HOLDERS_RESOURCE = 0,
	HOLDERS_OWNER,
	HOLDERS_TOKEN,
	HOLDERS_EXPIRE_AT,
	HOLDERS_REMAINING,
	HOLDERS_HELD_FOR,
	HOLDERS_SCOPE,
	HOLDERS_STATE,
	HOLDERS_WAITERS,
	HOLDERS_PAYLOAD,
	HOLDERS_ROLE,
	HOLDERS_APPLICATION_NAME,
	HOLDERS_CLIENT_ADDR,
	HOLDERS_PID,
	HOLDERS_GRANT_PID,
	HOLDERS_BACKEND_START,
	HOLDERS_ACQUIRED_AT,
	HOLDERS_RENEWED_AT,
	HOLDERS_RENEWALS,
	HOLDERS_TTL,
	HOLDERS_SESSION_GONE,
	HOLDERS_NATTS
};

typedef enum Version
{
	VERSION_HIDDEN,
	VERSION_COMMITTED,			/* or this transaction's own */
	VERSION_CHANGING,			/* committed, and another changes it now */
	VERSION_IN_FLIGHT			/* another transaction's, its last */
} Version;

/* What a version met by a SnapshotAny scan is; *xid is the other transaction. */
static Version
classify(TupleTableSlot *slot, HeapTuple tuple, Snapshot mvcc, TransactionId *xid)
{
	Buffer		buffer = ((BufferHeapTupleTableSlot *) slot)->buffer;
	SnapshotData dirty;
	bool		visible;
	bool		in_dirty;
	TransactionId updater;

	InitDirtySnapshot(dirty);
	LockBuffer(buffer, BUFFER_LOCK_SHARE);
	visible = HeapTupleSatisfiesVisibility(tuple, mvcc, buffer);
	in_dirty = HeapTupleSatisfiesVisibility(tuple, &dirty, buffer);
	updater = (tuple->t_data->t_infomask & HEAP_XMAX_INVALID) ||
		HEAP_XMAX_IS_LOCKED_ONLY(tuple->t_data->t_infomask) ?
		InvalidTransactionId : HeapTupleHeaderGetUpdateXid(tuple->t_data);
	LockBuffer(buffer, BUFFER_LOCK_UNLOCK);

	if (visible)
	{
		if (!in_dirty || !TransactionIdIsValid(dirty.xmax))
			return VERSION_COMMITTED;
		*xid = dirty.xmax;
		return VERSION_CHANGING;
	}
	if (!in_dirty || !TransactionIdIsValid(dirty.xmin))
		return VERSION_HIDDEN;
	if (TransactionIdIsValid(updater) && TransactionIdIsInProgress(updater))
		return VERSION_HIDDEN;
	*xid = dirty.xmin;
	return VERSION_IN_FLIGHT;
}

typedef void (*RowCallback) (HeapTuple tuple, Version version, TransactionId xid,
							 TupleDesc desc, void *arg);

static void
scan_all(Relation rel, RowCallback fn, void *arg)
{
	Snapshot	mvcc = RegisterSnapshot(GetLatestSnapshot());
	TupleTableSlot *slot = table_slot_create(rel, NULL);
	TableScanDesc scan = table_beginscan(rel, SnapshotAny, 0, NULL);
	MemoryContext per_row = AllocSetContextCreate(CurrentMemoryContext, "lease_lock view",
												  ALLOCSET_DEFAULT_SIZES);
	MemoryContext old = MemoryContextSwitchTo(per_row);

	while (table_scan_getnextslot(scan, ForwardScanDirection, slot))
	{
		HeapTuple	tuple = ExecFetchSlotHeapTuple(slot, false, NULL);
		TransactionId xid = InvalidTransactionId;
		Version		version = classify(slot, tuple, mvcc, &xid);

		CHECK_FOR_INTERRUPTS();
		if (version != VERSION_HIDDEN)
			fn(tuple, version, xid, RelationGetDescr(rel), arg);
		MemoryContextReset(per_row);
	}
	MemoryContextSwitchTo(old);
	MemoryContextDelete(per_row);
	table_endscan(scan);
	ExecDropSingleTupleTableSlot(slot);
	UnregisterSnapshot(mvcc);
}

typedef struct HoldersScan
{
	ReturnSetInfo *rsinfo;
	KeyedTable *lease;
	LinePlace  *waiting;
	int			n_waiting;
	bool		ended;			/* show those that a call ended as well */
	bool		committed;		/* show nothing in flight, but what it replaces */
	bool		all_stats;
	TimestampTz now;
} HoldersScan;

static void
holder_row(HeapTuple tuple, Version version, TransactionId xid, TupleDesc desc, void *arg)
{
	HoldersScan *scan = arg;
	Datum		in[LEASE_NATTS];
	bool		in_null[LEASE_NATTS];
	Datum		out[HOLDERS_NATTS] = {0};
	bool		out_null[HOLDERS_NATTS] = {0};
	LeaseRow	row;
	LeaseName	resource;
	text	   *key;
	bool		own;
	bool		granting;
	const char *state;
	int			pid = 0;
	int			waiters = 0;

	lease_row_decode(tuple, desc, &row);
	heap_deform_tuple(tuple, desc, in, in_null);
	key = DatumGetTextPP(in[LEASE_RESOURCE - 1]);
	resource = make_name(VARDATA_ANY(key), VARSIZE_ANY_EXHDR(key));

	own = version != VERSION_IN_FLIGHT &&
		row.grant_xid == U64FromFullTransactionId(GetTopFullTransactionIdIfAny()) &&
		!HeapTupleHeaderXminCommitted(tuple->t_data);
	granting = own || (version == VERSION_IN_FLIGHT &&
					   SubTransGetTopmostTransaction(xid) ==
					   XidFromFullTransactionId(FullTransactionIdFromU64(row.grant_xid)));

	/* A renewal in flight: the committed row says it all. */
	if (version == VERSION_IN_FLIGHT && (!granting || scan->committed))
		return;
	if (!scan->ended &&
		(row.ended_by == ENDED_RELEASED || row.ended_by == ENDED_FORCED ||
		 (row.ended_by == ENDED_TRANSACTION && !granting)))
		return;
	if (version == VERSION_CHANGING && !scan->committed)
	{
		LeaseRead	read;
		bool		superseded;

		/* A grant in flight is shown instead of what it replaces. */
		lease_read(scan->lease, &resource, &read);
		superseded = read.pending_grant;
		lease_read_free(&read);
		if (superseded)
			return;
	}

	if (granting)
	{
		pid = own ? MyProcPid : xact_pid(xid);
		state = pid != 0 || RecoveryInProgress() ? "uncommitted" : "prepared";
	}
	else
	{
		state = row.ended_by != NOT_ENDED ? "ended" :
			lease_live(&row, false, scan->now) ? "held" : "expired";
		if (row.session != 0 && strcmp(state, "held") == 0)
			pid = row.pid;
	}
	for (int i = 0; i < scan->n_waiting; i++)
	{
		LeaseName	waited_for = line_resource(&scan->waiting[i]);

		if (name_equal(&waited_for, &resource))
			waiters++;
	}

	out[HOLDERS_RESOURCE] = in[LEASE_RESOURCE - 1];
	out[HOLDERS_OWNER] = in[LEASE_OWNER - 1];
	out[HOLDERS_TOKEN] = in[LEASE_VERSION - 1];
	out[HOLDERS_EXPIRE_AT] = in[LEASE_EXPIRE_AT - 1];
	out[HOLDERS_REMAINING] = IntervalPGetDatum(usecs_interval(strcmp(state, "expired") == 0 || strcmp(state, "ended") == 0 ? 0 :
															  Max(row.expire_at - scan->now, 0)));
	out[HOLDERS_HELD_FOR] = IntervalPGetDatum(usecs_interval(Max(scan->now - row.acquired_at, 0)));
	out[HOLDERS_SCOPE] = in[LEASE_SCOPE - 1];
	out[HOLDERS_STATE] = CStringGetTextDatum(state);
	out[HOLDERS_WAITERS] = Int32GetDatum(waiters);
	out[HOLDERS_ROLE] = in[LEASE_ROLE - 1];
	if (scan->all_stats || may_act_for(&row))
	{
		out[HOLDERS_PAYLOAD] = in[LEASE_PAYLOAD - 1];
		out_null[HOLDERS_PAYLOAD] = in_null[LEASE_PAYLOAD - 1];
		out[HOLDERS_APPLICATION_NAME] = in[LEASE_APPLICATION_NAME - 1];
		out_null[HOLDERS_APPLICATION_NAME] = in_null[LEASE_APPLICATION_NAME - 1];
		out[HOLDERS_CLIENT_ADDR] = in[LEASE_CLIENT_ADDR - 1];
		out_null[HOLDERS_CLIENT_ADDR] = in_null[LEASE_CLIENT_ADDR - 1];
	}
	else
		out_null[HOLDERS_PAYLOAD] = out_null[HOLDERS_APPLICATION_NAME] =
			out_null[HOLDERS_CLIENT_ADDR] = true;
	out[HOLDERS_PID] = Int32GetDatum(pid);
	out_null[HOLDERS_PID] = pid == 0;
	out[HOLDERS_GRANT_PID] = in[LEASE_PID - 1];
	out[HOLDERS_BACKEND_START] = in[LEASE_BACKEND_START - 1];
	out[HOLDERS_ACQUIRED_AT] = in[LEASE_ACQUIRED_AT - 1];
	out[HOLDERS_RENEWED_AT] = in[LEASE_RENEWED_AT - 1];
	out[HOLDERS_RENEWALS] = in[LEASE_RENEWALS - 1];
	out[HOLDERS_TTL] = in[LEASE_TTL - 1];
	out[HOLDERS_SESSION_GONE] = BoolGetDatum(row.session != 0 && strcmp(state, "expired") == 0 &&
											 row.expire_at > scan->now);
	tuplestore_putvalues(scan->rsinfo->setResult, scan->rsinfo->setDesc, out, out_null);
}

/* holders_data(ended, committed): with ended, what a call has ended as well */
Datum
ll_holders(PG_FUNCTION_ARGS)
{
	HoldersScan scan;
	KeyedTable	lease;

	InitMaterializedSRF(fcinfo, 0);
	(void) keyed_open(&lease, TABLE_LEASE, AccessShareLock, false);
	scan.rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	scan.lease = &lease;
	scan.ended = PG_GETARG_BOOL(0);
	scan.committed = PG_GETARG_BOOL(1);
	scan.n_waiting = line_copy(0, &scan.waiting);
	scan.all_stats = has_privs_of_role(GetUserId(), ROLE_PG_READ_ALL_STATS);
	scan.now = GetCurrentTimestamp();
	scan_all(lease.heap, holder_row, &scan);
	keyed_close(&lease);
	return (Datum) 0;
}

typedef struct FencesScan
{
	ReturnSetInfo *rsinfo;
	const char *mode;
	AttrNumber	name;
	AttrNumber	highest;
	AttrNumber	at;
	AttrNumber	by;
} FencesScan;

static void
fence_row(HeapTuple tuple, Version version, TransactionId xid, TupleDesc desc, void *arg)
{
	FencesScan *scan = arg;
	Datum		out[5];
	bool		out_null[5] = {0};

	/* A token in flight has not been accepted yet. */
	if (version == VERSION_IN_FLIGHT)
		return;
	out[0] = heap_getattr(tuple, scan->name, desc, &out_null[0]);
	out[1] = heap_getattr(tuple, scan->highest, desc, &out_null[1]);
	out[2] = CStringGetTextDatum(scan->mode);
	out[3] = heap_getattr(tuple, scan->at, desc, &out_null[3]);
	out[4] = heap_getattr(tuple, scan->by, desc, &out_null[4]);
	tuplestore_putvalues(scan->rsinfo->setResult, scan->rsinfo->setDesc, out, out_null);
}

/* fences_data() */
Datum
ll_fences(PG_FUNCTION_ARGS)
{
	KeyedTable	table;
	FencesScan	scan;

	InitMaterializedSRF(fcinfo, 0);
	scan.rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;

	scan.mode = "held";
	scan.name = LEASE_RESOURCE;
	scan.highest = LEASE_VERSION;
	scan.at = LEASE_ACQUIRED_AT;
	scan.by = LEASE_ROLE;
	(void) keyed_open(&table, TABLE_LEASE, AccessShareLock, false);
	scan_all(table.heap, fence_row, &scan);
	keyed_close(&table);

	scan.mode = "newest";
	scan.name = FENCE_NAME;
	scan.highest = FENCE_HIGHEST;
	scan.at = FENCE_ACCEPTED_AT;
	scan.by = FENCE_ACCEPTED_BY;
	(void) keyed_open(&table, TABLE_FENCE, AccessShareLock, false);
	scan_all(keyed_heap(&table), fence_row, &scan);
	keyed_close(&table);
	return (Datum) 0;
}
