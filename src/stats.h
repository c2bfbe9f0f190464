/*
 * stats.h
 *		What is counted, for stats.c, which counts, stats_file.c, which keeps
 *		it over a restart, and stats_sql.c, which shows it.
 */
#ifndef LEASE_LOCK_STATS_H
#define LEASE_LOCK_STATS_H

#include "histogram.h"
#include "shared.h"

/* The same for a database and for a resource. */
typedef struct StatsBody
{
	pg_atomic_uint64 since;		/* TimestampTz: counted since */
	pg_atomic_uint64 counts[N_STATS];
	pg_atomic_uint64 margin_total;	/* of renewals: thousandths of the TTL left */
	pg_atomic_uint64 margin_least;
	pg_atomic_uint64 last_renewal;	/* TimestampTz, 0: none */
	pg_atomic_uint64 last_write;	/* of a guarded write that passed */
	Histogram	wait;			/* of calls of acquire, until granted or given up */
	Histogram	hold;			/* from the grant to the release */
} StatsBody;

typedef struct ResourceStats
{
	int			name_len;
	char		name[MAX_NAME_BYTES];
	StatsBody	body;
} ResourceStats;

/*
 * Resources are found by their hash in sets of a few; a new one takes the place
 * of the least used of its set.  The lock is held shared to count, exclusive
 * to change who is in the set.
 */
#define SET_SIZE	16

typedef struct ResourceSet
{
	LWLock		lock;
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

extern void stats_body_clear(StatsBody *body, TimestampTz now);
extern StatsEntry *stats_entry(void);
extern ResourceTable *stats_resources(StatsEntry *entry);
extern ResourceStats *stats_resource(dsa_pointer stats);
extern StatsEntry *stats_entry_of(Oid database);
extern ResourceStats *stats_take_place(ResourceTable *table, uint64 hash, uint64 use, bool by_use,
									   const char *name, int name_len);
extern dshash_table *stats_table(void);
extern void stats_file_load(void);
extern void stats_file_save(void);
extern void stats_file_remove(void);

#endif							/* LEASE_LOCK_STATS_H */
