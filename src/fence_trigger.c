/*
 * fence_trigger.c
 *		The trigger function fence(): the transaction presents the token.
 *
 * It finds out which names a statement or a row is about, asks fence.c, and
 * has a refusal recorded, and raised or warned of.  It never skips a row and
 * never changes one.  Before anything else it checks how it was called: a guard
 * that cannot do its work must fail, not pass.
 */
#include "postgres.h"

#include "catalog/pg_inherits.h"
#include "fmgr.h"
#include "utils/rel.h"

#include "guard_call.h"

PG_FUNCTION_INFO_V1(ll_fence);

/*
 * A statement-level trigger sees no rows, so for INSERT, UPDATE and DELETE it
 * will do only where one name covers the table and rows have no other way in.
 */
static bool
check_statement_level(const TriggerData *td, Guard *guard)
{
	Relation	rel = td->tg_relation;
	Refusal		why;

	if (TRIGGER_FIRED_BY_TRUNCATE(td->tg_event))
		return true;
	if (!template_is_constant(guard->template))
		guard_misused("fence", "At statement level it sees no rows, and cannot tell which names they have.",
					  "Make it a FOR EACH ROW trigger, or let lease_lock.guard make it.");
	if (rel->rd_rel->relkind == RELKIND_RELATION && !rel->rd_rel->relispartition &&
		!has_superclass(RelationGetRelid(rel)))
		return true;
	/* A table can gain a parent at any time; who only warns goes on. */
	(void) refuse_token(&why, ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED,
						template_constant(guard->template), 0, 0,
						pstrdup("trigger function lease_lock.fence is used in a way that guards nothing"),
						psprintf("Rows can reach table \"%s\" through a parent without firing a statement-level trigger.",
								 RelationGetRelationName(rel)));
	why.hint = "Call lease_lock.guard again: it will make a FOR EACH ROW trigger.";
	guard_act(guard, td, &why);
	return false;
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
		guard_misused("fence", "It was not called as a trigger.",
					   "Let lease_lock.guard make the trigger.");
	if (guard == NULL)
	{
		Trigger    *trigger = td->tg_trigger;
		MemoryContext context;

		context = MemoryContextSwitchTo(fcinfo->flinfo->fn_mcxt);
		guard = palloc0(sizeof(Guard));
		guard_check_trigger("fence", td, 4, guard);
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
	if (guard_skips(guard, td))
		return PointerGetDatum(guard_row_result(td));
	bypass = guard_bypassed(td);

	if (TRIGGER_FIRED_FOR_STATEMENT(td->tg_event))
	{
		if (!check_statement_level(td, guard))
			return PointerGetDatum(NULL);
		if (template_is_constant(guard->template))
			(void) guard_check_name(guard, td, template_constant(guard->template), 0, bypass);
		else if (!bypass)
			guard_refuse_truncate(guard, td);
		return PointerGetDatum(NULL);
	}

	if (template_is_constant(guard->template))
	{
		(void) guard_check_name(guard, td, template_constant(guard->template), 0, bypass);
		return PointerGetDatum(guard_row_result(td));
	}
	named = guard_row_name(guard, td, td->tg_trigtuple, &name, bypass);
	if (named)
		(void) guard_check_name(guard, td, &name, 0, bypass);
	/* A row that moves to another name is written under both. */
	if (TRIGGER_FIRED_BY_UPDATE(td->tg_event) &&
		guard_row_name(guard, td, td->tg_newtuple, &new_name, bypass) &&
		!(named && name_equal(&name, &new_name)))
		(void) guard_check_name(guard, td, &new_name, 0, bypass);
	return PointerGetDatum(guard_row_result(td));
}
