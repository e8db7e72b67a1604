/* Models made up from a shape: what they look like to the engine, and shapes that are refused. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/file.h"
#include "base/mem.h"
#include "engine/commands.h"
#include "engine/dummy.h"
#include "engine/shape.h"
#include "tests/support/engine_bed.h"

/* Writes a JSON shape at a new path under /tmp. */
static void write_json(const char *json, char path[TINY_PATH_BYTES])
{
	snprintf(path, TINY_PATH_BYTES, "/tmp/verdict-shape-%d.json", (int)getpid());
	assert_int_equal(file_write_atomic(path, json, strlen(json), NULL), STATUS_OK);
}

#define SMALL \
	"{\"hidden_size\": 256, \"intermediate_size\": 512, \"num_hidden_layers\": 3, \"num_attention_heads\": 4, " \
	"\"num_key_value_heads\": 2, \"vocab_size\": 300, \"architectures\": [\"LlamaForCausalLM\"]"

static void scale_rows(const struct gguf *gguf, const char *name, int64_t rows, int64_t cols, float *values)
{
	char scales_name[80];
	snprintf(scales_name, sizeof scales_name, "%s_scale", name);
	const struct gguf_tensor *scales = gguf_find_tensor(gguf, scales_name);
	assert_non_null(scales);
	assert_int_equal(scales->dtype, DTYPE_F32);
	assert_int_equal(scales->n_dims, 1);
	assert_int_equal(scales->dims[0], rows);
	for (int64_t i = 0; i < rows * cols; i++)
		values[i] *= ((const float *)(const void *)scales->data)[i / cols];
}

static double spread_of(const struct gguf *gguf, const char *name)
{
	const struct gguf_tensor *tensor = gguf_find_tensor(gguf, name);
	assert_non_null(tensor);
	int64_t count = tensor->dims[0] * tensor->dims[1];
	float *values = mem_calloc((size_t)count, sizeof *values);
	dtype_dequantize(tensor->dtype, tensor->data, values, count);
	if (tensor->dtype == DTYPE_F8_E4M3)
		scale_rows(gguf, name, tensor->dims[1], tensor->dims[0], values);
	double sum = 0, squares = 0;
	for (int64_t i = 0; i < count; i++) {
		assert_true(isfinite(values[i]));
		sum += (double)values[i];
		squares += (double)values[i] * (double)values[i];
	}
	mem_free(values);
	assert_true(fabs(sum / (double)count) < 0.005);
	return sqrt(squares / (double)count);
}

static void weights_of_every_type_are_finite_and_of_one_spread(void **state)
{
	static const char *const types[] = {"bf16", "f16", "f32", "fp8", "q8_0", "q4_0", "q4_1", "q4_k_m"};
	for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
		char json[512], path[TINY_PATH_BYTES], spec[TINY_PATH_BYTES + 8];
		struct gguf gguf;
		struct err err = {0};
		snprintf(json, sizeof json, SMALL ", \"dtype\": \"%s\"}", types[i]);
		write_json(json, path);
		snprintf(spec, sizeof spec, "shape:%s", path);
		assert_int_equal(gguf_open(spec, &gguf, &err), STATUS_OK);
		static const char *const names[] = {"blk.0.attn_q.weight", "blk.2.ffn_down.weight", "output.weight"};
		for (size_t k = 0; k < sizeof names / sizeof names[0]; k++) {
			double spread = spread_of(&gguf, names[k]);
			if (spread < 0.01 || spread > 0.04)
				fail_msg("%s of type %s has spread %g", names[k], types[i], spread);
		}
		gguf_close(&gguf);
		unlink(path);
	}
}

static void same_name_gives_the_same_bytes(void **state)
{
	struct file_map a, b;
	assert_int_equal(dummy_map_open("shape:tiny-bf16", &a, NULL), STATUS_OK);
	assert_int_equal(dummy_map_open("shape:tiny-bf16", &b, NULL), STATUS_OK);
	assert_int_equal(a.size, b.size);
	assert_memory_equal(a.data, b.data, a.size);
	file_map_close(&a);
	file_map_close(&b);
}

static void large_shapes_take_no_memory_until_they_are_read(void **state)
{
	struct gguf gguf;
	uint64_t layers = 0;
	struct err err = {0};
	assert_int_equal(gguf_open("shape:llama-8b-bf16", &gguf, &err), STATUS_OK);
	assert_true(gguf.map.size > (size_t)16e9 && gguf.map.size < (size_t)16.2e9);
	assert_int_equal(gguf_get_u64(&gguf, "llama.block_count", true, &layers, &err), STATUS_OK);
	assert_int_equal(layers, 32);
	const struct gguf_tensor *head = gguf_find_tensor(&gguf, "output.weight");
	assert_non_null(head);
	assert_int_equal(head->dims[1], 128256);
	gguf_close(&gguf);
}

static void engine_runs_on_a_made_up_model_and_repeats_itself(void **state)
{
	struct engine_options options;
	struct bed_run first, second;
	static const char *const names[] = {"tiny-bf16", "tiny-fp8"};
	for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
		bed_options(names[i], &options);
		options.load_format = "dummy";
		for (int tp = 1; tp <= 2; tp++) {
			struct bed_run *run = tp == 1 ? &first : &second;
			options.tp = tp;
			struct engine *engine = bed_open(&options, NULL);
			bed_run_init(run, 7, 20, 12);
			bed_run(engine, run);
			assert_int_equal(run->result.finish, FINISH_LENGTH);
			assert_int_equal(run->n_tokens, 12);
			engine_destroy(engine);
		}
		assert_memory_equal(first.tokens, second.tokens, 12 * sizeof first.tokens[0]);
	}
}

static void made_up_8_bit_floats_come_with_the_scales_of_their_rows(void **state)
{
	struct source source;
	struct model_config config;
	struct model_layer layer;
	struct model_ends ends;
	struct err err = {0};
	assert_int_equal(source_open("shape:tiny-fp8", &source, &err), STATUS_OK);
	assert_int_equal(model_config_read(&source, &config, &err), STATUS_OK);
	model_layer_find(&source, &config, 1, &layer);
	model_ends_find(&source, &config, &ends);
	const struct model_tensor *matrices[] = {
		&layer.q, &layer.k, &layer.v, &layer.attention_output, &layer.gate, &layer.up, &layer.down, &ends.output};
	for (size_t i = 0; i < sizeof matrices / sizeof matrices[0]; i++) {
		const struct model_tensor *matrix = matrices[i];
		assert_int_equal(matrix->dtype, DTYPE_F8_E4M3);
		assert_int_equal(matrix->scale_rows, 1);
		assert_int_equal(matrix->scale_cols, model_tensor_cols(matrix));
		for (int64_t row = 0; row < model_tensor_rows(matrix); row++)
			assert_true(matrix->scales[row] > 0.02f / 64 * 0.9f && matrix->scales[row] < 0.02f / 64 * 1.1f);
		assert_true(matrix->scales[0] != matrix->scales[1]);
	}
	assert_int_equal(ends.embedding.dtype, DTYPE_BF16);
	assert_null(ends.embedding.scales);
	source_close(&source);
}

/* The same bytes behind a file's name: a type without scales beside it must not reach a kernel. */
static void files_cannot_hold_what_made_up_models_hold(void **state)
{
	struct file_map map;
	struct gguf gguf;
	struct err err = {0};
	assert_int_equal(dummy_map_open("shape:tiny-fp8", &map, &err), STATUS_OK);
	assert_int_equal(gguf_open_bytes(map.data, map.size, "model.gguf", &gguf, &err), STATUS_INPUT);
	assert_non_null(strstr(err.text, "unknown type 1000"));
	file_map_close(&map);
}

static void text_of_a_made_up_model_reads_back(void **state)
{
	struct source source;
	struct tokenizer *tokenizer;
	struct token_list ids = {0};
	struct text out = {0};
	assert_int_equal(source_open("shape:tiny-f32", &source, NULL), STATUS_OK);
	assert_int_equal(tokenizer_open(&source, NULL, &tokenizer, NULL), STATUS_OK);
	assert_int_equal(tokenizer_vocab_size(tokenizer), 512);
	static const char text[] = "Caf\xc3\xa9 \n\x01";
	assert_int_equal(tokenizer_encode(tokenizer, text, sizeof text - 1, true, &ids, NULL), STATUS_OK);
	assert_int_equal(ids.count, sizeof text - 1);
	for (size_t i = 0; i < ids.count; i++)
		assert_true(tokenizer_decode_one(tokenizer, ids.ids[i], false, &out));
	assert_string_equal(text_str(&out), text);
	text_clear(&out);
	assert_true(tokenizer_decode_one(tokenizer, 300, false, &out));
	assert_string_equal(text_str(&out), " t300");
	text_release(&out);
	token_list_release(&ids);
	tokenizer_close(tokenizer);
	source_close(&source);
}

static void unknown_shapes_and_types_are_refused_with_what_exists(void **state)
{
	static const struct {
		const char *spec, *expected;
	} cases[] = {
		{"llama-9b-bf16", "llama-8b"},
		{"llama-8b", "SHAPE-TYPE"},
		{"llama-8b-q3_k", "q4_k_m"},
		{"smollm2-135m-q4_k_m", "no multiples of 256"},
		{"", "llama-8b"},
		{"/tmp/there-is-no-such.json", "there-is-no-such"},
	};
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		struct shape shape;
		struct err err = {0};
		assert_int_not_equal(shape_find(cases[i].spec, &shape, &err), STATUS_OK);
		if (!strstr(err.text, cases[i].expected))
			fail_msg("'%s' is refused with '%s'", cases[i].spec, err.text);
	}
}

static void broken_json_shapes_are_refused_by_key(void **state)
{
	static const struct {
		const char *json, *expected;
	} cases[] = {
		{"[]", "expected an object"},
		{"{\"hidden_size\": 64}", "intermediate_size"},
		{SMALL ", \"head_dim\": -1}", "head_dim"},
		{SMALL ", \"max_position_embeddings\": \"8192\"}", "max_position_embeddings"},
		{SMALL ", \"dtype\": \"int3\"}", "int3"},
		{"{", ":1:"},
	};
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		char path[TINY_PATH_BYTES];
		struct shape shape;
		struct err err = {0};
		write_json(cases[i].json, path);
		assert_int_not_equal(shape_find(path, &shape, &err), STATUS_OK);
		if (!strstr(err.text, cases[i].expected))
			fail_msg("case %zu is refused with '%s'", i, err.text);
		unlink(path);
	}
}

int main(int argc, char **argv)
{
	if (argc > 1 && strcmp(argv[1], "rank") == 0) /* this program, started again as another rank */
		return status_exit_code(cmd_rank(argc - 1, argv + 1, NULL));
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(weights_of_every_type_are_finite_and_of_one_spread),
		cmocka_unit_test(same_name_gives_the_same_bytes),
		cmocka_unit_test(large_shapes_take_no_memory_until_they_are_read),
		cmocka_unit_test(engine_runs_on_a_made_up_model_and_repeats_itself),
		cmocka_unit_test(made_up_8_bit_floats_come_with_the_scales_of_their_rows),
		cmocka_unit_test(files_cannot_hold_what_made_up_models_hold),
		cmocka_unit_test(text_of_a_made_up_model_reads_back),
		cmocka_unit_test(unknown_shapes_and_types_are_refused_with_what_exists),
		cmocka_unit_test(broken_json_shapes_are_refused_by_key),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
