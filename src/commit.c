/*
 * commit.c
 *		How durable the commit of a transaction of ours is, and when.
 *
 * The commit of a grant or a renewal is on disk, and on the synchronous
 * standby, before anybody sees it.  A release need not be: lost in a crash, it
 * only means that the lease runs to its expiry.  But whoever is told of it is
 * told when it is durable.
 *
 * Between two workers that hand a lease on, the releaser's flush and the next
 * one's would follow each other.  A transaction that did nothing but release,
 * while somebody waits in line, therefore becomes visible first and is flushed
 * before it returns; the grant of who was woken meanwhile comes later in the WAL,
 * so that its flush covers both.
 */
#include "postgres.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "replication/syncrep.h"
#include "utils/guc.h"

#include "lease_lock.h"

#define FLUSH_POLL_USECS	50
#define FLUSH_POLLS			10

static bool sync_commit = false;	/* this transaction granted or renewed */
static XLogRecPtr released_at = InvalidXLogRecPtr;	/* all that it wrote ends there */
static bool flush_late = false;

/*
 * This transaction's commit must be on disk, and on the synchronous standby,
 * before anybody is told of it.
 */
void
require_sync_commit(void)
{
	sync_commit = true;
}

/* Whether this transaction has written nothing yet, and is not to go on. */
bool
wrote_nothing(void)
{
	return XLogRecPtrIsInvalid(XactLastRecEnd) && !IsTransactionBlock() && !IsSubTransaction();
}

/* All that this transaction wrote is a release that somebody waits for. */
void
hand_over_early(void)
{
	released_at = XactLastRecEnd;
}

static void
set_sync_commit(const char *value)
{
	(void) set_config_option("synchronous_commit", value, PGC_USERSET, PGC_S_SESSION,
							 GUC_ACTION_LOCAL, true, 0, false);
}

/*
 * Raises synchronous_commit for the rest of the transaction.  Here and not in
 * the call, where an enclosing SET would undo it.  It is lowered only to flush
 * by hand a moment later, and not where a standby would have to be waited for.
 */
static void
set_durability(bool prepare)
{
	bool		standbys = SyncRepStandbyNames != NULL && SyncRepStandbyNames[0] != '\0';

	if (!sync_commit)
		return;
	if (!prepare && !XLogRecPtrIsInvalid(released_at) && released_at == XactLastRecEnd &&
		!standbys)
	{
		set_sync_commit("off");
		flush_late = true;
	}
	else if (synchronous_commit < SYNCHRONOUS_COMMIT_REMOTE_FLUSH)
		set_sync_commit("on");
}

/* The commit is visible, and who waited was woken: make it durable. */
static void
flush_commit(void)
{
	/* The next grant's flush is about to cover it. */
	for (int i = 0; i < FLUSH_POLLS && GetFlushRecPtr(NULL) < XactLastCommitEnd; i++)
		pg_usleep(FLUSH_POLL_USECS);
	XLogFlush(XactLastCommitEnd);
}

static void
xact_callback(XactEvent event, void *arg)
{
	switch (event)
	{
		case XACT_EVENT_PRE_COMMIT:
		case XACT_EVENT_PRE_PREPARE:
			set_durability(event == XACT_EVENT_PRE_PREPARE);
			return;
		case XACT_EVENT_COMMIT:
			if (flush_late)
				flush_commit();
			break;
		case XACT_EVENT_ABORT:
		case XACT_EVENT_PREPARE:
			break;
		default:
			return;
	}
	sync_commit = flush_late = false;
	released_at = InvalidXLogRecPtr;
}

void
commit_init(void)
{
	RegisterXactCallback(xact_callback, NULL);
}
