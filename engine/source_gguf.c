/* GGUF files as a source: which keys say what, what is refused by name. A key or tensor that would change the result and that the
 * forward pass does not know is an error, never ignored. Keys: ggml's docs/gguf.md and gguf-py's constants.py. */
#include "engine/source.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/text.h"

#define KEY_BYTES 128

static const struct gguf *gguf_of(const struct source *source)
{
	return source->self;
}

static void string_copy(struct gguf_string string, char *out, size_t out_bytes)
{
	size_t len = string.len < out_bytes - 1 ? string.len : out_bytes - 1;
	memcpy(out, string.data, len);
	out[len] = '\0';
}

/* Reads "<arch>.<suffix>" into *out, within [min, max]. An absent optional key leaves *out. */
static enum status read_int(const struct gguf *gguf, const struct model_config *config, const char *suffix, bool required, int min,
	int max, int *out, struct err *err)
{
	char key[KEY_BYTES];
	snprintf(key, sizeof key, "%s.%s", config->arch, suffix);
	const struct gguf_value *value = gguf_find(gguf, key);
	if (!value && !required)
		return STATUS_OK;
	if (value && value->type == GGUF_ARRAY)
		return err_set_code(
			err, STATUS_INPUT, "unsupported_model", "key '%s' has one value per layer, which is not supported", key);
	uint64_t number = 0;
	if (gguf_get_u64(gguf, key, required, &number, err) != STATUS_OK)
		return err->status;
	if (number < (uint64_t)min || number > (uint64_t)max)
		return err_set(err, STATUS_INPUT, "key '%s' is %llu, expected %d to %d", key, (unsigned long long)number, min, max);
	*out = (int)number;
	return STATUS_OK;
}

static enum status read_double(const struct gguf *gguf, const struct model_config *config, const char *suffix, bool required,
	double min, double max, double *out, struct err *err)
{
	char key[KEY_BYTES];
	snprintf(key, sizeof key, "%s.%s", config->arch, suffix);
	if (gguf_get_double(gguf, key, required, out, err) != STATUS_OK)
		return err->status;
	if (!(*out >= min && *out <= max))
		return err_set(err, STATUS_INPUT, "key '%s' is %g, expected %g to %g", key, *out, min, max);
	return STATUS_OK;
}

/* ---- architecture and hyper-parameters ---- */

/* Families that this engine computes, by general.architecture. */
static const struct family {
	const char *arch;
	int rope_interleaved; /* the converter permuted the rows of Q and K so that rotary pairs lie side by side */
	int has_qkv_bias, has_qk_norm;
} families[] = {
	{"llama", 1, 0, 0}, /* Llama, Mistral, SmolLM and others of that shape */
	{"qwen2", 0, 1, 0}, /* Qwen2, Qwen2.5 */
	{"qwen3", 0, 0, 1},
};

static enum status read_architecture(const struct gguf *gguf, struct model_config *out, struct err *err)
{
	struct gguf_string arch = {0}, name = {0};
	char text[80];
	const struct family *family = NULL;
	if (gguf_get_string(gguf, "general.architecture", true, &arch, err) != STATUS_OK)
		return err->status;
	for (size_t i = 0; i < sizeof families / sizeof families[0]; i++)
		if (gguf_string_equal(arch, families[i].arch))
			family = &families[i];
	if (!family)
		return err_set_code(err, STATUS_INPUT, "unsupported_model",
			"architecture '%s' is not supported; this engine runs: llama (Llama, Mistral, SmolLM and others of that "
			"shape), qwen2, qwen3",
			gguf_printable(arch, text, sizeof text));
	string_copy(arch, out->arch, sizeof out->arch);
	out->rope_interleaved = family->rope_interleaved;
	out->has_qkv_bias = family->has_qkv_bias;
	out->has_qk_norm = family->has_qk_norm;
	if (gguf_get_string(gguf, "general.name", false, &name, err) != STATUS_OK)
		return err->status;
	if (name.len)
		gguf_printable(name, out->name, sizeof out->name); /* goes to logs and answers */
	int experts = 0;
	if (read_int(gguf, out, "expert_count", false, 0, 1 << 16, &experts, err) != STATUS_OK)
		return err->status;
	if (experts > 0)
		return err_set_code(err, STATUS_INPUT, "unsupported_model",
			"the model is a mixture of %d experts, which is not supported; this engine runs dense models", experts);
	return STATUS_OK;
}

/* Keys under the architecture's name that are read here, or that say nothing about the computation. */
static bool key_is_known(struct gguf_string suffix)
{
	static const char *const known[] = {"block_count", "embedding_length", "feed_forward_length", "context_length",
		"vocab_size", "expert_count", "expert_used_count", "attention.head_count", "attention.head_count_kv",
		"attention.key_length", "attention.value_length", "attention.layer_norm_rms_epsilon", "attention.sliding_window",
		"attention.causal", "attention.scale", "rope.dimension_count", "rope.freq_base", "rope.scale_linear",
		"rope.scaling.type", "rope.scaling.factor", "rope.scaling.original_context_length", "rope.scaling.finetuned",
		"rope.scaling.attn_factor", "tensor_data_layout", "use_parallel_residual", "logit_scale"};
	for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
		if (gguf_string_equal(suffix, known[i]))
			return true;
	return false;
}

/* Keys that change the result unless they have this value. */
static enum status check_neutral_keys(const struct gguf *gguf, const struct model_config *config, struct err *err)
{
	const struct {
		const char *suffix;
		double neutral;
	} keys[] = {
		{"attention.scale", 1.0 / sqrt((double)config->head_dim)},
		{"rope.scaling.attn_factor", 1.0},
		{"logit_scale", 1.0},
	};
	static const struct {
		const char *suffix;
		bool neutral;
	} flags[] = {{"attention.causal", true}, {"use_parallel_residual", false}};
	char key[KEY_BYTES];
	for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
		double value = keys[i].neutral;
		snprintf(key, sizeof key, "%s.%s", config->arch, keys[i].suffix);
		if (gguf_get_double(gguf, key, false, &value, err) != STATUS_OK)
			return err->status;
		if (!(fabs(value - keys[i].neutral) <= 1e-6 * keys[i].neutral))
			return err_set_code(err, STATUS_INPUT, "unsupported_model", "key '%s' is %g, and only %g is supported", key,
				value, keys[i].neutral);
	}
	for (size_t i = 0; i < sizeof flags / sizeof flags[0]; i++) {
		bool value = flags[i].neutral;
		snprintf(key, sizeof key, "%s.%s", config->arch, flags[i].suffix);
		if (gguf_get_bool(gguf, key, false, &value, err) != STATUS_OK)
			return err->status;
		if (value != flags[i].neutral)
			return err_set_code(err, STATUS_INPUT, "unsupported_model", "key '%s' is %s, which is not supported", key,
				value ? "true" : "false");
	}
	return STATUS_OK;
}

static enum status refuse_unknown_keys(const struct gguf *gguf, const struct model_config *config, struct err *err)
{
	size_t prefix = strlen(config->arch);
	char text[80];
	for (size_t i = 0; i < gguf->n_values; i++) {
		struct gguf_string key = gguf->values[i].key;
		if (key.len <= prefix + 1 || memcmp(key.data, config->arch, prefix) != 0 || key.data[prefix] != '.')
			continue;
		if (!key_is_known((struct gguf_string){key.data + prefix + 1, key.len - prefix - 1}))
			return err_set_code(err, STATUS_INPUT, "unsupported_model",
				"key '%s' is not known; this engine would compute without it, so the file is refused",
				gguf_printable(key, text, sizeof text));
	}
	return STATUS_OK;
}

/* Where a head size that cannot be computed with comes from. */
static void name_head_dim(const struct gguf *gguf, struct model_config *out)
{
	char key[KEY_BYTES];
	snprintf(key, sizeof key, "%s.attention.key_length", out->arch);
	if (gguf_find(gguf, key))
		snprintf(out->head_dim_from, sizeof out->head_dim_from, "key '%s.attention.key_length'", out->arch);
	else
		snprintf(out->head_dim_from, sizeof out->head_dim_from, "embedding_length / attention.head_count");
}

static enum status read_heads(const struct gguf *gguf, struct model_config *out, struct err *err)
{
	if (read_int(gguf, out, "attention.head_count", true, 1, SOURCE_HEADS_MAX, &out->n_heads, err) != STATUS_OK)
		return err->status;
	out->n_kv_heads = out->n_heads;
	if (read_int(gguf, out, "attention.head_count_kv", false, 1, SOURCE_HEADS_MAX, &out->n_kv_heads, err) != STATUS_OK)
		return err->status;
	out->head_dim = out->hidden / out->n_heads;
	if (read_int(gguf, out, "attention.key_length", false, 2, MODEL_HEAD_DIM_MAX, &out->head_dim, err) != STATUS_OK)
		return err->status;
	name_head_dim(gguf, out);
	if (source_check_heads(out, err) != STATUS_OK)
		return err->status;
	int value_length = out->head_dim, rope_dims = out->head_dim, window = 0;
	if (read_int(gguf, out, "attention.value_length", false, 2, MODEL_HEAD_DIM_MAX, &value_length, err) != STATUS_OK ||
		read_int(gguf, out, "rope.dimension_count", false, 1, MODEL_HEAD_DIM_MAX, &rope_dims, err) != STATUS_OK ||
		read_int(gguf, out, "attention.sliding_window", false, 0, SOURCE_CONTEXT_MAX, &window, err) != STATUS_OK)
		return err->status;
	if (value_length != out->head_dim)
		return err_set_code(err, STATUS_INPUT, "unsupported_model",
			"values of size %d beside keys of size %d are not supported", value_length, out->head_dim);
	if (rope_dims != out->head_dim)
		return err_set_code(err, STATUS_INPUT, "unsupported_model",
			"rotary embedding of %d of %d dimensions is not supported", rope_dims, out->head_dim);
	/* Within its first `window` positions a model with a sliding window is one without. */
	if (window != 0 && window < out->context)
		out->context = out->window = window;
	return STATUS_OK;
}

/* Scaling is read or refused, never ignored: an ignored one passes short tests and fails at a few thousand tokens. */
static enum status read_rope(const struct gguf *gguf, struct model_config *out, struct err *err)
{
	out->rope_base = 10000.0;
	out->rope_scale = 1.0;
	if (read_double(gguf, out, "rope.freq_base", false, 1.0, 1e12, &out->rope_base, err) != STATUS_OK)
		return err->status;
	struct gguf_string kind = {0};
	char text[80], key[KEY_BYTES];
	snprintf(key, sizeof key, "%s.rope.scaling.type", out->arch);
	if (gguf_get_string(gguf, key, false, &kind, err) != STATUS_OK)
		return err->status;
	bool none = kind.len == 0 || gguf_string_equal(kind, "none");
	if (!none && !gguf_string_equal(kind, "linear"))
		return err_set_code(err, STATUS_INPUT, "unsupported_model",
			"rope scaling '%s' is not supported; known: none, linear, and llama3 by its tensor rope_freqs.weight",
			gguf_printable(kind, text, sizeof text));
	if (!none)
		return read_double(gguf, out, "rope.scaling.factor", true, 1.0, 1e6, &out->rope_scale, err);
	/* Older files wrote linear scaling as a key of its own. */
	return read_double(gguf, out, "rope.scale_linear", false, 1.0, 1e6, &out->rope_scale, err);
}

static enum status read_hyper_parameters(const struct gguf *gguf, struct model_config *out, struct err *err)
{
	double eps = 0;
	if (read_int(gguf, out, "block_count", true, 1, SOURCE_LAYERS_MAX, &out->n_layers, err) != STATUS_OK ||
		read_int(gguf, out, "embedding_length", true, 1, SOURCE_HIDDEN_MAX, &out->hidden, err) != STATUS_OK ||
		read_int(gguf, out, "feed_forward_length", true, 1, SOURCE_FFN_MAX, &out->ffn, err) != STATUS_OK ||
		read_int(gguf, out, "context_length", true, 1, SOURCE_CONTEXT_MAX, &out->context, err) != STATUS_OK ||
		read_double(gguf, out, "attention.layer_norm_rms_epsilon", true, 0.0, 1.0, &eps, err) != STATUS_OK ||
		read_heads(gguf, out, err) != STATUS_OK || read_rope(gguf, out, err) != STATUS_OK ||
		check_neutral_keys(gguf, out, err) != STATUS_OK)
		return err->status;
	out->norm_eps = (float)eps;
	return STATUS_OK;
}

/* ---- tensors ---- */

static const struct source_names names = {
	.layer_prefix = "blk.",
	.parts =
		{
			[MODEL_ATTENTION_NORM] = "attn_norm.weight",
			[MODEL_Q] = "attn_q.weight",
			[MODEL_K] = "attn_k.weight",
			[MODEL_V] = "attn_v.weight",
			[MODEL_Q_BIAS] = "attn_q.bias",
			[MODEL_K_BIAS] = "attn_k.bias",
			[MODEL_V_BIAS] = "attn_v.bias",
			[MODEL_Q_NORM] = "attn_q_norm.weight",
			[MODEL_K_NORM] = "attn_k_norm.weight",
			[MODEL_ATTENTION_OUTPUT] = "attn_output.weight",
			[MODEL_FFN_NORM] = "ffn_norm.weight",
			[MODEL_GATE] = "ffn_gate.weight",
			[MODEL_UP] = "ffn_up.weight",
			[MODEL_DOWN] = "ffn_down.weight",
			[MODEL_EMBEDDING] = "token_embd.weight",
			[MODEL_OUTPUT_NORM] = "output_norm.weight",
			[MODEL_OUTPUT] = "output.weight",
		},
};
#define ROPE_FACTORS "rope_freqs.weight"

static bool find_named(const struct gguf *gguf, const char *name, struct model_tensor *out)
{
	const struct gguf_tensor *tensor = gguf_find_tensor(gguf, name);
	if (!tensor)
		return false;
	*out = (struct model_tensor){
		.type = gguf_tensor_type_name((uint32_t)tensor->dtype),
		.dtype = tensor->dtype,
		.n_dims = tensor->n_dims,
		.data = tensor->data,
	};
	for (int d = 0; d < tensor->n_dims; d++)
		out->dims[d] = tensor->dims[tensor->n_dims - 1 - d];
	return true;
}

/* Models made up have one scale for each row of 8-bit floats. */
#define SCALES_SUFFIX "_scale"
static bool find_scales(const struct gguf *gguf, const char *name, struct model_tensor *out)
{
	char full[SOURCE_NAME_BYTES + sizeof SCALES_SUFFIX];
	struct model_tensor scales;
	snprintf(full, sizeof full, "%s" SCALES_SUFFIX, name);
	if (!find_named(gguf, full, &scales))
		return false;
	out->scales = scales.data;
	out->scale_rows = 1;
	out->scale_cols = model_tensor_cols(out);
	return true;
}

static bool are_scales(const struct gguf *gguf, struct gguf_string name)
{
	size_t tail = sizeof SCALES_SUFFIX - 1;
	return gguf->made_up && name.len > tail && memcmp(name.data + name.len - tail, SCALES_SUFFIX, tail) == 0;
}

static bool find(const struct source *source, int layer, enum model_part part, struct model_tensor *out)
{
	char name[SOURCE_NAME_BYTES];
	source_name_part(&names, layer, part, name);
	return find_named(gguf_of(source), name, out) && (out->dtype != DTYPE_F8_E4M3 || find_scales(gguf_of(source), name, out));
}

/* llama3 scaling: one divisor for each frequency. */
static enum status read_rope_factors(const struct gguf *gguf, struct model_config *out, struct err *err)
{
	struct model_tensor factors;
	if (!find_named(gguf, ROPE_FACTORS, &factors))
		return STATUS_OK;
	if (source_check_tensor(ROPE_FACTORS, &factors, 0, out->head_dim / 2, err) != STATUS_OK)
		return err->status;
	if (factors.dtype != DTYPE_F32)
		return err_set(err, STATUS_INPUT, "tensor '%s' has type %s, expected F32", ROPE_FACTORS, dtype_name(factors.dtype));
	for (int i = 0; i < out->head_dim / 2; i++) {
		float factor; /* the tensor may be unaligned */
		memcpy(&factor, (const char *)factors.data + (size_t)i * sizeof factor, sizeof factor);
		out->rope_factors[i] = factor;
		if (!(factor > 0 && factor <= 1e6f))
			return err_set(err, STATUS_INPUT, "tensor '%s' element %d is %g, expected a positive number", ROPE_FACTORS,
				i, (double)factor);
	}
	out->has_rope_factors = 1;
	return STATUS_OK;
}

static enum status read_vocab(const struct source *source, struct model_config *out, struct err *err)
{
	struct model_tensor tensor;
	if (!find(source, -1, MODEL_EMBEDDING, &tensor))
		return err_set(err, STATUS_INPUT, "tensor '%s' is missing", names.parts[MODEL_EMBEDDING]);
	int64_t vocab = model_tensor_rows(&tensor);
	if (vocab < 1 || vocab > SOURCE_VOCAB_MAX)
		return err_set(err, STATUS_INPUT, "tensor '%s' has %lld rows, expected 1 to %d", names.parts[MODEL_EMBEDDING],
			(long long)vocab, SOURCE_VOCAB_MAX);
	out->vocab = (int)vocab;
	out->tied_head = !find(source, -1, MODEL_OUTPUT, &tensor);
	const struct gguf_value *tokens = gguf_find(gguf_of(source), "tokenizer.ggml.tokens");
	if (tokens && tokens->count != (uint64_t)vocab)
		return err_set(err, STATUS_INPUT, "the tokenizer has %llu tokens, but tensor '%s' has %lld rows",
			(unsigned long long)tokens->count, names.parts[MODEL_EMBEDDING], (long long)vocab);
	return STATUS_OK;
}

static enum status read_config(const struct source *source, struct model_config *out, struct err *err)
{
	const struct gguf *gguf = gguf_of(source);
	if (read_architecture(gguf, out, err) != STATUS_OK || read_hyper_parameters(gguf, out, err) != STATUS_OK ||
		read_vocab(source, out, err) != STATUS_OK || read_rope_factors(gguf, out, err) != STATUS_OK)
		return err->status;
	return refuse_unknown_keys(gguf, out, err);
}

/* A bias or an extra norm that the forward pass does not know would make wrong text that looks plausible. */
static enum status refuse_unknown(const struct source *source, const struct model_config *config, struct err *err)
{
	const struct gguf *gguf = gguf_of(source);
	char text[SOURCE_NAME_BYTES];
	for (size_t i = 0; i < gguf->n_tensors; i++) {
		struct gguf_string name = gguf->tensors[i].name;
		if (!gguf_string_equal(name, ROPE_FACTORS) && !are_scales(gguf, name) &&
			!source_name_is_known(&names, config, name.data, name.len))
			return err_set_code(err, STATUS_INPUT, "unsupported_model",
				"tensor '%s' is not part of a dense %s model; this engine would compute without it, so the file is "
				"refused",
				gguf_printable(name, text, sizeof text), config->arch);
	}
	return STATUS_OK;
}

static enum status read_tokenizer(const struct source *source, const char *pre, struct tokenizer_spec *out, struct err *err)
{
	return tokenizer_spec_gguf(gguf_of(source), pre, out, err);
}

static enum status chat_template(const struct source *source, struct gguf_string *out, struct err *err)
{
	*out = (struct gguf_string){0};
	return gguf_get_string(gguf_of(source), "tokenizer.chat_template", false, out, err);
}

/* ---- opening ---- */

static void close_source(struct source *source)
{
	gguf_close(source->self);
	mem_free(source->self);
}

static const struct source_ops ops = {
	.name = "gguf",
	.read_config = read_config,
	.names = &names,
	.find = find,
	.refuse_unknown = refuse_unknown,
	.read_tokenizer = read_tokenizer,
	.chat_template = chat_template,
	.close = close_source,
};

/* Takes gguf, which is open when status says so. */
static enum status adopt(enum status status, struct gguf *gguf, struct source *out)
{
	*out = (struct source){0};
	if (status != STATUS_OK) {
		mem_free(gguf);
		return status;
	}
	*out = (struct source){.ops = &ops, .self = gguf, .bytes = gguf->map.size};
	return STATUS_OK;
}

enum status source_gguf_open(const char *path, struct source *out, struct err *err)
{
	struct gguf *gguf = mem_calloc(1, sizeof *gguf);
	return adopt(gguf_open(path, gguf, err), gguf, out);
}

enum status source_open_bytes(const uint8_t *bytes, size_t size, const char *name, struct source *out, struct err *err)
{
	struct gguf *gguf = mem_calloc(1, sizeof *gguf);
	return adopt(gguf_open_bytes(bytes, size, name, gguf, err), gguf, out);
}

const struct gguf *source_gguf(const struct source *source)
{
	return source->ops == &ops ? gguf_of(source) : NULL;
}
