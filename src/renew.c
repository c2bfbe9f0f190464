/*
 * renew.c
 *		Renews and releases leases.
 *
 * Both change the row of the current grant and never its token.  They take R
 * in RENEW mode for the call only, so they neither wait for guarded writes in
 * flight nor make them wait.  They do wait for another transaction that has
 * itself changed the lease and is still open.  Nothing here revives a lease:
 * what has expired, was released or was superseded stays so.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/transam.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/rel.h"
#include "utils/timestamp.h"

#include "lease_lock.h"

/* The row of a lease as it becomes. */
typedef HeapTuple (*MakeChange) (const LeaseRow *row, TupleDesc desc, int64 arg,
								 TimestampTz now);

/* Changes columns of LeaseFixed alone, so a copy is changed in place. */
static HeapTuple
make_renewal(const LeaseRow *row, TupleDesc desc, int64 ttl, TimestampTz now)
{
	HeapTuple	new = heap_copytuple(row->tuple);
	LeaseFixed *fixed = (LeaseFixed *) GETSTRUCT(new);

	fixed->expire_at = now + (ttl != 0 ? ttl : row->ttl);
	fixed->renewed_at = now;
	fixed->renewals = row->renewals + 1;
	fixed->longest_gap = Max(row->longest_gap, now - row->renewed_at);
	return new;
}

static HeapTuple
make_release(const LeaseRow *row, TupleDesc desc, int64 cooldown, TimestampTz now)
{
	Datum		values[LEASE_NATTS] = {0};
	bool		nulls[LEASE_NATTS] = {0};
	bool		replace[LEASE_NATTS] = {0};

	values[LEASE_ENDED_AT - 1] = TimestampTzGetDatum(now);
	replace[LEASE_ENDED_AT - 1] = true;
	values[LEASE_ENDED_BY - 1] = CStringGetTextDatum("released");
	replace[LEASE_ENDED_BY - 1] = true;
	values[LEASE_FREE_AT - 1] = TimestampTzGetDatum(now + cooldown);
	replace[LEASE_FREE_AT - 1] = cooldown != 0;
	return heap_modify_tuple(row->tuple, desc, values, nulls, replace);
}

/*
 * Applies a change to the lease while it is in force under token.  Returns
 * the new expire_at (or the time of the release), or 0 when it is not this
 * token's any more.  Raises 42501, and whatever ends a wait.
 */
static TimestampTz
change_lease(const LeaseName *resource, int64 token, MakeChange make, int64 arg,
			 StatsEvent *event)
{
	KeyedTable	lease;
	History		history = {0};
	Waiting		w;
	TimestampTz result = 0;
	bool		done = false;

	waiting_begin(&w, -1);
	(void) keyed_open(&lease, TABLE_LEASE, RowExclusiveLock, false);
	if (make == make_release)
		(void) history_open(&history, false);
	while (!done)
	{
		LeaseRead	read;
		TransactionId blocker;
		TimestampTz now;

		waiting_check(&w);

		/* Refuse without a lock what the committed row refuses already. */
		lease_read(&lease, resource, &read);
		now = GetCurrentTimestamp();
		if (read.found &&
			(token < read.row.version ||
			 (token == read.row.version && !lease_live(&read.row, read.own, now))))
		{
			lease_read_free(&read);
			break;
		}
		if (TransactionIdIsValid(read.pending))
		{
			blocker = read.pending;
			lease_read_free(&read);
			wait_for_xact(&w, blocker);
			continue;
		}

		(void) lock_name(LOCK_LEASE, resource, RENEW_MODE, false);
		lease_read_again(&lease, resource, &read);
		now = GetCurrentTimestamp();
		blocker = read.pending;
		if (TransactionIdIsValid(blocker))
			;
		else if (!read.found || token != read.row.version ||
				 !lease_live(&read.row, read.own, now))
			done = true;
		else
		{
			HeapTuple	new;
			TimestampTz expire_at;

			require_role(&read.row, resource);
			new = make(&read.row, RelationGetDescr(lease.heap), arg, now);
			expire_at = ((LeaseFixed *) GETSTRUCT(new))->expire_at;
			if (row_update(&lease, read.row.tuple, new) == WRITE_BLOCKED)
				blocker = row_locker(read.row.tuple);
			else
			{
				done = true;
				event->now = now;
				if (make == make_release)
				{
					event->timed = STATS_HOLD;
					event->hold = Max(now - read.row.acquired_at, 0);
					if (read.row.session != 0)
						session_forget(resource);
					history_write(&history, &read.row, RelationGetDescr(lease.heap), now, "released");
				}
				else
				{
					event->timed = STATS_MARGIN;
					event->margin = (read.row.expire_at - now) * 1000 /
						Max(read.row.expire_at - read.row.renewed_at, 1);
				}
				/* A renewal wakes only if it lets the lease end sooner. */
				if (make == make_release || expire_at < read.row.expire_at)
					line_wake_at_commit(resource);
				result = make == make_release ? now : expire_at;
			}
			heap_freetuple(new);
		}
		lease_read_free(&read);
		unlock_name(LOCK_LEASE, resource, RENEW_MODE);

		if (TransactionIdIsValid(blocker))
			wait_for_xact(&w, blocker);
	}
	history_close(&history);
	keyed_close(&lease);
	if (result != 0)
		presented_forget_checks(resource);
	return result;
}

/* The new expire_at, or 0; ttl 0 means that of the grant. */
TimestampTz
lease_renew(const LeaseName *resource, int64 token, int64 ttl)
{
	TimestampTz expire_at;
	StatsEvent	event = {0};

	PreventCommandIfReadOnly("renew()");
	PreventCommandIfParallelMode("renew()");
	expire_at = change_lease(resource, token, make_renewal, ttl, &event);
	if (expire_at != 0)
		require_sync_commit();
	event.counts = 1 << (expire_at != 0 ? STAT_RENEWALS : STAT_RENEWALS_FAILED);
	if (expire_at != 0 && event.margin < LATE_MARGIN)
		event.counts |= 1 << STAT_RENEWALS_LATE;
	stats_record(resource, &event);
	return expire_at;
}

/* Whether this call ended the lease; cooldown in microseconds, 0: none. */
bool
lease_release(const LeaseName *resource, int64 token, int64 cooldown)
{
	bool		released;
	bool		nothing_else = wrote_nothing();
	StatsEvent	event = {0};

	PreventCommandIfReadOnly("release()");
	PreventCommandIfParallelMode("release()");
	released = change_lease(resource, token, make_release, cooldown, &event) != 0;
	event.counts = 1 << (released ? STAT_RELEASES : STAT_RELEASES_FAILED);
	stats_record(resource, &event);
	if (released && !async_release)
	{
		require_sync_commit();
		if (nothing_else && line_waits())
			hand_over_early();
	}
	return released;
}
