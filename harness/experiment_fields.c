/* Reads values of an experiment document by path, with the place of every complaint. See experiment_fields.h. */
#include "harness/experiment_fields.h"

#include <math.h>
#include <string.h>

#define NAME_BYTES_MAX 200 /* a guess: longer ones fill a line */

#define KEYS(...) \
	(const char *const[]) \
	{ \
		__VA_ARGS__, NULL \
	}

const struct experiment_section experiment_sections[SECTION_COUNT] = {
	[SECTION_ROOT] = {"",
		KEYS("$schema", "schema", "name", "hypothesis", "engine", "engines", "baseline", "matrix", "workloads", "pin",
			"protocol", "guards", "verdict", "tags")},
	[SECTION_ENGINE] = {"engine", KEYS("adapter", "command", "flags", "env", "url", "model", "ready", "stop", "readback")},
	[SECTION_ENGINES] = {"engines.*",
		KEYS("adapter", "command", "flags", "env", "url", "model", "ready", "stop", "readback", "params")},
	[SECTION_READY] = {"engine.ready", KEYS("path", "probe", "timeout_s")},
	[SECTION_STOP] = {"engine.stop", KEYS("term_s", "memory_within_mib", "memory_wait_s")},
	[SECTION_BASELINE] = {"baseline", KEYS("name", "params")},
	[SECTION_MATRIX] = {"matrix",
		KEYS("mode", "factors", "arms", "include", "exclude", "constraints", "monotone_oom", "aa_twin")},
	[SECTION_CONSTRAINT] = {"matrix.constraints[]", KEYS("left", "is", "right", "when", "require")},
	[SECTION_RANGE] = {"matrix.factors.*", KEYS("from", "to", "step", "times")},
	[SECTION_WORKLOAD] = {"workloads[]",
		KEYS("name", "applies_to", "endpoint", "concurrency", "rate", "arrivals", "requests", "dataset", "sampling",
			"cache", "goodput")},
	[SECTION_DATASET] = {"workloads[].dataset",
		KEYS("kind", "path", "prompts", "groups", "prefix_len", "suffix_len", "block_tokens", "input_len", "output_len",
			"jitter", "seed", "sample")},
	[SECTION_RATE] = {"workloads[].rate", KEYS("from", "to")},
	[SECTION_ARRIVALS] = {"workloads[].arrivals", KEYS("process", "burstiness", "speed")},
	[SECTION_GOODPUT] = {"workloads[].goodput", KEYS("ttft_ms", "tpot_ms", "e2e_ms")},
	[SECTION_SAMPLING] = {"workloads[].sampling", KEYS("temperature", "max_tokens", "ignore_eos")},
	[SECTION_PIN] = {"pin", KEYS("client", "engine")},
	[SECTION_PROTOCOL] = {"protocol",
		KEYS("blocks", "max_blocks", "looks", "order", "order_seed", "runs_per_launch", "warmup", "cooldown_s",
			"run_timeout_s", "stall_s", "retries", "budget_s", "budget_launches", "screening")},
	[SECTION_WARMUP] = {"protocol.warmup", KEYS("requests_per_slot", "until_stable_pct", "max_s")},
	[SECTION_RETRIES] = {"protocol.retries", KEYS("client_error", "crash", "oom_load")},
	[SECTION_GUARDS] = {"guards",
		KEYS("completed_frac", "output_len_exact", "token_count_mismatch_pct", "cached_prompt_frac_max", "foreign_process",
			"foreign_cpu_frac_max", "throttle_frac_max", "client_cpu_frac_max", "client_late_ms_max",
			"greedy_fingerprint")},
	[SECTION_FINGERPRINT] = {"guards.greedy_fingerprint", KEYS("prompts", "tokens", "min_match_frac")},
	[SECTION_VERDICT] = {"verdict",
		KEYS("primary", "constraints", "alpha", "correction", "variance", "equivalence", "confirm_winner_blocks")},
	[SECTION_PRIMARY] = {"verdict.primary", KEYS("metric", "better", "min_effect_pct")},
	[SECTION_LIMIT] = {"verdict.constraints[]", KEYS("metric", "max_regress_pct")},
};

bool reader_ok(const struct reader *reader)
{
	return reader->err->status == STATUS_OK;
}

static const char *arena_text(struct arena *arena, struct text *text)
{
	const char *copy = arena_strndup(arena, text_str(text), text->len);
	text_release(text);
	return copy;
}

const char *reader_print(struct reader *reader, const char *format, ...)
{
	struct text text = {0};
	va_list args;
	va_start(args, format);
	text_vprintf(&text, format, args);
	va_end(args);
	return arena_text(reader->arena, &text);
}

const char *reader_json_text(struct reader *reader, const struct json *value)
{
	struct text text = {0};
	json_write(value, JSON_STYLE_COMPACT, &text);
	return arena_text(reader->arena, &text);
}

void string_list_add(struct arena *arena, struct string_list *list, const char *item)
{
	/* Lists are short (arguments, tags, prompts of one file), so each power of two is a new block of the arena. */
	if ((list->count & (list->count - 1)) == 0) {
		const char **grown = arena_calloc(arena, list->count ? list->count * 2 : 1, sizeof *grown);
		if (list->count)
			memcpy(grown, list->items, list->count * sizeof *grown);
		list->items = grown;
	}
	list->items[list->count++] = item;
}

/* Cuts the last ".key" or "[index]" off. False when nothing is left to cut. */
static bool path_parent(char *path)
{
	size_t len = strlen(path);
	if (!len)
		return false;
	do {
		len--;
	} while (len && path[len] != '.' && path[len] != '[');
	path[len] = '\0';
	return true;
}

void place_fail(const struct place *place, bool of_key, const char *format, ...)
{
	struct reader *reader = place->reader;
	if (!reader_ok(reader))
		return;
	struct text reason = {0}, path = {0};
	va_list args;
	va_start(args, format);
	text_vprintf(&reason, format, args);
	va_end(args);
	text_append_str(&path, place->path);
	int line = 1, column = 1;
	while (!json_locate(reader->bytes, reader->len, text_str(&path), of_key && path.len, &line, &column)) {
		line = column = 1;
		of_key = false;
		if (!path.len || !path_parent(path.data))
			break;
		path.len = strlen(path.data);
	}
	err_set(reader->err, STATUS_INPUT, "%s:%d:%d: %s%s%s", reader->source, line, column, place->path,
		place->path[0] ? ": " : "", text_str(&reason));
	text_release(&reason);
	text_release(&path);
}

struct place place_get(const struct place *object, const char *key)
{
	struct place child = {object->reader, json_get(object->value, key), NULL};
	child.path = reader_print(object->reader, "%s%s%s", object->path, object->path[0] ? "." : "", key);
	return child;
}

struct place place_at(const struct place *array, size_t index)
{
	struct place child = {array->reader, json_at(array->value, index), NULL};
	child.path = reader_print(array->reader, "%s[%zu]", array->path, index);
	return child;
}

bool place_is(const struct place *place, enum json_kind kind)
{
	if (!place->value)
		return false;
	enum json_kind is = json_kind_of(place->value);
	if (is == kind || (kind == JSON_KIND_REAL && is == JSON_KIND_INTEGER))
		return true;
	place_fail(place, false, "must be %s, is %s", kind == JSON_KIND_REAL ? "number" : json_kind_name(kind), json_kind_name(is));
	return false;
}

static void fail_unknown_key(const struct place *child, const struct experiment_section *section)
{
	struct text known = {0};
	for (const char *const *key = section->keys; *key; key++)
		text_printf(&known, "%s%s", known.len ? ", " : "", *key);
	place_fail(child, true, "unknown key; known here: %s", text_str(&known));
	text_release(&known);
}

bool place_section(const struct place *place, enum section_id id)
{
	if (!place_is(place, JSON_KIND_OBJECT))
		return false;
	const struct experiment_section *section = &experiment_sections[id];
	for (void *it = json_first(place->value); it; it = json_next(place->value, it)) {
		const char *const *key = section->keys;
		while (*key && !text_equal(*key, json_iterator_key(it)))
			key++;
		if (!*key) {
			struct place child = place_get(place, json_iterator_key(it));
			fail_unknown_key(&child, section);
			return false;
		}
	}
	return true;
}

long long place_integer(const struct place *object, const char *key, long long min, long long max, long long fallback)
{
	struct place place = place_get(object, key);
	if (!place_is(&place, JSON_KIND_INTEGER))
		return fallback;
	long long value = json_int(place.value, fallback);
	if (value < min || value > max)
		place_fail(&place, false, "must be from %lld to %lld, is %lld", min, max, value);
	return value;
}

double place_number(const struct place *object, const char *key, double min, double max, double fallback)
{
	struct place place = place_get(object, key);
	if (!place_is(&place, JSON_KIND_REAL))
		return fallback;
	double value = json_number(place.value, fallback);
	if (!(value >= min && value <= max)) {
		char low[32], high[32], is[32];
		text_format_double(low, min);
		text_format_double(high, max);
		text_format_double(is, value);
		place_fail(&place, false, "must be from %s to %s, is %s", low, high, is);
	}
	return value;
}

bool place_bool(const struct place *object, const char *key, bool fallback)
{
	struct place place = place_get(object, key);
	return place_is(&place, JSON_KIND_BOOL) ? json_bool(place.value, fallback) : fallback;
}

const char *place_own_text(const struct place *place, bool may_be_empty)
{
	if (!place_is(place, JSON_KIND_STRING))
		return NULL;
	const char *value = json_text(place->value);
	size_t len = json_text_len(place->value);
	if (strlen(value) != len)
		place_fail(place, false, "must not contain a NUL character");
	else if (!len && !may_be_empty)
		place_fail(place, false, "must not be empty");
	else
		return arena_strndup(place->reader->arena, value, len);
	return NULL;
}

const char *place_text(const struct place *object, const char *key, const char *fallback)
{
	struct place place = place_get(object, key);
	const char *text = place_own_text(&place, false);
	return text ? text : fallback;
}

const char *place_name(const struct place *object, const char *fallback)
{
	struct place place = place_get(object, "name");
	const char *name = place_own_text(&place, false);
	if (!name)
		return fallback;
	size_t len = strlen(name);
	for (size_t i = 0; i < len; i++)
		if ((unsigned char)name[i] < ' ' || name[i] == 0x7f)
			place_fail(&place, false, "must not contain control characters");
	if (len > NAME_BYTES_MAX)
		place_fail(&place, false, "must have at most %d bytes, has %zu", NAME_BYTES_MAX, len);
	return name;
}

int place_choice(const struct place *object, const char *key, const char *const *names, int fallback)
{
	struct place place = place_get(object, key);
	const char *text = place_own_text(&place, true);
	if (!text)
		return fallback;
	struct text known = {0};
	for (int i = 0; names[i]; i++) {
		if (text_equal(names[i], text)) {
			text_release(&known);
			return i;
		}
		text_printf(&known, "%s%s", i ? ", " : "", names[i]);
	}
	place_fail(&place, false, "must be one of %s; is \"%s\"", text_str(&known), text);
	text_release(&known);
	return fallback;
}

void place_strings(const struct place *object, const char *key, bool may_be_empty, struct string_list *out)
{
	struct place array = place_get(object, key);
	if (!place_is(&array, JSON_KIND_ARRAY))
		return;
	for (size_t i = 0; i < json_count(array.value) && reader_ok(array.reader); i++) {
		struct place item = place_at(&array, i);
		const char *text = place_own_text(&item, may_be_empty);
		if (text)
			string_list_add(array.reader->arena, out, text);
		else
			place_fail(&item, false, "must be string, is %s", json_kind_name(json_kind_of(item.value)));
	}
}

void place_pairs(const struct place *object, const char *key, struct name_value **out, size_t *count)
{
	struct place pairs = place_get(object, key);
	if (!place_is(&pairs, JSON_KIND_OBJECT))
		return;
	*out = arena_calloc(pairs.reader->arena, json_count(pairs.value) + 1, sizeof **out);
	for (void *it = json_first(pairs.value); it && reader_ok(pairs.reader); it = json_next(pairs.value, it)) {
		struct place item = place_get(&pairs, json_iterator_key(it));
		if (!item.path[strlen(pairs.path) + 1])
			place_fail(&item, true, "an empty name is not allowed");
		const char *value = place_own_text(&item, true);
		if (!value)
			place_fail(&item, false, "must be string, is %s", json_kind_name(json_kind_of(item.value)));
		(*out)[(*count)++] = (struct name_value){item.path + strlen(pairs.path) + 1, value};
	}
}
