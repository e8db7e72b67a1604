/* safetensors files, one or the shards of a folder: a tensor directory over read-only maps. Lengths, offsets, shapes and names are
 * checked against the files: they are hostile input. Format: the README of huggingface/safetensors, whose reader's rules (header at
 * most 100 MB, data without holes or overlaps) are held here too. */
#ifndef ENGINE_SAFETENSORS_H
#define ENGINE_SAFETENSORS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/file.h"
#include "base/mem.h"
#include "kernels/dtype.h"

#define SAFETENSORS_HEADER_BYTES_MAX 100000000u /* the reference reader's */
#define SAFETENSORS_DIMS_MAX 8 /* guess: above any published tensor; the same as MODEL_DIMS_MAX */
#define SAFETENSORS_FILES_MAX 1000 /* guess: the largest published models have hundreds of shards */

struct safetensors_tensor {
	const char *name; /* valid UTF-8 without control characters, 1 to 255 bytes, unique in all files */
	const char *type; /* as the file says: "BF16"; a known type, so that any sound file can be listed */
	enum dtype dtype; /* dtype_name gives NULL for types without kernels */
	int n_dims; /* 0 for a single number */
	int64_t dims[SAFETENSORS_DIMS_MAX]; /* row-major: the last runs fastest; all ≥ 0 */
	uint64_t elements;
	const uint8_t *data; /* inside the map, unaligned in general */
	uint64_t bytes;
	size_t file; /* number of the file that holds it */
};

struct safetensors_file {
	const char *name; /* for messages */
	struct file_map map;
	bool borrowed; /* the map is the caller's of safetensors_open_bytes */
};

/* {0} is closed. */
struct safetensors {
	struct arena arena; /* names */
	struct safetensors_file *files; /* owned */
	size_t n_files;
	struct safetensors_tensor *tensors; /* owned, sorted by name */
	size_t n_tensors, capacity;
	uint64_t bytes; /* of all files */
};

/* Opens the shards that folder/model.safetensors.index.json names, no other file; without an index, folder/model.safetensors.
 * Every tensor must be where the index says, and the shards must hold no others. Errors name the file and the tensor. Close with
 * safetensors_close. */
enum status safetensors_open(const char *folder, struct safetensors *out, struct err *err);

/* One file from bytes that the caller keeps alive until safetensors_close; name stands for the path in errors. */
enum status safetensors_open_bytes(const uint8_t *bytes, size_t size, const char *name, struct safetensors *out, struct err *err);

/* Accepts a struct that was zeroed or failed to open. */
void safetensors_close(struct safetensors *safetensors);

const struct safetensors_tensor *safetensors_find(const struct safetensors *safetensors, const char *name); /* NULL when absent */

/* "[2, 3]" into out; returns out. */
#define SAFETENSORS_SHAPE_BYTES 200
const char *safetensors_shape(const struct safetensors_tensor *tensor, char out[SAFETENSORS_SHAPE_BYTES]);

#endif
