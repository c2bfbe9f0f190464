/*
 * bypass.c
 *		bypass(): writes past a table's guard, for one transaction.
 *
 * For repairs and backfills by the table's owner, so that nobody needs to
 * disable a trigger, which would let everybody else past as well.  What is
 * bypassed is backend-local, ends with the transaction, and follows savepoints.
 * The writes still take the locks of guarded ones (fence.c).
 */
#include "postgres.h"

#include "access/relation.h"
#include "access/xact.h"
#include "catalog/pg_inherits.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/rel.h"

#include "lease_lock.h"

PG_FUNCTION_INFO_V1(ll_bypass);

typedef struct Bypassed
{
	Oid			relid;
	int			level;			/* the nesting level that it ends with */
} Bypassed;

static Bypassed *bypassed = NULL;	/* in TopTransactionContext */
static int	n_bypassed = 0;
static bool used = false;		/* something was written past a guard */

/* Whether this transaction writes past the guards of a table. */
bool
is_bypassed(Oid relid)
{
	for (int i = 0; i < n_bypassed; i++)
		if (bypassed[i].relid == relid)
			return used = true;
	return false;
}

static void
xact_callback(XactEvent event, void *arg)
{
	if (event == XACT_EVENT_PRE_COMMIT && n_bypassed > 0 && !used && !IsTransactionBlock())
		ereport(WARNING,
				(errcode(ERRCODE_NO_ACTIVE_SQL_TRANSACTION),
				 errmsg("bypass has no effect outside a transaction block"),
				 errhint("Call lease_lock.bypass after BEGIN, in the transaction that writes.")));
	if (event == XACT_EVENT_COMMIT || event == XACT_EVENT_ABORT || event == XACT_EVENT_PREPARE)
	{
		bypassed = NULL;
		n_bypassed = 0;
		used = false;
	}
}

static void
subxact_callback(SubXactEvent event, SubTransactionId mine, SubTransactionId parent, void *arg)
{
	int			level = GetCurrentTransactionNestLevel();

	if (event == SUBXACT_EVENT_ABORT_SUB)
		while (n_bypassed > 0 && bypassed[n_bypassed - 1].level >= level)
			n_bypassed--;
	else if (event == SUBXACT_EVENT_COMMIT_SUB)
		for (int i = n_bypassed - 1; i >= 0 && bypassed[i].level >= level; i--)
			bypassed[i].level = level - 1;
}

void
bypass_init(void)
{
	RegisterXactCallback(xact_callback, NULL);
	RegisterSubXactCallback(subxact_callback, NULL);
}

/* bypass(target, reason) */
Datum
ll_bypass(PG_FUNCTION_ARGS)
{
	Oid			target;
	char	   *reason;
	char	   *name;
	List	   *members;
	ListCell   *cell;

	if (PG_ARGISNULL(0))
		argument_is_null("target");
	reason = reason_arg(PG_ARGISNULL(1) ? NULL : PG_GETARG_TEXT_PP(1));
	target = PG_GETARG_OID(0);
	PreventCommandIfReadOnly("bypass()");
	PreventCommandIfParallelMode("bypass()");
	relation_close(guard_target(target, RowExclusiveLock), NoLock);
	members = find_all_inheritors(target, RowExclusiveLock, NULL);
	foreach(cell, members)
		relation_close(guard_target(lfirst_oid(cell), RowExclusiveLock), NoLock);

	bypassed = bypassed ?
		repalloc(bypassed, (n_bypassed + list_length(members)) * sizeof(Bypassed)) :
		MemoryContextAlloc(TopTransactionContext, list_length(members) * sizeof(Bypassed));
	foreach(cell, members)
	{
		bypassed[n_bypassed].relid = lfirst_oid(cell);
		bypassed[n_bypassed].level = GetCurrentTransactionNestLevel();
		n_bypassed++;
	}

	name = guard_target_name(target);
	audit_write("bypass", name, reason, NULL, 0);
	ereport(event_level,
			(errmsg("guard of table %s bypassed by \"%s\" for one transaction",
					name, GetUserNameFromId(GetUserId(), false)),
			 errdetail_internal("reason: %s", reason)));
	PG_RETURN_VOID();
}
