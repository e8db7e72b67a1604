/* Inside the tokenizer: vocabulary, merges and special tokens as tables made for look-ups. Immutable once loaded. */
#ifndef ENGINE_TOKENIZER_VOCAB_H
#define ENGINE_TOKENIZER_VOCAB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "engine/tokenizer_spec.h"

struct token {
	const char *bytes; /* what the token stands for in text, inside vocab.bytes */
	uint32_t len;
	uint8_t kind; /* enum token_kind */
	bool is_end; /* generation ends with it */
};

/* A pair of neighbouring tokens that becomes one. rank: lower merges first. */
struct merge {
	int32_t left, right, result;
	uint32_t rank;
};

struct vocab {
	struct token *tokens; /* owned, [size] */
	int32_t size;
	char *bytes; /* owned; all tokens' bytes */

	int32_t byte_ids[256]; /* token of each single byte; -1 where the vocabulary has none */

	uint64_t seed; /* of both tables: no file can know it, so none can make look-ups slow */
	struct merge *merges; /* owned, open addressing, [merges_capacity], result -1 where free */
	size_t merges_capacity;
	int32_t *words; /* owned, open addressing by bytes over tokens that plain text may become, -1 where free */
	size_t words_capacity;

	int32_t *specials; /* owned: control, unknown and user tokens with a text, sorted by their bytes */
	size_t n_specials;
	bool special_start[256]; /* first bytes of specials */
};

/* Takes tokens, merges and ends of spec. Nothing of it is used after the call. Release with vocab_release, also after a failure. */
enum status vocab_load(const struct tokenizer_spec *spec, struct vocab *out, struct err *err);
void vocab_release(struct vocab *vocab);

/* The merge of two tokens; NULL when they do not merge. */
const struct merge *vocab_find_merge(const struct vocab *vocab, int32_t left, int32_t right);

/* The token whose text is exactly these bytes and that plain text may become; -1 when there is none. */
int32_t vocab_find_word(const struct vocab *vocab, const char *bytes, size_t len);

/* The longest special token that text[0..len) begins with, as its id; -1 when none. Only user tokens unless with_control. */
int32_t vocab_match_special(const struct vocab *vocab, const char *text, size_t len, bool with_control);

/* True for kinds that plain text must never become. */
static inline bool token_kind_is_control(uint8_t kind)
{
	return kind == TOKEN_CONTROL || kind == TOKEN_UNKNOWN;
}

#endif
