/* What a GGUF file or a folder of safetensors holds, for people and programs. */
#ifndef ENGINE_INSPECT_H
#define ENGINE_INSPECT_H

#include "base/json.h"
#include "base/text.h"
#include "engine/gguf.h"
#include "engine/safetensors.h"

/* Appends a listing for people: header, metadata, tensors, totals. Long values are cut, and say so. Output is printable UTF-8
 * whatever the file holds. */
void inspect_text(const struct gguf *gguf, const char *path, struct text *out);

/* Caller frees. {"path", "version", "alignment", "data_offset", "file_bytes",
 *  "metadata": {KEY: {"type", "value"} | {"type": "array", "element_type", "count", "first": [...]}},
 *  "tensors": [{"name", "type", "shape" (rows first, as in Python), "dims" (fastest first, as stored), "offset" (in the file),
 *               "bytes", "supported" (this program has kernels for the type)}],
 *  "totals": {"metadata", "tensors", "parameters", "tensor_bytes", "bytes_by_type": {TYPE: bytes}}} */
struct json *inspect_json(const struct gguf *gguf, const char *path);

/* The same of the weights in a folder. Caller frees the JSON: {"path", "file_bytes", "tensors": [{"name", "type", "shape", "file",
 * "offset" (in that file), "bytes", "supported"}], "totals": {"tensors", "parameters", "tensor_bytes"}} */
void inspect_folder_text(const struct safetensors *weights, const char *path, struct text *out);
struct json *inspect_folder_json(const struct safetensors *weights, const char *path);

#endif
