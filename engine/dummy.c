/* Writes the directory of a GGUF file and maps pools of random blocks where its tensors would be. */
#include "engine/dummy.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/mem.h"
#include "base/text.h"
#include "engine/gguf.h"
#include "engine/shape.h"

#define PAGE ((size_t)4096) /* of x86-64; also the alignment that the file claims, so that every tensor begins a map of its own */
#define POOL_BYTES ((size_t)64 << 20) /* guess: more than a cache holds, little enough to be made at once */
#define SEED 0x5eedull
#define SPREAD 0.02 /* standard deviation of weights; what models are initialised with */

/* What a pool holds: blocks of one type, weights of norms, or scales. Numbers above all types are kinds of our own. */
#define NORM_KIND 2000
#define SCALE_KIND 2001 /* of rows of 8-bit floats */

#define E4M3_SPREAD 64 /* of 8-bit floats before they are scaled: the largest is then 222, of 448 that the type holds */

#define POOLS_MAX 8
struct pool {
	int kind; /* enum dtype, NORM_KIND or SCALE_KIND */
	int fd; /* memory file */
	size_t unit; /* whole blocks in whole pages */
	size_t bytes; /* a multiple of it */
};

struct tensor {
	char name[64];
	int kind;
	int64_t cols, rows; /* rows 0: a vector */
	uint64_t offset, bytes; /* in the data section */
};

#define TENSORS_OF_LAYER_MAX 16 /* two norms, seven matrices, their scales */
#define TENSORS_OF_ENDS_MAX 4 /* embedding, norm, head, its scales */

/* The file in the making. */
struct draft {
	struct shape shape;
	struct text head, entries; /* values, then the tensors' entries */
	uint64_t n_values, n_tensors;
	struct tensor *tensors; /* [TENSORS_OF_LAYER_MAX * n_layers + TENSORS_OF_ENDS_MAX] */
	uint64_t data_bytes;
	struct pool pools[POOLS_MAX];
	int n_pools;
};

bool dummy_is_named_by(const char *path)
{
	return text_starts_with(path, DUMMY_PREFIX);
}

/* ---- pools ---- */

static enum dtype stored_type(int kind)
{
	return kind == NORM_KIND || kind == SCALE_KIND ? DTYPE_F32 : (enum dtype)kind;
}

static size_t block_bytes_of(int kind)
{
	return (size_t)dtype_block_bytes(stored_type(kind));
}

/* About normal: the sum of four uniform numbers, from one mixed word. */
static float deviate(uint64_t counter)
{
	uint64_t bits = hash64_mix(SEED + counter);
	int sum = (int)(bits & 0xffff) + (int)(bits >> 16 & 0xffff) + (int)(bits >> 32 & 0xffff) + (int)(bits >> 48);
	return (float)((sum - 2 * 65535) * (SPREAD * 1.7320508 / 65536.0)); /* a uniform number's variance is 1/12: four make 1/3 */
}

static uint16_t bf16_of(float value)
{
	uint32_t bits;
	memcpy(&bits, &value, sizeof bits);
	return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* Rounds to nearest even; the magnitude is below 448, the largest of the type. */
static uint8_t e4m3_of(float value)
{
	uint32_t bits;
	memcpy(&bits, &value, sizeof bits);
	uint8_t sign = (uint8_t)(bits >> 24 & 0x80);
	float magnitude = fabsf(value);
	if (magnitude < 0x1p-6f) /* below the normal ones lie multiples of 2^-9 */
		return sign | (uint8_t)lrintf(magnitude * 512);
	bits &= 0x7fffffff;
	return sign | (uint8_t)(((bits + 0x7ffff + (bits >> 20 & 1)) >> 20) - ((127 - 7) << 3));
}

/* Plain types: one number. Quantised ones: random bytes, with scales such that weights come out at about the same spread. */
static void fill_floats(int kind, uint8_t *out, size_t count)
{
	const float middle = kind == NORM_KIND ? 1.0f : 0.0f, scale = (float)(SPREAD / E4M3_SPREAD);
	for (size_t i = 0; i < count; i++) {
		float value = kind == SCALE_KIND ? scale * (1.0f + deviate(i)) : middle + deviate(i);
		memcpy(out + i * sizeof value, &value, sizeof value);
	}
}

static void fill_short_floats(int kind, uint8_t *out, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		float value = deviate(i);
		uint16_t half = kind == DTYPE_F16 ? dtype_f32_to_f16(value) : bf16_of(value);
		if (kind == DTYPE_F8_E4M3)
			out[i] = e4m3_of(value * (float)(E4M3_SPREAD / SPREAD));
		else
			memcpy(out + i * sizeof half, &half, sizeof half);
	}
}

static void put_half(uint8_t *at, double value)
{
	uint16_t half = dtype_f32_to_f16((float)value);
	memcpy(at, &half, sizeof half);
}

/* Where a block's fp16 factors lie and what they must be: quants are uniform over their range (standard deviation 0.29 of its
 * width), and the second factor of types with a minimum shifts their middle to 0. K-quants have factors of factors: 6-bit ones of
 * 31.5 on average, or bytes. */
static void set_factors(int kind, uint8_t *block)
{
	switch (kind) {
	case DTYPE_Q8_0:
		put_half(block, SPREAD / (0.29 * 256));
		break;
	case DTYPE_Q4_0:
		put_half(block, SPREAD / (0.29 * 16));
		break;
	case DTYPE_Q4_1:
		put_half(block, SPREAD / (0.29 * 16));
		put_half(block + 2, -7.5 * SPREAD / (0.29 * 16));
		break;
	case DTYPE_Q4_K:
		put_half(block, SPREAD / (0.29 * 16 * 31.5));
		put_half(block + 2, 7.5 * SPREAD / (0.29 * 16 * 31.5));
		break;
	default: /* Q6_K: the factor is its last two bytes */
		put_half(block + 208, SPREAD / (0.29 * 64 * 73));
		break;
	}
}

static void fill_blocks(int kind, uint8_t *out, size_t bytes)
{
	size_t block = block_bytes_of(kind);
	for (size_t i = 0; i + sizeof(uint64_t) <= bytes; i += sizeof(uint64_t)) {
		uint64_t bits = hash64_mix(SEED + i);
		memcpy(out + i, &bits, sizeof bits);
	}
	for (size_t i = 0; i < bytes; i += block)
		set_factors(kind, out + i);
}

static size_t unit_of(int kind)
{
	size_t block = block_bytes_of(kind), a = block, b = PAGE;
	while (b != 0) { /* greatest common divisor, in a */
		size_t rest = a % b;
		a = b;
		b = rest;
	}
	return block / a * PAGE;
}

static enum status make_pool(int kind, struct pool *out, struct err *err)
{
	*out = (struct pool){.kind = kind, .fd = memfd_create("verdict-weights", MFD_CLOEXEC), .unit = unit_of(kind)};
	/* One unit less than a round number: rows of a matrix then fall on different places of the pool for a long time. */
	out->bytes = (POOL_BYTES / out->unit - 1) * out->unit;
	if (out->fd < 0)
		return err_set_errno(err, STATUS_NO_MEMORY, errno, "cannot make a memory file for random weights");
	void *memory = MAP_FAILED;
	if (ftruncate(out->fd, (off_t)out->bytes) == 0)
		memory = mmap(NULL, out->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, out->fd, 0);
	if (memory == MAP_FAILED)
		return err_set_errno(err, STATUS_NO_MEMORY, errno, "cannot map %zu bytes of random weights", out->bytes);
	if (dtype_block_elements(stored_type(kind)) > 1)
		fill_blocks(kind, memory, out->bytes);
	else if (stored_type(kind) == DTYPE_F32)
		fill_floats(kind, memory, out->bytes / block_bytes_of(kind));
	else
		fill_short_floats(kind, memory, out->bytes / block_bytes_of(kind));
	munmap(memory, out->bytes);
	return STATUS_OK;
}

static enum status find_pool(struct draft *draft, int kind, const struct pool **out, struct err *err)
{
	for (int i = 0; i < draft->n_pools; i++)
		if (draft->pools[i].kind == kind) {
			*out = &draft->pools[i];
			return STATUS_OK;
		}
	ASSERT(draft->n_pools < POOLS_MAX);
	struct pool *pool = &draft->pools[draft->n_pools++];
	*out = pool;
	return make_pool(kind, pool, err);
}

/* ---- directory ---- */

static void put(struct text *out, const void *bytes, size_t len)
{
	text_append(out, bytes, len);
}
static void put_u32(struct text *out, uint32_t value)
{
	put(out, &value, sizeof value);
}
static void put_u64(struct text *out, uint64_t value)
{
	put(out, &value, sizeof value);
}
static void put_string(struct text *out, const char *string)
{
	put_u64(out, strlen(string));
	text_append_str(out, string);
}

static void begin_value(struct draft *draft, const char *key, enum gguf_type type)
{
	put_string(&draft->head, key);
	put_u32(&draft->head, type);
	draft->n_values++;
}
static void add_string(struct draft *draft, const char *key, const char *value)
{
	begin_value(draft, key, GGUF_STRING);
	put_string(&draft->head, value);
}
static void add_u32(struct draft *draft, const char *key, int value)
{
	begin_value(draft, key, GGUF_U32);
	put_u32(&draft->head, (uint32_t)value);
}
static void add_f32(struct draft *draft, const char *key, double value)
{
	float single = (float)value;
	begin_value(draft, key, GGUF_F32);
	put(&draft->head, &single, sizeof single);
}

static void add_hyper_parameters(struct draft *draft)
{
	const struct shape *shape = &draft->shape;
	char name[SHAPE_NAME_BYTES + sizeof DUMMY_PREFIX];
	snprintf(name, sizeof name, DUMMY_PREFIX "%s", shape->name);
	add_string(draft, "general.architecture", "llama");
	add_string(draft, "general.name", name);
	add_u32(draft, "general.alignment", (int)PAGE);
	add_u32(draft, "llama.block_count", shape->n_layers);
	add_u32(draft, "llama.embedding_length", shape->hidden);
	add_u32(draft, "llama.feed_forward_length", shape->ffn);
	add_u32(draft, "llama.context_length", shape->context);
	add_u32(draft, "llama.attention.head_count", shape->n_heads);
	add_u32(draft, "llama.attention.head_count_kv", shape->n_kv_heads);
	add_u32(draft, "llama.attention.key_length", shape->head_dim);
	add_u32(draft, "llama.attention.value_length", shape->head_dim);
	add_f32(draft, "llama.attention.layer_norm_rms_epsilon", shape->norm_eps);
	add_f32(draft, "llama.rope.freq_base", shape->rope_base);
}

/* The 256 bytes in GPT-2's alphabet: printable characters of Latin-1 stand for themselves, the others follow from U+0100 on. */
static void byte_entry(int byte, int *next, char out[4])
{
	bool printable = (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
	int code_point = printable ? byte : (*next)++;
	if (code_point < 0x80)
		snprintf(out, 4, "%c", code_point);
	else
		snprintf(out, 4, "%c%c", 0xc0 | code_point >> 6, 0x80 | (code_point & 0x3f));
}

static void add_tokenizer(struct draft *draft)
{
	int next = 0x100;
	add_string(draft, "tokenizer.ggml.model", "gpt2");
	add_string(draft, "tokenizer.ggml.pre", "gpt-2");
	begin_value(draft, "tokenizer.ggml.tokens", GGUF_ARRAY);
	put_u32(&draft->head, GGUF_STRING);
	put_u64(&draft->head, (uint64_t)draft->shape.vocab);
	for (int id = 0; id < draft->shape.vocab; id++) {
		char entry[24];
		if (id < 256)
			byte_entry(id, &next, entry);
		else
			snprintf(entry, sizeof entry, "\xc4\xa0t%d", id); /* U+0120 stands for a blank */
		put_string(&draft->head, entry);
	}
	begin_value(draft, "tokenizer.ggml.merges", GGUF_ARRAY);
	put_u32(&draft->head, GGUF_STRING);
	put_u64(&draft->head, 0);
}

static enum status add_tensor(struct draft *draft, const char *name, int kind, int64_t rows, int64_t cols, struct err *err)
{
	struct tensor *tensor = &draft->tensors[draft->n_tensors++];
	enum dtype dtype = stored_type(kind);
	*tensor = (struct tensor){.kind = kind, .rows = rows, .cols = cols, .offset = draft->data_bytes};
	snprintf(tensor->name, sizeof tensor->name, "%s", name);
	if (!dtype_bytes(dtype, cols * (rows ? rows : 1), &tensor->bytes))
		return err_set(err, STATUS_INPUT, "tensor '%s' of [%lld, %lld] is no whole number of %s blocks", name,
			(long long)rows, (long long)cols, dtype_name(dtype));
	draft->data_bytes += (tensor->bytes + PAGE - 1) / PAGE * PAGE;
	put_string(&draft->entries, name);
	put_u32(&draft->entries, rows ? 2 : 1);
	put_u64(&draft->entries, (uint64_t)cols);
	if (rows)
		put_u64(&draft->entries, (uint64_t)rows);
	put_u32(&draft->entries, (uint32_t)dtype);
	put_u64(&draft->entries, tensor->offset);
	return STATUS_OK;
}

/* Rows of 8-bit floats have scales beside them. */
static enum status add_matrix(struct draft *draft, const char *name, int kind, int64_t rows, int64_t cols, struct err *err)
{
	char scales[64];
	snprintf(scales, sizeof scales, "%s_scale", name);
	enum status status = add_tensor(draft, name, kind, rows, cols, err);
	if (status == STATUS_OK && kind == DTYPE_F8_E4M3)
		status = add_tensor(draft, scales, SCALE_KIND, 0, rows, err);
	return status;
}

static enum status add_layer(struct draft *draft, int layer, struct err *err)
{
	const struct shape *shape = &draft->shape;
	int64_t hidden = shape->hidden, ffn = shape->ffn, q = (int64_t)shape->n_heads * shape->head_dim,
		kv = (int64_t)shape->n_kv_heads * shape->head_dim;
	int fine = shape_is_fine(shape, layer) ? (int)shape->value_dtype : (int)shape->dtype;
	const struct {
		const char *suffix;
		int kind;
		int64_t rows, cols;
	} list[] = {
		{"attn_norm", NORM_KIND, 0, hidden},
		{"attn_q", (int)shape->dtype, q, hidden},
		{"attn_k", (int)shape->dtype, kv, hidden},
		{"attn_v", fine, kv, hidden},
		{"attn_output", (int)shape->dtype, hidden, q},
		{"ffn_norm", NORM_KIND, 0, hidden},
		{"ffn_gate", (int)shape->dtype, ffn, hidden},
		{"ffn_up", (int)shape->dtype, ffn, hidden},
		{"ffn_down", fine, hidden, ffn},
	};
	enum status status = STATUS_OK;
	for (size_t i = 0; i < sizeof list / sizeof list[0] && status == STATUS_OK; i++) {
		char name[64];
		snprintf(name, sizeof name, "blk.%d.%s.weight", layer, list[i].suffix);
		status = add_matrix(draft, name, list[i].kind, list[i].rows, list[i].cols, err);
	}
	return status;
}

static enum status add_tensors(struct draft *draft, struct err *err)
{
	const struct shape *shape = &draft->shape;
	draft->tensors = mem_calloc((size_t)shape->n_layers * TENSORS_OF_LAYER_MAX + TENSORS_OF_ENDS_MAX, sizeof *draft->tensors);
	enum status status = add_tensor(draft, "token_embd.weight", (int)shape->embedding_dtype, shape->vocab, shape->hidden, err);
	for (int layer = 0; layer < shape->n_layers && status == STATUS_OK; layer++)
		status = add_layer(draft, layer, err);
	if (status == STATUS_OK)
		status = add_tensor(draft, "output_norm.weight", NORM_KIND, 0, shape->hidden, err);
	if (status == STATUS_OK && !shape->tied)
		status = add_matrix(draft, "output.weight", (int)shape->head_dtype, shape->vocab, shape->hidden, err);
	return status;
}

/* ---- the map ---- */

/* The whole directory, filled up to a page. */
static void finish_directory(struct draft *draft, struct text *out)
{
	text_append(out, "GGUF", 4);
	put_u32(out, 3);
	put_u64(out, draft->n_tensors);
	put_u64(out, draft->n_values);
	text_append(out, text_str(&draft->head), draft->head.len);
	text_append(out, text_str(&draft->entries), draft->entries.len);
	while (out->len % PAGE != 0)
		text_append_char(out, '\0');
}

#define STRIDE 1021 /* units between the beginnings of two tensors in a pool: a prime, so that few begin at the same place */

/* Shows the pool again and again over the bytes of tensor number idx, which begins at a place of its own. */
static enum status map_tensor(uint8_t *at, const struct tensor *tensor, uint64_t idx, const struct pool *pool, struct err *err)
{
	size_t bytes = (size_t)(tensor->bytes + PAGE - 1) / PAGE * PAGE, from = idx * STRIDE * pool->unit % pool->bytes;
	for (size_t done = 0, piece; done < bytes; done += piece, from = 0) {
		piece = pool->bytes - from;
		piece = bytes - done < piece ? bytes - done : piece;
		if (mmap(at + done, piece, PROT_READ, MAP_PRIVATE | MAP_FIXED, pool->fd, (off_t)from) == MAP_FAILED)
			return err_set_errno(err, STATUS_NO_MEMORY, errno, "cannot map tensor '%s'", tensor->name);
	}
	return STATUS_OK;
}

static enum status map_draft(struct draft *draft, struct file_map *out, struct err *err)
{
	struct text directory = {0};
	finish_directory(draft, &directory);
	size_t size = directory.len + (size_t)draft->data_bytes;
	uint8_t *base = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	enum status status = STATUS_OK;
	if (base == MAP_FAILED) {
		status = err_set_errno(err, STATUS_NO_MEMORY, errno, "cannot map %zu bytes", size);
	} else {
		memcpy(base, text_str(&directory), directory.len);
		*out = (struct file_map){.data = base, .size = size};
	}
	for (uint64_t i = 0; i < draft->n_tensors && status == STATUS_OK; i++) {
		const struct tensor *tensor = &draft->tensors[i];
		const struct pool *pool = NULL;
		status = find_pool(draft, tensor->kind, &pool, err);
		if (status == STATUS_OK)
			status = map_tensor(base + directory.len + tensor->offset, tensor, i, pool, err);
	}
	text_release(&directory);
	if (status != STATUS_OK)
		file_map_close(out);
	return status;
}

enum status dummy_map_open(const char *path, struct file_map *out, struct err *err)
{
	struct draft draft = {0};
	*out = (struct file_map){0};
	enum status status = shape_find(path + strlen(DUMMY_PREFIX), &draft.shape, err);
	if (status == STATUS_OK) {
		add_hyper_parameters(&draft);
		add_tokenizer(&draft);
		status = add_tensors(&draft, err);
	}
	if (status == STATUS_OK)
		status = map_draft(&draft, out, err);
	for (int i = 0; i < draft.n_pools; i++)
		if (draft.pools[i].fd >= 0)
			close(draft.pools[i].fd); /* the maps keep the memory */
	mem_free(draft.tensors);
	text_release(&draft.entries);
	text_release(&draft.head);
	return status;
}
