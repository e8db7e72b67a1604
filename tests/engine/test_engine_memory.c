/* Test that steps allocate nothing: every allocation of the process is counted while a request is in the middle of its answer. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/wait.h"
#include "tests/support/engine_bed.h"

static atomic_bool counting;
static atomic_int allocations;

/* Sanitizers bring allocators of their own; there the test only runs the requests. */
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define COUNTS 1
void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t count, size_t bytes);
void *__libc_realloc(void *block, size_t bytes);
void *__libc_memalign(size_t alignment, size_t bytes);

static void count(void)
{
	if (atomic_load_explicit(&counting, memory_order_relaxed))
		atomic_fetch_add(&allocations, 1);
}

void *malloc(size_t bytes)
{
	count();
	return __libc_malloc(bytes);
}

void *calloc(size_t n, size_t bytes)
{
	count();
	return __libc_calloc(n, bytes);
}

void *realloc(void *block, size_t bytes)
{
	count();
	return __libc_realloc(block, bytes);
}

void *aligned_alloc(size_t alignment, size_t bytes)
{
	count();
	return __libc_memalign(alignment, bytes);
}

int posix_memalign(void **out, size_t alignment, size_t bytes)
{
	count();
	*out = __libc_memalign(alignment, bytes);
	return *out ? 0 : ENOMEM;
}
#else
#define COUNTS 0
#endif

/* Many requests together; counting goes from the first token of any to the end of all. */
struct client {
	int32_t prompt[100];
	int n_tokens;
	uint64_t id;
};

static _Atomic uint32_t n_ended;

static void take_tokens(void *ctx, const struct engine_token *tokens, size_t n)
{
	struct client *client = ctx;
	client->n_tokens += (int)n;
	atomic_store(&counting, true);
}

static void take_end(void *ctx, const struct engine_result *result)
{
	atomic_fetch_add(&n_ended, 1);
	wait_wake_all(&n_ended);
}

static void run_counted(const char *path, const char *speculation, double temperature)
{
	enum { CLIENTS = 12 };
	static struct client clients[CLIENTS];
	struct engine_options options;
	bed_options(path, &options);
	options.speculation = speculation;
	options.chunk_tokens = 16;
	options.threads = 2;
	options.max_num_seqs = 6;
	struct engine *engine = bed_open(&options, NULL);
	memset(clients, 0, sizeof clients);
	atomic_store(&n_ended, 0);
	atomic_store(&allocations, 0);
	const struct sampling sampling = {
		.temperature = temperature, .top_k = 30, .top_p = 0.9, .logprobs = 5, .ignore_eos = true, .max_tokens = 80};
	for (int i = 0; i < CLIENTS; i++) {
		for (int k = 0; k < 100; k++)
			clients[i].prompt[k] = 10 + (k + i) % 17;
		const struct engine_listener listener = {.on_tokens = take_tokens, .on_done = take_end, .ctx = &clients[i]};
		atomic_store(&counting, false);
		assert_int_equal(
			engine_submit(engine, clients[i].prompt, 100, &sampling, &listener, &clients[i].id, NULL), STATUS_OK);
		atomic_store(&allocations, 0); /* submitting may allocate, on the caller's thread */
	}
	for (uint32_t ended = 0; ended < CLIENTS; ended = atomic_load(&n_ended))
		wait_while_equal(&n_ended, ended, 0, NULL, INT64_MAX);
	atomic_store(&counting, false);
	for (int i = 0; i < CLIENTS; i++)
		assert_int_equal(clients[i].n_tokens, 80);
	if (COUNTS)
		assert_int_equal(atomic_load(&allocations), 0);
	engine_destroy(engine);
}

static void steps_allocate_nothing(void **state)
{
	struct tiny_model model = tiny_model_default();
	char path[TINY_PATH_BYTES];
	tiny_model_write_temp(&model, path);
	run_counted(path, "off", 0);
	run_counted(path, "off", 0.8);
	run_counted(path, "ngram", 0.8);
	unlink(path);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(steps_allocate_nothing),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
