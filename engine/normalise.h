/* Unicode normalisation form C (UAX 15), and classes of characters. The only module that knows utf8proc. */
#ifndef ENGINE_NORMALISE_H
#define ENGINE_NORMALISE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/text.h"

/* Appends text[0..len), valid UTF-8, to out in form C. Time grows as len log len whatever the text. */
void normalise_nfc(const char *text, size_t len, struct text *out);

/* True when a cheap look shows that the text is in form C already (false says nothing). */
bool normalise_is_nfc_quick(const char *text, size_t len);

/* Appends a character in another case by Unicode's full mappings, those of all languages (UAX 44, SpecialCasing.txt): up to three
 * characters. What depends on the characters beside it, a Greek sigma at the end of a word, is the caller's. */
enum normalise_case { NORMALISE_UPPER, NORMALISE_LOWER, NORMALISE_TITLE };
void normalise_append_case(uint32_t code_point, enum normalise_case to, struct text *out);

/* True for letters that are large, small or titles. */
bool normalise_is_cased(uint32_t code_point);

/* The value of a decimal digit of any script; -1 for everything else. */
int normalise_digit(uint32_t code_point);

/* \s and \w of Unicode's regular expressions (UTS 18): White_Space; letters, marks, digits, joining punctuation. */
bool normalise_is_space(uint32_t code_point);
bool normalise_is_word(uint32_t code_point);

#endif
