/* What a GGUF file holds, for people and programs. */
#ifndef ENGINE_INSPECT_H
#define ENGINE_INSPECT_H

#include "base/json.h"
#include "base/text.h"
#include "engine/gguf.h"

/* Appends a listing for people: header, metadata, tensors, totals. Long values are cut, and say so. Output is printable UTF-8
 * whatever the file holds. */
void inspect_text(const struct gguf *gguf, const char *path, struct text *out);

/* Caller frees. {"path", "version", "alignment", "data_offset", "file_bytes",
 *  "metadata": {KEY: {"type", "value"} | {"type": "array", "element_type", "count", "first": [...]}},
 *  "tensors": [{"name", "type", "shape" (rows first, as in Python), "dims" (fastest first, as stored), "offset" (in the file),
 *               "bytes", "supported" (this program has kernels for the type)}],
 *  "totals": {"metadata", "tensors", "parameters", "tensor_bytes", "bytes_by_type": {TYPE: bytes}}} */
struct json *inspect_json(const struct gguf *gguf, const char *path);

#endif
