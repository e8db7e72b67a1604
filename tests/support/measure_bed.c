/* One launch at a time. */
#include "tests/support/measure_bed.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>

extern char **environ;

void measure_bed_open(struct measure_bed *bed, const struct stub_experiment *options)
{
	struct text text = {0};
	struct err err = {0};
	struct experiment_overrides overrides = {0};
	*bed = (struct measure_bed){0};
	stub_experiment_text(options, &text);
	if (experiment_parse(text.data, text.len, "stub.json", &overrides, &bed->experiment, &err) != STATUS_OK)
		fail_msg("%s", err.text);
	text_release(&text);
	assert_int_equal(interrupt_open(&bed->interrupt, NULL), STATUS_OK);
	bed->measure = (struct measure){.experiment = bed->experiment,
		.runner = &runner_local,
		.probe = &probe_linux,
		.interrupt = &bed->interrupt,
		.environment = environ};
	assert_int_equal(client_create(&bed->measure.client, NULL), STATUS_OK);
}

void measure_bed_close(struct measure_bed *bed)
{
	client_destroy(bed->measure.client);
	interrupt_close(&bed->interrupt);
	experiment_release(bed->experiment);
}

void measure_bed_arm(const struct stub_experiment *options, int arm, struct launch_result *result)
{
	struct measure_bed bed;
	struct err err = {0};
	measure_bed_open(&bed, options);
	if (measure_launch(&bed.measure, arm, result, &err) != STATUS_OK)
		fail_msg("%s", err.text);
	assert_false(result->machine_dirty);
	measure_bed_close(&bed);
}

void measure_bed_expect(
	const struct stub_experiment *options, int arm, enum failure failure, const char *phase, const char *contains)
{
	struct launch_result result;
	measure_bed_arm(options, arm, &result);
	print_message("%s\n", result.reason);
	assert_string_equal(failure_name(result.failure), failure_name(failure));
	assert_string_equal(result.phase, phase);
	assert_true(text_starts_with(result.reason, failure_name(failure)));
	if (!strstr(result.reason, contains))
		fail_msg("'%s' does not hold '%s'", result.reason, contains);
	launch_result_release(&result);
}
