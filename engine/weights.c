/* Slices of the file's tensors for one rank. The same slice lists serve loading and counting, so the two cannot disagree. */
#include "engine/weights.h"

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

static enum status load_norm(
	const struct kn_ops *kn, struct kn_backend *backend, const struct model_tensor *tensor, float **out, struct err *err)
{
	size_t count = (size_t)model_tensor_cols(tensor);
	float *values = mem_calloc(count, sizeof *values);
	dtype_dequantize(tensor->dtype, tensor->data, values, (int64_t)count);
	void *memory = NULL;
	enum status status = kn->alloc(backend, count * sizeof *values, &memory, err);
	if (status == STATUS_OK) {
		*out = memory;
		status = kn->to_device(backend, memory, values, count * sizeof *values, err);
	}
	mem_free(values);
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
	*out = (struct weights){.n_layers = config->n_layers, .hidden = config->hidden};
	out->layers = mem_calloc((size_t)config->n_layers, sizeof *out->layers);
	enum status status = STATUS_OK;
	for (int layer = 0; layer < config->n_layers && status == STATUS_OK; layer++) {
		struct model_layer tensors;
		struct layer_slices slices;
		model_layer_find(source, config, layer, &tensors);
		layer_slices(config, shard, &tensors, &slices);
		status = load_layer(kn, backend, &tensors, &slices, &out->layers[layer], err);
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

static void release_norm(const struct kn_ops *kn, struct kn_backend *backend, float *norm, int hidden)
{
	if (norm)
		kn->release(backend, norm, (size_t)hidden * sizeof *norm);
}

void weights_release(const struct kn_ops *kn, struct kn_backend *backend, struct weights *weights)
{
	for (int i = 0; weights->layers && i < weights->n_layers; i++) {
		struct weights_layer *layer = &weights->layers[i];
		release_norm(kn, backend, layer->attention_norm, weights->hidden);
		release_norm(kn, backend, layer->ffn_norm, weights->hidden);
		release_matrix(kn, backend, layer->qkv);
		release_matrix(kn, backend, layer->attention_output);
		release_matrix(kn, backend, layer->gate_up);
		release_matrix(kn, backend, layer->down);
	}
	mem_free(weights->layers);
	release_norm(kn, backend, weights->output_norm, weights->hidden);
	if (weights->head != weights->embedding)
		release_matrix(kn, backend, weights->head);
	release_matrix(kn, backend, weights->embedding);
	*weights = (struct weights){0};
}

/* ---- counting ---- */

uint64_t weights_bytes_needed(
	const struct kn_ops *kn, const struct source *source, const struct model_config *config, const struct shard *shard)
{
	uint64_t norm_bytes = (uint64_t)config->hidden * sizeof(float);
	uint64_t bytes = norm_bytes;
	for (int layer = 0; layer < config->n_layers; layer++) {
		struct model_layer tensors;
		struct layer_slices slices;
		model_layer_find(source, config, layer, &tensors);
		layer_slices(config, shard, &tensors, &slices);
		bytes += 2 * norm_bytes + kn->matrix_bytes_needed(slices.qkv, 3) +
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
	uint64_t norm_bytes = (uint64_t)weights->hidden * sizeof(float);
	uint64_t bytes = norm_bytes;
	for (int i = 0; i < weights->n_layers; i++) {
		const struct weights_layer *layer = &weights->layers[i];
		bytes += 2 * norm_bytes + kn->matrix_bytes(layer->qkv) + kn->matrix_bytes(layer->attention_output) +
			kn->matrix_bytes(layer->gate_up) + kn->matrix_bytes(layer->down);
	}
	bytes += kn->matrix_bytes(weights->embedding);
	return weights->head == weights->embedding ? bytes : bytes + kn->matrix_bytes(weights->head);
}
