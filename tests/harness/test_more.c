/* `verdict more`: blocks added to a finished experiment, against the stub engine; and what an extension does to a protocol. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"
#include "base/text.h"
#include "harness/experiment.h"
#include "harness/sql.h"
#include "harness/store.h"
#include "tests/support/experiment_text.h"
#include "tests/support/experiments.h"
#include "tests/support/roles.h"

struct space {
	char folder[64], file[96], db[96], prompts[96];
	struct text errors;
};

static int open_space(void **state)
{
	static struct space space;
	memset(&space, 0, sizeof space);
	*state = &space;
	snprintf(space.folder, sizeof space.folder, "/tmp/verdict-more-XXXXXX");
	if (!mkdtemp(space.folder))
		return -1;
	snprintf(space.file, sizeof space.file, "%s/e.json", space.folder);
	snprintf(space.db, sizeof space.db, "%s/r.db", space.folder);
	snprintf(space.prompts, sizeof space.prompts, "%s/p.jsonl", space.folder);
	return 0;
}

static int close_space(void **state)
{
	struct space *space = *state;
	DIR *folder = opendir(space->folder);
	for (struct dirent *entry; folder && (entry = readdir(folder));) {
		char path[400];
		snprintf(path, sizeof path, "%s/%s", space->folder, entry->d_name);
		unlink(path);
	}
	closedir(folder);
	text_release(&space->errors);
	return rmdir(space->folder);
}

static void write_file(const struct space *space, const struct stub_experiment *options)
{
	struct text text = {0};
	stub_experiment_text(options, &text);
	assert_int_equal(file_write_atomic(space->file, text.data, text.len, NULL), STATUS_OK);
	text_release(&text);
}

/* A command of verdict with words; the document it printed in *out. */
static int call(struct space *space, struct json **out, const char *const *words)
{
	const char *arguments[16];
	struct text text = {0};
	int n = 0;
	while (words[n] && n < 12) {
		arguments[n] = words[n];
		n++;
	}
	arguments[n++] = "--db";
	arguments[n++] = space->db;
	arguments[n++] = "--json";
	arguments[n] = NULL;
	text_clear(&space->errors);
	int code = support_run(arguments, &text, &space->errors);
	struct json *document = NULL;
	json_parse(text_str(&text), text.len, "output", &document, NULL);
	if (out)
		*out = document;
	else
		json_free(document);
	text_release(&text);
	return code;
}
#define CALL(space, out, ...) call(space, out, (const char *const[]){__VA_ARGS__, NULL})

static void assert_said(const struct space *space, const char *expected)
{
	if (!strstr(text_str(&space->errors), expected))
		fail_msg("missing: %s\nin: %s", expected, text_str(&space->errors));
}

static int count_launches(const struct space *space, int *blocks)
{
	struct store *store = NULL;
	struct json *record = NULL;
	assert_int_equal(store_open(space->db, &store, NULL), STATUS_OK);
	assert_int_equal(store_export(store, 1, &record, NULL), STATUS_OK);
	const struct json *launches = json_get(record, "launches");
	int count = (int)json_count(launches);
	*blocks = 0;
	for (int i = 0; i < count; i++) {
		int block = (int)json_int(json_get(json_at(launches, (size_t)i), "block"), -1) + 1;
		*blocks = block > *blocks ? block : *blocks;
	}
	json_free(record);
	store_close(store);
	return count;
}

static void change(const struct space *space, const char *statement)
{
	struct sql *sql = NULL;
	assert_int_equal(sql_open(space->db, 1000, &sql, NULL), STATUS_OK);
	assert_int_equal(sql_exec(sql, statement, NULL), STATUS_OK);
	sql_close(sql);
}

#define SHORT_BLOCKS(n) \
	"{\"blocks\": " n ", \"max_blocks\": " n \
	", \"runs_per_launch\": 1, \"warmup\": {\"requests_per_slot\": 0}, \"stall_s\": 5, " \
	"\"run_timeout_s\": 20}"
#define NO_TEXTS "{\"greedy_fingerprint\": {\"prompts\": 0}}"

static void blocks_are_added_under_the_same_number_and_judged_as_a_further_look(void **state)
{
	struct space *space = *state;
	struct json *document = NULL;
	int blocks;
	write_file(space, &(struct stub_experiment){.protocol = SHORT_BLOCKS("2"), .guards = NO_TEXTS});
	assert_int_equal(CALL(space, NULL, "run", space->file), 0);
	assert_int_equal(count_launches(space, &blocks), 4);
	unlink(space->file); /* the stored document is what counts */
	assert_int_equal(CALL(space, &document, "more", "1", "--blocks", "2"), 0);
	assert_int_equal(json_int(json_get(document, "experiment_id"), 0), 1);
	const struct json *row = json_at(json_get(document, "verdicts"), 0);
	assert_int_equal(json_int(json_get(row, "blocks"), 0), 4);
	assert_int_equal(count_launches(space, &blocks), 8);
	assert_int_equal(blocks, 4);
	assert_said(space, "2 settings × 4 blocks, 8 launches, 4 of them already there");
	json_free(document);
	/* Two looks so far; a third one is corrected for three. An id of one of its verdicts names the experiment too. */
	assert_int_equal(CALL(space, &document, "more", "2", "--blocks", "1"), 0);
	assert_int_equal(count_launches(space, &blocks), 10);
	json_free(document);
	struct store *store = NULL;
	assert_int_equal(store_open(space->db, &store, NULL), STATUS_OK);
	assert_int_equal(store_export(store, 1, &document, NULL), STATUS_OK);
	double level = json_number(json_get(json_at(json_get(document, "verdicts"), 0), "level"), 0);
	assert_true(level > 0.0220 && level < 0.0222); /* Pocock, three looks at 0.05 */
	assert_int_equal(json_count(json_get(document, "extensions")), 2);
	assert_int_equal(json_int(json_get(json_at(json_get(document, "extensions"), 1), "from_blocks"), 0), 4);
	json_free(document);
	store_close(store);
}

/* They were asked for by their number: a budget of launches or seconds that the search has spent does not take them back. */
static void blocks_are_added_whatever_budget_is_spent(void **state)
{
	struct space *space = *state;
	int blocks;
	write_file(space,
		&(struct stub_experiment){
			.protocol = "{\"blocks\": 2, \"max_blocks\": 2, \"runs_per_launch\": 1, \"budget_launches\": 4, "
				    "\"budget_s\": 0.1, \"warmup\": {\"requests_per_slot\": 0}}",
			.guards = NO_TEXTS});
	assert_int_equal(CALL(space, NULL, "run", space->file), 0);
	assert_int_equal(count_launches(space, &blocks), 2);
	assert_int_equal(CALL(space, NULL, "more", "1", "--blocks", "2"), 0);
	count_launches(space, &blocks);
	assert_int_equal(blocks, 1 + 2);
}

static void an_interrupted_extension_is_completed_by_resume(void **state)
{
	struct space *space = *state;
	int blocks;
	write_file(space, &(struct stub_experiment){.protocol = SHORT_BLOCKS("1"), .guards = NO_TEXTS});
	assert_int_equal(CALL(space, NULL, "run", space->file), 0);
	/* As a kill right after the extension was noted leaves it. */
	change(space, "INSERT INTO extension VALUES (1, 1, 3, 5); UPDATE experiment SET finished_utc_ns = NULL");
	assert_int_equal(CALL(space, NULL, "more", "1", "--blocks", "1"), 2);
	assert_said(space, "experiment 1 is not finished");
	assert_int_equal(CALL(space, NULL, "more", "1", "--resume"), 0);
	assert_int_equal(count_launches(space, &blocks), 6);
	assert_int_equal(blocks, 3);
	/* The command that began it all completes it too. */
	change(space,
		"DELETE FROM run WHERE launch_id IN (SELECT launch_id FROM launch WHERE block = 2 AND arm = 1)"
		" AND run_id NOT IN (SELECT run_id FROM request);"
		"DELETE FROM request WHERE run_id IN (SELECT run_id FROM run JOIN launch USING (launch_id) WHERE block = 2 AND arm "
		"= 1);"
		"DELETE FROM run WHERE launch_id IN (SELECT launch_id FROM launch WHERE block = 2 AND arm = 1);"
		"DELETE FROM llama_bench WHERE launch_id IN (SELECT launch_id FROM launch WHERE block = 2 AND arm = 1);"
		"DELETE FROM launch WHERE block = 2 AND arm = 1");
	assert_int_equal(CALL(space, NULL, "run", space->file, "--resume"), 0);
	assert_int_equal(count_launches(space, &blocks), 6);
}

static void prompts_come_from_the_record_when_their_file_is_gone(void **state)
{
	struct space *space = *state;
	const char *prompts = "{\"prompt\": \"one\"}\n{\"prompt\": \"two\"}\n";
	int blocks;
	assert_int_equal(file_write_atomic(space->prompts, prompts, strlen(prompts), NULL), STATUS_OK);
	write_file(space,
		&(struct stub_experiment){.protocol = SHORT_BLOCKS("1"),
			.guards = NO_TEXTS,
			.workloads =
				"[{\"concurrency\": [1, 2], \"requests\": 2, \"dataset\": {\"path\": \"p.jsonl\"}, \"sampling\": "
				"{\"max_tokens\": 6}}]"});
	assert_int_equal(CALL(space, NULL, "run", space->file), 0);
	unlink(space->prompts);
	assert_int_equal(CALL(space, NULL, "more", "1", "--blocks", "1"), 0);
	assert_int_equal(count_launches(space, &blocks), 4);
}

static void only_one_candidate_stays_only_one(void **state)
{
	struct space *space = *state;
	int blocks;
	write_file(space,
		&(struct stub_experiment){.protocol = SHORT_BLOCKS("1"),
			.guards = NO_TEXTS,
			.baseline = "{\"speculation\": \"off\", \"graph_max_bs\": 8}",
			.matrix = "{\"factors\": {\"speculation\": [\"off\", \"ngram\"], \"graph_max_bs\": [8, 0]}, \"aa_twin\": "
				  "false}"});
	assert_int_equal(CALL(space, NULL, "run", space->file, "--only", "graph_max_bs=0"), 0);
	assert_int_equal(CALL(space, NULL, "more", "1", "--blocks", "1"), 0);
	assert_int_equal(count_launches(space, &blocks), 4);
}

static void another_machine_engine_or_model_is_refused_by_name(void **state)
{
	struct space *space = *state;
	int blocks;
	write_file(space, &(struct stub_experiment){.protocol = SHORT_BLOCKS("1"), .guards = NO_TEXTS});
	assert_int_equal(CALL(space, NULL, "run", space->file), 0);
	change(space, "UPDATE machine SET hash = hash || 'x'");
	assert_int_equal(CALL(space, NULL, "more", "1", "--blocks", "1"), 3);
	assert_said(space, "the machine is not the one that experiment 1 was measured with");
	change(space, "UPDATE machine SET hash = substr(hash, 1, 64); UPDATE build SET hash = 'b'");
	assert_int_equal(CALL(space, NULL, "more", "1", "--blocks", "1"), 3);
	assert_said(space, "the engine is not the one");
	change(space, "UPDATE experiment SET hash = 'h'");
	assert_int_equal(CALL(space, NULL, "more", "1", "--blocks", "1"), 3);
	assert_said(space, "cannot be made again");
	assert_int_equal(count_launches(space, &blocks), 2);
	change(space, "UPDATE experiment SET document = '{\"name\": 3}'");
	assert_int_equal(CALL(space, NULL, "more", "1", "--blocks", "1"), 2);
	assert_said(space, "experiment 1:2:11: name");
}

static void bad_usage_is_told(void **state)
{
	struct space *space = *state;
	assert_int_equal(CALL(space, NULL, "more", "1", "--blocks", "1"), 2); /* no database, and none is made */
	assert_false(file_exists(space->db));
	write_file(space, &(struct stub_experiment){.protocol = SHORT_BLOCKS("1"), .guards = NO_TEXTS});
	assert_int_equal(CALL(space, NULL, "run", space->file), 0);
	assert_int_equal(CALL(space, NULL, "more", "1"), 2);
	assert_said(space, "--blocks N");
	assert_int_equal(CALL(space, NULL, "more", "1", "--blocks", "0"), 2);
	assert_int_equal(CALL(space, NULL, "more", "1", "--blocks", "1", "--resume"), 2);
	assert_int_equal(CALL(space, NULL, "more", "--blocks", "1"), 2);
	assert_int_equal(CALL(space, NULL, "more", "first", "--blocks", "1"), 2);
	assert_int_equal(CALL(space, NULL, "more", "77", "--blocks", "1"), 2);
	assert_said(space, "there is no experiment 77");
}

static void an_extension_adds_one_look_and_never_loosens_the_level(void **state)
{
	struct experiment *experiment =
		experiment_from_text("{'name':'x','matrix':{'factors':{'graph_max_bs':[8,0]}},'protocol':{'looks':[3,5,8]}}");
	struct protocol *protocol = &experiment->protocol;
	assert_int_equal(protocol->level_looks, 3);
	/* Decided at the first look: of the three that the level allows for, two are left. */
	assert_int_equal(experiment_extend(experiment, 3, 7, NULL), STATUS_OK);
	assert_int_equal(protocol->n_looks, 2);
	assert_int_equal(protocol->looks[1], 7);
	assert_int_equal(protocol->level_looks, 3);
	assert_int_equal(protocol->max_blocks, 7);
	/* Ended by its budget between two looks: that was a look as well. */
	assert_int_equal(experiment_extend(experiment, 9, 10, NULL), STATUS_OK);
	assert_int_equal(protocol->n_looks, 4);
	assert_int_equal(protocol->looks[2], 9);
	assert_int_equal(protocol->level_looks, 4);
	for (int to = 11; to <= 14; to++)
		assert_int_equal(experiment_extend(experiment, to - 1, to, NULL), STATUS_OK);
	struct err err = {0};
	assert_int_equal(experiment_extend(experiment, 14, 15, &err), STATUS_INPUT);
	assert_non_null(strstr(err.text, "8 times"));
	experiment_release(experiment);
}

#define SPACE_TEST(name) cmocka_unit_test_setup_teardown(name, open_space, close_space)

int main(int argc, char **argv)
{
	int code;
	if (support_role(argc, argv, &code))
		return code;
	const struct CMUnitTest tests[] = {
		SPACE_TEST(blocks_are_added_under_the_same_number_and_judged_as_a_further_look),
		SPACE_TEST(blocks_are_added_whatever_budget_is_spent),
		SPACE_TEST(an_interrupted_extension_is_completed_by_resume),
		SPACE_TEST(prompts_come_from_the_record_when_their_file_is_gone),
		SPACE_TEST(only_one_candidate_stays_only_one),
		SPACE_TEST(another_machine_engine_or_model_is_refused_by_name),
		SPACE_TEST(bad_usage_is_told),
		cmocka_unit_test(an_extension_adds_one_look_and_never_loosens_the_level),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
