/* Prompts of a request: text, token ids or messages in, token ids out, each checked against the context. */
#include "engine/api_prompts.h"

enum status api_engine_refusal(const struct err *err, struct api_error *error)
{
	if (err->status == STATUS_INPUT)
		return api_error_set(error, 400,
			text_equal(err->code, "context_length_exceeded") ? "context_length_exceeded" : "invalid_value", NULL, "%s",
			err->text);
	if (text_equal(err->code, "queue_full"))
		return api_error_set(error, 429, "queue_full", NULL, "%s", err->text);
	if (err->status == STATUS_UNAVAILABLE)
		return api_error_set(error, 503, "unavailable", NULL, "%s", err->text);
	return api_error_set(error, 500, "engine_error", NULL, "%s", err->text);
}

/* What the encoding of one request needs throughout. */
struct encoder {
	const struct api_backend *backend;
	const struct api_request *request;
	int token_bytes_max, context;
	const char *field; /* that holds the prompt, for messages */
};

/* Refuses text that has too many bytes for the context whatever its tokens are. */
static enum status check_bytes(const struct encoder *encoder, size_t bytes, struct api_error *error)
{
	size_t at_least = bytes / (size_t)encoder->token_bytes_max;

	if (at_least <= (size_t)encoder->context)
		return STATUS_OK;
	return api_error_set(error, 400, "context_length_exceeded", encoder->field,
		"the prompt has at least %zu tokens, and the context of this model is %d tokens", at_least, encoder->context);
}

static enum status encode_chat(const struct encoder *encoder, struct token_list *out, struct api_error *error)
{
	const struct api_backend *backend = encoder->backend;
	const struct api_request *request = encoder->request;
	struct err err = {0};
	size_t bytes = 0;

	for (size_t i = 0; i < request->n_messages; i++)
		bytes += request->messages[i].content_len;
	if (check_bytes(encoder, bytes, error) != STATUS_OK)
		return STATUS_INPUT;
	const struct chat chat = {request->messages, request->n_messages, request->tools};
	if (backend->ops->render_chat(backend->self, &chat, out, &err) != STATUS_OK)
		return api_engine_refusal(&err, error);
	return STATUS_OK;
}

static enum status encode_text(
	const struct encoder *encoder, const struct api_prompt *prompt, struct token_list *out, struct api_error *error)
{
	const struct api_backend *backend = encoder->backend;
	int32_t bos = backend->ops->prompt_bos(backend->self);
	bool parse_special = encoder->request->parse_special;
	struct err err = {0};

	if (check_bytes(encoder, prompt->len, error) != STATUS_OK)
		return STATUS_INPUT;
	if (bos >= 0)
		token_list_append(out, bos);
	if (backend->ops->encode(backend->self, prompt->text, prompt->len, parse_special, out, &err) != STATUS_OK)
		return api_engine_refusal(&err, error);
	return STATUS_OK;
}

static enum status copy_ids(
	const struct encoder *encoder, const struct api_prompt *prompt, struct token_list *out, struct api_error *error)
{
	int32_t vocab = encoder->backend->ops->vocab_size(encoder->backend->self);

	for (size_t i = 0; i < prompt->n_ids; i++) {
		if (prompt->ids[i] >= vocab)
			return api_error_set(error, 400, "invalid_value", encoder->field,
				"token id %d is not in the vocabulary of %d tokens", prompt->ids[i], vocab);
		token_list_append(out, prompt->ids[i]);
	}
	return STATUS_OK;
}

/* How many tokens a prompt may be followed by. A number that was asked for is granted or refused, never cut. */
static enum status room_for(const struct encoder *encoder, size_t prompt_tokens, int *out, struct api_error *error)
{
	int context = encoder->context, asked = encoder->request->sampling.max_tokens;

	if (prompt_tokens == 0)
		return api_error_set(error, 400, "invalid_value", encoder->field, "the prompt is empty");
	if (prompt_tokens >= (size_t)context)
		return api_error_set(error, 400, "context_length_exceeded", encoder->field,
			"the prompt has %zu tokens, and the context of this model is %d tokens, prompt and answer together",
			prompt_tokens, context);
	int room = context - (int)prompt_tokens;
	if (asked > room)
		return api_error_set(error, 400, "context_length_exceeded", "max_tokens",
			"max_tokens is %d, but after the prompt of %zu tokens the context of %d tokens has room for %d", asked,
			prompt_tokens, context, room);
	if (asked == 0 && encoder->request->kind == API_COMPLETION)
		asked = API_COMPLETION_TOKENS_DEFAULT < room ? API_COMPLETION_TOKENS_DEFAULT : room;
	*out = asked ? asked : room;
	return STATUS_OK;
}

static enum status encode_prompt(const struct encoder *encoder, size_t index, struct token_list *out, struct api_error *error)
{
	const struct api_request *request = encoder->request;

	if (request->kind == API_CHAT)
		return encode_chat(encoder, out, error);
	if (request->prompts[index].text)
		return encode_text(encoder, &request->prompts[index], out, error);
	return copy_ids(encoder, &request->prompts[index], out, error);
}

enum status api_prompts_encode(const struct api_backend *backend, int token_bytes_max, const struct api_request *request,
	struct api_prompts *out, struct api_error *error)
{
	struct encoder encoder = {
		.backend = backend,
		.request = request,
		.token_bytes_max = token_bytes_max,
		.context = backend->ops->max_model_len(backend->self),
		.field = request->kind == API_CHAT ? "messages" : "prompt",
	};
	size_t count = request->kind == API_CHAT ? 1 : request->n_prompts;

	*out = (struct api_prompts){
		.lists = mem_calloc(count, sizeof(*out->lists)),
		.max_tokens = mem_calloc(count, sizeof(*out->max_tokens)),
		.count = count,
	};
	for (size_t i = 0; i < count; i++) {
		if (encode_prompt(&encoder, i, &out->lists[i], error) != STATUS_OK ||
			room_for(&encoder, out->lists[i].count, &out->max_tokens[i], error) != STATUS_OK)
			return STATUS_INPUT;
		out->tokens += (int)out->lists[i].count;
	}
	return STATUS_OK;
}

void api_prompts_release(struct api_prompts *prompts)
{
	for (size_t i = 0; i < prompts->count; i++)
		token_list_release(&prompts->lists[i]);
	mem_free(prompts->lists);
	mem_free(prompts->max_tokens);
	*prompts = (struct api_prompts){0};
}
