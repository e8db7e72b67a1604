/* What the fuzzers of model files and text do with one input; the unit tests replay their corpora through the same functions.
 * A property that does not hold ends the process. */
#ifndef TESTS_SUPPORT_FUZZ_BODIES_H
#define TESTS_SUPPORT_FUZZ_BODIES_H

#include <stddef.h>
#include <stdint.h>

/* Opens the bytes as a file and, when it opens, reads everything in it: listings, tensor bytes, tokenizer, chat template. */
void fuzz_gguf(const uint8_t *data, size_t size);

/* Opens the bytes as a model and, when it is one and small, shards it, packs its weights and runs a step. */
void fuzz_model(const uint8_t *data, size_t size);

/* Opens the bytes as a safetensors file; what it lists must lie within them. */
void fuzz_safetensors(const uint8_t *data, size_t size);

/* Reads the bytes as a config.json; what is accepted is within bounds. */
void fuzz_hf_config(const uint8_t *data, size_t size);

/* Reads the bytes as a tokenizer.json and encodes a text with it. */
void fuzz_tokenizer_json(const uint8_t *data, size_t size);

/* Encodes the bytes as text under every rule; what comes back must be the text. */
void fuzz_tokenizer(const uint8_t *data, size_t size);

/* Encodes the bytes as text by SentencePiece vocabularies; what comes back must be the text, its U+2581 as spaces, unless it may
 * have special tokens in it. */
void fuzz_sentencepiece(const uint8_t *data, size_t size);

/* Streams the tokens whose ids are the bytes; what comes out must be valid and the same as decoding at once. */
void fuzz_text_stream(const uint8_t *data, size_t size);

/* Reads the bytes as a chat template. */
void fuzz_chat_template(const uint8_t *data, size_t size);

#endif
