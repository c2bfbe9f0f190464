/*
 * token.c
 *		Mints fencing tokens from one sequence that never goes backwards.
 *
 * lease_lock.token_seq counts the tokens.  lease_lock.place_seq remembers, as
 * untouched by rollbacks as the first, where the last token was minted: a
 * fingerprint of system identifier, timeline, database and sequence.  Wherever
 * that place changed (promotion, restore, clone, pg_upgrade) nothing here says
 * how many tokens the old place went on to grant, so the first grant at the
 * new place jumps the sequence to the larger of the clock, in seconds since
 * 2026-01-01 times 2^24, and of the highest token that this database knows plus
 * as much for the time since the old place began.  The clock, read to the
 * microsecond, makes two places that know nothing of each other differ, also
 * within one second; the maximum makes a wrong clock harmless to what is known.
 *
 * A jump raises the sequence and then sets the place, under LOCK_PLACE so that
 * one backend scans and the others wait.  Raising is atomic under the sequence
 * page's lock and never lowers, so it needs no lock against those who mint.
 * Nobody mints while the place differs, and everybody compares it each time.
 *
 * token_mint() must be called under R in RENEW or GRANT mode, after a read
 * that found no change in flight: an earlier token could commit after a larger
 * one.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/relation.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/transam.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "access/xloginsert.h"
#include "commands/sequence.h"
#include "commands/trigger.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "lease_lock.h"

PG_FUNCTION_INFO_V1(ll_settle_place);
PG_FUNCTION_INFO_V1(ll_token_arrives);

#define TOKENS_PER_SECOND_BITS	24
#define LOG_AHEAD				32	/* values that one WAL record covers */
#define CLOCK_EPOCH				(INT64CONST(820540800) * USECS_PER_SEC) /* 2026-01-01 UTC */
#define PLACE_UNKNOWN			2	/* in place_seq; fingerprints are odd */

/* The sequence tuple on its one page, which is locked in the given mode. */
static Form_pg_sequence_data
lock_sequence_page(Relation seq, int mode, Buffer *buffer, HeapTupleData *tuple)
{
	Page		page;
	ItemId		item;

	*buffer = own_first_block(seq);
	LockBuffer(*buffer, mode);
	page = BufferGetPage(*buffer);
	item = PageGetItemId(page, FirstOffsetNumber);
	if (!ItemIdIsNormal(item))
		elog(ERROR, "sequence \"%s\" has no tuple", RelationGetRelationName(seq));
	tuple->t_data = (HeapTupleHeader) PageGetItem(page, item);
	tuple->t_len = ItemIdGetLength(item);
	return (Form_pg_sequence_data) GETSTRUCT(tuple);
}

/* The last value given out; 0 for a sequence that gave none. */
static int64
sequence_last(Relation seq)
{
	Buffer		buffer;
	HeapTupleData tuple;
	Form_pg_sequence_data data = lock_sequence_page(seq, BUFFER_LOCK_SHARE, &buffer, &tuple);
	int64		last = data->is_called ? data->last_value : 0;

	UnlockReleaseBuffer(buffer);
	return last;
}

/* Writes a sequence's page with last_value as crash recovery shall find it. */
static void
log_sequence_page(Relation seq, Buffer buffer, HeapTuple tuple)
{
	xl_seq_rec	rec;
	XLogRecPtr	lsn;

	if (!RelationNeedsWAL(seq))
		return;
	memset(&rec, 0, sizeof(rec));
	compat_fill_seq_rec(&rec, seq);
	XLogBeginInsert();
	XLogRegisterBuffer(0, buffer, REGBUF_WILL_INIT);
	XLogRegisterData((char *) &rec, sizeof(rec));
	XLogRegisterData((char *) tuple->t_data, tuple->t_len);
	lsn = XLogInsert(RM_SEQ_ID, XLOG_SEQ_LOG);
	PageSetLSN(BufferGetPage(buffer), lsn);
}

/*
 * Moves a sequence to the next value that is larger than floor, and returns
 * it; 0, and nothing is changed, when it is behind known, a value that it must
 * have given out already.  Test and change are one step under the page's lock:
 * nothing ever lowers the sequence, however long a backend is paused in here.
 * That is why nextval and setval will not do; they would also change the
 * caller's lastval().  The format and the WAL are theirs.  Raises 2200H at the
 * end.
 */
static int64
sequence_advance(Relation seq, int64 floor, int64 known)
{
	Buffer		buffer;
	HeapTupleData tuple;
	Form_pg_sequence_data data;
	int64		last;
	int64		value;

	/* So that the commit flushes what is logged here. */
	GetTopTransactionId();
	data = lock_sequence_page(seq, BUFFER_LOCK_EXCLUSIVE, &buffer, &tuple);
	last = data->is_called ? data->last_value : 0;
	if (last < known)
	{
		UnlockReleaseBuffer(buffer);
		return 0;
	}
	value = Max(floor, last);
	if (value == PG_INT64_MAX)
	{
		UnlockReleaseBuffer(buffer);
		ereport(ERROR,
				(errcode(ERRCODE_SEQUENCE_GENERATOR_LIMIT_EXCEEDED),
				 errmsg("fencing tokens are used up"),
				 errdetail("The newest token is " INT64_FORMAT ", the largest bigint.", value),
				 errhint("Find out what raised lease_lock.token_seq: no load uses up so many.")));
	}
	value++;

	START_CRIT_SECTION();
	MarkBufferDirty(buffer);
	data->is_called = true;
	if (data->log_cnt > 0 && value == data->last_value + 1 && RelationNeedsWAL(seq) &&
		PageGetLSN(BufferGetPage(buffer)) > GetRedoRecPtr())
	{
		/* An earlier record covers this value. */
		data->last_value = value;
		data->log_cnt--;
	}
	else
	{
		/* Without a record (wal_level minimal) nothing ahead is covered. */
		int64		ahead = RelationNeedsWAL(seq) ? Min(LOG_AHEAD, PG_INT64_MAX - value) : 0;

		data->last_value = value + ahead;
		data->log_cnt = 0;
		log_sequence_page(seq, buffer, &tuple);
		data->last_value = value;
		data->log_cnt = ahead;
	}
	END_CRIT_SECTION();
	UnlockReleaseBuffer(buffer);
	return value;
}

/* Sets a sequence that does not count. */
static void
sequence_put(Relation seq, int64 value)
{
	Buffer		buffer;
	HeapTupleData tuple;
	Form_pg_sequence_data data;

	GetTopTransactionId();
	data = lock_sequence_page(seq, BUFFER_LOCK_EXCLUSIVE, &buffer, &tuple);
	START_CRIT_SECTION();
	MarkBufferDirty(buffer);
	data->last_value = value;
	data->is_called = true;
	data->log_cnt = 0;
	log_sequence_page(seq, buffer, &tuple);
	END_CRIT_SECTION();
	UnlockReleaseBuffer(buffer);
}

static bool
place_is_current(TokenSource *source)
{
	return sequence_last(source->place) == place_fingerprint(RelationGetRelid(source->seq));
}

/*
 * The largest value, up to a limit, of a bigint column in a table, dead
 * versions included.
 */
static int64
highest_in(Relation rel, AttrNumber column, int64 limit)
{
	TupleTableSlot *slot = table_slot_create(rel, NULL);
	TableScanDesc scan = table_beginscan(rel, SnapshotAny, 0, NULL);
	int64		highest = 0;

	while (table_scan_getnextslot(scan, ForwardScanDirection, slot))
	{
		bool		isnull;
		int64		value = DatumGetInt64(slot_getattr(slot, column, &isnull));

		if (!isnull && value <= limit)
			highest = Max(highest, value);
		CHECK_FOR_INTERRUPTS();
	}
	table_endscan(scan);
	ExecDropSingleTupleTableSlot(slot);
	return highest;
}

/* Microseconds as tokens, 2^24 a second: more than any server grants. */
static int64
usecs_as_tokens(int64 usecs)
{
	if (usecs <= 0)
		return 0;
	return ((usecs / USECS_PER_SEC) << TOKENS_PER_SECOND_BITS) +
		((usecs % USECS_PER_SEC) << TOKENS_PER_SECOND_BITS) / USECS_PER_SEC;
}

/*
 * The clock as a token.  No fence drives the tokens of all beyond it, or beyond
 * what they have reached: whoever may write a table guarded in mode 'newest'
 * may bring any token there, and a place that follows this one jumps to its
 * clock.
 */
static int64
clock_token(void)
{
	return usecs_as_tokens(GetCurrentTimestamp() - CLOCK_EPOCH);
}

/*
 * Where a jump goes, at the least: to the clock, to the microsecond, since two
 * jumps in one second must differ as well; and above what the place that we
 * left can have granted since it began, which counts where its tokens were
 * above the clock (raise_token, fences, a clock that was wrong).
 */
static int64
jump_target(Relation places, Oid seq, int64 highest)
{
	TimestampTz now = GetCurrentTimestamp();
	TimestampTz since;
	int64		granted = 0;

	if (place_left_since(places, seq, &since))
		granted = usecs_as_tokens(now - since);
	if (granted > PG_INT64_MAX - highest)
		return highest;
	return Max(clock_token(), highest + granted);
}

/*
 * The jump.  CREATE EXTENSION settles at a place that never was and with no
 * token known: the only case that does not jump.  Returns as its caller does.
 */
static bool
settle(TokenSource *source, KeyedTable *lease, bool nowait)
{
	KeyedTable	fence;
	Relation	places;
	int64		highest = sequence_last(source->seq);
	int64		target;
	bool		jump;

	if (!keyed_open(&fence, TABLE_FENCE, RowExclusiveLock, nowait))
		return false;
	places = own_open(REL_PLACE, RowExclusiveLock, nowait);
	if (places == NULL)
	{
		keyed_close(&fence);
		return false;
	}
	highest = Max(highest, highest_in(lease->heap, LEASE_VERSION, PG_INT64_MAX));
	/* The sequence is not in a dump, but its places are. */
	highest = Max(highest, highest_in(places, PLACE_STARTED, PG_INT64_MAX));
	highest = Max(highest, highest_in(keyed_heap(&fence), FENCE_HIGHEST,
									  Max(highest, clock_token())));
	keyed_close(&fence);

	target = highest;
	jump = highest > 0 || sequence_last(source->place) != 0;
	if (jump)
		target = sequence_advance(source->seq,
								  jump_target(places, RelationGetRelid(source->seq), highest), 0);
	place_record(places, RelationGetRelid(source->seq), highest, target, jump);
	relation_close(places, NoLock);
	sequence_put(source->place, place_fingerprint(RelationGetRelid(source->seq)));
	return true;
}

/*
 * Opens the sequences, to be locked to the end of the transaction.  False only
 * with nowait, when somebody's lock is in the way.  Called before R is taken.
 */
bool
token_open(TokenSource *source, LOCKMODE mode, bool nowait)
{
	source->seq = own_open(REL_TOKEN_SEQ, mode, nowait);
	if (source->seq == NULL)
		return false;
	source->place = own_open(REL_PLACE_SEQ, mode, nowait);
	if (source->place != NULL)
		return true;
	relation_close(source->seq, NoLock);
	return false;
}

void
token_close(TokenSource *source)
{
	relation_close(source->place, NoLock);
	relation_close(source->seq, NoLock);
}

/*
 * Makes sure that tokens are minted at the place where we are, by a jump if it
 * must be.  Called without R, since a jump scans.  False only with nowait, when
 * another backend is at it, or a relation is locked.
 */
bool
token_settle_place(TokenSource *source, KeyedTable *lease, bool nowait)
{
	bool		settled = true;

	if (!lock_name(LOCK_PLACE, NULL, GRANT_MODE, nowait))
		return false;
	if (!place_is_current(source))
		settled = settle(source, lease, nowait);
	unlock_name(LOCK_PLACE, NULL, GRANT_MODE);
	return settled;
}

/*
 * Raises the sequence to floor, if it is lower: every token minted from now on
 * is larger.  Returns the last value then.
 */
int64
token_raise(TokenSource *source, int64 floor)
{
	int64		last = sequence_last(source->seq);

	return last >= floor ? last : sequence_advance(source->seq, floor - 1, 0);
}

/* The last token that was minted, or that crash recovery takes for it. */
int64
token_last(TokenSource *source)
{
	return sequence_last(source->seq);
}

/* Whether the next grant has to jump first. */
bool
token_moved(TokenSource *source)
{
	return !place_is_current(source);
}

/*
 * The next token for a resource, larger than version and highest: what its row
 * and its fence have seen.  Returns 0 when tokens were last minted at another
 * place: drop R, call token_settle_place() and start over.  A row whose token
 * the sequence never gave out came from another place, too.  Raises 2200H when
 * the tokens are used up, and when that resource's fence has accepted one that
 * cannot have been granted: see clock_token().
 */
int64
token_mint(TokenSource *source, int64 version, int64 highest, const LeaseName *resource)
{
	int64		floor = Max(version, highest);
	int64		token;

	if (!place_is_current(source))
		return 0;
	if (highest > version && highest > sequence_last(source->seq) && highest > clock_token())
		ereport(ERROR,
				(errcode(ERRCODE_SEQUENCE_GENERATOR_LIMIT_EXCEEDED),
				 errmsg("fence of resource \"%s\" has accepted a token that is out of reach",
						name_cstring(resource)),
				 errdetail("A write under token " INT64_FORMAT " was accepted, and no server grants such tokens yet.",
						   highest),
				 errhint("Call lease_lock.forget_fence, or, if that token is genuine, lease_lock.raise_token.")));
	token = sequence_advance(source->seq, floor, version);
	if (token == 0)
		sequence_put(source->place, PLACE_UNKNOWN);
	return token;
}

/*
 * Trigger on lease and fence: a row that SQL writes into them (a restore, or
 * logical replication, which carries no sequence) may bring a token that was
 * not minted here.  Then the next grant jumps.  Our own writes fire no trigger.
 * AFTER, when the row is where a jump in between would find it.
 */
Datum
ll_token_arrives(PG_FUNCTION_ARGS)
{
	TriggerData *td = (TriggerData *) fcinfo->context;
	bool		update;
	HeapTuple	row;
	Relation	rel;
	AttrNumber	column = InvalidAttrNumber;
	TokenSource source;
	bool		isnull;
	int64		token;

	if (!CALLED_AS_TRIGGER(fcinfo) || !TRIGGER_FIRED_AFTER(td->tg_event) ||
		!TRIGGER_FIRED_FOR_ROW(td->tg_event))
		elog(ERROR, "token_arrives() is not called as a trigger on rows");
	rel = own_open(REL_LEASE, RowExclusiveLock, false);
	if (RelationGetRelid(rel) == RelationGetRelid(td->tg_relation))
		column = LEASE_VERSION;
	relation_close(rel, NoLock);
	rel = own_open(REL_FENCE, RowExclusiveLock, false);
	if (RelationGetRelid(rel) == RelationGetRelid(td->tg_relation))
		column = FENCE_HIGHEST;
	relation_close(rel, NoLock);
	if (column == InvalidAttrNumber)
		elog(ERROR, "token_arrives() is not called on a table of lease_lock");

	update = TRIGGER_FIRED_BY_UPDATE(td->tg_event);
	row = update ? td->tg_newtuple : td->tg_trigtuple;
	token = DatumGetInt64(heap_getattr(row, column, RelationGetDescr(td->tg_relation), &isnull));
	if (!isnull)
	{
		(void) token_open(&source, RowExclusiveLock, false);
		if (token > sequence_last(source.seq) && sequence_last(source.place) != PLACE_UNKNOWN)
			sequence_put(source.place, PLACE_UNKNOWN);
		token_close(&source);
	}
	PG_RETURN_POINTER(NULL);
}

/* For the install script: remembers where this database began to count. */
Datum
ll_settle_place(PG_FUNCTION_ARGS)
{
	TokenSource source;
	KeyedTable	lease;

	(void) token_open(&source, RowExclusiveLock, false);
	(void) keyed_open(&lease, TABLE_LEASE, RowExclusiveLock, false);
	(void) token_settle_place(&source, &lease, false);
	keyed_close(&lease);
	token_close(&source);
	PG_RETURN_VOID();
}
