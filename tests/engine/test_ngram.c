/* Tests of engine/ngram, engine/drafter and engine/accept: what is guessed, what is kept, how much is tried. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>

#include "base/random.h"
#include "engine/accept.h"
#include "engine/drafter.h"

#define TOKENS_MAX 600

static struct drafter *make(int32_t ngram_min, int32_t ngram_max)
{
	struct drafter *drafter = NULL;
	struct err err = {0};
	const struct drafter_options options = {
		.slots_max = 2, .tokens_max = TOKENS_MAX, .ngram_min = ngram_min, .ngram_max = ngram_max};
	if (drafter_ngram_ops.create(&options, &drafter, &err))
		fail_msg("%s", err.text);
	return drafter;
}

static void ngram_continues_the_longest_then_latest_match(void **state)
{
	struct drafter *drafter = make(1, 3);
	int32_t out[8];
	/*                      longest match           later, shorter     end        */
	const int32_t text[] = {5, 1, 2, 3, 40, 41, 42, 9, 2, 3, 50, 51, 3, 60, 1, 2, 3};
	drafter_ngram_ops.begin(drafter, 0);
	assert_int_equal(drafter_ngram_ops.draft(drafter, 0, text, 17, 3, out), 3);
	assert_memory_equal(out, ((int32_t[]){40, 41, 42}), 12);
	drafter_ngram_ops.destroy(drafter);
	drafter = make(1, 2); /* now both occurrences of "2 3" are as long as allowed: the latest wins */
	drafter_ngram_ops.begin(drafter, 1);
	assert_int_equal(drafter_ngram_ops.draft(drafter, 1, text, 17, 2, out), 2);
	assert_memory_equal(out, ((int32_t[]){50, 51}), 8);
	drafter_ngram_ops.destroy(drafter);
}

static void ngram_goes_round_in_a_repetition(void **state)
{
	struct drafter *drafter = make(2, 4);
	const int32_t text[] = {9, 1, 2, 3, 1, 2, 3, 1, 2};
	int32_t out[8];
	drafter_ngram_ops.begin(drafter, 0);
	assert_int_equal(drafter_ngram_ops.draft(drafter, 0, text, 9, 8, out), 8);
	assert_memory_equal(out, ((int32_t[]){3, 1, 2, 3, 1, 2, 3, 1}), 32);
	drafter_ngram_ops.destroy(drafter);
}

static void ngram_has_no_idea_without_a_match(void **state)
{
	struct drafter *drafter = make(2, 4);
	const int32_t text[] = {1, 2, 3, 4, 5, 2};
	int32_t out[4];
	drafter_ngram_ops.begin(drafter, 0);
	for (int32_t count = 0; count <= 6; count++) /* "5 2" is new though 2 is not */
		assert_int_equal(drafter_ngram_ops.draft(drafter, 0, text, count, 4, out), 0);
	const int32_t more[] = {1, 2, 3, 4, 5, 2, 3};
	assert_int_equal(drafter_ngram_ops.draft(drafter, 0, more, 7, 0, out), 0);
	assert_int_equal(drafter_ngram_ops.draft(drafter, 0, more, 7, 4, out), 4);
	assert_memory_equal(out, ((int32_t[]){4, 5, 2, 3}), 16);
	drafter_ngram_ops.destroy(drafter);
}

static void ngram_forgets_the_sequence_before(void **state)
{
	struct drafter *drafter = make(1, 2);
	const int32_t old[] = {1, 2, 1, 2, 1}, young[] = {3, 4, 1};
	int32_t out[4];
	drafter_ngram_ops.begin(drafter, 0);
	drafter_ngram_ops.begin(drafter, 1);
	assert_int_equal(drafter_ngram_ops.draft(drafter, 0, old, 5, 2, out), 2);
	assert_int_equal(drafter_ngram_ops.draft(drafter, 1, young, 3, 2, out), 0);
	drafter_ngram_ops.begin(drafter, 0);
	assert_int_equal(drafter_ngram_ops.draft(drafter, 0, young, 3, 2, out), 0);
	drafter_ngram_ops.destroy(drafter);
}

/* The same search, quadratic and obvious. */
static int32_t draft_slowly(const int32_t *tokens, int32_t count, int32_t n_min, int32_t n_max, int32_t max, int32_t *out)
{
	for (int32_t n = n_max; n >= n_min; n--)
		for (int32_t end = count - 2; end >= n - 1 && n <= count; end--) {
			if (memcmp(tokens + end + 1 - n, tokens + count - n, (size_t)n * sizeof *tokens) != 0)
				continue;
			for (int32_t i = 0; i < max; i++)
				out[i] = end + 1 + i < count ? tokens[end + 1 + i] : out[end + 1 + i - count];
			return max;
		}
	return 0;
}

static void ngram_equals_a_full_search_while_a_text_grows(void **state)
{
	int32_t tokens[TOKENS_MAX], out[16], expected[16];
	for (uint64_t seed = 1; seed <= 40; seed++) {
		int32_t n_min = 1 + (int32_t)(seed % 3), n_max = n_min + (int32_t)(seed % 4),
			alphabet = 3 + (int32_t)(seed % 5) * 4;
		int32_t length = 240; /* fewer occurrences than are looked at */
		struct drafter *drafter = make(n_min, n_max);
		drafter_ngram_ops.begin(drafter, 0);
		for (int32_t count = 0; count < length;) {
			int32_t grow = 1 + (int32_t)random_below(seed, 0, (uint64_t)count, 4);
			for (int32_t i = 0; i < grow && count < length; i++, count++)
				tokens[count] = (int32_t)random_below(seed, 1, (uint64_t)count, (uint64_t)alphabet);
			int32_t max = 1 + (int32_t)random_below(seed, 2, (uint64_t)count, 16);
			int32_t right = draft_slowly(tokens, count, n_min, n_max, max, expected);
			assert_int_equal(drafter_ngram_ops.draft(drafter, 0, tokens, count, max, out), right);
			assert_memory_equal(out, expected, (size_t)right * sizeof *out);
		}
		drafter_ngram_ops.destroy(drafter);
	}
}

static void drafters_are_found_by_name_and_refuse_bad_lengths(void **state)
{
	const struct drafter_ops *ops;
	struct err err = {0};
	assert_int_equal(drafter_find("off", &ops, &err), STATUS_OK);
	assert_null(ops);
	assert_int_equal(drafter_find("ngram", &ops, &err), STATUS_OK);
	assert_ptr_equal(ops, &drafter_ngram_ops);
	assert_int_equal(drafter_find("eagle9", &ops, &err), STATUS_INPUT);
	assert_non_null(strstr(err.text, "ngram"));
	struct drafter *drafter;
	const struct drafter_options bad[] = {
		{.slots_max = 1, .tokens_max = 9, .ngram_min = 0, .ngram_max = 2},
		{.slots_max = 1, .tokens_max = 9, .ngram_min = 3, .ngram_max = 2},
	};
	for (int i = 0; i < 2; i++) {
		assert_int_equal(drafter_ngram_ops.create(&bad[i], &drafter, NULL), STATUS_INPUT);
		assert_null(drafter);
	}
}

/* --- Acceptance ------------------------------------------------------------------------------------------------------ */

struct chain {
	const int32_t *truth; /* what the sampler draws in row 0, 1, … */
	int32_t end_token, asked, fail_at;
};

static enum status sample_truth(void *ctx, int32_t row, int32_t *token, bool *last, struct err *err)
{
	struct chain *chain = ctx;
	assert_int_equal(row, chain->asked++);
	if (row == chain->fail_at)
		return err_set(err, STATUS_INTERNAL, "broken row");
	*token = chain->truth[row];
	*last = *token == chain->end_token;
	return STATUS_OK;
}

static void check_chain(const int32_t *drafts, int32_t n_drafts, int32_t n_tokens, int32_t n_accepted)
{
	static const int32_t truth[] = {10, 11, 12, 13, 14};
	struct chain chain = {.truth = truth, .end_token = 13, .fail_at = -1};
	struct accept_result result;
	assert_int_equal(accept_chain(drafts, n_drafts, sample_truth, &chain, &result, NULL), STATUS_OK);
	assert_int_equal(result.n_tokens, n_tokens);
	assert_int_equal(result.n_accepted, n_accepted);
	assert_int_equal(chain.asked, n_tokens); /* no row is sampled in vain */
}

static void a_chain_keeps_what_would_have_been_sampled(void **state)
{
	check_chain(NULL, 0, 1, 0);
	check_chain((int32_t[]){10, 11}, 2, 3, 2); /* all right: a bonus token */
	check_chain((int32_t[]){99, 11}, 2, 1, 0); /* right after wrong does not count */
	check_chain((int32_t[]){10, 99, 12}, 3, 2, 1); /* the correction is a token too */
	check_chain((int32_t[]){10, 11, 12, 13}, 4, 4, 4); /* the text ends with a draft: no bonus */
	check_chain((int32_t[]){10, 11, 12, 99}, 4, 4, 3);
}

static void a_chain_stops_at_a_broken_row(void **state)
{
	struct chain chain = {.truth = (int32_t[]){1, 2, 3}, .end_token = -1, .fail_at = 1};
	struct accept_result result;
	struct err err = {0};
	assert_int_equal(accept_chain((int32_t[]){1, 2}, 2, sample_truth, &chain, &result, &err), STATUS_INTERNAL);
	assert_int_equal(result.n_tokens, 1);
}

static void the_pace_follows_success_and_load(void **state)
{
	struct accept_pace pace;
	accept_pace_init(&pace, 8);
	assert_int_equal(accept_pace_next(&pace, 1), 3);
	accept_pace_record(&pace, 3, 3);
	assert_int_equal(accept_pace_next(&pace, 1), 6);
	accept_pace_record(&pace, 6, 6);
	assert_int_equal(accept_pace_next(&pace, 1), 8);
	assert_int_equal(accept_pace_next(&pace, ACCEPT_ROWS_MAX / 2), 2);
	assert_int_equal(accept_pace_next(&pace, ACCEPT_ROWS_MAX + 1), 0);
	accept_pace_record(&pace, 8, 2);
	assert_int_equal(accept_pace_next(&pace, 1), 3);
	accept_pace_record(&pace, 3, 3);
	assert_int_equal(accept_pace_next(&pace, 1), 6);
	accept_pace_record(&pace, 6, 6);
	assert_int_equal(accept_pace_next(&pace, 1), 8);
	int steps = 0, drafted = 0;
	for (; steps < 400; steps++) { /* a text that never repeats */
		int32_t n = accept_pace_next(&pace, 1);
		if (n > 0)
			accept_pace_record(&pace, n, 0);
		drafted += n;
	}
	assert_in_range(drafted, 8 + 4 + 2, 8 + 4 + 2 + 12);
	int32_t n = 0;
	while (n == 0 && steps++ < 600)
		n = accept_pace_next(&pace, 1);
	assert_int_equal(n, 1);
	accept_pace_record(&pace, 1, 1); /* one hit and it is awake */
	assert_int_equal(accept_pace_next(&pace, 1), 2);
}

static void counters_tell_positions_apart(void **state)
{
	struct accept_counters counters = {0};
	accept_count(&counters, 4, 2);
	accept_count(&counters, 3, 0);
	accept_count(&counters, 1, 1);
	assert_int_equal(counters.verify_steps, 3);
	assert_int_equal(counters.drafted, 8);
	assert_int_equal(counters.accepted, 3);
	assert_int_equal(counters.accepted_at[0], 2);
	assert_int_equal(counters.accepted_at[1], 1);
	assert_int_equal(counters.accepted_at[2], 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(ngram_continues_the_longest_then_latest_match),
		cmocka_unit_test(ngram_goes_round_in_a_repetition),
		cmocka_unit_test(ngram_has_no_idea_without_a_match),
		cmocka_unit_test(ngram_forgets_the_sequence_before),
		cmocka_unit_test(ngram_equals_a_full_search_while_a_text_grows),
		cmocka_unit_test(drafters_are_found_by_name_and_refuse_bad_lengths),
		cmocka_unit_test(a_chain_keeps_what_would_have_been_sampled),
		cmocka_unit_test(a_chain_stops_at_a_broken_row),
		cmocka_unit_test(the_pace_follows_success_and_load),
		cmocka_unit_test(counters_tell_positions_apart),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
