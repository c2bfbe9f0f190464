/*
 * grant.h
 *		What grant.c and grant_wait.c share.
 */
#ifndef LEASE_LOCK_GRANT_H
#define LEASE_LOCK_GRANT_H

#include "lease_lock.h"

/* What a read of the row says to somebody who wants the lease. */
typedef enum Verdict
{
	VERDICT_FREE,				/* grant it */
	VERDICT_MINE_HERE,			/* granted in this transaction: extend it */
	VERDICT_MINE,				/* live, but this owner's: take it over */
	VERDICT_REFUSED,			/* this transaction holds it for another owner */
	VERDICT_HELD,				/* wait for its end */
	VERDICT_COOLDOWN,			/* wait for the cooldown's end */
	VERDICT_IN_FLIGHT			/* wait for another transaction */
} Verdict;

/* What to wait for, decided while the tables are open; waited for without them. */
typedef struct WaitPlan
{
	enum
	{
		WAIT_NOT, WAIT_NAP, WAIT_IN_LINE, WAIT_XACT, WAIT_GUARD
	}			what;
	TimestampTz until;			/* WAIT_IN_LINE */
	TransactionId xid;			/* WAIT_XACT */
	VirtualTransactionId vxid;	/* WAIT_GUARD */
} WaitPlan;

extern void not_available(const GrantRequest *req, const LeaseRead *read,
						  Verdict verdict, int ahead, const Waiting *w);
extern bool drain_guards(Waiting *w, const LeaseName *resource);
extern WaitPlan plan_wait(Waiting *w, const GrantRequest *req, KeyedTable *lease,
						  const LeaseRead *read, Verdict verdict, int ahead, bool in_line);
extern void wait_as_planned(Waiting *w, const WaitPlan *plan, bool in_line);
extern void try_evict(const GrantRequest *req, KeyedTable *lease, const LeaseRead *read,
					  Verdict verdict);

extern void count_given_up(const GrantRequest *req, const Waiting *w);

#endif							/* LEASE_LOCK_GRANT_H */
