/* Reading counters out of Prometheus text. */
#include "harness/counters.h"

#include <math.h>
#include <string.h>

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

void counters_read(const char *text, const struct counter_names *names, struct run_counters *out)
{
	*out = (struct run_counters){
		.prompt = sum_of(text, names->prompt),
		.generated = sum_of(text, names->generated),
		.looked_up = sum_of(text, names->looked_up),
		.cached = sum_of(text, names->cached),
		.drafted = sum_of(text, names->drafted),
		.accepted = sum_of(text, names->accepted),
	};
}

static double difference(double before, double after)
{
	return before >= 0 && after >= before ? after - before : -1;
}

struct run_counters counters_difference(const struct run_counters *before, const struct run_counters *after)
{
	return (struct run_counters){
		.prompt = difference(before->prompt, after->prompt),
		.generated = difference(before->generated, after->generated),
		.looked_up = difference(before->looked_up, after->looked_up),
		.cached = difference(before->cached, after->cached),
		.drafted = difference(before->drafted, after->drafted),
		.accepted = difference(before->accepted, after->accepted),
	};
}
