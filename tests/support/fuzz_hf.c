/* What the fuzzers of a Hugging Face folder's files do with one input. */
#include <math.h>
#include <string.h>

#include "engine/hf_config.h"
#include "engine/safetensors.h"
#include "engine/tokenizer.h"
#include "tests/support/fuzz_bodies.h"

void fuzz_safetensors(const uint8_t *data, size_t size)
{
	struct safetensors st;
	struct err err = {0};
	uint64_t total = 0;
	if (safetensors_open_bytes(data, size, "fuzz", &st, &err) != STATUS_OK) {
		ASSERT(err.text[0]);
		return;
	}
	for (size_t i = 0; i < st.n_tensors; i++) {
		const struct safetensors_tensor *tensor = &st.tensors[i];
		char shape[SAFETENSORS_SHAPE_BYTES];
		ASSERT(tensor->data >= data && tensor->bytes <= (uint64_t)(data + size - tensor->data));
		ASSERT(safetensors_find(&st, tensor->name) == tensor);
		ASSERT(safetensors_shape(tensor, shape)[0] == '[');
		total += tensor->bytes;
	}
	ASSERT(total <= size);
	safetensors_close(&st);
}

void fuzz_hf_config(const uint8_t *data, size_t size)
{
	struct json *root;
	struct model_config config = {0};
	struct err err = {0};
	if (json_parse((const char *)data, size, "fuzz", &root, NULL) != STATUS_OK)
		return;
	if (hf_config_read(root, &config, &err) == STATUS_OK) {
		ASSERT(config.n_layers > 0 && config.hidden > 0 && config.ffn > 0 && config.vocab > 0 && config.context > 0);
		ASSERT(config.n_kv_heads > 0 && config.n_heads % config.n_kv_heads == 0);
		ASSERT(config.head_dim >= 2 && config.head_dim % 2 == 0 && config.head_dim <= MODEL_HEAD_DIM_MAX);
		ASSERT(config.rope_base >= 1 && config.rope_scale >= 1);
		for (int i = 0; i < config.head_dim / 2 && config.has_rope_factors; i++)
			ASSERT(isfinite(config.rope_factors[i]) && config.rope_factors[i] > 0);
	} else {
		ASSERT(err.text[0]);
	}
	json_free(root);
}

/* The text keeps its bytes, but for those that the vocabulary has no token for and what form C changes. */
static void encode(const struct tokenizer *tokenizer)
{
	static const char text[] = "ab<s> 12\xc3\xa9\xff\n  x";
	struct token_list ids = {0};
	struct text back = {0};
	if (tokenizer_encode(tokenizer, text, sizeof text - 1, true, &ids, NULL) == STATUS_OK) {
		for (size_t i = 0; i < ids.count; i++)
			ASSERT(tokenizer_decode_one(tokenizer, ids.ids[i], true, &back));
		ASSERT(back.len <= 2 * sizeof text);
	}
	text_release(&back);
	token_list_release(&ids);
}

void fuzz_tokenizer_json(const uint8_t *data, size_t size)
{
	struct tokenizer_hf_files files = {0};
	struct tokenizer_spec spec;
	struct tokenizer *tokenizer = NULL;
	struct err err = {0};
	if (json_parse((const char *)data, size, "fuzz", &files.document, NULL) != STATUS_OK)
		return;
	/* The same bytes stand for the files beside it: their keys are other ones. */
	files.tokenizer_config = files.generation_config = files.document;
	enum status status = tokenizer_spec_hf_parsed(&files, NULL, &spec, &err);
	if (status == STATUS_OK)
		status = tokenizer_make(&spec, &tokenizer, &err);
	tokenizer_spec_release(&spec);
	if (status == STATUS_OK)
		encode(tokenizer);
	else
		ASSERT(err.text[0]);
	tokenizer_close(tokenizer);
}
