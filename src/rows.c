/*
 * rows.c
 *		Reads and writes lease_lock.lease, .fence and .audit.
 *
 * The only file that touches a row.  It works on the heap directly, neither
 * through SPI nor with the transaction's snapshot: the answer is the latest
 * state at every isolation level, no predicate lock is taken, and callers need
 * no rights on the tables.  It takes no lock of ours; who may write when is
 * the caller's affair (locks.c), and each function says what must be held.
 *
 * Reading uses SnapshotDirty, which returns every version that is committed
 * or in progress.  Without R in RENEW or GRANT mode a row that is moving to
 * another page can be missed, or met twice: lease_read() repeats the scan when
 * it met two, and "there is no row" may be concluded only under R.
 *
 * Row locks: only the extension's owner and foreign keys can lock our rows.
 * row_update() and row_delete() look for a conflicting locker first and report
 * WRITE_BLOCKED instead of sleeping, because callers hold R.  A FOR UPDATE
 * that arrives in the instant between that look and the write is waited for.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/multixact.h"
#include "access/nbtree.h"
#include "access/relation.h"
#include "access/tableam.h"
#include "access/tupmacs.h"
#include "access/xact.h"
#include "catalog/index.h"
#include "catalog/indexing.h"
#include "catalog/pg_am_d.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/timestamp.h"
#include "utils/xid8.h"

#include "compat.h"
#include "lease_lock.h"

static void
get_text(Datum value, char **data, int *len)
{
	text	   *t = DatumGetTextPP(value);

	*data = VARDATA_ANY(t);
	*len = VARSIZE_ANY_EXHDR(t);
}

/* The next of the columns that follow LeaseFixed, all of them texts. */
static Datum
next_text(char **at)
{
	char	   *value = (char *) att_align_pointer(*at, TYPALIGN_INT, -1, *at);

	*at = value + VARSIZE_ANY(value);
	return PointerGetDatum(value);
}

/*
 * Decodes the columns that decide, in place; strings and tuple are shared with
 * tuple.
 */
void
lease_row_decode(HeapTuple tuple, TupleDesc desc, LeaseRow *row)
{
	LeaseFixed *fixed = (LeaseFixed *) GETSTRUCT(tuple);
	char	   *at = (char *) (fixed + 1);
	Datum		value;
	bool		isnull;

	row->tuple = tuple;
	row->version = fixed->version;
	row->expire_at = fixed->expire_at;
	row->acquired_at = fixed->acquired_at;
	row->renewed_at = fixed->renewed_at;
	row->renewals = fixed->renewals;
	row->longest_gap = fixed->longest_gap;
	row->grant_xid = fixed->grant_xid;
	row->backend_start = fixed->backend_start;
	row->pid = fixed->pid;
	row->ttl = fixed->ttl.time;
	(void) next_text(&at);		/* resource */
	get_text(next_text(&at), &row->owner, &row->owner_len);
	get_text(next_text(&at), &row->role, &row->role_len);
	value = heap_getattr(tuple, LEASE_ENDED_AT, desc, &isnull);
	row->ended_at = isnull ? 0 : DatumGetTimestampTz(value);
	value = heap_getattr(tuple, LEASE_FREE_AT, desc, &isnull);
	row->free_at = isnull ? 0 : DatumGetTimestampTz(value);
	value = heap_getattr(tuple, LEASE_SESSION, desc, &isnull);
	row->session = isnull ? 0 : DatumGetInt64(value);
	row->ended_by = NOT_ENDED;
	value = heap_getattr(tuple, LEASE_ENDED_BY, desc, &isnull);
	if (!isnull)
		switch (*VARDATA_ANY(DatumGetTextPP(value)))
		{
			case 'r':
				row->ended_by = ENDED_RELEASED;
				break;
			case 'f':
				row->ended_by = ENDED_FORCED;
				break;
			case 't':
				row->ended_by = ENDED_TRANSACTION;
				break;
			default:
				elog(ERROR, "unrecognized ended_by in lease_lock.lease");
		}
}

/*
 * Whether the lease of a row version is in force at a moment.  own: this
 * transaction wrote it, and a lease of scope 'transaction' lives only there.
 * One of scope 'session' is over with its session.
 */
bool
lease_live(const LeaseRow *row, bool own, TimestampTz now)
{
	if (row->ended_by != NOT_ENDED &&
		!(row->ended_by == ENDED_TRANSACTION && own))
		return false;
	return row->expire_at > now && (row->session == 0 || session_alive(row->session));
}

/* "held", "expired" or "released". */
const char *
lease_state(const LeaseRow *row, bool own, TimestampTz now)
{
	if (lease_live(row, own, now))
		return "held";
	if (row->ended_by == NOT_ENDED || (row->ended_by == ENDED_TRANSACTION && own))
		return "expired";
	return "released";
}

typedef void (*VersionCallback) (HeapTuple tuple, TransactionId inserting,
								 TransactionId deleting, TupleDesc desc, void *arg);

static bool
key_is(KeyedTable *table, HeapTuple tuple, const LeaseName *name)
{
	bool		isnull;
	char	   *data;
	int			len;

	get_text(heap_getattr(tuple, table->key,
						  RelationGetDescr(table->heap), &isnull), &data, &len);
	return len == name->len && memcmp(data, name->data, len) == 0;
}

/*
 * Hands every version of a key's row that is committed or in progress to fn,
 * with the page locked.
 */
static void
scan_key(KeyedTable *table, const LeaseName *name, VersionCallback fn, void *arg)
{
	ScanKeyData key;
	MemoryContext context;
	Relation	heap = keyed_heap(table);
	ItemPointer tid;
	union
	{
		text		value;
		char		bytes[VARHDRSZ + MAX_NAME_BYTES];
	}			text;

	Assert(name->len <= MAX_NAME_BYTES);
	SET_VARSIZE(&text.value, VARHDRSZ + name->len);
	memcpy(VARDATA(&text.value), name->data, name->len);
	ScanKeyEntryInitialize(&key, 0, 1, table->equal, InvalidOid,
						   table->index->rd_indcollation[0], F_TEXTEQ,
						   PointerGetDatum(&text.value));

	/*
	 * A scan's working space is large, so a call keeps its own to the end, in
	 * the context of whoever opened the table: callers have shorter ones.
	 */
	context = MemoryContextSwitchTo(table->context);
	if (table->scan == NULL)
	{
		InitDirtySnapshot(table->dirty);
		table->scan = compat_index_beginscan(heap, table->index, &table->dirty, 1);
	}
	index_rescan(table->scan, &key, 1, NULL, 0);
	while ((tid = index_getnext_tid(table->scan, ForwardScanDirection)) != NULL)
	{
		ItemPointerData position = *tid;
		Buffer		buffer = ReadBuffer(heap, ItemPointerGetBlockNumber(&position));
		HeapTupleData tuple;
		bool		all_dead;
		bool		first = true;

		table->recent = buffer;
		heap_page_prune_opt(heap, buffer);
		LockBuffer(buffer, BUFFER_LOCK_SHARE);
		while (heap_hot_search_buffer(&position, heap, buffer, &table->dirty,
									  &tuple, &all_dead, first))
		{
			first = false;
			/* A hash index knows hashes alone. */
			if (table->scan->xs_recheck && !key_is(table, &tuple, name))
				break;
			MemoryContextSwitchTo(context);
			fn(&tuple, table->dirty.xmin, table->dirty.xmax,
			   RelationGetDescr(heap), arg);
			MemoryContextSwitchTo(table->context);
		}
		UnlockReleaseBuffer(buffer);
		/* Tell the index of entries that nobody can see any more. */
		table->scan->kill_prior_tuple = first && all_dead &&
			!table->scan->xactStartedInRecovery;
	}
	MemoryContextSwitchTo(context);
}

static bool
tuple_is_own(HeapTuple tuple)
{
	return !HeapTupleHeaderXminCommitted(tuple->t_data) &&
		TransactionIdIsCurrentTransactionId(HeapTupleHeaderGetXmin(tuple->t_data));
}

typedef struct LeaseScan
{
	LeaseRead  *read;
	int64		pending_tokens[2];	/* lowest and highest in flight */
	bool		twice;
} LeaseScan;

static void
lease_version(HeapTuple tuple, TransactionId inserting, TransactionId deleting,
			  TupleDesc desc, void *arg)
{
	LeaseScan  *scan = arg;
	LeaseRead  *read = scan->read;

	if (TransactionIdIsValid(inserting))
	{
		LeaseFixed *fixed = (LeaseFixed *) GETSTRUCT(tuple);
		int64		token = fixed->version;

		/*
		 * Several versions of one transaction: any of them can be the grant.
		 * They come in no order, so of one token the longest lived stands for
		 * it: nobody is evicted too soon.
		 */
		read->pending = inserting;
		if (scan->pending_tokens[1] == 0 || token < scan->pending_tokens[0])
			scan->pending_tokens[0] = token;
		if (token > scan->pending_tokens[1] ||
			(token == scan->pending_tokens[1] && fixed->expire_at > read->pending_row.expire_at))
		{
			scan->pending_tokens[1] = token;
			if (read->pending_row.tuple)
				heap_freetuple(read->pending_row.tuple);
			lease_row_decode(heap_copytuple(tuple), desc, &read->pending_row);
		}
		return;
	}
	if (TransactionIdIsValid(deleting))
		read->pending = deleting;
	if (read->found)
	{
		scan->twice = true;
		return;
	}
	read->found = true;
	read->own = tuple_is_own(tuple);
	lease_row_decode(heap_copytuple(tuple), desc, &read->row);
}

/*
 * Reads the latest state of a resource.  Needs no lock, with the limits that
 * the file's header gives.  Free with lease_read_free().
 */
void
lease_read(KeyedTable *table, const LeaseName *resource, LeaseRead *read)
{
	LeaseScan	scan;

	Assert(table->which == TABLE_LEASE);
	memset(read, 0, sizeof(*read));
	for (;;)
	{
		memset(&scan, 0, sizeof(scan));
		scan.read = read;
		scan_key(table, resource, lease_version, &scan);
		if (!scan.twice)
			break;
		CHECK_FOR_INTERRUPTS();
		lease_read_free(read);
	}
	if (scan.pending_tokens[1] != 0)
		read->pending_grant = !read->found ||
			scan.pending_tokens[0] != read->row.version ||
			scan.pending_tokens[1] != read->row.version;
	read->granted_here = read->own &&
		read->row.grant_xid == U64FromFullTransactionId(GetTopFullTransactionIdIfAny());
}

void
lease_read_free(LeaseRead *read)
{
	if (read->found)
		heap_freetuple(read->row.tuple);
	if (read->pending_row.tuple)
		heap_freetuple(read->pending_row.tuple);
	memset(read, 0, sizeof(*read));
}

/*
 * Whether the version that was read is still there with nothing on top of it,
 * which makes it the newest still.  Needs R as lease_read_again().
 */
static bool
still_newest(KeyedTable *table, HeapTuple seen)
{
	Buffer		buffer = read_block(table->heap, ItemPointerGetBlockNumber(&seen->t_self),
									&table->recent);
	OffsetNumber offset = ItemPointerGetOffsetNumber(&seen->t_self);
	Page		page = BufferGetPage(buffer);
	bool		same = false;

	LockBuffer(buffer, BUFFER_LOCK_SHARE);
	if (offset <= PageGetMaxOffsetNumber(page) &&
		ItemIdIsNormal(PageGetItemId(page, offset)))
	{
		HeapTupleData tuple;

		tuple.t_self = seen->t_self;
		tuple.t_tableOid = RelationGetRelid(table->heap);
		tuple.t_data = (HeapTupleHeader) PageGetItem(page, PageGetItemId(page, offset));
		tuple.t_len = ItemIdGetLength(PageGetItemId(page, offset));
		/* The slot can have been given to another row meanwhile. */
		same = HeapTupleSatisfiesVisibility(&tuple, &table->dirty, buffer) &&
			!TransactionIdIsValid(table->dirty.xmin) &&
			!TransactionIdIsValid(table->dirty.xmax) &&
			tuple.t_len == seen->t_len &&
			HeapTupleHeaderGetRawXmin(tuple.t_data) == HeapTupleHeaderGetRawXmin(seen->t_data) &&
			HeapTupleHeaderGetRawCommandId(tuple.t_data) == HeapTupleHeaderGetRawCommandId(seen->t_data) &&
			memcmp((char *) tuple.t_data + tuple.t_data->t_hoff,
				   (char *) seen->t_data + seen->t_data->t_hoff,
				   tuple.t_len - tuple.t_data->t_hoff) == 0;
		if (same)
		{
			/* Lockers may have come and gone. */
			seen->t_data->t_infomask = tuple.t_data->t_infomask;
			HeapTupleHeaderSetXmax(seen->t_data, HeapTupleHeaderGetRawXmax(tuple.t_data));
		}
	}
	UnlockReleaseBuffer(buffer);
	return same;
}

/*
 * Reads again under R what was read without it.  Where that still holds, *read
 * stays; the way through the index is only for when it does not.
 */
void
lease_read_again(KeyedTable *table, const LeaseName *resource, LeaseRead *read)
{
	if (read->found && !TransactionIdIsValid(read->pending) &&
		still_newest(table, read->row.tuple))
		return;
	lease_read_free(read);
	lease_read(table, resource, read);
}

static void
fence_version(HeapTuple tuple, TransactionId inserting, TransactionId deleting,
			  TupleDesc desc, void *arg)
{
	FenceRead  *read = arg;
	bool		isnull;
	int64		highest = DatumGetInt64(heap_getattr(tuple, FENCE_HIGHEST, desc, &isnull));

	if (TransactionIdIsValid(inserting))
	{
		read->pending = inserting;
		read->pending_highest = Max(read->pending_highest, highest);
		return;
	}
	if (TransactionIdIsValid(deleting))
		read->pending = deleting;
	if (read->found && highest <= read->highest)
		return;
	fence_read_free(read);
	read->found = true;
	read->highest = highest;
	read->tuple = heap_copytuple(tuple);
}

/*
 * Reads the latest state of a fence.  Of two versions met the higher is
 * taken: a fence only ever rises.  Free with fence_read_free().
 */
void
fence_read(KeyedTable *table, const LeaseName *name, FenceRead *read)
{
	Assert(table->which == TABLE_FENCE);
	memset(read, 0, sizeof(*read));
	scan_key(table, name, fence_version, read);
}

void
fence_read_free(FenceRead *read)
{
	if (read->tuple)
		heap_freetuple(read->tuple);
	read->tuple = NULL;
}

/*
 * Whether a b-tree has no root, which is how it begins: no row was ever
 * entered.  Cheaper than a search, and than asking the kernel for a file's size.
 */
static bool
index_is_empty(Relation index)
{
	Buffer		buffer = own_first_block(index);	/* the meta page */
	bool		empty;

	LockBuffer(buffer, BUFFER_LOCK_SHARE);
	empty = BTPageGetMeta(BufferGetPage(buffer))->btm_root == P_NONE;
	UnlockReleaseBuffer(buffer);
	return empty;
}

/*
 * The highest token that a fence has seen, in flight or not; 0 when none.  A
 * grant must go above it.  Costs next to nothing where mode 'newest' is unused.
 */
int64
fence_floor(KeyedTable *table, const LeaseName *name)
{
	FenceRead	read;

	if (index_is_empty(table->index))
		return 0;
	fence_read(table, name, &read);
	fence_read_free(&read);
	return Max(read.highest, read.pending_highest);
}

/*
 * Enters a new version into the indexes.  All of ours are on the key; REINDEX
 * CONCURRENTLY adds another of the same shape for a while.
 */
static void
insert_index_entries(KeyedTable *table, Datum key, ItemPointer tid, bool new_version)
{
	List	   *indexes = RelationGetIndexList(table->heap);
	ListCell   *cell;
	bool		isnull = false;

	foreach(cell, indexes)
	{
		Oid			oid = lfirst_oid(cell);
		Relation	index = oid == RelationGetRelid(table->index) ?
			table->index : index_open(oid, RowExclusiveLock);

		if (index->rd_index->indisready)
		{
			if (index->rd_index->indnatts != 1 || index->rd_index->indkey.values[0] != table->key ||
				(index->rd_rel->relam != BTREE_AM_OID && index->rd_rel->relam != HASH_AM_OID) ||
				RelationGetIndexPredicate(index) != NIL)
				ereport(ERROR,
						(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
						 errmsg("index \"%s\" on lease_lock.%s is not part of the extension",
								RelationGetRelationName(index), RelationGetRelationName(table->heap)),
						 errhint("Drop that index.")));
			index_insert(index, &key, &isnull, tid, table->heap,
						 index->rd_index->indisunique ? UNIQUE_CHECK_YES : UNIQUE_CHECK_NO,
						 !new_version, NULL);
		}
		if (index != table->index)
			index_close(index, NoLock);
	}
	list_free(indexes);
}

/*
 * Inserts a row whose key is known to have none: R in GRANT mode (F for a
 * fence) and a read that found nothing, not even in flight.
 */
void
row_insert(KeyedTable *table, Datum *values, bool *nulls)
{
	HeapTuple	tuple = heap_form_tuple(RelationGetDescr(table->heap), values, nulls);

	heap_insert(table->heap, tuple, GetCurrentCommandId(true), 0, NULL);
	insert_index_entries(table, values[table->key - 1], &tuple->t_self, true);
	heap_freetuple(tuple);
	CommandCounterIncrement();
}

/*
 * The transaction whose row lock a WRITE_BLOCKED was about, by the header of
 * the tuple that was read; InvalidTransactionId when it has gone meanwhile.
 */
TransactionId
row_locker(HeapTuple tuple)
{
	TransactionId xmax = HeapTupleHeaderGetRawXmax(tuple->t_data);
	TransactionId locker = InvalidTransactionId;
	MultiXactMember *members;
	int			n;

	if (tuple->t_data->t_infomask & HEAP_XMAX_INVALID)
		return InvalidTransactionId;
	if (!(tuple->t_data->t_infomask & HEAP_XMAX_IS_MULTI))
		return TransactionIdIsInProgress(xmax) ? xmax : InvalidTransactionId;
	n = GetMultiXactIdMembers(xmax, &members, false,
							  HEAP_XMAX_IS_LOCKED_ONLY(tuple->t_data->t_infomask));
	for (int i = 0; i < n; i++)
		if (members[i].status != MultiXactStatusForKeyShare &&
			!TransactionIdIsCurrentTransactionId(members[i].xid) &&
			TransactionIdIsInProgress(members[i].xid))
			locker = members[i].xid;
	if (n > 0)
		pfree(members);
	return locker;
}

/* Makes sure that a write of old cannot sleep on somebody's row lock. */
static bool
row_lockable(KeyedTable *table, HeapTuple old, LockTupleMode mode)
{
	TM_FailureData tmfd;
	HeapTupleData tuple;
	Buffer		buffer;
	TM_Result	result;

	if (old->t_data->t_infomask & HEAP_XMAX_INVALID)
		return true;
	tuple.t_self = old->t_self;
	result = heap_lock_tuple(table->heap, &tuple, GetCurrentCommandId(true), mode,
							 LockWaitSkip, false, &buffer, &tmfd);
	ReleaseBuffer(buffer);
	if (result == TM_WouldBlock)
		return false;
	if (result != TM_Ok)
		ereport(ERROR,
				(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
				 errmsg("a row of lease_lock.%s was changed by hand at the same time",
						RelationGetRelationName(table->heap)),
				 errhint("Retry the transaction.")));
	return true;
}

static void
check_written(KeyedTable *table, TM_Result result)
{
	/* Our locks exclude this; only hand-made changes can bring it. */
	if (result != TM_Ok)
		ereport(ERROR,
				(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
				 errmsg("a row of lease_lock.%s was changed by hand at the same time",
						RelationGetRelationName(table->heap)),
				 errhint("Retry the transaction.")));
}

/*
 * Replaces the version that was read by a new one.  Needs R (F for a fence) in
 * RENEW or GRANT mode since before that read, and no change in flight.
 */
WriteResult
row_update(KeyedTable *table, HeapTuple old, HeapTuple new)
{
	TM_FailureData tmfd;
	bool		hot;
	bool		isnull;

	if (!row_lockable(table, old, LockTupleNoKeyExclusive))
		return WRITE_BLOCKED;
	check_written(table, compat_heap_update(table->heap, &old->t_self, new,
											GetCurrentCommandId(true), &tmfd, &hot));
	if (!hot)
		insert_index_entries(table, heap_getattr(new, table->key,
												 RelationGetDescr(table->heap), &isnull),
							 &new->t_self, false);
	CommandCounterIncrement();
	return WRITE_DONE;
}

/* The same, for some columns of it. */
WriteResult
row_change(KeyedTable *table, HeapTuple old, Datum *values, bool *nulls, bool *replace)
{
	HeapTuple	new = heap_modify_tuple(old, RelationGetDescr(table->heap),
										values, nulls, replace);
	WriteResult result = row_update(table, old, new);

	heap_freetuple(new);
	return result;
}

/* Deletes the version that was read; the same needs as row_update(). */
WriteResult
row_delete(KeyedTable *table, HeapTuple old)
{
	TM_FailureData tmfd;

	if (!row_lockable(table, old, LockTupleExclusive))
		return WRITE_BLOCKED;
	check_written(table, heap_delete(table->heap, &old->t_self, GetCurrentCommandId(true),
									 InvalidSnapshot, true, &tmfd, false));
	CommandCounterIncrement();
	return WRITE_DONE;
}

/*
 * Records an administrator's act, or an eviction; reason and detail may be
 * NULL.  An act that a rollback does not undo is recorded by a frozen row, which
 * stays as well; not if somebody has put an index on the table.
 */
void
audit_write(const char *action, const char *object, const char *reason,
			const char *detail, int how)
{
	Relation	audit = own_open(REL_AUDIT, RowExclusiveLock, (how & AUDIT_NOWAIT) != 0);
	Datum		values[AUDIT_NATTS] = {0};
	bool		nulls[AUDIT_NATTS] = {0};
	HeapTuple	tuple;

	if (audit == NULL)
		return;
	values[AUDIT_AT - 1] = TimestampTzGetDatum(GetCurrentTimestamp());
	values[AUDIT_ROLE - 1] = CStringGetTextDatum(GetUserNameFromId(GetUserId(), false));
	values[AUDIT_SESSION_ROLE - 1] = CStringGetTextDatum(GetUserNameFromId(GetSessionUserId(), false));
	values[AUDIT_ACTION - 1] = CStringGetTextDatum(action);
	values[AUDIT_OBJECT - 1] = CStringGetTextDatum(object);
	if (reason)
		values[AUDIT_REASON - 1] = CStringGetTextDatum(reason);
	else
		nulls[AUDIT_REASON - 1] = true;
	if (detail)
		values[AUDIT_DETAIL - 1] = CStringGetTextDatum(detail);
	else
		nulls[AUDIT_DETAIL - 1] = true;
	tuple = heap_form_tuple(RelationGetDescr(audit), values, nulls);
	if ((how & AUDIT_FOR_GOOD) && !audit->rd_rel->relhasindex)
		heap_insert(audit, tuple, GetCurrentCommandId(true), HEAP_INSERT_FROZEN, NULL);
	else
		CatalogTupleInsert(audit, tuple);
	heap_freetuple(tuple);
	relation_close(audit, NoLock);
	CommandCounterIncrement();
}
