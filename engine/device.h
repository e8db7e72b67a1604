/* The kinds of device that this program can compute on: the CPU, and in GPU builds the first GPU. */
#ifndef ENGINE_DEVICE_H
#define ENGINE_DEVICE_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/kn.h"

/* Whether this is a GPU build. */
bool device_has_cuda(void);

/* Backend of a device that this build has: "cpu", or "cuda". Anything else is our own bug. */
const struct kn_ops *device_ops(const char *name);

/* Memory of the GPU, whole and free now. STATUS_UNAVAILABLE with the reason without a usable GPU, or in a build without CUDA. */
enum status device_gpu_memory(uint64_t *total, uint64_t *free_now, struct err *err);

/* Other processes with memory of the GPU: "pid 7 (python3) 512 MiB, …", cut to out_bytes; empty when there are none or the driver
 * does not tell. */
void device_gpu_others(char *out, size_t out_bytes);

#endif
