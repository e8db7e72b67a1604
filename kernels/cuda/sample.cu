/* From logits to tokens, and the report that ends a step. The definition, and the reference, is engine/sampler.c: the same weights
 * bit for bit and the same noise; a logarithm or a quotient may differ in its last bit. The share of top_p is counted in whole
 * 2^-46ths here, so that its sums depend on no order.
 *
 * A row's largest logit is found by SAMPLE_SPLITS blocks; the one that ends last does the rest, for greedy rows nothing. */
#include "kernels/cuda/sample.cuh"

#define EXPONENT_MIN (-87.0f)

struct sample_args {
	struct kn_exchange exchange;
	const float *logits; /* [n_rows][vocab] */
	struct sample_scratch scratch;
	int vocab, n_rows;
};

/* What is known of the row after one pass. */
struct row_extent {
	float max, min; /* min of the finite ones */
	int argmax; /* lowest id of the largest logit; -1: none is above -infinity */
	int broken; /* 1: NaN, 2: infinity */
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

static __device__ __forceinline__ struct row_extent shuffled(const struct row_extent &a, int offset)
{
	struct row_extent out;
	out.max = __shfl_xor_sync(0xffffffffu, a.max, offset);
	out.min = __shfl_xor_sync(0xffffffffu, a.min, offset);
	out.argmax = __shfl_xor_sync(0xffffffffu, a.argmax, offset);
	out.broken = __shfl_xor_sync(0xffffffffu, a.broken, offset);
	return out;
}

/* Of the ids that are this split's; every thread gets the result. */
static __device__ struct row_extent scan_split(const float *logits, int begin, int end, struct row_extent *warps)
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
	for (int offset = 1; offset < CUDA_WARP; offset *= 2)
		mine = join(mine, shuffled(mine, offset));
	if (threadIdx.x % CUDA_WARP == 0)
		warps[threadIdx.x / CUDA_WARP] = mine;
	__syncthreads();
	mine = warps[0];
	for (int i = 1; i < SAMPLE_THREADS / CUDA_WARP; i++)
		mine = join(mine, warps[i]);
	return mine;
}

/* --- weights: as exp_group of the reference, each rounding written out -------------------------------------------------------- */

static __device__ __forceinline__ float exp_negative(float x)
{
	const float magic = 12582912.0f;
	const float shifted = __fadd_rn(__fmul_rn(x, 1.44269504088896341f), magic), whole = __fsub_rn(shifted, magic);
	const float r = __fadd_rn(__fsub_rn(x, __fmul_rn(whole, 0.693359375f)), __fmul_rn(whole, 2.12194440e-4f));
	float y = 1.9875691500e-4f;
	y = __fadd_rn(__fmul_rn(y, r), 1.3981999507e-3f);
	y = __fadd_rn(__fmul_rn(y, r), 8.3334519073e-3f);
	y = __fadd_rn(__fmul_rn(y, r), 4.1665795894e-2f);
	y = __fadd_rn(__fmul_rn(y, r), 1.6666665459e-1f);
	y = __fadd_rn(__fmul_rn(y, r), 5.0000001201e-1f);
	y = __fadd_rn(__fadd_rn(__fmul_rn(__fmul_rn(y, r), r), r), 1.0f);
	return __fmul_rn(y, __uint_as_float((__float_as_uint(shifted) + 127) << 23));
}

/* The row, its weights' scale, and the last token kept in the order of falling logits, equal ones by id. */
struct row_cut {
	const float *logits;
	float max, inverse, last_logit;
	int last_id;
};

static __device__ __forceinline__ bool is_kept(const struct row_cut &row, float logit, int id)
{
	return logit > row.last_logit || (logit == row.last_logit && id <= row.last_id);
}

static __device__ __forceinline__ float weight_of(const struct row_cut &row, int id)
{
	const float logit = row.logits[id], exponent = __fmul_rn(__fsub_rn(logit, row.max), row.inverse);
	return exponent > EXPONENT_MIN && is_kept(row, logit, id) ? exp_negative(exponent) : 0.0f;
}

/* The natural logarithm of the sum of all weights, for every thread. Added in an order that depends on the vocabulary alone. */
static __device__ double log_total(const struct row_cut &row, int vocab, double *warps)
{
	double sum = 0;
	for (int id = threadIdx.x; id < vocab; id += SAMPLE_THREADS)
		sum += (double)weight_of(row, id);
	for (int offset = 1; offset < CUDA_WARP; offset *= 2)
		sum += __shfl_xor_sync(0xffffffffu, sum, offset);
	if (threadIdx.x % CUDA_WARP == 0)
		warps[threadIdx.x / CUDA_WARP] = sum;
	__syncthreads();
	double total = 0;
	for (int i = 0; i < SAMPLE_THREADS / CUDA_WARP; i++)
		total += warps[i];
	return log(total);
}

/* --- cuts --------------------------------------------------------------------------------------------------------------------- */

/* Ascending in the order of tokens: logit down, id up. */
static __device__ __forceinline__ uint64_t key_of(float logit, int id)
{
	const uint32_t bits = __float_as_uint(__fadd_rn(logit, 0.0f)); /* -0 becomes 0 */
	const uint32_t ascending = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
	return (uint64_t)~ascending << 32 | (uint32_t)id;
}

static __device__ __forceinline__ float logit_of(uint64_t key)
{
	const uint32_t ascending = ~(uint32_t)(key >> 32);
	return __uint_as_float(ascending & 0x80000000u ? ascending & 0x7fffffffu : ~ascending);
}

struct cut_shared {
	unsigned long long histogram[SAMPLE_BUCKETS], keys[SAMPLE_LIST], shares[SAMPLE_LIST];
	unsigned long long before, found, lowest, highest;
	int bucket, count;
};

/* What a token counts: 1, or its weight in 2^-46ths. */
static __device__ __forceinline__ unsigned long long share_of(const struct row_cut &row, int id, bool by_mass)
{
	return by_mass ? __double2ull_rz((double)weight_of(row, id) * 0x1p46) : 1;
}

/* The first bucket at which what came before and the bucket reach target; the last one when none does. *before grows by what lies
 * in front of it. */
static __device__ void find_bucket(struct cut_shared &shared, unsigned long long target)
{
	constexpr int EACH = SAMPLE_BUCKETS / CUDA_WARP;
	__syncthreads();
	if (threadIdx.x < CUDA_WARP) {
		const int lane = threadIdx.x;
		unsigned long long mine = 0;
		for (int i = 0; i < EACH; i++)
			mine += shared.histogram[lane * EACH + i];
		unsigned long long up_to = mine;
		for (int offset = 1; offset < CUDA_WARP; offset *= 2) {
			const unsigned long long other = __shfl_up_sync(0xffffffffu, up_to, offset);
			up_to += lane >= offset ? other : 0;
		}
		const unsigned reaching = __ballot_sync(0xffffffffu, shared.before + up_to >= target);
		const int chosen = reaching ? __ffs(reaching) - 1 : CUDA_WARP - 1;
		__syncwarp();
		if (lane == chosen) {
			unsigned long long before = shared.before + up_to - mine;
			int bucket = lane * EACH;
			while (bucket < (lane + 1) * EACH - 1 && before + shared.histogram[bucket] < target)
				before += shared.histogram[bucket++];
			shared.before = before;
			shared.bucket = bucket;
		}
	}
	__syncthreads();
}

static __device__ void clear(struct cut_shared &shared)
{
	__syncthreads();
	for (int i = threadIdx.x; i < SAMPLE_BUCKETS; i += SAMPLE_THREADS)
		shared.histogram[i] = 0;
	if (threadIdx.x == 0) {
		shared.count = 0;
		shared.found = 0;
		shared.lowest = ~0ull;
		shared.highest = 0;
	}
	__syncthreads();
}

/* Buckets of equal logit width, as the reference has them. */
struct width {
	float max, scale, last;
};

static __device__ __forceinline__ int bucket_of(const struct width &width, float logit)
{
	const float distance = __fmul_rn(__fsub_rn(width.max, logit), width.scale);
	return (int)(distance < width.last ? distance : width.last);
}

/* Lowest and highest key of the kept tokens in the bucket that was found. */
static __device__ void find_range(const struct row_cut &row, const struct width &width, int vocab, struct cut_shared &shared)
{
	const int bucket = shared.bucket;
	clear(shared);
	for (int id = threadIdx.x; id < vocab; id += SAMPLE_THREADS) {
		const float logit = row.logits[id];
		if (bucket_of(width, logit) != bucket || !is_kept(row, logit, id))
			continue;
		const unsigned long long key = key_of(logit, id);
		atomicMin(&shared.lowest, key);
		atomicMax(&shared.highest, key);
		atomicAdd(&shared.count, 1);
	}
	__syncthreads();
}

/* Narrows the range of keys until what lies in it fits the list: seldom needed, for many (almost) equal logits. */
static __device__ void narrow_range(
	const struct row_cut &row, int vocab, bool by_mass, unsigned long long target, struct cut_shared &shared)
{
	while (shared.count > SAMPLE_LIST) {
		const unsigned long long lowest = shared.lowest, highest = shared.highest;
		int shift = 0;
		while ((highest - lowest) >> shift >= SAMPLE_BUCKETS)
			shift++;
		clear(shared);
		for (int id = threadIdx.x; id < vocab; id += SAMPLE_THREADS) {
			const unsigned long long key = key_of(row.logits[id], id);
			if (key >= lowest && key <= highest)
				atomicAdd(&shared.histogram[(key - lowest) >> shift], share_of(row, id, by_mass));
		}
		find_bucket(shared, target);
		const unsigned long long low = lowest + ((unsigned long long)shared.bucket << shift);
		const unsigned long long high = min(highest, low + ((1ull << shift) - 1));
		clear(shared);
		for (int id = threadIdx.x; id < vocab; id += SAMPLE_THREADS) {
			const unsigned long long key = key_of(row.logits[id], id);
			if (key >= low && key <= high)
				atomicAdd(&shared.count, 1);
		}
		if (threadIdx.x == 0) {
			shared.lowest = low;
			shared.highest = high;
		}
		__syncthreads();
	}
}

/* The token of the range at which target is reached; its last one when none does. */
static __device__ uint64_t find_in_range(
	const struct row_cut &row, int vocab, bool by_mass, unsigned long long target, struct cut_shared &shared)
{
	const unsigned long long lowest = shared.lowest, highest = shared.highest, before = shared.before;
	__syncthreads();
	if (threadIdx.x == 0) {
		shared.count = 0;
		shared.found = ~0ull;
		shared.highest = 0;
	}
	__syncthreads();
	for (int id = threadIdx.x; id < vocab; id += SAMPLE_THREADS) {
		const unsigned long long key = key_of(row.logits[id], id);
		if (key < lowest || key > highest)
			continue;
		const int at = atomicAdd(&shared.count, 1);
		shared.keys[at] = key;
		shared.shares[at] = share_of(row, id, by_mass);
		atomicMax(&shared.highest, key);
	}
	__syncthreads();
	for (int i = threadIdx.x; i < shared.count; i += SAMPLE_THREADS) {
		unsigned long long sum = before;
		for (int k = 0; k < shared.count; k++)
			sum += shared.keys[k] < shared.keys[i] ? shared.shares[k] : 0;
		if (sum < target && sum + shared.shares[i] >= target)
			shared.found = shared.keys[i]; /* true of one token alone */
	}
	__syncthreads();
	return shared.found != ~0ull ? shared.found : shared.highest;
}

/* Keeps of the kept tokens the first k, or the shortest head that holds the share p of their weight. */
static __device__ void cut_row(struct row_cut &row, const struct row_extent &extent, int vocab, bool by_mass, int k, double p,
	struct cut_shared &shared)
{
	const int n_buckets = min(vocab, SAMPLE_BUCKETS);
	struct width width = {extent.max, (float)(n_buckets - 1) / (extent.max - extent.min), (float)(n_buckets - 1)};
	if (!isfinite(width.scale))
		width.scale = 0.0f;
	clear(shared);
	for (int id = threadIdx.x; id < vocab; id += SAMPLE_THREADS) {
		const float logit = row.logits[id];
		if (is_kept(row, logit, id))
			atomicAdd(&shared.histogram[bucket_of(width, logit)], share_of(row, id, by_mass));
	}
	__syncthreads();
	unsigned long long target = (unsigned long long)k;
	if (by_mass) {
		unsigned long long total = 0;
		for (int i = 0; i < SAMPLE_BUCKETS; i++)
			total += shared.histogram[i];
		target = max(__double2ull_ru(p * (double)total), 1ull);
		target = min(target, total);
	}
	if (threadIdx.x == 0)
		shared.before = 0;
	find_bucket(shared, target);
	find_range(row, width, vocab, shared);
	narrow_range(row, vocab, by_mass, target, shared);
	const uint64_t last = find_in_range(row, vocab, by_mass, target, shared);
	row.last_logit = logit_of(last);
	row.last_id = (int)(uint32_t)last;
}

/* --- noise: random_bits of base/random.c, then noise of the reference --------------------------------------------------------- */

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

/* --- drawing ------------------------------------------------------------------------------------------------------------------- */

struct arrival {
	double time;
	int id;
};

static __device__ __forceinline__ struct arrival earlier(const struct arrival &a, const struct arrival &b)
{
	return b.time < a.time || (b.time == a.time && b.id < a.id) ? b : a;
}

/* The race of the reference: every thread runs a part of the field against the likeliest token. */
static __device__ int race(const struct row_cut &row, int vocab, int argmax, uint64_t key, struct arrival *warps)
{
	struct arrival best = {-log1p(-noise(key, argmax)) / (double)weight_of(row, argmax), argmax};
	for (int id = threadIdx.x; id < vocab; id += SAMPLE_THREADS) {
		const double weight = (double)weight_of(row, id), uniform = noise(key, id);
		if (uniform >= __dmul_rn(best.time, weight))
			continue;
		const double time = -log1p(-uniform) / weight;
		if (time < best.time)
			best = {time, id};
	}
	for (int offset = 1; offset < CUDA_WARP; offset *= 2) {
		const struct arrival other = {
			__shfl_xor_sync(0xffffffffu, best.time, offset), __shfl_xor_sync(0xffffffffu, best.id, offset)};
		best = earlier(best, other);
	}
	if (threadIdx.x % CUDA_WARP == 0)
		warps[threadIdx.x / CUDA_WARP] = best;
	__syncthreads();
	for (int i = 0; i < SAMPLE_THREADS / CUDA_WARP; i++)
		best = earlier(best, warps[i]);
	return best.id;
}

union sample_shared {
	struct cut_shared cut;
	struct arrival arrivals[SAMPLE_THREADS / CUDA_WARP];
	double sums[SAMPLE_THREADS / CUDA_WARP];
};

static __device__ int pick_random(const struct kn_sampling &sampling, const struct row_extent &extent, const float *logits, int vocab,
	union sample_shared &shared)
{
	struct row_cut row = {logits, extent.max, (float)(1.0 / sampling.temperature), -INFINITY, INT32_MAX};
	if (sampling.top_k == 1) {
		row.last_logit = extent.max;
		row.last_id = extent.argmax;
	} else if (sampling.top_k > 0 && sampling.top_k < vocab) {
		cut_row(row, extent, vocab, false, sampling.top_k, 0, shared.cut);
	}
	if (sampling.top_p < 1)
		cut_row(row, extent, vocab, true, 0, sampling.top_p, shared.cut);
	if (sampling.min_p > 0) {
		const float lowest = (float)((double)extent.max + sampling.temperature * log(sampling.min_p));
		if (fminf(lowest, extent.max) > row.last_logit) {
			row.last_logit = fminf(lowest, extent.max);
			row.last_id = INT32_MAX;
		}
	}
	__syncthreads(); /* shared memory changes hands */
	const int id =
		race(row, vocab, extent.argmax, key_of_position(sampling.seed, (uint64_t)sampling.position), shared.arrivals);
	__syncthreads();
	return id;
}

/* --- the end of a step --------------------------------------------------------------------------------------------------------- */

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

/* Grid: SAMPLE_SPLITS blocks for each of n_rows rows (one row when there is none). Block: the SAMPLE_SPLITS-th part of a row's
 * logits. */
__global__ void __launch_bounds__(SAMPLE_THREADS) sample_kernel(const struct sample_args a)
{
	__shared__ struct row_extent warps[SAMPLE_THREADS / CUDA_WARP];
	__shared__ union sample_shared shared;
	__shared__ bool is_last;
	const int split = blockIdx.x, line = blockIdx.y;
	dependency_wait();
	if (line >= *a.exchange.step.n_logits) {
		if (split == 0 && threadIdx.x == 0)
			end_row(a);
		return;
	}
	const float *logits = a.logits + (int64_t)line * a.vocab;
	struct row_extent extent = scan_split(
		logits, (int)((int64_t)a.vocab * split / SAMPLE_SPLITS), (int)((int64_t)a.vocab * (split + 1) / SAMPLE_SPLITS), warps);
	struct sample_part *parts = a.scratch.parts + line * SAMPLE_SPLITS;
	if (threadIdx.x == 0) {
		parts[split] = {extent.max, extent.min, extent.argmax, extent.broken};
		__threadfence();
		uint32_t *ticket = a.scratch.tickets + line;
		is_last = atomicAdd(ticket, 1) == SAMPLE_SPLITS - 1;
		if (is_last)
			*ticket = 0;
	}
	__syncthreads();
	if (!is_last)
		return;
	__threadfence();
	for (int i = 0; i < SAMPLE_SPLITS; i++) {
		const volatile struct sample_part *part = &parts[i];
		extent = join(extent, {part->max, part->min, part->argmax, part->broken});
	}
	const struct kn_sampling &sampling = a.exchange.step.sampling[line];
	struct kn_sampled out = {extent.argmax, 0.0f};
	if (extent.broken || extent.argmax < 0) {
		out.id = extent.broken & 1 ? KN_SAMPLED_NAN : extent.broken ? KN_SAMPLED_INFINITY : KN_SAMPLED_NOTHING;
	} else {
		if (sampling.temperature >= KN_TEMPERATURE_MIN)
			out.id = pick_random(sampling, extent, logits, a.vocab, shared);
		if (sampling.wants_logprob) {
			const struct row_cut whole = {logits, extent.max, 1.0f, -INFINITY, INT32_MAX};
			const double total = log_total(whole, a.vocab, shared.sums);
			out.logprob = __fsub_rn(__fsub_rn(logits[out.id], extent.max), (float)total);
		}
	}
	if (threadIdx.x != 0)
		return;
	a.exchange.sampled[line] = out;
	a.exchange.outcomes[(a.exchange.turn->turn + 1) % 2][line] = out;
	end_row(a);
}

/* --- launch -------------------------------------------------------------------------------------------------------------------- */

uint64_t kn_cuda_sample_scratch_bytes(int logits_max, int64_t vocab)
{
	(void)vocab;
	return (uint64_t)logits_max * (SAMPLE_SPLITS * sizeof(struct sample_part) + sizeof(uint32_t));
}

enum status kn_cuda_sample(struct kn_backend *backend, const struct kn_exchange *exchange, const float *logits, int64_t vocab,
	int n_logits, struct err *err)
{
	const int n_rows = n_logits > 0 ? n_logits : 1;
	struct sample_args args = {};
	args.exchange = *exchange;
	args.logits = logits;
	args.scratch.parts = (struct sample_part *)exchange->scratch;
	args.scratch.tickets = (uint32_t *)(args.scratch.parts + (size_t)exchange->logits_max * SAMPLE_SPLITS);
	args.vocab = (int)vocab;
	args.n_rows = n_rows;
	return cuda_status(launch_dependent(backend->stream, dim3(n_logits > 0 ? SAMPLE_SPLITS : 1, n_rows), dim3(SAMPLE_THREADS), 0,
				   sample_kernel, args),
		"sampling", err);
}
