/*
 * fence.c
 *		The fencing check: may this transaction write under a name?
 *
 * Mode 'held' asks the lease's row: the token must be that of its current
 * grant, which must be in force.  Mode 'newest' asks lease_lock.fence: the
 * token must not be older than the highest one accepted, nor than the newest
 * grant of a lease of that name.
 *
 * A token that passes holds R in GUARD mode to the end of the transaction, so
 * that nobody can be granted before that: between the check and the commit
 * there is no gap.  Mode 'newest' takes R as well, whether there is a lease of
 * that name yet or not, since one could be granted a moment later.
 *
 * Order of steps: refuse without a lock what the committed row refuses
 * already (nothing revives a lease, and stale writers must not keep a grant
 * out), take R, read again.  A grant in flight is waited for with R dropped.
 * A resource that this transaction granted needs no R: its uncommitted row is
 * the lock.
 *
 * The checks return a refusal instead of raising it, because a guard can be
 * told to warn.  What passed is remembered for the rest of the transaction, in
 * presented.c.
 */
#include "postgres.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/rel.h"
#include "utils/timestamp.h"

#include "lease_lock.h"

#define HINT_STALE "Stop this work: others may have changed the data since. Acquire the lease again, and start over from the data as it is now."
#define HINT_PRESENT "In the transaction that writes, call lease_lock.present(resource, token) first, or acquire the lease in it."
#define HINT_UNKNOWN "Pass the token that lease_lock.acquire returned for this very resource."

/*
 * Fills in a refusal; false, to be returned.  name is NULL, token and newest
 * are 0 where there is none.
 */
bool
refuse_token(Refusal *why, int sqlstate, const LeaseName *name, int64 token,
			 int64 newest, char *message, char *detail)
{
	memset(why, 0, sizeof(*why));
	if (name)
		why->resource = *name;
	why->token = token;
	why->newest = newest;
	why->sqlstate = sqlstate;
	why->message = message;
	why->detail = detail;
	if (sqlstate == ERRCODE_NO_TOKEN_PRESENTED)
		why->hint = HINT_PRESENT;
	else if (sqlstate == ERRCODE_UNKNOWN_TOKEN)
		why->hint = HINT_UNKNOWN;
	else
		why->hint = HINT_STALE;
	return false;
}

/* Raises a refusal at a level; rel (may be NULL) is the guarded table. */
void
refuse(int elevel, const Refusal *why, Relation rel)
{
	ereport(elevel,
			(errcode(why->sqlstate),
			 errmsg_internal("%s", why->message),
			 errdetail_internal("%s", why->detail),
			 errhint("%s", why->hint),
			 rel ? errtable(rel) : 0));
}

static char *
holder_text(const LeaseRow *row, bool own, TimestampTz now)
{
	const char *state = lease_state(row, own, now);

	if (strcmp(state, "held") == 0)
		return psprintf("\"%.*s\" holds it under token " INT64_FORMAT " until %s.",
						row->owner_len, row->owner, row->version,
						timestamptz_to_str(row->expire_at));
	if (strcmp(state, "expired") == 0 && row->expire_at > now)
		return psprintf("The session of \"%.*s\", which held it under token " INT64_FORMAT ", has ended.",
						row->owner_len, row->owner, row->version);
	if (strcmp(state, "expired") == 0)
		return psprintf("The lease of \"%.*s\" under token " INT64_FORMAT " expired at %s.",
						row->owner_len, row->owner, row->version,
						timestamptz_to_str(row->expire_at));
	return psprintf("The lease of \"%.*s\" under token " INT64_FORMAT " was %s.",
					row->owner_len, row->owner, row->version,
					row->ended_by == ENDED_FORCED ? "ended by an administrator" : "released");
}

static bool
stale(Refusal *why, const LeaseName *name, int64 token, const LeaseRow *row, bool own)
{
	return refuse_token(why, ERRCODE_STALE_TOKEN, name, token, row->version,
						psprintf("stale token " INT64_FORMAT " for resource \"%.*s\", the newest is " INT64_FORMAT,
								 token, name->len, name->data, row->version),
						holder_text(row, own, GetCurrentTimestamp()));
}

static bool
not_held(Refusal *why, const LeaseName *name, int64 token, const LeaseRow *row, bool own)
{
	TimestampTz now = GetCurrentTimestamp();

	return refuse_token(why, ERRCODE_LEASE_NOT_HELD, name, token, row->version,
						psprintf("lease on resource \"%.*s\" is not held any more under token " INT64_FORMAT ", the newest is " INT64_FORMAT,
								 name->len, name->data, token, row->version),
						holder_text(row, own, now));
}

static bool
unknown(Refusal *why, const LeaseName *name, int64 token, const LeaseRead *read)
{
	if (!read->found)
		return refuse_token(why, ERRCODE_UNKNOWN_TOKEN, name, token, 0,
							psprintf("unknown token " INT64_FORMAT " for resource \"%.*s\"",
									 token, name->len, name->data),
							pstrdup("No lease on this resource is known."));
	return refuse_token(why, ERRCODE_UNKNOWN_TOKEN, name, token, read->row.version,
						psprintf("unknown token " INT64_FORMAT " for resource \"%.*s\", the newest is " INT64_FORMAT,
								 token, name->len, name->data, read->row.version),
						holder_text(&read->row, read->own, GetCurrentTimestamp()));
}

static bool
positive(Refusal *why, const LeaseName *name, int64 token)
{
	if (token > 0)
		return true;
	return refuse_token(why, ERRCODE_UNKNOWN_TOKEN, name, token, 0,
						psprintf("unknown token " INT64_FORMAT " for resource \"%.*s\"",
								 token, name->len, name->data),
						pstrdup("Tokens are positive."));
}

/* Raises LL004 for what can never be a token. */
void
check_token_positive(const LeaseName *resource, int64 token)
{
	Refusal		why;

	if (!positive(&why, resource, token))
		refuse(ERROR, &why, NULL);
}

/*
 * Reads the row for a guard that holds R in GUARD mode.  That mode does not
 * exclude renewals, so a row that seems to be missing is looked for again
 * under RENEW mode.
 */
static void
read_guarded(KeyedTable *lease, const LeaseName *name, LeaseRead *read)
{
	lease_read(lease, name, read);
	if (!read->found && !TransactionIdIsValid(read->pending))
	{
		(void) lock_name(LOCK_LEASE, name, RENEW_MODE, false);
		lease_read(lease, name, read);
		unlock_name(LOCK_LEASE, name, RENEW_MODE);
	}
}

/*
 * Takes R in GUARD mode and reads the row with no grant in flight, waiting for
 * one as long as the timeouts let it.  Returns with R held, unless this
 * transaction itself granted the resource.  "early" is asked first, without R:
 * when it refuses the committed row, false is returned with nothing held.
 */
typedef bool (*EarlyCheck) (const LeaseRead *read, const LeaseName *name,
							int64 token, Refusal *why);

static bool
lock_and_read(KeyedTable *lease, const LeaseName *name, int64 token, EarlyCheck early,
			  LeaseRead *read, bool *locked, Refusal *why)
{
	Waiting		w;

	waiting_begin(&w, -1);
	for (;;)
	{
		TransactionId pending;

		waiting_check(&w);
		*locked = false;
		lease_read(lease, name, read);
		if (read->granted_here)
			return true;
		if (read->found && !early(read, name, token, why))
		{
			lease_read_free(read);
			return false;
		}
		pending = read->pending_grant ? read->pending : InvalidTransactionId;
		lease_read_free(read);
		if (TransactionIdIsValid(pending))
		{
			wait_for_xact(&w, pending);
			continue;
		}

		(void) lock_name(LOCK_LEASE, name, GUARD_MODE, false);
		*locked = true;
		read_guarded(lease, name, read);
		if (!TransactionIdIsValid(read->pending) || !read->pending_grant)
			return true;

		pending = read->pending;
		lease_read_free(read);
		unlock_name(LOCK_LEASE, name, GUARD_MODE);
		waiting_dropped(&w);
		wait_for_xact(&w, pending);
	}
}

/* Without R: a larger token may belong to a grant in flight. */
static bool
early_held(const LeaseRead *read, const LeaseName *name, int64 token, Refusal *why)
{
	if (token < read->row.version)
		return stale(why, name, token, &read->row, read->own);
	if (token == read->row.version &&
		!lease_live(&read->row, read->own, GetCurrentTimestamp()))
		return not_held(why, name, token, &read->row, read->own);
	return true;
}

static bool
early_newest(const LeaseRead *read, const LeaseName *name, int64 token, Refusal *why)
{
	if (token < read->row.version)
		return stale(why, name, token, &read->row, read->own);
	return true;
}

/* Mode 'held'.  *expire_at is set when it passes; read_role asks for 42501. */
static bool
check_held(const LeaseName *name, int64 token, bool read_role, TimestampTz *expire_at,
		   Refusal *why)
{
	KeyedTable	lease;
	LeaseRead	read;
	bool		locked;
	bool		passed;

	(void) keyed_open(&lease, TABLE_LEASE, AccessShareLock, false);
	passed = lock_and_read(&lease, name, token, early_held, &read, &locked, why);
	if (passed)
	{
		if (!read.found || token > read.row.version)
			passed = unknown(why, name, token, &read);
		else
			passed = early_held(&read, name, token, why);
		if (passed && read_role)
			require_role(&read.row, name);
		if (passed)
			*expire_at = read.row.expire_at;
		lease_read_free(&read);
		if (!passed && locked)
			unlock_name(LOCK_LEASE, name, GUARD_MODE);
	}
	keyed_close(&lease);
	return passed;
}

static bool
below_fence(Refusal *why, const LeaseName *name, int64 token, const FenceRead *fence)
{
	return refuse_token(why, ERRCODE_STALE_TOKEN, name, token, fence->highest,
						psprintf("stale token " INT64_FORMAT " for resource \"%.*s\", the newest is " INT64_FORMAT,
								 token, name->len, name->data, fence->highest),
						psprintf("A write under token " INT64_FORMAT " has been accepted.",
								 fence->highest));
}

static void
raise_fence(KeyedTable *fence, const LeaseName *name, int64 token, const FenceRead *read)
{
	Datum		values[FENCE_NATTS] = {0};
	bool		nulls[FENCE_NATTS] = {0};
	bool		replace[FENCE_NATTS] = {false, true, true, true};
	Waiting		w;

	PreventCommandIfReadOnly("a write guarded in mode \"newest\"");
	values[FENCE_NAME - 1] = PointerGetDatum(cstring_to_text_with_len(name->data, name->len));
	values[FENCE_HIGHEST - 1] = Int64GetDatum(token);
	values[FENCE_ACCEPTED_AT - 1] = TimestampTzGetDatum(GetCurrentTimestamp());
	values[FENCE_ACCEPTED_BY - 1] = CStringGetTextDatum(GetUserNameFromId(GetUserId(), false));
	if (!read->found)
	{
		row_insert(fence, values, nulls);
		return;
	}
	waiting_begin(&w, -1);
	while (row_change(fence, read->tuple, values, nulls, replace) == WRITE_BLOCKED)
	{
		/* F is ours to the end of the transaction: only a row lock is waited for. */
		TransactionId locker = row_locker(read->tuple);

		waiting_check(&w);
		if (TransactionIdIsValid(locker))
			wait_for_xact(&w, locker);
	}
}

/*
 * Mode 'newest'.  Who brings an equal token holds F in GUARD mode to the end
 * of the transaction; who brings a newer one holds it in GRANT mode, queueing
 * for it, since the older tokens behind it are about to be stale.
 */
static bool
check_newest(const LeaseName *name, int64 token, Refusal *why)
{
	KeyedTable	lease;
	KeyedTable	fence;
	LeaseRead	read;
	FenceRead	seen;
	LOCKMODE	mode;
	bool		locked;
	bool		passed;

	(void) keyed_open(&lease, TABLE_LEASE, AccessShareLock, false);
	(void) keyed_open(&fence, TABLE_FENCE, RowExclusiveLock, false);

	fence_read(&fence, name, &seen);
	passed = token >= seen.highest || below_fence(why, name, token, &seen);
	mode = seen.found && token == seen.highest ? GUARD_MODE : GRANT_MODE;
	fence_read_free(&seen);

	if (passed)
		passed = lock_and_read(&lease, name, token, early_newest, &read, &locked, why);
	if (passed)
	{
		passed = !read.found || early_newest(&read, name, token, why);
		lease_read_free(&read);
		while (passed)
		{
			TransactionId pending;
			bool		raise;

			(void) lock_name(LOCK_FENCE, name, mode, false);
			fence_read(&fence, name, &seen);
			pending = seen.pending;
			raise = token > seen.highest;
			passed = token >= seen.highest || below_fence(why, name, token, &seen);
			if (passed && !TransactionIdIsValid(pending))
			{
				if (!raise)
					break;
				if (mode == GRANT_MODE)
				{
					raise_fence(&fence, name, token, &seen);
					break;
				}
			}
			/* Refused, changed by hand, or lower than before: look again. */
			unlock_name(LOCK_FENCE, name, mode);
			fence_read_free(&seen);
			if (passed)
			{
				Waiting		w;

				mode = raise ? GRANT_MODE : GUARD_MODE;
				waiting_begin(&w, -1);
				if (TransactionIdIsValid(pending))
					wait_for_xact(&w, pending);
				waiting_check(&w);
			}
		}
		if (passed)
			fence_read_free(&seen);
		else if (locked)
			unlock_name(LOCK_LEASE, name, GUARD_MODE);
	}
	keyed_close(&fence);
	keyed_close(&lease);
	return passed;
}

/* The token of a lease that this transaction was granted, by its row; or 0. */
static int64
granted_here(const LeaseName *name)
{
	KeyedTable	lease;
	LeaseRead	read;
	int64		token;

	(void) keyed_open(&lease, TABLE_LEASE, AccessShareLock, false);
	lease_read(&lease, name, &read);
	token = read.granted_here ? read.row.version : 0;
	lease_read_free(&read);
	keyed_close(&lease);
	return token;
}

static void
count_write(const LeaseName *name)
{
	StatsEvent	event = {.counts = 1 << STAT_GUARDED_WRITES, .now = GetCurrentTimestamp()};

	stats_record(name, &event);
}

/*
 * Whether this transaction may write under a name.  carried is the token that
 * the row carries, or 0 for the one that the transaction presents.  When the
 * answer is yes it holds to the end of the transaction.
 */
bool
fence_accepts(const LeaseName *name, FenceMode mode, int64 carried, Refusal *why)
{
	Presented  *p = presented_find(name);
	int64		token = carried;
	TimestampTz expire_at;
	bool		passed;

	if (carried == 0)
	{
		if (p)
			p->used = true;
		token = p ? p->value.token : 0;
		if (token == 0 && presented_more_grants())
			token = granted_here(name);
		if (token == 0)
			return refuse_token(why, ERRCODE_NO_TOKEN_PRESENTED, name, 0, 0,
								psprintf("no token presented for resource \"%.*s\"",
										 name->len, name->data),
								presented_list());
	}
	if (p && token == (mode == MODE_HELD ? p->value.held : p->value.newest))
		return true;
	if (!positive(why, name, token))
		return false;

	passed = mode == MODE_HELD ?
		check_held(name, token, false, &expire_at, why) :
		check_newest(name, token, why);
	if (passed)
	{
		count_write(name);
		p = presented_enter(name);
		presented_touch(p);
		if (carried == 0)
			p->value.token = token;
		if (mode == MODE_HELD)
			p->value.held = token;
		else
			p->value.newest = token;
	}
	return passed;
}

/* Nothing is refused by the committed row. */
static bool
early_bypass(const LeaseRead *read, const LeaseName *name, int64 token, Refusal *why)
{
	return true;
}

/*
 * Lets this transaction write under a name past its guard, in order with the
 * grants: waits for one in flight, and takes the locks of a write that passed,
 * so that nobody is granted, and no newer token accepted, before it ends.
 */
void
fence_bypass(const LeaseName *name, FenceMode mode)
{
	Presented  *p = presented_find(name);
	KeyedTable	lease;
	LeaseRead	read;
	Refusal		why;
	bool		locked;

	if (p && (p->value.bypassed & (1 << mode)))
		return;
	(void) keyed_open(&lease, TABLE_LEASE, AccessShareLock, false);
	(void) lock_and_read(&lease, name, 0, early_bypass, &read, &locked, &why);
	lease_read_free(&read);
	keyed_close(&lease);
	if (mode == MODE_NEWEST)
		(void) lock_name(LOCK_FENCE, name, GUARD_MODE, false);
	p = presented_enter(name);
	presented_touch(p);
	p->value.bypassed |= 1 << mode;
}

/*
 * Presents the token and checks it as a write guarded in mode 'held' would,
 * with the same lock.  Returns the microseconds left, which are 0 when the
 * lease has expired since a check in this transaction that still holds.
 * Raises LL001, LL003, LL004 and 42501.
 */
int64
fence_assert_held(const LeaseName *resource, int64 token)
{
	Presented  *p;
	Refusal		why;
	TimestampTz expire_at = 0;

	PreventCommandDuringRecovery("assert_held()");
	if (!positive(&why, resource, token) ||
		!check_held(resource, token, true, &expire_at, &why))
	{
		p = presented_find(resource);
		if (why.sqlstate != ERRCODE_LEASE_NOT_HELD || p == NULL || p->value.held != token)
		{
			rejection_record(InvalidOid, REJECTED_ASSERT, ACTION_ENFORCE, &why);
			ereport(event_level,
					(errcode(why.sqlstate),
					 errmsg("assert_held refused with %s: %s",
							unpack_sql_state(why.sqlstate), why.message)));
			refuse(ERROR, &why, NULL);
		}
	}
	present_token(resource, token, true);
	p = presented_find(resource);
	p->used = true;
	p->value.held = token;
	count_write(resource);
	return expire_at == 0 ? 0 : Max(expire_at - GetCurrentTimestamp(), 0);
}
