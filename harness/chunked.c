/* A state machine over bytes; runs of body bytes are taken whole. */
#include "harness/chunked.h"

#define DIGITS_MAX 15 /* hexadecimal, so that a size fits 64 bits with room to spare */

static int digit_of(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	if (c >= 'a' && c <= 'f')
		return c - 'a' + 10;
	return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

static void end_size_line(struct chunked *chunked)
{
	chunked->state = chunked->left > 0 ? CHUNKED_DATA : CHUNKED_TRAILER;
	chunked->digits = 0;
	chunked->line = 0;
}

static bool take_size(struct chunked *chunked, char c)
{
	int digit = digit_of(c);
	if (digit >= 0) {
		if (chunked->digits++ == DIGITS_MAX)
			return false;
		chunked->left = chunked->left * 16 + (uint64_t)digit;
		return true;
	}
	if (chunked->digits == 0)
		return false;
	if (c == '\n')
		end_size_line(chunked);
	else if (c == '\r' || c == ';' || c == ' ' || c == '\t')
		chunked->state = CHUNKED_EXTENSION;
	else
		return false;
	return true;
}

/* One byte that is not of the body. False: it cannot be there. */
static bool take_byte(struct chunked *chunked, char c)
{
	if (++chunked->line > CHUNKED_LINE_BYTES_MAX)
		return false;
	switch (chunked->state) {
	case CHUNKED_SIZE:
		return take_size(chunked, c);
	case CHUNKED_EXTENSION:
		if (c == '\n')
			end_size_line(chunked);
		return true;
	case CHUNKED_DATA_END:
		if (c == '\n') {
			chunked->state = CHUNKED_SIZE;
			chunked->line = 0;
		}
		return c == '\n' || c == '\r';
	case CHUNKED_TRAILER:
		if (c == '\n') {
			/* An empty line, with or without its CR, ends the trailers. */
			if (chunked->line <= 1 + (size_t)chunked->digits)
				chunked->state = CHUNKED_DONE;
			chunked->line = 0;
			chunked->digits = 0;
		} else if (c == '\r' && chunked->line == 1) {
			chunked->digits = 1; /* that CR */
		}
		return true;
	default:
		return false;
	}
}

bool chunked_next(struct chunked *chunked, const char **bytes, size_t *len, const char **data, size_t *data_len, struct err *err)
{
	while (*len > 0 && chunked->state != CHUNKED_DONE) {
		if (chunked->state == CHUNKED_DATA) {
			*data = *bytes;
			*data_len = *len < chunked->left ? *len : (size_t)chunked->left;
			*bytes += *data_len;
			*len -= *data_len;
			chunked->left -= *data_len;
			if (chunked->left == 0) {
				chunked->state = CHUNKED_DATA_END;
				chunked->line = 0;
			}
			return true;
		}
		if (!take_byte(chunked, **bytes)) {
			err_set(err, STATUS_INPUT, "the answer's chunks are malformed");
			return false;
		}
		++*bytes;
		--*len;
	}
	return false;
}
