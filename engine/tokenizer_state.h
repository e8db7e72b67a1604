/* Inside the tokenizer: what tokenizer.c and tokenizer_encode.c share. Immutable after opening. */
#ifndef ENGINE_TOKENIZER_STATE_H
#define ENGINE_TOKENIZER_STATE_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/regex.h"
#include "engine/tokenizer_spec.h"
#include "engine/tokenizer_vocab.h"

struct tokenizer {
	struct vocab vocab;
	struct pre_rule rule;
	struct space_rule spaces; /* of form sentencepiece */
	struct regex *splitter; /* of form bytes; else NULL */
	int32_t bos, eos;
	bool adds_bos;
};

#endif
