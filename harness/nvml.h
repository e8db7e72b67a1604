/* NVIDIA's management library, loaded at run time where the driver has brought it: the only module that knows it. No header of
 * theirs is needed to build, and a machine without GPUs needs nothing. Declarations follow nvml.h of CUDA 12 (API version 2 of each
 * call). */
#ifndef HARNESS_NVML_H
#define HARNESS_NVML_H

#include "base/json.h"
#include "harness/probe.h"

struct nvml;

/* NULL where there is no library, no driver or no GPU. Takes up to a second where the driver must wake the GPUs. */
struct nvml *nvml_open(void);
void nvml_close(struct nvml *nvml); /* NULL is fine */

/* Adds gpu_details ([{"name", "uuid", "memory_mib", "power_limit_w"}]), gpu_driver_version and cuda_driver to facts. */
void nvml_facts(const struct nvml *nvml, struct json *facts);

/* Fills sample->gpus and n_gpus. What a GPU does not tell is NaN or -1. */
void nvml_sample(const struct nvml *nvml, struct probe_sample *sample);

#endif
