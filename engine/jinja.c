/* Runs templates: statements over the variables of one conversation. */
#include "engine/jinja.h"

#include <string.h>

#include "engine/jinja_node.h"

#define SOURCE_BYTES_MAX ((size_t)256 << 10) /* guess: published templates have some kilobytes */
#define OUTPUT_BYTES_MAX ((size_t)256 << 20) /* what a tokenizer takes at once */

struct jinja {
	struct arena arena;
	const char *source; /* in the arena */
	size_t source_len;
	struct statement *first;
};

/* ---- statements ---- */

static enum status print(struct rendering *r, struct value value)
{
	if (value.kind >= VALUE_LIST)
		return err_set(r->err, STATUS_INPUT, "a list or a dict is printed as it is");
	if (jinja_spend(r, value.len) != STATUS_OK)
		return STATUS_INPUT;
	value_print(value, r->out);
	return r->out->len <= OUTPUT_BYTES_MAX
		? STATUS_OK
		: err_set(r->err, STATUS_INPUT, "the prompt is longer than %zu bytes", OUTPUT_BYTES_MAX);
}

/* Names belong to the innermost loop, as in Jinja; members only to namespaces. */
static enum status assign(struct rendering *r, const struct statement *s, struct value value)
{
	bool inside = r->n_scopes > r->first_scope;
	struct value scope = inside ? r->scopes[r->n_scopes - 1] : r->globals, target = {0};

	if (!s->member) {
		value_set(&r->arena, scope, s->name, strlen(s->name), value);
		return jinja_spend(r, scope.dict->count);
	}
	for (size_t i = r->n_scopes; i > r->first_scope && target.kind == VALUE_UNDEFINED; i--)
		target = value_get(r->scopes[i - 1], s->name, strlen(s->name));
	if (target.kind == VALUE_UNDEFINED)
		target = value_get(r->globals, s->name, strlen(s->name));
	if (target.kind != VALUE_DICT || target.dict->role != DICT_NAMESPACE)
		return err_set(r->err, STATUS_INPUT, "'%.40s' is no namespace", s->name);
	value_set(&r->arena, target, s->member, strlen(s->member), value);
	return jinja_spend(r, target.dict->count);
}

static enum status push_scope(struct rendering *r)
{
	if (r->n_scopes == JINJA_DEPTH_MAX)
		return err_set(r->err, STATUS_INPUT, "loops, macros and blocks are nested deeper than %d", JINJA_DEPTH_MAX);
	r->scopes[r->n_scopes++] = value_dict(&r->arena);
	return STATUS_OK;
}

/* Runs statements in a scope of their own: what they set is gone after them. */
static enum status run_inside(struct rendering *r, const struct statement *first)
{
	if (push_scope(r) != STATUS_OK)
		return STATUS_INPUT;
	enum status status = jinja_run(r, first);

	r->n_scopes--;
	if (r->n_scopes == 0) /* there was no loop to end */
		r->breaks = r->continues = false;
	return status;
}

static enum status run_set(struct rendering *r, const struct statement *s)
{
	struct value value = {0};

	if (s->a)
		return jinja_evaluate(r, s->a, &value) == STATUS_OK ? assign(r, s, value) : STATUS_INPUT;
	struct text captured = {0}, *outside = r->out;
	r->out = &captured;
	enum status status = run_inside(r, s->body);
	r->out = outside;
	value = value_copy(&r->arena, &captured);
	text_release(&captured);
	return status == STATUS_OK ? assign(r, s, value) : status;
}

static void set_name(struct rendering *r, struct value scope, const char *name, struct value value)
{
	value_set(&r->arena, scope, name, strlen(name), value);
}

/* The names of one turn of a loop. */
static enum status bind_item(struct rendering *r, const struct statement *s, struct value scope, struct value item)
{
	if (!s->name2) {
		set_name(r, scope, s->name, item);
		return STATUS_OK;
	}
	if (item.kind != VALUE_LIST || item.list->count != 2)
		return err_set(r->err, STATUS_INPUT, "a loop over pairs meets something else");
	set_name(r, scope, s->name, item.list->items[0]);
	set_name(r, scope, s->name2, item.list->items[1]);
	return STATUS_OK;
}

static void bind_loop(struct rendering *r, struct value scope, const struct value_list *items, size_t index)
{
	struct value loop = value_dict(&r->arena);

	loop.dict->role = DICT_LOOP;
	const struct {
		const char *name;
		int64_t value;
	} numbers[] = {
		{"index", (int64_t)index + 1},
		{"index0", (int64_t)index},
		{"revindex", (int64_t)(items->count - index)},
		{"revindex0", (int64_t)(items->count - index) - 1},
		{"length", (int64_t)items->count},
		{"depth", 1}, /* of recursive loops, which are refused, it would grow */
		{"depth0", 0},
	};
	for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
		set_name(r, loop, numbers[i].name, value_int(numbers[i].value));
	set_name(r, loop, "first", value_bool(index == 0));
	set_name(r, loop, "last", value_bool(index + 1 == items->count));
	set_name(r, loop, "previtem", index > 0 ? items->items[index - 1] : (struct value){0});
	set_name(r, loop, "nextitem", index + 1 < items->count ? items->items[index + 1] : (struct value){0});
	set_name(r, scope, "loop", loop);
}

/* What a loop goes over: items of a list, or keys of a dict, those for which its condition holds. */
static enum status loop_items(struct rendering *r, const struct statement *s, struct value *out)
{
	struct value all = {0}, passes = value_bool(true), *scope = &r->scopes[r->n_scopes - 1];

	if (jinja_evaluate(r, s->a, &all) != STATUS_OK)
		return STATUS_INPUT;
	if (all.kind == VALUE_UNDEFINED) /* has no items to Jinja */
		all = value_list(&r->arena);
	if (all.kind != VALUE_LIST && all.kind != VALUE_DICT)
		return err_set(r->err, STATUS_INPUT, "a loop goes over something that is no list");
	size_t count = all.kind == VALUE_LIST ? all.list->count : all.dict->count;
	*out = value_list(&r->arena);
	for (size_t i = 0; i < count; i++) {
		struct value item = all.kind == VALUE_LIST ? all.list->items[i] : all.dict->keys[i];

		if (s->b && (bind_item(r, s, *scope, item) != STATUS_OK || jinja_evaluate(r, s->b, &passes) != STATUS_OK))
			return STATUS_INPUT;
		if (value_is_true(passes))
			value_append(&r->arena, *out, item);
	}
	return STATUS_OK;
}

/* As in Jinja, the else of a loop is for one of which no turn came to its end: there was none, or break or continue ended them. */
static enum status run_for(struct rendering *r, const struct statement *s)
{
	struct value items = value_list(&r->arena);
	bool has_ended = false;

	if (push_scope(r) != STATUS_OK)
		return STATUS_INPUT;
	enum status status = loop_items(r, s, &items);
	for (size_t i = 0; status == STATUS_OK && i < items.list->count && !r->breaks; i++) {
		struct value scope = r->scopes[r->n_scopes - 1] = value_dict(&r->arena);

		bind_loop(r, scope, items.list, i);
		status = bind_item(r, s, scope, items.list->items[i]);
		if (status == STATUS_OK)
			status = jinja_spend(r, 0); /* for the names of the turn, whatever the body does */
		if (status == STATUS_OK)
			status = jinja_run(r, s->body);
		has_ended = has_ended || (!r->breaks && !r->continues);
		r->continues = false;
	}
	r->breaks = false;
	r->n_scopes--;
	return status == STATUS_OK && !has_ended ? run_inside(r, s->otherwise) : status;
}

/* Arguments of a call by their names, or their defaults. */
static enum status bind_parameters(
	struct rendering *r, const struct statement *macro, const struct arguments *arguments, struct value scope)
{
	const struct expression *parameters = macro->a;
	size_t by_position = 0, known = 0;

	for (size_t i = 0; i < arguments->count; i++)
		by_position += arguments->names[i] == NULL;
	for (size_t i = 0; i < parameters->n_arguments; i++) {
		struct value value = jinja_argument(arguments, i, parameters->argument_names[i]);

		for (size_t k = 0; k < arguments->count; k++)
			known += arguments->names[k] && strcmp(arguments->names[k], parameters->argument_names[i]) == 0;
		if (value.kind == VALUE_UNDEFINED && parameters->arguments[i] &&
			jinja_evaluate(r, parameters->arguments[i], &value) != STATUS_OK)
			return STATUS_INPUT;
		set_name(r, scope, parameters->argument_names[i], value);
	}
	if (by_position > parameters->n_arguments || known + by_position != arguments->count)
		return err_set(r->err, STATUS_INPUT, "macro '%.40s' is called with arguments that it does not take", macro->name);
	return STATUS_OK;
}

/* What its body writes. It sees its arguments and what is set outside loops, not what its caller sees. */
enum status jinja_macro(struct rendering *r, const struct statement *macro, const struct arguments *arguments, struct value *out)
{
	struct text captured = {0}, *outside = r->out;
	size_t first_scope = r->first_scope, n_scopes = r->n_scopes;

	r->first_scope = n_scopes;
	r->out = &captured;
	enum status status = push_scope(r);
	if (status == STATUS_OK)
		status = bind_parameters(r, macro, arguments, r->scopes[n_scopes]);
	if (status == STATUS_OK)
		status = jinja_run(r, macro->body);
	r->breaks = r->continues = false;
	r->first_scope = first_scope;
	r->n_scopes = n_scopes;
	r->out = outside;
	*out = value_copy(&r->arena, &captured);
	text_release(&captured);
	return status;
}

static enum status run_one(struct rendering *r, const struct statement *s)
{
	struct value value = {0};

	switch (s->kind) {
	case STATEMENT_TEXT:
		return print(r, s->text);
	case STATEMENT_PRINT:
		return jinja_evaluate(r, s->a, &value) == STATUS_OK ? print(r, value) : STATUS_INPUT;
	case STATEMENT_IF:
		if (jinja_evaluate(r, s->a, &value) != STATUS_OK)
			return STATUS_INPUT;
		return jinja_run(r, value_is_true(value) ? s->body : s->otherwise);
	case STATEMENT_FOR:
		return run_for(r, s);
	case STATEMENT_SET:
		return run_set(r, s);
	case STATEMENT_GENERATION:
		return run_inside(r, s->body);
	case STATEMENT_MACRO:
		return assign(r, s, (struct value){.kind = VALUE_MACRO, .macro = s});
	case STATEMENT_BREAK:
	case STATEMENT_CONTINUE:
		r->breaks = r->n_scopes > 0 && s->kind == STATEMENT_BREAK;
		r->continues = r->n_scopes > 0 && s->kind == STATEMENT_CONTINUE;
		return STATUS_OK;
	}
	return STATUS_INTERNAL;
}

enum status jinja_run(struct rendering *r, const struct statement *first)
{
	enum status status = jinja_enter(r);

	for (const struct statement *s = first; s && status == STATUS_OK && !r->breaks && !r->continues; s = s->next) {
		status = run_one(r, s);
		if (status != STATUS_OK && !r->has_told_place) {
			err_add(r->err, "line %d", s->line);
			r->has_told_place = true;
		}
	}
	r->depth--;
	return status;
}

/* ---- the whole ---- */

enum status jinja_parse(const char *source, size_t len, struct jinja **out, struct err *err)
{
	struct jinja *jinja = mem_calloc(1, sizeof *jinja);
	struct err local = {0}; /* the parser looks at what it says */
	enum status status = STATUS_OK;

	*out = NULL;
	if (len > SOURCE_BYTES_MAX)
		status = err_set(&local, STATUS_INPUT, "the chat template is longer than %zu bytes", SOURCE_BYTES_MAX);
	if (status == STATUS_OK)
		status = jinja_parse_template(source, len, &jinja->arena, &jinja->first, &local);
	jinja->source = arena_strndup(&jinja->arena, source, status == STATUS_OK ? len : 0);
	jinja->source_len = status == STATUS_OK ? len : 0;
	if (status == STATUS_OK)
		*out = jinja;
	else
		jinja_free(jinja);
	return status == STATUS_OK ? status : err_set(err, status, "%s", local.text);
}

void jinja_free(struct jinja *jinja)
{
	if (!jinja)
		return;
	arena_release(&jinja->arena);
	mem_free(jinja);
}

bool jinja_mentions(const struct jinja *jinja, const char *word)
{
	return memmem(jinja->source, jinja->source_len, word, strlen(word)) != NULL;
}

/* Puts what the text of arguments says in its place. */
static void parse_arguments(struct json *message)
{
	const struct json *calls = json_get(message, "tool_calls");

	for (size_t i = 0; json_kind_of(calls) == JSON_KIND_ARRAY && i < json_count(calls); i++) {
		struct json *function = json_get(json_at(calls, i), "function"), *parsed = NULL;
		const struct json *text = json_get(function, "arguments");

		if (!json_text(text) || json_parse(json_text(text), json_text_len(text), "arguments", &parsed, NULL) != STATUS_OK)
			continue;
		if (json_kind_of(parsed) == JSON_KIND_OBJECT)
			json_set(function, "arguments", parsed);
		else
			json_free(parsed);
	}
}

static enum status read_json(struct rendering *r, const struct jinja_input *input, const struct json *json, struct value *out)
{
	if (value_of_json(&r->arena, json, input->change, input->change_ctx, out))
		return STATUS_OK;
	return err_set(r->err, STATUS_INPUT, "tools or a message are nested too deep");
}

static enum status read_message(
	struct rendering *r, const struct jinja_input *input, const struct jinja_message *message, struct value *out)
{
	struct value more = {0};
	enum status status = STATUS_OK;

	*out = value_dict(&r->arena);
	set_name(r, *out, "role", value_text(message->role));
	set_name(r, *out, "content",
		message->content ? value_string(message->content, message->content_len) : (struct value){.kind = VALUE_NONE});
	if (message->more) {
		struct json *copy = json_clone(message->more);

		parse_arguments(copy);
		status = read_json(r, input, copy, &more);
		json_free(copy);
	}
	for (size_t i = 0; status == STATUS_OK && more.kind == VALUE_DICT && i < more.dict->count; i++)
		if (!value_is(more.dict->keys[i], "role") && !value_is(more.dict->keys[i], "content"))
			value_set(&r->arena, *out, more.dict->keys[i].bytes, more.dict->keys[i].len, more.dict->values[i]);
	return status;
}

static enum status read_messages(struct rendering *r, const struct jinja_input *input)
{
	struct value list = value_list(&r->arena), message;
	enum status status = STATUS_OK;

	for (size_t i = 0; status == STATUS_OK && i < input->n_messages; i++) {
		status = read_message(r, input, &input->messages[i], &message);
		value_append(&r->arena, list, message);
	}
	set_name(r, r->globals, "messages", list);
	return status;
}

static enum status define(struct rendering *r, const struct jinja_input *input)
{
	struct value tools;
	enum status status = read_messages(r, input);

	if (status == STATUS_OK && input->tools) {
		status = read_json(r, input, input->tools, &tools);
		set_name(r, r->globals, "tools", tools);
	}
	set_name(r, r->globals, "add_generation_prompt", value_bool(true));
	if (input->bos_token)
		set_name(r, r->globals, "bos_token", value_text(input->bos_token));
	if (input->eos_token)
		set_name(r, r->globals, "eos_token", value_text(input->eos_token));
	return status;
}

enum status jinja_render(const struct jinja *jinja, const struct jinja_input *input, struct text *out, struct err *err)
{
	struct rendering r = {.now_s = input->now_s, .out = out, .err = err};
	enum status status;

	r.globals = value_dict(&r.arena);
	status = define(&r, input);
	if (status == STATUS_OK)
		status = jinja_run(&r, jinja->first);
	arena_release(&r.arena);
	return status;
}
