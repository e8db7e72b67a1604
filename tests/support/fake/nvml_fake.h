/* What the libraries that stand for NVIDIA's management library have in common. Declarations as in nvml.h of CUDA 12. */
#ifndef TESTS_SUPPORT_FAKE_NVML_FAKE_H
#define TESTS_SUPPORT_FAKE_NVML_FAKE_H

#define OK 0
#define NOT_SUPPORTED 3
#define INSUFFICIENT_SIZE 7
#define GPU_IS_LOST 15

#define MIB ((unsigned long long)1 << 20)

struct memory {
	unsigned long long total, free, used;
};
struct process {
	unsigned pid;
	unsigned long long used_bytes;
	unsigned gpu_instance, compute_instance;
};

/* Each library's own: what the calls in nvml_fake.c that ask a device or the driver return. */
int fake_answer(void);

#endif
