/* Tests of engine/sampler: against transformers' warpers, then ties, broken rows, noise and cost. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/random.h"
#include "engine/sampler.h"

#define VOCAB_MAX 512

static struct sampling greedy(void)
{
	return (struct sampling){.temperature = 0, .top_p = 1, .logprobs = -1, .max_tokens = 1};
}

static struct sampling at_temperature(double temperature)
{
	struct sampling sampling = greedy();
	sampling.temperature = temperature;
	return sampling;
}

static int32_t sample(struct sampler *sampler, const float *logits, const struct sampling *sampling, int64_t position)
{
	struct engine_token token;
	struct err err = {0};
	if (sampler_sample(sampler, logits, sampling, position, &token, &err))
		fail_msg("%s", err.text);
	return token.id;
}

static struct json *read_cases(void)
{
	struct text text = {0};
	struct json *root = NULL;
	struct err err = {0};
	if (file_read("tests/golden/sampler/cases.json", 1 << 20, &text, &err) ||
		json_parse(text.data, text.len, "cases.json", &root, &err))
		fail_msg("%s", err.text);
	text_release(&text);
	return root;
}

static struct sampling settings_of(const struct json *settings)
{
	struct sampling sampling = at_temperature(json_number(json_get(settings, "temperature"), 0));
	sampling.top_k = (int)json_number(json_get(settings, "top_k"), 0);
	sampling.top_p = json_number(json_get(settings, "top_p"), 1);
	sampling.min_p = json_number(json_get(settings, "min_p"), 0);
	return sampling;
}

/* The value that chi-square with so many degrees of freedom passes once in a million (Wilson and Hilferty 1931). */
static double chi_square_limit(int degrees)
{
	double variance = 2.0 / (9.0 * degrees);
	return degrees * pow(1 - variance + 4.7534 * sqrt(variance), 3);
}

/* Pearson's test of counts against probabilities. Ids of which fewer than 5 are expected are counted together. */
static void assert_drawn_from(const int32_t *counts, const double *probabilities, int n, int draws, const char *what)
{
	double sum = 0, rare_expected = 0, rare_count = 0;
	int degrees = -1;
	for (int i = 0; i < n; i++) {
		double expected = probabilities[i] * draws;
		if (probabilities[i] == 0 && counts[i] > 0)
			fail_msg("%s: %d was drawn %d times, though its probability is 0", what, i, counts[i]);
		if (expected < 5) {
			rare_expected += expected;
			rare_count += counts[i];
			continue;
		}
		sum += (counts[i] - expected) * (counts[i] - expected) / expected;
		degrees++;
	}
	if (rare_expected >= 5) {
		sum += (rare_count - rare_expected) * (rare_count - rare_expected) / rare_expected;
		degrees++;
	}
	if (degrees > 0 && sum > chi_square_limit(degrees))
		fail_msg("%s: chi-square %.1f with %d degrees of freedom, the limit is %.1f", what, sum, degrees,
			chi_square_limit(degrees));
}

static void check_case(const struct json *one, size_t number)
{
	enum { DRAWS = 20000 };
	float logits[VOCAB_MAX];
	double probabilities[VOCAB_MAX];
	int32_t counts[VOCAB_MAX] = {0}, vocab = (int32_t)json_count(json_get(one, "logits"));
	char what[32];
	for (int32_t id = 0; id < vocab; id++) {
		logits[id] = (float)json_number(json_at(json_get(one, "logits"), (size_t)id), NAN);
		probabilities[id] = json_number(json_at(json_get(one, "probabilities"), (size_t)id), NAN);
	}
	struct sampling sampling = settings_of(json_get(one, "settings"));
	sampling.seed = 7 + number;
	struct sampler *sampler = sampler_create(vocab);
	for (int64_t position = 0; position < DRAWS; position++)
		counts[sample(sampler, logits, &sampling, position)]++;
	snprintf(what, sizeof what, "case %zu", number);
	assert_drawn_from(counts, probabilities, vocab, DRAWS, what);
	sampler_destroy(sampler);
}

static void sampler_draws_what_transformers_warpers_leave(void **state)
{
	struct json *root = read_cases();
	assert_int_equal(json_count(json_get(root, "cases")), 15);
	for (size_t i = 0; i < 15; i++)
		check_case(json_at(json_get(root, "cases"), i), i);
	json_free(root);
}

static void sampler_reports_raw_logprobs_whatever_the_filters(void **state)
{
	struct json *root = read_cases();
	for (size_t i = 0; i < 15; i++) {
		struct json *one = json_at(json_get(root, "cases"), i), *expected = json_get(one, "raw_logprobs");
		float logits[64];
		for (size_t id = 0; id < 64; id++)
			logits[id] = (float)json_number(json_at(json_get(one, "logits"), id), NAN);
		struct sampling sampling = settings_of(json_get(one, "settings"));
		sampling.logprobs = (int)(i * 3 % 21);
		struct sampler *sampler = sampler_create(64);
		struct engine_token token;
		assert_int_equal(sampler_sample(sampler, logits, &sampling, 3, &token, NULL), STATUS_OK);
		assert_true(fabs((double)token.logprob - json_number(json_at(expected, (size_t)token.id), NAN)) < 2e-5);
		assert_int_equal(token.n_top, sampling.logprobs);
		for (int k = 0; k < token.n_top; k++) {
			double right = json_number(json_at(expected, (size_t)token.top_ids[k]), NAN);
			assert_true(fabs((double)token.top_logprobs[k] - right) < 2e-5);
			int above = 0;
			for (size_t id = 0; id < 64; id++)
				above += logits[id] > logits[token.top_ids[k]];
			assert_int_equal(above, k);
		}
		sampler_destroy(sampler);
	}
	json_free(root);
}

static void greedy_takes_the_lowest_id_of_equal_logits(void **state)
{
	float logits[8] = {0.5f, 2, -1, 2, 2, 1, -INFINITY, 0};
	struct sampler *sampler = sampler_create(8);
	struct sampling sampling = greedy();
	assert_int_equal(sample(sampler, logits, &sampling, 0), 1);
	sampling = at_temperature(1e-9); /* below the least temperature */
	assert_int_equal(sample(sampler, logits, &sampling, 0), 1);
	sampling = at_temperature(1);
	sampling.top_k = 1;
	for (int64_t position = 0; position < 50; position++)
		assert_int_equal(sample(sampler, logits, &sampling, position), 1);
	sampling.top_k = 2;
	for (int64_t position = 0; position < 50; position++)
		assert_in_set(sample(sampler, logits, &sampling, position), ((const LargestIntegralType[]){1, 3}), 2);
	sampler_destroy(sampler);
}

static void sampler_refuses_broken_rows(void **state)
{
	struct sampler *sampler = sampler_create(100);
	float logits[100];
	struct engine_token token;
	for (int mode = 0; mode < 2; mode++) {
		struct sampling sampling = at_temperature(mode);
		for (int place = 0; place < 100; place += 33) {
			const float broken[] = {NAN, -NAN, INFINITY};
			for (int kind = 0; kind < 3; kind++) {
				for (int id = 0; id < 100; id++)
					logits[id] = (float)(id % 7);
				logits[place] = broken[kind];
				struct err err = {0};
				assert_int_equal(sampler_sample(sampler, logits, &sampling, 0, &token, &err), STATUS_INTERNAL);
				assert_non_null(strstr(err.text, kind < 2 ? "NaN" : "infinity"));
			}
		}
		for (int id = 0; id < 100; id++)
			logits[id] = -INFINITY;
		assert_int_equal(sampler_sample(sampler, logits, &sampling, 0, &token, NULL), STATUS_INTERNAL);
		logits[42] = -1000;
		assert_int_equal(sample(sampler, logits, &sampling, 0), 42);
	}
	sampler_destroy(sampler);
}

static void sampler_survives_extreme_rows_and_settings(void **state)
{
	struct sampler *sampler = sampler_create(300);
	float rows[4][300];
	for (int id = 0; id < 300; id++) {
		rows[0][id] = 0; /* all equal */
		rows[1][id] = id == 250 ? 3e38f : -3e38f; /* differences beyond fp32 */
		rows[2][id] = id % 2 ? -INFINITY : (float)id * 1e-30f;
		rows[3][id] = 1e30f + (float)id * 1e24f;
	}
	const double temperatures[] = {2e-5, 1, 1e6}, shares[] = {0, 1e-12, 0.5, 0.999999999, 1};
	const int ranks[] = {0, 1, 2, 150, 299, 300, 100000};
	for (int i = 0; i < 4 * 3 * 5 * 5 * 7; i++) {
		struct sampling sampling = at_temperature(temperatures[i / 4 % 3]);
		sampling.top_p = shares[i / 12 % 5];
		sampling.min_p = shares[i / 60 % 5];
		sampling.top_k = ranks[i / 300 % 7];
		int32_t id = sample(sampler, rows[i % 4], &sampling, i);
		assert_in_range(id, 0, 299);
		assert_true(rows[i % 4][id] > -INFINITY);
		if (i % 4 == 1)
			assert_int_equal(id, 250);
	}
	sampler_destroy(sampler);
}

/* Temperature 1 is not "nothing to do": each seed gives its own text, and the same one each time. */
static void seeds_differ_and_repeat_at_temperature_1(void **state)
{
	float logits[64] = {0};
	int32_t texts[20][16];
	struct sampler *sampler = sampler_create(64), *other = sampler_create(64);
	for (int seed = 0; seed < 20; seed++) {
		struct sampling sampling = at_temperature(1);
		sampling.seed = (uint64_t)seed + 1;
		for (int position = 0; position < 16; position++)
			texts[seed][position] = sample(sampler, logits, &sampling, position);
		for (int position = 15; position >= 0; position--) /* order of calls and sampler do not matter */
			assert_int_equal(sample(other, logits, &sampling, position), texts[seed][position]);
		for (int before = 0; before < seed; before++)
			assert_memory_not_equal(texts[seed], texts[before], sizeof texts[0]);
	}
	sampler_destroy(sampler);
	sampler_destroy(other);
}

static void long_rows_are_drawn_in_proportion(void **state)
{
	enum { VOCAB = 450, DRAWS = 60000 };
	float logits[VOCAB];
	double probabilities[VOCAB], total = 0;
	int32_t counts[VOCAB] = {0};
	for (int32_t id = 0; id < VOCAB; id++) {
		logits[id] = (float)random_normal(3, 0, (uint64_t)id);
		total += exp((double)logits[id] / 0.8);
	}
	for (int32_t id = 0; id < VOCAB; id++)
		probabilities[id] = exp((double)logits[id] / 0.8) / total;
	struct sampler *sampler = sampler_create(VOCAB);
	struct sampling sampling = at_temperature(0.8);
	for (int64_t position = 0; position < DRAWS; position++)
		counts[sample(sampler, logits, &sampling, position)]++;
	assert_drawn_from(counts, probabilities, VOCAB, DRAWS, "450 ids");
	sampler_destroy(sampler);
}

/* The noise of a whole vocabulary: all parts of it come up alike, and so do all residues. */
static void ids_of_a_large_vocabulary_come_up_alike(void **state)
{
	enum { VOCAB = 49152, DRAWS = 4000, PARTS = 64 };
	float *logits = mem_calloc(VOCAB, sizeof *logits);
	int32_t by_place[PARTS] = {0}, by_residue[PARTS] = {0};
	double probabilities[PARTS];
	struct sampler *sampler = sampler_create(VOCAB);
	struct sampling sampling = at_temperature(1);
	for (int64_t position = 0; position < DRAWS; position++) {
		int32_t id = sample(sampler, logits, &sampling, position);
		by_place[id / (VOCAB / PARTS)]++;
		by_residue[id % PARTS]++;
	}
	for (int i = 0; i < PARTS; i++)
		probabilities[i] = 1.0 / PARTS;
	assert_drawn_from(by_place, probabilities, PARTS, DRAWS, "places");
	assert_drawn_from(by_residue, probabilities, PARTS, DRAWS, "residues");
	sampler_destroy(sampler);
	mem_free(logits);
}

/* Neither the draw before nor the same draw under the next seed tells anything about a draw. */
static void draws_at_neighbouring_positions_and_seeds_are_independent(void **state)
{
	enum { VOCAB = 16, DRAWS = 40000 };
	float logits[VOCAB] = {0};
	int32_t by_position[VOCAB * VOCAB] = {0}, by_seed[VOCAB * VOCAB] = {0};
	double probabilities[VOCAB * VOCAB];
	struct sampler *sampler = sampler_create(VOCAB);
	struct sampling first = at_temperature(1), second = at_temperature(1);
	first.seed = 41;
	second.seed = 42;
	for (int64_t position = 0; position < DRAWS; position += 2) {
		int32_t id = sample(sampler, logits, &first, position);
		by_position[id * VOCAB + sample(sampler, logits, &first, position + 1)]++;
		by_seed[id * VOCAB + sample(sampler, logits, &second, position)]++;
	}
	for (int i = 0; i < VOCAB * VOCAB; i++)
		probabilities[i] = 1.0 / (VOCAB * VOCAB);
	assert_drawn_from(by_position, probabilities, VOCAB * VOCAB, DRAWS / 2, "positions");
	assert_drawn_from(by_seed, probabilities, VOCAB * VOCAB, DRAWS / 2, "seeds");
	sampler_destroy(sampler);
}

static void raising_a_logit_makes_that_token_win_or_none(void **state)
{
	enum { VOCAB = 300 };
	float logits[VOCAB];
	int won = 0;
	struct sampler *sampler = sampler_create(VOCAB);
	struct sampling sampling = at_temperature(1.3);
	for (uint64_t trial = 0; trial < 3000; trial++) {
		for (int32_t id = 0; id < VOCAB; id++)
			logits[id] = (float)random_normal(trial, 0, (uint64_t)id);
		int32_t before = sample(sampler, logits, &sampling, (int64_t)trial);
		int32_t raised = (int32_t)random_below(trial, 1, 0, VOCAB);
		logits[raised] += 5;
		int32_t after = sample(sampler, logits, &sampling, (int64_t)trial);
		assert_true(after == before || after == raised);
		won += after == raised;
	}
	assert_in_range(won, 300, 2700);
	sampler_destroy(sampler);
}

/* Errors like those of another order of sums: 0.004 in each logit may change a draw at a near tie only, 1 in 100 or fewer. */
static void small_errors_in_logits_seldom_change_a_draw(void **state)
{
	enum { VOCAB = 2000, DRAWS = 2000 };
	float logits[VOCAB], others[VOCAB];
	int changed = 0;
	struct sampler *sampler = sampler_create(VOCAB);
	struct sampling sampling = at_temperature(1);
	for (int32_t id = 0; id < VOCAB; id++) {
		logits[id] = (float)random_normal(9, 0, (uint64_t)id);
		others[id] = logits[id] + 0.004f * (float)random_normal(9, 1, (uint64_t)id);
	}
	for (int64_t position = 0; position < DRAWS; position++) {
		int32_t one = sample(sampler, logits, &sampling, position), other = sample(sampler, others, &sampling, position);
		if (one == other)
			continue;
		changed++;
		float own = logits[other];
		logits[other] += 0.04f;
		assert_int_equal(sample(sampler, logits, &sampling, position), other);
		logits[other] = own;
	}
	assert_in_range(changed, 1, DRAWS / 100);
	sampler_destroy(sampler);
}

/* Large k and p on a large row against a plain sort: the cut falls where the order says. */
static void filters_cut_where_a_full_sort_would(void **state)
{
	enum { VOCAB = 512 };
	float logits[VOCAB];
	struct sampler *sampler = sampler_create(VOCAB);
	for (uint64_t trial = 0; trial < 200; trial++) {
		for (int32_t id = 0; id < VOCAB; id++) /* few values: many ties */
			logits[id] = (float)random_below(trial, 0, (uint64_t)id, 40) * 0.125f;
		struct sampling sampling = at_temperature(1e6); /* flat: every kept token comes up */
		sampling.top_k = 1 + (int)random_below(trial, 1, 0, VOCAB - 1);
		bool seen[VOCAB] = {0};
		for (int64_t position = 0; position < 300; position++)
			seen[sample(sampler, logits, &sampling, position)] = true;
		for (int32_t id = 0; id < VOCAB; id++) {
			int before = 0;
			for (int32_t other = 0; other < VOCAB; other++)
				before += logits[other] > logits[id] || (logits[other] == logits[id] && other < id);
			if (seen[id])
				assert_true(before < sampling.top_k);
		}
	}
	sampler_destroy(sampler);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(sampler_draws_what_transformers_warpers_leave),
		cmocka_unit_test(sampler_reports_raw_logprobs_whatever_the_filters),
		cmocka_unit_test(greedy_takes_the_lowest_id_of_equal_logits),
		cmocka_unit_test(sampler_refuses_broken_rows),
		cmocka_unit_test(sampler_survives_extreme_rows_and_settings),
		cmocka_unit_test(seeds_differ_and_repeat_at_temperature_1),
		cmocka_unit_test(long_rows_are_drawn_in_proportion),
		cmocka_unit_test(ids_of_a_large_vocabulary_come_up_alike),
		cmocka_unit_test(draws_at_neighbouring_positions_and_seeds_are_independent),
		cmocka_unit_test(raising_a_logit_makes_that_token_win_or_none),
		cmocka_unit_test(small_errors_in_logits_seldom_change_a_draw),
		cmocka_unit_test(filters_cut_where_a_full_sort_would),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
