/* Whole runs against the stub engine: verdicts, retries, kills and resumption; and the decisions of the loop by themselves. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <dirent.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/text.h"
#include "harness/proctree.h"
#include "harness/progress.h"
#include "harness/run_loop.h"
#include "harness/store.h"
#include "tests/support/experiments.h"
#include "tests/support/roles.h"
#include "tests/support/run_bed.h"

#define MS ((int64_t)1000000)

#define FOUR_KNOBS "{\"speculation\": \"off\", \"allreduce\": \"shm-flag\", \"mem_fraction\": 0.9, \"graph_max_bs\": 8}"
#define FOUR_FACTORS \
	"{\"mode\": \"ofat\", \"factors\": {\"speculation\": [\"off\", \"ngram\"], \"allreduce\": [\"shm-flag\", " \
	"\"ref-socket\"], " \
	"\"mem_fraction\": [0.9, 0.2]}}"
#define THREE_BLOCKS \
	"{\"blocks\": 3, \"max_blocks\": 3, \"runs_per_launch\": 1, \"warmup\": {\"requests_per_slot\": 1}, \"stall_s\": 5, " \
	"\"run_timeout_s\": 20}"

static void a_run_finds_what_helps_what_hurts_and_what_cannot_start(void **state)
{
	/* Judged by the median time between tokens, which a busy machine upsets least. */
	const char *stub[] = {"--token-ms", "6", NULL};
	struct run_bed space;
	run_bed_open(&space,
		&(struct stub_experiment){.stub = stub,
			.baseline = FOUR_KNOBS,
			.matrix = FOUR_FACTORS,
			.protocol = THREE_BLOCKS,
			.guards = "{\"greedy_fingerprint\": {\"prompts\": 0}}",
			.verdict = "{\"primary\": {\"metric\": \"itl_ms_p50\", \"better\": \"lower\"}}"});
	struct json *document;
	struct text errors = {0}, launches = {0};
	assert_int_equal(run_bed_run(&space, NULL, &document, &errors), 0);
	print_message("%s", text_str(&errors));
	assert_int_equal(json_int(json_get(document, "experiment_id"), 0), 1);
	assert_string_equal(json_text(json_get(document, "name")), "stub");
	assert_int_equal(json_count(json_get(document, "verdicts")), 4);
	run_bed_expect(document, "speculation", "ngram", "helped", NULL);
	run_bed_expect(document, "allreduce", "ref-socket", "hurt", NULL);
	run_bed_expect(document, "mem_fraction", "0.2", "failed", "oom_load: needs mem_fraction 0.31");
	assert_non_null(run_bed_row(document, "aa_twin", NULL));
	double effect = json_number(json_get(run_bed_row(document, "speculation", "ngram"), "effect_pct"), NAN);
	assert_true(effect < -50 && effect > -90); /* -75 by construction: a quarter of the time */
	run_bed_list_launches(&space, &launches);
	assert_int_equal(run_bed_count_of(&launches, ".0 "), 13); /* 4 arms × 3 blocks, and one launch that cannot start */
	assert_non_null(strstr(text_str(&errors), "mem_fraction=0.2 is not launched again: oom_load: needs mem_fraction 0.31\n"));
	assert_int_equal(run_bed_count_of(&errors, "\n[") + text_starts_with(text_str(&errors), "["), 13); /* one line per launch */
	json_free(document);
	/* Resumed when nothing is left to do: the same answer, nothing launched. */
	text_clear(&errors);
	assert_int_equal(run_bed_run(&space, "--resume", &document, &errors), 0);
	assert_int_equal(json_int(json_get(document, "experiment_id"), 0), 1);
	text_clear(&launches);
	run_bed_list_launches(&space, &launches);
	assert_int_equal(run_bed_count_of(&launches, ".0 "), 13);
	json_free(document);
	text_release(&errors);
	text_release(&launches);
	run_bed_close(&space);
}

static void a_failed_baseline_ends_the_run_with_exit_code_1(void **state)
{
	const char *stub[] = {"--exit-code", "9", NULL};
	struct run_bed space;
	run_bed_open(&space, &(struct stub_experiment){.stub = stub, .protocol = THREE_BLOCKS});
	struct json *document;
	struct text errors = {0};
	assert_int_equal(run_bed_run(&space, NULL, &document, &errors), 1);
	assert_non_null(strstr(text_str(&errors), "the baseline failed: launch_error: ended with exit code 9"));
	assert_non_null(document);
	json_free(document);
	text_release(&errors);
	run_bed_close(&space);
}

static void a_crash_is_tried_again_and_both_attempts_are_kept(void **state)
{
	const char *stub[] = {"--die-after", "4", NULL};
	struct run_bed space;
	run_bed_open(&space, &(struct stub_experiment){.stub = stub, .protocol = THREE_BLOCKS});
	struct json *document;
	struct text errors = {0}, launches = {0};
	assert_int_equal(run_bed_run(&space, NULL, &document, &errors), 1);
	assert_non_null(strstr(text_str(&errors), "the baseline failed: crash"));
	run_bed_list_launches(&space, &launches);
	assert_non_null(strstr(text_str(&launches), "0.0.0 0.0.1 "));
	assert_int_equal(run_bed_count_of(&launches, "0.0."), 2);
	json_free(document);
	text_release(&errors);
	text_release(&launches);
	run_bed_close(&space);
}

/* The guard of the launch that a running `verdict run` is measuring; 0: there is none now. */
static pid_t guard_below(pid_t harness)
{
	struct proctree tree = {0};
	pid_t guard = 0;
	proctree_read(&tree, harness);
	for (size_t i = 0; i < tree.count && !guard; i++) {
		char path[64];
		struct text line = {0};
		snprintf(path, sizeof(path), "/proc/%d/cmdline", (int)tree.pids[i]);
		if (file_read(path, 4096, &line, NULL) == STATUS_OK && line.len == sizeof "verdict\0guard" &&
			memcmp(line.data, "verdict\0guard", line.len) == 0)
			guard = tree.pids[i];
		text_release(&line);
	}
	proctree_release(&tree);
	return guard;
}

/* Twice: while its engine starts, and while it is measured. */
static void a_launch_whose_guard_is_killed_is_repeated_and_the_experiment_goes_on(void **state)
{
	static const char *const slow_start[] = {"--token-ms", "10", "--health-after-ms", "300", NULL};
	struct run_bed space;
	run_bed_open(&space,
		&(struct stub_experiment){.stub = slow_start,
			.protocol = "{\"blocks\": 3, \"max_blocks\": 3, \"runs_per_launch\": 1, \"warmup\": "
				    "{\"requests_per_slot\": 1}, "
				    "\"stall_s\": 5, \"run_timeout_s\": 20, \"retries\": {\"crash\": 2}}"});
	const char *arguments[] = {"run", space.file, "--db", space.db, NULL};
	pid_t harness = support_spawn(arguments), killed = 0;
	int64_t until_ns = clock_monotonic_ns() + 60000 * MS;
	for (int kills = 0; kills < 2 && clock_monotonic_ns() < until_ns;) {
		pid_t guard = guard_below(harness);
		if (guard && guard != killed) {
			clock_sleep_ns(kills == 0 ? 100 * MS : 500 * MS);
			kill(guard, SIGKILL);
			killed = guard;
			kills++;
		}
		clock_sleep_ns(5 * MS);
	}
	int wait_status = 0;
	assert_int_equal(waitpid(harness, &wait_status, 0), harness);
	assert_true(WIFEXITED(wait_status));
	assert_int_equal(WEXITSTATUS(wait_status), 0);
	struct json *shown = run_bed_show(&space);
	int lost = 0;
	for (size_t i = 0; i < json_count(json_get(shown, "launches")); i++) {
		const struct json *launch = json_at(json_get(shown, "launches"), i);
		const char *reason = json_text(json_get(launch, "reason"));
		if (!reason || !strstr(reason, "crash: the guard process was lost"))
			continue;
		lost++;
		assert_int_equal(json_int(json_get(launch, "machine_dirty"), 9), 0);
	}
	assert_true(lost >= 1); /* the second may have come between two launches */
	assert_int_equal(run_bed_count_stubs(space.folder), 0);
	json_free(shown);
	run_bed_close(&space);
}

static void a_run_that_another_verdict_is_measuring_is_refused(void **state)
{
	struct run_bed bed;
	struct json *document = NULL;
	struct text errors = {0}, launches = {0};
	struct store *store = NULL;
	run_bed_open(&bed,
		&(struct stub_experiment){.matrix = "{\"factors\": {\"speculation\": [\"off\", \"ngram\"]}, \"aa_twin\": false}",
			.protocol = "{\"blocks\": 1, \"max_blocks\": 1, \"runs_per_launch\": 1}",
			.guards = "{\"greedy_fingerprint\": {\"prompts\": 0}}"});
	assert_int_equal(run_bed_run(&bed, NULL, &document, &errors), 0);
	json_free(document);
	assert_int_equal(store_open(bed.db, &store, NULL), STATUS_OK);
	assert_int_equal(store_claim(store, 1, NULL), STATUS_OK);
	assert_int_equal(run_bed_run(&bed, "--resume", &document, &errors), 3);
	assert_non_null(strstr(text_str(&errors), "experiment 1 is being measured by another verdict"));
	store_close(store);
	run_bed_list_launches(&bed, &launches);
	assert_int_equal(run_bed_count_of(&launches, " "), 2);
	json_free(document);
	text_release(&errors);
	text_release(&launches);
	run_bed_close(&bed);
}

static void an_interrupt_stops_the_engine_and_keeps_what_is_there(void **state)
{
	const char *stub[] = {"--token-ms", "2", NULL};
	struct run_bed space;
	run_bed_open(&space, &(struct stub_experiment){.stub = stub, .protocol = THREE_BLOCKS});
	const char *arguments[] = {"run", space.file, "--db", space.db, NULL};
	pid_t pid = support_spawn(arguments);
	clock_sleep_ns(500 * MS);
	kill(pid, SIGINT);
	int wait_status = 0;
	assert_int_equal(waitpid(pid, &wait_status, 0), pid);
	assert_true(WIFEXITED(wait_status));
	assert_int_equal(WEXITSTATUS(wait_status), 130);
	struct json *document;
	struct text errors = {0}, launches = {0};
	assert_int_equal(run_bed_run(&space, "--resume", &document, &errors), 0);
	assert_non_null(run_bed_row(document, "speculation", "ngram"));
	run_bed_list_launches(&space, &launches);
	assert_int_equal(run_bed_count_of(&launches, " "), 6);
	json_free(document);
	text_release(&errors);
	text_release(&launches);
	run_bed_close(&space);
}

static void a_launch_during_which_we_were_stopped_is_void_and_made_again(void **state)
{
	struct run_bed space;
	char log_path[96];
	const char *stub[] = {"--token-ms", "40", "--request-log", log_path, NULL};
	snprintf(log_path, sizeof(log_path), "/dev/null");
	run_bed_open(&space, &(struct stub_experiment){0});
	snprintf(log_path, sizeof(log_path), "%s/posts", space.folder);
	struct text text = {0}, log = {0}, launches = {0};
	stub_experiment_text(&(struct stub_experiment){.stub = stub,
				     .guards = "{\"greedy_fingerprint\": {\"prompts\": 0}}",
				     .protocol = "{\"blocks\": 1, \"max_blocks\": 1, \"runs_per_launch\": 1, \"warmup\": "
						 "{\"requests_per_slot\": 0}}"},
		&text);
	assert_int_equal(file_write_atomic(space.file, text.data, text.len, NULL), STATUS_OK);
	const char *arguments[] = {"run", space.file, "--db", space.db, NULL};
	pid_t pid = support_spawn(arguments);
	/* The probe, the flush, and then two requests at once: the measured run. */
	int64_t until_ns = clock_monotonic_ns() + 20000 * MS;
	while (run_bed_count_of(&log, "POST /v1/completions\n") < 3 && clock_monotonic_ns() < until_ns) {
		clock_sleep_ns(5 * MS);
		text_clear(&log);
		file_read(log_path, 1 << 20, &log, NULL);
	}
	kill(pid, SIGSTOP);
	clock_sleep_ns(1300 * MS);
	kill(pid, SIGCONT);
	int wait_status = 0;
	assert_int_equal(waitpid(pid, &wait_status, 0), pid);
	assert_true(WIFEXITED(wait_status) && WEXITSTATUS(wait_status) == 0);
	run_bed_list_launches(&space, &launches);
	assert_int_equal(run_bed_count_of(&launches, ".0 "), 2);
	assert_int_equal(run_bed_count_of(&launches, ".1 "), 1);
	text_release(&text);
	text_release(&log);
	text_release(&launches);
	run_bed_close(&space);
}

static void wrong_text_is_a_failure_however_fast(void **state)
{
	/* A switch without a value, as an environment of the stub would be: the candidate answers something else. */
	struct run_bed space;
	run_bed_open(&space,
		&(struct stub_experiment){.adapter = "command",
			.baseline = "{\"wrong_text\": false}",
			.matrix = "{\"mode\": \"ofat\", \"factors\": {\"wrong_text\": [false, true]}, \"aa_twin\": false}",
			.protocol = THREE_BLOCKS,
			.engine_extra = ", \"flags\": {\"wrong_text\": \"--wrong-text\"}"});
	struct json *document;
	struct text errors = {0};
	assert_int_equal(run_bed_run(&space, NULL, &document, &errors), 0);
	const struct json *row = run_bed_row(document, "wrong_text", NULL);
	assert_string_equal(json_text(json_get(row, "verdict")), "failed");
	assert_true(text_starts_with(json_text(json_get(row, "reason")), "wrong_output"));
	json_free(document);
	text_release(&errors);
	run_bed_close(&space);
}

static void bad_usage_starts_nothing(void **state)
{
	struct run_bed space;
	run_bed_open(&space, &(struct stub_experiment){.baseline = "{\"speculation\": }"});
	struct json *document;
	struct text errors = {0};
	assert_int_equal(run_bed_run(&space, NULL, &document, &errors), 2);
	assert_non_null(strstr(text_str(&errors), "e.json:1:"));
	assert_false(file_exists(space.db));
	static const char *const cases[][4] = {{"run", NULL}, {"run", "a", "b", NULL}, {"run", "/no/such/file.json", NULL}};
	for (size_t i = 0; i < 3; i++) {
		struct text out = {0};
		assert_int_equal(support_run(cases[i], &out, &errors), 2);
		text_release(&out);
	}
	text_release(&errors);
	run_bed_close(&space);
}

static void a_missing_engine_is_found_out_before_anything_is_stored(void **state)
{
	struct run_bed space;
	run_bed_open(&space, &(struct stub_experiment){0});
	const char *text =
		"{\"schema\": \"experiment/1\", \"name\": \"x\", \"engine\": {\"adapter\": \"command\", \"command\": "
		"[\"/no/such/engine\", \"${PORT}\"],"
		"\"flags\": {\"k\": \"--k\"}}, \"baseline\": {\"params\": {\"k\": 1}}, \"matrix\": {\"factors\": {\"k\": [1, 2]}}}";
	assert_int_equal(file_write_atomic(space.file, text, strlen(text), NULL), STATUS_OK);
	struct json *document;
	struct text errors = {0};
	assert_int_equal(run_bed_run(&space, NULL, &document, &errors), 3);
	assert_non_null(strstr(text_str(&errors), "/no/such/engine"));
	assert_false(file_exists(space.db));
	text_release(&errors);
	run_bed_close(&space);
}

/* ---- the decisions by themselves ---- */

static void retries_follow_class_and_attempt(void **state)
{
	struct protocol protocol = {.retry_client_error = 1, .retry_crash = 2, .retry_oom_load = 0};
	static const struct {
		enum failure failure;
		bool voided;
		int attempt;
		bool again;
	} cases[] = {
		{FAILURE_NONE, false, 0, false},
		{FAILURE_NONE, true, 0, true},
		{FAILURE_NONE, true, 1, true},
		{FAILURE_NONE, true, 2, false},
		{FAILURE_CLIENT_ERROR, false, 0, true},
		{FAILURE_CLIENT_ERROR, false, 1, false},
		{FAILURE_CRASH, false, 1, true},
		{FAILURE_CRASH, false, 2, false},
		{FAILURE_OOM_LOAD, false, 0, false},
		{FAILURE_HANG, false, 0, false},
		{FAILURE_INACTIVE, false, 0, false},
		{FAILURE_LAUNCH_ERROR, true, 0, false},
		{FAILURE_GUARD, false, 0, false},
	};
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct launch_cell cell = {.failure = cases[i].failure, .voided = cases[i].voided, .attempt = cases[i].attempt};
		assert_int_equal(run_loop_wants_retry(&protocol, &cell), cases[i].again);
	}
}

static void arms_that_cannot_work_are_dropped_from_later_blocks_only(void **state)
{
	struct text text = {0};
	struct experiment *experiment = NULL;
	struct experiment_overrides overrides = {0};
	stub_experiment_text(
		&(struct stub_experiment){.baseline = FOUR_KNOBS, .matrix = FOUR_FACTORS, .protocol = THREE_BLOCKS}, &text);
	assert_int_equal(experiment_parse(text.data, text.len, "stub", &overrides, &experiment, NULL), STATUS_OK);
	struct launch_cell items[] = {
		{.arm = 2, .block = 0, .failure = FAILURE_CRASH},
		{.arm = 3, .block = 1, .failure = FAILURE_INACTIVE},
		{.arm = 4, .block = 0, .failure = FAILURE_OOM_LOAD},
		{.arm = 1, .block = 0, .failure = FAILURE_LAUNCH_ERROR},
	};
	struct launch_cells cells = {items, 4};
	bool dropped[5];
	assert_int_equal(run_loop_dropped(experiment, &cells, 0, NULL, dropped, NULL), STATUS_OK);
	for (int arm = 0; arm < 5; arm++)
		assert_false(dropped[arm]);
	assert_int_equal(run_loop_dropped(experiment, &cells, 1, NULL, dropped, NULL), STATUS_OK);
	assert_true(dropped[4] && !dropped[3] && !dropped[2] && !dropped[1]); /* the twin is the baseline: it stays */
	assert_int_equal(run_loop_dropped(experiment, &cells, 2, NULL, dropped, NULL), STATUS_OK);
	assert_true(dropped[4] && dropped[3] && !dropped[2] && !dropped[0]);
	assert_int_equal(run_loop_done(experiment, &cells), 3); /* the crash is to be tried again */
	experiment_release(experiment);
	text_release(&text);
}

static void bars_and_lines_say_where_a_run_stands(void **state)
{
	struct text text = {0};
	struct experiment *experiment = NULL;
	struct experiment_overrides overrides = {0};
	stub_experiment_text(&(struct stub_experiment){.protocol = THREE_BLOCKS}, &text);
	assert_int_equal(experiment_parse(text.data, text.len, "stub", &overrides, &experiment, NULL), STATUS_OK);
	struct progress progress = {
		.fd = -1, .experiment = experiment, .done = 3, .total = 6, .columns = 200, .block = 1, .arm = 1};
	struct measure_progress step = {"run", 0, 2, 3, 178.24};
	text_clear(&text);
	progress_bar(&progress, &step, 72, &text);
	assert_string_equal(
		text_str(&text), "████████████░░░░░░░░░░░░  3/6  block 2  speculation=ngram  run 2/3  178.2 tok/s  ETA 1:12");
	text_clear(&text);
	progress.columns = 31;
	progress_bar(&progress, NULL, NAN, &text);
	assert_string_equal(text_str(&text), "████████████░░░░░░░░░░░░  3/6 ");
	text_clear(&text);
	progress_headline(experiment, 0, 6, 182, &text);
	assert_string_equal(text_str(&text), "stub: 2 settings × 3 blocks, 6 launches, about 3 min\n");
	text_clear(&text);
	struct launch_result launch = {
		.arm = 1, .block = 0, .failure = FAILURE_OOM_LOAD, .reason = "oom_load: x", .total_ns = 1500 * MS};
	progress_launch_line(&progress, &launch, &text);
	assert_string_equal(text_str(&text), "[3/6] block 1  speculation=ngram  failed: oom_load: x  1.5 s\n");
	experiment_release(experiment);
	text_release(&text);
}

int main(int argc, char **argv)
{
	int code;
	if (support_role(argc, argv, &code))
		return code;
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_run_finds_what_helps_what_hurts_and_what_cannot_start),
		cmocka_unit_test(a_failed_baseline_ends_the_run_with_exit_code_1),
		cmocka_unit_test(a_crash_is_tried_again_and_both_attempts_are_kept),
		cmocka_unit_test(a_launch_whose_guard_is_killed_is_repeated_and_the_experiment_goes_on),
		cmocka_unit_test(a_run_that_another_verdict_is_measuring_is_refused),
		cmocka_unit_test(an_interrupt_stops_the_engine_and_keeps_what_is_there),
		cmocka_unit_test(a_launch_during_which_we_were_stopped_is_void_and_made_again),
		cmocka_unit_test(wrong_text_is_a_failure_however_fast),
		cmocka_unit_test(bad_usage_starts_nothing),
		cmocka_unit_test(a_missing_engine_is_found_out_before_anything_is_stored),
		cmocka_unit_test(retries_follow_class_and_attempt),
		cmocka_unit_test(arms_that_cannot_work_are_dropped_from_later_blocks_only),
		cmocka_unit_test(bars_and_lines_say_where_a_run_stands),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
