/* Compares logits of the real model with what transformers made of its dequantised weights. */
#include "tests/support/golden_logits.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/text.h"
#include "tests/support/sizes.h"

#define GOLDEN_BYTES_MAX ((size_t)4 << 20)
#define BATCH 4 /* cases in one run: what struct forward_run has room for */

struct json *golden_logits_open(const char *name)
{
	struct text path = {0}, text = {0};
	struct json *root = NULL;
	struct err err = {0};
	text_printf(&path, "tests/golden/logits/%s", name);
	if (file_read(text_str(&path), GOLDEN_BYTES_MAX, &text, &err) != STATUS_OK ||
		json_parse(text_str(&text), text.len, text_str(&path), &root, &err) != STATUS_OK)
		fail_msg("%s", err.text);
	text_release(&path);
	text_release(&text);
	return root;
}

int golden_logits_ids(const struct json *array, int32_t ids[GOLDEN_TOKENS_MAX])
{
	int count = (int)json_count(array);
	assert_in_range(count, 1, GOLDEN_TOKENS_MAX);
	for (int i = 0; i < count; i++)
		ids[i] = (int32_t)json_int(json_at(array, (size_t)i), -1);
	return count;
}

struct golden_error {
	double relative; /* over the stored sample of all logits */
	double top; /* largest difference among the stored highest ones */
	const char *name; /* of the case with the largest relative error; borrowed */
};

static struct golden_error golden_error(const struct json *golden_case, int stride, const float *logits)
{
	const struct json *sample = json_get(golden_case, "sample"), *top = json_get(golden_case, "top");
	double difference = 0, size = 0;
	struct golden_error error = {0};
	for (size_t i = 0; i < json_count(sample); i++) {
		double theirs = json_number(json_at(sample, i), NAN), ours = (double)logits[i * (size_t)stride];
		difference += (ours - theirs) * (ours - theirs);
		size += theirs * theirs;
	}
	error.relative = sqrt(difference / size);
	for (size_t i = 0; i < json_count(top); i++) {
		const struct json *pair = json_at(top, i);
		double theirs = json_number(json_at(pair, 1), NAN), ours = (double)logits[json_int(json_at(pair, 0), 0)];
		error.top = fmax(error.top, fabs(ours - theirs));
	}
	return error;
}

/* Runs up to BATCH cases at once, since loading the weights costs more than computing; *worst grows. */
static void check_batch(const struct forward_run *settings, const struct json *const *cases, int count, int stride, int vocab,
	struct golden_error *worst)
{
	static int32_t ids[BATCH][GOLDEN_TOKENS_MAX];
	struct forward_run run = *settings;
	float *logits[BATCH];
	run.last_only = true;
	run.n_sequences = count;
	for (int c = 0; c < count; c++) {
		run.tokens[c] = ids[c];
		run.n_tokens[c] = golden_logits_ids(json_get(cases[c], "ids"), ids[c]);
		logits[c] = mem_calloc((size_t)run.n_tokens[c] * (size_t)vocab, sizeof(float));
	}
	forward_run(&run, logits);
	for (int c = 0; c < count; c++) {
		const float *last = logits[c] + (size_t)(run.n_tokens[c] - 1) * (size_t)vocab;
		struct golden_error error = golden_error(cases[c], stride, last);
		if (!(error.relative <= worst->relative)) {
			worst->relative = error.relative;
			worst->name = json_text(json_get(cases[c], "name"));
		}
		worst->top = !(error.top <= worst->top) ? error.top : worst->top; /* NaN stays */
		mem_free(logits[c]);
	}
}

void golden_logits_check(const char *what, const struct forward_run *settings, const struct json *root, const struct json *holder,
	struct golden_bounds bounds)
{
	const struct json *cases = json_get(holder, "cases"), *batch[BATCH];
	int stride = (int)json_int(json_get(root, "stride"), 0), vocab = (int)json_int(json_get(root, "vocab"), 0), count = 0;
	int together = settings->n_sequences > 0 ? settings->n_sequences : BATCH;
	struct golden_error worst = {0};
	for (size_t c = 0; c < json_count(cases); c++) {
		const struct json *one = json_at(cases, c);
		if (json_count(json_get(one, "ids")) <= SIZE_REAL_TOKENS_MAX)
			batch[count++] = one;
		if (count > 0 && (count == together || c + 1 == json_count(cases))) {
			check_batch(settings, batch, count, stride, vocab, &worst);
			count = 0;
		}
	}
	print_message("%s: largest relative error %.3g ('%s'), largest difference among the highest logits %.3g\n", what,
		worst.relative, worst.name, worst.top);
	if (!(worst.relative < bounds.relative && worst.top < bounds.top))
		fail_msg("%s: '%s' has the relative error %.3g, allowed %.3g; the highest logits differ by %.3g, allowed %.3g",
			what, worst.name, worst.relative, bounds.relative, worst.top, bounds.top);
}

static int32_t likeliest(const float *logits, int vocab)
{
	int32_t best = 0;
	for (int32_t id = 1; id < vocab; id++)
		if (logits[id] > logits[best])
			best = id;
	return best;
}

void golden_logits_check_greedy(const struct forward_run *settings, const struct json *one, int vocab, double near_tie)
{
	const struct json *greedy = json_get(one, "greedy"), *margins = json_get(one, "margins");
	int32_t ids[GOLDEN_TOKENS_MAX];
	int n = golden_logits_ids(json_get(one, "ids"), ids), made = (int)json_count(greedy);
	for (int i = 0; i < made; i++)
		ids[n + i] = (int32_t)json_int(json_at(greedy, (size_t)i), -1);
	struct forward_run run = *settings;
	float *logits = mem_calloc((size_t)(n + made) * (size_t)vocab, sizeof *logits);
	run.n_sequences = 1;
	run.tokens[0] = ids;
	run.n_tokens[0] = n + made;
	forward_run(&run, &logits);
	for (int i = 0; i < made; i++) {
		int32_t ours = likeliest(logits + (size_t)(n + i - 1) * (size_t)vocab, vocab);
		double margin = json_number(json_at(margins, (size_t)i), 0);
		if (ours != ids[n + i] && margin > near_tie)
			fail_msg("'%s': token %d is %d, expected %d by a margin of %g", json_text(json_get(one, "name")), i, ours,
				ids[n + i], margin);
	}
	mem_free(logits);
}
