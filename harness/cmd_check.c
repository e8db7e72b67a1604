/* `verdict check FILE`: says whether an experiment file is fine, without launching anything. */
#include <string.h>

#include "harness/cmd_common.h"
#include "harness/commands.h"
#include "harness/report.h"

static const char help_text[] = "usage: verdict check FILE [options]\n"
				"\n"
				"Reads an experiment file as `run` would and says what it found. A mistake is reported as "
				"FILE:LINE:COL: path: reason, exit code 2.\n"
				"FILE \"-\" is standard input.\n";

static void describe(const struct experiment *experiment, const char *file, struct text *out)
{
	int candidates = 0;
	for (int i = 0; i < experiment->n_arms; i++)
		candidates += experiment->arms[i].kind == ARM_CANDIDATE;
	text_printf(out, "%s: %s is fine: %d setting%s to compare with %s, %d workload%s\n", file, experiment->name, candidates,
		candidates == 1 ? "" : "s", experiment->arms[0].name, experiment->n_workloads,
		experiment->n_workloads == 1 ? "" : "s");
	for (size_t i = 0; i < experiment->notices.count; i++)
		text_printf(out, "note: %s\n", experiment->notices.items[i]);
}

static struct json *describe_json(const struct experiment *experiment)
{
	struct json *document = json_new_object(), *arms = json_new_array(), *workloads = json_new_array(),
		    *notices = json_new_array();
	for (int i = 0; i < experiment->n_arms; i++)
		json_append(arms, json_new_string(experiment->arms[i].name));
	for (int i = 0; i < experiment->n_workloads; i++)
		json_append(workloads, json_new_string(experiment->workloads[i].name));
	for (size_t i = 0; i < experiment->notices.count; i++)
		json_append(notices, json_new_string(experiment->notices.items[i]));
	json_set(document, "ok", json_new_bool(true));
	json_set(document, "name", json_new_string(experiment->name));
	json_set(document, "hash", json_new_string(experiment->hash));
	json_set(document, "arms", arms);
	json_set(document, "workloads", workloads);
	json_set(document, "notices", notices);
	return document;
}

static enum status print_result(const struct experiment *experiment, const char *file, bool as_json, struct err *err)
{
	struct text text = {0};
	enum status status = STATUS_OK;
	if (as_json) {
		struct json *document = describe_json(experiment);
		status = report_print_json(document, err);
		json_free(document);
	} else {
		describe(experiment, file, &text);
		status = report_print(&text, err);
	}
	text_release(&text);
	return status;
}

static void print_refusal(const char *reason)
{
	struct json *document = json_new_object();
	json_set(document, "ok", json_new_bool(false));
	json_set(document, "error", json_new_string(reason));
	report_print_json(document, NULL);
	json_free(document);
}

enum status cmd_check(int argc, char **argv, struct err *err)
{
	struct experiment_options experiment_options = {0};
	bool as_json = false, help = false;
	struct option options[EXPERIMENT_OPTIONS_COUNT + 2] = {
		{"json", OPTION_FLAG, &as_json, 0, 0, NULL,
			"Print JSON: {\"ok\", \"name\", \"arms\", …} or {\"ok\": false, \"error\"}."},
		{"help", OPTION_FLAG, &help, 0, 0, NULL, "Print this text."},
	};
	size_t n_options = 2, n_words = 0;
	const char *words[2];
	struct experiment *experiment = NULL;
	experiment_options_append(&experiment_options, options, &n_options);
	enum status status = options_parse(options, n_options, argc, argv, 2, words, 2, &n_words, err);
	if (!status && help)
		return cmd_print_help(help_text, options, n_options, "", err);
	if (!status && n_words != 1)
		status = err_set(err, STATUS_INPUT, "check takes one experiment file, got %zu (see verdict check --help)", n_words);
	if (status)
		return status;
	const struct experiment_overrides overrides = experiment_options_overrides(&experiment_options);
	status = experiment_load(words[0], &overrides, &experiment, err);
	if (!status)
		status = print_result(experiment, words[0], as_json, err);
	else if (as_json)
		print_refusal(err ? err->text : "");
	experiment_release(experiment);
	return status;
}
