/* Machine facts and readings. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>

#include "base/json.h"
#include "base/text.h"
#include "harness/probe.h"

static struct json *parse(const char *text)
{
	struct json *value = NULL;
	assert_int_equal(json_parse(text, strlen(text), "text", &value, NULL), STATUS_OK);
	return value;
}

static void this_machine_tells_its_facts(void **state)
{
	struct json *facts = probe_linux.facts();
	assert_true(json_int(json_get(facts, "cpus"), 0) >= 1);
	assert_true(json_int(json_get(facts, "memory_bytes"), 0) > 1000000);
	assert_true(json_text_len(json_get(facts, "kernel")) > 0);
	assert_int_equal(json_kind_of(json_get(facts, "gpus")), JSON_KIND_ARRAY);
	char first[65], second[65];
	struct json *again = probe_linux.facts();
	probe_machine_hash(facts, first);
	probe_machine_hash(again, second);
	assert_string_equal(first, second);
	assert_int_equal(strlen(first), 64);
	json_free(facts);
	json_free(again);
}

static void a_machine_is_known_by_its_hardware_not_by_its_name(void **state)
{
	static const struct {
		const char *facts;
		bool same;
	} cases[] = {
		{"{\"host\":\"b\",\"kernel\":\"7\",\"cpu\":\"x\",\"cpus\":2,\"memory_bytes\":9,\"gpus\":[]}", true},
		{"{\"cpu\":\"y\",\"cpus\":2,\"memory_bytes\":9,\"gpus\":[]}", false},
		{"{\"cpu\":\"x\",\"cpus\":4,\"memory_bytes\":9,\"gpus\":[]}", false},
		{"{\"cpu\":\"x\",\"cpus\":2,\"memory_bytes\":8,\"gpus\":[]}", false},
		{"{\"cpu\":\"x\",\"cpus\":2,\"memory_bytes\":9,\"gpus\":[{\"name\":\"g\"}]}", false},
		{"{\"cpu\":\"x\",\"cpus\":2,\"memory_bytes\":9,\"gpus\":[],\"gpu_driver\":\"1\"}", false},
	};
	struct json *facts = parse("{\"host\":\"a\",\"kernel\":\"6\",\"cpu\":\"x\",\"cpus\":2,\"memory_bytes\":9,\"gpus\":[]}");
	char reference[65], other[65];
	probe_machine_hash(facts, reference);
	json_free(facts);
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		facts = parse(cases[i].facts);
		probe_machine_hash(facts, other);
		assert_int_equal(strcmp(reference, other) == 0, cases[i].same);
		json_free(facts);
	}
}

static void hash_of(const char *text, char out[65])
{
	struct json *facts = parse(text);
	probe_machine_hash(facts, out);
	json_free(facts);
}

static void a_gpu_with_a_lower_power_limit_is_another_machine(void **state)
{
	char full[65], same[65], less[65], none[65], empty[65];
	hash_of("{\"cpu\":\"x\",\"gpu_details\":[{\"uuid\":\"a\",\"power_limit_w\":700}]}", full);
	hash_of("{\"cpu\":\"x\",\"gpu_details\":[{\"uuid\":\"b\",\"power_limit_w\":700}]}", same);
	hash_of("{\"cpu\":\"x\",\"gpu_details\":[{\"uuid\":\"a\",\"power_limit_w\":500}]}", less);
	hash_of("{\"cpu\":\"x\"}", none);
	hash_of("{\"cpu\":\"x\",\"gpu_details\":[{\"uuid\":\"a\"}]}", empty);
	assert_string_equal(full, same);
	assert_string_not_equal(full, less);
	assert_string_equal(none, empty);
}

static void two_readings_tell_what_happened_between_them(void **state)
{
	struct json *compared =
		probe_compare(parse("{\"cpu_ticks_all\":1000,\"cpu_ticks_busy\":100,\"cpu_ticks_stolen\":0,\"throttle_count\":3}"),
			parse("{\"cpu_ticks_all\":1200,\"cpu_ticks_busy\":200,\"cpu_ticks_stolen\":20,\"throttle_count\":4}"));
	assert_float_equal(json_number(json_get(compared, "cpu_busy_frac"), -1), 0.5, 1e-12);
	assert_float_equal(json_number(json_get(compared, "cpu_steal_frac"), -1), 0.1, 1e-12);
	assert_true(json_bool(json_get(compared, "throttled"), false));
	assert_int_equal(json_int(json_get(json_get(compared, "after"), "throttle_count"), 0), 4);
	json_free(compared);
	compared = probe_compare(parse("{}"), parse("{\"throttle_count\":null}"));
	assert_int_equal(json_kind_of(json_get(compared, "cpu_busy_frac")), JSON_KIND_NULL);
	assert_int_equal(json_kind_of(json_get(compared, "throttled")), JSON_KIND_NULL);
	json_free(compared);
}

static void a_reading_of_this_machine_counts_up(void **state)
{
	struct json *first = probe_linux.reading(NULL), *second = probe_linux.reading(NULL);
	int64_t before = json_int(json_get(first, "cpu_ticks_all"), -1), after = json_int(json_get(second, "cpu_ticks_all"), -1);
	assert_true(before > 0 && after >= before);
	assert_true(json_int(json_get(first, "memory_available_kib"), 0) > 0);
	json_free(first);
	json_free(second);
}

/* Whether memory is held between two readings that are texts. */
static bool held(const char *before, const char *after, char what[128])
{
	struct json *first = parse(before), *second = parse(after);
	bool result = probe_memory_held(first, second, 100, what);
	json_free(first);
	json_free(second);
	return result;
}

static void memory_that_was_not_known_before_is_not_held(void **state)
{
	char what[128];
	assert_true(held("{\"gpu_memory_used_mib\":[10,10]}", "{\"gpu_memory_used_mib\":[10,500]}", what));
	assert_string_equal(what, "490 MiB of the memory of GPU 1 are still in use");
	assert_false(held("{\"gpu_memory_used_mib\":[10,10]}", "{\"gpu_memory_used_mib\":[110,10]}", what));
	/* A library that tells nothing at one of the two moments, or a GPU that was lost in between. */
	assert_false(held("{\"gpu_memory_used_mib\":[null]}", "{\"gpu_memory_used_mib\":[500]}", what));
	assert_false(held("{\"gpu_memory_used_mib\":[500]}", "{\"gpu_memory_used_mib\":[null]}", what));
	assert_false(held("{}", "{\"gpu_memory_used_mib\":[500]}", what));
	assert_true(held("{\"shared_memory_kib\":0}", "{\"shared_memory_kib\":204800}", what));
	assert_string_equal(what, "200 MiB of shared memory are left");
	assert_false(held("{}", "{\"shared_memory_kib\":204800}", what));
}

static int64_t kills(const char *before, const char *after)
{
	struct json *first = parse(before), *second = parse(after);
	int64_t count = probe_oom_kills(first, second);
	json_free(first);
	json_free(second);
	return count;
}

static void a_kernel_that_keeps_no_count_of_its_kills_is_told_from_one_that_killed_none(void **state)
{
	assert_int_equal(kills("{\"oom_kills\":3}", "{\"oom_kills\":3}"), 0);
	assert_int_equal(kills("{\"oom_kills\":3}", "{\"oom_kills\":5}"), 2);
	assert_int_equal(kills("{\"oom_kills\":null}", "{\"oom_kills\":null}"), -1);
	assert_int_equal(kills("{\"oom_kills\":3}", "{}"), -1);
	assert_int_equal(kills("{}", "{\"oom_kills\":3}"), -1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(this_machine_tells_its_facts),
		cmocka_unit_test(a_machine_is_known_by_its_hardware_not_by_its_name),
		cmocka_unit_test(a_gpu_with_a_lower_power_limit_is_another_machine),
		cmocka_unit_test(two_readings_tell_what_happened_between_them),
		cmocka_unit_test(a_reading_of_this_machine_counts_up),
		cmocka_unit_test(memory_that_was_not_known_before_is_not_held),
		cmocka_unit_test(a_kernel_that_keeps_no_count_of_its_kills_is_told_from_one_that_killed_none),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
