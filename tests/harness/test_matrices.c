/* Matrices that people run with other tools: each loads and expands to the number of runs that it has there, or is refused by name.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "harness/experiment.h"
#include "harness/init.h"
#include "harness/init_llama_bench.h"
#include "harness/init_sweep.h"
#include "harness/target.h"

static struct experiment *load(const char *name)
{
	struct text path = {0};
	struct experiment *experiment = NULL;
	struct err err = {0};
	text_printf(&path, "tests/golden/matrices/%s.json", name);
	if (experiment_load(text_str(&path), NULL, &experiment, &err))
		fail_msg("%s", err.text);
	text_release(&path);
	return experiment;
}

/* Pairs of an arm and a load, the twin left out. */
static int runs_of(const struct experiment *experiment)
{
	int runs = 0;
	for (int w = 0; w < experiment->n_workloads; w++)
		for (int a = 0; a < experiment->n_arms; a++)
			runs += experiment->arms[a].kind != ARM_AA_TWIN && experiment->workloads[w].applies[a];
	return runs;
}

static void each_matrix_gives_the_runs_that_it_has_elsewhere(void **state)
{
	static const struct {
		const char *name;
		int arms, runs; /* without the twin */
	} cases[] = {
		{"x02", 3, 49},
		{"x03", 27, 189},
		{"x05", 6, 6},
		{"x13", 240, 240},
		{"x15", 24, 264},
		{"x16", 6, 6},
		{"x17", 2, 3 * 2}, /* three loads, at each of two servers */
		{"x18", 2, 2},
	};
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct experiment *experiment = load(cases[i].name);
		if (experiment->n_arms - 1 != cases[i].arms || runs_of(experiment) != cases[i].runs)
			fail_msg("%s: %d arms, %d runs", cases[i].name, experiment->n_arms - 1, runs_of(experiment));
		assert_int_equal(experiment->arms[1].kind, ARM_AA_TWIN);
		experiment_release(experiment);
	}
}

/* The baseline runs every load, so that there is something to compare with; each other server its own six. */
static void loads_that_follow_a_knob_belong_to_its_value(void **state)
{
	struct experiment *experiment = load("x17b");
	assert_int_equal(experiment->n_workloads, 24);
	for (int a = 2; a < experiment->n_arms; a++) {
		int loads = 0;
		for (int w = 0; w < experiment->n_workloads; w++) {
			if (!experiment->workloads[w].applies[a])
				continue;
			loads++;
			assert_int_equal(
				experiment->workloads[w].concurrency, 2 * json_int(experiment->arms[a].settings[0].value, 0));
		}
		assert_int_equal(loads, 6);
	}
	experiment_release(experiment);
}

static int values_of(const struct experiment *experiment, const char *knob)
{
	int count = 0;
	for (int a = 0; a < experiment->n_arms; a++)
		count += experiment->arms[a].n_changed == 1 && text_equal(experiment->arms[a].changed[0].knob, knob);
	return count;
}

static void ranges_have_their_last_value_and_no_more(void **state)
{
	static const struct {
		const char *knob;
		int values;
	} x11[] = {{"max_num_batched_tokens", 83}, {"gpu_memory_utilization", 6}, {"block_size", 3}, {"cuda_graph_sizes", 64},
		{"long_prefill_token_threshold", 45}, {"max_num_partial_prefills", 4}, {"max_seq_len_to_capture", 13},
		{"kv_cache_dtype", 1}},
	  x14[] = {{"a", 4}, {"b", 5}, {"c", 8}, {"d", 3}, {"e", 2}};
	struct experiment *experiment = load("x11_values");
	for (size_t i = 0; i < sizeof(x11) / sizeof(x11[0]); i++)
		assert_int_equal(values_of(experiment, x11[i].knob), x11[i].values);
	experiment_release(experiment);
	experiment = load("x14");
	for (size_t i = 0; i < sizeof(x14) / sizeof(x14[0]); i++)
		assert_int_equal(values_of(experiment, x14[i].knob), x14[i].values);
	assert_string_equal(experiment->arms[5].name, "a=1024");
	experiment_release(experiment);
}

static void engines_keep_the_order_of_the_file(void **state)
{
	static const char *const names[] = {"baseline", "A/A twin", "engine=vllm_disagg", "engine=sglang_agg",
		"engine=sglang_disagg", "engine=trtllm_agg", "engine=trtllm_disagg"};
	struct experiment *experiment = load("x16");
	for (int i = 0; i < 7; i++)
		assert_string_equal(experiment->arms[i].name, names[i]);
	experiment_release(experiment);
}

static void a_command_arrives_byte_for_byte(void **state)
{
	static const char *const words[] = {"python3", "-m", "sglang.launch_server", "--cuda-graph-max-bs=8", "--tp", "8",
		"--chunked-prefill-size=131072", "--num-continuous-decode-steps=4", "--kv-cache-dtype", "fp8_e4m3",
		"--disable-radix-cache", "--mem-fraction-static=0.8", "--json-model-override-args", "{\"a b\": \"c'd\"}",
		"--tokenizer", "", "--port", "4242", "--attention-backend", "aiter"};
	struct experiment *experiment = load("x18");
	struct string_vector out = {0};
	const struct target_launch launch = {experiment, &experiment->arms[0], NULL, 4242};
	assert_int_equal(target_command(&launch, &out, NULL), STATUS_OK);
	assert_int_equal(out.count, sizeof(words) / sizeof(words[0]));
	for (size_t i = 0; i < out.count; i++)
		assert_string_equal(out.items[i], words[i]);
	string_vector_release(&out);
	experiment_release(experiment);
}

static void variables_of_the_server_are_part_of_what_it_is(void **state)
{
	struct experiment *with = load("x03"), *without = NULL;
	const struct experiment_overrides overrides = {
		.set = (const char *const[]){"engine.env.VLLM_CPU_KVCACHE_SPACE=\"41\""}, .n_set = 1};
	assert_int_equal(experiment_load("tests/golden/matrices/x03.json", &overrides, &without, NULL), STATUS_OK);
	assert_string_not_equal(with->arms[0].config_hash, without->arms[0].config_hash);
	experiment_release(with);
	experiment_release(without);
}

static void what_cannot_be_said_is_refused_by_name(void **state)
{
	static const struct {
		const char *path, *complaint;
	} cases[] = {
		{"tests/golden/matrices/refused_x08.json", "engine.roles: unknown key"},
		{"tests/golden/matrices/refused_x11.json", "the grid has 223741440 points"},
		{"tests/golden/matrices/refused_x12.json", "more than 256 arms"},
		{"tests/golden/field/x02_broken.json", "x02_broken.json:8:"},
	};
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct experiment *experiment = NULL;
		struct err err = {0};
		assert_int_equal(experiment_load(cases[i].path, NULL, &experiment, &err), STATUS_INPUT);
		if (!strstr(err.text, cases[i].complaint))
			fail_msg("%s", err.text);
	}
	static const char commented[] = "{\"name\": \"s\", # NUM_SEQS_LIST\n\"matrix\": {}}";
	struct experiment *experiment = NULL;
	struct err err = {0};
	assert_int_equal(experiment_parse(commented, sizeof commented - 1, "x", NULL, &experiment, &err), STATUS_INPUT);
	assert_true(text_starts_with(err.text, "x:1:"));
}

/* ---- vLLM's sweep files ---- */

static struct experiment *sweep_experiment(const char *entries_text, struct err *err)
{
	static const char *const words[] = {"vllm", "serve", "m", "--max-num-seqs", "16"};
	const struct init_request request = {.words = words, .n_words = 5, .cpus = 2};
	struct json *document = NULL, *entries = NULL;
	struct text notes = {0}, text = {0};
	struct experiment *experiment = NULL;
	assert_int_equal(init_document(&request, &document, &notes, NULL), STATUS_OK);
	assert_int_equal(json_parse(entries_text, strlen(entries_text), "s", &entries, NULL), STATUS_OK);
	if (init_apply_sweep(document, entries, "s.json", err) == STATUS_OK) {
		json_write(document, JSON_STYLE_COMPACT, &text);
		if (experiment_parse(text.data, text.len, "e.json", NULL, &experiment, err))
			fail_msg("%s", err->text);
	}
	json_free(document);
	json_free(entries);
	text_release(&notes);
	text_release(&text);
	return experiment;
}

static struct experiment *sweep_file(const char *path)
{
	struct text text = {0};
	struct err err = {0};
	assert_int_equal(file_read(path, 1 << 20, &text, NULL), STATUS_OK);
	struct experiment *experiment = sweep_experiment(text_str(&text), &err);
	text_release(&text);
	assert_non_null(experiment);
	return experiment;
}

static void expect_tail(const struct experiment *experiment, int arm, const char *const *words, size_t n_words)
{
	struct string_vector out = {0};
	const struct target_launch launch = {experiment, &experiment->arms[arm], NULL, 4242};
	assert_int_equal(target_command(&launch, &out, NULL), STATUS_OK);
	assert_true(out.count >= n_words);
	for (size_t i = 0; i < n_words; i++)
		assert_string_equal(out.items[out.count - n_words + i], words[i]);
	string_vector_release(&out);
}

static void a_sweep_file_of_vllm_becomes_a_list_of_arms(void **state)
{
	struct experiment *experiment = sweep_file("tests/golden/matrices/vllm_sweep.json");
	assert_int_equal(experiment->n_arms, 2 + 3);
	expect_tail(experiment, 0, (const char *const[]){"4242", "--max-num-seqs", "16"}, 3);
	expect_tail(experiment, 2, (const char *const[]){"4242", "--max-num-seqs", "32", "--max-num-batched-tokens", "1024"}, 5);
	expect_tail(experiment, 3, (const char *const[]){"--max-num-batched-tokens", "2048", "--no-enable-prefix-caching"}, 3);
	assert_string_equal(experiment->arms[4].name, "piecewise");
	expect_tail(experiment, 4,
		(const char *const[]){
			"--max-num-seqs", "16", "--compilation-config.cudagraph-mode", "PIECEWISE", "--async-scheduling"},
		5);
	experiment_release(experiment);
	experiment = sweep_file("tests/golden/matrices/vllm_sweep_named.json");
	assert_int_equal(experiment->n_arms, 2 + 2);
	assert_string_equal(experiment->arms[2].name, "small");
	expect_tail(experiment, 3,
		(const char *const[]){"--gpu-memory-utilization", "0.95", "--speculative-config",
			"{\"method\":\"ngram\",\"num_speculative_tokens\":4}"},
		4);
	experiment_release(experiment);
}

static void sweep_files_that_are_none_are_refused(void **state)
{
	static const struct {
		const char *text, *complaint;
	} cases[] = {
		{"[]", "s.json: must be a list of objects"},
		{"7", "s.json: must be a list of objects"},
		{"[{\"a\": 1}, 2]", "s.json: entry 2: must be an object of switches, is integer"},
		{"{\"one\": []}", "s.json: entry 1: must be an object of switches, is array"},
		{"[{\"\": 1}]", "s.json: entry 1: '' cannot be a switch"},
	};
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct err err = {0};
		assert_null(sweep_experiment(cases[i].text, &err));
		assert_int_equal(err.status, STATUS_INPUT);
		assert_true(text_starts_with(err.text, cases[i].complaint));
	}
}

/* ---- llama-bench's command lines ---- */

static struct experiment *bench_experiment(const char *const *words, size_t n_words, struct err *err)
{
	const struct init_request request = {.words = words, .n_words = n_words, .cpus = 2};
	struct json *document = NULL;
	struct text notes = {0}, text = {0};
	struct experiment *experiment = NULL;
	assert_true(init_is_llama_bench(&request));
	if (init_llama_bench(&request, &document, &notes, err) == STATUS_OK) {
		json_write(document, JSON_STYLE_COMPACT, &text);
		if (experiment_parse(text.data, text.len, "e.json", NULL, &experiment, err))
			fail_msg("%s", err->text);
	}
	json_free(document);
	text_release(&notes);
	text_release(&text);
	return experiment;
}
#define BENCH(err, ...) \
	bench_experiment((const char *const[]){__VA_ARGS__}, sizeof((const char *const[]){__VA_ARGS__}) / sizeof(char *), err)

static void a_command_line_of_llama_bench_becomes_a_grid(void **state)
{
	struct err err = {0};
	struct experiment *experiment =
		BENCH(&err, "bin/llama-bench", "-m", "m.gguf", "-b", "128,256-1024*2", "-t", "1,2", "-t", "4", "-n", "128,256",
			"-p", "0", "-pg", "512,128", "-pg", "1024,16", "-d", "0,512", "-fa", "0,1", "-r", "3", "-o", "json");
	assert_non_null(experiment);
	assert_int_equal(experiment->n_arms - 1, 4 * 3 * 2);
	assert_int_equal(experiment->n_workloads, (2 + 2) * 2); /* a pair is one load */
	assert_string_equal(experiment->workloads[2].name, "pp512+tg128");
	assert_int_equal(experiment->workloads[2].input_len, 512);
	assert_string_equal(experiment->workloads[7].name, "pp1024+tg16@d512");
	assert_int_equal(experiment->workloads[7].input_len, 1536);
	assert_int_equal(experiment->protocol.runs_per_launch, 3);
	expect_tail(
		experiment, 0, (const char *const[]){"4242", "--threads", "1", "--batch-size", "128", "--flash-attn", "off"}, 7);
	experiment_release(experiment);
	experiment = BENCH(&err, "llama-bench", "-m", "m.gguf", "-ub", "10-50+10", "-ngl", "-1", "-ctk", "f16,q8_0");
	assert_int_equal(experiment->n_arms - 1, 5 * 2);
	assert_int_equal(experiment->n_workloads, 2); /* pp512 and tg128 where nothing is said */
	experiment_release(experiment);
}

static void command_lines_of_llama_bench_that_cannot_be_run_are_refused(void **state)
{
	static const struct {
		const char *words[7], *complaint;
	} cases[] = {
		{{"llama-bench", "-m", "m", "-t", "1"}, "every switch has one value"},
		{{"llama-bench", "-m", "m,n", "-t", "1,2"}, "-m must name one model"},
		{{"llama-bench", "-t", "1,2"}, "-m must name one model"},
		{{"llama-bench", "-m", "m", "--rpc", "x"}, "'--rpc' has no counterpart here"},
		{{"llama-bench", "-m", "m", "-t"}, "-t lacks its value"},
		{{"llama-bench", "-m", "m", "-t", "8-1"}, "-t 8-1 is no value"},
		{{"llama-bench", "-m", "m", "-t", "1-8*1"}, "-t 1-8*1 is no value"},
		{{"llama-bench", "-m", "m", "-t", "1-8/2"}, "is no value"},
		{{"llama-bench", "-m", "m", "-t", "1,,2"}, "is no value"},
		{{"llama-bench", "-m", "m", "-t", "0-999999999"}, "is no value"},
		{{"llama-bench", "-m", "m", "-t", "0-99999999999999999999"}, "is no value"},
		{{"llama-bench", "-m", "m", "-pg", "512"}, "-pg 512 is no value"},
		{{"llama-bench", "-m", "m", "-fa", "2"}, "-fa 2 is no value"},
		{{"llama-bench", "-m", "m", "-r", "0"}, "-r 0 is no value"},
	};
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct err err = {0};
		size_t n_words = 0;
		while (n_words < 7 && cases[i].words[n_words])
			n_words++;
		assert_null(bench_experiment(cases[i].words, n_words, &err));
		assert_int_equal(err.status, STATUS_INPUT);
		if (!strstr(err.text, cases[i].complaint))
			fail_msg("%s", err.text);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(each_matrix_gives_the_runs_that_it_has_elsewhere),
		cmocka_unit_test(loads_that_follow_a_knob_belong_to_its_value),
		cmocka_unit_test(ranges_have_their_last_value_and_no_more),
		cmocka_unit_test(engines_keep_the_order_of_the_file),
		cmocka_unit_test(a_command_arrives_byte_for_byte),
		cmocka_unit_test(variables_of_the_server_are_part_of_what_it_is),
		cmocka_unit_test(what_cannot_be_said_is_refused_by_name),
		cmocka_unit_test(a_sweep_file_of_vllm_becomes_a_list_of_arms),
		cmocka_unit_test(sweep_files_that_are_none_are_refused),
		cmocka_unit_test(a_command_line_of_llama_bench_becomes_a_grid),
		cmocka_unit_test(command_lines_of_llama_bench_that_cannot_be_run_are_refused),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
