/*
 * lease_sql.c
 *		SQL entry points of the lease functions and of present().
 *
 * They check arguments, in the order in which they are declared and before
 * anything else, and hand on to grant.c, renew.c and fence.c.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/xlog.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "lease_lock.h"

PG_FUNCTION_INFO_V1(ll_acquire);
PG_FUNCTION_INFO_V1(ll_try_acquire);
PG_FUNCTION_INFO_V1(ll_renew);
PG_FUNCTION_INFO_V1(ll_release);
PG_FUNCTION_INFO_V1(ll_assert_held);
PG_FUNCTION_INFO_V1(ll_token_status);
PG_FUNCTION_INFO_V1(ll_present);

static LeaseName
get_name(FunctionCallInfo fcinfo, int n, const char *what)
{
	if (PG_ARGISNULL(n))
		argument_is_null(what);
	return name_arg(PG_GETARG_TEXT_PP(n), what);
}

static int64
get_token(FunctionCallInfo fcinfo, int n)
{
	if (PG_ARGISNULL(n))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("token must not be null"),
				 errhint("Pass the token that lease_lock.acquire returned; NULL from try_acquire means that the lease was not to be had.")));
	return PG_GETARG_INT64(n);
}

static const Interval *
get_interval(FunctionCallInfo fcinfo, int n)
{
	return PG_ARGISNULL(n) ? NULL : PG_GETARG_INTERVAL_P(n);
}

static Scope
get_scope(FunctionCallInfo fcinfo, int n)
{
	char	   *scope;

	if (PG_ARGISNULL(n))
		argument_is_null("scope");
	scope = text_to_cstring(PG_GETARG_TEXT_PP(n));
	if (strcmp(scope, "lease") == 0)
		return SCOPE_LEASE;
	if (strcmp(scope, "transaction") == 0)
		return SCOPE_TRANSACTION;
	if (strcmp(scope, "session") == 0)
		return SCOPE_SESSION;
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("invalid scope \"%s\"", scope),
			 errhint("Use 'lease', 'session' or 'transaction'.")));
}

/* The arguments that acquire and try_acquire share; n is that of scope. */
static GrantRequest
get_request(FunctionCallInfo fcinfo, int n)
{
	GrantRequest req;

	memset(&req, 0, sizeof(req));
	req.resource = get_name(fcinfo, 0, "resource");
	req.owner = get_name(fcinfo, 1, "owner");
	req.resource_text = PointerGetDatum(PG_GETARG_TEXT_PP(0));
	req.owner_text = PointerGetDatum(PG_GETARG_TEXT_PP(1));
	req.role = GetUserNameFromId(GetUserId(), false);
	req.ttl = ttl_arg(get_interval(fcinfo, 2), "ttl");
	req.scope = get_scope(fcinfo, n);
	req.has_payload = !PG_ARGISNULL(n + 1);
	if (req.has_payload)
		req.payload = PG_GETARG_DATUM(n + 1);
	return req;
}

/* acquire(resource, owner, ttl, wait, scope, payload) */
Datum
ll_acquire(PG_FUNCTION_ARGS)
{
	GrantRequest req = get_request(fcinfo, 4);
	int64		wait_usecs = wait_arg(get_interval(fcinfo, 3));

	(void) require_right(PRIVILEGE_ACQUIRE, PG_GETARG_TEXT_PP(0), false);
	PG_RETURN_INT64(lease_grant(&req, wait_usecs));
}

/* try_acquire(resource, owner, ttl, scope, payload) */
Datum
ll_try_acquire(PG_FUNCTION_ARGS)
{
	GrantRequest req = get_request(fcinfo, 3);
	int64		token = 0;

	if (require_right(PRIVILEGE_ACQUIRE, PG_GETARG_TEXT_PP(0), true))
		token = lease_try_grant(&req);
	if (token == 0)
		PG_RETURN_NULL();
	PG_RETURN_INT64(token);
}

/* renew(resource, token, ttl) */
Datum
ll_renew(PG_FUNCTION_ARGS)
{
	LeaseName	resource = get_name(fcinfo, 0, "resource");
	int64		token = get_token(fcinfo, 1);
	int64		ttl = PG_ARGISNULL(2) ? 0 : ttl_arg(get_interval(fcinfo, 2), "ttl");
	TimestampTz expire_at = lease_renew(&resource, token, ttl);

	if (expire_at == 0)
		PG_RETURN_NULL();
	PG_RETURN_TIMESTAMPTZ(expire_at);
}

/* release(resource, token, cooldown) */
Datum
ll_release(PG_FUNCTION_ARGS)
{
	LeaseName	resource = get_name(fcinfo, 0, "resource");
	int64		token = get_token(fcinfo, 1);
	int64		cooldown = PG_ARGISNULL(2) ? 0 : ttl_arg(get_interval(fcinfo, 2), "cooldown");

	PG_RETURN_BOOL(lease_release(&resource, token, cooldown));
}

/* assert_held(resource, token) */
Datum
ll_assert_held(PG_FUNCTION_ARGS)
{
	LeaseName	resource = get_name(fcinfo, 0, "resource");
	int64		token = get_token(fcinfo, 1);

	PG_RETURN_INTERVAL_P(usecs_interval(fence_assert_held(&resource, token)));
}

/* present(resource, token) */
Datum
ll_present(PG_FUNCTION_ARGS)
{
	LeaseName	resource = get_name(fcinfo, 0, "resource");
	int64		token = get_token(fcinfo, 1);

	check_token_positive(&resource, token);
	present_token(&resource, token, true);
	PG_RETURN_INT64(token);
}

/*
 * Reads the committed state, or this transaction's own.  A row that seems to
 * be missing is looked for again under R, except on a standby, where no lock
 * of ours excludes anybody and a second look must do.
 */
static void
read_status(const LeaseName *resource, LeaseRead *read)
{
	KeyedTable	lease;

	(void) keyed_open(&lease, TABLE_LEASE, AccessShareLock, false);
	lease_read(&lease, resource, read);
	if (!read->found)
	{
		bool		lock = !RecoveryInProgress();

		if (lock)
			(void) lock_name(LOCK_LEASE, resource, RENEW_MODE, false);
		lease_read(&lease, resource, read);
		if (lock)
			unlock_name(LOCK_LEASE, resource, RENEW_MODE);
	}
	keyed_close(&lease);
}

/* token_status(resource, token): state, expire_at, remaining, ttl, newest, holder */
Datum
ll_token_status(PG_FUNCTION_ARGS)
{
	LeaseName	resource = get_name(fcinfo, 0, "resource");
	int64		token = get_token(fcinfo, 1);
	TimestampTz now;
	LeaseRead	read;
	TupleDesc	desc;
	const char *state;
	Datum		values[6] = {0};
	bool		nulls[6] = {true, true, true, true, true, true};

	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	read_status(&resource, &read);
	now = GetCurrentTimestamp();

	if (!read.found || token > read.row.version || token <= 0)
		state = "unknown";
	else if (token < read.row.version)
		state = "superseded";
	else
		state = lease_state(&read.row, read.own, now);
	nulls[0] = false;
	values[0] = CStringGetTextDatum(state);
	if (read.found && token == read.row.version)
	{
		nulls[1] = nulls[3] = false;
		values[1] = TimestampTzGetDatum(read.row.expire_at);
		values[3] = IntervalPGetDatum(usecs_interval(read.row.ttl));
		if (strcmp(state, "held") == 0)
		{
			nulls[2] = false;
			values[2] = IntervalPGetDatum(usecs_interval(read.row.expire_at - now));
		}
	}
	if (read.found)
	{
		nulls[4] = false;
		values[4] = Int64GetDatum(read.row.version);
		if (lease_live(&read.row, read.own, now))
		{
			nulls[5] = false;
			values[5] = PointerGetDatum(cstring_to_text_with_len(read.row.owner, read.row.owner_len));
		}
	}
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc), values, nulls)));
}
