/* Normaliser, pre-tokenizer and decoder of a tokenizer.json whose vocabulary was SentencePiece's. */
#ifndef ENGINE_TOKENIZER_HF_SENTENCEPIECE_H
#define ENGINE_TOKENIZER_HF_SENTENCEPIECE_H

#include "base/err.h"
#include "base/json.h"
#include "engine/tokenizer_spec.h"

/* Sets form, spaces and rule of a spec from the whole document. Both ways are read that Llama 2 and Mistral files are written in: a
 * normaliser that puts U+2581 before the text and for spaces, or a Metaspace pre-tokenizer. The rest is refused with code
 * "unsupported_tokenizer", by the name of its place. */
enum status tokenizer_hf_sentencepiece(const struct json *root, struct tokenizer_spec *spec, struct err *err);

#endif
