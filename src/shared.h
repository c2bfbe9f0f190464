/*
 * shared.h
 *		What the files that use the shared area know of it.
 */
#ifndef LEASE_LOCK_SHARED_H
#define LEASE_LOCK_SHARED_H

#include "lib/dshash.h"
#include "port/atomics.h"
#include "storage/lwlock.h"
#include "utils/dsa.h"

typedef struct SharedCtl
{
	uint32		layout;			/* of this struct and of all in the area */
	int			tranche;		/* of every lightweight lock of ours */
	LWLock		lock;			/* held while the area is made, or come to */
	LWLock		file_lock;		/* held while statistics are written */
	bool		made;
	dsa_handle	area;
	dsa_pointer line;			/* line.c */
	dshash_table_handle named;	/* named_list.c */
	dshash_table_handle stats;	/* stats.c */
	dshash_table_handle rings;	/* rejections.c, with the next two */
	dshash_table_handle rejection_counts;
	pg_atomic_uint32 n_rejection_counts;
	pg_atomic_uint32 n_attached;	/* backends that use the area */
	pg_atomic_uint32 n_waiting; /* backends in any line of any database */
} SharedCtl;

extern void shared_init(void);
extern SharedCtl *shared_ctl(void);
extern bool shared_attach(void);
extern uint32 shared_wait_event(void);

extern void line_make(dsa_area *area, SharedCtl *ctl);
extern void line_attach(dsa_area *area, SharedCtl *ctl);
extern void named_make(dsa_area *area, SharedCtl *ctl);
extern void named_attach(dsa_area *area, SharedCtl *ctl);
extern void stats_make(dsa_area *area, SharedCtl *ctl);
extern void stats_attach(dsa_area *area, SharedCtl *ctl);
extern void stats_enter(bool new);
extern void rejections_make(dsa_area *area, SharedCtl *ctl);
extern void rejections_attach(dsa_area *area, SharedCtl *ctl);
extern void rejections_forget(Oid database);

#endif							/* LEASE_LOCK_SHARED_H */
