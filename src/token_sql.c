/*
 * token_sql.c
 *		What administrators do to tokens and see of them: raise_token() and the
 *		function behind the view token_state.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/relation.h"
#include "access/xlog.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "lease_lock.h"
#include "place.h"

PG_FUNCTION_INFO_V1(ll_raise_token);
PG_FUNCTION_INFO_V1(ll_token_state);

/* raise_token(floor, force): what tokens go on from */
Datum
ll_raise_token(PG_FUNCTION_ARGS)
{
	int64		floor;
	bool		force = !PG_ARGISNULL(1) && PG_GETARG_BOOL(1);
	TokenSource tokens;
	KeyedTable	lease;
	int64		before;
	int64		last;

	if (PG_ARGISNULL(0))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("floor must not be null"),
				 errhint("Pass the highest token that can have been granted anywhere.")));
	floor = PG_GETARG_INT64(0);
	if (floor <= 0 || floor == PG_INT64_MAX)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("floor is out of range"),
				 errdetail("It is " INT64_FORMAT "; tokens are positive, and one must be left above it.", floor),
				 errhint("Pass the highest token that can have been granted anywhere.")));
	if (floor > MAX_EXACT_TOKEN && !force)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("floor is out of range"),
				 errdetail("It is " INT64_FORMAT ", and above " INT64_FORMAT " clients that keep numbers as doubles confuse tokens.",
						   floor, MAX_EXACT_TOKEN),
				 errhint("What was raised cannot be lowered again; pass force => true if it must be.")));
	PreventCommandIfReadOnly("raise_token()");
	PreventCommandIfParallelMode("raise_token()");

	(void) keyed_open(&lease, TABLE_LEASE, RowExclusiveLock, false);
	(void) token_open(&tokens, RowExclusiveLock, false);
	(void) token_settle_place(&tokens, &lease, false);
	before = token_last(&tokens);
	last = token_raise(&tokens, floor);
	token_close(&tokens);
	keyed_close(&lease);
	if (last > before)
	{
		char	   *detail = psprintf("from " INT64_FORMAT " to " INT64_FORMAT, before, last);

		audit_write("raise_token", "lease_lock.token_seq", NULL, detail, AUDIT_FOR_GOOD);
		ereport(event_level,
				(errmsg("fencing tokens raised by \"%s\" %s",
						GetUserNameFromId(GetUserId(), false), detail)));
		/* It stays whatever becomes of the transaction, so make it durable now. */
		XLogFlush(XactLastRecEnd);
		require_sync_commit();
	}
	PG_RETURN_INT64(last);
}

/* token_state_data() */
Datum
ll_token_state(PG_FUNCTION_ARGS)
{
	TupleDesc	desc;
	TokenSource tokens;
	Relation	places;
	PlaceRow	row;
	Datum		values[11] = {0};
	bool		nulls[11];
	int64		last;

	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	memset(nulls, true, sizeof(nulls));
	(void) token_open(&tokens, AccessShareLock, false);
	places = own_open(REL_PLACE, AccessShareLock, false);
	last = token_last(&tokens);
	nulls[0] = nulls[1] = false;
	values[0] = Int64GetDatum(last);
	values[1] = Int64GetDatum(PG_INT64_MAX - last);
	if (!RecoveryInProgress())
	{
		nulls[2] = false;
		values[2] = BoolGetDatum(token_moved(&tokens));
	}
	if (place_newest(places, false, &row))
	{
		nulls[3] = nulls[4] = nulls[5] = nulls[6] = false;
		values[3] = TimestampTzGetDatum(row.at);
		values[4] = CStringGetTextDatum(psprintf(UINT64_FORMAT, row.place.system));
		values[5] = Int32GetDatum((int32) row.place.timeline);
		values[6] = ObjectIdGetDatum(row.place.database);
	}
	if (place_newest(places, true, &row))
	{
		nulls[7] = nulls[8] = nulls[9] = nulls[10] = false;
		values[7] = TimestampTzGetDatum(row.at);
		values[8] = Int64GetDatum(row.highest);
		values[9] = Int64GetDatum(row.started);
		values[10] = CStringGetTextDatum(row.reason);
	}
	relation_close(places, NoLock);
	token_close(&tokens);
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc), values, nulls)));
}
