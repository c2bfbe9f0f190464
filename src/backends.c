/*
 * backends.c
 *		What other backends are doing, for evictions, rings and views.
 *
 * Everything here is read from PostgreSQL's shared state at its latest, and
 * can have changed a moment later.
 */
#include "postgres.h"

#include "access/subtrans.h"
#include "access/transam.h"
#include "access/twophase.h"
#include "catalog/pg_type_d.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "storage/procarray.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"

#include "compat.h"
#include "lease_lock.h"

/* The backend of an open transaction; 0 when it is prepared, or has ended. */
int
xact_pid(TransactionId xid)
{
	return BackendXidGetPid(SubTransGetTopmostTransaction(xid));
}

/* The backend that runs a transaction; 0 when it is prepared, or has ended. */
int
vxid_pid(VirtualTransactionId vxid)
{
	PGPROC	   *proc = compat_vxid_proc(vxid);

	return proc ? proc->pid : 0;
}

/* The status of a backend, or NULL.  Good until the next call. */
const PgBackendStatus *
backend_status(int pid)
{
	int			n;

	pgstat_clear_backend_activity_snapshot();
	n = pgstat_fetch_stat_numbackends();
	for (int i = 1; i <= n; i++)
	{
		PgBackendStatus *status = compat_backend_status(i);

		if (status && status->st_procpid == pid)
			return status;
	}
	return NULL;
}

/* Whether a backend waits for its client, be it in the middle of a query. */
bool
backend_idles(const PgBackendStatus *status, const PGPROC *proc)
{
	return status->st_state == STATE_IDLEINTRANSACTION ||
		status->st_state == STATE_IDLEINTRANSACTION_ABORTED ||
		proc->wait_event_info == WAIT_EVENT_CLIENT_READ ||
		proc->wait_event_info == WAIT_EVENT_CLIENT_WRITE;
}

/* Whether a backend waits for a heavyweight lock, or may by a parallel worker. */
bool
backend_waits_for_lock(int pid)
{
	PGPROC	   *proc = BackendPidGetProc(pid);

	return proc && (proc->waitStatus == PROC_WAIT_STATUS_WAITING || proc->lockGroupLeader != NULL);
}

/*
 * What pg_blocking_pids() says of a backend, in a palloc'd array: 0 stands for
 * a prepared transaction.  Returns their number.
 */
int
backend_blockers(int pid, int **pids)
{
	ArrayType  *array = DatumGetArrayTypeP(OidFunctionCall1(F_PG_BLOCKING_PIDS, Int32GetDatum(pid)));

	*pids = (int *) ARR_DATA_PTR(array);
	return ArrayGetNItems(ARR_NDIM(array), ARR_DIMS(array));
}

/* The name of a prepared transaction, or NULL. */
char *
prepared_gid(TransactionId xid)
{
	Oid			types[1] = {XIDOID};
	Datum		args[1] = {TransactionIdGetDatum(xid)};
	MemoryContext context = CurrentMemoryContext;
	char	   *gid = NULL;

	if (SPI_connect() != SPI_OK_CONNECT)
		elog(ERROR, "SPI_connect failed");
	if (SPI_execute_with_args("SELECT gid FROM pg_catalog.pg_prepared_xacts WHERE transaction OPERATOR(pg_catalog.=) $1",
							  1, types, args, NULL, true, 1) == SPI_OK_SELECT && SPI_processed == 1)
	{
		char	   *value = SPI_getvalue(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1);

		if (value)
			gid = MemoryContextStrdup(context, value);
	}
	SPI_finish();
	return gid;
}

/* The prepared transaction that a virtual transaction became, or invalid. */
TransactionId
prepared_xid(VirtualTransactionId vxid)
{
	bool		have_more = false;

	if (VirtualTransactionIdIsRecoveredPreparedXact(vxid))
		return vxid.localTransactionId;
	return TwoPhaseGetXidByVirtualXID(vxid, &have_more);
}
