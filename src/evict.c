/*
 * evict.c
 *		Ends transactions that keep an expired lease from being granted.
 *
 * A lease that expired longer ago than lease_lock.evict_after is wanted by
 * somebody, and an open transaction still stands in the way: it wrote under
 * the lease and holds R, or has an uncommitted grant of it.  If it runs a query
 * that is cancelled, and if it idles in transaction its backend is terminated;
 * so it is if it waits for its client in the middle of a query, where a cancel
 * has no effect, or if a cancel had none.
 *
 * Never a backend of a superuser (unless the evictor is one), and nothing but
 * client backends.  The victim is named by its virtual transaction, and the
 * signal is sent under ProcArrayLock while that is still the one, so that a
 * pid used again is never hit.  A prepared transaction has nobody to signal.
 *
 * Nothing here may be called with R held for the call.
 */
#include "postgres.h"

#include <signal.h>

#include "access/transam.h"
#include "miscadmin.h"
#include "storage/procarray.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "lease_lock.h"

/*
 * From when on whoever keeps a lease that ends at a moment is evicted;
 * DT_NOEND: never.
 */
TimestampTz
evict_at(TimestampTz expire_at)
{
	if (evict_after_ms < 0 || expire_at == DT_NOEND)
		return DT_NOEND;
	return expire_at + evict_after_ms * INT64CONST(1000);
}

/*
 * Sends a signal to the backend that runs a transaction, if it still does.
 * Without an xid it can begin another one in the same instant: then that one's
 * first query is hit.
 */
static bool
signal_transaction(PGPROC *proc, int pid, VirtualTransactionId vxid, int signal)
{
	VirtualTransactionId now;
	bool		sent = false;

	/* No backend ends while this lock is held. */
	LWLockAcquire(ProcArrayLock, LW_SHARED);
	now = compat_proc_vxid(proc);
	if (proc->pid == pid && VirtualTransactionIdEquals(now, vxid))
	{
#ifdef HAVE_SETSID
		sent = kill(-pid, signal) == 0;
#else
		sent = kill(pid, signal) == 0;
#endif
	}
	LWLockRelease(ProcArrayLock);
	return sent;
}

/* Raises 55P03: nobody can be signalled for a prepared transaction. */
static void
prepared_in_the_way(const LeaseName *resource, const LeaseRow *row, TransactionId xid)
{
	char	   *gid = prepared_gid(xid);

	/* It may just have ended. */
	if (gid == NULL)
		return;
	stats_count(STAT_TIMEOUTS, resource);
	ereport(ERROR,
			(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
			 errmsg("could not acquire the lease on resource \"%s\": prepared transaction \"%s\" keeps it",
					name_cstring(resource), gid),
			 errdetail("Token " INT64_FORMAT " of \"%.*s\" expired at %s. A prepared transaction cannot be evicted.",
					   row->version, row->owner_len, row->owner,
					   timestamptz_to_str(row->expire_at)),
			 errhint("End it by COMMIT PREPARED or ROLLBACK PREPARED.")));
}

/* The last signal that this backend sent: none is sent, or logged, twice. */
static struct
{
	VirtualTransactionId vxid;
	int			pid;
	int			signal;
}			last;

static void
evict_proc(const LeaseName *resource, const LeaseRow *row, PGPROC *proc,
		   VirtualTransactionId vxid)
{
	const PgBackendStatus *status;
	int			pid = proc->pid;
	bool		idle;
	bool		again;
	int			signal;
	char	   *detail;

	if (pid == 0 || pid == MyProcPid || (superuser_arg(proc->roleId) && !superuser()))
		return;
	status = backend_status(pid);
	if (status == NULL || status->st_backendType != B_BACKEND)
		return;
	/* In mode 'newest' a transaction can begin after the expiry. */
	if (evict_at(Max(row->expire_at, status->st_xact_start_timestamp)) > GetCurrentTimestamp())
		return;
	again = VirtualTransactionIdEquals(vxid, last.vxid) && last.pid == pid;
	if (again && last.signal == SIGTERM)
		return;
	idle = backend_idles(status, proc);
	signal = idle || again ? SIGTERM : SIGINT;
	if (!signal_transaction(proc, pid, vxid, signal))
		return;
	last.vxid = vxid;
	last.pid = pid;
	last.signal = signal;

	stats_count(STAT_EVICTIONS, resource);
	detail = psprintf("token " INT64_FORMAT " of \"%.*s\", expired at %s: %s with pid %d",
					  row->version, row->owner_len, row->owner,
					  timestamptz_to_str(row->expire_at),
					  idle && status->st_state == STATE_RUNNING ?
					  "terminated the backend, waiting for its client," :
					  idle ? "terminated the backend, idle in transaction," :
					  again ? "terminated the backend, which did not heed a cancel," :
					  "cancelled the query of the backend", pid);
	ereport(event_level,
			(errmsg("evicted the transaction that kept the expired lease on resource \"%s\"",
					name_cstring(resource)),
			 errdetail_internal("%s", detail)));
	/* The log has it in any case; a lock on the table keeps nobody waiting here. */
	audit_write("evict", name_cstring(resource),
				"the lease had expired, and its transaction kept out a grant",
				detail, AUDIT_FOR_GOOD | AUDIT_NOWAIT);
}

/*
 * Evicts a transaction that wrote under the lease whose row is given, and
 * keeps out a grant of it.  With nowait, waits for nothing and raises nothing;
 * without, raises 55P03 for a prepared transaction.
 */
void
evict_vxid(const LeaseName *resource, const LeaseRow *row, VirtualTransactionId vxid,
		   bool nowait)
{
	PGPROC	   *proc = compat_vxid_proc(vxid);
	TransactionId xid;

	if (proc)
		evict_proc(resource, row, proc, vxid);
	else if (!nowait)
	{
		xid = prepared_xid(vxid);
		if (TransactionIdIsValid(xid))
			prepared_in_the_way(resource, row, xid);
	}
}

/* The same for a top-level transaction that has changed the lease itself. */
void
evict_xact(const LeaseName *resource, const LeaseRow *row, TransactionId xid, bool nowait)
{
	int			pid = BackendXidGetPid(xid);
	PGPROC	   *proc = pid != 0 ? BackendPidGetProc(pid) : NULL;
	VirtualTransactionId vxid;

	if (proc)
	{
		/* Whoever has this xid after the virtual one was read has both. */
		vxid = compat_proc_vxid(proc);
		if (BackendXidGetPid(xid) == pid)
			evict_proc(resource, row, proc, vxid);
	}
	else if (!nowait)
		prepared_in_the_way(resource, row, xid);
}
