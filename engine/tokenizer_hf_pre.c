/* Recognises the pre-tokenizer chains of byte-level BPE. Known patterns are exchanged for ours, which mean the same with PCRE2. */
#include "engine/tokenizer_hf_pre.h"

#include <string.h>

#define PLACE "tokenizer.json: "
#define UNSUPPORTED(err, ...) err_set_code(err, STATUS_INPUT, "unsupported_tokenizer", PLACE __VA_ARGS__)

#define PARTS_MAX 4 /* guess: known chains have two */

/* Patterns as published in tokenizer.json files, and the rule that is the same. */
static const struct {
	const char *pattern, *rule;
} known[] = {
	{"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|"
	 "\\s+(?!\\S)|\\s+",
		"llama-bpe"},
	{"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|"
	 "\\s+(?!\\S)|\\s+",
		"qwen2"},
};

static const char *text_of(const struct json *part, const char *key)
{
	const char *text = json_text(json_get(part, key));

	return text ? text : "";
}

static bool is_byte_level(const struct json *part, bool with_regex)
{
	return part && strcmp(text_of(part, "type"), "ByteLevel") == 0 && !json_bool(json_get(part, "add_prefix_space"), true) &&
		json_bool(json_get(part, "use_regex"), true) == with_regex;
}

static bool is_single_digits(const struct json *part)
{
	return strcmp(text_of(part, "type"), "Digits") == 0 && json_bool(json_get(part, "individual_digits"), false);
}

/* A Split whose matches are pieces, as is what lies between them. */
static bool is_isolating_split(const struct json *part)
{
	return strcmp(text_of(part, "type"), "Split") == 0 && json_text(json_get(json_get(part, "pattern"), "Regex")) &&
		strcmp(text_of(part, "behavior"), "Isolated") == 0 && !json_bool(json_get(part, "invert"), false);
}

static enum status named(const char *name, struct pre_rule *out, struct err *err)
{
	enum status status = pre_rule_find((struct gguf_string){name, strlen(name)}, out, err);

	/* What goes with a name in GGUF files is said by other places of a tokenizer.json. */
	out->nfc = out->whole_words = out->adds_bos = false;
	return status;
}

static enum status split_rule(const struct json *split, struct pre_rule *out, struct err *err)
{
	const char *pattern = json_text(json_get(json_get(split, "pattern"), "Regex"));

	for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
		if (strcmp(pattern, known[i].pattern) == 0)
			return named(known[i].rule, out, err);
	if (strlen(pattern) != json_text_len(json_get(json_get(split, "pattern"), "Regex")))
		return err_set(err, STATUS_INPUT, PLACE "pre_tokenizer: the pattern has a NUL");
	*out = (struct pre_rule){.name = "regex", .pattern = pattern, .is_foreign = true};
	return STATUS_OK;
}

enum status tokenizer_hf_pre(const struct json *pre_tokenizer, struct pre_rule *out, struct err *err)
{
	bool is_list = strcmp(text_of(pre_tokenizer, "type"), "Sequence") == 0;
	const struct json *list = json_get(pre_tokenizer, "pretokenizers"), *parts[PARTS_MAX] = {pre_tokenizer};
	size_t count = is_list ? json_count(list) : 1;

	for (size_t i = 0; is_list && i < count && i < PARTS_MAX; i++)
		parts[i] = json_at(list, i);
	if (count == 1 && is_byte_level(parts[0], true))
		return named("gpt-2", out, err);
	if (count == 2 && is_single_digits(parts[0]) && is_byte_level(parts[1], true))
		return named("smollm", out, err);
	if (count == 2 && is_isolating_split(parts[0]) && is_byte_level(parts[1], false))
		return split_rule(parts[0], out, err);
	return UNSUPPORTED(err,
		"pre_tokenizer is not supported; known: ByteLevel with its own pattern, after single Digits or alone, and a Split "
		"with "
		"a Regex that isolates its matches before a ByteLevel without one (all without add_prefix_space)");
}

enum status tokenizer_hf_normalizer(const struct json *normalizer, bool *nfc, struct err *err)
{
	const struct json *list = json_get(normalizer, "normalizers");
	bool is_list = strcmp(text_of(normalizer, "type"), "Sequence") == 0;

	*nfc = false;
	for (size_t i = 0; json_kind_of(normalizer) != JSON_KIND_NULL && i < (is_list ? json_count(list) : 1); i++) {
		const struct json *part = is_list ? json_at(list, i) : normalizer;

		if (strcmp(text_of(part, "type"), "NFC") != 0)
			return UNSUPPORTED(err, "normalizer is not supported; known: none, NFC");
		*nfc = true;
	}
	return STATUS_OK;
}
