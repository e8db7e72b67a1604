/* How the warps of a product with quantised weights get them: each its own part of strip after strip, through a ring of stages in
 * shared memory that only it uses, so that no barrier is needed and loads never stop at a strip's end. */
#ifndef KERNELS_CUDA_QUANT_STREAM_CUH
#define KERNELS_CUDA_QUANT_STREAM_CUH

#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/quant_panel.cuh"

#define QUANT_MIXED 6 /* stands for a matrix of several forms; after the last of enum quant_form */

/* Stages that a warp has under way, of a matrix of some form: 4 to 7 KB. More made no difference. */
static __host__ __device__ constexpr int ring_stages(int form)
{
	return form == QUANT_Q4_0 || form == QUANT_Q4_1 ? 4 : 2;
}

struct product_args {
	struct quant_layout layout;
	const float *x;
	int64_t x_stride;
	const int32_t *row_index;
	const float *norm_weight;
	float norm_eps;
	enum kn_epilogue epilogue;
	void *y;
	enum pack_form y_form; /* fp32, or with SwiGLU that of the matrix which reads y */
	int64_t y_stride;
	void *panel; /* few rows: prepared */
	const float *panel_scales; /* few rows: [n_rows] */
	int n_rows, cols, n_items;
	int cut_cols, n_cuts; /* columns are dealt out to the warps in so many pieces of so many, the last perhaps shorter */
	int padded_cols; /* of a strip */
	int warp_cuts, n_longer_warps; /* cuts of a warp, and how many warps have one more */
	int block_items, n_longer_blocks; /* items of a block likewise */
};

/* Warps of a block, at most so many: such that all have about the same number of cuts; more of them where it makes no difference.
 */
int quant_choose_warps(int n_cuts, int most);

/* Deals cuts out to warps and items to blocks. */
static inline void deal_out(struct product_args *args, int n_warps, int n_blocks)
{
	args->warp_cuts = args->n_cuts / n_warps;
	args->n_longer_warps = args->n_cuts % n_warps;
	args->block_items = args->n_items / n_blocks;
	args->n_longer_blocks = args->n_items % n_blocks;
}

/* The form of all segments, or QUANT_MIXED. */
int quant_form_of(const struct quant_layout *layout);

/* Product of one row, where its kernel can hold it: cut_cols is then a multiple of QUANT_ONE_CUT_COLS. */
#define QUANT_ONE_CUT_COLS 128
bool quant_one_fits(const struct kn_backend *backend, const struct product_args *args);
cudaError_t quant_one(struct kn_backend *backend, struct product_args *args);
cudaError_t quant_one_init(const struct kn_backend *backend);

/* What a warp fetches, stage by stage: its columns of a strip, of the next one, and so on. */
struct quant_stream {
	int col_begin, col_end;
	const uint8_t *from; /* of this lane */
	const float *factors; /* F8: of the segment */
	int factor; /* the one of the next unit */
	int strips, stages; /* left to fetch, of the block and of this strip */
	int half; /* of this strip's item */
	/* A matrix of one form: */
	int strip_stages, tail_bytes; /* of a strip, and in its last stage */
	int64_t half_step, item_step; /* bytes from a strip's end to the next one's beginning */
	int half_factors, item_factors;
	/* A mixed one: */
	int item, form;
};

/* What belongs to the warp, and the place of its first stage. FORM is that of the whole matrix, or QUANT_MIXED. */
template <int FORM> static __device__ __forceinline__ void stream_seek(const struct product_args &args, struct quant_stream &stream)
{
	int strip = stream.item + stream.half * args.n_items;
	struct quant_segment segment = args.layout.segments[0];
	if (FORM == QUANT_MIXED) {
		segment = quant_segment_of(&args.layout, strip);
		strip -= segment.strip_begin;
	}
	const int form = FORM == QUANT_MIXED ? segment.form : FORM, unit_bytes = quant_unit_bytes(form);
	const int64_t first = (int64_t)strip * segment.n_units + stream.col_begin / quant_unit_cols(form);
	const int n_units = (stream.col_end - stream.col_begin) / quant_unit_cols(form), stage_units = quant_stage_units(form);
	stream.form = form;
	stream.from = segment.units + first * unit_bytes + threadIdx.x % CUDA_WARP * 16;
	stream.factors = segment.unit_scales;
	stream.factor = (int)first;
	stream.strip_stages = stream.stages = (n_units + stage_units - 1) / stage_units;
	stream.tail_bytes = (n_units - (stream.strip_stages - 1) * stage_units) * unit_bytes;
	if (FORM == QUANT_MIXED)
		return;
	const int half_strips = args.n_items * segment.n_units, next_strips = (int)gridDim.x * segment.n_units;
	const bool paired = args.epilogue == KN_SWIGLU;
	stream.half_factors = half_strips - n_units;
	stream.item_factors = next_strips - n_units - (paired ? half_strips : 0);
	stream.half_step = (int64_t)stream.half_factors * unit_bytes;
	stream.item_step = (int64_t)stream.item_factors * unit_bytes;
}

/* COLS: columns that every warp has where all have as many; 0: as they were dealt out. */
template <int FORM, int COLS = 0>
static __device__ __forceinline__ void stream_begin(const struct product_args &args, struct quant_stream &stream)
{
	const int warp = threadIdx.x / CUDA_WARP, longer = args.n_longer_warps;
	const int begin = warp * args.warp_cuts + min(warp, longer), end = begin + args.warp_cuts + (warp < longer ? 1 : 0);
	stream.col_begin = COLS > 0 ? warp * COLS : min(begin * args.cut_cols, args.padded_cols);
	stream.col_end = COLS > 0 ? stream.col_begin + COLS : min(end * args.cut_cols, args.padded_cols);
	stream.strips = args.block_items + ((int)blockIdx.x < args.n_longer_blocks ? 1 : 0);
	stream.strips = stream.col_begin == stream.col_end ? 0 : args.epilogue == KN_SWIGLU ? 2 * stream.strips : stream.strips;
	stream.item = blockIdx.x;
	stream.half = 0;
	stream_seek<FORM>(args, stream);
}

template <int BYTES> static __device__ __forceinline__ void copy_stage(uint32_t to, const uint8_t *from)
{
	const int offset = threadIdx.x % CUDA_WARP * 16;
#pragma unroll
	for (int i = 0; i < BYTES; i += CUDA_WARP * 16)
		if (i + CUDA_WARP * 16 <= BYTES || offset + i < BYTES)
			copy_async(to + offset + i, from + i, true);
}

static __device__ __noinline__ void copy_part(uint32_t to, const uint8_t *from, int bytes)
{
	for (int i = threadIdx.x % CUDA_WARP * 16; i < bytes; i += CUDA_WARP * 16, from += CUDA_WARP * 16)
		copy_async(to + i, from, true);
}

/* The factor of the unit that is copied. */
static __device__ __forceinline__ void copy_factor(struct quant_stream &stream, uint32_t to)
{
	if (threadIdx.x % CUDA_WARP == 0)
		asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to + quant_unit_bytes(QUANT_F8)),
			     "l"(stream.factors + stream.factor)
			     : "memory");
	stream.factor++;
}

/* From a strip's end to the next one's beginning. */
template <int FORM> static __device__ __forceinline__ void stream_turn(const struct product_args &args, struct quant_stream &stream)
{
	const bool again = args.epilogue == KN_SWIGLU && stream.half == 0;
	stream.half = again ? 1 : 0;
	stream.strips--;
	if (FORM == QUANT_MIXED) {
		stream.item += again ? 0 : gridDim.x;
		if (stream.strips > 0)
			stream_seek<FORM>(args, stream);
		return;
	}
	stream.stages = stream.strip_stages;
	stream.from += again ? stream.half_step : stream.item_step;
	if (FORM == QUANT_F8)
		stream.factor += again ? stream.half_factors : stream.item_factors;
}

/* Begins the copy of the next stage; at the end of the work an empty one. */
template <int FORM>
static __device__ __forceinline__ void stream_next(const struct product_args &args, struct quant_stream &stream, uint32_t to)
{
	if (stream.strips > 0) {
		const int form = FORM == QUANT_MIXED ? stream.form : FORM;
		const int stage_bytes = quant_stage_units(form) * quant_unit_bytes(form);
		const int bytes = stream.stages == 1 ? stream.tail_bytes : stage_bytes;
		if (FORM == QUANT_MIXED && form == QUANT_Q4_K)
			copy_stage<quant_unit_bytes(QUANT_Q4_K)>(to, stream.from);
		else if (FORM == QUANT_MIXED && form == QUANT_Q6_K)
			copy_stage<quant_unit_bytes(QUANT_Q6_K)>(to, stream.from);
		else if (FORM == QUANT_MIXED || bytes != stage_bytes)
			copy_part(to, stream.from, bytes);
		else
			copy_stage<FORM == QUANT_MIXED ? 16 : quant_stage_units(FORM) * quant_unit_bytes(FORM)>(to, stream.from);
		if (form == QUANT_F8)
			copy_factor(stream, to);
		stream.from += bytes;
		if (--stream.stages == 0)
			stream_turn<FORM>(args, stream);
	}
	copy_async_commit();
}

/* The same of a matrix of one form where the warp's part of a strip is whole stages, of which `is_last` says whether this one is
 * the last: the user counts them, and no code for parts of stages takes instructions and registers. */
template <int FORM>
static __device__ __forceinline__ void stream_next_whole(
	const struct product_args &args, struct quant_stream &stream, uint32_t to, bool is_last)
{
	constexpr int BYTES = quant_stage_units(FORM) * quant_unit_bytes(FORM);
	if (stream.strips > 0) {
		copy_stage<BYTES>(to, stream.from);
		if (FORM == QUANT_F8)
			copy_factor(stream, to);
		stream.from += BYTES;
		if (is_last)
			stream_turn<FORM>(args, stream);
	}
	copy_async_commit();
}

struct quant_ring {
	const uint8_t *stages;
	uint32_t address;
	int stage_bytes, at; /* bytes from one stage to the next; where the next one to be used begins */

	__device__ __forceinline__ void advance(int n_stages)
	{
		at += stage_bytes;
		at = at == n_stages * stage_bytes ? 0 : at;
	}
};

#endif
