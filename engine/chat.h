/* Chat template of the ChatML family: messages to token ids. Roles and markers become control tokens, content never does. */
#ifndef ENGINE_CHAT_H
#define ENGINE_CHAT_H

#include "engine/tokenizer.h"

struct chat_message { const char *role; const char *content; size_t content_len; };

/* True when the file's chat template (or its absence together with ChatML tokens in the vocabulary) is one we render; else *why says. */
bool chat_template_supported(const struct gguf *gguf, const struct tokenizer *tokenizer, const char **why);

/* Appends the prompt for messages plus the assistant header. Adds the model's default system message where the template does. */
enum status chat_render(const struct gguf *gguf, const struct tokenizer *tokenizer, const struct chat_message *messages,
	size_t n_messages, struct token_list *out, struct err *err);

#endif
