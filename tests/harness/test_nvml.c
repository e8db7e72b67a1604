/* harness/nvml and harness/nccl against libraries made for it: one that tells everything, one whose calls fail, one that lacks
 * some, and none at all. The libraries are found as real ones are, so each is probed by a process of its own that starts with its
 * path. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "harness/nccl.h"
#include "harness/probe.h"
#include "tests/support/roles.h"

static struct json *gpu_json(const struct probe_gpu *gpu)
{
	struct json *object = json_new_object(), *pids = json_new_array();
	for (int i = 0; i < gpu->n_pids; i++)
		json_append(pids, json_new_integer(gpu->pids[i]));
	json_set(object, "mhz", json_new_number(gpu->mhz));
	json_set(object, "memory_mhz", json_new_number(gpu->memory_mhz));
	json_set(object, "celsius", json_new_number(gpu->celsius));
	json_set(object, "watts", json_new_number(gpu->watts));
	json_set(object, "joules", json_new_number(gpu->joules));
	json_set(object, "used_mib", json_new_number(gpu->used_mib));
	json_set(object, "throttled", json_new_bool(gpu->throttled));
	json_set(object, "pids", pids);
	return object;
}

/* What a process sees: its facts, a reading and a sample as JSON on standard output. */
static int tell(void)
{
	struct json *document = json_new_object(), *gpus = json_new_array();
	struct probe_sample *sample = mem_calloc(1, sizeof *sample);
	struct text text = {0};
	void *session = probe_linux.open();
	probe_linux.sample(session, sample);
	for (int i = 0; i < sample->n_gpus; i++)
		json_append(gpus, gpu_json(&sample->gpus[i]));
	json_set(document, "facts", probe_linux.facts());
	json_set(document, "reading", probe_linux.reading(session));
	json_set(document, "gpus", gpus);
	probe_linux.close(session);
	json_write(document, JSON_STYLE_COMPACT, &text);
	file_write_all(1, text_str(&text), text.len, NULL);
	text_release(&text);
	json_free(document);
	mem_free(sample);
	return 0;
}

/* What a process sees that finds its libraries in these folders below build/tests/fake. */
static struct json *seen_with(const char *first, const char *second)
{
	static const char *const arguments[] = {"tell", NULL};
	struct text out = {0}, errors = {0}, path = {0};
	struct json *document = NULL;
	const char *program = support_program(), *end = strstr(program, "/harness/");
	assert_non_null(end);
	text_printf(
		&path, "%.*s/fake/%s:%.*s/fake/%s", (int)(end - program), program, first, (int)(end - program), program, second);
	setenv("LD_LIBRARY_PATH", text_str(&path), 1);
	int code = support_run(arguments, &out, &errors);
	unsetenv("LD_LIBRARY_PATH");
	if (code != 0 || json_parse(text_str(&out), out.len, "output", &document, NULL) != STATUS_OK)
		fail_msg("exit code %d: %s%s", code, text_str(&out), text_str(&errors));
	text_release(&out);
	text_release(&errors);
	text_release(&path);
	return document;
}

static double number_of(const struct json *gpu, const char *name)
{
	return json_number(json_get(gpu, name), NAN);
}

static void everything_that_a_gpu_tells_is_read(void **state)
{
	struct json *document = seen_with("nvml", "nccl");
	const struct json *gpus = json_get(document, "gpus"), *hot = json_at(gpus, 1);
	assert_int_equal(json_count(gpus), 2);
	assert_true(number_of(json_at(gpus, 0), "mhz") == 1400 && number_of(hot, "mhz") == 1500);
	assert_true(number_of(hot, "memory_mhz") == 2600 && number_of(hot, "celsius") == 90);
	assert_true(number_of(hot, "watts") == 301.5 && number_of(json_at(gpus, 0), "watts") == 300.5);
	assert_true(number_of(json_at(gpus, 0), "joules") == 5000 && number_of(hot, "used_mib") == 1001);
	/* A power cap is no trouble, heat is. */
	assert_false(json_bool(json_get(json_at(gpus, 0), "throttled"), true));
	assert_true(json_bool(json_get(hot, "throttled"), false));
	assert_int_equal(json_count(json_get(json_at(gpus, 0), "pids")), 0);
	assert_int_equal(json_int(json_at(json_get(hot, "pids"), 0), 0), 1);
	const struct json *used = json_get(json_get(document, "reading"), "gpu_memory_used_mib");
	assert_true(json_number(json_at(used, 0), 0) == 1000 && json_number(json_at(used, 1), 0) == 1001);
	json_free(document);
}

static void gpus_driver_cuda_and_nccl_are_facts_of_the_machine(void **state)
{
	struct json *document = seen_with("nvml", "nccl"), *without = seen_with("nowhere", "nowhere");
	const struct json *facts = json_get(document, "facts"), *details = json_get(facts, "gpu_details");
	assert_string_equal(json_text(json_get(json_at(details, 1), "name")), "Fake GPU 1");
	assert_string_equal(json_text(json_get(json_at(details, 1), "uuid")), "GPU-fake-1");
	assert_int_equal(json_int(json_get(json_at(details, 0), "memory_mib"), 0), 80000);
	assert_int_equal(json_int(json_get(json_at(details, 0), "power_limit_w"), 0), 700);
	assert_string_equal(json_text(json_get(facts, "gpu_driver_version")), "570.00.1");
	assert_string_equal(json_text(json_get(facts, "cuda_driver")), "12.8");
	assert_string_equal(json_text(json_get(facts, "nccl")), "2.21.5");
	/* In a container the driver's files may be hidden; a machine is told apart by its GPUs all the same. */
	char with[65], other[65];
	probe_machine_hash(facts, with);
	probe_machine_hash(json_get(without, "facts"), other);
	assert_string_not_equal(with, other);
	json_free(document);
	json_free(without);
}

static void calls_that_fail_leave_their_value_unknown(void **state)
{
	struct json *document = seen_with("nvml-errors", "nowhere");
	const struct json *gpus = json_get(document, "gpus"), *gpu = json_at(gpus, 1);
	static const char *const names[] = {"mhz", "memory_mhz", "celsius", "watts", "joules", "used_mib"};
	assert_int_equal(json_count(gpus), 2);
	for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
		assert_int_equal(json_kind_of(json_get(gpu, names[i])), JSON_KIND_NULL);
	assert_false(json_bool(json_get(gpu, "throttled"), true));
	assert_int_equal(json_count(json_get(gpu, "pids")), 0);
	const struct json *facts = json_get(document, "facts");
	assert_null(json_get(facts, "gpu_driver_version"));
	assert_null(json_get(facts, "cuda_driver"));
	assert_int_equal(json_count(json_at(json_get(facts, "gpu_details"), 0)), 0);
	json_free(document);
}

static void a_library_that_lacks_calls_is_as_good_as_none(void **state)
{
	static const char *const folders[] = {"nvml-old", "nowhere"};
	for (size_t i = 0; i < 2; i++) {
		struct json *document = seen_with(folders[i], "nccl");
		assert_int_equal(json_count(json_get(document, "gpus")), 0);
		assert_null(json_get(json_get(document, "facts"), "gpu_details"));
		assert_null(json_get(json_get(document, "reading"), "gpu_memory_used_mib"));
		json_free(document);
	}
}

static void versions_of_nccl_are_read_in_both_codings(void **state)
{
	static const struct {
		int code;
		const char *text;
	} cases[] = {{2708, "2.7.8"}, {2804, "2.8.4"}, {20906, "2.9.6"}, {21903, "2.19.3"}, {22105, "2.21.5"}, {22800, "2.28.0"}};
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		char text[NCCL_VERSION_BYTES];
		nccl_version_text(cases[i].code, text);
		assert_string_equal(text, cases[i].text);
	}
}

int main(int argc, char **argv)
{
	int code;
	if (argc == 2 && strcmp(argv[1], "tell") == 0)
		return tell();
	if (support_role(argc, argv, &code))
		return code;
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(everything_that_a_gpu_tells_is_read),
		cmocka_unit_test(gpus_driver_cuda_and_nccl_are_facts_of_the_machine),
		cmocka_unit_test(calls_that_fail_leave_their_value_unknown),
		cmocka_unit_test(a_library_that_lacks_calls_is_as_good_as_none),
		cmocka_unit_test(versions_of_nccl_are_read_in_both_codings),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
