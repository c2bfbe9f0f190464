/*
 * guard_call.c
 *		What the trigger functions fence() and fence_column() share: how they
 *		were called, what a refusal does, and other triggers of the table.
 *
 * Where another BEFORE trigger runs after the check, it can change what was
 * checked.  For that a guard has an AFTER trigger as well, of the same function,
 * whose WHEN condition is recheck_due(): false, and so nearly free, until such
 * a trigger has been met.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "catalog/pg_trigger.h"
#include "common/hashfn.h"
#include "fmgr.h"
#include "replication/logicalworker.h"
#include "utils/builtins.h"
#include "utils/hsearch.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/varlena.h"

#include "guard_call.h"

PG_FUNCTION_INFO_V1(ll_recheck_due);

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

void
guard_misused(const char *function, const char *detail, const char *hint)
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
 * Checks what both functions need of their trigger, and fills in what guard
 * must know of the table's others.  Raises 39P01.
 */
void
guard_check_trigger(const char *function, const TriggerData *td, int max_args, Guard *guard)
{
	static const char *hint = "Let lease_lock.guard or lease_lock.guard_column make the triggers.";
	bool		before = look_at_triggers(td->tg_relation->trigdesc, td->tg_trigger->tgfoid, guard);

	if (!TRIGGER_FIRED_BEFORE(td->tg_event) &&
		!(before && TRIGGER_FIRED_FOR_ROW(td->tg_event)))
		guard_misused(function, "It must be called BEFORE the write.", hint);
	if (td->tg_trigger->tgnargs < 1 || td->tg_trigger->tgnargs > max_args)
		guard_misused(function, psprintf("It takes %d to %d arguments, and got %d.",
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
bool
guard_skips(Guard *guard, const TriggerData *td)
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

typedef struct WarnedKey
{
	uint64		key;			/* hash of what was refused */
	int64		count;			/* how many AFTER triggers have still to meet */
} WarnedKey;

/*
 * Whether a BEFORE trigger has warned of the same row already, as far as its
 * name and token tell.
 */
static bool
warned_before(const Guard *guard, const TriggerData *td, const Refusal *why)
{
	WarnedKey  *entry;
	uint64		key;
	bool		found;

	if (guard->enforce || !guard->changed_later || !TRIGGER_FIRED_FOR_ROW(td->tg_event))
		return false;
	if (warned_keys == NULL)
	{
		HASHCTL		ctl = {.keysize = sizeof(uint64), .entrysize = sizeof(WarnedKey),
			.hcxt = TopTransactionContext};

		warned_keys = hash_create("lease_lock warnings", 64, &ctl,
								  HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	}
	key = hash_combine64(why->resource.hash, (uint64) why->token);
	key = hash_combine64(key, ((uint64) RelationGetRelid(td->tg_relation) << 32) | why->sqlstate);
	entry = hash_search(warned_keys, &key, HASH_ENTER, &found);
	if (!found)
		entry->count = 0;
	if (TRIGGER_FIRED_BEFORE(td->tg_event))
	{
		entry->count++;
		return false;
	}
	return entry->count > 0 && entry->count-- > 0;
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
void
guard_act(Guard *guard, const TriggerData *td, Refusal *why)
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
bool
guard_bypassed(const TriggerData *td)
{
	Oid			relid = RelationGetRelid(td->tg_relation);

	if (!is_bypassed(relid))
		return false;
	if (TRIGGER_FIRED_BEFORE(td->tg_event))
		rejection_count(relid, REASON_BYPASS, ACTION_BYPASS, GetCurrentTimestamp());
	return true;
}

/* False: refused, and the guard only warns. */
bool
guard_check_name(Guard *guard, const TriggerData *td, const LeaseName *name, int64 carried, bool bypass)
{
	Refusal		why;

	if (bypass)
		fence_bypass(name, guard->mode);
	else if (!fence_accepts(name, guard->mode, carried, &why))
	{
		guard_act(guard, td, &why);
		return false;
	}
	return true;
}

/* The name of a row; false when it has none, which is refused. */
bool
guard_row_name(Guard *guard, const TriggerData *td, HeapTuple row, LeaseName *name, bool bypass)
{
	Refusal		why;

	if (template_render(guard->template, row, RelationGetDescr(td->tg_relation), name, &why))
		return true;
	if (!bypass)
		guard_act(guard, td, &why);
	return false;
}

/* The row that a row-level BEFORE trigger hands back: never NULL, unchanged. */
HeapTuple
guard_row_result(const TriggerData *td)
{
	return TRIGGER_FIRED_BY_UPDATE(td->tg_event) ? td->tg_newtuple : td->tg_trigtuple;
}

void
guard_refuse_truncate(Guard *guard, const TriggerData *td)
{
	Refusal		why;

	(void) refuse_token(&why, ERRCODE_NO_TOKEN_PRESENTED, NULL, 0, 0,
						psprintf("TRUNCATE of table \"%s\" carries no token for its rows",
								 RelationGetRelationName(td->tg_relation)),
						pstrdup("Each row is guarded under a name or a token of its own, and TRUNCATE names none."));
	why.hint = "Use DELETE, which is checked row by row.";
	guard_act(guard, td, &why);
}
