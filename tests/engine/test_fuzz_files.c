/* Replays the corpora of the fuzzers of model files and text. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <dirent.h>
#include <stdio.h>

#include "base/file.h"
#include "tests/support/fuzz_bodies.h"

static void replay(const char *name, void (*body)(const uint8_t *data, size_t size))
{
	char path[512];
	struct dirent *entry;
	size_t inputs = 0;
	DIR *folder;

	snprintf(path, sizeof(path), "tests/fuzz/corpus/%s", name);
	folder = opendir(path);
	assert_non_null(folder);
	while ((entry = readdir(folder))) {
		struct text input = {0};

		if (entry->d_name[0] == '.')
			continue;
		snprintf(path, sizeof(path), "tests/fuzz/corpus/%s/%s", name, entry->d_name);
		assert_int_equal(file_read(path, (size_t)1 << 20, &input, NULL), STATUS_OK);
		body((const uint8_t *)text_str(&input), input.len);
		inputs++;
		text_release(&input);
	}
	closedir(folder);
	assert_true(inputs >= 5);
}

static void gguf_corpus_is_read_without_harm(void **state)
{
	replay("gguf", fuzz_gguf);
}

static void safetensors_corpus_is_read_without_harm(void **state)
{
	replay("safetensors", fuzz_safetensors);
}

static void hf_config_corpus_is_read_without_harm(void **state)
{
	replay("hf_config", fuzz_hf_config);
}

static void tokenizer_json_corpus_is_read_without_harm(void **state)
{
	replay("tokenizer_json", fuzz_tokenizer_json);
}

static void model_corpus_is_run_without_harm(void **state)
{
	replay("model", fuzz_model);
}

static void tokenizer_corpus_comes_back_as_it_was(void **state)
{
	replay("tokenizer", fuzz_tokenizer);
}

static void sentencepiece_corpus_comes_back_as_it_was(void **state)
{
	replay("sentencepiece", fuzz_sentencepiece);
}

static void text_stream_corpus_streams_as_it_decodes(void **state)
{
	replay("text_stream", fuzz_text_stream);
}

static void chat_template_corpus_is_read_without_harm(void **state)
{
	replay("chat_template", fuzz_chat_template);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(gguf_corpus_is_read_without_harm),
		cmocka_unit_test(safetensors_corpus_is_read_without_harm),
		cmocka_unit_test(hf_config_corpus_is_read_without_harm),
		cmocka_unit_test(tokenizer_json_corpus_is_read_without_harm),
		cmocka_unit_test(model_corpus_is_run_without_harm),
		cmocka_unit_test(tokenizer_corpus_comes_back_as_it_was),
		cmocka_unit_test(sentencepiece_corpus_comes_back_as_it_was),
		cmocka_unit_test(text_stream_corpus_streams_as_it_decodes),
		cmocka_unit_test(chat_template_corpus_is_read_without_harm),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
