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
 * All locks are transaction-level, and never session-level, so that an abort
 * of the (sub)transaction frees them and PREPARE TRANSACTION keeps them.
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
	[LOCK_WAITING] = 21,
	[LOCK_PLACE] = 22,
};

static void
set_tag(LOCKTAG *tag, LockClass class, const LeaseName *name)
{
	uint64		key = name ? name->hash : 0;

	SET_LOCKTAG_ADVISORY(*tag, MyDatabaseId, (uint32) (key >> 32), (uint32) key,
						 class_ids[class]);
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
	set_tag(&tag, class, name);
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

	set_tag(&tag, class, name);
	owner = own_by_transaction();
	LockRelease(&tag, mode, false);
	CurrentResourceOwner = owner;
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
 * Other transactions that hold R in GUARD mode: those whose end a grant must
 * wait for.  Returns their number, and a palloc'd array in *holders when
 * there are any.  0 with R still taken means that a mere function is at work,
 * or that a transaction is just ending.
 *
 * No lock mode conflicts with GUARD alone, so whoever also holds a stronger
 * mode is left out: 0 does not prove that nobody writes (name_in_use() does),
 * only that there is no end of a transaction to wait for just now.  A function
 * that comes and goes between the looks can still be taken for a guard; waits
 * start over now and then, which bounds what that costs.
 */
int
guard_holders(const LeaseName *name, VirtualTransactionId **holders)
{
	LOCKTAG		tag;
	VirtualTransactionId *before;
	VirtualTransactionId *all;
	VirtualTransactionId *after;
	int			n = 0;

	set_tag(&tag, LOCK_LEASE, name);
	before = GetLockConflicts(&tag, RENEW_MODE, NULL);
	all = GetLockConflicts(&tag, GRANT_MODE, NULL);
	after = GetLockConflicts(&tag, RENEW_MODE, NULL);
	for (VirtualTransactionId *v = all; VirtualTransactionIdIsValid(*v); v++)
		if (!vxid_member(*v, before) && !vxid_member(*v, after))
			all[n++] = *v;
	pfree(before);
	pfree(after);
	if (n == 0)
		pfree(all);
	else
		*holders = all;
	return n;
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

	set_tag(&tag, LOCK_LEASE, name);
	all = GetLockConflicts(&tag, GRANT_MODE, NULL);
	in_use = VirtualTransactionIdIsValid(all[0]);
	pfree(all);
	return in_use;
}

/*
 * Hashes of the names that backends wait for in acquire, one an entry, in a
 * palloc'd array.  Returns their number.
 */
int
waiting_names(uint64 **hashes)
{
	LockData   *locks = GetLockStatusData();
	int			n = 0;

	*hashes = palloc(Max(locks->nelements, 1) * sizeof(uint64));
	for (int i = 0; i < locks->nelements; i++)
	{
		const LOCKTAG *tag = &locks->locks[i].locktag;

		if (tag->locktag_type == LOCKTAG_ADVISORY &&
			tag->locktag_lockmethodid == USER_LOCKMETHOD &&
			tag->locktag_field1 == MyDatabaseId &&
			tag->locktag_field4 == class_ids[LOCK_WAITING])
			(*hashes)[n++] = (uint64) tag->locktag_field2 << 32 | tag->locktag_field3;
	}
	return n;
}
