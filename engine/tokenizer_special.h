/* Inside the tokenizer: tokens that are found in text as they are written, before anything else looks at it. */
#ifndef ENGINE_TOKENIZER_SPECIAL_H
#define ENGINE_TOKENIZER_SPECIAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/text.h"
#include "engine/tokenizer_spec.h"

struct special {
	size_t begin, len; /* of its pattern in special_set.patterns; len > 0 */
	int32_t id;
	uint8_t kind, flags;
};

/* {0} is empty. Fill with special_set_add, then special_set_finish once; immutable from then on. */
struct special_set {
	struct text patterns;
	struct special *items; /* owned, [count], sorted by pattern */
	size_t count, capacity;
	bool starts[256]; /* first bytes of patterns */
};

void special_set_add(
	struct special_set *set, int32_t id, uint8_t kind, uint8_t flags, const char *pattern, size_t len); /* len 0: nothing */
void special_set_finish(struct special_set *set);
void special_set_release(struct special_set *set);

/* Which tokens a search may find. */
enum {
	SPECIAL_CONTROL = 1, /* control and unknown tokens; those that users added are always found */
	SPECIAL_RAW = 2 /* not those that are looked for in normalised text */
};

/* The longest pattern that text[0..len) begins with; NULL when none. */
const struct special *special_match(const struct special_set *set, const char *text, size_t len, int which);

/* Walks the special tokens of a text: `struct special_scan scan = {0};`. */
struct special_scan {
	size_t search; /* where to look next */
	size_t taken; /* end of the last token and of the white space it took */
};

/* The next special token of text[0..len), the leftmost, of these the longest; false when there is none. It takes *begin..*end, with
 * the white space that its flags say. Time of a whole walk grows as len. As Hugging Face tokenizers' AddedVocabulary does it. */
bool special_next(const struct special_set *set, const char *text, size_t len, int which, struct special_scan *scan, size_t *begin,
	size_t *end, int32_t *id);

/* True for kinds that plain text must never become. */
static inline bool token_kind_is_control(uint8_t kind)
{
	return kind == TOKEN_CONTROL || kind == TOKEN_UNKNOWN;
}

#endif
