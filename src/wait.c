/*
 * wait.c
 *		Bounded waits, for calls that hold no lock of ours for the call.
 *
 * Waits for a transaction are ordinary heavyweight-lock waits, so that the
 * deadlock detector and pg_blocking_pids see them.  They come in slices: what
 * blocks can go away by ROLLBACK TO long before its transaction ends, so every
 * caller looks again after each slice.  A slice is never shorter than
 * deadlock_timeout plus a second, unless the caller's time is up sooner, since
 * the detector runs once per wait.
 *
 * A slice is cut off by lock_timeout, set for the length of the wait inside a
 * subtransaction that catches 55P03 alone.  The user's own lock_timeout counts
 * from the beginning of the call, across all its waits, and raises 55P03 here.
 * statement_timeout, cancel and terminate act through interrupts.
 *
 * Nothing here may be called with R held in RENEW or GRANT mode.
 */
#include "postgres.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "storage/latch.h"
#include "storage/lmgr.h"
#include "storage/proc.h"
#include "utils/memutils.h"
#include "utils/resowner.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "lease_lock.h"

#define POLL_USECS		(10 * 1000) /* while a live lease is waited for */
#define MAX_POLL_USECS	(100 * 1000)
#define NAP_USECS		200		/* while a function is at work */
#define MAX_NAP_USECS	(10 * 1000)

/* wait_usecs < 0: no deadline of the caller's own. */
void
waiting_begin(Waiting *w, int64 wait_usecs)
{
	memset(w, 0, sizeof(*w));
	w->start = GetCurrentTimestamp();
	w->deadline = wait_usecs < 0 ? DT_NOEND : w->start + wait_usecs;
}

/* Whether the caller's own time is up, or lock_timeout. */
bool
waiting_over(Waiting *w)
{
	TimestampTz now = GetCurrentTimestamp();

	CHECK_FOR_INTERRUPTS();
	w->lock_timeout = LockTimeout > 0 && now >= w->start + LockTimeout * INT64CONST(1000);
	return w->lock_timeout || now >= w->deadline;
}

/* For callers without a time of their own: raises 55P03 when lock_timeout is up. */
void
waiting_check(Waiting *w)
{
	if (waiting_over(w))
		ereport(ERROR,
				(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
				 errmsg("canceling statement due to lock timeout"),
				 errdetail("lock_timeout counts all that one call of lease_lock waits for.")));
}

/* Microseconds that may still be waited, at most limit and at least 1. */
static int64
time_left(const Waiting *w, int64 limit)
{
	TimestampTz now = GetCurrentTimestamp();
	int64		left = limit;

	if (w->deadline != DT_NOEND)
		left = Min(left, w->deadline - now);
	if (LockTimeout > 0)
		left = Min(left, w->start + LockTimeout * INT64CONST(1000) - now);
	return Max(left, 1);
}

typedef struct LockWait
{
	enum
	{
		WAIT_XID, WAIT_VXID, WAIT_NAME, WAIT_RELATIONS
	}			what;
	TransactionId xid;
	VirtualTransactionId vxid;
	LockClass	class;
	const LeaseName *name;
	LOCKMODE	mode;
} LockWait;

/*
 * Runs one slice of a lock wait.  No lock is kept: what is waited for may
 * change hands meanwhile, and the caller looks again.
 */
static void
wait_slice(Waiting *w, const LockWait *wait)
{
	MemoryContext context = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;
	int			lock_timeout = LockTimeout;
	int64		usecs = time_left(w, (DeadlockTimeout + 1000) * INT64CONST(1000));

	w->waited = true;
	BeginInternalSubTransaction(NULL);
	MemoryContextSwitchTo(context);
	PG_TRY();
	{
		LockTimeout = (int) ((usecs + 999) / 1000);
		switch (wait->what)
		{
			case WAIT_XID:
				XactLockTableWait(wait->xid, NULL, NULL, XLTW_None);
				break;
			case WAIT_VXID:
				VirtualXactLock(wait->vxid, true);
				break;
			case WAIT_NAME:
				lock_name(wait->class, wait->name, wait->mode, false);
				unlock_name(wait->class, wait->name, wait->mode);
				break;
			case WAIT_RELATIONS:
				own_relations_wait();
				break;
		}
		LockTimeout = lock_timeout;
		ReleaseCurrentSubTransaction();
	}
	PG_CATCH();
	{
		ErrorData  *error;

		LockTimeout = lock_timeout;
		MemoryContextSwitchTo(context);
		error = CopyErrorData();
		FlushErrorState();
		/* Whatever the error is: a handler above must find its own level. */
		RollbackAndReleaseCurrentSubTransaction();
		MemoryContextSwitchTo(context);
		CurrentResourceOwner = owner;
		if (error->sqlerrcode != ERRCODE_LOCK_NOT_AVAILABLE)
			ReThrowError(error);
		FreeErrorData(error);
	}
	PG_END_TRY();
	MemoryContextSwitchTo(context);
	CurrentResourceOwner = owner;
}

/* Waits for a transaction's end, for at most a slice; look again after it. */
void
wait_for_xact(Waiting *w, TransactionId xid)
{
	LockWait	wait = {.what = WAIT_XID, .xid = xid};

	wait_slice(w, &wait);
}

void
wait_for_vxid(Waiting *w, VirtualTransactionId vxid)
{
	LockWait	wait = {.what = WAIT_VXID, .vxid = vxid};

	wait_slice(w, &wait);
}

/* Waits for another session's lock on our relations. */
void
wait_for_relations(Waiting *w)
{
	LockWait	wait = {.what = WAIT_RELATIONS};

	wait_slice(w, &wait);
}

/*
 * Takes a name's lock for the call, waiting for it in slices.  Returns false
 * when the caller's deadline has passed.
 */
bool
lock_name_bounded(Waiting *w, LockClass class, const LeaseName *name, LOCKMODE mode)
{
	LockWait	wait = {.what = WAIT_NAME, .class = class, .name = name, .mode = mode};

	while (!lock_name(class, name, mode, true))
	{
		if (waiting_over(w))
			return false;
		wait_slice(w, &wait);
	}
	return true;
}

/* Sleeps on the latch; interrupts are served by the next look. */
static void
nap(int64 usecs, uint32 wait_event)
{
	(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
					 (long) ((usecs + 999) / 1000), wait_event);
	ResetLatch(MyLatch);
	CHECK_FOR_INTERRUPTS();
}

/*
 * Sleeps until a lease may be free: its expiry, or a poll's length, since its
 * release is not announced.
 */
void
wait_until(Waiting *w, TimestampTz until)
{
	int64		poll = Min(POLL_USECS << Min(w->naps, 4), MAX_POLL_USECS);
	int64		usecs = Max(until - GetCurrentTimestamp(), 0);

	w->waited = true;
	w->naps++;
	nap(time_left(w, Min(usecs, poll)), PG_WAIT_EXTENSION);
}

/* A short sleep while a mere function holds R; grows with repetition. */
void
wait_nap(Waiting *w)
{
	int64		usecs = Min(NAP_USECS << Min(w->naps, 6), MAX_NAP_USECS);

	w->waited = true;
	w->naps++;
	if (usecs < 1000)
		pg_usleep(usecs);
	else
		nap(time_left(w, usecs), PG_WAIT_EXTENSION);
	CHECK_FOR_INTERRUPTS();
}
