/* Writing of log-probabilities. */
#include "engine/api_logprobs.h"

#include <math.h>
#include <string.h>

#include "base/utf8.h"
#include "engine/api_error.h"

#define LOGPROB_MIN (-9999.0) /* stands for minus infinity, which JSON cannot say (vLLM's value) */

static void write_logprob(struct text *out, float logprob)
{
	char number[32];
	double value = logprob > LOGPROB_MIN ? logprob : LOGPROB_MIN;

	text_format_double(number, round(value * 1e6) / 1e6);
	text_append_str(out, number);
}

static void comma(struct text *out)
{
	if (out->len)
		text_append_char(out, ',');
}

/* {"token":"…","logprob":-0.1,"bytes":[…] without the final brace, so that the caller can go on. */
static void write_entry(struct text *out, const struct api_backend *backend, int32_t id, float logprob)
{
	struct text bytes = {0};

	backend->ops->token_bytes(backend->self, id, true, &bytes);
	text_append_str(out, "{\"token\":");
	api_write_string(out, text_str(&bytes), bytes.len);
	text_append_str(out, ",\"logprob\":");
	write_logprob(out, logprob);
	text_append_str(out, ",\"bytes\":[");
	for (size_t i = 0; i < bytes.len; i++)
		text_printf(out, i ? ",%u" : "%u", (unsigned char)bytes.data[i]);
	text_append_char(out, ']');
	text_release(&bytes);
}

static int shown(const struct logprob_writer *writer, const struct engine_token *token)
{
	return token->n_top < writer->alternatives ? token->n_top : writer->alternatives;
}

static void add_chat(struct logprob_writer *writer, const struct api_backend *backend, const struct engine_token *token)
{
	struct text *out = &writer->tokens;

	comma(out);
	write_entry(out, backend, token->id, token->logprob);
	text_append_str(out, ",\"top_logprobs\":[");
	for (int i = 0; i < shown(writer, token); i++) {
		if (i)
			text_append_char(out, ',');
		write_entry(out, backend, token->top_ids[i], token->top_logprobs[i]);
		text_append_char(out, '}');
	}
	text_append_str(out, "]}");
}

/* Completions show a token that is no whole text as OpenAI does, "bytes:\xc3": unlike U+FFFD it stays a distinct key. */
static void write_token(struct text *out, const struct api_backend *backend, int32_t id)
{
	struct text bytes = {0}, shown_text = {0};

	backend->ops->token_bytes(backend->self, id, true, &bytes);
	if (utf8_is_valid(text_str(&bytes), bytes.len)) {
		api_write_string(out, text_str(&bytes), bytes.len);
	} else {
		text_append_str(&shown_text, "bytes:");
		for (size_t i = 0; i < bytes.len; i++)
			text_printf(&shown_text, "\\x%02x", (unsigned char)bytes.data[i]);
		api_write_string(out, shown_text.data, shown_text.len);
	}
	text_release(&bytes);
	text_release(&shown_text);
}

/* Whether an earlier, likelier alternative has the same bytes: a key may come once only. */
static bool is_repeated(const struct api_backend *backend, const struct engine_token *token, int index)
{
	struct text bytes = {0}, other = {0};
	bool repeated = false;

	backend->ops->token_bytes(backend->self, token->top_ids[index], true, &bytes);
	for (int i = 0; i < index && !repeated; i++) {
		text_clear(&other);
		backend->ops->token_bytes(backend->self, token->top_ids[i], true, &other);
		repeated = other.len == bytes.len && memcmp(text_str(&other), text_str(&bytes), bytes.len) == 0;
	}
	text_release(&bytes);
	text_release(&other);
	return repeated;
}

/* Code points begun by a token's visible bytes; continuation bytes belong to a character begun earlier. */
static int code_points(const struct api_backend *backend, int32_t id)
{
	struct text bytes = {0};
	int count = 0;

	backend->ops->token_bytes(backend->self, id, false, &bytes);
	for (size_t i = 0; i < bytes.len; i++)
		count += ((unsigned char)bytes.data[i] & 0xc0) != 0x80;
	text_release(&bytes);
	return count;
}

static void add_completion(struct logprob_writer *writer, const struct api_backend *backend, const struct engine_token *token)
{
	comma(&writer->tokens);
	write_token(&writer->tokens, backend, token->id);
	comma(&writer->logprobs);
	write_logprob(&writer->logprobs, token->logprob);
	comma(&writer->offsets);
	text_printf(&writer->offsets, "%d", writer->text_offset);
	writer->text_offset += code_points(backend, token->id);
	comma(&writer->top);
	text_append_char(&writer->top, '{');
	for (int i = 0; i < shown(writer, token); i++) {
		if (is_repeated(backend, token, i))
			continue;
		if (i)
			text_append_char(&writer->top, ',');
		write_token(&writer->top, backend, token->top_ids[i]);
		text_append_char(&writer->top, ':');
		write_logprob(&writer->top, token->top_logprobs[i]);
	}
	text_append_char(&writer->top, '}');
}

void logprob_add(struct logprob_writer *writer, const struct api_backend *backend, const struct engine_token *token)
{
	if (writer->alternatives < 0)
		return;
	writer->count++;
	if (writer->kind == API_CHAT)
		add_chat(writer, backend, token);
	else
		add_completion(writer, backend, token);
}

void logprob_write(struct logprob_writer *writer, struct text *out)
{
	if (!writer->count) {
		text_append_str(out, "null");
		return;
	}
	if (writer->kind == API_CHAT)
		text_printf(out, "{\"content\":[%s]}", text_str(&writer->tokens));
	else
		text_printf(out, "{\"tokens\":[%s],\"token_logprobs\":[%s],\"top_logprobs\":[%s],\"text_offset\":[%s]}",
			text_str(&writer->tokens), text_str(&writer->logprobs), text_str(&writer->top), text_str(&writer->offsets));
	writer->count = 0;
	text_clear(&writer->tokens);
	text_clear(&writer->logprobs);
	text_clear(&writer->top);
	text_clear(&writer->offsets);
}

void logprob_release(struct logprob_writer *writer)
{
	text_release(&writer->tokens);
	text_release(&writer->logprobs);
	text_release(&writer->top);
	text_release(&writer->offsets);
}
