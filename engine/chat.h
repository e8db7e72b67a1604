/* Chat template of the ChatML family: messages to token ids. Roles and markers become control tokens, content never does. */
#ifndef ENGINE_CHAT_H
#define ENGINE_CHAT_H

#include "engine/source.h"
#include "engine/tokenizer.h"

struct chat_message {
	const char *role; /* 1 to 64 letters, digits, '_' or '-': "system", "user", "assistant", "tool", … */
	const char *content;
	size_t content_len;
};

/* True when the file's chat template is one we render (engine/chat_template.h says which are), or when it has none and the
 * vocabulary has ChatML's control tokens; else *why says what is missing, in a static text. */
bool chat_template_supported(const struct source *source, const struct tokenizer *tokenizer, const char **why);

/* Appends the prompt for messages plus the assistant header. Adds the model's default system message where the template does.
 * The ids are those of transformers' apply_chat_template, but for control tokens written in a content: they stay text.
 * STATUS_INPUT for no messages, a bad role or an unsupported template. */
enum status chat_render(const struct source *source, const struct tokenizer *tokenizer, const struct chat_message *messages,
	size_t n_messages, struct token_list *out, struct err *err);

#endif
