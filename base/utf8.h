/* UTF-8 checks and stepping. Rejects overlong forms, surrogates and values above U+10FFFF (RFC 3629). */
#ifndef BASE_UTF8_H
#define BASE_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Decodes one code point at bytes[0..len). Returns its length in bytes (1..4); 0 when the bytes are invalid;
 * -1 when they are a correct start that needs more bytes. *code_point is set only for a positive result. */
int utf8_decode(const char *bytes, size_t len, uint32_t *code_point);

/* Writes code_point (a valid scalar value) and returns the number of bytes, 1..4. */
int utf8_encode(uint32_t code_point, char out[4]);

/* Length of the longest prefix that ends on a code point boundary: what may be sent while more bytes are to come.
 * Invalid bytes count as complete (they will be replaced, not waited for). */
size_t utf8_complete_prefix(const char *bytes, size_t len);

bool utf8_is_valid(const char *bytes, size_t len);

struct text;
/* Appends bytes to out with every invalid sequence replaced by U+FFFD (one per maximal subpart, as Unicode recommends). */
void utf8_append_lossy(struct text *out, const char *bytes, size_t len);

#endif
