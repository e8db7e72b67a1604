/* Reads config.json. Every value is taken from its place within bounds; nothing that changes the computation is passed over. */
#include "engine/hf_config.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/source.h"

#define PLACE "config.json: "
#define UNSUPPORTED(err, ...) err_set_code(err, STATUS_INPUT, "unsupported_model", PLACE __VA_ARGS__)

static const struct family {
	const char *architecture, *model_type;
	bool has_qkv_bias, has_qk_norm;
	bool needs_kv_heads; /* the class's default is a number of its own, not that of the query heads */
	bool needs_head_dim; /* likewise */
	bool window_by_switch; /* sliding_window counts only with use_sliding_window */
} families[] = {
	{"LlamaForCausalLM", "llama", false, false, false, false, false},
	{"MistralForCausalLM", "mistral", false, false, true, false, false},
	{"Qwen2ForCausalLM", "qwen2", true, false, true, false, true},
	{"Qwen3ForCausalLM", "qwen3", false, true, true, true, true},
};

/* Keys that are read here. */
static const char *const used[] = {"architectures", "model_type", "hidden_size", "intermediate_size", "num_hidden_layers",
	"num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size", "max_position_embeddings", "rms_norm_eps",
	"rope_theta", "rope_scaling", "rope_parameters", "tie_word_embeddings", "sliding_window", "use_sliding_window",
	"max_window_layers", "layer_types", "quantization_config", "hidden_act", "attention_bias", "mlp_bias", "rope_interleaved",
	"partial_rotary_factor", "pretraining_tp"};

/* Keys that do not change what the model computes: notes about the file, training, defaults of sampling, token ids (which are
 * taken from generation_config.json and the tokenizer). pretraining_tp cuts products into slices of the same sum. */
static const char *const harmless[] = {"transformers_version", "torch_dtype", "dtype", "use_cache", "initializer_range",
	"attention_dropout", "bos_token_id", "eos_token_id", "pad_token_id", "unk_token_id", "is_llama_config",
	"transformers.js_config", "auto_map", "return_dict", "output_attentions", "output_hidden_states", "torchscript",
	"use_bfloat16", "chunk_size_feed_forward", "is_encoder_decoder", "is_decoder", "add_cross_attention",
	"cross_attention_hidden_size", "tie_encoder_decoder", "pruned_heads", "finetuning_task", "id2label", "label2id",
	"problem_type", "task_specific_params", "tokenizer_class", "prefix", "sep_token_id", "decoder_start_token_id", "max_length",
	"min_length", "do_sample", "early_stopping", "num_beams", "num_beam_groups", "diversity_penalty", "temperature", "top_k",
	"top_p", "typical_p", "repetition_penalty", "length_penalty", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size",
	"bad_words_ids", "num_return_sequences", "output_scores", "return_dict_in_generate", "forced_bos_token_id",
	"forced_eos_token_id", "remove_invalid_values", "exponential_decay_length_penalty", "suppress_tokens",
	"begin_suppress_tokens", "tf_legacy_loss", "unsloth_version", "unsloth_fixed", "mlp_dropout", "hidden_dropout",
	"resid_pdrop", "embd_pdrop"};

/* A value that is there: null means the class's default, like a key left out. */
static const struct json *value_of(const struct json *object, const char *key)
{
	const struct json *value = json_get(object, key);
	return json_kind_of(value) == JSON_KIND_NULL ? NULL : value;
}

static enum status read_int(const struct json *config, const char *key, bool required, int min, int max, int *out, struct err *err)
{
	const struct json *value = value_of(config, key);
	if (!value && !required)
		return STATUS_OK;
	if (!value)
		return err_set(err, STATUS_INPUT, PLACE "key '%s' is missing", key);
	int64_t number = json_int(value, -1);
	if (json_kind_of(value) != JSON_KIND_INTEGER)
		return err_set(err, STATUS_INPUT, PLACE "key '%s' is a %s, expected a whole number", key,
			json_kind_name(json_kind_of(value)));
	if (number < min || number > max)
		return err_set(err, STATUS_INPUT, PLACE "key '%s' is %lld, expected %d to %d", key, (long long)number, min, max);
	*out = (int)number;
	return STATUS_OK;
}

/* key is looked up in object; place is how the message calls it. */
static enum status read_double(const struct json *object, const char *key, const char *place, bool required, double min, double max,
	double *out, struct err *err)
{
	const struct json *value = value_of(object, key);
	if (!value && !required)
		return STATUS_OK;
	if (!value)
		return err_set(err, STATUS_INPUT, PLACE "key '%s' is missing", place);
	if (!json_is_number(value))
		return err_set(
			err, STATUS_INPUT, PLACE "key '%s' is a %s, expected a number", place, json_kind_name(json_kind_of(value)));
	double number = json_number(value, NAN);
	if (!(number >= min && number <= max))
		return err_set(err, STATUS_INPUT, PLACE "key '%s' is %g, expected %g to %g", place, number, min, max);
	*out = number;
	return STATUS_OK;
}

static enum status read_bool(const struct json *config, const char *key, bool *out, struct err *err)
{
	const struct json *value = value_of(config, key);
	if (value && json_kind_of(value) != JSON_KIND_BOOL)
		return err_set(err, STATUS_INPUT, PLACE "key '%s' is a %s, expected true or false", key,
			json_kind_name(json_kind_of(value)));
	*out = json_bool(value, *out);
	return STATUS_OK;
}

/* The text at key; "" when there is none. */
static const char *text_of(const struct json *object, const char *key)
{
	const char *text = json_text(json_get(object, key));
	return text ? text : "";
}

static const char *printable(const char *text, char out[80])
{
	return gguf_printable((struct gguf_string){text, strlen(text)}, out, 80);
}

/* ---- the family ---- */

/* NULL, with the reason in err, where the file names no family, or one that is not supported. */
static const struct family *find_family(const struct json *config, struct err *err)
{
	const struct json *list = value_of(config, "architectures");
	const char *architecture = json_text(json_at(list, 0)), *model_type = json_text(value_of(config, "model_type"));
	const struct family *found = NULL;
	char text[80];
	if (list && (json_count(list) != 1 || !architecture)) {
		err_set(err, STATUS_INPUT, PLACE "key 'architectures' is no list of one name");
		return NULL;
	}
	if (!architecture && !model_type) {
		err_set(err, STATUS_INPUT, PLACE "key 'architectures' is missing");
		return NULL;
	}
	for (size_t i = 0; i < sizeof families / sizeof families[0]; i++)
		if (architecture ? strcmp(architecture, families[i].architecture) == 0
				 : strcmp(model_type, families[i].model_type) == 0)
			found = &families[i];
	if (!found) {
		UNSUPPORTED(err,
			"architecture '%s' is not supported; this engine runs: LlamaForCausalLM, MistralForCausalLM, "
			"Qwen2ForCausalLM, Qwen3ForCausalLM",
			printable(architecture ? architecture : model_type, text));
	} else if (model_type && strcmp(model_type, found->model_type) != 0) {
		err_set(err, STATUS_INPUT, PLACE "model_type '%s' contradicts architecture %s", printable(model_type, text),
			found->architecture);
		return NULL;
	}
	return found;
}

static bool is_listed(const char *key, const char *const *list, size_t count)
{
	for (size_t i = 0; i < count; i++)
		if (strcmp(key, list[i]) == 0)
			return true;
	return false;
}

static enum status refuse_unknown_keys(const struct json *config, struct err *err)
{
	char text[80];
	for (void *it = json_first(config); it; it = json_next(config, it)) {
		const char *key = json_iterator_key(it);
		if (key[0] == '_' || is_listed(key, used, sizeof used / sizeof used[0]) ||
			is_listed(key, harmless, sizeof harmless / sizeof harmless[0]) ||
			json_kind_of(json_iterator_value(it)) == JSON_KIND_NULL)
			continue;
		return UNSUPPORTED(err, "key '%s' is not known; this engine would compute without it, so the folder is refused",
			printable(key, text));
	}
	return STATUS_OK;
}

/* Switches that this engine knows in one position only. */
static enum status check_fixed(const struct json *config, const struct family *family, struct err *err)
{
	const struct {
		const char *key;
		bool fixed;
	} flags[] = {{"attention_bias", family->has_qkv_bias}, {"mlp_bias", false}, {"rope_interleaved", false}};
	double rotary = 1;
	char text[80];
	for (size_t i = 0; i < sizeof flags / sizeof flags[0]; i++) {
		bool value = flags[i].fixed;
		if (read_bool(config, flags[i].key, &value, err) != STATUS_OK)
			return STATUS_INPUT;
		if (value != flags[i].fixed)
			return UNSUPPORTED(err, "key '%s' is %s, which is not supported for %s", flags[i].key,
				value ? "true" : "false", family->architecture);
	}
	if (value_of(config, "hidden_act") && strcmp(text_of(config, "hidden_act"), "silu") != 0)
		return UNSUPPORTED(err, "key 'hidden_act' is '%s', and only 'silu' is supported",
			printable(text_of(config, "hidden_act"), text));
	if (read_double(config, "partial_rotary_factor", "partial_rotary_factor", false, 0, 1, &rotary, err) != STATUS_OK)
		return STATUS_INPUT;
	if (rotary != 1)
		return UNSUPPORTED(err, "key 'partial_rotary_factor' is %g, and only 1 is supported", rotary);
	return STATUS_OK;
}

/* ---- heads and windows ---- */

static enum status read_heads(const struct json *config, const struct family *family, struct model_config *out, struct err *err)
{
	if (read_int(config, "num_attention_heads", true, 1, SOURCE_HEADS_MAX, &out->n_heads, err) != STATUS_OK)
		return STATUS_INPUT;
	out->n_kv_heads = out->n_heads;
	if (read_int(config, "num_key_value_heads", family->needs_kv_heads, 1, SOURCE_HEADS_MAX, &out->n_kv_heads, err) !=
		STATUS_OK)
		return STATUS_INPUT;
	if (!value_of(config, "head_dim") && !family->needs_head_dim && out->hidden % out->n_heads != 0)
		return err_set(err, STATUS_INPUT,
			PLACE "hidden_size %d is no multiple of num_attention_heads %d, and there is no head_dim", out->hidden,
			out->n_heads);
	out->head_dim = out->hidden / out->n_heads;
	if (read_int(config, "head_dim", family->needs_head_dim, 2, MODEL_HEAD_DIM_MAX, &out->head_dim, err) != STATUS_OK)
		return STATUS_INPUT;
	snprintf(out->head_dim_from, sizeof out->head_dim_from, "%s",
		value_of(config, "head_dim") ? "key 'head_dim'" : "hidden_size / num_attention_heads");
	return source_check_heads(out, err) == STATUS_OK ? STATUS_OK : err_add(err, "config.json");
}

/* Whether layer_types says that some layer has a sliding window. */
static enum status read_layer_types(const struct json *config, const struct model_config *model, bool *slides, struct err *err)
{
	const struct json *types = value_of(config, "layer_types");
	char text[80];
	if (types && (json_kind_of(types) != JSON_KIND_ARRAY || json_count(types) != (size_t)model->n_layers))
		return err_set(
			err, STATUS_INPUT, PLACE "key 'layer_types' is no list of num_hidden_layers %d names", model->n_layers);
	for (size_t i = 0; i < json_count(types); i++) {
		const char *type = json_text(json_at(types, i));
		bool sliding = type && strcmp(type, "sliding_attention") == 0;
		if (!sliding && !(type && strcmp(type, "full_attention") == 0))
			return UNSUPPORTED(err, "key 'layer_types[%zu]' is '%s', which is not supported", i,
				printable(type ? type : "", text));
		*slides = *slides || sliding;
	}
	return STATUS_OK;
}

/* Within its first `window` positions a model with a sliding window is one without: the context ends there. */
static enum status read_window(const struct json *config, const struct family *family, struct model_config *out, struct err *err)
{
	int window = 0, full_layers = 0;
	bool by_switch = false, slides = false;
	if (read_int(config, "sliding_window", false, 1, SOURCE_CONTEXT_MAX, &window, err) != STATUS_OK ||
		read_int(config, "max_window_layers", false, 0, SOURCE_LAYERS_MAX, &full_layers, err) != STATUS_OK ||
		read_bool(config, "use_sliding_window", &by_switch, err) != STATUS_OK ||
		read_layer_types(config, out, &slides, err) != STATUS_OK)
		return STATUS_INPUT;
	if (slides && window == 0)
		return err_set(err, STATUS_INPUT, PLACE "key 'layer_types' has sliding_attention, but sliding_window is missing");
	if (family->window_by_switch && !by_switch && !slides)
		window = 0;
	if (window > 0 && window < out->context)
		out->context = out->window = window;
	return STATUS_OK;
}

/* ---- rope ---- */

/* Frequencies as llama3 scaling wants them, as divisors of the plain ones. Source: transformers' modeling_rope_utils.py. */
static enum status read_llama3(const struct json *scaling, const char *place, struct model_config *out, struct err *err)
{
	double factor = 1, low = 1, high = 4, original = 8192;
	char keys[4][80];
	const char *const names[4] = {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"};
	double *const values[4] = {&factor, &low, &high, &original};
	for (int i = 0; i < 4; i++) {
		snprintf(keys[i], sizeof keys[i], "%s.%s", place, names[i]);
		if (read_double(scaling, names[i], keys[i], true, i == 0 ? 1.0 : 1e-6, 1e9, values[i], err) != STATUS_OK)
			return STATUS_INPUT;
	}
	if (high <= low)
		return err_set(
			err, STATUS_INPUT, PLACE "%s: high_freq_factor %g is not above low_freq_factor %g", place, high, low);
	for (int i = 0; i < out->head_dim / 2; i++) {
		double wave_length = 2 * M_PI * pow(out->rope_base, 2.0 * i / out->head_dim), divisor = 1;
		if (wave_length > original / low) {
			divisor = factor;
		} else if (wave_length >= original / high) {
			double smooth = (original / wave_length - low) / (high - low);
			divisor = 1 / ((1 - smooth) / factor + smooth);
		}
		out->rope_factors[i] = (float)divisor;
	}
	out->has_rope_factors = 1;
	return STATUS_OK;
}

static enum status check_scaling_keys(const struct json *scaling, const char *place, struct err *err)
{
	static const char *const known[] = {"rope_type", "type", "factor", "low_freq_factor", "high_freq_factor",
		"original_max_position_embeddings", "rope_theta", "partial_rotary_factor"};
	char text[80];
	if (json_kind_of(scaling) != JSON_KIND_OBJECT)
		return err_set(err, STATUS_INPUT, PLACE "key '%s' is no object", place);
	for (void *it = json_first(scaling); it; it = json_next(scaling, it))
		if (!is_listed(json_iterator_key(it), known, sizeof known / sizeof known[0]))
			return UNSUPPORTED(err, "key '%s.%s' is not known", place, printable(json_iterator_key(it), text));
	return STATUS_OK;
}

static enum status read_scaling(const struct json *scaling, const char *place, struct model_config *out, struct err *err)
{
	const char *type = text_of(scaling, json_get(scaling, "rope_type") ? "rope_type" : "type");
	char text[80];
	double rotary = 1;
	if (check_scaling_keys(scaling, place, err) != STATUS_OK ||
		read_double(scaling, "partial_rotary_factor", "partial_rotary_factor", false, 0, 1, &rotary, err) != STATUS_OK ||
		read_double(scaling, "rope_theta", "rope_theta", false, 1.0, 1e12, &out->rope_base, err) != STATUS_OK)
		return STATUS_INPUT;
	if (rotary != 1)
		return UNSUPPORTED(err, "key '%s.partial_rotary_factor' is %g, and only 1 is supported", place, rotary);
	if (strcmp(type, "default") == 0)
		return STATUS_OK;
	if (strcmp(type, "linear") == 0) {
		snprintf(text, sizeof text, "%s.factor", place);
		return read_double(scaling, "factor", text, true, 1.0, 1e6, &out->rope_scale, err);
	}
	if (strcmp(type, "llama3") == 0)
		return read_llama3(scaling, place, out, err);
	return UNSUPPORTED(
		err, "%s: rope type '%s' is not supported; known: default, linear, llama3", place, printable(type, text));
}

/* rope_theta and rope_scaling; newer files write both as rope_parameters. */
static enum status read_rope(const struct json *config, struct model_config *out, struct err *err)
{
	const struct json *scaling = value_of(config, "rope_scaling"), *parameters = value_of(config, "rope_parameters");
	out->rope_base = 10000;
	out->rope_scale = 1;
	if (read_double(config, "rope_theta", "rope_theta", false, 1.0, 1e12, &out->rope_base, err) != STATUS_OK)
		return STATUS_INPUT;
	if (scaling && parameters && !json_same(scaling, parameters))
		return err_set(err, STATUS_INPUT, PLACE "rope_scaling and rope_parameters contradict each other");
	if (parameters)
		return read_scaling(parameters, "rope_parameters", out, err);
	return scaling ? read_scaling(scaling, "rope_scaling", out, err) : STATUS_OK;
}

/* ---- quantisation ---- */

/* compressed-tensors: every group of layers holds weights as 8-bit floats. */
static enum status check_compressed(const struct json *quantization, struct err *err)
{
	const struct json *groups = json_get(quantization, "config_groups");
	for (void *it = json_first(groups); it; it = json_next(groups, it)) {
		const struct json *weights = json_get(json_iterator_value(it), "weights");
		if (json_int(json_get(weights, "num_bits"), 0) != 8 || strcmp(text_of(weights, "type"), "float") != 0)
			return UNSUPPORTED(err, "quantization_config: only weights of 8-bit floats are supported");
	}
	if (json_count(groups) == 0)
		return err_set(err, STATUS_INPUT, PLACE "quantization_config.config_groups is missing");
	if (value_of(quantization, "kv_cache_scheme"))
		return UNSUPPORTED(err, "quantization_config.kv_cache_scheme is not supported");
	return STATUS_OK;
}

/* Weights as 8-bit floats with scales are computed as they are; what else is quantised lies in files in other ways. */
static enum status check_quantization(const struct json *config, struct err *err)
{
	const struct json *quantization = value_of(config, "quantization_config");
	const char *method = text_of(quantization, "quant_method");
	char text[80];
	if (!quantization)
		return STATUS_OK;
	if (strcmp(method, "compressed-tensors") == 0)
		return check_compressed(quantization, err);
	if (strcmp(method, "fp8") != 0)
		return UNSUPPORTED(err,
			"quantization_config: method '%s' is not supported; known: fp8, compressed-tensors with 8-bit floats",
			printable(method, text));
	const struct json *block = value_of(quantization, "weight_block_size");
	if (block && (json_count(block) != 2 || json_int(json_at(block, 0), 0) != 128 || json_int(json_at(block, 1), 0) != 128))
		return UNSUPPORTED(err, "quantization_config.weight_block_size: only blocks of [128, 128] are supported");
	return STATUS_OK;
}

enum status hf_config_read(const struct json *config, struct model_config *out, struct err *err)
{
	double eps = 0;
	bool tied = false;
	if (json_kind_of(config) != JSON_KIND_OBJECT)
		return err_set(err, STATUS_INPUT, PLACE "no JSON object");
	const struct family *family = find_family(config, err);
	if (!family || check_quantization(config, err) != STATUS_OK || refuse_unknown_keys(config, err) != STATUS_OK ||
		check_fixed(config, family, err) != STATUS_OK ||
		read_int(config, "num_hidden_layers", true, 1, SOURCE_LAYERS_MAX, &out->n_layers, err) != STATUS_OK ||
		read_int(config, "hidden_size", true, 1, SOURCE_HIDDEN_MAX, &out->hidden, err) != STATUS_OK ||
		read_int(config, "intermediate_size", true, 1, SOURCE_FFN_MAX, &out->ffn, err) != STATUS_OK ||
		read_int(config, "vocab_size", true, 1, SOURCE_VOCAB_MAX, &out->vocab, err) != STATUS_OK ||
		read_int(config, "max_position_embeddings", true, 1, SOURCE_CONTEXT_MAX, &out->context, err) != STATUS_OK ||
		read_double(config, "rms_norm_eps", "rms_norm_eps", true, 0.0, 1.0, &eps, err) != STATUS_OK ||
		read_bool(config, "tie_word_embeddings", &tied, err) != STATUS_OK ||
		read_heads(config, family, out, err) != STATUS_OK || read_window(config, family, out, err) != STATUS_OK ||
		read_rope(config, out, err) != STATUS_OK)
		return STATUS_INPUT;
	snprintf(out->arch, sizeof out->arch, "%s", family->architecture);
	out->norm_eps = (float)eps;
	out->tied_head = tied;
	out->has_qkv_bias = family->has_qkv_bias;
	out->has_qk_norm = family->has_qk_norm;
	return STATUS_OK;
}
