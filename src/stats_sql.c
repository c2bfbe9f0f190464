/*
 * stats_sql.c
 *		The functions behind the views of statistics, stats_reset(), and
 *		suggest_ttl().
 *
 * They read counters while others count: each is right, their sums may be of
 * different moments.
 */
#include "postgres.h"

#include <math.h>

#include "access/htup_details.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "lease_lock.h"
#include "stats.h"

PG_FUNCTION_INFO_V1(ll_stats);
PG_FUNCTION_INFO_V1(ll_resource_stats);
PG_FUNCTION_INFO_V1(ll_histograms);
PG_FUNCTION_INFO_V1(ll_stats_reset);
PG_FUNCTION_INFO_V1(ll_suggest_ttl);

/* suggest_ttl() says nothing of fewer holds. */
#define LEAST_HOLDS	30

/* Columns of a body: since, the counters, four of renewals, six of waits and of holds. */
#define BODY_NATTS	(1 + N_STATS + 4 + 6 + 6)

static uint64
get(const pg_atomic_uint64 *counter)
{
	return pg_atomic_read_u64(unconstify(pg_atomic_uint64 *, counter));
}

/*
 * A quantile in microseconds: the middle of its bucket, and of the short ones
 * their mean.  Only for a count above 0.
 */
static int64
quantile_of(const Durations *d, const Histogram *h, double quantile)
{
	uint64		n_short = get(&d->short_count);
	uint64		n = n_short;
	uint64		largest = get(&d->largest);
	double		rank;
	double		before;

	for (int i = 0; i < HISTOGRAM_BUCKETS; i++)
		n += get(&h->buckets[i]);
	rank = Max(ceil(quantile * n), 1.0);
	before = n_short;
	if (before >= rank)
		return get(&d->short_total) / n_short;
	for (int i = 0; i < HISTOGRAM_BUCKETS - 1; i++)
	{
		before += get(&h->buckets[i]);
		if (before >= rank)
		{
			uint64		low = histogram_floor(i);

			return Min(low + (histogram_floor(i + 1) - low - 1) / 2, largest);
		}
	}
	return largest;
}

static void
put_durations(const Durations *d, const Histogram *h, Datum *values, bool *nulls)
{
	static const double quantiles[] = {0.5, 0.95, 0.99};
	uint64		n = get(&d->count);

	values[0] = Int64GetDatum(n);
	values[1] = IntervalPGetDatum(usecs_interval(get(&d->total)));
	for (int i = 0; i < lengthof(quantiles); i++)
	{
		nulls[2 + i] = n == 0;
		if (n > 0)
			values[2 + i] = IntervalPGetDatum(usecs_interval(quantile_of(d, h, quantiles[i])));
	}
	nulls[5] = n == 0;
	values[5] = IntervalPGetDatum(usecs_interval(get(&d->largest)));
}

static void
put_time(const pg_atomic_uint64 *at, Datum *value, bool *isnull)
{
	*value = TimestampTzGetDatum((TimestampTz) get(at));
	*isnull = get(at) == 0;
}

static void
put_copy(const StatsCopy *copy, Datum *values, bool *nulls)
{
	const StatsBody *body = &copy->body;
	uint64		renewals = get(&body->counts[STAT_RENEWALS]);
	int			n = 0;

	put_time(&body->since, &values[n], &nulls[n]);
	n++;
	for (int i = 0; i < N_STATS; i++)
		values[n++] = Int64GetDatum(get(&body->counts[i]));
	nulls[n] = nulls[n + 1] = renewals == 0;
	values[n++] = Float8GetDatum(renewals ? get(&body->margin_total) / 1000.0 / renewals : 0);
	values[n++] = Float8GetDatum(get(&body->margin_least) / 1000.0);
	put_time(&body->last_renewal, &values[n], &nulls[n]);
	n++;
	put_time(&body->last_write, &values[n], &nulls[n]);
	n++;
	put_durations(&body->wait, &copy->wait, &values[n], &nulls[n]);
	n += 6;
	put_durations(&body->hold, &copy->hold, &values[n], &nulls[n]);
	Assert(n + 6 == BODY_NATTS);
}

/* stats_data(): a row, whose counters are NULL without the shared area */
Datum
ll_stats(PG_FUNCTION_ARGS)
{
	StatsEntry *entry = stats_entry();
	TupleDesc	desc;
	Datum		values[BODY_NATTS] = {0};
	bool		nulls[BODY_NATTS] = {0};

	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	if (entry)
	{
		StatsCopy  *copy = palloc(sizeof(StatsCopy));

		stats_copy(&entry->body, copy);
		put_copy(copy, values, nulls);
	}
	else
		memset(nulls, true, sizeof(nulls));
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc), values, nulls)));
}

/* resource_stats_data() */
Datum
ll_resource_stats(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	StatsEntry *entry;
	ResourceTable *table;
	StatsCopy  *copies = palloc(SET_SIZE * sizeof(StatsCopy));
	char	   *names = palloc(SET_SIZE * MAX_NAME_BYTES);
	int			lens[SET_SIZE];

	InitMaterializedSRF(fcinfo, 0);
	entry = stats_entry();
	table = entry ? stats_resources(entry) : NULL;
	for (int i = 0; table && i < table->n_sets; i++)
	{
		ResourceSet *set = &table->sets[i];
		int			n = 0;

		CHECK_FOR_INTERRUPTS();
		LWLockAcquire(&set->lock, LW_SHARED);
		for (int j = 0; j < table->n_in_set; j++)
			if (pg_atomic_read_u64(&set->use[j]) != 0)
			{
				ResourceStats *r = stats_resource(set->stats[j]);

				stats_copy(&r->body, &copies[n]);
				memcpy(names + n * MAX_NAME_BYTES, r->name, r->name_len);
				lens[n++] = r->name_len;
			}
		LWLockRelease(&set->lock);
		for (int j = 0; j < n; j++)
		{
			Datum		values[1 + BODY_NATTS] = {0};
			bool		nulls[1 + BODY_NATTS] = {0};

			values[0] = PointerGetDatum(cstring_to_text_with_len(names + j * MAX_NAME_BYTES, lens[j]));
			put_copy(&copies[j], values + 1, nulls + 1);
			tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
		}
	}
	return (Datum) 0;
}

/*
 * histograms_data(): for waits and for holds, how many were at most so long;
 * up to powers of two, that is where buckets end
 */
Datum
ll_histograms(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	StatsEntry *entry;

	StatsCopy  *copy = palloc(sizeof(StatsCopy));

	InitMaterializedSRF(fcinfo, 0);
	entry = stats_entry();
	if (entry)
		stats_copy(&entry->body, copy);
	for (int k = 0; entry && k < 2; k++)
	{
		const Histogram *h = k == 0 ? &copy->wait : &copy->hold;
		uint64		n = get(k == 0 ? &copy->body.wait.short_count : &copy->body.hold.short_count);

		for (int i = 0; i < HISTOGRAM_BUCKETS; i++)
		{
			Datum		values[3];
			bool		nulls[3] = {0};

			n += get(&h->buckets[i]);
			/* From about a millisecond on, up to a day and a half. */
			if (i % 4 != 3 || i < 35 || i > 143)
				continue;
			values[0] = CStringGetTextDatum(k == 0 ? "wait" : "hold");
			values[1] = IntervalPGetDatum(usecs_interval(histogram_floor(i + 1) - 1));
			values[2] = Int64GetDatum(n);
			tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
		}
	}
	return (Datum) 0;
}

/* stats_reset() */
Datum
ll_stats_reset(PG_FUNCTION_ARGS)
{
	stats_clear();
	rejections_clear();
	PG_RETURN_VOID();
}

/*
 * suggest_ttl(resource, quantile, factor): the quantile of the holds measured,
 * times factor; NULL for fewer than LEAST_HOLDS.
 */
Datum
ll_suggest_ttl(PG_FUNCTION_ARGS)
{
	LeaseName	resource;
	double		quantile;
	double		factor;
	StatsEntry *entry;
	ResourceTable *table;
	ResourceSet *set;
	StatsCopy  *copy = palloc(sizeof(StatsCopy));
	bool		found = false;
	int64		ttl = 0;

	if (PG_ARGISNULL(0))
		argument_is_null("resource");
	resource = name_arg(PG_GETARG_TEXT_PP(0), "resource");
	if (PG_ARGISNULL(1) || PG_ARGISNULL(2))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("%s must not be null", PG_ARGISNULL(1) ? "quantile" : "factor"),
				 errhint("Pass a value, or leave the argument out for its default.")));
	quantile = PG_GETARG_FLOAT8(1);
	factor = PG_GETARG_FLOAT8(2);
	if (!(quantile > 0 && quantile <= 1))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("quantile must be above 0 and at most 1"),
				 errhint("0.999 covers all but one of a thousand.")));
	if (!(factor >= 1 && factor <= 1000))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("factor must be between 1 and 1000"),
				 errhint("2 leaves as much again for what was not measured.")));

	entry = stats_entry();
	table = entry ? stats_resources(entry) : NULL;
	if (table == NULL)
		PG_RETURN_NULL();
	set = &table->sets[resource.hash % table->n_sets];
	LWLockAcquire(&set->lock, LW_SHARED);
	for (int i = 0; i < table->n_in_set; i++)
		if (set->hash[i] == resource.hash && pg_atomic_read_u64(&set->use[i]) != 0)
		{
			stats_copy(&stats_resource(set->stats[i])->body, copy);
			found = true;
		}
	LWLockRelease(&set->lock);
	if (found && get(&copy->body.hold.count) >= LEAST_HOLDS)
		ttl = (int64) (quantile_of(&copy->body.hold, &copy->hold, quantile) * factor);
	if (ttl == 0)
		PG_RETURN_NULL();
	/* Not less than acquire takes. */
	PG_RETURN_INTERVAL_P(usecs_interval(Max(ttl, 1000)));
}
