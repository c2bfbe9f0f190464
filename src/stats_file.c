/*
 * stats_file.c
 *		Keeps statistics over a clean restart, in a file of the data directory.
 *
 * Nothing of ours runs when the server stops, so the backend that leaves the
 * shared area last writes the file, and the next one that comes removes it:
 * the file is there only while nobody counts.  After a crash there is none,
 * and counting begins anew, as it does for PostgreSQL's own statistics.
 *
 * What cannot be read or written is reported to the
 * server log and done without.
 */
#include "postgres.h"

#include <unistd.h>

#include "access/xlog.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "port/pg_crc32c.h"
#include "storage/fd.h"

#include "compat.h"
#include "lease_lock.h"
#include "stats.h"

#define STATS_FILE	PGSTAT_STAT_PERMANENT_DIRECTORY "/lease_lock.stat"

/* Raise it with every change of what is written. */
#define FILE_LAYOUT	4

typedef struct FileHead
{
	char		magic[8];
	uint32		layout;
	uint32		body_size;
	uint64		timeline;		/* another one: a copy of the server's files */
} FileHead;

/* Before a database's body, which its resources follow; the last is zero. */
typedef struct FileEntry
{
	uint64		database;
} FileEntry;

/* Before a resource's name and body; the last of a database is all zero. */
typedef struct FileResource
{
	uint64		hash;
	uint64		use;
	uint64		name_len;
} FileResource;

/* Of all that was written or checked so far; the file ends with it. */
static pg_crc32c crc;

static bool
put(FILE *file, const void *data, size_t size)
{
	COMP_CRC32C(crc, data, size);
	return fwrite(data, size, 1, file) == 1;
}

static bool
get(FILE *file, void *data, size_t size)
{
	return fread(data, size, 1, file) == 1;
}

/* All is made of 64-bit counters, few of which are not zero. */
#define COPY_COUNTERS	(sizeof(StatsCopy) / sizeof(uint64))

StaticAssertDecl(sizeof(StatsCopy) % sizeof(uint64) == 0, "StatsCopy is not all counters");

typedef struct FileCounter
{
	uint64		place;
	uint64		value;
} FileCounter;

/* Writes how many counters are not zero, and those. */
static bool
put_body(FILE *file, const StatsBody *body)
{
	union
	{
		StatsCopy	copy;
		uint64		counters[COPY_COUNTERS];
	}			all;
	FileCounter buffer[COPY_COUNTERS];
	uint64		n = 0;

	stats_copy(body, &all.copy);
	pg_atomic_write_u64(&all.copy.body.wait.histogram, 0);
	pg_atomic_write_u64(&all.copy.body.hold.histogram, 0);
	for (uint64 i = 0; i < COPY_COUNTERS; i++)
		if (all.counters[i] != 0)
		{
			buffer[n].place = i;
			buffer[n++].value = all.counters[i];
		}
	return put(file, &n, sizeof(n)) && (n == 0 || put(file, buffer, n * sizeof(FileCounter)));
}

static bool
get_body(FILE *file, StatsCopy *copy)
{
	uint64	   *counters = (uint64 *) copy;
	FileCounter buffer[COPY_COUNTERS];
	uint64		n;

	memset(copy, 0, sizeof(*copy));
	if (!get(file, &n, sizeof(n)) || n > COPY_COUNTERS ||
		(n > 0 && !get(file, buffer, n * sizeof(FileCounter))))
		return false;
	for (uint64 i = 0; i < n; i++)
	{
		if (buffer[i].place >= COPY_COUNTERS)
			return false;
		counters[buffer[i].place] = buffer[i].value;
	}
	return true;
}

static bool
put_set(FILE *file, ResourceSet *set)
{
	for (int i = 0; i < SET_SIZE; i++)
	{
		FileResource resource = {set->hash[i], pg_atomic_read_u64(&set->use[i]), 0};
		ResourceStats *r;

		if (resource.use == 0)
			continue;
		r = stats_resource(set->stats[i]);
		resource.name_len = r->name_len;
		if (!put(file, &resource, sizeof(resource)) ||
			!put(file, r->name, r->name_len) ||
			!put_body(file, &r->body))
			return false;
	}
	return true;
}

static bool
put_resources(FILE *file, ResourceTable *table)
{
	FileResource last = {0};
	bool		ok = true;

	for (int i = 0; ok && table && i < table->n_sets; i++)
	{
		LWLockAcquire(&table->sets[i].lock, LW_SHARED);
		ok = put_set(file, &table->sets[i]);
		LWLockRelease(&table->sets[i].lock);
	}
	return ok && put(file, &last, sizeof(last));
}

static FileHead
file_head(void)
{
	FileHead	head = {"leaselk", FILE_LAYOUT, sizeof(StatsCopy), 0};

	head.timeline = GetWALInsertionTimeLine();
	return head;
}

/*
 * Writes a new file beside the old one; false when that cannot be done.  Needs
 * the lock of files.  Resources that somebody gives a place meanwhile do no
 * harm: the file is not taken then.
 */
bool
stats_file_write(void)
{
	FileHead	head;
	FILE	   *file = AllocateFile(STATS_FILE ".tmp", PG_BINARY_W);
	bool		ok;
	dshash_seq_status status;
	StatsEntry *entry;

	INIT_CRC32C(crc);
	if (!RecoveryInProgress())
		head = file_head();
	else
		memset(&head, 0, sizeof(head));
	ok = file != NULL && put(file, &head, sizeof(head));
	if (ok)
	{
		dshash_seq_init(&status, stats_table(), false);
		while (ok && (entry = dshash_seq_next(&status)) != NULL)
		{
			FileEntry	e = {entry->database};

			ok = put(file, &e, sizeof(e)) &&
				put_body(file, &entry->body) &&
				put_resources(file, stats_resources(entry));
		}
		dshash_seq_term(&status);
	}
	if (ok)
	{
		FileEntry	last = {0};

		ok = put(file, &last, sizeof(last));
		FIN_CRC32C(crc);
		ok = ok && fwrite(&crc, sizeof(crc), 1, file) == 1;
	}
	if (file != NULL && FreeFile(file) != 0)
		ok = false;
	if (!ok)
	{
		ereport(LOG,
				(errcode_for_file_access(),
				 errmsg("could not write file \"%s\": %m", STATS_FILE ".tmp")));
		unlink(STATS_FILE ".tmp");
	}
	return ok;
}

/* Takes what was written, or throws it away. */
void
stats_file_take(bool keep)
{
	if (!keep)
		unlink(STATS_FILE ".tmp");
	else if (rename(STATS_FILE ".tmp", STATS_FILE) != 0)
		ereport(LOG,
				(errcode_for_file_access(),
				 errmsg("could not rename file \"%s\" to \"%s\": %m",
						STATS_FILE ".tmp", STATS_FILE)));
}

void
stats_file_remove(void)
{
	unlink(STATS_FILE);
}

static bool
get_entry(FILE *file, const FileEntry *e)
{
	StatsEntry *entry = stats_entry_of((Oid) e->database);
	ResourceTable *table = stats_resources(entry);
	StatsCopy	copy;

	if (!get_body(file, &copy))
		return false;
	stats_restore(&entry->body, &copy);
	for (;;)
	{
		FileResource resource;
		char		name[MAX_NAME_BYTES];
		ResourceStats *r;

		if (!get(file, &resource, sizeof(resource)))
			return false;
		if (resource.name_len == 0)
			return true;
		if (resource.name_len > MAX_NAME_BYTES ||
			!get(file, name, resource.name_len) ||
			!get_body(file, &copy))
			return false;
		r = table ? stats_take_place(table, resource.hash, resource.use, true, name,
									 resource.name_len) : NULL;
		if (r)
			stats_restore(&r->body, &copy);
	}
}

/* Whether the file is what was written: before anything of it is taken. */
static bool
file_is_whole(FILE *file)
{
	char		buffer[8192];
	size_t		n;
	pg_crc32c	found;
	off_t		left;

	if (fseeko(file, 0, SEEK_END) != 0 ||
		(left = ftello(file) - (off_t) sizeof(crc)) <= 0 ||
		fseeko(file, 0, SEEK_SET) != 0)
		return false;
	INIT_CRC32C(crc);
	while (left > 0)
	{
		n = fread(buffer, 1, Min(left, (off_t) sizeof(buffer)), file);
		if (n == 0)
			return false;
		COMP_CRC32C(crc, buffer, n);
		left -= n;
	}
	FIN_CRC32C(crc);
	return get(file, &found, sizeof(found)) && EQ_CRC32C(found, crc) &&
		fseeko(file, 0, SEEK_SET) == 0;
}

/* Reads the file, if there is one, into an area that was just made. */
void
stats_file_load(void)
{
	FILE	   *file;
	FileHead	found;
	FileHead	head;
	FileEntry	e;
	bool		ok;

	/* A standby, and a backup, have it from another server. */
	if (RecoveryInProgress())
		return;
	file = AllocateFile(STATS_FILE, PG_BINARY_R);
	if (file == NULL)
	{
		if (errno != ENOENT)
			ereport(LOG,
					(errcode_for_file_access(),
					 errmsg("could not read file \"%s\": %m", STATS_FILE)));
		return;
	}
	head = file_head();
	ok = file_is_whole(file) && get(file, &found, sizeof(found)) &&
		memcmp(&found, &head, sizeof(head)) == 0;
	while (ok && (ok = get(file, &e, sizeof(e))) && e.database != 0)
		ok = get_entry(file, &e);
	if (!ok)
		ereport(LOG,
				(errcode(ERRCODE_DATA_CORRUPTED),
				 errmsg("ignoring invalid data in file \"%s\"", STATS_FILE)));
	FreeFile(file);
}
