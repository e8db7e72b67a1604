/* What samples of a machine say together, and which of it makes a run void. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/text.h"
#include "harness/sampler.h"

#define N 5

/* Five samples 200 ms apart on four CPUs that are half busy, with two GPUs of which process 7 uses the first. */
static struct probe_sample *new_samples(void)
{
	struct probe_sample *samples = mem_calloc(N, sizeof(*samples));
	for (int i = 0; i < N; i++) {
		samples[i] = (struct probe_sample){.at_ns = 1000 + (int64_t)i * 200000000,
			.ticks_all = 1000 + 80 * i,
			.ticks_busy = 500 + 40 * i,
			.throttle_count = 3,
			.cpu_mhz = 2000 + 100 * i,
			.cpu_celsius = 50 + i,
			.cpu_joules = NAN,
			.memory_available_mib = 900 - i,
			.n_gpus = 2};
		for (int g = 0; g < 2; g++)
			samples[i].gpus[g] = (struct probe_gpu){.mhz = 1900 - 100 * g,
				.celsius = 60 + i,
				.watts = 500 + g,
				.joules = 1000 + 100 * i + g,
				.used_mib = 10};
		samples[i].gpus[0].pids[samples[i].gpus[0].n_pids++] = 7;
	}
	return samples;
}

static void shares_energy_and_clocks_come_from_first_and_last_or_all(void **state)
{
	struct probe_sample *samples = new_samples();
	pid_t pids[] = {7};
	struct sampler_ours ours = {.own_ticks = 100, .engine_ticks = 90, .pids = pids, .n_pids = 1};
	struct run_conditions conditions;
	sampler_summarise(samples, N, &ours, &conditions);
	assert_int_equal(conditions.samples, N);
	assert_float_equal(conditions.seconds, 0.8, 1e-9);
	assert_float_equal(conditions.engine_cpu_frac, 90.0 / 320, 1e-9);
	assert_float_equal(conditions.foreign_cpu_frac, 60.0 / 320, 1e-9);
	assert_float_equal(conditions.throttle_frac, 0, 0);
	assert_float_equal(conditions.cpu_mhz, 2200, 1e-9);
	assert_float_equal(conditions.cpu_celsius_max, 54, 0);
	assert_float_equal(conditions.memory_available_mib_min, 896, 0);
	assert_int_equal(conditions.gpus, 1); /* the other one belongs to nobody we know */
	assert_float_equal(conditions.gpu_mhz, 1900, 1e-9);
	assert_float_equal(conditions.gpu_watts, 500, 1e-9);
	assert_float_equal(conditions.joules, 400, 1e-9);
	assert_int_equal(conditions.foreign_gpu_processes, 0);
	mem_free(samples);
}

static void throttling_counts_by_interval_and_on_our_gpus_only(void **state)
{
	struct probe_sample *samples = new_samples();
	pid_t pids[] = {7};
	struct sampler_ours ours = {.own_ticks = 0, .pids = pids, .n_pids = 1};
	struct run_conditions conditions;
	samples[2].gpus[1].throttled = true;
	sampler_summarise(samples, N, &ours, &conditions);
	assert_float_equal(conditions.throttle_frac, 0, 0);
	samples[2].gpus[0].throttled = true;
	samples[4].throttle_count = 4;
	sampler_summarise(samples, N, &ours, &conditions);
	assert_float_equal(conditions.throttle_frac, 0.5, 1e-9);
	mem_free(samples);
}

static void a_foreign_process_is_one_on_a_gpu_that_the_engine_uses(void **state)
{
	struct probe_sample *samples = new_samples();
	pid_t pids[] = {7, 8};
	struct sampler_ours ours = {.own_ticks = 0, .pids = pids, .n_pids = 2};
	struct run_conditions conditions;
	samples[3].gpus[1].pids[0] = 99;
	samples[3].gpus[1].n_pids = 1;
	sampler_summarise(samples, N, &ours, &conditions);
	assert_int_equal(conditions.foreign_gpu_processes, 0);
	samples[3].gpus[0].pids[1] = 99;
	samples[3].gpus[0].n_pids = 2;
	sampler_summarise(samples, N, &ours, &conditions);
	assert_int_equal(conditions.foreign_gpu_processes, 1);
	mem_free(samples);
}

static void what_is_unknown_stays_unknown(void **state)
{
	struct run_conditions conditions;
	struct sampler_ours ours = {.own_ticks = -1};
	sampler_summarise(NULL, 0, &ours, &conditions);
	assert_true(isnan(conditions.foreign_cpu_frac) && isnan(conditions.throttle_frac) && isnan(conditions.joules));
	struct probe_sample nothing[2] = {
		{.throttle_count = -1, .cpu_mhz = NAN, .cpu_celsius = NAN, .cpu_joules = NAN, .memory_available_mib = NAN}};
	nothing[1] = nothing[0];
	sampler_summarise(nothing, 2, &ours, &conditions);
	assert_true(isnan(conditions.foreign_cpu_frac) && isnan(conditions.throttle_frac) && isnan(conditions.joules));
	assert_true(isnan(conditions.cpu_mhz) && isnan(conditions.cpu_celsius_max) && isnan(conditions.memory_available_mib_min));
	nothing[0].cpu_joules = 5; /* the counter started again */
	nothing[1].cpu_joules = 1;
	sampler_summarise(nothing, 2, &ours, &conditions);
	assert_true(isnan(conditions.joules));
	char reason[128];
	struct guards strict = {.foreign_process_voids = true};
	assert_false(conditions_void(&conditions, &strict, reason));
	struct json *json = conditions_json(&conditions);
	assert_int_equal(json_count(json), 1); /* the number of samples */
	json_free(json);
}

static void each_guard_voids_above_its_limit_and_says_why(void **state)
{
	struct guards guards = {
		.foreign_process_voids = true, .foreign_cpu_frac_max = 0.2, .throttle_frac_max = 0.05, .client_cpu_frac_max = 0.8};
	struct run_conditions quiet = {.seconds = 2, .foreign_cpu_frac = 0.2, .throttle_frac = 0.05, .client_cpu_frac = 0.8};
	static const char *const reasons[] = {"void: 2 other processes computed on the engine's GPUs",
		"void: other processes took 30 % of the CPU time (limit 20 %)",
		"void: clocks were throttled in 6 % of the run (limit 5 %)",
		"void: the client itself took 90 % of a core (limit 80 %)"};
	char reason[128];
	assert_false(conditions_void(&quiet, &guards, reason));
	for (int i = 0; i < 4; i++) {
		struct run_conditions disturbed = quiet;
		disturbed.foreign_gpu_processes = i == 0 ? 2 : 0;
		disturbed.foreign_cpu_frac = i == 1 ? 0.3 : 0;
		disturbed.throttle_frac = i == 2 ? 0.06 : 0;
		disturbed.client_cpu_frac = i == 3 ? 0.9 : 0;
		assert_true(conditions_void(&disturbed, &guards, reason));
		assert_string_equal(reason, reasons[i]);
		disturbed.seconds = 0.3;
		assert_int_equal(conditions_void(&disturbed, &guards, reason), i == 0 || i == 2);
	}
	guards.foreign_process_voids = false;
	struct run_conditions allowed = {.seconds = 2, .foreign_gpu_processes = 2};
	assert_false(conditions_void(&allowed, &guards, reason));
}

static void a_run_is_sampled_from_its_beginning_to_its_end(void **state)
{
	struct probe_ops instant = probe_linux;
	struct run_conditions conditions;
	void *session = instant.open();
	struct sampler *sampler = sampler_start(&instant, session, getpid());
	int64_t until_ns = clock_monotonic_ns() + 700000000;
	while (clock_monotonic_ns() < until_ns)
		clock_sleep_ns(10000000);
	sampler_stop(sampler, &conditions);
	instant.close(session);
	assert_in_range(conditions.samples, 2, 6);
	assert_true(conditions.seconds >= 0.7);
	assert_true(conditions.engine_cpu_frac >= 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(shares_energy_and_clocks_come_from_first_and_last_or_all),
		cmocka_unit_test(throttling_counts_by_interval_and_on_our_gpus_only),
		cmocka_unit_test(a_foreign_process_is_one_on_a_gpu_that_the_engine_uses),
		cmocka_unit_test(what_is_unknown_stays_unknown),
		cmocka_unit_test(each_guard_voids_above_its_limit_and_says_why),
		cmocka_unit_test(a_run_is_sampled_from_its_beginning_to_its_end),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
