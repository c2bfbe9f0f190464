/*
 * fence_column.c
 *		The trigger function fence_column(): the row carries the token.
 *
 * As fence() does, it checks how it was called first, never skips a row and
 * never changes one.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/sysattr.h"
#include "access/xact.h"
#include "catalog/partition.h"
#include "catalog/pg_type.h"
#include "fmgr.h"
#include "replication/logicalworker.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"

#include "guard_call.h"

PG_FUNCTION_INFO_V1(ll_fence_column);

/* The token column of a row; 0 for NULL, and *isnull says so. */
static int64
token_of(const Guard *guard, HeapTuple tuple, TupleDesc desc, bool *isnull)
{
	Datum		value = heap_getattr(tuple, guard->column, desc, isnull);

	return *isnull ? 0 : DatumGetInt64(value);
}

static void
refuse_row(Guard *guard, const TriggerData *td, int sqlstate, const LeaseName *name,
		   int64 token, int64 newest, char *message, char *detail, char *hint)
{
	Refusal		why;

	(void) refuse_token(&why, sqlstate, name, token, newest, message, detail);
	if (hint)
		why.hint = hint;
	guard_act(guard, td, &why);
}

/* "of table ...", with the resource where there is one: what a refusal is about. */
static char *
row_text(const TriggerData *td, const LeaseName *name)
{
	char	   *table = RelationGetRelationName(td->tg_relation);

	return name ? psprintf("of a row of table \"%s\" for resource \"%.*s\"", table, name->len, name->data) :
		psprintf("of a row of table \"%s\"", table);
}

/*
 * Checks the name, if there is a template, that a row has and the one that it
 * leaves; carried is the token in the row.
 */
static void
check_row_names(Guard *guard, const TriggerData *td, HeapTuple row, HeapTuple old,
				int64 carried, bool bypass)
{
	LeaseName	name;
	LeaseName	old_name;
	bool		named;

	if (guard->template == NULL)
		return;
	named = guard_row_name(guard, td, row, &name, bypass);
	if (named)
		(void) guard_check_name(guard, td, &name, carried, bypass);
	/* Of the name that it leaves the row's new token says nothing. */
	if (old && guard_row_name(guard, td, old, &old_name, bypass) &&
		!(named && name_equal(&name, &old_name)))
		(void) guard_check_name(guard, td, &old_name, 0, bypass);
}

/*
 * An UPDATE that moves a row to another partition comes as a DELETE and an
 * INSERT, whose triggers can change the row, and which has no old row to
 * compare with: what the old one carried is kept from one to the other.
 */
static struct
{
	Oid			root;			/* of the partitioned table; InvalidOid: none */
	TimestampTz xact;			/* the start of the transaction */
	int			depth;			/* of triggers */
	int64		stored;
	bool		presented;		/* the UPDATE did not carry the token */
}			moved;

static Oid
partition_root(Relation rel)
{
	return rel->rd_rel->relispartition ?
		llast_oid(get_partition_ancestors(RelationGetRelid(rel))) : InvalidOid;
}

static int
trigger_depth(void)
{
	return DatumGetInt32(DirectFunctionCall1(pg_trigger_depth, (Datum) 0));
}

static void
remember_moved(const TriggerData *td, int64 stored, bool presented)
{
	moved.root = partition_root(td->tg_relation);
	moved.xact = GetCurrentTransactionStartTimestamp();
	moved.depth = trigger_depth();
	moved.stored = stored;
	moved.presented = presented;
}

/*
 * The token that a row carried before it moved to where it is inserted; or 0.
 * *presented: and the UPDATE was judged by what the transaction presents.
 */
static int64
moved_token(const TriggerData *td, bool *presented)
{
	if (!OidIsValid(moved.root) || moved.depth != trigger_depth())
		return 0;
	if (moved.xact != GetCurrentTransactionStartTimestamp() ||
		moved.root != partition_root(td->tg_relation))
		return 0;
	moved.root = InvalidOid;
	*presented = moved.presented;
	return moved.stored;
}

/*
 * Whether an UPDATE carries a token: one that does not set the column leaves
 * that of the row's last writer in it, which says nothing of this one.
 */
static bool
is_carried(const Guard *guard, const TriggerData *td, int64 token, int64 stored)
{
	return token != stored ||
		bms_is_member(guard->column - FirstLowInvalidHeapAttributeNumber, td->tg_updatedcols);
}

/*
 * Checks a write whose row carries no token, a DELETE or an UPDATE of other
 * columns: the transaction must present it, and not an older one than stored.
 * row is the row as it will be, or was.
 */
static void
check_presented(Guard *guard, const TriggerData *td, HeapTuple row, HeapTuple old, int64 stored)
{
	char	   *column = NameStr(TupleDescAttr(RelationGetDescr(td->tg_relation), guard->column - 1)->attname);
	const char *event = TRIGGER_FIRED_BY_DELETE(td->tg_event) ? "a DELETE" :
		psprintf("an UPDATE that does not set column \"%s\"", column);
	LeaseName	name;
	int64		token;

	if (guard->template)
	{
		Presented  *p;

		if (!guard_row_name(guard, td, row, &name, false))
			return;
		if (!guard_check_name(guard, td, &name, 0, false))
			return;
		/* The check can make the entry. */
		p = presented_find(&name);
		token = p ? p->value.token : 0;
		if (old)
			check_row_names(guard, td, row, old, 0, false);
	}
	else
	{
		token = presented_highest();
		if (token == 0)
		{
			refuse_row(guard, td, ERRCODE_NO_TOKEN_PRESENTED, NULL, 0, stored,
					   psprintf("no token for %s in table \"%s\"",
								event, RelationGetRelationName(td->tg_relation)),
					   presented_list(),
					   TRIGGER_FIRED_BY_DELETE(td->tg_event) ? NULL :
					   "Set the column in every UPDATE, also where its value stays the same, or call lease_lock.present in the transaction.");
			return;
		}
	}
	if (token < stored)
		refuse_row(guard, td, ERRCODE_STALE_TOKEN, guard->template ? &name : NULL, token, stored,
				   psprintf("stale token " INT64_FORMAT " for %s %s, the newest is " INT64_FORMAT,
							token, event, row_text(td, guard->template ? &name : NULL), stored),
				   psprintf("The row was written under token " INT64_FORMAT ".", stored), NULL);
}

/* Checks the token that a written row carries against the row it replaces. */
static void
check_carried(Guard *guard, const TriggerData *td, TupleDesc desc)
{
	bool		is_update = TRIGGER_FIRED_BY_UPDATE(td->tg_event);
	HeapTuple	old = is_update ? td->tg_trigtuple : NULL;
	HeapTuple	row = is_update ? td->tg_newtuple : td->tg_trigtuple;
	char	   *column = NameStr(TupleDescAttr(desc, guard->column - 1)->attname);
	bool		isnull;
	bool		old_isnull;
	int64		token = token_of(guard, row, desc, &isnull);
	int64		stored = 0;
	bool		presented = false;
	LeaseName	name;
	LeaseName  *named = NULL;

	if (old)
	{
		stored = token_of(guard, old, desc, &old_isnull);
		presented = !is_carried(guard, td, token, stored);
		guard->presented = presented;
	}
	else if (TRIGGER_FIRED_BEFORE(td->tg_event))
	{
		stored = moved_token(td, &presented);
		presented &= token == stored;
	}

	guard->refused = false;
	if (is_update)
		guard->moving = td->tg_trigtuple->t_self;
	if (guard_bypassed(td))
	{
		check_row_names(guard, td, row, old, 0, true);
		return;
	}
	/* A row without a token is no row of this guard, whatever is presented. */
	if (presented && !isnull)
	{
		check_presented(guard, td, row, old, stored);
		return;
	}
	if (guard->template)
	{
		if (!guard_row_name(guard, td, row, &name, false))
			return;
		named = &name;
	}
	if (isnull)
		refuse_row(guard, td, ERRCODE_NO_TOKEN_PRESENTED, named, 0, stored,
				   psprintf("no token in column \"%s\" %s", column, row_text(td, named)),
				   pstrdup("The column is null."),
				   "Write the token that lease_lock.acquire returned into the column.");
	else if (token <= 0)
		refuse_row(guard, td, ERRCODE_UNKNOWN_TOKEN, named, token, stored,
				   psprintf("unknown token " INT64_FORMAT " in column \"%s\" %s",
							token, column, row_text(td, named)),
				   pstrdup("Tokens are positive."),
				   "Write the token that lease_lock.acquire returned into the column.");
	else if (!old && stored > 0 && guard->changed_later)
		refuse_row(guard, td, ERRCODE_STALE_TOKEN, named, token, stored,
				   psprintf("a row moves to partition \"%s\", where a trigger can change its token after the check",
							RelationGetRelationName(td->tg_relation)),
				   psprintf("The row was written under token " INT64_FORMAT ".", stored),
				   "Rename the trigger so that it runs before the guard; the view lease_lock.guards shows it.");
	else if (token < stored)
		refuse_row(guard, td, ERRCODE_STALE_TOKEN, named, token, stored,
				   psprintf("stale token " INT64_FORMAT " in column \"%s\" %s, the newest is " INT64_FORMAT,
							token, column, row_text(td, named), stored),
				   psprintf("The row was written under token " INT64_FORMAT ".", stored), NULL);
	else
		check_row_names(guard, td, row, old, token, false);
}

/*
 * A DELETE writes no row.  But one half of an UPDATE that moves a row to another
 * partition comes as a DELETE, and that row has been checked.  Rows deleted by
 * logical replication, which presents nothing, were checked where they come from.
 */
static void
check_delete(Guard *guard, const TriggerData *td, TupleDesc desc)
{
	bool		isnull;
	int64		stored = token_of(guard, td->tg_trigtuple, desc, &isnull);
	bool		moves = td->tg_relation->rd_rel->relispartition &&
		ItemPointerIsValid(&guard->moving) &&
		ItemPointerEquals(&guard->moving, &td->tg_trigtuple->t_self);

	ItemPointerSetInvalid(&guard->moving);
	if (moves && !guard->refused)
		remember_moved(td, stored, guard->presented);
	/* A later trigger may have skipped the UPDATE, and this be a DELETE. */
	if (moves && !guard->changed_later)
		return;
	if (guard_bypassed(td))
		check_row_names(guard, td, td->tg_trigtuple, NULL, 0, true);
	else if (guard->template || !IsLogicalWorker())
		check_presented(guard, td, td->tg_trigtuple, NULL, stored);
}

/* fence_column('column' [, action [, template]]) */
Datum
ll_fence_column(PG_FUNCTION_ARGS)
{
	TriggerData *td = (TriggerData *) fcinfo->context;
	Guard	   *guard = fcinfo->flinfo->fn_extra;
	TupleDesc	desc;

	if (!CALLED_AS_TRIGGER(fcinfo))
		guard_misused("fence_column", "It was not called as a trigger.",
					   "Let lease_lock.guard_column make the trigger.");
	desc = RelationGetDescr(td->tg_relation);
	if (guard == NULL)
	{
		Trigger    *trigger = td->tg_trigger;
		MemoryContext context;

		context = MemoryContextSwitchTo(fcinfo->flinfo->fn_mcxt);
		guard = palloc0(sizeof(Guard));
		ItemPointerSetInvalid(&guard->moving);
		guard_check_trigger("fence_column", td, 3, guard);
		guard->enforce = parse_action(trigger->tgnargs > 1 ? trigger->tgargs[1] : "enforce");
		if (trigger->tgnargs > 2)
			guard->template = template_parse(trigger->tgargs[2], strlen(trigger->tgargs[2]));
		MemoryContextSwitchTo(context);
		if (guard->template)
			template_bind(guard->template, td->tg_relation);
		guard->column = token_column(td->tg_relation, trigger->tgargs[0]);
		fcinfo->flinfo->fn_extra = guard;
	}

	if (TRIGGER_FIRED_FOR_STATEMENT(td->tg_event))
	{
		if (!TRIGGER_FIRED_BY_TRUNCATE(td->tg_event))
			guard_misused("fence_column", "At statement level it sees no rows.",
						   "Make it a FOR EACH ROW trigger, or let lease_lock.guard_column make it.");
		if (!guard_bypassed(td) && !(IsLogicalWorker() && guard->template == NULL))
			guard_refuse_truncate(guard, td);
		return PointerGetDatum(NULL);
	}
	if (guard_skips(guard, td))
		return PointerGetDatum(guard_row_result(td));
	if (TRIGGER_FIRED_BY_DELETE(td->tg_event))
		check_delete(guard, td, desc);
	else
		check_carried(guard, td, desc);
	return PointerGetDatum(guard_row_result(td));
}

/*
 * The number of a token column.  Raises 42703 when there is none of that name,
 * 42804 when it is not bigint, and 0A000 when it is generated.
 */
AttrNumber
token_column(Relation rel, const char *name)
{
	AttrNumber	attnum = get_attnum(RelationGetRelid(rel), name);
	Form_pg_attribute att;

	if (attnum <= 0)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_COLUMN),
				 errmsg("token column \"%s\" does not exist in relation \"%s\"",
						name, RelationGetRelationName(rel)),
				 errhint("Add it: ALTER TABLE ... ADD COLUMN ... bigint.")));
	att = TupleDescAttr(RelationGetDescr(rel), attnum - 1);
	if (att->atttypid != INT8OID)
		ereport(ERROR,
				(errcode(ERRCODE_DATATYPE_MISMATCH),
				 errmsg("token column \"%s\" of relation \"%s\" is not of type bigint",
						name, RelationGetRelationName(rel)),
				 errdetail("Its type is %s.", format_type_be(att->atttypid)),
				 errhint("Tokens are bigint.")));
	if (att->attgenerated)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("token column \"%s\" of relation \"%s\" is generated",
						name, RelationGetRelationName(rel)),
				 errhint("Use an ordinary column that the client writes.")));
	return attnum;
}
