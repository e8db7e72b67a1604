/* Writes GGUF files from folders. Of Llama and Mistral the rows of Q and K are dealt so that rotary pairs lie side by side. */
#include "tests/support/gguf_twin.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/mem.h"
#include "engine/source.h"
#include "tests/support/gguf_build.h"

static const char *arch_of(const struct model_config *config)
{
	return config->has_qk_norm ? "qwen3" : config->has_qkv_bias ? "qwen2" : "llama";
}

static void put_keys(const struct model_config *config, struct gguf_build *build)
{
	const struct {
		const char *suffix;
		int value;
	} numbers[] = {
		{"block_count", config->n_layers},
		{"context_length", config->context},
		{"embedding_length", config->hidden},
		{"feed_forward_length", config->ffn},
		{"attention.head_count", config->n_heads},
		{"attention.head_count_kv", config->n_kv_heads},
		{"attention.key_length", config->head_dim},
		{"attention.value_length", config->head_dim},
		{"rope.dimension_count", config->head_dim},
		{"vocab_size", config->vocab},
	};
	char key[96];
	gguf_build_string(build, "general.architecture", arch_of(config));
	for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
		snprintf(key, sizeof key, "%s.%s", arch_of(config), numbers[i].suffix);
		gguf_build_u32(build, key, (uint32_t)numbers[i].value);
	}
	snprintf(key, sizeof key, "%s.rope.freq_base", arch_of(config));
	gguf_build_f32(build, key, (float)config->rope_base);
	snprintf(key, sizeof key, "%s.attention.layer_norm_rms_epsilon", arch_of(config));
	gguf_build_f32(build, key, config->norm_eps);
	if (config->rope_scale == 1)
		return;
	snprintf(key, sizeof key, "%s.rope.scaling.type", arch_of(config));
	gguf_build_string(build, key, "linear");
	snprintf(key, sizeof key, "%s.rope.scaling.factor", arch_of(config));
	gguf_build_f32(build, key, (float)config->rope_scale);
}

/* Row 2i of a head becomes row i of the first half, row 2i + 1 row i of the second. */
static uint8_t *permuted(const struct model_tensor *tensor, int head_dim, size_t bytes)
{
	size_t row_bytes = bytes / (size_t)model_tensor_rows(tensor);
	uint8_t *out = mem_calloc(bytes, 1);
	for (int64_t row = 0; row < model_tensor_rows(tensor); row++) {
		int64_t head = row / head_dim, within = row % head_dim;
		int64_t from = head * head_dim + within / 2 + (within % 2) * (head_dim / 2);
		memcpy(out + (size_t)row * row_bytes, (const uint8_t *)tensor->data + (size_t)from * row_bytes, row_bytes);
	}
	return out;
}

/* Where a file is made. */
struct twin {
	const struct source *source;
	const struct model_config *config;
	bool as_f32;
	struct gguf_build *build;
};

static void put_tensor(const struct twin *twin, const char *name, const struct model_tensor *tensor, const void *data, size_t bytes)
{
	int64_t dims[2] = {model_tensor_cols(tensor), model_tensor_rows(tensor)}, elements = dims[0] * dims[1];
	if (!twin->as_f32) {
		gguf_build_tensor(twin->build, name, (uint32_t)tensor->dtype, tensor->n_dims, dims, data, bytes);
		return;
	}
	float *values = mem_calloc((size_t)elements, sizeof *values);
	dtype_dequantize(tensor->dtype, data, values, elements);
	gguf_build_tensor(twin->build, name, DTYPE_F32, tensor->n_dims, dims, values, (size_t)elements * sizeof *values);
	mem_free(values);
}

static void put_part(const struct twin *twin, int layer, enum model_part part)
{
	static const char *const parts[MODEL_PARTS] = {"attn_norm.weight", "attn_q.weight", "attn_k.weight", "attn_v.weight",
		"attn_q.bias", "attn_k.bias", "attn_v.bias", "attn_q_norm.weight", "attn_k_norm.weight", "attn_output.weight",
		"ffn_norm.weight", "ffn_gate.weight", "ffn_up.weight", "ffn_down.weight", "token_embd.weight", "output_norm.weight",
		"output.weight"};
	const struct model_config *config = twin->config;
	struct model_tensor tensor;
	char name[96];
	uint64_t bytes;
	if (!model_has_part(config, part))
		return;
	assert_true(twin->source->ops->find(twin->source, layer, part, &tensor));
	assert_true(dtype_bytes(tensor.dtype, model_tensor_rows(&tensor) * model_tensor_cols(&tensor), &bytes));
	if (part < MODEL_LAYER_PARTS)
		snprintf(name, sizeof name, "blk.%d.%s", layer, parts[part]);
	else
		snprintf(name, sizeof name, "%s", parts[part]);
	bool permutes = strcmp(arch_of(config), "llama") == 0 && (part == MODEL_Q || part == MODEL_K);
	uint8_t *copy = permutes ? permuted(&tensor, config->head_dim, (size_t)bytes) : NULL;
	put_tensor(twin, name, &tensor, copy ? copy : tensor.data, (size_t)bytes);
	mem_free(copy);
}

/* Bytes of a value as they lie in a file, from its type's own number on for arrays. */
static size_t value_bytes(const struct gguf_value *value)
{
	bool is_array = value->type == GGUF_ARRAY;
	enum gguf_type type = is_array ? value->element_type : value->type;
	const uint8_t *cursor = value->bytes;
	if (type != GGUF_STRING)
		return (size_t)value->count * gguf_type_bytes(type);
	for (uint64_t i = 0; i < value->count; i++)
		(void)gguf_next_string(&cursor);
	return (size_t)(cursor - value->bytes);
}

static void put_tokenizer(const char *path, struct gguf_build *build)
{
	struct gguf gguf;
	struct err err = {0};
	if (gguf_open(path, &gguf, &err) != STATUS_OK)
		fail_msg("%s", err.text);
	for (size_t i = 0; i < gguf.n_values; i++) {
		const struct gguf_value *value = &gguf.values[i];
		struct text key = {0}, bytes = {0};
		text_append(&key, value->key.data, value->key.len);
		if (value->type == GGUF_ARRAY) {
			text_append(&bytes, (const char *)&(uint32_t){value->element_type}, sizeof(uint32_t));
			text_append(&bytes, (const char *)&value->count, sizeof value->count);
		}
		text_append(&bytes, (const char *)value->bytes, value_bytes(value));
		if (text_starts_with(text_str(&key), "tokenizer."))
			gguf_build_raw(build, text_str(&key), value->type, bytes.data, bytes.len);
		text_release(&key);
		text_release(&bytes);
	}
	gguf_close(&gguf);
}

void gguf_twin_write(const char *folder, bool as_f32, const char *path)
{
	struct source source;
	struct model_config config;
	struct err err = {0};
	struct gguf_build build = {0};
	if (source_open(folder, &source, &err) != STATUS_OK || model_config_read(&source, &config, &err) != STATUS_OK)
		fail_msg("%s", err.text);
	const struct twin twin = {.source = &source, .config = &config, .as_f32 = as_f32, .build = &build};
	put_keys(&config, &build);
	char vocabulary[256];
	snprintf(vocabulary, sizeof vocabulary, "%s/vocabulary.gguf", folder);
	if (access(vocabulary, R_OK) == 0)
		put_tokenizer(vocabulary, &build);
	for (int part = MODEL_LAYER_PARTS; part < MODEL_PARTS; part++)
		put_part(&twin, -1, (enum model_part)part);
	for (int layer = 0; layer < config.n_layers; layer++)
		for (int part = 0; part < MODEL_LAYER_PARTS; part++)
			put_part(&twin, layer, (enum model_part)part);
	const int64_t dims[1] = {config.head_dim / 2};
	if (config.has_rope_factors)
		gguf_build_tensor(&build, "rope_freqs.weight", DTYPE_F32, 1, dims, config.rope_factors,
			(size_t)dims[0] * sizeof config.rope_factors[0]);
	gguf_build_write(&build, path);
	source_close(&source);
}
