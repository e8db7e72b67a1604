/* Tiny models of every family, read from Hugging Face folders, against transformers and tokenizers. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/source.h"
#include "engine/tokenizer.h"
#include "tests/support/gguf_twin.h"
#include "tests/support/golden_family.h"
#include "tests/support/program.h"

/* Allowed relative errors of logits. Measured: 2.9e-6 with F32 keys and values, 8e-4 with F16 ones. */
#define ERROR_F32 8e-6
#define ERROR_F16 2e-3
#define ERROR_TWIN 1e-6 /* the same numbers, summed in another order where rows of Q and K are dealt in another way */
#define NEAR_TIE_F32 1e-3
#define NEAR_TIE_F16 0.02

static void check(double error, double bound, const char *family, const char *what)
{
	if (!(error < bound))
		fail_msg("%s, %s: relative error %.3g, allowed %.3g", family, what, error, bound);
}

static void logits_and_greedy_text_are_those_of_transformers(void **state)
{
	struct forward_run run = forward_run_default(NULL);
	for (int i = 0; i < GOLDEN_FAMILIES; i++) {
		const char *family = golden_families[i];
		run.kv_type = KN_KV_F32;
		struct golden_distances exact = golden_family_distances(family, NULL, &run, NEAR_TIE_F32);
		run.kv_type = KN_KV_F16;
		struct golden_distances half = golden_family_distances(family, NULL, &run, NEAR_TIE_F16);
		print_message("%s: %.2g with F32, %.2g with F16 keys and values; bf16 transformers %.2g (theirs %.2g)\n", family,
			exact.fp32, half.fp32, exact.bf16, exact.theirs);
		check(exact.fp32, ERROR_F32, family, "F32 keys and values");
		check(half.fp32, ERROR_F16, family, "F16 keys and values");
		/* What bf16 arithmetic costs them is all that lies between it and us. */
		check(exact.bf16, 1.01 * exact.theirs, family, "bf16 transformers");
	}
}

static void two_ranks_agree_with_transformers(void **state)
{
	struct forward_run run = forward_run_default(NULL);
	run.world = 2;
	run.graph_max_bs = 16;
	for (int i = 0; i < GOLDEN_FAMILIES; i++)
		check(golden_family_distances(golden_families[i], NULL, &run, NEAR_TIE_F32).fp32, ERROR_F32, golden_families[i],
			"2 ranks");
}

static void a_gguf_file_of_the_same_weights_gives_the_same_logits(void **state)
{
	struct forward_run run = forward_run_default(NULL);
	for (int i = 0; i < GOLDEN_FAMILIES; i++) {
		char folder[GOLDEN_PATH_BYTES], path[] = "/tmp/verdict-twin-XXXXXX";
		int fd = mkstemp(path);
		assert_true(fd >= 0);
		close(fd);
		gguf_twin_write(golden_family_path(golden_families[i], folder), false, path);
		check(golden_family_distances(golden_families[i], path, &run, NEAR_TIE_F32).fp32, ERROR_F32 + ERROR_TWIN,
			golden_families[i], "GGUF file");
		unlink(path);
	}
}

/* Scales for blocks, for rows and for whole tensors, in one model; ranks cut blocks of scales. */
static void eight_bit_weights_give_the_logits_of_what_they_stand_for(void **state)
{
	struct forward_run run = forward_run_default(NULL);
	for (run.world = 1; run.world <= 2; run.world++)
		check(golden_family_distances("fp8", NULL, &run, NEAR_TIE_F32).fp32, ERROR_F32, "fp8", "F32 keys and values");
}

static void rotary_frequencies_are_those_of_transformers(void **state)
{
	for (int i = 0; i < GOLDEN_FAMILIES; i++) {
		char folder[GOLDEN_PATH_BYTES];
		struct model_config config = forward_run_config(golden_family_path(golden_families[i], folder));
		struct json *root = golden_family_open(golden_families[i]);
		const struct json *frequencies = json_get(root, "inv_freq");
		assert_int_equal(json_count(frequencies), config.head_dim / 2);
		for (int k = 0; k < config.head_dim / 2; k++) {
			double ours = pow(config.rope_base, -2.0 * k / config.head_dim) / config.rope_scale /
				(config.has_rope_factors ? (double)config.rope_factors[k] : 1);
			double theirs = json_number(json_at(frequencies, (size_t)k), NAN);
			assert_true(fabs(ours / theirs - 1) < 1e-6);
		}
		json_free(root);
	}
}

/* ---- tokenizers ---- */

static struct tokenizer *open_tokenizer(const char *family)
{
	char folder[GOLDEN_PATH_BYTES];
	struct source source;
	struct tokenizer *tokenizer = NULL;
	struct err err = {0};
	if (source_open(golden_family_path(family, folder), &source, &err) != STATUS_OK ||
		tokenizer_open(&source, NULL, &tokenizer, &err) != STATUS_OK)
		fail_msg("%s: %s", family, err.text);
	source_close(&source);
	return tokenizer;
}

static void compare_ids(
	const char *family, const char *text, const struct token_list *ours, size_t skipped, const struct json *theirs)
{
	bool same = ours->count == json_count(theirs) - skipped;
	for (size_t i = 0; same && i < ours->count; i++)
		same = ours->ids[i] == json_int(json_at(theirs, i + skipped), -1);
	if (!same)
		fail_msg("%s: '%s' has other ids (%zu of them, expected %zu)", family, text, ours->count,
			json_count(theirs) - skipped);
}

static void ids_are_those_of_tokenizers(void **state)
{
	for (int i = 0; i < GOLDEN_FAMILIES; i++) {
		struct tokenizer *tokenizer = open_tokenizer(golden_families[i]);
		struct json *root = golden_family_open(golden_families[i]);
		const struct json *texts = json_get(root, "texts");
		assert_true(json_count(texts) > 0);
		for (size_t t = 0; t < json_count(texts); t++) {
			const struct json *one = json_at(texts, t), *text = json_get(one, "text");
			struct token_list ids = {0};
			/* Special tokens written in the text are found by tokenizers as well. */
			assert_int_equal(
				tokenizer_encode(tokenizer, json_text(text), json_text_len(text), true, &ids, NULL), STATUS_OK);
			compare_ids(golden_families[i], json_text(text), &ids, 0, json_get(one, "ids"));
			bool adds = tokenizer_adds_bos(tokenizer);
			compare_ids(golden_families[i], json_text(text), &ids, adds, json_get(one, "special"));
			if (adds)
				assert_int_equal(json_int(json_at(json_get(one, "special"), 0), -1), tokenizer_bos(tokenizer));
			token_list_release(&ids);
		}
		json_free(root);
		tokenizer_close(tokenizer);
	}
}

static void every_named_end_ends_a_text(void **state)
{
	static const struct {
		const char *family, *pre;
		int bos, ends[3];
	} cases[] = {
		{"llama3", "llama-bpe", 0, {1, 2, 3}},
		{"mistral", "regex", 1, {2, 3, -1}},
		{"qwen2", "qwen2", -1, {0, 2, 3}},
		{"smollm2", "smollm", 1, {0, 2, 3}},
		{"llama2", "sentencepiece", 1, {2, -1, -1}},
		{"mistral1", "sentencepiece", 1, {2, -1, -1}},
	};
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		struct tokenizer *tokenizer = open_tokenizer(cases[i].family);
		assert_string_equal(tokenizer_pre_name(tokenizer), cases[i].pre);
		assert_int_equal(tokenizer_bos(tokenizer), cases[i].bos);
		for (int32_t id = 0; id < tokenizer_vocab_size(tokenizer); id++) {
			bool expected = false;
			for (int k = 0; k < 3; k++)
				expected = expected || cases[i].ends[k] == id;
			assert_int_equal(tokenizer_is_end(tokenizer, id), expected);
		}
		tokenizer_close(tokenizer);
	}
}

static void tokens_that_are_not_special_are_found_in_any_text_and_are_text(void **state)
{
	struct tokenizer *tokenizer = open_tokenizer("qwen2");
	struct token_list ids = {0};
	struct text out = {0};
	int32_t tool = tokenizer_find(tokenizer, "<tool>");
	assert_true(tool >= 0 && !tokenizer_is_control(tokenizer, tool));
	assert_int_equal(tokenizer_encode(tokenizer, "<tool>", 6, false, &ids, NULL), STATUS_OK);
	assert_int_equal(ids.count, 1);
	assert_int_equal(ids.ids[0], tool);
	assert_true(tokenizer_decode_one(tokenizer, tool, false, &out));
	assert_string_equal(text_str(&out), "<tool>");
	text_release(&out);
	token_list_release(&ids);
	tokenizer_close(tokenizer);
}

/* ---- whole models ---- */

static void expect_continuation(const char *path, const struct json *one)
{
	const char *const words[] = {"once", "--model", path, "--prompt", json_text(json_get(one, "prompt")), "--max-tokens", "16",
		"--parse-special", "--ignore-eos", "--json", NULL};
	struct program_result result;
	program_run("verdict-engine", words, &result);
	struct json *json = program_json(&result);
	const struct json *prompt = json_get(json, "prompt_ids"), *expected = json_get(one, "ids");
	assert_int_equal(json_count(prompt), json_count(expected));
	for (size_t i = 0; i < json_count(expected); i++)
		assert_int_equal(json_int(json_at(prompt, i), -1), json_int(json_at(expected, i), -2));
	assert_string_equal(json_text(json_get(json, "text")), json_text(json_get(one, "text")));
	json_free(json);
	program_result_release(&result);
}

/* From the folder and from a GGUF file with the scores of the same vocabulary. */
static void texts_of_sentencepiece_models_go_on_as_with_transformers(void **state)
{
	static const char *const families[] = {"llama2", "mistral1"};
	for (int i = 0; i < 2; i++) {
		char folder[GOLDEN_PATH_BYTES], path[] = "/tmp/verdict-twin-XXXXXX";
		struct json *root = golden_family_open(families[i]);
		const struct json *texts = json_get(root, "continued");
		int fd = mkstemp(path);
		assert_true(fd >= 0);
		close(fd);
		gguf_twin_write(golden_family_path(families[i], folder), false, path);
		assert_int_equal(json_count(texts), 3);
		for (size_t t = 0; t < 3; t++) {
			expect_continuation(folder, json_at(texts, t));
			/* A GGUF file has no way to put a space before the text only: the third prompt has special tokens inside.
			 */
			if (i == 0 || t < 2)
				expect_continuation(path, json_at(texts, t));
		}
		unlink(path);
		json_free(root);
	}
}

static void a_sliding_window_ends_the_context(void **state)
{
	char folder[GOLDEN_PATH_BYTES];
	const struct model_config config = forward_run_config(golden_family_path("mistral1", folder));
	assert_int_equal(config.context, 256);
	assert_int_equal(config.window, 256);
	assert_int_equal(forward_run_config(golden_family_path("llama2", folder)).window, 0);
	const char *const words[] = {
		"once", "--model", golden_family_path("mistral1", folder), "--prompt", "x", "--max-model-len", "257", NULL};
	struct program_result result;
	program_run("verdict-engine", words, &result);
	assert_int_equal(result.exit_code, 2);
	assert_non_null(strstr(text_str(&result.err), "context of 256 tokens, the length of its sliding window"));
	program_result_release(&result);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(logits_and_greedy_text_are_those_of_transformers),
		cmocka_unit_test(two_ranks_agree_with_transformers),
		cmocka_unit_test(a_gguf_file_of_the_same_weights_gives_the_same_logits),
		cmocka_unit_test(eight_bit_weights_give_the_logits_of_what_they_stand_for),
		cmocka_unit_test(rotary_frequencies_are_those_of_transformers),
		cmocka_unit_test(ids_are_those_of_tokenizers),
		cmocka_unit_test(every_named_end_ends_a_text),
		cmocka_unit_test(tokens_that_are_not_special_are_found_in_any_text_and_are_text),
		cmocka_unit_test(texts_of_sentencepiece_models_go_on_as_with_transformers),
		cmocka_unit_test(a_sliding_window_ends_the_context),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
