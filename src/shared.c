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
 * nothing.  Neither that nor a refusal of memory breaks a call: without the
 * area waits fall back to timed polling, and names of locks are not shown.
 *
 * Nothing here knows what the area is used for.
 */
#include "postgres.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/shmem.h"
#include "utils/memutils.h"
#include "utils/resowner.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "lease_lock.h"
#include "shared.h"

/* Raise it with every change of what is shared, of whatever file. */
#define SHARED_LAYOUT	3

/*
 * The struct's size is the same in every layout, or ShmemInitStruct objects.
 * It comes out of the little that a server keeps for libraries not preloaded.
 */
#define SHARED_BYTES	256

/* How long a refused area is not asked for again. */
#define REFUSED_USECS	(60 * USECS_PER_SEC)

#define TRANCHE_NAME	"LeaseLockWait"

StaticAssertDecl(sizeof(SharedCtl) <= SHARED_BYTES, "SharedCtl is too large");

static SharedCtl *ctl = NULL;
static bool unusable = false;	/* another layout, or no room */
static TimestampTz refused_at = 0;
static dsa_area *area = NULL;
static uint32 wait_event = 0;
static bool preloaded = false;
static shmem_request_hook_type next_request_hook = NULL;

static void
request_shared(void)
{
	if (next_request_hook)
		next_request_hook();
	RequestAddinShmemSpace(SHARED_BYTES);
	RequestNamedLWLockTranche(TRANCHE_NAME, 1);
}

/* When preloaded, makes sure of the struct's room and of the wait event's name. */
void
shared_init(void)
{
	if (!process_shared_preload_libraries_in_progress)
		return;
	preloaded = true;
	next_request_hook = shmem_request_hook;
	shmem_request_hook = request_shared;
}

static SharedCtl *
find_or_make(void)
{
	SharedCtl  *found_ctl;
	bool		found;

	found_ctl = ShmemInitStruct("lease_lock", SHARED_BYTES, &found);
	if (found)
		return found_ctl;
	memset(found_ctl, 0, SHARED_BYTES);
	found_ctl->layout = SHARED_LAYOUT;
	found_ctl->tranche = preloaded ?
		GetNamedLWLockTranche(TRANCHE_NAME)->lock.tranche : LWLockNewTrancheId();
	LWLockInitialize(&found_ctl->lock, found_ctl->tranche);
	LWLockInitialize(&found_ctl->file_lock, found_ctl->tranche);
	pg_atomic_init_u32(&found_ctl->n_waiting, 0);
	return found_ctl;
}

/* Whether an error says that there is not enough of something. */
static bool
out_of_resources(int sqlerrcode)
{
	int			category = ERRCODE_TO_CATEGORY(sqlerrcode);

	return category == ERRCODE_INSUFFICIENT_RESOURCES || category == ERRCODE_SYSTEM_ERROR;
}

/*
 * The control struct, or NULL when it has another library's layout, or the
 * server has no room for it: then waits are polled.  Its counters can be read
 * and changed without shared_attach().
 */
SharedCtl *
shared_ctl(void)
{
	MemoryContext context = CurrentMemoryContext;
	SharedCtl  *volatile found_ctl = NULL;

	if (ctl != NULL || unusable)
		return ctl;
	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	PG_TRY();
	{
		found_ctl = find_or_make();
	}
	PG_CATCH();
	{
		/* ShmemInitStruct leaves nothing behind when there is no room. */
		MemoryContextSwitchTo(context);
		if (!out_of_resources(geterrcode()))
			PG_RE_THROW();
		FlushErrorState();
	}
	PG_END_TRY();
	LWLockRelease(AddinShmemInitLock);

	if (found_ctl == NULL || found_ctl->layout != SHARED_LAYOUT)
	{
		unusable = true;
		if (found_ctl == NULL)
			ereport(LOG,
					(errmsg("no shared memory is left for lease_lock"),
					 errhint("Waits are polled. Add lease_lock to shared_preload_libraries.")));
		else
			ereport(LOG,
					(errmsg("this session's library of lease_lock is not the one that made the shared area"),
					 errdetail("Shared area has layout %u, library has %u.",
							   found_ctl->layout, SHARED_LAYOUT),
					 errhint("Waits are polled. Start a new session after a package upgrade, and restart the server once no old one is left.")));
		return NULL;
	}
	ctl = found_ctl;
	LWLockRegisterTranche(ctl->tranche, TRANCHE_NAME);
	return ctl;
}

static void
make_or_attach(void)
{
	dsa_area   *a;
	bool		new;

	LWLockAcquire(&ctl->lock, LW_EXCLUSIVE);
	new = !ctl->made;
	if (new)
	{
		a = dsa_create(ctl->tranche);
		line_make(a, ctl);
		named_make(a, ctl);
		stats_make(a, ctl);
		rejections_make(a, ctl);
		named_attach(a, ctl);
		stats_attach(a, ctl);
		rejections_attach(a, ctl);
		/* Pinned last: until then an error takes all of it away. */
		dsa_pin(a);
		ctl->area = dsa_get_handle(a);
		ctl->made = true;
	}
	else
	{
		a = dsa_attach(ctl->area);
		named_attach(a, ctl);
		stats_attach(a, ctl);
		rejections_attach(a, ctl);
	}
	line_attach(a, ctl);
	dsa_pin_mapping(a);
	stats_enter(new);
	area = a;
	LWLockRelease(&ctl->lock);
}

/*
 * Makes or attaches the area; false when that cannot be had, and callers do
 * without.  Needs a transaction.  Once it has returned true in a backend,
 * nothing here raises again.
 */
bool
shared_attach(void)
{
	MemoryContext context = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;

	if (area != NULL)
		return true;
	if (shared_ctl() == NULL ||
		(refused_at != 0 && GetCurrentTimestamp() < refused_at + REFUSED_USECS))
		return false;
	BeginInternalSubTransaction(NULL);
	MemoryContextSwitchTo(TopMemoryContext);
	PG_TRY();
	{
		make_or_attach();
		ReleaseCurrentSubTransaction();
	}
	PG_CATCH();
	{
		ErrorData  *error;

		MemoryContextSwitchTo(context);
		error = CopyErrorData();
		FlushErrorState();
		RollbackAndReleaseCurrentSubTransaction();
		MemoryContextSwitchTo(context);
		CurrentResourceOwner = owner;
		if (!out_of_resources(error->sqlerrcode))
			ReThrowError(error);
		refused_at = GetCurrentTimestamp();
		ereport(LOG,
				(errmsg("lease_lock cannot have its shared area: %s", error->message),
				 errhint("Waits are polled.")));
		FreeErrorData(error);
	}
	PG_END_TRY();
	MemoryContextSwitchTo(context);
	CurrentResourceOwner = owner;
	return area != NULL;
}

/* What pg_stat_activity shows while a backend waits in line. */
uint32
shared_wait_event(void)
{
	if (wait_event == 0)
		wait_event = shared_ctl() ?
			compat_wait_event(TRANCHE_NAME, ctl->tranche) : PG_WAIT_EXTENSION;
	return wait_event;
}
