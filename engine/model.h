/* Llama-architecture hyper-parameters and weights of one rank. */
#ifndef ENGINE_MODEL_H
#define ENGINE_MODEL_H

#include "engine/gguf.h"
#include "kernels/kn.h"

struct model_config {
	char arch[32];
	char name[128];
	int n_layers, hidden, ffn, n_heads, n_kv_heads, head_dim, vocab, context;
	double rope_base;
	float norm_eps;
	int rope_interleaved;
	int tied_head;
};

/* Reads and checks hyper-parameters and the presence and shape of every tensor. Errors name the key or tensor. */
enum status model_config_read(const struct gguf *gguf, struct model_config *out, struct err *err);

/* What rank owns of n: pure arithmetic, no I/O. */
struct shard {
	int rank, world;
	int head_begin, head_end;       /* query heads */
	int kv_head_begin, kv_head_end; /* KV heads that those read; may overlap with other ranks */
	int ffn_begin, ffn_end;         /* multiples of the quantisation block */
	int vocab_begin, vocab_end;     /* rows of the output head, multiples of 16 where possible */
};

/* ffn_block: elements per quantisation block along the FFN axis. Refused with the reason when a rank would own nothing. */
enum status shard_compute(const struct model_config *config, int ffn_block, int rank, int world, struct shard *out, struct err *err);

#endif
