/* Reading of completion and chat requests. */
#include "engine/api_request.h"

#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <string.h>

#define SEED_MIN (-9007199254740992.0) /* numbers written as reals are whole and exact up to 2^53 */
#define SEED_MAX 9007199254740992.0

static bool is_given(const struct json *value)
{
	return value && json_kind_of(value) != JSON_KIND_NULL;
}

/* ---- single fields; absent or null leaves *out as it is ---- */

static enum status read_bool(const struct json *object, const char *key, bool *out, struct api_error *error)
{
	const struct json *value = json_get(object, key);

	if (!is_given(value))
		return STATUS_OK;
	if (json_kind_of(value) != JSON_KIND_BOOL)
		return api_error_set(error, 400, "invalid_type", key, "'%s' must be true or false, not a %s", key,
			json_kind_name(json_kind_of(value)));
	*out = json_bool(value, false);
	return STATUS_OK;
}

/* Whole numbers written as reals (4.0) are accepted: many JSON writers cannot tell them apart. */
static bool whole_number(const struct json *value, int64_t *out)
{
	if (json_kind_of(value) == JSON_KIND_INTEGER) {
		*out = json_int(value, 0);
		return true;
	}
	double real = json_number(value, NAN);
	if (json_kind_of(value) != JSON_KIND_REAL || !(real >= SEED_MIN && real <= SEED_MAX) || real != floor(real))
		return false;
	*out = (int64_t)real;
	return true;
}

static enum status read_integer(
	const struct json *object, const char *key, int64_t min, int64_t max, int64_t *out, struct api_error *error)
{
	const struct json *value = json_get(object, key);
	int64_t number;

	if (!is_given(value))
		return STATUS_OK;
	if (!whole_number(value, &number))
		return api_error_set(error, 400, "invalid_type", key, "'%s' must be a whole number", key);
	if (number < min || number > max)
		return api_error_set(error, 400, "invalid_value", key,
			"'%s' is %" PRId64 ", it must be between %" PRId64 " and %" PRId64, key, number, min, max);
	*out = number;
	return STATUS_OK;
}

static enum status read_real(
	const struct json *object, const char *key, double min, double max, double *out, struct api_error *error)
{
	const struct json *value = json_get(object, key);

	if (!is_given(value))
		return STATUS_OK;
	if (!json_is_number(value))
		return api_error_set(error, 400, "invalid_type", key, "'%s' must be a number, not a %s", key,
			json_kind_name(json_kind_of(value)));
	double number = json_number(value, NAN);
	if (!(number >= min && number <= max)) {
		char low[32], high[32];
		text_format_double(low, min);
		text_format_double(high, max);
		return api_error_set(error, 400, "invalid_value", key, "'%s' must be between %s and %s", key, low, high);
	}
	*out = number;
	return STATUS_OK;
}

/* ---- what is not built ---- */

/* Fields that would change the answer, with the value at which they change nothing. */
static const struct unsupported {
	const char *key;
	double neutral; /* numbers equal to it are accepted; false, empty strings, arrays and objects always are */
} unsupported[] = {
	{"presence_penalty", 0},
	{"frequency_penalty", 0},
	{"repetition_penalty", 1},
	{"echo", 0},
	{"best_of", 1},
	{"suffix", 0},
	{"logit_bias", 0},
	{"min_tokens", 0},
	{"use_beam_search", 0},
	{"functions", 0},
	{"stop_token_ids", 0},
	{"prompt_logprobs", 0},
	{"guided_json", 0},
	{"guided_regex", 0},
	{"guided_choice", 0},
	{"guided_grammar", 0},
	{"grammar", 0},
	{"json_schema", 0},
	{"structured_outputs", 0},
};

static bool is_neutral(const struct json *value, double neutral)
{
	switch (json_kind_of(value)) {
	case JSON_KIND_NULL:
		return true;
	case JSON_KIND_BOOL:
		return !json_bool(value, true);
	case JSON_KIND_INTEGER:
	case JSON_KIND_REAL:
		return json_number(value, NAN) == neutral;
	case JSON_KIND_STRING:
		return json_text_len(value) == 0;
	case JSON_KIND_ARRAY:
	case JSON_KIND_OBJECT:
		return json_count(value) == 0;
	}
	return false;
}

static enum status refuse_unsupported(const struct json *root, struct api_error *error)
{
	for (size_t i = 0; i < sizeof(unsupported) / sizeof(unsupported[0]); i++) {
		if (!is_neutral(json_get(root, unsupported[i].key), unsupported[i].neutral))
			return api_error_set(error, 400, "unsupported", unsupported[i].key, "'%s' is not supported by this server",
				unsupported[i].key);
	}
	const struct json *format = json_get(root, "response_format");
	const char *type = json_text(json_get(format, "type"));
	if (is_given(format) && (!type || strcmp(type, "text") != 0))
		return api_error_set(error, 400, "unsupported", "response_format",
			"'response_format' other than {\"type\": \"text\"} is not supported");
	return STATUS_OK;
}

/* ---- prompts ---- */

enum status api_read_ids(const struct json *array, const char *param, struct token_list *out, struct api_error *error)
{
	if (json_kind_of(array) != JSON_KIND_ARRAY)
		return api_error_set(error, 400, "invalid_type", param, "'%s' must be an array of token ids", param);
	for (size_t i = 0; i < json_count(array); i++) {
		int64_t id;
		if (!whole_number(json_at(array, i), &id) || id < 0 || id > INT32_MAX)
			return api_error_set(error, 400, "invalid_value", param, "'%s': element %zu is not a token id", param, i);
		token_list_append(out, (int32_t)id);
	}
	return STATUS_OK;
}

static enum status read_one_prompt(
	struct api_request *request, const struct json *value, struct api_prompt *out, struct api_error *error)
{
	if (json_kind_of(value) == JSON_KIND_STRING) {
		out->text = json_text(value);
		out->len = json_text_len(value);
		return STATUS_OK;
	}
	struct token_list ids = {0};
	enum status status = api_read_ids(value, "prompt", &ids, error);
	if (status == STATUS_OK) {
		out->ids = arena_calloc(&request->arena, ids.count + 1, sizeof(*out->ids));
		out->n_ids = ids.count;
		if (ids.count)
			memcpy(out->ids, ids.ids, ids.count * sizeof(*out->ids));
	}
	token_list_release(&ids);
	return status;
}

/* A string, an array of ids, or an array of those. */
static enum status read_prompts(struct api_request *request, struct api_error *error)
{
	const struct json *prompt = json_get(request->root, "prompt");
	enum json_kind first = json_kind_of(json_at(prompt, 0));
	bool several = first == JSON_KIND_STRING || first == JSON_KIND_ARRAY;

	if (!is_given(prompt))
		return api_error_set(error, 400, "missing", "prompt", "'prompt' is missing");
	if (json_kind_of(prompt) != JSON_KIND_STRING && (json_kind_of(prompt) != JSON_KIND_ARRAY || json_count(prompt) == 0))
		return api_error_set(error, 400, "invalid_type", "prompt",
			"'prompt' must be a string, an array of token ids, or an array of those");
	size_t count = several ? json_count(prompt) : 1;
	if (count > API_CHOICES_MAX)
		return api_error_set(error, 400, "invalid_value", "prompt", "%zu prompts in one request, at most %d are accepted",
			count, API_CHOICES_MAX);
	request->prompts = arena_calloc(&request->arena, count, sizeof(*request->prompts));
	request->n_prompts = count;
	for (size_t i = 0; i < count; i++) {
		const struct json *value = several ? json_at(prompt, i) : prompt;
		if (read_one_prompt(request, value, &request->prompts[i], error) != STATUS_OK)
			return STATUS_INPUT;
	}
	return STATUS_OK;
}

/* Content given as parts, [{"type": "text", "text": "…"}, …], joined by newlines as templates without typed content expect. */
static enum status read_parts(
	struct api_request *request, const struct json *parts, struct chat_message *out, struct api_error *error)
{
	struct text joined = {0};

	for (size_t i = 0; i < json_count(parts); i++) {
		const struct json *part = json_at(parts, i);
		const char *type = json_text(json_get(part, "type"));
		const struct json *text = json_get(part, "text");
		if (!type || strcmp(type, "text") != 0 || json_kind_of(text) != JSON_KIND_STRING) {
			text_release(&joined);
			return api_error_set(error, 400, "unsupported", "messages",
				"content parts other than {\"type\": \"text\", \"text\": \"…\"} are not supported");
		}
		if (i)
			text_append_char(&joined, '\n');
		text_append(&joined, json_text(text), json_text_len(text));
	}
	out->content = arena_strndup(&request->arena, text_str(&joined), joined.len);
	out->content_len = joined.len;
	text_release(&joined);
	return STATUS_OK;
}

/* Only these roles reach the template, so that no role can smuggle text into it. */
static const char *accepted_role(const char *role)
{
	static const char *const roles[] = {"system", "user", "assistant", "tool"};

	for (size_t i = 0; role && i < sizeof(roles) / sizeof(roles[0]); i++) {
		if (strcmp(role, roles[i]) == 0)
			return roles[i];
	}
	return role && strcmp(role, "developer") == 0 ? "system" : NULL; /* OpenAI's newer name of it */
}

static enum status read_message(
	struct api_request *request, const struct json *value, struct chat_message *out, struct api_error *error)
{
	const struct json *content = json_get(value, "content");
	const struct json *role = json_get(value, "role");

	out->role = accepted_role(json_text(role));
	out->more = value;
	if (!out->role || json_text_len(role) != strlen(json_text(role)))
		return api_error_set(
			error, 400, "invalid_value", "messages", "a message's 'role' must be system, user, assistant or tool");
	if (json_kind_of(content) == JSON_KIND_STRING) {
		out->content = json_text(content);
		out->content_len = json_text_len(content);
		return STATUS_OK;
	}
	if (json_kind_of(content) == JSON_KIND_ARRAY)
		return read_parts(request, content, out, error);
	if (!is_given(content) && strcmp(out->role, "assistant") == 0) {
		out->content = json_count(json_get(value, "tool_calls")) > 0 ? NULL : ""; /* a call needs no words */
		return STATUS_OK;
	}
	return api_error_set(
		error, 400, "invalid_type", "messages", "a message's 'content' must be a string or an array of text parts");
}

static enum status read_messages(struct api_request *request, struct api_error *error)
{
	const struct json *messages = json_get(request->root, "messages");
	size_t count = json_count(messages);

	if (!is_given(messages))
		return api_error_set(error, 400, "missing", "messages", "'messages' is missing");
	if (json_kind_of(messages) != JSON_KIND_ARRAY || count == 0 || count > API_MESSAGES_MAX)
		return api_error_set(error, 400, "invalid_type", "messages", "'messages' must be an array of 1 to %d messages",
			API_MESSAGES_MAX);
	request->messages = arena_calloc(&request->arena, count, sizeof(*request->messages));
	request->n_messages = count;
	for (size_t i = 0; i < count; i++) {
		if (read_message(request, json_at(messages, i), &request->messages[i], error) != STATUS_OK)
			return STATUS_INPUT;
	}
	return STATUS_OK;
}

/* ---- tools ---- */

static enum status check_tool(const struct json *tool, size_t number, struct api_error *error)
{
	const char *type = json_text(json_get(tool, "type"));

	if (type && strcmp(type, "function") == 0 && json_text(json_get(json_get(tool, "function"), "name")))
		return STATUS_OK;
	return api_error_set(error, 400, "invalid_value", "tools",
		"'tools': element %zu is no {\"type\": \"function\", \"function\": {\"name\": \"…\", …}}", number);
}

/* What the model says cannot be forced: only "auto" and "none" can be meant. */
static enum status read_tools(struct api_request *request, struct api_error *error)
{
	const struct json *tools = json_get(request->root, "tools"), *choice = json_get(request->root, "tool_choice");
	const char *chosen = json_text(choice);
	enum status status = STATUS_OK;

	if (is_given(tools) && json_kind_of(tools) != JSON_KIND_ARRAY)
		return api_error_set(error, 400, "invalid_type", "tools", "'tools' must be an array");
	for (size_t i = 0; status == STATUS_OK && i < json_count(tools); i++)
		status = check_tool(json_at(tools, i), i, error);
	if (status != STATUS_OK)
		return status;
	if (is_given(choice) && (!chosen || (strcmp(chosen, "auto") != 0 && strcmp(chosen, "none") != 0)))
		return api_error_set(
			error, 400, "unsupported", "tool_choice", "'tool_choice' other than auto and none is not supported");
	if (json_count(tools) > 0 && !(chosen && strcmp(chosen, "none") == 0))
		request->tools = tools;
	return STATUS_OK;
}

/* ---- the rest ---- */

static enum status read_stop(struct api_request *request, struct api_error *error)
{
	const struct json *stop = json_get(request->root, "stop");
	bool single = json_kind_of(stop) == JSON_KIND_STRING;
	size_t count = single ? 1 : json_count(stop);

	if (!is_given(stop))
		return STATUS_OK;
	if (!single && json_kind_of(stop) != JSON_KIND_ARRAY)
		return api_error_set(error, 400, "invalid_type", "stop", "'stop' must be a string or an array of strings");
	if (count > STOP_STRINGS_MAX)
		return api_error_set(
			error, 400, "invalid_value", "stop", "%zu stop strings, at most %d are accepted", count, STOP_STRINGS_MAX);
	for (size_t i = 0; i < count; i++) {
		const struct json *value = single ? stop : json_at(stop, i);
		size_t len = json_text_len(value);
		if (json_kind_of(value) != JSON_KIND_STRING || len == 0 || len > STOP_STRING_BYTES_MAX)
			return api_error_set(error, 400, "invalid_value", "stop", "a stop string must have 1 to %d bytes",
				STOP_STRING_BYTES_MAX);
		request->stops[request->n_stops++] = (struct stop_string){json_text(value), len};
	}
	return STATUS_OK;
}

/* Completions ask for alternatives by number, chats by a flag and a number. */
static enum status read_logprobs(struct api_request *request, struct api_error *error)
{
	int64_t count = -1;
	bool wanted = false;

	if (request->kind == API_COMPLETION) {
		if (read_integer(request->root, "logprobs", 0, ENGINE_LOGPROBS_MAX, &count, error) != STATUS_OK)
			return STATUS_INPUT;
	} else {
		int64_t top = 0;
		if (read_bool(request->root, "logprobs", &wanted, error) != STATUS_OK ||
			read_integer(request->root, "top_logprobs", 0, ENGINE_LOGPROBS_MAX, &top, error) != STATUS_OK)
			return STATUS_INPUT;
		if (top > 0 && !wanted)
			return api_error_set(error, 400, "invalid_value", "top_logprobs", "'top_logprobs' needs 'logprobs': true");
		count = wanted ? top : -1;
	}
	request->sampling.logprobs = (int)count;
	return STATUS_OK;
}

static enum status read_sampling(struct api_request *request, struct api_error *error)
{
	struct sampling *sampling = &request->sampling;
	int64_t seed = 0, max_tokens = 0, top_k = 0;

	*sampling = (struct sampling){.temperature = 1, .top_p = 1, .logprobs = -1};
	if (read_real(request->root, "temperature", 0, 100, &sampling->temperature, error) != STATUS_OK ||
		read_real(request->root, "top_p", 0, 1, &sampling->top_p, error) != STATUS_OK ||
		read_real(request->root, "min_p", 0, 1, &sampling->min_p, error) != STATUS_OK ||
		read_integer(request->root, "top_k", -1, INT32_MAX, &top_k, error) != STATUS_OK ||
		read_integer(request->root, "seed", INT64_MIN, INT64_MAX, &seed, error) != STATUS_OK ||
		read_integer(request->root, "max_tokens", 1, INT32_MAX, &max_tokens, error) != STATUS_OK ||
		read_integer(request->root, "max_completion_tokens", 1, INT32_MAX, &max_tokens, error) != STATUS_OK ||
		read_bool(request->root, "ignore_eos", &sampling->ignore_eos, error) != STATUS_OK)
		return STATUS_INPUT;
	if (sampling->top_p <= 0)
		return api_error_set(error, 400, "invalid_value", "top_p", "'top_p' must be greater than 0 and at most 1");
	sampling->top_k = top_k < 0 ? 0 : (int)top_k; /* -1 is vLLM's way to say "off" */
	sampling->seed = (uint64_t)seed;
	sampling->max_tokens = (int)max_tokens;
	request->has_seed = is_given(json_get(request->root, "seed"));
	return STATUS_OK;
}

static enum status read_stream_options(struct api_request *request, struct api_error *error)
{
	const struct json *options = json_get(request->root, "stream_options");

	if (!is_given(options))
		return STATUS_OK;
	if (json_kind_of(options) != JSON_KIND_OBJECT)
		return api_error_set(error, 400, "invalid_type", "stream_options", "'stream_options' must be an object");
	if (read_bool(options, "include_usage", &request->include_usage, error) != STATUS_OK)
		return STATUS_INPUT;
	return read_bool(options, "continuous_usage_stats", &request->continuous_usage, error);
}

static enum status read_general(struct api_request *request, struct api_error *error)
{
	const struct json *model = json_get(request->root, "model");
	int64_t n = 1;

	if (is_given(model) && json_kind_of(model) != JSON_KIND_STRING)
		return api_error_set(error, 400, "invalid_type", "model", "'model' must be a string");
	if (read_bool(request->root, "stream", &request->stream, error) != STATUS_OK ||
		read_integer(request->root, "n", 1, API_CHOICES_MAX, &n, error) != STATUS_OK ||
		read_bool(request->root, "parse_special", &request->parse_special, error) != STATUS_OK)
		return STATUS_INPUT;
	request->n = (int)n;
	size_t prompts = request->kind == API_CHAT ? 1 : request->n_prompts;
	if (prompts * (size_t)n > API_CHOICES_MAX)
		return api_error_set(error, 400, "invalid_value", "n",
			"%zu prompts with n = %d, at most %d choices are accepted in one request", prompts, request->n,
			API_CHOICES_MAX);
	return STATUS_OK;
}

enum status api_request_parse(enum api_kind kind, const char *body, size_t len, struct api_request *out, struct api_error *error)
{
	struct err err = {0};

	*out = (struct api_request){.kind = kind, .n = 1};
	if (json_parse(body, len, "body", &out->root, &err) != STATUS_OK)
		return api_error_set(error, 400, "invalid_json", NULL, "%s", err.text);
	if (json_kind_of(out->root) != JSON_KIND_OBJECT)
		return api_error_set(error, 400, "invalid_json", NULL, "the body must be a JSON object");
	enum status status = kind == API_CHAT ? read_messages(out, error) : read_prompts(out, error);
	if (status == STATUS_OK)
		status = read_general(out, error);
	if (status == STATUS_OK)
		status = read_sampling(out, error);
	if (status == STATUS_OK)
		status = read_logprobs(out, error);
	if (status == STATUS_OK)
		status = read_stop(out, error);
	if (status == STATUS_OK)
		status = read_stream_options(out, error);
	if (status == STATUS_OK && kind == API_CHAT)
		status = read_tools(out, error);
	if (status == STATUS_OK)
		status = refuse_unsupported(out->root, error);
	return status;
}

void api_request_release(struct api_request *request)
{
	json_free(request->root);
	arena_release(&request->arena);
	*request = (struct api_request){0};
}
