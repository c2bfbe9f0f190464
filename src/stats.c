/*
 * stats.c
 *		Counters and histograms that survive a rollback: one set of them for
 *		each database, and one for each of its busiest resources.
 *
 * They live in the shared area, from its making on, and count calls when they
 * are done, whatever becomes of their transactions.  Where the area cannot be
 * had nothing is counted, and nothing fails.
 *
 * All counters are atomic.  A database's entry is made once and never goes, so
 * a backend keeps a pointer to it.  A resource's may be given to another
 * resource: stats.h says how that is locked.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/procarray.h"
#include "utils/inval.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "lease_lock.h"
#include "stats.h"

static dsa_area *area = NULL;
static dshash_table *stats = NULL;
static SharedCtl *shared = NULL;
static StatsEntry *my_entry = NULL;
static dsa_pointer my_resources_at = InvalidDsaPointer;
static ResourceTable *my_resources = NULL;

static dshash_parameters
parameters(SharedCtl *ctl)
{
	return compat_dshash_parameters(sizeof(Oid), sizeof(StatsEntry), ctl->tranche);
}

/* Makes the table in a new shared area. */
void
stats_make(dsa_area *a, SharedCtl *ctl)
{
	dshash_parameters params = parameters(ctl);
	dshash_table *t = dshash_create(a, &params, NULL);

	ctl->stats = dshash_get_hash_table_handle(t);
	dshash_detach(t);
	pg_atomic_init_u32(&ctl->n_attached, 0);
}

/*
 * Whoever leaves last keeps what was counted: the server may be stopping.  The
 * file is written without ctl->lock, so that nobody who comes meanwhile waits
 * for it, and counts only if nobody has come.
 */
static void
leave(int code, Datum arg)
{
	bool		last;

	LWLockAcquire(&shared->lock, LW_EXCLUSIVE);
	last = pg_atomic_sub_fetch_u32(&shared->n_attached, 1) == 0;
	LWLockRelease(&shared->lock);
	if (!last)
		return;
	LWLockAcquire(&shared->file_lock, LW_EXCLUSIVE);
	if (pg_atomic_read_u32(&shared->n_attached) == 0 && stats_file_write())
	{
		LWLockAcquire(&shared->lock, LW_EXCLUSIVE);
		stats_file_take(pg_atomic_read_u32(&shared->n_attached) == 0);
		LWLockRelease(&shared->lock);
	}
	LWLockRelease(&shared->file_lock);
}

void
stats_attach(dsa_area *a, SharedCtl *ctl)
{
	dshash_parameters params = parameters(ctl);

	stats = dshash_attach(a, &params, ctl->stats, NULL);
	area = a;
	shared = ctl;
}

/*
 * The last step of attaching, with ctl->lock held: from now on this backend is
 * one that may leave last.  new: the area has just been made, and takes what a
 * clean stop has left.
 */
void
stats_enter(bool new)
{
	if (new)
		stats_file_load();
	if (pg_atomic_fetch_add_u32(&shared->n_attached, 1) == 0)
		stats_file_remove();
	before_shmem_exit(leave, (Datum) 0);
}

dshash_table *
stats_table(void)
{
	return stats;
}

/* Everything but the histogram. */
static void
durations_zero(Durations *d)
{
	pg_atomic_write_u64(&d->count, 0);
	pg_atomic_write_u64(&d->total, 0);
	pg_atomic_write_u64(&d->largest, 0);
	pg_atomic_write_u64(&d->short_count, 0);
	pg_atomic_write_u64(&d->short_total, 0);
}

static void
durations_init(Durations *d)
{
	durations_zero(d);
	pg_atomic_init_u64(&d->histogram, InvalidDsaPointer);
}

static void
body_init(StatsBody *body)
{
	pg_atomic_init_u64(&body->since, (uint64) GetCurrentTimestamp());
	for (int i = 0; i < N_STATS; i++)
		pg_atomic_init_u64(&body->counts[i], 0);
	pg_atomic_init_u64(&body->margin_total, 0);
	pg_atomic_init_u64(&body->margin_least, 1000);
	pg_atomic_init_u64(&body->last_renewal, 0);
	pg_atomic_init_u64(&body->last_write, 0);
	durations_init(&body->wait);
	durations_init(&body->hold);
}

static Histogram *
histogram_of(const Durations *d)
{
	dsa_pointer p = pg_atomic_read_u64(unconstify(pg_atomic_uint64 *, &d->histogram));

	return DsaPointerIsValid(p) ? dsa_get_address(area, p) : NULL;
}

/* Makes a histogram; NULL: no memory. */
static Histogram *
histogram_make(Durations *d)
{
	dsa_pointer p = dsa_allocate_extended(area, sizeof(Histogram), DSA_ALLOC_NO_OOM);
	uint64		none = InvalidDsaPointer;
	Histogram  *h;

	if (!DsaPointerIsValid(p))
		return NULL;
	h = dsa_get_address(area, p);
	for (int i = 0; i < HISTOGRAM_BUCKETS; i++)
		pg_atomic_init_u64(&h->buckets[i], 0);
	/* Somebody else may have been faster. */
	if (!pg_atomic_compare_exchange_u64(&d->histogram, &none, p))
		dsa_free(area, p);
	return histogram_of(d);
}

static void
histogram_free(Durations *d)
{
	dsa_pointer p = pg_atomic_read_u64(&d->histogram);

	if (DsaPointerIsValid(p))
		dsa_free(area, p);
	pg_atomic_write_u64(&d->histogram, InvalidDsaPointer);
}

static void
add_duration(Durations *d, uint64 usecs)
{
	uint64		largest = pg_atomic_read_u64(&d->largest);
	Histogram  *h = NULL;

	if (usecs >= SHORT_USECS)
	{
		h = histogram_of(d);
		if (h == NULL)
			h = histogram_make(d);
	}
	if (h)
		pg_atomic_fetch_add_u64(&h->buckets[histogram_bucket(usecs)], 1);
	else
	{
		pg_atomic_fetch_add_u64(&d->short_count, 1);
		pg_atomic_fetch_add_u64(&d->short_total, usecs);
	}
	pg_atomic_fetch_add_u64(&d->count, 1);
	pg_atomic_fetch_add_u64(&d->total, usecs);
	while (usecs > largest &&
		   !pg_atomic_compare_exchange_u64(&d->largest, &largest, usecs))
		;
}

static void
copy_histogram(const Durations *d, Histogram *copy)
{
	Histogram  *h = histogram_of(d);

	if (h)
		memcpy(copy, h, sizeof(*copy));
	else
		memset(copy, 0, sizeof(*copy));
}

/* A resource's body needs its set's lock. */
void
stats_copy(const StatsBody *body, StatsCopy *copy)
{
	memcpy(&copy->body, body, sizeof(*body));
	copy_histogram(&body->wait, &copy->wait);
	copy_histogram(&body->hold, &copy->hold);
}

static void
restore_histogram(Durations *d, const Histogram *copy)
{
	static const Histogram none;
	Histogram  *h;

	pg_atomic_init_u64(&d->histogram, InvalidDsaPointer);
	if (memcmp(copy, &none, sizeof(none)) != 0 && (h = histogram_make(d)) != NULL)
		memcpy(h, copy, sizeof(*h));
}

/* The reverse, for a body that nobody counts in yet. */
void
stats_restore(StatsBody *body, const StatsCopy *copy)
{
	memcpy(body, &copy->body, sizeof(*body));
	restore_histogram(&body->wait, &copy->wait);
	restore_histogram(&body->hold, &copy->hold);
}

/* How many sets lease_lock.track_resources asks for, and how much of each. */
static int
sets_wanted(void)
{
	return track_resources == 0 ? 0 : Max(track_resources / SET_SIZE, 1);
}

static int
places_wanted(void)
{
	return Min(track_resources, SET_SIZE);
}

/* A table for as many resources as the setting says; invalid for none. */
static dsa_pointer
make_resources(void)
{
	int			n_sets = sets_wanted();
	dsa_pointer p;
	ResourceTable *table;

	if (n_sets == 0)
		return InvalidDsaPointer;
	p = dsa_allocate_extended(area, offsetof(ResourceTable, sets) + n_sets * sizeof(ResourceSet),
							  DSA_ALLOC_NO_OOM | DSA_ALLOC_ZERO);
	if (!DsaPointerIsValid(p))
		return p;
	table = dsa_get_address(area, p);
	table->n_sets = n_sets;
	table->n_in_set = places_wanted();
	for (int i = 0; i < n_sets; i++)
	{
		LWLockInitialize(&table->sets[i].lock, shared->tranche);
		pg_atomic_init_u32(&table->sets[i].missed, 0);
		for (int j = 0; j < SET_SIZE; j++)
		{
			pg_atomic_init_u64(&table->sets[i].use[j], 0);
			table->sets[i].stats[j] = InvalidDsaPointer;
		}
	}
	return p;
}

/* A database's entry, made when there is none. */
StatsEntry *
stats_entry_of(Oid database)
{
	bool		found;
	StatsEntry *entry = dshash_find_or_insert(stats, &database, &found);

	if (!found)
	{
		body_init(&entry->body);
		entry->resources = make_resources();
	}
	dshash_release_lock(stats, entry);
	return entry;
}

/* Empties a place of a set, whose lock is held, exclusive. */
static void
free_place(ResourceSet *set, int place)
{
	ResourceStats *r;

	if (!DsaPointerIsValid(set->stats[place]))
		return;
	r = dsa_get_address(area, set->stats[place]);
	histogram_free(&r->body.wait);
	histogram_free(&r->body.hold);
	dsa_free(area, set->stats[place]);
	set->stats[place] = InvalidDsaPointer;
	set->hash[place] = 0;
	pg_atomic_write_u64(&set->use[place], 0);
}

/* Forgets databases that were dropped: nobody is connected to those. */
static void
forget_dropped(void)
{
	dshash_seq_status status;
	StatsEntry *entry;
	List	   *oids = NIL;
	ListCell   *cell;

	dshash_seq_init(&status, stats, false);
	while ((entry = dshash_seq_next(&status)) != NULL)
		oids = lappend_oid(oids, entry->database);
	dshash_seq_term(&status);
	/* By the catalog as it is now: one that was just made is in use. */
	AcceptInvalidationMessages();
	InvalidateCatalogSnapshot();
	foreach(cell, oids)
	{
		Oid			database = lfirst_oid(cell);

		if (SearchSysCacheExists1(DATABASEOID, ObjectIdGetDatum(database)) ||
			CountDBBackends(database) > 0)
			continue;
		rejections_forget(database);
		entry = dshash_find(stats, &database, true);
		if (entry == NULL)
			continue;
		if (DsaPointerIsValid(entry->resources))
		{
			ResourceTable *table = dsa_get_address(area, entry->resources);

			for (int i = 0; i < table->n_sets * SET_SIZE; i++)
				free_place(&table->sets[i / SET_SIZE], i % SET_SIZE);
			dsa_free(area, entry->resources);
		}
		histogram_free(&entry->body.wait);
		histogram_free(&entry->body.hold);
		dshash_delete_entry(stats, entry);
	}
	list_free(oids);
}

/* This database's entry; NULL without the shared area. */
StatsEntry *
stats_entry(void)
{
	if (my_entry == NULL && shared_attach())
	{
		StatsEntry *found = dshash_find(stats, &MyDatabaseId, false);

		if (found)
			dshash_release_lock(stats, found);
		else
			forget_dropped();
		my_entry = stats_entry_of(MyDatabaseId);
	}
	return my_entry;
}

/* Its resources; NULL when none are tracked. */
ResourceTable *
stats_resources(StatsEntry *entry)
{
	if (entry != my_entry)
		return DsaPointerIsValid(entry->resources) ? dsa_get_address(area, entry->resources) : NULL;
	if (entry->resources != my_resources_at)
	{
		my_resources_at = entry->resources;
		my_resources = DsaPointerIsValid(my_resources_at) ?
			dsa_get_address(area, my_resources_at) : NULL;
	}
	return my_resources;
}

ResourceStats *
stats_resource(dsa_pointer p)
{
	return dsa_get_address(area, p);
}

/*
 * Gives a resource a place in its set, that of the least used one when there
 * is no other, whose uses are added to its own.  With by_use it must have more
 * than that one.  Needs the set's lock, exclusive.  NULL: not now, or no memory.
 */
ResourceStats *
stats_take_place(ResourceTable *table, uint64 hash, uint64 use, bool by_use,
				 const char *name, int name_len)
{
	ResourceSet *set = &table->sets[hash % table->n_sets];
	uint64		least = PG_UINT64_MAX;
	ResourceStats *r = NULL;
	int			place = 0;

	for (int i = 0; i < table->n_in_set; i++)
	{
		uint64		u = pg_atomic_read_u64(&set->use[i]);

		if (u < least)
		{
			least = u;
			place = i;
		}
	}
	if (by_use && least >= use)
		return NULL;
	if (DsaPointerIsValid(set->stats[place]))
	{
		r = dsa_get_address(area, set->stats[place]);
		histogram_free(&r->body.wait);
		histogram_free(&r->body.hold);
		if (r->room < name_len)
		{
			free_place(set, place);
			r = NULL;
		}
	}
	if (r == NULL)
	{
		int			room = Max(name_len, 32);
		dsa_pointer p = dsa_allocate_extended(area, offsetof(ResourceStats, name) + room,
											  DSA_ALLOC_NO_OOM);

		if (!DsaPointerIsValid(p))
			return NULL;
		set->stats[place] = p;
		r = dsa_get_address(area, p);
		r->room = room;
	}
	r->name_len = name_len;
	memcpy(r->name, name, name_len);
	body_init(&r->body);
	set->hash[place] = hash;
	pg_atomic_write_u64(&set->use[place], by_use ? use : least + use);
	return r;
}

static void
add_event(StatsBody *body, const StatsEvent *event)
{
	for (uint32 left = event->counts; left != 0; left &= left - 1)
		pg_atomic_fetch_add_u64(&body->counts[pg_rightmost_one_pos32(left)], 1);
	if (event->timed & STATS_WAIT)
		add_duration(&body->wait, event->wait);
	if (event->timed & STATS_HOLD)
		add_duration(&body->hold, event->hold);
	if (event->timed & STATS_MARGIN)
	{
		uint64		least = pg_atomic_read_u64(&body->margin_least);

		pg_atomic_fetch_add_u64(&body->margin_total, event->margin);
		while (event->margin < least &&
			   !pg_atomic_compare_exchange_u64(&body->margin_least, &least, event->margin))
			;
		pg_atomic_write_u64(&body->last_renewal, (uint64) event->now);
	}
	if (event->counts & (1 << STAT_GUARDED_WRITES))
		pg_atomic_write_u64(&body->last_write, (uint64) event->now);
}

/* The place of a resource in its set; -1 when it has none. */
static int
find_place(const ResourceTable *table, const ResourceSet *set, uint64 hash)
{
	for (int i = 0; i < table->n_in_set; i++)
		if (set->hash[i] == hash && DsaPointerIsValid(set->stats[i]))
			return i;
	return -1;
}

/* Counts an event, for a resource as well unless that is NULL. */
void
stats_record(const LeaseName *resource, const StatsEvent *event)
{
	StatsEntry *entry = stats_entry();
	ResourceTable *table;
	ResourceSet *set;
	ResourceStats *r;
	int			place;

	if (entry == NULL)
		return;
	add_event(&entry->body, event);
	if (resource == NULL || track_resources == 0 || (table = stats_resources(entry)) == NULL)
		return;
	set = &table->sets[resource->hash % table->n_sets];
	LWLockAcquire(&set->lock, LW_SHARED);
	place = find_place(table, set, resource->hash);
	if (place >= 0)
	{
		pg_atomic_fetch_add_u64(&set->use[place], 1);
		add_event(&stats_resource(set->stats[place])->body, event);
		LWLockRelease(&set->lock);
		return;
	}
	LWLockRelease(&set->lock);

	/* A set is filled from its first place on. */
	if (pg_atomic_read_u64(&set->use[table->n_in_set - 1]) != 0 &&
		pg_atomic_fetch_add_u32(&set->missed, 1) % LET_IN != 0)
		return;
	LWLockAcquire(&set->lock, LW_EXCLUSIVE);
	place = find_place(table, set, resource->hash);
	r = place >= 0 ? stats_resource(set->stats[place]) :
		stats_take_place(table, resource->hash, 1, false, resource->data, resource->len);
	if (r)
		add_event(&r->body, event);
	LWLockRelease(&set->lock);
}

/* Counts what has no time; resource can be NULL. */
void
stats_count(Stat which, const LeaseName *resource)
{
	StatsEvent	event = {.counts = 1 << which};

	stats_record(resource, &event);
}

static void
durations_clear(Durations *d)
{
	Histogram  *h = histogram_of(d);

	/* Others may be counting in the histogram, so it stays. */
	durations_zero(d);
	for (int i = 0; h && i < HISTOGRAM_BUCKETS; i++)
		pg_atomic_write_u64(&h->buckets[i], 0);
}

/*
 * Begins anew for this database, with as many resources as the setting says
 * now.  What others count meanwhile may be lost.
 */
void
stats_clear(void)
{
	StatsEntry *entry = stats_entry();
	ResourceTable *table;
	StatsBody	none;

	if (entry == NULL)
		return;
	durations_clear(&entry->body.wait);
	durations_clear(&entry->body.hold);
	body_init(&none);
	memcpy(&entry->body, &none, offsetof(StatsBody, wait));
	table = stats_resources(entry);
	/* An old table is left to those who are counting in it. */
	if (table == NULL || table->n_sets != sets_wanted() || table->n_in_set != places_wanted())
		entry->resources = make_resources();
	for (int i = 0; table && i < table->n_sets; i++)
	{
		LWLockAcquire(&table->sets[i].lock, LW_EXCLUSIVE);
		for (int j = 0; j < SET_SIZE; j++)
			free_place(&table->sets[i], j);
		LWLockRelease(&table->sets[i].lock);
	}
}
