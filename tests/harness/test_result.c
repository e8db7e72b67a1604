/* Metrics of a run: rates, latencies, windows, and what stays undefined. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>

#include "base/mem.h"
#include "harness/result.h"

#define MS ((int64_t)1000000)

/* A good request: first token at first_ms, then one each step_ms, in events of per_event tokens. */
static struct request_result request_of(int64_t sent_ms, int64_t first_ms, int64_t step_ms, int events, int per_event, bool counted)
{
	struct request_result request = {.ok = true,
		.http_status = 200,
		.prompt_tokens = 10,
		.completion_tokens = events * per_event,
		.cached_tokens = -1,
		.drafted = -1,
		.accepted = -1,
		.sent_ns = sent_ms * MS};
	request.token_times_ns = mem_calloc((size_t)events, sizeof(int64_t));
	request.token_counts = mem_calloc((size_t)events, sizeof(int));
	for (int i = 0; i < events; i++) {
		request.token_times_ns[i] = (first_ms + i * step_ms) * MS;
		request.token_counts[i] = counted ? (i + 1) * per_event : 0;
	}
	request.n_times = (size_t)events;
	request.first_token_ns = request.token_times_ns[0];
	request.last_token_ns = request.end_ns = request.token_times_ns[events - 1];
	return request;
}

static struct run_result run_of(size_t n)
{
	return (struct run_result){.requests = mem_calloc(n, sizeof(struct request_result)), .n_requests = n};
}

static void throughput_is_tokens_from_first_send_to_last_token(void **state)
{
	struct run_result run = run_of(2);
	run.requests[0] = request_of(1000, 1100, 100, 10, 1, false); /* last token at 2000 */
	run.requests[1] = request_of(1500, 1700, 100, 14, 1, false); /* last token at 3000 */
	run.end_ns = 60000 * MS; /* a socket that stayed open adds nothing */
	struct run_metrics metrics;
	run_metrics_compute(&run, 2, &metrics);
	assert_float_equal(metrics.output_tps, 24 / 2.0, 1e-9);
	assert_int_equal(metrics.output_tokens, 24);
	assert_int_equal(metrics.prompt_tokens, 20);
	assert_float_equal(metrics.ttft_ms_p50, 150, 1e-9);
	assert_float_equal(metrics.tpot_ms_p50, 100, 1e-9);
	assert_float_equal(metrics.e2e_ms_p50, 1250, 1e-9);
	assert_float_equal(metrics.itl_ms_p99, 100, 1e-9);
	/* Both busy from 1700 to 2000: three tokens of each after its beginning. */
	assert_float_equal(metrics.steady_tps, 6 / 0.3, 1e-6);
	assert_float_equal(run_metric_by_name(&metrics, "output_tps"), 12, 1e-9);
	assert_true(isnan(run_metric_by_name(&metrics, "nonsense")));
	run_result_release(&run);
}

static void failed_requests_count_neither_tokens_nor_time(void **state)
{
	struct run_result run = run_of(3);
	run.requests[0] = request_of(0 + 1, 101, 100, 10, 1, false);
	run.requests[1] = request_of(1, 101, 100, 50, 1, false);
	run.requests[1].ok = false;
	run.requests[1].error = mem_strdup("the server reported an error");
	run.requests[2] = (struct request_result){
		.sent_ns = 0, .prompt_tokens = -1, .completion_tokens = -1, .error = mem_strdup("not sent")};
	struct run_metrics metrics;
	run_metrics_compute(&run, 1, &metrics);
	assert_float_equal(metrics.output_tps, 10 / 1.0, 1e-9);
	assert_float_equal(metrics.completed_frac, 1 / 3.0, 1e-9);
	run_result_release(&run);
}

static void several_tokens_in_one_event_are_spread_over_its_gap(void **state)
{
	struct run_result run = run_of(1);
	run.requests[0] = request_of(1, 101, 30, 5, 3, true); /* as speculation streams: three tokens each 30 ms */
	struct run_metrics metrics;
	run_metrics_compute(&run, 1, &metrics);
	assert_float_equal(metrics.itl_ms_p50, 10, 1e-9);
	assert_float_equal(metrics.tpot_ms_p50, 120 / 14.0, 1e-9);
	assert_float_equal(metrics.steady_tps, 12 / 0.12, 1e-6);
	run_result_release(&run);
}

static void one_or_no_token_leaves_rates_undefined(void **state)
{
	struct run_result run = run_of(2);
	run.requests[0] = request_of(1, 41, 10, 1, 1, false);
	run.requests[1] = (struct request_result){.ok = true,
		.sent_ns = MS,
		.end_ns = 9 * MS,
		.prompt_tokens = 8,
		.completion_tokens = 0,
		.cached_tokens = -1,
		.drafted = -1,
		.accepted = -1};
	struct run_metrics metrics;
	run_metrics_compute(&run, 2, &metrics);
	assert_float_equal(metrics.ttft_ms_p50, 40, 1e-9);
	assert_true(isnan(metrics.tpot_ms_p50) && isnan(metrics.steady_tps) && isnan(metrics.itl_ms_p50));
	assert_true(isfinite(metrics.output_tps));
	assert_true(isnan(request_ttft_ms(&run.requests[1])));
	run_result_release(&run);
}

static void a_server_that_does_not_count_has_no_throughput(void **state)
{
	struct run_result run = run_of(1);
	run.requests[0] = request_of(1, 101, 10, 10, 1, false);
	run.requests[0].completion_tokens = -1;
	struct run_metrics metrics;
	run_metrics_compute(&run, 1, &metrics);
	assert_true(isnan(metrics.output_tps));
	assert_true(isnan(metrics.steady_tps) || metrics.steady_tps > 0);
	assert_float_equal(metrics.ttft_ms_p50, 100, 1e-9);
	run_result_release(&run);
}

static void shares_are_taken_over_requests_that_tell_both_counts(void **state)
{
	struct run_result run = run_of(2);
	run.requests[0] = request_of(1, 2, 1, 4, 1, false);
	run.requests[1] = request_of(1, 2, 1, 4, 1, false);
	run.requests[0].cached_tokens = 4;
	run.requests[1].drafted = 10;
	run.requests[1].accepted = 7;
	struct run_metrics metrics;
	run_metrics_compute(&run, 2, &metrics);
	assert_float_equal(metrics.cached_frac, 0.4, 1e-9);
	assert_float_equal(metrics.accept_frac, 0.7, 1e-9);
	run_result_release(&run);
}

static void an_empty_run_has_no_metrics(void **state)
{
	struct run_result run = {0};
	struct run_metrics metrics;
	run_metrics_compute(&run, 4, &metrics);
	assert_true(isnan(metrics.output_tps) && isnan(metrics.completed_frac) && isnan(metrics.ttft_ms_p90));
}

static void every_failure_has_a_name_and_is_found_by_it(void **state)
{
	for (int failure = FAILURE_NONE; failure <= FAILURE_GUARD; failure++) {
		enum failure found = FAILURE_NONE;
		assert_true(failure_from_name(failure_name((enum failure)failure), &found));
		assert_int_equal(found, failure);
	}
	enum failure found;
	assert_false(failure_from_name("sunspots", &found));
	assert_false(failure_from_name(NULL, &found));
	for (int bit = 0; bit < REQUEST_FLAGS_COUNT; bit++)
		assert_string_not_equal(request_flag_name(1u << bit), "unknown");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(throughput_is_tokens_from_first_send_to_last_token),
		cmocka_unit_test(failed_requests_count_neither_tokens_nor_time),
		cmocka_unit_test(several_tokens_in_one_event_are_spread_over_its_gap),
		cmocka_unit_test(one_or_no_token_leaves_rates_undefined),
		cmocka_unit_test(a_server_that_does_not_count_has_no_throughput),
		cmocka_unit_test(shares_are_taken_over_requests_that_tell_both_counts),
		cmocka_unit_test(an_empty_run_has_no_metrics),
		cmocka_unit_test(every_failure_has_a_name_and_is_found_by_it),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
