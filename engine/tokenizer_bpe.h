/* Inside the tokenizer: byte-pair merging of one piece of text. */
#ifndef ENGINE_TOKENIZER_BPE_H
#define ENGINE_TOKENIZER_BPE_H

#include <stddef.h>

#include "engine/tokenizer.h"
#include "engine/tokenizer_vocab.h"

/* Working memory of one thread, kept between pieces. `struct bpe_scratch s = {0};` */
struct bpe_scratch {
	struct bpe_symbol *symbols;
	size_t symbols_capacity;
	struct bpe_candidate *heap;
	size_t heap_count, heap_capacity;
};

void bpe_scratch_release(struct bpe_scratch *scratch);

/* Appends the tokens of bytes[0..len), len <= INT32_MAX: starting from single bytes or characters, as the vocabulary's form says,
 * the pair of lowest rank merges, the leftmost of equal ones, until none does. Characters without a token become tokens of their
 * bytes: before merging where a list says what merges, after it where scores do (they may be part of a longer token). Bytes that
 * the vocabulary has no token for are left out, before merging, as Hugging Face does. Time grows as len log len. Sources: Sennrich
 * et al., ACL 2016; merge order as in Hugging Face tokenizers' Word::merge_all, and by scores as in SentencePiece's
 * bpe::Model::SampleEncode. */
void bpe_encode(const struct vocab *vocab, const char *bytes, size_t len, struct bpe_scratch *scratch, struct token_list *out);

#endif
