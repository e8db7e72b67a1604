/* Small models with random weights and a complete byte-level tokenizer, written as GGUF files by the tests that need them. */
#ifndef TESTS_SUPPORT_TINY_GGUF_H
#define TESTS_SUPPORT_TINY_GGUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/dtype.h"
#include "tests/support/gguf_build.h"

/* `struct tiny_model model = tiny_model_default();`, change what matters, write. The same fields give the same bytes.
 * Vocabulary: 0 <|endoftext|>, 1 <|im_start|>, 2 <|im_end|> (control), then the 256 bytes, then merged pairs of letters.
 * Weights are such that greedy text neither repeats at once nor depends on rounding. */
struct tiny_model {
	int n_layers, hidden, ffn, n_heads, n_kv_heads, head_dim, context;
	int vocab; /* 259 to 259 + 676 */
	double rope_base;
	enum dtype dtype; /* of layer matrices; their columns must be multiples of its block */
	enum dtype value_dtype; /* of attn_v and ffn_down, as mixed files have */
	enum dtype embedding_dtype; /* of the embedding and, unless tied, the output head */
	bool tied, rope_factors, chat_template;
	uint64_t seed;

	/* NULL for "llama"; "qwen2" and "qwen3" have the tensors of those families. Another is a way to be refused. */
	const char *architecture;

	/* Ways to be refused; NULL or 0 for a sound file. */
	const char *pre; /* instead of "smollm" */
	const char *broken_template; /* instead of the sound chat template */
	const char *rope_scaling; /* adds llama.rope.scaling.type */
	const char *without_tensor, *without_key, *extra_tensor;
	const char *narrow_tensor; /* is written with half of its columns */
	int experts; /* adds llama.expert_count */
	const char *extra_key; /* with extra_value */
	double extra_value;

	int sliding_window; /* adds llama.attention.sliding_window */
};

/* 2 layers, hidden 64, FFN 128, 4 query and 2 KV heads of 16, vocabulary 288, context 256, F32, output head of its own. */
struct tiny_model tiny_model_default(void);

/* Writes the file at path; fails the running test when it cannot. */
void tiny_model_write(const struct tiny_model *model, const char *path);

/* As tiny_model_write at a new path under /tmp, which goes to path. The caller unlinks it. */
#define TINY_PATH_BYTES 64
void tiny_model_write_temp(const struct tiny_model *model, char path[TINY_PATH_BYTES]);

/* Stored blocks of any supported type, n_elements in all, with values of about the given spread around 0. Caller frees with
 * mem_free. */
uint8_t *tiny_random_blocks(enum dtype dtype, int64_t n_elements, double spread, uint64_t seed, uint64_t stream, size_t *bytes);

#endif
