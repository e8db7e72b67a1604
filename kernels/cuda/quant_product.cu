/* Matrix product of weights in stored form with 1 to 16 rows: streams the weights once and decodes them in registers.
 *
 * A block owns strips of 16 rows in turn; its warps split the columns. A warp fetches its part of strip after strip through a ring
 * of stages in shared memory, so loads never stop at a strip's end, and the first ones are under way before the wait for the kernel
 * in front. A processor takes no more blocks of a kernel than its share, or others would stand idle. Sums of the warps meet in
 * shared memory in warp order. One row of activations is normalised and scaled by the warp that needs that slice of it; a few rows
 * come prepared (quant_panel.cuh). */
#include "kernels/cuda/quant_decode.cuh"
#include "kernels/cuda/quant_stream.cuh"

#define WARPS_MAX 16
#define STATIC_BYTES 256 /* of shared memory: what the kernel declares itself */
#define SUMS_STRIDE 20 /* of 16 sums: lanes of a warp store to different banks */

/* One strip's product with the warp's columns. STREAM is the form of the whole matrix. */
template <int STREAM, int FORM, int ROWS>
static __device__ __forceinline__ void strip_product(const struct product_args &args, struct quant_stream &stream,
	struct quant_ring &ring, const struct quant_lane<ROWS> &lane, float (&acc)[quant_lane<ROWS>::TILES][4])
{
	constexpr int STAGE_UNITS = quant_stage_units(FORM), UNIT_BYTES = quant_unit_bytes(FORM);
	const int units = args.layout.granule_cols / quant_unit_cols(FORM), end = stream.granule_end * units;
#pragma unroll 1
	for (int unit = stream.granule_begin * units; unit < end; unit += STAGE_UNITS) {
		copy_async_wait<ring_stages(STREAM) - 1>();
		__syncwarp();
		const uint8_t *stage = ring.stages + ring.at;
		if (unit + STAGE_UNITS <= end) {
#pragma unroll
			for (int i = 0; i < STAGE_UNITS; i++)
				unit_product<FORM, ROWS>(stage + i * UNIT_BYTES, unit + i, lane, acc);
		} else {
#pragma unroll 1
			for (int i = 0; unit + i < end; i++)
				unit_product<FORM, ROWS>(stage + i * UNIT_BYTES, unit + i, lane, acc);
		}
		__syncwarp();
		stream_next<STREAM>(args, stream, ring.address + ring.at);
		ring.advance(ring_stages(STREAM));
	}
}

template <int STREAM, int ROWS>
static __device__ __forceinline__ void any_strip_product(int strip, const struct product_args &args, struct quant_stream &stream,
	struct quant_ring &ring, const struct quant_lane<ROWS> &lane, float (&acc)[quant_lane<ROWS>::TILES][4])
{
	if constexpr (STREAM != QUANT_MIXED) {
		strip_product<STREAM, STREAM, ROWS>(args, stream, ring, lane, acc);
	} else {
		switch (quant_segment_of(&args.layout, strip).form) {
		case QUANT_Q4_0:
			return strip_product<STREAM, QUANT_Q4_0, ROWS>(args, stream, ring, lane, acc);
		case QUANT_Q4_1:
			return strip_product<STREAM, QUANT_Q4_1, ROWS>(args, stream, ring, lane, acc);
		case QUANT_Q8_0:
			return strip_product<STREAM, QUANT_Q8_0, ROWS>(args, stream, ring, lane, acc);
		case QUANT_F8:
			return strip_product<STREAM, QUANT_F8, ROWS>(args, stream, ring, lane, acc);
		case QUANT_Q4_K:
			return strip_product<STREAM, QUANT_Q4_K, ROWS>(args, stream, ring, lane, acc);
		default:
			return strip_product<STREAM, QUANT_Q6_K, ROWS>(args, stream, ring, lane, acc);
		}
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

/* Eight columns, or zeros past the end. */
static __device__ __forceinline__ void load_valid(float (&v)[8], const float *from, int column, int end)
{
#pragma unroll
	for (int i = 0; i < 8; i++)
		v[i] = 0.0f;
	if (column < end)
		load_eight(v, from + column);
}

/* The warp's slice of the one row. Returns what products with it are to be multiplied by. `weight` are the norm's first eight of
 * this lane, which do not have to wait for another kernel. */
static __device__ __forceinline__ float prepare_slice(const struct product_args &args, const struct quant_panel<1> &panel,
	int begin, int end, const float (&weight)[8], float *squares)
{
	const int lane = threadIdx.x % CUDA_WARP, valid = min(end, args.cols);
	const float *x = args.x + (args.row_index ? args.row_index[0] * args.x_stride : 0);
	float first[8], v[8], w[8], largest = 0.0f;
	*squares = 0.0f;
	load_valid(first, x, begin + lane * 8, valid);
#pragma unroll
	for (int i = 0; i < 8; i++) {
		*squares = fmaf(first[i], first[i], *squares);
		first[i] *= weight[i];
		largest = fmaxf(largest, fabsf(first[i]));
	}
	for (int base = begin + 8 * CUDA_WARP; base < end; base += 8 * CUDA_WARP) {
		load_valid(v, x, base + lane * 8, valid);
		if (args.norm_weight)
			load_valid(w, args.norm_weight, base + lane * 8, valid);
#pragma unroll
		for (int i = 0; i < 8; i++) {
			*squares = fmaf(v[i], v[i], *squares);
			largest = fmaxf(largest, fabsf(args.norm_weight ? v[i] * w[i] : v[i]));
		}
	}
	const float2 scale = quant_panel_scale(warp_max(largest));
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
#pragma unroll
		for (int i = 0; i < 8; i++)
			first[i] *= scale.x;
		panel.put(0, column, column < end, first);
	}
	*squares = warp_sum(*squares);
	return scale.y;
}

/* y of row `row` of the strip(s) of an item and activation row `column`, from the sums of the warps. */
template <int ROWS>
static __device__ __forceinline__ void finish(
	const struct product_args &args, int item, const float *sums, int n_warps, int row, int column, float scale)
{
	constexpr int COLUMNS = ROWS == 1 ? 1 : ROWS;
	float values[2] = {0.0f, 0.0f};
	const struct quant_segment segment = quant_segment_of(&args.layout, item);
	const int line = (item - segment.strip_begin) * QUANT_STRIP_ROWS + row;
	if (line >= segment.rows)
		return;
#pragma unroll
	for (int half = 0; half < 2; half++) {
		if (half == 1 && args.epilogue != KN_SWIGLU)
			break;
#pragma unroll 4
		for (int warp = 0; warp < n_warps; warp++)
			values[half] += sums[((half * n_warps + warp) * COLUMNS + column) * SUMS_STRIDE + row];
		values[half] *= scale;
		const int strip = item + half * args.n_items;
		const struct quant_segment of = quant_segment_of(&args.layout, strip);
		if (of.form == QUANT_F8)
			values[half] *= of.row_scales[(strip - of.strip_begin) * QUANT_STRIP_ROWS + row];
	}
	const int64_t at = column * args.y_stride + segment.row_begin + line;
	float value = values[0];
	if (args.epilogue == KN_SWIGLU)
		value = value / (1.0f + __expf(-value)) * values[1];
	if (args.epilogue == KN_ADD)
		atomicAdd((float *)args.y + at, value); /* nobody else adds to it; it need not be waited for */
	else if (args.y_form == PACK_F32)
		((float *)args.y)[at] = value;
	else if (args.y_form == PACK_BF16)
		((__nv_bfloat16 *)args.y)[at] = __float2bfloat16_rn(value);
	else
		((__half *)args.y)[at] = __float2half_rn(value);
}

/* Sums of one strip to shared memory: [columns][SUMS_STRIDE]. */
template <int ROWS>
static __device__ __forceinline__ void store_sums(
	const struct quant_lane<ROWS> &lane, const float (&acc)[quant_lane<ROWS>::TILES][4], float scale, float *to)
{
	if constexpr (ROWS == 1) {
		if (lane.t == 0) {
			to[lane.g] = acc[0][0] * scale;
			to[lane.g + 8] = acc[0][2] * scale;
		}
	} else {
#pragma unroll
		for (int n = 0; n < lane.TILES; n++)
#pragma unroll
			for (int i = 0; i < 4; i++)
				to[(n * 8 + 2 * lane.t + i % 2) * SUMS_STRIDE + i / 2 * 8 + lane.g] = acc[n][i];
	}
}

/* Items whose sums are kept before the block's warps meet to add them up. */
static __host__ __device__ constexpr int batch_items(int rows, int n_halves)
{
	return rows == 1 ? 4 / n_halves : 1;
}

/* Block: up to WARPS_MAX warps. Shared: rings of the warps, then sums [2 turns][batch][2 halves][warps][columns][SUMS_STRIDE], then
 * for one row its panel. ROWS as in quant_lane. */
template <int FORM, int ROWS>
__global__ void __launch_bounds__(WARPS_MAX *CUDA_WARP, 1) quant_product_kernel(const struct product_args args)
{
	extern __shared__ __align__(128) uint8_t shared[];
	__shared__ float squares[WARPS_MAX];
	constexpr int COLUMNS = ROWS == 1 ? 1 : ROWS, TILES = quant_lane<ROWS>::TILES;
	const int n_warps = blockDim.x / CUDA_WARP, warp = threadIdx.x / CUDA_WARP;
	const int n_halves = args.epilogue == KN_SWIGLU ? 2 : 1;
	const int batch_most = batch_items(ROWS, n_halves);
	const int ring_bytes = ring_stages(FORM) * args.layout.stage_bytes;
	float *sums = (float *)(shared + n_warps * ring_bytes);
	const int item_sums = n_halves * n_warps * COLUMNS * SUMS_STRIDE;
	struct quant_ring ring = {
		shared + warp * ring_bytes, shared_address(shared + warp * ring_bytes), args.layout.stage_bytes, 0};
	struct quant_stream stream;
	stream_begin<FORM>(args, stream);
#pragma unroll
	for (int i = 0; i < ring_stages(FORM); i++)
		stream_next<FORM>(args, stream, ring.address + i * ring.stage_bytes);
	dependency_release();

	float slice_scale = 1.0f;
	const struct quant_panel<ROWS> panel(ROWS == 1 ? (void *)(sums + 2 * batch_most * item_sums) : args.panel, args.cols);
	const struct quant_lane<ROWS> lane(panel);
	if constexpr (ROWS == 1) {
		const int begin = stream.granule_begin * args.layout.granule_cols,
			  end = stream.granule_end * args.layout.granule_cols;
		float slice_squares, weight[8];
#pragma unroll
		for (int i = 0; i < 8; i++)
			weight[i] = 1.0f;
		if (args.norm_weight)
			load_valid(weight, args.norm_weight, begin + lane.lane * 8, min(end, args.cols));
		dependency_wait();
		slice_scale = prepare_slice(args, panel, begin, end, weight, &slice_squares);
		if (lane.lane == 0)
			squares[warp] = slice_squares;
		__syncwarp();
	} else {
		dependency_wait();
	}
	int turn = 0;
#pragma unroll 1
	for (int first = blockIdx.x; first < args.n_items; first += batch_most * gridDim.x, turn ^= 1) {
		float *batch = sums + turn * batch_most * item_sums;
		float *to = batch + warp * COLUMNS * SUMS_STRIDE;
		int n_batch = 0;
#pragma unroll 1
		for (int item = first; n_batch < batch_most && item < args.n_items; item += gridDim.x, n_batch++)
#pragma unroll 1
			for (int half = 0; half < n_halves; half++) {
				float acc[TILES][4] = {};
				any_strip_product<FORM, ROWS>(item + half * args.n_items, args, stream, ring, lane, acc);
				store_sums<ROWS>(lane, acc, slice_scale, to);
				to += n_warps * COLUMNS * SUMS_STRIDE;
			}
		__syncthreads(); /* the batch before the last has been read by everyone who is here */
		float scale = 1.0f;
		if (ROWS == 1 && args.norm_weight && threadIdx.x < n_batch * QUANT_STRIP_ROWS) {
			float total = 0.0f;
#pragma unroll 4
			for (int i = 0; i < n_warps; i++)
				total += squares[i];
			scale = rsqrtf(total / (float)args.cols + args.norm_eps);
		}
		const int n_columns = ROWS == 1 ? 1 : args.n_rows;
		for (int i = threadIdx.x; i < n_batch * QUANT_STRIP_ROWS * n_columns; i += blockDim.x) {
			const int column = i / QUANT_STRIP_ROWS % n_columns, at = i / QUANT_STRIP_ROWS / n_columns;
			finish<ROWS>(args, first + at * gridDim.x, batch + at * item_sums, n_warps, i % QUANT_STRIP_ROWS, column,
				ROWS == 1 ? scale : args.panel_scales[column]);
		}
	}
	copy_async_wait<0>();
}

/* --- launch ------------------------------------------------------------------------------------------------------- */

static size_t shared_bytes(const struct product_args *args, int form, int n_warps, int rows)
{
	const size_t halves = args->epilogue == KN_SWIGLU ? 2 : 1, columns = rows == 1 ? 1 : (size_t)rows;
	return (size_t)n_warps * (size_t)ring_stages(form) * (size_t)args->layout.stage_bytes +
		2 * (size_t)batch_items(rows, (int)halves) * halves * (size_t)n_warps * columns * SUMS_STRIDE * sizeof(float) +
		(rows == 1 ? quant_panel<1>::bytes(args->cols) : 0);
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

typedef void product_kernel(const struct product_args);

template <int FORM> static product_kernel *kernel_of_rows(int rows)
{
	return rows == 1    ? quant_product_kernel<FORM, 1>
		: rows == 8 ? quant_product_kernel<FORM, 8>
			    : quant_product_kernel<FORM, 16>;
}

static product_kernel *kernel_of(int form, int rows)
{
	static product_kernel *(*const of_form[])(int) = {
		kernel_of_rows<QUANT_Q4_0>,
		kernel_of_rows<QUANT_Q4_1>,
		kernel_of_rows<QUANT_Q8_0>,
		kernel_of_rows<QUANT_F8>,
		kernel_of_rows<QUANT_Q4_K>,
		kernel_of_rows<QUANT_Q6_K>,
		kernel_of_rows<QUANT_MIXED>,
	};
	return of_form[form](rows);
}

/* The form of all segments, or QUANT_MIXED. */
static int form_of(const struct quant_layout *layout)
{
	for (int i = 1; i < layout->n_segments; i++)
		if (layout->segments[i].form != layout->segments[0].form)
			return QUANT_MIXED;
	return layout->segments[0].form;
}

/* So many warps that a block's shared memory suffices; on Hopper that is all of them. */
static int fitting_warps(const struct product_args *args, int form, int n_warps, int rows, size_t most)
{
	while (n_warps > 1 && shared_bytes(args, form, n_warps, rows) > most)
		n_warps--;
	return n_warps;
}

enum status quant_product(struct kn_backend *backend, const struct kn_matmul *args, int first_row, int n_rows,
	enum pack_form reader_form, struct err *err)
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
	product.y_form = reader_form;
	product.y = (char *)args->y + first_row * args->y_stride * (reader_form == PACK_F32 ? 4 : 2);
	product.y_stride = args->y_stride;
	product.panel = backend->quant.panel;
	product.panel_scales = backend->quant.row_scales;
	product.n_rows = n_rows;
	product.cols = (int)w->cols;
	product.n_granules = ((int)w->cols + w->quant.granule_cols - 1) / w->quant.granule_cols;
	product.n_items = args->epilogue == KN_SWIGLU ? w->quant.n_strips / 2 : w->quant.n_strips;
	const int form = form_of(&w->quant), most_warps = choose_warps(product.n_granules);
	const size_t most_bytes = backend->quant.shared_bytes_max;
	const bool one = n_rows == 1 && first_row == 0 && !backend->deterministic &&
		shared_bytes(&product, form, most_warps, 1) <= most_bytes;
	const int rows = one ? 1 : n_rows <= 8 ? 8 : 16;
	/* Steps of any few rows have as many warps, so that a row's sums are added in one order. */
	const int n_warps = fitting_warps(&product, form, most_warps, one ? 1 : 16, most_bytes);
	const int per_sm = WARPS_MAX / n_warps, blocks = backend->n_sms * per_sm;
	cudaError_t error = one ? cudaSuccess : quant_prepare(backend, args, first_row, n_rows);
	if (error)
		return cuda_status(error, "input of a matrix product", err);
	dim3 grid(product.n_items < blocks ? product.n_items : blocks), block(n_warps * CUDA_WARP);
	/* So much shared memory that no processor takes a block more than its share while another goes without. */
	const size_t needed = shared_bytes(&product, form, n_warps, rows), share = most_bytes / (per_sm + 1) + 1;
	error = launch_dependent(backend->stream, grid, block, needed > share ? needed : share, kernel_of(form, rows), product);
	return cuda_status(error, "matrix product of quantised weights", err);
}

cudaError_t quant_product_init(struct kn_backend *backend)
{
	int most = 0;
	cudaError_t error = cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, backend->device);
	backend->quant.shared_bytes_max = (size_t)(most - STATIC_BYTES);
	for (int form = 0; form <= QUANT_MIXED && !error; form++)
		for (int rows = 1; rows <= 16 && !error; rows += rows == 1 ? 7 : 8)
			error = cudaFuncSetAttribute(
				kernel_of(form, rows), cudaFuncAttributeMaxDynamicSharedMemorySize, most - STATIC_BYTES);
	return error;
}
