/*
 * named.c
 *		Named advisory locks.
 *
 * PostgreSQL's advisory locks under a name instead of a number, with a bounded
 * wait, in a class of tags of their own.  The lock manager does the work; here
 * is kept which of them this backend holds, so that the view can name them and
 * so that a failed call leaves nothing behind.
 *
 * A session-level lock survives ROLLBACK, but not the statement that took it
 * when that fails: its caller is told of an error, and not of a lock.  Which
 * statement took it is known by its portal, until that is dropped, and within
 * a statement that goes on behind an exception block by the memory of the row
 * that it was computing.  A named cursor is left out, since it can fail later
 * than its caller saw its rows.
 *
 * A wait is always for a transaction-level lock, since PostgreSQL would keep a
 * session-level one that is granted in the instant in which the wait fails.
 *
 * Nothing here knows of leases.
 */
#include "postgres.h"

#include "access/xact.h"
#include "fmgr.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "tcop/pquery.h"
#include "utils/builtins.h"
#include "utils/hsearch.h"
#include "utils/memutils.h"
#include "utils/portal.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "lease_lock.h"
#include "named_list.h"

PG_FUNCTION_INFO_V1(ll_advisory_key);
PG_FUNCTION_INFO_V1(ll_advisory_lock);
PG_FUNCTION_INFO_V1(ll_advisory_xact_lock);
PG_FUNCTION_INFO_V1(ll_try_advisory_lock);
PG_FUNCTION_INFO_V1(ll_try_advisory_xact_lock);
PG_FUNCTION_INFO_V1(ll_advisory_unlock);

typedef struct HeldKey
{
	uint64		hash;
	int32		mode;
	int32		scope;
} HeldKey;

/* A lock that this backend holds, or waits for while count is 0. */
typedef struct Held
{
	HeldKey		key;
	int			count;			/* how many times; session-level only */
	int			level;			/* nesting level that took it first */
	Portal		portal;			/* the last statement that took it, or NULL */
	int			by_portal;		/* how many times that one did */
	MemoryContext call;			/* of a call whose row is not done yet, or NULL */
	int			by_call;		/* how many times that one took it */
} Held;

static HTAB *held_locks = NULL;
static int	n_transaction = 0;	/* entries of transaction-level locks */
static Held *attempt = NULL;	/* entry of the call at work; not yet held */
static int	prepared = 0;		/* transactions with named locks, since the last sweep */

#define SWEEP_EVERY		100		/* of them */

static Held *
find_held(uint64 hash, LOCKMODE mode, NamedScope scope, HASHACTION action)
{
	HeldKey		key = {hash, mode, scope};

	if (held_locks == NULL)
		return NULL;
	return hash_search(held_locks, &key, action, NULL);
}

static void
forget(Held *held)
{
	HeldKey		key = held->key;

	named_list_remove(key.hash, key.mode, key.scope);
	if (key.scope == NAMED_TRANSACTION)
		n_transaction--;
	if (held == attempt)
		attempt = NULL;
	(void) hash_search(held_locks, &key, HASH_REMOVE, NULL);
}

/* At the end of the session its locks go without another word. */
static void
named_exit(int code, Datum arg)
{
	HASH_SEQ_STATUS scan;
	Held	   *held;

	hash_seq_init(&scan, held_locks);
	while ((held = hash_seq_search(&scan)) != NULL)
		named_list_remove(held->key.hash, held->key.mode, held->key.scope);
}

static Held *
enter_held(const LeaseName *name, LOCKMODE mode, NamedScope scope)
{
	HeldKey		key = {name->hash, mode, scope};
	Held	   *held;
	bool		found;

	if (held_locks == NULL)
	{
		HASHCTL		info = {.keysize = sizeof(HeldKey), .entrysize = sizeof(Held)};

		held_locks = hash_create("lease_lock named locks", 16, &info, HASH_ELEM | HASH_BLOBS);
		before_shmem_exit(named_exit, (Datum) 0);
	}
	held = hash_search(held_locks, &key, HASH_ENTER, &found);
	if (found)
		return held;
	held->count = held->by_portal = held->by_call = 0;
	held->portal = NULL;
	held->call = NULL;
	held->level = GetCurrentTransactionNestLevel();
	if (scope == NAMED_TRANSACTION)
		n_transaction++;
	attempt = held;
	named_list_add(name, mode, scope);
	return held;
}

/* "pid 12 (exclusive), pid 13 (exclusive)", or NULL when nobody holds it. */
static char *
holders_text(uint64 hash)
{
	LockInstanceData **locks;
	LockData   *data;
	int			n = locks_of_class(LOCK_NAMED, &hash, &locks, &data);
	StringInfoData buf;

	initStringInfo(&buf);
	for (int i = 0; i < n; i++)
	{
		if (locks[i]->holdMask == 0)
			continue;
		if (buf.len)
			appendStringInfoString(&buf, ", ");
		if (locks[i]->pid == 0)
			appendStringInfoString(&buf, "a prepared transaction");
		else
			appendStringInfo(&buf, "pid %d", locks[i]->pid);
		appendStringInfo(&buf, " (%s)", locks[i]->holdMask & LOCKBIT_ON(ExclusiveLock) ?
						 "exclusive" : "shared");
	}
	return buf.len ? buf.data : NULL;
}

/* A portal is dropped: its statement has not failed, or has been dealt with. */
static void
portal_dropped(void *arg)
{
	HASH_SEQ_STATUS scan;
	Held	   *held;

	hash_seq_init(&scan, held_locks);
	while ((held = hash_seq_search(&scan)) != NULL)
		if (held->portal == (Portal) arg)
		{
			held->portal = NULL;
			held->by_portal = 0;
		}
}

/* The memory of a row is reset: the call has come to its end. */
static void
call_done(void *arg)
{
	HASH_SEQ_STATUS scan;
	Held	   *held;

	hash_seq_init(&scan, held_locks);
	while ((held = hash_seq_search(&scan)) != NULL)
		if (held->call == (MemoryContext) arg)
		{
			held->call = NULL;
			held->by_call = 0;
		}
}

/* Remembers that the statement at work took a session-level lock. */
static void
note_portal(Held *held)
{
	HASH_SEQ_STATUS scan;
	Held	   *other;
	Portal		portal = ActivePortal;
	MemoryContextCallback *callback;

	if (portal == NULL || portal->name[0] != '\0')
		return;
	if (held->portal != portal)
	{
		bool		known = false;

		hash_seq_init(&scan, held_locks);
		while ((other = hash_seq_search(&scan)) != NULL)
			known |= other->portal == portal;
		if (!known)
		{
			callback = MemoryContextAlloc(portal->portalContext, sizeof(*callback));
			callback->func = portal_dropped;
			callback->arg = portal;
			MemoryContextRegisterResetCallback(portal->portalContext, callback);
		}
		held->portal = portal;
		held->by_portal = 0;
	}
	held->by_portal++;
	if (held->call != CurrentMemoryContext)
	{
		callback = palloc(sizeof(*callback));
		callback->func = call_done;
		callback->arg = CurrentMemoryContext;
		MemoryContextRegisterResetCallback(CurrentMemoryContext, callback);
		held->call = CurrentMemoryContext;
		held->by_call = 0;
	}
	held->by_call++;
}

/* Whether the lock was to be had, waiting for it; see the file's header. */
static bool
take_waiting(Waiting *w, const LOCKTAG *tag, LOCKMODE mode, bool session)
{
	ResourceOwner owner;

	if (!lock_tag_bounded(w, tag, mode))
		return false;
	if (session)
	{
		(void) LockAcquire(tag, mode, true, true);
		owner = own_by_transaction();
		(void) LockRelease(tag, mode, false);
		CurrentResourceOwner = owner;
	}
	return true;
}

/*
 * Takes a lock.  wait_usecs < 0 waits as long as lock_timeout lets it, and
 * with try it does not wait at all and returns false.  Raises 55P03 when the
 * time is up, and whatever ends a wait; the lock is not held then.
 */
static bool
take(const LeaseName *name, bool shared, NamedScope scope, int64 wait_usecs, bool try)
{
	LOCKMODE	mode = shared ? ShareLock : ExclusiveLock;
	bool		session = scope == NAMED_SESSION;
	LOCKTAG		tag;
	Held	   *held;
	Waiting		w;
	ResourceOwner owner;
	bool		got;

	set_tag(&tag, LOCK_NAMED, name->hash);
	held = find_held(name->hash, mode, scope, HASH_FIND);
	if (held && !compat_lock_held_by_me(&tag, mode))
	{
		/* pg_advisory_unlock_all() has been here. */
		forget(held);
		held = NULL;
	}
	if (held == NULL)
		held = enter_held(name, mode, scope);

	owner = own_by_transaction();
	got = LockAcquire(&tag, mode, session, true) != LOCKACQUIRE_NOT_AVAIL;
	CurrentResourceOwner = owner;
	if (!got && !try)
	{
		waiting_begin(&w, wait_usecs);
		got = take_waiting(&w, &tag, mode, session);
	}
	if (got && INTERRUPTS_CAN_BE_PROCESSED() && (QueryCancelPending || ProcDiePending))
	{
		/* Who is about to be told of an error does not have it. */
		if (session)
			(void) LockRelease(&tag, mode, true);
		if (held == attempt)
			forget(held);
		CHECK_FOR_INTERRUPTS();
		/* It was none: try again. */
		return take(name, shared, scope, wait_usecs, try);
	}
	if (!got)
	{
		char	   *holders = try ? NULL : holders_text(name->hash);

		if (held == attempt)
			forget(held);
		if (try)
			return false;
		ereport(ERROR,
				(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
				 w.lock_timeout ?
				 errmsg("canceling statement due to lock timeout while waiting for advisory lock \"%s\"",
						name_cstring(name)) :
				 errmsg("could not take advisory lock \"%s\" within %s",
						name_cstring(name), usecs_text(wait_usecs)),
				 holders ? errdetail("It is held by %s.", holders) : 0,
				 errhint("Try again, or wait longer; view lease_lock.advisory_locks shows who holds it.")));
	}

	attempt = NULL;
	if (held->count++ == 0)
		named_list_granted(name->hash, mode, scope);
	if (session)
		note_portal(held);
	return true;
}

/* The first argument of all these functions. */
static LeaseName
get_name(FunctionCallInfo fcinfo)
{
	if (PG_ARGISNULL(0))
		argument_is_null("name");
	return name_arg(PG_GETARG_TEXT_PP(0), "name");
}

static bool
get_shared(FunctionCallInfo fcinfo)
{
	if (PG_ARGISNULL(1))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("shared must not be null"),
				 errhint("Pass false for an exclusive lock, true for a shared one.")));
	return PG_GETARG_BOOL(1);
}

static bool
take_by_call(FunctionCallInfo fcinfo, const char *function, NamedScope scope, bool try)
{
	LeaseName	name = get_name(fcinfo);
	bool		shared = get_shared(fcinfo);
	int64		wait_usecs = -1;

	if (!try && !PG_ARGISNULL(2))
		wait_usecs = wait_arg(PG_GETARG_INTERVAL_P(2));
	PreventCommandDuringRecovery(function);
	PreventCommandIfParallelMode(function);
	return take(&name, shared, scope, wait_usecs, try);
}

/* advisory_key(name): the 64-bit key that pg_locks shows in two halves */
Datum
ll_advisory_key(PG_FUNCTION_ARGS)
{
	PG_RETURN_INT64((int64) get_name(fcinfo).hash);
}

/* advisory_lock(name, shared, wait) */
Datum
ll_advisory_lock(PG_FUNCTION_ARGS)
{
	(void) take_by_call(fcinfo, "advisory_lock()", NAMED_SESSION, false);
	PG_RETURN_VOID();
}

/* advisory_xact_lock(name, shared, wait) */
Datum
ll_advisory_xact_lock(PG_FUNCTION_ARGS)
{
	(void) take_by_call(fcinfo, "advisory_xact_lock()", NAMED_TRANSACTION, false);
	PG_RETURN_VOID();
}

/* try_advisory_lock(name, shared) */
Datum
ll_try_advisory_lock(PG_FUNCTION_ARGS)
{
	PG_RETURN_BOOL(take_by_call(fcinfo, "try_advisory_lock()", NAMED_SESSION, true));
}

/* try_advisory_xact_lock(name, shared) */
Datum
ll_try_advisory_xact_lock(PG_FUNCTION_ARGS)
{
	PG_RETURN_BOOL(take_by_call(fcinfo, "try_advisory_xact_lock()", NAMED_TRANSACTION, true));
}

/* advisory_unlock(name, shared): whether this session held it */
Datum
ll_advisory_unlock(PG_FUNCTION_ARGS)
{
	LeaseName	name = get_name(fcinfo);
	bool		shared = get_shared(fcinfo);
	LOCKMODE	mode = shared ? ShareLock : ExclusiveLock;
	Held	   *held;
	LOCKTAG		tag;
	char	   *holders;

	PreventCommandDuringRecovery("advisory_unlock()");
	PreventCommandIfParallelMode("advisory_unlock()");
	set_tag(&tag, LOCK_NAMED, name.hash);
	held = find_held(name.hash, mode, NAMED_SESSION, HASH_FIND);
	if (held && !compat_lock_held_by_me(&tag, mode))
	{
		forget(held);
		held = NULL;
	}
	if (held)
	{
		/* It can be gone by pg_advisory_unlock_all(), behind one of the transaction. */
		bool		released = LockRelease(&tag, mode, true);

		if (held->by_portal > 0)
			held->by_portal--;
		if (held->by_call > 0)
			held->by_call--;
		if (--held->count == 0 || !released)
			forget(held);
		if (released)
			PG_RETURN_BOOL(true);
	}
	holders = holders_text(name.hash);
	ereport(WARNING,
			(errmsg("this session does not hold advisory lock \"%s\" in %s mode",
					name_cstring(&name), shared ? "shared" : "exclusive"),
			 holders ? errdetail("It is held by %s; this is pid %d.", holders, MyProcPid) :
			 errdetail("Nobody holds it."),
			 errhint("A session-level lock must be released on the connection that took it; behind a transaction pooler use advisory_xact_lock or a lease.")));
	PG_RETURN_BOOL(false);
}

/*
 * What the statement that fails just now took goes with it: all of it where
 * that is the client's own, and what its unfinished row took where an exception
 * block may catch the error.
 */
static void
give_back(Held *held)
{
	bool		failed = held->portal && held->portal->status == PORTAL_FAILED;
	int			n = failed ? held->by_portal : held->by_call;
	LOCKTAG		tag;

	if (n == 0)
		return;
	set_tag(&tag, LOCK_NAMED, held->key.hash);
	for (; n > 0; n--, held->count--)
		if (compat_lock_held_by_me(&tag, held->key.mode))
			(void) LockRelease(&tag, held->key.mode, true);
	held->portal = NULL;
	held->call = NULL;
	held->by_portal = held->by_call = 0;
	if (held->count <= 0)
		forget(held);
}

/*
 * Removes the entries of prepared transactions that are no more.  An entry is
 * kept while any process with that virtual transaction has the lock: one that
 * is being prepared just now still has it itself.
 */
void
named_sweep(const NamedEntry *entries, int n, LockInstanceData **locks, int n_locks)
{
	for (int i = 0; i < n; i++)
	{
		bool		held = entries[i].key.pid != 0;

		for (int j = 0; j < n_locks && !held; j++)
			held = lock_key(locks[j]) == entries[i].key.hash &&
				VirtualTransactionIdEquals(compat_lock_vxid(locks[j]), entries[i].key.vxid);
		if (!held)
			named_list_forget(&entries[i]);
	}
}

/* Before PREPARE: the prepared transaction gets entries of its own. */
static void
prepare(void)
{
	HASH_SEQ_STATUS scan;
	Held	   *held;

	if (n_transaction == 0)
		return;
	hash_seq_init(&scan, held_locks);
	while ((held = hash_seq_search(&scan)) != NULL)
		if (held->key.scope == NAMED_TRANSACTION)
			named_list_prepare(held->key.hash, held->key.mode);
	if (++prepared >= SWEEP_EVERY)
	{
		NamedEntry *entries;
		LockInstanceData **locks;
		LockData   *data;
		int			n = named_list_copy(&entries);
		int			n_locks = locks_of_class(LOCK_NAMED, NULL, &locks, &data);

		named_sweep(entries, n, locks, n_locks);
		prepared = 0;
	}
}

/* Ends transaction-level locks from a nesting level on, and failed calls. */
static void
end_level(int level, bool commit)
{
	HASH_SEQ_STATUS scan;
	Held	   *held;

	hash_seq_init(&scan, held_locks);
	while ((held = hash_seq_search(&scan)) != NULL)
	{
		bool		inside = held->level >= level;

		if (held->key.scope == NAMED_SESSION && !commit && held != attempt)
			give_back(held);
		else if (inside && (held->key.scope == NAMED_TRANSACTION || held == attempt))
		{
			if (level > 1 && commit)
				held->level = level - 1;
			else
				forget(held);
		}
	}
}

static void
xact_callback(XactEvent event, void *arg)
{
	if (held_locks == NULL || hash_get_num_entries(held_locks) == 0)
		return;
	if (event == XACT_EVENT_PRE_PREPARE)
		prepare();
	else if (event == XACT_EVENT_ABORT ||
			 ((event == XACT_EVENT_COMMIT || event == XACT_EVENT_PREPARE) && n_transaction > 0))
		end_level(1, event != XACT_EVENT_ABORT);
}

static void
subxact_callback(SubXactEvent event, SubTransactionId mine,
				 SubTransactionId parent, void *arg)
{
	if (held_locks == NULL || hash_get_num_entries(held_locks) == 0)
		return;
	if (event == SUBXACT_EVENT_ABORT_SUB ||
		(event == SUBXACT_EVENT_COMMIT_SUB && n_transaction > 0))
		end_level(GetCurrentTransactionNestLevel(), event == SUBXACT_EVENT_COMMIT_SUB);
}

void
named_init(void)
{
	RegisterXactCallback(xact_callback, NULL);
	RegisterSubXactCallback(subxact_callback, NULL);
}
