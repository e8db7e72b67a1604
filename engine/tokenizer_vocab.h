/* Inside the tokenizer: vocabulary, merges and special tokens as tables made for look-ups. Immutable once loaded. */
#ifndef ENGINE_TOKENIZER_VOCAB_H
#define ENGINE_TOKENIZER_VOCAB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "engine/tokenizer_special.h"
#include "engine/tokenizer_spec.h"

struct token {
	const char *bytes; /* what the token stands for in text, inside vocab.bytes */
	uint32_t len;
	uint32_t rank; /* of a vocabulary with scores: lower merges first, equal scores have equal ranks */
	uint8_t kind; /* enum token_kind */
	uint8_t flags; /* TOKEN_LSTRIP and so on */
	bool is_word; /* plain text may become it */
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
	enum tokenizer_form form;
	bool has_scores; /* words merge by their ranks; else by the list of merges */
	uint32_t longest_word; /* bytes */

	int32_t byte_ids[256]; /* token of each single byte; -1 where the vocabulary has none */

	uint64_t seed; /* of both tables: no file can know it, so none can make look-ups slow */
	struct merge *merges; /* owned, open addressing, [merges_capacity], result -1 where free */
	size_t merges_capacity;
	int32_t *words; /* owned, open addressing by bytes over tokens that plain text may become, -1 where free */
	size_t words_capacity;

	struct special_set specials; /* control, unknown and user tokens by their text */
	struct special_set normalised; /* those to be found in normalised text, by their normalised text */
};

/* Takes tokens, merges and ends of spec. Nothing of it is used after the call. Release with vocab_release, also after a failure. */
enum status vocab_load(const struct tokenizer_spec *spec, struct vocab *out, struct err *err);
void vocab_release(struct vocab *vocab);

/* The merge of two tokens; NULL when they do not merge. */
const struct merge *vocab_find_merge(const struct vocab *vocab, int32_t left, int32_t right);

/* The token whose text is exactly these bytes and that plain text may become; -1 when there is none. */
int32_t vocab_find_word(const struct vocab *vocab, const char *bytes, size_t len);

#endif
