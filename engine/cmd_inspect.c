/* `verdict-engine inspect`: lists metadata and tensors of a model file, or says why it is refused. */
#include "engine/commands.h"

#include <unistd.h>

#include "base/file.h"
#include "base/options.h"
#include "engine/inspect.h"

static const char help_head[] =
	"usage: verdict-engine inspect --model PATH [--json]     (or: inspect PATH)\n"
	"Lists metadata and tensors of a GGUF file, or the tensors of a Hugging Face folder. What cannot be read is refused with\n"
	"the place and the item at fault, and exit code 2; with --json the document is then {\"path\", \"refused\"}.\n\n";

static enum status write_json(struct json *document, struct err *err)
{
	struct text out = {0};
	enum status status;

	json_write(document, JSON_STYLE_PRETTY, &out);
	text_append_char(&out, '\n');
	status = file_write_all(STDOUT_FILENO, out.data, out.len, err);
	json_free(document);
	text_release(&out);
	return status;
}

static enum status refuse(const char *path, bool json, struct err *err)
{
	struct json *document;

	if (json) {
		document = json_new_object();
		json_set(document, "path", json_new_string(path));
		json_set(document, "refused", json_new_string(err->text));
		(void)write_json(document, NULL); /* the refusal is the error to report */
	}
	return err->status;
}

static enum status run_folder(const char *path, bool json, struct err *err)
{
	struct safetensors weights;
	struct text out = {0};
	enum status status;

	if (safetensors_open(path, &weights, err))
		return refuse(path, json, err);
	if (json) {
		status = write_json(inspect_folder_json(&weights, path), err);
	} else {
		inspect_folder_text(&weights, path, &out);
		status = file_write_all(STDOUT_FILENO, out.data, out.len, err);
	}
	safetensors_close(&weights);
	text_release(&out);
	return status;
}

static enum status run(const char *path, bool json, struct err *err)
{
	struct gguf gguf;
	struct text out = {0};
	enum status status;

	if (file_is_folder(path))
		return run_folder(path, json, err);
	if (gguf_open(path, &gguf, err))
		return refuse(path, json, err);
	if (json) {
		status = write_json(inspect_json(&gguf, path), err);
	} else {
		inspect_text(&gguf, path, &out);
		status = file_write_all(STDOUT_FILENO, out.data, out.len, err);
	}
	gguf_close(&gguf);
	text_release(&out);
	return status;
}

enum status cmd_inspect(int argc, char **argv, struct err *err)
{
	const char *model_path = NULL, *positional = NULL;
	bool json = false, help_wanted = false;
	const struct option table[] = {
		{"model", OPTION_STRING, &model_path, 0, 0, "PATH", "GGUF file or Hugging Face folder to list."},
		{"json", OPTION_FLAG, &json, 0, 0, NULL, "One JSON document instead of text."},
		{"help", OPTION_FLAG, &help_wanted, 0, 0, NULL, "This text."},
	};
	const size_t count = sizeof(table) / sizeof(table[0]);
	size_t n_positionals = 0;
	enum status status = options_parse(table, count, argc, argv, 1, &positional, 1, &n_positionals, err);

	if (!status && help_wanted)
		return command_print_help(help_head, table, count, err);
	if (!status && !model_path == !positional)
		status = err_set(err, STATUS_INPUT, "one file is needed: --model PATH");
	return status ? err_add(err, "inspect") : run(model_path ? model_path : positional, json, err);
}
