/*
 * waiting_views.c
 *		The functions behind the views waiters and advisory_locks.
 *
 * They copy the shared lists first and work on the copies, so that a backend
 * that comes or goes meanwhile is shown as it was or not at all.
 */
#include "postgres.h"

#include "access/subtrans.h"
#include "catalog/pg_type_d.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "storage/procarray.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "lease_lock.h"
#include "named_list.h"

PG_FUNCTION_INFO_V1(ll_waiters);
PG_FUNCTION_INFO_V1(ll_advisory_locks);

/* What keeps the lease that a line is for. */
typedef struct Keeper
{
	LeaseName	resource;
	char	   *owner;			/* NULL: nobody holds it */
	Datum		pids;			/* integer[] */
} Keeper;

static Datum
pids_array(const int *pids, int n)
{
	Datum	   *elements = palloc(Max(n, 1) * sizeof(Datum));

	for (int i = 0; i < n; i++)
		elements[i] = Int32GetDatum(pids[i]);
	return PointerGetDatum(construct_array(elements, n, INT4OID, sizeof(int32), true, TYPALIGN_INT));
}

static Keeper
find_keeper(KeyedTable *lease, const LinePlace *place)
{
	LeaseName	resource = line_resource(place);
	Keeper		keeper = {resource, NULL, (Datum) 0};
	LeaseRead	read;
	bool		live;
	int		   *pids = NULL;
	int			n = 0;

	lease_read(lease, &resource, &read);
	live = read.found && lease_live(&read.row, read.own, GetCurrentTimestamp());
	if (TransactionIdIsValid(read.pending) && (read.pending_grant || !live))
	{
		if (read.pending_row.tuple)
			keeper.owner = pnstrdup(read.pending_row.owner, read.pending_row.owner_len);
		pids = palloc(sizeof(int));
		pids[n++] = xact_pid(read.pending);
	}
	else if (live)
	{
		const PgBackendStatus *status = backend_status(read.row.pid);

		keeper.owner = pnstrdup(read.row.owner, read.row.owner_len);
		if (status && status->st_proc_start_timestamp == read.row.backend_start)
		{
			pids = palloc(sizeof(int));
			pids[n++] = read.row.pid;
		}
	}
	else
	{
		VirtualTransactionId *holders;
		int			n_holders = guard_holders(&resource, &holders);

		pids = palloc(Max(n_holders, 1) * sizeof(int));
		for (int i = 0; i < n_holders; i++)
			pids[n++] = vxid_pid(holders[i]);
	}
	lease_read_free(&read);
	keeper.pids = pids_array(pids, n);
	return keeper;
}

/* waiters_data() */
Datum
ll_waiters(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	KeyedTable	lease;
	LinePlace  *places;
	Keeper		keeper = {0};
	int			n;

	InitMaterializedSRF(fcinfo, 0);
	n = line_copy(0, &places);
	if (n == 0)
		return (Datum) 0;
	(void) keyed_open(&lease, TABLE_LEASE, AccessShareLock, false);
	for (int i = 0; i < n; i++)
	{
		const LinePlace *p = &places[i];
		LeaseName	resource = line_resource(p);
		Datum		values[9] = {0};
		bool		nulls[9] = {0};
		char	   *role = GetUserNameFromId(p->role, true);
		int			place = 1;

		CHECK_FOR_INTERRUPTS();
		for (int j = 0; j < i; j++)
		{
			LeaseName	other = line_resource(&places[j]);

			if (name_equal(&other, &resource))
				place++;
		}
		if (keeper.pids == 0 || !name_equal(&keeper.resource, &resource))
			keeper = find_keeper(&lease, p);
		values[0] = PointerGetDatum(cstring_to_text_with_len(p->resource, p->resource_len));
		values[1] = PointerGetDatum(cstring_to_text_with_len(p->owner, p->owner_len));
		values[2] = Int32GetDatum(place);
		values[3] = TimestampTzGetDatum(p->since);
		values[4] = TimestampTzGetDatum(p->deadline);
		nulls[5] = keeper.owner == NULL;
		if (keeper.owner)
			values[5] = CStringGetTextDatum(keeper.owner);
		if (backend_waits_for_lock(p->pid))
		{
			int		   *pids;
			int			n_pids = backend_blockers(p->pid, &pids);

			values[6] = pids_array(pids, n_pids);
		}
		else
			values[6] = keeper.pids;
		nulls[7] = role == NULL;
		if (role)
			values[7] = CStringGetTextDatum(role);
		values[8] = Int32GetDatum(p->pid);
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	}
	keyed_close(&lease);
	return (Datum) 0;
}

/* One row of advisory_locks_data(); entry NULL: only the lock table knows it. */
static void
put_lock(ReturnSetInfo *rsinfo, const LockInstanceData *lock, LOCKMODE mode, bool granted,
		 const NamedEntry *entry, const NamedEntry *named)
{
	Datum		values[9] = {0};
	bool		nulls[9] = {0};
	bool		prepared = lock->pid == 0;
	TransactionId xid = prepared ? prepared_xid(compat_lock_vxid(lock)) : InvalidTransactionId;

	values[0] = Int64GetDatum((int64) lock_key(lock));
	nulls[1] = named == NULL;
	if (named)
		values[1] = PointerGetDatum(cstring_to_text_with_len(named->name, named->name_len));
	values[2] = CStringGetTextDatum(mode == ShareLock ? "shared" : "exclusive");
	nulls[3] = entry == NULL && !prepared;
	if (!nulls[3])
		values[3] = CStringGetTextDatum(entry && entry->key.scope == NAMED_SESSION ?
										"session" : "transaction");
	values[4] = BoolGetDatum(granted);
	nulls[5] = entry == NULL;
	if (entry)
		values[5] = TimestampTzGetDatum(entry->since);
	values[6] = Int32GetDatum(lock->pid);
	nulls[6] = prepared;
	nulls[7] = prepared || entry == NULL;
	if (!nulls[7])
		values[7] = TimestampTzGetDatum(entry->backend_start);
	values[8] = TransactionIdGetDatum(xid);
	nulls[8] = !TransactionIdIsValid(xid);
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
}

/* Whether an entry is about a lock in a mode, held or waited for. */
static bool
entry_is(const NamedEntry *entry, const LockInstanceData *lock, LOCKMODE mode, bool granted)
{
	return entry->key.hash == lock_key(lock) && entry->key.mode == mode &&
		entry->key.pid == lock->pid && entry->granted == granted &&
		(lock->pid != 0 ||
		 VirtualTransactionIdEquals(entry->key.vxid, compat_lock_vxid(lock)));
}

/* Rows for what a process has of a lock in one mode. */
static void
put_mode(ReturnSetInfo *rsinfo, const LockInstanceData *lock, LOCKMODE mode, bool granted,
		 const NamedEntry *entries, int n)
{
	const NamedEntry *named = NULL;
	bool		any = false;

	for (int i = 0; i < n; i++)
	{
		if (entry_is(&entries[i], lock, mode, granted))
		{
			put_lock(rsinfo, lock, mode, granted, &entries[i], &entries[i]);
			any = true;
		}
		if (entries[i].key.hash == lock_key(lock))
			named = &entries[i];
	}
	if (!any)
		put_lock(rsinfo, lock, mode, granted, NULL, named);
}

/* advisory_locks_data() */
Datum
ll_advisory_locks(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	static const LOCKMODE modes[] = {ShareLock, ExclusiveLock};
	LockInstanceData **locks;
	LockData   *data;
	NamedEntry *entries;
	int			n_entries;
	int			n;

	InitMaterializedSRF(fcinfo, 0);
	n_entries = named_list_copy(&entries);
	n = locks_of_class(LOCK_NAMED, NULL, &locks, &data);
	for (int i = 0; i < n; i++)
	{
		CHECK_FOR_INTERRUPTS();
		for (int m = 0; m < lengthof(modes); m++)
		{
			if (locks[i]->holdMask & LOCKBIT_ON(modes[m]))
				put_mode(rsinfo, locks[i], modes[m], true, entries, n_entries);
			if (locks[i]->waitLockMode == modes[m])
				put_mode(rsinfo, locks[i], modes[m], false, entries, n_entries);
		}
	}
	named_sweep(entries, n_entries, locks, n);
	return (Datum) 0;
}
