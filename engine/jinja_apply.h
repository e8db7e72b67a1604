/* Inside the template interpreter: what filters and methods have in common. Both are entries of a table: a name, the kinds of
 * values that it takes, and its parameters. */
#ifndef ENGINE_JINJA_APPLY_H
#define ENGINE_JINJA_APPLY_H

#include "engine/jinja_node.h"

#define JINJA_PARAMETERS_MAX 3

/* One application: what it is applied to, and the arguments. */
struct jinja_use {
	struct value value;
	struct value arguments[JINJA_PARAMETERS_MAX]; /* by parameter; undefined where none was given */
	const struct arguments *written; /* as the template has them, for entries that take any */
};

struct jinja_entry {
	const char *name;
	unsigned kinds; /* bits JINJA_OF of the values that it takes */
	enum status (*run)(struct rendering *r, const struct jinja_use *use, struct value *out);
	const char *parameters[JINJA_PARAMETERS_MAX]; /* in the order of arguments by position; NULL: none */
	bool takes_any; /* arguments of any number and name, which run looks at itself */
};

#define JINJA_OF(kind) (1u << (kind))
#define JINJA_ANY (~0u)

/* NULL when there is none of this name. */
const struct jinja_entry *jinja_find(const struct jinja_entry *entries, size_t count, const char *name);

/* Spends what the work costs and runs the entry. what: "filter" or "method", for messages. An entry that is NULL, a value of
 * another kind, and arguments that no parameter takes are refused. */
enum status jinja_apply(struct rendering *r, const struct jinja_entry *entry, const char *what, const char *name,
	struct value value, const struct arguments *arguments, struct value *out);

/* Those that are filters and methods alike. */
enum status jinja_use_upper(struct rendering *r, const struct jinja_use *use, struct value *out);
enum status jinja_use_lower(struct rendering *r, const struct jinja_use *use, struct value *out);
enum status jinja_use_capitalize(struct rendering *r, const struct jinja_use *use, struct value *out);
enum status jinja_use_strip(struct rendering *r, const struct jinja_use *use, struct value *out); /* (chars) */
enum status jinja_use_replace(struct rendering *r, const struct jinja_use *use, struct value *out); /* (old, new, count) */
enum status jinja_use_keys(struct rendering *r, const struct jinja_use *use, struct value *out); /* of a dict */
enum status jinja_use_items(struct rendering *r, const struct jinja_use *use, struct value *out); /* likewise, or of undefined */

#endif
