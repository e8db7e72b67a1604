/* Cutting an array into its entries while it is read, and choosing among them. See prompt_array.h. */
#include "harness/prompt_array.h"

#include <string.h>

#include "base/random.h"

#define BYTES_PER_TOKEN 4 /* of English text, with the vocabularies of today's models: guess */
#define TURN_TOKENS_MIN 4 /* the four limits are vLLM's, is_valid_sequence */
#define QUESTION_TOKENS_MAX 1024
#define BOTH_TOKENS_MAX 2048
#define SAMPLE_STREAM 0x53415247u /* tells these random numbers from others of the same seed */

enum where { BEFORE, FIRST, INSIDE, NEXT, AFTER }; /* of the array: before it, at its first entry, in an entry, … */

static enum status fail(const struct prompt_array *array, const char *reason, struct err *err)
{
	return err_set(err, STATUS_INPUT, "%s:%zu:%zu: %s", array->source, array->line + 1, array->column + 1, reason);
}

static enum status fail_entry(const struct prompt_array *array, const char *reason, struct err *err)
{
	return err_set(err, STATUS_INPUT, "%s:%zu:1: entry %zu: %s", array->source, array->entry_line + 1, array->entries, reason);
}

/* --- which entries count -------------------------------------------------------------------------------------------- */

static bool is_from(const struct json *turn, const char *one, const char *other)
{
	const char *from = json_text(json_get(turn, "from"));
	return text_equal(from, one) || text_equal(from, other);
}

/* The words of a turn; NULL, with a reason, when it is malformed. */
static const char *words_of(const struct json *turn, const char **reason)
{
	const struct json *value = json_get(turn, "value");
	const char *text = json_text(value);
	if (json_kind_of(turn) != JSON_KIND_OBJECT || !json_text(json_get(turn, "from")))
		*reason = "a turn must be an object with \"from\" and \"value\"";
	else if (!text)
		*reason = "value must be a text";
	else if (strlen(text) != json_text_len(value))
		*reason = "value must not contain a NUL character";
	return *reason ? NULL : text;
}

static size_t tokens_of(const char *text)
{
	return (strlen(text) + BYTES_PER_TOKEN - 1) / BYTES_PER_TOKEN;
}

static bool are_right_lengths(const char *question, const char *answer)
{
	size_t asked = tokens_of(question), answered = tokens_of(answer);
	return asked >= TURN_TOKENS_MIN && answered >= TURN_TOKENS_MIN && asked <= QUESTION_TOKENS_MAX &&
		asked + answered <= BOTH_TOKENS_MAX;
}

/* *question: of a conversation that counts; NULL: it does not. Borrowed from entry. */
static void read_conversation(const struct json *entry, const char **question_out, const char **reason)
{
	const struct json *turns = json_get(entry, "conversations");
	*question_out = NULL;
	if (json_kind_of(turns) != JSON_KIND_ARRAY) {
		*reason = "conversations must be a list";
		return;
	}
	if (json_count(turns) < 2)
		return;
	const char *question = words_of(json_at(turns, 0), reason), *answer = *reason ? NULL : words_of(json_at(turns, 1), reason);
	if (*reason || !is_from(json_at(turns, 0), "human", "user") || is_from(json_at(turns, 1), "human", "user") ||
		!are_right_lengths(question, answer))
		return;
	*question_out = question;
}

/* The first so many are kept; each later one takes the place of one of them as often as it must for all to be equally likely
 * (Vitter's algorithm R). Where the next usable one goes; false: nowhere. */
static bool draw_place(struct prompt_array *array, size_t *place)
{
	size_t index = array->usable++;
	*place = index < array->sample ? index : (size_t)random_below(array->seed, SAMPLE_STREAM, index, index + 1);
	return *place < array->sample;
}

static void keep(struct prompt_array *array, size_t place, struct prompt prompt)
{
	if (place == array->prompts.count)
		prompt_list_add(&array->prompts, array->arena, prompt);
	else
		array->prompts.items[place] = prompt;
}

static enum status end_entry(struct prompt_array *array, struct err *err)
{
	char complaint[PROMPT_COMPLAINT_BYTES] = "";
	const char *reason = NULL;
	struct json *entry = NULL;
	const char *question = NULL;
	struct prompt prompt;
	struct err inner = {0};
	size_t place;
	array->entries++;
	/* Of ":LINE:COL: reason" the reason: the line is that of the entry. */
	if (json_parse(text_str(&array->entry), array->entry.len, "", &entry, &inner) != STATUS_OK) {
		const char *words = strstr(inner.text, ": ");
		return fail_entry(array, words ? words + 2 : inner.text, err);
	}
	if (json_get(entry, "conversations")) {
		read_conversation(entry, &question, &reason);
		/* Copied only when it is kept: there may be many more than fit in memory. */
		if (question && draw_place(array, &place))
			keep(array, place, (struct prompt){.text = arena_strndup(array->arena, question, strlen(question))});
	} else if (!prompt_read(entry, array->arena, &prompt, complaint)) {
		reason = complaint;
	} else if (draw_place(array, &place)) {
		keep(array, place, prompt);
	}
	json_free(entry);
	text_clear(&array->entry);
	return reason ? fail_entry(array, reason, err) : STATUS_OK;
}

/* --- cutting -------------------------------------------------------------------------------------------------------- */

static bool is_space(char c)
{
	return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

static void begin_entry(struct prompt_array *array)
{
	array->where = INSIDE;
	array->entry_line = array->line;
	array->depth = 0;
	array->in_text = array->after_backslash = false;
}

/* A character of an entry. *ends: it stands behind it, and closes it. */
static void follow(struct prompt_array *array, char c, bool *ends)
{
	*ends = false;
	if (array->in_text) {
		bool escaped = array->after_backslash;
		array->after_backslash = c == '\\' && !escaped;
		array->in_text = escaped || c != '"';
	} else if (c == '"') {
		array->in_text = true;
	} else if (c == '{' || c == '[') {
		array->depth++;
	} else if (array->depth == 0) {
		*ends = c == ',' || c == ']' || c == '}';
	} else if (c == '}' || c == ']') {
		array->depth--;
	}
}

static enum status take_inside(struct prompt_array *array, char c, struct err *err)
{
	bool ends;
	follow(array, c, &ends);
	if (!ends && array->entry.len == PROMPT_ENTRY_BYTES_MAX)
		return err_set(err, STATUS_INPUT, "%s:%zu:1: entry %zu: is longer than %zu bytes", array->source,
			array->entry_line + 1, array->entries + 1, PROMPT_ENTRY_BYTES_MAX);
	if (!ends) {
		text_append_char(&array->entry, c);
		return STATUS_OK;
	}
	if (c == '}')
		return fail(array, "unexpected '}'", err);
	array->where = c == ',' ? NEXT : AFTER;
	return end_entry(array, err);
}

static enum status take(struct prompt_array *array, char c, struct err *err)
{
	if (array->where == INSIDE)
		return take_inside(array, c, err);
	if (is_space(c))
		return STATUS_OK;
	if (array->where == BEFORE && c == '[') {
		array->where = FIRST;
		return STATUS_OK;
	}
	if (array->where == FIRST && c == ']') {
		array->where = AFTER;
		return STATUS_OK;
	}
	if (array->where == BEFORE)
		return fail(array, "expected [", err);
	if (array->where == AFTER)
		return fail(array, "expected the end of the file after the array", err);
	if (strchr(",]}", c))
		return fail(array, "expected an entry", err);
	begin_entry(array);
	return take_inside(array, c, err);
}

/* Bytes from the front that are nothing but words of a text: most of a file is, and it is taken in one go. */
static size_t words_ahead(const struct prompt_array *array, const char *bytes, size_t len)
{
	size_t room = PROMPT_ENTRY_BYTES_MAX - array->entry.len, n = 0;
	if (array->where != INSIDE || !array->in_text || array->after_backslash)
		return 0;
	len = len < room ? len : room;
	while (n < len && bytes[n] != '"' && bytes[n] != '\\' && bytes[n] != '\n')
		n++;
	return n;
}

enum status prompt_array_feed(struct prompt_array *array, const char *bytes, size_t len, struct err *err)
{
	enum status status = STATUS_OK;
	for (size_t i = 0; i < len && !status; i++) {
		size_t words = words_ahead(array, bytes + i, len - i);
		text_append(&array->entry, bytes + i, words);
		array->column += words;
		i += words;
		if (i == len)
			break;
		status = take(array, bytes[i], err);
		array->column = bytes[i] == '\n' ? 0 : array->column + 1;
		array->line += bytes[i] == '\n';
	}
	return status;
}

enum status prompt_array_finish(struct prompt_array *array, struct err *err)
{
	return array->where == AFTER ? STATUS_OK : fail(array, "the array does not end", err);
}

void prompt_array_release(struct prompt_array *array)
{
	text_release(&array->entry);
}
