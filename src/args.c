/*
 * args.c
 *		Checks what callers pass: names and durations.
 *
 * Every check here runs before any lock is taken and before any row is read,
 * so that a bad argument changes nothing.  No function here looks at state
 * other than the settings.
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "common/int.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "lease_lock.h"

/* A LeaseName over bytes that must outlive it. */
LeaseName
make_name(const char *data, int len)
{
	LeaseName	name;

	name.data = data;
	name.len = len;
	name.hash = hash_bytes_extended((const unsigned char *) data, len, 0);
	return name;
}

/* A palloc'd, NUL-terminated copy, for messages. */
char *
name_cstring(const LeaseName *name)
{
	return pnstrdup(name->data, name->len);
}

bool
name_equal(const LeaseName *a, const LeaseName *b)
{
	return a->hash == b->hash && a->len == b->len &&
		memcmp(a->data, b->data, a->len) == 0;
}

/* Raises 22004 for a NULL argument that has no default meaning. */
void
argument_is_null(const char *what)
{
	ereport(ERROR,
			(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
			 errmsg("%s must not be null", what),
			 errhint("Pass a value of 1 to %d bytes.", MAX_NAME_BYTES)));
}

/*
 * A resource or an owner as the caller gave it: 1 to MAX_NAME_BYTES bytes,
 * nothing trimmed or folded.  The bytes stay in arg.  Raises 22023.
 */
LeaseName
name_arg(text *arg, const char *what)
{
	int			len = VARSIZE_ANY_EXHDR(arg);

	if (len == 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s must not be empty", what),
				 errhint("Pass a value of 1 to %d bytes.", MAX_NAME_BYTES)));
	if (len > MAX_NAME_BYTES)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s is too long", what),
				 errdetail("It has %d bytes, and the limit is %d.", len, MAX_NAME_BYTES),
				 errhint("Shorten it, or pass a digest of it.")));
	return make_name(VARDATA_ANY(arg), len);
}

/*
 * Microseconds of an interval whose length does not depend on a calendar: a
 * day is 24 hours.  False when it has months, is infinite (which PostgreSQL
 * 17 stores as extreme months) or overflows.
 */
static bool
interval_usecs(const Interval *i, int64 *usecs)
{
	int64		days;

	if (i->month != 0)
		return false;
	if (pg_mul_s64_overflow((int64) i->day, USECS_PER_DAY, &days) ||
		pg_add_s64_overflow(days, i->time, usecs))
		return false;
	return true;
}

Interval *
usecs_interval(int64 usecs)
{
	Interval   *i = palloc0(sizeof(Interval));

	i->time = usecs;
	return i;
}

/* For messages: "2.5 s", "250 ms". */
char *
usecs_text(int64 usecs)
{
	int64		ms = usecs / 1000;

	if (ms < 1000)
		return psprintf(INT64_FORMAT " ms", ms);
	if (ms % 1000 == 0)
		return psprintf(INT64_FORMAT " s", ms / 1000);
	return psprintf(INT64_FORMAT ".%03d s", ms / 1000, (int) (ms % 1000));
}

static void
bad_duration(const char *what, const char *low, int max_ms, const char *guc)
{
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("%s is out of range", what),
			 errdetail("It must be from %s to %s (%s), in days, hours, minutes and seconds; months have no fixed length.",
					   low, usecs_text(max_ms * INT64CONST(1000)), guc),
			 errhint("Pass an interval in that range.")));
}

/*
 * Microseconds of a TTL or a cooldown: 1 ms to lease_lock.max_ttl.  A NULL
 * arg means lease_lock.default_ttl.  Raises 22023.
 */
int64
ttl_arg(const Interval *arg, const char *what)
{
	int64		usecs;

	if (arg == NULL)
		return Min(default_ttl_ms, max_ttl_ms) * INT64CONST(1000);
	if (!interval_usecs(arg, &usecs) || usecs < 1000 ||
		usecs > max_ttl_ms * INT64CONST(1000))
		bad_duration(what, "1 ms", max_ttl_ms, "lease_lock.max_ttl");
	return usecs;
}

/*
 * Microseconds of a wait: 0 to lease_lock.max_wait.  A NULL arg means
 * lease_lock.default_wait.  Raises 22023.
 */
int64
wait_arg(const Interval *arg)
{
	int64		usecs;

	if (arg == NULL)
		return Min(default_wait_ms, max_wait_ms) * INT64CONST(1000);
	if (!interval_usecs(arg, &usecs) || usecs < 0 ||
		usecs > max_wait_ms * INT64CONST(1000))
		bad_duration("wait", "0", max_wait_ms, "lease_lock.max_wait");
	return usecs;
}

/*
 * Microseconds of an age beyond which something is removed: 0 or more.  Raises
 * 22023, and 22004 for NULL.
 */
int64
age_arg(const Interval *arg, const char *what)
{
	int64		usecs;

	if (arg == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("%s must not be null", what),
				 errhint("Pass an interval, or leave the argument out for its default.")));
	if (!interval_usecs(arg, &usecs) || usecs < 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s is out of range", what),
				 errdetail("It must be 0 or more, in days, hours, minutes and seconds; months have no fixed length."),
				 errhint("Pass an interval in that range.")));
	return usecs;
}

/* An administrator's reason; raises 22004 for NULL and 22023 for nothing. */
char *
reason_arg(text *arg)
{
	if (arg == NULL || VARSIZE_ANY_EXHDR(arg) == 0)
		ereport(ERROR,
				(errcode(arg == NULL ? ERRCODE_NULL_VALUE_NOT_ALLOWED :
						 ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("reason must not be %s", arg == NULL ? "null" : "empty"),
				 errhint("Say why, for whoever reads lease_lock.audit later.")));
	return text_to_cstring(arg);
}
