/* Comparing settings one by one. */
#include "harness/effective.h"

#include "base/text.h"

/* New with every start. */
static const char *const volatile_names[] = {
	"port",
	"host",
	"url",
	"nonce",
	"pid",
	"random_seed",
	"nccl_port",
	"dist_init_addr",
	"start_time",
	"uptime",
	"api_key",
	"launch_command",
	"startup_time",
};

static bool is_volatile(const char *name)
{
	for (size_t i = 0; i < sizeof(volatile_names) / sizeof(volatile_names[0]); i++)
		if (text_equal(name, volatile_names[i]))
			return true;
	return false;
}

/* The engine's own form is {"value": …, "why": …}. */
static const struct json *value_of(const struct json *setting)
{
	const struct json *value = json_kind_of(setting) == JSON_KIND_OBJECT ? json_get(setting, "value") : NULL;
	return value ? value : setting;
}

/* Lists and objects hold state as often as settings; only what is one value is compared. */
static bool is_scalar(const struct json *value)
{
	enum json_kind kind = json_kind_of(value);
	return kind != JSON_KIND_OBJECT && kind != JSON_KIND_ARRAY;
}

static bool was_asked_for(const struct target_ops *target, const struct json *config, const struct json *changed, const char *name,
	const struct json *value)
{
	for (size_t i = 0; i < json_count(changed); i++) {
		const char *knob = json_text(json_get(json_at(changed, i), "knob"));
		if (knob && (text_equal(knob, name) || target->effective(target, config, knob) == value))
			return true;
	}
	return false;
}

struct json *effective_differences(
	const struct target_ops *target, const struct json *baseline, const struct json *other, const struct json *changed)
{
	struct json *differences = json_new_array();
	const struct json *left = json_get(baseline, "settings"), *right = json_get(other, "settings");
	if (!left || !right) {
		left = baseline;
		right = other;
	}
	for (void *at = json_first(left); at; at = json_next(left, at)) {
		const char *name = json_iterator_key(at);
		const struct json *before = value_of(json_iterator_value(at)), *after = value_of(json_get(right, name));
		if (!after || is_volatile(name) || !is_scalar(before) || !is_scalar(after) || json_same(before, after))
			continue;
		if (was_asked_for(target, other, changed, name, after))
			continue;
		struct json *difference = json_new_object();
		json_set(difference, "setting", json_new_string(name));
		json_set(difference, "baseline", json_clone(before));
		json_set(difference, "value", json_clone(after));
		json_append(differences, difference);
	}
	return differences;
}

/* What the baseline told of its settings in a block; in any block when it did not in this one. */
static const struct json *baseline_config(const struct json *launches, int64_t block)
{
	const struct json *any = NULL;
	for (size_t i = 0; i < json_count(launches); i++) {
		const struct json *launch = json_at(launches, i), *told = json_get(launch, "effective_config");
		if (json_int(json_get(launch, "arm"), -1) != 0 || json_kind_of(told) != JSON_KIND_OBJECT)
			continue;
		if (json_int(json_get(launch, "block"), -1) == block)
			return told;
		any = told;
	}
	return any;
}

static const struct json *find_arm(const struct json *shown, int64_t number)
{
	const struct json *arms = json_get(shown, "arms");
	for (size_t i = 0; i < json_count(arms); i++)
		if (json_int(json_get(json_at(arms, i), "arm"), -1) == number)
			return json_at(arms, i);
	return NULL;
}

struct json *effective_unasked(const struct json *shown)
{
	const struct target_ops *target = target_by_name(json_text(json_get(json_get(shown, "experiment"), "adapter")));
	const struct json *launches = json_get(shown, "launches");
	struct json *all = json_new_array();
	for (size_t i = 0; target && i < json_count(launches); i++) {
		const struct json *launch = json_at(launches, i);
		int64_t number = json_int(json_get(launch, "arm"), -1), block = json_int(json_get(launch, "block"), -1);
		const struct json *arm = find_arm(shown, number);
		struct json *differences = effective_differences(
			target, baseline_config(launches, block), json_get(launch, "effective_config"), json_get(arm, "changed"));
		for (size_t d = 0; number != 0 && arm && d < json_count(differences); d++) {
			struct json *difference = json_clone(json_at(differences, d));
			json_set(difference, "block", json_new_integer(block));
			json_set(difference, "arm", json_new_integer(number));
			json_set(difference, "name", json_clone(json_get(arm, "name")));
			json_append(all, difference);
		}
		json_free(differences);
	}
	return all;
}
