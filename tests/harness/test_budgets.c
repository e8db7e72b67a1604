/* Whole runs that end because a budget of launches or seconds is spent: where they end, what they keep room for, what they say. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include "tests/support/roles.h"
#include "tests/support/run_bed.h"

static const struct stub_experiment one_candidate = {.stub = run_bed_telling_stub,
	.baseline = "{\"speculation\": \"off\"}",
	.matrix = "{\"factors\": {\"speculation\": [\"off\", \"ngram\"]}, \"aa_twin\": false}",
	.guards = "{\"greedy_fingerprint\": {\"prompts\": 0}}",
	.workloads = RUN_BED_SHORT_LOAD,
	.verdict = "{\"primary\": {\"metric\": \"accept_frac\"}, \"confirm_winner_blocks\": 3}"};

/* Runs it to its good end; returns the launches there are then. */
static int run(const struct run_bed *bed, const char *extra, struct json **document, struct text *errors)
{
	struct text launches = {0};
	run_bed_run_well(bed, extra, document, errors);
	run_bed_list_launches(bed, &launches);
	int count = run_bed_count_of(&launches, " ");
	text_release(&launches);
	return count;
}

/* Two launches a block, and nine kept for baseline, twin and winner in three blocks: of 15, that leaves three blocks. */
static void a_budget_of_launches_keeps_room_for_the_confirmation(void **state)
{
	struct run_bed bed;
	struct json *document = NULL;
	struct text errors = {0};
	struct stub_experiment options = one_candidate;
	options.protocol = "{\"blocks\": 8, \"max_blocks\": 8, \"runs_per_launch\": 1, \"screening\": false, "
			   "\"budget_launches\": 15, \"warmup\": {\"requests_per_slot\": 0}}";
	run_bed_open(&bed, &options);
	assert_int_equal(run(&bed, NULL, &document, &errors), 3 * 2 + 3 * 2);
	assert_non_null(strstr(text_str(&errors), "the budget of 15 launches allows no block after block 3"));
	run_bed_expect(document, "speculation", "ngram", "helped", "confirmed with fresh launches in 3 blocks");
	json_free(document);
	text_release(&errors);
	run_bed_close(&bed);
}

/* Eight blocks, for which so many seconds are far too few. */
static void open_with_seconds(struct run_bed *bed, const char *seconds)
{
	struct stub_experiment options = one_candidate;
	char protocol[160];
	snprintf(protocol, sizeof protocol,
		"{\"blocks\": 8, \"max_blocks\": 8, \"runs_per_launch\": 1, \"budget_s\": %s, "
		"\"warmup\": {\"requests_per_slot\": 0}}",
		seconds);
	options.protocol = protocol;
	run_bed_open(bed, &options);
}

static void a_time_budget_ends_the_run_after_the_block_that_spent_it(void **state)
{
	struct run_bed bed;
	struct json *document = NULL;
	struct text errors = {0};
	open_with_seconds(&bed, "0.001");
	assert_int_equal(run(&bed, NULL, &document, &errors), 2);
	assert_non_null(strstr(text_str(&errors), "the time budget of 0.001 s is spent after block 1"));
	run_bed_expect(document, "speculation", "ngram", "neutral", NULL);
	assert_true(text_starts_with(json_text(json_get(run_bed_row(document, "speculation", NULL), "reason")), "inconclusive: "));
	json_free(document);
	text_release(&errors);
	run_bed_close(&bed);
}

/* The seconds are the experiment's: those of an earlier process are spent when it is resumed, and a block takes far more than
 * these. */
static void a_time_budget_does_not_begin_anew_with_resume(void **state)
{
	struct run_bed bed;
	struct json *document = NULL;
	struct text errors = {0};
	open_with_seconds(&bed, "0.1");
	assert_int_equal(run(&bed, NULL, &document, &errors), 2);
	json_free(document);
	assert_int_equal(run(&bed, "--resume", &document, &errors), 2);
	json_free(document);
	text_release(&errors);
	run_bed_close(&bed);
}

/* Stage one takes nine launches; a stage two of one block would leave less than the nine that the end needs. */
static void a_greedy_search_begins_no_stage_that_its_end_could_not_afford(void **state)
{
	struct run_bed bed;
	struct json *document = NULL;
	struct text errors = {0};
	struct stub_experiment options = one_candidate;
	options.baseline = "{\"speculation\": \"off\", \"allreduce\": \"shm-flag\"}";
	options.matrix = "{\"mode\": \"greedy\", \"factors\": {\"speculation\": [\"off\", \"ngram\"], \"allreduce\": "
			 "[\"shm-flag\", \"ref-socket\"]}, \"aa_twin\": false}";
	options.protocol = "{\"blocks\": 3, \"runs_per_launch\": 1, \"screening\": false, \"budget_launches\": 20, "
			   "\"warmup\": {\"requests_per_slot\": 0}}";
	run_bed_open(&bed, &options);
	run_bed_run_well(&bed, NULL, &document, &errors);
	assert_non_null(strstr(text_str(&errors), "the budget allows no stage after stage 1"));
	assert_null(strstr(text_str(&errors), "stage 2"));
	assert_string_equal(json_text(json_get(document, "name")), "stub, final");
	run_bed_expect(document, "speculation", "ngram", "helped", NULL);
	json_free(document);
	text_release(&errors);
	run_bed_close(&bed);
}

int main(int argc, char **argv)
{
	int code;
	if (support_role(argc, argv, &code))
		return code;
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_budget_of_launches_keeps_room_for_the_confirmation),
		cmocka_unit_test(a_time_budget_ends_the_run_after_the_block_that_spent_it),
		cmocka_unit_test(a_time_budget_does_not_begin_anew_with_resume),
		cmocka_unit_test(a_greedy_search_begins_no_stage_that_its_end_could_not_afford),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
