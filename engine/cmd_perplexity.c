/* `verdict-engine perplexity FILE`: how well the model foresees a text. */
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"
#include "base/options.h"
#include "engine/commands.h"
#include "engine/options.h"
#include "engine/perplexity.h"
#include "engine/request.h"

#define TEXT_BYTES_MAX ((size_t)256 << 20) /* guess: hours of work on a CPU */
#define CONTEXT_MAX (1 << 24)
#define WARMUP_MAX 1000
#define OWN_OPTIONS 3

struct perplexity_options {
	struct engine_options engine;
	long long context, warmup;
	bool help;
};

static const char help_head[] = "usage: verdict-engine perplexity FILE --model PATH [options]\n"
				"Prints {\"tokens\", \"nll\", \"perplexity\", ...}: tokens of the text in FILE (\"-\": standard "
				"input), the summed negative log\n"
				"likelihood in nats of all but the first token of each window, and exp of its mean.\n\n";

static enum status print_result(const struct perplexity *result, int context, struct err *err)
{
	struct json *object = json_new_object();
	struct text out = {0};
	json_set(object, "tokens", json_new_integer((int64_t)result->tokens));
	json_set(object, "predicted", json_new_integer((int64_t)result->predicted));
	json_set(object, "windows", json_new_integer((int64_t)result->windows));
	json_set(object, "context", json_new_integer(context));
	json_set(object, "nll", json_new_number(result->nll));
	json_set(object, "mean_nll", json_new_number(result->nll / (double)result->predicted));
	json_set(object, "perplexity", json_new_number(result->perplexity));
	json_write(object, JSON_STYLE_COMPACT, &out);
	text_append_char(&out, '\n');
	enum status status = file_write_all(STDOUT_FILENO, text_str(&out), out.len, err);
	text_release(&out);
	json_free(object);
	return status;
}

static enum status run(const struct perplexity_options *options, const char *path, struct err *err)
{
	struct engine *engine = NULL;
	struct token_list tokens = {0};
	struct text text = {0};
	struct perplexity result = {0};
	int context = 0;
	enum status status = file_read(path, TEXT_BYTES_MAX, &text, err);
	if (status == STATUS_OK)
		status = engine_create(&options->engine, &engine, err);
	if (status == STATUS_OK)
		status = request_encode(engine_tokenizer(engine), text_str(&text), text.len, false, &tokens, err);
	if (status == STATUS_OK)
		context = options->context > 0 ? (int)options->context : engine_max_model_len(engine) - 1;
	for (long long i = 0; i <= options->warmup && status == STATUS_OK; i++)
		status = perplexity_run(engine, tokens.ids, tokens.count, context, &result, err);
	if (status == STATUS_OK)
		status = print_result(&result, context, err);
	engine_destroy(engine);
	token_list_release(&tokens);
	text_release(&text);
	return status;
}

enum status cmd_perplexity(int argc, char **argv, struct err *err)
{
	struct perplexity_options options = {0};
	const struct option own[OWN_OPTIONS] = {
		{"context", OPTION_I64, &options.context, 0, CONTEXT_MAX, "N",
			"Tokens of one window; longer texts are cut into windows without overlap (default: max-model-len - 1)."},
		{"warmup", OPTION_I64, &options.warmup, 0, WARMUP_MAX, "N", "Run the whole text N times first (default 0)."},
		{"help", OPTION_FLAG, &options.help, 0, 0, NULL, "This text."},
	};
	struct option table[OWN_OPTIONS + ENGINE_OPTIONS_COUNT_MAX];
	const char *path = NULL;
	size_t n_paths = 0;
	memcpy(table, own, sizeof own);
	engine_options_init(&options.engine);
	size_t count = engine_options_table(&options.engine, table, OWN_OPTIONS);
	enum status status = options_parse(table, count, argc, argv, 1, &path, 1, &n_paths, err);
	if (status == STATUS_OK && options.help)
		return command_print_help(help_head, table, count, err);
	if (status == STATUS_OK && n_paths == 0)
		status = err_set_code(err, STATUS_INPUT, "bad_option", "perplexity needs a FILE with the text");
	if (status == STATUS_OK)
		status = engine_options_check(&options.engine, err);
	return status == STATUS_OK ? run(&options, path, err) : status;
}
