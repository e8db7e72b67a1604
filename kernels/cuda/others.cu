/* Who else holds memory of a GPU: asked of the driver's management library (NVML), which is loaded at run time, since machines
 * without a GPU lack it. Interface: NVML API reference, nvmlDeviceGetComputeRunningProcesses_v3. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

extern "C" {
#include "base/mem.h"
}
#include "kernels/cuda/device.cuh"

#define PROCESSES_MAX 64 /* where there are more, the library lists none */
#define NVML_SUCCESS 0

struct nvml_process {
	unsigned pid;
	unsigned long long bytes;
	unsigned gpu_instance, compute_instance;
};

struct nvml {
	void *library;
	int (*init)(void);
	int (*shutdown)(void);
	int (*device_by_bus_id)(const char *bus_id, void **device);
	int (*processes)(void *device, unsigned *count, struct nvml_process *out);
};

static bool open_nvml(struct nvml *out)
{
	out->library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
	if (!out->library)
		return false;
	out->init = (int (*)(void))dlsym(out->library, "nvmlInit_v2");
	out->shutdown = (int (*)(void))dlsym(out->library, "nvmlShutdown");
	out->device_by_bus_id = (int (*)(const char *, void **))dlsym(out->library, "nvmlDeviceGetHandleByPciBusId_v2");
	out->processes = (int (*)(void *, unsigned *, struct nvml_process *))dlsym(
		out->library, "nvmlDeviceGetComputeRunningProcesses_v3");
	return out->init && out->shutdown && out->device_by_bus_id && out->processes && out->init() == NVML_SUCCESS;
}

/* The kernel's short name of a process; empty when it is not ours to see. */
static void read_name(unsigned pid, char out[32])
{
	char path[48];
	snprintf(path, sizeof path, "/proc/%u/comm", pid);
	out[0] = '\0';
	FILE *file = fopen(path, "re");
	if (!file)
		return;
	if (fgets(out, 32, file))
		out[strcspn(out, "\n")] = '\0';
	fclose(file);
}

static void list_processes(const struct nvml *nvml, int device, char *out, size_t out_bytes)
{
	char bus_id[32];
	void *handle = NULL;
	struct nvml_process *found = (struct nvml_process *)mem_calloc(PROCESSES_MAX, sizeof *found);
	unsigned count = PROCESSES_MAX;
	if (cudaDeviceGetPCIBusId(bus_id, sizeof bus_id, device) != cudaSuccess ||
		nvml->device_by_bus_id(bus_id, &handle) != NVML_SUCCESS ||
		nvml->processes(handle, &count, found) != NVML_SUCCESS)
		count = 0;
	size_t used = 0;
	for (unsigned i = 0; i < count && i < PROCESSES_MAX && used < out_bytes; i++) {
		char name[32];
		if (found[i].pid == (unsigned)getpid())
			continue;
		read_name(found[i].pid, name);
		used += (size_t)snprintf(out + used, out_bytes - used, "%spid %u (%s) %llu MiB", used ? ", " : "", found[i].pid,
			name[0] ? name : "unknown", found[i].bytes >> 20);
	}
	mem_free(found);
}

extern "C" void kn_cuda_others(int device, char *out, size_t out_bytes)
{
	struct nvml nvml = {};
	if (out_bytes == 0)
		return;
	out[0] = '\0';
	if (open_nvml(&nvml)) {
		list_processes(&nvml, device, out, out_bytes);
		nvml.shutdown();
	}
	if (nvml.library)
		dlclose(nvml.library);
}
