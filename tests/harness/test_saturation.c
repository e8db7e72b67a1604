/* harness/saturation: a queue that grows is told from one that does not. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>

#include "base/mem.h"
#include "base/random.h"
#include "harness/saturation.h"

#define MS ((int64_t)1000000)

/* One server that takes service_ms a request, asked every interval_ms with some noise. */
static struct run_result queue_of(size_t n, int64_t interval_ms, int64_t service_ms, uint64_t seed)
{
	struct run_result run = {.requests = mem_calloc(n, sizeof(struct request_result)), .n_requests = n, .begin_ns = MS};
	int64_t free_ns = MS;
	for (size_t i = 0; i < n; i++) {
		struct request_result *request = &run.requests[i];
		int64_t noise_ns = (int64_t)(random_uniform(seed, 0, i) * (double)service_ms / 5 * (double)MS);
		request->ok = true;
		request->due_ns = request->sent_ns = MS + (int64_t)i * interval_ms * MS;
		int64_t begin_ns = request->due_ns > free_ns ? request->due_ns : free_ns;
		request->first_token_ns = begin_ns + service_ms * MS / 2 + noise_ns;
		free_ns = request->end_ns = begin_ns + service_ms * MS + noise_ns;
	}
	return run;
}

static void a_queue_that_grows_is_saturated(void **state)
{
	struct run_result run = queue_of(60, 100, 200, 1);
	assert_true(saturation_of(&run));
	run_result_release(&run);
}

static void a_server_that_keeps_up_is_not(void **state)
{
	for (uint64_t seed = 1; seed <= 20; seed++) {
		struct run_result run = queue_of(60, 2000, 1500, seed);
		assert_false(saturation_of(&run));
		run_result_release(&run);
	}
}

static void too_short_or_too_quick_a_run_proves_nothing(void **state)
{
	struct run_result run = queue_of(SATURATION_REQUESTS_MIN - 1, 100, 2000, 1);
	assert_false(saturation_of(&run));
	run_result_release(&run);
	run = queue_of(40, 1, 2, 1); /* it grows, by some milliseconds */
	assert_false(saturation_of(&run));
	run_result_release(&run);
	run = (struct run_result){0};
	assert_false(saturation_of(&run));
}

static void closed_loops_and_loads_that_come_at_once_have_no_slope(void **state)
{
	struct run_result run = queue_of(60, 100, 200, 1);
	for (size_t i = 0; i < run.n_requests; i++)
		run.requests[i].due_ns = 0;
	assert_false(saturation_of(&run));
	run_result_release(&run);
	run = queue_of(60, 0, 200, 1);
	assert_false(saturation_of(&run));
	run_result_release(&run);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_queue_that_grows_is_saturated),
		cmocka_unit_test(a_server_that_keeps_up_is_not),
		cmocka_unit_test(too_short_or_too_quick_a_run_proves_nothing),
		cmocka_unit_test(closed_loops_and_loads_that_come_at_once_have_no_slope),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
