/* Slices of the file's tensors for one rank. The same slice lists serve loading and counting, so the two cannot disagree. */
#include "engine/weights.h"

#include <string.h>

#include "base/mem.h"

/* Stored tensor cut to a range of rows and columns. */
static struct kn_slice slice_of(
	const struct model_tensor *tensor, int64_t row_begin, int64_t row_end, int64_t col_begin, int64_t col_end)
{
	return (struct kn_slice){
		.dtype = tensor->dtype,
		.data = tensor->data,
		.rows = model_tensor_rows(tensor),
		.cols = model_tensor_cols(tensor),
		.row_begin = row_begin,
		.row_end = row_end,
		.col_begin = col_begin,
		.col_end = col_end,
		.scales = tensor->scales,
		.scale_rows = tensor->scale_rows,
		.scale_cols = tensor->scale_cols,
	};
}

static struct kn_slice rows_of(const struct model_tensor *tensor, int64_t row_begin, int64_t row_end)
{
	return slice_of(tensor, row_begin, row_end, 0, model_tensor_cols(tensor));
}

static struct kn_slice cols_of(const struct model_tensor *tensor, int64_t col_begin, int64_t col_end)
{
	return slice_of(tensor, 0, model_tensor_rows(tensor), col_begin, col_end);
}

struct layer_slices {
	struct kn_slice qkv[3], attention_output[1], gate_up[2], down[1];
};

static void layer_slices(
	const struct model_config *config, const struct shard *shard, const struct model_layer *tensors, struct layer_slices *out)
{
	int64_t d = config->head_dim;
	out->qkv[0] = rows_of(&tensors->q, shard->head_begin * d, shard->head_end * d);
	out->qkv[1] = rows_of(&tensors->k, shard->kv_head_begin * d, shard->kv_head_end * d);
	out->qkv[2] = rows_of(&tensors->v, shard->kv_head_begin * d, shard->kv_head_end * d);
	out->attention_output[0] = cols_of(&tensors->attention_output, shard->head_begin * d, shard->head_end * d);
	out->gate_up[0] = rows_of(&tensors->gate, shard->ffn_begin, shard->ffn_end);
	out->gate_up[1] = rows_of(&tensors->up, shard->ffn_begin, shard->ffn_end);
	out->down[0] = cols_of(&tensors->down, shard->ffn_begin, shard->ffn_end);
}

struct end_slices {
	struct kn_slice embedding[1], head[1];
	bool shared;
};

static void end_slices(
	const struct model_config *config, const struct shard *shard, const struct model_ends *tensors, struct end_slices *out)
{
	out->embedding[0] = rows_of(&tensors->embedding, 0, config->vocab);
	out->head[0] = rows_of(&tensors->output, shard->vocab_begin, shard->vocab_end);
	out->shared = config->tied_head && shard->world == 1;
}

/* ---- loading ---- */

/* Copies values to backend memory of their own. */
static enum status place(
	const struct kn_ops *kn, struct kn_backend *backend, const float *values, size_t count, float **out, struct err *err)
{
	void *memory = NULL;
	enum status status = kn->alloc(backend, count * sizeof *values, &memory, err);
	if (status != STATUS_OK)
		return status;
	*out = memory;
	return kn->to_device(backend, memory, values, count * sizeof *values, err);
}

static enum status load_norm(
	const struct kn_ops *kn, struct kn_backend *backend, const struct model_tensor *tensor, float **out, struct err *err)
{
	size_t count = (size_t)model_tensor_cols(tensor);
	float *values = mem_calloc(count, sizeof *values);
	dtype_dequantize(tensor->dtype, tensor->data, values, (int64_t)count);
	enum status status = place(kn, backend, values, count, out, err);
	mem_free(values);
	return status;
}

/* Floats of this rank's bias of q, k and v. */
static size_t bias_count(const struct model_config *config, const struct shard *shard)
{
	int heads = shard->head_end - shard->head_begin, kv_heads = shard->kv_head_end - shard->kv_head_begin;
	return config->has_qkv_bias ? (size_t)(heads + 2 * kv_heads) * (size_t)config->head_dim : 0;
}

/* The biases of the heads that this rank has, in the order of its rows of q, k and v. */
static enum status load_bias(const struct kn_ops *kn, struct kn_backend *backend, const struct model_config *config,
	const struct shard *shard, const struct model_layer *tensors, float **out, struct err *err)
{
	const struct {
		const struct model_tensor *tensor;
		int begin, end;
	} parts[] = {
		{&tensors->q_bias, shard->head_begin, shard->head_end},
		{&tensors->k_bias, shard->kv_head_begin, shard->kv_head_end},
		{&tensors->v_bias, shard->kv_head_begin, shard->kv_head_end},
	};
	size_t count = bias_count(config, shard), used = 0, head_dim = (size_t)config->head_dim;
	float *values = mem_calloc(count, sizeof *values), *whole = mem_calloc((size_t)config->n_heads * head_dim, sizeof *whole);
	for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
		size_t share = (size_t)(parts[i].end - parts[i].begin) * head_dim;
		dtype_dequantize(parts[i].tensor->dtype, parts[i].tensor->data, whole, model_tensor_cols(parts[i].tensor));
		memcpy(values + used, whole + (size_t)parts[i].begin * head_dim, share * sizeof *values);
		used += share;
	}
	ASSERT(used == count);
	enum status status = place(kn, backend, values, count, out, err);
	mem_free(values);
	mem_free(whole);
	return status;
}

static enum status load_heads(const struct kn_ops *kn, struct kn_backend *backend, const struct model_config *config,
	const struct shard *shard, const struct model_layer *tensors, struct weights_layer *out, struct err *err)
{
	enum status status = STATUS_OK;
	if (config->has_qkv_bias)
		status = load_bias(kn, backend, config, shard, tensors, &out->qkv_bias, err);
	if (config->has_qk_norm && status == STATUS_OK)
		status = load_norm(kn, backend, &tensors->q_norm, &out->q_norm, err);
	if (config->has_qk_norm && status == STATUS_OK)
		status = load_norm(kn, backend, &tensors->k_norm, &out->k_norm, err);
	return status;
}

static enum status load_layer(const struct kn_ops *kn, struct kn_backend *backend, const struct model_layer *tensors,
	const struct layer_slices *slices, struct weights_layer *out, struct err *err)
{
	enum status status = load_norm(kn, backend, &tensors->attention_norm, &out->attention_norm, err);
	if (status == STATUS_OK)
		status = load_norm(kn, backend, &tensors->ffn_norm, &out->ffn_norm, err);
	if (status == STATUS_OK)
		status = kn->matrix_create(backend, slices->qkv, 3, &out->qkv, err);
	if (status == STATUS_OK)
		status = kn->matrix_create(backend, slices->attention_output, 1, &out->attention_output, err);
	if (status == STATUS_OK)
		status = kn->matrix_create(backend, slices->gate_up, 2, &out->gate_up, err);
	if (status == STATUS_OK)
		status = kn->matrix_create(backend, slices->down, 1, &out->down, err);
	return status;
}

static enum status load_ends(const struct kn_ops *kn, struct kn_backend *backend, const struct model_ends *tensors,
	const struct end_slices *slices, struct weights *out, struct err *err)
{
	enum status status = load_norm(kn, backend, &tensors->output_norm, &out->output_norm, err);
	if (status == STATUS_OK)
		status = kn->matrix_create(backend, slices->embedding, 1, &out->embedding, err);
	if (status == STATUS_OK && slices->shared)
		out->head = out->embedding;
	else if (status == STATUS_OK)
		status = kn->matrix_create(backend, slices->head, 1, &out->head, err);
	return status;
}

enum status weights_load(const struct kn_ops *kn, struct kn_backend *backend, const struct source *source,
	const struct model_config *config, const struct shard *shard, struct weights *out, struct err *err)
{
	*out = (struct weights){
		.n_layers = config->n_layers,
		.hidden = config->hidden,
		.head_dim = config->head_dim,
		.bias_count = bias_count(config, shard),
	};
	out->layers = mem_calloc((size_t)config->n_layers, sizeof *out->layers);
	enum status status = STATUS_OK;
	for (int layer = 0; layer < config->n_layers && status == STATUS_OK; layer++) {
		struct model_layer tensors;
		struct layer_slices slices;
		model_layer_find(source, config, layer, &tensors);
		layer_slices(config, shard, &tensors, &slices);
		status = load_layer(kn, backend, &tensors, &slices, &out->layers[layer], err);
		if (status == STATUS_OK)
			status = load_heads(kn, backend, config, shard, &tensors, &out->layers[layer], err);
		if (status != STATUS_OK)
			err_add(err, "layer %d", layer);
	}
	if (status == STATUS_OK) {
		struct model_ends tensors;
		struct end_slices slices;
		model_ends_find(source, config, &tensors);
		end_slices(config, shard, &tensors, &slices);
		status = load_ends(kn, backend, &tensors, &slices, out, err);
	}
	if (status != STATUS_OK)
		weights_release(kn, backend, out);
	return status;
}

static void release_matrix(const struct kn_ops *kn, struct kn_backend *backend, struct kn_matrix *matrix)
{
	if (matrix)
		kn->matrix_destroy(backend, matrix);
}

static void release_floats(const struct kn_ops *kn, struct kn_backend *backend, float *floats, size_t count)
{
	if (floats)
		kn->release(backend, floats, count * sizeof *floats);
}

void weights_release(const struct kn_ops *kn, struct kn_backend *backend, struct weights *weights)
{
	for (int i = 0; weights->layers && i < weights->n_layers; i++) {
		struct weights_layer *layer = &weights->layers[i];
		release_floats(kn, backend, layer->attention_norm, (size_t)weights->hidden);
		release_floats(kn, backend, layer->ffn_norm, (size_t)weights->hidden);
		release_floats(kn, backend, layer->qkv_bias, weights->bias_count);
		release_floats(kn, backend, layer->q_norm, (size_t)weights->head_dim);
		release_floats(kn, backend, layer->k_norm, (size_t)weights->head_dim);
		release_matrix(kn, backend, layer->qkv);
		release_matrix(kn, backend, layer->attention_output);
		release_matrix(kn, backend, layer->gate_up);
		release_matrix(kn, backend, layer->down);
	}
	mem_free(weights->layers);
	release_floats(kn, backend, weights->output_norm, (size_t)weights->hidden);
	if (weights->head != weights->embedding)
		release_matrix(kn, backend, weights->head);
	release_matrix(kn, backend, weights->embedding);
	*weights = (struct weights){0};
}

/* ---- counting ---- */

uint64_t weights_bytes_needed(
	const struct kn_ops *kn, const struct source *source, const struct model_config *config, const struct shard *shard)
{
	uint64_t norm_bytes = (uint64_t)config->hidden * sizeof(float), bytes = norm_bytes;
	uint64_t head_floats = bias_count(config, shard) + (config->has_qk_norm ? 2 * (uint64_t)config->head_dim : 0);
	for (int layer = 0; layer < config->n_layers; layer++) {
		struct model_layer tensors;
		struct layer_slices slices;
		model_layer_find(source, config, layer, &tensors);
		layer_slices(config, shard, &tensors, &slices);
		bytes += 2 * norm_bytes + head_floats * sizeof(float) + kn->matrix_bytes_needed(slices.qkv, 3) +
			kn->matrix_bytes_needed(slices.attention_output, 1) + kn->matrix_bytes_needed(slices.gate_up, 2) +
			kn->matrix_bytes_needed(slices.down, 1);
	}
	struct model_ends tensors;
	struct end_slices slices;
	model_ends_find(source, config, &tensors);
	end_slices(config, shard, &tensors, &slices);
	bytes += kn->matrix_bytes_needed(slices.embedding, 1);
	return slices.shared ? bytes : bytes + kn->matrix_bytes_needed(slices.head, 1);
}

uint64_t weights_bytes(const struct kn_ops *kn, const struct weights *weights)
{
	uint64_t norm_bytes = (uint64_t)weights->hidden * sizeof(float), bytes = norm_bytes;
	for (int i = 0; i < weights->n_layers; i++) {
		const struct weights_layer *layer = &weights->layers[i];
		uint64_t head_floats = weights->bias_count + (layer->q_norm ? 2 * (uint64_t)weights->head_dim : 0);
		bytes += 2 * norm_bytes + head_floats * sizeof(float) + kn->matrix_bytes(layer->qkv) +
			kn->matrix_bytes(layer->attention_output) + kn->matrix_bytes(layer->gate_up) +
			kn->matrix_bytes(layer->down);
	}
	bytes += kn->matrix_bytes(weights->embedding);
	return weights->head == weights->embedding ? bytes : bytes + kn->matrix_bytes(weights->head);
}
