/* UTF-8 decoding by RFC 3629's table of well-formed sequences. */
#include "base/utf8.h"

#include "base/text.h"

/* Length of the sequence a lead byte starts and the allowed range of its second byte; 0 for bytes that cannot lead. */
static int lead_length(unsigned char lead, unsigned char *low, unsigned char *high)
{
	*low = 0x80;
	*high = 0xBF;
	if (lead < 0x80)
		return 1;
	if (lead >= 0xC2 && lead <= 0xDF)
		return 2;
	if (lead >= 0xE0 && lead <= 0xEF) {
		if (lead == 0xE0)
			*low = 0xA0; /* shorter forms are overlong */
		if (lead == 0xED)
			*high = 0x9F; /* above are surrogates */
		return 3;
	}
	if (lead >= 0xF0 && lead <= 0xF4) {
		if (lead == 0xF0)
			*low = 0x90;
		if (lead == 0xF4)
			*high = 0x8F; /* above U+10FFFF */
		return 4;
	}
	return 0;
}

/* Number of bytes at the start that fit a well-formed sequence; *whole is the length that sequence needs. */
static int matching_bytes(const unsigned char *bytes, size_t len, int *whole)
{
	unsigned char low, high;
	*whole = len ? lead_length(bytes[0], &low, &high) : 0;
	if (*whole == 0)
		return 0;
	int have = 1;
	while (have < *whole && (size_t)have < len && bytes[have] >= low && bytes[have] <= high) {
		have++;
		low = 0x80;
		high = 0xBF;
	}
	return have;
}

int utf8_decode(const char *text, size_t len, uint32_t *code_point)
{
	const unsigned char *bytes = (const unsigned char *)text;
	int whole;
	int have = matching_bytes(bytes, len, &whole);
	if (have == 0)
		return 0;
	if (have < whole)
		return (size_t)have == len ? -1 : 0;
	static const unsigned char lead_bits[] = {0, 0x7F, 0x1F, 0x0F, 0x07};
	uint32_t value = bytes[0] & lead_bits[whole];
	for (int i = 1; i < whole; i++)
		value = value << 6 | (bytes[i] & 0x3Fu);
	*code_point = value;
	return whole;
}

int utf8_encode(uint32_t code_point, char out[4])
{
	if (code_point < 0x80) {
		out[0] = (char)code_point;
		return 1;
	}
	int length = code_point < 0x800 ? 2 : code_point < 0x10000 ? 3 : 4;
	static const unsigned char lead_marks[] = {0, 0, 0xC0, 0xE0, 0xF0};
	for (int i = length - 1; i > 0; i--) {
		out[i] = (char)(0x80 | (code_point & 0x3F));
		code_point >>= 6;
	}
	out[0] = (char)(lead_marks[length] | code_point);
	return length;
}

size_t utf8_complete_prefix(const char *bytes, size_t len)
{
	/* Only the last three bytes can belong to an unfinished sequence. */
	for (size_t back = 1; back <= 3 && back <= len; back++) {
		unsigned char byte = (unsigned char)bytes[len - back];
		if ((byte & 0xC0) == 0x80)
			continue;
		uint32_t ignored;
		return utf8_decode(bytes + len - back, back, &ignored) == -1 ? len - back : len;
	}
	return len;
}

bool utf8_is_valid(const char *bytes, size_t len)
{
	for (size_t at = 0; at < len;) {
		uint32_t ignored;
		int length = utf8_decode(bytes + at, len - at, &ignored);
		if (length <= 0)
			return false;
		at += (size_t)length;
	}
	return true;
}

void utf8_append_lossy(struct text *out, const char *bytes, size_t len)
{
	for (size_t at = 0; at < len;) {
		int whole;
		int have = matching_bytes((const unsigned char *)bytes + at, len - at, &whole);
		if (have > 0 && have == whole) {
			text_append(out, bytes + at, (size_t)have);
		} else {
			text_append(out, "\xEF\xBF\xBD", 3);
			if (have == 0)
				have = 1;
		}
		at += (size_t)have;
	}
}
