/*
 * stats.h
 *		What is counted, for stats.c, which counts, stats_file.c, which keeps
 *		it over a restart, and stats_sql.c, which shows it.
 */
#ifndef LEASE_LOCK_STATS_H
#define LEASE_LOCK_STATS_H

#include "histogram.h"
#include "shared.h"

#pragma GCC visibility push(hidden)

/*
 * How long something took.  Most leases are had at once, so durations below
 * SHORT_USECS are kept as a number and a sum, and the histogram is made when
 * the first longer one comes: a resource takes little memory until then.
 */
#define SHORT_USECS		128

typedef struct Durations
{
	pg_atomic_uint64 count;		/* all of them */
	pg_atomic_uint64 total;		/* microseconds */
	pg_atomic_uint64 largest;
	pg_atomic_uint64 short_count;
	pg_atomic_uint64 short_total;
	pg_atomic_uint64 histogram; /* dsa_pointer; InvalidDsaPointer: not made yet */
} Durations;

/* The same for a database and for a resource: 64-bit counters alone. */
typedef struct StatsBody
{
	pg_atomic_uint64 since;		/* TimestampTz: counted since */
	pg_atomic_uint64 counts[N_STATS];
	pg_atomic_uint64 margin_total;	/* of renewals: thousandths of the TTL left */
	pg_atomic_uint64 margin_least;
	pg_atomic_uint64 last_renewal;	/* TimestampTz, 0: none */
	pg_atomic_uint64 last_write;	/* of a guarded write that passed */
	Durations	wait;			/* of calls of acquire, until granted or given up */
	Durations	hold;			/* from the grant to the release */
} StatsBody;

/* A body with its histograms, to be looked at or written. */
typedef struct StatsCopy
{
	StatsBody	body;
	Histogram	wait;
	Histogram	hold;
} StatsCopy;

typedef struct ResourceStats
{
	StatsBody	body;
	int			name_len;
	int			room;			/* for the name */
	char		name[FLEXIBLE_ARRAY_MEMBER];
} ResourceStats;

/*
 * Resources are found by their hash in sets of a few; a new one takes the place
 * of the least used of its set, and its number of uses, so that whatever is used
 * most stays or comes in (the algorithm is known as Space-Saving).  Of the uses
 * of those who are not in a full set only some let somebody in, so that many
 * names that are used alike neither cost much nor drive each other out.  The
 * lock is held shared to count, exclusive to change who is in the set.
 */
#define SET_SIZE	16
#define LET_IN		8			/* one use in so many */

typedef struct ResourceSet
{
	LWLock		lock;
	pg_atomic_uint32 missed;	/* uses of those who are not in it */
	uint64		hash[SET_SIZE];
	pg_atomic_uint64 use[SET_SIZE];	/* 0: free */
	dsa_pointer stats[SET_SIZE];	/* a ResourceStats, kept for the next one */
} ResourceSet;

typedef struct ResourceTable
{
	int			n_sets;
	int			n_in_set;		/* of SET_SIZE, how many are used */
	ResourceSet sets[FLEXIBLE_ARRAY_MEMBER];
} ResourceTable;

typedef struct StatsEntry
{
	Oid			database;		/* the key */
	dsa_pointer resources;		/* a ResourceTable, or invalid */
	StatsBody	body;
} StatsEntry;

extern void stats_copy(const StatsBody *body, StatsCopy *copy);
extern void stats_restore(StatsBody *body, const StatsCopy *copy);
extern StatsEntry *stats_entry(void);
extern ResourceTable *stats_resources(StatsEntry *entry);
extern ResourceStats *stats_resource(dsa_pointer stats);
extern StatsEntry *stats_entry_of(Oid database);
extern ResourceStats *stats_take_place(ResourceTable *table, uint64 hash, uint64 use, bool by_use,
									   const char *name, int name_len);
extern dshash_table *stats_table(void);
extern void stats_file_load(void);
extern bool stats_file_write(void);
extern void stats_file_take(bool keep);
extern void stats_file_remove(void);

#pragma GCC visibility pop

#endif							/* LEASE_LOCK_STATS_H */
