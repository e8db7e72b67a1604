/* Counters and sensors of the kernel. */
#include "harness/probe_cpu.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/text.h"

#define STAT_BYTES_MAX ((size_t)1 << 20)
#define CPUS_MAX 64 /* whose clocks and throttle counters are read: those of the others go up and down with them */
#define PACKAGES_MAX 8
#define SENSORS_MAX 32

/* A number alone in a file; NaN when there is none. format holds one %d. */
static double read_number(const char *format, int index)
{
	char path[128];
	struct text text = {0};
	snprintf(path, sizeof(path), format, index);
	double value = NAN;
	if (file_read(path, 64, &text, NULL) == STATUS_OK && text.len > 0)
		value = strtod(text_str(&text), NULL);
	text_release(&text);
	return value;
}

/* The first line of /proc/stat: user nice system idle iowait irq softirq steal. */
static void read_ticks(struct probe_sample *out)
{
	struct text text = {0};
	long long ticks[8] = {0}, all = 0;
	if (file_read("/proc/stat", STAT_BYTES_MAX, &text, NULL) == STATUS_OK && text_starts_with(text_str(&text), "cpu ")) {
		char *at = text.data + 3;
		for (int i = 0; i < 8; i++)
			ticks[i] = strtoll(at, &at, 10);
	}
	text_release(&text);
	for (int i = 0; i < 8; i++)
		all += ticks[i];
	out->ticks_all = all;
	out->ticks_busy = all - ticks[3] - ticks[4];
	out->ticks_stolen = ticks[7];
}

static void read_clocks(struct probe_sample *out)
{
	double sum_khz = 0, throttles = 0;
	int n_clocks = 0, n_throttles = 0;
	for (int cpu = 0; cpu < CPUS_MAX; cpu++) {
		double khz = read_number("/sys/devices/system/cpu/cpu%d/cpufreq/scaling_cur_freq", cpu);
		double count = read_number("/sys/devices/system/cpu/cpu%d/thermal_throttle/core_throttle_count", cpu);
		if (isnan(khz) && isnan(count))
			break;
		if (khz > 0) {
			sum_khz += khz;
			n_clocks++;
		}
		if (count >= 0) {
			throttles += count;
			n_throttles++;
		}
	}
	out->cpu_mhz = n_clocks ? sum_khz / n_clocks / 1e3 : NAN;
	out->throttle_count = n_throttles ? (int64_t)throttles : -1;
}

static void read_sensors(struct probe_sample *out)
{
	out->cpu_celsius = out->cpu_joules = NAN;
	for (int i = 0; i < SENSORS_MAX; i++) {
		double millidegrees = read_number("/sys/class/thermal/thermal_zone%d/temp", i);
		if (isnan(millidegrees))
			break;
		out->cpu_celsius = fmax(out->cpu_celsius, millidegrees / 1e3);
	}
	for (int i = 0; i < PACKAGES_MAX; i++) {
		double microjoules = read_number("/sys/class/powercap/intel-rapl:%d/energy_uj", i); /* AMD's too */
		if (isnan(microjoules))
			break;
		out->cpu_joules = (isnan(out->cpu_joules) ? 0 : out->cpu_joules) + microjoules / 1e6;
	}
}

static void read_memory(struct probe_sample *out)
{
	struct text text = {0};
	out->memory_available_mib = NAN;
	if (file_read("/proc/meminfo", STAT_BYTES_MAX, &text, NULL) == STATUS_OK) {
		const char *line = strstr(text_str(&text), "MemAvailable:");
		out->memory_available_mib = line ? (double)strtoll(line + 13, NULL, 10) / 1024 : NAN;
	}
	text_release(&text);
}

void probe_sample_cpu(struct probe_sample *out)
{
	out->n_gpus = 0;
	out->at_ns = clock_monotonic_ns();
	read_ticks(out);
	read_clocks(out);
	read_sensors(out);
	read_memory(out);
}
