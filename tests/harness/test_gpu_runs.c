/* Whole runs on a machine with a GPU, as a library made for it tells of it: what happens there while one setting is measured makes
 * its runs void and leaves the others alone, and what was seen is kept. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/text.h"
#include "tests/support/roles.h"
#include "tests/support/run_bed.h"

static const char *const stub[] = {"--token-ms", "5", NULL};

static const struct stub_experiment one_knob = {.stub = stub,
	.baseline = "{\"speculation\": \"off\"}",
	.matrix = "{\"factors\": {\"speculation\": [\"off\", \"ngram\"]}, \"aa_twin\": false}",
	.protocol = "{\"blocks\": 3, \"runs_per_launch\": 1, \"screening\": false, \"warmup\": {\"requests_per_slot\": 1}}",
	.guards = "{\"greedy_fingerprint\": {\"prompts\": 0}, \"foreign_cpu_frac_max\": 1, \"client_late_ms_max\": 10000}"};

/* A run in which, whenever a server with `when` on its command line lives, `then` happens. */
static struct json *run_where(
	const struct stub_experiment *options, const char *when, const char *then, struct text *errors, struct json **shown)
{
	struct run_bed bed;
	struct text path = {0};
	struct json *document = NULL;
	const char *program = support_program(), *end = strstr(program, "/harness/");
	assert_non_null(end);
	run_bed_open(&bed, options);
	text_printf(&path, "%.*s/fake/nvml-live", (int)(end - program), program);
	setenv("LD_LIBRARY_PATH", text_str(&path), 1);
	setenv("FAKE_NVML_OURS", program, 1);
	setenv("FAKE_NVML_WHEN", when, 1);
	setenv("FAKE_NVML_THEN", then, 1);
	int code = run_bed_run(&bed, NULL, &document, errors);
	unsetenv("LD_LIBRARY_PATH");
	if (code != 0)
		fail_msg("exit code %d: %s", code, text_str(errors));
	*shown = run_bed_show(&bed);
	text_release(&path);
	run_bed_close(&bed);
	return document;
}

/* Launches of speculation=ngram (or of the baseline), those void of them, and whether all that was void gives this reason. */
static void count_launches(const struct json *shown, bool baseline, const char *reason, int *launches, int *voided)
{
	*launches = *voided = 0;
	for (size_t i = 0; i < json_count(json_get(shown, "launches")); i++) {
		const struct json *launch = json_at(json_get(shown, "launches"), i), *runs = json_get(launch, "runs");
		if ((json_int(json_get(launch, "arm"), -1) == 0) != baseline)
			continue;
		++*launches;
		assert_string_equal(json_text(json_get(launch, "failure")), "none");
		bool is_void = false;
		for (size_t k = 0; k < json_count(runs); k++) {
			const struct json *run = json_at(runs, k);
			if (json_int(json_get(run, "warmup"), 1) || !json_int(json_get(run, "voided"), 0))
				continue;
			is_void = true;
			assert_non_null(strstr(json_text(json_get(run, "void_reason")), reason));
		}
		*voided += is_void;
	}
}

/* Three launches in every block, none of them judged, for the setting; one in every block for the baseline. */
static void expect_void(const char *then, const char *reason)
{
	struct text errors = {0};
	struct json *shown, *document = run_where(&one_knob, "--speculation ngram", then, &errors, &shown);
	int launches, voided;
	run_bed_expect(document, "speculation", "ngram", "void", "void: the machine was disturbed in every launch");
	count_launches(shown, false, reason, &launches, &voided);
	assert_true(launches == 9 && voided == 9);
	count_launches(shown, true, reason, &launches, &voided);
	assert_true(launches == 3 && voided == 0);
	assert_non_null(strstr(text_str(&errors), reason));
	json_free(shown);
	json_free(document);
	text_release(&errors);
}

static void a_throttled_gpu_voids_the_runs_of_the_setting_it_befell(void **state)
{
	expect_void("throttle", "void: clocks were throttled in ");
}

static void another_process_on_the_gpu_voids_the_runs_it_was_there(void **state)
{
	expect_void("foreign", "void: 1 other process computed on the engine's GPUs");
}

/* Neither void nor failed; what a busy machine makes of the numbers is not asked here. */
static void expect_judged(const struct json *document)
{
	const char *verdict = json_text(json_get(run_bed_row(document, "speculation", "ngram"), "verdict"));
	assert_true(text_equal(verdict, "helped") || text_equal(verdict, "neutral"));
}

/* The library then fails every call. What is unknown is no reason to void or to fail, and is not stored as a number. */
static void a_gpu_that_is_lost_to_its_library_is_unknown(void **state)
{
	struct text errors = {0};
	struct json *shown, *document = run_where(&one_knob, "--speculation ngram", "lost", &errors, &shown);
	const struct json *launches = json_get(shown, "launches");
	expect_judged(document);
	for (size_t i = 0; i < json_count(launches); i++) {
		const struct json *launch = json_at(launches, i), *runs = json_get(launch, "runs");
		const struct json *last = json_at(runs, json_count(runs) - 1);
		bool is_baseline = json_int(json_get(launch, "arm"), -1) == 0;
		double watts = json_number(json_get(json_get(last, "conditions"), "gpu_watts"), NAN);
		assert_true(is_baseline || isnan(watts));
	}
	json_free(shown);
	json_free(document);
	text_release(&errors);
}

static void clocks_power_and_energy_are_kept_with_every_run(void **state)
{
	struct text errors = {0};
	struct json *shown, *document = run_where(&one_knob, "no such argument", "nothing", &errors, &shown);
	const struct json *launches = json_get(shown, "launches");
	expect_judged(document);
	assert_int_equal(json_count(launches), 6);
	for (size_t i = 0; i < json_count(launches); i++) {
		const struct json *runs = json_get(json_at(launches, i), "runs");
		const struct json *run = json_at(runs, json_count(runs) - 1), *seen = json_get(run, "conditions");
		double seconds = json_number(json_get(run, "duration_ns"), NAN) / 1e9,
		       joules = json_number(json_get(seen, "joules"), NAN);
		double tokens = 4 * 12; /* requests of the default load, and their lengths */
		assert_true(json_number(json_get(seen, "gpu_mhz"), NAN) == 1980 &&
			json_number(json_get(seen, "gpu_celsius_max"), NAN) == 61);
		assert_true(json_number(json_get(seen, "gpu_watts"), NAN) == 300);
		/* 300 W for about as long as the run took; the samples begin a little before and end a little after it. */
		assert_true(joules >= 0.5 * 300 * seconds && joules < 300 * (seconds + 2));
		assert_true(fabs(json_number(json_get(run, "tokens_per_joule"), NAN) / (tokens / joules) - 1) < 0.01);
	}
	json_free(shown);
	json_free(document);
	text_release(&errors);
}

int main(int argc, char **argv)
{
	int code;
	if (support_role(argc, argv, &code))
		return code;
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_throttled_gpu_voids_the_runs_of_the_setting_it_befell),
		cmocka_unit_test(another_process_on_the_gpu_voids_the_runs_it_was_there),
		cmocka_unit_test(a_gpu_that_is_lost_to_its_library_is_unknown),
		cmocka_unit_test(clocks_power_and_energy_are_kept_with_every_run),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
