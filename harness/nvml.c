/* Calls found by name in libnvidia-ml.so.1. */
#include "harness/nvml.h"

#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"

#define NAME_BYTES 96 /* NVML_DEVICE_NAME_V2_BUFFER_SIZE and NVML_DEVICE_UUID_V2_BUFFER_SIZE */
#define CLOCK_SM 1
#define CLOCK_MEMORY 2
#define SENSOR_DIE 0

/* Reasons for lower clocks that are trouble: hardware slowdown, thermal (software and hardware) and the power brake. A software
 * power cap is what a loaded data-centre GPU runs at, on both sides of every comparison. */
#define TROUBLE_REASONS (0x8ULL | 0x20ULL | 0x40ULL | 0x80ULL)

struct nvml_memory {
	unsigned long long total, free, used;
};

struct nvml_process {
	unsigned pid;
	unsigned long long used_bytes;
	unsigned gpu_instance, compute_instance;
};

struct nvml_calls {
	int (*init)(void);
	int (*shutdown)(void);
	int (*count)(unsigned *count);
	int (*handle)(unsigned index, void **device);
	int (*name)(void *device, char *name, unsigned bytes);
	int (*uuid)(void *device, char *uuid, unsigned bytes);
	int (*driver)(char *version, unsigned bytes);
	int (*cuda)(int *version);
	int (*clock)(void *device, int type, unsigned *mhz);
	int (*temperature)(void *device, int sensor, unsigned *celsius);
	int (*power)(void *device, unsigned *milliwatts);
	int (*power_limit)(void *device, unsigned *milliwatts);
	int (*energy)(void *device, unsigned long long *millijoules);
	int (*reasons)(void *device, unsigned long long *reasons);
	int (*memory)(void *device, struct nvml_memory *memory);
	int (*processes)(void *device, unsigned *count, struct nvml_process *processes);
};

struct nvml {
	void *library;
	struct nvml_calls calls;
	void *devices[PROBE_GPUS_MAX];
	unsigned n_devices;
};

/* Finds every call; false when one is missing, which means a driver older than any that runs today's engines. */
static bool find_calls(void *library, struct nvml_calls *calls)
{
	const struct {
		const char *name;
		void *slot;
	} table[] = {
		{"nvmlInit_v2", &calls->init},
		{"nvmlShutdown", &calls->shutdown},
		{"nvmlDeviceGetCount_v2", &calls->count},
		{"nvmlDeviceGetHandleByIndex_v2", &calls->handle},
		{"nvmlDeviceGetName", &calls->name},
		{"nvmlDeviceGetUUID", &calls->uuid},
		{"nvmlSystemGetDriverVersion", &calls->driver},
		{"nvmlSystemGetCudaDriverVersion_v2", &calls->cuda},
		{"nvmlDeviceGetClockInfo", &calls->clock},
		{"nvmlDeviceGetTemperature", &calls->temperature},
		{"nvmlDeviceGetPowerUsage", &calls->power},
		{"nvmlDeviceGetPowerManagementLimit", &calls->power_limit},
		{"nvmlDeviceGetTotalEnergyConsumption", &calls->energy},
		{"nvmlDeviceGetCurrentClocksThrottleReasons", &calls->reasons},
		{"nvmlDeviceGetMemoryInfo", &calls->memory},
		{"nvmlDeviceGetComputeRunningProcesses_v3", &calls->processes},
	};
	for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
		void *found = dlsym(library, table[i].name);
		if (!found)
			return false;
		memcpy(table[i].slot, &found,
			sizeof(found)); /* POSIX lets a data pointer hold a function; ISO C has no cast for it */
	}
	return true;
}

struct nvml *nvml_open(void)
{
	struct nvml nvml = {.library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL)};
	if (!nvml.library)
		return NULL;
	if (!find_calls(nvml.library, &nvml.calls) || nvml.calls.init() != 0) {
		dlclose(nvml.library);
		return NULL;
	}
	unsigned count = 0;
	nvml.calls.count(&count);
	for (unsigned i = 0; i < count && nvml.n_devices < PROBE_GPUS_MAX; i++)
		nvml.n_devices += nvml.calls.handle(i, &nvml.devices[nvml.n_devices]) == 0;
	struct nvml *out = mem_calloc(1, sizeof(*out));
	*out = nvml;
	if (out->n_devices == 0) {
		nvml_close(out);
		return NULL;
	}
	return out;
}

void nvml_close(struct nvml *nvml)
{
	if (!nvml)
		return;
	nvml->calls.shutdown();
	dlclose(nvml->library);
	mem_free(nvml);
}

void nvml_facts(const struct nvml *nvml, struct json *facts)
{
	struct json *gpus = json_new_array();
	char text[NAME_BYTES] = "";
	int cuda = 0;
	for (unsigned i = 0; i < nvml->n_devices; i++) {
		struct json *gpu = json_new_object();
		struct nvml_memory memory;
		unsigned milliwatts;
		if (nvml->calls.name(nvml->devices[i], text, sizeof(text)) == 0)
			json_set(gpu, "name", json_new_string(text));
		if (nvml->calls.uuid(nvml->devices[i], text, sizeof(text)) == 0)
			json_set(gpu, "uuid", json_new_string(text));
		if (nvml->calls.memory(nvml->devices[i], &memory) == 0)
			json_set(gpu, "memory_mib", json_new_integer((int64_t)(memory.total >> 20)));
		if (nvml->calls.power_limit(nvml->devices[i], &milliwatts) == 0)
			json_set(gpu, "power_limit_w", json_new_integer(milliwatts / 1000));
		json_append(gpus, gpu);
	}
	json_set(facts, "gpu_details", gpus);
	if (nvml->calls.driver(text, sizeof(text)) == 0)
		json_set(facts, "gpu_driver_version", json_new_string(text));
	if (nvml->calls.cuda(&cuda) == 0) {
		snprintf(text, sizeof(text), "%d.%d", cuda / 1000, cuda % 1000 / 10);
		json_set(facts, "cuda_driver", json_new_string(text));
	}
}

static void sample_processes(const struct nvml *nvml, void *device, struct probe_gpu *gpu)
{
	struct nvml_process processes[PROBE_GPU_PIDS_MAX];
	unsigned count = PROBE_GPU_PIDS_MAX;
	if (nvml->calls.processes(device, &count, processes) != 0)
		return; /* more of them than anybody can tell apart, or the driver keeps them to itself */
	for (unsigned i = 0; i < count; i++)
		gpu->pids[gpu->n_pids++] = (int)processes[i].pid;
}

void nvml_sample(const struct nvml *nvml, struct probe_sample *sample)
{
	for (unsigned i = 0; i < nvml->n_devices; i++) {
		void *device = nvml->devices[i];
		struct probe_gpu *gpu = &sample->gpus[sample->n_gpus++];
		struct nvml_memory memory;
		unsigned value;
		unsigned long long wide;
		*gpu = (struct probe_gpu){
			.mhz = NAN, .memory_mhz = NAN, .celsius = NAN, .watts = NAN, .joules = NAN, .used_mib = NAN};
		if (nvml->calls.clock(device, CLOCK_SM, &value) == 0)
			gpu->mhz = value;
		if (nvml->calls.clock(device, CLOCK_MEMORY, &value) == 0)
			gpu->memory_mhz = value;
		if (nvml->calls.temperature(device, SENSOR_DIE, &value) == 0)
			gpu->celsius = value;
		if (nvml->calls.power(device, &value) == 0)
			gpu->watts = value / 1e3;
		if (nvml->calls.energy(device, &wide) == 0)
			gpu->joules = (double)wide / 1e3;
		if (nvml->calls.reasons(device, &wide) == 0)
			gpu->throttled = (wide & TROUBLE_REASONS) != 0;
		if (nvml->calls.memory(device, &memory) == 0)
			gpu->used_mib = (double)(memory.used >> 20);
		sample_processes(nvml, device, gpu);
	}
}
