/* Renders conversations as ChatML prompts. Each message is one run of text between control tokens, encoded as a whole with
 * special tokens off, so that ids at the seam of role and content are those of the joined text and content stays content. */
#include "engine/chat.h"

#include <string.h>

#include "base/utf8.h"
#include "engine/chat_template.h"

#define ROLE_BYTES_MAX 64 /* guess: far above any role in use */

/* The template and the ids of its markers. */
struct chat {
	struct chat_template template;
	int32_t start, end;
};

static bool chat_open(const struct source *source, const struct tokenizer *tokenizer, struct chat *out, const char **why)
{
	struct gguf_string text;

	*out = (struct chat){.start = tokenizer_find(tokenizer, "<|im_start|>"), .end = tokenizer_find(tokenizer, "<|im_end|>")};
	if (!tokenizer_is_control(tokenizer, out->start) || !tokenizer_is_control(tokenizer, out->end)) {
		*why = "the vocabulary has no control tokens <|im_start|> and <|im_end|>";
		return false;
	}
	if (source->ops->chat_template(source, &text, NULL)) {
		*why = "the chat template is not a string";
		return false;
	}
	if (!text.data)
		return true;
	if (!chat_template_parse(text.data, text.len, &out->template, why))
		return false;
	if (out->template.adds_bos && tokenizer_bos(tokenizer) < 0) {
		*why = "the chat template begins with a BOS token, and the file names none";
		return false;
	}
	return true;
}

static void chat_close(struct chat *chat)
{
	chat_template_release(&chat->template);
}

bool chat_template_supported(const struct source *source, const struct tokenizer *tokenizer, const char **why)
{
	struct chat chat;
	bool supported = chat_open(source, tokenizer, &chat, why);

	chat_close(&chat);
	return supported;
}

static bool role_is_sound(const char *role)
{
	size_t len = strspn(role, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-");

	return len > 0 && len <= ROLE_BYTES_MAX && role[len] == '\0';
}

/* White space as Jinja's trim filter sees it: Python's str.isspace. */
static bool is_white(uint32_t c)
{
	return (c >= 0x09 && c <= 0x0d) || (c >= 0x1c && c <= 0x20) || c == 0x85 || c == 0xa0 || c == 0x1680 ||
		(c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

static void trim(const char **content, size_t *len)
{
	const char *begin = *content, *end = begin + *len, *last;
	uint32_t c;
	int bytes;

	while (begin < end && (bytes = utf8_decode(begin, (size_t)(end - begin), &c)) > 0 && is_white(c))
		begin += bytes;
	/* One pass forward: what follows the last character that is not white goes. An invalid byte is not white. */
	last = begin;
	for (const char *at = begin; at < end; at += bytes) {
		bytes = utf8_decode(at, (size_t)(end - at), &c);
		if (bytes <= 0)
			bytes = 1;
		else if (is_white(c))
			continue;
		last = at + bytes;
	}
	*content = begin;
	*len = (size_t)(last - begin);
}

static enum status append_message(const struct chat *chat, const struct tokenizer *tokenizer, const char *role, const char *content,
	size_t len, struct token_list *out, struct err *err)
{
	struct text text = {0};
	enum status status;

	text_printf(&text, "%s\n", role);
	text_append(&text, content, len);
	token_list_append(out, chat->start);
	status = tokenizer_encode(tokenizer, text.data, text.len, false, out, err);
	token_list_append(out, chat->end);
	text_release(&text);
	return status ? status : tokenizer_encode(tokenizer, "\n", 1, false, out, err);
}

static enum status append_all(const struct chat *chat, const struct tokenizer *tokenizer, const struct chat_message *messages,
	size_t n_messages, struct token_list *out, struct err *err)
{
	const struct chat_template *template = &chat->template;
	enum status status = STATUS_OK;

	if (template->adds_bos)
		token_list_append(out, tokenizer_bos(tokenizer));
	if (template->has_default_system && strcmp(messages[0].role, "system") != 0)
		status = append_message(
			chat, tokenizer, "system", text_str(&template->default_system), template->default_system.len, out, err);
	for (size_t i = 0; i < n_messages && !status; i++) {
		const char *content = messages[i].content ? messages[i].content : "";
		size_t len = messages[i].content ? messages[i].content_len : 0;

		if (template->trims_content)
			trim(&content, &len);
		status = append_message(chat, tokenizer, messages[i].role, content, len, out, err);
	}
	if (status)
		return status;
	token_list_append(out, chat->start);
	return tokenizer_encode(tokenizer, "assistant\n", strlen("assistant\n"), false, out, err);
}

enum status chat_render(const struct source *source, const struct tokenizer *tokenizer, const struct chat_message *messages,
	size_t n_messages, struct token_list *out, struct err *err)
{
	struct chat chat;
	const char *why = "";
	enum status status;

	if (n_messages == 0)
		return err_set(err, STATUS_INPUT, "there are no messages");
	for (size_t i = 0; i < n_messages; i++)
		if (!messages[i].role || !role_is_sound(messages[i].role))
			return err_set(
				err, STATUS_INPUT, "message %zu: a role is 1 to %d letters, digits, '_' or '-'", i, ROLE_BYTES_MAX);
	if (chat_open(source, tokenizer, &chat, &why))
		status = append_all(&chat, tokenizer, messages, n_messages, out, err);
	else
		status = err_set_code(err, STATUS_INPUT, "unsupported_chat_template", "%s", why);
	chat_close(&chat);
	return status;
}
