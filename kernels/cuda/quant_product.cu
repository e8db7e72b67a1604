/* Matrix product of weights in stored form with 1 to 16 rows: streams the weights once and decodes them in registers.
 *
 * A block owns strips of 16 rows in turn; its warps split the columns. A warp fetches its part of strip after strip through a ring
 * of stages in shared memory, so loads never stop at a strip's end, and the first ones are under way before the wait for the kernel
 * in front; registers and shared memory are held down so that this block fits beside that kernel's. Sums of the warps meet in
 * shared memory in warp order. One row of activations is normalised, scaled and split into two fp16 parts by the warp that needs
 * that slice of it; a few rows come prepared (quant_panel.cuh) as one part. */
#include "kernels/cuda/quant_decode.cuh"

#define WARPS_MAX 16
#ifndef QUANT_RING_STAGES
#define QUANT_RING_STAGES 2 /* measured: QUANT_NOTES.md */
#endif
#define STATIC_BYTES 256 /* of shared memory: what the kernel declares itself */
#define SUMS_STRIDE 20 /* of 16 sums: lanes of a warp store to different banks */

struct product_args {
	struct quant_layout layout;
	const float *x;
	int64_t x_stride;
	const int32_t *row_index;
	const float *norm_weight;
	float norm_eps;
	enum kn_epilogue epilogue;
	float *y;
	int64_t y_stride;
	void *panel; /* few rows: prepared */
	const float *panel_scales; /* few rows: [n_rows] */
	int n_rows, cols, n_granules, n_items;
};

/* What a warp fetches, stage by stage. */
struct quant_stream {
	int item, half, granule_begin, granule_end;
	const uint8_t *from;
	const float *factor; /* F8: of the next unit */
	int left, stage_bytes;
};

static __device__ __forceinline__ void stream_seek(const struct product_args &args, struct quant_stream &stream)
{
	const int strip = stream.item + stream.half * args.n_items;
	const struct quant_segment *segment = quant_segment_of(&args.layout, strip);
	const int form = segment->form, unit_bytes = quant_unit_bytes(form);
	const int units = args.layout.granule_cols / quant_unit_cols(form);
	const int64_t first = (int64_t)(strip - segment->strip_begin) * segment->n_units + stream.granule_begin * units;
	stream.from = segment->units + first * unit_bytes;
	stream.factor = form == QUANT_F8 ? segment->unit_scales + first : NULL;
	stream.left = (stream.granule_end - stream.granule_begin) * units * unit_bytes;
	stream.stage_bytes = quant_stage_units(form) * unit_bytes;
}

/* Begins the copy of the next stage; at the end of the work an empty one. */
static __device__ __forceinline__ void stream_next(const struct product_args &args, struct quant_stream &stream, uint32_t to)
{
	const int lane = threadIdx.x % CUDA_WARP;
	if (stream.item < args.n_items) {
		const int bytes = min(stream.left, stream.stage_bytes);
		const int offset = lane * 16;
#pragma unroll
		for (int i = 0; i < 7; i++) /* the largest stage has 3360 bytes */
			if (offset + i * 512 < bytes)
				copy_async(to + offset + i * 512, stream.from + offset + i * 512, true);
		if (stream.factor) {
			if (lane == 0)
				asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to + quant_unit_bytes(QUANT_F8)),
					"l"(stream.factor)
					: "memory");
			stream.factor++;
		}
		stream.from += bytes;
		stream.left -= bytes;
		if (stream.left == 0) {
			if (args.epilogue == KN_SWIGLU && stream.half == 0) {
				stream.half = 1;
			} else {
				stream.half = 0;
				stream.item += gridDim.x;
			}
			if (stream.item < args.n_items)
				stream_seek(args, stream);
		}
	}
	copy_async_commit();
}

struct quant_ring {
	const uint8_t *stages;
	uint32_t address;
	int stage_bytes, at; /* bytes from one stage to the next; the one to be used next */

	__device__ __forceinline__ void advance()
	{
		at = at + 1 == QUANT_RING_STAGES ? 0 : at + 1;
	}
};

/* One strip's product with the warp's columns. */
template <int FORM, int ROWS>
static __device__ __forceinline__ void strip_product(const struct product_args &args, struct quant_stream &stream,
	struct quant_ring &ring, const struct quant_lane<ROWS> &lane, float (&acc)[quant_lane<ROWS>::TILES][4])
{
	constexpr int STAGE_UNITS = quant_stage_units(FORM), UNIT_BYTES = quant_unit_bytes(FORM);
	const int units = args.layout.granule_cols / quant_unit_cols(FORM), end = stream.granule_end * units;
#pragma unroll 1
	for (int unit = stream.granule_begin * units; unit < end; unit += STAGE_UNITS) {
		copy_async_wait<QUANT_RING_STAGES - 1>();
		__syncwarp();
		const uint8_t *stage = ring.stages + ring.at * ring.stage_bytes;
#pragma unroll
		for (int i = 0; i < STAGE_UNITS; i++)
			if (unit + i < end)
				unit_product<FORM, ROWS>(stage + i * UNIT_BYTES, unit + i, lane, acc);
		__syncwarp();
		stream_next(args, stream, ring.address + ring.at * ring.stage_bytes);
		ring.advance();
	}
}

template <int ROWS>
static __device__ __forceinline__ void any_strip_product(int form, const struct product_args &args, struct quant_stream &stream,
	struct quant_ring &ring, const struct quant_lane<ROWS> &lane, float (&acc)[quant_lane<ROWS>::TILES][4])
{
	switch (form) {
	case QUANT_Q4_0:
		return strip_product<QUANT_Q4_0, ROWS>(args, stream, ring, lane, acc);
	case QUANT_Q4_1:
		return strip_product<QUANT_Q4_1, ROWS>(args, stream, ring, lane, acc);
	case QUANT_Q8_0:
		return strip_product<QUANT_Q8_0, ROWS>(args, stream, ring, lane, acc);
	case QUANT_F8:
		return strip_product<QUANT_F8, ROWS>(args, stream, ring, lane, acc);
	case QUANT_Q4_K:
		return strip_product<QUANT_Q4_K, ROWS>(args, stream, ring, lane, acc);
	default:
		return strip_product<QUANT_Q6_K, ROWS>(args, stream, ring, lane, acc);
	}
}

static __device__ __forceinline__ void load_eight(float (&v)[8], const float *from)
{
	const float4 low = *(const float4 *)from, high = *(const float4 *)(from + 4);
	v[0] = low.x;
	v[1] = low.y;
	v[2] = low.z;
	v[3] = low.w;
	v[4] = high.x;
	v[5] = high.y;
	v[6] = high.z;
	v[7] = high.w;
}

/* Eight columns of the input, times the norm's weight; zeros past the end. *squares gets their sum of squares before that. */
static __device__ __forceinline__ void load_input(
	const struct product_args &args, const float *x, int column, int end, float (&v)[8], float *squares)
{
#pragma unroll
	for (int i = 0; i < 8; i++)
		v[i] = 0.0f;
	if (column >= end)
		return;
	load_eight(v, x + column);
	if (!args.norm_weight)
		return;
	float weight[8];
	load_eight(weight, args.norm_weight + column);
#pragma unroll
	for (int i = 0; i < 8; i++) {
		*squares = fmaf(v[i], v[i], *squares);
		v[i] *= weight[i];
	}
}

/* The warp's slice of the one row. Returns what products with it are to be multiplied by. */
static __device__ __forceinline__ float prepare_slice(
	const struct product_args &args, const struct quant_panel<2> &panel, int begin, int end, float *squares)
{
	const int lane = threadIdx.x % CUDA_WARP, valid = min(end, args.cols);
	const float *x = args.x + (args.row_index ? args.row_index[0] * args.x_stride : 0);
	float v[8], largest = 0.0f, unused = 0.0f;
	*squares = 0.0f;
	for (int base = begin; base < end; base += 8 * CUDA_WARP) {
		load_input(args, x, base + lane * 8, valid, v, squares);
#pragma unroll
		for (int i = 0; i < 8; i++)
			largest = fmaxf(largest, fabsf(v[i]));
	}
	const float2 scale = quant_panel_scale(warp_max(largest));
	for (int base = begin; base < end; base += 8 * CUDA_WARP) {
		const int column = base + lane * 8;
		float rest[8];
		load_input(args, x, column, valid, v, &unused);
#pragma unroll
		for (int i = 0; i < 8; i++)
			v[i] = rest[i] = v[i] * scale.x;
		panel.put(0, column, column < end, v);
#pragma unroll
		for (int i = 0; i < 8; i++)
			rest[i] -= v[i];
		panel.put(1, column, column < end, rest);
	}
	*squares = warp_sum(*squares);
	return scale.y;
}

/* y of row `row` of the strip(s) of an item and activation row `column`, from the sums of the warps. */
template <int ROWS>
static __device__ __forceinline__ void finish(
	const struct product_args &args, int item, const float *sums, int n_warps, int row, int column, float scale)
{
	constexpr int COLUMNS = ROWS == 2 ? 1 : ROWS;
	float values[2] = {0.0f, 0.0f};
	const struct quant_segment *segment = quant_segment_of(&args.layout, item);
	const int line = (item - segment->strip_begin) * QUANT_STRIP_ROWS + row;
	if (line >= segment->rows)
		return;
#pragma unroll
	for (int half = 0; half < 2; half++) {
		if (half == 1 && args.epilogue != KN_SWIGLU)
			break;
		for (int warp = 0; warp < n_warps; warp++)
			values[half] += sums[((half * n_warps + warp) * COLUMNS + column) * SUMS_STRIDE + row];
		values[half] *= scale;
		const int strip = item + half * args.n_items;
		const struct quant_segment *of = quant_segment_of(&args.layout, strip);
		if (of->form == QUANT_F8)
			values[half] *= of->row_scales[(strip - of->strip_begin) * QUANT_STRIP_ROWS + row];
	}
	float *y = args.y + column * args.y_stride + segment->row_begin + line;
	if (args.epilogue == KN_SWIGLU)
		*y = values[0] / (1.0f + __expf(-values[0])) * values[1];
	else if (args.epilogue == KN_ADD)
		*y += values[0];
	else
		*y = values[0];
}

/* Block: up to WARPS_MAX warps. Shared: rings of the warps, then [2 turns][2 halves][warps][columns][SUMS_STRIDE] sums, then for one
 * row its panel. ROWS as in quant_lane. */
template <int ROWS>
__global__ void __launch_bounds__(WARPS_MAX *CUDA_WARP, ROWS == 16 ? 1 : 2) quant_product_kernel(const struct product_args args)
{
	extern __shared__ __align__(128) uint8_t shared[];
	__shared__ float squares[WARPS_MAX];
	constexpr int COLUMNS = ROWS == 2 ? 1 : ROWS, TILES = quant_lane<ROWS>::TILES;
	const int n_warps = blockDim.x / CUDA_WARP, warp = threadIdx.x / CUDA_WARP;
	const int n_halves = args.epilogue == KN_SWIGLU ? 2 : 1;
	const int ring_bytes = QUANT_RING_STAGES * args.layout.stage_bytes;
	float *sums = (float *)(shared + n_warps * ring_bytes);
	const int turn_sums = n_halves * n_warps * COLUMNS * SUMS_STRIDE;
	struct quant_ring ring = {shared + warp * ring_bytes, shared_address(shared + warp * ring_bytes), args.layout.stage_bytes, 0};
	struct quant_stream stream = {};
	stream.granule_begin = args.n_granules * warp / n_warps;
	stream.granule_end = args.n_granules * (warp + 1) / n_warps;
	stream.item = stream.granule_begin < stream.granule_end ? blockIdx.x : args.n_items;
	if (stream.item < args.n_items)
		stream_seek(args, stream);
#pragma unroll
	for (int i = 0; i < QUANT_RING_STAGES; i++)
		stream_next(args, stream, ring.address + i * ring.stage_bytes);
	dependency_release();
	dependency_wait();

	float slice_scale = 1.0f;
	const struct quant_panel<ROWS> panel(ROWS == 2 ? (void *)(sums + 2 * turn_sums) : args.panel, args.cols);
	const struct quant_lane<ROWS> lane(panel);
	if constexpr (ROWS == 2) {
		float slice_squares;
		slice_scale = prepare_slice(args, panel, stream.granule_begin * args.layout.granule_cols,
			stream.granule_end * args.layout.granule_cols, &slice_squares);
		if (lane.lane == 0)
			squares[warp] = slice_squares;
		__syncwarp();
	}
	int turn = 0;
#pragma unroll 1
	for (int item = blockIdx.x; item < args.n_items; item += gridDim.x, turn++) {
		float *turn_at = sums + turn % 2 * turn_sums;
#pragma unroll 1
		for (int half = 0; half < n_halves; half++) {
			float acc[TILES][4] = {};
			any_strip_product<ROWS>(quant_segment_of(&args.layout, item + half * args.n_items)->form, args, stream, ring,
				lane, acc);
			float *to = turn_at + (half * n_warps + warp) * COLUMNS * SUMS_STRIDE + lane.g;
			if constexpr (ROWS == 2) {
				if (lane.t == 0) {
					to[0] = (acc[0][0] + acc[0][1]) * slice_scale;
					to[8] = (acc[0][2] + acc[0][3]) * slice_scale;
				}
			} else {
#pragma unroll
				for (int n = 0; n < TILES; n++)
#pragma unroll
					for (int i = 0; i < 4; i++)
						to[(n * 8 + 2 * lane.t + i % 2) * SUMS_STRIDE + i / 2 * 8] = acc[n][i];
			}
		}
		__syncthreads(); /* the sums of the turn before last have been read by everyone who is here */
		if (ROWS == 2) {
			if (warp == turn % n_warps && lane.lane < QUANT_STRIP_ROWS) {
				float scale = 1.0f, total = 0.0f;
				for (int i = 0; args.norm_weight && i < n_warps; i++)
					total += squares[i];
				if (args.norm_weight)
					scale = 1.0f / sqrtf(total / (float)args.cols + args.norm_eps);
				finish<ROWS>(args, item, turn_at, n_warps, lane.lane, 0, scale);
			}
		} else {
			for (int i = threadIdx.x; i < QUANT_STRIP_ROWS * args.n_rows; i += blockDim.x) {
				const int column = i / QUANT_STRIP_ROWS;
				finish<ROWS>(args, item, turn_at, n_warps, i % QUANT_STRIP_ROWS, column, args.panel_scales[column]);
			}
		}
	}
	copy_async_wait<0>();
}

/* --- launch ------------------------------------------------------------------------------------------------------- */

static size_t shared_bytes(const struct product_args *args, int n_warps, int rows)
{
	const size_t halves = args->epilogue == KN_SWIGLU ? 2 : 1, columns = rows == 1 ? 1 : rows <= 8 ? 8 : 16;
	return (size_t)n_warps * QUANT_RING_STAGES * (size_t)args->layout.stage_bytes +
		2 * halves * (size_t)n_warps * columns * SUMS_STRIDE * sizeof(float) +
		(rows == 1 ? quant_panel<2>::bytes(args->cols) : 0);
}

/* Warps of a block: so many that all have about the same number of granules; more of them where it makes no difference. */
static int choose_warps(int n_granules)
{
	int best = 1;
	double best_share = 0;
	for (int warps = 1; warps <= WARPS_MAX; warps++) {
		/* Part of the warps' time that is work, less what fewer warps hide less. */
		const int most = (n_granules + warps - 1) / warps;
		const double share = (double)n_granules / (warps * most) * (warps < 8 ? warps / 8.0 : 1.0);
		if (share >= best_share - 0.02) {
			best_share = share;
			best = warps;
		}
	}
	return best;
}

enum status quant_product(struct kn_backend *backend, const struct kn_matmul *args, int first_row, int n_rows, struct err *err)
{
	const struct kn_matrix *w = args->w;
	struct product_args product = {};
	product.layout = w->quant;
	product.x = args->x;
	product.x_stride = args->x_stride;
	product.row_index = args->row_index;
	product.norm_weight = args->norm_weight;
	product.norm_eps = args->norm_eps;
	product.epilogue = args->epilogue;
	product.y = args->y + first_row * args->y_stride;
	product.y_stride = args->y_stride;
	product.panel = backend->quant.panel;
	product.panel_scales = backend->quant.row_scales;
	product.n_rows = n_rows;
	product.cols = (int)w->cols;
	product.n_granules = ((int)w->cols + w->quant.granule_cols - 1) / w->quant.granule_cols;
	product.n_items = args->epilogue == KN_SWIGLU ? w->quant.n_strips / 2 : w->quant.n_strips;
	const int n_warps = choose_warps(product.n_granules);
	const int blocks = backend->n_sms * (WARPS_MAX / n_warps);
	bool one = n_rows == 1 && first_row == 0 && shared_bytes(&product, n_warps, 1) <= backend->quant.shared_bytes_max;
	cudaError_t error = one ? cudaSuccess : quant_prepare(backend, args, first_row, n_rows);
	if (error)
		return cuda_status(error, "input of a matrix product", err);
	dim3 grid(product.n_items < blocks ? product.n_items : blocks), block(n_warps * CUDA_WARP);
	if (one)
		error = launch_dependent(
			backend->stream, grid, block, shared_bytes(&product, n_warps, 1), quant_product_kernel<2>, product);
	else if (n_rows <= 8)
		error = launch_dependent(
			backend->stream, grid, block, shared_bytes(&product, n_warps, 8), quant_product_kernel<8>, product);
	else
		error = launch_dependent(
			backend->stream, grid, block, shared_bytes(&product, n_warps, 16), quant_product_kernel<16>, product);
	return cuda_status(error, "matrix product of quantised weights", err);
}

cudaError_t quant_product_init(struct kn_backend *backend)
{
	int most = 0;
	cudaError_t error = cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, backend->device);
	backend->quant.shared_bytes_max = (size_t)(most - STATIC_BYTES);
	if (!error)
		error = cudaFuncSetAttribute(
			quant_product_kernel<2>, cudaFuncAttributeMaxDynamicSharedMemorySize, most - STATIC_BYTES);
	if (!error)
		error = cudaFuncSetAttribute(
			quant_product_kernel<8>, cudaFuncAttributeMaxDynamicSharedMemorySize, most - STATIC_BYTES);
	if (!error)
		error = cudaFuncSetAttribute(
			quant_product_kernel<16>, cudaFuncAttributeMaxDynamicSharedMemorySize, most - STATIC_BYTES);
	return error;
}
