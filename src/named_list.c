/*
 * named_list.c
 *		Which named advisory locks are held and waited for, by name.
 *
 * The lock table knows hashes; this list in the shared area knows the names,
 * and since when and in which scope each backend has them.  It decides
 * nothing: the lock table says what is held, and the view shows entries that
 * agree with it.  Each backend keeps its own entries; those of prepared
 * transactions belong to nobody, and are removed by whoever reads the list
 * once the lock is gone.
 *
 * Nothing here takes a heavyweight lock.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/proc.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "lease_lock.h"
#include "named_list.h"
#include "shared.h"

static dshash_table *list = NULL;

static dshash_parameters
parameters(SharedCtl *ctl)
{
	return compat_dshash_parameters(sizeof(NamedKey), sizeof(NamedEntry), ctl->tranche);
}

/* Makes the list in a new shared area. */
void
named_make(dsa_area *area, SharedCtl *ctl)
{
	dshash_parameters params = parameters(ctl);
	dshash_table *t = dshash_create(area, &params, NULL);

	ctl->named = dshash_get_hash_table_handle(t);
	dshash_detach(t);
}

void
named_attach(dsa_area *area, SharedCtl *ctl)
{
	dshash_parameters params = parameters(ctl);

	list = dshash_attach(area, &params, ctl->named, NULL);
}

static NamedKey
my_entry_key(uint64 hash, LOCKMODE mode, NamedScope scope)
{
	NamedKey	key = {0};

	key.hash = hash;
	key.database = MyDatabaseId;
	key.pid = MyProcPid;
	key.mode = mode;
	key.scope = scope;
	return key;
}

/* Enters what this backend waits for; it must not be there yet. */
void
named_list_add(const LeaseName *name, LOCKMODE mode, NamedScope scope)
{
	NamedKey	key = my_entry_key(name->hash, mode, scope);
	NamedEntry *entry;
	bool		found;

	if (!shared_attach())
		return;
	entry = dshash_find_or_insert(list, &key, &found);
	entry->since = GetCurrentTimestamp();
	entry->backend_start = MyStartTimestamp;
	entry->granted = false;
	entry->name_len = name->len;
	memcpy(entry->name, name->data, name->len);
	dshash_release_lock(list, entry);
}

/* What was waited for is held now. */
void
named_list_granted(uint64 hash, LOCKMODE mode, NamedScope scope)
{
	NamedKey	key = my_entry_key(hash, mode, scope);
	NamedEntry *entry = list ? dshash_find(list, &key, true) : NULL;

	if (entry == NULL)
		return;
	entry->since = GetCurrentTimestamp();
	entry->granted = true;
	dshash_release_lock(list, entry);
}

void
named_list_remove(uint64 hash, LOCKMODE mode, NamedScope scope)
{
	NamedKey	key = my_entry_key(hash, mode, scope);

	if (list)
		(void) dshash_delete_key(list, &key);
}

/*
 * Copies an entry of this backend's for the prepared transaction that this one
 * is about to become.
 */
void
named_list_prepare(uint64 hash, LOCKMODE mode)
{
	NamedKey	key = my_entry_key(hash, mode, NAMED_TRANSACTION);
	NamedEntry *entry = list ? dshash_find(list, &key, false) : NULL;
	NamedEntry	copy;
	bool		found;

	if (entry == NULL)
		return;
	copy = *entry;
	dshash_release_lock(list, entry);
	copy.key.pid = 0;
	copy.key.vxid = compat_proc_vxid(MyProc);
	entry = dshash_find_or_insert(list, &copy.key, &found);
	*entry = copy;
	dshash_release_lock(list, entry);
}

/* A palloc'd copy of this database's entries; returns their number. */
int
named_list_copy(NamedEntry **entries)
{
	dshash_seq_status scan;
	NamedEntry *entry;
	int			n = 0;
	int			max = 16;

	*entries = palloc(max * sizeof(NamedEntry));
	if (!shared_attach())
		return 0;
	dshash_seq_init(&scan, list, false);
	while ((entry = dshash_seq_next(&scan)) != NULL)
	{
		if (entry->key.database != MyDatabaseId)
			continue;
		if (n == max)
		{
			max *= 2;
			*entries = repalloc_huge(*entries, max * sizeof(NamedEntry));
		}
		(*entries)[n++] = *entry;
	}
	dshash_seq_term(&scan);
	return n;
}

/* Removes the entry of a prepared transaction that is no more. */
void
named_list_forget(const NamedEntry *entry)
{
	Assert(entry->key.pid == 0);
	if (list)
		(void) dshash_delete_key(list, &entry->key);
}
