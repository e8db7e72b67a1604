/* Which model files are accepted, and what is said about those that are not. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/model.h"
#include "engine/source.h"
#include "tests/support/tiny_gguf.h"

/* Reads the configuration of a file; the map stays open for the caller when it is accepted. */
static enum status read_model(const struct tiny_model *model, struct source *source, struct model_config *config, struct err *err)
{
	char path[TINY_PATH_BYTES];
	tiny_model_write_temp(model, path);
	enum status status = source_open(path, source, err);
	unlink(path);
	assert_int_equal(status, STATUS_OK);
	return model_config_read(source, config, err);
}

static void assert_refused(const struct tiny_model *model, const char *code, const char *expected)
{
	struct source source = {0};
	struct model_config config;
	struct err err = {0};
	assert_int_equal(read_model(model, &source, &config, &err), STATUS_INPUT);
	if (!strstr(err.text, expected))
		fail_msg("expected '%s' in: %s", expected, err.text);
	assert_string_equal(err.code, code);
	source_close(&source);
}

static void a_sound_model_is_read(void **state)
{
	struct tiny_model model = tiny_model_default();
	struct source source = {0};
	struct model_config config;
	struct err err = {0};
	model.rope_factors = true;
	model.tied = true;
	assert_int_equal(read_model(&model, &source, &config, &err), STATUS_OK);
	assert_string_equal(config.arch, "llama");
	assert_string_equal(config.name, "tiny");
	assert_int_equal(config.n_layers, 2);
	assert_int_equal(config.hidden, 64);
	assert_int_equal(config.ffn, 128);
	assert_int_equal(config.n_heads, 4);
	assert_int_equal(config.n_kv_heads, 2);
	assert_int_equal(config.head_dim, 16);
	assert_int_equal(config.vocab, 288);
	assert_int_equal(config.context, 256);
	assert_true(config.rope_base == 10000.0 && config.rope_scale == 1.0 && config.norm_eps == 1e-5f);
	assert_int_equal(config.rope_interleaved, 1);
	assert_true(config.tied_head && config.has_rope_factors);
	assert_int_equal(config.ffn_block, 1);
	source_close(&source);
}

static void the_coarsest_block_of_all_layers_counts(void **state)
{
	struct tiny_model model = tiny_model_default();
	struct source source = {0};
	struct model_config config;
	struct err err = {0};
	model.hidden = model.ffn = 256;
	model.head_dim = 64;
	model.dtype = DTYPE_Q4_0;
	model.value_dtype = DTYPE_Q6_K;
	assert_int_equal(read_model(&model, &source, &config, &err), STATUS_OK);
	assert_int_equal(config.ffn_block, 256);
	assert_int_equal(config.attention_block, 32);
	source_close(&source);
}

static void optional_keys_have_their_defaults(void **state)
{
	static const char *const optional[] = {"llama.attention.head_count_kv", "llama.attention.key_length",
		"llama.rope.dimension_count", "llama.rope.freq_base", "llama.vocab_size"};
	for (size_t i = 0; i < sizeof optional / sizeof optional[0]; i++) {
		struct tiny_model model = tiny_model_default();
		struct source source = {0};
		struct model_config config;
		struct err err = {0};
		model.n_kv_heads = model.n_heads; /* the default */
		model.without_key = optional[i];
		if (read_model(&model, &source, &config, &err) != STATUS_OK)
			fail_msg("without %s: %s", optional[i], err.text);
		source_close(&source);
	}
}

static void required_keys_are_named_when_missing(void **state)
{
	static const char *const required[] = {"general.architecture", "llama.block_count", "llama.embedding_length",
		"llama.feed_forward_length", "llama.context_length", "llama.attention.head_count",
		"llama.attention.layer_norm_rms_epsilon"};
	for (size_t i = 0; i < sizeof required / sizeof required[0]; i++) {
		struct tiny_model model = tiny_model_default();
		model.without_key = required[i];
		assert_refused(&model, "", required[i]);
	}
}

static void missing_and_misshaped_tensors_are_named(void **state)
{
	static const char *const names[] = {"token_embd.weight", "output_norm.weight", "blk.0.attn_norm.weight",
		"blk.1.attn_q.weight", "blk.1.attn_k.weight", "blk.0.attn_v.weight", "blk.0.attn_output.weight",
		"blk.1.ffn_norm.weight", "blk.0.ffn_gate.weight", "blk.1.ffn_up.weight", "blk.1.ffn_down.weight"};
	for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
		struct tiny_model model = tiny_model_default();
		char expected[96];
		model.without_tensor = names[i];
		snprintf(expected, sizeof expected, "tensor '%s' is missing", names[i]);
		assert_refused(&model, "", expected);
	}
	struct tiny_model narrow = tiny_model_default();
	narrow.narrow_tensor = "blk.1.attn_output.weight";
	assert_refused(&narrow, "", "tensor 'blk.1.attn_output.weight' has shape [64, 32], expected [64, 64]");
	narrow.narrow_tensor = "output.weight";
	assert_refused(&narrow, "", "tensor 'output.weight' has shape [288, 32], expected [288, 64]");
}

static void what_the_forward_pass_does_not_know_is_refused_by_name(void **state)
{
	struct tiny_model model = tiny_model_default();
	model.architecture = "qwen3moe";
	assert_refused(&model, "unsupported_model", "architecture 'qwen3moe' is not supported");
	model = tiny_model_default();
	model.experts = 8;
	assert_refused(&model, "unsupported_model", "mixture of 8 experts");
	model = tiny_model_default();
	model.rope_scaling = "yarn";
	assert_refused(&model, "unsupported_model", "rope scaling 'yarn' is not supported");
	static const char *const strange[] = {"blk.0.attn_q.bias", "blk.2.attn_q.weight", "blk.00.attn_q.weight",
		"blk.-1.attn_q.weight", "blk.0.attn_q_norm.weight", "output.bias", "blk."};
	for (size_t i = 0; i < sizeof strange / sizeof strange[0]; i++) {
		model = tiny_model_default();
		model.extra_tensor = strange[i];
		assert_refused(&model, "unsupported_model", strange[i]);
	}
}

static void a_family_has_its_own_tensors_and_no_others(void **state)
{
	static const struct {
		const char *architecture, *has, *has_not;
	} cases[] = {
		{"qwen2", "blk.1.attn_k.bias", "blk.0.attn_q_norm.weight"},
		{"qwen3", "blk.1.attn_k_norm.weight", "blk.0.attn_q.bias"},
	};
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		struct tiny_model model = tiny_model_default();
		struct source source = {0};
		struct model_config config;
		struct err err = {0};
		char expected[96];
		model.architecture = cases[i].architecture;
		assert_int_equal(read_model(&model, &source, &config, &err), STATUS_OK);
		assert_string_equal(config.arch, cases[i].architecture);
		assert_int_equal(config.rope_interleaved, 0);
		assert_int_equal(config.has_qkv_bias, i == 0);
		assert_int_equal(config.has_qk_norm, i == 1);
		source_close(&source);
		model.without_tensor = cases[i].has;
		snprintf(expected, sizeof expected, "tensor '%s' is missing", cases[i].has);
		assert_refused(&model, "", expected);
		model.without_tensor = NULL;
		model.extra_tensor = cases[i].has_not;
		assert_refused(&model, "unsupported_model", cases[i].has_not);
	}
}

static void keys_that_change_the_result_are_refused_by_name(void **state)
{
	static const struct {
		const char *key;
		double value;
		const char *expected;
	} cases[] = {
		{"llama.attention.scale", 0.1, "key 'llama.attention.scale' is 0.1, and only 0.25 is supported"},
		{"llama.rope.scaling.attn_factor", 1.5, "key 'llama.rope.scaling.attn_factor' is 1.5"},
		{"llama.logit_scale", 8, "key 'llama.logit_scale' is 8"},
		{"llama.residual_scale", 0.5, "key 'llama.residual_scale' is not known"},
		{"llama.attn_logit_softcapping", 50, "key 'llama.attn_logit_softcapping' is not known"},
	};
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		struct tiny_model model = tiny_model_default();
		model.extra_key = cases[i].key;
		model.extra_value = cases[i].value;
		assert_refused(&model, "unsupported_model", cases[i].expected);
	}
}

static void a_sliding_window_shortens_the_context_to_what_it_leaves_unchanged(void **state)
{
	static const struct {
		int window, context;
	} cases[] = {{0, 256}, {100, 100}, {256, 256}, {4096, 256}};
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		struct tiny_model model = tiny_model_default();
		struct source source = {0};
		struct model_config config;
		struct err err = {0};
		model.sliding_window = cases[i].window;
		assert_int_equal(read_model(&model, &source, &config, &err), STATUS_OK);
		assert_int_equal(config.context, cases[i].context);
		source_close(&source);
	}
}

static void a_stored_type_without_kernels_is_refused_by_name(void **state)
{
	struct tiny_model model = tiny_model_default();
	struct source source = {0};
	struct model_config config;
	struct err err = {0};
	assert_int_equal(read_model(&model, &source, &config, &err), STATUS_OK);
	const struct gguf *gguf = source_gguf(&source);
	for (size_t i = 0; i < gguf->n_tensors; i++)
		if (gguf->tensors[i].name.len == strlen("blk.1.ffn_up.weight") &&
			memcmp(gguf->tensors[i].name.data, "blk.1.ffn_up.weight", gguf->tensors[i].name.len) == 0)
			gguf->tensors[i].dtype = (enum dtype)6; /* Q5_0 */
	assert_int_equal(model_config_read(&source, &config, &err), STATUS_INPUT);
	assert_non_null(strstr(err.text, "tensor 'blk.1.ffn_up.weight' has type Q5_0, which is not supported"));
	assert_string_equal(err.code, "unsupported_model");
	source_close(&source);
}

/* Field case M10: a mixture-of-experts file was called truncated because dense tensor names were looked for. */
static void an_expert_file_is_unsupported_not_damaged(void **state)
{
	struct source source = {0};
	struct model_config config;
	struct err err = {0};
	assert_int_equal(source_open("tests/golden/field/m10_moe_names.gguf", &source, &err), STATUS_OK);
	assert_int_equal(model_config_read(&source, &config, &err), STATUS_INPUT);
	assert_non_null(strstr(err.text, "architecture 'qwen3moe' is not supported"));
	assert_null(strstr(err.text, "missing"));
	assert_string_equal(err.code, "unsupported_model");
	source_close(&source);
}

static void impossible_hyper_parameters_are_refused(void **state)
{
	struct tiny_model model = tiny_model_default();
	model.n_kv_heads = 3;
	assert_refused(&model, "", "4 query heads cannot share 3 key/value heads evenly");
	model = tiny_model_default();
	model.head_dim = 15;
	assert_refused(&model, "", "head size 15");
	model = tiny_model_default();
	model.n_layers = 0;
	assert_refused(&model, "", "llama.block_count");
	model = tiny_model_default();
	model.rope_base = 0.5;
	assert_refused(&model, "", "llama.rope.freq_base");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_sound_model_is_read),
		cmocka_unit_test(the_coarsest_block_of_all_layers_counts),
		cmocka_unit_test(optional_keys_have_their_defaults),
		cmocka_unit_test(required_keys_are_named_when_missing),
		cmocka_unit_test(missing_and_misshaped_tensors_are_named),
		cmocka_unit_test(what_the_forward_pass_does_not_know_is_refused_by_name),
		cmocka_unit_test(a_family_has_its_own_tensors_and_no_others),
		cmocka_unit_test(keys_that_change_the_result_are_refused_by_name),
		cmocka_unit_test(a_sliding_window_shortens_the_context_to_what_it_leaves_unchanged),
		cmocka_unit_test(a_stored_type_without_kernels_is_refused_by_name),
		cmocka_unit_test(an_expert_file_is_unsupported_not_damaged),
		cmocka_unit_test(impossible_hyper_parameters_are_refused),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
