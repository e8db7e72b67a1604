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

/* Value types; the numbers are the format's. */
enum gguf_type {
	GGUF_U8,
	GGUF_I8,
	GGUF_U16,
	GGUF_I16,
	GGUF_U32,
	GGUF_I32,
	GGUF_F32,
	GGUF_BOOL,
	GGUF_STRING,
	GGUF_ARRAY,
	GGUF_U64,
	GGUF_I64,
	GGUF_F64
};

struct gguf_string { /* borrowed from the map, not NUL-terminated */
	const char *data;
	size_t len;
};

struct gguf_value {
	struct gguf_string key; /* valid UTF-8 without control characters, 1 to 65535 bytes, unique in the file */
	enum gguf_type type;
	enum gguf_type element_type; /* of an array; never GGUF_ARRAY (nested arrays are refused) */
	uint64_t count; /* of an array; 1 otherwise */
	const uint8_t *bytes; /* first byte of the value (of the first element) in the map; may be unaligned */
};

#define GGUF_DIMS_MAX 4

struct gguf_tensor {
	struct gguf_string name; /* valid UTF-8 without control characters, 1 to 255 bytes, unique in the file */
	/* A published type id, so that any sound file can be listed. dtype_name(dtype) is NULL for those without kernels:
	 * whoever computes with the tensor refuses them. */
	enum dtype dtype;
	int n_dims;
	int64_t dims[GGUF_DIMS_MAX]; /* fastest first, as stored: a [rows, cols] matrix has dims {cols, rows}; unused are 1 */
	const uint8_t *data; /* inside the map, aligned to gguf.alignment; no two tensors overlap */
	uint64_t bytes;
};

struct gguf_index;

struct gguf {
	struct file_map map;
	uint32_t version;
	uint32_t alignment;
	uint64_t data_offset; /* where the tensor data begins in the file */
	struct gguf_value *values; /* owned */
	size_t n_values;
	struct gguf_tensor *tensors; /* owned */
	size_t n_tensors;
	struct gguf_index *index; /* owned name look-up */
	bool borrowed; /* the map belongs to the caller of gguf_open_bytes */
	bool made_up; /* engine/dummy.h: the only kind with tensors of DTYPE_F8_E4M3 */
};

/* Opens and checks the whole directory. Errors name the file, the byte offset and the item. Close with gguf_close. A path that
 * begins with "shape:" is no file but a model made up on the spot (engine/dummy.h). */
enum status gguf_open(const char *path, struct gguf *out, struct err *err);

/* As gguf_open on bytes that the caller keeps alive until gguf_close; name stands for the path in errors. */
enum status gguf_open_bytes(const uint8_t *bytes, size_t size, const char *name, struct gguf *out, struct err *err);

/* Accepts a struct that was zeroed or failed to open. */
void gguf_close(struct gguf *gguf);

const struct gguf_value *gguf_find(const struct gguf *gguf, const char *key); /* NULL when absent */
const struct gguf_tensor *gguf_find_tensor(const struct gguf *gguf, const char *name);

/* Scalars with range checks; absent key: *out keeps its value and STATUS_OK unless required. A key of another type is
 * STATUS_INPUT. Any integer type that fits reads as u64; any number type reads as double. */
enum status gguf_get_u64(const struct gguf *gguf, const char *key, bool required, uint64_t *out, struct err *err);
enum status gguf_get_double(const struct gguf *gguf, const char *key, bool required, double *out, struct err *err);
enum status gguf_get_bool(const struct gguf *gguf, const char *key, bool required, bool *out, struct err *err);
enum status gguf_get_string(const struct gguf *gguf, const char *key, bool required, struct gguf_string *out, struct err *err);

/* The array under key, whose elements must be of element_type; NULL in *out when absent and not required. */
enum status gguf_get_array(const struct gguf *gguf, const char *key, enum gguf_type element_type, bool required,
	const struct gguf_value **out, struct err *err);

/* Walks an array of strings: *cursor starts at value->bytes; each call moves it past one string. The directory was
 * checked, so this cannot fail. */
struct gguf_string gguf_next_string(const uint8_t **cursor);

/* Element idx of a value that is, or is an array of, a number type other than bool: as u64, i64 or double without a
 * range check (the bits of a negative number stay, fractions are cut). idx < count. */
int64_t gguf_integer_at(const struct gguf_value *value, uint64_t idx);
double gguf_double_at(const struct gguf_value *value, uint64_t idx);

bool gguf_string_equal(struct gguf_string string, const char *text);

/* The string as it may stand in a message, whatever a file put into it: other than printable ASCII becomes '?', cut to
 * out_bytes - 1. Returns out. */
const char *gguf_printable(struct gguf_string string, char *out, size_t out_bytes);

/* Names for people: "u32", "string"; "Q4_K" also for types without kernels. Never NULL. */
const char *gguf_type_name(enum gguf_type type);
const char *gguf_tensor_type_name(uint32_t id);

/* Bytes of one element of a fixed-size value type; 0 for strings and arrays. */
size_t gguf_type_bytes(enum gguf_type type);

#endif
