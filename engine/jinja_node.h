/* Inside the template interpreter: what a template is after parsing. Nodes live in the arena of the template. */
#ifndef ENGINE_JINJA_NODE_H
#define ENGINE_JINJA_NODE_H

#include "base/err.h"
#include "engine/jinja_value.h"

#define JINJA_DEPTH_MAX 100 /* nested statements and expressions; guess: published templates have 15 */
#define JINJA_ARGUMENTS_MAX 16 /* of one call; guess, likewise */

enum expression_kind {
	EXPRESSION_LITERAL,
	EXPRESSION_NAME,
	EXPRESSION_MEMBER, /* a.name */
	EXPRESSION_INDEX, /* a[b] */
	EXPRESSION_SLICE, /* a[b:c:d] */
	EXPRESSION_CALL, /* a(arguments) */
	EXPRESSION_FILTER, /* a | name(arguments) */
	EXPRESSION_TEST, /* a is name(arguments) */
	EXPRESSION_NOT,
	EXPRESSION_MINUS, /* -a */
	EXPRESSION_BINARY, /* a name b; name is the operator */
	EXPRESSION_CHOICE, /* a if b else c */
	EXPRESSION_LIST, /* [arguments] */
	EXPRESSION_DICT /* {names: arguments} with literal keys */
};

struct expression {
	enum expression_kind kind;
	int depth; /* levels below it, and it; 0 for literals and names */
	struct value literal;
	const char *name;
	struct expression *a, *b, *c, *d; /* NULL where left out */
	struct expression *arguments[JINJA_ARGUMENTS_MAX];
	const char *argument_names[JINJA_ARGUMENTS_MAX]; /* NULL: by position */
	size_t n_arguments;
};

enum statement_kind {
	STATEMENT_TEXT,
	STATEMENT_PRINT, /* a */
	STATEMENT_IF, /* a: body, else otherwise */
	STATEMENT_FOR, /* name (and name2) in a, those with b: body */
	STATEMENT_SET, /* name = a, or name.member = a, or name = body as text */
	STATEMENT_MACRO, /* name(the names and defaults of a): body */
	STATEMENT_GENERATION, /* body */
	STATEMENT_BREAK,
	STATEMENT_CONTINUE
};

struct statement {
	enum statement_kind kind;
	struct statement *next;
	int line; /* of the template, where its tag begins; of text, the tag's before it */
	struct value text;
	const char *name, *name2, *member;
	struct expression *a, *b;
	struct statement *body, *otherwise;
};

/* One piece of a tag: a word, a string, a number, or an operator. */
enum token_type { TAG_END, TAG_WORD, TAG_STRING, TAG_NUMBER, TAG_OPERATOR };

struct tag_token {
	enum token_type type;
	struct value value; /* of a string or a number */
	const char *text; /* of a word or an operator */
};

/* A name that something is called by, and where; lists live in the arena. */
struct called {
	const char *name, *at;
	struct called *next;
};

/* The tokens of one tag, and where the parser is. */
struct tag {
	struct arena *arena;
	struct called **called; /* names of calls that are no methods are put before this list */
	const char *at, *end; /* what is left to read */
	struct tag_token token; /* the one that comes next */
	int depth;
	bool is_broken; /* a token behind one that was taken cannot be read; err says why */
	struct err *err; /* never NULL */
};

/* Reads the next token into tag->token. */
enum status tag_advance(struct tag *tag);

/* Takes the next token when it is this word or operator. */
bool tag_take(struct tag *tag, const char *text);
bool tag_is(const struct tag *tag, const char *text);

/* Fails unless the tag has been read to its end. */
enum status tag_finish(struct tag *tag);

/* The status of what failed, with what comes next in the message. */
enum status tag_fail(struct tag *tag, const char *expected);

/* An expression from the tag; an operation is one that is no choice by 'if'. */
enum status jinja_parse_expression(struct tag *tag, struct expression **out);
enum status jinja_parse_operation(struct tag *tag, struct expression **out);

/* Reads a template's text; statements live in the arena. err (not NULL) names the line. */
enum status jinja_parse_template(const char *source, size_t len, struct arena *arena, struct statement **out, struct err *err);

/* One rendering: the variables that templates start with are in globals, by their names. */
struct rendering {
	struct arena arena;
	struct value globals; /* dict: names set outside loops */
	struct value scopes[JINJA_DEPTH_MAX]; /* dicts: names of loops and macros, the innermost last */
	size_t n_scopes, first_scope; /* those before first_scope belong to who called the macro that runs */
	int depth; /* statements and expressions inside one another, through macros too */
	int64_t now_s; /* seconds since 1970, for strftime_now */
	size_t steps;
	bool breaks, continues; /* out of the innermost loop */
	bool has_told_place; /* err names the line of what failed, or has the words that the template raised */
	struct text *out;
	struct err *err;
};

/* Runs statements and what follows them. */
enum status jinja_run(struct rendering *r, const struct statement *first);

/* Counts a step, and more for work that grows with values: units are the bytes, items or names that it goes over or makes. Fails
 * beyond the limits of steps and memory, so that no template runs for ever. */
enum status jinja_spend(struct rendering *r, size_t units);

/* Evaluates, and spends a step. */
enum status jinja_evaluate(struct rendering *r, const struct expression *e, struct value *out);

/* Arguments of a filter, a test or a call, evaluated. */
struct arguments {
	struct value values[JINJA_ARGUMENTS_MAX];
	const char *names[JINJA_ARGUMENTS_MAX];
	size_t count;
};

/* Argument number index among those by position, or the one of that name; undefined when it is not there. */
struct value jinja_argument(const struct arguments *arguments, size_t index, const char *name);

/* Whether there is one of this name; templates with others are refused when they are read. */
bool jinja_knows_filter(const char *name);
bool jinja_knows_test(const char *name);
bool jinja_knows_method(const char *name);
bool jinja_knows_function(const char *name);

/* Units of work of a method or a filter, before what its own loop adds. Stripping looks for each character in the argument. */
size_t jinja_cost(struct value value, struct value argument);

/* A list of [key, value] of a dict. */
struct value jinja_items(struct rendering *r, struct value dict);

/* One level deeper, of statements and expressions that run inside one another; fails where the stack has its limit. */
enum status jinja_enter(struct rendering *r);

enum status jinja_macro(struct rendering *r, const struct statement *macro, const struct arguments *arguments, struct value *out);
enum status jinja_filter(
	struct rendering *r, const char *name, struct value value, const struct arguments *arguments, struct value *out);
enum status jinja_test(struct rendering *r, const char *name, struct value value, const struct arguments *arguments, bool *out);
enum status jinja_method(
	struct rendering *r, struct value value, const char *name, const struct arguments *arguments, struct value *out);
enum status jinja_function(struct rendering *r, const char *name, const struct arguments *arguments, struct value *out);

/* a < b and its kin, a + b, a in b, … */
enum status jinja_binary(struct rendering *r, const char *operation, struct value a, struct value b, struct value *out);

#endif
