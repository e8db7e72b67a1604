/* Sampling. Filters never move logits: each one lowers a cut, the last token kept in the order (logit down, id up). A cut is
 * found by counting (or weighing) tokens in buckets of equal logit width, and by sorting only the bucket where it falls. */
#include "engine/sampler.h"

#include <math.h>
#include <string.h>

#include "base/hash.h"
#include "base/mem.h"
#include "base/random.h"

#define BUCKETS_MAX 2048 /* guess: 16 KiB of counts stay in the first-level cache */
#define GROUP 64 /* ids per loop that becomes vector code */

struct entry {
	float logit;
	int32_t id;
};

struct sampler {
	int32_t vocab, n_groups, n_buckets;
	float *weights; /* [n_groups * GROUP] exp((logit - max) / T), not normalised */
	int32_t *buckets; /* [n_groups * GROUP] */
	struct entry *sorted; /* [vocab] the bucket that is being sorted */
	int32_t counts[BUCKETS_MAX];
	double masses[BUCKETS_MAX];
};

/* Extent of a row, and the cut in force. */
struct row {
	const float *logits;
	float max, min; /* min of the finite ones */
	int32_t argmax; /* lowest id of the largest logit */
	struct entry last; /* last token kept; id INT32_MAX with logit -infinity: all are */
};

struct sampler *sampler_create(int32_t vocab)
{
	ASSERT(vocab > 0);
	struct sampler *sampler = mem_calloc(1, sizeof *sampler);
	sampler->vocab = vocab;
	sampler->n_groups = (vocab + GROUP - 1) / GROUP;
	sampler->n_buckets = vocab < BUCKETS_MAX ? vocab : BUCKETS_MAX;
	sampler->weights = mem_calloc((size_t)sampler->n_groups * GROUP, sizeof *sampler->weights);
	sampler->buckets = mem_calloc((size_t)sampler->n_groups * GROUP, sizeof *sampler->buckets);
	sampler->sorted = mem_calloc((size_t)vocab, sizeof *sampler->sorted);
	return sampler;
}

void sampler_destroy(struct sampler *sampler)
{
	if (!sampler)
		return;
	mem_free(sampler->sorted);
	mem_free(sampler->buckets);
	mem_free(sampler->weights);
	mem_free(sampler);
}

/* --- Exponentials ---------------------------------------------------------------------------------------------------- */

#define EXPONENT_MIN (-87.0f) /* exp of it is just above the smallest normal number */

/* exp(x) for EXPONENT_MIN <= x <= 0, to about one unit in the last place. Source: range reduction and polynomial of Cephes'
 * expf (Moshier). */
static inline float exp_negative(float x)
{
	const float magic = 12582912.0f; /* 1.5 * 2^23: adding it rounds to a whole number, found in the low bits */
	float shifted = x * 1.44269504088896341f + magic;
	float whole = shifted - magic;
	float r = x - whole * 0.693359375f + whole * 2.12194440e-4f;
	float y = 1.9875691500e-4f;
	y = y * r + 1.3981999507e-3f;
	y = y * r + 8.3334519073e-3f;
	y = y * r + 4.1665795894e-2f;
	y = y * r + 1.6666665459e-1f;
	y = y * r + 5.0000001201e-1f;
	y = y * r * r + r + 1.0f;
	uint32_t bits;
	float power;
	memcpy(&bits, &shifted, sizeof bits);
	bits = (bits + 127) << 23;
	memcpy(&power, &bits, sizeof power);
	return y * power;
}

/* out[i] = exp((logits[i] - max) * inverse) of one group, 0 below EXPONENT_MIN. Loops of a constant count, without branches
 * and aliasing, become vector code. */
static void exp_group(const float *restrict logits, float max, float inverse, float *restrict out)
{
	float exponents[GROUP];
	for (int32_t i = 0; i < GROUP; i++)
		exponents[i] = (logits[i] - max) * inverse;
	for (int32_t i = 0; i < GROUP; i++)
		out[i] = exponents[i] > EXPONENT_MIN ? exponents[i] : EXPONENT_MIN;
	for (int32_t i = 0; i < GROUP; i++)
		out[i] = exp_negative(out[i]);
	for (int32_t i = 0; i < GROUP; i++)
		out[i] = exponents[i] > EXPONENT_MIN ? out[i] : 0;
}

/* --- One pass over the row ------------------------------------------------------------------------------------------- */

static enum status scan_row(const struct sampler *sampler, struct row *row, struct err *err)
{
	const float *logits = row->logits;
	float max = -INFINITY;
	int32_t argmax = -1;
	for (int32_t id = 0; id < sampler->vocab; id++) {
		if (logits[id] <= max)
			continue;
		/* Above the maximum, or NaN. The one -infinity that could come here first is not above it. */
		if (isnan(logits[id]) || logits[id] == INFINITY)
			return err_set(err, STATUS_INTERNAL, "the model gave %s as logit of token %d",
				isnan(logits[id]) ? "NaN" : "infinity", id);
		max = logits[id];
		argmax = id;
	}
	if (argmax < 0)
		return err_set(err, STATUS_INTERNAL, "the model gave -infinity as logit of every token");
	row->max = max;
	row->argmax = argmax;
	row->last = (struct entry){-INFINITY, INT32_MAX};
	return STATUS_OK;
}

/* The smallest finite logit, in lanes that the compiler can keep in vectors. */
static void find_minimum(const struct sampler *sampler, struct row *row)
{
	enum { LANES = 16 };
	float lanes[LANES];
	int32_t id = 0;
	for (int k = 0; k < LANES; k++)
		lanes[k] = row->max;
	for (; id + LANES <= sampler->vocab; id += LANES)
		for (int k = 0; k < LANES; k++) {
			float logit = row->logits[id + k] == -INFINITY ? row->max : row->logits[id + k];
			lanes[k] = logit < lanes[k] ? logit : lanes[k];
		}
	row->min = row->max;
	for (int k = 0; k < LANES; k++)
		row->min = lanes[k] < row->min ? lanes[k] : row->min;
	for (; id < sampler->vocab; id++)
		if (row->logits[id] < row->min && row->logits[id] != -INFINITY)
			row->min = row->logits[id];
}

static bool is_kept(const struct row *row, int32_t id)
{
	float logit = row->logits[id];
	return logit > row->last.logit || (logit == row->last.logit && id <= row->last.id);
}

/* --- Cuts ------------------------------------------------------------------------------------------------------------ */

static bool comes_before(struct entry a, struct entry b)
{
	return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

static void sift_down(struct entry *heap, int32_t count, int32_t i)
{
	for (;;) {
		int32_t last = 2 * i + 1;
		if (last >= count)
			return;
		if (last + 1 < count && comes_before(heap[last], heap[last + 1]))
			last++;
		if (!comes_before(heap[i], heap[last]))
			return;
		struct entry moved = heap[i];
		heap[i] = heap[last];
		heap[last] = moved;
		i = last;
	}
}

/* Heapsort, since the C library's qsort may allocate. */
static void sort_entries(struct entry *entries, int32_t count)
{
	for (int32_t i = count / 2 - 1; i >= 0; i--)
		sift_down(entries, count, i);
	for (int32_t end = count - 1; end > 0; end--) {
		struct entry moved = entries[0];
		entries[0] = entries[end];
		entries[end] = moved;
		sift_down(entries, end, 0);
	}
}

/* out[i]: bucket of logits[i]. It grows as the logit falls, equal logits share one, -infinity goes to the last. */
static void bucket_group(const float *restrict logits, float max, float scale, float last, int32_t *restrict out)
{
	float distances[GROUP];
	for (int32_t i = 0; i < GROUP; i++)
		distances[i] = (max - logits[i]) * scale;
	for (int32_t i = 0; i < GROUP; i++) /* also turns the NaN of infinity * 0 into the last bucket */
		distances[i] = distances[i] < last ? distances[i] : last;
	for (int32_t i = 0; i < GROUP; i++)
		out[i] = (int32_t)distances[i];
}

/* GROUP logits from group * GROUP on; the last group is filled up with zeros, in padded. */
static const float *group_logits(const struct sampler *sampler, const struct row *row, int32_t group, float padded[GROUP])
{
	int32_t begin = group * GROUP, rest = sampler->vocab - begin;

	if (rest >= GROUP)
		return row->logits + begin;
	memset(padded, 0, GROUP * sizeof *padded);
	return memcpy(padded, row->logits + begin, (size_t)rest * sizeof *padded);
}

/* Puts all ids into buckets between the largest and the smallest logit. */
static void fill_buckets(struct sampler *sampler, struct row *row)
{
	find_minimum(sampler, row);
	float last = (float)(sampler->n_buckets - 1), scale = last / (row->max - row->min);
	if (!isfinite(scale))
		scale = 0; /* all logits (almost) equal: one bucket */
	for (int32_t group = 0; group < sampler->n_groups; group++) {
		float padded[GROUP];
		const float *logits = group_logits(sampler, row, group, padded);
		bucket_group(logits, row->max, scale, last, sampler->buckets + group * GROUP);
	}
}

/* Sorts the kept tokens of one bucket into sampler->sorted. */
static int32_t sort_bucket(struct sampler *sampler, const struct row *row, int32_t bucket)
{
	int32_t count = 0;
	for (int32_t id = 0; id < sampler->vocab; id++)
		if (sampler->buckets[id] == bucket && is_kept(row, id))
			sampler->sorted[count++] = (struct entry){row->logits[id], id};
	sort_entries(sampler->sorted, count);
	return count;
}

/* Keeps the first k tokens of the order. Nothing was cut before. */
static void cut_by_rank(struct sampler *sampler, struct row *row, int32_t k)
{
	if (k == 1) {
		row->last = (struct entry){row->max, row->argmax};
		return;
	}
	memset(sampler->counts, 0, (size_t)sampler->n_buckets * sizeof *sampler->counts);
	for (int32_t id = 0; id < sampler->vocab; id++)
		sampler->counts[sampler->buckets[id]]++;
	int32_t bucket = 0, before = 0;
	while (before + sampler->counts[bucket] < k)
		before += sampler->counts[bucket++];
	sort_bucket(sampler, row, bucket);
	row->last = sampler->sorted[k - before - 1];
}

/* Keeps the shortest head of the kept tokens that holds the share p of their weight. */
static void cut_by_mass(struct sampler *sampler, struct row *row, double p)
{
	memset(sampler->masses, 0, (size_t)sampler->n_buckets * sizeof *sampler->masses);
	for (int32_t id = 0; id < sampler->vocab; id++)
		if (is_kept(row, id))
			sampler->masses[sampler->buckets[id]] += (double)sampler->weights[id];
	double total = 0;
	for (int32_t bucket = 0; bucket < sampler->n_buckets; bucket++)
		total += sampler->masses[bucket];
	double target = p * total, before = 0;
	int32_t bucket = 0;
	while (bucket < sampler->n_buckets - 1 && before + sampler->masses[bucket] < target)
		before += sampler->masses[bucket++];
	int32_t count = sort_bucket(sampler, row, bucket);
	for (int32_t i = 0; i < count; i++) {
		before += (double)sampler->weights[sampler->sorted[i].id];
		if (before < target && i + 1 < count)
			continue;
		row->last = sampler->sorted[i];
		return;
	}
	/* The bucket is empty only when rounding kept target above the sum of all: then everything stays. */
}

/* Keeps tokens of at least min_p times the likeliest one's probability. */
static void cut_by_floor(struct row *row, double min_p, double temperature)
{
	float floor_logit = (float)((double)row->max + temperature * log(min_p));
	if (floor_logit > row->max)
		floor_logit = row->max;
	if (floor_logit > row->last.logit)
		row->last = (struct entry){floor_logit, INT32_MAX};
}

/* --- Drawing --------------------------------------------------------------------------------------------------------- */

/* Weights of all ids. */
static void weigh(struct sampler *sampler, const struct row *row, float inverse)
{
	for (int32_t group = 0; group < sampler->n_groups; group++) {
		float padded[GROUP];
		const float *logits = group_logits(sampler, row, group, padded);
		exp_group(logits, row->max, inverse, sampler->weights + group * GROUP);
	}
}

/* Uniform in (0, 1) for a token of the position that key stands for: the id-th output of the generator SplitMix64 (Steele, Lea
 * and Flood 2014) started at key, 52 bits and a half. Philox, which makes the keys, would take longer than the rest of a draw. */
static inline double noise(uint64_t key, int32_t id)
{
	uint64_t bits = hash64_mix(key + ((uint64_t)id + 1) * 0x9e3779b97f4a7c15u) >> 12;
	return ((double)bits + 0.5) * 0x1p-52;
}

/* A race over the kept tokens: each arrives after an exponential time of rate its weight, -log(1 - u) / weight, and the first
 * wins, with a chance in proportion to its weight. This is the largest of logit / T + Gumbel noise without the logarithm of a
 * weight. Nor is the noise's needed but for the few that may win: -log(1 - u) >= u, so u below the best time times the weight
 * is what it takes. */
static int32_t race(const struct sampler *sampler, const struct row *row, uint64_t key)
{
	int32_t winner = row->argmax;
	double best = -log1p(-noise(key, winner)) / (double)sampler->weights[winner];
	for (int32_t id = 0; id < sampler->vocab; id++) {
		double bound = best * (double)sampler->weights[id], uniform = noise(key, id);
		if (uniform >= bound || !is_kept(row, id))
			continue;
		double arrival = -log1p(-uniform);
		if (arrival >= bound)
			continue;
		best = arrival / (double)sampler->weights[id];
		winner = id;
	}
	return winner;
}

static int32_t pick_random(struct sampler *sampler, struct row *row, const struct sampling *sampling, int64_t position)
{
	bool by_rank = sampling->top_k > 0 && sampling->top_k < sampler->vocab;
	bool by_mass = sampling->top_p < 1;
	bool by_floor = sampling->min_p > 0;
	if (by_rank || by_mass)
		fill_buckets(sampler, row);
	weigh(sampler, row, (float)(1.0 / sampling->temperature));
	if (by_rank)
		cut_by_rank(sampler, row, sampling->top_k);
	if (by_mass)
		cut_by_mass(sampler, row, sampling->top_p);
	if (by_floor)
		cut_by_floor(row, sampling->min_p, sampling->temperature);
	return race(sampler, row, random_bits(sampling->seed, KN_SAMPLE_STREAM, (uint64_t)position));
}

/* --- Log-probabilities ----------------------------------------------------------------------------------------------- */

/* Running sums in a fixed order. */
static double sum_weights(const struct sampler *sampler)
{
	double sums[8] = {0};
	for (int32_t id = 0; id < sampler->vocab; id++)
		sums[id % 8] += (double)sampler->weights[id];
	return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

/* The n likeliest tokens, in order, by insertion: n is at most ENGINE_LOGPROBS_MAX. */
static void list_top(const struct sampler *sampler, const struct row *row, int n, float log_total, struct engine_token *out)
{
	struct entry top[ENGINE_LOGPROBS_MAX];
	int count = 0;
	for (int32_t id = 0; id < sampler->vocab; id++) {
		if (count == n && (n == 0 || row->logits[id] <= top[n - 1].logit))
			continue;
		struct entry entry = {row->logits[id], id};
		int place = count < n ? count++ : n - 1;
		for (; place > 0 && comes_before(entry, top[place - 1]); place--)
			top[place] = top[place - 1];
		top[place] = entry;
	}
	out->n_top = count;
	for (int i = 0; i < count; i++) {
		out->top_ids[i] = top[i].id;
		out->top_logprobs[i] = top[i].logit - row->max - log_total;
	}
}

static void add_logprobs(struct sampler *sampler, const struct row *row, int n_top, struct engine_token *out)
{
	weigh(sampler, row, 1);
	float log_total = (float)log(sum_weights(sampler));
	out->logprob = row->logits[out->id] - row->max - log_total;
	n_top = n_top < ENGINE_LOGPROBS_MAX ? n_top : ENGINE_LOGPROBS_MAX;
	list_top(sampler, row, n_top < sampler->vocab ? n_top : sampler->vocab, log_total, out);
}

enum status sampler_sample(struct sampler *sampler, const float *logits, const struct sampling *sampling, int64_t position,
	struct engine_token *out, struct err *err)
{
	struct row row = {.logits = logits};
	enum status status = scan_row(sampler, &row, err);
	if (status)
		return status;
	out->id = row.argmax;
	out->logprob = 0;
	out->n_top = 0;
	if (sampling->temperature >= SAMPLER_TEMPERATURE_MIN)
		out->id = pick_random(sampler, &row, sampling, position);
	if (sampling->logprobs >= 0)
		add_logprobs(sampler, &row, sampling->logprobs, out);
	return STATUS_OK;
}
