/* Chat templates: an interpreter for the part of Jinja that published ones use, as transformers sets it up (trim_blocks,
 * lstrip_blocks, loop controls, raise_exception, strftime_now). Statements: if, for, set, break, continue, generation. What is not
 * known is refused when it is met, never passed over: when a statement is read, when an expression is evaluated. Steps, memory and
 * nesting have limits, since a template comes with a model file. Reference: jinja.palletsprojects.com, template designers. */
#ifndef ENGINE_JINJA_H
#define ENGINE_JINJA_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/text.h"

struct jinja; /* immutable after jinja_parse */

/* Errors name the line of the template. */
enum status jinja_parse(const char *source, size_t len, struct jinja **out, struct err *err);
void jinja_free(struct jinja *jinja);

struct jinja_message {
	const char *role; /* NUL-terminated */
	const char *content;
	size_t content_len;
};

/* What a template may ask for. */
struct jinja_input {
	const struct jinja_message *messages;
	size_t n_messages;
	const char *bos_token, *eos_token; /* NULL: not defined */
	int64_t now_s; /* seconds since 1970, for strftime_now */
};

/* Appends the text to out. add_generation_prompt is true; tools and documents are not defined. What a template raises is
 * STATUS_INPUT with its words. */
enum status jinja_render(const struct jinja *jinja, const struct jinja_input *input, struct text *out, struct err *err);

#endif
