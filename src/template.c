/*
 * template.c
 *		Resource templates of guards: 'account/{id}'.
 *
 * Text between braces names a column of the row, exactly as the catalog spells
 * it; "{{" and "}}" stand for braces.  A column is rendered the same in every
 * session, whatever DateStyle, bytea_output or TimeZone say, and only types
 * are allowed whose equal values have one rendering: two texts for one value
 * would be two leases for one row.
 *
 * This file reads tuples and catalogs, and neither rows of ours nor locks.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "catalog/pg_type.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/date.h"
#include "utils/datetime.h"
#include "utils/fmgrprotos.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/uuid.h"

#include "lease_lock.h"

typedef struct Segment
{
	bool		is_column;
	char	   *text;			/* the literal, or the column's name */
	int			len;
	AttrNumber	attnum;			/* of the bound relation */
	Oid			type;			/* its base type; ANYENUMOID for an enum */
} Segment;

struct Template
{
	char	   *source;
	int			n_segments;
	Segment	   *segments;
	bool		constant;
	LeaseName	name;			/* when constant */
	Oid			relid;			/* what the columns are bound to */
};

static void
bad_template(const char *source, const char *detail)
{
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("invalid resource template \"%s\"", source),
			 errdetail_internal("%s", detail),
			 errhint("Name columns in braces, as in 'account/{id}'; write {{ and }} for braces.")));
}

static void
add_segment(Template *t, bool is_column, const char *text, int len)
{
	Segment    *s;

	if (len == 0)
		return;
	t->segments = t->segments ?
		repalloc(t->segments, (t->n_segments + 1) * sizeof(Segment)) :
		palloc(sizeof(Segment));
	s = &t->segments[t->n_segments++];
	memset(s, 0, sizeof(*s));
	s->is_column = is_column;
	s->text = pnstrdup(text, len);
	s->len = len;
}

/*
 * Parses a template into the current memory context.  Raises 22023 for an
 * unmatched brace, an empty column name, and a constant name that is not 1 to
 * MAX_NAME_BYTES long.
 */
Template *
template_parse(const char *text, int len)
{
	Template   *t = palloc0(sizeof(Template));
	StringInfoData literal;
	int			columns = 0;

	initStringInfo(&literal);
	t->source = pnstrdup(text, len);
	for (int i = 0; i < len; i++)
	{
		char		c = text[i];

		if ((c == '{' || c == '}') && i + 1 < len && text[i + 1] == c)
		{
			appendStringInfoChar(&literal, c);
			i++;
		}
		else if (c == '}')
			bad_template(t->source, "A closing brace has no opening one.");
		else if (c == '{')
		{
			const char *end = memchr(text + i, '}', len - i);
			int			start = i + 1;

			if (end == NULL)
				bad_template(t->source, "An opening brace is not closed.");
			if (end == text + start)
				bad_template(t->source, "A pair of braces names no column.");
			add_segment(t, false, literal.data, literal.len);
			resetStringInfo(&literal);
			i = end - text;
			add_segment(t, true, text + start, i - start);
			columns++;
		}
		else
			appendStringInfoChar(&literal, c);
	}
	add_segment(t, false, literal.data, literal.len);
	pfree(literal.data);

	t->constant = columns == 0;
	if (t->constant)
	{
		if (t->n_segments == 0)
			bad_template(t->source, "It is empty.");
		if (t->segments[0].len > MAX_NAME_BYTES)
			bad_template(t->source, psprintf("It is longer than %d bytes.", MAX_NAME_BYTES));
		t->name = make_name(t->segments[0].text, t->segments[0].len);
	}
	return t;
}

bool
template_is_constant(const Template *t)
{
	return t->constant;
}

/* The name of a constant template; lives as long as the template. */
const LeaseName *
template_constant(const Template *t)
{
	Assert(t->constant);
	return &t->name;
}

/* The type to render a column as; raises when it has no single rendering. */
static Oid
renderable_type(const Template *t, Form_pg_attribute att)
{
	Oid			type = getBaseType(att->atttypid);
	const char *why = NULL;

	if (type_is_enum(type))
		type = ANYENUMOID;
	switch (type)
	{
		case INT2OID:
		case INT4OID:
		case INT8OID:
		case UUIDOID:
		case BOOLOID:
		case BYTEAOID:
		case DATEOID:
		case ANYENUMOID:
			break;
		case TEXTOID:
		case VARCHAROID:
			if (OidIsValid(att->attcollation) &&
				!get_collation_isdeterministic(att->attcollation))
				why = "its collation makes different texts equal";
			break;
		default:
			why = "its type can have two texts for one value";
			break;
	}
	if (att->attgenerated)
		why = "it is generated, and not computed yet when the guard looks";
	if (why)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("column \"%s\" cannot be used in resource template \"%s\"",
						NameStr(att->attname), t->source),
				 errdetail("Its type is %s, and %s.", format_type_be(att->atttypid), why),
				 errhint("Use an integer, uuid, text, varchar, boolean, enum, bytea or date column.")));
	return type;
}

/* Resolves the columns in a relation.  Raises 42703 and 0A000. */
void
template_bind(Template *t, Relation rel)
{
	TupleDesc	desc = RelationGetDescr(rel);

	if (t->relid == RelationGetRelid(rel))
		return;
	for (int i = 0; i < t->n_segments; i++)
	{
		Segment    *s = &t->segments[i];
		AttrNumber	found = InvalidAttrNumber;

		if (!s->is_column)
			continue;
		for (int a = 0; a < desc->natts; a++)
		{
			Form_pg_attribute att = TupleDescAttr(desc, a);

			if (!att->attisdropped && strcmp(NameStr(att->attname), s->text) == 0)
			{
				found = a + 1;
				s->type = renderable_type(t, att);
			}
		}
		if (found == InvalidAttrNumber)
			ereport(ERROR,
					(errcode(ERRCODE_UNDEFINED_COLUMN),
					 errmsg("column \"%s\" of resource template \"%s\" does not exist in relation \"%s\"",
							s->text, t->source, RelationGetRelationName(rel)),
					 errhint("Name a column exactly as it is stored; write {{ and }} for braces.")));
		s->attnum = found;
	}
	t->relid = RelationGetRelid(rel);
}

static void
append_value(StringInfo buf, Oid type, Datum value)
{
	char		scratch[MAXDATELEN + 1];

	switch (type)
	{
		case INT2OID:
			appendStringInfo(buf, "%d", (int) DatumGetInt16(value));
			break;
		case INT4OID:
			{
				char		digits[12];

				appendBinaryStringInfo(buf, digits, pg_ltoa(DatumGetInt32(value), digits));
				break;
			}
		case INT8OID:
			{
				char		digits[MAXINT8LEN + 1];

				appendBinaryStringInfo(buf, digits, pg_lltoa(DatumGetInt64(value), digits));
				break;
			}
		case BOOLOID:
			appendStringInfoString(buf, DatumGetBool(value) ? "true" : "false");
			break;
		case TEXTOID:
		case VARCHAROID:
			{
				text	   *t = DatumGetTextPP(value);

				appendBinaryStringInfo(buf, VARDATA_ANY(t), VARSIZE_ANY_EXHDR(t));
				break;
			}
		case BYTEAOID:
			{
				bytea	   *b = DatumGetByteaPP(value);
				const unsigned char *p = (unsigned char *) VARDATA_ANY(b);

				appendStringInfoString(buf, "\\x");
				for (int i = 0; i < (int) VARSIZE_ANY_EXHDR(b); i++)
					appendStringInfo(buf, "%02x", p[i]);
				break;
			}
		case UUIDOID:
			appendStringInfoString(buf, DatumGetCString(DirectFunctionCall1(uuid_out, value)));
			break;
		case DATEOID:
			{
				DateADT		date = DatumGetDateADT(value);
				struct pg_tm tm;

				if (DATE_NOT_FINITE(date))
					EncodeSpecialDate(date, scratch);
				else
				{
					j2date(date + POSTGRES_EPOCH_JDATE,
						   &tm.tm_year, &tm.tm_mon, &tm.tm_mday);
					EncodeDateOnly(&tm, USE_ISO_DATES, scratch);
				}
				appendStringInfoString(buf, scratch);
				break;
			}
		case ANYENUMOID:
			appendStringInfoString(buf, DatumGetCString(DirectFunctionCall1(enum_out, value)));
			break;
		default:
			elog(ERROR, "unexpected type %u in a resource template", type);
	}
}

/*
 * The name that a row has, in palloc'd bytes.  The template must be bound to
 * the row's relation.  False, with the reason, when it has none: 22004 for a
 * NULL column, 22023 for a name that is not 1 to MAX_NAME_BYTES long.
 */
bool
template_render(const Template *t, HeapTuple tuple, TupleDesc desc,
				LeaseName *name, Refusal *why)
{
	StringInfoData buf;

	if (t->constant)
	{
		*name = t->name;
		return true;
	}
	initStringInfo(&buf);
	for (int i = 0; i < t->n_segments; i++)
	{
		const Segment *s = &t->segments[i];
		Datum		value;
		bool		isnull;

		if (!s->is_column)
		{
			appendBinaryStringInfo(&buf, s->text, s->len);
			continue;
		}
		value = heap_getattr(tuple, s->attnum, desc, &isnull);
		if (isnull)
		{
			(void) refuse_token(why, ERRCODE_NULL_VALUE_NOT_ALLOWED, NULL, 0, 0,
								psprintf("column \"%s\" of resource template \"%s\" is null",
										 s->text, t->source),
								pstrdup("A row whose resource has no name cannot be guarded."));
			why->hint = "Declare the column NOT NULL, or choose another template.";
			return false;
		}
		append_value(&buf, s->type, value);
	}
	if (buf.len == 0 || buf.len > MAX_NAME_BYTES)
	{
		(void) refuse_token(why, ERRCODE_INVALID_PARAMETER_VALUE, NULL, 0, 0,
							psprintf("resource template \"%s\" gives a name of %d bytes",
									 t->source, buf.len),
							psprintf("A resource's name has 1 to %d bytes.", MAX_NAME_BYTES));
		why->hint = "Choose columns with shorter values.";
		return false;
	}
	*name = make_name(buf.data, buf.len);
	return true;
}
