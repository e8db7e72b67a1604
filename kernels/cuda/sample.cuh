/* Sizes of the sampling kernel and its scratch memory. */
#ifndef KERNELS_CUDA_SAMPLE_CUH
#define KERNELS_CUDA_SAMPLE_CUH

#include "kernels/cuda/device.cuh"

#define SAMPLE_THREADS 512
#define SAMPLE_SPLITS 8 /* guess: a vocabulary of 128 K in 16 K pieces, so that one row keeps eight processors busy */
#define SAMPLE_BUCKETS 2048 /* as in engine/sampler.c */
#define SAMPLE_LIST 1024 /* tokens around a cut that are put in order in shared memory */

/* What one block found of a row. */
struct sample_part {
	float max, min;
	int argmax, broken;
};

struct sample_scratch {
	struct sample_part *parts; /* [lines][SAMPLE_SPLITS] */
	uint32_t *tickets; /* [lines], zero between steps */
};

#endif
