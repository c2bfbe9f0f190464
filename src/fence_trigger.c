/*
 * fence_trigger.c
 *		The trigger functions fence() and fence_column().
 *
 * They find out which names a statement or a row is about and which token it
 * carries, ask fence.c, record a refusal, and raise or warn.  They never skip
 * a row and never change one.  Before anything else they check how they were
 * called: a guard that cannot do its work must fail, not pass.
 *
 * Where another BEFORE trigger runs after the check, it can change what was
 * checked.  For that a guard has an AFTER trigger as well, of the same function,
 * whose WHEN condition is recheck_due(): false, and so nearly free, until such
 * a trigger has been met.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/xact.h"
#include "catalog/partition.h"
#include "catalog/pg_inherits.h"
#include "catalog/pg_trigger.h"
#include "catalog/pg_type.h"
#include "commands/trigger.h"
#include "common/hashfn.h"
#include "fmgr.h"
#include "replication/logicalworker.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/hsearch.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/varlena.h"

#include "lease_lock.h"

PG_FUNCTION_INFO_V1(ll_fence);
PG_FUNCTION_INFO_V1(ll_fence_column);
PG_FUNCTION_INFO_V1(ll_recheck_due);

/* What one trigger knows for the length of one statement. */
typedef struct Guard
{
	Template   *template;		/* NULL: fence_column without one */
	FenceMode	mode;
	bool		enforce;
	bool		changed_later;	/* a BEFORE trigger runs after the check */
	int			warned;			/* bits of the reasons already warned of */
	AttrNumber	column;			/* fence_column: the token's */
	ItemPointerData moving;		/* the row of the last UPDATE */
	bool		refused;		/* that was warned of */
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

/* A list of events as bits, not empty; raises 22023. */
int
parse_events(const char *events)
{
	static const char *hint = "List some of insert, update, delete and truncate, separated by commas.";
	List	   *names;
	ListCell   *cell;
	int			bits = 0;

	if (!SplitIdentifierString(pstrdup(events), ',', &names) || names == NIL)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("invalid list of events \"%s\"", events),
				 errhint("%s", hint)));
	foreach(cell, names)
	{
		const char *name = lfirst(cell);

		if (strcmp(name, "insert") == 0)
			bits |= EVENT_INSERT;
		else if (strcmp(name, "update") == 0)
			bits |= EVENT_UPDATE;
		else if (strcmp(name, "delete") == 0)
			bits |= EVENT_DELETE;
		else if (strcmp(name, "truncate") == 0)
			bits |= EVENT_TRUNCATE;
		else
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("invalid event \"%s\"", name),
					 errhint("%s", hint)));
	}
	return bits;
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

/* Whether a trigger fires in this session. */
static bool
fires(const Trigger *t)
{
	return t->tgenabled == TRIGGER_FIRES_ALWAYS ||
		t->tgenabled == (SessionReplicationRole == SESSION_REPLICATION_ROLE_REPLICA ?
						 TRIGGER_FIRES_ON_REPLICA : TRIGGER_FIRES_ON_ORIGIN);
}

/*
 * Looks for row-level triggers that can change a row after this function has
 * checked it, in the order in which they fire.  Returns whether the function has
 * a BEFORE trigger.
 */
static bool
look_at_triggers(const TriggerDesc *desc, Oid function, Guard *guard)
{
	int			checked = 0;

	for (int i = 0; i < desc->numtriggers; i++)
	{
		const Trigger *t = &desc->triggers[i];
		int			events = t->tgtype & (TRIGGER_TYPE_INSERT | TRIGGER_TYPE_UPDATE);

		if (!fires(t) || !TRIGGER_FOR_ROW(t->tgtype) || !TRIGGER_FOR_BEFORE(t->tgtype))
			continue;
		if (t->tgfoid == function)
			checked |= events;
		else if (checked & events)
			guard->changed_later = true;
	}
	return checked != 0;
}

/*
 * Checks what both functions need of their trigger.  A statement-level trigger
 * sees no rows, so for INSERT, UPDATE and DELETE it will do only where one
 * name covers the table and rows have no other way in.
 */
static void
check_trigger(const char *function, const TriggerData *td, int max_args, Guard *guard)
{
	static const char *hint = "Let lease_lock.guard or lease_lock.guard_column make the triggers.";
	bool		before = look_at_triggers(td->tg_relation->trigdesc, td->tg_trigger->tgfoid, guard);

	if (!TRIGGER_FIRED_BEFORE(td->tg_event) &&
		!(before && TRIGGER_FIRED_FOR_ROW(td->tg_event)))
		protocol_error(function, "It must be called BEFORE the write.", hint);
	if (td->tg_trigger->tgnargs < 1 || td->tg_trigger->tgnargs > max_args)
		protocol_error(function, psprintf("It takes %d to %d arguments, and got %d.",
										  1, max_args, td->tg_trigger->tgnargs), hint);
}

/* recheck_due(): whether a check of this transaction may have been outrun. */
Datum
ll_recheck_due(PG_FUNCTION_ARGS)
{
	PG_RETURN_BOOL(recheck_due);
}

/* Refusals of this transaction that AFTER triggers may meet again: their keys. */
static HTAB *warned_keys = NULL;

/*
 * Whether this call has nothing to check: AFTER triggers look only where
 * another trigger may have changed the row.
 */
static bool
nothing_changed(Guard *guard, const TriggerData *td)
{
	if (!TRIGGER_FIRED_FOR_ROW(td->tg_event))
		return false;
	if (!TRIGGER_FIRED_BEFORE(td->tg_event))
		return !guard->changed_later;
	if (guard->changed_later && !recheck_due)
	{
		recheck_due = true;
		warned_keys = NULL;
	}
	return false;
}

/*
 * Whether a BEFORE trigger has warned of the same already.  Kept until the end
 * of the transaction, where there is another trigger to outrun.
 */
static bool
warned_before(const Guard *guard, const TriggerData *td, const Refusal *why)
{
	uint64		key;
	bool		found;

	if (guard->enforce || !guard->changed_later)
		return false;
	if (warned_keys == NULL)
	{
		HASHCTL		ctl = {.keysize = sizeof(uint64), .entrysize = sizeof(uint64),
			.hcxt = TopTransactionContext};

		warned_keys = hash_create("lease_lock warnings", 64, &ctl,
								  HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	}
	key = hash_combine64(why->resource.hash, (uint64) why->token);
	key = hash_combine64(key, ((uint64) RelationGetRelid(td->tg_relation) << 32) | why->sqlstate);
	(void) hash_search(warned_keys, &key,
					   TRIGGER_FIRED_BEFORE(td->tg_event) ? HASH_ENTER : HASH_FIND, &found);
	return found && !TRIGGER_FIRED_BEFORE(td->tg_event);
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

static Statement
statement_of(const TriggerData *td)
{
	return TRIGGER_FIRED_BY_INSERT(td->tg_event) ? REJECTED_INSERT :
		TRIGGER_FIRED_BY_UPDATE(td->tg_event) ? REJECTED_UPDATE :
		TRIGGER_FIRED_BY_DELETE(td->tg_event) ? REJECTED_DELETE : REJECTED_TRUNCATE;
}

static const char *const statement_names[] = {
	[REJECTED_INSERT] = "INSERT",
	[REJECTED_UPDATE] = "UPDATE",
	[REJECTED_DELETE] = "DELETE",
	[REJECTED_TRUNCATE] = "TRUNCATE",
};

/* Records the refusal, and raises it or warns once a statement and reason. */
static void
act(Guard *guard, const TriggerData *td, Refusal *why)
{
	int			bit = 1 << (why->sqlstate == ERRCODE_STALE_TOKEN ? 0 :
							why->sqlstate == ERRCODE_NO_TOKEN_PRESENTED ? 1 :
							why->sqlstate == ERRCODE_LEASE_NOT_HELD ? 2 :
							why->sqlstate == ERRCODE_UNKNOWN_TOKEN ? 3 : 4);

	if (warned_before(guard, td, why))
		return;
	if (IsLogicalWorker() && why->sqlstate == ERRCODE_NO_TOKEN_PRESENTED)
		why->hint = "Rows applied by logical replication present no token. Let the guard fire for local writes alone (ALTER TABLE ... ENABLE TRIGGER), or use lease_lock.guard_column without a resource.";
	rejection_record(RelationGetRelid(td->tg_relation), statement_of(td),
					 guard->enforce ? ACTION_ENFORCE : ACTION_WARN, why);
	if (guard->enforce || !(guard->warned & bit))
		ereport(event_level,
				(errcode(why->sqlstate),
				 errmsg("%s of table \"%s\" %s with %s: %s", statement_names[statement_of(td)],
						RelationGetRelationName(td->tg_relation),
						guard->enforce ? "refused" : "would be refused",
						unpack_sql_state(why->sqlstate), why->message)));
	if (guard->enforce)
		refuse(ERROR, why, td->tg_relation);
	guard->refused = true;
	if (!(guard->warned & bit))
		refuse(WARNING, why, td->tg_relation);
	guard->warned |= bit;
}

/* Whether this write goes past the guard; it is counted then. */
static bool
bypasses(const TriggerData *td)
{
	Oid			relid = RelationGetRelid(td->tg_relation);

	if (!is_bypassed(relid))
		return false;
	if (TRIGGER_FIRED_BEFORE(td->tg_event))
		rejection_count(relid, REASON_BYPASS, ACTION_BYPASS, GetCurrentTimestamp());
	return true;
}

/* False: refused, and the guard only warns. */
static bool
check_name(Guard *guard, const TriggerData *td, const LeaseName *name, int64 carried, bool bypass)
{
	Refusal		why;

	if (bypass)
		fence_bypass(name, guard->mode);
	else if (!fence_accepts(name, guard->mode, carried, &why))
	{
		act(guard, td, &why);
		return false;
	}
	return true;
}

/* The name of a row; false when it has none, which is refused. */
static bool
row_name(Guard *guard, const TriggerData *td, HeapTuple row, LeaseName *name, bool bypass)
{
	Refusal		why;

	if (template_render(guard->template, row, RelationGetDescr(td->tg_relation), name, &why))
		return true;
	if (!bypass)
		act(guard, td, &why);
	return false;
}

/* The row that a row-level BEFORE trigger hands back: never NULL, unchanged. */
static HeapTuple
row_result(const TriggerData *td)
{
	return TRIGGER_FIRED_BY_UPDATE(td->tg_event) ? td->tg_newtuple : td->tg_trigtuple;
}

static void
refuse_truncate(Guard *guard, const TriggerData *td)
{
	Refusal		why;

	(void) refuse_token(&why, ERRCODE_NO_TOKEN_PRESENTED, NULL, 0, 0,
						psprintf("TRUNCATE of table \"%s\" carries no token for its rows",
								 RelationGetRelationName(td->tg_relation)),
						pstrdup("Each row is guarded under a name or a token of its own, and TRUNCATE names none."));
	why.hint = "Use DELETE, which is checked row by row.";
	act(guard, td, &why);
}

/* fence('resource template' [, mode [, action [, events]]]) */
Datum
ll_fence(PG_FUNCTION_ARGS)
{
	TriggerData *td = (TriggerData *) fcinfo->context;
	Guard	   *guard = fcinfo->flinfo->fn_extra;
	LeaseName	name;
	LeaseName	new_name;
	bool		named;
	bool		bypass;

	if (!CALLED_AS_TRIGGER(fcinfo))
		protocol_error("fence", "It was not called as a trigger.",
					   "Let lease_lock.guard make the trigger.");
	if (guard == NULL)
	{
		Trigger    *trigger = td->tg_trigger;
		MemoryContext context;

		context = MemoryContextSwitchTo(fcinfo->flinfo->fn_mcxt);
		guard = palloc0(sizeof(Guard));
		check_trigger("fence", td, 4, guard);
		guard->template = template_parse(trigger->tgargs[0], strlen(trigger->tgargs[0]));
		guard->mode = parse_mode(trigger->tgnargs > 1 ? trigger->tgargs[1] : "held");
		guard->enforce = parse_action(trigger->tgnargs > 2 ? trigger->tgargs[2] : "enforce");
		if (trigger->tgnargs > 3)
			(void) parse_events(trigger->tgargs[3]);
		/* Nothing in a row matters to a constant name. */
		if (template_is_constant(guard->template))
			guard->changed_later = false;
		MemoryContextSwitchTo(context);
		template_bind(guard->template, td->tg_relation);
		fcinfo->flinfo->fn_extra = guard;
	}
	if (nothing_changed(guard, td))
		return PointerGetDatum(row_result(td));
	bypass = bypasses(td);

	if (TRIGGER_FIRED_FOR_STATEMENT(td->tg_event))
	{
		check_statement_level("fence", td, guard);
		if (template_is_constant(guard->template))
			(void) check_name(guard, td, template_constant(guard->template), 0, bypass);
		else if (!bypass)
			refuse_truncate(guard, td);
		return PointerGetDatum(NULL);
	}

	if (template_is_constant(guard->template))
	{
		(void) check_name(guard, td, template_constant(guard->template), 0, bypass);
		return PointerGetDatum(row_result(td));
	}
	named = row_name(guard, td, td->tg_trigtuple, &name, bypass);
	if (named)
		(void) check_name(guard, td, &name, 0, bypass);
	/* A row that moves to another name is written under both. */
	if (TRIGGER_FIRED_BY_UPDATE(td->tg_event) &&
		row_name(guard, td, td->tg_newtuple, &new_name, bypass) &&
		!(named && name_equal(&name, &new_name)))
		(void) check_name(guard, td, &new_name, 0, bypass);
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
refuse_row(Guard *guard, const TriggerData *td, int sqlstate, int64 token, int64 newest,
		   char *message, char *detail, char *hint)
{
	Refusal		why;

	(void) refuse_token(&why, sqlstate, NULL, token, newest, message, detail);
	if (hint)
		why.hint = hint;
	act(guard, td, &why);
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
	named = row_name(guard, td, row, &name, bypass);
	if (named)
		(void) check_name(guard, td, &name, carried, bypass);
	/* Of the name that it leaves the row's new token says nothing. */
	if (old && row_name(guard, td, old, &old_name, bypass) &&
		!(named && name_equal(&name, &old_name)))
		(void) check_name(guard, td, &old_name, 0, bypass);
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
remember_moved(const TriggerData *td, int64 stored)
{
	moved.root = partition_root(td->tg_relation);
	moved.xact = GetCurrentTransactionStartTimestamp();
	moved.depth = trigger_depth();
	moved.stored = stored;
}

/* The token that a row carried before it moved to where it is inserted; or 0. */
static int64
moved_token(const TriggerData *td)
{
	if (!OidIsValid(moved.root) || moved.depth != trigger_depth())
		return 0;
	if (moved.xact != GetCurrentTransactionStartTimestamp() ||
		moved.root != partition_root(td->tg_relation))
		return 0;
	moved.root = InvalidOid;
	return moved.stored;
}

/* Checks the token that a written row carries against the row it replaces. */
static void
check_carried(Guard *guard, const TriggerData *td, TupleDesc desc)
{
	Relation	rel = td->tg_relation;
	bool		is_update = TRIGGER_FIRED_BY_UPDATE(td->tg_event);
	HeapTuple	old = is_update ? td->tg_trigtuple : NULL;
	HeapTuple	row = is_update ? td->tg_newtuple : td->tg_trigtuple;
	char	   *column = NameStr(TupleDescAttr(desc, guard->column - 1)->attname);
	bool		isnull;
	bool		old_isnull;
	int64		token = token_of(guard, row, desc, &isnull);
	int64		stored = 0;

	if (old)
		stored = token_of(guard, old, desc, &old_isnull);
	else if (TRIGGER_FIRED_BEFORE(td->tg_event))
		stored = moved_token(td);

	guard->refused = false;
	if (bypasses(td))
		check_row_names(guard, td, row, old, 0, true);
	else if (isnull)
		refuse_row(guard, td, ERRCODE_NO_TOKEN_PRESENTED, 0, stored,
				   psprintf("no token in column \"%s\" of a row of table \"%s\"",
							column, RelationGetRelationName(rel)),
				   pstrdup("The column is null."),
				   "Write the token that lease_lock.acquire returned into the column.");
	else if (token <= 0)
		refuse_row(guard, td, ERRCODE_UNKNOWN_TOKEN, token, stored,
				   psprintf("unknown token " INT64_FORMAT " in column \"%s\" of a row of table \"%s\"",
							token, column, RelationGetRelationName(rel)),
				   pstrdup("Tokens are positive."),
				   "Write the token that lease_lock.acquire returned into the column.");
	else if (!old && stored > 0 && guard->changed_later)
		refuse_row(guard, td, ERRCODE_STALE_TOKEN, token, stored,
				   psprintf("a row moves to partition \"%s\", where a trigger can change its token after the check",
							RelationGetRelationName(rel)),
				   psprintf("The row was written under token " INT64_FORMAT ".", stored),
				   "Rename the trigger so that it runs before the guard; the view lease_lock.guards shows it.");
	else if (token < stored)
		refuse_row(guard, td, ERRCODE_STALE_TOKEN, token, stored,
				   psprintf("stale token " INT64_FORMAT " in column \"%s\" of a row of table \"%s\", the newest is " INT64_FORMAT,
							token, column, RelationGetRelationName(rel), stored),
				   psprintf("The row was written under token " INT64_FORMAT ".", stored), NULL);
	else
		check_row_names(guard, td, row, old, token, false);
	if (is_update)
		guard->moving = td->tg_trigtuple->t_self;
}

/*
 * A DELETE writes no row, so the transaction must present the token.  But one
 * half of an UPDATE that moves a row to another partition comes as a DELETE, and
 * the row has been checked.  Rows deleted by logical replication, which
 * presents none, were checked where they come from.
 */
static void
check_delete(Guard *guard, const TriggerData *td, TupleDesc desc)
{
	Relation	rel = td->tg_relation;
	bool		isnull;
	int64		stored = token_of(guard, td->tg_trigtuple, desc, &isnull);
	int64		token;
	bool		moves = ItemPointerIsValid(&guard->moving) &&
		ItemPointerEquals(&guard->moving, &td->tg_trigtuple->t_self);

	ItemPointerSetInvalid(&guard->moving);
	if (moves)
	{
		if (!guard->refused)
			remember_moved(td, stored);
		return;
	}
	if (bypasses(td))
	{
		check_row_names(guard, td, td->tg_trigtuple, NULL, 0, true);
		return;
	}
	if (guard->template)
	{
		LeaseName	name;
		Presented  *p;

		if (!row_name(guard, td, td->tg_trigtuple, &name, false))
			return;
		/* The check can make the entry. */
		if (!check_name(guard, td, &name, 0, false))
			return;
		p = presented_find(&name);
		token = p ? p->value.token : 0;
	}
	else
	{
		if (IsLogicalWorker())
			return;
		token = presented_highest();
		if (token == 0)
			refuse_row(guard, td, ERRCODE_NO_TOKEN_PRESENTED, 0, stored,
					   psprintf("no token presented for a DELETE in table \"%s\"",
								RelationGetRelationName(rel)),
					   presented_list(), NULL);
	}
	if (!isnull && token != 0 && token < stored)
		refuse_row(guard, td, ERRCODE_STALE_TOKEN, token, stored,
				   psprintf("stale token " INT64_FORMAT " for a DELETE in table \"%s\", the newest is " INT64_FORMAT,
							token, RelationGetRelationName(rel), stored),
				   psprintf("The row was written under token " INT64_FORMAT ".", stored), NULL);
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

		context = MemoryContextSwitchTo(fcinfo->flinfo->fn_mcxt);
		guard = palloc0(sizeof(Guard));
		ItemPointerSetInvalid(&guard->moving);
		check_trigger("fence_column", td, 3, guard);
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
		if (!bypasses(td) && !(IsLogicalWorker() && guard->template == NULL))
			refuse_truncate(guard, td);
		return PointerGetDatum(NULL);
	}
	if (nothing_changed(guard, td))
		return PointerGetDatum(row_result(td));
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
