/*
 * grant_wait.c
 *		What acquire does while it cannot be granted: waits, evicts, gives up.
 *
 * Nothing here writes a lease or is called with R held for the call.
 */
#include "postgres.h"

#include "access/subtrans.h"
#include "common/pg_prng.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "storage/proc.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "grant.h"

#define HEAD_SLEEPS		USECS_PER_SEC	/* at most, before the first in line looks again */

/* Pids for a DETAIL: "pids 12, 13", or "a prepared transaction". */
char *
blockers_text(int n, const VirtualTransactionId *vxids)
{
	StringInfoData buf;
	int			shown = 0;

	initStringInfo(&buf);
	for (int i = 0; i < n && shown < 8; i++)
	{
		int			pid = vxid_pid(vxids[i]);

		if (pid != 0)
			appendStringInfo(&buf, "%s%d", shown++ ? ", " : "pid ", pid);
		else if (VirtualTransactionIdIsRecoveredPreparedXact(vxids[i]))
			appendStringInfo(&buf, "%sa prepared transaction", shown++ ? ", " : "");
	}
	return shown ? buf.data : pstrdup("ending");
}

/* Counts a call of acquire that gives up. */
void
count_given_up(const GrantRequest *req, const Waiting *w)
{
	StatsEvent	event = {.counts = 1 << STAT_TIMEOUTS, .timed = STATS_WAIT,
		.wait = Max(GetCurrentTimestamp() - w->start, 0)};

	stats_record(&req->resource, &event);
}

/*
 * Raises 55P03 with what stands in the way by the latest read; ahead: how many
 * in line.
 */
void
not_available(const GrantRequest *req, const LeaseRead *read, Verdict verdict,
			  int ahead, const Waiting *w)
{
	char	   *resource = name_cstring(&req->resource);
	char	   *detail;
	TimestampTz now = GetCurrentTimestamp();
	VirtualTransactionId *holders;
	int			n;

	count_given_up(req, w);
	switch (verdict)
	{
		case VERDICT_HELD:
		case VERDICT_REFUSED:
			detail = psprintf("\"%.*s\" holds it under token " INT64_FORMAT " until %s (%s left)%s.",
							  read->row.owner_len, read->row.owner, read->row.version,
							  timestamptz_to_str(read->row.expire_at),
							  usecs_text(Max(read->row.expire_at - now, 0)),
							  verdict == VERDICT_REFUSED ? ", granted in this transaction" : "");
			break;
		case VERDICT_COOLDOWN:
			detail = psprintf("\"%.*s\" released it under token " INT64_FORMAT " with a cooldown until %s (%s left).",
							  read->row.owner_len, read->row.owner, read->row.version,
							  timestamptz_to_str(read->row.free_at),
							  usecs_text(Max(read->row.free_at - now, 0)));
			break;
		case VERDICT_IN_FLIGHT:
			detail = psprintf("Transaction %u has changed the lease and is still open.",
							  read->pending);
			if (read->pending_grant)
				detail = psprintf("%s In it \"%.*s\" has token " INT64_FORMAT " until %s.", detail,
								  read->pending_row.owner_len, read->pending_row.owner,
								  read->pending_row.version,
								  timestamptz_to_str(read->pending_row.expire_at));
			if (read->found)
				detail = psprintf("%s The last committed holder is \"%.*s\" under token " INT64_FORMAT ", expiry %s.",
								  detail, read->row.owner_len, read->row.owner, read->row.version,
								  timestamptz_to_str(read->row.expire_at));
			break;
		default:
			n = guard_holders(&req->resource, &holders);
			detail = psprintf("Its last holder was %s; ", read->found ?
							  psprintf("\"%.*s\" under token " INT64_FORMAT ", expiry %s",
									   read->row.owner_len, read->row.owner, read->row.version,
									   timestamptz_to_str(read->row.expire_at)) :
							  "unknown");
			if (n > 0 || ahead == 0)
				detail = psprintf("%stransactions that wrote under it are still open (%s).",
								  detail, n > 0 ? blockers_text(n, holders) : "ending");
			else
				detail = psprintf("%s%d waiters are ahead in line.", detail, ahead);
			break;
	}
	if (verdict == VERDICT_REFUSED)
		ereport(ERROR,
				(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
				 errmsg("could not acquire the lease on resource \"%s\"", resource),
				 errdetail_internal("%s", detail),
				 errhint("Release it first, or acquire it with the same owner.")));
	ereport(ERROR,
			(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
			 w->lock_timeout ?
			 errmsg("canceling statement due to lock timeout while waiting for the lease on resource \"%s\"",
					resource) :
			 errmsg("could not acquire the lease on resource \"%s\" within %s",
					resource, usecs_text(w->deadline - w->start)),
			 errdetail_internal("%s", detail),
			 errhint("Try again, or wait longer; views lease_lock.holders and lease_lock.waiters show who holds what and who waits.")));
}

/*
 * Waits until no other transaction holds R.  Needs this transaction's
 * uncommitted grant in the row, so that guards that come later wait for us.
 * Returns false when the caller's time is up before.
 */
bool
drain_guards(Waiting *w, const LeaseName *resource)
{
	VirtualTransactionId *holders;

	while (name_in_use(resource))
	{
		if (waiting_over(w))
			return false;
		if (guard_holders(resource, &holders) > 0)
			wait_for_guard(w, holders[0]);
		else
			wait_nap(w);
		pfree(holders);
	}
	return true;
}

/*
 * When the open transaction that changed a lease may be evicted: it has an
 * uncommitted grant, or an uncommitted renewal or release of a lease that has
 * expired since.  Who deletes an idle row holds no lease.
 */
static TimestampTz
evict_pending_at(const LeaseRead *read)
{
	TimestampTz end;

	if (read->pending_row.tuple == NULL)
		return DT_NOEND;
	end = read->pending_row.expire_at;
	if (read->found && !read->pending_grant)
		end = Max(end, read->row.expire_at);
	return evict_at(end);
}

/* When whoever keeps a lease from being granted may be evicted. */
static TimestampTz
evict_blockers_at(const LeaseRead *read, Verdict verdict)
{
	if (verdict == VERDICT_IN_FLIGHT)
		return evict_pending_at(read);
	return verdict == VERDICT_FREE && read->found ? evict_at(read->row.expire_at) : DT_NOEND;
}

/*
 * Evicts whoever keeps an expired lease from being granted, if it is time; the
 * holders are those of R.  Returns when it will be; a moment that has passed is
 * not the time again.
 */
static TimestampTz
evict_blockers(const GrantRequest *req, KeyedTable *lease, const LeaseRead *read,
			   Verdict verdict, int n, const VirtualTransactionId *holders, bool nowait)
{
	TimestampTz now = GetCurrentTimestamp();
	TimestampTz when = evict_blockers_at(read, verdict);
	LeaseRead	again;

	if (when > now)
		return when;

	/*
	 * The holders were listed after the row was read: they can have come under
	 * a later grant.  If the row is still the same now, they have not.
	 */
	lease_read(lease, &req->resource, &again);
	if (again.pending != read->pending || evict_blockers_at(&again, verdict) > now)
		;
	else if (verdict == VERDICT_IN_FLIGHT)
		evict_xact(&req->resource, &again.pending_row,
				   SubTransGetTopmostTransaction(again.pending), nowait);
	else if (again.found && again.row.version == read->row.version)
		for (int i = 0; i < n; i++)
			evict_vxid(&req->resource, &again.row, holders[i], nowait);
	lease_read_free(&again);
	return DT_NOEND;
}

/*
 * Evicts what a call that does not wait meets in its way: a verdict that a
 * transaction in flight is to blame for.
 */
void
try_evict(const GrantRequest *req, KeyedTable *lease, const LeaseRead *read, Verdict verdict)
{
	VirtualTransactionId *holders = NULL;
	int			n = 0;

	/* The exact list of guards is dear; ask for it when it will be used. */
	if (evict_blockers_at(read, verdict) > GetCurrentTimestamp())
		return;
	if (verdict == VERDICT_FREE)
		n = guard_holders(&req->resource, &holders);
	(void) evict_blockers(req, lease, read, verdict, n, holders, true);
}

/* A sleep in line until a moment, or a look for rings when it is time for one. */
static WaitPlan
plan_sleep(Waiting *w, const GrantRequest *req, KeyedTable *lease, TimestampTz until,
		   bool in_line)
{
	WaitPlan	plan = {.what = WAIT_NOT};
	TimestampTz now = GetCurrentTimestamp();
	int64		timeout = DeadlockTimeout * INT64CONST(1000);

	if (w->look_at == 0)
		w->look_at = in_line ? now + timeout : DT_NOEND;
	if (now < w->look_at)
	{
		plan.what = WAIT_IN_LINE;
		plan.until = Min(until, w->look_at);
	}
	else if (!check_rings(lease, &req->resource))
		w->look_at = now + timeout / 10 +
			(int64) (pg_prng_double(&pg_global_prng_state) * timeout / 5);
	else
		w->look_at = holds_other_locks() ? now + timeout : DT_NOEND;
	return plan;
}

/*
 * What to wait for by a verdict, or behind the waiters ahead.  Evicts whom it
 * is time to, and looks for rings.  in_line: this backend stands in line and will
 * be woken.  The first in line looks now and then all the same: not all that
 * ends a lease wakes somebody (a COMMIT PREPARED, a lock given up, a session
 * without the shared area, a clock that is set forward, a row changed by hand).
 */
WaitPlan
plan_wait(Waiting *w, const GrantRequest *req, KeyedTable *lease, const LeaseRead *read,
		  Verdict verdict, int ahead, bool in_line)
{
	WaitPlan	plan = {.what = WAIT_NAP};
	TimestampTz look = GetCurrentTimestamp() + HEAD_SLEEPS;
	VirtualTransactionId *holders;
	int			n;

	if (ahead > 0)
		return plan_sleep(w, req, lease, line_look_around(ahead), in_line);
	switch (verdict)
	{
		case VERDICT_HELD:
			return plan_sleep(w, req, lease, Min(read->row.expire_at, look), in_line);
		case VERDICT_COOLDOWN:
			return plan_sleep(w, req, lease, Min(read->row.free_at, look), in_line);
		case VERDICT_IN_FLIGHT:
			w->slice_end = evict_blockers(req, lease, read, verdict, 0, NULL, false);
			plan.what = WAIT_XACT;
			plan.xid = read->pending;
			break;
		default:
			n = guard_holders(&req->resource, &holders);
			if (n > 0)
			{
				w->slice_end = evict_blockers(req, lease, read, verdict, n, holders, false);
				plan.what = WAIT_GUARD;
				plan.vxid = holders[0];
			}
			pfree(holders);
			break;
	}
	return plan;
}

/* Waits as planned; look again after it. */
void
wait_as_planned(Waiting *w, const WaitPlan *plan, bool in_line)
{
	switch (plan->what)
	{
		case WAIT_NOT:
			break;
		case WAIT_NAP:
			wait_nap(w);
			break;
		case WAIT_IN_LINE:
			wait_until(w, plan->until, in_line);
			break;
		case WAIT_XACT:
			wait_for_xact(w, plan->xid);
			break;
		case WAIT_GUARD:
			wait_for_guard(w, plan->vxid);
			break;
	}
	w->slice_end = DT_NOEND;
}
