/*
 * compat.h
 *		The one place where PostgreSQL 15 to 18 differ.
 *
 * Each name has the shape of the newest API.  No other file tests
 * PG_VERSION_NUM.
 */
#ifndef LEASE_LOCK_COMPAT_H
#define LEASE_LOCK_COMPAT_H

#include "access/genam.h"
#include "access/heapam.h"
#include "catalog/pg_class.h"
#include "commands/sequence.h"
#include "miscadmin.h"
#include "storage/lock.h"
#include "storage/proc.h"
#include "storage/procarray.h"
#include "storage/sinvaladt.h"
#include "utils/acl.h"
#include "utils/rel.h"

#if PG_VERSION_NUM < 150000
#error "lease_lock needs PostgreSQL 15 or later"
#endif

/* 16: the varlena macros left postgres.h. */
#if PG_VERSION_NUM >= 160000
#include "varatt.h"
#endif

/* 18: index scans carry an instrumentation argument. */
static inline IndexScanDesc
compat_index_beginscan(Relation heap, Relation index, Snapshot snapshot, int nkeys)
{
#if PG_VERSION_NUM >= 180000
	return index_beginscan(heap, index, snapshot, NULL, nkeys, 0);
#else
	return index_beginscan(heap, index, snapshot, nkeys, 0);
#endif
}

/*
 * 16: heap_update says which indexes need a new entry instead of leaving it
 * to the tuple.  *hot is set to true when none of them does.
 */
static inline TM_Result
compat_heap_update(Relation rel, ItemPointer tid, HeapTuple newtup,
				   CommandId cid, TM_FailureData *tmfd, bool *hot)
{
	LockTupleMode lockmode;
	TM_Result	result;

#if PG_VERSION_NUM >= 160000
	TU_UpdateIndexes update_indexes;

	result = heap_update(rel, tid, newtup, cid, InvalidSnapshot, true, tmfd,
						 &lockmode, &update_indexes);
#else
	result = heap_update(rel, tid, newtup, cid, InvalidSnapshot, true, tmfd,
						 &lockmode);
#endif
	*hot = HeapTupleIsHeapOnly(newtup);
	return result;
}

/* 16: RelFileNode became RelFileLocator. */
static inline void
compat_fill_seq_rec(xl_seq_rec *rec, Relation seq)
{
#if PG_VERSION_NUM >= 160000
	rec->locator = seq->rd_locator;
#else
	rec->node = seq->rd_node;
#endif
}

/*
 * 17: backends are numbered by ProcNumber.  Returns the pid behind a virtual
 * transaction, or 0 when it is gone or belongs to a prepared transaction.
 */
static inline int
compat_vxid_pid(VirtualTransactionId vxid)
{
	PGPROC	   *proc;

	if (VirtualTransactionIdIsRecoveredPreparedXact(vxid))
		return 0;
#if PG_VERSION_NUM >= 170000
	proc = ProcNumberGetProc(vxid.procNumber);
	if (proc == NULL || proc->vxid.lxid != vxid.localTransactionId)
		return 0;
#else
	proc = BackendIdGetProc(vxid.backendId);
	if (proc == NULL || proc->lxid != vxid.localTransactionId)
		return 0;
#endif
	return proc->pid;
}

/* 16: one ownership check for every kind of object. */
static inline bool
compat_owns_relation(Oid relid)
{
#if PG_VERSION_NUM >= 160000
	return object_ownercheck(RelationRelationId, relid, GetUserId());
#else
	return pg_class_ownercheck(relid, GetUserId());
#endif
}

#endif							/* LEASE_LOCK_COMPAT_H */
