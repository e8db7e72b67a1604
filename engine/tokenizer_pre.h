/* Rules by which a tokenizer splits text before merging, one per value of tokenizer.ggml.pre that is known here. */
#ifndef ENGINE_TOKENIZER_PRE_H
#define ENGINE_TOKENIZER_PRE_H

#include <stdbool.h>

#include "base/err.h"
#include "engine/gguf.h"

struct pre_rule {
	const char *name;
	const char *pattern; /* each match is a piece, and so is what lies between matches */
	bool whole_words; /* a piece that is a vocabulary entry is taken before any merge (Llama 3's ignore_merges) */
	bool nfc; /* text is normalised to NFC first */
	bool adds_bos; /* when the file does not say */
	bool is_foreign; /* the pattern is a file's, not ours: it may be wrong, or slow on purpose */
};

/* The rule of a name or alias; unknown: STATUS_INPUT listing the known names. */
enum status pre_rule_find(struct gguf_string name, struct pre_rule *out, struct err *err);

#endif
