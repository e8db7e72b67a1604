/* The tokenizer of a Hugging Face folder. tokenizer.json is a chain of parts, each of any kind; those of BPE on bytes and of
 * SentencePiece's BPE are read, the others are refused by the name of their place, since text cut in another way makes a model
 * quietly worse. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "engine/hf_folder.h"
#include "engine/tokenizer_hf_pre.h"
#include "engine/tokenizer_hf_sentencepiece.h"
#include "engine/tokenizer_normal.h"
#include "engine/tokenizer_spec.h"

#define TOKENIZER_BYTES_MAX ((size_t)256 << 20) /* guess: ten times the largest published one */
#define CONFIG_BYTES_MAX ((size_t)16 << 20) /* guess: lists of added tokens have a megabyte */
#define PLACE "tokenizer.json: "
#define UNSUPPORTED(err, ...) err_set_code(err, STATUS_INPUT, "unsupported_tokenizer", PLACE __VA_ARGS__)

static const char *type_of(const struct json *part)
{
	const char *type = json_text(json_get(part, "type"));

	return type ? type : "";
}

static const char *printable(const char *text, char out[80])
{
	return gguf_printable((struct gguf_string){text, strlen(text)}, out, 80);
}

static struct gguf_string string_of(const struct json *text)
{
	return (struct gguf_string){json_text(text), json_text_len(text)};
}

static bool is_null(const struct json *value)
{
	return json_kind_of(value) == JSON_KIND_NULL;
}

/* --- vocabulary ---------------------------------------------------------------------------------------------------- */

static enum status check_model(const struct json *model, struct err *err)
{
	static const char *const absent[] = {"dropout", "continuing_subword_prefix", "end_of_word_suffix"};
	char text[80];

	if (strcmp(type_of(model), "BPE") != 0 && !(is_null(json_get(model, "type")) && json_get(model, "merges")))
		return UNSUPPORTED(err, "model.type '%s' is not supported; known: BPE", printable(type_of(model), text));
	for (size_t i = 0; i < sizeof(absent) / sizeof(absent[0]); i++) {
		const struct json *value = json_get(model, absent[i]);

		if (!is_null(value) && !(json_text(value) && json_text_len(value) == 0))
			return UNSUPPORTED(err, "model.%s is not supported", absent[i]);
	}
	return STATUS_OK;
}

/* One past the largest id; 0 when an id is out of bounds. */
static int64_t count_ids(const struct json *vocab, const struct json *added)
{
	int64_t count = 0;

	for (void *it = json_first(vocab); it; it = json_next(vocab, it)) {
		int64_t id = json_int(json_iterator_value(it), -1);

		if (id < 0 || id >= TOKENIZER_TOKENS_MAX)
			return 0;
		count = id >= count ? id + 1 : count;
	}
	for (size_t i = 0; i < json_count(added); i++) {
		int64_t id = json_int(json_get(json_at(added, i), "id"), -1);

		if (id < 0 || id >= TOKENIZER_TOKENS_MAX)
			return 0;
		count = id >= count ? id + 1 : count;
	}
	return count;
}

static enum status read_vocab(const struct json *vocab, const struct json *added, struct tokenizer_spec *spec, struct err *err)
{
	int64_t count = count_ids(vocab, added);

	if (json_kind_of(vocab) != JSON_KIND_OBJECT || json_count(vocab) == 0)
		return err_set(err, STATUS_INPUT, PLACE "model.vocab is no object, or empty");
	if (count == 0)
		return err_set(err, STATUS_INPUT, PLACE "an id of model.vocab or added_tokens is no whole number of 0 to %d",
			TOKENIZER_TOKENS_MAX - 1);
	spec->n_tokens = (int32_t)count;
	spec->tokens = arena_calloc(&spec->arena, (size_t)count, sizeof(*spec->tokens));
	spec->kinds = arena_calloc(&spec->arena, (size_t)count, sizeof(*spec->kinds));
	spec->flags = arena_calloc(&spec->arena, (size_t)count, sizeof(*spec->flags));
	memset(spec->kinds, TOKEN_UNUSED, (size_t)count);
	for (void *it = json_first(vocab); it; it = json_next(vocab, it)) {
		int64_t id = json_int(json_iterator_value(it), 0);
		const char *key = json_iterator_key(it);

		if (spec->kinds[id] != TOKEN_UNUSED)
			return err_set(err, STATUS_INPUT, PLACE "model.vocab has two tokens of id %" PRId64, id);
		spec->tokens[id] = (struct gguf_string){key, strlen(key)};
		spec->kinds[id] = spec->form == FORM_SENTENCEPIECE && tokenizer_byte_of_entry(spec->tokens[id]) >= 0 ? TOKEN_BYTE
														     : TOKEN_NORMAL;
	}
	return STATUS_OK;
}

static enum status read_added_token(const struct json *token, size_t number, struct tokenizer_spec *spec, struct err *err)
{
	static const struct {
		const char *key;
		uint8_t flag;
	} flags[] = {{"lstrip", TOKEN_LSTRIP}, {"rstrip", TOKEN_RSTRIP}, {"single_word", TOKEN_SINGLE_WORD},
		{"normalized", TOKEN_NORMALIZED}};
	struct gguf_string content = string_of(json_get(token, "content"));
	int64_t id = json_int(json_get(token, "id"), 0);
	char text[80];

	if (!content.data || content.len == 0)
		return err_set(err, STATUS_INPUT, PLACE "added_tokens[%zu] has no content", number);
	if (spec->kinds[id] != TOKEN_UNUSED &&
		(spec->tokens[id].len != content.len || memcmp(spec->tokens[id].data, content.data, content.len) != 0))
		return err_set(err, STATUS_INPUT, PLACE "added_tokens[%zu] '%s' has the id %" PRId64 " of another token", number,
			gguf_printable(content, text, sizeof(text)), id);
	spec->tokens[id] = content;
	spec->kinds[id] = json_bool(json_get(token, "special"), false) ? TOKEN_CONTROL : TOKEN_USER;
	for (size_t i = 0; i < sizeof(flags) / sizeof(flags[0]); i++)
		if (json_bool(json_get(token, flags[i].key), false))
			spec->flags[id] |= flags[i].flag;
	return STATUS_OK;
}

/* ["a b", …] or [["a", "b"], …] */
static enum status read_merges(const struct json *merges, struct tokenizer_spec *spec, struct err *err)
{
	if (json_kind_of(merges) != JSON_KIND_ARRAY || json_count(merges) > TOKENIZER_MERGES_MAX)
		return err_set(err, STATUS_INPUT, PLACE "model.merges is no list of at most %d entries", TOKENIZER_MERGES_MAX);
	spec->merges_place = PLACE "model.merges";
	spec->n_merges = json_count(merges);
	spec->merges = arena_calloc(&spec->arena, spec->n_merges + 1, sizeof(*spec->merges));
	for (size_t i = 0; i < spec->n_merges; i++) {
		const struct json *entry = json_at(merges, i);

		if (json_text(entry))
			spec->merges[i] = tokenizer_spec_split_merge(string_of(entry));
		else if (json_count(entry) == 2 && json_text(json_at(entry, 0)) && json_text(json_at(entry, 1)))
			spec->merges[i] = (struct tokenizer_spec_merge){string_of(json_at(entry, 0)), string_of(json_at(entry, 1))};
		else
			return err_set(err, STATUS_INPUT, PLACE "model.merges[%zu] is no text and no pair of texts", i);
	}
	return STATUS_OK;
}

/* --- what goes around the text ------------------------------------------------------------------------------------- */

static int32_t find_token(const struct tokenizer_spec *spec, const struct json *text)
{
	struct gguf_string wanted = string_of(text);

	for (int32_t id = 0; wanted.data && id < spec->n_tokens; id++)
		if (spec->kinds[id] != TOKEN_UNUSED && spec->tokens[id].len == wanted.len &&
			memcmp(spec->tokens[id].data, wanted.data, wanted.len) == 0)
			return id;
	return -1;
}

/* A token of tokenizer_config.json: its text, or an object that has it as content. */
static int32_t named_token(const struct tokenizer_spec *spec, const struct json *tokenizer_config, const char *key)
{
	const struct json *value = json_get(tokenizer_config, key);

	return find_token(spec, json_kind_of(value) == JSON_KIND_OBJECT ? json_get(value, "content") : value);
}

/* The template of one text: optionally one special token before it, nothing after. */
static enum status read_template(const struct json *processor, struct tokenizer_spec *spec, struct err *err)
{
	const struct json *single = json_get(processor, "single");
	size_t count = json_count(single);
	const struct json *first = json_get(json_at(single, 0), "SpecialToken");

	if (!json_get(json_at(single, count - 1), "Sequence") || count > 2 || (count == 2 && !first))
		return UNSUPPORTED(err, "post_processor: only a token before the text is supported");
	if (count == 1)
		return STATUS_OK;
	spec->bos = find_token(spec, json_get(first, "id"));
	spec->adds_bos = true;
	return spec->bos >= 0 ? STATUS_OK : err_set(err, STATUS_INPUT, PLACE "post_processor: its token is not in the vocabulary");
}

static enum status read_post_processor(const struct json *processor, struct tokenizer_spec *spec, struct err *err)
{
	const struct json *parts = json_get(processor, "processors");
	bool is_list = strcmp(type_of(processor), "Sequence") == 0;
	size_t count = is_list ? json_count(parts) : 1;
	char text[80];

	if (is_null(processor))
		return STATUS_OK;
	for (size_t i = 0; i < count; i++) {
		const struct json *part = is_list ? json_at(parts, i) : processor;
		enum status status = STATUS_OK;

		if (strcmp(type_of(part), "TemplateProcessing") == 0)
			status = read_template(part, spec, err);
		else if (strcmp(type_of(part), "ByteLevel") != 0) /* which only moves offsets */
			status = UNSUPPORTED(err, "post_processor '%s' is not supported; known: TemplateProcessing, ByteLevel",
				printable(type_of(part), text));
		if (status)
			return status;
	}
	return STATUS_OK;
}

static void add_ends(struct tokenizer_spec *spec, const struct json *ids)
{
	if (json_kind_of(ids) == JSON_KIND_INTEGER)
		tokenizer_spec_add_end(spec, (int32_t)json_int(ids, -1));
	for (size_t i = 0; i < json_count(ids) && json_kind_of(ids) == JSON_KIND_ARRAY; i++)
		tokenizer_spec_add_end(spec, (int32_t)json_int(json_at(ids, i), -1));
}

static enum status check_end_ids(const struct json *document, const char *name, int32_t n_tokens, struct err *err)
{
	const struct json *ids = json_get(document, "eos_token_id");
	bool is_list = json_kind_of(ids) == JSON_KIND_ARRAY;
	size_t count = is_list ? json_count(ids) : !is_null(ids);

	if (count > TOKENIZER_ENDS_MAX)
		return err_set(err, STATUS_INPUT, "%s: eos_token_id has more than %d ids", name, TOKENIZER_ENDS_MAX);
	for (size_t i = 0; i < count; i++) {
		int64_t id = json_int(is_list ? json_at(ids, i) : ids, -1);

		if (id < 0 || id >= n_tokens)
			return err_set(err, STATUS_INPUT, "%s: eos_token_id is no id of 0 to %" PRId32, name, n_tokens - 1);
	}
	return STATUS_OK;
}

static enum status read_special_ids(const struct tokenizer_hf_files *files, struct tokenizer_spec *spec, struct err *err)
{
	const char *class = json_text(json_get(files->tokenizer_config, "tokenizer_class"));
	const struct json *add = json_get(files->tokenizer_config, "add_bos_token");
	enum status status = check_end_ids(files->generation_config, "generation_config.json", spec->n_tokens, err);

	if (!status)
		status = check_end_ids(files->config, "config.json", spec->n_tokens, err);
	if (status)
		return status;
	add_ends(spec, json_get(files->generation_config, "eos_token_id"));
	add_ends(spec, json_get(files->config, "eos_token_id"));
	tokenizer_spec_add_end(spec, named_token(spec, files->tokenizer_config, "eos_token"));
	if (spec->bos < 0)
		spec->bos = named_token(spec, files->tokenizer_config, "bos_token");
	/* Of this class the switch decides; other classes do what tokenizer.json says. */
	if (class && strncmp(class, "LlamaTokenizer", strlen("LlamaTokenizer")) == 0 && json_kind_of(add) == JSON_KIND_BOOL)
		spec->adds_bos = json_bool(add, false);
	if (spec->adds_bos && spec->bos < 0)
		return err_set(
			err, STATUS_INPUT, "tokenizer_config.json: add_bos_token is true, but bos_token is not in the vocabulary");
	return STATUS_OK;
}

/* --- the whole ----------------------------------------------------------------------------------------------------- */

static enum status choose_rule(const struct json *root, const char *pre, struct tokenizer_spec *spec, struct err *err)
{
	enum status status;

	if (json_bool(json_get(json_get(root, "model"), "byte_fallback"), false)) {
		if (pre)
			return tokenizer_spec_refuse_pre(err);
		status = tokenizer_hf_sentencepiece(root, spec, err);
		spec->rule.whole_words = json_bool(json_get(json_get(root, "model"), "ignore_merges"), false);
		return status;
	}
	if (pre)
		return pre_rule_find((struct gguf_string){pre, strlen(pre)}, &spec->rule, err);
	status = tokenizer_hf_pre(json_get(root, "pre_tokenizer"), &spec->rule, err);
	if (!status)
		status = tokenizer_hf_normalizer(json_get(root, "normalizer"), &spec->rule.nfc, err);
	spec->rule.whole_words = json_bool(json_get(json_get(root, "model"), "ignore_merges"), false);
	return status;
}

static enum status read_all(const struct json *root, const struct tokenizer_hf_files *files, const char *pre,
	struct tokenizer_spec *spec, struct err *err)
{
	const struct json *model = json_get(root, "model"), *added = json_get(root, "added_tokens");
	enum status status = check_model(model, err);

	spec->needs_all_bytes = !is_null(json_get(model, "unk_token")) || json_bool(json_get(model, "byte_fallback"), false);
	if (!status)
		status = choose_rule(root, pre, spec, err);
	if (!status)
		status = read_vocab(json_get(model, "vocab"), added, spec, err);
	for (size_t i = 0; i < json_count(added) && !status; i++)
		status = read_added_token(json_at(added, i), i, spec, err);
	if (!status)
		status = read_merges(json_get(model, "merges"), spec, err);
	if (!status)
		status = read_post_processor(json_get(root, "post_processor"), spec, err);
	return status ? status : read_special_ids(files, spec, err);
}

enum status tokenizer_spec_hf_parsed(
	const struct tokenizer_hf_files *files, const char *pre, struct tokenizer_spec *out, struct err *err)
{
	*out = (struct tokenizer_spec){.document = files->document, .bos = -1};
	return read_all(files->document, files, pre, out, err);
}

enum status tokenizer_spec_hf(
	const char *folder, const struct json *config, const char *pre, struct tokenizer_spec *out, struct err *err)
{
	struct json *tokenizer = NULL, *tokenizer_config = NULL, *generation_config = NULL;
	enum status status = hf_folder_json(folder, "tokenizer_config.json", CONFIG_BYTES_MAX, false, &tokenizer_config, err);

	*out = (struct tokenizer_spec){0};
	if (!status)
		status = hf_folder_json(folder, "generation_config.json", CONFIG_BYTES_MAX, false, &generation_config, err);
	if (!status)
		status = hf_folder_json(folder, "tokenizer.json", TOKENIZER_BYTES_MAX, true, &tokenizer, err);
	if (!status) {
		const struct tokenizer_hf_files files = {tokenizer, tokenizer_config, generation_config, config};

		status = tokenizer_spec_hf_parsed(&files, pre, out, err);
		if (status)
			err_add(err, "%s", folder);
	}
	json_free(tokenizer_config);
	json_free(generation_config);
	return status;
}
