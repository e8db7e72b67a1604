/* Reads headers of safetensors files and makes one sorted directory of their tensors. */
#include "engine/safetensors.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/text.h"

#define NAME_BYTES_MAX 255
#define INDEX_BYTES_MAX ((size_t)100 << 20) /* as long as a header may be */
#define LENGTH_BYTES 8 /* of the header's length, little-endian, before it: format */

/* Published element types whose elements are whole bytes. */
static const struct type {
	const char *name;
	int bytes;
	int dtype; /* enum dtype; -1 where no kernel computes with it */
} types[] = {
	{"F32", 4, DTYPE_F32},
	{"F16", 2, DTYPE_F16},
	{"BF16", 2, DTYPE_BF16},
	{"F8_E4M3", 1, DTYPE_F8_E4M3},
	{"F8_E5M2", 1, -1},
	{"F8_E8M0", 1, -1},
	{"F64", 8, -1},
	{"BOOL", 1, -1},
	{"U8", 1, -1},
	{"I8", 1, -1},
	{"I16", 2, -1},
	{"U16", 2, -1},
	{"I32", 4, -1},
	{"U32", 4, -1},
	{"I64", 8, -1},
	{"U64", 8, -1},
	{"C64", 8, -1},
};

/* What is read of one file. */
struct reading {
	struct safetensors *out;
	size_t file;
	const uint8_t *data; /* behind the header */
	uint64_t data_bytes;
	struct err *err;
};

/* ---- one tensor ---- */

static const struct type *find_type(const char *name)
{
	for (size_t i = 0; name && i < sizeof types / sizeof types[0]; i++)
		if (strcmp(types[i].name, name) == 0)
			return &types[i];
	return NULL;
}

static bool name_is_sound(const char *name)
{
	size_t len = strlen(name);
	for (size_t i = 0; i < len; i++)
		if ((unsigned char)name[i] < 0x20 || name[i] == 0x7f)
			return false;
	return len > 0 && len <= NAME_BYTES_MAX;
}

/* A name that may stand in a message whatever a file put into it. */
static const char *printable(const char *name, char out[80])
{
	size_t i = 0;
	for (; i < 79 && name[i]; i++)
		out[i] = name[i] >= 0x20 && name[i] < 0x7f ? name[i] : '?';
	out[i] = '\0';
	return out;
}

const char *safetensors_shape(const struct safetensors_tensor *tensor, char out[SAFETENSORS_SHAPE_BYTES])
{
	size_t used = (size_t)snprintf(out, SAFETENSORS_SHAPE_BYTES, "[");
	for (int d = 0; d < tensor->n_dims && used < SAFETENSORS_SHAPE_BYTES; d++)
		used += (size_t)snprintf(
			out + used, SAFETENSORS_SHAPE_BYTES - used, "%s%" PRId64, d > 0 ? ", " : "", tensor->dims[d]);
	if (used < SAFETENSORS_SHAPE_BYTES)
		snprintf(out + used, SAFETENSORS_SHAPE_BYTES - used, "]");
	return out;
}

static enum status read_shape(struct reading *reading, const struct json *shape, struct safetensors_tensor *out)
{
	size_t n_dims = json_count(shape);
	if (json_kind_of(shape) != JSON_KIND_ARRAY || n_dims > SAFETENSORS_DIMS_MAX)
		return err_set(reading->err, STATUS_INPUT, "tensor '%s': shape is no list of at most %d numbers", out->name,
			SAFETENSORS_DIMS_MAX);
	out->n_dims = (int)n_dims;
	out->elements = 1;
	for (size_t d = 0; d < n_dims; d++) {
		const struct json *dim = json_at(shape, d);
		if (json_kind_of(dim) != JSON_KIND_INTEGER || json_int(dim, -1) < 0)
			return err_set(reading->err, STATUS_INPUT, "tensor '%s': a dimension of shape is no whole number from 0 on",
				out->name);
		out->dims[d] = json_int(dim, -1);
		if (__builtin_mul_overflow(out->elements, (uint64_t)out->dims[d], &out->elements) || out->elements > INT64_MAX)
			return err_set(reading->err, STATUS_INPUT, "tensor '%s': the number of its elements overflows", out->name);
	}
	return STATUS_OK;
}

static enum status read_offsets(struct reading *reading, const struct json *offsets, struct safetensors_tensor *out)
{
	const struct json *first = json_at(offsets, 0), *last = json_at(offsets, 1);
	int64_t begin = json_int(first, -1), end = json_int(last, -1);
	if (json_count(offsets) != 2 || json_kind_of(first) != JSON_KIND_INTEGER || json_kind_of(last) != JSON_KIND_INTEGER ||
		begin < 0 || end < begin)
		return err_set(
			reading->err, STATUS_INPUT, "tensor '%s': data_offsets is no pair of ascending whole numbers", out->name);
	if ((uint64_t)end > reading->data_bytes)
		return err_set(reading->err, STATUS_INPUT,
			"tensor '%s' ends at byte %" PRId64 " of the data, but the file holds %" PRIu64, out->name, end,
			reading->data_bytes);
	out->data = reading->data + begin;
	out->bytes = (uint64_t)(end - begin);
	return STATUS_OK;
}

static enum status refuse_other_keys(struct reading *reading, const char *name, const struct json *entry)
{
	static const char *const known[] = {"dtype", "shape", "data_offsets"};
	char text[80];
	for (void *it = json_first(entry); it; it = json_next(entry, it)) {
		bool found = false;
		for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
			found = found || strcmp(json_iterator_key(it), known[i]) == 0;
		if (!found)
			return err_set(reading->err, STATUS_INPUT, "tensor '%s': key '%s' is not known", name,
				printable(json_iterator_key(it), text));
	}
	return STATUS_OK;
}

static enum status read_tensor(struct reading *reading, const char *name, const struct json *entry)
{
	char text[80];
	if (!name_is_sound(name))
		return err_set(reading->err, STATUS_INPUT,
			"a tensor's name, '%s', is empty, longer than %d bytes or has control characters", printable(name, text),
			NAME_BYTES_MAX);
	struct safetensors_tensor tensor = {
		.name = arena_strndup(&reading->out->arena, name, strlen(name)),
		.file = reading->file,
	};
	const char *type_name = json_text(json_get(entry, "dtype"));
	const struct type *type = find_type(type_name);
	uint64_t bytes;
	if (json_kind_of(entry) != JSON_KIND_OBJECT || !type_name)
		return err_set(reading->err, STATUS_INPUT, "tensor '%s' has no dtype", name);
	if (!type)
		return err_set_code(reading->err, STATUS_INPUT, "unsupported_model", "tensor '%s' has the unknown type '%s'", name,
			printable(type_name, text));
	tensor.type = type->name;
	tensor.dtype = (enum dtype)type->dtype;
	if (read_shape(reading, json_get(entry, "shape"), &tensor) != STATUS_OK ||
		read_offsets(reading, json_get(entry, "data_offsets"), &tensor) != STATUS_OK ||
		refuse_other_keys(reading, name, entry) != STATUS_OK)
		return STATUS_INPUT;
	if (__builtin_mul_overflow(tensor.elements, (uint64_t)type->bytes, &bytes) || bytes != tensor.bytes) {
		char shape[SAFETENSORS_SHAPE_BYTES];
		return err_set(reading->err, STATUS_INPUT,
			"tensor '%s' of shape %s and type %s cannot have %" PRIu64 " bytes of data", name,
			safetensors_shape(&tensor, shape), type->name, tensor.bytes);
	}
	struct safetensors *out = reading->out;
	if (out->n_tensors == out->capacity) {
		out->capacity = 2 * out->capacity + 64;
		out->tensors = mem_realloc(out->tensors, out->capacity, sizeof *out->tensors);
	}
	out->tensors[out->n_tensors++] = tensor;
	return STATUS_OK;
}

/* ---- one file ---- */

static int compare_places(const void *a, const void *b)
{
	const struct safetensors_tensor *left = a, *right = b;
	if (left->data != right->data)
		return left->data < right->data ? -1 : 1;
	return (left->bytes > right->bytes) - (left->bytes < right->bytes); /* empty ones first */
}

/* Data without holes or overlaps, to the end of the file: a file of which a part is nobody's is damaged or hides something. */
static enum status check_places(struct reading *reading, size_t first)
{
	struct safetensors *out = reading->out;
	size_t count = out->n_tensors - first;
	const uint8_t *end = reading->data;
	if (count > 0)
		qsort(out->tensors + first, count, sizeof *out->tensors, compare_places);
	for (size_t i = first; i < out->n_tensors; i++) {
		const struct safetensors_tensor *tensor = &out->tensors[i];
		if (tensor->data != end)
			return err_set(reading->err, STATUS_INPUT, "tensor '%s' begins at byte %td of the data, %s at %td",
				tensor->name, tensor->data - reading->data,
				tensor->data < end ? "before the one before it ends," : "but the one before it ends",
				end - reading->data);
		end += tensor->bytes;
	}
	if ((uint64_t)(end - reading->data) != reading->data_bytes)
		return err_set(reading->err, STATUS_INPUT,
			"the tensors end at byte %td of the data, but the file holds %" PRIu64 " bytes of it", end - reading->data,
			reading->data_bytes);
	return STATUS_OK;
}

static enum status read_header(struct reading *reading, const struct json *header)
{
	size_t first = reading->out->n_tensors;
	for (void *it = json_first(header); it; it = json_next(header, it)) {
		const struct json *value = json_iterator_value(it);
		if (strcmp(json_iterator_key(it), "__metadata__") == 0) {
			if (json_kind_of(value) != JSON_KIND_OBJECT)
				return err_set(reading->err, STATUS_INPUT, "__metadata__ is no object");
			continue;
		}
		if (read_tensor(reading, json_iterator_key(it), value) != STATUS_OK)
			return STATUS_INPUT;
	}
	return check_places(reading, first);
}

/* Adds the tensors of file number `file`, whose map is open. */
static enum status read_file(struct safetensors *out, size_t file, struct err *err)
{
	const struct file_map *map = &out->files[file].map;
	uint64_t length = 0;
	if (map->size < LENGTH_BYTES)
		return err_set(err, STATUS_INPUT, "%zu bytes are too few for a safetensors file", map->size);
	for (int i = LENGTH_BYTES - 1; i >= 0; i--)
		length = length << 8 | map->data[i];
	if (length > SAFETENSORS_HEADER_BYTES_MAX)
		return err_set(err, STATUS_INPUT, "the header's length is %" PRIu64 ", the limit is %u", length,
			SAFETENSORS_HEADER_BYTES_MAX);
	if (length > map->size - LENGTH_BYTES)
		return err_set(err, STATUS_INPUT, "the header's length is %" PRIu64 ", but the file has only %zu bytes after it",
			length, map->size - LENGTH_BYTES);
	struct reading reading = {
		.out = out,
		.file = file,
		.data = map->data + LENGTH_BYTES + length,
		.data_bytes = map->size - LENGTH_BYTES - length,
		.err = err,
	};
	struct json *header = NULL;
	enum status status = json_parse((const char *)map->data + LENGTH_BYTES, (size_t)length, "header", &header, err);
	if (status == STATUS_OK && json_kind_of(header) != JSON_KIND_OBJECT)
		status = err_set(err, STATUS_INPUT, "the header is no JSON object");
	if (status == STATUS_OK)
		status = read_header(&reading, header);
	json_free(header);
	return status;
}

/* ---- all files ---- */

static int compare_names(const void *a, const void *b)
{
	const struct safetensors_tensor *left = a, *right = b;
	return strcmp(left->name, right->name);
}

static enum status sort_by_name(struct safetensors *out, struct err *err)
{
	if (out->n_tensors > 0)
		qsort(out->tensors, out->n_tensors, sizeof *out->tensors, compare_names);
	for (size_t i = 1; i < out->n_tensors; i++)
		if (strcmp(out->tensors[i - 1].name, out->tensors[i].name) == 0)
			return err_set(err, STATUS_INPUT, "duplicate tensor '%s' in %s and %s", out->tensors[i].name,
				out->files[out->tensors[i - 1].file].name, out->files[out->tensors[i].file].name);
	return STATUS_OK;
}

const struct safetensors_tensor *safetensors_find(const struct safetensors *safetensors, const char *name)
{
	const struct safetensors_tensor key = {.name = name};
	return safetensors->n_tensors == 0 ? NULL
					   : bsearch(&key, safetensors->tensors, safetensors->n_tensors, sizeof key, compare_names);
}

enum status safetensors_open_bytes(const uint8_t *bytes, size_t size, const char *name, struct safetensors *out, struct err *err)
{
	*out = (struct safetensors){.n_files = 1, .bytes = size};
	out->files = mem_calloc(1, sizeof *out->files);
	out->files[0] = (struct safetensors_file){
		.name = arena_strndup(&out->arena, name, strlen(name)), .map = {bytes, size}, .borrowed = true};
	enum status status = read_file(out, 0, err);
	if (status == STATUS_OK)
		status = sort_by_name(out, err);
	if (status != STATUS_OK) {
		err_add(err, "%s", name);
		safetensors_close(out);
	}
	return status;
}

/* Opens the next file, whose room is there. */
static enum status open_file(struct safetensors *out, const char *folder, const char *name, struct err *err)
{
	struct text path = {0};
	struct safetensors_file *file = &out->files[out->n_files];
	text_printf(&path, "%s/%s", folder, name);
	enum status status = file_map_open(text_str(&path), &file->map, err);
	if (status == STATUS_OK) {
		file->name = arena_strndup(&out->arena, name, strlen(name));
		out->bytes += file->map.size;
		out->n_files++;
		status = read_file(out, out->n_files - 1, err);
		if (status != STATUS_OK)
			err_add(err, "%s", text_str(&path));
	}
	text_release(&path);
	return status;
}

/* ---- the index ---- */

/* A file beside the index: no path leads out of the folder. */
static bool is_plain_file_name(const char *name)
{
	return name && name[0] && name[0] != '.' && !strchr(name, '/') && !strchr(name, '\\') && name_is_sound(name);
}

static size_t find_file(const struct safetensors *out, const char *name)
{
	size_t file = 0;
	while (file < out->n_files && strcmp(out->files[file].name, name) != 0)
		file++;
	return file;
}

static enum status open_shards(const char *folder, const struct json *map, struct safetensors *out, struct err *err)
{
	char text[80];
	out->files = mem_calloc(SAFETENSORS_FILES_MAX, sizeof *out->files);
	for (void *it = json_first(map); it; it = json_next(map, it)) {
		const char *name = json_text(json_iterator_value(it));
		if (!is_plain_file_name(name))
			return err_set(err, STATUS_INPUT, "weight_map: tensor '%s' lies in no file of this folder",
				printable(json_iterator_key(it), text));
		if (find_file(out, name) < out->n_files)
			continue;
		if (out->n_files == SAFETENSORS_FILES_MAX)
			return err_set(err, STATUS_INPUT, "weight_map names more than %d files", SAFETENSORS_FILES_MAX);
		if (open_file(out, folder, name, err) != STATUS_OK)
			return err_add(err, "shard");
	}
	return sort_by_name(out, err);
}

static enum status check_index(const struct json *map, const struct safetensors *out, struct err *err)
{
	char text[80];
	for (void *it = json_first(map); it; it = json_next(map, it)) {
		const char *name = json_iterator_key(it), *file = json_text(json_iterator_value(it));
		const struct safetensors_tensor *tensor = safetensors_find(out, name);
		if (!tensor || strcmp(out->files[tensor->file].name, file) != 0)
			return err_set(err, STATUS_INPUT, "weight_map: tensor '%s' is not in %s", printable(name, text), file);
	}
	for (size_t i = 0; i < out->n_tensors; i++)
		if (!json_get(map, out->tensors[i].name))
			return err_set(err, STATUS_INPUT, "weight_map does not name tensor '%s', which %s holds",
				out->tensors[i].name, out->files[out->tensors[i].file].name);
	return STATUS_OK;
}

static enum status open_index(const char *folder, const char *path, struct safetensors *out, struct err *err)
{
	struct text content = {0};
	struct json *index = NULL;
	enum status status = file_read(path, INDEX_BYTES_MAX, &content, err);
	if (status == STATUS_OK)
		status = json_parse(text_str(&content), content.len, path, &index, err);
	const struct json *map = json_get(index, "weight_map");
	if (status == STATUS_OK && (json_kind_of(map) != JSON_KIND_OBJECT || json_count(map) == 0))
		status = err_set(err, STATUS_INPUT, "%s: weight_map is no object, or empty", path);
	if (status == STATUS_OK) {
		status = open_shards(folder, map, out, err);
		if (status == STATUS_OK)
			status = check_index(map, out, err);
		if (status != STATUS_OK)
			err_add(err, "%s", path);
	}
	json_free(index);
	text_release(&content);
	return status;
}

enum status safetensors_open(const char *folder, struct safetensors *out, struct err *err)
{
	struct text index = {0};
	enum status status;
	*out = (struct safetensors){0};
	text_printf(&index, "%s/model.safetensors.index.json", folder);
	if (file_exists(text_str(&index))) {
		status = open_index(folder, text_str(&index), out, err);
	} else {
		out->files = mem_calloc(1, sizeof *out->files);
		status = open_file(out, folder, "model.safetensors", err);
		if (status == STATUS_OK)
			status = sort_by_name(out, err);
	}
	text_release(&index);
	if (status != STATUS_OK)
		safetensors_close(out);
	return status;
}

void safetensors_close(struct safetensors *safetensors)
{
	for (size_t i = 0; i < safetensors->n_files; i++)
		if (!safetensors->files[i].borrowed)
			file_map_close(&safetensors->files[i].map);
	mem_free(safetensors->files);
	mem_free(safetensors->tensors);
	arena_release(&safetensors->arena);
	*safetensors = (struct safetensors){0};
}
