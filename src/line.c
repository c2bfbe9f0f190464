/*
 * line.c
 *		The lines in which backends wait for leases, and their wake-ups.
 *
 * Waiters of a name stand in the order of their arrival.  Only the first one
 * in line tries to be granted; the others sleep.  Whatever makes a lease
 * grantable sooner than the first one in line expects wakes that one, and
 * nobody else: a release, at its commit, or the end of a session.  Who leaves
 * the line without a lease wakes the one that is first then.  Who leaves it
 * with a lease need not, if its transaction is about to end and the lease cannot
 * end without a wake-up before it expires: the next one looks around before that.
 * It does wake those who wait for the same owner, whose lease it is, too.
 *
 * No wake-up is lost: a waiter joins the line before it looks at the row for
 * the last time, and who releases looks at the line after its commit is
 * visible.
 *
 * A stopped process must not keep a line from moving.  Every waiter says when
 * it will look again ("due").  One that has not looked for STALLED after that
 * is passed over until it does; the others look now and then, the further back
 * the more seldom, whether all ahead of them are stalled.  Whoever has moved up
 * by more than that is woken to look again.
 *
 * Every backend has one place, found by its process number.  Sleeping is on
 * the process latch: each waiter is woken by itself, so that a condition
 * variable would only be a list of one.
 *
 * Nothing here reads a row or takes a heavyweight lock.
 */
#include "postgres.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "storage/latch.h"
#include "storage/proc.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "lease_lock.h"
#include "shared.h"

#define BUCKETS			128
#define NO_PLACE		(-1)
#define STALLED			USECS_PER_SEC
#define LOOK_AROUND		(2 * USECS_PER_SEC) /* times the waiters ahead */
#define FRONT			16		/* of a line, where who moves up is told */

typedef struct Bucket
{
	LWLock		lock;			/* of the list, not of due */
	int32		head;
	int32		tail;
} Bucket;

typedef struct Lines
{
	Bucket		buckets[BUCKETS];
	LinePlace	places[FLEXIBLE_ARRAY_MEMBER];	/* by process number */
} Lines;

static Lines *lines = NULL;

/* This backend's place while it stands in a line, and what it must undo. */
static LinePlace *mine = NULL;
static int	my_level;			/* nesting level that joined */

/* Names to wake somebody for when this transaction ends. */
typedef struct Wake
{
	LeaseName	resource;
	bool		at_abort;		/* at commit otherwise */
} Wake;

static Wake *wakes = NULL;
static int	n_wakes = 0;
static int	max_wakes = 0;

/* Makes the lines in a new shared area. */
void
line_make(dsa_area *area, SharedCtl *ctl)
{
	Size		size = offsetof(Lines, places) + MaxBackends * sizeof(LinePlace);
	Lines	   *l;

	ctl->line = dsa_allocate_extended(area, size, DSA_ALLOC_HUGE | DSA_ALLOC_ZERO);
	l = dsa_get_address(area, ctl->line);
	for (int i = 0; i < BUCKETS; i++)
	{
		LWLockInitialize(&l->buckets[i].lock, ctl->tranche);
		l->buckets[i].head = l->buckets[i].tail = NO_PLACE;
	}
	for (int i = 0; i < MaxBackends; i++)
		pg_atomic_init_u64(&l->places[i].due, 0);
}

void
line_attach(dsa_area *area, SharedCtl *ctl)
{
	lines = dsa_get_address(area, ctl->line);
}

static Bucket *
bucket_of(const LeaseName *resource)
{
	return &lines->buckets[(resource->hash ^ MyDatabaseId) % BUCKETS];
}

static inline LinePlace *
place_at(int32 i)
{
	return i == NO_PLACE ? NULL : &lines->places[i];
}

/* The name that a place is for; its bytes stay there. */
LeaseName
line_resource(const LinePlace *p)
{
	LeaseName	name = {p->resource, p->resource_len, p->hash};

	return name;
}

static bool
in_line_of(const LinePlace *p, const LeaseName *resource)
{
	LeaseName	name = line_resource(p);

	return p->database == MyDatabaseId && name_equal(&name, resource);
}

static TimestampTz
due_of(LinePlace *p)
{
	return (TimestampTz) pg_atomic_read_u64(&p->due);
}

static bool
stalled(LinePlace *p, TimestampTz now)
{
	return p != mine && now > due_of(p) + STALLED;
}

/* The first in line who is not stalled; needs the bucket's lock. */
static LinePlace *
first_in_line(Bucket *b, const LeaseName *resource)
{
	TimestampTz now = GetCurrentTimestamp();

	for (LinePlace *p = place_at(b->head); p; p = place_at(p->next))
		if (in_line_of(p, resource) && !stalled(p, now))
			return p;
	return NULL;
}

/* Has somebody in line look again; needs the bucket's lock. */
static void
wake(LinePlace *p)
{
	uint64		due = pg_atomic_read_u64(&p->due);
	TimestampTz now = GetCurrentTimestamp();

	/* In a lock wait it cannot look sooner, and is not stalled because of that. */
	if (p->asleep && (TimestampTz) due > now)
		(void) pg_atomic_compare_exchange_u64(&p->due, &due, (uint64) now);
	SetLatch(&GetPGProcByNumber(p - lines->places)->procLatch);
}

/*
 * Wakes the first in line unless it sleeps now and will look by itself before a
 * moment.  Needs the bucket's lock.
 */
static void
wake_first(Bucket *b, const LeaseName *resource, TimestampTz before)
{
	LinePlace  *p = first_in_line(b, resource);

	if (p && p != mine &&
		!(due_of(p) > GetCurrentTimestamp() && due_of(p) < before))
		wake(p);
}

/*
 * How many waiters stand before this backend in the line of a name, or in all
 * when it stands in none, stalled ones left out.  Next to free where nobody
 * waits for anything.
 */
int
line_ahead(const LeaseName *resource)
{
	SharedCtl  *ctl = shared_ctl();
	Bucket	   *b;
	TimestampTz now;
	int			n = 0;

	if (ctl == NULL || pg_atomic_read_u32(&ctl->n_waiting) == (mine ? 1 : 0) ||
		!shared_attach())
		return 0;
	b = bucket_of(resource);
	now = GetCurrentTimestamp();
	LWLockAcquire(&b->lock, LW_SHARED);
	for (LinePlace *p = place_at(b->head); p && p != mine; p = place_at(p->next))
		if (in_line_of(p, resource) && !stalled(p, now))
			n++;
	LWLockRelease(&b->lock);
	return n;
}

/*
 * Puts this backend at the end of a line, until line_leave() or the end of the
 * (sub)transaction by an error.  Returns false when the shared area is another
 * library's; then waits are polled.  Raises 53400 when the line is full.
 */
bool
line_join(const LeaseName *resource, const LeaseName *owner,
		  TimestampTz since, TimestampTz deadline)
{
	Bucket	   *b;
	LinePlace  *p;
	int32		me = compat_my_proc_number();
	int			n = 0;

	Assert(mine == NULL);
	if (!shared_attach())
		return false;
	Assert(me >= 0 && me < MaxBackends);
	b = bucket_of(resource);
	p = &lines->places[me];
	p->database = MyDatabaseId;
	p->role = GetUserId();
	p->pid = MyProcPid;
	p->backend_start = MyStartTimestamp;
	p->since = since;
	p->deadline = deadline;
	p->asleep = false;
	p->hash = resource->hash;
	p->resource_len = resource->len;
	memcpy(p->resource, resource->data, resource->len);
	p->owner_len = owner->len;
	memcpy(p->owner, owner->data, owner->len);
	pg_atomic_write_u64(&p->due, GetCurrentTimestamp());

	LWLockAcquire(&b->lock, LW_EXCLUSIVE);
	if (max_waiters >= 0)
		for (LinePlace *other = place_at(b->head); other; other = place_at(other->next))
			if (in_line_of(other, resource))
				n++;
	if (max_waiters < 0 || n < max_waiters)
	{
		p->next = NO_PLACE;
		p->prev = b->tail;
		if (b->tail == NO_PLACE)
			b->head = me;
		else
			lines->places[b->tail].next = me;
		b->tail = me;
		mine = p;
		my_level = GetCurrentTransactionNestLevel();
		/* Before the last look at the row; see the file's header. */
		pg_atomic_fetch_add_u32(&shared_ctl()->n_waiting, 1);
	}
	LWLockRelease(&b->lock);
	if (mine == NULL)
	{
		stats_count(STAT_TIMEOUTS, resource);
		ereport(ERROR,
				(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
				 errmsg("too many waiters for the lease on resource \"%s\"", name_cstring(resource)),
				 errdetail("%d wait for it, and lease_lock.max_waiters is %d.", n, max_waiters),
				 errhint("Try again later; view lease_lock.waiters shows who waits.")));
	}
	return true;
}

static void
wake_at_end(const LeaseName *resource, bool at_abort)
{
	char	   *name = MemoryContextAlloc(TopTransactionContext, resource->len);

	memcpy(name, resource->data, resource->len);
	if (n_wakes == max_wakes)
	{
		max_wakes = max_wakes ? 2 * max_wakes : 16;
		wakes = wakes ?
			repalloc_huge(wakes, max_wakes * sizeof(Wake)) :
			MemoryContextAlloc(TopTransactionContext, max_wakes * sizeof(Wake));
	}
	wakes[n_wakes].resource = *resource;
	wakes[n_wakes].resource.data = name;
	wakes[n_wakes].at_abort = at_abort;
	n_wakes++;
}

/* Wakes all who wait in the line of a place for its owner, too. */
static void
wake_owner(Bucket *b, const LinePlace *place)
{
	LeaseName	resource = line_resource(place);

	for (LinePlace *p = place_at(b->head); p; p = place_at(p->next))
		if (p != place && in_line_of(p, &resource) && p->owner_len == place->owner_len &&
			memcmp(p->owner, place->owner, p->owner_len) == 0)
			wake(p);
}

/*
 * Wakes those in front who have moved up since they looked, so that they would
 * look around much later than their place asks for.  Needs the bucket's lock.
 */
static void
wake_moved_up(Bucket *b, const LeaseName *resource)
{
	TimestampTz now = GetCurrentTimestamp();
	int			ahead = 0;
	int			seen = 0;

	for (LinePlace *p = place_at(b->head); p && seen < FRONT; p = place_at(p->next))
	{
		if (!in_line_of(p, resource))
			continue;
		if (due_of(p) > now + 2 * LOOK_AROUND * Max(ahead, 1))
			wake(p);
		if (!stalled(p, now))
			ahead++;
		seen++;
	}
}

/*
 * Leaves the line, with or without a lease.  If this backend was the first, the
 * next one is woken to take its turn, and whatever wake-up this one had received,
 * unless it will look before a moment anyway.
 */
static void
leave(bool granted, TimestampTz before)
{
	LinePlace  *p = mine;
	LeaseName	resource = line_resource(p);
	Bucket	   *b = bucket_of(&resource);
	bool		first;

	LWLockAcquire(&b->lock, LW_EXCLUSIVE);
	first = first_in_line(b, &resource) == p;
	if (granted)
		wake_owner(b, p);
	mine = NULL;
	if (p->prev == NO_PLACE)
		b->head = p->next;
	else
		lines->places[p->prev].next = p->next;
	if (p->next == NO_PLACE)
		b->tail = p->prev;
	else
		lines->places[p->next].prev = p->prev;
	pg_atomic_fetch_sub_u32(&shared_ctl()->n_waiting, 1);
	if (first)
		wake_first(b, &resource, before);
	wake_moved_up(b, &resource);
	LWLockRelease(&b->lock);
}

/* Leaves the line, if this backend stands in one, without a lease. */
void
line_leave(void)
{
	if (mine)
		leave(false, DT_NOBEGIN);
}

/*
 * Leaves the line, if this backend stands in one, with a lease that nothing ends
 * before a moment without a wake-up; DT_NOBEGIN: something can at any time.
 * Then, and in a transaction block, the next one is woken at once, to look out
 * for that end itself or to wait for the transaction where everybody can see it.
 */
void
line_leave_granted(TimestampTz lasts_until)
{
	LeaseName	resource;

	if (mine == NULL)
		return;
	resource = line_resource(mine);
	if (IsTransactionBlock() || IsSubTransaction())
		lasts_until = DT_NOBEGIN;
	if (lasts_until != DT_NOBEGIN)
		wake_at_end(&resource, true);
	leave(true, lasts_until);
}

/* Says until when this backend will not look again, if it stands in line. */
void
line_due(TimestampTz due)
{
	if (mine)
		pg_atomic_write_u64(&mine->due, Min(due, DT_NOEND - STALLED));
}

/*
 * Sleeps in line until a moment, or until woken.  Interrupts are served by the
 * caller's next look.
 */
void
line_sleep(TimestampTz until)
{
	long		ms = TimestampDifferenceMilliseconds(GetCurrentTimestamp(), until);

	if (ms > 0 && ms < INT_MAX)
		ms++;					/* not a moment too early */
	line_due(until);
	if (mine)
		mine->asleep = true;
	(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
					 ms, shared_wait_event());
	ResetLatch(MyLatch);
	if (mine)
		mine->asleep = false;
	line_due(GetCurrentTimestamp());
}

/* Until when somebody with so many waiters ahead need not look around. */
TimestampTz
line_look_around(int ahead)
{
	return GetCurrentTimestamp() + LOOK_AROUND * ahead;
}

/* Whether anybody waits for anything, as far as a glance can tell. */
bool
line_waits(void)
{
	SharedCtl  *ctl = shared_ctl();

	return ctl != NULL && pg_atomic_read_u32(&ctl->n_waiting) > 0;
}

/* Wakes the first one in line for a name, now. */
void
line_wake(const LeaseName *resource)
{
	SharedCtl  *ctl = shared_ctl();
	Bucket	   *b;

	pg_memory_barrier();
	if (lines == NULL || pg_atomic_read_u32(&ctl->n_waiting) == 0)
		return;
	b = bucket_of(resource);
	LWLockAcquire(&b->lock, LW_SHARED);
	wake_first(b, resource, DT_NOBEGIN);
	LWLockRelease(&b->lock);
}

/*
 * Has the first one in line for a name woken when this transaction has
 * committed.  Attaches the shared area now: at commit nothing may fail.
 */
void
line_wake_at_commit(const LeaseName *resource)
{
	if (shared_attach())
		wake_at_end(resource, false);
}

/*
 * Copies of the places of this database's waiters, or of the one of a backend
 * (pid not 0), in a palloc'd array; those of one name in their order.  Returns
 * their number.
 */
int
line_copy(int pid, LinePlace **copies)
{
	SharedCtl  *ctl = shared_ctl();
	int			n = 0;
	int			max = 8;

	*copies = NULL;
	if (ctl == NULL || pg_atomic_read_u32(&ctl->n_waiting) == 0 || !shared_attach())
		return 0;
	*copies = palloc(max * sizeof(LinePlace));
	for (int i = 0; i < BUCKETS; i++)
	{
		Bucket	   *b = &lines->buckets[i];

		/* A glance without the lock: who joins just now may be missed. */
		if (*(volatile int32 *) &b->head == NO_PLACE)
			continue;
		LWLockAcquire(&b->lock, LW_SHARED);
		for (LinePlace *p = place_at(b->head); p; p = place_at(p->next))
		{
			if (p->database != MyDatabaseId || (pid != 0 && p->pid != pid))
				continue;
			if (n == max)
			{
				max *= 2;
				*copies = repalloc_huge(*copies, max * sizeof(LinePlace));
			}
			(*copies)[n++] = *p;
		}
		LWLockRelease(&b->lock);
	}
	return n;
}

static void
xact_callback(XactEvent event, void *arg)
{
	if (event != XACT_EVENT_COMMIT && event != XACT_EVENT_ABORT &&
		event != XACT_EVENT_PREPARE)
		return;
	if (event == XACT_EVENT_ABORT)
		line_leave();
	/* At PREPARE both kinds: who is first must know that nobody will wake it later. */
	for (int i = 0; i < n_wakes; i++)
		if (event == XACT_EVENT_PREPARE ||
			wakes[i].at_abort == (event == XACT_EVENT_ABORT))
			line_wake(&wakes[i].resource);
	wakes = NULL;
	n_wakes = max_wakes = 0;
}

static void
subxact_callback(SubXactEvent event, SubTransactionId mySubid,
				 SubTransactionId parentSubid, void *arg)
{
	if (event == SUBXACT_EVENT_ABORT_SUB && mine &&
		GetCurrentTransactionNestLevel() <= my_level)
		line_leave();
}

void
line_init(void)
{
	RegisterXactCallback(xact_callback, NULL);
	RegisterSubXactCallback(subxact_callback, NULL);
}
