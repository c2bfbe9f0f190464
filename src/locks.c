/*
 * locks.c
 *		Lock tags, their classes and modes.
 *
 * The tags are of the advisory kind with a fourth field of our own, so that
 * they show in pg_locks (objsubid), take part in deadlock detection, and can
 * never meet an application's pg_advisory_lock (fields 1 and 2) or Citus (4 to
 * 16).  The name's 64-bit hash fills fields two and three.  Two names with one
 * hash share a lock, which costs concurrency and no correctness: rows are
 * compared byte for byte.
 *
 * Class LOCK_LEASE (R) and class LOCK_FENCE (F) are used in three modes:
 *
 *		mode	conflicts with			held by
 *		GUARD	GRANT					a guarded write, to the end of its
 *										transaction
 *		RENEW	RENEW, GRANT			renew, release, prune, force_release, and
 *										a grant over a live lease: for the call
 *		GRANT	everything				a grant, for the call (its uncommitted row
 *										is the lock from then on); F: who raises
 *										the highest accepted token, to the end of
 *										its transaction
 *
 * R in GRANT mode is only ever asked for without waiting: a queued request
 * would stand in the way of the live holder's writes and renewals.  Nobody
 * sleeps on a transaction while holding R in RENEW or GRANT mode.
 *
 * These locks are transaction-level, so that an abort of the (sub)transaction
 * frees them and PREPARE TRANSACTION keeps them.  Class LOCK_SESSION is
 * session-level (session.c), and class LOCK_NAMED, the named advisory locks,
 * whichever the caller asks for (named.c).  LOCK_PLACE and LOCK_RINGS, one of
 * each in a database, exclude two jumps of the tokens, and two searches for
 * rings, at once.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/resowner.h"

#include "compat.h"
#include "lease_lock.h"

/* Fourth field of the tag; part of what pg_locks shows, so never renumber. */
static const uint16 class_ids[] = {
	[LOCK_LEASE] = 19,
	[LOCK_FENCE] = 20,
	[LOCK_PLACE] = 22,
	[LOCK_SESSION] = 23,
	[LOCK_NAMED] = 24,
	[LOCK_RINGS] = 25,
};

/* The tag of a key, a name's hash as a rule, in a class. */
void
set_tag(LOCKTAG *tag, LockClass class, uint64 key)
{
	SET_LOCKTAG_ADVISORY(*tag, MyDatabaseId, (uint32) (key >> 32), (uint32) key,
						 class_ids[class]);
}

static void
set_name_tag(LOCKTAG *tag, LockClass class, const LeaseName *name)
{
	set_tag(tag, class, name ? name->hash : 0);
}

/* Whether a lock is of a class of this database; *key is its key. */
static bool
is_tag(const LOCKTAG *tag, LockClass class, uint64 *key)
{
	*key = (uint64) tag->locktag_field2 << 32 | tag->locktag_field3;
	return tag->locktag_type == LOCKTAG_ADVISORY &&
		tag->locktag_lockmethodid == USER_LOCKMETHOD &&
		tag->locktag_field1 == MyDatabaseId &&
		tag->locktag_field4 == class_ids[class];
}

/*
 * Locks belong to the (sub)transaction and not to the portal that runs: a
 * cursor that fails in a savepoint would take along the locks of its earlier
 * FETCHes, whose writes stay.  Returns the owner to restore.
 */
ResourceOwner
own_by_transaction(void)
{
	ResourceOwner owner = CurrentResourceOwner;

	CurrentResourceOwner = CurTransactionResourceOwner;
	return owner;
}

/*
 * Takes the lock of a name (NULL: of the database) for the transaction.
 * Returns false only with nowait, when it cannot be had at once; that
 * includes a queue of waiters.  Raises 53200 when the lock table is full.
 */
bool
lock_name(LockClass class, const LeaseName *name, LOCKMODE mode, bool nowait)
{
	LOCKTAG		tag;
	ResourceOwner owner;
	bool		got;

	Assert(nowait || class != LOCK_LEASE || mode != GRANT_MODE);
	set_name_tag(&tag, class, name);
	/* An error leaves the owner as it is; the abort sets its own. */
	owner = own_by_transaction();
	got = LockAcquire(&tag, mode, false, nowait) != LOCKACQUIRE_NOT_AVAIL;
	CurrentResourceOwner = owner;
	return got;
}

void
unlock_name(LockClass class, const LeaseName *name, LOCKMODE mode)
{
	LOCKTAG		tag;
	ResourceOwner owner;

	set_name_tag(&tag, class, name);
	owner = own_by_transaction();
	LockRelease(&tag, mode, false);
	CurrentResourceOwner = owner;
}

/* Whether this transaction holds the lock of a name in a mode. */
bool
name_held_by_me(LockClass class, const LeaseName *name, LOCKMODE mode)
{
	LOCKTAG		tag;

	set_name_tag(&tag, class, name);
	return compat_lock_held_by_me(&tag, mode);
}

static bool
vxid_member(VirtualTransactionId vxid, const VirtualTransactionId *list)
{
	for (; VirtualTransactionIdIsValid(*list); list++)
		if (VirtualTransactionIdEquals(vxid, *list))
			return true;
	return false;
}

/*
 * Whether a guarded write seems to be in flight under a name: somebody holds R
 * in GUARD mode, and it is not just a function at work or a transaction that
 * is ending.  Cheap, and for deciding whether to try again: no lock mode
 * conflicts with GUARD alone, so that who comes and goes between the looks can
 * be taken for a guard, and who also holds a stronger mode is left out.
 */
bool
guards_in_flight(const LeaseName *name)
{
	LOCKTAG		tag;
	VirtualTransactionId *before;
	VirtualTransactionId *all;
	VirtualTransactionId *after;
	bool		found = false;

	set_name_tag(&tag, LOCK_LEASE, name);
	before = GetLockConflicts(&tag, RENEW_MODE, NULL);
	all = GetLockConflicts(&tag, GRANT_MODE, NULL);
	after = GetLockConflicts(&tag, RENEW_MODE, NULL);
	for (VirtualTransactionId *v = all; VirtualTransactionIdIsValid(*v); v++)
		if (!vxid_member(*v, before) && !vxid_member(*v, after))
			found = true;
	pfree(before);
	pfree(all);
	pfree(after);
	return found;
}

/*
 * The locks of a class in this database, one entry for each process that holds
 * or wants one, in a palloc'd array of pointers into *data; key not NULL: of
 * that key alone.  Returns their number.  Reads the whole lock table, so it is
 * for waits and views.
 */
int
locks_of_class(LockClass class, const uint64 *key, LockInstanceData ***locks,
			   LockData **data)
{
	LockData   *all = GetLockStatusData();
	int			n = 0;

	*data = all;
	*locks = palloc(Max(all->nelements, 1) * sizeof(LockInstanceData *));
	for (int i = 0; i < all->nelements; i++)
	{
		uint64		k;

		if (is_tag(&all->locks[i].locktag, class, &k) && (key == NULL || k == *key))
			(*locks)[n++] = &all->locks[i];
	}
	return n;
}

static void
free_lock_data(LockData *data)
{
	pfree(data->locks);
	pfree(data);
}

/* The key in the tag of one of locks_of_class(). */
uint64
lock_key(const LockInstanceData *lock)
{
	return (uint64) lock->locktag.locktag_field2 << 32 | lock->locktag.locktag_field3;
}

/*
 * Other transactions that hold R in GUARD mode, exactly: those whose end a
 * grant must wait for.  Returns their number and a palloc'd array.
 */
int
guard_holders(const LeaseName *name, VirtualTransactionId **holders)
{
	LockInstanceData **locks;
	LockData   *data;
	int			n_locks = locks_of_class(LOCK_LEASE, &name->hash, &locks, &data);
	int			n = 0;

	*holders = palloc(Max(n_locks, 1) * sizeof(VirtualTransactionId));
	for (int i = 0; i < n_locks; i++)
	{
		VirtualTransactionId vxid = compat_lock_vxid(locks[i]);

		if ((locks[i]->holdMask & LOCKBIT_ON(GUARD_MODE)) && locks[i]->pid != MyProcPid &&
			VirtualTransactionIdIsValid(vxid))
			(*holders)[n++] = vxid;
	}
	pfree(locks);
	free_lock_data(data);
	return n;
}

/*
 * Whether this backend holds any lock that somebody else may have to wait for,
 * other than those that a wait in line brings along itself.
 */
bool
holds_other_locks(void)
{
	LockData   *data = GetLockStatusData();
	bool		found = false;

	for (int i = 0; i < data->nelements && !found; i++)
	{
		const LockInstanceData *lock = &data->locks[i];

		if (lock->pid != MyProcPid || lock->holdMask == 0)
			continue;
		switch (lock->locktag.locktag_type)
		{
			case LOCKTAG_VIRTUALTRANSACTION:
				break;
			case LOCKTAG_RELATION:
				found = !is_own_relation(lock->locktag.locktag_field2);
				break;
			default:
				found = true;
		}
	}
	free_lock_data(data);
	return found;
}

/*
 * Whether any other transaction that has not ended holds R, in whatever mode:
 * one that writes under the name can be in the middle of a call just now, and
 * guard_holders() leaves it out.
 */
bool
name_in_use(const LeaseName *name)
{
	LOCKTAG		tag;
	VirtualTransactionId *all;
	bool		in_use;

	set_name_tag(&tag, LOCK_LEASE, name);
	all = GetLockConflicts(&tag, GRANT_MODE, NULL);
	in_use = VirtualTransactionIdIsValid(all[0]);
	pfree(all);
	return in_use;
}
