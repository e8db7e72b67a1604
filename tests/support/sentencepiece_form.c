/* Opens the golden SentencePiece vocabulary: tokenizer.json with the parts that variants.json has for a form. */
#include "tests/support/sentencepiece_form.h"

#include "base/file.h"
#include "base/mem.h"
#include "engine/source.h"

struct json *sentencepiece_json(const char *name)
{
	struct text path = {0}, content = {0};
	struct json *root = NULL;

	text_printf(&path, "%s%s", SENTENCEPIECE_GOLDEN, name);
	ASSERT(file_read(text_str(&path), (size_t)2 << 20, &content, NULL) == STATUS_OK);
	ASSERT(json_parse(text_str(&content), content.len, name, &root, NULL) == STATUS_OK);
	text_release(&path);
	text_release(&content);
	return root;
}

struct tokenizer *sentencepiece_open_form(const char *form)
{
	static const char *const keys[] = {"normalizer", "pre_tokenizer", "decoder", "added_tokens"};
	struct json *root = sentencepiece_json("tokenizer.json"), *variants = sentencepiece_json("variants.json");
	const struct tokenizer_hf_files files = {.document = root};
	struct tokenizer_spec spec;
	struct tokenizer *tokenizer = NULL;

	for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++)
		json_set(root, keys[i], json_clone(json_get(json_get(variants, form), keys[i])));
	ASSERT(tokenizer_spec_hf_parsed(&files, NULL, &spec, NULL) == STATUS_OK);
	ASSERT(tokenizer_make(&spec, &tokenizer, NULL) == STATUS_OK);
	tokenizer_spec_release(&spec);
	json_free(variants);
	return tokenizer;
}

struct tokenizer *sentencepiece_open_gguf(const char *path)
{
	struct source source;
	struct tokenizer *tokenizer = NULL;

	ASSERT(source_open(path, &source, NULL) == STATUS_OK);
	ASSERT(tokenizer_open(&source, NULL, &tokenizer, NULL) == STATUS_OK);
	source_close(&source);
	return tokenizer;
}
