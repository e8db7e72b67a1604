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
	struct gguf gguf;
	struct tokenizer *tokenizer = NULL;
	struct token_list ids;
	struct err err = {0};

	assert_int_equal(gguf_open(FIELD "m11_vocab_without_pre.gguf", &gguf, &err), STATUS_OK);
	if (tokenizer_open(&gguf, NULL, &tokenizer, &err))
		fail_msg("%s", err.text);
	assert_string_equal(tokenizer_pre_name(tokenizer), "gpt-2");
	ids = encode(tokenizer, "hi hi");
	assert_int_equal(ids.count, 2);
	assert_int_equal(ids.ids[0], 256);
	assert_int_equal(ids.ids[1], 257);
	token_list_release(&ids);
	tokenizer_close(tokenizer);
	gguf_close(&gguf);
}

static void refuses_open(struct gguf_build *build, const char *pre, const char *expected)
{
	struct text file = {0};
	struct gguf gguf;
	struct tokenizer *tokenizer = NULL;
	struct err err = {0};

	gguf_build_finish(build, &file);
	gguf_build_release(build);
	assert_int_equal(gguf_open_bytes((const uint8_t *)file.data, file.len, "built.gguf", &gguf, &err), STATUS_OK);
	assert_int_equal(tokenizer_open(&gguf, pre, &tokenizer, &err), STATUS_INPUT);
	assert_null(tokenizer);
	if (!strstr(err.text, expected))
		fail_msg("'%s' should name '%s'", err.text, expected);
	gguf_close(&gguf);
	text_release(&file);
}

static void sentencepiece_vocabularies_are_refused_by_name(void **state)
{
	struct gguf gguf;
	struct tokenizer *tokenizer = NULL;
	struct err err = {0};

	assert_int_equal(gguf_open(FIELD "m22a_vocab_space_prefix.gguf", &gguf, &err), STATUS_OK);
	assert_int_equal(tokenizer_open(&gguf, NULL, &tokenizer, &err), STATUS_INPUT);
	assert_non_null(strstr(err.text, "tokenizer model 'llama' is not supported"));
	gguf_close(&gguf);
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

static void user_tokens_are_found_in_any_text(void **state)
{
	struct gguf_build build = small_vocabulary(WITH_ALL);
	struct text file = {0}, back = {0};
	struct gguf gguf;
	struct tokenizer *tokenizer = NULL;
	struct token_list ids;
	struct err err = {0};

	gguf_build_finish(&build, &file);
	gguf_build_release(&build);
	assert_int_equal(gguf_open_bytes((const uint8_t *)file.data, file.len, "built.gguf", &gguf, &err), STATUS_OK);
	assert_int_equal(tokenizer_open(&gguf, "gpt-2", &tokenizer, &err), STATUS_OK);
	ids = encode(tokenizer, "ab<x>ba<x");
	assert_int_equal(ids.count, 4);
	assert_int_equal(ids.ids[0], 2);
	assert_int_equal(ids.ids[1], 3);
	assert_int_equal(ids.ids[2], 1);
	assert_int_equal(ids.ids[3], 0);
	assert_false(tokenizer_is_control(tokenizer, 3));
	assert_int_equal(tokenizer_bos(tokenizer), -1);
	for (size_t i = 0; i < ids.count; i++)
		assert_true(tokenizer_decode_one(tokenizer, ids.ids[i], false, &back));
	assert_string_equal(text_str(&back), "ab<x>ba");
	text_release(&back);
	token_list_release(&ids);
	tokenizer_close(tokenizer);
	gguf_close(&gguf);
	text_release(&file);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(vocabulary_without_pre_falls_back_to_gpt2),
		cmocka_unit_test(sentencepiece_vocabularies_are_refused_by_name),
		cmocka_unit_test(broken_vocabularies_are_refused_by_name),
		cmocka_unit_test(control_tokens_cannot_be_made_by_merges),
		cmocka_unit_test(user_tokens_are_found_in_any_text),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
