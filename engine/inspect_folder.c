/* Listings of the tensors in a folder of safetensors. Names and types are printable: the reader refuses others. */
#include <inttypes.h>

#include "engine/inspect.h"

static const char *note(const struct safetensors_tensor *tensor)
{
	return dtype_name(tensor->dtype) ? "" : " (no kernels)";
}

static uint64_t tensor_bytes(const struct safetensors *weights)
{
	uint64_t bytes = 0;
	for (size_t i = 0; i < weights->n_tensors; i++)
		bytes += weights->tensors[i].bytes;
	return bytes;
}

static double parameters(const struct safetensors *weights)
{
	double count = 0;
	for (size_t i = 0; i < weights->n_tensors; i++)
		count += (double)weights->tensors[i].elements;
	return count;
}

void inspect_folder_text(const struct safetensors *weights, const char *path, struct text *out)
{
	char shape[SAFETENSORS_SHAPE_BYTES];
	text_printf(out, "%s: safetensors, %zu file(s), %" PRIu64 " bytes\n", path, weights->n_files, weights->bytes);
	for (size_t i = 0; i < weights->n_files; i++)
		text_printf(out, "  %s: %zu bytes\n", weights->files[i].name, weights->files[i].map.size);
	text_printf(out, "\ntensors (%zu)\n", weights->n_tensors);
	for (size_t i = 0; i < weights->n_tensors; i++) {
		const struct safetensors_tensor *tensor = &weights->tensors[i];
		text_printf(out, "  %-56s %-8s %s, %" PRIu64 " bytes%s\n", tensor->name, tensor->type,
			safetensors_shape(tensor, shape), tensor->bytes, note(tensor));
	}
	text_printf(out, "\n%.0f parameters in %" PRIu64 " bytes\n", parameters(weights), tensor_bytes(weights));
}

static struct json *tensor_json(const struct safetensors *weights, const struct safetensors_tensor *tensor)
{
	struct json *out = json_new_object(), *shape = json_new_array();
	for (int d = 0; d < tensor->n_dims; d++)
		json_append(shape, json_new_integer(tensor->dims[d]));
	json_set(out, "name", json_new_string(tensor->name));
	json_set(out, "type", json_new_string(tensor->type));
	json_set(out, "shape", shape);
	json_set(out, "file", json_new_string(weights->files[tensor->file].name));
	json_set(out, "offset", json_new_integer((int64_t)(tensor->data - weights->files[tensor->file].map.data)));
	json_set(out, "bytes", json_new_integer((int64_t)tensor->bytes));
	json_set(out, "supported", json_new_bool(dtype_name(tensor->dtype) != NULL));
	return out;
}

struct json *inspect_folder_json(const struct safetensors *weights, const char *path)
{
	struct json *out = json_new_object(), *tensors = json_new_array(), *totals = json_new_object();
	for (size_t i = 0; i < weights->n_tensors; i++)
		json_append(tensors, tensor_json(weights, &weights->tensors[i]));
	json_set(totals, "tensors", json_new_integer((int64_t)weights->n_tensors));
	json_set(totals, "parameters", json_new_integer((int64_t)parameters(weights)));
	json_set(totals, "tensor_bytes", json_new_integer((int64_t)tensor_bytes(weights)));
	json_set(out, "path", json_new_string(path));
	json_set(out, "file_bytes", json_new_integer((int64_t)weights->bytes));
	json_set(out, "tensors", tensors);
	json_set(out, "totals", totals);
	return out;
}
