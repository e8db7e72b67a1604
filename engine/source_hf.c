/* Hugging Face folders as a source: config.json says what is computed, safetensors hold the weights. Weights of 8-bit floats come
 * with their scales, "X_scale" or "X_scale_inv" beside "X". */
#include "engine/source.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/text.h"
#include "engine/hf_config.h"
#include "engine/hf_folder.h"
#include "engine/safetensors.h"

#define CONFIG_BYTES_MAX ((size_t)16 << 20) /* guess: published ones have kilobytes; long lists of layers have some more */
#define SCALE_BLOCK 128 /* rows and columns of a block of scales: DeepSeek's checkpoints */

/* Scales of one tensor; data NULL for none. */
struct scales {
	const float *data;
	int64_t rows, cols; /* that share one */
};

struct hf {
	char *folder;
	struct json *config;
	struct json *tokenizer_config; /* NULL when absent */
	struct text template_file; /* chat_template.jinja, where there is one */
	struct safetensors weights;
	struct arena arena; /* scales */
	struct scales *scales; /* [weights.n_tensors] */
	bool *is_companion; /* [weights.n_tensors] belongs to another tensor, or says nothing */
};

static const struct source_names names = {
	.layer_prefix = "model.layers.",
	.parts =
		{
			[MODEL_ATTENTION_NORM] = "input_layernorm.weight",
			[MODEL_Q] = "self_attn.q_proj.weight",
			[MODEL_K] = "self_attn.k_proj.weight",
			[MODEL_V] = "self_attn.v_proj.weight",
			[MODEL_Q_BIAS] = "self_attn.q_proj.bias",
			[MODEL_K_BIAS] = "self_attn.k_proj.bias",
			[MODEL_V_BIAS] = "self_attn.v_proj.bias",
			[MODEL_Q_NORM] = "self_attn.q_norm.weight",
			[MODEL_K_NORM] = "self_attn.k_norm.weight",
			[MODEL_ATTENTION_OUTPUT] = "self_attn.o_proj.weight",
			[MODEL_FFN_NORM] = "post_attention_layernorm.weight",
			[MODEL_GATE] = "mlp.gate_proj.weight",
			[MODEL_UP] = "mlp.up_proj.weight",
			[MODEL_DOWN] = "mlp.down_proj.weight",
			[MODEL_EMBEDDING] = "model.embed_tokens.weight",
			[MODEL_OUTPUT_NORM] = "model.norm.weight",
			[MODEL_OUTPUT] = "lm_head.weight",
		},
};

static const struct hf *hf_of(const struct source *source)
{
	return source->self;
}

/* ---- scales ---- */

/* How many rows and columns share a scale, from the shape of the scales: one number, one for each row, or one for each block. */
static bool scale_extent(const struct safetensors_tensor *weight, const struct safetensors_tensor *scale, struct scales *out)
{
	int64_t rows = weight->dims[0], cols = weight->dims[1];
	int64_t first = scale->n_dims > 0 ? scale->dims[0] : 1, second = scale->n_dims > 1 ? scale->dims[1] : 1;
	*out = (struct scales){.rows = rows, .cols = cols};
	if (scale->n_dims > 2)
		return false;
	if (scale->elements == 1)
		return true;
	if (first == rows && second == 1) {
		out->rows = 1;
		return true;
	}
	out->rows = out->cols = SCALE_BLOCK;
	return scale->n_dims == 2 && first == (rows + SCALE_BLOCK - 1) / SCALE_BLOCK &&
		second == (cols + SCALE_BLOCK - 1) / SCALE_BLOCK;
}

static enum status read_scales(
	struct hf *hf, const struct safetensors_tensor *weight, const struct safetensors_tensor *scale, struct err *err)
{
	struct scales *out = &hf->scales[weight - hf->weights.tensors];
	char weight_shape[SAFETENSORS_SHAPE_BYTES], scale_shape[SAFETENSORS_SHAPE_BYTES];
	if (weight->n_dims != 2 || !scale_extent(weight, scale, out))
		return err_set_code(err, STATUS_INPUT, "unsupported_model",
			"tensor '%s' of shape %s does not fit '%s' of shape %s: one scale, one for each row or one for each "
			"%d x %d are supported",
			scale->name, safetensors_shape(scale, scale_shape), weight->name, safetensors_shape(weight, weight_shape),
			SCALE_BLOCK, SCALE_BLOCK);
	if (scale->dtype != DTYPE_F32 && scale->dtype != DTYPE_BF16 && scale->dtype != DTYPE_F16)
		return err_set(err, STATUS_INPUT, "tensor '%s' has type %s, expected F32, BF16 or F16", scale->name, scale->type);
	float *values = arena_calloc(&hf->arena, (size_t)scale->elements, sizeof *values);
	dtype_dequantize(scale->dtype, scale->data, values, (int64_t)scale->elements);
	for (uint64_t i = 0; i < scale->elements; i++)
		if (!isfinite(values[i]))
			return err_set(err, STATUS_INPUT, "tensor '%s' element %" PRIu64 " is not finite", scale->name, i);
	out->data = values;
	return STATUS_OK;
}

/* The tensor "<name><suffix>"; it is then nobody else's. */
static const struct safetensors_tensor *companion(struct hf *hf, const char *name, const char *suffix)
{
	struct text full = {0};
	text_printf(&full, "%s%s", name, suffix);
	const struct safetensors_tensor *found = safetensors_find(&hf->weights, text_str(&full));
	if (found)
		hf->is_companion[found - hf->weights.tensors] = true;
	text_release(&full);
	return found;
}

/* Scales of activations are for engines that round these too; here they stay as they are. */
static void find_input_scale(struct hf *hf, const char *name)
{
	size_t len = strlen(name), tail = strlen("weight");
	if (len < tail || strcmp(name + len - tail, "weight") != 0)
		return;
	char *stem = mem_strndup(name, len - tail);
	companion(hf, stem, "input_scale");
	mem_free(stem);
}

static enum status find_scales(struct hf *hf, struct err *err)
{
	hf->scales = mem_calloc(hf->weights.n_tensors + 1, sizeof *hf->scales);
	hf->is_companion = mem_calloc(hf->weights.n_tensors + 1, sizeof *hf->is_companion);
	for (size_t i = 0; i < hf->weights.n_tensors; i++) {
		const struct safetensors_tensor *weight = &hf->weights.tensors[i];
		if (weight->dtype != DTYPE_F8_E4M3)
			continue;
		const struct safetensors_tensor *plain = companion(hf, weight->name, "_scale");
		const struct safetensors_tensor *inverse = companion(hf, weight->name, "_scale_inv");
		if (!plain == !inverse)
			return err_set(err, STATUS_INPUT,
				"tensor '%s' has type F8_E4M3, and %s of '%s_scale' and '%s_scale_inv' beside it; expected one",
				weight->name, plain ? "both" : "none", weight->name, weight->name);
		if (read_scales(hf, weight, plain ? plain : inverse, err) != STATUS_OK)
			return STATUS_INPUT;
		find_input_scale(hf, weight->name);
	}
	return STATUS_OK;
}

/* ---- the source ---- */

static bool find(const struct source *source, int layer, enum model_part part, struct model_tensor *out)
{
	const struct hf *hf = hf_of(source);
	char name[SOURCE_NAME_BYTES];
	source_name_part(&names, layer, part, name);
	const struct safetensors_tensor *tensor = safetensors_find(&hf->weights, name);
	if (!tensor)
		return false;
	const struct scales *scales = &hf->scales[tensor - hf->weights.tensors];
	*out = (struct model_tensor){
		.type = tensor->type,
		.dtype = tensor->dtype,
		.n_dims = tensor->n_dims,
		.data = tensor->data,
		.scales = scales->data,
		.scale_rows = scales->rows,
		.scale_cols = scales->cols,
	};
	memcpy(out->dims, tensor->dims, sizeof tensor->dims);
	return true;
}

static const char *last_component(const char *path)
{
	const char *slash = strrchr(path, '/');
	return slash ? slash + 1 : path;
}

static enum status read_config(const struct source *source, struct model_config *out, struct err *err)
{
	const struct hf *hf = hf_of(source);
	char text[sizeof out->name];
	if (hf_config_read(hf->config, out, err) != STATUS_OK)
		return err_add(err, "%s", hf->folder);
	const char *name = last_component(hf->folder);
	gguf_printable((struct gguf_string){name, strlen(name)}, text, sizeof text); /* goes to logs and answers */
	memcpy(out->name, text, sizeof text);
	return STATUS_OK;
}

/* Tables of angles that old checkpoints carry; they follow from config.json. */
static bool is_derived(const char *name)
{
	static const char tail[] = ".rotary_emb.inv_freq";
	size_t len = strlen(name);
	return len >= sizeof tail && strcmp(name + len - (sizeof tail - 1), tail) == 0;
}

static enum status refuse_unknown(const struct source *source, const struct model_config *config, struct err *err)
{
	const struct hf *hf = hf_of(source);
	for (size_t i = 0; i < hf->weights.n_tensors; i++) {
		const char *name = hf->weights.tensors[i].name;
		/* A tied model may carry its head once more, as transformers writes it on request; it is the embedding. */
		bool second_head = config->tied_head && strcmp(name, names.parts[MODEL_OUTPUT]) == 0;
		if (!hf->is_companion[i] && !is_derived(name) && !second_head &&
			!source_name_is_known(&names, config, name, strlen(name)))
			return err_set_code(err, STATUS_INPUT, "unsupported_model",
				"%s: tensor '%s' is not part of a %s; this engine would compute without it, so the folder is "
				"refused",
				hf->folder, name, config->arch);
	}
	return STATUS_OK;
}

static enum status read_tokenizer(const struct source *source, const char *pre, struct tokenizer_spec *out, struct err *err)
{
	const struct hf *hf = hf_of(source);
	return tokenizer_spec_hf(hf->folder, hf->config, pre, out, err);
}

/* Newer folders have the template as a file, older ones as a text in tokenizer_config.json, some as a list of named ones. */
static enum status chat_template(const struct source *source, struct gguf_string *out, struct err *err)
{
	const struct hf *hf = hf_of(source);
	const struct json *value = json_get(hf->tokenizer_config, "chat_template");
	*out = (struct gguf_string){hf->template_file.data, hf->template_file.len};
	if (out->data || json_kind_of(value) == JSON_KIND_NULL)
		return STATUS_OK;
	for (size_t i = 0; json_kind_of(value) == JSON_KIND_ARRAY && i < json_count(value); i++) {
		const char *name = json_text(json_get(json_at(value, i), "name"));
		if (name && strcmp(name, "default") == 0)
			value = json_get(json_at(value, i), "template");
	}
	*out = (struct gguf_string){json_text(value), json_text_len(value)};
	return out->data
		? STATUS_OK
		: err_set(err, STATUS_INPUT, "tokenizer_config.json: chat_template is no text and no list with one named default");
}

static enum status load_template(struct hf *hf, struct err *err)
{
	struct text path = {0};
	enum status status =
		hf_folder_json(hf->folder, "tokenizer_config.json", CONFIG_BYTES_MAX, false, &hf->tokenizer_config, err);
	text_printf(&path, "%s/chat_template.jinja", hf->folder);
	if (status == STATUS_OK && file_exists(text_str(&path)))
		status = file_read(text_str(&path), CONFIG_BYTES_MAX, &hf->template_file, err);
	text_release(&path);
	return status;
}

static void close_source(struct source *source)
{
	struct hf *hf = source->self;
	json_free(hf->config);
	json_free(hf->tokenizer_config);
	text_release(&hf->template_file);
	safetensors_close(&hf->weights);
	mem_free(hf->scales);
	mem_free(hf->is_companion);
	arena_release(&hf->arena);
	mem_free(hf->folder);
	mem_free(hf);
}

static const struct source_ops ops = {
	.name = "safetensors",
	.read_config = read_config,
	.names = &names,
	.find = find,
	.refuse_unknown = refuse_unknown,
	.read_tokenizer = read_tokenizer,
	.chat_template = chat_template,
	.close = close_source,
};

enum status source_hf_open(const char *folder, struct source *out, struct err *err)
{
	size_t len = strlen(folder);
	while (len > 1 && folder[len - 1] == '/')
		len--;
	struct hf *hf = mem_calloc(1, sizeof *hf);
	*out = (struct source){.ops = &ops, .self = hf};
	hf->folder = mem_strndup(folder, len);
	enum status status = hf_folder_json(hf->folder, "config.json", CONFIG_BYTES_MAX, true, &hf->config, err);
	if (status == STATUS_OK)
		status = load_template(hf, err);
	if (status == STATUS_OK)
		status = safetensors_open(hf->folder, &hf->weights, err);
	if (status == STATUS_OK)
		status = find_scales(hf, err);
	if (status != STATUS_OK) {
		source_close(out);
		return status;
	}
	out->bytes = hf->weights.bytes;
	return STATUS_OK;
}
