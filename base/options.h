/* Command-line options described by a table: parsing, range checks, --help text. */
#ifndef BASE_OPTIONS_H
#define BASE_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"
#include "base/text.h"

enum option_kind {
	OPTION_FLAG, /* bool *: --name sets true, --no-name sets false */
	OPTION_I64, /* long long *: within [min, max] */
	OPTION_DOUBLE, /* double *: within [min, max] */
	OPTION_STRING, /* const char **: borrowed from argv; min 1: not empty */
	OPTION_STRING_LIST, /* struct option_list *: each use adds one */
};

#define OPTION_LIST_MAX 64
struct option_list {
	const char *items[OPTION_LIST_MAX]; /* borrowed from argv */
	size_t count;
};

struct option {
	const char *name; /* without dashes: "graph-max-bs"; --name VALUE and --name=VALUE both work */
	enum option_kind kind;
	void *target;
	double min, max; /* of a number; of a string min is its least length */
	const char *placeholder; /* "N", "auto|F", … for the help text; NULL for flags */
	const char *help; /* one sentence; says the default */
};

/* Parses argv[first..argc). Of an option that is given twice the last counts, as elsewhere, but for lists. Words that are no
 * options go to positionals (at most positionals_max); "--" ends options. Errors name the option and the accepted form:
 * STATUS_INPUT. */
enum status options_parse(const struct option *options, size_t count, int argc, char **argv, int first, const char **positionals,
	size_t positionals_max, size_t *positionals_count, struct err *err);

/* Appends one aligned help line per option. */
void options_help(const struct option *options, size_t count, struct text *out);

#endif
