/* Head and tail of a log in shared memory. The tail is a ring over all bytes; the head is kept beside it. */
#include "harness/logring.h"

#include <errno.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/utf8.h"

struct logring_shared {
	_Atomic uint64_t total_bytes; /* written after the bytes it counts */
	char head[LOGRING_HEAD_BYTES];
	char tail[LOGRING_TAIL_BYTES]; /* byte i of the log is at i % LOGRING_TAIL_BYTES while it is among the last */
};

static enum status map(int fd, struct logring *out, struct err *err)
{
	void *shared = mmap(NULL, sizeof(struct logring_shared), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (shared == MAP_FAILED)
		return err_set_errno(err, STATUS_UNAVAILABLE, errno, "mapping a log of %zu bytes", sizeof(struct logring_shared));
	out->shared = shared;
	return STATUS_OK;
}

enum status logring_create(struct logring *out, struct err *err)
{
	*out = (struct logring){.fd = memfd_create("verdict-log", MFD_CLOEXEC)};
	if (out->fd < 0)
		return err_set_errno(err, STATUS_UNAVAILABLE, errno, "creating a memory file for the log");
	enum status status = STATUS_OK;
	if (ftruncate(out->fd, sizeof(struct logring_shared)) != 0)
		status = err_set_errno(err, STATUS_UNAVAILABLE, errno, "sizing the memory file for the log");
	if (!status)
		status = map(out->fd, out, err);
	if (status)
		logring_close(out);
	return status;
}

enum status logring_attach(int fd, struct logring *out, struct err *err)
{
	*out = (struct logring){.fd = -1};
	return map(fd, out, err);
}

void logring_close(struct logring *ring)
{
	if (ring->shared)
		munmap(ring->shared, sizeof(struct logring_shared));
	if (ring->fd >= 0)
		close(ring->fd);
	*ring = (struct logring){.fd = -1};
}

void logring_append(struct logring *ring, const char *bytes, size_t len)
{
	struct logring_shared *shared = ring->shared;
	uint64_t total = atomic_load_explicit(&shared->total_bytes, memory_order_relaxed);
	for (size_t at = 0; at < len;) {
		size_t in_tail = (size_t)(total % LOGRING_TAIL_BYTES);
		size_t part = len - at < LOGRING_TAIL_BYTES - in_tail ? len - at : LOGRING_TAIL_BYTES - in_tail;
		if (total < LOGRING_HEAD_BYTES) {
			part = part < LOGRING_HEAD_BYTES - total ? part : (size_t)(LOGRING_HEAD_BYTES - total);
			memcpy(shared->head + total, bytes + at, part);
		}
		memcpy(shared->tail + in_tail, bytes + at, part);
		at += part;
		total += part;
	}
	atomic_store_explicit(&shared->total_bytes, total, memory_order_release);
}

uint64_t logring_total_bytes(const struct logring *ring)
{
	return atomic_load_explicit(&ring->shared->total_bytes, memory_order_acquire);
}

/* Bytes begin..end of the log, all of which are still in the tail. */
static void append_tail(const struct logring_shared *shared, uint64_t begin, uint64_t end, struct text *out)
{
	while (begin < end) {
		size_t at = (size_t)(begin % LOGRING_TAIL_BYTES);
		size_t part = end - begin < LOGRING_TAIL_BYTES - at ? (size_t)(end - begin) : LOGRING_TAIL_BYTES - at;
		text_append(out, shared->tail + at, part);
		begin += part;
	}
}

void logring_read(const struct logring *ring, struct text *out)
{
	uint64_t total = logring_total_bytes(ring);
	uint64_t tail_begin = total > LOGRING_TAIL_BYTES ? total - LOGRING_TAIL_BYTES : 0;
	uint64_t head_end = tail_begin < LOGRING_HEAD_BYTES ? tail_begin : LOGRING_HEAD_BYTES;
	text_append(out, ring->shared->head, (size_t)head_end);
	if (tail_begin > head_end)
		text_printf(out, "\n[... %llu bytes of log were not kept ...]\n", (unsigned long long)(tail_begin - head_end));
	append_tail(ring->shared, tail_begin, total, out);
}

void logring_read_tail(const struct logring *ring, size_t bytes_max, struct text *out)
{
	uint64_t total = logring_total_bytes(ring);
	uint64_t kept = bytes_max < LOGRING_TAIL_BYTES ? bytes_max : LOGRING_TAIL_BYTES;
	uint64_t begin = total > kept ? total - kept : 0;
	struct text raw = {0};
	append_tail(ring->shared, begin, total, &raw);
	char *bytes = raw.data;
	size_t len = raw.len;
	char *line = begin > 0 && len > 0 ? memchr(bytes, '\n', len) : NULL;
	if (line && line + 1 < bytes + len) {
		len -= (size_t)(line + 1 - bytes);
		bytes = line + 1;
	}
	for (size_t i = 0; i < len; i++)
		if (bytes[i] == '\0')
			bytes[i] = ' ';
	utf8_append_lossy(out, bytes ? bytes : "", len);
	text_release(&raw);
}
