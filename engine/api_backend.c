/* The real engine behind the API. */
#include "engine/api_backend.h"

static bool is_ready(const void *self)
{
	return engine_is_ready(self);
}

static const char *model_name(const void *self)
{
	return engine_model_name(self);
}

static int max_model_len(const void *self)
{
	return engine_max_model_len(self);
}

static int32_t vocab_size(const void *self)
{
	return tokenizer_vocab_size(engine_tokenizer(self));
}

static int32_t prompt_bos(const void *self)
{
	const struct tokenizer *tokenizer = engine_tokenizer(self);

	return tokenizer_adds_bos(tokenizer) ? tokenizer_bos(tokenizer) : -1;
}

static enum status encode(
	const void *self, const char *text, size_t len, bool parse_special, struct token_list *out, struct err *err)
{
	return tokenizer_encode(engine_tokenizer(self), text, len, parse_special, out, err);
}

static bool token_bytes(const void *self, int32_t id, bool with_special, struct text *out)
{
	return tokenizer_decode_one(engine_tokenizer(self), id, with_special, out);
}

static enum status render_chat(const void *self, const struct chat *chat, struct token_list *out, struct err *err)
{
	return chat_render(engine_source(self), engine_tokenizer(self), chat, out, err);
}

static enum status submit(void *self, const int32_t *prompt, size_t count, const struct sampling *sampling,
	const struct engine_listener *listener, uint64_t *id, struct err *err)
{
	return engine_submit(self, prompt, count, sampling, listener, id, err);
}

static void cancel(void *self, uint64_t id)
{
	engine_cancel(self, id);
}

static void flush_cache(void *self)
{
	engine_flush_cache(self);
}

static struct json *config(const void *self)
{
	return engine_config_json(self);
}

static void metrics(const void *self, struct text *out)
{
	engine_metrics_text(self, out);
}

const struct api_backend_ops api_backend_engine = {
	.name = "engine",
	.is_ready = is_ready,
	.model_name = model_name,
	.max_model_len = max_model_len,
	.vocab_size = vocab_size,
	.prompt_bos = prompt_bos,
	.encode = encode,
	.token_bytes = token_bytes,
	.render_chat = render_chat,
	.submit = submit,
	.cancel = cancel,
	.flush_cache = flush_cache,
	.config = config,
	.metrics = metrics,
};
