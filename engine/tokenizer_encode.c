/* Encoding: special tokens are found first, in the text as it is and then in its normalised form; what lies between them is
 * normalised, cut by the vocabulary's rule and merged. The order is that of Hugging Face tokenizers. */
#include <string.h>

#include "engine/tokenizer.h"
#include "engine/tokenizer_bpe.h"
#include "engine/tokenizer_normal.h"
#include "engine/tokenizer_state.h"

/* What one call works with. */
struct encoder {
	const struct tokenizer *tokenizer;
	struct regex_scan *scan; /* NULL where nothing is split by a pattern */
	const char *mark;
	size_t mark_len; /* 0: there are no marks */
	int which; /* special tokens that may be found: SPECIAL_CONTROL or nothing */
	struct bpe_scratch scratch;
	struct text normalised, piece;
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

/* --- bytes ---------------------------------------------------------------------------------------------------------- */

/* text is valid UTF-8. */
static enum status split_by_pattern(struct encoder *encoder, const char *text, size_t len)
{
	size_t done = 0;

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

static enum status encode_bytes(struct encoder *encoder, const char *text, size_t len)
{
	enum status status = STATUS_OK;

	while (len > 0 && !status) {
		size_t valid = tokenizer_valid_prefix(text, len);

		if (valid > 0) {
			status = split_by_pattern(encoder, text, valid);
		} else {
			encode_piece(encoder, text, 1);
			valid = 1;
		}
		text += valid;
		len -= valid;
	}
	return status;
}

/* --- sentencepiece --------------------------------------------------------------------------------------------------- */

static void encode_words(struct encoder *encoder, const char *text, size_t len, bool at_start)
{
	const struct space_rule *spaces = &encoder->tokenizer->spaces;
	bool adds = spaces->prefix == SPACE_PREFIX_MISSING || (spaces->prefix == SPACE_PREFIX_FIRST && at_start);
	struct text prefixed = {0};
	size_t begin = 0;

	if (adds && len > 0 && text[0] != ' ') {
		text_append_char(&prefixed, ' ');
		text_append(&prefixed, text, len);
		text = prefixed.data;
		len = prefixed.len;
	}
	for (size_t at = 1; at < len && spaces->splits; at++) {
		if (text[at] != ' ')
			continue;
		encode_piece(encoder, text + begin, at - begin);
		begin = at;
	}
	if (len > begin)
		encode_piece(encoder, text + begin, len - begin);
	text_release(&prefixed);
}

/* --- around special tokens -------------------------------------------------------------------------------------------- */

/* Text between special tokens; at_start: it begins the whole text. */
typedef enum status encode_between(struct encoder *encoder, const char *text, size_t len, bool at_start);

static enum status encode_around(struct encoder *encoder, const struct special_set *set, int which, const char *text, size_t len,
	bool at_start, encode_between *between)
{
	struct special_scan scan = {0};
	size_t done = 0, begin, end;
	int32_t id;
	enum status status;

	while (special_next(set, text, len, which, &scan, &begin, &end, &id)) {
		status = begin > done ? between(encoder, text + done, begin - done, at_start && done == 0) : STATUS_OK;
		if (status)
			return status;
		token_list_append(encoder->out, id);
		done = end;
	}
	return len > done ? between(encoder, text + done, len - done, at_start && done == 0) : STATUS_OK;
}

/* Normalised text without special tokens; the marks go now. */
static enum status encode_plain(struct encoder *encoder, const char *text, size_t len, bool at_start)
{
	const char *end = text + len, *next;

	if (encoder->mark_len > 0 && memmem(text, len, encoder->mark, encoder->mark_len)) {
		text_clear(&encoder->piece);
		while ((next = memmem(text, (size_t)(end - text), encoder->mark, encoder->mark_len))) {
			text_append(&encoder->piece, text, (size_t)(next - text));
			text = next + encoder->mark_len;
		}
		text_append(&encoder->piece, text, (size_t)(end - text));
		text = text_str(&encoder->piece);
		len = encoder->piece.len;
	}
	if (encoder->tokenizer->vocab.form == FORM_BYTES)
		return encode_bytes(encoder, text, len);
	encode_words(encoder, text, len, at_start);
	return STATUS_OK;
}

static enum status encode_normalised(struct encoder *encoder, const char *text, size_t len, bool at_start)
{
	const struct tokenizer *tokenizer = encoder->tokenizer;

	if (!tokenizer_keeps_text(tokenizer->vocab.form, tokenizer->rule.nfc)) {
		text_clear(&encoder->normalised);
		tokenizer_normalise(
			tokenizer->vocab.form, &tokenizer->spaces, tokenizer->rule.nfc, text, len, &encoder->normalised);
		text = text_str(&encoder->normalised);
		len = encoder->normalised.len;
	}
	return encode_around(encoder, &tokenizer->vocab.normalised, encoder->which, text, len, at_start, encode_plain);
}

static enum status encode_all(struct encoder *encoder, const char *text, size_t len)
{
	const struct tokenizer *tokenizer = encoder->tokenizer;
	enum status status = STATUS_OK;

	if (len > TOKENIZER_TEXT_BYTES_MAX)
		return err_set(encoder->err, STATUS_INPUT, "a text of %zu bytes is longer than the limit of %zu", len,
			TOKENIZER_TEXT_BYTES_MAX);
	if (tokenizer->splitter)
		status = regex_scan_create(tokenizer->splitter, &encoder->scan, encoder->err);
	if (!status)
		status = encode_around(
			encoder, &tokenizer->vocab.specials, encoder->which | SPECIAL_RAW, text, len, true, encode_normalised);
	regex_scan_free(encoder->scan);
	bpe_scratch_release(&encoder->scratch);
	text_release(&encoder->normalised);
	text_release(&encoder->piece);
	return status;
}

enum status tokenizer_encode(const struct tokenizer *tokenizer, const char *text, size_t len, bool parse_special,
	struct token_list *out, struct err *err)
{
	struct encoder encoder = {.tokenizer = tokenizer, .which = parse_special ? SPECIAL_CONTROL : 0, .out = out, .err = err};

	return encode_all(&encoder, text, len);
}

enum status tokenizer_encode_marked(const struct tokenizer *tokenizer, const char *text, size_t len, const char *mark,
	size_t mark_len, struct token_list *out, struct err *err)
{
	struct encoder encoder = {
		.tokenizer = tokenizer, .mark = mark, .mark_len = mark_len, .which = SPECIAL_CONTROL, .out = out, .err = err};

	return encode_all(&encoder, text, len);
}
