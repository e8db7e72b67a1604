/* Reading counters out of Prometheus text. */
#include "harness/counters.h"

#include <ctype.h>
#include <math.h>
#include <string.h>

#include "base/json.h"
#include "base/text.h"

/* Value of a line "NAME{labels} VALUE [TIMESTAMP]" or "NAME VALUE"; NAN when it is another metric's line or no number. Label values
 * are quoted and may hold anything, '}' and spaces included. */
static double value_of_line(const char *line, size_t len, const char *name)
{
	size_t name_len = strlen(name), at = name_len;
	if (len <= name_len || memcmp(line, name, name_len) != 0)
		return NAN;
	if (line[at] == '{') {
		bool quoted = false;
		for (at++; at < len && (quoted || line[at] != '}'); at++) {
			if (line[at] == '\\' && quoted)
				at++;
			else if (line[at] == '"')
				quoted = !quoted;
		}
		at++;
	}
	if (at >= len || (line[at] != ' ' && line[at] != '\t'))
		return NAN;
	while (at < len && (line[at] == ' ' || line[at] == '\t'))
		at++;
	size_t begin = at;
	while (at < len && !strchr(" \t\r", line[at]))
		at++;
	struct text number = {0};
	double value = NAN;
	text_append(&number, line + begin, at - begin);
	if (!text_to_double(text_str(&number), &value))
		value = NAN;
	text_release(&number);
	return value;
}

static double sum_of(const char *text, const char *name)
{
	double sum = -1;
	while (name && *text) {
		size_t len = strcspn(text, "\n");
		double value = value_of_line(text, len, name);
		if (value >= 0)
			sum = (sum < 0 ? 0 : sum) + value;
		text += len + (text[len] == '\n');
	}
	return sum;
}

static double sum_of_either(const char *text, const char *name, const char *name_before)
{
	double sum = sum_of(text, name);
	return sum >= 0 ? sum : sum_of(text, name_before);
}

void counters_read(const char *text, const struct counter_names *names, struct run_counters *out)
{
	*out = (struct run_counters){
		.prompt = sum_of(text, names->prompt),
		.generated = sum_of(text, names->generated),
		.looked_up = sum_of_either(text, names->looked_up, names->looked_up_before),
		.cached = sum_of_either(text, names->cached, names->cached_before),
		.drafted = sum_of(text, names->drafted),
		.accepted = sum_of(text, names->accepted),
		.rounds = sum_of(text, names->rounds),
	};
}

static double difference(double before, double after)
{
	return before >= 0 && after >= before ? after - before : -1;
}

struct run_counters counters_difference(const struct run_counters *before, const struct run_counters *after)
{
	struct run_counters gone = {
		.prompt = difference(before->prompt, after->prompt),
		.generated = difference(before->generated, after->generated),
		.looked_up = difference(before->looked_up, after->looked_up),
		.cached = difference(before->cached, after->cached),
		.drafted = difference(before->drafted, after->drafted),
		.accepted = difference(before->accepted, after->accepted),
		.rounds = difference(before->rounds, after->rounds),
	};
	if (gone.rounds > 0 && gone.accepted < 0 && gone.generated >= gone.rounds)
		gone.accept_length = gone.generated / gone.rounds;
	return gone;
}

/* Takes over the text. */
static struct json *new_label_value(struct text *value)
{
	const char *str = text_str(value);
	double number;
	struct json *json = text_equal(str, "True") ? json_new_bool(true)
		: text_equal(str, "False")          ? json_new_bool(false)
		: text_equal(str, "None")           ? json_new_null()
		: text_to_double(str, &number)      ? json_new_number(number)
						    : json_new_string_len(str, value->len);
	text_release(value);
	return json;
}

/* Source: Prometheus exposition format. What is none cannot be a key either: it may be no UTF-8. */
static bool is_label_name(const struct text *name)
{
	for (size_t i = 0; i < name->len; i++)
		if (!isalnum((unsigned char)name->data[i]) && name->data[i] != '_')
			return false;
	return name->len > 0;
}

/* Reads label="value",… up to '}' or the end of the line. A label that breaks off is left out. */
static void read_labels(const char *at, const char *end, struct json *out)
{
	while (at < end && *at != '}') {
		struct text name = {0}, value = {0};
		while (at < end && *at != '=' && *at != '}')
			text_append_char(&name, *at++);
		if (end - at < 2 || at[0] != '=' || at[1] != '"') {
			text_release(&name);
			return;
		}
		for (at += 2; at < end && *at != '"'; at++) {
			at += *at == '\\' && at + 1 < end;
			text_append_char(&value, *at);
		}
		bool whole = at < end;
		struct json *label = new_label_value(&value);
		if (whole && is_label_name(&name))
			json_set(out, text_str(&name), label);
		else
			json_free(label);
		text_release(&name);
		at += whole;
		at += at < end && *at == ',';
	}
}

struct json *counters_labels(const char *text, const char *name)
{
	size_t name_len = strlen(name);
	while (*text) {
		size_t len = strcspn(text, "\n");
		if (len > name_len && strncmp(text, name, name_len) == 0 && text[name_len] == '{') {
			struct json *object = json_new_object();
			read_labels(text + name_len + 1, text + len, object);
			return object;
		}
		text += len + (text[len] == '\n');
	}
	return NULL;
}
