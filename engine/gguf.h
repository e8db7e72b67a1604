/* GGUF files (versions 2 and 3): metadata and tensor directory over a read-only map. Every count, offset, string and type
 * is checked against the file: it is hostile input. Format: ggml's docs/gguf.md. */
#ifndef ENGINE_GGUF_H
#define ENGINE_GGUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/file.h"
#include "kernels/dtype.h"

enum gguf_type {
	GGUF_U8, GGUF_I8, GGUF_U16, GGUF_I16, GGUF_U32, GGUF_I32, GGUF_F32, GGUF_BOOL, GGUF_STRING, GGUF_ARRAY, GGUF_U64, GGUF_I64, GGUF_F64
};

struct gguf_string { const char *data; size_t len; }; /* borrowed from the map, not NUL-terminated */

struct gguf_value {
	struct gguf_string key;
	enum gguf_type type;
	enum gguf_type element_type; /* of an array */
	uint64_t count;              /* of an array; 1 otherwise */
	const uint8_t *bytes;        /* first byte of the value (of the first element) in the map; may be unaligned */
};

#define GGUF_DIMS_MAX 4

struct gguf_tensor {
	struct gguf_string name;
	enum dtype dtype;
	int n_dims;
	int64_t dims[GGUF_DIMS_MAX]; /* fastest first, as stored: a [rows, cols] matrix has dims {cols, rows}; unused are 1 */
	const uint8_t *data;
	uint64_t bytes;
};

struct gguf {
	struct file_map map;
	uint32_t version;
	uint32_t alignment;
	struct gguf_value *values;   /* owned */
	size_t n_values;
	struct gguf_tensor *tensors; /* owned */
	size_t n_tensors;
	void *index;                 /* owned name look-up */
};

/* Opens and checks the whole directory. Errors name the file, the byte offset and the item. Close with gguf_close. */
enum status gguf_open(const char *path, struct gguf *out, struct err *err);
void gguf_close(struct gguf *gguf);

const struct gguf_value *gguf_find(const struct gguf *gguf, const char *key);       /* NULL when absent */
const struct gguf_tensor *gguf_find_tensor(const struct gguf *gguf, const char *name);

/* Scalars with range checks; absent key: *out keeps its value and STATUS_OK unless required. */
enum status gguf_get_u64(const struct gguf *gguf, const char *key, bool required, uint64_t *out, struct err *err);
enum status gguf_get_double(const struct gguf *gguf, const char *key, bool required, double *out, struct err *err);
enum status gguf_get_bool(const struct gguf *gguf, const char *key, bool required, bool *out, struct err *err);
enum status gguf_get_string(const struct gguf *gguf, const char *key, bool required, struct gguf_string *out, struct err *err);

/* Walks an array of strings: *cursor starts at value->bytes; each call moves it past one string. The directory was checked, so this cannot fail. */
struct gguf_string gguf_next_string(const uint8_t **cursor);

#endif
