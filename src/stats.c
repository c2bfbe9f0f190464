/*
 * stats.c
 *		Counters that survive a rollback, for each database.
 *
 * They live in the shared area, from its making on.  Where the area cannot be
 * had nothing is counted, and nothing fails.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"

#include "compat.h"
#include "lease_lock.h"
#include "shared.h"

PG_FUNCTION_INFO_V1(ll_stats);

typedef struct StatsEntry
{
	Oid			database;		/* the key */
	int64		counts[N_STATS];	/* changed under the entry's lock */
} StatsEntry;

static dshash_table *stats = NULL;

static dshash_parameters
parameters(SharedCtl *ctl)
{
	return compat_dshash_parameters(sizeof(Oid), sizeof(StatsEntry), ctl->tranche);
}

/* Makes the table in a new shared area. */
void
stats_make(dsa_area *area, SharedCtl *ctl)
{
	dshash_parameters params = parameters(ctl);
	dshash_table *t = dshash_create(area, &params, NULL);

	ctl->stats = dshash_get_hash_table_handle(t);
	dshash_detach(t);
}

void
stats_attach(dsa_area *area, SharedCtl *ctl)
{
	dshash_parameters params = parameters(ctl);

	stats = dshash_attach(area, &params, ctl->stats, NULL);
}

/* Counts an event of this database. */
void
stats_count(Stat which)
{
	StatsEntry *entry;
	bool		found;

	if (!shared_attach())
		return;
	entry = dshash_find_or_insert(stats, &MyDatabaseId, &found);
	if (!found)
		memset(entry->counts, 0, sizeof(entry->counts));
	entry->counts[which]++;
	dshash_release_lock(stats, entry);
}

/* stats_data() */
Datum
ll_stats(PG_FUNCTION_ARGS)
{
	TupleDesc	desc;
	Datum		values[N_STATS];
	bool		nulls[N_STATS] = {0};
	int64		counts[N_STATS] = {0};
	StatsEntry *entry;

	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	entry = shared_attach() ? dshash_find(stats, &MyDatabaseId, false) : NULL;
	if (entry)
	{
		memcpy(counts, entry->counts, sizeof(counts));
		dshash_release_lock(stats, entry);
	}
	for (int i = 0; i < N_STATS; i++)
		values[i] = Int64GetDatum(counts[i]);
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc), values, nulls)));
}
