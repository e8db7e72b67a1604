/* What other benchmarks wrote comes in whole or not at all, and what was measured here goes out in their shapes. */
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
#include "harness/metric.h"
#include "harness/foreign.h"
#include "harness/report_export.h"
#include "harness/sql.h"
#include "harness/store.h"
#include "tests/support/experiment_text.h"
#include "tests/support/launch_make.h"
#include "tests/support/replay_checks.h"

static struct json *read_golden(const char *name)
{
	struct text path = {0}, text = {0};
	struct json *rows = NULL;
	struct err err = {0};
	text_printf(&path, "tests/golden/foreign/%s", name);
	if (file_read(text_str(&path), 1 << 20, &text, &err) || foreign_read(text_str(&text), text.len, name, &rows, &err))
		fail_msg("%s", err.text);
	assert_non_null(rows);
	text_release(&path);
	text_release(&text);
	return rows;
}

static const char *text_at(const struct json *rows, size_t i, const char *key)
{
	return json_text(json_get(json_at(rows, i), key));
}

static double number_at(const struct json *rows, size_t i, const char *key)
{
	return json_number(json_get(json_at(rows, i), key), NAN);
}

static void llama_bench_is_read_from_json_lines_and_sql(void **state)
{
	struct json *rows = read_golden("llama_bench.json");
	assert_int_equal(json_count(rows), 2);
	assert_string_equal(text_at(rows, 0, "tool"), "llama-bench");
	assert_string_equal(text_at(rows, 0, "build"), "3f1ae2e3");
	assert_string_equal(text_at(rows, 0, "time_utc"), "2026-11-29T20:00:00Z");
	assert_true(number_at(rows, 0, "tokens_per_s") == 512.25 && number_at(rows, 0, "input_len") == 512);
	assert_int_equal(json_count(json_get(json_get(json_at(rows, 0), "document"), "samples_ts")), 2);
	assert_int_equal(json_int(json_get(json_get(json_at(rows, 0), "document"), "a_column_of_tomorrow"), 0), 7);
	assert_true(number_at(rows, 1, "tokens_per_s") == 87.5);
	json_free(rows);
	rows = read_golden("llama_bench.jsonl");
	assert_int_equal(json_count(rows), 2);
	assert_true(number_at(rows, 1, "tokens_per_s") == 50 && number_at(rows, 1, "output_len") == 128);
	json_free(rows);
	rows = read_golden("llama_bench.sql");
	assert_int_equal(json_count(rows), 2);
	assert_string_equal(text_at(rows, 0, "machine"), "it's (a) CPU; really");
	assert_true(number_at(rows, 0, "tokens_per_s") == 410.125 && number_at(rows, 1, "tokens_per_s") == 45);
	assert_null(json_get(json_at(rows, 1), "machine"));
	json_free(rows);
}

static void serving_benchmarks_are_read_with_their_units(void **state)
{
	struct json *rows = read_golden("vllm_bench.json");
	assert_int_equal(json_count(rows), 1);
	assert_string_equal(text_at(rows, 0, "tool"), "vllm-bench");
	assert_string_equal(text_at(rows, 0, "model"), "meta-llama/Llama-3.2-1B-Instruct");
	assert_true(number_at(rows, 0, "tokens_per_s") == 1354.05 && number_at(rows, 0, "ttft_ms_p50") == 75.5);
	assert_true(number_at(rows, 0, "concurrency") == 32 && number_at(rows, 0, "failed") == 0);
	assert_null(json_get(json_at(rows, 0), "label"));
	json_free(rows);
	rows = read_golden("sglang_bench.jsonl");
	assert_int_equal(json_count(rows), 2);
	assert_string_equal(text_at(rows, 1, "label"), "again");
	assert_true(number_at(rows, 0, "tokens_per_s") == 1365.3 && number_at(rows, 0, "completed") == 160);
	assert_null(json_get(json_at(rows, 0), "failed")); /* it does not count them */
	json_free(rows);
	rows = read_golden("inferencex.json");
	assert_int_equal(json_count(rows), 2);
	assert_true(number_at(rows, 0, "ttft_ms_p50") == 250 && fabs(number_at(rows, 0, "tpot_ms_p50") - 18.5) < 1e-9);
	assert_true(number_at(rows, 1, "tokens_per_s_gpu") == 1890 && isnan(number_at(rows, 1, "tokens_per_s")));
	json_free(rows);
}

static void files_that_vllm_and_sglang_really_wrote_are_read(void **state)
{
	struct json *rows = read_golden("vllm_bench_recorded.json");
	assert_int_equal(json_count(rows), 1);
	assert_string_equal(text_at(rows, 0, "tool"), "vllm-bench");
	assert_string_equal(text_at(rows, 0, "model"), "smollm");
	assert_true(fabs(number_at(rows, 0, "tokens_per_s") - 404.927) < 1e-3 && number_at(rows, 0, "concurrency") == 4);
	assert_true(fabs(number_at(rows, 0, "ttft_ms_p50") - 200.307) < 1e-3 &&
		fabs(number_at(rows, 0, "tpot_ms_p50") - 7.0897) < 1e-3);
	assert_true(number_at(rows, 0, "completed") == 32 && number_at(rows, 0, "failed") == 0);
	json_free(rows);
	rows = read_golden("sglang_bench_recorded.jsonl"); /* its request rate is the word Infinity, which JSON does not have */
	assert_int_equal(json_count(rows), 1);
	assert_string_equal(text_at(rows, 0, "tool"), "sglang-bench");
	assert_true(fabs(number_at(rows, 0, "tokens_per_s") - 388.169) < 1e-3 && number_at(rows, 0, "completed") == 32);
	assert_true(fabs(number_at(rows, 0, "ttft_ms_p50") - 223.530) < 1e-3);
	json_free(rows);
}

static void what_cannot_be_read_is_refused_with_its_place(void **state)
{
	static const struct {
		const char *text, *complaint;
	} cases[] = {
		{"", "x:1:1"},
		{"[]", "x: it holds no measurement"},
		{"[1]", "x: entry 1: it is no measurement of a known benchmark"},
		{"[{\"n_prompt\": 1, \"n_gen\": 0, \"avg_ts\": 5}, {\"a\": 1}]", "x: entry 2: it is no measurement"},
		{"[{\"n_prompt\": 1, \"n_gen\": 0, \"avg_ts\": \"fast\"}]",
			"x: entry 1 (llama-bench): avg_ts: must be a number from 0"},
		{"[{\"n_prompt\": 1, \"n_gen\": 0, \"avg_ts\": NaN}]", "x: entry 1 (llama-bench): avg_ts: must be a number from 0"},
		{"[{\"a\": NaN, \"b\": }]", "x:1:"},
		{"{\"n_prompt\": 1, \"n_gen\": 0, \"avg_ts\": 5}\n{\"n_prompt\": 1,\n", "x:2:"},
		{"{\"n_prompt\": 1, \"n_gen\": 0, \"avg_ts\": 5}\n\n{\"n_prompt\": 1, \"n_gen\": 0}\n",
			"x: entry 2 (llama-bench): avg_ts: is missing"},
		{"{\"total_output_tokens\": 1, \"tokenizer_id\": \"t\"}", "x: entry 1 (vllm-bench): output_throughput: is missing"},
		{"INSERT INTO other (a) VALUES (1);", "x:1:13: expected the table llama_bench"},
		{"INSERT INTO llama_bench (n_prompt, n_gen) VALUES (1);", "x:1:52: expected , and another value"},
		{"INSERT INTO llama_bench (n_prompt) VALUES (1, 2);", "x:1:45: expected ); after as many values as columns"},
		{"INSERT INTO llama_bench (n_prompt) VALUES ('1);", "x:1:48: a text has no end"},
		{"INSERT INTO llama_bench (cpu_info) VALUES ('it's');", "x:1:48: expected ); after"},
		{"INSERT INTO llama_bench (n_prompt) VALUES (x);", "x:1:44: expected a number"},
		{"INSERT INTO llama_bench (n_gen, n_gen) VALUES (1, 2);", "x:1:33: this column is there twice"},
		{"INSERT INTO llama_bench (n_gen, n_prompt, avg_ts) VALUES ('8', '0', 'fast');",
			"x: entry 1 (llama-bench): avg_ts: must be a number from 0 to 1000000000000, is 'fast'"},
		{"INSERT INTO llama_bench () VALUES ();", "x:1:26: expected the name of a column"},
		{"INSERT INTO llama_bench (n_gen, n_prompt) VALUES (1, 2);\nDROP TABLE run;",
			"x:2:1: expected CREATE TABLE or INSERT"},
		{"CREATE TABLE llama_bench (", "x: it holds no measurement"},
	};
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct json *rows = NULL;
		struct err err = {0};
		assert_int_equal(foreign_read(cases[i].text, strlen(cases[i].text), "x", &rows, &err), STATUS_INPUT);
		assert_null(rows);
		if (!text_starts_with(err.text, cases[i].complaint))
			fail_msg("%s\n gives %s\n not  %s", cases[i].text, err.text, cases[i].complaint);
	}
}

/* Entries that are sound but for one member. */
#define LLAMA(member) "[{\"n_prompt\": 512, \"n_gen\": 0, \"avg_ts\": 512.0, \"avg_ns\": 1000000000, " member "}]"
#define VLLM(member) \
	"{\"tokenizer_id\": \"t\", \"total_output_tokens\": 1000, \"output_throughput\": 100.0, \"duration\": 10.0, " member "}"
#define SGLANG(member) \
	"{\"total_output_tokens\": 1000, \"output_throughput\": 100.0, \"duration\": 10.0, \"completed\": 10, " member "}"
#define INFERENCEX(member) "[{\"hw\": \"h200\", \"conc\": 8, \"tput_per_gpu\": 400.5, " member "}]"

static void each_member_has_its_rule(void **state)
{
	static const struct {
		const char *text, *complaint; /* NULL: it is sound */
	} cases[] = {
		{LLAMA("\"stddev_ts\": 1.5"), NULL},
		{LLAMA("\"tomorrow\": [1]"), NULL},
		{LLAMA("\"n_batch\": \"2048\""), "n_batch: must be an integer from 0"},
		{LLAMA("\"n_batch\": -1"), "n_batch: must be an integer from 0"},
		{LLAMA("\"n_batch\": 1.5"), "n_batch: must be an integer from 0"},
		{LLAMA("\"n_batch\": 1000000000000000000"), "n_batch: must be an integer from 0"},
		{LLAMA("\"n_gpu_layers\": -1"), NULL},
		{LLAMA("\"n_gpu_layers\": -2"), "n_gpu_layers: must be an integer from -1"},
		{LLAMA("\"flash_attn\": true"), NULL},
		{LLAMA("\"use_mmap\": \"yes\""), "use_mmap: must be true or false, is 'yes'"},
		{LLAMA("\"cpu_info\": 7"), "cpu_info: must be a text, is 7"},
		{LLAMA("\"cpu_info\": \"a\\u001b[31m\""), "cpu_info: must not contain control characters"},
		{LLAMA("\"test_time\": \"yesterday\""), "test_time: must be like 0000-00-00T00:00:00Z, is 'yesterday'"},
		{LLAMA("\"samples_ns\": 5"), "samples_ns: must be a list, is 5"},
		{LLAMA("\"samples_ts\": [1, -1]"), "samples_ts[1]: must be a number of at least 0"},
		{LLAMA("\"samples_ts\": [1, \"2\"]"), "samples_ts[1]: must be a number of at least 0"},
		{LLAMA("\"stddev_ts\": Infinity"), "stddev_ts: must be a number from 0 to 1000000000000, is 'Infinity'"},
		{"[{\"n_prompt\": 512, \"n_gen\": 0, \"avg_ts\": -5}]", "avg_ts: must be a number from 0"},
		{"[{\"n_prompt\": 512, \"n_gen\": 0, \"avg_ts\": 1e300}]", "avg_ts: must be a number from 0"},
		{"[{\"n_prompt\": 0, \"n_gen\": 0, \"avg_ts\": 5}]", "n_gen: is 0, and so is n_prompt"},
		{"[{\"n_prompt\": 512, \"n_gen\": 0, \"avg_ts\": 512.0, \"avg_ns\": 1000000}]",
			"avg_ts: is 512, but n_prompt + n_gen over avg_ns gives 512000: is the unit right?"},
		{VLLM("\"request_rate\": \"inf\""), NULL},
		{VLLM("\"request_rate\": Infinity"), NULL},
		{VLLM("\"request_rate\": \"fast\""), "request_rate: must be a number or one of inf, Infinity, trace, is 'fast'"},
		{VLLM("\"request_rate\": -1"), "request_rate: must be a number from 0"},
		{VLLM("\"max_concurrency\": null"), NULL},
		{VLLM("\"max_concurrency\": 0"), "max_concurrency: must be an integer from 1"},
		{VLLM("\"failed\": -1"), "failed: must be an integer from 0"},
		{VLLM("\"failed\": \"none\""), "failed: must be an integer from 0"},
		{VLLM("\"date\": \"20261130-070000\""), NULL},
		{VLLM("\"date\": \"2026-11-30\""), "date: must be like 00000000-000000"},
		{VLLM("\"median_ttft_ms\": 75.5"), NULL},
		{VLLM("\"median_ttft_ms\": \"75 ms\""), "median_ttft_ms: must be a number from 0 to 10500, is '75 ms'"},
		{VLLM("\"p99.9_itl_ms\": -0.1"), "p99.9_itl_ms: must be a number from 0"},
		{VLLM("\"mean_tpot_ms\": NaN"), "mean_tpot_ms: must be a number from 0 to 10500, is 'NaN'"},
		{VLLM("\"mean_e2el_ms\": 75500.0"), "mean_e2el_ms: must be a number from 0 to 10500"}, /* longer than the run */
		{VLLM("\"spec_decode_acceptance_rate\": 101"), "spec_decode_acceptance_rate: must be a number from 0 to 100"},
		{"{\"tokenizer_id\": \"t\", \"total_output_tokens\": 1000, \"output_throughput\": 100.0, \"duration\": 10000}",
			"output_throughput: is 100, but total_output_tokens over duration gives 0.1: is the unit right?"},
		{"{\"tokenizer_id\": \"t\", \"total_output_tokens\": 1000, \"output_throughput\": -100.0}",
			"output_throughput: must be a number from 0"},
		{"{\"tokenizer_id\": \"t\", \"total_output_tokens\": \"many\", \"output_throughput\": 100.0}",
			"total_output_tokens: must be an integer from 0"},
		{SGLANG("\"request_rate\": \"trace\""), NULL},
		{SGLANG("\"request_rate\": Infinity"), NULL},
		{SGLANG("\"request_rate\": NaN"), "request_rate: must be a number or one of"},
		{SGLANG("\"request_rate\": 8, \"request_throughput\": 1000"),
			"request_throughput: is 1000, but completed over duration gives 1"},
		{SGLANG("\"request_rate\": 8, \"random_range_ratio\": 1.5"), "random_range_ratio: must be a number from 0 to 1"},
		{SGLANG("\"request_rate\": 8, \"accept_length\": null"), NULL},
		{SGLANG("\"request_rate\": 8, \"accept_length\": -1"), "accept_length: must be a number from 0"},
		{SGLANG("\"request_rate\": 8, \"tag\": {}"), "tag: must be a text, is object"},
		{INFERENCEX("\"median_ttft\": 0.25, \"median_tpot\": 0.0185, \"median_intvty\": 54.1"), NULL},
		{INFERENCEX("\"median_tpot\": 18.5, \"median_intvty\": 54.1"),
			"median_tpot: is 18.5, but median_intvty gives 0.0184843: is the unit right?"},
		{INFERENCEX("\"median_ttft\": 250000"), "median_ttft: must be a number from 0 to 86400"},
		{INFERENCEX("\"p99_e2el\": \"long\""), "p99_e2el: must be a number from 0"},
		{INFERENCEX("\"isl\": \"1k\""), "isl: must be an integer from 0"},
		{INFERENCEX("\"is_multinode\": \"maybe\""), "is_multinode: must be true or false"},
		{"[{\"hw\": \"h200\", \"conc\": 0, \"tput_per_gpu\": 1}]", "conc: must be an integer from 1"},
		{"[{\"hw\": null, \"conc\": 8, \"tput_per_gpu\": 1}]", "hw: is null"},
		{"[{\"hw\": \"h200\", \"conc\": 8, \"tput_per_gpu\": -1}]", "tput_per_gpu: must be a number from 0"},
	};
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct json *rows = NULL;
		struct err err = {0};
		enum status status = foreign_read(cases[i].text, strlen(cases[i].text), "x", &rows, &err);
		const char *said = strstr(err.text, "): ");
		bool as_wanted = cases[i].complaint ? status == STATUS_INPUT && !rows &&
				text_starts_with(err.text, "x: entry 1 (") && said && text_starts_with(said + 3, cases[i].complaint)
						    : status == STATUS_OK && json_count(rows) == 1;
		if (!as_wanted)
			fail_msg("%s\n gives %s\n not  %s", cases[i].text, err.text,
				cases[i].complaint ? cases[i].complaint : "rows");
		json_free(rows);
	}
}

static void objects_of_others_are_left_to_the_caller(void **state)
{
	static const char *const texts[] = {"{}", "{\"schema\": \"verdict-record/1\"}", "{\n\"schema\": 1}"};
	for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
		struct json *rows = json_new_array(), *kept = rows;
		assert_int_equal(foreign_read(texts[i], strlen(texts[i]), "x", &rows, NULL), STATUS_OK);
		assert_null(rows);
		json_free(kept);
	}
}

static void the_fuzzers_corpus_is_read_safely(void **state)
{
	assert_true(check_corpus("tests/fuzz/corpus/foreign", check_foreign_bytes) >= 6);
}

/* ---- the database ---- */

struct fixture {
	char path[64];
	struct store *store;
	struct experiment *experiment;
	int64_t id;
};

static int open_store(void **state)
{
	struct fixture *f = mem_calloc(1, sizeof *f);
	struct machine_facts machine = {"aa", json_new_object()};
	struct build_facts build = {"bbbbbbbbbb", "llama-server", "1"};
	bool resumed;
	snprintf(f->path, sizeof f->path, "/tmp/verdict-foreign-XXXXXX");
	int fd = mkstemp(f->path);
	close(fd);
	unlink(f->path);
	f->experiment = experiment_from_text("{'name':'demo','matrix':{'factors':{'graph_max_bs':[8,0]},'aa_twin':false},"
					     "'workloads':[{'name':'w','requests':2,'sampling':{'max_tokens':64}}]}");
	assert_int_equal(store_open(f->path, &f->store, NULL), STATUS_OK);
	const struct store_subject subject = {&machine, &build, "m.gguf", "cc"};
	assert_int_equal(store_begin_experiment(f->store, f->experiment, &subject, false, &f->id, &resumed, NULL), STATUS_OK);
	for (int block = 0; block < 3; block++)
		for (int arm = 0; arm < 2; arm++) {
			struct launch_result launch;
			if (block == 2 && arm == 1)
				launch_make_failed(&launch, arm, block, FAILURE_CRASH, "crash: x");
			else
				launch_make(&launch, f->experiment, arm, block, 100 + 20 * arm + block);
			assert_int_equal(store_save_launch(f->store, f->id, f->experiment, &launch, NULL), STATUS_OK);
			launch_result_release(&launch);
		}
	json_free(machine.facts);
	*state = f;
	return 0;
}

static int close_store(void **state)
{
	struct fixture *f = *state;
	static const char *const ends[] = {"", "-wal", "-shm"};
	store_close(f->store);
	experiment_release(f->experiment);
	for (size_t i = 0; i < 3; i++) {
		char path[80];
		snprintf(path, sizeof path, "%s%s", f->path, ends[i]);
		unlink(path);
	}
	mem_free(f);
	return 0;
}

static struct json *query(struct fixture *f, const char *text)
{
	struct sql *sql = NULL;
	struct sql_statement *statement = NULL;
	struct json *rows = NULL;
	struct err err = {0};
	if (sql_open(f->path, 1000, &sql, &err) || sql_prepare(sql, text, &statement, &err) ||
		sql_rows(statement, NULL, &rows, &err))
		fail_msg("%s", err.text);
	sql_finish(statement);
	sql_close(sql);
	return rows;
}

static void measurements_are_kept_apart_and_once(void **state)
{
	struct fixture *f = *state;
	size_t added = 0, known = 0;
	struct json *rows = read_golden("llama_bench.json");
	assert_int_equal(store_import_measurements(f->store, rows, "b.json", &added, &known, NULL), STATUS_OK);
	assert_true(added == 2 && known == 0);
	assert_int_equal(store_import_measurements(f->store, rows, "b.json", &added, &known, NULL), STATUS_OK);
	assert_true(added == 0 && known == 2);
	json_free(rows);
	rows = query(f, "SELECT tool, source, tokens_per_s FROM measurement ORDER BY tokens_per_s");
	assert_int_equal(json_count(rows), 2);
	assert_string_equal(text_at(rows, 1, "source"), "b.json");
	json_free(rows);
	rows = query(f, "SELECT count(*) AS n FROM experiment");
	assert_int_equal(number_at(rows, 0, "n"), 1);
	json_free(rows);
}

/* A row that the table does not take leaves none of its file. */
static void a_file_is_added_whole_or_not_at_all(void **state)
{
	struct fixture *f = *state;
	size_t added = 7, known = 7;
	struct err err = {0};
	struct json *rows = read_golden("llama_bench.json");
	json_set(json_at(rows, 1), "tokens_per_s", json_new_string("fast"));
	assert_int_not_equal(store_import_measurements(f->store, rows, "b.json", &added, &known, &err), STATUS_OK);
	assert_non_null(strstr(err.text, "b.json: entry 2"));
	assert_true(added == 0 && known == 0);
	json_free(rows);
	rows = query(f, "SELECT count(*) AS n FROM measurement");
	assert_int_equal(number_at(rows, 0, "n"), 0);
	json_free(rows);
}

/* The questions that compare-llama-bench.py asks: is the table there, one length of names, rows that agree in every key. */
static void the_database_answers_the_compare_script_of_llama_cpp(void **state)
{
	struct fixture *f = *state;
	struct json *rows = query(f, "SELECT name FROM sqlite_master WHERE type = 'table' AND name = 'llama_bench'");
	assert_int_equal(json_count(rows), 1);
	json_free(rows);
	rows = query(f,
		"SELECT min(length(build_commit)) AS a, max(length(build_commit)) AS b, count(DISTINCT build_commit) AS n,"
		" count(*) AS launches FROM llama_bench");
	assert_true(number_at(rows, 0, "a") == number_at(rows, 0, "b"));
	assert_int_equal(number_at(rows, 0, "n"), 2);
	assert_int_equal(number_at(rows, 0, "launches"), 5); /* the failed one has no speed */
	json_free(rows);
	rows = query(f,
		"SELECT tb.model_type, tb.n_prompt, tb.n_gen, tb.n_depth, avg(tb.avg_ts) AS base, avg(tc.avg_ts) AS other FROM "
		"llama_bench tb"
		" JOIN llama_bench tc ON tb.cpu_info = tc.cpu_info AND tb.gpu_info = tc.gpu_info AND tb.backends = tc.backends"
		" AND tb.n_gpu_layers = tc.n_gpu_layers AND tb.tensor_buft_overrides = tc.tensor_buft_overrides"
		" AND tb.model_filename = tc.model_filename AND tb.model_type = tc.model_type AND tb.n_batch = tc.n_batch"
		" AND tb.n_ubatch = tc.n_ubatch AND tb.embeddings = tc.embeddings AND tb.cpu_mask = tc.cpu_mask"
		" AND tb.cpu_strict = tc.cpu_strict AND tb.poll = tc.poll AND tb.n_threads = tc.n_threads AND tb.type_k = tc.type_k"
		" AND tb.type_v = tc.type_v AND tb.use_mmap = tc.use_mmap AND tb.no_kv_offload = tc.no_kv_offload"
		" AND tb.split_mode = tc.split_mode AND tb.main_gpu = tc.main_gpu AND tb.tensor_split = tc.tensor_split"
		" AND tb.flash_attn = tc.flash_attn AND tb.n_prompt = tc.n_prompt AND tb.n_gen = tc.n_gen AND tb.n_depth = "
		"tc.n_depth"
		" WHERE tb.build_commit < tc.build_commit GROUP BY tb.model_type, tb.n_gen, tb.n_prompt, tb.n_depth");
	assert_int_equal(json_count(rows), 1);
	assert_string_equal(text_at(rows, 0, "model_type"), "m.gguf w");
	assert_int_equal(number_at(rows, 0, "n_gen"), 64);
	double low = fmin(number_at(rows, 0, "base"), number_at(rows, 0, "other")),
	       high = fmax(number_at(rows, 0, "base"), number_at(rows, 0, "other"));
	assert_true(fabs(low - 101) < 1 && fabs(high - 120.5) < 1);
	json_free(rows);
}

static void runs_go_out_as_csv(void **state)
{
	struct fixture *f = *state;
	struct json *record = NULL;
	struct text text = {0};
	assert_int_equal(store_export(f->store, f->id, &record, NULL), STATUS_OK);
	export_csv(record, &text);
	size_t lines = 0, commas = 0, at = 0;
	for (const char *c = text_str(&text); *c; c++)
		lines += *c == '\n';
	assert_int_equal(lines, 1 + 5 * 2);
	while (text.data[at] != '\n')
		commas += text.data[at++] == ',';
	assert_int_equal(commas, 11 + metric_specs_count); /* twelve columns before the metrics */
	assert_non_null(strstr(text_str(&text), ",output_tps,"));
	assert_non_null(strstr(text_str(&text), "graph_max_bs=0,candidate,w,0,0,none,"));
	text_release(&text);
	json_free(record);
}

static void fields_of_csv_are_quoted_where_they_must_be(void **state)
{
	static const char record_text[] =
		"{\"experiment\": {\"name\": \"a, \\\"b\\\"\\nc\"}, \"arms\": [], \"workloads\": [], \"launches\": [{\"arm\": 0, "
		"\"runs\": [{\"workload\": 0, \"output_tps\": null}, {\"warmup\": 1}]}]}";
	struct json *record = NULL;
	struct text text = {0};
	assert_int_equal(json_parse(record_text, strlen(record_text), "r", &record, NULL), STATUS_OK);
	export_csv(record, &text);
	assert_non_null(strstr(text_str(&text), "\n\"a, \"\"b\"\"\nc\",,,,"));
	text_release(&text);
	json_free(record);
}

static void launches_go_out_as_aggregates(void **state)
{
	struct fixture *f = *state;
	struct json *record = NULL;
	assert_int_equal(store_export(f->store, f->id, &record, NULL), STATUS_OK);
	struct json *list = export_aiperf(record);
	assert_int_equal(json_count(list), 2);
	const struct json *base = json_at(list, 0), *other = json_at(list, 1);
	const struct json *tps = json_get(json_get(base, "metrics"), "output_tps");
	assert_true(fabs(json_number(json_get(tps, "mean"), 0) - 101) < 0.5);
	assert_true(fabs(json_number(json_get(tps, "t_critical"), 0) - 4.302653) < 1e-5); /* scipy.stats.t.ppf(0.975, 2) */
	double mean = json_number(json_get(tps, "mean"), 0), se = json_number(json_get(tps, "se"), 0);
	assert_true(fabs(json_number(json_get(tps, "ci_high"), 0) - (mean + 4.302653 * se)) < 1e-4);
	const struct json *metadata = json_get(other, "metadata");
	assert_int_equal(json_int(json_get(metadata, "num_profile_runs"), 0), 3);
	assert_int_equal(json_int(json_get(metadata, "num_successful_runs"), 0), 2);
	assert_string_equal(json_text(json_get(json_at(json_get(metadata, "failed_runs"), 0), "error")), "crash: x");
	json_free(list);
	json_free(record);
}

/* Launches with these rates, the last of them failed; export_aiperf's first aggregate. Caller frees. */
static struct json *aggregate_of(const char *launches)
{
	struct text text = {0};
	struct json *record = NULL;
	text_printf(&text,
		"{\"arms\": [{\"arm\": 0, \"name\": \"baseline\"}], \"workloads\": [{\"workload\": 0, \"name\": \"w\"}], "
		"\"launches\": [%s]}",
		launches);
	assert_int_equal(json_parse(text_str(&text), text.len, "r", &record, NULL), STATUS_OK);
	struct json *list = export_aiperf(record), *first = json_clone(json_at(list, 0));
	json_free(list);
	json_free(record);
	text_release(&text);
	return first;
}

static void expect_aggregate(const struct json *recorded, const struct json *ours)
{
	const struct json *told = json_get(json_get(recorded, "metrics"), "output_token_throughput_avg");
	const struct json *made = json_get(json_get(ours, "metrics"), "output_tps");
	assert_string_equal(json_text(json_get(ours, "schema_version")), json_text(json_get(recorded, "schema_version")));
	assert_int_equal(json_count(made), json_count(told));
	for (void *at = json_first(told); at; at = json_next(told, at)) {
		const struct json *want = json_iterator_value(at), *got = json_get(made, json_iterator_key(at));
		assert_non_null(got);
		if (json_is_number(want) && fabs(json_number(want, 0) - json_number(got, NAN)) > 1e-6)
			fail_msg("%s: %g, AIPerf has %g", json_iterator_key(at), json_number(got, NAN), json_number(want, 0));
	}
	told = json_get(recorded, "metadata");
	made = json_get(ours, "metadata");
	for (void *at = json_first(told); at; at = json_next(told, at)) {
		const struct json *want = json_iterator_value(at), *got = json_get(made, json_iterator_key(at));
		assert_int_equal(json_kind_of(got), json_kind_of(want));
		assert_int_equal(json_count(got), json_count(want));
		assert_true(json_kind_of(want) == JSON_KIND_ARRAY || json_same(got, want));
	}
}

static void aggregates_have_the_members_and_numbers_of_aiperf(void **state)
{
	struct text text = {0};
	struct json *recorded = NULL;
	assert_int_equal(file_read("tests/golden/foreign/aiperf_aggregate_recorded.json", 1 << 20, &text, NULL), STATUS_OK);
	assert_int_equal(json_parse(text_str(&text), text.len, "a", &recorded, NULL), STATUS_OK);
	struct json *three = aggregate_of("{\"arm\": 0, \"failure\": \"none\", \"runs\": [{\"workload\": 0, \"output_tps\": 100}]},"
					  "{\"arm\": 0, \"failure\": \"none\", \"runs\": [{\"workload\": 0, \"output_tps\": 101}]},"
					  "{\"arm\": 0, \"failure\": \"none\", \"runs\": [{\"workload\": 0, \"output_tps\": 103}]},"
					  "{\"arm\": 0, \"failure\": \"crash\", \"reason\": \"crash\", \"runs\": []}");
	struct json *one = aggregate_of("{\"arm\": 0, \"failure\": \"none\", \"runs\": [{\"workload\": 0, \"output_tps\": 100}]}");
	expect_aggregate(json_get(recorded, "three"), three);
	expect_aggregate(json_get(recorded, "one"), one);
	json_free(one);
	json_free(three);
	json_free(recorded);
	text_release(&text);
}

#define STORE_TEST(f) cmocka_unit_test_setup_teardown(f, open_store, close_store)

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(llama_bench_is_read_from_json_lines_and_sql),
		cmocka_unit_test(serving_benchmarks_are_read_with_their_units),
		cmocka_unit_test(files_that_vllm_and_sglang_really_wrote_are_read),
		cmocka_unit_test(what_cannot_be_read_is_refused_with_its_place),
		cmocka_unit_test(each_member_has_its_rule),
		cmocka_unit_test(objects_of_others_are_left_to_the_caller),
		cmocka_unit_test(the_fuzzers_corpus_is_read_safely),
		STORE_TEST(measurements_are_kept_apart_and_once),
		STORE_TEST(a_file_is_added_whole_or_not_at_all),
		STORE_TEST(the_database_answers_the_compare_script_of_llama_cpp),
		STORE_TEST(runs_go_out_as_csv),
		cmocka_unit_test(fields_of_csv_are_quoted_where_they_must_be),
		STORE_TEST(launches_go_out_as_aggregates),
		cmocka_unit_test(aggregates_have_the_members_and_numbers_of_aiperf),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
