/* Writing experiment files. */
#include "tests/support/experiments.h"

#include "base/json.h"
#include "tests/support/roles.h"

static void append_command(const char *const *stub, struct text *out)
{
	struct json *command = json_new_array();
	json_append(command, json_new_string(support_program()));
	json_append(command, json_new_string("stub-server"));
	json_append(command, json_new_string("--port"));
	json_append(command, json_new_string("${PORT}"));
	for (int i = 0; stub && stub[i]; i++)
		json_append(command, json_new_string(stub[i]));
	json_write(command, JSON_STYLE_COMPACT, out);
	json_free(command);
}

void stub_experiment_text(const struct stub_experiment *options, struct text *out)
{
	text_printf(out, "{\"schema\": \"experiment/1\", \"name\": \"stub\", \"engine\": {\"adapter\": \"%s\", \"command\": ",
		options->adapter ? options->adapter : "builtin");
	append_command(options->stub, out);
	text_printf(out, ", \"ready\": {\"timeout_s\": %g}, \"stop\": {\"term_s\": 5}%s}",
		options->ready_timeout_s > 0 ? options->ready_timeout_s : 20.0, options->engine_extra ? options->engine_extra : "");
	text_printf(out, ", \"baseline\": {\"params\": %s}", options->baseline ? options->baseline : "{\"speculation\": \"off\"}");
	text_printf(out, ", \"matrix\": %s",
		options->matrix ? options->matrix
				: "{\"mode\": \"ofat\", \"factors\": {\"speculation\": [\"off\", \"ngram\"]}, \"aa_twin\": false}");
	text_printf(out, ", \"workloads\": %s",
		options->workloads ? options->workloads
				   : "[{\"name\": \"w\", \"endpoint\": \"/v1/completions\", \"concurrency\": 2, \"requests\": 4, "
				     "\"dataset\": {\"kind\": \"random_ids\", \"input_len\": 8, \"output_len\": 12}}]");
	text_printf(out, ", \"protocol\": %s",
		options->protocol ? options->protocol
				  : "{\"blocks\": 1, \"max_blocks\": 1, \"runs_per_launch\": 2, \"warmup\": "
				    "{\"requests_per_slot\": 1}, \"stall_s\": 2, \"run_timeout_s\": 20}");
	if (options->verdict)
		text_printf(out, ", \"verdict\": %s", options->verdict);
	text_printf(out, ", \"guards\": %s}", options->guards ? options->guards : "{\"greedy_fingerprint\": {\"prompts\": 2}}");
}
