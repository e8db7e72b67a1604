/* Hyper-parameters and tensors of one dense model of the Llama family, whatever file they come from, and how ranks share it. */
#ifndef ENGINE_MODEL_H
#define ENGINE_MODEL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "kernels/dtype.h"

struct source; /* engine/source.h */

#define MODEL_HEAD_DIM_MAX 512 /* guess: above any model; bounds the table in struct model_config */
#define MODEL_DIMS_MAX 8 /* guess: above any tensor of a dense model */

struct model_config {
	char arch[32]; /* as the file calls it: "llama", "qwen3"; "LlamaForCausalLM" */
	char name[128];
	int n_layers, hidden, ffn, n_heads, n_kv_heads, head_dim, vocab, context;
	char head_dim_from[96]; /* what says head_dim in the file, for messages: "key 'head_dim'" */
	int window; /* where a sliding window ends the context; 0: it does not */
	double rope_base;
	float norm_eps;
	int rope_interleaved; /* 1: rotary pairs (2i, 2i+1), as in GGUF files of Llama; 0: (i, i + head_dim/2) */
	int tied_head; /* the output head is the embedding */
	int has_qkv_bias; /* Qwen2: q, k and v have a bias */
	int has_qk_norm; /* Qwen3: every head of q and k is RMS-normalised before rotation, one weight for all heads */
	int ffn_block; /* elements per quantisation block along the FFN axis, the coarsest of all layers */
	int attention_block; /* the same along the attention output's input axis */
	double rope_scale; /* linear scaling: positions are divided by it; 1 for none */
	int has_rope_factors;
	float rope_factors[MODEL_HEAD_DIM_MAX / 2]; /* [head_dim/2] divisors of the frequencies (llama3 scaling) */
};

/* What a model is made of. Those before MODEL_LAYER_PARTS are there once a layer, the others once. */
enum model_part {
	MODEL_ATTENTION_NORM,
	MODEL_Q,
	MODEL_K,
	MODEL_V,
	MODEL_Q_BIAS,
	MODEL_K_BIAS,
	MODEL_V_BIAS,
	MODEL_Q_NORM,
	MODEL_K_NORM,
	MODEL_ATTENTION_OUTPUT,
	MODEL_FFN_NORM,
	MODEL_GATE,
	MODEL_UP,
	MODEL_DOWN,
	MODEL_LAYER_PARTS,
	MODEL_EMBEDDING = MODEL_LAYER_PARTS,
	MODEL_OUTPUT_NORM,
	MODEL_OUTPUT,
	MODEL_PARTS
};

/* A stored tensor, borrowed from its source: row-major, the last dimension runs fastest. */
struct model_tensor {
	const char *type; /* dtype's name, also when no kernel knows it */
	enum dtype dtype; /* may be one without kernels (dtype_name gives NULL) until model_config_read accepted the source */
	int n_dims;
	int64_t dims[MODEL_DIMS_MAX];
	const void *data; /* NULL: there is no such tensor. Need not be aligned */
	const float *scales; /* as in struct kn_slice */
	int64_t scale_rows, scale_cols;
};

/* Rows and columns of a tensor with at most two dimensions above 1; a vector is one row. */
static inline int64_t model_tensor_cols(const struct model_tensor *tensor)
{
	return tensor->dims[tensor->n_dims - 1];
}
static inline int64_t model_tensor_rows(const struct model_tensor *tensor)
{
	return tensor->n_dims > 1 ? tensor->dims[tensor->n_dims - 2] : 1;
}

/* True for parts that a model of this configuration has: no head of its own when tied, biases and head norms in some families. */
bool model_has_part(const struct model_config *config, enum model_part part);

/* Shape of a part; rows is 0 for a vector of cols. */
void model_part_shape(const struct model_config *config, enum model_part part, int64_t *rows, int64_t *cols);

/* Reads and checks hyper-parameters and the presence, shape and type of every tensor. Errors name the key or tensor. */
enum status model_config_read(const struct source *source, struct model_config *out, struct err *err);

/* Tensors of one layer, and those outside layers; parts that the model does not have are left without data. All others are there
 * once model_config_read accepted the source. */
struct model_layer {
	struct model_tensor attention_norm, q, k, v, attention_output;
	struct model_tensor q_bias, k_bias, v_bias, q_norm, k_norm;
	struct model_tensor ffn_norm, gate, up, down;
};
void model_layer_find(const struct source *source, const struct model_config *config, int layer, struct model_layer *out);

struct model_ends {
	struct model_tensor embedding, output_norm, output /* the embedding when tied */;
};
void model_ends_find(const struct source *source, const struct model_config *config, struct model_ends *out);

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
