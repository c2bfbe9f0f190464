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
 * Nothing here may be called with R held in RENEW or GRANT mode.  Who has just
 * dropped R because of a transaction in flight, and was seen holding it by
 * that very transaction, would close a ring with it that is none: the other
 * waits for a lock that is gone.  So such a wait begins with naps, until every
 * slice that can have begun before the drop is over.
 */
#include "postgres.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "storage/latch.h"
#include "storage/lmgr.h"
#include "storage/proc.h"
#include "utils/memutils.h"
#include "utils/resowner.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "lease_lock.h"

#define POLL_USECS		(10 * 1000) /* when nobody can wake us */
#define MAX_POLL_USECS	(100 * 1000)
#define NAP_USECS		200		/* while a function is at work */
#define MAX_NAP_USECS	(10 * 1000)
#define NO_LIMIT		PG_INT64_MAX
#define FIRST_SLICE		(100 * 1000)	/* for a guard, which may be none */

/* wait_usecs < 0: no deadline of the caller's own. */
void
waiting_begin(Waiting *w, int64 wait_usecs)
{
	memset(w, 0, sizeof(*w));
	w->start = GetCurrentTimestamp();
	w->deadline = wait_usecs < 0 ? DT_NOEND : w->start + wait_usecs;
	w->slice_end = DT_NOEND;
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

/* R was dropped because of what was found under it. */
void
waiting_dropped(Waiting *w)
{
	w->dropped = GetCurrentTimestamp();
}

/* The moment when the caller's own time is up, or lock_timeout. */
TimestampTz
waiting_end(const Waiting *w)
{
	return LockTimeout > 0 ?
		Min(w->deadline, w->start + LockTimeout * INT64CONST(1000)) : w->deadline;
}

/* Microseconds that may still be waited, at most limit and at least 1. */
static int64
time_left(const Waiting *w, int64 limit)
{
	TimestampTz end = Min(waiting_end(w), w->slice_end);

	if (end != DT_NOEND)
		limit = Min(limit, end - GetCurrentTimestamp());
	return Max(limit, 1);
}

typedef struct LockWait
{
	enum
	{
		WAIT_XID, WAIT_VXID, WAIT_RELATIONS, WAIT_TAG
	}			what;
	TransactionId xid;
	VirtualTransactionId vxid;
	const LOCKTAG *tag;
	LOCKMODE	mode;
} LockWait;

/*
 * Runs one slice of a lock wait.  But for WAIT_TAG no lock is kept: what is
 * waited for may change hands meanwhile, and the caller looks again.  Returns
 * false when the slice's end came first.
 */
static bool
wait_slice(Waiting *w, const LockWait *wait, int64 limit)
{
	MemoryContext context = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;
	int			lock_timeout = LockTimeout;
	int64		usecs = time_left(w, limit);
	volatile bool done = false;

	w->waited = true;
	w->naps = 0;
	line_due(usecs == NO_LIMIT ? DT_NOEND : GetCurrentTimestamp() + usecs);
	BeginInternalSubTransaction(NULL);
	MemoryContextSwitchTo(context);
	PG_TRY();
	{
		LockTimeout = usecs == NO_LIMIT ? 0 : (int) Min((usecs + 999) / 1000, INT_MAX);
		switch (wait->what)
		{
			case WAIT_XID:
				XactLockTableWait(wait->xid, NULL, NULL, XLTW_None);
				break;
			case WAIT_VXID:
				VirtualXactLock(wait->vxid, true);
				break;
			case WAIT_RELATIONS:
				own_relations_wait();
				break;
			case WAIT_TAG:
				(void) own_by_transaction();
				(void) LockAcquire(wait->tag, wait->mode, false, false);
				break;
		}
		done = true;
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
	line_due(GetCurrentTimestamp());
	return done;
}

/* The length of a slice in microseconds. */
static int64
slice_length(void)
{
	return (DeadlockTimeout + 1000) * INT64CONST(1000);
}

/* Waits for a transaction's end, for at most a slice; look again after it. */
void
wait_for_xact(Waiting *w, TransactionId xid)
{
	LockWait	wait = {.what = WAIT_XID, .xid = xid};

	if (w->dropped != 0 && GetCurrentTimestamp() <= w->dropped + slice_length())
		wait_nap(w);
	else
		(void) wait_slice(w, &wait, slice_length());
}

/*
 * Waits for a transaction that holds R, for at most a slice.  The first slice
 * of a call is short: it can have been a check that is just being refused.
 */
void
wait_for_guard(Waiting *w, VirtualTransactionId vxid)
{
	LockWait	wait = {.what = WAIT_VXID, .vxid = vxid};

	(void) wait_slice(w, &wait, w->guarded ? slice_length() : FIRST_SLICE);
	w->guarded = true;
}

/* Waits for another session's lock on our relations. */
void
wait_for_relations(Waiting *w)
{
	LockWait	wait = {.what = WAIT_RELATIONS};
	int			naps = w->naps;

	(void) wait_slice(w, &wait, slice_length());
	w->naps = naps;				/* it may have had nothing to wait for */
}

/*
 * Takes a lock for the transaction, waiting for it in slices of at most limit
 * microseconds, and keeps it.  Whoever waits keeps its place in the lock's queue
 * for the length of a slice.  Returns false when the caller's time is up first.
 */
static bool
lock_bounded(Waiting *w, const LOCKTAG *tag, LOCKMODE mode, int64 limit)
{
	LockWait	wait = {.what = WAIT_TAG, .tag = tag, .mode = mode};

	while (!waiting_over(w))
		if (wait_slice(w, &wait, limit))
			return true;
	return false;
}

/* The same in one wait. */
bool
lock_tag_bounded(Waiting *w, const LOCKTAG *tag, LOCKMODE mode)
{
	return lock_bounded(w, tag, mode, NO_LIMIT);
}

/* The same for a name's lock, which is asked for without waiting first. */
bool
lock_name_bounded(Waiting *w, LockClass class, const LeaseName *name, LOCKMODE mode)
{
	LOCKTAG		tag;

	if (lock_name(class, name, mode, true))
		return true;
	set_tag(&tag, class, name->hash);
	return lock_bounded(w, &tag, mode, slice_length());
}

/*
 * Sleeps until a moment that waiting for a lease is about, at most to the end
 * of the caller's time.  In line it is woken when that changes; otherwise it
 * comes back after a poll's length.
 */
void
wait_until(Waiting *w, TimestampTz until, bool in_line)
{
	if (!in_line)
		until = Min(until, GetCurrentTimestamp() +
					Min(POLL_USECS << Min(w->naps, 4), MAX_POLL_USECS));
	w->waited = true;
	w->naps = in_line ? 0 : w->naps + 1;
	line_sleep(Min(until, waiting_end(w)));
	CHECK_FOR_INTERRUPTS();
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
		line_sleep(GetCurrentTimestamp() + time_left(w, usecs));
	CHECK_FOR_INTERRUPTS();
}
