/* harness/schedule and harness/pacer: due times against scipy's distributions, and what counts as late. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "harness/pacer.h"
#include "harness/schedule.h"

#define SAMPLES 20000
#define S ((int64_t)1000000000)

static struct json *golden(void)
{
	struct text text = {0};
	struct json *document = NULL;
	assert_int_equal(file_read("tests/golden/schedule/gamma.json", 1 << 20, &text, NULL), STATUS_OK);
	assert_int_equal(json_parse(text_str(&text), text.len, "gamma.json", &document, NULL), STATUS_OK);
	text_release(&text);
	return document;
}

/* The share of samples below each quantile is a binomial mean: within five of its standard deviations. */
static void gaps_have_the_distribution_that_scipy_tells(void **state)
{
	struct json *document = golden();
	const struct json *probabilities = json_get(document, "probabilities"), *gammas = json_get(document, "gamma");
	assert_int_equal(json_count(gammas), 5);
	for (size_t g = 0; g < json_count(gammas); g++) {
		double shape = json_number(json_get(json_at(gammas, g), "shape"), NAN), sum = 0, squares = 0;
		const struct json *quantiles = json_get(json_at(gammas, g), "quantiles");
		int below[16] = {0};
		for (uint64_t i = 0; i < SAMPLES; i++) {
			double gap = schedule_gap(shape, 11, i);
			assert_true(gap >= 0 && isfinite(gap));
			sum += gap;
			squares += gap * gap;
			for (size_t q = 0; q < json_count(quantiles); q++)
				below[q] += gap < json_number(json_at(quantiles, q), NAN);
		}
		for (size_t q = 0; q < json_count(quantiles); q++) {
			double p = json_number(json_at(probabilities, q), NAN), share = (double)below[q] / SAMPLES;
			if (!(fabs(share - p) < 5 * sqrt(p * (1 - p) / SAMPLES)))
				fail_msg("shape %g: %g of the gaps are below the quantile of %g", shape, share, p);
		}
		double mean = sum / SAMPLES, variance = squares / SAMPLES - mean * mean;
		assert_true(fabs(mean - 1) < 5 / sqrt(shape * SAMPLES));
		assert_true(fabs(variance * shape - 1) < 0.25);
	}
	json_free(document);
}

static void ramps_are_the_inverse_of_the_integral_of_the_rate(void **state)
{
	struct json *document = golden();
	const struct json *ramps = json_get(document, "ramps");
	for (size_t r = 0; r < json_count(ramps); r++) {
		const struct json *ramp = json_at(ramps, r), *times = json_get(ramp, "times");
		struct schedule schedule = {.kind = SCHEDULE_CONSTANT,
			.rate = json_number(json_get(ramp, "from"), NAN),
			.rate_end = json_number(json_get(ramp, "to"), NAN)};
		int64_t due_ns[32];
		schedule_fill(&schedule, 1, json_count(times), due_ns);
		for (size_t i = 0; i < json_count(times); i++)
			assert_true(fabs((double)due_ns[i] / 1e9 - json_number(json_at(times, i), NAN)) < 1e-6);
		assert_true(
			fabs(schedule_seconds(&schedule, json_count(times)) - (double)due_ns[json_count(times) - 1] / 1e9) < 1e-6);
	}
	json_free(document);
}

static void the_same_seed_gives_the_same_times_and_another_others(void **state)
{
	struct schedule poisson = {.kind = SCHEDULE_GAMMA, .rate = 4, .rate_end = 4, .burstiness = 1};
	int64_t first[200], again[200], other[200];
	schedule_fill(&poisson, 7, 200, first);
	schedule_fill(&poisson, 7, 200, again);
	schedule_fill(&poisson, 8, 200, other);
	assert_memory_equal(first, again, sizeof first);
	assert_memory_not_equal(first, other, sizeof first);
	assert_int_equal(first[0], 0);
	for (size_t i = 1; i < 200; i++)
		assert_true(first[i] >= first[i - 1]);
	/* 199 gaps of a quarter of a second: their sum has a standard deviation of 7 %. */
	assert_true(fabs((double)first[199] / 1e9 - 199 / 4.0) < 5 * 0.07 * 199 / 4.0);
}

static void a_shorter_run_is_the_beginning_of_a_longer_one(void **state)
{
	struct schedule bursts = {.kind = SCHEDULE_GAMMA, .rate = 10, .rate_end = 10, .burstiness = 0.3};
	int64_t few[10], many[100];
	schedule_fill(&bursts, 3, 10, few);
	schedule_fill(&bursts, 3, 100, many);
	assert_memory_equal(few, many, sizeof few);
}

static void everything_is_due_at_once_at_an_infinite_rate(void **state)
{
	struct schedule all = {.kind = SCHEDULE_AT_ONCE};
	int64_t due_ns[5] = {1, 1, 1, 1, 1};
	schedule_fill(&all, 3, 5, due_ns);
	for (size_t i = 0; i < 5; i++)
		assert_int_equal(due_ns[i], 0);
	assert_true(schedule_seconds(&all, 5) == 0);
}

static void a_random_ramp_ends_and_goes_on_at_its_last_rate(void **state)
{
	struct schedule ramp = {.kind = SCHEDULE_GAMMA, .rate = 1, .rate_end = 50, .burstiness = 0.2};
	int64_t due_ns[300];
	schedule_fill(&ramp, 12, 300, due_ns);
	for (size_t i = 1; i < 300; i++)
		assert_true(due_ns[i] >= due_ns[i - 1]);
	assert_true((double)due_ns[299] / 1e9 < 3 * schedule_seconds(&ramp, 300));
}

static void a_closed_loop_never_waits_and_is_never_late(void **state)
{
	struct pacer pacer = {.begin_ns = 5 * S};
	assert_int_equal(pacer_due_ns(&pacer, 3), 0);
	assert_int_equal(pacer_wait_ns(&pacer, 3, 9 * S), 0);
	assert_int_equal(pacer_late_ns(&pacer, 3, 9 * S), 0);
}

static void a_request_is_late_from_the_time_at_which_it_could_be_sent(void **state)
{
	const int64_t due_ns[] = {0, S, 2 * S};
	struct pacer pacer = {.due_ns = due_ns, .begin_ns = 10 * S};
	assert_int_equal(pacer_due_ns(&pacer, 1), 11 * S);
	assert_int_equal(pacer_wait_ns(&pacer, 1, 10 * S), S);
	assert_int_equal(pacer_wait_ns(&pacer, 1, 12 * S), 0);
	assert_int_equal(pacer_late_ns(&pacer, 1, 11 * S + 7), 7);
	/* Every slot was busy until 13: before that it could not be sent, whenever it was due. */
	pacer_note_free(&pacer, 13 * S);
	assert_int_equal(pacer_late_ns(&pacer, 2, 13 * S + 5), 5);
	assert_int_equal(pacer_late_ns(&pacer, 2, 13 * S), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(gaps_have_the_distribution_that_scipy_tells),
		cmocka_unit_test(ramps_are_the_inverse_of_the_integral_of_the_rate),
		cmocka_unit_test(the_same_seed_gives_the_same_times_and_another_others),
		cmocka_unit_test(a_shorter_run_is_the_beginning_of_a_longer_one),
		cmocka_unit_test(everything_is_due_at_once_at_an_infinite_rate),
		cmocka_unit_test(a_random_ramp_ends_and_goes_on_at_its_last_rate),
		cmocka_unit_test(a_closed_loop_never_waits_and_is_never_late),
		cmocka_unit_test(a_request_is_late_from_the_time_at_which_it_could_be_sent),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
