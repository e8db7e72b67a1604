/* verdict-engine: every setting has a switch of its own name, /config tells what is in effect, and a refused start ends with one
 * line of JSON on standard error. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "harness/target_common.h"

/* Parses the last line of the log that is a JSON object with an "error". NULL: there is none. *before points to the line that says
 * the same for people, or to the JSON itself when it is the first line. */
static struct json *last_error_line(const char *log, const char **before)
{
	const char *end = log + strlen(log);
	while (end > log) {
		const char *begin = end;
		while (begin > log && begin[-1] != '\n')
			begin--;
		*before = begin;
		if (*begin == '{') {
			struct json *document = NULL;
			if (json_parse(begin, (size_t)(end - begin), "log", &document, NULL) == STATUS_OK &&
				json_text(json_get(document, "error"))) {
				for (const char *at = begin; at > log && (at == begin || at[-1] != '\n');)
					*before = --at;
				return document;
			}
			json_free(document);
		}
		end = begin > log ? begin - 1 : log;
	}
	return NULL;
}

static void say_memory(const struct json *document, char reason[512])
{
	double fraction = json_number(json_get(document, "min_mem_fraction"), NAN);
	int64_t need_bytes = json_int(json_get(document, "need_bytes"), 0);
	if (fraction > 0 && fraction <= 1) /* rounded up, so that the printed fraction starts too */
		snprintf(reason, 512, "oom_load: needs mem_fraction %.2f", fmin(1.0, ceil(fraction * 100.0 - 1e-9) / 100.0));
	else
		snprintf(reason, 512, "oom_load: needs %.1f MiB, more than the whole memory budget",
			(double)need_bytes / (1024.0 * 1024.0));
}

static bool explain(const struct target_ops *ops, const char *log, bool running, enum failure *failure, char reason[512])
{
	const char *said;
	struct json *document = last_error_line(log, &said);
	if (!document)
		return false;
	const char *code = json_text(json_get(document, "error"));
	if (text_starts_with(said, "verdict-engine: "))
		said += strlen("verdict-engine: ");
	if (text_equal(code, "not_enough_memory")) {
		*failure = running ? FAILURE_OOM_RUN : FAILURE_OOM_LOAD;
		say_memory(document, reason);
	} else {
		/* A rank that dies says nothing about the settings, which a refused start does. */
		*failure = running || text_equal(code, "rank_died") ? FAILURE_CRASH : FAILURE_LAUNCH_ERROR;
		snprintf(reason, 512, "%s: %s: %.*s", failure_name(*failure), code, (int)strcspn(said, "\n"), said);
	}
	json_free(document);
	return true;
}

const struct target_ops target_builtin = {
	.name = "builtin",
	.launches = true,
	.ready_path = "/health",
	.readback_path = "/config",
	.flush_path = "/flush_cache",
	.identity = TARGET_IDENTITY_NONCE,
	.tells_version = true,
	.add_address = target_add_host_and_port,
	.switch_of = target_switch_from_spelling,
	.settings = target_settings_as_told,
	.effective = target_effective_settings,
	.explain = explain,
};
