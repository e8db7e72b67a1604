/* Weights of a row's tokens, and which of them top_k, top_p and min_p keep. Part of sample.cu; called by whole blocks of
 * SAMPLE_THREADS. */
#ifndef KERNELS_CUDA_SAMPLE_CUT_CUH
#define KERNELS_CUDA_SAMPLE_CUT_CUH

#include "kernels/cuda/sample.cuh"

#define EXPONENT_MIN (-87.0f) /* as in engine/sampler.c */

/* What is known of the row after one pass. */
struct row_extent {
	float max, min; /* min of the finite ones */
	int argmax; /* lowest id of the largest logit; -1: none is above -infinity */
	int broken; /* 1: NaN, 2: infinity */
};

/* --- weights: as exp_group of the reference, each rounding written out -------------------------------------------- */

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
	double shares; /* that a weight of 1 counts when a share of all is cut; see shares_of_one */
};

static __device__ __forceinline__ bool is_kept(const struct row_cut &row, float logit, int id)
{
	return logit > row.last_logit || (logit == row.last_logit && id <= row.last_id);
}

static __device__ __forceinline__ float weight_of(const struct row_cut &row, float logit, int id)
{
	const float exponent = __fmul_rn(__fsub_rn(logit, row.max), row.inverse);
	return exponent > EXPONENT_MIN && is_kept(row, logit, id) ? exp_negative(exponent) : 0.0f;
}

/* --- passes over a row -------------------------------------------------------------------------------------------- */

/* A thread asks for its next logits at once: a load takes longer than what is done with it. */
#define AHEAD 8
#define STRIDE (AHEAD * SAMPLE_THREADS)

/* Logits of the ids id, id + SAMPLE_THREADS and so on below end; a NaN, which no comparison keeps, from there on. */
static __device__ __forceinline__ void load_ahead(const float *logits, int id, int end, float ahead[AHEAD])
{
#pragma unroll
	for (int i = 0; i < AHEAD; i++, id += SAMPLE_THREADS)
		ahead[i] = id < end ? logits[id] : NAN;
}

/* --- cuts --------------------------------------------------------------------------------------------------------- */

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

#define BUCKETS_EACH (SAMPLE_BUCKETS / SAMPLE_THREADS)
static_assert(SAMPLE_WARPS == CUDA_WARP && SAMPLE_BUCKETS % SAMPLE_THREADS == 0, "sums over warps and over buckets");

struct cut_shared {
	unsigned long long histogram[SAMPLE_BUCKETS], keys[SAMPLE_LIST], shares[SAMPLE_LIST];
	unsigned long long warps[SAMPLE_WARPS]; /* what the buckets of each warp hold */
	unsigned long long before, target, found, lowest, highest;
	int bucket, count;
};

/* So many that those of a whole vocabulary, none above that of the likeliest, sum up to at most 2^63: 2^46 for 128 K tokens. */
static __device__ __forceinline__ double shares_of_one(int vocab)
{
	return exp2((double)(63 - max(17, 32 - __clz(vocab - 1))));
}

/* What a token counts: 1, or its weight in whole shares. */
static __device__ __forceinline__ unsigned long long share_of(const struct row_cut &row, float logit, int id, bool by_mass)
{
	return by_mass ? __double2ull_rz((double)weight_of(row, logit, id) * row.shares) : 1;
}

/* For each thread of a warp the sum of what it and those in front of it have. */
static __device__ __forceinline__ unsigned long long sum_up_to(unsigned long long mine)
{
	const int lane = threadIdx.x % CUDA_WARP;
	for (int offset = 1; offset < CUDA_WARP; offset *= 2) {
		const unsigned long long other = __shfl_up_sync(0xffffffffu, mine, offset);
		mine += lane >= offset ? other : 0;
	}
	return mine;
}

/* Sums over the histogram: *in_front of the thread's first bucket, *mine of its own; the return value is all of it. */
static __device__ unsigned long long sum_buckets(struct cut_shared &shared, unsigned long long *in_front, unsigned long long *mine)
{
	const int lane = threadIdx.x % CUDA_WARP, warp = threadIdx.x / CUDA_WARP;
	__syncthreads();
	*mine = 0;
	for (int i = 0; i < BUCKETS_EACH; i++)
		*mine += shared.histogram[threadIdx.x * BUCKETS_EACH + i];
	const unsigned long long in_warp = sum_up_to(*mine);
	if (lane == CUDA_WARP - 1)
		shared.warps[warp] = in_warp;
	__syncthreads();
	const unsigned long long up_to = sum_up_to(shared.warps[lane]);
	const unsigned long long of_warps = __shfl_sync(0xffffffffu, up_to, max(warp - 1, 0));
	*in_front = in_warp - *mine + (warp > 0 ? of_warps : 0);
	return __shfl_sync(0xffffffffu, up_to, CUDA_WARP - 1);
}

/* The bucket at which shared.before and the buckets up to it reach shared.target, which all of them do; before grows by what lies
 * in front of it. */
static __device__ void find_bucket(struct cut_shared &shared, unsigned long long in_front, unsigned long long mine)
{
	unsigned long long before = shared.before + in_front;
	const unsigned long long target = shared.target;
	__syncthreads();
	if (before < target && before + mine >= target) { /* true of one thread alone */
		int bucket = (int)threadIdx.x * BUCKETS_EACH;
		while (before + shared.histogram[bucket] < target)
			before += shared.histogram[bucket++];
		shared.before = before;
		shared.bucket = bucket;
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
		shared.found = ~0ull;
		shared.lowest = ~0ull;
		shared.highest = 0;
	}
	__syncthreads();
}

/* A token that does not fit the list is counted all the same. */
static __device__ __forceinline__ void list_token(
	const struct row_cut &row, float logit, int id, bool by_mass, struct cut_shared &shared)
{
	const unsigned long long key = key_of(logit, id);
	const int at = atomicAdd(&shared.count, 1);
	atomicMin(&shared.lowest, key);
	atomicMax(&shared.highest, key);
	if (at >= SAMPLE_LIST)
		return;
	shared.keys[at] = key;
	shared.shares[at] = share_of(row, logit, id, by_mass);
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

/* Lists the kept tokens of the bucket that was found, as many as the list takes, counts all, and finds their lowest and highest
 * key. */
static __device__ void list_bucket(
	const struct row_cut &row, const struct width &width, int vocab, bool by_mass, struct cut_shared &shared)
{
	const int bucket = shared.bucket;
	clear(shared);
	for (int begin = threadIdx.x; begin < vocab; begin += STRIDE) {
		float ahead[AHEAD];
		load_ahead(row.logits, begin, vocab, ahead);
#pragma unroll
		for (int i = 0; i < AHEAD; i++) {
			const int id = begin + i * SAMPLE_THREADS;
			if (is_kept(row, ahead[i], id) && bucket_of(width, ahead[i]) == bucket)
				list_token(row, ahead[i], id, by_mass, shared);
		}
	}
	__syncthreads();
}

/* Lists the tokens of a range of keys, narrowed until they fit: seldom needed, for many (almost) equal logits. */
static __device__ void list_narrowed(const struct row_cut &row, int vocab, bool by_mass, struct cut_shared &shared)
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
				atomicAdd(&shared.histogram[(key - lowest) >> shift], share_of(row, row.logits[id], id, by_mass));
		}
		unsigned long long in_front, mine;
		sum_buckets(shared, &in_front, &mine);
		find_bucket(shared, in_front, mine);
		const unsigned long long low = lowest + ((unsigned long long)shared.bucket << shift);
		const unsigned long long high = min(highest, low + ((1ull << shift) - 1));
		clear(shared);
		for (int id = threadIdx.x; id < vocab; id += SAMPLE_THREADS) {
			const unsigned long long key = key_of(row.logits[id], id);
			if (key >= low && key <= high)
				list_token(row, row.logits[id], id, by_mass, shared);
		}
		__syncthreads();
	}
}

/* The listed token at which the target is reached; the last one when none does. */
static __device__ uint64_t find_in_list(struct cut_shared &shared)
{
	const unsigned long long before = shared.before, target = shared.target;
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
static __device__ __noinline__ void cut_row(
	struct row_cut &row, const struct row_extent &extent, int vocab, bool by_mass, int k, double p, struct cut_shared &shared)
{
	const int n_buckets = min(vocab, SAMPLE_BUCKETS);
	struct width width = {extent.max, (float)(n_buckets - 1) / (extent.max - extent.min), (float)(n_buckets - 1)};
	if (!isfinite(width.scale))
		width.scale = 0.0f;
	clear(shared);
	for (int begin = threadIdx.x; begin < vocab; begin += STRIDE) {
		float ahead[AHEAD];
		load_ahead(row.logits, begin, vocab, ahead);
#pragma unroll
		for (int i = 0; i < AHEAD; i++) {
			const int id = begin + i * SAMPLE_THREADS;
			const unsigned long long share = is_kept(row, ahead[i], id) ? share_of(row, ahead[i], id, by_mass) : 0;
			if (share)
				atomicAdd(&shared.histogram[bucket_of(width, ahead[i])], share);
		}
	}
	unsigned long long in_front, mine;
	const unsigned long long total = sum_buckets(shared, &in_front, &mine);
	if (threadIdx.x == 0) {
		shared.before = 0;
		shared.target = by_mass ? min(max(__double2ull_ru(p * (double)total), 1ull), total) : (unsigned long long)k;
	}
	__syncthreads();
	find_bucket(shared, in_front, mine);
	list_bucket(row, width, vocab, by_mass, shared);
	list_narrowed(row, vocab, by_mass, shared);
	const uint64_t last = find_in_list(shared);
	row.last_logit = logit_of(last);
	row.last_id = (int)(uint32_t)last;
}

/* What the filters leave. */
static __device__ void apply_filters(const struct kn_sampling &sampling, const struct row_extent &extent, int vocab,
	struct row_cut &row, struct cut_shared &shared)
{
	row.shares = shares_of_one(vocab);
	if (sampling.top_k == 1) {
		row.last_logit = extent.max;
		row.last_id = extent.argmax;
	} else if (sampling.top_k > 0 && sampling.top_k < vocab) {
		cut_row(row, extent, vocab, false, sampling.top_k, 0, shared);
	}
	if (sampling.top_p < 1)
		cut_row(row, extent, vocab, true, 0, sampling.top_p, shared);
	if (sampling.min_p > 0) {
		const float lowest = (float)((double)extent.max + sampling.temperature * log(sampling.min_p));
		if (fminf(lowest, extent.max) > row.last_logit) {
			row.last_logit = fminf(lowest, extent.max);
			row.last_id = INT32_MAX;
		}
	}
}

#endif
