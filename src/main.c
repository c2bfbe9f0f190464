/*
 * main.c
 *		Module entry: settings and callbacks.
 *
 * Nothing is allocated in shared memory here: the library works the same
 * whether it is preloaded or loaded by the first call of a session, and the
 * shared area is made on first use (shared.c).
 */
#include "postgres.h"

#include <limits.h>

#include "fmgr.h"
#include "utils/guc.h"

#include "lease_lock.h"
#include "shared.h"

PG_MODULE_MAGIC;

/* Settings; milliseconds where the name says so. */
int			default_ttl_ms = 30 * 1000;
int			default_wait_ms = 3 * 1000;
int			max_ttl_ms = 24 * 60 * 60 * 1000;
int			max_wait_ms = 60 * 60 * 1000;
int			max_waiters = -1;
int			evict_after_ms = 10 * 1000;
bool		async_release = false;
bool		keep_history = false;
int			track_resources = 500;
int			event_level = LOG_SERVER_ONLY;

static const struct config_enum_entry event_levels[] = {
	{"off", 0, false},			/* below all that is ever asked for */
	{"debug", DEBUG1, false},
	{"log", LOG_SERVER_ONLY, false},
	{NULL, 0, false}
};

void		_PG_init(void);

void
_PG_init(void)
{
	DefineCustomIntVariable("lease_lock.default_ttl",
							"Sets the time to live of a lease that is acquired without one.",
							"lease_lock.max_ttl bounds it.",
							&default_ttl_ms,
							30 * 1000, 1, INT_MAX,
							PGC_USERSET, GUC_UNIT_MS,
							NULL, NULL, NULL);
	DefineCustomIntVariable("lease_lock.default_wait",
							"Sets how long acquire waits when it is called without a wait.",
							"0 means not at all. lease_lock.max_wait bounds it.",
							&default_wait_ms,
							3 * 1000, 0, INT_MAX,
							PGC_USERSET, GUC_UNIT_MS,
							NULL, NULL, NULL);
	DefineCustomIntVariable("lease_lock.max_ttl",
							"Sets the longest time to live that a caller may ask for.",
							"It also bounds the cooldown of a release.",
							&max_ttl_ms,
							24 * 60 * 60 * 1000, 1, INT_MAX,
							PGC_SUSET, GUC_UNIT_MS,
							NULL, NULL, NULL);
	DefineCustomIntVariable("lease_lock.max_wait",
							"Sets the longest wait that a caller may ask for.",
							NULL,
							&max_wait_ms,
							60 * 60 * 1000, 0, INT_MAX,
							PGC_SUSET, GUC_UNIT_MS,
							NULL, NULL, NULL);
	DefineCustomIntVariable("lease_lock.max_waiters",
							"Sets how many may wait for one lease.",
							"acquire fails at once when so many wait already. -1 means no limit.",
							&max_waiters,
							-1, -1, INT_MAX,
							PGC_SUSET, 0,
							NULL, NULL, NULL);
	DefineCustomIntVariable("lease_lock.evict_after",
							"Sets how long after its expiry a lease may be kept from being granted by an open transaction.",
							"After that the transaction is ended. -1 turns eviction off.",
							&evict_after_ms,
							10 * 1000, -1, INT_MAX,
							PGC_SUSET, GUC_UNIT_MS,
							NULL, NULL, NULL);
	DefineCustomBoolVariable("lease_lock.async_release",
							 "Lets a transaction that only released leases follow synchronous_commit.",
							 "A release lost in a crash means that the lease runs to its expiry.",
							 &async_release,
							 false,
							 PGC_USERSET, 0,
							 NULL, NULL, NULL);
	DefineCustomBoolVariable("lease_lock.history",
							 "Keeps a row of lease_lock.history for every grant that ends.",
							 NULL,
							 &keep_history,
							 false,
							 PGC_SUSET, 0,
							 NULL, NULL, NULL);
	DefineCustomIntVariable("lease_lock.track_resources",
							"Sets how many resources of each database have statistics of their own.",
							"The least used makes room for a new one. 0 turns them off. A new value takes full effect with lease_lock.stats_reset or a restart.",
							&track_resources,
							500, 0, 100000,
							PGC_SIGHUP, 0,
							NULL, NULL, NULL);
	DefineCustomEnumVariable("lease_lock.log_events",
							 "Sets the level of the server log's lines on takeovers, forced releases, evictions, refused writes and jumps of the tokens.",
							 NULL,
							 &event_level,
							 LOG_SERVER_ONLY, event_levels,
							 PGC_SUSET, 0,
							 NULL, NULL, NULL);
	MarkGUCPrefixReserved("lease_lock");

	/* Callbacks run in the reverse order: line.c wakes before commit.c flushes. */
	shared_init();
	relations_init();
	presented_init();
	bypass_init();
	rights_init();
	commit_init();
	line_init();
	session_init();
	named_init();
}
