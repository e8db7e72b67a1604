/* The commands that launch nothing, as a user calls them: check, plan, history, show, import, export. Standard output goes to a
 * file. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "harness/commands.h"
#include "harness/store.h"
#include "tests/support/experiment_text.h"
#include "tests/support/launch_make.h"

#define WORDS_MAX 12

struct fixture {
	char folder[64], db[96], records[96], record[128], output[96];
	struct text out; /* what the last command printed */
	struct err err;
	int64_t id;
};

typedef enum status command(int argc, char **argv, struct err *err);

/* Runs a command with words up to NULL, and keeps what it printed. */
static enum status run_words(struct fixture *f, command *run, const char *const *words)
{
	char *argv[WORDS_MAX + 1] = {(char *)"verdict", (char *)"command"};
	int argc = 2;
	for (; *words; words++)
		argv[argc++] = (char *)*words;
	err_clear(&f->err);
	text_clear(&f->out);
	fflush(stdout);
	int kept = dup(STDOUT_FILENO), file = open(f->output, O_CREAT | O_TRUNC | O_WRONLY, 0600);
	dup2(file, STDOUT_FILENO);
	enum status status = run(argc, argv, &f->err);
	dup2(kept, STDOUT_FILENO);
	close(kept);
	close(file);
	file_read(f->output, 1 << 24, &f->out, NULL);
	return status;
}

#define RUN(f, command, ...) run_words(f, command, (const char *const[]){__VA_ARGS__, NULL})

static void fill_database(struct fixture *f)
{
	struct experiment *experiment = experiment_from_text("{'name':'demo','matrix':{'factors':{'graph_max_bs':[8,0]}},"
							     "'workloads':[{'name':'w','requests':2}]}");
	struct machine_facts machine = {"aa", json_new_object()};
	struct build_facts build = {"bb", "verdict-engine", "0.1.0"};
	struct store *store = NULL;
	struct launch_cells cells = {0};
	struct verdict_row rows[EXPERIMENT_ARMS_MAX];
	char reason[VERDICT_REASON_BYTES];
	size_t n_rows = 0;
	bool resumed, failed;
	assert_int_equal(store_open(f->db, &store, NULL), STATUS_OK);
	const struct store_subject subject = {&machine, &build, "m.gguf", "cc"};
	assert_int_equal(store_begin_experiment(store, experiment, &subject, false, &f->id, &resumed, NULL), STATUS_OK);
	for (int block = 0; block < 3; block++)
		for (int arm = 0; arm < 3; arm++) {
			struct launch_result launch;
			launch_make(&launch, experiment, arm, block, 100 + 20 * (arm == 2) + 0.1 * (arm * 2 + block));
			assert_int_equal(store_save_launch(store, f->id, experiment, &launch, NULL), STATUS_OK);
			launch_result_release(&launch);
		}
	store_load_cells(store, f->id, experiment, &cells, NULL);
	const struct verdict_input input = {.experiment = experiment, .cells = cells.items, .n_cells = cells.count, .n_looks = 1};
	verdict_compute(&input, 0, rows, &n_rows, &failed, reason, NULL);
	assert_int_equal(store_save_verdicts(store, f->id, experiment, rows, n_rows, true, NULL), STATUS_OK);
	launch_cells_release(&cells);
	store_close(store);
	json_free(machine.facts);
	experiment_release(experiment);
}

static int fixture_open(void **state)
{
	struct fixture *f = mem_calloc(1, sizeof *f);
	*state = f;
	snprintf(f->folder, sizeof f->folder, "/tmp/verdict-commands-XXXXXX");
	if (!mkdtemp(f->folder))
		return -1;
	snprintf(f->db, sizeof f->db, "%s/r.db", f->folder);
	snprintf(f->output, sizeof f->output, "%s/out", f->folder);
	snprintf(f->records, sizeof f->records, "%s/records", f->folder);
	snprintf(f->record, sizeof f->record, "%s/one.json", f->records);
	return 0;
}

static int fixture_close(void **state)
{
	struct fixture *f = *state;
	static const char *const names[] = {"r.db", "r.db-wal", "r.db-shm", "s.db", "s.db-wal", "s.db-shm", "out", "x.json",
		"records/one.json", "records/bad.json"};
	for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
		char path[160];
		snprintf(path, sizeof path, "%s/%s", f->folder, names[i]);
		unlink(path);
	}
	rmdir(f->records);
	rmdir(f->folder);
	text_release(&f->out);
	mem_free(f);
	return 0;
}

static struct json *output_json(struct fixture *f)
{
	struct json *value = NULL;
	struct err err = {0};
	if (json_parse(text_str(&f->out), f->out.len, "output", &value, &err))
		fail_msg("%s in:\n%s", err.text, text_str(&f->out));
	return value;
}

static void assert_printed(struct fixture *f, const char *expected)
{
	if (!strstr(text_str(&f->out), expected))
		fail_msg("missing: %s\nin:\n%s\n%s", expected, text_str(&f->out), f->err.text);
}

static void check_says_what_it_found_or_where_the_mistake_is(void **state)
{
	struct fixture *f = *state;
	char path[160];
	assert_int_equal(RUN(f, cmd_check, "experiments/quickstart.json"), STATUS_OK);
	assert_printed(f, "experiments/quickstart.json: quickstart is fine: 5 settings to compare with baseline, 1 workload\n");
	assert_int_equal(RUN(f, cmd_check, "experiments/quickstart.json", "--json", "--only", "speculation=ngram"), STATUS_OK);
	struct json *document = output_json(f);
	assert_true(json_bool(json_get(document, "ok"), false));
	assert_int_equal(json_count(json_get(document, "arms")), 3);
	json_free(document);
	snprintf(path, sizeof path, "%s/x.json", f->folder);
	file_write_atomic(path, "{\n \"nam\": 1}", 12, NULL);
	assert_int_equal(RUN(f, cmd_check, path), STATUS_INPUT);
	assert_non_null(strstr(f->err.text, "/x.json:2:2: nam: unknown key"));
	assert_int_equal(f->out.len, 0);
	assert_int_equal(RUN(f, cmd_check, path, "--json"), STATUS_INPUT);
	document = output_json(f);
	assert_false(json_bool(json_get(document, "ok"), true));
	assert_non_null(strstr(json_text(json_get(document, "error")), "x.json:2:2"));
	json_free(document);
	assert_int_not_equal(RUN(f, cmd_check, "no-such-file.json"), STATUS_OK);
	assert_int_equal(RUN(f, cmd_check, NULL), STATUS_INPUT);
	assert_int_equal(RUN(f, cmd_check, "a", "b"), STATUS_INPUT);
	assert_int_equal(RUN(f, cmd_check, "a", "--frob"), STATUS_INPUT);
}

static void plan_prints_arms_commands_order_and_time(void **state)
{
	struct fixture *f = *state;
	assert_int_equal(RUN(f, cmd_plan, "experiments/quickstart.json", "--db", f->db), STATUS_OK);
	assert_printed(f, "quickstart: 7 settings × 8 blocks, 56 launches, about ");
	assert_printed(f, "(a guess: ");
	assert_printed(
		f, "verdict-engine serve --model models/SmolLM2-135M-Instruct.Q4_1.gguf --host 127.0.0.1 --port ${PORT} --tp 2");
	assert_printed(f, "--allreduce ref-socket --graph-max-bs 8");
	assert_printed(f, "  block 1: ");
	assert_printed(f, "  block 8: ");
	assert_null(strstr(text_str(&f->out), "block 0")); /* people count from 1 */
	assert_int_equal(
		RUN(f, cmd_plan, "experiments/quickstart.json", "--json", "--model", "other model.gguf", "--quick", "--db", f->db),
		STATUS_OK);
	struct json *document = output_json(f);
	const struct json *arms = json_get(document, "arms");
	assert_int_equal(json_count(arms), 7);
	assert_int_equal(json_count(json_get(document, "launches")), 21);
	assert_int_equal(json_int(json_get(json_at(json_get(document, "launches"), 0), "block"), -1), 0); /* programs from 0 */
	assert_true(json_number(json_get(document, "seconds"), 0) > 0);
	assert_string_equal(json_text(json_at(json_get(json_at(arms, 0), "command"), 3)), "other model.gguf");
	assert_false(file_exists(f->db)); /* asking costs nothing */
	json_free(document);
	assert_int_equal(RUN(f, cmd_plan, "experiments/quickstart.json", "--set", "engine.model=null"), STATUS_INPUT);
}

static void argument_vectors_come_out_byte_for_byte(void **state)
{
	struct fixture *f = *state;
	static const char *const words[] = {"python3", "--cuda-graph-max-bs=8", "--tp", "8", "--disable-radix-cache",
		"--json-model-override-args", "{\"a b\": \"c'd\"}", "--tokenizer", ""};
	struct json *document = json_new_object(), *engine = json_new_object(), *vector = json_new_array(),
		    *flags = json_new_object();
	struct json *factors = json_new_object(), *matrix = json_new_object(), *values = json_new_array();
	for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
		json_append(vector, json_new_string(words[i]));
	json_set(flags, "k", json_new_string("--k"));
	json_set(engine, "adapter", json_new_string("command"));
	json_set(engine, "command", vector);
	json_set(engine, "flags", flags);
	json_append(values, json_new_integer(1));
	json_append(values, json_new_string(""));
	json_set(factors, "k", values);
	json_set(matrix, "factors", factors);
	json_set(document, "name", json_new_string("argv"));
	json_set(document, "engine", engine);
	json_set(document, "matrix", matrix);
	struct text text = {0};
	char path[160];
	json_write(document, JSON_STYLE_PRETTY, &text);
	snprintf(path, sizeof path, "%s/x.json", f->folder);
	file_write_atomic(path, text_str(&text), text.len, NULL);
	assert_int_equal(RUN(f, cmd_plan, path, "--json", "--db", f->db), STATUS_OK);
	struct json *plan = output_json(f);
	const struct json *planned = json_get(json_at(json_get(plan, "arms"), 2), "command");
	for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
		assert_string_equal(json_text(json_at(planned, i)), words[i]);
	assert_string_equal(json_text(json_at(planned, json_count(planned) - 2)), "--k");
	assert_string_equal(json_text(json_at(planned, json_count(planned) - 1)), "");
	text_release(&text);
	json_free(plan);
	json_free(document);
}

static void history_and_show_answer_from_the_database(void **state)
{
	struct fixture *f = *state;
	char number[32];
	fill_database(f);
	assert_int_equal(RUN(f, cmd_history, "--db", f->db, "--json"), STATUS_OK);
	struct json *rows = output_json(f);
	assert_int_equal(json_count(rows), 2);
	assert_string_equal(json_text(json_get(json_at(rows, 1), "knob")), "graph_max_bs");
	assert_string_equal(json_text(json_get(json_at(rows, 1), "verdict")), "helped");
	snprintf(number, sizeof number, "%lld", (long long)json_int(json_get(json_at(rows, 1), "evidence_id"), 0));
	json_free(rows);
	assert_int_equal(RUN(f, cmd_history, "--db", f->db, "--verdict", "helped"), STATUS_OK);
	assert_printed(f, "graph_max_bs=0");
	assert_int_equal(RUN(f, cmd_show, number, "--db", f->db), STATUS_OK);
	assert_printed(f, "graph_max_bs=0 helped: 1.20× the baseline.");
	assert_printed(f, "launches (output_tps of each measured run)");
	assert_int_equal(RUN(f, cmd_show, number, "--db", f->db, "--json"), STATUS_OK);
	struct json *shown = output_json(f);
	assert_int_equal(json_count(json_get(shown, "launches")), 6);
	json_free(shown);
	assert_int_equal(RUN(f, cmd_show, "99", "--db", f->db), STATUS_NOT_FOUND);
	assert_int_equal(RUN(f, cmd_show, "abc", "--db", f->db), STATUS_INPUT);
	assert_int_equal(RUN(f, cmd_show, "--db", f->db), STATUS_INPUT);
	assert_int_equal(RUN(f, cmd_history, "stray", "--db", f->db), STATUS_INPUT);
	assert_int_equal(RUN(f, cmd_history, "--limit", "many", "--db", f->db), STATUS_INPUT);
}

static void asking_does_not_create_a_database(void **state)
{
	struct fixture *f = *state;
	assert_int_equal(RUN(f, cmd_history, "--db", f->db), STATUS_NOT_FOUND);
	assert_int_equal(RUN(f, cmd_show, "1", "--db", f->db), STATUS_NOT_FOUND);
	assert_int_equal(RUN(f, cmd_export, "1", "--db", f->db), STATUS_NOT_FOUND);
	assert_false(file_exists(f->db));
}

static void exported_records_are_imported_once(void **state)
{
	struct fixture *f = *state;
	char other[96], number[32];
	fill_database(f);
	snprintf(other, sizeof other, "%s/s.db", f->folder);
	snprintf(number, sizeof number, "%lld", (long long)f->id);
	assert_int_equal(RUN(f, cmd_export, number, "--db", f->db), STATUS_OK);
	mkdir(f->records, 0700);
	file_write_atomic(f->record, text_str(&f->out), f->out.len, NULL);
	assert_int_equal(RUN(f, cmd_import, f->records, "--db", other), STATUS_OK);
	assert_printed(f, "1 experiment added, 0 known already");
	assert_int_equal(RUN(f, cmd_import, f->records, f->record, "--db", other, "--json"), STATUS_OK);
	assert_printed(f, "{\"added\": 0, \"known\": 2, ");
	assert_int_equal(RUN(f, cmd_history, "--db", other, "--json"), STATUS_OK);
	struct json *rows = output_json(f);
	assert_int_equal(json_count(rows), 2);
	json_free(rows);
}

static void bad_records_are_refused_with_file_and_place(void **state)
{
	struct fixture *f = *state;
	char bad[160];
	assert_int_equal(RUN(f, cmd_import, "tests/golden/field/r05_metrics.json", "--db", f->db), STATUS_INPUT);
	assert_non_null(strstr(f->err.text, "tests/golden/field/r05_metrics.json:1:"));
	mkdir(f->records, 0700);
	snprintf(bad, sizeof bad, "%s/bad.json", f->records);
	file_write_atomic(bad, "{}", 2, NULL);
	assert_int_equal(RUN(f, cmd_import, f->records, "--db", f->db), STATUS_INPUT);
	assert_non_null(strstr(f->err.text, "bad.json:1:1: schema: is missing"));
	assert_int_equal(RUN(f, cmd_import, "no-such-folder", "--db", f->db), STATUS_NOT_FOUND);
	assert_int_equal(RUN(f, cmd_import, "--db", f->db), STATUS_INPUT);
	assert_false(file_exists(f->db)); /* it would be an empty one */
	/* A database that was there stays, and the good files before a bad one bring nothing. */
	fill_database(f);
	static const char record[] = "experiments/reference/quickstart-cpu-epyc-2-cores.json";
	assert_int_equal(RUN(f, cmd_import, record, "no-such-folder", "--db", f->db), STATUS_NOT_FOUND);
	assert_true(file_exists(f->db));
	assert_int_equal(
		RUN(f, cmd_import, "tests/golden/foreign/llama_bench.json", record, f->records, "--db", f->db), STATUS_INPUT);
	assert_int_equal(RUN(f, cmd_import, record, "--json", "--db", f->db), STATUS_OK);
	struct json *counts = output_json(f);
	assert_int_equal(json_int(json_get(counts, "added"), -1), 1); /* it was not there before */
	json_free(counts);
	assert_int_equal(RUN(f, cmd_import, "tests/golden/foreign/llama_bench.json", "--json", "--db", f->db), STATUS_OK);
	counts = output_json(f);
	assert_int_equal(json_int(json_get(counts, "measurements_added"), -1), 2);
	json_free(counts);
}

static void an_empty_folder_of_records_is_fine(void **state)
{
	struct fixture *f = *state;
	mkdir(f->records, 0700);
	assert_int_equal(RUN(f, cmd_import, f->records, "--db", f->db), STATUS_OK);
	assert_printed(f, "0 experiments added, 0 known already");
}

static void every_command_teaches(void **state)
{
	static command *const commands[] = {
		cmd_check, cmd_plan, cmd_history, cmd_show, cmd_import, cmd_export, cmd_run, cmd_bench, cmd_more, cmd_init};
	struct fixture *f = *state;
	for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
		assert_int_equal(RUN(f, commands[i], "--help"), STATUS_OK);
		assert_printed(f, "usage: verdict ");
		assert_printed(f, "--help");
	}
}

#define COMMAND_TEST(name) cmocka_unit_test_setup_teardown(name, fixture_open, fixture_close)

int main(void)
{
	const struct CMUnitTest tests[] = {
		COMMAND_TEST(check_says_what_it_found_or_where_the_mistake_is),
		COMMAND_TEST(plan_prints_arms_commands_order_and_time),
		COMMAND_TEST(argument_vectors_come_out_byte_for_byte),
		COMMAND_TEST(history_and_show_answer_from_the_database),
		COMMAND_TEST(asking_does_not_create_a_database),
		COMMAND_TEST(exported_records_are_imported_once),
		COMMAND_TEST(bad_records_are_refused_with_file_and_place),
		COMMAND_TEST(an_empty_folder_of_records_is_fine),
		COMMAND_TEST(every_command_teaches),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
