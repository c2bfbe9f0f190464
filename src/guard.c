/*
 * guard.c
 *		guard(), guard_column() and unguard(): put the fencing triggers on a
 *		table, change them in place, and take them off.
 *
 * A guard is up to three triggers of fixed names, so that calling again
 * replaces them (CREATE OR REPLACE TRIGGER) without a moment in which the table
 * is bare.  They are made by SQL as the calling role: whoever may not create a
 * trigger on the table may not guard it.  BEFORE triggers fire in the order of
 * their names, and the names sort behind most others, so that the check sees
 * the row as it will be written.  Where the row itself says what is to be
 * checked, an AFTER trigger looks again at what later ones made of it.
 *
 * A table whose rows can be reached through a parent, and one that has children,
 * needs row-level triggers; TRUNCATE is guarded on the table and on each of
 * its children or partitions, since it can name any of them.
 */
#include "postgres.h"

#include "access/relation.h"
#include "catalog/pg_class.h"
#include "catalog/pg_inherits.h"
#include "commands/trigger.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"

#include "compat.h"
#include "guard_call.h"

PG_FUNCTION_INFO_V1(ll_guard);
PG_FUNCTION_INFO_V1(ll_guard_column);
PG_FUNCTION_INFO_V1(ll_unguard);

#define WRITE_TRIGGER		"zz_lease_lock_guard"
#define RECHECK_TRIGGER		"zz_lease_lock_guard_recheck"
#define TRUNCATE_TRIGGER	"zz_lease_lock_guard_truncate"

/* What to make, once it has been checked. */
typedef struct GuardSpec
{
	const char *call;			/* "fence('...', ...)" */
	int			events;
	bool		by_row;			/* what is checked is in the row */
} GuardSpec;

static void
run(const char *sql)
{
	int			result = SPI_execute(sql, false, 0);

	if (result != SPI_OK_UTILITY)
		elog(ERROR, "SPI_execute returned %d for: %s", result, sql);
}

/*
 * The tgenabled of a trigger, a table's own or one that it has from its
 * partitioned parent; 0 when there is none of that name.
 */
static char
trigger_enabled(Oid relid, const char *name, bool clone)
{
	Relation	rel = relation_open(relid, NoLock);
	char		enabled = 0;

	for (int i = 0; rel->trigdesc && i < rel->trigdesc->numtriggers; i++)
		if (strcmp(rel->trigdesc->triggers[i].tgname, name) == 0 &&
			rel->trigdesc->triggers[i].tgisclone == clone)
			enabled = rel->trigdesc->triggers[i].tgenabled;
	/* DDL on triggers insists that nobody has the table open. */
	relation_close(rel, NoLock);
	return enabled;
}

/* Drops a guard's trigger; false when the table has none of its own. */
static bool
drop_trigger(Oid relid, const char *name)
{
	if (trigger_enabled(relid, name, false) == 0)
		return false;
	run(psprintf("DROP TRIGGER %s ON %s", name, guard_target_name(relid)));
	return true;
}

static char *
events_text(int events, const char *separator)
{
	static const char *const names[] = {"insert", "update", "delete", "truncate"};
	StringInfoData buf;

	initStringInfo(&buf);
	for (int i = 0; i < lengthof(names); i++)
		if (events & (1 << i))
			appendStringInfo(&buf, "%s%s", buf.len ? separator : "", names[i]);
	return buf.data;
}

/*
 * Makes or replaces a guard's trigger; without events there is none.  One that
 * fires for replicated rows too (ENABLE ALWAYS) goes on doing so.
 */
static void
set_trigger(Oid relid, const char *name, const char *timing, int events,
			const char *level, const char *call)
{
	char		enabled = trigger_enabled(relid, name, false);
	char	   *target = guard_target_name(relid);

	if (events == 0)
	{
		(void) drop_trigger(relid, name);
		return;
	}
	run(psprintf("CREATE OR REPLACE TRIGGER %s %s %s ON %s FOR EACH %s EXECUTE FUNCTION lease_lock.%s",
				 name, timing, events_text(events, " OR "), target, level, call));
	/* Partitions have copies of a row-level trigger, and of no other. */
	if (enabled == TRIGGER_FIRES_ALWAYS)
		run(psprintf("ALTER TABLE %s %s ENABLE ALWAYS TRIGGER %s",
					 strncmp(level, "ROW", 3) == 0 ? "" : "ONLY", target, name));
}

/* Raises 55000 for a partition that has its guard from its parent. */
static void
require_own_guard(Oid target)
{
	if (trigger_enabled(target, WRITE_TRIGGER, true) != 0)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("table %s has the guard of its partitioned table",
						guard_target_name(target)),
				 errhint("Guard or unguard the partitioned table.")));
}

/*
 * Guards a table, and all that can hold its rows.  Everything is checked
 * before anything is made.
 */
static void
make_guard(Oid target, const GuardSpec *spec, Template *template, const char *column)
{
	List	   *members;
	ListCell   *cell;
	bool		by_row = spec->by_row;

	relation_close(guard_target(target, ShareRowExclusiveLock), NoLock);
	require_own_guard(target);
	members = find_all_inheritors(target, ShareRowExclusiveLock, NULL);
	foreach(cell, members)
	{
		Relation	member = guard_target(lfirst_oid(cell), ShareRowExclusiveLock);

		by_row |= member->rd_rel->relkind != RELKIND_RELATION ||
			member->rd_rel->relispartition || has_superclass(lfirst_oid(cell));
		if (template)
			template_bind(template, member);
		if (column)
			(void) token_column(member, column);
		relation_close(member, NoLock);
	}
	by_row |= list_length(members) > 1;

	SPI_connect();
	foreach(cell, members)
	{
		Oid			member = lfirst_oid(cell);

		/* A partition gets its row-level triggers from its parent's. */
		if (member == target || !get_rel_relispartition(member))
		{
			set_trigger(member, WRITE_TRIGGER, "BEFORE", spec->events & EVENT_ROWS,
						by_row ? "ROW" : "STATEMENT", spec->call);
			set_trigger(member, RECHECK_TRIGGER, "AFTER",
						spec->by_row ? spec->events & (EVENT_INSERT | EVENT_UPDATE) : 0,
						"ROW WHEN (lease_lock.recheck_due())", spec->call);
		}
		set_trigger(member, TRUNCATE_TRIGGER, "BEFORE", spec->events & EVENT_TRUNCATE,
					"STATEMENT", spec->call);
	}
	SPI_finish();
	audit_write("guard", guard_target_name(target), NULL,
				psprintf("%s on %s", spec->call, events_text(spec->events, ",")), 0);
}

static void
require_args(FunctionCallInfo fcinfo, int n, const char *const names[])
{
	for (int i = 0; i < n; i++)
		if (PG_ARGISNULL(i))
			ereport(ERROR,
					(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
					 errmsg("%s must not be null", names[i]),
					 errhint("Pass a value, or leave the argument out for its default.")));
}

/* guard(target, resource, mode, action, events) */
Datum
ll_guard(PG_FUNCTION_ARGS)
{
	static const char *const names[] = {"target", "resource", "mode", "action", "events"};
	text	   *resource;
	char	   *source;
	char	   *mode;
	char	   *action;
	Template   *template;
	GuardSpec	spec;

	require_args(fcinfo, 5, names);
	PreventCommandIfReadOnly("guard()");
	resource = PG_GETARG_TEXT_PP(1);
	source = text_to_cstring(resource);
	mode = text_to_cstring(PG_GETARG_TEXT_PP(2));
	action = text_to_cstring(PG_GETARG_TEXT_PP(3));
	template = template_parse(source, strlen(source));
	(void) parse_mode(mode);
	(void) parse_action(action);
	spec.events = parse_events(text_to_cstring(PG_GETARG_TEXT_PP(4)));
	spec.by_row = !template_is_constant(template);
	/* The triggers say what was asked for, or the view guards could not. */
	spec.call = psprintf("fence(%s, %s, %s%s)", quote_literal_cstr(source),
						 quote_literal_cstr(mode), quote_literal_cstr(action),
						 spec.events == EVENT_ALL ? "" :
						 psprintf(", '%s'", events_text(spec.events, ",")));
	make_guard(PG_GETARG_OID(0), &spec, template, NULL);
	PG_RETURN_VOID();
}

/* guard_column(target, token_column, action, resource) */
Datum
ll_guard_column(PG_FUNCTION_ARGS)
{
	static const char *const names[] = {"target", "token_column", "action"};
	char	   *column;
	char	   *action;
	char	   *source = NULL;
	Template   *template = NULL;
	GuardSpec	spec;

	require_args(fcinfo, 3, names);
	PreventCommandIfReadOnly("guard_column()");
	column = NameStr(*PG_GETARG_NAME(1));
	action = text_to_cstring(PG_GETARG_TEXT_PP(2));
	(void) parse_action(action);
	if (!PG_ARGISNULL(3))
	{
		source = text_to_cstring(PG_GETARG_TEXT_PP(3));
		template = template_parse(source, strlen(source));
	}
	spec.events = EVENT_ALL;
	spec.by_row = true;
	spec.call = psprintf("fence_column(%s, %s%s%s)", quote_literal_cstr(column),
						 quote_literal_cstr(action), source ? ", " : "",
						 source ? quote_literal_cstr(source) : "");
	make_guard(PG_GETARG_OID(0), &spec, template, column);
	PG_RETURN_VOID();
}

/* unguard(target): whether there was a guard of guard() or guard_column(). */
Datum
ll_unguard(PG_FUNCTION_ARGS)
{
	static const char *const names[] = {"target"};
	Oid			target;
	List	   *members;
	ListCell   *cell;
	bool		any = false;

	require_args(fcinfo, 1, names);
	PreventCommandIfReadOnly("unguard()");
	target = PG_GETARG_OID(0);
	relation_close(guard_target(target, ShareRowExclusiveLock), NoLock);
	require_own_guard(target);
	members = find_all_inheritors(target, ShareRowExclusiveLock, NULL);
	SPI_connect();
	foreach(cell, members)
	{
		relation_close(guard_target(lfirst_oid(cell), ShareRowExclusiveLock), NoLock);
		any |= drop_trigger(lfirst_oid(cell), WRITE_TRIGGER);
		any |= drop_trigger(lfirst_oid(cell), RECHECK_TRIGGER);
		any |= drop_trigger(lfirst_oid(cell), TRUNCATE_TRIGGER);
	}
	SPI_finish();
	if (any)
		audit_write("unguard", guard_target_name(target), NULL, NULL, 0);
	PG_RETURN_BOOL(any);
}
