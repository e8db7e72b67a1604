/* tokenizer.json and the files beside it: what is read, and what is said about what is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "engine/tokenizer.h"

#define BYTE_LEVEL "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":true}"
#define BYTE_LEVEL_PLAIN "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false}"
#define SPLIT(pattern) \
	"{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":\"" pattern \
	"\"},\"behavior\":\"Isolated\",\"invert\":false}," BYTE_LEVEL_PLAIN "]}"

/* A sound file; a case replaces or adds keys, of model with "model.KEY". */
static const char base[] =
	"{\"version\":\"1.0\",\"added_tokens\":[{\"id\":4,\"content\":\"<s>\",\"special\":true},"
	"{\"id\":6,\"content\":\"<tool>\",\"special\":false,\"normalized\":false}],\"normalizer\":null,\"pre_"
	"tokenizer\":" BYTE_LEVEL
	",\"post_processor\":null,\"decoder\":{\"type\":\"ByteLevel\"},\"model\":{\"type\":\"BPE\",\"dropout\":null,"
	"\"unk_token\":null,\"continuing_subword_prefix\":\"\",\"end_of_word_suffix\":null,\"byte_fallback\":false,"
	"\"vocab\":{\"a\":0,\"b\":1,\"ab\":2,\"\\u0120\":3,\"<s>\":4},\"merges\":[\"a b\"]}}";

struct side {
	const char *tokenizer_config, *generation_config, *config;
};

static struct json *parse(const char *text)
{
	struct json *root = NULL;
	struct err err = {0};
	if (text && json_parse(text, strlen(text), "test", &root, &err) != STATUS_OK)
		fail_msg("%s: %s", text, err.text);
	return root;
}

static enum status open_changed(
	const char *key, const char *value, const struct side *side, struct tokenizer **out, struct err *err)
{
	struct json *document = parse(base), *object = document;
	struct json *tokenizer_config = parse(side->tokenizer_config), *generation_config = parse(side->generation_config),
		    *config = parse(side->config);
	struct tokenizer_spec spec;
	if (key && strncmp(key, "model.", 6) == 0) {
		object = json_get(document, "model");
		key += 6;
	}
	if (key && value)
		json_set(object, key, parse(value));
	else if (key)
		json_remove(object, key);
	const struct tokenizer_hf_files files = {document, tokenizer_config, generation_config, config};
	*out = NULL;
	enum status status = tokenizer_spec_hf_parsed(&files, NULL, &spec, err);
	if (status == STATUS_OK)
		status = tokenizer_make(&spec, out, err);
	tokenizer_spec_release(&spec);
	json_free(tokenizer_config);
	json_free(generation_config);
	json_free(config);
	return status;
}

static struct tokenizer *opens(const char *key, const char *value, struct side side)
{
	struct tokenizer *tokenizer;
	struct err err = {0};
	if (open_changed(key, value, &side, &tokenizer, &err) != STATUS_OK)
		fail_msg("%s: %s", key ? key : "base", err.text);
	return tokenizer;
}

static void expect_ids(const struct tokenizer *tokenizer, const char *text, const char *expected)
{
	struct token_list ids = {0};
	struct text list = {0};
	assert_int_equal(tokenizer_encode(tokenizer, text, strlen(text), true, &ids, NULL), STATUS_OK);
	for (size_t i = 0; i < ids.count; i++)
		text_printf(&list, "%s%d", i ? " " : "", (int)ids.ids[i]);
	assert_string_equal(text_str(&list), expected);
	text_release(&list);
	token_list_release(&ids);
}

static void a_sound_file_is_read(void **state)
{
	struct tokenizer *tokenizer = opens(NULL, NULL, (struct side){0});
	assert_int_equal(tokenizer_vocab_size(tokenizer), 7); /* 5 is nobody's */
	assert_string_equal(tokenizer_pre_name(tokenizer), "gpt-2");
	assert_int_equal(tokenizer_bos(tokenizer), -1);
	assert_false(tokenizer_adds_bos(tokenizer));
	expect_ids(tokenizer, "abba<s> ab<tool>", "2 1 0 4 3 2 6");
	assert_true(tokenizer_is_control(tokenizer, 4) && !tokenizer_is_control(tokenizer, 6));
	tokenizer_close(tokenizer);
	/* Pairs instead of texts; no type, as in old files; nothing but what must be there. */
	tokenizer = opens("model.merges", "[[\"a\",\"b\"]]", (struct side){0});
	expect_ids(tokenizer, "ab", "2");
	tokenizer_close(tokenizer);
	tokenizer = opens("model.type", NULL, (struct side){0});
	expect_ids(tokenizer, "ab", "2");
	tokenizer_close(tokenizer);
}

static void whole_words_and_patterns_are_the_files(void **state)
{
	struct tokenizer *tokenizer = opens("model.ignore_merges", "true", (struct side){0});
	expect_ids(tokenizer, "ab", "2");
	tokenizer_close(tokenizer);
	tokenizer = opens("pre_tokenizer", SPLIT("a|[^a]+"), (struct side){0}); /* no ab: it is cut in between */
	assert_string_equal(tokenizer_pre_name(tokenizer), "regex");
	expect_ids(tokenizer, "abab", "0 1 0 1");
	tokenizer_close(tokenizer);
}

static void ids_with_a_meaning_come_from_all_files(void **state)
{
	const struct side side = {
		.tokenizer_config = "{\"bos_token\":{\"content\":\"<s>\"},\"eos_token\":\"ab\"}",
		.generation_config = "{\"eos_token_id\":[0,1]}",
		.config = "{\"eos_token_id\":6}",
	};
	struct tokenizer *tokenizer = opens(NULL, NULL, side);
	static const bool ends[7] = {true, true, true, false, false, false, true};
	for (int32_t id = 0; id < 7; id++)
		assert_int_equal(tokenizer_is_end(tokenizer, id), ends[id]);
	assert_int_equal(tokenizer_bos(tokenizer), 4);
	assert_false(tokenizer_adds_bos(tokenizer)); /* nothing says so */
	tokenizer_close(tokenizer);
}

#define TEMPLATE(single) "{\"type\":\"TemplateProcessing\",\"single\":" single "}"
#define TEXT "{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}"
#define SPECIAL(token) "{\"SpecialToken\":{\"id\":\"" token "\",\"type_id\":0}}"

static void a_token_before_the_text_is_added_where_the_files_say_so(void **state)
{
	struct tokenizer *tokenizer = opens("post_processor", TEMPLATE("[" SPECIAL("<s>") "," TEXT "]"), (struct side){0});
	assert_true(tokenizer_adds_bos(tokenizer) && tokenizer_bos(tokenizer) == 4);
	tokenizer_close(tokenizer);
	tokenizer = opens("post_processor", TEMPLATE("[" TEXT "]"), (struct side){0});
	assert_false(tokenizer_adds_bos(tokenizer));
	tokenizer_close(tokenizer);
	/* One class takes its switch from tokenizer_config.json, the others do not look at it. */
	const struct side llama = {
		.tokenizer_config = "{\"tokenizer_class\":\"LlamaTokenizerFast\",\"add_bos_token\":true,\"bos_token\":\"<s>\"}"};
	const struct side gpt2 = {
		.tokenizer_config = "{\"tokenizer_class\":\"GPT2Tokenizer\",\"add_bos_token\":true,\"bos_token\":\"<s>\"}"};
	tokenizer = opens(NULL, NULL, llama);
	assert_true(tokenizer_adds_bos(tokenizer));
	tokenizer_close(tokenizer);
	tokenizer = opens(NULL, NULL, gpt2);
	assert_false(tokenizer_adds_bos(tokenizer));
	tokenizer_close(tokenizer);
}

static void refuses(const char *key, const char *value, struct side side, const char *code, const char *expected)
{
	struct tokenizer *tokenizer;
	struct err err = {0};
	enum status status = open_changed(key, value, &side, &tokenizer, &err);
	if (status != STATUS_INPUT || !strstr(err.text, expected))
		fail_msg("%s %s: expected '%s' in: %s", key ? key : "", value ? value : "", expected, err.text);
	assert_string_equal(err.code, code);
	assert_null(tokenizer);
}

static void parts_of_other_kinds_are_refused_by_their_place(void **state)
{
	static const struct {
		const char *key, *value, *expected;
	} cases[] = {
		{"model.type", "\"Unigram\"", "tokenizer.json: model.type 'Unigram' is not supported"},
		{"model.dropout", "0.1", "model.dropout is not supported"},
		{"model.continuing_subword_prefix", "\"##\"", "model.continuing_subword_prefix"},
		{"model.end_of_word_suffix", "\"</w>\"", "model.end_of_word_suffix"},
		{"model.byte_fallback", "true", "pre_tokenizer 'ByteLevel' is not supported beside byte_fallback"},
		{"model.unk_token", "\"<s>\"", "no token for byte 0"},
		{"normalizer", "{\"type\":\"NFKC\"}", "normalizer is not supported"},
		{"normalizer", "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"},{\"type\":\"Lowercase\"}]}",
			"normalizer"},
		{"pre_tokenizer", "null", "pre_tokenizer is not supported"},
		{"pre_tokenizer", "{\"type\":\"Metaspace\"}", "pre_tokenizer is not supported"},
		{"pre_tokenizer", "{\"type\":\"ByteLevel\",\"add_prefix_space\":true,\"use_regex\":true}", "pre_tokenizer"},
		{"pre_tokenizer", BYTE_LEVEL_PLAIN, "pre_tokenizer is not supported"},
		{"pre_tokenizer", "{\"type\":\"Sequence\",\"pretokenizers\":[]}", "pre_tokenizer is not supported"},
		{"pre_tokenizer",
			"{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Digits\",\"individual_digits\":false}," BYTE_LEVEL
			"]}",
			"pre_tokenizer is not supported"},
		{"post_processor", "{\"type\":\"BertProcessing\"}", "post_processor 'BertProcessing' is not supported"},
		{"post_processor", TEMPLATE("[" TEXT "," SPECIAL("<s>") "]"), "post_processor: only a token before the text"},
		{"post_processor", TEMPLATE("[]"), "post_processor: only a token before the text"},
	};
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
		refuses(cases[i].key, cases[i].value, (struct side){0}, "unsupported_tokenizer", cases[i].expected);
}

static void damaged_files_are_refused_with_their_place(void **state)
{
	static const struct {
		const char *key, *value, *expected;
	} cases[] = {
		{"model.vocab", NULL, "model.vocab is no object"},
		{"model.vocab", "{}", "model.vocab is no object, or empty"},
		{"model.vocab", "{\"a\":-1}", "no whole number of 0 to"},
		{"model.vocab", "{\"a\":1000000000}", "no whole number of 0 to"},
		{"model.vocab", "{\"a\":\"0\"}", "no whole number of 0 to"},
		{"model.vocab", "{\"a\":0,\"b\":0}", "two tokens of id 0"},
		{"added_tokens", "[{\"id\":99999999,\"content\":\"x\"}]", "no whole number of 0 to"},
		{"added_tokens", "[{\"id\":0,\"content\":\"x\"}]", "added_tokens[0] 'x' has the id 0 of another token"},
		{"added_tokens", "[{\"id\":5}]", "added_tokens[0] has no content"},
		{"model.merges", NULL, "model.merges is no list"},
		{"model.merges", "[7]", "model.merges[0] is no text and no pair"},
		{"model.merges", "[[\"a\"]]", "model.merges[0] is no text and no pair"},
		{"model.merges", "[\"ab\"]", "model.merges: entry 0 does not name two tokens"},
		{"model.merges", "[[\"b\",\"a\"]]", "model.merges: entry 0 does not name two tokens whose union is a token"},
		{"pre_tokenizer", SPLIT("("), "the splitting pattern does not compile"},
		{"pre_tokenizer", SPLIT("a*"), "the splitting pattern matches the empty text"},
		{"post_processor", TEMPLATE("[" SPECIAL("<x>") "," TEXT "]"), "its token is not in the vocabulary"},
	};
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
		refuses(cases[i].key, cases[i].value, (struct side){0}, "", cases[i].expected);
	refuses(NULL, NULL, (struct side){.generation_config = "{\"eos_token_id\":[0,7]}"}, "",
		"generation_config.json: eos_token_id is no id of 0 to 6");
	refuses(NULL, NULL, (struct side){.config = "{\"eos_token_id\":\"x\"}"}, "", "config.json: eos_token_id is no id");
	refuses(NULL, NULL, (struct side){.tokenizer_config = "{\"tokenizer_class\":\"LlamaTokenizer\",\"add_bos_token\":true}"},
		"", "bos_token is not in the vocabulary");
}

/* A pattern whose time grows with the power of a text's length is stopped, not waited for. */
static void a_pattern_that_is_slow_on_purpose_is_stopped(void **state)
{
	struct tokenizer *tokenizer = opens("pre_tokenizer", SPLIT("(?:a|aa)+b"), (struct side){0});
	struct token_list ids = {0};
	struct err err = {0};
	char text[64];
	memset(text, 'a', sizeof text);
	memcpy(text + sizeof text - 2, "cb", 2); /* without a b nothing would be tried */
	assert_int_equal(tokenizer_encode(tokenizer, text, sizeof text, false, &ids, &err), STATUS_INPUT);
	assert_non_null(strstr(err.text, "the text cannot be split"));
	token_list_release(&ids);
	tokenizer_close(tokenizer);
	/* \K moves the start of a match behind its end: an empty match that the pattern does not admit to. */
	tokenizer = opens("pre_tokenizer", SPLIT("a\\\\K"), (struct side){0});
	err_clear(&err);
	assert_int_equal(tokenizer_encode(tokenizer, "bab", 3, false, &ids, &err), STATUS_INPUT);
	assert_non_null(strstr(err.text, "matches the empty text"));
	token_list_release(&ids);
	tokenizer_close(tokenizer);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_sound_file_is_read),
		cmocka_unit_test(whole_words_and_patterns_are_the_files),
		cmocka_unit_test(ids_with_a_meaning_come_from_all_files),
		cmocka_unit_test(a_token_before_the_text_is_added_where_the_files_say_so),
		cmocka_unit_test(parts_of_other_kinds_are_refused_by_their_place),
		cmocka_unit_test(damaged_files_are_refused_with_their_place),
		cmocka_unit_test(a_pattern_that_is_slow_on_purpose_is_stopped),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
