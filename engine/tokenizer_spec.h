/* What a model's files say about its tokenizer, in one form for all kinds of files; engine/tokenizer.c makes a tokenizer of it. */
#ifndef ENGINE_TOKENIZER_SPEC_H
#define ENGINE_TOKENIZER_SPEC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/json.h"
#include "base/mem.h"
#include "engine/gguf.h"
#include "engine/tokenizer_pre.h"

#define TOKENIZER_TOKENS_MAX (1 << 22) /* guess: ten times the largest published vocabulary */
#define TOKENIZER_MERGES_MAX (1 << 23) /* guess, likewise */
#define TOKENIZER_ENDS_MAX 64 /* guess: far above any list of end-of-generation ids */

/* Kinds of tokens; the numbers are those of tokenizer.ggml.token_type. */
enum token_kind {
	TOKEN_NORMAL = 1,
	TOKEN_UNKNOWN,
	TOKEN_CONTROL,
	TOKEN_USER, /* added by users of the vocabulary: recognised in any text, and plain text to every reader */
	TOKEN_UNUSED,
	TOKEN_BYTE
};

struct tokenizer_spec_merge { /* of two tokens, as written in the file */
	struct gguf_string left, right;
};

/* {0} is empty. Strings are borrowed from the source, from document or from arena. */
struct tokenizer_spec {
	struct arena arena;
	struct json *document; /* owned, may be NULL */

	/* [n_tokens] as written in the file: entries of kinds normal, unused and byte in GPT-2's alphabet of bytes. */
	struct gguf_string *tokens;
	uint8_t *kinds; /* [n_tokens] enum token_kind */
	int32_t n_tokens;

	struct tokenizer_spec_merge *merges; /* [n_merges] in order of rank */
	size_t n_merges;
	const char *merges_place; /* how messages call the list */

	struct pre_rule rule; /* name is static */
	bool needs_all_bytes; /* a byte without a token would become an unknown token, which is not made here: such files are
				 refused */
	int32_t bos; /* -1 for none */
	bool adds_bos;
	int32_t ends[TOKENIZER_ENDS_MAX]; /* ids that the files name as ends of generation */
	size_t n_ends;
};

/* pre: the splitting rule's name instead of what the files say, or NULL. Release with tokenizer_spec_release, also after a failure.
 */
enum status tokenizer_spec_gguf(const struct gguf *gguf, const char *pre, struct tokenizer_spec *out, struct err *err);

/* The parsed files of a folder; all but document may be NULL. */
struct tokenizer_hf_files {
	struct json *document; /* tokenizer.json; goes to the spec */
	const struct json *tokenizer_config, *generation_config, *config; /* borrowed during the call */
};
enum status tokenizer_spec_hf_parsed(
	const struct tokenizer_hf_files *files, const char *pre, struct tokenizer_spec *out, struct err *err);

/* From tokenizer.json, tokenizer_config.json, generation_config.json and config.json (parsed) of a folder. */
enum status tokenizer_spec_hf(
	const char *folder, const struct json *config, const char *pre, struct tokenizer_spec *out, struct err *err);

void tokenizer_spec_release(struct tokenizer_spec *spec);

/* "LEFT RIGHT" in two; right is empty when there is no space. The first character belongs to LEFT whatever it is. */
struct tokenizer_spec_merge tokenizer_spec_split_merge(struct gguf_string entry);

/* Adds an id that is below n_tokens; one that is there already, or beyond the list's room, is left out. */
void tokenizer_spec_add_end(struct tokenizer_spec *spec, int32_t id);

#endif
