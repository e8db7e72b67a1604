/* The tokenizer of a GGUF file: keys tokenizer.ggml.*. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/log.h"
#include "engine/tokenizer_spec.h"

void tokenizer_spec_release(struct tokenizer_spec *spec)
{
	arena_release(&spec->arena);
	json_free(spec->document);
	*spec = (struct tokenizer_spec){0};
}

void tokenizer_spec_add_end(struct tokenizer_spec *spec, int32_t id)
{
	for (size_t i = 0; i < spec->n_ends; i++)
		if (spec->ends[i] == id)
			return;
	if (spec->n_ends < TOKENIZER_ENDS_MAX && id >= 0 && id < spec->n_tokens)
		spec->ends[spec->n_ends++] = id;
}

struct tokenizer_spec_merge tokenizer_spec_split_merge(struct gguf_string entry)
{
	const char *space = entry.len > 1 ? memchr(entry.data + 1, ' ', entry.len - 1) : NULL;
	size_t left = space ? (size_t)(space - entry.data) : entry.len;

	return (struct tokenizer_spec_merge){
		.left = {entry.data, left}, .right = {entry.data + left + (space != NULL), entry.len - left - (space != NULL)}};
}

enum status tokenizer_spec_refuse_pre(struct err *err)
{
	return err_set_code(err, STATUS_INPUT, "unsupported_tokenizer",
		"this is a SentencePiece vocabulary, which has one way to split text: --tokenizer-pre does not apply");
}

static enum status read_form(const struct gguf *gguf, enum tokenizer_form *out, struct err *err)
{
	struct gguf_string model;
	char printable[64];
	enum status status = gguf_get_string(gguf, "tokenizer.ggml.model", true, &model, err);

	*out = status == STATUS_OK && gguf_string_equal(model, "llama") ? FORM_SENTENCEPIECE : FORM_BYTES;
	if (status || *out == FORM_SENTENCEPIECE || gguf_string_equal(model, "gpt2"))
		return status;
	return err_set_code(err, STATUS_INPUT, "unsupported_tokenizer",
		"tokenizer model '%s' is not supported; known: gpt2 (byte-level BPE), llama (SentencePiece BPE)",
		gguf_printable(model, printable, sizeof(printable)));
}

static enum status choose_rule(const struct gguf *gguf, const char *pre, struct pre_rule *out, struct err *err)
{
	struct gguf_string name = {"", 0};
	enum status status = STATUS_OK;

	if (pre)
		return pre_rule_find((struct gguf_string){pre, strlen(pre)}, out, err);
	status = gguf_get_string(gguf, "tokenizer.ggml.pre", false, &name, err);
	if (status)
		return status;
	if (name.len > 0 && !gguf_string_equal(name, "default"))
		return pre_rule_find(name, out, err);
	log_warn("tokenizer", "tokenizer.ggml.pre is %s: text is split by the rule of gpt-2 (--tokenizer-pre NAME says otherwise)",
		name.len > 0 ? "\"default\"" : "missing");
	return pre_rule_find((struct gguf_string){"gpt-2", 5}, out, err);
}

static enum status read_kinds(const struct gguf *gguf, struct tokenizer_spec *spec, struct err *err)
{
	const struct gguf_value *kinds;
	enum status status = gguf_get_array(gguf, "tokenizer.ggml.token_type", GGUF_I32, false, &kinds, err);

	spec->kinds = arena_calloc(&spec->arena, (size_t)spec->n_tokens, sizeof(*spec->kinds));
	memset(spec->kinds, TOKEN_NORMAL, (size_t)spec->n_tokens);
	if (status || !kinds)
		return status;
	if (kinds->count != (uint64_t)spec->n_tokens)
		return err_set(err, STATUS_INPUT, "tokenizer.ggml.token_type has %" PRIu64 " entries for %" PRId32 " tokens",
			kinds->count, spec->n_tokens);
	for (int32_t id = 0; id < spec->n_tokens; id++) {
		int64_t kind = gguf_integer_at(kinds, (uint64_t)id);

		if (kind < TOKEN_NORMAL || kind > TOKEN_BYTE)
			return err_set(err, STATUS_INPUT,
				"tokenizer.ggml.token_type: token %" PRId32 " has the unknown kind %" PRId64, id, kind);
		spec->kinds[id] = (uint8_t)kind;
	}
	return STATUS_OK;
}

static enum status read_tokens(const struct gguf *gguf, struct tokenizer_spec *spec, struct err *err)
{
	const struct gguf_value *entries;
	const uint8_t *cursor;
	enum status status = gguf_get_array(gguf, "tokenizer.ggml.tokens", GGUF_STRING, true, &entries, err);

	if (status)
		return status;
	if (entries->count == 0 || entries->count > TOKENIZER_TOKENS_MAX)
		return err_set(err, STATUS_INPUT, "tokenizer.ggml.tokens has %" PRIu64 " entries, expected 1 to %d", entries->count,
			TOKENIZER_TOKENS_MAX);
	spec->n_tokens = (int32_t)entries->count;
	spec->tokens = arena_calloc(&spec->arena, (size_t)spec->n_tokens, sizeof(*spec->tokens));
	cursor = entries->bytes;
	for (int32_t id = 0; id < spec->n_tokens; id++)
		spec->tokens[id] = gguf_next_string(&cursor);
	return read_kinds(gguf, spec, err);
}

static enum status read_merges(const struct gguf *gguf, struct tokenizer_spec *spec, struct err *err)
{
	const struct gguf_value *entries;
	const uint8_t *cursor;
	enum status status = gguf_get_array(gguf, "tokenizer.ggml.merges", GGUF_STRING, true, &entries, err);

	if (status)
		return status;
	spec->merges_place = "tokenizer.ggml.merges";
	if (entries->count > TOKENIZER_MERGES_MAX)
		return err_set(err, STATUS_INPUT, "tokenizer.ggml.merges has %" PRIu64 " entries, expected at most %d",
			entries->count, TOKENIZER_MERGES_MAX);
	spec->n_merges = (size_t)entries->count;
	spec->merges = arena_calloc(&spec->arena, spec->n_merges + 1, sizeof(*spec->merges));
	cursor = entries->bytes;
	for (size_t i = 0; i < spec->n_merges; i++)
		spec->merges[i] = tokenizer_spec_split_merge(gguf_next_string(&cursor));
	return STATUS_OK;
}

static enum status read_scores(const struct gguf *gguf, struct tokenizer_spec *spec, struct err *err)
{
	const struct gguf_value *scores;
	enum status status = gguf_get_array(gguf, "tokenizer.ggml.scores", GGUF_F32, true, &scores, err);

	if (status)
		return status;
	if (scores->count != (uint64_t)spec->n_tokens)
		return err_set(err, STATUS_INPUT, "tokenizer.ggml.scores has %" PRIu64 " entries for %" PRId32 " tokens",
			scores->count, spec->n_tokens);
	spec->scores = arena_calloc(&spec->arena, (size_t)spec->n_tokens, sizeof(*spec->scores));
	for (int32_t id = 0; id < spec->n_tokens; id++) {
		spec->scores[id] = (float)gguf_double_at(scores, (uint64_t)id);
		if (isnan(spec->scores[id]))
			return err_set(err, STATUS_INPUT, "tokenizer.ggml.scores: that of token %" PRId32 " is no number", id);
	}
	return STATUS_OK;
}

/* What the format's own reader ignores in files of this kind would change the ids if it were meant. */
static enum status refuse_normaliser(const struct gguf *gguf, struct err *err)
{
	const struct gguf_value *charsmap = gguf_find(gguf, "tokenizer.ggml.precompiled_charsmap");
	bool removes_spaces = false;
	enum status status = gguf_get_bool(gguf, "tokenizer.ggml.remove_extra_whitespaces", false, &removes_spaces, err);

	if (!status && charsmap && charsmap->count > 0)
		status = err_set_code(err, STATUS_INPUT, "unsupported_tokenizer",
			"tokenizer.ggml.precompiled_charsmap is not supported for the tokenizer model llama");
	if (!status && removes_spaces)
		status = err_set_code(err, STATUS_INPUT, "unsupported_tokenizer",
			"tokenizer.ggml.remove_extra_whitespaces is not supported for the tokenizer model llama");
	return status;
}

static enum status read_sentencepiece(const struct gguf *gguf, const char *pre, struct tokenizer_spec *spec, struct err *err)
{
	bool adds_space = true;
	enum status status = pre ? tokenizer_spec_refuse_pre(err) : refuse_normaliser(gguf, err);

	if (!status)
		status = gguf_get_bool(gguf, "tokenizer.ggml.add_space_prefix", false, &adds_space, err);
	spec->rule = (struct pre_rule){.name = "sentencepiece", .adds_bos = true};
	spec->spaces.prefix = adds_space ? SPACE_PREFIX_EVERY : SPACE_PREFIX_NONE;
	spec->spaces.is_stripped = adds_space;
	spec->needs_all_bytes = true;
	if (!status)
		status = read_tokens(gguf, spec, err);
	return status ? status : read_scores(gguf, spec, err);
}

static enum status read_byte_level(const struct gguf *gguf, const char *pre, struct tokenizer_spec *spec, struct err *err)
{
	enum status status = choose_rule(gguf, pre, &spec->rule, err);

	if (!status)
		status = read_tokens(gguf, spec, err);
	return status ? status : read_merges(gguf, spec, err);
}

/* Reads an id from the metadata; absent, or the largest u32 by which some writers say "none": -1. */
static enum status read_id(const struct gguf *gguf, int32_t n_tokens, const char *key, int32_t *out, struct err *err)
{
	uint64_t id = UINT32_MAX;
	enum status status = gguf_get_u64(gguf, key, false, &id, err);

	*out = -1;
	if (status || id == UINT32_MAX)
		return status;
	if (id >= (uint64_t)n_tokens)
		return err_set(err, STATUS_INPUT, "key '%s' is %" PRIu64 ", but there are %" PRId32 " tokens", key, id, n_tokens);
	*out = (int32_t)id;
	return STATUS_OK;
}

static enum status read_ends(const struct gguf *gguf, struct tokenizer_spec *spec, struct err *err)
{
	static const char *const keys[] = {
		"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"};

	for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
		int32_t id;
		enum status status = read_id(gguf, spec->n_tokens, keys[i], &id, err);

		if (status)
			return status;
		if (id >= 0)
			tokenizer_spec_add_end(spec, id);
	}
	return STATUS_OK;
}

static enum status read_ids(const struct gguf *gguf, struct tokenizer_spec *spec, struct err *err)
{
	bool adds_eos = false;
	enum status status = read_ends(gguf, spec, err);

	if (!status)
		status = read_id(gguf, spec->n_tokens, "tokenizer.ggml.bos_token_id", &spec->bos, err);
	if (status)
		return status;
	spec->adds_bos = spec->rule.adds_bos && spec->bos >= 0;
	status = gguf_get_bool(gguf, "tokenizer.ggml.add_bos_token", false, &spec->adds_bos, err);
	if (!status && spec->adds_bos && spec->bos < 0)
		return err_set(
			err, STATUS_INPUT, "tokenizer.ggml.add_bos_token is true, but tokenizer.ggml.bos_token_id is missing");
	if (!status)
		status = gguf_get_bool(gguf, "tokenizer.ggml.add_eos_token", false, &adds_eos, err);
	if (!status && adds_eos)
		return err_set_code(err, STATUS_INPUT, "unsupported_tokenizer",
			"tokenizer.ggml.add_eos_token is true, which is not supported: what is to be continued cannot end");
	return status;
}

enum status tokenizer_spec_gguf(const struct gguf *gguf, const char *pre, struct tokenizer_spec *out, struct err *err)
{
	enum status status;

	*out = (struct tokenizer_spec){.bos = -1};
	status = read_form(gguf, &out->form, err);
	if (!status)
		status = out->form == FORM_SENTENCEPIECE ? read_sentencepiece(gguf, pre, out, err)
							 : read_byte_level(gguf, pre, out, err);
	return status ? status : read_ids(gguf, out, err);
}
