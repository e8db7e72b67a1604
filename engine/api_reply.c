/* Writing of answers in the form of OpenAI's API. */
#include "engine/api_reply.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/clock.h"
#include "base/random.h"
#include "base/version.h"
#include "engine/api_error.h"

#define EVENT_BEGIN "data: "
#define EVENT_END "\n\n"

void api_reply_init(struct api_reply *reply, enum api_kind kind, bool stream, const char *model)
{
	const char *chat_object = stream ? "chat.completion.chunk" : "chat.completion";

	*reply = (struct api_reply){.kind = kind, .stream = stream};
	text_printf(&reply->head,
		"{\"id\":\"%s-%016" PRIx64 "%016" PRIx64 "\",\"object\":\"%s\",\"created\":%" PRId64 ",\"model\":",
		kind == API_CHAT ? "chatcmpl" : "cmpl", random_entropy(), random_entropy(),
		kind == API_CHAT ? chat_object : "text_completion", clock_realtime_ns() / 1000000000);
	api_write_string(&reply->head, model, strlen(model));
	text_printf(&reply->head, ",\"system_fingerprint\":\"verdict-%s\",", version_build_hash());
}

void api_reply_release(struct api_reply *reply)
{
	text_release(&reply->head);
}

static void write_head(const struct api_reply *reply, struct text *out)
{
	text_append(out, reply->head.data, reply->head.len);
}

static void write_ms(struct text *out, const char *name, int64_t ns)
{
	char number[32];

	text_format_double(number, round((double)ns / 1e3) / 1e3);
	text_printf(out, ",\"%s\":%s", name, number);
}

/* ,"verdict":{…}: what this engine adds to the standard fields. */
static void write_facts(const struct api_usage *usage, struct text *out)
{
	text_printf(out, ",\"verdict\":{\"drafted\":%d,\"accepted\":%d,\"verify_steps\":%d", usage->drafted, usage->accepted,
		usage->verify_steps);
	write_ms(out, "queue_ms", usage->queued_ns);
	write_ms(out, "prefill_ms", usage->prefill_ns);
	write_ms(out, "decode_ms", usage->decode_ns);
	text_append_char(out, '}');
}

static void write_usage(const struct api_usage *usage, bool details, struct text *out)
{
	text_printf(out, "\"usage\":{\"prompt_tokens\":%d,\"completion_tokens\":%d,\"total_tokens\":%d", usage->prompt_tokens,
		usage->completion_tokens, usage->prompt_tokens + usage->completion_tokens);
	if (details)
		text_printf(out,
			",\"prompt_tokens_details\":{\"cached_tokens\":%d},\"completion_tokens_details\":"
			"{\"accepted_prediction_tokens\":%d,\"rejected_prediction_tokens\":%d}",
			usage->cached_tokens, usage->accepted, usage->drafted - usage->accepted);
	text_append_char(out, '}');
}

/* ,"logprobs":…,"finish_reason":…} */
static void write_tail(const struct api_part *part, struct text *out)
{
	text_append_str(out, ",\"logprobs\":");
	logprob_write(part->logprobs, out);
	if (part->finish_reason)
		text_printf(out, ",\"finish_reason\":\"%s\"}", part->finish_reason);
	else
		text_append_str(out, ",\"finish_reason\":null}");
}

void api_reply_event(const struct api_reply *reply, const struct api_part *part, const struct api_usage *usage,
	const struct api_usage *facts, struct text *out)
{
	const struct text *content = part->content;

	text_append_str(out, EVENT_BEGIN);
	write_head(reply, out);
	text_printf(out, "\"choices\":[{\"index\":%d,", part->index);
	if (reply->kind == API_COMPLETION)
		text_append_str(out, "\"text\":");
	else
		text_append_str(out, content->len || !part->finish_reason ? "\"delta\":{\"content\":" : "\"delta\":{");
	if (reply->kind == API_COMPLETION || content->len || !part->finish_reason)
		api_write_string(out, text_str(content), content->len);
	if (reply->kind == API_CHAT)
		text_append_char(out, '}');
	write_tail(part, out);
	text_append_char(out, ']');
	if (usage) {
		text_append_char(out, ',');
		write_usage(usage, false, out);
	}
	if (facts)
		write_facts(facts, out);
	text_append_str(out, "}" EVENT_END);
}

void api_reply_role_event(const struct api_reply *reply, int index, struct text *out)
{
	text_append_str(out, EVENT_BEGIN);
	write_head(reply, out);
	text_printf(out,
		"\"choices\":[{\"index\":%d,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,\"finish_"
		"reason\":null}]}" EVENT_END,
		index);
}

void api_reply_usage_event(const struct api_reply *reply, const struct api_usage *usage, struct text *out)
{
	text_append_str(out, EVENT_BEGIN);
	write_head(reply, out);
	text_append_str(out, "\"choices\":[],");
	write_usage(usage, true, out);
	write_facts(usage, out);
	text_append_str(out, "}" EVENT_END);
}

void api_reply_error_event(const struct api_error *error, struct text *out)
{
	text_append_str(out, EVENT_BEGIN);
	api_error_write(error, out);
	text_append_str(out, EVENT_END);
}

void api_reply_done_event(struct text *out)
{
	text_append_str(out, EVENT_BEGIN "[DONE]" EVENT_END);
}

void api_reply_refusal(struct http_exchange *exchange, const struct api_error *error, const struct http_header *extra)
{
	struct text body = {0};
	const struct http_header retry = {"Retry-After", "1"};
	bool busy = error->http_status == 429 || error->http_status == 503;

	api_error_write(error, &body);
	text_append_char(&body, '\n');
	http_reply(exchange, error->http_status, "application/json", busy ? &retry : extra, &body);
}

void api_reply_begin(const struct api_reply *reply, struct text *out)
{
	write_head(reply, out);
	text_append_str(out, "\"choices\":[");
}

void api_reply_choice(const struct api_reply *reply, const struct api_part *part, struct text *out)
{
	if (part->index)
		text_append_char(out, ',');
	text_printf(out, "{\"index\":%d,", part->index);
	text_append_str(out, reply->kind == API_COMPLETION ? "\"text\":" : "\"message\":{\"role\":\"assistant\",\"content\":");
	api_write_string(out, text_str(part->content), part->content->len);
	if (reply->kind == API_CHAT)
		text_append_char(out, '}');
	write_tail(part, out);
}

void api_reply_end(const struct api_usage *usage, struct text *out)
{
	text_append_str(out, "],");
	write_usage(usage, true, out);
	write_facts(usage, out);
	text_append_str(out, "}\n");
}
