/*
 * rights.c
 *		Rights by name: allow(), disallow(), and the check of them.
 *
 * Optional: a name that no pattern covers is anybody's who may call the
 * function.  Once a pattern covers it, only the roles that a covering pattern
 * allows may acquire it (or force its release).  Patterns are those of LIKE,
 * compared byte for byte; roles are kept by name, so that a dump can be
 * restored anywhere, and a role that is not there allows nobody.
 *
 * Grants ask for every name, so a backend keeps the rules until a relcache
 * invalidation of their table, which whoever changes them sends.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/relation.h"
#include "access/xact.h"
#include "catalog/indexing.h"
#include "catalog/pg_collation_d.h"
#include "commands/trigger.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/inval.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "lease_lock.h"

PG_FUNCTION_INFO_V1(ll_allow);
PG_FUNCTION_INFO_V1(ll_disallow);
PG_FUNCTION_INFO_V1(ll_rights_change);

typedef struct Rule
{
	text	   *pattern;
	char	   *role;
	Privilege	privilege;
} Rule;

static const char *const privileges[] = {
	[PRIVILEGE_ACQUIRE] = "acquire",
	[PRIVILEGE_FORCE] = "force",
};

static MemoryContext context = NULL;
static Rule *rules = NULL;
static int	n_rules = 0;
static Oid	rules_relid = InvalidOid;	/* InvalidOid: not read */
static uint32 invalidations = 0;

static void
forget_rules(Datum arg, Oid relid)
{
	invalidations++;
	if (!OidIsValid(relid) || relid == rules_relid)
		rules_relid = InvalidOid;
}

void
rights_init(void)
{
	CacheRegisterRelcacheCallback(forget_rules, (Datum) 0);
}

static Privilege
parse_privilege(const char *privilege)
{
	for (int i = 0; i < lengthof(privileges); i++)
		if (strcmp(privilege, privileges[i]) == 0)
			return i;
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("invalid privilege \"%s\"", privilege),
			 errhint("Use 'acquire' or 'force'.")));
}

static text *
row_text(HeapTuple tuple, AttrNumber column, TupleDesc desc)
{
	bool		isnull;

	return DatumGetTextPP(heap_getattr(tuple, column, desc, &isnull));
}

static bool
read_rules(bool nowait)
{
	Relation	rel = own_open(REL_RIGHT, AccessShareLock, nowait);
	uint32		before = invalidations;
	TupleDesc	desc;
	SysScanDesc scan;
	HeapTuple	tuple;
	MemoryContext old;
	int			room = 0;

	if (rel == NULL)
		return false;
	desc = RelationGetDescr(rel);
	if (context == NULL)
		context = AllocSetContextCreate(TopMemoryContext, "lease_lock rights",
										ALLOCSET_SMALL_SIZES);
	MemoryContextReset(context);
	rules = NULL;
	n_rules = 0;
	old = MemoryContextSwitchTo(context);
	/* Not the transaction's snapshot, and so no predicate lock either. */
	scan = systable_beginscan(rel, InvalidOid, false, SnapshotSelf, 0, NULL);
	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		if (n_rules == room)
		{
			room = room ? 2 * room : 16;
			rules = rules ? repalloc(rules, room * sizeof(Rule)) : palloc(room * sizeof(Rule));
		}
		rules[n_rules].pattern = DatumGetTextPCopy(PointerGetDatum(row_text(tuple, RIGHT_PATTERN, desc)));
		rules[n_rules].role = text_to_cstring(row_text(tuple, RIGHT_ROLE, desc));
		rules[n_rules].privilege = parse_privilege(text_to_cstring(row_text(tuple, RIGHT_PRIVILEGE, desc)));
		n_rules++;
	}
	systable_endscan(scan);
	MemoryContextSwitchTo(old);
	if (before == invalidations)
		rules_relid = RelationGetRelid(rel);
	own_close_read(rel);
	return true;
}

static bool
covers(const Rule *rule, Datum resource)
{
	return DatumGetBool(DirectFunctionCall2Coll(textlike, C_COLLATION_OID, resource,
												PointerGetDatum(rule->pattern)));
}

static bool
has_role(const char *role)
{
	Oid			oid = get_role_oid(role, true);

	return OidIsValid(oid) && has_privs_of_role(GetUserId(), oid);
}

/*
 * Raises 42501 unless current_user has a privilege on a resource.  Returns
 * false only with nowait, when somebody's lock on the table is in the way.
 */
bool
require_right(Privilege privilege, text *resource, bool nowait)
{
	const Rule *covering = NULL;

	/* In a long transaction nothing else may ask. */
	AcceptInvalidationMessages();
	if (!OidIsValid(rules_relid) && !read_rules(nowait))
		return false;
	for (int i = 0; i < n_rules; i++)
	{
		const Rule *rule = &rules[i];

		if (rule->privilege != privilege || !covers(rule, PointerGetDatum(resource)))
			continue;
		if (has_role(rule->role))
			return true;
		covering = rule;
	}
	if (covering == NULL || superuser())
		return true;
	ereport(ERROR,
			(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
			 privilege == PRIVILEGE_ACQUIRE ?
			 errmsg("permission denied to acquire resource \"%s\"", text_to_cstring(resource)) :
			 errmsg("permission denied to force the release of resource \"%s\"",
					text_to_cstring(resource)),
			 errdetail("The pattern \"%s\" covers it, and allows role \"%s\" among those that lease_lock.rights shows.",
					   text_to_cstring(covering->pattern), covering->role),
			 errhint("An administrator can call lease_lock.allow.")));
}

typedef struct RightArgs
{
	text	   *pattern;
	char	   *role;
	Privilege	privilege;
} RightArgs;

static RightArgs
get_args(FunctionCallInfo fcinfo)
{
	static const char *const names[] = {"pattern", "role", "privilege"};
	RightArgs	args;
	int			escapes = 0;

	for (int i = 0; i < 3; i++)
		if (PG_ARGISNULL(i))
			argument_is_null(names[i]);
	args.pattern = PG_GETARG_TEXT_PP(0);
	(void) name_arg(args.pattern, "pattern");
	args.role = NameStr(*PG_GETARG_NAME(1));
	args.privilege = parse_privilege(text_to_cstring(PG_GETARG_TEXT_PP(2)));
	/* LIKE raises for such a pattern, and would then for every grant. */
	for (int i = VARSIZE_ANY_EXHDR(args.pattern) - 1;
		 i >= 0 && VARDATA_ANY(args.pattern)[i] == '\\'; i--)
		escapes++;
	if (escapes % 2 == 1)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_ESCAPE_SEQUENCE),
				 errmsg("pattern \"%s\" ends with an escape character",
						text_to_cstring(args.pattern)),
				 errhint("Write two backslashes for one.")));
	return args;
}

/* Finds the row of a rule in the table, locked against other changes. */
static HeapTuple
find_rule(Relation rel, const RightArgs *args)
{
	TupleDesc	desc = RelationGetDescr(rel);
	SysScanDesc scan = systable_beginscan(rel, InvalidOid, false, SnapshotSelf, 0, NULL);
	HeapTuple	tuple;
	HeapTuple	found = NULL;

	while (found == NULL && HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		text	   *pattern = row_text(tuple, RIGHT_PATTERN, desc);

		if (VARSIZE_ANY_EXHDR(pattern) == VARSIZE_ANY_EXHDR(args->pattern) &&
			memcmp(VARDATA_ANY(pattern), VARDATA_ANY(args->pattern),
				   VARSIZE_ANY_EXHDR(pattern)) == 0 &&
			strcmp(text_to_cstring(row_text(tuple, RIGHT_ROLE, desc)), args->role) == 0 &&
			strcmp(text_to_cstring(row_text(tuple, RIGHT_PRIVILEGE, desc)),
				   privileges[args->privilege]) == 0)
			found = heap_copytuple(tuple);
	}
	systable_endscan(scan);
	return found;
}

static void
audit_right(const char *act, const RightArgs *args)
{
	audit_write(act, text_to_cstring(args->pattern), NULL,
				psprintf("%s by \"%s\"", privileges[args->privilege], args->role), 0);
}

/* allow(pattern, role, privilege): whether it is new */
Datum
ll_allow(PG_FUNCTION_ARGS)
{
	RightArgs	args = get_args(fcinfo);
	Relation	rel;
	bool		new;

	PreventCommandIfReadOnly("allow()");
	PreventCommandIfParallelMode("allow()");
	(void) get_role_oid(args.role, false);
	rel = own_open(REL_RIGHT, ShareRowExclusiveLock, false);
	new = find_rule(rel, &args) == NULL;
	if (new)
	{
		Datum		values[RIGHT_NATTS] = {0};
		bool		nulls[RIGHT_NATTS] = {0};

		values[RIGHT_PATTERN - 1] = PointerGetDatum(args.pattern);
		values[RIGHT_ROLE - 1] = CStringGetTextDatum(args.role);
		values[RIGHT_PRIVILEGE - 1] = CStringGetTextDatum(privileges[args.privilege]);
		values[RIGHT_ALLOWED_BY - 1] = CStringGetTextDatum(GetUserNameFromId(GetUserId(), false));
		values[RIGHT_ALLOWED_AT - 1] = TimestampTzGetDatum(GetCurrentTimestamp());
		CatalogTupleInsert(rel, heap_form_tuple(RelationGetDescr(rel), values, nulls));
		CacheInvalidateRelcache(rel);
		CommandCounterIncrement();
		audit_right("allow", &args);
	}
	relation_close(rel, NoLock);
	PG_RETURN_BOOL(new);
}

/* disallow(pattern, role, privilege): whether there was such a right */
Datum
ll_disallow(PG_FUNCTION_ARGS)
{
	RightArgs	args = get_args(fcinfo);
	Relation	rel;
	HeapTuple	tuple;

	PreventCommandIfReadOnly("disallow()");
	PreventCommandIfParallelMode("disallow()");
	rel = own_open(REL_RIGHT, ShareRowExclusiveLock, false);
	tuple = find_rule(rel, &args);
	if (tuple)
	{
		CatalogTupleDelete(rel, &tuple->t_self);
		CacheInvalidateRelcache(rel);
		CommandCounterIncrement();
		audit_right("disallow", &args);
	}
	relation_close(rel, NoLock);
	PG_RETURN_BOOL(tuple != NULL);
}

/* Trigger of the table: rows that SQL brings (restore, logical apply). */
Datum
ll_rights_change(PG_FUNCTION_ARGS)
{
	if (!CALLED_AS_TRIGGER(fcinfo))
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg("function lease_lock.rights_change was not called by a trigger")));
	CacheInvalidateRelcache(((TriggerData *) fcinfo->context)->tg_relation);
	return PointerGetDatum(NULL);
}
