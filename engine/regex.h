/* Regular expressions over UTF-8 text, compiled once and used from any thread. The only module that knows PCRE2. */
#ifndef ENGINE_REGEX_H
#define ENGINE_REGEX_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"

struct regex; /* immutable after regex_compile */

/* Perl syntax, matched on code points with Unicode properties. is_foreign: the pattern is a file's, not ours: what does not compile
 * or may match the empty text is STATUS_INPUT, and searches that take too many steps fail with it too. */
enum status regex_compile(const char *pattern, bool is_foreign, struct regex **out, struct err *err);
void regex_free(struct regex *regex);

/* What one thread needs while it searches with one regex. */
struct regex_scan;
enum status regex_scan_create(const struct regex *regex, struct regex_scan **out, struct err *err);
void regex_scan_free(struct regex_scan *scan);

/* First match at or after byte from of text[0..len), which must be valid UTF-8 with from on a code point boundary. The text
 * before from is seen by nothing, the end of text is text + len. No match: *begin = *end = len. Fails only when the library
 * runs out of memory or of its match limit, which the patterns used here cannot reach on texts below TOKENIZER_TEXT_BYTES_MAX. */
enum status regex_find(
	struct regex_scan *scan, const char *text, size_t len, size_t from, size_t *begin, size_t *end, struct err *err);

#endif
