/* Sizes of the sampling kernel and its scratch memory. */
#ifndef KERNELS_CUDA_SAMPLE_CUH
#define KERNELS_CUDA_SAMPLE_CUH

#include "kernels/cuda/device.cuh"

#define SAMPLE_THREADS 1024 /* as many warps as a warp has threads: one joins what all found */
#define SAMPLE_WARPS (SAMPLE_THREADS / CUDA_WARP)
/* Pieces of a row, a power of two; guess: a vocabulary of 128 K in 16 K pieces, so that one row keeps eight processors busy. */
#define SAMPLE_SPLITS 8
#define SAMPLE_BUCKETS 2048 /* as in engine/sampler.c */
#define SAMPLE_LIST 1024 /* tokens around a cut that are put in order in shared memory */

/* What one block found of a row. */
struct sample_part {
	float max, min;
	int argmax, broken;
};

/* What the first kernel leaves to the second: the scale of weights, the last token that filters kept, and the likeliest token, or
 * why there is none (KN_SAMPLED_NAN and so on). */
struct sample_row {
	float max, inverse, last_logit;
	int last_id, id;
};

/* Of one piece of a row: the best of the part of the race that its block has, and the piece's part of the sum of all weights. */
struct sample_arrival {
	double time;
	int id;
};
struct sample_draw {
	struct sample_arrival best;
	double sum;
};

struct sample_scratch {
	struct sample_draw *draws; /* [lines][SAMPLE_SPLITS] */
	struct sample_part *parts; /* [lines][SAMPLE_SPLITS], the first of them a block each */
	struct sample_row *rows; /* [lines] */
	uint32_t *tickets; /* [lines], zero between kernels */
};

#endif
