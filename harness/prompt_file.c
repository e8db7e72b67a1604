/* Lines of prompts and traces. See prompt_file.h. */
#include "harness/prompt_file.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/text.h"

#define MESSAGES_MAX 1000 /* of one line: guess, above any conversation that fits a context */

/* What is wrong with a line; "" while nothing is. */
struct complaint {
	char text[PROMPT_COMPLAINT_BYTES];
};

static void complain(struct complaint *complaint, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void complain(struct complaint *complaint, const char *format, ...)
{
	if (complaint->text[0])
		return;
	va_list args;
	va_start(args, format);
	vsnprintf(complaint->text, sizeof complaint->text, format, args);
	va_end(args);
}

/* Lists grow by powers of two; what they outgrow stays in the arena until it is released. */
static void *grown(struct arena *arena, void *items, size_t count, size_t size)
{
	if (count & (count - 1))
		return items;
	void *more = arena_calloc(arena, count ? 2 * count : 1, size);
	if (count)
		memcpy(more, items, count * size);
	return more;
}

void prompt_list_add(struct prompt_list *list, struct arena *arena, struct prompt prompt)
{
	list->items = grown(arena, list->items, list->count, sizeof *list->items);
	list->items[list->count++] = prompt;
}

static void trace_add(struct trace *trace, struct arena *arena, struct trace_request request)
{
	trace->items = grown(arena, trace->items, trace->count, sizeof *trace->items);
	trace->items[trace->count++] = request;
}

/* A text that can be sent: not empty, no NUL. */
static const char *sendable(const struct json *value, const char *what, struct complaint *complaint)
{
	const char *text = json_text(value);
	if (!text || !*text)
		complain(complaint, "%s must be a text that is not empty", what);
	else if (strlen(text) != json_text_len(value))
		complain(complaint, "%s must not contain a NUL character", what);
	return complaint->text[0] ? NULL : text;
}

static bool is_one_of(const char *name, const char *const *names)
{
	while (*names && !text_equal(*names, name))
		names++;
	return *names != NULL;
}

/* names is NULL-terminated. */
static void refuse_other_keys(const struct json *object, const char *const *names, struct complaint *complaint)
{
	for (void *it = json_first(object); it; it = json_next(object, it))
		if (!is_one_of(json_iterator_key(it), names))
			complain(complaint, "unknown key '%.60s'", json_iterator_key(it));
}

static int read_tokens(const struct json *object, const char *key, int fallback, struct complaint *complaint)
{
	const struct json *value = json_get(object, key);
	int64_t tokens = json_int(value, 0);
	if (!value && fallback >= 0)
		return fallback;
	if (tokens < 1 || tokens > PROMPT_TOKENS_MAX) {
		complain(complaint, "%s must be an integer from 1 to %d", key, PROMPT_TOKENS_MAX);
		return 1;
	}
	return (int)tokens;
}

static void append_message(struct json *messages, const char *role, const char *content)
{
	struct json *message = json_new_object();
	json_set(message, "role", json_new_string(role));
	json_set(message, "content", json_new_string(content));
	json_append(messages, message);
}

/* Takes messages over. One message of a user is plain text: it fits every endpoint. */
static void take_messages(struct json *messages, struct arena *arena, struct prompt *out)
{
	const struct json *first = json_at(messages, 0);
	struct text text = {0};
	if (json_count(messages) == 1 && text_equal(json_text(json_get(first, "role")), "user")) {
		text_append_str(&text, json_text(json_get(first, "content")));
		out->text = arena_strndup(arena, text_str(&text), text.len);
	} else {
		json_write(messages, JSON_STYLE_COMPACT, &text);
		out->messages = arena_strndup(arena, text_str(&text), text.len);
	}
	text_release(&text);
	json_free(messages);
}

static void read_chat(const struct json *object, struct arena *arena, struct prompt *out, struct complaint *complaint)
{
	static const char *const keys[] = {"messages", "output_len", "id", NULL}, *const message_keys[] = {"role", "content", NULL},
				 *const roles[] = {"system", "user", "assistant", NULL};
	const struct json *list = json_get(object, "messages");
	struct json *messages = json_new_array();
	const char *role = NULL;
	refuse_other_keys(object, keys, complaint);
	if (!json_count(list) || json_count(list) > MESSAGES_MAX)
		complain(complaint, "messages must list from 1 to %d messages", MESSAGES_MAX);
	for (size_t i = 0; i < json_count(list) && !complaint->text[0]; i++) {
		const struct json *message = json_at(list, i);
		refuse_other_keys(message, message_keys, complaint);
		role = json_text(json_get(message, "role"));
		if (!role || !is_one_of(role, roles))
			complain(complaint, "message %zu: role must be system, user or assistant", i + 1);
		const char *content = sendable(json_get(message, "content"), "content", complaint);
		if (content)
			append_message(messages, role, content);
	}
	if (!complaint->text[0] && !text_equal(role, "user"))
		complain(complaint, "the last message must be a user's");
	if (complaint->text[0])
		json_free(messages);
	else
		take_messages(messages, arena, out);
}

static const char *role_of_speaker(const char *from)
{
	static const char *const users[] = {"human", "user", NULL},
				 *const assistants[] = {"gpt", "chatgpt", "assistant", "model", "bot", NULL};
	if (!from)
		return NULL;
	return is_one_of(from, users)         ? "user"
		: is_one_of(from, assistants) ? "assistant"
		: text_equal(from, "system")  ? "system"
					      : NULL;
}

static void read_conversation(const struct json *object, struct arena *arena, struct prompt *out, struct complaint *complaint)
{
	const struct json *turns = json_get(object, "conversations");
	struct json *messages = json_new_array();
	bool asked = false;
	if (!json_count(turns) || json_count(turns) > MESSAGES_MAX)
		complain(complaint, "conversations must list from 1 to %d turns", MESSAGES_MAX);
	for (size_t i = 0; i < json_count(turns) && !complaint->text[0]; i++) {
		const struct json *turn = json_at(turns, i);
		const char *role = role_of_speaker(json_text(json_get(turn, "from")));
		if (!role)
			complain(complaint, "turn %zu: from must be human, gpt or system", i + 1);
		else if (text_equal(role, "assistant") && asked)
			break;
		else if (text_equal(role, "assistant"))
			complain(complaint, "the conversation begins with an answer");
		const char *content = sendable(json_get(turn, "value"), "value", complaint);
		if (content)
			append_message(messages, role, content);
		asked = asked || text_equal(role, "user");
	}
	if (!complaint->text[0] && !asked)
		complain(complaint, "nobody asks anything in this conversation");
	if (complaint->text[0])
		json_free(messages);
	else
		take_messages(messages, arena, out);
}

static void read_prompt(const struct json *value, struct arena *arena, struct prompt *out, struct complaint *complaint)
{
	static const char *const keys[] = {"prompt", "output_len", "id", NULL};
	*out = (struct prompt){0};
	if (json_get(value, "conversations")) {
		read_conversation(value, arena, out, complaint);
	} else if (json_get(value, "messages")) {
		read_chat(value, arena, out, complaint);
	} else if (json_get(value, "prompt")) {
		const char *text = sendable(json_get(value, "prompt"), "prompt", complaint);
		refuse_other_keys(value, keys, complaint);
		out->text = text ? arena_strndup(arena, text, strlen(text)) : NULL;
	} else {
		complain(complaint, "expected an object with \"prompt\", \"messages\" or \"conversations\"");
	}
	if (!complaint->text[0])
		out->output_len = read_tokens(value, "output_len", 0, complaint);
}

bool prompt_read(const struct json *value, struct arena *arena, struct prompt *out, char complaint[PROMPT_COMPLAINT_BYTES])
{
	struct complaint own = {""};
	read_prompt(value, arena, out, &own);
	snprintf(complaint, PROMPT_COMPLAINT_BYTES, "%s", own.text);
	return !own.text[0];
}

/* Blocks are told apart by their ids alone, so each begun block needs one. */
static void read_hash_ids(
	const struct json *ids, int block_tokens, struct arena *arena, struct trace_request *out, struct complaint *complaint)
{
	size_t count = json_count(ids), blocks = ((size_t)out->input_len + (size_t)block_tokens - 1) / (size_t)block_tokens;
	if (json_kind_of(ids) != JSON_KIND_ARRAY) {
		complain(complaint, "hash_ids must be a list");
	} else if (count != blocks) {
		complain(complaint, "%zu hash_ids for %d tokens, but blocks of %d tokens make %zu", count, out->input_len,
			block_tokens, blocks);
	} else {
		int64_t *copies = arena_calloc(arena, count, sizeof *copies);
		for (size_t i = 0; i < count; i++) {
			if (json_kind_of(json_at(ids, i)) != JSON_KIND_INTEGER)
				complain(complaint, "hash_ids must be integers");
			copies[i] = json_int(json_at(ids, i), 0);
		}
		out->hash_ids = copies;
		out->n_hash_ids = count;
	}
}

static void read_trace_request(const struct json *value, int block_tokens, double after_ms, struct arena *arena,
	struct trace_request *out, struct complaint *complaint)
{
	/* The names after the fourth are notes in published traces; they change nothing that is sent. */
	static const char *const keys[] = {"timestamp", "input_length", "output_length", "hash_ids", "id", "chat_id",
		"parent_chat_id", "session_id", "turn", "type", NULL};
	*out = (struct trace_request){0};
	if (json_kind_of(value) != JSON_KIND_OBJECT)
		complain(complaint, "expected an object with \"timestamp\", \"input_length\" and \"output_length\"");
	refuse_other_keys(value, keys, complaint);
	out->at_ms = json_number(json_get(value, "timestamp"), NAN);
	if (!(out->at_ms >= 0 && out->at_ms <= 1e12)) /* 30 years */
		complain(complaint, "timestamp must be a number of milliseconds, at least 0");
	else if (out->at_ms < after_ms)
		complain(complaint, "timestamp %g is before that of the line above (%g)", out->at_ms, after_ms);
	out->input_len = read_tokens(value, "input_length", -1, complaint);
	out->output_len = read_tokens(value, "output_length", -1, complaint);
	const struct json *ids = json_get(value, "hash_ids");
	if (ids && !complaint->text[0])
		read_hash_ids(ids, block_tokens, arena, out, complaint);
}

/* ---- files ---- */

struct line_reader {
	struct arena *arena;
	struct prompt_list *prompts; /* NULL: a trace is read */
	struct trace *trace;
	int block_tokens;
};

static void read_value(struct line_reader *reader, const struct json *value, struct complaint *complaint)
{
	if (reader->prompts) {
		struct prompt prompt;
		read_prompt(value, reader->arena, &prompt, complaint);
		if (!complaint->text[0])
			prompt_list_add(reader->prompts, reader->arena, prompt);
	} else {
		struct trace *trace = reader->trace;
		struct trace_request request;
		double after_ms = trace->count ? trace->items[trace->count - 1].at_ms : 0;
		read_trace_request(value, reader->block_tokens, after_ms, reader->arena, &request, complaint);
		if (!complaint->text[0])
			trace_add(trace, reader->arena, request);
	}
}

static enum status read_line(
	struct line_reader *reader, const char *line, size_t len, const char *source, int number, struct err *err)
{
	struct json *value = NULL;
	struct err inner = {0};
	struct complaint complaint = {""};
	/* A value of one line is always on line 1 of what is parsed: only its column is of use. */
	if (json_parse(line, len, "", &value, &inner) != STATUS_OK)
		return err_set(err, STATUS_INPUT, "%s:%d:%s", source, number,
			text_starts_with(inner.text, ":1:") ? inner.text + 3 : "1: not a JSON value");
	read_value(reader, value, &complaint);
	json_free(value);
	return complaint.text[0] ? err_set(err, STATUS_INPUT, "%s:%d:1: %s", source, number, complaint.text) : STATUS_OK;
}

static enum status read_lines(struct line_reader *reader, const char *bytes, size_t len, const char *source, struct err *err)
{
	const char *line = bytes, *end = bytes + len;
	enum status status = STATUS_OK;
	size_t values = 0;
	for (int number = 1; line < end && !status; number++) {
		const char *stop = memchr(line, '\n', (size_t)(end - line));
		size_t line_len = (size_t)((stop ? stop : end) - line);
		if (line_len && line[line_len - 1] == '\r')
			line_len--;
		if (line_len && ++values > PROMPT_FILE_LINES_MAX)
			return err_set(err, STATUS_INPUT, "%s:%d:1: more than %d lines", source, number, PROMPT_FILE_LINES_MAX);
		if (line_len)
			status = read_line(reader, line, line_len, source, number, err);
		line = stop ? stop + 1 : end;
	}
	return status;
}

enum status prompt_file_parse(
	const char *bytes, size_t len, const char *source, struct arena *arena, struct prompt_list *out, struct err *err)
{
	struct line_reader reader = {.arena = arena, .prompts = out};
	return read_lines(&reader, bytes, len, source, err);
}

enum status trace_file_parse(const char *bytes, size_t len, const char *source, int block_tokens, struct arena *arena,
	struct trace *out, struct err *err)
{
	struct line_reader reader = {.arena = arena, .trace = out, .block_tokens = block_tokens};
	return read_lines(&reader, bytes, len, source, err);
}

/* ---- records ---- */

struct json *prompt_json(const struct prompt *prompt)
{
	if (prompt->text && !prompt->output_len)
		return json_new_string(prompt->text);
	struct json *object = json_new_object(), *messages = NULL;
	if (prompt->text)
		json_set(object, "prompt", json_new_string(prompt->text));
	else if (json_parse(prompt->messages, strlen(prompt->messages), "messages", &messages, NULL) == STATUS_OK)
		json_set(object, "messages", messages);
	if (prompt->output_len)
		json_set(object, "output_len", json_new_integer(prompt->output_len));
	return object;
}

struct json *trace_request_json(const struct trace_request *request)
{
	struct json *object = json_new_object(), *ids = json_new_array();
	json_set(object, "timestamp", json_new_number(request->at_ms));
	json_set(object, "input_length", json_new_integer(request->input_len));
	json_set(object, "output_length", json_new_integer(request->output_len));
	for (size_t i = 0; i < request->n_hash_ids; i++)
		json_append(ids, json_new_integer(request->hash_ids[i]));
	if (request->hash_ids)
		json_set(object, "hash_ids", ids);
	else
		json_free(ids);
	return object;
}

void prompts_from_json(const struct json *array, struct arena *arena, struct prompt_list *out)
{
	for (size_t i = 0; i < json_count(array); i++) {
		const struct json *value = json_at(array, i);
		struct complaint complaint = {""};
		struct prompt prompt = {0};
		if (json_text(value))
			prompt.text = arena_strndup(arena, json_text(value), json_text_len(value));
		else
			read_prompt(value, arena, &prompt, &complaint);
		if (!complaint.text[0])
			prompt_list_add(out, arena, prompt);
	}
}

void trace_from_json(const struct json *array, int block_tokens, struct arena *arena, struct trace *out)
{
	for (size_t i = 0; i < json_count(array); i++) {
		struct complaint complaint = {""};
		struct trace_request request;
		read_trace_request(json_at(array, i), block_tokens, 0, arena, &request, &complaint);
		if (!complaint.text[0])
			trace_add(out, arena, request);
	}
}
