/*
 * place.c
 *		Where tokens are minted: the server, its timeline, the database and the
 *		sequence.
 *
 * place_seq keeps a fingerprint of it, which every grant compares (token.c);
 * the table lease_lock.place keeps it in words, one row for each place, for
 * the view token_state.  Like the sequences that table does not follow the
 * transaction: its rows are written frozen, so that a jump is on record even
 * where the first grant after it was rolled back.
 */
#include "postgres.h"

#include "access/heapam.h"
#include "access/htup_details.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/indexing.h"
#include "commands/dbcommands.h"
#include "common/hashfn.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "lease_lock.h"
#include "place.h"

/* Where we are now; not in recovery. */
static Place
current_place(Oid seq)
{
	Place		place = {0};

	place.system = GetSystemIdentifier();
	place.timeline = GetWALInsertionTimeLine();
	place.database = MyDatabaseId;
	place.sequence = seq;
	return place;
}

/* A fingerprint of where we are now; positive, and the same until we move. */
int64
place_fingerprint(Oid seq)
{
	static Place last;
	static int64 fingerprint = 0;	/* that of last */
	Place		place = current_place(seq);

	if (fingerprint == 0 || memcmp(&place, &last, sizeof(place)) != 0)
	{
		last = place;
		fingerprint = (int64) (hash_bytes_extended((unsigned char *) &place, sizeof(place), 0)
							   & PG_INT64_MAX) | 1;
	}
	return fingerprint;
}

static void
decode(HeapTuple tuple, TupleDesc desc, PlaceRow *row)
{
	Datum		values[PLACE_NATTS];
	bool		nulls[PLACE_NATTS];

	heap_deform_tuple(tuple, desc, values, nulls);
	row->at = DatumGetTimestampTz(values[PLACE_AT - 1]);
	row->highest = DatumGetInt64(values[PLACE_HIGHEST - 1]);
	row->started = DatumGetInt64(values[PLACE_STARTED - 1]);
	memset(&row->place, 0, sizeof(row->place));
	row->place.system = strtou64(TextDatumGetCString(values[PLACE_SYSTEM - 1]), NULL, 10);
	row->place.timeline = DatumGetInt32(values[PLACE_TIMELINE - 1]);
	row->place.database = DatumGetObjectId(values[PLACE_DATABASE - 1]);
	row->place.sequence = DatumGetObjectId(values[PLACE_SEQUENCE - 1]);
	row->reason = TextDatumGetCString(values[PLACE_REASON - 1]);
}

/*
 * The newest row, perhaps only of jumps, perhaps only of places other than one;
 * false when there is none.  A snapshot of its own, which takes no predicate
 * lock.
 */
static bool
newest_row(Relation places, bool jump, const Place *other_than, PlaceRow *newest)
{
	SnapshotData dirty;
	TableScanDesc scan;
	TupleTableSlot *slot = table_slot_create(places, NULL);
	bool		found = false;

	InitDirtySnapshot(dirty);
	scan = table_beginscan(places, &dirty, 0, NULL);
	while (table_scan_getnextslot(scan, ForwardScanDirection, slot))
	{
		PlaceRow	row;

		CHECK_FOR_INTERRUPTS();
		decode(ExecFetchSlotHeapTuple(slot, false, NULL), RelationGetDescr(places), &row);
		if (jump && strcmp(row.reason, PLACE_INSTALLED) == 0)
			continue;
		if (other_than && memcmp(&row.place, other_than, sizeof(Place)) == 0)
			continue;
		if (!found || row.at >= newest->at)
			*newest = row;
		found = true;
	}
	table_endscan(scan);
	ExecDropSingleTupleTableSlot(slot);
	return found;
}

bool
place_newest(Relation places, bool jump, PlaceRow *newest)
{
	return newest_row(places, jump, NULL, newest);
}

/*
 * When the place that tokens come from began to mint them, as far as is known;
 * false when it is not.
 */
bool
place_left_since(Relation places, Oid seq, TimestampTz *at)
{
	Place		now = current_place(seq);
	PlaceRow	row;

	if (!newest_row(places, false, &now, &row) && !newest_row(places, false, NULL, &row))
		return false;
	*at = row.at;
	return true;
}

static const char *
what_changed(const Place *before, const Place *now)
{
	if (before->system != now->system)
		return "another server: restored, copied or upgraded";
	if (before->timeline != now->timeline)
		return "another timeline: promoted, or recovered to a point in time";
	if (before->database != now->database)
		return "another database: copied from a template";
	if (before->sequence != now->sequence)
		return "another sequence: the extension was created anew";
	return "restored from a dump, replicated, or set back";
}

/*
 * Records that tokens go on from started at the place where we are; highest is
 * the highest one known.  Once it returns the row stays, whatever becomes of
 * the transaction.  Writes a line to the server log for a jump.
 */
void
place_record(Relation places, Oid seq, int64 highest, int64 started, bool jump)
{
	Place		now = current_place(seq);
	PlaceRow	before;
	const char *reason = PLACE_INSTALLED;
	Datum		values[PLACE_NATTS];
	bool		nulls[PLACE_NATTS] = {0};
	HeapTuple	tuple;

	if (jump)
		reason = place_newest(places, false, &before) ?
			what_changed(&before.place, &now) : "another place, of which nothing is known";
	values[PLACE_AT - 1] = TimestampTzGetDatum(GetCurrentTimestamp());
	values[PLACE_HIGHEST - 1] = Int64GetDatum(highest);
	values[PLACE_STARTED - 1] = Int64GetDatum(started);
	values[PLACE_SYSTEM - 1] = CStringGetTextDatum(psprintf(UINT64_FORMAT, now.system));
	values[PLACE_TIMELINE - 1] = Int32GetDatum((int32) now.timeline);
	values[PLACE_DATABASE - 1] = ObjectIdGetDatum(now.database);
	values[PLACE_SEQUENCE - 1] = ObjectIdGetDatum(now.sequence);
	values[PLACE_REASON - 1] = CStringGetTextDatum(reason);
	tuple = heap_form_tuple(RelationGetDescr(places), values, nulls);
	if (places->rd_rel->relhasindex)
		CatalogTupleInsert(places, tuple);	/* somebody's index comes first */
	else
		heap_insert(places, tuple, GetCurrentCommandId(true), HEAP_INSERT_FROZEN, NULL);
	heap_freetuple(tuple);
	if (jump)
		ereport(event_level,
				(errmsg("fencing tokens of database \"%s\" jump to " INT64_FORMAT,
						get_database_name(MyDatabaseId), started),
				 errdetail("The last token was minted at another place (%s); the highest known here is " INT64_FORMAT ".",
						   reason, highest)));
}
