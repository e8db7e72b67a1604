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

/* How the entries of a vocabulary are written, and what text is cut into before anything merges. */
enum tokenizer_form {
	FORM_BYTES, /* entries in GPT-2's alphabet of bytes; text is cut into bytes */
	/* U+2581 stands for a space, "<0x0A>" for a byte; text is cut into characters, those without a token into bytes. As in
	 * SentencePiece, spaces and U+2581 are one character to it: both come back as spaces. */
	FORM_SENTENCEPIECE
};

/* Where a space is put before the text (form sentencepiece). A stretch is what lies between special tokens. */
enum space_prefix {
	SPACE_PREFIX_NONE,
	SPACE_PREFIX_EVERY, /* before each stretch */
	SPACE_PREFIX_MISSING, /* before each stretch that does not begin with one */
	SPACE_PREFIX_FIRST /* before the whole text, when it begins with a stretch and that not with a space */
};

struct space_rule {
	enum space_prefix prefix;
	bool splits; /* words are encoded one by one, each with the space before it */
	bool is_stripped; /* whole texts are decoded without the one space that they begin with */
};

/* What an added token asks for, as in tokenizer.json. */
enum {
	TOKEN_LSTRIP = 1, /* takes the white space before it */
	TOKEN_RSTRIP = 2, /* and after it */
	TOKEN_SINGLE_WORD = 4, /* found only where no letter, mark, digit or joining punctuation is next to it */
	TOKEN_NORMALIZED = 8 /* looked for in normalised text, as its own normalised text */
};

struct tokenizer_spec_merge { /* of two tokens, as written in the file */
	struct gguf_string left, right;
};

/* {0} is empty. Strings are borrowed from the source, from document or from arena. */
struct tokenizer_spec {
	struct arena arena;
	struct json *document; /* owned, may be NULL */

	enum tokenizer_form form;
	struct space_rule spaces; /* of form sentencepiece */

	struct gguf_string *tokens; /* [n_tokens] as written in the file: kinds normal, unused and byte in the form's way */
	uint8_t *kinds; /* [n_tokens] enum token_kind */
	uint8_t *flags; /* [n_tokens] TOKEN_LSTRIP and so on; NULL when no token has any */
	int32_t n_tokens;

	/* [n_tokens] of form sentencepiece: two neighbours merge when both together are a token, those of the highest score
	 * first. NULL: merges says what merges. */
	float *scores;
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

/* Refuses a splitting rule that was named for a vocabulary that has one way to split. */
enum status tokenizer_spec_refuse_pre(struct err *err);

/* Adds an id that is below n_tokens; one that is there already, or beyond the list's room, is left out. */
void tokenizer_spec_add_end(struct tokenizer_spec *spec, int32_t id);

#endif
