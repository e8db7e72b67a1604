/* What every source must have: the parts of a dense model, each with its shape and a type that kernels compute with. */
#include "engine/model.h"

#include "engine/source.h"

bool model_has_part(const struct model_config *config, enum model_part part)
{
	switch (part) {
	case MODEL_Q_BIAS:
	case MODEL_K_BIAS:
	case MODEL_V_BIAS:
		return config->has_qkv_bias;
	case MODEL_Q_NORM:
	case MODEL_K_NORM:
		return config->has_qk_norm;
	case MODEL_OUTPUT:
		return !config->tied_head;
	default:
		return true;
	}
}

void model_part_shape(const struct model_config *config, enum model_part part, int64_t *rows, int64_t *cols)
{
	int64_t hidden = config->hidden, ffn = config->ffn, vocab = config->vocab, head_dim = config->head_dim;
	int64_t q = config->n_heads * head_dim, kv = config->n_kv_heads * head_dim;
	const int64_t shapes[MODEL_PARTS][2] = {
		[MODEL_ATTENTION_NORM] = {0, hidden},
		[MODEL_Q] = {q, hidden},
		[MODEL_K] = {kv, hidden},
		[MODEL_V] = {kv, hidden},
		[MODEL_Q_BIAS] = {0, q},
		[MODEL_K_BIAS] = {0, kv},
		[MODEL_V_BIAS] = {0, kv},
		[MODEL_Q_NORM] = {0, head_dim},
		[MODEL_K_NORM] = {0, head_dim},
		[MODEL_ATTENTION_OUTPUT] = {hidden, q},
		[MODEL_FFN_NORM] = {0, hidden},
		[MODEL_GATE] = {ffn, hidden},
		[MODEL_UP] = {ffn, hidden},
		[MODEL_DOWN] = {hidden, ffn},
		[MODEL_EMBEDDING] = {vocab, hidden},
		[MODEL_OUTPUT_NORM] = {0, hidden},
		[MODEL_OUTPUT] = {vocab, hidden},
	};
	*rows = shapes[part][0];
	*cols = shapes[part][1];
}

static enum status check_part(
	const struct source *source, const struct model_config *config, int layer, enum model_part part, struct err *err)
{
	char name[SOURCE_NAME_BYTES];
	struct model_tensor tensor;
	int64_t rows, cols;
	if (!model_has_part(config, part))
		return STATUS_OK;
	source_name_of(source, layer, part, name);
	if (!source->ops->find(source, layer, part, &tensor))
		return err_set(err, STATUS_INPUT, "tensor '%s' is missing", name);
	model_part_shape(config, part, &rows, &cols);
	return source_check_tensor(name, &tensor, rows, cols, err);
}

static int coarser(int block, const struct model_tensor *tensor)
{
	int other = (int)dtype_block_elements(tensor->dtype);
	return other > block ? other : block; /* all block sizes are powers of two, so the larger is a multiple */
}

static enum status check_layer(const struct source *source, struct model_config *out, int layer, struct err *err)
{
	for (int part = 0; part < MODEL_LAYER_PARTS; part++)
		if (check_part(source, out, layer, (enum model_part)part, err) != STATUS_OK)
			return err->status;
	struct model_layer tensors;
	model_layer_find(source, out, layer, &tensors);
	out->ffn_block = coarser(out->ffn_block, &tensors.down);
	out->attention_block = coarser(out->attention_block, &tensors.attention_output);
	return STATUS_OK;
}

enum status model_config_read(const struct source *source, struct model_config *out, struct err *err)
{
	struct err local = {0};
	err = err ? err : &local;
	*out = (struct model_config){.ffn_block = 1, .attention_block = 1};
	if (source->ops->read_config(source, out, err) != STATUS_OK)
		return err->status;
	for (int part = MODEL_LAYER_PARTS; part < MODEL_PARTS; part++)
		if (check_part(source, out, -1, (enum model_part)part, err) != STATUS_OK)
			return err->status;
	for (int layer = 0; layer < out->n_layers; layer++)
		if (check_layer(source, out, layer, err) != STATUS_OK)
			return err->status;
	return source->ops->refuse_unknown(source, out, err);
}

/* ---- look-up of accepted tensors ---- */

static struct model_tensor tensor_of(
	const struct source *source, const struct model_config *config, int layer, enum model_part part)
{
	struct model_tensor tensor = {0};
	if (model_has_part(config, part)) {
		bool found = source->ops->find(source, layer, part, &tensor);
		ASSERT(found);
	}
	return tensor;
}

void model_layer_find(const struct source *source, const struct model_config *config, int layer, struct model_layer *out)
{
	*out = (struct model_layer){
		.attention_norm = tensor_of(source, config, layer, MODEL_ATTENTION_NORM),
		.q = tensor_of(source, config, layer, MODEL_Q),
		.k = tensor_of(source, config, layer, MODEL_K),
		.v = tensor_of(source, config, layer, MODEL_V),
		.attention_output = tensor_of(source, config, layer, MODEL_ATTENTION_OUTPUT),
		.q_bias = tensor_of(source, config, layer, MODEL_Q_BIAS),
		.k_bias = tensor_of(source, config, layer, MODEL_K_BIAS),
		.v_bias = tensor_of(source, config, layer, MODEL_V_BIAS),
		.q_norm = tensor_of(source, config, layer, MODEL_Q_NORM),
		.k_norm = tensor_of(source, config, layer, MODEL_K_NORM),
		.ffn_norm = tensor_of(source, config, layer, MODEL_FFN_NORM),
		.gate = tensor_of(source, config, layer, MODEL_GATE),
		.up = tensor_of(source, config, layer, MODEL_UP),
		.down = tensor_of(source, config, layer, MODEL_DOWN),
	};
}

void model_ends_find(const struct source *source, const struct model_config *config, struct model_ends *out)
{
	*out = (struct model_ends){
		.embedding = tensor_of(source, config, -1, MODEL_EMBEDDING),
		.output_norm = tensor_of(source, config, -1, MODEL_OUTPUT_NORM),
		.output = tensor_of(source, config, -1, config->tied_head ? MODEL_EMBEDDING : MODEL_OUTPUT),
	};
}
