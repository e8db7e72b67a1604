/* Tests of SentencePiece vocabularies: ids and texts against tokenizers, sentencepiece and llama.cpp. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "base/utf8.h"
#include "engine/source.h"
#include "engine/tokenizer.h"
#include "tests/support/gguf_build.h"
#include "tests/support/sentencepiece_form.h"

#define STRINGS "tests/golden/tokenizer/strings.jsonl"
#define FIELD "tests/golden/field/"
#define HASH_DIGITS 8
#define THIN 4 /* of most forms the golden file has every so many of the strings */

static const char *const forms[] = {"legacy", "first", "words", "never", "bare", "flags", "first_flags"};
#define N_FORMS (sizeof(forms) / sizeof(forms[0]))

static struct token_list encode(const struct tokenizer *tokenizer, const struct json *text, bool parse_special)
{
	struct token_list ids = {0};
	struct err err = {0};

	if (tokenizer_encode(tokenizer, json_text(text), json_text_len(text), parse_special, &ids, &err))
		fail_msg("%s", err.text);
	return ids;
}

/* ---- ids and texts one by one ---- */

static void expect_ids(const char *form, const struct tokenizer *tokenizer, const struct json *text, bool parse_special,
	const struct json *expected)
{
	struct token_list ids = encode(tokenizer, text, parse_special);
	struct text got = {0}, wanted = {0};

	for (size_t i = 0; i < ids.count; i++)
		text_printf(&got, " %d", (int)ids.ids[i]);
	for (size_t i = 0; i < json_count(expected); i++)
		text_printf(&wanted, " %d", (int)json_int(json_at(expected, i), -1));
	if (strcmp(text_str(&got), text_str(&wanted)) != 0)
		fail_msg("%s, special %d, '%s':\n%s, expected\n%s", form, parse_special, json_text(text), text_str(&got),
			text_str(&wanted));
	text_release(&got);
	text_release(&wanted);
	token_list_release(&ids);
}

static void expect_text(const char *form, const struct tokenizer *tokenizer, const struct json *text, bool with_special,
	const struct json *expected)
{
	struct token_list ids = encode(tokenizer, text, true);
	struct text back = {0};

	assert_true(tokenizer_decode(tokenizer, ids.ids, ids.count, with_special, &back));
	if (back.len != json_text_len(expected) || memcmp(text_str(&back), json_text(expected), back.len) != 0)
		fail_msg("%s, '%s' comes back as '%s', expected '%s'", form, json_text(text), text_str(&back), json_text(expected));
	text_release(&back);
	token_list_release(&ids);
}

/* A case: ids with special tokens parsed, ids without (0: the same), and the text of the former with and without them. */
static void check_cases(const char *form, const struct tokenizer *tokenizer, const struct json *golden)
{
	const struct json *texts = json_get(golden, "texts"), *cases = json_get(json_get(golden, "cases"), form);

	assert_true(json_count(texts) > 100);
	assert_int_equal(json_count(cases), json_count(texts));
	for (size_t i = 0; i < json_count(texts); i++) {
		const struct json *text = json_at(texts, i), *one = json_at(cases, i), *plain = json_at(one, 1);

		expect_ids(form, tokenizer, text, true, json_at(one, 0));
		expect_ids(form, tokenizer, text, false, json_kind_of(plain) == JSON_KIND_ARRAY ? plain : json_at(one, 0));
		if (json_count(one) < 4)
			continue;
		expect_text(form, tokenizer, text, true, json_at(one, 2));
		expect_text(form, tokenizer, text, false, json_at(one, 3));
	}
}

static void special_tokens_and_spaces_are_those_of_tokenizers(void **state)
{
	struct json *golden = sentencepiece_json("golden.json");

	for (size_t i = 0; i < N_FORMS; i++) {
		struct tokenizer *tokenizer = sentencepiece_open_form(forms[i]);

		check_cases(forms[i], tokenizer, golden);
		tokenizer_close(tokenizer);
	}
	json_free(golden);
}

static void gguf_vocabularies_are_read_as_llama_cpp_does(void **state)
{
	static const char *const files[] = {"m22a_vocab_space_prefix.gguf", "m22b_vocab_no_prefix.gguf"};
	struct json *golden = sentencepiece_json("golden.json");
	struct tokenizer *tokenizer = sentencepiece_open_gguf(SENTENCEPIECE_GOLDEN "vocabulary.gguf");

	check_cases("gguf", tokenizer, golden);
	tokenizer_close(tokenizer);
	for (size_t f = 0; f < 2; f++) {
		const struct json *cases = json_get(json_get(golden, "field"), files[f]);
		char path[96];

		snprintf(path, sizeof(path), FIELD "%s", files[f]);
		tokenizer = sentencepiece_open_gguf(path);
		assert_true(json_count(cases) > 50);
		for (size_t i = 0; i < json_count(cases); i++) {
			expect_ids(files[f], tokenizer, json_at(json_at(cases, i), 0), true, json_at(json_at(cases, i), 1));
			expect_ids(files[f], tokenizer, json_at(json_at(cases, i), 0), false, json_at(json_at(cases, i), 2));
		}
		tokenizer_close(tokenizer);
	}
	json_free(golden);
}

/* ---- many strings by their hashes ---- */

static uint32_t fnv(const char *bytes, size_t len)
{
	uint32_t value = 0x811c9dc5;

	for (size_t i = 0; i < len; i++)
		value = (value ^ (unsigned char)bytes[i]) * 0x01000193;
	return value;
}

/* Calls visit for every step-th string of the golden file. */
static void each_string(size_t step, void (*visit)(void *ctx, const struct json *text, size_t number), void *ctx)
{
	struct text file = {0};
	struct err err = {0};
	size_t lines = 0;

	assert_int_equal(file_read(STRINGS, (size_t)8 << 20, &file, &err), STATUS_OK);
	for (const char *line = text_str(&file); *line; lines++) {
		size_t len = strcspn(line, "\n");
		struct json *row = NULL;

		if (lines % step == 0) {
			assert_int_equal(json_parse(line, len, STRINGS, &row, &err), STATUS_OK);
			visit(ctx, json_get(row, "text"), lines / step);
			json_free(row);
		}
		line += len + (line[len] == '\n');
	}
	assert_true(lines > 3000);
	text_release(&file);
}

struct hash_check {
	const char *form;
	const struct tokenizer *tokenizer;
	const char *ids, *texts; /* hashes one after another; texts may be NULL */
	size_t checked, wrong;
};

static bool hash_is(const struct text *text, const char *hashes, size_t number)
{
	char hash[HASH_DIGITS + 1];

	snprintf(hash, sizeof(hash), "%08x", fnv(text_str(text), text->len));
	return memcmp(hash, hashes + number * HASH_DIGITS, HASH_DIGITS) == 0;
}

static void check_hash(void *ctx, const struct json *text, size_t number)
{
	struct hash_check *check = ctx;
	struct token_list ids = encode(check->tokenizer, text, false);
	struct text list = {0}, back = {0};

	for (size_t i = 0; i < ids.count; i++)
		text_printf(&list, "%s%d", i ? " " : "", (int)ids.ids[i]);
	if (!hash_is(&list, check->ids, number) && ++check->wrong <= 10)
		print_error("%s: ids of '%s' differ: %s\n", check->form, json_text(text), text_str(&list));
	(void)tokenizer_decode(check->tokenizer, ids.ids, ids.count, true, &back);
	if (check->texts && !hash_is(&back, check->texts, number) && ++check->wrong <= 10)
		print_error("%s: '%s' comes back as '%s'\n", check->form, json_text(text), text_str(&back));
	check->checked++;
	text_release(&list);
	text_release(&back);
	token_list_release(&ids);
}

static void check_hashes(const char *form, struct tokenizer *tokenizer, const struct json *hashes, size_t step)
{
	char key[32];
	struct hash_check check = {.form = form, .tokenizer = tokenizer, .ids = json_text(json_get(hashes, form))};

	snprintf(key, sizeof(key), "%s_text", form);
	check.texts = json_text(json_get(hashes, key));
	each_string(step, check_hash, &check);
	assert_int_equal(json_text_len(json_get(hashes, form)), check.checked * HASH_DIGITS);
	if (check.wrong > 0)
		fail_msg("%s: %zu of %zu strings differ", form, check.wrong, check.checked);
	tokenizer_close(tokenizer);
}

static void many_strings_have_the_ids_of_tokenizers(void **state)
{
	static const char *const hashed[] = {"legacy", "first", "words", "never", "bare", "composed"};
	struct json *golden = sentencepiece_json("golden.json");
	const struct json *hashes = json_get(golden, "hashes");

	for (size_t i = 0; i < sizeof(hashed) / sizeof(hashed[0]); i++)
		check_hashes(hashed[i], sentencepiece_open_form(hashed[i]), hashes, i == 0 ? 1 : THIN);
	json_free(golden);
}

static void many_strings_have_the_ids_of_sentencepiece(void **state)
{
	struct json *golden = sentencepiece_json("golden.json");

	check_hashes(
		"sentencepiece", sentencepiece_open_gguf(SENTENCEPIECE_GOLDEN "vocabulary.gguf"), json_get(golden, "hashes"), 1);
	json_free(golden);
}

/* ---- streams ---- */

static void text_of_streams_continues_the_prompt(void **state)
{
	static const char text[] = "the house caf\xc3\xa9 \xe7\x8c\xab \xf0\x9f\x98\x80";
	struct tokenizer *tokenizer = sentencepiece_open_form("legacy");
	struct token_list ids = {0};
	struct text_stream stream = {0};
	struct text out = {0};
	size_t steps = 0;

	assert_int_equal(tokenizer_encode(tokenizer, text, strlen(text), true, &ids, NULL), STATUS_OK);
	for (size_t i = 0; i < ids.count; i++) {
		size_t before = out.len;

		text_stream_push(&stream, tokenizer, ids.ids[i], &out);
		assert_true(utf8_is_valid(text_str(&out), out.len));
		steps += out.len > before;
	}
	assert_true(steps < ids.count); /* bytes of a character waited for its last one */
	text_stream_finish(&stream, &out);
	/* The space belongs to the text: a prompt comes before it. */
	assert_string_equal(text_str(&out) + 1, text);
	assert_int_equal(out.data[0], ' ');
	text_clear(&out);
	assert_true(tokenizer_decode(tokenizer, ids.ids, ids.count, false, &out));
	assert_string_equal(text_str(&out), text);
	assert_false(tokenizer_decode(tokenizer, (int32_t[]){-1}, 1, false, &out));
	text_release(&out);
	text_stream_release(&stream);
	token_list_release(&ids);
	tokenizer_close(tokenizer);
}

static void bytes_that_are_no_text_keep_their_tokens(void **state)
{
	static const char bytes[] = "a\xff\xc3 \xe2\x96\xf0\x9f";
	struct tokenizer *tokenizer = sentencepiece_open_gguf(SENTENCEPIECE_GOLDEN "vocabulary.gguf");
	struct token_list ids = {0};
	struct text back = {0};

	assert_int_equal(tokenizer_encode(tokenizer, bytes, sizeof(bytes) - 1, true, &ids, NULL), STATUS_OK);
	assert_true(tokenizer_decode(tokenizer, ids.ids, ids.count, true, &back));
	assert_int_equal(back.len, sizeof(bytes) - 1);
	assert_memory_equal(back.data, bytes, back.len);
	text_release(&back);
	token_list_release(&ids);
	tokenizer_close(tokenizer);
}

/* ---- long texts ---- */

static void long_texts_do_not_take_quadratic_time(void **state)
{
	static const char *const units[] = {"a", "ab", " ", "  x", "\n", "\xe2\x96\x81", "\xc3\xa9", "\xf0\x9f\x99\x82", "\xff",
		"the house ", "<s>", "<s", " <mask>", "<sep>  ", "house", "<norm>", " <S>"};
	static const char *const named[] = {"legacy", "flags", "words"};

	for (size_t f = 0; f <= 3; f++) {
		struct tokenizer *tokenizer =
			f < 3 ? sentencepiece_open_form(named[f]) : sentencepiece_open_gguf(SENTENCEPIECE_GOLDEN "vocabulary.gguf");

		for (size_t u = 0; u < sizeof(units) / sizeof(units[0]); u++) {
			struct text text = {0};
			struct token_list ids = {0};
			int64_t start = clock_monotonic_ns(), ms;

			while (text.len < (size_t)1 << 17)
				text_append_str(&text, units[u]);
			assert_int_equal(tokenizer_encode(tokenizer, text.data, text.len, true, &ids, NULL), STATUS_OK);
			ms = (clock_monotonic_ns() - start) / 1000000;
			assert_true(ids.count > 0);
			if (ms > 20000) /* linear: below 0.1 s, seconds under a sanitizer on a busy machine; quadratic: minutes */
				fail_msg("a long text of unit %zu took %lld ms", u, (long long)ms);
			token_list_release(&ids);
			text_release(&text);
		}
		tokenizer_close(tokenizer);
	}
}

/* ---- what is refused ---- */

/* The vocabulary with one part changed; key may be "model.KEY". */
static void refuses(const char *key, const char *value, const char *expected)
{
	struct json *root = sentencepiece_json("tokenizer.json"), *object = root, *part = NULL;
	const struct tokenizer_hf_files files = {.document = root};
	struct tokenizer_spec spec;
	struct tokenizer *tokenizer = NULL;
	struct err err = {0};
	enum status status;

	assert_int_equal(json_parse(value, strlen(value), "test", &part, NULL), STATUS_OK);
	if (strncmp(key, "model.", 6) == 0) {
		object = json_get(root, "model");
		key += 6;
	}
	json_set(object, key, part);
	status = tokenizer_spec_hf_parsed(&files, NULL, &spec, &err);
	if (!status)
		status = tokenizer_make(&spec, &tokenizer, &err);
	tokenizer_spec_release(&spec);
	if (status != STATUS_INPUT || !strstr(err.text, expected))
		fail_msg("%s %s: expected '%s' in: %s", key, value, expected, err.text);
}

static void parts_that_are_not_known_are_refused_by_name(void **state)
{
#define METASPACE(rest) "{\"type\":\"Metaspace\",\"replacement\":\"\u2581\"" rest "}"
	static const struct {
		const char *key, *value, *expected;
	} cases[] = {
		{"normalizer", "{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"AAA=\"}", "normalizer 'Precompiled'"},
		{"normalizer", "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFKC\"}]}", "normalizer 'NFKC'"},
		{"normalizer", "{\"type\":\"Replace\",\"pattern\":{\"Regex\":\" \"},\"content\":\"\u2581\"}",
			"normalizer 'Replace'"},
		{"normalizer", "{\"type\":\"Prepend\",\"prepend\":\"x\"}", "normalizer 'Prepend'"},
		{"normalizer", "null", "byte_fallback without U+2581 for spaces"},
		{"pre_tokenizer", "{\"type\":\"Split\",\"pattern\":{\"String\":\" \"}}", "pre_tokenizer 'Split'"},
		{"pre_tokenizer", "{\"type\":\"Metaspace\",\"replacement\":\"_\"}", "a replacement other than U+2581"},
		{"pre_tokenizer", METASPACE(",\"prepend_scheme\":\"last\""), "prepend_scheme is none of"},
		{"pre_tokenizer", METASPACE(",\"prepend_scheme\":1"), "prepend_scheme is none of"},
		{"pre_tokenizer", METASPACE(",\"add_prefix_space\":false"), "add_prefix_space is false"},
		{"pre_tokenizer", "{\"type\":\"Sequence\",\"pretokenizers\":[" METASPACE("") ",{\"type\":\"Digits\"}]}",
			"pre_tokenizer 'Sequence'"},
		{"decoder", "null", "decoder is not supported"},
		{"decoder", "{\"type\":\"Metaspace\",\"replacement\":\"\u2581\"}", "decoder is not supported"},
		{"decoder",
			"{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":{\"String\":\"\u2581\"},"
			"\"content\":\" \"},{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"},"
			"{\"type\":\"Strip\",\"content\":\" \",\"start\":2,\"stop\":0}]}",
			"Strip of one ' '"},
		{"decoder",
			"{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":{\"String\":\"\u2581\"},"
			"\"content\":\" \"},{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"},"
			"{\"type\":\"Strip\",\"content\":\" \",\"start\":-1,\"stop\":0}]}",
			"Strip of one ' '"},
		{"model.merges", "[[\"\u2581 \",\"t\"]]", "model.merges: entry 0 does not name two tokens"},
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		refuses(cases[i].key, cases[i].value, cases[i].expected);
#undef METASPACE
}

/* A small vocabulary of the model llama, and what spoils it. */
struct gguf_case {
	size_t n_scores;
	float first_score;
	bool adds_eos, removes_spaces, has_charsmap, lacks_byte;
};

static enum status open_built(const struct gguf_case *one, struct err *err)
{
	enum { BYTES = 256, TOKENS = BYTES + 4 };
	char names[BYTES][8];
	const char *tokens[TOKENS] = {"<unk>", "<s>", "</s>"};
	int32_t kinds[TOKENS] = {2, 3, 3};
	float scores[TOKENS] = {one->first_score};
	uint32_t charsmap[4] = {0};
	struct gguf_build build = {0};
	struct text file = {0}, array = {0};
	struct source source = {0};
	struct tokenizer *tokenizer = NULL;
	enum status status;

	for (int byte = 0; byte < BYTES; byte++) {
		snprintf(names[byte], sizeof(names[byte]), "<0x%02X>", byte);
		tokens[3 + byte] = names[byte];
		kinds[3 + byte] = one->lacks_byte && byte == 65 ? 1 : 6;
	}
	tokens[TOKENS - 1] = "\xe2\x96\x81";
	kinds[TOKENS - 1] = 1;
	gguf_build_string(&build, "tokenizer.ggml.model", "llama");
	gguf_build_strings(&build, "tokenizer.ggml.tokens", tokens, TOKENS);
	gguf_build_i32s(&build, "tokenizer.ggml.token_type", kinds, TOKENS);
	text_append(&array, (const char *)&(uint32_t){GGUF_F32}, 4);
	text_append(&array, (const char *)&(uint64_t){one->n_scores}, 8);
	text_append(&array, (const char *)scores, one->n_scores * sizeof(scores[0]));
	gguf_build_raw(&build, "tokenizer.ggml.scores", GGUF_ARRAY, array.data, array.len);
	gguf_build_bool(&build, "tokenizer.ggml.add_eos_token", one->adds_eos);
	gguf_build_bool(&build, "tokenizer.ggml.remove_extra_whitespaces", one->removes_spaces);
	charsmap[0] = GGUF_U8;
	charsmap[1] = one->has_charsmap; /* the low half of the count */
	if (one->has_charsmap)
		gguf_build_raw(&build, "tokenizer.ggml.precompiled_charsmap", GGUF_ARRAY, charsmap, 13);
	gguf_build_finish(&build, &file);
	status = source_open_bytes((const uint8_t *)file.data, file.len, "test", &source, err);
	if (!status)
		status = tokenizer_open(&source, NULL, &tokenizer, err);
	tokenizer_close(tokenizer);
	source_close(&source);
	gguf_build_release(&build);
	text_release(&file);
	text_release(&array);
	return status;
}

static void gguf_vocabularies_that_mean_something_else_are_refused(void **state)
{
	enum { TOKENS = 260 };
	static const struct {
		struct gguf_case file;
		const char *expected;
	} cases[] = {
		{{.n_scores = TOKENS - 1}, "tokenizer.ggml.scores has 259 entries for 260 tokens"},
		{{.n_scores = TOKENS, .first_score = NAN}, "tokenizer.ggml.scores: that of token 0 is no number"},
		{{.n_scores = TOKENS, .adds_eos = true}, "tokenizer.ggml.add_eos_token is true"},
		{{.n_scores = TOKENS, .removes_spaces = true}, "remove_extra_whitespaces is not supported"},
		{{.n_scores = TOKENS, .has_charsmap = true}, "precompiled_charsmap is not supported"},
		{{.n_scores = TOKENS, .lacks_byte = true}, "no token for byte 65"},
	};
	struct err err = {0};

	if (open_built(&(struct gguf_case){.n_scores = TOKENS}, &err))
		fail_msg("%s", err.text);
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		err_clear(&err);
		assert_int_equal(open_built(&cases[i].file, &err), STATUS_INPUT);
		if (!strstr(err.text, cases[i].expected))
			fail_msg("expected '%s' in: %s", cases[i].expected, err.text);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(special_tokens_and_spaces_are_those_of_tokenizers),
		cmocka_unit_test(gguf_vocabularies_are_read_as_llama_cpp_does),
		cmocka_unit_test(many_strings_have_the_ids_of_tokenizers),
		cmocka_unit_test(many_strings_have_the_ids_of_sentencepiece),
		cmocka_unit_test(text_of_streams_continues_the_prompt),
		cmocka_unit_test(bytes_that_are_no_text_keep_their_tokens),
		cmocka_unit_test(long_texts_do_not_take_quadratic_time),
		cmocka_unit_test(parts_that_are_not_known_are_refused_by_name),
		cmocka_unit_test(gguf_vocabularies_that_mean_something_else_are_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
