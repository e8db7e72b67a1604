/* `verdict-engine bench`: the table or document of engine/bench's measurements. */
#include "engine/commands.h"

#include <unistd.h>

#include "base/file.h"
#include "base/json.h"
#include "base/options.h"
#include "engine/bench.h"
#include "kernels/cpu/pool.h"

static const char help_head[] =
	"usage: verdict-engine bench --model PATH [options]\n"
	"Measures what this machine can do at best (reading memory, multiplying), then every operation of one prefill and of one\n"
	"decode step of the model, and prints each with its share of the limit that binds it. Best of many samples.\n\n";

static double gflop_per_s(const struct bench_row *row)
{
	return (row->cost.fma_flops + row->cost.dot16_flops) / row->seconds * 1e-9;
}

static void append_table(const struct bench_report *report, struct text *out)
{
	const struct cpu_limits *limits = &report->limits;

	text_printf(out, "%s; measured limits: read %.1f GB/s, fp32 multiply-add %.0f GFLOP/s, 16-bit multiply-add %.0f GOP/s\n\n",
		report->device, limits->read_bytes_per_s * 1e-9, limits->fma_flops_per_s * 1e-9, limits->dot16_flops_per_s * 1e-9);
	text_printf(out, "%5s  %-24s %5s %10s %8s %9s  %s\n", "rows", "operation", "calls", "us/call", "GB/s", "GFLOP/s",
		"share of the limit");
	for (size_t i = 0; i < report->n_rows; i++) {
		const struct bench_row *row = &report->rows[i];

		text_printf(out, "%5d  %-24s %5d %10.1f %8.1f %9.1f  %5.1f %% of %s", row->rows, bench_part_name(row->part),
			row->calls, row->seconds * 1e6 / row->calls, row->cost.bytes / row->seconds * 1e-9, gflop_per_s(row),
			100 * row->share, row->bound);
		if (row->part == BENCH_STEP)
			text_printf(out, ": %.1f tok/s", row->rows / row->seconds);
		text_append_char(out, '\n');
	}
}

static struct json *row_json(const struct bench_row *row)
{
	struct json *object = json_new_object();

	json_set(object, "operation", json_new_string(bench_part_name(row->part)));
	json_set(object, "rows", json_new_integer(row->rows));
	json_set(object, "calls", json_new_integer(row->calls));
	json_set(object, "us_per_call", json_new_number(row->seconds * 1e6 / row->calls));
	json_set(object, "gb_per_s", json_new_number(row->cost.bytes / row->seconds * 1e-9));
	json_set(object, "gflop_per_s", json_new_number(gflop_per_s(row)));
	json_set(object, "bound", json_new_string(row->bound));
	json_set(object, "share", json_new_number(row->share));
	return object;
}

/* {"device", "threads", "limits": {…}, "operations": [{…}…]} */
static void append_json(const struct bench_report *report, int threads, struct text *out)
{
	struct json *root = json_new_object(), *limits = json_new_object(), *list = json_new_array();

	json_set(limits, "read_gb_per_s", json_new_number(report->limits.read_bytes_per_s * 1e-9));
	json_set(limits, "fma_gflop_per_s", json_new_number(report->limits.fma_flops_per_s * 1e-9));
	json_set(limits, "dot16_gflop_per_s", json_new_number(report->limits.dot16_flops_per_s * 1e-9));
	for (size_t i = 0; i < report->n_rows; i++)
		json_append(list, row_json(&report->rows[i]));
	json_set(root, "device", json_new_string(report->device));
	json_set(root, "threads", json_new_integer(threads));
	json_set(root, "limits", limits);
	json_set(root, "operations", list);
	json_write(root, JSON_STYLE_PRETTY, out);
	text_append_char(out, '\n');
	json_free(root);
}

static enum status measure_and_print(const struct bench_options *options, bool json, struct err *err)
{
	struct bench_report report;
	struct text out = {0};
	enum status status = bench_measure(options, &report, err);

	if (status != STATUS_OK)
		return status;
	if (json)
		append_json(&report, options->threads, &out);
	else
		append_table(&report, &out);
	status = file_write_all(STDOUT_FILENO, out.data, out.len, err);
	text_release(&out);
	return status;
}

#define CONTEXT_MAX (1 << 20) /* guess; the model's own context is checked later */

enum status cmd_bench(int argc, char **argv, struct err *err)
{
	struct bench_options options = {.sample_ns = BENCH_SAMPLE_NS};
	long long threads = file_machine_cpus(), context = 64;
	bool json = false, help = false;
	const struct option table[] = {
		{"model", OPTION_STRING, &options.model_path, 0, 0, "PATH", "GGUF file or Hugging Face folder."},
		{"threads", OPTION_I64, &threads, 1, POOL_THREADS_MAX, "N", "Threads (default: CPUs of this process)."},
		{"context", OPTION_I64, &context, 0, CONTEXT_MAX, "N", "Tokens before the one of the decode step (default: 64)."},
		{"isa", OPTION_STRING, &options.isa, 0, 0, "NAME", "Instructions: auto, scalar, avx2 or avx512 (default: auto)."},
		{"json", OPTION_FLAG, &json, 0, 0, NULL, "One JSON document instead of the table."},
		{"help", OPTION_FLAG, &help, 0, 0, NULL, "This text."},
	};
	const size_t count = sizeof table / sizeof table[0];
	enum status status = options_parse(table, count, argc, argv, 1, NULL, 0, NULL, err);

	if (status == STATUS_OK && help)
		return command_print_help(help_head, table, count, err);
	if (status == STATUS_OK && !options.model_path)
		status = err_set(err, STATUS_INPUT, "--model PATH is needed");
	options.threads = (int)threads;
	options.context = (int)context;
	return status != STATUS_OK ? err_add(err, "bench") : measure_and_print(&options, json, err);
}
