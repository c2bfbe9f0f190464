/*
 * session.c
 *		Leases of scope 'session': whether the session that acquired is alive.
 *
 * Such a session holds a session-level lock of class LOCK_SESSION, whose
 * random key stands in the lease's row.  While the lock is held the lease is;
 * PostgreSQL frees it when the session ends in any way.  DISCARD ALL and
 * pg_advisory_unlock_all() free it as well, and end the session's leases like
 * the session's end.  A key is never taken again, so nothing comes back.
 *
 * The one place that takes a session-level lock of our own.
 */
#include "postgres.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "utils/memutils.h"

#include "compat.h"
#include "lease_lock.h"
#include "shared.h"

static int64 my_key = 0;		/* 0: none was taken yet */
static bool exit_registered = false;
static bool acquired = false;	/* in this transaction */

/* The names that this session acquired with this scope. */
typedef struct SessionName
{
	LeaseName	name;
	char		status;
} SessionName;

#define SH_PREFIX		sessionnames
#define SH_ELEMENT_TYPE	SessionName
#define SH_KEY_TYPE		LeaseName
#define SH_KEY			name
#define SH_HASH_KEY(tb, key)	((uint32) (key).hash)
#define SH_EQUAL(tb, a, b)		name_equal(&(a), &(b))
#define SH_SCOPE		static inline
#define SH_DECLARE
#define SH_DEFINE
#include "lib/simplehash.h"

static sessionnames_hash *names = NULL;

/*
 * Ends the session's leases and wakes who waits for them.  Runs before the
 * shared area is unmapped, and so before PostgreSQL's own clean-up, which
 * would only come to the same later.
 */
static void
session_exit(int code, Datum arg)
{
	LOCKTAG		tag;
	sessionnames_iterator i;
	SessionName *name;

	AbortOutOfAnyTransaction();
	set_tag(&tag, LOCK_SESSION, my_key);
	if (compat_lock_held_by_me(&tag, ExclusiveLock))
		(void) LockRelease(&tag, ExclusiveLock, true);
	sessionnames_start_iterate(names, &i);
	while ((name = sessionnames_iterate(names, &i)) != NULL)
		line_wake(&name->name);
}

/*
 * The key of this session for a grant on resource, its lock taken.  Needs a
 * transaction, which cannot be prepared from then on.
 */
int64
session_key(const LeaseName *resource)
{
	LOCKTAG		tag;
	bool		found;

	set_tag(&tag, LOCK_SESSION, my_key);
	if (my_key == 0 || !compat_lock_held_by_me(&tag, ExclusiveLock))
	{
		do
		{
			if (!pg_strong_random(&my_key, sizeof(my_key)))
				ereport(ERROR,
						(errcode(ERRCODE_INTERNAL_ERROR),
						 errmsg("could not generate a session key")));
			set_tag(&tag, LOCK_SESSION, my_key);
		} while (my_key == 0 ||
				 LockAcquire(&tag, ExclusiveLock, true, true) == LOCKACQUIRE_NOT_AVAIL);
	}
	if (names == NULL)
		names = sessionnames_create(TopMemoryContext, 16, NULL);
	if (sessionnames_lookup(names, *resource) == NULL)
	{
		LeaseName	copy = *resource;

		copy.data = MemoryContextAlloc(TopMemoryContext, copy.len);
		memcpy(unconstify(char *, copy.data), resource->data, copy.len);
		(void) sessionnames_insert(names, copy, &found);
	}
	if (!exit_registered)
	{
		(void) shared_attach();
		before_shmem_exit(session_exit, (Datum) 0);
		exit_registered = true;
	}
	acquired = true;
	return my_key;
}

/*
 * A lease on a name was released: the session's end need not wake anybody for it.
 * Should the release be rolled back, the first in line finds out by itself.
 */
void
session_forget(const LeaseName *resource)
{
	SessionName *known = names ? sessionnames_lookup(names, *resource) : NULL;
	const char *data;

	if (known == NULL)
		return;
	data = known->name.data;
	(void) sessionnames_delete(names, *resource);
	pfree(unconstify(char *, data));
}

/*
 * Whether the session with a key is alive and has not given its leases up.  On
 * a standby, where nobody can tell, it counts as alive.
 */
bool
session_alive(int64 key)
{
	LOCKTAG		tag;

	set_tag(&tag, LOCK_SESSION, key);
	if (key == my_key)
		return compat_lock_held_by_me(&tag, ExclusiveLock);
	if (RecoveryInProgress())
		return true;
	if (LockAcquire(&tag, ShareLock, true, true) == LOCKACQUIRE_NOT_AVAIL)
		return true;
	(void) LockRelease(&tag, ShareLock, true);
	return false;
}

static void
xact_callback(XactEvent event, void *arg)
{
	if (event == XACT_EVENT_PRE_PREPARE && acquired)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("cannot PREPARE a transaction that has acquired a lease of scope \"session\""),
				 errhint("Acquire it with scope \"lease\" instead.")));
	if (event == XACT_EVENT_COMMIT || event == XACT_EVENT_ABORT)
		acquired = false;
}

void
session_init(void)
{
	RegisterXactCallback(xact_callback, NULL);
}
