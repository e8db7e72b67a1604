/* Invariants of reading answers. */
#include "tests/support/replay_checks.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "base/file.h"
#include "base/text.h"
#include "harness/chunked.h"
#include "harness/completion.h"
#include "harness/counters.h"
#include "harness/foreign.h"
#include "harness/record_check.h"
#include "harness/sse.h"

static void write_event(void *ctx, const struct sse_event *event)
{
	struct text *out = ctx;
	ASSERT(!memchr(event->data, '\r', event->len));
	text_printf(out, "[%s|%zu|", event->type, event->len);
	text_append(out, event->data, event->len);
	text_append_char(out, ']');
}

static void split(const uint8_t *data, size_t size, size_t step, struct text *out)
{
	struct sse_parser parser = {0};
	enum status status = STATUS_OK;
	for (size_t at = 0; at < size && !status; at += step)
		status = sse_feed(&parser, (const char *)data + at, size - at < step ? size - at : step, write_event, out, NULL);
	if (!status)
		sse_finish(&parser, write_event, out);
	sse_release(&parser);
}

void check_sse_bytes(const uint8_t *data, size_t size)
{
	struct text whole = {0};
	split(data, size, size ? size : 1, &whole);
	for (size_t step = 1; step <= 3; step++) {
		struct text cut = {0};
		split(data, size, step, &cut);
		ASSERT(cut.len == whole.len && (whole.len == 0 || memcmp(cut.data, whole.data, whole.len) == 0));
		text_release(&cut);
	}
	text_release(&whole);
}

/* What is appended tells a refused body from one that is over and from one that is not. */
static void unchunk(const uint8_t *bytes, size_t size, size_t step, struct text *out)
{
	struct chunked chunked = {0};
	struct err err = {0};
	for (size_t at = 0; at < size && !err.status; at += step) {
		const char *piece = (const char *)bytes + at, *data;
		size_t len = size - at < step ? size - at : step, data_len;
		while (chunked_next(&chunked, &piece, &len, &data, &data_len, &err)) {
			ASSERT(data_len > 0 && data >= (const char *)bytes && data + data_len <= (const char *)bytes + size);
			text_append(out, data, data_len);
		}
		ASSERT(len == 0 || err.status || chunked.state == CHUNKED_DONE);
	}
	text_append_char(out, err.status ? 'r' : chunked.state == CHUNKED_DONE ? 'd' : 'o');
}

void check_chunked_bytes(const uint8_t *data, size_t size)
{
	struct text whole = {0};
	unchunk(data, size, size ? size : 1, &whole);
	for (size_t step = 1; step <= 3; step++) {
		struct text cut = {0};
		unchunk(data, size, step, &cut);
		ASSERT(cut.len == whole.len && memcmp(cut.data, whole.data, whole.len) == 0);
		text_release(&cut);
	}
	text_release(&whole);
}

static void read_once(const uint8_t *data, size_t size, int http_status, const char *type, const char *transport_error)
{
	struct completion_answer answer = {0};
	struct request_result result = {.sent_ns = 1};
	struct run_metrics metrics;
	completion_begin(&answer, http_status, type);
	enum status status = STATUS_OK;
	for (size_t at = 0; at < size && !status; at += 5)
		status = completion_feed(&answer, (const char *)data + at, size - at < 5 ? size - at : 5, (int64_t)(2 + at), NULL);
	completion_finish(&answer, 16, transport_error, &result);
	ASSERT(result.ok == (result.error == NULL));
	ASSERT(result.text && result.completion_tokens >= -1 && result.prompt_tokens >= -1);
	ASSERT(result.n_times <= answer.n_events);
	for (size_t i = 1; i < result.n_times; i++)
		ASSERT(result.token_times_ns[i] >= result.token_times_ns[i - 1]);
	ASSERT(result.n_times == 0 ||
		(result.first_token_ns == result.token_times_ns[0] && result.last_token_ns >= result.first_token_ns));
	ASSERT(http_status == 200 || !result.ok);
	struct run_result run = {.requests = &result, .n_requests = 1};
	run_metrics_compute(&run, 1, &metrics);
	request_result_release(&result);
	completion_answer_release(&answer);
}

void check_completion_bytes(const uint8_t *data, size_t size)
{
	read_once(data, size, 200, "text/event-stream", NULL);
	read_once(data, size, 200, "text/event-stream", "cut");
	read_once(data, size, 200, "application/json", NULL);
	read_once(data, size, 503, "application/json", NULL);
}

void check_foreign_bytes(const uint8_t *data, size_t size)
{
	static const char *const figures[] = {"concurrency", "input_len", "output_len", "completed", "failed", "tokens_per_s",
		"tokens_per_s_gpu", "ttft_ms_p50", "tpot_ms_p50"};
	struct text text = {0};
	struct json *rows = NULL;
	struct err err = {0};
	text_append(&text, (const char *)data, size);
	enum status status = foreign_read(text_str(&text), text.len, "x", &rows, &err);
	ASSERT(status == STATUS_OK || (!rows && err.text[0]));
	for (size_t i = 0; i < json_count(rows); i++) {
		const struct json *row = json_at(rows, i);
		ASSERT(json_text_len(json_get(row, "hash")) == 64 && json_kind_of(json_get(row, "document")) == JSON_KIND_OBJECT);
		for (size_t k = 0; k < sizeof figures / sizeof figures[0]; k++) { /* none that a table or a page could not show */
			const struct json *value = json_get(row, figures[k]);
			ASSERT(!value || (json_number(value, -1) >= 0 && json_number(value, -1) <= 1e15));
		}
	}
	json_free(rows);
	text_release(&text);
}

void check_record_bytes(const uint8_t *data, size_t size)
{
	struct json *record = NULL;
	char path[RECORD_PATH_BYTES];
	int line = 0, column = 0;
	if (json_parse((const char *)data, size, "x", &record, NULL) == STATUS_OK) {
		struct err err = {0};
		enum status status = record_check(record, path, &err);
		ASSERT(status == STATUS_OK || (status == STATUS_INPUT && err.text[0]));
		ASSERT(status == STATUS_OK || json_locate((const char *)data, size, path, false, &line, &column));
	}
	json_free(record);
}

void check_counters_bytes(const uint8_t *data, size_t size)
{
	static const struct counter_names names = {.prompt = "vllm:prompt_tokens_total",
		.generated = "sglang:generation_tokens_total",
		.cached = "vllm:prefix_cache_hits_total"};
	struct text text = {0};
	struct run_counters counters;
	text_append(&text, (const char *)data, size);
	counters_read(text_str(&text), &names, &counters);
	ASSERT(counters.prompt == -1 || counters.prompt >= 0);
	ASSERT(counters.generated == -1 || counters.generated >= 0);
	ASSERT(counters.cached == -1 || counters.cached >= 0);
	ASSERT(counters.drafted == -1);
	struct json *labels = counters_labels(text_str(&text), "vllm:cache_config_info");
	for (void *it = json_first(labels); it; it = json_next(labels, it))
		ASSERT(json_iterator_key(it)[0] && json_kind_of(json_iterator_value(it)) != JSON_KIND_OBJECT);
	json_free(labels);
	text_release(&text);
}

int check_corpus(const char *folder, void (*check)(const uint8_t *data, size_t size))
{
	DIR *entries = opendir(folder);
	int count = 0;
	if (!entries)
		return -1;
	for (struct dirent *entry; (entry = readdir(entries));) {
		char path[512];
		struct text text = {0};
		snprintf(path, sizeof(path), "%s/%s", folder, entry->d_name);
		if (entry->d_name[0] != '.' && file_read(path, (size_t)1 << 24, &text, NULL) == STATUS_OK) {
			check((const uint8_t *)text_str(&text), text.len);
			count++;
		}
		text_release(&text);
	}
	closedir(entries);
	return count;
}
