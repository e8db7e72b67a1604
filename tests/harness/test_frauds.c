/* Servers that look better than they are, machines that are not what they were, and what becomes of the verdict: each fraud is
 * planted in one arm of a whole run, and must end in the right class. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "tests/support/roles.h"
#include "tests/support/run_bed.h"

#define ONE_BLOCK \
	"{\"blocks\": 1, \"max_blocks\": 1, \"runs_per_launch\": 1, \"warmup\": {\"requests_per_slot\": 1}, \"stall_s\": 5, " \
	"\"run_timeout_s\": 20, \"retries\": {\"crash\": 0, \"client_error\": 0}}"
#define THREE_BLOCKS \
	"{\"blocks\": 3, \"max_blocks\": 3, \"runs_per_launch\": 1, \"warmup\": {\"requests_per_slot\": 1}, \"stall_s\": 5, " \
	"\"run_timeout_s\": 20}"

/* An honest baseline, and one candidate that commits the fraud. */
static void run_fraud(
	const char *fraud, const struct stub_experiment *more, struct json **document, struct text *errors, int expected_code)
{
	struct stub_experiment options = *more;
	struct run_bed space;
	char matrix[256];
	snprintf(matrix, sizeof(matrix), "{\"mode\": \"ofat\", \"factors\": {\"fraud\": [\"none\", \"%s\"]}, \"aa_twin\": false}",
		fraud);
	options.adapter = "command";
	options.baseline = "{\"fraud\": \"none\"}";
	options.matrix = matrix;
	options.protocol = options.protocol ? options.protocol : ONE_BLOCK;
	options.engine_extra = ", \"flags\": {\"fraud\": \"--fraud\"}";
	run_bed_open(&space, &options);
	int code = run_bed_run(&space, NULL, document, errors);
	if (code != expected_code)
		fail_msg("exit code %d, expected %d: %s", code, expected_code, text_str(errors));
	run_bed_close(&space);
}

/* The candidate's verdict is "failed", and its reason holds these words. */
static void expect_failed(const char *fraud, const struct stub_experiment *more, const char *reason)
{
	struct json *document = NULL;
	struct text errors = {0};
	run_fraud(fraud, more, &document, &errors, 0);
	run_bed_expect(document, "fraud", fraud, "failed", NULL);
	const char *got = json_text(json_get(run_bed_row(document, "fraud", fraud), "reason"));
	print_message("%s: %s\n", fraud, got);
	if (!got || !strstr(got, reason))
		fail_msg("'%s' does not hold '%s'", got ? got : "(no reason)", reason);
	json_free(document);
	text_release(&errors);
}

static void a_server_that_dies_on_the_first_request_is_a_crash(void **state)
{
	expect_failed("dies-at-once", &(struct stub_experiment){0}, "crash: ended by signal 6");
}

static void a_rank_that_is_lost_right_after_ready_is_a_crash(void **state)
{
	expect_failed("loses-a-rank", &(struct stub_experiment){0}, "crash: ended with exit code 4: ");
}

static void wrong_output_at_twice_the_speed_is_wrong_output(void **state)
{
	expect_failed("wrong-text", &(struct stub_experiment){0}, "wrong_output");
}

static void one_token_altered_at_position_200_is_wrong_output(void **state)
{
	const char *stub[] = {"--token-ms", "0.5", NULL};
	struct stub_experiment options = {.stub = stub,
		.workloads = "[{\"name\": \"w\", \"endpoint\": \"/v1/completions\", \"concurrency\": 2, \"requests\": 2, "
			     "\"dataset\": {\"kind\": \"random_ids\", \"input_len\": 8, \"output_len\": 220}}]"};
	expect_failed("one-token", &options, "wrong_output: 1 of 2 greedy texts differ");
}

static void half_the_requests_failing_fast_is_a_client_error(void **state)
{
	expect_failed("half-failing", &(struct stub_experiment){0},
		"client_error: 1 of 2 requests failed: HTTP 500: every second one fails");
}

static void an_error_within_a_stream_is_a_client_error_with_the_servers_words(void **state)
{
	expect_failed("stream-error", &(struct stub_experiment){0}, "the server reported an error: engine stopped");
}

static void output_shorter_than_asked_breaks_a_guard(void **state)
{
	expect_failed("short-output", &(struct stub_experiment){0},
		"guard: 2 of 2 answers have the wrong length: 6 tokens instead of 12");
}

static void usage_that_counts_events_breaks_a_guard(void **state)
{
	expect_failed("chunks-as-tokens", &(struct stub_experiment){0},
		"guard: 2 of 2 answers have the wrong length: 3 tokens instead of 12");
}

static void usage_that_claims_more_than_was_said_is_wrong_output(void **state)
{
	expect_failed("inflated-usage", &(struct stub_experiment){0}, "wrong_output");
}

static void a_warm_cache_on_one_side_breaks_a_guard(void **state)
{
	expect_failed("warm-cache", &(struct stub_experiment){0},
		"guard: 100.0 % of the prompt tokens came from a cache that should be cold");
}

static void a_count_that_is_no_number_is_an_answer_that_cannot_be_read(void **state)
{
	expect_failed("nan", &(struct stub_experiment){0}, "invalid token near 'NaN'");
}

static void several_tokens_in_one_event_are_counted_as_several(void **state)
{
	/* The same speed a token, in events of four: whoever counts events finds a quarter of it. */
	const char *stub[] = {"--token-ms", "8", NULL};
	struct json *document = NULL;
	struct text errors = {0};
	run_fraud("chunks", &(struct stub_experiment){.stub = stub, .protocol = THREE_BLOCKS}, &document, &errors, 0);
	const struct json *row = run_bed_row(document, "fraud", "chunks");
	double effect = json_number(json_get(row, "effect_pct"), NAN);
	print_message("effect %+.1f %%\n", effect);
	assert_true(effect > -50); /* counting events would give -75 %; a busy machine delays four events more than one */
	assert_string_not_equal(json_text(json_get(row, "verdict")), "failed");
	json_free(document);
	text_release(&errors);
}

static void a_metric_that_is_not_defined_is_no_verdict_of_helped_or_hurt(void **state)
{
	/* What does not speculate accepts no share of any drafts. */
	const char *stub[] = {"--token-ms", "2", NULL};
	struct json *document = NULL;
	struct text errors = {0};
	struct stub_experiment options = {.stub = stub,
		.protocol = THREE_BLOCKS,
		.workloads = "[{\"name\": \"w\", \"endpoint\": \"/v1/completions\", \"concurrency\": 2, \"requests\": 2, "
			     "\"dataset\": {\"kind\": \"random_ids\", \"input_len\": 8, \"output_len\": 4}}]",
		.verdict = "{\"primary\": {\"metric\": \"accept_frac\"}}",
		.guards = "{\"greedy_fingerprint\": {\"prompts\": 0}}"};
	run_fraud("chunks", &options, &document, &errors, 0);
	const struct json *row = run_bed_row(document, "fraud", "chunks");
	assert_string_equal(json_text(json_get(row, "verdict")), "neutral");
	assert_true(text_starts_with(json_text(json_get(row, "reason")), "inconclusive: "));
	assert_true(json_kind_of(json_get(row, "effect_pct")) == JSON_KIND_NULL);
	json_free(document);
	text_release(&errors);
}

static void a_candidate_that_leaks_memory_stops_the_run_and_the_next_is_not_blamed(void **state)
{
	struct run_bed space;
	char path[96];
	snprintf(path, sizeof(path), "/dev/shm/verdict-leak-%d", (int)getpid());
	char factors[256];
	snprintf(factors, sizeof(factors),
		"{\"mode\": \"ofat\", \"factors\": {\"leak\": [null, \"%s\"], \"fraud\": [\"none\", \"chunks\"]}, \"aa_twin\": "
		"false}",
		path);
	unlink(path);
	run_bed_open(&space,
		&(struct stub_experiment){.adapter = "command",
			.baseline = "{\"leak\": null, \"fraud\": \"none\"}",
			.matrix = factors,
			.protocol = THREE_BLOCKS,
			.engine_extra = ", \"flags\": {\"leak\": \"--leak\", \"fraud\": \"--fraud\"}"});
	struct text text = {0}, errors = {0};
	assert_int_equal(file_read(space.file, 65536, &text, NULL), STATUS_OK);
	static const char before[] = "\"stop\": {\"term_s\": 5}",
			  after[] = "\"stop\": {\"term_s\": 5, \"memory_within_mib\": 24, \"memory_wait_s\": 0.2}";
	char *at = strstr(text.data, before);
	assert_non_null(at);
	struct text changed = {0};
	text_append(&changed, text.data, (size_t)(at - text.data));
	text_append_str(&changed, after);
	text_append_str(&changed, at + strlen(before));
	assert_int_equal(file_write_atomic(space.file, changed.data, changed.len, NULL), STATUS_OK);
	struct json *document = NULL;
	assert_int_equal(run_bed_run(&space, NULL, &document, &errors), 3);
	print_message("%s", text_str(&errors));
	assert_non_null(strstr(text_str(&errors), "the machine did not come back after leak="));
	assert_non_null(strstr(text_str(&errors), "MiB of shared memory are left"));
	json_free(document);
	document = run_bed_show(&space);
	const struct json *launches = json_get(document, "launches");
	size_t dirty = 0;
	for (size_t i = 0; i < json_count(launches); i++) {
		assert_string_equal(json_text(json_get(json_at(launches, i), "failure")), "none");
		dirty += json_int(json_get(json_at(launches, i), "machine_dirty"), 0) == 1;
	}
	assert_int_equal(dirty, 1);
	assert_int_equal(unlink(path), 0);
	json_free(document);
	text_release(&text);
	text_release(&changed);
	text_release(&errors);
	run_bed_close(&space);
}

/* Reads a pid that a stub has written. */
static pid_t read_pid(const char *path)
{
	struct text text = {0};
	unsigned long long pid = 0;
	assert_int_equal(file_read(path, 64, &text, NULL), STATUS_OK);
	text_truncate(&text, strcspn(text_str(&text), "\n"));
	assert_true(text_to_u64(text_str(&text), &pid));
	text_release(&text);
	return (pid_t)pid;
}

static void a_child_that_survives_term_and_gets_away_is_gone_before_the_next_launch(void **state)
{
	char path[96];
	snprintf(path, sizeof(path), "/tmp/verdict-escapee-%d", (int)getpid());
	const char *stub[] = {"--ignore-term", "--escapee", path, NULL};
	struct run_bed space;
	struct json *document = NULL;
	struct text errors = {0};
	run_bed_open(&space, &(struct stub_experiment){.stub = stub, .protocol = ONE_BLOCK});
	struct text text = {0}, changed = {0};
	assert_int_equal(file_read(space.file, 65536, &text, NULL), STATUS_OK);
	char *at = strstr(text.data, "\"term_s\": 5");
	assert_non_null(at);
	text_append(&changed, text.data, (size_t)(at - text.data));
	text_append_str(&changed, "\"term_s\": 0.1");
	text_append_str(&changed, at + strlen("\"term_s\": 5"));
	assert_int_equal(file_write_atomic(space.file, changed.data, changed.len, NULL), STATUS_OK);
	assert_int_equal(run_bed_run(&space, NULL, &document, &errors), 0);
	assert_true(support_wait_gone(read_pid(path), 0.1));
	assert_int_equal(run_bed_count_stubs(path), 0);
	unlink(path);
	json_free(document);
	text_release(&errors);
	text_release(&text);
	text_release(&changed);
	run_bed_close(&space);
}

static void a_log_flood_of_100_mb_neither_blocks_nor_fills_the_store(void **state)
{
	const char *stub[] = {"--flood-bytes", "100000000", NULL};
	struct run_bed space;
	struct json *document = NULL;
	struct text errors = {0}, store = {0};
	run_bed_open(&space, &(struct stub_experiment){.stub = stub, .protocol = ONE_BLOCK});
	assert_int_equal(run_bed_run(&space, NULL, &document, &errors), 0);
	assert_int_equal(file_read(space.db, 1 << 20, &store, NULL), STATUS_OK); /* fails when it is larger */
	json_free(document);
	document = run_bed_show(&space);
	const struct json *launch = json_at(json_get(document, "launches"), 0);
	assert_string_equal(json_text(json_get(launch, "failure")), "none");
	json_free(document);
	text_release(&errors);
	text_release(&store);
	run_bed_close(&space);
}

static void a_knob_that_is_accepted_and_ignored_is_inactive(void **state)
{
	const char *stub[] = {"--config-lies", NULL};
	struct run_bed space;
	struct json *document = NULL;
	struct text errors = {0};
	run_bed_open(&space, &(struct stub_experiment){.stub = stub, .protocol = ONE_BLOCK});
	assert_int_equal(run_bed_run(&space, NULL, &document, &errors), 0);
	run_bed_expect(document, "speculation", "ngram", "failed", "inactive: speculation=ngram was asked, off is in effect");
	json_free(document);
	text_release(&errors);
	run_bed_close(&space);
}

int main(int argc, char **argv)
{
	int code;
	if (support_role(argc, argv, &code))
		return code;
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_knob_that_is_accepted_and_ignored_is_inactive),
		cmocka_unit_test(a_server_that_dies_on_the_first_request_is_a_crash),
		cmocka_unit_test(a_rank_that_is_lost_right_after_ready_is_a_crash),
		cmocka_unit_test(wrong_output_at_twice_the_speed_is_wrong_output),
		cmocka_unit_test(one_token_altered_at_position_200_is_wrong_output),
		cmocka_unit_test(half_the_requests_failing_fast_is_a_client_error),
		cmocka_unit_test(an_error_within_a_stream_is_a_client_error_with_the_servers_words),
		cmocka_unit_test(output_shorter_than_asked_breaks_a_guard),
		cmocka_unit_test(several_tokens_in_one_event_are_counted_as_several),
		cmocka_unit_test(usage_that_counts_events_breaks_a_guard),
		cmocka_unit_test(usage_that_claims_more_than_was_said_is_wrong_output),
		cmocka_unit_test(a_warm_cache_on_one_side_breaks_a_guard),
		cmocka_unit_test(a_count_that_is_no_number_is_an_answer_that_cannot_be_read),
		cmocka_unit_test(a_metric_that_is_not_defined_is_no_verdict_of_helped_or_hurt),
		cmocka_unit_test(a_candidate_that_leaks_memory_stops_the_run_and_the_next_is_not_blamed),
		cmocka_unit_test(a_child_that_survives_term_and_gets_away_is_gone_before_the_next_launch),
		cmocka_unit_test(a_log_flood_of_100_mb_neither_blocks_nor_fills_the_store),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
