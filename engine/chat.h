/* Chat templates: messages to token ids. What a template writes may become control tokens, what a message says never does. */
#ifndef ENGINE_CHAT_H
#define ENGINE_CHAT_H

#include "engine/source.h"
#include "engine/tokenizer.h"

struct chat_message {
	const char *role; /* 1 to 64 letters, digits, '_' or '-': "system", "user", "assistant", "tool", … */
	const char *content; /* NULL: none */
	size_t content_len;
	const struct json *more; /* object with what else the message has (tool_calls, …), role and content aside; NULL: nothing */
};

struct chat {
	const struct chat_message *messages;
	size_t n_messages;
	const struct json *tools; /* functions that the model may call, an array as in OpenAI's API; NULL: none */
};

/* STATUS_OK when the model's chat template is one that we render (engine/jinja.h says what is), found out by rendering short
 * conversations, or when there is none and the vocabulary has ChatML's control tokens; else STATUS_INPUT with the reason. */
enum status chat_check(const struct source *source, const struct tokenizer *tokenizer, struct err *err);

/* Appends the prompt for a chat plus what the template puts before an answer; without a template, in plain ChatML. The ids are
 * those of transformers' apply_chat_template, but for control tokens written in a content, a call or a tool: they stay text.
 * STATUS_INPUT for no messages, a bad role, tools where the template has no place for them, what the template raises, or (code
 * "unsupported_chat_template") a template that cannot be read. */
enum status chat_render(const struct source *source, const struct tokenizer *tokenizer, const struct chat *chat,
	struct token_list *out, struct err *err);

#endif
