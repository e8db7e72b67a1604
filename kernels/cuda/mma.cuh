/* Tensor core and asynchronous copy instructions of compute capability 8.0 and up, as functions.
 *
 * Fragments of the 16x8x16 product, with g = lane / 4 and t = lane % 4: A (16 rows, 16 deep) is {(g, 2t), (g + 8, 2t), (g, 2t + 8),
 * (g + 8, 2t + 8)}, B (16 deep, 8 columns) is {(2t, g), (2t + 8, g)}, each a pair of neighbours along the depth; C is {(g, 2t),
 * (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1)}. Source: PTX ISA, "Matrix Fragments for mma.m16n8k16". */
#ifndef KERNELS_CUDA_MMA_CUH
#define KERNELS_CUDA_MMA_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

static __device__ __forceinline__ uint32_t shared_address(const void *at)
{
	return (uint32_t)__cvta_generic_to_shared(at);
}

/* c += a * b, fp16 inputs. */
static __device__ __forceinline__ void mma_f16(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
{
	asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
		     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
		     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* c += a * b, bf16 inputs. */
static __device__ __forceinline__ void mma_bf16(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
{
	asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
		     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
		     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* Four 8x8 matrices of 16-bit elements; lane i gives the address of row i % 8 of matrix i / 8. */
static __device__ __forceinline__ void load_matrices(uint32_t out[4], uint32_t address)
{
	asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
		     : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
		     : "r"(address)
		     : "memory");
}

/* The same, each matrix transposed. */
static __device__ __forceinline__ void load_matrices_transposed(uint32_t out[4], uint32_t address)
{
	asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
		     : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
		     : "r"(address)
		     : "memory");
}

static __device__ __forceinline__ uint4 load_shared(uint32_t address)
{
	uint4 value;
	asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
		     : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
		     : "r"(address)
		     : "memory");
	return value;
}

/* Stores two 8x8 matrices of 16-bit elements, held as the accumulators of products are; lane i < 16 gives the address of row i % 8
 * of matrix i / 8. */
static __device__ __forceinline__ void store_matrices(uint32_t address, uint32_t first, uint32_t second)
{
	asm volatile("stmatrix.sync.aligned.m8n8.x2.shared.b16 [%0], {%1, %2};" ::"r"(address), "r"(first), "r"(second) : "memory");
}

/* Sixteen bytes from global to shared memory past the registers; filled with zeros when !valid (from must still be mapped). */
static __device__ __forceinline__ void copy_async(uint32_t to, const void *from, bool valid)
{
	asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(valid ? 16 : 0) : "memory");
}

static __device__ __forceinline__ void copy_async_commit(void)
{
	asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Waits until at most PENDING of this thread's latest groups are under way. */
template <int PENDING> static __device__ __forceinline__ void copy_async_wait(void)
{
	asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

static __device__ __forceinline__ uint32_t pack_f16(float low, float high)
{
	const __half2 pair = __floats2half2_rn(low, high);
	return *(const uint32_t *)&pair;
}

/* What pack_f16 lost, in fp16 again: high and rest together hold about 22 bits. */
static __device__ __forceinline__ uint32_t pack_f16_rest(float low, float high, uint32_t packed)
{
	const float2 held = __half22float2(*(const __half2 *)&packed);
	return pack_f16(low - held.x, high - held.y);
}

static __device__ __forceinline__ float exp2_fast(float x)
{
	float y;
	asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
	return y;
}

#endif
