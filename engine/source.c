/* Opening a model by its path, and what implementations of sources share. */
#include "engine/source.h"

#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/text.h"

enum status source_open(const char *path, struct source *out, struct err *err)
{
	return file_is_folder(path) ? source_hf_open(path, out, err) : source_gguf_open(path, out, err);
}

void source_close(struct source *source)
{
	if (source->ops)
		source->ops->close(source);
	*source = (struct source){0};
}

void source_name_part(const struct source_names *names, int layer, enum model_part part, char out[SOURCE_NAME_BYTES])
{
	if (part < MODEL_LAYER_PARTS)
		snprintf(out, SOURCE_NAME_BYTES, "%s%d.%s", names->layer_prefix, layer, names->parts[part]);
	else
		/* cppcheck 2.10 takes MODEL_PARTS for MODEL_LAYER_PARTS, since an enumerator between them repeats that value. */
		/* cppcheck-suppress arrayIndexOutOfBoundsCond */
		snprintf(out, SOURCE_NAME_BYTES, "%s", names->parts[part]);
}

void source_name_of(const struct source *source, int layer, enum model_part part, char out[SOURCE_NAME_BYTES])
{
	source_name_part(source->ops->names, layer, part, out);
}

static void shape_text(const struct model_tensor *tensor, char *out, size_t out_bytes)
{
	size_t used = 0;
	for (int d = 0; d < tensor->n_dims && used < out_bytes; d++)
		used += (size_t)snprintf(out + used, out_bytes - used, "%s%lld", used ? ", " : "", (long long)tensor->dims[d]);
}

static bool has_shape(const struct model_tensor *tensor, int64_t rows, int64_t cols)
{
	for (int d = 0; d + 2 < tensor->n_dims; d++)
		if (tensor->dims[d] != 1)
			return false;
	return tensor->n_dims > 0 && model_tensor_cols(tensor) == cols && model_tensor_rows(tensor) == (rows == 0 ? 1 : rows);
}

enum status source_check_tensor(const char *name, const struct model_tensor *tensor, int64_t rows, int64_t cols, struct err *err)
{
	char shape[96] = "";
	shape_text(tensor, shape, sizeof shape);
	if (!has_shape(tensor, rows, cols))
		return rows == 0
			? err_set(err, STATUS_INPUT, "tensor '%s' has shape [%s], expected [%lld]", name, shape, (long long)cols)
			: err_set(err, STATUS_INPUT, "tensor '%s' has shape [%s], expected [%lld, %lld]", name, shape,
				  (long long)rows, (long long)cols);
	if (dtype_block_elements(tensor->dtype) == 0)
		return err_set_code(err, STATUS_INPUT, "unsupported_model",
			"tensor '%s' has type %s, which is not supported; this engine computes with F32, F16, BF16, F8_E4M3, Q8_0, "
			"Q4_0, Q4_1, Q4_K, Q6_K",
			name, tensor->type);
	return STATUS_OK;
}

/* The layer that a name begins with; -1 when it begins with none of this model's. */
static int layer_of(const struct source_names *names, const struct model_config *config, const char *text)
{
	size_t prefix = strlen(names->layer_prefix);
	char number[16];
	long long layer;
	if (strncmp(text, names->layer_prefix, prefix) != 0)
		return -1;
	const char *dot = strchr(text + prefix, '.');
	if (!dot || dot - (text + prefix) >= (ptrdiff_t)sizeof number)
		return -1;
	snprintf(number, sizeof number, "%.*s", (int)(dot - (text + prefix)), text + prefix);
	if (!text_to_i64(number, &layer) || layer < 0 || layer >= config->n_layers)
		return -1;
	return (int)layer;
}

bool source_name_is_known(const struct source_names *names, const struct model_config *config, const char *name, size_t len)
{
	char text[SOURCE_NAME_BYTES], expected[SOURCE_NAME_BYTES];
	if (len >= sizeof text)
		return false;
	memcpy(text, name, len);
	text[len] = '\0';
	int layer = layer_of(names, config, text);
	for (int part = layer < 0 ? MODEL_LAYER_PARTS : 0; part < MODEL_PARTS; part++) {
		if (!model_has_part(config, (enum model_part)part))
			continue;
		/* Written back from the number, so that "blk.007." is unknown. */
		source_name_part(names, layer, (enum model_part)part, expected);
		if (strcmp(expected, text) == 0)
			return true;
	}
	return false;
}

enum status source_check_heads(const struct model_config *config, struct err *err)
{
	if (config->n_heads % config->n_kv_heads != 0)
		return err_set(err, STATUS_INPUT, "%d query heads cannot share %d key/value heads evenly", config->n_heads,
			config->n_kv_heads);
	if (config->head_dim < 2 || config->head_dim > MODEL_HEAD_DIM_MAX || config->head_dim % 2 != 0)
		return err_set(err, STATUS_INPUT, "head size %d: expected an even number of 2 to %d", config->head_dim,
			MODEL_HEAD_DIM_MAX);
	return STATUS_OK;
}
