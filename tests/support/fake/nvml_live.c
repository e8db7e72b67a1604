/* NVIDIA's management library as a machine with one GPU would have it while stub servers compute there: those whose command line
 * has the text of FAKE_NVML_OURS. When one has that of FAKE_NVML_WHEN too, what FAKE_NVML_THEN names happens: "throttle", "foreign"
 * (process 1 computes there as well) or "lost" (every call fails, for ever). */
#include "nvml_fake.h"

#include <ctype.h>
#include <dirent.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define PIDS_MAX 16
#define MILLIWATTS 300000

static int device_0;
static bool is_lost;

static const char *setting(const char *name)
{
	const char *value = getenv(name);
	return value ? value : "";
}

/* The arguments of a process, NULs as spaces. */
static bool read_arguments(const char *pid, char *out, size_t bytes)
{
	char path[300];
	snprintf(path, sizeof path, "/proc/%s/cmdline", pid);
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t len = fd < 0 ? -1 : read(fd, out, bytes - 1);
	if (fd >= 0)
		close(fd);
	for (ssize_t i = 0; i < len; i++)
		out[i] = out[i] ? out[i] : ' ';
	out[len > 0 ? len : 0] = '\0';
	return len > 0;
}

/* Stub servers of this run; *happens: one of them is what FAKE_NVML_WHEN waits for. */
static unsigned find_ours(unsigned pids[PIDS_MAX], bool *happens)
{
	char arguments[4096];
	unsigned count = 0;
	DIR *proc = opendir("/proc");
	*happens = false;
	for (struct dirent *entry; proc && (entry = readdir(proc)) && count < PIDS_MAX;) {
		if (!isdigit((unsigned char)entry->d_name[0]) || !read_arguments(entry->d_name, arguments, sizeof arguments))
			continue;
		if (!strstr(arguments, "stub-server") || !strstr(arguments, setting("FAKE_NVML_OURS")))
			continue;
		pids[count++] = (unsigned)strtoul(entry->d_name, NULL, 10);
		*happens = *happens || strstr(arguments, setting("FAKE_NVML_WHEN"));
	}
	if (proc)
		closedir(proc);
	return count;
}

static bool happens_now(const char *what)
{
	unsigned pids[PIDS_MAX];
	bool happens;
	find_ours(pids, &happens);
	return happens && strcmp(setting("FAKE_NVML_THEN"), what) == 0;
}

int fake_answer(void)
{
	is_lost = is_lost || happens_now("lost");
	return is_lost ? GPU_IS_LOST : OK;
}

int nvmlDeviceGetCount_v2(unsigned *count);
int nvmlDeviceGetCount_v2(unsigned *count)
{
	*count = 1;
	return OK;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device);
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device)
{
	*device = &device_0;
	return OK;
}

int nvmlDeviceGetName(void *device, char *name, unsigned bytes);
int nvmlDeviceGetName(void *device, char *name, unsigned bytes)
{
	snprintf(name, bytes, "Live fake GPU");
	return fake_answer();
}

int nvmlDeviceGetUUID(void *device, char *uuid, unsigned bytes);
int nvmlDeviceGetUUID(void *device, char *uuid, unsigned bytes)
{
	snprintf(uuid, bytes, "GPU-live");
	return fake_answer();
}

int nvmlDeviceGetClockInfo(void *device, int type, unsigned *mhz);
int nvmlDeviceGetClockInfo(void *device, int type, unsigned *mhz)
{
	*mhz = type == 1 ? 1980 : 3201;
	return fake_answer();
}

int nvmlDeviceGetTemperature(void *device, int sensor, unsigned *celsius);
int nvmlDeviceGetTemperature(void *device, int sensor, unsigned *celsius)
{
	*celsius = 61;
	return fake_answer();
}

int nvmlDeviceGetPowerUsage(void *device, unsigned *milliwatts);
int nvmlDeviceGetPowerUsage(void *device, unsigned *milliwatts)
{
	*milliwatts = MILLIWATTS;
	return fake_answer();
}

int nvmlDeviceGetTotalEnergyConsumption(void *device, unsigned long long *millijoules);
int nvmlDeviceGetTotalEnergyConsumption(void *device, unsigned long long *millijoules)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	*millijoules = ((unsigned long long)now.tv_sec * 1000 + (unsigned long long)now.tv_nsec / 1000000) * MILLIWATTS / 1000;
	return fake_answer();
}

int nvmlDeviceGetCurrentClocksThrottleReasons(void *device, unsigned long long *reasons);
int nvmlDeviceGetCurrentClocksThrottleReasons(void *device, unsigned long long *reasons)
{
	*reasons = happens_now("throttle") ? 0x40 : 0;
	return fake_answer();
}

int nvmlDeviceGetMemoryInfo(void *device, struct memory *memory);
int nvmlDeviceGetMemoryInfo(void *device, struct memory *memory)
{
	*memory = (struct memory){.total = 80000 * MIB, .free = 79000 * MIB, .used = 1000 * MIB};
	return fake_answer();
}

int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, struct process *processes);
int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, struct process *processes)
{
	unsigned pids[PIDS_MAX + 1];
	bool happens;
	unsigned n = find_ours(pids, &happens);
	if (happens_now("foreign"))
		pids[n++] = 1;
	if (*count < n)
		return INSUFFICIENT_SIZE;
	for (unsigned i = 0; i < n; i++)
		processes[i] = (struct process){.pid = pids[i], .used_bytes = 500 * MIB};
	*count = n;
	return fake_answer();
}
