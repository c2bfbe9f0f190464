/*
 * rings.c
 *		Deadlocks through leases.
 *
 * PostgreSQL finds the rings that consist of lock waits.  A committed lease is
 * no lock: somebody who waits in line for what another session holds is
 * unknown to it.  Here the edges of both kinds are followed from backend to
 * backend:
 *
 *	- a backend that waits for a lock waits for whom pg_blocking_pids() names;
 *	- a backend that waits in line waits for the transaction that keeps the
 *	  lease from being granted, or else for the session that acquired it, if
 *	  that waits itself.
 *
 * The last is an edge only while the same backend incarnation still waits, and
 * in line only under the owner that holds the lease: behind a transaction
 * pooler one backend serves many.  Waiters further ahead in a line are no
 * edge: they wait for the same.
 *
 * Every waiter looks after deadlock_timeout, which finds the rings that it
 * closed.  A ring that somebody's lock wait closed later is found by those who
 * wait in line and hold a lock, who therefore look again and again.  One backend
 * looks at a time, and the one that finds a ring leaves its line before the
 * next one looks: one victim a ring.  Nobody queues for that; who finds another
 * one looking comes back a little later.
 */
#include "postgres.h"

#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "storage/procarray.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "lease_lock.h"

#define MAX_VISITED		1024

typedef struct Search
{
	KeyedTable *lease;
	int			visited[MAX_VISITED];
	int			n_visited;
	StringInfoData ring;		/* the sentences of the DETAIL, last edge first */
} Search;

static bool follow(Search *search, int pid);

/* Whether the edge to a backend closes the ring, or leads on to where it does. */
static bool
leads_back(Search *search, int to)
{
	if (to == 0)
		return false;
	if (to == MyProcPid)
		return true;
	for (int i = 0; i < search->n_visited; i++)
		if (search->visited[i] == to)
			return false;
	if (search->n_visited == MAX_VISITED)
		return false;
	search->visited[search->n_visited++] = to;
	return follow(search, to);
}

static void
add_sentence(Search *search, char *sentence)
{
	char	   *rest = pstrdup(search->ring.data);

	resetStringInfo(&search->ring);
	appendStringInfo(&search->ring, "%s%s%s", sentence, *rest ? "\n" : "", rest);
}

static bool
owned_by(const LeaseRow *row, const LinePlace *place)
{
	return place->owner_len == row->owner_len &&
		memcmp(place->owner, row->owner, row->owner_len) == 0;
}

/* Whether the session that acquired a lease waits itself, for this owner. */
static bool
holder_waits(const LeaseRow *row)
{
	LinePlace  *places;
	const PgBackendStatus *status;

	if (line_copy(row->pid, &places) > 0)
		return places[0].backend_start == row->backend_start &&
			(row->session != 0 || owned_by(row, &places[0]));
	if (!backend_waits_for_lock(row->pid))
		return false;
	status = backend_status(row->pid);
	return status && status->st_proc_start_timestamp == row->backend_start;
}

/* The edges of a backend that waits in line. */
static bool
follow_lease(Search *search, const LinePlace *place)
{
	LeaseName	resource = line_resource(place);
	LeaseRead	read;
	bool		live;
	bool		found = false;
	char	   *name = name_cstring(&resource);

	lease_read(search->lease, &resource, &read);
	live = read.found && lease_live(&read.row, read.own, GetCurrentTimestamp());
	if (place->pid != MyProcPid &&
		((read.own && (read.granted_here || !live)) ||
		 (!live && name_held_by_me(LOCK_LEASE, &resource, GUARD_MODE))))
	{
		/* Neither read.pending nor guard_holders() tells of this transaction. */
		found = true;
		add_sentence(search, psprintf("Process %d waits for the lease on resource \"%s\", which the open transaction of process %d has changed or written under.",
									  place->pid, name, MyProcPid));
	}
	else if (TransactionIdIsValid(read.pending) &&
			 (read.pending_grant || !live || owned_by(&read.row, place)))
	{
		int			pid = xact_pid(read.pending);

		found = leads_back(search, pid);
		if (found)
			add_sentence(search, psprintf("Process %d waits for the lease on resource \"%s\", which the open transaction of process %d has changed.",
										  place->pid, name, pid));
	}
	else if (live)
	{
		found = holder_waits(&read.row) && leads_back(search, read.row.pid);
		if (found)
			add_sentence(search, psprintf("Process %d waits for the lease on resource \"%s\", which \"%.*s\" holds under token " INT64_FORMAT " (process %d).",
										  place->pid, name, read.row.owner_len, read.row.owner,
										  read.row.version, read.row.pid));
	}
	else
	{
		VirtualTransactionId *holders;
		int			n = guard_holders(&resource, &holders);

		for (int i = 0; i < n && !found; i++)
		{
			int			pid = vxid_pid(holders[i]);

			found = leads_back(search, pid);
			if (found)
				add_sentence(search, psprintf("Process %d waits for the lease on resource \"%s\", under which the open transaction of process %d has written.",
											  place->pid, name, pid));
		}
	}
	lease_read_free(&read);
	return found;
}

/* Whether what a backend waits for leads back to this one. */
static bool
follow(Search *search, int pid)
{
	LinePlace  *places;
	int		   *blockers;
	int			n;

	check_stack_depth();
	if (line_copy(pid, &places) > 0)
		return follow_lease(search, &places[0]);
	if (!backend_waits_for_lock(pid))
		return false;
	n = backend_blockers(pid, &blockers);
	for (int i = 0; i < n; i++)
		if (leads_back(search, blockers[i]))
		{
			add_sentence(search, psprintf("Process %d waits for a lock that process %d holds.",
										  pid, blockers[i]));
			return true;
		}
	return false;
}

/*
 * Raises 40P01 when this backend, which stands in line, is part of a ring; it
 * has left the line then.  Returns false when somebody else is looking.
 */
bool
check_rings(KeyedTable *lease, const LeaseName *resource)
{
	MemoryContext context;
	MemoryContext old;
	Search	   *search;
	bool		found;

	if (!lock_name(LOCK_RINGS, NULL, ExclusiveLock, true))
		return false;
	context = AllocSetContextCreate(CurrentMemoryContext, "lease_lock rings",
									ALLOCSET_DEFAULT_SIZES);
	old = MemoryContextSwitchTo(context);
	search = palloc0(sizeof(Search));
	search->lease = lease;
	initStringInfo(&search->ring);
	found = follow(search, MyProcPid);
	if (found)
		line_leave();
	unlock_name(LOCK_RINGS, NULL, ExclusiveLock);
	MemoryContextSwitchTo(old);
	if (found)
	{
		stats_count(STAT_DEADLOCKS, resource);
		ereport(ERROR,
				(errcode(ERRCODE_T_R_DEADLOCK_DETECTED),
				 errmsg("deadlock detected while waiting for the lease on resource \"%s\"",
						name_cstring(resource)),
				 errdetail_internal("%s", search->ring.data),
				 errhint("Retry; to avoid it, acquire leases in the same order everywhere, or release one before waiting for another.")));
	}
	MemoryContextDelete(context);
	return true;
}
