/* `verdict-engine tokenize`: text from standard input to token ids, or ids back to text. */
#include "engine/commands.h"

#include <inttypes.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"
#include "base/options.h"
#include "engine/tokenizer.h"

struct tokenize_options {
	const char *model_path, *pre;
	bool parse_special, decode, help;
};

static const char help_head[] = "usage: verdict-engine tokenize --model PATH [options] < TEXT\n"
				"Prints the token ids of the text on standard input as one JSON document: {\"ids\": [...]}.\n"
				"Nothing is added to the text: no BOS token, no chat template.\n\n";

static enum status print_ids(const struct token_list *ids, struct err *err)
{
	struct text out = {0};
	enum status status;

	text_append_str(&out, "{\"ids\": [");
	for (size_t i = 0; i < ids->count; i++)
		text_printf(&out, "%s%" PRId32, i ? ", " : "", ids->ids[i]);
	text_append_str(&out, "]}\n");
	status = file_write_all(STDOUT_FILENO, out.data, out.len, err);
	text_release(&out);
	return status;
}

static enum status encode_input(const struct tokenizer *tokenizer, const struct text *input, bool parse_special, struct err *err)
{
	struct token_list ids = {0};
	enum status status = tokenizer_encode(tokenizer, text_str(input), input->len, parse_special, &ids, err);

	if (!status)
		status = print_ids(&ids, err);
	token_list_release(&ids);
	return status;
}

/* Appends the text of an array of ids. */
static enum status decode_ids(const struct tokenizer *tokenizer, const struct json *array, struct text *out, struct err *err)
{
	struct token_list ids = {0};
	enum status status = STATUS_OK;

	if (json_kind_of(array) != JSON_KIND_ARRAY)
		return err_set(err, STATUS_INPUT, "standard input: expected an array of ids or {\"ids\": [...]}");
	for (size_t i = 0; i < json_count(array) && !status; i++) {
		int64_t id = json_int(json_at(array, i), -1);

		if (id < 0 || id >= tokenizer_vocab_size(tokenizer))
			status = err_set(err, STATUS_INPUT, "standard input: element %zu is not an id from 0 to %" PRId32, i,
				tokenizer_vocab_size(tokenizer) - 1);
		else
			token_list_append(&ids, (int32_t)id);
	}
	if (!status)
		(void)tokenizer_decode(tokenizer, ids.ids, ids.count, true, out); /* every id is in range */
	token_list_release(&ids);
	return status;
}

static enum status decode_input(const struct tokenizer *tokenizer, const struct text *input, struct err *err)
{
	struct text out = {0};
	struct json *root = NULL;
	enum status status = json_parse(text_str(input), input->len, "standard input", &root, err);

	if (!status)
		status = decode_ids(tokenizer, json_kind_of(root) == JSON_KIND_OBJECT ? json_get(root, "ids") : root, &out, err);
	if (!status)
		status = file_write_all(STDOUT_FILENO, text_str(&out), out.len, err);
	json_free(root);
	text_release(&out);
	return status;
}

static enum status run(const struct tokenize_options *options, struct err *err)
{
	struct source source;
	struct tokenizer *tokenizer = NULL;
	struct text input = {0};
	enum status status = source_open(options->model_path, &source, err);

	if (status)
		return status;
	status = tokenizer_open(&source, options->pre, &tokenizer, err);
	if (status)
		err_add(err, "%s", options->model_path);
	source_close(&source);
	if (!status)
		status = file_read("-", TOKENIZER_TEXT_BYTES_MAX, &input, err);
	if (!status && options->decode)
		status = decode_input(tokenizer, &input, err);
	else if (!status)
		status = encode_input(tokenizer, &input, options->parse_special, err);
	tokenizer_close(tokenizer);
	text_release(&input);
	return status;
}

enum status cmd_tokenize(int argc, char **argv, struct err *err)
{
	struct tokenize_options options = {0};
	const struct option table[] = {
		{"model", OPTION_STRING, &options.model_path, 0, 0, "PATH",
			"GGUF file or Hugging Face folder with the vocabulary."},
		{"tokenizer-pre", OPTION_STRING, &options.pre, 0, 0, "NAME",
			"Splitting rule instead of the file's: smollm, gpt-2, llama-bpe, qwen2."},
		{"parse-special", OPTION_FLAG, &options.parse_special, 0, 0, NULL,
			"Control tokens written in the text become control tokens (default: off)."},
		{"decode", OPTION_FLAG, &options.decode, 0, 0, NULL,
			"The other way: [id, ...] or {\"ids\": [...]} on standard input, the text's bytes on standard output."},
		{"help", OPTION_FLAG, &options.help, 0, 0, NULL, "This text."},
	};
	const size_t count = sizeof(table) / sizeof(table[0]);
	enum status status = options_parse(table, count, argc, argv, 1, NULL, 0, NULL, err);

	if (!status && options.help)
		return command_print_help(help_head, table, count, err);
	if (!status && !options.model_path)
		status = err_set(err, STATUS_INPUT, "--model PATH is needed");
	return status ? err_add(err, "tokenize") : run(&options, err);
}
