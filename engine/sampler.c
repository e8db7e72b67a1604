/* Sampling. Filters never move logits: each one lowers a cut, the last token kept in the order (logit down, id up). A cut is
 * found by counting (or weighing) tokens in buckets of equal logit width, and by sorting only the bucket where it falls. */
#include "engine/sampler.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "base/random.h"

#define BUCKETS 2048        /* guess: 16 KiB of counts stay in the first-level cache */
#define GROUP 64            /* ids per partial sum of the inverse distribution */
#define NOISE_STREAM 0x5a11 /* this module's stream of base/random */

struct entry {
	float logit;
	int32_t id;
};

struct sampler {
	int32_t vocab, n_groups;
	float *weights;    /* [vocab] exp((logit - max) / T), not normalised */
	double *group_sums; /* [n_groups] */
	struct entry *sorted; /* [vocab] the bucket that is being sorted */
	int32_t counts[BUCKETS];
	double masses[BUCKETS];
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
	sampler->weights = mem_calloc((size_t)vocab, sizeof *sampler->weights);
	sampler->group_sums = mem_calloc((size_t)sampler->n_groups, sizeof *sampler->group_sums);
	sampler->sorted = mem_calloc((size_t)vocab, sizeof *sampler->sorted);
	return sampler;
}

void sampler_destroy(struct sampler *sampler)
{
	if (!sampler)
		return;
	mem_free(sampler->sorted);
	mem_free(sampler->group_sums);
	mem_free(sampler->weights);
	mem_free(sampler);
}

/* --- One pass over the row ------------------------------------------------------------------------------------------- */

static enum status scan_row(const struct sampler *sampler, const float *logits, struct row *row, struct err *err)
{
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
	*row = (struct row){.logits = logits, .max = max, .argmax = argmax, .last = {-INFINITY, INT32_MAX}};
	return STATUS_OK;
}

static void find_minimum(const struct sampler *sampler, struct row *row)
{
	float min = row->max;
	for (int32_t id = 0; id < sampler->vocab; id++)
		if (row->logits[id] < min && row->logits[id] != -INFINITY)
			min = row->logits[id];
	row->min = min;
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

/* Bucket of a logit: falls with the logit, and equal logits share one. */
static int32_t bucket_of(const struct row *row, float scale, float logit)
{
	float distance = (row->max - logit) * scale;
	return distance < (float)(BUCKETS - 1) ? (int32_t)distance : BUCKETS - 1; /* -infinity goes last */
}

static float bucket_scale(const struct row *row)
{
	float scale = (float)(BUCKETS - 1) / (row->max - row->min);
	return isfinite(scale) ? scale : 0; /* all logits (almost) equal: one bucket */
}

/* Sorts the kept tokens of one bucket into sampler->sorted. */
static int32_t sort_bucket(struct sampler *sampler, const struct row *row, float scale, int32_t bucket)
{
	int32_t count = 0;
	for (int32_t id = 0; id < sampler->vocab; id++)
		if (bucket_of(row, scale, row->logits[id]) == bucket && is_kept(row, id))
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
	float scale = bucket_scale(row);
	memset(sampler->counts, 0, sizeof sampler->counts);
	for (int32_t id = 0; id < sampler->vocab; id++)
		sampler->counts[bucket_of(row, scale, row->logits[id])]++;
	int32_t bucket = 0, before = 0;
	while (before + sampler->counts[bucket] < k)
		before += sampler->counts[bucket++];
	sort_bucket(sampler, row, scale, bucket);
	row->last = sampler->sorted[k - before - 1];
}

/* Keeps the shortest head of the kept tokens that holds the share p of their weight. */
static void cut_by_mass(struct sampler *sampler, struct row *row, double p)
{
	float scale = bucket_scale(row);
	memset(sampler->masses, 0, sizeof sampler->masses);
	for (int32_t id = 0; id < sampler->vocab; id++)
		if (is_kept(row, id))
			sampler->masses[bucket_of(row, scale, row->logits[id])] += (double)sampler->weights[id];
	double total = 0;
	for (int32_t bucket = 0; bucket < BUCKETS; bucket++)
		total += sampler->masses[bucket];
	double target = p * total, before = 0;
	int32_t bucket = 0;
	while (bucket < BUCKETS - 1 && before + sampler->masses[bucket] < target)
		before += sampler->masses[bucket++];
	int32_t count = sort_bucket(sampler, row, scale, bucket);
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

static void weigh(struct sampler *sampler, const struct row *row, double temperature)
{
	float inverse = (float)(1.0 / temperature);
	for (int32_t id = 0; id < sampler->vocab; id++)
		sampler->weights[id] = expf((row->logits[id] - row->max) * inverse);
}

/* Inverts the cumulative distribution of the kept tokens in id order at uniform. */
static int32_t draw(struct sampler *sampler, const struct row *row, bool filtered, double uniform)
{
	if (filtered)
		for (int32_t id = 0; id < sampler->vocab; id++)
			if (!is_kept(row, id))
				sampler->weights[id] = 0;
	double total = 0;
	for (int32_t group = 0; group < sampler->n_groups; group++) {
		int32_t end = group * GROUP + GROUP < sampler->vocab ? group * GROUP + GROUP : sampler->vocab;
		double sum = 0;
		for (int32_t id = group * GROUP; id < end; id++)
			sum += (double)sampler->weights[id];
		sampler->group_sums[group] = sum;
		total += sum;
	}
	double target = uniform * total, before = 0;
	int32_t group = 0;
	while (group < sampler->n_groups - 1 && before + sampler->group_sums[group] <= target)
		before += sampler->group_sums[group++];
	int32_t picked = row->argmax;
	for (int32_t id = group * GROUP; id < sampler->vocab; id++) {
		if (sampler->weights[id] == 0)
			continue;
		picked = id; /* the last possible one, should rounding run past the end */
		before += (double)sampler->weights[id];
		if (before > target)
			break;
	}
	return picked;
}

static int32_t pick_random(struct sampler *sampler, struct row *row, const struct sampling *sampling, int64_t position)
{
	bool by_rank = sampling->top_k > 0 && sampling->top_k < sampler->vocab;
	bool by_mass = sampling->top_p < 1, by_floor = sampling->min_p > 0;
	if (by_rank || by_mass)
		find_minimum(sampler, row);
	weigh(sampler, row, sampling->temperature);
	if (by_rank)
		cut_by_rank(sampler, row, sampling->top_k);
	if (by_mass)
		cut_by_mass(sampler, row, sampling->top_p);
	if (by_floor)
		cut_by_floor(row, sampling->min_p, sampling->temperature);
	double uniform = random_uniform(sampling->seed, NOISE_STREAM, (uint64_t)position);
	return draw(sampler, row, by_rank || by_mass || by_floor, uniform);
}

/* --- Log-probabilities ----------------------------------------------------------------------------------------------- */

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

static void add_logprobs(const struct sampler *sampler, const struct row *row, int n_top, struct engine_token *out)
{
	double total = 0;
	for (int32_t id = 0; id < sampler->vocab; id++)
		total += (double)expf(row->logits[id] - row->max);
	float log_total = (float)log(total);
	out->logprob = row->logits[out->id] - row->max - log_total;
	n_top = n_top < ENGINE_LOGPROBS_MAX ? n_top : ENGINE_LOGPROBS_MAX;
	list_top(sampler, row, n_top < sampler->vocab ? n_top : sampler->vocab, log_total, out);
}

enum status sampler_sample(struct sampler *sampler, const float *logits, const struct sampling *sampling, int64_t position,
	struct engine_token *out, struct err *err)
{
	struct row row = {0};
	enum status status = scan_row(sampler, logits, &row, err);
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
