/*
 * named.c
 *		Named advisory locks.
 *
 * PostgreSQL's advisory locks under a name instead of a number, with a bounded
 * wait, in a class of tags of their own.  The lock manager does the work; here
 * is kept which of them this backend holds, so that the view can name them and
 * so that a failed call leaves nothing behind: a session-level lock that was
 * taken by the very statement that fails is given back.
 *
 * Nothing here knows of leases.
 */
#include "postgres.h"

#include "access/xact.h"
#include "fmgr.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "utils/builtins.h"
#include "utils/hsearch.h"
#include "utils/memutils.h"
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
	TimestampTz statement;		/* the last statement that took it */
	int			by_statement;	/* how many times that one did */
} Held;

static HTAB *held_locks = NULL;
static int	n_transaction = 0;	/* entries of transaction-level locks */
static Held *attempt = NULL;	/* entry of the call at work; not yet held */

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
	held->count = held->by_statement = 0;
	held->statement = 0;
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
	int			n = locks_of_class(LOCK_NAMED, &hash, &locks);
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
		got = lock_tag_bounded(&w, &tag, mode, session);
	}
	if (got && InterruptPending && (QueryCancelPending || ProcDiePending))
	{
		/* Who is about to be told of an error does not have it. */
		if (session)
			(void) LockRelease(&tag, mode, true);
		if (held == attempt)
			forget(held);
		CHECK_FOR_INTERRUPTS();
		/* Interrupts are held off: try again. */
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
	if (held->statement != GetCurrentStatementStartTimestamp())
	{
		held->statement = GetCurrentStatementStartTimestamp();
		held->by_statement = 0;
	}
	held->by_statement++;
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
		bool		released = LockRelease(&tag, mode, true);

		if (held->by_statement > 0)
			held->by_statement--;
		if (--held->count == 0 || !released)
			forget(held);
		PG_RETURN_BOOL(released);
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

/* What a failing statement took goes with it; see the file's header. */
static void
give_back(Held *held)
{
	LOCKTAG		tag;

	set_tag(&tag, LOCK_NAMED, held->key.hash);
	while (held->by_statement > 0 && compat_lock_held_by_me(&tag, held->key.mode))
	{
		(void) LockRelease(&tag, held->key.mode, true);
		held->by_statement--;
		held->count--;
	}
	if (held->count <= 0)
		forget(held);
}

static void
xact_callback(XactEvent event, void *arg)
{
	HASH_SEQ_STATUS scan;
	Held	   *held;

	if (held_locks == NULL || hash_get_num_entries(held_locks) == 0)
		return;
	switch (event)
	{
		case XACT_EVENT_PRE_PREPARE:
			hash_seq_init(&scan, held_locks);
			while ((held = hash_seq_search(&scan)) != NULL)
				if (held->key.scope == NAMED_TRANSACTION)
					named_list_prepare(held->key.hash, held->key.mode);
			break;
		case XACT_EVENT_COMMIT:
		case XACT_EVENT_PREPARE:
		case XACT_EVENT_ABORT:
			if (event != XACT_EVENT_ABORT && n_transaction == 0)
				break;
			hash_seq_init(&scan, held_locks);
			while ((held = hash_seq_search(&scan)) != NULL)
			{
				if (held->key.scope == NAMED_TRANSACTION || held == attempt)
					forget(held);
				else if (event == XACT_EVENT_ABORT &&
						 held->statement == GetCurrentStatementStartTimestamp())
					give_back(held);
			}
			break;
		default:
			break;
	}
}

static void
subxact_callback(SubXactEvent event, SubTransactionId mine,
				 SubTransactionId parent, void *arg)
{
	int			level = GetCurrentTransactionNestLevel();
	HASH_SEQ_STATUS scan;
	Held	   *held;

	if (event == SUBXACT_EVENT_ABORT_SUB && attempt && attempt->level >= level)
		forget(attempt);
	if (n_transaction == 0 ||
		(event != SUBXACT_EVENT_ABORT_SUB && event != SUBXACT_EVENT_COMMIT_SUB))
		return;
	hash_seq_init(&scan, held_locks);
	while ((held = hash_seq_search(&scan)) != NULL)
	{
		if (held->key.scope != NAMED_TRANSACTION || held->level < level)
			continue;
		if (event == SUBXACT_EVENT_ABORT_SUB)
			forget(held);
		else
			held->level = level - 1;
	}
}

void
named_init(void)
{
	RegisterXactCallback(xact_callback, NULL);
	RegisterSubXactCallback(subxact_callback, NULL);
}
