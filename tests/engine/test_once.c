/* `once` and `perplexity` as people call them: what they print, what never changes it, and how they refuse. */
#include <math.h>
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
#include "base/hash.h"
#include "base/mem.h"
#include "engine/perplexity.h"
#include "engine/request.h"
#include "tests/support/program.h"
#include "tests/support/real_model.h"
#include "tests/support/reference_llama.h"
#include "tests/support/sizes.h"
#include "tests/support/tiny_gguf.h"

#define PROMPT "20,33,47,101,20,33,47,102,150,151,152,20,33,47,9,8,7"
#define GOLDEN_BYTES_MAX ((size_t)1 << 20)

static char model_path[TINY_PATH_BYTES];

static int write_model(void **state)
{
	struct tiny_model model = tiny_model_default();
	model.n_layers = 3;
	model.head_dim = 32;
	model.dtype = model.value_dtype = DTYPE_Q4_1;
	model.embedding_dtype = DTYPE_Q8_0;
	tiny_model_write_temp(&model, model_path);
	return 0;
}

static int remove_model(void **state)
{
	unlink(model_path);
	return 0;
}

/* Runs a command on the tiny model with more words. */
static void run_command(const char *command, const char *const *more, struct program_result *out)
{
	const char *words[PROGRAM_WORDS_MAX] = {command, "--model", model_path, "--mem-budget", "1GiB"};
	size_t n = 5;
	for (size_t i = 0; more[i]; i++)
		words[n++] = more[i];
	program_run("verdict-engine", words, out);
}

static struct json *once(const char *const *more)
{
	const char *words[PROGRAM_WORDS_MAX] = {"--prompt-ids", PROMPT, "--max-tokens", "40", "--ignore-eos", "--json"};
	size_t n = 6;
	struct program_result result;
	for (size_t i = 0; more[i]; i++)
		words[n++] = more[i];
	run_command("once", words, &result);
	struct json *json = program_json(&result);
	program_result_release(&result);
	return json;
}

/* ---- what is printed ---- */

static void once_prints_every_member(void **state)
{
	const char *const more[] = {"--logits", "--threads", "1", NULL};
	struct json *json = once(more);
	const struct json *logits = json_get(json, "logits"), *top = json_get(json, "top_logits");
	assert_int_equal(json_count(json_get(json, "prompt_ids")), 17);
	assert_int_equal(json_int(json_at(json_get(json, "prompt_ids"), 3), 0), 101);
	assert_int_equal(json_count(json_get(json, "ids")), 40);
	assert_string_equal(json_text(json_get(json, "finish_reason")), "length");
	assert_true(json_number(json_get(json, "prefill_tok_per_s"), 0) > 0);
	assert_true(json_number(json_get(json, "decode_tok_per_s"), 0) > 0);
	assert_non_null(json_text(json_get(json, "text")));

	/* The hash is that of the logits as fp32, and the top list is theirs. */
	assert_int_equal(json_count(logits), 288);
	struct sha256 sha;
	uint8_t digest[SHA256_BYTES];
	char hex[SHA256_HEX_BYTES];
	sha256_init(&sha);
	for (size_t i = 0; i < json_count(logits); i++) {
		float value = (float)json_number(json_at(logits, i), NAN);
		sha256_update(&sha, &value, sizeof value);
	}
	sha256_finish(&sha, digest);
	sha256_hex(digest, hex);
	assert_string_equal(json_text(json_get(json, "logits_hash")), hex);
	assert_int_equal(json_count(top), 10);
	double last = INFINITY;
	for (size_t i = 0; i < 10; i++) {
		const struct json *pair = json_at(top, i);
		double value = json_number(json_at(pair, 1), NAN);
		assert_true(value <= last);
		assert_true(value == json_number(json_at(logits, (size_t)json_int(json_at(pair, 0), 0)), NAN));
		last = value;
	}
	size_t higher = 0;
	for (size_t i = 0; i < json_count(logits); i++)
		higher += json_number(json_at(logits, i), NAN) > last;
	assert_in_range(higher, 0, 9);
	/* Greedy: the first token is the likeliest. */
	assert_int_equal(json_int(json_at(json_get(json, "ids"), 0), -1), json_int(json_at(json_at(top, 0), 0), -2));
	json_free(json);
}

static void one_token_has_no_decode_rate(void **state)
{
	const char *const more[] = {"--max-tokens", "1", NULL};
	struct json *json = once(more);
	assert_int_equal(json_count(json_get(json, "ids")), 1);
	assert_int_equal(json_kind_of(json_get(json, "decode_tok_per_s")), JSON_KIND_NULL);
	assert_true(json_number(json_get(json, "prefill_tok_per_s"), 0) > 0);
	json_free(json);
}

static void once_takes_text_and_prints_for_people(void **state)
{
	const char *const more[] = {"--prompt", "the cat <|im_end|>", "--max-tokens", "5", NULL};
	struct program_result result;
	run_command("once", more, &result);
	assert_int_equal(result.exit_code, 0);
	assert_non_null(strstr(text_str(&result.out), "logits hash  "));
	assert_non_null(strstr(text_str(&result.out), "tok/s"));
	program_result_release(&result);
}

static void control_tokens_in_text_need_parse_special(void **state)
{
	for (int parse = 0; parse < 2; parse++) {
		const char *const more[] = {
			"--prompt", "<|im_end|>", "--max-tokens", "1", "--json", parse ? "--parse-special" : NULL, NULL};
		struct program_result result;
		run_command("once", more, &result);
		struct json *json = program_json(&result);
		const struct json *ids = json_get(json, "prompt_ids");
		bool control = json_count(ids) == 1 && json_int(json_at(ids, 0), -1) == 2;
		assert_int_equal(control, parse);
		json_free(json);
		program_result_release(&result);
	}
}

/* ---- what never changes tokens or logits ---- */

static void settings_of_speed_change_no_bit(void **state)
{
	static const char *const settings[][8] = {
		{"--threads", "2"},
		{"--threads", "3", "--graph-max-bs", "0"},
		{"--graph-max-bs", "1"},
		{"--graph-max-bs", "512"},
		{"--chunk-tokens", "1"},
		{"--chunk-tokens", "5"},
		{"--max-num-seqs", "1"},
		{"--no-prefix-cache", "--warmup", "1"},
		{"--warmup", "2"},
		{"--speculation", "ngram"},
		{"--speculation", "ngram", "--graph-max-bs", "0", "--spec-draft-max", "3"},
		{"--mem-fraction", "0.5"},
	};
	const char *const plain[] = {"--threads", "1", NULL};
	struct json *expected = once(plain);
	for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++) {
		struct json *json = once(settings[i]);
		if (!json_same(json_get(json, "ids"), json_get(expected, "ids")) ||
			!json_same(json_get(json, "logits_hash"), json_get(expected, "logits_hash")) ||
			!json_same(json_get(json, "text"), json_get(expected, "text")))
			fail_msg("%s %s gives another answer", settings[i][0], settings[i][1]);
		json_free(json);
	}
	json_free(expected);
}

static void ranks_and_allreduces_agree(void **state)
{
	static const char *const settings[][8] = {
		{"--tp", "2", "--threads", "1", "--allreduce", "ref-socket"},
		{"--tp", "2", "--threads", "1", "--allreduce", "shm-flag"},
		{"--tp", "2", "--threads", "2", "--allreduce", "shm-lamport", "--graph-max-bs", "0"},
		{"--tp", "2", "--threads", "1", "--allreduce", "shm-2shot", "--speculation"},
		{"--tp", "2", "--threads", "1"},
	};
	struct json *first = NULL;
	for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++) {
		const char *words[10] = {NULL};
		memcpy(words, settings[i], sizeof settings[i]);
		if (i == 3)
			words[7] = "ngram";
		struct json *json = once(words);
		if (!first)
			first = json_clone(json);
		assert_true(json_same(json_get(json, "ids"), json_get(first, "ids")));
		assert_true(json_same(json_get(json, "logits_hash"), json_get(first, "logits_hash")));
		json_free(json);
	}
	json_free(first);
}

/* ---- refusals ---- */

static void refusals_have_exit_codes_and_a_line_for_programs(void **state)
{
	static const struct {
		const char *words[8];
		int exit_code;
		const char *text, *last;
	} cases[] = {
		{{NULL}, 2, "either --prompt TEXT or --prompt-ids", "{\"error\":\"bad_option\"}"},
		{{"--prompt", "a", "--prompt-ids", "1"}, 2, "either --prompt TEXT or --prompt-ids", "{\"error\":\"bad_option\"}"},
		{{"--prompt-ids", "1,,2"}, 2, "--prompt-ids: '' is no token id", "{\"error\":\"bad_option\"}"},
		{{"--prompt-ids", "1,-2"}, 2, "'-2' is no token id", "{\"error\":\"bad_option\"}"},
		{{"--prompt-ids", "99999999999"}, 2, "is no token id", NULL},
		{{"--prompt-ids", "288"}, 2, "288", NULL}, /* one past the vocabulary */
		{{"--prompt", "a", "--max-tokens", "0"}, 2, "max-tokens", "{\"error\":\"bad_option\"}"},
		{{"--prompt", "a", "--max-tokens", "5000"}, 2, "256", NULL},
		{{"--prompt", "a", "--top-p", "0"}, 2, "top-p", NULL},
		{{"--prompt", "a", "--mem-fraction", "1.5"}, 2, "at most 1", "{\"error\":\"bad_option\"}"},
		{{"--prompt", "a", "--allreduce", "nccl"}, 2, "ref-socket", "{\"error\":\"allreduce_refused\"}"},
		{{"--prompt", "a", "--tp", "5"}, 2, "use --tp 1 to 4", "{\"error\":\"cannot_shard\"}"},
		{{"--prompt", "a", "--device", "cuda"}, 3, "without CUDA", "{\"error\":\"device_unavailable\"}"},
		{{"--prompt", "a", "--nonsense"}, 2, "nonsense", "{\"error\":\"bad_option\"}"},
	};
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		struct program_result result;
		run_command("once", cases[i].words, &result);
		if (result.exit_code != cases[i].exit_code || !strstr(text_str(&result.err), cases[i].text))
			fail_msg("case %zu: exit code %d, expected %d with '%s': %s", i, result.exit_code, cases[i].exit_code,
				cases[i].text, text_str(&result.err));
		if (cases[i].last)
			assert_string_equal(program_last_line(&result), cases[i].last);
		assert_int_equal(result.out.len, 0);
		program_result_release(&result);
	}
}

static void too_little_memory_names_a_fraction_that_works(void **state)
{
	const char *const low[] = {"--prompt", "a", "--mem-budget", "20MiB", "--mem-fraction", "0.02", NULL};
	struct program_result result;
	run_command("once", low, &result);
	assert_int_equal(result.exit_code, 3);
	struct json *line = NULL;
	const char *last = program_last_line(&result);
	assert_int_equal(json_parse(last, strlen(last), "last line", &line, NULL), STATUS_OK);
	assert_string_equal(json_text(json_get(line, "error")), "not_enough_memory");
	assert_true(json_int(json_get(line, "need_bytes"), 0) > json_int(json_get(line, "have_bytes"), 0));
	char fraction[32];
	text_format_double(fraction, json_number(json_get(line, "min_mem_fraction"), 0));
	const char *const enough[] = {
		"--prompt", "a", "--mem-budget", "20MiB", "--mem-fraction", fraction, "--max-tokens", "3", NULL};
	program_result_release(&result);
	run_command("once", enough, &result);
	if (result.exit_code != 0)
		fail_msg("the fraction advised, %s, does not work: %s", fraction, text_str(&result.err));
	program_result_release(&result);
	json_free(line);
}

static void the_program_explains_itself(void **state)
{
	static const struct {
		const char *words[3];
		int exit_code;
		const char *out, *err;
	} cases[] = {
		{{"--help"}, 0, "usage: verdict-engine COMMAND", ""},
		{{"--version"}, 0, "verdict-engine ", ""},
		{{"once", "--help"}, 0, "--mem-fraction", ""},
		{{"perplexity", "--help"}, 0, "--context", ""},
		{{NULL}, 2, "", "usage: verdict-engine COMMAND"},
		{{"dance"}, 2, "", "unknown command 'dance'"},
		{{"rank"}, 2, "", "not by hand"},
		{{"perplexity"}, 2, "", "needs a FILE"},
		{{"once", "--prompt=a"}, 2, "", "--model PATH is required"},
	};
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		struct program_result result;
		program_run("verdict-engine", cases[i].words, &result);
		assert_int_equal(result.exit_code, cases[i].exit_code);
		if (!strstr(text_str(&result.out), cases[i].out) || !strstr(text_str(&result.err), cases[i].err))
			fail_msg("case %zu: %s%s", i, text_str(&result.out), text_str(&result.err));
		program_result_release(&result);
	}
}

/* ---- perplexity ---- */

static struct json *perplexity_of(const char *model, const char *file, const char *context)
{
	const char *const words[] = {"perplexity", file, "--model", model, "--kv-type", "f32", "--mem-budget", "2GiB",
		context ? "--context" : NULL, context, NULL};
	struct program_result result;
	program_run("verdict-engine", words, &result);
	struct json *json = program_json(&result);
	program_result_release(&result);
	return json;
}

static void assert_close(double ours, double theirs, double bound)
{
	if (!(fabs(ours / theirs - 1) <= bound))
		fail_msg("%.10g, expected %.10g within %g", ours, theirs, bound);
}

/* The tiny model against the double-precision reference, whole and in windows. */
static void perplexity_is_exp_of_the_mean_surprise(void **state)
{
	static const char text[] = "she sells sea shells by the sea shore, and the shells she sells are sea shells";
	char file[] = "/tmp/verdict-text-XXXXXX";
	int fd = mkstemp(file);
	assert_true(fd >= 0);
	assert_int_equal(file_write_all(fd, text, sizeof text - 1, NULL), STATUS_OK);
	close(fd);
	struct source source;
	struct model_config config;
	struct tokenizer *tokenizer = NULL;
	struct token_list ids = {0};
	assert_int_equal(source_open(model_path, &source, NULL), STATUS_OK);
	assert_int_equal(model_config_read(&source, &config, NULL), STATUS_OK);
	assert_int_equal(tokenizer_open(&source, NULL, &tokenizer, NULL), STATUS_OK);
	assert_int_equal(request_encode(tokenizer, text, sizeof text - 1, false, &ids, NULL), STATUS_OK);
	for (int windowed = 0; windowed < 2; windowed++) {
		size_t width = windowed ? 20 : ids.count, predicted = 0;
		double nll = 0;
		for (size_t begin = 0; begin < ids.count; begin += width) {
			size_t n = ids.count - begin < width ? ids.count - begin : width;
			double *logits = mem_calloc(n * (size_t)config.vocab, sizeof *logits);
			float *row = mem_calloc((size_t)config.vocab, sizeof *row);
			reference_llama_logits(&source, &config, ids.ids + begin, (int)n, logits);
			for (size_t t = 0; t + 1 < n; t++, predicted++) {
				for (int i = 0; i < config.vocab; i++)
					row[i] = (float)logits[t * (size_t)config.vocab + (size_t)i];
				nll += perplexity_nll(row, config.vocab, ids.ids[begin + t + 1]);
			}
			mem_free(row);
			mem_free(logits);
		}
		struct json *json = perplexity_of(model_path, file, windowed ? "20" : NULL);
		assert_int_equal(json_int(json_get(json, "tokens"), 0), ids.count);
		assert_int_equal(json_int(json_get(json, "predicted"), 0), predicted);
		assert_close(json_number(json_get(json, "nll"), 0), nll, 2e-4);
		assert_close(json_number(json_get(json, "perplexity"), 0), exp(nll / (double)predicted), 1e-3);
		json_free(json);
	}
	token_list_release(&ids);
	tokenizer_close(tokenizer);
	source_close(&source);
	unlink(file);
}

static void surprise_of_known_logits(void **state)
{
	const float even[4] = {1, 1, 1, 1}, sure[3] = {1000, -1000, 0}, pair[2] = {0, (float)M_LN2};
	assert_true(fabs(perplexity_nll(even, 4, 2) - log(4)) < 1e-12);
	assert_true(fabs(perplexity_nll(sure, 3, 0)) < 1e-12);
	assert_true(fabs(perplexity_nll(sure, 3, 1) - 2000) < 1e-9);
	assert_true(fabs(perplexity_nll(pair, 2, 0) - log(3)) < 1e-7);
}

/* Hugging Face transformers on the dequantised weights of the real model; see tests/golden/logits/README.md. */
static void perplexity_of_the_real_model_is_that_of_transformers(void **state)
{
	const char *model = real_model_path();
	struct text text = {0};
	struct json *golden = NULL;
	assert_int_equal(file_read("tests/golden/logits/perplexity.json", GOLDEN_BYTES_MAX, &text, NULL), STATUS_OK);
	assert_int_equal(json_parse(text_str(&text), text.len, "perplexity.json", &golden, NULL), STATUS_OK);
	for (size_t i = 0; i < json_count(golden); i++) {
		const struct json *one = json_at(golden, i), *windowed = json_get(one, "windowed_100");
		if (json_count(json_get(one, "ids")) > SIZE_REAL_TOKENS_MAX)
			continue;
		char file[96];
		snprintf(file, sizeof file, "tests/golden/text/%s", json_text(json_get(one, "name")));
		struct json *ours = perplexity_of(model, file, NULL);
		assert_int_equal(json_int(json_get(ours, "tokens"), 0), json_count(json_get(one, "ids")));
		assert_close(json_number(json_get(ours, "nll"), 0), json_number(json_get(one, "nll"), 0), 2e-4);
		assert_close(json_number(json_get(ours, "perplexity"), 0), json_number(json_get(one, "perplexity"), 0), 5e-4);
		json_free(ours);
		if (json_count(json_get(one, "ids")) > 500)
			continue; /* the shorter text is enough for windows */
		ours = perplexity_of(model, file, "100");
		assert_int_equal(json_int(json_get(ours, "predicted"), 0), json_int(json_get(windowed, "predicted"), 0));
		assert_close(json_number(json_get(ours, "perplexity"), 0), json_number(json_get(windowed, "perplexity"), 0), 5e-4);
		json_free(ours);
	}
	json_free(golden);
	text_release(&text);
}

static void texts_without_a_prediction_are_refused(void **state)
{
	char file[] = "/tmp/verdict-text-XXXXXX";
	int fd = mkstemp(file);
	assert_true(fd >= 0);
	struct program_result result;
	const char *const more[] = {file, NULL}, *const narrow[] = {file, "--context", "1", NULL},
			  *const gone[] = {"/nowhere/text", NULL};
	run_command("perplexity", more, &result);
	assert_int_equal(result.exit_code, 2);
	assert_non_null(strstr(text_str(&result.err), "the text has 0 tokens"));
	program_result_release(&result);
	assert_int_equal(file_write_all(fd, "z", 1, NULL), STATUS_OK);
	run_command("perplexity", more, &result);
	assert_int_equal(result.exit_code, 2);
	assert_non_null(strstr(text_str(&result.err), "the text has 1 token;"));
	program_result_release(&result);
	assert_int_equal(file_write_all(fd, "zz zz", 5, NULL), STATUS_OK);
	run_command("perplexity", narrow, &result);
	assert_int_equal(result.exit_code, 2);
	assert_non_null(strstr(text_str(&result.err), "a window of 1 tokens is not possible"));
	program_result_release(&result);
	run_command("perplexity", gone, &result);
	assert_true(result.exit_code == 2 || result.exit_code == 3);
	assert_non_null(strstr(text_str(&result.err), "/nowhere/text"));
	program_result_release(&result);
	close(fd);
	unlink(file);
}

/* Rank 0 says it before there are other ranks. */
static void a_head_size_without_a_kernel_is_refused_by_its_key(void **state)
{
	struct tiny_model model = tiny_model_default();
	struct program_result result;
	char path[TINY_PATH_BYTES];
	model.head_dim = 20;
	tiny_model_write_temp(&model, path);
	program_run("verdict-engine",
		(const char *const[]){"once", "--model", path, "--device", "cpu", "--tp", "2", "--prompt-ids", "1", NULL}, &result);
	unlink(path);
	assert_int_equal(result.exit_code, 2);
	assert_non_null(
		strstr(text_str(&result.err), "key 'llama.attention.key_length' is 20, and device 'cpu' computes only with"));
	assert_null(strstr(text_str(&result.err), "rank 1"));
	assert_string_equal(program_last_line(&result), "{\"error\":\"unsupported_model\"}");
	program_result_release(&result);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(once_prints_every_member),
		cmocka_unit_test(one_token_has_no_decode_rate),
		cmocka_unit_test(once_takes_text_and_prints_for_people),
		cmocka_unit_test(control_tokens_in_text_need_parse_special),
		cmocka_unit_test(settings_of_speed_change_no_bit),
		cmocka_unit_test(ranks_and_allreduces_agree),
		cmocka_unit_test(refusals_have_exit_codes_and_a_line_for_programs),
		cmocka_unit_test(too_little_memory_names_a_fraction_that_works),
		cmocka_unit_test(the_program_explains_itself),
		cmocka_unit_test(perplexity_is_exp_of_the_mean_surprise),
		cmocka_unit_test(surprise_of_known_logits),
		cmocka_unit_test(perplexity_of_the_real_model_is_that_of_transformers),
		cmocka_unit_test(texts_without_a_prediction_are_refused),
		cmocka_unit_test(a_head_size_without_a_kernel_is_refused_by_its_key),
	};
	return cmocka_run_group_tests(tests, write_model, remove_model);
}
