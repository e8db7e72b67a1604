/* The application's side of an HTTP exchange: answers from any thread, queued with a bound, and the life of both sides. */
#include "base/http_exchange.h"

#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/mem.h"

struct http_hub *http_hub_new(size_t stream_queue_bytes_max)
{
	int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);

	if (fd < 0)
		return NULL;
	struct http_hub *hub = mem_calloc(1, sizeof(*hub));
	pthread_mutex_init(&hub->lock, NULL);
	hub->wake_fd = fd;
	hub->stream_queue_bytes_max = stream_queue_bytes_max;
	hub->refs = 1;
	return hub;
}

void http_hub_drop(struct http_hub *hub)
{
	pthread_mutex_lock(&hub->lock);
	bool last = --hub->refs == 0;
	pthread_mutex_unlock(&hub->lock);
	if (!last)
		return;
	pthread_mutex_destroy(&hub->lock);
	close(hub->wake_fd);
	mem_free(hub);
}

void http_hub_wake(struct http_hub *hub)
{
	uint64_t one = 1;
	ssize_t written = write(hub->wake_fd, &one, sizeof(one));
	(void)written; /* fails only after 2^64-1 unread wake-ups: then the loop is awake anyway */
}

struct http_exchange *http_hub_take_ready(struct http_hub *hub)
{
	pthread_mutex_lock(&hub->lock);
	struct http_exchange *list = hub->ready;
	hub->ready = NULL;
	pthread_mutex_unlock(&hub->lock);
	return list;
}

struct http_exchange *http_exchange_new(struct http_hub *hub)
{
	struct http_exchange *exchange = mem_calloc(1, sizeof(*exchange));

	exchange->hub = hub;
	exchange->refs = 2;
	pthread_mutex_lock(&hub->lock);
	hub->refs++;
	hub->stats.exchanges++;
	pthread_mutex_unlock(&hub->lock);
	return exchange;
}

void http_exchange_drop(struct http_exchange *exchange)
{
	struct http_hub *hub = exchange->hub;

	pthread_mutex_lock(&hub->lock);
	bool last = --exchange->refs == 0;
	pthread_mutex_unlock(&hub->lock);
	if (!last)
		return;
	if (exchange->release)
		exchange->release(exchange->ctx);
	text_release(&exchange->path);
	text_release(&exchange->body);
	text_release(&exchange->out);
	mem_free(exchange);
	http_hub_drop(hub);
}

/* Puts an exchange where the server thread will find it. Returns whether that thread must be woken. Lock held. */
static bool make_ready(struct http_exchange *exchange)
{
	struct http_hub *hub = exchange->hub;

	if (exchange->ready)
		return false;
	bool wake = hub->ready == NULL;
	exchange->ready = true;
	exchange->refs++;
	exchange->next_ready = hub->ready;
	hub->ready = exchange;
	return wake;
}

static void unlock_and_wake(struct http_hub *hub, bool wake)
{
	pthread_mutex_unlock(&hub->lock);
	if (wake)
		http_hub_wake(hub);
}

const char *http_method(const struct http_exchange *exchange)
{
	return exchange->method;
}

const char *http_path(const struct http_exchange *exchange)
{
	return text_str(&exchange->path);
}

const char *http_body(const struct http_exchange *exchange, size_t *len)
{
	*len = exchange->body.len;
	return text_str(&exchange->body);
}

void http_attach(struct http_exchange *exchange, void *ctx, void (*on_gone)(void *ctx), void (*release)(void *ctx))
{
	ASSERT(!exchange->ctx && !exchange->release);
	exchange->ctx = ctx;
	exchange->on_gone = on_gone;
	exchange->release = release;
}

void http_reply(
	struct http_exchange *exchange, int status, const char *content_type, const struct http_header *extra, struct text *body)
{
	struct http_hub *hub = exchange->hub;

	ASSERT(status >= HTTP_STATUS_MIN && status <= HTTP_STATUS_MAX);
	pthread_mutex_lock(&hub->lock);
	ASSERT(!exchange->ended && !exchange->streaming);
	exchange->status = status;
	exchange->content_type = content_type;
	if (extra) {
		exchange->extra_name = extra->name;
		snprintf(exchange->extra_value, sizeof(exchange->extra_value), "%s", extra->value);
	}
	if (body) {
		exchange->out = *body;
		*body = (struct text){0};
	}
	exchange->ended = true;
	unlock_and_wake(hub, exchange->suspended && make_ready(exchange));
	http_exchange_drop(exchange);
}

void http_stream_begin(struct http_exchange *exchange, int status, const char *content_type)
{
	struct http_hub *hub = exchange->hub;

	pthread_mutex_lock(&hub->lock);
	ASSERT(!exchange->ended && !exchange->streaming);
	exchange->status = status;
	exchange->content_type = content_type;
	exchange->streaming = true;
	unlock_and_wake(hub, exchange->suspended && make_ready(exchange));
}

bool http_stream_write(struct http_exchange *exchange, const char *bytes, size_t len)
{
	struct http_hub *hub = exchange->hub;
	bool wake = false;

	pthread_mutex_lock(&hub->lock);
	ASSERT(exchange->streaming && !exchange->ended);
	bool accepted = !exchange->gone;
	if (accepted && exchange->out.len - exchange->out_sent + len > hub->stream_queue_bytes_max) {
		/* The server thread finds it in the ready list, tells the application and drops the client. */
		exchange->gone = true;
		accepted = false;
		wake = make_ready(exchange);
	} else if (accepted && len) {
		text_append(&exchange->out, bytes, len);
		wake = exchange->suspended && make_ready(exchange);
	}
	unlock_and_wake(hub, wake);
	return accepted;
}

void http_stream_end(struct http_exchange *exchange)
{
	struct http_hub *hub = exchange->hub;

	pthread_mutex_lock(&hub->lock);
	ASSERT(exchange->streaming && !exchange->ended);
	exchange->ended = true;
	unlock_and_wake(hub, exchange->suspended && make_ready(exchange));
	http_exchange_drop(exchange);
}

enum http_next http_exchange_next(struct http_exchange *exchange, bool peer_closed)
{
	struct http_hub *hub = exchange->hub;
	enum http_next next;

	pthread_mutex_lock(&hub->lock);
	if (exchange->gone)
		next = HTTP_NEXT_CLOSE;
	else if (exchange->ended || exchange->streaming)
		next = HTTP_NEXT_ANSWER;
	else
		next = peer_closed ? HTTP_NEXT_CLOSE : HTTP_NEXT_SLEEP;
	exchange->suspended = next == HTTP_NEXT_SLEEP;
	pthread_mutex_unlock(&hub->lock);
	return next;
}

enum http_next http_exchange_read(struct http_exchange *exchange, char *buffer, size_t max, size_t *count)
{
	struct http_hub *hub = exchange->hub;
	enum http_next next = HTTP_NEXT_ANSWER;

	*count = 0;
	pthread_mutex_lock(&hub->lock);
	size_t waiting = exchange->out.len - exchange->out_sent;
	if (exchange->gone) {
		next = HTTP_NEXT_CLOSE;
	} else if (waiting) {
		*count = waiting < max ? waiting : max;
		memcpy(buffer, exchange->out.data + exchange->out_sent, *count);
		exchange->out_sent += *count;
		if (exchange->out_sent == exchange->out.len) {
			text_clear(&exchange->out);
			exchange->out_sent = 0;
		}
	} else if (!exchange->ended) {
		next = HTTP_NEXT_SLEEP;
		exchange->suspended = true;
	}
	pthread_mutex_unlock(&hub->lock);
	return next;
}
