/*
 * lease_lock.h
 *		What the files of lease_lock share: names, rows, modes, prototypes.
 *
 * Calls flow one way:
 *
 *		SQL entry	 lease_sql.c  admin.c  fence_trigger.c  fence_column.c  guard.c
 *					 guard_check.c  named.c  token_sql.c  views.c  waiting_views.c
 *					 stats_sql.c
 *		logic		 guard_call.c  bypass.c  rights.c  grant.c  grant_wait.c  renew.c
 *					 fence.c  template.c
 *		waiting		 rings.c  evict.c  wait.c
 *		foundations	 rows.c  history.c  token.c  place.c  session.c  named_list.c  line.c
 *					 rejections.c  stats.c  stats_file.c  shared.c  backends.c  locks.c
 *					 relations.c  presented.c  target.c  commit.c  args.c
 *
 * Prototypes stand under the file that defines them.  Nothing here may be
 * needed by a user's own C code: the SQL interface is the only interface.
 */
#ifndef LEASE_LOCK_H
#define LEASE_LOCK_H

#include "postgres.h"

#include "access/attnum.h"
#include "access/htup.h"
#include "datatype/timestamp.h"
#include "port/atomics.h"
#include "storage/block.h"
#include "storage/buf.h"
#include "storage/lock.h"
#include "utils/relcache.h"
#include "utils/resowner.h"
#include "utils/snapshot.h"

/* The extension's own SQLSTATEs; DESIGN and doc/reference.md list them. */
#define ERRCODE_STALE_TOKEN			MAKE_SQLSTATE('L', 'L', '0', '0', '1')
#define ERRCODE_NO_TOKEN_PRESENTED	MAKE_SQLSTATE('L', 'L', '0', '0', '2')
#define ERRCODE_LEASE_NOT_HELD		MAKE_SQLSTATE('L', 'L', '0', '0', '3')
#define ERRCODE_UNKNOWN_TOKEN		MAKE_SQLSTATE('L', 'L', '0', '0', '4')

#define MAX_NAME_BYTES	512		/* of a resource and of an owner */

/*
 * The name of a resource (or an owner) as bytes, with a 64-bit hash of them.
 * data need not be NUL-terminated; name_cstring() makes a copy that is.
 */
typedef struct LeaseName
{
	const char *data;
	int			len;
	uint64		hash;
} LeaseName;

/*
 * Hidden, as PostgreSQL 16 has a module's symbols by default: otherwise the
 * first call of every session looks up each of them, in all that is loaded.
 */
#pragma GCC visibility push(hidden)

/* ---------------------------------------------------------------- main.c */
extern int	default_ttl_ms;
extern int	default_wait_ms;
extern int	max_ttl_ms;
extern int	max_wait_ms;
extern int	max_waiters;
extern int	evict_after_ms;
extern bool async_release;
extern bool keep_history;
extern int	track_resources;
extern int	event_level;

/* ---------------------------------------------------------------- args.c */
extern LeaseName make_name(const char *data, int len);
extern char *name_cstring(const LeaseName *name);
extern bool name_equal(const LeaseName *a, const LeaseName *b);
extern LeaseName name_arg(text *arg, const char *what);
extern int64 ttl_arg(const Interval *arg, const char *what);
extern int64 wait_arg(const Interval *arg);
extern int64 age_arg(const Interval *arg, const char *what);
extern Interval *usecs_interval(int64 usecs);
extern char *usecs_text(int64 usecs);
extern char *reason_arg(text *arg);
extern void argument_is_null(const char *what);

/* --------------------------------------------------------------- locks.c */
typedef enum LockClass
{
	LOCK_LEASE,					/* "R": grants, renewals and guarded writes */
	LOCK_FENCE,					/* "F": acceptance under mode 'newest' */
	LOCK_PLACE,					/* excludes two jumps of the tokens at once */
	LOCK_SESSION,				/* held by a session with leases of its own */
	LOCK_NAMED,					/* named advisory locks */
	LOCK_RINGS					/* excludes two searches for rings at once */
} LockClass;

/* The three modes; locks.c has the matrix. */
#define GUARD_MODE	RowExclusiveLock
#define RENEW_MODE	ShareUpdateExclusiveLock
#define GRANT_MODE	ExclusiveLock

extern ResourceOwner own_by_transaction(void);
extern bool lock_name(LockClass class, const LeaseName *name, LOCKMODE mode, bool nowait);
extern void unlock_name(LockClass class, const LeaseName *name, LOCKMODE mode);
extern bool name_held_by_me(LockClass class, const LeaseName *name, LOCKMODE mode);
extern void set_tag(LOCKTAG *tag, LockClass class, uint64 key);
extern bool guards_in_flight(const LeaseName *name);
extern int	guard_holders(const LeaseName *name, VirtualTransactionId **holders);
extern bool name_in_use(const LeaseName *name);
extern int	locks_of_class(LockClass class, const uint64 *key, LockInstanceData ***locks,
						   LockData **data);
extern uint64 lock_key(const LockInstanceData *lock);
extern bool holds_other_locks(void);

/* ----------------------------------------------------------- relations.c */
/* The extension's relations; relations.c has their names. */
typedef enum OwnRelation
{
	REL_LEASE,
	REL_LEASE_INDEX,
	REL_LEASE_PKEY,
	REL_FENCE,
	REL_FENCE_INDEX,
	REL_TOKEN_SEQ,
	REL_PLACE_SEQ,
	REL_PLACE,
	REL_AUDIT,
	REL_RIGHT,
	REL_HISTORY,
	N_OWN_RELATIONS
} OwnRelation;

typedef enum OwnTable
{
	TABLE_LEASE,
	TABLE_FENCE
} OwnTable;

/* One of our two keyed tables, open with an index on its key and a scan of it. */
typedef struct KeyedTable
{
	OwnTable	which;
	AttrNumber	key;			/* the key's column */
	uint16		equal;			/* the index's strategy for equality */
	LOCKMODE	mode;			/* in which both are locked */
	Relation	heap;			/* NULL for a fence until keyed_heap() */
	Relation	index;
	Buffer		recent;			/* where the last read found a row */
	MemoryContext context;		/* of whoever opened it */
	struct IndexScanDescData *scan; /* made by the first read */
	SnapshotData dirty;
} KeyedTable;

extern void relations_init(void);
extern Relation own_open(OwnRelation which, LOCKMODE mode, bool nowait);
extern bool is_own_relation(Oid relid);
extern bool own_relations_locked(void);
extern void own_relations_let_go(void);
extern void own_close_read(Relation rel);
extern void own_relations_wait(void);
extern void own_relations_at_end(void);
extern void own_relations_at_subend(int level, bool commit);
extern bool keyed_open(KeyedTable *table, OwnTable which, LOCKMODE mode, bool nowait);
extern Relation keyed_heap(KeyedTable *table);
extern void keyed_close(KeyedTable *table);
extern Buffer read_block(Relation rel, BlockNumber block, Buffer *recent);
extern Buffer own_first_block(Relation rel);

/* ---------------------------------------------------------------- rows.c */
/* Columns of lease_lock.lease, in the order of sql/lease_lock--1.0.sql. */
enum
{
	LEASE_VERSION = 1,
	LEASE_EXPIRE_AT,
	LEASE_RENEWED_AT,
	LEASE_ACQUIRED_AT,
	LEASE_GRANT_XID,
	LEASE_BACKEND_START,
	LEASE_PID,
	LEASE_RENEWALS,
	LEASE_TTL,
	LEASE_LONGEST_GAP,
	LEASE_RESOURCE,
	LEASE_OWNER,
	LEASE_ROLE,
	LEASE_SCOPE,
	LEASE_ENDED_BY,
	LEASE_ENDED_AT,
	LEASE_FREE_AT,
	LEASE_SESSION,
	LEASE_APPLICATION_NAME,
	LEASE_CLIENT_ADDR,
	LEASE_PAYLOAD,
	LEASE_NATTS = LEASE_PAYLOAD
};

/* The leading columns, none of them NULL, as they lie in a row. */
typedef struct LeaseFixed
{
	int64		version;
	TimestampTz expire_at;
	TimestampTz renewed_at;
	TimestampTz acquired_at;
	uint64		grant_xid;
	TimestampTz backend_start;
	int32		pid;
	int32		renewals;
	Interval	ttl;
	int64		longest_gap;	/* microseconds */
} LeaseFixed;

enum
{
	FENCE_NAME = 1,
	FENCE_HIGHEST,
	FENCE_ACCEPTED_AT,
	FENCE_ACCEPTED_BY,
	FENCE_NATTS = FENCE_ACCEPTED_BY
};

enum
{
	AUDIT_AT = 1,
	AUDIT_ROLE,
	AUDIT_SESSION_ROLE,
	AUDIT_ACTION,
	AUDIT_OBJECT,
	AUDIT_REASON,
	AUDIT_DETAIL,
	AUDIT_NATTS = AUDIT_DETAIL
};

enum
{
	PLACE_AT = 1,
	PLACE_HIGHEST,
	PLACE_STARTED,
	PLACE_SYSTEM,
	PLACE_TIMELINE,
	PLACE_DATABASE,
	PLACE_SEQUENCE,
	PLACE_REASON,
	PLACE_NATTS = PLACE_REASON
};

enum
{
	RIGHT_PATTERN = 1,
	RIGHT_ROLE,
	RIGHT_PRIVILEGE,
	RIGHT_ALLOWED_BY,
	RIGHT_ALLOWED_AT,
	RIGHT_NATTS = RIGHT_ALLOWED_AT
};

enum
{
	HISTORY_TOKEN = 1,
	HISTORY_RESOURCE,
	HISTORY_OWNER,
	HISTORY_ROLE,
	HISTORY_APPLICATION_NAME,
	HISTORY_CLIENT_ADDR,
	HISTORY_SCOPE,
	HISTORY_PAYLOAD,
	HISTORY_GRANTED_AT,
	HISTORY_ENDED_AT,
	HISTORY_ENDED_BY,
	HISTORY_RENEWALS,
	HISTORY_LONGEST_GAP,
	HISTORY_NATTS = HISTORY_LONGEST_GAP
};

/* Why a lease ended before its time; NOT_ENDED is a NULL ended_by. */
typedef enum EndedBy
{
	NOT_ENDED,
	ENDED_RELEASED,
	ENDED_FORCED,
	ENDED_TRANSACTION			/* scope 'transaction': ends with its own */
} EndedBy;

/* A row version of lease_lock.lease: the columns that decide. */
typedef struct LeaseRow
{
	HeapTuple	tuple;			/* a palloc'd copy, t_self valid */
	char	   *owner;			/* into the tuple, like role */
	int			owner_len;
	int64		version;
	TimestampTz expire_at;
	TimestampTz acquired_at;
	TimestampTz renewed_at;
	int			renewals;
	int64		longest_gap;	/* between renewals; microseconds */
	TimestampTz ended_at;		/* 0 unless ended_by says it */
	TimestampTz free_at;		/* 0 without a cooldown */
	int64		ttl;			/* microseconds */
	EndedBy		ended_by;
	char	   *role;
	int			role_len;
	int			pid;			/* the backend that acquired, with its start */
	TimestampTz backend_start;
	int64		session;		/* 0, or its key: scope 'session' */
	uint64		grant_xid;		/* full id of the granting transaction */
} LeaseRow;

/*
 * What a resource's row says at its latest.  "row" is the newest version that
 * is committed or that this transaction wrote.
 */
typedef struct LeaseRead
{
	bool		found;			/* row is valid */
	bool		own;			/* this transaction wrote it */
	bool		granted_here;	/* ... by a grant of its own */
	LeaseRow	row;
	TransactionId pending;		/* another transaction's change in flight */
	bool		pending_grant;	/* ... brings another token */
	LeaseRow	pending_row;	/* with that token; tuple NULL for a deletion */
} LeaseRead;

typedef struct FenceRead
{
	bool		found;
	HeapTuple	tuple;
	int64		highest;		/* 0 when not found */
	TransactionId pending;
	int64		pending_highest;
} FenceRead;

typedef enum WriteResult
{
	WRITE_DONE,
	WRITE_BLOCKED				/* somebody's row lock is in the way */
} WriteResult;

extern void lease_read(KeyedTable *table, const LeaseName *resource, LeaseRead *read);
extern void lease_read_again(KeyedTable *table, const LeaseName *resource, LeaseRead *read);
extern void lease_read_free(LeaseRead *read);
extern void lease_row_decode(HeapTuple tuple, TupleDesc desc, LeaseRow *row);
extern void fence_read(KeyedTable *table, const LeaseName *name, FenceRead *read);
extern void fence_read_free(FenceRead *read);
extern int64 fence_floor(KeyedTable *table, const LeaseName *name);
extern void row_insert(KeyedTable *table, Datum *values, bool *nulls);
extern WriteResult row_update(KeyedTable *table, HeapTuple old, HeapTuple new);
extern WriteResult row_delete(KeyedTable *table, HeapTuple old);
extern TransactionId row_locker(HeapTuple tuple);
extern WriteResult row_change(KeyedTable *table, HeapTuple old, Datum *values,
							  bool *nulls, bool *replace);
extern void audit_write(const char *action, const char *object,
						const char *reason, const char *detail, int how);
/* Flags of audit_write(). */
#define AUDIT_NOWAIT	1		/* rather than wait for the table, record nothing */
#define AUDIT_FOR_GOOD	2		/* the act stays whatever becomes of the transaction */

extern bool lease_live(const LeaseRow *row, bool own, TimestampTz now);
extern const char *lease_state(const LeaseRow *row, bool own, TimestampTz now);

/* --------------------------------------------------------------- token.c */
/* The largest integer that JavaScript, and a double, keep exactly. */
#define MAX_EXACT_TOKEN	((INT64CONST(1) << 53) - 1)

/* The two sequences, open. */
typedef struct TokenSource
{
	Relation	seq;
	Relation	place;
} TokenSource;

extern bool token_open(TokenSource *source, LOCKMODE mode, bool nowait);
extern void token_close(TokenSource *source);
extern bool token_settle_place(TokenSource *source, KeyedTable *lease, bool nowait);
extern int64 token_mint(TokenSource *source, int64 version, int64 highest,
						const LeaseName *resource);
extern int64 token_raise(TokenSource *source, int64 floor);
extern int64 token_last(TokenSource *source);
extern bool token_moved(TokenSource *source);

/* --------------------------------------------------------------- place.c */
extern int64 place_fingerprint(Oid seq);
extern bool place_left_since(Relation places, Oid seq, TimestampTz *at);
extern void place_record(Relation places, Oid seq, int64 highest, int64 started, bool jump);

/* ---------------------------------------------------------------- wait.c */
typedef struct Waiting
{
	TimestampTz start;
	TimestampTz deadline;		/* DT_NOEND: as long as the timeouts let it */
	TimestampTz slice_end;		/* DT_NOEND, or where the next slice ends */
	TimestampTz look_at;		/* when to look for rings; 0: not yet set */
	TimestampTz dropped;		/* R, because of what was found; or 0 */
	bool		waited;			/* slept at least once */
	bool		guarded;		/* waited for a guard */
	bool		lock_timeout;	/* it is over because of lock_timeout */
	int			naps;			/* consecutive short naps */
} Waiting;

extern void waiting_begin(Waiting *w, int64 wait_usecs);
extern bool waiting_over(Waiting *w);
extern void waiting_check(Waiting *w);
extern void waiting_dropped(Waiting *w);
extern TimestampTz waiting_end(const Waiting *w);
extern void wait_for_xact(Waiting *w, TransactionId xid);
extern void wait_for_guard(Waiting *w, VirtualTransactionId vxid);
extern void wait_for_relations(Waiting *w);
extern void wait_until(Waiting *w, TimestampTz until, bool in_line);
extern void wait_nap(Waiting *w);
extern bool lock_tag_bounded(Waiting *w, const LOCKTAG *tag, LOCKMODE mode);
extern bool lock_name_bounded(Waiting *w, LockClass class, const LeaseName *name,
							  LOCKMODE mode);

/* ---------------------------------------------------------------- line.c */
/* A backend's place in a line; the links mean nothing in a copy. */
typedef struct LinePlace
{
	int32		next;
	int32		prev;
	Oid			database;
	Oid			role;			/* current_user of the waiter */
	int			pid;
	bool		asleep;			/* until due, or until woken */
	TimestampTz backend_start;
	TimestampTz since;
	TimestampTz deadline;		/* DT_NOEND: none */
	pg_atomic_uint64 due;		/* when it will look again, at the latest */
	uint64		hash;			/* of the resource */
	int			resource_len;
	int			owner_len;
	char		resource[MAX_NAME_BYTES];
	char		owner[MAX_NAME_BYTES];
} LinePlace;

extern void line_init(void);
extern int	line_ahead(const LeaseName *resource);
extern bool line_join(const LeaseName *resource, const LeaseName *owner,
					  TimestampTz since, TimestampTz deadline);
extern void line_leave(void);
extern void line_leave_granted(TimestampTz lasts_until);
extern void line_due(TimestampTz due);
extern void line_sleep(TimestampTz until);
extern TimestampTz line_look_around(int ahead);
extern bool line_waits(void);
extern void line_wake(const LeaseName *resource);
extern void line_wake_at_commit(const LeaseName *resource);
extern int	line_copy(int pid, LinePlace **copies);
extern LeaseName line_resource(const LinePlace *p);

/* --------------------------------------------------------------- stats.c */
/* Counted since the last reset, for a database and for a resource. */
typedef enum Stat
{
	STAT_GRANTS,				/* all, with the next two */
	STAT_TAKEOVERS,				/* of what had expired and was not released */
	STAT_REACQUIRED,			/* by the owner that still had it */
	STAT_TIMEOUTS,				/* acquire gave up */
	STAT_BUSY,					/* try_acquire returned NULL */
	STAT_RENEWALS,
	STAT_RENEWALS_LATE,			/* ... with little of the TTL left */
	STAT_RENEWALS_FAILED,
	STAT_RELEASES,
	STAT_RELEASES_FAILED,
	STAT_EXPIRED,				/* found to have run out, never released */
	STAT_FORCED,
	STAT_SESSIONS_DIED,			/* found to have ended with their session */
	STAT_GUARDED_WRITES,		/* checks that passed, once a transaction and name */
	STAT_STALE,					/* refused writes, in the order of Reason */
	STAT_NO_TOKEN,
	STAT_NOT_HELD,
	STAT_UNKNOWN,
	STAT_NO_NAME,
	STAT_WARNED,				/* would have been refused */
	STAT_EVICTIONS,				/* signals sent to end a transaction */
	STAT_DEADLOCKS,				/* rings through leases that were broken */
	N_STATS
} Stat;

#define STATS_WAIT		1
#define STATS_HOLD		2
#define STATS_MARGIN	4

/* A renewal is late with less than this left, in thousandths of the TTL. */
#define LATE_MARGIN		200

/* What a call did. */
typedef struct StatsEvent
{
	uint32		counts;			/* 1 << Stat, or'd */
	int			timed;			/* which of the following count */
	uint64		wait;			/* microseconds */
	uint64		hold;			/* microseconds */
	uint64		margin;			/* thousandths of the TTL left at a renewal */
	TimestampTz now;
} StatsEvent;

extern void stats_record(const LeaseName *resource, const StatsEvent *event);
extern void stats_count(Stat which, const LeaseName *resource);
extern void stats_clear(void);

/* ------------------------------------------------------------- session.c */
extern void session_init(void);
extern int64 session_key(const LeaseName *resource);
extern void session_forget(const LeaseName *resource);
extern bool session_alive(int64 key);

/* ------------------------------------------------------------ backends.c */
extern int	xact_pid(TransactionId xid);
extern int	vxid_pid(VirtualTransactionId vxid);
extern const struct PgBackendStatus *backend_status(int pid);
extern bool backend_idles(const struct PgBackendStatus *status, const struct PGPROC *proc);
extern bool backend_waits_for_lock(int pid);
extern int	backend_blockers(int pid, int **pids);
extern char *prepared_gid(TransactionId xid);
extern TransactionId prepared_xid(VirtualTransactionId vxid);

/* --------------------------------------------------------------- evict.c */
extern TimestampTz evict_at(TimestampTz expire_at);
extern void evict_vxid(const LeaseName *resource, const LeaseRow *row,
					   VirtualTransactionId vxid, bool nowait);
extern void evict_xact(const LeaseName *resource, const LeaseRow *row,
					   TransactionId xid, bool nowait);

/* --------------------------------------------------------------- rings.c */
extern bool check_rings(KeyedTable *lease, const LeaseName *resource);

/* --------------------------------------------------------------- named.c */
extern void named_init(void);

/* -------------------------------------------------------------- commit.c */
extern void commit_init(void);
extern void require_sync_commit(void);
extern bool wrote_nothing(void);
extern void hand_over_early(void);

/* ----------------------------------------------------------- presented.c */
typedef struct Presented
{
	LeaseName	name;
	bool		used;			/* a check has looked at it */
	struct
	{
		int64		token;		/* the presented one; 0: none */
		int64		held;		/* passed as 'held' in this transaction */
		int64		newest;		/* passed as 'newest' in this transaction */
		int			bypassed;	/* bits of FenceMode: locked for writes past guards */
		bool		explicitly; /* by present(), not by a grant */
		int			level;		/* nesting level that set all this */
	}			value;
} Presented;

/* A trigger ran between a check and its write, which is to be checked again. */
extern bool recheck_due;

extern void presented_init(void);
extern Presented *presented_find(const LeaseName *name);
extern Presented *presented_enter(const LeaseName *name);
extern void presented_touch(Presented *p);
extern void present_token(const LeaseName *name, int64 token, bool explicitly);
extern void present_grant(const LeaseName *name, int64 token);
extern bool presented_more_grants(void);
extern void presented_forget_checks(const LeaseName *name);
extern int64 presented_highest(void);
extern char *presented_list(void);

/* ------------------------------------------------------------- history.c */
/* The table, open with its indexes; rel is NULL when no history is kept. */
typedef struct History
{
	Relation	rel;
	struct ResultRelInfo *indexes;
} History;

extern bool history_open(History *history, bool nowait);
extern void history_close(History *history);
extern void history_write(History *history, const LeaseRow *row, TupleDesc desc,
						  TimestampTz ended_at, const char *ended_by);
extern void history_write_end(History *history, const LeaseRow *row, TupleDesc desc,
							  TimestampTz now);

/* -------------------------------------------------------------- rights.c */
typedef enum Privilege
{
	PRIVILEGE_ACQUIRE,
	PRIVILEGE_FORCE
} Privilege;

extern void rights_init(void);
extern bool require_right(Privilege privilege, text *resource, bool nowait);

/* ------------------------------------------------------- grant.c, renew.c */
typedef enum Scope
{
	SCOPE_LEASE,
	SCOPE_SESSION,
	SCOPE_TRANSACTION
} Scope;

typedef struct GrantRequest
{
	LeaseName	resource;
	LeaseName	owner;
	Datum		resource_text;	/* the same as text */
	Datum		owner_text;
	char	   *role;			/* current_user */
	int64		ttl;			/* microseconds */
	Scope		scope;
	bool		has_payload;
	Datum		payload;
} GrantRequest;

extern bool may_act_for(const LeaseRow *row);
extern void require_role(const LeaseRow *row, const LeaseName *resource);
extern int64 lease_grant(const GrantRequest *req, int64 wait_usecs);
extern int64 lease_try_grant(const GrantRequest *req);
extern char *blockers_text(int n, const VirtualTransactionId *vxids);

extern TimestampTz lease_renew(const LeaseName *resource, int64 token, int64 ttl);
extern bool lease_release(const LeaseName *resource, int64 token, int64 cooldown);

/* --------------------------------------------------------------- fence.c */
typedef enum FenceMode
{
	MODE_HELD,
	MODE_NEWEST
} FenceMode;

/* Why a write is refused. */
typedef struct Refusal
{
	int			sqlstate;
	char	   *message;
	char	   *detail;
	char	   *hint;
	LeaseName	resource;		/* len 0: no name is known */
	int64		token;			/* the one carried; 0: none */
	int64		newest;			/* 0: none is known */
} Refusal;

extern bool fence_accepts(const LeaseName *name, FenceMode mode, int64 carried,
						  Refusal *why);
extern void refuse(int elevel, const Refusal *why, Relation rel);
extern bool refuse_token(Refusal *why, int sqlstate, const LeaseName *name, int64 token,
						 int64 newest, char *message, char *detail);
extern void fence_bypass(const LeaseName *name, FenceMode mode);
extern int64 fence_assert_held(const LeaseName *resource, int64 token);
extern void check_token_positive(const LeaseName *resource, int64 token);

/* ---------------------------------------------------------- rejections.c */
typedef enum Reason
{
	REASON_STALE,
	REASON_NO_TOKEN,
	REASON_NOT_HELD,
	REASON_UNKNOWN,
	REASON_NO_NAME,				/* the row's template gives none */
	REASON_BYPASS				/* counted, not refused */
} Reason;

typedef enum Action
{
	ACTION_ENFORCE,
	ACTION_WARN,
	ACTION_BYPASS
} Action;

typedef enum Statement
{
	REJECTED_INSERT,
	REJECTED_UPDATE,
	REJECTED_DELETE,
	REJECTED_TRUNCATE,
	REJECTED_ASSERT				/* a call of assert_held */
} Statement;

extern void rejection_record(Oid relid, Statement statement, Action action,
							 const Refusal *why);
extern void rejections_clear(void);
extern void rejection_count(Oid relid, Reason reason, Action action, TimestampTz now);

/* ------------------------------------------------------ target.c, bypass.c */
extern Relation guard_target(Oid relid, LOCKMODE mode);
extern char *guard_target_name(Oid relid);
extern bool is_bypassed(Oid relid);
extern void bypass_init(void);

/* ------------------------------------------------------------ template.c */
typedef struct Template Template;

extern Template *template_parse(const char *text, int len);
extern bool template_is_constant(const Template *t);
extern const LeaseName *template_constant(const Template *t);
extern void template_bind(Template *t, Relation rel);
extern bool template_render(const Template *t, HeapTuple tuple, TupleDesc desc,
							LeaseName *name, Refusal *why);

#pragma GCC visibility pop

#endif							/* LEASE_LOCK_H */
