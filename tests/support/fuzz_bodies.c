/* What the fuzzers of model files and text do with one input. */
#include "tests/support/fuzz_bodies.h"

#include <string.h>

#include "base/mem.h"
#include "base/utf8.h"
#include "engine/chat.h"
#include "engine/inspect.h"
#include "engine/jinja.h"
#include "engine/tokenizer.h"
#include "tests/support/sentencepiece_form.h"

#define VOCABULARY "tests/golden/field/m11_vocab_without_pre.gguf" /* all 256 bytes, two merges, two control tokens */

static void read_listings(const struct gguf *gguf)
{
	struct text out = {0};
	struct json *document = inspect_json(gguf, "x");

	inspect_text(gguf, "x", &out);
	ASSERT(utf8_is_valid(text_str(&out), out.len));
	text_clear(&out);
	json_write(document, JSON_STYLE_COMPACT, &out);
	json_free(document);
	text_release(&out);
}

static void read_tensors(const struct gguf *gguf)
{
	volatile uint8_t sum = 0;

	for (size_t i = 0; i < gguf->n_tensors; i++) {
		const struct gguf_tensor *tensor = &gguf->tensors[i];

		ASSERT((size_t)(tensor->data - gguf->map.data) % gguf->alignment == 0);
		for (uint64_t byte = 0; byte < tensor->bytes; byte++)
			sum = (uint8_t)(sum + tensor->data[byte]);
	}
}

static void read_tokenizer(const struct source *source)
{
	static const char text[] = "Hello  world, it's 12 <|im_end|>\xff";
	struct tokenizer *tokenizer = NULL;
	struct chat_message message = {"user", text, sizeof(text) - 1, NULL};
	const struct chat chat = {&message, 1, NULL};
	struct token_list ids = {0};
	struct err err = {0};

	/* The latter is for SentencePiece vocabularies, and logs a warning for others without a rule. */
	if (tokenizer_open(source, "smollm", &tokenizer, NULL) && tokenizer_open(source, NULL, &tokenizer, NULL))
		return;
	ASSERT(tokenizer_encode(tokenizer, text, sizeof(text) - 1, false, &ids, NULL) == STATUS_OK);
	for (size_t i = 0; i < ids.count; i++)
		ASSERT(!tokenizer_is_control(tokenizer, ids.ids[i]));
	ASSERT(chat_check(source, tokenizer, &err) == STATUS_OK || err.text[0]);
	err_clear(&err);
	ASSERT(chat_render(source, tokenizer, &chat, &ids, &err) == STATUS_OK || err.text[0]);
	token_list_release(&ids);
	tokenizer_close(tokenizer);
}

void fuzz_gguf(const uint8_t *data, size_t size)
{
	struct source source;
	struct err err = {0};

	if (source_open_bytes(data, size, "fuzz", &source, &err)) {
		ASSERT(err.text[0]);
		return;
	}
	read_listings(source_gguf(&source));
	read_tensors(source_gguf(&source));
	read_tokenizer(&source);
	source_close(&source);
}

static struct tokenizer *open_vocabulary(const char *pre)
{
	struct source source;
	struct tokenizer *tokenizer = NULL;

	ASSERT(source_open(VOCABULARY, &source, NULL) == STATUS_OK);
	ASSERT(tokenizer_open(&source, pre, &tokenizer, NULL) == STATUS_OK);
	source_close(&source);
	return tokenizer;
}

static void round_trip(const struct tokenizer *tokenizer, const uint8_t *data, size_t size, bool parse_special, bool exact)
{
	struct token_list ids = {0};
	struct text back = {0};

	ASSERT(tokenizer_encode(tokenizer, (const char *)data, size, parse_special, &ids, NULL) == STATUS_OK);
	for (size_t i = 0; i < ids.count; i++) {
		ASSERT(parse_special || !tokenizer_is_control(tokenizer, ids.ids[i]));
		ASSERT(tokenizer_decode_one(tokenizer, ids.ids[i], true, &back));
	}
	if (exact)
		ASSERT(back.len == size && memcmp(text_str(&back), size ? (const char *)data : "", size) == 0);
	text_release(&back);
	token_list_release(&ids);
}

void fuzz_tokenizer(const uint8_t *data, size_t size)
{
	static const char *const rules[] = {"smollm", "gpt-2", "llama-bpe", "qwen2"};

	for (size_t i = 0; i < 4; i++) {
		struct tokenizer *tokenizer = open_vocabulary(rules[i]);

		round_trip(tokenizer, data, size, false, i != 3); /* qwen2 normalises */
		round_trip(tokenizer, data, size, true, i != 3);
		tokenizer_close(tokenizer);
	}
}

static struct text spaced(const uint8_t *data, size_t size)
{
	struct text out = {0};

	for (size_t i = 0; i < size;) {
		bool is_mark = size - i >= 3 && memcmp(data + i, "\xe2\x96\x81", 3) == 0;

		text_append_char(&out, is_mark ? ' ' : (char)data[i]);
		i += is_mark ? 3 : 1;
	}
	return out;
}

static void there_and_back(const struct tokenizer *tokenizer, const uint8_t *data, size_t size, bool exact)
{
	struct token_list ids = {0};
	struct text back = {0}, expected = spaced(data, size);

	ASSERT(tokenizer_encode(tokenizer, (const char *)data, size, true, &ids, NULL) == STATUS_OK);
	ASSERT(tokenizer_decode(tokenizer, ids.ids, ids.count, true, &back));
	ids.count = 0;
	text_clear(&back);
	ASSERT(tokenizer_encode(tokenizer, (const char *)data, size, false, &ids, NULL) == STATUS_OK);
	for (size_t i = 0; i < ids.count; i++)
		ASSERT(!tokenizer_is_control(tokenizer, ids.ids[i]));
	ASSERT(tokenizer_decode(tokenizer, ids.ids, ids.count, true, &back));
	if (exact)
		ASSERT(back.len == expected.len && memcmp(text_str(&back), text_str(&expected), back.len) == 0);
	text_release(&back);
	text_release(&expected);
	token_list_release(&ids);
}

void fuzz_sentencepiece(const uint8_t *data, size_t size)
{
	/* Those that always put a space before the text and take it away again. */
	static const struct {
		const char *form;
		bool exact;
	} forms[] = {{"legacy", true}, {"flags", false}, {"words", false}};
	bool has_specials = size > 0 && memchr(data, '<', size);
	struct tokenizer *tokenizer = sentencepiece_open_gguf(SENTENCEPIECE_GOLDEN "vocabulary.gguf");

	there_and_back(tokenizer, data, size, !has_specials);
	tokenizer_close(tokenizer);
	for (size_t i = 0; i < sizeof(forms) / sizeof(forms[0]); i++) {
		tokenizer = sentencepiece_open_form(forms[i].form);
		there_and_back(tokenizer, data, size, forms[i].exact && !has_specials);
		tokenizer_close(tokenizer);
	}
}

void fuzz_text_stream(const uint8_t *data, size_t size)
{
	struct tokenizer *tokenizer = open_vocabulary("gpt-2");
	struct text_stream stream = {0};
	struct text out = {0}, bytes = {0}, expected = {0};

	for (size_t i = 0; i < size; i++) {
		text_stream_push(&stream, tokenizer, data[i], &out);
		ASSERT(utf8_is_valid(text_str(&out), out.len));
		ASSERT(tokenizer_decode_one(tokenizer, data[i], false, &bytes));
	}
	text_stream_finish(&stream, &out);
	utf8_append_lossy(&expected, text_str(&bytes), bytes.len);
	ASSERT(out.len == expected.len && memcmp(text_str(&out), text_str(&expected), out.len) == 0);
	text_stream_release(&stream);
	text_release(&out);
	text_release(&bytes);
	text_release(&expected);
	tokenizer_close(tokenizer);
}

void fuzz_chat_template(const uint8_t *data, size_t size)
{
	static const char tools_text[] = "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\","
					 "\"properties\":{\"x\":{\"type\":\"number\",\"minimum\":0.5}},\"required\":[\"x\"]}}}]";
	static const char call_text[] =
		"{\"tool_calls\":[{\"id\":\"123456789\",\"function\":{\"name\":\"f\",\"arguments\":\"{\\\"x\\\":1}\"}}]}";
	struct json *tools = NULL, *call = NULL;
	struct jinja *jinja;
	struct err err = {0};

	if (jinja_parse((const char *)data, size, &jinja, &err)) {
		ASSERT(err.text[0]);
		return;
	}
	ASSERT(json_parse(tools_text, sizeof(tools_text) - 1, "tools", &tools, NULL) == STATUS_OK);
	ASSERT(json_parse(call_text, sizeof(call_text) - 1, "call", &call, NULL) == STATUS_OK);
	const struct jinja_message messages[] = {{"system", " a\n", 3, NULL}, {"user", "b\xc3\xa9", 3, NULL},
		{"assistant", NULL, 0, call}, {"assistant", "c", 1, NULL}};
	struct jinja_input input = {.messages = messages, .bos_token = "<s>"};
	for (size_t n = 1; n <= 4; n++) {
		struct text out = {0};

		input.n_messages = n;
		input.tools = n % 2 == 0 ? tools : NULL;
		if (jinja_render(jinja, &input, &out, &err))
			ASSERT(err.text[0]);
		text_release(&out);
	}
	json_free(tools);
	json_free(call);
	jinja_free(jinja);
}
