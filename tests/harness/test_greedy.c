/* Mode greedy: the documents of its stages, and whole searches over launches that are in the store already. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"
#include "base/text.h"
#include "harness/greedy.h"
#include "harness/store.h"
#include "tests/support/experiment_text.h"
#include "tests/support/experiments.h"
#include "tests/support/fill_store.h"
#include "tests/support/roles.h"

#define SEARCH \
	"{'name':'g','baseline':{'params':{'tp':2}},'matrix':{'mode':'greedy','factors':{'speculation':['off','ngram'],'graph_" \
	"max_bs':{" \
	"'from':8,'to':32,'times':2}},'include':[{'tp':1}]},'protocol':{'looks':[3,5],'budget_launches':50,'budget_s':9}}"

static struct experiment *parsed(struct json *document)
{
	struct experiment *experiment = NULL;
	struct text text = {0};
	struct err err = {0};
	json_write(document, JSON_STYLE_PRETTY, &text);
	if (experiment_parse(text_str(&text), text.len, "stage", NULL, &experiment, &err))
		fail_msg("%s in\n%s", err.text, text_str(&text));
	text_release(&text);
	json_free(document);
	return experiment;
}

static void expect_text(const struct arm *arm, const char *knob, const char *text)
{
	for (size_t i = 0; i < arm->n_settings; i++)
		if (strcmp(arm->settings[i].knob, knob) == 0) {
			assert_string_equal(arm->settings[i].text, text);
			return;
		}
	fail_msg("no knob %s", knob);
}

static void each_stage_starts_from_the_winner_of_the_one_before(void **state)
{
	struct experiment *first = experiment_from_text(SEARCH);
	assert_int_equal(first->search, SEARCH_GREEDY);
	assert_int_equal(first->n_arms, 6); /* baseline, twin, ngram, 16, 32, tp=1 */
	assert_int_equal(first->rules.confirm_winner_blocks, 3);
	assert_string_equal(first->arms[2].name, "speculation=ngram");
	struct experiment *second = parsed(greedy_next(first, 2, first->name, 2));
	assert_string_equal(second->name, "g, stage 2");
	assert_int_equal(second->n_arms, 4);
	expect_text(&second->arms[0], "speculation", "ngram");
	expect_text(&second->arms[0], "tp", "2");
	expect_text(&second->arms[3], "graph_max_bs", "32");
	assert_int_equal(second->protocol.n_looks, 2);
	assert_int_equal(second->protocol.budget_launches, 50);
	assert_null(greedy_next(second, 3, first->name, 3));
	struct experiment *final = parsed(greedy_final(first->document, second, 3, first->name));
	assert_string_equal(final->name, "g, final");
	assert_int_equal(final->n_arms, 3);
	assert_int_equal(final->search, SEARCH_NONE);
	expect_text(&final->arms[0], "speculation", "off");
	expect_text(&final->arms[0], "graph_max_bs", "8");
	expect_text(&final->arms[2], "speculation", "ngram");
	expect_text(&final->arms[2], "graph_max_bs", "32");
	assert_int_equal(final->arms[2].n_changed, 2);
	assert_int_equal(final->protocol.max_blocks, 3);
	assert_int_equal(final->protocol.n_looks, 1);
	assert_int_equal(final->protocol.budget_launches, 0);
	assert_true(final->protocol.budget_s == 0);
	assert_int_equal(final->rules.confirm_winner_blocks, 0);
	experiment_release(first);
	experiment_release(second);
	experiment_release(final);
}

struct space {
	char folder[64], file[96], db[96];
	struct text out, errors;
};

static void open_space(struct space *space, const char *protocol)
{
	static const char *const stub[] = {"--token-ms", "10", NULL};
	struct text text = {0};
	memset(space, 0, sizeof *space);
	snprintf(space->folder, sizeof space->folder, "/tmp/verdict-greedy-XXXXXX");
	assert_non_null(mkdtemp(space->folder));
	snprintf(space->file, sizeof space->file, "%s/e.json", space->folder);
	snprintf(space->db, sizeof space->db, "%s/r.db", space->folder);
	stub_experiment_text(
		&(struct stub_experiment){.stub = stub,
			.baseline = "{\"speculation\": \"off\", \"allreduce\": \"ref-socket\", \"graph_max_bs\": 8}",
			.matrix = "{\"mode\": \"greedy\", \"factors\": {\"speculation\": [\"off\", \"ngram\"], \"allreduce\": "
				  "[\"ref-socket\", \"shm-flag\"]}, \"aa_twin\": false}",
			.protocol = protocol,
			.guards = "{\"greedy_fingerprint\": {\"prompts\": 0}}",
			.verdict = "{\"primary\": {\"metric\": \"itl_ms_p50\"}}"},
		&text);
	assert_int_equal(file_write_atomic(space->file, text.data, text.len, NULL), STATUS_OK);
	text_release(&text);
}

static void close_space(struct space *space)
{
	static const char *const names[] = {"e.json", "r.db", "r.db-wal", "r.db-shm"};
	char path[160];
	for (size_t i = 0; i < 4; i++) {
		snprintf(path, sizeof path, "%s/%s", space->folder, names[i]);
		unlink(path);
	}
	assert_int_equal(rmdir(space->folder), 0);
	text_release(&space->out);
	text_release(&space->errors);
}

static int run(struct space *space)
{
	const char *const arguments[] = {"run", space->file, "--db", space->db, "--resume", "--json", NULL};
	text_clear(&space->out);
	text_clear(&space->errors);
	return support_run(arguments, &space->out, &space->errors);
}

static size_t count_rows(const struct space *space)
{
	struct store *store = NULL;
	struct json *rows = NULL;
	assert_int_equal(store_open(space->db, &store, NULL), STATUS_OK);
	assert_int_equal(store_history(store, NULL, &rows, NULL), STATUS_OK);
	size_t count = json_count(rows);
	json_free(rows);
	store_close(store);
	return count;
}

/* What the engine would do: ngram half as fast again, shm-flag a fifth; ± 0.2 % that differs by arm and block. */
static double tps_of(const struct arm *arm, int index, int block)
{
	static const double noise[7] = {0.002, -0.001, 0.0005, -0.002, 0.0015, -0.0005, 0.001};
	double tps = 100 * (1 + noise[(index * 3 + block * 5) % 7]);
	for (size_t i = 0; i < arm->n_settings; i++) {
		if (strcmp(arm->settings[i].text, "ngram") == 0)
			tps *= 1.5;
		if (strcmp(arm->settings[i].text, "shm-flag") == 0)
			tps *= 1.2;
	}
	return tps;
}

static void a_search_adopts_what_helps_and_confirms_the_end_against_the_beginning(void **state)
{
	struct space space;
	struct experiment *first = NULL;
	open_space(&space, "{\"blocks\": 3, \"runs_per_launch\": 2}");
	assert_int_equal(experiment_load(space.file, NULL, &first, NULL), STATUS_OK);
	assert_string_equal(first->arms[1].name, "speculation=ngram"); /* the larger gain */
	struct experiment *second = parsed(greedy_next(first, 1, first->name, 2));
	assert_string_equal(second->arms[1].name, "allreduce=shm-flag");
	struct experiment *final = parsed(greedy_final(first->document, second, 1, first->name));
	fill_store(space.db, first, 3, tps_of);
	fill_store(space.db, second, 3, tps_of);
	fill_store(space.db, final, 3, tps_of);
	for (int again = 0; again < 2; again++) { /* resumed when nothing is left to do, it says the same */
		struct json *document = NULL;
		int code = run(&space);
		print_message("%s", text_str(&space.errors));
		assert_int_equal(code, 0);
		assert_non_null(strstr(text_str(&space.errors), "adopted: speculation=ngram (stage 1)"));
		assert_non_null(strstr(text_str(&space.errors), "adopted: allreduce=shm-flag (stage 2)"));
		assert_non_null(strstr(text_str(&space.errors), "(stub, final, after 2 stages)"));
		assert_int_equal(json_parse(text_str(&space.out), space.out.len, "output", &document, NULL), STATUS_OK);
		assert_string_equal(json_text(json_get(document, "name")), "stub, final");
		assert_int_equal(json_count(json_get(document, "verdicts")), 1);
		const struct json *row = json_at(json_get(document, "verdicts"), 0);
		assert_string_equal(json_text(json_get(row, "verdict")), "helped");
		assert_string_equal(json_text(json_get(row, "knob")), "speculation+allreduce");
		assert_string_equal(json_text(json_get(row, "baseline_value")), "off+ref-socket");
		assert_true(fabs(json_number(json_get(row, "effect_pct"), 0) + 44.4) < 1); /* of the time: 1 / (1.5 × 1.2) */
		json_free(document);
		assert_int_equal(count_rows(&space), 2 + 1 + 1);
	}
	experiment_release(first);
	experiment_release(second);
	experiment_release(final);
	close_space(&space);
}

static void a_budget_ends_the_search_and_still_confirms(void **state)
{
	struct space space;
	struct experiment *first = NULL;
	open_space(&space, "{\"blocks\": 3, \"runs_per_launch\": 2, \"budget_launches\": 20}");
	assert_int_equal(experiment_load(space.file, NULL, &first, NULL), STATUS_OK);
	struct experiment *final = parsed(greedy_final(first->document, first, 1, first->name));
	fill_store(space.db, first, 3, tps_of);
	fill_store(space.db, final, 3, tps_of);
	assert_int_equal(run(&space), 0);
	assert_non_null(strstr(text_str(&space.errors), "the budget allows no stage after stage 1"));
	assert_non_null(strstr(text_str(&space.out), "stub, final"));
	assert_int_equal(count_rows(&space), 3);
	const char *const only[] = {"run", space.file, "--db", space.db, "--only", "speculation=ngram", NULL};
	assert_int_equal(support_run(only, &space.out, &space.errors), 2);
	assert_non_null(strstr(text_str(&space.errors), "--only leaves a greedy search nothing to search"));
	experiment_release(first);
	experiment_release(final);
	close_space(&space);
}

int main(int argc, char **argv)
{
	int code;
	if (support_role(argc, argv, &code))
		return code;
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(each_stage_starts_from_the_winner_of_the_one_before),
		cmocka_unit_test(a_search_adopts_what_helps_and_confirms_the_end_against_the_beginning),
		cmocka_unit_test(a_budget_ends_the_search_and_still_confirms),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
