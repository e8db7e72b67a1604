/* Sizes of a model without its weights: public shapes by name, or from a JSON file as Hugging Face writes them. */
#ifndef ENGINE_SHAPE_H
#define ENGINE_SHAPE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "kernels/dtype.h"

#define SHAPE_NAME_BYTES 64

struct shape {
	char name[SHAPE_NAME_BYTES]; /* "llama-8b-bf16" */
	int n_layers, hidden, ffn, n_heads, n_kv_heads, head_dim, vocab, context;
	double rope_base, norm_eps;
	bool tied; /* the output head is the embedding */
	enum dtype dtype; /* of all matrices but those below */
	enum dtype embedding_dtype; /* of the embedding, and of the output head when tied */
	enum dtype head_dtype; /* of an output head of its own */
	enum dtype value_dtype; /* of attn_v and ffn_down in the layers that shape_is_fine names; differs in mixed files only */
};

/* spec: "llama-8b-bf16" (SHAPE-TYPE of the lists in shape.c), or the path of a JSON file: hidden_size, intermediate_size,
 * num_hidden_layers, num_attention_heads, num_key_value_heads, head_dim, vocab_size, max_position_embeddings, rope_theta,
 * rms_norm_eps, tie_word_embeddings and dtype (or torch_dtype), with the defaults of a config.json; other keys are not looked at.
 * An unknown name is refused, listing what exists. */
enum status shape_find(const char *spec, struct shape *out, struct err *err);

/* The layers to which a mixed file ("q4_k_m") gives the finer type: the first and last eighth, and every third between. */
bool shape_is_fine(const struct shape *shape, int layer);

#endif
