/* `verdict-engine once`: one prompt, its tokens, a hash of its logits, its rates. */
#include <limits.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/options.h"
#include "engine/commands.h"
#include "engine/once.h"
#include "engine/options.h"
#include "engine/request.h"

#define MAX_TOKENS_DEFAULT 64
#define MAX_TOKENS_MAX (1 << 24)
#define WARMUP_MAX 1000
#define TOP_P_MIN 1e-6 /* a share of nothing names no token; /v1/completions refuses 0 as well */
#define OWN_OPTIONS 14

struct once_options {
	struct engine_options engine;
	const char *prompt, *prompt_ids;
	bool parse_special, ignore_eos, logits, json, help;
	long long max_tokens, warmup, top_k, seed;
	double temperature, top_p, min_p;
};

static const char help_head[] =
	"usage: verdict-engine once --model PATH (--prompt TEXT | --prompt-ids 1,2,3) [options]\n"
	"Runs one request and prints its text, a hash of the logits that chose the first token, and the rates.\n"
	"Example: verdict-engine once --model M.gguf --prompt \"Once upon a time\" --max-tokens 32 --warmup 1 --json\n\n";

/* "1,2,3"; blanks around numbers are allowed. */
static enum status parse_ids(const char *list, struct token_list *out, struct err *err)
{
	for (const char *at = list;;) {
		size_t len = strcspn(at, ",");
		char word[24];
		long long id;
		const char *begin = at + strspn(at, " "), *end = at + len;
		while (end > begin && end[-1] == ' ')
			end--;
		size_t word_len = end > begin ? (size_t)(end - begin) : 0;
		memcpy(word, begin, word_len < sizeof word ? word_len : 0);
		word[word_len < sizeof word ? word_len : 0] = '\0';
		if (!text_to_i64(word, &id) || id < 0 || id > INT32_MAX)
			return err_set_code(err, STATUS_INPUT, "bad_option",
				"--prompt-ids: '%.*s' is no token id; expected numbers such as 1,2,3", (int)(len < 40 ? len : 40),
				at);
		token_list_append(out, (int32_t)id);
		if (at[len] == '\0')
			return STATUS_OK;
		at += len + 1;
	}
}

static enum status make_prompt(
	const struct once_options *options, const struct tokenizer *tokenizer, struct token_list *out, struct err *err)
{
	if (options->prompt_ids)
		return parse_ids(options->prompt_ids, out, err);
	return request_encode(tokenizer, options->prompt, strlen(options->prompt), options->parse_special, out, err);
}

static void append_human(const struct once_result *result, size_t prompt_count, struct text *out)
{
	text_append(out, text_str(&result->text), result->text.len);
	text_printf(out, "\n\nids          ");
	for (size_t i = 0; i < result->ids.count; i++)
		text_printf(out, "%s%d", i ? "," : "", result->ids.ids[i]);
	text_printf(out, "\nlogits hash  %s\nprefill      %.1f tok/s (%zu tokens)\n", result->logits_hash,
		result->prefill_tok_per_s, prompt_count);
	if (result->decode_tok_per_s > 0)
		text_printf(out, "decode       %.1f tok/s (%zu tokens, finish: %s)\n", result->decode_tok_per_s, result->ids.count,
			request_finish_name(result->engine.finish));
	if (result->device.steps > 0)
		text_printf(out, "device       %.1f µs a step, %.1f %% of the time between steps\n",
			(double)result->device.busy_ns / 1e3 / (double)result->device.steps,
			100.0 * (double)result->device.gap_ns / (double)(result->device.busy_ns + result->device.gap_ns));
	if (result->engine.drafted > 0)
		text_printf(out, "speculation  %d of %d drafted tokens accepted in %d verify steps\n", result->engine.accepted,
			result->engine.drafted, result->engine.verify_steps);
}

static enum status print_result(
	const struct once_options *options, const struct token_list *prompt, const struct once_result *result, struct err *err)
{
	struct text out = {0};
	if (options->json) {
		struct json *json = once_json(result, prompt->ids, prompt->count, options->logits);
		json_write(json, JSON_STYLE_COMPACT, &out);
		text_append_char(&out, '\n');
		json_free(json);
	} else {
		append_human(result, prompt->count, &out);
	}
	enum status status = file_write_all(STDOUT_FILENO, text_str(&out), out.len, err);
	text_release(&out);
	return status;
}

static enum status run(const struct once_options *options, struct err *err)
{
	struct engine *engine = NULL;
	struct token_list prompt = {0};
	struct once_result result = {0};
	struct sampling sampling = {
		.temperature = options->temperature,
		.top_k = (int)options->top_k,
		.top_p = options->top_p,
		.min_p = options->min_p,
		.seed = (uint64_t)options->seed,
		.logprobs = -1,
		.ignore_eos = options->ignore_eos,
		.max_tokens = (int)options->max_tokens,
	};
	enum status status = engine_create(&options->engine, &engine, err);
	if (status == STATUS_OK)
		status = make_prompt(options, engine_tokenizer(engine), &prompt, err);
	if (status == STATUS_OK)
		status = once_run(engine, prompt.ids, prompt.count, &sampling, (int)options->warmup, &result, err);
	if (status == STATUS_OK)
		status = print_result(options, &prompt, &result, err);
	once_result_release(&result);
	token_list_release(&prompt);
	engine_destroy(engine);
	return status;
}

static size_t fill_table(struct once_options *o, struct option *table)
{
	const struct option own[OWN_OPTIONS] = {
		{"prompt", OPTION_STRING, &o->prompt, 0, 0, "TEXT", "The prompt as text."},
		{"prompt-ids", OPTION_STRING, &o->prompt_ids, 0, 0, "1,2,3", "The prompt as token ids, taken as they are."},
		{"parse-special", OPTION_FLAG, &o->parse_special, 0, 0, NULL,
			"Control tokens written in the prompt become control tokens (default off)."},
		{"max-tokens", OPTION_I64, &o->max_tokens, 1, MAX_TOKENS_MAX, "N", "Tokens to make at most (default 64)."},
		{"temperature", OPTION_DOUBLE, &o->temperature, 0, 100, "T", "0 takes the likeliest token (default 0)."},
		{"top-k", OPTION_I64, &o->top_k, 0, INT_MAX, "N", "Sample among the N likeliest; 0 is off (default 0)."},
		{"top-p", OPTION_DOUBLE, &o->top_p, TOP_P_MIN, 1, "P", "Sample among the likeliest that make up P (default 1)."},
		{"min-p", OPTION_DOUBLE, &o->min_p, 0, 1, "P", "Drop tokens less likely than P times the likeliest (default 0)."},
		{"seed", OPTION_I64, &o->seed, 0, (double)LLONG_MAX, "N", "Seed of the sampling noise (default 0)."},
		{"ignore-eos", OPTION_FLAG, &o->ignore_eos, 0, 0, NULL, "Go on after an end token, to exactly max-tokens."},
		{"warmup", OPTION_I64, &o->warmup, 0, WARMUP_MAX, "N",
			"Run the whole request N times first, unmeasured (default 0)."},
		{"logits", OPTION_FLAG, &o->logits, 0, 0, NULL, "With --json: all logits of the last prompt position."},
		{"json", OPTION_FLAG, &o->json, 0, 0, NULL, "Print one JSON document."},
		{"help", OPTION_FLAG, &o->help, 0, 0, NULL, "This text."},
	};
	memcpy(table, own, sizeof own);
	return engine_options_table(&o->engine, table, OWN_OPTIONS);
}

enum status cmd_once(int argc, char **argv, struct err *err)
{
	struct once_options options = {.max_tokens = MAX_TOKENS_DEFAULT, .top_p = 1};
	struct option table[OWN_OPTIONS + ENGINE_OPTIONS_COUNT_MAX];
	engine_options_init(&options.engine);
	size_t count = fill_table(&options, table);
	enum status status = options_parse(table, count, argc, argv, 1, NULL, 0, NULL, err);
	if (status == STATUS_OK && options.help)
		return command_print_help(help_head, table, count, err);
	if (status == STATUS_OK && !options.prompt == !options.prompt_ids)
		status = err_set_code(err, STATUS_INPUT, "bad_option", "once needs either --prompt TEXT or --prompt-ids 1,2,3");
	if (status == STATUS_OK)
		status = engine_options_check(&options.engine, err);
	return status == STATUS_OK ? run(&options, err) : status;
}
