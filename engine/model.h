/* Llama-architecture hyper-parameters and weights of one rank. */
#ifndef ENGINE_MODEL_H
#define ENGINE_MODEL_H

#include "engine/gguf.h"
#include "kernels/kn.h"

#define MODEL_HEAD_DIM_MAX 512 /* guess: above any model; bounds the table in struct model_config */

struct model_config {
	char arch[32];
	char name[128];
	int n_layers, hidden, ffn, n_heads, n_kv_heads, head_dim, vocab, context;
	double rope_base;
	float norm_eps;
	int rope_interleaved;
	int tied_head;
	int ffn_block; /* elements per quantisation block along the FFN axis, the coarsest of all layers */
	int attention_block; /* the same along the attention output's input axis */
	double rope_scale; /* linear scaling: positions are divided by it; 1 for none */
	int has_rope_factors;
	float rope_factors[MODEL_HEAD_DIM_MAX / 2]; /* [head_dim/2] divisors of the frequencies, from rope_freqs.weight */
};

/* Reads and checks hyper-parameters and the presence and shape of every tensor. Errors name the key or tensor. */
enum status model_config_read(const struct gguf *gguf, struct model_config *out, struct err *err);

/* Borrowed tensors of one layer, and those outside layers. All present once model_config_read accepted the file. */
struct model_layer {
	const struct gguf_tensor *attention_norm, *q, *k, *v, *attention_output;
	const struct gguf_tensor *ffn_norm, *gate, *up, *down;
};
void model_layer_find(const struct gguf *gguf, int layer, struct model_layer *out);

struct model_ends {
	const struct gguf_tensor *embedding, *output_norm, *output /* the embedding when tied */;
};
void model_ends_find(const struct gguf *gguf, struct model_ends *out);

/* What rank owns of n: pure arithmetic, no I/O. */
struct shard {
	int rank, world;
	int head_begin, head_end; /* query heads */
	int kv_head_begin, kv_head_end; /* KV heads that those read; may overlap with other ranks */
	int ffn_begin, ffn_end; /* multiples of the quantisation block */
	int vocab_begin, vocab_end; /* rows of the output head, multiples of 16 where possible */
};

/* Refused with the reason (code "cannot_shard") when a rank would own nothing or a block would have to be split. */
enum status shard_compute(const struct model_config *config, int rank, int world, struct shard *out, struct err *err);

#endif
