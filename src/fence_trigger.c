/*
 * fence_trigger.c
 *		The trigger functions fence() and fence_column().
 *
 * They find out which names a statement or a row is about and which token it
 * carries, ask fence.c, and raise or warn.  They never skip a row and never
 * change one.  Before anything else they check how they were called: a guard
 * that cannot do its work must fail, not pass.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "catalog/pg_inherits.h"
#include "catalog/pg_type.h"
#include "commands/trigger.h"
#include "fmgr.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"

#include "lease_lock.h"

PG_FUNCTION_INFO_V1(ll_fence);
PG_FUNCTION_INFO_V1(ll_fence_column);

/* What one trigger knows for the length of one statement. */
typedef struct Guard
{
	Template   *template;		/* NULL: fence_column without one */
	FenceMode	mode;
	bool		enforce;
	int			warned;			/* bits of the reasons already warned of */
	AttrNumber	column;			/* fence_column: the token's */
} Guard;

/* 'held' or 'newest'; raises 22023. */
FenceMode
parse_mode(const char *mode)
{
	if (strcmp(mode, "held") == 0)
		return MODE_HELD;
	if (strcmp(mode, "newest") == 0)
		return MODE_NEWEST;
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("invalid fencing mode \"%s\"", mode),
			 errhint("Use 'held' or 'newest'.")));
}

/* true for 'enforce', false for 'warn'; raises 22023. */
bool
parse_action(const char *action)
{
	if (strcmp(action, "enforce") == 0)
		return true;
	if (strcmp(action, "warn") == 0)
		return false;
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("invalid fencing action \"%s\"", action),
			 errhint("Use 'enforce' or 'warn'.")));
}

static void
protocol_error(const char *function, const char *detail, const char *hint)
{
	ereport(ERROR,
			(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
			 errmsg("trigger function lease_lock.%s is used in a way that guards nothing", function),
			 errdetail_internal("%s", detail),
			 errhint("%s", hint)));
}

/*
 * Checks what both functions need of their trigger.  A statement-level trigger
 * sees no rows, so for INSERT, UPDATE and DELETE it will do only where one
 * name covers the table and rows have no other way in.
 */
static void
check_trigger(const char *function, const TriggerData *td, int min_args, int max_args)
{
	static const char *hint = "Let lease_lock.guard or lease_lock.guard_column make the triggers.";

	if (!TRIGGER_FIRED_BEFORE(td->tg_event))
		protocol_error(function, "It must be called BEFORE the write.", hint);
	if (td->tg_trigger->tgnargs < min_args || td->tg_trigger->tgnargs > max_args)
		protocol_error(function, psprintf("It takes %d to %d arguments, and got %d.",
										  min_args, max_args, td->tg_trigger->tgnargs), hint);
}

static void
check_statement_level(const char *function, const TriggerData *td, const Guard *guard)
{
	Relation	rel = td->tg_relation;

	if (TRIGGER_FIRED_BY_TRUNCATE(td->tg_event))
		return;
	if (guard->template == NULL || !template_is_constant(guard->template))
		protocol_error(function, "At statement level it sees no rows, and cannot tell which names they have.",
					   "Make it a FOR EACH ROW trigger, or let lease_lock.guard make it.");
	if (rel->rd_rel->relkind != RELKIND_RELATION || rel->rd_rel->relispartition ||
		has_superclass(RelationGetRelid(rel)))
		protocol_error(function, psprintf("Rows can reach table \"%s\" through a parent without firing a statement-level trigger.",
										  RelationGetRelationName(rel)),
					   "Call lease_lock.guard again: it will make a FOR EACH ROW trigger.");
}

/* Raises the refusal, or warns once a statement and reason. */
static void
act(Guard *guard, const Refusal *why, Relation rel)
{
	int			bit = 1 << (why->sqlstate == ERRCODE_STALE_TOKEN ? 0 :
							why->sqlstate == ERRCODE_NO_TOKEN_PRESENTED ? 1 :
							why->sqlstate == ERRCODE_LEASE_NOT_HELD ? 2 : 3);

	if (guard->enforce)
		refuse(ERROR, why, rel);
	if (!(guard->warned & bit))
		refuse(WARNING, why, rel);
	guard->warned |= bit;
}

static void
check_name(Guard *guard, const LeaseName *name, int64 carried, Relation rel)
{
	Refusal		why;

	if (!fence_accepts(name, guard->mode, carried, &why))
		act(guard, &why, rel);
}

/* The row that a row-level BEFORE trigger hands back: never NULL, unchanged. */
static HeapTuple
row_result(const TriggerData *td)
{
	return TRIGGER_FIRED_BY_UPDATE(td->tg_event) ? td->tg_newtuple : td->tg_trigtuple;
}

static void
refuse_truncate(Guard *guard, Relation rel)
{
	Refusal		why;

	(void) refuse_token(&why, ERRCODE_NO_TOKEN_PRESENTED,
						psprintf("TRUNCATE of table \"%s\" carries no token for its rows",
								 RelationGetRelationName(rel)),
						pstrdup("Each row is guarded under a name or a token of its own, and TRUNCATE names none."));
	why.hint = "Use DELETE, which is checked row by row.";
	act(guard, &why, rel);
}

/* fence('resource template' [, mode [, action]]) */
Datum
ll_fence(PG_FUNCTION_ARGS)
{
	TriggerData *td = (TriggerData *) fcinfo->context;
	Guard	   *guard = fcinfo->flinfo->fn_extra;
	TupleDesc	desc;
	LeaseName	name;

	if (!CALLED_AS_TRIGGER(fcinfo))
		protocol_error("fence", "It was not called as a trigger.",
					   "Let lease_lock.guard make the trigger.");
	if (guard == NULL)
	{
		Trigger    *trigger = td->tg_trigger;
		MemoryContext context;

		check_trigger("fence", td, 1, 3);
		context = MemoryContextSwitchTo(fcinfo->flinfo->fn_mcxt);
		guard = palloc0(sizeof(Guard));
		guard->template = template_parse(trigger->tgargs[0], strlen(trigger->tgargs[0]));
		guard->mode = parse_mode(trigger->tgnargs > 1 ? trigger->tgargs[1] : "held");
		guard->enforce = parse_action(trigger->tgnargs > 2 ? trigger->tgargs[2] : "enforce");
		MemoryContextSwitchTo(context);
		template_bind(guard->template, td->tg_relation);
		fcinfo->flinfo->fn_extra = guard;
	}

	if (TRIGGER_FIRED_FOR_STATEMENT(td->tg_event))
	{
		check_statement_level("fence", td, guard);
		if (template_is_constant(guard->template))
			check_name(guard, template_constant(guard->template), 0, td->tg_relation);
		else
			refuse_truncate(guard, td->tg_relation);
		return PointerGetDatum(NULL);
	}

	if (template_is_constant(guard->template))
	{
		check_name(guard, template_constant(guard->template), 0, td->tg_relation);
		return PointerGetDatum(row_result(td));
	}
	desc = RelationGetDescr(td->tg_relation);
	name = template_render(guard->template, td->tg_trigtuple, desc);
	check_name(guard, &name, 0, td->tg_relation);
	if (TRIGGER_FIRED_BY_UPDATE(td->tg_event))
	{
		/* A row that moves to another name is written under both. */
		LeaseName	new_name = template_render(guard->template, td->tg_newtuple, desc);

		if (!name_equal(&name, &new_name))
			check_name(guard, &new_name, 0, td->tg_relation);
	}
	return PointerGetDatum(row_result(td));
}

/* The token column of a row; 0 for NULL, and *isnull says so. */
static int64
token_of(const Guard *guard, HeapTuple tuple, TupleDesc desc, bool *isnull)
{
	Datum		value = heap_getattr(tuple, guard->column, desc, isnull);

	return *isnull ? 0 : DatumGetInt64(value);
}

static void
refuse_row(Guard *guard, int sqlstate, char *message, char *detail, char *hint, Relation rel)
{
	Refusal		why;

	(void) refuse_token(&why, sqlstate, message, detail);
	if (hint)
		why.hint = hint;
	act(guard, &why, rel);
}

/* Checks the token that a written row carries against the row it replaces. */
static void
check_carried(Guard *guard, const TriggerData *td, TupleDesc desc)
{
	Relation	rel = td->tg_relation;
	bool		is_update = TRIGGER_FIRED_BY_UPDATE(td->tg_event);
	HeapTuple	row = is_update ? td->tg_newtuple : td->tg_trigtuple;
	char	   *column = NameStr(TupleDescAttr(desc, guard->column - 1)->attname);
	bool		isnull;
	bool		old_isnull = true;
	int64		token = token_of(guard, row, desc, &isnull);
	int64		stored = is_update ? token_of(guard, td->tg_trigtuple, desc, &old_isnull) : 0;
	LeaseName	name;

	if (isnull)
	{
		refuse_row(guard, ERRCODE_NO_TOKEN_PRESENTED,
				   psprintf("no token in column \"%s\" of a row of table \"%s\"",
							column, RelationGetRelationName(rel)),
				   pstrdup("The column is null."),
				   "Write the token that lease_lock.acquire returned into the column.", rel);
		return;
	}
	if (token <= 0)
	{
		refuse_row(guard, ERRCODE_UNKNOWN_TOKEN,
				   psprintf("unknown token " INT64_FORMAT " in column \"%s\" of a row of table \"%s\"",
							token, column, RelationGetRelationName(rel)),
				   pstrdup("Tokens are positive."),
				   "Write the token that lease_lock.acquire returned into the column.", rel);
		return;
	}
	if (!old_isnull && token < stored)
	{
		refuse_row(guard, ERRCODE_STALE_TOKEN,
				   psprintf("stale token " INT64_FORMAT " in column \"%s\" of a row of table \"%s\", the newest is " INT64_FORMAT,
							token, column, RelationGetRelationName(rel), stored),
				   psprintf("The row was written under token " INT64_FORMAT ".", stored), NULL, rel);
		return;
	}
	if (guard->template == NULL)
		return;
	name = template_render(guard->template, row, desc);
	check_name(guard, &name, token, rel);
	if (is_update)
	{
		LeaseName	old_name = template_render(guard->template, td->tg_trigtuple, desc);

		/* The row leaves a name that its new token says nothing about. */
		if (!name_equal(&name, &old_name))
			check_name(guard, &old_name, 0, rel);
	}
}

/* A DELETE writes no row, so the transaction must present the token. */
static void
check_delete(Guard *guard, const TriggerData *td, TupleDesc desc)
{
	Relation	rel = td->tg_relation;
	bool		isnull;
	int64		stored = token_of(guard, td->tg_trigtuple, desc, &isnull);
	int64		token;

	if (guard->template)
	{
		LeaseName	name = template_render(guard->template, td->tg_trigtuple, desc);
		Presented  *p;

		/* The check can make the entry. */
		check_name(guard, &name, 0, rel);
		p = presented_find(&name);
		token = p ? p->value.token : 0;
	}
	else
	{
		token = presented_highest();
		if (token == 0)
			refuse_row(guard, ERRCODE_NO_TOKEN_PRESENTED,
					   psprintf("no token presented for a DELETE in table \"%s\"",
								RelationGetRelationName(rel)),
					   presented_list(), NULL, rel);
	}
	if (!isnull && token != 0 && token < stored)
		refuse_row(guard, ERRCODE_STALE_TOKEN,
				   psprintf("stale token " INT64_FORMAT " for a DELETE in table \"%s\", the newest is " INT64_FORMAT,
							token, RelationGetRelationName(rel), stored),
				   psprintf("The row was written under token " INT64_FORMAT ".", stored), NULL, rel);
}

/* fence_column('column' [, action [, template]]) */
Datum
ll_fence_column(PG_FUNCTION_ARGS)
{
	TriggerData *td = (TriggerData *) fcinfo->context;
	Guard	   *guard = fcinfo->flinfo->fn_extra;
	TupleDesc	desc;

	if (!CALLED_AS_TRIGGER(fcinfo))
		protocol_error("fence_column", "It was not called as a trigger.",
					   "Let lease_lock.guard_column make the trigger.");
	desc = RelationGetDescr(td->tg_relation);
	if (guard == NULL)
	{
		Trigger    *trigger = td->tg_trigger;
		MemoryContext context;

		check_trigger("fence_column", td, 1, 3);
		context = MemoryContextSwitchTo(fcinfo->flinfo->fn_mcxt);
		guard = palloc0(sizeof(Guard));
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
			protocol_error("fence_column", "At statement level it sees no rows.",
						   "Make it a FOR EACH ROW trigger, or let lease_lock.guard_column make it.");
		refuse_truncate(guard, td->tg_relation);
		return PointerGetDatum(NULL);
	}
	if (TRIGGER_FIRED_BY_DELETE(td->tg_event))
		check_delete(guard, td, desc);
	else
		check_carried(guard, td, desc);
	return PointerGetDatum(row_result(td));
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
