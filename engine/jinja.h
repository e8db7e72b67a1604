/* Chat templates: an interpreter for the part of Jinja that published ones use, as transformers sets it up (trim_blocks,
 * lstrip_blocks, loop controls, raise_exception, strftime_now). Statements: if, for, set, macro, raw, break, continue, generation.
 * What is not known is refused when the template is read, by its name and line: statements, filters, tests, methods, functions; a
 * kind of value that one of these does not take when it is met. Steps, memory and nesting have limits, since a template comes with
 * a model file. Reference: jinja.palletsprojects.com, template designers. */
#ifndef ENGINE_JINJA_H
#define ENGINE_JINJA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/json.h"
#include "base/text.h"

struct jinja; /* immutable after jinja_parse */

/* Errors name the line of the template. */
enum status jinja_parse(const char *source, size_t len, struct jinja **out, struct err *err);
void jinja_free(struct jinja *jinja);

/* True when the template's text has this word: one without "tools" has no place for them. */
bool jinja_mentions(const struct jinja *jinja, const char *word);

struct jinja_message {
	const char *role; /* NUL-terminated */
	const char *content; /* NULL: None */
	size_t content_len;
	const struct json *more; /* object whose other members the message has too; NULL: none */
};

/* What a template may ask for. */
struct jinja_input {
	const struct jinja_message *messages;
	size_t n_messages;
	const struct json *tools; /* NULL: not defined */
	const char *bos_token, *eos_token; /* NULL: not defined */
	int64_t now_s; /* seconds since 1970, for strftime_now */
	/* Appends what stands for a string of tools and more; NULL: they are taken as they are. */
	void (*change)(void *ctx, const char *text, size_t len, struct text *out);
	void *change_ctx;
};

/* Appends the text to out. add_generation_prompt is true; documents are not defined. Arguments of calls that are JSON as text, as
 * OpenAI's API has them, become what they say, as templates expect. What a template raises is STATUS_INPUT with its words; other
 * errors name the line. */
enum status jinja_render(const struct jinja *jinja, const struct jinja_input *input, struct text *out, struct err *err);

#endif
