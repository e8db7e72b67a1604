/* Random small models: hyper-parameters, tokenizer, tensors. Quantised blocks are drawn directly in their stored form, so
 * every bit pattern of quants and scales occurs. */
#include "tests/support/tiny_gguf.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/mem.h"
#include "base/random.h"
#include "base/utf8.h"

#define N_CONTROL 3
#define N_LETTERS 26

static const char chat_template[] =
	"{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\n"
	"You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}{% endif %}{{'<|im_start|>' + "
	"message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}"
	"{{ '<|im_start|>assistant\n' }}{% endif %}";

struct tiny_model tiny_model_default(void)
{
	return (struct tiny_model){
		.n_layers = 2,
		.hidden = 64,
		.ffn = 128,
		.n_heads = 4,
		.n_kv_heads = 2,
		.head_dim = 16,
		.context = 256,
		.vocab = 288,
		.rope_base = 10000,
		.dtype = DTYPE_F32,
		.value_dtype = DTYPE_F32,
		.embedding_dtype = DTYPE_F32,
		.chat_template = true,
		.seed = 1,
	};
}

/* ---- values ---- */

static bool left_out(const struct tiny_model *model, const char *name)
{
	return (model->without_key && strcmp(model->without_key, name) == 0) ||
		(model->without_tensor && strcmp(model->without_tensor, name) == 0);
}

/* Files are made with the keys of llama; those of other families differ in the first word. out: as long as any key. */
static const char *family_key(const struct tiny_model *model, const char *key, char out[64])
{
	bool other = model->architecture && strncmp(key, "llama.", 6) == 0;
	snprintf(out, 64, "%s%s", other ? model->architecture : "", other ? key + 5 : key);
	return out;
}

static void put_u32(const struct tiny_model *model, struct gguf_build *build, const char *key, int value)
{
	char text[64];
	if (!left_out(model, key))
		gguf_build_u32(build, family_key(model, key, text), (uint32_t)value);
}

static void put_f32(const struct tiny_model *model, struct gguf_build *build, const char *key, double value)
{
	char text[64];
	if (!left_out(model, key))
		gguf_build_f32(build, family_key(model, key, text), (float)value);
}

static void put_hyper_parameters(const struct tiny_model *model, struct gguf_build *build)
{
	if (!left_out(model, "general.architecture"))
		gguf_build_string(build, "general.architecture", model->architecture ? model->architecture : "llama");
	gguf_build_string(build, "general.name", "tiny");
	put_u32(model, build, "llama.block_count", model->n_layers);
	put_u32(model, build, "llama.context_length", model->context);
	put_u32(model, build, "llama.embedding_length", model->hidden);
	put_u32(model, build, "llama.feed_forward_length", model->ffn);
	put_u32(model, build, "llama.attention.head_count", model->n_heads);
	put_u32(model, build, "llama.attention.head_count_kv", model->n_kv_heads);
	put_u32(model, build, "llama.attention.key_length", model->head_dim);
	put_u32(model, build, "llama.attention.value_length", model->head_dim);
	put_u32(model, build, "llama.rope.dimension_count", model->head_dim);
	put_f32(model, build, "llama.rope.freq_base", model->rope_base);
	put_f32(model, build, "llama.attention.layer_norm_rms_epsilon", 1e-5);
	put_u32(model, build, "llama.vocab_size", model->vocab);
	if (model->experts)
		put_u32(model, build, "llama.expert_count", model->experts);
	if (model->sliding_window)
		put_u32(model, build, "llama.attention.sliding_window", model->sliding_window);
	if (model->extra_key)
		put_f32(model, build, model->extra_key, model->extra_value);
	char key[64];
	if (model->rope_scaling) {
		gguf_build_string(build, family_key(model, "llama.rope.scaling.type", key), model->rope_scaling);
		put_f32(model, build, "llama.rope.scaling.factor", 2.0);
	}
}

/* ---- tokenizer ---- */

/* GPT-2's printable stand-in for a byte: printable bytes are themselves, the others follow U+0100 in order. */
static uint32_t stand_in(int byte)
{
	uint32_t next = 0x100;
	for (int b = 0; b < 256; b++) {
		bool printable = (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
		uint32_t code_point = printable ? (uint32_t)b : next++;
		if (b == byte)
			return code_point;
	}
	return 0;
}

static void put_tokenizer(const struct tiny_model *model, struct gguf_build *build)
{
	int n_merges = model->vocab - N_CONTROL - 256;
	char(*tokens)[16] = mem_calloc((size_t)model->vocab, sizeof *tokens);
	char(*merges)[16] = mem_calloc((size_t)n_merges + 1, sizeof *merges);
	int32_t *types = mem_calloc((size_t)model->vocab, sizeof *types);
	static const char *const control[N_CONTROL] = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"};
	for (int i = 0; i < model->vocab; i++) {
		types[i] = i < N_CONTROL ? 3 /* control */ : 1 /* normal */;
		if (i < N_CONTROL) {
			snprintf(tokens[i], sizeof tokens[i], "%s", control[i]);
		} else if (i < N_CONTROL + 256) {
			utf8_encode(stand_in(i - N_CONTROL), tokens[i]);
		} else {
			int pair = i - N_CONTROL - 256;
			char first = (char)('a' + pair / N_LETTERS), second = (char)('a' + pair % N_LETTERS);
			snprintf(tokens[i], sizeof tokens[i], "%c%c", first, second);
			snprintf(merges[pair], sizeof merges[pair], "%c %c", first, second);
		}
	}
	const char **list = mem_calloc((size_t)model->vocab, sizeof *list);
	for (int i = 0; i < model->vocab; i++)
		list[i] = tokens[i];
	gguf_build_string(build, "tokenizer.ggml.model", "gpt2");
	if (!left_out(model, "tokenizer.ggml.pre"))
		gguf_build_string(build, "tokenizer.ggml.pre", model->pre ? model->pre : "smollm");
	gguf_build_strings(build, "tokenizer.ggml.tokens", list, (size_t)model->vocab);
	gguf_build_i32s(build, "tokenizer.ggml.token_type", types, (size_t)model->vocab);
	for (int i = 0; i < n_merges; i++)
		list[i] = merges[i];
	gguf_build_strings(build, "tokenizer.ggml.merges", list, (size_t)n_merges);
	put_u32(model, build, "tokenizer.ggml.bos_token_id", 1);
	put_u32(model, build, "tokenizer.ggml.eos_token_id", 2);
	if (model->chat_template)
		gguf_build_string(
			build, "tokenizer.chat_template", model->broken_template ? model->broken_template : chat_template);
	mem_free(list);
	mem_free(types);
	mem_free(merges);
	mem_free(tokens);
}

/* ---- tensors ---- */

static void put_f16(uint8_t *at, double value)
{
	uint16_t bits = dtype_f32_to_f16((float)value);
	memcpy(at, &bits, sizeof bits);
}

/* Scales of one block whose other bytes are random: about spread around 0. */
static void set_scales(enum dtype dtype, uint8_t *block, double spread, double sign)
{
	switch (dtype) {
	case DTYPE_Q8_0: /* d, 32 int8 with a deviation of 74 */
		put_f16(block, sign * spread / 74);
		break;
	case DTYPE_Q4_0: /* d, 32 of 0..15 less 8, with a deviation of 4.6 */
		put_f16(block, sign * spread / 4.6);
		break;
	case DTYPE_Q4_1: /* d, m: values d * q + m with q in 0..15 */
		put_f16(block, spread / 4.6);
		put_f16(block + 2, -7.5 * spread / 4.6);
		break;
	case DTYPE_Q4_K: /* d, dmin, 6-bit scales and mins: d * scale * q - dmin * min, means of 31.5 */
		put_f16(block, spread / (4.6 * 31.5));
		put_f16(block + 2, 7.5 * spread / (4.6 * 31.5));
		break;
	case DTYPE_Q6_K: /* 64 quants groups, int8 scales, d last: deviations of 18.5 and 74 */
		put_f16(block + 208, sign * spread / (18.5 * 74));
		break;
	default:
		break;
	}
}

uint8_t *tiny_random_blocks(enum dtype dtype, int64_t n_elements, double spread, uint64_t seed, uint64_t stream, size_t *bytes)
{
	uint64_t total = 0;
	assert_true(dtype_bytes(dtype, n_elements, &total));
	uint8_t *blocks = mem_calloc((size_t)total, 1);
	*bytes = (size_t)total;
	int64_t block_elements = dtype_block_elements(dtype), block_bytes = dtype_block_bytes(dtype);
	for (int64_t i = 0; block_elements == 1 && i < n_elements; i++) {
		float value = (float)(spread * random_normal(seed, stream, (uint64_t)i));
		uint16_t half = dtype_f32_to_f16(value);
		uint32_t bits;
		memcpy(&bits, &value, sizeof bits);
		uint16_t brain = (uint16_t)(bits >> 16);
		const void *source = dtype == DTYPE_F32 ? (const void *)&value : dtype == DTYPE_F16 ? (const void *)&half : &brain;
		memcpy(blocks + i * block_bytes, source, (size_t)block_bytes);
	}
	for (int64_t i = 0; block_elements > 1 && i < (int64_t)total; i++)
		blocks[i] = (uint8_t)random_below(seed, stream, (uint64_t)i, 256);
	for (int64_t block = 0; block_elements > 1 && block < n_elements / block_elements; block++) {
		double sign = random_uniform(seed, stream + 1, (uint64_t)block) < 0.5 ? -1 : 1;
		set_scales(dtype, blocks + block * block_bytes,
			spread * (0.7 + 0.6 * random_uniform(seed, stream + 2, (uint64_t)block)), sign);
	}
	return blocks;
}

/* Streams of random numbers are three apart, since a tensor uses three. */
static void put_matrix(const struct tiny_model *model, struct gguf_build *build, const char *name, enum dtype dtype, int rows,
	int cols, double gain, uint64_t stream)
{
	if (left_out(model, name))
		return;
	if (model->narrow_tensor && strcmp(model->narrow_tensor, name) == 0)
		cols /= 2;
	size_t bytes;
	uint8_t *data = tiny_random_blocks(dtype, (int64_t)rows * cols, gain / sqrt(cols), model->seed, 3 * stream, &bytes);
	const int64_t dims[2] = {cols, rows};
	gguf_build_tensor(build, name, (uint32_t)dtype, 2, dims, data, bytes);
	mem_free(data);
}

static void put_vector(
	const struct tiny_model *model, struct gguf_build *build, const char *name, int count, double spread, uint64_t stream)
{
	if (left_out(model, name))
		return;
	float *values = mem_calloc((size_t)count, sizeof *values);
	for (int i = 0; i < count; i++)
		values[i] = (float)(1.0 + spread * random_uniform(model->seed, 3 * stream, (uint64_t)i));
	const int64_t dims[1] = {count};
	gguf_build_tensor(build, name, DTYPE_F32, 1, dims, values, (size_t)count * sizeof *values);
	mem_free(values);
}

static void put_layer(const struct tiny_model *model, struct gguf_build *build, int layer)
{
	const struct {
		const char *suffix;
		enum dtype dtype;
		int rows, cols;
		double gain;
	} matrices[] = {
		{"attn_q", model->dtype, model->n_heads * model->head_dim, model->hidden, 1.5},
		{"attn_k", model->dtype, model->n_kv_heads * model->head_dim, model->hidden, 1.5},
		{"attn_v", model->value_dtype, model->n_kv_heads * model->head_dim, model->hidden, 1.5},
		{"attn_output", model->dtype, model->hidden, model->n_heads * model->head_dim, 1.0},
		{"ffn_gate", model->dtype, model->ffn, model->hidden, 1.5},
		{"ffn_up", model->dtype, model->ffn, model->hidden, 1.5},
		{"ffn_down", model->value_dtype, model->hidden, model->ffn, 1.0},
	};
	uint64_t stream = 100 + 16 * (uint64_t)layer;
	char name[64];
	snprintf(name, sizeof name, "blk.%d.attn_norm.weight", layer);
	put_vector(model, build, name, model->hidden, 0.2, stream++);
	snprintf(name, sizeof name, "blk.%d.ffn_norm.weight", layer);
	put_vector(model, build, name, model->hidden, 0.2, stream++);
	const struct {
		const char *architecture, *suffix;
		int count;
	} vectors[] = {
		{"qwen2", "attn_q.bias", model->n_heads * model->head_dim},
		{"qwen2", "attn_k.bias", model->n_kv_heads * model->head_dim},
		{"qwen2", "attn_v.bias", model->n_kv_heads * model->head_dim},
		{"qwen3", "attn_q_norm.weight", model->head_dim},
		{"qwen3", "attn_k_norm.weight", model->head_dim},
	};
	for (size_t i = 0; i < sizeof vectors / sizeof vectors[0]; i++) {
		snprintf(name, sizeof name, "blk.%d.%s", layer, vectors[i].suffix);
		if (model->architecture && strcmp(model->architecture, vectors[i].architecture) == 0)
			put_vector(model, build, name, vectors[i].count, 0.5, stream + 9 + i);
	}
	for (size_t i = 0; i < sizeof matrices / sizeof matrices[0]; i++) {
		snprintf(name, sizeof name, "blk.%d.%s.weight", layer, matrices[i].suffix);
		put_matrix(model, build, name, matrices[i].dtype, matrices[i].rows, matrices[i].cols, matrices[i].gain, stream++);
	}
}

static void put_tensors(const struct tiny_model *model, struct gguf_build *build)
{
	put_matrix(model, build, "token_embd.weight", model->embedding_dtype, model->vocab, model->hidden, sqrt(model->hidden), 1);
	for (int layer = 0; layer < model->n_layers; layer++)
		put_layer(model, build, layer);
	put_vector(model, build, "output_norm.weight", model->hidden, 0.2, 2);
	if (!model->tied)
		put_matrix(model, build, "output.weight", model->embedding_dtype, model->vocab, model->hidden, 3.0, 3);
	if (model->rope_factors)
		put_vector(model, build, "rope_freqs.weight", model->head_dim / 2, 7.0, 4);
	if (model->extra_tensor)
		put_vector(model, build, model->extra_tensor, model->hidden, 0.2, 5);
}

void tiny_model_write(const struct tiny_model *model, const char *path)
{
	assert_in_range(model->vocab, N_CONTROL + 256, N_CONTROL + 256 + N_LETTERS * N_LETTERS);
	struct gguf_build build = {0};
	put_hyper_parameters(model, &build);
	put_tokenizer(model, &build);
	put_tensors(model, &build);
	gguf_build_write(&build, path);
}

void tiny_model_write_temp(const struct tiny_model *model, char path[TINY_PATH_BYTES])
{
	snprintf(path, TINY_PATH_BYTES, "/tmp/verdict-tiny-XXXXXX");
	int fd = mkstemp(path);
	assert_true(fd >= 0);
	close(fd);
	tiny_model_write(model, path);
}
