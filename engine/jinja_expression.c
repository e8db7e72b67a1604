/* Reads the inside of tags: tokens, and expressions by descent, whose depth has a limit. Grammar: Jinja's own parser.py. */
#include <string.h>

#include "engine/jinja_node.h"

/* ---- tokens ---- */

static bool is_space(char c)
{
	return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static bool is_digit(char c)
{
	return c >= '0' && c <= '9';
}

static bool is_word(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || is_digit(c) || c == '_';
}

static enum status read_string(struct tag *tag)
{
	struct text text = {0};
	char quote = *tag->at++;
	bool sound = true;

	while (tag->at < tag->end && *tag->at != quote) {
		char c = *tag->at++;

		if (c == '\\' && tag->at < tag->end) {
			c = *tag->at++;
			if (c == 'n' || c == 't' || c == 'r')
				c = c == 'n' ? '\n' : c == 't' ? '\t' : '\r';
			else if (c != '\\' && c != '\'' && c != '"')
				sound = false;
		}
		text_append_char(&text, c);
	}
	tag->token = (struct tag_token){.type = TAG_STRING, .value = value_copy(tag->arena, &text)};
	text_release(&text);
	if (!sound)
		return err_set(tag->err, STATUS_INPUT, "a string has an escape that is not known");
	if (tag->at == tag->end)
		return err_set(tag->err, STATUS_INPUT, "a string does not end");
	tag->at++;
	return STATUS_OK;
}

static enum status read_number(struct tag *tag)
{
	int64_t number = 0;

	while (tag->at < tag->end && is_digit(*tag->at))
		if (__builtin_mul_overflow(number, 10, &number) || __builtin_add_overflow(number, *tag->at++ - '0', &number))
			return err_set(tag->err, STATUS_INPUT, "a number is too large");
	if (tag->at < tag->end && (*tag->at == '.' || is_word(*tag->at)))
		return err_set(tag->err, STATUS_INPUT, "only whole numbers are supported");
	tag->token = (struct tag_token){.type = TAG_NUMBER, .value = value_int(number)};
	return STATUS_OK;
}

static enum status read_operator(struct tag *tag)
{
	static const char *const operators[] = {"==", "!=", "<=", ">=", "//", "**", "<", ">", "+", "-", "~", "*", "/", "%", "(",
		")", "[", "]", "{", "}", ".", ",", ":", "|", "="};

	for (size_t i = 0; i < sizeof operators / sizeof operators[0]; i++) {
		size_t len = strlen(operators[i]);

		if ((size_t)(tag->end - tag->at) >= len && memcmp(tag->at, operators[i], len) == 0) {
			tag->token = (struct tag_token){.type = TAG_OPERATOR, .text = operators[i]};
			tag->at += len;
			return STATUS_OK;
		}
	}
	return err_set(tag->err, STATUS_INPUT, "byte 0x%02x is part of no expression", (unsigned char)*tag->at);
}

enum status tag_advance(struct tag *tag)
{
	while (tag->at < tag->end && is_space(*tag->at))
		tag->at++;
	const char *begin = tag->at;
	tag->token = (struct tag_token){.type = TAG_END, .text = ""};
	if (tag->at == tag->end)
		return STATUS_OK;
	if (*tag->at == '\'' || *tag->at == '"')
		return read_string(tag);
	if (is_digit(*tag->at))
		return read_number(tag);
	if (!is_word(*tag->at))
		return read_operator(tag);
	while (tag->at < tag->end && is_word(*tag->at))
		tag->at++;
	tag->token = (struct tag_token){.type = TAG_WORD, .text = arena_strndup(tag->arena, begin, (size_t)(tag->at - begin))};
	return STATUS_OK;
}

bool tag_is(const struct tag *tag, const char *text)
{
	return (tag->token.type == TAG_WORD || tag->token.type == TAG_OPERATOR) && strcmp(tag->token.text, text) == 0;
}

/* A token that cannot be read ends the tag early; tag_finish sees to it that this is not forgotten. */
bool tag_take(struct tag *tag, const char *text)
{
	if (!tag_is(tag, text))
		return false;
	if (tag_advance(tag) != STATUS_OK) {
		tag->token = (struct tag_token){.type = TAG_END, .text = ""};
		tag->is_broken = true;
	}
	return true;
}

enum status tag_finish(struct tag *tag)
{
	if (tag->is_broken)
		return STATUS_INPUT;
	return tag->token.type == TAG_END ? STATUS_OK : tag_fail(tag, "the end of the tag");
}

enum status tag_fail(struct tag *tag, const char *expected)
{
	static const char *const types[] = {"the end of the tag", NULL, "a string", "a number", NULL};
	const char *found = types[tag->token.type] ? types[tag->token.type] : tag->token.text;

	return err_set(tag->err, STATUS_INPUT, "found %.40s, expected %s", found, expected);
}

/* ---- expressions ---- */

static struct expression *new_expression(struct tag *tag, enum expression_kind kind)
{
	struct expression *e = arena_calloc(tag->arena, 1, sizeof *e);

	e->kind = kind;
	return e;
}

/* Called when all parts of an expression are there: evaluation recurses as deep as they are nested, by brackets or in a chain. */
static enum status complete(struct tag *tag, struct expression *e)
{
	const struct expression *parts[4] = {e->a, e->b, e->c, e->d};
	int deepest = 0;

	for (int i = 0; i < 4; i++)
		deepest = parts[i] && parts[i]->depth > deepest ? parts[i]->depth : deepest;
	for (size_t i = 0; i < e->n_arguments; i++)
		deepest = e->arguments[i]->depth > deepest ? e->arguments[i]->depth : deepest;
	e->depth = deepest + 1;
	return e->depth > JINJA_DEPTH_MAX
		? err_set(tag->err, STATUS_INPUT, "an expression has more than %d levels", JINJA_DEPTH_MAX)
		: STATUS_OK;
}

static enum status parse_binary_level(struct tag *tag, int level, struct expression **out);
static enum status parse_unary(struct tag *tag, bool with_filters, struct expression **out);

/* Arguments up to close: a, b, name=c */
static enum status parse_arguments(struct tag *tag, const char *close, struct expression *call)
{
	while (!tag_take(tag, close)) {
		if (call->n_arguments == JINJA_ARGUMENTS_MAX)
			return err_set(tag->err, STATUS_INPUT, "more than %d arguments", JINJA_ARGUMENTS_MAX);
		struct expression **argument = &call->arguments[call->n_arguments];
		if (jinja_parse_expression(tag, argument) != STATUS_OK)
			return STATUS_INPUT;
		if ((*argument)->kind == EXPRESSION_NAME && tag_take(tag, "=")) {
			call->argument_names[call->n_arguments] = (*argument)->name;
			if (jinja_parse_expression(tag, argument) != STATUS_OK)
				return STATUS_INPUT;
		}
		call->n_arguments++;
		if (!tag_take(tag, ",") && !tag_is(tag, close))
			return tag_fail(tag, close);
	}
	return complete(tag, call);
}

static enum status parse_dict(struct tag *tag, struct expression **out)
{
	struct expression *dict = *out = new_expression(tag, EXPRESSION_DICT);

	while (!tag_take(tag, "}")) {
		if (dict->n_arguments == JINJA_ARGUMENTS_MAX)
			return err_set(tag->err, STATUS_INPUT, "a dict of more than %d keys", JINJA_ARGUMENTS_MAX);
		if (tag->token.type != TAG_STRING)
			return tag_fail(tag, "a string as key");
		dict->argument_names[dict->n_arguments] = arena_strndup(tag->arena, tag->token.value.bytes, tag->token.value.len);
		if (tag_advance(tag) != STATUS_OK || (!tag_take(tag, ":") && tag_fail(tag, ":")) ||
			jinja_parse_expression(tag, &dict->arguments[dict->n_arguments]) != STATUS_OK)
			return STATUS_INPUT;
		dict->n_arguments++;
		if (!tag_take(tag, ",") && !tag_is(tag, "}"))
			return tag_fail(tag, "}");
	}
	return complete(tag, dict);
}

static enum status parse_word(struct tag *tag, struct expression **out)
{
	static const struct {
		const char *word;
		struct value value;
	} constants[] = {
		{"true", {.kind = VALUE_BOOL, .truth = true}},
		{"True", {.kind = VALUE_BOOL, .truth = true}},
		{"false", {.kind = VALUE_BOOL}},
		{"False", {.kind = VALUE_BOOL}},
		{"none", {.kind = VALUE_NONE}},
		{"None", {.kind = VALUE_NONE}},
	};
	static const char *const not_known[] = {"varargs", "kwargs", "caller", "self", "super"}; /* would be defined in Jinja */
	*out = new_expression(tag, EXPRESSION_NAME);
	(*out)->name = tag->token.text;
	for (size_t i = 0; i < sizeof not_known / sizeof not_known[0]; i++)
		if (tag_is(tag, not_known[i]))
			return err_set(tag->err, STATUS_INPUT, "'%s' is not supported", not_known[i]);
	for (size_t i = 0; i < sizeof constants / sizeof constants[0]; i++) {
		if (tag_is(tag, constants[i].word)) {
			(*out)->kind = EXPRESSION_LITERAL;
			(*out)->literal = constants[i].value;
		}
	}
	return tag_advance(tag);
}

static enum status parse_primary(struct tag *tag, struct expression **out)
{
	if (tag->token.type == TAG_STRING || tag->token.type == TAG_NUMBER) {
		*out = new_expression(tag, EXPRESSION_LITERAL);
		(*out)->literal = tag->token.value;
		return tag_advance(tag);
	}
	if (tag->token.type == TAG_WORD)
		return parse_word(tag, out);
	if (tag_take(tag, "(")) {
		if (jinja_parse_expression(tag, out) != STATUS_OK)
			return STATUS_INPUT;
		return tag_take(tag, ")") ? STATUS_OK : tag_fail(tag, ")");
	}
	if (tag_take(tag, "[")) {
		*out = new_expression(tag, EXPRESSION_LIST);
		return parse_arguments(tag, "]", *out);
	}
	return tag_take(tag, "{") ? parse_dict(tag, out) : tag_fail(tag, "an expression");
}

/* Behind "[": an index, or up to three parts of a slice. */
static enum status parse_subscript(struct tag *tag, struct expression **out)
{
	struct expression *subscript = new_expression(tag, EXPRESSION_INDEX),
			  **parts[3] = {&subscript->b, &subscript->c, &subscript->d};
	int part = 0;

	subscript->a = *out;
	*out = subscript;
	while (!tag_take(tag, "]")) {
		if (tag_take(tag, ":")) {
			subscript->kind = EXPRESSION_SLICE;
			if (++part == 3)
				return tag_fail(tag, "]");
		} else if (*parts[part]) {
			return tag_fail(tag, "]");
		} else if (jinja_parse_expression(tag, parts[part]) != STATUS_OK) {
			return STATUS_INPUT;
		}
	}
	if (subscript->kind == EXPRESSION_INDEX && !subscript->b)
		return err_set(tag->err, STATUS_INPUT, "an index is empty");
	return complete(tag, subscript);
}

/* Names are looked at when the whole template is known, since a macro may be called before its place; methods at once. */
static enum status note_call(struct tag *tag, const struct expression *callee)
{
	if (callee->kind == EXPRESSION_NAME) {
		struct called *called = arena_calloc(tag->arena, 1, sizeof *called);

		*called = (struct called){callee->name, tag->at, *tag->called};
		*tag->called = called;
	}
	return callee->kind != EXPRESSION_MEMBER || jinja_knows_method(callee->name)
		? STATUS_OK
		: err_set(tag->err, STATUS_INPUT, "method '%.40s' is not supported", callee->name);
}

static enum status parse_postfix(struct tag *tag, struct expression **out)
{
	for (;;) {
		if (tag_take(tag, ".")) {
			if (tag->token.type != TAG_WORD)
				return tag_fail(tag, "a name after '.'");
			struct expression *member = new_expression(tag, EXPRESSION_MEMBER);
			member->a = *out;
			member->name = tag->token.text;
			*out = member;
			if (complete(tag, member) != STATUS_OK || tag_advance(tag) != STATUS_OK)
				return STATUS_INPUT;
		} else if (tag_take(tag, "[")) {
			if (parse_subscript(tag, out) != STATUS_OK)
				return STATUS_INPUT;
		} else if (tag_take(tag, "(")) {
			struct expression *call = new_expression(tag, EXPRESSION_CALL);

			call->a = *out;
			*out = call;
			if (note_call(tag, call->a) != STATUS_OK || parse_arguments(tag, ")", call) != STATUS_OK)
				return STATUS_INPUT;
		} else {
			return STATUS_OK;
		}
	}
}

/* "is name", "is not name", "is name(b)", "is name b" */
static enum status parse_test(struct tag *tag, struct expression **out)
{
	bool negated = tag_take(tag, "not");
	struct expression *test = new_expression(tag, EXPRESSION_TEST);

	test->a = *out;
	test->name = tag->token.text;
	if (tag->token.type != TAG_WORD)
		return tag_fail(tag, "the name of a test");
	if (!jinja_knows_test(test->name))
		return err_set(tag->err, STATUS_INPUT, "test '%.40s' is not supported", test->name);
	if (tag_advance(tag) != STATUS_OK)
		return STATUS_INPUT;
	*out = test;
	bool opens = tag_is(tag, "[") || tag_is(tag, "{"); /* an argument that is a list or a dict */
	bool ends = tag->token.type == TAG_END || (tag->token.type == TAG_OPERATOR && !opens) || tag_is(tag, "and") ||
		tag_is(tag, "or") || tag_is(tag, "else") || tag_is(tag, "if") || tag_is(tag, "is") || tag_is(tag, "in") ||
		tag_is(tag, "not");
	if (tag_take(tag, "(")) {
		if (parse_arguments(tag, ")", test) != STATUS_OK)
			return STATUS_INPUT;
	} else if (!ends) {
		test->n_arguments = 1;
		if (parse_unary(tag, false, &test->arguments[0]) != STATUS_OK)
			return STATUS_INPUT;
	}
	if (complete(tag, test) != STATUS_OK)
		return STATUS_INPUT;
	if (!negated)
		return STATUS_OK;
	*out = new_expression(tag, EXPRESSION_NOT);
	(*out)->a = test;
	return complete(tag, *out);
}

static enum status parse_filters(struct tag *tag, struct expression **out)
{
	for (;;) {
		if (tag_take(tag, "is")) {
			if (parse_test(tag, out) != STATUS_OK)
				return STATUS_INPUT;
		} else if (tag_take(tag, "|")) {
			struct expression *filter = new_expression(tag, EXPRESSION_FILTER);

			filter->a = *out;
			filter->name = tag->token.text;
			*out = filter;
			if (tag->token.type != TAG_WORD)
				return tag_fail(tag, "the name of a filter");
			if (!jinja_knows_filter(filter->name))
				return err_set(tag->err, STATUS_INPUT, "filter '%.40s' is not supported", filter->name);
			if (tag_advance(tag) != STATUS_OK)
				return STATUS_INPUT;
			if ((tag_take(tag, "(") ? parse_arguments(tag, ")", filter) : complete(tag, filter)) != STATUS_OK)
				return STATUS_INPUT;
		} else {
			return STATUS_OK;
		}
	}
}

static enum status enter(struct tag *tag)
{
	return ++tag->depth > JINJA_DEPTH_MAX
		? err_set(tag->err, STATUS_INPUT, "expressions and statements are nested deeper than %d", JINJA_DEPTH_MAX)
		: STATUS_OK;
}

static enum status parse_unary(struct tag *tag, bool with_filters, struct expression **out)
{
	if (enter(tag) != STATUS_OK)
		return STATUS_INPUT;
	enum status status;
	if (tag_take(tag, "-")) {
		struct expression *minus = *out = new_expression(tag, EXPRESSION_MINUS);

		status = parse_unary(tag, false, &minus->a);
		if (status == STATUS_OK)
			status = complete(tag, minus);
	} else {
		status = parse_primary(tag, out);
		if (status == STATUS_OK)
			status = parse_postfix(tag, out);
	}
	if (status == STATUS_OK && with_filters)
		status = parse_filters(tag, out);
	tag->depth--;
	return status;
}

/* Operators from the loosest to the tightest. */
#define LEVELS 6
static const char *const level_operators[LEVELS][8] = {
	{"or"},
	{"and"},
	{"==", "!=", "<=", ">=", "<", ">", "in", "not"}, /* "not" stands for "not in" */
	{"+", "-"},
	{"~"},
	{"*", "//", "%", "/"},
};
#define LEVEL_NOT 2 /* comparisons, and "not" before them */

static const char *take_operator(struct tag *tag, int level)
{
	for (int i = 0; i < 8 && level_operators[level][i]; i++)
		if (tag_take(tag, level_operators[level][i]))
			return level_operators[level][i];
	return NULL;
}

static enum status parse_operand(struct tag *tag, int level, struct expression **out)
{
	if (level == LEVEL_NOT && tag_take(tag, "not")) {
		if (enter(tag) != STATUS_OK)
			return STATUS_INPUT;
		struct expression *negation = *out = new_expression(tag, EXPRESSION_NOT);
		enum status status = parse_binary_level(tag, LEVEL_NOT, &negation->a);
		tag->depth--;
		return status == STATUS_OK ? complete(tag, negation) : status;
	}
	return level + 1 < LEVELS ? parse_binary_level(tag, level + 1, out) : parse_unary(tag, true, out);
}

static enum status parse_binary_level(struct tag *tag, int level, struct expression **out)
{
	bool is_compared = false;

	if (parse_operand(tag, level, out) != STATUS_OK)
		return STATUS_INPUT;
	for (const char *operation = take_operator(tag, level); operation; operation = take_operator(tag, level)) {
		struct expression *binary = new_expression(tag, EXPRESSION_BINARY);
		bool not_in = strcmp(operation, "not") == 0;

		if (is_compared)
			return err_set(tag->err, STATUS_INPUT, "comparisons in a chain are not supported");
		is_compared = level == LEVEL_NOT;
		if (not_in && !tag_take(tag, "in"))
			return tag_fail(tag, "'in' after 'not'");
		binary->a = *out;
		binary->name = not_in ? "in" : operation;
		*out = binary;
		if (parse_operand(tag, level, &binary->b) != STATUS_OK || complete(tag, binary) != STATUS_OK)
			return STATUS_INPUT;
		if (not_in) {
			*out = new_expression(tag, EXPRESSION_NOT);
			(*out)->a = binary;
			if (complete(tag, *out) != STATUS_OK)
				return STATUS_INPUT;
		}
	}
	return STATUS_OK;
}

enum status jinja_parse_operation(struct tag *tag, struct expression **out)
{
	return parse_binary_level(tag, 0, out);
}

/* a if b else c */
enum status jinja_parse_expression(struct tag *tag, struct expression **out)
{
	if (enter(tag) != STATUS_OK)
		return STATUS_INPUT;
	enum status status = parse_binary_level(tag, 0, out);
	if (status == STATUS_OK && tag_take(tag, "if")) {
		struct expression *choice = new_expression(tag, EXPRESSION_CHOICE);

		choice->a = *out;
		*out = choice;
		status = parse_binary_level(tag, 0, &choice->b);
		if (status == STATUS_OK && tag_take(tag, "else"))
			status = jinja_parse_expression(tag, &choice->c);
		if (status == STATUS_OK)
			status = complete(tag, choice);
	}
	tag->depth--;
	return status;
}
