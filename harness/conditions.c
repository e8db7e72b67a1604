/* Judging and writing down what the machine was like during a run. See sampler.h. */
#include <math.h>
#include <stdio.h>

#include "harness/sampler.h"

bool conditions_void(const struct run_conditions *conditions, const struct guards *guards, char reason[128])
{
	bool long_enough = conditions->seconds >= CONDITIONS_SECONDS_MIN;
	reason[0] = '\0';
	if (guards->foreign_process_voids && conditions->foreign_gpu_processes > 0)
		snprintf(reason, 128, "void: %d other process%s computed on the engine's GPUs", conditions->foreign_gpu_processes,
			conditions->foreign_gpu_processes == 1 ? "" : "es");
	else if (long_enough && conditions->foreign_cpu_frac > guards->foreign_cpu_frac_max)
		snprintf(reason, 128, "void: other processes took %.0f %% of the CPU time (limit %.0f %%)",
			conditions->foreign_cpu_frac * 100, guards->foreign_cpu_frac_max * 100);
	else if (conditions->throttle_frac > guards->throttle_frac_max)
		snprintf(reason, 128, "void: clocks were throttled in %.0f %% of the run (limit %.0f %%)",
			conditions->throttle_frac * 100, guards->throttle_frac_max * 100);
	else if (long_enough && conditions->client_cpu_frac > guards->client_cpu_frac_max)
		snprintf(reason, 128, "void: the client itself took %.0f %% of a core (limit %.0f %%)",
			conditions->client_cpu_frac * 100, guards->client_cpu_frac_max * 100);
	else if (conditions->client_late_ms > guards->client_late_ms_max)
		snprintf(reason, 128, "void: the client sent requests %.0f ms after they were due (limit %.0f ms)",
			conditions->client_late_ms, guards->client_late_ms_max);
	return reason[0] != '\0';
}

static void set_known(struct json *object, const char *name, double value)
{
	if (isfinite(value))
		json_set(object, name, json_new_number(value));
}

struct json *conditions_json(const struct run_conditions *conditions)
{
	struct json *object = json_new_object();
	json_set(object, "samples", json_new_integer(conditions->samples));
	set_known(object, "client_cpu_frac", conditions->client_cpu_frac);
	if (conditions->client_late_ms > 0)
		set_known(object, "client_late_ms", conditions->client_late_ms);
	set_known(object, "engine_cpu_frac", conditions->engine_cpu_frac);
	set_known(object, "foreign_cpu_frac", conditions->foreign_cpu_frac);
	set_known(object, "steal_cpu_frac", conditions->steal_cpu_frac);
	set_known(object, "throttle_frac", conditions->throttle_frac);
	set_known(object, "cpu_mhz", conditions->cpu_mhz);
	set_known(object, "cpu_celsius_max", conditions->cpu_celsius_max);
	set_known(object, "memory_available_mib_min", conditions->memory_available_mib_min);
	set_known(object, "joules", conditions->joules);
	if (conditions->gpus == 0)
		return object;
	json_set(object, "gpus", json_new_integer(conditions->gpus));
	json_set(object, "foreign_gpu_processes", json_new_integer(conditions->foreign_gpu_processes));
	set_known(object, "gpu_mhz", conditions->gpu_mhz);
	set_known(object, "gpu_celsius_max", conditions->gpu_celsius_max);
	set_known(object, "gpu_watts", conditions->gpu_watts);
	return object;
}
