/* The slots of adapters whose engines differ in data only. */
#include "harness/target_common.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

void target_add_host_and_port(struct string_vector *out, const char *port)
{
	string_vector_add(out, "--host");
	string_vector_add(out, "127.0.0.1");
	string_vector_add(out, "--port");
	string_vector_add(out, port);
}

void target_add_no_address(struct string_vector *out, const char *port)
{
}

bool target_switch_from_table(const struct target_ops *ops, const char *knob, char name[64])
{
	for (size_t i = 0; i < ops->n_switches; i++) {
		if (!text_equal(ops->switches[i].name, knob))
			continue;
		snprintf(name, 64, "%s", ops->switches[i].value);
		return true;
	}
	return false;
}

bool target_switch_from_spelling(const struct target_ops *ops, const char *knob, char name[64])
{
	int len = snprintf(name, 64, "--%s", knob);
	for (char *c = name; *c; c++)
		if (*c == '_')
			*c = '-';
	return len < 64;
}

struct json *target_settings_as_told(const struct json *told)
{
	return json_clone(told);
}

const struct json *target_effective_settings(const struct target_ops *ops, const struct json *config, const char *knob)
{
	const struct json *setting = json_get(json_get(config, "settings"), knob);
	return json_kind_of(setting) == JSON_KIND_OBJECT ? json_get(setting, "value") : setting;
}

const struct json *target_effective_by_switch(const struct target_ops *ops, const struct json *config, const char *knob)
{
	char name[64];
	return ops->switch_of(ops, knob, name) ? target_effective_of_switch(config, name) : NULL;
}

const struct json *target_effective_of_switch(const struct json *config, const char *name)
{
	char key[64];
	if (text_starts_with(name, TARGET_VARIABLE))
		return json_get(json_get(config, "env"), name + strlen(TARGET_VARIABLE));
	snprintf(key, sizeof(key), "%s", name + strspn(name, "-"));
	for (char *c = key; *c; c++)
		if (*c == '-')
			*c = '_';
	return json_get(config, key);
}

const struct json *target_effective_nowhere(const struct target_ops *ops, const struct json *config, const char *knob)
{
	return NULL;
}

/* Copies the line around at, trimmed, into out. */
static void copy_line(const char *log, const char *at, char *out, size_t out_bytes)
{
	const char *begin = at;
	while (begin > log && begin[-1] != '\n')
		begin--;
	const char *end = at;
	while (*end && *end != '\n' && *end != '\r')
		end++;
	while (begin < end && isspace((unsigned char)*begin))
		begin++;
	snprintf(out, out_bytes, "%.*s", (int)(end - begin > 400 ? 400 : end - begin), begin);
}

static bool class_of_pattern(const char *line, bool running, enum failure *failure, const char **text)
{
	static const struct {
		const char *word;
		enum failure loading, running;
	} classes[] = {
		{"oom ", FAILURE_OOM_LOAD, FAILURE_OOM_RUN},
		{"refused ", FAILURE_LAUNCH_ERROR, FAILURE_LAUNCH_ERROR},
		{"fatal ", FAILURE_LAUNCH_ERROR, FAILURE_CRASH},
	};
	for (size_t i = 0; i < sizeof(classes) / sizeof(classes[0]); i++) {
		if (!text_starts_with(line, classes[i].word))
			continue;
		*failure = running ? classes[i].running : classes[i].loading;
		*text = line + strlen(classes[i].word);
		return true;
	}
	return false;
}

bool target_explain_from_patterns(
	const struct target_ops *ops, const char *log, bool running, enum failure *failure, char reason[512])
{
	const char *patterns = ops->patterns ? ops->patterns : "";
	while (*patterns) {
		size_t len = strcspn(patterns, "\n");
		char line[256], quoted[416];
		const char *text;
		enum failure found;
		snprintf(line, sizeof(line), "%.*s", (int)len, patterns);
		patterns += len + (patterns[len] == '\n');
		const char *at = class_of_pattern(line, running, &found, &text) ? strcasestr(log, text) : NULL;
		if (!at)
			continue;
		copy_line(log, at, quoted, sizeof(quoted));
		*failure = found;
		snprintf(reason, 512, "%s: %s", failure_name(found), quoted);
		return true;
	}
	return false;
}
