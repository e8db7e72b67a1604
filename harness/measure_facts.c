/* What a running server tells about itself: settings in effect, version, counters. */
#include <stdio.h>
#include <string.h>

#include "harness/measure_internal.h"

#define FACTS_TIMEOUT_S 10.0 /* guess: an idle server answers in milliseconds */

void measuring_get(struct measuring *measuring, const char *path, double timeout_s, struct client_answer *answer, struct err *err)
{
	char url[512];
	struct client_watch watch;
	measuring_watch(measuring, &watch);
	snprintf(url, sizeof(url), "%s%s", measuring->base_url, path);
	client_request(measuring->measure->client, url, NULL, NULL, timeout_s, &watch, answer, err);
}

/* The document at path; NULL when there is none, and err says why. */
static struct json *get_document(struct measuring *measuring, const char *path, struct err *err)
{
	struct client_answer answer;
	struct json *document = NULL;
	measuring_get(measuring, path, FACTS_TIMEOUT_S, &answer, err);
	if (answer.http_status == 200)
		json_parse(text_str(&answer.body), answer.body.len, path, &document, err);
	else if (!err->status)
		err_set(err, STATUS_UNAVAILABLE, "HTTP %d", answer.http_status);
	if (document && json_kind_of(document) != JSON_KIND_OBJECT) {
		err_set(err, STATUS_INPUT, "it is no JSON object");
		json_free(document);
		document = NULL;
	}
	text_release(&answer.body);
	return document;
}

static void read_settings(struct measuring *measuring)
{
	const char *path = measuring->engine->readback_path, *older = measuring->target->readback_path_older;
	if (!path)
		path = measuring->target->readback_path;
	else
		older = NULL;
	if (!path)
		return;
	struct err err = {0};
	char reason[512];
	struct json *config = get_document(measuring, path, &err);
	if (!config && older) {
		struct err again = {0};
		config = get_document(measuring, older, &again);
	}
	if (!config)
		measuring_fail(
			measuring, FAILURE_INACTIVE, "inactive: %s does not tell the settings in effect (%.200s)", path, err.text);
	else if (!target_settings_active(measuring->target, measuring->arm, config, reason))
		measuring_fail(measuring, FAILURE_INACTIVE, "%s", reason);
	int64_t vocabulary = json_int(json_get(json_get(config, "model"), "vocab"), 0);
	if (vocabulary > 0 && vocabulary <= INT32_MAX)
		measuring->vocabulary = (int)vocabulary;
	measuring->result->effective_config = config;
}

/* A server that does not tell its version is measured all the same. */
static void read_version(struct measuring *measuring)
{
	const char *path = measuring->target->version_path, *key = measuring->target->version_key;
	if (!path)
		return;
	struct err err = {0};
	struct json *document = get_document(measuring, path, &err);
	const struct json *value = document ? document : measuring->result->effective_config;
	while (value && *key) {
		char name[64];
		size_t len = strcspn(key, ".");
		snprintf(name, sizeof(name), "%.*s", (int)len, key);
		value = json_get(value, name);
		key += len + (key[len] == '.');
	}
	if (json_text(value)) {
		if (!measuring->result->probes)
			measuring->result->probes = json_new_object();
		json_set(measuring->result->probes, "engine_version", json_clone(value));
	}
	json_free(document);
}

void measuring_read_back(struct measuring *measuring)
{
	read_settings(measuring);
	if (!measuring_failed(measuring))
		read_version(measuring);
}

bool measuring_read_counters(struct measuring *measuring, struct run_counters *out)
{
	if (!measuring->target->counters)
		return false;
	struct client_answer answer;
	struct err err = {0};
	measuring_get(measuring, "/metrics", FACTS_TIMEOUT_S, &answer, &err);
	bool found = !err.status && answer.http_status == 200;
	if (found)
		counters_read(text_str(&answer.body), measuring->target->counters, out);
	text_release(&answer.body);
	return found;
}
