/* The two searches with engines that are really launched: what they find, whom they stop launching, how they end. The settings
 * differ by factors of three and more, so that a busy machine changes no verdict. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>

#include "harness/store.h"
#include "tests/support/roles.h"
#include "tests/support/run_bed.h"

static const struct stub_experiment race = {.stub = run_bed_telling_stub,
	.baseline = "{\"speculation\": \"off\", \"allreduce\": \"shm-flag\"}",
	.matrix = "{\"mode\": \"race\", \"factors\": {\"speculation\": [\"off\", \"ngram\"], \"allreduce\": [\"shm-flag\", "
		  "\"ref-socket\"]}, \"aa_twin\": false}",
	.protocol = "{\"blocks\": 3, \"max_blocks\": 4, \"runs_per_launch\": 1, \"screening\": false, \"warmup\": "
		    "{\"requests_per_slot\": 0}}",
	.guards = "{\"greedy_fingerprint\": {\"prompts\": 0}}",
	.workloads = RUN_BED_SHORT_LOAD,
	.verdict = "{\"primary\": {\"metric\": \"accept_frac\"}}"};

/* Measured: four arms in two blocks, then the fast ones, then three fresh blocks of baseline and winner. */
static void a_race_stops_launching_losers_and_confirms_its_winner(void **state)
{
	struct run_bed bed;
	struct json *document = NULL;
	struct text errors = {0}, launches = {0};
	run_bed_open(&bed, &race);
	run_bed_run_well(&bed, NULL, &document, &errors);
	assert_non_null(
		strstr(text_str(&errors), "allreduce=ref-socket leaves the race after block 2: slower than speculation=ngram"));
	run_bed_expect(document, "speculation", "ngram", "helped", "confirmed with fresh launches in 3 blocks");
	run_bed_list_launches(&bed, &launches);
	/* The slow arms: in the first two blocks and never again. */
	struct json *shown = run_bed_show(&bed);
	int slow = 0, winner = 0, baseline = 0;
	for (size_t i = 0; i < json_count(json_get(shown, "launches")); i++) {
		const struct json *launch = json_at(json_get(shown, "launches"), i);
		const char *arm =
			json_text(json_get(json_at(json_get(shown, "arms"), (size_t)json_int(json_get(launch, "arm"), 0)), "name"));
		if (strstr(arm, "ref-socket")) {
			assert_true(json_int(json_get(launch, "block"), 9) < 2);
			slow++;
		}
		winner += text_equal(arm, "speculation=ngram");
		baseline += text_equal(arm, "baseline");
	}
	assert_int_equal(slow, 4);
	assert_true(winner >= 3 + 3 && baseline == winner);
	json_free(shown);
	json_free(document);
	text_release(&errors);
	text_release(&launches);
	run_bed_close(&bed);
}

/* Of the settings only speculation helps; the search adopts it, finds nothing more, and confirms it against the beginning. */
static void a_greedy_search_launches_stage_after_stage_and_confirms_the_end(void **state)
{
	struct run_bed bed;
	struct json *document = NULL;
	struct text errors = {0};
	struct stub_experiment options = race;
	options.matrix =
		"{\"mode\": \"greedy\", \"factors\": {\"speculation\": [\"off\", \"ngram\"], \"allreduce\": [\"shm-flag\", "
		"\"ref-socket\"]}, \"aa_twin\": false}";
	options.protocol = "{\"blocks\": 3, \"runs_per_launch\": 1, \"warmup\": {\"requests_per_slot\": 0}}";
	run_bed_open(&bed, &options);
	run_bed_run_well(&bed, NULL, &document, &errors);
	assert_non_null(strstr(text_str(&errors), "adopted: speculation=ngram (stage 1)"));
	assert_null(strstr(text_str(&errors), "adopted: allreduce"));
	assert_string_equal(json_text(json_get(document, "name")), "stub, final");
	const struct json *row = json_at(json_get(document, "verdicts"), 0);
	assert_string_equal(json_text(json_get(row, "verdict")), "helped");
	assert_string_equal(json_text(json_get(row, "knob")), "speculation");
	struct store *store = NULL;
	struct json *rows = NULL;
	assert_int_equal(store_open(bed.db, &store, NULL), STATUS_OK);
	assert_int_equal(store_history(store, NULL, &rows, NULL), STATUS_OK);
	assert_int_equal(json_count(rows), 2 + 1 + 1); /* of both stages and the end */
	json_free(rows);
	store_close(store);
	json_free(document);
	text_release(&errors);
	run_bed_close(&bed);
}

/* The baseline answers in a hundredth of the limit, the slow setting never within it: a goodput of nothing is a loss, not a
 * number that is missing. */
static void a_setting_that_keeps_no_promise_hurts_under_an_open_loop(void **state)
{
	struct run_bed bed;
	struct json *document = NULL;
	struct text errors = {0};
	struct stub_experiment options = race;
	options.engine_extra = ", \"flags\": {\"token_ms\": \"--token-ms\"}";
	options.adapter = "command";
	options.baseline = "{\"token_ms\": 2}";
	options.matrix = "{\"factors\": {\"token_ms\": [2, 250]}, \"aa_twin\": false}";
	options.workloads =
		"[{\"name\": \"w\", \"endpoint\": \"/v1/completions\", \"rate\": 20, \"requests\": 6, \"goodput\": {\"e2e_ms\": "
		"1400}, \"dataset\": {\"kind\": \"random_ids\", \"input_len\": 8, \"output_len\": 6}}]";
	options.protocol = "{\"blocks\": 3, \"runs_per_launch\": 1, \"warmup\": {\"requests_per_slot\": 0}}";
	options.verdict = "{\"primary\": {\"metric\": \"goodput_frac\"}}";
	options.guards = "{\"greedy_fingerprint\": {\"prompts\": 0}, \"client_late_ms_max\": 10000}";
	run_bed_open(&bed, &options);
	run_bed_run_well(&bed, NULL, &document, &errors);
	run_bed_expect(document, "token_ms", "250", "hurt", NULL);
	struct json *shown = run_bed_show(&bed);
	const struct json *run = json_at(json_get(json_at(json_get(shown, "launches"), 0), "runs"), 0),
			  *request = json_at(json_get(run, "requests"), 5);
	assert_true(json_int(json_get(request, "due_ns"), -1) > 0);
	assert_true(json_int(json_get(request, "sent_ns"), -1) >= json_int(json_get(request, "due_ns"), -1));
	assert_int_equal(json_int(json_get(request, "asked_tokens"), -1), 6);
	assert_true(json_is_number(json_get(run, "goodput_rps")) && json_is_number(json_get(run, "wait_ms_p99")));
	json_free(shown);
	json_free(document);
	text_release(&errors);
	run_bed_close(&bed);
}

/* An arm at a third of the metric is launched once where ten earlier pairs of baseline and twin tell the noise, else twice. */
static void a_hopeless_setting_is_launched_once_when_the_noise_is_known(void **state)
{
	struct run_bed bed;
	struct stub_experiment options = race;
	options.baseline = "{\"allreduce\": \"shm-flag\"}";
	options.matrix = "{\"factors\": {\"allreduce\": [\"shm-flag\", \"ref-socket\"]}}";
	options.protocol = "{\"blocks\": 3, \"max_blocks\": 4, \"runs_per_launch\": 1, \"warmup\": {\"requests_per_slot\": 0}}";
	run_bed_open(&bed, &options);
	for (int run = 0; run < 5; run++) { /* each adds three pairs */
		struct json *document = NULL;
		struct text errors = {0};
		run_bed_run_well(&bed, NULL, &document, &errors);
		run_bed_expect(document, "allreduce", "ref-socket", "hurt",
			run == 4 ? "screened: hopeless after 1 block" : "screened: hopeless after 2 blocks");
		json_free(document);
		text_release(&errors);
	}
	run_bed_close(&bed);
}

int main(int argc, char **argv)
{
	int code;
	if (support_role(argc, argv, &code))
		return code;
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_race_stops_launching_losers_and_confirms_its_winner),
		cmocka_unit_test(a_greedy_search_launches_stage_after_stage_and_confirms_the_end),
		cmocka_unit_test(a_setting_that_keeps_no_promise_hurts_under_an_open_loop),
		cmocka_unit_test(a_hopeless_setting_is_launched_once_when_the_noise_is_known),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
