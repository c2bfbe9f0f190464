/*
 * histogram.h
 *		Histograms of durations, in shared memory, counted without a lock.
 *
 * Buckets are exact below 8 microseconds and then four to each doubling, so
 * that the middle of one is off by an eighth at most; what is longer than the
 * last one is counted there.
 */
#ifndef LEASE_LOCK_HISTOGRAM_H
#define LEASE_LOCK_HISTOGRAM_H

#include "port/atomics.h"
#include "port/pg_bitutils.h"

#define HISTOGRAM_BUCKETS	160		/* to 2^41 microseconds, 25 days */

typedef struct Histogram
{
	pg_atomic_uint64 buckets[HISTOGRAM_BUCKETS];
} Histogram;

/* The bucket of a duration. */
static inline int
histogram_bucket(uint64 usecs)
{
	int			e;

	if (usecs < 4)
		return (int) usecs;
	e = pg_leftmost_one_pos64(usecs);
	return Min((e - 1) * 4 + (int) ((usecs >> (e - 2)) & 3), HISTOGRAM_BUCKETS - 1);
}

/* The least duration of a bucket. */
static inline uint64
histogram_floor(int bucket)
{
	if (bucket < 4)
		return bucket;
	return (UINT64CONST(4) + bucket % 4) << (bucket / 4 - 1);
}

#endif							/* LEASE_LOCK_HISTOGRAM_H */
