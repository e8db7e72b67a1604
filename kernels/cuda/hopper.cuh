/* Instructions of compute capability 9.0 as functions: transaction barriers, clusters, bulk copies, warpgroup products.
 *
 * Sources including this are compiled for sm_90a alone and their kernels launched on such a GPU only (kn_backend.is_hopper).
 * Tiles in shared memory are lines of 128 bytes (64 elements) whose 16-byte pieces are permuted: piece p of line l lies at
 * p ^ (l % 8); eight lines are one 1024-byte aligned atom. Source: PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions",
 * 128-byte swizzling. Accumulators d of a 64 x N product: d[4 * j + c + 2 * h] is line 16 * warp + lane / 4 + 8 * h, column
 * 8 * j + lane % 4 * 2 + c. */
#ifndef KERNELS_CUDA_HOPPER_CUH
#define KERNELS_CUDA_HOPPER_CUH

#include <cuda.h>

#include "kernels/cuda/mma.cuh"

#define HOPPER_LINE_BYTES 128
#define HOPPER_ATOM_BYTES 1024
#define HOPPER_GROUP_THREADS 128 /* a warpgroup */

/* --- transaction barriers ----------------------------------------------------------------------------------------- */

static __device__ __forceinline__ void barrier_init(uint64_t *barrier, int arrivals)
{
	asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}

/* Makes initialised barriers known to the copy engine. */
static __device__ __forceinline__ void barrier_init_done(void)
{
	asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

/* One arrival that also announces bytes of bulk copies. */
static __device__ __forceinline__ void barrier_expect(uint64_t *barrier, int bytes)
{
	asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
		     : "memory");
}

/* Announces bytes of bulk copies; the phase still lacks its arrival. */
static __device__ __forceinline__ void barrier_announce(uint64_t *barrier, int bytes)
{
	asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
		     : "memory");
}

/* Barriers are named by their address too. */
static __device__ __forceinline__ void barrier_arrive(uint32_t barrier)
{
	asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

static __device__ __forceinline__ void barrier_arrive(uint64_t *barrier)
{
	barrier_arrive(shared_address(barrier));
}

/* Waits until the phase of this parity is over. */
static __device__ __forceinline__ void barrier_wait(uint32_t barrier, int parity)
{
	asm volatile("{\n"
		     ".reg .pred done;\n"
		     "again:\n"
		     "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
		     "@done bra over;\n"
		     "bra again;\n"
		     "over:\n"
		     "}" ::"r"(barrier),
		     "r"(parity)
		     : "memory");
}

static __device__ __forceinline__ void barrier_wait(uint64_t *barrier, int parity)
{
	barrier_wait(shared_address(barrier), parity);
}

/* Barrier number id among some threads of the block; waits for all of them, or only announces this thread. */
static __device__ __forceinline__ void named_sync(int id, int threads)
{
	asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/* The same, and whether value was true for any of those threads. */
static __device__ __forceinline__ bool named_any(int id, int threads, bool value)
{
	int32_t any;
	asm volatile("{\n"
		     ".reg .pred mine, all;\n"
		     "setp.ne.s32 mine, %3, 0;\n"
		     "bar.red.or.pred all, %1, %2, mine;\n"
		     "selp.s32 %0, 1, 0, all;\n"
		     "}"
		     : "=r"(any)
		     : "r"(id), "r"(threads), "r"((int32_t)value)
		     : "memory");
	return any != 0;
}

static __device__ __forceinline__ void named_arrive(int id, int threads)
{
	asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/* Shows shared memory written by ordinary stores to the copy engine and the tensor cores; a barrier must follow. */
static __device__ __forceinline__ void publish_shared(void)
{
	asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* --- clusters of blocks ------------------------------------------------------------------------------------------- */

static __device__ __forceinline__ int cluster_rank(void)
{
	int rank;
	asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
	return rank;
}

/* All threads of all blocks arrive, and wait before any of them goes on: then each sees what the others wrote to shared memory. */
static __device__ __forceinline__ void cluster_arrive(void)
{
	asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}

static __device__ __forceinline__ void cluster_wait(void)
{
	asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

/* The place in another block's shared memory that address is in this one's. */
static __device__ __forceinline__ uint32_t at_rank(uint32_t address, int rank)
{
	uint32_t there;
	asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
	return there;
}

/* Sixteen bytes into another block's shared memory, announced at a barrier there, which expects them. Both from at_rank. */
static __device__ __forceinline__ void store_at_rank(uint32_t to, const float (&values)[4], uint32_t barrier)
{
	asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(to),
		     "f"(values[0]), "f"(values[1]), "f"(values[2]), "f"(values[3]), "r"(barrier)
		     : "memory");
}

/* --- bulk copies to shared memory --------------------------------------------------------------------------------- */

/* Contiguous bytes, a multiple of 16. */
static __device__ __forceinline__ void bulk_copy(uint32_t to, const void *from, int bytes, uint64_t *barrier)
{
	asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to), "l"(from),
		     "r"(bytes), "r"(shared_address(barrier))
		     : "memory");
}

#define HOPPER_READ_ONCE 0x12f0000000000000 /* hint to the L2: first to be evicted. Source: what createpolicy gives for it */
#define HOPPER_READ_OFTEN 0x14f0000000000000 /* last to be evicted */

/* Fetches what describes a tensor, so that the first copy does not wait for it. */
static __device__ __forceinline__ void tensor_prefetch(const CUtensorMap *map)
{
	asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

/* A box of a tensor of four dimensions; elements outside the tensor come as zeros. */
static __device__ __forceinline__ void tensor_copy(
	uint32_t to, const CUtensorMap *map, int c0, int c1, int c2, int c3, uint64_t *barrier, uint64_t hint)
{
	asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
		     "[%0], [%1, {%2, %3, %4, %5}], [%6], %7;" ::"r"(to),
		     "l"(map), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(shared_address(barrier)), "l"(hint)
		     : "memory");
}

/* A box of a matrix; elements outside it come as zeros. */
static __device__ __forceinline__ void tensor_copy(
	uint32_t to, const CUtensorMap *map, int c0, int c1, uint64_t *barrier, uint64_t hint)
{
	asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
		     "[%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to),
		     "l"(map), "r"(c0), "r"(c1), "r"(shared_address(barrier)), "l"(hint)
		     : "memory");
}

/* --- warpgroup products ------------------------------------------------------------------------------------------- */

/* What the tensor cores are told about a swizzled operand in shared memory. */
static __device__ __forceinline__ uint64_t tile_at(uint32_t address, int leading_bytes, int stride_bytes)
{
	return (uint64_t)(address >> 4 & 0x3fff) | (uint64_t)(leading_bytes >> 4) << 16 | (uint64_t)(stride_bytes >> 4) << 32 |
		1ull << 62;
}

/* Operand whose lines run along the product's depth, atoms of eight lines group_bytes apart; a step of 16 elements in depth is 32
 * bytes further. */
static __device__ __forceinline__ uint64_t tile_along_depth(uint32_t address, int group_bytes)
{
	return tile_at(address, 16, group_bytes); /* the first distance is not used with this swizzle */
}

/* Operand whose lines run across it, each line one step in depth, atoms of eight steps group_bytes apart; the parts of 64 elements
 * of a line are part_bytes apart. */
static __device__ __forceinline__ uint64_t tile_across_depth(uint32_t address, int part_bytes, int group_bytes)
{
	return tile_at(address, part_bytes, group_bytes);
}

/* The same operand some bytes further; only the lower half holds the address. */
static __device__ __forceinline__ uint64_t tile_further(uint64_t tile, int bytes)
{
	return (tile & 0xffffffff00000000u) | (uint32_t)((uint32_t)tile + (bytes >> 4));
}

/* Before the first product after accumulators or register operands were written. */
static __device__ __forceinline__ void products_begin(void)
{
	asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

static __device__ __forceinline__ void products_commit(void)
{
	asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/* Waits until at most PENDING groups are under way. */
template <int PENDING> static __device__ __forceinline__ void products_wait(void)
{
	asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

/* Keeps the compiler from moving reads of accumulators up over the wait for their product, and writes of them and of register
 * operands down over products_begin: called right behind the one and right in front of the other. */
template <int N> static __device__ __forceinline__ void products_hold(float (&d)[N])
{
#pragma unroll
	for (int i = 0; i < N; i++)
		asm volatile("" : "+f"(d[i])::"memory");
}

template <int N> static __device__ __forceinline__ void products_hold(uint32_t (&a)[N][4])
{
#pragma unroll
	for (int i = 0; i < 4 * N; i++)
		asm volatile("" : "+r"(a[i / 4][i % 4])::"memory");
}

#define D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define D8(i) D4(i), D4(i + 4)
#define D16(i) D8(i), D8(i + 8)
#define D32(i) D16(i), D16(i + 16)
#define D64(i) D32(i), D32(i + 32)
#define R16 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define R24 R16 ",%16,%17,%18,%19,%20,%21,%22,%23"
#define R32 R24 ",%24,%25,%26,%27,%28,%29,%30,%31"
#define R48 R32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"
#define R56 R48 ",%48,%49,%50,%51,%52,%53,%54,%55"
#define R64 R56 ",%56,%57,%58,%59,%60,%61,%62,%63"
#define R96 \
	R64 ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%" \
	    "92," \
	    "%93,%94,%95"
#define R112 R96 ",%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111"

/* product_TYPE(d, a, b, add): d = (add ? d : 0) + a * b, both operands in shared memory along the depth, 16 deep, as many columns
 * as d has pairs of elements. */
#define PRODUCT(TYPE, COLUMNS, COUNT, REGISTERS, D, A, B, ADD) \
	static __device__ __forceinline__ void product_##TYPE(float(&d)[COUNT], uint64_t a, uint64_t b, int add) \
	{ \
		asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, " ADD ", 0;\n" \
			     "wgmma.mma_async.sync.aligned.m64n" COLUMNS "k16.f32." #TYPE "." #TYPE " {" REGISTERS "}, " A ", " B \
			     ", add, 1, 1, 0, 0;\n}" \
			     : D \
			     : "l"(a), "l"(b), "r"(add)); \
	}
#define PRODUCTS(TYPE) \
	PRODUCT(TYPE, "32", 16, R16, D16(0), "%16", "%17", "%18") \
	PRODUCT(TYPE, "48", 24, R24, D16(0) COMMA D8(16), "%24", "%25", "%26") \
	PRODUCT(TYPE, "64", 32, R32, D32(0), "%32", "%33", "%34") \
	PRODUCT(TYPE, "96", 48, R48, D32(0) COMMA D16(32), "%48", "%49", "%50") \
	PRODUCT(TYPE, "112", 56, R56, D32(0) COMMA D16(32) COMMA D8(48), "%56", "%57", "%58") \
	PRODUCT(TYPE, "128", 64, R64, D64(0), "%64", "%65", "%66") \
	PRODUCT(TYPE, "192", 96, R96, D64(0) COMMA D32(64), "%96", "%97", "%98") \
	PRODUCT(TYPE, "224", 112, R112, D64(0) COMMA D32(64) COMMA D16(96), "%112", "%113", "%114")

#define COMMA ,
PRODUCTS(f16)
PRODUCTS(bf16)
#undef PRODUCTS
#undef PRODUCT
#undef COMMA

/* d += a * b, a in registers, b in shared memory across the depth; fp16. */
static __device__ __forceinline__ void product_across_f16(float (&d)[32], const uint32_t (&a)[4], uint64_t b)
{
	asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {" R32 "}, {%32,%33,%34,%35}, %36, 1, 1, 1, 1;"
		     : D32(0)
		     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

static __device__ __forceinline__ void product_across_f16(float (&d)[64], const uint32_t (&a)[4], uint64_t b)
{
	asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {" R64 "}, {%64,%65,%66,%67}, %68, 1, 1, 1, 1;"
		     : D64(0)
		     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

#undef D4
#undef D8
#undef D16
#undef D32
#undef D64
#undef R16
#undef R24
#undef R32
#undef R48
#undef R56
#undef R64
#undef R96
#undef R112

/* Gives registers back (a warpgroup that only copies) or takes some (one that multiplies). */
template <int REGISTERS> static __device__ __forceinline__ void registers_decrease(void)
{
	asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

template <int REGISTERS> static __device__ __forceinline__ void registers_increase(void)
{
	asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

#endif
