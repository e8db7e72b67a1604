/* Metrics of a run: rates, latencies, windows, and what stays undefined. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>

#include "base/mem.h"
#include "harness/metric.h"
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

/* Requests whose TTFT is 10, 20, … ms. */
static struct run_result staircase(size_t n)
{
	struct run_result run = run_of(n);
	for (size_t i = 0; i < n; i++)
		run.requests[i] = request_of(1, 1 + 10 * ((int64_t)i + 1), 5 + (int64_t)i, 3, 1, false);
	return run;
}

/* Expected values: numpy.percentile of 10, 20, …, 1000. */
static void percentiles_are_those_of_the_raw_samples(void **state)
{
	struct run_result run = staircase(100);
	struct run_metrics metrics;
	run_metrics_compute(&run, 4, &metrics);
	assert_float_equal(metrics.ttft_ms_p50, 505, 1e-9);
	assert_float_equal(metrics.ttft_ms_p90, 901, 1e-9);
	assert_float_equal(metrics.ttft_ms_p95, 950.5, 1e-9);
	assert_float_equal(metrics.ttft_ms_p99, 990.1, 1e-9);
	assert_float_equal(metrics.tpot_ms_p99, 5 + 98.01, 1e-9);
	assert_float_equal(metrics.e2e_ms_p50, 505 + 2 * 54.5, 1e-9);
	assert_float_equal(run_metric_by_name(&metrics, "ttft_p95_ms"), 950.5, 1e-9);
	assert_float_equal(metrics.request_rps, 100 / 1.208, 1e-6);
	assert_float_equal(metrics.total_tps, 1300 / 1.208, 1e-6);
	run_result_release(&run);
}

/* An event of nine tokens 90 ms after the first one, then one token after 100 ms more: nine gaps of 10 ms and one of 100. */
static void a_gap_counts_once_for_each_token_that_ends_it(void **state)
{
	struct run_result run = run_of(1);
	struct request_result *request = &run.requests[0];
	*request = request_of(1, 11, 1, 3, 1, true);
	const int64_t times_ms[] = {11, 101, 201};
	const int counts[] = {1, 10, 11};
	for (int i = 0; i < 3; i++) {
		request->token_times_ns[i] = times_ms[i] * MS;
		request->token_counts[i] = counts[i];
	}
	request->completion_tokens = 11;
	request->last_token_ns = request->end_ns = 201 * MS;
	struct run_metrics metrics;
	run_metrics_compute(&run, 1, &metrics);
	assert_float_equal(metrics.itl_ms_p50, 10, 1e-9);
	assert_float_equal(metrics.itl_ms_p90, 19, 1e-9); /* numpy.percentile([10] * 9 + [100], 90) */
	assert_float_equal(metrics.itl_ms_p99, 91.9, 1e-9);
	assert_float_equal(metrics.tpot_ms_p50, 19, 1e-9);
	run_result_release(&run);
}

static void goodput_counts_requests_within_every_limit(void **state)
{
	struct run_result run = staircase(10); /* TTFT 10 … 100 ms, TPOT 5 … 14 ms, E2E TTFT + 2 TPOT */
	struct run_metrics metrics;
	run_metrics_compute(&run, 4, &metrics);
	assert_true(isnan(metrics.goodput_frac) && isnan(metrics.goodput_rps));
	run.goodput = (struct goodput_limits){.ttft_ms = 80};
	run_metrics_compute(&run, 4, &metrics);
	assert_float_equal(metrics.goodput_frac, 0.8, 1e-9);
	assert_float_equal(metrics.goodput_rps, 8 / 0.128, 1e-6);
	run.goodput = (struct goodput_limits){.ttft_ms = 80, .tpot_ms = 8};
	run_metrics_compute(&run, 4, &metrics);
	assert_float_equal(metrics.goodput_frac, 0.4, 1e-9);
	run.goodput.e2e_ms = 34; /* 10 + 2 × 5, 20 + 2 × 6 */
	run.requests[0].ok = false;
	run_metrics_compute(&run, 4, &metrics);
	assert_float_equal(metrics.goodput_frac, 0.1, 1e-9);
	run_result_release(&run);
}

static void one_token_cannot_miss_a_limit_per_token_but_silence_can(void **state)
{
	struct run_result run = run_of(2);
	run.requests[0] = request_of(1, 41, 10, 1, 1, false);
	run.requests[1] = request_of(1, 41, 10, 2, 1, false);
	run.requests[1].n_times = 0; /* a whole answer: no times to tell a token's by */
	run.requests[1].first_token_ns = 0;
	run.goodput = (struct goodput_limits){.tpot_ms = 50};
	struct run_metrics metrics;
	run_metrics_compute(&run, 1, &metrics);
	assert_float_equal(metrics.goodput_frac, 0.5, 1e-9);
	run_result_release(&run);
}

static void what_an_open_loop_makes_wait_is_told_apart_from_the_latency(void **state)
{
	struct run_result run = staircase(2);
	run.requests[0].due_ns = run.requests[0].sent_ns;
	run.requests[1].due_ns = run.requests[1].sent_ns;
	run.requests[1].sent_ns += 8 * MS;
	struct run_metrics metrics;
	run_metrics_compute(&run, 1, &metrics);
	assert_float_equal(metrics.wait_ms_p50, 4, 1e-9);
	assert_float_equal(metrics.wait_ms_p99, 7.92, 1e-9);
	assert_float_equal(metrics.ttft_ms_p50, 11, 1e-9);
	run_result_release(&run);
}

/* By hand: three slots, one of them idle for a while in the middle. */
static void the_steady_window_leaves_out_times_in_which_a_slot_was_idle(void **state)
{
	struct run_result run = run_of(3);
	run.requests[0] = request_of(1, 100, 100, 10, 1, false); /* 100 … 1000 */
	run.requests[1] = request_of(1, 200, 100, 4, 1, false); /* 200 … 500 */
	run.requests[2] = request_of(510, 700, 100, 5, 1, false); /* 700 … 1100 */
	struct run_metrics metrics;
	run_metrics_compute(&run, 2, &metrics);
	/* Both busy: 200 … 500 and 700 … 1000, with three tokens of each in each. */
	assert_float_equal(metrics.steady_tps, 12 / 0.6, 1e-6);
	run_result_release(&run);
}

static double mean_log(const struct metric_spec *spec, const double *values, size_t n)
{
	struct metric_mean mean = {0};
	for (size_t i = 0; i < n; i++)
		metric_mean_add(&mean, spec, values[i]);
	return metric_mean_log(&mean, spec);
}

static void counts_have_an_arithmetic_mean_that_may_be_zero_and_others_a_geometric_one(void **state)
{
	const struct metric_spec *share = metric_by_name("goodput_frac"), *rate = metric_by_name("goodput_rps"),
				 *time = metric_by_name("ttft_ms_p50");
	assert_float_equal(mean_log(share, (double[]){0.5, 0}, 2), log(0.25), 1e-12);
	assert_float_equal(mean_log(time, (double[]){4, 9, NAN, 0, -1}, 5), log(6), 1e-12);
	assert_true(exp(mean_log(rate, (double[]){0, 0}, 2)) == 0);
	assert_true(isnan(mean_log(time, (double[]){0}, 1)) && isnan(mean_log(share, (double[]){NAN, INFINITY}, 2)));
	assert_float_equal(metric_log_half(share, 10, 2), log(0.05), 1e-12);
	assert_float_equal(metric_log_half(rate, 10, 2), log(0.25), 1e-12);
	assert_true(
		isnan(metric_log_half(share, 0, 2)) && isnan(metric_log_half(rate, 10, 0)) && isnan(metric_log_half(time, 10, 2)));
	assert_null(metric_by_name("nonsense"));
	assert_null(metric_by_name(NULL));
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
		cmocka_unit_test(percentiles_are_those_of_the_raw_samples),
		cmocka_unit_test(a_gap_counts_once_for_each_token_that_ends_it),
		cmocka_unit_test(goodput_counts_requests_within_every_limit),
		cmocka_unit_test(one_token_cannot_miss_a_limit_per_token_but_silence_can),
		cmocka_unit_test(what_an_open_loop_makes_wait_is_told_apart_from_the_latency),
		cmocka_unit_test(the_steady_window_leaves_out_times_in_which_a_slot_was_idle),
		cmocka_unit_test(counts_have_an_arithmetic_mean_that_may_be_zero_and_others_a_geometric_one),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
