/* Reads and checks the directory of a GGUF file: header, metadata, tensor table, and the place of every tensor's bytes.
 * Nothing is copied but two arrays of descriptors; all else points into the map. Layout: ggml's docs/gguf.md. */
#include "engine/gguf.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/mem.h"
#include "base/random.h"
#include "base/utf8.h"
#include "engine/dummy.h"
#include "engine/gguf_types.h"

#define GGUF_MAGIC 0x46554747u /* "GGUF", little-endian */
#define GGUF_ALIGNMENT_DEFAULT 32 /* format */
#define GGUF_ALIGNMENT_MIN 8 /* format: general.alignment is a multiple of 8 */
#define GGUF_ALIGNMENT_MAX (1u << 20) /* guess: far above any page size */
#define GGUF_KEY_BYTES_MAX 65535 /* format */
#define GGUF_NAME_BYTES_MAX 255 /* the format says 64; some writers use more */
#define GGUF_ITEMS_MAX (1u << 20) /* guess: the largest published files have some thousand tensors */
#define VALUE_BYTES_MIN 14 /* key length, one byte of key, type, one byte of value */
#define TENSOR_BYTES_MIN 25 /* name length, one byte of name, n_dims, type, offset */

/* A place in the file; every read checks what remains, so that no sum of sizes from the file is ever formed unchecked. */
struct reader {
	const uint8_t *data;
	size_t size;
	size_t pos;
	struct err *err;
	bool made_up; /* of our own making, and may hold what the format does not know */
};

/* Open addressing over item numbers + 1 (0 is free), keyed by a seed that no file can know, so that no file can make
 * look-ups slow. At most half full. */
struct gguf_index {
	uint64_t seed;
	size_t capacity; /* power of two, of each table */
	uint32_t *values;
	uint32_t *tensors;
};

static enum status refuse(struct err *err, size_t offset, const char *format, ...) __attribute__((format(printf, 3, 4)));

static enum status refuse(struct err *err, size_t offset, const char *format, ...)
{
	char reason[ERR_TEXT_BYTES_MAX];
	va_list args;

	va_start(args, format);
	vsnprintf(reason, sizeof(reason), format, args);
	va_end(args);
	return err_set(err, STATUS_INPUT, "byte %zu: %s", offset, reason);
}

static size_t remaining(const struct reader *reader)
{
	return reader->size - reader->pos;
}

static enum status read_bytes(struct reader *reader, uint64_t count, const char *what, const uint8_t **out)
{
	if (count > remaining(reader))
		return refuse(reader->err, reader->pos, "the file ends inside %s: %" PRIu64 " bytes needed, %zu left", what, count,
			remaining(reader));
	*out = reader->data + reader->pos;
	reader->pos += (size_t)count;
	return STATUS_OK;
}

static enum status read_u32(struct reader *reader, const char *what, uint32_t *out)
{
	const uint8_t *bytes = NULL;
	enum status status = read_bytes(reader, 4, what, &bytes);

	if (!status)
		*out = gguf_load_u32(bytes);
	return status;
}

static enum status read_u64(struct reader *reader, const char *what, uint64_t *out)
{
	const uint8_t *bytes = NULL;
	enum status status = read_bytes(reader, 8, what, &bytes);

	if (!status)
		*out = gguf_load_u64(bytes);
	return status;
}

static enum status read_string(struct reader *reader, const char *what, struct gguf_string *out)
{
	uint64_t len = 0;
	const uint8_t *bytes = NULL;
	enum status status = read_u64(reader, what, &len);

	if (!status)
		status = read_bytes(reader, len, what, &bytes);
	if (!status)
		*out = (struct gguf_string){(const char *)bytes, (size_t)len};
	return status;
}

/* A key or tensor name: printable, so that it may stand in messages from here on. */
static enum status read_name(struct reader *reader, const char *what, size_t len_max, struct gguf_string *out)
{
	size_t start = reader->pos;
	enum status status = read_string(reader, what, out);

	if (status)
		return status;
	if (out->len == 0 || out->len > len_max)
		return refuse(reader->err, start, "%s has %zu bytes, expected 1 to %zu", what, out->len, len_max);
	for (size_t i = 0; i < out->len; i++)
		if ((unsigned char)out->data[i] < 0x20 || out->data[i] == 0x7f)
			return refuse(
				reader->err, start, "%s holds the control character 0x%02x", what, (unsigned char)out->data[i]);
	if (!utf8_is_valid(out->data, out->len))
		return refuse(reader->err, start, "%s is not UTF-8", what);
	return STATUS_OK;
}

/* Index. ------------------------------------------------------------------------------------------------------------ */

static struct gguf_index *index_create(size_t items_max)
{
	struct gguf_index *index = mem_calloc(1, sizeof(*index));

	index->seed = random_entropy();
	index->capacity = 16;
	while (index->capacity < 2 * items_max)
		index->capacity *= 2;
	index->values = mem_calloc(index->capacity, sizeof(*index->values));
	index->tensors = mem_calloc(index->capacity, sizeof(*index->tensors));
	return index;
}

static void index_destroy(struct gguf_index *index)
{
	if (!index)
		return;
	mem_free(index->values);
	mem_free(index->tensors);
	mem_free(index);
}

static bool same_string(struct gguf_string a, struct gguf_string b)
{
	return a.len == b.len && memcmp(a.data, b.data, a.len) == 0;
}

/* The slot that holds key, or the free one where it belongs. */
static uint32_t *value_slot(const struct gguf *gguf, struct gguf_string key)
{
	const struct gguf_index *index = gguf->index;
	size_t mask = index->capacity - 1;
	size_t slot = (size_t)hash64(key.data, key.len, index->seed) & mask;

	while (index->values[slot] && !same_string(gguf->values[index->values[slot] - 1].key, key))
		slot = (slot + 1) & mask;
	return &index->values[slot];
}

static uint32_t *tensor_slot(const struct gguf *gguf, struct gguf_string name)
{
	const struct gguf_index *index = gguf->index;
	size_t mask = index->capacity - 1;
	size_t slot = (size_t)hash64(name.data, name.len, index->seed) & mask;

	while (index->tensors[slot] && !same_string(gguf->tensors[index->tensors[slot] - 1].name, name))
		slot = (slot + 1) & mask;
	return &index->tensors[slot];
}

const struct gguf_value *gguf_find(const struct gguf *gguf, const char *key)
{
	uint32_t number = *value_slot(gguf, (struct gguf_string){key, strlen(key)});

	return number ? &gguf->values[number - 1] : NULL;
}

const struct gguf_tensor *gguf_find_tensor(const struct gguf *gguf, const char *name)
{
	uint32_t number = *tensor_slot(gguf, (struct gguf_string){name, strlen(name)});

	return number ? &gguf->tensors[number - 1] : NULL;
}

/* Metadata. --------------------------------------------------------------------------------------------------------- */

static enum status read_value_type(struct reader *reader, const char *what, enum gguf_type *out)
{
	size_t start = reader->pos;
	uint32_t id = 0;
	enum status status = read_u32(reader, what, &id);

	if (status)
		return status;
	if (id > GGUF_F64)
		return refuse(reader->err, start, "%s %" PRIu32 " is unknown", what, id);
	*out = (enum gguf_type)id;
	return STATUS_OK;
}

/* Moves past count elements of one type, checking that they lie in the file. */
static enum status skip_elements(struct reader *reader, enum gguf_type type, uint64_t count)
{
	size_t element_bytes = gguf_type_bytes(type);
	size_t start = reader->pos;
	const uint8_t *bytes;
	struct gguf_string string;
	enum status status = STATUS_OK;

	if (type == GGUF_STRING) {
		for (uint64_t i = 0; i < count && !status; i++)
			status = read_string(reader, "a string", &string);
		return status;
	}
	if (count > remaining(reader) / element_bytes)
		return refuse(reader->err, start, "%" PRIu64 " elements of %zu bytes do not fit into the %zu bytes left", count,
			element_bytes, remaining(reader));
	bytes = reader->data + start;
	reader->pos += (size_t)count * element_bytes;
	for (uint64_t i = 0; type == GGUF_BOOL && i < count; i++)
		if (bytes[i] > 1)
			return refuse(reader->err, start + (size_t)i, "a bool has the value %u, expected 0 or 1", bytes[i]);
	return STATUS_OK;
}

static enum status read_value_body(struct reader *reader, struct gguf_value *value)
{
	enum status status = read_value_type(reader, "value type", &value->type);

	value->element_type = value->type;
	value->count = 1;
	if (!status && value->type == GGUF_ARRAY) {
		size_t start = reader->pos;

		status = read_value_type(reader, "array element type", &value->element_type);
		if (!status && value->element_type == GGUF_ARRAY)
			status = refuse(reader->err, start, "arrays of arrays are not supported");
		if (!status)
			status = read_u64(reader, "an array length", &value->count);
	}
	if (status)
		return status;
	value->bytes = reader->data + reader->pos;
	return skip_elements(reader, value->element_type, value->count);
}

static enum status read_values(struct reader *reader, struct gguf *gguf, size_t n_values)
{
	for (size_t i = 0; i < n_values; i++) {
		struct gguf_value *value = &gguf->values[i];
		size_t start = reader->pos;
		enum status status = read_name(reader, "a metadata key", GGUF_KEY_BYTES_MAX, &value->key);
		uint32_t *slot;

		if (status)
			return err_add(reader->err, "metadata entry %zu of %zu", i + 1, n_values);
		slot = value_slot(gguf, value->key);
		if (*slot)
			status = refuse(reader->err, start, "the key is there twice");
		else
			status = read_value_body(reader, value);
		if (status)
			return err_add(reader->err, "key '%.*s'", gguf_print_len(value->key), value->key.data);
		*slot = (uint32_t)i + 1;
		gguf->n_values = i + 1;
	}
	return STATUS_OK;
}

static enum status read_alignment(struct gguf *gguf, struct err *err)
{
	const struct gguf_value *value = gguf_find(gguf, "general.alignment");
	size_t offset;

	gguf->alignment = GGUF_ALIGNMENT_DEFAULT;
	if (!value)
		return STATUS_OK;
	offset = (size_t)(value->bytes - gguf->map.data);
	if (value->type != GGUF_U32)
		return refuse(err, offset, "general.alignment has type %s, expected u32", gguf_type_name(value->type));
	gguf->alignment = gguf_load_u32(value->bytes);
	if (gguf->alignment < GGUF_ALIGNMENT_MIN || gguf->alignment > GGUF_ALIGNMENT_MAX ||
		(gguf->alignment & (gguf->alignment - 1)) != 0)
		return refuse(err, offset, "general.alignment is %" PRIu32 ", expected a power of two from %d to %u",
			gguf->alignment, GGUF_ALIGNMENT_MIN, GGUF_ALIGNMENT_MAX);
	return STATUS_OK;
}

/* Tensor table. ----------------------------------------------------------------------------------------------------- */

/* Reads the shape and computes the bytes of the data, each step of the arithmetic checked. */
static enum status read_shape(struct reader *reader, struct gguf_tensor *tensor, int64_t *n_elements)
{
	size_t start = reader->pos;
	uint32_t n_dims = 0;
	enum status status = read_u32(reader, "a tensor's number of dimensions", &n_dims);

	if (status)
		return status;
	if (n_dims > GGUF_DIMS_MAX)
		return refuse(reader->err, start, "%" PRIu32 " dimensions, expected at most %d", n_dims, GGUF_DIMS_MAX);
	tensor->n_dims = (int)n_dims;
	*n_elements = 1;
	for (int i = 0; i < GGUF_DIMS_MAX; i++) {
		uint64_t dim = 1;

		start = reader->pos;
		if (i < tensor->n_dims)
			status = read_u64(reader, "a tensor's shape", &dim);
		if (status)
			return status;
		if (dim == 0 || dim > INT64_MAX || __builtin_mul_overflow(*n_elements, (int64_t)dim, n_elements))
			return refuse(reader->err, start, "dimension %d is %" PRIu64 ": no such tensor can exist", i, dim);
		tensor->dims[i] = (int64_t)dim;
	}
	return STATUS_OK;
}

static enum status read_tensor_body(struct reader *reader, struct gguf_tensor *tensor, uint64_t *offset)
{
	struct gguf_tensor_type type;
	int64_t n_elements = 0;
	uint32_t type_id = 0;
	size_t type_pos;
	const char *why;
	enum status status = read_shape(reader, tensor, &n_elements);

	type_pos = reader->pos;
	if (!status)
		status = read_u32(reader, "a tensor's type", &type_id);
	if (!status)
		status = read_u64(reader, "a tensor's offset", offset);
	if (status)
		return status;
	if (dtype_is_retired(type_id, &why))
		return refuse(reader->err, type_pos, "type %" PRIu32 " is retired: %s", type_id, why);
	if (reader->made_up && type_id == DTYPE_F8_E4M3)
		type = (struct gguf_tensor_type){dtype_name(DTYPE_F8_E4M3), 1, 1};
	else if (!gguf_tensor_type(type_id, &type))
		return refuse(reader->err, type_pos, "unknown type %" PRIu32, type_id);
	if (tensor->dims[0] % type.block_elements != 0)
		return refuse(reader->err, type_pos, "rows of %" PRId64 " elements do not divide into %s blocks of %d",
			tensor->dims[0], type.name, type.block_elements);
	tensor->dtype = (enum dtype)type_id;
	if (__builtin_mul_overflow((uint64_t)(n_elements / type.block_elements), (uint64_t)type.block_bytes, &tensor->bytes))
		return refuse(reader->err, type_pos, "the size of the data overflows 64 bits");
	return STATUS_OK;
}

/* offsets[i] becomes the place of tensor i relative to the data section, still unchecked. */
static enum status read_tensors(struct reader *reader, struct gguf *gguf, size_t n_tensors, uint64_t *offsets)
{
	for (size_t i = 0; i < n_tensors; i++) {
		struct gguf_tensor *tensor = &gguf->tensors[i];
		size_t start = reader->pos;
		enum status status = read_name(reader, "a tensor's name", GGUF_NAME_BYTES_MAX, &tensor->name);
		uint32_t *slot;

		if (status)
			return err_add(reader->err, "tensor %zu of %zu", i + 1, n_tensors);
		slot = tensor_slot(gguf, tensor->name);
		if (*slot)
			status = refuse(reader->err, start, "the tensor is there twice");
		else
			status = read_tensor_body(reader, tensor, &offsets[i]);
		if (status)
			return err_add(reader->err, "tensor '%.*s'", gguf_print_len(tensor->name), tensor->name.data);
		*slot = (uint32_t)i + 1;
		gguf->n_tensors = i + 1;
	}
	return STATUS_OK;
}

/* Tensor data. ------------------------------------------------------------------------------------------------------ */

/* Where a tensor lies, for sorting. */
struct extent {
	const uint8_t *data;
	const struct gguf_tensor *tensor;
};

static int compare_extents(const void *a, const void *b)
{
	const struct extent *left = a, *right = b;

	return (left->data > right->data) - (left->data < right->data);
}

static enum status check_overlap(const struct gguf *gguf, struct err *err)
{
	struct extent *extents = mem_calloc(gguf->n_tensors + 1, sizeof(*extents));
	enum status status = STATUS_OK;

	for (size_t i = 0; i < gguf->n_tensors; i++)
		extents[i] = (struct extent){gguf->tensors[i].data, &gguf->tensors[i]};
	qsort(extents, gguf->n_tensors, sizeof(*extents), compare_extents);
	for (size_t i = 1; i < gguf->n_tensors && !status; i++) {
		const struct gguf_tensor *a = extents[i - 1].tensor, *b = extents[i].tensor;

		if (a->bytes > (uint64_t)(b->data - a->data))
			status = refuse(err, (size_t)(b->data - gguf->map.data), "the data of tensors '%.*s' and '%.*s' overlap",
				gguf_print_len(a->name), a->name.data, gguf_print_len(b->name), b->name.data);
	}
	mem_free(extents);
	return status;
}

/* directory_end: first byte after the tensor table. */
static enum status place_tensors(struct gguf *gguf, size_t directory_end, const uint64_t *offsets, struct err *err)
{
	size_t padding = (gguf->alignment - directory_end % gguf->alignment) % gguf->alignment;
	size_t left = gguf->map.size - directory_end;
	uint64_t data_bytes = left > padding ? left - padding : 0;

	gguf->data_offset = (uint64_t)directory_end + padding;
	for (size_t i = 0; i < gguf->n_tensors; i++) {
		struct gguf_tensor *tensor = &gguf->tensors[i];

		if (offsets[i] % gguf->alignment != 0)
			return refuse(err, directory_end,
				"tensor '%.*s': offset %" PRIu64 " is not a multiple of the alignment %" PRIu32,
				gguf_print_len(tensor->name), tensor->name.data, offsets[i], gguf->alignment);
		if (offsets[i] > data_bytes || tensor->bytes > data_bytes - offsets[i])
			return refuse(err, gguf->map.size,
				"tensor '%.*s': %" PRIu64 " bytes at offset %" PRIu64 " needed, the file of %zu bytes has %" PRIu64
				" bytes of tensor data: truncated?",
				gguf_print_len(tensor->name), tensor->name.data, tensor->bytes, offsets[i], gguf->map.size,
				data_bytes);
		tensor->data = gguf->map.data + gguf->data_offset + offsets[i];
	}
	return check_overlap(gguf, err);
}

/* The whole. -------------------------------------------------------------------------------------------------------- */

static enum status read_header(struct reader *reader, uint32_t *version, uint64_t *n_tensors, uint64_t *n_values)
{
	uint32_t magic = 0;
	enum status status = read_u32(reader, "the magic number", &magic);

	if (!status && magic != GGUF_MAGIC)
		status = refuse(reader->err, 0, "not a GGUF file: it does not begin with \"GGUF\"");
	if (!status)
		status = read_u32(reader, "the version", version);
	if (!status && (*version & 0xffff) == 0 && *version != 0)
		status = refuse(reader->err, 4, "a big-endian GGUF file, which is not supported");
	if (!status && *version != 2 && *version != 3)
		status = refuse(reader->err, 4, "GGUF version %" PRIu32 ", expected 2 or 3", *version);
	if (!status)
		status = read_u64(reader, "the tensor count", n_tensors);
	if (!status)
		status = read_u64(reader, "the metadata count", n_values);
	if (!status && (*n_values > GGUF_ITEMS_MAX || *n_values > remaining(reader) / VALUE_BYTES_MIN))
		status = refuse(reader->err, 16, "%" PRIu64 " metadata entries cannot fit into the %zu bytes left (limit %u)",
			*n_values, remaining(reader), GGUF_ITEMS_MAX);
	if (!status && (*n_tensors > GGUF_ITEMS_MAX || *n_tensors > remaining(reader) / TENSOR_BYTES_MIN))
		status = refuse(reader->err, 8, "%" PRIu64 " tensors cannot fit into the %zu bytes left (limit %u)", *n_tensors,
			remaining(reader), GGUF_ITEMS_MAX);
	return status;
}

static enum status read_directory(struct gguf *gguf, struct err *err)
{
	struct reader reader = {gguf->map.data, gguf->map.size, 0, err, gguf->made_up};
	uint64_t *offsets = NULL;
	uint64_t n_tensors = 0, n_values = 0;
	enum status status = read_header(&reader, &gguf->version, &n_tensors, &n_values);

	if (status)
		return status;
	gguf->values = mem_calloc((size_t)n_values + 1, sizeof(*gguf->values));
	gguf->tensors = mem_calloc((size_t)n_tensors + 1, sizeof(*gguf->tensors));
	gguf->index = index_create((size_t)(n_values > n_tensors ? n_values : n_tensors));
	offsets = mem_calloc((size_t)n_tensors + 1, sizeof(*offsets));
	status = read_values(&reader, gguf, (size_t)n_values);
	if (!status)
		status = read_alignment(gguf, err);
	if (!status)
		status = read_tensors(&reader, gguf, (size_t)n_tensors, offsets);
	if (!status)
		status = place_tensors(gguf, reader.pos, offsets, err);
	mem_free(offsets);
	return status;
}

static enum status open_map(struct file_map map, const char *name, bool borrowed, bool made_up, struct gguf *out, struct err *err)
{
	enum status status;

	*out = (struct gguf){.map = map, .borrowed = borrowed, .made_up = made_up};
	status = read_directory(out, err);
	if (status) {
		gguf_close(out);
		err_add(err, "%s", name);
	}
	return status;
}

enum status gguf_open_bytes(const uint8_t *bytes, size_t size, const char *name, struct gguf *out, struct err *err)
{
	return open_map((struct file_map){bytes, size}, name, true, false, out, err);
}

enum status gguf_open(const char *path, struct gguf *out, struct err *err)
{
	struct file_map map;
	bool made_up = dummy_is_named_by(path);
	enum status status = made_up ? dummy_map_open(path, &map, err) : file_map_open(path, &map, err);

	*out = (struct gguf){0};
	return status ? status : open_map(map, path, false, made_up, out, err);
}

void gguf_close(struct gguf *gguf)
{
	index_destroy(gguf->index);
	mem_free(gguf->values);
	mem_free(gguf->tensors);
	if (!gguf->borrowed)
		file_map_close(&gguf->map);
	*gguf = (struct gguf){0};
}
