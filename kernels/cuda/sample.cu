/* From logits to tokens, and the report that ends a step. The definition, and the reference, is engine/sampler.c: the same weights
 * bit for bit and the same noise; a logarithm or a quotient may differ in its last bit. The share of top_p is counted in whole
 * numbers here (shares_of_one), so that its sums depend on no order.
 *
 * Two kernels, each with 1 to SAMPLE_SPLITS blocks a row, so many that all rows' blocks run at once. The first finds a row's
 * largest logit; its last block to end applies the filters. The second draws and reports; greedy rows have their token by then.
 * Sums are kept for each of SAMPLE_SPLITS pieces of a row, whichever block has them, so that they depend on no number of blocks. */
#include "kernels/cuda/sample.cuh"
#include "kernels/cuda/sample_cut.cuh"

struct sample_args {
	struct kn_exchange exchange;
	const float *logits; /* [n_rows][vocab] */
	struct sample_scratch scratch;
	int vocab, n_rows;
};

static __device__ __forceinline__ struct row_extent join(const struct row_extent &a, const struct row_extent &b)
{
	struct row_extent out;
	const bool second = b.argmax >= 0 && (a.argmax < 0 || b.max > a.max || (b.max == a.max && b.argmax < a.argmax));
	out.max = second ? b.max : a.max;
	out.argmax = second ? b.argmax : a.argmax;
	out.min = fminf(a.min, b.min);
	out.broken = a.broken | b.broken;
	return out;
}

/* Of a warp's threads, for each of them. */
static __device__ __forceinline__ struct row_extent join_warp(struct row_extent mine)
{
	for (int offset = 1; offset < CUDA_WARP; offset *= 2) {
		struct row_extent other;
		other.max = __shfl_xor_sync(0xffffffffu, mine.max, offset);
		other.min = __shfl_xor_sync(0xffffffffu, mine.min, offset);
		other.argmax = __shfl_xor_sync(0xffffffffu, mine.argmax, offset);
		other.broken = __shfl_xor_sync(0xffffffffu, mine.broken, offset);
		mine = join(mine, other);
	}
	return mine;
}

/* Of a piece of a row; every thread gets the result. */
static __device__ struct row_extent scan_piece(const float *logits, int begin, int end, struct row_extent *warps)
{
	struct row_extent mine = {-INFINITY, INFINITY, -1, 0};
#pragma unroll 8
	for (int id = begin + (int)threadIdx.x; id < end; id += SAMPLE_THREADS) {
		const float logit = logits[id];
		if (logit > mine.max) {
			mine.max = logit;
			mine.argmax = id;
		}
		mine.min = fminf(mine.min, logit == -INFINITY ? INFINITY : logit);
		mine.broken |= isnan(logit) ? 1 : logit == INFINITY ? 2 : 0;
	}
	mine = join_warp(mine);
	if (threadIdx.x % CUDA_WARP == 0)
		warps[threadIdx.x / CUDA_WARP] = mine;
	__syncthreads();
	return join_warp(warps[threadIdx.x % CUDA_WARP]);
}

/* --- sums --------------------------------------------------------------------------------------------------------- */

static __device__ __forceinline__ double sum_warp(double sum)
{
	for (int offset = 1; offset < CUDA_WARP; offset *= 2)
		sum += __shfl_xor_sync(0xffffffffu, sum, offset);
	return sum;
}

/* The sum of a piece's weights, for every thread. */
static __device__ double sum_piece(const struct row_cut &row, int begin, int end, double *warps)
{
	double sum = 0;
	for (int id = begin + (int)threadIdx.x; id < end; id += STRIDE) {
		float ahead[AHEAD];
		load_ahead(row.logits, id, end, ahead);
#pragma unroll
		for (int i = 0; i < AHEAD; i++)
			sum += (double)weight_of(row, ahead[i], id + i * SAMPLE_THREADS);
	}
	sum = sum_warp(sum);
	__syncthreads(); /* the piece before has been added up */
	if (threadIdx.x % CUDA_WARP == 0)
		warps[threadIdx.x / CUDA_WARP] = sum;
	__syncthreads();
	return sum_warp(warps[threadIdx.x % CUDA_WARP]);
}

/* --- noise: random_bits of base/random.c, then noise of the reference --------------------------------------------- */

static __device__ uint64_t key_of_position(uint64_t seed, uint64_t position)
{
	uint32_t c0 = (uint32_t)position, c1 = (uint32_t)(position >> 32), c2 = KN_SAMPLE_STREAM, c3 = 0;
	uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
	for (int round = 0; round < 10; round++) {
		const uint64_t product0 = (uint64_t)0xD2511F53u * c0, product1 = (uint64_t)0xCD9E8D57u * c2;
		const uint32_t n0 = (uint32_t)(product1 >> 32) ^ c1 ^ k0, n2 = (uint32_t)(product0 >> 32) ^ c3 ^ k1;
		c1 = (uint32_t)product1;
		c3 = (uint32_t)product0;
		c0 = n0;
		c2 = n2;
		k0 += 0x9E3779B9u;
		k1 += 0xBB67AE85u;
	}
	return (uint64_t)c0 << 32 | c1;
}

static __device__ __forceinline__ double noise(uint64_t key, int id)
{
	uint64_t bits = key + ((uint64_t)id + 1) * 0x9e3779b97f4a7c15u;
	bits = (bits ^ bits >> 30) * 0xbf58476d1ce4e5b9u;
	bits = (bits ^ bits >> 27) * 0x94d049bb133111ebu;
	bits = (bits ^ bits >> 31) >> 12;
	return __dmul_rn(__dadd_rn((double)bits, 0.5), 0x1p-52);
}

/* --- drawing ------------------------------------------------------------------------------------------------------ */

static __device__ __forceinline__ struct sample_arrival earlier(const struct sample_arrival &a, const struct sample_arrival &b)
{
	return b.time < a.time || (b.time == a.time && b.id < a.id) ? b : a;
}

static __device__ __forceinline__ struct sample_arrival earliest_of_warp(struct sample_arrival best)
{
	for (int offset = 1; offset < CUDA_WARP; offset *= 2) {
		const struct sample_arrival other = {
			__shfl_xor_sync(0xffffffffu, best.time, offset), __shfl_xor_sync(0xffffffffu, best.id, offset)};
		best = earlier(best, other);
	}
	return best;
}

/* Seldom called, so it stands once. */
static __device__ __noinline__ double time_of(double uniform, double weight)
{
	return -log1p(-uniform) / weight;
}

/* A piece's part of the reference's race, every token against the likeliest; for every thread. */
static __device__ struct sample_arrival race_piece(
	const struct row_cut &row, int begin, int end, int argmax, uint64_t key, struct sample_arrival *warps)
{
	struct sample_arrival best = {time_of(noise(key, argmax), (double)weight_of(row, row.logits[argmax], argmax)), argmax};
	for (int first = begin + (int)threadIdx.x; first < end; first += STRIDE) {
		float ahead[AHEAD];
		load_ahead(row.logits, first, end, ahead);
#pragma unroll
		for (int i = 0; i < AHEAD; i++) {
			const int id = first + i * SAMPLE_THREADS;
			const double weight = (double)weight_of(row, ahead[i], id), uniform = noise(key, id);
			if (uniform >= __dmul_rn(best.time, weight))
				continue;
			const double time = time_of(uniform, weight);
			if (time < best.time)
				best = {time, id};
		}
	}
	best = earliest_of_warp(best);
	if (threadIdx.x % CUDA_WARP == 0)
		warps[threadIdx.x / CUDA_WARP] = best;
	__syncthreads();
	return earliest_of_warp(warps[threadIdx.x % CUDA_WARP]);
}

/* --- the end of a step -------------------------------------------------------------------------------------------- */

/* By one thread of every row, after its outcome was written; the last of all reports. */
static __device__ void end_row(const struct sample_args &a)
{
	struct kn_turn *turn = a.exchange.turn;
	__threadfence_system();
	if (atomicAdd(&turn->rows_done, 1) != (unsigned)a.n_rows - 1)
		return;
	const uint32_t mine = turn->turn + 1;
	volatile struct kn_report *report = &a.exchange.reports[mine % 2];
	unsigned long long now;
	asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
	turn->rows_done = 0;
	turn->turn = mine;
	report->begin_ns = turn->begin_ns;
	report->end_ns = now;
	__threadfence_system();
	report->turn = mine;
}

/* True for the threads of the row's last block to come here; what the others wrote before is seen then. */
static __device__ bool is_last_of_row(uint32_t *ticket)
{
	__shared__ bool is_last;
	__syncthreads();
	if (threadIdx.x == 0) {
		__threadfence();
		is_last = atomicAdd(ticket, 1) == gridDim.x - 1;
		if (is_last)
			*ticket = 0;
	}
	__syncthreads();
	if (is_last)
		__threadfence();
	return is_last;
}

static __device__ __forceinline__ int split_begin(const struct sample_args &a, int split)
{
	return (int)((int64_t)a.vocab * split / SAMPLE_SPLITS);
}

/* Grid: 1 to SAMPLE_SPLITS blocks, a power of two, for each of n_rows rows. Block: a piece of a row's logits, or several. */
static __global__ void __launch_bounds__(SAMPLE_THREADS) scan_kernel(const struct sample_args a)
{
	__shared__ struct row_extent warps[SAMPLE_WARPS];
	__shared__ struct cut_shared shared;
	const int block = blockIdx.x, line = blockIdx.y, each = SAMPLE_SPLITS / gridDim.x;
	dependency_release();
	dependency_wait();
	if (line >= *a.exchange.step.n_logits)
		return;
	const float *logits = a.logits + (int64_t)line * a.vocab;
	struct row_extent extent = scan_piece(logits, split_begin(a, block * each), split_begin(a, (block + 1) * each), warps);
	struct sample_part *parts = a.scratch.parts + line * SAMPLE_SPLITS;
	if (threadIdx.x == 0)
		parts[block] = {extent.max, extent.min, extent.argmax, extent.broken};
	if (!is_last_of_row(a.scratch.tickets + line))
		return;
	for (int i = 0; i < gridDim.x; i++) {
		const volatile struct sample_part *part = &parts[i];
		extent = join(extent, {part->max, part->min, part->argmax, part->broken});
	}
	const struct kn_sampling &sampling = a.exchange.step.sampling[line];
	struct row_cut row = {logits, extent.max, 1.0f, -INFINITY, INT32_MAX};
	int id = extent.argmax;
	if (extent.broken || extent.argmax < 0) {
		id = extent.broken & 1 ? KN_SAMPLED_NAN : extent.broken ? KN_SAMPLED_INFINITY : KN_SAMPLED_NOTHING;
	} else if (sampling.temperature >= KN_TEMPERATURE_MIN) {
		row.inverse = (float)(1.0 / sampling.temperature);
		apply_filters(sampling, extent, a.vocab, row, shared);
	}
	if (threadIdx.x == 0)
		a.scratch.rows[line] = {row.max, row.inverse, row.last_logit, row.last_id, id};
}

static __device__ void write_outcome(const struct sample_args &a, int line, const struct kn_sampled &out)
{
	a.exchange.sampled[line] = out;
	a.exchange.outcomes[(a.exchange.turn->turn + 1) % 2][line] = out;
	end_row(a);
}

/* Grid and blocks as above; one row when there is none. Greedy rows and those that are broken are done by their first block. */
static __global__ void __launch_bounds__(SAMPLE_THREADS) draw_kernel(const struct sample_args a)
{
	__shared__ struct sample_arrival warps[SAMPLE_WARPS];
	__shared__ double sums[SAMPLE_WARPS];
	const int block = blockIdx.x, line = blockIdx.y, each = SAMPLE_SPLITS / gridDim.x;
	dependency_wait();
	if (line >= *a.exchange.step.n_logits) {
		if (block == 0 && threadIdx.x == 0)
			end_row(a);
		return;
	}
	const struct kn_sampling &sampling = a.exchange.step.sampling[line];
	const struct sample_row found = a.scratch.rows[line];
	const bool is_random = found.id >= 0 && sampling.temperature >= KN_TEMPERATURE_MIN;
	const bool has_logprob = found.id >= 0 && sampling.wants_logprob;
	if (!is_random && !has_logprob) {
		if (block == 0 && threadIdx.x == 0)
			write_outcome(a, line, {found.id, 0.0f});
		return;
	}
	const float *logits = a.logits + (int64_t)line * a.vocab;
	const int first = block * each;
	struct sample_draw *draws = a.scratch.draws + line * SAMPLE_SPLITS;
	struct sample_draw mine = {{0, found.id}, 0};
	if (is_random) {
		const struct row_cut row = {logits, found.max, found.inverse, found.last_logit, found.last_id};
		const uint64_t key = key_of_position(sampling.seed, (uint64_t)sampling.position);
		mine.best = race_piece(row, split_begin(a, first), split_begin(a, first + each), found.id, key, warps);
	}
	for (int split = first; split < first + each; split++) {
		if (has_logprob)
			mine.sum = sum_piece({logits, found.max, 1.0f, -INFINITY, INT32_MAX}, split_begin(a, split),
				split_begin(a, split + 1), sums);
		if (threadIdx.x == 0)
			draws[split] = mine;
	}
	if (!is_last_of_row(a.scratch.tickets + line) || threadIdx.x != 0)
		return;
	struct sample_arrival best = mine.best;
	double total = 0;
	for (int i = 0; i < SAMPLE_SPLITS; i++) {
		const volatile struct sample_draw *draw = &draws[i];
		best = earlier(best, {draw->best.time, draw->best.id});
		total += draw->sum;
	}
	const float logprob = has_logprob ? __fsub_rn(__fsub_rn(logits[best.id], found.max), (float)log(total)) : 0.0f;
	write_outcome(a, line, {best.id, logprob});
}

/* --- launch ------------------------------------------------------------------------------------------------------- */

uint64_t kn_cuda_sample_scratch_bytes(int logits_max, int64_t vocab)
{
	(void)vocab;
	return (uint64_t)logits_max *
		(SAMPLE_SPLITS * (sizeof(struct sample_draw) + sizeof(struct sample_part)) + sizeof(struct sample_row) +
			sizeof(uint32_t));
}

enum status kn_cuda_sample(struct kn_backend *backend, const struct kn_exchange *exchange, const float *logits, int64_t vocab,
	int n_logits, struct err *err)
{
	const int n_rows = n_logits > 0 ? n_logits : 1;
	struct sample_args args = {};
	args.exchange = *exchange;
	args.logits = logits;
	const size_t lines = (size_t)exchange->logits_max;
	args.scratch.draws = (struct sample_draw *)exchange->scratch; /* first, since they want the largest alignment */
	args.scratch.parts = (struct sample_part *)(args.scratch.draws + lines * SAMPLE_SPLITS);
	args.scratch.rows = (struct sample_row *)(args.scratch.parts + lines * SAMPLE_SPLITS);
	args.scratch.tickets = (uint32_t *)(args.scratch.rows + lines);
	args.vocab = (int)vocab;
	args.n_rows = n_rows;
	static_assert((SAMPLE_SPLITS & (SAMPLE_SPLITS - 1)) == 0, "halves divide it");
	int blocks = n_logits > 0 ? SAMPLE_SPLITS : 1;
	while (blocks > 1 && blocks * n_rows > backend->n_sms)
		blocks /= 2;
	const dim3 grid(blocks, n_rows), block(SAMPLE_THREADS);
	cudaError_t error = cudaSuccess;
	if (n_logits > 0)
		error = launch_dependent(backend->stream, grid, block, 0, scan_kernel, args);
	if (!error)
		error = launch_dependent(backend->stream, grid, block, 0, draw_kernel, args);
	return cuda_status(error, "sampling", err);
}
