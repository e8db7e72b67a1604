/* --set key.path=value: changes one value of an experiment document before it is checked. */
#include "harness/experiment_internal.h"

#include <string.h>

#define SET_DEPTH_MAX 16

/* One step of a path: a key, or an index when key is NULL. */
struct step {
	char *key;
	size_t index;
};

struct steps {
	struct step items[SET_DEPTH_MAX];
	size_t count;
};

static void steps_release(struct steps *steps)
{
	for (size_t i = 0; i < steps->count; i++)
		mem_free(steps->items[i].key);
	steps->count = 0;
}

/* Splits "workloads[0].requests" into steps. False when the path is malformed or too deep. */
static bool steps_parse(const char *path, size_t len, struct steps *steps)
{
	size_t at = 0;
	while (at < len) {
		if (steps->count == SET_DEPTH_MAX)
			return false;
		struct step *step = &steps->items[steps->count];
		if (path[at] == '[') {
			const char *close = memchr(path + at, ']', len - at);
			if (!close)
				return false;
			char *digits = mem_strndup(path + at + 1, (size_t)(close - path) - at - 1);
			unsigned long long index = 0;
			bool fine = text_to_u64(digits, &index) && index < 1000000;
			mem_free(digits);
			if (!fine)
				return false;
			*step = (struct step){NULL, (size_t)index};
			at = (size_t)(close - path) + 1;
		} else {
			size_t key_len = strcspn(path + at, ".[=");
			if (!key_len)
				return false;
			*step = (struct step){mem_strndup(path + at, key_len), 0};
			at += key_len;
		}
		steps->count++;
		if (at < len && path[at] == '.' && ++at == len)
			return false;
	}
	return steps->count > 0;
}

/* A copy of container (NULL: a new object) in which the child at step is value, which is taken over. NULL, and value freed,
 * when the step does not fit. */
static struct json *with_child(const struct json *container, const struct step *step, struct json *value)
{
	if (step->key && (!container || json_kind_of(container) == JSON_KIND_OBJECT)) {
		struct json *copy = container ? json_clone(container) : json_new_object();
		json_set(copy, step->key, value);
		return copy;
	}
	if (!step->key && json_kind_of(container) == JSON_KIND_ARRAY && step->index < json_count(container)) {
		struct json *copy = json_new_array();
		for (size_t i = 0; i < json_count(container); i++)
			json_append(copy, i == step->index ? value : json_clone(json_at(container, i)));
		return copy;
	}
	json_free(value);
	return NULL;
}

enum status experiment_set(struct json **document, const char *setting, struct err *err)
{
	const char *equals = strchr(setting, '=');
	struct steps steps = {0};
	if (!equals || !steps_parse(setting, (size_t)(equals - setting), &steps)) {
		steps_release(&steps);
		return err_set(err, STATUS_INPUT,
			"--set %s: expected key.path=value, such as protocol.blocks=5 or workloads[0].requests=8", setting);
	}
	const struct json *containers[SET_DEPTH_MAX];
	const struct json *at = *document;
	for (size_t i = 0; i < steps.count; i++) {
		containers[i] = at;
		at = steps.items[i].key ? json_get(at, steps.items[i].key) : json_at(at, steps.items[i].index);
	}
	struct json *value = NULL;
	if (json_parse(equals + 1, strlen(equals + 1), "value", &value, NULL) != STATUS_OK)
		value = json_new_string(equals + 1);
	for (size_t i = steps.count; i-- > 0 && value;)
		value = with_child(containers[i], &steps.items[i], value);
	steps_release(&steps);
	if (!value)
		return err_set(
			err, STATUS_INPUT, "--set %s: the path does not lead through objects and existing array elements", setting);
	json_free(*document);
	*document = value;
	return STATUS_OK;
}
