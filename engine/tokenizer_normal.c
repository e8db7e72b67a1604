/* Normalisation of text for all tokenizers. */
#include "engine/tokenizer_normal.h"

#include <string.h>

#include "base/utf8.h"
#include "engine/normalise.h"

bool tokenizer_is_space_mark(const char *text, size_t len)
{
	return len >= SPACE_MARK_BYTES && memcmp(text, SPACE_MARK, SPACE_MARK_BYTES) == 0;
}

static int digit_of(char c)
{
	return c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

int tokenizer_byte_of_entry(struct gguf_string entry)
{
	if (entry.len != 6 || memcmp(entry.data, "<0x", 3) != 0 || entry.data[5] != '>' || digit_of(entry.data[3]) < 0 ||
		digit_of(entry.data[4]) < 0)
		return -1;
	return digit_of(entry.data[3]) * 16 + digit_of(entry.data[4]);
}

size_t tokenizer_valid_prefix(const char *text, size_t len)
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

bool tokenizer_keeps_text(enum tokenizer_form form, bool nfc)
{
	return form == FORM_BYTES && !nfc;
}

static void append_composed(const char *text, size_t len, struct text *out)
{
	while (len > 0) {
		size_t valid = tokenizer_valid_prefix(text, len);

		if (valid == 0)
			text_append(out, text, valid = 1);
		else if (normalise_is_nfc_quick(text, valid))
			text_append(out, text, valid);
		else
			normalise_nfc(text, valid, out);
		text += valid;
		len -= valid;
	}
}

/* Turns the marks in text from begin on into spaces, in place. */
static void unmark_spaces(struct text *text, size_t begin)
{
	size_t written = begin;

	for (size_t pos = begin; pos < text->len; written++) {
		bool is_mark = tokenizer_is_space_mark(text->data + pos, text->len - pos);

		text->data[written] = is_mark ? ' ' : text->data[pos];
		pos += is_mark ? SPACE_MARK_BYTES : 1;
	}
	text_truncate(text, written);
}

void tokenizer_normalise(
	enum tokenizer_form form, const struct space_rule *spaces, bool nfc, const char *text, size_t len, struct text *out)
{
	size_t begin;

	if (len == 0)
		return;
	if (form == FORM_SENTENCEPIECE && spaces->prefix == SPACE_PREFIX_EVERY)
		text_append_char(out, ' ');
	begin = out->len;
	if (nfc)
		append_composed(text, len, out);
	else
		text_append(out, text, len);
	if (form == FORM_SENTENCEPIECE)
		unmark_spaces(out, begin);
}
