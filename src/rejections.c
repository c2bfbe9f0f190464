/*
 * rejections.c
 *		What guards refused, or would have refused, kept in the shared area.
 *
 * A refused write aborts, so no table can record it.  Each database has a ring
 * of its last refusals, in which repeats are folded, and a counter for each
 * table, reason and action.  Where the shared area cannot be had, nothing is
 * recorded, and nothing fails because of that.
 *
 * Both are changed under locks of their own, never more than one at a time.
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "lease_lock.h"
#include "shared.h"

PG_FUNCTION_INFO_V1(ll_rejections);
PG_FUNCTION_INFO_V1(ll_rejection_counts);

#define RING_SIZE	256			/* refusals kept for a database */
#define RING_ASSERTS 32			/* of them for assert_held */
#define MAX_COUNTERS 4096		/* tables x reasons x actions, of all databases */

typedef struct Rejection
{
	uint64		hash;			/* of all that makes two of them the same */
	TimestampTz at;				/* of the last; 0: a free entry */
	TimestampTz first_at;
	int64		count;
	int64		token;
	int64		newest;
	Oid			relid;			/* InvalidOid: assert_held */
	Oid			role;
	int			pid;
	uint8		reason;
	uint8		action;
	uint8		statement;
	int			resource_len;
	char		resource[MAX_NAME_BYTES];
	char		application_name[NAMEDATALEN];
} Rejection;

typedef struct Ring
{
	LWLock		lock;
	Rejection	entries[RING_SIZE];
} Ring;

typedef struct RingEntry
{
	Oid			database;		/* the key */
	dsa_pointer ring;
} RingEntry;

typedef struct CounterKey
{
	Oid			database;
	Oid			relid;
	int32		reason;
	int32		action;
} CounterKey;

typedef struct Counter
{
	CounterKey	key;
	int64		count;
	TimestampTz first_at;
	TimestampTz last_at;
} Counter;

static const char *const reasons[] = {
	[REASON_STALE] = "stale",
	[REASON_NO_TOKEN] = "no token",
	[REASON_NOT_HELD] = "not held",
	[REASON_UNKNOWN] = "unknown token",
	[REASON_NO_NAME] = "no name",
	[REASON_BYPASS] = "bypass",
};

static const char *const actions[] = {
	[ACTION_ENFORCE] = "enforce",
	[ACTION_WARN] = "warn",
	[ACTION_BYPASS] = "bypass",
};

static const char *const statements[] = {
	[REJECTED_INSERT] = "insert",
	[REJECTED_UPDATE] = "update",
	[REJECTED_DELETE] = "delete",
	[REJECTED_TRUNCATE] = "truncate",
	[REJECTED_ASSERT] = "assert_held",
};

static dsa_area *area = NULL;
static int	tranche;
static dshash_table *rings = NULL;
static dshash_table *counters = NULL;
static pg_atomic_uint32 *n_counters = NULL;
static Ring *my_ring = NULL;	/* this database's, once it was looked up */

static dshash_parameters
ring_parameters(SharedCtl *ctl)
{
	return compat_dshash_parameters(sizeof(Oid), sizeof(RingEntry), ctl->tranche);
}

static dshash_parameters
counter_parameters(SharedCtl *ctl)
{
	return compat_dshash_parameters(sizeof(CounterKey), sizeof(Counter), ctl->tranche);
}

/* Makes the tables in a new shared area. */
void
rejections_make(dsa_area *a, SharedCtl *ctl)
{
	dshash_parameters params = ring_parameters(ctl);
	dshash_table *t = dshash_create(a, &params, NULL);

	ctl->rings = dshash_get_hash_table_handle(t);
	dshash_detach(t);
	params = counter_parameters(ctl);
	t = dshash_create(a, &params, NULL);
	ctl->rejection_counts = dshash_get_hash_table_handle(t);
	dshash_detach(t);
	pg_atomic_init_u32(&ctl->n_rejection_counts, 0);
}

void
rejections_attach(dsa_area *a, SharedCtl *ctl)
{
	dshash_parameters params = ring_parameters(ctl);

	rings = dshash_attach(a, &params, ctl->rings, NULL);
	params = counter_parameters(ctl);
	counters = dshash_attach(a, &params, ctl->rejection_counts, NULL);
	n_counters = &ctl->n_rejection_counts;
	tranche = ctl->tranche;
	area = a;
}

/* This database's ring; NULL when there is none, or with make, no memory. */
static Ring *
find_ring(bool make)
{
	RingEntry  *entry;
	bool		found;

	if (my_ring != NULL)
		return my_ring;
	if (!make)
	{
		entry = dshash_find(rings, &MyDatabaseId, false);
		if (entry == NULL)
			return NULL;
	}
	else
	{
		entry = dshash_find_or_insert(rings, &MyDatabaseId, &found);
		if (!found)
		{
			entry->ring = dsa_allocate_extended(area, sizeof(Ring),
												DSA_ALLOC_NO_OOM | DSA_ALLOC_ZERO);
			if (!DsaPointerIsValid(entry->ring))
			{
				dshash_delete_entry(rings, entry);
				return NULL;
			}
			LWLockInitialize(&((Ring *) dsa_get_address(area, entry->ring))->lock, tranche);
		}
	}
	my_ring = dsa_get_address(area, entry->ring);
	dshash_release_lock(rings, entry);
	return my_ring;
}

static Reason
reason_of(int sqlstate)
{
	switch (sqlstate)
	{
		case ERRCODE_STALE_TOKEN:
			return REASON_STALE;
		case ERRCODE_NO_TOKEN_PRESENTED:
			return REASON_NO_TOKEN;
		case ERRCODE_LEASE_NOT_HELD:
			return REASON_NOT_HELD;
		case ERRCODE_UNKNOWN_TOKEN:
			return REASON_UNKNOWN;
		default:
			return REASON_NO_NAME;
	}
}

/* Counts a refusal of a table, or a write past its guard. */
void
rejection_count(Oid relid, Reason reason, Action action, TimestampTz now)
{
	CounterKey	key = {MyDatabaseId, relid, reason, action};
	Counter    *counter;
	bool		found;

	if (!shared_attach())
		return;
	/* Tables come and go: beyond a limit the rest is counted together. */
	if (pg_atomic_read_u32(n_counters) >= MAX_COUNTERS)
	{
		counter = dshash_find(counters, &key, false);
		if (counter)
			dshash_release_lock(counters, counter);
		else
			key.relid = InvalidOid;
	}
	counter = dshash_find_or_insert(counters, &key, &found);
	if (!found)
	{
		counter->count = 0;
		counter->first_at = now;
		pg_atomic_fetch_add_u32(n_counters, 1);
	}
	counter->count++;
	counter->last_at = now;
	dshash_release_lock(counters, counter);
}

/*
 * Records a refusal, before it is raised or warned of.  relid is InvalidOid
 * for assert_held.
 */
void
rejection_record(Oid relid, Statement statement, Action action, const Refusal *why)
{
	TimestampTz now = GetCurrentTimestamp();
	Reason		reason = reason_of(why->sqlstate);
	Oid			role = GetUserId();
	uint64		hash;
	Ring	   *ring;
	Rejection  *entry = NULL;
	Rejection  *oldest_assert = NULL;
	int			asserts = 0;

	stats_count(action == ACTION_WARN ? STAT_WARNED : STAT_STALE + reason,
				why->resource.len > 0 ? &why->resource : NULL);
	rejection_count(relid, reason, action, now);
	if (!shared_attach() || (ring = find_ring(true)) == NULL)
		return;
	hash = hash_combine64(why->resource.hash, (uint64) why->token);
	hash = hash_combine64(hash, ((uint64) relid << 32) | role);
	hash = hash_combine64(hash, (reason << 16) | (action << 8) | statement);

	LWLockAcquire(&ring->lock, LW_EXCLUSIVE);
	for (int i = 0; i < RING_SIZE; i++)
	{
		Rejection  *r = &ring->entries[i];

		if (r->hash == hash && r->at != 0)
		{
			entry = r;
			break;
		}
		if (entry == NULL || r->at < entry->at)
			entry = r;
		if (r->at != 0 && r->statement == REJECTED_ASSERT)
		{
			asserts++;
			if (oldest_assert == NULL || r->at < oldest_assert->at)
				oldest_assert = r;
		}
	}
	/* Anybody can call assert_held, and must not push the others out. */
	if (statement == REJECTED_ASSERT && asserts >= RING_ASSERTS && entry->hash != hash)
		entry = oldest_assert;
	if (entry->hash != hash || entry->at == 0)
	{
		entry->hash = hash;
		entry->first_at = now;
		entry->count = 0;
		entry->relid = relid;
		entry->role = role;
		entry->token = why->token;
		entry->reason = reason;
		entry->action = action;
		entry->statement = statement;
		entry->resource_len = why->resource.len;
		memcpy(entry->resource, why->resource.data, why->resource.len);
	}
	entry->at = now;
	entry->count++;
	entry->newest = why->newest;
	entry->pid = MyProcPid;
	strlcpy(entry->application_name, application_name ? application_name : "", NAMEDATALEN);
	LWLockRelease(&ring->lock);
}

/* rejections_data() */
Datum
ll_rejections(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	Ring	   *ring;
	Rejection  *copy;

	InitMaterializedSRF(fcinfo, 0);
	if (!shared_attach() || (ring = find_ring(false)) == NULL)
		return (Datum) 0;
	copy = palloc(sizeof(ring->entries));
	LWLockAcquire(&ring->lock, LW_SHARED);
	memcpy(copy, ring->entries, sizeof(ring->entries));
	LWLockRelease(&ring->lock);
	for (int i = 0; i < RING_SIZE; i++)
	{
		const Rejection *r = &copy[i];
		Datum		values[13] = {0};
		bool		nulls[13] = {0};
		char	   *role;

		if (r->at == 0)
			continue;
		role = GetUserNameFromId(r->role, true);
		values[0] = TimestampTzGetDatum(r->at);
		values[1] = TimestampTzGetDatum(r->first_at);
		values[2] = Int64GetDatum(r->count);
		values[3] = ObjectIdGetDatum(r->relid);
		nulls[3] = !OidIsValid(r->relid);
		values[4] = CStringGetTextDatum(statements[r->statement]);
		values[5] = PointerGetDatum(cstring_to_text_with_len(r->resource, r->resource_len));
		nulls[5] = r->resource_len == 0;
		values[6] = Int64GetDatum(r->token);
		nulls[6] = r->token == 0 && r->reason != REASON_UNKNOWN;
		values[7] = Int64GetDatum(r->newest);
		nulls[7] = r->newest == 0;
		values[8] = CStringGetTextDatum(reasons[r->reason]);
		values[9] = CStringGetTextDatum(actions[r->action]);
		if (role)
			values[10] = CStringGetTextDatum(role);
		else
			nulls[10] = true;
		values[11] = CStringGetTextDatum(r->application_name);
		values[12] = Int32GetDatum(r->pid);
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	}
	return (Datum) 0;
}

/* rejection_counts_data() */
Datum
ll_rejection_counts(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	dshash_seq_status status;
	Counter    *counter;

	InitMaterializedSRF(fcinfo, 0);
	if (!shared_attach())
		return (Datum) 0;
	dshash_seq_init(&status, counters, false);
	while ((counter = dshash_seq_next(&status)) != NULL)
	{
		Datum		values[6] = {0};
		bool		nulls[6] = {0};

		if (counter->key.database != MyDatabaseId)
			continue;
		values[0] = ObjectIdGetDatum(counter->key.relid);
		nulls[0] = !OidIsValid(counter->key.relid);
		values[1] = CStringGetTextDatum(reasons[counter->key.reason]);
		values[2] = CStringGetTextDatum(actions[counter->key.action]);
		values[3] = Int64GetDatum(counter->count);
		values[4] = TimestampTzGetDatum(counter->first_at);
		values[5] = TimestampTzGetDatum(counter->last_at);
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	}
	dshash_seq_term(&status);
	return (Datum) 0;
}

static void
forget_counters(Oid database)
{
	dshash_seq_status status;
	Counter    *counter;

	dshash_seq_init(&status, counters, true);
	while ((counter = dshash_seq_next(&status)) != NULL)
		if (counter->key.database == database)
		{
			dshash_delete_current(&status);
			pg_atomic_fetch_sub_u32(n_counters, 1);
		}
	dshash_seq_term(&status);
}

/* Forgets what was recorded for this database. */
void
rejections_clear(void)
{
	Ring	   *ring;

	if (!shared_attach())
		return;
	ring = find_ring(false);
	if (ring)
	{
		LWLockAcquire(&ring->lock, LW_EXCLUSIVE);
		memset(ring->entries, 0, sizeof(ring->entries));
		LWLockRelease(&ring->lock);
	}
	forget_counters(MyDatabaseId);
}

/* Forgets a database that was dropped: nobody is connected to it. */
void
rejections_forget(Oid database)
{
	RingEntry  *entry = dshash_find(rings, &database, true);

	if (entry)
	{
		dsa_free(area, entry->ring);
		dshash_delete_entry(rings, entry);
	}
	forget_counters(database);
}
