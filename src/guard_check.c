/*
 * guard_check.c
 *		assert_guarded(), and what the view guards needs of C.
 *
 * The view reads the catalogs and nothing of ours, so it is right after dump,
 * restore, rename and table swap; this file adds no knowledge of its own.
 */
#include "postgres.h"

#include "access/relation.h"
#include "access/xact.h"
#include "catalog/pg_type_d.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "mb/pg_wchar.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "compat.h"
#include "lease_lock.h"

PG_FUNCTION_INFO_V1(ll_trigger_args);
PG_FUNCTION_INFO_V1(ll_assert_guarded);

/* trigger_args(pg_trigger.tgargs): the arguments, which are kept with a zero byte behind each */
Datum
ll_trigger_args(PG_FUNCTION_ARGS)
{
	bytea	   *args = PG_GETARG_BYTEA_PP(0);
	const char *data = VARDATA_ANY(args);
	const char *end = data + VARSIZE_ANY_EXHDR(args);
	ArrayBuildState *state = initArrayResult(TEXTOID, CurrentMemoryContext, false);

	while (data < end)
	{
		int			len = strnlen(data, end - data);

		/* Anybody may call it. */
		(void) pg_verifymbstr(data, len, false);
		state = accumArrayResult(state, PointerGetDatum(cstring_to_text_with_len(data, len)),
								 false, TEXTOID, CurrentMemoryContext);
		data += len + 1;
	}
	PG_RETURN_DATUM(makeArrayResult(state, CurrentMemoryContext));
}

/*
 * assert_guarded(target): true, or 55000 with all that the view guards says is
 * wrong with the table and with what is under it.  Who could switch the guard
 * off is for the view alone: a deploy script cannot change that.
 */
Datum
ll_assert_guarded(PG_FUNCTION_ARGS)
{
	Oid			target;
	Oid			types[1] = {OIDOID};
	Datum		values[1];
	Relation	rel;
	char	   *problems;
	char	   *name;

	if (PG_ARGISNULL(0))
		argument_is_null("target");
	target = PG_GETARG_OID(0);
	rel = try_relation_open(target, AccessShareLock);
	if (rel == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_TABLE),
				 errmsg("relation with OID %u does not exist", target)));
	name = guard_target_name(target);
	relation_close(rel, NoLock);

	values[0] = ObjectIdGetDatum(target);
	/* As things are now, at every isolation level, and with what this transaction did. */
	CommandCounterIncrement();
	PushActiveSnapshot(GetLatestSnapshot());
	SPI_connect();
	if (SPI_execute_with_args("WITH RECURSIVE member(relid) AS ("
							  " SELECT $1"
							  " UNION SELECT i.inhrelid FROM member AS m"
							  " JOIN pg_catalog.pg_inherits AS i ON i.inhparent OPERATOR(pg_catalog.=) m.relid)"
							  " SELECT CASE WHEN pg_catalog.bool_or(m.relid OPERATOR(pg_catalog.=) $1 AND g.trigger IS NOT NULL)"
							  " THEN pg_catalog.string_agg(m.relid::pg_catalog.regclass::pg_catalog.text OPERATOR(pg_catalog.||) ': '::pg_catalog.text"
							  " OPERATOR(pg_catalog.||) g.problem, '; ' ORDER BY m.relid) ELSE 'It has no guard.' END"
							  " FROM member AS m LEFT JOIN lease_lock.guard_state AS g"
							  " ON g.relation::pg_catalog.oid OPERATOR(pg_catalog.=) m.relid",
							  1, types, values, NULL, true, 0) != SPI_OK_SELECT ||
		SPI_processed != 1)
		elog(ERROR, "could not read lease_lock.guard_state");
	problems = SPI_getvalue(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1);
	if (problems)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("table %s is not safely guarded", name),
				 errdetail_internal("%s", problems),
				 errhint("Call lease_lock.guard or lease_lock.guard_column; the view lease_lock.guards shows all guards.")));
	SPI_finish();
	PopActiveSnapshot();
	PG_RETURN_BOOL(true);
}
