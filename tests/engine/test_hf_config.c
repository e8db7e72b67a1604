/* config.json of Hugging Face folders: what is read, and what is said about what is refused. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/file.h"
#include "engine/hf_config.h"
#include "engine/source.h"
#include "tests/support/temp_folder.h"

#define FIELD "tests/golden/field/"

/* A sound file; a case replaces or adds keys. */
static const char base[] = "{\"architectures\":[\"LlamaForCausalLM\"],\"model_type\":\"llama\",\"hidden_size\":64,"
			   "\"intermediate_size\":128,\"num_hidden_layers\":3,\"num_attention_heads\":8,\"num_key_value_heads\":2,"
			   "\"vocab_size\":500,\"max_position_embeddings\":4096,\"rms_norm_eps\":1e-5,\"hidden_act\":\"silu\"}";

/* Reads base with the keys of change put over it; a key that changes to "DROP" is left out. */
static enum status read_changed(const char *change, struct model_config *out, struct err *err)
{
	struct json *config = NULL, *changes = NULL;
	assert_int_equal(json_parse(base, sizeof base - 1, "base", &config, NULL), STATUS_OK);
	assert_int_equal(json_parse(change, strlen(change), "change", &changes, NULL), STATUS_OK);
	for (void *it = json_first(changes); it; it = json_next(changes, it)) {
		const struct json *value = json_iterator_value(it);
		if (json_text(value) && strcmp(json_text(value), "DROP") == 0)
			json_remove(config, json_iterator_key(it));
		else
			json_set(config, json_iterator_key(it), json_clone(value));
	}
	*out = (struct model_config){0};
	enum status status = hf_config_read(config, out, err);
	json_free(config);
	json_free(changes);
	return status;
}

static void reads(const char *change, struct model_config *out)
{
	struct err err = {0};
	if (read_changed(change, out, &err) != STATUS_OK)
		fail_msg("%s: %s", change, err.text);
}

static void a_sound_file_is_read_with_its_defaults(void **state)
{
	struct model_config config;
	reads("{}", &config);
	assert_string_equal(config.arch, "LlamaForCausalLM");
	assert_int_equal(config.n_layers, 3);
	assert_int_equal(config.hidden, 64);
	assert_int_equal(config.ffn, 128);
	assert_int_equal(config.n_heads, 8);
	assert_int_equal(config.n_kv_heads, 2);
	assert_int_equal(config.head_dim, 8);
	assert_int_equal(config.vocab, 500);
	assert_int_equal(config.context, 4096);
	assert_true(config.norm_eps == 1e-5f && config.rope_base == 10000 && config.rope_scale == 1);
	assert_false(config.tied_head || config.has_qkv_bias || config.has_qk_norm || config.rope_interleaved);
	reads("{\"num_key_value_heads\":\"DROP\",\"model_type\":\"DROP\",\"head_dim\":null}", &config);
	assert_int_equal(config.n_kv_heads, 8);
	assert_string_equal(config.head_dim_from, "hidden_size / num_attention_heads");
	reads("{\"architectures\":\"DROP\",\"head_dim\":32,\"tie_word_embeddings\":true,\"_name_or_path\":\"x\"}", &config);
	assert_int_equal(config.head_dim, 32);
	assert_string_equal(config.head_dim_from, "key 'head_dim'");
	assert_true(config.tied_head);
}

static void families_differ_as_their_classes_do(void **state)
{
	struct model_config config;
	reads("{\"architectures\":[\"Qwen2ForCausalLM\"],\"model_type\":\"qwen2\"}", &config);
	assert_true(config.has_qkv_bias && !config.has_qk_norm);
	reads("{\"architectures\":[\"Qwen3ForCausalLM\"],\"model_type\":\"qwen3\",\"head_dim\":16}", &config);
	assert_true(config.has_qk_norm && !config.has_qkv_bias);
	reads("{\"architectures\":[\"MistralForCausalLM\"],\"model_type\":\"mistral\"}", &config);
	assert_false(config.has_qk_norm || config.has_qkv_bias);
}

static void windows_shorten_the_context_where_they_count(void **state)
{
	static const struct {
		const char *change;
		int context;
	} cases[] = {
		{"{\"architectures\":[\"MistralForCausalLM\"],\"model_type\":\"mistral\",\"sliding_window\":100}", 100},
		{"{\"architectures\":[\"MistralForCausalLM\"],\"model_type\":\"mistral\",\"sliding_window\":4096}", 4096},
		{"{\"architectures\":[\"MistralForCausalLM\"],\"model_type\":\"mistral\",\"sliding_window\":null}", 4096},
		{"{\"architectures\":[\"Qwen2ForCausalLM\"],\"model_type\":\"qwen2\",\"sliding_window\":100,"
		 "\"use_sliding_window\":false}",
			4096},
		{"{\"architectures\":[\"Qwen2ForCausalLM\"],\"model_type\":\"qwen2\",\"sliding_window\":100,"
		 "\"use_sliding_window\":true}",
			100},
		{"{\"architectures\":[\"Qwen2ForCausalLM\"],\"model_type\":\"qwen2\",\"sliding_window\":100,"
		 "\"layer_types\":[\"full_attention\",\"full_attention\",\"sliding_attention\"]}",
			100},
	};
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		struct model_config config;
		reads(cases[i].change, &config);
		assert_int_equal(config.context, cases[i].context);
	}
}

static void refuses(const char *change, const char *code, const char *expected)
{
	struct model_config config;
	struct err err = {0};
	if (read_changed(change, &config, &err) != STATUS_INPUT || !strstr(err.text, expected))
		fail_msg("%s: expected '%s' in: %s", change, expected, err.text);
	assert_true(strncmp(err.text, "config.json", strlen("config.json")) == 0);
	assert_string_equal(err.code, code);
}

static void required_keys_are_named_when_missing_or_wrong(void **state)
{
	static const char *const required[] = {"hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
		"vocab_size", "max_position_embeddings", "rms_norm_eps"};
	char change[128], expected[128];
	for (size_t i = 0; i < sizeof required / sizeof required[0]; i++) {
		snprintf(expected, sizeof expected, "key '%s'", required[i]);
		static const char *const values[] = {"\"DROP\"", "null", "\"x\"", "-1", "[]", "1e300", "true"};
		for (size_t k = 0; k < sizeof values / sizeof values[0]; k++) {
			snprintf(change, sizeof change, "{\"%s\":%s}", required[i], values[k]);
			refuses(change, "", expected);
		}
	}
	refuses("{\"architectures\":\"DROP\",\"model_type\":\"DROP\"}", "", "key 'architectures' is missing");
	refuses("{\"architectures\":[\"MistralForCausalLM\"],\"model_type\":\"mistral\",\"num_key_value_heads\":\"DROP\"}", "",
		"key 'num_key_value_heads' is missing");
	refuses("{\"architectures\":[\"Qwen3ForCausalLM\"],\"model_type\":\"qwen3\"}", "", "key 'head_dim' is missing");
}

static void contradictions_are_refused(void **state)
{
	refuses("{\"model_type\":\"qwen2\"}", "", "model_type 'qwen2' contradicts architecture LlamaForCausalLM");
	refuses("{\"architectures\":[\"LlamaForCausalLM\",\"Qwen2ForCausalLM\"]}", "", "no list of one name");
	refuses("{\"architectures\":[]}", "", "no list of one name");
	refuses("{\"architectures\":7}", "", "no list of one name");
	refuses("{\"num_key_value_heads\":3}", "", "8 query heads cannot share 3 key/value heads evenly");
	refuses("{\"num_attention_heads\":6,\"num_key_value_heads\":6}", "", "hidden_size 64 is no multiple");
	refuses("{\"head_dim\":7}", "", "head size 7");
	refuses("{\"layer_types\":[\"full_attention\"]}", "", "no list of num_hidden_layers 3");
	refuses("{\"layer_types\":[\"full_attention\",\"full_attention\",\"sliding_attention\"]}", "", "sliding_window is missing");
	refuses("{\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":2},\"rope_parameters\":{\"rope_type\":\"default\"}}", "",
		"contradict each other");
	refuses("{\"architectures\":[\"Qwen2ForCausalLM\"],\"model_type\":\"qwen2\",\"attention_bias\":false}", "unsupported_model",
		"key 'attention_bias' is false");
}

static void what_would_change_the_computation_is_refused_by_name(void **state)
{
	static const struct {
		const char *change, *expected;
	} cases[] = {
		{"{\"architectures\":[\"MixtralForCausalLM\"],\"model_type\":\"mixtral\"}", "architecture 'MixtralForCausalLM'"},
		{"{\"architectures\":\"DROP\",\"model_type\":\"gemma2\"}", "architecture 'gemma2'"},
		{"{\"architectures\":[\"\\u001b[2J\"]}", "architecture '?[2J'"},
		{"{\"attention_bias\":true}", "key 'attention_bias' is true"},
		{"{\"mlp_bias\":true}", "key 'mlp_bias' is true"},
		{"{\"rope_interleaved\":true}", "key 'rope_interleaved' is true"},
		{"{\"hidden_act\":\"gelu\"}", "key 'hidden_act' is 'gelu'"},
		{"{\"partial_rotary_factor\":0.5}", "key 'partial_rotary_factor' is 0.5"},
		{"{\"num_local_experts\":8}", "key 'num_local_experts' is not known"},
		{"{\"final_logit_softcapping\":30.0}", "key 'final_logit_softcapping' is not known"},
		{"{\"layer_types\":[\"full_attention\",\"chunked_attention\",\"full_attention\"]}",
			"key 'layer_types[1]' is 'chunked_attention'"},
		{"{\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":4}}", "rope_scaling: rope type 'yarn'"},
		{"{\"rope_scaling\":{\"type\":\"dynamic\",\"factor\":4}}", "rope_scaling: rope type 'dynamic'"},
		{"{\"rope_scaling\":{\"factor\":4}}", "rope_scaling: rope type ''"},
		{"{\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":4,\"attention_factor\":1.2}}",
			"key 'rope_scaling.attention_factor' is not known"},
		{"{\"rope_parameters\":{\"rope_type\":\"default\",\"partial_rotary_factor\":0.5}}",
			"key 'rope_parameters.partial_rotary_factor' is 0.5"},
		{"{\"quantization_config\":{\"quant_method\":\"gptq\",\"bits\":4}}", "method 'gptq' is not supported"},
		{"{\"quantization_config\":{\"quant_method\":\"fp8\",\"weight_block_size\":[64,128]}}", "weight_block_size"},
		{"{\"quantization_config\":{\"quant_method\":\"compressed-tensors\",\"config_groups\":{\"g\":{\"weights\":"
		 "{\"num_bits\":4,\"type\":\"int\"}}}}}",
			"only weights of 8-bit floats"},
	};
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
		refuses(cases[i].change, "unsupported_model", cases[i].expected);
	refuses("{\"rope_scaling\":7}", "", "key 'rope_scaling' is no object");
	refuses("{\"rope_scaling\":{\"rope_type\":\"linear\"}}", "", "key 'rope_scaling.factor' is missing");
	refuses("{\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8,\"low_freq_factor\":1,\"high_freq_factor\":4}}", "",
		"key 'rope_scaling.original_max_position_embeddings' is missing");
	refuses("{\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8,\"low_freq_factor\":4,\"high_freq_factor\":4,"
		"\"original_max_position_embeddings\":64}}",
		"", "high_freq_factor 4 is not above low_freq_factor 4");
	refuses("{\"rope_theta\":0.5}", "", "key 'rope_theta' is 0.5");
}

static void quantised_weights_of_8_bit_floats_are_accepted(void **state)
{
	struct model_config config;
	reads("{\"quantization_config\":{\"quant_method\":\"fp8\",\"weight_block_size\":[128,128],\"fmt\":\"e4m3\"}}", &config);
	reads("{\"quantization_config\":{\"quant_method\":\"compressed-tensors\",\"kv_cache_scheme\":null,\"config_groups\":{\"g\":"
	      "{\"weights\":{\"num_bits\":8,\"type\":\"float\",\"strategy\":\"channel\"}}}}}",
		&config);
}

/* ---- field cases ---- */

/* M19: rope scaling of type llama3 was ignored, or refused because of the older spelling of its key. */
static void llama3_scaling_is_read_in_both_spellings(void **state)
{
	static const char *const names[] = {"m19a_rope_llama3_rope_type", "m19b_rope_llama3_type", "m19c_rope_unknown"};
	for (int i = 0; i < 3; i++) {
		struct text content = {0};
		struct json *field = NULL, *scaling;
		struct text change = {0};
		struct model_config config;
		struct err err = {0};
		char path[128];
		snprintf(path, sizeof path, FIELD "%s.json", names[i]);
		assert_int_equal(file_read(path, 4096, &content, NULL), STATUS_OK);
		assert_int_equal(json_parse(text_str(&content), content.len, path, &field, NULL), STATUS_OK);
		scaling = json_get(field, "rope_scaling");
		text_append_str(&change, "{\"head_dim\":64,\"rope_theta\":500000.0,\"rope_scaling\":");
		json_write(scaling, JSON_STYLE_COMPACT, &change);
		text_append_str(&change, "}");
		enum status status = read_changed(text_str(&change), &config, &err);
		if (i == 2) {
			assert_int_equal(status, STATUS_INPUT);
			assert_non_null(strstr(err.text, "rope type 'spiral' is not supported"));
		} else {
			if (status != STATUS_OK)
				fail_msg("%s: %s", names[i], err.text);
			/* High frequencies stay, low ones are divided by 8, and between lies a slope. */
			assert_true(config.has_rope_factors && config.rope_factors[0] == 1 && config.rope_factors[31] == 8);
			assert_true(config.rope_factors[17] > 1 && config.rope_factors[17] < 8);
		}
		text_release(&change);
		text_release(&content);
		json_free(field);
	}
}

static enum status open_model(const char *folder, struct source *source, struct model_config *config, struct err *err)
{
	enum status status = source_open(folder, source, err);
	return status == STATUS_OK ? model_config_read(source, config, err) : status;
}

/* M16: one shard without an index and a tied head; a flag that says false although there is no head. */
static void a_tied_head_is_the_embedding_and_a_missing_one_is_named(void **state)
{
	struct source source;
	struct model_config config;
	struct err err = {0};
	if (open_model(FIELD "m16a_tied", &source, &config, &err) != STATUS_OK)
		fail_msg("%s", err.text);
	struct model_ends ends;
	model_ends_find(&source, &config, &ends);
	assert_ptr_equal(ends.output.data, ends.embedding.data);
	assert_string_equal(config.name, "m16a_tied");
	source_close(&source);
	assert_int_equal(open_model(FIELD "m16b_untied_no_head", &source, &config, &err), STATUS_INPUT);
	assert_non_null(strstr(err.text, "tensor 'lm_head.weight' is missing"));
	source_close(&source);
}

static void a_folder_with_other_tensors_is_refused_by_name(void **state)
{
	struct temp_folder folder;
	struct source source;
	struct model_config config;
	struct err err = {0};
	temp_folder_make(&folder);
	/* The weights of Qwen2 have biases, which a Llama has not. */
	temp_folder_copy(&folder, "tests/golden/families/qwen2", "model.safetensors");
	temp_folder_write_text(&folder, "config.json",
		"{\"architectures\":[\"LlamaForCausalLM\"],\"hidden_size\":32,\"intermediate_size\":32,\"num_hidden_layers\":2,"
		"\"num_attention_heads\":2,\"num_key_value_heads\":1,\"head_dim\":64,\"vocab_size\":320,\"tie_word_embeddings\":"
		"true,"
		"\"max_position_embeddings\":512,\"rms_norm_eps\":1e-5}");
	assert_int_equal(open_model(folder.path, &source, &config, &err), STATUS_INPUT);
	assert_non_null(strstr(err.text, "tensor 'model.layers.0.self_attn.k_proj.bias' is not part of a LlamaForCausalLM"));
	assert_string_equal(err.code, "unsupported_model");
	source_close(&source);
	temp_folder_write_text(&folder, "config.json", "");
	err_clear(&err);
	assert_int_equal(open_model(folder.path, &source, &config, &err), STATUS_INPUT);
	assert_non_null(strstr(err.text, "config.json is empty"));
	temp_folder_write_text(&folder, "config.json", "[]");
	err_clear(&err);
	assert_int_equal(open_model(folder.path, &source, &config, &err), STATUS_INPUT);
	assert_non_null(strstr(err.text, "config.json: no JSON object"));
	source_close(&source);
	temp_folder_remove(&folder);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_sound_file_is_read_with_its_defaults),
		cmocka_unit_test(families_differ_as_their_classes_do),
		cmocka_unit_test(windows_shorten_the_context_where_they_count),
		cmocka_unit_test(required_keys_are_named_when_missing_or_wrong),
		cmocka_unit_test(contradictions_are_refused),
		cmocka_unit_test(what_would_change_the_computation_is_refused_by_name),
		cmocka_unit_test(quantised_weights_of_8_bit_floats_are_accepted),
		cmocka_unit_test(llama3_scaling_is_read_in_both_spellings),
		cmocka_unit_test(a_tied_head_is_the_embedding_and_a_missing_one_is_named),
		cmocka_unit_test(a_folder_with_other_tensors_is_refused_by_name),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
