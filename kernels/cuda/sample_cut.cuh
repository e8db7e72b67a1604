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
	double shares; /* that a weight of 1 counts when a share of all is cut; see shares_of_one */
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

/* So many that those of a whole vocabulary, none above that of the likeliest, sum up to at most 2^63: 2^46 for 128 K tokens. */
static __device__ __forceinline__ double shares_of_one(int vocab)
{
	return exp2((double)(63 - max(17, 32 - __clz(vocab - 1))));
}

/* What a token counts: 1, or its weight in whole shares. */
static __device__ __forceinline__ unsigned long long share_of(const struct row_cut &row, int id, bool by_mass)
{
	return by_mass ? __double2ull_rz((double)weight_of(row, id) * row.shares) : 1;
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

/* What the filters leave. */
static __device__ void apply_filters(
	const struct kn_sampling &sampling, const struct row_extent &extent, int vocab, struct row_cut &row, struct cut_shared &shared)
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
