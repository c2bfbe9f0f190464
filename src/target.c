/*
 * target.c
 *		Which relations can be guarded, and by whom.
 *
 * A guard is only as good as what it is put on: a relation that does not hold
 * the rows itself is refused, with the reason.
 */
#include "postgres.h"

#include "access/relation.h"
#include "catalog/catalog.h"
#include "catalog/namespace.h"
#include "catalog/pg_class.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"

#include "compat.h"
#include "lease_lock.h"

static const char *
cannot_guard(Relation rel)
{
	if (IsSystemRelation(rel))
		return "It is a system table.";
	if (RelationGetNamespace(rel) == get_namespace_oid("lease_lock", true))
		return "It belongs to lease_lock itself.";
	switch (rel->rd_rel->relkind)
	{
		case RELKIND_RELATION:
		case RELKIND_PARTITIONED_TABLE:
			return NULL;
		case RELKIND_VIEW:
			return "It is a view; guard the tables under it.";
		case RELKIND_MATVIEW:
			return "It is a materialized view, which only REFRESH writes.";
		case RELKIND_FOREIGN_TABLE:
			return "It is a foreign table; guard the table on the server that has the data.";
		default:
			return "It is not a table.";
	}
}

/*
 * Opens a table that its owner is about to guard, or to write past its guard.
 * Raises 42P01, 42809 and 42501.
 */
Relation
guard_target(Oid relid, LOCKMODE mode)
{
	Relation	rel = try_relation_open(relid, mode);
	const char *why;

	if (rel == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_TABLE),
				 errmsg("relation with OID %u does not exist", relid)));
	why = cannot_guard(rel);
	if (why)
		ereport(ERROR,
				(errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 errmsg("cannot guard relation \"%s\"", RelationGetRelationName(rel)),
				 errdetail_internal("%s", why),
				 errhint("Guard an ordinary or a partitioned table.")));
	if (!compat_owns_relation(relid))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("must be owner of table %s", RelationGetRelationName(rel)),
				 errhint("Only a table's owner can guard it, or write past its guard.")));
	return rel;
}

/* Its name for SQL, qualified and quoted. */
char *
guard_target_name(Oid relid)
{
	return quote_qualified_identifier(get_namespace_name(get_rel_namespace(relid)),
									  get_rel_name(relid));
}
