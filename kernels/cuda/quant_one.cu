/* Matrix product of weights in stored form with one row: streams the weights once and decodes them in registers.
 *
 * A block owns strips of 16 rows in turn; its warps split the columns. A warp fetches its part of strip after strip through a ring
 * of stages in shared memory, so loads never stop at a strip's end, and the first ones are under way before the wait for the kernel
 * in front. A block fills a processor, and none takes two, or others would stand idle: what a block does but once, rounding the row
 * above all, costs as much as a tenth of the stream (QUANT_NOTES.md). The warp that needs a slice of the row normalises and rounds
 * it; where its part of a strip is a stage or two, its lanes keep what they need of the row in registers. Sums of the warps meet in
 * shared memory and are added in warp order. */
#include <math.h>

#include "kernels/cuda/quant_one.cuh"
#include "kernels/cuda/quant_output.cuh"

#define WARPS_MAX 16
#define RESERVED_BYTES 1024 /* of shared memory, with each block; source: CUDA C++ programming guide, compute capability 9.0 */
#define BATCH_STRIPS 4 /* whose sums are kept before the block's warps meet to add them up */

/* Stages that a warp has under way: 9 to 10 KB. */
static __host__ __device__ constexpr int one_stages(int form)
{
	return form == QUANT_Q4_0 || form == QUANT_Q4_1 ? 8 : form == QUANT_Q6_K || form == QUANT_MIXED ? 3 : 4;
}

/* For how many stages, all that a warp has of a strip, its lanes can keep the row in registers. */
static __host__ __device__ constexpr int held_most(int form)
{
	return form == QUANT_Q6_K || form == QUANT_MIXED ? 0 : form == QUANT_Q4_K ? 1 : 2;
}

/* Whether a slot is filled again before its weights are worked on: of 8-bit floats alone that was faster. */
static __host__ __device__ constexpr bool refills_early(int form)
{
	return form == QUANT_F8;
}

/* Whether no more blocks take part than the rounds over the items need, so that all have as many: of 8-bit forms alone faster. */
static bool takes_even_rounds(int form)
{
	return form == QUANT_Q8_0 || form == QUANT_F8;
}

static __host__ __device__ constexpr int stage_cols(int form)
{
	return form == QUANT_MIXED ? 0 : quant_stage_units(form) * quant_unit_cols(form);
}

/* Bytes from one stage of a ring to the next. */
template <int STREAM> static __device__ __forceinline__ int ring_step(const struct product_args &args)
{
	return STREAM == QUANT_MIXED ? args.layout.stage_bytes : quant_stage_bytes(STREAM % QUANT_MIXED);
}

/* Begins the copy of the next stage into a slot. HELD as in the kernel; with it the stage is number `number` of its strip, counted
 * on from any strip before. */
template <int STREAM, int HELD>
static __device__ __forceinline__ void request_stage(
	const struct product_args &args, struct quant_stream &stream, uint32_t slot, int number)
{
	if constexpr (HELD > 0)
		stream_next_whole<STREAM>(args, stream, slot, number % HELD == HELD - 1);
	else
		stream_next<STREAM>(args, stream, slot);
}

/* One stage's product. STREAM is the form of the whole matrix; HELD and number: of the stage, as in request_stage. */
template <int STREAM, int FORM, int HELD>
static __device__ __forceinline__ void next_stage(const struct product_args &args, struct quant_stream &stream,
	struct quant_ring &ring, const struct one_row<FORM> &row, int number, int n_units, const struct quant_one_lane &lane,
	float (&acc)[2])
{
	static_assert(one_stages(STREAM) % (HELD > 0 ? HELD : 1) == 0, "a slot holds the same stage of every strip");
	struct one_stage<FORM> stage;
	const uint32_t slot = ring.address + ring.at;
	copy_async_wait<one_stages(STREAM) - 1>();
	__syncwarp();
	stage.load(ring.stages + ring.at, lane);
	ring.advance(one_stages(STREAM));
	if (refills_early(STREAM)) {
		__syncwarp();
		request_stage<STREAM, HELD>(args, stream, slot, number);
	}
	if (n_units == quant_stage_units(FORM))
		stage.multiply(row, quant_stage_units(FORM), lane, acc);
	else
		stage.multiply(row, n_units, lane, acc);
	if (!refills_early(STREAM)) {
		__syncwarp();
		request_stage<STREAM, HELD>(args, stream, slot, number);
	}
}

/* One strip's product with the warp's columns. */
template <int STREAM, int FORM>
static __device__ __forceinline__ void strip_product(const struct product_args &args, struct quant_stream &stream,
	struct quant_ring &ring, const struct quant_one_lane &lane, float (&acc)[2])
{
	constexpr int UNIT_COLS = quant_unit_cols(FORM), STAGE_COLS = stage_cols(FORM);
#pragma unroll 1
	for (int column = stream.col_begin; column < stream.col_end; column += STAGE_COLS) {
		struct one_row<FORM> row;
		row.load(column, lane);
		next_stage<STREAM, FORM, 0>(
			args, stream, ring, row, 0, min(STAGE_COLS, stream.col_end - column) / UNIT_COLS, lane, acc);
	}
}

template <int STREAM>
static __device__ __forceinline__ void any_strip_product(int strip, const struct product_args &args, struct quant_stream &stream,
	struct quant_ring &ring, const struct quant_one_lane &lane, float (&acc)[2])
{
	if constexpr (STREAM != QUANT_MIXED) {
		strip_product<STREAM, STREAM>(args, stream, ring, lane, acc);
	} else {
		switch (quant_segment_of(&args.layout, strip).form) {
		case QUANT_Q4_0:
			return strip_product<STREAM, QUANT_Q4_0>(args, stream, ring, lane, acc);
		case QUANT_Q4_1:
			return strip_product<STREAM, QUANT_Q4_1>(args, stream, ring, lane, acc);
		case QUANT_Q8_0:
			return strip_product<STREAM, QUANT_Q8_0>(args, stream, ring, lane, acc);
		case QUANT_Q4_K:
			return strip_product<STREAM, QUANT_Q4_K>(args, stream, ring, lane, acc);
		default:
			return strip_product<STREAM, QUANT_Q6_K>(args, stream, ring, lane, acc);
		}
	}
}

/* Eight columns, or zeros past the end. */
static __device__ __forceinline__ void load_valid(float (&v)[8], const float *from, int column, int end)
{
#pragma unroll
	for (int i = 0; i < 8; i += 4) {
		const float4 four = column < end ? *(const float4 *)(from + column + i) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
		v[i] = four.x;
		v[i + 1] = four.y;
		v[i + 2] = four.z;
		v[i + 3] = four.w;
	}
}

/* What values are multiplied by before they are rounded, and what products with the rounded ones are multiplied by. */
template <bool BYTES> static __device__ __forceinline__ float2 slice_scale(uint32_t largest_bits)
{
	const float largest = fmaxf(__uint_as_float(largest_bits), 1e-30f);
	if (!BYTES)
		return quant_panel_scale(largest);
	return make_float2(
		__fdividef(QUANT_ONE_LARGEST, largest), largest_bits < 0x7f800000 ? largest * (1.0f / QUANT_ONE_LARGEST) : NAN);
}

/* The warp's slice of the row into the panel. Returns what products with it are to be multiplied by. `weight` are the norm's first
 * eight of this lane, which do not have to wait for another kernel. */
template <bool BYTES>
static __device__ __forceinline__ float prepare_slice(const struct product_args &args, const struct quant_one_panel &panel,
	int begin, int end, const float (&weight)[8], float *squares)
{
	const int lane = threadIdx.x % CUDA_WARP, valid = min(end, args.cols);
	const float *x = args.x + (args.row_index ? args.row_index[0] * args.x_stride : 0);
	float first[8], v[8], w[8], sum = 0.0f;
	uint32_t largest = 0; /* bits of magnitudes, whose order is that of the values; not finite ones come last */
	load_valid(first, x, begin + lane * 8, valid);
#pragma unroll
	for (int i = 0; i < 8; i++) {
		sum = fmaf(first[i], first[i], sum);
		first[i] *= weight[i];
		largest = max(largest, __float_as_uint(first[i]) & 0x7fffffff);
	}
	for (int base = begin + 8 * CUDA_WARP; base < end; base += 8 * CUDA_WARP) {
		load_valid(v, x, base + lane * 8, valid);
		if (args.norm_weight)
			load_valid(w, args.norm_weight, base + lane * 8, valid);
#pragma unroll
		for (int i = 0; i < 8; i++) {
			sum = fmaf(v[i], v[i], sum);
			largest = max(largest, __float_as_uint(args.norm_weight ? v[i] * w[i] : v[i]) & 0x7fffffff);
		}
	}
	const float2 scale = slice_scale<BYTES>(__reduce_max_sync(0xffffffffu, largest));
	for (int base = begin; base < end; base += 8 * CUDA_WARP) {
		const int column = base + lane * 8;
		if (base != begin) {
			load_valid(first, x, column, valid);
			if (args.norm_weight)
				load_valid(w, args.norm_weight, column, valid);
#pragma unroll
			for (int i = 0; i < 8; i++)
				first[i] = args.norm_weight ? first[i] * w[i] : first[i];
		}
		if (BYTES)
			panel.put_bytes(column, column < end, first, scale.x);
		else
			panel.put_halves(column, column < end, first, scale.x);
	}
	*squares = args.norm_weight ? warp_sum(sum) : 0.0f;
	return scale.y;
}

/* Sums of one strip to shared memory. Lanes of a row have parts of it, or with F8 the first has the whole. */
template <bool BYTES>
static __device__ __forceinline__ void store_sums(const struct quant_one_lane &lane, const float (&acc)[2], float scale, float *to)
{
	float low = acc[0], high = acc[1];
	if (BYTES) {
		low += __shfl_xor_sync(0xffffffffu, low, 1);
		high += __shfl_xor_sync(0xffffffffu, high, 1);
		low += __shfl_xor_sync(0xffffffffu, low, 2);
		high += __shfl_xor_sync(0xffffffffu, high, 2);
	}
	if (lane.t == 0) {
		to[lane.g] = low * scale;
		to[lane.g + 8] = high * scale;
	}
}

/* Items of a batch, so that each of its outputs has a thread. */
static __host__ __device__ inline int batch_items(int n_halves, int n_warps)
{
	return n_warps == 1 ? 1 : BATCH_STRIPS / n_halves;
}

/* HELD: stages of every warp's part of a strip, whose part of the row is kept in registers; 0: it is read for each stage.
 * Block: up to WARPS_MAX warps. Shared: rings of the warps, then sums [2 turns][batch][2 halves][warps][QUANT_SUMS_STRIDE], then
 * the panel. */
template <int FORM, int HELD>
static __global__ void __launch_bounds__(WARPS_MAX *CUDA_WARP, 1) quant_one_kernel(const struct product_args args)
{
	extern __shared__ __align__(128) uint8_t shared[];
	__shared__ float squares[WARPS_MAX];
	constexpr bool BYTES = FORM != QUANT_F8;
	const int n_warps = blockDim.x / CUDA_WARP, warp = threadIdx.x / CUDA_WARP;
	const int n_halves = args.epilogue == KN_SWIGLU ? 2 : 1, batch_most = batch_items(n_halves, n_warps);
	const int ring_bytes = one_stages(FORM) * ring_step<FORM>(args);
	float *sums = (float *)(shared + n_warps * ring_bytes);
	const int item_sums = n_halves * n_warps * QUANT_SUMS_STRIDE;
	struct quant_ring ring = {shared + warp * ring_bytes, shared_address(shared + warp * ring_bytes), ring_step<FORM>(args), 0};
	struct quant_stream stream;
	stream_begin<FORM, HELD * stage_cols(FORM)>(args, stream);
#pragma unroll
	for (int i = 0; i < one_stages(FORM); i++)
		request_stage<FORM, HELD>(args, stream, ring.address + i * ring.stage_bytes, i);
	dependency_release();

	const struct quant_one_panel panel(sums + 2 * batch_most * item_sums, args.cols);
	const struct quant_one_lane lane(panel);
	float slice_squares, weight[8] = {1.0f, 1.0f, 1.0f, 1.0f, 1.0f, 1.0f, 1.0f, 1.0f};
	if (args.norm_weight)
		load_valid(weight, args.norm_weight, stream.col_begin + lane.lane * 8, min(stream.col_end, args.cols));
	dependency_wait();
	const float scale = prepare_slice<BYTES>(args, panel, stream.col_begin, stream.col_end, weight, &slice_squares);
	if (lane.lane == 0)
		squares[warp] = slice_squares;
	__syncwarp();

	constexpr int ROW_FORM = FORM == QUANT_MIXED ? QUANT_Q6_K : FORM; /* mixed ones hold nothing */
	struct one_row<ROW_FORM> held[HELD > 0 ? HELD : 1];
#pragma unroll
	for (int i = 0; i < HELD; i++)
		held[i].load(stream.col_begin + i * stage_cols(ROW_FORM), lane);

	const int row = threadIdx.x % QUANT_STRIP_ROWS, at = threadIdx.x / QUANT_STRIP_ROWS;
	int turn = 0;
#pragma unroll 1
	for (int first = blockIdx.x; first < args.n_items; first += batch_most * gridDim.x, turn ^= 1) {
		float *batch = sums + turn * batch_most * item_sums;
		float *to = batch + warp * QUANT_SUMS_STRIDE;
		const int end = min(first + batch_most * (int)gridDim.x, args.n_items);
		struct quant_place place;
		if (at < batch_most)
			place.look_up(args, first + at * (int)gridDim.x, row);
#pragma unroll 1
		for (int item = first; item < end; item += gridDim.x)
#pragma unroll 1
			for (int half = 0; half < n_halves; half++) {
				float acc[2] = {};
				if constexpr (HELD > 0) {
#pragma unroll
					for (int i = 0; i < HELD; i++)
						next_stage<FORM, FORM, HELD>(
							args, stream, ring, held[i], i, quant_stage_units(FORM), lane, acc);
				} else {
					any_strip_product<FORM>(item + half * args.n_items, args, stream, ring, lane, acc);
				}
				store_sums<BYTES>(lane, acc, scale, to);
				to += n_warps * QUANT_SUMS_STRIDE;
			}
		__syncthreads(); /* the batch before the last has been read by everyone who is here */
		if (place.at < 0)
			continue;
		float norm = 1.0f;
		if (args.norm_weight) {
			float total = 0.0f;
#pragma unroll 8
			for (int i = 0; i < n_warps; i++)
				total += squares[i];
			norm = rsqrtf(total / (float)args.cols + args.norm_eps);
		}
		finish<1>(args, place, batch + at * item_sums, n_warps, row, 0, norm);
	}
	copy_async_wait<0>();
}

/* --- launch ------------------------------------------------------------------------------------------------------- */

static size_t shared_bytes(const struct product_args *args, int form, int n_warps)
{
	const size_t halves = args->epilogue == KN_SWIGLU ? 2 : 1, warps = (size_t)n_warps;
	return warps * (size_t)one_stages(form) * (size_t)args->layout.stage_bytes +
		2 * (size_t)batch_items((int)halves, n_warps) * halves * warps * QUANT_SUMS_STRIDE * sizeof(float) +
		quant_one_panel::bytes(args->cols);
}

typedef void product_kernel(const struct product_args);

/* n_stages: HELD, at most held_most(FORM). */
template <int FORM> static product_kernel *kernel_holding(int n_stages)
{
	constexpr int MOST = held_most(FORM), ONE = MOST < 1 ? MOST : 1;
	if (n_stages == 0)
		return quant_one_kernel<FORM, 0>;
	return n_stages == 1 ? quant_one_kernel<FORM, ONE> : quant_one_kernel<FORM, MOST>;
}

static product_kernel *kernel_of(int form, int n_stages)
{
	static product_kernel *(*const of_form[])(int) = {
		kernel_holding<QUANT_Q4_0>,
		kernel_holding<QUANT_Q4_1>,
		kernel_holding<QUANT_Q8_0>,
		kernel_holding<QUANT_F8>,
		kernel_holding<QUANT_Q4_K>,
		kernel_holding<QUANT_Q6_K>,
		kernel_holding<QUANT_MIXED>,
	};
	return of_form[form](n_stages);
}

/* How many stages every warp has of a strip, when all have as many whole ones, no more than can be held; else 0. */
static int held_stages(const struct product_args *args, int form, int n_warps)
{
	if (held_most(form) == 0)
		return 0;
	const int stage = stage_cols(form), slice = args->warp_cuts * args->cut_cols;
	const bool even = args->n_longer_warps == 0 && slice * n_warps == args->padded_cols && slice % stage == 0;
	return even && slice <= held_most(form) * stage ? slice / stage : 0;
}

/* Warps of a block; 0 when not even one fits beside the row. */
static int warps_of(const struct product_args *args, int form, size_t most_bytes)
{
	int most = WARPS_MAX;
	while (most > 0 && shared_bytes(args, form, most) > most_bytes - RESERVED_BYTES)
		most--;
	return most > 0 ? quant_choose_warps(args->n_cuts, most) : 0;
}

bool quant_one_fits(const struct kn_backend *backend, const struct product_args *args)
{
	const int form = quant_form_of(&args->layout);
	if (form == QUANT_MIXED)
		for (int i = 0; i < args->layout.n_segments; i++)
			if (args->layout.segments[i].form == QUANT_F8)
				return false;
	return warps_of(args, form, backend->quant.shared_bytes_max) > 0;
}

cudaError_t quant_one(struct kn_backend *backend, struct product_args *args)
{
	const int form = quant_form_of(&args->layout);
	const size_t most_bytes = backend->quant.shared_bytes_max;
	const int n_warps = warps_of(args, form, most_bytes);
	const size_t needed = shared_bytes(args, form, n_warps);
	const int by_memory = (int)(most_bytes / (needed + RESERVED_BYTES)), by_warps = WARPS_MAX / n_warps;
	const int per_sm = by_memory < by_warps ? by_memory : by_warps, blocks = backend->n_sms * per_sm;
	/* So much shared memory that no processor takes a block more than its share while another goes without. */
	const size_t share = most_bytes / (size_t)(per_sm + 1) + 1;
	const int rounds = (args->n_items + blocks - 1) / blocks, even = (args->n_items + rounds - 1) / rounds;
	const int most = args->n_items < blocks ? args->n_items : blocks;
	dim3 grid(takes_even_rounds(form) ? even : most), block(n_warps * CUDA_WARP);
	deal_out(args, n_warps, (int)grid.x);
	return launch_dependent(backend->stream, grid, block, needed > share ? needed : share,
		kernel_of(form, held_stages(args, form, n_warps)), *args);
}

cudaError_t quant_one_init(const struct kn_backend *backend)
{
	cudaError_t error = cudaSuccess;
	for (int form = 0; form <= QUANT_MIXED; form++)
		for (int held = 0; held <= held_most(form) && !error; held++)
			error = cudaFuncSetAttribute(kernel_of(form, held), cudaFuncAttributeMaxDynamicSharedMemorySize,
				(int)backend->quant.shared_bytes_max);
	return error;
}
