/*
 * shared.c
 *		The shared area: made on first use, with nothing preloaded.
 *
 * A small struct in the main shared memory is found or made by whichever
 * backend comes first.  It has the handle of a DSA area, in which everything
 * else lives.  A crash restart makes all of it anew.
 *
 * The struct carries a layout number.  After a package upgrade old sessions
 * still run the old library: a backend that finds another layout touches
 * nothing, and its waits fall back to timed polling (line.c).
 *
 * Nothing here knows what the area is used for.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/shmem.h"
#include "utils/memutils.h"

#include "compat.h"
#include "lease_lock.h"
#include "shared.h"

/* Raise it with every change of what is shared, of whatever file. */
#define SHARED_LAYOUT	1

/* The struct's size is the same in every layout, or ShmemInitStruct objects. */
#define SHARED_BYTES	1024

StaticAssertDecl(sizeof(SharedCtl) <= SHARED_BYTES, "SharedCtl is too large");

static SharedCtl *ctl = NULL;
static bool other_layout = false;
static dsa_area *area = NULL;
static uint32 wait_event = 0;

/*
 * The control struct, or NULL when it has another library's layout.  Its
 * counters can be read and changed without shared_attach().
 */
SharedCtl *
shared_ctl(void)
{
	SharedCtl  *found_ctl;
	bool		found;

	if (ctl != NULL || other_layout)
		return ctl;
	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	found_ctl = ShmemInitStruct("lease_lock", SHARED_BYTES, &found);
	if (!found)
	{
		memset(found_ctl, 0, SHARED_BYTES);
		found_ctl->layout = SHARED_LAYOUT;
		found_ctl->tranche = LWLockNewTrancheId();
		LWLockInitialize(&found_ctl->lock, found_ctl->tranche);
		pg_atomic_init_u32(&found_ctl->n_waiting, 0);
		pg_atomic_init_u64(&found_ctl->evictions, 0);
		pg_atomic_init_u64(&found_ctl->deadlocks, 0);
	}
	LWLockRelease(AddinShmemInitLock);

	if (found_ctl->layout != SHARED_LAYOUT)
	{
		other_layout = true;
		ereport(LOG,
				(errmsg("this session's library of lease_lock is not the one that made the shared area"),
				 errdetail("Shared area has layout %u, library has %u.", found_ctl->layout, SHARED_LAYOUT),
				 errhint("Waits are polled. Start a new session after a package upgrade, and restart the server once no old one is left.")));
		return NULL;
	}
	ctl = found_ctl;
	LWLockRegisterTranche(ctl->tranche, "LeaseLockWait");
	return ctl;
}

/*
 * Makes or attaches the area; false when it has another layout.  Raises 53200.
 * Once it has returned true in a backend, nothing here raises again.
 */
bool
shared_attach(void)
{
	MemoryContext old;
	dsa_area   *a;

	if (area != NULL)
		return true;
	if (shared_ctl() == NULL)
		return false;
	old = MemoryContextSwitchTo(TopMemoryContext);
	LWLockAcquire(&ctl->lock, LW_EXCLUSIVE);
	if (!ctl->made)
	{
		a = dsa_create(ctl->tranche);
		line_make(a, ctl);
		named_make(a, ctl);
		/* Pinned last: until then an error takes all of it away. */
		dsa_pin(a);
		ctl->area = dsa_get_handle(a);
		ctl->made = true;
	}
	else
		a = dsa_attach(ctl->area);
	dsa_pin_mapping(a);
	LWLockRelease(&ctl->lock);
	line_attach(a, ctl);
	named_attach(a, ctl);
	area = a;
	MemoryContextSwitchTo(old);
	return true;
}

/* What pg_stat_activity shows while a backend waits in line. */
uint32
shared_wait_event(void)
{
	if (wait_event == 0)
		wait_event = shared_ctl() ?
			compat_wait_event("LeaseLockWait", ctl->tranche) : PG_WAIT_EXTENSION;
	return wait_event;
}
