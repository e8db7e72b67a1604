/* Byte-level BPE tokenizer: what a vocabulary, a pre-tokenizer rule and byte-pair merging make together. */
#include "engine/tokenizer.h"

#include <string.h>

#include "base/mem.h"
#include "base/utf8.h"
#include "engine/normalise.h"
#include "engine/regex.h"
#include "engine/tokenizer_bpe.h"
#include "engine/tokenizer_spec.h"
#include "engine/tokenizer_vocab.h"

struct tokenizer {
	struct vocab vocab;
	struct pre_rule rule;
	struct regex *splitter;
	int32_t bos, eos;
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

static enum status check_bytes(const struct tokenizer_spec *spec, const struct vocab *vocab, struct err *err)
{
	for (int byte = 0; byte < 256 && spec->needs_all_bytes; byte++)
		if (vocab->byte_ids[byte] < 0)
			return err_set_code(err, STATUS_INPUT, "unsupported_tokenizer",
				"the vocabulary has no token for byte %d and would make it an unknown one, which is not supported",
				byte);
	return STATUS_OK;
}

enum status tokenizer_make(const struct tokenizer_spec *spec, struct tokenizer **out, struct err *err)
{
	struct tokenizer *tokenizer = mem_calloc(1, sizeof(*tokenizer));
	enum status status = regex_compile(spec->rule.pattern, spec->rule.is_foreign, &tokenizer->splitter, err);

	if (!status)
		status = vocab_load(spec, &tokenizer->vocab, err);
	if (!status)
		status = check_bytes(spec, &tokenizer->vocab, err);
	tokenizer->rule = spec->rule;
	tokenizer->rule.pattern = NULL; /* compiled, and not ours */
	tokenizer->bos = spec->bos;
	tokenizer->eos = spec->n_ends > 0 ? spec->ends[0] : -1;
	tokenizer->adds_bos = spec->adds_bos;
	*out = NULL;
	if (status)
		tokenizer_close(tokenizer);
	else
		*out = tokenizer;
	return status;
}

enum status tokenizer_open(const struct source *source, const char *pre, struct tokenizer **out, struct err *err)
{
	struct tokenizer_spec spec = {0};
	enum status status = source->ops->read_tokenizer(source, pre, &spec, err);

	*out = NULL;
	if (!status)
		status = tokenizer_make(&spec, out, err);
	tokenizer_spec_release(&spec);
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

	if (encoder->tokenizer->rule.whole_words) {
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

	if (encoder->tokenizer->rule.nfc && !normalise_is_nfc_quick(text, len)) {
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
		if (begin < done || end <= begin) { /* no pattern of ours does that, and no match means the rest */
			if (begin != len)
				return err_set(encoder->err, STATUS_INPUT, "the splitting pattern matches the empty text");
			end = len;
		}
		if (begin > done)
			encode_piece(encoder, text + done, begin - done);
		if (end > begin)
			encode_piece(encoder, text + begin, end - begin);
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

int32_t tokenizer_eos(const struct tokenizer *tokenizer)
{
	return tokenizer->eos;
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

int32_t tokenizer_match(const struct tokenizer *tokenizer, const char *text, size_t len, size_t *matched)
{
	int32_t id = vocab_match_special(&tokenizer->vocab, text, len, true);

	*matched = id >= 0 ? tokenizer->vocab.tokens[id].len : 0;
	return id;
}

const char *tokenizer_pre_name(const struct tokenizer *tokenizer)
{
	return tokenizer->rule.name;
}
