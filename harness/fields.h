/* Rules for the members of JSON objects that come from elsewhere, as tables: what each is, and within what. Pure. */
#ifndef HARNESS_FIELDS_H
#define HARNESS_FIELDS_H

#include <stdbool.h>

#include "base/err.h"
#include "base/json.h"

enum field_kind {
	FIELD_TEXT,
	FIELD_NAME, /* a text that is not empty and can be shown on a terminal: no control characters */
	FIELD_INTEGER, /* within [min, max] */
	FIELD_NUMBER, /* integer or real within [min, max] */
	FIELD_FLAG, /* 0 or 1 */
	FIELD_BOOL, /* true, false, 0 or 1 */
	FIELD_OBJECT,
	FIELD_LIST,
	FIELD_ANY
};

enum {
	FIELD_NEEDED = 1, /* neither absent nor null */
	FIELD_OR_TEXT = 2, /* a number, or one of the words */
	FIELD_OR_EMPTY = 4 /* a name that may be empty */
};

struct field {
	const char *name;
	enum field_kind kind;
	unsigned flags;
	double min, max;
	const char *const *words; /* the texts that are allowed, ended by NULL; NULL: any */
};

/* Rows of such tables. */
#define FIELD_OF(name, kind, flags) \
	{ \
		name, kind, flags, 0, 0, NULL \
	}
#define FIELD_WITHIN(name, kind, flags, min, max) \
	{ \
		name, kind, flags, min, max, NULL \
	}
#define FIELD_WORDS(name, flags, words) \
	{ \
		name, FIELD_TEXT, flags, 0, 0, words \
	}

/* Checks every member of the object by a table that an entry without a name ends. Members without a rule are refused where closed.
 * STATUS_INPUT: "NAME: must be …, is …". */
enum status fields_check(const struct json *object, const struct field *fields, bool closed, struct err *err);

#endif
