/* The kernel of batch_hopper.cu: a matrix product for up to 128 rows, which streams the weights once.
 *
 * A block has a tile of weight rows, as tall as makes one block for nearly every processor, so that all end together and no sums
 * need to meet in memory. Short matrices are also split by columns between the two blocks of a cluster, which send each other half
 * of their sums at the end. All stages of weights are requested before the wait for the kernel in front, and what the results need
 * besides the sums before the first product. Where a row's columns are added in which order depends on the shape and the number of
 * rows alone.
 *
 * A norm between two products needs no kernel: the first leaves the residual times the norm's weights in bf16, and each block the
 * squares of its part of a row; the second adds these up and scales its results by 1 / sqrt(mean + eps). */
#ifndef KERNELS_CUDA_BATCH_HOPPER_CUH
#define KERNELS_CUDA_BATCH_HOPPER_CUH

#include "kernels/cuda/batch_low.cuh"
#include "kernels/cuda/batch_tall.cuh"

/* Of a block: those that multiply, one warp that requests, one for the input's norm. */
template <typename SHAPE> static constexpr int batch_threads(void)
{
	return SHAPE::CONSUMERS + 2 * CUDA_WARP;
}

/* Before anything is waited for. */
template <typename SHAPE>
static __device__ __forceinline__ void batch_begin(typename SHAPE::memory &shared, const struct batch_request<SHAPE> &request)
{
	for (int i = 0; i < SHAPE::STAGES; i++) {
		barrier_init(&shared.full[i], 1);
		barrier_init(&shared.empty[i], SHAPE::GROUPS);
	}
	barrier_init(&shared.sums_full, 1);
	barrier_init(&shared.scales_full, CUDA_WARP);
	barrier_init_done();
	if (SHAPE::SPLIT > 1)
		barrier_expect(&shared.sums_full, SHAPE::SENT_BYTES);
	request.first_weights();
}

/* Cluster: a tile of TILE weight rows. Block: the columns of its rank among SPLIT. Warps: first warpgroups that multiply; the next
 * one's first lane requests weights and inputs; the last finds what x's norm still lacks. */
template <enum pack_form FORM, typename SHAPE>
static __global__ void __launch_bounds__(batch_threads<SHAPE>(), 1) batch_kernel(
	const struct batch_args a, const __grid_constant__ CUtensorMap w_map, const __grid_constant__ CUtensorMap x_map)
{
	constexpr int REQUESTING = SHAPE::CONSUMERS / CUDA_WARP;
	extern __shared__ __align__(HOPPER_ATOM_BYTES) uint8_t bytes[];
	auto &shared = *(typename SHAPE::memory *)bytes;
	const int rank = SHAPE::SPLIT == 1 ? 0 : cluster_rank(), warp = threadIdx.x / CUDA_WARP, tile = blockIdx.x / SHAPE::SPLIT;
	const int begin = a.n_blocks * rank / SHAPE::SPLIT, end = a.n_blocks * (rank + 1) / SHAPE::SPLIT;
	const struct batch_request<SHAPE> request = {
		a, shared, w_map, x_map, tile *SHAPE::TILE, begin, end
	};
	if (threadIdx.x == SHAPE::CONSUMERS + CUDA_WARP)
		tensor_prefetch(&w_map);
	if (threadIdx.x == SHAPE::CONSUMERS)
		batch_begin(shared, request);
	__syncthreads();
	dependency_release();
	if (SHAPE::SPLIT > 1)
		cluster_arrive();
	if (threadIdx.x == SHAPE::CONSUMERS)
		request.rest();
	__syncwarp();
	if (warp > REQUESTING && a.n_squares > 0) {
		dependency_wait();
		batch_find_scales<SHAPE::ROWS>(a, shared);
	}
	if (warp >= REQUESTING) {
		if (SHAPE::SPLIT > 1)
			cluster_wait();
		return;
	}
	dependency_wait(); /* y may still be read or written by the kernel in front */
	if constexpr (SHAPE::IS_LOW)
		low_work<FORM, SHAPE>(a, shared, tile, rank, end - begin);
	else
		tall_work<FORM, SHAPE>(a, shared, tile, rank, end - begin);
}

#endif
