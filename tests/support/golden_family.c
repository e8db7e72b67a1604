/* Compares forward passes with golden logits of the tiny models. */
#include "tests/support/golden_family.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

#include "base/file.h"
#include "base/mem.h"

#define TOKENS_MAX 512
#define GOLDEN_BYTES_MAX ((size_t)1 << 20)

const char *const golden_families[GOLDEN_FAMILIES] = {"llama3", "mistral", "qwen2", "qwen3", "smollm2", "llama2", "mistral1"};

const char *golden_family_path(const char *family, char out[GOLDEN_PATH_BYTES])
{
	snprintf(out, GOLDEN_PATH_BYTES, "tests/golden/families/%s", family);
	return out;
}

struct json *golden_family_open(const char *family)
{
	char folder[GOLDEN_PATH_BYTES];
	struct text path = {0}, content = {0};
	struct json *root = NULL;
	struct err err = {0};
	text_printf(&path, "%s/golden.json", golden_family_path(family, folder));
	if (file_read(text_str(&path), GOLDEN_BYTES_MAX, &content, &err) != STATUS_OK ||
		json_parse(text_str(&content), content.len, text_str(&path), &root, &err) != STATUS_OK)
		fail_msg("%s", err.text);
	text_release(&path);
	text_release(&content);
	return root;
}

static int append_ids(const struct json *array, int32_t ids[TOKENS_MAX], int count)
{
	assert_true(json_count(array) + (size_t)count <= TOKENS_MAX);
	for (size_t i = 0; i < json_count(array); i++)
		ids[count++] = (int32_t)json_int(json_at(array, i), -1);
	return count;
}

/* Relative distance of a row of logits from a list. */
static double distance(const float *ours, const struct json *theirs)
{
	double difference = 0, size = 0;
	for (size_t i = 0; i < json_count(theirs); i++) {
		double value = json_number(json_at(theirs, i), NAN);
		difference += ((double)ours[i] - value) * ((double)ours[i] - value);
		size += value * value;
	}
	return sqrt(difference / size);
}

static double distance_of_lists(const struct json *a, const struct json *b)
{
	float *row = mem_calloc(json_count(a), sizeof *row);
	for (size_t i = 0; i < json_count(a); i++)
		row[i] = (float)json_number(json_at(a, i), NAN);
	double result = distance(row, b);
	mem_free(row);
	return result;
}

static int32_t highest(const float *logits, int vocab)
{
	int32_t best = 0;
	for (int32_t i = 1; i < vocab; i++)
		best = logits[i] > logits[best] ? i : best;
	return best;
}

/* The continuation was fed in, so one run shows every choice. */
static void check_greedy(const char *family, const struct json *one, const float *logits, int prompt, int vocab, double near_tie)
{
	const struct json *tokens = json_get(one, "greedy"), *margins = json_get(one, "margins");
	for (size_t i = 0; i < json_count(tokens); i++) {
		int32_t ours = highest(logits + ((size_t)prompt - 1 + i) * (size_t)vocab, vocab);
		if (ours != json_int(json_at(tokens, i), -1) && json_number(json_at(margins, i), 0) > near_tie)
			fail_msg("%s: choice %zu after %d tokens is %d, expected %d", family, i, prompt, (int)ours,
				(int)json_int(json_at(tokens, i), -1));
	}
}

static void compare_case(const char *family, const struct json *one, const struct forward_run *settings, double near_tie,
	struct golden_distances *worst)
{
	int32_t ids[TOKENS_MAX];
	int prompt = append_ids(json_get(one, "ids"), ids, 0), n = append_ids(json_get(one, "greedy"), ids, prompt);
	int vocab = forward_run_config(settings->path).vocab;
	float *logits = mem_calloc((size_t)n * (size_t)vocab, sizeof *logits);
	struct forward_run run = *settings;
	run.n_sequences = 1;
	run.tokens[0] = ids;
	run.n_tokens[0] = n;
	forward_run(&run, &logits);
	const struct json *positions = json_get(one, "positions"), *rows = json_get(one, "logits");
	for (size_t i = 0; i < json_count(positions); i++) {
		size_t position = (size_t)json_int(json_at(positions, i), 0);
		assert_int_equal(json_count(json_at(rows, i)), vocab);
		worst->fp32 = fmax(worst->fp32, distance(logits + position * (size_t)vocab, json_at(rows, i)));
	}
	const struct json *last = json_at(rows, json_count(rows) - 1), *brain = json_get(one, "bf16_last");
	worst->bf16 = fmax(worst->bf16, distance(logits + (size_t)(prompt - 1) * (size_t)vocab, brain));
	worst->theirs = fmax(worst->theirs, distance_of_lists(brain, last));
	check_greedy(family, one, logits, prompt, vocab, near_tie);
	mem_free(logits);
}

struct golden_distances golden_family_distances(
	const char *family, const char *path, const struct forward_run *settings, double near_tie)
{
	struct json *root = golden_family_open(family);
	const struct json *cases = json_get(root, "cases");
	char folder[GOLDEN_PATH_BYTES];
	struct forward_run run = *settings;
	struct golden_distances worst = {0};
	run.path = path ? path : golden_family_path(family, folder);
	assert_true(json_count(cases) > 0);
	for (size_t i = 0; i < json_count(cases); i++)
		compare_case(family, json_at(cases, i), &run, near_tie, &worst);
	json_free(root);
	return worst;
}
