/* harness/series: recorded series, noise with a stated rate of false findings, and what must not matter. */
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
#include "base/random.h"
#include "harness/series.h"

#define FIELD "tests/golden/field/"
#define FINDINGS_MAX 8

static const struct series_limits usual = {.min_effect_pct = 2, .drift_pct = 5};

/* The values under a key of a recorded file; returns their number. */
static size_t read_values(const char *file, const char *key, double *values, size_t max)
{
	struct text path = {0}, text = {0};
	struct json *document = NULL;
	text_printf(&path, FIELD "%s", file);
	assert_int_equal(file_read(text_str(&path), 1 << 20, &text, NULL), STATUS_OK);
	assert_int_equal(json_parse(text_str(&text), text.len, file, &document, NULL), STATUS_OK);
	const struct json *list = json_get(document, key);
	size_t n = json_count(list);
	assert_true(n > 0 && n <= max);
	for (size_t i = 0; i < n; i++)
		values[i] = json_number(json_at(list, i), NAN);
	json_free(document);
	text_release(&path);
	text_release(&text);
	return n;
}

static void thirty_nights_of_noise_raise_nothing(void **state)
{
	double values[40];
	struct series_finding found[FINDINGS_MAX];
	size_t n = read_values("r08_nightly.json", "flat", values, 40);
	assert_int_equal(series_scan(values, n, &usual, found, FINDINGS_MAX), 0);
}

static void a_step_is_found_within_three_nights_and_told_once(void **state)
{
	double values[40];
	struct series_finding found[FINDINGS_MAX];
	size_t n = read_values("r08_nightly.json", "step", values, 40);
	assert_int_equal(series_scan(values, n, &usual, found, FINDINGS_MAX), 1);
	assert_int_equal(found[0].kind, SERIES_STEP);
	assert_int_equal(found[0].since, 20);
	assert_true(found[0].seen > found[0].since && found[0].seen <= 22);
	assert_true(found[0].effect_pct > -14 && found[0].effect_pct < -10);
}

static void small_losses_that_add_up_are_found_where_their_sum_passes_the_limit(void **state)
{
	double values[8];
	struct series_finding found[FINDINGS_MAX];
	size_t n = read_values("r10_creeping.json", "tok_s", values, 8);
	assert_int_equal(series_scan(values, n, &usual, found, FINDINGS_MAX), 1);
	assert_int_equal(found[0].kind, SERIES_DRIFT);
	assert_true(values[found[0].since] == 94.1);
	assert_true(fabs(found[0].effect_pct + 5.9) < 1e-9);
}

static void a_step_needs_no_noise_to_be_found(void **state)
{
	double values[32];
	struct series_finding found[FINDINGS_MAX];
	size_t n = read_values("r15_same_series_two_x.json", "y", values, 32);
	assert_int_equal(series_scan(values, n, &usual, found, FINDINGS_MAX), 1);
	assert_int_equal(found[0].since, 10);
	assert_true(fabs(found[0].effect_pct + 10) < 1e-9);
}

static void gains_are_found_like_losses(void **state)
{
	static const double values[] = {100, 101, 99, 100, 101, 99, 100, 110, 111, 109, 110};
	struct series_finding found[FINDINGS_MAX];
	assert_int_equal(series_scan(values, 11, &usual, found, FINDINGS_MAX), 1);
	assert_int_equal(found[0].since, 7);
	assert_true(found[0].effect_pct > 9 && found[0].effect_pct < 12);
}

static void one_value_apart_is_no_finding(void **state)
{
	static const double values[] = {100, 101, 99, 100, 101, 99, 100, 80, 100, 99, 101, 100};
	struct series_finding found[FINDINGS_MAX];
	assert_int_equal(series_scan(values, 12, &usual, found, FINDINGS_MAX), 0);
}

static void a_change_below_the_minimum_effect_is_none(void **state)
{
	double values[24];
	struct series_finding found[FINDINGS_MAX];
	for (size_t i = 0; i < 24; i++)
		values[i] = (i < 12 ? 100 : 98.5) + 0.01 * (double)(i * 7 % 5);
	assert_int_equal(series_scan(values, 24, &usual, found, FINDINGS_MAX), 0);
}

static void short_series_have_no_findings(void **state)
{
	static const double values[] = {100, 50, 50, 50};
	struct series_finding found[FINDINGS_MAX];
	for (size_t n = 0; n < 3; n++)
		assert_int_equal(series_scan(values, n, &usual, found, FINDINGS_MAX), 0);
	assert_int_equal(series_scan(values, 4, &usual, NULL, 0), series_scan(values, 4, &usual, found, FINDINGS_MAX));
}

#define SERIES 2000
#define NIGHTS 30

/* The rate that series.h states, and that of finding a loss of 12 % in three nights. */
static void rates_are_those_stated(void **state)
{
	struct series_finding found[FINDINGS_MAX];
	int false_findings = 0, steps_found = 0;
	for (int s = 0; s < SERIES; s++) {
		double values[NIGHTS];
		for (size_t i = 0; i < NIGHTS; i++)
			values[i] = 100 * exp(0.03 * random_normal(11, (uint64_t)s, i));
		false_findings += series_scan(values, NIGHTS, &usual, found, FINDINGS_MAX) > 0;
		for (size_t i = 20; i < NIGHTS; i++)
			values[i] *= 0.88;
		size_t n = series_scan(values, 23, &usual, found, FINDINGS_MAX);
		bool in_time = false;
		for (size_t i = 0; i < n && i < FINDINGS_MAX; i++)
			in_time = in_time || (found[i].since >= 20 && found[i].effect_pct < 0);
		steps_found += in_time;
	}
	print_message("of %d series of noise %.1f %% have a finding; steps found in three nights: %.1f %%\n", SERIES,
		100.0 * false_findings / SERIES, 100.0 * steps_found / SERIES);
	assert_true(false_findings <= SERIES * 4 / 100);
	assert_true(steps_found >= SERIES * 80 / 100);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(thirty_nights_of_noise_raise_nothing),
		cmocka_unit_test(a_step_is_found_within_three_nights_and_told_once),
		cmocka_unit_test(small_losses_that_add_up_are_found_where_their_sum_passes_the_limit),
		cmocka_unit_test(a_step_needs_no_noise_to_be_found),
		cmocka_unit_test(gains_are_found_like_losses),
		cmocka_unit_test(one_value_apart_is_no_finding),
		cmocka_unit_test(a_change_below_the_minimum_effect_is_none),
		cmocka_unit_test(short_series_have_no_findings),
		cmocka_unit_test(rates_are_those_stated),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
