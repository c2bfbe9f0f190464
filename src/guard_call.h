/*
 * guard_call.h
 *		What the trigger functions share with each other, and with guard(), which
 *		makes their triggers.
 */
#ifndef LEASE_LOCK_GUARD_CALL_H
#define LEASE_LOCK_GUARD_CALL_H

#include "commands/trigger.h"

#include "lease_lock.h"

#pragma GCC visibility push(hidden)

#define EVENT_INSERT	0x1
#define EVENT_UPDATE	0x2
#define EVENT_DELETE	0x4
#define EVENT_TRUNCATE	0x8
#define EVENT_ROWS		(EVENT_INSERT | EVENT_UPDATE | EVENT_DELETE)
#define EVENT_ALL		(EVENT_ROWS | EVENT_TRUNCATE)

extern int	parse_events(const char *events);
extern FenceMode parse_mode(const char *mode);
extern bool parse_action(const char *action);
extern AttrNumber token_column(Relation rel, const char *name);

/* What one trigger knows for the length of one statement. */
typedef struct Guard
{
	Template   *template;		/* NULL: fence_column without one */
	FenceMode	mode;
	bool		enforce;
	bool		changed_later;	/* a BEFORE trigger runs after the check */
	int			warned;			/* bits of the reasons already warned of */
	AttrNumber	column;			/* fence_column: the token's */
	ItemPointerData moving;		/* the row of the last UPDATE */
	bool		refused;		/* ... was warned of */
	bool		presented;		/* ... carried no token */
} Guard;

extern void guard_misused(const char *function, const char *detail, const char *hint);
extern void guard_check_trigger(const char *function, const TriggerData *td, int max_args,
								Guard *guard);
extern bool guard_skips(Guard *guard, const TriggerData *td);
extern void guard_act(Guard *guard, const TriggerData *td, Refusal *why);
extern bool guard_bypassed(const TriggerData *td);
extern bool guard_check_name(Guard *guard, const TriggerData *td, const LeaseName *name,
							 int64 carried, bool bypass);
extern bool guard_row_name(Guard *guard, const TriggerData *td, HeapTuple row,
						   LeaseName *name, bool bypass);
extern HeapTuple guard_row_result(const TriggerData *td);
extern void guard_refuse_truncate(Guard *guard, const TriggerData *td);

#pragma GCC visibility pop

#endif							/* LEASE_LOCK_GUARD_CALL_H */
