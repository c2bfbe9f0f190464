/*
 * presented.c
 *		Which tokens this transaction presents, and what checks it has passed.
 *
 * All state is backend-local and lives in TopTransactionContext: it ends with
 * the transaction, whichever way.  Savepoints are followed by an undo log: the
 * first change of an entry at a nesting level saves what it was.  A remembered
 * check is forgotten with the savepoint that took its lock.
 *
 * Nothing here reads a row or takes a lock.
 */
#include "postgres.h"

#include "access/xact.h"
#include "lib/stringinfo.h"
#include "utils/memutils.h"

#include "lease_lock.h"

typedef struct PresentedSlot
{
	Presented  *entry;
	uint32		hash;
	char		status;
} PresentedSlot;

#define SH_PREFIX		presentedtable
#define SH_ELEMENT_TYPE	PresentedSlot
#define SH_KEY_TYPE		Presented *
#define SH_KEY			entry
#define SH_HASH_KEY(tb, key)	((uint32) (key)->name.hash)
#define SH_EQUAL(tb, a, b)		name_equal(&(a)->name, &(b)->name)
#define SH_STORE_HASH
#define SH_GET_HASH(tb, a)		(a)->hash
#define SH_SCOPE		static inline
#define SH_DECLARE
#define SH_DEFINE
#include "lib/simplehash.h"

#define MAX_GRANTS_ENTERED 16

static const LeaseName more_grants = {"", 0, 0};

typedef struct Undo
{
	Presented  *entry;
	Presented	old;			/* only its value counts */
	int			level;
} Undo;

static presentedtable_hash *presented = NULL;
static Undo *undo = NULL;
static int	n_undo = 0;
static int	max_undo = 0;
static int	grants_entered = 0;

bool		recheck_due = false;

/* The entry of a name, or NULL. */
Presented *
presented_find(const LeaseName *name)
{
	Presented	probe;
	PresentedSlot *slot;

	if (presented == NULL)
		return NULL;
	probe.name = *name;
	slot = presentedtable_lookup(presented, &probe);
	return slot ? slot->entry : NULL;
}

/* The entry of a name, made when there is none. */
Presented *
presented_enter(const LeaseName *name)
{
	Presented  *entry = presented_find(name);
	char	   *data;
	bool		found;

	if (entry)
		return entry;
	if (presented == NULL)
		presented = presentedtable_create(TopTransactionContext, 64, NULL);
	entry = MemoryContextAllocZero(TopTransactionContext, sizeof(Presented) + name->len);
	data = (char *) (entry + 1);
	memcpy(data, name->data, name->len);
	entry->name = *name;
	entry->name.data = data;
	presentedtable_insert(presented, entry, &found);
	Assert(!found);
	return entry;
}

/* Call before changing an entry's value. */
void
presented_touch(Presented *p)
{
	int			level = GetCurrentTransactionNestLevel();

	if (level > 1 && p->value.level < level)
	{
		if (n_undo == max_undo)
		{
			max_undo = max_undo ? 2 * max_undo : 64;
			undo = undo ?
				repalloc_huge(undo, max_undo * sizeof(Undo)) :
				MemoryContextAlloc(TopTransactionContext, max_undo * sizeof(Undo));
		}
		undo[n_undo].entry = p;
		undo[n_undo].old = *p;
		undo[n_undo].level = level;
		n_undo++;
	}
	p->value.level = level;
}

/*
 * A lease that this transaction was granted is presented by itself.  An entry
 * for each would cost a transaction that acquires very many more than the
 * grants do, so only the first few have one; the others are found through
 * their rows (fence.c), and the entry without a name keeps their highest token.
 */
void
present_grant(const LeaseName *name, int64 token)
{
	Presented  *p = presented_find(name);

	if (p == NULL && grants_entered >= MAX_GRANTS_ENTERED)
	{
		p = presented_enter(&more_grants);
		presented_touch(p);
		p->value.token = Max(p->value.token, token);
		return;
	}
	if (p == NULL)
		grants_entered++;
	present_token(name, token, false);
	p = presented_find(name);
	p->value.held = p->value.newest = 0;
}

/* Whether a grant of this transaction can be without an entry. */
bool
presented_more_grants(void)
{
	return grants_entered >= MAX_GRANTS_ENTERED;
}

/* From now on this transaction's writes carry token for name. */
void
present_token(const LeaseName *name, int64 token, bool explicitly)
{
	Presented  *p = presented_enter(name);

	presented_touch(p);
	p->value.token = token;
	p->value.explicitly = explicitly;
}

/* After a change to the lease by this transaction: check again. */
void
presented_forget_checks(const LeaseName *name)
{
	Presented  *p = presented_find(name);

	if (p == NULL)
		return;
	presented_touch(p);
	p->value.held = 0;
	p->value.newest = 0;
}

/* The newest token presented under any name; 0 when there is none. */
int64
presented_highest(void)
{
	presentedtable_iterator i;
	PresentedSlot *slot;
	int64		highest = 0;

	if (presented == NULL)
		return 0;
	presentedtable_start_iterate(presented, &i);
	while ((slot = presentedtable_iterate(presented, &i)) != NULL)
	{
		if (slot->entry->value.token != 0)
			slot->entry->used = true;
		highest = Max(highest, slot->entry->value.token);
	}
	return highest;
}

/* A sentence for the DETAIL of "no token presented". */
char *
presented_list(void)
{
	presentedtable_iterator i;
	PresentedSlot *slot;
	StringInfoData buf;
	int			n = 0;
	bool		more = false;

	initStringInfo(&buf);
	if (presented != NULL)
	{
		presentedtable_start_iterate(presented, &i);
		while ((slot = presentedtable_iterate(presented, &i)) != NULL)
		{
			Presented  *p = slot->entry;

			if (p->value.token == 0)
				continue;
			p->used = true;
			if (p->name.len == 0 || n == MAX_GRANTS_ENTERED)
			{
				more = true;
				continue;
			}
			n++;
			appendStringInfo(&buf, "%s\"%.*s\" (token " INT64_FORMAT ")", n > 1 ? ", " : "",
							 p->name.len, p->name.data, p->value.token);
		}
	}
	if (n == 0)
		return pstrdup("This transaction presents no token.");
	return psprintf("This transaction presents tokens for: %s%s.", buf.data,
					more ? ", and more" : "");
}

/* In autocommit tokens that no check looked at protected nothing. */
static void
warn_unused(void)
{
	presentedtable_iterator i;
	PresentedSlot *slot;
	Presented  *unused = NULL;

	if (presented == NULL || IsTransactionBlock())
		return;
	presentedtable_start_iterate(presented, &i);
	while ((slot = presentedtable_iterate(presented, &i)) != NULL)
	{
		if (slot->entry->value.token == 0 || !slot->entry->value.explicitly)
			continue;
		if (slot->entry->used)
			return;
		unused = slot->entry;
	}
	if (unused)
		ereport(WARNING,
				(errcode(ERRCODE_NO_ACTIVE_SQL_TRANSACTION),
				 errmsg("presented token has no effect outside a transaction block"),
				 errdetail("The token for resource \"%.*s\" was forgotten when the statement ended, and nothing was written under it.",
						   unused->name.len, unused->name.data),
				 errhint("Call lease_lock.present after BEGIN, in the transaction that writes.")));
}

static void
forget_transaction(void)
{
	presented = NULL;
	undo = NULL;
	n_undo = max_undo = 0;
	grants_entered = 0;
	recheck_due = false;
	own_relations_at_end();
}

static void
xact_callback(XactEvent event, void *arg)
{
	switch (event)
	{
		case XACT_EVENT_PRE_COMMIT:
			warn_unused();
			break;
		case XACT_EVENT_COMMIT:
		case XACT_EVENT_ABORT:
		case XACT_EVENT_PREPARE:
		case XACT_EVENT_PARALLEL_COMMIT:
		case XACT_EVENT_PARALLEL_ABORT:
			forget_transaction();
			break;
		default:
			break;
	}
}

static void
subxact_callback(SubXactEvent event, SubTransactionId mine,
				 SubTransactionId parent, void *arg)
{
	int			level = GetCurrentTransactionNestLevel();

	if (event == SUBXACT_EVENT_ABORT_SUB || event == SUBXACT_EVENT_COMMIT_SUB)
		own_relations_at_subend(level, event == SUBXACT_EVENT_COMMIT_SUB);
	if (event == SUBXACT_EVENT_ABORT_SUB)
	{
		while (n_undo > 0 && undo[n_undo - 1].level >= level)
		{
			n_undo--;
			undo[n_undo].entry->value = undo[n_undo].old.value;
		}
	}
	else if (event == SUBXACT_EVENT_COMMIT_SUB)
	{
		/* The entries belong to the parent now; the log is ordered by level. */
		for (int i = n_undo - 1; i >= 0 && undo[i].level >= level; i--)
		{
			undo[i].level = level - 1;
			undo[i].entry->value.level = Min(undo[i].entry->value.level, level - 1);
		}
		if (level - 1 == 1)
			while (n_undo > 0 && undo[n_undo - 1].level == 1)
				n_undo--;
	}
}

void
presented_init(void)
{
	RegisterXactCallback(xact_callback, NULL);
	RegisterSubXactCallback(subxact_callback, NULL);
}
