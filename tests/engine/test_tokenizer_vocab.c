/* Tests of engine/tokenizer_vocab through engine/tokenizer: vocabularies that are refused, and small ones that are not. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>

#include "engine/tokenizer.h"
#include "tests/support/gguf_build.h"

#define FIELD "tests/golden/field/"

static struct token_list encode(const struct tokenizer *tokenizer, const char *text)
{
	struct token_list ids = {0};
	struct err err = {0};

	if (tokenizer_encode(tokenizer, text, strlen(text), false, &ids, &err))
		fail_msg("%s", err.text);
	return ids;
}

static void vocabulary_without_pre_falls_back_to_gpt2(void **state)
{
	struct source source;
	struct tokenizer *tokenizer = NULL;
	struct token_list ids;
	struct err err = {0};

	assert_int_equal(source_open(FIELD "m11_vocab_without_pre.gguf", &source, &err), STATUS_OK);
	if (tokenizer_open(&source, NULL, &tokenizer, &err))
		fail_msg("%s", err.text);
	assert_string_equal(tokenizer_pre_name(tokenizer), "gpt-2");
	ids = encode(tokenizer, "hi hi");
	assert_int_equal(ids.count, 2);
	assert_int_equal(ids.ids[0], 256);
	assert_int_equal(ids.ids[1], 257);
	token_list_release(&ids);
	tokenizer_close(tokenizer);
	source_close(&source);
}

static void refuses_open(struct gguf_build *build, const char *pre, const char *expected)
{
	struct text file = {0};
	struct source source;
	struct tokenizer *tokenizer = NULL;
	struct err err = {0};

	gguf_build_finish(build, &file);
	gguf_build_release(build);
	assert_int_equal(source_open_bytes((const uint8_t *)file.data, file.len, "built.gguf", &source, &err), STATUS_OK);
	assert_int_equal(tokenizer_open(&source, pre, &tokenizer, &err), STATUS_INPUT);
	assert_null(tokenizer);
	if (!strstr(err.text, expected))
		fail_msg("'%s' should name '%s'", err.text, expected);
	source_close(&source);
	text_release(&file);
}

/* Tokens a, b, ab and <x>, and whatever the caller adds or leaves out. */
enum { WITH_MODEL = 1, WITH_TOKENS = 2, WITH_MERGES = 4, WITH_KINDS = 8, WITH_ALL = 15 };

static struct gguf_build small_vocabulary(int parts)
{
	static const char *const tokens[] = {"a", "b", "ab", "<x>"};
	static const char *const merges[] = {"a b"};
	static const int32_t kinds[] = {1, 1, 1, 4};
	struct gguf_build build = {0};

	if (parts & WITH_MODEL)
		gguf_build_string(&build, "tokenizer.ggml.model", "gpt2");
	if (parts & WITH_TOKENS)
		gguf_build_strings(&build, "tokenizer.ggml.tokens", tokens, 4);
	if (parts & WITH_MERGES)
		gguf_build_strings(&build, "tokenizer.ggml.merges", merges, 1);
	if (parts & WITH_KINDS)
		gguf_build_i32s(&build, "tokenizer.ggml.token_type", kinds, 4);
	return build;
}

static void broken_vocabularies_are_refused_by_name(void **state)
{
	static const char *const lone[] = {"ab"}, *const unknown_part[] = {"a c"}, *const unknown_union[] = {"b a"};
	static const int32_t short_kinds[] = {1, 1}, bad_kinds[] = {1, 1, 1, 9};
	struct gguf_build build;

	build = small_vocabulary(WITH_ALL & ~WITH_MODEL);
	refuses_open(&build, "gpt-2", "tokenizer.ggml.model");
	build = small_vocabulary(WITH_ALL & ~WITH_TOKENS);
	refuses_open(&build, "gpt-2", "tokenizer.ggml.tokens");
	build = small_vocabulary(WITH_ALL & ~WITH_MERGES);
	refuses_open(&build, "gpt-2", "tokenizer.ggml.merges");
	build = small_vocabulary(WITH_ALL & ~WITH_MERGES);
	gguf_build_strings(&build, "tokenizer.ggml.merges", lone, 1);
	refuses_open(&build, "gpt-2", "tokenizer.ggml.merges: entry 0");
	build = small_vocabulary(WITH_ALL & ~WITH_MERGES);
	gguf_build_strings(&build, "tokenizer.ggml.merges", unknown_part, 1);
	refuses_open(&build, "gpt-2", "tokenizer.ggml.merges: entry 0");
	build = small_vocabulary(WITH_ALL & ~WITH_MERGES);
	gguf_build_strings(&build, "tokenizer.ggml.merges", unknown_union, 1);
	refuses_open(&build, "gpt-2", "tokenizer.ggml.merges: entry 0");
	build = small_vocabulary(WITH_ALL & ~WITH_KINDS);
	gguf_build_i32s(&build, "tokenizer.ggml.token_type", short_kinds, 2);
	refuses_open(&build, "gpt-2", "2 entries for 4 tokens");
	build = small_vocabulary(WITH_ALL & ~WITH_KINDS);
	gguf_build_i32s(&build, "tokenizer.ggml.token_type", bad_kinds, 4);
	refuses_open(&build, "gpt-2", "token 3 has the unknown kind 9");
	build = small_vocabulary(WITH_ALL & ~WITH_TOKENS);
	gguf_build_i32s(&build, "tokenizer.ggml.tokens", short_kinds, 2);
	refuses_open(&build, "gpt-2", "array of i32");
	build = small_vocabulary(WITH_ALL);
	gguf_build_u32(&build, "tokenizer.ggml.eos_token_id", 4);
	refuses_open(&build, "gpt-2", "eos_token_id' is 4, but there are 4 tokens");
	build = small_vocabulary(WITH_ALL);
	gguf_build_bool(&build, "tokenizer.ggml.add_bos_token", 1);
	refuses_open(&build, "gpt-2", "bos_token_id is missing");
	build = small_vocabulary(WITH_ALL);
	gguf_build_string(&build, "tokenizer.ggml.pre", "klingon\x1b");
	refuses_open(&build, NULL, "pre-tokenizer 'klingon?' is not known; known: gpt-2, smollm, llama-bpe, qwen2");
	build = small_vocabulary(WITH_ALL);
	refuses_open(&build, "GPT-2", "pre-tokenizer 'GPT-2' is not known");
}

static void control_tokens_cannot_be_made_by_merges(void **state)
{
	static const char *const tokens[] = {"a", "b", "ab"}, *const merges[] = {"a b"};
	static const int32_t kinds[] = {1, 1, 3};
	struct gguf_build build = {0};

	gguf_build_string(&build, "tokenizer.ggml.model", "gpt2");
	gguf_build_strings(&build, "tokenizer.ggml.tokens", tokens, 3);
	gguf_build_strings(&build, "tokenizer.ggml.merges", merges, 1);
	gguf_build_i32s(&build, "tokenizer.ggml.token_type", kinds, 3);
	refuses_open(&build, "gpt-2", "tokenizer.ggml.merges: entry 0");
}

/* A tokenizer made from build, which is released. */
static struct tokenizer *open_built(struct gguf_build *build, const char *pre)
{
	struct text file = {0};
	struct source source;
	struct tokenizer *tokenizer = NULL;
	struct err err = {0};

	gguf_build_finish(build, &file);
	gguf_build_release(build);
	if (source_open_bytes((const uint8_t *)file.data, file.len, "built.gguf", &source, &err) ||
		tokenizer_open(&source, pre, &tokenizer, &err))
		fail_msg("%s", err.text);
	source_close(&source);
	text_release(&file);
	return tokenizer;
}

static void expect_ids(const struct tokenizer *tokenizer, const char *text, const int32_t *expected, size_t count)
{
	struct token_list ids = encode(tokenizer, text);

	assert_int_equal(ids.count, count);
	assert_memory_equal(ids.ids, expected, count * sizeof(*expected));
	token_list_release(&ids);
}

static struct gguf_build vocabulary_of(
	const char *const *tokens, const int32_t *kinds, size_t n_tokens, const char *const *merges, size_t n_merges)
{
	struct gguf_build build = {0};

	gguf_build_string(&build, "tokenizer.ggml.model", "gpt2");
	gguf_build_strings(&build, "tokenizer.ggml.tokens", tokens, n_tokens);
	gguf_build_strings(&build, "tokenizer.ggml.merges", merges, n_merges);
	if (kinds)
		gguf_build_i32s(&build, "tokenizer.ggml.token_type", kinds, n_tokens);
	return build;
}

static void merges_apply_in_the_order_of_the_file(void **state)
{
	static const char *const tokens[] = {"a", "b", "c", "bc", "ab", "abab"}, *const merges[] = {"b c", "a b", "ab ab"};
	static const int32_t abc[] = {0, 3}, ababab[] = {5, 4};
	struct gguf_build build = vocabulary_of(tokens, NULL, 6, merges, 3);
	struct tokenizer *tokenizer = open_built(&build, "gpt-2");

	expect_ids(tokenizer, "abc", abc, 2);
	expect_ids(tokenizer, "ababab", ababab, 2); /* of equal pairs the leftmost first */
	tokenizer_close(tokenizer);
}

/* "abc" is in the vocabulary, but no merges lead to it. */
static void whole_words_win_under_the_rule_of_llama3_only(void **state)
{
	static const char *const tokens[] = {"a", "b", "c", "ab", "abc"}, *const merges[] = {"a b"};
	static const int32_t whole[] = {4}, merged[] = {3, 2};
	struct gguf_build build = vocabulary_of(tokens, NULL, 5, merges, 1);
	struct tokenizer *tokenizer = open_built(&build, "llama-bpe");

	expect_ids(tokenizer, "abc", whole, 1);
	tokenizer_close(tokenizer);
	build = vocabulary_of(tokens, NULL, 5, merges, 1);
	tokenizer = open_built(&build, "gpt-2");
	expect_ids(tokenizer, "abc", merged, 2);
	tokenizer_close(tokenizer);
}

static void longest_special_token_wins(void **state)
{
	static const char *const tokens[] = {"a", "<", "x", "<x", "<x><x>", "<x>", ">"};
	static const int32_t kinds[] = {1, 1, 1, 4, 4, 4, 1};
	static const int32_t one[] = {5, 0}, two[] = {4, 5}, part[] = {3, 3, 6, 1};
	struct gguf_build build = vocabulary_of(tokens, kinds, 7, NULL, 0);
	struct tokenizer *tokenizer = open_built(&build, "gpt-2");

	expect_ids(tokenizer, "<x>a", one, 2);
	expect_ids(tokenizer, "<x><x><x>", two, 2);
	expect_ids(tokenizer, "<x<x", part, 2);
	expect_ids(tokenizer, "><", part + 2, 2);
	tokenizer_close(tokenizer);
}

static void user_tokens_are_found_in_any_text(void **state)
{
	static const int32_t expected[] = {2, 3, 1, 0};
	struct gguf_build build = small_vocabulary(WITH_ALL);
	struct tokenizer *tokenizer = open_built(&build, "gpt-2");
	struct text back = {0};

	expect_ids(tokenizer, "ab<x>ba<x", expected, 4); /* bytes of "<x" have no tokens here */
	assert_false(tokenizer_is_control(tokenizer, 3));
	assert_int_equal(tokenizer_bos(tokenizer), -1);
	assert_true(tokenizer_decode_one(tokenizer, 3, false, &back));
	assert_string_equal(text_str(&back), "<x>");
	text_release(&back);
	tokenizer_close(tokenizer);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(vocabulary_without_pre_falls_back_to_gpt2),
		cmocka_unit_test(broken_vocabularies_are_refused_by_name),
		cmocka_unit_test(control_tokens_cannot_be_made_by_merges),
		cmocka_unit_test(merges_apply_in_the_order_of_the_file),
		cmocka_unit_test(whole_words_win_under_the_rule_of_llama3_only),
		cmocka_unit_test(longest_special_token_wins),
		cmocka_unit_test(user_tokens_are_found_in_any_text),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
