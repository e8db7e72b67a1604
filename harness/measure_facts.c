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

/* The document at path; NULL when there is none, and err, which may be NULL, says why. */
static struct json *get_document(struct measuring *measuring, const char *path, struct err *err)
{
	struct client_answer answer;
	struct err own = {0};
	err = err ? err : &own;
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

/* The value at a path like "info.version" or "states.0.length"; NULL when it is not there. Borrowed. */
static const struct json *value_at(const struct json *value, const char *path)
{
	while (value && *path) {
		char step[64];
		unsigned long long index;
		size_t len = strcspn(path, ".");
		snprintf(step, sizeof(step), "%.*s", (int)len, path);
		value = text_to_u64(step, &index) ? json_at(value, (size_t)index) : json_get(value, step);
		path += len + (path[len] == '.');
	}
	return value;
}

static void add_when_missing(struct json **settings, const char *name, const struct json *value)
{
	if (!*settings)
		*settings = json_new_object();
	if (json_kind_of(json_get(*settings, name)) == JSON_KIND_NULL || !json_get(*settings, name))
		json_set(*settings, name, json_clone(value));
}

/* Adds what the labels of a metric and the list of models tell. */
static void add_settings_from_metrics(struct measuring *measuring, struct json **settings)
{
	struct client_answer answer;
	struct json *labels = NULL;
	struct err err = {0};
	measuring_get(measuring, "/metrics", FACTS_TIMEOUT_S, &answer, &err);
	if (answer.http_status == 200)
		labels = counters_labels(text_str(&answer.body), measuring->target->settings_metric);
	text_release(&answer.body);
	for (void *at = json_first(labels); at; at = json_next(labels, at))
		add_when_missing(settings, json_iterator_key(at), json_iterator_value(at));
	json_free(labels);
	struct json *models = get_document(measuring, "/v1/models", NULL);
	const struct json *longest = value_at(models, "data.0.max_model_len");
	if (longest)
		add_when_missing(settings, "max_model_len", longest);
	json_free(models);
}

/* The document that tells the settings in effect; NULL when there is none, and err says why. *path is where it was looked for. */
static struct json *ask_document(struct measuring *measuring, const char **path, struct err *err)
{
	const struct target_ops *target = measuring->target;
	*path = measuring->engine->readback_path ? measuring->engine->readback_path : target->readback_path;
	struct json *told = *path ? get_document(measuring, *path, err) : NULL;
	if (!told && target->readback_path_older && !measuring->engine->readback_path)
		told = get_document(measuring, target->readback_path_older, NULL);
	return told;
}

static void read_settings(struct measuring *measuring)
{
	const char *path;
	struct err err = {0};
	char reason[512];
	struct json *told = ask_document(measuring, &path, &err);
	struct json *config = told ? measuring->target->settings(told) : NULL;
	json_free(told);
	if (measuring->target->settings_metric)
		add_settings_from_metrics(measuring, &config);
	bool needed = path && (measuring->engine->readback_path || !measuring->target->readback_optional);
	if (!config && needed)
		measuring_fail(
			measuring, FAILURE_INACTIVE, "inactive: %s does not tell the settings in effect (%.200s)", path, err.text);
	else if (config && !target_settings_active(measuring->target, measuring->engine, measuring->arm, config, reason))
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
	const struct json *value = value_at(document ? document : measuring->result->effective_config, key);
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

double measuring_read_accept_length(struct measuring *measuring)
{
	const struct target_ops *target = measuring->target;
	if (!target->accept_length_key)
		return 0;
	const char *path;
	struct json *told = ask_document(measuring, &path, NULL);
	double length = json_number(value_at(told, target->accept_length_key), 0);
	json_free(told);
	return length;
}
