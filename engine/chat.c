/* Renders conversations by the model's template and turns the text into ids. Control tokens are looked for in the rendered text;
 * those that stand in a message's content have been broken up before by a mark, which goes again with the encoding, so that
 * nothing a user writes can end his own turn. Between control tokens text is encoded as a whole with special tokens off, so that
 * ids at the seam of template and content are those of the joined text. */
#include "engine/chat.h"

#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "engine/jinja.h"

#define ROLE_BYTES_MAX 64 /* guess: far above any role in use */

/* What models of the ChatML family without a template expect. */
static const char plain_template[] =
	"{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
	"{% endfor %}{{ '<|im_start|>assistant\n' }}";

static enum status open_template(
	const struct source *source, const struct tokenizer *tokenizer, struct jinja **out, struct err *err)
{
	struct gguf_string text;
	struct err reason = {0};
	enum status status = source->ops->chat_template(source, &text, &reason);

	*out = NULL;
	if (status == STATUS_OK && !text.data &&
		(tokenizer_find(tokenizer, "<|im_start|>") < 0 || tokenizer_find(tokenizer, "<|im_end|>") < 0))
		status = err_set(&reason, STATUS_INPUT,
			"the model has no chat template, and its vocabulary no control tokens <|im_start|> and <|im_end|>");
	if (status == STATUS_OK)
		status = jinja_parse(
			text.data ? text.data : plain_template, text.data ? text.len : strlen(plain_template), out, &reason);
	return status == STATUS_OK ? status : err_set_code(err, STATUS_INPUT, "unsupported_chat_template", "%s", reason.text);
}

/* --- contents that stay contents ----------------------------------------------------------------------------------- */

/* A mark is one of the 32 code points from U+FDD0 on, which no text has that is meant for others. */
#define MARK_BYTES 3
#define MARKS 32

struct mark {
	char bytes[MARK_BYTES];
};

/* All texts of a chat that come from outside, one after another. */
static void append_texts(const struct chat *chat, struct text *out)
{
	for (size_t i = 0; i < chat->n_messages; i++) {
		if (chat->messages[i].content)
			text_append(out, chat->messages[i].content, chat->messages[i].content_len);
		if (chat->messages[i].more)
			json_write(chat->messages[i].more, JSON_STYLE_COMPACT, out);
	}
	if (chat->tools)
		json_write(chat->tools, JSON_STYLE_COMPACT, out);
}

static bool choose_mark(const struct chat *chat, struct mark *out)
{
	struct text texts = {0};
	bool is_free = false;

	append_texts(chat, &texts);
	for (int i = 0; i < MARKS && !is_free; i++) {
		*out = (struct mark){{'\xef', '\xb7', (char)(0x90 + i)}};
		is_free = !memmem(text_str(&texts), texts.len, out->bytes, MARK_BYTES);
	}
	text_release(&texts);
	return is_free;
}

/* Puts the mark behind the first character of everything that would be a control token. */
static void break_up(const struct tokenizer *tokenizer, const char *content, size_t len, const struct mark *mark, struct text *out)
{
	for (size_t at = 0; at < len;) {
		size_t matched;
		int32_t id = tokenizer_match(tokenizer, content + at, len - at, &matched);
		uint32_t c;
		int bytes = utf8_decode(content + at, len - at, &c);

		bytes = bytes > 0 ? bytes : 1;
		text_append(out, content + at, (size_t)bytes);
		if (id >= 0 && tokenizer_is_control(tokenizer, id))
			text_append(out, mark->bytes, MARK_BYTES);
		at += (size_t)bytes;
	}
}

/* --- rendering ----------------------------------------------------------------------------------------------------- */

static bool role_is_sound(const char *role)
{
	size_t len = strspn(role, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-");

	return len > 0 && len <= ROLE_BYTES_MAX && role[len] == '\0';
}

static enum status check_messages(const struct chat *chat, struct err *err)
{
	const struct chat_message *messages = chat->messages;

	if (chat->n_messages == 0)
		return err_set(err, STATUS_INPUT, "there are no messages");
	for (size_t i = 0; i < chat->n_messages; i++)
		if (!messages[i].role || !role_is_sound(messages[i].role))
			return err_set(
				err, STATUS_INPUT, "message %zu: a role is 1 to %d letters, digits, '_' or '-'", i, ROLE_BYTES_MAX);
	return STATUS_OK;
}

/* The text of a control token; NULL for -1. */
static char *token_text(struct arena *arena, const struct tokenizer *tokenizer, int32_t id)
{
	struct text text = {0};
	char *copy = NULL;

	if (tokenizer_write(tokenizer, id, &text))
		copy = arena_strndup(arena, text_str(&text), text.len);
	text_release(&text);
	return copy;
}

/* What strings of tools and calls need to be broken up. */
struct breaker {
	const struct tokenizer *tokenizer;
	const struct mark *mark;
};

static void break_up_string(void *ctx, const char *text, size_t len, struct text *out)
{
	const struct breaker *breaker = ctx;

	break_up(breaker->tokenizer, text, len, breaker->mark, out);
}

static enum status render(const struct jinja *jinja, const struct tokenizer *tokenizer, const struct chat *chat,
	const struct mark *mark, struct text *out, struct err *err)
{
	struct arena arena = {0};
	struct jinja_message *broken_up = arena_calloc(&arena, chat->n_messages, sizeof(*broken_up));
	struct breaker breaker = {tokenizer, mark};
	struct jinja_input input = {
		.messages = broken_up,
		.n_messages = chat->n_messages,
		.tools = chat->tools,
		.bos_token = token_text(&arena, tokenizer, tokenizer_bos(tokenizer)),
		.eos_token = token_text(&arena, tokenizer, tokenizer_eos(tokenizer)),
		.now_s = clock_realtime_ns() / 1000000000,
		.change = break_up_string,
		.change_ctx = &breaker,
	};
	struct text content = {0};
	enum status status;

	for (size_t i = 0; i < chat->n_messages; i++) {
		const struct chat_message *message = &chat->messages[i];

		broken_up[i] = (struct jinja_message){.role = message->role, .more = message->more};
		if (!message->content)
			continue;
		text_clear(&content);
		break_up(tokenizer, message->content, message->content_len, mark, &content);
		broken_up[i].content = arena_strndup(&arena, text_str(&content), content.len);
		broken_up[i].content_len = content.len;
	}
	status = jinja_render(jinja, &input, out, err);
	text_release(&content);
	arena_release(&arena);
	if (!status && out->len == 0)
		status = err_set(err, STATUS_INPUT, "the prompt is empty");
	return status ? err_add(err, "chat template") : status;
}

enum status chat_render(const struct source *source, const struct tokenizer *tokenizer, const struct chat *chat,
	struct token_list *out, struct err *err)
{
	struct text rendered = {0};
	struct jinja *jinja = NULL;
	struct mark mark;
	enum status status = check_messages(chat, err);

	if (!status)
		status = open_template(source, tokenizer, &jinja, err);
	if (!status && chat->tools && !jinja_mentions(jinja, "tools"))
		status = err_set(err, STATUS_INPUT, "the model's chat template has no place for tools");
	if (!status && !choose_mark(chat, &mark))
		status = err_set(
			err, STATUS_INPUT, "the messages have all of the code points U+FDD0 to U+FDEF, which are no characters");
	if (!status)
		status = render(jinja, tokenizer, chat, &mark, &rendered, err);
	if (!status)
		status = tokenizer_encode_marked(tokenizer, text_str(&rendered), rendered.len, mark.bytes, MARK_BYTES, out, err);
	jinja_free(jinja);
	text_release(&rendered);
	return status;
}

/* --- checking ------------------------------------------------------------------------------------------------------ */

/* Markers of families that make no sense as text: without them as control tokens the template is another model's. */
static enum status check_markers(const struct tokenizer *tokenizer, const struct text *rendered, struct err *err)
{
	static const char *const markers[] = {
		"<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|end_of_text|>"};

	for (size_t i = 0; i < sizeof(markers) / sizeof(markers[0]); i++)
		if (strstr(text_str(rendered), markers[i]) && tokenizer_find(tokenizer, markers[i]) < 0)
			return err_set_code(err, STATUS_INPUT, "unsupported_chat_template",
				"the chat template writes %s, which is no control token of the vocabulary", markers[i]);
	return STATUS_OK;
}

enum status chat_check(const struct source *source, const struct tokenizer *tokenizer, struct err *err)
{
	static const struct chat_message messages[] = {{"user", "a", 1, NULL}, {"assistant", "b", 1, NULL}, {"user", "c", 1, NULL}};
	struct jinja *jinja;
	enum status status = open_template(source, tokenizer, &jinja, err);

	for (size_t n = 1; n <= 3 && !status; n += 2) {
		const struct chat chat = {.messages = messages, .n_messages = n};
		struct text rendered = {0};
		struct mark mark;
		struct err reason = {0};

		(void)choose_mark(&chat, &mark); /* none of these has one */
		status = render(jinja, tokenizer, &chat, &mark, &rendered, &reason);
		if (status)
			err_set_code(err, STATUS_INPUT, "unsupported_chat_template", "%s", reason.text);
		else
			status = check_markers(tokenizer, &rendered, err);
		text_release(&rendered);
	}
	jinja_free(jinja);
	return status;
}
