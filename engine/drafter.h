/* Drafters guess the next tokens of a sequence; a verify step then keeps those that the model would have sampled itself.
 * A drafter may be wrong as often as it likes: it changes how many steps a text takes, never the text. */
#ifndef ENGINE_DRAFTER_H
#define ENGINE_DRAFTER_H

#include <stdint.h>

#include "base/err.h"

#define DRAFTER_TOKENS_MAX 64 /* most drafts of one sequence in one step */

struct drafter; /* one thread uses it */

struct drafter_options {
	int32_t slots_max; /* sequences at a time */
	int32_t tokens_max; /* longest sequence */
	int32_t ngram_min, ngram_max;
};

struct drafter_ops {
	const char *name; /* as in --speculation */
	/* Takes all memory it will ever need. */
	enum status (*create)(const struct drafter_options *options, struct drafter **out, struct err *err);
	void (*destroy)(struct drafter *drafter);
	/* A new sequence lives in slot; whatever was known of the old one is forgotten. */
	void (*begin)(struct drafter *drafter, int32_t slot);
	/* Writes up to max guesses of what follows tokens [count], the whole sequence so far (it has only grown since begin).
	 * Returns how many, 0 for no idea. */
	int32_t (*draft)(struct drafter *drafter, int32_t slot, const int32_t *tokens, int32_t count, int32_t max, int32_t *out);
};

/* Prompt lookup: the last ngram_min..ngram_max tokens occurred before, so what followed them then is guessed again.
 * The longest such match wins, among equals the latest; only the NGRAM_CANDIDATES_MAX latest occurrences of the last
 * ngram_min tokens are looked at, which bounds the time. A continuation that runs into the end of the text goes on with
 * its own beginning, as repetitions do. Source: prompt-lookup decoding, apoorvumang/prompt-lookup-decoding. */
#define NGRAM_CANDIDATES_MAX 256
extern const struct drafter_ops drafter_ngram_ops;

/* The drafter called name; "off" gives *out = NULL. An unknown name is refused, listing what exists. */
enum status drafter_find(const char *name, const struct drafter_ops **out, struct err *err);

#endif
