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
#include "lib/dshash.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "storage/lock.h"
#include "storage/lwlock.h"
#include "storage/proc.h"
#include "storage/procarray.h"
#include "storage/sinvaladt.h"
#include "utils/acl.h"
#include "utils/backend_status.h"
#include "utils/rel.h"
#include "utils/wait_event.h"

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
static inline bool
compat_read_recent_buffer(Relation rel, BlockNumber block, Buffer recent)
{
#if PG_VERSION_NUM >= 160000
	return ReadRecentBuffer(rel->rd_locator, MAIN_FORKNUM, block, recent);
#else
	return ReadRecentBuffer(rel->rd_node, MAIN_FORKNUM, block, recent);
#endif
}

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
 * 17: backends are numbered by ProcNumber.  The process behind a virtual
 * transaction; NULL when that has ended or is a prepared transaction.
 */
static inline PGPROC *
compat_vxid_proc(VirtualTransactionId vxid)
{
	PGPROC	   *proc;

	if (VirtualTransactionIdIsRecoveredPreparedXact(vxid))
		return NULL;
#if PG_VERSION_NUM >= 170000
	proc = ProcNumberGetProc(vxid.procNumber);
	if (proc == NULL || proc->vxid.lxid != vxid.localTransactionId)
		return NULL;
#else
	proc = BackendIdGetProc(vxid.backendId);
	if (proc == NULL || proc->lxid != vxid.localTransactionId)
		return NULL;
#endif
	return proc->pid != 0 ? proc : NULL;
}

/* The virtual transaction that a process runs. */
static inline VirtualTransactionId
compat_proc_vxid(const PGPROC *proc)
{
	VirtualTransactionId vxid;

#if PG_VERSION_NUM >= 170000
	vxid.procNumber = proc->vxid.procNumber;
	vxid.localTransactionId = proc->vxid.lxid;
#else
	vxid.backendId = proc->backendId;
	vxid.localTransactionId = proc->lxid;
#endif
	return vxid;
}

/* The virtual transaction that holds a lock or waits for it. */
static inline VirtualTransactionId
compat_lock_vxid(const LockInstanceData *lock)
{
#if PG_VERSION_NUM >= 170000
	return lock->vxid;
#else
	VirtualTransactionId vxid;

	vxid.backendId = lock->backend;
	vxid.localTransactionId = lock->lxid;
	return vxid;
#endif
}

/* This process's index in ProcGlobal->allProcs. */
static inline int
compat_my_proc_number(void)
{
#if PG_VERSION_NUM >= 170000
	return MyProcNumber;
#else
	return MyProc->pgprocno;
#endif
}

/* 17: an exact mode or any stronger one. */
static inline bool
compat_lock_held_by_me(const LOCKTAG *tag, LOCKMODE mode)
{
#if PG_VERSION_NUM >= 170000
	return LockHeldByMe(tag, mode, false);
#else
	return LockHeldByMe(tag, mode);
#endif
}

/* 16: one of several ways to a backend's status got another name. */
static inline PgBackendStatus *
compat_backend_status(int index)
{
	LocalPgBackendStatus *local;

#if PG_VERSION_NUM >= 160000
	local = pgstat_get_local_beentry_by_index(index);
#else
	local = pgstat_fetch_stat_local_beentry(index);
#endif
	return local ? &local->backendStatus : NULL;
}

/*
 * 17: wait events of an extension have names.  Before, only names of lightweight
 * locks can be given, and are known in sessions that use the library.
 */
static inline uint32
compat_wait_event(const char *name, int tranche)
{
#if PG_VERSION_NUM >= 170000
	return WaitEventExtensionNew(name);
#else
	return PG_WAIT_LWLOCK | tranche;
#endif
}

/* 17: a hash table in shared memory has a function that copies keys. */
static inline dshash_parameters
compat_dshash_parameters(size_t key_size, size_t entry_size, int tranche)
{
	dshash_parameters params = {
		.key_size = key_size,
		.entry_size = entry_size,
		.compare_function = dshash_memcmp,
		.hash_function = dshash_memhash,
#if PG_VERSION_NUM >= 170000
		.copy_function = dshash_memcpy,
#endif
		.tranche_id = tranche,
	};

	return params;
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
