/* harness/stats and harness/compare against scipy, numpy and statsmodels (tests/golden/stats). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "harness/compare.h"
#include "harness/stats.h"

static struct json *golden;

static int open_golden(void **state)
{
	struct text text = {0};
	struct err err = {0};
	if (file_read("tests/golden/stats/stats.json", 1 << 20, &text, &err) ||
		json_parse(text_str(&text), text.len, "stats.json", &golden, &err)) {
		fprintf(stderr, "%s\n", err.text);
		return -1;
	}
	text_release(&text);
	return 0;
}

static int close_golden(void **state)
{
	json_free(golden);
	return 0;
}

static double at(const struct json *array, size_t index)
{
	return json_number(json_at(array, index), NAN);
}

/* Fails unless got is within a relative error of want (absolute below 1e-300). */
static void assert_close(double got, double want, double relative, const char *what)
{
	if (fabs(got - want) <= relative * fabs(want) || got == want || fabs(got - want) < 1e-300)
		return;
	fail_msg("%s: got %.17g, want %.17g (relative error %.2g)", what, got, want, fabs(got - want) / fabs(want));
}

/* Calls f on every row of a golden table: the last column is the answer. */
static void check_table(const char *name, double (*f)(const struct json *row), double relative)
{
	const struct json *table = json_get(golden, name);
	assert_true(json_count(table) > 0);
	for (size_t i = 0; i < json_count(table); i++) {
		const struct json *row = json_at(table, i);
		char what[96];
		snprintf(what, sizeof what, "%s row %zu", name, i);
		assert_close(f(row), at(row, json_count(row) - 1), relative, what);
	}
}

static double normal_cdf(const struct json *row)
{
	return stats_normal_cdf(at(row, 0));
}
static double normal_quantile(const struct json *row)
{
	return stats_normal_quantile(at(row, 0));
}
static double student_cdf(const struct json *row)
{
	return stats_student_cdf(at(row, 0), at(row, 1));
}
static double student_p(const struct json *row)
{
	return stats_student_two_sided_p(at(row, 0), at(row, 1));
}
static double student_quantile(const struct json *row)
{
	return stats_student_quantile(at(row, 0), at(row, 1));
}
static double beta(const struct json *row)
{
	return stats_incomplete_beta(at(row, 0), at(row, 1), at(row, 2));
}
static double pocock(const struct json *row)
{
	return stats_pocock_level(at(row, 0), (int)at(row, 1));
}

static void distributions_equal_scipy(void **state)
{
	check_table("normal_cdf", normal_cdf, 1e-12);
	check_table("normal_quantile", normal_quantile, 1e-12);
	check_table("student_cdf", student_cdf, 1e-10);
	check_table("student_two_sided_p", student_p, 1e-10);
	check_table("student_quantile", student_quantile, 1e-9);
	check_table("incomplete_beta", beta, 1e-11);
}

static void distributions_answer_nan_outside_their_domain(void **state)
{
	assert_true(isnan(stats_normal_quantile(-0.1)) && isnan(stats_normal_quantile(1.1)) && isnan(stats_normal_quantile(NAN)));
	assert_true(isinf(stats_normal_quantile(0)) && isinf(stats_normal_quantile(1)));
	assert_true(isnan(stats_student_two_sided_p(1, 0)) && isnan(stats_student_two_sided_p(NAN, 3)));
	assert_true(isnan(stats_student_quantile(0.5, -1)) && isnan(stats_student_quantile(2, 3)));
	assert_true(stats_student_two_sided_p(INFINITY, 3) == 0);
	assert_true(isnan(stats_incomplete_beta(0, 1, 0.5)) && isnan(stats_incomplete_beta(1, 1, 1.5)));
	assert_true(isnan(stats_pocock_level(0.05, 0)) && isnan(stats_pocock_level(0.05, 9)) && isnan(stats_pocock_level(0, 2)));
	assert_true(isnan(stats_needed_blocks(NAN, 0.02, 0.05, 2, 3)) && isnan(stats_needed_blocks(0.01, 0, 0.05, 2, 3)));
}

static void quantiles_interpolate_as_numpy(void **state)
{
	const struct json *values = json_get(golden, "quantile_values"), *table = json_get(golden, "quantile");
	double v[64];
	size_t n = json_count(values);
	for (size_t i = 0; i < n; i++)
		v[i] = at(values, i);
	for (size_t i = 0; i < json_count(table); i++)
		assert_close(stats_quantile(v, n, at(json_at(table, i), 0)), at(json_at(table, i), 1), 1e-12, "quantile");
	assert_close(v[0], at(values, 0), 0, "the values keep their order");
	assert_true(isnan(stats_quantile(v, 0, 0.5)) && isnan(stats_quantile(v, n, 1.1)));
}

static void holm_equals_statsmodels(void **state)
{
	const struct json *cases = json_get(golden, "holm");
	for (size_t i = 0; i < json_count(cases); i++) {
		const struct json *p = json_at(json_at(cases, i), 0), *want = json_at(json_at(cases, i), 1);
		double values[16];
		size_t n = json_count(p);
		for (size_t k = 0; k < n; k++)
			values[k] = at(p, k);
		stats_holm(values, n, n, values);
		for (size_t k = 0; k < n; k++)
			assert_close(values[k], at(want, k), 1e-14, "holm");
	}
}

static void holm_counts_the_hypotheses_that_were_never_tested(void **state)
{
	double p[] = {0.01, NAN, 0.02}, adjusted[3];
	stats_holm(p, 3, 5, adjusted);
	assert_close(adjusted[0], 0.05, 1e-14, "first of five");
	assert_true(isnan(adjusted[1]));
	assert_close(adjusted[2], 0.08, 1e-14, "second of five");
}

static void pocock_levels_equal_the_published_ones(void **state)
{
	check_table("pocock", pocock, 1e-4);
	const struct json *published = json_get(golden, "pocock_published"); /* bounds with three decimals */
	for (size_t i = 0; i < json_count(published); i++) {
		double level = stats_pocock_level(at(json_at(published, i), 0), (int)at(json_at(published, i), 1));
		assert_true(fabs(stats_normal_quantile(1 - level / 2) - at(json_at(published, i), 2)) < 0.00051);
	}
	assert_true(stats_pocock_level(0.05, 1) == 0.05);
}

static size_t read_cells(const struct json *list, struct stats_cell *cells)
{
	for (size_t i = 0; i < json_count(list); i++) {
		const struct json *cell = json_at(list, i);
		cells[i] = (struct stats_cell){(int)at(cell, 0), (int)at(cell, 1), at(cell, 2)};
	}
	return json_count(list);
}

static void two_way_layouts_equal_least_squares(void **state)
{
	const struct json *layouts = json_get(golden, "layouts");
	for (size_t i = 0; i < json_count(layouts); i++) {
		const struct json *want = json_at(layouts, i);
		struct stats_cell cells[128];
		struct stats_two_way fit;
		size_t n = read_cells(json_get(want, "cells"), cells);
		int arms = (int)json_int(json_get(want, "n_arms"), 0), blocks = (int)json_int(json_get(want, "n_blocks"), 0);
		assert_int_equal(stats_two_way_fit(cells, n, arms, blocks, &fit, NULL), STATUS_OK);
		assert_close(fit.df, json_number(json_get(want, "df"), NAN), 0, "df");
		assert_close(fit.residual_variance, json_number(json_get(want, "residual_variance"), NAN), 1e-8, "variance");
		for (int arm = 1; arm < arms; arm++) {
			double error = sqrt(fit.residual_variance * fit.variance[arm]);
			assert_close(fit.effect[arm], at(json_get(want, "effect"), (size_t)arm), 1e-8, "effect");
			assert_close(error, at(json_get(want, "std_error"), (size_t)arm), 1e-8, "standard error");
			assert_close(stats_student_two_sided_p(fit.effect[arm] / error, fit.df),
				at(json_get(want, "p"), (size_t)arm), 1e-6, "p");
		}
		stats_two_way_release(&fit);
	}
}

static void paired_differences_equal_scipy(void **state)
{
	const struct json *want = json_get(golden, "paired");
	struct stats_cell cells[64];
	double mean, sd;
	size_t n = read_cells(json_get(want, "cells"), cells);
	assert_int_equal(stats_paired(cells, n, 1, 6, &mean, &sd), 6);
	assert_close(mean, json_number(json_get(want, "mean"), NAN), 1e-9, "mean");
	assert_close(sd, json_number(json_get(want, "sd"), NAN), 1e-9, "sd");
	assert_close(stats_student_two_sided_p(mean / (sd / sqrt(6)), 5), json_number(json_get(want, "p"), NAN), 1e-8, "p");
}

static void welch_equals_scipy(void **state)
{
	/* scipy.stats.ttest_ind(b, a, equal_var=False), scipy 1.16 */
	static const double a[] = {4.61, 4.58, 4.63, 4.60}, b[] = {4.70, 4.66, 4.75};
	struct stats_difference got = stats_welch(a, 4, b, 3);
	assert_close(got.difference, 0.09833333333333272, 1e-9, "difference");
	assert_close(got.std_error, 0.028037673068767827, 1e-9, "standard error");
	assert_close(got.df, 2.645383980181669, 1e-9, "df");
	assert_close(got.p, 0.04779005326058454, 1e-9, "p");
	assert_true(isnan(stats_welch(a, 1, b, 3).p) && isnan(stats_welch(a, 4, b, 0).difference));
}

static void a_first_run_that_was_not_warm_is_an_outlier(void **state)
{
	static const double field[] = {8026.1, 42899.4, 42934.0, 42990.2, 42911.7}; /* r13_first_run_outlier */
	static const double noise[] = {100, 101.5, 99.2, 100.4, 98.8, 101}, same[] = {100, 100, 100, 100, 100.5};
	bool is_outlier[6];
	assert_int_equal(stats_outliers(field, 5, is_outlier), 1);
	assert_true(is_outlier[0] && !is_outlier[1]);
	assert_int_equal(stats_outliers(noise, 6, is_outlier), 0);
	assert_int_equal(stats_outliers(same, 5, is_outlier), 0); /* small, however exact the others are */
	assert_int_equal(stats_outliers(field, 3, is_outlier), 0); /* too few to say which is which */
}

static void arms_without_a_common_block_have_no_effect(void **state)
{
	const struct stats_cell cells[] = {{0, 0, 1}, {1, 0, 1.1}, {0, 1, 1.02}, {1, 1, 1.13}, {2, 2, 3}, {3, 2, 4}};
	struct stats_two_way fit;
	assert_int_equal(stats_two_way_fit(cells, 6, 4, 3, &fit, NULL), STATUS_OK);
	assert_close(fit.effect[1], 0.105, 1e-12, "connected");
	assert_true(isnan(fit.effect[2]) && isnan(fit.effect[3]) && isnan(fit.residual[4]));
	assert_close(fit.df, 1, 0, "df of the connected part");
	stats_two_way_release(&fit);
}

static void one_block_has_no_variance(void **state)
{
	const struct stats_cell cells[] = {{0, 0, 1}, {1, 0, 1.1}};
	struct stats_two_way fit;
	assert_int_equal(stats_two_way_fit(cells, 2, 2, 1, &fit, NULL), STATUS_OK);
	assert_true(fit.df == 0 && isnan(fit.residual_variance));
	assert_close(fit.effect[1], 0.1, 1e-12, "effect");
	stats_two_way_release(&fit);
}

static void cells_out_of_range_are_refused(void **state)
{
	const struct stats_cell bad[] = {{2, 0, 1}, {0, -1, 1}, {0, 0, NAN}, {-1, 0, 0}, {0, 1, INFINITY}};
	for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
		struct stats_two_way fit;
		struct err err = {0};
		assert_int_equal(stats_two_way_fit(&bad[i], 1, 2, 2, &fit, &err), STATUS_INTERNAL);
		stats_two_way_release(&fit);
	}
}

static void needed_blocks_follow_the_formula(void **state)
{
	/* t(0.975, 10) = 2.2281; 2 (2.2281 × 0.03 / 0.02)² = 22.3, so 23 in all. */
	assert_close(stats_needed_blocks(0.03, 0.02, 0.05, 10, 3), 20, 0, "further blocks");
	assert_close(stats_needed_blocks(0.001, 0.02, 0.05, 10, 3), 1, 0, "at least one");
}

/* Five quiet arms over four blocks, and one whose launches jump by ±10 %. */
static void a_noisy_arm_leaves_the_pool_and_is_judged_by_its_own_pairs(void **state)
{
	static const double wobble[4] = {0.0011, -0.0007, 0.0003, -0.0009}, jump[4] = {0.1, -0.1, 0.09, -0.12};
	struct stats_cell cells[24];
	struct comparison out[6];
	size_t n = 0;
	for (int arm = 0; arm < 6; arm++)
		for (int block = 0; block < 4; block++)
			cells[n++] = (struct stats_cell){
				arm, block, arm == 5 ? 0.3 + jump[block] : wobble[(block + arm * 3) % 4] * (arm + 1)};
	assert_int_equal(compare_arms(cells, n, 6, 4, NAN, out, NULL), STATUS_OK);
	double mean, sd;
	stats_paired(cells, n, 5, 4, &mean, &sd);
	assert_true(out[5].paired);
	assert_close(out[5].effect, mean, 1e-12, "paired mean");
	assert_close(out[5].std_error, sd / 2, 1e-12, "paired error");
	assert_close(out[5].df, 3, 0, "paired df");
	assert_true(!out[1].paired && out[1].sd < 0.01);
	assert_close(out[1].df, 4 * 3, 0, "df of the five others");
}

static void equal_noise_stays_pooled(void **state)
{
	static const double wobble[5] = {0.01, -0.012, 0.008, -0.009, 0.004};
	struct stats_cell cells[20];
	struct comparison out[4];
	for (int i = 0; i < 20; i++)
		cells[i] = (struct stats_cell){i / 5, i % 5, wobble[(i * 7 + i / 5) % 5]};
	assert_int_equal(compare_arms(cells, 20, 4, 5, NAN, out, NULL), STATUS_OK);
	for (int arm = 1; arm < 4; arm++)
		assert_true(!out[arm].paired && out[arm].df == 12 && out[arm].blocks == 5);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(distributions_equal_scipy),
		cmocka_unit_test(distributions_answer_nan_outside_their_domain),
		cmocka_unit_test(quantiles_interpolate_as_numpy),
		cmocka_unit_test(holm_equals_statsmodels),
		cmocka_unit_test(holm_counts_the_hypotheses_that_were_never_tested),
		cmocka_unit_test(pocock_levels_equal_the_published_ones),
		cmocka_unit_test(two_way_layouts_equal_least_squares),
		cmocka_unit_test(paired_differences_equal_scipy),
		cmocka_unit_test(welch_equals_scipy),
		cmocka_unit_test(a_first_run_that_was_not_warm_is_an_outlier),
		cmocka_unit_test(arms_without_a_common_block_have_no_effect),
		cmocka_unit_test(one_block_has_no_variance),
		cmocka_unit_test(cells_out_of_range_are_refused),
		cmocka_unit_test(needed_blocks_follow_the_formula),
		cmocka_unit_test(a_noisy_arm_leaves_the_pool_and_is_judged_by_its_own_pairs),
		cmocka_unit_test(equal_noise_stays_pooled),
	};
	return cmocka_run_group_tests(tests, open_golden, close_golden);
}
