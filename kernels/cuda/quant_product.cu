/* Matrix product of weights in stored form with 2 to 16 rows: streams the weights once and decodes them in registers.
 *
 * A block owns strips of 16 rows in turn; its warps split the columns. A warp fetches its part of strip after strip through a ring
 * of stages in shared memory, so loads never stop at a strip's end, and the first ones are under way before the wait for the kernel
 * in front. A processor takes no more blocks of a kernel than its share, or others would stand idle. Sums of the warps meet in
 * shared memory in warp order. Activations come prepared (quant_panel.cuh). One row has a kernel of its own, in quant_one.cu. */
#include "kernels/cuda/quant_decode.cuh"
#include "kernels/cuda/quant_output.cuh"

#define WARPS_MAX 16
#define STATIC_BYTES 256 /* of shared memory: what the kernels declare themselves */

/* One strip's product with the warp's columns. STREAM is the form of the whole matrix. */
template <int STREAM, int FORM, int ROWS>
static __device__ __forceinline__ void strip_product(const struct product_args &args, struct quant_stream &stream,
	struct quant_ring &ring, const struct quant_lane<ROWS> &lane, float (&acc)[quant_lane<ROWS>::TILES][4])
{
	constexpr int STAGE_UNITS = quant_stage_units(FORM), UNIT_BYTES = quant_unit_bytes(FORM);
	const int end = stream.col_end / quant_unit_cols(FORM);
#pragma unroll 1
	for (int unit = stream.col_begin / quant_unit_cols(FORM); unit < end; unit += STAGE_UNITS) {
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

/* Sums of one strip to shared memory: [columns][QUANT_SUMS_STRIDE]. */
template <int ROWS>
static __device__ __forceinline__ void store_sums(
	const struct quant_lane<ROWS> &lane, const float (&acc)[quant_lane<ROWS>::TILES][4], float *to)
{
#pragma unroll
	for (int n = 0; n < lane.TILES; n++)
#pragma unroll
		for (int i = 0; i < 4; i++)
			to[(n * 8 + 2 * lane.t + i % 2) * QUANT_SUMS_STRIDE + i / 2 * 8 + lane.g] = acc[n][i];
}

/* Block: up to WARPS_MAX warps. Shared: rings of the warps, then sums [2 turns][2 halves][warps][columns][QUANT_SUMS_STRIDE]. ROWS
 * as in quant_lane. */
template <int FORM, int ROWS>
static __global__ void __launch_bounds__(WARPS_MAX *CUDA_WARP, 1) quant_product_kernel(const struct product_args args)
{
	extern __shared__ __align__(128) uint8_t shared[];
	constexpr int TILES = quant_lane<ROWS>::TILES;
	const int n_warps = blockDim.x / CUDA_WARP, warp = threadIdx.x / CUDA_WARP;
	const int n_halves = args.epilogue == KN_SWIGLU ? 2 : 1;
	const int ring_bytes = ring_stages(FORM) * args.layout.stage_bytes;
	float *sums = (float *)(shared + n_warps * ring_bytes);
	const int half_sums = n_warps * ROWS * QUANT_SUMS_STRIDE;
	struct quant_ring ring = {
		shared + warp * ring_bytes, shared_address(shared + warp * ring_bytes), args.layout.stage_bytes, 0};
	struct quant_stream stream;
	stream_begin<FORM>(args, stream);
#pragma unroll
	for (int i = 0; i < ring_stages(FORM); i++)
		stream_next<FORM>(args, stream, ring.address + i * ring.stage_bytes);
	dependency_release();
	const struct quant_panel<ROWS> panel(args.panel, args.cols);
	const struct quant_lane<ROWS> lane(panel);
	dependency_wait();
	int turn = 0;
#pragma unroll 1
	for (int item = blockIdx.x; item < args.n_items; item += gridDim.x, turn ^= 1) {
		float *item_sums = sums + turn * n_halves * half_sums;
#pragma unroll 1
		for (int half = 0; half < n_halves; half++) {
			float acc[TILES][4] = {};
			any_strip_product<FORM, ROWS>(item + half * args.n_items, args, stream, ring, lane, acc);
			store_sums<ROWS>(lane, acc, item_sums + half * half_sums + warp * ROWS * QUANT_SUMS_STRIDE);
		}
		__syncthreads(); /* the item before the last has been read by everyone who is here */
		for (int i = threadIdx.x; i < QUANT_STRIP_ROWS * args.n_rows; i += blockDim.x) {
			const int column = i / QUANT_STRIP_ROWS, row = i % QUANT_STRIP_ROWS;
			struct quant_place place;
			place.look_up(args, item, row);
			finish<ROWS>(args, place, item_sums, n_warps, row, column, args.panel_scales[column]);
		}
	}
	copy_async_wait<0>();
}

/* --- launch ------------------------------------------------------------------------------------------------------- */

static size_t shared_bytes(const struct product_args *args, int form, int n_warps, int rows)
{
	const size_t halves = args->epilogue == KN_SWIGLU ? 2 : 1;
	return (size_t)n_warps * (size_t)ring_stages(form) * (size_t)args->layout.stage_bytes +
		2 * halves * (size_t)n_warps * (size_t)rows * QUANT_SUMS_STRIDE * sizeof(float);
}

int quant_choose_warps(int n_cuts, int most)
{
	int best = 1;
	double best_share = 0;
	for (int warps = 1; warps <= most; warps++) {
		/* Part of the warps' time that is work, less what fewer warps hide less. */
		const int turns = (n_cuts + warps - 1) / warps;
		const double share = (double)n_cuts / (warps * turns) * (warps < 8 ? warps / 8.0 : 1.0);
		if (share >= best_share - 0.02) {
			best_share = share;
			best = warps;
		}
	}
	return best;
}

int quant_form_of(const struct quant_layout *layout)
{
	for (int i = 1; i < layout->n_segments; i++)
		if (layout->segments[i].form != layout->segments[0].form)
			return QUANT_MIXED;
	return layout->segments[0].form;
}

typedef void product_kernel(const struct product_args);

template <int FORM> static product_kernel *kernel_of_rows(int rows)
{
	return rows == 8 ? quant_product_kernel<FORM, 8> : quant_product_kernel<FORM, 16>;
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

/* So many warps that a block's shared memory suffices; on Hopper that is all of them. */
static int fitting_warps(const struct product_args *args, int form, int n_warps, int rows, size_t most)
{
	while (n_warps > 1 && shared_bytes(args, form, n_warps, rows) > most)
		n_warps--;
	return n_warps;
}

/* Deals the columns out in pieces of at least so many. */
static void cut(struct product_args *product, int least_cols)
{
	const int granule = product->layout.granule_cols;
	product->cut_cols = granule > least_cols ? granule : least_cols;
	product->n_cuts = (product->cols + product->cut_cols - 1) / product->cut_cols;
	product->padded_cols = (product->cols + granule - 1) / granule * granule;
}

/* Steps of any few rows have as many warps, so that a row's sums are added in one order. */
static cudaError_t product_of_few(struct kn_backend *backend, struct product_args *product)
{
	const int form = quant_form_of(&product->layout), rows = product->n_rows <= 8 ? 8 : 16;
	const size_t most_bytes = backend->quant.shared_bytes_max;
	const int n_warps = fitting_warps(product, form, quant_choose_warps(product->n_cuts, WARPS_MAX), 16, most_bytes);
	const int per_sm = WARPS_MAX / n_warps, blocks = backend->n_sms * per_sm;
	dim3 grid(product->n_items < blocks ? product->n_items : blocks), block(n_warps * CUDA_WARP);
	/* So much shared memory that no processor takes a block more than its share while another goes without. */
	const size_t needed = shared_bytes(product, form, n_warps, rows), share = most_bytes / (size_t)(per_sm + 1) + 1;
	deal_out(product, n_warps, (int)grid.x);
	return launch_dependent(backend->stream, grid, block, needed > share ? needed : share, kernel_of(form, rows), *product);
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
	product.n_items = args->epilogue == KN_SWIGLU ? w->quant.n_strips / 2 : w->quant.n_strips;
	cut(&product, QUANT_ONE_CUT_COLS);
	if (n_rows == 1 && first_row == 0 && !backend->deterministic && quant_one_fits(backend, &product))
		return cuda_status(quant_one(backend, &product), "matrix product of quantised weights with a row", err);
	cut(&product, 0);
	cudaError_t error = quant_prepare(backend, args, first_row, n_rows);
	if (!error)
		error = product_of_few(backend, &product);
	return cuda_status(error, "matrix product of quantised weights", err);
}

cudaError_t quant_product_init(struct kn_backend *backend)
{
	int most = 0;
	cudaError_t error = cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, backend->device);
	backend->quant.shared_bytes_max = (size_t)(most - STATIC_BYTES);
	for (int form = 0; form <= QUANT_MIXED && !error; form++)
		for (int rows = 8; rows <= 16 && !error; rows += 8)
			error = cudaFuncSetAttribute(
				kernel_of(form, rows), cudaFuncAttributeMaxDynamicSharedMemorySize, most - STATIC_BYTES);
	return error ? error : quant_one_init(backend);
}
