/* Byte-level BPE tokenizer: what a vocabulary, a pre-tokenizer rule and byte-pair merging make together. */
#include "engine/tokenizer.h"

#include <inttypes.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "engine/normalise.h"
#include "engine/regex.h"
#include "engine/tokenizer_bpe.h"
#include "engine/tokenizer_pre.h"
#include "engine/tokenizer_vocab.h"

struct tokenizer {
	struct vocab vocab;
	const struct pre_rule *rule;
	struct regex *splitter;
	int32_t bos;
	bool adds_bos;
};

void token_list_append(struct token_list *list, int32_t id)
{
	if (list->count == list->capacity) {
		list->capacity = list->capacity * 2 + 64;
		list->ids = mem_realloc(list->ids, list->capacity, sizeof(*list->ids));
	}
	list->ids[list->count++] = id;
}

void token_list_release(struct token_list *list)
{
	mem_free(list->ids);
	*list = (struct token_list){0};
}

/* Opening. ---------------------------------------------------------------------------------------------------------- */

static enum status check_model(const struct gguf *gguf, struct err *err)
{
	struct gguf_string model;
	char printable[64];
	enum status status = gguf_get_string(gguf, "tokenizer.ggml.model", true, &model, err);

	if (status || gguf_string_equal(model, "gpt2"))
		return status;
	return err_set_code(err, STATUS_INPUT, "unsupported_tokenizer",
		"tokenizer model '%s' is not supported; known: gpt2 (byte-level BPE)",
		gguf_printable(model, printable, sizeof(printable)));
}

static enum status choose_rule(const struct gguf *gguf, const char *pre, const struct pre_rule **out, struct err *err)
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

/* Reads an id from the metadata; absent, or the largest u32 by which some writers say "none": -1. */
static enum status read_id(const struct gguf *gguf, const struct vocab *vocab, const char *key, int32_t *out, struct err *err)
{
	uint64_t id = UINT32_MAX;
	enum status status = gguf_get_u64(gguf, key, false, &id, err);

	*out = -1;
	if (status || id == UINT32_MAX)
		return status;
	if (id >= (uint64_t)vocab->size)
		return err_set(
			err, STATUS_INPUT, "key '%s' is %" PRIu64 ", but there are %" PRId32 " tokens", key, id, vocab->size);
	*out = (int32_t)id;
	return STATUS_OK;
}

/* End-of-generation tokens: those the file names, and control tokens whose text says so in the families we know. Files often
 * name only one of them, and a model that ends with another would never stop. */
static enum status mark_ends(const struct gguf *gguf, struct vocab *vocab, struct err *err)
{
	static const char *const keys[] = {
		"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"};
	static const char *const texts[] = {
		"<|endoftext|>", "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|end|>", "<end_of_turn>", "</s>"};

	for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
		int32_t id;
		enum status status = read_id(gguf, vocab, keys[i], &id, err);

		if (status)
			return status;
		if (id >= 0)
			vocab->tokens[id].is_end = true;
	}
	for (size_t i = 0; i < vocab->n_specials; i++) {
		struct token *token = &vocab->tokens[vocab->specials[i]];

		for (size_t k = 0; k < sizeof(texts) / sizeof(texts[0]); k++)
			if (token_kind_is_control(token->kind) && token->len == strlen(texts[k]) &&
				memcmp(token->bytes, texts[k], token->len) == 0)
				token->is_end = true;
	}
	return STATUS_OK;
}

static enum status load(const struct gguf *gguf, const char *pre, struct tokenizer *tokenizer, struct err *err)
{
	enum status status = check_model(gguf, err);

	if (!status)
		status = choose_rule(gguf, pre, &tokenizer->rule, err);
	if (!status)
		status = regex_compile(tokenizer->rule->pattern, &tokenizer->splitter, err);
	if (!status)
		status = vocab_load(gguf, &tokenizer->vocab, err);
	if (!status)
		status = mark_ends(gguf, &tokenizer->vocab, err);
	if (!status)
		status = read_id(gguf, &tokenizer->vocab, "tokenizer.ggml.bos_token_id", &tokenizer->bos, err);
	if (status)
		return status;
	tokenizer->adds_bos = tokenizer->rule->adds_bos && tokenizer->bos >= 0;
	status = gguf_get_bool(gguf, "tokenizer.ggml.add_bos_token", false, &tokenizer->adds_bos, err);
	if (!status && tokenizer->adds_bos && tokenizer->bos < 0)
		status = err_set(
			err, STATUS_INPUT, "tokenizer.ggml.add_bos_token is true, but tokenizer.ggml.bos_token_id is missing");
	return status;
}

enum status tokenizer_open(const struct source *source, const char *pre, struct tokenizer **out, struct err *err)
{
	struct tokenizer *tokenizer = mem_calloc(1, sizeof(*tokenizer));
	enum status status = load(source_gguf(source), pre, tokenizer, err);

	*out = NULL;
	if (status)
		tokenizer_close(tokenizer);
	else
		*out = tokenizer;
	return status;
}

void tokenizer_close(struct tokenizer *tokenizer)
{
	if (!tokenizer)
		return;
	vocab_release(&tokenizer->vocab);
	regex_free(tokenizer->splitter);
	mem_free(tokenizer);
}

/* Encoding. --------------------------------------------------------------------------------------------------------- */

/* What one call of tokenizer_encode works with. */
struct encoder {
	const struct tokenizer *tokenizer;
	struct regex_scan *scan;
	struct bpe_scratch scratch;
	struct text normalised;
	struct token_list *out;
	struct err *err;
};

static void encode_piece(struct encoder *encoder, const char *bytes, size_t len)
{
	const struct vocab *vocab = &encoder->tokenizer->vocab;

	if (encoder->tokenizer->rule->whole_words) {
		int32_t id = vocab_find_word(vocab, bytes, len);

		if (id >= 0) {
			token_list_append(encoder->out, id);
			return;
		}
	}
	bpe_encode(vocab, bytes, len, &encoder->scratch, encoder->out);
}

/* text is valid UTF-8. */
static enum status encode_valid(struct encoder *encoder, const char *text, size_t len)
{
	size_t done = 0;

	if (encoder->tokenizer->rule->nfc && !normalise_is_nfc_quick(text, len)) {
		text_clear(&encoder->normalised);
		normalise_nfc(text, len, &encoder->normalised);
		text = text_str(&encoder->normalised);
		len = encoder->normalised.len;
	}
	while (done < len) {
		size_t begin, end;
		enum status status = regex_find(encoder->scan, text, len, done, &begin, &end, encoder->err);

		if (status)
			return status;
		if (begin > done)
			encode_piece(encoder, text + done, begin - done);
		if (end > begin)
			encode_piece(encoder, text + begin, end - begin);
		ASSERT(end > done); /* no pattern matches the empty text, and no match means the rest */
		done = end;
	}
	return STATUS_OK;
}

static size_t valid_prefix(const char *text, size_t len)
{
	size_t pos = 0;

	while (pos < len) {
		uint32_t code_point;
		int bytes = (unsigned char)text[pos] < 0x80 ? 1 : utf8_decode(text + pos, len - pos, &code_point);

		if (bytes <= 0)
			break;
		pos += (size_t)bytes;
	}
	return pos;
}

/* Text without special tokens. */
static enum status encode_plain(struct encoder *encoder, const char *text, size_t len)
{
	enum status status = STATUS_OK;

	while (len > 0 && !status) {
		size_t valid = valid_prefix(text, len);

		if (valid > 0) {
			status = encode_valid(encoder, text, valid);
		} else {
			encode_piece(encoder, text, 1);
			valid = 1;
		}
		text += valid;
		len -= valid;
	}
	return status;
}

static enum status encode_all(struct encoder *encoder, const char *text, size_t len, bool parse_special)
{
	const struct vocab *vocab = &encoder->tokenizer->vocab;
	size_t plain = 0, pos = 0;
	enum status status;

	while (pos < len) {
		int32_t id = vocab_match_special(vocab, text + pos, len - pos, parse_special);

		if (id < 0) {
			pos++;
			continue;
		}
		status = encode_plain(encoder, text + plain, pos - plain);
		if (status)
			return status;
		token_list_append(encoder->out, id);
		pos += vocab->tokens[id].len;
		plain = pos;
	}
	return encode_plain(encoder, text + plain, len - plain);
}

enum status tokenizer_encode(const struct tokenizer *tokenizer, const char *text, size_t len, bool parse_special,
	struct token_list *out, struct err *err)
{
	struct encoder encoder = {.tokenizer = tokenizer, .out = out, .err = err};
	enum status status;

	if (len > TOKENIZER_TEXT_BYTES_MAX)
		return err_set(
			err, STATUS_INPUT, "a text of %zu bytes is longer than the limit of %zu", len, TOKENIZER_TEXT_BYTES_MAX);
	status = regex_scan_create(tokenizer->splitter, &encoder.scan, err);
	if (!status)
		status = encode_all(&encoder, text, len, parse_special);
	regex_scan_free(encoder.scan);
	bpe_scratch_release(&encoder.scratch);
	text_release(&encoder.normalised);
	return status;
}

/* Decoding. --------------------------------------------------------------------------------------------------------- */

bool tokenizer_decode_one(const struct tokenizer *tokenizer, int32_t id, bool with_special, struct text *out)
{
	const struct token *token;

	if (id < 0 || id >= tokenizer->vocab.size)
		return false;
	token = &tokenizer->vocab.tokens[id];
	if (with_special || !token_kind_is_control(token->kind))
		text_append(out, token->bytes, token->len);
	return true;
}

void text_stream_push(struct text_stream *stream, const struct tokenizer *tokenizer, int32_t id, struct text *out)
{
	struct text *pending = &stream->pending;
	size_t ready;

	(void)tokenizer_decode_one(tokenizer, id, false, pending); /* an id out of range has no text */
	ready = utf8_complete_prefix(text_str(pending), pending->len);
	if (ready == 0)
		return;
	utf8_append_lossy(out, pending->data, ready);
	memmove(pending->data, pending->data + ready, pending->len - ready);
	text_truncate(pending, pending->len - ready);
}

void text_stream_finish(struct text_stream *stream, struct text *out)
{
	utf8_append_lossy(out, text_str(&stream->pending), stream->pending.len);
	text_clear(&stream->pending);
}

void text_stream_release(struct text_stream *stream)
{
	text_release(&stream->pending);
}

/* Facts. ------------------------------------------------------------------------------------------------------------ */

int32_t tokenizer_vocab_size(const struct tokenizer *tokenizer)
{
	return tokenizer->vocab.size;
}

int32_t tokenizer_bos(const struct tokenizer *tokenizer)
{
	return tokenizer->bos;
}

bool tokenizer_adds_bos(const struct tokenizer *tokenizer)
{
	return tokenizer->adds_bos;
}

bool tokenizer_is_end(const struct tokenizer *tokenizer, int32_t id)
{
	return id >= 0 && id < tokenizer->vocab.size && tokenizer->vocab.tokens[id].is_end;
}

bool tokenizer_is_control(const struct tokenizer *tokenizer, int32_t id)
{
	return id >= 0 && id < tokenizer->vocab.size && token_kind_is_control(tokenizer->vocab.tokens[id].kind);
}

int32_t tokenizer_find(const struct tokenizer *tokenizer, const char *piece)
{
	size_t len = strlen(piece);
	int32_t id = vocab_match_special(&tokenizer->vocab, piece, len, true);

	return id >= 0 && tokenizer->vocab.tokens[id].len == len ? id : -1;
}

const char *tokenizer_pre_name(const struct tokenizer *tokenizer)
{
	return tokenizer->rule->name;
}
