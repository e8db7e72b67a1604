/* Which backends are in this program. Compiled twice: GPU builds define VERDICT_CUDA for this file alone. */
#include "engine/device.h"

#include <string.h>

#define GPU_ORDINAL 0 /* CUDA_VISIBLE_DEVICES chooses among several */

#ifdef VERDICT_CUDA

bool device_has_cuda(void)
{
	return true;
}

const struct kn_ops *device_ops(const char *name)
{
	ASSERT(strcmp(name, "cpu") == 0 || strcmp(name, "cuda") == 0);
	return strcmp(name, "cuda") == 0 ? &kn_cuda_ops : &kn_cpu_ops;
}

enum status device_gpu_memory(uint64_t *total, uint64_t *free_now, struct err *err)
{
	return kn_cuda_memory(GPU_ORDINAL, total, free_now, err);
}

void device_gpu_others(char *out, size_t out_bytes)
{
	kn_cuda_others(GPU_ORDINAL, out, out_bytes);
}

#else

bool device_has_cuda(void)
{
	return false;
}

const struct kn_ops *device_ops(const char *name)
{
	ASSERT(strcmp(name, "cpu") == 0);
	return &kn_cpu_ops;
}

enum status device_gpu_memory(uint64_t *total, uint64_t *free_now, struct err *err)
{
	*total = *free_now = 0;
	return err_set(err, STATUS_UNAVAILABLE, "this program was built without CUDA");
}

void device_gpu_others(char *out, size_t out_bytes)
{
	if (out_bytes > 0)
		out[0] = '\0';
}

#endif
