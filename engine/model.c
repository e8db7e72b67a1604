/* Llama hyper-parameters and tensors of a GGUF file: what must be there, with which shape, and what is refused by name.
 * A key or tensor that would change the result and that the forward pass does not know is an error, never ignored. */
#include "engine/model.h"

#include <stdio.h>
#include <string.h>

#include "base/text.h"

/* Guesses, all well above any dense Llama-family model: larger values are damaged or hostile files. */
#define LAYERS_MAX 1024
#define HIDDEN_MAX 65536
#define FFN_MAX (1 << 20)
#define HEADS_MAX 1024
#define VOCAB_MAX (1 << 21)
#define CONTEXT_MAX (1 << 24)

#define NAME_BYTES 128

static bool string_is(struct gguf_string string, const char *text)
{
	return string.len == strlen(text) && memcmp(string.data, text, string.len) == 0;
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
	char key[NAME_BYTES];
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
	char key[NAME_BYTES];
	snprintf(key, sizeof key, "%s.%s", config->arch, suffix);
	if (gguf_get_double(gguf, key, required, out, err) != STATUS_OK)
		return err->status;
	if (!(*out >= min && *out <= max))
		return err_set(err, STATUS_INPUT, "key '%s' is %g, expected %g to %g", key, *out, min, max);
	return STATUS_OK;
}

/* ---- architecture and hyper-parameters ---- */

static enum status read_architecture(const struct gguf *gguf, struct model_config *out, struct err *err)
{
	struct gguf_string arch = {0}, name = {0};
	char text[80];
	if (gguf_get_string(gguf, "general.architecture", true, &arch, err) != STATUS_OK)
		return err->status;
	if (!string_is(arch, "llama"))
		return err_set_code(err, STATUS_INPUT, "unsupported_model",
			"architecture '%s' is not supported; this engine runs: llama (Llama, Mistral, SmolLM and others of that "
			"shape)",
			gguf_printable(arch, text, sizeof text));
	string_copy(arch, out->arch, sizeof out->arch);
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

static enum status read_heads(const struct gguf *gguf, struct model_config *out, struct err *err)
{
	if (read_int(gguf, out, "attention.head_count", true, 1, HEADS_MAX, &out->n_heads, err) != STATUS_OK)
		return err->status;
	out->n_kv_heads = out->n_heads;
	if (read_int(gguf, out, "attention.head_count_kv", false, 1, HEADS_MAX, &out->n_kv_heads, err) != STATUS_OK)
		return err->status;
	if (out->n_heads % out->n_kv_heads != 0)
		return err_set(
			err, STATUS_INPUT, "%d query heads cannot share %d key/value heads evenly", out->n_heads, out->n_kv_heads);
	out->head_dim = out->hidden / out->n_heads;
	if (read_int(gguf, out, "attention.key_length", false, 2, MODEL_HEAD_DIM_MAX, &out->head_dim, err) != STATUS_OK)
		return err->status;
	if (out->head_dim < 2 || out->head_dim > MODEL_HEAD_DIM_MAX || out->head_dim % 2 != 0)
		return err_set(
			err, STATUS_INPUT, "head size %d: expected an even number of 2 to %d", out->head_dim, MODEL_HEAD_DIM_MAX);
	int value_length = out->head_dim, rope_dims = out->head_dim, window = 0;
	if (read_int(gguf, out, "attention.value_length", false, 2, MODEL_HEAD_DIM_MAX, &value_length, err) != STATUS_OK ||
		read_int(gguf, out, "rope.dimension_count", false, 1, MODEL_HEAD_DIM_MAX, &rope_dims, err) != STATUS_OK ||
		read_int(gguf, out, "attention.sliding_window", false, 0, CONTEXT_MAX, &window, err) != STATUS_OK)
		return err->status;
	if (value_length != out->head_dim)
		return err_set_code(err, STATUS_INPUT, "unsupported_model",
			"values of size %d beside keys of size %d are not supported", value_length, out->head_dim);
	if (rope_dims != out->head_dim)
		return err_set_code(err, STATUS_INPUT, "unsupported_model",
			"rotary embedding of %d of %d dimensions is not supported", rope_dims, out->head_dim);
	if (window != 0)
		return err_set_code(
			err, STATUS_INPUT, "unsupported_model", "a sliding attention window (%d) is not supported", window);
	return STATUS_OK;
}

/* Scaling is read or refused, never ignored: an ignored one passes short tests and fails at a few thousand tokens. */
static enum status read_rope(const struct gguf *gguf, struct model_config *out, struct err *err)
{
	/* GGUF files of this family have the rows of Q and K permuted so that rotary pairs lie side by side. */
	out->rope_interleaved = 1;
	out->rope_base = 10000.0;
	out->rope_scale = 1.0;
	if (read_double(gguf, out, "rope.freq_base", false, 1.0, 1e12, &out->rope_base, err) != STATUS_OK)
		return err->status;
	struct gguf_string kind = {0};
	char text[80];
	if (gguf_get_string(gguf, "llama.rope.scaling.type", false, &kind, err) != STATUS_OK)
		return err->status;
	bool none = kind.len == 0 || string_is(kind, "none");
	if (!none && !string_is(kind, "linear"))
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
	if (read_int(gguf, out, "block_count", true, 1, LAYERS_MAX, &out->n_layers, err) != STATUS_OK ||
		read_int(gguf, out, "embedding_length", true, 1, HIDDEN_MAX, &out->hidden, err) != STATUS_OK ||
		read_int(gguf, out, "feed_forward_length", true, 1, FFN_MAX, &out->ffn, err) != STATUS_OK ||
		read_int(gguf, out, "context_length", true, 1, CONTEXT_MAX, &out->context, err) != STATUS_OK ||
		read_double(gguf, out, "attention.layer_norm_rms_epsilon", true, 0.0, 1.0, &eps, err) != STATUS_OK ||
		read_heads(gguf, out, err) != STATUS_OK || read_rope(gguf, out, err) != STATUS_OK)
		return err->status;
	out->norm_eps = (float)eps;
	return STATUS_OK;
}

/* ---- tensors ---- */

static void shape_text(const struct gguf_tensor *tensor, char *out, size_t out_bytes)
{
	size_t used = 0;
	for (int d = tensor->n_dims - 1; d >= 0 && used < out_bytes; d--)
		used += (size_t)snprintf(out + used, out_bytes - used, "%s%lld", used ? ", " : "", (long long)tensor->dims[d]);
}

/* A stored [rows, cols] matrix, or with rows 0 a vector of cols. */
static enum status check_tensor(
	const struct gguf *gguf, const char *name, int64_t rows, int64_t cols, const struct gguf_tensor **out, struct err *err)
{
	const struct gguf_tensor *tensor = gguf_find_tensor(gguf, name);
	if (!tensor)
		return err_set(err, STATUS_INPUT, "tensor '%s' is missing", name);
	bool vector = rows == 0;
	bool fits =
		tensor->dims[0] == cols && tensor->dims[1] == (vector ? 1 : rows) && tensor->dims[2] == 1 && tensor->dims[3] == 1;
	if (!fits) {
		char shape[96];
		shape_text(tensor, shape, sizeof shape);
		return vector
			? err_set(err, STATUS_INPUT, "tensor '%s' has shape [%s], expected [%lld]", name, shape, (long long)cols)
			: err_set(err, STATUS_INPUT, "tensor '%s' has shape [%s], expected [%lld, %lld]", name, shape,
				  (long long)rows, (long long)cols);
	}
	if (dtype_block_elements(tensor->dtype) == 0)
		return err_set_code(err, STATUS_INPUT, "unsupported_model",
			"tensor '%s' has type %s, which is not supported; this engine computes with F32, F16, BF16, Q8_0, Q4_0, "
			"Q4_1, Q4_K, Q6_K",
			name, gguf_tensor_type_name((uint32_t)tensor->dtype));
	if (out)
		*out = tensor;
	return STATUS_OK;
}

struct layer_tensor {
	const char *suffix;
	int64_t rows, cols;
};

#define LAYER_TENSORS 9

static void layer_tensors(const struct model_config *config, struct layer_tensor out[LAYER_TENSORS])
{
	int64_t hidden = config->hidden, ffn = config->ffn;
	int64_t q = (int64_t)config->n_heads * config->head_dim, kv = (int64_t)config->n_kv_heads * config->head_dim;
	const struct layer_tensor list[LAYER_TENSORS] = {
		{"attn_norm.weight", 0, hidden},
		{"attn_q.weight", q, hidden},
		{"attn_k.weight", kv, hidden},
		{"attn_v.weight", kv, hidden},
		{"attn_output.weight", hidden, q},
		{"ffn_norm.weight", 0, hidden},
		{"ffn_gate.weight", ffn, hidden},
		{"ffn_up.weight", ffn, hidden},
		{"ffn_down.weight", hidden, ffn},
	};
	memcpy(out, list, sizeof list);
}

static int coarser(int block, const struct gguf_tensor *tensor)
{
	int other = (int)dtype_block_elements(tensor->dtype);
	return other > block ? other : block; /* all block sizes are powers of two, so the larger is a multiple */
}

static enum status check_layers(const struct gguf *gguf, struct model_config *out, struct err *err)
{
	struct layer_tensor list[LAYER_TENSORS];
	layer_tensors(out, list);
	out->ffn_block = out->attention_block = 1;
	for (int layer = 0; layer < out->n_layers; layer++) {
		for (int t = 0; t < LAYER_TENSORS; t++) {
			char name[NAME_BYTES];
			snprintf(name, sizeof name, "blk.%d.%s", layer, list[t].suffix);
			if (check_tensor(gguf, name, list[t].rows, list[t].cols, NULL, err) != STATUS_OK)
				return err->status;
		}
		struct model_layer tensors;
		model_layer_find(gguf, layer, &tensors);
		out->ffn_block = coarser(out->ffn_block, tensors.down);
		out->attention_block = coarser(out->attention_block, tensors.attention_output);
	}
	return STATUS_OK;
}

static enum status check_ends(const struct gguf *gguf, struct model_config *out, struct err *err)
{
	const struct gguf_tensor *embedding = gguf_find_tensor(gguf, "token_embd.weight");
	if (!embedding)
		return err_set(err, STATUS_INPUT, "tensor 'token_embd.weight' is missing");
	int64_t vocab = embedding->dims[1];
	if (vocab < 1 || vocab > VOCAB_MAX)
		return err_set(err, STATUS_INPUT, "tensor 'token_embd.weight' has %lld rows, expected 1 to %d", (long long)vocab,
			VOCAB_MAX);
	out->vocab = (int)vocab;
	if (check_tensor(gguf, "token_embd.weight", vocab, out->hidden, NULL, err) != STATUS_OK ||
		check_tensor(gguf, "output_norm.weight", 0, out->hidden, NULL, err) != STATUS_OK)
		return err->status;
	out->tied_head = gguf_find_tensor(gguf, "output.weight") == NULL;
	if (!out->tied_head && check_tensor(gguf, "output.weight", vocab, out->hidden, NULL, err) != STATUS_OK)
		return err->status;
	const struct gguf_value *tokens = gguf_find(gguf, "tokenizer.ggml.tokens");
	if (tokens && tokens->count != (uint64_t)vocab)
		return err_set(err, STATUS_INPUT, "the tokenizer has %llu tokens, but tensor 'token_embd.weight' has %lld rows",
			(unsigned long long)tokens->count, (long long)vocab);
	return STATUS_OK;
}

static enum status check_rope_factors(const struct gguf *gguf, struct model_config *out, struct err *err)
{
	const struct gguf_tensor *factors = gguf_find_tensor(gguf, "rope_freqs.weight");
	if (!factors)
		return STATUS_OK;
	if (check_tensor(gguf, "rope_freqs.weight", 0, out->head_dim / 2, NULL, err) != STATUS_OK)
		return err->status;
	if (factors->dtype != DTYPE_F32)
		return err_set(
			err, STATUS_INPUT, "tensor 'rope_freqs.weight' has type %s, expected F32", dtype_name(factors->dtype));
	for (int i = 0; i < out->head_dim / 2; i++) {
		float factor; /* the tensor may be unaligned */
		memcpy(&factor, factors->data + (size_t)i * sizeof factor, sizeof factor);
		out->rope_factors[i] = factor;
		if (!(factor > 0 && factor <= 1e6f))
			return err_set(err, STATUS_INPUT, "tensor 'rope_freqs.weight' element %d is %g, expected a positive number",
				i, (double)factor);
	}
	out->has_rope_factors = 1;
	return STATUS_OK;
}

static bool is_known(const struct model_config *config, struct gguf_string name)
{
	static const char *const ends[] = {"token_embd.weight", "output_norm.weight", "output.weight", "rope_freqs.weight"};
	for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++)
		if (string_is(name, ends[i]))
			return true;
	char text[NAME_BYTES], number[16], expected[NAME_BYTES];
	string_copy(name, text, sizeof text);
	const char *dot = strncmp(text, "blk.", 4) == 0 ? strchr(text + 4, '.') : NULL;
	long long layer;
	if (!dot || dot - (text + 4) >= (ptrdiff_t)sizeof number)
		return false;
	snprintf(number, sizeof number, "%.*s", (int)(dot - (text + 4)), text + 4);
	if (!text_to_i64(number, &layer) || layer < 0 || layer >= config->n_layers)
		return false;
	struct layer_tensor list[LAYER_TENSORS];
	layer_tensors(config, list);
	for (int t = 0; t < LAYER_TENSORS; t++) {
		/* Written back from the number, so that "blk.007." is unknown. */
		snprintf(expected, sizeof expected, "blk.%lld.%s", layer, list[t].suffix);
		if (strcmp(expected, text) == 0)
			return true;
	}
	return false;
}

/* A bias or an extra norm that the forward pass does not know would make wrong text that looks plausible. */
static enum status refuse_unknown_tensors(const struct gguf *gguf, const struct model_config *config, struct err *err)
{
	for (size_t i = 0; i < gguf->n_tensors; i++) {
		struct gguf_string name = gguf->tensors[i].name;
		if (!is_known(config, name))
			return err_set_code(err, STATUS_INPUT, "unsupported_model",
				"tensor '%.*s' is not part of a dense llama model; this engine would compute without it, so the "
				"file is refused",
				(int)(name.len < 96 ? name.len : 96), name.data);
	}
	return STATUS_OK;
}

enum status model_config_read(const struct gguf *gguf, struct model_config *out, struct err *err)
{
	struct err local = {0};
	err = err ? err : &local;
	*out = (struct model_config){0};
	if (read_architecture(gguf, out, err) != STATUS_OK || read_hyper_parameters(gguf, out, err) != STATUS_OK ||
		check_ends(gguf, out, err) != STATUS_OK || check_layers(gguf, out, err) != STATUS_OK ||
		check_rope_factors(gguf, out, err) != STATUS_OK)
		return err->status;
	return refuse_unknown_tensors(gguf, out, err);
}

/* ---- look-up of accepted tensors ---- */

static const struct gguf_tensor *layer_tensor(const struct gguf *gguf, int layer, const char *suffix)
{
	char name[NAME_BYTES];
	snprintf(name, sizeof name, "blk.%d.%s", layer, suffix);
	const struct gguf_tensor *tensor = gguf_find_tensor(gguf, name);
	ASSERT(tensor);
	return tensor;
}

void model_layer_find(const struct gguf *gguf, int layer, struct model_layer *out)
{
	*out = (struct model_layer){
		.attention_norm = layer_tensor(gguf, layer, "attn_norm.weight"),
		.q = layer_tensor(gguf, layer, "attn_q.weight"),
		.k = layer_tensor(gguf, layer, "attn_k.weight"),
		.v = layer_tensor(gguf, layer, "attn_v.weight"),
		.attention_output = layer_tensor(gguf, layer, "attn_output.weight"),
		.ffn_norm = layer_tensor(gguf, layer, "ffn_norm.weight"),
		.gate = layer_tensor(gguf, layer, "ffn_gate.weight"),
		.up = layer_tensor(gguf, layer, "ffn_up.weight"),
		.down = layer_tensor(gguf, layer, "ffn_down.weight"),
	};
}

void model_ends_find(const struct gguf *gguf, struct model_ends *out)
{
	out->embedding = gguf_find_tensor(gguf, "token_embd.weight");
	out->output_norm = gguf_find_tensor(gguf, "output_norm.weight");
	out->output = gguf_find_tensor(gguf, "output.weight");
	if (!out->output)
		out->output = out->embedding;
	ASSERT(out->embedding && out->output_norm);
}
