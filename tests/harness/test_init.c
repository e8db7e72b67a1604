/* `verdict init`: command lines that people run, as experiments that the parser accepts and that launch the same server. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "harness/commands.h"
#include "harness/experiment.h"
#include "harness/init.h"
#include "harness/target.h"
#include "tests/support/fuzz_init.h"
#include "tests/support/replay_checks.h"

#define WORDS(...) ((const char *const[]){__VA_ARGS__, NULL})

static size_t count_words(const char *const *words)
{
	size_t n = 0;
	while (words[n])
		n++;
	return n;
}

/* The document of a command line, as the parser reads it. */
static struct experiment *experiment_of(const char *const *words, struct text *notes)
{
	const struct init_request request = {words, count_words(words), NULL, 16};
	struct json *document = NULL;
	struct experiment *experiment = NULL;
	struct text text = {0};
	struct err err = {0};
	if (init_document(&request, &document, notes, &err))
		fail_msg("%s", err.text);
	json_write(document, JSON_STYLE_PRETTY, &text);
	if (experiment_parse(text_str(&text), text.len, "init", NULL, &experiment, &err))
		fail_msg("%s in\n%s", err.text, text_str(&text));
	text_release(&text);
	json_free(document);
	return experiment;
}

/* The baseline's command, or a candidate's, joined by spaces. */
static void expect_command(const struct experiment *experiment, const char *arm, const char *expected)
{
	for (int i = 0; i < experiment->n_arms; i++) {
		if (strcmp(experiment->arms[i].name, arm) != 0)
			continue;
		struct string_vector words = {0};
		struct text text = {0};
		const struct target_launch launch = {experiment, &experiment->arms[i], "verdict-engine", 7000};
		assert_int_equal(target_command(&launch, &words, NULL), STATUS_OK);
		for (size_t k = 0; k < words.count; k++)
			text_printf(&text, "%s%s", k ? " " : "", words.items[k]);
		assert_string_equal(text_str(&text), expected);
		string_vector_release(&words);
		text_release(&text);
		return;
	}
	fail_msg("there is no arm '%s'", arm);
}

static void expect_arms(const struct experiment *experiment, const char *expected)
{
	struct text text = {0};
	for (int i = 2; i < experiment->n_arms; i++)
		text_printf(&text, "%s%s", i > 2 ? " " : "", experiment->arms[i].name);
	assert_string_equal(text_str(&text), expected);
	text_release(&text);
}

static void vllm_serve_becomes_a_baseline_with_candidates_around_it(void **state)
{
	struct text notes = {0};
	struct experiment *experiment =
		experiment_of(WORDS("CUDA_VISIBLE_DEVICES=0,1", "numactl", "-N", "0", "/opt/bin/vllm", "serve",
				      "meta-llama/Llama-3.1-8B-Instruct", "--gpu_memory_utilization=0.90", "--max-num-seqs", "256",
				      "--trust-remote-code", "--api-key", "secret", "--port", "8000", "--tensor-parallel-size", "2",
				      "--served-model-name", "x"),
			&notes);
	assert_string_equal(experiment->engine.adapter, "vllm");
	assert_string_equal(experiment->name, "vllm-Llama-3.1-8B-Instruct");
	assert_string_equal(experiment->engine.model, "meta-llama/Llama-3.1-8B-Instruct");
	expect_command(experiment, "baseline",
		"numactl -N 0 /opt/bin/vllm serve meta-llama/Llama-3.1-8B-Instruct --trust-remote-code --served-model-name x "
		"--host "
		"127.0.0.1 --port 7000 --gpu-memory-utilization 0.9 --max-num-seqs 256 --tensor-parallel-size 2");
	expect_arms(experiment,
		"mem_fraction=0.85 mem_fraction=0.94 max_num_seqs=128 max_num_seqs=512 max_num_batched_tokens=4096 "
		"max_num_batched_tokens=16384 "
		"speculation={\"method\":\"ngram\",\"num_speculative_tokens\":4,\"prompt_lookup_max\":4}");
	assert_int_equal(experiment->engine.n_env, 2);
	assert_string_equal(experiment->engine.env[1].value, "0,1");
	assert_int_equal(experiment->protocol.n_looks, 3);
	assert_int_equal(experiment->n_workloads, 2);
	assert_non_null(strstr(text_str(&notes), "--api-key is left out"));
	assert_null(strstr(text_str(&notes), "secret"));
	text_release(&notes);
	experiment_release(experiment);
}

static void switches_without_values_become_true_and_their_absence_a_candidate(void **state)
{
	struct text notes = {0};
	struct experiment *experiment = experiment_of(WORDS("python3", "-m", "vllm.entrypoints.openai.api_server", "--model", "m",
							      "--enforce-eager", "--no-enable-chunked-prefill"),
		&notes);
	expect_command(experiment, "baseline",
		"python3 -m vllm.entrypoints.openai.api_server --model m --host 127.0.0.1 --port 7000 --enforce-eager "
		"--no-enable-chunked-prefill");
	expect_command(experiment, "enforce_eager=null",
		"python3 -m vllm.entrypoints.openai.api_server --model m --host 127.0.0.1 --port 7000 --no-enable-chunked-prefill");
	expect_command(experiment, "enable_chunked_prefill=true",
		"python3 -m vllm.entrypoints.openai.api_server --model m --host 127.0.0.1 --port 7000 --enforce-eager "
		"--enable-chunked-prefill");
	text_release(&notes);
	experiment_release(experiment);
}

static void sglangs_speculation_is_left_out_as_a_whole(void **state)
{
	struct text notes = {0};
	struct experiment *experiment = experiment_of(
		WORDS("python3", "-m", "sglang.launch_server", "--model-path", "d/V3", "--tp", "8", "--speculative-algorithm",
			"EAGLE", "--speculative-num-steps", "3", "--mem-fraction-static", "0.85", "--disable-radix-cache"),
		&notes);
	expect_command(experiment, "no-speculation",
		"python3 -m sglang.launch_server --model-path d/V3 --disable-radix-cache --host 127.0.0.1 --port 7000 "
		"--tensor-parallel-size 8 --mem-fraction-static 0.85");
	expect_command(experiment, "mem_fraction=0.9",
		"python3 -m sglang.launch_server --model-path d/V3 --disable-radix-cache --host 127.0.0.1 --port 7000 "
		"--tensor-parallel-size 8 --speculative-algorithm EAGLE --speculative-num-steps 3 --mem-fraction-static 0.9");
	text_release(&notes);
	experiment_release(experiment);
}

static void llama_server_is_known_by_its_short_switches(void **state)
{
	struct text notes = {0};
	struct experiment *experiment = experiment_of(WORDS("./build/bin/llama-server", "-m", "m.gguf", "-ngl", "-1", "-fa", "-c",
							      "4096", "-t", "8", "-b", "2048", "--jinja"),
		&notes);
	expect_command(experiment, "baseline",
		"./build/bin/llama-server -m m.gguf --jinja --host 127.0.0.1 --port 7000 --n-gpu-layers -1 --flash-attn --ctx-size "
		"4096 "
		"--threads 8 --batch-size 2048");
	expect_arms(experiment, "threads=16 flash_attn=null batch_size=1024 batch_size=4096 ubatch_size=256 ubatch_size=1024");
	experiment_release(experiment);
	experiment = experiment_of(WORDS("llama-server", "-m", "m.gguf", "-fa", "on"), &notes);
	expect_command(experiment, "flash_attn=off", "llama-server -m m.gguf --host 127.0.0.1 --port 7000 --flash-attn off");
	text_release(&notes);
	experiment_release(experiment);
}

static void the_builtin_engine_needs_no_command(void **state)
{
	struct text notes = {0};
	struct experiment *experiment =
		experiment_of(WORDS("verdict-engine", "serve", "--model", "m.gguf", "--tp", "2", "--prefix-cache"), &notes);
	assert_int_equal(experiment->engine.command.count, 0);
	expect_arms(experiment,
		"speculation=ngram graph_max_bs=0 graph_max_bs=8 threads=16 threads=8 allreduce=shm-flag allreduce=shm-lamport "
		"allreduce=shm-2shot allreduce=ref-socket");
	expect_command(experiment, "baseline",
		"verdict-engine serve --model m.gguf --host 127.0.0.1 --port 7000 --tp 2 --prefix-cache --speculation off");
	experiment_release(experiment);
	experiment = experiment_of(WORDS("./old/verdict-engine", "serve", "--model", "m.gguf", "--speculation", "ngram"), &notes);
	assert_string_equal(experiment->engine.command.items[0], "./old/verdict-engine");
	expect_command(experiment, "speculation=off",
		"./old/verdict-engine serve --model m.gguf --host 127.0.0.1 --port 7000 --speculation off");
	text_release(&notes);
	experiment_release(experiment);
}

static void what_is_no_known_engine_or_lacks_a_value_is_refused(void **state)
{
	const struct {
		const char *const *words;
		const char *expected;
	} cases[] = {
		{WORDS("vllm serve m"), "no engine is recognised in 'vllm serve m'"},
		{WORDS("ollama", "serve"), "no engine is recognised"},
		{WORDS("A=1"), "no engine is recognised"},
		{WORDS("vllm", "serve", "m", "--max-num-seqs"), "--max-num-seqs needs a value"},
		{WORDS("llama-server", "-m"), "-m needs a value"},
		{WORDS("llama-server", "-m", "m", "--port"), "--port needs a value"},
	};
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		const struct init_request request = {cases[i].words, count_words(cases[i].words), NULL, 4};
		struct json *document = NULL;
		struct text notes = {0};
		struct err err = {0};
		assert_int_equal(init_document(&request, &document, &notes, &err), STATUS_INPUT);
		assert_null(document);
		if (!strstr(err.text, cases[i].expected))
			fail_msg("%s", err.text);
		text_release(&notes);
	}
}

static enum status call(struct err *err, const char *const *words)
{
	char *argv[24] = {(char *)"verdict", (char *)"init"};
	int argc = 2;
	for (; *words; words++)
		argv[argc++] = (char *)*words;
	err_clear(err);
	return cmd_init(argc, argv, err);
}

static void a_file_that_exists_is_not_overwritten(void **state)
{
	char folder[] = "/tmp/verdict-init-XXXXXX", path[64];
	struct err err = {0};
	struct text text = {0};
	assert_non_null(mkdtemp(folder));
	snprintf(path, sizeof path, "%s/e.json", folder);
	assert_int_equal(call(&err, WORDS("--output", path, "--name", "mine", "--", "llama-server", "-m", "m.gguf")), STATUS_OK);
	struct experiment *experiment = NULL;
	assert_int_equal(experiment_load(path, NULL, &experiment, &err), STATUS_OK);
	assert_string_equal(experiment->name, "mine");
	experiment_release(experiment);
	assert_int_equal(call(&err, WORDS("--output", path, "--", "vllm", "serve", "m")), STATUS_INPUT);
	assert_non_null(strstr(err.text, "exists already"));
	assert_int_equal(file_read(path, 1 << 20, &text, NULL), STATUS_OK);
	assert_non_null(strstr(text_str(&text), "llamacpp"));
	text_release(&text);
	unlink(path);
	assert_int_equal(call(&err, WORDS("--output", path, "--")), STATUS_INPUT);
	assert_int_equal(call(&err, WORDS("--output", path, "--", "true")), STATUS_INPUT);
	assert_false(file_exists(path));
	assert_int_equal(call(&err, WORDS("--output", "/no/such/folder/e.json", "--", "vllm", "serve", "m")), STATUS_INPUT);
	rmdir(folder);
}

static void the_fuzzers_corpora_give_experiments_or_complaints(void **state)
{
	assert_true(check_corpus("tests/fuzz/corpus/init", check_init_bytes) >= 8);
	assert_true(check_corpus("tests/fuzz/corpus/init_sweep", check_init_sweep_bytes) >= 4);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_fuzzers_corpora_give_experiments_or_complaints),
		cmocka_unit_test(vllm_serve_becomes_a_baseline_with_candidates_around_it),
		cmocka_unit_test(switches_without_values_become_true_and_their_absence_a_candidate),
		cmocka_unit_test(sglangs_speculation_is_left_out_as_a_whole),
		cmocka_unit_test(llama_server_is_known_by_its_short_switches),
		cmocka_unit_test(the_builtin_engine_needs_no_command),
		cmocka_unit_test(what_is_no_known_engine_or_lacks_a_value_is_refused),
		cmocka_unit_test(a_file_that_exists_is_not_overwritten),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
