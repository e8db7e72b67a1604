/* Weights of one rank: which slices of which tensors it holds, in the backend's layout. */
#ifndef ENGINE_WEIGHTS_H
#define ENGINE_WEIGHTS_H

#include "engine/model.h"
#include "engine/source.h"
#include "kernels/kn.h"

struct weights_layer {
	float *attention_norm, *ffn_norm; /* [hidden], backend memory */
	struct kn_matrix *qkv; /* rows: this rank's q, k and v heads */
	float *qkv_bias; /* [rows of qkv], NULL where the model has none */
	float *q_norm, *k_norm; /* [head_dim], NULL likewise */
	struct kn_matrix *attention_output;
	struct kn_matrix *gate_up; /* for KN_SWIGLU */
	struct kn_matrix *down;
};

/* {0} is empty. Owned by the caller, released with weights_release. */
struct weights {
	struct weights_layer *layers;
	int n_layers, hidden, head_dim;
	size_t bias_count; /* floats of one qkv_bias; 0 for none */
	float *output_norm;
	struct kn_matrix *embedding; /* whole table on every rank */
	struct kn_matrix *head; /* this rank's vocabulary rows; the embedding itself when tied and not cut */
};

/* Packs this rank's share. On failure everything made so far is released. */
enum status weights_load(const struct kn_ops *kn, struct kn_backend *backend, const struct source *source,
	const struct model_config *config, const struct shard *shard, struct weights *out, struct err *err);
void weights_release(const struct kn_ops *kn, struct kn_backend *backend, struct weights *weights);

/* Bytes that weights_load will hold: exact, nothing is made. */
uint64_t weights_bytes_needed(
	const struct kn_ops *kn, const struct source *source, const struct model_config *config, const struct shard *shard);

/* Bytes held. */
uint64_t weights_bytes(const struct kn_ops *kn, const struct weights *weights);

#endif
