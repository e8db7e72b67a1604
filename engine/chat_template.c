/* Cuts a Jinja template into operations and matches them with those of the ChatML family. */
#include "engine/chat_template.h"

#include <string.h>

#include "base/mem.h"

#define SOURCE_BYTES_MAX ((size_t)1 << 20) /* guess: published templates have some kilobytes */
#define OPS_MAX 64 /* the family needs 16 */

/* A literal text to print, a variable to print (its normal form), or a statement (its normal form). */
enum op_kind { OP_LITERAL, OP_VARIABLE, OP_STATEMENT };

struct op {
	enum op_kind kind;
	struct text text;
};

struct ops {
	struct op items[OPS_MAX];
	size_t count;
};

static void ops_release(struct ops *ops)
{
	for (size_t i = 0; i < ops->count; i++)
		text_release(&ops->items[i].text);
	ops->count = 0;
}

/* Neighbouring literals become one. False when there are too many operations. */
static bool ops_add(struct ops *ops, enum op_kind kind, const char *text, size_t len)
{
	if (kind == OP_LITERAL && len == 0)
		return true;
	if (kind != OP_LITERAL || ops->count == 0 || ops->items[ops->count - 1].kind != OP_LITERAL) {
		if (ops->count == OPS_MAX)
			return false;
		ops->items[ops->count++] = (struct op){.kind = kind};
	}
	text_append(&ops->items[ops->count - 1].text, text, len);
	return true;
}

/* Lexing inside tags. ----------------------------------------------------------------------------------------------- */

struct span {
	const char *at, *end;
};

static bool is_space(char c)
{
	return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static bool is_word(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

static void skip_space(struct span *span)
{
	while (span->at < span->end && is_space(*span->at))
		span->at++;
}

static bool take(struct span *span, const char *text)
{
	size_t len = strlen(text);

	if ((size_t)(span->end - span->at) < len || memcmp(span->at, text, len) != 0)
		return false;
	span->at += len;
	return true;
}

/* Reads a string literal at span, which begins with a quote, into out. */
static bool lex_string(struct span *span, struct text *out)
{
	char quote = *span->at++;

	while (span->at < span->end && *span->at != quote) {
		char c = *span->at++;

		if (c == '\\' && span->at < span->end) {
			c = *span->at++;
			if (c == 'n' || c == 't' || c == 'r')
				c = c == 'n' ? '\n' : c == 't' ? '\t' : '\r';
			else if (c != '\\' && c != '\'' && c != '"')
				return false;
		}
		text_append_char(out, c);
	}
	return span->at++ < span->end;
}

/* Appends the next token in normal form: no white space but between words, single quotes, .role and .content as subscripts. */
static bool lex_normal(struct span *span, struct text *out)
{
	const char *start = span->at;
	bool words_meet = out->len > 0 && is_word(out->data[out->len - 1]) && is_word(*start);

	if (*start == '\'' || *start == '"') {
		bool ok;

		text_append_char(out, '\'');
		ok = lex_string(span, out);
		text_append_char(out, '\'');
		return ok;
	}
	if (take(span, ".role") || take(span, ".content")) {
		text_printf(out, "['%.*s']", (int)(span->at - start - 1), start + 1);
		return span->at == span->end || !is_word(*span->at);
	}
	if (words_meet)
		text_append_char(out, ' ');
	if (!is_word(*start)) {
		text_append_char(out, *span->at++);
		return true;
	}
	while (span->at < span->end && is_word(*span->at))
		text_append_char(out, *span->at++);
	return true;
}

static bool add_statement(struct ops *ops, struct span span)
{
	struct text normal = {0};
	bool ok = true;

	for (skip_space(&span); ok && span.at < span.end; skip_space(&span))
		ok = lex_normal(&span, &normal);
	ok = ok && ops_add(ops, OP_STATEMENT, text_str(&normal), normal.len);
	text_release(&normal);
	return ok;
}

/* One term of a concatenation: a string literal alone is a literal, anything else up to the next + or ~ a variable. */
static bool add_term(struct ops *ops, struct span *span)
{
	struct text literal = {0}, normal = {0};
	bool ok = true, is_literal = false;

	skip_space(span);
	if (span->at < span->end && (*span->at == '\'' || *span->at == '"')) {
		is_literal = true;
		ok = lex_string(span, &literal);
		skip_space(span);
		ok = ok && (span->at == span->end || *span->at == '+' || *span->at == '~');
	}
	while (ok && !is_literal && span->at < span->end && *span->at != '+' && *span->at != '~') {
		ok = lex_normal(span, &normal);
		skip_space(span);
	}
	if (is_literal)
		ok = ok && ops_add(ops, OP_LITERAL, text_str(&literal), literal.len);
	else
		ok = ok && normal.len > 0 && ops_add(ops, OP_VARIABLE, text_str(&normal), normal.len);
	text_release(&literal);
	text_release(&normal);
	return ok;
}

/* {{ a + b + c }}, in parentheses or not. */
static bool add_expression(struct ops *ops, struct span span)
{
	skip_space(&span);
	while (span.end > span.at && is_space(span.end[-1]))
		span.end--;
	if (span.end - span.at >= 2 && span.at[0] == '(' && span.end[-1] == ')') {
		span.at++;
		span.end--;
	}
	for (;;) {
		if (!add_term(ops, &span))
			return false;
		if (span.at == span.end)
			return true;
		span.at++; /* the operator */
	}
}

/* Cutting into tags. ------------------------------------------------------------------------------------------------ */

/* The end of a tag: the first close outside string literals. NULL when there is none. */
static const char *find_close(const char *at, const char *end, const char *close)
{
	char quote = 0;

	for (; end - at >= 2; at++) {
		if (quote && *at == '\\')
			at++;
		else if (quote)
			quote = *at == quote ? 0 : quote;
		else if (*at == '\'' || *at == '"')
			quote = *at;
		else if (memcmp(at, close, 2) == 0)
			return at;
	}
	return NULL;
}

/* Adds the text before a tag, less what the tag's kind and sign take from its end. */
static bool add_text(struct ops *ops, const char *start, const char *end, const char *source, bool block, bool stripped)
{
	const char *cut = end;

	if (stripped) {
		while (cut > start && is_space(cut[-1]))
			cut--;
	} else if (block) { /* lstrip_blocks: blanks between the line's start and the tag */
		while (cut > start && (cut[-1] == ' ' || cut[-1] == '\t'))
			cut--;
		if (cut != source && cut[-1] != '\n')
			cut = end;
	}
	return ops_add(ops, OP_LITERAL, start, (size_t)(cut - start));
}

/* Handles the tag at open, "{{", "{%" or "{#", with text before it since start. Returns where the text after it begins;
 * NULL when it cannot be read. */
static const char *add_tag(struct ops *ops, const char *source, const char *start, const char *open, const char *end)
{
	char kind = open[1];
	const char *close = kind == '{' ? "}}" : kind == '%' ? "%}" : "#}";
	struct span span = {open + 2, NULL};
	const char *next;
	bool strip_before = span.at < end && *span.at == '-', strip_after;

	span.end = kind == '#' ? NULL : find_close(span.at, end, close);
	for (const char *at = span.at; kind == '#' && !span.end && end - at >= 2; at++)
		span.end = memcmp(at, close, 2) == 0 ? at : NULL;
	if (!span.end || !add_text(ops, start, open, source, kind != '{', strip_before))
		return NULL;
	next = span.end + 2;
	span.at += strip_before;
	strip_after = span.end > span.at && span.end[-1] == '-';
	span.end -= strip_after;
	if (kind == '{' ? !add_expression(ops, span) : kind == '%' && !add_statement(ops, span))
		return NULL;
	while (strip_after && next < end && is_space(*next))
		next++;
	if (!strip_after && kind != '{' && next < end && *next == '\n') /* trim_blocks */
		next++;
	return next;
}

static bool cut_template(const char *source, size_t len, struct ops *ops)
{
	const char *end = source + len, *start = source;

	if (len > 0 && end[-1] == '\n') /* Jinja drops one newline at the end */
		end--;
	for (const char *at = start; end - at >= 2;) {
		if (at[0] != '{' || (at[1] != '{' && at[1] != '%' && at[1] != '#')) {
			at++;
			continue;
		}
		at = start = add_tag(ops, source, start, at, end);
		if (!at)
			return false;
	}
	return ops_add(ops, OP_LITERAL, start, (size_t)(end - start));
}

/* Matching. --------------------------------------------------------------------------------------------------------- */

#define SYSTEM_HEAD "<|im_start|>system\n"
#define MESSAGE_TAIL "<|im_end|>\n"

/* Moves past the operation at *at when it is this one. */
static bool match(const struct ops *ops, size_t *at, enum op_kind kind, const char *text)
{
	if (*at >= ops->count || ops->items[*at].kind != kind || strcmp(text_str(&ops->items[*at].text), text) != 0)
		return false;
	++*at;
	return true;
}

static void match_prelude(const struct ops *ops, size_t *at)
{
	size_t here = *at;

	if (match(ops, &here, OP_STATEMENT, "if not add_generation_prompt is defined") &&
		match(ops, &here, OP_STATEMENT, "set add_generation_prompt=false") && match(ops, &here, OP_STATEMENT, "endif"))
		*at = here;
}

/* The default system message, with in_loop the form that asks for the first message. */
static bool match_default(const struct ops *ops, size_t *at, bool in_loop, struct chat_template *out)
{
	size_t here = *at, head = strlen(SYSTEM_HEAD), tail = strlen(MESSAGE_TAIL);
	const struct text *literal;

	if (!(in_loop && match(ops, &here, OP_STATEMENT, "if loop.first and messages[0]['role']!='system'")) &&
		!(!in_loop && match(ops, &here, OP_STATEMENT, "if messages[0]['role']!='system'")))
		return false;
	if (here >= ops->count || ops->items[here].kind != OP_LITERAL)
		return false;
	literal = &ops->items[here++].text;
	if (!match(ops, &here, OP_STATEMENT, "endif") || literal->len < head + tail ||
		memcmp(literal->data, SYSTEM_HEAD, head) != 0 ||
		memcmp(literal->data + literal->len - tail, MESSAGE_TAIL, tail) != 0)
		return false;
	if (memmem(literal->data + head, literal->len - head - tail, "<|im_", 5))
		return false; /* more than one message */
	out->has_default_system = true;
	text_append(&out->default_system, literal->data + head, literal->len - head - tail);
	*at = here;
	return true;
}

static bool match_message(const struct ops *ops, size_t *at, struct chat_template *out)
{
	if (!match(ops, at, OP_LITERAL, "<|im_start|>") || !match(ops, at, OP_VARIABLE, "message['role']") ||
		!match(ops, at, OP_LITERAL, "\n"))
		return false;
	if (match(ops, at, OP_VARIABLE, "message['content']|trim"))
		out->trims_content = true;
	else if (!match(ops, at, OP_VARIABLE, "message['content']"))
		return false;
	return match(ops, at, OP_LITERAL, MESSAGE_TAIL);
}

static bool match_family(const struct ops *ops, struct chat_template *out)
{
	size_t at = 0;

	match_prelude(ops, &at);
	out->adds_bos = match(ops, &at, OP_VARIABLE, "bos_token");
	match_default(ops, &at, false, out);
	if (!match(ops, &at, OP_STATEMENT, "for message in messages"))
		return false;
	if (!out->has_default_system)
		match_default(ops, &at, true, out);
	return match_message(ops, &at, out) && match(ops, &at, OP_STATEMENT, "endfor") &&
		match(ops, &at, OP_STATEMENT, "if add_generation_prompt") &&
		match(ops, &at, OP_LITERAL, "<|im_start|>assistant\n") && match(ops, &at, OP_STATEMENT, "endif") &&
		at == ops->count;
}

bool chat_template_parse(const char *source, size_t len, struct chat_template *out, const char **why)
{
	struct ops *ops = mem_calloc(1, sizeof(*ops));
	bool cut = len <= SOURCE_BYTES_MAX && cut_template(source, len, ops);
	bool known;

	*out = (struct chat_template){0};
	known = cut && match_family(ops, out);
	if (!cut)
		*why = "the chat template cannot be read, or is longer than any of the ChatML family";
	else if (!known)
		*why = "the chat template is not one of the plain ChatML family (role, newline, content between <|im_start|> and "
		       "<|im_end|>)";
	ops_release(ops);
	mem_free(ops);
	return known;
}

void chat_template_release(struct chat_template *template)
{
	text_release(&template->default_system);
	*template = (struct chat_template){0};
}
