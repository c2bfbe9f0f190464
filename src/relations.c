/*
 * relations.c
 *		Opens the extension's own relations.
 *
 * Every call opens several, so their OIDs are kept until a relcache
 * invalidation says otherwise, and a lock that the transaction has is not asked
 * for again.  Nothing here looks at a row.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/hash.h"
#include "access/relation.h"
#include "access/xact.h"
#include "catalog/namespace.h"
#include "pgstat.h"
#include "storage/lmgr.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"

#include "compat.h"
#include "lease_lock.h"

/* What is known of one of the extension's relations. */
static struct
{
	const char *name;
	Oid			oid;			/* until any change of it */
	int			level;			/* locked RowExclusive since this nesting level, */
	Oid			locked;			/* under this OID */
	int			natts;			/* columns of a table */
	Buffer		first;			/* where its first block was last */
}			own[N_OWN_RELATIONS] =
{
	[REL_LEASE] = {"lease", .natts = LEASE_NATTS},
	[REL_LEASE_INDEX] = {"lease_resource"},
	[REL_LEASE_PKEY] = {"lease_pkey"},
	[REL_FENCE] = {"fence", .natts = FENCE_NATTS},
	[REL_FENCE_INDEX] = {"fence_pkey"},
	[REL_TOKEN_SEQ] = {"token_seq"},
	[REL_PLACE_SEQ] = {"place_seq"},
	[REL_PLACE] = {"place", .natts = PLACE_NATTS},
	[REL_AUDIT] = {"audit", .natts = AUDIT_NATTS},
	[REL_RIGHT] = {"permission", .natts = RIGHT_NATTS},
	[REL_HISTORY] = {"history", .natts = HISTORY_NATTS},
};

static const struct
{
	OwnRelation heap;
	OwnRelation index;
	AttrNumber	key;
	StrategyNumber equal;
}			keyed_tables[] =
{
	[TABLE_LEASE] = {REL_LEASE, REL_LEASE_INDEX, LEASE_RESOURCE, HTEqualStrategyNumber},
	[TABLE_FENCE] = {REL_FENCE, REL_FENCE_INDEX, FENCE_NAME, BTEqualStrategyNumber},
};

static void
forget_own_relations(Datum arg, Oid relid)
{
	for (int i = 0; i < N_OWN_RELATIONS; i++)
		if (!OidIsValid(relid) || own[i].oid == relid)
			own[i].oid = InvalidOid;
}

void
relations_init(void)
{
	CacheRegisterRelcacheCallback(forget_own_relations, (Datum) 0);
}

/* At the end of the transaction its locks are gone. */
void
own_relations_at_end(void)
{
	for (int i = 0; i < N_OWN_RELATIONS; i++)
		own[i].level = 0;
}

/* A subtransaction's locks go with it, or to its parent. */
void
own_relations_at_subend(int level, bool commit)
{
	for (int i = 0; i < N_OWN_RELATIONS; i++)
		if (own[i].level >= level)
			own[i].level = commit ? level - 1 : 0;
}

/* An OID known from before, or looked up; invalid: no such relation. */
static Oid
own_oid(OwnRelation which)
{
	if (!OidIsValid(own[which].oid))
		own[which].oid = get_relname_relid(own[which].name, get_namespace_oid("lease_lock", true));
	return own[which].oid;
}

/*
 * Locks one of the extension's relations to the end of the transaction.
 * Returns false only with nowait, when somebody's lock is in the way.  Raises
 * 55000 when the extension is not installed in this database.
 */
static bool
own_lock(OwnRelation which, LOCKMODE mode, bool nowait)
{
	/* A lock that we know to hold needs no way through the lock tables. */
	while (own[which].level == 0 || own[which].oid != own[which].locked)
	{
		Oid			oid = own_oid(which);
		ResourceOwner owner;
		bool		got = true;

		if (!OidIsValid(oid))
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("relation lease_lock.%s does not exist", own[which].name),
					 errhint("Run CREATE EXTENSION lease_lock in this database.")));
		if (own[which].level > 0 && own[which].locked == oid)
			break;				/* news of it, and it is the same still */
		owner = own_by_transaction();
		if (nowait)
			got = ConditionalLockRelationOid(oid, mode);
		else
			LockRelationOid(oid, mode);
		/* With the lock can come the news that the relation has changed. */
		if (got && own[which].oid != oid)
			UnlockRelationOid(oid, mode);
		CurrentResourceOwner = owner;
		if (!got)
			return false;
		if (own[which].oid == oid)
		{
			if (mode == RowExclusiveLock)
			{
				own[which].level = GetCurrentTransactionNestLevel();
				own[which].locked = oid;
			}
			break;
		}
	}
	return true;
}

/* Whether an OID is that of one of the extension's relations, as far as known. */
bool
is_own_relation(Oid relid)
{
	for (int i = 0; i < N_OWN_RELATIONS; i++)
		if (own[i].oid == relid)
			return true;
	return false;
}

/* Whether an earlier call in this transaction has locked any of our relations. */
bool
own_relations_locked(void)
{
	for (int i = 0; i < N_OWN_RELATIONS; i++)
		if (own[i].level > 0)
			return true;
	return false;
}

/* Whether SQL has locked one of our relations, or a call of ours that only read. */
static bool
locked_otherwise(Oid oid)
{
	LOCKTAG		tag;

	SET_LOCKTAG_RELATION(tag, MyDatabaseId, oid);
	for (LOCKMODE mode = AccessShareLock; mode <= AccessExclusiveLock; mode++)
		if (mode != RowExclusiveLock && compat_lock_held_by_me(&tag, mode))
			return true;
	return false;
}

/*
 * Lets go of the locks of a call that waits for a lease: it must not keep an
 * ALTER or a REINDEX waiting, and all others behind that.  All of them or none,
 * since who keeps one lock and comes back for another deadlocks with such a
 * command; and none once place or audit were written.  Needs own_relations_locked()
 * false when the call began, its nesting level, and no relation open.
 */
void
own_relations_let_go(void)
{
	ResourceOwner owner;

	if (own[REL_PLACE].level > 0 || own[REL_AUDIT].level > 0)
		return;
	for (int i = 0; i < N_OWN_RELATIONS; i++)
		if (locked_otherwise(own_oid(i)))
			return;
	owner = own_by_transaction();
	for (int i = 0; i < N_OWN_RELATIONS; i++)
		if (own[i].level > 0)
		{
			UnlockRelationOid(own[i].locked, RowExclusiveLock);
			own[i].level = 0;
		}
	CurrentResourceOwner = owner;
}

/* Closes what own_open() opened in AccessShare mode, and lets go of it. */
void
own_close_read(Relation rel)
{
	Oid			oid = RelationGetRelid(rel);
	ResourceOwner owner;

	relation_close(rel, NoLock);
	owner = own_by_transaction();
	UnlockRelationOid(oid, AccessShareLock);
	CurrentResourceOwner = owner;
}

/* Waits until no other session's lock is in the way of a grant; keeps none. */
void
own_relations_wait(void)
{
	for (int i = 0; i < N_OWN_RELATIONS; i++)
	{
		Oid			oid = own[i].oid;

		if (i == REL_AUDIT || i == REL_PLACE || i == REL_RIGHT ||
			(i == REL_HISTORY && !keep_history) || !OidIsValid(oid))
			continue;
		LockRelationOid(oid, RowExclusiveLock);
		UnlockRelationOid(oid, RowExclusiveLock);
	}
}

/*
 * Opens one of the extension's relations, locked to the end of the
 * transaction; close it with relation_close(..., NoLock).  Returns NULL only
 * with nowait, when somebody's lock is in the way.  Called before R is taken,
 * so that nobody sleeps on an ALTER while holding R.  Raises 55000 for a table
 * of another shape: the columns are known here by their numbers.
 */
Relation
own_open(OwnRelation which, LOCKMODE mode, bool nowait)
{
	Relation	rel;

	if (!own_lock(which, mode, nowait))
		return NULL;
	rel = RelationIdGetRelation(own[which].oid);
	if (!RelationIsValid(rel))
		elog(ERROR, "could not open relation lease_lock.%s", own[which].name);
	if (own[which].natts != 0 && RelationGetDescr(rel)->natts != own[which].natts)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("table lease_lock.%s is not as this library of lease_lock expects it",
						own[which].name),
				 errdetail("It has %d columns and not %d.",
						   RelationGetDescr(rel)->natts, own[which].natts),
				 errhint("Run ALTER EXTENSION lease_lock UPDATE, or start a new session after a package upgrade.")));
	pgstat_init_relation(rel);
	return rel;
}

/*
 * Opens one of our tables and an index on its key; false as own_open().  A
 * fence's heap is only locked: every grant looks at the index, and few go on
 * from there.
 */
bool
keyed_open(KeyedTable *table, OwnTable which, LOCKMODE mode, bool nowait)
{
	table->which = which;
	table->key = keyed_tables[which].key;
	table->equal = keyed_tables[which].equal;
	table->context = CurrentMemoryContext;
	table->mode = mode;
	table->heap = NULL;
	table->recent = InvalidBuffer;
	table->scan = NULL;
	if (!own_lock(keyed_tables[which].heap, mode, nowait))
		return false;
	/* A write can have to enter a row into the other index as well. */
	if (which == TABLE_LEASE && mode == RowExclusiveLock &&
		!own_lock(REL_LEASE_PKEY, mode, nowait))
		return false;
	table->index = own_open(keyed_tables[which].index, mode, nowait);
	if (table->index == NULL)
		return false;
	if (which != TABLE_FENCE)
		(void) keyed_heap(table);
	return true;
}

/* The table itself, which keyed_open() has locked. */
Relation
keyed_heap(KeyedTable *table)
{
	if (table->heap == NULL)
		table->heap = own_open(keyed_tables[table->which].heap, table->mode, false);
	return table->heap;
}

void
keyed_close(KeyedTable *table)
{
	if (table->scan)
		index_endscan(table->scan);
	relation_close(table->index, NoLock);
	if (table->heap)
		relation_close(table->heap, NoLock);
}

/*
 * Pins a block.  *recent is the buffer where it was last, or InvalidBuffer; if
 * it is there still, nobody need be asked where it is.
 */
Buffer
read_block(Relation rel, BlockNumber block, Buffer *recent)
{
	if (!BufferIsValid(*recent) || !compat_read_recent_buffer(rel, block, *recent))
		*recent = ReadBuffer(rel, block);
	return *recent;
}

/* Pins the first block of one of the extension's relations. */
Buffer
own_first_block(Relation rel)
{
	for (int i = 0; i < N_OWN_RELATIONS; i++)
		if (own[i].oid == RelationGetRelid(rel))
			return read_block(rel, 0, &own[i].first);
	return ReadBuffer(rel, 0);
}
