/* Prints how many launches a race needs against a fixed design, with servers that are really launched: bench_race.
 *
 * Twelve settings of a stub server whose time per token is what differs: one 25 % faster, two a little, three the same, six slower.
 * The fixed design launches each in every one of 8 blocks; the race drops what is behind, and confirms its winner. Error rates are
 * those of tests/harness/test_race.c, which simulates hundreds of such searches; here each is one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>

#include "base/clock.h"
#include "base/json.h"
#include "tests/support/roles.h"
#include "tests/support/run_bed.h"

/* Milliseconds a token; the first is the baseline's. Values that differ by less than a clock can tell are "the same". */
#define FACTORS "\"factors\": {\"token_ms\": [8, 6, 7.6, 7.7, 8.001, 8.002, 8.003, 8.6, 9, 9.5, 10, 11, 12]}"

static const struct stub_experiment fixed = {.adapter = "command",
	.engine_extra = ", \"flags\": {\"token_ms\": \"--token-ms\"}",
	.baseline = "{\"token_ms\": 8}",
	.matrix = "{" FACTORS ", \"aa_twin\": true}",
	.workloads = "[{\"name\": \"w\", \"endpoint\": \"/v1/completions\", \"concurrency\": 2, \"requests\": 2, "
		     "\"dataset\": {\"kind\": \"random_ids\", \"input_len\": 8, \"output_len\": 12}}]",
	.protocol = "{\"blocks\": 8, \"max_blocks\": 8, \"runs_per_launch\": 1, \"screening\": false, \"warmup\": "
		    "{\"requests_per_slot\": 0}}",
	.guards = "{\"greedy_fingerprint\": {\"prompts\": 0}, \"client_late_ms_max\": 10000}",
	.verdict = "{\"confirm_winner_blocks\": 3}"};

/* Runs one search; prints a line and returns its launches. */
static int measure(const char *name, const struct stub_experiment *options)
{
	struct run_bed bed;
	struct json *document = NULL;
	struct text errors = {0}, launches = {0};
	int64_t begin_ns = clock_monotonic_ns();
	run_bed_open(&bed, options);
	int code = run_bed_run(&bed, NULL, &document, &errors);
	if (code != 0)
		fprintf(stderr, "exit code %d\n%s", code, text_str(&errors));
	run_bed_list_launches(&bed, &launches);
	int n = run_bed_count_of(&launches, " "), missed = 0, wrong = 0;
	const struct json *best = run_bed_row(document, "token_ms", "6"), *rows = json_get(document, "verdicts");
	missed = !text_equal(json_text(json_get(best, "verdict")), "helped");
	for (size_t i = 0; i < json_count(rows); i++) {
		const struct json *row = json_at(rows, i);
		double token_ms = json_number(json_get(row, "value"), 8);
		const char *verdict = json_text(json_get(row, "verdict"));
		wrong += (token_ms > 7.99 && text_equal(verdict, "helped")) || (token_ms < 8.01 && text_equal(verdict, "hurt"));
	}
	printf("%-14s %4d launches  %5.1f s  best %s  %d false verdicts\n", name, n,
		(double)(clock_monotonic_ns() - begin_ns) / 1e9, missed ? "missed" : "found", wrong);
	json_free(document);
	text_release(&errors);
	text_release(&launches);
	run_bed_close(&bed);
	return n;
}

int main(int argc, char **argv)
{
	int code;
	if (support_role(argc, argv, &code))
		return code;
	struct stub_experiment race = fixed;
	race.matrix = "{\"mode\": \"race\", " FACTORS ", \"aa_twin\": true}";
	int all = measure("fixed design", &fixed), raced = measure("race", &race);
	printf("ratio of launches %.2f (target 0.60)\n", (double)raced / all);
	return 0;
}
