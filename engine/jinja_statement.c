/* Cuts a template into text and tags, and tags into statements. White space follows trim_blocks and lstrip_blocks. */
#include <string.h>

#include "engine/jinja_text.h"

/* A stretch of text, or the inside of a tag. */
enum piece_kind { PIECE_TEXT, PIECE_PRINT, PIECE_STATEMENT };

struct parser {
	struct arena *arena;
	const char *source, *at, *end; /* what is left to read */
	bool trims_newline; /* the last tag was a block: a newline behind it goes */
	bool trims_space; /* the last tag ended with '-' */
	struct tag tag; /* the statement being read */
	const char *open; /* where that tag begins, or what was read of the source before there was one */
	int line; /* of open */
	struct called *called; /* names that are called as functions */
	struct called *macros; /* names of macros */
	int depth;
	struct err *err;
};

static bool is_tag(const char *at, const char *end)
{
	return end - at >= 2 && at[0] == '{' && (at[1] == '{' || at[1] == '%' || at[1] == '#');
}

static enum status fail_at(struct parser *parser, const char *at)
{
	int line = 1;

	for (const char *c = parser->source; c < at; c++)
		line += *c == '\n';
	err_add(parser->err, "line %d of the chat template", line);
	return STATUS_INPUT;
}

/* Notes where a tag begins; tags are read in their order. */
static void open_tag(struct parser *parser, const char *at)
{
	for (; parser->open < at; parser->open++)
		parser->line += *parser->open == '\n';
}

/* 1 for a bracket that opens, -1 for one that closes, else 0. */
static int bracket(char c)
{
	if (c == '(' || c == '[' || c == '{')
		return 1;
	return c == ')' || c == ']' || c == '}' ? -1 : 0;
}

/* The end of a tag: the first close outside string literals and brackets, or where brackets do not end the first outside strings.
 * NULL when there is none. */
static const char *find_close(const char *at, const char *end, const char *close, bool is_comment)
{
	const char *inside = NULL; /* brackets */
	char quote = 0;
	int open = 0;

	for (; end - at >= 2; at++) {
		bool closes = !quote && memcmp(at, close, 2) == 0;

		if (closes && open == 0)
			return at;
		inside = closes && !inside ? at : inside;
		if (quote && *at == '\\')
			at++;
		else if (quote)
			quote = *at == quote ? 0 : quote;
		else if (!is_comment && (*at == '\'' || *at == '"'))
			quote = *at;
		else if (!is_comment)
			open = open + bracket(*at) < 0 ? 0 : open + bracket(*at);
	}
	return inside;
}

/* Where lstrip_blocks cuts off what is before a tag at end: at the beginning of its line, where nothing but white space follows. */
static const char *line_begin(const struct parser *parser, const char *begin, const char *end)
{
	const char *cut = end;

	while (cut > begin && cut[-1] != '\n')
		cut--;
	struct value left = jinja_strip(value_string(cut, (size_t)(end - cut)), (struct value){0}, true, false);

	return left.len == 0 && (cut == parser->source || cut[-1] == '\n') ? cut : end;
}

/* Text from begin to the tag at end (or the template's end), less what the tags on both sides take from it. */
static struct value text_between(struct parser *parser, const char *begin, const char *end)
{
	bool at_tag = end < parser->end, block = at_tag && end[1] != '{', strips = at_tag && end + 2 < parser->end && end[2] == '-';
	bool keeps = at_tag && end + 2 < parser->end && end[2] == '+';
	if (parser->trims_newline && begin < end && *begin == '\n')
		begin++;
	if (block && !strips && !keeps)
		end = line_begin(parser, begin, end);
	return jinja_strip(value_string(begin, (size_t)(end - begin)), (struct value){0}, parser->trims_space, strips);
}

/* Reads the tag at parser->at into parser->tag; comments become nothing. */
static enum status read_tag(struct parser *parser, enum piece_kind *kind)
{
	const char *open = parser->at;
	char sign = open[1];
	const char *inside = open + 2,
		   *close = find_close(inside, parser->end,
			   sign == '{'           ? "}}"
				   : sign == '%' ? "%}"
						 : "#}",
			   sign == '#');
	if (!close) {
		err_set(parser->err, STATUS_INPUT, "a tag does not end");
		return fail_at(parser, open);
	}
	open_tag(parser, open);
	parser->at = close + 2;
	parser->trims_space = close > inside && close[-1] == '-';
	parser->trims_newline = !parser->trims_space && sign != '{' && !(close > inside && close[-1] == '+');
	inside += inside < close && (*inside == '-' || *inside == '+');
	close -= close > inside && (close[-1] == '-' || close[-1] == '+');
	*kind = sign == '{' ? PIECE_PRINT : sign == '%' ? PIECE_STATEMENT : PIECE_TEXT;

	parser->tag = (struct tag){.arena = parser->arena,
		.called = &parser->called,
		.at = inside,
		.end = sign == '#' ? inside : close,
		.err = parser->err};
	return tag_advance(&parser->tag) == STATUS_OK ? STATUS_OK : fail_at(parser, open);
}

static struct statement *add_statement(struct parser *parser, struct statement ***tail, enum statement_kind kind)
{
	struct statement *statement = arena_calloc(parser->arena, 1, sizeof *statement);

	statement->kind = kind;
	statement->line = parser->line;
	**tail = statement;
	*tail = &statement->next;
	return statement;
}

static enum status parse_block(struct parser *parser, const char *const *ends, struct statement **out, const char **ended_by);

static const char *const if_ends[] = {"elif", "else", "endif", NULL}, *const else_ends[] = {"endif", NULL},
			 *const for_ends[] = {"else", "endfor", NULL}, *const for_else_ends[] = {"endfor", NULL},
			 *const set_ends[] = {"endset", NULL}, *const macro_ends[] = {"endmacro", NULL},
			 *const generation_ends[] = {"endgeneration", NULL};

/* Behind "if" or "elif". */
static enum status parse_if(struct parser *parser, struct statement *statement)
{
	const char *ended_by;

	for (int branches = 0;; branches++) { /* each is nested in the one before it when the template runs */
		if (branches == JINJA_DEPTH_MAX)
			return err_set(parser->err, STATUS_INPUT, "more than %d branches of elif", JINJA_DEPTH_MAX);
		if (jinja_parse_expression(&parser->tag, &statement->a) != STATUS_OK || tag_finish(&parser->tag) != STATUS_OK ||
			parse_block(parser, if_ends, &statement->body, &ended_by) != STATUS_OK)
			return STATUS_INPUT;
		if (strcmp(ended_by, "elif") != 0)
			break;
		struct statement **tail = &statement->otherwise;
		statement = add_statement(parser, &tail, STATEMENT_IF);
	}
	return strcmp(ended_by, "endif") == 0 ? STATUS_OK : parse_block(parser, else_ends, &statement->otherwise, &ended_by);
}

static enum status take_name(struct tag *tag, const char **out)
{
	if (tag->token.type != TAG_WORD)
		return tag_fail(tag, "a name");
	*out = tag->token.text;
	return tag_advance(tag);
}

static enum status parse_for(struct parser *parser, struct statement *statement)
{
	struct tag *tag = &parser->tag;
	const char *ended_by;

	if (take_name(tag, &statement->name) != STATUS_OK || (tag_take(tag, ",") && take_name(tag, &statement->name2) != STATUS_OK))
		return STATUS_INPUT;
	if (!tag_take(tag, "in"))
		return tag_fail(tag, "in");
	if (jinja_parse_operation(tag, &statement->a) != STATUS_OK ||
		(tag_take(tag, "if") && jinja_parse_operation(tag, &statement->b) != STATUS_OK) || tag_finish(tag) != STATUS_OK ||
		parse_block(parser, for_ends, &statement->body, &ended_by) != STATUS_OK)
		return STATUS_INPUT;
	return strcmp(ended_by, "endfor") == 0 ? STATUS_OK : parse_block(parser, for_else_ends, &statement->otherwise, &ended_by);
}

static enum status parse_set(struct parser *parser, struct statement *statement)
{
	struct tag *tag = &parser->tag;
	const char *ended_by;

	if (take_name(tag, &statement->name) != STATUS_OK ||
		(tag_take(tag, ".") && take_name(tag, &statement->member) != STATUS_OK))
		return STATUS_INPUT;
	if (!tag_take(tag, "=")) {
		if (tag_finish(tag) != STATUS_OK)
			return STATUS_INPUT;
		return parse_block(parser, set_ends, &statement->body, &ended_by);
	}
	return jinja_parse_expression(tag, &statement->a) == STATUS_OK ? tag_finish(tag) : STATUS_INPUT;
}

/* {% generation %} marks what a model says, for training; what is inside stays. */
static enum status parse_generation(struct parser *parser, struct statement *statement)
{
	const char *ended_by;

	return tag_finish(&parser->tag) == STATUS_OK ? parse_block(parser, generation_ends, &statement->body, &ended_by)
						     : STATUS_INPUT;
}

/* name(a, b=1) */
static enum status parse_parameters(struct tag *tag, struct expression *out)
{
	while (!tag_take(tag, ")")) {
		if (out->n_arguments == JINJA_ARGUMENTS_MAX)
			return err_set(tag->err, STATUS_INPUT, "a macro of more than %d arguments", JINJA_ARGUMENTS_MAX);
		if (take_name(tag, &out->argument_names[out->n_arguments]) != STATUS_OK ||
			(tag_take(tag, "=") && jinja_parse_expression(tag, &out->arguments[out->n_arguments]) != STATUS_OK))
			return STATUS_INPUT;
		out->n_arguments++;
		if (!tag_take(tag, ",") && !tag_is(tag, ")"))
			return tag_fail(tag, ")");
	}
	return tag_finish(tag);
}

static enum status parse_macro(struct parser *parser, struct statement *statement)
{
	struct called *macro = arena_calloc(parser->arena, 1, sizeof *macro);
	const char *ended_by;

	statement->a = arena_calloc(parser->arena, 1, sizeof *statement->a);
	if (take_name(&parser->tag, &statement->name) != STATUS_OK)
		return STATUS_INPUT;
	*macro = (struct called){statement->name, parser->at, parser->macros};
	parser->macros = macro;
	if (!tag_take(&parser->tag, "("))
		return tag_fail(&parser->tag, "(");
	if (parse_parameters(&parser->tag, statement->a) != STATUS_OK)
		return STATUS_INPUT;
	return parse_block(parser, macro_ends, &statement->body, &ended_by);
}

/* The statement whose first word is next in the tag. */
static enum status parse_statement(struct parser *parser, struct statement ***tail)
{
	struct tag *tag = &parser->tag;

	if (tag_take(tag, "if"))
		return parse_if(parser, add_statement(parser, tail, STATEMENT_IF));
	if (tag_take(tag, "for"))
		return parse_for(parser, add_statement(parser, tail, STATEMENT_FOR));
	if (tag_take(tag, "set"))
		return parse_set(parser, add_statement(parser, tail, STATEMENT_SET));
	if (tag_take(tag, "macro"))
		return parse_macro(parser, add_statement(parser, tail, STATEMENT_MACRO));
	if (tag_take(tag, "generation"))
		return parse_generation(parser, add_statement(parser, tail, STATEMENT_GENERATION));
	if (tag_is(tag, "break") || tag_is(tag, "continue")) {
		add_statement(parser, tail, tag_is(tag, "break") ? STATEMENT_BREAK : STATEMENT_CONTINUE);
		return tag_advance(tag) == STATUS_OK ? tag_finish(tag) : STATUS_INPUT;
	}
	return tag_fail(tag, "a statement that is supported (if, for, set, macro, raw, break, continue, generation)");
}

static enum status parse_tag(struct parser *parser, enum piece_kind kind, struct statement ***tail)
{
	const char *open = parser->tag.at;
	enum status status;

	if (kind == PIECE_TEXT)
		return STATUS_OK;
	if (kind == PIECE_PRINT) {
		status = jinja_parse_expression(&parser->tag, &add_statement(parser, tail, STATEMENT_PRINT)->a);
		if (status == STATUS_OK)
			status = tag_finish(&parser->tag);
	} else {
		status = parse_statement(parser, tail);
	}
	return status == STATUS_OK || strstr(parser->err->text, "of the chat template") ? status : fail_at(parser, open);
}

static const char *is_end(const struct parser *parser, const char *const *ends)
{
	for (; ends && *ends; ends++)
		if (tag_is(&parser->tag, *ends))
			return *ends;
	return NULL;
}

static const char *skip_white(const char *at, const char *end)
{
	return jinja_strip(value_string(at, (size_t)(end - at)), (struct value){0}, true, false).bytes;
}

/* What is behind the tag at at when there is nothing but this word in it; NULL: it is something else. *sign is the one before its
 * "%}", or '%' where there is none. */
static const char *behind_tag_of(const char *at, const char *end, const char *word, char *sign)
{
	size_t len = strlen(word);

	if (end - at < 3 || memcmp(at, "{%", 2) != 0)
		return NULL;
	at = skip_white(at + 2 + (at[2] == '-' || at[2] == '+'), end);
	if ((size_t)(end - at) < len || memcmp(at, word, len) != 0)
		return NULL;
	at = skip_white(at + len, end);
	*sign = at < end && (*at == '-' || *at == '+') ? *at : '%';
	at += *sign != '%';
	return end - at >= 2 && memcmp(at, "%}", 2) == 0 ? at + 2 : NULL;
}

/* {% raw %}: what is inside is text up to the next {% endraw %}. As in Jinja the first tag takes no newline behind it. False where
 * no such block begins. */
static bool take_raw(struct parser *parser, struct statement ***tail, enum status *status)
{
	const char *open = parser->at, *behind = NULL;
	char sign, end_sign = '%';
	const char *inside = behind_tag_of(open, parser->end, "raw", &sign), *at = inside;

	*status = STATUS_OK;
	if (!inside || sign == '+')
		return false;
	open_tag(parser, open);
	for (; at < parser->end && !behind; at += behind == NULL)
		behind = behind_tag_of(at, parser->end, "endraw", &end_sign);
	if (!behind) {
		err_set(parser->err, STATUS_INPUT, "a raw block does not end");
		*status = fail_at(parser, open);
		return true;
	}
	parser->trims_space = sign == '-';
	struct value text = text_between(parser, inside, at);
	parser->at = behind;
	parser->trims_space = end_sign == '-';
	parser->trims_newline = end_sign == '%';
	if (text.len > 0)
		add_statement(parser, tail, STATEMENT_TEXT)->text = text;
	return true;
}

/* Statements up to one of ends, whose tag is then read but for what follows its first word; ends NULL: to the template's end. */
static enum status parse_block(struct parser *parser, const char *const *ends, struct statement **out, const char **ended_by)
{
	struct statement **tail = out;

	if (++parser->depth > JINJA_DEPTH_MAX)
		return err_set(parser->err, STATUS_INPUT, "statements are nested deeper than %d", JINJA_DEPTH_MAX);
	while (parser->at < parser->end) {
		const char *begin = parser->at;
		enum piece_kind kind = PIECE_TEXT;
		enum status status;

		while (parser->at < parser->end && !is_tag(parser->at, parser->end))
			parser->at++;
		struct value text = text_between(parser, begin, parser->at);
		parser->trims_newline = parser->trims_space = false;
		if (text.len > 0)
			add_statement(parser, &tail, STATEMENT_TEXT)->text = text;
		if (parser->at == parser->end)
			break;
		if (take_raw(parser, &tail, &status)) {
			if (status != STATUS_OK)
				return status;
			continue;
		}
		if (read_tag(parser, &kind) != STATUS_OK)
			return STATUS_INPUT;
		*ended_by = kind == PIECE_STATEMENT ? is_end(parser, ends) : NULL;
		if (*ended_by) {
			parser->depth--;
			return tag_advance(&parser->tag) == STATUS_OK ? STATUS_OK : fail_at(parser, begin);
		}
		if (parse_tag(parser, kind, &tail) != STATUS_OK)
			return STATUS_INPUT;
	}
	parser->depth--;
	return ends ? err_set(parser->err, STATUS_INPUT, "the chat template ends before '%s'", ends[0]) : STATUS_OK;
}

/* Every name that is called is a function or a macro of the template. */
static enum status check_calls(struct parser *parser)
{
	for (const struct called *called = parser->called; called; called = called->next) {
		const struct called *macro = parser->macros;

		while (macro && strcmp(macro->name, called->name) != 0)
			macro = macro->next;
		if (macro || jinja_knows_function(called->name))
			continue;
		err_set(parser->err, STATUS_INPUT, "function '%.40s' is not supported", called->name);
		return fail_at(parser, called->at);
	}
	return STATUS_OK;
}

/* Every "\r\n" and '\r' becomes '\n', as in Jinja. The new length. */
static size_t unify_newlines(char *text, size_t len)
{
	size_t used = 0;
	char before = 0;

	for (size_t i = 0; i < len; i++) {
		char c = text[i];

		if (c != '\n' || before != '\r')
			text[used++] = c == '\r' ? '\n' : c;
		before = c;
	}
	return used;
}

enum status jinja_parse_template(const char *source, size_t len, struct arena *arena, struct statement **out, struct err *err)
{
	char *copy = arena_strndup(arena, source, len);
	struct parser parser = {.arena = arena,
		.source = copy,
		.at = copy,
		.end = copy + unify_newlines(copy, len),
		.open = copy,
		.line = 1,
		.err = err};
	const char *ended_by;
	enum status status;

	if (parser.end > copy && parser.end[-1] == '\n') /* Jinja drops one newline at the end */
		parser.end--;
	*out = NULL;
	status = parse_block(&parser, NULL, out, &ended_by);
	return status == STATUS_OK ? check_calls(&parser) : status;
}
