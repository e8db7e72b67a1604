/* NVIDIA's management library as a machine with two GPUs would have it: the first at ease, the second hot, throttled and used by
 * another process. Built three times: as it is; with FAKE_ERRORS, where every call but those that count and open devices fails; and
 * with FAKE_OLD, which lacks the calls of newer drivers. nvml_live.c is the same library on a machine where something happens. */
#include "nvml_fake.h"

#include <stdio.h>

#ifdef FAKE_ERRORS
#define ANSWER NOT_SUPPORTED
#else
#define ANSWER OK
#endif

#define DEVICES 2

static int devices[DEVICES];

int fake_answer(void)
{
	return ANSWER;
}

static unsigned number_of(const void *device)
{
	return (unsigned)((const int *)device - devices);
}

int nvmlDeviceGetCount_v2(unsigned *count);
int nvmlDeviceGetCount_v2(unsigned *count)
{
	*count = DEVICES;
	return OK;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device);
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device)
{
	*device = &devices[index];
	return OK;
}

int nvmlDeviceGetName(void *device, char *name, unsigned bytes);
int nvmlDeviceGetName(void *device, char *name, unsigned bytes)
{
	snprintf(name, bytes, "Fake GPU %u", number_of(device));
	return ANSWER;
}

int nvmlDeviceGetUUID(void *device, char *uuid, unsigned bytes);
int nvmlDeviceGetUUID(void *device, char *uuid, unsigned bytes)
{
	snprintf(uuid, bytes, "GPU-fake-%u", number_of(device));
	return ANSWER;
}

int nvmlDeviceGetClockInfo(void *device, int type, unsigned *mhz);
int nvmlDeviceGetClockInfo(void *device, int type, unsigned *mhz)
{
	*mhz = type == 1 ? 1400 + 100 * number_of(device) : 2600;
	return ANSWER;
}

int nvmlDeviceGetTemperature(void *device, int sensor, unsigned *celsius);
int nvmlDeviceGetTemperature(void *device, int sensor, unsigned *celsius)
{
	*celsius = sensor == 0 ? 50 + 40 * number_of(device) : 0;
	return ANSWER;
}

int nvmlDeviceGetPowerUsage(void *device, unsigned *milliwatts);
int nvmlDeviceGetPowerUsage(void *device, unsigned *milliwatts)
{
	*milliwatts = 300500 + 1000 * number_of(device);
	return ANSWER;
}

int nvmlDeviceGetTotalEnergyConsumption(void *device, unsigned long long *millijoules);
int nvmlDeviceGetTotalEnergyConsumption(void *device, unsigned long long *millijoules)
{
	*millijoules = 5000000 + number_of(device);
	return ANSWER;
}

/* A software power cap (0x4) is no trouble; hardware thermal slowdown (0x40) is. */
int nvmlDeviceGetCurrentClocksThrottleReasons(void *device, unsigned long long *reasons);
int nvmlDeviceGetCurrentClocksThrottleReasons(void *device, unsigned long long *reasons)
{
	*reasons = number_of(device) ? 0x44 : 0x4;
	return ANSWER;
}

int nvmlDeviceGetMemoryInfo(void *device, struct memory *memory);
int nvmlDeviceGetMemoryInfo(void *device, struct memory *memory)
{
	*memory = (struct memory){.total = 80000 * MIB, .free = 79000 * MIB, .used = (1000 + number_of(device)) * MIB};
	return ANSWER;
}

#ifndef FAKE_OLD
int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, struct process *processes);
int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, struct process *processes)
{
	unsigned n = number_of(device);
	if (*count < n)
		return NOT_SUPPORTED;
	for (unsigned i = 0; i < n; i++)
		processes[i] = (struct process){.pid = 1 + i, .used_bytes = 500 * MIB};
	*count = n;
	return ANSWER;
}
#endif
