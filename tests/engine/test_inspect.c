/* Tests of engine/inspect and the inspect and tokenize commands. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>

#include "base/json.h"
#include "base/utf8.h"
#include "engine/commands.h"
#include "engine/inspect.h"
#include "tests/support/capture.h"
#include "tests/support/gguf_build.h"
#include "tests/support/real_model.h"

#define FIELD "tests/golden/field/"

static enum status inspect(const char *path, const char *flag, struct text *out, struct err *err)
{
	const char *const argv[] = {"inspect", "--model", path, flag, NULL};

	return capture_command(cmd_inspect, argv, "", 0, out, err);
}

static struct json *parse(const struct text *out)
{
	struct json *root = NULL;
	struct err err = {0};

	if (json_parse(text_str(out), out->len, "output", &root, &err))
		fail_msg("%s: %s", err.text, text_str(out));
	return root;
}

/* Inspect. ---------------------------------------------------------------------------------------------------------- */

static void listing_of_the_real_model_is_complete(void **state)
{
	struct text out = {0};
	struct err err = {0};
	struct json *root;
	const struct json *tensor, *merges;

	assert_int_equal(inspect(real_model_path(), "--json", &out, &err), STATUS_OK);
	root = parse(&out);
	assert_int_equal(json_count(json_get(root, "metadata")), 33);
	assert_int_equal(json_count(json_get(root, "tensors")), 272);
	assert_int_equal(json_int(json_get(json_get(root, "totals"), "parameters"), 0), 134515008);
	assert_int_equal(json_int(json_get(root, "file_bytes"), 0), 98362432);
	tensor = json_at(json_get(root, "tensors"), 0);
	assert_string_equal(json_text(json_get(tensor, "name")), "token_embd.weight");
	assert_string_equal(json_text(json_get(tensor, "type")), "Q8_0");
	assert_int_equal(json_int(json_at(json_get(tensor, "shape"), 0), 0), 49152);
	assert_int_equal(json_int(json_at(json_get(tensor, "dims"), 0), 0), 576);
	assert_int_equal(json_int(json_get(tensor, "offset"), 0), 1785664);
	assert_int_equal(json_int(json_get(tensor, "bytes"), 0), 30081024);
	assert_true(json_bool(json_get(tensor, "supported"), false));
	merges = json_get(json_get(root, "metadata"), "tokenizer.ggml.merges");
	assert_int_equal(json_int(json_get(merges, "count"), 0), 48900);
	assert_int_equal(json_count(json_get(merges, "first")), 5);
	json_free(root);
	text_clear(&out);

	assert_int_equal(inspect(real_model_path(), NULL, &out, &err), STATUS_OK);
	assert_non_null(strstr(text_str(&out), "blk.29.ffn_down.weight"));
	assert_non_null(strstr(text_str(&out), "134515008 parameters in 96576768 bytes"));
	text_release(&out);
}

static void refused_files_say_why_on_both_streams(void **state)
{
	struct text out = {0};
	struct err err = {0};
	struct json *root;

	assert_int_equal(status_exit_code(inspect(FIELD "m03a_alignment_13.gguf", "--json", &out, &err)), 2);
	assert_non_null(strstr(err.text, "general.alignment is 13"));
	root = parse(&out);
	assert_string_equal(json_text(json_get(root, "refused")), err.text);
	json_free(root);
	text_clear(&out);
	err_clear(&err);
	assert_int_equal(status_exit_code(inspect(FIELD "m09a_truncated.gguf", NULL, &out, &err)), 2);
	assert_int_equal(out.len, 0);
	err_clear(&err);
	assert_int_equal(status_exit_code(inspect(FIELD "no-such.gguf", NULL, &out, &err)), 2);
	text_release(&out);
}

static void files_we_cannot_run_are_listed(void **state)
{
	struct text out = {0};
	struct err err = {0};

	assert_int_equal(inspect(FIELD "m10_moe_names.gguf", NULL, &out, &err), STATUS_OK);
	assert_non_null(strstr(text_str(&out), "qwen3moe"));
	assert_non_null(strstr(text_str(&out), "exps"));
	text_clear(&out);
	assert_int_equal(inspect(FIELD "m22a_vocab_space_prefix.gguf", NULL, &out, &err), STATUS_OK);
	assert_non_null(strstr(text_str(&out), "tensors (0)"));
	text_release(&out);
}

static void folders_are_listed_or_refused_like_files(void **state)
{
	struct text out = {0};
	struct err err = {0};
	struct json *root;

	assert_int_equal(inspect(FIELD "m17b_stray_file", NULL, &out, &err), STATUS_OK);
	assert_non_null(strstr(text_str(&out), "2 file(s), 160 bytes"));
	assert_non_null(strstr(text_str(&out), "8 parameters in 32 bytes"));
	text_clear(&out);
	assert_int_equal(inspect(FIELD "m17b_stray_file", "--json", &out, &err), STATUS_OK);
	root = parse(&out);
	assert_string_equal(json_text(json_get(json_at(json_get(root, "tensors"), 1), "file")), "model-00002-of-00002.safetensors");
	assert_int_equal(json_int(json_get(json_at(json_get(root, "tensors"), 1), "offset"), 0), 64);
	assert_true(json_bool(json_get(json_at(json_get(root, "tensors"), 1), "supported"), false));
	json_free(root);
	text_clear(&out);
	assert_int_not_equal(inspect(FIELD "m17a_missing_shard", "--json", &out, &err), STATUS_OK);
	root = parse(&out);
	assert_non_null(strstr(json_text(json_get(root, "refused")), "model-00002-of-00002.safetensors"));
	json_free(root);
	text_release(&out);
}

static void hostile_strings_come_out_printable(void **state)
{
	static const int64_t dims[] = {256};
	static const char data[256];
	struct gguf_build build = {0};
	struct text bytes = {0}, out = {0};
	struct gguf gguf;
	struct err err = {0};
	struct json *root;

	gguf_build_string(&build, "escape", "\x1b[2J\n\"\\\xff\xc3");
	gguf_build_raw(&build, "big", GGUF_U64, "\xff\xff\xff\xff\xff\xff\xff\xff", 8);
	gguf_build_raw(&build, "nan", GGUF_F32, "\0\0\xc0\x7f", 4);
	gguf_build_bool(&build, "yes", 1);
	gguf_build_strings(&build, "none", NULL, 0);
	gguf_build_tensor(&build, "t", 23, 1, dims, data, 136);
	gguf_build_finish(&build, &bytes);
	gguf_build_release(&build);
	assert_int_equal(gguf_open_bytes((const uint8_t *)bytes.data, bytes.len, "x", &gguf, &err), STATUS_OK);
	inspect_text(&gguf, "x", &out);
	assert_true(utf8_is_valid(out.data, out.len));
	assert_null(strchr(out.data, '\x1b'));
	assert_non_null(strstr(out.data, "\"\\x1b[2J\\n\\\"\\\\\xef\xbf\xbd\xef\xbf\xbd\""));
	assert_non_null(strstr(out.data, "18446744073709551615"));
	assert_non_null(strstr(out.data, "IQ4_XS"));
	assert_non_null(strstr(out.data, "no kernels for this type"));
	root = inspect_json(&gguf, "x");
	text_clear(&out);
	json_write(root, JSON_STYLE_COMPACT, &out);
	json_free(root);
	root = parse(&out);
	assert_int_equal(json_kind_of(json_get(json_get(json_get(root, "metadata"), "nan"), "value")), JSON_KIND_NULL);
	assert_true(json_bool(json_get(json_get(json_get(root, "metadata"), "yes"), "value"), false));
	assert_int_equal(json_int(json_get(json_get(json_get(root, "metadata"), "none"), "count"), 1), 0);
	assert_false(json_bool(json_get(json_at(json_get(root, "tensors"), 0), "supported"), true));
	json_free(root);
	gguf_close(&gguf);
	text_release(&bytes);
	text_release(&out);
}

static void usage_errors_of_inspect_are_named(void **state)
{
	static const char *const none[] = {"inspect", NULL}, *const both[] = {"inspect", "a", "--model", "b", NULL},
				 *const unknown[] = {"inspect", "--modle", "b", NULL}, *const help[] = {"inspect", "--help", NULL};
	struct text out = {0};
	struct err err = {0};

	assert_int_equal(capture_command(cmd_inspect, none, "", 0, &out, &err), STATUS_INPUT);
	assert_non_null(strstr(err.text, "--model PATH"));
	err_clear(&err);
	assert_int_equal(capture_command(cmd_inspect, both, "", 0, &out, &err), STATUS_INPUT);
	err_clear(&err);
	assert_int_equal(capture_command(cmd_inspect, unknown, "", 0, &out, &err), STATUS_INPUT);
	assert_non_null(strstr(err.text, "--modle"));
	err_clear(&err);
	assert_int_equal(out.len, 0);
	assert_int_equal(capture_command(cmd_inspect, help, "", 0, &out, &err), STATUS_OK);
	assert_non_null(strstr(text_str(&out), "usage: verdict-engine inspect"));
	text_release(&out);
}

/* Tokenize. --------------------------------------------------------------------------------------------------------- */

static enum status tokenize(const char *flag, const char *input, size_t len, struct text *out, struct err *err)
{
	const char *const argv[] = {"tokenize", "--model", real_model_path(), flag, NULL};

	return capture_command(cmd_tokenize, argv, input, len, out, err);
}

static void tokenize_prints_ids_and_reads_them_back(void **state)
{
	static const char input[] = "Hello  world\r\n\0 <|im_end|>";
	struct text ids = {0}, back = {0};
	struct err err = {0};

	assert_int_equal(tokenize(NULL, input, sizeof(input) - 1, &ids, &err), STATUS_OK);
	assert_true(text_starts_with(text_str(&ids), "{\"ids\": [19556, 216, 905, "));
	assert_int_equal(tokenize("--decode", ids.data, ids.len, &back, &err), STATUS_OK);
	assert_int_equal(back.len, sizeof(input) - 1);
	assert_memory_equal(back.data, input, back.len);
	text_clear(&ids);
	text_clear(&back);
	assert_int_equal(tokenize("--parse-special", "<|im_end|>", 10, &ids, &err), STATUS_OK);
	assert_string_equal(text_str(&ids), "{\"ids\": [2]}\n");
	text_clear(&ids);
	assert_int_equal(tokenize(NULL, "", 0, &ids, &err), STATUS_OK);
	assert_string_equal(text_str(&ids), "{\"ids\": []}\n");
	assert_int_equal(tokenize("--decode", "[19556]", 7, &back, &err), STATUS_OK);
	assert_string_equal(text_str(&back), "Hello");
	text_release(&ids);
	text_release(&back);
}

static void bad_ids_are_refused(void **state)
{
	static const char *const inputs[] = {
		"", "[1, 2", "{}", "5", "[-1]", "[49152]", "[1.5]", "[\"1\"]", "{\"ids\": 3}", "[99999999999999]"};

	for (size_t i = 0; i < sizeof(inputs) / sizeof(inputs[0]); i++) {
		struct text out = {0};
		struct err err = {0};

		assert_int_equal(tokenize("--decode", inputs[i], strlen(inputs[i]), &out, &err), STATUS_INPUT);
		assert_non_null(strstr(err.text, "standard input"));
		assert_int_equal(out.len, 0);
		text_release(&out);
	}
}

static void tokenize_names_the_file_it_refuses(void **state)
{
	static const char *const none[] = {"tokenize", NULL},
				 *const spm[] = {"tokenize", "--model", FIELD "m22a_vocab_space_prefix.gguf", "--tokenizer-pre",
					 "qwen2", NULL},
				 *const pre[] = {"tokenize", "--model", FIELD "m11_vocab_without_pre.gguf", "--tokenizer-pre", "x",
					 NULL},
				 *const fallback[] = {"tokenize", "--model", FIELD "m11_vocab_without_pre.gguf", NULL};
	struct text out = {0};
	struct err err = {0};

	assert_int_equal(capture_command(cmd_tokenize, none, "", 0, &out, &err), STATUS_INPUT);
	assert_non_null(strstr(err.text, "--model PATH"));
	err_clear(&err);
	assert_int_equal(capture_command(cmd_tokenize, spm, "hi", 2, &out, &err), STATUS_INPUT);
	assert_non_null(strstr(err.text, FIELD "m22a_vocab_space_prefix.gguf: this is a SentencePiece vocabulary"));
	err_clear(&err);
	assert_int_equal(capture_command(cmd_tokenize, pre, "hi", 2, &out, &err), STATUS_INPUT);
	assert_non_null(strstr(err.text, "pre-tokenizer 'x' is not known"));
	err_clear(&err);
	assert_int_equal(out.len, 0);
	assert_int_equal(capture_command(cmd_tokenize, fallback, "hi hi", 5, &out, &err), STATUS_OK);
	assert_string_equal(text_str(&out), "{\"ids\": [256, 257]}\n");
	text_release(&out);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(listing_of_the_real_model_is_complete),
		cmocka_unit_test(refused_files_say_why_on_both_streams),
		cmocka_unit_test(files_we_cannot_run_are_listed),
		cmocka_unit_test(folders_are_listed_or_refused_like_files),
		cmocka_unit_test(hostile_strings_come_out_printable),
		cmocka_unit_test(usage_errors_of_inspect_are_named),
		cmocka_unit_test(tokenize_prints_ids_and_reads_them_back),
		cmocka_unit_test(bad_ids_are_refused),
		cmocka_unit_test(tokenize_names_the_file_it_refuses),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
