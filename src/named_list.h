/*
 * named_list.h
 *		Entries of the list of named advisory locks.
 */
#ifndef LEASE_LOCK_NAMED_LIST_H
#define LEASE_LOCK_NAMED_LIST_H

#include "lease_lock.h"

typedef enum NamedScope
{
	NAMED_SESSION,
	NAMED_TRANSACTION
} NamedScope;

/* Hashed and compared as bytes: no padding, and zeroed first. */
typedef struct NamedKey
{
	uint64		hash;
	Oid			database;
	int32		pid;			/* 0: of a prepared transaction */
	VirtualTransactionId vxid;	/* of that one; zero otherwise */
	int32		mode;
	int32		scope;
} NamedKey;

typedef struct NamedEntry
{
	NamedKey	key;
	TimestampTz since;			/* held, or waited for */
	TimestampTz backend_start;
	bool		granted;
	int			name_len;
	char		name[MAX_NAME_BYTES];
} NamedEntry;

extern void named_list_add(const LeaseName *name, LOCKMODE mode, NamedScope scope);
extern void named_list_granted(uint64 hash, LOCKMODE mode, NamedScope scope);
extern void named_list_remove(uint64 hash, LOCKMODE mode, NamedScope scope);
extern void named_list_prepare(uint64 hash, LOCKMODE mode);
extern int	named_list_copy(NamedEntry **entries);
extern void named_list_forget(const NamedEntry *entry);

/* named.c */
extern void named_sweep(const NamedEntry *entries, int n, LockInstanceData **locks, int n_locks);

#endif							/* LEASE_LOCK_NAMED_LIST_H */
