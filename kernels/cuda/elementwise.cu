/* Operations that touch each element once: embedding look-up, residual add, norm with conversion, activation epilogue. */
#include "kernels/cuda/elementwise.cuh"

#define THREADS 256

template <typename T> static __device__ __forceinline__ float as_float(T value)
{
	return (float)value;
}

/* Block: one row. */
template <typename T>
static __global__ void __launch_bounds__(THREADS)
	embed_kernel(const T *table, const int32_t *ids, int64_t cols, float *out, int64_t out_stride)
{
	dependency_release();
	dependency_wait();
	const T *line = table + (int64_t)ids[blockIdx.x] * cols;
	float *to = out + blockIdx.x * out_stride;
	for (int64_t i = threadIdx.x; i < cols; i += THREADS)
		to[i] = as_float(line[i]);
}

/* First to compute in a step. It starts when kn_cuda_take has ended, not before: later kernels look at slots and positions before
 * they wait for the one in front of them, and none of them starts before this one has. */
enum status kn_cuda_embed(struct kn_backend *backend, const struct kn_matrix *table, const int32_t *ids, int n_rows, float *out,
	int64_t out_stride, struct err *err)
{
	dim3 grid(n_rows), block(THREADS);
	cudaError_t error = cudaErrorInvalidValue;
	switch (table->form) {
	case PACK_BF16:
		error = launch_after(backend->stream, grid, block, 0, embed_kernel<__nv_bfloat16>, table->data, ids, table->cols,
			out, out_stride);
		break;
	case PACK_F16:
		error = launch_after(
			backend->stream, grid, block, 0, embed_kernel<__half>, table->data, ids, table->cols, out, out_stride);
		break;
	case PACK_F32:
		error = launch_after(
			backend->stream, grid, block, 0, embed_kernel<float>, table->data, ids, table->cols, out, out_stride);
		break;
	case PACK_QUANT:
		return kn_cuda_quant_embed(backend, table, ids, n_rows, out, out_stride, err);
	}
	return cuda_status(error, "embed", err);
}

/* Warp: one head of one row. Lane: every 32nd element of it, so neighbours load neighbours. */
static __global__ void __launch_bounds__(THREADS) adjust_heads_kernel(const struct kn_heads a, int n_rows)
{
	dependency_release();
	dependency_wait();
	const int n_heads = a.n_heads + 2 * a.n_kv_heads, lane = threadIdx.x % CUDA_WARP;
	const int64_t i = (int64_t)blockIdx.x * (THREADS / CUDA_WARP) + threadIdx.x / CUDA_WARP;
	if (i >= (int64_t)n_rows * n_heads)
		return;
	const int head = (int)(i % n_heads);
	float *values = a.qkv + i * a.head_dim;
	const float *bias = a.bias ? a.bias + (int64_t)head * a.head_dim : nullptr;
	float squares = 0.0f;
	for (int d = lane; d < a.head_dim; d += CUDA_WARP) {
		const float value = bias ? values[d] + bias[d] : values[d];
		squares = fmaf(value, value, squares);
		values[d] = value;
	}
	if (!a.q_norm || head >= a.n_heads + a.n_kv_heads)
		return;
	const float *norm = head < a.n_heads ? a.q_norm : a.k_norm;
	const float scale = 1.0f / sqrtf(warp_sum(squares) / (float)a.head_dim + a.norm_eps);
	for (int d = lane; d < a.head_dim; d += CUDA_WARP)
		values[d] = values[d] * scale * norm[d];
}

enum status kn_cuda_adjust_heads(struct kn_backend *backend, const struct kn_heads *args, int n_rows, struct err *err)
{
	const int64_t warps = (int64_t)n_rows * (args->n_heads + 2 * args->n_kv_heads), a_block = THREADS / CUDA_WARP;
	return cuda_status(launch_dependent(backend->stream, dim3((unsigned)((warps + a_block - 1) / a_block)), dim3(THREADS), 0,
				   adjust_heads_kernel, *args, n_rows),
		"adjust_heads", err);
}

static __global__ void __launch_bounds__(THREADS) add_kernel(float *x, const float *y, int64_t n)
{
	dependency_release();
	dependency_wait();
	for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < n; i += (int64_t)gridDim.x * THREADS)
		x[i] += y[i];
}

enum status kn_cuda_add(struct kn_backend *backend, float *x, const float *y, int64_t n, struct err *err)
{
	int64_t blocks = (n + THREADS - 1) / THREADS, most = (int64_t)backend->n_sms * 8;
	return cuda_status(launch_dependent(backend->stream, dim3((unsigned)(blocks < most ? blocks : most)), dim3(THREADS), 0,
				   add_kernel, x, y, n),
		"add", err);
}

/* Four neighbours in one store. */
static __device__ __forceinline__ void store_four(float *to, float4 v)
{
	*(float4 *)to = v;
}

static __device__ __forceinline__ void store_four(__half *to, float4 v)
{
	((__half2 *)to)[0] = __floats2half2_rn(v.x, v.y);
	((__half2 *)to)[1] = __floats2half2_rn(v.z, v.w);
}

static __device__ __forceinline__ void store_four(__nv_bfloat16 *to, float4 v)
{
	((__nv_bfloat162 *)to)[0] = __floats2bfloat162_rn(v.x, v.y);
	((__nv_bfloat162 *)to)[1] = __floats2bfloat162_rn(v.z, v.w);
}

static __device__ __forceinline__ float square_sum(float4 v)
{
	return fmaf(v.x, v.x, fmaf(v.y, v.y, fmaf(v.z, v.z, v.w * v.w)));
}

static __device__ __forceinline__ float4 scaled(float4 v, float scale, float4 w)
{
	return make_float4(v.x * scale * w.x, v.y * scale * w.y, v.z * scale * w.z, v.w * scale * w.w);
}

#define HELD 4 /* values of four that a thread keeps between the two passes of a norm: all of a row of 4096 */

/* Block: row blockIdx.x, every gridDim.y-th stretch of it; one block a row when it is normalised. Gathers by row_index, normalises
 * when norm_weight is given, converts to T. Columns are a multiple of 4. */
template <typename T>
static __global__ void __launch_bounds__(THREADS) prepare_kernel(
	const float *x, int64_t x_stride, const int32_t *row_index, const float *norm_weight, float eps, int cols, T *out)
{
	__shared__ float partial[THREADS / CUDA_WARP];
	const int begin = (blockIdx.y * THREADS + threadIdx.x) * 4, step = gridDim.y * THREADS * 4;
	float4 weight[HELD], held[HELD];
#pragma unroll
	for (int k = 0; k < HELD; k++)
		if (norm_weight && begin + k * step < cols)
			weight[k] = *(const float4 *)(norm_weight + begin + k * step);
	dependency_release();
	dependency_wait();
	const int64_t row = row_index ? row_index[blockIdx.x] : blockIdx.x;
	const float *from = x + row * x_stride;
	T *to = out + blockIdx.x * (int64_t)cols;
	if (!norm_weight) {
		for (int i = begin; i < cols; i += step)
			store_four(to + i, *(const float4 *)(from + i));
		return;
	}
	float squares = 0.0f;
#pragma unroll
	for (int k = 0; k < HELD; k++) {
		const int i = begin + k * step;
		held[k] = i < cols ? *(const float4 *)(from + i) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
		squares += square_sum(held[k]);
	}
	for (int i = begin + HELD * step; i < cols; i += step)
		squares += square_sum(*(const float4 *)(from + i));
	squares = warp_sum(squares);
	if (threadIdx.x % CUDA_WARP == 0)
		partial[threadIdx.x / CUDA_WARP] = squares;
	__syncthreads();
	float total = 0.0f;
#pragma unroll
	for (int i = 0; i < THREADS / CUDA_WARP; i++)
		total += partial[i];
	const float scale = 1.0f / sqrtf(total / (float)cols + eps);
#pragma unroll
	for (int k = 0; k < HELD; k++)
		if (begin + k * step < cols)
			store_four(to + begin + k * step, scaled(held[k], scale, weight[k]));
	for (int i = begin + HELD * step; i < cols; i += step)
		store_four(to + i, scaled(*(const float4 *)(from + i), scale, *(const float4 *)(norm_weight + i)));
}

template <typename T> static cudaError_t prepare(struct kn_backend *backend, const struct kn_matmul *args, int n_rows)
{
	const int cols = (int)args->w->cols;
	dim3 grid(n_rows, args->norm_weight ? 1 : (cols + THREADS * 4 - 1) / (THREADS * 4));
	return launch_dependent(backend->stream, grid, dim3(THREADS), 0, prepare_kernel<T>, args->x, args->x_stride,
		args->row_index, args->norm_weight, args->norm_eps, cols, (T *)backend->prepared);
}

cudaError_t elementwise_prepare(struct kn_backend *backend, const struct kn_matmul *args, enum pack_form form, int n_rows)
{
	switch (form) {
	case PACK_BF16:
		return prepare<__nv_bfloat16>(backend, args, n_rows);
	case PACK_F16:
		return prepare<__half>(backend, args, n_rows);
	default:
		return prepare<float>(backend, args, n_rows);
	}
}

cudaError_t elementwise_input(
	struct kn_backend *backend, const struct kn_matmul *args, int n_rows, const void **x, int64_t *x_stride)
{
	if (args->x_for_w && is_prepared_for(args->w, n_rows)) {
		ASSERT(!args->norm_weight && !args->row_index);
		*x = args->x;
		*x_stride = args->x_stride;
		return cudaSuccess;
	}
	*x = backend->prepared;
	*x_stride = args->w->cols;
	return elementwise_prepare(backend, args, args->w->form, n_rows);
}

/* COUNT neighbours in loads and stores as wide as they are aligned. */
template <typename T, int COUNT> struct alignas(COUNT * sizeof(T) < 16 ? COUNT * sizeof(T) : 16) neighbours {
	T value[COUNT];
};

/* A row of product is the gates, then as many ups. Thread: COUNT neighbours of a row. */
template <typename P, typename T, int COUNT>
static __global__ void __launch_bounds__(THREADS) swiglu_kernel(const P *product, T *y, int64_t y_stride, int64_t cols)
{
	dependency_release();
	dependency_wait();
	const int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * COUNT;
	if (i >= cols)
		return;
	const P *line = product + (int64_t)blockIdx.y * 2 * cols + i;
	const struct neighbours<P, COUNT> gate = *(const struct neighbours<P, COUNT> *)line,
					  up = *(const struct neighbours<P, COUNT> *)(line + cols);
	struct neighbours<T, COUNT> out;
#pragma unroll
	for (int k = 0; k < COUNT; k++)
		out.value[k] = (T)swiglu((float)gate.value[k], (float)up.value[k]);
	*(struct neighbours<T, COUNT> *)(y + (int64_t)blockIdx.y * y_stride + i) = out;
}

template <typename P, typename T>
static cudaError_t launch_swiglu(struct kn_backend *backend, T *y, int64_t y_stride, int64_t cols, int n_rows)
{
	const int count = cols % 8 == 0 && y_stride % 8 == 0 && (uintptr_t)y % 16 == 0 ? 8 : 1;
	dim3 grid((unsigned)((cols + THREADS * count - 1) / (THREADS * count)), n_rows);
	return launch_dependent(backend->stream, grid, dim3(THREADS), 0,
		count == 8 ? swiglu_kernel<P, T, 8> : swiglu_kernel<P, T, 1>, (const P *)backend->product, y, y_stride, cols);
}

template <typename T> static cudaError_t swiglu_of(struct kn_backend *backend, const struct kn_matmul *args, int n_rows)
{
	const int64_t cols = args->w->rows / 2;
	if (args->w->form == PACK_BF16)
		return launch_swiglu<__nv_bfloat16, T>(backend, (T *)args->y, args->y_stride, cols, n_rows);
	return launch_swiglu<float, T>(backend, (T *)args->y, args->y_stride, cols, n_rows);
}

cudaError_t elementwise_swiglu(struct kn_backend *backend, const struct kn_matmul *args, int n_rows)
{
	if (!is_prepared_for(args->reader, n_rows))
		return swiglu_of<float>(backend, args, n_rows);
	if (args->reader->form == PACK_BF16)
		return swiglu_of<__nv_bfloat16>(backend, args, n_rows);
	return swiglu_of<__half>(backend, args, n_rows);
}
